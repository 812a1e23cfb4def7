//! Finds the bundles and the wrappers of a PE32+ file.

use object::LittleEndian as LE;
use object::pe::IMAGE_SCN_CNT_INITIALIZED_DATA;

use super::debug::DebugDirectory;
use super::headers::{Headers, Section};
use super::{PeLayout, WrapperTable, references};
use crate::fatbin::wrapper::{
    BundleSection, HIPF_MAGIC, HIPK_MAGIC, Located, MAX_WRAPPERS, WRAPPER_BINARY, WRAPPER_LEN, Wrapper,
};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Names of the bundle section: cut to 8 characters by the linker, or whole behind a `/123` name.
const BUNDLE_NAMES: [&[u8]; 2] = [b".hip_fat", b".hip_fatbin"];
/// Names of the wrapper section.
const WRAPPER_NAMES: [&[u8]; 2] = [b".hipFatB", b".hipFatBinSegment"];
/// Longer than every name that matters, terminator included.
const LONG_NAME_LEN: u64 = 24;

/// Says whether `source` is a fat PE32+ file, and where its bundles and wrappers are.
///
/// Reads headers, wrappers, the debug directory and, for `/123` names, a few bytes of the COFF string table;
/// never a bundle. Files that are not PE32+, or whose headers are not all there, are [`Located::Plain`], as
/// are those without `.hip_fat` raw data.
///
/// # Errors
/// A [`Fault`] if the file has bundles but no wrapper, a wrapper with another magic than HIPF and HIPK or
/// with a pointer that leaves the bundles, or a layout that the loader would refuse, or if a data directory
/// or the entry point is in a bundle.
pub fn locate(source: &mut dyn ReadAt) -> Result<Located<PeLayout>> {
    let Some(mut headers) = Headers::parse(source)? else { return Ok(Located::Plain) };
    resolve_long_names(source, &mut headers)?;
    let bundles: Vec<usize> = (0..)
        .zip(&headers.sections)
        .filter(|(_, section)| BUNDLE_NAMES.contains(&section.name.as_slice()) && !section.raw().is_empty())
        .map(|(index, _)| index)
        .collect();
    let tables = read_wrapper_tables(source, &headers)?;
    let magics = || tables.iter().flat_map(|table| table.wrappers()).map(|(_, wrapper)| magic_of(wrapper));
    if magics().next().is_some() && magics().all(|magic| magic == HIPK_MAGIC) {
        return Ok(Located::AlreadySplit);
    }
    if bundles.is_empty() {
        return match tables.iter().find(|table| table.wrappers().next().is_some()) {
            None => Ok(Located::Plain),
            // The linker can be told to merge sections.
            Some(table) => Err(Fault::unsupported(
                "section .hipFatB",
                table.offset,
                "there is no section .hip_fat with the bundles that the wrappers use",
            )),
        };
    }
    headers.check_layout()?;
    references::check_headers(&headers, &bundles)?;
    let sections: Vec<BundleSection> =
        bundles.iter().map(|&index| bundle_section(&headers.sections[index])).collect();
    let wrappers = resolve_wrappers(&headers, &tables, &sections)?;
    if wrappers.is_empty() {
        return Err(Fault::unsupported(
            headers.sections[bundles[0]].label(),
            sections[0].range.start,
            "there are bundles, but no wrapper in a .hipFatB section points at them",
        ));
    }
    let debug = DebugDirectory::read(source, &headers, &tables)?;
    let machine = headers.nt.file_header.machine.get(LE).0;
    Ok(Located::Fat(PeLayout { machine, sections, wrappers, headers, bundles, tables, debug }))
}

/// Looks up `/123` names of sections that may be ours: initialized data. Most are debug sections, but GNU ld keeps long
/// names for all, and lld for what is marked discardable, which the bundles can be.
fn resolve_long_names(source: &mut dyn ReadAt, headers: &mut Headers) -> Result<()> {
    let file = &headers.nt.file_header;
    let symbols = u64::from(file.pointer_to_symbol_table.get(LE));
    let strings = symbols + 18 * u64::from(file.number_of_symbols.get(LE));
    if symbols == 0 {
        return Ok(());
    }
    for section in &mut headers.sections {
        let wanted = section.flags & IMAGE_SCN_CNT_INITIALIZED_DATA.0 != 0;
        let offset = section
            .name
            .strip_prefix(b"/")
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse::<u32>().ok());
        let (true, Some(offset)) = (wanted, offset) else { continue };
        let start = strings + u64::from(offset);
        let length = headers.file_len.saturating_sub(start).min(LONG_NAME_LEN);
        if length == 0 {
            continue;
        }
        let bytes = source.read_vec(start, length, "COFF string table")?;
        if let Some(name) = bytes.split(|&byte| byte == 0).next()
            && (BUNDLE_NAMES.contains(&name) || WRAPPER_NAMES.contains(&name))
        {
            section.name = name.to_vec();
        }
    }
    Ok(())
}

/// A bundle section without the padding of its raw data.
fn bundle_section(section: &Section) -> BundleSection {
    let raw = section.raw();
    let length = section.span().min(raw.end - raw.start);
    BundleSection { address: u64::from(section.rva), range: raw.start..raw.start + length }
}

/// Reads every `.hipFatB` section that has raw data (in a file of debug information it has none). What is no wrapper in
/// it must be zeros: linkers may pad.
fn read_wrapper_tables(source: &mut dyn ReadAt, headers: &Headers) -> Result<Vec<WrapperTable>> {
    let mut tables = Vec::new();
    let mut count = 0;
    for section in &headers.sections {
        if !WRAPPER_NAMES.contains(&section.name.as_slice()) {
            continue;
        }
        let raw = section.raw();
        let length = section.span();
        if raw.is_empty() {
            continue;
        }
        if length > raw.end - raw.start {
            return Err(Fault::malformed(
                section.label(),
                raw.start,
                format!("VirtualSize is {length:#x}, the raw data has {:#x} bytes", raw.end - raw.start),
            ));
        }
        count += length / WRAPPER_LEN;
        if count > MAX_WRAPPERS {
            return Err(Fault::unsupported(
                section.label(),
                raw.start,
                format!("more than {MAX_WRAPPERS} wrappers"),
            ));
        }
        let table =
            WrapperTable { offset: raw.start, bytes: source.read_vec(raw.start, length, &section.label())? };
        let end = table.wrappers().last().map_or(0, |(at, wrapper)| at + wrapper.len());
        if table.bytes[end..].iter().any(|&byte| byte != 0) {
            return Err(Fault::unsupported(
                section.label(),
                raw.start + end as u64,
                format!("{} bytes behind the last whole wrapper are not zero", table.bytes.len() - end),
            ));
        }
        tables.push(table);
    }
    Ok(tables)
}

fn magic_of(wrapper: &[u8]) -> u32 {
    wrapper.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Turns the raw wrappers into resolved ones and checks what they point at.
fn resolve_wrappers(
    headers: &Headers,
    tables: &[WrapperTable],
    sections: &[BundleSection],
) -> Result<Vec<Wrapper>> {
    let mut wrappers = Vec::new();
    for table in tables {
        let section = headers.sections.iter().find(|section| section.raw().start == table.offset);
        let first_rva = section.map_or(0, |section| u64::from(section.rva));
        for (at, bytes) in table.wrappers() {
            let offset = table.offset + at as u64;
            let place = format!("wrapper {}", wrappers.len());
            let magic = magic_of(bytes);
            if magic != HIPF_MAGIC && magic != HIPK_MAGIC {
                return Err(Fault::unsupported(
                    place,
                    offset,
                    format!(
                        "magic is {magic:#010x}, expected {HIPF_MAGIC:#010x} (HIPF) or {HIPK_MAGIC:#010x} (HIPK)"
                    ),
                ));
            }
            let pointer =
                bytes[WRAPPER_BINARY as usize..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let target = pointer.wrapping_sub(headers.image_base());
            let in_bundle = sections.iter().any(|section| {
                let length = section.range.end - section.range.start;
                (section.address..section.address + length).contains(&target)
            });
            if (magic == HIPF_MAGIC) != in_bundle {
                return Err(Fault::malformed(
                    place,
                    offset + WRAPPER_BINARY,
                    format!(
                        "a {} wrapper points at {pointer:#x} (ImageBase {:#x}), {} the bundles",
                        if in_bundle { "HIPK" } else { "HIPF" },
                        headers.image_base(),
                        if in_bundle { "inside" } else { "outside" }
                    ),
                ));
            }
            wrappers.push(Wrapper { offset, address: first_rva + at as u64, magic, target });
        }
    }
    Ok(wrappers)
}
