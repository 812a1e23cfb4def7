//! The command line: arguments as typed, progress, summary, exit codes.

mod args;
mod exit_code;
mod json;
mod progress;
mod report;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use args::{Cli, Command};
use clap::Parser;
pub use exit_code::ExitCode;

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
    let show = Show { verbose: split.verbose, quiet: split.quiet, json: split.json, timings: split.timings };
    match split.resolve() {
        Ok(mut run) => {
            run.options.interrupt = Some(interrupt_flag());
            run::run(&run, show)
        }
        Err(error) => {
            report::failure(&error);
            ExitCode::of(&error)
        }
    }
}

/// What the user wants to see.
#[derive(Clone, Copy, Debug)]
struct Show {
    verbose: bool,
    quiet: bool,
    json: bool,
    timings: bool,
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
