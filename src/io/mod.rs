//! Files: [`input`] (a mapped wheel or a directory, as members), [`member`] (reading one member in order or at
//! random) and [`output`] (files that appear together or not at all).

pub mod input;
pub mod member;
pub mod output;
pub mod snapshots;
pub mod spool;

pub use input::{Input, Member};
pub use member::{Checkpoints, MemberReader, StreamReader};
pub use snapshots::Snapshots;
