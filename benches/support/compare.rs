//! The split against the floor: on the same wheel, in turns, so that both meet the same weather.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::kernels::{Floor, floor};
use super::measure::{self, Run};
use super::table::{Table, median, mib};

/// How a wheel is measured.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The program.
    pub(crate) program: String,
    /// Times that split and floor take turns.
    pub(crate) runs: usize,
    /// Jobs of the split.
    pub(crate) jobs: usize,
    /// Where outputs go; each split's are removed after it.
    pub(crate) directory: PathBuf,
    /// Whether the split waits for the disk.
    pub(crate) sync: bool,
}

/// All runs on one wheel.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) name: String,
    pub(crate) jobs: usize,
    pub(crate) floors: Vec<Floor>,
    pub(crate) runs: Vec<Run>,
}

/// Splits `wheel` into `output`, which is emptied first.
pub(crate) fn split(settings: &Settings, wheel: &Path, output: &Path) -> io::Result<Run> {
    if output.exists() {
        std::fs::remove_dir_all(output)?;
    }
    let jobs = settings.jobs.to_string();
    let mut arguments = vec!["split".as_ref(), wheel.as_os_str(), "-o".as_ref(), output.as_os_str()];
    for argument in ["-q", "-j", &jobs, "--wheel-type", "torch-fat"] {
        arguments.push(argument.as_ref());
    }
    if !settings.sync {
        arguments.push("--no-sync".as_ref());
    }
    let run = measure::run(&settings.program, &arguments, Stdio::null())?;
    match run.success {
        true => Ok(run),
        false => Err(io::Error::other(format!("the split of {} failed", wheel.display()))),
    }
}

/// Measures one wheel.
pub(crate) fn compare(settings: &Settings, wheel: &Path) -> io::Result<Comparison> {
    let output = settings.directory.join("fatwheel-bench-output");
    let mut comparison = Comparison {
        name: wheel.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        jobs: settings.jobs,
        floors: Vec::new(),
        runs: Vec::new(),
    };
    split(settings, wheel, &output)?; // warms the page cache, is not counted
    for _ in 0..settings.runs {
        comparison.runs.push(split(settings, wheel, &output)?);
        comparison.floors.push(floor(wheel, &output).map_err(|error| io::Error::other(error.to_string()))?);
    }
    std::fs::remove_dir_all(&output)?;
    Ok(comparison)
}

impl Comparison {
    /// Medians.
    fn run(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value)).unwrap_or(f64::NAN)
    }

    pub(crate) fn wall(&self) -> f64 {
        self.run(|run| run.wall)
    }

    pub(crate) fn cpu(&self) -> f64 {
        self.run(Run::cpu)
    }

    /// The largest.
    pub(crate) fn peak(&self) -> u64 {
        self.runs.iter().map(|run| run.peak).max().unwrap_or(0)
    }

    pub(crate) fn floor(&self) -> f64 {
        median(self.floors.iter().map(Floor::seconds)).unwrap_or(f64::NAN)
    }

    /// Floor / (wall x cores).
    pub(crate) fn efficiency(&self) -> f64 {
        self.floor() / (self.wall() * self.jobs as f64)
    }

    /// The same, without the CPU time that other processes took away.
    pub(crate) fn efficiency_of_available(&self) -> f64 {
        self.floor() / self.run(|run| run.available(self.jobs))
    }

    pub(crate) fn overhead(&self) -> f64 {
        self.cpu() / self.floor()
    }

    pub(crate) fn unpacked(&self) -> u64 {
        self.floors.first().map_or(0, |floor| floor.unpacked)
    }

    /// The kernels, one per line.
    pub(crate) fn kernels(&self) -> Table {
        let mut table = Table::new(&["kernel", "bytes", "CPU s", "GB/s"]);
        let Some(first) = self.floors.first() else { return table };
        for (index, (name, kernel)) in first.kernels().into_iter().enumerate() {
            let seconds = median(self.floors.iter().map(|floor| floor.kernels()[index].1.seconds));
            let seconds = seconds.unwrap_or(f64::NAN);
            if kernel.bytes > 0 {
                let speed = format!("{:.2}", kernel.bytes as f64 / seconds / 1e9);
                table.row([name.to_owned(), mib(kernel.bytes), format!("{seconds:.3}"), speed]);
            }
        }
        table.row(["sum".to_owned(), String::new(), format!("{:.3}", self.floor()), String::new()]);
        table
    }
}

/// One line per wheel.
pub(crate) fn summary(comparisons: &[Comparison]) -> Table {
    let mut table = Table::new(&[
        "wheel",
        "unpacked",
        "wall s",
        "CPU s",
        "of it system",
        "peak RSS",
        "floor s",
        "CPU / floor",
        "efficiency",
        "of free CPU",
    ]);
    for comparison in comparisons {
        table.row([
            comparison.name.clone(),
            mib(comparison.unpacked()),
            format!("{:.3}", comparison.wall()),
            format!("{:.3}", comparison.cpu()),
            format!("{:.3}", comparison.run(|run| run.system)),
            mib(comparison.peak()),
            format!("{:.3}", comparison.floor()),
            format!("{:.2}", comparison.overhead()),
            format!("{:.2}", comparison.efficiency()),
            format!("{:.2}", comparison.efficiency_of_available()),
        ]);
    }
    table
}
