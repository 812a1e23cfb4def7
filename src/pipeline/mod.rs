//! The stream: stages over bounded channels, in two passes.
//!
//! ```text
//! receive     a pipe only: spool it; classify and unbundle what arrives
//! identify    .dist-info of the input
//! ── pass 1: every member, in parallel; no wheel is written ──
//! classify    inflate once: magic, CRC-32, SHA-256; fat binaries by random access
//!   scan      what is spotted on the way ─► ahead: unbundle ─► compress ─► early: kept frames
//! plan        targets, archives, device wheels, names, METADATA; an edit plan per binary
//! ── pass 2: one reader, workers, two writers ──
//! rewrite     members in order through the edit plans  ──┬─ blocks ──► deflate ─► emit::host
//! unbundle    code objects that are not there yet      ──┴─ objects ─► compress ► emit::archives
//! finish      TOCs, RECORDs, central directories, in parallel
//! commit      all names at once, or none
//! ```
//!
//! Memory: every buffer in a queue holds a grant of its producer's [`budget`]; see there why that cannot deadlock.
//! Order: everything that is written has a ticket (a cut's index, or a step's number), so the outputs do not depend
//! on the number of threads.

pub mod account;
pub mod ahead;
pub mod archive;
pub mod budget;
pub mod cancel;
pub mod classify;
pub mod compress;
pub mod decode;
pub mod early;
pub mod emit;
pub mod finish;
pub mod identify;
pub mod item;
pub mod limits;
pub mod meter;
pub mod plan;
pub mod receive;
pub mod rewrite;
pub mod scan;
pub mod sink;
pub mod spot;
pub mod stats;
pub mod unbundle;
pub mod workers;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cancel::Cancel;
use finish::Finisher;
use meter::Meter;
use receive::Received;
use stats::Stats;

use crate::error::{Error, Result};
use crate::io::Input;
use crate::io::output;
use crate::options::{OutputFormat, SplitOptions, SplitReport};
use crate::zip::records::dos_time;

mod stream;

/// What every stage may look at.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// What the user wants.
    pub options: &'a SplitOptions,
    /// Whether to go on.
    pub cancel: &'a Arc<Cancel>,
    /// Counters for `--timings`.
    pub stats: &'a Stats,
}

/// Splits the wheel (or unpacked wheel, or pipe) [`SplitOptions::input`] into wheels in [`SplitOptions::output_dir`].
///
/// # What is written
/// The host wheel, under the input's file name; a device wheel for each bundle key that has code or moved files and
/// is not left out by [`SplitOptions::archs`]; a variant wheel if [`SplitOptions::variant`] asks for one. With
/// [`OutputFormat::Directory`], directories in the place of the wheels. The report names them all. A host wheel
/// that was split before is copied, and nothing else written: see [`SplitReport::already_split`].
///
/// # All or nothing
/// Until the last step the outputs are files without a name, or where the system has none, hidden ones that are
/// removed again; directories are hidden until then everywhere. Then all get their names together. Files of the
/// same names are replaced, and put back if a later name cannot be given. On an error, the output directory is as
/// it was; if it did not exist, it does not exist. A process that is killed leaves nothing where files without a
/// name exist (Linux), unless that happens during the renames themselves.
///
/// # Errors
/// By [`ErrorKind`](crate::ErrorKind):
/// - `Input`: the wheel or a member of it is damaged, or not supported. Of several failing members, the first in
///   the wheel's order is reported;
/// - `NothingToSplit`: no fat binary, or none that can be split; the message says why for each;
/// - `Usage`: an option makes no sense, or does not fit the wheel (an overlay root that does not exist, `archs` that
///   leaves nothing, a host wheel that would replace the input);
/// - `Io`: the operating system refused something, or the input changed while it was read;
/// - `Interrupted`: [`SplitOptions::interrupt`] became true.
pub fn split(options: &SplitOptions) -> Result<SplitReport> {
    let cancel = Arc::new(Cancel::new(options.interrupt.clone()));
    let stats = Stats::default();
    let context = Context { options, cancel: &cancel, stats: &stats };
    let mut warnings = Vec::new();
    let mut report = run(&context, &mut warnings).map_err(|error| error.in_wheel(&options.input))?;
    report.warnings = warnings;
    report.timings = stats.timings();
    Ok(report)
}

fn run(context: &Context<'_>, warnings: &mut Vec<String>) -> Result<SplitReport> {
    let Context { options, cancel, stats } = *context;
    let output_directory = OutputDirectory::new(&options.output_dir);
    let (input, received) = open(context, &output_directory)?;
    let mut identified = identify::identify(&input, options.input_name.as_deref())?;
    warnings.append(&mut identified.warnings);
    let settings = plan::settings::Settings::of(options, &identified.identity.name)?;
    let host_name = plan::wheels::output_name(&identified.filename, options.output_format);
    protect_input(&input, &options.output_dir.join(&host_name), options)?;
    let total: u64 = input.members().iter().map(|member| member.size).sum();
    let meter = Meter::new(2 * total, options.progress.clone());
    output_directory.make()?;
    let (mut classified, early) =
        classify::classify(context, &settings, &input, &identified, received, &meter, warnings)?;
    let mut lap = stats.plan.lap();
    let plan =
        plan::plan(context, &settings, &input, &identified, &mut classified, early.is_some(), warnings)?;
    lap.worked(0);
    let streamed = stream::stream(context, &input, &plan, &host_name, early.as_ref(), &meter)?;
    let mut lap = stats.finish.lap();
    let finisher =
        Finisher { context, input: &input, identified: &identified, classified: &classified, plan: &plan };
    let (mut pending, report) = finisher.finish(streamed)?;
    lap.worked(0);
    input.verify_unchanged()?;
    cancel.check()?;
    output::commit(&mut pending)?;
    output_directory.keep();
    Ok(report)
}

/// Opens the input; a pipe is taken in first.
fn open(context: &Context<'_>, output_directory: &OutputDirectory<'_>) -> Result<(Input, Received)> {
    let options = context.options;
    if options.input.as_os_str() != "-" {
        return Ok((Input::open(&options.input)?, Received::default()));
    }
    if let Some(input) = Input::redirected()? {
        return Ok((input, Received::default()));
    }
    // What is made of the wheel while it arrives goes there, wherever the pipe itself is spooled.
    output_directory.make()?;
    receive::receive(context)
}

/// The input is never replaced by accident.
fn protect_input(input: &Input, host: &Path, options: &SplitOptions) -> Result<()> {
    let same = match (fs::canonicalize(input.path()), fs::canonicalize(host)) {
        (Ok(input), Ok(host)) => input == host,
        _ => false,
    };
    if same && !options.replace_input {
        return Err(Error::usage("the host wheel would replace the input")
            .with_hint("choose another --output-dir, or say --replace-input"));
    }
    Ok(())
}

/// The output directory. What of it is made for this split goes again if the split fails.
#[derive(Debug)]
struct OutputDirectory<'a> {
    path: &'a Path,
    /// The directories that did not exist, innermost first.
    missing: Vec<&'a Path>,
}

impl<'a> OutputDirectory<'a> {
    fn new(path: &'a Path) -> Self {
        let missing =
            path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        Self { path, missing }
    }

    fn make(&self) -> Result<()> {
        fs::create_dir_all(self.path).map_err(|error| Error::io("create", self.path.to_owned(), error))
    }

    fn keep(mut self) {
        self.missing.clear();
    }
}

impl Drop for OutputDirectory<'_> {
    fn drop(&mut self) {
        for directory in &self.missing {
            // Only if it is empty, which is the point.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Whether deflated bytes are wanted.
fn deflates(options: &SplitOptions) -> bool {
    options.output_format == OutputFormat::Wheel
}

/// The time of members that the input does not have: `SOURCE_DATE_EPOCH`, or the newest time in the input.
fn time_of_new_members(input: &Input, options: &SplitOptions) -> (u16, u16) {
    match options.source_date_epoch {
        Some(seconds) => dos_time(seconds),
        None => {
            input.members().iter().map(|member| member.attributes.when()).max().unwrap_or_else(|| dos_time(0))
        }
    }
}
