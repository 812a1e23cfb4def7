//! Which device wheel a GPU target goes to.
//!
//! *Packaging levels*: every target (`gfx1151`) belongs to a sub-family (`gfx115x`) and a family (`gfx11`). A
//! device wheel exists per *bundle*, and a bundle is a target, a sub-family or a family. The facts are rows of
//! `arch_table.json`, which holds the table of the PyPI package rocm-bootstrap 0.3.0; `--arch-table FILE` adds or
//! replaces rows with the same schema ([`ArchTable::with_rows`]).
//!
//! LLVM's *generic targets* (`gfx11-generic`) are not bundles. They go to the smallest bundle that covers every
//! processor they serve at run time. What they serve is a property of the HIP runtime, not of the packaging
//! table: the table's own `llvm_generic` column knows nothing of gfx950 running `gfx9-4-generic` code, so the
//! built-in generics are listed here and win over that column.
//!
//! Invariants: every bundle that a target's chain names exists; a chain climbs (target, sub-family, family).
//! A table that breaks them is refused as a whole, and the old one stays as it was.
//!
//! Refused: a name that is neither in the table nor a well-formed processor name (`gfxzzz`).

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::fault::{Fault, Result};

/// The table of rocm-bootstrap 0.3.0.
const BUILTIN: &str = include_str!("arch_table.json");

/// Older spellings of bundle keys that occur in database paths, and today's key.
const ALIASES: [(&str, &str); 2] = [("gfx11_0", "gfx110x"), ("gfx11_5", "gfx115x")];

/// A generic target: its bundle and the processors whose devices run its code.
struct Generic {
    name: &'static str,
    bundle: &'static str,
    members: &'static [&'static str],
}

const GENERICS: [Generic; 7] = [
    Generic {
        name: "gfx9-generic",
        bundle: "gfx9_0",
        members: &["gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"],
    },
    // Its members are in two sub-families (gfx9_4, gfx9_5), so only the family covers them.
    Generic { name: "gfx9-4-generic", bundle: "gfx9", members: &["gfx942", "gfx950"] },
    Generic {
        name: "gfx10-1-generic",
        bundle: "gfx10_1",
        members: &["gfx1010", "gfx1011", "gfx1012", "gfx1013"],
    },
    Generic {
        name: "gfx10-3-generic",
        bundle: "gfx10_3",
        members: &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"],
    },
    Generic {
        name: "gfx11-generic",
        bundle: "gfx11",
        members: &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"],
    },
    Generic { name: "gfx12-generic", bundle: "gfx12_0", members: &["gfx1200", "gfx1201"] },
    Generic { name: "gfx12-5-generic", bundle: "gfx12_5", members: &["gfx1250", "gfx1251"] },
];

/// A level of the packaging hierarchy, from the most to the least specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// One processor: `gfx1151`.
    Target,
    /// Same major and minor version: `gfx115x`, `gfx12_0`.
    SubFamily,
    /// Same major version: `gfx11`.
    Family,
}

/// A packaging unit: what one device wheel is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The bundle key, with underscores: `gfx942`, `gfx110x`, `gfx12_0`, `gfx11`.
    pub key: String,
    /// Its level.
    pub level: Level,
    /// What a human calls it: `RDNA3.5`. Free of control characters.
    pub display_name: String,
    /// The keys of this bundle and of those above it: `gfx942`, `gfx9_4`, `gfx9`. Never empty; the first is
    /// `key`. For a processor that the table lacks, the upper keys need not be in the table.
    pub chain: Vec<String>,
}

/// The answer of [`ArchTable::bundle_of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleLookup<'t> {
    /// The table has it.
    Known(&'t Bundle),
    /// The table lacks this processor, but its name is well formed: a target-level bundle of that name, its
    /// chain read off the number. `--unknown-arch` decides what becomes of it.
    Unknown(Bundle),
}

impl BundleLookup<'_> {
    /// The bundle, known or not.
    pub fn bundle(&self) -> &Bundle {
        match self {
            Self::Known(bundle) => bundle,
            Self::Unknown(bundle) => bundle,
        }
    }

    /// The bundle, known or not, on its own.
    pub fn into_bundle(self) -> Bundle {
        match self {
            Self::Known(bundle) => bundle.clone(),
            Self::Unknown(bundle) => bundle,
        }
    }

    /// True if the table has it.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }
}

/// The packaging table, looked up by processor or bundle key.
#[derive(Clone, Debug)]
pub struct ArchTable {
    bundles: BTreeMap<String, Bundle>,
    /// Chain per processor name; `gfx1250-strict` has that of `gfx1250`.
    targets: BTreeMap<String, Vec<String>>,
    /// Generic targets that added rows brought: bundle key and members.
    generics: BTreeMap<String, (String, Vec<String>)>,
    /// Names of files and directories that added rows brought: what each stands for.
    aliases: BTreeMap<String, String>,
}

/// Rows to add to a table: those of `--arch-table`, or of a rules file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ArchRows {
    /// Packaging units.
    #[serde(default)]
    pub bundles: Vec<BundleRow>,
    /// Processors.
    #[serde(default)]
    pub targets: Vec<TargetRow>,
    /// Other names that occur in paths, and the processor or bundle key that each stands for.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
}

impl ArchRows {
    /// Rows in JSON, with the schema of the built-in table.
    ///
    /// # Errors
    /// Malformed if `json` is no such table or adds nothing.
    pub fn from_json(json: &str) -> Result<Self> {
        let rows: Self = serde_json::from_str(json)
            .map_err(|error| fault(format!("not an architecture table in JSON: {error}")))?;
        if rows.is_empty() {
            return Err(fault("neither `bundles` nor `targets` nor `aliases` has a row".into()));
        }
        Ok(rows)
    }

    /// Whether nothing would be added.
    pub fn is_empty(&self) -> bool {
        self.bundles.is_empty() && self.targets.is_empty() && self.aliases.is_empty()
    }
}

/// A row for a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BundleRow {
    key: String,
    level: Level,
    display_name: Option<String>,
    llvm_generic: Option<String>,
    #[serde(default)]
    members: Vec<String>,
}

/// A row for a target.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TargetRow {
    name: String,
    chain: Vec<String>,
}

impl ArchTable {
    /// The built-in table.
    ///
    /// # Errors
    /// None in practice: a test holds the embedded file to the rules of [`ArchTable::with_rows`].
    pub fn builtin() -> Result<Self> {
        let mut table = Self {
            bundles: BTreeMap::new(),
            targets: BTreeMap::new(),
            generics: BTreeMap::new(),
            aliases: BTreeMap::new(),
        };
        table.with_rows(BUILTIN)?;
        Ok(table)
    }

    /// Adds the rows of `json`, which has the schema of the built-in table; rows of the same key or name are
    /// replaced. `bundles` or `targets` may be absent. A target row without a bundle row for itself gets one.
    ///
    /// # Errors
    /// Malformed if `json` is no such table, adds nothing, or leaves a chain that names a missing bundle or does
    /// not climb. The table is unchanged then.
    pub fn with_rows(&mut self, json: &str) -> Result<()> {
        self.add(ArchRows::from_json(json)?)
    }

    /// Adds `rows`, as [`with_rows`](Self::with_rows) does.
    ///
    /// # Errors
    /// Malformed if a chain names a missing bundle or does not climb, or an alias is a name that has a meaning
    /// already or stands for nothing. The table is unchanged then.
    pub fn add(&mut self, rows: ArchRows) -> Result<()> {
        let mut next = self.clone();
        for row in rows.bundles {
            next.add_bundle(row)?;
        }
        for row in rows.targets {
            next.add_target(row)?;
        }
        next.link()?;
        for (alias, meaning) in rows.aliases {
            check_name(&alias)?;
            if next.known(&alias).is_some() {
                return Err(fault(format!("alias {alias:?}: the name has a meaning already")));
            }
            let bundle = next.known(&meaning).ok_or_else(|| {
                fault(format!("alias {alias:?}: {meaning:?} is no target or bundle of the table"))
            })?;
            let key = bundle.key.clone();
            next.aliases.insert(alias, key);
        }
        *self = next;
        Ok(())
    }

    fn add_bundle(&mut self, row: BundleRow) -> Result<()> {
        check_name(&row.key)?;
        let display_name = row.display_name.unwrap_or_else(|| row.key.clone());
        if display_name.trim().is_empty() || display_name.chars().any(char::is_control) {
            return Err(fault(format!("bundle {}: display name {display_name:?} is not one line", row.key)));
        }
        for member in &row.members {
            check_name(member)?;
        }
        if let Some(generic) = row.llvm_generic {
            check_name(&generic)?;
            // A newer copy of the upstream table must not undo what we know about the run time.
            if builtin_generic(&generic).is_none() {
                self.generics.insert(generic, (row.key.clone(), row.members));
            }
        }
        let bundle = Bundle { key: row.key.clone(), level: row.level, display_name, chain: Vec::new() };
        self.bundles.insert(row.key, bundle);
        Ok(())
    }

    fn add_target(&mut self, row: TargetRow) -> Result<()> {
        check_name(&row.name)?;
        let Some(owner) = row.chain.first() else {
            return Err(fault(format!("target {}: empty chain", row.name)));
        };
        if *owner == row.name && !self.bundles.contains_key(owner) {
            self.bundles.insert(
                owner.clone(),
                Bundle {
                    key: owner.clone(),
                    level: Level::Target,
                    display_name: owner.clone(),
                    chain: Vec::new(),
                },
            );
        }
        self.targets.insert(row.name, row.chain);
        Ok(())
    }

    /// Checks every chain and derives each bundle's own chain from those of the targets in it.
    fn link(&mut self) -> Result<()> {
        let mut chains: BTreeMap<&str, &[String]> = BTreeMap::new();
        for (target, chain) in &self.targets {
            let mut below = None;
            for (index, key) in chain.iter().enumerate() {
                let Some(bundle) = self.bundles.get(key) else {
                    return Err(fault(format!("target {target}: no bundle {key:?}, which its chain names")));
                };
                let expected =
                    if index == 0 { bundle.level == Level::Target } else { below < Some(bundle.level) };
                if !expected {
                    return Err(fault(format!(
                        "target {target}: the chain has to climb from a target to a family, {key:?} does not"
                    )));
                }
                below = Some(bundle.level);
                let rest = chain.get(index..).unwrap_or_default();
                if chains.insert(key, rest).is_some_and(|other| other != rest) {
                    return Err(fault(format!(
                        "target {target}: bundle {key:?} is below two different bundles"
                    )));
                }
            }
        }
        let chains: BTreeMap<String, Vec<String>> =
            chains.into_iter().map(|(key, chain)| (key.to_owned(), chain.to_vec())).collect();
        for (key, bundle) in &mut self.bundles {
            bundle.chain = match chains.get(key) {
                Some(chain) => chain.clone(),
                // A target-level bundle that no target row mentions.
                None if bundle.level == Level::Target => {
                    chain_of_number(key).unwrap_or_else(|| vec![key.clone()])
                }
                None => vec![key.clone()],
            };
        }
        Ok(())
    }

    /// The bundle that code or a file for `processor` goes to. `processor` is a processor (`gfx90a`,
    /// `gfx1250-strict`), a generic target, or a bundle key as found in database paths (`gfx11`, `gfx12_0`,
    /// `gfx11_0`); features (`:xnack-`, `-xnack+`) are ignored. `amdgcnspirv` is the caller's business.
    ///
    /// # Errors
    /// Malformed if the table lacks the name and it is not a well-formed processor name either.
    pub fn bundle_of(&self, processor: &str) -> Result<BundleLookup<'_>> {
        let processor = strip_features(processor);
        if let Some(bundle) = self.known(processor) {
            return Ok(BundleLookup::Known(bundle));
        }
        let Some(chain) = chain_of_number(processor) else {
            return Err(Fault::malformed(
                "GPU target",
                None,
                format!(
                    "{processor:?} is not in the architecture table and is no processor name \
                     (gfx, major version, two hexadecimal digits)"
                ),
            ));
        };
        Ok(BundleLookup::Unknown(Bundle {
            key: processor.to_owned(),
            level: Level::Target,
            display_name: processor.to_owned(),
            chain,
        }))
    }

    /// The bundle of exactly this key, if the table has it.
    pub fn bundle(&self, key: &str) -> Option<&Bundle> {
        self.bundles.get(key)
    }

    /// The keys of the bundle of `processor` and of those above it, most specific first.
    ///
    /// # Errors
    /// As [`ArchTable::bundle_of`].
    pub fn chain(&self, processor: &str) -> Result<Vec<String>> {
        Ok(self.bundle_of(processor)?.into_bundle().chain)
    }

    fn known(&self, name: &str) -> Option<&Bundle> {
        let key = if let Some(chain) = self.targets.get(name) {
            chain.first()?.as_str()
        } else if let Some(generic) = builtin_generic(name) {
            generic.bundle
        } else if let Some((bundle, _)) = self.generics.get(name) {
            bundle
        } else if let Some(key) = self.aliases.get(name) {
            key
        } else {
            resolve_alias(name)
        };
        self.bundles.get(key)
    }

    /// True if the table has a row for this processor (not a bundle key, not a generic).
    pub fn is_processor(&self, name: &str) -> bool {
        self.targets.contains_key(name)
    }

    /// The generic target whose code a device of `processor` runs if there is none of its own, if any.
    pub fn generic_of(&self, processor: &str) -> Option<&str> {
        let builtin = GENERICS.iter().find(|generic| generic.members.contains(&processor));
        builtin.map(|generic| generic.name).or_else(|| {
            self.generics
                .iter()
                .find(|(_, (_, members))| members.iter().any(|member| member == processor))
                .map(|(name, _)| name.as_str())
        })
    }

    /// The processors that run code of the generic target `generic`; `None` if it is no known generic.
    pub fn members_of_generic(&self, generic: &str) -> Option<Vec<&str>> {
        match builtin_generic(generic) {
            Some(generic) => Some(generic.members.to_vec()),
            None => {
                self.generics.get(generic).map(|(_, members)| members.iter().map(String::as_str).collect())
            }
        }
    }
}

/// The processor of a target ID: `gfx90a:sramecc+:xnack-` and the Tensile file name form `gfx90a-xnack-` give
/// `gfx90a`, `gfx1250-strict` stays.
pub fn strip_features(target: &str) -> &str {
    let target = target.split_once(':').map_or(target, |(processor, _)| processor);
    target.strip_suffix("-xnack+").or_else(|| target.strip_suffix("-xnack-")).unwrap_or(target)
}

fn builtin_generic(name: &str) -> Option<&'static Generic> {
    GENERICS.iter().find(|generic| generic.name == name)
}

fn resolve_alias(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, key)| key)
}

/// Reads target, sub-family and family off a processor name; `None` if it is not well formed.
///
/// Well formed is `gfx`, a major version of one or two digits without a leading zero, one hexadecimal digit of
/// minor version and one of stepping. LLVM has no other names; three digits would let MIOpen's `gfx90878`
/// (gfx908 with 0x78 compute units) pass for a processor.
fn chain_of_number(name: &str) -> Option<Vec<String>> {
    let number = name.strip_prefix("gfx")?;
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let (major, [minor, stepping]) = number.as_bytes().split_last_chunk()?;
    let well_formed = matches!(major, [b'1'..=b'9'] | [b'1'..=b'9', b'0'..=b'9'])
        && hexadecimal(*minor)
        && hexadecimal(*stepping);
    if !well_formed {
        return None;
    }
    let family = format!("gfx{}", number.get(..major.len())?);
    let sub_family = format!("{family}_{}", char::from(*minor));
    let sub_family = resolve_alias(&sub_family).to_owned();
    Some(vec![name.to_owned(), sub_family, family])
}

/// Names end up in file names, so only what is harmless there passes.
fn check_name(name: &str) -> Result<()> {
    let rest = name.strip_prefix("gfx").unwrap_or_default();
    let harmless =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    if rest.is_empty() || !rest.bytes().all(harmless) {
        return Err(fault(format!("{name:?} is no target or bundle name (gfx, then a-z, 0-9, `_`, `-`)")));
    }
    Ok(())
}

fn fault(message: String) -> Fault {
    Fault::malformed("architecture table", None, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ArchTable {
        ArchTable::builtin().unwrap()
    }

    fn key(processor: &str) -> String {
        table().bundle_of(processor).unwrap().bundle().key.clone()
    }

    #[test]
    fn targets_go_to_their_owner() {
        assert_eq!(key("gfx942"), "gfx942");
        assert_eq!(key("gfx1250-strict"), "gfx1250");
        assert_eq!(key("gfx90a:sramecc+:xnack-"), "gfx90a");
        assert_eq!(key("gfx90a-xnack+"), "gfx90a");
        assert_eq!(table().chain("gfx1250-strict").unwrap(), ["gfx1250", "gfx12_5", "gfx12"]);
        assert_eq!(table().chain("gfx1151").unwrap(), ["gfx1151", "gfx115x", "gfx11"]);
    }

    #[test]
    fn database_keys_are_used_as_they_are() {
        for (name, level) in
            [("gfx11", Level::Family), ("gfx110x", Level::SubFamily), ("gfx12_0", Level::SubFamily)]
        {
            let table = table();
            let lookup = table.bundle_of(name).unwrap();
            assert!(lookup.is_known());
            assert_eq!((lookup.bundle().key.as_str(), lookup.bundle().level), (name, level));
        }
        assert_eq!(key("gfx11_0"), "gfx110x");
        assert_eq!(key("gfx11_5"), "gfx115x");
        assert_eq!(table().chain("gfx11_5").unwrap(), ["gfx115x", "gfx11"]);
    }

    /// Where each generic goes, and that the bundle really covers what the generic serves.
    #[test]
    fn generics_go_to_the_smallest_covering_bundle() {
        for (generic, bundle) in [
            ("gfx9-generic", "gfx9_0"),
            ("gfx9-4-generic", "gfx9"),
            ("gfx10-1-generic", "gfx10_1"),
            ("gfx10-3-generic", "gfx10_3"),
            ("gfx11-generic", "gfx11"),
            ("gfx12-generic", "gfx12_0"),
            ("gfx12-5-generic", "gfx12_5"),
        ] {
            let table = table();
            assert_eq!(key(generic), bundle);
            let members = table.members_of_generic(generic).unwrap();
            assert!(!members.is_empty());
            for member in members {
                assert!(table.chain(member).unwrap().iter().any(|key| key == bundle), "{generic} {member}");
                assert_eq!(table.generic_of(member), Some(generic));
            }
        }
        assert_eq!(table().generic_of("gfx90a"), None);
        assert_eq!(table().generic_of("gfx908"), None);
        assert_eq!(table().members_of_generic("gfx942"), None);
    }

    #[test]
    fn unknown_processors_get_a_chain_off_their_number() {
        for (name, chain) in [
            ("gfx940", ["gfx940", "gfx9_4", "gfx9"]),
            ("gfx803", ["gfx803", "gfx8_0", "gfx8"]),
            ("gfx1171", ["gfx1171", "gfx11_7", "gfx11"]),
            // The sub-family has a name of its own in the table.
            ("gfx1104", ["gfx1104", "gfx110x", "gfx11"]),
            ("gfx90f", ["gfx90f", "gfx9_0", "gfx9"]),
        ] {
            let table = table();
            let lookup = table.bundle_of(name).unwrap();
            assert!(!lookup.is_known(), "{name}");
            assert_eq!(lookup.bundle().chain, chain);
            assert_eq!(lookup.bundle().level, Level::Target);
            assert_eq!(lookup.bundle().key, name);
        }
    }

    #[test]
    fn anything_else_is_a_fault_that_names_it() {
        for name in [
            "",
            "gfx",
            "gfxzzz",
            "gfx8",
            "gfx90878",
            "gfx000",
            "gfx0900",
            "GFX942",
            "gfx94G",
            "gfx11xx",
            "gfx13-generic",
            "amdgcnspirv",
            "gfx942 ",
            "gfx\u{e9}42",
        ] {
            let fault = table().bundle_of(name).unwrap_err();
            assert!(fault.message.contains(&format!("{name:?}")), "{fault}");
        }
    }

    #[test]
    fn rows_are_added_and_replaced() {
        let mut table = table();
        table
            .with_rows(
                r#"{"bundles": [
                {"key": "gfx13", "level": "family", "display_name": "RDNA5", "llvm_generic": "gfx13-generic",
                 "members": ["gfx1300"]},
                {"key": "gfx13_0", "level": "sub_family", "display_name": "RDNA5", "llvm_generic": null},
                {"key": "gfx9", "level": "family", "display_name": "CDNA", "llvm_generic": "gfx9-4-generic",
                 "members": ["gfx942"]}],
                "targets": [{"name": "gfx1300", "major": 13, "chain": ["gfx1300", "gfx13_0", "gfx13"]}]}"#,
            )
            .unwrap();
        assert!(table.bundle_of("gfx1300").unwrap().is_known());
        assert_eq!(table.bundle_of("gfx13-generic").unwrap().bundle().key, "gfx13");
        assert_eq!(table.generic_of("gfx1300"), Some("gfx13-generic"));
        assert_eq!(table.bundle("gfx9").unwrap().display_name, "CDNA");
        assert_eq!(table.members_of_generic("gfx9-4-generic").unwrap(), ["gfx942", "gfx950"]);
        assert_eq!(table.bundle_of("gfx9-4-generic").unwrap().bundle().key, "gfx9");
        assert_eq!(table.chain("gfx942").unwrap(), ["gfx942", "gfx9_4", "gfx9"]);
    }

    #[test]
    fn a_bad_table_is_refused_and_changes_nothing() {
        let mut table = table();
        for (json, complaint) in [
            ("", "JSON"),
            ("{}", "row"),
            (r#"{"targets": [{"name": "gfx1300", "chain": ["gfx1300", "gfx13_0", "gfx13"]}]}"#, "gfx13_0"),
            (r#"{"targets": [{"name": "gfx1300", "chain": []}]}"#, "empty chain"),
            (r#"{"targets": [{"name": "gfx1300", "chain": ["gfx1300", "gfx9", "gfx9_0"]}]}"#, "climb"),
            (
                r#"{"targets": [{"name": "gfx1300", "chain": ["gfx1300", "gfx9_0", "gfx11"]}]}"#,
                "two different",
            ),
            (r#"{"bundles": [{"key": "../gfx9", "level": "family"}]}"#, "../gfx9"),
            (r#"{"bundles": [{"key": "gfx13", "level": "tribe"}]}"#, "tribe"),
            (
                r#"{"bundles": [{"key": "gfx13", "level": "family", "display_name": "a\nName: b"}]}"#,
                "one line",
            ),
        ] {
            let fault = table.with_rows(json).unwrap_err();
            assert!(fault.message.contains(complaint), "{json}: {fault}");
        }
        assert_eq!(table.bundles, super::tests::table().bundles);
        assert!(!table.is_processor("gfx1300"));
    }
}
