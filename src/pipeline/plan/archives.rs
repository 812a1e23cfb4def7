//! Which code object goes into which archive, under which keys.
//!
//! A code object is a range of a bundle. Entries of one bundle that name the same range are one object; so are, in
//! the archive, objects with the same bytes (the writer sees to that).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::binaries::Binary;
use crate::arch::table::{ArchTable, Bundle};
use crate::arch::target_id::{Processor, TargetId};
use crate::error::{Error, Result};
use crate::fatbin::entry_id::EntryId;
use crate::fatbin::walk::Storage;
use crate::io::Input;
use crate::kpack::completeness::{self, Contents, WrapperCode};
use crate::options::{KpackLayout, SplitOptions};
use crate::pipeline::item::{ArchiveIndex, Cut, CutIndex, Extent};
use crate::wheel::filename::WheelFilename;

/// One archive.
#[derive(Debug)]
pub struct ArchivePlan {
    /// Processor, or with `--kpack-layout per-target` the target ID.
    pub name: String,
    /// Path in the device wheel.
    pub path: String,
    /// Bundle key of the device wheel.
    pub key: String,
    /// Whether a device wheel has it. If not, others copy code objects from it.
    pub written: bool,
    /// The targets that it answers for, sorted.
    pub targets: Vec<String>,
    /// TOC entries.
    pub entries: Vec<TocEntry>,
    /// Kernel keys by their index in [`TocEntry`].
    pub keys: Vec<String>,
    /// Code objects of generic targets that are copied from another archive when the stream is over.
    pub fills: Vec<(CutIndex, ArchiveIndex)>,
    /// The first code object that is streamed into it.
    pub first_cut: CutIndex,
    /// It will not be larger than this, in bytes.
    pub at_most: u64,
}

/// One entry of an archive's TOC.
#[derive(Clone, Copy, Debug)]
pub struct TocEntry {
    /// Index in [`ArchivePlan::keys`].
    pub key: u32,
    /// Index in [`ArchivePlan::targets`].
    pub target: u32,
    /// The code object that answers.
    pub cut: CutIndex,
}

/// All archives and code objects of a split.
#[derive(Debug)]
pub struct Archives {
    /// Code objects in the order of output.
    pub cuts: Vec<Cut>,
    /// The archives.
    pub archives: Vec<ArchivePlan>,
    /// For each binary, where its device code lies.
    pub extents: Vec<Vec<Extent>>,
}

/// A distinct range of one bundle.
struct Object {
    range: Range<u64>,
    targets: Vec<TargetId>,
}

/// The processors that `binaries` have code for.
pub fn processors(binaries: &[Binary]) -> BTreeSet<Processor> {
    device_entries(binaries).map(|target| target.processor).collect()
}

fn device_entries(binaries: &[Binary]) -> impl Iterator<Item = TargetId> {
    binaries.iter().flat_map(|binary| &binary.fat.bundles).flat_map(|bundle| {
        bundle.header.entries.iter().filter_map(|entry| match entry.id {
            EntryId::Device(target) => Some(target),
            EntryId::Host | EntryId::Spirv => None,
        })
    })
}
