//! Stage *plan*: everything that can fail on the wheel's content fails here, before an output is opened.
//!
//! All fat binaries together: wrappers, bundles, targets, archives, device wheels, names, METADATA.

pub mod archives;
pub mod binaries;
pub mod root;
pub mod settings;
pub mod sparse;
pub mod unknown;
pub mod wheels;

use std::collections::{BTreeMap, BTreeSet};

use archives::Archives;
use binaries::Binary;
use settings::Settings;
use unknown::Unknown;

use super::Context;
use super::classify::{Classified, Kind};
use super::identify::Identified;
use crate::arch::table::Bundle;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::Fault;
use crate::io::Input;
use crate::wheel::devices::DeviceSet;
use crate::wheel::filename::{WheelFilename, group_name};
use crate::wheel::metadata;
use crate::wheel::variant;

/// What the second pass does.
#[derive(Debug)]
pub struct SplitPlan {
    /// The overlay root; empty if nothing is split.
    pub root: String,
    /// Group name of the archives.
    pub group: String,
    /// The binaries to split, in the order of the members.
    pub binaries: Vec<Binary>,
    /// All code objects and archives.
    pub archives: Archives,
    /// The device wheels, by bundle key.
    pub devices: Vec<DevicePlan>,
    /// The host wheel.
    pub host: HostPlan,
    /// The variant wheel.
    pub variant: Option<VariantPlan>,
}

/// One device wheel.
#[derive(Debug)]
pub struct DevicePlan {
    /// Its bundle.
    pub bundle: Bundle,
    /// Distribution name.
    pub name: String,
    /// File name, in parts.
    pub filename: WheelFilename,
    /// Its archives, in the order of the wheel.
    pub archives: Vec<usize>,
    /// The members that move to it.
    pub files: Vec<usize>,
    /// METADATA.
    pub metadata: Vec<u8>,
}

/// The host wheel.
#[derive(Debug)]
pub struct HostPlan {
    /// Members outside `.dist-info`, in order.
    pub body: Vec<usize>,
    /// Members of `.dist-info` in order, METADATA among them, RECORD not.
    pub dist_info: Vec<usize>,
    /// METADATA.
    pub metadata: Vec<u8>,
}

/// The variant wheel: the host wheel but for these.
#[derive(Debug)]
pub struct VariantPlan {
    /// File name without directory.
    pub file_name: String,
    /// METADATA.
    pub metadata: Vec<u8>,
    /// variant.json.
    pub json: Vec<u8>,
}

/// Plans the split. Takes the fat binaries out of `classified`.
pub fn plan(
    context: &Context<'_>,
    settings: &Settings,
    input: &Input,
    identified: &Identified,
    classified: &mut [Classified],
    keep_checkpoints: bool,
    warnings: &mut Vec<String>,
) -> Result<SplitPlan> {
    let options = context.options;
    let Settings { wants, table, .. } = settings;
    let duplicates = wheels::duplicates(input, classified)?;
    wheels::no_file_is_a_directory(input)?;
    // A member that repeats an earlier one is in no output, so it is neither split nor moved.
    for &index in &duplicates {
        classified[index].kind = Kind::Plain;
    }
    let group = group_name(&identified.identity.name);
    let any_split = classified.iter().any(|classified| matches!(classified.kind, Kind::AlreadySplit));
    let root = overlay_root(settings, input, classified)?;
    let (binaries, moved) = match &root {
        Some(root) => {
            wheels::forgotten_files(input, root, settings, options, warnings)?;
            let mut unknown = Unknown::default();
            let moved = wheels::database_files(input, root, settings, &duplicates, &mut unknown);
            for file in &moved {
                // It moves as it is, whatever it has inside.
                classified[file.member].kind = Kind::Plain;
            }
            let choice = binaries::Choice { input, root, group: &group, settings, keep_checkpoints, context };
            let chosen = choice.choose(classified, &mut unknown, warnings)?;
            unknown.report(settings.unknown_arch(), warnings)?;
            (choice.plan_edits(chosen, warnings)?, moved)
        }
        None => {
            for (member, classified) in input.members().iter().zip(&*classified) {
                if let Kind::Hidden(offset) = classified.kind {
                    warnings.push(binaries::hidden(&member.name, offset));
                }
                if matches!(classified.kind, Kind::Fat(_)) {
                    warnings.push(format!(
                        "{}: a fat binary in no directory that archives could be placed in; it stays whole",
                        member.name
                    ));
                }
            }
            (Vec::new(), Vec::new())
        }
    };
    if binaries.is_empty() && any_split {
        // Its database files stay too: device wheels with those alone would replace the ones of the first split.
        return Ok(unchanged(input, identified, &duplicates, group, warnings));
    }
    let Some(root) = root.filter(|_| !binaries.is_empty() || !moved.is_empty()) else {
        return Err(nothing_to_split(settings, warnings));
    };
    let mut keys: BTreeMap<String, Bundle> =
        moved.iter().map(|file| (file.bundle.key.clone(), file.bundle.clone())).collect();
    for processor in archives::processors(&binaries) {
        let bundle = table.bundle_of(processor.as_str())?.into_bundle();
        keys.insert(bundle.key.clone(), bundle);
    }
    let filter = wheels::filter(&keys, settings, warnings)?;
    keys.retain(|key, _| filter.allows(key));
    let placement = archives::Placement {
        root: &root,
        group: &group,
        table,
        keys: &keys,
        layout: options.kpack_layout,
        filename: &identified.filename,
    };
    let archives = archives::plan(input, &binaries, &placement)?;
    warnings.extend(sparse::warnings(&archives, options.kpack_layout));
    let served = archives::served(&archives.archives, table)?;
    let prefix = wants.device_package_prefix.clone();
    let prefix = prefix.unwrap_or_else(|| format!("amd-{}-device", identified.identity.name));
    let devices_set = DeviceSet::new(
        identified.identity.clone(),
        &prefix,
        wants.device_requires_dist.as_deref().unwrap_or_default(),
        keys.values().cloned(),
        served,
    )
    .map_err(|fault| Error::usage(fault.to_string()))?;
    let mut devices: Vec<DevicePlan> = keys
        .values()
        .map(|bundle| {
            let name = devices_set.dist_name(&bundle.key);
            let filename = identified.filename.for_distribution(&name, &identified.identity.version);
            let metadata = metadata::device(&devices_set, bundle);
            let files =
                moved.iter().filter(|file| file.bundle.key == bundle.key).map(|file| file.member).collect();
            DevicePlan { bundle: bundle.clone(), name, filename, archives: Vec::new(), files, metadata }
        })
        .collect();
    for (index, archive) in archives.archives.iter().enumerate() {
        if let Some(device) =
            devices.iter_mut().find(|device| archive.written && device.bundle.key == archive.key)
        {
            device.archives.push(index);
        }
    }
    for device in &mut devices {
        // The first is written in place while code objects stream by, so it is the one that starts first.
        device.archives.sort_by_key(|&index| (archives.archives[index].first_cut, index));
    }
    wheels::no_collisions(
        input,
        archives.archives.iter().filter(|archive| archive.written).map(|archive| archive.path.clone()),
    )?;
    let (body, dist_info) = wheels::host_order(input, identified, &moved, &duplicates, warnings);
    let rewritten = |variant| {
        metadata::rewrite_host(&identified.metadata, &devices_set, variant)
            .map_err(|fault| Error::from(fault).in_member(&identified.path("METADATA")))
    };
    let host_metadata = rewritten(false)?;
    let variant = options
        .variant
        .as_ref()
        .map(|variant| {
            let usage = |fault: Fault| Error::usage(fault.to_string());
            Ok::<_, Error>(VariantPlan {
                file_name: variant::file_name(&identified.filename.to_string(), &variant.label)
                    .map_err(usage)?,
                metadata: rewritten(true)?,
                json: variant::variant_json(&devices_set, &variant.label, variant.format).map_err(usage)?,
            })
        })
        .transpose()?;
    let host = HostPlan { body, dist_info, metadata: host_metadata };
    let variant_name = variant.as_ref().map(|variant| variant.file_name.clone());
    wheels::different_names(
        std::iter::once(identified.filename.to_string())
            .chain(devices.iter().map(|device| device.filename.to_string()))
            .chain(variant_name),
        &options.taken,
    )?;
    Ok(SplitPlan { root, group, binaries, archives, devices, host, variant })
}

/// The overlay root that is asked for, or else the directory that has what will be split off.
fn overlay_root(settings: &Settings, input: &Input, classified: &[Classified]) -> Result<Option<String>> {
    let members = input.members();
    let fat = members
        .iter()
        .zip(classified)
        .filter(|(_, classified)| matches!(classified.kind, Kind::Fat(_) | Kind::Broken(_)))
        .map(|(member, _)| (member.name.as_str(), member.size));
    let names = members.iter().map(|member| member.name.as_str());
    let given = settings.wants.overlay_root.as_deref();
    match root::overlay_root(given, fat, names)? {
        Some(root) => Ok(Some(root)),
        None => {
            let files = members.iter().filter(|member| !member.is_directory());
            root::root_of_files(files.map(|member| member.name.as_str()), |path| {
                settings.selection.classify(path, &settings.table).is_some()
            })
        }
    }
}

/// A plan that changes nothing: the input is a host wheel already.
fn unchanged(
    input: &Input,
    identified: &Identified,
    duplicates: &BTreeSet<usize>,
    group: String,
    warnings: &mut Vec<String>,
) -> SplitPlan {
    let (body, dist_info) = wheels::host_order(input, identified, &[], duplicates, warnings);
    SplitPlan {
        root: String::new(),
        group,
        binaries: Vec::new(),
        archives: Archives::default(),
        devices: Vec::new(),
        host: HostPlan { body, dist_info, metadata: identified.metadata.clone() },
        variant: None,
    }
}

fn nothing_to_split(settings: &Settings, warnings: &[String]) -> Error {
    let place = settings.wants.overlay_root.as_ref().map(|root| format!(" below {root}")).unwrap_or_default();
    let files =
        if settings.selection.is_empty() { "" } else { ", nor files that the selected handlers know" };
    let why: String = warnings.iter().map(|warning| format!("\n  {warning}")).collect();
    ErrorKind::NothingToSplit(format!("{place}{files}{why}")).into()
}
