//! Reading zip directories: no panic; data lies in the file, and no two members share a byte.
#![no_main]

use fatwheel::zip::reader::Archive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(archive) = Archive::parse(data) else { return };
    let mut ranges: Vec<_> = archive.entries.iter().map(|entry| entry.header_offset..entry.data.end).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= data.len() as u64));
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
});
