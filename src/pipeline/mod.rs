//! The stream: stages over bounded channels, in two passes.
//!
//! ```text
//! identify    .dist-info of the input
//! ── pass 1: every member, in parallel; nothing is written ──
//! classify    inflate once: magic, CRC-32, SHA-256; fat binaries by random access
//! plan        targets, archives, device wheels, names, METADATA; an edit plan per binary
//! ── pass 2: one reader, workers, two writers ──
//! rewrite     members in order through the edit plans  ──┬─ blocks ──► deflate ─► emit::host
//! unbundle    code objects out of members and CCOBs    ──┴─ objects ─► compress ► emit::archives
//! finish      TOCs, RECORDs, central directories, in parallel
//! commit      all names at once, or none
//! ```
//!
//! Memory: every buffer in a queue holds a grant of its producer's [`budget`]; see there why that cannot deadlock.
//! Order: everything that is written has a ticket (a cut's index, or a step's number), so the outputs do not depend
//! on the number of threads.

pub mod archive;
pub mod budget;
pub mod cancel;
pub mod classify;
pub mod compress;
pub mod emit;
pub mod finish;
pub mod identify;
pub mod item;
pub mod limits;
pub mod meter;
pub mod plan;
pub mod rewrite;
pub mod sink;
pub mod stats;
pub mod unbundle;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use cancel::Cancel;
use finish::Finisher;
use meter::Meter;
use stats::Stats;

use crate::error::{Error, Result};
use crate::io::Input;
use crate::io::output::{self, Pending};
use crate::options::{OutputFormat, SplitOptions, SplitReport};

mod stream;

/// Splits the wheel. See [`crate::split`].
pub fn split(options: &SplitOptions) -> Result<SplitReport> {
    let in_wheel = |error: Error| error.in_wheel(&options.input);
    let cancel = Arc::new(Cancel::new(options.interrupt.clone()));
    let input = Input::open(&options.input).map_err(in_wheel)?;
    let mut warnings = Vec::new();
    let stats = Stats::default();
    let mut run = || -> Result<SplitReport> {
        let mut identified = identify::identify(&input)?;
        warnings.append(&mut identified.warnings);
        let host_name = plan::wheels::output_name(&identified.filename, options.output_format);
        protect_input(&input, &options.output_dir.join(&host_name), options)?;
        let meter = Meter::new(
            2 * input.members().iter().map(|member| member.size).sum::<u64>(),
            options.progress.clone(),
        );
        let mut classified =
            classify::classify(&input, &identified, options, &cancel, &meter, &stats, &mut warnings)?;
        let mut lap = stats.plan.lap();
        let plan = plan::plan(&input, &identified, &mut classified, options, &cancel, &mut warnings)?;
        lap.worked(0);
        let created = OutputDirectory::prepare(&options.output_dir)?;
        let streamed = stream::stream(&input, &plan, &host_name, options, &cancel, &meter, &stats)?;
        let mut lap = stats.finish.lap();
        let finisher = Finisher {
            input: &input,
            identified: &identified,
            classified: &classified,
            plan: &plan,
            options,
            cancel: &cancel,
        };
        let (mut pending, report) = finisher.finish(streamed)?;
        lap.worked(0);
        input.verify_unchanged()?;
        cancel.check()?;
        commit(&mut pending)?;
        created.keep();
        Ok(report)
    };
    let mut report = run().map_err(in_wheel)?;
    report.warnings = warnings;
    report.timings = stats.timings();
    Ok(report)
}

fn commit(pending: &mut [Pending]) -> Result<()> {
    output::commit(pending).map(drop)
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

/// The output directory. If it was made for this split and the split fails, it goes again.
#[derive(Debug)]
struct OutputDirectory {
    made: Vec<PathBuf>,
}

impl OutputDirectory {
    fn prepare(path: &Path) -> Result<Self> {
        let mut made = Vec::new();
        let mut missing = Some(path);
        while let Some(directory) = missing.filter(|path| !path.as_os_str().is_empty() && !path.exists()) {
            made.push(directory.to_owned());
            missing = directory.parent();
        }
        let prepared = Self { made };
        fs::create_dir_all(path).map_err(|error| Error::io("create", path.to_owned(), error))?;
        if !path.is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(Error::io("write in", path.to_owned(), error));
        }
        Ok(prepared)
    }

    fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for OutputDirectory {
    fn drop(&mut self) {
        for directory in &self.made {
            // Only if it is empty, which is the point.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Whether deflated bytes are wanted.
fn deflates(options: &SplitOptions) -> bool {
    options.output_format == OutputFormat::Wheel
}
