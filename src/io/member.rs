//! Reading one member: in order as chunks ([`StreamReader`]), or anywhere ([`MemberReader`]).

use super::input::{Bytes, Input, Member};
use super::snapshots::Snapshots;
use crate::error::{Error, Result};
use crate::fault::{self, Fault};
use crate::source::ReadAt;
use crate::sys::inflate::Inflater;

/// Members are handed on in chunks of this size: large enough that zlib's copy of 32 KiB of history per call
/// costs little, small enough that a chunk stays in the second-level cache through inflate, CRC and SHA.
pub const CHUNK: usize = 256 << 10;
/// Mapped input is given back to the kernel after this many bytes.
const RELEASE: usize = 4 << 20;

/// A chunk, and where it is.
#[derive(Debug)]
pub enum Filled<'a> {
    /// At the start of the reader's buffer, so many bytes.
    Owned(&'a mut Box<[u8]>, usize),
    /// In the input.
    Borrowed(&'a [u8]),
}

impl Filled<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(buffer, length) => &buffer[..*length],
            Self::Borrowed(bytes) => bytes,
        }
    }

    /// A buffer of [`CHUNK`] bytes that starts with the chunk, without a copy where that can be, and the chunk's
    /// length. The reader goes on with `spare`, a buffer from an earlier call, or with a new one.
    pub fn take(self, spare: Option<Box<[u8]>>) -> (Box<[u8]>, usize) {
        let spare = spare.filter(|spare| spare.len() == CHUNK);
        let mut next = spare.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
        match self {
            Self::Owned(buffer, length) => (std::mem::replace(buffer, next), length),
            Self::Borrowed(bytes) => {
                next[..bytes.len()].copy_from_slice(bytes);
                (next, bytes.len())
            }
        }
    }
}

/// Reads members front to back. Owns the buffers, so keep one per thread.
#[derive(Debug)]
pub struct StreamReader {
    inflater: Inflater,
    buffer: Box<[u8]>,
}

impl StreamReader {
    /// Allocates the decoder and one chunk.
    pub fn new() -> Result<Self> {
        let inflater = Inflater::new().ok_or_else(out_of_memory)?;
        Ok(Self { inflater, buffer: vec![0; CHUNK].into_boxed_slice() })
    }

    /// Hands the whole of `member` to `sink`, in chunks of at most [`CHUNK`] bytes, and takes checkpoints on
    /// the way. Errors name the member; one of `sink`'s ends the reading.
    ///
    /// A member that is longer or shorter than the archive says is an error; its CRC is the caller's to check.
    pub fn read(
        &mut self,
        input: &Input,
        member: &Member,
        checkpoints: Option<&mut Checkpoints>,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_filled(input, member, checkpoints, |chunk| sink(chunk.bytes()))
    }

    /// As [`read`](Self::read), for a sink that may keep chunks.
    pub fn read_filled(
        &mut self,
        input: &Input,
        member: &Member,
        checkpoints: Option<&mut Checkpoints>,
        mut sink: impl FnMut(Filled<'_>) -> Result<()>,
    ) -> Result<()> {
        let bytes = input.bytes(member).map_err(|error| error.in_member(&member.name))?;
        let in_member = |error: Error| error.in_member(&member.name);
        match &bytes {
            Bytes::Plain(plain) => {
                let base = position(input, plain);
                self.plain(plain, member, |range| release(input, base, range), &mut sink)
            }
            Bytes::Mapped(map) => self.plain(map, member, |range| map.release(range), &mut sink),
            Bytes::Deflated(deflated) => self.deflated(input, deflated, member, checkpoints, &mut sink),
        }
        .map_err(in_member)
    }

    fn plain(
        &mut self,
        bytes: &[u8],
        member: &Member,
        release: impl Fn(std::ops::Range<usize>),
        sink: &mut impl FnMut(Filled<'_>) -> Result<()>,
    ) -> Result<()> {
        if bytes.len() as u64 != member.size {
            return Err(wrong_size(member, bytes.len() as u64).into());
        }
        let (mut done, mut released) = (0, 0);
        for chunk in bytes.chunks(CHUNK) {
            sink(Filled::Borrowed(chunk))?;
            done += chunk.len();
            if done - released >= RELEASE || done == bytes.len() {
                release(released..done);
                released = done;
            }
        }
        Ok(())
    }

    fn deflated(
        &mut self,
        input: &Input,
        deflated: &[u8],
        member: &Member,
        mut checkpoints: Option<&mut Checkpoints>,
        sink: &mut impl FnMut(Filled<'_>) -> Result<()>,
    ) -> Result<()> {
        let base = position(input, deflated);
        self.inflater.reset();
        let (mut read, mut released, mut written) = (0, 0, 0u64);
        loop {
            let step = step(&mut self.inflater, &deflated[read..], &mut self.buffer, written)?;
            read += step.consumed;
            written += step.produced as u64;
            if written > member.size {
                return Err(wrong_size(member, written).into());
            }
            sink(Filled::Owned(&mut self.buffer, step.produced))?;
            if step.ended {
                break;
            }
            if step.consumed == 0 && step.produced == 0 {
                return Err(Fault::malformed(
                    "deflate stream",
                    written,
                    match written == member.size {
                        true => format!("all {written} bytes are there, but not the stream's last block"),
                        false => format!("it ends after {written} of {} bytes", member.size),
                    },
                )
                .into());
            }
            if let Some(checkpoints) = checkpoints.as_deref_mut() {
                checkpoints.offer(read, written, &self.inflater)?;
            }
            if read - released >= RELEASE {
                release(input, base, released..read);
                released = read;
            }
        }
        release(input, base, released..deflated.len());
        if written != member.size || read != deflated.len() {
            return Err(Fault::malformed(
                "deflate stream",
                written,
                format!(
                    "it ends after {read} compressed and {written} uncompressed bytes, the archive says {} and {}",
                    deflated.len(),
                    member.size
                ),
            )
            .into());
        }
        Ok(())
    }
}

fn step(
    inflater: &mut Inflater,
    input: &[u8],
    output: &mut [u8],
    at: u64,
) -> fault::Result<crate::sys::inflate::Step> {
    inflater.step(input, output).map_err(|message| Fault::unreadable("deflate stream", at, message))
}

fn out_of_memory() -> Error {
    Error::io("allocate memory", None, std::io::ErrorKind::OutOfMemory.into())
}

fn wrong_size(member: &Member, found: u64) -> Fault {
    Fault::malformed(
        "member data",
        None,
        format!("{found} bytes or more found, the archive says {} uncompressed", member.size),
    )
}

/// Where in the mapped file `bytes` (a slice of it) starts.
fn position(input: &Input, bytes: &[u8]) -> Option<usize> {
    let start = input.map()?.as_ptr() as usize;
    (bytes.as_ptr() as usize).checked_sub(start)
}

fn release(input: &Input, base: Option<usize>, range: std::ops::Range<usize>) {
    if let (Some(map), Some(base)) = (input.map(), base) {
        map.release(base + range.start..base + range.end);
    }
}

/// Places in a deflated member where decoding can start again: copies of the decoder's state, some 45 KiB each.
#[derive(Debug)]
pub struct Checkpoints {
    interval: u64,
    next: u64,
    /// Compressed and uncompressed offset, state; ascending.
    points: Vec<(usize, u64, Inflater)>,
}

impl Checkpoints {
    /// One checkpoint per `interval` uncompressed bytes, as far as chunks allow.
    pub fn every(interval: u64) -> Self {
        Self { interval: interval.max(1), next: interval.max(1), points: Vec::new() }
    }

    /// Takes one if it is time: `read` compressed bytes of the member have made `written` uncompressed ones.
    pub fn offer(&mut self, read: usize, written: u64, inflater: &Inflater) -> Result<()> {
        if written >= self.next {
            self.points.push((read, written, inflater.fork().ok_or_else(out_of_memory)?));
            self.next = written + self.interval;
        }
        Ok(())
    }
}

/// Blocks of a deflated member are inflated and cached in this size.
const BLOCK: u64 = 64 << 10;
/// Cached blocks per reader: 1 MiB, so that going back and forth between two tables costs nothing.
const CACHED: usize = 16;

/// Random access to one member.
pub struct MemberReader<'a> {
    size: u64,
    bytes: Bytes<'a>,
    checkpoints: &'a Checkpoints,
    snapshots: Option<&'a Snapshots>,
    input: &'a Input,
    /// The running decoder, the compressed offset it is at, and the next block it will produce.
    running: Option<(Inflater, usize, u64)>,
    /// Block number and bytes, most recently used last.
    cache: Vec<(u64, Vec<u8>)>,
    /// Bytes of a member that is not compressed, read and not given back yet, and how many.
    touched: Option<std::ops::Range<usize>>,
    copied: usize,
}

impl<'a> MemberReader<'a> {
    /// `checkpoints` must have been taken while this member was read.
    pub fn new(input: &'a Input, member: &'a Member, checkpoints: &'a Checkpoints) -> Result<Self> {
        let bytes = input.bytes(member).map_err(|error| error.in_member(&member.name))?;
        Ok(Self {
            size: member.size,
            bytes,
            checkpoints,
            snapshots: None,
            input,
            running: None,
            cache: Vec::new(),
            touched: None,
            copied: 0,
        })
    }

    /// Notes that mapped bytes were copied: a walk over gigabytes of padding must not keep them in memory.
    fn copied(&mut self, offset: u64, length: usize) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(length);
        let touched = self.touched.get_or_insert(start..end);
        *touched = touched.start.min(start)..touched.end.max(end);
        self.copied += length;
        if self.copied >= RELEASE {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        self.copied = 0;
        let Some(range) = self.touched.take() else { return };
        match &self.bytes {
            Bytes::Plain(bytes) => release(self.input, position(self.input, bytes), range),
            Bytes::Mapped(map) => map.release(range),
            Bytes::Deflated(_) => {}
        }
    }

    /// Looks into `snapshots` first, which must have been taken of this member.
    #[must_use]
    pub fn with_snapshots(mut self, snapshots: &'a Snapshots) -> Self {
        self.snapshots = Some(snapshots);
        self
    }

    /// Makes `block` the most recently used of the cache.
    fn load(&mut self, deflated: &[u8], block: u64) -> fault::Result<()> {
        if let Some(index) = self.cache.iter().position(|&(number, _)| number == block) {
            let cached = self.cache.remove(index);
            self.cache.push(cached);
            return Ok(());
        }
        let start = block * BLOCK;
        // A checkpoint need not be at a block's start; what counts is the first whole block behind it.
        let points = &self.checkpoints.points;
        let usable = points.partition_point(|&(_, written, _)| written.next_multiple_of(BLOCK) <= start);
        let checkpoint = usable.checked_sub(1).and_then(|index| points.get(index));
        let restart = checkpoint.map_or(0, |&(_, written, _)| written.div_ceil(BLOCK));
        if !self.running.as_ref().is_some_and(|&(_, _, next)| (restart..=block).contains(&next)) {
            self.running = Some(self.start(deflated, checkpoint)?);
        }
        let Some((inflater, read, next)) = &mut self.running else { return Ok(()) };
        let first_read = *read;
        loop {
            let number = *next;
            let mut bytes = if self.cache.len() >= CACHED {
                self.cache.remove(0).1
            } else {
                Vec::with_capacity(BLOCK as usize)
            };
            bytes.resize(BLOCK.min(self.size - number * BLOCK) as usize, 0);
            fill(inflater, deflated, read, &mut bytes, number * BLOCK)?;
            *next += 1;
            self.cache.push((number, bytes));
            if number == block {
                break;
            }
        }
        let now = *read;
        release(self.input, position(self.input, deflated), first_read..now);
        Ok(())
    }

    /// A decoder at the first whole block behind `checkpoint`, or at the start of the member.
    fn start(
        &self,
        deflated: &[u8],
        checkpoint: Option<&(usize, u64, Inflater)>,
    ) -> fault::Result<(Inflater, usize, u64)> {
        let memory = || Fault::unreadable("deflate stream", None, "out of memory");
        let Some((read, written, state)) = checkpoint else {
            return Ok((Inflater::new().ok_or_else(memory)?, 0, 0));
        };
        let (mut inflater, mut read) = (state.fork().ok_or_else(memory)?, *read);
        let block = written.div_ceil(BLOCK);
        let mut rest = vec![0; (block * BLOCK - written) as usize]; // less than a block
        fill(&mut inflater, deflated, &mut read, &mut rest, *written)?;
        Ok((inflater, read, block))
    }
}

impl Drop for MemberReader<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Inflates exactly `output.len()` bytes.
fn fill(
    inflater: &mut Inflater,
    deflated: &[u8],
    read: &mut usize,
    output: &mut [u8],
    at: u64,
) -> fault::Result<()> {
    let mut done = 0;
    while done < output.len() {
        let step = step(inflater, &deflated[*read..], &mut output[done..], at + done as u64)?;
        *read += step.consumed;
        done += step.produced;
        if step.produced == 0 && (step.ended || step.consumed == 0) {
            return Err(Fault::unreadable("deflate stream", at + done as u64, "it ends early"));
        }
    }
    Ok(())
}

impl ReadAt for MemberReader<'_> {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> fault::Result<()> {
        let mut plain: &[u8] = match &self.bytes {
            Bytes::Deflated(deflated) => return self.read_deflated(deflated, offset, buffer),
            Bytes::Plain(bytes) => bytes,
            Bytes::Mapped(map) => map,
        };
        plain.read_at(offset, buffer)?;
        self.copied(offset, buffer.len());
        Ok(())
    }
}

impl MemberReader<'_> {
    fn read_deflated(&mut self, deflated: &[u8], offset: u64, buffer: &mut [u8]) -> fault::Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.size) {
            return Err(Fault::malformed(
                "file",
                offset,
                format!("{} bytes wanted, the file has {} bytes", buffer.len(), self.size),
            ));
        }
        if self.snapshots.is_some_and(|snapshots| snapshots.read_at(offset, buffer)) {
            return Ok(());
        }
        let (mut offset, mut buffer) = (offset, buffer);
        while !buffer.is_empty() {
            self.load(deflated, offset / BLOCK)?;
            let Some((_, block)) = self.cache.last() else { break };
            let within = (offset % BLOCK) as usize;
            let take = buffer.len().min(block.len() - within);
            let (now, later) = buffer.split_at_mut(take);
            now.copy_from_slice(&block[within..within + take]);
            offset += take as u64;
            buffer = later;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// Mapped file pages in memory, in KiB. Private copies do not count.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Found with a library of 4 GiB, most of it padding between bundles: the walk over that kept it all in memory.
    #[test]
    fn what_was_read_at_random_is_given_back() {
        const SIZE: u64 = 192 << 20;
        let directory = tempfile::tempdir().unwrap();
        std::fs::File::create(directory.path().join("big.so")).unwrap().set_len(SIZE).unwrap();
        let input = Input::open(directory.path()).unwrap();
        let member = &input.members()[0];
        let checkpoints = Checkpoints::every(SIZE);
        let before = resident();
        let mut reader = MemberReader::new(&input, member, &checkpoints).unwrap();
        let mut most = 0;
        for at in (0..SIZE).step_by(BLOCK as usize) {
            assert_eq!(reader.read_vec(at, BLOCK, "padding").unwrap(), vec![0; BLOCK as usize]);
            most = most.max(resident());
        }
        assert!(most < before + (64 << 10), "{before} KiB, then {most} KiB");
    }
}
