//! fatwheel
pub mod arch;
pub mod edit;
pub mod error;
pub mod fatbin;
pub mod fault;
pub mod io;
pub mod source;
pub mod sys;
pub mod wheel;
pub mod zip;
