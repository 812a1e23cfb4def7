//! The manifest, and what can be proved with it: every byte of the input is in the host wheel or in exactly one device
//! wheel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::bundle_builder::{CcobMethod, ccob};
use crate::support::bundle_reader::code_objects;
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::kpack_reader::Kpack;
use crate::support::run::{Split, demo, demo_windows, names, refuse, split_command, texts};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::{Wheel, sha256};
use crate::support::zip_builder::ZipMember;

/// Splits `input` with `--manifest`.
fn split(input: &Path, arguments: &[&str]) -> (Split, Value) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("manifest.json");
    let arguments = [arguments, &["--manifest", path.to_str().unwrap()]].concat();
    let done = split_command(input, &scratch.path().join("out"), &arguments).output().unwrap();
    let (stdout, stderr) = texts(&done);
    assert_eq!(done.status.code(), Some(0), "{stderr}");
    let manifest: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(manifest["format"], 1);
    assert_eq!(manifest["generator"], concat!("fatwheel ", env!("CARGO_PKG_VERSION")));
    assert_eq!(manifest["failed"], serde_json::json!([]));
    let splits = manifest["splits"].as_array().unwrap();
    assert_eq!(splits.len(), 1);
    (Split { scratch, stdout, stderr }, splits[0].clone())
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"))
}

fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value, field: &str) -> usize {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} of {value}")) as usize
}

fn words(values: &[Value]) -> Vec<&str> {
    values.iter().map(|value| value.as_str().unwrap()).collect()
}

/// Everything that the manifest says, held against input and outputs.
struct Proof {
    input: Wheel,
    wheels: BTreeMap<String, Wheel>,
    host: String,
    record: Value,
}

impl Proof {
    fn new(input: &Path, split: &Split, record: Value) -> Self {
        let wheels = split.wheels().into_iter().map(|wheel| (wheel.file_name(), wheel)).collect();
        let host = list(&record, "outputs").iter().find(|output| output["kind"] == "host").unwrap();
        let host = text(host, "file").to_owned();
        Self { input: Wheel::read(input), wheels, host, record }
    }

    /// Names of the device wheels.
    fn devices(&self) -> impl Iterator<Item = &Wheel> {
        let device = |output: &&Value| output["kind"] == "device";
        list(&self.record, "outputs").iter().filter(device).map(|output| &self.wheels[text(output, "file")])
    }

    /// The device wheels that have this file.
    fn devices_with(&self, path: &str) -> Vec<&Wheel> {
        self.devices().filter(|wheel| wheel.has(path)).collect()
    }

    fn outputs(&self) {
        let outputs = list(&self.record, "outputs");
        let files: Vec<&str> = outputs.iter().map(|output| text(output, "file")).collect();
        let distinct: BTreeSet<String> = files.iter().map(|&file| file.to_owned()).collect();
        assert_eq!(distinct, self.wheels.keys().cloned().collect(), "every output, each once");
        assert_eq!(files.len(), self.wheels.len());
        for output in outputs {
            let wheel = &self.wheels[text(output, "file")];
            assert_eq!(number(output, "size"), wheel.bytes.len());
            assert_eq!(text(output, "sha256"), sha256(&wheel.bytes));
            let metadata = wheel.info("METADATA");
            let fields = |field: &str| -> Vec<String> {
                let head = metadata.split("\n\n").next().unwrap();
                head.lines()
                    .filter_map(|line| line.strip_prefix(&format!("{field}: ")))
                    .map(str::to_owned)
                    .collect()
            };
            assert_eq!(fields("Name"), [text(output, "name")]);
            assert_eq!(fields("Version"), [text(output, "version")]);
            assert_eq!(fields("Requires-Dist"), words(list(output, "requires")));
            assert_eq!(fields("Provides-Extra"), words(list(output, "extras")));
            let wheel_file = wheel.info("WHEEL");
            let tags: Vec<&str> = wheel_file.lines().filter_map(|line| line.strip_prefix("Tag: ")).collect();
            assert_eq!(tags, words(list(output, "tags")));
            if output["kind"] == "device" {
                let kpacks = wheel.kpacks();
                let targets: BTreeSet<&str> = kpacks.values().flat_map(Kpack::arches).collect();
                assert_eq!(targets, words(list(output, "targets")).into_iter().collect());
                assert!(text(output, "name").ends_with(&text(output, "key").replace('_', "-")));
            }
        }
    }

    /// Returns how many members there are of each fate.
    fn members(&self) -> BTreeMap<String, usize> {
        // The zip crate sees one member of each name.
        let repeats = |member: &&Value| member["why"].as_str().is_some_and(|why| why.contains("repeats"));
        let (repeated, members): (Vec<&Value>, Vec<&Value>) =
            list(&self.record, "members").iter().partition(repeats);
        assert_eq!(members.len(), self.input.members.len());
        let mut fates = BTreeMap::from([("repeated".to_owned(), repeated.len())]);
        let mut accounted = BTreeSet::new();
        for (member, original) in members.into_iter().zip(&self.input.members) {
            let path = original.name.as_str();
            assert_eq!(text(member, "path"), path);
            assert_eq!(number(member, "size"), original.data.len(), "{path}");
            if !path.ends_with('/') {
                assert_eq!(text(member, "sha256"), sha256(&original.data), "{path}");
            }
            *fates.entry(text(member, "fate").to_owned()).or_default() += 1;
            let host = &self.wheels[&self.host];
            let elsewhere = self.devices_with(path);
            match text(member, "fate") {
                "kept" => {
                    assert_eq!(text(member, "to"), self.host);
                    assert!(host.data(path) == original.data && elsewhere.is_empty(), "{path}");
                }
                "moved" => {
                    assert!(!host.has(path) && elsewhere.len() == 1, "{path}");
                    assert_eq!(text(member, "to"), elsewhere[0].file_name());
                    assert!(elsewhere[0].data(path) == original.data, "{path}");
                }
                "split" => {
                    assert_eq!(text(member, "to"), self.host);
                    assert!(elsewhere.is_empty(), "{path}");
                    self.split_member(member, &original.data, host.data(path));
                }
                "rewritten" => {
                    assert!(path.ends_with("/METADATA") || path.ends_with("/RECORD"), "{path}");
                    assert!(host.data(path) != original.data && elsewhere.is_empty(), "{path}");
                }
                "dropped" => {
                    assert!(!text(member, "why").is_empty() && elsewhere.is_empty(), "{path}");
                    assert!(!host.has(path), "{path}");
                    assert!(member["to"].is_null(), "{path}");
                }
                fate => panic!("{path}: {fate}"),
            }
            if let Some(to) = member["to"].as_str() {
                accounted.insert((to.to_owned(), path.to_owned()));
            }
            for code in list(member, "code") {
                if let (Some(to), Some(archive)) = (code["to"].as_str(), code["archive"].as_str()) {
                    accounted.insert((to.to_owned(), archive.to_owned()));
                }
            }
        }
        // The other way round: nothing is in an output that came from nowhere.
        for wheel in self.devices().chain([&self.wheels[&self.host]]) {
            let own = format!("{}/", wheel.dist_info());
            for name in wheel.names() {
                let known = accounted.contains(&(wheel.file_name(), name.to_owned()));
                assert!(known || name.starts_with(&own), "{name} of {} came from nowhere", wheel.file_name());
            }
        }
        fates
    }

    /// Every byte of a fat binary is in the host's binary where the manifest says, or in a bundle, whose code objects are
    /// each in exactly one device wheel, the one that the manifest names.
    fn split_member(&self, member: &Value, before: &[u8], after: &[u8]) {
        let path = text(member, "path");
        assert_eq!(number(&member["rewritten"], "size"), after.len());
        assert_eq!(text(&member["rewritten"], "sha256"), sha256(after));
        let mut changed = 0;
        let mut ranges = Vec::new();
        for kept in list(member, "kept") {
            let [offset, length, at] = ["offset", "length", "at"].map(|field| number(kept, field));
            let pairs = before[offset..offset + length].iter().zip(&after[at..at + length]);
            changed += pairs.filter(|(before, after)| before != after).count();
            ranges.push(offset..offset + length);
        }
        assert!(changed > 0 && changed <= number(&member["rewritten"], "overwritten"), "{path}: {changed}");
        let mut objects = Vec::new();
        for bundle in list(member, "bundles") {
            let offset = number(bundle, "offset");
            ranges.push(offset..offset + number(bundle, "length"));
            objects.extend(code_objects(&before[ranges.last().unwrap().clone()]));
        }
        // What is left is padding, or stands in the host's binary too.
        ranges.sort_by_key(|range| range.start);
        ranges.push(before.len()..before.len());
        let mut end = 0;
        for range in ranges {
            assert!(range.start >= end, "{path}: {range:x?} overlaps the range before");
            let left = &before[end..range.start];
            let found = || after.windows(left.len()).any(|window| window == left);
            assert!(left.iter().all(|&byte| byte == 0) || found(), "{path}: lost at {end:#x}: {left:x?}");
            end = range.end;
        }

        let mut sums: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        let binary = path.split_once('/').unwrap().1;
        for (target, object) in objects {
            let sum = sums.entry(target.clone()).or_default();
            *sum = (sum.0 + 1, sum.1 + object.len());
            let code = list(member, "code").iter().find(|code| text(code, "target") == target).unwrap();
            let holders: Vec<String> = self
                .devices()
                .filter(|wheel| wheel.kpacks().values().any(|kpack| kpack.objects.contains(&object)))
                .map(Wheel::file_name)
                .collect();
            let Some(to) = code["to"].as_str() else {
                assert!(holders.is_empty(), "{path}: {target} was not asked for");
                continue;
            };
            assert_eq!(holders, [to], "{path}: an object of {target}");
            let kpack = &self.wheels[to].kpacks()[text(code, "archive")];
            let keys: Vec<&str> =
                kpack.keys().into_iter().filter(|key| key.starts_with(&format!("{binary}#"))).collect();
            let answers = |key: &&str| kpack.get(key, &target).is_some_and(|(_, found)| found == object);
            assert!(keys.iter().any(answers), "{path}: no entry of {target} has the object");
        }
        let said: BTreeMap<String, (usize, usize)> = list(member, "code")
            .iter()
            .map(|code| (text(code, "target").to_owned(), (number(code, "objects"), number(code, "bytes"))))
            .collect();
        assert_eq!(said, sums, "{path}");
        assert!(!sums.is_empty(), "{path}");
    }
}

/// Proves that nothing is lost, and returns how many members there are of each fate.
fn prove(input: &Path, arguments: &[&str]) -> BTreeMap<String, usize> {
    let (split, record) = split(input, arguments);
    let proof = Proof::new(input, &split, record);
    proof.outputs();
    proof.members()
}

fn counts(fates: &[(&str, usize)]) -> BTreeMap<String, usize> {
    fates.iter().map(|&(fate, count)| (fate.to_owned(), count)).collect()
}

/// A wheel with something of everything.
fn wheel() -> WheelBuilder {
    let unit = |seed: u64, targets: &[&'static str]| -> Vec<u8> {
        let codes: Vec<Vec<u8>> =
            (0..targets.len()).map(|number| noise(seed * 10 + number as u64, 5000 + number)).collect();
        let entries: Vec<(&str, &[u8])> =
            targets.iter().zip(&codes).map(|(&target, code)| (target, code.as_slice())).collect();
        bundle(&entries)
    };
    let plain = FatElf::new()
        .unit(unit(1, &["gfx90a", "gfx942", "gfx1100"]))
        .unit(unit(2, &["gfx90a:xnack+", "gfx90a:xnack-"]))
        .unit(unit(3, &["gfx1100"]));
    let packed = FatElf::new().unit(ccob(2, CcobMethod::Zstd, &unit(4, &["gfx942", "gfx1100"]))).unit(ccob(
        3,
        CcobMethod::Zlib,
        &unit(5, &["gfx90a"]),
    ));
    let directory = |name: &str| ZipMember::new(name, "").stored().mode(0o040_755);
    WheelBuilder::new("all", "1")
        .build_tag("2")
        .file("all/__init__.py", "import ctypes\n")
        .file("all/__init__.py", "import ctypes\n")
        .member(ZipMember::new("all/lib/liba.so.1", plain.build()).mode(0o100_755))
        .member(ZipMember::new("all/lib/liba.so", "liba.so.1").mode(0o120_777))
        .file("all/lib/b.so", packed.build())
        .member(directory("all/lib/rocblas/library/"))
        .file("all/lib/rocblas/library/k_gfx942.co", "kernel")
        .file("all/lib/rocblas/library/k_gfx90a-xnack-.co", "kernel")
        .file("all/aotriton.images/amd-gfx11xx/x", "image")
        .file("all-1.data/purelib/all/more.py", "")
        .info("licenses/LICENSE", "MIT")
        .info("RECORD.jws", "{}")
}

#[test]
fn every_byte_is_in_the_host_or_in_exactly_one_device_wheel() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().write(scratch.path());
    let databases = ["--wheel-type", "torch-fat", "--generate-variant-wheel"];
    let expected =
        counts(&[("kept", 5), ("split", 2), ("moved", 3), ("rewritten", 2), ("dropped", 2), ("repeated", 1)]);
    for layout in ["per-processor", "per-target"] {
        for compression in ["zstd", "none"] {
            let more = ["--kpack-layout", layout, "--compression", compression];
            assert_eq!(prove(&input, &[&databases[..], &more].concat()), expected);
        }
    }
    // Nothing is selected: the files stay, and so does their directory.
    let expected = counts(&[("kept", 9), ("split", 2), ("rewritten", 2), ("dropped", 1), ("repeated", 1)]);
    assert_eq!(prove(&input, &[]), expected);
}

#[test]
fn every_byte_of_the_compiled_wheels() {
    for input in [demo(), demo_windows()] {
        let fates = prove(&input, &["--wheel-type", "torch-fat"]);
        assert_eq!((fates["split"], fates["rewritten"], fates.get("dropped")), (3, 2, None));
        assert!(fates["moved"] >= 1, "{fates:?}");
    }
}

#[test]
fn what_archs_leaves_out_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().write(scratch.path());
    let arguments = ["--wheel-type", "torch-fat", "--archs", "gfx90a"];
    assert_eq!(prove(&input, &arguments)["dropped"], 4);
    let (_, record) = split(&input, &arguments);
    let member = |path: &str| list(&record, "members").iter().find(|member| member["path"] == path).unwrap();
    assert_eq!(
        text(member("all/lib/rocblas/library/k_gfx942.co"), "why"),
        "its device wheel was not asked for"
    );
    let code = list(member("all/lib/b.so"), "code");
    let places: Vec<(&str, bool)> =
        code.iter().map(|code| (text(code, "target"), code["to"].is_string())).collect();
    assert_eq!(places, [("gfx1100", false), ("gfx90a", true), ("gfx942", false)]);
}

#[test]
fn a_host_wheel_that_was_split_before() {
    let (first, _) = split(&demo(), &[]);
    let host = first.output().join(demo().file_name().unwrap());
    let (_, record) = split(&host, &[]);
    assert_eq!(record["already_split"], true);
    assert!(record["overlay_root"].is_null());
    let fates: BTreeSet<&str> = list(&record, "members").iter().map(|member| text(member, "fate")).collect();
    assert_eq!(fates, BTreeSet::from(["kept", "rewritten"]), "RECORD alone is written anew");
}

#[cfg(unix)]
#[test]
fn directories_have_no_hash_but_the_same_members() {
    let scratch = tempfile::tempdir().unwrap();
    let input = wheel().write(scratch.path());
    let (_, packed) = split(&input, &[]);
    let (split, record) = split(&input, &["--output-format", "directory"]);
    let files: BTreeSet<&str> = list(&record, "outputs").iter().map(|output| text(output, "file")).collect();
    assert_eq!(files, split.names().iter().map(String::as_str).collect());
    assert!(list(&record, "outputs").iter().all(|output| output["sha256"].is_null()));
    let fates = |record: &Value| -> Vec<(String, String)> {
        let members = list(record, "members").iter();
        members.map(|member| (text(member, "path").to_owned(), text(member, "fate").to_owned())).collect()
    };
    assert_eq!(fates(&record), fates(&packed));
}

#[test]
fn the_manifest_may_stand_beside_the_wheels() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("new/dist");
    let path = output.join("manifest.json");
    let arguments = ["--manifest", path.to_str().unwrap()];
    assert_eq!(split_command(&demo(), &output, &arguments).output().unwrap().status.code(), Some(0));
    assert_eq!(names(&output).len(), 6);
    // An older one is replaced; the bytes are the same each time.
    let first = fs::read(&path).unwrap();
    let again = [&arguments[..], &["-j1"]].concat();
    assert_eq!(split_command(&demo(), &output, &again).output().unwrap().status.code(), Some(0));
    assert!(fs::read(&path).unwrap() == first);
    assert_eq!(names(&output).len(), 6);
}

#[test]
fn a_run_without_a_split_writes_none() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("manifest.json");
    let input = WheelBuilder::new("plain", "1").file("plain/a.py", "").write(scratch.path());
    refuse(&input, &["--manifest", path.to_str().unwrap()], 1);
    assert!(!path.exists());
    // Where it cannot go shows before the work.
    let stderr = refuse(&demo(), &["--manifest", scratch.path().to_str().unwrap()], 2);
    assert!(stderr.contains("is no file name"), "{stderr}");
    // No wheel may take its name.
    let out = scratch.path().join("out");
    let name = out.join(demo().file_name().unwrap());
    let done = split_command(&demo(), &out, &["--manifest", name.to_str().unwrap()]).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{}", texts(&done).1);
    assert!(!out.exists());
}

#[test]
fn a_failed_wheel_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let bad = wheel().wrong_record_for("all/lib/b.so").write(scratch.path());
    let path = scratch.path().join("manifest.json");
    let mut command =
        split_command(&demo(), &scratch.path().join("out"), &["--manifest", path.to_str().unwrap()]);
    let done = command.arg("--").arg(&bad).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", texts(&done).1);
    let manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(list(&manifest, "splits").len(), 1);
    let failed = list(&manifest, "failed");
    assert_eq!(failed.len(), 1);
    assert_eq!(text(&failed[0], "input"), bad.to_str().unwrap());
    assert!(text(&failed[0], "error").contains("all/lib/b.so"));
}
