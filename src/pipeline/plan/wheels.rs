//! What goes into which wheel: database files, the order of the host wheel, names, collisions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::root::below;
use super::settings::Settings;
use super::unknown::Unknown;
use crate::arch::UnknownArch;
use crate::arch::table::Bundle;
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::io::Input;
use crate::options::{OutputFormat, SplitOptions};
use crate::pipeline::classify::Classified;
use crate::pipeline::identify::Identified;
use crate::wheel::archs::ArchFilter;
use crate::wheel::database::Selection;
use crate::wheel::device_glob::DeviceGlob;
use crate::wheel::dist_info::installed_path;
use crate::wheel::filename::WheelFilename;
use crate::wheel::record;

/// A database file and the bundle key of the device wheel that it moves to.
#[derive(Debug)]
pub struct MovedFile {
    /// Index of the member.
    pub member: usize,
    /// The bundle.
    pub bundle: Bundle,
}

/// Warns of patterns that match nothing, and of files that would move if somebody had said so.
pub fn forgotten_files(
    input: &Input,
    root: &str,
    settings: &Settings,
    options: &SplitOptions,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let paths = || {
        let files = input.members().iter().filter(|member| !member.is_directory());
        files.filter_map(|member| below(root, &member.name))
    };
    // Those of a rules file are for wheels of several kinds.
    for pattern in &options.device_files {
        let glob = DeviceGlob::parse(pattern).map_err(|fault| Error::usage(fault.to_string()))?;
        if !paths().any(|path| glob.capture(path).is_some()) {
            warnings.push(format!("--device-files {pattern:?} matches no file below {root}"));
        }
    }
    if settings.wants.databases.is_none() && settings.wants.device_files.is_none() {
        let every = Selection::every();
        let mut staying = paths().filter(|path| every.classify(path, &settings.table).is_some());
        if let Some(example) = staying.next() {
            warnings.push(format!(
                "{} file(s) for single GPUs, such as {root}/{example}, stay in the host wheel; \
                 --wheel-type or --databases moves them to the device wheels",
                1 + staying.count()
            ));
        }
    }
    Ok(())
}

/// Finds the per-architecture files below `root`; those whose architecture nobody knows are noted in `unknown`.
pub fn database_files<'i>(
    input: &'i Input,
    root: &str,
    settings: &Settings,
    duplicates: &BTreeSet<usize>,
    unknown: &mut Unknown<'i>,
) -> Vec<MovedFile> {
    let mut moved = Vec::new();
    for (index, member) in input.members().iter().enumerate() {
        if member.is_directory() || duplicates.contains(&index) {
            continue;
        }
        let Some(path) = below(root, &member.name) else { continue };
        let Some(file) = settings.selection.classify(path, &settings.table) else { continue };
        let arch = file.arch.processor();
        let Some(lookup) = unknown.of_file(&settings.table, arch, &member.name, file.handler) else {
            continue;
        };
        if lookup.is_known() || settings.unknown_arch() != UnknownArch::Host {
            moved.push(MovedFile { member: index, bundle: lookup.into_bundle() });
        }
    }
    moved
}

/// The members of the host wheel in order: first those outside `.dist-info`, then those of `.dist-info`, without
/// RECORD, which comes last, and its signatures.
pub fn host_order(
    input: &Input,
    identified: &Identified,
    moved: &[MovedFile],
    duplicates: &BTreeSet<usize>,
    warnings: &mut Vec<String>,
) -> (Vec<usize>, Vec<usize>) {
    let gone: BTreeSet<usize> =
        moved.iter().map(|file| file.member).chain(duplicates.iter().copied()).collect();
    let emptied = emptied_directories(input, &gone);
    let (mut body, mut dist_info) = (Vec::new(), Vec::new());
    for (index, member) in input.members().iter().enumerate() {
        let name = member.name.as_str();
        if gone.contains(&index) || emptied.contains(name) {
            continue;
        }
        if !identified.is_dist_info(name) {
            body.push(index);
        } else if record::SIGNATURES.iter().any(|file| identified.path(file) == name) {
            warnings.push(format!("{name}: the signature no longer holds and is left out"));
        } else if name != identified.path("RECORD") {
            dist_info.push(index);
        }
    }
    (body, dist_info)
}

/// Directory members all of whose files moved away.
fn emptied_directories<'i>(input: &'i Input, gone: &BTreeSet<usize>) -> BTreeSet<&'i str> {
    let mut left: BTreeSet<&str> = BTreeSet::new();
    let mut lost: BTreeSet<&str> = BTreeSet::new();
    for (index, member) in input.members().iter().enumerate() {
        let set = if gone.contains(&index) { &mut lost } else { &mut left };
        if member.is_directory() {
            continue;
        }
        let mut end = member.name.len();
        while let Some(slash) = member.name[..end].rfind('/') {
            set.insert(&member.name[..=slash]);
            end = slash;
        }
    }
    &lost - &left
}

/// Members that repeat an earlier one byte for byte; with other bytes they are an error.
pub fn duplicates(input: &Input, classified: &[Classified]) -> Result<BTreeSet<usize>> {
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut repeated = BTreeSet::new();
    for (index, member) in input.members().iter().enumerate() {
        let Some(&before) = first.get(member.name.as_str()) else {
            first.insert(&member.name, index);
            continue;
        };
        if classified[before].sha256 != classified[index].sha256
            || input.members()[before].size != member.size
        {
            let fault =
                Fault::malformed("zip archive", None, "two members of this name have different bytes");
            return Err(Error::from(fault).in_member(&member.name));
        }
        repeated.insert(index);
    }
    Ok(repeated)
}

/// Fails if a file or link stands where another member needs a directory: nobody could unpack that, and through a link
/// files would be written outside of the output.
pub fn no_file_is_a_directory(input: &Input) -> Result<()> {
    let files: HashSet<&str> = input
        .members()
        .iter()
        .filter(|member| !member.is_directory())
        .flat_map(|member| [member.name.as_str(), installed_path(&member.name)])
        .collect();
    for member in input.members() {
        for path in [member.name.as_str(), installed_path(&member.name)] {
            if let Some(file) = file_above(&files, path) {
                let fault =
                    Fault::malformed("wheel", None, format!("it needs a directory where {file} is a file"));
                return Err(Error::from(fault).in_member(&member.name));
            }
        }
    }
    Ok(())
}

/// The directory that `path` is in, or that it is, which is one of `files`.
fn file_above<'p>(files: &HashSet<&str>, path: &'p str) -> Option<&'p str> {
    path.match_indices('/').map(|(slash, _)| &path[..slash]).find(|directory| files.contains(directory))
}

/// Fails if two outputs would install different files at one place. `new` are the paths that a split adds.
pub fn no_collisions(input: &Input, new: impl Iterator<Item = String>) -> Result<()> {
    let mut places: HashMap<&str, &str> = HashMap::new();
    for member in input.members().iter().filter(|member| !member.is_directory()) {
        let place = installed_path(&member.name);
        if let Some(other) = places.insert(place, &member.name).filter(|other| *other != member.name) {
            let fault =
                Fault::malformed("wheel", None, format!("it installs to {place}, and so does {other}"));
            return Err(Error::from(fault).in_member(&member.name));
        }
    }
    let files: HashSet<&str> = places.keys().copied().collect();
    for path in new {
        if let Some(file) = file_above(&files, installed_path(&path)) {
            let fault =
                Fault::unsupported("wheel", None, "a device wheel would need a directory in its place");
            return Err(Error::from(fault)
                .in_member(file)
                .with_hint("rename it, or choose another --overlay-root"));
        }
        if places.contains_key(installed_path(&path)) {
            let fault = Fault::unsupported(
                "wheel",
                None,
                "the input has a file where an archive of a device wheel would go; was it split before?",
            );
            return Err(Error::from(fault).in_member(&path).with_hint("split the original fat wheel"));
        }
    }
    Ok(())
}

/// Fails if two outputs would have one file name, on any system, or one that is taken.
pub fn different_names(names: impl Iterator<Item = String>, taken: &BTreeSet<String>) -> Result<()> {
    let mut seen = HashSet::new();
    let taken: HashSet<String> = taken.iter().map(|name| name.to_lowercase()).collect();
    for name in names {
        if taken.contains(&name.to_lowercase()) {
            return Err(Error::usage(format!("{name} is the name of another output of this run"))
                .with_hint("give each distribution a --device-package-prefix of its own, in a rules file"));
        }
        if !seen.insert(name.to_lowercase()) {
            return Err(Error::usage(format!("two wheels of this split would be named {name}")).with_hint(
                "choose another --device-package-prefix, or see whether the input has the right file name",
            ));
        }
    }
    Ok(())
}

/// The bundles that get a wheel: those of `keys` that `--archs` allows.
pub fn filter(
    keys: &BTreeMap<String, Bundle>,
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<ArchFilter> {
    let Some(filter) = &settings.filter else { return Ok(ArchFilter::default()) };
    let usage = |fault: Fault| Error::usage(fault.to_string());
    filter.check_something_left(keys.keys().map(String::as_str)).map_err(usage)?;
    let unmatched = filter.unmatched(keys.keys().map(String::as_str));
    if !unmatched.is_empty() {
        warnings.push(format!("--archs names {}, which this wheel has no code for", unmatched.join(", ")));
    }
    let bundles: Vec<Bundle> = keys.values().cloned().collect();
    for (kept, dropped) in filter.dropped_parents(&bundles) {
        warnings.push(format!(
            "--archs keeps {kept} but not {dropped}, which has files that {kept} devices use too"
        ));
    }
    Ok(filter.clone())
}

/// A wheel's file name, or for `--output-format directory` its directory's.
pub fn output_name(filename: &WheelFilename, format: OutputFormat) -> String {
    let name = filename.to_string();
    match format {
        OutputFormat::Wheel => name,
        OutputFormat::Directory => name.trim_end_matches(".whl").to_owned(),
    }
}
