//! Splits the wheels of a command line, one after the other, each all or nothing by itself: one that cannot be split
//! does not take the others with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::args::Run;
use super::{ExitCode, Show, json, progress, report};
use crate::error::{Error, ErrorKind, Result};
use crate::io::output::{self, Pending};
use crate::manifest::{Failure, Manifest};
use crate::options::{SplitOptions, SplitReport};

/// Splits them all. The exit code is that of the first failure.
pub(super) fn run(run: &Run, show: Show) -> ExitCode {
    let mut state =
        State { manifest: Manifest::new(), code: ExitCode::Done, taken: run.options.taken.clone() };
    let file = match run.manifest.as_deref().map(ManifestFile::open).transpose() {
        Ok(file) => file,
        Err(error) => return state.failed(&error),
    };
    let several = run.inputs.len() > 1;
    let mut unsplit: Vec<&Path> = Vec::new();
    let (mut interrupted, mut shown) = (false, false);
    for input in &run.inputs {
        if interrupted {
            unsplit.push(input);
            continue;
        }
        let options =
            SplitOptions { input: input.clone(), taken: state.taken.clone(), ..run.options.clone() };
        match with_progress(options, show) {
            Ok(mut report) => {
                if shown && !show.quiet && !show.json {
                    report::gap();
                }
                shown = true;
                let said = say(&report, input, several, show);
                state.done(&mut report);
                state.said(said);
            }
            Err(error) => {
                state.failed(&error);
                if several && show.json {
                    state.said(json::failure(input, &error));
                }
                interrupted = matches!(error.kind(), ErrorKind::Interrupted);
                unsplit.push(input);
                state
                    .manifest
                    .failed
                    .push(Failure { input: input.to_string_lossy().into_owned(), error: error.to_string() });
            }
        }
    }
    if several && !unsplit.is_empty() {
        report::unsplit(&unsplit, run.inputs.len());
    }
    // Without a split there is nothing new anywhere, and so no manifest.
    if let Some(file) = file.filter(|_| !state.manifest.splits.is_empty())
        && let Err(error) = file.write(&state.manifest)
    {
        state.failed(&error);
    }
    state.code
}

/// What is known after some of the wheels.
struct State {
    manifest: Manifest,
    code: ExitCode,
    /// File names that the wheels so far have taken.
    taken: BTreeSet<String>,
}

impl State {
    fn done(&mut self, report: &mut SplitReport) {
        let outputs = std::iter::once(&report.host).chain(&report.variant);
        let outputs = outputs.chain(report.devices.iter().map(|device| &device.output));
        let names = outputs.filter_map(|output| output.path.file_name()?.to_str());
        self.taken.extend(names.map(str::to_owned));
        self.manifest.splits.extend(report.record.take());
    }

    /// A result that standard output could not take is a failure, unless whoever reads has seen enough.
    fn said(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            let error = Error::io("write the result to standard output", None, error);
            self.failed(&error.with_hint("the wheels themselves are complete"));
        }
    }

    /// Says what went wrong. The code of the run so far.
    fn failed(&mut self, error: &Error) -> ExitCode {
        report::failure(error);
        if self.code == ExitCode::Done {
            self.code = ExitCode::of(error);
        }
        self.code
    }
}

fn with_progress(mut options: SplitOptions, show: Show) -> Result<SplitReport> {
    let bar = (!show.quiet).then(progress::Bar::new).flatten().map(Arc::new);
    options.progress = bar.as_ref().map(|bar| Arc::clone(bar) as Arc<_>);
    let result = crate::split(&options);
    if let Some(bar) = bar {
        bar.clear();
    }
    result
}

fn say(report: &SplitReport, input: &Path, several: bool, show: Show) -> io::Result<()> {
    if !show.quiet {
        report::warnings(report, several.then_some(input));
    }
    let printed = match (show.json, show.quiet) {
        (true, _) => json::print(input, report, show.timings),
        (false, false) => report::summary(report, show.verbose),
        (false, true) => Ok(()),
    };
    if show.timings && !show.json {
        report::timings(report);
    }
    printed
}

/// Where the manifest goes.
struct ManifestFile {
    path: PathBuf,
    /// Open already, if its directory exists: that it cannot be written should show before hours of work.
    pending: Option<Pending>,
}

impl ManifestFile {
    fn open(path: &Path) -> Result<Self> {
        if path.is_dir() || path.file_name().is_none() {
            return Err(Error::usage(format!("--manifest {} is no file name", path.display())));
        }
        let mut file = Self { path: path.to_owned(), pending: None };
        if file.directory().is_dir() {
            file.pending = Some(file.create()?);
        }
        Ok(file)
    }

    fn directory(&self) -> &Path {
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn create(&self) -> Result<Pending> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        Pending::file(self.directory(), &name)
    }

    fn write(mut self, manifest: &Manifest) -> Result<()> {
        let failed = |error| Error::io("write", self.path.clone(), error);
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => {
                fs::create_dir_all(self.directory()).map_err(failed)?;
                self.create()?
            }
        };
        let Some(file) = pending.open_file() else { return Ok(()) };
        let mut out = BufWriter::new(file);
        serde_json::to_writer_pretty(&mut out, manifest).map_err(|error| failed(error.into()))?;
        out.write_all(b"\n").and_then(|()| out.flush()).map_err(failed)?;
        drop(out);
        output::commit(&mut [pending]).map(|_| ())
    }
}
