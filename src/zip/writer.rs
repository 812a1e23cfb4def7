//! Lays out an archive that is written front to back: which bytes to write where, without writing any.
//!
//! Strict, whatever the input was: sizes and CRC in every local header (no data descriptors), a ZIP64 field only
//! where a size is 0xffffffff and with those sizes only, UTF-8 flag exactly for names that are not ASCII.
//!
//! A member whose sizes are known beforehand gets its final local header at once. For a member that is streamed,
//! the header is patched when the member ends; if it could reach 4 GiB, room for the ZIP64 field is kept, and
//! filled with a padding field if it stays smaller.

use super::records::{Attributes, FLAG_UTF8, LIMIT_16, LIMIT_32, Method, PADDING_FIELD, ZIP64_FIELD};

/// Version needed to extract: 2.0 for deflate and directories, 4.5 for ZIP64 (APPNOTE 4.4.3.2).
const VERSION_PLAIN: u16 = 20;
const VERSION_ZIP64: u16 = 45;

/// Sizes and checksum of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// CRC-32 of the uncompressed bytes.
    pub crc32: u32,
    /// Bytes in the archive.
    pub compressed: u64,
    /// Bytes of the file.
    pub uncompressed: u64,
}

/// A change to bytes that were laid out before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset in the archive, in bytes.
    pub offset: u64,
    /// What to write there.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Written {
    name: String,
    method: Method,
    attributes: Attributes,
    header_offset: u64,
    sizes: Sizes,
}

/// The layout of one archive so far.
#[derive(Debug, Default)]
pub struct Layout {
    entries: Vec<Written>,
    /// Where the next byte goes.
    offset: u64,
    /// The member that is open: its header has room for a ZIP64 field, its data starts here.
    open: Option<(bool, u64)>,
}

impl Layout {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes laid out so far, which is where the next byte goes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Starts a member whose sizes are known. Returns its local header; `sizes.compressed` bytes of data must follow.
    pub fn known(&mut self, name: &str, method: Method, attributes: &Attributes, sizes: Sizes) -> Vec<u8> {
        let zip64 = wide(sizes);
        let header = self.header(name, method, attributes, sizes, zip64);
        self.push(name, method, attributes, sizes, header.len() as u64 + sizes.compressed);
        header
    }

    /// Starts a member that will be streamed and take `at_most` bytes in either form. Returns its preliminary
    /// local header; data goes right behind it until [`end`](Self::end).
    pub fn begin(&mut self, name: &str, method: Method, attributes: &Attributes, at_most: u64) -> Vec<u8> {
        let room = at_most >= LIMIT_32;
        let header = self.header(name, method, attributes, Sizes::default(), room);
        let length = header.len() as u64;
        self.push(name, method, attributes, Sizes::default(), length);
        self.open = Some((room, self.offset));
        header
    }

    /// Ends the streamed member. Returns the final local header to write over the preliminary one.
    ///
    /// `None` if no member is open, or if `sizes` need a ZIP64 field for which no room was kept.
    pub fn end(&mut self, sizes: Sizes) -> Option<Patch> {
        let (room, data_start) = self.open.take()?;
        if wide(sizes) && !room {
            return None;
        }
        let entry = self.entries.last_mut()?;
        entry.sizes = sizes;
        let (name, method, attributes, offset) =
            (entry.name.clone(), entry.method, entry.attributes.clone(), entry.header_offset);
        self.offset = data_start + sizes.compressed;
        Some(Patch { offset, bytes: self.header(&name, method, &attributes, sizes, room) })
    }

    /// Ends the archive: the central directory and the end records.
    pub fn finish(self) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in &self.entries {
            entry.central_header(&mut out);
        }
        let (start, size, count) = (self.offset, out.len() as u64, self.entries.len() as u64);
        if start >= LIMIT_32 || size >= LIMIT_32 || count >= LIMIT_16 {
            let record_at = start + size;
            out.extend_from_slice(b"PK\x06\x06");
            out.extend_from_slice(&44u64.to_le_bytes()); // what follows this field
            out.extend_from_slice(&(3 << 8 | VERSION_ZIP64).to_le_bytes());
            out.extend_from_slice(&VERSION_ZIP64.to_le_bytes());
            out.extend_from_slice(&[0; 8]); // disk numbers
            for value in [count, count, size, start] {
                out.extend_from_slice(&value.to_le_bytes());
            }
            out.extend_from_slice(b"PK\x06\x07");
            out.extend_from_slice(&0u32.to_le_bytes());
            out.extend_from_slice(&record_at.to_le_bytes());
            out.extend_from_slice(&1u32.to_le_bytes());
        }
        out.extend_from_slice(b"PK\x05\x06");
        out.extend_from_slice(&[0; 4]);
        let count = narrow_16(count).to_le_bytes();
        out.extend_from_slice(&count);
        out.extend_from_slice(&count);
        out.extend_from_slice(&narrow(size).to_le_bytes());
        out.extend_from_slice(&narrow(start).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out
    }

    fn push(&mut self, name: &str, method: Method, attributes: &Attributes, sizes: Sizes, length: u64) {
        self.entries.push(Written {
            name: name.to_owned(),
            method,
            attributes: attributes.clone(),
            header_offset: self.offset,
            sizes,
        });
        self.offset += length;
    }

    /// A local header (APPNOTE 4.3.7). With `room`, it has a ZIP64 field or as much padding.
    fn header(
        &self,
        name: &str,
        method: Method,
        attributes: &Attributes,
        sizes: Sizes,
        room: bool,
    ) -> Vec<u8> {
        let mut extra = attributes.local_extra.clone();
        let zip64 = wide(sizes);
        if room {
            let (id, first, second) = if zip64 {
                (ZIP64_FIELD, sizes.uncompressed, sizes.compressed)
            } else {
                (PADDING_FIELD, 1, 0)
            };
            extra.extend_from_slice(&id.to_le_bytes());
            extra.extend_from_slice(&16u16.to_le_bytes());
            extra.extend_from_slice(&first.to_le_bytes());
            extra.extend_from_slice(&second.to_le_bytes());
        }
        let mut out = Vec::with_capacity(30 + name.len() + extra.len());
        out.extend_from_slice(b"PK\x03\x04");
        common(
            &mut out,
            name,
            method,
            attributes,
            sizes.crc32,
            if zip64 { VERSION_ZIP64 } else { VERSION_PLAIN },
        );
        // A local ZIP64 field must have both sizes (APPNOTE 4.5.3), so both 32-bit fields say so.
        for size in [sizes.compressed, sizes.uncompressed] {
            let field = if zip64 { u32::MAX } else { narrow(size) };
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&narrow_16(name.len() as u64).to_le_bytes());
        out.extend_from_slice(&narrow_16(extra.len() as u64).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&extra);
        out
    }
}

impl Written {
    /// A central header (APPNOTE 4.3.12).
    fn central_header(&self, out: &mut Vec<u8>) {
        let mut zip64 = Vec::new();
        for value in [self.sizes.uncompressed, self.sizes.compressed, self.header_offset] {
            if value >= LIMIT_32 {
                zip64.extend_from_slice(&value.to_le_bytes());
            }
        }
        let mut extra = self.attributes.central_extra.clone();
        if !zip64.is_empty() {
            extra.extend_from_slice(&ZIP64_FIELD.to_le_bytes());
            extra.extend_from_slice(&(zip64.len() as u16).to_le_bytes()); // at most 24
            extra.extend_from_slice(&zip64);
        }
        let version = if zip64.is_empty() { VERSION_PLAIN } else { VERSION_ZIP64 };
        out.extend_from_slice(b"PK\x01\x02");
        let made_by = self.attributes.made_by & 0xff00 | (self.attributes.made_by & 0xff).max(version);
        out.extend_from_slice(&made_by.to_le_bytes());
        common(out, &self.name, self.method, &self.attributes, self.sizes.crc32, version);
        out.extend_from_slice(&narrow(self.sizes.compressed).to_le_bytes());
        out.extend_from_slice(&narrow(self.sizes.uncompressed).to_le_bytes());
        for length in [self.name.len(), extra.len(), self.attributes.comment.len()] {
            out.extend_from_slice(&narrow_16(length as u64).to_le_bytes());
        }
        out.extend_from_slice(&[0; 2]); // disk number
        out.extend_from_slice(&self.attributes.internal.to_le_bytes());
        out.extend_from_slice(&self.attributes.external.to_le_bytes());
        out.extend_from_slice(&narrow(self.header_offset).to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(&extra);
        out.extend_from_slice(&self.attributes.comment);
    }
}

/// The fields that local and central headers have in common, from "version needed" to "crc-32".
fn common(out: &mut Vec<u8>, name: &str, method: Method, attributes: &Attributes, crc32: u32, version: u16) {
    let flags = if name.is_ascii() { 0 } else { FLAG_UTF8 };
    for field in [version, flags, method.code(), attributes.time, attributes.date] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(&crc32.to_le_bytes());
}

fn wide(sizes: Sizes) -> bool {
    sizes.compressed >= LIMIT_32 || sizes.uncompressed >= LIMIT_32
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn narrow_16(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
