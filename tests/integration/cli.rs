//! The command line: defaults, the Python tool's options, verbosity, exit codes, Ctrl-C.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::golden::golden;
use crate::support::run::{demo, fatwheel, names, refuse, split, split_built, split_command, texts};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::zip_builder::ZipMember;

#[test]
fn a_newcomer_gives_input_and_directory_only() {
    let split = split(&demo(), &[]);
    assert_eq!(
        split.names(),
        [
            "amd_fatdemo_device_gfx1100-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "amd_fatdemo_device_gfx1201-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "amd_fatdemo_device_gfx90a-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "amd_fatdemo_device_gfx942-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl",
        ]
    );
    let device = split.starting("amd_fatdemo_device_gfx942");
    assert!(device.has("fatdemo/.kpack/fatdemo_gfx942.kpack"), "the overlay root was found");
    // Nothing but where the other per-GPU files are.
    assert_eq!(
        split.stderr,
        "warning: 10 file(s) for single GPUs, such as fatdemo/lib/hipblaslt/library/gfx942/extop.co, stay in the host \
         wheel; --wheel-type or --databases moves them to the device wheels\n"
    );
}

#[test]
fn the_python_tools_command_line() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("dist");
    let mut command = fatwheel();
    command.args(["split", "--input"]).arg(demo()).arg("--output-dir").arg(&output);
    command.args(["--device-package-prefix", "amd-torch-device", "--overlay-root", "fatdemo/"]);
    command.args(["--wheel-type", "torch-fat"]);
    command.args(["--device-requires-dist", "rocm-sdk-device-@GFXARCH@ == 7.14", "numpy"]);
    command.args(["--compression", "zstd", "--compression-level", "5", "-j", "2", "--verbose"]);
    command.args(["--output-format", "wheel", "--tmp-dir"]).arg(scratch.path().join("unused"));
    command.args(["--clang-offload-bundler", "/nonexistent/clang-offload-bundler"]);
    command.args(["--generate-variant-wheel", "--variant-label", "rocm"]);
    let done = command.output().unwrap();
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(0), "{stderr}");
    assert_eq!(
        names(&output),
        [
            "amd_torch_device_gfx1100-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "amd_torch_device_gfx1201-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "amd_torch_device_gfx90a-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "amd_torch_device_gfx942-1.0-py3-none-manylinux_2_34_x86_64.whl",
            "fatdemo-1.0-py3-none-manylinux_2_34_x86_64-rocm.whl",
            "fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl",
        ]
    );
    assert!(!scratch.path().join("unused").exists(), "--tmp-dir is accepted and unused");
}

#[test]
fn summary_table() {
    let quiet = split(&demo(), &["-q", "--wheel-type", "torch-fat", "-j1"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let normal = split(&demo(), &["--wheel-type", "torch-fat", "-j1"]);
    golden("summary.txt", &normal.stdout);
    let verbose = split(&demo(), &["-v", "--wheel-type", "torch-fat", "-j1"]);
    golden("summary_verbose.txt", &verbose.stdout);
    // The golden sizes are those of the files.
    for name in normal.names() {
        let size = fs::metadata(normal.output().join(&name)).unwrap().len() as f64 / 1024.0;
        let size = format!("{size:.1} KiB"); // all have two digits before the point
        assert!(normal.stdout.contains(&format!(" {size}\n")), "{name} has {size}");
    }
}

#[test]
fn quiet_keeps_warnings_to_itself_and_verbose_excludes_it() {
    let wheel =
        WheelBuilder::new("warned", "1").file("warned/a.so", FatElf::new().code(&[("gfx942", b"x")]).build());
    let wheel = wheel.info("RECORD.jws", "signature");
    assert!(split_built(&wheel, &[]).stderr.starts_with("warning: "));
    assert_eq!(split_built(&wheel, &["-q"]).stderr, "");
    refuse(&demo(), &["-q", "-v"], 2);
}

#[test]
fn errors_are_said_even_when_quiet() {
    let wheel = WheelBuilder::new("plain", "1").file("plain/a.py", "");
    let scratch = tempfile::tempdir().unwrap();
    let stderr = refuse(&wheel.write(scratch.path()), &["-q"], 1);
    assert!(stderr.contains("no fat binaries found") && stderr.contains("hint: "), "{stderr}");
}

#[test]
fn usage_errors_exit_with_2() {
    for (arguments, said) in [
        (&["--no-such-option"][..], "--no-such-option"),
        (&["--compression-level", "23"], "23"),
        (&["--jobs", "0"], "0"),
        (&["--overlay-root", "missing"], "does not exist in the wheel; its directories are fatdemo"),
        (&["--overlay-root", "../fatdemo"], "is not a directory of the wheel"),
        (&["--databases", "rocblaz"], "rocblaz"),
        (&["--device-files", "hsa/*.co"], "{arch}"),
        (&["--archs", "gfx900"], "gfx1100, gfx1201, gfx90a, gfx942"),
        (&["--archs", ""], "names no architecture"),
        (&["--device-package-prefix", "a b"], "a b"),
        (&["--device-requires-dist", "=="], "=="),
        (&["--generate-variant-wheel", "--variant-label", "Not/A-Label"], "Not/A-Label"),
    ] {
        let stderr = refuse(&demo(), arguments, 2);
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    let done =
        fatwheel().env("SOURCE_DATE_EPOCH", "yesterday").arg("split").arg(demo()).args(["-o", "x"]).output();
    assert_eq!(done.unwrap().status.code(), Some(2));
}

#[test]
fn several_directories_with_fat_binaries_are_listed_with_their_sizes() {
    let library = FatElf::new().code(&[("gfx942", b"x")]).build();
    let size = library.len();
    let wheel = WheelBuilder::new("two", "1").file("one/a.so", library.clone()).file("two/a.so", library);
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel.write(scratch.path());
    let stderr = refuse(&input, &[], 2);
    for line in [format!("one: 1 fat binaries, {size} bytes"), format!("two: 1 fat binaries, {size} bytes")] {
        assert!(stderr.contains(&line) && stderr.contains("--overlay-root"), "{stderr}");
    }
    // With a choice, the other one stays whole, and that is said.
    let split = split(&input, &["--overlay-root", "one"]);
    assert!(split.stderr.contains("two/a.so: a fat binary outside the overlay root one"), "{}", split.stderr);
    assert_eq!(split.wheel("two-1-py3-none-linux_x86_64.whl").data("two/a.so").len(), size);
}

#[test]
fn help_and_version_are_no_errors() {
    for (arguments, said) in [
        (&["--version"][..], concat!("fatwheel ", env!("CARGO_PKG_VERSION"))),
        (&["split", "--help"], "130 interrupted"),
    ] {
        let done = fatwheel().args(arguments).output().unwrap();
        let (stdout, stderr) = texts(&done);
        assert_eq!((done.status.code(), stderr.as_str()), (Some(0), ""));
        assert!(stdout.contains(said), "{stdout}");
    }
}

#[test]
fn a_closed_standard_output_is_no_failure() {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = split_command(&demo(), &scratch.path().join("out"), &["-v"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(names(&scratch.path().join("out")).len(), 5);
}

#[test]
fn no_bar_and_no_colour_without_a_terminal() {
    let split = split(&demo(), &["--wheel-type", "torch-fat"]);
    assert!(!split.stdout.contains('\x1b') && split.stderr.is_empty());
}

/// A wheel whose split takes many seconds: noise that is compressed at the highest level by one thread.
pub fn long_work() -> WheelBuilder {
    let mut library = FatElf::new();
    for unit in 0..60 {
        library = library.unit(bundle(&[("gfx942", &noise(unit, 512 << 10))]));
    }
    WheelBuilder::new("long", "1").member(ZipMember::new("long/a.so", library.build()).stored())
}

#[cfg(unix)]
fn interrupted_by(signal: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let input = long_work().write(scratch.path());
    let output = scratch.path().join("new/out");
    let arguments = ["-j1", "--compression-level", "22"];
    let mut child = split_command(&input, &output, &arguments)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The second pass has begun once the output directory is there.
    let start = Instant::now();
    while !output.exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "the second pass never began");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(child.try_wait().unwrap().is_none(), "it was done before the signal");
    let killed =
        Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let signalled = Instant::now();
    let done = child.wait_with_output().unwrap();
    let (stdout, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(130), "{stdout}{stderr}");
    assert!(stderr.contains("interrupted; nothing was written"), "{stderr}");
    assert!(signalled.elapsed() < Duration::from_secs(10), "{:?}", signalled.elapsed());
    assert!(!scratch.path().join("new").exists(), "directories that were made for the split are gone");
    assert_eq!(names(scratch.path()), [input.file_name().unwrap().to_str().unwrap()]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing() {
    interrupted_by("INT");
}

#[cfg(unix)]
#[test]
fn sigterm_leaves_nothing() {
    interrupted_by("TERM");
}

/// The terminal is closed, or the connection to it.
#[cfg(unix)]
#[test]
fn sighup_leaves_nothing() {
    interrupted_by("HUP");
}

#[test]
fn the_input_is_not_replaced_by_accident() {
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join(demo().file_name().unwrap());
    fs::copy(demo(), &input).unwrap();
    let before = fs::read(&input).unwrap();
    let done = split_command::<&str>(&input, scratch.path(), &[]).output().unwrap();
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(2));
    assert!(stderr.contains("the host wheel would replace the input") && stderr.contains("--replace-input"));
    assert_eq!(fs::read(&input).unwrap(), before);
    assert_eq!(names(scratch.path()).len(), 1);
    let done = split_command(&input, scratch.path(), &["--replace-input"]).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", texts(&done).1);
    assert_ne!(fs::read(&input).unwrap(), before);
    assert_eq!(names(scratch.path()).len(), 5);
}

#[test]
fn an_older_host_wheel_of_the_same_name_is_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    fs::create_dir(&output).unwrap();
    let host = output.join(demo().file_name().unwrap());
    fs::write(&host, "from before").unwrap();
    fs::write(output.join("other.txt"), "not ours").unwrap();
    assert_eq!(split_command::<&str>(&demo(), &output, &[]).output().unwrap().status.code(), Some(0));
    assert!(fs::read(&host).unwrap().starts_with(b"PK"));
    assert_eq!(fs::read(output.join("other.txt")).unwrap(), b"not ours");
    assert_eq!(names(&output).len(), 6);
}
