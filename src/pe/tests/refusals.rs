//! What is refused, and what is no fat binary.

use super::*;

#[test]
fn debug_data_in_a_bundle_or_across_the_end_is_refused() {
    let Fixture { mut image, rdata, fat, table, .. } = fixture();
    image.debug = Some(((rdata, 0x200), vec![(2, DebugData::In((fat, 0x20), 0x40))]));
    let fault = refused(&image);
    assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "debug directory entry 0"));
    // Named by file offset only.
    image.debug = Some(((rdata, 0x200), vec![(2, DebugData::Raw(image.raw_offsets()[fat] - 1, 2))]));
    let fault = refused(&image);
    assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "debug directory entry 0"));
    // The marker's section would come in the middle.
    image.overlay = pattern(1, 100);
    let end = *image.raw_offsets().last().unwrap();
    image.debug = Some(((rdata, 0x200), vec![(2, DebugData::Raw(end - 1, 2))]));
    assert_eq!(refused(&image).kind, FaultKind::Unsupported);
    // A directory that is nowhere.
    image.debug = None;
    image.raw_directories.push((6, 0x7fff_0000, 28));
    assert_eq!(refused(&image).kind, FaultKind::Malformed);
    // In the headers, or over the wrappers: found by fuzzing.
    for rva in [0, image.rvas()[table] + 8] {
        image.raw_directories = vec![(6, rva, 28)];
        let fault = refused(&image);
        assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "debug directory"));
    }
}

#[test]
fn symbols_in_a_bundle_are_refused_and_those_past_the_end_stay() {
    let Fixture { image, fat, .. } = fixture();
    let mut file = image.build();
    let at = image.nt_offset as usize + 12;
    file[at..at + 4].copy_from_slice(&(image.raw_offsets()[fat] + 4).to_le_bytes());
    let fault = try_split(&file, MARKER).unwrap_err();
    assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "PointerToSymbolTable"));
    file[at..at + 4].copy_from_slice(&0x10_0000u32.to_le_bytes());
    split(&file);
}

#[test]
fn wrappers_that_are_already_split() {
    let Fixture { mut image, rdata, table, .. } = fixture();
    // A mix: HIPK stays as it is, whatever it points at.
    image.sections[table].data[..4].copy_from_slice(&HIPK.to_le_bytes());
    image.pointers[0].1 = (rdata, 0x100);
    split(&image.build());
    // HIPK into a bundle makes no sense.
    image.pointers[0].1 = (image.sections.len() - 3, 0x100);
    assert_eq!(refused(&image).place, "wrapper 0");
    for slot in 0..4 {
        image.sections[table].data[24 * slot..24 * slot + 4].copy_from_slice(&HIPK.to_le_bytes());
    }
    assert!(matches!(locate(&mut image.build().as_slice()).unwrap(), Located::AlreadySplit));
}

#[test]
fn a_split_file_is_already_split() {
    for slot in [0, 1] {
        let Fixture { mut image, .. } = fixture();
        image.behind_table = vec![slot; 4];
        let output = split(&image.build());
        assert!(matches!(locate(&mut output.as_slice()).unwrap(), Located::AlreadySplit));
    }
}

#[test]
fn bad_wrappers_are_faults() {
    // Another magic.
    let Fixture { mut image, table, .. } = fixture();
    image.sections[table].data[24] ^= 1;
    let fault = refused(&image);
    assert_eq!(fault.place, "wrapper 1");
    assert_eq!(fault.offset, Some(u64::from(image.raw_offsets()[table]) + 24));
    assert!(fault.message.contains("HIPF"), "{fault}");
    // A pointer just outside the bundles, on either side and in the padding.
    for target in [(5, 0), (6, 0x5e71), (7, 0)] {
        let Fixture { mut image, .. } = fixture();
        image.pointers[3].1 = target;
        assert_eq!(refused(&image).place, "wrapper 3");
    }
    // Zeros behind the last wrapper are padding, anything else is not.
    let Fixture { mut image, table, .. } = fixture();
    image.sections[table].data.extend([0; 8]);
    split(&image.build());
    image.sections[table].data.extend([0, 1]);
    assert_eq!(refused(&image).place, "section .hipFatB");
    // More VirtualSize than raw data.
    let Fixture { mut image, table, .. } = fixture();
    image.sections[table].virtual_size = Some(0x300);
    assert_eq!(refused(&image).place, "section .hipFatB");
}

#[test]
fn wrapper_pointers_must_be_relocated_unless_nothing_is() {
    let Fixture { mut image, .. } = fixture();
    let bare = image.pointers.remove(2);
    image.bare_pointers.push(bare);
    let fault = refused(&image);
    assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "wrapper 2"));
    // No relocations at all, and no flag that says so.
    let Fixture { mut image, .. } = fixture();
    image.bare_pointers.append(&mut image.pointers);
    image.reloc = None;
    assert_eq!(refused(&image).place, "wrapper 0");
    // A program at a fixed address: no relocations, pointers in place.
    let Fixture { mut image, .. } = fixture();
    image.bare_pointers.append(&mut image.pointers);
    image.reloc = None;
    image.characteristics = 0x23;
    split(&image.build());
    // A relocation elsewhere in a wrapper would change the code-object index.
    let Fixture { mut image, table, .. } = fixture();
    image.extra_relocations.push((3, (table, 24 + 17)));
    assert_eq!(refused(&image).place, "wrapper 1");
    let Fixture { mut image, table, .. } = fixture();
    image.extra_relocations.push((10, (table, 24 - 3)));
    assert_eq!(refused(&image).place, "wrapper 0");
}

#[test]
fn pointers_into_a_bundle_are_refused_by_rva() {
    for (spot, target) in [((1, 0x100), 0), ((1, 0x101), 0x5e70), ((2, 0x208), 0x1000)] {
        let Fixture { mut image, fat, .. } = fixture();
        image.pointers.push((spot, (fat, target)));
        let fault = refused(&image);
        assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "base relocations"));
        let rva = image.rvas()[spot.0] + spot.1;
        assert!(fault.message.contains(&format!("{rva:#x}")), "{fault}");
        // The same bytes without a relocation are no pointer.
        let bare = image.pointers.pop().unwrap();
        image.bare_pointers.push(bare);
        split(&image.build());
    }
    // The end of the bundles belongs to what follows.
    let Fixture { mut image, rdata, fat, .. } = fixture();
    image.pointers.push(((rdata, 0x100), (fat, 0x6000)));
    split(&image.build());
    // 32-bit pointers.
    let Fixture { mut image, rdata, fat, .. } = fixture();
    image.image_base = 0x40_0000;
    let value = image.image_base as u32 + image.rvas()[fat] + 5;
    image.sections[rdata].data[0x80..0x84].copy_from_slice(&value.to_le_bytes());
    split(&image.build());
    image.extra_relocations.push((3, (rdata, 0x80)));
    assert!(refused(&image).message.contains("leads into a bundle"));
}

#[test]
fn odd_base_relocations_are_refused() {
    // In a bundle; of a type that is not understood; in no section; half in the raw data.
    let cases =
        [(10, (6, 0x100)), (5, (1, 0x100)), (4, (1, 0x100)), (10, (2, 0x3fff_0000)), (10, (1, 0x7ff))];
    for (kind, spot) in cases {
        let Fixture { mut image, .. } = fixture();
        image.extra_relocations.push((kind, spot));
        assert_eq!(refused(&image).place, "base relocations", "{kind} {spot:?}");
    }
    // In memory that is not in the file: zeros, which lead nowhere.
    let Fixture { mut image, .. } = fixture();
    image.extra_relocations.push((10, (3, 0x100)));
    split(&image.build());
    // Padding behind the blocks.
    let Fixture { mut image, .. } = fixture();
    image.reloc = None;
    let file = image.build();
    let reloc = *image.raw_offsets().get(8).unwrap() as usize;
    let rva = image.rvas()[8];
    for (header, ok) in
        [([0u32, 0], false), ([0x1000, 7], false), ([0x1000, 9], false), ([0x1000, 0x402], false)]
    {
        let mut file = file.clone();
        file[reloc..reloc + 4].copy_from_slice(&header[0].to_le_bytes());
        file[reloc + 4..reloc + 8].copy_from_slice(&header[1].to_le_bytes());
        let directory = image.nt_offset as usize + 24 + 112 + 40;
        file[directory..directory + 4].copy_from_slice(&rva.to_le_bytes());
        file[directory + 4..directory + 8].copy_from_slice(&0x400u32.to_le_bytes());
        assert_eq!(try_split(&file, MARKER).is_ok(), ok);
    }
}

#[test]
fn directories_and_the_entry_point_stay_out_of_bundles() {
    for index in [0, 1, 2, 3, 5, 6, 9, 12] {
        let Fixture { mut image, fat, .. } = fixture();
        image.directories.retain(|&(other, ..)| other != index);
        image.reloc = None;
        image.directories.push((index, (fat, 0x123), 0x1c));
        let fault = refused(&image);
        assert_eq!((fault.kind, fault.place), (FaultKind::Unsupported, format!("data directory {index}")));
    }
    let Fixture { mut image, fat, .. } = fixture();
    image.entry = Some((fat, 0x10));
    assert_eq!(refused(&image).place, "entry point");
}

/// Sets a 32-bit field of section header `index`.
fn set(file: &mut [u8], image: &TestImage, index: usize, field: usize, value: u32) {
    let at = image.table_offset() + 40 * index + field;
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn layouts_that_the_loader_refuses_are_faults() {
    let Fixture { image, .. } = fixture();
    let (rvas, offsets) = (image.rvas(), image.raw_offsets());
    let (virtual_address, raw_size, raw_offset) = (12, 16, 20);
    let cases = [
        ("descending", 2, virtual_address, rvas[0]),
        ("not aligned", 2, virtual_address, rvas[2] + 0x200),
        ("a gap", 2, virtual_address, rvas[2] + 0x1000),
        ("in the headers", 0, virtual_address, 0),
        ("raw overlap", 2, raw_offset, offsets[1]),
        ("raw in the headers", 0, raw_offset, 0x200),
        ("raw past the end", 8, raw_size, 0x10_0000),
        ("raw not aligned", 8, raw_offset, offsets[8] + 1),
    ];
    for (name, index, field, value) in cases {
        let mut file = image.build();
        set(&mut file, &image, index, field, value);
        file.extend([0; 0x200]);
        assert!(try_split(&file, MARKER).is_err(), "{name}");
    }
    let optional = image.nt_offset as usize + 24;
    for (name, at, value) in [
        ("SectionAlignment", 32, 0x200u32),
        ("SectionAlignment", 32, 0x3000),
        ("FileAlignment", 36, 0x100),
        ("FileAlignment", 36, 0x300),
        ("FileAlignment", 36, 0),
        ("SizeOfImage", 56, 0x1000),
        ("SizeOfHeaders", 60, 0x100),
        ("SizeOfHeaders", 60, 0x2000),
    ] {
        let mut file = image.build();
        file[optional + at..optional + at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(try_split(&file, MARKER).is_err(), "{name} {value:#x}");
    }
}

#[test]
fn what_is_no_fat_binary_is_plain() {
    let plain = |file: &[u8]| matches!(locate(&mut &*file).unwrap(), Located::Plain);
    assert!(is_pe(b"MZ") && !is_pe(b"M") && !is_pe(b"\x7fELF"));
    assert!(plain(b""));
    assert!(plain(b"MZ"));
    assert!(plain(&[b'M'; 100]));
    let Fixture { mut image, .. } = fixture();
    let file = image.build();
    let nt = image.nt_offset as usize;
    for (at, byte) in [(0, b'X'), (nt, b'N'), (nt + 24 + 1, 1), (nt + 20, 0x6f), (nt + 7, 0xff), (62, 0x7f)] {
        let mut file = file.clone();
        file[at] = byte;
        assert!(plain(&file), "byte {at}");
    }
    for end in 0..image.table_offset() + 40 * image.sections.len() {
        assert!(plain(&file[..end]), "{end}");
    }
    // Debug information alone: the sections are there, their bytes are not.
    for index in 0..image.sections.len() {
        image.sections[index].virtual_size = Some(0x60);
        image.sections[index].data.clear();
    }
    (image.pointers, image.directories, image.entry, image.reloc) = (vec![], vec![], None, None);
    assert!(plain(&image.build()));
}

/// What `lld-link /merge` makes: device code that is not where a split looks for it must not pass in silence.
#[test]
fn wrappers_without_bundles_and_bundles_without_wrappers_are_refused() {
    let Fixture { mut image, fat, .. } = fixture();
    image.sections[fat].name = *b".hip_fax";
    let fault = refused(&image);
    assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "section .hipFatB"));
    assert!(fault.message.contains("no section .hip_fat"), "{fault}");
    image.sections[5].virtual_size = Some(0x900);
    assert_eq!(refused(&image).kind, FaultKind::Malformed);
    let Fixture { mut image, table, .. } = fixture();
    image.sections[table].name = *b".hipFatX";
    let fault = refused(&image);
    assert_eq!((fault.kind, fault.place.as_str()), (FaultKind::Unsupported, "section .hip_fat"));
    let Fixture { mut image, fat, .. } = fixture();
    image.sections[fat].virtual_size = Some(0x6000);
    image.sections[fat].data.clear();
    assert_eq!(refused(&image).place, "section .hipFatB");
}

#[test]
fn files_cut_short_are_faults() {
    let Fixture { mut image, .. } = fixture();
    image.symbols = Some((vec![[3; 18]; 4], strings(&["name"])));
    let file = image.build();
    let end = *image.raw_offsets().last().unwrap() as usize;
    for length in (image.size_of_headers()..end).step_by(97) {
        assert!(try_split(&file[..length], MARKER).is_err(), "{length:#x}");
    }
}
