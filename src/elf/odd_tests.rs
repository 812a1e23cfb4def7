//! Files that no common linker makes with its defaults, and damaged ones.

use super::image::problems;
use super::testing::{Content, DEVICE_BYTE, ElfBuilder, TestSection, Via};
use super::tests::{MARKER, check, fat, fault, located, segment_kinds, split};
use crate::fault::FaultKind;

/// A linker script's SUBALIGN or ALIGN: every unit registers its own wrapper, so that gaps harm nobody.
#[test]
fn wrappers_may_have_zeros_between_them() {
    for stride in [24, 32, 40, 64] {
        let mut builder = ElfBuilder::shared(100_000).wrapper(4096, Via::Relr).wrapper(8192, Via::Symbolic);
        builder.stride = stride;
        let file = builder.build();
        let found: Vec<u64> = fat(&file).wrappers.iter().map(|wrapper| wrapper.target).collect();
        let bundle = fat(&file).sections[0].address;
        assert_eq!(found, [bundle, bundle + 4096, bundle + 8192], "stride {stride}");
        check(&builder);
    }
    // Anything else between them is not known.
    let mut builder = ElfBuilder::shared(100_000).wrapper(4096, Via::Relative);
    builder.stride = 32;
    let mut file = builder.build();
    let at = fat(&file).wrappers[0].offset as usize + 28;
    file[at] = 1;
    let found = fault(&file);
    assert!(found.message.contains("wrapper 1 has magic"), "{found}");
}

/// mold: p_align is the largest alignment of a section, offsets are congruent modulo a page only.
#[test]
fn alignment_beyond_what_offsets_keep_to() {
    for align in [0x4000_u64, 0x20_0000] {
        let mut builder = ElfBuilder::shared(100_000);
        builder.separate = false;
        let mut file = builder.build();
        let mut bent = 0;
        for index in 0..segment_kinds(&file).len() {
            let at = 64 + 56 * index;
            if file[at..at + 4] == 1u32.to_le_bytes() {
                let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
                bent += u64::from(word(at + 16).wrapping_sub(word(at + 8)) % align != 0);
                file[at + 48..at + 56].copy_from_slice(&align.to_le_bytes());
            }
        }
        assert!(bent > 0, "nothing is incongruent");
        let (after, _) = split(&file, MARKER).unwrap();
        let found = problems(&file, &after, MARKER, 8, 1);
        assert!(found.is_empty(), "{align:#x}: {found:#?}");
        assert!(file.len() - after.len() > 90_000);
    }
    // Less than a page is what no loader maps.
    let mut file = ElfBuilder::shared(100_000).build();
    file[64 + 56 + 8] ^= 0x10;
    let found = fault(&file);
    assert!(found.message.contains("congruent"), "{found}");
}

#[test]
fn a_file_that_is_cut_short_is_damaged() {
    let file = ElfBuilder::shared(10_000).build();
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (table, whole) = (word(40), file.len() as u64);
    // In the middle, within the section headers, by one byte, and within the program headers.
    for length in [64, 100, 5000, table, table + 64, whole - 1] {
        let found = located(&file[..length as usize]).unwrap_err();
        assert_eq!(found.kind, FaultKind::Malformed, "{length}");
        let expected = format!("the file has {length:#x} bytes: it is cut short");
        assert!(found.message.contains(&expected), "{found}");
        if length > 100 && length <= table {
            let expected = format!("section header table is at {table:#x}..{whole:#x}");
            assert!(found.message.contains(&expected), "{found}");
        }
    }
    // The names alone.
    let view = fat(&file).view;
    let mut bent = file.clone();
    let at = table as usize + 64 * view.names + 24;
    bent[at..at + 8].copy_from_slice(&whole.to_le_bytes());
    let found = located(&bent).unwrap_err();
    assert!(found.message.contains("section name string table"), "{found}");
    // More of a table than 64 bits can address, and a program header table past the end.
    let mut bent = file.clone();
    bent[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    let found = located(&bent).unwrap_err();
    assert!(found.message.contains("program header table is at 0xffffffffffffffff..2^64"), "{found}");
}

/// Found with llvm-bolt, which puts the table into a segment of its own at the end: a hole in front of it was planned,
/// and then refused by the verification.
#[test]
fn a_program_header_table_behind_the_bundle_stays() {
    const PLACE: &[u8] = b"the program headers go here";
    let mut builder = ElfBuilder::shared(100_000);
    let mut room = PLACE.to_vec();
    room.resize(56 * 20, 0);
    let section = TestSection::new(".phdrs", 1, 3, 8, Content::Bytes(room));
    builder.segments.last_mut().unwrap().1.push(section);
    let mut file = builder.build();
    let place = file.windows(PLACE.len()).position(|window| window == PLACE).unwrap();
    let (start, count) = (64, usize::from(u16::from_le_bytes([file[56], file[57]])));
    file.copy_within(start..start + 56 * count, place);
    file[32..40].copy_from_slice(&(place as u64).to_le_bytes());
    let (after, plan) = split(&file, MARKER).unwrap();
    // But for the names of new sections.
    assert!((file.len()..file.len() + 64).contains(&after.len()));
    assert_eq!(after[32..40], file[32..40]);
    assert_eq!(after[place..place + 56 * count], file[place..place + 56 * count]);
    assert!(!after.windows(64).any(|window| window.iter().all(|&byte| byte == DEVICE_BYTE)));
    assert!(plan.notes.iter().any(|note| note.contains("stands behind")), "{:?}", plan.notes);
}
