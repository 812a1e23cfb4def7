//! What becomes of files that are split.

use super::*;

#[test]
fn bundles_first_in_the_middle_and_last_in_every_alignment() {
    for order in ORDERS {
        for (file_alignment, section_alignment) in
            [(0x200, 0x1000), (0x1000, 0x1000), (0x200, 0x10000), (0x1000, 0x10000)]
        {
            for (machine, characteristics) in [(X64, 0x2022), (X64, 0x22), (ARM64, 0x2022)] {
                let Fixture { mut image, fat, .. } = fixture_of(order);
                image.file_alignment = file_alignment;
                image.section_alignment = section_alignment;
                image.machine = machine;
                image.characteristics = characteristics;
                let file = image.build();
                let output = split(&file);
                let freed = image.sections[fat].data.len().next_multiple_of(file_alignment as usize);
                assert_eq!(file.len() - output.len(), freed - file_alignment as usize);
                let loaded = load(&output, 0).unwrap();
                assert_eq!(loaded.sections.last().unwrap().name, *b".kpackrf");
                assert_eq!(loaded.sections.len(), order.len() + 1);
            }
        }
    }
}

#[test]
fn the_layout_says_what_the_file_holds() {
    let Fixture { image, fat: index, table, .. } = fixture();
    let file = image.build();
    let layout = fat(&file).unwrap();
    let (rvas, offsets) = (image.rvas(), image.raw_offsets());
    assert_eq!(layout.machine, X64);
    assert_eq!(layout.sections.len(), 1);
    assert_eq!(layout.sections[0].address, u64::from(rvas[index]));
    let start = u64::from(offsets[index]);
    assert_eq!(layout.sections[0].range, start..start + 0x5e71);
    let targets: Vec<u64> = layout.wrappers.iter().map(|wrapper| wrapper.target).collect();
    let bundle = u64::from(rvas[index]);
    assert_eq!(targets, [bundle + 0x3000, bundle, bundle + 0x1000, bundle + 0x1000]);
    assert_eq!(layout.wrappers[2].offset, u64::from(offsets[table]) + 48);
    assert_eq!(layout.wrappers[2].address, u64::from(rvas[table]) + 48);
    assert_eq!(layout.wrappers[2].magic, HIPF);
}

#[test]
fn two_wrapper_sections_count_through_and_two_bundle_sections_both_go() {
    let Fixture { mut image, fat: first, .. } = fixture();
    let second_table = image.section(".hipFatB", RDATA, Vec::new());
    let second = image.section(".hip_fat", RDATA, pattern(77, 0x4321));
    image.wrapper(second_table, 0, HIPF, (second, 0x2000));
    image.wrapper(second_table, 1, HIPF, (first, 0x2000));
    let file = image.build();
    assert_eq!(fat(&file).unwrap().wrappers.len(), 6);
    split(&file);
}

#[test]
fn without_a_slot_the_marker_takes_the_bundles_section() {
    type Obstacle = fn(&mut TestImage);
    let obstacles: [(&str, Obstacle); 4] = [
        ("bytes behind the table", |image| image.behind_table = vec![0, 0, 0, 1]),
        ("the headers end behind the table", |image| {
            image.nt_offset = 0x200 - (24 + 240 + 40 * image.sections.len() as u32) % 0x200 + 0x200;
        }),
        ("bound imports behind the table", |image| {
            let at = image.table_offset() + 40 * image.sections.len();
            image.raw_directories.push((11, at as u32 + 32, 8));
        }),
        ("debug data behind the table", |image| {
            let at = image.table_offset() + 40 * image.sections.len();
            let rdata =
                image.sections.iter().position(|section| section.name.starts_with(b".rdata")).unwrap();
            image.debug = Some(((rdata, 0x200), vec![(2, DebugData::Raw(at as u32 + 39, 1))]));
        }),
    ];
    for (name, obstacle) in obstacles {
        for order in ORDERS {
            let Fixture { mut image, fat, .. } = fixture_of(order);
            obstacle(&mut image);
            let output = split(&image.build());
            let loaded = load(&output, 0).unwrap();
            assert_eq!(loaded.sections.len(), order.len(), "{name}");
            let section = &loaded.sections[fat];
            assert_eq!(section.name, *b".kpackrf");
            assert_eq!(section.raw_size, 0x200);
            let last = fat + 1 == order.len();
            assert_eq!(section.virtual_size, if last { MARKER.len() as u32 } else { 0x5e71 });
        }
    }
}

#[test]
fn the_marker_is_only_read_whatever_the_bundles_were() {
    for flags in [DATA, TEXT, 0x40, 0x5200_0040] {
        let Fixture { mut image, fat, .. } = fixture();
        image.behind_table = vec![1];
        image.sections[fat].flags = flags;
        let file = image.build();
        let (output, _) = try_split(&file, MARKER).unwrap();
        assert_eq!(load(&output, 0).unwrap().sections[fat].flags, RDATA);
        // The flags are all that differs.
        let bad = differences(&file, &output, MARKER);
        assert!(bad.len() == 1 && bad[0].starts_with("section .hip_fat"), "{bad:?}");
    }
}

#[test]
fn dangling_offsets_stay_dangling_when_the_file_grows() {
    let Fixture { mut image, fat, rdata, .. } = fixture();
    image.sections[fat].data.truncate(0x3001);
    let marker = pattern(8, 0x5000);
    let end = image.build().len() as u32;
    image.debug =
        Some(((rdata, 0x200), vec![(2, DebugData::Raw(end, 9)), (2, DebugData::Raw(end + 0x10_0000, 9))]));
    let file = image.build();
    let (output, _) = try_split(&file, &marker).unwrap();
    assert!(output.len() > file.len());
    assert_eq!(differences(&file, &output, &marker), Vec::<String>::new());
}

#[test]
fn ninety_six_sections_are_enough() {
    for (extra, sections) in [(95, 96), (96, 96), (97, 97)] {
        let Fixture { mut image, .. } = fixture();
        while image.sections.len() < extra {
            image.section(".more", RDATA, pattern(image.sections.len() as u32, 10));
        }
        image.behind_table = vec![0; 80];
        let output = split(&image.build());
        assert_eq!(load(&output, 0).unwrap().sections.len(), sections);
    }
}

#[test]
fn a_marker_longer_than_the_bundle() {
    let marker = pattern(3, 0x6fff);
    for (order, fits) in [(ORDERS[2], true), (ORDERS[0], false)] {
        let Fixture { mut image, .. } = fixture_of(order);
        let file = image.build();
        let (output, _) = try_split(&file, &marker).unwrap();
        assert_eq!(differences(&file, &output, &marker), Vec::<String>::new());
        image.behind_table = vec![1];
        let file = image.build();
        match try_split(&file, &marker) {
            Ok((output, _)) => {
                assert!(fits);
                assert_eq!(differences(&file, &output, &marker), Vec::<String>::new());
            }
            Err(fault) => {
                assert!(!fits);
                assert_eq!(fault.kind, FaultKind::Unsupported);
                assert_eq!(fault.place, "section table");
            }
        }
    }
    // Longer than VirtualSize, but not than the page.
    let Fixture { mut image, .. } = fixture();
    image.behind_table = vec![1];
    let marker = pattern(4, 0x5fff);
    let file = image.build();
    let (output, _) = try_split(&file, &marker).unwrap();
    assert_eq!(differences(&file, &output, &marker), Vec::<String>::new());
    assert!(try_split(&file, b"").is_err());
}

#[test]
fn debug_entries_follow_their_data() {
    for order in ORDERS {
        let Fixture { mut image, text, rdata, .. } = fixture_of(order);
        let last = image.section(".last", RDATA, pattern(9, 0x300));
        image.overlay = pattern(10, 0x123);
        let end = 0x10_0000;
        image.debug = Some((
            (rdata, 0x200),
            vec![
                (2, DebugData::In((text, 0x20), 0x40)),
                (2, DebugData::In((last, 0x11), 0x33)),
                (4, DebugData::Overlay(5, 0x44)),
                (16, DebugData::Raw(0, 0)),
                (16, DebugData::Raw(0, 0x20)),
                (12, DebugData::Raw(end, 0x20)),
                (13, DebugData::Overlay(0x100, 0)),
            ],
        ));
        split(&image.build());
    }
}

#[test]
fn coff_symbols_long_names_and_object_records_follow() {
    for order in ORDERS {
        let Fixture { mut image, text, .. } = fixture_of(order);
        image.section("/4", DISCARDABLE, pattern(20, 0x300));
        image.section("/16", DISCARDABLE, pattern(21, 0x300));
        let symbols = (0..7).map(|seed| pattern(seed + 1, 18).try_into().unwrap()).collect();
        image.symbols = Some((symbols, strings(&[".debug_info", ".debug_line"])));
        image.overlay = pattern(22, 0x301);
        image.sections[text].relocations = Some((10, 3));
        image.sections[text].line_numbers = Some((50, 4));
        split(&image.build());
        // No symbols, but a string table.
        image.symbols = Some((Vec::new(), strings(&[".debug_info", ".debug_line"])));
        split(&image.build());
    }
}

#[test]
fn whole_section_names_are_found_too() {
    let Fixture { mut image, fat: index, table, .. } = fixture();
    image.sections[index].name = *b"/4\0\0\0\0\0\0";
    image.sections[table].name = *b"/16\0\0\0\0\0";
    image.symbols = Some((vec![[1; 18]], strings(&[".hip_fatbin", ".hipFatBinSegment"])));
    let file = image.build();
    assert_eq!(fat(&file).unwrap().wrappers.len(), 4);
    try_split(&file, MARKER).unwrap();
    // lld-link gives a long name to what is discardable.
    image.sections[index].flags = DISCARDABLE;
    try_split(&image.build(), MARKER).unwrap();
    // Numbers that lead nowhere are names like any other.
    for section in [index, table] {
        image.sections[section].name = *b"/9999999";
    }
    assert!(matches!(locate(&mut image.build().as_slice()).unwrap(), Located::Plain));
}

/// Contributions of objects that are aligned to more than 8 bytes.
#[test]
fn wrappers_may_have_zeros_between_them() {
    let Fixture { mut image, fat: bundles, table, .. } = fixture();
    for pad in [8usize, 16, 40] {
        let Fixture { image: mut padded, .. } = fixture();
        let old = std::mem::take(&mut padded.sections[table].data);
        let stride = 24 + pad;
        let mut data = vec![0; pad];
        for wrapper in old.chunks(24) {
            data.extend_from_slice(wrapper);
            data.resize(data.len() + pad, 0);
        }
        padded.sections[table].data = data;
        for (spot, _) in &mut padded.pointers {
            if spot.0 == table {
                spot.1 = pad as u32 + spot.1 / 24 * stride as u32 + spot.1 % 24;
            }
        }
        let file = padded.build();
        let layout = fat(&file).unwrap();
        let rva = u64::from(padded.rvas()[bundles]);
        let targets: Vec<u64> = layout.wrappers.iter().map(|wrapper| wrapper.target - rva).collect();
        assert_eq!(targets, [0x3000, 0, 0x1000, 0x1000], "{pad}");
        split(&file);
    }
    image.sections[table].data.splice(24..24, [0, 0, 0, 0, 0, 0, 0, 1]);
    image.sections[table].data.extend([0; 16]);
    assert!(refused(&image).message.contains("magic"));
}

#[test]
fn a_certificate_goes_and_the_overlay_stays() {
    for order in ORDERS {
        let Fixture { mut image, .. } = fixture_of(order);
        image.certificate = pattern(31, 0x508);
        for (overlay, symbols) in [(0, false), (0x333, false), (0x100, true)] {
            image.overlay = pattern(30, overlay);
            image.symbols = symbols.then(|| (vec![[7; 18]], strings(&["a"])));
            let file = image.build();
            split(&file);
            let (_, notes) = try_split(&file, MARKER).unwrap();
            assert_eq!(notes, ["the Authenticode signature no longer holds and was removed"]);
        }
    }
    let Fixture { mut image, .. } = fixture();
    assert_eq!(try_split(&image.build(), MARKER).unwrap().1, Vec::<String>::new());
    image.certificate = vec![1; 8];
    image.dll_characteristics |= 0x80;
    assert!(try_split(&image.build(), MARKER).unwrap().1[0].contains("FORCE_INTEGRITY"));
    // Past the end, and in the middle of the sections.
    for start in [0x10_0000, image.raw_offsets()[1]] {
        image.certificate.clear();
        image.raw_directories = vec![(4, start, 0x100)];
        assert_eq!(refused(&image).place, "certificate table");
    }
}

#[test]
fn a_checksum_that_is_set_is_right_afterwards() {
    for order in ORDERS {
        for checksum in [Checksum::Zero, Checksum::Right, Checksum::Wrong] {
            for overlay in [0, 0x100, 0x101] {
                let Fixture { mut image, .. } = fixture_of(order);
                image.checksum = checksum;
                image.overlay = pattern(41, overlay);
                let output = split(&image.build());
                assert_eq!(load(&output, 0).unwrap().optional(64) == 0, checksum == Checksum::Zero);
            }
        }
    }
}

#[test]
fn odd_raw_sizes_keep_everything_aligned() {
    for order in ORDERS {
        let Fixture { mut image, fat, rdata, .. } = fixture_of(order);
        image.file_alignment = 0x1000;
        image.checksum = Checksum::Right;
        image.debug = Some(((rdata, 0x200), vec![(2, DebugData::In((rdata, 0x20), 0x40))]));
        let mut file = image.build();
        // SizeOfRawData is not rounded up to FileAlignment.
        let at = image.table_offset() + 40 * fat + 16;
        file[at..at + 4].copy_from_slice(&0x5e71u32.to_le_bytes());
        let (output, _) = try_split(&file, MARKER).unwrap();
        let bad = differences(&file, &output, MARKER);
        // Of the last section's raw data the odd end cannot be told from an overlay: zeros take its place.
        let allowed = fat + 1 == order.len();
        assert!(bad.is_empty() || allowed && bad == ["the overlay differs"], "{bad:?}");
    }
}

#[test]
fn sections_without_raw_data_keep_a_harmless_pointer() {
    let Fixture { mut image, .. } = fixture();
    let bss = image.sections.iter().position(|section| section.name.starts_with(b".bss")).unwrap();
    let offsets = image.raw_offsets();
    for pointer in [offsets[2], offsets[7], *offsets.last().unwrap(), 0x7fff_0000] {
        image.sections[bss].empty_pointer = pointer;
        split(&image.build());
    }
}

#[test]
fn virtual_size_zero_means_the_raw_size() {
    for order in ORDERS {
        let Fixture { mut image, fat, .. } = fixture_of(order);
        image.sections[fat].virtual_size = Some(0);
        let output = split(&image.build());
        assert_eq!(load(&output, 0).unwrap().sections[fat].virtual_size, 0x6000);
    }
}

#[test]
fn few_data_directories() {
    let Fixture { mut image, .. } = fixture();
    image.directories.clear();
    image.directory_count = 6;
    split(&image.build());
    image.directory_count = 4;
    image.reloc = None;
    image.characteristics |= 1;
    split(&image.build());
}

#[test]
fn a_full_address_space_takes_the_bundles_section() {
    let Fixture { mut image, .. } = fixture();
    let bss = image.section(".huge", BSS, Vec::new());
    image.sections[bss].virtual_size = Some(0x7700_0000 - image.rvas()[bss]);
    let file = image.build();
    let layout = fat(&file).unwrap();
    let plan = plan(&mut file.as_slice(), &layout, MARKER).unwrap();
    let output = apply(&plan, &file, usize::MAX);
    verify(&mut capture(&plan, &output), &layout, MARKER).unwrap();
    assert_eq!(fat_sections(&output), image.sections.len());
}

/// A rewritten file in which a byte that matters is flipped does not pass.
#[test]
fn verify_sees_every_flipped_byte() {
    for behind_table in [vec![], vec![1]] {
        let Fixture { mut image, rdata, text, .. } = fixture();
        image.behind_table = behind_table;
        image.overlay = pattern(2, 40);
        image.debug = Some(((rdata, 0x200), vec![(2, DebugData::In((text, 0x20), 0x40))]));
        let file = image.build();
        let layout = fat(&file).unwrap();
        let plan = plan(&mut file.as_slice(), &layout, MARKER).unwrap();
        let output = apply(&plan, &file, usize::MAX);
        let nt = u64::from(image.nt_offset);
        let table_end = (image.table_offset() + 40 * fat_sections(&output)) as u64;
        for range in &plan.verify {
            for at in range.clone() {
                // The DOS header but for its magic and e_lfanew; what only the parser looks at, behind the
                // table.
                if (2..60).contains(&at) || at >= table_end && range.start == nt {
                    continue;
                }
                let mut output = output.clone();
                output[at as usize] ^= 0x10;
                let result = verify(&mut capture(&plan, &output), &layout, MARKER);
                assert!(result.is_err(), "byte {at:#x}, NT headers at {nt:#x}");
            }
        }
        for longer in [output.len() - 1, output.len() + 1] {
            let mut output = output.clone();
            output.resize(longer, 0);
            assert!(verify(&mut output.as_slice(), &layout, MARKER).is_err());
        }
        assert!(verify(&mut output.as_slice(), &layout, &MARKER[1..]).is_err());
    }
}
