//! Bytes in flight. Counting items does not bound memory when one is a kilobyte and the next is 2 GB, so every
//! buffer that waits in a queue holds a [`Grant`] for its size.
//!
//! **Why this cannot deadlock**: a budget belongs to one producer thread. What holds its grants is (a) whole jobs,
//! which a worker runs without waiting for anything, (b) results that wait in an emitter for an earlier ticket, and
//! (c) the one object that the producer is filling. (c) always fits, see [`Budget::new`]; earlier tickets are made by
//! producers that were started earlier and never wait for later ones.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::cancel::{Cancel, LOOK};
use crate::error::Result;
use crate::sys::malloc::{HUGE_PAGE, PAGE, prefer_huge_pages};

/// From this size on, a request may use all of the capacity, which is there for the largest objects. Smaller ones keep
/// all workers busy with a part of it, and the rest is memory saved.
const LARGE: usize = 2 << 20;
/// One over the part that they may use.
const SMALL_SHARE: usize = 3;
/// Buffers are not smaller than this.
const LEAST_BUFFER: usize = 64 << 10;

/// A number of bytes that one producer may have in flight, and buffers that it has used before: fresh memory costs a
/// page fault per 4 KiB, more than compressing takes.
#[derive(Debug)]
pub struct Budget {
    capacity: usize,
    state: Mutex<State>,
    freed: Condvar,
    cancel: Arc<Cancel>,
    waited: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    used_by_small: usize,
    /// Empty buffers. They count towards the capacity, but give way to what is used.
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

impl State {
    fn has_room(&self, bytes: usize, capacity: usize) -> bool {
        let small = bytes < LARGE;
        let small_ones_fit = !small || self.used_by_small.saturating_add(bytes) <= capacity / SMALL_SHARE;
        self.used == 0
            || self.used.saturating_add(bytes) <= capacity && (small_ones_fit || self.used_by_small == 0)
    }

    /// The smallest spare buffer that holds `size` bytes without wasting most of itself, and its capacity.
    fn best_spare(&self, size: usize) -> Option<(usize, usize)> {
        let capacities = self.spare.iter().map(Vec::capacity).enumerate();
        capacities
            .filter(|&(_, capacity)| size <= capacity && capacity / 4 <= size)
            .min_by_key(|&(_, capacity)| capacity)
    }
}

impl Budget {
    /// `capacity` in bytes must hold the largest single request twice, so that one can be filled while the one
    /// before it is worked on.
    pub fn new(capacity: usize, cancel: Arc<Cancel>) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            state: Mutex::default(),
            freed: Condvar::new(),
            cancel,
            waited: AtomicU64::new(0),
        })
    }

    /// Bytes that may be in flight.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Waits until `bytes` are free. A request larger than what it may use is granted when nothing else is in flight.
    pub fn acquire(self: &Arc<Self>, bytes: usize) -> Result<Grant> {
        let mut state = self.wait_for(|_| bytes)?;
        Ok(self.grant(&mut state, bytes))
    }

    /// Waits for an empty buffer that holds `size` bytes.
    pub fn buffer(self: &Arc<Self>, size: usize) -> Result<Buffer> {
        let class = size_class(size);
        let mut state =
            self.wait_for(|state| state.best_spare(class).map_or(class, |(_, capacity)| capacity))?;
        let bytes = state.best_spare(class).map(|(index, _)| state.spare.swap_remove(index));
        let capacity = bytes.as_ref().map_or(class, Vec::capacity);
        if bytes.is_some() {
            state.spare_bytes -= capacity;
        }
        let grant = Mutex::new(self.grant(&mut state, capacity));
        self.make_room(&mut state);
        drop(state);
        let bytes = bytes.unwrap_or_else(|| {
            let mut fresh = Vec::with_capacity(capacity);
            prefer_huge_pages(&mut fresh);
            fresh
        });
        Ok(Buffer { bytes, grant })
    }

    /// Waits until there is room for as many bytes as `wanted` says, which may depend on what is spare.
    fn wait_for(&self, wanted: impl Fn(&State) -> usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let mut start = None;
        while !state.has_room(wanted(&state), self.capacity) {
            start.get_or_insert_with(Instant::now);
            self.cancel.check()?;
            state = self.freed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(start) = start {
            let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.waited.fetch_add(time, Ordering::Relaxed);
        }
        Ok(state)
    }

    fn grant(self: &Arc<Self>, state: &mut State, bytes: usize) -> Grant {
        let small = bytes < LARGE;
        state.used += bytes;
        if small {
            state.used_by_small += bytes;
        }
        Grant { budget: Arc::clone(self), bytes, small }
    }

    /// Lets spare buffers go, oldest first, that do not fit beside what is used, or are too many.
    fn make_room(&self, state: &mut State) {
        let too_much = |state: &State| {
            state.used.saturating_add(state.spare_bytes) > self.capacity
                || state.spare.len() > 1 && state.spare_bytes > self.capacity / 2
        };
        while too_much(state) && !state.spare.is_empty() {
            state.spare_bytes -= state.spare.remove(0).capacity();
        }
    }

    /// Time that callers of [`acquire`](Self::acquire) have waited so far, all together.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is right at every moment, so a panic of another holder does not matter.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, bytes: usize, small: bool) {
        let mut state = self.lock();
        state.used -= bytes;
        if small {
            state.used_by_small -= bytes;
        }
        drop(state);
        self.freed.notify_all();
    }

    fn recycle(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let mut state = self.lock();
        state.spare_bytes += bytes.capacity();
        state.spare.push(bytes);
        self.make_room(&mut state);
    }
}

/// Buffers come in four sizes per power of two, so that one that is free fits more than the object it was made for, and
/// from 2 MiB on in whole huge pages, less the page that the allocator takes for itself: a mapping of just such a size
/// is aligned for them.
pub const fn size_class(size: usize) -> usize {
    if size <= LEAST_BUFFER {
        LEAST_BUFFER
    } else if size < LARGE {
        size.next_multiple_of(size.next_power_of_two() / 8)
    } else {
        (size + PAGE).next_multiple_of(HUGE_PAGE) - PAGE
    }
}

/// The right to have so many bytes in flight; given back on drop.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    bytes: usize,
    /// Whether it was a small request.
    small: bool,
}

impl Grant {
    /// How many bytes it is for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Moves the right to `bytes` out, or as much as there is.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), bytes, small: self.small }
    }

    /// Moves the right out, leaving one to nothing.
    #[must_use]
    pub fn take(&mut self) -> Self {
        self.split(usize::MAX)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.release(self.bytes, self.small);
    }
}

/// Bytes with the right to have them. On drop, the memory is kept for the next one.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// Locked by what is made of parts of the bytes.
    grant: Mutex<Grant>,
}

impl Buffer {
    /// A result that was made of the bytes, which are not needed much longer, takes over `bytes` of their grant.
    #[must_use]
    pub fn grant_for(&self, bytes: usize) -> Grant {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).split(bytes)
    }
}

/// A part of a buffer that several share. The memory is kept for the next one when the last of them is gone.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Slice {
    /// The bytes `range` of `buffer`, as far as there are some.
    pub fn of(buffer: &Arc<Buffer>, range: Range<usize>) -> Self {
        let end = range.end.min(buffer.len());
        Self { buffer: Arc::clone(buffer), range: range.start.min(end)..end }
    }

    /// As [`Buffer::grant_for`].
    #[must_use]
    pub fn grant_for(&self, bytes: usize) -> Grant {
        self.buffer.grant_for(bytes)
    }
}

impl From<Buffer> for Slice {
    fn from(buffer: Buffer) -> Self {
        Self { range: 0..buffer.len(), buffer: Arc::new(buffer) }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let grant = self.grant.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(grant.take());
        grant.budget.recycle(bytes);
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
        drop(grant.split(8));
        let _second = budget.acquire(1).unwrap();
        cancel.stop();
        assert!(budget.acquire(1).is_err());
    }

    #[test]
    fn buffers_are_used_again_and_stay_within_the_capacity() {
        let budget = Budget::new(1 << 20, Arc::new(Cancel::default()));
        let mut first = budget.buffer(300_000).unwrap();
        first.extend_from_slice(b"bytes");
        let (address, capacity) = (first.as_ptr(), first.capacity());
        let rest = first.grant_for(1000);
        drop(first);
        let second = budget.buffer(capacity).unwrap();
        assert!(second.is_empty() && second.as_ptr() == address, "not the same memory");
        drop((second, rest));
        assert_eq!(budget.lock().spare_bytes, capacity);
        // A request for all of it drives the spare one out.
        let _all = budget.acquire(1 << 20).unwrap();
        let state = budget.lock();
        assert_eq!(state.used, 1 << 20);
        drop(state);
    }

    #[test]
    fn small_requests_use_a_part_and_large_ones_all() {
        let cancel = Arc::new(Cancel::default());
        let budget = Budget::new(12 << 20, Arc::clone(&cancel));
        let _small: Vec<Grant> = (0..4).map(|_| budget.acquire(1 << 20).unwrap()).collect();
        let _large = budget.acquire(8 << 20).unwrap();
        cancel.stop();
        assert!(budget.acquire(1).is_err(), "a fifth MiB of small ones");
    }

    #[test]
    fn size_classes() {
        for (size, class) in [
            (0, 65_536),
            (65_536, 65_536),
            (65_537, 81_920),
            ((2 << 20) - 1, 2 << 20),
            (2 << 20, (4 << 20) - 4096),
            ((4 << 20) - 4096, (4 << 20) - 4096),
            (20 << 20, (22 << 20) - 4096),
        ] {
            assert_eq!(size_class(size), class);
        }
    }
}
