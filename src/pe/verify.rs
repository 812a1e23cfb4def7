//! The rewritten file, re-parsed and held against what the input's layout demands.
//!
//! The expected positions are computed from the two section tables, not from the edit plan.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_SECURITY, IMAGE_SCN_CNT_CODE, IMAGE_SCN_CNT_INITIALIZED_DATA, ImageDebugDirectory,
};
use object::pod;

use super::headers::{Headers, Section};
use super::view::Place;
use super::{MARKER_FLAGS, MARKER_SECTION, PeLayout};
use crate::fatbin::wrapper::{HIPF_MAGIC, HIPK_MAGIC, WRAPPER_BINARY, WRAPPER_LEN, WRAPPER_RESERVED1};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Fails unless `output` is the file that `layout` describes, without its bundles and with `marker`.
///
/// Looks at headers, section table, wrappers, debug directory and marker; reads exactly the ranges that
/// [`BinaryPlan::verify`](crate::edit::BinaryPlan::verify) names.
///
/// # Errors
/// A [`Fault`] that names the first promise that does not hold.
pub fn verify(output: &mut dyn ReadAt, layout: &PeLayout, marker: &[u8]) -> Result<()> {
    let Some(after) = Headers::parse(output)? else {
        return Err(broken("headers", 0, "they no longer parse as PE32+"));
    };
    after.check_layout()?;
    let check = Check { layout, before: &layout.headers, shift: Shift::new(layout, &after)?, after: &after };
    check.nt_headers()?;
    let marker_rva = check.sections(marker)?;
    check.length()?;
    check.marker(output, marker_rva, marker)?;
    check.wrappers(output, marker_rva)?;
    check.debug_directory(output)
}

fn broken(place: impl Into<String>, offset: u64, message: impl Into<String>) -> Fault {
    Fault::malformed(format!("rewritten file, {}", place.into()), offset, message)
}

fn equal<T: PartialEq + std::fmt::Debug>(place: &str, offset: u64, found: T, expected: T) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(broken(place, offset, format!("found {found:x?}, expected {expected:x?}")))
}

/// How far bytes behind a given offset of the input have moved.
struct Shift {
    /// Raw data of bundles and certificate, and how many of the bytes left.
    gone: Vec<(Range<u64>, u64)>,
    /// Where the marker came in, and with how many bytes.
    marker_at: u64,
    marker_length: u64,
}

impl Shift {
    fn new(layout: &PeLayout, after: &Headers) -> Result<Self> {
        let before = &layout.headers;
        let alignment = before.file_alignment().max(1);
        let mut gone: Vec<(Range<u64>, u64)> = layout
            .bundles
            .iter()
            .map(|&index| before.sections[index].raw())
            .map(|raw| (raw.clone(), (raw.end - raw.start) / alignment * alignment))
            .collect();
        let certificate = before.directory(IMAGE_DIRECTORY_ENTRY_SECURITY).range();
        if !certificate.is_empty() {
            gone.push((certificate.clone(), certificate.end - certificate.start));
        }
        let index = marker_index(layout, after)?;
        let section = &after.sections[index];
        let mut shift = Self { gone, marker_at: u64::MAX, marker_length: 0 };
        let marker_at =
            before.sections.get(index).map_or_else(|| before.raw_end(), |replaced| replaced.raw().start);
        let start = shift.apply(marker_at);
        let padding = section.raw().start.checked_sub(start).filter(|&padding| padding < alignment);
        let Some(padding) = padding else {
            return Err(broken(
                section.label(),
                section.raw().start,
                format!("expected its raw data less than {alignment:#x} bytes behind {start:#x}"),
            ));
        };
        shift.marker_at = marker_at;
        shift.marker_length = padding + u64::from(section.raw_size);
        Ok(shift)
    }

    /// Where the byte at `offset`, which stays, is now.
    fn apply(&self, offset: u64) -> u64 {
        let gone: u64 =
            self.gone.iter().filter(|(range, _)| range.end <= offset).map(|(_, length)| length).sum();
        let come = if offset >= self.marker_at { self.marker_length } else { 0 };
        offset.saturating_sub(gone) + come
    }
}

/// Index of the marker's section: one more than there were, or a bundle section with a new name.
fn marker_index(layout: &PeLayout, after: &Headers) -> Result<usize> {
    let before = layout.headers.sections.len();
    let renamed = layout.bundles.iter().copied().find(|&index| {
        after
            .sections
            .get(index)
            .is_some_and(|section| section.name == MARKER_SECTION && section.raw_size != 0)
    });
    match (after.sections.len().checked_sub(before), renamed) {
        (Some(1), None) => Ok(before),
        (Some(0), Some(index)) => Ok(index),
        _ => Err(broken(
            "section table",
            after.table_end(),
            format!(
                "{} sections, {before} before, and no section .kpackrf in its place",
                after.sections.len()
            ),
        )),
    }
}

struct Check<'check> {
    layout: &'check PeLayout,
    before: &'check Headers,
    after: &'check Headers,
    shift: Shift,
}

impl Check<'_> {
    /// The field at `offset`, a pointer to `pointer` before, names the same bytes now.
    fn follows(&self, place: &str, offset: u64, found: u32, pointer: u32) -> Result<()> {
        let pointer = u64::from(pointer);
        let expected = if pointer == 0 {
            0
        } else if pointer < self.before.file_len {
            self.shift.apply(pointer)
        } else {
            pointer.max(self.after.file_len.min(u32::MAX.into()))
        };
        equal(place, offset, u64::from(found), expected)
    }

    /// Everything in the NT headers that has no reason to change has not changed.
    fn nt_headers(&self) -> Result<()> {
        let at = self.before.nt_offset;
        equal("e_lfanew", 60, self.after.nt_offset, at)?;
        let mut expected = self.before.nt;
        let found = self.after.nt;
        self.follows(
            "PointerToSymbolTable",
            at,
            found.file_header.pointer_to_symbol_table.get(LE),
            expected.file_header.pointer_to_symbol_table.get(LE),
        )?;
        let checksum = |nt: &object::pe::ImageNtHeaders64| nt.optional_header.check_sum.get(LE) != 0;
        equal("CheckSum is set", at, checksum(&found), checksum(&expected))?;
        equal(
            "SizeOfImage",
            at,
            u64::from(found.optional_header.size_of_image.get(LE))
                .next_multiple_of(self.after.section_alignment().max(1)),
            self.after.image_end(),
        )?;
        self.content_sizes()?;
        // The section table says whether these are right.
        expected.file_header.number_of_sections = found.file_header.number_of_sections;
        expected.file_header.pointer_to_symbol_table = found.file_header.pointer_to_symbol_table;
        expected.optional_header.size_of_code = found.optional_header.size_of_code;
        expected.optional_header.size_of_initialized_data = found.optional_header.size_of_initialized_data;
        expected.optional_header.size_of_image = found.optional_header.size_of_image;
        expected.optional_header.check_sum = found.optional_header.check_sum;
        equal("NT headers", at, pod::bytes_of(&found), pod::bytes_of(&expected))?;
        let mut directories = self.before.directories.clone();
        if let Some(certificate) = directories.get_mut(IMAGE_DIRECTORY_ENTRY_SECURITY) {
            certificate.rva = 0;
            certificate.size = 0;
        }
        equal("data directories", at, &self.after.directories, &directories)
    }

    /// SizeOfCode and SizeOfInitializedData have changed by as much as the raw data of their sections.
    fn content_sizes(&self) -> Result<()> {
        let sizes = |headers: &Headers| {
            let optional = &headers.nt.optional_header;
            [
                (IMAGE_SCN_CNT_CODE.0, optional.size_of_code.get(LE)),
                (IMAGE_SCN_CNT_INITIALIZED_DATA.0, optional.size_of_initialized_data.get(LE)),
            ]
        };
        for ((flag, found), (_, before)) in sizes(self.after).into_iter().zip(sizes(self.before)) {
            let raw = |headers: &Headers, only: &dyn Fn(usize) -> bool| -> u64 {
                let sections = headers.sections.iter().enumerate();
                let counted = sections.filter(|(index, section)| only(*index) && section.flags & flag != 0);
                counted.map(|(_, section)| u64::from(section.raw_size)).sum()
            };
            let bundle = |index: usize| self.layout.bundles.contains(&index);
            let bundle_or_new = |index: usize| bundle(index) || index >= self.before.sections.len();
            let expected =
                u64::from(before).saturating_sub(raw(self.before, &bundle)) + raw(self.after, &bundle_or_new);
            equal(
                "sizes of code and data",
                self.before.nt_offset,
                u64::from(found),
                expected.min(u32::MAX.into()),
            )?;
        }
        Ok(())
    }

    /// Every section header; returns the marker's RVA.
    fn sections(&self, marker: &[u8]) -> Result<u32> {
        let marker_index = marker_index(self.layout, self.after)?;
        for (index, (found, before)) in self.after.sections.iter().zip(&self.before.sections).enumerate() {
            let place = before.label();
            let at = before.raw().start;
            let mut expected = found.clone();
            expected.rva = before.rva;
            expected.flags = before.flags;
            expected.relocation_count = before.relocation_count;
            expected.line_number_count = before.line_number_count;
            if index == marker_index {
                let last = index + 1 == self.before.sections.len();
                let length = marker.len() as u64;
                let exact = if last { length } else { before.span().max(length) };
                equal(&place, at, found.span(), exact)?;
                expected.flags = MARKER_FLAGS;
            } else if self.layout.bundles.contains(&index) {
                equal(&place, at, (found.span(), found.raw_size, found.raw_offset), (before.span(), 0, 0))?;
            } else {
                expected.virtual_size = before.virtual_size;
                expected.raw_size = before.raw_size;
                let offset = if before.raw().is_empty() { 0 } else { before.raw_offset };
                self.follows(&place, at, found.raw_offset, offset)?;
            }
            self.follows(&place, at, found.relocations, before.relocations)?;
            self.follows(&place, at, found.line_numbers, before.line_numbers)?;
            if index != marker_index && self.before.raw_name(index) != self.after.raw_name(index) {
                return Err(broken(place, at, "its name has changed"));
            }
            equal(&place, at, found, &expected)?;
        }
        let section = &self.after.sections[marker_index];
        if marker_index == self.before.sections.len() {
            self.new_section(section, marker)?;
        }
        Ok(section.rva)
    }

    fn new_section(&self, section: &Section, marker: &[u8]) -> Result<()> {
        let expected = Section {
            name: MARKER_SECTION.to_vec(),
            virtual_size: marker.len() as u32,
            rva: self.before.image_end() as u32,
            flags: MARKER_FLAGS,
            relocations: 0,
            relocation_count: 0,
            line_numbers: 0,
            line_number_count: 0,
            ..section.clone()
        };
        equal("section .kpackrf", section.raw().start, section, &expected)
    }

    /// The file has lost the bundles and the certificate, and nothing else.
    fn length(&self) -> Result<()> {
        let expected = self.shift.apply(self.before.file_len);
        equal("length", self.after.file_len, self.after.file_len, expected)
    }

    fn marker(&self, output: &mut dyn ReadAt, rva: u32, marker: &[u8]) -> Result<()> {
        let Place::File(offset) = self.after.place(u64::from(rva), marker.len() as u64) else {
            return Err(broken("marker", 0, format!("RVA {rva:#x} is not in the file")));
        };
        let raw = self.after.sections[marker_index(self.layout, self.after)?].raw();
        equal("marker", offset, offset, raw.start)?;
        let bytes = output.read_vec(raw.start, raw.end - raw.start, "marker")?;
        let (content, padding) = bytes.split_at_checked(marker.len()).unwrap_or((&bytes, &[]));
        if content != marker || padding.iter().any(|&byte| byte != 0) {
            return Err(broken("marker", offset, "its bytes are not what they should be"));
        }
        Ok(())
    }

    /// Every HIPF wrapper is HIPK, points at the marker and has its index; all else is as it was.
    fn wrappers(&self, output: &mut dyn ReadAt, marker_rva: u32) -> Result<()> {
        let address = self.before.image_base().wrapping_add(u64::from(marker_rva));
        let mut wrappers = (0u32..).zip(&self.layout.wrappers);
        for table in &self.layout.tables {
            let offset = self.shift.apply(table.offset);
            let found = output.read_vec(offset, table.bytes.len() as u64, "wrappers")?;
            let mut expected = table.bytes.clone();
            let places = table.wrappers().map(|(at, _)| at);
            for (at, (index, wrapper)) in places.zip(wrappers.by_ref()) {
                if wrapper.magic == HIPF_MAGIC {
                    let expected = &mut expected[at..at + WRAPPER_LEN as usize];
                    let (binary, reserved1) = (WRAPPER_BINARY as usize, WRAPPER_RESERVED1 as usize);
                    expected[..4].copy_from_slice(&HIPK_MAGIC.to_le_bytes());
                    expected[binary..binary + 8].copy_from_slice(&address.to_le_bytes());
                    expected[reserved1..reserved1 + 4].copy_from_slice(&index.to_le_bytes());
                }
                let place = self.after.place(wrapper.address, WRAPPER_LEN);
                let at = self.shift.apply(wrapper.offset);
                equal(&format!("wrapper {index}"), at, place, Place::File(at))?;
            }
            equal("wrappers", offset, &found, &expected)?;
        }
        Ok(())
    }

    /// Every entry names the same data.
    fn debug_directory(&self, output: &mut dyn ReadAt) -> Result<()> {
        let Some(directory) = &self.layout.debug else { return Ok(()) };
        let offset = self.shift.apply(directory.offset);
        let found = output.read_vec(offset, directory.bytes.len() as u64, "debug directory")?;
        for (index, (found, before)) in
            found.chunks_exact(size_of::<ImageDebugDirectory>()).zip(directory.entries()).enumerate()
        {
            let Ok((found, _)) = pod::from_bytes::<ImageDebugDirectory>(found) else { continue };
            let place = format!("debug directory entry {index}");
            let pointer = found.pointer_to_raw_data;
            self.follows(&place, offset, pointer.get(LE), before.pointer_to_raw_data.get(LE))?;
            let expected = ImageDebugDirectory { pointer_to_raw_data: pointer, ..*before };
            equal(&place, offset, pod::bytes_of(found), pod::bytes_of(&expected))?;
        }
        Ok(())
    }
}
