//! How file offsets move: what is cut out, what comes in, and where the rest ends up.

use std::ops::Range;

use crate::fault::{Fault, Result};

/// The displacement of every byte that stays, known before the edit plan exists (the headers that go into the
/// plan need it).
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    file_len: u64,
    /// Bytes whose content leaves the file, and how many of them leave it; the others become padding.
    gone: Vec<(Range<u64>, u64)>,
    /// Bytes that come in before the byte at an offset.
    inserts: Vec<(u64, u64)>,
}

impl Moves {
    /// Nothing moves yet in a file of `file_len` bytes.
    pub(super) fn new(file_len: u64) -> Self {
        Self { file_len, ..Self::default() }
    }

    /// The content of `range` goes; the file gets shorter by its first `cut` bytes.
    pub(super) fn remove(&mut self, range: Range<u64>, cut: u64) {
        self.gone.push((range, cut));
    }

    /// `length` bytes come in before the byte at `at`.
    pub(super) fn insert(&mut self, at: u64, length: u64) {
        self.inserts.push((at, length));
    }

    /// Where the byte at `offset`, which stays or is the end of the file, stands in the output. For a byte of
    /// a removed range: where that range was.
    pub(super) fn position(&self, offset: u64) -> u64 {
        let cut: u64 = self
            .gone
            .iter()
            .filter(|(range, _)| range.start < offset)
            .map(|(range, cut)| (*cut).min(offset - range.start))
            .sum();
        let inserted: u64 =
            self.inserts.iter().filter(|(at, _)| *at <= offset).map(|(_, length)| length).sum();
        offset - cut + inserted
    }

    /// The new value of a field at `place` that names `length` bytes at file offset `offset`. An offset at or
    /// past the end of the file names nothing, before and after: it stays, or goes up to the end of a file
    /// that has become longer. Bytes that go, or would be torn apart, are a [`Fault`].
    pub(super) fn follow(&self, offset: u32, length: u64, place: &str) -> Result<u32> {
        let start = u64::from(offset);
        if start >= self.file_len {
            return Ok(offset.max(u32::try_from(self.position(self.file_len)).unwrap_or(u32::MAX)));
        }
        let end = start.saturating_add(length.max(1)).min(self.file_len);
        if let Some((range, _)) = self.gone.iter().find(|(range, _)| range.start < end && start < range.end) {
            return Err(Fault::unsupported(
                place,
                start,
                format!(
                    "it names bytes {start:#x}..{end:#x} of the file, of which {:#x}..{:#x} have to go",
                    range.start.max(start),
                    range.end.min(end)
                ),
            ));
        }
        if let Some((at, _)) = self.inserts.iter().find(|(at, _)| start < *at && *at < end) {
            return Err(Fault::unsupported(
                place,
                start,
                format!(
                    "it names bytes {start:#x}..{end:#x} of the file, across the end of the sections at {at:#x}"
                ),
            ));
        }
        let position = self.position(start);
        u32::try_from(position).map_err(|_| {
            Fault::unsupported(place, start, format!("it moves to {position:#x}, which does not fit 32 bits"))
        })
    }
}
