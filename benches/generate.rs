//! `cargo bench --bench generate -- --size 2GiB --out DIR`: writes a wheel that looks like torch.
//!
//! See `support/wheel_generator.rs` for what is in it. 6 GiB take about two minutes on two cores.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a benchmark may end so")]

mod support;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use support::wheel_generator::{FILE_NAME, WheelSpec, write_wheel};

/// Writes a generated wheel.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    spec: WheelSpec,
    /// Directory for the wheel, or its path if it ends in .whl
    #[arg(long)]
    out: PathBuf,
    /// Threads
    #[arg(short, long)]
    jobs: Option<usize>,
    /// Cargo passes this
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let Ok(arguments) = Arguments::try_parse().map_err(|error| error.print()) else { return };
    let path = match arguments.out.extension() {
        Some(extension) if extension == "whl" => arguments.out,
        _ => {
            std::fs::create_dir_all(&arguments.out).unwrap();
            arguments.out.join(FILE_NAME)
        }
    };
    let jobs = arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let start = Instant::now();
    let summary = write_wheel(&arguments.spec, &path, jobs).unwrap();
    let ratio = |(unpacked, packed): (u64, u64)| unpacked as f64 / packed as f64;
    println!(
        "{}: {} bytes, {} members of {} bytes; {} code objects of {} bytes; deflate {:.2} to 1 on fat libraries, {:.2} to 1 on others; {:.1} s",
        path.display(),
        summary.wheel,
        summary.members,
        summary.unpacked,
        summary.objects,
        summary.device,
        ratio(summary.fat),
        ratio(summary.plain),
        start.elapsed().as_secs_f64(),
    );
}
