//! DOS, NT and section headers of a PE32+ file, and the loader's rules for how sections lie in memory and file.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe::{IMAGE_NT_OPTIONAL_HDR64_MAGIC, ImageDataDirectory, ImageNtHeaders64, ImageSectionHeader};
use object::pod;

use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Length of the DOS header; `e_lfanew`, the offset of the NT headers, is its last field.
pub(super) const DOS_HEADER_LEN: u64 = 64;
/// Offset of `e_lfanew`.
const E_LFANEW: usize = 60;
/// Length of the NT headers up to the data directories.
pub(super) const NT_HEADERS_LEN: usize = size_of::<ImageNtHeaders64>();
/// Length of the optional header up to the data directories.
const OPTIONAL_HEADER_LEN: u64 = 112;
/// Offset of the optional header from the start of the NT headers.
const OPTIONAL_HEADER_AT: u64 = 24;
/// Length of a section header.
pub(super) const SECTION_HEADER_LEN: u64 = size_of::<ImageSectionHeader>() as u64;
/// The loader looks at no data directory past the 16th.
const DIRECTORIES: u32 = 16;
/// `PointerToRawData` is rounded down to this by the loader, whatever FileAlignment says.
const SECTOR: u64 = 512;
/// Smallest page of every machine that PE32+ knows. Below it the loader maps the file flat.
const PAGE: u64 = 4096;

/// A data directory: a range of RVAs (of file offsets for the certificate table).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    /// RVA of the first byte.
    pub(super) rva: u32,
    /// Length in bytes; 0 if there is none.
    pub(super) size: u32,
}

impl Directory {
    /// The RVAs that it covers.
    pub(super) fn range(self) -> Range<u64> {
        let start = u64::from(self.rva);
        start..start + u64::from(self.size)
    }
}

/// A section header, its name resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// Name without padding; a `/123` name is replaced by the long name if it was looked up.
    pub(super) name: Vec<u8>,
    /// `VirtualSize`: bytes in memory, 0 for as many as there are raw bytes.
    pub(super) virtual_size: u32,
    /// `VirtualAddress`.
    pub(super) rva: u32,
    /// `SizeOfRawData`.
    pub(super) raw_size: u32,
    /// `PointerToRawData`, a file offset.
    pub(super) raw_offset: u32,
    /// `PointerToRelocations`, a file offset; 0 in an image.
    pub(super) relocations: u32,
    /// `NumberOfRelocations`.
    pub(super) relocation_count: u16,
    /// `PointerToLinenumbers`, a file offset.
    pub(super) line_numbers: u32,
    /// `NumberOfLinenumbers`.
    pub(super) line_number_count: u16,
    /// `Characteristics`.
    pub(super) flags: u32,
}

impl Section {
    fn new(raw: &ImageSectionHeader) -> Self {
        let length = raw.name.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Self {
            name: raw.name[..length].to_vec(),
            virtual_size: raw.virtual_size.get(LE),
            rva: raw.virtual_address.get(LE),
            raw_size: raw.size_of_raw_data.get(LE),
            raw_offset: raw.pointer_to_raw_data.get(LE),
            relocations: raw.pointer_to_relocations.get(LE),
            relocation_count: raw.number_of_relocations.get(LE),
            line_numbers: raw.pointer_to_linenumbers.get(LE),
            line_number_count: raw.number_of_linenumbers.get(LE),
            flags: raw.characteristics.get(LE).0,
        }
    }

    /// Bytes that the section has in memory, before rounding up to SectionAlignment.
    pub(super) fn span(&self) -> u64 {
        u64::from(if self.virtual_size == 0 { self.raw_size } else { self.virtual_size })
    }

    /// RVAs of the section, without the rounding.
    pub(super) fn rvas(&self) -> Range<u64> {
        let start = u64::from(self.rva);
        start..start + self.span()
    }

    /// The bytes of the file that hold it; empty if the loader reads none.
    pub(super) fn raw(&self) -> Range<u64> {
        let start = u64::from(self.raw_offset);
        if start == 0 || self.raw_size == 0 { 0..0 } else { start..start + u64::from(self.raw_size) }
    }

    /// How messages call the section.
    pub(super) fn label(&self) -> String {
        format!("section {}", self.name.escape_ascii())
    }
}

/// Everything before the sections' raw data that the rewrite knows about.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    /// Length of the file in bytes.
    pub(super) file_len: u64,
    /// Offset of the NT headers in the file.
    pub(super) nt_offset: u64,
    /// The bytes from the NT headers to the end of the section table.
    pub(super) block: Vec<u8>,
    /// The NT headers up to the data directories.
    pub(super) nt: ImageNtHeaders64,
    /// The data directories, 16 at most.
    pub(super) directories: Vec<Directory>,
    /// The section table.
    pub(super) sections: Vec<Section>,
    /// Whether the 40 bytes behind the section table are in the file and zero.
    pub(super) zeros_follow: bool,
}

impl Headers {
    /// Parses the headers. `None` if this is no PE32+ file, or one whose headers are not all there.
    pub(super) fn parse(source: &mut dyn ReadAt) -> Result<Option<Self>> {
        let file_len = source.len();
        if file_len < DOS_HEADER_LEN {
            return Ok(None);
        }
        let dos = source.read_vec(0, DOS_HEADER_LEN, "DOS header")?;
        let Ok((e_lfanew, _)) = pod::from_bytes::<object::U32<LE>>(&dos[E_LFANEW..]) else { return Ok(None) };
        let nt_offset = u64::from(e_lfanew.get(LE));
        if !super::is_pe(&dos) || nt_offset + NT_HEADERS_LEN as u64 > file_len {
            return Ok(None);
        }
        let nt_bytes = source.read_vec(nt_offset, NT_HEADERS_LEN as u64, "NT headers")?;
        let Ok((&nt, _)) = pod::from_bytes::<ImageNtHeaders64>(&nt_bytes) else { return Ok(None) };
        let optional_len = u64::from(nt.file_header.size_of_optional_header.get(LE));
        if nt.signature.get(LE) != object::pe::IMAGE_NT_SIGNATURE
            || nt.optional_header.magic.get(LE) != IMAGE_NT_OPTIONAL_HDR64_MAGIC
            || optional_len < OPTIONAL_HEADER_LEN
        {
            return Ok(None);
        }
        let count = u64::from(nt.file_header.number_of_sections.get(LE));
        let table_at = OPTIONAL_HEADER_AT + optional_len;
        let block_len = table_at + SECTION_HEADER_LEN * count;
        if nt_offset + block_len > file_len {
            return Ok(None);
        }
        // At most 2.7 MB: both lengths are 16-bit fields.
        let mut block = source.read_vec(nt_offset, block_len, "section table")?;
        let directory_count = u64::from(nt.optional_header.number_of_rva_and_sizes.get(LE).min(DIRECTORIES))
            .min((optional_len - OPTIONAL_HEADER_LEN) / size_of::<ImageDataDirectory>() as u64);
        let directories = block[NT_HEADERS_LEN..]
            .chunks_exact(size_of::<ImageDataDirectory>())
            .take(directory_count as usize)
            .filter_map(|bytes| pod::from_bytes::<ImageDataDirectory>(bytes).ok())
            .map(|(raw, _)| Directory { rva: raw.virtual_address.get(LE), size: raw.size.get(LE) })
            .collect();
        let sections = block[table_at as usize..]
            .chunks_exact(SECTION_HEADER_LEN as usize)
            .filter_map(|bytes| pod::from_bytes::<ImageSectionHeader>(bytes).ok())
            .map(|(raw, _)| Section::new(raw))
            .collect();
        let table_end = nt_offset + block_len;
        let zeros_follow = table_end + SECTION_HEADER_LEN <= file_len
            && source.read_vec(table_end, SECTION_HEADER_LEN, "section table")?.iter().all(|&byte| byte == 0);
        block.shrink_to_fit();
        Ok(Some(Self { file_len, nt_offset, block, nt, directories, sections, zeros_follow }))
    }

    /// Preferred address of RVA 0.
    pub(super) fn image_base(&self) -> u64 {
        self.nt.optional_header.image_base.get(LE)
    }

    /// `FileAlignment` in bytes.
    pub(super) fn file_alignment(&self) -> u64 {
        u64::from(self.nt.optional_header.file_alignment.get(LE))
    }

    /// `SectionAlignment` in bytes.
    pub(super) fn section_alignment(&self) -> u64 {
        u64::from(self.nt.optional_header.section_alignment.get(LE))
    }

    /// `SizeOfHeaders`: bytes of the file that are mapped at RVA 0.
    pub(super) fn size_of_headers(&self) -> u64 {
        u64::from(self.nt.optional_header.size_of_headers.get(LE))
    }

    /// Data directory `index`; an empty one if the file has fewer.
    pub(super) fn directory(&self, index: usize) -> Directory {
        self.directories.get(index).copied().unwrap_or(Directory { rva: 0, size: 0 })
    }

    /// Offset of the section table in `block`.
    pub(super) fn table_at(&self) -> usize {
        (OPTIONAL_HEADER_AT as usize) + usize::from(self.nt.file_header.size_of_optional_header.get(LE))
    }

    /// The 8 name bytes of section header `index` as they are in the file.
    pub(super) fn raw_name(&self, index: usize) -> Option<&[u8]> {
        self.block.get(self.table_at()..)?.chunks_exact(SECTION_HEADER_LEN as usize).nth(index)?.get(..8)
    }

    /// File offset of the first byte behind the section table.
    pub(super) fn table_end(&self) -> u64 {
        self.nt_offset + self.block.len() as u64
    }

    /// File offset of the first byte behind the last raw data of any section.
    pub(super) fn raw_end(&self) -> u64 {
        self.sections.iter().map(|section| section.raw().end).max().unwrap_or(0)
    }

    /// RVA of the first byte behind the last section, rounded up to SectionAlignment.
    pub(super) fn image_end(&self) -> u64 {
        self.sections
            .last()
            .map_or(0, |last| last.rvas().end.next_multiple_of(self.section_alignment().max(1)))
    }

    /// Fails unless the file is laid out as the loader demands: alignments it knows, sections ascending and
    /// without gaps in memory, raw data inside the file and without overlaps.
    pub(super) fn check_layout(&self) -> Result<()> {
        let (file_alignment, section_alignment) = (self.file_alignment(), self.section_alignment());
        let headers = "optional header";
        if !file_alignment.is_power_of_two() || !(SECTOR..=65536).contains(&file_alignment) {
            return Err(Fault::unsupported(
                headers,
                self.nt_offset,
                format!(
                    "FileAlignment is {file_alignment:#x}, expected a power of two from 0x200 to 0x10000"
                ),
            ));
        }
        if !section_alignment.is_power_of_two() || section_alignment < PAGE.max(file_alignment) {
            return Err(Fault::unsupported(
                headers,
                self.nt_offset,
                format!(
                    "SectionAlignment is {section_alignment:#x}, expected a power of two, at least a page and at \
                     least FileAlignment"
                ),
            ));
        }
        if self.nt_offset < DOS_HEADER_LEN {
            return Err(Fault::unsupported("NT headers", self.nt_offset, "they overlap the DOS header"));
        }
        if self.table_end() > self.size_of_headers() {
            return Err(Fault::malformed(
                "section table",
                self.table_end(),
                format!("it ends here, behind SizeOfHeaders {:#x}", self.size_of_headers()),
            ));
        }
        self.check_memory(section_alignment)?;
        self.check_file()
    }

    /// Sections follow each other in memory; the loader wants each to start where the one before ends.
    fn check_memory(&self, section_alignment: u64) -> Result<()> {
        let mut next = None;
        for section in &self.sections {
            let found = u64::from(section.rva);
            let least = next.unwrap_or(self.size_of_headers());
            if found < least || found % section_alignment != 0 {
                return Err(Fault::malformed(
                    section.label(),
                    None,
                    format!(
                        "VirtualAddress is {found:#x}, expected a multiple of {section_alignment:#x} not below \
                         {least:#x}, where the one before ends"
                    ),
                ));
            }
            if next.is_some_and(|next| found != next) {
                return Err(Fault::unsupported(
                    section.label(),
                    None,
                    format!(
                        "VirtualAddress is {found:#x}, the loader wants {least:#x}: no gap between sections"
                    ),
                ));
            }
            if section.span() == 0 {
                return Err(Fault::unsupported(section.label(), None, "it has neither memory nor raw data"));
            }
            next = Some(section.rvas().end.next_multiple_of(section_alignment));
        }
        let found = u64::from(self.nt.optional_header.size_of_image.get(LE));
        let end = self.image_end();
        if found.next_multiple_of(section_alignment) != end {
            return Err(Fault::malformed(
                "optional header",
                self.nt_offset,
                format!("SizeOfImage is {found:#x}, the sections end at {end:#x}"),
            ));
        }
        Ok(())
    }

    /// Raw data is behind the headers, inside the file, and no two sections share any.
    fn check_file(&self) -> Result<()> {
        let mut by_offset: Vec<&Section> =
            self.sections.iter().filter(|section| !section.raw().is_empty()).collect();
        by_offset.sort_by_key(|section| section.raw_offset);
        let mut end = self.size_of_headers();
        for section in by_offset {
            let raw = section.raw();
            if raw.end > self.file_len {
                return Err(Fault::malformed(
                    section.label(),
                    raw.start,
                    format!(
                        "its raw data ends at {:#x}, the file has {:#x} bytes: it is cut short",
                        raw.end, self.file_len
                    ),
                ));
            }
            if raw.start < end {
                return Err(Fault::malformed(
                    section.label(),
                    raw.start,
                    format!("its raw data overlaps what ends at {end:#x}"),
                ));
            }
            if raw.start % SECTOR != 0 || raw.end > u64::from(u32::MAX) {
                return Err(Fault::unsupported(
                    section.label(),
                    raw.start,
                    "PointerToRawData is no multiple of 0x200, or the raw data ends past 4 GiB",
                ));
            }
            end = raw.end;
        }
        Ok(())
    }
}
