//! The whole program from outside: the command line and the library on built and compiled wheels, outputs read back
//! with code that is not fatwheel's.
//!
//! - Wheels come from `tests/support` (builders) and `tests/fixtures` (compiled; see the README there).
//! - Golden texts are in `tests/golden`; `FATWHEEL_UPDATE_GOLDEN=1` writes them anew.
//! - Tests that need a tool skip without it, saying so; with `FATWHEEL_REQUIRE_TOOLS=1` they fail instead.

// All of this is tests: a failure panics, a skip prints, and helpers are public within them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;

mod ahead;
mod cli;
mod clients;
mod databases;
mod determinism;
mod device_wheel;
mod directory;
#[cfg(target_os = "linux")]
mod disk;
mod host_wheel;
mod hostile;
mod installs;
mod kpack;
mod library;
mod malformed;
mod manifest;
mod messages;
mod pipe;
mod regression;
mod resplit;
mod rules;
mod run;
mod several;
mod tidy;
mod variant;
mod zip_inputs;
