//! Wheels from standard input: the outputs are those of the file, whatever comes through the pipe and however.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use super::determinism::{busy, digests};
use crate::support::elf_builder::{FatElf, noise};
use crate::support::run::{demo, demo_windows, fixture, names, split, split_command, texts};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::zip_builder::ZipMember;

/// `cat PIECES | fatwheel split - ARGUMENTS`, with a pause before each piece.
fn pipe(pieces: &[&[u8]], pause: Duration, output: &Path, arguments: &[&str]) -> Output {
    let mut command = split_command(Path::new("-"), output, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
    let feeder = thread::spawn(move || {
        for piece in pieces {
            thread::sleep(pause);
            match stdin.write_all(&piece) {
                // The program may have seen enough.
                Err(error) => return assert_eq!(error.kind(), ErrorKind::BrokenPipe),
                Ok(()) => stdin.flush().unwrap(),
            }
        }
    });
    let done = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    done
}

/// Checks that a wheel gives the same outputs through a pipe, cut into `cuts` pieces, as it does as a file.
fn same_through_a_pipe(input: &Path, cuts: usize, arguments: &[&str]) {
    let expected = digests(&split(input, arguments).output());
    let bytes = fs::read(input).unwrap();
    let pieces: Vec<&[u8]> = bytes.chunks(bytes.len().div_ceil(cuts)).collect();
    let name = ["--input-name", input.file_name().unwrap().to_str().unwrap()];
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    let done = pipe(&pieces, Duration::from_millis(2), &output, &[arguments, &name].concat());
    assert_eq!(done.status.code(), Some(0), "{}", texts(&done).1);
    assert_eq!(digests(&output), expected, "{} in {cuts} pieces", input.display());
}

#[test]
fn the_same_bytes_as_from_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let busy = busy().write(scratch.path());
    for cuts in [1, 7, 60] {
        same_through_a_pipe(&demo(), cuts, &["--wheel-type", "torch-fat"]);
        same_through_a_pipe(&demo_windows(), cuts, &[]);
        same_through_a_pipe(&busy, cuts, &["--databases", "rocblas", "-j3"]);
    }
    same_through_a_pipe(&busy, 5, &["--spool", "memory"]);
    same_through_a_pipe(&busy, 5, &["--spool", scratch.path().to_str().unwrap()]);
    same_through_a_pipe(
        &busy,
        5,
        &["--compression", "none", "--kpack-layout", "per-target", "--archs", "gfx90a"],
    );
    same_through_a_pipe(&busy, 5, &["--generate-variant-wheel", "--output-format", "wheel"]);
}

#[test]
fn the_same_for_every_fixture() {
    let scratch = tempfile::tempdir().unwrap();
    let mut wheel = WheelBuilder::new("all", "1");
    for name in names(&fixture("elf")) {
        let binary = fs::read(fixture("elf").join(&name)).unwrap();
        wheel = wheel.member(ZipMember::new(&format!("all/{name}"), binary).mode(0o100_755));
    }
    same_through_a_pipe(&wheel.write(scratch.path()), 9, &[]);
}

#[test]
fn members_whose_size_is_told_too_late_and_stored_ones() {
    let scratch = tempfile::tempdir().unwrap();
    let library = |seed| FatElf::new().code(&[("gfx942", &noise(seed, 90_000)), ("gfx1100", b"x")]).build();
    let wheel = WheelBuilder::new("odd", "1")
        .member(ZipMember::new("odd/a.so", library(1)).stored())
        .member(ZipMember::new("odd/b.so", library(2)).data_descriptor())
        .member(ZipMember::new("odd/c.so", library(3)));
    same_through_a_pipe(&wheel.write(scratch.path()), 11, &[]);
}

#[test]
fn a_broken_pipe_leaves_nothing() {
    let whole = fs::read(demo()).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x55;
    let mut appended = whole.clone();
    appended.extend(b"more");
    let cases: [(&[u8], &str); 5] = [
        (b"", "the other end of the pipe has sent nothing"),
        (b"this is no zip archive, but it is long enough for one", "no zip archive"),
        (&whole[..whole.len() * 2 / 3], "truncated"),
        (&flipped, "fatdemo/"),
        (&appended, "appended"),
    ];
    for (bytes, word) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let output = scratch.path().join("new/out");
        let done = pipe(&[bytes], Duration::ZERO, &output, &[]);
        let (stdout, stderr) = texts(&done);
        assert_eq!(done.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(word) && stderr.contains("hint"), "{word}: {stderr}");
        assert!(stdout.is_empty());
        assert_eq!(names(scratch.path()), [""; 0], "{word}");
    }
}

#[test]
fn a_redirected_file_keeps_its_name() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    let mut command = split_command(Path::new("-"), &output, &["-q"]);
    let done = command.stdin(fs::File::open(demo()).unwrap()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", texts(&done).1);
    assert_eq!(digests(&output), digests(&split(&demo(), &[]).output()));
}
