//! The library: report, progress, interrupt, errors.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fatwheel::{ErrorKind, Progress, SplitOptions, SplitReport};

use crate::support::elf_builder::{FatElf, noise};
use crate::support::run::{demo, names};
use crate::support::wheel_builder::WheelBuilder;

/// Options for a split of the demo wheel into a directory of its own.
fn options() -> (tempfile::TempDir, SplitOptions) {
    let scratch = tempfile::tempdir().unwrap();
    let mut options = SplitOptions::new(demo(), scratch.path().join("out"));
    options.durable = false;
    options.jobs = 2;
    (scratch, options)
}

#[test]
fn the_report_says_what_is_there() {
    let (_scratch, mut options) = options();
    options.databases = vec!["torch-fat".to_owned()];
    let report: SplitReport = fatwheel::split(&options).unwrap();
    assert_eq!(report.input_size, fs::metadata(demo()).unwrap().len());
    assert!(!report.already_split && report.variant.is_none() && report.warnings.is_empty());
    let size = |path: &std::path::Path| fs::metadata(path).unwrap().len();
    assert_eq!(report.host.size, size(&report.host.path));
    assert_eq!(
        report.split_binaries,
        ["fatdemo/bin/fatdemo", "fatdemo/lib/libfatdemo.so", "fatdemo/lib/libfatdemo_compressed.so"]
    );
    let keys: Vec<&str> = report.devices.iter().map(|device| device.key.as_str()).collect();
    assert_eq!(keys, ["gfx1100", "gfx1201", "gfx90a", "gfx942"]);
    for device in &report.devices {
        assert_eq!(device.output.size, size(&device.output.path));
        assert_eq!(device.name, format!("amd-fatdemo-device-{}", device.key));
        let wheel = crate::support::wheel_reader::Wheel::open(&device.output.path);
        let kpacks = wheel.kpacks();
        assert_eq!(kpacks.len(), 1);
        let kpack = kpacks.values().next().unwrap();
        assert_eq!(device.code_objects, kpack.objects.len());
        assert_eq!(device.targets, kpack.arches());
        assert_eq!(device.files, wheel.members.len() - 5, "all but archive and .dist-info");
    }
    assert_eq!(names(&options.output_dir).len(), 5);
}

/// Notes every call.
#[derive(Debug, Default)]
struct Watcher {
    total: AtomicU64,
    updates: Mutex<Vec<u64>>,
}

impl Progress for Watcher {
    fn start(&self, total: u64) {
        assert_eq!(self.total.swap(total, Ordering::SeqCst), 0, "started once");
    }

    fn update(&self, done: u64) {
        self.updates.lock().unwrap().push(done);
    }
}

#[test]
fn progress_reaches_its_total() {
    for jobs in [1, 4] {
        let (_scratch, mut options) = options();
        let watcher = Arc::new(Watcher::default());
        options.progress = Some(Arc::clone(&watcher) as Arc<_>);
        options.jobs = jobs;
        fatwheel::split(&options).unwrap();
        let total = watcher.total.load(Ordering::SeqCst);
        let updates = watcher.updates.lock().unwrap();
        assert!(total > 0 && updates.iter().all(|&done| done <= total), "{total}: {updates:?}");
        let last = *updates.iter().max().unwrap();
        assert!(last * 100 >= total * 95, "it stops at {last} of {total}");
    }
}

/// Sets the flag when a share of the work is done.
#[derive(Debug)]
struct StopAt {
    share: f64,
    total: AtomicU64,
    flag: Arc<AtomicBool>,
}

impl Progress for StopAt {
    fn start(&self, total: u64) {
        self.total.store(total, Ordering::SeqCst);
        if self.share == 0.0 {
            self.flag.store(true, Ordering::SeqCst);
        }
    }

    fn update(&self, done: u64) {
        if done as f64 >= self.share * self.total.load(Ordering::SeqCst) as f64 {
            self.flag.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing() {
    let elf =
        FatElf::new().code(&[("gfx942", &noise(1, 3_000_000)), ("gfx1100", &noise(2, 3_000_000))]).build();
    let wheel = WheelBuilder::new("int", "1").file("int/a.so", elf.clone()).file("int/b.so", elf);
    let wheel = wheel.file("int/c.bin", noise(3, 2_000_000));
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    for share in [0.0, 0.1, 0.4, 0.55, 0.7, 0.8] {
        for (jobs, existing) in [(1, false), (4, true)] {
            let output = scratch.path().join(format!("out{share}-{jobs}"));
            if existing {
                fs::create_dir(&output).unwrap();
                fs::write(output.join("old"), "").unwrap();
            }
            let mut options = SplitOptions::new(&input, &output);
            let flag = Arc::new(AtomicBool::new(false));
            options.interrupt = Some(Arc::clone(&flag));
            options.progress = Some(Arc::new(StopAt { share, total: AtomicU64::new(0), flag }));
            options.jobs = jobs;
            options.durable = false;
            let error = fatwheel::split(&options).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Interrupted), "{share} {jobs}: {error}");
            if existing {
                assert_eq!(names(&output), ["old"]);
            } else {
                assert!(!output.exists());
            }
        }
    }
}

#[test]
fn errors_have_kind_member_and_hint() {
    let scratch = tempfile::tempdir().unwrap();
    let wheel = WheelBuilder::new("err", "1").file("err/a.py", "text").wrong_record_for("err/a.py");
    let input = wheel.write(scratch.path());
    let error = fatwheel::split(&SplitOptions::new(&input, scratch.path().join("out"))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Input(fault) if fault.place == "RECORD"));
    assert_eq!(error.member(), Some("err/a.py"));
    assert!(error.hint().unwrap().contains("--no-verify-record"));
    assert!(error.to_string().starts_with(&format!("{}: err/a.py: RECORD: ", input.display())), "{error}");
    let error = fatwheel::split(&SplitOptions::new("/nonexistent", scratch.path().join("out"))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }));
    let (_scratch, mut options) = options();
    options.overlay_root = Some("nowhere".to_owned());
    assert!(matches!(fatwheel::split(&options).unwrap_err().kind(), ErrorKind::Usage(_)));
}

#[test]
fn two_splits_at_once_in_one_directory() {
    let (_scratch, options) = options();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| fatwheel::split(&options).unwrap())).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().devices.len(), 4));
    });
    assert_eq!(names(&options.output_dir).len(), 5);
    for name in names(&options.output_dir) {
        crate::support::wheel_reader::Wheel::open(&options.output_dir.join(name));
    }
}
