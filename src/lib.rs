//! fatwheel
pub mod edit;
pub mod elf;
pub mod fatbin;
pub mod fault;
pub mod source;
