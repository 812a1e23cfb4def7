//! What is said when something is wrong or odd: once, in the right place, with a hint that helps.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::bundle_builder::BundleBuilder;
use crate::support::elf_builder::{FatElf, noise};
use crate::support::run::{
    demo, fatwheel, names, refuse, refuse_bad, refuse_built, split_built, split_command, texts,
};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::zip_builder::ZipMember;

fn fat() -> WheelBuilder {
    let library = FatElf::new().code(&[("gfx942", &noise(1, 9000))]).build();
    WheelBuilder::new("odd", "1").member(ZipMember::new("odd/lib/a.so", library))
}

/// A wheel in which `new` stands in the place of the first `old`.
fn patched(old: &[u8], new: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let path = fat().file("odd/text.txt", "text").write(scratch.path());
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    bytes[at..at + new.len()].copy_from_slice(new);
    fs::write(&path, bytes).unwrap();
    (scratch, path)
}

#[test]
fn keep_unsupported_is_only_offered_where_it_helps() {
    const OPTION: &str = "--keep-unsupported";
    // A binary: an entry of a kind that nobody knows.
    let unit = BundleBuilder::new().entry("openmp-amdgcn-amd-amdhsa--gfx942", b"code").build();
    let library = FatElf::new().unit(unit).build();
    let binary = WheelBuilder::new("odd", "1").member(ZipMember::new("odd/lib/a.so", library));
    refuse_built(&binary, &[], &[OPTION]);
    // The wheel itself.
    let wheel = fat().wheel_file("Wheel-Version: 2.0\nTag: py3-none-any\n");
    let said = refuse_built(&wheel, &[], &["WHEEL", "report"]);
    assert!(!said.contains(OPTION), "{said}");
}

#[test]
fn a_file_that_record_lists_and_the_wheel_lacks_is_a_warning() {
    let complete = split_built(&fat(), &[]);
    assert!(!complete.stderr.contains("does not have"), "{}", complete.stderr);
    let rows = "odd/gone.py,,\nodd/lost.py,,\nodd-1.dist-info/RECORD,,\n";
    let split = split_built(&fat().record(rows), &[]);
    assert!(
        split.stderr.contains("RECORD lists odd/gone.py and 1 other file(s), which the wheel does not have"),
        "{}",
        split.stderr
    );
}

#[test]
fn a_pattern_that_matches_nothing_is_a_warning() {
    let wheel = fat().file("odd/hsa/gfx942/a.co", "code");
    let patterns = ["--device-files", "hsa/{arch}/*.co", "--device-files", "hsb/{arch}/*.co"];
    let split = split_built(&wheel, &patterns);
    assert_eq!(split.stderr, "warning: --device-files \"hsb/{arch}/*.co\" matches no file below odd\n");
}

#[test]
fn files_for_single_gpus_that_stay_are_a_warning() {
    let wheel = fat().file("odd/lib/rocblas/library/Kernels_gfx942.co", "code").file("odd/gfx942.py", "");
    let said = split_built(&wheel, &[]).stderr;
    assert!(
        said.contains("1 file(s) for single GPUs, such as odd/lib/rocblas/library/Kernels_gfx942.co"),
        "{said}"
    );
    for arguments in [["--databases", "aotriton"], ["--wheel-type", "torch-fat"]] {
        assert_eq!(split_built(&wheel, &arguments).stderr, "", "{arguments:?}");
    }
    assert_eq!(split_built(&fat(), &[]).stderr, "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_printed_is_a_failure() {
    for arguments in [&["--json"][..], &[]] {
        let scratch = tempfile::tempdir().unwrap();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = split_command(&demo(), &scratch.path().join("out"), arguments);
        let done = command.stdout(full).output().unwrap();
        let (_, stderr) = texts(&done);
        assert_eq!(done.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("standard output") && stderr.contains("the wheels themselves are complete"));
        assert_eq!(names(&scratch.path().join("out")).len(), 5);
    }
}

#[test]
fn a_wrong_input_name_is_a_wrong_command_line() {
    for name in ["odd.txt", "a/odd-1-py3-none-any.whl", "odd-1.whl"] {
        let said = refuse(&demo(), &["--input-name", name], 2);
        assert!(
            said.starts_with("error: ") && said.contains("--input-name") && said.contains(name),
            "{said}"
        );
    }
}

#[test]
fn the_file_is_named_once() {
    let metadata = fat().metadata("Version: 1\n\n");
    let said = refuse_built(&metadata, &[], &["odd-1.dist-info/METADATA: header fields", "no Name"]);
    assert_eq!(said.matches("METADATA").count(), 1, "{said}");
    let version = fat().metadata("Metadata-Version: x\nName: odd\nVersion: 1\n\n");
    let said = refuse_built(&version, &[], &["odd-1.dist-info/METADATA: header fields"]);
    assert_eq!(said.matches("METADATA").count(), 1, "{said}");
    let record = fat().record("\"odd/a,,\n");
    let said = refuse_built(&record, &[], &["odd-1.dist-info/RECORD: rows"]);
    assert_eq!(said.matches("RECORD").count(), 1, "{said}");
    let wheel = fat().wheel_file("Wheel-Version: 1.0\n");
    let said = refuse_built(&wheel, &[], &["odd-1.dist-info/WHEEL: header fields"]);
    assert_eq!(said.matches("WHEEL").count(), 1, "{said}");
}

#[test]
fn two_names_of_one_member_are_both_said() {
    let (_scratch, path) = patched(b"odd/text.txt", b"odd/next.txt");
    refuse_bad(&path, &[], &["local header", "odd/next.txt", "odd/text.txt"]);
}

/// A split from a pipe, which is sent `signal` before it gets any bytes.
#[cfg(unix)]
fn signalled(before: &str) -> (std::process::Output, Vec<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    let script = format!("{before} exec \"$0\" split - -q -o \"$1\"");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .arg(fatwheel().get_program())
        .arg(&output)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    while !output.exists() {
        assert!(start.elapsed().as_secs() < 30, "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    std::thread::sleep(std::time::Duration::from_millis(200));
    let sent = child.stdin.take().unwrap().write_all(&fs::read(demo()).unwrap());
    let done = child.wait_with_output().unwrap();
    assert!(sent.is_ok() == done.status.success());
    (done, if output.exists() { names(&output) } else { Vec::new() })
}

/// Who starts it with `nohup` wants it to go on.
#[cfg(unix)]
#[test]
fn an_ignored_sighup_stays_ignored() {
    let (done, names) = signalled("");
    assert_eq!((done.status.code(), names.len()), (Some(130), 0), "{}", texts(&done).1);
    let (done, names) = signalled("trap '' HUP;");
    assert_eq!((done.status.code(), names.len()), (Some(0), 5), "{}", texts(&done).1);
}

/// Buffers whose size the wheel says: no memory for one is an error like others.
#[cfg(target_os = "linux")]
#[test]
fn no_memory_is_an_error_of_the_environment() {
    let scratch = tempfile::tempdir().unwrap();
    let text = "Metadata-Version: 2.1\nName: odd\nVersion: 1\n\n".to_owned() + &" ".repeat(200 << 20);
    let input = fat().metadata(text).write(scratch.path());
    // The map of the wheel is small, since blanks compress well.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 180000; exec \"$@\"", "sh"]).arg(fatwheel().get_program());
    let done =
        command.args(["split", "-j1", "-o"]).arg(scratch.path().join("out")).arg(input).output().unwrap();
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("no memory for") && stderr.contains("METADATA"), "{stderr}");
}
