//! Unpacked wheels as input and as output: all four combinations hold the same files.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::elf_builder::{FatElf, noise};
use crate::support::run::{names, refuse, split_command, texts};
use crate::support::wheel_builder::{WheelBuilder, record_hash};
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::ZipMember;

fn wheel() -> WheelBuilder {
    let library = FatElf::new().code(&[("gfx942", &noise(1, 9000)), ("gfx1100", &noise(2, 9000))]).build();
    WheelBuilder::new("dir", "1.5")
        .build_tag("3")
        .file("dir/__init__.py", "import ctypes\n")
        .member(ZipMember::new("dir/bin/run", "#!/bin/sh\n").mode(0o100_755))
        .member(ZipMember::new("dir/lib/liba.so.1", library).mode(0o100_755))
        .member(ZipMember::new("dir/lib/liba.so", "liba.so.1").mode(0o120_777))
        .file("dir/lib/rocblas/library/k_gfx942.co", "kernel")
        .info("licenses/LICENSE", "MIT")
}

/// Mode and content of every file and link below `directory`, by path.
fn tree(directory: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    fn walk(directory: &Path, prefix: &str, found: &mut BTreeMap<String, (u32, Vec<u8>)>) {
        for name in names(directory) {
            let path = directory.join(&name);
            let name = format!("{prefix}{name}");
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                walk(&path, &format!("{name}/"), found);
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
                found.insert(name, (0o120_777, target));
            } else {
                found.insert(name, (metadata.permissions().mode(), fs::read(&path).unwrap()));
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(directory, "", &mut found);
    found
}

/// The same of a wheel.
fn files(wheel: &Wheel) -> BTreeMap<String, (u32, Vec<u8>)> {
    let files = wheel.members.iter().filter(|member| !member.name.ends_with('/'));
    files.map(|member| (member.name.clone(), (member.mode, member.data.clone()))).collect()
}

/// Splits to `output` and returns every output by its name without `.whl`. RECORD is compared by its rows, since
/// their order is that of the members.
fn outputs(input: &Path, output: &Path, format: &str) -> BTreeMap<String, BTreeMap<String, (u32, Vec<u8>)>> {
    outputs_with(input, output, format, &[])
}

/// The same with more arguments.
fn outputs_with(
    input: &Path,
    output: &Path,
    format: &str,
    more: &[&str],
) -> BTreeMap<String, BTreeMap<String, (u32, Vec<u8>)>> {
    let arguments = [&["--output-format", format, "--databases", "rocblas", "-j2"], more].concat();
    let done = split_command(input, output, &arguments).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", texts(&done).1);
    let mut all = BTreeMap::new();
    for name in names(output) {
        let path = output.join(&name);
        let stem = name.strip_suffix(".whl").unwrap_or(&name).to_owned();
        let mut files = if format == "wheel" { files(&Wheel::open(&path)) } else { tree(&path) };
        for (path, (_, data)) in &mut files {
            if path.ends_with("/RECORD") {
                let mut rows: Vec<&[u8]> = data.split(|&byte| byte == b'\n').collect();
                rows.sort_unstable();
                *data = rows.concat();
            }
        }
        all.insert(stem, files);
    }
    all
}

#[test]
fn all_four_combinations_hold_the_same_files() {
    let scratch = tempfile::tempdir().unwrap();
    let packed = wheel().write(scratch.path());
    let unpacked = scratch.path().join("unpacked");
    wheel().unpack(&unpacked);
    let all = ["--generate-variant-wheel", "--kpack-layout", "per-target", "--compression", "none"];
    for (number, more) in [&[][..], &all].into_iter().enumerate() {
        let output = |name: &str| scratch.path().join(format!("{name}{number}"));
        let first = outputs_with(&packed, &output("ww"), "wheel", more);
        let mut expected = vec![
            "amd_dir_device_gfx1100-1.5-3-py3-none-linux_x86_64",
            "amd_dir_device_gfx942-1.5-3-py3-none-linux_x86_64",
            "dir-1.5-3-py3-none-linux_x86_64",
        ];
        if !more.is_empty() {
            expected.push("dir-1.5-3-py3-none-linux_x86_64-variant");
        }
        assert_eq!(first.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        for (input, directory, format) in
            [(&packed, "wd", "directory"), (&unpacked, "dw", "wheel"), (&unpacked, "dd", "directory")]
        {
            let other = outputs_with(input, &output(directory), format, more);
            assert_eq!(first.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{directory}");
            for (name, files) in &first {
                let others = &other[name];
                assert_eq!(
                    files.keys().collect::<Vec<_>>(),
                    others.keys().collect::<Vec<_>>(),
                    "{directory} {name}"
                );
                for (path, (mode, data)) in files {
                    let (other_mode, other_data) = &others[path];
                    assert_eq!(mode, other_mode, "{directory} {name} {path}");
                    assert!(data == other_data, "{directory} {name} {path}");
                }
            }
        }
    }
}

#[test]
fn links_and_modes_of_a_directory_output() {
    let scratch = tempfile::tempdir().unwrap();
    let packed = wheel().write(scratch.path());
    let output = scratch.path().join("out");
    outputs(&packed, &output, "directory");
    let host = output.join("dir-1.5-3-py3-none-linux_x86_64");
    assert_eq!(fs::read_link(host.join("dir/lib/liba.so")).unwrap(), Path::new("liba.so.1"));
    for (path, mode) in [("dir/bin/run", 0o755), ("dir/lib/liba.so.1", 0o755), ("dir/__init__.py", 0o644)] {
        assert_eq!(fs::metadata(host.join(path)).unwrap().permissions().mode() & 0o777, mode, "{path}");
    }
    assert!(!host.join("dir/lib/rocblas").exists(), "an emptied directory");
    assert_eq!(names(&output).len(), 3, "no hidden directory is left");
}

#[test]
fn record_of_a_directory_output_fits_its_files() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    let arguments = ["--output-format", "directory"];
    let input = wheel().write(scratch.path());
    assert_eq!(split_command(&input, &output, &arguments).output().unwrap().status.code(), Some(0));
    for name in names(&output) {
        let files = tree(&output.join(&name));
        let (record_path, record) =
            files.iter().find(|(path, _)| path.ends_with(".dist-info/RECORD")).unwrap();
        let record = String::from_utf8(record.1.clone()).unwrap();
        let mut rows: Vec<&str> = record.lines().collect();
        let mut expected: Vec<String> = files
            .iter()
            .map(|(path, (_, data))| match path == record_path {
                true => format!("{path},,"),
                false => format!("{path},{},{}", record_hash(data), data.len()),
            })
            .collect();
        rows.sort_unstable();
        expected.sort_unstable();
        assert_eq!(rows, expected, "{name}");
    }
}

#[test]
fn a_directory_without_record() {
    let scratch = tempfile::tempdir().unwrap();
    let unpacked = scratch.path().join("unpacked");
    wheel().no_record().unpack(&unpacked);
    assert_eq!(outputs(&unpacked, &scratch.path().join("out"), "wheel").len(), 3);
}

#[test]
fn an_existing_directory_of_the_hosts_name_is_replaced_whole() {
    let scratch = tempfile::tempdir().unwrap();
    let packed = wheel().write(scratch.path());
    let output = scratch.path().join("out");
    let host = output.join("dir-1.5-3-py3-none-linux_x86_64");
    fs::create_dir_all(host.join("stale")).unwrap();
    fs::write(host.join("stale/file"), "from before").unwrap();
    outputs(&packed, &output, "directory");
    assert!(!host.join("stale").exists() && host.join("dir/__init__.py").exists());
    assert_eq!(names(&output).len(), 3);
}

#[test]
fn bad_directories() {
    let scratch = tempfile::tempdir().unwrap();
    let empty = scratch.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let stderr = refuse(&empty, &[], 1);
    assert!(stderr.contains("no .dist-info directory"), "{stderr}");
    let changed = scratch.path().join("changed");
    wheel().unpack(&changed);
    fs::write(changed.join("dir/__init__.py"), "import ctypes!").unwrap();
    let stderr = refuse(&changed, &[], 1);
    assert!(stderr.contains("dir/__init__.py") && stderr.contains("RECORD"), "{stderr}");
    for format in ["wheel", "directory"] {
        let stderr = refuse(&changed, &["--output-format", format], 1);
        assert!(stderr.contains("--no-verify-record"), "{stderr}");
    }
}

#[test]
fn a_failure_of_the_second_pass_leaves_no_directory() {
    use crate::support::bundle_builder::{CcobMethod, ccob};
    use crate::support::elf_builder::bundle;
    let mut spoilt = ccob(2, CcobMethod::Zlib, &bundle(&[("gfx942", &noise(5, 2_000_000))]));
    let length = spoilt.len();
    spoilt[length - 1000..length - 900].fill(0x55);
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().file("dir/lib/z.so", FatElf::new().unit(spoilt).build()).write(scratch.path());
    refuse(&input, &["--output-format", "directory"], 1);
}
