//! AMD GPU architectures: the names that compilers, bundles and loaders give them.

pub mod target_id;

pub use target_id::{Features, Processor, TargetId};
