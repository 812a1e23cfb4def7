//! Uncompressed offload bundles: the entry table.
//!
//! `__CLANG_OFFLOAD_BUNDLE__`, `u64 n`, then n times {`u64 offset`, `u64 size`, `u64 id_len`, id}, little-endian;
//! offsets count from the bundle's start. Source: "Clang Offload Bundler" in clang's documentation.
//!
//! A bundle does not say how long it is: it ends where its table and its last entry end. Padding behind that
//! belongs to the section.
//!
//! Invariants of a parsed [`BundleHeader`]:
//! - every entry with a size lies between the table and [`BundleHeader::end`];
//! - two such entries have the same range or none in common. Equal ranges are how a bundler may share one code
//!   object; a partial overlap cannot be cut into code objects and has no known writer, so it is refused;
//! - no two entries are for the same target: the runtime would silently use one of them.
//!
//! The offset of an entry of size 0 means nothing and is not checked: the bundler aligns it like any other, so
//! that it may even point behind the section.

use std::collections::HashSet;

use super::{EntryId, HeaderParse, array_at};
use crate::arch::TargetId;
use crate::fault::{Fault, Result};

/// What an uncompressed bundle starts with.
pub const MAGIC: &[u8; 24] = b"__CLANG_OFFLOAD_BUNDLE__";

/// More entries than this are taken for damage. LLVM knows fewer than 80 processors with at most nine feature
/// combinations each.
pub const MAX_ENTRIES: u64 = 1024;

/// Longer IDs, in bytes, are taken for damage. The longest that a bundler writes today has some 60.
pub const MAX_ID_LEN: usize = 256;

/// Bytes before the first entry: magic and number of entries.
const TABLE_START: usize = 32;
/// Bytes of an entry before its ID.
const ENTRY_LEN: usize = 24;

/// One entry of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleEntry {
    /// What it is for.
    pub id: EntryId,
    /// Offset of its bytes from the bundle's start; meaningless if there are none.
    pub offset: u64,
    /// Number of its bytes; 0 is legal.
    pub size: u64,
}

/// The entry table of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleHeader {
    /// The entries as they are listed.
    pub entries: Vec<BundleEntry>,
    /// Length of magic and table in bytes.
    pub header_len: u64,
    /// Length of the bundle in bytes: the end of the table or of the last code object.
    pub end: u64,
}

impl BundleHeader {
    /// Parses the header from the first bytes of a bundle. `total` is how many bytes the bundle can have at most
    /// (what is left of the section, or the size of the uncompressed data), where that is known.
    ///
    /// # Errors
    /// A [`Fault`] whose offset counts from the bundle's start, for what this module refuses and for a table or
    /// an entry that does not fit into `total`.
    pub fn parse(prefix: &[u8], total: Option<u64>) -> Result<HeaderParse<Self>> {
        let need = |length: usize| {
            let length = length as u64;
            match total {
                Some(total) if length > total => Err(Fault::malformed(
                    "offload bundle",
                    0,
                    format!(
                        "its entry table needs at least {length} bytes, but only {total} bytes are there"
                    ),
                )),
                _ => Ok(HeaderParse::NeedMore(length)),
            }
        };
        let Some(magic) = array_at(prefix, 0) else { return need(TABLE_START) };
        if &magic != MAGIC {
            return Err(Fault::malformed(
                "offload bundle",
                0,
                "does not start with __CLANG_OFFLOAD_BUNDLE__",
            ));
        }
        let Some(count) = array_at(prefix, MAGIC.len()).map(u64::from_le_bytes) else {
            return need(TABLE_START);
        };
        if count > MAX_ENTRIES {
            return Err(Fault::malformed(
                "offload bundle",
                MAGIC.len() as u64,
                format!("claims {count} entries; more than {MAX_ENTRIES} are not plausible"),
            ));
        }
        // Bounded by MAX_ENTRIES.
        let mut entries = Vec::with_capacity(usize::try_from(count).unwrap_or_default());
        let mut at = TABLE_START;
        for index in 0..count {
            let id_at = at + ENTRY_LEN;
            let Some([offset, size, id_len]) = fields(prefix, at) else { return need(id_at) };
            let Some(id_len) = usize::try_from(id_len).ok().filter(|&length| length <= MAX_ID_LEN) else {
                return Err(Fault::malformed(
                    "offload bundle",
                    at as u64 + 16,
                    format!(
                        "entry {index} claims an ID of {id_len} bytes; more than {MAX_ID_LEN} are not plausible"
                    ),
                ));
            };
            let Some(id) = prefix.get(id_at..id_at + id_len) else { return need(id_at + id_len) };
            let id = std::str::from_utf8(id)
                .map_err(|_| {
                    Fault::malformed(
                        "offload bundle entry ID",
                        None,
                        format!("{} is not text", id.escape_ascii()),
                    )
                })
                .and_then(EntryId::parse)
                .map_err(|fault| Fault { offset: Some(id_at as u64), ..fault })?;
            entries.push(BundleEntry { id, offset, size });
            at = id_at + id_len;
        }
        let header_len = at as u64;
        let end = check_ranges(&entries, header_len, total)?;
        check_targets(&entries)?;
        Ok(HeaderParse::Complete(Self { entries, header_len, end }))
    }

    /// The entries with code for a GPU target, as they are listed; some may have no bytes.
    pub fn device_entries(&self) -> impl Iterator<Item = (TargetId, BundleEntry)> {
        self.entries.iter().filter_map(|entry| Some((entry.id.device()?, *entry)))
    }
}

/// The three integers of the entry at `at`.
fn fields(prefix: &[u8], at: usize) -> Option<[u64; 3]> {
    let word = |index: usize| array_at(prefix, at + 8 * index).map(u64::from_le_bytes);
    Some([word(0)?, word(1)?, word(2)?])
}

/// Checks the invariants on ranges and returns the bundle's end.
fn check_ranges(entries: &[BundleEntry], header_len: u64, total: Option<u64>) -> Result<u64> {
    let mut ranges = Vec::with_capacity(entries.len());
    for entry in entries.iter().filter(|entry| entry.size > 0) {
        let BundleEntry { id, offset, size } = entry;
        let end = offset.checked_add(*size).filter(|&end| total.is_none_or(|total| end <= total));
        let Some(end) = end else {
            let room = total.map_or_else(String::new, |total| format!(" of {total} bytes"));
            return Err(Fault::malformed(
                "offload bundle",
                *offset,
                format!(
                    "the code object for {id} has {size} bytes and ends past the end of the bundle{room}"
                ),
            ));
        };
        if *offset < header_len {
            return Err(Fault::malformed(
                "offload bundle",
                *offset,
                format!(
                    "the code object for {id} starts inside the entry table, which has {header_len} bytes"
                ),
            ));
        }
        ranges.push((*offset, end, *id));
    }
    ranges.sort_unstable_by_key(|&(start, end, _)| (start, end));
    for pair in ranges.windows(2) {
        if let [(start, end, id), (next_start, next_end, next_id)] = pair
            && next_start < end
            && (start, end) != (next_start, next_end)
        {
            return Err(Fault::malformed(
                "offload bundle",
                *next_start,
                format!("the code objects for {id} and {next_id} overlap"),
            ));
        }
    }
    Ok(ranges.iter().map(|&(_, end, _)| end).max().unwrap_or_default().max(header_len))
}

/// Refuses two entries for one target.
fn check_targets(entries: &[BundleEntry]) -> Result<()> {
    let mut seen = HashSet::with_capacity(entries.len());
    match entries.iter().find(|entry| entry.id != EntryId::Host && !seen.insert(entry.id)) {
        Some(twice) => Err(Fault::malformed(
            "offload bundle",
            0,
            format!("has two entries for {}, and nothing says which one counts", twice.id),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fatbin::test_support::BundleBuilder;

    fn parse(bytes: &[u8]) -> Result<BundleHeader> {
        match BundleHeader::parse(bytes, Some(bytes.len() as u64))? {
            HeaderParse::Complete(header) => Ok(header),
            HeaderParse::NeedMore(length) => panic!("{length} bytes wanted of {}", bytes.len()),
        }
    }

    fn refused(bytes: &[u8]) -> String {
        parse(bytes).unwrap_err().to_string()
    }

    /// A bundle with explicit offsets and sizes and no content.
    fn raw(entries: &[(u64, u64, &str)], length: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u64).to_le_bytes());
        for (offset, size, id) in entries {
            for word in [*offset, *size, id.len() as u64] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(id.as_bytes());
        }
        bytes.resize(length, 0);
        bytes
    }

    const GFX906: &str = "hip-amdgcn-amd-amdhsa--gfx906";
    const GFX942: &str = "hipv4-amdgcn-amd-amdhsa--gfx942";

    #[test]
    fn golden_bytes() {
        let bytes = b"__CLANG_OFFLOAD_BUNDLE__\x02\0\0\0\0\0\0\0\
            \0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x1d\0\0\0\0\0\0\0host-x86_64-unknown-linux-gnu\
            \x8c\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x1f\0\0\0\0\0\0\0hipv4-amdgcn-amd-amdhsa--gfx942CODEpadding";
        let header = parse(bytes).unwrap();
        assert_eq!((header.header_len, header.end), (0x8c, 0x90));
        assert_eq!(header.entries[0], BundleEntry { id: EntryId::Host, offset: 0x1000, size: 0 });
        assert_eq!(header.entries[1].id.to_string(), "gfx942");
        assert_eq!((header.entries[1].offset, header.entries[1].size), (0x8c, 4));
    }

    #[test]
    fn built_bundles_are_read_back() {
        let bytes = BundleBuilder::new()
            .entry("host-x86_64-unknown-linux-gnu-", b"")
            .entry(GFX942, b"one")
            .entry(GFX906, b"")
            .entry("hip-amdgcn-amd-amdhsa-unknown-gfx1100", b"three")
            .build();
        let header = parse(&bytes).unwrap();
        assert_eq!(header.end, bytes.len() as u64);
        let code: Vec<_> = header
            .device_entries()
            .map(|(target, entry)| {
                (target.to_string(), &bytes[entry.offset as usize..][..entry.size as usize])
            })
            .collect();
        let expected: [(String, &[u8]); 3] =
            [("gfx942".into(), b"one"), ("gfx906".into(), b""), ("gfx1100".into(), b"three")];
        assert_eq!(code, expected);
    }

    #[test]
    fn a_prefix_asks_for_what_it_lacks() {
        let bytes = BundleBuilder::new().entry(GFX942, b"one").entry(GFX906, b"two").build();
        let whole = parse(&bytes).unwrap();
        let mut length = 0;
        loop {
            match BundleHeader::parse(&bytes[..length], None).unwrap() {
                HeaderParse::NeedMore(more) => {
                    assert!(more as usize > length && more <= whole.header_len);
                    length = more as usize;
                }
                HeaderParse::Complete(header) => {
                    assert_eq!(length as u64, whole.header_len);
                    break assert_eq!(header, whole);
                }
            }
        }
    }

    #[test]
    fn a_table_that_cannot_fit_is_refused_at_once() {
        let bytes = BundleBuilder::new().entry(GFX942, b"one").build();
        for length in 0..87_usize {
            let fault = BundleHeader::parse(&bytes[..length], Some(length as u64)).unwrap_err();
            assert!(fault.message.contains(&format!("only {length} bytes")), "{fault}");
        }
    }

    #[test]
    fn shared_code_objects_are_legal() {
        let header = parse(&raw(&[(200, 56, GFX942), (200, 56, GFX906)], 256)).unwrap();
        assert_eq!(header.end, 256);
    }

    #[test]
    fn an_empty_entry_may_point_anywhere() {
        let header = parse(&raw(&[(u64::MAX, 0, GFX942), (3, 0, GFX906)], 256)).unwrap();
        assert_eq!(header.end, header.header_len);
    }

    #[test]
    fn refusals() {
        assert!(refused(b"__CLANG_OFFLOAD_BUNDLE_!\0\0\0\0\0\0\0\0").contains("does not start with"));
        assert!(refused(&raw(&[(200, 57, GFX942)], 256)).contains("gfx942 has 57 bytes and ends past"));
        assert!(refused(&raw(&[(u64::MAX, 2, GFX942)], 256)).contains("ends past"));
        assert!(refused(&raw(&[(86, 8, GFX942)], 256)).contains("inside the entry table"));
        assert!(
            refused(&raw(&[(200, 56, GFX942), (220, 20, GFX906)], 256)).contains("gfx942 and gfx906 overlap")
        );
        assert!(refused(&raw(&[(200, 8, GFX942), (200, 56, GFX906)], 256)).contains("overlap"));
        assert!(refused(&raw(&[(200, 8, GFX942), (208, 8, GFX942)], 256)).contains("two entries for gfx942"));
        assert!(refused(&raw(&[(0, 0, &"x".repeat(257))], 512)).contains("ID of 257 bytes"));
        let mut many = raw(&[], 256);
        many[24..32].copy_from_slice(&1025_u64.to_le_bytes());
        assert!(refused(&many).contains("1025 entries"));
    }

    #[test]
    fn a_bad_id_is_named_with_its_place() {
        let bytes = raw(&[(0, 0, GFX942), (0, 0, "hipv4-amdgcn-amd-amdhsa--gfxzzz")], 256);
        let fault = parse(&bytes).unwrap_err();
        assert_eq!(fault.offset, Some(32 + 24 + 31 + 24));
        assert!(fault.message.contains("hipv4-amdgcn-amd-amdhsa--gfxzzz"));
    }

    proptest! {
        #[test]
        fn damage_never_panics(
            at in 0_usize..300, byte: u8, cut in 0_usize..300, sizes in proptest::collection::vec(0_usize..40, 1..4),
        ) {
            let mut builder = BundleBuilder::new().align(16);
            for (size, id) in sizes.iter().zip([GFX942, GFX906, "host-x"]) {
                builder = builder.entry(id, &vec![7; *size]);
            }
            let mut bytes = builder.build();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut);
            if let Ok(HeaderParse::Complete(header)) = BundleHeader::parse(&bytes, Some(bytes.len() as u64)) {
                prop_assert!(header.end <= bytes.len() as u64);
                prop_assert!(header.header_len <= header.end);
            }
        }
    }
}
