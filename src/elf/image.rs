//! A judge for tests: does a rewritten file mean the same as the one before? Loads both as a loader would and compares
//! the two memories, with `object`'s reader and none of the planner's code.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use object::LittleEndian as Le;
use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::testing::DEVICE_BYTE;

const BIAS: u64 = 0x7f00_0000_0000;

/// A file as a process sees it.
struct Process<'data> {
    data: &'data [u8],
    header: &'data elf::FileHeader64<Le>,
    segments: &'data [elf::ProgramHeader64<Le>],
    /// Name, header.
    sections: Vec<(String, &'data elf::SectionHeader64<Le>)>,
    /// Start address of a PT_LOAD, its flags and its bytes.
    memory: BTreeMap<u64, (u32, Vec<u8>)>,
}

impl<'data> Process<'data> {
    fn load(data: &'data [u8]) -> Result<Self, String> {
        let header = elf::FileHeader64::<Le>::parse(data).map_err(|error| error.to_string())?;
        let segments = header.program_headers(Le, data).map_err(|error| error.to_string())?;
        let table = header.sections(Le, data).map_err(|error| error.to_string())?;
        let mut sections = Vec::new();
        for section in table.iter() {
            let name = table.section_name(Le, section).map_err(|error| error.to_string())?;
            sections.push((String::from_utf8_lossy(name).into_owned(), section));
        }
        let mut memory = BTreeMap::new();
        for segment in segments.iter().filter(|segment| segment.p_type(Le) == elf::PT_LOAD) {
            let mut bytes = segment.data(Le, data).map_err(|()| "PT_LOAD ends past the file")?.to_vec();
            bytes.resize(segment.p_memsz(Le) as usize, 0);
            memory.insert(segment.p_vaddr(Le), (segment.p_flags(Le).0, bytes));
        }
        Ok(Self { data, header, segments, sections, memory })
    }

    fn section(&self, name: &str) -> Option<&'data elf::SectionHeader64<Le>> {
        self.sections.iter().find(|(found, _)| found == name).map(|(_, section)| *section)
    }

    fn content(&self, section: &elf::SectionHeader64<Le>) -> &'data [u8] {
        section.data(Le, self.data).unwrap_or(&[])
    }

    fn at(&self, address: u64) -> Option<(u32, u8)> {
        let (start, (flags, bytes)) = self.memory.range(..=address).next_back()?;
        Some((*flags, *bytes.get((address - start) as usize)?))
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.at(address + index as u64)?.1;
        }
        Some(u64::from_le_bytes(bytes))
    }

    fn set_word(&mut self, address: u64, value: u64) {
        let (start, (_, bytes)) = self.memory.range_mut(..=address).next_back().unwrap();
        let at = (address - start) as usize;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn dynamic(&self) -> HashMap<u64, u64> {
        let content = self.section(".dynamic").map_or(&[][..], |section| self.content(section));
        content.chunks_exact(16).map(|entry| (read(entry, 0), read(entry, 8))).collect()
    }

    /// Applies what `.dynamic` (or, without one, the sections) says. The set of addresses written.
    fn relocate(&mut self, relative: u32, absolute: u32) -> Result<Vec<u64>, String> {
        let dynamic = self.dynamic();
        let symbols = dynamic.get(&6).copied().unwrap_or(0);
        let mut written = Vec::new();
        if let (Some(&table), Some(&size)) = (dynamic.get(&7), dynamic.get(&8)) {
            for entry in (table..table + size).step_by(24) {
                let unmapped = || format!("relocation at {entry:#x} is not mapped");
                let place = self.word(entry).ok_or_else(unmapped)?;
                let info = self.word(entry + 8).ok_or_else(unmapped)?;
                let addend = self.word(entry + 16).ok_or_else(unmapped)?;
                let value = match (info as u32, info >> 32) {
                    (kind, 0) if kind == relative => addend,
                    (kind, symbol) if kind == absolute => {
                        let value = self.word(symbols + 24 * symbol + 8).ok_or("symbol is not mapped")?;
                        value.wrapping_add(addend)
                    }
                    other => return Err(format!("unexpected relocation {other:?}")),
                };
                self.set_word(place, value.wrapping_add(BIAS));
                written.push(place);
            }
        }
        if let (Some(&table), Some(&size)) = (dynamic.get(&36), dynamic.get(&35)) {
            for entry in (table..table + size).step_by(8) {
                let place = self.word(entry).ok_or("RELR is not mapped")?;
                let value = self.word(place).ok_or("RELR leads to unmapped memory")?;
                self.set_word(place, value.wrapping_add(BIAS));
                written.push(place);
            }
        }
        written.sort_unstable();
        Ok(written)
    }
}

fn read(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// What is wrong with `after`, the split of `before`; empty if nothing is.
pub(super) fn problems(
    before: &[u8],
    after: &[u8],
    marker: &[u8],
    relative: u32,
    absolute: u32,
) -> Vec<String> {
    match compare(before, after, marker, relative, absolute) {
        Ok(problems) => problems,
        Err(problem) => vec![problem],
    }
}

fn compare(
    before: &[u8],
    after: &[u8],
    marker: &[u8],
    relative: u32,
    absolute: u32,
) -> Result<Vec<String>, String> {
    let mut bad = Vec::new();
    let (mut old, mut new) = (Process::load(before)?, Process::load(after)?);
    structure(&old, &new, &mut bad);
    if after.windows(4).any(|window| window == [DEVICE_BYTE; 4]) {
        bad.push("device code stays in the file".to_owned());
    }
    let bundles: Vec<Range<u64>> = old
        .sections
        .iter()
        .filter(|(name, _)| name == ".hip_fatbin")
        .map(|(_, section)| section.sh_addr(Le)..section.sh_addr(Le) + section.sh_size(Le))
        .collect();
    let mut ignore: Vec<Range<u64>> = bundles.clone();

    // Sections: same count, names, kinds; content where it is not rewritten.
    if old.sections.len() != new.sections.len() {
        bad.push("the count of sections changed".to_owned());
    }
    let tags = new.dynamic();
    for ((name, was), (new_name, is)) in old.sections.iter().zip(&new.sections).skip(1) {
        if name == ".hip_fatbin" {
            if new_name != ".rocm_kpack_ref" {
                bad.push(format!("the bundle section is called {new_name}"));
            }
            // It may go on into padding behind the bundle; what it overwrites there has to be zero, which the
            // next section's bytes are not.
            ignore.push(is.sh_addr(Le)..is.sh_addr(Le) + is.sh_size(Le));
            if is.sh_size(Le) != 0 && new.content(is) != marker {
                bad.push(".rocm_kpack_ref is not the marker".to_owned());
            }
            continue;
        }
        let facts =
            |s: &elf::SectionHeader64<Le>| (s.sh_type(Le), s.sh_flags(Le), s.sh_link(Le), s.sh_info(Le));
        if name != new_name || facts(was) != facts(is) {
            bad.push(format!("section {name} is {new_name} now, or of another kind"));
        }
        let rewritten = [".hipFatBinSegment", ".rela.dyn", ".dynamic", ".shstrtab", ".strtab"];
        if !rewritten.contains(&name.as_str()) && old.content(was) != new.content(is) {
            bad.push(format!("the content of {name} changed"));
        }
        if is.sh_offset(Le) % was.sh_addralign(Le).clamp(1, 64)
            != was.sh_offset(Le) % was.sh_addralign(Le).clamp(1, 64)
        {
            bad.push(format!("{name} is no longer aligned in the file"));
        }
        if was.sh_addr(Le) != is.sh_addr(Le) {
            ignore.push(was.sh_addr(Le)..was.sh_addr(Le) + was.sh_size(Le));
            let tag: Option<u64> = match name.as_str() {
                ".dynstr" => Some(5),
                ".dynsym" => Some(6),
                ".hash" => Some(4),
                ".gnu.hash" => Some(0x6fff_fef5),
                ".gnu.version" => Some(0x6fff_fff0),
                ".gnu.version_r" => Some(0x6fff_fffe),
                ".interp" | ".note.gnu.build-id" => None,
                _ => {
                    bad.push(format!("{name} moved"));
                    None
                }
            };
            if tag.is_some_and(|tag| tags.get(&tag) != Some(&is.sh_addr(Le))) {
                bad.push(format!("the dynamic tag of {name} does not follow it"));
            }
            let follows = new
                .segments
                .iter()
                .any(|s| s.p_vaddr(Le) == is.sh_addr(Le) && s.p_filesz(Le) == is.sh_size(Le));
            if tag.is_none() && !follows {
                bad.push(format!("the program header of {name} does not follow it"));
            }
        }
    }
    // d_val of address tags: compared above.
    let dynamic = old.section(".dynamic");
    if let Some(section) = dynamic {
        for (index, entry) in old.content(section).chunks_exact(16).enumerate() {
            if matches!(read(entry, 0), 4..=6 | 0x6fff_fef5 | 0x6fff_fff0 | 0x6fff_fffe) {
                let at = section.sh_addr(Le) + 16 * index as u64 + 8;
                ignore.push(at..at + 8);
            }
        }
    }

    // Wrappers, after the loader has run.
    let wrappers = old.section(".hipFatBinSegment").ok_or("no wrappers")?;
    let (start, size) = (wrappers.sh_addr(Le), wrappers.sh_size(Le));
    let first_relocations = old.relocate(relative, absolute)?;
    if first_relocations != new.relocate(relative, absolute)? {
        bad.push("the set of relocated addresses changed".to_owned());
    }
    let table = old.section(".rela.dyn").map_or(0..0, |s| s.sh_addr(Le)..s.sh_addr(Le) + s.sh_size(Le));
    ignore.push(table);
    let mut places = Vec::new();
    let mut at = start;
    while at + 24 <= start + size {
        let empty = old.word(at) == Some(0);
        places.extend((!empty).then_some(at));
        at += if empty { 8 } else { 24 };
    }
    for (index, at) in places.into_iter().enumerate() {
        let magic = |process: &Process<'_>| process.word(at).map(|word| word as u32);
        if magic(&old) != Some(0x4849_5046) {
            continue; // an HIPK wrapper must not change at all
        }
        ignore.extend([at..at + 4, at + 8..at + 20]);
        if magic(&new) != Some(0x4b50_4948) {
            bad.push(format!("wrapper {index} is not HIPK"));
        }
        if new.word(at + 16).map(|word| word as u32) != Some(index as u32) {
            bad.push(format!("wrapper {index} has another index"));
        }
        let bias = if first_relocations.contains(&(at + 8)) { BIAS } else { 0 };
        let target = new.word(at + 8).unwrap_or(0).wrapping_sub(bias);
        let found: Vec<u8> = (target..)
            .map_while(|address| new.at(address))
            .map(|(_, byte)| byte)
            .take(marker.len())
            .collect();
        if found != marker {
            bad.push(format!("wrapper {index} points at {target:#x}, where the marker is not"));
        }
    }

    // The memory.
    let headers = |process: &Process<'_>| {
        process.header.e_phoff.get(Le) + 56 * u64::from(process.header.e_phnum.get(Le))
    };
    let first = old.memory.keys().next().copied().unwrap_or(0);
    ignore.push(first..first + headers(&old).max(headers(&new)));
    let ignored = |address: u64| ignore.iter().any(|range| range.contains(&address));
    for (start, (flags, bytes)) in &old.memory {
        for (index, byte) in bytes.iter().enumerate() {
            let address = start + index as u64;
            match new.at(address) {
                Some((new_flags, new_byte)) => {
                    if new_byte != *byte && !ignored(address) {
                        bad.push(format!("memory at {address:#x} changed"));
                        break;
                    }
                    if new_flags != *flags {
                        bad.push(format!("protection at {address:#x} changed"));
                        break;
                    }
                }
                None if bundles.iter().any(|bundle| bundle.contains(&address)) => {}
                None => {
                    bad.push(format!("memory at {address:#x} is no longer mapped"));
                    break;
                }
            }
        }
    }
    Ok(bad)
}

/// What kernel and loader insist on: congruence modulo a page. Modulo p_align, too, where the file before had that.
fn structure(old: &Process<'_>, new: &Process<'_>, bad: &mut Vec<String>) {
    let congruent = |load: &elf::ProgramHeader64<Le>, modulus: u64| {
        load.p_vaddr(Le).wrapping_sub(load.p_offset(Le)).is_multiple_of(modulus)
    };
    let strict = old
        .segments
        .iter()
        .filter(|load| load.p_type(Le) == elf::PT_LOAD)
        .all(|load| congruent(load, load.p_align(Le)));
    let loads: Vec<_> = new.segments.iter().filter(|s| s.p_type(Le) == elf::PT_LOAD).collect();
    let mut page_end = 0;
    for load in &loads {
        let (offset, address) = (load.p_offset(Le), load.p_vaddr(Le));
        if !congruent(load, if strict { load.p_align(Le) } else { 0x1000 }) {
            bad.push(format!("PT_LOAD at {address:#x} is not congruent to offset {offset:#x}"));
        }
        if address / 0x1000 < page_end {
            bad.push(format!("PT_LOAD at {address:#x} shares a page with the one before it"));
        }
        page_end = (address + load.p_memsz(Le)).div_ceil(0x1000);
    }
    let table = new.header.e_phoff.get(Le);
    let end = table + 56 * u64::from(new.header.e_phnum.get(Le));
    if !loads.iter().any(|load| load.p_offset(Le) <= table && end <= load.p_offset(Le) + load.p_filesz(Le)) {
        bad.push("the program header table is not mapped".to_owned());
    }
    for segment in new.segments.iter().filter(|s| s.p_type(Le) != elf::PT_LOAD && s.p_filesz(Le) > 0) {
        let contained = loads.iter().any(|load| {
            load.p_offset(Le) <= segment.p_offset(Le)
                && segment.p_offset(Le) + segment.p_filesz(Le) <= load.p_offset(Le) + load.p_filesz(Le)
                && segment.p_vaddr(Le).wrapping_sub(segment.p_offset(Le))
                    == load.p_vaddr(Le).wrapping_sub(load.p_offset(Le))
        });
        if !contained {
            bad.push(format!("program header {:?} is not mapped where it says", segment.p_type(Le)));
        }
        if segment.p_type(Le) == elf::PT_PHDR
            && (segment.p_offset(Le), segment.p_filesz(Le)) != (table, end - table)
        {
            bad.push("PT_PHDR is not the table".to_owned());
        }
    }
    let mut spans: Vec<(u64, u64, &str)> = new
        .sections
        .iter()
        .filter(|(_, s)| {
            s.sh_type(Le) != elf::SHT_NOBITS && s.sh_size(Le) > 0 && s.sh_type(Le) != elf::SHT_NULL
        })
        .map(|(name, s)| (s.sh_offset(Le), s.sh_offset(Le) + s.sh_size(Le), name.as_str()))
        .chain([(0, 64, "ELF header"), (table, end, "program header table")])
        .collect();
    let sections = new.header.e_shoff.get(Le);
    spans.push((sections, sections + 64 * new.sections.len() as u64, "section header table"));
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            bad.push(format!("{} and {} overlap", pair[0].2, pair[1].2));
        }
    }
    if spans.iter().any(|span| span.1 > new.data.len() as u64) {
        bad.push("something ends past the end of the file".to_owned());
    }
    for (name, section) in &new.sections {
        let (address, size) = (section.sh_addr(Le), section.sh_size(Le));
        if section.sh_flags(Le).0 & 2 == 0 || size == 0 || section.sh_type(Le) == elf::SHT_NOBITS {
            continue;
        }
        let mapped = loads.iter().any(|load| {
            load.p_vaddr(Le) <= address
                && address + size <= load.p_vaddr(Le) + load.p_filesz(Le)
                && address - load.p_vaddr(Le) == section.sh_offset(Le).wrapping_sub(load.p_offset(Le))
        });
        if !mapped {
            bad.push(format!("section {name} is not mapped at its address"));
        }
    }
}
