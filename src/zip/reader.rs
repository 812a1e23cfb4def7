//! Reads the directory of an archive that is in memory (mapped).
//!
//! The central directory is the truth; each local header must agree with it in name and method. Sizes come from
//! the central directory, so members with a data descriptor need no special care. Tolerated because wheels in
//! the field have it: a ZIP64 field on members whose sizes fit 32 bits, `\` as separator, an archive comment.
//! Refused: encryption, methods other than stored and deflated, several disks, members that overlap or leave the
//! archive, names that an installer must not follow (absolute, `..`, NUL), bytes before the first record.

use std::ops::Range;

use rc_zip::parse::{
    CentralDirectoryFileHeader, EndOfCentralDirectory64Locator, EndOfCentralDirectory64Record,
    EndOfCentralDirectoryRecord, LocalFileHeader, Method as RawMethod,
};
use winnow::{Parser, Partial};

use super::records::{
    Attributes, FLAG_ENCRYPTED, FLAG_PATCHED, LIMIT_16, LIMIT_32, Method, ZIP64_FIELD, extra_parts,
    portable_extra,
};
use crate::fault::{Fault, Result};

/// The end record without its comment has 22 bytes, and the comment at most 65535.
const END_SEARCH: usize = 22 + 65_535;
const LOCAL_HEADER: u64 = 30;
const CENTRAL_HEADER: u64 = 46;

/// One member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path with `/` as separator; ends with `/` for a directory.
    pub name: String,
    /// How the bytes are stored.
    pub method: Method,
    /// CRC-32 of the uncompressed bytes.
    pub crc32: u32,
    /// Uncompressed size in bytes.
    pub size: u64,
    /// Offset of the local header in the archive, in bytes.
    pub header_offset: u64,
    /// The bytes of the archive that hold the (compressed) data.
    pub data: Range<u64>,
    /// Everything else.
    pub attributes: Attributes,
}

impl Entry {
    /// Whether the member is a directory.
    pub fn is_directory(&self) -> bool {
        self.name.ends_with('/')
    }
}

/// The members of an archive in the order of the central directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// All members.
    pub entries: Vec<Entry>,
}

impl Archive {
    /// Reads the directory of the archive that `bytes` is, from the first byte to the last.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let directory = find_directory(bytes)?;
        let mut input = Partial::new(slice(bytes, &directory.range)?);
        // The count was checked against the directory's length, so this allocates in proportion to the file.
        let mut entries = Vec::with_capacity(usize::try_from(directory.count).unwrap_or(0));
        for index in 0..directory.count {
            let at = directory.range.end - input.len() as u64;
            let header = CentralDirectoryFileHeader::parser.parse_next(&mut input).map_err(|_| {
                Fault::malformed(
                    "central directory",
                    at,
                    format!(
                        "no file header here, although {} of {} are still to come",
                        directory.count - index,
                        directory.count
                    ),
                )
            })?;
            entries.push(entry(bytes, &header, at, directory.range.start)?);
        }
        if !input.is_empty() {
            return Err(Fault::malformed(
                "central directory",
                directory.range.end - input.len() as u64,
                format!("{} bytes left over after {} file headers", input.len(), directory.count),
            ));
        }
        no_overlap(&entries)?;
        Ok(Self { entries })
    }
}

/// What stands at an offset of an archive of which only the beginning is there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A member, of which the header is there. Its attributes are in the central directory, and so are not known yet.
    Member(Entry),
    /// The beginning of a header.
    Incomplete,
    /// No member whose end could be told: the central directory, or a member with a data descriptor.
    End,
}

/// Looks at `offset` for the next member. The central directory has the last word: what this returns is a guess
/// until the directory agrees.
pub fn arrival(bytes: &[u8], offset: u64) -> Result<Arrival> {
    let rest = slice(bytes, &(offset..bytes.len() as u64))?;
    let signature = LocalFileHeader::SIGNATURE.as_bytes();
    if !rest.starts_with(signature) {
        let partial = rest.len() < signature.len() && signature.starts_with(rest);
        return Ok(if partial { Arrival::Incomplete } else { Arrival::End });
    }
    let Ok(header) = LocalFileHeader::parser.parse_next(&mut Partial::new(rest)) else {
        return Ok(Arrival::Incomplete);
    };
    let Some(method) = method(header.method).filter(|_| !header.has_data_descriptor()) else {
        return Ok(Arrival::End);
    };
    let mut sizes = [u64::from(header.uncompressed_size), u64::from(header.compressed_size)];
    let mut wide = extra_parts(&header.extra).find(|part| part.0 == ZIP64_FIELD).map(|part| part.1);
    for size in &mut sizes {
        if *size == LIMIT_32 {
            let Some((value, rest)) = wide.and_then(|data| data.split_first_chunk::<8>()) else {
                return Ok(Arrival::End);
            };
            *size = u64::from_le_bytes(*value);
            wide = Some(rest);
        }
    }
    let [size, compressed] = sizes;
    let start = offset + LOCAL_HEADER + header.name.len() as u64 + header.extra.len() as u64;
    let data = start..start.saturating_add(compressed);
    let name = member_name(&header.name, offset)?;
    let attributes = Attributes::default();
    Ok(Arrival::Member(Entry {
        name,
        method,
        crc32: header.crc32,
        size,
        header_offset: offset,
        data,
        attributes,
    }))
}

struct Directory {
    range: Range<u64>,
    count: u64,
}

fn find_directory(bytes: &[u8]) -> Result<Directory> {
    let length = bytes.len() as u64;
    if length < 22 {
        return Err(Fault::malformed("zip archive", None, format!("a file of {length} bytes cannot be one")));
    }
    let tail_start = bytes.len().saturating_sub(END_SEARCH);
    let not_found = || {
        let what = if bytes.starts_with(b"PK\x03\x04") {
            "the file starts like an archive but has no end of central directory record: it is truncated"
        } else {
            "no end of central directory record: this is no zip archive"
        };
        Fault::malformed("zip archive", None, what)
    };
    let end = EndOfCentralDirectoryRecord::find_in_block(&bytes[tail_start..]).ok_or_else(not_found)?;
    let end_at = tail_start as u64 + end.offset;
    let end = end.inner;
    let end_len = 22 + end.comment.len() as u64;
    if end_at + end_len != length {
        return Err(Fault::malformed(
            "end of central directory record",
            end_at,
            format!(
                "{} bytes follow it: the file is truncated or something was appended",
                length - end_at - end_len
            ),
        ));
    }
    let mut directory =
        Directory { range: u64::from(end.directory_offset)..0, count: u64::from(end.directory_records) };
    let (mut size, mut stop, mut disks) = (
        u64::from(end.directory_size),
        end_at,
        end.disk_nbr != 0 && u64::from(end.disk_nbr) != LIMIT_16
            || end.dir_disk_nbr != 0 && u64::from(end.dir_disk_nbr) != LIMIT_16,
    );
    let wants_64 = u64::from(end.directory_offset) == LIMIT_32
        || u64::from(end.directory_size) == LIMIT_32
        || u64::from(end.directory_records) == LIMIT_16;
    if let Some((record, record_at)) = zip64_end(bytes, end_at, wants_64)? {
        directory = Directory { range: record.directory_offset..0, count: record.directory_records };
        size = record.directory_size;
        stop = record_at;
        disks = record.disk_nbr != 0 || record.dir_disk_nbr != 0;
    }
    if disks {
        return Err(Fault::unsupported(
            "end of central directory record",
            end_at,
            "the archive spans several disks",
        ));
    }
    directory.range.end = directory.range.start.saturating_add(size);
    if directory.range.end != stop {
        return Err(Fault::malformed(
            "end of central directory record",
            end_at,
            format!(
                "the central directory is said to be {:#x}..{:#x}, but should end at {stop:#x}: bytes are missing or were inserted",
                directory.range.start, directory.range.end
            ),
        ));
    }
    if directory.count > size / CENTRAL_HEADER {
        return Err(Fault::malformed(
            "end of central directory record",
            end_at,
            format!("{} members do not fit in a directory of {size} bytes", directory.count),
        ));
    }
    Ok(directory)
}

/// The ZIP64 end record and its offset, if there is one. Its locator stands right before the end record.
fn zip64_end(
    bytes: &[u8],
    end_at: u64,
    wanted: bool,
) -> Result<Option<(EndOfCentralDirectory64Record, u64)>> {
    let locator_at = end_at.checked_sub(EndOfCentralDirectory64Locator::LENGTH as u64);
    let locator = locator_at.and_then(|at| {
        let mut input = Partial::new(slice(bytes, &(at..end_at)).ok()?);
        EndOfCentralDirectory64Locator::parser.parse_next(&mut input).ok()
    });
    let (Some(locator_at), Some(locator)) = (locator_at, locator) else {
        // 65535 members or a directory at 4 GiB - 1 need no ZIP64 record, strictly; nobody writes such archives.
        return if wanted {
            Err(Fault::malformed(
                "end of central directory record",
                end_at,
                "a field says ZIP64, but no ZIP64 locator precedes it",
            ))
        } else {
            Ok(None)
        };
    };
    let record_at = locator.directory_offset;
    let record = slice(bytes, &(record_at..locator_at))
        .ok()
        .and_then(|record| EndOfCentralDirectory64Record::parser.parse_next(&mut Partial::new(record)).ok());
    match record {
        Some(record) => Ok(Some((record, record_at))),
        None => Err(Fault::malformed(
            "zip64 end of central directory locator",
            locator_at,
            format!("it points at {record_at:#x}, where no zip64 end record is"),
        )),
    }
}

fn entry(
    bytes: &[u8],
    header: &CentralDirectoryFileHeader<'_>,
    at: u64,
    directory_start: u64,
) -> Result<Entry> {
    let name = member_name(&header.name, at)?;
    let place = || format!("central header of {name:?}");
    if header.flags & (FLAG_ENCRYPTED | FLAG_PATCHED) != 0 {
        return Err(Fault::unsupported(place(), at, "the member is encrypted or patched data"));
    }
    let method = method(header.method).ok_or_else(|| {
        Fault::unsupported(
            place(),
            at,
            format!("compression method {:?}; wheels are stored or deflated", header.method),
        )
    })?;
    let mut size = u64::from(header.uncompressed_size);
    let mut compressed = u64::from(header.compressed_size);
    let mut header_offset = u64::from(header.header_offset);
    let mut wide = extra_parts(&header.extra).find(|part| part.0 == ZIP64_FIELD).map(|part| part.1);
    // Only the fields that are 0xffffffff are there, in this order (APPNOTE 4.5.3).
    for (field, label) in [
        (&mut size, "uncompressed size"),
        (&mut compressed, "compressed size"),
        (&mut header_offset, "header offset"),
    ] {
        if *field == LIMIT_32 {
            let value = wide.and_then(|data| data.split_first_chunk::<8>());
            let Some((value, rest)) = value else {
                return Err(Fault::malformed(place(), at, format!("the ZIP64 field lacks the {label}")));
            };
            *field = u64::from_le_bytes(*value);
            wide = Some(rest);
        }
    }
    let local = local_header(bytes, header_offset, directory_start, &place)?;
    if *local.name != *header.name || self::method(local.method) != Some(method) {
        return Err(Fault::malformed(
            format!("local header of {name:?}"),
            header_offset,
            format!(
                "it names {:?} ({:?}), the central directory {name:?} ({:?})",
                String::from_utf8_lossy(&local.name),
                local.method,
                header.method
            ),
        ));
    }
    let start = header_offset + LOCAL_HEADER + local.name.len() as u64 + local.extra.len() as u64;
    let data = start..start.saturating_add(compressed);
    if data.end > directory_start {
        return Err(Fault::malformed(
            place(),
            at,
            format!(
                "{compressed} bytes from {start:#x} run into the central directory at {directory_start:#x}"
            ),
        ));
    }
    if method == Method::Stored && compressed != size {
        return Err(Fault::malformed(
            place(),
            at,
            format!("stored, but {compressed} bytes are said to be {size} uncompressed"),
        ));
    }
    let attributes = Attributes {
        made_by: u16::from(header.creator_version.version)
            | u16::from(u8::from(header.creator_version.host_system)) << 8,
        time: header.modified.time,
        date: header.modified.date,
        internal: header.internal_attrs,
        external: header.external_attrs,
        central_extra: portable_extra(&header.extra),
        local_extra: portable_extra(&local.extra),
        comment: header.comment.to_vec(),
    };
    Ok(Entry { name, method, crc32: header.crc32, size, header_offset, data, attributes })
}

fn local_header<'a>(
    bytes: &'a [u8],
    offset: u64,
    directory_start: u64,
    place: &dyn Fn() -> String,
) -> Result<LocalFileHeader<'a>> {
    slice(bytes, &(offset..directory_start))
        .ok()
        .and_then(|bytes| LocalFileHeader::parser.parse_next(&mut Partial::new(bytes)).ok())
        .ok_or_else(|| Fault::malformed(place(), offset, "no local header there"))
}

fn method(raw: RawMethod) -> Option<Method> {
    match raw {
        RawMethod::Store => Some(Method::Stored),
        RawMethod::Deflate => Some(Method::Deflated),
        _ => None,
    }
}

/// The name with `/` as separator, if an installer may follow it.
fn member_name(raw: &[u8], at: u64) -> Result<String> {
    let name = std::str::from_utf8(raw).map_err(|_| {
        Fault::unsupported(
            "central header",
            at,
            format!("the name {:?} is not UTF-8", String::from_utf8_lossy(raw)),
        )
    })?;
    let name = name.replace('\\', "/");
    let path = name.strip_suffix('/').unwrap_or(&name);
    let unsafe_part = path.split('/').any(|part| part.is_empty() || part == "." || part == "..");
    // `C:` leads out of any directory on Windows.
    let drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    if unsafe_part || drive || name.contains('\0') {
        return Err(Fault::malformed(
            "central header",
            at,
            format!(
                "the name {name:?} is absolute or on a drive, has an empty, `.` or `..` component, or a NUL"
            ),
        ));
    }
    Ok(name)
}

fn no_overlap(entries: &[Entry]) -> Result<()> {
    let mut spans: Vec<(u64, u64, usize)> = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| (entry.header_offset, entry.data.end, index))
        .collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(Fault::malformed(
                "zip archive",
                pair[1].0,
                format!("members {:?} and {:?} overlap", entries[pair[0].2].name, entries[pair[1].2].name),
            ));
        }
    }
    Ok(())
}

fn slice<'a>(bytes: &'a [u8], range: &Range<u64>) -> Result<&'a [u8]> {
    let start = usize::try_from(range.start).ok();
    let end = usize::try_from(range.end).ok();
    start.zip(end).and_then(|(start, end)| bytes.get(start..end)).ok_or_else(|| {
        Fault::malformed(
            "zip archive",
            range.start,
            format!(
                "{:#x}..{:#x} is not inside the file of {:#x} bytes",
                range.start,
                range.end,
                bytes.len()
            ),
        )
    })
}
