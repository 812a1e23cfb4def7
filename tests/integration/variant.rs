//! The variant wheel: its name, its METADATA, the three profiles of variant.json.

use crate::support::elf_builder::FatElf;
use crate::support::golden::golden;
use crate::support::run::{refuse, split_built};
use crate::support::wheel_builder::WheelBuilder;

/// Its METADATA holds lines that look like a split's own.
fn wheel() -> WheelBuilder {
    WheelBuilder::new("var", "2")
        .metadata(
            "Metadata-Version: 2.1\nName: var\nVersion: 2\nProvides-Extra: device-mine\n\
             Requires-Dist: other == 1; extra == \"device-mine\"\n\nRequires-Dist: x; extra == \"device-gfx942\"\n",
        )
        .file("var/a.so", FatElf::new().code(&[("gfx942", b"1"), ("gfx1201", b"2")]).build())
        .file("var/aotriton.images/amd-gfx120x/x", "image")
}

#[test]
fn three_profiles() {
    for profile in ["pep825", "variantlib", "kpack"] {
        let arguments = [
            "--generate-variant-wheel",
            "--variant-format",
            profile,
            "--databases",
            "aotriton",
            "--variant-label",
            "rocm_7.1",
        ];
        let split = split_built(&wheel(), &arguments);
        let variant = split.wheel("var-2-py3-none-linux_x86_64-rocm_7.1.whl");
        golden(&format!("variant_{profile}.json"), &variant.info("variant.json"));
        golden("variant_METADATA", &variant.info("METADATA"));
        let host = split.wheel("var-2-py3-none-linux_x86_64.whl");
        for member in &host.members {
            if !["/METADATA", "/RECORD"].iter().any(|name| member.name.ends_with(name)) {
                assert_eq!(variant.member(&member.name), member, "{}", member.name);
            }
        }
        assert_eq!(variant.members.len(), host.members.len() + 1);
        assert!(!host.has("var-2.dist-info/variant.json"));
    }
}

#[test]
fn pep825_is_the_default_and_has_no_other_keys() {
    let split = split_built(&wheel(), &["--generate-variant-wheel"]);
    let variant = split.wheel("var-2-py3-none-linux_x86_64-variant.whl");
    let json: serde_json::Value = serde_json::from_str(&variant.info("variant.json")).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["$schema", "default-priorities", "variants"]);
    assert_eq!(json["$schema"], "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json");
    assert_eq!(json["default-priorities"], serde_json::json!({"namespace": ["amd"]}));
    assert_eq!(
        json["variants"],
        serde_json::json!({"variant": {"amd": {"gfx_arch": ["gfx1201", "gfx942"]}}})
    );
}

#[test]
fn no_variant_unless_asked_for() {
    assert_eq!(split_built(&wheel(), &[]).names().len(), 3);
}

#[test]
fn labels() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().write(scratch.path());
    for label in ["", "Rocm", "a-b", "a b", "\u{e4}", "null"] {
        let stderr = refuse(&input, &["--generate-variant-wheel", "--variant-label", label], 2);
        assert!(stderr.contains("variant label"), "{label}: {stderr}");
    }
}
