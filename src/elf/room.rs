//! Room for more program headers: the table must stay where it is, so its neighbours have to make way.
//!
//! A table that moves breaks patchelf before 0.19, GNU strip, and executables on kernels before 5.18, which take
//! AT_PHDR to be load bias + e_phoff. So room is found, in this order, in
//!
//! 1. unused headers (PT_NULL);
//! 2. the gap behind the table, if it belongs to nothing and holds padding;
//! 3. PT_PHDR, which a shared object does not need: only a program's start-up code looks for it;
//! 4. the place of what stands directly behind the table, if that can move into the kept front of a bundle section:
//!    notes (all of one PT_NOTE together), `.interp`, and the tables that `.dynamic` names;
//! 5. PT_PHDR of a statically linked program. GNU ld writes none there, so that no start-up code relies on it. With
//!    PT_INTERP, the dynamic linker takes the load bias from PT_PHDR, and it stays.

use std::ops::Range;

use super::headers::*;
use super::holes::overlaps;
use super::view::ElfView;
use crate::fault::Result;
use crate::source::ReadAt;

/// At most this many bytes move: they are held in memory.
const MAX_MOVED: u64 = 8 << 20;

/// Once something moves, room for this many more headers is left behind the table if it costs at most
/// [`MAX_SPARE_MOVED`]. patchelf adds a header or two and makes room for them by moving the first sections of the
/// section header table, up to one that stands elsewhere: a moved one stops it, and it would overwrite what follows
/// the table.
const SPARE: u64 = 12;

/// At most this many bytes move for the sake of spare room alone.
const MAX_SPARE_MOVED: u64 = 1 << 20;

/// What a gap may hold to count as unused: padding, and what patchelf writes where a section was ('Z' since 0.19).
const UNUSED: [u8; 3] = [0, b'X', b'Z'];

/// Something that moves as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Its bytes in the input file.
    pub(super) file: Range<u64>,
    /// Its old address.
    pub(super) address: u64,
    /// The new address is congruent to the old one modulo this.
    pub(super) align: u64,
    /// Sections, segments (by index) and `d_val`s (by file offset) that name it.
    pub(super) sections: Vec<usize>,
    pub(super) segments: Vec<usize>,
    pub(super) dynamic: Vec<u64>,
}

impl Block {
    pub(super) fn len(&self) -> u64 {
        self.file.end - self.file.start
    }
}

/// How the program header table gets longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Headers that go, by index.
    pub(super) dropped: Vec<usize>,
    /// What moves away from behind the table, in file order.
    pub(super) moved: Vec<Block>,
}

impl Room {
    /// Finds room for `extra` more headers; `None` if there is not enough.
    pub(super) fn find(
        source: &mut dyn ReadAt,
        view: &ElfView,
        extra: usize,
        may_move: bool,
    ) -> Result<Option<Self>> {
        let unused = view.segments.iter().enumerate().filter(|(_, segment)| segment.kind == PT_NULL);
        let mut dropped: Vec<usize> = unused.map(|(index, _)| index).take(extra).collect();
        let missing = extra - dropped.len();
        if missing == 0 {
            return Ok(Some(Self { dropped, moved: Vec::new() }));
        }
        if let Some(moved) = make_way(source, view, missing as u64 * SEGMENT_LEN, false)? {
            return Ok(Some(Self { dropped, moved }));
        }
        let phdr = view.segments.iter().position(|segment| segment.kind == PT_PHDR);
        let phdr = phdr.filter(|_| view.segments.iter().all(|segment| segment.kind != PT_INTERP));
        if let Some(index) = phdr
            && !is_program(view)
        {
            dropped.push(index);
        }
        let missing = extra - dropped.len();
        let moved = match missing {
            0 => Some(Vec::new()),
            _ => make_way(source, view, missing as u64 * SEGMENT_LEN, may_move)?,
        };
        if let Some(moved) = moved {
            return Ok(Some(Self { dropped, moved }));
        }
        match phdr.filter(|index| !dropped.contains(index)) {
            Some(index) if missing == 1 => {
                dropped.push(index);
                Ok(Some(Self { dropped, moved: Vec::new() }))
            }
            _ => Ok(None),
        }
    }
}

/// Whether a file without PT_INTERP is a program: ET_EXEC, or by DF_1_PIE a static PIE.
fn is_program(view: &ElfView) -> bool {
    view.header.kind == ET_EXEC
        || view.dynamic.iter().any(|entry| entry.tag == DT_FLAGS_1 && entry.value & DF_1_PIE != 0)
}

/// What must move so that `growth` bytes behind the table are free; `None` if something there cannot.
fn make_way(
    source: &mut dyn ReadAt,
    view: &ElfView,
    growth: u64,
    may_move: bool,
) -> Result<Option<Vec<Block>>> {
    // Without section headers nobody knows what stands there.
    if view.sections.is_empty() {
        return Ok(None);
    }
    let table = view.segment_table();
    let Some(needed) = table.end.checked_add(growth).filter(|&end| end <= view.length) else {
        return Ok(None);
    };
    // A table that is mapped must stay so, and must not grow into another segment.
    let grown = table.start..needed;
    let mut touched = view.loads().filter(|(_, load)| overlaps(&(load.offset..load.file_end()), &grown));
    if touched.any(|(_, load)| load.offset > table.start || load.file_end() < needed) {
        return Ok(None);
    }
    let mut blocks: Vec<Block> = Vec::new();
    // Whether `blocks` free what is needed; the rest is spare.
    let mut enough = false;
    let mut free = table.end;
    loop {
        let spare = if blocks.is_empty() || view.header.kind == ET_EXEC { 0 } else { SPARE * SEGMENT_LEN };
        let wanted = needed.saturating_add(spare);
        let Some(next) = next_user(view, free) else {
            break;
        };
        let gap = free..next.start().min(wanted);
        if gap.start < gap.end {
            let bytes =
                source.read_vec(gap.start, gap.end - gap.start, "gap behind the program header table")?;
            if bytes.iter().any(|byte| !UNUSED.contains(byte)) {
                break;
            }
        }
        if next.start() >= needed && !enough {
            enough = true;
        }
        if next.start() >= wanted {
            break;
        }
        let User::Section(index, _) = next else {
            break;
        };
        let block = if may_move { movable(view, index) } else { None };
        let Some(block) = block.filter(|block| block.file.start == next.start()) else {
            break;
        };
        let moved: u64 = blocks.iter().chain([&block]).map(Block::len).sum();
        if moved > if enough { MAX_SPARE_MOVED } else { MAX_MOVED } {
            break;
        }
        free = block.file.end;
        blocks.push(block);
    }
    Ok(enough.then_some(blocks))
}

/// Who uses the first used byte at or behind some offset.
enum User {
    /// A section, by index; with its start in the file.
    Section(usize, u64),
    /// Anything else.
    Other(u64),
}

impl User {
    fn start(&self) -> u64 {
        match self {
            User::Section(_, at) | User::Other(at) => *at,
        }
    }
}

/// The first user of the file at or behind `free`; `None` if one stands across it.
fn next_user(view: &ElfView, free: u64) -> Option<User> {
    let mut next = User::Other(view.length);
    let sections = view.section_table();
    let segments = view.segments.iter().filter(|segment| !segment.is_load() && segment.file_size > 0);
    let others = segments
        .filter(|segment| !matches!(segment.kind, PT_NULL | PT_PHDR | PT_GNU_RELRO))
        .map(|segment| segment.offset..segment.file_end())
        .chain([sections]);
    for other in others {
        if other.start < free && other.end > free {
            return None;
        }
        if other.start >= free && other.start < next.start() {
            next = User::Other(other.start);
        }
    }
    for (index, section) in view.sections.iter().enumerate().filter(|(_, section)| section.in_file()) {
        if section.offset < free && section.file_end() > free {
            return None;
        }
        if section.offset >= free && section.offset <= next.start() {
            next = User::Section(index, section.offset);
        }
    }
    Some(next)
}

/// Whether a tag of `.dynamic` holds the address of something that could move.
pub(super) fn is_address(tag: i64) -> bool {
    matches!(
        tag,
        DT_STRTAB
            | DT_SYMTAB
            | DT_HASH
            | DT_GNU_HASH
            | DT_VERSYM
            | DT_VERNEED
            | DT_RELA
            | DT_JMPREL
            | DT_RELR
    )
}

/// The block that section `index` moves with, if it may move.
fn movable(view: &ElfView, index: usize) -> Option<Block> {
    let section = view.sections.get(index)?;
    if !section.is_allocated() || !view.is_mapped(section) || !section.align.max(1).is_power_of_two() {
        return None;
    }
    let own = section.offset..section.file_end();
    let mut block = Block {
        file: own.clone(),
        address: section.address,
        align: section.align.max(1),
        sections: vec![index],
        segments: Vec::new(),
        dynamic: Vec::new(),
    };
    let tag = match section.kind {
        SHT_NOTE => {
            gather_notes(view, &mut block)?;
            None
        }
        SHT_GNU_HASH => Some(DT_GNU_HASH),
        SHT_HASH => Some(DT_HASH),
        SHT_DYNSYM => Some(DT_SYMTAB),
        SHT_GNU_VERSYM => Some(DT_VERSYM),
        SHT_GNU_VERNEED => Some(DT_VERNEED),
        SHT_STRTAB => Some(DT_STRTAB),
        _ => {
            let is_own = |segment: &Segment| {
                segment.kind == PT_INTERP && segment.offset == own.start && segment.file_end() == own.end
            };
            block.segments.push(view.segments.iter().position(is_own)?);
            None
        }
    };
    if let Some(tag) = tag {
        let entry = view.dynamic_entry(tag).filter(|entry| entry.value == section.address)?;
        block.dynamic.push(entry.value_at);
    }
    if block.align > 0x1000 {
        return None;
    }
    // Whoever else names a byte of it would be left behind.
    let stranger = view.segments.iter().enumerate().any(|(index, segment)| {
        segment.kind != PT_NULL
            && !segment.is_load()
            && segment.file_size > 0
            && overlaps(&(segment.offset..segment.file_end()), &block.file)
            && !block.segments.contains(&index)
    }) || view.dynamic.iter().any(|entry| {
        is_address(entry.tag)
            && entry.value.wrapping_sub(block.address) < block.len()
            && !block.dynamic.contains(&entry.value_at)
    });
    (!stranger).then_some(block)
}

/// Grows `block`, a note section, to all notes that share a PT_NOTE or PT_GNU_PROPERTY with it. `None` if something
/// else is among them.
fn gather_notes(view: &ElfView, block: &mut Block) -> Option<()> {
    let address_of = block.address.wrapping_sub(block.file.start);
    loop {
        let before = block.file.clone();
        for (index, segment) in view.segments.iter().enumerate() {
            let range = segment.offset..segment.file_end();
            if matches!(segment.kind, PT_NOTE | PT_GNU_PROPERTY)
                && overlaps(&range, &block.file)
                && !block.segments.contains(&index)
            {
                if segment.address.wrapping_sub(segment.offset) != address_of
                    || !segment.align.max(1).is_power_of_two()
                {
                    return None;
                }
                block.file = block.file.start.min(range.start)..block.file.end.max(range.end);
                block.align = block.align.max(segment.align);
                block.segments.push(index);
            }
        }
        for (index, section) in view.sections.iter().enumerate() {
            let range = section.offset..section.file_end();
            if section.in_file() && overlaps(&range, &block.file) && !block.sections.contains(&index) {
                if section.kind != SHT_NOTE
                    || !section.is_allocated()
                    || !section.align.max(1).is_power_of_two()
                    || section.address.wrapping_sub(section.offset) != address_of
                {
                    return None;
                }
                block.file = block.file.start.min(range.start)..block.file.end.max(range.end);
                block.align = block.align.max(section.align);
                block.sections.push(index);
            }
        }
        if block.file == before {
            block.address = address_of.wrapping_add(block.file.start);
            return Some(());
        }
    }
}
