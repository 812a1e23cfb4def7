//! `cargo bench --bench floor -- [WHEEL...]`: what a split costs against what it cannot do without.
//!
//! Runs the unavoidable kernels (`support/kernels.rs`) and the split in turns and prints medians. *Efficiency* is
//! floor CPU seconds / (wall seconds x jobs); *of free CPU* leaves out what other processes took meanwhile, which is
//! the figure to look at on a machine that is not idle. Without a wheel, a small one is generated.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may end so")]
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "its output is its purpose")]

mod support;

use std::path::PathBuf;

use clap::Parser;
use support::compare::{Settings, compare, summary};
use support::measure;
use support::wheel_generator::{FILE_NAME, WheelSpec, write_wheel};

/// Measures splits against the unavoidable kernels.
#[derive(Parser)]
struct Arguments {
    /// Wheels; a generated one if there is none
    wheels: Vec<PathBuf>,
    /// Times that split and floor take turns
    #[arg(short, long, default_value_t = 3)]
    runs: usize,
    /// Jobs of the split
    #[arg(short, long, default_value_t = 2)]
    jobs: usize,
    /// Wait for the disk, as a split does by default
    #[arg(long)]
    sync: bool,
    /// Another fatwheel
    #[arg(long, default_value = env!("CARGO_BIN_EXE_fatwheel"))]
    program: String,
    /// Directory for outputs; the system's for temporary files by default
    #[arg(long)]
    directory: Option<PathBuf>,
    #[command(flatten)]
    spec: WheelSpec,
    /// Cargo passes this
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    measure::intercept();
    let Ok(arguments) = Arguments::try_parse().map_err(|error| error.print()) else { return };
    let scratch = match &arguments.directory {
        Some(directory) => tempfile::tempdir_in(directory).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let mut wheels = arguments.wheels;
    if wheels.is_empty() {
        let path = scratch.path().join(FILE_NAME);
        write_wheel(&arguments.spec, &path, arguments.jobs).unwrap();
        wheels.push(path);
    }
    let settings = Settings {
        program: arguments.program,
        runs: arguments.runs.max(1),
        jobs: arguments.jobs.max(1),
        directory: scratch.path().to_owned(),
        sync: arguments.sync,
    };
    let mut comparisons = Vec::new();
    for wheel in &wheels {
        let comparison = compare(&settings, wheel).unwrap();
        println!("{}\n\n{}", comparison.name, comparison.kernels());
        comparisons.push(comparison);
    }
    println!("{}", summary(&comparisons));
}
