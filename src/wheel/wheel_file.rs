//! WHEEL and top_level.txt (PEP 427): reading the host's, writing a device wheel's.
//!
//! Refused: no Tag, a Tag that has not three parts, a Wheel-Version that installers of version 1 must not touch,
//! a Root-Is-Purelib that is neither true nor false.

use crate::fault::{Fault, Result};
use crate::wheel::filename::TagSets;
use crate::wheel::headers::Headers;

/// The fields of WHEEL that a device wheel takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelFile {
    /// Every Tag line, in order. Never empty.
    pub tags: Vec<TagSets>,
    /// The build tag, if the wheel has one.
    pub build: Option<String>,
    /// Whether the top level goes to purelib rather than platlib.
    pub root_is_purelib: bool,
}

impl WheelFile {
    /// Reads a WHEEL file.
    ///
    /// # Errors
    /// Malformed as the module says, Unsupported for a major version other than 1.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let headers = Headers::parse(bytes);
        if let Some(version) = headers.all("Wheel-Version").next()
            && version.split('.').next() != Some("1")
        {
            return Err(Fault::unsupported(
                "header fields",
                None,
                format!("Wheel-Version {version:?}, expected 1.x"),
            ));
        }
        let tags = headers.all("Tag").map(|tag| TagSets::parse(&tag)).collect::<Result<Vec<_>>>()?;
        if tags.is_empty() {
            return Err(fault("no Tag field".into()));
        }
        let build = headers.all("Build").next().filter(|build| !build.is_empty());
        if let Some(build) = &build
            && !build.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        {
            return Err(fault(format!("Build {build:?} is no build tag")));
        }
        // Installers take a missing field for false.
        let root_is_purelib = match headers.all("Root-Is-Purelib").next() {
            Some(value) if value.eq_ignore_ascii_case("true") => true,
            Some(value) if !value.eq_ignore_ascii_case("false") => {
                return Err(fault(format!("Root-Is-Purelib {value:?}, expected true or false")));
            }
            _ => false,
        };
        Ok(Self { tags, build, root_is_purelib })
    }

    /// The WHEEL file of a device wheel that belongs to this one's wheel. `generator_version` is fatwheel's own.
    pub fn device(&self, generator_version: &str) -> Vec<u8> {
        let mut text = format!(
            "Wheel-Version: 1.0\nGenerator: fatwheel {generator_version}\nRoot-Is-Purelib: {}\n",
            self.root_is_purelib
        );
        for tag in &self.tags {
            text.push_str(&format!("Tag: {tag}\n"));
        }
        if let Some(build) = &self.build {
            text.push_str(&format!("Build: {build}\n"));
        }
        text.into_bytes()
    }
}

/// top_level.txt of a device wheel: the overlay root.
pub fn top_level(overlay_root: &str) -> Vec<u8> {
    format!("{}\n", overlay_root.trim_matches('/')).into_bytes()
}

fn fault(message: String) -> Fault {
    Fault::malformed("header fields", None, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_over_all_tags_build_and_root() {
        let wheel = WheelFile::parse(
            b"Wheel-Version:  1.0\r\nGenerator: x\r\nRoot-Is-Purelib: TRUE\r\nBuild: 3a\r\n\
              Tag:  py2-none-any\r\nTag: py3-none-any\r\n\r\n",
        )
        .unwrap();
        assert_eq!(
            String::from_utf8(wheel.device("0.1.0")).unwrap(),
            "Wheel-Version: 1.0\nGenerator: fatwheel 0.1.0\nRoot-Is-Purelib: true\n\
             Tag: py2-none-any\nTag: py3-none-any\nBuild: 3a\n"
        );
        let plain = WheelFile::parse(b"Wheel-Version: 1.9\nTag: cp313-cp313-win_amd64").unwrap();
        assert_eq!((plain.root_is_purelib, &plain.build), (false, &None));
        assert_eq!(WheelFile::parse(&plain.device("0.1.0")), Ok(plain));
    }

    #[test]
    fn refusals() {
        for (text, why) in [
            ("Wheel-Version: 1.0\n", "no Tag"),
            ("\nTag: a-b-c\n", "no Tag"),
            ("Tag: py3-none\n", "python-abi-platform"),
            ("Wheel-Version: 2.0\nTag: py3-none-any\n", "2.0"),
            ("Tag: py3-none-any\nRoot-Is-Purelib: maybe\n", "maybe"),
            ("Tag: py3-none-any\nBuild: a-b\n", "a-b"),
        ] {
            assert!(WheelFile::parse(text.as_bytes()).unwrap_err().message.contains(why), "{text:?}");
        }
    }

    #[test]
    fn top_level_is_the_overlay_root() {
        assert_eq!(top_level("torch/"), b"torch\n");
    }
}
