//! Fat ELF binaries: finding the device code, and taking it out.
//!
//! 1. [`locate()`] reads the headers, the wrappers and every relocation.
//! 2. [`plan()`] decides what becomes of each byte of the file.
//! 3. [`verify()`] parses the result again.
//!
//! The format is 64-bit little-endian ELF (gABI and the psABIs of x86-64, aarch64, ppc64le and riscv64). All reading
//! goes through [`ReadAt`](crate::source::ReadAt), tables in ascending order and in blocks, so that a file can be a
//! deflated member of any size.

mod arrange;
mod bare;
mod headers;
mod holes;
mod locate;
mod names;
mod plan;
mod relocations;
mod room;
mod tables;
mod verify;
mod view;

#[cfg(test)]
mod bare_tests;
#[cfg(test)]
mod image;
#[cfg(test)]
mod promise_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use locate::{ElfLayout, is_elf, locate};
pub use plan::plan;
pub use verify::verify;
