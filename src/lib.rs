//! fatwheel
pub mod arch;
pub mod edit;
pub mod elf;
pub mod fatbin;
pub mod fault;
pub mod kpack;
pub mod source;
