//! The host wheel: METADATA, what stays byte for byte, what was rewritten, names and tags.

use crate::support::elf_builder::{FatElf, noise};
use crate::support::golden::golden;
use crate::support::run::{demo, demo_windows, split, split_built};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::ZipMember;

/// Whether `needle` occurs in `haystack`.
fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn golden_texts_of_the_demo_wheel() {
    let split = split(
        &demo(),
        &["--wheel-type", "torch-fat", "--device-requires-dist", "sdk-@GFXARCH@ == 1", "numpy"],
    );
    let host = split.starting("fatdemo-");
    golden("host_METADATA", &host.info("METADATA"));
    golden("host_members.txt", &members(&host));
    let original = Wheel::read(&demo());
    assert_eq!(host.info("WHEEL"), original.info("WHEEL"));
    assert_eq!(host.file_name(), original.file_name());
}

/// Modes, methods and names, one member a line.
fn members(wheel: &Wheel) -> String {
    let line = |member: &crate::support::wheel_reader::OutputMember| {
        format!("{:o} {} {}\n", member.mode, if member.stored { "stored" } else { "deflated" }, member.name)
    };
    wheel.members.iter().map(line).collect()
}

#[test]
fn everything_but_binaries_and_metadata_is_copied_as_it_stands() {
    for input in [demo(), demo_windows()] {
        let split = split(&input, &[]);
        let host = split.starting("fatdemo-");
        let original = Wheel::read(&input);
        assert_eq!(host.names(), original.names(), "same members in the same order");
        let mut rewritten = 0;
        for (ours, theirs) in host.members.iter().zip(&original.members) {
            assert_eq!((ours.mode, ours.when), (theirs.mode, theirs.when), "{}", ours.name);
            if ours.name.contains("/bin/")
                || ours.name.contains("/lib/") && ours.name.contains("fatdemo.")
                || ours.name.contains("fatdemo_compressed")
            {
                assert!(ours.data.len() < theirs.data.len(), "{} did not get smaller", ours.name);
                assert!(contains(&theirs.data, b"FPIH") && contains(&ours.data, b"HIPK"), "{}", ours.name);
                assert!(!contains(&ours.data, b"FPIH"), "{} still has a HIPF magic", ours.name);
                assert!(!contains(&ours.data, b"__CLANG_OFFLOAD_BUNDLE__"), "{}", ours.name);
                rewritten += 1;
            } else if !ours.name.ends_with("/METADATA") && !ours.name.ends_with("/RECORD") {
                assert_eq!(ours, theirs, "{}", ours.name);
            }
        }
        assert_eq!(rewritten, 3);
    }
}

#[test]
fn no_byte_of_a_code_object_stays() {
    let codes: Vec<Vec<u8>> = (0..6).map(|seed| noise(seed, 20_000 + 4096 * seed as usize)).collect();
    let library = FatElf::new()
        .code(&[("gfx942", &codes[0]), ("gfx1100", &codes[1])])
        .code(&[("gfx942", &codes[2])])
        .code(&[("gfx90a", &codes[3]), ("gfx942", &codes[4]), ("gfx1100", &codes[5])]);
    let split = split_built(&WheelBuilder::new("whole", "1").file("whole/lib/a.so", library.build()), &[]);
    let host = split.starting("whole-");
    for (number, code) in codes.iter().enumerate() {
        for part in code.chunks(64).filter(|part| part.len() == 64) {
            assert!(!contains(host.data("whole/lib/a.so"), part), "code object {number}");
        }
    }
    let stored: Vec<&[u8]> = split
        .kpacks()
        .values()
        .flat_map(|kpack| kpack.objects.clone())
        .map(|object| {
            codes
                .iter()
                .find(|code| **code == object)
                .map(Vec::as_slice)
                .expect("a code object that nobody put there")
        })
        .collect();
    assert_eq!(stored.len(), codes.len(), "each is in exactly one archive");
}

#[test]
fn file_name_tags_and_build_stay() {
    let wheel = WheelBuilder::new("built", "2.0.post1")
        .build_tag("7local")
        .tags(
            "py2.py3-none-linux_x86_64.manylinux_2_17_x86_64",
            &[
                "py2-none-linux_x86_64",
                "py3-none-linux_x86_64",
                "py2-none-manylinux_2_17_x86_64",
                "py3-none-manylinux_2_17_x86_64",
            ],
        )
        .file("built/a.so", FatElf::new().code(&[("gfx1200", b"code")]).build());
    let split = split_built(&wheel, &[]);
    assert_eq!(
        split.names(),
        [
            "amd_built_device_gfx1200-2.0.post1-7local-py2.py3-none-linux_x86_64.manylinux_2_17_x86_64.whl",
            "built-2.0.post1-7local-py2.py3-none-linux_x86_64.manylinux_2_17_x86_64.whl",
        ]
    );
}

/// The host's METADATA of a wheel with code for gfx942 whose METADATA was `original`.
fn rewritten(original: &str) -> String {
    let wheel = WheelBuilder::new("meta", "1.0+local.2")
        .metadata(original)
        .file("meta/a.so", FatElf::new().code(&[("gfx942", b"code")]).build());
    split_built(&wheel, &[]).starting("meta-").info("METADATA")
}

/// What every one of those gains.
const GAINED: [&str; 5] = [
    "Requires-Dist: rocm-bootstrap",
    "Provides-Extra: device-gfx942",
    "Requires-Dist: amd-meta-device-gfx942 == 1.0+local.2; extra == \"device-gfx942\"",
    "Provides-Extra: device-all",
    "Requires-Dist: amd-meta-device-gfx942 == 1.0+local.2; extra == \"device-all\"",
];

#[test]
fn metadata_gains_lines_before_the_body_and_keeps_every_other_byte() {
    for (head, body, end_of_line) in [
        (
            "Metadata-Version: 2.4\nName: meta\nVersion: 1.0+local.2\n",
            "\nProvides-Extra: device-gfx942\n\n\n",
            "\n",
        ),
        ("Metadata-Version: 2.1\r\nName: meta\r\nVersion: 1.0+local.2\r\n", "\r\nBody\r\n", "\r\n"),
        (
            "Metadata-Version: 2.1\nName: meta\nVersion: 1.0+local.2\nDescription: a\n        continued\n",
            "",
            "\n",
        ),
        (
            "Metadata-Version: 2.1\nName: meta\nVersion: 1.0+local.2\nAuthor: J\u{fc}rgen\n",
            "\nstra\u{df}e",
            "\n",
        ),
    ] {
        let gained: String = GAINED.iter().map(|line| format!("{line}{end_of_line}")).collect();
        assert_eq!(rewritten(&format!("{head}{body}")), format!("{head}{gained}{body}"));
    }
}

#[test]
fn metadata_without_a_final_newline() {
    let gained = GAINED.join("\n");
    let head = "Metadata-Version: 2.1\nName: meta\nVersion: 1.0+local.2";
    assert_eq!(rewritten(head), format!("{head}\n{gained}\n"));
}

#[test]
fn metadata_version_is_raised_only_when_extras_need_it() {
    let text = rewritten("Metadata-Version: 1.2\nName: meta\nVersion: 1.0+local.2\n");
    assert!(text.starts_with("Metadata-Version: 2.1\n"), "{text}");
    let text = rewritten("Metadata-Version: 2.3\nName: meta\nVersion: 1.0+local.2\n");
    assert!(text.starts_with("Metadata-Version: 2.3\n"), "{text}");
}

#[test]
fn nothing_is_added_twice() {
    let original = format!(
        "Metadata-Version: 2.1\nName: meta\nVersion: 1.0+local.2\nRequires-Dist: ROCm.Bootstrap>=0.3\n{}\n{}\n",
        GAINED[1], GAINED[2]
    );
    let text = rewritten(&original);
    assert_eq!(text, format!("{original}{}\n{}\n", GAINED[3], GAINED[4]));
}

#[test]
fn names_with_dots_and_capitals() {
    let wheel = WheelBuilder::new("My.Demo_Pkg", "1")
        .file("MyDemo/a.so", FatElf::new().code(&[("gfx1201", b"code")]).build());
    let split = split_built(&wheel, &[]);
    let host = split.starting("My.Demo_Pkg-1-");
    assert!(host.info("METADATA").contains("Requires-Dist: amd-My.Demo_Pkg-device-gfx1201 == 1; extra"));
    let device = split.starting("amd_my_demo_pkg_device_gfx1201-1-");
    assert!(device.info("METADATA").contains("\nRequires-Dist: My.Demo_Pkg == 1\n"));
    // Group name: lower case, `-` to `_`; a dot stays.
    assert!(device.has("MyDemo/.kpack/my.demo_pkg_gfx1201.kpack"), "{:?}", device.names());
}

#[test]
fn a_file_name_that_does_not_fit_metadata_is_said() {
    for (metadata, said) in [
        ("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", "the file name says odd, METADATA says other"),
        (
            "Metadata-Version: 2.1\nName: odd\nVersion: 1.1\n",
            "the file name says version 1.0, METADATA says 1.1",
        ),
        ("Metadata-Version: 2.1\nName: ODD\nVersion: 1\n", ""),
    ] {
        let library = FatElf::new().code(&[("gfx942", b"code")]).build();
        let wheel = WheelBuilder::new("odd", "1.0").metadata(metadata).file("odd/a.so", library);
        let stderr = split_built(&wheel, &[]).stderr;
        assert!(stderr.contains(said) && said.is_empty() == stderr.is_empty(), "{stderr}");
    }
}

#[test]
fn licenses_and_boms_of_dist_info_stay() {
    let wheel = WheelBuilder::new("lic", "1")
        .file("lic/a.so", FatElf::new().code(&[("gfx942", b"code")]).build())
        .info("licenses/LICENSE", "MIT")
        .info("sboms/bom.json", "{}")
        .info("entry_points.txt", "[console_scripts]\n");
    let host = split_built(&wheel, &[]).starting("lic-");
    for name in ["licenses/LICENSE", "sboms/bom.json", "entry_points.txt"] {
        assert!(host.has(&format!("lic-1.dist-info/{name}")));
    }
}

#[test]
fn dist_info_in_the_middle_moves_to_the_end() {
    let wheel =
        WheelBuilder::new("mid", "1").file("mid/a.so", FatElf::new().code(&[("gfx942", b"c")]).build());
    let mut members = wheel.members();
    members.push(ZipMember::new("mid/late.py", "late"));
    // The late member is not in RECORD: a warning, not an error.
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join(wheel.file_name());
    std::fs::write(&input, crate::support::zip_builder::zip(&members, b"")).unwrap();
    let split = split(&input, &[]);
    assert!(split.stderr.contains("mid/late.py: RECORD does not list it"), "{}", split.stderr);
    let host = split.starting("mid-");
    assert_eq!(host.names()[..2], ["mid/a.so", "mid/late.py"]);
}

#[test]
fn a_wheel_without_record_gets_one() {
    let wheel = WheelBuilder::new("norec", "1")
        .file("norec/a.so", FatElf::new().code(&[("gfx942", b"code")]).build())
        .no_record();
    assert!(split_built(&wheel, &[]).starting("norec-").has("norec-1.dist-info/RECORD"));
}
