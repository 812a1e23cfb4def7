//! Builds PE32+ files in memory, as a linker would lay them out, with every odd thing a test may want.

/// Characteristics of sections.
pub(in crate::pe) const TEXT: u32 = 0x6000_0020;
pub(in crate::pe) const RDATA: u32 = 0x4000_0040;
pub(in crate::pe) const DATA: u32 = 0xc000_0040;
pub(in crate::pe) const BSS: u32 = 0xc000_0080;
pub(in crate::pe) const DISCARDABLE: u32 = 0x4200_0040;

pub(in crate::pe) const HIPF: u32 = 0x4849_5046;
pub(in crate::pe) const HIPK: u32 = 0x4B50_4948;

/// Bytes set aside for base relocations.
const RELOC_ROOM: usize = 0x400;

/// Where a section's byte is: section index and offset in it.
pub(in crate::pe) type Spot = (usize, u32);

#[derive(Clone, Debug)]
pub(in crate::pe) struct TestSection {
    pub(in crate::pe) name: [u8; 8],
    pub(in crate::pe) flags: u32,
    pub(in crate::pe) data: Vec<u8>,
    /// VirtualSize, where it is not the length of the data.
    pub(in crate::pe) virtual_size: Option<u32>,
    /// PointerToRawData of a section without data.
    pub(in crate::pe) empty_pointer: u32,
    /// COFF relocations and line numbers in the overlay: offset there and count.
    pub(in crate::pe) relocations: Option<(u32, u16)>,
    pub(in crate::pe) line_numbers: Option<(u32, u16)>,
}

/// What a debug directory entry names.
#[derive(Clone, Copy, Debug)]
pub(in crate::pe) enum DebugData {
    /// Mapped data of a length.
    In(Spot, u32),
    /// Data in the overlay: offset there, length.
    Overlay(u32, u32),
    /// File offset and length as they are.
    Raw(u32, u32),
}

/// How the CheckSum field is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pe) enum Checksum {
    Zero,
    Right,
    Wrong,
}

/// The file to be. All fields may be changed before [`build`](Self::build).
#[derive(Clone, Debug)]
pub(in crate::pe) struct TestImage {
    pub(in crate::pe) machine: u16,
    /// COFF Characteristics: 0x2022 for a DLL, 0x22 for an EXE; 1 for stripped relocations.
    pub(in crate::pe) characteristics: u16,
    pub(in crate::pe) dll_characteristics: u16,
    pub(in crate::pe) image_base: u64,
    pub(in crate::pe) file_alignment: u32,
    pub(in crate::pe) section_alignment: u32,
    /// NumberOfRvaAndSizes.
    pub(in crate::pe) directory_count: u32,
    /// Bytes before the NT headers.
    pub(in crate::pe) nt_offset: u32,
    /// Bytes right behind the section table, before the padding to FileAlignment.
    pub(in crate::pe) behind_table: Vec<u8>,
    pub(in crate::pe) sections: Vec<TestSection>,
    /// Entry point.
    pub(in crate::pe) entry: Option<Spot>,
    /// Data directories: index, where, length.
    pub(in crate::pe) directories: Vec<(usize, Spot, u32)>,
    /// Data directories with raw numbers.
    pub(in crate::pe) raw_directories: Vec<(usize, u32, u32)>,
    /// Relocated pointers of 8 bytes: where, and to where.
    pub(in crate::pe) pointers: Vec<(Spot, Spot)>,
    /// Pointers in place that have no base relocation.
    pub(in crate::pe) bare_pointers: Vec<(Spot, Spot)>,
    /// Base relocations without a pointer of ours: type and where.
    pub(in crate::pe) extra_relocations: Vec<(u16, Spot)>,
    /// The section that holds the base relocations.
    pub(in crate::pe) reloc: Option<usize>,
    /// The debug directory: where, and the entries' types and data.
    pub(in crate::pe) debug: Option<(Spot, Vec<(u32, DebugData)>)>,
    /// COFF symbols (18 bytes each) and string table (its length included).
    pub(in crate::pe) symbols: Option<(Vec<[u8; 18]>, Vec<u8>)>,
    pub(in crate::pe) overlay: Vec<u8>,
    pub(in crate::pe) certificate: Vec<u8>,
    pub(in crate::pe) checksum: Checksum,
}

fn align(value: usize, to: u32) -> usize {
    value.next_multiple_of(to as usize)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Bytes that are all different from their neighbours, so that a shift shows.
pub(in crate::pe) fn pattern(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect()
}

impl TestImage {
    pub(in crate::pe) fn new() -> Self {
        Self {
            machine: 0x8664,
            characteristics: 0x2022,
            dll_characteristics: 0x160,
            image_base: 0x1_8000_0000,
            file_alignment: 0x200,
            section_alignment: 0x1000,
            directory_count: 16,
            nt_offset: 0x78,
            behind_table: Vec::new(),
            sections: Vec::new(),
            entry: None,
            directories: Vec::new(),
            raw_directories: Vec::new(),
            pointers: Vec::new(),
            bare_pointers: Vec::new(),
            extra_relocations: Vec::new(),
            reloc: None,
            debug: None,
            symbols: None,
            overlay: Vec::new(),
            certificate: Vec::new(),
            checksum: Checksum::Zero,
        }
    }

    /// Adds a section; returns its index.
    pub(in crate::pe) fn section(&mut self, name: &str, flags: u32, data: Vec<u8>) -> usize {
        let mut padded = [0; 8];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        self.sections.push(TestSection {
            name: padded,
            flags,
            data,
            virtual_size: None,
            empty_pointer: 0,
            relocations: None,
            line_numbers: None,
        });
        self.sections.len() - 1
    }

    /// Adds the section for base relocations.
    pub(in crate::pe) fn reloc_section(&mut self) -> usize {
        let index = self.section(".reloc", DISCARDABLE, vec![0; RELOC_ROOM]);
        self.reloc = Some(index);
        index
    }

    /// Writes wrapper `slot` of section `table`, which points at `target`.
    pub(in crate::pe) fn wrapper(&mut self, table: usize, slot: u32, magic: u32, target: Spot) {
        let at = 24 * slot;
        let data = &mut self.sections[table].data;
        if data.len() < at as usize + 24 {
            data.resize(at as usize + 24, 0);
        }
        put(data, at as usize, &magic.to_le_bytes());
        put(data, at as usize + 4, &1u32.to_le_bytes());
        put(data, at as usize + 20, &(0xabcd_0000 + slot).to_le_bytes());
        self.pointers.push(((table, at + 8), target));
    }

    /// SizeOfHeaders.
    pub(in crate::pe) fn size_of_headers(&self) -> usize {
        let table = self.table_offset() + 40 * self.sections.len();
        align(table + self.behind_table.len(), self.file_alignment)
    }

    /// File offset of the section table.
    pub(in crate::pe) fn table_offset(&self) -> usize {
        self.nt_offset as usize + 24 + 112 + 8 * self.directory_count as usize
    }

    /// RVA of every section, then of the end.
    pub(in crate::pe) fn rvas(&self) -> Vec<u32> {
        let mut next = align(self.size_of_headers(), self.section_alignment);
        let mut rvas = Vec::new();
        for section in &self.sections {
            rvas.push(next as u32);
            let size = match section.virtual_size {
                Some(size) if size > 0 => size as usize,
                _ => align(section.data.len(), self.file_alignment),
            };
            next = align(next + size.max(1), self.section_alignment);
        }
        rvas.push(next as u32);
        rvas
    }

    /// File offset of every section's data, then of the end.
    pub(in crate::pe) fn raw_offsets(&self) -> Vec<u32> {
        let mut next = self.size_of_headers();
        let mut offsets = Vec::new();
        for section in &self.sections {
            offsets.push(next as u32);
            next += align(section.data.len(), self.file_alignment);
        }
        offsets.push(next as u32);
        offsets
    }

    /// The file.
    pub(in crate::pe) fn build(&self) -> Vec<u8> {
        let (rvas, offsets) = (self.rvas(), self.raw_offsets());
        let rva = |spot: Spot| rvas[spot.0] + spot.1;
        let raw_end = offsets[self.sections.len()];
        let mut file = self.headers(&rvas, &offsets);
        for (section, &offset) in self.sections.iter().zip(&offsets) {
            file.resize(offset as usize, 0);
            file.extend_from_slice(&section.data);
        }
        file.resize(raw_end as usize, 0);
        let mut directories = self.raw_directories.clone();
        directories.extend(self.directories.iter().map(|&(index, spot, size)| (index, rva(spot), size)));
        for &(from, to) in self.pointers.iter().chain(&self.bare_pointers) {
            let value = self.image_base + u64::from(rva(to));
            put(&mut file, (offsets[from.0] + from.1) as usize, &value.to_le_bytes());
        }
        if let Some(reloc) = self.reloc {
            let table = self.relocation_table(&rvas);
            assert!(table.len() <= RELOC_ROOM, "too many relocations");
            put(&mut file, offsets[reloc] as usize, &table);
            directories.push((5, rvas[reloc], table.len() as u32));
        }
        if let Some((spot, entries)) = &self.debug {
            directories.push((6, rva(*spot), 28 * entries.len() as u32));
            for (index, &(kind, data)) in entries.iter().enumerate() {
                let (address, pointer, size) = match data {
                    DebugData::In(spot, size) => (rva(spot), offsets[spot.0] + spot.1, size),
                    DebugData::Overlay(offset, size) => (0, self.overlay_offset() + offset, size),
                    DebugData::Raw(offset, size) => (0, offset, size),
                };
                let at = (offsets[spot.0] + spot.1) as usize + 28 * index;
                put(&mut file, at, &[0; 28]);
                put(&mut file, at + 4, &0x1234_5678u32.to_le_bytes());
                for (field, value) in [(12, kind), (16, size), (20, address), (24, pointer)] {
                    put(&mut file, at + field, &value.to_le_bytes());
                }
            }
        }
        if let Some((symbols, strings)) = &self.symbols {
            put(&mut file, self.nt_offset as usize + 12, &raw_end.to_le_bytes());
            put(&mut file, self.nt_offset as usize + 16, &(symbols.len() as u32).to_le_bytes());
            file.extend(symbols.iter().flatten());
            file.extend_from_slice(strings);
        }
        file.extend_from_slice(&self.overlay);
        if !self.certificate.is_empty() {
            file.resize(align(file.len(), 8), 0);
            directories.push((4, file.len() as u32, self.certificate.len() as u32));
            file.extend_from_slice(&self.certificate);
        }
        for (index, start, size) in directories {
            let at = self.nt_offset as usize + 24 + 112 + 8 * index;
            put(&mut file, at, &start.to_le_bytes());
            put(&mut file, at + 4, &size.to_le_bytes());
        }
        let sum = match self.checksum {
            Checksum::Zero => 0,
            Checksum::Right => super::loader::checksum(&file, self.nt_offset as usize + 88),
            Checksum::Wrong => 0x1111,
        };
        put(&mut file, self.nt_offset as usize + 88, &sum.to_le_bytes());
        file
    }

    /// File offset of the overlay.
    pub(in crate::pe) fn overlay_offset(&self) -> u32 {
        let symbols =
            self.symbols.as_ref().map_or(0, |(symbols, strings)| 18 * symbols.len() + strings.len());
        self.raw_offsets()[self.sections.len()] + symbols as u32
    }

    fn headers(&self, rvas: &[u32], offsets: &[u32]) -> Vec<u8> {
        let mut file = pattern(7, self.nt_offset as usize);
        put(&mut file, 0, b"MZ");
        put(&mut file, 60, &self.nt_offset.to_le_bytes());
        file.resize(self.table_offset(), 0);
        let nt = self.nt_offset as usize;
        put(&mut file, nt, b"PE\0\0");
        put(&mut file, nt + 4, &self.machine.to_le_bytes());
        put(&mut file, nt + 6, &(self.sections.len() as u16).to_le_bytes());
        put(&mut file, nt + 8, &0x6543_2100u32.to_le_bytes());
        put(&mut file, nt + 20, &(112 + 8 * self.directory_count as u16).to_le_bytes());
        put(&mut file, nt + 22, &self.characteristics.to_le_bytes());
        let optional = nt + 24;
        put(&mut file, optional, &[0x0b, 0x02, 14, 0]);
        let raw_size = |wanted: u32| -> u32 {
            let sections = self.sections.iter().filter(|section| section.flags & wanted != 0);
            sections.map(|section| align(section.data.len(), self.file_alignment) as u32).sum()
        };
        let entry = self.entry.map_or(0, |spot| rvas[spot.0] + spot.1);
        for (at, value) in [
            (4, raw_size(0x20)),
            (8, raw_size(0x40)),
            (16, entry),
            (20, rvas[0]),
            (32, self.section_alignment),
            (36, self.file_alignment),
            (40, 6),
            (48, 6),
            (56, rvas[self.sections.len()]),
            (60, self.size_of_headers() as u32),
            (108, self.directory_count),
        ] {
            put(&mut file, optional + at, &value.to_le_bytes());
        }
        put(&mut file, optional + 24, &self.image_base.to_le_bytes());
        put(&mut file, optional + 68, &3u16.to_le_bytes());
        put(&mut file, optional + 70, &self.dll_characteristics.to_le_bytes());
        for (at, value) in [(72, 0x10_0000u64), (80, 0x1000), (88, 0x10_0000), (96, 0x1000)] {
            put(&mut file, optional + at, &value.to_le_bytes());
        }
        for (index, section) in self.sections.iter().enumerate() {
            let raw_size = align(section.data.len(), self.file_alignment) as u32;
            let offset = if raw_size == 0 { section.empty_pointer } else { offsets[index] };
            file.extend_from_slice(&section.name);
            let size = section.virtual_size.unwrap_or(section.data.len() as u32);
            let extra =
                |place: Option<(u32, u16)>| place.map_or(0, |(offset, _)| self.overlay_offset() + offset);
            for value in
                [size, rvas[index], raw_size, offset, extra(section.relocations), extra(section.line_numbers)]
            {
                file.extend_from_slice(&value.to_le_bytes());
            }
            for place in [section.relocations, section.line_numbers] {
                file.extend_from_slice(&place.map_or(0, |(_, count)| count).to_le_bytes());
            }
            file.extend_from_slice(&section.flags.to_le_bytes());
        }
        file.extend_from_slice(&self.behind_table);
        file.resize(self.size_of_headers(), 0);
        file
    }

    /// The blocks of `.reloc`, pages ascending, padded with an ABSOLUTE entry to a multiple of 4 as linkers do.
    fn relocation_table(&self, rvas: &[u32]) -> Vec<u8> {
        let pointers = self.pointers.iter().map(|&(from, _)| (10u16, from));
        let mut sites: Vec<(u32, u16)> = pointers
            .chain(self.extra_relocations.iter().copied())
            .map(|(kind, spot)| (rvas[spot.0] + spot.1, kind))
            .collect();
        sites.sort_unstable();
        let mut table = Vec::new();
        for page in sites.chunk_by(|a, b| a.0 >> 12 == b.0 >> 12) {
            let mut entries: Vec<u16> =
                page.iter().map(|(site, kind)| kind << 12 | (site & 0xfff) as u16).collect();
            if !entries.len().is_multiple_of(2) {
                entries.push(0);
            }
            table.extend((page[0].0 & !0xfff).to_le_bytes());
            table.extend((8 + 2 * entries.len() as u32).to_le_bytes());
            table.extend(entries.iter().flat_map(|entry| entry.to_le_bytes()));
        }
        table
    }
}
