//! The zip layout: any sequence of members is an archive that the reader reads back.
#![no_main]

use fatwheel::zip::reader::Archive;
use fatwheel::zip::records::{Attributes, Method};
use fatwheel::zip::writer::{Layout, Sizes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut file: Vec<u8> = Vec::new();
    let mut layout = Layout::new();
    let mut expected = Vec::new();
    // Each operation: kind, length of the name's tail, length of the data, mode and time.
    for (index, operation) in data.chunks_exact(6).take(64).enumerate() {
        let tail = ["", "a", "\u{e9}", "deep/er", "with space"][usize::from(operation[1]) % 5];
        let name = format!("{index}{}{tail}", if operation[1] & 8 == 0 { "" } else { "/" });
        let content = vec![operation[0]; usize::from(operation[2])];
        let when = (u16::from(operation[3]) << 4 | 0x21, u16::from(operation[4]));
        let mut attributes = Attributes::regular(u32::from(operation[5]) | 0o100_000, when);
        if operation[0] & 8 != 0 {
            attributes.comment = b"a comment".to_vec();
            attributes.central_extra = vec![0x75, 0x70, operation[5] & 7, 0];
            attributes.central_extra.extend(vec![7; usize::from(operation[5] & 7)]);
            attributes.local_extra = attributes.central_extra.clone();
        }
        let sizes = Sizes {
            crc32: u32::from(operation[2]) * 77,
            compressed: content.len() as u64,
            uncompressed: content.len() as u64,
        };
        assert_eq!(layout.offset(), file.len() as u64);
        let at = file.len();
        if operation[0] & 1 == 0 {
            file.extend(layout.known(&name, Method::Stored, &attributes, sizes));
            file.extend(&content);
        } else {
            let at_most = if operation[0] & 2 == 0 { 1 << 20 } else { 1 << 33 };
            file.extend(layout.begin(&name, Method::Stored, &attributes, at_most));
            file.extend(&content);
            let patch = layout.end(sizes).unwrap();
            assert_eq!(patch.offset, at as u64);
            file[at..at + patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
        expected.push((name, sizes, at as u64, content));
    }
    file.extend(layout.finish());
    let archive = Archive::parse(&file).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(archive.entries.len(), expected.len());
    for (entry, (name, sizes, at, content)) in archive.entries.iter().zip(&expected) {
        assert_eq!((&entry.name, entry.crc32, entry.size, entry.header_offset), (name, sizes.crc32, sizes.uncompressed, *at));
        assert_eq!(&file[entry.data.start as usize..entry.data.end as usize], content);
    }
});
