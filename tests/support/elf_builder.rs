//! Builds a small fat shared object around any bundles and wrappers, where the compiled fixtures do not do.
//!
//! x86-64 ET_DYN with one read-only segment (headers, `.hash`, `.dynsym`, `.dynstr`, `.rela.dyn`, `.hip_fatbin`) and one
//! writable one (`.dynamic`, `.hipFatBinSegment`). The wrappers' pointers are R_X86_64_RELATIVE entries.

use super::bundle_builder::{BundleBuilder, section};

const PAGE: usize = 4096;
const HIPF: u32 = 0x4849_5046;

/// A shared object in the making: bundles, and where wrappers point.
#[derive(Clone, Debug, Default)]
pub struct FatElf {
    bundles: Vec<Vec<u8>>,
    /// Bundle number and an offset from its start.
    wrappers: Vec<(usize, i64)>,
}

impl FatElf {
    pub fn new() -> Self {
        Self::default()
    }

    /// A translation unit: a bundle, plain or compressed, and a wrapper that points at it.
    pub fn unit(self, bundle: impl Into<Vec<u8>>) -> Self {
        let number = self.bundles.len();
        self.bundle(bundle).wrapper(number, 0)
    }

    /// A unit with a plain bundle of these targets and code objects.
    pub fn code(self, entries: &[(&str, &[u8])]) -> Self {
        self.unit(bundle(entries))
    }

    /// A bundle that no wrapper points at yet.
    pub fn bundle(mut self, bundle: impl Into<Vec<u8>>) -> Self {
        self.bundles.push(bundle.into());
        self
    }

    /// A wrapper that points so many bytes behind the start of a bundle.
    pub fn wrapper(mut self, bundle: usize, behind: i64) -> Self {
        self.wrappers.push((bundle, behind));
        self
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let (fatbin, starts) = section(&self.bundles, PAGE);
        let headers = 64 + 5 * 56;
        let hash_at = headers;
        let symbols_at = hash_at + 16 + 8; // a bucket and a chain, padded
        let strings_at = symbols_at + 24;
        let rela_at = strings_at + 8;
        let rela_len = 24 * self.wrappers.len();
        let fatbin_at = (rela_at + rela_len).next_multiple_of(PAGE);
        let data_at = (fatbin_at + fatbin.len()).next_multiple_of(PAGE);
        let dynamic_len = 16 * 9;
        let wrappers_at = data_at + dynamic_len;
        let data_end = wrappers_at + 24 * self.wrappers.len();
        let names =
            b"\0.hash\0.dynsym\0.dynstr\0.rela.dyn\0.hip_fatbin\0.dynamic\0.hipFatBinSegment\0.shstrtab\0";
        let names_at = data_end;
        let sections_at = (names_at + names.len()).next_multiple_of(8);

        let mut out = Vec::new();
        out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        put16(&mut out, &[3, 62]);
        out.extend(1u32.to_le_bytes());
        put64(&mut out, &[0, 64, sections_at]);
        out.extend(0u32.to_le_bytes());
        put16(&mut out, &[64, 56, 5, 64, 9, 8]);
        let read_end = fatbin_at + fatbin.len();
        for (kind, flags, at, length, align) in [
            (6u32, 4u32, 64, 5 * 56, 8),
            (1, 4, 0, read_end, PAGE),
            (1, 6, data_at, data_end - data_at, PAGE),
            (2, 6, data_at, dynamic_len, 8),
            (0x6474_e551, 6, 0, 0, 16), // PT_GNU_STACK
        ] {
            out.extend([kind, flags].into_iter().flat_map(u32::to_le_bytes));
            put64(&mut out, &[at, at, at, length, length, align]);
        }
        // One bucket, one symbol, the chains empty.
        out.extend([1u32, 1, 0, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes));
        out.resize(rela_at, 0);
        for (index, &(bundle, behind)) in self.wrappers.iter().enumerate() {
            let target = (fatbin_at + starts[bundle]) as i64 + behind;
            put64(&mut out, &[wrappers_at + 24 * index + 8, 8]);
            out.extend(target.to_le_bytes());
        }
        out.resize(fatbin_at, 0);
        out.extend(&fatbin);
        out.resize(data_at, 0);
        for (tag, value) in
            [(4, hash_at), (5, strings_at), (6, symbols_at), (10, 8), (11, 24), (7, rela_at), (8, rela_len)]
        {
            put64(&mut out, &[tag, value]);
        }
        put64(&mut out, &[9, 24, 0, 0]);
        for _ in &self.wrappers {
            out.extend([HIPF, 1].into_iter().flat_map(u32::to_le_bytes));
            put64(&mut out, &[0, 0]);
        }
        out.extend(names);
        out.resize(sections_at + 64, 0);
        let name = |wanted: &str| {
            let wanted = [wanted.as_bytes(), b"\0"].concat();
            names.windows(wanted.len()).position(|window| window == wanted).unwrap() as u32
        };
        for (label, kind, flags, at, length, link, align, entry) in [
            (".hash", 5u32, 2, hash_at, 24, 2u32, 8, 4),
            (".dynsym", 11, 2, symbols_at, 24, 3, 8, 24),
            (".dynstr", 3, 2, strings_at, 1, 0, 1, 0),
            (".rela.dyn", 4, 2, rela_at, rela_len, 2, 8, 24),
            (".hip_fatbin", 1, 2, fatbin_at, fatbin.len(), 0, PAGE, 0),
            (".dynamic", 6, 3, data_at, dynamic_len, 3, 8, 16),
            (".hipFatBinSegment", 1, 3, wrappers_at, 24 * self.wrappers.len(), 0, 8, 0),
            (".shstrtab", 3, 0, names_at, names.len(), 0, 1, 0),
        ] {
            out.extend([name(label), kind].into_iter().flat_map(u32::to_le_bytes));
            put64(&mut out, &[flags, if flags == 0 { 0 } else { at }, at, length]);
            out.extend([link, u32::from(kind == 11)].into_iter().flat_map(u32::to_le_bytes));
            put64(&mut out, &[align, entry]);
        }
        out
    }
}

/// A plain bundle with a host entry and these targets.
pub fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let host = BundleBuilder::new().entry("host-x86_64-unknown-linux-gnu-", b"");
    entries.iter().fold(host, |builder, (target, code)| builder.target(target, code)).build()
}

/// Bytes that do not compress much and differ from seed to seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

fn put16(out: &mut Vec<u8>, values: &[u16]) {
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put64(out: &mut Vec<u8>, values: &[usize]) {
    out.extend(values.iter().flat_map(|&value| (value as u64).to_le_bytes()));
}
