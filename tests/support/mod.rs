//! What the integration tests build with and look with. Nothing here uses fatwheel's own parsers or writers: they are
//! what is tested.

pub mod bundle_builder;
pub mod bundle_reader;
pub mod elf_builder;
pub mod golden;
pub mod kpack_reader;
pub mod run;
pub mod tools;
pub mod wheel_builder;
pub mod wheel_reader;
pub mod zip_builder;
