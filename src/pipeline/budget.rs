//! Bytes in flight. Counting items does not bound memory when one is a kilobyte and the next is 2 GB, so every
//! buffer that waits in a queue holds a [`Grant`] for its size.
//!
//! **Why this cannot deadlock**: a budget belongs to one producer thread. What holds its grants is (a) whole jobs,
//! which a worker runs without waiting for anything, (b) results that wait in an emitter for an earlier ticket, and
//! (c) the one object that the producer is filling. (c) always fits, see [`Budget::new`]; earlier tickets are made by
//! producers that were started earlier and never wait for later ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::cancel::Cancel;
use crate::error::Result;

/// How often a waiting producer looks whether the split was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// A number of bytes that one producer may have in flight.
#[derive(Debug)]
pub struct Budget {
    capacity: usize,
    used: Mutex<usize>,
    freed: Condvar,
    cancel: Arc<Cancel>,
    waited: AtomicU64,
}

impl Budget {
    /// `capacity` in bytes must hold the largest single request twice, so that one can be filled while the one
    /// before it is worked on.
    pub fn new(capacity: usize, cancel: Arc<Cancel>) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            used: Mutex::new(0),
            freed: Condvar::new(),
            cancel,
            waited: AtomicU64::new(0),
        })
    }

    /// Waits until `bytes` are free. A request larger than the capacity is granted when nothing else is in flight.
    pub fn acquire(self: &Arc<Self>, bytes: usize) -> Result<Grant> {
        let mut used = self.lock();
        let start = (*used > 0 && used.saturating_add(bytes) > self.capacity).then(Instant::now);
        while *used > 0 && used.saturating_add(bytes) > self.capacity {
            self.cancel.check()?;
            used = self.freed.wait_timeout(used, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        *used += bytes;
        if let Some(start) = start {
            let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.waited.fetch_add(time, Ordering::Relaxed);
        }
        Ok(Grant { budget: Arc::clone(self), bytes })
    }

    /// Time that callers of [`acquire`](Self::acquire) have waited so far, all together.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        // The counter is right at every moment, so a panic of another holder does not matter.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, bytes: usize) {
        *self.lock() -= bytes;
        self.freed.notify_all();
    }
}

/// The right to have so many bytes in flight; given back on drop.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Grant {
    /// Gives back all but `bytes`: what was compressed takes less.
    pub fn shrink(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.budget.release(surplus);
    }

    /// Moves the right out, leaving one to nothing.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { budget: Arc::clone(&self.budget), bytes: std::mem::take(&mut self.bytes) }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_room_and_lets_one_oversized_request_through() {
        let cancel = Arc::new(Cancel::default());
        let budget = Budget::new(10, Arc::clone(&cancel));
        let oversized = budget.acquire(100).unwrap();
        let waiting = Arc::clone(&budget);
        let thread = std::thread::spawn(move || waiting.acquire(1).map(drop));
        drop(oversized);
        thread.join().unwrap().unwrap();
        let mut grant = budget.acquire(10).unwrap();
        grant.shrink(4);
        let _second = budget.acquire(6).unwrap();
        cancel.stop();
        assert!(budget.acquire(1).is_err());
    }
}
