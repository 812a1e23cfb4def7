//! The rules file: a project's handlers, targets and names, in general and for one distribution.

use std::fs;

use crate::support::elf_builder::FatElf;
use crate::support::run::{Split, names, refuse, split, split_command, texts};
use crate::support::wheel_builder::WheelBuilder;

const RULES: &str = r#"
device-requires-dist = ["sdk-@GFXARCH@ == 7.14"]
databases = ["torch-fat", "aiter"]

[handlers.aiter]
files = ["hsa/{arch}/**/*.co", "kernels-{arch}.bin"]

[distribution."Torch_Fat"]
overlay-root = "torch"
device-package-prefix = "amd-torch-device"
archs = ["gfx942", "gfx12_0", "gfx1171"]

[[targets]]
name = "gfx1171"
chain = ["gfx1171", "gfx11"]

[aliases]
gfx12all = "gfx12_0"
"#;

fn library(targets: &[&str]) -> Vec<u8> {
    let entries: Vec<(&str, &[u8])> = targets.iter().map(|&target| (target, target.as_bytes())).collect();
    FatElf::new().code(&entries).build()
}

fn wheel(name: &str) -> WheelBuilder {
    WheelBuilder::new(name, "1")
        .file("torch/a.so", library(&["gfx942", "gfx90a", "gfx1171"]))
        .file("torch/hsa/gfx942/deep/k.co", "kernel")
        .file("torch/hsa/gfx12all/k.co", "kernel")
        .file("torch/lib/rocblas/library/k_gfx942.co", "kernel")
        .file("torch/kernels-gfx90a.bin", "kernel")
}

/// Splits a wheel with `rules`.
fn split_with(rules: &str, wheel: &WheelBuilder, arguments: &[&str]) -> Split {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("fatwheel.toml");
    fs::write(&file, rules).unwrap();
    let input = wheel.write(scratch.path());
    split(&input, &[&["--rules", file.to_str().unwrap()], arguments].concat())
}

#[test]
fn pytorch_182030_a_project_keeps_its_own_rules_in_one_file() {
    let split = split_with(RULES, &wheel("torch-fat"), &[]);
    assert_eq!(split.stderr, "", "gfx1171 is known by its row");
    let keys = ["gfx1171", "gfx12_0", "gfx942"];
    let mut expected: Vec<String> =
        keys.iter().map(|key| format!("amd_torch_device_{key}-1-py3-none-linux_x86_64.whl")).collect();
    expected.push("torch_fat-1-py3-none-linux_x86_64.whl".to_owned());
    assert_eq!(split.names(), expected);
    let gfx942 = split.starting("amd_torch_device_gfx942");
    for file in ["torch/hsa/gfx942/deep/k.co", "torch/lib/rocblas/library/k_gfx942.co"] {
        assert!(gfx942.has(file), "{file}: {:?}", gfx942.names());
    }
    assert!(gfx942.info("METADATA").contains("Requires-Dist: sdk-gfx942 == 7.14\n"));
    assert!(split.starting("amd_torch_device_gfx12_0").has("torch/hsa/gfx12all/k.co"), "through the alias");
}

#[test]
fn another_distribution_gets_what_is_said_in_general() {
    let split = split_with(RULES, &wheel("vision"), &[]);
    let wheels = split.names();
    assert!(wheels.iter().any(|name| name.starts_with("amd_vision_device_gfx90a-")), "{wheels:?}");
    assert!(split.starting("amd_vision_device_gfx90a").has("torch/kernels-gfx90a.bin"));
}

#[test]
fn the_command_line_counts_more_than_the_file() {
    let arguments = ["--archs", "gfx90a", "--device-package-prefix", "x", "--databases", "rocblas"];
    let split = split_with(RULES, &wheel("torch-fat"), &arguments);
    assert_eq!(
        split.names(),
        ["torch_fat-1-py3-none-linux_x86_64.whl", "x_gfx90a-1-py3-none-linux_x86_64.whl"]
    );
    let host = split.starting("torch_fat");
    assert!(host.has("torch/kernels-gfx90a.bin"), "the file's handlers are replaced, not joined");
    assert!(!host.has("torch/lib/rocblas/library/k_gfx942.co"));
    let unknown = "unknown-arch = \"error\"";
    let split = split_with(unknown, &wheel("torch-fat"), &["--unknown-arch", "package"]);
    assert!(split.stderr.contains("lacks gfx1171"), "{}", split.stderr);
}

#[test]
fn a_bad_file_is_a_usage_error_that_names_it() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel("torch").write(scratch.path());
    let file = scratch.path().join("rules.toml");
    let path = file.to_str().unwrap();
    for (text, words) in [
        ("overlay_root = 'torch'", ["unknown field `overlay_root`", "line 1"]),
        ("databases = ['rocblas', 'mine']", ["unknown handler \"mine\"", "known are rocblas"]),
        ("[distribution.elsewhere]\ndevice-files = ['*.co']", ["*.co", "no `{arch}`"]),
    ] {
        fs::write(&file, text).unwrap();
        let stderr = refuse(&input, &["--rules", path], 2);
        for word in ["--rules", path].iter().chain(&words) {
            assert!(stderr.contains(word), "{word} is not in: {stderr}");
        }
    }
    fs::remove_file(&file).unwrap();
    refuse(&input, &["--rules", path], 3);
}

#[test]
fn a_slip_in_an_option_shows_before_the_wheel_is_read() {
    // The wheel's bulk is damaged, which reading it would tell.
    let wheel = wheel("torch").wrong_record_for("torch/a.so");
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    for slip in [["--databases", "rocblaz"], ["--archs", "gfxzzz"], ["--device-files", "*.co"]] {
        let stderr = refuse(&input, &slip, 2);
        assert!(!stderr.contains("RECORD"), "{stderr}");
    }
    let done = split_command::<&str>(&input, &scratch.path().join("out"), &[]).output().unwrap();
    assert!(texts(&done).1.contains("RECORD"));
    assert_eq!(names(scratch.path()).len(), 1);
}
