//! Runs the command line in a directory of its own, and keeps what came of it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::kpack_reader::Kpack;
use super::wheel_builder::WheelBuilder;
use super::wheel_reader::Wheel;

/// The program under test, without what the environment of the test run could change.
pub fn fatwheel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fatwheel"));
    command.env_remove("SOURCE_DATE_EPOCH").env_remove("TERM");
    command
}

/// A file of `tests/fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// The demo wheel for Linux.
pub fn demo() -> PathBuf {
    fixture("wheels/fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl")
}

/// The demo wheel for Windows.
pub fn demo_windows() -> PathBuf {
    fixture("wheels/fatdemo-1.0-py3-none-win_amd64.whl")
}

/// What one run left behind.
#[derive(Debug)]
pub struct Split {
    /// Holds input and outputs.
    pub scratch: TempDir,
    pub stdout: String,
    pub stderr: String,
}

impl Split {
    /// The output directory.
    pub fn output(&self) -> PathBuf {
        self.scratch.path().join("out")
    }

    /// File names in the output directory, sorted.
    pub fn names(&self) -> Vec<String> {
        names(&self.output())
    }

    /// All output wheels, each checked.
    pub fn wheels(&self) -> Vec<Wheel> {
        self.names().iter().map(|name| Wheel::open(&self.output().join(name))).collect()
    }

    /// The output wheel of this name.
    pub fn wheel(&self, name: &str) -> Wheel {
        assert!(self.names().iter().any(|other| other == name), "no {name} in {:?}", self.names());
        Wheel::open(&self.output().join(name))
    }

    /// The output wheel whose name starts with this, of which there must be only one.
    pub fn starting(&self, start: &str) -> Wheel {
        let found: Vec<String> = self.names().into_iter().filter(|name| name.starts_with(start)).collect();
        assert_eq!(found.len(), 1, "{start}*: {:?}", self.names());
        self.wheel(&found[0])
    }

    /// The archives of all wheels by path.
    pub fn kpacks(&self) -> BTreeMap<String, Kpack> {
        self.wheels().iter().flat_map(Wheel::kpacks).collect()
    }
}

/// Names in a directory, sorted; hidden ones too.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `fatwheel split INPUT -o OUTPUT --no-sync ARGUMENTS`.
pub fn split_command<S: AsRef<OsStr>>(input: &Path, output: &Path, arguments: &[S]) -> Command {
    let mut command = fatwheel();
    command.arg("split").arg(input).arg("-o").arg(output).arg("--no-sync").args(arguments);
    command
}

/// Standard output and standard error as text.
pub fn texts(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// Splits `input`, which must succeed.
pub fn split(input: &Path, arguments: &[&str]) -> Split {
    split_in(tempfile::tempdir().unwrap(), input, arguments)
}

/// Splits a built wheel, which must succeed.
pub fn split_built(wheel: &WheelBuilder, arguments: &[&str]) -> Split {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    split_in(scratch, &input, arguments)
}

fn split_in(scratch: TempDir, input: &Path, arguments: &[&str]) -> Split {
    let done = split_command(input, &scratch.path().join("out"), arguments).output().unwrap();
    let (stdout, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(0), "{stderr}");
    Split { scratch, stdout, stderr }
}

/// A run that must fail: checks that nothing new is in the output directory and that an old wheel of the host's
/// name is untouched. Returns standard error.
pub fn refuse(input: &Path, arguments: &[&str], code: i32) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    fs::create_dir(&output).unwrap();
    let old = input.file_name().map_or_else(|| PathBuf::from("old.whl"), PathBuf::from);
    fs::write(output.join(&old), "from before").unwrap();
    let done = split_command(input, &output, arguments).output().unwrap();
    let (stdout, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(code), "{stdout}{stderr}");
    assert_eq!(names(&output), [old.to_str().unwrap()], "{stderr}");
    assert_eq!(fs::read(output.join(&old)).unwrap(), b"from before");
    assert!(stdout.is_empty(), "{stdout}");
    stderr
}

/// [`refuse`] with exit code 1 for a built wheel: the message must name the wheel and all of `words`, and say what to do.
pub fn refuse_built(wheel: &WheelBuilder, arguments: &[&str], words: &[&str]) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    refuse_bad(&input, arguments, words)
}

/// [`refuse`] with exit code 1: the message must name the input and all of `words`, and say what to do.
pub fn refuse_bad(input: &Path, arguments: &[&str], words: &[&str]) -> String {
    let stderr = refuse(input, arguments, 1);
    assert!(stderr.starts_with("error: "), "{stderr}");
    let name = input.file_name().unwrap().to_str().unwrap();
    for word in [name, "\nhint: "].iter().chain(words) {
        assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    }
    stderr
}
