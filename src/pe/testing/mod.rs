//! What the tests build PE files with, and what they judge the rewritten ones by. Neither uses the code under
//! test.

pub(super) mod builder;
pub(super) mod loader;
