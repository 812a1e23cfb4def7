//! Read-only memory maps of input files.
//!
//! A map shows the file as it is *now*: if somebody edits the file while fatwheel runs, the bytes change under
//! it, and if somebody truncates it, touching the lost pages ends the process with SIGBUS. That is the price of
//! reading gigabytes without copying them, and linkers pay it too. [`Map::changed`] compares length and
//! modification time, so that an edit becomes an error before anything is committed.

use std::fs::{File, Metadata};
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use memmap2::Mmap;

/// Whole pages around a range are given back. 64 KiB suits every page size in use, and is what the kernel maps at once.
const GRANULE: usize = 64 << 10;
/// Ranges from this size on are given back by themselves.
const LARGE: usize = 1 << 20;
/// Of smaller ones, so many bytes are collected: giving back interrupts all threads, however little it is.
const COLLECTED: usize = 6 << 20;

/// A mapped regular file.
#[derive(Debug)]
pub struct Map {
    /// `None` for an empty file, which cannot be mapped.
    bytes: Option<Mmap>,
    file: File,
    length: u64,
    modified: Option<SystemTime>,
    /// Bytes in small ranges that are still to be given back.
    collected: AtomicUsize,
}

impl Map {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(File::open(path)?)
    }

    /// Maps an open file.
    pub fn of(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let bytes = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the map is read-only and private to this process's reading. The bytes may change if another
            // process writes to the file; every parser treats them as untrusted and bounds-checks each access, no
            // reference into the map is used as anything but bytes, and `changed` turns an edit into an error.
            Some(unsafe { Mmap::map(&file)? })
        };
        Ok(Self {
            bytes,
            length: metadata.len(),
            modified: modified(&metadata),
            file,
            collected: AtomicUsize::new(0),
        })
    }

    /// Whether the file was edited or truncated since it was mapped.
    pub fn changed(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        Ok(metadata.len() != self.length || modified(&metadata) != self.modified)
    }

    /// The mapped file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Tells the kernel that `range` (bytes of the file) was read and will not be needed soon. The pages leave
    /// this process's resident set, if the range is small some time later; they stay in the page cache.
    pub fn release(&self, range: Range<usize>) {
        let Some(map) = &self.bytes else { return };
        if range.len() >= LARGE {
            let end = range.end.next_multiple_of(GRANULE).min(map.len());
            Self::drop_pages(map, range.start / GRANULE * GRANULE, end);
            return;
        }
        let pages = range.len().next_multiple_of(GRANULE);
        if self.collected.fetch_add(pages, Ordering::Relaxed) + pages >= COLLECTED {
            self.collected.store(0, Ordering::Relaxed);
            // All that is mapped: what another thread is reading just now comes back at the price of a fault.
            Self::drop_pages(map, 0, map.len());
        }
    }

    fn drop_pages(map: &Mmap, start: usize, end: usize) {
        #[cfg(unix)]
        if start < end {
            use memmap2::UncheckedAdvice;
            // SAFETY: the map is file-backed and never written, so a dropped page is read again from the same
            // file when it is next touched: no bytes are lost, which is the hazard of this advice.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        }
        #[cfg(not(unix))]
        let _ = (map, start, end);
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

fn modified(metadata: &Metadata) -> Option<SystemTime> {
    metadata.modified().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn maps_releases_and_notices_changes() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let map = Map::open(file.path()).unwrap();
        map.release(0..map.len());
        for start in 0..200 {
            map.release(start..start + 100);
        }
        assert_eq!(*map, *bytes);
        assert!(!map.changed().unwrap());
        file.write_all(b"more").unwrap();
        file.flush().unwrap();
        assert!(map.changed().unwrap());
    }

    #[test]
    fn an_empty_file_is_empty_and_a_directory_is_no_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Map::open(file.path()).unwrap().is_empty());
        assert_eq!(Map::open(&std::env::temp_dir()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
