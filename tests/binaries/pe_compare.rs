//! Is a PE file, after a split, the same program without its device code?

use std::collections::BTreeSet;

use super::elf_file::{u16_at, u32_at, u64_at};
use super::pe_file::*;

const WRAPPERS: &str = ".hipFatB";
const BUNDLES: &str = ".hip_fat";
const MARKER: &str = ".kpackrf";
/// How far from ImageBase both are loaded.
const DELTA: u64 = 0x1_2345_0000;
const CERTIFICATES: usize = 4;
const DEBUG: usize = 6;

/// Every difference that is not allowed; empty if the split is right.
pub fn compare(before: &[u8], after: &[u8], marker: &[u8]) -> Vec<String> {
    let (old, new) = (Pe::parse(before), Pe::parse(after));
    let (mut old_image, mut new_image) = (old.image(), new.image());
    let mut problems = Vec::new();
    let mut expect = |holds: bool, problem: String| {
        if !holds {
            problems.push(problem);
        }
    };

    // Headers: what changes is named here, all else is the same bytes.
    let header = |pe: &Pe<'_>| {
        let mut bytes = pe.bytes[..pe.section_table().start as usize].to_vec();
        let directory = |index: usize| 24 + 112 + 8 * index;
        // Number of sections, symbol table, SizeOfInitializedData, SizeOfImage, SizeOfHeaders, CheckSum, certificates
        for (field, length) in
            [(6, 2), (12, 4), (32, 4), (80, 4), (84, 4), (88, 4), (directory(CERTIFICATES), 8)]
        {
            bytes[pe.at as usize + field..][..length].fill(0);
        }
        bytes
    };
    expect(header(&old) == header(&new), "header fields changed".into());
    expect(
        new.section_table().end <= new.headers_size,
        "the section table is longer than the headers".into(),
    );
    let first_raw = new.sections.iter().filter(|s| s.raw_size > 0).map(|s| s.raw).min().unwrap_or(0);
    expect(new.headers_size <= first_raw, "the headers run into section data".into());
    expect(old.directories.len() == new.directories.len(), "the number of directories changed".into());
    expect(new.directories.get(CERTIFICATES).is_none_or(|d| d.1 == 0), "a certificate is left".into());

    // Sections.
    for (one, two) in old.sections.iter().zip(&new.sections) {
        let name = String::from_utf8_lossy(&one.name).into_owned();
        let identity = |s: &Section| (s.rva, s.virtual_size, s.flags, s.others);
        if one.is(BUNDLES) && one.raw_size > 0 {
            expect(two.is(BUNDLES) || two.is(MARKER), format!("{name}: has another name"));
            expect(
                one.rva == two.rva && (two.raw_size == 0 || two.is(MARKER)),
                format!("{name}: bundles left"),
            );
            continue;
        }
        let same = one.name == two.name && identity(one) == identity(two) && one.raw_size == two.raw_size;
        expect(same, format!("{name}: the section header changed"));
    }
    let added = &new.sections[old.sections.len().min(new.sections.len())..];
    expect(added.len() <= 1 && added.iter().all(|s| s.is(MARKER)), "sections were added or lost".into());
    let mut spans: Vec<(u64, u64)> =
        new.sections.iter().filter(|s| s.raw_size > 0).map(|s| (s.raw, s.raw + s.raw_size)).collect();
    spans.sort_unstable();
    expect(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "sections overlap in the file".into());

    // Relocated memory outside bundles and wrappers.
    let words = old.relocated(&old_image);
    // Without relocations the image is loaded where it wants to be.
    let fixed = u16_at(before, old.at + 22) & 1 != 0;
    let delta = if fixed { 0 } else { DELTA };
    expect(words == new.relocated(&new_image), "base relocations changed".into());
    for &word in &words {
        for image in [&mut old_image, &mut new_image] {
            let value = u64_at(image, word).wrapping_add(delta);
            image[word as usize..word as usize + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    let mut free: BTreeSet<u64> = BTreeSet::new();
    for section in old.sections.iter().filter(|section| section.is(WRAPPERS)) {
        for at in (section.rva..section.rva + section.memory_size()).step_by(24) {
            free.extend((at..at + 4).chain(at + 8..at + 20));
        }
    }
    let debug = old.directories.get(DEBUG).copied().unwrap_or_default();
    for entry in (debug.0..debug.0 + debug.1 / 28 * 28).step_by(28) {
        free.extend(entry + 24..entry + 28); // PointerToRawData, compared as what it leads to
    }
    for section in old.sections.iter().filter(|section| !section.is(BUNDLES)) {
        let end = section.rva + section.memory_size().next_multiple_of(old.section_align);
        let changed = (section.rva..end)
            .find(|&rva| !free.contains(&rva) && old_image.get(rva as usize) != new_image.get(rva as usize));
        if let Some(rva) = changed {
            expect(false, format!("memory at RVA {rva:#x} changed"));
        }
    }

    // Wrappers.
    let mut index = 0;
    for section in old.sections.iter().filter(|section| section.is(WRAPPERS)) {
        for at in (section.rva..section.rva + section.memory_size() / 24 * 24).step_by(24) {
            let target = u64_at(&new_image, at + 8).wrapping_sub(delta).wrapping_sub(new.base);
            let found = new_image.get(target as usize..target as usize + marker.len());
            let holds = u32_at(&new_image, at) == 0x4b50_4948
                && u32_at(&new_image, at + 16) == index
                && found == Some(marker)
                && (fixed || words.contains(&(at + 8)));
            expect(holds, format!("wrapper {index} at RVA {at:#x} is wrong"));
            let named = new.sections.iter().any(|section| {
                section.is(MARKER) && section.rva == target && section.virtual_size == marker.len() as u64
                    || section.is(MARKER) && added.is_empty() && section.rva == target
            });
            expect(named, format!("wrapper {index} does not point at {MARKER}"));
            index += 1;
        }
    }
    expect(index > 0, "there are no wrappers".into());

    // What is named by offsets in the file.
    for entry in (0..debug.1 / 28).map(|entry| debug.0 + 28 * entry) {
        let raw = |pe: &Pe<'_>, image: &[u8]| {
            let (size, at) = (u64::from(u32_at(image, entry + 16)), u64::from(u32_at(image, entry + 24)));
            pe.file(at..at + size).to_vec()
        };
        let same = raw(&old, &old_image) == raw(&new, &new_image);
        expect(same, format!("the debug entry at RVA {entry:#x} leads elsewhere"));
    }
    if old.symbols_at != 0 {
        let table = |pe: &Pe<'_>| {
            let end = pe.symbols_at + 18 * pe.symbol_count;
            let strings = u64::from(u32_at(pe.bytes, end));
            (pe.symbol_count, pe.file(pe.symbols_at..end + strings).to_vec())
        };
        expect(table(&old) == table(&new), "the COFF symbols changed".into());
    } else {
        expect(new.symbols_at == 0, "there was no symbol table".into());
    }
    if old.directories.get(CERTIFICATES).is_none_or(|directory| directory.1 == 0) {
        let (was, is) = (old.overlay(), new.overlay());
        expect(was == is, format!("{} bytes of overlay became {}", was.len(), is.len()));
    }
    let right = new.right_checksum();
    if old.checksum == 0 {
        expect(new.checksum == 0, "there was no checksum".into());
    } else if old.checksum == old.right_checksum() {
        expect(new.checksum == right, format!("checksum {:#x}, right is {right:#x}", new.checksum));
    }

    // Device code is gone.
    for section in old.sections.iter().filter(|section| section.is(BUNDLES)) {
        let bytes = old.file(section.raw..section.raw + section.raw_size);
        for window in bytes.chunks_exact(64).step_by(61) {
            let distinct: BTreeSet<u8> = window.iter().copied().collect();
            if distinct.len() > 24 && new.bytes.windows(64).any(|found| found == window) {
                expect(false, "device code is still in the file".into());
                break;
            }
        }
        let room = 2 * old.file_align + marker.len() as u64;
        let shrunk = (old.bytes.len() as u64 + room).saturating_sub(new.bytes.len() as u64);
        expect(shrunk >= section.raw_size, format!("the file shrank by {shrunk} of {}", section.raw_size));
    }
    problems
}
