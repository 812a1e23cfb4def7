//! The one error type of the library, and the exit code that goes with it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::fault::{Fault, FaultKind};

/// Why a split failed.
///
/// Displays as one or two lines: where (wheel, member, place, offset), what was found and expected, and what to do.
#[derive(Debug)]
pub struct Error(Box<Parts>);

/// Boxed, so that results stay small.
#[derive(Debug)]
struct Parts {
    kind: ErrorKind,
    wheel: Option<PathBuf>,
    member: Option<String>,
    hint: Option<String>,
}

/// The kinds of failure. `#[non_exhaustive]`: more may come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The wheel, or a member of it, is damaged or not supported.
    #[error("{0}")]
    Input(Fault),
    /// There is nothing to split.
    #[error("no fat binaries found{0}")]
    NothingToSplit(String),
    /// An option does not fit the others or the wheel.
    #[error("{0}")]
    Usage(String),
    /// The operating system refused something.
    #[error("cannot {doing}{}: {source}", .path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Io {
        /// What was being done, as a verb phrase: `read`, `write`, `rename`.
        doing: &'static str,
        /// The file or directory, where there is one.
        path: Option<PathBuf>,
        /// The operating system's error.
        source: io::Error,
    },
    /// A thread stopped because another one failed; [`crate::split`] returns that one's error instead.
    #[doc(hidden)]
    #[error("stopped")]
    Stopped,
    /// The caller asked for the split to stop (Ctrl-C).
    #[error("interrupted; nothing was written")]
    Interrupted,
}

/// The result of everything that reads or writes files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An operating-system error: `cannot <doing> <path>: <source>`.
    pub fn io(doing: &'static str, path: impl Into<Option<PathBuf>>, source: io::Error) -> Self {
        ErrorKind::Io { doing, path: path.into(), source }.into()
    }

    /// An unusable option.
    pub fn usage(message: impl Into<String>) -> Self {
        ErrorKind::Usage(message.into()).into()
    }

    /// Names the member of the wheel, unless one is named already.
    #[must_use]
    pub fn in_member(mut self, member: &str) -> Self {
        self.0.member.get_or_insert_with(|| member.to_owned());
        self
    }

    /// Names the wheel, unless one is named already.
    #[must_use]
    pub fn in_wheel(mut self, wheel: &Path) -> Self {
        self.0.wheel.get_or_insert_with(|| wheel.to_owned());
        self
    }

    /// Says what to do about it, unless that is said already.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The member of the wheel that the failure is about, if it is about one.
    pub fn member(&self) -> Option<&str> {
        self.0.member.as_deref()
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref().or(match &self.0.kind {
            ErrorKind::Input(fault) => Some(match fault.kind {
                FaultKind::Malformed => "the file is damaged or was made wrongly; build or download it again",
                FaultKind::Unsupported => "fatwheel cannot do this yet; please report the case",
                FaultKind::OutOfMemory => "end other programs, or use a machine with more memory",
                FaultKind::Unreadable => "download the wheel again",
            }),
            ErrorKind::NothingToSplit(_) => {
                Some("check --overlay-root, or install the wheel as it is: it has no GPU code to split off")
            }
            ErrorKind::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some disk space, or choose another --output-dir; nothing was left behind")
            }
            _ => None,
        })
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(Parts { kind, wheel: None, member: None, hint: None }))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        ErrorKind::Input(fault).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(wheel) = &self.0.wheel {
            write!(f, "{}: ", wheel.display())?;
        }
        if let Some(member) = &self.0.member {
            write!(f, "{}: ", member.escape_debug())?;
        }
        write!(f, "{}", self.0.kind)?;
        if let Some(hint) = self.hint() {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.kind)
    }
}
