//! AMD GPU architectures: the names that compilers, bundles and loaders give them ([`target_id`]), and the table
//! that says which device wheel serves which ([`table`]).

pub mod table;
pub mod target_id;

pub use target_id::{Features, Processor, TargetId};
