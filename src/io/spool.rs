//! A pipe, kept: bytes that can be read only once go into a file without a name, where they can be mapped.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::output::scratch;
use crate::error::{Error, Result};
use crate::options::SpoolTo;

/// Bytes read at a time.
const READ: usize = 1 << 20;
/// How often a waiting thread looks whether the split was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// The file, and how much of it is there.
#[derive(Debug)]
pub struct Spool {
    file: File,
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    length: u64,
    complete: bool,
}

impl Spool {
    /// An empty spool.
    pub fn new(to: &SpoolTo, output_dir: &Path) -> Result<Self> {
        let file = match to {
            SpoolTo::OutputDir => scratch(output_dir)?,
            SpoolTo::Directory(directory) => scratch(directory)?,
            SpoolTo::Memory => {
                in_memory().map_err(|error| Error::io("keep the input in memory", None, error))?
            }
        };
        Ok(Self { file, state: Mutex::default(), grown: Condvar::new() })
    }

    /// Copies all of `from`. Waiting threads learn of every piece; after an error they see the end.
    pub fn fill(&self, mut from: impl Read, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let result = self.copy(&mut from, &mut check);
        self.lock().complete = true;
        self.grown.notify_all();
        result
    }

    fn copy(&self, from: &mut impl Read, check: &mut impl FnMut() -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; READ];
        loop {
            check()?;
            let length = match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io("read standard input", None, error)),
            };
            (&self.file)
                .write_all(&buffer[..length])
                .map_err(|error| Error::io("spool standard input", None, error))?;
            self.lock().length += length as u64;
            self.grown.notify_all();
        }
    }

    /// Waits until there are more than `length` bytes or all of them. How many there are, and whether that is all.
    pub fn wait(&self, length: u64, mut check: impl FnMut() -> Result<()>) -> Result<(u64, bool)> {
        let mut state = self.lock();
        while state.length <= length && !state.complete {
            check()?;
            state = self.grown.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok((state.length, state.complete))
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(target_os = "linux")]
fn in_memory() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(File::from(memfd_create("fatwheel", MemfdFlags::CLOEXEC)?))
}

#[cfg(not(target_os = "linux"))]
fn in_memory() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_sees_every_byte_and_the_end() {
        for to in [SpoolTo::OutputDir, SpoolTo::Memory] {
            let spool = Spool::new(&to, &std::env::temp_dir()).unwrap();
            std::thread::scope(|scope| {
                let seen = scope.spawn(|| {
                    let mut length = 0;
                    loop {
                        let (now, complete) = spool.wait(length, || Ok(())).unwrap();
                        length = now;
                        if complete {
                            return length;
                        }
                    }
                });
                spool.fill(io::repeat(7).take(5_000_000), || Ok(())).unwrap();
                assert_eq!(seen.join().unwrap(), 5_000_000);
            });
            assert_eq!(spool.file().metadata().unwrap().len(), 5_000_000);
        }
    }
}
