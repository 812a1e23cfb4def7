//! The program header table and the section header table of the output.

use super::arrange::Arrangement;
use super::headers::*;
use super::holes::{Hole, Shifts, overlaps};
use super::locate::ElfLayout;
use super::names::Names;
use super::view::ElfView;

/// The shifts of a file: of everything, and of the holes alone.
pub(super) struct Offsets {
    pub(super) all: Shifts,
    /// Congruent to addresses at any p_align: for what has a file offset and no bytes there.
    pub(super) cuts: Shifts,
}

impl Offsets {
    fn of(&self, offset: u64, file_size: u64) -> u64 {
        if file_size > 0 { self.all.map(offset) } else { self.cuts.map(offset) }
    }
}

/// Where the section header table goes.
pub(super) enum SectionTable {
    /// It is replaced where it stands.
    InPlace,
    /// patchelf can leave it inside a PT_LOAD. What is mapped must not change, so that a new table is written behind
    /// the last byte of the file, with this much padding before it.
    AtEnd {
        /// Bytes of padding that align it.
        padding: u64,
        /// Its offset in the output.
        at: u64,
    },
}

impl SectionTable {
    pub(super) fn place(view: &ElfView, offsets: &Offsets) -> Self {
        let table = view.section_table();
        let mut loads = view.loads().map(|(_, load)| load).filter(|load| load.file_size > 0);
        if !loads.any(|load| overlaps(&(load.offset..load.file_end()), &table)) {
            return Self::InPlace;
        }
        let end = offsets.all.map(view.length);
        let at = end.next_multiple_of(8);
        Self::AtEnd { padding: at - end, at }
    }
}

/// The new program headers, PT_PHDR's size included.
pub(super) fn segments(view: &ElfView, arrangement: &Arrangement, offsets: &Offsets) -> Vec<Segment> {
    let mut table = Vec::with_capacity(view.segments.len() + arrangement.holes.extra_headers());
    for (index, segment) in view.segments.iter().enumerate() {
        if arrangement.room.dropped.contains(&index) {
            continue;
        }
        if segment.is_load() {
            pieces(index, segment, arrangement, offsets, &mut table);
            continue;
        }
        let mut moved = segment.clone();
        moved.offset = offsets.of(segment.offset, segment.file_size);
        let blocks = arrangement.room.moved.iter().zip(&arrangement.moved_to);
        if let Some((block, &to)) = { blocks }.find(|(block, _)| block.segments.contains(&index)) {
            moved.offset = file_offset(arrangement, offsets, to) + (segment.offset - block.file.start);
            let delta = to.wrapping_sub(block.address);
            moved.address = segment.address.wrapping_add(delta);
            moved.physical = segment.physical.wrapping_add(delta);
        }
        table.push(moved);
    }
    let size = table.len() as u64 * SEGMENT_LEN;
    let old = view.segment_table();
    for segment in table.iter_mut().filter(|segment| segment.kind == PT_PHDR) {
        // One that only claims to be the table stays as long as it is.
        if segment.offset == old.start && segment.file_size == old.end - old.start {
            segment.file_size = size;
            segment.memory_size = size;
        }
    }
    table
}

/// The parts of a PT_LOAD that its holes leave.
fn pieces(
    index: usize,
    load: &Segment,
    arrangement: &Arrangement,
    offsets: &Offsets,
    table: &mut Vec<Segment>,
) {
    let bundles = arrangement.bundles.iter().zip(&arrangement.holes.holes);
    let mut holes: Vec<&Hole> =
        bundles.filter(|(bundle, _)| bundle.load == index).filter_map(|(_, hole)| hole.as_ref()).collect();
    holes.sort_by_key(|hole| hole.address);
    let file_end = load.address + load.file_size;
    let mut push = |start: u64, end: u64| {
        let within = start - load.address;
        let file_size = end.min(file_end).saturating_sub(start);
        let offset = offsets.of(load.offset + within, file_size);
        let shifted = offset != load.offset || within > 0;
        table.push(Segment {
            offset,
            address: start,
            physical: load.physical.wrapping_add(within),
            file_size,
            memory_size: end - start,
            align: match arrangement.holes.lowered {
                Some(align) if shifted => load.align.min(align),
                _ => load.align,
            },
            ..load.clone()
        });
    };
    let mut start = load.address;
    for hole in &holes {
        if hole.address > start {
            push(start, hole.address);
        }
        start = hole.address_end();
    }
    if start < load.memory_end() || holes.is_empty() {
        push(start, load.memory_end());
    }
}

/// The new section headers: same count, same order.
pub(super) fn sections(
    layout: &ElfLayout,
    arrangement: &Arrangement,
    offsets: &Offsets,
    names: &Names,
    marker_len: u64,
) -> Vec<Section> {
    let view = &layout.view;
    let mut table = view.sections.clone();
    for section in table.iter_mut().skip(1) {
        section.offset = offsets.all.map(section.offset);
    }
    for (block, &to) in arrangement.room.moved.iter().zip(&arrangement.moved_to) {
        for &index in &block.sections {
            let within = view.sections[index].offset - block.file.start;
            table[index].address = to + within;
            table[index].offset = file_offset(arrangement, offsets, to) + within;
        }
    }
    for ((&index, bundle), marker) in
        layout.bundle_indices.iter().zip(&arrangement.bundles).zip(&arrangement.markers)
    {
        let address = marker.unwrap_or(bundle.address);
        let section = &mut table[index];
        section.name = names.name;
        section.address = address;
        section.offset = offsets.all.map(bundle.file.start + (address - bundle.address));
        section.size = marker.map_or(0, |_| marker_len);
    }
    if let Some(section) = table.get_mut(view.names) {
        section.size = names.size;
        if names.copied {
            section.offset = offsets.all.map(view.length) - names.size;
        }
    }
    table
}

/// The output offset of an address in a bundle section's room.
pub(super) fn file_offset(arrangement: &Arrangement, offsets: &Offsets, address: u64) -> u64 {
    let bundle =
        arrangement.bundles.iter().find(|bundle| address.wrapping_sub(bundle.address) < bundle.len());
    bundle.map_or(0, |bundle| offsets.all.map(bundle.file.start + (address - bundle.address)))
}
