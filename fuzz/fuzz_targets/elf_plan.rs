//! `elf::locate`, `plan`, `verify`: no panic on any file; what is planned verifies; a second split does nothing.
#![no_main]

use std::sync::LazyLock;

use fatwheel::elf;
use fatwheel::fatbin::wrapper::Located;
use fatwheel_fuzz::{Table, fixtures, output, patched};
use libfuzzer_sys::fuzz_target;

static FIXTURES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| fixtures("elf"));

fn u64_at(file: &[u8], at: usize) -> usize {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize
}

fn u16_at(file: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(file[at..at + 2].try_into().unwrap()))
}

/// Header, program headers, section headers, then the content of tables that the planner reads.
fn tables(file: &[u8]) -> Vec<Table> {
    let sections = (u64_at(file, 40), 64, u16_at(file, 60));
    let mut tables = vec![(0, 64, 1), (u64_at(file, 32), 56, u16_at(file, 56)), sections, sections];
    for header in (0..sections.2).map(|index| sections.0 + 64 * index) {
        let entry_len = match file[header + 4] {
            4 | 11 => 24,
            6 => 16,
            19 => 8,
            1 if u64_at(file, header + 32) % 24 == 0 && u64_at(file, header + 8) & 1 == 1 => 24,
            3 => 1,
            _ => continue,
        };
        tables.push((u64_at(file, header + 24), entry_len, u64_at(file, header + 32) / entry_len));
    }
    tables
}

fuzz_target!(|data: &[u8]| {
    let file = match data {
        [0x7f, b'E', ..] => data.to_vec(),
        _ => match patched(data, &FIXTURES, tables) {
            Some(file) => file,
            None => return,
        },
    };
    let marker = b"\x81\xa4test\xa6marker of forty bytes or something like it";
    let Ok(Located::Fat(layout)) = elf::locate(&mut file.as_slice()) else { return };
    let Ok(plan) = elf::plan(&mut file.as_slice(), &layout, marker) else { return };
    let Some(after) = output(&file, &plan, |capture| elf::verify(capture, &layout, marker, &plan)) else { return };
    match elf::locate(&mut after.as_slice()) {
        Ok(Located::Fat(_)) => panic!("the rewritten file is a fat binary"),
        Ok(_) => {}
        Err(fault) => panic!("the rewritten file does not parse: {fault}"),
    }
});
