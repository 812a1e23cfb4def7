//! Edit plans: a rewritten binary as data.
//!
//! [`plan`] describes the output as a list of edits over the input, with the final length known before a byte
//! is written. [`apply`] streams an input through a plan. [`capture`] keeps the ranges of the output that are verified
//! once it has streamed by. [`view`] shows the planned output as [`ReadAt`](crate::source::ReadAt), so that it can be
//! read in another order than the file's.

pub mod apply;
pub mod capture;
pub mod plan;
pub mod view;

use std::ops::Range;

pub use apply::Apply;
pub use capture::Capture;
pub use plan::{Edit, EditPlan, PlanBuilder};
pub use view::Planned;

/// How one binary is rewritten: what `elf::plan` and `pe::plan` return.
#[derive(Clone, Debug)]
pub struct BinaryPlan {
    /// The edits.
    pub edits: EditPlan,
    /// Ranges of the *output* that `verify` wants to see again once the file has streamed by: headers, tables,
    /// wrappers, marker. A few MiB at most.
    pub verify: Vec<Range<u64>>,
    /// Things that the user should know, one sentence each (a signature removed, an alignment lowered).
    pub notes: Vec<String>,
}
