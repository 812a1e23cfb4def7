//! The planner against files from the builder, judged by the memory images.

use super::headers::*;
use super::image::problems;
use super::testing::{Content, DEVICE_BYTE, ElfBuilder, TestSection, Via};
use super::{ElfLayout, locate, plan, verify};
use crate::edit::{Apply, BinaryPlan, Capture, Planned};
use crate::fatbin::wrapper::Located;
use crate::fault::{Fault, FaultKind, Result};

pub(super) const MARKER: &[u8] = b"\x82\xb2kpack_search_paths\x91\xa3a/b\xabkernel_name\xa5x.so!";

pub(super) fn located(file: &[u8]) -> Result<Located<ElfLayout>> {
    locate(&mut &*file)
}

pub(super) fn fat(file: &[u8]) -> ElfLayout {
    match located(file).unwrap() {
        Located::Fat(layout) => layout,
        Located::Plain => panic!("plain"),
        Located::AlreadySplit => panic!("already split"),
    }
}

pub(super) fn fault(file: &[u8]) -> Fault {
    match located(file) {
        Err(fault) => fault,
        Ok(Located::Fat(layout)) => plan(&mut &*file, &layout, MARKER).expect_err("no fault"),
        Ok(_) => panic!("no fat binary"),
    }
}

/// Locates, plans, applies, verifies; returns the result and the plan.
pub(super) fn split(file: &[u8], marker: &[u8]) -> Result<(Vec<u8>, BinaryPlan)> {
    let Located::Fat(layout) = located(file)? else { panic!("no fat binary") };
    let plan = plan(&mut &*file, &layout, marker)?;
    let mut output = Vec::new();
    let mut capture = Capture::new(plan.edits.output_len(), plan.verify.clone());
    let mut apply = Apply::new(&plan.edits);
    let mut sink = |bytes: &[u8]| {
        output.extend_from_slice(bytes);
        capture.feed(bytes);
        Ok::<_, Fault>(())
    };
    for chunk in file.chunks(5000) {
        apply.feed(chunk, &mut sink)?;
    }
    apply.finish(&mut sink)?;
    verify(&mut capture, &layout, marker, &plan)?;
    verify(&mut Planned::new(&plan.edits, file), &layout, marker, &plan)?;
    Ok((output, plan))
}

/// Splits the builder's file and has it judged.
pub(super) fn check(builder: &ElfBuilder) -> (Vec<u8>, Vec<u8>, BinaryPlan) {
    let before = builder.build();
    let (after, plan) = split(&before, MARKER).unwrap();
    let found = problems(&before, &after, MARKER, builder.relative, builder.absolute);
    assert!(found.is_empty(), "{found:#?}\n{:?}", plan.notes);
    assert!(matches!(located(&after).unwrap(), Located::AlreadySplit));
    (before, after, plan)
}

/// As [`check`]; the bundle must have left the file but for `rest` bytes.
pub(super) fn check_shrinks(builder: &ElfBuilder, rest: u64) -> Vec<u8> {
    let (before, after, plan) = check(builder);
    let bundle = before.iter().filter(|&&byte| byte == DEVICE_BYTE).count() as u64;
    let saved = (before.len() as u64).saturating_sub(after.len() as u64);
    assert!(saved + rest >= bundle, "{saved} of {bundle} bytes left the file, {:?}", plan.notes);
    after
}

pub(super) fn segment_kinds(file: &[u8]) -> Vec<u32> {
    let count = u16::from_le_bytes([file[56], file[57]]);
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    (0..usize::from(count)).map(|index| word(64 + 56 * index)).collect()
}

/// Turns the last program header, PT_GNU_STACK, into one of `kind` and `flags` with these words behind them.
pub(super) fn last_header(file: &mut [u8], kind: u32, flags: u32, words: [u64; 6]) {
    let at = 64 + 56 * (segment_kinds(file).len() - 1);
    file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    file[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
    for (index, word) in words.iter().enumerate() {
        file[at + 8 + 8 * index..at + 16 + 8 * index].copy_from_slice(&word.to_le_bytes());
    }
}

#[test]
fn bundle_in_the_middle_becomes_a_hole() {
    let after = check_shrinks(&ElfBuilder::shared(100_000), 0x1000 + 100);
    assert_eq!(segment_kinds(&after).iter().filter(|&&kind| kind == 1).count(), 5);
}

#[test]
fn bundle_at_the_end_of_its_segment_shortens_it() {
    let mut builder = ElfBuilder::shared(100_000);
    builder.segments[2].1.truncate(2);
    let after = check_shrinks(&builder, 0x1000 + 200);
    assert_eq!(segment_kinds(&after).iter().filter(|&&kind| kind == 1).count(), 4);
}

#[test]
fn bundle_at_the_start_of_its_segment_moves_the_start() {
    let mut builder = ElfBuilder::shared(100_000);
    builder.segments[2].1.remove(0);
    let rodata = builder.segments[1].1[0].clone();
    builder.segments[1].1.push(TestSection { name: ".rodata".to_owned(), ..rodata });
    let after = check_shrinks(&builder, 0x1000 + 200);
    assert_eq!(segment_kinds(&after).iter().filter(|&&kind| kind == 1).count(), 4);
}

#[test]
fn bundle_before_bss_keeps_the_bss() {
    let mut builder = ElfBuilder::shared(100_000);
    let bundle = builder.segments[2].1.remove(1);
    let at = builder.segments[3].1.len() - 1;
    builder.segments[3].1.insert(at, bundle);
    check_shrinks(&builder, 0x2000 + 200);
}

#[test]
fn room_comes_from_null_headers_then_gap_then_phdr_then_moving() {
    let kinds = |builder: &ElfBuilder| {
        let (before, after, plan) = check(builder);
        assert!(plan.notes.is_empty());
        (segment_kinds(&before), segment_kinds(&after), after)
    };
    let mut builder = ElfBuilder::shared(100_000);
    builder.null_headers = 1;
    let (before, after, _) = kinds(&builder);
    assert_eq!(before.len(), after.len());

    builder.null_headers = 0;
    builder.gap = 60;
    let (before, after, file) = kinds(&builder);
    assert_eq!(before.len() + 1, after.len());
    let note = builder.build();
    let old = 64 + 56 * before.len() + 60;
    assert_eq!(file[old..old + 36], note[old..old + 36], "the note did not move");

    builder.gap = 0;
    builder.phdr = true;
    let (before, after, _) = kinds(&builder);
    assert_eq!(before.len(), after.len());
    assert!(!after.contains(&6));

    // A program with PT_INTERP keeps PT_PHDR.
    let interp = TestSection::new(".interp", 1, 2, 1, Content::Bytes(b"/lib/ld.so\0".to_vec()));
    builder.segments[0].1.insert(0, interp);
    let (before, after, _) = kinds(&builder);
    assert_eq!(before.len() + 1, after.len());
    assert!(after.contains(&6));
}

/// Found by fuzzing: each was moved all the same, and left something behind.
#[test]
fn notes_that_are_not_what_they_seem_do_not_move() {
    let mut builder = ElfBuilder::shared(100_000);
    builder.phdr = true;
    let interp = TestSection::new(".interp", 1, 2, 1, Content::Bytes(b"/lib/ld.so\0".to_vec()));
    builder.segments[0].1.insert(0, interp);
    let file = builder.build();
    let view = fat(&file).view;
    let note = view.sections.iter().position(|section| section.kind == SHT_NOTE).unwrap();
    let place = |file: &[u8]| {
        let view = fat(file).view;
        view.sections[note].address
    };
    let moves = |file: &[u8]| {
        let (after, _) = split(file, MARKER).unwrap();
        let at = u64::from_le_bytes(after[40..48].try_into().unwrap()) as usize + 64 * note + 16;
        u64::from_le_bytes(after[at..at + 8].try_into().unwrap()) != place(file)
    };
    assert!(moves(&file));
    // Not allocated.
    let mut bent = file.clone();
    bent[view.header.sections_at as usize + 64 * note + 8] = 0;
    assert!(!moves(&bent));
    // With an alignment that is none.
    let mut bent = file.clone();
    bent[view.header.sections_at as usize + 64 * note + 48] = 3;
    assert!(!moves(&bent));
    // PT_NOTE with another address than the section's.
    let mut bent = file.clone();
    let header = view.segments.iter().position(|segment| segment.kind == PT_NOTE).unwrap();
    bent[64 + 56 * header + 16] += 4;
    assert!(!moves(&bent));
    // Named by .dynamic.
    let mut bent = file.clone();
    let entry = view.dynamic_entry(DT_STRTAB).unwrap().value_at as usize;
    bent[entry..entry + 8].copy_from_slice(&view.sections[note].address.to_le_bytes());
    assert!(!moves(&bent));
}

/// Found by fuzzing: `verify` added past the end of 64 bits.
#[test]
fn segments_without_file_bytes_pass() {
    let mut file = ElfBuilder::shared(100_000).build();
    let at = (file.len() as u64).next_multiple_of(0x1000) - 0x1000;
    last_header(&mut file, 1, 6, [at, 0x100_0000, 0, 0, 0x500, 0x1000]);
    let (after, _) = split(&file, MARKER).unwrap();
    let found = problems(&file, &after, MARKER, 8, 1);
    assert!(found.is_empty(), "{found:#?}");
}

/// Found by fuzzing: PT_PHDR grew with the table although it was not the table, past the end of the file.
#[test]
fn headers_that_claim_to_be_the_table_do_not_grow() {
    let mut builder = ElfBuilder::shared(100_000);
    builder.phdr = true;
    let interp = TestSection::new(".interp", 1, 2, 1, Content::Bytes(b"/lib/ld.so\0".to_vec()));
    builder.segments[0].1.insert(0, interp);
    let file = builder.build();
    let header = segment_kinds(&file).iter().position(|&kind| kind == PT_PHDR).unwrap();
    let mut bent = file.clone();
    let at = 64 + 56 * header;
    let size = u64::from_le_bytes(file[at + 32..at + 40].try_into().unwrap());
    let end = file.len() as u64 - size;
    bent[at + 8..at + 16].copy_from_slice(&end.to_le_bytes());
    let (after, _) = split(&bent, MARKER).unwrap();
    let header = segment_kinds(&after).iter().position(|&kind| kind == PT_PHDR).unwrap();
    assert_eq!(after[64 + 56 * header + 32..][..8], size.to_le_bytes());
}

#[test]
fn without_room_for_a_header_the_bundle_is_zeroed_in_place() {
    let mut builder = ElfBuilder::shared(100_000);
    // Nothing may move: what stands behind the table is no table of the loader.
    builder.segments[0].1.retain(|section| section.name != ".note.gnu.build-id");
    let constants = TestSection::new(".constants", 1, 2, 1, Content::Bytes(vec![1; 100]));
    builder.segments[0].1.insert(0, constants);
    let (before, after, plan) = check(&builder);
    assert!(after.len() >= before.len());
    assert!(plan.notes[0].contains("no room for another program header"), "{:?}", plan.notes);
}

#[test]
fn small_bundles_and_tight_markers() {
    for size in [MARKER.len() as u64, 100, 4000, 4096, 4097, 8191, 8192, 8193, 12_288, 20_000] {
        check(&ElfBuilder::shared(size));
    }
    // Smaller than the marker: the gap before .eh_frame helps once it is wide enough.
    let mut builder = ElfBuilder::shared(20);
    builder.section(".eh_frame").align = 256;
    check(&builder);
    builder.section(".eh_frame").align = 8;
    let fault = fault(&builder.build());
    assert_eq!(fault.kind, FaultKind::Unsupported);
    assert!(fault.message.contains("marker"), "{fault}");
}

#[test]
fn large_alignment_is_lowered_only_where_it_costs_much() {
    let mut builder = ElfBuilder::shared(300_000);
    builder.align = 0x10000;
    let (_, _, plan) = check(&builder);
    assert!(plan.notes[0].contains("lowered to 0x1000"), "{:?}", plan.notes);
    let mut builder = ElfBuilder::shared(0x20_0000 + 0x1000 - 4);
    builder.align = 0x10000;
    let (_, _, plan) = check(&builder);
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
    // A section that needs the alignment keeps it.
    let mut builder = ElfBuilder::shared(300_000);
    builder.align = 0x10000;
    builder.section(".data").align = 0x4000;
    let (_, _, plan) = check(&builder);
    assert!(plan.notes[0].contains("lowered to 0x4000"), "{:?}", plan.notes);
}

#[test]
fn wrappers_of_every_kind() {
    let mut builder = ElfBuilder::shared(100_000)
        .wrapper(8192, Via::Symbolic)
        .wrapper(4096, Via::RelativeInPlace)
        .wrapper(4096, Via::Relr)
        .wrapper(0, Via::Relr);
    builder.segments[0].1.push(TestSection::new(".relr.dyn", 19, 2, 8, Content::Relr));
    let layout = fat(&builder.build());
    let start = layout.sections[0].address;
    let targets: Vec<u64> = layout.wrappers.iter().map(|wrapper| wrapper.target - start).collect();
    assert_eq!(targets, [0, 8192, 4096, 4096, 0]);
    check_shrinks(&builder, 0x2000);
}

#[test]
fn executables_hold_pointers_in_place() {
    let mut builder = ElfBuilder::shared(100_000).wrapper(4096, Via::InPlace);
    builder.kind = 2;
    builder.base = 0x40_0000;
    builder.wrappers[0].via = Via::InPlace;
    check_shrinks(&builder, 0x2000);
}

#[test]
fn split_wrappers_stay_as_they_are() {
    let mut builder = ElfBuilder::shared(100_000).wrapper(4096, Via::Relative);
    builder.wrappers[0].magic = 0x4b50_4948;
    builder.wrappers[0].target = (".rodata".to_owned(), 0, 0);
    let (before, after, _) = check(&builder);
    assert_eq!(fat(&before).wrappers[0].magic, 0x4b50_4948);
    // The second wrapper's index counts the first.
    assert!(!after.is_empty());
    builder.wrappers.truncate(1);
    assert!(matches!(located(&builder.build()).unwrap(), Located::AlreadySplit));
}

#[test]
fn two_bundle_sections() {
    for second in [9000, 20, 100_000] {
        let mut builder = ElfBuilder::shared(50_000).wrapper(0, Via::Relative);
        builder.wrappers[1].target = (".hip_fatbin".to_owned(), 1, 0);
        builder.segments[2]
            .1
            .insert(3, TestSection::new(".hip_fatbin", 1, 2, 0x1000, Content::Bundle(second)));
        builder.segments[2].1.push(TestSection::new(
            ".gcc_except_table",
            1,
            2,
            4,
            Content::Bytes(vec![3; 99]),
        ));
        builder.null_headers = 2;
        let file = builder.build();
        assert_eq!(fat(&file).sections.len(), 2);
        check(&builder);
    }
}

#[test]
fn other_machines() {
    for (machine, relative, absolute, align) in
        [(183, 1027, 257, 0x10000), (183, 1027, 257, 0x1000), (21, 22, 38, 0x10000), (243, 3, 2, 0x1000)]
    {
        let mut builder = ElfBuilder::shared(300_000).wrapper(4096, Via::Symbolic);
        (builder.machine, builder.relative, builder.absolute, builder.align) =
            (machine, relative, absolute, align);
        check_shrinks(&builder, 2 * align + 0x1000);
    }
    let mut builder = ElfBuilder::shared(100_000);
    builder.machine = 8;
    assert_eq!(fault(&builder.build()).kind, FaultKind::Unsupported);
}

#[test]
fn more_sections_than_sixteen_bits_count() {
    let mut builder = ElfBuilder::shared(100_000);
    builder.empty_sections = 0xff10;
    check_shrinks(&builder, 0x2000);
}

#[test]
fn names_may_share_a_table_with_symbols() {
    let mut builder = ElfBuilder::shared(100_000);
    let mut prefix: Vec<u8> = b"\0symbol\0".repeat(20_000);
    prefix.push(0);
    builder.section(".shstrtab").content = Content::Names(prefix.clone());
    let (before, after, _) = check(&builder);
    assert!(after.len() < before.len() - 90_000);
    // Not at the end, and something that needs alignment behind it.
    let names = builder.rest.pop().unwrap();
    builder.rest.insert(0, names);
    check(&builder);
    builder.section(".debug_info").align = 64;
    check(&builder);
}

#[test]
fn segments_behind_the_section_names_keep_their_alignment() {
    for pad in [0, 3000] {
        let mut builder = ElfBuilder::shared(100_000);
        builder.rest.push(TestSection::new(".debug_str", 1, 0, 1, Content::Bytes(vec![7; 2500 + pad])));
        let mut file = builder.build();
        // As patchelf does: a segment behind everything, in place of PT_GNU_STACK.
        file.resize(file.len().next_multiple_of(0x1000), 0);
        let at = file.len() as u64;
        file.extend([0x77; 300]);
        last_header(&mut file, 1, 6, [at, at + 0x100_0000, 0, 300, 300, 0x1000]);
        let (after, _) = split(&file, MARKER).unwrap();
        let found = problems(&file, &after, MARKER, 8, 1);
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// Found by fuzzing.
#[test]
fn section_names_under_another_section_are_refused() {
    let mut file = ElfBuilder::shared(100_000).build();
    let view = fat(&file).view;
    let at = view.header.sections_at as usize + 64 + 24;
    file[at..at + 8].copy_from_slice(&view.sections[view.names].offset.to_le_bytes());
    let found = fault(&file);
    assert_eq!(found.kind, FaultKind::Unsupported);
    assert!(found.message.contains("overlaps the table"), "{found}");
}

#[test]
fn section_headers_inside_a_segment_are_written_anew() {
    let builder = ElfBuilder::shared(100_000);
    let mut file = builder.build();
    let table = u64::from_le_bytes(file[40..48].try_into().unwrap());
    let size = file.len() as u64 - table;
    last_header(&mut file, 1, 4, [table, table + 0x100_0000, 0, size, size, 0x1000]);
    let (after, _) = split(&file, MARKER).unwrap();
    let found = problems(&file, &after, MARKER, 8, 1);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn section_names_inside_a_segment_are_copied() {
    let mut file = ElfBuilder::shared(100_000).build();
    let view = fat(&file).view;
    let names = &view.sections[view.names];
    let (at, size) = (names.offset, names.size);
    last_header(&mut file, 1, 4, [at, at + 0x100_0000, 0, size, size, 0x1000]);
    let (after, _) = split(&file, MARKER).unwrap();
    let found = problems(&file, &after, MARKER, 8, 1);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn relocations_are_found_by_the_dynamic_section_alone() {
    let mut file = ElfBuilder::shared(100_000).build();
    let view = fat(&file).view;
    let index = view.sections.iter().position(|section| section.kind == 4).unwrap();
    let at = view.header.sections_at as usize + 64 * index + 4;
    file[at] = 1; // PROGBITS
    let layout = fat(&file);
    assert_eq!(layout.wrappers[0].target, layout.sections[0].address);
    let (after, _) = split(&file, MARKER).unwrap();
    let found = problems(&file, &after, MARKER, 8, 1);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn symbolic_pointers_into_the_bundle_are_seen() {
    // Symbol 1 is 8176 bytes into the bundle. The first entry is that of a pointer in .data.
    let file = ElfBuilder::shared(100_000).wrapper(8192, Via::Symbolic).build();
    let view = fat(&file).view;
    let entry = view.sections.iter().find(|section| section.kind == 4).unwrap().offset as usize;
    let bend = |kind: u64, symbol: u64, addend: u64| {
        let mut file = file.clone();
        file[entry + 8..entry + 16].copy_from_slice(&(symbol << 32 | kind).to_le_bytes());
        file[entry + 16..entry + 24].copy_from_slice(&addend.to_le_bytes());
        file
    };
    let (absolute, glob_dat, tpoff, relative) = (1, 6, 18, 8);
    let bundle = fat(&file).sections[0].address;
    for (kind, symbol, addend) in
        [(glob_dat, 1, 0), (absolute, 1, 50), (relative, 0, bundle), (37, 0, bundle)]
    {
        let found = fault(&bend(kind, symbol, addend));
        assert!(found.message.contains("belongs to no wrapper"), "{found}");
        assert_eq!(found.kind, FaultKind::Unsupported);
    }
    // Behind the bundle, before it, and a thread-local offset that looks like an address in it.
    for (kind, symbol, addend) in [
        (absolute, 1, 100_000),
        (absolute, 1, 8177_u64.wrapping_neg()),
        (relative, 0, bundle - 1),
        (tpoff, 0, bundle),
    ] {
        fat(&bend(kind, symbol, addend));
    }
    // Two relocations for one wrapper.
    let mut twice = file.clone();
    twice.copy_within(entry + 24..entry + 48, entry);
    assert!(fault(&twice).message.contains("second relocation"));
}
