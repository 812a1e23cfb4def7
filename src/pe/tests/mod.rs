//! Unit tests of the rewrite, on files from the builder.

mod refusals;
mod rewrites;

use std::ops::Range;

use super::testing::builder::*;
use super::testing::loader::{differences, load};
use super::{PeLayout, is_pe, locate, plan, verify};
use crate::edit::{Apply, BinaryPlan, Capture};
use crate::fatbin::wrapper::Located;
use crate::fault::{Fault, FaultKind, Result};
use crate::source::ReadAt;

const MARKER: &[u8] = b"\x82\xb2kpack_search_paths\x91\xa3a/b\xabkernel_name\xa5x.dll";
const X64: u16 = 0x8664;
const ARM64: u16 = 0xaa64;

/// A file that must not be read in some places.
struct Guarded<'file> {
    file: &'file [u8],
    forbidden: Vec<Range<u64>>,
}

impl ReadAt for Guarded<'_> {
    fn len(&self) -> u64 {
        self.file.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        for range in &self.forbidden {
            assert!(
                end <= range.start || range.end <= offset,
                "{offset:#x}..{end:#x} reads of the bundle {range:x?}"
            );
        }
        self.file.read_at(offset, buffer)
    }
}

fn fat(file: &[u8]) -> Result<PeLayout> {
    match locate(&mut &*file)? {
        Located::Fat(layout) => Ok(layout),
        other => panic!("not fat: {other:?}"),
    }
}

fn apply(plan: &BinaryPlan, input: &[u8], chunk: usize) -> Vec<u8> {
    let mut output = Vec::new();
    let mut sink = |bytes: &[u8]| {
        output.extend_from_slice(bytes);
        Ok::<_, Fault>(())
    };
    let mut apply = Apply::new(&plan.edits);
    for piece in input.chunks(chunk) {
        apply.feed(piece, &mut sink).unwrap();
    }
    apply.finish(&mut sink).unwrap();
    output
}

fn capture(plan: &BinaryPlan, output: &[u8]) -> Capture {
    let mut capture = Capture::new(output.len() as u64, plan.verify.clone());
    capture.feed(output);
    capture
}

fn try_split(file: &[u8], marker: &[u8]) -> Result<(Vec<u8>, Vec<String>)> {
    let layout = fat(file)?;
    let forbidden = layout.sections.iter().map(|section| section.range.clone()).collect();
    let plan = plan(&mut Guarded { file, forbidden }, &layout, marker)?;
    let output = apply(&plan, file, 1000);
    verify(&mut capture(&plan, &output), &layout, marker)?;
    Ok((output, plan.notes))
}

/// Splits and lets the independent loader judge.
fn split(file: &[u8]) -> Vec<u8> {
    let (output, _) = try_split(file, MARKER).unwrap();
    assert_eq!(differences(file, &output, MARKER), Vec::<String>::new());
    // What comes out is split: nothing more to do.
    assert!(!matches!(locate(&mut output.as_slice()).unwrap(), Located::Fat(_)));
    output
}

fn refused(image: &TestImage) -> Fault {
    match try_split(&image.build(), MARKER) {
        Err(fault) => fault,
        Ok(_) => panic!("expected a fault"),
    }
}

/// Sections in the order of `names`, each with what its kind needs. All point at each other.
struct Fixture {
    image: TestImage,
    text: usize,
    rdata: usize,
    fat: usize,
    table: usize,
}

const ORDERS: [&[&str]; 4] = [
    &[".text", ".rdata", ".data", ".bss", ".pdata", ".hipFatB", ".hip_fat", ".rsrc", ".reloc"],
    &[".hip_fat", ".hipFatB", ".rdata", ".text", ".reloc", ".bss"],
    &[".text", ".rdata", ".hipFatB", ".data", ".reloc", ".hip_fat"],
    &[".text", ".bss", ".hip_fat", ".rdata", ".hipFatB", ".reloc"],
];

fn fixture_of(order: &[&str]) -> Fixture {
    let mut image = TestImage::new();
    let mut find = std::collections::HashMap::new();
    for (seed, &name) in (1..).zip(order) {
        let index = match name {
            ".text" => image.section(name, TEXT, pattern(seed, 0x1234)),
            ".rdata" => image.section(name, RDATA, pattern(seed, 0x765)),
            ".data" => {
                let index = image.section(name, DATA, pattern(seed, 0x210));
                image.sections[index].virtual_size = Some(0x3456);
                index
            }
            ".bss" => {
                let index = image.section(name, BSS, Vec::new());
                image.sections[index].virtual_size = Some(0x2001);
                index
            }
            ".hip_fat" => image.section(name, RDATA, pattern(seed, 0x5e71)),
            ".hipFatB" => image.section(name, RDATA, Vec::new()),
            ".reloc" => image.reloc_section(),
            _ => image.section(name, RDATA, pattern(seed, 0x123)),
        };
        find.insert(name, index);
    }
    let (text, rdata, fat, table) = (find[".text"], find[".rdata"], find[".hip_fat"], find[".hipFatB"]);
    // Not in the order of the bundles, and two share one.
    for (slot, target) in [0x3000, 0, 0x1000, 0x1000].into_iter().enumerate() {
        image.wrapper(table, slot as u32, HIPF, (fat, target));
    }
    image.entry = Some((text, 0x10));
    image.pointers.push(((rdata, 0x40), (text, 0x123)));
    image.pointers.push(((rdata, 0x48), (table, 0)));
    image.pointers.push(((rdata, 0x703), (rdata, 0)));
    // Exports, exceptions, TLS, load configuration, delay imports: all are RVAs that stay.
    for index in [0, 3, 9, 10, 13] {
        image.directories.push((index, (rdata, 8 * index as u32), 0x28));
    }
    Fixture { image, text, rdata, fat, table }
}

fn fixture() -> Fixture {
    fixture_of(ORDERS[0])
}

fn strings(names: &[&str]) -> Vec<u8> {
    let body: Vec<u8> = names.iter().flat_map(|name| name.bytes().chain([0])).collect();
    let mut table = (4 + body.len() as u32).to_le_bytes().to_vec();
    table.extend(body);
    table
}

fn fat_sections(file: &[u8]) -> usize {
    let nt = u32::from_le_bytes(file[60..64].try_into().unwrap()) as usize;
    usize::from(u16::from_le_bytes(file[nt + 6..nt + 8].try_into().unwrap()))
}
