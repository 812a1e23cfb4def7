//! Keeps chosen ranges of a file that streams by, so that it can be re-parsed afterwards.

use std::ops::Range;

use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// The captured ranges of one file. Readable (see [`ReadAt`]) inside the ranges only.
#[derive(Debug, Default)]
pub struct Capture {
    length: u64,
    /// Ascending, not overlapping, with the bytes captured so far.
    ranges: Vec<(Range<u64>, Vec<u8>)>,
    position: u64,
}

impl Capture {
    /// Will keep `ranges` (any order, overlaps allowed) of a file of `length` bytes.
    pub fn new(length: u64, mut ranges: Vec<Range<u64>>) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some((last, _)) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push((range, Vec::new())),
            }
        }
        Self { length, ranges: merged, position: 0 }
    }

    /// Takes what it wants from `bytes`, the next bytes of the file.
    pub fn feed(&mut self, bytes: &[u8]) {
        let start = self.position;
        let end = start + bytes.len() as u64;
        self.position = end;
        let first = self.ranges.partition_point(|(range, _)| range.end <= start);
        for (range, kept) in &mut self.ranges[first..] {
            if range.start >= end {
                break;
            }
            // Both differences are at most bytes.len().
            let from = range.start.saturating_sub(start) as usize;
            let to = (range.end.min(end) - start) as usize;
            kept.extend_from_slice(&bytes[from..to]);
        }
    }
}

impl ReadAt for Capture {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let index = self.ranges.partition_point(|(range, _)| range.end <= offset);
        let found = self.ranges.get(index).and_then(|(range, kept)| {
            let from = usize::try_from(offset.checked_sub(range.start)?).ok()?;
            kept.get(from..from.checked_add(buffer.len())?)
        });
        match found {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None if buffer.is_empty() => Ok(()),
            None => Err(Fault::unreadable(
                "rewritten file",
                offset,
                format!("{} bytes wanted that were not captured", buffer.len()),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_across_chunks() {
        let file: Vec<u8> = (0..100).collect();
        for chunk in 1..=100 {
            let mut capture = Capture::new(100, vec![90..100, 5..10, 8..20, 50..50]);
            for piece in file.chunks(chunk) {
                capture.feed(piece);
            }
            assert_eq!(capture.read_vec(5, 15, "test").unwrap(), file[5..20]);
            assert_eq!(capture.read_vec(93, 7, "test").unwrap(), file[93..]);
            assert!(capture.read_vec(4, 2, "test").is_err());
            assert!(capture.read_vec(19, 2, "test").is_err());
        }
    }
}
