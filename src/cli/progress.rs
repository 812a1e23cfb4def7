//! The progress bar: on a terminal, on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::options::Progress;

/// A bar with bytes, rate and time left.
#[derive(Debug)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// `None` if standard error is no terminal that can show it.
    pub(super) fn new() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if dumb || !std::io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let template = "{bar:30} {bytes:>11} of {total_bytes:11} {binary_bytes_per_sec:>13}  {eta} left";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Some(Self(bar))
    }

    /// Takes the bar off the screen.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn start(&self, total: u64) {
        self.0.set_length(total);
        self.0.enable_steady_tick(Duration::from_millis(200));
    }

    fn update(&self, done: u64) {
        self.0.set_position(done);
    }
}
