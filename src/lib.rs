//! fatwheel
pub mod arch;
pub mod cli;
pub mod edit;
pub mod elf;
pub mod error;
pub mod fatbin;
pub mod fault;
pub mod io;
pub mod kpack;
pub mod options;
pub mod pe;
pub mod pipeline;
pub mod source;
pub mod sys;
pub mod wheel;
pub mod zip;

pub use error::{Error, ErrorKind, Result};
pub use options::*;
pub use pipeline::split;
