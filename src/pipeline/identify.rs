//! Stage *identify*: whose wheel this is. Reads the `.dist-info` of the input.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::io::{Input, Member, StreamReader};
use crate::wheel::filename::{TagSets, WheelFilename};
use crate::wheel::metadata::{self, Identity};
use crate::wheel::record::{self, Row};
use crate::wheel::wheel_file::WheelFile;
use crate::wheel::{dist_info, filename};

/// No real METADATA, WHEEL or RECORD comes near this size: RECORD has some 150 bytes per file.
const MAX_TEXT: u64 = 256 << 20;

/// What the `.dist-info` directory says.
#[derive(Debug)]
pub struct Identified {
    /// Name and version.
    pub identity: Identity,
    /// Name of the `.dist-info` directory.
    pub dist_info: String,
    /// The file name of the host wheel, in parts.
    pub filename: WheelFilename,
    /// Tags, build, purelib.
    pub wheel_file: WheelFile,
    /// METADATA as it is.
    pub metadata: Vec<u8>,
    /// RECORD by path; `None` if there is none.
    pub record: Option<HashMap<String, Row>>,
    /// Things to tell the user.
    pub warnings: Vec<String>,
}

impl Identified {
    /// The path of a file of `.dist-info`.
    pub fn path(&self, file: &str) -> String {
        format!("{}/{file}", self.dist_info)
    }

    /// Whether `name` is a member of `.dist-info`.
    pub fn is_dist_info(&self, name: &str) -> bool {
        name.strip_prefix(self.dist_info.as_str()).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// Reads the `.dist-info` directory of `input`. `input_name` is the wheel's file name if the input does not have it.
pub fn identify(input: &Input, input_name: Option<&str>) -> Result<Identified> {
    let dist_info = dist_info::find(input.members().iter().map(|member| member.name.as_str()))
        .map_err(|fault| Error::from(fault).with_hint("is this really a wheel?"))?
        .to_owned();
    let mut reader = StreamReader::new()?;
    let mut file = |name: &str| {
        let path = format!("{dist_info}/{name}");
        let member = input.members().iter().find(|member| member.name == path);
        member.map(|member| text(input, member, &mut reader)).transpose()
    };
    let required = |name: &str, bytes: Option<Vec<u8>>| {
        bytes.ok_or_else(|| Fault::malformed(format!("{dist_info}/{name}"), None, "the file is missing"))
    };
    let metadata = required("METADATA", file("METADATA")?)?;
    let identity = metadata::parse(&metadata)
        .map_err(|fault| Error::from(fault).in_member(&format!("{dist_info}/METADATA")))?;
    let wheel_file = WheelFile::parse(&required("WHEEL", file("WHEEL")?)?)
        .map_err(|fault| Error::from(fault).in_member(&format!("{dist_info}/WHEEL")))?;
    let record = match file("RECORD")? {
        None => None,
        Some(bytes) => {
            let rows = record::parse(&bytes)
                .map_err(|fault| Error::from(fault).in_member(&format!("{dist_info}/RECORD")))?;
            Some(rows.into_iter().map(|row| (row.path.clone(), row)).collect())
        }
    };
    let mut warnings: Vec<String> =
        record.as_ref().and_then(|record| missing(record, input)).into_iter().collect();
    let filename = match input_name {
        Some(name) => {
            WheelFilename::parse(name).map_err(|fault| Error::usage(format!("--input-name: {fault}")))?
        }
        None => file_name(input, &dist_info, &identity, &wheel_file, &mut warnings)?,
    };
    let named = |name: &str| filename::normalize_dist_name(name);
    if named(&filename.name) != named(&identity.name) {
        warnings.push(format!(
            "the file name says {}, METADATA says {}: installers refuse such wheels",
            filename.name, identity.name
        ));
    }
    if !filename::same_version(&filename.version, &identity.version) {
        warnings.push(format!(
            "the file name says version {}, METADATA says {}: installers refuse such wheels",
            filename.version, identity.version
        ));
    }
    Ok(Identified { identity, dist_info, filename, wheel_file, metadata, record, warnings })
}

/// Says which files RECORD lists that the wheel does not have.
fn missing(record: &HashMap<String, Row>, input: &Input) -> Option<String> {
    let there: HashSet<&str> = input.members().iter().map(|member| member.name.as_str()).collect();
    let mut missing: Vec<&str> =
        record.keys().map(String::as_str).filter(|path| !there.contains(path)).collect();
    missing.sort_unstable();
    let first = missing.first()?;
    let others = match missing.len() {
        1 => String::new(),
        count => format!(" and {} other file(s)", count - 1),
    };
    Some(format!("RECORD lists {first}{others}, which the wheel does not have: is it complete?"))
}

/// The input's own file name, or for a directory the one that its `.dist-info` calls for.
fn file_name(
    input: &Input,
    dist_info: &str,
    identity: &Identity,
    wheel_file: &WheelFile,
    warnings: &mut Vec<String>,
) -> Result<WheelFilename> {
    let given = input.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if input.map().is_some() && given.ends_with(".whl") {
        return Ok(WheelFilename::parse(given)?);
    }
    let stem = dist_info.strip_suffix(".dist-info").unwrap_or(dist_info);
    let (name, version) = match stem.split_once('-') {
        Some((name, version)) => (name.to_owned(), version.to_owned()),
        None => {
            let name = filename::normalize_dist_name(&identity.name);
            (name, filename::escape_version(&identity.version))
        }
    };
    let tags = TagSets::compress(&wheel_file.tags).or_else(|| wheel_file.tags.first().cloned());
    let tags = tags.ok_or_else(|| Fault::malformed(format!("{dist_info}/WHEEL"), None, "it has no Tag"))?;
    let made = WheelFilename { name, version, build: wheel_file.build.clone(), tags };
    if input.map().is_some() {
        warnings.push(format!(
            "the input has no wheel's file name, so the host wheel gets the one that its .dist-info calls for, {made}; \
             --input-name says otherwise"
        ));
    }
    Ok(made)
}

fn text(input: &Input, member: &Member, reader: &mut StreamReader) -> Result<Vec<u8>> {
    if member.size > MAX_TEXT {
        let fault = Fault::unsupported(
            "member data",
            None,
            format!("{} bytes are too many for a text file", member.size),
        );
        return Err(Error::from(fault).in_member(&member.name));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(member.size as usize).map_err(|_| {
        Error::from(Fault::out_of_memory("member data", None, member.size)).in_member(&member.name)
    })?;
    reader.read(input, member, None, |chunk| {
        bytes.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(bytes)
}
