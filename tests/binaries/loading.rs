//! Loads a binary for real: does the process see what the linker meant?

use std::fs;
use std::path::Path;
use std::process::Command;

use super::rewrite::fixture_root;
use super::tools::{find, run};

/// What happened to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It loads and gives the right answers.
    Loads,
    /// It does not; why.
    Breaks(String),
    /// The tool did not want it; what it said.
    Refused(String),
}

/// How to run a file: directly, through the loader, or under an emulator.
pub fn command(name: &str, file: &Path) -> Option<Command> {
    let machines =
        [("aarch64", "qemu-aarch64"), ("powerpc64le", "qemu-ppc64le"), ("riscv64", "qemu-riscv64")];
    let foreign = machines.iter().find(|(machine, _)| name.contains(machine));
    let emulator = foreign.map(|(_, emulator)| find(emulator).ok_or(())).transpose().ok()?;
    if let (Some((machine, _)), Some(emulator), true) = (foreign, &emulator, name.contains(".so")) {
        // A program that needs the library, under the machine's own dynamic loader (Debian: libc6-*-cross).
        let root = Path::new("/usr").join(format!("{machine}-linux-gnu"));
        let mut command = Command::new(emulator);
        command.arg("-L").arg(&root).arg("-E");
        command.arg(format!("LD_LIBRARY_PATH={}", file.parent()?.display()));
        command.arg(fixture_root().join("stub").join(format!("loader_{machine}")));
        return root.exists().then_some(command);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return None;
    }
    let mut command = match (emulator, name.contains(".so")) {
        (Some(emulator), _) => Command::new(emulator),
        (None, true) => Command::new(fixture_root().join("stub/loader")),
        (None, false) => {
            let mut command = Command::new(file);
            command.env("LD_LIBRARY_PATH", fixture_root().join("stub"));
            return Some(command);
        }
    };
    command.arg(file).env("LD_LIBRARY_PATH", fixture_root().join("stub"));
    Some(command)
}

/// Loads `file`, which was the fixture `name`; `None` if this machine cannot. The stub looks up a code object for
/// every wrapper, so that it reads every bundle or marker. Returns the lines of its log too, without what it found.
pub fn load(name: &str, file: &Path) -> Option<(Fate, Vec<String>)> {
    let log = file.with_extension("log");
    let _ = fs::remove_file(&log);
    let mut command = command(name, file)?;
    let output = run(command.env("FATWHEEL_STUB_ISA", "gfx1100").env("FATWHEEL_STUB_LOG", &log));
    let fate = if output.status.success() {
        Fate::Loads
    } else {
        Fate::Breaks(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    };
    let lines = fs::read_to_string(&log).unwrap_or_default();
    let wrappers = lines.lines().map(|line| {
        // Name of the file, number of the wrapper.
        line.split(' ').skip(1).take(1).collect()
    });
    Some((fate, wrappers.collect()))
}
