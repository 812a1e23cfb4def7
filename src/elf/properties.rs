//! Random files through the planner: layouts that a linker could make, judged by the memory images, and damaged ones,
//! which must not make it panic.

use proptest::prelude::*;

use super::testing::{Content, ElfBuilder, TestSection, TestWrapper, Via};
use super::tests::{MARKER, check, located, segment_kinds};
use super::{plan, verify};
use crate::edit::Planned;
use crate::fatbin::wrapper::Located;

fn via() -> impl Strategy<Value = Via> {
    prop_oneof![
        Just(Via::Relative),
        Just(Via::RelativeInPlace),
        Just(Via::Symbolic),
        Just(Via::Relr),
        Just(Via::InPlace)
    ]
}

prop_compose! {
    fn layouts()(
        size in prop_oneof![100u64..9000, 9000u64..200_000],
        bundle_place in 0usize..5,
        vias in prop::collection::vec((via(), 0u64..100), 1..6),
        align in prop_oneof![Just(0x1000u64), Just(0x4000), Just(0x10000), Just(0x20_0000)],
        machine in prop_oneof![Just((62u16, 8u32, 1u32)), Just((183, 1027, 257)), Just((243, 3, 2))],
        (program, phdr, interp, note, separate) in any::<(bool, bool, bool, bool, bool)>(),
        null_headers in 0usize..2,
        gap in prop_oneof![Just(0u64), 0u64..200],
        (names_first, empty) in (any::<bool>(), 0usize..20),
        second in prop::option::of(20u64..30_000),
        (eh_align, note_len, hash_len) in (0u32..9, 1usize..80, 1usize..2000),
        trailer in prop::collection::vec(any::<u8>(), 0..9),
    ) -> ElfBuilder {
        let mut builder = ElfBuilder::shared(size);
        (builder.machine, builder.relative, builder.absolute) = machine;
        builder.align = align;
        (builder.phdr, builder.null_headers, builder.gap, builder.separate) = (phdr, null_headers, gap, separate);
        builder.empty_sections = empty;
        builder.trailer = trailer;
        builder.section(".eh_frame").align = 1 << eh_align;
        builder.section(".note.gnu.build-id").content = Content::Bytes(vec![1; note_len]);
        builder.section(".gnu.hash").content = Content::Bytes(vec![2; hash_len]);
        builder.wrappers = vias.iter().map(|(via, at)| TestWrapper {
            magic: 0x4849_5046,
            target: (".hip_fatbin".to_owned(), 0, at * size / 100),
            via: *via,
        }).collect();
        builder.segments[0].1.push(TestSection::new(".relr.dyn", 19, 2, 8, Content::Relr));
        if program {
            builder.kind = 2;
            builder.base = 0x40_0000;
        }
        if !note {
            builder.segments[0].1.remove(0);
        }
        if interp {
            let content = Content::Bytes(b"/lib64/ld-linux-x86-64.so.2\0".to_vec());
            builder.segments[0].1.insert(0, TestSection::new(".interp", 1, 2, 1, content));
        }
        // The bundle goes to the front or the end of a segment, or before .bss.
        let bundle = builder.segments[2].1.remove(1);
        match bundle_place {
            0 => builder.segments[2].1.insert(1, bundle),
            1 => builder.segments[2].1.insert(0, bundle),
            2 => builder.segments[2].1.push(bundle),
            3 => builder.segments[3].1.insert(4, bundle),
            _ => builder.segments.insert(3, (4, vec![bundle])),
        }
        if let Some(second) = second {
            let section = TestSection::new(".hip_fatbin", 1, 2, 0x1000, Content::Bundle(second));
            builder.segments[1].1.push(section);
            builder.wrappers.iter_mut().for_each(|wrapper| wrapper.target.1 = 1);
            builder.wrappers[0].target = (".hip_fatbin".to_owned(), 0, second / 2);
            builder.segments[1].1.push(TestSection::new(".fini", 1, 6, 4, Content::Bytes(vec![9; 50])));
        }
        if names_first {
            let names = builder.rest.pop().unwrap();
            builder.rest.insert(0, names);
        }
        builder
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_layout_means_the_same_after_a_split(builder in layouts()) {
        check(&builder);
    }

    #[test]
    fn mutated_headers_never_panic(
        builder in layouts(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..6, any::<u64>()), 1..5),
    ) {
        let mut file = builder.build();
        let table = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
        let segments = segment_kinds(&file).len();
        for (index, what, value) in edits {
            // Fields of the headers, of both tables, and of what is at the file's start.
            let (range, size) = match what {
                0 => (16..64, 2),
                1 => (64..64 + 56 * segments, 8),
                2 | 3 => (table.min(file.len() - 8)..file.len() - 8, 8),
                _ => (64..file.len().min(3000), 8),
            };
            let slots = (range.end - range.start) / size;
            if slots > 0 {
                let at = range.start + index.index(slots) * size;
                let value = if what % 2 == 0 { value } else { value % 0x20_0000 };
                file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
        }
        if let Ok(Located::Fat(layout)) = located(&file)
            && let Ok(plan) = plan(&mut file.as_slice(), &layout, MARKER)
        {
            // What is planned is also kept.
            verify(&mut Planned::new(&plan.edits, file.as_slice()), &layout, MARKER, &plan).unwrap();
        }
    }
}
