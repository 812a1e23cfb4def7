//! Wheels as they occur in the wild: whatever wrote the input, the outputs are strict and nothing is lost.

use std::fs;

use crate::support::elf_builder::FatElf;
use crate::support::run::{Split, demo, split, split_built};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::{Zip64, ZipMember, zip};

fn library() -> Vec<u8> {
    FatElf::new().code(&[("gfx942", b"code for gfx942")]).build()
}

fn wheel() -> WheelBuilder {
    WheelBuilder::new("zi", "1").file("zi/lib/a.so", library())
}

/// Splits a wheel with every member changed by `change`. The host must hold what it holds for the plain wheel.
fn same_as_plain(change: impl Fn(ZipMember) -> ZipMember) -> Split {
    let plain = split_built(&wheel().file("zi/text.py", "text\n".repeat(100)), &[]).starting("zi-1");
    let wheel = wheel().file("zi/text.py", "text\n".repeat(100));
    let members: Vec<ZipMember> = wheel.members().into_iter().map(change).collect();
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join(wheel.file_name());
    fs::write(&input, zip(&members, b"")).unwrap();
    let split = split(&input, &["--databases", "rocblas"]);
    let host = split.starting("zi-1");
    let contents = |wheel: &Wheel| -> Vec<(String, Vec<u8>)> {
        wheel.members.iter().map(|member| (member.name.clone(), member.data.clone())).collect()
    };
    assert!(contents(&host) == contents(&plain));
    split
}

#[test]
fn zip64_field_on_small_members() {
    same_as_plain(|member| member.zip64(Zip64::Superfluous));
    same_as_plain(|member| member.zip64(Zip64::Streamed));
}

#[test]
fn data_descriptors() {
    same_as_plain(ZipMember::data_descriptor);
}

#[test]
fn data_descriptors_and_zip64_fields() {
    same_as_plain(|member| member.data_descriptor().zip64(Zip64::Superfluous));
}

#[test]
fn stored_members() {
    let split = same_as_plain(ZipMember::stored);
    let host = split.starting("zi-1");
    assert!(host.member("zi/text.py").stored, "copied as it stands");
    assert!(!host.member("zi/lib/a.so").stored, "a rewritten binary is deflated");
}

#[test]
fn backslashes_as_separators() {
    same_as_plain(|mut member| {
        member.name = member.name.replace('/', "\\");
        member
    });
}

#[test]
fn backslashes_in_database_names_too() {
    let member = ZipMember::new("zi\\lib\\rocblas\\library\\k_gfx942.co", "kernel");
    let split = split_built(&wheel().member(member), &["--databases", "rocblas"]);
    assert_eq!(split.starting("amd_zi_device_gfx942").data("zi/lib/rocblas/library/k_gfx942.co"), b"kernel");
}

#[test]
fn archive_comment() {
    let split = split_built(&wheel().comment(b"packed by hand"), &[]);
    assert!(!split.starting("zi-1").bytes.ends_with(b"packed by hand"));
}

#[test]
fn directory_members_stay() {
    let directory = |name: &str| ZipMember::new(name, "").stored().mode(0o040_755);
    let wheel = WheelBuilder::new("zi", "1")
        .member(directory("zi/"))
        .member(directory("zi/lib/"))
        .file("zi/lib/a.so", library())
        .member(directory("zi/empty/"));
    let host = split_built(&wheel, &[]).starting("zi-1");
    assert_eq!(host.names()[..4], ["zi/", "zi/lib/", "zi/lib/a.so", "zi/empty/"]);
    assert!(!host.info("RECORD").contains("zi/,"), "RECORD lists files only");
    let member = host.member("zi/empty/");
    assert_eq!((member.mode & 0o777, member.data.len()), (0o755, 0));
}

#[test]
fn names_that_are_not_ascii_or_need_quoting() {
    let names = ["zi/\u{e4}\u{4e2d}\u{1f600}.py", "zi/a,b.py", "zi/with space.py"];
    let wheel = names.iter().fold(wheel(), |wheel, name| wheel.file(name, *name));
    let host = split_built(&wheel, &[]).starting("zi-1");
    for name in names {
        assert_eq!(host.text(name), name);
    }
    assert!(host.info("RECORD").contains("\n\"zi/a,b.py\",sha256="), "{}", host.info("RECORD"));
}

#[test]
fn a_fat_binary_with_a_name_that_is_not_ascii() {
    let name = "zi/lib/\u{fc}ber.so";
    let split = split_built(&WheelBuilder::new("zi", "1").file(name, library()), &[]);
    let kpacks = split.kpacks();
    assert_eq!(kpacks["zi/.kpack/zi_gfx942.kpack"].keys(), ["lib/\u{fc}ber.so#0"]);
}

#[test]
fn rocm_systems_7515_modes_and_times_stay() {
    let when = ((1999 - 1980) << 9 | 12 << 5 | 31, 23 << 11 | 59 << 5 | 29);
    let wheel = WheelBuilder::new("zi", "1")
        .member(ZipMember::new("zi/lib/a.so", library()).mode(0o100_755).when(when))
        .member(ZipMember::new("zi/bin/run.sh", "#!/bin/sh\n").mode(0o100_775).when(when))
        .member(ZipMember::new("zi/secret", "s").mode(0o100_600))
        .member(ZipMember::new("zi/nomode", "n").mode(0));
    let host = split_built(&wheel, &[]).starting("zi-1");
    for (name, mode) in
        [("zi/lib/a.so", 0o100_755), ("zi/bin/run.sh", 0o100_775), ("zi/secret", 0o100_600), ("zi/nomode", 0)]
    {
        assert_eq!(host.member(name).mode, mode, "{name}");
    }
    assert_eq!(host.member("zi/lib/a.so").when, when, "a rewritten binary keeps its time");
    assert_eq!(host.member("zi/bin/run.sh").when, when);
}

#[test]
fn symbolic_links_stay_links() {
    let wheel = wheel()
        .member(ZipMember::new("zi/lib/liba.so.1", "a.so").stored().mode(0o120_777))
        .member(ZipMember::new("zi/lib/liba.so", "liba.so.1").mode(0o120_777));
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    let host = split(&input, &[]).starting("zi-1");
    let original = Wheel::read(&input);
    for name in ["zi/lib/liba.so.1", "zi/lib/liba.so"] {
        assert_eq!(host.member(name), original.member(name), "{name}");
        assert_eq!(host.member(name).mode, 0o120_777);
    }
}

#[test]
fn several_tag_lines_and_a_build_tag() {
    let tags = ["py3-none-linux_x86_64", "py3-none-manylinux_2_28_x86_64"];
    let wheel = wheel().build_tag("12").tags("py3-none-linux_x86_64.manylinux_2_28_x86_64", &tags);
    for wheel in split_built(&wheel, &[]).wheels() {
        assert!(wheel.file_name().contains("-1-12-py3-none-linux_x86_64.manylinux_2_28_x86_64.whl"));
        let text = wheel.info("WHEEL");
        assert!(tags.iter().all(|tag| text.contains(&format!("\nTag: {tag}\n"))), "{text}");
        assert!(text.contains("\nBuild: 12\n"), "{text}");
    }
}

#[test]
fn data_trees_install_beside_the_top_level() {
    let wheel = WheelBuilder::new("zi", "1")
        .file("zi/__init__.py", "")
        .file("zi-1.data/platlib/zi/lib/deep/a.so", library())
        .file("zi-1.data/purelib/zi/lib/rocblas/library/k_gfx942.co", "kernel")
        .file("zi-1.data/scripts/run", "#!python\n");
    let split = split_built(&wheel, &["--databases", "rocblas"]);
    let kpacks = split.kpacks();
    assert_eq!(
        kpacks["zi/.kpack/zi_gfx942.kpack"].keys(),
        ["lib/deep/a.so#0"],
        "the name in the installed place"
    );
    let host = split.starting("zi-1");
    // The marker's search path leads from the installed place to the archives.
    let elf = host.data("zi-1.data/platlib/zi/lib/deep/a.so");
    let path = b"../../.kpack/zi_@GFXARCH@.kpack";
    assert!(elf.windows(path.len()).any(|window| window == path));
    assert!(!elf.windows(path.len() + 3).any(|window| window.starts_with(b"../") && window.ends_with(path)));
    let device = split.starting("amd_zi_device_gfx942");
    assert!(device.has("zi-1.data/purelib/zi/lib/rocblas/library/k_gfx942.co"), "{:?}", device.names());
    assert!(host.has("zi-1.data/scripts/run"));
}

#[test]
fn overlay_root_with_dots() {
    let wheel = WheelBuilder::new("zi", "1").file("zi/__init__.py", "").file("zi.libs/a.so", library());
    let split = split_built(&wheel, &[]);
    let device = split.starting("amd_zi_device_gfx942");
    assert!(device.has("zi.libs/.kpack/zi_gfx942.kpack"));
    assert_eq!(device.info("top_level.txt"), "zi.libs\n");
}

#[test]
fn deeper_overlay_root() {
    let wheel = WheelBuilder::new("zi", "1").file("zi/_c/lib/a.so", library());
    let split = split_built(&wheel, &["--overlay-root", "zi/_c/"]);
    let kpacks = split.kpacks();
    assert_eq!(kpacks["zi/_c/.kpack/zi_gfx942.kpack"].keys(), ["lib/a.so#0"]);
}

#[test]
fn binary_at_the_top_of_the_overlay_root() {
    let split = split_built(&WheelBuilder::new("zi", "1").file("zi/a.so", library()), &[]);
    let host = split.starting("zi-1");
    let elf = host.data("zi/a.so");
    let path = b".kpack/zi_@GFXARCH@.kpack";
    let at = elf.windows(path.len()).position(|window| window == path).unwrap();
    assert_ne!(&elf[at - 3..at], b"../", "no directory to leave at depth 0");
}

#[test]
fn signatures_are_dropped_with_a_warning() {
    let wheel = wheel().info("RECORD.jws", "{}").info("RECORD.p7s", "signature");
    let split = split_built(&wheel, &[]);
    let host = split.starting("zi-1");
    for name in ["RECORD.jws", "RECORD.p7s"] {
        assert!(!host.has(&format!("zi-1.dist-info/{name}")));
        assert!(
            split.stderr.contains(&format!("warning: zi-1.dist-info/{name}: the signature no longer holds"))
        );
    }
}

#[test]
fn equal_members_of_one_name_become_one() {
    let wheel = wheel().file("zi/twice.py", "same").file("zi/twice.py", "same").no_record();
    let host = split_built(&wheel, &[]).starting("zi-1");
    assert_eq!(host.names().iter().filter(|name| **name == "zi/twice.py").count(), 1);
}

#[test]
fn equal_fat_binaries_of_one_name_become_one() {
    let wheel = wheel().file("zi/lib/a.so", library()).no_record();
    let split = split_built(&wheel, &[]);
    let host = split.starting("zi-1");
    assert_eq!(host.names().iter().filter(|name| **name == "zi/lib/a.so").count(), 1);
    assert_eq!(split.kpacks()["zi/.kpack/zi_gfx942.kpack"].keys(), ["lib/a.so#0"]);
}

#[test]
fn an_input_that_is_not_named_like_a_wheel() {
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join("download");
    fs::copy(demo(), &input).unwrap();
    let split = split(&input, &[]);
    let host = "fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl";
    assert!(
        split.stderr.starts_with("warning: the input ") && split.stderr.contains(host),
        "{}",
        split.stderr
    );
    assert!(split.names().contains(&host.to_owned()));
}

#[test]
fn other_hash_algorithms_of_record() {
    let record = |sha512: &str| {
        format!(
            "zi/lib/a.so,sha512={sha512},{}\nzi-1.dist-info/METADATA,,\nzi-1.dist-info/WHEEL,,\n",
            library().len()
        )
    };
    use sha2::{Digest as _, Sha512};
    let right = crate::support::wheel_builder::base64(&Sha512::digest(library()));
    assert_eq!(split_built(&wheel().record(&record(&right)), &[]).names().len(), 2);
    let wrong = crate::support::wheel_builder::base64(&Sha512::digest(b"other"));
    crate::support::run::refuse_built(&wheel().record(&record(&wrong)), &[], &["zi/lib/a.so", "sha512"]);
}

#[test]
fn nothing_but_binaries_is_ever_compressed_anew() {
    // Deflated by another tool at another level: its bytes come out as they went in.
    let input = demo();
    let original = Wheel::read(&input);
    let split = split(&input, &["--wheel-type", "torch-fat"]);
    let mut seen = 0;
    for wheel in split.wheels() {
        for member in &wheel.members {
            let Some(before) = original.members.iter().find(|other| other.name == member.name) else {
                continue;
            };
            if before.data == member.data {
                assert_eq!(before.packed, member.packed, "{}", member.name);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, original.members.len() - 5, "all but three binaries, METADATA and RECORD");
}

#[test]
fn equal_database_files_of_one_name_become_one() {
    let name = "zi/lib/rocblas/library/k_gfx942.co";
    let wheel = wheel().file(name, "kernel").file(name, "kernel").no_record();
    let split = split_built(&wheel, &["--databases", "rocblas"]);
    let device = split.starting("amd_zi_device_gfx942");
    assert_eq!(device.names().iter().filter(|other| **other == name).count(), 1);
    assert!(!split.starting("zi-1").has(name));
}
