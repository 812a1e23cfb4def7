//! What the process says to its caller.

use std::process::Termination;

use crate::error::{Error, ErrorKind};
use crate::fault::FaultKind;

/// The exit codes. Documented in the README; scripts depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// The split is done.
    Done = 0,
    /// The input is bad or not supported, or has no fat binaries.
    BadInput = 1,
    /// The command line is wrong.
    Usage = 2,
    /// I/O, disk full, memory.
    Environment = 3,
    /// Stopped by Ctrl-C: 128 + SIGINT.
    Interrupted = 130,
}

impl ExitCode {
    /// The code for an error.
    pub fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Input(fault) if fault.kind == FaultKind::OutOfMemory => ExitCode::Environment,
            ErrorKind::Input(_) | ErrorKind::NothingToSplit(_) => ExitCode::BadInput,
            ErrorKind::Usage(_) => ExitCode::Usage,
            ErrorKind::Io { .. } | ErrorKind::Stopped => ExitCode::Environment,
            ErrorKind::Interrupted => ExitCode::Interrupted,
        }
    }
}

impl Termination for ExitCode {
    fn report(self) -> std::process::ExitCode {
        std::process::ExitCode::from(self as u8)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::fault::Fault;

    #[test]
    fn every_kind_has_its_code() {
        let code = |error: Error| ExitCode::of(&error) as u8;
        assert_eq!(code(Fault::malformed("x", None, "y").into()), 1);
        assert_eq!(code(Fault::out_of_memory("x", None, 7).into()), 3);
        assert_eq!(code(ErrorKind::NothingToSplit(String::new()).into()), 1);
        assert_eq!(code(Error::usage("x")), 2);
        assert_eq!(code(Error::io("read", None, io::ErrorKind::StorageFull.into())), 3);
        assert_eq!(code(ErrorKind::Interrupted.into()), 130);
    }
}
