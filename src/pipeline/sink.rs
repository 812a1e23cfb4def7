//! Where a wheel goes: a `.whl` file or a directory. Both take the same calls.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::io::output::Pending;
use crate::io::{Input, Member, StreamReader};
use crate::zip::{Attributes, Layout, Method, Sizes};

/// Bytes copied at a time from one file to another.
const COPY: usize = 1 << 20;
/// Writes of fewer bytes are collected.
const BUFFERED: usize = 32 << 10;
/// So many bytes are written at once.
const FLUSHED: usize = 128 << 10;

/// A region of a file that an archive is written into: the file, and where the region starts.
#[derive(Clone, Debug)]
pub struct Region {
    /// Shared with the sink; written at absolute offsets only.
    pub file: Arc<File>,
    /// Offset of the region's first byte.
    pub start: u64,
}

impl Region {
    /// Writes at `offset` from the region's start.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        write_at(&self.file, bytes, self.start + offset).map_err(|error| Error::io("write", None, error))
    }

    /// Reads at `offset` from the region's start.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        read_at(&self.file, bytes, self.start + offset).map_err(|error| Error::io("read back", None, error))
    }

    /// SHA-256 of the first `length` bytes.
    pub fn sha256(&self, length: u64) -> Result<[u8; 32]> {
        let mut sha256 = Sha256::new();
        in_pieces(0..length, |at, buffer| {
            self.read_at(buffer, at)?;
            sha256.update(buffer);
            Ok(true)
        })?;
        Ok(sha256.finalize().into())
    }

    /// Copies the bytes `range` of `from` to `offset` from the region's start.
    pub fn copy_from(&self, from: &File, range: &Range<u64>, offset: u64) -> Result<()> {
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let copied = copy_range(from, range.start, &self.file, self.start + offset, length) as u64;
        in_pieces(range.start + copied..range.end, |piece, buffer| {
            read_at(from, buffer, piece).map_err(|error| Error::io("read back", None, error))?;
            self.write_at(buffer, offset + (piece - range.start))?;
            Ok(true)
        })?;
        Ok(())
    }

    /// Whether the bytes from `offset` on are those of `range` in `other`.
    pub fn equals(&self, offset: u64, other: &File, range: &Range<u64>) -> Result<bool> {
        let mut own = Vec::new();
        in_pieces(range.clone(), |piece, buffer| {
            own.resize(buffer.len(), 0);
            read_at(other, buffer, piece).map_err(|error| Error::io("read back", None, error))?;
            self.read_at(&mut own, offset + (piece - range.start))?;
            Ok(own == buffer)
        })
    }
}

/// Goes through `range` in pieces that fit a buffer, while `step` says so. Whether it came to the end.
fn in_pieces(range: Range<u64>, mut step: impl FnMut(u64, &mut [u8]) -> Result<bool>) -> Result<bool> {
    let mut buffer = vec![0; COPY.min(usize::try_from(range.end - range.start).unwrap_or(COPY))];
    let mut at = range.start;
    while at < range.end {
        let take = usize::try_from(range.end - at).unwrap_or(COPY).min(COPY);
        if !step(at, &mut buffer[..take])? {
            return Ok(false);
        }
        at += take as u64;
    }
    Ok(true)
}

/// One wheel that is being written.
#[derive(Debug)]
pub enum Sink {
    /// To a `.whl` file.
    Archive(ArchiveSink),
    /// To a directory.
    Tree(TreeSink),
}

/// State of a `.whl` file.
#[derive(Debug)]
pub struct ArchiveSink {
    pending: Pending,
    file: Arc<File>,
    layout: Layout,
    /// Where the next byte of the open member goes.
    at: u64,
    /// The bytes in front of it that are still to be written: headers and small members, one call each otherwise.
    buffered: Vec<u8>,
}

/// State of a directory.
#[derive(Debug)]
pub struct TreeSink {
    pending: Pending,
    root: PathBuf,
    open: Option<(File, PathBuf)>,
}

impl Sink {
    /// A `.whl` file that will be `directory/name`.
    pub fn archive(directory: &Path, name: &str) -> Result<Self> {
        let pending = Pending::file(directory, name)?;
        let file = pending.open_file().map(File::try_clone).transpose();
        let file = file.map_err(|error| Error::io("open", pending.path(), error))?;
        let file = Arc::new(file.ok_or_else(|| Error::usage("an output without a file"))?);
        Ok(Sink::Archive(ArchiveSink { pending, file, layout: Layout::new(), at: 0, buffered: Vec::new() }))
    }

    /// A directory that will be `directory/name`.
    pub fn tree(directory: &Path, name: &str) -> Result<Self> {
        let (pending, root) = Pending::tree(directory, name)?;
        Ok(Sink::Tree(TreeSink { pending, root, open: None }))
    }

    /// Copies a member as it stands in the input, without inflating it where both are archives.
    pub fn copy(&mut self, input: &Input, member: &Member, reader: &mut StreamReader) -> Result<()> {
        let raw = input.raw(member);
        match (self, raw) {
            (Sink::Archive(sink), Some((entry, bytes))) => {
                let sizes =
                    Sizes { crc32: entry.crc32, compressed: bytes.len() as u64, uncompressed: entry.size };
                let header = sink.layout.known(&member.name, entry.method, &member.attributes, sizes);
                sink.write(&header)?;
                let start = entry.data.start;
                let copied = match input.map() {
                    Some(map) if bytes.len() >= BUFFERED => {
                        sink.flush()?;
                        copy_range(map.file(), start, &sink.file, sink.at, bytes.len())
                    }
                    _ => 0,
                };
                sink.at += copied as u64;
                // Whatever the system did not copy by itself.
                for piece in bytes[copied..].chunks(COPY) {
                    sink.write(piece)?;
                    release(input, piece);
                }
                Ok(())
            }
            (sink, _) => {
                sink.begin(&member.name, &member.attributes, Method::Stored, member.size)?;
                let mut crc = crc32fast::Hasher::new();
                reader.read(input, member, None, |chunk| {
                    crc.update(chunk);
                    sink.write(chunk, chunk)
                })?;
                let sizes =
                    Sizes { crc32: crc.finalize(), compressed: member.size, uncompressed: member.size };
                sink.end(sizes)
            }
        }
    }

    /// Starts a member that comes in blocks, at most `at_most` bytes in either form.
    pub fn begin(&mut self, name: &str, attributes: &Attributes, method: Method, at_most: u64) -> Result<()> {
        match self {
            Sink::Archive(sink) => {
                let header = sink.layout.begin(name, method, attributes, at_most);
                sink.write(&header)
            }
            Sink::Tree(sink) => sink.create(name, attributes),
        }
    }

    /// The next bytes of the open member, as they are and as they shall stand in an archive.
    pub fn write(&mut self, plain: &[u8], packed: &[u8]) -> Result<()> {
        match self {
            Sink::Archive(sink) => sink.write(packed),
            Sink::Tree(sink) => match &mut sink.open {
                Some((file, path)) => {
                    file.write_all(plain).map_err(|error| Error::io("write", path.clone(), error))
                }
                None => Ok(()),
            },
        }
    }

    /// Ends the open member.
    pub fn end(&mut self, sizes: Sizes) -> Result<()> {
        match self {
            Sink::Archive(sink) => sink.end(sizes),
            Sink::Tree(sink) => {
                let Some((file, path)) = sink.open.take() else { return Ok(()) };
                #[cfg(unix)]
                if sink.link(&file, &path)? {
                    return Ok(());
                }
                // What was written in place may have reached further.
                file.set_len(sizes.uncompressed).map_err(|error| Error::io("write", path, error))
            }
        }
    }

    /// A whole small member, deflated if that helps.
    pub fn whole(&mut self, name: &str, attributes: &Attributes, bytes: &[u8]) -> Result<()> {
        let crc32 = crc32fast::hash(bytes);
        let deflated = super::compress::deflate_whole(bytes)?;
        let (method, packed) = if deflated.len() < bytes.len() {
            (Method::Deflated, deflated.as_slice())
        } else {
            (Method::Stored, bytes)
        };
        self.begin(name, attributes, method, bytes.len() as u64)?;
        self.write(bytes, packed)?;
        self.end(Sizes { crc32, compressed: packed.len() as u64, uncompressed: bytes.len() as u64 })
    }

    /// Starts a stored member that is written in place, at offsets of its own, until [`end`](Self::end).
    pub fn begin_in_place(&mut self, name: &str, attributes: &Attributes, at_most: u64) -> Result<Region> {
        self.begin(name, attributes, Method::Stored, at_most)?;
        match self {
            Sink::Archive(sink) => {
                sink.flush()?;
                Ok(Region { file: Arc::clone(&sink.file), start: sink.at })
            }
            Sink::Tree(sink) => {
                let file = sink.open.as_ref().map(|(file, _)| file.try_clone()).transpose();
                let file = file.map_err(|error| Error::io("open", sink.root.clone(), error))?;
                Ok(Region {
                    file: Arc::new(file.ok_or_else(|| Error::usage("no member is open"))?),
                    start: 0,
                })
            }
        }
    }

    /// Copies `length` bytes of `region` into the open stored member.
    pub fn write_region(&mut self, region: &Region, length: u64) -> Result<()> {
        in_pieces(0..length, |at, buffer| {
            region.read_at(buffer, at)?;
            self.write(buffer, buffer)?;
            Ok(true)
        })?;
        Ok(())
    }

    /// Ends the wheel. What comes back is complete but for its name. `durable`: also wait until it is on the disk.
    pub fn finish(self, durable: bool) -> Result<(Pending, u64)> {
        match self {
            Sink::Archive(mut sink) => {
                let end = std::mem::take(&mut sink.layout).finish();
                sink.write(&end)?;
                sink.flush()?;
                let failed = |error| Error::io("write", sink.pending.path(), error);
                // A frame that was taken back may have reached further than the archive's end.
                sink.file.set_len(sink.at).map_err(failed)?;
                if durable {
                    sink.file.sync_data().map_err(failed)?;
                }
                Ok((sink.pending, sink.at))
            }
            Sink::Tree(sink) => {
                let size =
                    tree_size(&sink.root).map_err(|error| Error::io("read", sink.root.clone(), error))?;
                Ok((sink.pending, size))
            }
        }
    }
}

impl ArchiveSink {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() >= BUFFERED {
            self.flush()?;
            self.write_at(bytes, self.at)?;
        } else {
            self.buffered.extend_from_slice(bytes);
        }
        self.at += bytes.len() as u64;
        if self.buffered.len() >= FLUSHED { self.flush() } else { Ok(()) }
    }

    /// Writes what is buffered.
    fn flush(&mut self) -> Result<()> {
        if !self.buffered.is_empty() {
            self.write_at(&self.buffered, self.at - self.buffered.len() as u64)?;
            self.buffered.clear();
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        write_at(&self.file, bytes, offset).map_err(|error| Error::io("write", self.pending.path(), error))
    }

    fn end(&mut self, sizes: Sizes) -> Result<()> {
        let patch = self.layout.end(sizes).ok_or_else(|| {
            Error::io(
                "write",
                self.pending.path(),
                io::Error::other("a member outgrew the room of its header"),
            )
        })?;
        let start = self.at - self.buffered.len() as u64;
        let place = patch.offset.checked_sub(start).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            self.buffered.get_mut(from..from.checked_add(patch.bytes.len())?)
        });
        match place {
            Some(place) => place.copy_from_slice(&patch.bytes),
            None => {
                // Some of it may be written already.
                self.flush()?;
                self.write_at(&patch.bytes, patch.offset)?;
            }
        }
        // A member that was written in place did not move this.
        self.at = self.layout.offset();
        Ok(())
    }
}

impl TreeSink {
    fn create(&mut self, name: &str, attributes: &Attributes) -> Result<()> {
        let path = self.root.join(name);
        let failed = |error| Error::io("create", path.clone(), error);
        if name.ends_with('/') {
            return fs::create_dir_all(&path).map_err(failed);
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        #[cfg(unix)]
        if attributes.is_symlink() || attributes.mode() & 0o777 != 0 {
            use std::os::unix::fs::PermissionsExt;
            // A symbolic link is made when its data is there; until then the mode marks it.
            let mode = match attributes.mode() & 0o777 {
                _ if attributes.is_symlink() => LINK_MARK,
                LINK_MARK => LINK_MARK | 0o400,
                mode => mode,
            };
            file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        #[cfg(not(unix))]
        let _ = attributes;
        self.open = Some((file, path));
        Ok(())
    }

    /// Turns the file into a symbolic link if it stands for one.
    #[cfg(unix)]
    fn link(&self, mut file: &File, path: &Path) -> Result<bool> {
        use std::os::unix::ffi::OsStringExt;
        use std::os::unix::fs::PermissionsExt;
        let failed = |error| Error::io("link", path.to_owned(), error);
        if file.metadata().map_err(failed)?.permissions().mode() & 0o777 != LINK_MARK {
            return Ok(false);
        }
        let mut target = Vec::new();
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        file.read_to_end(&mut target).map_err(failed)?;
        fs::remove_file(path).map_err(failed)?;
        std::os::unix::fs::symlink(std::ffi::OsString::from_vec(target), path).map_err(failed)?;
        Ok(true)
    }
}

/// No wheel has files that only their owner may write and nobody may read.
#[cfg(unix)]
const LINK_MARK: u32 = 0o200;

fn tree_size(root: &Path) -> io::Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        size += if metadata.is_dir() { tree_size(&entry.path())? } else { metadata.len() };
    }
    Ok(size)
}

fn release(input: &Input, piece: &[u8]) {
    if let Some(map) = input.map() {
        let start = (piece.as_ptr() as usize).wrapping_sub(map.as_ptr() as usize);
        map.release(start..start.saturating_add(piece.len()));
    }
}

#[cfg(unix)]
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(unix)]
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(not(unix))]
pub(super) fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

#[cfg(not(unix))]
pub(super) fn read_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

/// Lets the system copy bytes from file to file, without mapping them. How many it has copied; where it cannot (other
/// file systems, old kernels), none.
fn copy_range(from: &File, from_offset: u64, to: &File, to_offset: u64, length: usize) -> usize {
    let mut done = 0;
    #[cfg(target_os = "linux")]
    while done < length {
        let (mut read_at, mut write_at) = (from_offset + done as u64, to_offset + done as u64);
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length - done) {
            Ok(0) | Err(_) => break,
            Ok(copied) => done += copied,
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (from, from_offset, to, to_offset, length, &mut done);
    done
}
