//! The on-disk records of 64-bit little-endian ELF and their native forms.
//!
//! On disk, `object`'s record types; in the planner, plain structs of native integers that convert both ways
//! without loss. Sources: the System V ABI (gABI) chapters 4 and 5, the psABI of each machine, glibc's `elf.h`.

use object::elf;
use object::endian::{I64, LittleEndian as Le, U16, U32, U64};
use object::pod::{self, Pod};

use crate::fault::{Fault, Result};

/// Size of the ELF header in bytes.
pub(super) const FILE_HEADER_LEN: u64 = 64;
/// Size of a program header in bytes.
pub(super) const SEGMENT_LEN: u64 = 56;
/// Size of a section header in bytes.
pub(super) const SECTION_LEN: u64 = 64;
/// Size of a RELA entry in bytes.
pub(super) const RELA_LEN: u64 = 24;
/// Size of a symbol in bytes.
pub(super) const SYMBOL_LEN: u64 = 24;
/// Size of a dynamic entry in bytes.
pub(super) const DYNAMIC_LEN: u64 = 16;

/// The ELF header. Fields that no edit touches stay in `raw`.
#[derive(Clone, Debug)]
pub(super) struct FileHeader {
    raw: elf::FileHeader64<Le>,
    pub(super) kind: u16,
    pub(super) machine: u16,
    pub(super) entry: u64,
    pub(super) segments_at: u64,
    pub(super) sections_at: u64,
    pub(super) segment_size: u16,
    pub(super) segment_count: u16,
    pub(super) section_size: u16,
    pub(super) section_count: u16,
    pub(super) names_index: u16,
}

impl FileHeader {
    /// Reads the first 64 bytes of a file; `None` unless they are a 64-bit little-endian ELF header.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = *record::<elf::FileHeader64<Le>>(bytes, 0)?;
        let ident = &raw.e_ident;
        if ident.magic != elf::ELFMAG || bytes.get(4..6) != Some(&[ELFCLASS64, ELFDATA2LSB]) {
            return None;
        }
        Some(Self {
            kind: raw.e_type.get(Le).0,
            machine: raw.e_machine.get(Le).0,
            entry: raw.e_entry.get(Le),
            segments_at: raw.e_phoff.get(Le),
            sections_at: raw.e_shoff.get(Le),
            segment_size: raw.e_phentsize.get(Le),
            segment_count: raw.e_phnum.get(Le),
            section_size: raw.e_shentsize.get(Le),
            section_count: raw.e_shnum.get(Le),
            names_index: raw.e_shstrndx.get(Le).0,
            raw,
        })
    }

    /// The bytes on disk.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut raw = self.raw;
        raw.e_phoff = U64::new(Le, self.segments_at);
        raw.e_shoff = U64::new(Le, self.sections_at);
        raw.e_phnum = U16::new(Le, self.segment_count);
        pod::bytes_of(&raw).to_vec()
    }
}

const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;

/// A program header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) physical: u64,
    pub(super) file_size: u64,
    pub(super) memory_size: u64,
    pub(super) align: u64,
}

impl Segment {
    pub(super) fn parse(raw: &elf::ProgramHeader64<Le>) -> Self {
        Self {
            kind: raw.p_type.get(Le).0,
            flags: raw.p_flags.get(Le).0,
            offset: raw.p_offset.get(Le),
            address: raw.p_vaddr.get(Le),
            physical: raw.p_paddr.get(Le),
            file_size: raw.p_filesz.get(Le),
            memory_size: raw.p_memsz.get(Le),
            align: raw.p_align.get(Le),
        }
    }

    pub(super) fn to_raw(&self) -> elf::ProgramHeader64<Le> {
        elf::ProgramHeader64 {
            p_type: U32::new(Le, elf::ProgramType(self.kind)),
            p_flags: U32::new(Le, elf::ProgramFlags(self.flags)),
            p_offset: U64::new(Le, self.offset),
            p_vaddr: U64::new(Le, self.address),
            p_paddr: U64::new(Le, self.physical),
            p_filesz: U64::new(Le, self.file_size),
            p_memsz: U64::new(Le, self.memory_size),
            p_align: U64::new(Le, self.align),
        }
    }

    pub(super) fn is_load(&self) -> bool {
        self.kind == PT_LOAD
    }

    /// File offset behind the last byte. Saturates; the view has checked that it does not.
    pub(super) fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.file_size)
    }

    /// Address behind the last byte.
    pub(super) fn memory_end(&self) -> u64 {
        self.address.saturating_add(self.memory_size)
    }

    /// The type's name, for messages.
    pub(super) fn name(&self) -> String {
        let known = match self.kind {
            PT_NULL => "PT_NULL",
            PT_LOAD => "PT_LOAD",
            PT_DYNAMIC => "PT_DYNAMIC",
            PT_INTERP => "PT_INTERP",
            PT_NOTE => "PT_NOTE",
            PT_PHDR => "PT_PHDR",
            PT_TLS => "PT_TLS",
            PT_GNU_EH_FRAME => "PT_GNU_EH_FRAME",
            PT_GNU_STACK => "PT_GNU_STACK",
            PT_GNU_RELRO => "PT_GNU_RELRO",
            PT_GNU_PROPERTY => "PT_GNU_PROPERTY",
            other => return format!("type {other:#x}"),
        };
        known.to_owned()
    }
}

/// A section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// Offset of the name in the section name string table.
    pub(super) name: u32,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) link: u32,
    pub(super) info: u32,
    pub(super) align: u64,
    pub(super) entry_size: u64,
}

impl Section {
    pub(super) fn parse(raw: &elf::SectionHeader64<Le>) -> Self {
        Self {
            name: raw.sh_name.get(Le),
            kind: raw.sh_type.get(Le).0,
            flags: raw.sh_flags.get(Le).0,
            address: raw.sh_addr.get(Le),
            offset: raw.sh_offset.get(Le),
            size: raw.sh_size.get(Le),
            link: raw.sh_link.get(Le),
            info: raw.sh_info.get(Le),
            align: raw.sh_addralign.get(Le),
            entry_size: raw.sh_entsize.get(Le),
        }
    }

    pub(super) fn to_raw(&self) -> elf::SectionHeader64<Le> {
        elf::SectionHeader64 {
            sh_name: U32::new(Le, self.name),
            sh_type: U32::new(Le, elf::SectionType(self.kind)),
            sh_flags: U64::new(Le, elf::SectionFlags(self.flags)),
            sh_addr: U64::new(Le, self.address),
            sh_offset: U64::new(Le, self.offset),
            sh_size: U64::new(Le, self.size),
            sh_link: U32::new(Le, self.link),
            sh_info: U32::new(Le, self.info),
            sh_addralign: U64::new(Le, self.align),
            sh_entsize: U64::new(Le, self.entry_size),
        }
    }

    pub(super) fn is_allocated(&self) -> bool {
        self.flags & SHF_ALLOC != 0
    }

    /// Whether the section owns bytes of the file.
    pub(super) fn in_file(&self) -> bool {
        self.kind != SHT_NULL && self.kind != SHT_NOBITS && self.size > 0
    }

    /// Whether the section owns addresses. (`.tbss` does not: its address range is that of what follows it.)
    pub(super) fn in_memory(&self) -> bool {
        self.is_allocated() && self.size > 0 && !(self.kind == SHT_NOBITS && self.flags & SHF_TLS != 0)
    }

    /// File offset behind the last byte.
    pub(super) fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }

    /// Address behind the last byte.
    pub(super) fn memory_end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// A RELA entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rela {
    /// Address of the place that the loader writes.
    pub(super) address: u64,
    pub(super) symbol: u32,
    pub(super) kind: u32,
    /// The addend, as the address arithmetic modulo 2^64 sees it.
    pub(super) addend: u64,
}

impl Rela {
    pub(super) fn parse(raw: &elf::Rela64<Le>) -> Self {
        let info = raw.r_info.get(Le);
        Self {
            address: raw.r_offset.get(Le),
            // Truncation splits the two halves of r_info.
            symbol: (info >> 32) as u32,
            kind: info as u32,
            addend: raw.r_addend.get(Le).cast_unsigned(),
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        pod::bytes_of(&elf::Rela64::<Le> {
            r_offset: U64::new(Le, self.address),
            r_info: U64::new(Le, u64::from(self.symbol) << 32 | u64::from(self.kind)),
            r_addend: I64::new(Le, self.addend.cast_signed()),
        })
        .to_vec()
    }
}

/// The record of type `T` at byte `at`.
pub(super) fn record<T: Pod>(bytes: &[u8], at: usize) -> Option<&T> {
    pod::from_bytes(bytes.get(at..)?).ok().map(|(record, _)| record)
}

/// All records of type `T` in `bytes`; a rest that is shorter than one record is left out.
pub(super) fn records<T: Pod>(bytes: &[u8]) -> &[T] {
    let count = bytes.len() / size_of::<T>();
    pod::slice_from_bytes(bytes, count).map_or(&[], |(records, _)| records)
}

/// Facts about one machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// `R_*_RELATIVE`: the loader writes base + addend.
    pub(super) relative: u32,
    /// The 64-bit absolute relocation: the loader writes symbol + addend.
    pub(super) absolute: u32,
    /// Relocation types whose symbol and addend are no addresses: thread-local storage, and copies.
    no_address: &'static [u32],
    /// The largest page that a kernel for the machine may use, in bytes.
    pub(super) page: u64,
}

impl Machine {
    /// The machines that ROCm hosts run on; a fault for others, since their relocation types are unknown here.
    pub(super) fn of(machine: u16) -> Result<Self> {
        // psABIs: x86-64 section 4.4, aarch64 "Dynamic relocations", ppc64 ELFv2 section 3.5, riscv "Relocations".
        Ok(match elf::Machine(machine) {
            elf::EM_X86_64 => {
                Self { relative: 8, absolute: 1, no_address: &[5, 16, 17, 18, 36], page: 0x1000 }
            }
            elf::EM_AARCH64 => Self {
                relative: 1027,
                absolute: 257,
                no_address: &[1024, 1028, 1029, 1030, 1031],
                page: 0x10000,
            },
            elf::EM_PPC64 => {
                Self { relative: 22, absolute: 38, no_address: &[19, 68, 73, 78], page: 0x10000 }
            }
            elf::EM_RISCV => Self { relative: 3, absolute: 2, no_address: &[4, 7, 9, 11, 12], page: 0x1000 },
            _ => {
                return Err(Fault::unsupported(
                    "ELF header",
                    18,
                    format!(
                        "e_machine is {machine}; known are x86-64 (62), aarch64 (183), ppc64 (21) and riscv (243)"
                    ),
                ));
            }
        })
    }

    /// Whether a relocation of `kind` makes the loader write an address built from its symbol and addend.
    pub(super) fn makes_address(&self, kind: u32) -> bool {
        !self.no_address.contains(&kind)
    }
}

pub(super) const ET_EXEC: u16 = elf::ET_EXEC.0;
pub(super) const ET_DYN: u16 = elf::ET_DYN.0;
pub(super) const PN_XNUM: u16 = elf::PN_XNUM;

pub(super) const PT_NULL: u32 = elf::PT_NULL.0;
pub(super) const PT_LOAD: u32 = elf::PT_LOAD.0;
pub(super) const PT_DYNAMIC: u32 = elf::PT_DYNAMIC.0;
pub(super) const PT_INTERP: u32 = elf::PT_INTERP.0;
pub(super) const PT_NOTE: u32 = elf::PT_NOTE.0;
pub(super) const PT_PHDR: u32 = elf::PT_PHDR.0;
pub(super) const PT_TLS: u32 = elf::PT_TLS.0;
pub(super) const PT_GNU_EH_FRAME: u32 = elf::PT_GNU_EH_FRAME.0;
pub(super) const PT_GNU_STACK: u32 = elf::PT_GNU_STACK.0;
pub(super) const PT_GNU_RELRO: u32 = elf::PT_GNU_RELRO.0;
pub(super) const PT_GNU_PROPERTY: u32 = elf::PT_GNU_PROPERTY.0;

pub(super) const SHN_XINDEX: u16 = elf::SHN_XINDEX.0;
pub(super) const SHT_NULL: u32 = elf::SHT_NULL.0;
pub(super) const SHT_STRTAB: u32 = elf::SHT_STRTAB.0;
pub(super) const SHT_RELA: u32 = elf::SHT_RELA.0;
pub(super) const SHT_HASH: u32 = elf::SHT_HASH.0;
pub(super) const SHT_NOTE: u32 = elf::SHT_NOTE.0;
pub(super) const SHT_NOBITS: u32 = elf::SHT_NOBITS.0;
pub(super) const SHT_REL: u32 = elf::SHT_REL.0;
pub(super) const SHT_DYNSYM: u32 = elf::SHT_DYNSYM.0;
pub(super) const SHT_RELR: u32 = elf::SHT_RELR.0;
pub(super) const SHT_ANDROID_REL: u32 = 0x6000_0001;
pub(super) const SHT_ANDROID_RELA: u32 = 0x6000_0002;
pub(super) const SHT_ANDROID_RELR: u32 = 0x6fff_ff00;
pub(super) const SHT_CREL: u32 = 0x4000_0014;
pub(super) const SHT_GNU_HASH: u32 = elf::SHT_GNU_HASH.0;
pub(super) const SHT_GNU_VERNEED: u32 = elf::SHT_GNU_VERNEED.0;
pub(super) const SHT_GNU_VERSYM: u32 = elf::SHT_GNU_VERSYM.0;
pub(super) const SHF_ALLOC: u64 = elf::SHF_ALLOC.0;
pub(super) const SHF_TLS: u64 = elf::SHF_TLS.0;

pub(super) const DT_NULL: i64 = elf::DT_NULL.0;
pub(super) const DT_PLTRELSZ: i64 = elf::DT_PLTRELSZ.0;
pub(super) const DT_HASH: i64 = elf::DT_HASH.0;
pub(super) const DT_STRTAB: i64 = elf::DT_STRTAB.0;
pub(super) const DT_SYMTAB: i64 = elf::DT_SYMTAB.0;
pub(super) const DT_RELA: i64 = elf::DT_RELA.0;
pub(super) const DT_RELASZ: i64 = elf::DT_RELASZ.0;
pub(super) const DT_REL: i64 = elf::DT_REL.0;
pub(super) const DT_PLTREL: i64 = elf::DT_PLTREL.0;
pub(super) const DT_JMPREL: i64 = elf::DT_JMPREL.0;
pub(super) const DT_RELRSZ: i64 = elf::DT_RELRSZ.0;
pub(super) const DT_RELR: i64 = elf::DT_RELR.0;
pub(super) const DT_ANDROID_REL: i64 = 0x6000_000f;
pub(super) const DT_ANDROID_RELA: i64 = 0x6000_0011;
pub(super) const DT_ANDROID_RELR: i64 = 0x6fff_e000;
pub(super) const DT_GNU_HASH: i64 = elf::DT_GNU_HASH.0;
pub(super) const DT_VERSYM: i64 = elf::DT_VERSYM.0;
pub(super) const DT_FLAGS_1: i64 = elf::DT_FLAGS_1.0;
pub(super) const DT_VERNEED: i64 = elf::DT_VERNEED.0;
/// `DT_FLAGS_1`: the file is an executable, not a shared object.
pub(super) const DF_1_PIE: u64 = 0x0800_0000;

pub(super) const STT_TLS: u8 = elf::STT_TLS.0;
