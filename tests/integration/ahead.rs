//! Code objects that are compressed before the plan is there: the outputs must be those of a split that waits.
//!
//! A small wheel is split without anticipation, so a wheel with the same binaries and a large file besides shows what
//! anticipation makes of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::support::bundle_builder::{CCOB_KINDS, ccob, ccob_with_payload};
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::run::{Split, refuse_built, split, split_built, split_command, texts};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::sha256;

use super::determinism::busy;

/// More than wheels without anticipation have.
fn filler() -> Vec<u8> {
    vec![7; 9 << 20]
}

/// SHA-256 of every archive and of every member of the host but the filler and `.dist-info`.
fn contents(split: &Split) -> BTreeMap<String, String> {
    let mut contents: BTreeMap<String, String> = BTreeMap::new();
    for wheel in split.wheels() {
        for member in &wheel.members {
            if !member.name.contains(".dist-info/") && !member.name.ends_with("filler.bin") {
                contents.insert(member.name.clone(), sha256(&member.data));
            }
        }
    }
    contents
}

fn same_with_and_without(wheel: WheelBuilder, root: &str, arguments: &[&str]) {
    let without = contents(&split_built(&wheel, arguments));
    assert!(without.keys().any(|name| name.ends_with(".kpack")));
    let large = wheel.file(&format!("{root}/filler.bin"), filler());
    for jobs in ["-j1", "-j2", "-j5"] {
        let with = split_built(&large, &[&[jobs], arguments].concat());
        assert_eq!(contents(&with), without, "{jobs}");
    }
    let unpacked = tempfile::tempdir().unwrap();
    large.unpack(unpacked.path());
    assert_eq!(contents(&split(unpacked.path(), arguments)), without, "from a directory");
}

#[test]
fn all_kinds_of_bundles_come_out_the_same() {
    same_with_and_without(busy(), "busy", &["--databases", "rocblas"]);
    same_with_and_without(busy(), "busy", &["--compression", "none", "--kpack-layout", "per-target"]);
    same_with_and_without(busy(), "busy", &["--verify-bundles"]);
    same_with_and_without(busy(), "busy", &["--memory-limit", "64M"]);
}

#[test]
fn objects_that_are_compressed_in_parts_come_out_the_same() {
    // Over 20 MiB, and compressible, so that the test does not take long.
    let large: Vec<u8> = noise(3, 4096).into_iter().cycle().take(21 << 20).collect();
    let content = bundle(&[("gfx942", &large), ("gfx1100", &noise(5, 100))]);
    let elf = FatElf::new().code(&[("gfx942", &large), ("gfx1100", &noise(4, 1000))]).unit(ccob(
        2,
        CCOB_KINDS[3].1,
        &content,
    ));
    let wheel = WheelBuilder::new("large", "1").file("large/lib.so", elf.build());
    // Only a limit on what is anticipated makes the difference here: the binary is large itself.
    let anticipated = contents(&split_built(&wheel, &[]));
    let planned = contents(&split_built(&wheel, &["--archs", "gfx942,gfx1100"]));
    assert_eq!(anticipated, planned);
}

#[test]
fn wrong_guesses_do_no_harm() {
    let real = bundle(&[("gfx942", &noise(1, 9000))]);
    // What begins like a bundle at a page, inside a code object: a whole one, one that claims too much, a compressed
    // one that is none, and one whose payload is damaged.
    let mut damaged = ccob(2, CCOB_KINDS[3].1, &real);
    let end = damaged.len() - 40;
    damaged[60..end].fill(0x55);
    let lying = [&b"CCOB\x02\0\x01\0\0\x40\0\0\0\x10\0\0"[..], &noise(9, 16384)].concat();
    let mut claims = real.clone();
    claims[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut traps = Vec::new();
    for trap in [&real, &damaged, &lying, &claims, &ccob(3, CCOB_KINDS[3].1, &real)] {
        traps.resize(traps.len().next_multiple_of(4096), 0);
        traps.extend_from_slice(trap);
    }
    let elf = FatElf::new().code(&[("gfx942", &traps), ("gfx1100", &noise(2, 5000))]).unit(real.clone());
    let wheel = WheelBuilder::new("traps", "1")
        .file("traps/lib.so", elf.build())
        .file("traps/plain.so", [&b"\x7fELF\x02\x01\x01\0"[..], &[0; 4088], &traps].concat());
    same_with_and_without(wheel, "traps", &[]);
}

/// A damaged bundle is refused as it is without anticipation, however many of its objects have come out of it.
#[test]
fn damage_is_found_although_objects_were_made_ahead() {
    let content =
        bundle(&[("gfx942", &noise(1, 400_000)), ("gfx1100", &noise(2, 300_000)), ("gfx90a", b"x")]);
    for (version, method) in CCOB_KINDS.into_iter().filter(|kind| kind.0 > 1) {
        let good = ccob(version, method, &content);
        let header = if version == 2 { 24 } else { 32 };
        // The stream ends in the middle of the second object, and a byte too many is behind it.
        let middle = &good[header..header + (good.len() - header) * 2 / 3];
        let longer = [&good[header..], b"!"].concat();
        for payload in [middle, &longer] {
            let damaged = ccob_with_payload(version, method, &content, payload);
            let elf = FatElf::new().code(&[("gfx942", &noise(3, 9000))]).unit(damaged);
            let wheel = WheelBuilder::new("bad", "1").file("bad/lib.so", elf.build());
            let words = ["bad/lib.so", "compressed offload bundle"];
            refuse_built(&wheel, &["-j2"], &words);
            let large = wheel.file("bad/filler.bin", filler());
            for jobs in ["-j1", "-j2"] {
                refuse_built(&large, &[jobs], &words);
            }
            // A pipe is always anticipated, even if only objects are wanted that are not damaged.
            let bytes = large.bytes();
            let output = tempfile::tempdir().unwrap();
            let name = large.file_name();
            let arguments = ["--input-name", name.as_str(), "--archs", "gfx942"];
            let mut child = split_command(Path::new("-"), output.path(), &arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(&bytes).unwrap();
            let done = child.wait_with_output().unwrap();
            let (_, stderr) = texts(&done);
            assert_eq!(done.status.code(), Some(1), "{stderr}");
            assert!(stderr.contains("compressed offload bundle"), "{stderr}");
        }
    }
}

#[test]
fn hashes_of_bundles_count_where_bundles_are_and_only_there() {
    let content = bundle(&[("gfx942", &noise(1, 40_000))]);
    let mut wrong = ccob(2, CCOB_KINDS[3].1, &content);
    wrong[16] ^= 1;
    let mut trap = noise(4, 8192);
    trap.extend_from_slice(&wrong);
    // Inside a code object, at a page: it is none.
    let elf = FatElf::new().code(&[("gfx942", &trap), ("gfx1100", b"code")]);
    let wheel = WheelBuilder::new("hash", "1").file("hash/lib.so", elf.build());
    same_with_and_without(wheel, "hash", &["--verify-bundles"]);
    let elf = FatElf::new().code(&[("gfx942", &noise(5, 100))]).unit(wrong);
    let wheel = WheelBuilder::new("hash", "1").file("hash/lib.so", elf.build());
    refuse_built(&wheel, &["--verify-bundles"], &["hash/lib.so", "MD5"]);
    refuse_built(&wheel.file("hash/filler.bin", filler()), &["--verify-bundles"], &["hash/lib.so", "MD5"]);
}

/// A bundle that just fits the smallest budget, with an object that is compressed in parts, twice.
#[test]
fn a_decoder_does_not_wait_for_itself() {
    let mut elf = FatElf::new();
    for seed in 0..2 {
        let mut large = noise(seed, 6 << 20);
        large.resize((20 << 20) + 70_000, 1);
        elf = elf.unit(ccob(2, CCOB_KINDS[3].1, &bundle(&[("gfx942", &large)])));
    }
    let wheel = WheelBuilder::new("tight", "1").file("tight/lib.so", elf.build());
    let expected = contents(&split_built(&wheel, &["-j2"]));
    for arguments in
        [&["-j2", "--memory-limit", "64M"][..], &["-j2", "--memory-limit", "64M", "--archs", "gfx942"]]
    {
        assert_eq!(contents(&split_built(&wheel, arguments)), expected);
    }
}
