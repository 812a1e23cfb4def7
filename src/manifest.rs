//! The manifest (`--manifest FILE`): every output, and where every member of every input went, as JSON.
//!
//! Two readers: a publishing step that must not forget a wheel, since the wheels of one split pin each other exactly;
//! and whoever wants to check that nothing is lost. The README has the fields. Within one `format`, fields are added,
//! never changed or removed; fields that say nothing are left out where a comment says so.
//!
//! Paths are as in the wheel, `to` is the file name of an output. Hashes are SHA-256 in hexadecimal.

use serde::Serialize;

/// Version of the format.
pub const FORMAT: u32 = 1;

/// The whole file: all splits of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// `fatwheel`, and its version.
    pub generator: String,
    /// The wheels that were split, in the order of the command line.
    pub splits: Vec<SplitRecord>,
    /// The inputs that could not be split.
    pub failed: Vec<Failure>,
}

impl Manifest {
    /// A manifest without splits.
    pub fn new() -> Self {
        let generator = concat!("fatwheel ", env!("CARGO_PKG_VERSION")).to_owned();
        Self { format: FORMAT, generator, splits: Vec::new(), failed: Vec::new() }
    }
}

impl Default for Manifest {
    fn default() -> Self {
        Self::new()
    }
}

/// An input that could not be split.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// As it was given.
    pub input: String,
    /// What was said about it.
    pub error: String,
}

/// One split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SplitRecord {
    /// What was split.
    pub input: InputRecord,
    /// The directory that archives were placed in; left out if nothing was split off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay_root: Option<String>,
    /// Whether the input was a host wheel already, and was copied.
    pub already_split: bool,
    /// The outputs: host, variant, device wheels by bundle key.
    pub outputs: Vec<OutputRecord>,
    /// Every member of the input, in its order.
    pub members: Vec<MemberRecord>,
}

/// The input of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputRecord {
    /// File name of the wheel, which for a directory or a pipe is the one that its `.dist-info` calls for.
    pub file: String,
    /// Bytes of the file, or of all files of a directory.
    pub size: u64,
    /// Distribution name, as METADATA has it.
    pub name: String,
    /// Version, as METADATA has it.
    pub version: String,
}

/// What an output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputKind {
    /// Everything but the device code.
    Host,
    /// Device code and files of one bundle.
    Device,
    /// The host wheel once more, with variant markers.
    Variant,
}

/// One output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutputRecord {
    /// What it is.
    pub kind: OutputKind,
    /// Name of the file, or of the directory.
    pub file: String,
    /// Bytes of the file, or of all files of a directory.
    pub size: u64,
    /// Hash of the file; left out for a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Distribution name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Build tag; left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Every tag.
    pub tags: Vec<String>,
    /// `Requires-Dist` of METADATA.
    pub requires: Vec<String>,
    /// `Provides-Extra` of METADATA.
    pub extras: Vec<String>,
    /// Bundle key, for a device wheel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Targets that its archives answer for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It is in the host wheel, byte for byte.
    Kept,
    /// It is in a device wheel, byte for byte.
    Moved,
    /// The host wheel has it without its device code.
    Split,
    /// It is in the host wheel, written anew: METADATA and RECORD.
    Rewritten,
    /// It is in no output; `why` says why.
    Dropped,
}

/// One member of the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberRecord {
    /// Path; ends with `/` for a directory.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Hash of these bytes.
    pub sha256: String,
    /// What became of it.
    pub fate: Fate,
    /// The output that has it. What the host wheel has, the variant wheel has too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why it was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What stands in its place, for a split one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewritten: Option<Rewritten>,
    /// The bundles of a split one, which are nowhere as they were: their code objects are in archives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bundles: Vec<Place>,
    /// The bytes of a split one that the host wheel has at a known place. What is neither these nor bundles is padding,
    /// or a table that made way for program headers and stands elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Kept>,
    /// The device code that it had, by target.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<CodeRecord>,
}

/// A split member as the host wheel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rewritten {
    /// Bytes.
    pub size: u64,
    /// Hash of these bytes.
    pub sha256: String,
    /// How many of the kept bytes have other values: headers, and the wrappers' magics and pointers.
    pub overwritten: u64,
}

/// A range of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Where it starts.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A range of a member that the host wheel still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Where it starts in the input.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Where it starts in the host wheel's file.
    pub at: u64,
}

/// Code of one target in one binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeRecord {
    /// The target as the bundle names it: `gfx90a:xnack-`; `spirv` for SPIR-V.
    pub target: String,
    /// Entries of bundles.
    pub objects: u64,
    /// Their bytes in all, uncompressed.
    pub bytes: u64,
    /// The archive that has them, as a path in the device wheel; left out, like `to`, if none was written for the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// The device wheel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}
