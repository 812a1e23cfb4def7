//! Stopping early: the user's Ctrl-C, or the first failure of any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// How often a thread that waits looks whether the split was cancelled.
pub const LOOK: Duration = Duration::from_millis(50);

/// Looked at by every thread before it waits and between chunks.
#[derive(Debug, Default)]
pub struct Cancel {
    stopped: AtomicBool,
    interrupt: Option<Arc<AtomicBool>>,
}

impl Cancel {
    /// Also stops once `interrupt` is true.
    pub fn new(interrupt: Option<Arc<AtomicBool>>) -> Self {
        Self { stopped: AtomicBool::new(false), interrupt }
    }

    /// Asks all threads to stop, because one has failed and reports why.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// An error if the split is to stop.
    pub fn check(&self) -> Result<()> {
        if self.interrupt.as_ref().is_some_and(|interrupt| interrupt.load(Ordering::Relaxed)) {
            return Err(ErrorKind::Interrupted.into());
        }
        if self.stopped.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        Ok(())
    }

    /// Passes a thread's result on; a failure stops the others.
    pub fn watch<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.stop();
        }
        result
    }
}

/// The error of a thread that stops because another one has failed. Never reported to a user.
pub fn stopped() -> Error {
    ErrorKind::Stopped.into()
}

/// The other end of a channel is gone, which only happens when its thread has failed.
pub fn hung_up<T>(_: T) -> Error {
    stopped()
}

/// The one error to report out of those of all threads: the first that is a cause and not a consequence.
pub fn cause(errors: impl IntoIterator<Item = Error>) -> Option<Error> {
    let mut consequence = None;
    for error in errors {
        if !matches!(error.kind(), ErrorKind::Stopped) {
            return Some(error);
        }
        consequence = Some(error);
    }
    consequence
}
