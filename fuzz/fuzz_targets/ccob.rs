//! Compressed bundles: no panic, no more output than the header claims, and the same output of a good one whatever the
//! size of the pieces.
#![no_main]

use fatwheel::fatbin::HeaderParse;
use fatwheel::fatbin::ccob::{CcobDecoder, CcobHeader};
use fatwheel::fatbin::walk::walk;
use fatwheel::fatbin::wrapper::BundleSection;
use fatwheel::fault::Fault;
use libfuzzer_sys::fuzz_target;

/// Output above this is not kept.
const ENOUGH: usize = 1 << 20;

/// The output, and whether all of it was good; `None` if it is too long.
fn decode(header: CcobHeader, payload: &[u8], piece: usize) -> Option<(Vec<u8>, bool)> {
    let mut decoder = CcobDecoder::new(header, 0).unwrap();
    let mut output = Vec::new();
    let mut too_long = false;
    for piece in payload.chunks(piece) {
        let fed = decoder.feed(piece, |bytes| {
            output.extend_from_slice(bytes);
            too_long = output.len() > ENOUGH;
            match too_long {
                true => Err(Fault::unsupported("fuzz", None, "long")),
                false => Ok(()),
            }
        });
        if too_long {
            return None;
        }
        if fed.is_err() {
            return Some((Vec::new(), false));
        }
        if decoder.has_ended() {
            break;
        }
    }
    assert!(output.len() as u64 <= header.uncompressed);
    let good = decoder.finish().is_ok();
    Some(if good { (output, true) } else { (Vec::new(), false) })
}

fuzz_target!(|data: &[u8]| {
    if let Ok(HeaderParse::Complete(header)) = CcobHeader::parse(data) {
        let end = header.total.unwrap_or(u64::MAX).min(data.len() as u64) as usize;
        let payload = &data[(header.header_len as usize).min(end)..end];
        // A window of up to 128 MiB is legal and slow.
        let small = |window: u64| window <= 8 << 20;
        if matches!(header.window_size(payload), Ok(HeaderParse::Complete(window)) if small(window)) {
            let whole = decode(header, payload, usize::MAX);
            let pieces = decode(header, payload, 1 + payload.len() % 7);
            // Of a damaged frame, zstd may see more when it has all of it at once (a wrong content size, for one).
            if let (Some((whole, true)), Some((pieces, true))) = (whole, pieces) {
                assert_eq!(whole, pieces);
            }
        }
    }
    let section = BundleSection { address: 0, range: 0..data.len() as u64 };
    let _ = walk(&mut &*data, &section);
});
