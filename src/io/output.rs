//! Outputs that appear together or not at all.
//!
//! A wheel is written to a file without a name (Linux, `O_TMPFILE`), which vanishes with the process, or where
//! that cannot be, to a hidden file that is removed on drop. [`commit`] gives all of them their names in one go;
//! a name that is taken is exchanged, so that a failure half-way can put everything back.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// How often the output directory is made again if it is gone.
const ATTEMPTS: usize = 8;

/// A file or directory tree that has no name yet.
#[derive(Debug)]
pub struct Pending {
    directory: PathBuf,
    name: String,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Open, without a name.
    Unnamed(File),
    /// At a hidden path, to be removed on drop.
    Hidden(Option<File>, PathBuf),
    /// Renamed; nothing to clean up.
    Done,
}

impl Pending {
    /// A new empty file that will be `directory/name`.
    pub fn file(directory: &Path, name: &str) -> Result<Self> {
        let failed = |error| Error::io("write in", directory.to_owned(), error);
        let make = || {
            Ok(match unnamed(directory)? {
                Some(file) => State::Unnamed(file),
                None => {
                    let path = hidden(directory, name);
                    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
                    State::Hidden(Some(file), path)
                }
            })
        };
        let state = in_directory(directory, make).map_err(failed)?;
        Ok(Self { directory: directory.to_owned(), name: name.to_owned(), state })
    }

    /// A new empty directory that will be `directory/name`. Returns its present path too.
    pub fn tree(directory: &Path, name: &str) -> Result<(Self, PathBuf)> {
        let path = hidden(directory, name);
        in_directory(directory, || fs::create_dir(&path))
            .map_err(|error| Error::io("create", path.clone(), error))?;
        let state = State::Hidden(None, path.clone());
        Ok((Self { directory: directory.to_owned(), name: name.to_owned(), state }, path))
    }

    /// The path that it will have.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// The open file; `None` for a tree.
    pub fn open_file(&self) -> Option<&File> {
        match &self.state {
            State::Unnamed(file) => Some(file),
            State::Hidden(file, _) => file.as_ref(),
            State::Done => None,
        }
    }

    /// Gives an unnamed file a hidden name, from which it can be renamed.
    fn link(&mut self) -> io::Result<PathBuf> {
        match &self.state {
            State::Hidden(_, path) => Ok(path.clone()),
            State::Unnamed(file) => {
                let path = hidden(&self.directory, &self.name);
                in_directory(&self.directory, || link(file, &path))?;
                self.state = State::Hidden(None, path.clone());
                Ok(path)
            }
            State::Done => Err(io::Error::other("committed already")),
        }
    }

    /// Puts the output at `target`, directly if it has no name and nothing is there.
    fn give_name(&mut self, target: &Path) -> io::Result<Option<(PathBuf, bool)>> {
        if let State::Unnamed(file) = &self.state {
            match in_directory(&self.directory, || link(file, target)) {
                Ok(()) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        let source = self.link()?;
        let replaced = put(&source, target)?;
        Ok(Some((source, replaced)))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let State::Hidden(_, path) = &self.state {
            let _ = remove(path);
        }
    }
}

/// A file without any name in `directory`, for bytes that only this process needs.
pub fn scratch(directory: &Path) -> Result<File> {
    let failed = |error| Error::io("write in", directory.to_owned(), error);
    if let Some(file) = unnamed(directory).map_err(failed)? {
        return Ok(file);
    }
    let path = hidden(directory, "scratch");
    let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}

/// A name that was given.
struct Given {
    target: PathBuf,
    /// Where the output stood before, and where what it has replaced stands now. `None`: it had no name, and none
    /// was replaced.
    source: Option<(PathBuf, bool)>,
}

/// Gives all of `outputs` their names. On an error every name is as it was before the call.
pub fn commit(outputs: &mut [Pending]) -> Result<Vec<PathBuf>> {
    let mut given: Vec<Given> = Vec::with_capacity(outputs.len());
    for output in outputs.iter_mut() {
        let target = output.path();
        match output.give_name(&target) {
            Ok(source) => given.push(Given { target, source }),
            Err(error) => {
                for Given { target, source } in given.into_iter().rev() {
                    // Best effort: the error that started this is the one to report.
                    let _ = match source {
                        None => fs::remove_file(&target),
                        Some((source, true)) => exchange(&source, &target),
                        Some((source, false)) => fs::rename(&target, &source),
                    };
                }
                return Err(Error::io("give its name to a finished wheel,", target, error));
            }
        }
    }
    // From here on nothing can fail: the old files that were replaced stand at the hidden paths.
    for (output, Given { source, .. }) in outputs.iter_mut().zip(&given) {
        if let Some((source, true)) = source {
            let _ = remove(source);
        }
        output.state = State::Done;
    }
    if let Some(output) = outputs.first() {
        // Makes the names durable where directories can be synced.
        let _ = File::open(&output.directory).and_then(|directory| directory.sync_all());
    }
    Ok(given.into_iter().map(|given| given.target).collect())
}

/// Renames `source` to `target`. Whether `target` existed; it then stands at `source`.
fn put(source: &Path, target: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(target) {
        // What stands in the place of a wheel and is none is somebody's, and would be removed with all that is in it.
        Ok(there) if there.is_dir() && !fs::symlink_metadata(source)?.is_dir() => {
            Err(io::ErrorKind::IsADirectory.into())
        }
        Ok(_) => exchange(source, target).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(source, target).map(|()| false),
        Err(error) => Err(error),
    }
}

/// Does `make` in `directory`. Another run that fails may have removed it in the meantime: a directory that this one
/// made too, and that seemed empty because files without names are not seen.
fn in_directory<T>(directory: &Path, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..ATTEMPTS {
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(directory)?,
            result => return result,
        }
    }
    make()
}

/// Hidden, and unlike the names of other runs, in the output directory so that a rename stays on one file system.
fn hidden(directory: &Path, name: &str) -> PathBuf {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    directory.join(format!(".{name}.fatwheel-{}-{number}", std::process::id()))
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Swaps two paths: in one step where the system can, else in three renames.
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            result => return result.map_err(io::Error::from),
        }
    }
    let parked = a.with_extension("old");
    fs::rename(b, &parked)?;
    if let Err(error) = fs::rename(a, b) {
        fs::rename(&parked, b)?;
        return Err(error);
    }
    fs::rename(&parked, a)
}

/// A file without a name in `directory`; `None` where the system or the file system has no such files.
#[cfg(target_os = "linux")]
fn unnamed(directory: &Path) -> io::Result<Option<File>> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::io::Errno;
    // Without /proc an unnamed file could not be given its name in the end.
    if !Path::new("/proc/self/fd").exists() {
        return Ok(None);
    }
    let mode = Mode::from_raw_mode(0o666);
    match openat(CWD, directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(descriptor) => Ok(Some(File::from(descriptor))),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(target_os = "linux")]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    use rustix::fs::{AtFlags, CWD, linkat};
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, source, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_directory: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

#[cfg(not(target_os = "linux"))]
fn link(_file: &File, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn written(directory: &Path, name: &str, text: &str) -> Pending {
        let pending = Pending::file(directory, name).unwrap();
        pending.open_file().unwrap().write_all(text.as_bytes()).unwrap();
        pending
    }

    #[test]
    fn all_appear_and_old_files_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        fs::write(directory.join("b"), "old").unwrap();
        let (tree, path) = Pending::tree(directory, "c").unwrap();
        fs::write(path.join("file"), "3").unwrap();
        let mut outputs = [written(directory, "a", "1"), written(directory, "b", "2"), tree];
        assert_eq!(names(directory).iter().filter(|name| !name.starts_with('.')).count(), 1);
        commit(&mut outputs).unwrap();
        assert_eq!(names(directory), ["a", "b", "c"]);
        assert_eq!(fs::read_to_string(directory.join("b")).unwrap(), "2");
        assert_eq!(fs::read_to_string(directory.join("c/file")).unwrap(), "3");
    }

    #[test]
    fn a_failure_puts_everything_back() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        fs::write(directory.join("b"), "old").unwrap();
        let mut outputs = [
            written(directory, "a", "1"),
            written(directory, "b", "2"),
            // A name in a directory that does not exist cannot be taken.
            named(hidden_file(directory), "missing/c"),
        ];
        assert!(commit(&mut outputs).is_err());
        drop(outputs);
        assert_eq!(names(directory), ["b"]);
        assert_eq!(fs::read_to_string(directory.join("b")).unwrap(), "old");
    }

    /// Two runs share a new output directory; one fails and removes it, because it looks empty.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_directory_that_another_run_removes_is_made_again() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = &scratch.path().join("new/dist");
        let mut outputs = [Pending::file(directory, "a").unwrap()];
        outputs[0].open_file().unwrap().write_all(b"1").unwrap();
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
        commit(&mut outputs).unwrap();
        assert_eq!(fs::read_to_string(directory.join("a")).unwrap(), "1");
    }

    fn hidden_file(directory: &Path) -> Pending {
        let path = hidden(directory, "c");
        let file = File::create_new(&path).unwrap();
        Pending {
            directory: directory.to_owned(),
            name: "c".to_owned(),
            state: State::Hidden(Some(file), path),
        }
    }

    fn named(mut pending: Pending, name: &str) -> Pending {
        name.clone_into(&mut pending.name);
        pending
    }

    #[test]
    fn nothing_is_left_without_a_commit() {
        let directory = tempfile::tempdir().unwrap();
        let pending = written(directory.path(), "a", "1");
        let (tree, _) = Pending::tree(directory.path(), "b").unwrap();
        drop((pending, tree));
        assert_eq!(names(directory.path()), [""; 0]);
    }
}
