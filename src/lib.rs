//! fatwheel
pub mod edit;
pub mod fatbin;
pub mod fault;
pub mod pe;
pub mod source;
