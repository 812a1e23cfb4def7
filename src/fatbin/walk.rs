//! Finds the bundles of a section by structure.
//!
//! A section is bundles back to back, plain and compressed mixed, with zeros between them. Each bundle says, in its
//! header, entry table or stream, where it ends. The next one starts at the first byte after that which is not zero,
//! and that byte must begin a bundle. The magic is never searched for: the four bytes `CCOB` occur by chance in
//! gigabytes of code.
//!
//! Reads ascend. Of a plain bundle only the header is read; of a compressed one the header and as much of the
//! payload as the entry table takes to decode (one zstd block, usually). The exception is version 1 of compressed
//! bundles, which does not say how long it is: of a zstd frame the block headers are read, a zlib stream has to be
//! inflated.
//!
//! Refused, with the offset in the file: anything but zeros between bundles, a bundle that ends behind the
//! section, and everything that [`bundle`] and [`ccob`] refuse.

use std::ops::Range;

use super::ccob::{self, CcobDecoder, CcobHeader, Method};
use super::wrapper::BundleSection;
use super::{BundleHeader, HeaderParse, bundle, zstd_frame};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Bundles start at multiples of this in practice, so this much is read at once at first.
const PAGE: u64 = 4096;
/// Read at once inside compressed payloads and long padding, in bytes.
const BLOCK: u64 = 64 << 10;

/// How a bundle is stored in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// As it is: offsets in the header count from the bundle's offset in the file.
    Plain,
    /// Compressed: offsets in the header count from the start of what the payload decodes to.
    Compressed {
        /// The compressed bundle's header.
        header: CcobHeader,
        /// The bytes of the file that hold the payload.
        payload: Range<u64>,
        /// Bytes of history that decoding keeps in memory.
        window: u64,
    },
}

/// One bundle of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedBundle {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes that it takes in the file, without padding.
    pub length: u64,
    /// How it is stored.
    pub storage: Storage,
    /// Its entry table.
    pub header: BundleHeader,
}

/// Every bundle of a section, in order. [`Bundles`] gives them one by one.
///
/// # Errors
/// The first [`Fault`] of the section; see the module's description.
pub fn walk(source: &mut dyn ReadAt, section: &BundleSection) -> Result<Vec<LocatedBundle>> {
    Bundles::new(source, section)?.collect()
}

/// The bundles of a section, one by one. Ends after the first fault.
pub struct Bundles<'a> {
    source: &'a mut dyn ReadAt,
    section: Range<u64>,
    /// Where the search for the next bundle starts.
    at: u64,
    /// The bytes of the file last read, and their offset.
    block: Vec<u8>,
    block_at: u64,
}

impl<'a> Bundles<'a> {
    /// Starts at the section's first byte.
    ///
    /// # Errors
    /// A [`Fault`] if the section does not lie in the file.
    pub fn new(source: &'a mut dyn ReadAt, section: &BundleSection) -> Result<Self> {
        let section = section.range.clone();
        if section.start > section.end || section.end > source.len() {
            return Err(Fault::malformed(
                "device code section",
                section.start,
                format!("ends at {:#x}, the file at {:#x}", section.end, source.len()),
            ));
        }
        Ok(Self { source, at: section.start, block_at: section.start, section, block: Vec::new() })
    }

    /// Bytes of the section from `at` on: at least `wanted` unless the section ends before, and more if they are
    /// at hand or `ahead` says so.
    fn peek(&mut self, at: u64, wanted: u64, ahead: u64) -> Result<&[u8]> {
        let left = self.section.end.saturating_sub(at);
        let wanted = wanted.min(left);
        let cached = at.checked_sub(self.block_at).and_then(|skip| usize::try_from(skip).ok());
        let skip = match cached {
            Some(skip) if (self.block.len() as u64).saturating_sub(skip as u64) >= wanted => skip,
            _ => {
                let length = wanted.max(ahead).min(left);
                self.block = self.source.read_vec(at, length, "device code section")?;
                self.block_at = at;
                0
            }
        };
        Ok(self.block.get(skip..).unwrap_or_default())
    }

    /// Bytes from `at` to the start of the next page of the section and that page: the padding in front of a
    /// bundle together with its header.
    fn through_next_page(&self, at: u64) -> u64 {
        let into_page = at.saturating_sub(self.section.start) % PAGE;
        2 * PAGE - into_page
    }

    /// Skips zeros. Whether there is something behind them.
    fn skip_padding(&mut self) -> Result<bool> {
        let mut ahead = self.through_next_page(self.at);
        while self.at < self.section.end {
            let bytes = self.peek(self.at, 1, ahead)?;
            match bytes.iter().position(|&byte| byte != 0) {
                Some(zeros) => {
                    self.at += zeros as u64;
                    return Ok(true);
                }
                None => self.at += bytes.len() as u64,
            }
            ahead = BLOCK;
        }
        Ok(false)
    }

    /// The bundle that starts at `at`.
    fn locate(&mut self) -> Result<LocatedBundle> {
        let offset = self.at;
        let magic = self.peek(offset, bundle::MAGIC.len() as u64, PAGE)?;
        if magic.starts_with(bundle::MAGIC) {
            self.locate_plain(offset)
        } else if magic.starts_with(ccob::MAGIC) {
            self.locate_compressed(offset)
        } else {
            let found: Vec<u8> = magic.iter().take(8).copied().collect();
            Err(Fault::malformed(
                "device code section",
                offset,
                format!("an offload bundle or zero padding was expected, found \"{}\"", found.escape_ascii()),
            ))
        }
    }

    fn locate_plain(&mut self, offset: u64) -> Result<LocatedBundle> {
        let left = self.section.end - offset;
        let mut wanted = PAGE;
        loop {
            let prefix = self.peek(offset, wanted, PAGE)?;
            match BundleHeader::parse(prefix, Some(left)) {
                Ok(HeaderParse::Complete(header)) => {
                    return Ok(LocatedBundle { offset, length: header.end, storage: Storage::Plain, header });
                }
                // Twice as much each time, or a long table would be parsed once for each entry. The parser has
                // checked that `more` fits into what is left.
                Ok(HeaderParse::NeedMore(more)) => wanted = more.max(2 * wanted),
                Err(fault) => {
                    return Err(Fault { offset: fault.offset.map(|at| at.saturating_add(offset)), ..fault });
                }
            }
        }
    }

    fn locate_compressed(&mut self, offset: u64) -> Result<LocatedBundle> {
        let section_end = self.section.end;
        let relocate =
            |fault: Fault| Fault { offset: fault.offset.map(|at| at.saturating_add(offset)), ..fault };
        let cut_short = || {
            Fault::malformed(
                "compressed offload bundle",
                offset,
                format!("its header does not fit into the section, which ends at {section_end:#x}"),
            )
        };
        let prefix = self.peek(offset, ccob::MAX_HEADER_LEN + zstd_frame::MAX_HEADER_LEN, PAGE)?;
        let HeaderParse::Complete(header) = CcobHeader::parse(prefix).map_err(relocate)? else {
            return Err(cut_short());
        };
        let start = offset + header.header_len;
        let frame = usize::try_from(header.header_len).ok().and_then(|skip| prefix.get(skip..));
        let HeaderParse::Complete(window) =
            header.window_size(frame.unwrap_or_default()).map_err(relocate)?
        else {
            return Err(cut_short());
        };
        let end = match header.payload_len() {
            Some(length) => start.checked_add(length).filter(|&end| end <= section_end).ok_or_else(|| {
                Fault::malformed(
                    "compressed offload bundle",
                    offset,
                    format!("its payload of {length} bytes does not end before the section does, at {section_end:#x}"),
                )
            })?,
            None => section_end,
        };
        let content = self.content_header(header, offset, start..end)?;
        // In version 1 the length comes last, so that the way back from the first bytes is the only one.
        let payload = match (header.payload_len(), header.method) {
            (Some(_), _) => start..end,
            (None, Method::Zstd) => start..start + zstd_frame::frame_length(self.source, start, end)?,
            (None, Method::Zlib) => start..start + self.zlib_length(header, offset, start)?,
        };
        let length = payload.end - offset;
        let storage = Storage::Compressed { header, payload, window };
        Ok(LocatedBundle { offset, length, storage, header: content })
    }

    /// Length of a zlib stream that only ends itself.
    fn zlib_length(&mut self, header: CcobHeader, offset: u64, start: u64) -> Result<u64> {
        let mut decoder = CcobDecoder::new(header, offset)?;
        let mut at = start;
        while !decoder.has_ended() && at < self.section.end {
            let input = self.peek(at, 1, BLOCK)?;
            at += input.len() as u64;
            decoder.feed(input, |_| Ok::<_, Fault>(()))?;
        }
        decoder.finish()?;
        Ok(decoder.consumed())
    }

    /// Decodes a payload as far as its entry table.
    fn content_header(
        &mut self,
        header: CcobHeader,
        offset: u64,
        payload: Range<u64>,
    ) -> Result<BundleHeader> {
        let mut decoder = CcobDecoder::new(header, offset)?;
        let mut table = Vec::new();
        let mut wanted = 0;
        let mut at = payload.start;
        while at < payload.end {
            let input = self.peek(at, 1, PAGE)?;
            let input = match usize::try_from(payload.end - at) {
                Ok(left) if left < input.len() => input.get(..left).unwrap_or_default(),
                _ => input,
            };
            at += input.len() as u64;
            let parsed = decoder.feed(input, |bytes| {
                table.extend_from_slice(bytes);
                if (table.len() as u64) < wanted {
                    return Ok(());
                }
                match BundleHeader::parse(&table, Some(header.uncompressed)) {
                    Ok(HeaderParse::Complete(content)) => Err(Stop::Complete(content)),
                    Ok(HeaderParse::NeedMore(more)) => {
                        wanted = more;
                        Ok(())
                    }
                    Err(fault) => Err(Stop::Content(fault)),
                }
            });
            match parsed {
                Ok(_) => {}
                Err(Stop::Complete(content)) => return Ok(content),
                Err(Stop::Decoding(fault)) => return Err(fault),
                Err(Stop::Content(fault)) => {
                    let at = fault
                        .offset
                        .map_or_else(String::new, |at| format!(" (at byte {at:#x} of its content)"));
                    let place = format!("{} in a compressed bundle", fault.place);
                    return Err(Fault { place, offset: Some(offset), message: fault.message + &at, ..fault });
                }
            }
            if decoder.has_ended() {
                break;
            }
        }
        decoder.finish()?;
        Err(Fault::malformed(
            "compressed offload bundle",
            offset,
            format!("its {} bytes of content are too few for an entry table", header.uncompressed),
        ))
    }
}

/// Why decoding stops before the end of a payload.
enum Stop {
    /// The entry table is complete.
    Complete(BundleHeader),
    /// What was decoded is no bundle; the offset counts from the start of the content.
    Content(Fault),
    /// The payload is damaged.
    Decoding(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Decoding(fault)
    }
}

impl Iterator for Bundles<'_> {
    type Item = Result<LocatedBundle>;

    fn next(&mut self) -> Option<Self::Item> {
        let located = match self.skip_padding() {
            Ok(false) => return None,
            Ok(true) => self.locate(),
            Err(fault) => Err(fault),
        };
        self.at = match &located {
            Ok(bundle) => bundle.offset.saturating_add(bundle.length),
            Err(_) => self.section.end,
        };
        Some(located)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fatbin::test_support::{BundleBuilder, CCOB_KINDS, CcobMethod, ccob, section};

    /// Counts what is read, and that offsets ascend but for rereads within a page or two.
    struct Counting<'a> {
        bytes: &'a [u8],
        read: u64,
    }

    impl ReadAt for Counting<'_> {
        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            self.read += buffer.len() as u64;
            self.bytes.read_at(offset, buffer)
        }
    }

    fn whole(bytes: &[u8]) -> BundleSection {
        BundleSection { address: 0, range: 0..bytes.len() as u64 }
    }

    fn walk_bytes(bytes: &[u8]) -> Result<Vec<LocatedBundle>> {
        walk(&mut &*bytes, &whole(bytes))
    }

    fn refused(bytes: &[u8]) -> Fault {
        walk_bytes(bytes).unwrap_err()
    }

    /// The whole content of a located bundle, decoded if need be.
    fn content(bytes: &[u8], bundle: &LocatedBundle) -> Vec<u8> {
        match &bundle.storage {
            Storage::Plain => bytes[bundle.offset as usize..][..bundle.length as usize].to_vec(),
            Storage::Compressed { header, payload, .. } => {
                let mut decoder = CcobDecoder::new(*header, bundle.offset).unwrap();
                let mut content = Vec::new();
                let input = &bytes[payload.start as usize..payload.end as usize];
                decoder
                    .feed(input, |bytes| {
                        content.extend_from_slice(bytes);
                        Ok::<_, Fault>(())
                    })
                    .unwrap();
                decoder.finish().unwrap();
                content
            }
        }
    }

    fn plain(code: &[u8]) -> Vec<u8> {
        BundleBuilder::new()
            .entry("host-x86_64-unknown-linux-gnu-", b"")
            .target("gfx942", code)
            .target("gfx1100", b"other code")
            .build()
    }

    #[test]
    fn mixed_section_with_traps_inside() {
        // Both magics occur inside the code, also right where a page starts.
        let mut code = vec![1; 9000];
        code[4000..4004].copy_from_slice(b"CCOB");
        code[4500..4524].copy_from_slice(bundle::MAGIC);
        for (at, magic) in [(5000, &b"CCOB\x02\0\x01\0"[..]), (6000, bundle::MAGIC)] {
            code[at..at + magic.len()].copy_from_slice(magic);
        }
        let raw = plain(&code);
        let mut bundles = vec![raw.clone()];
        bundles.extend(CCOB_KINDS.map(|(version, method)| ccob(version, method, &raw)));
        bundles.push(raw.clone());
        for align in [1, 8, 4096] {
            let (mut bytes, offsets) = section(&bundles, align);
            bytes.extend([0; 100]);
            let found = walk_bytes(&bytes).unwrap();
            let starts: Vec<_> = found.iter().map(|bundle| bundle.offset as usize).collect();
            assert_eq!(starts, offsets, "alignment {align}");
            for (bundle, written) in found.iter().zip(&bundles) {
                assert_eq!(bundle.length, written.len() as u64);
                assert!(content(&bytes, bundle) == raw);
                assert_eq!(bundle.header.end, raw.len() as u64);
            }
        }
    }

    #[test]
    fn the_section_can_be_anywhere_in_the_file() {
        let raw = plain(b"code");
        let (bytes, offsets) = section(&[raw.clone(), ccob(3, CcobMethod::Zstd, &raw), raw], 64);
        let file = [&[9; 1001], bytes.as_slice(), &[9; 77]].concat();
        let section = BundleSection { address: 0x1000, range: 1001..1001 + bytes.len() as u64 };
        let found = walk(&mut file.as_slice(), &section).unwrap();
        let starts: Vec<_> = found.iter().map(|bundle| bundle.offset as usize - 1001).collect();
        assert_eq!(starts, offsets);
        // What follows the section is not looked at, what it lacks is a fault.
        let fault = walk(&mut file.as_slice(), &BundleSection { address: 0, range: 0..5000 }).unwrap_err();
        assert!(fault.message.contains("ends at 0x1388"), "{fault}");
    }

    #[test]
    fn only_headers_and_padding_are_read() {
        let raw = plain(&vec![7; 3 << 20]);
        let mut state = 1_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(3 << 20)
        .collect();
        let compressed = ccob(2, CcobMethod::Zstd, &plain(&noise));
        assert!(compressed.len() > 1 << 20);
        let v1 = ccob(1, CcobMethod::Zstd, &plain(&noise));
        let (bytes, _) = section(&[raw.clone(), compressed, raw, v1], 4096);
        let mut source = Counting { bytes: &bytes, read: 0 };
        assert_eq!(walk(&mut source, &whole(&bytes)).unwrap().len(), 4);
        assert!(source.read < 700 << 10, "{} bytes read of {}", source.read, bytes.len());
    }

    #[test]
    fn empty_sections_and_empty_entries() {
        assert_eq!(walk_bytes(b"").unwrap(), []);
        assert_eq!(walk_bytes(&[0; 5000]).unwrap(), []);
        let bytes = BundleBuilder::new().target("gfx942", b"").target("gfx950", b"").build();
        let found = walk_bytes(&bytes).unwrap();
        assert_eq!(found[0].header.entries.len(), 2);
        assert_eq!(found[0].length, found[0].header.header_len);
    }

    #[test]
    fn garbage_between_bundles_is_named_with_its_offset() {
        let raw = plain(b"code");
        let (mut bytes, offsets) = section(&[raw.clone(), raw.clone()], 4096);
        bytes[3000] = b'x';
        let fault = refused(&bytes);
        assert_eq!(fault.offset, Some(3000));
        assert!(fault.message.contains("found \"x\\x00\\x00"), "{fault}");
        // Behind the last bundle, too, and at the very end, where no magic fits any more.
        bytes[3000] = 0;
        bytes.extend([0; 20_000]);
        bytes.extend(b"__CLANG_OFF");
        assert_eq!(refused(&bytes).offset, Some((offsets[1] + raw.len() + 20_000) as u64));
    }

    #[test]
    fn bundles_that_end_behind_the_section() {
        let raw = plain(b"code");
        assert!(refused(&raw[..raw.len() - 1]).message.contains("past the end of the bundle"));
        for (version, method) in CCOB_KINDS {
            let bytes = [vec![0; 64], ccob(version, method, &raw)].concat();
            for cut in [65, 70, 80, 90, 100, bytes.len() - 1] {
                let fault = refused(&bytes[..cut]);
                assert!(fault.offset.is_some_and(|at| at >= 64), "{version} {method:?} {cut}: {fault}");
            }
        }
    }

    #[test]
    fn the_content_of_a_compressed_bundle_must_be_a_bundle() {
        let fault = refused(&ccob(2, CcobMethod::Zstd, b"__CLANG_OFFLOAD_BUNDLE_?\0\0\0\0\0\0\0\0"));
        assert_eq!(fault.place, "offload bundle in a compressed bundle");
        let fault = refused(&ccob(2, CcobMethod::Zlib, b""));
        assert!(fault.message.contains("0 bytes of content"), "{fault}");
        let odd = BundleBuilder::new().target("gfxzzz", b"code").build();
        let fault = refused(&[vec![0; 16], ccob(3, CcobMethod::Zstd, &odd)].concat());
        assert_eq!(fault.offset, Some(16));
        assert!(fault.message.contains("--gfxzzz\"") && fault.message.contains("at byte 0x38"), "{fault}");
    }

    #[test]
    fn a_long_table_in_many_pieces() {
        let mut builder = BundleBuilder::new();
        for features in ["", ":xnack+", ":xnack-"] {
            for stepping in 0..256 {
                builder = builder.target(&format!("gfx9{stepping:02x}{features}"), &[1, 2, 3]);
            }
        }
        let raw = builder.build();
        let (bytes, _) = section(&[raw.clone(), ccob(3, CcobMethod::Zlib, &raw)], 4096);
        let found = walk_bytes(&bytes).unwrap();
        assert_eq!(found[0].header, found[1].header);
        assert_eq!(found[0].header.device_entries().count(), 768);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn damage_never_panics(
            kinds in proptest::collection::vec(0..=CCOB_KINDS.len(), 1..4),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let raw = plain(&[5; 300]);
            let bundles: Vec<_> = kinds.iter().map(|&kind| match CCOB_KINDS.get(kind) {
                Some(&(version, method)) => ccob(version, method, &raw),
                None => raw.clone(),
            }).collect();
            let (mut bytes, _) = section(&bundles, 16);
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            if let Ok(found) = walk_bytes(&bytes) {
                let mut end = 0;
                for bundle in found {
                    prop_assert!(bundle.offset >= end);
                    end = bundle.offset + bundle.length;
                    prop_assert!(end <= bytes.len() as u64);
                }
            }
        }
    }
}
