//! Every fixture before and after a split, as memory, sections and symbols.

use super::rewrite::{fixtures, marker, rewrite, rewrite_fat};
use super::{elf_compare, pe_compare};

/// Compares a file before and after, given the marker; what is wrong.
type Compare = fn(&[u8], &[u8], &[u8]) -> Vec<String>;

fn check(format: &str, compare: Compare) {
    let mut problems = Vec::new();
    for fixture in fixtures(format) {
        let marker = marker(&fixture.name);
        let after = rewrite_fat(&fixture.name, &fixture.bytes, &marker);
        let found = compare(&fixture.bytes, &after, &marker);
        problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", fixture.name)));
        assert_eq!(
            rewrite(&after, &marker).unwrap(),
            None,
            "{}: a second split does something",
            fixture.name
        );
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn elf_fixtures_are_the_same_programs() {
    check("elf", elf_compare::compare);
}

#[test]
fn pe_fixtures_are_the_same_programs() {
    check("pe", pe_compare::compare);
}

/// The comparison itself must notice damage: any byte of a rewritten library that a process sees, but for those that a
/// split may change, is one that it notices.
#[test]
fn comparisons_notice_damage() {
    // Behind the headers: sizes there can make the comparison's own images huge.
    for (format, name, compare) in [
        ("elf", "libone.so", elf_compare::compare as fn(&[u8], &[u8], &[u8]) -> Vec<String>),
        ("elf", "pie_relr", elf_compare::compare),
        ("pe", "release.dll", pe_compare::compare),
    ] {
        let fixture = fixtures(format).into_iter().find(|fixture| fixture.name == name).unwrap();
        let marker = marker(name);
        let after = rewrite_fat(name, &fixture.bytes, &marker);
        assert!(compare(&fixture.bytes, &after, &marker).is_empty());
        assert!(!compare(&fixture.bytes, &fixture.bytes, &marker).is_empty(), "{name}: nothing was split");
        let (mut noticed, mut tried) = (0, 0);
        for at in (0x400..after.len()).step_by(after.len() / 97) {
            let mut damaged = after.clone();
            damaged[at] ^= 0x5a;
            tried += 1;
            let verdict = std::panic::catch_unwind(|| compare(&fixture.bytes, &damaged, &marker));
            noticed += usize::from(verdict.map_or(true, |problems| !problems.is_empty()));
        }
        // Padding between segments is nobody's.
        assert!(noticed * 2 > tried, "{name}: {noticed} of {tried} damaged files were noticed");
    }
}
