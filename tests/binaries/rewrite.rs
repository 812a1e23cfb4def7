//! Fixtures, and their rewrite by the library, as the pipeline does it.

use std::fs;
use std::path::{Path, PathBuf};

use fatwheel::edit::{Apply, BinaryPlan, Capture, Planned};
use fatwheel::fatbin::wrapper::Located;
use fatwheel::fault::Fault;
use fatwheel::source::ReadAt;
use fatwheel::{elf, kpack, pe};

/// One committed binary.
pub struct Fixture {
    pub name: String,
    pub bytes: Vec<u8>,
}

pub fn fixture_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The fixtures of `elf` or `pe`, sorted by name.
pub fn fixtures(format: &str) -> Vec<Fixture> {
    let directory = fixture_root().join(format);
    let mut found: Vec<Fixture> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| Fixture {
            name: entry.file_name().into_string().unwrap(),
            bytes: fs::read(entry.path()).unwrap(),
        })
        .collect();
    found.sort_by(|one, two| one.name.cmp(&two.name));
    assert!(found.len() > 5, "{} fixtures in {}", found.len(), directory.display());
    found
}

/// The marker that a split gives to the binary at `lib/<name>`.
pub fn marker(name: &str) -> Vec<u8> {
    kpack::marker::marker(&format!("lib/{name}"), "fatdemo").unwrap()
}

/// Feeds `input` through the plan in chunks of an odd size, captures what `verify` wants, and returns the output.
fn stream(
    input: &[u8],
    plan: &BinaryPlan,
    verify: impl Fn(&mut dyn ReadAt) -> Result<(), Fault>,
) -> Result<Vec<u8>, Fault> {
    let mut output = Vec::new();
    let mut capture = Capture::new(plan.edits.output_len(), plan.verify.clone());
    let mut sink = |bytes: &[u8]| {
        capture.feed(bytes);
        output.extend_from_slice(bytes);
        Ok::<(), Fault>(())
    };
    let mut apply = Apply::new(&plan.edits);
    for chunk in input.chunks(4093) {
        apply.feed(chunk, &mut sink)?;
    }
    apply.finish(&mut sink)?;
    verify(&mut capture)?;
    verify(&mut Planned::new(&plan.edits, input))?;
    assert_eq!(output.len() as u64, plan.edits.output_len());
    Ok(output)
}

/// The rewritten file; `None` if the library says that it is no fat binary, or split already.
pub fn rewrite(input: &[u8], marker: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let mut source = input;
    if elf::is_elf(input) {
        let Located::Fat(layout) = elf::locate(&mut source)? else { return Ok(None) };
        let plan = elf::plan(&mut source, &layout, marker)?;
        stream(input, &plan, |output| elf::verify(output, &layout, marker, &plan)).map(Some)
    } else {
        let Located::Fat(layout) = pe::locate(&mut source)? else { return Ok(None) };
        let plan = pe::plan(&mut source, &layout, marker)?;
        stream(input, &plan, |output| pe::verify(output, &layout, marker)).map(Some)
    }
}

/// [`rewrite`] of what must be a fat binary; `name` is for the message.
pub fn rewrite_fat(name: &str, input: &[u8], marker: &[u8]) -> Vec<u8> {
    rewrite(input, marker)
        .unwrap_or_else(|fault| panic!("{name}: {fault}"))
        .unwrap_or_else(|| panic!("{name} is no fat binary"))
}
