//! What passes as it is, and what is refused.

use super::image::problems;
use super::testing::{Content, ElfBuilder, Via};
use super::tests::*;
use crate::fatbin::wrapper::Located;
use crate::fault::FaultKind;

#[test]
fn what_is_no_fat_binary_passes() {
    let plain = |bend: &dyn Fn(&mut Vec<u8>)| {
        let mut file = ElfBuilder::shared(10_000).build();
        bend(&mut file);
        assert!(matches!(located(&file).unwrap(), Located::Plain));
    };
    plain(&|file| file[4] = 1); // 32-bit
    plain(&|file| file[5] = 2); // big-endian
    plain(&|file| file[16] = 1); // an object
    plain(&|file| file[58] = 40); // section headers of another size
    plain(&|file| file.truncate(40));
    plain(&|file| file.truncate(0));
    // Code for a GPU or a coprocessor that is cut short: data, whatever it is.
    plain(&|file| {
        file[18] = 224;
        file.truncate(5000);
    });
    let debug = |builder: &mut ElfBuilder| {
        for name in [".hip_fatbin", ".hipFatBinSegment"] {
            builder.section(name).kind = 8;
            builder.section(name).content = Content::Bss(4096);
        }
        builder.wrappers.clear();
    };
    let mut builder = ElfBuilder::shared(10_000);
    debug(&mut builder);
    assert!(matches!(located(&builder.build()).unwrap(), Located::Plain));
}

#[test]
fn what_is_not_understood_is_a_fault() {
    // A pointer into the bundle that is no wrapper's.
    let mut builder = ElfBuilder::shared(100_000);
    builder.pointers.push(((".data".to_owned(), 16), (".hip_fatbin".to_owned(), 50)));
    let found = fault(&builder.build());
    assert_eq!(found.kind, FaultKind::Unsupported);
    assert!(found.message.contains("belongs to no wrapper"), "{found}");
    // One that the loader writes into the bundle.
    let mut builder = ElfBuilder::shared(100_000);
    builder.pointers.push(((".hip_fatbin".to_owned(), 64), (".data".to_owned(), 8)));
    assert!(fault(&builder.build()).message.contains("writes to address"));
    // Wrapper outside the bundle, unknown magic, trailing bytes.
    let mut builder = ElfBuilder::shared(100_000);
    builder.wrappers[0].target = (".rodata".to_owned(), 0, 0);
    assert!(fault(&builder.build()).message.contains("must be in .hip_fatbin"));
    let mut builder = ElfBuilder::shared(100_000);
    builder.wrappers[0].magic = 0x1234;
    assert!(fault(&builder.build()).message.contains("0x00001234"));
    let wrapper: Vec<u8> = [&0x4849_5046_u32.to_le_bytes()[..], &[0; 20]].concat();
    let mut builder = ElfBuilder::shared(100_000);
    builder.section(".hipFatBinSegment").content = Content::Bytes([wrapper, vec![1; 8]].concat());
    assert!(fault(&builder.build()).message.contains("the rest is neither"));
    // No wrappers, no bundle.
    let mut builder = ElfBuilder::shared(100_000);
    builder.section(".hipFatBinSegment").name = ".other".to_owned();
    assert!(fault(&builder.build()).message.contains(".hipFatBinSegment"));
    let mut builder = ElfBuilder::shared(100_000);
    builder.section(".hip_fatbin").name = ".hop_fatbin".to_owned();
    builder.wrappers[0].target.0 = ".hop_fatbin".to_owned();
    assert!(fault(&builder.build()).message.contains(".hip_fatbin"));
}

#[test]
fn what_overlaps_the_bundle_is_refused() {
    let builder = ElfBuilder::shared(100_000);
    let file = builder.build();
    let bundle = fat(&file).sections[0].clone();
    // PT_TLS over the end of the bundle.
    let mut bent = file.clone();
    let start = bundle.range.end - 8;
    last_header(&mut bent, 7, 4, [start, bundle.address + 99_992, 0, 16, 16, 8]);
    let found = fault(&bent);
    assert_eq!(found.kind, FaultKind::Unsupported);
    assert!(found.message.contains("PT_TLS"), "{found}");
    // The entry point.
    let mut bent = file.clone();
    bent[24..32].copy_from_slice(&(bundle.address + 1).to_le_bytes());
    assert!(fault(&bent).message.contains("entry point"));
}

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
