//! Splitting what was split before changes nothing.

use std::fs;

use crate::support::elf_builder::FatElf;
use crate::support::run::{demo, demo_windows, split, split_built};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;

#[test]
fn rocm_systems_10494_splitting_a_host_wheel_again_is_a_no_op() {
    for input in [demo(), demo_windows()] {
        let first = split(&input, &["--wheel-type", "torch-fat"]);
        let host = first.output().join(input.file_name().unwrap());
        for arguments in [&[][..], &["--wheel-type", "torch-fat", "--overlay-root", "fatdemo"]] {
            let again = split(&host, arguments);
            assert_eq!(again.names(), [input.file_name().unwrap().to_str().unwrap()], "no device wheels");
            assert!(
                again.stdout.contains("nothing to do: the wheel has been split before"),
                "{}",
                again.stdout
            );
            let (before, after) = (Wheel::open(&host), again.wheel(&again.names()[0]));
            assert_eq!(before.names(), after.names());
            for (before, after) in before.members.iter().zip(&after.members) {
                assert_eq!(before, after, "{}", before.name);
            }
            assert_eq!(fs::read(&host).unwrap(), after.bytes, "byte for byte");
        }
    }
}

#[test]
fn a_split_binary_beside_a_fat_one_passes_through_untouched() {
    let library = |code: &[u8]| FatElf::new().code(&[("gfx942", code)]).build();
    let first = split_built(&WheelBuilder::new("re", "1").file("re/a.so", library(b"first")), &[]);
    let done = first.starting("re-1").data("re/a.so").to_vec();
    let mixed =
        WheelBuilder::new("re", "1").file("re/a.so", done.clone()).file("re/b.so", library(b"second"));
    let split = split_built(&mixed, &[]);
    assert!(split.stderr.contains("re/a.so: already split; it is passed through"), "{}", split.stderr);
    assert!(split.starting("re-1").data("re/a.so") == done);
    assert_eq!(split.kpacks()["re/.kpack/re_gfx942.kpack"].keys(), ["b.so#0"]);
}
