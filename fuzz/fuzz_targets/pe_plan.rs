//! `pe::locate`, `plan`, `verify`: no panic on any file; what is planned verifies; a second split does nothing.
#![no_main]

use std::sync::LazyLock;

use fatwheel::fatbin::wrapper::Located;
use fatwheel::pe;
use fatwheel_fuzz::{Table, fixtures, output, patched};
use libfuzzer_sys::fuzz_target;

static FIXTURES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| fixtures("pe"));

fn u32_at(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize
}

/// DOS header, COFF header, optional header, directories, section table, and what they lead to.
fn tables(file: &[u8]) -> Vec<Table> {
    let pe = u32_at(file, 0x3c);
    let count = usize::from(file[pe + 6]);
    let sections = pe + 24 + 240;
    let mut tables = vec![
        (0, 64, 1),
        (pe, 24, 1),
        (pe + 24, 112, 1),
        (pe + 24 + 112, 8, 16),
        (sections, 40, count),
        (sections, 40, count),
        (sections, 40, count),
    ];
    let headers = |index: usize| sections + 40 * index;
    let offset_of = |rva: usize| {
        (0..count).map(headers).find_map(|at| {
            let (start, size, raw) = (u32_at(file, at + 12), u32_at(file, at + 16), u32_at(file, at + 20));
            (start <= rva && rva < start + size).then(|| raw + rva - start)
        })
    };
    for (directory, entry_len) in [(5, 2), (6, 28)] {
        let at = pe + 24 + 112 + 8 * directory;
        if let Some(offset) = offset_of(u32_at(file, at)) {
            tables.push((offset, entry_len, u32_at(file, at + 4) / entry_len));
        }
    }
    for at in (0..count).map(headers).filter(|&at| &file[at..at + 8] == b".hipFatB") {
        tables.push((u32_at(file, at + 20), 24, u32_at(file, at + 8) / 24));
    }
    tables
}

fuzz_target!(|data: &[u8]| {
    let file = match data {
        [b'M', b'Z', ..] => data.to_vec(),
        _ => match patched(data, &FIXTURES, tables) {
            Some(file) => file,
            None => return,
        },
    };
    let marker = b"\x81\xa4test\xa6marker of forty bytes or something like it";
    let Ok(Located::Fat(layout)) = pe::locate(&mut file.as_slice()) else { return };
    let Ok(plan) = pe::plan(&mut file.as_slice(), &layout, marker) else { return };
    let Some(after) = output(&file, &plan, |capture| pe::verify(capture, &layout, marker)) else { return };
    match pe::locate(&mut after.as_slice()) {
        Ok(Located::Fat(_)) => panic!("the rewritten file is a fat binary"),
        Ok(_) => {}
        Err(fault) => panic!("the rewritten file does not parse: {fault}"),
    }
});
