//! Where the hole in a bundle section is, and how far everything behind it moves in the file.
//!
//! A hole takes a bundle's bytes out of the file and out of the address space; no address changes. With V..M the
//! memory of the PT_LOAD around the bundle A..E, the three shapes are
//!
//! ```text
//! tail    V ── A ▒▒▒ E=M            the PT_LOAD gets shorter
//! head    V=A ▒▒▒ E ── M            the PT_LOAD starts later
//! middle  V ── A ▒▒▒ E ── M         the PT_LOAD becomes two, around the hole
//! ```
//!
//! A `tail` or `middle` hole leaves the front of the bundle section mapped, a `head` hole its back, and so does a
//! `middle` hole that only `.bss` follows: a PT_LOAD without a section in the file is legal, but GNU strip gives it an
//! offset that patchelf 0.17 trips over. What is left, the *room*, holds the marker, and what had to move. The rest of
//! it is zeroed, so that no device byte stays.
//!
//! Invariants: the length of a hole is a multiple of `align`, the largest p_align among the segments that it shifts
//! (or what that is lowered to), hence of the page size: offsets stay congruent to addresses, and the two halves of a
//! split PT_LOAD never meet on one page.

use std::ops::Range;

use super::headers::*;
use super::locate::ElfLayout;
use super::view::{ElfView, SMALLEST_PAGE};
use crate::fault::{Fault, Result};

/// Rounding a hole to p_align may keep this many bytes more than rounding it to a page; beyond, p_align is lowered.
const MAX_ROUNDING: u64 = 1 << 20;

/// A hole: bytes that leave the file and addresses that become unmapped, of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    /// The bytes of the input file that leave it.
    pub(super) file: Range<u64>,
    /// The address of the first of them.
    pub(super) address: u64,
    /// Whether the PT_LOAD goes on behind the hole as well as before it.
    pub(super) splits: bool,
}

impl Hole {
    pub(super) fn len(&self) -> u64 {
        self.file.end - self.file.start
    }

    pub(super) fn address_end(&self) -> u64 {
        self.address + self.len()
    }
}

/// A bundle section and its PT_LOAD.
#[derive(Clone, Debug)]
pub(super) struct Bundle {
    pub(super) address: u64,
    pub(super) file: Range<u64>,
    /// Index of the PT_LOAD among the program headers.
    pub(super) load: usize,
}

impl Bundle {
    pub(super) fn len(&self) -> u64 {
        self.file.end - self.file.start
    }

    pub(super) fn address_end(&self) -> u64 {
        self.address + self.len()
    }

    /// The hole that leaves at least `need` bytes of room and is a multiple of `align` long; `None` if it would be
    /// empty.
    fn hole(&self, load: &Segment, need: u64, align: u64) -> Option<Hole> {
        let bss_follows = load.memory_size > load.file_size && load.file_end() == self.file.end;
        let follows = bss_follows || load.file_end() > self.file.end;
        let at_start = self.address == load.address;
        // The second half of a split PT_LOAD starts at a multiple of 4: some bytes of the bundle stay before it.
        let tail = if follows && !bss_follows && !at_start { self.address_end() % 4 } else { 0 };
        let free = self.len().checked_sub(need.checked_add(tail)?)?;
        let length = free / align * align;
        if length == 0 {
            return None;
        }
        let start = if at_start && follows || bss_follows { 0 } else { self.len() - tail - length };
        let splits = follows && !at_start;
        Some(Hole {
            file: self.file.start + start..self.file.start + start + length,
            address: self.address + start,
            splits,
        })
    }

    /// The mapped bytes of the bundle that can hold something, as a range of the input file.
    pub(super) fn room(&self, hole: Option<&Hole>) -> Range<u64> {
        match hole {
            None => self.file.clone(),
            Some(hole) if hole.file.start == self.file.start => hole.file.end..self.file.end,
            Some(hole) => self.file.start..hole.file.start,
        }
    }
}

/// The holes of a binary, one for each bundle section that can have one.
#[derive(Clone, Debug)]
pub(super) struct Holes {
    pub(super) holes: Vec<Option<Hole>>,
    /// p_align of the segments that shift, if it has to be lowered: the new value.
    pub(super) lowered: Option<u64>,
}

impl Holes {
    /// Cuts every bundle for which `needs` has the bytes of room that it must keep; `None`: it is left without a hole.
    pub(super) fn cut(view: &ElfView, bundles: &[Bundle], needs: &[Option<u64>]) -> Result<Self> {
        let page = page_size(view)?;
        let mut high = page;
        let mut low = page;
        let first =
            bundles.iter().zip(needs).filter(|(_, need)| need.is_some()).map(|(bundle, _)| bundle.file.end);
        if let Some(first) = first.min() {
            for (_, load) in view.loads().filter(|(_, load)| load.file_size > 0 && load.file_end() > first) {
                high = high.max(load.align);
                low = low.max(section_align(view, load));
            }
            let bss = |bundle: &Bundle| {
                view.segments.get(bundle.load).filter(|load| load.memory_size > load.file_size)
            };
            for load in bundles.iter().filter_map(bss) {
                high = high.max(load.align);
                low = low.max(section_align(view, load));
            }
        }
        // Without section headers nobody knows what p_align is for.
        let low = if view.sections.is_empty() { high } else { low.min(high) };
        let cut = |align: u64| -> Vec<Option<Hole>> {
            let hole = |(bundle, need): (&Bundle, &Option<u64>)| {
                bundle.hole(view.segments.get(bundle.load)?, (*need)?, align)
            };
            bundles.iter().zip(needs).map(hole).collect()
        };
        let (rounded, tight) = (cut(high), cut(low));
        let length = |hole: &Option<Hole>| hole.as_ref().map_or(0, Hole::len);
        let costs_much = bundles.iter().zip(rounded.iter().zip(&tight)).any(|(bundle, (rounded, tight))| {
            let cost = length(tight).saturating_sub(length(rounded));
            cost > MAX_ROUNDING || cost > bundle.len() / 20
        });
        Ok(if costs_much {
            Self { holes: tight, lowered: Some(low) }
        } else {
            Self { holes: rounded, lowered: None }
        })
    }

    /// Program headers that the holes need beyond those there are.
    pub(super) fn extra_headers(&self) -> usize {
        self.holes.iter().flatten().filter(|hole| hole.splits).count()
    }

    /// The holes in input order.
    pub(super) fn in_file_order(&self) -> Vec<&Hole> {
        let mut holes: Vec<&Hole> = self.holes.iter().flatten().collect();
        holes.sort_by_key(|hole| hole.file.start);
        holes
    }
}

/// The page size to keep PT_LOADs apart by: the machine's largest, unless the file was linked for smaller ones only.
fn page_size(view: &ElfView) -> Result<u64> {
    let largest = view.loads().map(|(_, load)| load.align).max().unwrap_or(0);
    Ok(largest.clamp(SMALLEST_PAGE, view.machine()?.page))
}

/// The largest alignment of a section in `load`. p_align must not get lower, or the section's address would no
/// longer be aligned once the loader has added its bias.
fn section_align(view: &ElfView, load: &Segment) -> u64 {
    let inside = |section: &&Section| {
        section.in_memory() && section.address >= load.address && section.address < load.memory_end()
    };
    let aligns = view.sections.iter().filter(inside).map(|section| section.align);
    aligns.filter(|align| align.is_power_of_two()).max().unwrap_or(1)
}

/// The bundle sections with their PT_LOADs, checked: no header, no other section and no other segment shares a byte
/// of the file or an address with one.
pub(super) fn bundles(layout: &ElfLayout) -> Result<Vec<Bundle>> {
    let view = &layout.view;
    let mut bundles = Vec::with_capacity(layout.sections.len());
    for (nth, bundle) in layout.sections.iter().enumerate() {
        let own = layout.bundle_indices.get(nth).copied();
        let file = &bundle.range;
        let memory = bundle.address..bundle.address + (file.end - file.start);
        let conflict = |what: String| {
            Fault::unsupported(
                super::locate::BUNDLE_SECTION,
                file.start,
                format!(
                    "{what} overlaps it (file {:#x}..{:#x}, addresses {:#x}..{:#x})",
                    file.start, file.end, memory.start, memory.end
                ),
            )
        };
        let mut load = None;
        for (index, segment) in view.segments.iter().enumerate() {
            let holds_file = segment.file_size > 0 && overlaps(&(segment.offset..segment.file_end()), file);
            let holds_memory =
                segment.memory_size > 0 && overlaps(&(segment.address..segment.memory_end()), &memory);
            // PT_GNU_STACK may have a size in memory; it has no place.
            let no_place = segment.kind == PT_NULL || segment.kind == PT_GNU_STACK && !holds_file;
            if no_place || !holds_file && !holds_memory {
                continue;
            }
            let is_own = segment.is_load()
                && segment.address <= memory.start
                && memory.end <= segment.address.saturating_add(segment.file_size)
                && memory.start - segment.address == file.start.wrapping_sub(segment.offset);
            if !is_own || load.replace(index).is_some() {
                return Err(conflict(format!("program header {index} ({})", segment.name())));
            }
        }
        let Some(load) = load else {
            return Err(conflict("no PT_LOAD".to_owned()));
        };
        for (index, section) in view.sections.iter().enumerate().skip(1) {
            let holds_file = section.in_file() && overlaps(&(section.offset..section.file_end()), file);
            let holds_memory =
                section.in_memory() && overlaps(&(section.address..section.memory_end()), &memory);
            if Some(index) != own && (holds_file || holds_memory) {
                return Err(conflict(format!("section {index}")));
            }
        }
        let tables = [
            ("the ELF header", 0..FILE_HEADER_LEN),
            ("the program header table", view.segment_table()),
            ("the section header table", view.section_table()),
        ];
        if let Some((what, _)) = tables.iter().find(|(_, table)| overlaps(table, file)) {
            return Err(conflict((*what).to_owned()));
        }
        if memory.contains(&view.header.entry) {
            return Err(conflict("the entry point".to_owned()));
        }
        bundles.push(Bundle { address: bundle.address, file: file.clone(), load });
    }
    Ok(bundles)
}

/// Whether two ranges have a member in common.
pub(super) fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

/// The parts of `range` that are in none of `taken`, in ascending order if `taken` is sorted.
pub(super) fn without(range: Range<u64>, taken: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut rest: Vec<Range<u64>> = std::iter::once(range).collect();
    for taken in taken {
        rest = rest
            .into_iter()
            .flat_map(|part| [part.start..part.end.min(taken.start), part.start.max(taken.end)..part.end])
            .filter(|part| part.start < part.end)
            .collect();
    }
    rest
}

/// Where the bytes of the input stand in the output.
#[derive(Clone, Debug, Default)]
pub(super) struct Shifts {
    /// Ascending. Bytes `drop` leave the file; `insert` bytes come in before the byte at `drop.end`.
    steps: Vec<(Range<u64>, u64)>,
}

impl Shifts {
    pub(super) fn new(mut steps: Vec<(Range<u64>, u64)>) -> Self {
        steps.sort_by_key(|(drop, _)| (drop.start, drop.end));
        Self { steps }
    }

    /// The output offset of what stands at `offset` in the input. What starts at an insert comes behind it; an offset
    /// inside dropped bytes, where only something empty can be, becomes the offset that they leave.
    pub(super) fn map(&self, offset: u64) -> u64 {
        let mut mapped = offset;
        for (drop, insert) in &self.steps {
            if offset >= drop.end {
                mapped = mapped.wrapping_sub(drop.end - drop.start).wrapping_add(*insert);
            } else if offset > drop.start {
                mapped = mapped.wrapping_sub(offset - drop.start);
            }
        }
        mapped
    }
}
