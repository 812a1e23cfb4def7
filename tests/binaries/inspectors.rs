//! Programs that read binaries find nothing in a split one to complain about that they do not find in the input.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::rewrite::{fixtures, marker, rewrite_fat};
use super::tools::{find_or_skip, in_parallel, run, write};

/// Complaints without what differs between any two files: numbers, and the one section that has another name.
fn normalised<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    lines
        .map(|line| {
            let line = line.replace(".rocm_kpack_ref", ".hip_fatbin").replace(".kpackrf", ".hip_fat");
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !"_.-".contains(c));
            let words =
                words.filter(|word| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit()));
            words.collect::<Vec<_>>().join(" ")
        })
        .filter(|line| !line.is_empty())
        .collect()
}

/// What `program` complains about. readelf prints everything on stdout, warnings among it; eu-elflint prints nothing
/// but errors.
fn complaints(program: &Path, arguments: &[&str], file: &Path) -> BTreeSet<String> {
    let output = run(Command::new(program).args(arguments).arg(file).env("LC_ALL", "C"));
    let text =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = text.replace(&*file.to_string_lossy(), "");
    let everything = program.ends_with("eu-elflint") || program.ends_with("python");
    let complains = |line: &str| {
        let line = line.to_lowercase();
        everything
            || ["warning", "error", "corrupt", "invalid", "<unknown", "unable"]
                .iter()
                .any(|word| line.contains(word))
    };
    let mut found = normalised(text.lines().filter(|line| complains(line)));
    if output.status.code().is_none_or(|code| code > 1) || !everything && !output.status.success() {
        found.insert(format!("exit status {:?}", output.status.code()));
    }
    found
}

/// Complaints that a split brings about and that are right to bring about.
const EXPECTED: [&str; 4] = [
    // The hole was in an executable segment, and one half has no code. Pages keep their protection all the same.
    "loadable segment is executable but contains no executable sections",
    // The note made way for program headers. A symbol table is no part of the process and stays as it is.
    "section .symtab symbol __abi_tag st_value out of bounds",
    // The same for the symbol, without a name, that GNU ld makes for the note's section.
    "section .symtab symbol st_value out of bounds",
    // pefile's guess at truncated files: the fixtures are tiny, and mostly padding without their device code.
    "Byte makes up of the file s contents. This may indicate truncation malformation.",
];

fn nothing_new(format: &str, program: &str, arguments: &[&str]) {
    let Some(program) = find_or_skip(program) else { return };
    let problems = in_parallel(&fixtures(format), |fixture| {
        let directory = tempfile::tempdir().unwrap();
        let (before, after) = (directory.path().join("before"), directory.path().join("after"));
        write(&before, &fixture.bytes);
        write(&after, &rewrite_fat(&fixture.name, &fixture.bytes, &marker(&fixture.name)));
        let (was, is) = (complaints(&program, arguments, &before), complaints(&program, arguments, &after));
        is.difference(&was)
            .filter(|line| !EXPECTED.contains(&line.as_str()))
            .map(|line| format!("{}: {line}", fixture.name))
            .collect::<Vec<_>>()
    });
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{program:?} {arguments:?}\n{}", problems.join("\n"));
}

#[test]
fn readelf_has_no_new_warning() {
    nothing_new("elf", "readelf", &["-a", "-W"]);
}

#[test]
fn llvm_readelf_has_no_new_warning() {
    nothing_new("elf", "llvm-readelf-19", &["-a"]);
}

#[test]
fn elflint_has_no_new_error() {
    nothing_new("elf", "eu-elflint", &["--gnu-ld"]);
}

#[test]
fn llvm_readobj_has_no_new_warning() {
    let everything = [
        "--file-headers",
        "--sections",
        "--relocations",
        "--coff-basereloc",
        "--coff-debug-directory",
        "--coff-exports",
        "--coff-imports",
        "--coff-load-config",
        "--coff-tls-directory",
        "--unwind",
        "--symbols",
    ];
    nothing_new("pe", "llvm-readobj-19", &everything);
}

#[test]
fn pefile_has_no_new_warning() {
    const SCRIPT: &str = "import sys, pefile\n\
        pe = pefile.PE(sys.argv[1])\n\
        print('\\n'.join(pe.get_warnings()))\n\
        right = pe.OPTIONAL_HEADER.CheckSum in (0, pe.generate_checksum())\n\
        print('' if right else 'wrong checksum')\n";
    nothing_new("pe", "FATWHEEL_PYTHON", &["-c", SCRIPT]);
}

/// Fixtures that an outside checker cannot judge, and all that it says of them.
const BEYOND_CHECKERS: [(&str, &str); 2] = [
    // An odd number of bytes: it counts one more. `pe_compare` and pefile have the sum as Windows has it.
    ("gnu.dll", "checksum is neither zero nor right"),
    // It knows one section of bundles and misses the padding in front of the second. `elf_compare` knows both.
    ("libtwo.so", "memory at 0x5f98 is no longer mapped"),
];

/// What a checker that is not part of the repository says of one file: `elf_image.py BEFORE AFTER` and `pe_image.py`
/// print `same`. `None` if it agrees, or is not there.
pub fn outside_checker(format: &str, name: &str, before: &[u8], after: &[u8]) -> Option<String> {
    let checkers = std::env::var_os("FATWHEEL_CHECKERS")?;
    let python = find_or_skip("FATWHEEL_PYTHON")?;
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("before"), directory.path().join("after"));
    fs::write(&old, before).unwrap();
    fs::write(&new, after).unwrap();
    let script = Path::new(&checkers).join(format!("{format}_image.py"));
    let output = run(Command::new(python).arg(script).arg(&old).arg(&new));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    let beyond = BEYOND_CHECKERS.iter().find(|(beyond, _)| *beyond == name);
    let expected = beyond.map_or("same", |(_, said)| said);
    (said.trim() != expected).then(|| said.trim().to_owned())
}

#[test]
fn outside_checkers_agree() {
    if std::env::var_os("FATWHEEL_CHECKERS").is_none() {
        eprintln!("skipped: FATWHEEL_CHECKERS names no directory");
        return;
    }
    for format in ["elf", "pe"] {
        let problems = in_parallel(&fixtures(format), |fixture| {
            let after = rewrite_fat(&fixture.name, &fixture.bytes, &marker(&fixture.name));
            let said = outside_checker(format, &fixture.name, &fixture.bytes, &after);
            said.map(|said| format!("{}: {said}", fixture.name))
        });
        let problems: Vec<String> = problems.into_iter().flatten().collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
