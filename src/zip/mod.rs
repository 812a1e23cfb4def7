//! ZIP archives, sans I/O: [`reader`] turns the bytes of an archive into [`Entry`] values, [`writer`] turns
//! entries into record bytes. Record names and section numbers are those of PKWARE's APPNOTE.

pub mod reader;
pub mod records;
pub mod writer;

pub use reader::{Archive, Arrival, Entry};
pub use records::{Attributes, Method};
pub use writer::{Layout, Sizes};
