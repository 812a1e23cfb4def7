//! HIP fat binaries: wrappers, offload bundles, compressed bundles and their entry IDs.

pub mod entry_id;
pub mod wrapper;
