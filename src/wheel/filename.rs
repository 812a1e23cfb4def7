//! Wheel file names: `name-version(-build)?-python-abi-platform.whl` (PEP 427, binary distribution format).
//!
//! The tag part is kept as it was written, compressed tag sets (`py2.py3-none-any`) included, since the host
//! wheel keeps its file name and the device wheels take over build tag and tag part.
//!
//! Refused, each with its own message: other suffixes, a wrong number of parts, percent-encoded names (a download
//! tool's mistake), variant wheels (they carry a label where nothing is expected), characters that no part may
//! have.

use std::fmt;

use crate::fault::{Fault, Result};

/// A parsed wheel file name. Its [`fmt::Display`] gives the file name back, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelFilename {
    /// Distribution name as written (normally already normalised).
    pub name: String,
    /// Version as written.
    pub version: String,
    /// Build tag, which starts with a digit.
    pub build: Option<String>,
    /// The three tag sets.
    pub tags: TagSets,
}

/// The tag part of a wheel file name; each set may hold several tags, joined with dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagSets {
    /// `cp313`, `py2.py3`.
    pub python: String,
    /// `cp313`, `abi3`, `none`.
    pub abi: String,
    /// `manylinux_2_28_x86_64`, `manylinux2014_x86_64.manylinux_2_17_x86_64`.
    pub platform: String,
}

impl WheelFilename {
    /// Parses a file name without directories.
    ///
    /// # Errors
    /// Malformed if it is no wheel file name, Unsupported if it is that of a variant wheel.
    pub fn parse(file_name: &str) -> Result<Self> {
        let fail =
            |message: &str| Fault::malformed("wheel file name", None, format!("{file_name:?}: {message}"));
        let stem = file_name.strip_suffix(".whl").ok_or_else(|| fail("does not end in .whl"))?;
        if stem.contains('%') {
            return Err(fail("is percent-encoded; rename the file (`%2B` is `+`)"));
        }
        let parts: Vec<&str> = stem.split('-').collect();
        let (name, version, build, [python, abi, platform]) = match parts[..] {
            [name, version, python, abi, platform] => (name, version, None, [python, abi, platform]),
            [name, version, build, python, abi, platform] if starts_with_digit(build) => {
                (name, version, Some(build), [python, abi, platform])
            }
            [_, _, _, _, _, label] | [_, _, _, _, _, _, label] => {
                return Err(Fault::unsupported(
                    "wheel file name",
                    None,
                    format!(
                        "{file_name:?} has too many parts, or {label:?} is the label of a variant wheel; \
                         split the wheel that it was made from"
                    ),
                ));
            }
            _ => {
                return Err(fail(&format!(
                    "{} parts between hyphens, expected name-version-python-abi-platform.whl",
                    parts.len()
                )));
            }
        };
        check_part(name, "name", name_char).map_err(|message| fail(&message))?;
        check_part(version, "version", version_char).map_err(|message| fail(&message))?;
        if let Some(build) = build {
            check_part(build, "build tag", name_char).map_err(|message| fail(&message))?;
        }
        let tags = TagSets { python: python.into(), abi: abi.into(), platform: platform.into() };
        tags.check().map_err(|message| fail(&message))?;
        Ok(Self { name: name.into(), version: version.into(), build: build.map(String::from), tags })
    }

    /// The name of a wheel of another distribution with this one's build tag and tag part: a device wheel.
    /// `distribution` and `version` are as in METADATA.
    pub fn for_distribution(&self, distribution: &str, version: &str) -> Self {
        Self {
            name: normalize_dist_name(distribution),
            version: escape_version(version),
            build: self.build.clone(),
            tags: self.tags.clone(),
        }
    }

    /// The name of this wheel's `.dist-info` directory if it is written anew, as for a device wheel.
    pub fn dist_info(&self) -> String {
        format!("{}-{}.dist-info", self.name, self.version)
    }
}

impl fmt::Display for WheelFilename {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-", self.name, self.version)?;
        if let Some(build) = &self.build {
            write!(f, "{build}-")?;
        }
        write!(f, "{}.whl", self.tags)
    }
}

impl TagSets {
    /// Parses `python-abi-platform`, as in a Tag line of WHEEL.
    ///
    /// # Errors
    /// Malformed if it has not three parts or a part holds characters that no tag has.
    pub fn parse(tag: &str) -> Result<Self> {
        let fail = |message: &str| Fault::malformed("wheel tag", None, format!("{tag:?}: {message}"));
        let mut parts = tag.split('-');
        let (Some(python), Some(abi), Some(platform), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(fail("expected python-abi-platform"));
        };
        let tags = Self { python: python.into(), abi: abi.into(), platform: platform.into() };
        tags.check().map_err(|message| fail(&message))?;
        Ok(tags)
    }

    /// The smallest tag sets that hold every tag of `tags`: how a wheel is named whose tags are known from its
    /// Tag lines alone, as for an exploded directory. `None` if there is no tag.
    pub fn compress(tags: &[Self]) -> Option<Self> {
        let join = |part: fn(&Self) -> &str| {
            let mut set: Vec<&str> = Vec::new();
            for tag in tags.iter().flat_map(|tag| part(tag).split('.')) {
                if !set.contains(&tag) {
                    set.push(tag);
                }
            }
            set.join(".")
        };
        (!tags.is_empty()).then(|| Self {
            python: join(|tag| &tag.python),
            abi: join(|tag| &tag.abi),
            platform: join(|tag| &tag.platform),
        })
    }

    /// True if a platform of the set is Windows, whose file systems have no `:` in names.
    pub fn is_windows(&self) -> bool {
        self.platform.split('.').any(|platform| platform == "win32" || platform.starts_with("win_"))
    }

    fn check(&self) -> Result<(), String> {
        for (set, what) in
            [(&self.python, "Python tag"), (&self.abi, "ABI tag"), (&self.platform, "platform tag")]
        {
            for tag in set.split('.') {
                check_part(tag, what, |c| c.is_ascii_alphanumeric() || c == '_')?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for TagSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.python, self.abi, self.platform)
    }
}

/// A distribution name as it stands in file names: lower case, runs of `-`, `_` and `.` are one `_`.
pub fn normalize_dist_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if out.ends_with('_') => {}
            '-' | '_' | '.' => out.push('_'),
            _ => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// A version as it stands in file names: a hyphen would end the part.
pub fn escape_version(version: &str) -> String {
    version.replace('-', "_")
}

/// Whether two versions are the same but for spelling: case, separators, a leading `v`, zeros at the end of the release.
/// Other spellings of PEP 440 (`1.0alpha1`, `1.0a1`) count as different; builders write the normal form in both places.
pub fn same_version(a: &str, b: &str) -> bool {
    let canonical = |version: &str| {
        let version = version.trim_start_matches(['v', 'V']).to_ascii_lowercase();
        let version = version.replace(['-', '_'], ".");
        let (public, local) = match version.split_once('+') {
            Some((public, local)) => (public.to_owned(), Some(local.to_owned())),
            None => (version, None),
        };
        let release =
            public.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '!')).unwrap_or(public.len());
        let (numbers, rest) = public.split_at_checked(release).unwrap_or((&public, ""));
        let numbers: Vec<&str> = numbers.split('.').filter(|number| !number.is_empty()).collect();
        let end = numbers.iter().rposition(|number| *number != "0").map_or(0, |last| last + 1);
        (numbers.into_iter().take(end).collect::<Vec<_>>().join("."), rest.to_owned(), local)
    };
    canonical(a) == canonical(b)
}

/// The kpack group of a distribution: lower case, `-` to `_`.
pub fn group_name(distribution: &str) -> String {
    distribution.to_lowercase().replace('-', "_")
}

fn starts_with_digit(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_digit())
}

fn name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

fn version_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '!')
}

fn check_part(part: &str, what: &str, allowed: fn(char) -> bool) -> Result<(), String> {
    if part.is_empty() {
        return Err(format!("empty {what}"));
    }
    match part.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(format!("{c:?} in the {what}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(name: &str) -> WheelFilename {
        WheelFilename::parse(name).unwrap()
    }

    #[test]
    fn parses_names_with_and_without_build_tag() {
        let torch = parse("torch-2.10.0+rocm7.1-cp313-cp313-manylinux_2_28_x86_64.whl");
        assert_eq!((torch.name.as_str(), torch.version.as_str()), ("torch", "2.10.0+rocm7.1"));
        assert_eq!(torch.build, None);
        assert_eq!(torch.tags.platform, "manylinux_2_28_x86_64");
        let built = parse("a_b-1!2-3local-py2.py3-none-any.whl");
        assert_eq!((built.build.as_deref(), built.version.as_str()), (Some("3local"), "1!2"));
        assert_eq!(built.tags.python, "py2.py3");
    }

    #[test]
    fn device_wheels_keep_build_tag_and_tag_sets() {
        let host =
            parse("Torch-2.10.0+rocm7.1-1a-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl");
        let device = host.for_distribution("amd-torch-device-gfx12-0", "2.10.0+rocm7.1");
        assert_eq!(
            device.to_string(),
            "amd_torch_device_gfx12_0-2.10.0+rocm7.1-1a-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
        );
        assert_eq!(device.dist_info(), "amd_torch_device_gfx12_0-2.10.0+rocm7.1.dist-info");
    }

    #[test]
    fn each_refusal_says_why() {
        for (name, why) in [
            ("torch-2.10.0-cp313-cp313-linux_x86_64.zip", ".whl"),
            ("torch-2.10.0%2Brocm7.1-cp313-cp313-linux_x86_64.whl", "percent"),
            ("torch-2.10.0-cp313-linux_x86_64.whl", "4 parts"),
            ("torch-2.10.0-cp313-cp313-linux_x86_64-amd.whl", "variant"),
            ("torch-2.10.0-1-cp313-cp313-linux_x86_64-amd.whl", "variant"),
            ("torch--cp313-cp313-linux_x86_64.whl", "empty version"),
            ("to rch-1-cp313-cp313-linux_x86_64.whl", "' ' in the name"),
            ("torch-1-cp313-cp313-linux_x86_64..any.whl", "empty platform tag"),
            ("dir/torch-1-cp313-cp313-any.whl", "'/' in the name"),
            ("torch-1:2-cp313-cp313-any.whl", "':' in the version"),
        ] {
            let fault = WheelFilename::parse(name).unwrap_err();
            assert!(fault.message.contains(why), "{name}: {fault}");
            assert!(fault.message.contains(&format!("{name:?}")), "{fault}");
        }
    }

    #[test]
    fn normalises_names() {
        assert_eq!(normalize_dist_name("AMD--torch_.device.GFX942"), "amd_torch_device_gfx942");
        assert_eq!(group_name("Torch-Scatter.rocm"), "torch_scatter.rocm");
        assert_eq!(escape_version("1.0-1"), "1.0_1");
    }

    #[test]
    fn versions_may_be_spelt_in_more_than_one_way() {
        for (a, b) in
            [("1.0", "1"), ("2.10.0+rocm7.1", "2.10+ROCm7_1"), ("1.0.post1", "1.0-post1"), ("v1!2.0", "1!2")]
        {
            assert!(same_version(a, b), "{a} {b}");
        }
        for (a, b) in [("1.0", "1.1"), ("1.0+a", "1.0"), ("10", "1"), ("1.0rc1", "1.0rc2"), ("1!1", "1")] {
            assert!(!same_version(a, b), "{a} {b}");
        }
    }

    #[test]
    fn tags_are_compressed_and_know_windows() {
        let tags: Vec<TagSets> = ["py2-none-win_amd64", "py3-none-win_amd64", "py3-none-any"]
            .iter()
            .map(|tag| TagSets::parse(tag).unwrap())
            .collect();
        let sets = TagSets::compress(&tags).unwrap();
        assert_eq!(sets.to_string(), "py2.py3-none-win_amd64.any");
        assert!(sets.is_windows());
        assert!(TagSets::parse("py3-none-win32").unwrap().is_windows());
        assert!(!TagSets::parse("py3-none-winter_x86_64").unwrap().is_windows());
        assert_eq!(TagSets::compress(&[]), None);
        assert!(TagSets::parse("py3-none").is_err());
        assert!(TagSets::parse("py3-none-any-x").is_err());
    }

    proptest! {
        #[test]
        fn what_parses_is_given_back(name in "[A-Za-z0-9_.]{1,9}(-[0-9][A-Za-z0-9.+!]{0,5}){1,2}-(cp|py)3[0-9.py]{0,6}-[a-z0-9.]{1,6}-[a-z0-9_.]{1,20}\\.whl") {
            if let Ok(parsed) = WheelFilename::parse(&name) {
                prop_assert_eq!(parsed.to_string(), name);
            }
        }

        #[test]
        fn what_is_formatted_parses(
            name in "[A-Za-z0-9_.]{1,9}", version in "[A-Za-z0-9.+!_]{1,9}", build in proptest::option::of("[0-9][A-Za-z0-9_.]{0,4}"),
            python in "[a-z0-9]{1,4}(\\.[a-z0-9]{1,4}){0,2}", abi in "[a-z0-9]{1,4}", platform in "[a-z0-9_]{1,9}(\\.[a-z0-9_]{1,9}){0,2}",
        ) {
            let wheel = WheelFilename { name, version, build, tags: TagSets { python, abi, platform } };
            prop_assert_eq!(WheelFilename::parse(&wheel.to_string()), Ok(wheel));
        }

        #[test]
        fn no_input_panics(name in "\\PC*") {
            let _ = WheelFilename::parse(&name);
            let _ = WheelFilename::parse(&format!("{name}.whl"));
        }
    }
}
