//! The fat binary wrapper (`__CudaFatBinaryWrapper` of clang's HIP code), 24 bytes, little-endian:
//! `u32 magic`, `u32 version` (1), `u64 binary`, `u64 reserved1`.
//!
//! The compiler emits one for each translation unit, with magic HIPF and a pointer to the unit's offload bundle. After
//! a split the magic is HIPK, the pointer leads to the marker, and the low 32 bits of `reserved1` are the code-object
//! index. Sources: clang's `CGCUDANV.cpp`, and the HIP runtime (CLR) for HIPK.

use std::ops::Range;

/// Length of a wrapper in bytes.
pub const WRAPPER_LEN: u64 = 24;
/// Offset of the `binary` pointer in a wrapper.
pub const WRAPPER_BINARY: u64 = 8;
/// Offset of `reserved1` in a wrapper; its low 32 bits hold the code-object index after a split.
pub const WRAPPER_RESERVED1: u64 = 16;
/// The kpack loader takes no more code objects than this from one archive, so no binary can use more wrappers.
pub const MAX_WRAPPERS: u64 = crate::kpack::format::MAX_KERNELS;
/// `HIPF`: the wrapper points at an offload bundle.
pub const HIPF_MAGIC: u32 = 0x4849_5046;
/// `HIPK`: the wrapper points at a marker.
pub const HIPK_MAGIC: u32 = 0x4B50_4948;

/// One wrapper of a binary, its pointer resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// Offset of the wrapper in the file, in bytes.
    pub offset: u64,
    /// Virtual address (ELF) or RVA (PE) of the wrapper.
    pub address: u64,
    /// [`HIPF_MAGIC`] or [`HIPK_MAGIC`]; anything else is refused by `locate`.
    pub magic: u32,
    /// Virtual address (ELF) or RVA (PE) that `binary` holds once the loader is done.
    pub target: u64,
}

/// One `.hip_fatbin` (ELF) or `.hip_fat` (PE) section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSection {
    /// Virtual address (ELF) or RVA (PE) of its first byte.
    pub address: u64,
    /// The bytes of the file that hold it.
    pub range: Range<u64>,
}

/// What `elf::locate` and `pe::locate` say about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located<L> {
    /// Not a binary of this format, or one without device code (also: 32-bit, big-endian, `.debug` files).
    Plain,
    /// A fat binary whose wrappers are all HIPK: already split.
    AlreadySplit,
    /// A fat binary.
    Fat(L),
}
