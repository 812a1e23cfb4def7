//! Writes one kpack archive in place: frames as they come, the header at the end.
//!
//! The zip entry that holds the archive needs the CRC-32 of all of it, but the header (TOC offset) and the kernel
//! count are known last. So the checksum of everything behind them runs along and is combined with theirs.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;

use super::item::CutIndex;
use super::sink::Region;
use crate::error::{Error, Result};
use crate::kpack::format::{BLOB_ALIGN, BlobArea, Scheme};
use crate::kpack::toc::Toc;

/// A frame that is coming in parts.
#[derive(Debug)]
struct OpenFrame {
    /// Offset of its first byte.
    start: u64,
    /// Its length so far.
    length: u64,
    crc: crc32fast::Hasher,
}

/// A code object in the archive.
#[derive(Clone, Copy, Debug)]
struct Stored {
    offset: u64,
    length: u64,
    crc32: u32,
    original_size: u64,
}

/// A finished frame that lies in some file.
#[derive(Clone, Copy, Debug)]
pub struct Filed<'a> {
    /// The file.
    pub file: &'a File,
    /// The bytes of the file that it is, in order.
    pub parts: &'a [Range<u64>],
    /// Its CRC-32.
    pub crc32: u32,
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
    /// Length and CRC-32 of what is stored, to the ordinals: equal code objects are stored once.
    known: HashMap<(u64, u32), Vec<u32>>,
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
        let mut frame = match self.open.take() {
            Some(frame) => frame,
            None => OpenFrame { start: self.next_frame(), length: 0, crc: crc32fast::Hasher::new() },
        };
        frame.crc.update(bytes);
        self.region.write_at(bytes, frame.start + frame.length)?;
        frame.length += bytes.len() as u64;
        if more {
            self.open = Some(frame);
            return Ok(());
        }
        let crc32 = frame.crc.finalize();
        let written = self.region.start + frame.start..self.region.start + frame.start + frame.length;
        let filed = Filed { file: &self.region.file, parts: &[written], crc32 };
        // If it is stored already, the next frame overwrites this one.
        let ordinal = match self.known(&filed)? {
            Some(ordinal) => ordinal,
            None => self.end(frame.length, crc32, original_size)?,
        };
        self.ordinals.push((cut, ordinal));
        Ok(())
    }

    /// Stores a copy of a frame as that of `cut`. Cuts come in ascending order.
    pub fn copy(&mut self, cut: CutIndex, original_size: u64, frame: &Filed<'_>) -> Result<()> {
        let ordinal = self.append(original_size, frame)?;
        self.ordinals.push((cut, ordinal));
        Ok(())
    }

    /// Appends a copy of `cut`'s frame as it is stored in `other`. Returns its ordinal here.
    pub fn fill(&mut self, cut: CutIndex, other: &KpackWriter) -> Result<u32> {
        let missing = || Error::io("copy a code object", None, std::io::Error::other("it is in no archive"));
        let stored =
            other.ordinal(cut).and_then(|ordinal| other.stored.get(ordinal as usize)).ok_or_else(missing)?;
        let start = other.region.start + stored.offset;
        let part = start..start + stored.length;
        let frame = Filed { file: &other.region.file, parts: &[part], crc32: stored.crc32 };
        self.append(stored.original_size, &frame)
    }

    fn append(&mut self, original_size: u64, frame: &Filed<'_>) -> Result<u32> {
        if let Some(ordinal) = self.known(frame)? {
            return Ok(ordinal);
        }
        let (start, mut length) = (self.next_frame(), 0);
        for part in frame.parts {
            self.region.copy_from(frame.file, part, start + length)?;
            length += part.end - part.start;
        }
        self.end(length, frame.crc32, original_size)
    }

    /// Where the next frame goes: what [`BlobArea::place`] will say, which needs the frame's length, since that stands
    /// in front of it, or padding does.
    fn next_frame(&self) -> u64 {
        let end = self.area.toc_offset();
        match self.area.scheme() {
            Scheme::ZstdPerKernel => end + 4,
            Scheme::None => end.next_multiple_of(BLOB_ALIGN),
        }
    }

    /// The ordinal of a stored code object with the same bytes as `frame`.
    fn known(&self, frame: &Filed<'_>) -> Result<Option<u32>> {
        let length = frame.parts.iter().map(|part| part.end - part.start).sum();
        for &ordinal in self.known.get(&(length, frame.crc32)).into_iter().flatten() {
            let Some(stored) = self.stored.get(ordinal as usize) else { continue };
            let mut same = true;
            let mut at = stored.offset;
            for part in frame.parts {
                same = same && self.region.equals(at, frame.file, part)?;
                at += part.end - part.start;
            }
            if same {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    /// The next frame is there. Its ordinal.
    fn end(&mut self, length: u64, crc32: u32, original_size: u64) -> Result<u32> {
        let lead_at = self.area.toc_offset();
        let placement = self.area.place(length)?;
        self.region.write_at(&placement.lead, lead_at)?;
        self.crc.update(&placement.lead);
        self.crc.combine(&crc32fast::Hasher::new_with_initial_len(crc32, length));
        self.stored.push(Stored { offset: placement.offset, length, crc32, original_size });
        self.known.entry((length, crc32)).or_default().push(placement.ordinal);
        Ok(placement.ordinal)
    }

    /// The ordinal that `cut` is stored under, and its size.
    pub fn ordinal(&self, cut: CutIndex) -> Option<u32> {
        self.ordinals.binary_search_by_key(&cut, |&(cut, _)| cut).ok().map(|index| self.ordinals[index].1)
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
        Ok(Finished { length, crc32: crc.finalize(), sha256: self.region.sha256(length)? })
    }
}
