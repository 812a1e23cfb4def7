//! What the benchmarks share. Each target compiles what it needs, so unused parts are no sign of anything.

#![allow(dead_code)]

pub(crate) mod code_mixer;
pub(crate) mod elf_generator;
//KERN
//MEAS
pub(crate) mod ordered_pool;
//TABLE
pub(crate) mod wheel_generator;
