//! The bytes of a kpack archive in front of its table of contents.
//!
//! `"KPAK"`, `u32 1`, `u64 toc_offset`, zeros up to byte 64, the blob area, the table of contents up to the end of
//! the file. All integers are little-endian. The blob area depends on the compression scheme:
//! - `zstd-per-kernel`: `u32 count`, then for each ordinal `u32 size` and one zstd frame that carries its content
//!   size;
//! - `none`: the code objects by ordinal, each at a multiple of 64 so that a loader can map it.
//!
//! A writer writes [`BlobArea::prologue`], then for each code object what [`BlobArea::place`] says and its bytes,
//! then the table of contents; at the end it patches what [`BlobArea::patches`] says.
//!
//! Refused: what the shipped loader refuses to open, a zstd blob area over 4 GiB and more than 1,048,576 code
//! objects. Better no archive than one that no GPU can use.

use crate::fault::{Fault, Result};

/// What an archive starts with.
pub const MAGIC: &[u8; 4] = b"KPAK";
/// The only format version.
pub const VERSION: u32 = 1;
/// Length of the header with its padding in bytes; the blob area starts here.
pub const HEADER_LEN: u64 = 64;
/// Uncompressed code objects start at multiples of this many bytes.
pub const BLOB_ALIGN: u64 = 64;
/// The loader takes at most this many code objects in one archive.
pub const MAX_KERNELS: u64 = 1_048_576;
/// The loader reads a zstd blob area whole, up to this many bytes.
pub const MAX_ZSTD_LEN: u64 = 4 << 30;

/// How the code objects of an archive are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Not at all.
    None,
    /// One zstd frame each.
    ZstdPerKernel,
}

impl Scheme {
    /// The name in the table of contents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ZstdPerKernel => "zstd-per-kernel",
        }
    }

    /// Bytes of the blob area in front of the first code object.
    fn count_len(self) -> u64 {
        match self {
            Self::None => 0,
            Self::ZstdPerKernel => 4,
        }
    }
}

/// The header, with its padding.
pub fn header(toc_offset: u64) -> [u8; HEADER_LEN as usize] {
    let mut header = [0; HEADER_LEN as usize];
    let fields = MAGIC.iter().copied().chain(VERSION.to_le_bytes()).chain(toc_offset.to_le_bytes());
    header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    header
}

/// Where one code object goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its ordinal: its position among the code objects, from 0.
    pub ordinal: u32,
    /// What to write in front of it: its size, or padding.
    pub lead: Vec<u8>,
    /// Offset of its first byte from the start of the archive.
    pub offset: u64,
}

/// Keeps account of a blob area while it is written.
#[derive(Clone, Debug)]
pub struct BlobArea {
    archive: String,
    scheme: Scheme,
    count: u32,
    end: u64,
    /// Offset and size by ordinal; only needed, and only kept, for [`Scheme::None`].
    blobs: Vec<(u64, u64)>,
}

impl BlobArea {
    /// An empty one. `archive` is the archive's file name, for faults.
    pub fn new(archive: impl Into<String>, scheme: Scheme) -> Self {
        let end = HEADER_LEN + scheme.count_len();
        Self { archive: archive.into(), scheme, count: 0, end, blobs: Vec::new() }
    }

    /// What an archive starts with before anything else is known: a header and, for zstd, a count, both to be
    /// patched.
    pub fn prologue(&self) -> Vec<u8> {
        let mut bytes = header(0).to_vec();
        bytes.extend(std::iter::repeat_n(0, usize::try_from(self.scheme.count_len()).unwrap_or_default()));
        bytes
    }

    /// Places the next code object, of which `stored` bytes will be written: a zstd frame, or the code object
    /// itself.
    ///
    /// # Errors
    /// An `Unsupported` [`Fault`] that names the archive if it reaches a limit of the loader.
    pub fn place(&mut self, stored: u64) -> Result<Placement> {
        if u64::from(self.count) >= MAX_KERNELS {
            return Err(self.limit(format!("more than {MAX_KERNELS} code objects")));
        }
        let (lead, offset) = match self.scheme {
            Scheme::None => {
                let offset = self.end.checked_next_multiple_of(BLOB_ALIGN).unwrap_or(u64::MAX);
                // Less than BLOB_ALIGN.
                (vec![0; (offset - self.end) as usize], offset)
            }
            Scheme::ZstdPerKernel => match u32::try_from(stored) {
                Ok(size) => (size.to_le_bytes().to_vec(), self.end + 4),
                Err(_) => return Err(self.limit(format!("a compressed code object of {stored} bytes"))),
            },
        };
        let end = offset
            .checked_add(stored)
            .filter(|&end| self.scheme == Scheme::None || end - HEADER_LEN <= MAX_ZSTD_LEN);
        let Some(end) = end else {
            return Err(self.limit(format!("compressed code objects of more than {MAX_ZSTD_LEN} bytes")));
        };
        if self.scheme == Scheme::None {
            self.blobs.push((offset, stored));
        }
        let ordinal = self.count;
        self.count += 1;
        self.end = end;
        Ok(Placement { ordinal, lead, offset })
    }

    fn limit(&self, what: String) -> Fault {
        Fault::unsupported(
            self.archive.clone(),
            None,
            format!(
                "would hold {what}, which the kpack loader does not open; split the wheel or use fewer targets"
            ),
        )
    }

    /// The compression scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Number of code objects placed.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Offset of the table of contents from the start of the archive: the end of the blob area.
    pub fn toc_offset(&self) -> u64 {
        self.end
    }

    /// Length of the blob area in bytes.
    pub fn len(&self) -> u64 {
        self.end - HEADER_LEN
    }

    /// Whether no code object was placed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Offset and size of each code object by ordinal, for [`Scheme::None`]; empty otherwise.
    pub(super) fn blobs(&self) -> &[(u64, u64)] {
        &self.blobs
    }

    /// What to overwrite in the finished archive: offset and bytes, all within what [`prologue`](Self::prologue) wrote.
    pub fn patches(&self) -> Vec<(u64, Vec<u8>)> {
        let mut patches = vec![(0, header(self.toc_offset()).to_vec())];
        if self.scheme == Scheme::ZstdPerKernel {
            patches.push((HEADER_LEN, self.count.to_le_bytes().to_vec()));
        }
        patches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header() {
        let header = header(0x0102_0304);
        assert_eq!(&header[..16], b"KPAK\x01\0\0\0\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(header[16..], [0; 48]);
    }

    #[test]
    fn zstd_blobs_are_packed() {
        let mut area = BlobArea::new("x.kpack", Scheme::ZstdPerKernel);
        assert_eq!(area.prologue().len(), 68);
        assert_eq!(area.place(5).unwrap(), Placement { ordinal: 0, lead: vec![5, 0, 0, 0], offset: 72 });
        assert_eq!(area.place(0x102).unwrap(), Placement { ordinal: 1, lead: vec![2, 1, 0, 0], offset: 81 });
        assert_eq!((area.toc_offset(), area.len(), area.count()), (81 + 0x102, 17 + 0x102, 2));
        let patches = area.patches();
        assert_eq!(patches[0], (0, header(81 + 0x102).to_vec()));
        assert_eq!(patches[1], (64, vec![2, 0, 0, 0]));
    }

    #[test]
    fn uncompressed_blobs_are_aligned() {
        let mut area = BlobArea::new("x.kpack", Scheme::None);
        assert_eq!(area.prologue().len(), 64);
        assert_eq!(area.place(5).unwrap(), Placement { ordinal: 0, lead: vec![], offset: 64 });
        assert_eq!(area.place(0).unwrap(), Placement { ordinal: 1, lead: vec![0; 59], offset: 128 });
        assert_eq!(area.place(64).unwrap(), Placement { ordinal: 2, lead: vec![], offset: 128 });
        assert_eq!(area.place(1).unwrap().offset, 192);
        assert_eq!(area.toc_offset(), 193);
        assert_eq!(area.blobs(), [(64, 5), (128, 0), (128, 64), (192, 1)]);
        assert_eq!(area.patches().len(), 1);
        // No limit of the loader applies to the size, but the sum must not overflow.
        assert_eq!(area.place(MAX_ZSTD_LEN).unwrap().offset, 256);
        assert!(area.place(u64::MAX).is_err());
    }

    #[test]
    fn the_loaders_limits_are_faults_that_name_the_archive() {
        let mut area = BlobArea::new("torch_gfx942.kpack", Scheme::ZstdPerKernel);
        let fault = area.place(1 << 32).unwrap_err();
        assert_eq!(fault.place, "torch_gfx942.kpack");
        // Count and size take 8 bytes: exactly 4 GiB is still fine.
        let mut full = area.clone();
        full.place((4 << 30) - 8).unwrap();
        assert_eq!(full.len(), MAX_ZSTD_LEN);
        assert!(full.place(0).is_err());
        assert!(area.place((4 << 30) - 7).is_err());
        for _ in 0..MAX_KERNELS {
            area.place(0).unwrap();
        }
        assert!(area.place(0).unwrap_err().message.contains("1048576 code objects"));
    }
}
