//! Bytes of a member that were kept while it was read, so that looking at them again costs no inflating.

use std::ops::Range;

/// Ranges of one member, in ascending order.
#[derive(Debug)]
pub struct Snapshots {
    /// Offset in the member, and the bytes. They neither overlap nor touch.
    pieces: Vec<(u64, Vec<u8>)>,
    /// What is to be kept next, as far as it has not come yet. If that is nothing, it ends where the last range did.
    wanted: Range<u64>,
    /// Bytes that may still be kept.
    room: usize,
}

impl Snapshots {
    /// Keeps at most `room` bytes.
    pub fn new(room: usize) -> Self {
        Self { pieces: Vec::new(), wanted: 0..0, room }
    }

    /// Keeps `range` of `chunk`, which stands at `position`, and of the chunks that [`feed`](Self::feed) will bring.
    /// Ranges come in ascending order; what has gone by already is not kept.
    pub fn want(&mut self, range: Range<u64>, position: u64, chunk: &[u8]) {
        if self.wanted.is_empty() {
            // What an earlier range has in common with this one was kept for it.
            self.wanted.start = self.wanted.end.max(range.start);
        }
        self.wanted.end = self.wanted.end.max(range.end);
        self.feed(position, chunk);
    }

    /// Keeps what is wanted of `chunk`, which stands at `position`.
    pub fn feed(&mut self, position: u64, chunk: &[u8]) {
        let end = position + chunk.len() as u64;
        let (from, to) = (self.wanted.start.max(position), self.wanted.end.min(end));
        if from >= to {
            return;
        }
        let wanted = &chunk[(from - position) as usize..(to - position) as usize]; // inside the chunk
        self.wanted.start = to;
        if wanted.len() > self.room {
            return;
        }
        self.room -= wanted.len();
        match self.pieces.last_mut() {
            Some((start, bytes)) if *start + bytes.len() as u64 == from => bytes.extend_from_slice(wanted),
            _ => self.pieces.push((from, wanted.to_vec())),
        }
    }

    /// Fills `buffer` with the bytes from `offset` on, if all of them were kept.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let behind = self.pieces.partition_point(|&(start, _)| start <= offset);
        let Some((start, bytes)) = behind.checked_sub(1).and_then(|index| self.pieces.get(index)) else {
            return false;
        };
        let from = usize::try_from(offset - start).unwrap_or(usize::MAX);
        let kept = from.checked_add(buffer.len()).and_then(|to| bytes.get(from..to));
        kept.is_some_and(|kept| {
            buffer.copy_from_slice(kept);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_wanted_and_nothing_else() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        for chunk in [1, 7, 1000, 10_000] {
            let mut snapshots = Snapshots::new(5000);
            for (index, piece) in bytes.chunks(chunk).enumerate() {
                let position = (index * chunk) as u64;
                snapshots.feed(position, piece);
                // As a caller does that finds out, chunk by chunk, what is worth keeping.
                for range in [100..200, 150..300, 4000..4010, 9000..9999] {
                    if (position..position + piece.len() as u64).contains(&range.start) {
                        snapshots.want(range, position, piece);
                    }
                }
            }
            let expected: [(u64, usize); 3] = [(100, 200), (4000, 10), (9000, 999)];
            for (offset, length) in expected {
                let mut buffer = vec![0; length];
                assert!(snapshots.read_at(offset, &mut buffer), "{offset} in chunks of {chunk}");
                assert_eq!(buffer, bytes[offset as usize..offset as usize + length]);
                assert!(!snapshots.read_at(offset, &mut vec![0; length + 1]));
                assert!(!snapshots.read_at(offset - 1, &mut [0; 2]));
            }
        }
    }

    #[test]
    fn keeps_no_more_than_there_is_room_for() {
        let mut snapshots = Snapshots::new(100);
        snapshots.want(0..1000, 0, &[1; 60]);
        snapshots.feed(60, &[2; 60]);
        assert!(snapshots.read_at(0, &mut [0; 60]));
        assert!(!snapshots.read_at(0, &mut [0; 61]));
    }
}
