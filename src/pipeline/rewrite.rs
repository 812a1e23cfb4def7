//! Stage *rewrite*: walks the members of the host wheel in order, in one thread. Unchanged members are only named;
//! the others are inflated once more, and every byte goes through the edit plan to the host wheel, to the cutter of
//! code objects, or as a compressed bundle to a decoder.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::budget::{Budget, Grant};
use super::cancel::{Cancel, hung_up};
use super::compress::Job;
use super::decode::{Decoders, Objects};
use super::early::Early;
use super::item::{Compressed, Cut, Extent, Frame, HostStep, Rewritten};
use super::meter::Meter;
use super::spot::Key;
use super::stats::Stats;
use super::unbundle::{Cutter, Piece};
use crate::edit::{Apply, Capture, EditPlan, Planned};
use crate::error::{Error, Result};
use crate::io::member::CHUNK;
use crate::io::{Checkpoints, Input, Member, MemberReader, StreamReader};
use crate::source::ReadAt;

/// Rewritten members are deflated in blocks of this size: the history that a block borrows from the one before
/// it, 32 KiB, must be small against it, and a worker's cache must hold it.
pub const BLOCK: usize = 256 << 10;

/// Re-parses the captured ranges of a rewritten binary.
pub type Check<'plan> = Box<dyn Fn(&mut Capture) -> crate::fault::Result<()> + Send + 'plan>;

/// A fat binary's part in the second pass.
pub struct FatStream<'plan> {
    /// What becomes of its bytes.
    pub edits: &'plan EditPlan,
    /// Its device code.
    pub extents: &'plan [Extent],
    /// Output ranges to capture, and what to do with them in the end.
    pub verify: Vec<Range<u64>>,
    /// Re-parses the captured output.
    pub check: Check<'plan>,
    /// If all of its code objects were compressed in the first pass: where they are kept, and the checkpoints
    /// for reading what is left.
    pub early: Option<(&'plan Early, u64, &'plan Checkpoints)>,
}

/// What happens to one member of the host wheel.
pub enum HostMember<'plan> {
    /// It is copied as it stands.
    Copy,
    /// It is deflated anew, but not changed (the input is a directory).
    Pack,
    /// It is rewritten.
    Rewrite(FatStream<'plan>),
}

/// The one thread that reads the input in the second pass.
pub struct Rewriter<'scope, 'env> {
    pub(super) input: &'env Input,
    pub(super) cancel: &'env Cancel,
    pub(super) meter: &'env Meter,
    pub(super) jobs: Sender<Job>,
    pub(super) steps: Sender<(u64, HostStep)>,
    pub(super) decoders: Decoders,
    pub(super) cutter: Cutter<'scope, 'env>,
    /// All code objects of the plan.
    pub(super) cuts: &'env [Cut],
    /// For host blocks.
    pub(super) budget: Arc<Budget>,
    pub(super) next_ticket: u64,
    pub(super) stats: &'env Stats,
}

impl Rewriter<'_, '_> {
    /// Walks `members`, which are in the order of the host wheel.
    pub fn run<'plan>(mut self, members: impl Iterator<Item = (usize, HostMember<'plan>)>) -> Result<()> {
        let input = self.input;
        let mut reader = StreamReader::new()?;
        let mut lap = self.stats.rewrite.lap();
        for (index, action) in members {
            self.cancel.check()?;
            let member = &input.members()[index];
            let waited_before = self.waited();
            let copied = matches!(action, HostMember::Copy);
            match action {
                HostMember::Copy => self.step(HostStep::Copy(index))?,
                HostMember::Pack => {
                    self.step(HostStep::Begin(index, deflated_bound(member.size)))?;
                    let mut blocks = Blocks::new(&self.budget)?;
                    reader.read(input, member, None, |chunk| {
                        self.progress(chunk.len())?;
                        blocks.push(chunk, |rewritten| self.block(rewritten))
                    })?;
                    blocks.finish(|rewritten| self.block(rewritten))?;
                    self.step(HostStep::End)?;
                }
                HostMember::Rewrite(fat) => {
                    self.step(HostStep::Begin(index, deflated_bound(fat.edits.output_len())))?;
                    match fat.early {
                        None => self.rewrite(member, &fat, &mut reader),
                        Some((early, key, checkpoints)) => {
                            self.put_together(member, &fat, early, key, checkpoints)
                        }
                    }
                    .map_err(|error| error.in_member(&member.name))?;
                    self.step(HostStep::End)?;
                }
            }
            let waited = self.waited();
            lap.less(waited - waited_before);
            lap.worked(if copied { 0 } else { member.size });
        }
        self.cutter.finish()
    }

    fn rewrite(&mut self, member: &Member, fat: &FatStream<'_>, reader: &mut StreamReader) -> Result<()> {
        let mut apply = Apply::new(fat.edits);
        let mut capture = Capture::new(fat.edits.output_len(), fat.verify.clone());
        let mut blocks = Blocks::new(&self.budget)?;
        let mut extents = fat.extents.iter().peekable();
        let mut position = 0u64;
        let (input, cuts) = (self.input, self.cuts);
        let piece = |cut: usize| Piece { cut, range: cuts[cut].range.clone() };
        self.cutter.expect(fat.extents.iter().filter_map(|extent| match extent {
            Extent::Plain(cut) => Some(piece(*cut)),
            Extent::Compressed { .. } => None,
        }));
        reader.read(input, member, None, |chunk| {
            self.progress(chunk.len())?;
            apply.feed(chunk, |bytes| {
                capture.feed(bytes);
                blocks.push(bytes, |rewritten| self.block(rewritten))
            })?;
            let end = position + chunk.len() as u64;
            self.decoders.feed(position, chunk)?;
            let mut fed = 0;
            while !self.decoders.is_busy() {
                while extents.next_if(|extent| matches!(extent, Extent::Plain(_))).is_some() {}
                let starts = |extent: &&Extent| matches!(extent, Extent::Compressed { payload, .. } if payload.start < end);
                let Some(Extent::Compressed { header, payload, window, cuts }) = extents.next_if(starts) else { break };
                let objects = Objects::Planned(cuts.clone().map(piece).collect());
                // The objects in front of it first: a decoder may wait until they are written.
                let before = (payload.start.saturating_sub(position) as usize).clamp(fed, chunk.len());
                self.cutter.feed(position + fed as u64, &chunk[fed..before])?;
                fed = before;
                self.decoders.start(&member.name, *header, payload.clone(), *window, objects)?;
                self.decoders.feed(position, chunk)?;
            }
            self.cutter.feed(position + fed as u64, &chunk[fed..])?;
            position = end;
            Ok(())
        })?;
        self.cutter.end()?;
        apply.finish(|bytes| {
            capture.feed(bytes);
            blocks.push(bytes, |rewritten| self.block(rewritten))
        })?;
        blocks.finish(|rewritten| self.block(rewritten))?;
        checked(fat, &mut capture)
    }

    /// Rewrites a binary whose code objects are compressed already: only the bytes that the host keeps are inflated.
    fn put_together(
        &mut self,
        member: &Member,
        fat: &FatStream<'_>,
        early: &Early,
        key: u64,
        checkpoints: &Checkpoints,
    ) -> Result<()> {
        let mut capture = Capture::new(fat.edits.output_len(), fat.verify.clone());
        let mut blocks = Blocks::new(&self.budget)?;
        let mut output = Planned::new(fat.edits, MemberReader::new(self.input, member, checkpoints)?);
        let mut buffer = vec![0; CHUNK];
        let mut done = 0;
        while done < output.len() {
            let take = usize::try_from(output.len() - done).unwrap_or(CHUNK).min(CHUNK);
            let bytes = &mut buffer[..take];
            output.read_at(done, bytes)?;
            capture.feed(bytes);
            blocks.push(bytes, |rewritten| self.block(rewritten))?;
            done += take as u64;
            self.cancel.check()?;
        }
        blocks.finish(|rewritten| self.block(rewritten))?;
        self.progress(usize::try_from(member.size).unwrap_or(usize::MAX))?;
        for (cut, payload) in super::item::cuts_of(fat.extents) {
            let key = Key { member: key, payload, range: self.cuts[cut].range.clone() };
            let compressed = Compressed { cut, frame: Frame::Kept(early.take(&key)?) };
            self.cutter.output.frames.send(compressed).map_err(hung_up)?;
        }
        checked(fat, &mut capture)
    }

    fn progress(&self, bytes: usize) -> Result<()> {
        self.meter.add(bytes as u64);
        self.cancel.check()
    }

    /// Time that this thread has waited for memory so far.
    fn waited(&self) -> Duration {
        self.budget.waited() + self.decoders.waited() + self.cutter.waited()
    }

    fn ticket(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    fn step(&mut self, step: HostStep) -> Result<()> {
        let ticket = self.ticket();
        self.steps.send((ticket, step)).map_err(hung_up)
    }

    fn block(&mut self, mut rewritten: Rewritten) -> Result<()> {
        rewritten.ticket = self.ticket();
        self.jobs.send(Job::Deflate(rewritten)).map_err(hung_up)
    }
}

/// Re-parses what was written of a binary.
fn checked(fat: &FatStream<'_>, capture: &mut Capture) -> Result<()> {
    (fat.check)(capture).map_err(|mut fault| {
        fault.message.insert_str(0, "the rewritten binary is not what was planned (a bug in fatwheel): ");
        Error::from(fault)
    })
}

/// Deflate grows what does not compress by 5 bytes per 16 KiB block, and every block of ours ends with 5 more.
fn deflated_bound(size: u64) -> u64 {
    size.saturating_add(size / 1000).saturating_add(1024)
}

/// Collects the bytes of one member into blocks for deflate.
struct Blocks {
    budget: Arc<Budget>,
    current: Vec<u8>,
    grant: Grant,
    previous: Option<Arc<Vec<u8>>>,
}

impl Blocks {
    fn new(budget: &Arc<Budget>) -> Result<Self> {
        // The grant also counts the deflated bytes, which are fewer.
        let grant = budget.acquire(2 * BLOCK)?;
        Ok(Self { budget: Arc::clone(budget), current: Vec::with_capacity(BLOCK), grant, previous: None })
    }

    fn push(&mut self, mut bytes: &[u8], mut send: impl FnMut(Rewritten) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            if self.current.len() == BLOCK {
                let block = std::mem::replace(&mut self.current, Vec::with_capacity(BLOCK));
                send(self.rewritten(block, false))?;
                self.grant = self.budget.acquire(2 * BLOCK)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.current.len()));
            self.current.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn finish(mut self, mut send: impl FnMut(Rewritten) -> Result<()>) -> Result<()> {
        let block = std::mem::take(&mut self.current);
        send(self.rewritten(block, true))
    }

    fn rewritten(&mut self, block: Vec<u8>, last: bool) -> Rewritten {
        let block = Arc::new(block);
        let previous = self.previous.replace(Arc::clone(&block));
        Rewritten { ticket: 0, previous, block, last, grant: self.grant.take() }
    }
}

// A chunk is what is read at a time; a block that is not a multiple of it would only copy more.
const _: () = assert!(BLOCK >= CHUNK);
