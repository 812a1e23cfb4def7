//! A raw-deflate decoder whose state can be copied at any point.
//!
//! A copy is a *checkpoint*: with it, decoding can start again in the middle of a member. The safe interfaces
//! of flate2 and zlib-rs cannot copy a state, the C interface of zlib-rs (`inflateCopy`) can. This module wraps
//! the five functions that are needed.

use std::ffi::c_int;

use libz_rs_sys::{
    Z_BUF_ERROR, Z_DATA_ERROR, Z_MEM_ERROR, Z_NEED_DICT, Z_NO_FLUSH, Z_OK, Z_STREAM_END, inflate,
    inflateCopy, inflateEnd, inflateInit2_, inflateReset, z_stream, zlibVersion,
};

/// zlib's spelling of "raw deflate with a window of 32 KiB".
const RAW_DEFLATE: c_int = -15;

/// What one [`Inflater::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Input bytes consumed.
    pub consumed: usize,
    /// Output bytes written.
    pub produced: usize,
    /// Whether the deflate stream has ended.
    pub ended: bool,
}

/// A decoder for one raw deflate stream (RFC 1951).
pub struct Inflater {
    /// Boxed, so that the address stays as it is for the decoder's life. Initialised by `inflateInit2_` or
    /// `inflateCopy`, ended in `drop`.
    stream: Box<z_stream>,
}

// SAFETY: the stream owns its state, which lives on the heap and is reached through this value alone; `next_in`
// and `next_out` are set anew from borrowed slices in every call of `step` and not read between calls.
unsafe impl Send for Inflater {}
// SAFETY: through a shared reference only `fork` is to be had, which reads.
unsafe impl Sync for Inflater {}

impl Inflater {
    /// A decoder at the start of a stream. `None`: out of memory.
    pub fn new() -> Option<Self> {
        let mut stream = Box::new(z_stream::default());
        // SAFETY: `stream` is valid and exclusively borrowed; version and size are those of the linked library.
        let code = unsafe {
            inflateInit2_(&raw mut *stream, RAW_DEFLATE, zlibVersion(), size_of::<z_stream>() as c_int)
        };
        (code == Z_OK).then_some(Self { stream })
    }

    /// Starts a new stream, with the memory of the old one.
    pub fn reset(&mut self) {
        // SAFETY: `stream` was initialised. The only failure is an invalid state, which cannot be.
        unsafe { inflateReset(&raw mut *self.stream) };
    }

    /// Decodes from `input` into `output`, as far as either goes.
    ///
    /// `Err` holds zlib's description of what is wrong with the stream.
    pub fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, String> {
        let (available_in, available_out) = (clamp(input.len()), clamp(output.len()));
        self.stream.next_in = input.as_ptr();
        self.stream.avail_in = available_in;
        self.stream.next_out = output.as_mut_ptr();
        self.stream.avail_out = available_out;
        // SAFETY: the stream was initialised; the pointers and lengths describe live slices, `output` exclusively.
        let code = unsafe { inflate(&raw mut *self.stream, Z_NO_FLUSH) };
        let step = Step {
            consumed: (available_in - self.stream.avail_in) as usize,
            produced: (available_out - self.stream.avail_out) as usize,
            ended: code == Z_STREAM_END,
        };
        match code {
            // Z_BUF_ERROR only says that nothing could be done with these two buffers.
            Z_OK | Z_STREAM_END | Z_BUF_ERROR => Ok(step),
            Z_DATA_ERROR => Err(self.message().unwrap_or("invalid deflate data").to_owned()),
            Z_NEED_DICT => Err("the stream asks for a preset dictionary".to_owned()),
            Z_MEM_ERROR => Err("out of memory".to_owned()),
            other => Err(format!("zlib error {other}")),
        }
    }

    /// A copy that goes on from here on its own. `None`: out of memory.
    pub fn fork(&self) -> Option<Self> {
        // inflateCopy refuses a stream that has not been given an output buffer yet.
        if self.stream.next_out.is_null() {
            return Self::new();
        }
        let mut stream = Box::new(z_stream::default());
        // SAFETY: the source is initialised and only read; the destination is valid, distinct memory. The copied
        // `next_in` and `next_out` may dangle, but `step` sets them before anything reads through them.
        let code = unsafe { inflateCopy(&raw mut *stream, &raw const *self.stream) };
        (code == Z_OK).then_some(Self { stream })
    }

    fn message(&self) -> Option<&'static str> {
        if self.stream.msg.is_null() {
            return None;
        }
        // SAFETY: zlib-rs points `msg` at static, NUL-terminated strings.
        unsafe { std::ffi::CStr::from_ptr(self.stream.msg) }.to_str().ok()
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: initialised once, ended once.
        unsafe { inflateEnd(&raw mut *self.stream) };
    }
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").finish_non_exhaustive()
    }
}

/// zlib counts in 32 bits; a longer slice is simply not used up in one step.
fn clamp(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn sample() -> Vec<u8> {
        (0..400_000u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> (n % 23)).to_le_bytes()).collect()
    }

    fn rest(inflater: &mut Inflater, mut input: &[u8]) -> Vec<u8> {
        let (mut output, mut buffer) = (Vec::new(), [0; 5000]);
        loop {
            let step = inflater.step(input, &mut buffer).unwrap();
            output.extend_from_slice(&buffer[..step.produced]);
            input = &input[step.consumed..];
            if step.ended {
                return output;
            }
        }
    }

    #[test]
    fn a_fork_goes_on_where_it_was_taken() {
        let bytes = sample();
        let input = deflated(&bytes);
        let mut inflater = Inflater::new().unwrap();
        let mut forks = vec![(0, 0, inflater.fork().unwrap())];
        let (mut read, mut written, mut buffer) = (0, 0, [0; 7001]);
        loop {
            let step = inflater.step(&input[read..], &mut buffer).unwrap();
            assert_eq!(buffer[..step.produced], bytes[written..written + step.produced]);
            read += step.consumed;
            written += step.produced;
            if step.ended {
                break;
            }
            forks.push((read, written, inflater.fork().unwrap()));
        }
        assert_eq!(written, bytes.len());
        drop(inflater);
        for (read, written, mut fork) in forks.into_iter().step_by(37) {
            assert_eq!(rest(&mut fork, &input[read..]), bytes[written..]);
        }
    }

    #[test]
    fn reset_starts_over_and_damage_is_named() {
        let bytes = sample();
        let input = deflated(&bytes);
        let mut inflater = Inflater::new().unwrap();
        assert_eq!(rest(&mut inflater, &input), bytes);
        inflater.reset();
        assert_eq!(rest(&mut inflater, &input), bytes);
        inflater.reset();
        assert_eq!(inflater.step(&[0xff; 64], &mut [0; 64]), Err("invalid block type".to_owned()));
    }
}
