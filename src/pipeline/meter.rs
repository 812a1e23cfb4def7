//! Counts bytes for the progress display.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::Progress;

/// Bytes done so far, told to whoever watches.
#[derive(Debug)]
pub struct Meter {
    done: AtomicU64,
    progress: Option<Arc<dyn Progress>>,
}

impl Meter {
    /// Will count up to about `total` bytes.
    pub fn new(total: u64, progress: Option<Arc<dyn Progress>>) -> Self {
        if let Some(progress) = &progress {
            progress.start(total);
        }
        Self { done: AtomicU64::new(0), progress }
    }

    /// So many bytes more are done.
    pub fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.progress {
            progress.update(done);
        }
    }
}
