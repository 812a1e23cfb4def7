//! Wheels: file names, `.dist-info` files and the rules that decide which device wheel a file belongs to.
//!
//! Everything here is a pure function of bytes and strings: no paths on disk, no threads, no clocks. Formats:
//! PEP 427 (wheel), PEP 345 and its successors (core metadata), PEP 376 (RECORD), PEP 825 drafts (variants).

pub mod archs;
pub mod database;
pub mod device_glob;
pub mod devices;
pub mod dist_info;
pub mod filename;
mod headers;
pub mod metadata;
pub mod record;
pub mod rules;
pub mod variant;
pub mod wheel_file;
