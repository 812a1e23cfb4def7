//! The walk over a member's bytes when they are read for the first time, chunk by chunk while they are in the cache:
//! CRC-32, magic, and the offload bundles of a binary.

use super::Context;
use super::ahead::{Anticipators, Lease};
use super::spot::{Spotted, Spotter};
use crate::error::Result;
use crate::fatbin::glimpse::Glimpse;
use crate::io::Snapshots;
use crate::{elf, pe};

/// Bytes in front of a bundle that are kept: [`walk`](crate::fatbin::walk) looks for its start from the end of the one
/// before it.
const BEFORE: u64 = 4096;
/// Bytes of a bundle that are kept: the entry table.
const BEHIND: u64 = 8192;
/// Bytes of a compressed bundle that are kept: the first zstd block, which holds the entry table.
const BEHIND_COMPRESSED: u64 = 40 << 10;
/// Bytes of one member that are kept at most.
const SNAPSHOTS: usize = 6 << 20;

/// A walk over one member.
pub struct Scan<'a, 'scope, 'env> {
    context: Context<'a>,
    name: &'a str,
    key: u64,
    anticipators: Option<&'a Anticipators<'scope, 'env>>,
    lease: Option<Lease<'a, 'scope, 'env>>,
    crc32: crc32fast::Hasher,
    prefix: Vec<u8>,
    position: u64,
    spotter: Spotter,
    snapshots: Snapshots,
    glimpse: Glimpse,
}

/// What a walk has found.
pub struct Scanned {
    /// Of all bytes.
    pub crc32: u32,
    /// The first 8 bytes, or all.
    pub prefix: Vec<u8>,
    /// Where bundles start.
    pub snapshots: Snapshots,
    /// Offset of the first offload bundle of a binary, whatever its sections say.
    pub bundle: Option<u64>,
}

impl<'a, 'scope, 'env> Scan<'a, 'scope, 'env> {
    /// Of the member `name`, which has `size` bytes. Code objects are cut out at once if there are `anticipators`; `key`
    /// says whose they are, see [`Key::member`](super::spot::Key::member).
    pub fn new(
        context: &Context<'a>,
        name: &'a str,
        size: u64,
        key: u64,
        anticipators: Option<&'a Anticipators<'scope, 'env>>,
    ) -> Self {
        Self {
            context: *context,
            name,
            key,
            anticipators,
            lease: None,
            crc32: crc32fast::Hasher::new(),
            prefix: Vec::with_capacity(8),
            position: 0,
            spotter: Spotter::new(size),
            snapshots: Snapshots::new(SNAPSHOTS),
            glimpse: Glimpse::default(),
        }
    }

    /// Bytes so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<()> {
        self.context.cancel.check()?;
        let missing = 8usize.saturating_sub(self.prefix.len()).min(chunk.len());
        self.prefix.extend_from_slice(&chunk[..missing]);
        self.crc32.update(chunk);
        let position = self.position;
        self.position += chunk.len() as u64;
        if !elf::is_elf(&self.prefix) && !pe::is_pe(&self.prefix) {
            return Ok(());
        }
        self.glimpse.feed(chunk);
        self.snapshots.feed(position, chunk);
        let mut spotted = Vec::new();
        let Self { spotter, snapshots, .. } = self;
        spotter.feed(position, chunk, |bundle| {
            let (start, behind) = match &bundle {
                Spotted::Plain { offset, .. } => (*offset, BEHIND),
                Spotted::Compressed { payload, .. } => (payload.start, BEHIND_COMPRESSED),
            };
            snapshots.want(start.saturating_sub(BEFORE)..start + behind, position, chunk);
            spotted.push(bundle);
        });
        if let (None, Some(anticipators), false) = (&self.lease, self.anticipators, spotted.is_empty()) {
            self.lease = Some(anticipators.lease(&self.context, self.name, self.key)?);
        }
        match &mut self.lease {
            Some(lease) => lease.feed(position, chunk, spotted),
            None => Ok(()),
        }
    }

    /// The member is complete.
    pub fn finish(self) -> Result<Scanned> {
        self.lease.map_or(Ok(()), Lease::end)?;
        Ok(Scanned {
            crc32: self.crc32.finalize(),
            prefix: self.prefix,
            snapshots: self.snapshots,
            bundle: self.glimpse.first(),
        })
    }
}
