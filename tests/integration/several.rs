//! Several wheels in one run: each is all or nothing by itself, and the exit code tells of the first failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::elf_builder::FatElf;
use crate::support::run::{fatwheel, names, texts};
use crate::support::wheel_builder::WheelBuilder;

fn good(name: &str) -> WheelBuilder {
    let library = FatElf::new().code(&[("gfx942", name.as_bytes())]).build();
    WheelBuilder::new(name, "1").file(&format!("{name}/a.so"), library)
}

fn run(inputs: &[&Path], output: &Path, arguments: &[&str]) -> Output {
    let mut command = fatwheel();
    command.arg("split").args(inputs).arg("-o").arg(output).arg("--no-sync").args(arguments);
    command.output().unwrap()
}

/// Two good wheels with a bad one between them.
fn inputs(directory: &Path) -> [PathBuf; 3] {
    [
        good("one").write(directory),
        good("bad").wrong_record_for("bad/a.so").write(directory),
        good("two").write(directory),
    ]
}

const OUTPUTS: [&str; 4] = [
    "amd_one_device_gfx942-1-py3-none-linux_x86_64.whl",
    "amd_two_device_gfx942-1-py3-none-linux_x86_64.whl",
    "one-1-py3-none-linux_x86_64.whl",
    "two-1-py3-none-linux_x86_64.whl",
];

#[test]
fn wheels_of_one_run_are_as_they_would_be_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, _, two] = inputs(scratch.path());
    let (together, alone) = (scratch.path().join("together"), scratch.path().join("alone"));
    let done = run(&[&one, &two], &together, &["-j2"]);
    let (stdout, stderr) = texts(&done);
    assert_eq!((done.status.code(), stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("host    one-1-") && stdout.contains("\n\nhost    two-1-"), "{stdout}");
    for input in [&one, &two] {
        assert_eq!(run(&[input], &alone, &["-j1"]).status.code(), Some(0));
    }
    assert_eq!(names(&together), OUTPUTS);
    for name in OUTPUTS {
        assert_eq!(fs::read(together.join(name)).unwrap(), fs::read(alone.join(name)).unwrap(), "{name}");
    }
}

#[test]
fn one_bad_wheel_does_not_take_the_others_with_it() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    let [one, bad, two] = inputs(scratch.path());
    let done = run(&[&one, &bad, &two], &output, &[]);
    let (stdout, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(1), "{stderr}");
    assert_eq!(names(&output), OUTPUTS);
    assert!(stdout.contains("host    one-1-") && stdout.contains("host    two-1-"), "{stdout}");
    assert!(stderr.contains(&format!("error: {}: bad/a.so: ", bad.display())), "{stderr}");
    assert!(
        stderr.ends_with(&format!("error: 1 of 3 wheels were not split: {}\n", bad.display())),
        "{stderr}"
    );
}

#[test]
fn the_exit_code_is_that_of_the_first_failure() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, bad, _] = inputs(scratch.path());
    let missing = scratch.path().join("missing-1-py3-none-any.whl");
    for (order, code) in [([&missing, &bad, &one], 3), ([&bad, &missing, &one], 1)] {
        let output = scratch.path().join(format!("out{code}"));
        let done = run(&order.map(PathBuf::as_path), &output, &[]);
        assert_eq!(done.status.code(), Some(code), "{}", texts(&done).1);
        assert_eq!(names(&output).len(), 2);
    }
}

#[test]
fn no_wheel_replaces_an_output_of_another_one() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, _, two] = inputs(scratch.path());
    let output = scratch.path().join("out");
    // Both would have a device wheel of the same name, with different files.
    let done = run(&[&one, &two], &output, &["--device-package-prefix", "same"]);
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("same_gfx942-1-py3-none-linux_x86_64.whl is the name of another output"),
        "{stderr}"
    );
    let ones = ["one-1-py3-none-linux_x86_64.whl", "same_gfx942-1-py3-none-linux_x86_64.whl"];
    assert_eq!(names(&output), ones);
    // The same wheel twice is the same mistake.
    let done = run(&[&one, &one], &scratch.path().join("twice"), &[]);
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn warnings_name_their_wheel() {
    let scratch = tempfile::tempdir().unwrap();
    let one = good("one").write(scratch.path());
    let two = good("two").info("RECORD.jws", "{}").write(scratch.path());
    let (_, stderr) = texts(&run(&[&one, &two], &scratch.path().join("out"), &[]));
    assert!(
        stderr.starts_with(&format!("warning: {}: two-1.dist-info/RECORD.jws: ", two.display())),
        "{stderr}"
    );
}

#[test]
fn json_has_an_object_for_each_wheel() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, bad, two] = inputs(scratch.path());
    let done = run(&[&one, &bad, &two], &scratch.path().join("out"), &["--json"]);
    let objects: Vec<serde_json::Value> =
        serde_json::Deserializer::from_slice(&done.stdout).into_iter().map(Result::unwrap).collect();
    assert_eq!(objects.len(), 3);
    for (object, input) in objects.iter().zip([&one, &bad, &two]) {
        assert_eq!(object["input"], input.to_str().unwrap());
    }
    assert_eq!(objects[1]["exit_code"], 1);
    assert!(objects[1]["error"].as_str().unwrap().contains("bad/a.so"));
    assert!(objects[0]["host"]["path"].as_str().unwrap().ends_with("one-1-py3-none-linux_x86_64.whl"));
}

#[test]
fn a_pipe_has_to_be_the_only_input() {
    let scratch = tempfile::tempdir().unwrap();
    let one = good("one").write(scratch.path());
    let done = run(&[&one, Path::new("-")], &scratch.path().join("out"), &[]);
    assert_eq!(done.status.code(), Some(2));
    assert!(!scratch.path().join("out").exists());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_run_and_keeps_what_is_done() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let scratch = tempfile::tempdir().unwrap();
    let [one, _, two] = inputs(scratch.path());
    let long = crate::cli::long_work().write(scratch.path());
    let output = scratch.path().join("out");
    let mut command = fatwheel();
    command.arg("split").args([&one, &long, &two]).arg("-o").arg(&output);
    command.args(["--no-sync", "-j1", "--compression-level", "22"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !output.join(OUTPUTS[2]).exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "the first wheel was never done");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let done = child.wait_with_output().unwrap();
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(130), "{stderr}");
    let last = format!("error: 2 of 3 wheels were not split: {}, {}\n", long.display(), two.display());
    assert!(stderr.ends_with(&last), "{stderr}");
    assert_eq!(names(&output), [OUTPUTS[0], OUTPUTS[2]]);
}
