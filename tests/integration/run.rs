//! Programs and libraries with device code run, before and after a split, under the real dynamic loader and a stub HIP
//! runtime that looks code objects up as the real one does. Both must find the same ones.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::run::{Split, demo, fixture, names, split, split_built};
use crate::support::tools::{required, succeed, tool};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::ZipMember;

/// Devices as they report themselves, with and without exact code in the fixtures, and one that nothing is for.
const ISAS: &str = "gfx90a:sramecc+:xnack-,gfx90a:sramecc+:xnack+,gfx90a:sramecc-:xnack-,gfx90a,gfx942:sramecc+:xnack-,\
gfx942:sramecc+:xnack+,gfx942,gfx950:sramecc+:xnack-,gfx1100,gfx1101,gfx1151,gfx1200,gfx1201,gfx900:xnack-,gfx906:sramecc+:xnack-,\
gfx908:sramecc+:xnack-,gfx1030";

/// Installs wheels over each other, as an installer does. No two may have a file in common.
pub fn install(wheels: &[Wheel], site: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    for wheel in wheels {
        for member in wheel.members.iter().filter(|member| !member.name.ends_with('/')) {
            let path = site.join(&member.name);
            assert!(!path.exists(), "{} is in two wheels", member.name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &member.data).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(member.mode & 0o777)).unwrap();
        }
    }
}

/// What the stub logs when `command` runs on a machine with devices of these ISAs. It must succeed.
pub fn log_of(command: &mut Command, isas: &str) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("log");
    command
        .env("LD_LIBRARY_PATH", fixture("stub"))
        .env("FATWHEEL_STUB_ISA", isas)
        .env("FATWHEEL_STUB_LOG", &log);
    succeed(command);
    let log = fs::read_to_string(&log).unwrap_or_default();
    assert!(!log.contains("damaged"), "{log}");
    log
}

/// The log of running a program, or of loading a library, for all devices.
pub fn log(binary: &Path) -> String {
    log_on(binary, ISAS)
}

/// The same for devices of these ISAs.
pub fn log_on(binary: &Path, isas: &str) -> String {
    if binary.extension().is_some_and(|extension| extension == "so") {
        log_of(Command::new(fixture("stub/loader")).arg(binary), isas)
    } else {
        log_of(&mut Command::new(binary), isas)
    }
}

/// Runs every one of `binaries` as installed from `input` and as installed from the split's wheels.
fn same_logs(input: &Path, split: &Split, binaries: &[String]) -> usize {
    let scratch = tempfile::tempdir().unwrap();
    let (fat, thin) = (scratch.path().join("fat"), scratch.path().join("thin"));
    install(&[Wheel::read(input)], &fat);
    install(&split.wheels(), &thin);
    let mut found = 0;
    for binary in binaries {
        assert_ne!(
            fs::read(fat.join(binary)).unwrap(),
            fs::read(thin.join(binary)).unwrap(),
            "{binary} is not split"
        );
        let (before, after) = (log(&fat.join(binary)), log(&thin.join(binary)));
        assert_eq!(before, after, "{binary}");
        assert!(!before.is_empty() || binary.contains("static_"), "{binary} registers no wrapper");
        found += before.lines().filter(|line| !line.ends_with("missing")).count();
    }
    found
}

#[test]
fn the_demo_wheel_finds_the_same_code_objects_before_and_after() {
    let binaries = ["bin/fatdemo", "lib/libfatdemo.so", "lib/libfatdemo_compressed.so"];
    let binaries: Vec<String> = binaries.iter().map(|name| format!("fatdemo/{name}")).collect();
    for arguments in [
        &["-j1"][..],
        &["-j4", "--compression", "none"],
        &["--compression-level", "19", "--databases", "rocblas"],
        &["--device-package-prefix", "other", "--overlay-root", "fatdemo"],
    ] {
        let found = same_logs(&demo(), &split(&demo(), arguments), &binaries);
        assert!(found >= 30, "{arguments:?}: {found}");
    }
}

/// Names of the ELF fixtures that this machine can run.
fn native() -> Vec<String> {
    let foreign = ["aarch64", "powerpc64le", "riscv64"];
    names(&fixture("elf"))
        .into_iter()
        .filter(|name| !foreign.iter().any(|machine| name.contains(machine)))
        .collect()
}

/// A wheel with every ELF fixture, at several depths.
fn all_fixtures() -> (WheelBuilder, Vec<String>) {
    let mut wheel = WheelBuilder::new("fixtures", "1");
    let mut paths = Vec::new();
    for (number, name) in names(&fixture("elf")).into_iter().enumerate() {
        let path = format!("fixtures/{}{name}", ["", "lib/", "lib/very/deep/"][number % 3]);
        let data = fs::read(fixture("elf").join(&name)).unwrap();
        wheel = wheel.member(ZipMember::new(&path, data).mode(0o100_755));
        paths.push(path);
    }
    (wheel, paths)
}

#[test]
fn every_elf_fixture_finds_the_same_code_objects_before_and_after() {
    let (wheel, paths) = all_fixtures();
    let native = native();
    let paths: Vec<String> = paths
        .into_iter()
        .filter(|path| native.iter().any(|name| path.ends_with(&format!("/{name}"))))
        .collect();
    assert_eq!(paths.len(), 39, "a new fixture: is it run?");
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    for arguments in [&[][..], &["--compression", "none"]] {
        let found = same_logs(&input, &split(&input, arguments), &paths);
        assert!(found >= 200, "{found}");
    }
}

#[test]
fn foreign_static_programs_run_under_qemu() {
    let (wheel, paths) = all_fixtures();
    let scratch = tempfile::tempdir().unwrap();
    install(&split_built(&wheel, &[]).wheels(), scratch.path());
    for (machine, emulator) in
        [("aarch64", "qemu-aarch64"), ("powerpc64le", "qemu-ppc64le"), ("riscv64", "qemu-riscv64")]
    {
        let Some(emulator) = tool(emulator) else { continue };
        let path = paths.iter().find(|path| path.ends_with(&format!("static_pie_{machine}"))).unwrap();
        succeed(Command::new(emulator).arg(scratch.path().join(path)));
    }
}

#[test]
fn a_split_program_notices_that_a_device_wheel_is_missing() {
    // Or else the tests above could not fail.
    let scratch = tempfile::tempdir().unwrap();
    let split = split(&demo(), &[]);
    let wheels: Vec<Wheel> =
        split.wheels().into_iter().filter(|wheel| !wheel.file_name().contains("gfx942")).collect();
    install(&wheels, scratch.path());
    let log = log(&scratch.path().join("fatdemo/lib/libfatdemo.so"));
    assert!(log.lines().any(|line| line.contains(" gfx942 ") && line.ends_with("missing")), "{log}");
    assert!(log.lines().any(|line| line.contains(" gfx1100 ") && !line.ends_with("missing")), "{log}");
}

#[test]
fn archives_are_found_from_a_data_tree_and_through_a_symbolic_link() {
    let library = fs::read(fixture("elf/libmany.so")).unwrap();
    let wheel = WheelBuilder::new("tree", "1")
        .file("tree/__init__.py", "")
        .member(ZipMember::new("tree-1.data/platlib/tree/lib/libmany.so", library.clone()).mode(0o100_755));
    let split = split_built(&wheel, &[]);
    let scratch = tempfile::tempdir().unwrap();
    install(&split.wheels(), scratch.path());
    let placed = scratch.path().join("tree/lib/libmany.so");
    fs::create_dir_all(placed.parent().unwrap()).unwrap();
    fs::rename(scratch.path().join("tree-1.data/platlib/tree/lib/libmany.so"), &placed).unwrap();
    let expected = log(&fixture("elf/libmany.so"));
    assert_eq!(log(&placed), expected);
    let link = scratch.path().join("libmany.so");
    std::os::unix::fs::symlink(&placed, &link).unwrap();
    assert_eq!(log(&link), expected);
}

/// A Wine prefix of its own.
fn wine(wine: &Path, prefix: &Path) -> Command {
    let mut command = Command::new(wine);
    command.env("WINEPREFIX", prefix).env("WINEDEBUG", "-all").env("DISPLAY", "");
    command
}

#[test]
fn split_dlls_load_under_wine() {
    if !required() {
        eprintln!("skipped: making a Wine prefix takes long; FATWHEEL_REQUIRE_TOOLS=1 does it");
        return;
    }
    let given = std::env::var_os("FATWHEEL_WINE").map(PathBuf::from);
    let Some(program) = given.or_else(|| tool("wine")) else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut wheel = WheelBuilder::new("pe", "1").tags("py3-none-win_amd64", &["py3-none-win_amd64"]);
    // wine runs the machine's own programs only.
    let binaries: Vec<String> =
        names(&fixture("pe")).into_iter().filter(|name| name != "arm64.dll").collect();
    for name in &binaries {
        wheel = wheel.file(&format!("pe/{name}"), fs::read(fixture("pe").join(name)).unwrap());
    }
    let site = scratch.path().join("site");
    install(&split_built(&wheel, &[]).wheels(), &site);
    let place: PathBuf = site.join("pe");
    for file in ["loader.exe", "amdhip64_7.dll"] {
        fs::copy(fixture("stub").join(file), place.join(file)).unwrap();
    }
    for name in &binaries {
        let mut command = wine(&program, &scratch.path().join("prefix"));
        command.current_dir(&place);
        if name.ends_with(".exe") {
            command.arg(name);
        } else {
            command.args(["loader.exe", name]);
        }
        succeed(&mut command);
    }
    let _ = wine(&program, &scratch.path().join("prefix")).args(["wineboot", "--kill"]).output();
}
