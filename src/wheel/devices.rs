//! The device wheels of one split, seen from outside: their names, the extras and the requirements that tie host
//! and device wheels together.
//!
//! A user writes `pip install torch[device-gfx1151]`. The extra pulls in every wheel of the target's chain that
//! the split writes (`gfx1151`, `gfx115x`, `gfx11`), each pinned to the host's version; `device-all` pulls in all.
//!
//! Every target-level bundle that is written has an extra. So has a processor that only a generic target serves
//! (`gfx11-generic` code alone: no `gfx1100` wheel, but a `gfx11` one that a gfx1100 machine needs): the caller
//! names those as *served*.
//!
//! Invariants: extras and names are those of the Python tool (lockers and scripts know them by heart); no wheel
//! ever requires itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::table::{Bundle, Level};
use crate::fault::{Fault, Result};
use crate::wheel::filename::normalize_dist_name;
use crate::wheel::metadata::Identity;

/// The placeholder in `--device-requires-dist` entries that stands for the bundle key.
pub const GFXARCH: &str = "@GFXARCH@";
/// Helps installers and users to find out which GPU they have; every host requires it.
pub const BOOTSTRAP: &str = "rocm-bootstrap";

/// The device wheels of a split and what is needed to refer to them.
#[derive(Clone, Debug)]
pub struct DeviceSet {
    host: Identity,
    prefix: String,
    requires: Vec<String>,
    written: BTreeMap<String, Bundle>,
    extras: BTreeMap<String, Bundle>,
}

/// One header line that a split adds to the host's METADATA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addition {
    /// `Metadata-Version: 2.1`, for a METADATA that has none.
    MetadataVersion,
    /// `Requires-Dist: rocm-bootstrap`.
    Bootstrap,
    /// `Provides-Extra: <extra>`.
    Extra(String),
    /// `Requires-Dist: <requirement>`.
    Requirement(String),
}

impl Addition {
    /// The field's name and value.
    pub fn field(&self) -> (&'static str, &str) {
        match self {
            Self::MetadataVersion => ("Metadata-Version", "2.1"),
            Self::Bootstrap => ("Requires-Dist", BOOTSTRAP),
            Self::Extra(extra) => ("Provides-Extra", extra),
            Self::Requirement(requirement) => ("Requires-Dist", requirement),
        }
    }
}

impl DeviceSet {
    /// The device wheels named `<prefix>-<key>` for the bundles `written`. `served` are the target-level bundles
    /// that have no wheel of their own but run code of a generic target in one of them. `requires` are the
    /// `--device-requires-dist` entries.
    ///
    /// # Errors
    /// Malformed if the prefix is no distribution name, an entry of `requires` is no requirement, or a device
    /// wheel would have the name of the host or of another device wheel.
    pub fn new(
        host: Identity,
        prefix: &str,
        requires: &[String],
        written: impl IntoIterator<Item = Bundle>,
        served: impl IntoIterator<Item = Bundle>,
    ) -> Result<Self> {
        if !is_dist_name(prefix) {
            return Err(Fault::malformed(
                "device package prefix",
                None,
                format!("{prefix:?} is no distribution name (letters, digits, `-`, `_`, `.`)"),
            ));
        }
        for entry in requires {
            check_requirement(entry)?;
        }
        let written: BTreeMap<String, Bundle> =
            written.into_iter().map(|bundle| (bundle.key.clone(), bundle)).collect();
        let mut extras: BTreeMap<String, Bundle> = BTreeMap::new();
        for bundle in written.values().cloned().chain(served) {
            // A served processor whose bundles were all left out by --archs has nothing to offer.
            let offered = bundle.chain.iter().any(|key| written.contains_key(key));
            if bundle.level == Level::Target && offered {
                extras.entry(bundle.key.clone()).or_insert(bundle);
            }
        }
        let set = Self { host, prefix: prefix.to_owned(), requires: requires.to_vec(), written, extras };
        set.check_names()?;
        Ok(set)
    }

    fn check_names(&self) -> Result<()> {
        let mut names = BTreeSet::from([normalize_dist_name(&self.host.name)]);
        for key in self.written.keys() {
            let name = self.dist_name(key);
            if !names.insert(normalize_dist_name(&name)) {
                return Err(Fault::malformed(
                    "device package prefix",
                    None,
                    format!("{name:?} would name two wheels of this split"),
                ));
            }
        }
        Ok(())
    }

    /// The host wheel's identity.
    pub fn host(&self) -> &Identity {
        &self.host
    }

    /// The bundles that get a device wheel, by key.
    pub fn written(&self) -> impl Iterator<Item = &Bundle> {
        self.written.values()
    }

    /// The target-level keys that have an extra, sorted: what a variant wheel declares.
    pub fn extra_keys(&self) -> impl Iterator<Item = &str> {
        self.extras.keys().map(String::as_str)
    }

    /// The distribution name of the device wheel of `key`: `amd-torch-device-gfx12-0`.
    pub fn dist_name(&self, key: &str) -> String {
        format!("{}-{}", self.prefix, key.replace('_', "-"))
    }

    /// `<dist> == <version>` for the device wheel of `key`.
    fn pin(&self, key: &str) -> String {
        format!("{} == {}", self.dist_name(key), self.host.version)
    }

    /// The keys of the chain of `bundle` that have a device wheel, most specific first.
    fn written_chain<'s>(&'s self, bundle: &'s Bundle) -> impl Iterator<Item = &'s str> {
        bundle.chain.iter().map(String::as_str).filter(|key| self.written.contains_key(*key))
    }

    /// The lines that the host's METADATA gains, in order. With `variant`, each requirement of a per-target extra
    /// is followed by the same requirement under the variant property.
    pub fn host_additions(&self, variant: bool) -> Vec<Addition> {
        let mut lines = Vec::new();
        // Splitting rocm-bootstrap itself would be odd, but it must not make it require itself.
        if normalize_dist_name(&self.host.name) != normalize_dist_name(BOOTSTRAP) {
            lines.push(Addition::Bootstrap);
        }
        for (key, bundle) in &self.extras {
            lines.push(Addition::Extra(format!("device-{key}")));
            for level in self.written_chain(bundle) {
                let pin = self.pin(level);
                lines.push(Addition::Requirement(format!("{pin}; extra == \"device-{key}\"")));
                if variant {
                    lines.push(Addition::Requirement(format!(
                        "{pin}; \"amd :: gfx_arch :: {key}\" in variant_properties"
                    )));
                }
            }
        }
        lines.push(Addition::Extra("device-all".into()));
        let pins: BTreeMap<String, String> =
            self.written.keys().map(|key| (self.dist_name(key), self.pin(key))).collect();
        lines.extend(
            pins.into_values().map(|pin| Addition::Requirement(format!("{pin}; extra == \"device-all\""))),
        );
        lines
    }

    /// The requirements of the device wheel of `bundle`, in order: the host, the `--device-requires-dist` entries,
    /// the written bundles above it.
    pub fn device_requirements(&self, bundle: &Bundle) -> Vec<String> {
        let own = normalize_dist_name(&self.dist_name(&bundle.key));
        let mut lines = vec![format!("{} == {}", self.host.name, self.host.version)];
        for entry in &self.requires {
            // Packages named by @GFXARCH@ exist per target; a family wheel is installed beside a target wheel.
            if bundle.level != Level::Target && entry.contains(GFXARCH) {
                continue;
            }
            let entry = entry.replace(GFXARCH, &bundle.key);
            let name = requirement_name(&entry).unwrap_or_default();
            if normalize_dist_name(name) != own {
                lines.push(entry);
            }
        }
        // Whoever installs a target wheel by name gets the shared files as well (pytorch issue 194498).
        if bundle.level == Level::Target {
            lines
                .extend(self.written_chain(bundle).filter(|key| *key != bundle.key).map(|key| self.pin(key)));
        }
        let mut seen = BTreeSet::new();
        lines.retain(|line| seen.insert(canonical_requirement(line)));
        lines
    }
}

/// Two requirements that differ only in case, quotes, parentheses, white space, `-` and `_` are the same here.
pub(super) fn canonical_requirement(requirement: &str) -> String {
    requirement
        .chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '(' | ')'))
        .map(|c| match c {
            '\'' => '"',
            '_' => '-',
            c => c.to_ascii_lowercase(),
        })
        .collect()
}

/// The distribution name at the start of a requirement.
pub(super) fn requirement_name(requirement: &str) -> Option<&str> {
    let requirement = requirement.trim_start();
    let end = requirement
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')))
        .unwrap_or(requirement.len());
    requirement.get(..end).filter(|name| is_dist_name(name))
}

/// True for a valid distribution name: ASCII letters, digits and `-`, `_`, `.` inside.
pub(super) fn is_dist_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let outer = |c: char| c.is_ascii_alphanumeric();
    name.chars().all(inner) && name.starts_with(outer) && name.ends_with(outer)
}

/// An entry becomes a header line as it is, so a line break in it could forge any field.
fn check_requirement(entry: &str) -> Result<()> {
    let expanded = entry.replace(GFXARCH, "gfx942");
    if requirement_name(&expanded).is_none() || entry.chars().any(char::is_control) {
        return Err(Fault::malformed(
            "--device-requires-dist",
            None,
            format!("{entry:?} is no requirement on one line that starts with a distribution name"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::table::ArchTable;

    fn bundles(keys: &[&str]) -> Vec<Bundle> {
        let table = ArchTable::builtin().unwrap();
        keys.iter().map(|key| table.bundle_of(key).unwrap().into_bundle()).collect()
    }

    fn set(keys: &[&str], served: &[&str], requires: &[&str]) -> Result<DeviceSet> {
        let host = Identity { name: "torch".into(), version: "2.10.0+rocm7.1".into() };
        let requires: Vec<String> = requires.iter().map(|entry| (*entry).to_owned()).collect();
        DeviceSet::new(host, "amd-torch-device", &requires, bundles(keys), bundles(served))
    }

    fn lines(additions: &[Addition]) -> Vec<String> {
        additions.iter().map(|line| format!("{}: {}", line.field().0, line.field().1)).collect()
    }

    #[test]
    fn host_lines_in_the_order_of_the_python_tool() {
        let set = set(&["gfx942", "gfx1151", "gfx11", "gfx12_0"], &[], &[]).unwrap();
        assert_eq!(
            lines(&set.host_additions(false)),
            [
                "Requires-Dist: rocm-bootstrap",
                "Provides-Extra: device-gfx1151",
                "Requires-Dist: amd-torch-device-gfx1151 == 2.10.0+rocm7.1; extra == \"device-gfx1151\"",
                "Requires-Dist: amd-torch-device-gfx11 == 2.10.0+rocm7.1; extra == \"device-gfx1151\"",
                "Provides-Extra: device-gfx942",
                "Requires-Dist: amd-torch-device-gfx942 == 2.10.0+rocm7.1; extra == \"device-gfx942\"",
                "Provides-Extra: device-all",
                "Requires-Dist: amd-torch-device-gfx11 == 2.10.0+rocm7.1; extra == \"device-all\"",
                "Requires-Dist: amd-torch-device-gfx1151 == 2.10.0+rocm7.1; extra == \"device-all\"",
                "Requires-Dist: amd-torch-device-gfx12-0 == 2.10.0+rocm7.1; extra == \"device-all\"",
                "Requires-Dist: amd-torch-device-gfx942 == 2.10.0+rocm7.1; extra == \"device-all\"",
            ]
        );
    }

    #[test]
    fn variant_lines_follow_per_target_extras_only() {
        let set = set(&["gfx942", "gfx9"], &[], &[]).unwrap();
        assert_eq!(
            lines(&set.host_additions(true)),
            [
                "Requires-Dist: rocm-bootstrap",
                "Provides-Extra: device-gfx942",
                "Requires-Dist: amd-torch-device-gfx942 == 2.10.0+rocm7.1; extra == \"device-gfx942\"",
                "Requires-Dist: amd-torch-device-gfx942 == 2.10.0+rocm7.1; \"amd :: gfx_arch :: gfx942\" in variant_properties",
                "Requires-Dist: amd-torch-device-gfx9 == 2.10.0+rocm7.1; extra == \"device-gfx942\"",
                "Requires-Dist: amd-torch-device-gfx9 == 2.10.0+rocm7.1; \"amd :: gfx_arch :: gfx942\" in variant_properties",
                "Provides-Extra: device-all",
                "Requires-Dist: amd-torch-device-gfx9 == 2.10.0+rocm7.1; extra == \"device-all\"",
                "Requires-Dist: amd-torch-device-gfx942 == 2.10.0+rocm7.1; extra == \"device-all\"",
            ]
        );
    }

    /// rocSOLVER issue 909: who has only generic code gets the wheel that holds it.
    #[test]
    fn processors_that_a_generic_serves_get_an_extra() {
        let set = set(&["gfx11"], &["gfx1100", "gfx1151", "gfx942"], &[]).unwrap();
        assert_eq!(set.extra_keys().collect::<Vec<_>>(), ["gfx1100", "gfx1151"]);
        let lines = lines(&set.host_additions(false));
        assert!(
            lines.contains(
                &"Requires-Dist: amd-torch-device-gfx11 == 2.10.0+rocm7.1; extra == \"device-gfx1100\""
                    .to_owned()
            )
        );
    }

    /// pytorch issue 194498: a target wheel installed by name brings its family along.
    #[test]
    fn target_wheels_require_their_written_parents() {
        let entries = ["rocm-sdk-device-@GFXARCH@ == 7.14", "numpy"];
        let set = set(&["gfx1100", "gfx11", "gfx110x", "gfx9"], &[], &entries).unwrap();
        let of = |key: &str| set.device_requirements(&bundles(&[key])[0]);
        assert_eq!(
            of("gfx1100"),
            [
                "torch == 2.10.0+rocm7.1",
                "rocm-sdk-device-gfx1100 == 7.14",
                "numpy",
                "amd-torch-device-gfx110x == 2.10.0+rocm7.1",
                "amd-torch-device-gfx11 == 2.10.0+rocm7.1",
            ]
        );
        assert_eq!(of("gfx11"), ["torch == 2.10.0+rocm7.1", "numpy"]);
        assert_eq!(of("gfx110x"), ["torch == 2.10.0+rocm7.1", "numpy"]);
    }

    /// TheRock issue 7362: a package that required itself through extras sent pip into endless recursion.
    #[test]
    fn nothing_requires_itself() {
        let set = set(
            &["gfx942", "gfx9"],
            &[],
            &["amd_torch_device.@GFXARCH@", "amd-torch-device-gfx9==2.10.0+rocm7.1"],
        )
        .unwrap();
        assert_eq!(
            set.device_requirements(&bundles(&["gfx942"])[0]),
            ["torch == 2.10.0+rocm7.1", "amd-torch-device-gfx9==2.10.0+rocm7.1"]
        );
        assert_eq!(set.device_requirements(&bundles(&["gfx9"])[0]), ["torch == 2.10.0+rocm7.1"]);

        let host = Identity { name: "ROCm.bootstrap".into(), version: "1".into() };
        let bootstrap = DeviceSet::new(host, "x", &[], bundles(&["gfx942"]), []).unwrap();
        assert!(!bootstrap.host_additions(false).contains(&Addition::Bootstrap));
    }

    #[test]
    fn bad_names_and_entries_are_refused() {
        assert!(set(&["gfx942"], &[], &["numpy\nName: evil"]).is_err());
        assert!(set(&["gfx942"], &[], &[" "]).is_err());
        assert!(set(&["gfx942"], &[], &["@GFXARCH@-kernels"]).is_ok());
        let host = Identity { name: "torch_gfx942".into(), version: "1".into() };
        assert!(DeviceSet::new(host.clone(), "torch", &[], bundles(&["gfx942"]), []).is_err());
        assert!(DeviceSet::new(host.clone(), "amd-", &[], bundles(&["gfx942"]), []).is_err());
        assert!(DeviceSet::new(host, "", &[], bundles(&["gfx942"]), []).is_err());
    }
}
