//! What goes into which wheel: database files, the order of the host wheel, names, collisions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::root::below;
use crate::arch::table::{ArchTable, Bundle};
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::io::Input;
use crate::options::{OutputFormat, SplitOptions, UnknownArch};
use crate::pipeline::classify::Classified;
use crate::pipeline::identify::Identified;
use crate::wheel::archs::ArchFilter;
use crate::wheel::database::{self, Selection};
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

/// Finds the per-architecture files below `root`.
pub fn database_files(
    input: &Input,
    root: &str,
    table: &ArchTable,
    options: &SplitOptions,
    warnings: &mut Vec<String>,
) -> Result<Vec<MovedFile>> {
    let mut selection = Selection::from_names(options.databases.iter().map(String::as_str))
        .map_err(|fault| Error::usage(fault.to_string()))?;
    for pattern in &options.device_files {
        selection.add_device_files(pattern).map_err(|fault| Error::usage(fault.to_string()))?;
    }
    let paths = || {
        let files = input.members().iter().filter(|member| !member.is_directory());
        files.filter_map(|member| below(root, &member.name))
    };
    for pattern in &options.device_files {
        let glob = DeviceGlob::parse(pattern).map_err(|fault| Error::usage(fault.to_string()))?;
        if !paths().any(|path| glob.capture(path).is_some()) {
            warnings.push(format!("--device-files {pattern:?} matches no file below {root}"));
        }
    }
    if options.databases.is_empty() && options.device_files.is_empty() {
        let every = Selection::from_names(database::handler_names())?;
        let mut staying = paths().filter(|path| every.classify(path, table).is_some());
        if let Some(example) = staying.next() {
            warnings.push(format!(
                "{} file(s) for single GPUs, such as {root}/{example}, stay in the host wheel; \
                 --wheel-type or --databases moves them to the device wheels",
                1 + staying.count()
            ));
        }
    }
    let mut moved = Vec::new();
    let mut unknown: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    for (index, member) in input.members().iter().enumerate() {
        if member.is_directory() {
            continue;
        }
        let Some(path) = below(root, &member.name) else { continue };
        let Some(file) = selection.classify(path, table) else { continue };
        let lookup = table.bundle_of(file.arch.processor()).map_err(|fault| {
            Error::from(fault).in_member(&member.name).with_hint(format!(
                "the {} rule took this name for a per-architecture file; leave the rule out of --databases, or add the architecture with --arch-table",
                file.handler
            ))
        })?;
        if !lookup.is_known() {
            let places = unknown.entry(file.arch.processor().to_owned()).or_insert((0, &member.name));
            places.0 += 1;
            if options.unknown_arch == UnknownArch::Host {
                continue;
            }
        }
        moved.push(MovedFile { member: index, bundle: lookup.into_bundle() });
    }
    if !unknown.is_empty() {
        let list: Vec<String> = unknown
            .iter()
            .map(|(arch, (count, example))| format!("{arch} ({count} files, such as {example})"))
            .collect();
        let list = list.join("; ");
        match options.unknown_arch {
            UnknownArch::Error => {
                let fault = Fault::unsupported("architecture table", None, format!("it lacks {list}"));
                return Err(Error::from(fault).with_hint("add rows with --arch-table FILE"));
            }
            UnknownArch::Package => {
                warnings.push(format!(
                    "the architecture table lacks {list}; each gets a device wheel of its own"
                ));
            }
            UnknownArch::Host => {
                warnings.push(format!("the architecture table lacks {list}; they stay in the host wheel"));
            }
        }
    }
    Ok(moved)
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

/// Fails if two outputs would have one file name, on any system.
pub fn different_names(names: impl Iterator<Item = String>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
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
    table: &ArchTable,
    options: &SplitOptions,
    warnings: &mut Vec<String>,
) -> Result<ArchFilter> {
    let Some(list) = &options.archs else { return Ok(ArchFilter::default()) };
    let usage = |fault: Fault| Error::usage(fault.to_string());
    let filter = ArchFilter::parse(list, table).map_err(usage)?;
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
    Ok(filter)
}

/// A wheel's file name, or for `--output-format directory` its directory's.
pub fn output_name(filename: &WheelFilename, format: OutputFormat) -> String {
    let name = filename.to_string();
    match format {
        OutputFormat::Wheel => name,
        OutputFormat::Directory => name.trim_end_matches(".whl").to_owned(),
    }
}
