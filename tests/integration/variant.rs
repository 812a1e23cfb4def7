//! The variant wheel: its name, its METADATA, the three profiles of variant.json.

use std::process::Command;

use crate::support::elf_builder::FatElf;
use crate::support::golden::golden;
use crate::support::run::{refuse, split_built};
use crate::support::tools::{required, tool};
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
fn therock_7564_three_profiles() {
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

/// The PyPI package variantlib reads and checks its own format.
#[test]
fn variantlib_accepts_its_format() {
    let Some(python) = tool("python3") else { return };
    let program = "
import sys, zipfile
try:
    from variantlib.variant_dist_info import VariantDistInfo
    from variantlib.constants import VALIDATION_WHEEL_NAME_REGEX
except ImportError:
    sys.exit(77)
path, label = sys.argv[1:]
archive = zipfile.ZipFile(path)
name = next(name for name in archive.namelist() if name.endswith('.dist-info/variant.json'))
info = VariantDistInfo(archive.read(name).decode(), label)
assert info.variant_label == label
properties = [(p.namespace, p.feature, p.value) for p in info.variant_desc.properties]
assert properties == [('amd', 'gfx_arch', 'gfx1201'), ('amd', 'gfx_arch', 'gfx942')], properties
assert info.providers['amd'].plugin_api == 'rocm_bootstrap.variant_provider:AMDVariantPlugin'
match = VALIDATION_WHEEL_NAME_REGEX.fullmatch(path.rsplit('/', 1)[1])
assert match.group('variant_label') == label, match
";
    let arguments =
        ["--generate-variant-wheel", "--variant-format", "variantlib", "--variant-label", "rocm_7.1"];
    let split = split_built(&wheel(), &arguments);
    let variant = split.output().join("var-2-py3-none-linux_x86_64-rocm_7.1.whl");
    let done = Command::new(python).args(["-c", program]).arg(variant).arg("rocm_7.1").output().unwrap();
    if done.status.code() == Some(77) {
        assert!(!required(), "python3 has no variantlib, and FATWHEEL_REQUIRE_TOOLS=1");
        eprintln!("skipped: python3 has no variantlib");
        return;
    }
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The rules of the drafts' JSON schema: one variant, its label, and names and values of properties.
#[test]
fn pep825_keeps_the_rules_of_its_schema() {
    let only = |text: &str, more: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c))
    };
    let split = split_built(&wheel(), &["--generate-variant-wheel", "--variant-label", "x.1_2"]);
    let variant = split.wheel("var-2-py3-none-linux_x86_64-x.1_2.whl");
    let json: serde_json::Value = serde_json::from_str(&variant.info("variant.json")).unwrap();
    let variants = json["variants"].as_object().unwrap();
    assert_eq!(variants.len(), 1);
    let (label, namespaces) = variants.iter().next().unwrap();
    assert!(only(label, "._") && label == "x.1_2");
    for (namespace, features) in namespaces.as_object().unwrap() {
        let priorities = json["default-priorities"]["namespace"].as_array().unwrap();
        assert!(only(namespace, "_") && priorities.iter().any(|name| name == namespace.as_str()));
        for (feature, values) in features.as_object().unwrap() {
            let values: Vec<&str> =
                values.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
            assert!(only(feature, "_") && values.iter().all(|value| only(value, "._")));
            assert!(!values.is_empty() && values.is_sorted_by(|a, b| a < b), "sorted, each once: {values:?}");
        }
    }
}
