//! Zstandard frames from the outside: header and length, without decoding.
//!
//! Source: RFC 8878 sections 3.1.1.1 (frame header) and 3.1.1.2 (blocks). A frame is `FD2FB528`, a header of 2 to 14
//! bytes, blocks that each start with their length in 3 bytes, and 4 bytes of checksum if the header says so.
//!
//! Needed because the window that a frame demands must be known before a decoder allocates it, and because
//! version 1 of compressed bundles does not say where it ends.
//!
//! Refused: skippable frames (nothing in this field writes them), the reserved bit, the reserved block type,
//! dictionaries.

use super::{HeaderParse, array_at};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// What a frame starts with.
pub const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The longest frame header, magic included, in bytes.
pub const MAX_HEADER_LEN: u64 = 18;

/// A block of a frame holds at most this much, compressed or not, in bytes.
const MAX_BLOCK_LEN: u64 = 128 << 10;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of magic and header in bytes.
    pub header_len: u64,
    /// Bytes of history that a decoder must keep.
    pub window_size: u64,
    /// Bytes that the frame decodes to, if it says so.
    pub content_size: Option<u64>,
    /// Whether 4 bytes of checksum follow the last block.
    pub has_checksum: bool,
}

impl FrameHeader {
    /// Parses a frame header from the first bytes of a frame.
    ///
    /// # Errors
    /// A [`Fault`] whose offset counts from the frame's start.
    pub fn parse(prefix: &[u8]) -> Result<HeaderParse<Self>> {
        let Some(magic) = array_at::<4>(prefix, 0) else { return Ok(HeaderParse::NeedMore(5)) };
        if magic != MAGIC {
            return Err(Fault::malformed(
                "zstd frame",
                0,
                format!("starts with {} instead of 28b52ffd", hex(&magic)),
            ));
        }
        let Some(&descriptor) = prefix.get(4) else { return Ok(HeaderParse::NeedMore(5)) };
        if descriptor & 0x08 != 0 {
            return Err(Fault::unsupported("zstd frame", 4, "sets a reserved bit of the frame header"));
        }
        if descriptor & 0x03 != 0 {
            return Err(Fault::unsupported("zstd frame", 4, "wants a dictionary"));
        }
        let single_segment = descriptor & 0x20 != 0;
        let size_len = match (descriptor >> 6, single_segment) {
            (0, false) => 0,
            (0, true) => 1,
            (1, _) => 2,
            (2, _) => 4,
            _ => 8,
        };
        let size_at = if single_segment { 5 } else { 6 };
        let Some(size_bytes) = prefix.get(size_at..size_at + size_len) else {
            return Ok(HeaderParse::NeedMore((size_at + size_len) as u64));
        };
        let mut padded = [0; 8];
        padded.iter_mut().zip(size_bytes).for_each(|(to, from)| *to = *from);
        let content_size = match size_len {
            0 => None,
            // Two bytes cannot hold less than one byte could.
            2 => Some(u64::from_le_bytes(padded) + 256),
            _ => Some(u64::from_le_bytes(padded)),
        };
        let window_size = match (single_segment, prefix.get(5)) {
            (false, Some(&window)) => {
                // The exponent is at most 31 + 10.
                let base = 1_u64 << (10 + (window >> 3));
                base + base / 8 * u64::from(window & 7)
            }
            _ => content_size.unwrap_or_default(),
        };
        Ok(HeaderParse::Complete(Self {
            header_len: (size_at + size_len) as u64,
            window_size,
            content_size,
            has_checksum: descriptor & 0x04 != 0,
        }))
    }
}

/// Length in bytes of the frame that starts at `offset` of `source`, by its block headers. The frame must end at
/// `limit` at the latest.
///
/// # Errors
/// A [`Fault`] whose offset counts from the file's start.
pub fn frame_length(source: &mut dyn ReadAt, offset: u64, limit: u64) -> Result<u64> {
    let short = || {
        Fault::malformed("zstd frame", offset, format!("does not end before the section does, at {limit:#x}"))
    };
    let prefix_len = limit.saturating_sub(offset).min(MAX_HEADER_LEN);
    let prefix = source.read_vec(offset, prefix_len, "zstd frame")?;
    let header = match FrameHeader::parse(&prefix) {
        Ok(HeaderParse::Complete(header)) => header,
        Ok(HeaderParse::NeedMore(_)) => return Err(short()),
        Err(fault) => {
            return Err(Fault { offset: fault.offset.map(|at| at.saturating_add(offset)), ..fault });
        }
    };
    // Every position below stays under `limit` plus a block, so the sums cannot overflow unless limit does.
    let mut at = offset + header.header_len;
    loop {
        if at.checked_add(3).is_none_or(|end| end > limit) {
            return Err(short());
        }
        let mut bytes = [0; 4];
        let (block_header, _) = bytes.split_at_mut(3);
        source.read_at(at, block_header)?;
        let block = u64::from(u32::from_le_bytes(bytes));
        let (last, kind, size) = (block & 1 == 1, block >> 1 & 3, block >> 3);
        if kind == 3 || size > MAX_BLOCK_LEN {
            return Err(Fault::malformed(
                "zstd frame",
                at,
                format!("a block of type {kind} with {size} bytes is not valid"),
            ));
        }
        // A run-length block stores one byte.
        at += 3 + if kind == 1 { 1 } else { size };
        if at > limit {
            return Err(short());
        }
        if last {
            break;
        }
    }
    let end = at + if header.has_checksum { 4 } else { 0 };
    if end > limit { Err(short()) } else { Ok(end - offset) }
}

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> FrameHeader {
        match FrameHeader::parse(bytes).unwrap() {
            HeaderParse::Complete(header) => header,
            HeaderParse::NeedMore(length) => panic!("{length} bytes wanted"),
        }
    }

    fn frame(content: &[u8], pledge: bool, checksum: bool, window_log: u32) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_pledged_src_size(pledge.then_some(content.len() as u64)).unwrap();
        encoder.include_checksum(checksum).unwrap();
        encoder.window_log(window_log).unwrap();
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Noise, so that blocks of every type and many of them occur.
    fn content(length: usize, noise: bool) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..length).map(|_| if noise { next() } else { 9 }).collect()
    }

    #[test]
    fn golden_header() {
        // Window descriptor 0x50: 2^(10 + 10); no content size, no checksum.
        let header = parse(&[0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x50]);
        assert_eq!(
            header,
            FrameHeader { header_len: 6, window_size: 1 << 20, content_size: None, has_checksum: false }
        );
        // Single segment with a content size of two bytes, and a checksum.
        let header = parse(&[0x28, 0xB5, 0x2F, 0xFD, 0x64, 0x00, 0x01]);
        assert_eq!(
            header,
            FrameHeader { header_len: 7, window_size: 512, content_size: Some(512), has_checksum: true }
        );
        // 128 MiB window as clang writes it, with mantissa 1 for good measure: 2^27 + 2^24.
        assert_eq!(parse(&[0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x89]).window_size, (1 << 27) + (1 << 24));
    }

    #[test]
    fn refusals() {
        for (bytes, message) in [
            ([0x50, 0x2A, 0x4D, 0x18, 0, 0], "502a4d18"),
            ([0x28, 0xB5, 0x2F, 0xFD, 0x08, 0], "reserved bit"),
            ([0x28, 0xB5, 0x2F, 0xFD, 0x01, 0], "dictionary"),
        ] {
            let fault = FrameHeader::parse(&bytes).unwrap_err();
            assert!(fault.message.contains(message), "{fault}");
        }
        // One reserved block.
        let frame = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x50, 0x07, 0, 0];
        let fault = frame_length(&mut frame.as_slice(), 0, 9).unwrap_err();
        assert!(fault.message.contains("type 3"), "{fault}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn length_and_header_fit_what_the_encoder_wrote(
            length in prop_oneof![Just(0_usize), 1..600_usize, 100_000..400_000_usize],
            pledge: bool, checksum: bool, noise: bool, window_log in 10_u32..20, before in 0_usize..9,
        ) {
            let content = content(length, noise);
            let frame = frame(&content, pledge, checksum, window_log);
            let header = parse(&frame);
            prop_assert_eq!(header.has_checksum, checksum);
            if pledge {
                prop_assert_eq!(header.content_size, Some(length as u64));
            }
            prop_assert!(header.window_size <= (1 << window_log).max(1024));
            let mut file = vec![1; before];
            file.extend(&frame);
            file.extend(b"\0\0\0CCOB");
            let limit = file.len() as u64;
            let measured = frame_length(&mut file.as_slice(), before as u64, limit).unwrap();
            prop_assert_eq!(measured, frame.len() as u64);
            // Cut anywhere, it is a fault.
            let cut = (before + frame.len() - 1) as u64;
            prop_assert!(frame_length(&mut file.as_slice(), before as u64, cut).is_err());
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            bytes.splice(..bytes.len().min(4), MAGIC);
            let _ = FrameHeader::parse(&bytes);
            let limit = bytes.len() as u64;
            if let Ok(length) = frame_length(&mut bytes.as_slice(), 0, limit) {
                prop_assert!(length <= limit);
            }
        }
    }
}
