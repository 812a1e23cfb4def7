//! The same bytes for the same input and options, whatever the number of threads and the clock.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::bundle_builder::{CCOB_KINDS, ccob};
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::run::{Split, demo, demo_windows, names, split, split_command};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::{Wheel, sha256};
use crate::support::zip_builder::ZipMember;

/// SHA-256 of every output.
pub(super) fn digests(directory: &Path) -> BTreeMap<String, String> {
    let digest = |name: String| {
        let digest = sha256(&fs::read(directory.join(&name)).unwrap());
        (name, digest)
    };
    names(directory).into_iter().map(digest).collect()
}

fn outputs(split: &Split) -> BTreeMap<String, String> {
    digests(&split.output())
}

/// A wheel that keeps all stages busy: many members, all kinds of bundles, identical code objects, generics.
pub(super) fn busy() -> WheelBuilder {
    let mut wheel = WheelBuilder::new("busy", "1");
    for number in 0..6u64 {
        let mut elf =
            FatElf::new().code(&[("gfx942", &noise(1, 20_000)), ("gfx1100", &noise(number, 300_000))]);
        for (place, (version, method)) in CCOB_KINDS.into_iter().enumerate() {
            let seed = number * 10 + place as u64 % 4;
            let content =
                bundle(&[("gfx90a", &noise(seed, 50_000)), ("gfx9-4-generic", &noise(seed + 1, 700))]);
            elf = elf.unit(ccob(version, method, &content));
        }
        wheel = wheel.file(&format!("busy/lib/lib{number}.so"), elf.build());
        wheel = wheel.file(&format!("busy/lib/rocblas/library/k{number}_gfx942.co"), noise(number, 5000));
        wheel = wheel.file(&format!("busy/text{number}.py"), "print()\n".repeat(1000));
    }
    wheel
}

#[test]
fn the_number_of_jobs_does_not_matter() {
    let scratch = tempfile::tempdir().unwrap();
    let input = busy().write(scratch.path());
    for more in [&["--databases", "rocblas"][..], &["--compression", "none", "--kpack-layout", "per-target"]]
    {
        let digests = |jobs: &str| outputs(&split(&input, &[&[jobs], more].concat()));
        let first = digests("-j1");
        assert_eq!(first.len(), 5);
        for jobs in ["-j2", "-j3", "-j8", "-j1"] {
            assert_eq!(digests(jobs), first, "{jobs}");
        }
    }
    for input in [demo(), demo_windows()] {
        let digests = |jobs: &str| outputs(&split(&input, &[jobs, "--wheel-type", "torch-fat"]));
        let first = digests("-j1");
        for jobs in ["-j2", "-j3", "-j8"] {
            assert_eq!(digests(jobs), first, "{jobs}");
        }
    }
}

#[test]
fn neither_place_nor_clock_of_the_input_matters() {
    let scratch = tempfile::tempdir().unwrap();
    let elsewhere = scratch.path().join("some/where/else");
    fs::create_dir_all(&elsewhere).unwrap();
    let copy = elsewhere.join(demo().file_name().unwrap());
    fs::write(&copy, fs::read(demo()).unwrap()).unwrap();
    assert_eq!(outputs(&split(&copy, &[])), outputs(&split(&demo(), &[])));
}

const JUNE_2020: (u16, u16) = ((2020 - 1980) << 9 | 6 << 5 | 15, 12 << 11);

fn two_times() -> WheelBuilder {
    WheelBuilder::new("when", "1")
        .member(ZipMember::new("when/a.so", FatElf::new().code(&[("gfx942", b"x")]).build()).when(JUNE_2020))
        .member(ZipMember::new("when/old", "").when((1 << 5 | 1, 0)))
}

#[test]
fn new_members_have_the_newest_time_of_the_input() {
    let scratch = tempfile::tempdir().unwrap();
    let mut members = two_times().members();
    for member in &mut members[2..] {
        member.when = (1 << 5 | 1, 0); // 1980
    }
    let input = scratch.path().join(two_times().file_name());
    fs::write(&input, crate::support::zip_builder::zip(&members, b"")).unwrap();
    let split = split(&input, &[]);
    for wheel in split.wheels() {
        let record = wheel.member(&format!("{}/RECORD", wheel.dist_info()));
        assert_eq!(record.when, JUNE_2020, "{}", wheel.file_name());
    }
    let device = split.starting("amd_when_device_gfx942");
    assert!(device.members.iter().all(|member| member.when == JUNE_2020));
    assert_eq!(split.starting("when-1").member("when/old").when, (1 << 5 | 1, 0));
}

#[test]
fn source_date_epoch_wins() {
    let scratch = tempfile::tempdir().unwrap();
    let input = two_times().write(scratch.path());
    let run = |epoch: &str, directory: &str| {
        let output = scratch.path().join(directory);
        let done = split_command::<&str>(&input, &output, &[])
            .env("SOURCE_DATE_EPOCH", epoch)
            .output()
            .unwrap()
            .status;
        assert_eq!(done.code(), Some(0));
        let wheels: Vec<Wheel> = names(&output).iter().map(|name| Wheel::open(&output.join(name))).collect();
        wheels
    };
    // 2011-03-13 07:06:40 UTC.
    let when = ((2011 - 1980) << 9 | 3 << 5 | 13, 7 << 11 | 6 << 5 | 20);
    for wheel in run("1300000000", "a") {
        assert_eq!(wheel.member(&format!("{}/RECORD", wheel.dist_info())).when, when);
    }
    // Before 1980, which DOS times cannot say.
    for wheel in run("0", "b") {
        assert_eq!(wheel.member(&format!("{}/RECORD", wheel.dist_info())).when, (1 << 5 | 1, 0));
    }
}

#[test]
fn directory_inputs_have_no_order_of_their_own() {
    // The same files, made in another order.
    let scratch = tempfile::tempdir().unwrap();
    let wheel = busy();
    let (one, two) = (scratch.path().join("one/busy"), scratch.path().join("two/busy"));
    wheel.unpack(&one);
    for member in wheel.members().into_iter().rev() {
        let path = two.join(&member.name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(one.join(&member.name), path).unwrap();
    }
    let run = |input: &Path, jobs: &str| {
        let output = tempfile::tempdir().unwrap();
        let command = &mut split_command(input, output.path(), &[jobs]);
        assert_eq!(command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap().status.code(), Some(0));
        names(output.path())
            .iter()
            .map(|name| {
                // Times of copied files are those of the files, which differ here.
                let members = Wheel::open(&output.path().join(name)).members;
                let members: Vec<_> =
                    members.into_iter().map(|member| (member.name, member.mode, member.packed)).collect();
                (name.clone(), members)
            })
            .collect::<Vec<_>>()
    };
    let first = run(&one, "-j1");
    assert!(first == run(&two, "-j1") && first == run(&one, "-j8"));
}
