//! HIP fat binaries: wrappers, offload bundles, compressed bundles and their entry IDs.
//!
//! [`walk()`] finds the bundles of a section by structure, [`bundle`] reads one entry table, [`ccob`] decompresses,
//! [`entry_id`] says what an entry is for, [`zstd_frame`] measures a zstd frame without decoding it, [`glimpse`] notices
//! bundles that no section names.

pub mod bundle;
pub mod ccob;
pub mod entry_id;
pub mod glimpse;
pub mod walk;
pub mod wrapper;
pub mod zstd_frame;

pub use bundle::{BundleEntry, BundleHeader};
pub use ccob::{CcobDecoder, CcobHeader};
pub use entry_id::EntryId;
pub use walk::{LocatedBundle, Storage, walk};

/// What a parser says about the first bytes of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderParse<T> {
    /// All of it was there.
    Complete(T),
    /// The parser must see at least this many bytes from the start, which is always more than it was given. It
    /// may then still want more.
    NeedMore(u64),
}

/// `N` bytes of `bytes` from `offset` on, or `None` where they end earlier.
fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/support/bundle_builder.rs"]
pub(crate) mod test_support;
