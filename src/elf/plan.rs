//! The edits that take the device code out of a fat ELF binary.
//!
//! Layout: see [`holes`](super::holes). Every wrapper becomes HIPK and points at the marker, a MessagePack map in the
//! kept part of a bundle section, which is now called `.rocm_kpack_ref`. Addresses, section indices and symbols stay.
//!
//! | edited | why |
//! |---|---|
//! | ELF header, program headers | offsets behind a hole, one more PT_LOAD per split |
//! | section headers | offsets; the bundle section's name and place; what had to move |
//! | section name table | one name more |
//! | bundle sections | marker, what had to move, zeros; the rest leaves |
//! | wrappers | magic, pointer in place, code-object index |
//! | RELA entries of wrapper pointers | relative, to the marker |
//! | `.dynamic` | addresses of what had to move |

use std::ops::Range;

use object::pod;

use super::arrange::Arrangement;
use super::headers::*;
use super::locate::{ElfLayout, WRAPPER_SECTION};
use super::names::{MARKER_SECTION, Names};
use super::relocations::Pointer;
use super::tables::{self, Offsets, SectionTable};
use super::view::Window;
use crate::edit::{BinaryPlan, PlanBuilder};
use crate::fatbin::wrapper::{HIPF_MAGIC, HIPK_MAGIC, WRAPPER_BINARY, WRAPPER_RESERVED1};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Plans the rewrite of the file that `layout` was located in. `marker` is the content of `.rocm_kpack_ref`. The
/// code-object index of a wrapper is its place in [`ElfLayout::wrappers`].
///
/// Reads the wrappers, a few bytes around the tables that grow, and what has to move (8 MiB at most); never a bundle.
///
/// # Errors
/// A [`Fault`] of kind [`Unsupported`](crate::fault::FaultKind::Unsupported) if something overlaps a bundle
/// section, or if the marker fits nowhere.
pub fn plan(source: &mut dyn ReadAt, layout: &ElfLayout, marker: &[u8]) -> Result<BinaryPlan> {
    let view = &layout.view;
    let marker_len = marker.len() as u64;
    if marker.is_empty() {
        return Err(Fault::unsupported(MARKER_SECTION, None, "the marker is empty"));
    }
    let arrangement = Arrangement::find(source, layout, marker_len)?;
    let mut edits = PlanBuilder::new(view.length);
    let mut verify: Vec<Range<u64>> = Vec::new();
    // What moves stands at the front of the file, what the rest reads behind the bundles: reading goes forward.
    edit_bundles(source, &arrangement, marker, &mut edits)?;
    let has_sections = !view.sections.is_empty();
    let names = if has_sections { Names::plan(source, view)? } else { Names::default() };
    let cuts: Vec<Range<u64>> =
        arrangement.holes.in_file_order().into_iter().map(|hole| hole.file.clone()).collect();
    let offsets = Offsets {
        all: names.shifts(&cuts),
        cuts: super::holes::Shifts::new(cuts.iter().map(|cut| (cut.clone(), 0)).collect()),
    };

    let segments = tables::segments(view, &arrangement, &offsets);
    let sections = tables::sections(layout, &arrangement, &offsets, &names, marker_len);
    let mut header = view.header.clone();
    header.segments_at = offsets.all.map(header.segments_at);
    let section_table = SectionTable::place(view, &offsets);
    header.sections_at = match section_table {
        SectionTable::InPlace => offsets.all.map(header.sections_at),
        SectionTable::AtEnd { at, .. } => at,
    };
    header.segment_count =
        u16::try_from(segments.len()).ok().filter(|&count| count < PN_XNUM).ok_or_else(|| {
            Fault::unsupported("program header table", view.header.segments_at, "the table is full")
        })?;
    edits.replace(0, header.to_bytes());
    verify.push(0..FILE_HEADER_LEN);

    let raw: Vec<_> = segments.iter().map(Segment::to_raw).collect();
    let table = pod::bytes_of_slice(&raw);
    let table_at = view.header.segments_at;
    edits.replace(table_at, table);
    let table_end = table_at + table.len() as u64;
    let vacated = arrangement.room.moved.last().map_or(0, |block| block.file.end);
    edits.zero(table_end..vacated.max(table_end));
    verify.push(header.segments_at..header.segments_at + table.len() as u64);

    for (at, bytes) in &names.inserts {
        edits.insert(*at, bytes.clone());
    }
    for drop in &names.drops {
        edits.drop(drop.clone());
    }
    if has_sections {
        let raw: Vec<_> = sections.iter().map(Section::to_raw).collect();
        let table = pod::bytes_of_slice(&raw);
        match section_table {
            SectionTable::InPlace => edits.replace(view.header.sections_at, table),
            SectionTable::AtEnd { padding, .. } => {
                let padding = usize::try_from(padding).unwrap_or(0);
                edits.insert(view.length, [vec![0; padding].as_slice(), table].concat())
            }
        };
        verify.push(header.sections_at..header.sections_at + table.len() as u64);

        let table = &sections[view.names];
        let name_at = table.offset + u64::from(names.name);
        verify.push(name_at..table.offset + names.size);
    }

    for bundle in &arrangement.bundles {
        let end = (bundle.file.start + marker_len).min(bundle.file.end);
        verify.push(offsets.all.map(bundle.file.start)..offsets.all.map(end));
    }
    // Without section headers only the wrappers lead to the marker, which need not be where its bundle started.
    for &address in arrangement.markers.iter().flatten() {
        let at = tables::file_offset(&arrangement, &offsets, address);
        verify.push(at..at + marker_len);
    }
    for &index in &layout.bundle_indices {
        verify.push(sections[index].offset..sections[index].file_end());
    }
    for (block, &to) in arrangement.room.moved.iter().zip(&arrangement.moved_to) {
        let at = tables::file_offset(&arrangement, &offsets, to);
        verify.push(at..at + block.len());
        for &value_at in &block.dynamic {
            edits.replace(value_at, to.to_le_bytes());
            let at = offsets.all.map(value_at);
            verify.push(at - 8..at + 8);
        }
    }
    edit_wrappers(source, layout, arrangement.marker, &offsets, &mut edits, &mut verify)?;

    Ok(BinaryPlan { edits: edits.finish()?, verify, notes: arrangement.notes })
}

/// Marker, moved blocks and zeros in the room of each bundle section; the hole leaves.
fn edit_bundles(
    source: &mut dyn ReadAt,
    arrangement: &Arrangement,
    marker: &[u8],
    edits: &mut PlanBuilder,
) -> Result<()> {
    for ((bundle, hole), address) in
        arrangement.bundles.iter().zip(&arrangement.holes.holes).zip(&arrangement.markers)
    {
        let to_file = |address: u64| bundle.file.start + (address - bundle.address);
        let mut contents: Vec<(u64, Vec<u8>)> = Vec::new();
        if let Some(address) = address {
            contents.push((to_file(*address), marker.to_vec()));
            if *address == arrangement.marker {
                for (block, &to) in arrangement.room.moved.iter().zip(&arrangement.moved_to) {
                    contents
                        .push((to_file(to), source.read_vec(block.file.start, block.len(), "moved block")?));
                }
            }
        }
        if let Some(hole) = hole {
            edits.drop(hole.file.clone());
        }
        // Everything else is zeroed, on both sides of the hole.
        let mut done = bundle.file.start;
        let mut kept: Vec<(Range<u64>, Option<Vec<u8>>)> = contents
            .into_iter()
            .map(|(at, bytes)| (at..at + bytes.len() as u64, Some(bytes)))
            .chain(hole.iter().map(|hole| (hole.file.clone(), None)))
            .collect();
        kept.sort_by_key(|(range, _)| range.start);
        for (range, bytes) in kept {
            edits.zero(done..range.start);
            done = range.end;
            if let Some(bytes) = bytes {
                edits.replace(range.start, bytes);
            }
        }
        edits.zero(done..bundle.file.end.max(done));
    }
    Ok(())
}

/// Magic, pointer and index of every HIPF wrapper, and the relocation entry of its pointer.
fn edit_wrappers(
    source: &mut dyn ReadAt,
    layout: &ElfLayout,
    marker: u64,
    offsets: &Offsets,
    edits: &mut PlanBuilder,
    verify: &mut Vec<Range<u64>>,
) -> Result<()> {
    let machine = layout.view.machine()?;
    let mut window = Window::new(source);
    for (index, (wrapper, pointer)) in layout.wrappers.iter().zip(&layout.pointers).enumerate() {
        if wrapper.magic != HIPF_MAGIC {
            continue;
        }
        edits.replace(wrapper.offset, HIPK_MAGIC.to_le_bytes());
        let in_place = wrapper.offset + WRAPPER_BINARY;
        let must_write = match pointer {
            Pointer::InPlace | Pointer::Relr => true,
            // The loader ignores these bytes. Where a linker has filled them, tools may read them.
            Pointer::Rela { .. } => window.get::<8>(in_place, WRAPPER_SECTION)? != [0; 8],
        };
        if must_write {
            edits.replace(in_place, marker.to_le_bytes());
        }
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        edits.replace(wrapper.offset + WRAPPER_RESERVED1, index.to_le_bytes());
        let at = offsets.all.map(wrapper.offset);
        verify.push(at..at + crate::fatbin::wrapper::WRAPPER_LEN);
        if let Pointer::Rela { entry, rela } = *pointer {
            let relative = Rela { symbol: 0, kind: machine.relative, addend: marker, ..rela };
            edits.replace(entry, relative.to_bytes());
            let at = offsets.all.map(entry);
            verify.push(at..at + RELA_LEN);
        }
    }
    Ok(())
}
