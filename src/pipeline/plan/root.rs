//! The overlay root: the directory of the wheel that `.kpack/` is placed in.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::wheel::dist_info::installed_path;

/// The path of the member `name` relative to the overlay root `root`, where it will be installed.
pub fn below<'n>(root: &str, name: &'n str) -> Option<&'n str> {
    installed_path(name).strip_prefix(root)?.strip_prefix('/').filter(|rest| !rest.is_empty())
}

/// Whether a path that is none of platlib or purelib is in a directory `<name>-<version>.data`: scripts, headers, data. Those install
/// outside of site-packages, and a device wheel's files of the same path would not come to lie beside them.
fn is_data_tree(path: &str) -> bool {
    let directory = path.split('/').next().and_then(|directory| directory.strip_suffix(".data"));
    directory.is_some_and(|directory| directory.contains('-'))
}

/// Checks the root that the user gave, or finds it: the one top-level directory that holds fat binaries.
///
/// `fat` are name and size of all fat binaries, `names` the names of all members.
pub fn overlay_root<'n>(
    given: Option<&str>,
    fat: impl Iterator<Item = (&'n str, u64)>,
    names: impl Iterator<Item = &'n str> + Clone,
) -> Result<Option<String>> {
    if let Some(given) = given {
        let root = given.replace('\\', "/");
        let root = root.trim_matches('/');
        if root.is_empty() || root.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
            return Err(Error::usage(format!("--overlay-root {given:?} is not a directory of the wheel")));
        }
        if is_data_tree(root) {
            return Err(Error::usage(format!(
                "--overlay-root {given:?}: files there install elsewhere, and device wheels cannot follow them"
            )));
        }
        if !names.clone().any(|name| below(root, name).is_some()) {
            let mut top: Vec<&str> =
                names.filter_map(|name| Some(installed_path(name).split_once('/')?.0)).collect();
            top.sort_unstable();
            top.dedup();
            return Err(Error::usage(format!(
                "--overlay-root {given:?} does not exist in the wheel; its directories are {}",
                top.join(", ")
            )));
        }
        return Ok(Some(root.to_owned()));
    }
    let mut roots: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for (name, size) in fat {
        // A fat binary at the very top, or among scripts, has no directory for an overlay.
        if let Some((root, _)) = installed_path(name).split_once('/').filter(|(root, _)| !is_data_tree(root))
        {
            let entry = roots.entry(root).or_default();
            *entry = (entry.0 + 1, entry.1 + size);
        }
    }
    match roots.len() {
        0 => Ok(None),
        1 => Ok(roots.into_keys().next().map(str::to_owned)),
        _ => {
            let list: Vec<String> = roots
                .iter()
                .map(|(root, (count, size))| format!("  {root}: {count} fat binaries, {size} bytes"))
                .collect();
            Err(Error::usage(format!(
                "several top-level directories hold fat binaries; choose one with --overlay-root:\n{}",
                list.join("\n")
            )))
        }
    }
}

/// The one top-level directory below which `claims` says yes to a file: the root of a wheel without fat binaries.
pub fn root_of_files<'n>(
    names: impl Iterator<Item = &'n str>,
    claims: impl Fn(&str) -> bool,
) -> Result<Option<String>> {
    let mut roots: BTreeMap<&str, usize> = BTreeMap::new();
    for (root, path) in names.filter_map(|name| installed_path(name).split_once('/')) {
        if !is_data_tree(root) && claims(path) {
            *roots.entry(root).or_default() += 1;
        }
    }
    if roots.len() > 1 {
        let list: Vec<String> =
            roots.iter().map(|(root, count)| format!("  {root}: {count} per-architecture files")).collect();
        return Err(Error::usage(format!(
            "several top-level directories hold per-architecture files, and none has fat binaries; choose one with \
             --overlay-root:\n{}",
            list.join("\n")
        )));
    }
    Ok(roots.into_keys().next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_root_are_those_of_the_installed_place() {
        assert_eq!(below("torch", "torch/lib/a.so"), Some("lib/a.so"));
        assert_eq!(below("torch", "torch-2.0.data/platlib/torch/lib/a.so"), Some("lib/a.so"));
        assert_eq!(below("torch", "torch-2.0.data/scripts/torch/a"), None);
        assert_eq!(below("torch", "torchvision/a.so"), None);
        assert_eq!(below("pkg.libs", "pkg.libs/a.so"), Some("a.so"));
    }

    #[test]
    fn the_only_directory_with_fat_binaries_is_the_root() {
        let names = ["a/x.so", "b/y.so", "a-1.dist-info/RECORD"];
        let root =
            |given, fat: &[(&'static str, u64)]| overlay_root(given, fat.iter().copied(), names.into_iter());
        assert_eq!(root(None, &[("a/x.so", 1)]).unwrap().as_deref(), Some("a"));
        assert_eq!(root(None, &[("top.so", 1)]).unwrap(), None);
        assert_eq!(root(None, &[("a-1.data/scripts/run", 1)]).unwrap(), None);
        let both = root(None, &[("a-1.data/data/lib/x.so", 1), ("a-1.data/platlib/a/x.so", 1)]);
        assert_eq!(both.unwrap().as_deref(), Some("a"));
        for inside in ["a-1.data", "a-1.data/data/lib"] {
            assert!(root(Some(inside), &[]).unwrap_err().to_string().contains("install elsewhere"));
        }
        assert_eq!(root(Some("b/"), &[("a/x.so", 1)]).unwrap().as_deref(), Some("b"));
        let error = root(None, &[("a/x.so", 10), ("b/y.so", 20)]).unwrap_err().to_string();
        assert!(error.contains("a: 1 fat binaries, 10 bytes") && error.contains("b: 1 fat"), "{error}");
        let error = root(Some("c"), &[]).unwrap_err().to_string();
        assert!(error.contains("a, a-1.dist-info, b"), "{error}");
        assert!(root(Some("../a"), &[]).is_err());
    }
}
