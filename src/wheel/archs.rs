//! `--archs gfx942,gfx1100` keeps only these device wheels, `--archs '!gfx900'` drops some.
//!
//! The list names wheels, and is taken at its word: `--archs gfx1100` keeps the wheel of gfx1100 and not that of
//! its family gfx11, even if the split has one. What a kept target loses by that is not an error, but worth a
//! warning: [`ArchFilter::dropped_parents`]. A name is looked up as everywhere else, so `gfx90a:xnack-` means the
//! wheel of gfx90a and `gfx1250-strict` that of gfx1250. With names of both kinds, a wheel has to be listed and
//! not excluded.
//!
//! Refused: names that mean no bundle, an empty list, and a filter that leaves nothing of the split.

use std::collections::BTreeSet;

use crate::arch::table::{ArchTable, Bundle};
use crate::fault::{Fault, Result};

/// Which device wheels are written. The default keeps all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchFilter {
    keep: BTreeSet<String>,
    drop: BTreeSet<String>,
}

impl ArchFilter {
    /// Parses a comma-separated list.
    ///
    /// # Errors
    /// Malformed if a name means no bundle or the list is empty.
    pub fn parse(list: &str, table: &ArchTable) -> Result<Self> {
        let mut filter = Self::default();
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (set, name) = match name.strip_prefix('!') {
                Some(name) => (&mut filter.drop, name.trim()),
                None => (&mut filter.keep, name),
            };
            let lookup = table.bundle_of(name).map_err(|fault| self::fault(fault.message))?;
            set.insert(lookup.into_bundle().key);
        }
        if filter == Self::default() {
            return Err(fault(format!("{list:?} names no architecture")));
        }
        Ok(filter)
    }

    /// True if the device wheel of this bundle key is written.
    pub fn allows(&self, key: &str) -> bool {
        (self.keep.is_empty() || self.keep.contains(key)) && !self.drop.contains(key)
    }

    /// Fails if none of the split's bundle keys is allowed.
    ///
    /// # Errors
    /// Malformed; the message lists what the wheel has.
    pub fn check_something_left<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Result<()> {
        let keys: Vec<&str> = keys.into_iter().collect();
        if keys.iter().any(|key| self.allows(key)) {
            return Ok(());
        }
        Err(fault(format!("nothing is left; the wheel has {}", keys.join(", "))))
    }

    /// The keys that were asked for by name, kept or dropped, but that the split does not have.
    pub fn unmatched<'f, 'k>(&'f self, keys: impl IntoIterator<Item = &'k str>) -> Vec<&'f str> {
        let keys: BTreeSet<&str> = keys.into_iter().collect();
        self.keep.union(&self.drop).map(String::as_str).filter(|key| !keys.contains(key)).collect()
    }

    /// Pairs of a kept bundle and one above it that the split has and the filter drops: the kept wheel will lack
    /// files that its devices use.
    pub fn dropped_parents<'b>(&self, bundles: &'b [Bundle]) -> Vec<(&'b str, &'b str)> {
        let mut pairs = Vec::new();
        for bundle in bundles.iter().filter(|bundle| self.allows(&bundle.key)) {
            for parent in bundles.iter().filter(|parent| !self.allows(&parent.key)) {
                if bundle.chain.contains(&parent.key) {
                    pairs.push((bundle.key.as_str(), parent.key.as_str()));
                }
            }
        }
        pairs
    }
}

fn fault(message: String) -> Fault {
    Fault::malformed("--archs", None, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(list: &str) -> ArchFilter {
        ArchFilter::parse(list, &ArchTable::builtin().unwrap()).unwrap()
    }

    #[test]
    fn keeps_only_what_is_listed() {
        let filter = filter("gfx942, gfx90a:xnack-,gfx1250-strict,gfx801");
        for key in ["gfx942", "gfx90a", "gfx1250", "gfx801"] {
            assert!(filter.allows(key), "{key}");
        }
        assert!(!filter.allows("gfx9"));
        assert!(!filter.allows("gfx1100"));
        assert!(ArchFilter::default().allows("gfx9"));
    }

    #[test]
    fn drops_what_is_excluded() {
        let dropping = filter("!gfx900,!gfx11_0");
        assert!(!dropping.allows("gfx900") && !dropping.allows("gfx110x"));
        assert!(dropping.allows("gfx942"));
        let both = filter("gfx900,gfx942,!gfx900");
        assert!(both.allows("gfx942") && !both.allows("gfx900"));
    }

    #[test]
    fn bad_lists_are_refused() {
        let table = ArchTable::builtin().unwrap();
        for list in ["", " , ", "!", "gfx942,mi300", "gfxzzz"] {
            assert!(ArchFilter::parse(list, &table).is_err(), "{list:?}");
        }
    }

    #[test]
    fn nothing_left_is_a_fault() {
        let only = filter("gfx942");
        assert_eq!(only.check_something_left(["gfx900", "gfx942"]), Ok(()));
        assert!(only.check_something_left(["gfx900", "gfx9"]).unwrap_err().message.contains("gfx900, gfx9"));
        assert!(filter("!gfx900").check_something_left(["gfx900"]).is_err());
    }

    #[test]
    fn tells_what_does_not_match_and_what_is_missed() {
        let filter = filter("gfx1100,gfx942,!gfx906");
        assert_eq!(filter.unmatched(["gfx1100", "gfx11"]), ["gfx906", "gfx942"]);
        let table = ArchTable::builtin().unwrap();
        let bundles: Vec<Bundle> = ["gfx1100", "gfx11", "gfx9"]
            .iter()
            .map(|key| table.bundle_of(key).unwrap().into_bundle())
            .collect();
        assert_eq!(filter.dropped_parents(&bundles), [("gfx1100", "gfx11")]);
    }
}
