//! Stages *hash* and *emit*: results come from the workers in any order and are written in the order of their
//! tickets, so the outputs do not depend on scheduling.
//!
//! Two threads: one for the host wheel (and its variant), one for all archives of all device wheels.

use std::collections::BTreeMap;

use crossbeam_channel::Receiver;
use sha2::{Digest, Sha256};

use super::archive::KpackWriter;
use super::cancel::stopped;
use super::early::Early;
use super::item::{Compressed, Cut, Frame, HostStep};
use super::sink::Sink;
use super::stats::Stage;
use crate::error::Result;
use crate::io::{Input, StreamReader};
use crate::zip::{Method, Sizes};

/// Restores order: items come in any order, each ticket once, and leave in ascending order without a gap.
#[derive(Debug)]
struct InOrder<T> {
    next: u64,
    waiting: BTreeMap<u64, T>,
}

impl<T> InOrder<T> {
    fn new() -> Self {
        Self { next: 0, waiting: BTreeMap::new() }
    }

    fn push(&mut self, ticket: u64, item: T) {
        self.waiting.insert(ticket, item);
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }
}

/// What the host wheel's RECORD needs to know of a member that was written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Index of the member in the input.
    pub member: usize,
    /// SHA-256 of the new bytes.
    pub sha256: [u8; 32],
    /// Their number.
    pub size: u64,
}

struct OpenMember {
    index: usize,
    sha256: Sha256,
    crc: crc32fast::Hasher,
    sizes: Sizes,
}

/// Writes the host wheel's members to every one of `sinks`.
pub fn host(
    steps: &Receiver<(u64, HostStep)>,
    input: &Input,
    sinks: &mut [Sink],
    copied: impl Fn(u64),
    stage: &Stage,
) -> Result<Vec<Hashed>> {
    let mut order = InOrder::new();
    let mut reader = StreamReader::new()?;
    let mut open: Option<OpenMember> = None;
    let mut hashed = Vec::new();
    let mut lap = stage.lap();
    for (ticket, step) in steps {
        lap.waited();
        order.push(ticket, step);
        while let Some(step) = order.pop() {
            match step {
                HostStep::Copy(index) => {
                    let member = &input.members()[index];
                    for sink in &mut *sinks {
                        sink.copy(input, member, &mut reader)?;
                    }
                    lap.worked(member.size);
                    copied(member.size);
                }
                HostStep::Begin(index, at_most) => {
                    let member = &input.members()[index];
                    for sink in &mut *sinks {
                        sink.begin(&member.name, &member.attributes, Method::Deflated, at_most)?;
                    }
                    let (sha256, crc, sizes) = (Sha256::new(), crc32fast::Hasher::new(), Sizes::default());
                    open = Some(OpenMember { index, sha256, crc, sizes });
                }
                HostStep::Block { plain, deflated, crc32, grant } => {
                    if let Some(open) = &mut open {
                        open.sha256.update(plain.as_slice());
                        open.crc.combine(&crc32fast::Hasher::new_with_initial_len(crc32, plain.len() as u64));
                        open.sizes.compressed += deflated.len() as u64;
                        open.sizes.uncompressed += plain.len() as u64;
                    }
                    for sink in &mut *sinks {
                        sink.write(&plain, &deflated)?;
                    }
                    lap.worked(plain.len() as u64);
                    drop(grant);
                }
                HostStep::End => {
                    let Some(OpenMember { index, sha256, crc, mut sizes }) = open.take() else { continue };
                    sizes.crc32 = crc.finalize();
                    for sink in &mut *sinks {
                        sink.end(sizes)?;
                    }
                    hashed.push(Hashed {
                        member: index,
                        sha256: sha256.finalize().into(),
                        size: sizes.uncompressed,
                    });
                }
            }
        }
    }
    Ok(hashed)
}

/// Writes frames to the archives that store them.
pub fn archives(
    frames: &Receiver<Compressed>,
    cuts: &[Cut],
    early: Option<&Early>,
    writers: &mut [KpackWriter],
    stage: &Stage,
) -> Result<()> {
    // Parts of one frame come in order, but other frames' parts come between.
    let mut waiting: BTreeMap<usize, Vec<Frame>> = BTreeMap::new();
    let mut next = 0;
    let mut lap = stage.lap();
    for Compressed { cut, frame } in frames {
        lap.waited();
        stage.queued(waiting.len() + 1);
        waiting.entry(cut).or_default().push(frame);
        while let Some(parts) = waiting.remove(&next) {
            let (archives, size) = (&cuts[next].archives, cuts[next].size());
            let mut ended = false;
            for frame in parts {
                match frame {
                    Frame::Bytes { bytes, more, grant } => {
                        for &archive in archives {
                            writers[archive].write(next, size, &bytes, more)?;
                        }
                        lap.worked(bytes.len() as u64);
                        drop((bytes, grant));
                        ended = !more;
                    }
                    Frame::Kept(frame) => {
                        let early = early.ok_or_else(stopped)?;
                        for &archive in archives {
                            writers[archive].copy(next, size, &early.filed(&frame))?;
                        }
                        early.free(&frame);
                        lap.worked(size);
                        ended = true;
                    }
                }
            }
            if !ended {
                break;
            }
            next += 1;
        }
    }
    if next == cuts.len() && waiting.is_empty() { Ok(()) } else { Err(stopped()) }
}
