//! Stage *compress*: code objects become frames, host blocks become deflate blocks.
//!
//! Output bytes depend on the input and the settings alone: an object is compressed in one go if it is small and
//! as a stream of fixed chunks if it is large, whatever the number of workers.

use crossbeam_channel::{Receiver, Sender};
use flate2::{Compress, Compression, FlushCompress, Status};
use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, compress_bound, zstd_sys};

use super::budget::Buffer;
use super::cancel::hung_up;
use super::item::{Compressed, CutIndex, Frame, HostStep, Rewritten, Unbundled};
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::options::Scheme;

/// zlib's default, and that of Python's zipfile: the level that wheels are made with.
pub const DEFLATE_LEVEL: u32 = 6;
/// Deflate looks back this far.
pub const HISTORY: usize = 32 << 10;

/// What workers do.
#[derive(Debug)]
pub enum Job {
    /// Make one frame of a whole code object.
    Compress(Unbundled),
    /// Deflate one block of a host member.
    Deflate(Rewritten),
}

/// Runs jobs until there are no more.
pub fn work(
    jobs: &Receiver<Job>,
    frames: &Sender<Compressed>,
    steps: &Sender<(u64, HostStep)>,
    scheme: Scheme,
    deflates: bool,
    stats: &Stats,
) -> Result<()> {
    let mut encoder = Encoder::new(scheme)?;
    let (mut compress, mut deflate) = (stats.compress.lap(), stats.deflate.lap());
    for job in jobs {
        stats.compress.queued(jobs.len() + 1);
        match job {
            Job::Compress(Unbundled { cut, bytes: object }) => {
                compress.waited();
                let size = object.len() as u64;
                let bytes = encoder.whole(&object)?;
                let grant = object.grant_for(bytes.len());
                drop(object);
                compress.worked(size);
                let frame = Frame::Bytes { bytes, more: false, grant };
                frames.send(Compressed { cut, frame }).map_err(hung_up)?;
            }
            Job::Deflate(Rewritten { ticket, previous, block, last, grant }) => {
                deflate.waited();
                let history = previous.as_deref().map(Vec::as_slice).unwrap_or_default();
                let history = &history[history.len().saturating_sub(HISTORY)..];
                let deflated = if deflates { deflate_block(history, &block, last)? } else { Vec::new() };
                let crc32 = crc32fast::hash(&block);
                deflate.worked(block.len() as u64);
                steps
                    .send((ticket, HostStep::Block { plain: block, deflated, crc32, grant }))
                    .map_err(hung_up)?;
            }
        }
    }
    Ok(())
}

/// Makes one frame of the chunks of one large code object, and sends it in parts.
pub fn stream(
    cut: CutIndex,
    size: u64,
    chunks: &Receiver<Buffer>,
    frames: &Sender<Compressed>,
    scheme: Scheme,
    stats: &Stats,
) -> Result<()> {
    let mut encoder = Encoder::new(scheme)?;
    encoder.start(size)?;
    let mut left = size;
    let mut lap = stats.compress.lap();
    for chunk in chunks {
        lap.waited();
        let length = chunk.len() as u64;
        left = left.saturating_sub(chunk.len() as u64);
        let bytes = encoder.part(&chunk, left == 0)?;
        lap.worked(length);
        let grant = chunk.grant_for(bytes.len());
        drop(chunk);
        let frame = Frame::Bytes { bytes, more: left > 0, grant };
        frames.send(Compressed { cut, frame }).map_err(hung_up)?;
    }
    // A producer that stops in the middle reports why, or has made a wrong guess; the frame is not complete then.
    Ok(())
}

/// A zstd context, or nothing at all.
struct Encoder {
    context: Option<CCtx<'static>>,
    /// Frames are made here and copied out: their length is known only then.
    scratch: Vec<u8>,
}

impl Encoder {
    fn new(scheme: Scheme) -> Result<Self> {
        let context = match scheme {
            Scheme::Stored => None,
            Scheme::Zstd(level) => {
                let mut context = CCtx::create();
                // The runtime's loader needs the content size; a checksum would only repeat the wheel's.
                for parameter in [
                    CParameter::CompressionLevel(level),
                    CParameter::ContentSizeFlag(true),
                    CParameter::ChecksumFlag(false),
                ] {
                    context.set_parameter(parameter).map_err(failed)?;
                }
                Some(context)
            }
        };
        Ok(Self { context, scratch: Vec::new() })
    }

    /// One frame of all of `bytes`.
    fn whole(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        let Some(context) = &mut self.context else { return Ok(bytes.to_vec()) };
        self.scratch.clear();
        self.scratch.reserve(compress_bound(bytes.len()));
        context.compress2(&mut self.scratch, bytes).map_err(failed)?;
        Ok(self.scratch.clone())
    }

    /// Begins a frame of `size` bytes that come in parts.
    fn start(&mut self, size: u64) -> Result<()> {
        if let Some(context) = &mut self.context {
            context.reset(ResetDirective::SessionOnly).map_err(failed)?;
            context.set_pledged_src_size(Some(size)).map_err(failed)?;
        }
        Ok(())
    }

    fn part(&mut self, chunk: &[u8], last: bool) -> Result<Vec<u8>> {
        let Some(context) = &mut self.context else { return Ok(chunk.to_vec()) };
        let directive = if last {
            zstd_sys::ZSTD_EndDirective::ZSTD_e_end
        } else {
            zstd_sys::ZSTD_EndDirective::ZSTD_e_continue
        };
        let mut out = Vec::with_capacity(compress_bound(chunk.len()));
        let mut input = InBuffer::around(chunk);
        loop {
            let at = out.len();
            // Room for at least one block each time around.
            out.reserve(CCtx::out_size());
            let mut output = OutBuffer::around_pos(&mut out, at);
            let pending = context.compress_stream2(&mut output, &mut input, directive).map_err(failed)?;
            if input.pos() == chunk.len() && (!last || pending == 0) {
                out.shrink_to_fit();
                return Ok(out);
            }
        }
    }
}

fn failed(code: usize) -> Error {
    let message = zstd::zstd_safe::get_error_name(code);
    Error::io("compress", None, std::io::Error::other(format!("zstd: {message}")))
}

/// Deflates one block of a stream: it ends on a byte boundary and starts with the history of the block before it, so
/// the blocks of a stream can be made in any order and joined.
///
/// Always with a new state: one that is reset remembers enough of the block before it to choose other matches, and
/// then the output would depend on which worker got which block.
fn deflate_block(history: &[u8], block: &[u8], last: bool) -> Result<Vec<u8>> {
    let failed = |what: String| Error::io("deflate", None, std::io::Error::other(what));
    let mut state = Compress::new(Compression::new(DEFLATE_LEVEL), false);
    if !history.is_empty() {
        state.set_dictionary(history).map_err(|error| failed(error.to_string()))?;
    }
    let flush = if last { FlushCompress::Finish } else { FlushCompress::Sync };
    // Code and data halve; what does not compress grows by 5 bytes in 16 KiB.
    let mut out = Vec::with_capacity(block.len() / 2 + 64);
    loop {
        let done = usize::try_from(state.total_in()).unwrap_or(usize::MAX).min(block.len());
        let status =
            state.compress_vec(&block[done..], &mut out, flush).map_err(|error| failed(error.to_string()))?;
        let all_in = state.total_in() == block.len() as u64;
        // After a sync flush, room left over in the output says that nothing is pending.
        let done = if last { status == Status::StreamEnd } else { all_in && out.len() < out.capacity() };
        if done {
            return Ok(out);
        }
        out.reserve(out.capacity().max(4096));
    }
}

/// All of `bytes` as one deflate stream.
pub fn deflate_whole(bytes: &[u8]) -> Result<Vec<u8>> {
    deflate_block(&[], bytes, true)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn sample(length: usize) -> Vec<u8> {
        (0..length as u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> (16 + n / 1000 % 8)) as u8 & 0x3f)
            .collect()
    }

    #[test]
    fn blocks_join_into_one_stream() {
        for (length, size) in [(0, 100), (1, 100), (500_000, 70_000), (262_144, 65_536), (300_000, 300_000)] {
            let bytes = sample(length);
            let mut joined = Vec::new();
            let blocks: Vec<&[u8]> = if length == 0 { vec![&[]] } else { bytes.chunks(size).collect() };
            for (index, block) in blocks.iter().enumerate() {
                let history = index.checked_sub(1).map(|before| blocks[before]).unwrap_or_default();
                let history = &history[history.len().saturating_sub(HISTORY)..];
                joined.extend(deflate_block(history, block, index + 1 == blocks.len()).unwrap());
            }
            let mut back = Vec::new();
            flate2::read::DeflateDecoder::new(joined.as_slice()).read_to_end(&mut back).unwrap();
            assert_eq!(back, bytes, "{length} bytes in blocks of {size}");
        }
    }

    #[test]
    fn a_block_does_not_depend_on_what_was_deflated_before_it() {
        let real = include_bytes!("../../tests/fixtures/elf/libdebug.so");
        let blocks: Vec<&[u8]> = real.chunks(9000).collect();
        let alone: Vec<Vec<u8>> =
            blocks.iter().map(|block| deflate_block(&[], block, false).unwrap()).collect();
        let thread = std::thread::spawn(move || {
            let real = include_bytes!("../../tests/fixtures/elf/libdebug.so");
            real.chunks(9000).rev().map(|block| deflate_block(&[], block, false).unwrap()).collect::<Vec<_>>()
        });
        assert!(thread.join().unwrap().into_iter().rev().eq(alone));
    }

    #[test]
    fn incompressible_blocks_come_back() {
        let mut state = 1u64;
        let bytes: Vec<u8> = (0..200_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let deflated = deflate_whole(&bytes).unwrap();
        let mut back = Vec::new();
        flate2::read::DeflateDecoder::new(deflated.as_slice()).read_to_end(&mut back).unwrap();
        assert_eq!(back, bytes);
    }

    #[test]
    fn frames_carry_their_content_size_whole_or_in_parts() {
        let bytes = sample(700_000);
        let mut encoder = Encoder::new(Scheme::Zstd(3)).unwrap();
        let whole = encoder.whole(&bytes).unwrap();
        encoder.start(bytes.len() as u64).unwrap();
        let mut parts = Vec::new();
        let chunks: Vec<&[u8]> = bytes.chunks(100_000).collect();
        for (index, chunk) in chunks.iter().enumerate() {
            parts.extend(encoder.part(chunk, index + 1 == chunks.len()).unwrap());
        }
        for frame in [whole, parts] {
            let size = zstd::zstd_safe::get_frame_content_size(&frame).unwrap();
            assert_eq!(size, Some(bytes.len() as u64));
            assert_eq!(zstd::bulk::decompress(&frame, bytes.len()).unwrap(), bytes);
        }
    }
}
