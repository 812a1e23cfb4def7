//! What is wrong inside one file: the error type of every format module.
//!
//! A [`Fault`] knows the place in the file, what was expected and what was found. It knows neither the wheel
//! nor the member; the caller adds those (see [`crate::Error`]). Formats never panic on bad input: they return
//! a `Fault`.

use std::fmt;

/// Who is to blame for a [`Fault`], and so which hint and which fallback apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The bytes break the format's rules: the file is damaged or was never valid.
    Malformed,
    /// The bytes may be valid, but fatwheel does not understand them well enough to change them safely.
    /// `--keep-unsupported` leaves such a binary whole in the host wheel.
    Unsupported,
    /// The bytes could not be read (a damaged deflate stream, an I/O error).
    Unreadable,
    /// The system has no memory for what the file says is needed.
    OutOfMemory,
}

/// One thing that is wrong in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who is to blame.
    pub kind: FaultKind,
    /// The part of the file, in the field's terms: `section .rela.dyn`, `program header 3`, `offload bundle`.
    pub place: String,
    /// Offset from the start of the file in bytes, where one is known.
    pub offset: Option<u64>,
    /// What was found, and what was expected, as one clause.
    pub message: String,
}

/// The result of everything that parses or plans.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    /// A fault of [`FaultKind::Malformed`].
    pub fn malformed(
        place: impl Into<String>,
        offset: impl Into<Option<u64>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind: FaultKind::Malformed,
            place: place.into(),
            offset: offset.into(),
            message: message.into(),
        }
    }

    /// A fault of [`FaultKind::Unsupported`].
    pub fn unsupported(
        place: impl Into<String>,
        offset: impl Into<Option<u64>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind: FaultKind::Unsupported,
            place: place.into(),
            offset: offset.into(),
            message: message.into(),
        }
    }

    /// A fault of [`FaultKind::Unreadable`].
    pub fn unreadable(
        place: impl Into<String>,
        offset: impl Into<Option<u64>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind: FaultKind::Unreadable,
            place: place.into(),
            offset: offset.into(),
            message: message.into(),
        }
    }
}

impl Fault {
    /// A fault of [`FaultKind::OutOfMemory`].
    pub fn out_of_memory(place: impl Into<String>, offset: impl Into<Option<u64>>, bytes: u64) -> Self {
        Self {
            kind: FaultKind::OutOfMemory,
            place: place.into(),
            offset: offset.into(),
            message: format!("the system has no memory for {bytes} bytes"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{} at offset {offset:#x}: {}", self.place, self.message),
            None => write!(f, "{}: {}", self.place, self.message),
        }
    }
}

impl std::error::Error for Fault {}
