//! Random layouts and damaged files.

use proptest::prelude::*;

use super::testing::builder::*;
use super::testing::loader::{differences, load};
use super::{locate, plan, verify};
use crate::edit::{Apply, Capture};
use crate::fatbin::wrapper::Located;
use crate::fault::Fault;

/// `None` if the file is not fat or was refused. A plan that is made must hold.
fn split(file: &[u8], marker: &[u8]) -> Option<Vec<u8>> {
    let Ok(Located::Fat(layout)) = locate(&mut &*file) else { return None };
    let plan = plan(&mut &*file, &layout, marker).ok()?;
    let mut output = Vec::new();
    let mut sink = |bytes: &[u8]| {
        output.extend_from_slice(bytes);
        Ok::<_, Fault>(())
    };
    let mut apply = Apply::new(&plan.edits);
    apply.feed(file, &mut sink).unwrap();
    apply.finish(&mut sink).unwrap();
    let mut capture = Capture::new(output.len() as u64, plan.verify.clone());
    capture.feed(&output);
    verify(&mut capture, &layout, marker).unwrap();
    Some(output)
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Data,
    Bss,
    Bundle,
    Table,
}

fn kind() -> impl Strategy<Value = Kind> {
    use Kind::*;
    prop_oneof![2 => Just(Text), 3 => Just(Data), 1 => Just(Bss), 1 => Just(Bundle), 1 => Just(Table)]
}

prop_compose! {
    fn image()(
        mut kinds in prop::collection::vec(kind(), 0..8),
        sizes in prop::collection::vec((1usize..0x3000, 0u32..0x2800), 11),
        order in prop::collection::vec(any::<prop::sample::Index>(), 3),
        alignments in (prop_oneof![Just(0x200u32), Just(0x400), Just(0x1000)], prop_oneof![Just(0x1000u32), Just(0x4000)]),
        nt_offset in (0x10u32..0x90).prop_map(|units| 8 * units),
        behind in prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![1u8])],
        wrappers in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12),
        pointers in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..20),
        tails in (0usize..0x400, 0usize..0x300, 0usize..5, any::<bool>()),
        checksum in prop_oneof![Just(Checksum::Zero), Just(Checksum::Right), Just(Checksum::Wrong)],
        base in (1u64..0x7fff).prop_map(|units| units << 32),
    ) -> TestImage {
        for (kind, at) in [Kind::Bundle, Kind::Table, Kind::Data].into_iter().zip(order) {
            kinds.insert(at.index(kinds.len() + 1), kind);
        }
        let mut image = TestImage::new();
        (image.file_alignment, image.section_alignment) = alignments;
        image.nt_offset = nt_offset;
        image.behind_table = behind;
        image.image_base = base;
        image.checksum = checksum;
        let (mut bundles, mut tables, mut datas) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, (&kind, &(size, memory))) in (1..).zip(kinds.iter().zip(&sizes)) {
            match kind {
                Kind::Text => {
                    image.section(".text", TEXT, pattern(seed, size));
                }
                Kind::Data => {
                    let index = image.section(".data", DATA, pattern(seed, size.max(0x400)));
                    image.sections[index].virtual_size = (memory > 0x400).then_some(memory);
                    datas.push(index);
                }
                Kind::Bss => {
                    let index = image.section(".bss", BSS, Vec::new());
                    image.sections[index].virtual_size = Some(memory + 1);
                }
                Kind::Bundle => bundles.push(image.section(".hip_fat", RDATA, pattern(seed, size))),
                Kind::Table => tables.push(image.section(".hipFatB", RDATA, Vec::new())),
            }
        }
        let reloc = image.reloc_section();
        let mut slots = vec![0; image.sections.len()];
        let firsts = tables.iter().map(|&table| (table, bundles[0], 0));
        let others = wrappers.iter().map(|(table, bundle, at)| {
            let bundle = bundles[bundle.index(bundles.len())];
            (tables[table.index(tables.len())], bundle, at.index(image.sections[bundle].data.len()) as u32)
        });
        let all: Vec<_> = firsts.chain(others).collect();
        for (table, bundle, at) in all {
            image.wrapper(table, slots[table], HIPF, (bundle, at));
            slots[table] += 1;
        }
        let data = datas[0];
        for (slot, (to, at)) in (0u32..).zip(&pointers) {
            let target = *[data, reloc, tables[0]].get(to.index(3)).unwrap();
            image.pointers.push(((data, 0x100 + 8 * slot), (target, at.index(0x100) as u32)));
        }
        let (overlay, certificate, symbols, debug) = tails;
        image.overlay = pattern(99, overlay);
        image.certificate = pattern(98, certificate);
        image.symbols = (symbols > 0).then(|| (vec![[5; 18]; symbols], vec![6, 0, 0, 0, b'a', 0]));
        if debug {
            let mut entries = vec![(2, DebugData::In((data, 0x10), 0x20)), (16, DebugData::Raw(0, 0))];
            if overlay > 0 {
                entries.push((4, DebugData::Overlay(overlay as u32 / 2, 1)));
            }
            image.debug = Some(((data, 0x40), entries));
        }
        image
    }
}

proptest! {
    #[test]
    fn random_layouts_keep_their_image(image in image(), marker in 1usize..0x900) {
        let file = image.build();
        load(&file, 0).unwrap();
        let marker = pattern(50, marker);
        match split(&file, &marker) {
            Some(output) => prop_assert_eq!(differences(&file, &output, &marker), Vec::<String>::new()),
            None => {
                // Only a marker that fits nowhere is refused.
                let Ok(Located::Fat(layout)) = locate(&mut file.as_slice()) else { panic!("not fat") };
                let fault = plan(&mut file.as_slice(), &layout, &marker).unwrap_err();
                prop_assert_eq!(fault.place, "section table");
            }
        }
    }

    #[test]
    fn damaged_files_are_refused_or_split_right(
        image in image(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..6),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut file = image.build();
        let (headers, end) = (image.size_of_headers(), file.len());
        for (at, value, in_headers) in damage {
            // Headers, or anywhere: relocations, wrappers and directories are there too.
            let at = at.index(if in_headers { headers } else { end });
            file[at] = value;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        split(&file, &pattern(51, 70));
    }
}
