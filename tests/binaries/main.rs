//! The proof that rewritten binaries are what they were, device code aside, and that nothing breaks them.
//!
//! | module | what it holds the library to |
//! |---|---|
//! | [`elf_file`], [`elf_image`], [`elf_compare`] | an ELF file as a kernel and a dynamic loader see it, before and after |
//! | [`pe_file`], [`pe_compare`] | the same for PE |
//! | [`images`] | every fixture and random layouts of the builders, through these |
//! | [`inputs`] | which kinds of input there are, and what tests each |
//! | [`loaders`], [`matrix`] | the real loader (other machines: qemu-user), before and after each tool that people run on libraries |
//! | [`auditwheel`] | the same for what `auditwheel repair` makes |
//! | [`inspectors`] | readelf, llvm-readelf, eu-elflint, pefile, llvm-readobj, and what `FATWHEEL_CHECKERS` names, have no new complaint |
//! | [`windows`] | PE under wine |
//!
//! Nothing here uses the parsers of the library: the records are read byte by byte.
//!
//! Tools come from `PATH` or from the variables that `.ci/install-tools` prints. A tool that is missing makes its test
//! a no-op that says so on stderr; with `FATWHEEL_REQUIRE_TOOLS=1` it fails.

// A test's helpers may end the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(missing_docs, unreachable_pub)]

mod auditwheel;
mod elf_compare;
mod elf_file;
mod elf_image;
mod images;
mod inputs;
mod inspectors;
mod loaders;
mod loading;
mod matrix;
mod pe_compare;
mod pe_file;
mod rewrite;
mod tools;
mod windows;
