//! Reads kpack archives, strictly: for tests and for verification of what was written.
//!
//! Stricter than the shipped loader, which skips what it does not know. Refused here, each with its place: unknown
//! or missing keys, a key twice, values of another type, bytes behind the table of contents, ordinals and ranges
//! that do not exist, gaps in a zstd blob area, frames without or with another content size, targets that are not
//! listed, and everything over the loader's limits.
//!
//! Memory: proportional to the table of contents; counts in the file are not trusted for allocations, and a code
//! object is decompressed to no more than its stated size.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io::Read as _;
use std::ops::Range;

use super::format::{HEADER_LEN, MAGIC, MAX_KERNELS, MAX_ZSTD_LEN, Scheme, VERSION};
use crate::arch::TargetId;
use crate::fatbin::{HeaderParse, zstd_frame};
use crate::fault::{Fault, Result};

/// Which code object answers, and its uncompressed size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelEntry {
    /// The code object.
    pub ordinal: u32,
    /// Its uncompressed size in bytes.
    pub original_size: u64,
}

/// An archive that has been read.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// The group that the archive belongs to.
    pub group: String,
    /// The archive's name for its architecture.
    pub family: String,
    /// What the archive lists, in its order.
    pub targets: Vec<TargetId>,
    /// How code objects are compressed.
    pub scheme: Scheme,
    /// The table of contents: kernel key, target, entry.
    pub kernels: BTreeMap<String, BTreeMap<TargetId, KernelEntry>>,
    /// Where each code object is stored, by ordinal.
    stored: Vec<Range<usize>>,
}

impl<'a> Reader<'a> {
    /// Reads the header and the table of contents of the archive that `bytes` is, from the first byte to the last.
    ///
    /// # Errors
    /// A [`Fault`] for what this module refuses.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let toc_offset = parse_header(bytes)?;
        let mut cursor = Cursor { bytes, at: toc_offset };
        let toc = RawToc::parse(&mut cursor)?;
        if cursor.at != bytes.len() {
            return Err(
                cursor.fault(format!("{} bytes follow the table of contents", bytes.len() - cursor.at))
            );
        }
        let stored = toc.stored(bytes, toc_offset)?;
        let RawToc { group, family, targets, scheme, kernels, .. } = toc;
        let targets = targets.iter().map(|target| canonical(target)).collect::<Result<Vec<_>>>()?;
        let listed: HashSet<_> = targets.iter().copied().collect();
        if listed.len() != targets.len() {
            return Err(malformed("gfx_arches", "lists a target twice"));
        }
        let mut read = BTreeMap::new();
        for (key, entries) in kernels {
            let mut by_target = BTreeMap::new();
            for (target, entry) in entries {
                let target = canonical(&target)?;
                if !listed.contains(&target) {
                    return Err(malformed(
                        &key,
                        &format!("has code for {target}, which gfx_arches does not list"),
                    ));
                }
                if usize::try_from(entry.ordinal).is_ok_and(|ordinal| ordinal >= stored.len()) {
                    return Err(malformed(
                        &key,
                        &format!("names the code object {} of {}", entry.ordinal, stored.len()),
                    ));
                }
                by_target.insert(target, entry);
            }
            read.insert(key, by_target);
        }
        Ok(Self { bytes, group, family, targets, scheme, kernels: read, stored })
    }

    /// Number of code objects.
    pub fn len(&self) -> usize {
        self.stored.len()
    }

    /// Whether there are no code objects.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// The code object for exactly this kernel key and target, or `None` if there is no such entry.
    ///
    /// # Errors
    /// A [`Fault`] if the code object does not have its stated size or cannot be decompressed.
    pub fn get(&self, key: &str, target: TargetId) -> Result<Option<Cow<'a, [u8]>>> {
        let Some(entry) = self.kernels.get(key).and_then(|entries| entries.get(&target)) else {
            return Ok(None);
        };
        let stored =
            usize::try_from(entry.ordinal).ok().and_then(|ordinal| self.stored.get(ordinal)).cloned();
        let Some(stored) = stored.and_then(|range| self.bytes.get(range)) else {
            return Err(malformed(key, "names a code object that is not there"));
        };
        let code = match self.scheme {
            Scheme::None => Cow::Borrowed(stored),
            Scheme::ZstdPerKernel => Cow::Owned(decompress(stored, entry.original_size, key)?),
        };
        if code.len() as u64 != entry.original_size {
            let (size, stated) = (code.len(), entry.original_size);
            return Err(malformed(
                key,
                &format!("has code of {size} bytes for {target}, {stated} are stated"),
            ));
        }
        Ok(Some(code))
    }
}

fn malformed(place: &str, message: &str) -> Fault {
    Fault::malformed(format!("kpack archive, {place}"), None, message)
}

/// A target ID in canonical spelling; the loader compares text.
fn canonical(text: &str) -> Result<TargetId> {
    let target = TargetId::parse(text)?;
    if target.to_string() == text {
        Ok(target)
    } else {
        Err(malformed("target ID", &format!("{text:?} should be spelled {target}")))
    }
}

/// Checks the header and returns the offset of the table of contents.
fn parse_header(bytes: &[u8]) -> Result<usize> {
    let fault = |offset: u64, message: String| Fault::malformed("kpack header", offset, message);
    let short = || fault(0, format!("{} bytes are too few for a header", bytes.len()));
    let (header, _) = bytes.split_at_checked(HEADER_LEN as usize).ok_or_else(short)?;
    let (magic, rest) = header.split_first_chunk::<4>().ok_or_else(short)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let (offset, padding) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    if magic != MAGIC {
        return Err(fault(0, format!("starts with \"{}\" instead of KPAK", magic.escape_ascii())));
    }
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(fault(4, format!("has version {version}; only {VERSION} is known")));
    }
    if padding.iter().any(|&byte| byte != 0) {
        return Err(fault(16, "is not padded with zeros".into()));
    }
    let offset = u64::from_le_bytes(*offset);
    let length = bytes.len();
    usize::try_from(offset)
        .ok()
        .filter(|&at| offset >= HEADER_LEN && at < length)
        .ok_or_else(|| fault(8, format!("puts the table of contents at {offset:#x} of {length} bytes")))
}

fn decompress(frame: &[u8], original_size: u64, key: &str) -> Result<Vec<u8>> {
    let damaged = |error: std::io::Error| malformed(key, &format!("has a damaged zstd frame: {error}"));
    let mut decoder = zstd::stream::read::Decoder::with_buffer(frame).map_err(damaged)?.single_frame();
    decoder.window_log_max(crate::fatbin::ccob::MAX_WINDOW_LOG).map_err(damaged)?;
    let mut code = Vec::new();
    // One byte more would show that the frame decodes to more than it says.
    decoder.by_ref().take(original_size.saturating_add(1)).read_to_end(&mut code).map_err(damaged)?;
    if !decoder.finish().is_empty() {
        return Err(malformed(key, "has bytes behind its zstd frame"));
    }
    Ok(code)
}

/// The table of contents as it is stored.
struct RawToc {
    group: String,
    family: String,
    targets: Vec<String>,
    scheme: Scheme,
    kernels: BTreeMap<String, BTreeMap<String, KernelEntry>>,
    zstd: Option<(u64, u64)>,
    blobs: Option<Vec<(u64, u64)>>,
}

impl RawToc {
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self> {
        let (mut version, mut group, mut family, mut targets) = (None, None, None, None);
        let (mut scheme, mut kernels, mut blobs) = (None, None, None);
        let (mut zstd_offset, mut zstd_size) = (None, None);
        cursor.map(|cursor, key| {
            match key {
                "format_version" => version = Some(cursor.uint()?),
                "group_name" => group = Some(cursor.str()?.to_owned()),
                "gfx_arch_family" => family = Some(cursor.str()?.to_owned()),
                "gfx_arches" => targets = Some(cursor.array(|cursor| Ok(cursor.str()?.to_owned()))?),
                "compression_scheme" => scheme = Some(cursor.scheme()?),
                "zstd_offset" => zstd_offset = Some(cursor.uint()?),
                "zstd_size" => zstd_size = Some(cursor.uint()?),
                "blobs" => blobs = Some(cursor.array(Cursor::blob)?),
                "toc" => kernels = Some(cursor.kernels()?),
                _ => return Err(cursor.fault(format!("the key {key:?} is unknown"))),
            }
            Ok(())
        })?;
        if cursor.required("format_version", version)? != u64::from(VERSION) {
            return Err(cursor.fault("format_version is not 1".into()));
        }
        Ok(Self {
            group: cursor.required("group_name", group)?,
            family: cursor.required("gfx_arch_family", family)?,
            targets: cursor.required("gfx_arches", targets)?,
            scheme: cursor.required("compression_scheme", scheme)?,
            kernels: cursor.required("toc", kernels)?,
            zstd: zstd_offset.zip(zstd_size),
            blobs,
        })
    }

    /// Where each code object is, by ordinal.
    fn stored(&self, bytes: &[u8], toc_offset: usize) -> Result<Vec<Range<usize>>> {
        let ranges = match (self.scheme, self.zstd, &self.blobs) {
            (Scheme::None, None, Some(blobs)) => uncompressed_ranges(blobs, toc_offset)?,
            (Scheme::ZstdPerKernel, Some((offset, size)), None) => {
                zstd_ranges(bytes, offset, size, toc_offset)?
            }
            _ => {
                return Err(malformed(
                    "table of contents",
                    "has not exactly the keys of its compression scheme",
                ));
            }
        };
        if ranges.len() as u64 > MAX_KERNELS {
            return Err(malformed("blob area", &format!("has more than {MAX_KERNELS} code objects")));
        }
        Ok(ranges)
    }
}

fn uncompressed_ranges(blobs: &[(u64, u64)], toc_offset: usize) -> Result<Vec<Range<usize>>> {
    let range = |&(offset, size): &(u64, u64)| {
        let start = usize::try_from(offset).ok().filter(|_| offset >= HEADER_LEN);
        let size = usize::try_from(size).ok();
        let end = start.zip(size).and_then(|(start, size)| start.checked_add(size));
        match (start, end) {
            (Some(start), Some(end)) if end <= toc_offset => Ok(start..end),
            _ => Err(malformed("blobs", &format!("{size:?} bytes at {offset:#x} are not in the blob area"))),
        }
    };
    blobs.iter().map(range).collect()
}

fn zstd_ranges(bytes: &[u8], offset: u64, size: u64, toc_offset: usize) -> Result<Vec<Range<usize>>> {
    let place = "zstd blob area";
    if offset != HEADER_LEN || size > MAX_ZSTD_LEN || offset.checked_add(size) != Some(toc_offset as u64) {
        let message = format!("{size} bytes at {offset:#x} do not fill the space up to {toc_offset:#x}");
        return Err(malformed(place, &message));
    }
    let word = |at: usize| {
        let word = bytes.get(..toc_offset).and_then(|area| area.get(at..)?.first_chunk());
        word.map(|word| u32::from_le_bytes(*word)).ok_or_else(|| malformed(place, "ends inside a size"))
    };
    let mut at = HEADER_LEN as usize;
    let count = word(at)?;
    at += 4;
    let mut ranges = Vec::new();
    for ordinal in 0..count {
        let size = word(at)? as usize;
        let range = at + 4..at + 4 + size;
        let frame = bytes.get(..toc_offset).and_then(|area| area.get(range.clone()));
        let Some(frame) = frame else {
            return Err(malformed(place, &format!("the frame {ordinal} ends behind it")));
        };
        match zstd_frame::FrameHeader::parse(frame)? {
            HeaderParse::Complete(header) if header.content_size.is_some() => {}
            _ => {
                return Err(malformed(
                    place,
                    &format!("the frame {ordinal} does not carry its content size"),
                ));
            }
        }
        at = range.end;
        ranges.push(range);
    }
    if at == toc_offset { Ok(ranges) } else { Err(malformed(place, "has bytes behind its last frame")) }
}

/// Walks MessagePack.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn fault(&self, message: String) -> Fault {
        Fault::malformed("kpack table of contents", self.at as u64, message)
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.fault(format!("{key} is missing")))
    }

    /// Reads one thing with a function of rmp and moves behind it.
    fn read<T, E: std::fmt::Display>(
        &mut self,
        what: &str,
        read: impl FnOnce(&mut &'a [u8]) -> std::result::Result<T, E>,
    ) -> Result<T> {
        let before = self.bytes.get(self.at..).unwrap_or_default();
        let mut rest = before;
        match read(&mut rest) {
            Ok(value) => {
                self.at += before.len() - rest.len();
                Ok(value)
            }
            Err(error) => Err(self.fault(format!("{what} was expected: {error}"))),
        }
    }

    fn uint(&mut self) -> Result<u64> {
        self.read("an unsigned integer", rmp::decode::read_int::<u64, _>)
    }

    fn str(&mut self) -> Result<&'a str> {
        let length = self.read("a string", rmp::decode::read_str_len)? as usize;
        let text = self.at.checked_add(length).and_then(|end| self.bytes.get(self.at..end));
        match text.map(std::str::from_utf8) {
            Some(Ok(text)) => {
                self.at += length;
                Ok(text)
            }
            Some(Err(_)) => Err(self.fault("the string is not UTF-8".into())),
            None => Err(self.fault(format!("the string of {length} bytes ends behind the file"))),
        }
    }

    fn array<T>(&mut self, mut element: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let length = self.read("an array", rmp::decode::read_array_len)?;
        let mut elements = Vec::new();
        for _ in 0..length {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    /// Calls `value` to read the value for each key; no key comes twice.
    fn map(&mut self, mut value: impl FnMut(&mut Self, &'a str) -> Result<()>) -> Result<()> {
        let length = self.read("a map", rmp::decode::read_map_len)?;
        let mut seen = HashSet::new();
        for _ in 0..length {
            let key = self.str()?;
            if !seen.insert(key) {
                return Err(self.fault(format!("the key {key:?} is there twice")));
            }
            value(self, key)?;
        }
        Ok(())
    }

    fn scheme(&mut self) -> Result<Scheme> {
        let name = self.str()?;
        let known = [Scheme::None, Scheme::ZstdPerKernel].into_iter().find(|scheme| scheme.as_str() == name);
        known.ok_or_else(|| self.fault(format!("the compression scheme {name:?} is unknown")))
    }

    fn blob(&mut self) -> Result<(u64, u64)> {
        let (mut offset, mut size) = (None, None);
        self.map(|cursor, key| {
            match key {
                "offset" => offset = Some(cursor.uint()?),
                "size" => size = Some(cursor.uint()?),
                _ => return Err(cursor.fault(format!("the key {key:?} is unknown"))),
            }
            Ok(())
        })?;
        Ok((self.required("offset", offset)?, self.required("size", size)?))
    }

    fn kernels(&mut self) -> Result<BTreeMap<String, BTreeMap<String, KernelEntry>>> {
        let mut kernels = BTreeMap::new();
        self.map(|cursor, kernel| {
            let mut entries = BTreeMap::new();
            cursor.map(|cursor, target| {
                entries.insert(target.to_owned(), cursor.entry()?);
                Ok(())
            })?;
            kernels.insert(kernel.to_owned(), entries);
            Ok(())
        })?;
        Ok(kernels)
    }

    fn entry(&mut self) -> Result<KernelEntry> {
        let (mut kind, mut ordinal, mut original_size) = (None, None, None);
        self.map(|cursor, key| {
            match key {
                "type" => kind = Some(cursor.str()?),
                "ordinal" => ordinal = Some(cursor.uint()?),
                "original_size" => original_size = Some(cursor.uint()?),
                _ => return Err(cursor.fault(format!("the key {key:?} is unknown"))),
            }
            Ok(())
        })?;
        let ordinal = self.required("ordinal", ordinal)?;
        let ordinal = u32::try_from(ordinal)
            .map_err(|_| self.fault(format!("the ordinal {ordinal} is out of range")))?;
        match self.required("type", kind)? {
            "hsaco" => {
                Ok(KernelEntry { ordinal, original_size: self.required("original_size", original_size)? })
            }
            kind => Err(self.fault(format!("the type {kind:?} is unknown"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kpack::{BlobArea, Toc};

    fn target(text: &str) -> TargetId {
        TargetId::parse(text).unwrap()
    }

    /// Writes an archive as the pipeline does: in order, then the patches. Entries are binary, index, target and
    /// ordinal.
    fn write(
        scheme: Scheme,
        targets: &[&str],
        codes: &[Vec<u8>],
        entries: &[(u32, u32, &str, u32)],
    ) -> Vec<u8> {
        let mut area = BlobArea::new("g_x.kpack", scheme);
        let mut bytes = area.prologue();
        for code in codes {
            let stored = match scheme {
                Scheme::None => code.clone(),
                Scheme::ZstdPerKernel => zstd::bulk::compress(code, 3).unwrap(),
            };
            let placement = area.place(stored.len() as u64).unwrap();
            bytes.extend(placement.lead);
            assert_eq!(bytes.len() as u64, placement.offset);
            bytes.extend(stored);
        }
        assert_eq!(bytes.len() as u64, area.toc_offset());
        let targets: Vec<_> = targets.iter().map(|text| target(text)).collect();
        let mut toc = Toc::new("g", "x", &targets);
        toc.add_binary("a.so");
        toc.add_binary("lib/b.so");
        for &(binary, index, name, ordinal) in entries {
            let size = codes.get(ordinal as usize).map_or(0, Vec::len) as u64;
            toc.add(binary, index, target(name), ordinal, size).unwrap();
        }
        toc.finish(&area).unwrap().write_to(&mut bytes).unwrap();
        for (offset, patch) in area.patches() {
            bytes[offset as usize..][..patch.len()].copy_from_slice(&patch);
        }
        bytes
    }

    fn example(scheme: Scheme) -> Vec<u8> {
        write(
            scheme,
            &["gfx90a", "gfx90a:xnack+"],
            &[b"first".to_vec(), vec![], vec![7; 100_000]],
            &[
                (0, 0, "gfx90a", 0),
                (0, 0, "gfx90a:xnack+", 0),
                (0, 1, "gfx90a", 1),
                (1, 0, "gfx90a:xnack+", 2),
            ],
        )
    }

    #[test]
    fn written_archives_are_read_back() {
        for scheme in [Scheme::None, Scheme::ZstdPerKernel] {
            let bytes = example(scheme);
            let reader = Reader::parse(&bytes).unwrap();
            assert_eq!((reader.group.as_str(), reader.family.as_str(), reader.scheme), ("g", "x", scheme));
            assert_eq!(reader.targets, [target("gfx90a"), target("gfx90a:xnack+")]);
            assert_eq!((reader.len(), reader.kernels.len()), (3, 3));
            let get = |key: &str, name: &str| reader.get(key, target(name)).unwrap().map(Cow::into_owned);
            assert_eq!(get("a.so#0", "gfx90a"), Some(b"first".to_vec()));
            assert_eq!(get("a.so#0", "gfx90a:xnack+"), Some(b"first".to_vec()));
            assert_eq!(get("a.so#1", "gfx90a"), Some(vec![]));
            assert_eq!(get("a.so#1", "gfx90a:xnack+"), None);
            assert_eq!(get("lib/b.so#0", "gfx90a:xnack+"), Some(vec![7; 100_000]));
            assert_eq!(get("lib/b.so#1", "gfx90a"), None);
        }
    }

    /// The example with one replacement of equal length in its table of contents.
    fn patched(scheme: Scheme, from: &[u8], to: &[u8]) -> Vec<u8> {
        assert_eq!(from.len(), to.len());
        let mut bytes = example(scheme);
        let at = bytes.windows(from.len()).rposition(|window| window == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    }

    #[test]
    fn refusals() {
        let refused = |bytes: &[u8]| Reader::parse(bytes).unwrap_err().to_string();
        let zstd = Scheme::ZstdPerKernel;
        for (bytes, message) in [
            (patched(zstd, b"KPAK", b"KPAC"), "instead of KPAK"),
            (patched(zstd, b"KPAK\x01", b"KPAK\x02"), "version 2"),
            (patched(zstd, b"hsaco", b"hsacs"), "type \"hsacs\" is unknown"),
            (patched(zstd, b"group_name", b"group_nime"), "key \"group_nime\" is unknown"),
            (patched(zstd, b"zstd-per", b"zstd-pur"), "compression scheme"),
            (patched(zstd, b"zstd_size", b"zstd_sice"), "unknown"),
            (patched(zstd, b"a.so#1", b"a.so#0"), "\"a.so#0\" is there twice"),
            (patched(zstd, b"ordinal\x02", b"ordinal\x03"), "code object 3 of 3"),
            (patched(zstd, b"gfx90a:xnack+\x83", b"gfx90a:xnack-\x83"), "gfx_arches does not list"),
            (patched(zstd, b"gfx90a:xnack+\x83", b"gfx90a-xnack+\x83"), "should be spelled"),
            (patched(zstd, b"format_version\x01", b"format_version\x02"), "not 1"),
            (patched(zstd, b"zstd_offset\x40", b"zstd_offset\x41"), "do not fill"),
            (patched(Scheme::None, b"offset\x40", b"offset\x3f"), "not in the blob area"),
            (
                patched(zstd, b"\x28\xb5\x2f\xfd\x20\x05", b"\x28\xb5\x2f\xfd\x00\x50"),
                "carry its content size",
            ),
        ] {
            assert!(refused(&bytes).contains(message), "{message}: {}", refused(&bytes));
        }
        let mut longer = example(zstd);
        longer.push(0);
        assert!(refused(&longer).contains("1 bytes follow"));
        assert!(refused(b"KPAK").contains("too few"));
        let mut padded = example(zstd);
        padded[20] = 1;
        assert!(refused(&padded).contains("padded"));
    }

    #[test]
    fn wrong_sizes_and_damaged_frames_are_found() {
        for scheme in [Scheme::None, Scheme::ZstdPerKernel] {
            let bytes = patched(scheme, b"original_size\x05", b"original_size\x04");
            let reader = Reader::parse(&bytes).unwrap();
            let fault = reader.get("a.so#0", target("gfx90a:xnack+")).unwrap_err();
            assert!(fault.message.contains("has code of 5 bytes for gfx90a:xnack+, 4 are stated"), "{fault}");
        }
        let bytes = patched(Scheme::ZstdPerKernel, b"\x29\0\0first", b"\x2f\0\0first");
        let reader = Reader::parse(&bytes).unwrap();
        assert!(reader.get("a.so#0", target("gfx90a")).unwrap_err().message.contains("damaged"));
    }

    proptest! {
        #[test]
        fn damage_never_panics(
            zstd: bool, edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = example(if zstd { Scheme::ZstdPerKernel } else { Scheme::None });
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(reader) = Reader::parse(&bytes) {
                for (key, entries) in &reader.kernels {
                    for &target in entries.keys() {
                        let _ = reader.get(key, target);
                    }
                }
            }
        }
    }
}
