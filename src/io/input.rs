//! The input as a list of members: a wheel file, mapped, or the directory that one was unpacked into.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fault::{Fault, FaultKind};
use crate::sys::map::Map;
use crate::zip::records::dos_time;
use crate::zip::{Archive, Attributes, Entry, Method};

/// One file, link or directory of the input.
#[derive(Debug)]
pub struct Member {
    /// Path in the wheel with `/` as separator; ends with `/` for a directory.
    pub name: String,
    /// Uncompressed size in bytes.
    pub size: u64,
    /// Mode, times and the like.
    pub attributes: Attributes,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Zipped(Entry),
    File(PathBuf),
    /// A symbolic link of an unpacked wheel; in archives a link's target is its data.
    Link(Vec<u8>),
}

/// A member's bytes as they stand in the input.
pub(super) enum Bytes<'a> {
    Plain(Cow<'a, [u8]>),
    Mapped(Map),
    Deflated(&'a [u8]),
}

impl Member {
    /// Whether the member is a directory.
    pub fn is_directory(&self) -> bool {
        self.name.ends_with('/')
    }

    /// Whether the member is a regular file.
    pub fn is_file(&self) -> bool {
        !self.is_directory() && !self.attributes.is_symlink()
    }

    /// The archive's CRC-32 of the uncompressed bytes, if the input is an archive.
    pub fn crc32(&self) -> Option<u32> {
        match &self.content {
            Content::Zipped(entry) => Some(entry.crc32),
            Content::File(_) | Content::Link(_) => None,
        }
    }

    /// The archive entry, if the input is an archive.
    pub fn entry(&self) -> Option<&Entry> {
        match &self.content {
            Content::Zipped(entry) => Some(entry),
            Content::File(_) | Content::Link(_) => None,
        }
    }
}

/// An opened input. Owns the map that everything else borrows from.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    members: Vec<Member>,
    map: Option<Map>,
}

impl Input {
    /// Opens a wheel file or an unpacked wheel.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|error| Error::io("open", path.to_owned(), error))?;
        if metadata.is_dir() {
            let mut members = Vec::new();
            walk(path, "", &mut members)?;
            members.sort_by(|a, b| a.name.cmp(&b.name));
            return Ok(Self { path: path.to_owned(), members, map: None });
        }
        if !metadata.is_file() {
            // Opening a pipe would wait for a writer.
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(Error::io("open", path.to_owned(), error)
                .with_hint("say - for the input and redirect the pipe to standard input"));
        }
        let map = Map::open(path).map_err(|error| Error::io("open", path.to_owned(), error))?;
        Self::of_map(path, map)
    }

    /// Standard input, if it is a regular file that nobody has read from yet.
    pub fn redirected() -> Result<Option<Self>> {
        let failed = |error| Error::io("read standard input", None, error);
        #[cfg(unix)]
        {
            use std::io::Seek;
            use std::os::fd::AsFd;
            let file = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
            let mut file = fs::File::from(file);
            if file.metadata().map_err(failed)?.is_file() && file.stream_position().map_err(failed)? == 0 {
                // Its name, where the system tells it; a deleted file's is of no use.
                let path = fs::read_link("/proc/self/fd/0").ok().filter(|path| path.exists());
                let path = path.unwrap_or_else(|| PathBuf::from("-"));
                return Self::of_map(&path, Map::of(file).map_err(failed)?).map(Some);
            }
        }
        let _ = failed;
        Ok(None)
    }

    /// The wheel file that `map` shows; `path` is for messages.
    pub fn of_map(path: &Path, map: Map) -> Result<Self> {
        if map.is_empty() {
            let error = Error::from(Fault::malformed("wheel", None, "it is empty")).in_wheel(path);
            return Err(match path == Path::new("-") {
                true => error
                    .with_hint("the other end of the pipe has sent nothing; see whether that program failed"),
                false => error.with_hint("build or download it again"),
            });
        }
        let archive = Archive::parse(&map).map_err(|fault| {
            let unsupported = fault.kind == FaultKind::Unsupported;
            let error = Error::from(fault);
            if unsupported { error.with_hint("pack the wheel again, with another tool") } else { error }
        })?;
        // The parser has looked at every local header, and so all over the file.
        map.release(0..map.len());
        Ok(Self::of_entries(path, map, archive.entries))
    }

    /// Some members of the wheel file that `map` shows, or of as much of it as has arrived.
    pub fn of_entries(path: &Path, map: Map, entries: Vec<Entry>) -> Self {
        let members = entries
            .into_iter()
            .map(|entry| Member {
                name: entry.name.clone(),
                size: entry.size,
                attributes: entry.attributes.clone(),
                content: Content::Zipped(entry),
            })
            .collect();
        Self { path: path.to_owned(), members, map: Some(map) }
    }

    /// The wheel's or directory's path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All members, in the archive's order, or by name for a directory.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The map of the wheel file; `None` for a directory.
    pub fn map(&self) -> Option<&Map> {
        self.map.as_ref()
    }

    /// Bytes of the wheel file, or of all files of the directory.
    pub fn length(&self) -> u64 {
        match &self.map {
            Some(map) => map.len() as u64,
            None => self.members.iter().map(|member| member.size).sum(),
        }
    }

    /// Fails if the wheel file was edited while it was read.
    pub fn verify_unchanged(&self) -> Result<()> {
        let Some(map) = &self.map else { return Ok(()) };
        match map.changed() {
            Ok(false) => Ok(()),
            Ok(true) => Err(Error::io(
                "trust",
                self.path.clone(),
                io::Error::other("the file changed while it was read"),
            )
            .with_hint("run again when nothing writes to it any more")),
            Err(error) => Err(Error::io("stat", self.path.clone(), error)),
        }
    }

    /// The compressed bytes of `member` as they stand in the archive, to be copied raw.
    pub fn raw<'a>(&'a self, member: &'a Member) -> Option<(&'a Entry, &'a [u8])> {
        let entry = member.entry()?;
        // The reader checked that the data is inside the file.
        let range = usize::try_from(entry.data.start).ok()?..usize::try_from(entry.data.end).ok()?;
        Some((entry, self.map.as_ref()?.get(range)?))
    }

    pub(super) fn bytes<'a>(&'a self, member: &'a Member) -> Result<Bytes<'a>> {
        match &member.content {
            Content::Link(target) => Ok(Bytes::Plain(Cow::Borrowed(target))),
            Content::File(path) => {
                Map::open(path).map(Bytes::Mapped).map_err(|error| Error::io("open", path.clone(), error))
            }
            Content::Zipped(entry) => {
                let bytes = self.raw(member).map(|(_, bytes)| bytes).unwrap_or_default();
                Ok(match entry.method {
                    Method::Stored => Bytes::Plain(Cow::Borrowed(bytes)),
                    Method::Deflated => Bytes::Deflated(bytes),
                })
            }
        }
    }
}

/// Adds the files below `directory` (member path `prefix`, which ends with `/` or is empty).
fn walk(directory: &Path, prefix: &str, members: &mut Vec<Member>) -> Result<()> {
    let failed = |error| Error::io("read directory", directory.to_owned(), error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let failed = |error| Error::io("read", path.clone(), error);
        let name = entry.file_name().into_string().map_err(|name| {
            failed(io::Error::new(io::ErrorKind::InvalidFilename, format!("the name {name:?} is not UTF-8")))
        })?;
        let name = format!("{prefix}{name}");
        let metadata = fs::symlink_metadata(&path).map_err(failed)?;
        if metadata.is_dir() {
            walk(&path, &format!("{name}/"), members)?;
            continue;
        }
        if !metadata.is_file() && !metadata.is_symlink() {
            // A wheel has no place for pipes, sockets and devices, and reading them might never end.
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither file, directory nor link",
            )));
        }
        let content = if metadata.is_symlink() {
            let target = fs::read_link(&path).map_err(failed)?;
            Content::Link(target.into_os_string().into_encoded_bytes())
        } else {
            Content::File(path)
        };
        let size = match &content {
            Content::Link(target) => target.len() as u64,
            Content::File(_) | Content::Zipped(_) => metadata.len(),
        };
        members.push(Member { name, size, attributes: attributes(&metadata), content });
    }
    Ok(())
}

fn attributes(metadata: &fs::Metadata) -> Attributes {
    let seconds = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    let mut attributes = Attributes::regular(0o644, dos_time(seconds));
    #[cfg(unix)]
    {
        attributes.external = std::os::unix::fs::MetadataExt::mode(metadata) << 16;
    }
    #[cfg(not(unix))]
    if metadata.is_symlink() {
        attributes.external = 0o120_777 << 16;
    }
    attributes
}
