//! The account of a split ([`SplitRecord`]): what every output is, and where every member went. Made from the plan,
//! which the second pass has carried out to the byte, and from the sums that were taken while it wrote.

use std::collections::{HashMap, HashSet};

use super::emit::Hashed;
use super::finish::Finisher;
use super::plan::archives::ArchivePlan;
use super::plan::binaries::Binary;
use super::plan::wheels::output_name;
use super::sink::Region;
use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::fatbin::entry_id::EntryId;
use crate::io::output::Pending;
use crate::manifest::{
    CodeRecord, Fate, InputRecord, Kept, MemberRecord, OutputKind, OutputRecord, Place, Rewritten,
    SplitRecord,
};
use crate::options::{KpackLayout, Output, SplitReport};
use crate::wheel::metadata::Dependencies;
use crate::wheel::record;

/// SHA-256 of a finished file of `size` bytes; `None` for a directory.
pub(super) fn digest(pending: &Pending, size: u64) -> Result<Option<[u8; 32]>> {
    let Some(file) = pending.open_file() else { return Ok(None) };
    let failed = |error| Error::io("read back", pending.path(), error);
    let region = Region { file: file.try_clone().map_err(failed)?.into(), start: 0 };
    region.sha256(size).map(Some)
}

/// The account of a split that is finished but for the names of its outputs.
pub(super) fn account(finisher: &Finisher<'_>, hashed: &[Hashed], report: &SplitReport) -> SplitRecord {
    let members = Members::new(finisher, file_name(&report.host), hashed);
    SplitRecord {
        input: InputRecord {
            file: finisher.identified.filename.to_string(),
            size: report.input_size,
            name: finisher.identified.identity.name.clone(),
            version: finisher.identified.identity.version.clone(),
        },
        overlay_root: Some(finisher.plan.root.clone()).filter(|root| !root.is_empty()),
        already_split: report.already_split,
        outputs: outputs(finisher, report),
        members: (0..finisher.input.members().len()).map(|member| members.record(member)).collect(),
    }
}

fn outputs(finisher: &Finisher<'_>, report: &SplitReport) -> Vec<OutputRecord> {
    let identity = &finisher.identified.identity;
    let wheel_file = &finisher.identified.wheel_file;
    let record = |kind, output: &Output, name: &str, metadata: &[u8]| {
        let Dependencies { requires, extras } = Dependencies::of(metadata);
        OutputRecord {
            kind,
            file: file_name(output),
            size: output.size,
            sha256: output.sha256.as_ref().map(|digest| hexadecimal(digest)),
            name: name.to_owned(),
            version: identity.version.clone(),
            build: finisher.identified.filename.build.clone(),
            tags: wheel_file.tags.iter().map(ToString::to_string).collect(),
            requires,
            extras,
            key: None,
            targets: Vec::new(),
        }
    };
    let mut outputs =
        vec![record(OutputKind::Host, &report.host, &identity.name, &finisher.plan.host.metadata)];
    if let (Some(output), Some(variant)) = (&report.variant, &finisher.plan.variant) {
        outputs.push(record(OutputKind::Variant, output, &identity.name, &variant.metadata));
    }
    for (device, plan) in report.devices.iter().zip(&finisher.plan.devices) {
        outputs.push(OutputRecord {
            key: Some(device.key.clone()),
            targets: device.targets.clone(),
            ..record(OutputKind::Device, &device.output, &device.name, &plan.metadata)
        });
    }
    outputs
}

/// Looks up where members went.
struct Members<'a> {
    finisher: &'a Finisher<'a>,
    hashed: &'a [Hashed],
    host: String,
    /// Members that the host wheel has.
    kept: HashSet<usize>,
    /// Members that repeat the name of an earlier one.
    repeated: HashSet<usize>,
    /// Members that a device wheel has, and its file name.
    moved: HashMap<usize, String>,
    /// File names of the device wheels, by bundle key.
    devices: HashMap<&'a str, String>,
    /// Archives by the name of their processor or target.
    archives: HashMap<&'a str, &'a ArchivePlan>,
}

impl<'a> Members<'a> {
    fn new(finisher: &'a Finisher<'a>, host: String, hashed: &'a [Hashed]) -> Self {
        let plan = finisher.plan;
        let format = finisher.context.options.output_format;
        let mut seen = HashSet::new();
        let members = finisher.input.members().iter().enumerate();
        let repeated = members
            .filter(|(_, member)| !seen.insert(member.name.as_str()))
            .map(|(index, _)| index)
            .collect();
        let devices: HashMap<&str, String> = plan
            .devices
            .iter()
            .map(|device| (device.bundle.key.as_str(), output_name(&device.filename, format)))
            .collect();
        let moved = plan
            .devices
            .iter()
            .flat_map(|device| {
                device.files.iter().map(|&file| (file, devices[device.bundle.key.as_str()].clone()))
            })
            .collect();
        Self {
            finisher,
            hashed,
            host,
            kept: plan.host.body.iter().chain(&plan.host.dist_info).copied().collect(),
            repeated,
            moved,
            devices,
            archives: plan.archives.archives.iter().map(|plan| (plan.archive.name(), plan)).collect(),
        }
    }

    fn record(&self, index: usize) -> MemberRecord {
        let Finisher { input, identified, classified, plan, .. } = *self.finisher;
        let member = &input.members()[index];
        let mut record = MemberRecord {
            path: member.name.clone(),
            size: member.size,
            sha256: hexadecimal(&classified[index].sha256),
            fate: Fate::Dropped,
            to: None,
            why: None,
            rewritten: None,
            bundles: Vec::new(),
            kept: Vec::new(),
            code: Vec::new(),
        };
        let name = member.name.as_str();
        if let Some(device) = self.moved.get(&index) {
            (record.fate, record.to) = (Fate::Moved, Some(device.clone()));
        } else if self.kept.contains(&index) {
            record.fate = Fate::Kept;
            record.to = Some(self.host.clone());
            if name == identified.path("METADATA") && plan.host.metadata != identified.metadata {
                record.fate = Fate::Rewritten;
            }
            if let Ok(found) = plan.binaries.binary_search_by_key(&index, |binary| binary.member) {
                self.split(&mut record, &plan.binaries[found]);
            }
        } else if self.repeated.contains(&index) {
            record.why = Some("it repeats an earlier member of the same name, byte for byte".to_owned());
        } else if name == identified.path("RECORD") {
            (record.fate, record.to) = (Fate::Rewritten, Some(self.host.clone()));
        } else if record::SIGNATURES.iter().any(|file| identified.path(file) == name) {
            record.why = Some("the signature no longer holds".to_owned());
        } else if member.is_directory() {
            record.why = Some("all its files moved to device wheels".to_owned());
        } else {
            record.why = Some("its device wheel was not asked for".to_owned());
        }
        record
    }

    fn split(&self, record: &mut MemberRecord, binary: &Binary) {
        record.fate = Fate::Split;
        record.bundles = (binary.fat.bundles.iter())
            .map(|bundle| Place { offset: bundle.offset, length: bundle.length })
            .collect();
        let (mut offset, mut at, mut overwritten) = (0, 0, 0);
        for edit in binary.plan.edits.edits() {
            let length = edit.consumes();
            if matches!(edit, Edit::Keep(_) | Edit::Replace(_)) {
                // A table may stand where a bundle was.
                for Place { offset: start, length } in outside(offset, length, &record.bundles) {
                    if let Edit::Replace(_) = edit {
                        overwritten += length;
                    }
                    let kept = Kept { offset: start, length, at: at + (start - offset) };
                    let ends_here = |last: &&mut Kept| {
                        (last.offset + last.length, last.at + last.length) == (kept.offset, kept.at)
                    };
                    match record.kept.last_mut().filter(ends_here) {
                        Some(last) => last.length += length,
                        None => record.kept.push(kept),
                    }
                }
            }
            offset += length;
            at += edit.produces();
        }
        if let Ok(found) = self.hashed.binary_search_by_key(&binary.member, |hashed| hashed.member) {
            let Hashed { size, sha256, .. } = &self.hashed[found];
            record.rewritten = Some(Rewritten { size: *size, sha256: hexadecimal(sha256), overwritten });
        }
        record.code = self.code(binary);
    }

    /// The device code of a binary by target, in the order of the names.
    fn code(&self, binary: &Binary) -> Vec<CodeRecord> {
        let layout = self.finisher.context.options.kpack_layout;
        let mut sums: HashMap<EntryId, (u64, u64)> = HashMap::new();
        for entry in binary.fat.bundles.iter().flat_map(|bundle| &bundle.header.entries) {
            let sum = sums.entry(entry.id).or_default();
            *sum = (sum.0 + 1, sum.1 + entry.size);
        }
        let mut code: Vec<CodeRecord> = sums
            .into_iter()
            .filter_map(|(id, (objects, bytes))| {
                let (target, archive) = match id {
                    EntryId::Host => return None,
                    EntryId::Spirv => ("spirv".to_owned(), None),
                    EntryId::Device(target) => {
                        let name = match layout {
                            KpackLayout::PerProcessor => target.processor.as_str().to_owned(),
                            KpackLayout::PerTarget => target.to_string(),
                        };
                        (target.to_string(), self.archives.get(name.as_str()).filter(|plan| plan.written))
                    }
                };
                Some(CodeRecord {
                    target,
                    objects,
                    bytes,
                    archive: archive.map(|plan| plan.path.clone()),
                    to: archive.and_then(|plan| self.devices.get(plan.key.as_str()).cloned()),
                })
            })
            .collect();
        code.sort_by(|a, b| a.target.cmp(&b.target));
        code
    }
}

/// The parts of a range that are in none of `bundles`, which are in the order of the file.
fn outside(offset: u64, length: u64, bundles: &[Place]) -> Vec<Place> {
    let (mut parts, mut at, end) = (Vec::new(), offset, offset + length);
    let first = bundles.partition_point(|bundle| bundle.offset + bundle.length <= offset);
    for bundle in bundles.iter().skip(first).take_while(|bundle| bundle.offset < end) {
        if bundle.offset > at {
            parts.push(Place { offset: at, length: bundle.offset - at });
        }
        at = at.max(bundle.offset + bundle.length);
    }
    if at < end {
        parts.push(Place { offset: at, length: end - at });
    }
    parts
}

fn file_name(output: &Output) -> String {
    output.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_of_bundles() {
        let places = |places: &[(u64, u64)]| -> Vec<Place> {
            places.iter().map(|&(offset, length)| Place { offset, length }).collect()
        };
        let bundles = places(&[(10, 5), (15, 5), (30, 10)]);
        for (range, expected) in [
            ((0, 10), &[(0, 10)][..]),
            ((0, 100), &[(0, 10), (20, 10), (40, 60)]),
            ((12, 20), &[(20, 10)]),
            ((10, 10), &[]),
            ((35, 0), &[]),
            ((40, 2), &[(40, 2)]),
        ] {
            assert_eq!(outside(range.0, range.1, &bundles), places(expected), "{range:?}");
        }
    }
}
