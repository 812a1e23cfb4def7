//! An image loader that knows no more than Windows does, and the comparison of two files as it sees them.

use std::collections::BTreeSet;

use super::builder::HIPK;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The checksum, word by word; `at` is the field.
pub(in crate::pe) fn checksum(file: &[u8], at: usize) -> u32 {
    let mut sum = 0u32;
    for start in (0..file.len()).step_by(2) {
        let byte = |offset: usize| {
            let inside = offset < file.len() && !(at..at + 4).contains(&offset);
            if inside { u32::from(file[offset]) } else { 0 }
        };
        sum += byte(start) | byte(start + 1) << 8;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum + file.len() as u32
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pe) struct Header {
    pub(in crate::pe) name: [u8; 8],
    pub(in crate::pe) virtual_size: u32,
    pub(in crate::pe) rva: u32,
    pub(in crate::pe) raw_size: u32,
    pub(in crate::pe) raw_offset: u32,
    pub(in crate::pe) relocations: u32,
    pub(in crate::pe) line_numbers: u32,
    pub(in crate::pe) counts: u32,
    pub(in crate::pe) flags: u32,
}

impl Header {
    fn memory(&self) -> u32 {
        if self.virtual_size == 0 { self.raw_size } else { self.virtual_size }
    }

    fn has_raw(&self) -> bool {
        self.raw_size != 0 && self.raw_offset != 0
    }
}

/// A file and its image.
#[derive(Clone, Debug)]
pub(in crate::pe) struct Loaded {
    pub(in crate::pe) file: Vec<u8>,
    pub(in crate::pe) nt: usize,
    pub(in crate::pe) base: u64,
    pub(in crate::pe) sections: Vec<Header>,
    pub(in crate::pe) directories: Vec<(u32, u32)>,
    pub(in crate::pe) memory: Vec<u8>,
}

impl Loaded {
    pub(in crate::pe) fn optional(&self, at: usize) -> u32 {
        u32_at(&self.file, self.nt + 24 + at)
    }

    pub(in crate::pe) fn named(&self, name: &[u8; 8]) -> Vec<&Header> {
        self.sections.iter().filter(|section| &section.name == name).collect()
    }

    fn directory(&self, index: usize) -> (u32, u32) {
        self.directories.get(index).copied().unwrap_or((0, 0))
    }

    fn raw_end(&self) -> usize {
        let raws = self.sections.iter().filter(|section| section.has_raw());
        raws.map(|section| (section.raw_offset + section.raw_size) as usize).max().unwrap_or(0)
    }
}

/// Maps `file` at its preferred address and then moves it by `delta`.
pub(in crate::pe) fn load(file: &[u8], delta: u64) -> Result<Loaded, String> {
    let nt = u32_at(file, 60) as usize;
    if &file[..2] != b"MZ" || &file[nt..nt + 4] != b"PE\0\0" || u16_at(file, nt + 24) != 0x20b {
        return Err("no PE32+ file".into());
    }
    let count = usize::from(u16_at(file, nt + 6));
    let optional = nt + 24;
    let table = optional + usize::from(u16_at(file, nt + 20));
    let (section_alignment, file_alignment) = (u32_at(file, optional + 32), u32_at(file, optional + 36));
    let (size_of_image, size_of_headers) = (u32_at(file, optional + 56), u32_at(file, optional + 60));
    if table + 40 * count > size_of_headers as usize {
        return Err("the section table ends behind SizeOfHeaders".into());
    }
    let mut memory = vec![0; size_of_image as usize];
    memory[..size_of_headers as usize].copy_from_slice(&file[..size_of_headers as usize]);
    let mut sections = Vec::new();
    let mut next = None;
    let mut raws = vec![(0, size_of_headers)];
    for index in 0..count {
        let at = table + 40 * index;
        let field = |offset: usize| u32_at(file, at + offset);
        let section = Header {
            name: file[at..at + 8].try_into().unwrap(),
            virtual_size: field(8),
            rva: field(12),
            raw_size: field(16),
            raw_offset: field(20),
            relocations: field(24),
            line_numbers: field(28),
            counts: field(32),
            flags: field(36),
        };
        let name = section.name.escape_ascii();
        if next.is_some_and(|next| next != section.rva) || section.rva < size_of_headers {
            return Err(format!("{name} starts at {:#x}, the one before ends at {next:x?}", section.rva));
        }
        if section.memory() == 0 {
            return Err(format!("{name} has no memory"));
        }
        let end = (section.rva + section.memory()).next_multiple_of(section_alignment);
        next = Some(end);
        if section.has_raw() {
            if !section.raw_offset.is_multiple_of(file_alignment) {
                return Err(format!("{name}: PointerToRawData {:#x} is not aligned", section.raw_offset));
            }
            let raw = section.raw_offset as usize..(section.raw_offset + section.raw_size) as usize;
            if raw.end > file.len() {
                return Err(format!("{name}: raw data ends at {:#x}, past the end", raw.end));
            }
            raws.push((raw.start as u32, raw.end as u32));
            let length = raw.len().min((end - section.rva) as usize);
            let target = section.rva as usize..section.rva as usize + length;
            let space = memory.get_mut(target).ok_or("SizeOfImage is too small")?;
            space.copy_from_slice(&file[raw.start..raw.start + length]);
        }
        sections.push(section);
    }
    if next.is_some_and(|next| next != size_of_image) {
        return Err(format!("SizeOfImage is {size_of_image:#x}, the sections end at {next:x?}"));
    }
    raws.sort_unstable();
    if raws.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("raw data overlaps".into());
    }
    let directories = (0..u32_at(file, optional + 108).min(16) as usize)
        .map(|index| (u32_at(file, optional + 112 + 8 * index), u32_at(file, optional + 116 + 8 * index)))
        .collect();
    let base = u64_at(file, optional + 24);
    let mut loaded = Loaded { file: file.to_vec(), nt, base, sections, directories, memory };
    if u16_at(file, nt + 22) & 1 == 0 {
        relocate(&mut loaded, delta)?;
        loaded.base = loaded.base.wrapping_add(delta);
    }
    Ok(loaded)
}

fn relocate(loaded: &mut Loaded, delta: u64) -> Result<(), String> {
    let (start, size) = loaded.directory(5);
    let table = loaded.memory[start as usize..(start + size) as usize].to_vec();
    let mut at = 0;
    while at < table.len() {
        let (page, length) = (u32_at(&table, at), u32_at(&table, at + 4) as usize);
        if length < 8 {
            return Err(format!("a relocation block of {length} bytes"));
        }
        for entry in (at + 8..at + length).step_by(2).map(|entry| u16_at(&table, entry)) {
            let site = (page + u32::from(entry & 0xfff)) as usize;
            match entry >> 12 {
                0 => {}
                3 => {
                    let value = u32_at(&loaded.memory, site).wrapping_add(delta as u32);
                    loaded.memory[site..site + 4].copy_from_slice(&value.to_le_bytes());
                }
                10 => {
                    let value = u64_at(&loaded.memory, site).wrapping_add(delta);
                    loaded.memory[site..site + 8].copy_from_slice(&value.to_le_bytes());
                }
                kind => return Err(format!("relocation type {kind}")),
            }
        }
        at += length;
    }
    Ok(())
}

/// Everything in which the rewritten file `after` is not `before` without its bundles and with `marker`.
/// `before` must be valid. Bundle and wrapper sections must have their short names.
pub(in crate::pe) fn differences(before: &[u8], after: &[u8], marker: &[u8]) -> Vec<String> {
    let delta = 0x7_1234_0000;
    let old = load(before, delta).expect("the test's own file is valid");
    let new = match load(after, delta) {
        Ok(new) => new,
        Err(problem) => return vec![problem],
    };
    let mut bad = Vec::new();
    let markers = new.named(b".kpackrf");
    let [place] = markers.as_slice() else { return vec![format!("{} marker sections", markers.len())] };
    let added = new.sections.len() == old.sections.len() + 1;
    if !added && new.sections.len() != old.sections.len() {
        bad.push("number of sections".into());
    }
    if (added || place.rva == new.sections[new.sections.len() - 1].rva)
        && place.virtual_size as usize != marker.len()
    {
        bad.push(format!("VirtualSize of .kpackrf is {}", place.virtual_size));
    }
    if !new.memory[place.rva as usize..].starts_with(marker) || place.flags & 0xe000_0000 != 0x4000_0000 {
        bad.push("the marker is not in read-only memory".into());
    }
    compare_memory(&old, &new, &mut bad);
    compare_sections(&old, &new, &mut bad);
    compare_headers(&old, &new, &mut bad);
    compare_wrappers(&old, &new, place.rva, &mut bad);
    compare_offsets(&old, &new, &mut bad);
    let field = old.nt + 88;
    let expected = if old.optional(64) == 0 { 0 } else { checksum(after, field) };
    if u32_at(after, field) != expected {
        bad.push(format!("CheckSum is {:#x}, expected {expected:#x}", u32_at(after, field)));
    }
    bad
}

/// Every byte outside headers, bundles, wrapper fields and the debug directory's file offsets.
fn compare_memory(old: &Loaded, new: &Loaded, bad: &mut Vec<String>) {
    let mut exempt = BTreeSet::new();
    for section in old.named(b".hipFatB") {
        for at in wrapper_rvas(old, section) {
            exempt.extend((at..at + 4).chain(at + 8..at + 20));
        }
    }
    let (debug, size) = old.directory(6);
    for entry in (debug..debug + size / 28 * 28).step_by(28) {
        exempt.extend(entry + 24..entry + 28);
    }
    for section in &old.sections {
        if &section.name == b".hip_fat" {
            continue;
        }
        let end = (section.rva + section.memory()).next_multiple_of(old.optional(32));
        let range = section.rva as usize..(end as usize).min(old.memory.len());
        let pairs = old.memory[range.clone()].iter().zip(&new.memory[range.clone()]);
        if let Some(at) =
            (0..).zip(pairs).find(|&(at, (a, b))| a != b && !exempt.contains(&(section.rva + at)))
        {
            bad.push(format!(
                "memory of {} differs at RVA {:#x}",
                section.name.escape_ascii(),
                section.rva + at.0
            ));
        }
    }
}

fn compare_sections(old: &Loaded, new: &Loaded, bad: &mut Vec<String>) {
    for (a, b) in old.sections.iter().zip(&new.sections) {
        let name = a.name.escape_ascii();
        let same_place = a.rva == b.rva && a.flags == b.flags && a.counts == b.counts;
        let same_size = &a.name == b".hip_fat"
            || a.name == b.name && a.virtual_size == b.virtual_size && a.raw_size == b.raw_size;
        if !same_place || !same_size {
            bad.push(format!("section {name} is now {b:x?}"));
        }
        if &b.name == b".hip_fat" && (b.raw_size, b.raw_offset) != (0, 0) {
            bad.push("a bundle has raw data".into());
        }
        if !a.has_raw() && b.raw_offset as usize > new.file.len() {
            bad.push(format!("section {name}: PointerToRawData is past the end"));
        }
    }
}

/// The bytes of the headers, but for the fields that have a reason to change.
fn compare_headers(old: &Loaded, new: &Loaded, bad: &mut Vec<String>) {
    let neutral = |loaded: &Loaded| {
        let mut bytes = loaded.file[..old.optional(60) as usize].to_vec();
        let (nt, table) = (loaded.nt, loaded.nt + 24 + usize::from(u16_at(&loaded.file, loaded.nt + 20)));
        // NumberOfSections, PointerToSymbolTable, SizeOfCode, SizeOfInitializedData, SizeOfImage, CheckSum.
        for (at, length) in [(6, 2), (12, 4), (28, 8), (80, 4), (88, 4)] {
            bytes[nt + at..nt + at + length].fill(0);
        }
        if loaded.directories.len() > 4 {
            bytes[nt + 136 + 32..nt + 136 + 40].fill(0);
        }
        bytes[table..table + 40 * loaded.sections.len()].fill(0);
        bytes
    };
    if neutral(old) != neutral(new) {
        bad.push("header bytes differ".into());
    }
    if new.directory(4) != (0, 0) {
        bad.push("there is still a certificate".into());
    }
    for (flag, at) in [(0x20, 4), (0x40, 8)] {
        let sum = |loaded: &Loaded| {
            let sections = loaded.sections.iter().filter(|section| section.flags & flag != 0);
            sections.map(|section| u64::from(section.raw_size)).sum::<u64>()
        };
        let expected = (u64::from(old.optional(at)) + sum(new)).saturating_sub(sum(old));
        if u64::from(new.optional(at)) != expected {
            bad.push(format!("sum of sizes at {at} is {:#x}, expected {expected:#x}", new.optional(at)));
        }
    }
}

/// Where wrappers start in `section`: at the next 8 bytes that are not all zero.
fn wrapper_rvas(old: &Loaded, section: &Header) -> Vec<u32> {
    let mut found = Vec::new();
    let (mut at, end) = (section.rva, section.rva + section.memory());
    while at + 24 <= end {
        let empty = old.memory[at as usize..][..8] == [0; 8];
        found.extend((!empty).then_some(at));
        at += if empty { 8 } else { 24 };
    }
    found
}

fn compare_wrappers(old: &Loaded, new: &Loaded, marker: u32, bad: &mut Vec<String>) {
    let mut index = 0;
    for section in old.named(b".hipFatB") {
        for at in wrapper_rvas(old, section) {
            let (a, b) = (&old.memory[at as usize..][..24], &new.memory[at as usize..][..24]);
            if u32_at(a, 0) == HIPK {
                if a != b {
                    bad.push(format!("wrapper {index} was HIPK and changed"));
                }
            } else if u32_at(b, 0) != HIPK
                || u64_at(b, 8) != new.base + u64::from(marker)
                || u32_at(b, 16) != index
                || a[4..8] != b[4..8]
                || a[20..] != b[20..]
            {
                bad.push(format!("wrapper {index} is {b:x?}"));
            }
            index += 1;
        }
    }
}

/// What the file offsets name: debug data, COFF symbols, overlay, object relocations.
fn compare_offsets(old: &Loaded, new: &Loaded, bad: &mut Vec<String>) {
    let slice = |loaded: &Loaded, start: u32, length: usize| {
        let start = (start as usize).min(loaded.file.len());
        loaded.file[start..(start + length).min(loaded.file.len())].to_vec()
    };
    let (debug, size) = old.directory(6);
    for at in (debug..debug + size / 28 * 28).step_by(28) {
        let entry = |loaded: &Loaded| {
            let bytes = &loaded.memory[at as usize..][..28];
            (u32_at(bytes, 24), slice(loaded, u32_at(bytes, 24), u32_at(bytes, 16) as usize))
        };
        let (a, b) = (entry(old), entry(new));
        if a.1 != b.1 || (a.0 == 0) != (b.0 == 0) {
            bad.push(format!("debug entry at RVA {at:#x} names other bytes"));
        }
    }
    let symbols = |loaded: &Loaded| {
        let start = u32_at(&loaded.file, loaded.nt + 12);
        if start == 0 {
            return Vec::new();
        }
        let symbols = 18 * u32_at(&loaded.file, loaded.nt + 16) as usize;
        let strings = slice(loaded, start + symbols as u32, 4);
        let strings = if strings.len() == 4 { u32_at(&strings, 0) as usize } else { 0 };
        slice(loaded, start, symbols + strings)
    };
    if symbols(old) != symbols(new) {
        bad.push("PointerToSymbolTable names other bytes".into());
    }
    for (a, b) in old.sections.iter().zip(&new.sections) {
        for (pointer_a, pointer_b, length) in [
            (a.relocations, b.relocations, 10 * (a.counts & 0xffff)),
            (a.line_numbers, b.line_numbers, 6 * (a.counts >> 16)),
        ] {
            if slice(old, pointer_a, length as usize) != slice(new, pointer_b, length as usize)
                || (pointer_a == 0) != (pointer_b == 0)
            {
                bad.push(format!("{}: relocations or line numbers", a.name.escape_ascii()));
            }
        }
    }
    let mut expected = old.file[old.raw_end()..].to_vec();
    let (start, size) = old.directory(4);
    if size != 0 {
        let start = start as usize - old.raw_end();
        expected.drain(start..start + size as usize);
    }
    if new.file[new.raw_end()..] != expected {
        bad.push("the overlay differs".into());
    }
}
