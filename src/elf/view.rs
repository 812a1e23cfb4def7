//! A parsed ELF file: headers, program headers, section headers, and look-ups over them.
//!
//! [`ElfView::parse`] is lenient: what cannot be a fat binary is `None`, so that any other file passes through a
//! split untouched. [`ElfView::check`] is strict, for a file that will be rewritten: after it, no range of a program
//! or section header ends past the file or wraps around, PT_LOADs ascend and do not overlap, and the `*_end` sums
//! in this module cannot saturate.

use std::collections::BTreeSet;

use object::elf;
use object::endian::LittleEndian as Le;

use super::headers::*;
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Tables are read in blocks of this many bytes.
pub(super) const BLOCK: u64 = 64 << 10;

/// More section headers than this (16 MiB of them) are refused: real files with very many sections are object
/// files, and the table is held in memory until the plan is made.
const MAX_SECTIONS: u64 = 1 << 18;

/// Smallest page of any machine, in bytes.
pub(super) const SMALLEST_PAGE: u64 = 0x1000;

/// `.dynamic` is read up to this many bytes; the largest seen have some 200 entries.
const MAX_DYNAMIC: u64 = 1 << 20;

/// One entry of `.dynamic`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DynamicEntry {
    pub(super) tag: i64,
    pub(super) value: u64,
    /// File offset of `d_val`.
    pub(super) value_at: u64,
}

/// The headers of a file.
#[derive(Clone, Debug)]
pub(super) struct ElfView {
    pub(super) header: FileHeader,
    pub(super) segments: Vec<Segment>,
    /// Empty if the file has no section header table.
    pub(super) sections: Vec<Section>,
    /// Index of the section name string table; 0 without sections.
    pub(super) names: usize,
    /// Length of the file in bytes.
    pub(super) length: u64,
    /// `.dynamic` up to DT_NULL; empty until [`ElfView::read_dynamic`].
    pub(super) dynamic: Vec<DynamicEntry>,
}

impl ElfView {
    /// Reads the header and both tables. `None`: no 64-bit little-endian executable or shared object, or one whose
    /// section headers have no names or another size.
    ///
    /// # Errors
    /// A [`Fault`] if a table of a file for a machine that hosts GPUs ends past the end of the file: it is cut short, and
    /// what its sections are called cannot be told any more. (Other machines' files are data here.)
    pub(super) fn parse(source: &mut dyn ReadAt) -> Result<Option<Self>> {
        let length = source.len();
        if length < FILE_HEADER_LEN {
            return Ok(None);
        }
        let Some(header) = FileHeader::parse(&source.read_vec(0, FILE_HEADER_LEN, "ELF header")?) else {
            return Ok(None);
        };
        let in_file = |at: u64, size: u64| at.checked_add(size).is_some_and(|end| end <= length);
        let cut_short = |what: &str, field: u64, at: u64, size: Option<u64>| match Machine::of(header.machine)
        {
            Err(_) => Ok(None),
            Ok(_) => {
                let end = size
                    .and_then(|size| at.checked_add(size))
                    .map_or("2^64".to_owned(), |end| format!("{end:#x}"));
                let message = format!(
                    "the {what} is at {at:#x}..{end} by the header, the file has {length:#x} bytes: it is cut short"
                );
                Err(Fault::malformed("ELF header", field, message))
            }
        };
        if !matches!(header.kind, ET_EXEC | ET_DYN) {
            return Ok(None);
        }
        let has_sections = header.sections_at != 0;
        if has_sections && u64::from(header.section_size) != SECTION_LEN {
            return Ok(None);
        }
        if has_sections && !in_file(header.sections_at, SECTION_LEN) {
            let size = u64::from(header.section_count.max(1)) * SECTION_LEN;
            return cut_short("section header table", 40, header.sections_at, Some(size));
        }
        let segments = match header.segment_count {
            0 => Vec::new(),
            count => {
                let size = u64::from(count) * SEGMENT_LEN;
                if u64::from(header.segment_size) != SEGMENT_LEN {
                    return Ok(None);
                }
                if !in_file(header.segments_at, size) {
                    return cut_short("program header table", 32, header.segments_at, Some(size));
                }
                let bytes = source.read_vec(header.segments_at, size, "program header table")?;
                records::<elf::ProgramHeader64<Le>>(&bytes).iter().map(Segment::parse).collect()
            }
        };
        if !has_sections {
            return Ok(Some(Self {
                header,
                segments,
                sections: Vec::new(),
                names: 0,
                length,
                dynamic: Vec::new(),
            }));
        }

        // Section 0 holds what does not fit in the ELF header's 16-bit fields (gABI, "Section Header", index 0).
        let bytes = source.read_vec(header.sections_at, SECTION_LEN, "section header 0")?;
        let Some(first) = record::<elf::SectionHeader64<Le>>(&bytes, 0).map(Section::parse) else {
            return Ok(None);
        };
        let count = match header.section_count {
            0 => first.size,
            count => u64::from(count),
        };
        let names = match header.names_index {
            SHN_XINDEX => u64::from(first.link),
            index => u64::from(index),
        };
        let size = count.checked_mul(SECTION_LEN);
        let Some(size) = size.filter(|&size| in_file(header.sections_at, size)) else {
            return cut_short("section header table", 40, header.sections_at, size);
        };
        if names == 0 || names >= count {
            return Ok(None);
        }
        if count > MAX_SECTIONS {
            return Err(Fault::unsupported(
                "section header table",
                header.sections_at,
                format!("{count} sections, at most {MAX_SECTIONS} are supported"),
            ));
        }
        let bytes = source.read_vec(header.sections_at, size, "section header table")?;
        let sections: Vec<Section> =
            records::<elf::SectionHeader64<Le>>(&bytes).iter().map(Section::parse).collect();
        let names = usize::try_from(names).unwrap_or(usize::MAX);
        match sections.get(names) {
            Some(table) if !table.in_file() => return Ok(None),
            Some(table) if !in_file(table.offset, table.size) => {
                return cut_short("section name string table", 62, table.offset, Some(table.size));
            }
            _ => {}
        }
        Ok(Some(Self { header, segments, sections, names, length, dynamic: Vec::new() }))
    }

    /// For each of `wanted`, the indices of the sections of that name. Reads the name table in blocks and holds none
    /// of it, since it can be the symbols' string table, of any size. The file must have sections.
    pub(super) fn find_sections<const N: usize>(
        &self,
        source: &mut dyn ReadAt,
        wanted: [&str; N],
    ) -> Result<[Vec<usize>; N]> {
        let table = &self.sections[self.names];
        let patterns = wanted.map(|name| [name.as_bytes(), b"\0"].concat());
        let overlap = patterns.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1) as u64;
        // A name may be the tail of another, so that every occurrence counts, not only those after a NUL.
        let mut places: [BTreeSet<u64>; N] = std::array::from_fn(|_| BTreeSet::new());
        let mut at = 0;
        while at < table.size {
            let size = (BLOCK + overlap).min(table.size - at);
            let bytes = source.read_vec(table.offset + at, size, "section name string table")?;
            for (pattern, places) in patterns.iter().zip(&mut places) {
                let hits = bytes.windows(pattern.len()).enumerate().filter(|(_, window)| window == pattern);
                places.extend(hits.map(|(index, _)| at + index as u64));
            }
            at += BLOCK;
        }
        Ok(places.map(|places| {
            let named = |section: &Section| places.contains(&u64::from(section.name));
            (1..self.sections.len()).filter(|&index| named(&self.sections[index])).collect()
        }))
    }

    /// What section `index` is called, for messages: its name, or its index where the name cannot be read.
    pub(super) fn section_label(&self, source: &mut dyn ReadAt, index: usize) -> String {
        let mut name = || {
            let table = &self.sections[self.names];
            let at = u64::from(self.sections.get(index)?.name);
            let size = table.size.checked_sub(at)?.min(64);
            let bytes = source.read_vec(table.offset.checked_add(at)?, size, "section name").ok()?;
            let end = bytes.iter().position(|&byte| byte == 0).filter(|&end| end > 0)?;
            let name = String::from_utf8_lossy(&bytes[..end]);
            Some(format!("section {}", name.escape_default()))
        };
        name().unwrap_or_else(|| format!("section {index}"))
    }

    /// The machine's facts.
    pub(super) fn machine(&self) -> Result<Machine> {
        Machine::of(self.header.machine)
    }

    /// The PT_LOADs, in table order, with their indices.
    pub(super) fn loads(&self) -> impl DoubleEndedIterator<Item = (usize, &Segment)> {
        self.segments.iter().enumerate().filter(|(_, segment)| segment.is_load())
    }

    /// File offset of the byte that a PT_LOAD maps at `address`; `None` for memory without file bytes.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.loads().find_map(|(_, load)| {
            let within = address.checked_sub(load.address)?;
            (within < load.file_size).then(|| load.offset + within)
        })
    }

    /// Whether the bytes of a section in the file are what a PT_LOAD maps at its address.
    pub(super) fn is_mapped(&self, section: &Section) -> bool {
        self.loads().any(|(_, load)| {
            section.address >= load.address
                && section.memory_end() <= load.address.saturating_add(load.file_size)
                && section.address - load.address == section.offset.wrapping_sub(load.offset)
        })
    }

    /// The only entry of `.dynamic` with `tag`; `None` if there is none, or more than one.
    pub(super) fn dynamic_entry(&self, tag: i64) -> Option<DynamicEntry> {
        let mut entries = self.dynamic.iter().filter(|entry| entry.tag == tag);
        let first = *entries.next()?;
        entries.next().is_none().then_some(first)
    }

    /// The file bytes of the program header table.
    pub(super) fn segment_table(&self) -> std::ops::Range<u64> {
        let at = self.header.segments_at;
        at..at + self.segments.len() as u64 * SEGMENT_LEN
    }

    /// The file bytes of the section header table.
    pub(super) fn section_table(&self) -> std::ops::Range<u64> {
        let at = self.header.sections_at;
        at..at + self.sections.len() as u64 * SECTION_LEN
    }

    /// Reads `.dynamic` by PT_DYNAMIC.
    pub(super) fn read_dynamic(&mut self, source: &mut dyn ReadAt) -> Result<()> {
        let Some(segment) = self.segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
            return Ok(());
        };
        if segment.file_size > MAX_DYNAMIC {
            let message =
                format!("PT_DYNAMIC has {} bytes, at most {MAX_DYNAMIC} are supported", segment.file_size);
            return Err(Fault::unsupported("dynamic section", segment.offset, message));
        }
        let bytes = source.read_vec(segment.offset, segment.file_size, "dynamic section")?;
        let entries = records::<elf::Dyn64<Le>>(&bytes).iter().zip(0..);
        self.dynamic = entries
            .map(|(raw, index)| DynamicEntry {
                tag: raw.d_tag.get(Le).0,
                value: raw.d_val.get(Le),
                value_at: segment.offset + index * DYNAMIC_LEN + 8,
            })
            .take_while(|entry| entry.tag != DT_NULL)
            .collect();
        Ok(())
    }

    /// Checks what every later step relies on; see the module's head.
    pub(super) fn check(&self) -> Result<()> {
        if self.header.segment_count == PN_XNUM {
            return Err(Fault::unsupported("ELF header", 56, "more than 65534 program headers"));
        }
        let mut previous: Option<&Segment> = None;
        for (index, segment) in self.segments.iter().enumerate() {
            let place = || format!("program header {index} ({})", segment.name());
            let at = self.header.segments_at + index as u64 * SEGMENT_LEN;
            if segment.kind == PT_NULL {
                continue;
            }
            let file_end = segment.offset.checked_add(segment.file_size);
            if file_end.is_none_or(|end| segment.file_size > 0 && end > self.length) {
                return Err(Fault::malformed(
                    place(),
                    at,
                    format!(
                        "{:#x} bytes at offset {:#x} end past the end of the file at {:#x}",
                        segment.file_size, segment.offset, self.length
                    ),
                ));
            }
            if segment.address.checked_add(segment.memory_size).is_none() {
                return Err(Fault::malformed(place(), at, "the address range wraps around"));
            }
            if !segment.is_load() {
                continue;
            }
            if segment.file_size > segment.memory_size {
                return Err(Fault::malformed(
                    place(),
                    at,
                    format!("p_filesz {:#x} exceeds p_memsz {:#x}", segment.file_size, segment.memory_size),
                ));
            }
            // Loaders map pages and ask for no more than congruence modulo a page: mold raises p_align to the largest
            // alignment of a section without placing the bytes in the file by it.
            let modulus = segment.align.min(SMALLEST_PAGE);
            if segment.align > 1
                && (!segment.align.is_power_of_two()
                    || segment.address.wrapping_sub(segment.offset) & (modulus - 1) != 0)
            {
                return Err(Fault::unsupported(
                    place(),
                    at,
                    format!(
                        "p_offset {:#x} and p_vaddr {:#x} are not congruent modulo {modulus:#x} (p_align is {:#x})",
                        segment.offset, segment.address, segment.align
                    ),
                ));
            }
            if let Some(previous) = previous
                && segment.address < previous.memory_end()
            {
                return Err(Fault::unsupported(
                    place(),
                    at,
                    format!(
                        "starts at address {:#x}, before the end of the PT_LOAD before it at {:#x}",
                        segment.address,
                        previous.memory_end()
                    ),
                ));
            }
            previous = Some(segment);
        }
        for (index, section) in self.sections.iter().enumerate().skip(1) {
            let at = self.header.sections_at + index as u64 * SECTION_LEN;
            if section.in_file()
                && section.offset.checked_add(section.size).is_none_or(|end| end > self.length)
            {
                return Err(Fault::malformed(
                    format!("section header {index}"),
                    at,
                    format!(
                        "{:#x} bytes at offset {:#x} end past the end of the file at {:#x}",
                        section.size, section.offset, self.length
                    ),
                ));
            }
            if section.in_memory() && section.address.checked_add(section.size).is_none() {
                return Err(Fault::malformed(
                    format!("section header {index}"),
                    at,
                    "the address range wraps around",
                ));
            }
        }
        Ok(())
    }
}

/// A forward-moving window over a source, for tables that are walked entry by entry.
pub(super) struct Window<'source> {
    source: &'source mut dyn ReadAt,
    start: u64,
    bytes: Vec<u8>,
}

impl<'source> Window<'source> {
    pub(super) fn new(source: &'source mut dyn ReadAt) -> Self {
        Self { source, start: 0, bytes: Vec::new() }
    }

    /// The `N` bytes at `offset`.
    pub(super) fn get<const N: usize>(&mut self, offset: u64, place: &str) -> Result<[u8; N]> {
        if let Some(bytes) = self.cached(offset) {
            return Ok(bytes);
        }
        let left = self.source.len().saturating_sub(offset);
        self.bytes = self.source.read_vec(offset, left.min(BLOCK).max(N as u64), place)?;
        self.start = offset;
        self.cached(offset)
            .ok_or_else(|| Fault::unreadable(place, offset, format!("{N} bytes wanted, fewer came")))
    }

    fn cached<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}

/// Hands `take` the records of type `T` in `size` bytes from `offset` on, in blocks, each with its file offset.
pub(super) fn for_each_record<T: object::pod::Pod>(
    source: &mut dyn ReadAt,
    offset: u64,
    size: u64,
    place: &str,
    mut take: impl FnMut(u64, &T) -> Result<()>,
) -> Result<()> {
    let entry = size_of::<T>() as u64;
    let block = BLOCK / entry * entry;
    let end = size / entry * entry;
    let mut at = 0;
    while at < end {
        let size = block.min(end - at);
        let bytes = source.read_vec(offset.saturating_add(at), size, place)?;
        for (record, index) in records::<T>(&bytes).iter().zip(0u64..) {
            take(offset + at + index * entry, record)?;
        }
        at += size;
    }
    Ok(())
}
