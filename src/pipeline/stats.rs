//! What `--timings` shows: for each stage the time at work and the time waiting, bytes, and the longest queue.
//!
//! Counted with relaxed atomics, once per chunk or job; the cost is not measurable beside inflating a chunk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::options::Timing;

/// Counters of one stage, shared by its threads.
#[derive(Debug, Default)]
pub struct Stage {
    busy: AtomicU64,
    waiting: AtomicU64,
    bytes: AtomicU64,
    items: AtomicU64,
    deepest: AtomicU64,
}

impl Stage {
    /// Starts a stopwatch for one thread of the stage.
    pub fn lap(&self) -> Lap<'_> {
        Lap { stage: self, last: Instant::now() }
    }

    /// Notes the length of the stage's queue.
    pub fn queued(&self, length: usize) {
        self.deepest.fetch_max(length as u64, Ordering::Relaxed);
    }

    /// Moves time from work to waiting: the part of a lap that was spent on a full queue or budget.
    fn waited_within(&self, time: Duration) {
        self.waiting.fetch_add(nanos(time), Ordering::Relaxed);
        self.busy.fetch_sub(nanos(time), Ordering::Relaxed);
    }

    fn timing(&self, name: &'static str) -> Timing {
        let duration = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        Timing {
            stage: name,
            // A wait that straddles two laps may be counted a moment before the work it is taken from.
            busy: if self.busy.load(Ordering::Relaxed) > u64::MAX / 2 {
                Duration::ZERO
            } else {
                duration(&self.busy)
            },
            waiting: duration(&self.waiting),
            bytes: self.bytes.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            deepest_queue: self.deepest.load(Ordering::Relaxed),
        }
    }
}

/// A stopwatch: every span ends as work or as waiting.
#[derive(Debug)]
pub struct Lap<'a> {
    stage: &'a Stage,
    last: Instant,
}

impl Lap<'_> {
    /// The time since the last call was work on `bytes` bytes of one item.
    pub fn worked(&mut self, bytes: u64) {
        let time = self.split();
        self.stage.busy.fetch_add(time, Ordering::Relaxed);
        self.stage.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.stage.items.fetch_add(1, Ordering::Relaxed);
    }

    /// The time since the last call was waiting.
    pub fn waited(&mut self) {
        let time = self.split();
        self.stage.waiting.fetch_add(time, Ordering::Relaxed);
    }

    /// Of the work that the next call will count, so much was waiting.
    pub fn less(&self, waited: Duration) {
        self.stage.waited_within(waited);
    }

    fn split(&mut self) -> u64 {
        let now = Instant::now();
        let time = now - self.last;
        self.last = now;
        nanos(time)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// All stages of a split.
#[derive(Debug, Default)]
pub struct Stats {
    /// Inflate, CRC-32, magic; SHA-256 of small members.
    pub classify: Stage,
    /// SHA-256 of large members.
    pub hash: Stage,
    /// The plan.
    pub plan: Stage,
    /// The reader of the second pass: inflate, edit, cut.
    pub rewrite: Stage,
    /// Decoders of compressed bundles.
    pub unbundle: Stage,
    /// Code objects to frames.
    pub compress: Stage,
    /// Host blocks.
    pub deflate: Stage,
    /// Writer of the host wheel: SHA-256, raw copies.
    pub emit_host: Stage,
    /// Writer of the archives.
    pub emit_archives: Stage,
    /// TOCs, RECORDs, SHA-256 of archives, central directories, sync.
    pub finish: Stage,
}

impl Stats {
    /// What was counted.
    pub fn timings(&self) -> Vec<Timing> {
        vec![
            self.classify.timing("classify"),
            self.hash.timing("hash"),
            self.plan.timing("plan"),
            self.rewrite.timing("rewrite"),
            self.unbundle.timing("unbundle"),
            self.compress.timing("compress"),
            self.deflate.timing("deflate"),
            self.emit_host.timing("emit host"),
            self.emit_archives.timing("emit archives"),
            self.finish.timing("finish"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_add_up() {
        let stats = Stats::default();
        let mut lap = stats.deflate.lap();
        std::thread::sleep(Duration::from_millis(5));
        lap.waited();
        lap.worked(10);
        lap.worked(5);
        stats.deflate.queued(3);
        stats.deflate.queued(2);
        let timings = stats.timings();
        let deflate = timings.iter().find(|timing| timing.stage == "deflate").unwrap();
        assert!(deflate.waiting >= Duration::from_millis(5) && deflate.busy < deflate.waiting);
        assert_eq!((deflate.bytes, deflate.items, deflate.deepest_queue), (15, 2, 3));
    }
}
