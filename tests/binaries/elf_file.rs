//! An ELF64 little-endian file, read byte by byte.

use std::ops::Range;

pub const PT_LOAD: u32 = 1;
pub const PT_DYNAMIC: u32 = 2;
pub const PT_INTERP: u32 = 3;
pub const PT_PHDR: u32 = 6;
pub const PT_GNU_STACK: u32 = 0x6474_e551;
pub const PT_GNU_RELRO: u32 = 0x6474_e552;
pub const PT_GNU_PROPERTY: u32 = 0x6474_e553;
pub const SHT_SYMTAB: u32 = 2;
pub const SHT_RELA: u32 = 4;
pub const SHT_DYNAMIC: u32 = 6;
pub const SHT_NOBITS: u32 = 8;
pub const SHT_DYNSYM: u32 = 11;
pub const SHF_ALLOC: u64 = 2;
pub const ET_EXEC: u16 = 2;
pub const HEADER_LEN: u64 = 64;
pub const SEGMENT_LEN: u64 = 56;
pub const SECTION_LEN: u64 = 64;

/// `N` bytes at `at`, which must be there.
pub fn array<const N: usize>(bytes: &[u8], at: u64) -> [u8; N] {
    let at = usize::try_from(at).unwrap();
    let found = bytes.get(at..at + N);
    found.unwrap_or_else(|| panic!("no {N} bytes at {at:#x}")).try_into().unwrap()
}

pub fn u16_at(bytes: &[u8], at: u64) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub fn u32_at(bytes: &[u8], at: u64) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub fn u64_at(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// The NUL-terminated string at `at`.
pub fn string_at(bytes: &[u8], at: u64) -> &[u8] {
    let tail = &bytes[usize::try_from(at).unwrap()..];
    tail.split(|&byte| byte == 0).next().unwrap()
}

pub fn overlap(one: &Range<u64>, two: &Range<u64>) -> bool {
    one.start.max(two.start) < one.end.min(two.end)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub align: u64,
}

impl Segment {
    pub fn file(&self) -> Range<u64> {
        self.offset..self.offset.checked_add(self.file_size).unwrap()
    }

    pub fn memory(&self) -> Range<u64> {
        self.address..self.address.checked_add(self.memory_size).unwrap()
    }
}

#[derive(Clone, Debug)]
pub struct Section {
    pub name: Vec<u8>,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry_size: u64,
}

impl Section {
    pub fn is_allocated(&self) -> bool {
        self.flags & SHF_ALLOC != 0
    }

    pub fn has_bytes(&self) -> bool {
        self.kind != SHT_NOBITS && self.kind != 0 && self.size > 0
    }

    pub fn file(&self) -> Range<u64> {
        self.offset..self.offset.checked_add(self.size).unwrap()
    }

    pub fn memory(&self) -> Range<u64> {
        self.address..self.address.checked_add(self.size).unwrap()
    }
}

pub struct Elf<'a> {
    pub bytes: &'a [u8],
    pub kind: u16,
    pub machine: u16,
    pub entry: u64,
    pub flags: u32,
    pub segments_at: u64,
    pub sections_at: u64,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    pub names: usize,
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        assert_eq!(&bytes[..7], b"\x7fELF\x02\x01\x01");
        let (segments_at, sections_at) = (u64_at(bytes, 32), u64_at(bytes, 40));
        assert_eq!(u16_at(bytes, 54), 56);
        assert!(sections_at == 0 || u16_at(bytes, 58) == 64);
        let segments = (0..u64::from(u16_at(bytes, 56)))
            .map(|index| segments_at + index * SEGMENT_LEN)
            .map(|at| Segment {
                kind: u32_at(bytes, at),
                flags: u32_at(bytes, at + 4),
                offset: u64_at(bytes, at + 8),
                address: u64_at(bytes, at + 16),
                file_size: u64_at(bytes, at + 32),
                memory_size: u64_at(bytes, at + 40),
                align: u64_at(bytes, at + 48),
            })
            .collect();
        // Extended numbering: the first section header has what does not fit.
        let count = match u16_at(bytes, 60) {
            0 if sections_at != 0 => u64_at(bytes, sections_at + 32),
            count => u64::from(count),
        };
        let names = match u16_at(bytes, 62) {
            0xffff => u32_at(bytes, sections_at + 40) as usize,
            names => usize::from(names),
        };
        let mut sections: Vec<Section> = (0..count)
            .map(|index| sections_at + index * SECTION_LEN)
            .map(|at| Section {
                name: Vec::new(),
                kind: u32_at(bytes, at + 4),
                flags: u64_at(bytes, at + 8),
                address: u64_at(bytes, at + 16),
                offset: u64_at(bytes, at + 24),
                size: u64_at(bytes, at + 32),
                link: u32_at(bytes, at + 40),
                info: u32_at(bytes, at + 44),
                align: u64_at(bytes, at + 48),
                entry_size: u64_at(bytes, at + 56),
            })
            .collect();
        if let Some(table) = sections.get(names).map(Section::file) {
            for (index, section) in sections.iter_mut().enumerate() {
                let name = u64::from(u32_at(bytes, sections_at + index as u64 * SECTION_LEN));
                assert!(
                    table.start + name < table.end || name == 0,
                    "the name of section {index} is outside"
                );
                section.name = string_at(bytes, table.start + name).to_vec();
            }
        }
        Self {
            bytes,
            kind: u16_at(bytes, 16),
            machine: u16_at(bytes, 18),
            entry: u64_at(bytes, 24),
            flags: u32_at(bytes, 48),
            segments_at,
            sections_at,
            segments,
            sections,
            names,
        }
    }

    pub fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD)
    }

    pub fn segment_table(&self) -> Range<u64> {
        self.segments_at..self.segments_at + self.segments.len() as u64 * SEGMENT_LEN
    }

    pub fn section_table(&self) -> Range<u64> {
        self.sections_at..self.sections_at + self.sections.len() as u64 * SECTION_LEN
    }

    pub fn named<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Section> {
        self.sections.iter().filter(move |section| section.name == name.as_bytes())
    }

    pub fn content(&self, section: &Section) -> &'a [u8] {
        if !section.has_bytes() {
            return &[];
        }
        let file = section.file();
        self.bytes.get(file.start as usize..file.end as usize).unwrap_or_else(|| {
            panic!("section {} ends past the end of the file", String::from_utf8_lossy(&section.name))
        })
    }

    /// The page size that segments must be kept apart by: the largest p_align, up to the machine's largest page.
    pub fn page(&self) -> u64 {
        let largest = if matches!(self.machine, 21 | 183) { 0x10000 } else { 0x1000 };
        self.loads().map(|load| load.align).max().unwrap_or(0).clamp(0x1000, largest)
    }

    /// `R_*_RELATIVE` and `R_*_IRELATIVE` of the machine.
    pub fn relative(&self) -> (u32, u32) {
        match self.machine {
            62 => (8, 37),
            183 => (1027, 1032),
            21 => (22, 248),
            243 => (3, 58),
            other => panic!("machine {other}"),
        }
    }
}
