//! What the loader writes where: a walk over RELA and RELR that resolves the wrappers' pointers and proves that no
//! other pointer leads into a bundle.
//!
//! A table may have millions of entries and none is held. Relocation tables are those of allocated sections and of
//! `.dynamic` together, since the loader follows the latter and strips the former. Non-allocated `.rela.*` sections
//! (`--emit-relocs`) are no concern of the loader.
//!
//! Refused: tables in another form (REL, CREL, Android's packed ones), a relocation that leads into a bundle and is
//! no wrapper's, one that writes into a bundle, two for one wrapper pointer, and one of an unknown type for it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use object::elf;
use object::endian::LittleEndian as Le;

use super::headers::*;
use super::holes::without;
use super::room::is_address;
use super::view::{BLOCK, ElfView, Window, for_each_record};
use crate::fatbin::wrapper::BundleSection;
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Bound on what is remembered about symbols and unresolved relocations: 24 MiB at most.
const MAX_PENDING: usize = 1 << 20;

/// How a wrapper's pointer gets its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointer {
    /// The bytes in place are the value: ET_EXEC, or no relocation at all.
    InPlace,
    /// The bytes in place plus the load bias, by RELR.
    Relr,
    /// By the RELA entry at file offset `entry`.
    Rela {
        /// File offset of the entry.
        entry: u64,
        /// The entry.
        rela: Rela,
    },
}

/// A relocation table in the file.
struct Table {
    place: String,
    offset: u64,
    size: u64,
}

/// What the walk looks for.
pub(super) struct Walk<'a> {
    view: &'a ElfView,
    machine: Machine,
    bundles: &'a [BundleSection],
    /// Address of each wrapper pointer, to the index of the wrapper.
    pointers: &'a HashMap<u64, usize>,
    /// For each wrapper, how its pointer gets its value and which value; `None` so far: in place.
    found: Vec<Option<(Pointer, u64)>>,
}

impl<'a> Walk<'a> {
    /// Walks all tables. The result has, for each wrapper, what relocates its pointer and the pointer's final value;
    /// `None` where nothing relocates it.
    pub(super) fn run(
        source: &mut dyn ReadAt,
        view: &'a ElfView,
        bundles: &'a [BundleSection],
        pointers: &'a HashMap<u64, usize>,
    ) -> Result<Vec<Option<(Pointer, u64)>>> {
        let found = vec![None; pointers.len()];
        let mut walk = Self { view, machine: view.machine()?, bundles, pointers, found };
        let (rela, relr) = walk.tables(source)?;
        walk.walk_rela(source, &rela)?;
        walk.walk_relr(source, &relr)?;
        Ok(walk.found)
    }

    /// The RELA and the RELR tables, each in file order.
    fn tables(&self, source: &mut dyn ReadAt) -> Result<(Vec<Table>, Vec<Table>)> {
        let (mut rela, mut relr) = (Vec::new(), Vec::new());
        for (index, section) in self.view.sections.iter().enumerate() {
            if !section.is_allocated() || section.size == 0 {
                continue;
            }
            let (tables, entry) = match section.kind {
                SHT_RELA => (&mut rela, RELA_LEN),
                SHT_RELR => (&mut relr, 8),
                SHT_REL | SHT_CREL | SHT_ANDROID_REL | SHT_ANDROID_RELA | SHT_ANDROID_RELR => {
                    return Err(Fault::unsupported(
                        self.view.section_label(source, index),
                        section.offset,
                        format!(
                            "allocated relocations of section type {:#x}; known are RELA and RELR",
                            section.kind
                        ),
                    ));
                }
                _ => continue,
            };
            if section.size % entry != 0 {
                return Err(Fault::malformed(
                    self.view.section_label(source, index),
                    section.offset,
                    format!("size {:#x} is no multiple of the entry size {entry}", section.size),
                ));
            }
            let place = self.view.section_label(source, index);
            tables.push(Table { place, offset: section.offset, size: section.size });
        }
        for tag in [DT_REL, DT_ANDROID_REL, DT_ANDROID_RELA, DT_ANDROID_RELR] {
            if let Some(entry) = self.view.dynamic.iter().find(|entry| entry.tag == tag) {
                return Err(Fault::unsupported(
                    "dynamic section",
                    entry.value_at - 8,
                    format!("tag {tag:#x}: relocations in a form other than RELA and RELR"),
                ));
            }
        }
        if self.view.dynamic_entry(DT_PLTREL).is_some_and(|entry| entry.value.cast_signed() != DT_RELA) {
            return Err(Fault::unsupported("dynamic section", None, "DT_PLTREL is not DT_RELA"));
        }
        self.add_dynamic(&mut rela, DT_RELA, DT_RELASZ, RELA_LEN)?;
        self.add_dynamic(&mut rela, DT_JMPREL, DT_PLTRELSZ, RELA_LEN)?;
        self.add_dynamic(&mut relr, DT_RELR, DT_RELRSZ, 8)?;
        rela.sort_by_key(|table| table.offset);
        relr.sort_by_key(|table| table.offset);
        Ok((rela, relr))
    }

    /// Adds those parts of a table named by `.dynamic` that no section covers.
    fn add_dynamic(&self, tables: &mut Vec<Table>, start: i64, size: i64, entry: u64) -> Result<()> {
        let (Some(start), Some(size)) = (self.view.dynamic_entry(start), self.view.dynamic_entry(size))
        else {
            return Ok(());
        };
        if size.value == 0 {
            return Ok(());
        }
        let place = format!("relocation table of dynamic tag {:#x}", start.tag);
        let offset = self.view.offset_of(start.value);
        let range = offset.and_then(|at| Some(at..at.checked_add(size.value)?));
        let Some(range) = range.filter(|range| range.end <= self.view.length) else {
            let message =
                format!("{:#x} bytes at address {:#x} are not in the file", size.value, start.value);
            return Err(Fault::malformed(place, start.value_at, message));
        };
        let covered: Vec<Range<u64>> =
            tables.iter().map(|table| table.offset..table.offset + table.size).collect();
        for part in without(range, covered) {
            if !(part.end - part.start).is_multiple_of(entry) {
                return Err(Fault::unsupported(
                    place,
                    part.start,
                    "the table and the relocation sections do not agree on where entries start",
                ));
            }
            tables.push(Table { place: place.clone(), offset: part.start, size: part.end - part.start });
        }
        Ok(())
    }

    fn in_bundle(&self, address: u64) -> bool {
        self.bundles
            .iter()
            .any(|bundle| address.wrapping_sub(bundle.address) < bundle.range.end - bundle.range.start)
    }

    fn stray(place: &str, offset: u64, from: u64, to: u64) -> Fault {
        Fault::unsupported(
            place,
            offset,
            format!(
                "the pointer at address {from:#x} leads to {to:#x} in .hip_fatbin and belongs to no wrapper"
            ),
        )
    }

    fn walk_rela(&mut self, source: &mut dyn ReadAt, tables: &[Table]) -> Result<()> {
        if tables.is_empty() {
            return Ok(());
        }
        let symbols = Symbols::read(source, self.view, |address| self.in_bundle(address))?;
        // Relocations whose value needs a symbol's value that the first walk over the symbols did not keep.
        let mut pending: BTreeMap<u32, Vec<(u64, Rela)>> = BTreeMap::new();
        let mut pending_count = 0;
        for table in tables {
            for_each_record::<elf::Rela64<Le>>(
                source,
                table.offset,
                table.size,
                &table.place,
                |entry, raw| {
                    let rela = Rela::parse(raw);
                    if self.in_bundle(rela.address) {
                        return Err(Fault::unsupported(
                            &table.place,
                            entry,
                            format!("a relocation writes to address {:#x} in .hip_fatbin", rela.address),
                        ));
                    }
                    let wrapper = self.pointers.get(&rela.address).copied();
                    let value = if rela.symbol == 0 {
                        Some(rela.addend)
                    } else if wrapper.is_none() && rela.addend == 0 {
                        symbols.in_bundles.get(&rela.symbol).copied()
                    } else {
                        None
                    };
                    match (wrapper, value) {
                        (Some(wrapper), Some(value)) => {
                            if rela.kind != self.machine.relative && rela.kind != self.machine.absolute {
                                return Err(self.unknown_type(&table.place, entry, &rela));
                            }
                            self.resolve(wrapper, Pointer::Rela { entry, rela }, value, &table.place, entry)?;
                        }
                        (None, Some(value))
                            if self.machine.makes_address(rela.kind) && self.in_bundle(value) =>
                        {
                            return Err(Self::stray(&table.place, entry, rela.address, value));
                        }
                        (None, Some(_)) => {}
                        (None, None) if rela.addend == 0 => {}
                        _ if wrapper.is_some() && rela.kind != self.machine.absolute => {
                            return Err(self.unknown_type(&table.place, entry, &rela));
                        }
                        _ if wrapper.is_some() || symbols.is_defined(rela.symbol) => {
                            pending_count += 1;
                            if pending_count > MAX_PENDING {
                                return Err(Fault::unsupported(
                                    &table.place,
                                    entry,
                                    format!(
                                        "more than {MAX_PENDING} relocations against a symbol with an addend"
                                    ),
                                ));
                            }
                            pending.entry(rela.symbol).or_default().push((entry, rela));
                        }
                        _ => {}
                    }
                    Ok(())
                },
            )?;
        }
        if pending.is_empty() {
            return Ok(());
        }
        symbols.values(
            source,
            self.view,
            &pending.keys().copied().collect::<Vec<_>>(),
            |symbol, value| {
                for (entry, rela) in pending.remove(&symbol).unwrap_or_default() {
                    let place = "relocation table";
                    let value = value.wrapping_add(rela.addend);
                    match self.pointers.get(&rela.address) {
                        Some(&wrapper) => {
                            self.resolve(wrapper, Pointer::Rela { entry, rela }, value, place, entry)?;
                        }
                        None if self.machine.makes_address(rela.kind) && self.in_bundle(value) => {
                            return Err(Self::stray(place, entry, rela.address, value));
                        }
                        None => {}
                    }
                }
                Ok(())
            },
        )?;
        match pending.first_key_value() {
            None => Ok(()),
            Some((symbol, _)) => Err(Fault::malformed(
                "relocation table",
                None,
                format!(
                    "a wrapper's pointer is relocated against symbol {symbol}, which .dynsym does not define"
                ),
            )),
        }
    }

    fn unknown_type(&self, place: &str, entry: u64, rela: &Rela) -> Fault {
        Fault::unsupported(
            place,
            entry,
            format!(
                "the wrapper pointer at address {:#x} has relocation type {}; known are {} and {}",
                rela.address, rela.kind, self.machine.relative, self.machine.absolute
            ),
        )
    }

    fn resolve(&mut self, wrapper: usize, pointer: Pointer, value: u64, place: &str, at: u64) -> Result<()> {
        match self.found.get_mut(wrapper) {
            Some(slot @ None) => *slot = Some((pointer, value)),
            _ => {
                return Err(Fault::unsupported(
                    place,
                    at,
                    format!("a second relocation for the pointer of wrapper {wrapper}"),
                ));
            }
        }
        Ok(())
    }

    /// RELR (gABI, "Relative Relocation Table"): an even word is the address of a pointer to relocate, an odd one a
    /// bitmap of the 63 words behind the last address.
    fn walk_relr(&mut self, source: &mut dyn ReadAt, tables: &[Table]) -> Result<()> {
        for table in tables {
            // A block of the table, then the pointers that it names: both are read forward.
            let mut next = 0;
            let mut base: u64 = 0;
            while next < table.size {
                let size = (table.size - next).min(BLOCK);
                let bytes = source.read_vec(table.offset + next, size, &table.place)?;
                let mut addresses = Vec::new();
                for word in records::<elf::Relr64<Le>>(&bytes) {
                    let word = word.0.get(Le);
                    if word & 1 == 0 {
                        addresses.push(word);
                        base = word.wrapping_add(8);
                    } else {
                        let set = (0..63).filter(|bit| word >> (bit + 1) & 1 == 1);
                        addresses.extend(set.map(|bit| base.wrapping_add(8 * bit)));
                        base = base.wrapping_add(63 * 8);
                    }
                }
                self.check_relr(source, &addresses, table, table.offset + next)?;
                next += size;
            }
        }
        Ok(())
    }

    fn check_relr(
        &mut self,
        source: &mut dyn ReadAt,
        addresses: &[u64],
        table: &Table,
        at: u64,
    ) -> Result<()> {
        let mut window = Window::new(source);
        for &address in addresses {
            if self.in_bundle(address) {
                return Err(Fault::unsupported(
                    &table.place,
                    at,
                    format!("a relocation writes to address {address:#x} in .hip_fatbin"),
                ));
            }
            // Memory behind a segment's file bytes is zero.
            let value = match self.view.offset_of(address) {
                Some(offset) => u64::from_le_bytes(window.get(offset, &table.place)?),
                None => 0,
            };
            match self.pointers.get(&address) {
                Some(&wrapper) => self.resolve(wrapper, Pointer::Relr, value, &table.place, at)?,
                None if self.in_bundle(value) => return Err(Self::stray(&table.place, at, address, value)),
                None => {}
            }
        }
        Ok(())
    }
}

/// What the relocation walk must know about `.dynsym`.
#[derive(Default)]
struct Symbols {
    /// Defined symbols whose value is in a bundle.
    in_bundles: HashMap<u32, u64>,
    /// One bit per symbol: defined here, and no thread-local.
    defined: Vec<u64>,
}

impl Symbols {
    /// The bytes of the file that hold it. Without section headers nothing says where it ends: at the latest where the
    /// next thing that `.dynamic` names starts. What is no symbol in between, no relocation refers to.
    fn table(view: &ElfView) -> Option<Range<u64>> {
        if !view.sections.is_empty() {
            let is_table = |section: &&Section| section.kind == SHT_DYNSYM && section.in_file();
            return view.sections.iter().find(is_table).map(|section| section.offset..section.file_end());
        }
        let start = view.dynamic_entry(DT_SYMTAB)?.value;
        let (_, load) = view.loads().find(|(_, load)| load.address <= start && start < load.memory_end())?;
        let named = view.dynamic.iter().filter(|entry| is_address(entry.tag)).map(|entry| entry.value);
        let end = named.filter(|&address| address > start).min().unwrap_or(u64::MAX);
        let end = end.min(load.address + load.file_size);
        let offset = view.offset_of(start)?;
        Some(offset..offset + end.saturating_sub(start))
    }

    fn read(source: &mut dyn ReadAt, view: &ElfView, in_bundle: impl Fn(u64) -> bool) -> Result<Self> {
        let mut symbols = Self::default();
        let Some(table) = Self::table(view) else {
            return Ok(symbols);
        };
        let size = table.end - table.start;
        for_each_record::<elf::Sym64<Le>>(source, table.start, size, ".dynsym", |at, raw| {
            let index = (at - table.start) / SYMBOL_LEN;
            if index.is_multiple_of(64) {
                symbols.defined.push(0);
            }
            if raw.st_shndx.get(Le).0 == 0 || raw.st_info.st_type().0 == STT_TLS {
                return Ok(());
            }
            if let Some(word) = symbols.defined.last_mut() {
                *word |= 1 << (index % 64);
            }
            let value = raw.st_value.get(Le);
            if in_bundle(value) {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                symbols.in_bundles.insert(index, value);
                if symbols.in_bundles.len() > MAX_PENDING {
                    let message = format!("more than {MAX_PENDING} symbols in .hip_fatbin");
                    return Err(Fault::unsupported(".dynsym", at, message));
                }
            }
            Ok(())
        })?;
        Ok(symbols)
    }

    fn is_defined(&self, symbol: u32) -> bool {
        self.defined.get(symbol as usize / 64).is_some_and(|word| word >> (symbol % 64) & 1 == 1)
    }

    /// Hands `take` the values of those of `wanted` (ascending) that are defined.
    fn values(
        &self,
        source: &mut dyn ReadAt,
        view: &ElfView,
        wanted: &[u32],
        mut take: impl FnMut(u32, u64) -> Result<()>,
    ) -> Result<()> {
        let Some(table) = Self::table(view) else {
            return Ok(());
        };
        let mut window = Window::new(source);
        for &symbol in wanted.iter().filter(|&&symbol| self.is_defined(symbol)) {
            let at = table.start + u64::from(symbol) * SYMBOL_LEN;
            let raw: [u8; SYMBOL_LEN as usize] = window.get(at, ".dynsym")?;
            if let Some(raw) = record::<elf::Sym64<Le>>(&raw, 0) {
                take(symbol, raw.st_value.get(Le))?;
            }
        }
        Ok(())
    }
}
