//! Writes zip archives as other tools do, oddities included, record by record from the APPNOTE.
//!
//! Shares no code with `fatwheel::zip`, so that the two check each other.

use std::io::Write as _;

/// How one member is written. [`ZipMember::new`] gives what zipfile would do: deflated, mode 0644, no oddity.
#[derive(Clone, Debug)]
pub struct ZipMember {
    pub name: String,
    pub data: Vec<u8>,
    /// All 16 bits: `0o100644`, `0o120777` for a symbolic link, `0o040755` for a directory.
    pub mode: u32,
    pub stored: bool,
    /// DOS date and time.
    pub when: (u16, u16),
    /// Sizes and CRC behind the data instead of in the local header.
    pub data_descriptor: bool,
    /// A ZIP64 field in the local and in the central header although every size fits 32 bits; in the local header
    /// the sizes are in the field only, as streaming writers have it, if this is `Streamed`.
    pub zip64: Zip64,
    /// Written instead of the right one.
    pub crc: Option<u32>,
}

/// Superfluous ZIP64 fields of a small member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zip64 {
    None,
    /// 32-bit sizes are right, and a field repeats them (ROCm torch nightlies).
    Superfluous,
    /// 32-bit sizes are 0xffffffff and the field has the small sizes.
    Streamed,
}

/// 2025-01-01 00:00:00.
pub const NEW_YEAR_2025: (u16, u16) = ((2025 - 1980) << 9 | 1 << 5 | 1, 0);

impl ZipMember {
    pub fn new(name: &str, data: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.to_owned(),
            data: data.into(),
            mode: 0o100_644,
            stored: false,
            when: NEW_YEAR_2025,
            data_descriptor: false,
            zip64: Zip64::None,
            crc: None,
        }
    }

    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub fn stored(mut self) -> Self {
        self.stored = true;
        self
    }

    pub fn when(mut self, when: (u16, u16)) -> Self {
        self.when = when;
        self
    }

    pub fn data_descriptor(mut self) -> Self {
        self.data_descriptor = true;
        self
    }

    pub fn zip64(mut self, zip64: Zip64) -> Self {
        self.zip64 = zip64;
        self
    }

    fn packed(&self) -> Vec<u8> {
        if self.stored {
            return self.data.clone();
        }
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&self.data).unwrap();
        encoder.finish().unwrap()
    }
}

/// The archive of `members`, with an archive comment.
pub fn zip(members: &[ZipMember], comment: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut central = Vec::new();
    for member in members {
        let packed = member.packed();
        let offset = out.len() as u32;
        let crc = member.crc.unwrap_or_else(|| crc32fast::hash(&member.data));
        let (compressed, size) = (packed.len() as u32, member.data.len() as u32);
        let flags = (u16::from(member.data_descriptor) << 3) | (u16::from(!member.name.is_ascii()) << 11);
        let wide = [1u16.to_le_bytes(), 16u16.to_le_bytes()].concat();
        let wide = [wide.as_slice(), &u64::from(size).to_le_bytes(), &u64::from(compressed).to_le_bytes()];
        let extra = if member.zip64 == Zip64::None { Vec::new() } else { wide.concat() };
        let streamed = member.zip64 == Zip64::Streamed;
        let sizes = |known: bool| match (known, streamed) {
            (true, false) => [crc, compressed, size],
            (true, true) => [crc, u32::MAX, u32::MAX],
            (false, _) => [0, 0, 0],
        };
        let common = |known: bool| {
            let (date, time) = member.when;
            let mut header = Vec::new();
            let version: u16 = if member.zip64 == Zip64::None { 20 } else { 45 };
            for field in [version, flags, if member.stored { 0 } else { 8 }, time, date] {
                header.extend(field.to_le_bytes());
            }
            header.extend(sizes(known).into_iter().flat_map(u32::to_le_bytes));
            header.extend((member.name.len() as u16).to_le_bytes());
            header.extend((extra.len() as u16).to_le_bytes());
            header
        };
        out.extend(b"PK\x03\x04");
        out.extend(common(!member.data_descriptor));
        out.extend(member.name.as_bytes());
        out.extend(&extra);
        out.extend(&packed);
        if member.data_descriptor {
            out.extend(b"PK\x07\x08");
            out.extend([crc, compressed, size].into_iter().flat_map(u32::to_le_bytes));
        }
        central.extend(b"PK\x01\x02");
        central.extend((3u16 << 8 | 45).to_le_bytes());
        central.extend(common(true));
        central.extend([0; 6]); // comment, disk, internal attributes
        let directory = u32::from(member.name.ends_with('/')) << 4;
        central.extend((member.mode << 16 | directory).to_le_bytes());
        central.extend(offset.to_le_bytes());
        central.extend(member.name.as_bytes());
        central.extend(&extra);
    }
    let (start, length, count) = (out.len() as u32, central.len() as u32, members.len() as u16);
    out.extend(central);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([count, count].into_iter().flat_map(u16::to_le_bytes));
    out.extend([length, start].into_iter().flat_map(u32::to_le_bytes));
    out.extend((comment.len() as u16).to_le_bytes());
    out.extend(comment);
    out
}
