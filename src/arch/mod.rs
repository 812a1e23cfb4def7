//! GPU architectures: the packaging table.

pub mod table;
