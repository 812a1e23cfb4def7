//! The rules file (`--rules FILE`, TOML): what a project has decided about its wheels, kept beside its build scripts.
//!
//! ```toml
//! # For every wheel, where the command line says nothing:
//! device-requires-dist = ["rocm-sdk-device-@GFXARCH@ == 7.14"]
//! databases = ["torch-fat", "aiter"]
//!
//! # Handlers of the project's own, selected by name like the built-in ones:
//! [handlers.aiter]
//! files = ["hsa/{arch}/**/*.co"]
//!
//! # For one distribution; what stands here counts more than what stands above:
//! [distribution.torch]
//! overlay-root = "torch"
//! device-package-prefix = "amd-torch-device"
//!
//! # More rows for the architecture table, and names that occur in paths:
//! [aliases]
//! gfx125x = "gfx12_5"
//! ```
//!
//! One rule decides: the more special statement counts, whole. An option of the command line replaces the key of the
//! distribution's section, and that replaces the key at the top; lists are not joined. Keys that nobody knows are
//! refused, and so are handlers, patterns and rows that make no sense, before any wheel is looked at.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::arch::UnknownArch;
use crate::arch::table::{ArchRows, ArchTable, BundleRow, TargetRow};
use crate::fault::{Fault, Result};
use crate::wheel::database::Selection;
use crate::wheel::device_glob::DeviceGlob;
use crate::wheel::filename::normalize_dist_name;

/// What a project wants for a wheel. `None`: nothing is said, and the default holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Wants {
    /// Directory of the wheel that `.kpack/` is placed in.
    pub overlay_root: Option<String>,
    /// Device wheels are named `<prefix>-<key>`.
    pub device_package_prefix: Option<String>,
    /// More `Requires-Dist` entries of device wheels.
    pub device_requires_dist: Option<Vec<String>>,
    /// Handlers and presets by name.
    pub databases: Option<Vec<String>>,
    /// Globs with `{arch}`.
    pub device_files: Option<Vec<String>>,
    /// Bundle keys to keep, or with `!` to drop.
    #[serde(default, deserialize_with = "comma_list")]
    pub archs: Option<String>,
    /// What becomes of processors that the table lacks.
    pub unknown_arch: Option<UnknownArch>,
}

impl Wants {
    /// These, and what they say nothing about from `general`.
    #[must_use]
    pub fn or(self, general: Self) -> Self {
        Self {
            overlay_root: self.overlay_root.or(general.overlay_root),
            device_package_prefix: self.device_package_prefix.or(general.device_package_prefix),
            device_requires_dist: self.device_requires_dist.or(general.device_requires_dist),
            databases: self.databases.or(general.databases),
            device_files: self.device_files.or(general.device_files),
            archs: self.archs.or(general.archs),
            unknown_arch: self.unknown_arch.or(general.unknown_arch),
        }
    }
}

/// A list of architectures, as one string like on the command line or as an array.
fn comma_list<'de, D: serde::Deserializer<'de>>(source: D) -> std::result::Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a string or an array of strings")]
    enum List {
        One(String),
        Many(Vec<String>),
    }
    Ok(Some(match List::deserialize(source)? {
        List::One(list) => list,
        List::Many(list) => list.join(","),
    }))
}

/// A handler of the project's own: where its per-architecture files are.
#[derive(Clone, Debug)]
pub struct CustomHandler {
    /// By which it is selected.
    pub name: String,
    /// The files.
    pub files: Vec<DeviceGlob>,
}

/// A rules file. The default says nothing.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    general: Wants,
    /// By normalised distribution name.
    distributions: BTreeMap<String, Wants>,
    /// The project's own handlers.
    pub handlers: Vec<CustomHandler>,
    /// Rows for the architecture table.
    pub rows: ArchRows,
}

/// The file as it is written: the keys of [`Wants`] and [`ArchRows`] once more, since serde would let unknown keys pass
/// in a struct that is made of others.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    overlay_root: Option<String>,
    device_package_prefix: Option<String>,
    device_requires_dist: Option<Vec<String>>,
    databases: Option<Vec<String>>,
    device_files: Option<Vec<String>>,
    #[serde(default, deserialize_with = "comma_list")]
    archs: Option<String>,
    unknown_arch: Option<UnknownArch>,
    #[serde(default)]
    handlers: BTreeMap<String, RawHandler>,
    #[serde(default)]
    distribution: BTreeMap<String, Wants>,
    #[serde(default)]
    bundles: Vec<BundleRow>,
    #[serde(default)]
    targets: Vec<TargetRow>,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHandler {
    files: Vec<String>,
}

impl Rules {
    /// Parses the text of a rules file.
    ///
    /// # Errors
    /// Malformed if it is no TOML, has unknown keys, or something in it makes no sense; the message says where.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File =
            toml::from_str(text).map_err(|error| fault(error.to_string().trim_end().to_owned()))?;
        let mut rules = Self {
            general: Wants {
                overlay_root: file.overlay_root,
                device_package_prefix: file.device_package_prefix,
                device_requires_dist: file.device_requires_dist,
                databases: file.databases,
                device_files: file.device_files,
                archs: file.archs,
                unknown_arch: file.unknown_arch,
            },
            distributions: BTreeMap::new(),
            handlers: Vec::new(),
            rows: ArchRows { bundles: file.bundles, targets: file.targets, aliases: file.aliases },
        };
        for (name, handler) in file.handlers {
            rules.handlers.push(custom_handler(name, &handler.files)?);
        }
        for (name, wants) in file.distribution {
            let key = normalize_dist_name(&name);
            if rules.distributions.insert(key, wants).is_some() {
                return Err(fault(format!(
                    "[distribution.{name:?}]: another section is for the same distribution"
                )));
            }
        }
        rules.check()?;
        Ok(rules)
    }

    /// What the file says for a distribution.
    pub fn wants(&self, distribution: &str) -> Wants {
        let special = self.distributions.get(&normalize_dist_name(distribution)).cloned().unwrap_or_default();
        special.or(self.general.clone())
    }

    /// Every selection and row, since a mistake in the section of a wheel that comes last would show hours later.
    fn check(&self) -> Result<()> {
        ArchTable::builtin()?.add(self.rows.clone())?;
        for wants in std::iter::once(&self.general).chain(self.distributions.values()) {
            Selection::new(wants, &self.handlers)?;
        }
        Ok(())
    }
}

fn custom_handler(name: String, files: &[String]) -> Result<CustomHandler> {
    let well_formed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || !name.chars().all(well_formed) {
        return Err(fault(format!("[handlers.{name:?}]: expected a name of letters, digits, `-` and `_`")));
    }
    if Selection::is_known(&name) {
        return Err(fault(format!("[handlers.{name}]: the name is that of a built-in handler or preset")));
    }
    if files.is_empty() {
        return Err(fault(format!("[handlers.{name}]: no files")));
    }
    let globs: Result<Vec<DeviceGlob>> = files.iter().map(|pattern| DeviceGlob::parse(pattern)).collect();
    let files = globs.map_err(|error| fault(format!("[handlers.{name}] files: {}", error.message)))?;
    Ok(CustomHandler { name, files })
}

fn fault(message: String) -> Fault {
    Fault::malformed("rules file", None, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        device-requires-dist = ["sdk-@GFXARCH@ == 7.14"]
        databases = ["torch-fat", "aiter"]
        archs = ["gfx942", "gfx1100"]
        unknown-arch = "error"

        [handlers.aiter]
        files = ["hsa/{arch}/*.co", "kernels/{arch}.bin"]

        [distribution.torch]
        overlay-root = "torch"
        device-package-prefix = "amd-torch-device"

        [distribution."Torch.Audio"]
        databases = []
        archs = "!gfx900"

        [aliases]
        gfx120x = "gfx12_0"
        gfx115y = "gfx1151"

        [[targets]]
        name = "gfx1171"
        chain = ["gfx1171", "gfx11"]
    "#;

    #[test]
    fn the_more_special_statement_counts() {
        let rules = Rules::parse(FILE).unwrap();
        let torch = rules.wants("Torch");
        assert_eq!(torch.overlay_root.as_deref(), Some("torch"));
        assert_eq!(torch.databases.as_deref(), Some(&["torch-fat".to_owned(), "aiter".to_owned()][..]));
        assert_eq!(torch.archs.as_deref(), Some("gfx942,gfx1100"));
        assert_eq!(torch.unknown_arch, Some(UnknownArch::Error));
        let audio = rules.wants("torch_audio");
        assert_eq!(audio.databases.as_deref(), Some(&[][..]), "an empty list is a statement too");
        assert_eq!(audio.archs.as_deref(), Some("!gfx900"));
        assert_eq!(audio.device_requires_dist, torch.device_requires_dist);
        assert_eq!(rules.wants("other").overlay_root, None);
        let command_line = Wants { overlay_root: Some("lib".into()), ..Wants::default() };
        assert_eq!(command_line.or(torch).overlay_root.as_deref(), Some("lib"));
    }

    #[test]
    fn rows_and_aliases_reach_the_table() {
        let mut table = ArchTable::builtin().unwrap();
        table.add(Rules::parse(FILE).unwrap().rows).unwrap();
        for (name, key) in [("gfx120x", "gfx12_0"), ("gfx115y", "gfx1151"), ("gfx1171", "gfx1171")] {
            let lookup = table.bundle_of(name).unwrap();
            assert!(lookup.is_known(), "{name}");
            assert_eq!(lookup.bundle().key, key);
        }
    }

    #[test]
    fn mistakes_are_found_at_once_and_named() {
        for (text, why) in [
            ("databases = [", "TOML parse error at line 1"),
            ("overlay_root = 'x'", "unknown field `overlay_root`"),
            ("[distribution.torch]\nprefix = 'x'", "unknown field `prefix`"),
            ("[distribution.torch]\nprefix = 'x'", "line 2"),
            ("databases = ['rocblaz']", "rocblaz"),
            ("[distribution.torch]\ndatabases = ['rocblaz']", "rocblaz"),
            ("[handlers.rocblas]\nfiles = ['{arch}']", "[handlers.rocblas]: the name is that of a built-in"),
            ("[handlers.torch-fat]\nfiles = ['{arch}']", "built-in handler or preset"),
            ("[handlers.'a b']\nfiles = ['{arch}']", "a b"),
            ("[handlers.x]\nfiles = []", "[handlers.x]: no files"),
            ("[handlers.x]\nfiles = ['*.co']", "no `{arch}`"),
            ("[handlers.x]\nfile = '*'", "unknown field `file`"),
            ("device-files = ['*.co']", "no `{arch}`"),
            ("[distribution.a-b]\n[distribution.A_B]", "the same distribution"),
            ("unknown-arch = 'ignore'", "ignore"),
            ("archs = 3", "a string or an array of strings"),
            ("[aliases]\ngfx942 = 'gfx9'", "has a meaning already"),
            ("[aliases]\ngfx99xx = 'gfx99'", "no target or bundle"),
            ("[aliases]\nMI300 = 'gfx942'", "MI300"),
            ("[[targets]]\nname = 'gfx1'\nchain = ['nowhere']", "nowhere"),
        ] {
            let fault = Rules::parse(text).unwrap_err();
            assert!(fault.message.contains(why), "{text}: {fault}");
        }
        assert!(Rules::parse("").is_ok());
    }
}
