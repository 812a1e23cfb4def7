//! Stage *unbundle*: cuts code objects out of a stream of bytes, be it a member or a compressed bundle that is
//! being decompressed (see [`decode`](super::decode)).
//!
//! A small object is collected whole and becomes one job for any worker. A large one goes to an encoder thread of
//! its own, chunk by chunk, so that no worker ever waits for bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

use crossbeam_channel::{Sender, bounded};

use super::budget::{Budget, Buffer, Slice};
use super::cancel::{Cancel, cause, hung_up, stopped};
use super::compress::{self, Job};
use super::item::{Compressed, CutIndex, Unbundled};
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::io::member::CHUNK;
use crate::options::Scheme;

/// Objects up to this size are compressed in one go, which takes zstd two thirds of the time of a stream. Nearly all
/// code objects of real libraries are smaller; the budget of every producer must hold two of them.
pub const SMALL: u64 = 20 << 20;
/// Large objects that one producer may have in the making.
const LARGE_AT_ONCE: usize = 2;
/// Chunks that wait for a large object's encoder.
const LARGE_QUEUE: usize = 8;

/// What producers need to know and where they send to. Cheap to clone.
#[derive(Clone)]
pub struct Output<'env> {
    /// To the workers.
    pub jobs: Sender<Job>,
    /// To the archives.
    pub frames: Sender<Compressed>,
    /// How objects are stored.
    pub scheme: Scheme,
    /// Whether compressed bundles must match the hash in their header.
    pub verify_bundles: bool,
    /// Looked at before waiting.
    pub cancel: &'env Cancel,
    /// For timings.
    pub stats: &'env Stats,
}

/// One object of a stream: its number, and the bytes of the stream that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The object.
    pub cut: CutIndex,
    /// Where it lies.
    pub range: Range<u64>,
}

/// An object of which bytes have come and more will.
enum Open {
    Small(Buffer),
    Large { chunk: Buffer, encoder: Sender<Buffer> },
}

/// Cuts the objects of one stream.
pub struct Cutter<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    pub(super) output: Output<'env>,
    pub(super) budget: Arc<Budget>,
    encoders: Vec<ScopedJoinHandle<'scope, Result<()>>>,
    /// The cuts that are still to start, in the order of their ranges.
    waiting: VecDeque<Piece>,
    /// Those that have started. More than one only if objects overlap.
    open: Vec<(Piece, Open)>,
}

impl<'scope, 'env> Cutter<'scope, 'env> {
    /// A cutter without anything to cut. `budget` must hold two small objects.
    pub fn new(scope: &'scope Scope<'scope, 'env>, output: Output<'env>, budget: Arc<Budget>) -> Self {
        Self { scope, output, budget, encoders: Vec::new(), waiting: VecDeque::new(), open: Vec::new() }
    }

    /// Sets the objects of the next stream. Those of the one before must be complete.
    pub fn expect(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        self.waiting.clear();
        self.waiting.extend(pieces);
    }

    /// Adds objects to those of the present stream. They must not have started yet.
    pub fn expect_more(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        self.waiting.extend(pieces);
    }

    /// Forgets the objects of the present stream that are not complete.
    pub fn abandon(&mut self) {
        self.waiting.clear();
        self.open.clear();
    }

    /// Takes what belongs to objects from `bytes`, which stand at `position` of the stream.
    pub fn feed(&mut self, position: u64, bytes: &[u8]) -> Result<()> {
        let end = position + bytes.len() as u64;
        // What is open first: an object that ends here must be on its way before memory for the next is asked for.
        self.go_on(0, position, bytes)?;
        while let Some(piece) = self.waiting.pop_front_if(|piece| piece.range.start < end) {
            let open = self.start(&piece)?;
            self.open.push((piece, open));
            self.go_on(self.open.len() - 1, position, bytes)?;
        }
        Ok(())
    }

    /// Gives the open objects from `index` on what `bytes` has of them.
    fn go_on(&mut self, mut index: usize, position: u64, bytes: &[u8]) -> Result<()> {
        let end = position + bytes.len() as u64;
        while index < self.open.len() {
            let range = &self.open[index].0.range;
            // Both are at most bytes.len(). An empty object that starts late has none of them.
            let to = range.end.min(end).saturating_sub(position) as usize;
            let from = (range.start.saturating_sub(position) as usize).min(to);
            let complete = range.end <= end;
            // A complete object leaves the list.
            self.take(index, &bytes[from..to], complete)?;
            if !complete {
                index += 1;
            }
        }
        Ok(())
    }

    /// Time that it has waited for memory so far.
    pub fn waited(&self) -> std::time::Duration {
        self.budget.waited()
    }

    /// Ends a stream: empty objects that stand at its very end have no byte that would have started them.
    pub fn end(&mut self) -> Result<()> {
        if let Some(last) = self.waiting.back() {
            let behind = last.range.start.saturating_add(1);
            self.feed(behind, &[])?;
        }
        Ok(())
    }

    fn start(&mut self, piece: &Piece) -> Result<Open> {
        let cut = piece.cut;
        let size = piece.range.end - piece.range.start;
        if size <= SMALL {
            let size = size as usize;
            return Ok(Open::Small(self.budget.buffer(size)?));
        }
        if self.encoders.len() >= LARGE_AT_ONCE {
            join(self.encoders.remove(0))?;
        }
        let (sender, chunks) = bounded(LARGE_QUEUE);
        let Output { scheme, cancel, stats, .. } = self.output;
        let frames = self.output.frames.clone();
        self.encoders.push(
            self.scope
                .spawn(move || cancel.watch(compress::stream(cut, size, &chunks, &frames, scheme, stats))),
        );
        Ok(Open::Large { chunk: self.budget.buffer(CHUNK)?, encoder: sender })
    }

    fn take(&mut self, index: usize, mut piece: &[u8], complete: bool) -> Result<()> {
        if complete && matches!(self.open[index].1, Open::Small(_)) {
            let (Piece { cut, .. }, Open::Small(mut bytes)) = self.open.remove(index) else { return Ok(()) };
            bytes.extend_from_slice(piece);
            return self
                .output
                .jobs
                .send(Job::Compress(Unbundled { cut, bytes: bytes.into() }))
                .map_err(hung_up);
        }
        match &mut self.open[index].1 {
            Open::Small(bytes) => bytes.extend_from_slice(piece),
            // Chunks are cut at fixed places of the object, so that its frame does not depend on the stream's chunks.
            Open::Large { chunk, encoder } => loop {
                let now = piece.len().min(CHUNK - chunk.len());
                chunk.extend_from_slice(&piece[..now]);
                piece = &piece[now..];
                if complete && piece.is_empty() {
                    let (_, Open::Large { chunk, encoder }) = self.open.remove(index) else { return Ok(()) };
                    return encoder.send(chunk).map_err(|_| self.encoder_failed());
                }
                if chunk.len() < CHUNK {
                    break;
                }
                let next = self.budget.buffer(CHUNK)?;
                if encoder.send(std::mem::replace(chunk, next)).is_err() {
                    return Err(self.encoder_failed());
                }
            },
        }
        Ok(())
    }

    /// An encoder is gone: why, it says itself.
    fn encoder_failed(&mut self) -> Error {
        // Those that are well wait for chunks that will not come.
        self.abandon();
        let failed = self.encoders.drain(..).filter_map(|encoder| join(encoder).err());
        cause(failed).unwrap_or_else(stopped)
    }

    /// Cuts `pieces` out of a stream that is there as a whole. No other may be open.
    pub fn whole(&mut self, pieces: impl IntoIterator<Item = Piece>, content: Buffer) -> Result<()> {
        let content = Arc::new(content);
        for piece in pieces {
            let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
            let bytes = Slice::of(&content, place(piece.range.start)..place(piece.range.end));
            if piece.range.end - piece.range.start <= SMALL {
                let job = Job::Compress(Unbundled { cut: piece.cut, bytes });
                self.output.jobs.send(job).map_err(hung_up)?;
            } else {
                // The same frame as if it had come in chunks.
                let open = self.start(&piece)?;
                self.open.push((piece, open));
                self.take(self.open.len() - 1, &bytes, true)?;
            }
        }
        Ok(())
    }

    /// Ends the last stream and waits for the encoders of large objects.
    pub fn finish(mut self) -> Result<()> {
        self.end()?;
        if !self.open.is_empty() || !self.waiting.is_empty() {
            return Err(stopped());
        }
        self.encoders.into_iter().try_for_each(join)
    }
}

/// Waits for a thread. A panic in it is a bug, and goes on here.
pub fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
