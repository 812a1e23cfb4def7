//! Finds offload bundles in a member that is being read for the first time, when its section headers are not there yet.
//!
//! A guess, made by structure: bundles stand at multiples of 4096 in practice. Nothing depends on it being right: what
//! is cut out is kept under the exact bytes that it was cut from, and used only if the plan asks for just those.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::unbundle::Piece;
use crate::fatbin::HeaderParse;
use crate::fatbin::bundle::{self, BundleHeader};
use crate::fatbin::ccob::{self, CcobHeader};
use crate::io::Input;

/// Where bundles stand.
const ALIGN: u64 = 4096;
/// No real entry table is longer, in bytes.
const MAX_HEADER: usize = 64 << 10;

/// What a code object is known by: its member, the compressed bundle that it is in
/// (offset of the payload in the member), and its bytes there, or in the member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The member: the offset of its local header, or in an unpacked wheel its index.
    pub member: u64,
    /// The compressed bundle.
    pub payload: Option<u64>,
    /// The bytes.
    pub range: Range<u64>,
}

impl Key {
    /// What stands for a member in keys.
    pub fn member(input: &Input, index: usize) -> u64 {
        input.members()[index].entry().map_or(index as u64, |entry| entry.header_offset)
    }
}

/// Numbers the objects that are found in one member.
#[derive(Debug)]
pub struct Registry {
    member: u64,
    /// All objects of all members, by number. Shared by the registries of all members.
    keys: Arc<Mutex<Vec<Key>>>,
}

impl Registry {
    /// For the member that is known as `member`, see [`Key::member`].
    pub fn new(member: u64, keys: Arc<Mutex<Vec<Key>>>) -> Self {
        Self { member, keys }
    }

    /// Numbers the code objects of a bundle that starts at `base`. In the order of their ranges, each range once.
    pub fn register(&self, payload: Option<u64>, base: u64, header: &BundleHeader) -> Vec<Piece> {
        let mut ranges: Vec<Range<u64>> = header
            .device_entries()
            .filter(|(_, entry)| entry.size > 0)
            .map(|(_, entry)| base + entry.offset..base + entry.offset + entry.size)
            .collect();
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        ranges.dedup();
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = ranges.into_iter().map(|range| {
            keys.push(Key { member: self.member, payload, range: range.clone() });
            Piece { cut: keys.len() - 1, range }
        });
        pieces.collect()
    }

    /// Nobody shall find the objects of the compressed bundle whose payload starts at `payload`.
    pub fn forget(&self, payload: u64) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys.iter_mut().filter(|key| key.member == self.member && key.payload == Some(payload)) {
            // No member has an empty object there.
            *key = Key { member: u64::MAX, payload: Some(u64::MAX), range: 0..0 };
        }
    }
}

/// A bundle that may be one.
#[derive(Debug)]
pub enum Spotted {
    /// Not compressed.
    Plain {
        /// Where it starts in the member.
        offset: u64,
        /// Its entry table.
        header: BundleHeader,
    },
    /// Compressed.
    Compressed {
        /// Its header.
        header: CcobHeader,
        /// Its payload's bytes of the member.
        payload: Range<u64>,
        /// Bytes of history that decoding keeps.
        window: u64,
    },
}

/// Looks through one member.
#[derive(Debug)]
pub struct Spotter {
    /// Length of the member.
    size: u64,
    /// The next offset to look at.
    next: u64,
    /// The bytes from `next` on, if they are the beginning of a header.
    prefix: Vec<u8>,
}

impl Spotter {
    /// For a member of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { size, next: 0, prefix: Vec::new() }
    }

    /// Looks at `chunk`, which stands at `position`. Chunks come in order, and a bundle is reported with the chunk in
    /// which its header ends.
    pub fn feed(&mut self, position: u64, chunk: &[u8], mut found: impl FnMut(Spotted)) {
        let end = position + chunk.len() as u64;
        loop {
            // The first byte that is wanted. It is never before this chunk.
            let wanted = self.next + self.prefix.len() as u64;
            if wanted >= end {
                return;
            }
            let rest = &chunk[(wanted - position) as usize..];
            if self.prefix.is_empty() && !is_prefix(rest, bundle::MAGIC) && !is_prefix(rest, ccob::MAGIC) {
                self.next += ALIGN;
                continue;
            }
            let room = MAX_HEADER - self.prefix.len();
            self.prefix.extend_from_slice(&rest[..rest.len().min(room)]);
            match self.look() {
                Look::More if self.prefix.len() < MAX_HEADER => return,
                Look::Nothing | Look::More => self.next += ALIGN,
                Look::Found(spotted, bundle_end) => {
                    found(spotted);
                    let aligned = bundle_end.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
                    self.next = aligned.max(self.next + ALIGN);
                }
            }
            self.prefix.clear();
            // A header that was none may have begun in an earlier chunk, whose bytes are gone.
            self.next = self.next.max(position.next_multiple_of(ALIGN));
        }
    }

    fn look(&self) -> Look {
        let left = self.size.saturating_sub(self.next);
        if is_prefix(&self.prefix, bundle::MAGIC) {
            match BundleHeader::parse(&self.prefix, Some(left)) {
                Ok(HeaderParse::Complete(header)) => {
                    let end = self.next.saturating_add(header.end);
                    return Look::Found(Spotted::Plain { offset: self.next, header }, end);
                }
                Ok(HeaderParse::NeedMore(_)) => return Look::More,
                Err(_) => return Look::Nothing,
            }
        }
        if !is_prefix(&self.prefix, ccob::MAGIC) {
            return Look::Nothing;
        }
        let header = match CcobHeader::parse(&self.prefix) {
            Ok(HeaderParse::Complete(header)) => header,
            Ok(HeaderParse::NeedMore(_)) => return Look::More,
            Err(_) => return Look::Nothing,
        };
        // Without a total, only decoding tells where it ends.
        let Some(total) = header.total.filter(|&total| total <= left && total > header.header_len) else {
            return Look::Nothing;
        };
        let payload = usize::try_from(header.header_len).ok().and_then(|start| self.prefix.get(start..));
        match header.window_size(payload.unwrap_or_default()) {
            Ok(HeaderParse::Complete(window)) => {
                let payload = self.next + header.header_len..self.next + total;
                let end = payload.end;
                Look::Found(Spotted::Compressed { header, payload, window }, end)
            }
            Ok(HeaderParse::NeedMore(_)) => Look::More,
            Err(_) => Look::Nothing,
        }
    }
}

enum Look {
    Nothing,
    More,
    Found(Spotted, u64),
}

/// Whether `bytes` start with `magic`, as far as they go.
fn is_prefix(bytes: &[u8], magic: &[u8]) -> bool {
    let length = bytes.len().min(magic.len());
    bytes[..length] == magic[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_bundles_whatever_the_chunks_are() {
        let real = include_bytes!("../../tests/fixtures/elf/libccob.so");
        let spots = |chunk: usize| {
            let mut spotter = Spotter::new(real.len() as u64);
            let mut found = Vec::new();
            let mut position = 0;
            for piece in real.chunks(chunk) {
                spotter.feed(position, piece, |spotted| {
                    found.push(match spotted {
                        Spotted::Plain { offset, header } => (offset, header.entries.len() as u64),
                        Spotted::Compressed { payload, .. } => (payload.start, payload.end),
                    });
                });
                position += piece.len() as u64;
            }
            found
        };
        let whole = spots(real.len());
        assert!(whole.len() >= 3, "{whole:?}");
        for chunk in [1, 7, 100, 4095, 4096, 4097, 30_000] {
            assert_eq!(spots(chunk), whole, "chunks of {chunk}");
        }
    }
}
