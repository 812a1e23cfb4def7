//! How much memory each part of the second pass may use, from one number.

use super::budget::size_class;
use super::unbundle::SMALL;
use crate::options::SplitOptions;

const MIB: u64 = 1 << 20;
/// Code, stacks, directories, plans: what a split takes however little is in flight.
const BASE: u64 = 32 * MIB;
/// A worker's zstd context and the frame that it makes; a reader's buffers.
const PER_WORKER: u64 = 10 * MIB;
/// Decoders beyond this many would wait for the one reader.
const MAX_DECODERS: usize = 8;
/// What a producer of code objects must have: one is filled while another is compressed.
const TWO_OBJECTS: u64 = 2 * size_class(SMALL as usize) as u64;

/// Which kinds of bundles a wheel has; memory that one kind does not need goes to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Only bundles as they are.
    Plain,
    /// Only compressed bundles.
    Compressed,
    /// Both.
    Both,
    /// It is not known yet: the first pass, which makes no host blocks.
    Unknown,
}

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
    pub fn of(options: &SplitOptions, kinds: Kinds) -> Self {
        let memory = options.memory_limit.unwrap_or_else(|| Self::default_memory(options.jobs));
        Self::new(options.jobs, memory, kinds)
    }

    /// How many members may be cut at the same time in the first pass.
    pub fn anticipators(&self) -> usize {
        (self.objects / TWO_OBJECTS as usize).clamp(1, self.workers)
    }

    /// Divides `memory` bytes. Where they do not suffice there are fewer workers than `jobs`, and at the very least
    /// one, with room for two objects of each kind.
    pub fn new(jobs: usize, memory: u64, kinds: Kinds) -> Self {
        // Percent of what is in flight.
        let (objects, decoded) = match kinds {
            Kinds::Plain => (78, 0),
            Kinds::Compressed => (0, 70),
            Kinds::Both => (35, 35),
            Kinds::Unknown => (41, 46),
        };
        let (blocks, payloads, windows) = if kinds == Kinds::Unknown { (0, 5, 8) } else { (11, 7, 12) };
        let least =
            TWO_OBJECTS * (u64::from(objects > 0) + u64::from(decoded > 0)) * 100 / (objects + decoded);
        let affordable = memory.saturating_sub(BASE + least) / PER_WORKER;
        let workers = usize::try_from(affordable).unwrap_or(usize::MAX).clamp(1, jobs.max(1));
        let in_flight = memory.saturating_sub(BASE + PER_WORKER * workers as u64).max(least);
        let bytes = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        let share = |percent: u64| bytes(in_flight * percent / 100);
        let decoders = share(decoded) as u64 / TWO_OBJECTS;
        let decoders = usize::try_from(decoders).unwrap_or(1).clamp(1, workers.min(MAX_DECODERS));
        Self {
            workers,
            decoders,
            objects: share(objects).max(bytes(TWO_OBJECTS)),
            blocks: share(blocks),
            payloads: share(payloads),
            decoded: (share(decoded) / decoders).max(bytes(TWO_OBJECTS)),
            windows: share(windows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_hold_two_objects_and_stay_within_the_limit() {
        for kinds in [Kinds::Plain, Kinds::Compressed, Kinds::Both, Kinds::Unknown] {
            for jobs in [1, 2, 3, 8, 64, 256] {
                for memory in [0, 64 * MIB, 128 * MIB, 160 * MIB, Limits::default_memory(jobs), 1 << 40] {
                    let limits = Limits::new(jobs, memory, kinds);
                    assert!((1..=jobs).contains(&limits.workers), "{limits:?}");
                    assert!(limits.decoders >= 1 && limits.decoders <= limits.workers);
                    let (plain, compressed) = (kinds != Kinds::Compressed, kinds != Kinds::Plain);
                    assert!(!plain || limits.objects as u64 >= TWO_OBJECTS, "{limits:?}");
                    assert!(!compressed || limits.decoded as u64 >= TWO_OBJECTS, "{limits:?}");
                    let objects = if plain { limits.objects } else { 0 };
                    let decoded = if compressed { limits.decoders * limits.decoded } else { 0 };
                    // Without compressed bundles nothing is on its way to a decoder.
                    let decoding = if compressed { limits.payloads + limits.windows } else { 0 };
                    let sum = objects + decoded + limits.blocks + decoding;
                    let all = sum as u64 + BASE + PER_WORKER * limits.workers as u64;
                    assert!(
                        all <= memory.max(BASE + PER_WORKER + 3 * TWO_OBJECTS),
                        "{all} of {memory}: {limits:?}"
                    );
                }
            }
        }
    }
}
