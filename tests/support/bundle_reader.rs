//! Takes bundles apart, plain or compressed, with no code of `fatwheel::fatbin` in it.

use std::io::Read as _;

const PLAIN: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";

/// The code objects of a bundle, each with its target. Panics if it is no bundle, or ends elsewhere.
pub fn code_objects(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let length = if bytes.starts_with(PLAIN) {
        plain(bytes, &mut found)
    } else {
        assert!(bytes.starts_with(b"CCOB"), "no bundle: {:x?}", &bytes[..16]);
        compressed(bytes, &mut found)
    };
    assert_eq!(length, bytes.len());
    found
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Returns where the bundle ends.
fn plain(bytes: &[u8], found: &mut Vec<(String, Vec<u8>)>) -> usize {
    let mut at = 32;
    let mut end = at;
    for _ in 0..word(bytes, 24) {
        let [offset, size, length] = [0, 8, 16].map(|field| word(bytes, at + field));
        let id = String::from_utf8(bytes[at + 24..at + 24 + length].to_vec()).unwrap();
        at += 24 + length;
        end = end.max(at).max(offset + size);
        if let Some((_, target)) = id.split_once("--")
            && !id.starts_with("host")
        {
            found.push((target.to_owned(), bytes[offset..offset + size].to_vec()));
        }
    }
    end
}

fn compressed(bytes: &[u8], found: &mut Vec<(String, Vec<u8>)>) -> usize {
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
    let (total, payload) = match half(4) {
        2 => (u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize, 24),
        3 => (word(bytes, 8), 32),
        version => panic!("CCOB version {version} does not say how long it is"),
    };
    let payload = &bytes[payload..total];
    let content = match half(6) {
        0 => {
            let mut content = Vec::new();
            flate2::read::ZlibDecoder::new(payload).read_to_end(&mut content).unwrap();
            content
        }
        _ => zstd::decode_all(payload).unwrap(),
    };
    plain(&content, found);
    total
}
