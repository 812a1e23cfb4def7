//! What a caller can ask for, and what it is told afterwards.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use crate::arch::UnknownArch;
use crate::manifest::SplitRecord;
use crate::wheel::rules::{Rules, Wants};
use crate::wheel::variant;

/// The options of one split. [`SplitOptions::new`] gives the defaults; set the fields that are to differ. More may come.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SplitOptions {
    /// The wheel, or the directory that it was unpacked into; `-` for standard input.
    pub input: PathBuf,
    /// The wheel's file name, for a pipe: its tags need not be those in its WHEEL file. `None`: as `.dist-info` has it.
    pub input_name: Option<String>,
    /// Where a pipe is spooled. A redirected file is not.
    pub spool: SpoolTo,
    /// Where the outputs go; made if it does not exist.
    pub output_dir: PathBuf,
    /// Directory of the wheel that `.kpack/` is placed in. `None`: the one top-level directory with fat binaries.
    pub overlay_root: Option<String>,
    /// Device wheels are named `<prefix>-<key>`. `None`: `amd-<name>-device`.
    pub device_package_prefix: Option<String>,
    /// More `Requires-Dist` entries for device wheels; `@GFXARCH@` stands for the bundle key.
    pub device_requires_dist: Vec<String>,
    /// Database handlers and presets by name (`torch-fat`, `rocblas`, ...).
    pub databases: Vec<String>,
    /// Globs with `{arch}` for other per-architecture files.
    pub device_files: Vec<String>,
    /// `.whl` files or directories.
    pub output_format: OutputFormat,
    /// How code objects are stored.
    pub scheme: Scheme,
    /// One archive per processor, or per target as the Python tool has it.
    pub kpack_layout: KpackLayout,
    /// Also write a variant wheel.
    pub variant: Option<VariantOptions>,
    /// Comma-separated bundle keys to keep, or with `!` to drop. `None`: keep all.
    pub archs: Option<String>,
    /// JSON text with more rows for the architecture table.
    pub arch_table: Option<String>,
    /// What becomes of processors that the table lacks. `None`: [`UnknownArch::Package`].
    pub unknown_arch: Option<UnknownArch>,
    /// What the project wants for its wheels, where the options above say nothing (`None`, or an empty list).
    pub rules: Option<Arc<Rules>>,
    /// Split binaries that have SPIR-V too, and drop it.
    pub drop_spirv: bool,
    /// Leave a binary whole in the host wheel if it cannot be rewritten safely.
    pub keep_unsupported: bool,
    /// Whether members must match the input's RECORD; a mismatch is a warning otherwise.
    pub verify_record: bool,
    /// Whether compressed bundles must match the MD5 in their header. The archive's CRC-32 and RECORD's SHA-256 cover
    /// the same bytes; this also notices what was damaged before the wheel was made. Costs as much as decoding.
    pub verify_bundles: bool,
    /// Whether the host wheel may replace the input.
    pub replace_input: bool,
    /// File names in the output directory that no output may take: those of other splits that belong together.
    pub taken: BTreeSet<String>,
    /// Whether to account for every output and member ([`SplitReport::record`]). Reads the outputs once more.
    pub manifest: bool,
    /// Worker threads, at least 1.
    pub jobs: usize,
    /// Peak resident set to aim for, in bytes. `None`: 96 MiB and 32 MiB per job. Less is slower, with the same
    /// outputs.
    pub memory_limit: Option<u64>,
    /// Wait until the outputs are on the disk before they get their names.
    pub durable: bool,
    /// Time of new members in seconds since 1970 (SOURCE_DATE_EPOCH). `None`: the newest time in the input.
    pub source_date_epoch: Option<i64>,
    /// Set to true by the caller to stop the split; nothing is written then.
    pub interrupt: Option<Arc<AtomicBool>>,
    /// Told about progress while the split runs.
    pub progress: Option<Arc<dyn Progress>>,
}

impl SplitOptions {
    /// The defaults for splitting `input` into `output_dir`: as many jobs as cores, zstd level 3.
    pub fn new(input: impl Into<PathBuf>, output_dir: impl Into<PathBuf>) -> Self {
        Self {
            input: input.into(),
            input_name: None,
            spool: SpoolTo::OutputDir,
            output_dir: output_dir.into(),
            overlay_root: None,
            device_package_prefix: None,
            device_requires_dist: Vec::new(),
            databases: Vec::new(),
            device_files: Vec::new(),
            output_format: OutputFormat::Wheel,
            scheme: Scheme::Zstd(3),
            kpack_layout: KpackLayout::PerProcessor,
            variant: None,
            archs: None,
            arch_table: None,
            unknown_arch: None,
            rules: None,
            drop_spirv: false,
            keep_unsupported: false,
            verify_record: true,
            verify_bundles: false,
            replace_input: false,
            taken: BTreeSet::new(),
            manifest: false,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            memory_limit: None,
            durable: true,
            source_date_epoch: None,
            interrupt: None,
            progress: None,
        }
    }

    /// What applies to a distribution: what is said here, and for the rest the rules file.
    pub fn wants(&self, distribution: &str) -> Wants {
        let unless_empty = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let own = Wants {
            overlay_root: self.overlay_root.clone(),
            device_package_prefix: self.device_package_prefix.clone(),
            device_requires_dist: unless_empty(&self.device_requires_dist),
            databases: unless_empty(&self.databases),
            device_files: unless_empty(&self.device_files),
            archs: self.archs.clone(),
            unknown_arch: self.unknown_arch,
        };
        own.or(self.rules.as_ref().map(|rules| rules.wants(distribution)).unwrap_or_default())
    }
}

/// Where bytes from a pipe are kept until they have been read twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolTo {
    /// In a file without a name in the output directory.
    OutputDir,
    /// In memory.
    Memory,
    /// In a file without a name in another directory.
    Directory(PathBuf),
}

/// How code objects are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `none`: as they are.
    Stored,
    /// `zstd-per-kernel` at this level (1 to 22).
    Zstd(i32),
}

/// The form of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// `.whl` files.
    Wheel,
    /// Directories, as if the wheels had been unpacked.
    Directory,
}

/// How code objects are spread over archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KpackLayout {
    /// One complete archive per processor.
    PerProcessor,
    /// One archive per target ID, without aliases.
    PerTarget,
}

/// The variant wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantOptions {
    /// Goes before `.whl` of its file name.
    pub label: String,
    /// Profile of `variant.json`.
    pub format: variant::Format,
}

/// Watches a split. Called from several threads.
pub trait Progress: Send + Sync + std::fmt::Debug {
    /// The split will go through so many bytes in all.
    fn start(&self, total: u64);
    /// So many of them are done, in all.
    fn update(&self, done: u64);
}

/// What a split has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitReport {
    /// The host wheel.
    pub host: Output,
    /// Bytes of the input.
    pub input_size: u64,
    /// The variant wheel, if one was asked for.
    pub variant: Option<Output>,
    /// The device wheels, by bundle key.
    pub devices: Vec<DeviceOutput>,
    /// Fat binaries that were split, by path in the wheel.
    pub split_binaries: Vec<String>,
    /// What the user should know; one or more sentences each.
    pub warnings: Vec<String>,
    /// Whether the input was a host wheel already, and was copied.
    pub already_split: bool,
    /// Where the time went, by stage.
    pub timings: Vec<Timing>,
    /// Every output and where every member went, if [`SplitOptions::manifest`] asks for it.
    pub record: Option<SplitRecord>,
}

/// One output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, if [`SplitOptions::manifest`] asks for it and it is a file.
    pub sha256: Option<[u8; 32]>,
}

/// One device wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOutput {
    /// The wheel.
    pub output: Output,
    /// Distribution name.
    pub name: String,
    /// Bundle key.
    pub key: String,
    /// Targets that its archives have code for.
    pub targets: Vec<String>,
    /// Distinct code objects in its archives.
    pub code_objects: usize,
    /// Per-architecture files that moved here.
    pub files: usize,
}

/// The figures of one stage, summed over its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Name of the stage.
    pub stage: &'static str,
    /// Time at work.
    pub busy: Duration,
    /// Time waiting for input, for room in a queue, or for memory.
    pub waiting: Duration,
    /// Bytes that came in.
    pub bytes: u64,
    /// Members, chunks, objects or blocks.
    pub items: u64,
    /// The most items that waited for the stage at one time.
    pub deepest_queue: u64,
}
