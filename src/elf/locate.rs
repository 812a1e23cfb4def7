//! Is this file a fat binary, and where are its wrappers and bundles?
//!
//! A fat binary has wrappers in `.hipFatBinSegment` and bundles in `.hip_fatbin`, as clang names them (wrapper: see
//! [`crate::fatbin::wrapper`]); without section headers, see [`bare`]. What a wrapper's pointer holds at run time comes from a relocation, or from the
//! bytes in place (see [`Pointer`]).
//!
//! Invariants of an [`ElfLayout`]: every HIPF wrapper's target is in one of the bundle sections; no other relocation
//! leads into one; every bundle section is the content of one PT_LOAD. Without section headers, what counts as a section
//! is a row of bundles.

use std::collections::HashMap;

use super::bare;
use super::relocations::{Pointer, Walk};
use super::view::{ElfView, Window};
use crate::fatbin::wrapper::{
    BundleSection, HIPF_MAGIC, HIPK_MAGIC, Located, MAX_WRAPPERS, WRAPPER_BINARY, WRAPPER_LEN, Wrapper,
};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// The name of a section of bundles.
pub(super) const BUNDLE_SECTION: &str = ".hip_fatbin";
/// The name of the section of wrappers.
pub(super) const WRAPPER_SECTION: &str = ".hipFatBinSegment";

/// Linkers make one bundle section, odd scripts a few.
const MAX_BUNDLE_SECTIONS: usize = 64;

/// A fat ELF binary, as far as a split must know it.
#[derive(Clone, Debug)]
pub struct ElfLayout {
    /// `e_machine`.
    pub machine: u16,
    /// The `.hip_fatbin` sections, in ascending order of their addresses.
    pub sections: Vec<BundleSection>,
    /// All wrappers, HIPK ones too, in the order of `.hipFatBinSegment`. A wrapper's place here is its code-object
    /// index.
    pub wrappers: Vec<Wrapper>,
    /// For each bundle section, its section header's index; empty if the file has no section headers.
    pub(super) bundle_indices: Vec<usize>,
    /// For each wrapper, how its pointer gets its value.
    pub(super) pointers: Vec<Pointer>,
    pub(super) view: ElfView,
}

/// Whether a file that starts with `prefix` is ELF of any kind.
pub fn is_elf(prefix: &[u8]) -> bool {
    prefix.starts_with(&object::elf::ELFMAG)
}

/// Finds wrappers and bundles.
///
/// Reads the headers, the section names, and, if there are wrappers, these, `.dynamic`, `.dynsym`, every relocation
/// table and every pointer that RELR relocates; never a bundle.
///
/// 32-bit and big-endian files, objects, core files, files without section names and `.debug` files (whose bundle
/// section is NOBITS) are [`Located::Plain`]. Of a file without section headers every loaded byte is read.
///
/// # Errors
/// A [`Fault`] if the file has a bundle section or wrappers and does not keep the module's invariants, or if it is cut
/// short.
pub fn locate(source: &mut dyn ReadAt) -> Result<Located<ElfLayout>> {
    let Some(mut view) = ElfView::parse(source)? else {
        return Ok(Located::Plain);
    };
    if view.sections.is_empty() {
        return locate_bare(source, view);
    }
    let [mut bundles, mut wrappers] = view.find_sections(source, [BUNDLE_SECTION, WRAPPER_SECTION])?;
    bundles.retain(|&index| view.sections[index].in_file());
    wrappers.retain(|&index| view.sections[index].in_file());
    if bundles.is_empty() && wrappers.is_empty() {
        return Ok(Located::Plain);
    }
    view.check()?;
    if wrappers.is_empty() {
        return Err(Fault::unsupported(
            BUNDLE_SECTION,
            view.sections[bundles[0]].offset,
            format!("there is no section {WRAPPER_SECTION} with the wrappers that use it"),
        ));
    }
    let raw = read_wrappers(source, &view, &wrappers)?;
    if raw.iter().all(|wrapper| wrapper.magic == HIPK_MAGIC) {
        return Ok(Located::AlreadySplit);
    }
    if bundles.is_empty() {
        return Err(Fault::unsupported(
            WRAPPER_SECTION,
            view.sections[wrappers[0]].offset,
            format!("there is no section {BUNDLE_SECTION} with the bundles that the wrappers use"),
        ));
    }
    view.machine()?;
    if bundles.len() > MAX_BUNDLE_SECTIONS {
        let message =
            format!("{} sections of this name, at most {MAX_BUNDLE_SECTIONS} are supported", bundles.len());
        return Err(Fault::unsupported(BUNDLE_SECTION, None, message));
    }
    for &index in &bundles {
        let section = &view.sections[index];
        if !section.is_allocated() || !view.is_mapped(section) {
            return Err(Fault::unsupported(
                BUNDLE_SECTION,
                section.offset,
                format!("address {:#x} is not where a PT_LOAD maps the section's bytes", section.address),
            ));
        }
    }
    bundles.sort_by_key(|&index| view.sections[index].address);
    let sections: Vec<BundleSection> = bundles
        .iter()
        .map(|&index| &view.sections[index])
        .map(|section| BundleSection { address: section.address, range: section.offset..section.file_end() })
        .collect();
    view.read_dynamic(source)?;
    let (wrappers, pointers) = resolve(source, &view, &sections, raw)?;
    Ok(Located::Fat(ElfLayout {
        machine: view.header.machine,
        sections,
        wrappers,
        bundle_indices: bundles,
        pointers,
        view,
    }))
}

/// A wrapper as it is in the file.
pub(super) struct RawWrapper {
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) magic: u32,
    /// `binary`, before relocation.
    pub(super) binary: u64,
}

/// [`locate`] for a file without section headers.
fn locate_bare(source: &mut dyn ReadAt, mut view: ElfView) -> Result<Located<ElfLayout>> {
    // A machine that hosts no GPU: code for one, among others.
    if view.machine().is_err() {
        return Ok(Located::Plain);
    }
    let mut raw = bare::wrappers(source, &view)?;
    if raw.is_empty() {
        return Ok(Located::Plain);
    }
    if raw.iter().all(|wrapper| wrapper.magic == HIPK_MAGIC) {
        return Ok(Located::AlreadySplit);
    }
    view.check()?;
    view.read_dynamic(source)?;
    let found = Walk::run(source, &view, &[], &pointers_of(&raw)?)?;
    let targets = raw
        .iter()
        .zip(found)
        .filter(|(wrapper, _)| wrapper.magic == HIPF_MAGIC)
        .map(|(wrapper, found)| found.map_or(wrapper.binary, |(_, target)| target));
    let sections = bare::bundles(source, &view, targets)?;
    // Code objects can hold anything.
    raw.retain(|wrapper| sections.iter().all(|section| !section.range.contains(&wrapper.offset)));
    if sections.len() > MAX_BUNDLE_SECTIONS {
        let message =
            format!("{} rows of bundles, at most {MAX_BUNDLE_SECTIONS} are supported", sections.len());
        return Err(Fault::unsupported("device code", None, message));
    }
    let (wrappers, pointers) = resolve(source, &view, &sections, raw)?;
    let machine = view.header.machine;
    Ok(Located::Fat(ElfLayout { machine, sections, wrappers, bundle_indices: Vec::new(), pointers, view }))
}

/// The address of each wrapper's pointer, to the wrapper's place.
fn pointers_of(raw: &[RawWrapper]) -> Result<HashMap<u64, usize>> {
    let pointers: HashMap<u64, usize> =
        raw.iter().enumerate().map(|(index, wrapper)| (wrapper.address + WRAPPER_BINARY, index)).collect();
    if pointers.len() != raw.len() {
        return Err(Fault::unsupported(WRAPPER_SECTION, None, "two wrappers have the same address"));
    }
    Ok(pointers)
}

fn read_wrappers(source: &mut dyn ReadAt, view: &ElfView, sections: &[usize]) -> Result<Vec<RawWrapper>> {
    let mut wrappers = Vec::new();
    let total: u64 = sections.iter().map(|&index| view.sections[index].size / WRAPPER_LEN).sum();
    if total > MAX_WRAPPERS {
        let message = format!("{total} wrappers, at most {MAX_WRAPPERS} are supported");
        return Err(Fault::unsupported(WRAPPER_SECTION, None, message));
    }
    let mut window = Window::new(source);
    for section in sections.iter().map(|&index| &view.sections[index]) {
        if !view.is_mapped(section) {
            return Err(Fault::unsupported(
                WRAPPER_SECTION,
                section.offset,
                format!("address {:#x} is not where a PT_LOAD maps the section's bytes", section.address),
            ));
        }
        let (mut at, mut index) = (0, 0);
        // What linkers fill in between is zero: up to an alignment, or what a script asks for.
        while section.size - at >= WRAPPER_LEN {
            let offset = section.offset + at;
            let word: [u8; 8] = window.get(offset, WRAPPER_SECTION)?;
            if word == [0; 8] {
                at += word.len() as u64;
                continue;
            }
            let magic = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if magic != HIPF_MAGIC && magic != HIPK_MAGIC {
                return Err(Fault::unsupported(
                    WRAPPER_SECTION,
                    offset,
                    format!(
                        "wrapper {index} has magic {magic:#010x}, expected HIPF ({HIPF_MAGIC:#010x}) or HIPK ({HIPK_MAGIC:#010x})"
                    ),
                ));
            }
            let binary = u64::from_le_bytes(window.get(offset + WRAPPER_BINARY, WRAPPER_SECTION)?);
            wrappers.push(RawWrapper { offset, address: section.address + at, magic, binary });
            at += WRAPPER_LEN;
            index += 1;
        }
        for offset in section.offset + at..section.file_end() {
            let [byte] = window.get(offset, WRAPPER_SECTION)?;
            if byte != 0 {
                return Err(Fault::unsupported(
                    WRAPPER_SECTION,
                    offset,
                    format!(
                        "wrappers and zeros end here, {:#x} bytes before the section, and the rest is neither",
                        section.size - at
                    ),
                ));
            }
        }
    }
    if wrappers.is_empty() {
        return Err(Fault::unsupported(
            WRAPPER_SECTION,
            view.sections[sections[0]].offset,
            format!("{:#x} bytes hold no wrapper", view.sections[sections[0]].size),
        ));
    }
    Ok(wrappers)
}

/// Follows every wrapper's pointer.
fn resolve(
    source: &mut dyn ReadAt,
    view: &ElfView,
    sections: &[BundleSection],
    raw: Vec<RawWrapper>,
) -> Result<(Vec<Wrapper>, Vec<Pointer>)> {
    let found = Walk::run(source, view, sections, &pointers_of(&raw)?)?;
    let in_bundle = |address: u64| {
        sections
            .iter()
            .any(|section| address.wrapping_sub(section.address) < section.range.end - section.range.start)
    };
    let (mut wrappers, mut pointers) = (Vec::with_capacity(raw.len()), Vec::with_capacity(raw.len()));
    for (index, (wrapper, found)) in raw.into_iter().zip(found).enumerate() {
        let (pointer, target) = found.unwrap_or((Pointer::InPlace, wrapper.binary));
        if (wrapper.magic == HIPF_MAGIC) != in_bundle(target) {
            let (is, must) = if wrapper.magic == HIPF_MAGIC { ("HIPF", "be") } else { ("HIPK", "not be") };
            return Err(Fault::unsupported(
                WRAPPER_SECTION,
                wrapper.offset,
                format!(
                    "wrapper {index} ({is}) points at address {target:#x}, which must {must} in {BUNDLE_SECTION}"
                ),
            ));
        }
        let RawWrapper { offset, address, magic, .. } = wrapper;
        wrappers.push(Wrapper { offset, address, magic, target });
        pointers.push(pointer);
    }
    Ok((wrappers, pointers))
}
