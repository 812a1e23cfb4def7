//! METADATA (core metadata): reading name and version, extending the host's, writing a device wheel's.
//!
//! The host's file is edited as bytes, not parsed and printed: new lines go behind its last header line, with
//! that section's line ending, and `Metadata-Version` is raised in place where extras need it. Everything else,
//! encoding errors included, stays byte for byte. Doing it twice changes nothing.
//!
//! Refused: no `Name` or `Version`, two of them that differ, or values that would not survive a file name.

use crate::arch::table::Bundle;
use crate::fault::{Fault, Result};
use crate::wheel::devices::{
    Addition, BOOTSTRAP, DeviceSet, canonical_requirement, is_dist_name, requirement_name,
};
use crate::wheel::filename::normalize_dist_name;
use crate::wheel::headers::Headers;

/// `Provides-Extra` exists since this version.
const EXTRAS_SINCE: (u32, u32) = (2, 1);

/// Name and version of a distribution as its METADATA has them: the authority for all that a split writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As written: `torch`, `jax-rocm7-plugin`.
    pub name: String,
    /// As written: `2.10.0+rocm7.1`.
    pub version: String,
}

/// Reads name and version from METADATA.
///
/// # Errors
/// Malformed if one of them is missing, empty, given twice with different values, or holds characters that no
/// name or version has.
pub fn parse(metadata: &[u8]) -> Result<Identity> {
    let headers = Headers::parse(metadata);
    let name = single(&headers, "Name")?;
    if !is_dist_name(&name) {
        return Err(fault(format!("Name {name:?} is no distribution name")));
    }
    let version = single(&headers, "Version")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '!' | '-');
    if !version.chars().all(allowed) {
        return Err(fault(format!("Version {version:?} is no version")));
    }
    Ok(Identity { name, version })
}

/// What a METADATA says of other distributions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// `Requires-Dist`, in order.
    pub requires: Vec<String>,
    /// `Provides-Extra`, in order.
    pub extras: Vec<String>,
}

impl Dependencies {
    /// Reads them.
    pub fn of(metadata: &[u8]) -> Self {
        let headers = Headers::parse(metadata);
        Self {
            requires: headers.all("Requires-Dist").collect(),
            extras: headers.all("Provides-Extra").collect(),
        }
    }
}

fn single(headers: &Headers<'_>, field: &str) -> Result<String> {
    let mut values = headers.all(field);
    let value = values.next().filter(|value| !value.is_empty());
    let value = value.ok_or_else(|| fault(format!("no {field} field")))?;
    match values.find(|other| *other != value) {
        Some(other) => Err(fault(format!("two {field} fields: {value:?} and {other:?}"))),
        None => Ok(value),
    }
}

/// The METADATA of the host wheel, or with `variant` that of the variant wheel: `original` plus the extras and
/// requirements of `devices` ([`DeviceSet::host_additions`]).
///
/// # Errors
/// Malformed if `Metadata-Version` is no version number.
pub fn rewrite_host(original: &[u8], devices: &DeviceSet, variant: bool) -> Result<Vec<u8>> {
    let headers = Headers::parse(original);
    let mut additions = Vec::new();
    let version_field = headers.places("Metadata-Version").next();
    let raise = match version_field {
        Some(field) => {
            let text = headers.all("Metadata-Version").next().unwrap_or_default();
            let version = parse_metadata_version(&text)
                .ok_or_else(|| fault(format!("Metadata-Version {text:?} is no version number")))?;
            (version < EXTRAS_SINCE).then(|| field.value.clone())
        }
        None => {
            additions.push(Addition::MetadataVersion);
            None
        }
    };
    additions.extend(devices.host_additions(variant));
    let present = Present::of(&headers);
    additions.retain(|addition| !present.has(addition));

    let mut out = Vec::with_capacity(original.len() + additions.len() * 96);
    let (head, body) = original.split_at_checked(headers.end).unwrap_or((original, &[]));
    match raise {
        Some(value) => {
            out.extend_from_slice(head.get(..value.start).unwrap_or_default());
            out.extend_from_slice(Addition::MetadataVersion.field().1.as_bytes());
            out.extend_from_slice(head.get(value.end..).unwrap_or_default());
        }
        None => out.extend_from_slice(head),
    }
    if headers.unterminated && !additions.is_empty() {
        out.extend_from_slice(headers.line_ending.as_bytes());
    }
    for addition in &additions {
        let (name, value) = addition.field();
        for part in [name, ": ", value, headers.line_ending] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(body);
    Ok(out)
}

/// What the header section already says, in a form that compares.
struct Present {
    bootstrap: bool,
    extras: Vec<String>,
    requirements: Vec<String>,
}

impl Present {
    fn of(headers: &Headers<'_>) -> Self {
        let bootstrap = normalize_dist_name(BOOTSTRAP);
        Self {
            // With a marker it may not apply, so only an unconditional requirement makes ours superfluous.
            bootstrap: headers.all("Requires-Dist").any(|requirement| {
                !requirement.contains(';')
                    && requirement_name(&requirement)
                        .is_some_and(|name| normalize_dist_name(name) == bootstrap)
            }),
            extras: headers.all("Provides-Extra").map(|extra| normalize_dist_name(&extra)).collect(),
            requirements: headers.all("Requires-Dist").map(|line| canonical_requirement(&line)).collect(),
        }
    }

    fn has(&self, addition: &Addition) -> bool {
        match addition {
            Addition::MetadataVersion => false,
            Addition::Bootstrap => self.bootstrap,
            Addition::Extra(extra) => self.extras.contains(&normalize_dist_name(extra)),
            Addition::Requirement(requirement) => {
                self.requirements.contains(&canonical_requirement(requirement))
            }
        }
    }
}

fn parse_metadata_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The METADATA of the device wheel of `bundle`.
pub fn device(devices: &DeviceSet, bundle: &Bundle) -> Vec<u8> {
    let host = devices.host();
    let mut text = format!(
        "Metadata-Version: 2.4\nName: {}\nVersion: {}\nSummary: AMD device kernels ({}) for {}\n",
        devices.dist_name(&bundle.key),
        host.version,
        bundle.display_name,
        host.name,
    );
    for requirement in devices.device_requirements(bundle) {
        text.push_str("Requires-Dist: ");
        text.push_str(&requirement);
        text.push('\n');
    }
    text.into_bytes()
}

fn fault(message: String) -> Fault {
    Fault::malformed("header fields", None, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arch::table::ArchTable;

    fn devices(keys: &[&str]) -> DeviceSet {
        let table = ArchTable::builtin().unwrap();
        let host = Identity { name: "torch".into(), version: "1.0".into() };
        let bundles: Vec<_> = keys.iter().map(|key| table.bundle_of(key).unwrap().into_bundle()).collect();
        DeviceSet::new(host, "dev", &["sdk-@GFXARCH@ == 7".to_owned()], bundles, []).unwrap()
    }

    fn rewrite(original: &str, keys: &[&str]) -> String {
        String::from_utf8(rewrite_host(original.as_bytes(), &devices(keys), false).unwrap()).unwrap()
    }

    const ADDED: &str = "Requires-Dist: rocm-bootstrap\n\
        Provides-Extra: device-gfx942\n\
        Requires-Dist: dev-gfx942 == 1.0; extra == \"device-gfx942\"\n\
        Provides-Extra: device-all\n\
        Requires-Dist: dev-gfx942 == 1.0; extra == \"device-all\"\n";

    #[test]
    fn reads_name_and_version() {
        let text =
            b"Metadata-Version:  2.1\r\nName: torch-scatter-rocm\r\nVersion: 2.1.2\r\n\r\nName: other\r\n";
        let identity = Identity { name: "torch-scatter-rocm".into(), version: "2.1.2".into() };
        assert_eq!(parse(text), Ok(identity.clone()));
        assert_eq!(parse(b"Name:\n torch-scatter-rocm\nVersion: 2.1.2\nVersion: 2.1.2"), Ok(identity));
    }

    #[test]
    fn missing_fields_are_named() {
        for (text, why) in [
            ("Version: 1\n", "no Name field"),
            ("Name: a\n", "no Version field"),
            ("Name: a\nVersion:\n", "no Version field"),
            ("Name: a\n\nVersion: 1\n", "no Version field"),
            ("Name: a\nName: b\nVersion: 1\n", "two Name fields"),
            ("Name: ../a\nVersion: 1\n", "no distribution name"),
            ("Name: a\nVersion: 1/2\n", "no version"),
            ("", "no Name field"),
        ] {
            assert!(parse(text.as_bytes()).unwrap_err().message.contains(why), "{text:?}");
        }
    }

    #[test]
    fn lines_go_before_the_body() {
        let head = "Metadata-Version: 2.4\nName: torch\nVersion: 1.0\n";
        let body = "\nbody\n\nRequires-Dist: rocm-bootstrap\n";
        assert_eq!(rewrite(&format!("{head}{body}"), &["gfx942"]), format!("{head}{ADDED}{body}"));
        assert_eq!(rewrite(head, &["gfx942"]), format!("{head}{ADDED}"));
        assert_eq!(rewrite(head.trim_end(), &["gfx942"]), format!("{head}{ADDED}"));
    }

    #[test]
    fn the_line_ending_of_the_file_is_used() {
        let crlf = |text: &str| text.replace('\n', "\r\n");
        let head = "Metadata-Version: 2.4\nName: torch\nVersion: 1.0\n";
        assert_eq!(
            rewrite(&crlf(&format!("{head}\nbody\n")), &["gfx942"]),
            crlf(&format!("{head}{ADDED}\nbody\n"))
        );
        assert_eq!(rewrite(crlf(head).trim_end(), &["gfx942"]), crlf(&format!("{head}{ADDED}")));
    }

    /// A body line without the empty line before it ends the header section for every e-mail parser.
    #[test]
    fn lines_go_before_a_stray_body_line() {
        let head = "Metadata-Version: 2.4\nName: torch\nLicense: MIT\n";
        assert_eq!(
            rewrite(&format!("{head}all rights granted\nX: y\n"), &["gfx942"]),
            format!("{head}{ADDED}all rights granted\nX: y\n")
        );
    }

    #[test]
    fn metadata_version_is_raised_if_lower() {
        for (before, after) in
            [("1.0", "2.1"), ("1.2", "2.1"), ("2.0", "2.1"), ("2.1", "2.1"), ("2.2", "2.2"), ("2.10", "2.10")]
        {
            let out = rewrite(&format!("Name: torch\nMetadata-Version:   {before} \nX: 1\n"), &["gfx942"]);
            assert_eq!(out, format!("Name: torch\nMetadata-Version:   {after} \nX: 1\n{ADDED}"));
        }
        assert_eq!(
            rewrite("Name: torch\n", &["gfx942"]),
            format!("Name: torch\nMetadata-Version: 2.1\n{ADDED}")
        );
        let fault = rewrite_host(b"Metadata-Version: two\n", &devices(&["gfx942"]), false).unwrap_err();
        assert!(fault.message.contains("two"));
    }

    #[test]
    fn nothing_is_added_twice() {
        let once = rewrite("Metadata-Version: 1.0\nName: torch\n\nbody", &["gfx942", "gfx9", "gfx1100"]);
        assert_eq!(rewrite(&once, &["gfx942", "gfx9", "gfx1100"]), once);

        let spelt_otherwise = "Metadata-Version: 2.4\nRequires-Dist: rocm_bootstrap>=0.3\n\
            Provides-Extra: Device_gfx942\nRequires-Dist: dev_gfx942 (==1.0) ; extra=='device-gfx942'\n";
        assert_eq!(
            rewrite(spelt_otherwise, &["gfx942"]),
            format!(
                "{spelt_otherwise}Provides-Extra: device-all\n\
                 Requires-Dist: dev-gfx942 == 1.0; extra == \"device-all\"\n"
            )
        );
        let conditional = "Metadata-Version: 2.4\nRequires-Dist: rocm-bootstrap; extra == 'x'\n";
        assert_eq!(rewrite(conditional, &["gfx942"]), format!("{conditional}{ADDED}"));
    }

    #[test]
    fn device_metadata_per_level() {
        let devices = devices(&["gfx1100", "gfx11"]);
        let table = ArchTable::builtin().unwrap();
        let text = |key| String::from_utf8(device(&devices, table.bundle(key).unwrap())).unwrap();
        assert_eq!(
            text("gfx1100"),
            "Metadata-Version: 2.4\nName: dev-gfx1100\nVersion: 1.0\n\
             Summary: AMD device kernels (gfx1100) for torch\nRequires-Dist: torch == 1.0\n\
             Requires-Dist: sdk-gfx1100 == 7\nRequires-Dist: dev-gfx11 == 1.0\n"
        );
        assert_eq!(
            text("gfx11"),
            "Metadata-Version: 2.4\nName: dev-gfx11\nVersion: 1.0\n\
             Summary: AMD device kernels (RDNA3) for torch\nRequires-Dist: torch == 1.0\n"
        );
    }

    proptest! {
        /// Whatever METADATA holds: the old bytes are all there, in order, around one inserted block; the
        /// identity stays; a second time changes nothing.
        #[test]
        fn original_bytes_stay(
            lines in proptest::collection::vec("(Requires-Dist: [a-z;= ]{0,9}|[A-Z]{1,3}: \\PC{0,9}| \\PC{0,5}|Provides-Extra: device-all|\\PC{0,6})", 0..8),
            ending in prop_oneof![Just("\n"), Just("\r\n")], terminated: bool,
        ) {
            let mut text = format!("Metadata-Version: 2.4{ending}Name: torch{ending}Version: 1.0{ending}{}", lines.join(ending));
            if terminated {
                text.push_str(ending);
            }
            let devices = devices(&["gfx942", "gfx9"]);
            let once = rewrite_host(text.as_bytes(), &devices, false).unwrap();
            let end = Headers::parse(text.as_bytes()).end;
            prop_assert_eq!(&once[..end], &text.as_bytes()[..end]);
            prop_assert!(once.ends_with(&text.as_bytes()[end..]));
            prop_assert_eq!(parse(&once), parse(text.as_bytes()));
            prop_assert_eq!(rewrite_host(&once, &devices, false).unwrap(), once);
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = rewrite_host(&bytes, &devices(&["gfx942"]), true);
        }
    }
}
