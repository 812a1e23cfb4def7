//! Files without section headers, judged by address: builder's files whose headers are cut off.

use super::bare;
use super::image::problems;
use super::locate::ElfLayout;
use super::testing::{Content, DEVICE_BYTE, ElfBuilder, TestSection, Via};
use super::tests::{MARKER, fat, located, segment_kinds, split};
use super::view::ElfView;
use super::{plan, verify};
use crate::edit::Planned;
use crate::fatbin::test_support::BundleBuilder;
use crate::fatbin::wrapper::Located;
use crate::fault::FaultKind;
use proptest::prelude::*;

/// A bundle of some 50 KiB with device bytes for two GPUs.
fn bundle() -> Vec<u8> {
    BundleBuilder::new()
        .entry("host-x86_64-unknown-linux-gnu-", &[])
        .entry("hipv4-amdgcn-amd-amdhsa--gfx942", &vec![DEVICE_BYTE; 30_000])
        .entry("hipv4-amdgcn-amd-amdhsa--gfx1100", &vec![DEVICE_BYTE; 20_001])
        .build()
}

/// Two bundles with padding between and behind them.
fn bundles() -> (Vec<u8>, u64) {
    let mut bytes = bundle();
    bytes.resize(bytes.len().next_multiple_of(0x1000), 0);
    let second = bytes.len() as u64;
    bytes.extend(bundle());
    bytes.resize(bytes.len() + 3000, 0);
    (bytes, second)
}

/// The builder's shared object around [`bundles`], with a wrapper of each kind.
fn builder() -> ElfBuilder {
    let (bytes, second) = bundles();
    let mut builder = ElfBuilder::shared(1).wrapper(second, Via::Symbolic).wrapper(0, Via::Relr);
    builder.section(".hip_fatbin").content = Content::Bytes(bytes);
    builder.phdr = true;
    builder
}

/// The file without its section header table; what else nobody loads stays.
fn strip_sections(file: &[u8]) -> Vec<u8> {
    let table = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    let mut file = file[..table].to_vec();
    file[40..48].fill(0);
    file[58..64].fill(0);
    file
}

fn word(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

/// Start, flags and bytes of every PT_LOAD.
fn memory(file: &[u8]) -> Vec<(u64, u32, Vec<u8>)> {
    let headers = (0..segment_kinds(file).len()).map(|index| 64 + 56 * index);
    headers
        .filter(|&at| file[at] == 1 && file[at + 1..at + 4] == [0; 3])
        .map(|at| {
            let (offset, size) = (word(file, at + 8) as usize, word(file, at + 32) as usize);
            let mut bytes = file[offset..offset + size].to_vec();
            bytes.resize(word(file, at + 40) as usize, 0);
            (word(file, at + 16), u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap()), bytes)
        })
        .collect()
}

fn byte(memory: &[(u64, u32, Vec<u8>)], address: u64) -> Option<(u32, u8)> {
    memory.iter().find_map(|(start, flags, bytes)| {
        let at = usize::try_from(address.checked_sub(*start)?).ok()?;
        bytes.get(at).map(|byte| (*flags, *byte))
    })
}

/// Splits the file without section headers; every byte outside the bundles must be where it was, but for what `whole`,
/// the layout with section headers, says is a wrapper's.
fn check(file: &[u8], whole: &ElfLayout) -> Vec<u8> {
    let before = strip_sections(file);
    let layout = fat(&before);
    assert_eq!(layout.wrappers, whole.wrappers);
    let (after, _) = split(&before, MARKER).unwrap();
    assert!(matches!(located(&after).unwrap(), Located::AlreadySplit));
    let (old, new) = (memory(&before), memory(&after));
    let mut ignored: Vec<std::ops::Range<u64>> =
        layout.sections.iter().map(|s| s.address..s.address + (s.range.end - s.range.start)).collect();
    ignored.push(old[0].0..old[0].0 + 64 + 56 * segment_kinds(&after).len() as u64);
    for wrapper in &whole.wrappers {
        ignored.push(wrapper.address..wrapper.address + 24);
    }
    // RELA entries: by their place, the pointer of a wrapper.
    for (start, _, bytes) in &old {
        for at in (0..(bytes.len() + 1).saturating_sub(24)).step_by(8) {
            if whole.wrappers.iter().any(|wrapper| wrapper.address + 8 == word(bytes, at)) {
                ignored.push(start + at as u64..start + at as u64 + 24);
            }
        }
    }
    for (start, flags, bytes) in &old {
        for (address, &was) in (*start..).zip(bytes) {
            if !ignored.iter().any(|range| range.contains(&address)) {
                assert_eq!(byte(&new, address), Some((*flags, was)), "{address:#x}");
            }
        }
    }
    after
}

#[test]
fn are_split_like_those_with_section_headers() {
    let builder = builder();
    let file = builder.build();
    let after = check(&file, &fat(&file));
    assert!(after.iter().filter(|&&byte| byte == DEVICE_BYTE).count() < 1000);
    assert!(after.len() + 90_000 < file.len(), "{} {}", after.len(), file.len());
    // What this test relies on: with section headers, the same wrappers and bundles are found.
    let (_, second) = bundles();
    let layout = fat(&strip_sections(&file));
    let start = layout.sections[0].address;
    let targets: Vec<u64> = layout.wrappers.iter().map(|wrapper| wrapper.target - start).collect();
    assert_eq!(targets, [0, second, 0]);
    assert_eq!((layout.sections.len(), start), (1, fat(&file).sections[0].address));
}

/// Found by fuzzing: an address was added past the end of 64 bits.
#[test]
fn segments_at_the_end_of_memory_are_refused() {
    let mut file = strip_sections(&builder().build());
    // The last PT_LOAD, in which the wrappers are.
    let load = segment_kinds(&file).iter().rposition(|&kind| kind == 1).unwrap();
    let place = 64 + 56 * load + 16;
    file[place..place + 8].copy_from_slice(&0xffff_ffff_ffff_fff8u64.to_le_bytes());
    assert!(located(&file).is_err());
}

/// The marker is then at the bundle's end, and nothing but the wrappers leads to it.
#[test]
fn a_bundle_at_the_start_of_its_segment() {
    let mut builder = builder();
    builder.segments[2].1.remove(0);
    let rodata = builder.segments[1].1[0].clone();
    builder.segments[1].1.push(TestSection { name: ".rodata".to_owned(), ..rodata });
    let file = builder.build();
    check(&file, &fat(&file));
}

/// A page of zeros between two bundles may be a table that is zero.
#[test]
fn zeros_that_are_more_than_padding_stay() {
    for (zeros, sections) in [(0xfff, 1), (0x1000, 2)] {
        let mut bytes = bundle();
        bytes.resize(bytes.len() + zeros, 0);
        let second = bytes.len() as u64;
        bytes.extend(bundle());
        let mut builder = ElfBuilder::shared(1).wrapper(second, Via::Relative);
        builder.section(".hip_fatbin").content = Content::Bytes(bytes);
        builder.null_headers = 2;
        let file = builder.build();
        assert_eq!(fat(&strip_sections(&file)).sections.len(), sections, "{zeros:#x}");
        check(&file, &fat(&file));
    }
}

#[test]
fn programs_have_pointers_in_place() {
    let (bytes, second) = bundles();
    let mut builder = ElfBuilder::shared(1).wrapper(second, Via::InPlace);
    builder.wrappers[0].via = Via::InPlace;
    builder.kind = 2;
    builder.base = 0x40_0000;
    builder.null_headers = 1;
    builder.section(".hip_fatbin").content = Content::Bytes(bytes);
    let file = builder.build();
    check(&file, &fat(&file));
}

#[test]
fn bundles_apart_are_sections_apart() {
    let mut builder = ElfBuilder::shared(1).wrapper(0, Via::Relative);
    builder.section(".hip_fatbin").content = Content::Bytes(bundle());
    builder.wrappers[1].target = (".hip_fatbin".to_owned(), 1, 0);
    let second = TestSection::new(".hip_fatbin", 1, 2, 0x1000, Content::Bytes(bundle()));
    builder.segments[2].1.insert(3, second);
    builder.null_headers = 2;
    let file = builder.build();
    check(&file, &fat(&file));
    assert_eq!(fat(&strip_sections(&file)).sections.len(), 2);
}

#[test]
fn without_room_for_a_header_the_code_is_zeroed_in_place() {
    // What stands behind the program headers is not known, so that nothing moves; PT_PHDR stays with PT_INTERP.
    let mut builder = builder();
    let interpreter = TestSection::new(".interp", 1, 2, 1, Content::Bytes(b"/lib/ld.so\0".to_vec()));
    builder.segments[0].1.insert(0, interpreter);
    let file = builder.build();
    let after = check(&file, &fat(&file));
    assert_eq!(after.len(), strip_sections(&file).len());
    assert!(after.iter().filter(|&&byte| byte == DEVICE_BYTE).count() < 1000);
}

#[test]
fn pass_or_are_refused_like_those_with_section_headers() {
    // No wrapper at all, one that is split, and a machine that hosts no GPU.
    let plain = ElfBuilder { wrappers: Vec::new(), ..builder() };
    assert!(matches!(located(&strip_sections(&plain.build())).unwrap(), Located::Plain));
    let mut gpu = strip_sections(&builder().build());
    gpu[18] = 224;
    assert!(matches!(located(&gpu).unwrap(), Located::Plain));
    // A pointer that leads to no bundle; one into a bundle that is no wrapper's.
    let mut astray = builder();
    astray.wrappers[0].target = (".rodata".to_owned(), 0, 0);
    assert!(located(&strip_sections(&astray.build())).unwrap_err().message.contains("must be in"));
    let mut stray = builder();
    stray.pointers.push(((".data".to_owned(), 16), (".hip_fatbin".to_owned(), 50)));
    let fault = located(&strip_sections(&stray.build())).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unsupported);
    assert!(fault.message.contains("belongs to no wrapper"), "{fault}");
    // A bundle that is cut short.
    let mut short = builder();
    let Content::Bytes(bytes) = &mut short.section(".hip_fatbin").content else { panic!() };
    let entry = 32 + 24 + "host-x86_64-unknown-linux-gnu-".len() + 8;
    bytes[entry..entry + 8].copy_from_slice(&0x1000_0000u64.to_le_bytes());
    let fault = located(&strip_sections(&short.build())).unwrap_err();
    assert!(fault.message.contains("ends past the end of the bundle"), "{fault}");
}

/// Code objects can hold anything, also what looks like a wrapper.
#[test]
fn what_looks_like_a_wrapper_inside_a_bundle_is_none() {
    let mut builder = builder();
    let Content::Bytes(bytes) = &mut builder.section(".hip_fatbin").content else { panic!() };
    let at = 20_000usize.next_multiple_of(8);
    bytes[at..at + 8].copy_from_slice(&0x1_4849_5046u64.to_le_bytes());
    let file = builder.build();
    let bare = strip_sections(&file);
    let view = ElfView::parse(&mut bare.as_slice()).unwrap().unwrap();
    assert_eq!(bare::wrappers(&mut bare.as_slice(), &view).unwrap().len(), 4);
    check(&file, &fat(&file));
    // With section headers the rest of the judges agree.
    let (after, _) = split(&file, MARKER).unwrap();
    assert!(problems(&file, &after, MARKER, 8, 1).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(
        program in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..6, any::<u64>()), 1..5),
    ) {
        let mut builder = builder();
        if program {
            builder.kind = 2;
            builder.base = 0x40_0000;
            builder.wrappers.iter_mut().for_each(|wrapper| wrapper.via = Via::InPlace);
        }
        let whole = builder.build();
        let mut file = strip_sections(&whole);
        let wrappers = fat(&whole).wrappers[0].offset as usize;
        let segments = 64 + 56 * segment_kinds(&file).len();
        for (index, what, value) in edits {
            let range = match what {
                0 => 24..64,
                1 | 2 => 64..segments,
                3 => segments..3000,
                4 => wrappers - 1000..wrappers + 80,
                _ => 0..file.len() - 8,
            };
            let at = range.start + index.index((range.end - range.start) / 8) * 8;
            let value = if value % 3 == 0 { value } else { value % 0x4_0000 };
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(Located::Fat(layout)) = located(&file)
            && let Ok(plan) = plan(&mut file.as_slice(), &layout, MARKER)
        {
            verify(&mut Planned::new(&plan.edits, file.as_slice()), &layout, MARKER, &plan).unwrap();
        }
    }
}
