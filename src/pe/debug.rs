//! The debug directory: entries of 28 bytes that name their data twice, by RVA and by file offset.

use object::LittleEndian as LE;
use object::pe::{IMAGE_DIRECTORY_ENTRY_DEBUG, ImageDebugDirectory};
use object::pod;

use super::WrapperTable;
use super::headers::Headers;
use super::moves::Moves;
use super::view::Place;
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// Length of an entry.
const ENTRY_LEN: usize = size_of::<ImageDebugDirectory>();
/// Real directories have fewer than 20 entries; this many can only be garbage.
const MAX_ENTRIES: u32 = 4096;

/// The debug directory as it is in the file.
#[derive(Clone, Debug)]
pub(super) struct DebugDirectory {
    /// File offset of the first entry.
    pub(super) offset: u64,
    /// Whole entries.
    pub(super) bytes: Vec<u8>,
}

impl DebugDirectory {
    /// Reads the directory; `None` if the file has none. It must not overlap the wrappers in `tables`.
    pub(super) fn read(
        source: &mut dyn ReadAt,
        headers: &Headers,
        tables: &[WrapperTable],
    ) -> Result<Option<Self>> {
        let directory = headers.directory(IMAGE_DIRECTORY_ENTRY_DEBUG);
        let count = directory.size / ENTRY_LEN as u32;
        if count == 0 {
            return Ok(None);
        }
        if count > MAX_ENTRIES {
            return Err(Fault::unsupported(
                "debug directory",
                None,
                format!("{count} entries, more than {MAX_ENTRIES}"),
            ));
        }
        let length = u64::from(count) * ENTRY_LEN as u64;
        let Place::File(offset) = headers.place(u64::from(directory.rva), length) else {
            return Err(Fault::malformed(
                "debug directory",
                None,
                format!("{length} bytes at RVA {:#x}, which no section's raw data holds", directory.rva),
            ));
        };
        // What else is rewritten would be rewritten in the directory as well.
        let wrappers = tables.iter().map(|table| table.offset..table.offset + table.bytes.len() as u64);
        let mut rewritten = wrappers.chain(std::iter::once(0..headers.size_of_headers()));
        if let Some(range) = rewritten.find(|range| range.start < offset + length && offset < range.end) {
            return Err(Fault::unsupported(
                "debug directory",
                offset,
                format!(
                    "{length} bytes that overlap the headers or wrappers at {:#x}..{:#x}",
                    range.start, range.end
                ),
            ));
        }
        Ok(Some(Self { offset, bytes: source.read_vec(offset, length, "debug directory")? }))
    }

    /// The entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = &ImageDebugDirectory> {
        self.bytes.chunks_exact(ENTRY_LEN).filter_map(|bytes| Some(pod::from_bytes(bytes).ok()?.0))
    }

    /// The directory's bytes once its file offsets have followed `moves`.
    pub(super) fn moved(&self, moves: &Moves) -> Result<Vec<u8>> {
        let mut bytes = self.bytes.clone();
        for (index, raw) in bytes.chunks_exact_mut(ENTRY_LEN).enumerate() {
            let Ok((entry, _)) = pod::from_bytes_mut::<ImageDebugDirectory>(raw) else { continue };
            let pointer = entry.pointer_to_raw_data.get(LE);
            // 0 means that the entry itself says it all (a reproducible build's, for one).
            if pointer != 0 {
                let length = u64::from(entry.size_of_data.get(LE));
                let followed = moves.follow(pointer, length, &format!("debug directory entry {index}"))?;
                entry.pointer_to_raw_data.set(LE, followed);
            }
        }
        Ok(bytes)
    }
}
