//! How much memory each part of the second pass may use, from one number.

use super::unbundle::SMALL;
use crate::options::SplitOptions;

const MIB: u64 = 1 << 20;
/// Code, stacks, directories, plans: what a split takes however little is in flight.
const BASE: u64 = 24 * MIB;
/// A worker's zstd context and the frame that it makes; a reader's buffers.
const PER_WORKER: u64 = 10 * MIB;
/// Decoders beyond this many would wait for the one reader.
const MAX_DECODERS: usize = 8;
/// The least that can be in flight: two small objects for the reader and for one decoder, blocks, payload, windows.
const LEAST: u64 = 4 * SMALL + 10 * MIB;

/// Bytes in flight, and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Workers.
    pub workers: usize,
    /// Decoders of compressed bundles.
    pub decoders: usize,
    /// Plain code objects between the reader and the archives.
    pub objects: usize,
    /// Host blocks between the reader and the host wheel, plain and deflated.
    pub blocks: usize,
    /// Payloads of compressed bundles on their way to the decoders.
    pub payloads: usize,
    /// Code objects of each decoder.
    pub decoded: usize,
    /// Windows of all decoders together. A larger one is granted when no other is in use.
    pub windows: usize,
}

impl Limits {
    /// The peak resident set that a split is held to unless the user says otherwise, in bytes: 160 MiB for two jobs.
    pub fn default_memory(jobs: usize) -> u64 {
        96 * MIB + 32 * MIB * jobs as u64
    }

    /// Those of a split with these options.
    pub fn of(options: &SplitOptions) -> Self {
        Self::new(options.jobs, options.memory_limit.unwrap_or_else(|| Self::default_memory(options.jobs)))
    }

    /// Divides `memory` bytes. With less than some 60 MiB there are fewer workers than `jobs`, and at the very least one.
    pub fn new(jobs: usize, memory: u64) -> Self {
        let affordable = memory.saturating_sub(BASE + LEAST) / PER_WORKER;
        let workers = usize::try_from(affordable).unwrap_or(usize::MAX).clamp(1, jobs.max(1));
        let in_flight = memory.saturating_sub(BASE + PER_WORKER * workers as u64).max(LEAST);
        let share = |percent: u64, least: u64| {
            usize::try_from((in_flight * percent / 100).max(least)).unwrap_or(usize::MAX)
        };
        let decoded = in_flight * 35 / 100;
        let decoders =
            usize::try_from(decoded / (4 * SMALL)).unwrap_or(1).clamp(1, workers.min(MAX_DECODERS));
        Self {
            workers,
            decoders,
            objects: share(27, 2 * SMALL),
            blocks: share(12, 2 * MIB),
            payloads: share(9, MIB),
            decoded: usize::try_from((decoded / decoders as u64).max(2 * SMALL)).unwrap_or(usize::MAX),
            windows: share(17, 4 * MIB),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_hold_two_small_objects_and_stay_within_the_limit() {
        for jobs in [1, 2, 3, 8, 64, 256] {
            for memory in [0, 32 * MIB, 64 * MIB, 160 * MIB, Limits::default_memory(jobs), 1 << 40] {
                let limits = Limits::new(jobs, memory);
                assert!((1..=jobs).contains(&limits.workers), "{limits:?}");
                assert!(limits.decoders >= 1 && limits.decoders <= limits.workers);
                assert!(limits.objects as u64 >= 2 * SMALL && limits.decoded as u64 >= 2 * SMALL);
                let sum = limits.objects
                    + limits.blocks
                    + limits.payloads
                    + limits.windows
                    + limits.decoders * limits.decoded;
                let all = sum as u64 + BASE + PER_WORKER * limits.workers as u64;
                assert!(all <= memory.max(BASE + PER_WORKER + 2 * LEAST), "{all} of {memory}: {limits:?}");
            }
        }
    }
}
