//! The whole program from outside: the command line and the library on built and compiled wheels, outputs read back
//! with code that is not fatwheel's.
//!
//! - Wheels come from `tests/support` (builders) and `tests/fixtures` (compiled; see the README there).
//! - Golden texts are in `tests/golden`; `FATWHEEL_UPDATE_GOLDEN=1` writes them anew.
//! - Tests that need a tool skip without it, saying so; with `FATWHEEL_REQUIRE_TOOLS=1` they fail instead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)] // all of this is tests

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod device_wheel;
mod host_wheel;
mod kpack;
mod malformed;
