//! Device wheels: METADATA, WHEEL, RECORD, top_level.txt, extras and requirements, families.

use crate::support::elf_builder::FatElf;
use crate::support::golden::golden;
use crate::support::run::{demo, demo_windows, split, split_built};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;

/// All texts of `.dist-info` and the member list, with the version of fatwheel left open.
fn texts(wheel: &Wheel) -> String {
    let mut out = format!("{}\n\n", wheel.file_name());
    for member in &wheel.members {
        let method = if member.stored { "stored" } else { "deflated" };
        out += &format!("{:o} {method} {}\n", member.mode, member.name);
    }
    for name in ["METADATA", "WHEEL", "top_level.txt"] {
        out += &format!("\n== {name}\n{}", wheel.info(name));
    }
    // RECORD is checked row by row whenever a wheel is opened; here only its form.
    let record: Vec<String> =
        wheel.info("RECORD").lines().map(|row| row.split(',').next().unwrap().to_owned()).collect();
    out += &format!("\n== RECORD, paths\n{}\n", record.join("\n"));
    out.replace(concat!("fatwheel ", env!("CARGO_PKG_VERSION")), "fatwheel VERSION")
}

#[test]
fn golden_texts_of_the_demo_wheels() {
    let arguments = [
        "--wheel-type",
        "torch-fat",
        "--device-package-prefix",
        "amd-torch-device",
        "--overlay-root",
        "fatdemo/",
        "--device-requires-dist",
        "rocm-sdk-device-@GFXARCH@ == 7.14",
        "numpy>=2",
    ];
    let linux = split(&demo(), &arguments);
    golden("device_gfx90a.txt", &texts(&linux.starting("amd_torch_device_gfx90a-")));
    let windows = split(&demo_windows(), &arguments);
    golden("device_gfx1201_windows.txt", &texts(&windows.starting("amd_torch_device_gfx1201-")));
}

/// A wheel with one translation unit for these targets, and per-processor files.
fn wheel(targets: &[&str], files: &[&str]) -> WheelBuilder {
    let entries: Vec<(&str, &[u8])> = targets.iter().map(|&target| (target, target.as_bytes())).collect();
    let wheel = WheelBuilder::new("fam", "3.1").file("fam/a.so", FatElf::new().code(&entries).build());
    files.iter().fold(wheel, |wheel, &file| wheel.file(&format!("fam/{file}"), file))
}

#[test]
fn families_and_sub_families_have_wheels_that_targets_require() {
    let wheel = wheel(
        &["gfx1151", "gfx1201", "gfx942"],
        &[
            "aotriton.images/amd-gfx11xx/flash/a.aks2",
            "aotriton.images/amd-gfx120x/flash/a.aks2",
            "aotriton.images/amd-gfx942/flash/a.aks2",
        ],
    );
    let split = split_built(
        &wheel,
        &["--databases", "aotriton", "--device-requires-dist", "sdk-@GFXARCH@==7", "plain-dep"],
    );
    let names = split.names();
    let keys: Vec<&str> =
        names.iter().filter_map(|name| name.strip_prefix("amd_fam_device_")?.split('-').next()).collect();
    assert_eq!(keys, ["gfx11", "gfx1151", "gfx1201", "gfx12_0", "gfx942"]);
    golden("families_host_METADATA", &split.starting("fam-").info("METADATA"));
    let metadata = |key: &str| split.starting(&format!("amd_fam_device_{key}-3.1")).info("METADATA");
    assert_eq!(
        metadata("gfx1151"),
        "Metadata-Version: 2.4\nName: amd-fam-device-gfx1151\nVersion: 3.1\n\
         Summary: AMD device kernels (gfx1151) for fam\nRequires-Dist: fam == 3.1\nRequires-Dist: sdk-gfx1151==7\n\
         Requires-Dist: plain-dep\nRequires-Dist: amd-fam-device-gfx11 == 3.1\n"
    );
    // Above target level: no @GFXARCH@ requirement, no requirement of other device wheels.
    assert_eq!(
        metadata("gfx12_0"),
        "Metadata-Version: 2.4\nName: amd-fam-device-gfx12-0\nVersion: 3.1\n\
         Summary: AMD device kernels (RDNA4) for fam\nRequires-Dist: fam == 3.1\nRequires-Dist: plain-dep\n"
    );
    assert!(metadata("gfx1201").ends_with("Requires-Dist: amd-fam-device-gfx12-0 == 3.1\n"));
    assert!(metadata("gfx942").ends_with("Requires-Dist: plain-dep\n"));
}

#[test]
fn wheel_file_has_every_tag_the_build_and_purelib() {
    let wheel = wheel(&["gfx942"], &[])
        .build_tag("2rc")
        .tags("py2.py3-none-any", &["py2-none-any", "py3-none-any"])
        .wheel_file(
            "Wheel-Version: 1.0\nGenerator: other 9\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\nBuild: 2rc\n",
        );
    let device = split_built(&wheel, &[]).starting("amd_fam_device_gfx942-3.1-2rc-py2.py3-none-any");
    let text = device.info("WHEEL").replace(env!("CARGO_PKG_VERSION"), "V");
    assert_eq!(
        text,
        "Wheel-Version: 1.0\nGenerator: fatwheel V\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\nBuild: 2rc\n"
    );
    assert_eq!(device.info("top_level.txt"), "fam\n");
}

#[test]
fn archives_are_stored_and_files_keep_mode_and_time() {
    use crate::support::zip_builder::ZipMember;
    let when = ((2019 - 1980) << 9 | 5 << 5 | 6, 7 << 11);
    let file =
        ZipMember::new("fam/lib/rocblas/library/k_gfx942.co", vec![7; 3000]).mode(0o100_755).when(when);
    let wheel = wheel(&["gfx942"], &[]).member(file);
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    let split = split(&input, &["--databases", "rocblas"]);
    let device = split.starting("amd_fam_device_gfx942");
    assert!(device.member("fam/.kpack/fam_gfx942.kpack").stored);
    let original = Wheel::read(&input);
    let name = "fam/lib/rocblas/library/k_gfx942.co";
    assert_eq!(device.member(name), original.member(name), "mode, time and compressed bytes");
    assert!(!split.starting("fam-").has(name));
}

#[test]
fn a_generic_targets_processors_have_extras() {
    let split = split_built(&wheel(&["gfx11-generic"], &[]), &[]);
    let metadata = split.starting("fam-").info("METADATA");
    for member in ["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"] {
        let line = format!("Requires-Dist: amd-fam-device-gfx11 == 3.1; extra == \"device-{member}\"\n");
        assert!(metadata.contains(&line), "{line} is not in {metadata}");
    }
    assert!(split.starting("amd_fam_device_gfx11-").has("fam/.kpack/fam_gfx11-generic.kpack"));
}

#[test]
fn therock_7362_no_wheel_requires_itself() {
    // An entry that names the device wheel it goes into would be a cycle (pip: maximum recursion depth).
    let split = split_built(
        &wheel(&["gfx942", "gfx1100"], &[]),
        &["--device-requires-dist", "amd-fam-device-@GFXARCH@", "Fam"],
    );
    for (key, other) in [("gfx942", "gfx1100"), ("gfx1100", "gfx942")] {
        let metadata = split.starting(&format!("amd_fam_device_{key}-")).info("METADATA");
        assert!(!metadata.contains(&format!("Requires-Dist: amd-fam-device-{key}")), "{metadata}");
        assert!(!metadata.contains(&format!("Requires-Dist: amd-fam-device-{other}")), "{metadata}");
    }
}
