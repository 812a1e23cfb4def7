//! What the fuzz targets share: fixtures as a start, and patches of their headers as the language of an input.
//!
//! An input of `elf_plan` or `pe_plan` is either a file as it stands, or a list of patches to a fixture: one byte
//! selects the fixture, then each [`Patch`] sets or moves one field of one table. So a mutation of a few bytes hits
//! headers, not code.

use std::fs;
use std::path::Path;

use fatwheel::edit::{Apply, BinaryPlan, Capture};
use fatwheel::fault::{Fault, Result};

/// The fixtures of `elf` or `pe`, sorted by name.
pub fn fixtures(format: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(format);
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// One table of a file: offset, length of an entry, number of entries.
pub type Table = (usize, usize, usize);

/// Twelve bytes of input: table, entry, field (counted in `width` bytes), width and mode, value.
pub struct Patch<'a>(&'a [u8]);

impl Patch<'_> {
    fn apply(&self, file: &mut [u8], tables: &[Table]) {
        let value = u64::from_le_bytes(self.0[4..12].try_into().unwrap());
        let (start, entry_len, count) = tables[usize::from(self.0[0]) % tables.len()];
        if entry_len == 0 || count == 0 {
            return;
        }
        let width = 1usize << (self.0[3] & 3);
        let field = usize::from(self.0[2]) % (entry_len / width).max(1);
        let at = start + usize::from(self.0[1]) % count * entry_len + field * width;
        let Some(place) = file.get_mut(at..at + width) else { return };
        let mut old = [0; 8];
        old[..width].copy_from_slice(place);
        let value = match self.0[3] >> 2 & 3 {
            0 | 1 => u64::from_le_bytes(old).wrapping_add(value as u16 as i16 as u64),
            2 => u64::from_le_bytes(old).wrapping_add((value as u16 as i16 as u64) << 12),
            _ => value,
        };
        place.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// The file that `data` describes; `tables` finds the tables of a fixture.
pub fn patched(data: &[u8], fixtures: &[Vec<u8>], tables: impl Fn(&[u8]) -> Vec<Table>) -> Option<Vec<u8>> {
    let (&first, patches) = data.split_first()?;
    let mut file = fixtures[usize::from(first) % fixtures.len()].clone();
    let tables = tables(&file);
    for patch in patches.chunks_exact(12).take(32) {
        Patch(patch).apply(&mut file, &tables);
    }
    // To look at a finding: the file that an input stands for.
    if let Some(path) = std::env::var_os("FATWHEEL_FUZZ_DUMP") {
        fs::write(path, &file).unwrap();
    }
    Some(file)
}

/// The output of `plan`, which must come to the promised length; `None` if that is not small.
pub fn output(input: &[u8], plan: &BinaryPlan, verify: impl Fn(&mut Capture) -> Result<()>) -> Option<Vec<u8>> {
    if plan.edits.output_len() > 1 << 22 {
        return None;
    }
    let mut written = Vec::new();
    let mut capture = Capture::new(plan.edits.output_len(), plan.verify.clone());
    let mut sink = |bytes: &[u8]| {
        capture.feed(bytes);
        written.extend_from_slice(bytes);
        Ok::<(), Fault>(())
    };
    let mut apply = Apply::new(&plan.edits);
    apply.feed(input, &mut sink).unwrap();
    apply.finish(&mut sink).unwrap();
    verify(&mut capture).unwrap_or_else(|fault| panic!("{fault}"));
    Some(written)
}
