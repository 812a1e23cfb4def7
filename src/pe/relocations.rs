//! Base relocations: the pointers of the image. None but a wrapper's may lead into a bundle.
//!
//! `.reloc` is a row of blocks, one per page: `u32 page RVA`, `u32 length`, then `u16` entries with a type in
//! the upper 4 and an offset in the lower 12 bits. The pointers are in place, so each one is read; in
//! ascending order and in blocks, since the file may be inflated on the way.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_BASERELOC, IMAGE_FILE_RELOCS_STRIPPED, IMAGE_REL_BASED_ABSOLUTE,
    IMAGE_REL_BASED_DIR64, IMAGE_REL_BASED_HIGHLOW,
};

use super::PeLayout;
use super::headers::Headers;
use super::view::Place;
use crate::fatbin::wrapper::{HIPF_MAGIC, WRAPPER_BINARY, WRAPPER_LEN};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Longest `.reloc` that is understood: 8 million pointers at most, so that the list of sites stays within
/// 32 MiB.
const MAX_TABLE: u64 = 16 << 20;
/// Pointers that lie this close together are read in one step.
const STEP: u64 = 64 << 10;
/// Length of a block's header.
const BLOCK_HEADER: usize = 8;

/// The RVAs of all pointers, each list ascending.
#[derive(Debug, Default)]
struct Sites {
    /// Pointers of 8 bytes (DIR64).
    wide: Vec<u32>,
    /// Pointers of 4 bytes (HIGHLOW), which occur in programs below 4 GiB.
    narrow: Vec<u32>,
}

/// Fails if a relocated pointer that is no wrapper's leads into a bundle, if one stands in a bundle, or if a
/// HIPF wrapper's pointer is not relocated although the image can move.
pub(super) fn check(source: &mut dyn ReadAt, layout: &PeLayout) -> Result<()> {
    let headers = &layout.headers;
    let flags = headers.nt.file_header.characteristics.get(LE).0;
    let directory = headers.directory(IMAGE_DIRECTORY_ENTRY_BASERELOC);
    if flags & IMAGE_FILE_RELOCS_STRIPPED.0 != 0 {
        return Ok(());
    }
    if directory.size == 0 {
        return check_wrappers(layout, &Sites::default());
    }
    let length = u64::from(directory.size);
    if length > MAX_TABLE {
        return Err(Fault::unsupported(
            "base relocations",
            None,
            format!("{length} bytes, more than {MAX_TABLE}"),
        ));
    }
    let Place::File(offset) = headers.place(u64::from(directory.rva), length) else {
        return Err(Fault::malformed(
            "base relocations",
            None,
            format!("{length} bytes at RVA {:#x}, which no section's raw data holds", directory.rva),
        ));
    };
    let sites = {
        let table = source.read_vec(offset, length, "base relocations")?;
        parse(&table, offset)?
    };
    check_wrappers(layout, &sites)?;
    check_targets(source, layout, &sites.wide, 8)?;
    check_targets(source, layout, &sites.narrow, 4)
}

/// Collects the sites of the blocks in `table`, which stands at `offset` in the file.
fn parse(table: &[u8], offset: u64) -> Result<Sites> {
    let mut sites = Sites::default();
    let mut rest = table;
    while !rest.is_empty() {
        let at = offset + (table.len() - rest.len()) as u64;
        let word = |from: usize| rest.get(from..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let (Some(page), Some(length)) = (word(0), word(4)) else {
            return Err(Fault::malformed("base relocations", at, "the last block's header is cut short"));
        };
        if length == 0 && rest.iter().all(|&byte| byte == 0) {
            break; // padding that some linkers count as part of the directory
        }
        let length = length as usize;
        if length < BLOCK_HEADER || !length.is_multiple_of(2) || length > rest.len() {
            return Err(Fault::malformed(
                "base relocations",
                at,
                format!("a block of {length} bytes, expected an even number from 8 to {}", rest.len()),
            ));
        }
        for entry in rest[BLOCK_HEADER..length].chunks_exact(2) {
            let entry = u16::from_le_bytes([entry[0], entry[1]]);
            let rva = page.checked_add(u32::from(entry & 0xfff)).ok_or_else(|| {
                Fault::malformed("base relocations", at, format!("a block for page {page:#x} leaves 32 bits"))
            })?;
            match entry >> 12 {
                kind if kind == IMAGE_REL_BASED_ABSOLUTE.0 => {}
                kind if kind == IMAGE_REL_BASED_DIR64.0 => sites.wide.push(rva),
                kind if kind == IMAGE_REL_BASED_HIGHLOW.0 => sites.narrow.push(rva),
                kind => {
                    return Err(Fault::unsupported(
                        "base relocations",
                        at,
                        format!(
                            "type {kind} at RVA {rva:#x}, only DIR64 (10) and HIGHLOW (3) are understood"
                        ),
                    ));
                }
            }
        }
        rest = &rest[length..];
    }
    for list in [&mut sites.wide, &mut sites.narrow] {
        list.sort_unstable();
        list.dedup();
    }
    Ok(sites)
}

/// Every HIPF wrapper's pointer is relocated, and nothing else of a wrapper is: the loader would add to the
/// code-object index.
fn check_wrappers(layout: &PeLayout, sites: &Sites) -> Result<()> {
    for (index, wrapper) in layout.wrappers.iter().enumerate() {
        if wrapper.magic != HIPF_MAGIC {
            continue;
        }
        let range = wrapper.address..wrapper.address + WRAPPER_LEN;
        let pointer = wrapper.address + WRAPPER_BINARY;
        let place = format!("wrapper {index}");
        let mut relocated = false;
        for (list, length) in [(&sites.wide, 8), (&sites.narrow, 4)] {
            for &site in touching(list, length, &range) {
                let site = u64::from(site);
                if site != pointer || length != 8 {
                    return Err(Fault::unsupported(
                        place,
                        wrapper.offset,
                        format!(
                            "a base relocation of {length} bytes at RVA {site:#x}, expected one of 8 at {pointer:#x}"
                        ),
                    ));
                }
                relocated = true;
            }
        }
        if !relocated {
            return Err(Fault::unsupported(
                place,
                wrapper.offset,
                format!(
                    "its pointer at RVA {pointer:#x} has no base relocation, although the image can move"
                ),
            ));
        }
    }
    Ok(())
}

/// The sites of `length` bytes each that share a byte with `range`.
fn touching<'sites>(list: &'sites [u32], length: u64, range: &Range<u64>) -> &'sites [u32] {
    let first = list.partition_point(|&site| u64::from(site) + length <= range.start);
    let last = list.partition_point(|&site| u64::from(site) < range.end);
    list.get(first..last).unwrap_or(&[])
}

/// Reads every pointer and compares it with the bundles' addresses.
fn check_targets(source: &mut dyn ReadAt, layout: &PeLayout, sites: &[u32], length: u64) -> Result<()> {
    let headers = &layout.headers;
    let bundles: Vec<Range<u64>> =
        layout.bundles.iter().map(|&index| headers.sections[index].rvas()).collect();
    let mut buffer = Vec::new();
    let mut rest = sites;
    while let Some(&first) = rest.first() {
        let Some(start) = site_offset(headers, &bundles, u64::from(first), length)? else {
            rest = &rest[1..];
            continue;
        };
        // As many as lie in one step and in one piece of the file.
        let mut count = 0;
        for &site in rest {
            let within = u64::from(site - first);
            if within + length > STEP
                || site_offset(headers, &bundles, u64::from(site), length)? != Some(start + within)
            {
                break;
            }
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        let last = now.last().copied().unwrap_or(first);
        buffer.resize((u64::from(last - first) + length) as usize, 0);
        source.read_at(start, &mut buffer)?;
        for &site in now {
            let bytes = &buffer[(site - first) as usize..][..length as usize];
            check_target(layout, &bundles, site, bytes)?;
        }
        rest = later;
    }
    Ok(())
}

/// File offset of the pointer at `rva`; `None` if the loader puts zeros there.
fn site_offset(headers: &Headers, bundles: &[Range<u64>], rva: u64, length: u64) -> Result<Option<u64>> {
    if bundles.iter().any(|bundle| bundle.start < rva + length && rva < bundle.end) {
        return Err(Fault::unsupported(
            "base relocations",
            None,
            format!("the pointer at RVA {rva:#x} stands inside a bundle"),
        ));
    }
    match headers.place(rva, length) {
        Place::File(offset) => Ok(Some(offset)),
        Place::Zeros => Ok(None),
        Place::Broken => Err(Fault::malformed(
            "base relocations",
            None,
            format!("the pointer at RVA {rva:#x} is in no section, or only half of it"),
        )),
    }
}

fn check_target(layout: &PeLayout, bundles: &[Range<u64>], site: u32, bytes: &[u8]) -> Result<()> {
    let base = layout.headers.image_base();
    let target = match (bytes.first_chunk::<8>(), bytes.first_chunk::<4>()) {
        (Some(wide), _) => u64::from_le_bytes(*wide).wrapping_sub(base),
        (None, Some(narrow)) => u64::from(u32::from_le_bytes(*narrow).wrapping_sub(base as u32)),
        (None, None) => return Ok(()),
    };
    if !bundles.iter().any(|bundle| bundle.contains(&target)) {
        return Ok(());
    }
    let site = u64::from(site);
    // Wrappers are in table order, which is the order of addresses.
    let of_wrapper =
        layout.wrappers.binary_search_by_key(&site, |wrapper| wrapper.address + WRAPPER_BINARY).is_ok();
    if of_wrapper && bytes.len() == 8 {
        return Ok(());
    }
    Err(Fault::unsupported(
        "base relocations",
        None,
        format!("the pointer at RVA {site:#x} leads into a bundle (RVA {target:#x}) and is no wrapper's"),
    ))
}
