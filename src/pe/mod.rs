//! PE32+ libraries and programs (DLL, EXE) with HIP code: what they are, and how they lose it.
//!
//! Sources: Microsoft's "PE Format" reference, the loader's own rules where the reference is silent (sections
//! contiguous in RVA, `PointerToRawData` rounded down to 512, `SizeOfImage` at most 0x77000000), and clang's
//! HIP code generation for the section names and the wrapper.
//!
//! # The rewrite
//! - `.hip_fat`, the bundles: header, RVA and VirtualSize stay, for the loader insists on sections without gaps;
//!   the raw data leaves the file and the loader fills the range with zeros that nobody reads.
//! - The marker comes into a new section `.kpackrf` behind all others. Where the section table cannot grow, it
//!   comes into `.hip_fat` itself, which is renamed.
//! - `.hipFatB`, the wrappers: HIPK, pointer to the marker, code-object index.
//! - Whatever holds a file offset follows the bytes it names: section headers, COFF symbols, debug directory.
//!   Overlay data stays. A certificate goes, since the signature no longer holds. A checksum is made right again.
//!
//! # Invariants
//! Memory outside the bundles and the wrappers is byte-identical at the same RVA. No byte of a bundle is read.
//! The plan is a pure function of the layout, the marker and the bytes outside the bundles.
//!
//! # Refusals
//! Not PE32+ is no fat binary. A fat one is refused, naming the place, if the loader would refuse it, if its
//! raw data overlaps or is cut short, or if anything but a wrapper points into a bundle: a base relocation, a
//! data directory, the entry point, a debug entry, the COFF symbols.

mod checksum;
mod debug;
mod headers;
mod locate;
mod moves;
mod plan;
mod references;
mod relocations;
mod verify;
mod view;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use locate::locate;
pub use plan::plan;
pub use verify::verify;

use object::pe::{IMAGE_SCN_CNT_INITIALIZED_DATA, IMAGE_SCN_MEM_READ};

use crate::fatbin::wrapper::{BundleSection, WRAPPER_LEN, Wrapper};
use debug::DebugDirectory;
use headers::Headers;

/// Name of the section that holds the marker; the content is the MessagePack alone, VirtualSize its length.
const MARKER_SECTION: [u8; 8] = *b".kpackrf";
/// Characteristics of that section: initialized data that is only read.
const MARKER_FLAGS: u32 = IMAGE_SCN_CNT_INITIALIZED_DATA.0 | IMAGE_SCN_MEM_READ.0;

/// Whether a file that starts with `prefix` may be a PE file: the DOS magic `MZ`.
pub fn is_pe(prefix: &[u8]) -> bool {
    prefix.starts_with(b"MZ")
}

/// A fat PE32+ file, parsed as far as the rewrite needs it.
#[derive(Clone, Debug)]
pub struct PeLayout {
    /// `Machine` of the COFF header: 0x8664 for x86-64, 0xaa64 for ARM64.
    pub machine: u16,
    /// The `.hip_fat` sections that have raw data, in table order. Addresses are RVAs.
    pub sections: Vec<BundleSection>,
    /// All wrappers of all `.hipFatB` sections in table order; the index is the code-object index.
    /// Addresses and targets are RVAs.
    pub wrappers: Vec<Wrapper>,
    headers: Headers,
    /// Indices of `sections` in the section table.
    bundles: Vec<usize>,
    /// Raw data of the wrapper sections.
    tables: Vec<WrapperTable>,
    debug: Option<DebugDirectory>,
}

/// One `.hipFatB` section as it is in the file.
#[derive(Clone, Debug)]
struct WrapperTable {
    /// Offset of the first byte in the file.
    offset: u64,
    /// Wrappers, 24 bytes each, and zeros.
    bytes: Vec<u8>,
}

impl WrapperTable {
    /// Each wrapper with its place in `bytes`: the next one starts at the next 8 bytes that are not all zero.
    fn wrappers(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut next = 0;
        std::iter::from_fn(move || {
            loop {
                let at = next;
                let wrapper = self.bytes.get(at..at + WRAPPER_LEN as usize)?;
                if wrapper[..8] != [0; 8] {
                    next = at + wrapper.len();
                    return Some((at, wrapper));
                }
                next = at + 8;
            }
        })
    }
}
