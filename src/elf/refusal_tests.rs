//! What passes as it is, and what is refused.

use super::testing::{Content, ElfBuilder};
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
