//! Writes one kpack archive in place: frames as they come, the header at the end.
//!
//! The zip entry that holds the archive needs the CRC-32 of all of it, but the header (TOC offset) and the kernel
//! count are known last. So the checksum of everything behind them runs along and is combined with theirs.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::item::CutIndex;
use super::sink::Region;
use crate::error::{Error, Result};
use crate::kpack::format::{BLOB_ALIGN, BlobArea, Scheme};
use crate::kpack::toc::Toc;

/// Bytes read back at a time.
const READ: usize = 1 << 20;

/// A frame that is coming in parts.
#[derive(Debug)]
struct OpenFrame {
    /// Offset of its first byte.
    start: u64,
    /// Its length so far.
    length: u64,
    sha256: Sha256,
    crc: crc32fast::Hasher,
}

/// A code object in the archive.
#[derive(Clone, Copy, Debug)]
struct Stored {
    offset: u64,
    length: u64,
    original_size: u64,
}

/// One archive that is being written.
#[derive(Debug)]
pub struct KpackWriter {
    region: Region,
    area: BlobArea,
    /// Of everything behind the prologue.
    crc: crc32fast::Hasher,
    /// Code objects by ordinal.
    stored: Vec<Stored>,
    /// SHA-256 of what is stored, to the ordinal: equal code objects are stored once.
    known: HashMap<[u8; 32], u32>,
    /// Ordinal of each cut, in the order of cuts.
    ordinals: Vec<(CutIndex, u32)>,
    open: Option<OpenFrame>,
}

/// A finished archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Length in bytes.
    pub length: u64,
    /// CRC-32 of all of it.
    pub crc32: u32,
    /// SHA-256 of all of it.
    pub sha256: [u8; 32],
}

impl KpackWriter {
    /// Starts an archive at the start of `region`. `name` is for errors.
    pub fn new(name: String, region: Region, scheme: Scheme) -> Self {
        Self {
            region,
            area: BlobArea::new(name, scheme),
            crc: crc32fast::Hasher::new(),
            stored: Vec::new(),
            known: HashMap::new(),
            ordinals: Vec::new(),
            open: None,
        }
    }

    /// Takes the next bytes of `cut`'s frame; the frame ends with the first call that has not `more`. Cuts come
    /// in ascending order.
    pub fn write(&mut self, cut: CutIndex, original_size: u64, bytes: &[u8], more: bool) -> Result<()> {
        if let Some(ordinal) = self.append(original_size, bytes, more)? {
            self.ordinals.push((cut, ordinal));
        }
        Ok(())
    }

    /// The ordinal, once the frame is whole.
    fn append(&mut self, original_size: u64, bytes: &[u8], more: bool) -> Result<Option<u32>> {
        let mut frame = match self.open.take() {
            Some(frame) => frame,
            None => self.begin(),
        };
        frame.sha256.update(bytes);
        frame.crc.update(bytes);
        self.region.write_at(bytes, frame.start + frame.length)?;
        frame.length += bytes.len() as u64;
        if more {
            self.open = Some(frame);
            return Ok(None);
        }
        self.end(frame, original_size).map(Some)
    }

    fn begin(&self) -> OpenFrame {
        let end = self.area.toc_offset();
        // What BlobArea::place will say, which needs the frame's length: that stands in front of it, or padding does.
        let start = match self.area.scheme() {
            Scheme::ZstdPerKernel => end + 4,
            Scheme::None => end.next_multiple_of(BLOB_ALIGN),
        };
        OpenFrame { start, length: 0, sha256: Sha256::new(), crc: crc32fast::Hasher::new() }
    }

    fn end(&mut self, frame: OpenFrame, original_size: u64) -> Result<u32> {
        let digest: [u8; 32] = frame.sha256.finalize().into();
        if let Some(&ordinal) = self.known.get(&digest) {
            // Stored already: the next frame overwrites this one.
            return Ok(ordinal);
        }
        let lead_at = self.area.toc_offset();
        let placement = self.area.place(frame.length)?;
        debug_assert_eq!(placement.offset, frame.start);
        self.region.write_at(&placement.lead, lead_at)?;
        self.crc.update(&placement.lead);
        self.crc.combine(&frame.crc);
        self.stored.push(Stored { offset: placement.offset, length: frame.length, original_size });
        self.known.insert(digest, placement.ordinal);
        Ok(placement.ordinal)
    }

    /// The ordinal that `cut` is stored under, and its size.
    pub fn ordinal(&self, cut: CutIndex) -> Option<u32> {
        self.ordinals.binary_search_by_key(&cut, |&(cut, _)| cut).ok().map(|index| self.ordinals[index].1)
    }

    /// Appends a copy of `cut`'s frame as it is stored in `other`. Returns its ordinal here.
    pub fn copy_frame(&mut self, cut: CutIndex, other: &KpackWriter) -> Result<u32> {
        let missing = || Error::io("copy a code object", None, std::io::Error::other("it is in no archive"));
        let stored =
            other.ordinal(cut).and_then(|ordinal| other.stored.get(ordinal as usize)).ok_or_else(missing)?;
        let mut buffer = vec![0; READ.min(usize::try_from(stored.length).unwrap_or(READ))];
        let mut done = 0;
        loop {
            let take = usize::try_from(stored.length - done).unwrap_or(READ).min(buffer.len());
            other.region.read_at(&mut buffer[..take], stored.offset + done)?;
            done += take as u64;
            if let Some(ordinal) = self.append(stored.original_size, &buffer[..take], done < stored.length)? {
                return Ok(ordinal);
            }
        }
    }

    /// Code objects stored so far.
    pub fn count(&self) -> usize {
        self.stored.len()
    }

    /// Where the archive lies.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Writes TOC, count and header, then reads the archive back for its SHA-256.
    pub fn finish(self, toc: Toc) -> Result<Finished> {
        let toc_offset = self.area.toc_offset();
        let mut bytes = Vec::new();
        let written = toc.finish(&self.area)?.write_to(&mut bytes);
        written.map_err(|error| Error::io("write a table of contents", None, error))?;
        self.region.write_at(&bytes, toc_offset)?;
        let mut head = self.area.prologue();
        for (offset, patch) in self.area.patches() {
            // Patches lie within the prologue.
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            if let Some(place) = head.get_mut(at..at.saturating_add(patch.len())) {
                place.copy_from_slice(&patch);
            }
        }
        self.region.write_at(&head, 0)?;
        let length = toc_offset + bytes.len() as u64;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head);
        crc.combine(&self.crc);
        crc.update(&bytes);
        drop(bytes);
        let mut sha256 = Sha256::new();
        let mut buffer = vec![0; READ.min(usize::try_from(length).unwrap_or(READ))];
        let mut done = 0;
        while done < length {
            let take = usize::try_from(length - done).unwrap_or(READ).min(buffer.len());
            self.region.read_at(&mut buffer[..take], done)?;
            sha256.update(&buffer[..take]);
            done += take as u64;
        }
        Ok(Finished { length, crc32: crc.finalize(), sha256: sha256.finalize().into() })
    }
}
