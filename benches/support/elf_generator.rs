//! Fat and plain ELF libraries of any size, as a list of pieces that are made one by one.
//!
//! The layout is lld's for x86-64: a read-only segment (notes, dynamic symbols, relocations, constants, bundles,
//! unwind data), code, RELRO, data with the wrappers, `.bss`; section headers last. Every relocation is
//! `R_X86_64_RELATIVE`, no symbol is undefined, and there is no initialiser, so `dlopen` loads the result.
//! The code itself means nothing and is never run.

use std::ops::Range;

use super::code_mixer::{Mixer, Random};

/// The processors of a fat library, the most common of ROCm wheels first.
pub(crate) const TARGETS: [&str; 16] = [
    "gfx942", "gfx90a", "gfx1100", "gfx1201", "gfx908", "gfx1030", "gfx950", "gfx906", "gfx1101", "gfx1102",
    "gfx1200", "gfx900", "gfx1150", "gfx1151", "gfx1152", "gfx1153",
];
/// Host bytes are made in pieces of this size, so that no piece is large.
const PIECE: u64 = 1 << 20;
const PAGE: u64 = 4096;
const HEADERS: u64 = 9;

/// Some bytes of a library. Made by [`Piece::bytes`], on any thread.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// These.
    Bytes(Vec<u8>),
    /// So many zeros.
    Zeros(u64),
    /// Host code.
    Host { place: Vec<u64>, size: u64, ratio: f64 },
    /// A code object.
    Device { unit: Vec<u64>, target: u64, size: u64, ratio: f64 },
    /// Relative relocations `range` of a table: the n-th writes at `at` + 8 n, an address in `to`.
    Relocations { range: Range<u64>, at: u64, to: Range<u64> },
    /// A part of the file that compressed bundles were put into.
    Spooled(Range<u64>),
}

impl Piece {
    pub(crate) fn size(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Zeros(size) | Piece::Host { size, .. } | Piece::Device { size, .. } => *size,
            Piece::Relocations { range, .. } => 24 * (range.end - range.start),
            Piece::Spooled(range) => range.end - range.start,
        }
    }

    /// The bytes. `spool` reads the file of compressed bundles.
    pub(crate) fn bytes(&self, mixer: &Mixer, spool: impl Fn(&Range<u64>) -> Vec<u8>) -> Vec<u8> {
        match self {
            Piece::Bytes(bytes) => bytes.clone(),
            Piece::Zeros(size) => vec![0; *size as usize],
            Piece::Host { place, size, ratio } => mixer.host(*size as usize, *ratio, place),
            Piece::Device { unit, target, size, ratio } => {
                mixer.device(*size as usize, *ratio, unit, *target)
            }
            Piece::Relocations { range, at, to } => {
                let mut random = Random::of(&[range.start]);
                let entry = |n| relocation(at + 8 * n, to.start + (random.below(to.end - to.start) & !15));
                range.clone().flat_map(entry).collect()
            }
            Piece::Spooled(range) => spool(range),
        }
    }
}

/// What a library shall be like.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    /// Tells its bytes from those of other libraries.
    pub(crate) seed: Vec<u64>,
    /// Bytes of host code, constants, relocations and symbols, together and about.
    pub(crate) host: u64,
    /// How many to one deflate makes of it.
    pub(crate) host_ratio: f64,
    /// Its device code; `None`: a plain library.
    pub(crate) device: Option<Device>,
}

/// The device code of a library.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// Sizes of the code objects: per translation unit, per target.
    pub(crate) units: Vec<Vec<u64>>,
    /// How many to one deflate makes of it.
    pub(crate) ratio: f64,
    /// Where each unit's compressed bundle lies in the spool; `None`: bundles are plain.
    pub(crate) compressed: Option<Vec<Range<u64>>>,
}

impl Device {
    /// Translation units of about `total` bytes in all, of objects of about `object` bytes, for `targets`
    /// processors. Sizes spread over a factor of 16, and every sixteenth unit is 4 times as large, as real ones do.
    pub(crate) fn new(seed: &[u64], total: u64, object: u64, targets: usize, ratio: f64) -> Self {
        let mut random = Random::of(seed);
        let mut units = Vec::new();
        let mut left = total;
        while left > 0 {
            let spread = [1, 1, 2, 3, 4, 5, 8, 16][random.below(8) as usize];
            let mean = if units.len() % 16 == 15 { 4 * object } else { object * spread / 5 };
            // The last unit takes what is left.
            let mean = mean.min(left / targets as u64);
            let sizes: Vec<u64> = (0..targets)
                .map(|_| (mean * (900 + random.below(200)) / 1000).max(4096).next_multiple_of(8))
                .collect();
            left = left.saturating_sub(sizes.iter().sum());
            units.push(sizes);
        }
        Self { units, ratio, compressed: None }
    }

    /// The plain bundle of a unit, in pieces.
    pub(crate) fn bundle(&self, seed: &[u64], unit: usize) -> Vec<Piece> {
        let sizes = &self.units[unit];
        let ids: Vec<String> = std::iter::once("host-x86_64-unknown-linux-gnu-".to_owned())
            .chain(
                TARGETS.iter().take(sizes.len()).map(|target| format!("hipv4-amdgcn-amd-amdhsa--{target}")),
            )
            .collect();
        let table = 32 + ids.iter().map(|id| 24 + id.len() as u64).sum::<u64>();
        let mut header = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
        header.extend((ids.len() as u64).to_le_bytes());
        let mut at = table.next_multiple_of(PAGE);
        let mut starts = vec![at];
        for (id, size) in ids.iter().zip(std::iter::once(&0).chain(sizes)) {
            if *size > 0 {
                at = at.next_multiple_of(PAGE);
                starts.push(at);
            }
            for word in [at, *size, id.len() as u64] {
                header.extend(word.to_le_bytes());
            }
            header.extend(id.as_bytes());
            at += size;
        }
        let mut pieces = vec![Piece::Bytes(header)];
        let mut end = table;
        let path: Vec<u64> = seed.iter().copied().chain([unit as u64]).collect();
        for (target, (&size, &start)) in sizes.iter().zip(&starts[1..]).enumerate() {
            pieces.push(Piece::Zeros(start - end));
            let (unit, target, ratio) = (path.clone(), target as u64, self.ratio);
            pieces.push(Piece::Device { unit, target, size, ratio });
            end = start + size;
        }
        pieces
    }
}

/// A library in pieces.
#[derive(Debug)]
pub(crate) struct Generated {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) size: u64,
}

/// Sections and pieces as they are laid out.
#[derive(Default)]
struct Layout {
    pieces: Vec<Piece>,
    /// The next byte's offset.
    at: u64,
    /// Addresses are offsets plus this.
    bias: u64,
    sections: Vec<Section>,
}

#[derive(Clone, Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
}

const PROGBITS: u32 = 1;
const NOBITS: u32 = 8;
const WRITE: u64 = 1;
const ALLOC: u64 = 2;
const EXEC: u64 = 4;

impl Layout {
    /// Adds a section. Returns its address.
    fn add(
        &mut self,
        name: &'static str,
        kind: u32,
        flags: u64,
        align: u64,
        entry: u64,
        pieces: Vec<Piece>,
    ) -> u64 {
        let start = self.at.next_multiple_of(align);
        if start > self.at {
            self.pieces.push(Piece::Zeros(start - self.at));
        }
        let size = pieces.iter().map(Piece::size).sum();
        let address = if flags & ALLOC == 0 { 0 } else { start + self.bias };
        self.sections.push(Section {
            name,
            kind,
            flags,
            address,
            offset: start,
            size,
            align,
            entry,
            ..Section::default()
        });
        self.pieces.extend(pieces);
        self.at = start + size;
        address
    }

    /// The place in `pieces` where the next section's content will stand, once its padding is in.
    fn index(&mut self, align: u64) -> usize {
        let start = self.at.next_multiple_of(align);
        if start > self.at {
            self.pieces.push(Piece::Zeros(start - self.at));
            self.at = start;
        }
        self.pieces.len()
    }

    fn find(&self, name: &str) -> &Section {
        self.sections.iter().find(|section| section.name == name).expect("the section was added")
    }
}

/// Lays `library` out.
pub(crate) fn generate(library: &Library) -> Generated {
    let host = library.host.max(64 << 10);
    // Shares as in large C++ libraries: half code, a fifth constants, the rest relocated pointers with their
    // relocations (24 bytes for each pointer of 8), unwind data and symbols.
    let (code, constants, unwind) = (host / 2, host / 5, host / 16);
    let pointers = host / 6 / 32;
    let symbols = (host >> 11).clamp(16, 1 << 20);
    let bundles: Vec<Vec<Piece>> = library.device.as_ref().map_or_else(Vec::new, |device| {
        let unit = |unit| match &device.compressed {
            None => device.bundle(&library.seed, unit),
            Some(spooled) => vec![Piece::Spooled(spooled[unit].clone())],
        };
        (0..device.units.len()).map(unit).collect()
    });
    let wrappers = bundles.len() as u64;

    let mut layout = Layout::default();
    layout.sections.push(Section::default());
    layout.pieces.push(Piece::Zeros(64 + 56 * HEADERS)); // replaced below
    layout.at = 64 + 56 * HEADERS;
    layout.add(".note.gnu.build-id", 7, ALLOC, 4, 0, vec![Piece::Bytes(build_id(&library.seed))]);
    let (names, offsets) = symbol_names(&library.seed, symbols);
    let symtab = layout.index(8);
    layout.add(".dynsym", 11, ALLOC, 8, 24, vec![Piece::Zeros(24 * (symbols + 1))]);
    layout.add(".hash", 5, ALLOC, 8, 4, vec![Piece::Bytes(hash_table(&names, &offsets))]);
    layout.add(".dynstr", 3, ALLOC, 1, 0, vec![Piece::Bytes(names)]);
    let rela = layout.index(8);
    layout.add(".rela.dyn", 4, ALLOC, 8, 24, vec![Piece::Zeros(24 * (pointers + wrappers))]);
    let pieces = host_pieces(&library.seed, 1, constants, library.host_ratio);
    layout.add(".rodata", PROGBITS, ALLOC, 64, 0, pieces);
    let mut targets = Vec::new();
    if !bundles.is_empty() {
        let start = layout.at.next_multiple_of(PAGE);
        let mut content = Vec::new();
        let mut at = start;
        for bundle in bundles {
            let aligned = at.next_multiple_of(PAGE);
            content.push(Piece::Zeros(aligned - at));
            targets.push(aligned); // the bias of this segment is 0
            at = aligned + bundle.iter().map(Piece::size).sum::<u64>();
            content.extend(bundle);
        }
        layout.add(".hip_fatbin", PROGBITS, ALLOC, PAGE, 0, content);
    }
    let pieces = host_pieces(&library.seed, 2, unwind, library.host_ratio);
    layout.add(".eh_frame", PROGBITS, ALLOC, 8, 0, pieces);
    let read_only = layout.at;

    layout.bias = PAGE;
    let pieces = host_pieces(&library.seed, 3, code, library.host_ratio);
    let text = layout.add(".text", PROGBITS, ALLOC | EXEC, 16, 0, pieces);
    let text_at = layout.find(".text").offset;
    let code = text..text + code;

    layout.bias = 2 * PAGE;
    let relro_at = layout.at.next_multiple_of(16);
    let pointers_at =
        layout.add(".data.rel.ro", PROGBITS, ALLOC | WRITE, 16, 0, vec![Piece::Zeros(8 * pointers)]);
    let value = |layout: &Layout, name| layout.find(name).address;
    let tags = [
        (4, value(&layout, ".hash")),
        (5, value(&layout, ".dynstr")),
        (6, value(&layout, ".dynsym")),
        (7, value(&layout, ".rela.dyn")),
        (8, 24 * (pointers + wrappers)),
        (9, 24),
        (10, layout.find(".dynstr").size),
        (11, 24),
        (0x6fff_fff9, pointers + wrappers), // DT_RELACOUNT
        (0, 0),
    ];
    let dynamic = words(tags.into_iter().flat_map(|(tag, value)| [tag, value]));
    layout.add(".dynamic", 6, ALLOC | WRITE, 8, 16, vec![Piece::Bytes(dynamic)]);
    let relro_end = layout.at;

    layout.bias = 3 * PAGE;
    let data_at = layout.at.next_multiple_of(16);
    layout.add(
        ".data",
        PROGBITS,
        ALLOC | WRITE,
        16,
        0,
        host_pieces(&library.seed, 4, host / 64, library.host_ratio),
    );
    let wrapper = words([0x1_4849_5046, 0, 0]);
    let wrapper_bytes = wrapper.repeat(wrappers as usize);
    let mut segment = 0;
    if wrappers > 0 {
        segment =
            layout.add(".hipFatBinSegment", PROGBITS, ALLOC | WRITE, 8, 0, vec![Piece::Bytes(wrapper_bytes)]);
    }
    let data_end = layout.at;
    let zeroed = 64 << 10;
    let zeroed_at = (data_end + layout.bias).next_multiple_of(64);
    layout.sections.push(Section {
        name: ".bss",
        kind: NOBITS,
        flags: ALLOC | WRITE,
        address: zeroed_at,
        offset: data_end,
        size: zeroed,
        align: 64,
        ..Section::default()
    });
    let comment = b"fatwheel's benchmarks\0".to_vec();
    layout.add(".comment", PROGBITS, 0x30, 1, 1, vec![Piece::Bytes(comment)]);
    let section_names = string_table(layout.sections.iter().map(|section| section.name).chain([".shstrtab"]));
    layout.add(".shstrtab", 3, 0, 1, 0, vec![Piece::Bytes(section_names.clone())]);
    let sections_at = layout.at.next_multiple_of(8);
    layout.pieces.push(Piece::Zeros(sections_at - layout.at));
    link(&mut layout.sections);
    let table = layout.sections.iter().flat_map(|section| section_header(section, &section_names)).collect();
    layout.pieces.push(Piece::Bytes(table));

    let load = |flags: u64, offset: u64, end: u64, bias: u64, extra: u64| {
        program_header(1, flags, offset, offset + bias, end - offset, extra, PAGE)
    };
    let of = |kind, flags, section: &Section| {
        program_header(kind, flags, section.offset, section.address, section.size, 0, section.align)
    };
    let padding = (relro_end + 2 * PAGE).next_multiple_of(PAGE) - (relro_end + 2 * PAGE);
    let headers = [
        program_header(6, 4, 64, 64, 56 * HEADERS, 0, 8),
        load(4, 0, read_only, 0, 0),
        load(5, text_at, text_at + (code.end - code.start), PAGE, 0),
        load(6, relro_at, relro_end, 2 * PAGE, padding),
        load(6, data_at, data_end, 3 * PAGE, zeroed_at + zeroed - (data_end + 3 * PAGE)),
        of(2, 6, layout.find(".dynamic")),
        program_header(0x6474_e552, 4, relro_at, relro_at + 2 * PAGE, relro_end - relro_at, padding, 1),
        program_header(0x6474_e551, 6, 0, 0, 0, 0, 0),
        of(4, 4, layout.find(".note.gnu.build-id")),
    ];
    let mut head = file_header(sections_at, layout.sections.len() as u64);
    head.extend(headers.into_iter().flatten());
    layout.pieces[0] = Piece::Bytes(head);

    layout.pieces[symtab] = Piece::Bytes(symbol_table(&offsets, &layout.sections, &code));
    let mut last: Vec<u8> = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        last.extend(relocation(segment + 24 * index as u64 + 8, *target));
    }
    let step = PIECE / 24;
    let ranges = (0..pointers.div_ceil(step)).map(|n| n * step..((n + 1) * step).min(pointers));
    let relocations = ranges
        .map(|range| Piece::Relocations { range, at: pointers_at, to: code.clone() })
        .chain([Piece::Bytes(last)]);
    layout.pieces.splice(rela..=rela, relocations);
    let size = layout.pieces.iter().map(Piece::size).sum();
    Generated { pieces: layout.pieces, size }
}

/// `size` bytes of host code in pieces.
fn host_pieces(seed: &[u64], part: u64, size: u64, ratio: f64) -> Vec<Piece> {
    let piece = |n| {
        let place = seed.iter().copied().chain([1 << 32 | part, n]).collect();
        Piece::Host { place, size: PIECE.min(size - n * PIECE), ratio }
    };
    (0..size.div_ceil(PIECE)).map(piece).collect()
}

fn words(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// An `R_X86_64_RELATIVE` entry.
fn relocation(at: u64, addend: u64) -> Vec<u8> {
    words([at, 8, addend])
}

fn build_id(seed: &[u64]) -> Vec<u8> {
    let mut random = Random::of(seed);
    let mut note = Vec::new();
    for word in [4u32, 16, 3] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"GNU\0");
    note.extend(words([random.next(), random.next()]));
    note
}

/// A string table of mangled names, and the offset of each.
fn symbol_names(seed: &[u64], count: u64) -> (Vec<u8>, Vec<u32>) {
    const PARTS: [&str; 16] = [
        "at",
        "native",
        "kernel",
        "Tensor",
        "launch",
        "gpu",
        "reduce",
        "vectorized",
        "elementwise",
        "detail",
        "Functor",
        "scatter",
        "softmax",
        "backward",
        "impl",
        "convolution",
    ];
    let mut random = Random::of(seed);
    let (mut table, mut offsets) = (vec![0], Vec::new());
    for index in 0..count {
        offsets.push(table.len() as u32);
        table.extend(b"_ZN");
        for _ in 0..3 + random.below(4) {
            let part = PARTS[random.below(16) as usize];
            table.extend(format!("{}{part}", part.len()).bytes());
        }
        table.extend(format!("E{index}IfLi{}EEvT_RKS1_\0", random.below(1 << 12)).bytes());
    }
    (table, offsets)
}

/// A `.hash` table (gABI chapter 5) of the symbols 1 to n.
fn hash_table(names: &[u8], offsets: &[u32]) -> Vec<u8> {
    let count = offsets.len() as u32 + 1;
    let buckets = (count / 2).max(1);
    let mut heads = vec![0u32; buckets as usize];
    let mut chains = vec![0u32; count as usize];
    for (index, &offset) in offsets.iter().enumerate() {
        let name = names[offset as usize..].iter().take_while(|&&byte| byte != 0);
        let hash = name.fold(0u32, |hash, &byte| {
            let sum = (hash << 4).wrapping_add(u32::from(byte));
            let high = sum & 0xf000_0000;
            (sum ^ high >> 24) & !high
        });
        let symbol = index + 1;
        chains[symbol] = std::mem::replace(&mut heads[(hash % buckets) as usize], symbol as u32);
    }
    [buckets, count].into_iter().chain(heads).chain(chains).flat_map(u32::to_le_bytes).collect()
}

/// `.dynsym`: functions, spread over the code.
fn symbol_table(offsets: &[u32], sections: &[Section], code: &Range<u64>) -> Vec<u8> {
    let text = sections.iter().position(|section| section.name == ".text").expect("there is code");
    let step = (code.end - code.start) / (offsets.len() as u64 + 1);
    let mut table = vec![0; 24];
    for (index, &name) in offsets.iter().enumerate() {
        table.extend(name.to_le_bytes());
        table.extend([0x12, 0]); // global function, default visibility
        table.extend((text as u16).to_le_bytes());
        table.extend(words([code.start + index as u64 * step, step]));
    }
    table
}

/// All `names`, each once, behind an empty one.
fn string_table(names: impl Iterator<Item = &'static str>) -> Vec<u8> {
    let mut table = vec![0];
    for name in names.filter(|name| !name.is_empty()) {
        table.extend(name.bytes());
        table.push(0);
    }
    table
}

/// Sets `sh_link` and `sh_info`.
fn link(sections: &mut [Section]) {
    let index = |name: &str| sections.iter().position(|section| section.name == name).unwrap_or(0) as u32;
    let (symbols, strings) = (index(".dynsym"), index(".dynstr"));
    for section in sections {
        match section.name {
            ".dynsym" => (section.link, section.info) = (strings, 1),
            ".dynamic" => section.link = strings,
            ".hash" | ".rela.dyn" => section.link = symbols,
            _ => {}
        }
    }
}

fn section_header(section: &Section, names: &[u8]) -> Vec<u8> {
    let wanted = [section.name.as_bytes(), b"\0"].concat();
    let name = names.windows(wanted.len()).position(|window| window == wanted).unwrap_or(0) as u64;
    let name = if section.name.is_empty() { 0 } else { name };
    words([
        name | u64::from(section.kind) << 32,
        section.flags,
        section.address,
        section.offset,
        section.size,
        u64::from(section.link) | u64::from(section.info) << 32,
        section.align,
        section.entry,
    ])
}

/// A program header. `extra`: bytes of memory behind those of the file.
fn program_header(
    kind: u64,
    flags: u64,
    offset: u64,
    address: u64,
    size: u64,
    extra: u64,
    align: u64,
) -> Vec<u8> {
    words([kind | flags << 32, offset, address, address, size, size + extra, align])
}

fn file_header(sections_at: u64, sections: u64) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend(words([3 | 62 << 16 | 1 << 32, 0, 64, sections_at]));
    // e_flags, e_ehsize, e_phentsize; then e_phnum, e_shentsize, e_shnum, e_shstrndx.
    header.extend(words([64 << 32 | 56 << 48, HEADERS | 64 << 16 | sections << 32 | (sections - 1) << 48]));
    header
}
