//! Bundle headers and the walk over a section: no panic; every prefix of a header asks for more or fails, never
//! succeeds with something else; what is found lies inside the section, in order.
#![no_main]

use fatwheel::fatbin::bundle::BundleHeader;
use fatwheel::fatbin::walk::walk;
use fatwheel::fatbin::wrapper::BundleSection;
use fatwheel::fatbin::{HeaderParse, entry_id::EntryId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let total = data.len() as u64;
    if let Ok(HeaderParse::Complete(header)) = BundleHeader::parse(data, Some(total)) {
        assert!(header.header_len <= total && header.header_len <= header.end && header.end <= total);
        for (_, entry) in header.device_entries() {
            assert!(entry.size == 0 || entry.offset + entry.size <= header.end);
        }
        let exact = &data[..header.header_len as usize];
        assert_eq!(BundleHeader::parse(exact, Some(total)).unwrap(), HeaderParse::Complete(header.clone()));
        for cut in [exact.len() - 1, exact.len() / 2] {
            let parsed = BundleHeader::parse(&exact[..cut], Some(total));
            assert!(matches!(parsed, Ok(HeaderParse::NeedMore(length)) if length > cut as u64));
        }
    }
    let section = BundleSection { address: 0, range: 0..total };
    if let Ok(bundles) = walk(&mut &*data, &section) {
        let mut end = 0;
        for bundle in bundles {
            assert!(bundle.offset >= end && bundle.length > 0);
            end = bundle.offset + bundle.length;
        }
        assert!(end <= total);
    }
    if let Ok(id) = std::str::from_utf8(data) {
        let _ = EntryId::parse(id);
    }
});
