//! What others do with the outputs: zipfile, wheel, pip and uv accept them and install what is in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::elf_builder::FatElf;
use crate::support::run::{Split, demo, demo_windows, split, split_built, texts};
use crate::support::tools::{required, succeed, tool};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::{Zip64, ZipMember};

/// Splits whose outputs are shown around, each with the platform that an installer must be told.
fn splits() -> Vec<(Split, &'static str)> {
    let library =
        FatElf::new().code(&[("gfx90a:xnack-", b"1"), ("gfx90a", b"2"), ("gfx11-generic", b"3")]).build();
    let odd = WheelBuilder::new("Odd.Name", "1.0+local.1")
        .build_tag("3")
        .tags("py2.py3-none-any", &["py2-none-any", "py3-none-any"])
        .member(ZipMember::new("odd/lib/a.so", library).mode(0o100_755).zip64(Zip64::Superfluous))
        .member(ZipMember::new("odd/data.bin", vec![7; 70_000]).stored())
        .member(ZipMember::new("odd/run.sh", "#!/bin/sh\n").mode(0o100_755).data_descriptor())
        .file("odd/\u{fc}n\u{ef}code.py", "")
        .file("odd/a,b.txt", "")
        .file("Odd.Name-1.0+local.1.data/platlib/odd/other.py", "")
        .file("odd/aotriton.images/amd-gfx11xx/x", "image")
        .info("RECORD.jws", "{}");
    vec![
        (split(&demo(), &["--wheel-type", "torch-fat"]), "manylinux_2_34_x86_64"),
        (split(&demo_windows(), &["--wheel-type", "torch-fat"]), "win_amd64"),
        (split_built(&odd, &["--databases", "aotriton"]), "any"),
    ]
}

fn paths(split: &Split) -> Vec<PathBuf> {
    split.names().iter().map(|name| split.output().join(name)).collect()
}

#[test]
fn zipfile_accepts_every_output() {
    let Some(python) = tool("python3") else { return };
    // What `python -m zipfile -t` does, for all in one process. It exits with 0 whatever it finds, so its words count.
    let program = "import sys, zipfile\nfor path in sys.argv[1:]: zipfile.main(['-t', path])";
    for (split, _) in splits() {
        let done = succeed(Command::new(&python).args(["-c", program]).args(paths(&split)));
        assert_eq!(texts(&done).0.trim(), ["Done testing"; 9][..split.names().len()].join("\n"));
    }
}

#[test]
fn wheel_unpacks_every_output() {
    let Some(wheel) = tool("wheel") else { return };
    let scratch = tempfile::tempdir().unwrap();
    for (split, _) in splits() {
        for path in paths(&split) {
            // It checks every hash of RECORD, and accepts no weak or missing ones.
            succeed(Command::new(&wheel).arg("unpack").arg("--dest").arg(scratch.path()).arg(path));
        }
    }
}

/// The tree that was installed has every file of the wheels, at its installed place, with its bytes and executable bit.
fn assert_installed(split: &Split, site: &Path) {
    let mut seen = BTreeSet::new();
    for wheel in split.wheels() {
        let record = format!("{}/RECORD", wheel.dist_info());
        for member in
            wheel.members.iter().filter(|member| !member.name.ends_with('/') && member.name != record)
        {
            let place = match member.name.split_once(".data/platlib/") {
                Some((_, place)) => place,
                None => &member.name,
            };
            let installed = fs::read(site.join(place)).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(installed == member.data, "{place}");
            assert!(seen.insert(place.to_owned()), "{place} is installed twice");
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt as _;
                let mode = fs::metadata(site.join(place)).unwrap().permissions().mode();
                assert_eq!(mode & 0o100 != 0, member.mode & 0o100 != 0, "{place}: {mode:o}");
            }
        }
    }
}

#[test]
fn pip_installs_every_output() {
    let Some(python) = tool("python3") else { return };
    if !Command::new(&python).args(["-m", "pip", "--version"]).output().unwrap().status.success() {
        // The same rule as for a program that is missing.
        tool("pip");
        return;
    }
    for (split, platform) in splits() {
        let site = tempfile::tempdir().unwrap();
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet"]);
        pip.args(["--disable-pip-version-check", "--only-binary", ":all:", "--platform", platform]);
        succeed(pip.arg("--target").arg(site.path()).args(paths(&split)));
        assert_installed(&split, site.path());
        if platform.contains("manylinux_2_34") {
            assert_runs(site.path());
        }
    }
}

#[test]
fn uv_installs_every_output() {
    let (Some(uv), Some(python)) = (tool("uv"), tool("python3")) else { return };
    let cache = tempfile::tempdir().unwrap();
    for (split, platform) in splits() {
        let site = tempfile::tempdir().unwrap();
        let mut command = Command::new(&uv);
        command.args(["pip", "install", "--no-deps", "--no-index", "--offline", "--quiet", "--no-config"]);
        command.arg("--cache-dir").arg(cache.path()).arg("--python").arg(&python);
        let target = match platform {
            "win_amd64" => "x86_64-pc-windows-msvc",
            _ => "x86_64-manylinux_2_34",
        };
        command.args(["--python-platform", target]);
        succeed(command.arg("--target").arg(site.path()).args(paths(&split)));
        assert_installed(&split, site.path());
        if platform.contains("manylinux_2_34") {
            assert_runs(site.path());
        }
    }
}

/// What was installed of the demo wheel finds its code objects where the fat wheel has them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn assert_runs(site: &Path) {
    let fat = tempfile::tempdir().unwrap();
    crate::run::install(&[Wheel::read(&demo())], fat.path());
    for binary in ["fatdemo/bin/fatdemo", "fatdemo/lib/libfatdemo.so", "fatdemo/lib/libfatdemo_compressed.so"]
    {
        assert_eq!(crate::run::log(&site.join(binary)), crate::run::log(&fat.path().join(binary)));
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn assert_runs(_site: &Path) {}

#[test]
fn packaging_parses_every_name_and_metadata() {
    let Some(python) = tool("python3") else { return };
    let program = "
import sys, zipfile
try:
    from packaging.metadata import Metadata
    from packaging.utils import parse_wheel_filename, canonicalize_name
except ImportError:
    sys.exit(77)
for path in sys.argv[1:]:
    name, version, build, tags = parse_wheel_filename(path.rsplit('/', 1)[1])
    archive = zipfile.ZipFile(path)
    info = next(n.split('/')[0] for n in archive.namelist() if n.endswith('.dist-info/RECORD'))
    metadata = Metadata.from_email(archive.read(info + '/METADATA'))
    assert (canonicalize_name(metadata.name), metadata.version) == (name, version), path
    lines = archive.read(info + '/WHEEL').decode().splitlines()
    assert {line[5:] for line in lines if line.startswith('Tag: ')} == {str(tag) for tag in tags}, path
    extras = set(metadata.provides_extra or [])
    for requirement in metadata.requires_dist or []:
        if requirement.marker and 'extra' in str(requirement.marker):
            assert any(requirement.marker.evaluate({'extra': extra}) for extra in extras), requirement
";
    for (split, _) in splits() {
        let done = Command::new(&python).args(["-c", program]).args(paths(&split)).output().unwrap();
        if done.status.code() == Some(77) {
            assert!(!required(), "python3 has no packaging, and FATWHEEL_REQUIRE_TOOLS=1");
            eprintln!("skipped: python3 has no packaging");
            return;
        }
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// `installer`, which build front ends use, checks RECORD against every file and refuses what does not fit.
#[test]
fn installer_installs_every_output() {
    let Some(python) = tool("python3") else { return };
    if module_is_missing(&python, "installer") {
        return;
    }
    let program = "
import sys
from installer.sources import WheelFile
for path in sys.argv[1:]:
    with WheelFile.open(path) as wheel:
        wheel.validate_record(validate_contents=True)
";
    for (split, _) in splits() {
        let site = tempfile::tempdir().unwrap();
        succeed(Command::new(&python).args(["-c", program]).args(paths(&split)));
        for path in paths(&split) {
            let mut installer = Command::new(&python);
            installer.args(["-m", "installer", "--no-compile-bytecode", "--prefix", "/", "--destdir"]);
            succeed(installer.arg(site.path()).arg(path));
        }
    }
}

/// What an index checks on upload, and what a linter says: nothing that it does not say of the input.
#[test]
fn twine_and_check_wheel_contents_have_nothing_new_to_say() {
    let (Some(twine), Some(linter)) = (tool("twine"), tool("check-wheel-contents")) else { return };
    let library = FatElf::new().code(&[("gfx942", b"1"), ("gfx1100", b"2")]).build();
    let described = WheelBuilder::new("described", "1.0")
        .metadata(
            "Metadata-Version: 2.1\nName: described\nVersion: 1.0\nSummary: It is\n\
             Description-Content-Type: text/markdown\n\n# Described\n\nProvides-Extra: none of this\n",
        )
        .file("described/__init__.py", "import ctypes\n")
        .member(ZipMember::new("described/a.so", library).mode(0o100_755))
        .file("described/aotriton.images/amd-gfx11xx/x", "image");
    let scratch = tempfile::tempdir().unwrap();
    let input = described.write(scratch.path());
    let split = split(&input, &["--databases", "aotriton"]);
    let host = split.output().join(input.file_name().unwrap());
    succeed(Command::new(&twine).args(["check", "--strict"]).arg(&host));
    // Device wheels have no long description, which strict mode takes for a fault of any wheel.
    succeed(Command::new(&twine).arg("check").args(paths(&split)));
    // W004, W007, W008, W010: no modules, nothing but data, which is what a device wheel is.
    let mut lint = Command::new(&linter);
    lint.args(["--no-config", "--ignore", "W004,W007,W008,W010"]);
    succeed(lint.args(paths(&split)));
}

/// Whether Python cannot import `module`, which is said.
fn module_is_missing(python: &Path, module: &str) -> bool {
    let found =
        Command::new(python).args(["-c", &format!("import {module}")]).output().unwrap().status.success();
    if !found {
        assert!(!required(), "python3 has no {module}, and FATWHEEL_REQUIRE_TOOLS=1");
        eprintln!("skipped: python3 has no {module}");
    }
    !found
}
