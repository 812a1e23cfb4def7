//! `verify` against output that is not what was planned, against what fuzzing found, and a bundle that no memory would hold.

use super::headers::PT_PHDR;
use super::image::problems;
use super::testing::{Content, ElfBuilder, TestSection};
use super::tests::{MARKER, fat, last_header, segment_kinds, split};
use super::{locate, plan, verify};
use crate::edit::Planned;
use crate::fatbin::wrapper::Located;
use crate::fault::Result;
use crate::source::ReadAt;

#[test]
fn verify_notices_broken_promises() {
    let file = ElfBuilder::shared(100_000).build();
    let layout = fat(&file);
    let plan = plan(&mut file.as_slice(), &layout, MARKER).unwrap();
    let (good, _) = split(&file, MARKER).unwrap();
    assert!(verify(&mut good.as_slice(), &layout, MARKER, &plan).is_ok());
    assert!(verify(&mut good.as_slice(), &layout, b"other", &plan).is_err());
    let mut noticed = 0;
    for range in &plan.verify {
        for at in range.clone() {
            let mut bad = good.clone();
            bad[at as usize] ^= 0x55;
            noticed += u32::from(verify(&mut bad.as_slice(), &layout, MARKER, &plan).is_err());
        }
    }
    let total: u64 = plan.verify.iter().map(|range| range.end - range.start).sum();
    // Flags of the ELF header, physical addresses and unused padding may change unnoticed; little else.
    assert!(u64::from(noticed) * 2 > total, "{noticed} of {total} flipped bytes noticed");
}

/// A file with a bundle of more than 4 GiB, of which only the ends exist.
struct Sparse {
    head: Vec<u8>,
    hole: std::ops::Range<u64>,
    tail: Vec<u8>,
}

impl ReadAt for Sparse {
    fn len(&self) -> u64 {
        self.hole.end + self.tail.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        if end <= self.hole.start {
            (&*self.head).read_at(offset, buffer)
        } else if offset >= self.hole.end {
            (&*self.tail).read_at(offset - self.hole.end, buffer)
        } else {
            panic!("the planner read {offset:#x}..{end:#x}, which is device code");
        }
    }
}

#[test]
fn bundles_of_more_than_four_gib_are_never_read() {
    // A small file, stretched inside the bundle: every offset and address behind it grows.
    let stretch = 5 << 30;
    let builder = ElfBuilder::shared(100_000);
    let mut file = builder.build();
    let bundle = fat(&file).sections[0].clone();
    let middle = bundle.range.start + 50_000;
    let grow = |file: &mut [u8], at: usize, from: u64| {
        let value = u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        if value >= from {
            file[at..at + 8].copy_from_slice(&(value + stretch).to_le_bytes());
        }
    };
    let limit = bundle.range.start + 1;
    let segments = segment_kinds(&file).len();
    for index in 0..segments {
        let at = 64 + 56 * index;
        for field in [8, 16, 24] {
            grow(&mut file, at + field, limit);
        }
        let word = |file: &[u8], at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        if word(&file, at) as u32 == 1
            && word(&file, at + 8) < limit
            && word(&file, at + 8) + word(&file, at + 32) > limit
        {
            grow(&mut file, at + 32, 0);
            grow(&mut file, at + 40, 0);
        }
    }
    let table = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    let sections = usize::from(u16::from_le_bytes([file[60], file[61]]));
    let mut rela = 0;
    for index in 1..sections {
        let at = table + 64 * index;
        grow(&mut file, at + 16, limit);
        grow(&mut file, at + 24, limit);
        let offset = u64::from_le_bytes(file[at + 24..at + 32].try_into().unwrap());
        if offset == bundle.range.start {
            grow(&mut file, at + 32, 0);
        }
        if file[at + 4] == 4 {
            rela = offset as usize;
        }
    }
    for entry in 0..2 {
        grow(&mut file, rela + 24 * entry, limit);
        grow(&mut file, rela + 24 * entry + 16, limit);
    }
    grow(&mut file, 40, limit);
    let tail = file.split_off(middle as usize);
    let mut sparse = Sparse { head: file, hole: middle..middle + stretch, tail };
    sparse.head.truncate(bundle.range.start as usize);
    sparse.hole.start = bundle.range.start;
    let rest = (bundle.range.end - middle) as usize;
    sparse.tail.drain(..rest);
    sparse.hole.end += rest as u64;

    let Located::Fat(layout) = locate(&mut sparse).unwrap() else { panic!("no fat binary") };
    assert_eq!(layout.sections[0].range.end - layout.sections[0].range.start, stretch + 100_000);
    let plan = plan(&mut sparse, &layout, MARKER).unwrap();
    assert!(plan.edits.output_len() < 40_000, "{}", plan.edits.output_len());
    verify(&mut Planned::new(&plan.edits, sparse), &layout, MARKER, &plan).unwrap();
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

/// Found by fuzzing: it ran into the section names once the bundles were gone.
#[test]
fn the_first_section_header_is_no_section() {
    let mut file = ElfBuilder::shared(100_000).build();
    let at = fat(&file).view.header.sections_at as usize;
    file[at + 4..at + 8].copy_from_slice(&0x6fd_ffffu32.to_le_bytes());
    file[at + 32..at + 40].copy_from_slice(&0x9461u64.to_le_bytes());
    let fault = split(&file, MARKER).unwrap_err();
    assert_eq!(fault.place, "section header 0");
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
