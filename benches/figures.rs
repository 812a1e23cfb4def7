//! `cargo bench --bench figures -- COMMAND`: the figures of the README, measured.
//!
//! | command | what it measures |
//! |---|---|
//! | `scale` | generated wheels of growing size: time per byte and peak memory must not grow |
//! | `pipe WHEEL` | a wheel that comes through a pipe at half the split's own speed |
//! | `start` | CPU time of `--version` and of the smallest split |
//! | `report [WHEEL...]` | all of it and the floor, as markdown |
//!
//! Everything is written to temporary directories and removed. Other programs on the machine disturb wall-clock
//! times; CPU times, ratios between neighbouring runs and peak memory hold all the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may end so")]
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "its output is its purpose")]

mod support;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use support::compare::{Settings, compare, split, summary};
use support::measure::{self, Run};
use support::table::{Table, median, mib};
use support::wheel_generator::{FILE_NAME, WheelSpec, size, write_wheel};

/// Measures fatwheel.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Clone)]
struct Common {
    /// Times that each measurement is repeated
    #[arg(short, long, global = true, default_value_t = 3)]
    runs: usize,
    /// Jobs of the split
    #[arg(short, long, global = true, default_value_t = 2)]
    jobs: usize,
    /// Wait for the disk, as a split does by default
    #[arg(long, global = true)]
    sync: bool,
    /// Another fatwheel
    #[arg(long, global = true, default_value = env!("CARGO_BIN_EXE_fatwheel"))]
    program: String,
    /// Directory for generated wheels and outputs; the system's for temporary files by default
    #[arg(long, global = true)]
    directory: Option<PathBuf>,
    /// Cargo passes this
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Generated wheels of growing size
    Scale(Scale),
    /// A wheel through a slow pipe
    Pipe {
        /// The wheel; a generated one of 256 MiB if there is none
        wheel: Option<PathBuf>,
    },
    /// CPU time to start
    Start,
    /// All figures as markdown
    Report {
        /// Wheels to measure besides generated ones
        wheels: Vec<PathBuf>,
        #[command(flatten)]
        scale: Scale,
        /// Bytes of the generated wheels that are compared with the floor
        #[arg(long, value_parser = size, default_value = "512MiB")]
        generated: u64,
    },
}

#[derive(Args, Clone)]
struct Scale {
    /// Sizes of the wheels
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "512MiB,2GiB,6GiB")]
    sizes: Vec<u64>,
    /// With compressed bundles
    #[arg(long)]
    ccob: bool,
}

fn main() {
    measure::intercept();
    let Ok(Arguments { command, common }) = Arguments::try_parse().map_err(|error| error.print()) else {
        return;
    };
    let scratch = match &common.directory {
        Some(directory) => tempfile::tempdir_in(directory).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let settings = Settings {
        program: common.program,
        runs: common.runs.max(1),
        jobs: common.jobs.max(1),
        directory: scratch.path().to_owned(),
        sync: common.sync,
    };
    let result = match command {
        Command::Scale(scale) => print(scale_figures(&settings, &scale)),
        Command::Pipe { wheel } => print(pipe_figures(&settings, wheel.as_deref())),
        Command::Start => print(start_figures(&settings)),
        Command::Report { wheels, scale, generated } => report(&settings, &wheels, &scale, generated),
    };
    if let Err(error) = result {
        eprintln!("figures: {error}");
        drop(scratch);
        std::process::exit(1);
    }
}

fn print(text: io::Result<String>) -> io::Result<()> {
    text.map(|text| println!("{text}"))
}

fn report(settings: &Settings, wheels: &[PathBuf], scale: &Scale, generated: u64) -> io::Result<()> {
    println!("{}\n", machine(settings));
    let mut comparisons = Vec::new();
    for wheel in wheels {
        comparisons.push(compare(settings, wheel)?);
    }
    for (name, ccob) in [("generated, plain", false), ("generated, compressed bundles", true)] {
        let path = settings.directory.join(FILE_NAME);
        write_wheel(&WheelSpec { size: generated, ccob, ..WheelSpec::default() }, &path, settings.jobs)?;
        let mut comparison = compare(settings, &path)?;
        comparison.name = name.to_owned();
        comparisons.push(comparison);
        std::fs::remove_file(&path)?;
    }
    println!("### Against the unavoidable kernels\n\n{}", summary(&comparisons));
    println!("### Scale\n\n{}", scale_figures(settings, scale)?);
    println!("### Pipe\n\n{}", pipe_figures(settings, None)?);
    println!("### Start\n\n{}", start_figures(settings)?);
    Ok(())
}

/// The machine in words.
fn machine(settings: &Settings) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    let processor = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown);
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_else(unknown);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load: String = read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    format!(
        "{processor}, {cores} cores, {memory} of memory, Linux {}; load average {load} when the measuring began; -j {}, {}, medians of {} runs.",
        read("/proc/sys/kernel/osrelease").trim(),
        settings.jobs,
        if settings.sync { "with sync" } else { "--no-sync" },
        settings.runs,
    )
}

/// One row per size: time and memory.
fn scale_figures(settings: &Settings, scale: &Scale) -> io::Result<String> {
    let mut table = Table::new(&[
        "size",
        "wheel",
        "wall s",
        "CPU s",
        "CPU s per GiB",
        "to the first",
        "peak RSS",
        "to the first",
    ]);
    let mut first: Option<(f64, u64)> = None;
    for &size in &scale.sizes {
        room(&settings.directory, size)?;
        let path = settings.directory.join(FILE_NAME);
        let spec = WheelSpec { size, ccob: scale.ccob, ..WheelSpec::default() };
        let generated = write_wheel(&spec, &path, settings.jobs)?;
        let output = settings.directory.join("scale");
        let runs =
            (0..settings.runs).map(|_| split(settings, &path, &output)).collect::<io::Result<Vec<_>>>()?;
        std::fs::remove_dir_all(&output)?;
        std::fs::remove_file(&path)?;
        let middle = |value: fn(&Run) -> f64| median(runs.iter().map(value)).unwrap_or(f64::NAN);
        let bytes = generated.unpacked.max(generated.device);
        let per_gib = middle(Run::cpu) / (bytes as f64 / f64::from(1 << 30));
        let peak = runs.iter().map(|run| run.peak).max().unwrap_or(0);
        let (first_time, first_peak) = *first.get_or_insert((per_gib, peak));
        table.row([
            mib(bytes),
            mib(generated.wheel),
            format!("{:.2}", middle(|run| run.wall)),
            format!("{:.2}", middle(Run::cpu)),
            format!("{per_gib:.3}"),
            format!("{:+.1} %", 100.0 * (per_gib / first_time - 1.0)),
            mib(peak),
            format!("{:+.1} %", 100.0 * (peak as f64 / first_peak as f64 - 1.0)),
        ]);
    }
    Ok(table.to_string())
}

/// Fails unless there is room for a wheel of `size` unpacked bytes and the outputs, and as much again to spare.
fn room(directory: &Path, size: u64) -> io::Result<()> {
    let disk = rustix::fs::statvfs(directory)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < size {
        return Err(io::Error::other(format!(
            "{} free in {}, {} wanted for a wheel of that size; choose another --directory",
            mib(free),
            directory.display(),
            mib(size)
        )));
    }
    Ok(())
}

/// Total time against feeding time, the feeder at half the speed of the split.
fn pipe_figures(settings: &Settings, wheel: Option<&Path>) -> io::Result<String> {
    let generated = settings.directory.join(FILE_NAME);
    let wheel = match wheel {
        Some(wheel) => wheel,
        None => {
            let spec = WheelSpec { size: 256 << 20, ..WheelSpec::default() };
            write_wheel(&spec, &generated, settings.jobs)?;
            &generated
        }
    };
    let output = settings.directory.join("pipe");
    let mut table = Table::new(&["run", "split s", "feeding s", "total s", "total / feeding", "peak RSS"]);
    let mut ratios = Vec::new();
    let bytes = std::fs::read(wheel)?;
    for run in 0..settings.runs {
        let own = split(settings, wheel, &output)?;
        std::fs::remove_dir_all(&output)?;
        let (feeding, total, piped) = feed(settings, wheel, &bytes, 2.0 * own.wall, &output)?;
        std::fs::remove_dir_all(&output)?;
        let ratio = total / feeding;
        ratios.push(ratio);
        table.row([
            format!("{}", run + 1),
            format!("{:.3}", own.wall),
            format!("{feeding:.3}"),
            format!("{total:.3}"),
            format!("{ratio:.3}"),
            mib(piped.peak),
        ]);
    }
    let ratio = median(ratios).unwrap_or(f64::NAN);
    Ok(format!("{table}\nMedian of total / feeding: {ratio:.3}\n"))
}

/// Splits `bytes` from a pipe that takes `seconds` for all of them. Seconds until the last byte was taken and until
/// the end, and the run.
fn feed(
    settings: &Settings,
    wheel: &Path,
    bytes: &[u8],
    seconds: f64,
    output: &Path,
) -> io::Result<(f64, f64, Run)> {
    const PIECE: usize = 64 << 10;
    let jobs = settings.jobs.to_string();
    let name = wheel.file_name().unwrap_or_default();
    let mut arguments = vec!["split".as_ref(), "-".as_ref(), "--input-name".as_ref(), name, "-o".as_ref()];
    arguments.push(output.as_os_str());
    for argument in ["-q", "-j", &jobs, "--wheel-type", "torch-fat", "--no-sync"] {
        arguments.push(argument.as_ref());
    }
    let arguments: Vec<_> =
        arguments.into_iter().filter(|argument| !settings.sync || *argument != "--no-sync").collect();
    let mut command = measure::command(&settings.program, &arguments)?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let start = Instant::now();
    let mut pipe = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let count = bytes.len().div_ceil(PIECE);
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        let due = Duration::from_secs_f64(seconds * (index + 1) as f64 / count as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        pipe.write_all(piece)?;
    }
    drop(pipe);
    let feeding = start.elapsed().as_secs_f64();
    let result = child.wait_with_output()?;
    let total = start.elapsed().as_secs_f64();
    let run = measure::parse(&result.stdout)?;
    match run.success {
        true => Ok((feeding, total, run)),
        false => Err(io::Error::other("the split from a pipe failed")),
    }
}

/// CPU time of the shortest runs.
fn start_figures(settings: &Settings) -> io::Result<String> {
    const DEMO: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/wheels/fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl"
    );
    let times = 20 * settings.runs;
    let output = settings.directory.join("start");
    let mut table = Table::new(&["command", "CPU ms", "wall ms", "peak RSS"]);
    let mut row = |name: &str, runs: Vec<Run>| {
        let middle = |value: fn(&Run) -> f64| 1000.0 * median(runs.iter().map(value)).unwrap_or(f64::NAN);
        let peak = runs.iter().map(|run| run.peak).max().unwrap_or(0);
        let wall = format!("{:.1}", middle(|run| run.wall));
        table.row([name.to_owned(), format!("{:.1}", middle(Run::cpu)), wall, mib(peak)]);
    };
    let version = |_| measure::run(&settings.program, &["--version"], Stdio::null());
    row("fatwheel --version", (0..times).map(version).collect::<io::Result<_>>()?);
    let demo = |_| split(settings, Path::new(DEMO), &output);
    row("split of the demo wheel (0.2 MB)", (0..times).map(demo).collect::<io::Result<_>>()?);
    Ok(table.to_string())
}
