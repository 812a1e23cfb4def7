//! Code objects that are compressed before the plan is there: the outputs must be those of a split that waits.
//!
//! A small wheel is split without anticipation, so a wheel with the same binaries and a large file besides shows what
//! anticipation makes of them.

use std::collections::BTreeMap;

use crate::support::bundle_builder::{CCOB_KINDS, ccob};
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::run::{Split, split, split_built};
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
