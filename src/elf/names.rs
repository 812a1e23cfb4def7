//! A place in the section name string table for the one new name.
//!
//! The name goes right behind the table, which may be the symbols' string table as well and of any size: what is in
//! it keeps its offset and is never read. What follows in the file shifts by a few bytes, by a multiple of its own
//! alignment. Segments may follow (patchelf appends some behind the section headers): the padding before the first of
//! them gets shorter by as much, or longer up to a multiple of their p_align.

use std::ops::Range;

use super::headers::*;
use super::holes::{Shifts, overlaps};
use super::view::ElfView;
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// What the bundle section is called after a split.
pub(super) const MARKER_SECTION: &str = ".rocm_kpack_ref";

/// A table inside a PT_LOAD cannot grow in place; it is copied if it is not larger than this.
const MAX_COPY: u64 = 16 << 20;

/// At most this much padding is added to keep p_align of a segment behind the table: twice the largest page in use.
const MAX_PADDING: u64 = 4 << 20;

/// The new name table.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// Bytes that come in, at input offsets.
    pub(super) inserts: Vec<(u64, Vec<u8>)>,
    /// Padding that goes.
    pub(super) drops: Vec<Range<u64>>,
    /// Offset of the new name in the table.
    pub(super) name: u32,
    /// Size of the new table.
    pub(super) size: u64,
    /// Whether the table now stands at the very end of the file.
    pub(super) copied: bool,
}

impl Names {
    /// Plans the growth. Reads the table's last byte and the padding before a segment that follows.
    pub(super) fn plan(source: &mut dyn ReadAt, view: &ElfView) -> Result<Self> {
        const PLACE: &str = "section name string table";
        let table = &view.sections[view.names];
        let end = table.file_end();
        let last = source.read_vec(end - 1, 1, PLACE)?;
        let mut tail = Vec::new();
        if last != [0] {
            tail.push(0);
        }
        let at = table.size + tail.len() as u64;
        let name = u32::try_from(at).map_err(|_| {
            Fault::unsupported(
                PLACE,
                table.offset,
                "the table has 4 GiB, there is no offset for another name",
            )
        })?;
        tail.extend_from_slice(MARKER_SECTION.as_bytes());
        tail.push(0);
        let mut names = Self { name, size: table.size + tail.len() as u64, ..Self::default() };

        let own = table.offset..end;
        let mut loads = view.loads().map(|(_, load)| load).filter(|load| load.file_size > 0);
        if table.is_allocated() || loads.any(|load| overlaps(&(load.offset..load.file_end()), &own)) {
            if table.is_allocated() || table.size > MAX_COPY {
                return Err(Fault::unsupported(
                    PLACE,
                    table.offset,
                    "the table is part of a segment and cannot grow",
                ));
            }
            let mut copy = source.read_vec(table.offset, table.size, PLACE)?;
            copy.append(&mut tail);
            names.inserts.push((view.length, copy));
            names.copied = true;
            return Ok(names);
        }

        let users = || {
            let sections = view.sections.iter().filter(|section| section.in_file());
            let segments =
                view.segments.iter().filter(|segment| segment.kind != PT_NULL && segment.file_size > 0);
            sections
                .map(|section| section.offset..section.file_end())
                .chain(segments.map(|segment| segment.offset..segment.file_end()))
                .chain([view.section_table(), view.segment_table()])
        };
        let sections = view.sections.iter().enumerate().filter(|(_, section)| section.in_file());
        let mut others = sections.filter(|(index, _)| *index != view.names);
        if users().any(|user| user.start < end && user.end > end)
            || others.any(|(_, section)| overlaps(&(section.offset..section.file_end()), &own))
        {
            return Err(Fault::unsupported(
                PLACE,
                end,
                "something overlaps the table, so that it cannot grow",
            ));
        }
        let loads =
            || view.loads().map(|(_, load)| load).filter(|load| load.file_size > 0 && load.offset >= end);
        let barrier = loads().map(|load| load.offset).min();
        let between = |at: u64| at >= end && barrier.is_none_or(|barrier| at < barrier);
        let aligns = view.sections.iter().filter(|section| section.in_file() && between(section.offset));
        let align =
            aligns.map(|section| section.align).filter(|align| align.is_power_of_two() && *align <= 0x1000);
        let align = align.max().unwrap_or(1).max(if between(view.header.sections_at) { 8 } else { 1 });
        let shift = (tail.len() as u64).next_multiple_of(align);
        tail.resize(tail.len().max(usize::try_from(shift).unwrap_or(0)), 0);
        names.inserts.push((end, tail));
        let Some(barrier) = barrier else {
            return Ok(names);
        };

        let used = users().filter(|user| user.start < barrier).map(|user| user.end).max().unwrap_or(end);
        if barrier.checked_sub(used).is_some_and(|padding| padding >= shift) {
            let padding = source.read_vec(barrier - shift, shift, "padding before a segment")?;
            if padding.iter().all(|&byte| byte == 0) {
                names.drops.push(barrier - shift..barrier);
                return Ok(names);
            }
        }
        let align = loads().map(|load| load.align).max().unwrap_or(1).max(view.machine()?.page);
        if align > MAX_PADDING {
            return Err(Fault::unsupported(
                PLACE,
                end,
                format!(
                    "a segment that follows has alignment {align:#x}, at most {MAX_PADDING:#x} is supported"
                ),
            ));
        }
        let more = usize::try_from(shift.next_multiple_of(align) - shift).unwrap_or(0);
        names.inserts.push((barrier, vec![0; more]));
        Ok(names)
    }

    /// The shifts of the name table and of the holes (`cuts`) together.
    pub(super) fn shifts(&self, cuts: &[Range<u64>]) -> Shifts {
        let inserts = self.inserts.iter().map(|(at, bytes)| (*at..*at, bytes.len() as u64));
        let drops = self.drops.iter().chain(cuts).map(|drop| (drop.clone(), 0));
        Shifts::new(inserts.chain(drops).collect())
    }
}
