//! Notices offload bundles in bytes that go by, in a binary whose sections do not name any: a linker script or
//! `lld-link /merge` can put them under another name. Such a binary must not pass as one without device code.
//!
//! Bundles are looked for where linkers place sections, at multiples of 512, by magic and the first fields of the header,
//! so that the magic alone, which the HIP runtime and the compiler contain as a text, counts for nothing. It is a hint,
//! good for a warning: no plan rests on it.

use super::{HeaderParse, array_at, bundle, ccob};

/// Sections of PE files stand at multiples of this in the file; those of bundles in ELF files at multiples of 4096.
const ALIGN: u64 = 512;
/// So many bytes decide: an entry table as far as the first ID begins.
const DECISIVE: usize = 64;
/// What a zstd frame and a zlib stream of the usual window start with.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const ZLIB: &[u8] = &[0x78];

/// The search through one file.
#[derive(Clone, Debug, Default)]
pub struct Glimpse {
    position: u64,
    /// Bytes from the last multiple of [`ALIGN`] on, if the chunk ended too early.
    begun: Vec<u8>,
    first: Option<u64>,
}

impl Glimpse {
    /// Looks at the next bytes of the file.
    pub fn feed(&mut self, chunk: &[u8]) {
        let start = self.position;
        self.position += chunk.len() as u64;
        if self.first.is_some() {
            return;
        }
        if !self.begun.is_empty() {
            let missing = (DECISIVE - self.begun.len()).min(chunk.len());
            self.begun.extend_from_slice(&chunk[..missing]);
            if self.begun.len() < DECISIVE {
                return;
            }
            let begun = std::mem::take(&mut self.begun);
            if is_bundle(&begun) {
                self.first = Some(start / ALIGN * ALIGN);
                return;
            }
        }
        let skip = (start.next_multiple_of(ALIGN) - start) as usize;
        for (place, at) in
            (skip..chunk.len()).step_by(ALIGN as usize).zip((start + skip as u64..).step_by(ALIGN as usize))
        {
            let rest = &chunk[place..];
            if rest[0] != bundle::MAGIC[0] && rest[0] != ccob::MAGIC[0] {
                continue;
            }
            if rest.len() < DECISIVE {
                self.begun = rest.to_vec();
            } else if is_bundle(rest) {
                self.first = Some(at);
                return;
            }
        }
    }

    /// Offset of the first bundle.
    pub fn first(&self) -> Option<u64> {
        self.first
    }
}

fn is_bundle(bytes: &[u8]) -> bool {
    if bytes.starts_with(bundle::MAGIC) {
        let word = |at| array_at(bytes, at).map_or(0, u64::from_le_bytes);
        let id = bytes.get(56..).unwrap_or_default();
        return (1..=bundle::MAX_ENTRIES).contains(&word(24))
            && (4..=bundle::MAX_ID_LEN as u64).contains(&word(48))
            && (id.starts_with(b"host") || id.starts_with(b"hip"));
    }
    match bytes.starts_with(ccob::MAGIC).then(|| ccob::CcobHeader::parse(bytes)) {
        Some(Ok(HeaderParse::Complete(header))) => {
            let payload = usize::try_from(header.header_len).ok().and_then(|start| bytes.get(start..));
            payload.is_some_and(|payload| payload.starts_with(ZSTD) || payload.starts_with(ZLIB))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fatbin::test_support::{BundleBuilder, CCOB_KINDS, ccob};

    fn first(bytes: &[u8], chunk: usize) -> Option<u64> {
        let mut glimpse = Glimpse::default();
        bytes.chunks(chunk).for_each(|chunk| glimpse.feed(chunk));
        glimpse.first()
    }

    fn bundle() -> Vec<u8> {
        BundleBuilder::new()
            .entry("host-x86_64-unknown-linux-gnu-", &[])
            .entry("hipv4-amdgcn-amd-amdhsa--gfx942", &[7; 3000])
            .build()
    }

    #[test]
    fn sees_every_kind_of_bundle_whatever_the_chunks_are() {
        let mut kinds: Vec<Vec<u8>> =
            CCOB_KINDS.iter().map(|&(version, method)| ccob(version, method, &bundle())).collect();
        kinds.push(bundle());
        for kind in &kinds {
            for at in [0usize, 512, 4096, 0x1200] {
                let mut bytes = vec![b'_'; at];
                bytes.extend(kind);
                bytes.resize(bytes.len() + 700, b'C');
                for chunk in [1, 7, 63, 64, 500, 511, 512, 4100, 1 << 20] {
                    assert_eq!(first(&bytes, chunk), Some(at as u64), "{at:#x}, chunks of {chunk}");
                }
            }
        }
    }

    #[test]
    fn sees_nothing_else() {
        // The runtime's texts, at a multiple of 512; a bundle elsewhere; four letters in code; the end of the file.
        let text =
            [bundle::MAGIC.as_slice(), b"\0CCOB\0the next text of the table, and the next, and more\0"]
                .concat();
        let mut elsewhere = vec![0; 520];
        elsewhere.extend(bundle());
        let letters = [b"CCOB".as_slice(), &[0x90; 200]].concat();
        let version = [b"CCOB\x02\0\x01\0".as_slice(), &[0x90; 200]].concat();
        for bytes in [&text, &elsewhere, &letters, &version, &bundle()[..63].to_vec(), &Vec::new()] {
            for chunk in [1, 64, 1 << 20] {
                assert_eq!(first(bytes, chunk), None);
            }
        }
    }
}
