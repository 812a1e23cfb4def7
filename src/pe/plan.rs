//! The rewrite as an edit plan.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_SECURITY, IMAGE_SCN_CNT_CODE, IMAGE_SCN_CNT_INITIALIZED_DATA, ImageDataDirectory,
    ImageNtHeaders64, ImageSectionHeader, SectionFlags,
};
use object::pod;

use super::headers::{DOS_HEADER_LEN, NT_HEADERS_LEN, SECTION_HEADER_LEN};
use super::moves::Moves;
use super::{MARKER_FLAGS, MARKER_SECTION, PeLayout, checksum, references, relocations};
use crate::edit::{BinaryPlan, EditPlan, PlanBuilder};
use crate::fatbin::wrapper::{HIPF_MAGIC, HIPK_MAGIC, WRAPPER_BINARY, WRAPPER_LEN, WRAPPER_RESERVED1};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Loaders up to Windows XP refuse an image with more sections.
const MAX_SECTIONS: usize = 96;
/// The loader refuses an image with more memory.
const MAX_IMAGE: u64 = 0x7700_0000;
/// Length of a COFF symbol.
const SYMBOL_LEN: u64 = 18;
/// Length of a COFF relocation and of a COFF line number.
const RELOCATION_LEN: u64 = 10;
const LINE_NUMBER_LEN: u64 = 6;
/// DllCharacteristics: the loader demands a signature.
const FORCE_INTEGRITY: u16 = 0x0080;

/// Where the marker goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// Into a new last section.
    New,
    /// Into the bundle section with this index, which then has this VirtualSize.
    Bundle { index: usize, virtual_size: u32 },
}

/// The marker's section in the output.
#[derive(Clone, Debug)]
struct MarkerSection {
    site: Site,
    /// RVA of the marker.
    rva: u32,
    /// SizeOfImage of the output.
    size_of_image: u32,
    /// Where its bytes come in, an offset of the input.
    insert_at: u64,
    /// Zeros before it, to reach FileAlignment.
    padding: u64,
    /// Its PointerToRawData.
    raw_offset: u32,
    /// Its SizeOfRawData.
    raw_size: u32,
}

/// Plans how the file that `layout` describes loses its bundles and gets `marker`, a MessagePack map.
///
/// `source` is the file. Read are `.reloc`, the pointers that it names, the length of the COFF string table,
/// and, if the file has a checksum, everything but the bundles.
///
/// # Errors
/// A [`Fault`] if something that is no wrapper points into a bundle, or a file offset cannot follow what it
/// names.
pub fn plan(source: &mut dyn ReadAt, layout: &PeLayout, marker: &[u8]) -> Result<BinaryPlan> {
    references::check_debug(layout)?;
    relocations::check(source, layout)?;
    let certificate = certificate(layout)?;
    let mut moves = Moves::new(layout.headers.file_len);
    if let Some(range) = &certificate {
        moves.remove(range.clone(), range.end - range.start);
    }
    let section = place_marker(layout, marker, &mut moves)?;
    let header = patched_header(source, layout, marker, &section, &moves)?;
    let debug = layout.debug.as_ref().map(|debug| debug.moved(&moves)).transpose()?;

    let mut edits = assemble(layout, marker, &section, &certificate, &header, debug.as_deref())?;
    let old_checksum = layout.headers.nt.optional_header.check_sum.get(LE);
    if old_checksum != 0 {
        let sum = checksum::of_plan(source, &edits)?;
        let mut header = header;
        if let Ok((nt, _)) = pod::from_bytes_mut::<ImageNtHeaders64>(&mut header) {
            nt.optional_header.check_sum.set(LE, sum);
        }
        edits = assemble(layout, marker, &section, &certificate, &header, debug.as_deref())?;
    }
    Ok(BinaryPlan { verify: verify_ranges(layout, &section, &moves, &edits), edits, notes: notes(layout) })
}

/// The bytes of the certificate table, the only data directory that names file offsets.
fn certificate(layout: &PeLayout) -> Result<Option<Range<u64>>> {
    let headers = &layout.headers;
    let range = headers.directory(IMAGE_DIRECTORY_ENTRY_SECURITY).range();
    if range.is_empty() {
        return Ok(None);
    }
    if range.start < headers.raw_end().max(headers.size_of_headers()) || range.end > headers.file_len {
        return Err(Fault::malformed(
            "certificate table",
            range.start,
            format!(
                "it ends at {:#x}, expected to lie between the last section's end at {:#x} and the end of the file at {:#x}",
                range.end,
                headers.raw_end(),
                headers.file_len
            ),
        ));
    }
    Ok(Some(range))
}

/// How much of a bundle section's raw data leaves the file: what follows stays aligned.
fn cut_length(layout: &PeLayout, raw: &Range<u64>) -> u64 {
    let length = raw.end - raw.start;
    length - length % layout.headers.file_alignment().max(1)
}

/// Chooses the marker's section and completes `moves`.
fn place_marker(layout: &PeLayout, marker: &[u8], moves: &mut Moves) -> Result<MarkerSection> {
    let headers = &layout.headers;
    let alignment = headers.file_alignment().max(1);
    for &index in &layout.bundles {
        let raw = headers.sections[index].raw();
        let cut = cut_length(layout, &raw);
        moves.remove(raw, cut);
    }
    let (site, size_of_image) = choose_site(layout, marker)?;
    let (rva, insert_at) = match site {
        // choose_site has made sure that the end fits 32 bits.
        Site::New => (headers.image_end() as u32, headers.raw_end()),
        Site::Bundle { index, .. } => (headers.sections[index].rva, headers.sections[index].raw().start),
    };
    let position = moves.position(insert_at);
    let padding = match site {
        Site::New => position.next_multiple_of(alignment) - position,
        Site::Bundle { .. } => 0,
    };
    let raw_size = (marker.len() as u64).next_multiple_of(alignment);
    moves.insert(insert_at, padding + raw_size);
    let too_far = |_| {
        Fault::unsupported("marker", insert_at, "its place in the file, or its length, does not fit 32 bits")
    };
    Ok(MarkerSection {
        site,
        rva,
        size_of_image,
        insert_at,
        padding,
        raw_offset: u32::try_from(position + padding).map_err(too_far)?,
        raw_size: u32::try_from(raw_size).map_err(too_far)?,
    })
}

/// The marker's place and the output's SizeOfImage.
fn choose_site(layout: &PeLayout, marker: &[u8]) -> Result<(Site, u32)> {
    let headers = &layout.headers;
    let alignment = headers.section_alignment().max(1);
    let length = marker.len() as u64;
    if length == 0 {
        return Err(Fault::unsupported("marker", None, "it is empty"));
    }
    let image_end = headers.image_end();
    let ends_at = |rva: u64| {
        let end = (rva + length).next_multiple_of(alignment);
        u32::try_from(end).ok().filter(|_| end <= MAX_IMAGE.max(image_end))
    };
    if slot_is_free(layout)
        && let Some(size_of_image) = ends_at(image_end)
    {
        return Ok((Site::New, size_of_image));
    }
    // The last section can have any length; another one must keep its share of the address space.
    for &index in layout.bundles.iter().rev() {
        let section = &headers.sections[index];
        if index + 1 == headers.sections.len()
            && let Some(size_of_image) = ends_at(u64::from(section.rva))
        {
            return Ok((Site::Bundle { index, virtual_size: length as u32 }, size_of_image));
        }
        if length <= section.span().next_multiple_of(alignment) {
            let virtual_size = section.span().max(length) as u32;
            let size_of_image = headers.nt.optional_header.size_of_image.get(LE);
            return Ok((Site::Bundle { index, virtual_size }, size_of_image));
        }
    }
    Err(Fault::unsupported(
        "section table",
        headers.table_end(),
        "no room for one more section header, and the marker is longer than every bundle section",
    ))
}

/// Whether one more section header fits behind the table: zeros that nothing names.
fn slot_is_free(layout: &PeLayout) -> bool {
    let headers = &layout.headers;
    let slot = headers.table_end()..headers.table_end() + SECTION_HEADER_LEN;
    let first_raw = headers
        .sections
        .iter()
        .map(|section| section.raw())
        .filter(|raw| !raw.is_empty())
        .map(|raw| raw.start)
        .min();
    let overlaps = |start: u64, length: u64| start < slot.end && slot.start < start + length;
    let symbols = u64::from(headers.nt.file_header.pointer_to_symbol_table.get(LE));
    headers.zeros_follow
        && headers.sections.len() < MAX_SECTIONS
        && slot.end <= headers.size_of_headers()
        && first_raw.is_none_or(|first| slot.end <= first)
        && !slot.contains(&symbols)
        // Directories of the headers (bound imports) count from RVA 0, which is file offset 0.
        && !headers.directories.iter().any(|directory| overlaps(directory.rva.into(), directory.size.into()))
        && !layout.debug.iter().flat_map(|debug| debug.entries()).any(|entry| {
            overlaps(entry.pointer_to_raw_data.get(LE).into(), entry.size_of_data.get(LE).into())
        })
}

/// The NT headers and the section table of the output, new section header included; the checksum is 0.
fn patched_header(
    source: &mut dyn ReadAt,
    layout: &PeLayout,
    marker: &[u8],
    section: &MarkerSection,
    moves: &Moves,
) -> Result<Vec<u8>> {
    let headers = &layout.headers;
    let mut block = headers.block.clone();
    let symbols = moved_symbols(source, layout, moves)?;
    let (table, rest) = block.split_at_mut(headers.table_at());
    if let Some(raw) = table.get_mut(NT_HEADERS_LEN..).and_then(|directories| {
        directories.chunks_exact_mut(size_of::<ImageDataDirectory>()).nth(IMAGE_DIRECTORY_ENTRY_SECURITY)
    }) && headers.directories.len() > IMAGE_DIRECTORY_ENTRY_SECURITY
    {
        raw.fill(0);
    }
    if let Ok((nt, _)) = pod::from_bytes_mut::<ImageNtHeaders64>(table) {
        patch_nt_headers(nt, layout, section);
        nt.file_header.pointer_to_symbol_table.set(LE, symbols);
    }
    for (index, raw) in rest.chunks_exact_mut(SECTION_HEADER_LEN as usize).enumerate() {
        let Ok((header, _)) = pod::from_bytes_mut::<ImageSectionHeader>(raw) else { continue };
        patch_section(header, layout, index, section, moves)?;
    }
    if matches!(section.site, Site::New) {
        let mut header = ImageSectionHeader { name: MARKER_SECTION, ..ImageSectionHeader::default() };
        header.virtual_size.set(LE, marker.len() as u32);
        header.virtual_address.set(LE, section.rva);
        header.size_of_raw_data.set(LE, section.raw_size);
        header.pointer_to_raw_data.set(LE, section.raw_offset);
        header.characteristics.set(LE, SectionFlags(MARKER_FLAGS));
        block.extend_from_slice(pod::bytes_of(&header));
    }
    Ok(block)
}

/// Counts, sizes and the checksum; offsets are none of its business.
fn patch_nt_headers(nt: &mut ImageNtHeaders64, layout: &PeLayout, section: &MarkerSection) {
    let headers = &layout.headers;
    let optional = &mut nt.optional_header;
    optional.check_sum.set(LE, 0);
    optional.size_of_image.set(LE, section.size_of_image);
    if section.site == Site::New {
        nt.file_header.number_of_sections.set(LE, headers.sections.len() as u16 + 1);
    }
    // Linkers add up the raw sizes by content flag; a difference of theirs stays.
    for (flag, field) in [
        (IMAGE_SCN_CNT_INITIALIZED_DATA.0, &mut optional.size_of_initialized_data),
        (IMAGE_SCN_CNT_CODE.0, &mut optional.size_of_code),
    ] {
        let bundles = layout.bundles.iter().map(|&index| &headers.sections[index]);
        let gone: u64 =
            bundles.filter(|bundle| bundle.flags & flag != 0).map(|bundle| u64::from(bundle.raw_size)).sum();
        let come = if MARKER_FLAGS & flag != 0 { u64::from(section.raw_size) } else { 0 };
        let size = u64::from(field.get(LE)).saturating_sub(gone).saturating_add(come);
        field.set(LE, size.min(u64::from(u32::MAX)) as u32);
    }
}

/// One section header of the input.
fn patch_section(
    header: &mut ImageSectionHeader,
    layout: &PeLayout,
    index: usize,
    marker: &MarkerSection,
    moves: &Moves,
) -> Result<()> {
    let Some(section) = layout.headers.sections.get(index) else { return Ok(()) };
    if layout.bundles.contains(&index) {
        let (virtual_size, raw_size, raw_offset) = match marker.site {
            Site::Bundle { index: holder, virtual_size, .. } if holder == index => {
                header.name = MARKER_SECTION;
                header.characteristics.set(LE, SectionFlags(MARKER_FLAGS));
                (virtual_size, marker.raw_size, marker.raw_offset)
            }
            // VirtualSize 0 would mean SizeOfRawData, which goes.
            _ => (section.span() as u32, 0, 0),
        };
        header.virtual_size.set(LE, virtual_size);
        header.size_of_raw_data.set(LE, raw_size);
        header.pointer_to_raw_data.set(LE, raw_offset);
    } else if !section.raw().is_empty() {
        let place = format!("{}, PointerToRawData", section.label());
        let followed = moves.follow(section.raw_offset, u64::from(section.raw_size), &place)?;
        header.pointer_to_raw_data.set(LE, followed);
    } else {
        // Nothing is read from there, and tools complain about an offset past the end of the file.
        header.pointer_to_raw_data.set(LE, 0);
    }
    for (pointer, length, field, name) in [
        (
            section.relocations,
            RELOCATION_LEN * u64::from(section.relocation_count),
            &mut header.pointer_to_relocations,
            "PointerToRelocations",
        ),
        (
            section.line_numbers,
            LINE_NUMBER_LEN * u64::from(section.line_number_count),
            &mut header.pointer_to_linenumbers,
            "PointerToLinenumbers",
        ),
    ] {
        if pointer != 0 {
            field.set(LE, moves.follow(pointer, length, &format!("{}, {name}", section.label()))?);
        }
    }
    Ok(())
}

/// PointerToSymbolTable of the output. The string table stands right behind the symbols.
fn moved_symbols(source: &mut dyn ReadAt, layout: &PeLayout, moves: &Moves) -> Result<u32> {
    let headers = &layout.headers;
    let pointer = headers.nt.file_header.pointer_to_symbol_table.get(LE);
    if pointer == 0 {
        return Ok(0);
    }
    let place = "PointerToSymbolTable";
    let symbols = SYMBOL_LEN * u64::from(headers.nt.file_header.number_of_symbols.get(LE));
    let strings = u64::from(pointer) + symbols;
    // The length of the string table is read only where it is sure to be no bundle's.
    let moved = moves.follow(pointer, symbols + 4, place)?;
    if strings + 4 > headers.file_len {
        return Ok(moved);
    }
    let bytes = source.read_vec(strings, 4, "COFF string table")?;
    let length = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    moves.follow(pointer, symbols + u64::from(length.max(4)), place)
}

/// All edits. `header` and `debug` are the output's bytes of these two.
fn assemble(
    layout: &PeLayout,
    marker: &[u8],
    section: &MarkerSection,
    certificate: &Option<Range<u64>>,
    header: &[u8],
    debug: Option<&[u8]>,
) -> Result<EditPlan> {
    let headers = &layout.headers;
    let mut builder = PlanBuilder::new(headers.file_len);
    builder.replace(headers.nt_offset, header);
    if let (Some(directory), Some(bytes)) = (&layout.debug, debug)
        && directory.bytes != bytes
    {
        builder.replace(directory.offset, bytes);
    }
    let address = headers.image_base().wrapping_add(section.rva.into());
    let mut index = 0u32;
    for table in &layout.tables {
        let mut bytes = table.bytes.clone();
        for (at, _) in table.wrappers() {
            let wrapper = &mut bytes[at..at + WRAPPER_LEN as usize];
            if layout.wrappers.get(index as usize).is_some_and(|wrapper| wrapper.magic == HIPF_MAGIC) {
                split_wrapper(wrapper, address, index);
            }
            index += 1;
        }
        builder.replace(table.offset, bytes);
    }
    for &index in &layout.bundles {
        let raw = headers.sections[index].raw();
        let cut = raw.start + cut_length(layout, &raw);
        builder.drop(raw.start..cut).zero(cut..raw.end);
    }
    let mut content = vec![0; section.padding as usize];
    content.extend_from_slice(marker);
    content.resize(section.padding as usize + section.raw_size as usize, 0);
    builder.insert(section.insert_at, content);
    if let Some(range) = certificate {
        builder.drop(range.clone());
    }
    builder.finish()
}

/// Turns a HIPF wrapper into a HIPK one. (Those that are HIPK already keep their marker.)
fn split_wrapper(wrapper: &mut [u8], marker_address: u64, index: u32) {
    let mut put = |at: u64, bytes: &[u8]| {
        if let Some(field) = wrapper.get_mut(at as usize..at as usize + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    };
    put(0, &HIPK_MAGIC.to_le_bytes());
    put(WRAPPER_BINARY, &marker_address.to_le_bytes());
    put(WRAPPER_RESERVED1, &index.to_le_bytes());
}

/// What `verify` has to see again.
fn verify_ranges(
    layout: &PeLayout,
    section: &MarkerSection,
    moves: &Moves,
    edits: &EditPlan,
) -> Vec<Range<u64>> {
    let headers = &layout.headers;
    // The new header, and as much behind it as the parser looks at.
    let headers_end = (headers.table_end() + 2 * SECTION_HEADER_LEN).min(edits.output_len());
    let moved = |offset: u64, length: u64| {
        let start = moves.position(offset);
        start..start + length
    };
    let mut ranges = vec![0..DOS_HEADER_LEN, headers.nt_offset..headers_end];
    ranges.extend(layout.tables.iter().map(|table| moved(table.offset, table.bytes.len() as u64)));
    ranges.extend(layout.debug.iter().map(|debug| moved(debug.offset, debug.bytes.len() as u64)));
    let start = u64::from(section.raw_offset);
    ranges.push(start..start + u64::from(section.raw_size));
    ranges
}

fn notes(layout: &PeLayout) -> Vec<String> {
    let headers = &layout.headers;
    let mut notes = Vec::new();
    if headers.directory(IMAGE_DIRECTORY_ENTRY_SECURITY).size != 0 {
        let mut note = "the Authenticode signature no longer holds and was removed".to_owned();
        if headers.nt.optional_header.dll_characteristics.get(LE).0 & FORCE_INTEGRITY != 0 {
            note += "; FORCE_INTEGRITY is set, so Windows loads the file only once it is signed again";
        }
        notes.push(note);
    }
    notes
}
