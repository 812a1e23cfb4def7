//! A PE32+ file, read byte by byte, and its image in memory as the Windows loader makes it.

use std::ops::Range;

use super::elf_file::{array, u16_at, u32_at, u64_at};

#[derive(Clone, Debug)]
pub struct Section {
    pub name: [u8; 8],
    pub virtual_size: u64,
    pub rva: u64,
    pub raw_size: u64,
    pub raw: u64,
    /// Relocation and line number pointers and counts.
    pub others: [u8; 12],
    pub flags: u32,
}

impl Section {
    pub fn is(&self, name: &str) -> bool {
        self.name.split(|&byte| byte == 0).next() == Some(name.as_bytes())
    }

    /// The size in memory before rounding: a VirtualSize of 0 means the raw size.
    pub fn memory_size(&self) -> u64 {
        if self.virtual_size == 0 { self.raw_size } else { self.virtual_size }
    }
}

pub struct Pe<'a> {
    pub bytes: &'a [u8],
    /// Offset of `PE\0\0`.
    pub at: u64,
    pub optional_size: u64,
    pub symbols_at: u64,
    pub symbol_count: u64,
    pub base: u64,
    pub section_align: u64,
    pub file_align: u64,
    pub image_size: u64,
    pub headers_size: u64,
    pub checksum: u32,
    pub directories: Vec<(u64, u64)>,
    pub sections: Vec<Section>,
}

impl<'a> Pe<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        let at = u64::from(u32_at(bytes, 0x3c));
        assert_eq!((&bytes[..2], &array::<4>(bytes, at)), (&b"MZ"[..], b"PE\0\0"));
        let optional = at + 24;
        assert_eq!(u16_at(bytes, optional), 0x20b);
        let optional_size = u64::from(u16_at(bytes, at + 20));
        let word = |from: u64| u64::from(u32_at(bytes, from));
        Self {
            bytes,
            at,
            optional_size,
            symbols_at: word(at + 12),
            symbol_count: word(at + 16),
            base: u64_at(bytes, optional + 24),
            section_align: word(optional + 32),
            file_align: word(optional + 36),
            image_size: word(optional + 56),
            headers_size: word(optional + 60),
            checksum: u32_at(bytes, optional + 64),
            directories: (0..word(optional + 108))
                .map(|index| optional + 112 + 8 * index)
                .map(|entry| (word(entry), word(entry + 4)))
                .collect(),
            sections: (0..u64::from(u16_at(bytes, at + 6)))
                .map(|index| optional + optional_size + 40 * index)
                .map(|entry| Section {
                    name: array(bytes, entry),
                    virtual_size: word(entry + 8),
                    rva: word(entry + 12),
                    raw_size: word(entry + 16),
                    raw: word(entry + 20),
                    others: array(bytes, entry + 24),
                    flags: u32_at(bytes, entry + 36),
                })
                .collect(),
        }
    }

    pub fn section_table(&self) -> Range<u64> {
        let start = self.at + 24 + self.optional_size;
        start..start + 40 * self.sections.len() as u64
    }

    /// The file's bytes in `range`, cut at its end.
    pub fn file(&self, range: Range<u64>) -> &'a [u8] {
        let end = range.end.min(self.bytes.len() as u64);
        &self.bytes[range.start.min(end) as usize..end as usize]
    }

    /// The image: headers, and every section at its RVA with zeros behind the raw data. Anything that the loader
    /// refuses ends the test.
    pub fn image(&self) -> Vec<u8> {
        assert_eq!(self.image_size % self.section_align, 0, "SizeOfImage");
        let mut image = vec![0; self.image_size as usize];
        let headers = self.file(0..self.headers_size);
        image[..headers.len()].copy_from_slice(headers);
        let mut next = self.headers_size.next_multiple_of(self.section_align);
        for section in &self.sections {
            let name = String::from_utf8_lossy(&section.name);
            assert_eq!(section.rva, next, "{name}: the loader wants sections without gaps");
            assert!(
                section.raw_size == 0 || section.raw.is_multiple_of(self.file_align),
                "{name}: PointerToRawData"
            );
            assert!(section.raw_size.is_multiple_of(self.file_align), "{name}: SizeOfRawData");
            assert!(
                section.raw_size == 0 || section.raw + section.raw_size <= self.bytes.len() as u64,
                "{name}: cut short"
            );
            let room = section.memory_size().next_multiple_of(self.section_align);
            let raw = self.file(section.raw..section.raw + section.raw_size.min(room));
            image[next as usize..next as usize + raw.len()].copy_from_slice(raw);
            next += room;
        }
        assert_eq!(self.image_size, next, "SizeOfImage is not the sections' end");
        image
    }

    /// The RVAs of 8-byte words that the loader relocates.
    pub fn relocated(&self, image: &[u8]) -> Vec<u64> {
        let Some(&(start, size)) = self.directories.get(5) else { return Vec::new() };
        let mut words = Vec::new();
        let mut at = start;
        while at + 8 <= start + size {
            let (page, length) = (u64::from(u32_at(image, at)), u64::from(u32_at(image, at + 4)));
            assert!(length >= 8, "base relocation block of {length} bytes");
            for entry in (at + 8..at + length).step_by(2).map(|entry| u16_at(image, entry)) {
                match entry >> 12 {
                    0 => {}
                    10 => words.push(page + u64::from(entry & 0xfff)),
                    other => panic!("base relocation of type {other}"),
                }
            }
            at += length;
        }
        words
    }

    /// The sum that CheckSum must be, computed as the PE format says, in 16-bit words.
    pub fn right_checksum(&self) -> u32 {
        let field = self.at + 24 + 64;
        let mut bytes = self.bytes.to_vec();
        bytes[field as usize..field as usize + 4].fill(0);
        bytes.resize(bytes.len().next_multiple_of(2), 0);
        let mut sum = 0u32;
        for word in bytes.chunks_exact(2) {
            sum += u32::from(u16::from_le_bytes([word[0], word[1]]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum + self.bytes.len() as u32
    }

    /// What stands behind the last raw data.
    pub fn overlay(&self) -> &'a [u8] {
        let ends = self.sections.iter().filter(|section| section.raw_size > 0);
        let end = ends.map(|section| section.raw + section.raw_size).max().unwrap_or(0);
        self.file(end..u64::MAX)
    }
}
