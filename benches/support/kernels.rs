//! The kernels that no splitter can do without, one after the other in one thread, timed each on its own.
//!
//! | kernel | bytes |
//! |---|---|
//! | inflate | every member once (RECORD must be verified before anything is written), fat members twice |
//! | crc32 | every member once; what is written anew (host parts, archives) once |
//! | sha256 | the same |
//! | CCOB | every compressed bundle once |
//! | zstd | every distinct code object once, whole, at level 3 |
//! | deflate | host parts of fat members, serially, at level 6 |
//!
//! They are the same crates that fatwheel uses, in the form that is fastest for one thread: chunks that stay in the
//! cache, reused buffers and contexts, nothing written. The clock is the thread's CPU time, read around every call
//! (some 0.3 us against 20 us and more). Which members are fat, what their host parts are and what archives there
//! are is taken from the outputs of a split; code objects and bundles are found in the input.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use fatwheel::fatbin::ccob::{CcobHeader, Method as CcobMethod};
use fatwheel::fatbin::walk::{LocatedBundle, Storage, walk};
use fatwheel::fatbin::wrapper::Located;
use fatwheel::io::{Checkpoints, Input, Member, MemberReader, StreamReader};
use fatwheel::sys::inflate::Inflater;
use fatwheel::zip::Method;
use fatwheel::{elf, pe};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use sha2::{Digest, Sha256};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CCtx, CParameter, compress_bound};

use super::measure::thread_seconds;

/// As the splitter's.
const CHUNK: usize = 256 << 10;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes that went into a kernel, and the CPU seconds that it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

impl Kernel {
    fn time<T>(&mut self, bytes: usize, work: impl FnOnce() -> T) -> T {
        let start = thread_seconds();
        let result = work();
        self.seconds += thread_seconds() - start;
        self.bytes += bytes as u64;
        result
    }
}

/// The kernels of one wheel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floor {
    /// Bytes out.
    pub(crate) inflate: Kernel,
    pub(crate) crc32: Kernel,
    pub(crate) sha256: Kernel,
    /// Bytes out.
    pub(crate) ccob: Kernel,
    /// Bytes in.
    pub(crate) zstd: Kernel,
    /// Bytes in.
    pub(crate) deflate: Kernel,
    /// Bytes of all members.
    pub(crate) unpacked: u64,
    /// Bytes of the wheel.
    pub(crate) wheel: u64,
    /// Distinct code objects.
    pub(crate) objects: usize,
}

impl Floor {
    pub(crate) fn kernels(&self) -> [(&'static str, Kernel); 6] {
        [
            ("inflate", self.inflate),
            ("crc32", self.crc32),
            ("sha256", self.sha256),
            ("CCOB", self.ccob),
            ("zstd", self.zstd),
            ("deflate", self.deflate),
        ]
    }

    /// CPU seconds of all.
    pub(crate) fn seconds(&self) -> f64 {
        self.kernels().iter().map(|(_, kernel)| kernel.seconds).sum()
    }

    fn hash(&mut self, sha256: &mut Sha256, bytes: &[u8]) {
        self.crc32.time(bytes.len(), || std::hint::black_box(crc32fast::hash(bytes)));
        self.sha256.time(bytes.len(), || sha256.update(bytes));
    }
}

/// Runs the kernels of `wheel`, which was split into `outputs`.
pub(crate) fn floor(wheel: &Path, outputs: &Path) -> Result<Floor> {
    let input = Input::open(wheel)?;
    let host = Input::open(&outputs.join(wheel.file_name().ok_or("the wheel has no name")?))?;
    let fat = rewritten(&input, &host);
    let mut floor = Floor {
        wheel: input.length(),
        unpacked: input.members().iter().map(|member| member.size).sum(),
        ..Floor::default()
    };
    let mut passes = Passes::new()?;
    for member in input.members() {
        let mut sha256 = Sha256::new();
        passes.inflate(&mut floor, &input, member, |floor, _, chunk| {
            floor.hash(&mut sha256, chunk);
            Ok(())
        })?;
    }
    let mut objects = Objects::new()?;
    for &(member, rewritten) in &fat {
        let bundles = locate(&input, member)?;
        objects.start(&bundles);
        passes.inflate(&mut floor, &input, member, |floor, at, chunk| objects.feed(floor, at, chunk))?;
        passes.deflate(&mut floor, &host, rewritten)?;
    }
    floor.objects = objects.known.len();
    for entry in std::fs::read_dir(outputs)? {
        let path = entry?.path();
        if path.file_name() == wheel.file_name() {
            continue;
        }
        let device = Input::open(&path)?;
        for archive in device.members().iter().filter(|member| member.name.ends_with(".kpack")) {
            let (_, bytes) = device.raw(archive).ok_or("an archive without bytes")?;
            let mut sha256 = Sha256::new();
            for chunk in bytes.chunks(CHUNK) {
                floor.hash(&mut sha256, chunk);
            }
        }
    }
    Ok(floor)
}

/// The members that the split has changed, in both wheels.
fn rewritten<'a>(input: &'a Input, host: &'a Input) -> Vec<(&'a Member, &'a Member)> {
    let by_name: std::collections::HashMap<&str, &Member> =
        host.members().iter().map(|member| (member.name.as_str(), member)).collect();
    let changed = |member: &'a Member| {
        let other = *by_name.get(member.name.as_str())?;
        (other.crc32() != member.crc32() || other.size != member.size).then_some((member, other))
    };
    let dist_info = |member: &&Member| member.name.split('/').any(|part| part.ends_with(".dist-info"));
    input.members().iter().filter(|member| !dist_info(member)).filter_map(changed).collect()
}

/// The bundles of a fat member.
fn locate(input: &Input, member: &Member) -> Result<Vec<LocatedBundle>> {
    let mut checkpoints = Checkpoints::every((member.size / 64).max(1 << 20));
    let mut prefix = Vec::new();
    StreamReader::new()?.read(input, member, Some(&mut checkpoints), |chunk| {
        prefix.extend(chunk.iter().take(8 - prefix.len().min(8)));
        Ok(())
    })?;
    let mut source = MemberReader::new(input, member, &checkpoints)?;
    let sections = if elf::is_elf(&prefix) {
        match elf::locate(&mut source)? {
            Located::Fat(layout) => layout.sections,
            _ => Vec::new(),
        }
    } else {
        match pe::locate(&mut source)? {
            Located::Fat(layout) => layout.sections,
            _ => Vec::new(),
        }
    };
    let mut bundles = Vec::new();
    for section in &sections {
        bundles.extend(walk(&mut source, section)?);
    }
    Ok(bundles)
}

/// Reused buffers and states.
struct Passes {
    inflater: Inflater,
    reader: StreamReader,
    buffer: Vec<u8>,
}

impl Passes {
    fn new() -> Result<Self> {
        let inflater = Inflater::new().ok_or("no memory for a decoder")?;
        Ok(Self { inflater, reader: StreamReader::new()?, buffer: vec![0; CHUNK] })
    }

    /// Hands the chunks of `member` and their offsets to `sink`, which is not timed.
    fn inflate(
        &mut self,
        floor: &mut Floor,
        input: &Input,
        member: &Member,
        mut sink: impl FnMut(&mut Floor, u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (entry, bytes) = input.raw(member).ok_or("the input is no wheel file")?;
        let mut at = 0;
        if entry.method == Method::Stored {
            for chunk in bytes.chunks(CHUNK) {
                sink(floor, at, chunk)?;
                at += chunk.len() as u64;
            }
            return Ok(());
        }
        self.inflater.reset();
        let mut read = 0;
        loop {
            let (inflater, buffer) = (&mut self.inflater, &mut self.buffer);
            let step = floor.inflate.time(0, || inflater.step(&bytes[read..], buffer))?;
            floor.inflate.bytes += step.produced as u64;
            read += step.consumed;
            sink(floor, at, &self.buffer[..step.produced])?;
            at += step.produced as u64;
            if step.ended {
                return Ok(());
            }
            if step.consumed == 0 && step.produced == 0 {
                return Err(format!("{} ends early", member.name).into());
            }
        }
    }

    /// Hashes and deflates what has become of a fat member.
    fn deflate(&mut self, floor: &mut Floor, host: &Input, member: &Member) -> Result<()> {
        let mut state = Compress::new(Compression::new(6), false);
        let mut sha256 = Sha256::new();
        let buffer = &mut self.buffer;
        let mut compress = |floor: &mut Floor, mut chunk: &[u8], flush| loop {
            let before = state.total_in();
            let status = floor.deflate.time(0, || state.compress(chunk, buffer, flush));
            let read = (state.total_in() - before) as usize;
            floor.deflate.bytes += read as u64;
            chunk = &chunk[read..];
            let done = match flush {
                FlushCompress::Finish => matches!(status, Ok(Status::StreamEnd)),
                _ => chunk.is_empty(),
            };
            if done || status.is_err() {
                return;
            }
        };
        self.reader.read(host, member, None, |chunk| {
            floor.hash(&mut sha256, chunk);
            compress(floor, chunk, FlushCompress::None);
            Ok(())
        })?;
        compress(floor, &[], FlushCompress::Finish);
        Ok(())
    }
}

/// Something in a fat member that is more than host bytes.
enum Part {
    Object(Vec<u8>),
    Bundle(Box<Bundle>),
}

struct Bundle {
    decoder: Ccob,
    /// What is left of the objects' ranges, in order, in the bundle's content.
    ranges: std::collections::VecDeque<Range<u64>>,
    open: Vec<(Range<u64>, Vec<u8>)>,
    at: u64,
}

enum Ccob {
    Zstd(Decoder<'static>),
    Zlib(Decompress),
}

/// Collects and compresses code objects.
struct Objects {
    context: CCtx<'static>,
    frame: Vec<u8>,
    buffer: Vec<u8>,
    known: HashSet<[u8; 32]>,
    waiting: std::collections::VecDeque<(Range<u64>, Part)>,
    open: Vec<(Range<u64>, Part)>,
}

impl Objects {
    fn new() -> Result<Self> {
        let mut context = CCtx::create();
        context.set_parameter(CParameter::CompressionLevel(3)).map_err(|_| "zstd has no level 3")?;
        Ok(Self {
            context,
            frame: Vec::new(),
            buffer: vec![0; CHUNK],
            known: HashSet::new(),
            waiting: std::collections::VecDeque::new(),
            open: Vec::new(),
        })
    }

    /// Sets the bundles of the next member.
    fn start(&mut self, bundles: &[LocatedBundle]) {
        self.waiting.clear();
        for bundle in bundles {
            let base = if bundle.storage == Storage::Plain { bundle.offset } else { 0 };
            let mut ranges: Vec<Range<u64>> = bundle
                .header
                .device_entries()
                .map(|(_, entry)| base + entry.offset..base + entry.offset + entry.size)
                .filter(|range| !range.is_empty())
                .collect();
            ranges.sort_by_key(|range| (range.start, range.end));
            ranges.dedup();
            match &bundle.storage {
                Storage::Plain => {
                    self.waiting.extend(ranges.into_iter().map(|range| (range, Part::Object(Vec::new()))));
                }
                Storage::Compressed { header, payload, .. } => {
                    let part = Part::Bundle(Box::new(Bundle {
                        decoder: Ccob::new(header),
                        ranges: ranges.into(),
                        open: Vec::new(),
                        at: 0,
                    }));
                    self.waiting.push_back((payload.clone(), part));
                }
            }
        }
    }

    /// Takes the bytes of the member at `at`.
    fn feed(&mut self, floor: &mut Floor, at: u64, chunk: &[u8]) -> Result<()> {
        let end = at + chunk.len() as u64;
        while self.waiting.front().is_some_and(|(range, _)| range.start < end) {
            self.open.extend(self.waiting.pop_front());
        }
        let mut open = std::mem::take(&mut self.open);
        for (range, part) in &mut open {
            let piece = overlap(range, at, chunk);
            match part {
                Part::Object(bytes) => bytes.extend_from_slice(piece),
                Part::Bundle(bundle) => self.decode(floor, bundle, piece)?,
            }
            if let (Part::Object(bytes), true) = (&*part, range.end <= end) {
                self.compress(floor, bytes)?;
            }
        }
        open.retain(|(range, _)| range.end > end);
        self.open = open;
        Ok(())
    }

    fn decode(&mut self, floor: &mut Floor, bundle: &mut Bundle, mut payload: &[u8]) -> Result<()> {
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let (read, written) = floor.ccob.time(0, || bundle.decoder.step(payload, &mut buffer))?;
            floor.ccob.bytes += written as u64;
            payload = &payload[read..];
            let (at, end) = (bundle.at, bundle.at + written as u64);
            while bundle.ranges.front().is_some_and(|range| range.start < end) {
                bundle.open.extend(bundle.ranges.pop_front().map(|range| (range, Vec::new())));
            }
            for (range, bytes) in &mut bundle.open {
                bytes.extend_from_slice(overlap(range, at, &buffer[..written]));
                if range.end <= end {
                    self.compress(floor, bytes)?;
                }
            }
            bundle.open.retain(|(range, _)| range.end > end);
            bundle.at = end;
            let full = written == buffer.len();
            self.buffer = buffer;
            if payload.is_empty() && !full || read == 0 && written == 0 {
                return Ok(());
            }
        }
    }

    /// Compresses an object that has not been seen yet.
    fn compress(&mut self, floor: &mut Floor, bytes: &[u8]) -> Result<()> {
        if !self.known.insert(Sha256::digest(bytes).into()) {
            return Ok(());
        }
        self.frame.clear();
        self.frame.reserve(compress_bound(bytes.len()));
        let (context, frame) = (&mut self.context, &mut self.frame);
        floor.zstd.time(bytes.len(), || context.compress2(frame, bytes)).map_err(|_| "zstd failed")?;
        Ok(())
    }
}

impl Ccob {
    fn new(header: &CcobHeader) -> Self {
        match header.method {
            CcobMethod::Zstd => {
                let mut decoder = Decoder::new().expect("memory does not fail");
                decoder.set_parameter(DParameter::WindowLogMax(31)).expect("31 is the format's limit");
                Ccob::Zstd(decoder)
            }
            CcobMethod::Zlib => Ccob::Zlib(Decompress::new(true)),
        }
    }

    /// Bytes read and written.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize)> {
        match self {
            Ccob::Zstd(decoder) => {
                let (mut input, mut output) = (InBuffer::around(input), OutBuffer::around(output));
                decoder.run(&mut input, &mut output)?;
                Ok((input.pos(), output.pos()))
            }
            Ccob::Zlib(state) => {
                let (read, written) = (state.total_in(), state.total_out());
                state.decompress(input, output, FlushDecompress::None)?;
                Ok(((state.total_in() - read) as usize, (state.total_out() - written) as usize))
            }
        }
    }
}

/// The part of `chunk`, which stands at `at`, that lies in `range`.
fn overlap<'a>(range: &Range<u64>, at: u64, chunk: &'a [u8]) -> &'a [u8] {
    let place = |offset: u64| (offset.saturating_sub(at) as usize).min(chunk.len());
    &chunk[place(range.start)..place(range.end)]
}
