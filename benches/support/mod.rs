//! What the benchmarks share. Each target compiles what it needs, so unused parts are no sign of anything.

#![allow(dead_code)]

pub(crate) mod code_mixer;
pub(crate) mod compare;
pub(crate) mod elf_generator;
pub(crate) mod kernels;
pub(crate) mod measure;
pub(crate) mod ordered_pool;
pub(crate) mod table;
pub(crate) mod wheel_generator;
