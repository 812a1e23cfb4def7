//! Inputs and surroundings that were made to do harm, or do it by chance: links that lead out of the output, files
//! where directories should be, pipes that nobody writes to.

use std::fs;
use std::path::Path;

use crate::support::elf_builder::FatElf;
use crate::support::run::{demo, names, refuse, split_built, split_command, texts};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::zip_builder::ZipMember;

const LINK: u32 = 0o120_777;

fn library() -> Vec<u8> {
    FatElf::new().code(&[("gfx942", b"code for gfx942")]).build()
}

fn wheel() -> WheelBuilder {
    WheelBuilder::new("ho", "1").file("ho/a.so", library())
}

fn refused(wheel: &WheelBuilder, arguments: &[&str], code: i32) -> String {
    let scratch = tempfile::tempdir().unwrap();
    refuse(&wheel.write(scratch.path()), arguments, code)
}

#[test]
fn nothing_is_written_through_a_link() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    for (link, file) in [("ho/l", "ho/l/x"), ("ho-1.data", "ho-1.data/platlib/ho/x")] {
        let wheel = wheel().member(ZipMember::new(link, target).mode(LINK)).file(file, "harm");
        for format in ["wheel", "directory"] {
            let stderr = refused(&wheel, &["--output-format", format], 1);
            assert!(
                stderr.contains(&format!("{file}: wheel: it needs a directory where {link} is")),
                "{stderr}"
            );
        }
    }
    assert!(names(outside.path()).is_empty());
}

#[test]
fn a_file_where_a_directory_should_be() {
    let stderr = refused(&wheel().file("ho/x", "").file("ho/x/y", ""), &[], 1);
    assert!(stderr.contains("ho/x/y: wheel: it needs a directory where ho/x is a file"), "{stderr}");
    let stderr = refused(&wheel().file("ho/.kpack", ""), &[], 1);
    assert!(stderr.contains("ho/.kpack: wheel: a device wheel would need a directory"), "{stderr}");
}

#[test]
fn a_name_on_a_drive() {
    let stderr = refused(&wheel().file("C:/x", ""), &[], 1);
    assert!(stderr.contains("absolute or on a drive"), "{stderr}");
}

#[test]
fn data_trees_that_install_elsewhere_hold_no_archives() {
    let scripts = WheelBuilder::new("ho", "1").file("ho-1.data/scripts/run", library());
    let stderr = refused(&scripts, &[], 1);
    assert!(stderr.contains("ho-1.data/scripts/run: a fat binary in no directory"), "{stderr}");
    assert!(refused(&scripts, &["--overlay-root", "ho-1.data"], 2).contains("install elsewhere"));
    let split = split_built(&wheel().file("ho-1.data/scripts/run", library()), &[]);
    assert!(split.stderr.contains("ho-1.data/scripts/run: a fat binary outside the overlay root ho"));
    assert_eq!(split.starting("ho-1").member("ho-1.data/scripts/run").data, library());
}

#[test]
fn a_directory_in_the_place_of_a_wheel_is_not_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().write(scratch.path());
    let output = scratch.path().join("out");
    let inside = output.join("amd_ho_device_gfx942-1-py3-none-linux_x86_64.whl/precious");
    fs::create_dir_all(&inside).unwrap();
    let done = split_command::<&str>(&input, &output, &[]).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", texts(&done).1);
    assert!(inside.exists());
    assert_eq!(names(&output).len(), 1);
}

#[test]
fn a_device_wheel_does_not_take_the_hosts_name() {
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join("amd_ho_device_gfx942-1-py3-none-linux_x86_64.whl");
    fs::copy(wheel().write(scratch.path()), &input).unwrap();
    let stderr = refuse(&input, &[], 2);
    assert!(stderr.contains("two wheels of this split would be named amd_ho_device_gfx942-1-"), "{stderr}");
    fs::rename(input, scratch.path().join("other-1-py3-none-any.whl")).unwrap();
    let output = scratch.path().join("out");
    let done = split_command::<&str>(&scratch.path().join("other-1-py3-none-any.whl"), &output, &[]).output();
    let stderr = texts(&done.unwrap()).1;
    assert!(stderr.contains("the file name says other, METADATA says ho"), "{stderr}");
}

#[cfg(unix)]
mod unix {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn fifo(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn a_fifo_is_an_error_at_once() {
        let scratch = tempfile::tempdir().unwrap();
        let unpacked = scratch.path().join("unpacked");
        wheel().unpack(&unpacked);
        fifo(&unpacked.join("ho/fifo"));
        let stderr = refuse(&unpacked, &[], 3);
        assert!(stderr.contains("ho/fifo: neither file, directory nor link"), "{stderr}");
        fifo(&scratch.path().join("f-1-py3-none-any.whl"));
        let stderr = refuse(&scratch.path().join("f-1-py3-none-any.whl"), &[], 3);
        assert!(stderr.contains("not a regular file") && stderr.contains("say - for"), "{stderr}");
    }

    #[test]
    fn a_signal_stops_the_wait_for_a_writer_that_hangs() {
        let bytes = fs::read(demo()).unwrap();
        for sent in [0, bytes.len() / 2] {
            let scratch = tempfile::tempdir().unwrap();
            let output = scratch.path().join("new/out");
            let mut child = split_command::<&str>(Path::new("-"), &output, &[])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(&bytes[..sent]).unwrap();
            while !output.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let signalled = Instant::now();
            assert!(
                Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success()
            );
            while child.try_wait().unwrap().is_none() && signalled.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(stdin);
            assert!(signalled.elapsed() < Duration::from_secs(10));
            assert_eq!(child.wait().unwrap().code(), Some(130));
            assert!(!scratch.path().join("new").exists());
        }
    }

    #[test]
    fn a_spool_elsewhere_needs_no_output_directory() {
        let scratch = tempfile::tempdir().unwrap();
        for spool in ["memory", scratch.path().to_str().unwrap()] {
            let output = scratch.path().join("new/out");
            let mut child = split_command(Path::new("-"), &output, &["--spool", spool, "-q"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(&fs::read(demo()).unwrap()).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(0));
            assert_eq!(names(&output).len(), 5);
            fs::remove_dir_all(scratch.path().join("new")).unwrap();
        }
    }

    #[test]
    fn a_file_that_only_its_owner_may_write_stays_a_file() {
        let wheel = wheel().member(ZipMember::new("ho/x", "target").mode(0o100_200));
        let split = split_built(&wheel, &["--output-format", "directory"]);
        let file = split.output().join("ho-1-py3-none-linux_x86_64/ho/x");
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o200, 0o200);
    }
}
