//! Compressed offload bundles ("CCOB"): header and streaming decoder.
//!
//! `"CCOB"`, `u16 version`, `u16 method` (0 zlib, 1 zstd), then, all little-endian:
//!
//! | version | fields | header |
//! |---|---|---|
//! | 1 | `u32 uncompressed`, `u64 hash` | 20 bytes |
//! | 2 | `u32 total`, `u32 uncompressed`, `u64 hash` | 24 bytes |
//! | 3 | `u64 total`, `u64 uncompressed`, `u64 hash` | 32 bytes |
//!
//! `total` counts the header; in version 1 the stream ends itself. The payload is one zlib stream or one zstd
//! frame that holds one uncompressed bundle. The decoder does not check `hash`, which would cost as much as decoding
//! does; `--verify-bundles` has it checked by the caller. Source: `CompressedOffloadBundle` in clang's
//! `OffloadBundler.cpp`.
//!
//! Memory: the decoder has one output buffer of [`OUTPUT_LEN`] bytes and the window that the stream demands, which
//! [`CcobHeader::window_size`] tells beforehand. Nothing is sized by the claimed uncompressed size, and a stream
//! that decodes to more than was claimed is stopped there.
//!
//! Refused: unknown versions and methods, windows over [`MAX_WINDOW_LOG`], skippable zstd frames and dictionaries,
//! anything behind the stream's end, a size that is not the claimed one.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation as _, OutBuffer};
use zstd::zstd_safe::{DCtx, find_frame_compressed_size};

use super::{HeaderParse, array_at, zstd_frame};
use crate::fault::{Fault, Result};

/// What a compressed bundle starts with.
pub const MAGIC: &[u8; 4] = b"CCOB";

/// Length of the longest header in bytes.
pub const MAX_HEADER_LEN: u64 = 32;

/// Windows up to 2 to this power are decoded: zstd's own limit. Compilers use up to 27 today.
pub const MAX_WINDOW_LOG: u32 = if cfg!(target_pointer_width = "64") { 31 } else { 30 };

/// Bytes handed to the sink at once, at most: one zstd block.
pub const OUTPUT_LEN: usize = 128 << 10;

/// The window of every zlib stream, in bytes.
const ZLIB_WINDOW: u64 = 32 << 10;

/// Place name for faults.
const PLACE: &str = "compressed offload bundle";

/// How the payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A zlib stream (RFC 1950).
    Zlib,
    /// A zstd frame (RFC 8878).
    Zstd,
}

/// The header of a compressed bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CcobHeader {
    /// 1, 2 or 3.
    pub version: u16,
    /// How the payload is compressed.
    pub method: Method,
    /// Length of the header in bytes.
    pub header_len: u64,
    /// Length of header and payload in bytes; unknown in version 1.
    pub total: Option<u64>,
    /// Length of the uncompressed bundle in bytes, as claimed.
    pub uncompressed: u64,
    /// The first 8 bytes of the MD5 of the uncompressed bundle, as claimed; the decoder does not check it.
    pub hash: u64,
}

impl CcobHeader {
    /// Parses a header from the first bytes of a compressed bundle.
    ///
    /// # Errors
    /// A [`Fault`] whose offset counts from the bundle's start.
    pub fn parse(prefix: &[u8]) -> Result<HeaderParse<Self>> {
        let u16_at = |offset| array_at(prefix, offset).map(u16::from_le_bytes);
        let u32_at = |offset| array_at(prefix, offset).map(u32::from_le_bytes).map(u64::from);
        let u64_at = |offset| array_at(prefix, offset).map(u64::from_le_bytes);
        let Some(magic) = array_at(prefix, 0) else { return Ok(HeaderParse::NeedMore(20)) };
        if &magic != MAGIC {
            return Err(Fault::malformed(PLACE, 0, "does not start with CCOB"));
        }
        let (Some(version), Some(method)) = (u16_at(4), u16_at(6)) else {
            return Ok(HeaderParse::NeedMore(20));
        };
        let (header_len, rest) = match version {
            1 => (20, u32_at(8).map(|uncompressed| (None, uncompressed)).zip(u64_at(12))),
            2 => (24, u32_at(8).map(Some).zip(u32_at(12)).zip(u64_at(16))),
            3 => (32, u64_at(8).map(Some).zip(u64_at(16)).zip(u64_at(24))),
            _ => {
                return Err(Fault::unsupported(
                    PLACE,
                    4,
                    format!("has version {version}; only 1, 2 and 3 are known"),
                ));
            }
        };
        let method = match method {
            0 => Method::Zlib,
            1 => Method::Zstd,
            _ => {
                return Err(Fault::unsupported(
                    PLACE,
                    6,
                    format!("has compression method {method}; only 0 (zlib) and 1 (zstd) are known"),
                ));
            }
        };
        let Some(((total, uncompressed), hash)) = rest else { return Ok(HeaderParse::NeedMore(header_len)) };
        if let Some(total) = total.filter(|&total| total <= header_len) {
            return Err(Fault::malformed(
                PLACE,
                8,
                format!("claims a total size of {total} bytes, but its header alone has {header_len}"),
            ));
        }
        Ok(HeaderParse::Complete(Self { version, method, header_len, total, uncompressed, hash }))
    }

    /// Length of the payload in bytes; unknown in version 1.
    pub fn payload_len(&self) -> Option<u64> {
        self.total.map(|total| total.saturating_sub(self.header_len))
    }

    /// Bytes of history that decoding will keep in memory, read from the first bytes of the payload (at most
    /// [`zstd_frame::MAX_HEADER_LEN`] are wanted).
    ///
    /// # Errors
    /// A [`Fault`] whose offset counts from the bundle's start, if the payload does not start with a zstd frame
    /// or demands a larger window than [`MAX_WINDOW_LOG`].
    pub fn window_size(&self, payload_prefix: &[u8]) -> Result<HeaderParse<u64>> {
        let window = match self.method {
            Method::Zlib => return Ok(HeaderParse::Complete(ZLIB_WINDOW)),
            Method::Zstd => match zstd_frame::FrameHeader::parse(payload_prefix) {
                Ok(HeaderParse::Complete(frame)) => frame.window_size,
                Ok(HeaderParse::NeedMore(length)) => return Ok(HeaderParse::NeedMore(length)),
                Err(fault) => {
                    let offset = fault.offset.map(|offset| offset.saturating_add(self.header_len));
                    return Err(Fault { offset, ..fault });
                }
            },
        };
        if window > 1 << MAX_WINDOW_LOG {
            return Err(Fault::unsupported(
                PLACE,
                self.header_len,
                format!("demands a window of {window} bytes; more than 2^{MAX_WINDOW_LOG} cannot be decoded"),
            ));
        }
        Ok(HeaderParse::Complete(window))
    }
}

/// Decompresses the payload of one compressed bundle, piece by piece.
pub struct CcobDecoder {
    header: CcobHeader,
    engine: Engine,
    buffer: Box<[u8]>,
    /// File offset of the bundle, for faults.
    offset: u64,
    consumed: u64,
    produced: u64,
    ended: bool,
}

enum Engine {
    Zlib(Decompress),
    Zstd(Decoder<'static>),
}

impl CcobDecoder {
    /// A decoder for the payload behind `header`. `offset` is where in the file the bundle starts, for faults.
    ///
    /// # Errors
    /// An `Unreadable` [`Fault`] if zstd cannot set up a decoder.
    pub fn new(header: CcobHeader, offset: u64) -> Result<Self> {
        let engine = match header.method {
            Method::Zlib => Engine::Zlib(Decompress::new(true)),
            Method::Zstd => {
                let decoder = Decoder::new().and_then(|mut decoder| {
                    decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))?;
                    Ok(decoder)
                });
                Engine::Zstd(decoder.map_err(|error| Fault::unreadable(PLACE, offset, error.to_string()))?)
            }
        };
        let buffer = vec![0; OUTPUT_LEN].into_boxed_slice();
        Ok(Self { header, engine, buffer, offset, consumed: 0, produced: 0, ended: false })
    }

    /// Starts on another bundle, with the memory of the one before it.
    ///
    /// # Errors
    /// As [`CcobDecoder::new`].
    pub fn restart(&mut self, header: CcobHeader, offset: u64) -> Result<()> {
        match (&mut self.engine, header.method) {
            (Engine::Zlib(decompress), Method::Zlib) => decompress.reset(true),
            (Engine::Zstd(decoder), Method::Zstd) => {
                decoder.reinit().map_err(|error| Fault::unreadable(PLACE, offset, error.to_string()))?;
            }
            _ => self.engine = Self::new(header, offset)?.engine,
        }
        (self.header, self.offset) = (header, offset);
        (self.consumed, self.produced, self.ended) = (0, 0, false);
        Ok(())
    }

    /// Decodes the next piece of the payload and hands what comes out to `sink`, in pieces of at most
    /// [`OUTPUT_LEN`] bytes. Returns how many bytes of `input` belong to the stream: fewer than there are only
    /// once the stream has ended.
    ///
    /// # Errors
    /// The sink's own error, or a [`Fault`] for damage and for more output than the header claims. The decoder
    /// is of no use after an error.
    pub fn feed<E: From<Fault>>(
        &mut self,
        input: &[u8],
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut taken = 0;
        while !self.ended {
            let rest = input.get(taken..).unwrap_or_default();
            let (read, written) = self.step(rest)?;
            taken += read;
            self.consumed += read as u64;
            self.produced += written as u64;
            if self.produced > self.header.uncompressed {
                let claimed = self.header.uncompressed;
                return Err(self
                    .malformed(format!("decodes to more than the {claimed} bytes it claims"))
                    .into());
            }
            if written > 0 {
                sink(self.buffer.get(..written).unwrap_or_default())?;
            }
            if read == 0 && written == 0 {
                break;
            }
        }
        if !self.ended && taken < input.len() {
            return Err(self.malformed("its decoder does not take any more of the payload".into()).into());
        }
        Ok(taken)
    }

    /// One call of the decoder: bytes read, and bytes written to the buffer.
    fn step(&mut self, input: &[u8]) -> Result<(usize, usize)> {
        match &mut self.engine {
            Engine::Zlib(decompress) => {
                let before = (decompress.total_in(), decompress.total_out());
                let status = decompress.decompress(input, &mut self.buffer, FlushDecompress::None);
                // Differences of one call, bounded by the lengths of its two slices.
                let read = (decompress.total_in() - before.0) as usize;
                let written = (decompress.total_out() - before.1) as usize;
                match status {
                    Ok(status) => self.ended = matches!(status, Status::StreamEnd),
                    Err(error) => return Err(self.malformed(format!("its zlib stream is damaged: {error}"))),
                }
                Ok((read, written))
            }
            Engine::Zstd(decoder) => {
                let mut from = InBuffer::around(input);
                let mut to = OutBuffer::around(&mut *self.buffer);
                match decoder.run(&mut from, &mut to) {
                    Ok(hint) => {
                        let moved = (from.pos(), to.pos());
                        self.ended = hint == 0;
                        Ok(moved)
                    }
                    Err(error) => Err(self.malformed(format!("its zstd frame is damaged: {error}"))),
                }
            }
        }
    }

    /// Whether the stream has come to its end.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes of payload taken so far. Once the stream has ended, the payload's length.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Checks, after the last piece, that the stream is complete, that it decoded to what the header claims, and
    /// that it fills the payload.
    ///
    /// # Errors
    /// A [`Fault`] that says which of these does not hold.
    pub fn finish(&self) -> Result<()> {
        if !self.ended {
            let consumed = self.consumed;
            return Err(
                self.malformed(format!("its stream is cut short: {consumed} bytes were not the whole"))
            );
        }
        if self.produced != self.header.uncompressed {
            let (claimed, produced) = (self.header.uncompressed, self.produced);
            return Err(self.malformed(format!("decodes to {produced} bytes, but claims {claimed}")));
        }
        match self.header.payload_len() {
            Some(payload) if payload != self.consumed => {
                let consumed = self.consumed;
                Err(self.malformed(format!("its stream ends after {consumed} of {payload} payload bytes")))
            }
            _ => Ok(()),
        }
    }

    fn malformed(&self, message: String) -> Fault {
        Fault::malformed(PLACE, self.offset, message)
    }
}

/// Decompresses zstd payloads that are there as a whole, into buffers of the caller's.
pub struct WholeDecoder(DCtx<'static>);

impl WholeDecoder {
    /// A decoder for any number of payloads.
    ///
    /// # Errors
    /// An `Unreadable` [`Fault`] if zstd cannot set up a decoder.
    pub fn new() -> Result<Self> {
        let context = DCtx::try_create().ok_or_else(|| Fault::unreadable(PLACE, None, "out of memory"))?;
        Ok(Self(context))
    }

    /// Puts what `payload` decodes to into `content`, whose capacity must be the claimed size at least. Whether the
    /// payload is one zstd frame that decodes to what `header` claims; if not, a [`CcobDecoder`] says why.
    pub fn decode(&mut self, header: &CcobHeader, payload: &[u8], content: &mut Vec<u8>) -> bool {
        content.clear();
        content.capacity() as u64 >= header.uncompressed
            && header.payload_len().is_none_or(|length| length == payload.len() as u64)
            && find_frame_compressed_size(payload) == Ok(payload.len())
            && self.0.decompress(content, payload).is_ok_and(|length| length as u64 == header.uncompressed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fatbin::test_support::{CCOB_KINDS, CcobMethod, ccob, ccob_with_payload};

    fn header(bytes: &[u8]) -> CcobHeader {
        match CcobHeader::parse(bytes).unwrap() {
            HeaderParse::Complete(header) => header,
            HeaderParse::NeedMore(length) => panic!("{length} bytes wanted"),
        }
    }

    /// Decodes in pieces of `step` bytes.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<u8>> {
        let HeaderParse::Complete(header) = CcobHeader::parse(bytes)? else {
            return Err(Fault::malformed(PLACE, 0, "short"));
        };
        let mut decoder = CcobDecoder::new(header, 0)?;
        let mut content = Vec::new();
        for piece in bytes[header.header_len as usize..].chunks(step) {
            let taken = decoder.feed(piece, |bytes| {
                assert!(bytes.len() <= OUTPUT_LEN);
                content.extend_from_slice(bytes);
                Ok::<_, Fault>(())
            })?;
            if taken < piece.len() {
                break;
            }
        }
        decoder.finish()?;
        Ok(content)
    }

    /// The content of the golden bundles.
    const CONTENT: &[u8] = b"abcabcabcabcabcabc";
    /// `CONTENT` by Python's zlib.compress and zstandard with content size.
    const ZLIB: &[u8] = b"\x78\x9c\x4b\x4c\x4a\x4e\x44\x45\x00\x41\x7c\x06\xe5";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x20\x12\x4d\x00\x00\x18\x61\x62\x63\x01\x00\x76\x6e\x08";
    /// First 8 bytes of the MD5 of `CONTENT`.
    const HASH: &[u8; 8] = b"\x2e\x6d\x50\x2b\xc1\x54\xe1\xa0";

    fn golden(front: &[u8], payload: &[u8]) -> Vec<u8> {
        [front, HASH, payload].concat()
    }

    #[test]
    fn golden_bytes_of_every_version_and_method() {
        let cases: [(&[u8], &[u8], u64); 6] = [
            (b"CCOB\x01\0\0\0\x12\0\0\0", ZLIB, 20),
            (b"CCOB\x01\0\x01\0\x12\0\0\0", ZSTD, 20),
            (b"CCOB\x02\0\0\0\x25\0\0\0\x12\0\0\0", ZLIB, 24),
            (b"CCOB\x02\0\x01\0\x2a\0\0\0\x12\0\0\0", ZSTD, 24),
            (b"CCOB\x03\0\0\0\x2d\0\0\0\0\0\0\0\x12\0\0\0\0\0\0\0", ZLIB, 32),
            (b"CCOB\x03\0\x01\0\x32\0\0\0\0\0\0\0\x12\0\0\0\0\0\0\0", ZSTD, 32),
        ];
        for (front, payload, header_len) in cases {
            let bytes = golden(front, payload);
            let header = header(&bytes);
            assert_eq!(header.header_len, header_len);
            assert_eq!(header.total, (header.version > 1).then_some(bytes.len() as u64));
            assert_eq!(header.uncompressed, 18);
            assert_eq!(header.hash.to_le_bytes(), *HASH);
            assert_eq!(decode(&bytes, bytes.len()).unwrap(), CONTENT);
            assert_eq!(decode(&bytes, 1).unwrap(), CONTENT);
        }
    }

    #[test]
    fn whole_payloads_decode_or_are_refused_as_those_in_parts_are() {
        let content: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        let mut decoder = WholeDecoder::new().unwrap();
        for version in 1..=3 {
            let bytes = ccob(version, CcobMethod::Zstd, &content);
            let header = header(&bytes);
            let start = header.header_len as usize;
            let mut out = Vec::with_capacity(content.len() + 100);
            assert!(decoder.decode(&header, &bytes[start..], &mut out));
            assert_eq!(out, content);
            let longer = [&bytes[start..], b"x"].concat();
            let twice = [&bytes[start..], &bytes[start..]].concat();
            let mut damaged = bytes[start..].to_vec();
            damaged[0] ^= 0xff;
            for payload in [&bytes[start..bytes.len() - 1], &longer, &twice, &damaged, &[]] {
                assert!(!decoder.decode(&header, payload, &mut out), "version {version}");
            }
            for claimed in [header.uncompressed - 1, header.uncompressed + 1] {
                let lying = CcobHeader { uncompressed: claimed, ..header };
                assert!(!decoder.decode(&lying, &bytes[start..], &mut out), "version {version}: {claimed}");
            }
            assert!(!decoder.decode(&header, &bytes[start..], &mut Vec::new()));
        }
    }

    #[test]
    fn a_prefix_asks_for_what_it_lacks() {
        for (version, method) in CCOB_KINDS {
            let bytes = ccob(version, method, CONTENT);
            let whole = header(&bytes);
            for length in 0..whole.header_len as usize {
                match CcobHeader::parse(&bytes[..length]).unwrap() {
                    HeaderParse::NeedMore(more) => {
                        assert!(more as usize > length && more <= whole.header_len);
                    }
                    HeaderParse::Complete(_) => panic!("{length} bytes were enough"),
                }
            }
        }
    }

    #[test]
    fn the_window_is_known_beforehand() {
        let bytes = ccob(2, CcobMethod::Zlib, CONTENT);
        assert_eq!(header(&bytes).window_size(&[]).unwrap(), HeaderParse::Complete(32 << 10));
        let bytes = ccob(2, CcobMethod::Zstd, &vec![1; 300_000]);
        let zstd = header(&bytes);
        assert_eq!(zstd.window_size(&bytes[24..28]).unwrap(), HeaderParse::NeedMore(5));
        assert_eq!(zstd.window_size(&bytes[24..42]).unwrap(), HeaderParse::Complete(300_000));
        // Exponent 31 is decoded, the next step up is not.
        let frame = |window| [0x28, 0xB5, 0x2F, 0xFD, 0, window];
        assert_eq!(zstd.window_size(&frame(21 << 3)).unwrap(), HeaderParse::Complete(1 << 31));
        let fault = zstd.window_size(&frame(21 << 3 | 1)).unwrap_err();
        assert!(fault.message.contains("2415919104 bytes"), "{fault}");
    }

    #[test]
    fn a_long_window_is_decoded() {
        use std::io::Write as _;
        // A match over 16 MiB back, which the default limit of 8 MiB would refuse.
        let mut content = b"the beginning, long enough to be found again".repeat(4);
        content.resize(16 << 20, 7);
        content.extend_from_within(..176);
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(27).unwrap();
        encoder.long_distance_matching(true).unwrap();
        encoder.write_all(&content).unwrap();
        let bytes = ccob_with_payload(3, CcobMethod::Zstd, &content, &encoder.finish().unwrap());
        let window = header(&bytes).window_size(&bytes[32..50]).unwrap();
        assert_eq!(window, HeaderParse::Complete(1 << 27));
        assert!(decode(&bytes, 1000).unwrap() == content);
    }

    #[test]
    fn header_refusals() {
        for (bytes, message) in [
            (b"CCOC\x01\0\0\0", "does not start with CCOB"),
            (b"CCOB\x04\0\0\0", "version 4"),
            (b"CCOB\0\0\0\0", "version 0"),
            (b"CCOB\x01\0\x02\0", "method 2"),
        ] {
            assert!(CcobHeader::parse(bytes).unwrap_err().message.contains(message));
        }
        let short = golden(b"CCOB\x02\0\0\0\x18\0\0\0\x12\0\0\0", b"");
        assert!(CcobHeader::parse(&short).unwrap_err().message.contains("total size of 24 bytes"));
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let refused = |bytes: &[u8]| decode(bytes, 7).unwrap_err().to_string();
        for (method, payload) in [(CcobMethod::Zlib, ZLIB), (CcobMethod::Zstd, ZSTD)] {
            let fewer = ccob_with_payload(2, method, &CONTENT[1..], payload);
            assert!(refused(&fewer).contains("more than the 17 bytes"), "{}", refused(&fewer));
            let more = ccob_with_payload(2, method, b"abcabcabcabcabcabca", payload);
            assert!(refused(&more).contains("decodes to 18 bytes, but claims 19"));
            let cut = ccob_with_payload(1, method, CONTENT, &payload[..payload.len() - 1]);
            assert!(refused(&cut).contains("cut short"), "{}", refused(&cut));
            let trailing = ccob_with_payload(3, method, CONTENT, &[payload, b"\0"].concat());
            let length = payload.len();
            assert!(refused(&trailing).contains(&format!("after {length} of {} payload", length + 1)));
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_claimed_size() {
        let bomb = vec![0; 8 << 20];
        for method in [CcobMethod::Zlib, CcobMethod::Zstd] {
            let whole = ccob(3, method, &bomb);
            let payload = &whole[32..];
            let bytes = ccob_with_payload(3, method, &bomb[..1000], payload);
            let mut decoder = CcobDecoder::new(header(&bytes), 0x40).unwrap();
            let mut seen = 0;
            let fault = decoder
                .feed(payload, |bytes| {
                    seen += bytes.len();
                    Ok::<_, Fault>(())
                })
                .unwrap_err();
            assert!(fault.message.contains("more than the 1000 bytes"));
            assert_eq!((fault.offset, seen), (Some(0x40), 0));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn round_trip_in_pieces(
            seed in proptest::collection::vec(any::<u8>(), 0..2000), repeat in 1_usize..300,
            kind in 0..CCOB_KINDS.len(), step in 1_usize..5000, behind in 0_usize..3,
        ) {
            let (version, method) = CCOB_KINDS[kind];
            let content = seed.repeat(repeat);
            let mut bytes = ccob(version, method, &content);
            if version == 1 {
                // Nothing says where it ends but the stream itself.
                bytes.extend(vec![0; behind]);
            }
            let decoded = decode(&bytes, step).unwrap();
            prop_assert!(decoded == content);
        }

        #[test]
        fn damage_never_panics(
            kind in 0..CCOB_KINDS.len(), at in 0_usize..4000, byte: u8, cut in 0_usize..4000, step in 1_usize..99,
        ) {
            let (version, method) = CCOB_KINDS[kind];
            let content: Vec<u8> = (0..3000_u32).map(|index| ((index * index) >> 5) as u8).collect();
            let mut bytes = ccob(version, method, &content);
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut.max(1));
            if let Ok(decoded) = decode(&bytes, step) {
                prop_assert_eq!(decoded.len() as u64, header(&bytes).uncompressed);
            }
        }
    }
}
