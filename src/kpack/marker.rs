//! The marker: what the wrappers of a rewritten binary point at.
//!
//! A MessagePack map {`kpack_search_paths`: array of strings, `kernel_name`: string}; the section that holds it has
//! nothing else. Source: the marker reader of the HIP runtime's kpack loader.

use crate::fault::{Fault, Result};

/// The loader looks at no more than this many bytes.
pub const MAX_LEN: usize = 64 << 10;

/// The marker for the binary at `kernel_name`, its path relative to the overlay root with forward slashes, and for
/// archives of the group `group`. The one search path leads from the binary's directory to the overlay root's
/// `.kpack` directory.
///
/// # Errors
/// An `Unsupported` [`Fault`] if the marker would be longer than [`MAX_LEN`].
pub fn marker(kernel_name: &str, group: &str) -> Result<Vec<u8>> {
    let mut path = "../".repeat(kernel_name.matches('/').count());
    path.push_str(&format!(".kpack/{group}_@GFXARCH@.kpack"));
    let bytes = encode(&path, kernel_name)
        .map_err(|error| Fault::unsupported("kpack marker", None, format!("cannot be encoded: {error}")))?;
    if bytes.len() > MAX_LEN {
        return Err(Fault::unsupported(
            "kpack marker",
            None,
            format!("needs {} bytes for its paths, the loader reads {MAX_LEN}", bytes.len()),
        ));
    }
    Ok(bytes)
}

fn encode(path: &str, kernel_name: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    rmp::encode::write_map_len(&mut bytes, 2)?;
    rmp::encode::write_str(&mut bytes, "kpack_search_paths")?;
    rmp::encode::write_array_len(&mut bytes, 1)?;
    rmp::encode::write_str(&mut bytes, path)?;
    rmp::encode::write_str(&mut bytes, "kernel_name")?;
    rmp::encode::write_str(&mut bytes, kernel_name)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(
            marker("lib/libtorch_hip.so", "torch").unwrap(),
            b"\x82\xb2kpack_search_paths\x91\xbf../.kpack/torch_@GFXARCH@.kpack\
              \xabkernel_name\xb3lib/libtorch_hip.so"
                .to_vec()
        );
    }

    #[test]
    fn the_search_path_climbs_once_per_directory() {
        for (name, path) in [
            ("_C.so", &b"\x91\xb8.kpack/x_@GFXARCH@.kpack"[..]),
            ("a/b/c/_C.so", b"\x91\xd9\x21../../../.kpack/x_@GFXARCH@.kpack"),
        ] {
            let marker = marker(name, "x").unwrap();
            assert!(marker.windows(path.len()).any(|window| window == path), "{}", marker.escape_ascii());
        }
    }

    #[test]
    fn a_marker_that_the_loader_would_cut_is_refused() {
        assert!(marker(&"x".repeat(65_000), "torch").is_ok());
        assert!(
            marker(&"d/".repeat(16_000), "torch").unwrap_err().message.contains("the loader reads 65536")
        );
    }
}
