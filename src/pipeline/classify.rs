//! Stage *classify*: the first pass over every member, in parallel. Inflates once through CRC-32, SHA-256 and the
//! magic numbers; whatever may be a fat binary is looked into by random access afterwards. No output is written.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::bounded;
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::Context;
use super::ahead::{Anticipating, Anticipators};
use super::cancel::{cause, hung_up, stopped};
use super::early::Early;
use super::identify::Identified;
use super::limits::{Kinds, Limits};
use super::meter::Meter;
use super::plan::settings::Settings;
use super::receive::Received;
use super::scan::{Scan, Scanned};
use super::spot::Key;
use super::unbundle::join;
use crate::elf::{self, ElfLayout};
use crate::error::{Error, ErrorKind, Result};
use crate::fatbin::walk::{LocatedBundle, walk};
use crate::fatbin::wrapper::{BundleSection, HIPF_MAGIC, Located, Wrapper};
use crate::fault::{self, Fault};
use crate::io::output::scratch;
use crate::io::{Checkpoints, Input, Member, MemberReader, StreamReader};
use crate::options::UnknownArch;
use crate::pe::{self, PeLayout};
use crate::source::ReadAt;
use crate::wheel::record::{Hash, Row};
use crate::zip::Entry;

/// Members from this size on are hashed in a thread of their own while they are inflated.
const LARGE: u64 = 16 << 20;
/// Chunks on their way to that thread.
const HASH_QUEUE: usize = 8;
/// Checkpoints of all members together, 45 KiB each. Few enough for the memory bound, many enough that a jump
/// inflates little.
const CHECKPOINTS: u64 = 256;
/// Members smaller than this are read in the order of the file.
const SMALL_MEMBER: u64 = 1 << 20;
/// A wheel that is smaller than this is inflated twice in less time than the threads take that would spare it.
const WORTHWHILE: u64 = 8 << 20;
/// Checkpoints closer than this would cost more than they save.
const MIN_INTERVAL: u64 = 1 << 20;

/// What the first pass found out about one member.
#[derive(Debug)]
pub struct Classified {
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
    /// What it is.
    pub kind: Kind,
    /// How it differs from the input's RECORD, where `--no-verify-record` makes that a warning.
    pub warning: Option<String>,
}

/// What a member is.
#[derive(Debug)]
pub enum Kind {
    /// No device code.
    Plain,
    /// A binary that was split before.
    AlreadySplit,
    /// A fat binary.
    Fat(Box<FatBinary>),
    /// A binary with device code that cannot be understood.
    Broken(Fault),
    /// A binary with an offload bundle at this offset, whose sections do not name it.
    Hidden(u64),
}

/// Headers of a fat binary, by format.
#[derive(Debug)]
pub enum Layout {
    /// ELF64, little-endian.
    Elf(ElfLayout),
    /// PE32+.
    Pe(PeLayout),
}

impl Layout {
    /// The sections that hold bundles.
    pub fn sections(&self) -> &[BundleSection] {
        match self {
            Layout::Elf(layout) => &layout.sections,
            Layout::Pe(layout) => &layout.sections,
        }
    }

    /// All wrappers; the position of one is its code-object index.
    pub fn wrappers(&self) -> &[Wrapper] {
        match self {
            Layout::Elf(layout) => &layout.wrappers,
            Layout::Pe(layout) => &layout.wrappers,
        }
    }
}

/// A fat binary, and where its device code lies.
#[derive(Debug)]
pub struct FatBinary {
    /// Its headers.
    pub layout: Layout,
    /// All bundles in the order of the file.
    pub bundles: Vec<LocatedBundle>,
    /// For each wrapper the bundle that it points at; `None` for one that was split before.
    pub bundle_of_wrapper: Vec<Option<usize>>,
    /// For reading the member at random while the split is planned.
    pub checkpoints: Checkpoints,
}

/// Members that were classified while the wheel arrived, by the offset of their local header.
pub type Members = HashMap<u64, (Entry, Classified)>;

/// Classifies all members with as many threads as the options say. The result is in the order of the members.
/// `received` has what is known from a pipe already. If it has nothing, code objects are compressed on the way, so that
/// fat members are inflated once: see [`ahead`](super::ahead).
pub fn classify(
    context: &Context<'_>,
    settings: &Settings,
    input: &Input,
    identified: &Identified,
    received: Received,
    meter: &Meter,
    warnings: &mut Vec<String>,
) -> Result<(Vec<Classified>, Option<Early>)> {
    let Context { options, cancel, .. } = *context;
    let total: u64 = input.members().iter().map(|member| member.size).sum();
    let interval = (total / CHECKPOINTS).max(MIN_INTERVAL);
    let Received { members, early } = received;
    let received = Mutex::new(members);
    let everything = |anticipators: Option<&Anticipators<'_, '_>>| {
        in_parallel(context, input, |index, reader| {
            let member = &input.members()[index];
            let pass = FirstPass { context, input, index, interval, meter, anticipators };
            let known = member.entry().and_then(|entry| take(&mut lock(&received), entry));
            let mut classified = match known {
                // Whether it is a link is known from the central directory alone.
                Some(known) if member.is_file() => {
                    meter.add(member.size);
                    known
                }
                _ => {
                    let (sha256, kind) = pass.run(reader)?;
                    Classified { sha256, kind, warning: None }
                }
            };
            let row = identified.record.as_ref().map(|record| record.get(&member.name));
            classified.warning = pass.compare(row, identified, &classified.sha256, options.verify_record)?;
            Ok(classified)
        })
    };
    // Where much of the code is not wanted, or unknown targets are an error, compressing it is likely to be in vain.
    let in_vain = settings.filter.is_some() || settings.unknown_arch() == UnknownArch::Error;
    let (mut classified, early) = if early.is_some() || in_vain || total < WORTHWHILE {
        (everything(None)?, early)
    } else {
        let file = scratch(&options.output_dir)?;
        std::thread::scope(|scope| {
            let (anticipating, anticipators) = Anticipating::start(scope, context, file);
            let classified = cancel.watch(everything(Some(&anticipators)));
            let (classified, error) = match classified {
                Ok(classified) => (Some(classified), None),
                Err(error) => (None, Some(error)),
            };
            let early = anticipating.finish(anticipators, error)?;
            classified.map(|classified| (classified, Some(early))).ok_or_else(stopped)
        })?
    };
    warnings.extend(classified.iter_mut().filter_map(|classified| classified.warning.take()));
    Ok((classified, early))
}

/// Runs `work` on the index of every member, with `jobs` threads. The results are in the order of the members. The
/// error, if there is one, is that of the first member that fails, however fast the threads are.
fn in_parallel<T: Send>(
    context: &Context<'_>,
    input: &Input,
    work: impl Fn(usize, &mut StreamReader) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let Context { options, cancel, stats } = *context;
    let members = input.members();
    // Largest first, so that no thread starts the largest when the others are done; small ones in the order of the
    // file, as the disk likes it.
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(members[index].size.max(SMALL_MEMBER)));
    let next = AtomicUsize::new(0);
    // Members behind a failed one are skipped, those before it are still looked at.
    let failed = AtomicUsize::new(usize::MAX);
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..members.len()).map(|_| None).collect());
    let errors: Mutex<Vec<(usize, Error)>> = Mutex::new(Vec::new());
    let run = || -> Result<()> {
        let mut reader = StreamReader::new()?;
        let mut lap = stats.classify.lap();
        while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            cancel.check()?;
            if index > failed.load(Ordering::Relaxed) {
                continue;
            }
            let result = work(index, &mut reader);
            lap.worked(members[index].size);
            match result {
                Ok(result) => lock(&results)[index] = Some(result),
                // Something else has failed.
                Err(error) if matches!(error.kind(), ErrorKind::Stopped) => return Err(error),
                Err(error) => {
                    failed.fetch_min(index, Ordering::Relaxed);
                    lock(&errors).push((index, error));
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        // No more than the memory that the user grants can bear.
        let jobs = Limits::of(options, Kinds::Unknown).workers.clamp(1, members.len().max(1));
        let threads: Vec<_> = (1..jobs).map(|_| scope.spawn(run)).collect();
        let first = run();
        let results: Vec<Result<()>> = std::iter::once(first).chain(threads.into_iter().map(join)).collect();
        cause(results.into_iter().filter_map(Result::err)).map_or(Ok(()), Err)
    })?;
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, error)) = errors.into_iter().min_by_key(|&(index, _)| index) {
        return Err(error);
    }
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(results.into_iter().flatten().collect())
}

/// The result for `entry`, if it was made of just this member.
fn take(received: &mut Members, entry: &Entry) -> Option<Classified> {
    let (promised, classified) = received.remove(&entry.header_offset)?;
    let same = promised.name == entry.name
        && promised.method == entry.method
        && promised.crc32 == entry.crc32
        && promised.size == entry.size
        && promised.data == entry.data;
    same.then_some(classified)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first pass over one member.
pub struct FirstPass<'a, 'scope, 'env> {
    /// Options, cancellation, timings.
    context: &'a Context<'a>,
    /// The input.
    input: &'a Input,
    /// Index of the member.
    index: usize,
    /// Uncompressed bytes between checkpoints.
    interval: u64,
    /// Told about every chunk.
    meter: &'a Meter,
    /// Cut code objects out at once, if there are some.
    anticipators: Option<&'a Anticipators<'scope, 'env>>,
}

impl FirstPass<'_, '_, '_> {
    /// The interval for a member of `size` bytes of a wheel whose size is not known yet: at most 16 checkpoints each.
    pub fn interval(size: u64) -> u64 {
        (size / 16).max(MIN_INTERVAL)
    }

    fn member(&self) -> &Member {
        &self.input.members()[self.index]
    }

    /// Reads the member. Its SHA-256, and what it is.
    fn run(&self, reader: &mut StreamReader) -> Result<([u8; 32], Kind)> {
        let member = self.member();
        let mut checkpoints = Checkpoints::every(self.interval);
        let key = Key::member(self.input, self.index);
        let anticipators = self.anticipators.filter(|_| member.is_file());
        let mut scan = Scan::new(self.context, &member.name, member.size, key, anticipators);
        let mut look = |chunk: &[u8]| {
            self.meter.add(chunk.len() as u64);
            scan.feed(chunk)
        };
        let wants_checkpoints = member.is_file() && member.size > self.interval;
        let checkpoints_wanted = wants_checkpoints.then_some(&mut checkpoints);
        let sha256 = if member.size < LARGE {
            let mut sha256 = Sha256::new();
            reader.read(self.input, member, checkpoints_wanted, |chunk| {
                look(chunk)?;
                sha256.update(chunk);
                Ok(())
            })?;
            sha256.finalize()
        } else {
            self.hash_apart(reader, checkpoints_wanted, look)?
        };
        let scanned = scan.finish()?;
        if let Some(expected) = member.crc32().filter(|&expected| expected != scanned.crc32) {
            let fault = Fault::malformed(
                "member data",
                None,
                format!("CRC-32 is {:08x}, the archive says {expected:08x}", scanned.crc32),
            );
            return Err(Error::from(fault).in_member(&member.name).with_hint("download the wheel again"));
        }
        let kind = match member.is_file() {
            true => look_into(self.input, member, &scanned, checkpoints)?,
            false => Kind::Plain,
        };
        Ok((sha256.into(), kind))
    }

    /// Inflates in this thread and hashes in another: together they take as long as the slower of the two.
    fn hash_apart(
        &self,
        reader: &mut StreamReader,
        checkpoints: Option<&mut Checkpoints>,
        mut look: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<sha2::digest::Output<Sha256>> {
        std::thread::scope(|scope| {
            let (full, to_hash) = bounded::<(Box<[u8]>, usize)>(HASH_QUEUE);
            let (empty, to_fill) = bounded::<Box<[u8]>>(HASH_QUEUE + 2);
            let hasher = scope.spawn(move || {
                let mut sha256 = Sha256::new();
                let mut lap = self.context.stats.hash.lap();
                for (buffer, length) in to_hash {
                    lap.waited();
                    sha256.update(&buffer[..length]);
                    lap.worked(length as u64);
                    // The reader may be done and gone.
                    let _ = empty.try_send(buffer);
                }
                Ok(sha256.finalize())
            });
            let read = reader.read_filled(self.input, self.member(), checkpoints, |chunk| {
                look(chunk.bytes())?;
                full.send(chunk.take(to_fill.try_recv().ok())).map_err(hung_up)
            });
            drop(full);
            let digest = join(hasher)?;
            read.map(|()| digest)
        })
    }

    /// Compares with the member's row of RECORD. `row`: `None` if there is no RECORD at all.
    fn compare(
        &self,
        row: Option<Option<&Row>>,
        identified: &Identified,
        sha256: &[u8; 32],
        strict: bool,
    ) -> Result<Option<String>> {
        let name = &self.member().name;
        let exempt = ["RECORD", "RECORD.jws", "RECORD.p7s"].iter().any(|file| identified.path(file) == *name);
        if exempt || self.member().is_directory() {
            return Ok(None);
        }
        let problem = match row {
            // Without a RECORD there is one warning for the wheel, not one per member.
            None => return Ok(None),
            Some(None) => {
                return Ok(Some(format!("{name}: RECORD does not list it, so it could not be verified")));
            }
            Some(Some(row)) => self.difference(row, sha256)?,
        };
        match problem {
            None => Ok(None),
            Some(problem) if strict => {
                let fault = Fault::malformed("RECORD", None, problem);
                Err(Error::from(fault).in_member(name).with_hint(
                    "the file was changed after RECORD was written, or damaged; --no-verify-record goes on with a warning",
                ))
            }
            Some(problem) => Ok(Some(format!("{name}: {problem}"))),
        }
    }

    fn difference(&self, row: &Row, sha256: &[u8; 32]) -> Result<Option<String>> {
        if let Some(size) = row.size.filter(|&size| size != self.member().size) {
            return Ok(Some(format!("it says {size} bytes, found {}", self.member().size)));
        }
        let Some(Hash { algorithm, digest }) = &row.hash else { return Ok(None) };
        let equal = match algorithm.as_str() {
            "sha256" => digest[..] == sha256[..],
            "sha384" => digest[..] == self.digest::<Sha384>()?[..],
            "sha512" => digest[..] == self.digest::<Sha512>()?[..],
            _ => return Ok(None),
        };
        Ok((!equal).then(|| format!("its {algorithm} does not fit the file's bytes")))
    }

    /// Reads the member once more: algorithms other than SHA-256 are rare.
    fn digest<D: Digest>(&self) -> Result<Vec<u8>> {
        let mut digest = D::new();
        StreamReader::new()?.read(self.input, self.member(), None, |chunk| {
            digest.update(chunk);
            Ok(())
        })?;
        Ok(digest.finalize().to_vec())
    }
}

/// What the member is. `scanned` and `checkpoints` were made while it was read.
pub fn look_into(
    input: &Input,
    member: &Member,
    scanned: &Scanned,
    checkpoints: Checkpoints,
) -> Result<Kind> {
    let prefix = &scanned.prefix;
    if !elf::is_elf(prefix) && !pe::is_pe(prefix) {
        return Ok(Kind::Plain);
    }
    let located = {
        let mut source = MemberReader::new(input, member, &checkpoints)?.with_snapshots(&scanned.snapshots);
        locate(prefix, &mut source).and_then(|located| match located {
            Located::Plain => Ok(Located::Plain),
            Located::AlreadySplit => Ok(Located::AlreadySplit),
            Located::Fat(layout) => {
                let mut bundles = Vec::new();
                for section in layout.sections() {
                    bundles.extend(walk(&mut source, section)?);
                }
                let bundle_of_wrapper = match_wrappers(&layout, &bundles)?;
                Ok(Located::Fat((layout, bundles, bundle_of_wrapper)))
            }
        })
    };
    Ok(match located {
        Ok(Located::Plain) => scanned.bundle.map_or(Kind::Plain, Kind::Hidden),
        Ok(Located::AlreadySplit) => Kind::AlreadySplit,
        Ok(Located::Fat((layout, bundles, bundle_of_wrapper))) => {
            Kind::Fat(Box::new(FatBinary { layout, bundles, bundle_of_wrapper, checkpoints }))
        }
        Err(fault) => Kind::Broken(fault),
    })
}

fn locate(prefix: &[u8], source: &mut dyn ReadAt) -> fault::Result<Located<Layout>> {
    Ok(if elf::is_elf(prefix) {
        match elf::locate(source)? {
            Located::Plain => Located::Plain,
            Located::AlreadySplit => Located::AlreadySplit,
            Located::Fat(layout) => Located::Fat(Layout::Elf(layout)),
        }
    } else {
        match pe::locate(source)? {
            Located::Plain => Located::Plain,
            Located::AlreadySplit => Located::AlreadySplit,
            Located::Fat(layout) => Located::Fat(Layout::Pe(layout)),
        }
    })
}

/// The bundle of each wrapper: the one that starts where it points.
fn match_wrappers(layout: &Layout, bundles: &[LocatedBundle]) -> fault::Result<Vec<Option<usize>>> {
    layout
        .wrappers()
        .iter()
        .enumerate()
        .map(|(index, wrapper)| {
            if wrapper.magic != HIPF_MAGIC {
                return Ok(None);
            }
            let offset = layout.sections().iter().find_map(|section| {
                let within = wrapper.target.checked_sub(section.address)?;
                (within < section.range.end - section.range.start).then(|| section.range.start + within)
            });
            let bundle =
                offset.and_then(|offset| bundles.binary_search_by_key(&offset, |bundle| bundle.offset).ok());
            bundle.map(Some).ok_or_else(|| {
                Fault::malformed(
                    format!("fat binary wrapper {index}"),
                    wrapper.offset,
                    format!("it points at address {:#x}, where no offload bundle starts", wrapper.target),
                )
            })
        })
        .collect()
}
