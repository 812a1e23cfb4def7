//! Parses a rewritten file again and compares it with what a split promises, from the output's bytes and the layout
//! of the input alone: nothing of the planner's arithmetic is used but the edits themselves.
//!
//! Checked: headers and tables parse; every byte of every PT_LOAD outside the bundle sections is at its address, with
//! its protection, and its file bytes are those that the edits put there; halves of a PT_LOAD share no page; segments
//! and sections that were mapped are mapped; section count, kinds, links and names stay; every wrapper is HIPK, has
//! its index and points at the marker; the marker is where the section header says and is nothing but the marker;
//! what moved is what `.dynamic` names.

use std::ops::Range;

use object::elf;
use object::endian::LittleEndian as Le;

use super::headers::*;
use super::holes::{overlaps, without};
use super::locate::{ElfLayout, WRAPPER_SECTION};
use super::names::MARKER_SECTION;
use super::relocations::Pointer;
use super::room::is_address;
use super::view::ElfView;
use crate::edit::{BinaryPlan, Edit, EditPlan};
use crate::fatbin::wrapper::{HIPF_MAGIC, HIPK_MAGIC, WRAPPER_BINARY, WRAPPER_LEN, WRAPPER_RESERVED1};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Checks the file that `plan` has made of the one that `layout` was located in. `output` is read in the ranges of
/// [`BinaryPlan::verify`] only. `marker` is what [`plan`](super::plan()) was given.
///
/// # Errors
/// A [`Fault`] of kind [`Malformed`](crate::fault::FaultKind::Malformed) that names the broken promise: an error in
/// fatwheel, not in the input.
pub fn verify(output: &mut dyn ReadAt, layout: &ElfLayout, marker: &[u8], plan: &BinaryPlan) -> Result<()> {
    let new =
        ElfView::parse(output)?.ok_or_else(|| broken("ELF header", None, "the result is no ELF file"))?;
    new.check()?;
    let check = Check { old: &layout.view, new: &new, layout, places: Places::new(&plan.edits) };
    check.header(plan)?;
    check.loads()?;
    check.segments()?;
    check.sections(output, marker)?;
    check.wrappers(output, marker)
}

fn broken(place: impl Into<String>, offset: impl Into<Option<u64>>, message: impl Into<String>) -> Fault {
    let message = message.into();
    Fault::malformed(place, offset, format!("the rewritten file breaks a promise: {message}"))
}

/// Where input bytes stand in the output, by the edits.
struct Places<'plan> {
    edits: &'plan [Edit],
    /// For every edit: the input and the output offset it starts at.
    starts: Vec<(u64, u64)>,
}

impl<'plan> Places<'plan> {
    fn new(plan: &'plan EditPlan) -> Self {
        let (mut input_at, mut output_at) = (0, 0);
        let mut starts = Vec::with_capacity(plan.edits().len());
        for edit in plan.edits() {
            starts.push((input_at, output_at));
            input_at += edit.consumes();
            output_at += edit.produces();
        }
        Self { edits: plan.edits(), starts }
    }

    fn output(&self, offset: u64) -> Option<u64> {
        let index = self.starts.partition_point(|&(input_at, _)| input_at <= offset).checked_sub(1)?;
        let (input_at, output_at) = self.starts[index];
        let edit = &self.edits[index];
        let within = offset - input_at;
        (within < edit.consumes() && !matches!(edit, Edit::Drop(_))).then(|| output_at + within)
    }
}

struct Check<'a> {
    old: &'a ElfView,
    new: &'a ElfView,
    layout: &'a ElfLayout,
    places: Places<'a>,
}

impl Check<'_> {
    fn header(&self, plan: &BinaryPlan) -> Result<()> {
        let (old, new) = (&self.old.header, &self.new.header);
        if (old.kind, old.machine, old.entry) != (new.kind, new.machine, new.entry) {
            return Err(broken("ELF header", 0, "type, machine or entry point changed"));
        }
        if self.new.length != plan.edits.output_len() {
            return Err(broken(
                "file",
                None,
                format!("{:#x} bytes, {:#x} were planned", self.new.length, plan.edits.output_len()),
            ));
        }
        if (self.old.sections.len(), self.old.names) != (self.new.sections.len(), self.new.names) {
            return Err(broken("section header table", new.sections_at, "the count of sections changed"));
        }
        if old.segments_at == FILE_HEADER_LEN && new.segments_at != FILE_HEADER_LEN {
            return Err(broken("ELF header", 32, "the program header table moved"));
        }
        Ok(())
    }

    /// Every address range of a PT_LOAD that is no bundle's, with its file bytes.
    fn loads(&self) -> Result<()> {
        for (index, load) in self.old.loads() {
            let bundles = self.layout.sections.iter();
            let bundles = bundles.map(|b| b.address..b.address + (b.range.end - b.range.start));
            for part in without(load.address..load.memory_end(), bundles) {
                self.kept(index, load, part)?;
            }
        }
        let page = self.old.loads().map(|(_, load)| load.align).max().unwrap_or(0);
        let page = page.clamp(0x1000, self.old.machine()?.page);
        let pairs: Vec<(&Segment, &Segment)> =
            self.new.loads().zip(self.new.loads().skip(1)).map(|((_, one), (_, two))| (one, two)).collect();
        for (one, two) in pairs {
            let shares = |end: u64, start: u64| end > 0 && (end - 1) / page >= start / page;
            let before = self.old.loads().any(|(_, load)| load.address == two.address);
            if !before && shares(one.memory_end(), two.address) {
                return Err(broken(
                    "program header table",
                    None,
                    format!("two PT_LOADs share the page of address {:#x}", two.address),
                ));
            }
        }
        Ok(())
    }

    fn kept(&self, index: usize, load: &Segment, part: Range<u64>) -> Result<()> {
        let fault = |message: String| Err(broken(format!("program header {index} (PT_LOAD)"), None, message));
        let mut address = part.start;
        while address < part.end {
            let found =
                self.new.loads().find(|(_, new)| new.address <= address && address < new.memory_end());
            let Some((_, new)) = found else {
                return fault(format!("address {address:#x} is no longer mapped"));
            };
            if new.flags != load.flags {
                return fault(format!("the protection at address {address:#x} changed"));
            }
            let end = part.end.min(new.memory_end());
            let file_end = |load: &Segment| end.min(load.address + load.file_size).max(address);
            if file_end(load) != file_end(new) {
                return fault(format!(
                    "the bytes from address {address:#x} on are no longer all in the file"
                ));
            }
            let last = file_end(load);
            let places = if address < last { &[address, last - 1][..] } else { &[] };
            for &place in places {
                let was = load.offset + place.wrapping_sub(load.address);
                let is = new.offset + place.wrapping_sub(new.address);
                if self.places.output(was) != Some(is) {
                    return fault(format!(
                        "address {place:#x} maps offset {is:#x}, its byte stands at {:#x?}",
                        self.places.output(was)
                    ));
                }
            }
            address = end;
        }
        Ok(())
    }

    fn segments(&self) -> Result<()> {
        let others = |view: &ElfView| -> Vec<(usize, Segment)> {
            let wanted =
                |(_, segment): &(usize, &Segment)| !matches!(segment.kind, PT_NULL | PT_LOAD | PT_PHDR);
            view.segments.iter().enumerate().filter(wanted).map(|(index, s)| (index, s.clone())).collect()
        };
        let (old, new) = (others(self.old), others(self.new));
        let same = |((_, old), (_, new)): (&(usize, Segment), &(usize, Segment))| {
            (old.kind, old.flags, old.file_size, old.memory_size, old.align)
                == (new.kind, new.flags, new.file_size, new.memory_size, new.align)
        };
        if old.len() != new.len() || !old.iter().zip(&new).all(same) {
            return Err(broken("program header table", None, "a header that is no PT_LOAD changed"));
        }
        for ((_, old), (index, new)) in old.iter().zip(&new) {
            let mapped = |view: &ElfView, segment: &Segment| {
                segment.file_size == 0
                    || view.loads().any(|(_, load)| {
                        load.offset <= segment.offset
                            && segment.file_end() <= load.file_end()
                            && segment.address.wrapping_sub(segment.offset)
                                == load.address.wrapping_sub(load.offset)
                    })
            };
            if mapped(self.old, old) && !mapped(self.new, new) {
                let place = format!("program header {index} ({})", new.name());
                return Err(broken(place, None, "it is not mapped where it says"));
            }
        }
        let table = self.new.segment_table();
        let covers = |view: &ElfView, table: &Range<u64>| {
            view.loads().find(|(_, load)| load.offset <= table.start && table.end <= load.file_end()).map(
                |(index, load)| {
                    let first = view.loads().next().map_or(index, |(first, _)| first);
                    (load.address.wrapping_sub(load.offset), index == first)
                },
            )
        };
        let (was, is) = (covers(self.old, &self.old.segment_table()), covers(self.new, &table));
        if was.is_some() && was != is {
            return Err(broken("program header table", table.start, "it is not mapped where it was"));
        }
        let is_table = |view: &ElfView, covered: Option<(u64, bool)>| {
            let mut headers = view.segments.iter().filter(|segment| segment.kind == PT_PHDR);
            headers.all(|header| {
                let bias = header.address.wrapping_sub(header.offset);
                (header.offset..header.file_end()) == view.segment_table()
                    && header.memory_size == header.file_size
                    && covered.is_none_or(|(mapped, _)| mapped == bias)
            })
        };
        if is_table(self.old, was) && !is_table(self.new, is) {
            return Err(broken("program header table", table.start, "PT_PHDR is not the table"));
        }
        Ok(())
    }

    fn sections(&self, output: &mut dyn ReadAt, marker: &[u8]) -> Result<()> {
        for (index, (old, new)) in self.old.sections.iter().zip(&self.new.sections).enumerate().skip(1) {
            let fault = |message: &str| Err(broken(format!("section header {index}"), None, message));
            if (old.kind, old.flags, old.link, old.info, old.align, old.entry_size)
                != (new.kind, new.flags, new.link, new.info, new.align, new.entry_size)
            {
                return fault("type, flags, links, alignment or entry size changed");
            }
            if self.layout.bundle_indices.contains(&index) {
                let names = &self.new.sections[self.new.names];
                let length = MARKER_SECTION.len() as u64 + 1;
                let name = output.read_vec(names.offset + u64::from(new.name), length, "section name")?;
                if name.strip_suffix(b"\0") != Some(MARKER_SECTION.as_bytes()) {
                    return fault("the name of the marker section is wrong");
                }
                if new.size > 0 && output.read_vec(new.offset, new.size, "marker")? != marker {
                    return fault("the content of the marker section is not the marker");
                }
                if !self.new.is_mapped(new) {
                    return fault("the marker section is not mapped");
                }
                continue;
            }
            if old.name != new.name || index != self.old.names && old.size != new.size {
                return fault("name or size changed");
            }
            if index == self.old.names {
                let own = new.offset..new.file_end();
                let others =
                    self.new.sections.iter().enumerate().filter(|(other, s)| *other != index && s.in_file());
                let mut others = others.map(|(_, section)| section.offset..section.file_end());
                if new.size <= old.size || others.any(|other| overlaps(&own, &other)) {
                    return fault("the section name table has no room for the new name");
                }
                continue;
            }
            if old.address != new.address {
                self.moved(output, index, old, new)?;
            } else if old.in_file() && self.places.output(old.offset) != Some(new.offset) {
                return fault("the header does not follow the section's bytes");
            }
            if old.in_file() && old.is_allocated() && self.old.is_mapped(old) && !self.new.is_mapped(new) {
                return fault("the section is no longer mapped at its address");
            }
        }
        Ok(())
    }

    /// A section that made way for the program headers: what names it in `.dynamic` must follow.
    fn moved(&self, output: &mut dyn ReadAt, index: usize, old: &Section, new: &Section) -> Result<()> {
        let fault = |message: String| Err(broken(format!("section header {index}"), None, message));
        if !old.is_allocated() || old.address % old.align.max(1) != new.address % new.align.max(1) {
            return fault(format!("it moved from address {:#x} to {:#x}", old.address, new.address));
        }
        for entry in self.old.dynamic.iter().filter(|entry| entry.value == old.address) {
            if !is_address(entry.tag) {
                continue;
            }
            let at = self.places.output(entry.value_at).unwrap_or(u64::MAX);
            let value = output.read_vec(at, 8, "dynamic section")?;
            if value != new.address.to_le_bytes() {
                return fault(format!(
                    "dynamic tag {:#x} does not follow it to {:#x}",
                    entry.tag, new.address
                ));
            }
        }
        Ok(())
    }

    fn wrappers(&self, output: &mut dyn ReadAt, marker: &[u8]) -> Result<()> {
        let machine = self.old.machine()?;
        let mut address = None;
        for (index, (wrapper, pointer)) in self.layout.wrappers.iter().zip(&self.layout.pointers).enumerate()
        {
            if wrapper.magic != HIPF_MAGIC {
                continue;
            }
            let Some(at) = self.new.offset_of(wrapper.address) else {
                return Err(broken(WRAPPER_SECTION, None, format!("wrapper {index} is not mapped")));
            };
            let fault = |message: String| Err(broken(WRAPPER_SECTION, at, message));
            let bytes = output.read_vec(at, WRAPPER_LEN, WRAPPER_SECTION)?;
            let field = |from: u64, length: usize| {
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                bytes.get(from..from.saturating_add(length)).unwrap_or_default().to_vec()
            };
            if field(0, 4) != HIPK_MAGIC.to_le_bytes() {
                return fault(format!("wrapper {index} is not HIPK"));
            }
            if field(WRAPPER_RESERVED1, 4) != (index as u32).to_le_bytes() {
                return fault(format!("wrapper {index} has another code-object index"));
            }
            let in_place = field(WRAPPER_BINARY, 8).try_into().map_or(0, u64::from_le_bytes);
            let target = match *pointer {
                Pointer::InPlace | Pointer::Relr => in_place,
                Pointer::Rela { entry, rela } => {
                    let at = self.places.output(entry).unwrap_or(u64::MAX);
                    let bytes = output.read_vec(at, RELA_LEN, "relocation table")?;
                    let found = record::<elf::Rela64<Le>>(&bytes, 0).map(Rela::parse);
                    match found {
                        Some(found)
                            if (found.address, found.symbol, found.kind)
                                == (rela.address, 0, machine.relative)
                                && (in_place == 0 || in_place == found.addend) =>
                        {
                            found.addend
                        }
                        _ => {
                            return fault(format!(
                                "wrapper {index} has a relocation entry that is not relative"
                            ));
                        }
                    }
                }
            };
            if *address.get_or_insert(target) != target {
                return fault(format!(
                    "wrapper {index} points at {target:#x}, another marker than the others"
                ));
            }
        }
        let Some(at) = address.and_then(|address| self.new.offset_of(address)) else {
            return Err(broken(WRAPPER_SECTION, None, "the wrappers point at unmapped memory"));
        };
        if output.read_vec(at, marker.len() as u64, "marker")? != marker {
            return Err(broken(WRAPPER_SECTION, at, "the wrappers do not point at the marker"));
        }
        Ok(())
    }
}
