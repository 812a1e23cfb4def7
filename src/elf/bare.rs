//! Fat binaries without section headers, which `llvm-objcopy --strip-sections`, lld's `-z nosectionheader` and `sstrip`
//! leave: loaders need none.
//!
//! Nothing names the wrappers and the bundles here, so they are found by what they are. A wrapper starts, at a multiple
//! of 8, with the magic and version 1: eight bytes that nothing else has. All loaded bytes are read for that, once. A
//! bundle is where a wrapper's pointer leads, and ends where its structure says.
//!
//! What lies around a bundle is not known either, so that less can be done than with section headers: nothing moves to
//! make room for a program header, and no p_align is lowered.

use std::ops::Range;

use super::locate::RawWrapper;
use super::view::{BLOCK, ElfView, Window};
use crate::fatbin::walk::Bundles;
use crate::fatbin::wrapper::{
    BundleSection, HIPF_MAGIC, HIPK_MAGIC, MAX_WRAPPERS, WRAPPER_BINARY, WRAPPER_LEN,
};
use crate::fatbin::{bundle, ccob};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// `version` of every wrapper.
const VERSION: u32 = 1;
/// Zeros between two bundles that still count as padding, in bytes: what it takes to align the next one to a page. More
/// can be something that is zero, and stays.
const MAX_PADDING: u64 = 0xfff;

/// What may be wrappers, in the order of their addresses. Reads every byte of every PT_LOAD, forward.
pub(super) fn wrappers(source: &mut dyn ReadAt, view: &ElfView) -> Result<Vec<RawWrapper>> {
    let starts = [HIPF_MAGIC, HIPK_MAGIC].map(|magic| u64::from(VERSION) << 32 | u64::from(magic));
    let mut found = Vec::new();
    for (_, load) in view.loads() {
        let skip = load.address.wrapping_neg() & 7;
        let end = load.file_end().min(view.length);
        let mut at = load.offset.saturating_add(skip);
        while at.saturating_add(WRAPPER_LEN) <= end {
            let bytes = source.read_vec(at, BLOCK.min(end - at) & !7, "loaded bytes")?;
            for (word, offset) in bytes.chunks_exact(8).zip((at..).step_by(8)) {
                let word = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                if starts.contains(&word) && offset + WRAPPER_LEN <= end {
                    let address = load.address.checked_add(offset - load.offset).ok_or_else(|| {
                        Fault::malformed("program header", offset, "a PT_LOAD ends past the end of memory")
                    })?;
                    // Truncation leaves the magic.
                    found.push(RawWrapper { offset, address, magic: word as u32, binary: 0 });
                }
            }
            if found.len() as u64 > MAX_WRAPPERS {
                let message = format!("more than {MAX_WRAPPERS} wrappers");
                return Err(Fault::unsupported("loaded bytes", at, message));
            }
            at += bytes.len() as u64;
        }
    }
    found.sort_by_key(|wrapper| wrapper.offset);
    let mut window = Window::new(source);
    for wrapper in &mut found {
        wrapper.binary = u64::from_le_bytes(window.get(wrapper.offset + WRAPPER_BINARY, "wrapper")?);
    }
    found.sort_by_key(|wrapper| wrapper.address);
    found.dedup_by_key(|wrapper| wrapper.address);
    Ok(found)
}

/// The bundles at `targets`, addresses; those with nothing but padding between them as one section. An address where
/// no bundle starts is left out.
pub(super) fn bundles(
    source: &mut dyn ReadAt,
    view: &ElfView,
    targets: impl Iterator<Item = u64>,
) -> Result<Vec<BundleSection>> {
    let place = |address: u64| {
        let (_, load) = view.loads().find(|(_, load)| {
            address.checked_sub(load.address).is_some_and(|within| within < load.file_size)
        })?;
        Some((load.offset + (address - load.address), load.file_end(), address))
    };
    let mut places: Vec<(u64, u64, u64)> = targets.filter_map(place).collect();
    places.sort_unstable();
    places.dedup();
    let mut sections: Vec<BundleSection> = Vec::new();
    for (offset, end, address) in places {
        if sections.last().is_some_and(|last| offset < last.range.end) {
            continue;
        }
        let start = source.read_vec(offset, (bundle::MAGIC.len() as u64).min(end - offset), "bundle")?;
        if !start.starts_with(bundle::MAGIC) && !start.starts_with(ccob::MAGIC) {
            continue;
        }
        let rest = BundleSection { address, range: offset..end };
        let Some(bundle) = Bundles::new(source, &rest)?.next().transpose()? else {
            continue;
        };
        let range = offset..offset + bundle.length;
        match sections.last_mut() {
            Some(last)
                if address.wrapping_sub(last.address) == offset - last.range.start
                    && is_padding(source, last.range.end..offset)? =>
            {
                last.range.end = range.end;
            }
            _ => sections.push(BundleSection { address, range }),
        }
    }
    sections.sort_by_key(|section| section.address);
    Ok(sections)
}

fn is_padding(source: &mut dyn ReadAt, gap: Range<u64>) -> Result<bool> {
    let length = gap.end - gap.start;
    if length > MAX_PADDING {
        return Ok(false);
    }
    Ok(source.read_vec(gap.start, length, "padding between bundles")?.iter().all(|&byte| byte == 0))
}
