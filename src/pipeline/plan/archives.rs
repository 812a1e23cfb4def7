//! Which code object goes into which archive, under which keys.
//!
//! A code object is a range of a bundle. Entries of one bundle that name the same range are one object; so are, in
//! the archive, objects with the same bytes (the writer sees to that).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::binaries::Binary;
use crate::arch::table::{ArchTable, Bundle};
use crate::arch::target_id::{Processor, TargetId};
use crate::error::{Error, Result};
use crate::fatbin::walk::{LocatedBundle, Storage};
use crate::io::Input;
use crate::kpack::completeness::{Archive, ArchiveEntry, Catalog, Layout};
use crate::kpack::{file_name, format};
use crate::options::KpackLayout;
use crate::pipeline::item::{ArchiveIndex, Cut, CutIndex, Extent};
use crate::wheel::filename::WheelFilename;

/// One archive.
#[derive(Debug)]
pub struct ArchivePlan {
    /// What it lists and how it answers.
    pub archive: Archive,
    /// Path in the device wheel.
    pub path: String,
    /// Bundle key of the device wheel.
    pub key: String,
    /// Whether a device wheel has it. If not, others copy code objects from it.
    pub written: bool,
    /// Code objects of generic targets that are copied from another archive when the stream is over.
    pub fills: Vec<(CutIndex, ArchiveIndex)>,
    /// The first code object that is streamed into it.
    pub first_cut: CutIndex,
    /// It will not be larger than this, in bytes.
    pub at_most: u64,
}

/// A wrapper that archives answer for: the binary, and the code-object index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Index of the binary.
    pub binary: usize,
    /// Code-object index.
    pub index: u32,
}

/// All archives and code objects of a split.
#[derive(Debug, Default)]
pub struct Archives {
    /// Every wrapper with its code, numbered as [`kernels`](Self::kernels).
    pub catalog: Catalog,
    /// What the catalog's kernels are.
    pub kernels: Vec<Kernel>,
    /// Code objects to store, in the order of output.
    pub cuts: Vec<Cut>,
    /// Which cut a code object of the catalog is; `None` if no archive stores it.
    pub cut_of_code: Vec<Option<CutIndex>>,
    /// The archives.
    pub archives: Vec<ArchivePlan>,
    /// For each binary, where its device code lies.
    pub extents: Vec<Vec<Extent>>,
}

impl Archives {
    /// The entries of an archive's table of contents, with the cut that each names.
    pub fn entries<'a>(
        &'a self,
        plan: &'a ArchivePlan,
    ) -> impl Iterator<Item = (ArchiveEntry, Kernel, CutIndex)> + 'a {
        plan.archive.entries(&self.catalog).filter_map(|entry| {
            let kernel = *self.kernels.get(entry.kernel as usize)?;
            Some((entry, kernel, (*self.cut_of_code.get(entry.code as usize)?)?))
        })
    }
}

/// A code object: a distinct range of one bundle, and the processors whose code it is.
struct Object {
    range: Range<u64>,
    processors: BTreeSet<Processor>,
}

/// The archives' place in the outputs.
pub struct Placement<'a> {
    /// The overlay root.
    pub root: &'a str,
    /// Group name.
    pub group: &'a str,
    /// Processor to bundle.
    pub table: &'a ArchTable,
    /// The bundles that get a wheel.
    pub keys: &'a BTreeMap<String, Bundle>,
    /// One archive per what.
    pub layout: KpackLayout,
    /// The host wheel's file name, for its tags.
    pub filename: &'a WheelFilename,
}

/// The device code of a bundle: host entries, and SPIR-V that is dropped, left out.
fn device_entries(bundle: &LocatedBundle) -> impl Iterator<Item = (TargetId, Range<u64>)> {
    // Offsets of a plain bundle count from its start in the file, those of a compressed one from that of its content.
    let base = match bundle.storage {
        Storage::Plain => bundle.offset,
        Storage::Compressed { .. } => 0,
    };
    bundle.header.device_entries().map(move |(target, entry)| {
        // The parser has checked that entries lie inside the bundle; an empty one may stand anywhere.
        let start = if entry.size == 0 { base } else { base + entry.offset };
        (target, start..start + entry.size)
    })
}

/// The processors that `binaries` have code for.
pub fn processors(binaries: &[Binary]) -> BTreeSet<Processor> {
    let bundles = binaries.iter().flat_map(|binary| &binary.fat.bundles);
    bundles.flat_map(device_entries).map(|(target, _)| target.processor).collect()
}

/// Plans the archives of all `binaries`, which are in the order of the members.
pub fn plan(input: &Input, binaries: &[Binary], placement: &Placement<'_>) -> Result<Archives> {
    if placement.layout == KpackLayout::PerTarget && placement.filename.tags.is_windows() {
        return Err(Error::usage(
            "--kpack-layout per-target makes file names with a colon, which Windows does not have",
        ));
    }
    let mut objects: Vec<Object> = Vec::new();
    // For each binary and bundle, the numbers of its objects, which are in the order of their ranges.
    let mut of_bundle: Vec<Vec<Range<usize>>> = Vec::new();
    let mut result = Archives::default();
    for (number, binary) in binaries.iter().enumerate() {
        let in_member = |fault| Error::from(fault).in_member(&input.members()[binary.member].name);
        let mut ranges = Vec::with_capacity(binary.fat.bundles.len());
        let mut codes = Vec::with_capacity(binary.fat.bundles.len());
        for bundle in &binary.fat.bundles {
            let first = objects.len();
            codes.push(objects_of(bundle, &mut objects));
            ranges.push(first..objects.len());
        }
        of_bundle.push(ranges);
        let mut add = |index: usize, bundle: usize| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            result.catalog.add(codes[bundle].iter().copied()).map_err(in_member)?;
            result.kernels.push(Kernel { binary: number, index });
            Ok::<_, Error>(())
        };
        let wrappers = &binary.fat.bundle_of_wrapper;
        for (index, bundle) in wrappers.iter().enumerate() {
            if let Some(bundle) = bundle {
                add(index, *bundle)?;
            }
        }
        // Nothing is lost: code that no wrapper points at is archived under indices that no wrapper has.
        let dead = (0..codes.len()).filter(|bundle| !wrappers.contains(&Some(*bundle)));
        for (index, bundle) in dead.enumerate() {
            add(wrappers.len() + index, bundle)?;
        }
    }
    let layout = match placement.layout {
        KpackLayout::PerProcessor => Layout::PerProcessor,
        KpackLayout::PerTarget => Layout::PerTarget,
    };
    let generic_of =
        |processor: Processor| Processor::parse(placement.table.generic_of(processor.as_str())?).ok();
    for archive in result.catalog.archives(layout, generic_of) {
        let name = archive.name();
        let key = placement.table.bundle_of(name)?.into_bundle().key;
        let path = format!("{}/.kpack/{}", placement.root, file_name(placement.group, name));
        let written = placement.keys.contains_key(&key);
        result.archives.push(ArchivePlan {
            archive,
            path,
            key,
            written,
            fills: Vec::new(),
            first_cut: CutIndex::MAX,
            at_most: 0,
        });
    }
    let stored = store(&mut result, &objects, layout);
    number_cuts(&mut result, binaries, &of_bundle, &objects, &stored);
    for plan in &mut result.archives {
        for fill in &mut plan.fills {
            // Until now, the number of the code object.
            fill.0 = result.cut_of_code[fill.0].unwrap_or(CutIndex::MAX);
        }
        plan.fills.sort_unstable();
    }
    bound_sizes(&mut result, binaries);
    Ok(result)
}

/// Adds the objects of a bundle to `objects`. Which target is which object.
fn objects_of(bundle: &LocatedBundle, objects: &mut Vec<Object>) -> Vec<(TargetId, u32)> {
    let first = objects.len();
    let mut entries: Vec<(TargetId, Range<u64>)> = device_entries(bundle).collect();
    entries.sort_by_key(|(_, range)| (range.start, range.end));
    let mut codes = Vec::with_capacity(entries.len());
    for (target, range) in entries {
        if objects.len() == first || objects.last().is_none_or(|last| last.range != range) {
            objects.push(Object { range, processors: BTreeSet::new() });
        }
        if let Some(object) = objects.last_mut() {
            object.processors.insert(target.processor);
        }
        // The catalog refuses more than 2^32 code objects.
        codes.push((target, u32::try_from(objects.len() - 1).unwrap_or(u32::MAX)));
    }
    codes
}

/// For each object the archives that it is streamed into. Objects of a generic target that an exact processor's
/// archive needs too become fills.
fn store(result: &mut Archives, objects: &[Object], layout: Layout) -> Vec<Vec<ArchiveIndex>> {
    let mut stored: Vec<Vec<ArchiveIndex>> = vec![Vec::new(); objects.len()];
    let by_name: HashMap<String, ArchiveIndex> = result
        .archives
        .iter()
        .enumerate()
        .map(|(index, plan)| (plan.archive.name().to_owned(), index))
        .collect();
    for index in 0..result.archives.len() {
        if !result.archives[index].written {
            continue;
        }
        for code in result.archives[index].archive.codes(&result.catalog) {
            let object = code as usize;
            let name = result.archives[index].archive.name();
            let own = layout == Layout::PerTarget
                || objects[object].processors.iter().any(|processor| processor.as_str() == name);
            if own {
                stored[object].push(index);
                continue;
            }
            // It stands in the archive of one of its processors, be that written or not.
            let source =
                objects[object].processors.iter().find_map(|processor| by_name.get(processor.as_str()));
            if let Some(&source) = source {
                result.archives[index].fills.push((object, source));
                stored[object].push(source);
            }
        }
    }
    for archives in &mut stored {
        archives.sort_unstable();
        archives.dedup();
    }
    stored
}

/// Numbers the objects that are stored in the order in which they stream by, and notes where they lie.
fn number_cuts(
    result: &mut Archives,
    binaries: &[Binary],
    of_bundle: &[Vec<Range<usize>>],
    objects: &[Object],
    stored: &[Vec<ArchiveIndex>],
) {
    result.cut_of_code = vec![None; objects.len()];
    for (binary, ranges) in binaries.iter().zip(of_bundle) {
        let mut extents = Vec::new();
        for (bundle, range) in binary.fat.bundles.iter().zip(ranges) {
            let first = result.cuts.len();
            for object in range.clone().filter(|&object| !stored[object].is_empty()) {
                let cut = result.cuts.len();
                result.cut_of_code[object] = Some(cut);
                result
                    .cuts
                    .push(Cut { range: objects[object].range.clone(), archives: stored[object].clone() });
                for &archive in &stored[object] {
                    let plan = &mut result.archives[archive];
                    plan.first_cut = plan.first_cut.min(cut);
                }
            }
            let cuts = first..result.cuts.len();
            match &bundle.storage {
                Storage::Plain => extents.extend(cuts.map(Extent::Plain)),
                // Not decoded at all if none of it is stored.
                Storage::Compressed { .. } if cuts.is_empty() => {}
                Storage::Compressed { header, payload, window } => extents.push(Extent::Compressed {
                    header: *header,
                    payload: payload.clone(),
                    window: *window,
                    cuts,
                }),
            }
        }
        result.extents.push(extents);
    }
}

/// The largest size that each archive can have: whether its zip entry needs room for ZIP64 must be known beforehand.
fn bound_sizes(result: &mut Archives, binaries: &[Binary]) {
    // An incompressible zstd frame is larger than its content by 1/256 and some bytes; alignment takes up to 63.
    let frame = |size: u64| size + size / 128 + 256;
    let bounds: Vec<u64> = result
        .archives
        .iter()
        .map(|plan| {
            let entries: u64 = result
                .entries(plan)
                .map(|(_, kernel, _)| binaries[kernel.binary].kernel_name.len() as u64 + 128)
                .sum();
            let fills: u64 = plan
                .fills
                .iter()
                .filter_map(|fill| result.cuts.get(fill.0))
                .map(|cut| frame(cut.size()))
                .sum();
            format::HEADER_LEN + 4096 + entries + fills
        })
        .collect();
    for (plan, bound) in result.archives.iter_mut().zip(bounds) {
        plan.at_most = bound;
    }
    for cut in &result.cuts {
        for &archive in &cut.archives {
            result.archives[archive].at_most += frame(cut.size());
        }
    }
}

/// The bundles of the processors that only generic code in a written archive serves.
pub fn served(archives: &[ArchivePlan], table: &ArchTable) -> Result<Vec<Bundle>> {
    let mut served = Vec::new();
    for plan in archives.iter().filter(|plan| plan.written) {
        for member in table.members_of_generic(plan.archive.name()).unwrap_or_default() {
            served.push(table.bundle_of(member)?.into_bundle());
        }
    }
    Ok(served)
}
