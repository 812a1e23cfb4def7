//! Where the byte at an RVA comes from: the file, the loader's zeros, or nowhere.

use super::headers::Headers;

/// What the loader puts at a range of RVAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The bytes of the file from this offset on.
    File(u64),
    /// Zeros: memory behind the raw data.
    Zeros,
    /// Nothing, or more than one of these.
    Broken,
}

impl Headers {
    /// The place of the `length` bytes at `rva`, for a layout that has been checked.
    pub(super) fn place(&self, rva: u64, length: u64) -> Place {
        let Some(end) = rva.checked_add(length) else { return Place::Broken };
        if end <= self.size_of_headers().min(self.file_len) {
            return Place::File(rva);
        }
        let after = self.sections.partition_point(|section| u64::from(section.rva) <= rva);
        let Some(section) = after.checked_sub(1).and_then(|index| self.sections.get(index)) else {
            return Place::Broken;
        };
        let mapped = section.span().next_multiple_of(self.section_alignment().max(1));
        let raw = section.raw();
        let from_file = (raw.end - raw.start).min(mapped);
        let (from, to) = (rva - u64::from(section.rva), end - u64::from(section.rva));
        if to > mapped {
            Place::Broken
        } else if to <= from_file {
            Place::File(raw.start + from)
        } else if from >= from_file {
            Place::Zeros
        } else {
            Place::Broken
        }
    }
}
