//! The memory of a process that has loaded an ELF file: what the kernel and the dynamic loader do, page by page.

use std::collections::BTreeMap;

use super::elf_file::*;

const PAGE: u64 = 0x1000;
pub const DT_NULL: u64 = 0;
pub const DT_PLTRELSZ: u64 = 2;
pub const DT_HASH: u64 = 4;
pub const DT_STRTAB: u64 = 5;
pub const DT_SYMTAB: u64 = 6;
pub const DT_RELA: u64 = 7;
pub const DT_RELASZ: u64 = 8;
pub const DT_JMPREL: u64 = 23;
pub const DT_RELRSZ: u64 = 35;
pub const DT_RELR: u64 = 36;
pub const DT_GNU_HASH: u64 = 0x6fff_fef5;
pub const DT_VERSYM: u64 = 0x6fff_fff0;
pub const DT_RELACOUNT: u64 = 0x6fff_fff9;

/// Where a shared object or PIE is loaded.
pub const BASE: u64 = 0x7e12_3400_0000;

/// One mapped page.
#[derive(Clone)]
pub struct Page {
    pub bytes: Vec<u8>,
    /// PF_R, PF_W, PF_X.
    pub flags: u32,
}

/// One relocation that needs a symbol or a resolver, and so is not carried out here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pending {
    pub address: u64,
    pub kind: u32,
    pub symbol: Option<Symbol>,
    pub addend: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    pub name: Vec<u8>,
    pub value: u64,
    pub size: u64,
    pub info: u8,
    pub other: u8,
    pub section: u16,
    /// Entry of the version table.
    pub version: Option<u16>,
}

/// Link-time addresses; a relocated word holds a run-time address.
pub struct Image {
    pub pages: BTreeMap<u64, Page>,
    pub base: u64,
    pub dynamic: Vec<(u64, u64)>,
    pub pending: Vec<Pending>,
    /// Addresses of RELA entries by the address that they relocate.
    pub rela_entries: BTreeMap<u64, u64>,
    /// Words that RELR relocates.
    pub packed: Vec<u64>,
}

impl Image {
    pub fn load(elf: &Elf<'_>) -> Self {
        let mut image = Self {
            pages: BTreeMap::new(),
            base: if elf.kind == ET_EXEC { 0 } else { BASE },
            dynamic: Vec::new(),
            pending: Vec::new(),
            rela_entries: BTreeMap::new(),
            packed: Vec::new(),
        };
        for load in elf.loads() {
            image.map(elf.bytes, load);
        }
        image.read_dynamic(elf);
        image.relocate(elf);
        image
    }

    /// mmap of the file part, zeros behind it up to the page's end, anonymous pages for the rest. A page that is
    /// mapped twice belongs to the later segment, as with MAP_FIXED.
    fn map(&mut self, file: &[u8], load: &Segment) {
        assert_eq!(load.offset % PAGE, load.address % PAGE, "mmap of {load:x?} fails");
        let file_end = load.address + load.file_size;
        let memory_end = load.memory().end;
        let mut address = load.address - load.address % PAGE;
        while address < memory_end.next_multiple_of(PAGE) {
            let mut bytes = vec![0; PAGE as usize];
            if address < file_end && load.file_size > 0 {
                let at = (load.offset - load.offset % PAGE + (address - (load.address - load.address % PAGE)))
                    as usize;
                assert!(at < file.len(), "address {address:#x} is past the end of the file: SIGBUS");
                let there = &file[at..file.len().min(at + PAGE as usize)];
                bytes[..there.len()].copy_from_slice(there);
                if memory_end > file_end && file_end < address + PAGE {
                    bytes[(file_end - address) as usize..].fill(0);
                }
            }
            self.pages.insert(address, Page { bytes, flags: load.flags & 7 });
            address += PAGE;
        }
    }

    pub fn page(&self, address: u64) -> Option<&Page> {
        self.pages.get(&(address - address % PAGE))
    }

    pub fn byte(&self, address: u64) -> Option<u8> {
        self.page(address).map(|page| page.bytes[(address % PAGE) as usize])
    }

    /// `length` bytes from `address`; `None` if some are not mapped.
    pub fn read(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        (0..length).map(|index| self.byte(address.checked_add(index)?)).collect()
    }

    pub fn u64(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.read(address, 8)?.try_into().unwrap()))
    }

    pub fn u32(&self, address: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.read(address, 4)?.try_into().unwrap()))
    }

    pub fn u16(&self, address: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.read(address, 2)?.try_into().unwrap()))
    }

    pub fn string(&self, mut address: u64) -> Option<Vec<u8>> {
        let mut string = Vec::new();
        loop {
            match self.byte(address)? {
                0 => return Some(string),
                byte => string.push(byte),
            }
            address += 1;
        }
    }

    fn write(&mut self, address: u64, value: u64) {
        for (index, byte) in value.to_le_bytes().into_iter().enumerate() {
            let at = address + index as u64;
            let page = self.pages.get_mut(&(at - at % PAGE));
            let page = page.unwrap_or_else(|| panic!("relocation at {at:#x}, which is not mapped"));
            page.bytes[(at % PAGE) as usize] = byte;
        }
    }

    fn read_dynamic(&mut self, elf: &Elf<'_>) {
        let Some(segment) = elf.segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else { return };
        let mut at = segment.address;
        while at + 16 <= segment.memory().end {
            let tag = self.u64(at).expect("PT_DYNAMIC is not mapped");
            let value = self.u64(at + 8).expect("PT_DYNAMIC is not mapped");
            if tag == DT_NULL {
                break;
            }
            self.dynamic.push((tag, value));
            at += 16;
        }
    }

    pub fn tag(&self, wanted: u64) -> Option<u64> {
        // The last one wins, as in glibc.
        self.dynamic.iter().rev().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value)
    }

    /// The symbol `index` of the dynamic symbol table.
    pub fn symbol(&self, index: u64) -> Symbol {
        let at = self.tag(DT_SYMTAB).expect("no DT_SYMTAB") + index * 24;
        let strings = self.tag(DT_STRTAB).expect("no DT_STRTAB");
        let raw = self.read(at, 24).expect("DT_SYMTAB is not mapped");
        Symbol {
            name: self.string(strings + u64::from(u32_at(&raw, 0))).expect("DT_STRTAB is not mapped"),
            info: raw[4],
            other: raw[5],
            section: u16_at(&raw, 6),
            value: u64_at(&raw, 8),
            size: u64_at(&raw, 16),
            version: self
                .tag(DT_VERSYM)
                .map(|table| self.u16(table + 2 * index).expect("DT_VERSYM is not mapped")),
        }
    }

    fn relocate(&mut self, elf: &Elf<'_>) {
        let (relative, _) = elf.relative();
        let tables = [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)];
        let tables: Vec<(u64, u64)> =
            tables.iter().filter_map(|&(at, size)| Some((self.tag(at)?, self.tag(size)?))).collect();
        let leading = self.tag(DT_RELACOUNT).unwrap_or(0);
        self.relocate_packed();
        for (number, &(table, size)) in tables.iter().enumerate() {
            // Some linkers count .rela.plt into DT_RELASZ.
            let inside = |at: u64| {
                tables.iter().take(number).any(|&(other, size)| (other..other + size).contains(&at))
            };
            for index in 0..size / 24 {
                let at = table + index * 24;
                if inside(at) {
                    continue;
                }
                let raw = self.read(at, 24).expect("a relocation table is not mapped");
                let (address, info, addend) = (u64_at(&raw, 0), u64_at(&raw, 8), u64_at(&raw, 16));
                let kind = info as u32;
                assert!(
                    number > 0 || index >= leading || kind == relative,
                    "entry {index} of {leading} relative ones"
                );
                self.rela_entries.insert(address, at);
                if kind == relative {
                    self.write(address, addend.wrapping_add(self.base));
                } else if kind != 0 {
                    let symbol = (info >> 32 != 0).then(|| self.symbol(info >> 32));
                    self.pending.push(Pending { address, kind, symbol, addend });
                }
            }
        }
    }

    fn relocate_packed(&mut self) {
        let (Some(table), Some(size)) = (self.tag(DT_RELR), self.tag(DT_RELRSZ)) else { return };
        let mut next = 0;
        for index in 0..size / 8 {
            let entry = self.u64(table + index * 8).expect("DT_RELR is not mapped");
            if entry & 1 == 0 {
                self.packed.push(entry);
                next = entry + 8;
            } else {
                let bits = (0..63).filter(|bit| entry >> (bit + 1) & 1 == 1);
                self.packed.extend(bits.map(|bit| next + 8 * bit));
                next += 63 * 8;
            }
        }
        for address in self.packed.clone() {
            let value = self.u64(address).expect("RELR relocates what is not mapped");
            self.write(address, value.wrapping_add(self.base));
        }
    }

    /// Finds `name` as dlsym does, through `DT_GNU_HASH`.
    pub fn find_gnu(&self, name: &[u8]) -> Option<Symbol> {
        let table = self.tag(DT_GNU_HASH)?;
        let hash =
            name.iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let word = |index: u64| self.u32(table + 4 * index).expect("DT_GNU_HASH is not mapped");
        let (buckets, first, words, shift) = (word(0), word(1), word(2), word(3));
        let filter = self.u64(table + 16 + 8 * u64::from(hash / 64 % words))?;
        if filter >> (hash % 64) & 1 == 0 || filter >> ((hash >> shift) % 64) & 1 == 0 {
            return None;
        }
        let chains = 4 + 2 * u64::from(words) + u64::from(buckets);
        let mut index = word(4 + 2 * u64::from(words) + u64::from(hash % buckets));
        if index == 0 {
            return None;
        }
        loop {
            let chain = word(chains + u64::from(index - first));
            if chain | 1 == hash | 1 {
                let symbol = self.symbol(u64::from(index));
                if symbol.name == name {
                    return Some(symbol);
                }
            }
            if chain & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }

    /// Finds `name` through `DT_HASH`.
    pub fn find_sysv(&self, name: &[u8]) -> Option<Symbol> {
        let table = self.tag(DT_HASH)?;
        let mut hash = 0u32;
        for &byte in name {
            hash = (hash << 4).wrapping_add(u32::from(byte));
            hash ^= (hash >> 24) & 0xf0;
            hash &= 0x0fff_ffff;
        }
        let word = |index: u32| self.u32(table + 4 * u64::from(index)).expect("DT_HASH is not mapped");
        let buckets = word(0);
        let mut index = word(2 + hash % buckets);
        while index != 0 {
            let symbol = self.symbol(u64::from(index));
            if symbol.name == name {
                return Some(symbol);
            }
            index = word(2 + buckets + index);
        }
        None
    }
}
