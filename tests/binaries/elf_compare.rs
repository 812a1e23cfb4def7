//! Is an ELF file, after a split, the same program without its device code? The differences that are allowed are
//! those of the rewritten binary's specification and no others: wrapper fields, the relocation entries of wrapper
//! pointers, headers, what made way for the program headers, the bundles, and section names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::elf_file::*;
use super::elf_image::*;

const BUNDLES: &[u8] = b".hip_fatbin";
const WRAPPERS: &str = ".hipFatBinSegment";
const MARKER: &[u8] = b".rocm_kpack_ref";
const PAGE: u64 = 0x1000;

/// Tags whose value is an address, of those that shared objects have.
const ADDRESS_TAGS: [u64; 20] = [
    3,
    4,
    5,
    6,
    7,
    12,
    13,
    17,
    21,
    23,
    25,
    26,
    32,
    36,
    0x6fff_fef5,
    0x6fff_fef6,
    0x6fff_fef7,
    0x6fff_fff0,
    0x6fff_fffc,
    0x6fff_fffe,
];

/// Both files, their processes, and what is found to be wrong.
struct Comparison<'a> {
    old: Elf<'a>,
    new: Elf<'a>,
    /// The file whose sections say what is a wrapper and what is a bundle.
    named: Elf<'a>,
    old_image: Image,
    new_image: Image,
    marker: &'a [u8],
    /// Addresses of the bundles.
    bundles: Vec<Range<u64>>,
    /// Old and new addresses of sections that made way.
    moved: Vec<(Range<u64>, u64)>,
    problems: Vec<String>,
}

/// The addresses of the whole wrappers of a section.
fn wrappers(section: &Section) -> impl Iterator<Item = u64> + use<> {
    let start = section.address;
    (0..section.size / 24).map(move |index| start + 24 * index)
}

/// Every difference that is not allowed; empty if the split is right.
pub fn compare(before: &[u8], after: &[u8], marker: &[u8]) -> Vec<String> {
    compare_like(before, before, after, marker)
}

/// [`compare`] for files that may have no section headers: `named` has the same addresses, and section headers.
pub fn compare_like(named: &[u8], before: &[u8], after: &[u8], marker: &[u8]) -> Vec<String> {
    let (old, new, named) = (Elf::parse(before), Elf::parse(after), Elf::parse(named));
    let (old_image, new_image) = (Image::load(&old), Image::load(&new));
    let mut bundles: Vec<Range<u64>> = named
        .sections
        .iter()
        .filter(|section| section.name == BUNDLES && section.has_bytes())
        .map(Section::memory)
        .collect();
    if old.sections.is_empty() {
        // The padding between two bundles is nobody's that could be told.
        bundles.sort_by_key(|bundle| bundle.start);
        let starts: Vec<u64> = bundles.iter().skip(1).map(|bundle| bundle.start).collect();
        for (bundle, next) in bundles.iter_mut().zip(starts) {
            bundle.end = if next - bundle.end < PAGE { next } else { bundle.end };
        }
    }
    let moved = old
        .sections
        .iter()
        .zip(&new.sections)
        .filter(|(one, two)| one.is_allocated() && one.name != BUNDLES && one.address != two.address)
        .map(|(one, two)| (one.memory(), two.address))
        .collect();
    let problems = Vec::new();
    let mut comparison =
        Comparison { old, new, named, old_image, new_image, marker, bundles, moved, problems };
    comparison.headers();
    comparison.segments();
    comparison.file_layout();
    comparison.memory();
    comparison.protections();
    comparison.relocations();
    comparison.dynamic();
    comparison.lookups();
    comparison.sections();
    comparison.wrappers();
    comparison.device_code();
    comparison.problems
}

impl Comparison<'_> {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }

    fn in_bundle(&self, address: u64) -> bool {
        self.bundles.iter().any(|bundle| bundle.contains(&address))
    }

    fn new_address(&self, address: u64) -> u64 {
        let moved = self.moved.iter().find(|(old, _)| old.contains(&address));
        moved.map_or(address, |(old, to)| to + (address - old.start))
    }

    fn headers(&mut self) {
        let identity =
            |elf: &Elf<'_>| (elf.bytes[..16].to_vec(), elf.kind, elf.machine, elf.entry, elf.flags);
        let same = identity(&self.old) == identity(&self.new);
        self.expect(same, || "the ELF header changed".into());
        let table = |elf: &Elf<'_>| (elf.names, elf.sections.len());
        let same = table(&self.old) == table(&self.new);
        self.expect(same, || "the number of sections or of the name table changed".into());
        // Kernels before 5.18 take AT_PHDR to be the first PT_LOAD's bias + e_phoff.
        let right = |elf: &Elf<'_>| {
            let first = elf.loads().next().unwrap();
            let table = elf.segment_table();
            let covers = |load: &&Segment| load.offset <= table.start && table.end <= load.file().end;
            elf.loads().find(covers).map(|load| {
                first.address.wrapping_sub(first.offset) == load.address.wrapping_sub(load.offset)
            })
        };
        let (was, is) = (right(&self.old), right(&self.new));
        self.expect(was.is_none() || is.is_some(), || "the program header table is not mapped".into());
        self.expect(was != Some(true) || is == Some(true), || "an old kernel gets AT_PHDR wrong".into());
    }

    fn segments(&mut self) {
        let mut problems = Vec::new();
        let mut previous_end = 0;
        let page = self.new.page();
        let shared = |elf: &Elf<'_>, address: u64| elf.loads().any(|load| load.address == address);
        for load in self.new.loads() {
            let place = format!("PT_LOAD at {:#x}", load.address);
            if !load.align.is_power_of_two() || load.align < PAGE && self.old.loads().all(|l| l.align >= PAGE)
            {
                problems.push(format!("{place}: p_align is {:#x}", load.align));
            } else if load.address % load.align != load.offset % load.align {
                problems.push(format!("{place}: offset {:#x} is not congruent", load.offset));
            }
            if load.memory_size < load.file_size || load.file().end > self.new.bytes.len() as u64 {
                problems.push(format!("{place}: bad sizes"));
            }
            if load.address < previous_end {
                problems.push(format!("{place}: not in order, or overlaps the one before"));
            } else if previous_end > 0
                && (previous_end - 1) / page >= load.address / page
                && !shared(&self.old, load.address)
            {
                problems.push(format!("{place}: shares a page of {page:#x} with the one before"));
            }
            previous_end = load.memory().end;
        }
        // The others: one for one, in order, with the same bytes.
        let others = |elf: &Elf<'_>| -> Vec<Segment> {
            let other = |segment: &&Segment| !matches!(segment.kind, 0 | PT_LOAD | PT_PHDR);
            elf.segments.iter().filter(other).cloned().collect()
        };
        let (old, new) = (others(&self.old), others(&self.new));
        if old.len() != new.len() {
            problems.push(format!("{} program headers beside PT_LOADs, now {}", old.len(), new.len()));
        }
        for (one, two) in old.iter().zip(&new) {
            let place = format!("program header of type {:#x}", one.kind);
            let same = |segment: &Segment| {
                (segment.kind, segment.flags, segment.file_size, segment.memory_size, segment.align)
            };
            if same(one) != same(two) || two.address != self.new_address(one.address) {
                problems.push(format!("{place}: {one:x?} became {two:x?}"));
            }
            let mapped = |elf: &Elf<'_>, segment: &Segment| {
                elf.loads().any(|load| {
                    load.offset <= segment.offset
                        && segment.file().end <= load.file().end
                        && load.address.wrapping_sub(load.offset)
                            == segment.address.wrapping_sub(segment.offset)
                })
            };
            if one.file_size > 0 && mapped(&self.old, one) && !mapped(&self.new, two) {
                problems.push(format!("{place}: is not mapped where it says"));
            }
            let bytes = |elf: &Elf<'_>, segment: &Segment| {
                let file = segment.file();
                elf.bytes.get(file.start as usize..file.end as usize).map(<[u8]>::to_vec)
            };
            // patchelf 0.14 moves the note that PT_GNU_PROPERTY names and leaves the header behind.
            // .dynamic names what moved; PT_GNU_RELRO holds wrappers and .dynamic. Both are compared as memory.
            let stale = one.kind == PT_GNU_PROPERTY
                && bytes(&self.old, one).is_some_and(|bytes| bytes.get(12..16) != Some(b"GNU\0"));
            if !matches!(one.kind, PT_DYNAMIC | PT_GNU_RELRO | PT_GNU_STACK)
                && !stale
                && one.file_size > 0
                && bytes(&self.old, one) != bytes(&self.new, two)
            {
                problems.push(format!("{place}: the content changed"));
            }
        }
        let phdr = |elf: &Elf<'_>| elf.segments.iter().find(|segment| segment.kind == PT_PHDR).cloned();
        if let Some(header) = phdr(&self.new) {
            let table = self.new.segment_table();
            let load =
                self.new.loads().find(|load| load.offset <= table.start && table.end <= load.file().end);
            let mapped = load.is_none_or(|load| {
                load.address.wrapping_sub(load.offset) == header.address.wrapping_sub(header.offset)
            });
            if header.file() != table || header.memory_size != header.file_size || !mapped {
                problems.push("PT_PHDR is not the table".into());
            }
        } else if phdr(&self.old).is_some() && self.old.segments.iter().any(|s| s.kind == PT_INTERP) {
            problems.push("a dynamically linked program lost PT_PHDR".into());
        }
        self.problems.append(&mut problems);
    }

    /// Who stands where in the file.
    fn file_layout(&mut self) {
        let mut problems = Vec::new();
        let name = |section: &Section| String::from_utf8_lossy(&section.name).into_owned();
        let mut spans: Vec<(Range<u64>, String)> = self
            .new
            .sections
            .iter()
            .filter(|section| section.has_bytes())
            .map(|section| (section.file(), name(section)))
            .collect();
        spans.push((0..HEADER_LEN, "the ELF header".into()));
        spans.push((self.new.segment_table(), "the program header table".into()));
        spans.push((self.new.section_table(), "the section header table".into()));
        spans.sort_by_key(|(span, _)| (span.start, span.end));
        let overlapped = |elf: &Elf<'_>| {
            let mut all: Vec<Range<u64>> =
                elf.sections.iter().filter(|s| s.has_bytes()).map(Section::file).collect();
            all.sort_by_key(|span| (span.start, span.end));
            all.windows(2).any(|pair| overlap(&pair[0], &pair[1]))
        };
        for pair in spans.windows(2) {
            if overlap(&pair[0].0, &pair[1].0) && !overlapped(&self.old) {
                problems.push(format!("{} and {} overlap in the file", pair[0].1, pair[1].1));
            }
        }
        if spans.iter().any(|(span, _)| span.end > self.new.bytes.len() as u64) {
            problems.push("something ends past the end of the file".into());
        }
        let sections_at = self.new.sections_at;
        if self.old.sections_at.is_multiple_of(8) && !sections_at.is_multiple_of(8) {
            problems.push(format!("section headers at {sections_at:#x} are not aligned"));
        }
        for (one, two) in self.old.sections.iter().zip(&self.new.sections) {
            let aligned = |section: &Section| section.offset.is_multiple_of(section.align.max(1));
            if one.has_bytes() && !one.is_allocated() && aligned(one) && !aligned(two) {
                problems.push(format!("section {} is no longer aligned in the file", name(two)));
            }
        }
        // dwz insists on allocated sections before the others.
        let ordered = |elf: &Elf<'_>| {
            let with_bytes = || elf.sections.iter().filter(|section| section.has_bytes());
            let last = with_bytes().filter(|s| s.is_allocated()).map(|s| s.offset).max().unwrap_or(0);
            with_bytes().filter(|section| !section.is_allocated()).all(|section| section.offset > last)
        };
        if ordered(&self.old) && !ordered(&self.new) {
            problems.push("an allocated section stands behind others in the file".into());
        }
        self.problems.append(&mut problems);
    }

    /// Addresses whose bytes may change, beside the bundles'.
    fn may_change(&self) -> BTreeSet<u64> {
        let mut free = BTreeSet::new();
        for section in self.named.named(WRAPPERS) {
            for at in wrappers(section) {
                free.extend((at..at + 4).chain(at + 8..at + 24));
                if let Some(&entry) = self.old_image.rela_entries.get(&(at + 8)) {
                    free.extend(entry..entry + 24);
                }
            }
        }
        for (range, _) in &self.moved {
            free.extend(range.clone());
        }
        for elf in [&self.old, &self.new] {
            let tables = [0..HEADER_LEN, elf.segment_table()];
            for load in elf.loads() {
                for table in &tables {
                    let from = table.start.max(load.offset)..table.end.min(load.file().end);
                    free.extend(from.map(|offset| offset - load.offset + load.address));
                }
            }
        }
        // Values of address tags are compared as what they lead to.
        if let Some(segment) = self.old.segments.iter().find(|segment| segment.kind == PT_DYNAMIC) {
            for (index, (tag, _)) in self.old_image.dynamic.iter().enumerate() {
                let at = segment.address + 16 * index as u64;
                if ADDRESS_TAGS.contains(tag) {
                    free.extend(at + 8..at + 16);
                }
            }
        }
        // Only the padding between blocks that moved may be overwritten with them: by headers or zeros.
        let mut gap: Vec<u64> = Vec::new();
        for pair in self.moved.windows(2) {
            if pair[0].0.end < pair[1].0.start && pair[1].0.start - pair[0].0.end < 64 {
                gap.extend(pair[0].0.end..pair[1].0.start);
            }
        }
        free.extend(gap);
        free
    }

    fn memory(&mut self) {
        let free = self.may_change();
        let mut changed: BTreeMap<u64, String> = BTreeMap::new();
        for load in self.old.loads() {
            for address in load.memory() {
                if self.in_bundle(address) || free.contains(&address) {
                    continue;
                }
                let (was, is) = (self.old_image.byte(address), self.new_image.byte(address));
                if was != is {
                    let page = address - address % PAGE;
                    changed.entry(page).or_insert_with(|| match is {
                        None => format!("memory at {address:#x} is no longer mapped"),
                        Some(is) => format!("memory at {address:#x} is {is:#x}, was {:#x}", was.unwrap()),
                    });
                }
            }
        }
        self.problems.extend(changed.into_values().take(4));
        for (range, to) in self.moved.clone() {
            let length = range.end - range.start;
            let same = self.old_image.read(range.start, length) == self.new_image.read(to, length);
            let room = (to..to + length).all(|address| self.in_bundle(address));
            self.expect(same && room, || format!("what moved from {:#x} to {to:#x} changed", range.start));
        }
    }

    fn protections(&mut self) {
        let mut problems = Vec::new();
        for (&address, page) in &self.old_image.pages {
            let kept = (address..address + PAGE).any(|byte| !self.in_bundle(byte));
            match self.new_image.page(address) {
                Some(new) if new.flags != page.flags => {
                    problems.push(format!("page {address:#x} had flags {}, has {}", page.flags, new.flags));
                }
                None if kept
                    && self.old.loads().any(|load| overlap(&load.memory(), &(address..address + PAGE))) =>
                {
                    let lost = (address..address + PAGE).any(|byte| {
                        !self.in_bundle(byte) && self.old.loads().any(|load| load.memory().contains(&byte))
                    });
                    if lost {
                        problems.push(format!("page {address:#x} is no longer mapped"));
                    }
                }
                _ => {}
            }
        }
        for &address in self.new_image.pages.keys() {
            if !self.old_image.pages.contains_key(&address) {
                problems.push(format!("page {address:#x} was not mapped before"));
            }
        }
        problems.truncate(4);
        self.problems.append(&mut problems);
    }

    fn pointers(&self) -> BTreeSet<u64> {
        self.named.named(WRAPPERS).flat_map(wrappers).map(|at| at + 8).collect()
    }

    /// The relocations that were not carried out; those that were are in the memory.
    fn relocations(&mut self) {
        let pointers = self.pointers();
        let pending = |image: &Image| -> Vec<Pending> {
            image.pending.iter().filter(|pending| !pointers.contains(&pending.address)).cloned().collect()
        };
        let (was, is) = (pending(&self.old_image), pending(&self.new_image));
        self.expect(was == is, || "symbolic relocations changed".into());
        let same = self.old_image.rela_entries.keys().eq(self.new_image.rela_entries.keys());
        self.expect(same, || "the set of relocated addresses changed".into());
        let same = self.old_image.packed == self.new_image.packed;
        self.expect(same, || "the set of addresses that RELR relocates changed".into());
    }

    fn dynamic(&mut self) {
        let (old, new) = (self.old_image.dynamic.clone(), self.new_image.dynamic.clone());
        self.expect(old.len() == new.len(), || "the number of dynamic tags changed".into());
        for ((tag, was), (new_tag, is)) in old.into_iter().zip(new) {
            let wanted = if ADDRESS_TAGS.contains(&tag) { self.new_address(was) } else { was };
            self.expect(tag == new_tag && is == wanted, || {
                format!("dynamic tag {tag:#x} is {new_tag:#x} = {is:#x}, not {wanted:#x}")
            });
        }
    }

    /// Every dynamic symbol, found by its name as dlsym does.
    fn lookups(&mut self) {
        let Some(table) = self.old.sections.iter().find(|section| section.kind == SHT_DYNSYM).cloned() else {
            return;
        };
        for index in 0..table.size / 24 {
            let (was, is) = (self.old_image.symbol(index), self.new_image.symbol(index));
            self.expect(was == is, || format!("dynamic symbol {index}: {was:x?} became {is:x?}"));
            let gnu = (self.old_image.find_gnu(&was.name), self.new_image.find_gnu(&was.name));
            let sysv = (self.old_image.find_sysv(&was.name), self.new_image.find_sysv(&was.name));
            self.expect(gnu.0 == gnu.1 && sysv.0 == sysv.1, || {
                format!("dynamic symbol {}: another one is found now", String::from_utf8_lossy(&was.name))
            });
            let defined = was.section != 0 && was.info >> 4 != 0;
            let findable = gnu.0.is_some() || sysv.0.is_some();
            let hashed = self.old_image.tag(DT_GNU_HASH).or(self.old_image.tag(DT_HASH)).is_some();
            self.expect(!defined || findable || !hashed, || {
                format!("dynamic symbol {}: this test cannot find it", String::from_utf8_lossy(&was.name))
            });
        }
    }

    fn sections(&mut self) {
        let mut problems = Vec::new();
        let wrapper_entries: Vec<u64> =
            self.pointers().iter().filter_map(|at| self.old_image.rela_entries.get(at)).copied().collect();
        for (index, (one, two)) in self.old.sections.iter().zip(&self.new.sections).enumerate() {
            let place = format!("section {index} {}", String::from_utf8_lossy(&one.name));
            let header = |s: &Section| (s.kind, s.flags, s.link, s.info, s.align, s.entry_size);
            if header(one) != header(two) {
                problems.push(format!("{place}: the header changed"));
            }
            if one.name == BUNDLES && one.has_bytes() {
                if two.name != MARKER {
                    problems.push(format!("{place}: is not called .rocm_kpack_ref"));
                }
                let content = self.new.content(two);
                if !content.is_empty() && content != self.marker {
                    problems.push(format!("{place}: the content is not the marker"));
                }
                let mapped = self.new_image.read(two.address, two.size);
                if mapped.as_deref() != Some(content) {
                    problems.push(format!("{place}: is not mapped at its address"));
                }
                continue;
            }
            if one.name != two.name {
                problems.push(format!("{place}: is now {}", String::from_utf8_lossy(&two.name)));
            }
            let (was, is) = (self.old.content(one), self.new.content(two));
            if index == self.old.names && index != 0 {
                if !is.starts_with(was) {
                    problems.push(format!("{place}: what stood in the name table changed"));
                }
                continue;
            }
            if one.size != two.size || two.address != self.new_address(one.address) {
                problems.push(format!("{place}: size or address changed"));
                continue;
            }
            if two.is_allocated() && two.has_bytes() {
                let old_mapped = self.old_image.read(one.address, one.size);
                let raw_same = |elf: &Elf<'_>, s: &Section| {
                    elf.loads().any(|load| {
                        load.address <= s.address
                            && s.memory().end <= load.address + load.file_size
                            && s.address - load.address == s.offset.wrapping_sub(load.offset)
                    })
                };
                if old_mapped.is_some() && raw_same(&self.old, one) && !raw_same(&self.new, two) {
                    problems.push(format!("{place}: its bytes are not mapped at its address"));
                }
            }
            if one.name == WRAPPERS.as_bytes() || one.kind == SHT_DYNAMIC {
                continue; // compared as memory
            }
            let mut differences =
                was.iter().zip(is).enumerate().filter(|(_, (was, is))| was != is).map(|(at, _)| at as u64);
            let known = |at: u64| {
                one.kind == SHT_RELA
                    && one.is_allocated()
                    && wrapper_entries.iter().any(|entry| (*entry..entry + 24).contains(&(one.address + at)))
            };
            if let Some(at) = differences.find(|&at| !known(at)) {
                problems.push(format!("{place}: the content changed at {at:#x}"));
            }
        }
        self.problems.append(&mut problems);
        self.symbols();
    }

    /// Symbols that name bundles must have a section that still exists. All else was compared as bytes.
    fn symbols(&mut self) {
        for table in self.old.sections.clone().iter().filter(|s| matches!(s.kind, SHT_SYMTAB | SHT_DYNSYM)) {
            let content = self.old.content(table);
            for at in (0..content.len() as u64).step_by(24) {
                let section = usize::from(u16_at(content, at + 6));
                let lost = (1..0xff00).contains(&section)
                    && self.new.sections.get(section).is_some_and(|section| section.kind == 0);
                self.expect(!lost, || format!("symbol {} lost its section", at / 24));
            }
        }
    }

    fn wrappers(&mut self) {
        let sections: Vec<Section> = self.named.named(WRAPPERS).filter(|s| s.has_bytes()).cloned().collect();
        let mut index = 0u32;
        let mut targets = BTreeSet::new();
        for at in sections.iter().flat_map(wrappers) {
            let was = self.old_image.read(at, 24).unwrap();
            let is = self.new_image.read(at, 24).unwrap_or_else(|| vec![0; 24]);
            if u32_at(&was, 0) == 0x4b50_4948 {
                self.expect(was == is, || format!("wrapper {index}, split before, changed"));
                index += 1;
                continue;
            }
            let place = format!("wrapper {index} at {at:#x}");
            self.expect(u32_at(&is, 0) == 0x4b50_4948, || format!("{place}: not HIPK"));
            self.expect(was[4..8] == is[4..8], || format!("{place}: the version changed"));
            self.expect(u32_at(&is, 16) == index, || format!("{place}: another code-object index"));
            self.expect(was[20..] == is[20..], || format!("{place}: the high half of reserved1 changed"));
            let target = u64_at(&is, 8).wrapping_sub(self.new_image.base);
            let found = self.new_image.read(target, self.marker.len() as u64);
            self.expect(found.as_deref() == Some(self.marker), || {
                format!("{place}: points at {target:#x}, where no marker is")
            });
            let readable = self.new_image.page(target).is_some_and(|page| page.flags & 4 != 0);
            self.expect(readable, || format!("{place}: the marker cannot be read"));
            targets.insert(target);
            index += 1;
        }
        self.expect(index > 0 && targets.len() <= 1, || {
            format!("{index} wrappers with {} targets", targets.len())
        });
        let named = self.new.sections.is_empty()
            || self.new.named(".rocm_kpack_ref").any(|section| targets.contains(&section.address));
        self.expect(named, || "no section .rocm_kpack_ref is where the wrappers point".into());
        let nobody = self.new.named(".hip_fatbin").all(|section| !section.has_bytes());
        self.expect(nobody, || "there is still a .hip_fatbin".into());
    }

    /// Bytes of the bundles must be gone, and the room that they took.
    fn device_code(&mut self) {
        let mut freed = 0;
        for section in self.named.named(".hip_fatbin").cloned().collect::<Vec<_>>() {
            let bytes = self.named.content(&section);
            freed += bytes.len() as u64;
            for window in bytes.chunks_exact(64).step_by(61) {
                let distinct: BTreeSet<u8> = window.iter().copied().collect();
                if distinct.len() > 24 && self.new.bytes.windows(64).any(|found| found == window) {
                    self.problems.push("device code is still in the file".into());
                    break;
                }
            }
        }
        let align = self.old.page();
        let kept = 4 * align.max(PAGE) + freed / 20 + (1 << 16);
        let (before, after) = (self.old.bytes.len() as u64, self.new.bytes.len() as u64);
        self.expect(freed < kept || before - freed + kept >= after, || {
            format!("{freed} bytes of bundles, and the file went from {before} to {after} bytes")
        });
    }
}
