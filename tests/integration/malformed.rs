//! Bad input and a bad environment: the exit code, a message that names wheel, member and remedy, and an output
//! directory that is as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::bundle_builder::{BundleBuilder, CcobMethod, ccob, section};
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::run::{
    demo, fixture, names, refuse, refuse_bad, refuse_built, split, split_built, split_command, texts,
};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::zip_builder::{ZipMember, zip};

/// What is spoilt, and how.
type Spoil = (&'static str, fn(&mut Vec<u8>));

fn library() -> Vec<u8> {
    FatElf::new().code(&[("gfx942", b"code for gfx942"), ("gfx1100", b"code for gfx1100")]).build()
}

fn wheel() -> WheelBuilder {
    WheelBuilder::new("bad", "1").file("bad/__init__.py", "x = 1\n").file("bad/lib/a.so", library())
}

/// A wheel whose only library is `elf`.
fn with(elf: Vec<u8>) -> WheelBuilder {
    WheelBuilder::new("bad", "1").file("bad/lib/a.so", elf)
}

/// Writes `bytes` as a wheel; the directory goes with the first value.
fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("bad-1-py3-none-any.whl");
    fs::write(&path, bytes).unwrap();
    (scratch, path)
}

#[test]
fn the_builders_wheel_is_good() {
    // Or else the tests below could fail for another reason than theirs.
    assert_eq!(split_built(&wheel(), &[]).names().len(), 3);
}

#[test]
fn not_a_zip() {
    let (_scratch, path) = written(&noise(1, 5000));
    refuse_bad(&path, &[], &["no zip archive"]);
    let (_scratch, path) = written(b"short");
    refuse_bad(&path, &[], &["5 bytes"]);
    let (_scratch, path) = written(b"");
    refuse_bad(&path, &[], &["it is empty"]);
}

#[test]
fn truncated_zip() {
    let bytes = wheel().bytes();
    for length in [bytes.len() - 1, bytes.len() - 22, bytes.len() - 100, bytes.len() / 2, 100] {
        let (_scratch, path) = written(&bytes[..length]);
        let stderr = refuse_bad(&path, &[], &["download"]);
        assert!(stderr.contains("truncated") || stderr.contains("missing"), "{length}: {stderr}");
    }
}

#[test]
fn bytes_appended_or_inserted() {
    let bytes = wheel().bytes();
    let (_scratch, path) = written(&[bytes.as_slice(), b"appended"].concat());
    refuse_bad(&path, &[], &["appended"]);
    let (_scratch, path) = written(&[b"inserted", bytes.as_slice()].concat());
    refuse_bad(&path, &[], &["inserted"]);
}

#[test]
fn a_zip_that_is_no_wheel() {
    let (_scratch, path) = written(&zip(&[ZipMember::new("a/b.txt", "text")], b""));
    refuse_bad(&path, &[], &["no .dist-info directory", "is this really a wheel?"]);
}

#[test]
fn two_dist_info_directories() {
    let wheel =
        wheel().file("other-2.dist-info/METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 2\n");
    refuse_built(&wheel, &[], &["two .dist-info directories", "bad-1.dist-info", "other-2.dist-info"]);
}

#[test]
fn metadata_that_does_not_say_whose_it_is() {
    for (metadata, said) in [
        ("Metadata-Version: 2.1\nVersion: 1\n", "no Name field"),
        ("Metadata-Version: 2.1\nVersion: 1\n\nName: in the body\n", "no Name field"),
        ("Metadata-Version: 2.1\nName: bad\n", "no Version field"),
        ("Metadata-Version: 2.1\nName: bad\nName: worse\nVersion: 1\n", "two Name fields"),
        ("Metadata-Version: 2.1\nName: ../bad\nVersion: 1\n", "no distribution name"),
        ("Metadata-Version: 2.1\nName: bad\nVersion: 1/2\n", "no version"),
        ("Metadata-Version: new\nName: bad\nVersion: 1\n", "Metadata-Version"),
    ] {
        refuse_built(&wheel().metadata(metadata), &[], &["METADATA", said]);
    }
}

#[test]
fn missing_metadata_or_wheel_file() {
    for file in ["METADATA", "WHEEL"] {
        let members = wheel().no_record().members();
        let members: Vec<ZipMember> =
            members.into_iter().filter(|member| !member.name.ends_with(file)).collect();
        let (_scratch, path) = written(&zip(&members, b""));
        refuse_bad(&path, &[], &[&format!("bad-1.dist-info/{file}"), "missing"]);
    }
}

#[test]
fn wheel_file_of_another_generation() {
    refuse_built(&wheel().wheel_file("Wheel-Version: 2.0\nTag: py3-none-any\n"), &[], &["WHEEL", "2.0"]);
    refuse_built(&wheel().wheel_file("Wheel-Version: 1.0\n"), &[], &["WHEEL", "no Tag"]);
}

#[test]
fn crc_error_in_a_member() {
    let mut members = wheel().members();
    members[1].crc = Some(0x1234_5678);
    let (_scratch, path) = written(&zip(&members, b""));
    refuse_bad(&path, &[], &["bad/lib/a.so", "CRC-32", "12345678", "download the wheel again"]);
    // It is found in members that are only copied, too.
    let mut members = wheel().members();
    members[0].crc = Some(0);
    let (_scratch, path) = written(&zip(&members, b""));
    refuse_bad(&path, &[], &["bad/__init__.py", "CRC-32"]);
}

#[test]
fn damaged_deflate_stream() {
    let bytes = wheel().bytes();
    let name = b"bad/lib/a.so";
    let data = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    for (at, length) in [(0, 1), (40, 8)] {
        let mut damaged = bytes.clone();
        damaged[data + at..data + at + length].fill(0xff);
        let (_scratch, path) = written(&damaged);
        refuse_bad(&path, &[], &["bad/lib/a.so", "download the wheel again"]);
    }
}

#[test]
fn first_of_several_errors_by_member_wins_whatever_the_jobs() {
    let mut members = wheel().members();
    members[0].crc = Some(0);
    members[1].crc = Some(0);
    let (_scratch, path) = written(&zip(&members, b""));
    for jobs in ["-j1", "-j2", "-j8"] {
        refuse_bad(&path, &[jobs], &["bad/__init__.py"]);
    }
}

#[test]
fn record_mismatch() {
    let wheel = wheel().wrong_record_for("bad/__init__.py");
    let stderr = refuse_built(&wheel, &[], &["bad/__init__.py", "RECORD", "sha256", "--no-verify-record"]);
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    let split = split_built(&wheel, &["--no-verify-record"]);
    assert!(split.stderr.contains("warning: bad/__init__.py: its sha256 does not fit"), "{}", split.stderr);
    assert_eq!(split.names().len(), 3);
}

#[test]
fn record_with_a_wrong_size_or_nonsense() {
    let record = "bad/__init__.py,,7\nbad/lib/a.so,,\nbad-1.dist-info/METADATA,,\nbad-1.dist-info/WHEEL,,\n";
    refuse_built(&wheel().record(record), &[], &["bad/__init__.py", "it says 7 bytes, found 6"]);
    refuse_built(&wheel().record("bad/__init__.py,sha256=!!,6\n"), &[], &["bad-1.dist-info/RECORD"]);
}

#[test]
fn corrupt_compressed_bundles() {
    // Only a part of each byte is noise: entropy-coded, so that a changed byte breaks the stream.
    let code: Vec<u8> = noise(5, 100_000).iter().map(|byte| byte & 7).collect();
    let good = ccob(3, CcobMethod::Zstd, &bundle(&[("gfx942", &code)]));
    split_built(&with(FatElf::new().unit(good.clone()).build()), &[]);
    let broken: [Spoil; 4] = [
        ("the version", |bytes| bytes[4] = 9),
        ("the method", |bytes| bytes[6] = 7),
        ("the uncompressed size", |bytes| bytes[16] ^= 1),
        ("the stream", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 64].fill(0);
        }),
    ];
    for (what, spoil) in broken {
        let mut spoilt = good.clone();
        spoil(&mut spoilt);
        let stderr = refuse_built(&with(FatElf::new().unit(spoilt).build()), &[], &["bad/lib/a.so"]);
        assert!(stderr.contains("compressed offload bundle"), "{what}: {stderr}");
    }
}

#[test]
fn corrupt_compressed_bundle_of_the_second_pass_leaves_nothing_either() {
    // The stream breaks behind the entry table, so that only unbundling notices.
    let content = bundle(&[("gfx942", &noise(5, 3_000_000))]);
    let mut spoilt = ccob(2, CcobMethod::Zlib, &content);
    let length = spoilt.len();
    spoilt[length - 1000..length - 900].fill(0x55);
    for jobs in ["-j1", "-j4"] {
        let elf = FatElf::new().unit(bundle(&[("gfx1100", &noise(6, 500_000))])).unit(spoilt.clone());
        refuse_built(&with(elf.build()), &[jobs], &["bad/lib/a.so", "compressed offload bundle"]);
    }
}

#[test]
fn corrupt_plain_bundles() {
    // Without a host entry, the first one is the device's.
    let good = BundleBuilder::new().target("gfx942", b"code").build();
    let broken: [Spoil; 3] = [
        ("2^40 entries", |bytes| bytes[24..32].copy_from_slice(&(1u64 << 40).to_le_bytes())),
        ("an entry far away", |bytes| bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes())),
        ("a long ID", |bytes| bytes[48..56].copy_from_slice(&(1u64 << 50).to_le_bytes())),
    ];
    for (what, spoil) in broken {
        let mut spoilt = good.clone();
        spoil(&mut spoilt);
        let stderr = refuse_built(&with(FatElf::new().unit(spoilt).build()), &[], &["bad/lib/a.so"]);
        assert!(stderr.contains("offset 0x"), "{what}: {stderr}");
    }
}

#[test]
fn rubbish_between_bundles() {
    let first = bundle(&[("gfx942", b"code")]);
    let (mut bytes, starts) = section(&[first, bundle(&[("gfx942", b"more")])], 4096);
    bytes[starts[1] - 8..starts[1]].copy_from_slice(b"rubbish!");
    refuse_built(&with(FatElf::new().unit(bytes).build()), &[], &["bad/lib/a.so", "rubbish!", "0x1ff8"]);
}

#[test]
fn wrapper_that_points_nowhere() {
    for (behind, said) in [
        (64, "where no offload bundle starts"),
        (-4096, "must be in .hip_fatbin"),
        (1 << 40, "must be in .hip_fatbin"),
    ] {
        let elf = FatElf::new().code(&[("gfx942", &noise(1, 9000))]).wrapper(0, behind);
        let stderr = refuse_built(&with(elf.build()), &[], &["bad/lib/a.so", said]);
        assert!(stderr.contains("wrapper 1"), "{stderr}");
    }
}

#[test]
fn wrapper_with_a_strange_magic() {
    let mut elf = library();
    let at = elf.windows(4).rposition(|window| window == b"FPIH").unwrap();
    elf[at] = b'?';
    refuse_built(&with(elf), &[], &["bad/lib/a.so", ".hipFatBinSegment", "magic"]);
}

#[test]
fn unknown_bundle_ids_are_errors_before_anything_is_written() {
    for id in
        ["hipv4-amdgcn-amd-amdhsa--gfxzzz", "hipv4-amdgcn-amd-amdhsa--gfx942:bogus", "cuda-nvptx64--sm_80"]
    {
        let unit = BundleBuilder::new().target("gfx942", b"known").entry(id, b"unknown").build();
        let known_part = id.rsplit('-').next().unwrap();
        refuse_built(&with(FatElf::new().unit(unit).build()), &[], &["bad/lib/a.so", known_part]);
    }
}

#[test]
fn keep_unsupported_does_not_cover_damage() {
    let elf = FatElf::new().code(&[("gfx942", &noise(1, 9000))]).wrapper(0, 64);
    refuse_built(&with(elf.build()), &["--keep-unsupported"], &["bad/lib/a.so"]);
}

#[test]
fn a_library_that_is_cut_short_is_no_plain_file() {
    let mut library = std::fs::read(fixture("elf/libone.so")).unwrap();
    let whole = library.len();
    library.truncate(whole - 100);
    let size = format!("{:#x} bytes", library.len());
    let end = format!("..{whole:#x}");
    let words =
        ["bad/lib/a.so", "section header table is at 0x", &end, &size, "cut short", "download it again"];
    refuse_built(&with(library.clone()), &[], &words);
    refuse_built(&with(library), &["--keep-unsupported"], &words);
}

/// A linker script or `lld-link /merge` can put device code under any name.
#[test]
fn device_code_under_other_section_names_does_not_pass_in_silence() {
    let renamed = |file: &str, names: [(&str, &str); 2]| {
        let mut bytes = std::fs::read(fixture(file)).unwrap();
        for (old, new) in names {
            let places: Vec<usize> =
                (0..bytes.len() - old.len()).filter(|&at| bytes[at..].starts_with(old.as_bytes())).collect();
            assert!(!places.is_empty(), "{file} has no {old}");
            places.iter().for_each(|&at| bytes[at..at + new.len()].copy_from_slice(new.as_bytes()));
        }
        bytes
    };
    let elf = renamed(
        "elf/libone.so",
        [(".hip_fatbin\0", ".hop_fatbin\0"), (".hipFatBinSegment\0", ".hopFatBinSegment\0")],
    );
    let pe = renamed("pe/plain.dll", [(".hip_fat", ".hop_fat"), (".hipFatB", ".hopFatB")]);
    for (name, bytes, section) in [("b.so", elf, ".hip_fatbin"), ("b.dll", pe, ".hip_fat")] {
        let name = format!("bad/lib/{name}");
        let wheel = wheel().file(&name, bytes.clone());
        let split = split_built(&wheel, &[]);
        assert!(split.stderr.contains(&format!("{name}: stays whole")), "{}", split.stderr);
        assert!(split.stderr.contains(section), "{}", split.stderr);
        assert!(split.starting("bad-1").data(&name) == bytes);
        // Alone in its wheel, too.
        let alone = WheelBuilder::new("bad", "1").file(&name, bytes);
        refuse_built(&alone, &[], &["no fat binaries found", &name, "offload bundle at offset 0x"]);
    }
}

#[test]
fn no_fat_binaries() {
    let wheel = WheelBuilder::new("bad", "1").file("bad/__init__.py", "");
    let stderr = refuse_built(&wheel, &[], &["no fat binaries found"]);
    assert!(stderr.contains("install the wheel as it is"), "{stderr}");
}

#[test]
fn same_path_twice() {
    // RECORD has a row for each, so without one it is the members themselves that contradict each other.
    let twice = wheel().file("bad/__init__.py", "x = 2\n").no_record();
    refuse_built(&twice, &[], &["bad/__init__.py", "different bytes"]);
}

#[test]
fn two_members_that_install_to_one_place() {
    let twice = wheel().file("bad-1.data/platlib/bad/__init__.py", "x = 1\n");
    refuse_built(&twice, &[], &["bad-1.data/platlib/bad/__init__.py", "installs to bad/__init__.py"]);
}

#[test]
fn an_archives_path_is_taken() {
    let taken = wheel().file("bad/.kpack/bad_gfx942.kpack", "here first");
    refuse_built(&taken, &[], &["bad/.kpack/bad_gfx942.kpack", "split the original fat wheel"]);
}

#[test]
fn names_that_an_installer_must_not_follow() {
    for name in ["../evil.py", "/etc/evil", "bad/../../evil", "bad//evil", "bad\\..\\..\\evil", "bad/evil\0"]
    {
        refuse_built(&wheel().file(name, ""), &[], &["evil"]);
    }
}

#[test]
fn encrypted_and_exotically_compressed_members() {
    let bytes = wheel().bytes();
    let patch = |offset_local: usize, offset_central: usize, value: u16| {
        let mut patched = bytes.clone();
        let central = patched.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        patched[offset_local..offset_local + 2].copy_from_slice(&value.to_le_bytes());
        patched[central + offset_central..central + offset_central + 2].copy_from_slice(&value.to_le_bytes());
        patched
    };
    let (_scratch, path) = written(&patch(6, 8, 1));
    refuse_bad(&path, &[], &["bad/__init__.py", "encrypted"]);
    let (_scratch, path) = written(&patch(8, 10, 12));
    refuse_bad(&path, &[], &["bad/__init__.py", "compression method"]);
}

#[test]
fn local_and_central_headers_that_disagree() {
    let bytes = wheel().bytes();
    let mut renamed = bytes.clone();
    renamed[30..33].copy_from_slice(b"BAD");
    let (_scratch, path) = written(&renamed);
    refuse_bad(&path, &[], &["BAD/__init__.py"]);
}

#[test]
fn input_that_is_missing() {
    let stderr = refuse(Path::new("/nonexistent/bad-1-py3-none-any.whl"), &[], 3);
    assert!(
        stderr.contains("/nonexistent/bad-1-py3-none-any.whl") && stderr.contains("cannot open"),
        "{stderr}"
    );
}

/// Runs a split into `output`, which must fail with exit code 3. Returns standard error.
fn environment_fails(input: &Path, output: &Path) -> String {
    let done = split_command(input, output, &["-j2"]).output().unwrap();
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(3), "{stderr}");
    stderr
}

#[test]
fn output_directory_below_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "not a directory").unwrap();
    for output in [file.clone(), file.join("sub"), file.join("sub/sub")] {
        let stderr = environment_fails(&demo(), &output);
        assert!(stderr.contains("file") && stderr.contains("cannot "), "{stderr}");
    }
    assert_eq!(names(scratch.path()), ["file"]);
    assert_eq!(fs::read(&file).unwrap(), b"not a directory");
}

#[test]
fn output_directory_that_cannot_be_made() {
    // Not even root can make directories there.
    let output = Path::new("/proc/fatwheel-out");
    if output.parent().is_some_and(Path::exists) {
        let stderr = environment_fails(&demo(), output);
        assert!(stderr.contains("cannot create /proc/fatwheel-out"), "{stderr}");
    }
}

#[cfg(unix)]
#[test]
fn read_only_output_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("out");
    fs::create_dir(&output).unwrap();
    fs::set_permissions(&output, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(output.join("probe"), "").is_ok() {
        eprintln!("skipped: this user may write anywhere");
        return;
    }
    let stderr = environment_fails(&demo(), &output);
    assert!(stderr.contains("cannot write in"), "{stderr}");
    assert_eq!(names(&output), [""; 0]);
}

/// A file system of its own, unmounted on drop.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None` where this user may not mount.
    fn mount(at: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).output().ok()?;
        done.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn full_disk_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let mut elf = FatElf::new();
    for number in 0..8 {
        elf = elf
            .unit(bundle(&[("gfx942", &noise(number, 400_000)), ("gfx1100", &noise(99 - number, 400_000))]));
    }
    let input = with(elf.build()).file("bad/big.bin", noise(1, 2_000_000)).write(scratch.path());
    // From room for nothing to room for nearly everything: it fails at different stages.
    for size in ["4k", "64k", "1m", "4m", "7m"] {
        let Some(tmpfs) = Tmpfs::mount(&scratch.path().join(format!("disk{size}")), &format!("size={size}"))
        else {
            eprintln!("skipped: this user may not mount a small file system");
            return;
        };
        let old = tmpfs.0.join("bad-1-py3-none-linux_x86_64.whl");
        fs::write(&old, "old").unwrap();
        let stderr = environment_fails(&input, &tmpfs.0);
        assert!(
            stderr.contains("No space left") && stderr.contains("free some disk space"),
            "{size}: {stderr}"
        );
        assert_eq!(names(&tmpfs.0), ["bad-1-py3-none-linux_x86_64.whl"]);
        assert_eq!(fs::read(&old).unwrap(), b"old");
    }
    let Some(tmpfs) = Tmpfs::mount(&scratch.path().join("enough"), "size=20m") else { return };
    assert_eq!(split_command(&input, &tmpfs.0, &["-j2"]).output().unwrap().status.code(), Some(0));
}

#[cfg(unix)]
#[test]
fn file_size_limit_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let elf = FatElf::new().unit(bundle(&[("gfx942", &noise(1, 900_000))])).build();
    let input = with(elf).write(scratch.path());
    let output = scratch.path().join("out");
    // bash counts blocks of 1024 bytes. SIGXFSZ is ignored, so that writes fail instead.
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let done = Command::new("bash")
        .args(["-c", script, "bash", env!("CARGO_BIN_EXE_fatwheel"), "split"])
        .arg(&input)
        .arg("-o")
        .arg(&output)
        .output()
        .unwrap();
    let (_, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(3), "{stderr}");
    assert!(!output.exists(), "{stderr}");
}

#[test]
fn messages_do_not_send_control_characters_to_the_terminal() {
    let evil = "bad/\u{1b}[31mred.so";
    let stderr =
        refuse_built(&with(library()).file(evil, library()).wrong_record_for(evil), &[], &["red.so"]);
    assert!(!stderr.contains('\u{1b}') && stderr.contains("\\u{1b}"), "{stderr:?}");
}

#[test]
fn a_run_after_a_failed_one_succeeds() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().wrong_record_for("bad/__init__.py").write(scratch.path());
    refuse(&input, &[], 1);
    let input = wheel().write(scratch.path());
    assert_eq!(split(&input, &[]).names().len(), 3);
}

#[test]
fn a_compressed_bundle_with_the_wrong_hash_is_noticed_on_request() {
    let content = bundle(&[("gfx942", &noise(1, 5000))]);
    let mut compressed = ccob(2, CcobMethod::Zstd, &content);
    compressed[16] ^= 1; // the first byte of the hash
    let wheel = WheelBuilder::new("hash", "1").file("hash/a.so", FatElf::new().unit(compressed).build());
    split_built(&wheel, &[]);
    refuse_built(&wheel, &["--verify-bundles"], &["hash/a.so", "compressed offload bundle", "MD5"]);
}
