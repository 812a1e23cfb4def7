//! Frames that were made while the wheel was still arriving, kept in a file without a name until the archives are
//! open. A frame leaves the file when it is taken, so that no byte is on the disk twice.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::Receiver;

use super::budget::Grant;
use super::item::Compressed;
use super::sink::{read_at, write_at};
use super::spot::Key;
use crate::error::{Error, Result};

/// Bytes read at a time.
const READ: u64 = 256 << 10;

/// The kept frames.
#[derive(Debug)]
pub struct Early {
    file: File,
    /// Where the parts of each frame stand. An empty frame has one empty part.
    frames: Mutex<HashMap<Key, Vec<Range<u64>>>>,
}

impl Early {
    /// Keeps all `frames` in `file`; the cut of each is its index in `keys`, which is complete when they end.
    pub fn keep(file: File, frames: &Receiver<Compressed>, keys: &Mutex<Vec<Key>>) -> Result<Self> {
        let mut kept: HashMap<usize, (Vec<Range<u64>>, bool)> = HashMap::new();
        let mut end = 0;
        for Compressed { cut, bytes, more, grant } in frames {
            write_at(&file, &bytes, end).map_err(|error| Error::io("keep a code object", None, error))?;
            let part = end..end + bytes.len() as u64;
            end = part.end;
            let (parts, complete) = kept.entry(cut).or_default();
            parts.push(part);
            *complete = !more;
            drop(grant);
        }
        let keys = std::mem::take(&mut *keys.lock().unwrap_or_else(PoisonError::into_inner));
        let complete = keys.into_iter().enumerate().filter_map(|(cut, key)| {
            let (parts, complete) = kept.remove(&cut)?;
            complete.then_some((key, parts))
        });
        Ok(Self { file, frames: Mutex::new(complete.collect()) })
    }

    /// Whether the frame is there.
    pub fn has(&self, key: &Key) -> bool {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    /// Hands the frame to `sink` in parts, `true` with all but the last, and forgets it. `acquire` grants the memory
    /// for each part.
    pub fn take(
        &self,
        key: &Key,
        acquire: impl Fn(usize) -> Result<Grant>,
        mut sink: impl FnMut(Vec<u8>, bool, Grant) -> Result<()>,
    ) -> Result<()> {
        let parts = self.frames.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        let parts = parts.ok_or_else(super::cancel::stopped)?;
        let mut left: u64 = parts.iter().map(|part| part.end - part.start).sum();
        if left == 0 {
            return sink(Vec::new(), false, acquire(0)?);
        }
        for part in parts {
            let mut at = part.start;
            while at < part.end {
                let length = (part.end - at).min(READ);
                let grant = acquire(length as usize)?;
                let mut bytes = vec![0; length as usize];
                read_at(&self.file, &mut bytes, at).map_err(|error| Error::io("read back", None, error))?;
                at += length;
                left -= length;
                sink(bytes, left > 0, grant)?;
            }
            free(&self.file, &part);
        }
        Ok(())
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
