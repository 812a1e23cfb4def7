//! What names memory by RVA: data directories, entry point, debug entries. None of it may be in a bundle.

use object::LittleEndian as LE;
use object::pe::IMAGE_DIRECTORY_ENTRY_SECURITY;

use super::PeLayout;
use super::headers::Headers;
use crate::fault::{Fault, Result};

/// Fails if a data directory or the entry point lies in a bundle section. `bundles` are indices of sections.
pub(super) fn check_headers(headers: &Headers, bundles: &[usize]) -> Result<()> {
    let bundles = || bundles.iter().map(|&index| &headers.sections[index]);
    for (index, directory) in headers.directories.iter().enumerate() {
        let range = directory.range();
        if index == IMAGE_DIRECTORY_ENTRY_SECURITY || range.is_empty() {
            continue;
        }
        if let Some(section) =
            bundles().find(|section| section.rvas().start < range.end && range.start < section.rvas().end)
        {
            return Err(Fault::unsupported(
                format!("data directory {index}"),
                headers.nt_offset,
                format!("RVAs {:#x}..{:#x} reach into {}", range.start, range.end, section.label()),
            ));
        }
    }
    let entry = u64::from(headers.nt.optional_header.address_of_entry_point.get(LE));
    if let Some(section) = bundles().find(|section| section.rvas().contains(&entry)) {
        return Err(Fault::unsupported(
            "entry point",
            headers.nt_offset,
            format!("RVA {entry:#x} is inside {}", section.label()),
        ));
    }
    Ok(())
}

/// Fails if a debug directory entry names memory in a bundle section. (Its file offset is looked at when it
/// moves.)
pub(super) fn check_debug(layout: &PeLayout) -> Result<()> {
    let bundles = || layout.bundles.iter().map(|&index| &layout.headers.sections[index]);
    for (index, entry) in layout.debug.iter().flat_map(|debug| debug.entries().enumerate()) {
        let start = u64::from(entry.address_of_raw_data.get(LE));
        let end = start + u64::from(entry.size_of_data.get(LE));
        if let Some(section) =
            bundles().find(|section| section.rvas().start < end && start < section.rvas().end)
        {
            return Err(Fault::unsupported(
                format!("debug directory entry {index}"),
                None,
                format!("RVAs {start:#x}..{end:#x} reach into {}", section.label()),
            ));
        }
    }
    Ok(())
}
