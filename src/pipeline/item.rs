//! The payloads that flow between the stages of the second pass. A payload is named after the stage it has passed.

use std::ops::Range;
use std::sync::Arc;

use super::budget::{Grant, Slice};
use super::early::KeptFrame;
use crate::fatbin::ccob::CcobHeader;

/// Index of an archive in [`Archives::archives`](super::plan::archives::Archives::archives).
pub type ArchiveIndex = usize;
/// Index of a cut in [`Archives::cuts`](super::plan::archives::Archives::cuts), which is also its place in the order of
/// output.
pub type CutIndex = usize;

/// One code object to be cut out of a fat binary and stored as one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Where it lies: bytes of the member, or of the uncompressed bundle if that is compressed.
    pub range: Range<u64>,
    /// The archives that store it under an ordinal of their own.
    pub archives: Vec<ArchiveIndex>,
}

impl Cut {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A range of a fat binary that is more than host bytes, in the order of the file.
#[derive(Clone, Debug)]
pub enum Extent {
    /// A code object, as it is.
    Plain(CutIndex),
    /// A compressed bundle's payload (bytes of the member), with the code objects in it.
    Compressed {
        /// The bundle's header.
        header: CcobHeader,
        /// The compressed bytes of the member.
        payload: Range<u64>,
        /// Bytes of history that decoding needs.
        window: u64,
        /// The code objects, by where they lie in the uncompressed bundle.
        cuts: Range<CutIndex>,
    },
}

/// The cuts of a binary, each with the payload of the compressed bundle that it is in.
pub fn cuts_of(extents: &[Extent]) -> impl Iterator<Item = (CutIndex, Option<u64>)> {
    extents.iter().flat_map(|extent| {
        let (cuts, payload) = match extent {
            Extent::Plain(cut) => (*cut..*cut + 1, None),
            Extent::Compressed { payload, cuts, .. } => (cuts.clone(), Some(payload.start)),
        };
        cuts.map(move |cut| (cut, payload))
    })
}

/// A whole code object on its way to a compressor.
#[derive(Debug)]
pub struct Unbundled {
    /// Which one.
    pub cut: CutIndex,
    /// Its bytes.
    pub bytes: Slice,
}

/// A code object, or a part of a large one, as it will stand in an archive.
#[derive(Debug)]
pub struct Compressed {
    /// Which one.
    pub cut: CutIndex,
    /// The bytes.
    pub frame: Frame,
}

/// Where the bytes of a frame are.
#[derive(Debug)]
pub enum Frame {
    /// Here.
    Bytes {
        /// They.
        bytes: Vec<u8>,
        /// Whether more parts of the same frame follow.
        more: bool,
        /// For `bytes`.
        grant: Grant,
    },
    /// All of them were kept while the wheel was read for the first time.
    Kept(KeptFrame),
}

/// A block of a rewritten member, and what a deflate of it needs to know.
#[derive(Debug)]
pub struct Rewritten {
    /// Place in the order of the host wheel.
    pub ticket: u64,
    /// The block before it, for deflate's history.
    pub previous: Option<Arc<Vec<u8>>>,
    /// The bytes.
    pub block: Arc<Vec<u8>>,
    /// Whether the member ends here.
    pub last: bool,
    /// For `block`.
    pub grant: Grant,
}

/// One step of writing the host wheel.
#[derive(Debug)]
pub enum HostStep {
    /// An unchanged member is copied as it stands in the input.
    Copy(usize),
    /// A member starts that is written anew; at most so many bytes will come.
    Begin(usize, u64),
    /// The next block of that member: as it is, and deflated.
    Block {
        /// The bytes of the file.
        plain: Arc<Vec<u8>>,
        /// The bytes for the archive; empty if no output is an archive.
        deflated: Vec<u8>,
        /// CRC-32 of `plain`.
        crc32: u32,
        /// For both.
        grant: Grant,
    },
    /// That member ends.
    End,
}
