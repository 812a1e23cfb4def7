//! The command line: arguments as typed, progress, summary, exit codes.

mod args;
mod exit_code;
mod json;
mod progress;
mod report;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use args::{Cli, Command};
use clap::Parser;
pub use exit_code::ExitCode;

use crate::error::{Error, Result};
use crate::options::SplitOptions;

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    crate::sys::malloc::give_back_large_buffers();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Done };
        }
    };
    let Command::Split(split) = cli.command;
    let quiet = split.quiet;
    let (verbose, json, timings) = (split.verbose, split.json, split.timings);
    let result = split.resolve().and_then(|mut options| {
        options.interrupt = Some(interrupt_flag());
        let progress = (!quiet).then(progress::Bar::new).flatten().map(Arc::new);
        if let Some(bar) = &progress {
            options.progress = Some(Arc::clone(bar) as Arc<_>);
        }
        let result = run(&options);
        if let Some(bar) = progress {
            bar.clear();
        }
        result
    });
    match result {
        Ok(report) => {
            report::warnings(&report, quiet);
            let printed = match (json, quiet) {
                (true, _) => json::print(&report, timings),
                (false, false) => report::summary(&report, verbose),
                (false, true) => Ok(()),
            };
            if timings && !json {
                report::timings(&report);
            }
            match printed {
                // Whoever reads has seen enough.
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    let error = Error::io("write the result to standard output", None, error);
                    report::failure(&error.with_hint("the wheels themselves are complete"));
                    ExitCode::Environment
                }
                _ => ExitCode::Done,
            }
        }
        Err(error) => {
            report::failure(&error);
            ExitCode::of(&error)
        }
    }
}

fn run(options: &SplitOptions) -> Result<crate::SplitReport> {
    crate::split(options)
}

/// True after Ctrl-C, SIGTERM or SIGHUP. A second Ctrl-C ends the process at once.
fn interrupt_flag() -> Arc<AtomicBool> {
    #[cfg(unix)]
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let flag = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // `nohup` has it ignored, and that must stay so.
        if signal == SIGHUP && crate::sys::signals::is_ignored(signal) {
            continue;
        }
        // The order matters: the first signal finds the flag false and sets it, the second one finds it true.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            ExitCode::Interrupted as i32,
            Arc::clone(&flag),
        );
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag.store(false, Ordering::Relaxed);
    flag
}
