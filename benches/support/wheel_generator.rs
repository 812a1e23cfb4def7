//! Wheels of any size that look like torch: one giant fat library and a few smaller ones, libraries without device
//! code, and thousands of small per-architecture files.
//!
//! Members are streamed: what is in memory at once is a few pieces of at most some megabytes per thread (with
//! `ccob`, a few bundles of one translation unit). Deflate runs in independent blocks of 1 MiB that borrow 32 KiB of
//! history, at level 6 unless told otherwise, so the members inflate as those of real wheels do. RECORD is correct
//! and ZIP64 is used where sizes call for it. Compressed bundles are made first, into an unnamed temporary file.
//!
//! The bytes of a wheel depend on its [`WheelSpec`] alone.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use fatwheel::wheel::record::RecordWriter;
use fatwheel::zip::{Attributes, Layout, Method, Sizes};
use flate2::{Compress, Compression, FlushCompress, Status};
use sha2::{Digest, Sha256};

use super::code_mixer::{Mixer, Random};
use super::elf_generator::{Device, Library, Piece, TARGETS, generate};
use super::ordered_pool::{Line, Pool};

/// Members are deflated in blocks of this size.
const BLOCK: usize = 1 << 20;
/// Deflate looks back this far.
const HISTORY: usize = 32 << 10;
/// The package in a generated wheel, which is also the overlay root.
pub(crate) const PACKAGE: &str = "bigdemo";
/// The file name of a generated wheel.
pub(crate) const FILE_NAME: &str = "bigdemo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";

/// What a generated wheel shall be like.
#[derive(Args, Clone, Debug)]
pub(crate) struct WheelSpec {
    /// Bytes of all files, compressed bundles counted as they are uncompressed (64MiB, 2GiB)
    #[arg(long, value_parser = size, default_value = "64MiB")]
    pub(crate) size: u64,
    /// Compress the bundles, as clang's --offload-compress does
    #[arg(long)]
    pub(crate) ccob: bool,
    /// Processors, at most 16
    #[arg(long, default_value_t = TARGETS.len(), value_parser = targets)]
    pub(crate) targets: usize,
    /// Mean size of a code object
    #[arg(long, value_parser = size, default_value = "320KiB")]
    pub(crate) object: u64,
    /// Small per-architecture files; fewer if they would be more than a tenth of the wheel
    #[arg(long, default_value_t = 10_000)]
    pub(crate) databases: u64,
    /// How many to one deflate makes of device code
    #[arg(long, default_value_t = 5.0)]
    pub(crate) ratio: f64,
    /// How many to one deflate makes of host code
    #[arg(long, default_value_t = 3.8)]
    pub(crate) host_ratio: f64,
    /// Deflate level of the members
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=9))]
    pub(crate) level: u32,
    /// Other bytes of the same kind
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Default for WheelSpec {
    fn default() -> Self {
        Self {
            size: 64 << 20,
            ccob: false,
            targets: TARGETS.len(),
            object: 320 << 10,
            databases: 10_000,
            ratio: 5.0,
            host_ratio: 3.8,
            level: 6,
            seed: 1,
        }
    }
}

/// A number of bytes with a unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        other => return Err(format!("unknown unit {other}; known are B, KiB, MiB, GiB")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("{digits:?} is no number"))?;
    Ok((number * f64::from(unit)) as u64)
}

fn targets(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=TARGETS.len()).contains(count));
    count.ok_or_else(|| format!("a number from 1 to {}", TARGETS.len()))
}

/// What was generated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    /// Bytes of the wheel file.
    pub(crate) wheel: u64,
    /// Bytes of its members.
    pub(crate) unpacked: u64,
    /// Bytes of device code, decompressed.
    pub(crate) device: u64,
    /// Bytes of the fat libraries, in and out of the wheel.
    pub(crate) fat: (u64, u64),
    /// Bytes of the libraries without device code, in and out of the wheel.
    pub(crate) plain: (u64, u64),
    /// Code objects.
    pub(crate) objects: u64,
    /// Members.
    pub(crate) members: u64,
}

/// Writes the wheel that `spec` describes to `path`.
pub(crate) fn write_wheel(spec: &WheelSpec, path: &Path, threads: usize) -> io::Result<Summary> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut writer = Writer {
        mixer: Arc::new(Mixer::new()),
        pool: Pool::new(threads),
        level: Compression::new(spec.level),
        out: File::create(path)?,
        layout: Layout::new(),
        record: RecordWriter::new(),
        attributes: Attributes::regular(0o644, (((2025 - 1980) << 9) | (6 << 5) | 1, 0)),
        summary: Summary::default(),
    };
    // A tenth of the wheel at most is small files, a tenth libraries without device code.
    let database = 24 << 10;
    let databases = spec.databases.min(spec.size / 10 / database);
    let plain = spec.size / 10;
    let fat = spec.size - plain - databases * database;
    writer.file(&format!("{PACKAGE}/__init__.py"), b"# A generated wheel.\n".to_vec())?;
    for (index, share) in [75, 15, 7, 3].into_iter().enumerate() {
        let total = fat / 100 * share;
        let seed = vec![spec.seed, index as u64];
        let host = total / 8;
        let mut device = Device::new(&seed, total - host, spec.object, spec.targets, spec.ratio);
        let mut spool = None;
        writer.summary.device += device.units.iter().flatten().sum::<u64>();
        writer.summary.objects += device.units.iter().map(|unit| unit.len() as u64).sum::<u64>();
        if spec.ccob {
            let file = tempfile::tempfile_in(directory)?;
            device.compressed = Some(writer.compress(&device, &seed, &file)?);
            spool = Some(file);
        }
        let library = Library { seed, host, host_ratio: spec.host_ratio, device: Some(device) };
        let sizes = writer.library(&format!("{PACKAGE}/lib/libfat{index}.so"), &library, spool)?;
        writer.summary.fat.0 += sizes.0;
        writer.summary.fat.1 += sizes.1;
    }
    for (index, share) in [80, 20].into_iter().enumerate() {
        let seed = vec![spec.seed, 100 + index as u64];
        let library = Library { seed, host: plain / 100 * share, host_ratio: spec.host_ratio, device: None };
        let sizes = writer.library(&format!("{PACKAGE}/lib/libplain{index}.so"), &library, None)?;
        writer.summary.plain.0 += sizes.0;
        writer.summary.plain.1 += sizes.1;
    }
    writer.databases(spec, databases, database)?;
    writer.finish()
}

struct Writer {
    mixer: Arc<Mixer>,
    pool: Pool,
    level: Compression,
    out: File,
    layout: Layout,
    record: RecordWriter,
    attributes: Attributes,
    summary: Summary,
}

/// A whole member, ready to be written.
struct Packed {
    deflated: Vec<u8>,
    crc32: u32,
    sha256: [u8; 32],
    size: u64,
}

fn pack(bytes: &[u8], level: Compression) -> Packed {
    Packed {
        deflated: deflate_block(level, &[], bytes, true),
        crc32: crc32fast::hash(bytes),
        sha256: Sha256::digest(bytes).into(),
        size: bytes.len() as u64,
    }
}

impl Writer {
    /// A small member.
    fn file(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.packed(name, &pack(&bytes, self.level))
    }

    fn packed(&mut self, name: &str, packed: &Packed) -> io::Result<()> {
        let sizes = Sizes {
            crc32: packed.crc32,
            compressed: packed.deflated.len() as u64,
            uncompressed: packed.size,
        };
        let header = self.layout.known(name, Method::Deflated, &self.attributes, sizes);
        self.out.write_all(&header)?;
        self.out.write_all(&packed.deflated)?;
        self.record.push(name, &packed.sha256, packed.size);
        self.summary.unpacked += packed.size;
        self.summary.members += 1;
        Ok(())
    }

    /// Compresses the bundles of `device` into `spool`. Returns where each lies.
    fn compress(&self, device: &Device, seed: &[u64], mut spool: &File) -> io::Result<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        let (mut at, mut failed) = (0, None);
        let mut write = |bytes: Vec<u8>| {
            failed = failed.take().or(spool.write_all(&bytes).err());
            ranges.push(at..at + bytes.len() as u64);
            at += bytes.len() as u64;
        };
        let mut line = self.pool.line();
        for unit in 0..device.units.len() {
            let (pieces, mixer) = (device.bundle(seed, unit), Arc::clone(&self.mixer));
            let work = move || {
                let bytes = |piece: &Piece| piece.bytes(&mixer, |_| Vec::new());
                compress_bundle(&pieces.iter().flat_map(bytes).collect::<Vec<u8>>())
            };
            line.push(work, &mut write);
        }
        line.finish(&mut write);
        failed.map_or(Ok(ranges), Err)
    }

    /// A streamed library. Returns its size and what it takes in the wheel.
    fn library(&mut self, name: &str, library: &Library, spool: Option<File>) -> io::Result<(u64, u64)> {
        let generated = generate(library);
        let header = self.layout.begin(name, Method::Deflated, &self.attributes, generated.size);
        self.out.write_all(&header)?;
        let mut member =
            Member { blocks: self.pool.line(), current: Vec::new(), history: Vec::new(), level: self.level };
        let mut sizes = Sizes { uncompressed: generated.size, ..Sizes::default() };
        let mut crc = crc32fast::Hasher::new();
        let mut sha256 = Sha256::new();
        let mut failed = None;
        let out = &mut self.out;
        let mut write = |deflated: Vec<u8>| {
            sizes.compressed += deflated.len() as u64;
            failed = failed.take().or(out.write_all(&deflated).err());
        };
        let spool = Arc::new(spool);
        let mut line = self.pool.line();
        let mut take = |bytes: Vec<u8>| {
            crc.update(&bytes);
            sha256.update(&bytes);
            member.push(&bytes, &mut write);
        };
        for piece in generated.pieces {
            let (mixer, spool) = (Arc::clone(&self.mixer), Arc::clone(&spool));
            line.push(move || piece.bytes(&mixer, |range| read(&spool, range)), &mut take);
        }
        line.finish(&mut take);
        member.finish(&mut write);
        if let Some(error) = failed {
            return Err(error);
        }
        sizes.crc32 = crc.finalize();
        let patch =
            self.layout.end(sizes).expect("room for a ZIP64 field was kept if there can be need for it");
        self.out.write_all_at(&patch.bytes, patch.offset)?;
        self.record.push(name, &sha256.finalize().into(), generated.size);
        self.summary.unpacked += generated.size;
        self.summary.members += 1;
        Ok((generated.size, sizes.compressed))
    }

    /// Small files as rocBLAS names them.
    fn databases(&mut self, spec: &WheelSpec, count: u64, mean: u64) -> io::Result<()> {
        let mut line: Line<(String, Packed)> = self.pool.line();
        let mut done = Vec::new();
        for index in 0..count {
            let (mixer, level, ratio) = (Arc::clone(&self.mixer), self.level, spec.ratio);
            let target = TARGETS[(index % spec.targets as u64) as usize];
            let kind = ["co", "dat", "hsaco"][(index / 16 % 3) as usize];
            let name = format!(
                "{PACKAGE}/lib/rocblas/library/TensileLibrary_Type_HH_Contraction_l_Ailk_Bjlk_{:04}_{target}.{kind}",
                index / spec.targets as u64
            );
            let place = [spec.seed, 1000, index];
            let size = mean / 2 + Random::of(&place).below(mean);
            let work = move || (name, pack(&mixer.device(size as usize, ratio, &place, 0), level));
            line.push(work, |packed| done.push(packed));
            for (name, packed) in done.drain(..) {
                self.packed(&name, &packed)?;
            }
        }
        line.finish(|packed| done.push(packed));
        for (name, packed) in done {
            self.packed(&name, &packed)?;
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Summary> {
        let dist_info = format!("{PACKAGE}-1.0.dist-info");
        let metadata =
            format!("Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n\nA generated wheel.\n");
        self.file(&format!("{dist_info}/METADATA"), metadata.into_bytes())?;
        let wheel = "Wheel-Version: 1.0\nGenerator: fatwheel benches\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_28_x86_64\n";
        self.file(&format!("{dist_info}/WHEEL"), wheel.as_bytes().to_vec())?;
        let path = format!("{dist_info}/RECORD");
        let record = std::mem::take(&mut self.record).finish(&path);
        self.file(&path, record)?;
        let directory = self.layout.finish();
        self.out.seek(SeekFrom::End(0))?;
        self.out.write_all(&directory)?;
        self.summary.wheel = self.out.stream_position()?;
        Ok(self.summary)
    }
}

/// Collects the bytes of one member into blocks.
struct Member {
    blocks: Line<Vec<u8>>,
    current: Vec<u8>,
    history: Vec<u8>,
    level: Compression,
}

impl Member {
    fn push(&mut self, mut bytes: &[u8], mut write: impl FnMut(Vec<u8>)) {
        while !bytes.is_empty() {
            if self.current.len() == BLOCK {
                self.block(false, &mut write);
            }
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.current.len()));
            self.current.extend_from_slice(now);
            bytes = later;
        }
    }

    fn block(&mut self, last: bool, write: impl FnMut(Vec<u8>)) {
        let block = std::mem::take(&mut self.current);
        let next = block[block.len().saturating_sub(HISTORY)..].to_vec();
        let (history, level) = (std::mem::replace(&mut self.history, next), self.level);
        self.blocks.push(move || deflate_block(level, &history, &block, last), write);
    }

    fn finish(mut self, mut write: impl FnMut(Vec<u8>)) {
        self.block(true, &mut write);
        self.blocks.finish(write);
    }
}

/// One block of a deflate stream, ended on a byte boundary.
fn deflate_block(level: Compression, history: &[u8], block: &[u8], last: bool) -> Vec<u8> {
    let mut state = Compress::new(level, false);
    if !history.is_empty() {
        state.set_dictionary(history).expect("a fresh stream takes a dictionary");
    }
    let flush = if last { FlushCompress::Finish } else { FlushCompress::Sync };
    let mut out = Vec::with_capacity(block.len() / 3 + 1024);
    loop {
        let read = state.total_in() as usize;
        let status = state.compress_vec(&block[read..], &mut out, flush).expect("deflate does not fail");
        let all_in = state.total_in() as usize == block.len();
        if status == Status::StreamEnd || !last && all_in && out.len() < out.capacity() {
            return out;
        }
        out.reserve(out.capacity());
    }
}

/// A compressed bundle of version 2, or 3 where 32 bits are too few; zstd with long-distance matching, as clang.
pub(crate) fn compress_bundle(content: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).expect("level 3 exists");
    encoder.set_pledged_src_size(Some(content.len() as u64)).expect("no byte was written yet");
    encoder.long_distance_matching(true).expect("no byte was written yet");
    encoder.write_all(content).expect("memory does not fail");
    let payload = encoder.finish().expect("memory does not fail");
    let mut bundle = b"CCOB".to_vec();
    let (total, raw) = (payload.len() as u64, content.len() as u64);
    match (u32::try_from(total + 24), u32::try_from(raw)) {
        (Ok(total), Ok(raw)) => {
            bundle.extend([2, 0, 1, 0]);
            bundle.extend(total.to_le_bytes());
            bundle.extend(raw.to_le_bytes());
        }
        _ => {
            bundle.extend([3, 0, 1, 0]);
            bundle.extend((total + 32).to_le_bytes());
            bundle.extend(raw.to_le_bytes());
        }
    }
    bundle.extend(&<md5::Md5 as md5::Digest>::digest(content)[..8]);
    bundle.extend(payload);
    bundle
}

fn read(spool: &Option<File>, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let file = spool.as_ref().expect("only compressed libraries have such pieces");
    file.read_exact_at(&mut bytes, range.start).expect("the spool can be read back");
    bytes
}
