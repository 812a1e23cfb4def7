//! The variant wheel: `variant.json`, the label, the file name. Experimental, since its standard still moves.
//!
//! Three profiles of `variant.json`:
//! - PEP 825 draft, schema v0.1.1: what installers need, nothing else;
//! - the PyPI package variantlib 0.2.2, schema v0.2.0: names a provider plugin as well;
//! - what the Python splitter writes, for scripts that read it.
//!
//! The variant's METADATA is made by [`crate::wheel::metadata::rewrite_host`], from the split's own data.

use serde_json::{Map, Value, json};

use crate::fault::{Fault, Result};
use crate::wheel::devices::DeviceSet;

/// A profile of `variant.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Format {
    /// PEP 825 draft.
    #[default]
    Pep825,
    /// variantlib 0.2.2.
    Variantlib,
    /// The Python splitter.
    Kpack,
}

/// Checks a variant label: `[0-9a-z_.]+`, and not `null`, which the drafts reserve for a variant without
/// properties.
///
/// # Errors
/// Malformed otherwise.
pub fn check_label(label: &str) -> Result<()> {
    let allowed =
        |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase() || byte == b'_' || byte == b'.';
    if label.is_empty() || !label.bytes().all(allowed) {
        return Err(fault(format!("{label:?}: expected digits, lower-case letters, `_` and `.`")));
    }
    if label == "null" {
        return Err(fault("\"null\" is reserved for a variant without properties".into()));
    }
    Ok(())
}

/// The variant wheel's file name: `-<label>` before `.whl`.
///
/// # Errors
/// Malformed if `host` does not end in `.whl` or the label is none.
pub fn file_name(host: &str, label: &str) -> Result<String> {
    check_label(label)?;
    match host.strip_suffix(".whl") {
        Some(stem) => Ok(format!("{stem}-{label}.whl")),
        None => Err(Fault::malformed("wheel file name", None, format!("{host:?} does not end in .whl"))),
    }
}

/// `variant.json` of the variant wheel with this label.
///
/// # Errors
/// Malformed if the label is none, or if no device wheel is for a single target: a variant without properties
/// would be taken for the null variant.
pub fn variant_json(devices: &DeviceSet, label: &str, format: Format) -> Result<Vec<u8>> {
    check_label(label)?;
    let targets: Vec<&str> = devices.extra_keys().collect();
    if targets.is_empty() {
        return Err(Fault::malformed(
            "variant wheel",
            None,
            "no device wheel is for a single target, so the variant has no properties",
        ));
    }
    let properties = |targets: &[&str]| json!({"amd": {"gfx_arch": targets}});
    let one_variant = json!({label: properties(&targets)});
    let value = match format {
        Format::Pep825 => json!({
            "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json",
            "default-priorities": {"namespace": ["amd"]},
            "variants": one_variant,
        }),
        Format::Variantlib => json!({
            "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
            "default-priorities": {"namespace": ["amd"]},
            "providers": {"amd": {
                "requires": ["rocm-bootstrap >= 0.3.0"],
                "plugin-api": "rocm_bootstrap.variant_provider:AMDVariantPlugin",
            }},
            "variants": one_variant,
        }),
        Format::Kpack => {
            let per_target: Map<String, Value> =
                targets.iter().map(|target| ((*target).to_owned(), properties(&[target]))).collect();
            json!({
                "providers": {"amd": {
                    "install-time": true,
                    "plugin-api": "amd_variant_provider.plugin:AMDVariantPlugin",
                    "requires": ["amd-variant-provider >= 1.0"],
                }},
                "default-priorities": {
                    "namespace": ["amd"],
                    "property": {"amd": {"gfx_arch": targets}},
                },
                "variants": per_target,
            })
        }
    };
    Ok(format!("{value:#}\n").into_bytes())
}

fn fault(message: String) -> Fault {
    Fault::malformed("variant label", None, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::table::ArchTable;
    use crate::wheel::metadata::Identity;

    fn devices(keys: &[&str]) -> DeviceSet {
        let table = ArchTable::builtin().unwrap();
        let host = Identity { name: "torch".into(), version: "1.0".into() };
        let bundles: Vec<_> = keys.iter().map(|key| table.bundle_of(key).unwrap().into_bundle()).collect();
        DeviceSet::new(host, "dev", &[], bundles, []).unwrap()
    }

    fn written(format: Format) -> String {
        String::from_utf8(variant_json(&devices(&["gfx942", "gfx1100", "gfx11"]), "amd", format).unwrap())
            .unwrap()
    }

    #[test]
    fn pep825_has_exactly_these_keys() {
        assert_eq!(
            written(Format::Pep825),
            r#"{
  "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json",
  "default-priorities": {
    "namespace": [
      "amd"
    ]
  },
  "variants": {
    "amd": {
      "amd": {
        "gfx_arch": [
          "gfx1100",
          "gfx942"
        ]
      }
    }
  }
}
"#
        );
    }

    #[test]
    fn variantlib_names_a_provider() {
        let value: Value = serde_json::from_str(&written(Format::Variantlib)).unwrap();
        assert_eq!(value["$schema"], "https://variants-schema.wheelnext.dev/v0.2.0.json");
        assert_eq!(
            value["providers"]["amd"]["plugin-api"],
            "rocm_bootstrap.variant_provider:AMDVariantPlugin"
        );
        assert_eq!(value["providers"]["amd"]["requires"], json!(["rocm-bootstrap >= 0.3.0"]));
        assert_eq!(value["variants"], json!({"amd": {"amd": {"gfx_arch": ["gfx1100", "gfx942"]}}}));
    }

    #[test]
    fn kpack_has_one_variant_per_target() {
        let value: Value = serde_json::from_str(&written(Format::Kpack)).unwrap();
        assert_eq!(
            value["variants"],
            json!({"gfx1100": {"amd": {"gfx_arch": ["gfx1100"]}}, "gfx942": {"amd": {"gfx_arch": ["gfx942"]}}})
        );
        assert_eq!(value["default-priorities"]["property"]["amd"]["gfx_arch"], json!(["gfx1100", "gfx942"]));
        assert_eq!(value["providers"]["amd"]["install-time"], true);
    }

    #[test]
    fn labels_and_file_names() {
        assert_eq!(file_name("t-1-py3-none-any.whl", "amd_7.1").unwrap(), "t-1-py3-none-any-amd_7.1.whl");
        for label in ["", "AMD", "a-b", "a b", "null", "a/b", "\u{e4}"] {
            assert!(check_label(label).is_err(), "{label:?}");
        }
        assert!(file_name("t.zip", "amd").is_err());
        assert!(variant_json(&devices(&["gfx11"]), "amd", Format::Pep825).is_err());
    }
}
