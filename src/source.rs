//! Random access to the bytes of one file, whatever stands behind them: a slice, a stored member, or a deflated
//! member with checkpoints. Format modules read through [`ReadAt`] and so never hold a file whole.

use crate::fault::{Fault, Result};

/// Bytes that can be read at any offset.
///
/// Reading forward in small steps is cheap for every implementation; jumping back may cost an inflate of up to
/// one checkpoint interval, so walk a table in ascending order and in blocks of some 64 KiB.
pub trait ReadAt {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` with the bytes from `offset` on. Bytes past the end are a [`Fault`], never a short read.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The `length` bytes from `offset` on. `place` names them in the fault for a range past the end; the range is
    /// checked before memory is allocated.
    fn read_vec(&mut self, offset: u64, length: u64, place: &str) -> Result<Vec<u8>> {
        let end = offset.checked_add(length).filter(|&end| end <= self.len());
        if end.is_none() {
            let total = self.len();
            return Err(Fault::malformed(
                place,
                offset,
                format!("{length} bytes from here end past the end of the file, which has {total} bytes"),
            ));
        }
        let mut bytes = Vec::new();
        let fits = usize::try_from(length).ok().filter(|&length| bytes.try_reserve_exact(length).is_ok());
        let length = fits.ok_or_else(|| Fault::out_of_memory(place, offset, length))?;
        bytes.resize(length, 0);
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl ReadAt for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let source =
            usize::try_from(offset).ok().and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        match source {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(Fault::malformed(
                "file",
                offset,
                format!("{} bytes wanted, the file has {} bytes", buffer.len(), <[u8]>::len(self)),
            )),
        }
    }
}
