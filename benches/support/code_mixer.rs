//! Bytes that compress like machine code, made from the machine code of this repository's fixtures.
//!
//! A stream alternates *repeats* (bytes that stood there before) and *fresh words* (an instruction word of a real
//! kernel with new operand bits). Deflate pays a fixed price for one of each, so the mean length of a repeat sets
//! the ratio. One repeat in sixteen reaches beyond deflate's 32 KiB, for the larger windows of zstd.
//!
//! Five in eight *functions* of a code object are the same for all targets of its translation unit, as one source
//! compiled for several GPUs has it: where bundles are compressed as a whole, most of the code is found in another
//! target's.
//! All randomness is a seeded generator, so equal arguments mean equal bytes, on every machine.

/// Fixtures that the words are taken from: unstripped and stripped, plain bundles.
const FIXTURES: [&[u8]; 3] = [
    include_bytes!("../../tests/fixtures/elf/libmany.so"),
    include_bytes!("../../tests/fixtures/elf/libfeatures.so"),
    include_bytes!("../../tests/fixtures/elf/libgeneric.so"),
];

/// What deflate pays for one repeat and one fresh word at a given ratio, in bytes: longer repeats take more bits.
/// Fitted to level 6 for ratios from 3 to 16; what a generated wheel really has is printed when it is made.
fn device_price(ratio: f64) -> f64 {
    4.9 + 0.2 * ratio
}

/// The same for host code, where repeats start at any byte.
fn host_price(ratio: f64) -> f64 {
    5.2 + 0.21 * ratio
}

/// Repeats come from so far back, but for the far ones.
const NEAR: u64 = 16 << 10;
/// Far repeats come from so far back.
const FAR: u64 = 1 << 20;

/// Bytes of the shortest function; the longest is five times as long.
const FUNCTION: usize = 4 << 10;
/// So many of eight functions are the same for all targets.
const SHARED: u64 = 5;

/// splitmix64 (public domain, Sebastiano Vigna): a full-period generator whose every seed is good.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator for the place that `path` names; different paths have unrelated streams.
    pub(crate) fn of(path: &[u64]) -> Self {
        let mut random = Self(0x5eed);
        for &part in path {
            random.0 = random.next() ^ part;
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`, which must not be 0. The bias is below 2^-32 for the bounds used here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Words to make streams of.
#[derive(Debug)]
pub(crate) struct Mixer {
    /// The head of a real code object: ELF header, program headers, metadata note.
    head: Vec<u8>,
    device: Vec<[u8; 4]>,
    host: Vec<[u8; 4]>,
}

impl Mixer {
    /// Reads the fixtures.
    pub(crate) fn new() -> Self {
        let mut mixer = Self { head: Vec::new(), device: Vec::new(), host: Vec::new() };
        for file in FIXTURES {
            mixer.host.extend(words(section(file, ".text").expect("a fixture has code")));
            let bundles = section(file, ".hip_fatbin").expect("a fixture has device code");
            // Code objects are aligned to pages, and ELF files.
            for page in (0..bundles.len()).step_by(4096) {
                let object = &bundles[page..];
                if let Some(text) = object.starts_with(b"\x7fELF").then(|| section(object, ".text")).flatten()
                {
                    mixer.device.extend(words(text));
                    if mixer.head.is_empty() {
                        mixer.head = object[..0x500].to_vec();
                    }
                }
            }
        }
        assert!(mixer.device.len() > 256 && mixer.host.len() > 256, "the fixtures have too little code");
        mixer
    }

    /// One code object of exactly `size` bytes.
    pub(crate) fn device(&self, size: usize, ratio: f64, unit: &[u64], target: u64) -> Vec<u8> {
        let mut object = Vec::with_capacity(size);
        object.extend_from_slice(&self.head[..self.head.len().min(size)]);
        let path: Vec<u64> = unit.iter().copied().chain([target + 1]).collect();
        let (mut common, mut own) = (Random::of(unit), Random::of(&path));
        let mean = device_price(ratio) * ratio / 4.0 - 1.0;
        // What all targets have in common is made of itself alone, so that it is the same for all.
        let mut shared = Vec::with_capacity(size);
        while object.len() < size {
            let draw = common.next();
            let length = (FUNCTION + 4 * common.below(FUNCTION as u64) as usize).min(size - object.len());
            if draw % 8 < SHARED {
                let start = shared.len();
                mix(&mut shared, length, &self.device, 4, mean, &mut common);
                object.extend_from_slice(&shared[start..]);
            } else {
                mix(&mut object, length, &self.device, 4, mean, &mut own);
            }
        }
        object
    }

    /// `size` bytes of host code.
    pub(crate) fn host(&self, size: usize, ratio: f64, place: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size);
        let mean = host_price(ratio) * ratio - 3.0;
        mix(&mut bytes, size, &self.host, 1, mean, &mut Random::of(place));
        bytes
    }
}

/// Appends `length` bytes to `out`. Repeats are `mean` units of `unit` bytes long on average.
fn mix(out: &mut Vec<u8>, length: usize, words: &[[u8; 4]], unit: usize, mean: f64, random: &mut Random) {
    let size = out.len() + length;
    let longest = (2.0 * mean).round().max(1.0) as u64;
    let count = words.len() as u64;
    let mut distance = 0;
    while out.len() < size {
        let draw = random.next();
        let behind = out.len() / unit;
        if behind > 0 {
            // What follows a changed word is mostly what followed its original: the distance stays.
            if distance == 0 || draw & 3 == 0 {
                let reach = if draw & 0x3c == 0 { FAR } else { NEAR } / unit as u64;
                distance = unit * (1 + random.below(reach.min(behind as u64)) as usize);
            }
            let length = (unit * (1 + random.below(longest) as usize)).min(distance).min(size - out.len());
            let from = out.len() - distance;
            out.extend_from_within(from..from + length);
        }
        // The product of two uniform numbers favours small indices: some instructions are far more frequent.
        let index = random.below(count) * random.below(count) / count;
        let mut word = words[index as usize];
        let operands = random.next();
        word[0] ^= operands as u8 & 0x1f;
        word[1] ^= (operands >> 8) as u8 & 0x03;
        let fresh = if unit == 1 { 3 } else { 4 };
        out.extend_from_slice(&word[..fresh.min(size - out.len())]);
    }
}

/// The words of `text` that carry information: no zeros and no fill (`s_nop` and `s_code_end` come in hundreds).
fn words(text: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    let mut last = [0; 4];
    text.chunks_exact(4).filter_map(move |word| {
        let word = [word[0], word[1], word[2], word[3]];
        let new = word != last && word != [0; 4];
        last = word;
        new.then_some(word)
    })
}

/// The bytes of a section of a little-endian ELF64 file.
fn section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = file.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte)))
    };
    let (table, count, names) = (number(40, 8)?, number(60, 2)?, number(62, 2)?);
    let range = |index: usize| {
        let header = table + 64 * index;
        Some((number(header + 24, 8)?, number(header + 32, 8)?))
    };
    let (names, _) = range(names)?;
    for index in 0..count {
        let at = names + number(table + 64 * index, 4)?;
        let found = file.get(at..)?.split(|&byte| byte == 0).next()?;
        if found == name.as_bytes() {
            let (offset, size) = range(index)?;
            return file.get(offset..offset + size);
        }
    }
    None
}
