//! A user's day: `pip install "host[device-gfx942]"` and the same with uv, from a directory of wheels, into a fresh
//! environment. What is needed comes, nothing else does, programs find their code, and uninstalling leaves nothing.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::run::{install, log_on};
use crate::support::run::{demo, split, texts};
use crate::support::tools::{required, succeed, tool};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::ZipMember;

/// An installer that is looked at.
#[derive(Clone, Copy, Debug)]
enum Client {
    Pip,
    Uv,
}

impl Client {
    /// `pip install` or `uv pip install` for the Python of `environment`, without any index.
    fn command(self, program: &Path, environment: &Path, action: &str) -> Command {
        let mut command = Command::new(program);
        let python = environment.join("bin/python");
        match self {
            Client::Pip => {
                command.args(["-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--python"]);
                command.arg(python).arg(action);
                if action == "uninstall" {
                    command.arg("-y");
                } else {
                    command.arg("--no-compile");
                }
            }
            Client::Uv => {
                command
                    .args(["pip", action, "--offline", "--no-config", "--no-cache", "--python"])
                    .arg(python);
            }
        }
        command.env_remove("PIP_INDEX_URL").env_remove("UV_INDEX_URL").env("PIP_NO_INPUT", "1");
        command
    }

    /// The program that runs it.
    fn program(self) -> Option<PathBuf> {
        match self {
            Client::Pip => tool("python3"),
            Client::Uv => tool("uv"),
        }
    }
}

/// Tag of the running interpreter, as in `cp311-cp311-linux_x86_64`.
fn interpreter_tag(python: &Path) -> String {
    let program = "import sys; v = 'cp%d%d' % sys.version_info[:2]; print(f'{v}-{v}-linux_x86_64')";
    texts(&succeed(Command::new(python).args(["-c", program]))).0.trim().to_owned()
}

/// The wheels of a split of the demo wheel, tagged for the running interpreter, and what else its METADATA asks for.
fn wheels(tag: &str) -> (TempDir, PathBuf) {
    let mut wheel = WheelBuilder::new("fatdemo", "1.0").tags(tag, &[tag]);
    for member in &Wheel::read(&demo()).members {
        if !member.name.contains(".dist-info/") {
            wheel = wheel.member(ZipMember::new(&member.name, member.data.clone()).mode(member.mode));
        }
    }
    // Names that two wheels share: a family's files beside those of its targets.
    wheel = wheel.file("fatdemo/aotriton.images/amd-gfx11xx/flash/x.aks2", "image");
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    let done = split(&input, &["--wheel-type", "torch-fat"]);
    let output = done.output();
    WheelBuilder::new("rocm-bootstrap", "0.3.0").tags("py3-none-any", &["py3-none-any"]).write(&output);
    (done.scratch, output)
}

/// Everything below a directory, but for caches that Python makes.
fn tree(directory: &Path) -> BTreeSet<String> {
    fn walk(directory: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() && !name.ends_with("__pycache__") {
                walk(&entry.path(), &format!("{name}/"), found);
            }
            found.insert(name);
        }
    }
    let mut found = BTreeSet::new();
    walk(directory, "", &mut found);
    found
}

fn site_packages(environment: &Path) -> PathBuf {
    let lib = environment.join("lib");
    let python = fs::read_dir(&lib).unwrap().next().unwrap().unwrap().path();
    python.join("site-packages")
}

/// Paths of the members of the wheels whose names start with one of `starts`.
fn members(wheels: &Path, starts: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for name in crate::support::run::names(wheels) {
        if starts.iter().any(|start| name.starts_with(&format!("{start}-"))) {
            let wheel = Wheel::read(&wheels.join(name));
            found.extend(wheel.names().into_iter().filter(|name| !name.ends_with('/')).map(str::to_owned));
        }
    }
    found
}

/// Installs `what` into a fresh environment and holds it to everything.
fn check(client: Client, python: &Path, wheels: &Path, what: &str, brought: &[&str], isas: &str) {
    let Some(program) = client.program() else { return };
    let environment = tempfile::tempdir().unwrap();
    succeed(Command::new(python).args(["-m", "venv", "--without-pip"]).arg(environment.path()));
    let site = site_packages(environment.path());
    let before = tree(environment.path());
    let mut install_it = client.command(&program, environment.path(), "install");
    succeed(install_it.arg("--no-index").arg("--find-links").arg(wheels).arg(what));

    let files: BTreeSet<String> = tree(&site)
        .into_iter()
        .filter(|path| {
            site.join(path).is_file() && !["INSTALLER", "REQUESTED"].iter().any(|own| path.ends_with(own))
        })
        .filter(|path| !path.ends_with("uv_cache.json") && !path.contains("__pycache__"))
        .collect();
    let expected: BTreeSet<String> =
        members(wheels, brought).into_iter().filter(|path| !path.contains(".data/")).collect();
    let missing: Vec<&String> = expected.difference(&files).collect();
    let strange: Vec<&String> =
        files.difference(&expected).filter(|path| !before.iter().any(|old| old.ends_with(*path))).collect();
    assert!(missing.is_empty() && strange.is_empty(), "{client:?} {what}: {missing:?} {strange:?}");

    // Programs find their code where the runtime looks, as in the fat wheel.
    let fat = tempfile::tempdir().unwrap();
    install(&[Wheel::read(&demo())], fat.path());
    for binary in ["fatdemo/bin/fatdemo", "fatdemo/lib/libfatdemo.so", "fatdemo/lib/libfatdemo_compressed.so"]
    {
        let log = log_on(&site.join(binary), isas);
        assert_eq!(log, log_on(&fat.path().join(binary), isas), "{client:?} {what}: {binary}");
        assert!(log.lines().any(|line| !line.ends_with("missing")), "{log}");
    }

    let mut uninstall = client.command(&program, environment.path(), "uninstall");
    let distributions: Vec<String> = brought.iter().map(|name| name.replace('_', "-")).collect();
    succeed(uninstall.args(&distributions));
    // pip does not see to directories that several distributions had files in; they are empty. uv locks environments.
    let counts = |path: &&String| {
        let empty = matches!(client, Client::Pip) && environment.path().join(path).is_dir();
        !empty && path.as_str() != ".lock"
    };
    let after = tree(environment.path());
    let left: Vec<&String> = after.difference(&before).filter(counts).collect();
    assert!(left.is_empty(), "{client:?} {what} left {left:?}");
}

#[test]
fn extras_bring_what_a_machine_needs_and_nothing_else() {
    let Some(python) = tool("python3") else { return };
    let (_scratch, wheels) = wheels(&interpreter_tag(&python));
    for client in [Client::Pip, Client::Uv] {
        if matches!(client, Client::Pip)
            && !Command::new(&python).args(["-m", "pip", "--version"]).output().unwrap().status.success()
        {
            assert!(!required(), "python3 has no pip, and FATWHEEL_REQUIRE_TOOLS=1");
            continue;
        }
        let always = ["fatdemo", "rocm_bootstrap"];
        let family = "amd_fatdemo_device_gfx11";
        for (what, devices, isas) in [
            ("fatdemo[device-gfx942]", &["amd_fatdemo_device_gfx942"][..], "gfx942:sramecc+:xnack-"),
            // A target and its family.
            ("fatdemo[device-gfx1100]", &["amd_fatdemo_device_gfx1100", family], "gfx1100"),
            // A machine with two kinds.
            (
                "fatdemo[device-gfx942,device-gfx1201]",
                &["amd_fatdemo_device_gfx942", "amd_fatdemo_device_gfx1201"],
                "gfx942,gfx1201",
            ),
            // By its own name: the family and the host come along.
            ("amd-fatdemo-device-gfx1100", &["amd_fatdemo_device_gfx1100", family], "gfx1100"),
            (
                "fatdemo[device-all]",
                &[
                    "amd_fatdemo_device_gfx90a",
                    "amd_fatdemo_device_gfx942",
                    "amd_fatdemo_device_gfx1100",
                    "amd_fatdemo_device_gfx1201",
                    family,
                ],
                "gfx90a:sramecc+:xnack-,gfx942,gfx1100,gfx1201",
            ),
        ] {
            check(client, &python, &wheels, what, &[&always, devices].concat(), isas);
        }
    }
}

#[test]
fn an_extra_that_the_wheel_has_not_brings_no_device_wheel() {
    // Or else the test above could not fail.
    let (Some(python), Some(uv)) = (tool("python3"), tool("uv")) else { return };
    let (_scratch, wheels) = wheels(&interpreter_tag(&python));
    let environment = tempfile::tempdir().unwrap();
    succeed(Command::new(&python).args(["-m", "venv", "--without-pip"]).arg(environment.path()));
    let mut command = Client::Uv.command(&uv, environment.path(), "install");
    succeed(command.arg("--no-index").arg("--find-links").arg(&wheels).arg("fatdemo[device-gfx803]"));
    let site = site_packages(environment.path());
    assert!(site.join("fatdemo/lib/libfatdemo.so").exists() && !site.join("fatdemo/.kpack").exists());
    let log = log_on(&site.join("fatdemo/lib/libfatdemo.so"), "gfx942");
    assert!(!log.is_empty() && log.lines().all(|line| line.ends_with("missing")), "{log}");
}
