//! Stage *receive*: a wheel from a pipe. It is spooled as it comes, and what has come is inflated, classified and
//! compressed at once, so that little is left to do when the last byte arrives.
//!
//! All of that is a guess. Local headers are only a promise; when the central directory is there, a member's result
//! counts if the directory describes exactly the member that it was made of. Code objects are cut out before the
//! section headers say where they are (see [`spot`](super::spot)); a frame counts if the plan asks for exactly its
//! bytes. Whatever does not count is made again, from the spooled file, as for any other input.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::Context;
use super::ahead::{Anticipating, Anticipators};
use super::cancel::Cancel;
use super::classify::{Classified, FirstPass, Kind, Members, look_into};
use super::early::Early;
use super::scan::{Scan, Scanned};
use super::unbundle::join;
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
    let received = std::thread::scope(|scope| {
        let filler = scope.spawn(|| cancel.watch(spool.fill(std::io::stdin().lock(), || arrived(cancel))));
        let (anticipating, anticipators) = Anticipating::start(scope, context, frames_file);
        let arriving = Arriving { context, spool: &spool, anticipators: &anticipators };
        let members = arriving.run();
        let filled = join(filler).err();
        let early = anticipating.finish(anticipators, filled)?;
        // An error in a member is not reported here: the first pass proper meets it again, and knows the whole wheel.
        Ok::<_, Error>(Received { members: members.unwrap_or_default(), early: Some(early) })
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
    anticipators: &'a Anticipators<'scope, 'env>,
}

impl Arriving<'_, '_, '_> {
    fn run(self) -> Result<Members> {
        let mut members = Members::new();
        let mut bytes = Available { spool: self.spool, map: map(self.spool)?, complete: false };
        let mut offset = 0;
        loop {
            let entry = match arrival(&bytes.map, offset)? {
                Arrival::Member(entry) => entry,
                Arrival::End => return Ok(members),
                Arrival::Incomplete if bytes.complete => return Ok(members),
                Arrival::Incomplete => {
                    bytes.more(self.context)?;
                    continue;
                }
            };
            offset = entry.data.end;
            let (sha256, scanned, checkpoints) = self.member(&entry, &mut bytes)?;
            let batch = Input::of_entries(Path::new("-"), map(self.spool)?, vec![entry.clone()]);
            let kind = match batch.members().first().filter(|member| member.is_file()) {
                Some(member) => look_into(&batch, member, &scanned, checkpoints)?,
                None => Kind::Plain,
            };
            members.insert(entry.header_offset, (entry, Classified { sha256, kind, warning: None }));
        }
    }

    /// Reads a member that may still be arriving. Its SHA-256, what was found in it, and checkpoints.
    fn member(&self, entry: &Entry, bytes: &mut Available<'_>) -> Result<([u8; 32], Scanned, Checkpoints)> {
        let mut lap = self.context.stats.classify.lap();
        let anticipators = Some(self.anticipators);
        let mut scan = Scan::new(self.context, &entry.name, entry.size, entry.header_offset, anticipators);
        let mut sha256 = Sha256::new();
        let mut look = |scan: &mut Scan<'_, '_, '_>, chunk: &[u8]| {
            sha256.update(chunk);
            if scan.position() + chunk.len() as u64 > entry.size {
                return Err(super::cancel::stopped());
            }
            scan.feed(chunk)
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
                    look(&mut scan, input)?;
                    read = input.len();
                }
                Method::Deflated => loop {
                    // Not all that is there at once: what was read is given back now and then.
                    let step = inflater
                        .step(&input[read..], &mut buffer)
                        .map_err(|message| Fault::unreadable("deflate stream", scan.position(), message))?;
                    read += step.consumed;
                    look(&mut scan, &buffer[..step.produced])?;
                    ended = step.ended;
                    let pending = step.produced == buffer.len();
                    if ended || step.produced == 0 || !pending && read as u64 >= MAP {
                        break;
                    }
                    let compressed = (at - entry.data.start) + read as u64;
                    checkpoints.offer(
                        usize::try_from(compressed).unwrap_or(usize::MAX),
                        scan.position(),
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
        // If something is wrong, the first pass proper says what. Objects that are not whole are forgotten then.
        if scan.position() != entry.size || at != entry.data.end {
            return Err(super::cancel::stopped());
        }
        let scanned = scan.finish()?;
        if scanned.crc32 != entry.crc32 {
            return Err(super::cancel::stopped());
        }
        Ok((sha256.finalize().into(), scanned, checkpoints))
    }
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
