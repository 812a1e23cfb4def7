//! What the reader and the writer share: methods, attributes, extra fields, the limits of the 32-bit fields.

/// A 32-bit size or offset field with this value, or a larger value, is in the ZIP64 field (APPNOTE 4.3.9.2).
pub const LIMIT_32: u64 = 0xffff_ffff;
/// The same for 16-bit counts.
pub const LIMIT_16: u64 = 0xffff;
/// Header ID of the ZIP64 extended information field (APPNOTE 4.5.3).
pub const ZIP64_FIELD: u16 = 0x0001;
/// Header ID of the Unicode path field (APPNOTE 4.6.9). It repeats the name, so it is not copied.
pub const UNICODE_PATH_FIELD: u16 = 0x7075;
/// Header ID of Android's alignment field, which readers skip; it fills room that a ZIP64 field does not need.
pub const PADDING_FIELD: u16 = 0xd935;
/// General purpose flag: the member is encrypted.
pub const FLAG_ENCRYPTED: u16 = 1;
/// General purpose flag: name and comment are UTF-8.
pub const FLAG_UTF8: u16 = 1 << 11;
/// General purpose flag: compressed patched data (APPNOTE 4.4.4, bit 5).
pub const FLAG_PATCHED: u16 = 1 << 5;

/// How a member's bytes are stored. Wheels use these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// As they are.
    Stored,
    /// Raw deflate (RFC 1951).
    Deflated,
}

impl Method {
    /// The number in the method field.
    pub fn code(self) -> u16 {
        match self {
            Method::Stored => 0,
            Method::Deflated => 8,
        }
    }
}

/// What a member carries besides name and bytes. Copied from the input to the output as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Version made by (APPNOTE 4.4.2): host system in the upper byte.
    pub made_by: u16,
    /// MS-DOS time and date, in local time by convention.
    pub time: u16,
    /// See [`time`](Self::time).
    pub date: u16,
    /// Internal file attributes.
    pub internal: u16,
    /// External file attributes; the upper 16 bits are the Unix mode.
    pub external: u32,
    /// Extra fields of the central header, without the ones that the writer makes itself.
    pub central_extra: Vec<u8>,
    /// Extra fields of the local header, likewise.
    pub local_extra: Vec<u8>,
    /// The member's comment.
    pub comment: Vec<u8>,
}

/// Host system 3 (Unix) and specification version 2.0 or 4.5 respectively.
pub(crate) const MADE_BY_UNIX: u16 = 3 << 8 | 20;
const MODE_TYPE: u32 = 0o170_000;
const MODE_SYMLINK: u32 = 0o120_000;

impl Attributes {
    /// A new regular file with permissions `mode` (such as `0o644`), with the time of `when`.
    pub fn regular(mode: u32, when: (u16, u16)) -> Self {
        Self {
            made_by: MADE_BY_UNIX,
            date: when.0,
            time: when.1,
            external: (0o100_000 | mode) << 16,
            ..Self::default()
        }
    }

    /// The Unix mode; 0 if the archive has none.
    pub fn mode(&self) -> u32 {
        self.external >> 16
    }

    /// Whether the member is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode() & MODE_TYPE == MODE_SYMLINK
    }

    /// Date and time as stored, in an order that compares chronologically.
    pub fn when(&self) -> (u16, u16) {
        (self.date, self.time)
    }
}

/// The parts `(header ID, data)` of an extra field; stops at the first part that is cut off.
pub fn extra_parts(mut extra: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [id0, id1, length0, length1, rest @ ..] = extra else { return None };
        let data = rest.get(..usize::from(u16::from_le_bytes([*length0, *length1])))?;
        extra = &rest[data.len()..];
        Some((u16::from_le_bytes([*id0, *id1]), data))
    })
}

/// The parts of `extra` that may be copied into another archive.
pub fn portable_extra(extra: &[u8]) -> Vec<u8> {
    let mut copy = Vec::new();
    for (id, data) in extra_parts(extra) {
        if !matches!(id, ZIP64_FIELD | UNICODE_PATH_FIELD | PADDING_FIELD) {
            copy.extend_from_slice(&id.to_le_bytes());
            // A part's length came out of 16 bits.
            copy.extend_from_slice(&(data.len() as u16).to_le_bytes());
            copy.extend_from_slice(data);
        }
    }
    // The writer adds a ZIP64 field of up to 28 bytes, and the length field has 16 bits.
    if copy.len() > usize::from(u16::MAX) - 28 {
        copy.clear();
    }
    copy
}

/// MS-DOS date and time of a Unix time in UTC, clamped to the years 1980 to 2107 that the format can hold.
pub fn dos_time(unix_seconds: i64) -> (u16, u16) {
    let seconds = unix_seconds.clamp(315_532_800, 4_354_819_198);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day count: shift to 1 March 0000, so that leap days end the year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    // All in range by the clamp above.
    let date = ((year - 1980) << 9 | month << 5 | day) as u16;
    let time = ((of_day / 3600) << 11 | (of_day / 60 % 60) << 5 | ((of_day % 60) / 2)) as u16;
    (date, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dos_times() {
        assert_eq!(dos_time(0), (1 << 5 | 1, 0), "before 1980");
        // 2026-12-01 04:44:54 UTC
        assert_eq!(dos_time(1_796_100_294), (46 << 9 | 12 << 5 | 1, 4 << 11 | 44 << 5 | 27));
        // 2024-02-29 23:59:59 UTC
        assert_eq!(dos_time(1_709_251_199), (44 << 9 | 2 << 5 | 29, 23 << 11 | 59 << 5 | 29));
        assert_eq!(dos_time(i64::MAX), (127 << 9 | 12 << 5 | 31, 23 << 11 | 59 << 5 | 29));
    }

    #[test]
    fn extras_that_the_writer_makes_itself_are_not_copied() {
        let extra = b"\x01\x00\x08\x00AAAAAAAA\x55\x54\x05\x00\x01BBBB\x75\x70\x01\x00C\x99\x99\x09\x00cut";
        assert_eq!(portable_extra(extra), b"\x55\x54\x05\x00\x01BBBB");
    }
}
