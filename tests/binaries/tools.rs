//! Programs that are run on binaries: where they are, and how to run them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::rewrite::fixture_root;

/// Longest that anything may take. wine may start slowly.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command line; `{}` stands for the file, which is changed in place, `{}.x` for files beside it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The heading in the table.
    pub name: &'static str,
    /// The environment variable that names the program, or the program on `PATH`.
    pub program: &'static str,
    pub arguments: &'static [&'static str],
}

const fn tool(name: &'static str, program: &'static str, arguments: &'static [&'static str]) -> Tool {
    Tool { name, program, arguments }
}

pub const P14: &str = "FATWHEEL_PATCHELF_0_14";
pub const P17: &str = "FATWHEEL_PATCHELF_0_17";
pub const P19: &str = "FATWHEEL_PATCHELF_0_19";
const RPATH: &[&str] = &["--set-rpath", "$ORIGIN/../a/rather/long/search/path:$ORIGIN", "{}"];
const SONAME: &[&str] = &["--set-soname", "libquite_another_name.so.1", "{}"];
const NEEDED: &[&str] = &["--add-needed", "libm.so.6", "{}"];

/// What people do to ELF files after a build.
pub const ELF_TOOLS: [Tool; 21] = [
    tool("strip", "strip", &["{}"]),
    tool("strip -g", "strip", &["-g", "{}"]),
    tool("llvm-strip", "llvm-strip-19", &["{}"]),
    tool("objcopy", "objcopy", &["{}"]),
    tool("objcopy --add-section", "objcopy", &["--add-section", ".note.test={}.orig", "{}"]),
    tool("llvm-objcopy", "llvm-objcopy-19", &["{}"]),
    tool("llvm-objcopy --strip-sections", "llvm-objcopy-19", &["--strip-sections", "{}"]),
    tool("eu-strip", "eu-strip", &["{}"]),
    tool("eu-strip -f", "eu-strip", &["-f", "{}.debug", "{}"]),
    tool("dwz", "dwz", &["{}"]),
    // chrpath only shortens what is there.
    tool("patchelf, chrpath", "chrpath", &["-r", "/x", "{}"]),
    tool("patchelf 0.14 rpath", P14, RPATH),
    tool("patchelf 0.14 soname", P14, SONAME),
    tool("patchelf 0.14 needed", P14, NEEDED),
    tool("patchelf 0.17 rpath", P17, RPATH),
    tool("patchelf 0.17 soname", P17, SONAME),
    tool("patchelf 0.17 needed", P17, NEEDED),
    tool("patchelf 0.19 rpath", P19, RPATH),
    tool("patchelf 0.19 soname", P19, SONAME),
    tool("patchelf 0.19 needed", P19, NEEDED),
    tool("patchelf 0.19 print", P19, &["--print-rpath", "{}"]),
];

/// What people do to PE files.
pub const PE_TOOLS: [Tool; 5] = [
    tool("strip", "x86_64-w64-mingw32-strip", &["{}"]),
    tool("objcopy", "x86_64-w64-mingw32-objcopy", &["{}"]),
    tool("llvm-strip", "llvm-strip-19", &["{}"]),
    tool("llvm-objcopy", "llvm-objcopy-19", &["{}"]),
    // An Authenticode signature; `{}.key` and `{}.pem` are made for it.
    tool(
        "osslsigncode",
        "osslsigncode",
        &["sign", "-certs", "{}.pem", "-key", "{}.key", "-in", "{}.unsigned", "-out", "{}"],
    ),
];

/// The program that an environment variable names, or that is on `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with("FATWHEEL_") {
        return env::var_os(program).filter(|value| !value.is_empty()).map(PathBuf::from);
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

/// Whether missing tools fail a test.
pub fn required() -> bool {
    env::var_os("FATWHEEL_REQUIRE_TOOLS").is_some_and(|value| value == "1")
}

/// [`find`]; says so if it is not there, or fails if tools are required.
pub fn find_or_skip(program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        assert!(!required(), "{program} is missing, and FATWHEEL_REQUIRE_TOOLS is set");
        eprintln!("skipped, for want of {program} (see .ci/install-tools)");
    }
    found
}

/// Runs `command` to its end. A program that was written a moment ago may be held open by a child that another thread
/// is about to start: that passes.
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let child = loop {
        match command.spawn() {
            Err(error) if error.raw_os_error() == Some(26) && start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{command:?}: {error}"),
            Ok(child) => break child,
        }
    };
    let id = child.id();
    thread::scope(|scope| {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            if wait.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            }
        });
        let output = child.wait_with_output().unwrap();
        drop(done);
        output
    })
}

impl Tool {
    /// Whether it can be used here. chrpath only changes a path that is there, so patchelf has to set one first.
    pub fn is_there(&self) -> bool {
        find(self.program).is_some() && (self.program != "chrpath" || find(P17).is_some())
    }

    /// Changes `file`; what the tool says if it does not want to.
    pub fn apply(&self, file: &Path) -> Result<(), String> {
        let program = find(self.program).unwrap_or_else(|| panic!("{} is missing", self.program));
        let original = file.with_extension("orig");
        fs::copy(fixture_root().join("README.md"), &original).unwrap();
        if self.program == "osslsigncode" {
            make_certificate(file);
            fs::rename(file, with_suffix(file, ".unsigned")).unwrap();
        }
        if self.program == "chrpath" {
            run(Command::new(find(P17).unwrap()).args(["--set-rpath", "/longer/than/x"]).arg(file));
        }
        let text = |argument: &str| {
            let argument = argument.replace("{}.orig", &original.to_string_lossy());
            argument.replace("{}", &file.to_string_lossy())
        };
        let output = run(Command::new(program).args(self.arguments.iter().map(|argument| text(argument))));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status)) }
    }
}

/// `file` with `suffix` behind its name.
fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A key and a certificate that it has signed itself, beside `file`.
fn make_certificate(file: &Path) {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-subj", "/CN=fatwheel test"]);
    command.arg("-keyout").arg(with_suffix(file, ".key")).arg("-out").arg(with_suffix(file, ".pem"));
    let made = run(&mut command);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Does `work` for every job on all processors; results are in the order of the jobs.
pub fn in_parallel<J: Sync, R: Send>(jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = Mutex::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        *next - 1
                    };
                    let Some(job) = jobs.get(index) else { break };
                    let result = work(job);
                    results.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Writes an executable file.
pub fn write(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
