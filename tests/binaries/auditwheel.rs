//! `auditwheel repair`, run for real: it copies the runtime into the wheel, and with patchelf gives every library another
//! name to need and a path to find it. What it leaves is split, compared and loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::elf_compare;
use super::inspectors::outside_checker;
use super::loading::{Fate, load};
use super::rewrite::{Fixture, fixture_root, fixtures, marker, rewrite_fat};
use super::tools::{P14, P17, P19, find_or_skip, in_parallel, run, write};

/// A wheel with `fixtures` in `demo/`, repaired with this patchelf and unpacked again; returns where.
fn repaired(
    fixtures: &[Fixture],
    python: &Path,
    auditwheel: &Path,
    patchelf: &Path,
    scratch: &Path,
) -> PathBuf {
    let tree = scratch.join("tree");
    fs::create_dir_all(tree.join("demo")).unwrap();
    fs::create_dir_all(tree.join("demo-1.0.dist-info")).unwrap();
    let mut record = String::new();
    for fixture in fixtures {
        write(&tree.join("demo").join(&fixture.name), &fixture.bytes);
        record += &format!("demo/{},,\n", fixture.name);
    }
    let info = [
        ("METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"),
        ("WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"),
        ("RECORD", &record),
    ];
    for (name, text) in info {
        fs::write(tree.join("demo-1.0.dist-info").join(name), text).unwrap();
    }
    let succeed = |command: &mut Command| {
        let output = run(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
    };
    let wheel = "../demo-1.0-py3-none-linux_x86_64.whl";
    let pack = ["-m", "zipfile", "-c", wheel, "demo", "demo-1.0.dist-info"];
    succeed(Command::new(python).args(pack).current_dir(&tree));
    let path = std::env::var("PATH").unwrap();
    succeed(
        Command::new(auditwheel)
            .args(["repair", "-w", "../repaired", wheel])
            .current_dir(&tree)
            .env("PATH", format!("{}:{path}", patchelf.parent().unwrap().display()))
            .env("LD_LIBRARY_PATH", fixture_root().join("stub")),
    );
    let made = fs::read_dir(scratch.join("repaired")).unwrap().next().unwrap().unwrap().path();
    let unpacked = scratch.join("unpacked");
    succeed(Command::new(python).args(["-m", "zipfile", "-e"]).arg(made).arg(&unpacked));
    unpacked.join("demo")
}

#[test]
fn what_auditwheel_repaired_can_be_split() {
    let (Some(auditwheel), Some(python)) =
        (find_or_skip("FATWHEEL_AUDITWHEEL"), find_or_skip("FATWHEEL_PYTHON"))
    else {
        return;
    };
    let mut fixtures = fixtures("elf");
    // Those that need the runtime, of the machine that auditwheel runs on.
    fixtures.retain(|fixture| !["static_", "libshared_"].iter().any(|start| fixture.name.starts_with(start)));
    for patchelf in [P14, P17, P19].into_iter().filter_map(find_or_skip) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = repaired(&fixtures, &python, &auditwheel, &patchelf, scratch.path());
        let problems = in_parallel(&fixtures, |fixture| {
            let (name, file) = (&fixture.name, directory.join(&fixture.name));
            let before = fs::read(&file).unwrap();
            assert_ne!(before, fixture.bytes, "{name}: auditwheel has not changed it");
            write(&file, &before);
            let (input, old_log) = load(name, &file).unwrap();
            assert_eq!(input, Fate::Loads, "{name} as {} left it", patchelf.display());
            let marker = marker(name);
            let after = rewrite_fat(name, &before, &marker);
            let mut problems = elf_compare::compare(&before, &after, &marker);
            // patchelf 0.17 leaves .dynamic of programs behind the end of its segment: not our doing.
            let input = outside_checker("elf", name, &before, &before).unwrap_or_default();
            let ours = outside_checker("elf", name, &before, &after).unwrap_or_default();
            let known: Vec<&str> = input.lines().collect();
            problems.extend(ours.lines().filter(|line| !known.contains(line)).map(str::to_owned));
            write(&file, &after);
            let (ours, new_log) = load(name, &file).unwrap();
            if ours != Fate::Loads || old_log != new_log || new_log.is_empty() {
                problems.push(format!("{ours:?} {new_log:?}"));
            }
            problems.into_iter().map(|problem| format!("{name}: {problem}")).collect::<Vec<_>>()
        });
        let problems = problems.concat();
        assert!(problems.is_empty(), "{}\n{}", patchelf.display(), problems.join("\n"));
    }
}
