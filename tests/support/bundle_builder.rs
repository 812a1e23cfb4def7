//! Builds offload bundles, compressed bundles and sections for tests.
//!
//! Written from the format's description, with no code of the parsers in it, so that the two check each other.

use std::io::Write as _;

use md5::{Digest as _, Md5};

/// An uncompressed offload bundle in the making.
#[derive(Clone, Debug, Default)]
pub struct BundleBuilder {
    entries: Vec<(String, Vec<u8>)>,
    align: usize,
}

impl BundleBuilder {
    /// No entries; code objects aligned to 64 bytes.
    pub fn new() -> Self {
        Self { entries: Vec::new(), align: 64 }
    }

    /// Alignment of the code objects in bytes, as of `--bundle-align`.
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// One more entry with its full ID.
    pub fn entry(mut self, id: &str, code: &[u8]) -> Self {
        self.entries.push((id.to_owned(), code.to_vec()));
        self
    }

    /// One more entry for a target ID such as `gfx942`.
    pub fn target(self, target: &str, code: &[u8]) -> Self {
        self.entry(&format!("hipv4-amdgcn-amd-amdhsa--{target}"), code)
    }

    /// The bundle's bytes.
    pub fn build(&self) -> Vec<u8> {
        let table: usize = 32 + self.entries.iter().map(|(id, _)| 24 + id.len()).sum::<usize>();
        let mut header = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
        header.extend((self.entries.len() as u64).to_le_bytes());
        let mut content = Vec::new();
        for (id, code) in &self.entries {
            if !code.is_empty() {
                let start = (table + content.len()).next_multiple_of(self.align);
                content.resize(start - table, 0);
            }
            for word in [table + content.len(), code.len(), id.len()] {
                header.extend((word as u64).to_le_bytes());
            }
            header.extend(id.as_bytes());
            content.extend(code);
        }
        header.extend(content);
        header
    }
}

/// How a compressed bundle is compressed; the values are those of the header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CcobMethod {
    Zlib = 0,
    Zstd = 1,
}

/// All versions and methods of compressed bundles.
pub const CCOB_KINDS: [(u16, CcobMethod); 6] = [
    (1, CcobMethod::Zlib),
    (1, CcobMethod::Zstd),
    (2, CcobMethod::Zlib),
    (2, CcobMethod::Zstd),
    (3, CcobMethod::Zlib),
    (3, CcobMethod::Zstd),
];

/// `content` as a compressed bundle ("CCOB") of `version` 1, 2 or 3.
pub fn ccob(version: u16, method: CcobMethod, content: &[u8]) -> Vec<u8> {
    let payload = match method {
        CcobMethod::Zlib => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        CcobMethod::Zstd => {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
            // As clang does it: content size, and a window that can be larger than the level's own.
            encoder.set_pledged_src_size(Some(content.len() as u64)).unwrap();
            encoder.long_distance_matching(true).unwrap();
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
    };
    ccob_with_payload(version, method, content, &payload)
}

/// A compressed bundle with the header that `content` calls for, around any payload.
pub fn ccob_with_payload(version: u16, method: CcobMethod, content: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"CCOB".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend((method as u16).to_le_bytes());
    let (total, raw) = (payload.len(), content.len());
    match version {
        1 => bytes.extend((raw as u32).to_le_bytes()),
        2 => {
            bytes.extend((total as u32 + 24).to_le_bytes());
            bytes.extend((raw as u32).to_le_bytes());
        }
        _ => {
            bytes.extend((total as u64 + 32).to_le_bytes());
            bytes.extend((raw as u64).to_le_bytes());
        }
    }
    bytes.extend(&Md5::digest(content)[..8]);
    bytes.extend(payload);
    bytes
}

/// A section: bundles one after the other, each at the next multiple of `align`, zeros between. Returns the bytes
/// and the offset of each bundle.
pub fn section(bundles: &[Vec<u8>], align: usize) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let mut offsets = Vec::new();
    for bundle in bundles {
        bytes.resize(bytes.len().next_multiple_of(align), 0);
        offsets.push(bytes.len());
        bytes.extend(bundle);
    }
    (bytes, offsets)
}
