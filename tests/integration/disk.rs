//! What a split does to the disk: no path but the outputs appears, and no more blocks are used than the outputs take.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::support::elf_builder::{FatElf, noise};
use crate::support::run::{names, split_command};
use crate::support::wheel_builder::WheelBuilder;

/// 30 MiB of code that hardly compresses, in many objects, and as much else.
fn wheel() -> WheelBuilder {
    let mut elf = FatElf::new();
    for number in 0..20 {
        elf = elf
            .code(&[("gfx942", &noise(2 * number, 700_000)), ("gfx1100", &noise(2 * number + 1, 800_000))]);
    }
    WheelBuilder::new("disk", "1").file("disk/lib.so", elf.build()).file("disk/data", noise(99, 20 << 20))
}

/// Names that appear in `directory` while `work` runs.
fn appearing(directory: &Path, work: impl FnOnce()) -> BTreeSet<String> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    let flags = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MOVED_FROM;
    inotify.add_watch(directory, flags).unwrap();
    work();
    let events = inotify.read_events().unwrap_or_default();
    assert!(!events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)));
    events.into_iter().filter_map(|event| event.name?.into_string().ok()).collect()
}

/// The largest number of bytes on the disk in files that the process has open for writing in `directory`, named or not,
/// as far as looking every millisecond shows.
fn peak(child: &mut Child, directory: &Path) -> u64 {
    let (process, device) = (format!("/proc/{}/fd", child.id()), fs::metadata(directory).unwrap().dev());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        // One file may have several descriptors, and may grow meanwhile.
        let mut files: BTreeMap<u64, u64> = BTreeMap::new();
        for entry in fs::read_dir(&process).into_iter().flatten().flatten() {
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            // The input has a name elsewhere and is opened for reading alone.
            let own = fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(directory));
            if own && metadata.is_file() && metadata.dev() == device {
                files.insert(metadata.ino(), metadata.blocks() * 512);
            }
        }
        peak = peak.max(files.into_values().sum());
        thread::sleep(Duration::from_millis(1));
    }
    peak
}

fn used(directory: &Path) -> u64 {
    names(directory).iter().map(|name| fs::metadata(directory.join(name)).unwrap().blocks() * 512).sum()
}

/// What looking at a file that grows may see too much: blocks that the file system has set aside ahead of it.
const AHEAD: u64 = 3 << 20;

#[test]
fn a_file_costs_no_byte_but_the_outputs() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().write(scratch.path());
    let output = scratch.path().join("out");
    fs::create_dir(&output).unwrap();
    let mut most = 0;
    let appeared = appearing(&output, || {
        let mut child = split_command(&input, &output, &["-j2"]).stdout(Stdio::null()).spawn().unwrap();
        most = peak(&mut child, &output);
        assert!(child.wait().unwrap().success());
    });
    assert_eq!(appeared.into_iter().collect::<Vec<_>>(), names(&output), "other paths");
    assert_eq!(names(scratch.path()).len(), 2, "input and output directory");
    let outputs = used(&output);
    assert!(most > 0 && most <= outputs + AHEAD, "{most} bytes at the peak, {outputs} in the end");
}

#[test]
fn a_pipe_costs_its_own_bytes_besides() {
    let scratch = tempfile::tempdir().unwrap();
    let wheel = wheel();
    let bytes = wheel.bytes();
    let output = scratch.path().join("out");
    fs::create_dir(&output).unwrap();
    let mut most = 0;
    let appeared = appearing(&output, || {
        let name = wheel.file_name();
        let mut child = split_command(Path::new("-"), &output, &["-j2", "--input-name", &name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let length = bytes.len() as u64;
        let feeder = thread::spawn(move || pipe.write_all(&bytes).unwrap());
        most = peak(&mut child, &output).saturating_sub(length);
        feeder.join().unwrap();
        assert!(child.wait().unwrap().success());
    });
    assert_eq!(appeared.into_iter().collect::<Vec<_>>(), names(&output), "other paths");
    let outputs = used(&output);
    assert!(
        most <= outputs + AHEAD,
        "{most} bytes at the peak besides the spooled pipe, {outputs} in the end"
    );
}
