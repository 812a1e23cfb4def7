//! Stage *receive*: a wheel from a pipe. It is spooled as it comes, and what has come is inflated, classified and
//! compressed at once, so that little is left to do when the last byte arrives.
//!
//! All of that is a guess. Local headers are only a promise; when the central directory is there, a member's result
//! counts if the directory describes exactly the member that it was made of. Code objects are cut out before the
//! section headers say where they are (see [`spot`](super::spot)); a frame counts if the plan asks for exactly its
//! bytes. Whatever does not count is made again, from the spooled file, as for any other input.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crossbeam_channel::unbounded;
use sha2::{Digest, Sha256};

use super::Context;
use super::budget::Budget;
use super::cancel::{Cancel, cause};
use super::classify::{Classified, FirstPass, Kind, Members};
use super::decode::{Decoders, Objects};
use super::early::Early;
use super::limits::{Kinds, Limits};
use super::meter::Meter;
use super::spot::{Key, Registry, Spotted, Spotter};
use super::unbundle::{Cutter, join};
use super::workers::Workers;
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::io::member::CHUNK;
use crate::io::output::scratch;
use crate::io::spool::Spool;
use crate::io::{Checkpoints, Input};
use crate::sys::inflate::Inflater;
use crate::sys::map::Map;
use crate::zip::reader::arrival;
use crate::zip::{Arrival, Entry, Method};

/// The spooled file is mapped anew after so many new bytes, and what was read is given back.
const MAP: u64 = 1 << 20;

/// What could be done while the wheel arrived.
#[derive(Debug, Default)]
pub struct Received {
    /// Classified members.
    pub members: Members,
    /// Compressed code objects.
    pub early: Option<Early>,
}

/// Takes in standard input.
pub fn receive(context: &Context<'_>) -> Result<(Input, Received)> {
    let Context { options, cancel, .. } = *context;
    let spool = Spool::new(&options.spool, &options.output_dir)?;
    let frames_file = scratch(&options.output_dir)?;
    let keys = Arc::new(Mutex::new(Vec::new()));
    let limits = Limits::of(options, Kinds::Both);
    let received = std::thread::scope(|scope| {
        let filler = scope.spawn(|| cancel.watch(spool.fill(std::io::stdin().lock(), || arrived(cancel))));
        let (to_keep, frames) = unbounded();
        // No host block is made here.
        let (no_steps, _) = unbounded();
        let Workers { output, decoders, threads } =
            Workers::start(scope, context, &limits, to_keep, &no_steps);
        let known = &keys;
        let keeper = scope.spawn(move || cancel.watch(Early::keep(frames_file, &frames, known)));
        let cutter = Cutter::new(scope, output, Budget::new(limits.objects, Arc::clone(cancel)));
        let arriving = Arriving { context, spool: &spool, decoders, cutter, keys: Arc::clone(&keys) };
        let members = arriving.run();
        let mut errors: Vec<Error> = join(filler).err().into_iter().collect();
        errors.extend(threads.join());
        let early = join(keeper).map_err(|error| errors.push(error)).ok();
        match cause(errors) {
            Some(error) => Err(error),
            // An error in a member is not reported here: the first pass proper meets it again, and knows the whole
            // wheel.
            None => Ok(Received { members: members.unwrap_or_default(), early }),
        }
    })?;
    cancel.check()?;
    let input = Input::of_map(Path::new("-"), map(&spool)?)?;
    Ok((input, received))
}

/// Waits for bytes at standard input, but not longer than until the split is cancelled: a writer that hangs must not
/// keep it from stopping. Standard input's own buffer is empty, since what is read is longer than that.
fn arrived(cancel: &Cancel) -> Result<()> {
    loop {
        cancel.check()?;
        #[cfg(unix)]
        {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let stdin = std::io::stdin();
            let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            // Where it cannot be polled, reading says why.
            if matches!(poll(&mut ready, Some(&wait)), Ok(0) | Err(rustix::io::Errno::INTR)) {
                continue;
            }
        }
        return Ok(());
    }
}

fn map(spool: &Spool) -> Result<Map> {
    let file = spool.file().try_clone();
    file.and_then(Map::of).map_err(|error| Error::io("map the spooled input", None, error))
}

/// The thread that reads what has arrived.
struct Arriving<'a, 'scope, 'env> {
    context: &'a Context<'a>,
    spool: &'a Spool,
    decoders: Decoders,
    cutter: Cutter<'scope, 'env>,
    keys: Arc<Mutex<Vec<Key>>>,
}

impl Arriving<'_, '_, '_> {
    fn run(mut self) -> Result<Members> {
        let mut members = Members::new();
        let mut bytes = Available { spool: self.spool, map: map(self.spool)?, complete: false };
        let mut offset = 0;
        loop {
            let entry = match arrival(&bytes.map, offset)? {
                Arrival::Member(entry) => entry,
                Arrival::End => break,
                Arrival::Incomplete if bytes.complete => break,
                Arrival::Incomplete => {
                    bytes.more(self.context)?;
                    continue;
                }
            };
            offset = entry.data.end;
            let (sha256, prefix, checkpoints) = self.member(&entry, &mut bytes)?;
            self.cutter.end()?;
            self.cutter.abandon();
            self.decoders.abandon();
            let batch = Input::of_entries(Path::new("-"), map(self.spool)?, vec![entry.clone()]);
            let meter = Meter::new(0, None);
            let kind = match batch.members().first().filter(|member| member.is_file()) {
                Some(member) => {
                    let interval = FirstPass::interval(member.size);
                    let pass =
                        FirstPass { context: self.context, input: &batch, member, interval, meter: &meter };
                    pass.look_into(&prefix, checkpoints)?
                }
                None => Kind::Plain,
            };
            members.insert(entry.header_offset, (entry, Classified { sha256, kind, warning: None }));
        }
        self.cutter.finish()?;
        Ok(members)
    }

    /// Reads a member that may still be arriving. Its SHA-256, its first bytes, and checkpoints.
    fn member(
        &mut self,
        entry: &Entry,
        bytes: &mut Available<'_>,
    ) -> Result<([u8; 32], Vec<u8>, Checkpoints)> {
        let mut lap = self.context.stats.classify.lap();
        let mut pass = Pass {
            crc: crc32fast::Hasher::new(),
            sha256: Sha256::new(),
            prefix: Vec::new(),
            position: 0,
            spotter: Spotter::new(entry.size),
            registry: Arc::new(Registry::new(entry.header_offset, Arc::clone(&self.keys))),
        };
        let mut checkpoints = Checkpoints::every(FirstPass::interval(entry.size));
        let mut inflater = Inflater::new()
            .ok_or_else(|| Error::io("allocate memory", None, std::io::ErrorKind::OutOfMemory.into()))?;
        let mut buffer = vec![0; CHUNK];
        let (mut at, mut ended) = (entry.data.start, false);
        let mut released = at;
        while at < entry.data.end && !ended {
            let mut input = bytes.slice(at, entry.data.end);
            if input.is_empty() {
                lap.worked(0);
                bytes.more(self.context)?;
                lap.waited();
                if bytes.complete && bytes.slice(at, entry.data.end).is_empty() {
                    return Err(super::cancel::stopped());
                }
                continue;
            }
            let mut read = 0;
            match entry.method {
                Method::Stored => {
                    input = &input[..input.len().min(CHUNK)];
                    self.chunk(entry, &mut pass, input)?;
                    read = input.len();
                }
                Method::Deflated => loop {
                    // Not all that is there at once: what was read is given back now and then.
                    let step = inflater
                        .step(&input[read..], &mut buffer)
                        .map_err(|message| Fault::unreadable("deflate stream", pass.position, message))?;
                    read += step.consumed;
                    self.chunk(entry, &mut pass, &buffer[..step.produced])?;
                    ended = step.ended;
                    let pending = step.produced == buffer.len();
                    if ended || step.produced == 0 || !pending && read as u64 >= MAP {
                        break;
                    }
                    let compressed = (at - entry.data.start) + read as u64;
                    checkpoints.offer(
                        usize::try_from(compressed).unwrap_or(usize::MAX),
                        pass.position,
                        &inflater,
                    )?;
                },
            }
            at += read as u64;
            lap.worked(0);
            if at - released >= MAP {
                bytes.map.release(released as usize..at as usize); // both inside the map
                released = at;
            }
        }
        if pass.position != entry.size || at != entry.data.end || pass.crc.finalize() != entry.crc32 {
            // The first pass proper says what is wrong.
            return Err(super::cancel::stopped());
        }
        Ok((pass.sha256.finalize().into(), pass.prefix, checkpoints))
    }

    fn chunk(&mut self, entry: &Entry, pass: &mut Pass, chunk: &[u8]) -> Result<()> {
        self.context.cancel.check()?;
        let missing = 8usize.saturating_sub(pass.prefix.len()).min(chunk.len());
        pass.prefix.extend_from_slice(&chunk[..missing]);
        pass.crc.update(chunk);
        pass.sha256.update(chunk);
        let position = pass.position;
        pass.position += chunk.len() as u64;
        if !crate::elf::is_elf(&pass.prefix) && !crate::pe::is_pe(&pass.prefix) {
            return Ok(());
        }
        self.decoders.feed(position, chunk)?;
        let mut spotted = Vec::new();
        pass.spotter.feed(position, chunk, |bundle| spotted.push(bundle));
        for bundle in spotted {
            match bundle {
                Spotted::Plain { offset, header } => {
                    let pieces = pass.registry.register(None, offset, &header);
                    self.cutter.expect_more(pieces.into_iter().filter(|piece| piece.range.start >= position));
                }
                Spotted::Compressed { header, payload, window } => {
                    if payload.start < position {
                        continue;
                    }
                    let objects = Objects::Spotted(Arc::clone(&pass.registry));
                    self.decoders.start(&entry.name, header, payload, window, objects)?;
                    self.decoders.feed(position, chunk)?;
                }
            }
        }
        self.cutter.feed(position, chunk)
    }
}

/// State of one member.
struct Pass {
    crc: crc32fast::Hasher,
    sha256: Sha256,
    prefix: Vec<u8>,
    /// Uncompressed bytes so far.
    position: u64,
    spotter: Spotter,
    registry: Arc<Registry>,
}

/// The part of the wheel that has arrived.
struct Available<'a> {
    spool: &'a Spool,
    map: Map,
    complete: bool,
}

impl Available<'_> {
    /// The bytes from `at` to `end` that are there.
    fn slice(&self, at: u64, end: u64) -> &[u8] {
        let length = self.map.len() as u64;
        // Both are at most the map's length.
        let (from, to) = (at.min(length) as usize, end.min(length) as usize);
        self.map.get(from..to).unwrap_or_default()
    }

    /// Waits for more.
    fn more(&mut self, context: &Context<'_>) -> Result<()> {
        let seen = self.map.len() as u64;
        let check = || context.cancel.check();
        // In larger steps, unless that is all for now.
        let (_, complete) = self.spool.wait(seen.saturating_add(MAP - 1), check)?;
        self.complete = complete;
        self.map = map(self.spool)?;
        Ok(())
    }
}
