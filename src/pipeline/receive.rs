//! Stage *receive*: a wheel from a pipe. It is spooled as it comes, and every member is classified as soon as it is
//! complete, so that most of the first pass is done when the last byte arrives.
//!
//! Local headers are only a promise. When the central directory is there, a result counts if the directory describes
//! exactly the member that it was made of; all others are made again.

use std::collections::HashMap;
use std::path::Path;

use super::Context;
use super::classify::{Classified, FirstPass, in_parallel};
use super::meter::Meter;
use super::unbundle::join;
use crate::error::{Error, Result};
use crate::io::Input;
use crate::io::spool::Spool;
use crate::sys::map::Map;
use crate::zip::reader::arrival;
use crate::zip::{Arrival, Entry};

/// What could be done while the wheel was still coming: members by the offset of their local header.
pub type Received = HashMap<u64, (Entry, Classified)>;

/// Takes in standard input.
pub fn receive(context: &Context<'_>) -> Result<(Input, Received)> {
    let Context { options, cancel, .. } = *context;
    let spool = Spool::new(&options.spool, &options.output_dir)?;
    let received = std::thread::scope(|scope| {
        let filler = scope.spawn(|| cancel.watch(spool.fill(std::io::stdin().lock(), || cancel.check())));
        let early = classify_arriving(context, &spool);
        // What went wrong with the pipe explains whatever went wrong with its contents.
        join(filler)?;
        Ok::<_, Error>(early.unwrap_or_default())
    })?;
    cancel.check()?;
    let input = Input::of_map(Path::new("-"), map(&spool)?)?;
    Ok((input, received))
}

fn map(spool: &Spool) -> Result<Map> {
    let file = spool.file().try_clone();
    file.and_then(Map::of).map_err(|error| Error::io("map the spooled input", None, error))
}

/// Classifies members in batches of what has arrived. An error here is not reported: the first pass proper will meet
/// it again, and then knows the whole wheel.
fn classify_arriving(context: &Context<'_>, spool: &Spool) -> Result<Received> {
    let meter = Meter::new(0, None);
    let mut received = Received::new();
    let (mut offset, mut seen) = (0, 0);
    loop {
        let (available, complete) = spool.wait(seen, || context.cancel.check())?;
        seen = available;
        let map = map(spool)?;
        let mut entries = Vec::new();
        let more = loop {
            match arrival(&map, offset)? {
                Arrival::Member(entry) => {
                    offset = entry.data.end;
                    entries.push(entry);
                }
                Arrival::Incomplete => break !complete,
                Arrival::End => break false,
            }
        };
        let batch = Input::of_entries(Path::new("-"), map, entries);
        let classified = in_parallel(context, &batch, |member, reader| {
            let interval = FirstPass::interval(member.size);
            FirstPass { context, input: &batch, member, interval, meter: &meter }.run(reader)
        })?;
        for (member, result) in batch.members().iter().zip(classified) {
            let (Some(entry), (sha256, kind)) = (member.entry(), result) else { continue };
            received.insert(entry.header_offset, (entry.clone(), Classified { sha256, kind, warning: None }));
        }
        if !more {
            return Ok(received);
        }
    }
}

/// The result for `entry`, if it was made of just this member.
pub fn take(received: &mut Received, entry: &Entry) -> Option<Classified> {
    let (promised, classified) = received.remove(&entry.header_offset)?;
    let same = promised.name == entry.name
        && promised.method == entry.method
        && promised.crc32 == entry.crc32
        && promised.size == entry.size
        && promised.data == entry.data;
    same.then_some(classified)
}
