//! The directories of a wheel that have a meaning of their own (PEP 427): `.dist-info`, and `.data` with files that
//! install elsewhere than at the place they have in the wheel.
//!
//! Refused: a wheel with no `.dist-info`, or with several at its top level.

use crate::fault::{Fault, Result};

/// The name of the only top-level `.dist-info` directory among `paths` (forward slashes, relative to the wheel).
///
/// # Errors
/// Malformed if there is none or more than one; the message names them.
pub fn find<'p>(paths: impl IntoIterator<Item = &'p str>) -> Result<&'p str> {
    let mut found: Option<&str> = None;
    for path in paths {
        let Some((directory, _)) = path.split_once('/') else { continue };
        // A directory called just `.dist-info` names no distribution.
        if directory.strip_suffix(".dist-info").is_none_or(str::is_empty) {
            continue;
        }
        match found {
            Some(other) if other != directory => {
                return Err(Fault::malformed(
                    "wheel",
                    None,
                    format!("two .dist-info directories: {other:?} and {directory:?}"),
                ));
            }
            _ => found = Some(directory),
        }
    }
    found.ok_or_else(|| Fault::malformed("wheel", None, "no .dist-info directory at the top level"))
}

/// Where an installer puts the member `path`, relative to site-packages: files under `<name>.data/platlib/` and
/// `<name>.data/purelib/` install beside the top level. Other `.data` schemes (scripts, headers) install outside of
/// it; their paths come back unchanged.
pub fn installed_path(path: &str) -> &str {
    let scheme =
        path.split_once('/').filter(|(directory, _)| directory.ends_with(".data")).map(|(_, rest)| rest);
    scheme
        .and_then(|rest| rest.strip_prefix("platlib/").or_else(|| rest.strip_prefix("purelib/")))
        .filter(|installed| !installed.is_empty())
        .unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_only_one() {
        let paths =
            ["a/x.dist-info/METADATA", "a-1.dist-info/METADATA", "a-1.dist-info/RECORD", ".dist-info/x"];
        assert_eq!(find(paths), Ok("a-1.dist-info"));
    }

    #[test]
    fn data_trees_install_beside_the_top_level() {
        for (path, installed) in [
            ("a-1.data/platlib/a/x.so", "a/x.so"),
            ("a-1.data/purelib/a/x.py", "a/x.py"),
            ("a-1.data/scripts/run", "a-1.data/scripts/run"),
            ("a/a-1.data/platlib/x", "a/a-1.data/platlib/x"),
            ("a/platlib/x", "a/platlib/x"),
        ] {
            assert_eq!(installed_path(path), installed);
        }
    }

    #[test]
    fn none_and_several_are_faults() {
        assert!(find(["a/b", "a-1.dist-info"]).unwrap_err().message.contains("no .dist-info"));
        let fault = find(["a-1.dist-info/x", "b-1.dist-info/x"]).unwrap_err();
        assert!(fault.message.contains("a-1.dist-info") && fault.message.contains("b-1.dist-info"));
    }
}
