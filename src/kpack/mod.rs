//! kpack archives: device code for one GPU, and the marker that leads the loader to them.
//!
//! ```text
//! completeness   which code objects an archive holds, and which of them answers for which (kernel, target)
//! format         header, blob area, limits: the bytes in front of the table of contents
//! toc            the table of contents
//! marker         what a rewritten binary points at
//! reader         the strict reader: tests, verification
//! ```
//!
//! Source: format version 1 as the Python package rocm-kpack writes it and the loader in the HIP runtime reads it
//! (both in ROCm/rocm-systems). The writer's parts are made for a stream: code objects in any order, each written
//! once, the header and the count patched at the end.

pub mod completeness;
pub mod format;
pub mod marker;
pub mod reader;
pub mod toc;

pub use completeness::{Archive, Catalog};
pub use format::{BlobArea, Scheme};
pub use reader::Reader;
pub use toc::Toc;

/// The file name of an archive, to be placed in `<overlay root>/.kpack/`. `name` is [`Archive::name`].
pub fn file_name(group: &str, name: &str) -> String {
    format!("{group}_{name}.kpack")
}

/// The key of a code object in a table of contents: the binary's path relative to the overlay root with forward
/// slashes, and the code-object index of its wrapper.
pub fn kernel_key(kernel_name: &str, index: u32) -> String {
    format!("{kernel_name}#{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(file_name("torch", "gfx90a"), "torch_gfx90a.kpack");
        assert_eq!(kernel_key("lib/libtorch_hip.so", 7), "lib/libtorch_hip.so#7");
    }
}
