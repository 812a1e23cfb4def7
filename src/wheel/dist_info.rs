//! The `.dist-info` directory of a wheel: finding the input's, naming a device wheel's.
//!
//! Refused: a wheel with none, or with several at its top level.

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
    fn none_and_several_are_faults() {
        assert!(find(["a/b", "a-1.dist-info"]).unwrap_err().message.contains("no .dist-info"));
        let fault = find(["a-1.dist-info/x", "b-1.dist-info/x"]).unwrap_err();
        assert!(fault.message.contains("a-1.dist-info") && fault.message.contains("b-1.dist-info"));
    }
}
