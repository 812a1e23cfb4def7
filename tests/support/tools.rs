//! Programs that some tests need: found on PATH, or the test is skipped, which it says. `FATWHEEL_REQUIRE_TOOLS=1` makes a
//! missing one a failure.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::run::texts;

/// Whether a missing tool is a failure.
pub fn required() -> bool {
    std::env::var_os("FATWHEEL_REQUIRE_TOOLS").is_some_and(|value| value == "1")
}

/// Where `name` is, if it is among the clients of `.ci/install-tools` or on PATH.
#[track_caller]
pub fn tool(name: &str) -> Option<PathBuf> {
    let mut path = std::env::var_os("FATWHEEL_CLIENTS").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        assert!(!required(), "{name} is not on PATH, and FATWHEEL_REQUIRE_TOOLS=1");
        eprintln!("skipped: {name} is not on PATH");
    }
    found
}

/// Runs a command that must succeed.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = texts(&done);
    assert!(done.status.success(), "{command:?}: {}\n{stdout}{stderr}", done.status);
    done
}
