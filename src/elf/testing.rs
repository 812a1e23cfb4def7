//! A builder of ELF files for tests: sections in segments, laid out as a linker would, with wrappers, relocations,
//! symbols and `.dynamic` filled in once the addresses are known.
//!
//! Uses none of the planner's code: records are written byte by byte.

use std::collections::HashMap;
use std::fmt;

/// Device code in tests is made of this byte, which nothing else in a test file repeats.
pub(super) const DEVICE_BYTE: u8 = 0xd5;

/// What a section holds.
#[derive(Clone)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    /// Memory without file bytes.
    Bss(u64),
    /// Device code of this many bytes.
    Bundle(u64),
    /// The wrappers of [`ElfBuilder::wrappers`].
    Wrappers,
    /// RELA entries for all wrappers that have one, and for [`ElfBuilder::pointers`].
    Rela,
    /// One word for each wrapper relocated by RELR.
    Relr,
    /// A null symbol, and one symbol for each symbolic wrapper.
    Dynsym,
    /// Tags for every section that has one.
    Dynamic,
    /// The section names; other strings before them.
    Names(Vec<u8>),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Names(bytes) => write!(f, "names behind {} bytes", bytes.len()),
            Self::Bss(size) => write!(f, "bss of {size} bytes"),
            Self::Bundle(size) => write!(f, "bundle of {size} bytes"),
            Self::Wrappers => f.write_str("wrappers"),
            Self::Rela => f.write_str("RELA"),
            Self::Relr => f.write_str("RELR"),
            Self::Dynsym => f.write_str("symbols"),
            Self::Dynamic => f.write_str("dynamic"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TestSection {
    pub(super) name: String,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) align: u64,
    pub(super) content: Content,
}

impl TestSection {
    pub(super) fn new(name: &str, kind: u32, flags: u64, align: u64, content: Content) -> Self {
        Self { name: name.to_owned(), kind, flags, align, content }
    }
}

/// How a wrapper's pointer gets its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Relative,
    /// Relative, and the bytes in place hold the value too.
    RelativeInPlace,
    Symbolic,
    Relr,
    InPlace,
}

#[derive(Clone, Debug)]
pub(super) struct TestWrapper {
    pub(super) magic: u32,
    /// Name of the section that the pointer leads into, which of those of that name, and the offset.
    pub(super) target: (String, usize, u64),
    pub(super) via: Via,
}

/// A whole file. Fields are public to be bent by tests.
#[derive(Clone, Debug)]
pub(super) struct ElfBuilder {
    pub(super) kind: u16,
    pub(super) machine: u16,
    pub(super) relative: u32,
    pub(super) absolute: u32,
    pub(super) align: u64,
    pub(super) base: u64,
    /// Segments: flags and sections.
    pub(super) segments: Vec<(u32, Vec<TestSection>)>,
    /// Sections that are not loaded.
    pub(super) rest: Vec<TestSection>,
    pub(super) wrappers: Vec<TestWrapper>,
    /// Bytes from one wrapper to the next; those behind a wrapper are zeros.
    pub(super) stride: u64,
    /// More relative relocations: (section, offset) to (section, offset).
    pub(super) pointers: Vec<((String, u64), (String, u64))>,
    pub(super) phdr: bool,
    pub(super) null_headers: usize,
    /// Bytes left free behind the program header table.
    pub(super) gap: u64,
    /// Each segment starts on a page of the file.
    pub(super) separate: bool,
    /// Empty sections added at the end of the section header table.
    pub(super) empty_sections: usize,
    /// Bytes behind everything.
    pub(super) trailer: Vec<u8>,
}

struct Placed {
    section: TestSection,
    address: u64,
    offset: u64,
    size: u64,
}

const RX: u32 = 5;
const R: u32 = 4;
const RW: u32 = 6;
const A: u64 = 2;
const WA: u64 = 3;
const AX: u64 = 6;
const PROGBITS: u32 = 1;

fn filler(seed: u8, len: usize) -> Vec<u8> {
    // Never zero, never the device byte twice in a row.
    (0..len).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}

impl ElfBuilder {
    /// A shared object like GNU ld's: headers and dynamic tables, code, read-only data with the bundle in the middle,
    /// writable data with the wrappers and `.bss`.
    pub(super) fn shared(bundle: u64) -> Self {
        let section = TestSection::new;
        let bytes = |seed, len| Content::Bytes(filler(seed, len));
        Self {
            kind: 3,
            machine: 62,
            relative: 8,
            absolute: 1,
            align: 0x1000,
            base: 0,
            segments: vec![
                (
                    R,
                    vec![
                        section(".note.gnu.build-id", 7, A, 4, bytes(1, 36)),
                        section(".gnu.hash", 0x6fff_fff6, A, 8, bytes(2, 40)),
                        section(".dynsym", 11, A, 8, Content::Dynsym),
                        section(".dynstr", 3, A, 1, bytes(3, 333)),
                        section(".rela.dyn", 4, A, 8, Content::Rela),
                    ],
                ),
                (RX, vec![section(".text", PROGBITS, AX, 16, bytes(4, 5000))]),
                (
                    R,
                    vec![
                        section(".rodata", PROGBITS, A, 32, bytes(5, 777)),
                        section(".hip_fatbin", PROGBITS, A, 0x1000, Content::Bundle(bundle)),
                        section(".eh_frame", PROGBITS, A, 8, bytes(6, 1234)),
                    ],
                ),
                (
                    RW,
                    vec![
                        section(".relr.dyn.pad", PROGBITS, WA, 8, bytes(7, 64)),
                        section(".dynamic", 6, WA, 8, Content::Dynamic),
                        section(".data", PROGBITS, WA, 8, bytes(8, 200)),
                        section(".hipFatBinSegment", PROGBITS, WA, 8, Content::Wrappers),
                        section(".bss", 8, WA, 32, Content::Bss(5000)),
                    ],
                ),
            ],
            rest: vec![
                section(".comment", PROGBITS, 0, 1, bytes(9, 45)),
                section(".debug_info", PROGBITS, 0, 16, bytes(10, 99)),
                section(".shstrtab", 3, 0, 1, Content::Names(vec![0])),
            ],
            stride: 24,
            wrappers: vec![TestWrapper {
                magic: 0x4849_5046,
                target: (".hip_fatbin".to_owned(), 0, 0),
                via: Via::Relative,
            }],
            pointers: vec![((".data".to_owned(), 8), (".rodata".to_owned(), 16))],
            phdr: false,
            null_headers: 0,
            gap: 0,
            separate: true,
            empty_sections: 0,
            trailer: Vec::new(),
        }
    }

    /// The section called `name`, to bend.
    pub(super) fn section(&mut self, name: &str) -> &mut TestSection {
        let loaded = self.segments.iter_mut().flat_map(|(_, sections)| sections);
        loaded.chain(&mut self.rest).find(|section| section.name == name).unwrap()
    }

    /// Adds a wrapper for `target` bytes into the bundle section.
    pub(super) fn wrapper(mut self, offset: u64, via: Via) -> Self {
        let target = (".hip_fatbin".to_owned(), 0, offset);
        self.wrappers.push(TestWrapper { magic: 0x4849_5046, target, via });
        self
    }

    fn size(&self, content: &Content, names_len: u64) -> u64 {
        let count = |wanted: &[Via]| self.wrappers.iter().filter(|w| wanted.contains(&w.via)).count() as u64;
        match content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Bss(size) | Content::Bundle(size) => *size,
            Content::Wrappers => self.stride * self.wrappers.len() as u64,
            Content::Rela => {
                let wrappers = count(&[Via::Relative, Via::RelativeInPlace, Via::Symbolic]);
                24 * (wrappers + self.pointers.len() as u64)
            }
            Content::Relr => 8 * count(&[Via::Relr]),
            Content::Dynsym => 24 * (1 + count(&[Via::Symbolic])),
            Content::Dynamic => 16 * 12,
            Content::Names(_) => names_len,
        }
    }

    /// The file.
    pub(super) fn build(&self) -> Vec<u8> {
        // Names.
        let all = || self.segments.iter().flat_map(|(_, sections)| sections).chain(&self.rest);
        let mut names = all()
            .find_map(|section| match &section.content {
                Content::Names(prefix) => Some(prefix.clone()),
                _ => None,
            })
            .unwrap();
        let mut name_at = Vec::new();
        for section in all() {
            name_at.push(names.len() as u32);
            names.extend_from_slice(section.name.as_bytes());
            names.push(0);
        }

        // Program headers beside the PT_LOADs.
        let has = |name: &str| all().any(|section| section.name == name);
        let mut others: Vec<(u32, &str, u32, u64)> = vec![];
        for (kind, name, flags, align) in [
            (3, ".interp", R, 1),
            (2, ".dynamic", RW, 8),
            (4, ".note.gnu.build-id", R, 4),
            (0x6474_e550, ".eh_frame", R, 4),
        ] {
            if has(name) {
                others.push((kind, name, flags, align));
            }
        }
        let header_count =
            self.segments.len() + others.len() + usize::from(self.phdr) + self.null_headers + 1; // PT_GNU_STACK
        let table_end = 64 + 56 * header_count as u64;

        // Layout.
        let mut placed: Vec<Placed> = Vec::new();
        let mut loads: Vec<(u32, u64, u64, u64, u64)> = Vec::new(); // flags, offset, address, filesz, memsz
        let mut offset = table_end + self.gap;
        let mut address = self.base + offset;
        for (index, (flags, sections)) in self.segments.iter().enumerate() {
            if index > 0 {
                if self.separate {
                    offset = offset.next_multiple_of(self.align);
                    address = address.next_multiple_of(self.align);
                } else {
                    address += self.align;
                }
                // Congruent to the offset, and not below the end of the segment before.
                address += offset.wrapping_sub(address) & (self.align - 1);
                let first = sections.first().map_or(1, |section| section.align);
                let skip = address.next_multiple_of(first) - address;
                address += skip;
                offset += skip;
            }
            let (start, start_address) = if index == 0 { (0, self.base) } else { (offset, address) };
            let mut file_end = offset;
            for section in sections {
                let skip = address.next_multiple_of(section.align) - address;
                let size = self.size(&section.content, names.len() as u64);
                address += skip;
                if section.kind != 8 {
                    offset += address - (start_address + (offset - start));
                    file_end = offset + size;
                }
                placed.push(Placed { section: section.clone(), address, offset, size });
                address += size;
                if section.kind != 8 {
                    offset = file_end;
                }
            }
            loads.push((*flags, start, start_address, file_end - start, address - start_address));
        }
        for section in &self.rest {
            offset = offset.next_multiple_of(section.align);
            let size = self.size(&section.content, names.len() as u64);
            placed.push(Placed { section: section.clone(), address: 0, offset, size });
            offset += size;
        }
        let table_at = offset.next_multiple_of(8);
        let section_count = placed.len() + 1 + self.empty_sections;

        // Contents.
        let mut file = vec![0; table_at as usize];
        let place_of = |name: &str, nth: usize| {
            let mut found = placed.iter().filter(|placed| placed.section.name == name);
            found.nth(nth).unwrap_or_else(|| panic!("no section {name}"))
        };
        let wrappers_at = placed.iter().find(|p| matches!(p.section.content, Content::Wrappers));
        let wrappers_at = wrappers_at.map_or(0, |placed| placed.address);
        let mut symbols: HashMap<usize, u64> = HashMap::new();
        for (index, wrapper) in self.wrappers.iter().enumerate() {
            if wrapper.via == Via::Symbolic {
                symbols.insert(index, 1 + symbols.len() as u64);
            }
        }
        let target = |wrapper: &TestWrapper| {
            let (name, nth, offset) = &wrapper.target;
            place_of(name, *nth).address + offset
        };
        for placed in &placed {
            let mut bytes: Vec<u8> = Vec::new();
            let mut words = |words: &[u64]| words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            match &placed.section.content {
                Content::Bytes(content) => bytes = content.clone(),
                Content::Bss(_) => {}
                Content::Bundle(size) => bytes = vec![DEVICE_BYTE; *size as usize],
                Content::Names(_) => bytes = names.clone(),
                Content::Wrappers => {
                    for wrapper in &self.wrappers {
                        let value = match wrapper.via {
                            Via::Relative | Via::Symbolic => 0,
                            _ => target(wrapper),
                        };
                        words(&[u64::from(wrapper.magic) | 1 << 32, value, 0x1122_3344_0000_0000]);
                        (24..self.stride).step_by(8).for_each(|_| words(&[0]));
                    }
                }
                Content::Rela => {
                    for (from, to) in &self.pointers {
                        let from = place_of(&from.0, 0).address + from.1;
                        words(&[from, u64::from(self.relative), place_of(&to.0, 0).address + to.1]);
                    }
                    for (index, wrapper) in self.wrappers.iter().enumerate() {
                        let from = wrappers_at + self.stride * index as u64 + 8;
                        match wrapper.via {
                            Via::Relative | Via::RelativeInPlace => {
                                words(&[from, u64::from(self.relative), target(wrapper)]);
                            }
                            // The symbol is 16 bytes before the target.
                            Via::Symbolic => {
                                words(&[from, symbols[&index] << 32 | u64::from(self.absolute), 16]);
                            }
                            Via::Relr | Via::InPlace => {}
                        }
                    }
                }
                Content::Relr => {
                    for (index, wrapper) in self.wrappers.iter().enumerate() {
                        if wrapper.via == Via::Relr {
                            words(&[wrappers_at + self.stride * index as u64 + 8]);
                        }
                    }
                }
                Content::Dynsym => {
                    words(&[0, 0, 0]);
                    for wrapper in &self.wrappers {
                        if wrapper.via == Via::Symbolic {
                            words(&[1 | 0x11 << 32 | 1 << 48, target(wrapper).wrapping_sub(16), 0]);
                        }
                    }
                }
                Content::Dynamic => {
                    for (tag, name) in [
                        (5, ".dynstr"),
                        (6, ".dynsym"),
                        (4, ".hash"),
                        (0x6fff_fef5, ".gnu.hash"),
                        (0x6fff_fff0, ".gnu.version"),
                        (0x6fff_fffe, ".gnu.version_r"),
                        (7, ".rela.dyn"),
                        (36, ".relr.dyn"),
                    ] {
                        if has(name) {
                            let place = place_of(name, 0);
                            words(&[tag, place.address]);
                            match tag {
                                7 => words(&[8, place.size]),
                                36 => words(&[35, place.size]),
                                _ => {}
                            }
                        }
                    }
                    bytes.resize(placed.size as usize, 0);
                }
            }
            if placed.section.kind != 8 {
                assert_eq!(bytes.len() as u64, placed.size, "{}", placed.section.name);
                let at = placed.offset as usize;
                file[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }

        // Headers.
        let mut headers: Vec<u8> = Vec::new();
        let mut header =
            |kind: u32, flags: u32, offset: u64, address: u64, size: u64, memory: u64, align: u64| {
                headers.extend(kind.to_le_bytes());
                headers.extend(flags.to_le_bytes());
                for word in [offset, address, address, size, memory, align] {
                    headers.extend(word.to_le_bytes());
                }
            };
        if self.phdr {
            let size = 56 * header_count as u64;
            header(6, R, 64, self.base + 64, size, size, 8);
        }
        for &(flags, offset, address, size, memory) in &loads {
            header(1, flags, offset, address, size, memory, self.align);
        }
        for (kind, name, flags, align) in others {
            let place = place_of(name, 0);
            header(kind, flags, place.offset, place.address, place.size, place.size, align);
        }
        header(0x6474_e551, RW, 0, 0, 0, 0, 16);
        (0..self.null_headers).for_each(|_| header(0, 0, 0, 0, 0, 0, 0));
        file[64..64 + headers.len()].copy_from_slice(&headers);

        let names_index =
            placed.iter().position(|p| matches!(p.section.content, Content::Names(_))).unwrap() + 1;
        let index_of =
            |name: &str| placed.iter().position(|p| p.section.name == name).map_or(0, |i| i as u32 + 1);
        let big = |value: usize, bound: usize| if value >= bound { value as u64 } else { 0 };
        let mut table: Vec<u8> = vec![0; 64];
        table[32..40].copy_from_slice(&big(section_count, 0xff00).to_le_bytes());
        table[40..44].copy_from_slice(&(big(names_index, 0xff00) as u32).to_le_bytes());
        for (placed, name) in placed.iter().zip(&name_at) {
            let section = &placed.section;
            let link = match section.kind {
                4 => index_of(".dynsym"),
                11 | 6 => index_of(".dynstr"),
                0x6fff_fff6 | 5 => index_of(".dynsym"),
                _ => 0,
            };
            table.extend(name.to_le_bytes());
            table.extend(section.kind.to_le_bytes());
            for word in [section.flags, placed.address, placed.offset, placed.size] {
                table.extend(word.to_le_bytes());
            }
            table.extend(link.to_le_bytes());
            table.extend(0u32.to_le_bytes());
            table.extend(section.align.to_le_bytes());
            table.extend(0u64.to_le_bytes());
        }
        for _ in 0..self.empty_sections {
            let at = table.len();
            table.resize(at + 64, 0);
            table[at..at + 4].copy_from_slice(&name_at[0].to_le_bytes());
            table[at + 4..at + 8].copy_from_slice(&1u32.to_le_bytes());
        }
        file.extend(table);
        file.extend(&self.trailer);

        let mut start = b"\x7fELF\x02\x01\x01".to_vec();
        start.resize(16, 0);
        start.extend(self.kind.to_le_bytes());
        start.extend(self.machine.to_le_bytes());
        start.extend(1u32.to_le_bytes());
        let entry = if self.kind == 2 { place_of(".text", 0).address } else { 0 };
        for word in [entry, 64, table_at] {
            start.extend(word.to_le_bytes());
        }
        start.extend(0u32.to_le_bytes());
        let small = |value: usize, other: u16| if value >= 0xff00 { other } else { value as u16 };
        for half in [64, 56, header_count as u16, 64, small(section_count, 0), small(names_index, 0xffff)] {
            start.extend(half.to_le_bytes());
        }
        file[..64].copy_from_slice(&start);
        file
    }
}
