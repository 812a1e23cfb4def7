//! Frames that were made before the plan was, kept in a file without a name until the archives are open. A frame
//! leaves the file when archives have it, so that no byte is on the disk twice.

use std::collections::HashMap;
use std::fs::File;
use std::ops::{Deref, Range};
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::Receiver;

use super::archive::Filed;
use super::item::{Compressed, Frame};
use super::sink::write_at;
use super::spot::Key;
use crate::error::{Error, Result};

/// A kept frame.
#[derive(Debug)]
pub struct KeptFrame {
    /// Its bytes of the file; nearly all frames are in one part.
    parts: SmallParts,
    crc32: u32,
}

#[derive(Debug)]
enum SmallParts {
    One([Range<u64>; 1]),
    Many(Vec<Range<u64>>),
}

impl SmallParts {
    fn push(&mut self, part: Range<u64>) {
        match self {
            Self::One([first]) => *self = Self::Many(vec![first.clone(), part]),
            Self::Many(parts) => parts.push(part),
        }
    }
}

impl Deref for SmallParts {
    type Target = [Range<u64>];

    fn deref(&self) -> &[Range<u64>] {
        match self {
            Self::One(part) => part,
            Self::Many(parts) => parts,
        }
    }
}

/// The kept frames.
#[derive(Debug)]
pub struct Early {
    file: File,
    frames: Mutex<HashMap<Key, KeptFrame>>,
}

impl Early {
    /// Keeps all `frames` in `file`; the cut of each is its index in `keys`, which is complete when they end.
    pub fn keep(file: File, frames: &Receiver<Compressed>, keys: &Mutex<Vec<Key>>) -> Result<Self> {
        let mut kept: Vec<Option<KeptFrame>> = Vec::new();
        // Large ones that have begun.
        let mut open: HashMap<usize, crc32fast::Hasher> = HashMap::new();
        let mut end = 0;
        for Compressed { cut, frame } in frames {
            // Nothing else comes from workers.
            let Frame::Bytes { bytes, more, grant } = frame else { continue };
            write_at(&file, &bytes, end).map_err(|error| Error::io("keep a code object", None, error))?;
            let part = end..end + bytes.len() as u64;
            end = part.end;
            let mut crc = open.remove(&cut).unwrap_or_default();
            crc.update(&bytes);
            drop((bytes, grant));
            if kept.len() <= cut {
                kept.resize_with(cut + 1, || None);
            }
            match &mut kept[cut] {
                Some(frame) => frame.parts.push(part),
                none => *none = Some(KeptFrame { parts: SmallParts::One([part]), crc32: 0 }),
            }
            if more {
                open.insert(cut, crc);
            } else if let Some(frame) = &mut kept[cut] {
                frame.crc32 = crc.finalize();
            }
        }
        let complete = std::mem::take(&mut *keys.lock().unwrap_or_else(PoisonError::into_inner))
            .into_iter()
            .zip(kept)
            .enumerate()
            .filter_map(|(cut, (key, frame))| {
                let frame = frame.filter(|_| !open.contains_key(&cut))?;
                Some((key, frame))
            });
        Ok(Self { file, frames: Mutex::new(complete.collect()) })
    }

    /// Whether the frame is there.
    pub fn has(&self, key: &Key) -> bool {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    /// Takes the frame out of the list. It stays in the file until it is [freed](Self::free).
    pub fn take(&self, key: &Key) -> Result<KeptFrame> {
        let frame = self.frames.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        frame.ok_or_else(super::cancel::stopped)
    }

    /// The frame as it lies in the file.
    pub fn filed<'a>(&'a self, frame: &'a KeptFrame) -> Filed<'a> {
        Filed { file: &self.file, parts: &frame.parts, crc32: frame.crc32 }
    }

    /// Gives the disk blocks of a frame back.
    pub fn free(&self, frame: &KeptFrame) {
        for part in &*frame.parts {
            free(&self.file, part);
        }
    }
}

/// Gives the disk blocks of a range back. Where that cannot be, they go with the file.
fn free(file: &File, range: &Range<u64>) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        if range.start < range.end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(file, flags, range.start, range.end - range.start);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, range);
}
