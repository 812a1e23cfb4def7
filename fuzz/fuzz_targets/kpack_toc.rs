//! kpack archives: no panic, and no code object of another size than stated.
#![no_main]

use fatwheel::kpack::reader::Reader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(reader) = Reader::parse(data) else { return };
    for (key, entries) in &reader.kernels {
        for (&target, entry) in entries {
            if entry.original_size > 1 << 20 {
                continue;
            }
            if let Ok(code) = reader.get(key, target) {
                assert_eq!(code.unwrap().len() as u64, entry.original_size);
            }
        }
    }
});
