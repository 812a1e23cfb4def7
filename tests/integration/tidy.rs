//! Rules for the sources themselves: which module may import what, where `unsafe` may be, sizes, leftovers, provenance.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Directories that are not sources: build products, other tools' data.
const SKIPPED: [&str; 6] = [".git", "target", "dist", "corpus", "artifacts", "node_modules"];

/// Every file below `directory` (relative to the repository), sorted.
fn files(directory: &str) -> Vec<PathBuf> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries {
            let entry = entry.unwrap();
            let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !skipped {
                walk(&entry.path(), found);
            } else if kind.is_file() && !skipped {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(ROOT).join(directory), &mut found);
    found.sort();
    found
}

fn rust_files(directory: &str) -> Vec<(String, String)> {
    let rust = files(directory)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| (relative(&path), fs::read_to_string(&path).unwrap())).collect()
}

fn relative(path: &Path) -> String {
    path.strip_prefix(ROOT).unwrap().to_str().unwrap().replace('\\', "/")
}

/// The lines of a source that are code: comments and strings of documentation left out.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line));
    lines
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(number, line)| (number, line.split("// ").next().unwrap_or(line)))
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn format_modules_know_no_threads_paths_clocks_or_pipeline() {
    let formats = ["arch", "edit", "elf", "fatbin", "kpack", "pe", "wheel", "zip"];
    let forbidden = [
        "crate::pipeline",
        "crate::io",
        "crate::cli",
        "crate::options",
        "crate::error",
        "std::thread",
        "std::fs",
        "std::time",
        "std::path",
        "std::env",
        "std::process",
        "std::sync",
        "crossbeam",
        "Instant",
        "SystemTime",
    ];
    let mut problems = Vec::new();
    for format in formats {
        let sources = rust_files(&format!("src/{format}"));
        assert!(!sources.is_empty(), "src/{format} is gone; so should its name here be");
        for (path, text) in sources {
            // Tests may measure time and read fixtures. They come last in a file, or have files of their own.
            let is_test =
                path.contains("/tests/") || path.contains("/testing/") || path.ends_with("/tests.rs");
            let text = if is_test { "" } else { text.split("#[cfg(test)]\nmod ").next().unwrap_or("") };
            for (number, line) in code(text) {
                for word in forbidden.iter().filter(|word| line.contains(**word)) {
                    problems.push(format!("{path}:{number}: {word}"));
                }
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn unsafe_is_only_below_sys_and_says_why() {
    let mut problems = Vec::new();
    for (path, text) in rust_files("src").into_iter().chain(rust_files("tests")) {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in code(&text) {
            let word = line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
            if !word || path.ends_with("tests/integration/tidy.rs") {
                continue;
            }
            let before = &lines[number.saturating_sub(6)..number];
            if !path.starts_with("src/sys/") {
                problems.push(format!("{path}:{number}: unsafe outside src/sys"));
            } else if !before.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
                problems.push(format!("{path}:{number}: unsafe without SAFETY: in the five lines above"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn files_are_short_and_start_with_what_they_are() {
    let mut problems = Vec::new();
    for (path, text) in rust_files("src").into_iter().chain(rust_files("tests")) {
        let lines = text.lines().count();
        if lines > 620 {
            problems.push(format!("{path}: {lines} lines, about 600 are enough"));
        }
        if !text.starts_with("//!") && path != "src/main.rs" {
            problems.push(format!("{path}: no module description on its first line"));
        }
    }
    assert_none(&problems);
}

#[test]
fn no_leftovers() {
    let words = ["TODO", "FIXME", "XXX", "todo!", "unimplemented!", "dbg!", "HACK"];
    let mut problems = Vec::new();
    for (path, text) in ["src", "tests", "benches", "fuzz"].into_iter().flat_map(rust_files) {
        if path.ends_with("tests/integration/tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(**word)) {
                problems.push(format!("{path}:{}: {word}", number + 1));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn plain_ascii_prose() {
    let mut problems = Vec::new();
    for (path, text) in rust_files("src").into_iter().chain(rust_files("tests")) {
        for (number, line) in text.lines().enumerate() {
            for character in line.chars().filter(|c| {
                ['\u{2013}', '\u{2014}', '\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{a0}'].contains(c)
            }) {
                problems.push(format!("{path}:{}: {character:?}", number + 1));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn every_fixture_has_a_line_that_says_where_it_comes_from() {
    let readme = fs::read_to_string(Path::new(ROOT).join("tests/fixtures/README.md")).unwrap();
    let script = fs::read_to_string(Path::new(ROOT).join("tests/fixtures/build.sh")).unwrap();
    let mut problems = Vec::new();
    for path in
        ["elf", "pe", "wheels", "stub"].iter().flat_map(|name| files(&format!("tests/fixtures/{name}")))
    {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_source = [".c", ".h", ".map"].iter().any(|suffix| name.ends_with(suffix));
        // `static_pie_x86_64`, `_aarch64`: one line names several.
        let named = |text: &str| {
            text.contains(name)
                || name.strip_prefix("static_pie").is_some_and(|rest| text.contains(&format!("`{rest}`")))
        };
        if !is_source && !named(&readme) {
            problems.push(format!("{}: the README has no line for it", relative(&path)));
        }
    }
    assert_none(&problems);
    assert!(script.contains("--check"), "the script that makes the fixtures can check them");
    // Every golden file is compared by a test.
    let tests: String = rust_files("tests/integration").into_iter().map(|(_, text)| text).collect();
    for path in files("tests/golden") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let stem = name
            .split_once("variant_")
            .filter(|_| name.ends_with(".json"))
            .map_or(name, |_| "variant_{profile}.json");
        assert!(tests.contains(&format!("\"{stem}\"")), "no test compares with tests/golden/{name}");
    }
}

#[test]
fn no_path_of_a_build_machine_is_in_the_tree() {
    // Split up, or this file would find itself.
    let forbidden: Vec<String> = [
        ["/ro", "ot/"],
        ["/ho", "me/"],
        ["/work/", "shared"],
        ["/tmp/", "wt"],
        ["/work/", "main"],
        ["/bu", "ild/"],
        ["C:\\U", "sers"],
    ]
    .iter()
    .map(|parts| parts.concat())
    .collect();
    let mut problems = Vec::new();
    for path in files("") {
        let bytes = fs::read(&path).unwrap();
        for word in &forbidden {
            if bytes.windows(word.len()).any(|window| window == word.as_bytes()) {
                problems.push(format!("{}: {word}", relative(&path)));
            }
        }
    }
    assert_none(&problems);
}

/// The table that maps the Python tool and field reports to tests names tests that there are.
#[test]
fn the_parity_table_names_tests_that_exist() {
    let mut tests: Vec<String> = Vec::new();
    for (directory, prefix) in
        [("tests/integration", None), ("tests/binaries", Some("binaries")), ("src", Some("src"))]
    {
        for (path, text) in rust_files(directory) {
            let module = prefix.unwrap_or_else(|| path.rsplit('/').next().unwrap().trim_end_matches(".rs"));
            let mut lines = text.lines().map(str::trim);
            while lines.any(|line| line == "#[test]") {
                let name = lines.find_map(|line| line.strip_prefix("fn ")?.split('(').next());
                tests.extend(name.map(|name| format!("{module}::{name}")));
            }
        }
    }
    let table = fs::read_to_string(Path::new(ROOT).join("tests/PARITY.md")).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 90, "{} names: is the table still one?", named.len());
    let missing: Vec<String> =
        named.into_iter().filter(|name| !tests.iter().any(|test| test == name)).map(str::to_owned).collect();
    assert_none(&missing);
}

/// The fuzz targets are a package of their own, which nobody builds until they are needed.
#[test]
fn fuzz_targets_are_locked_to_the_same_dependencies() {
    let dependencies = |lock: &str| -> Vec<String> {
        let text = fs::read_to_string(Path::new(ROOT).join(lock)).unwrap();
        let (_, package) = text.split_once("name = \"fatwheel\"\n").unwrap();
        let (_, list) = package.split_once("dependencies = [").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        // `"name"`, or `"name version"` where there are several.
        let names = list.lines().filter_map(|line| line.trim().strip_prefix('"'));
        names.filter_map(|line| line.split([' ', '"']).next()).map(str::to_owned).collect()
    };
    // The main lock also counts what only tests and benches use.
    let (ours, theirs) = (dependencies("Cargo.lock"), dependencies("fuzz/Cargo.lock"));
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let (_, development) = manifest.split_once("[dev-dependencies]").unwrap();
    let only_tests = |name: &str| development.lines().any(|line| line.starts_with(&format!("{name} ")));
    let missing: Vec<&String> =
        ours.iter().filter(|name| !theirs.contains(name) && !only_tests(name)).collect();
    assert!(missing.is_empty(), "fuzz/Cargo.lock lacks {missing:?}: run `cargo update -w` in fuzz");
}

#[test]
fn main_is_thin() {
    let text = fs::read_to_string(Path::new(ROOT).join("src/main.rs")).unwrap();
    assert!(text.lines().count() < 25);
}
