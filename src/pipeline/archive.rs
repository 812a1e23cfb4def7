//! Writes one kpack archive in place: frames as they come, the header at the end.
//!
//! The zip entry that holds the archive needs the CRC-32 of all of it, but the header (TOC offset) and the kernel
//! count are known last. So the checksum of everything behind them runs along and is combined with theirs.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::item::CutIndex;
use super::sink::Region;
use crate::error::{Error, Result};
use crate::kpack::format;
use crate::kpack::toc::{Stored, Toc};

/// Bytes read back at a time.
const READ: usize = 1 << 20;

/// A frame that is coming in parts.
#[derive(Debug)]
struct OpenFrame {
    start: u64,
    crc_before: crc32fast::Hasher,
    digest: Sha256,
    /// Checksum of the frame alone: its length stands before it and is known at the end.
    crc: crc32fast::Hasher,
}

/// One archive that is being written.
#[derive(Debug)]
pub struct KpackWriter {
    /// For errors.
    name: String,
    region: Region,
    zstd: bool,
    /// Where the next byte goes, from the archive's start.
    at: u64,
    /// Of everything behind the header and the count.
    crc: crc32fast::Hasher,
    /// Stored objects by ordinal.
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
    /// Starts an archive at the start of `region`.
    pub fn new(name: String, region: Region, zstd: bool) -> Self {
        let at = if zstd { format::FIRST_FRAME } else { format::BLOB_OFFSET };
        Self {
            name,
            region,
            zstd,
            at,
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
        frame.digest.update(bytes);
        frame.crc.update(bytes);
        self.region.write_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        if more {
            self.open = Some(frame);
            return Ok(None);
        }
        self.end(frame, original_size).map(Some)
    }

    fn begin(&mut self) -> OpenFrame {
        let frame = OpenFrame {
            start: self.at,
            crc_before: self.crc.clone(),
            digest: Sha256::new(),
            crc: crc32fast::Hasher::new(),
        };
        if self.zstd {
            self.at += format::FRAME_PREFIX;
        }
        frame
    }

    fn end(&mut self, frame: OpenFrame, original_size: u64) -> Result<u32> {
        let digest: [u8; 32] = frame.digest.finalize().into();
        if let Some(&ordinal) = self.known.get(&digest) {
            // Stored already: the next frame overwrites this one.
            self.at = frame.start;
            self.crc = frame.crc_before;
            return Ok(ordinal);
        }
        let ordinal = u32::try_from(self.stored.len()).unwrap_or(u32::MAX);
        let data_start = frame.start + if self.zstd { format::FRAME_PREFIX } else { 0 };
        let size = self.at - data_start;
        if self.zstd {
            let prefix = format::frame_prefix(&self.name, size)?;
            self.region.write_at(&prefix, frame.start)?;
            self.crc.update(&prefix);
        }
        self.crc.combine(&frame.crc);
        self.stored.push(Stored { offset: data_start, size, original_size });
        format::check_limits(&self.name, self.zstd, self.at - format::BLOB_OFFSET, self.stored.len() as u64)?;
        self.known.insert(digest, ordinal);
        Ok(ordinal)
    }

    /// The ordinal that `cut` is stored under.
    pub fn ordinal(&self, cut: CutIndex) -> Option<u32> {
        self.ordinals.binary_search_by_key(&cut, |&(cut, _)| cut).ok().map(|index| self.ordinals[index].1)
    }

    /// Appends a copy of `cut`'s frame as it is stored in `other`.
    pub fn copy_frame(&mut self, cut: CutIndex, other: &KpackWriter) -> Result<u32> {
        let missing = || Error::io("copy a code object", None, std::io::Error::other("it is in no archive"));
        let stored = other.ordinal(cut).and_then(|ordinal| other.stored.get(ordinal as usize)).ok_or_else(missing)?;
        let mut buffer = vec![0; READ.min(usize::try_from(stored.size).unwrap_or(READ))];
        let mut done = 0;
        loop {
            let take = usize::try_from(stored.size - done).unwrap_or(READ).min(buffer.len());
            other.region.read_at(&mut buffer[..take], stored.offset + done)?;
            done += take as u64;
            if let Some(ordinal) = self.append(stored.original_size, &buffer[..take], done < stored.size)? {
                return Ok(ordinal);
            }
        }
    }

    /// Objects stored so far.
    pub fn count(&self) -> usize {
        self.stored.len()
    }

    /// Where the archive lies.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Writes TOC, count and header, then reads the archive back for its SHA-256.
    pub fn finish(self, toc: &Toc) -> Result<Finished> {
        let blob_end = self.at;
        let toc = toc.encode(&self.stored, blob_end - format::BLOB_OFFSET);
        self.region.write_at(&toc, blob_end)?;
        let mut head = format::header(blob_end).to_vec();
        if self.zstd {
            head.extend_from_slice(&(self.stored.len() as u32).to_le_bytes()); // within the limit that was checked
        }
        self.region.write_at(&head, 0)?;
        let length = blob_end + toc.len() as u64;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head);
        crc.combine(&self.crc);
        crc.update(&toc);
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
