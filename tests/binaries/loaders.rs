//! Every ELF fixture, rewritten, under the real loader: as it is, after each tool, and with the tool before the split.

use std::collections::BTreeMap;

use super::elf_compare;
use super::loading::{Fate, load};
use super::matrix;
use super::rewrite::{Fixture, fixtures, marker, rewrite, rewrite_fat};
use super::tools::{ELF_TOOLS, Tool, in_parallel, required, write};

/// The tools that are there.
fn tools() -> Vec<Tool> {
    let (there, missing): (Vec<Tool>, Vec<Tool>) = ELF_TOOLS.into_iter().partition(Tool::is_there);
    let missing: Vec<&str> = missing.iter().map(|tool| tool.name).collect();
    assert!(missing.is_empty() || !required(), "missing tools: {missing:?}");
    if !missing.is_empty() {
        eprintln!("skipped, for want of the tools (see .ci/install-tools): {missing:?}");
    }
    there
}

/// Those that this machine can run.
fn runnable() -> Vec<Fixture> {
    let directory = tempfile::tempdir().unwrap();
    let mut fixtures = fixtures("elf");
    fixtures.retain(|fixture| {
        let file = directory.path().join(&fixture.name);
        write(&file, &fixture.bytes);
        let fate = load(&fixture.name, &file);
        assert!(fate.is_some() || !required(), "{} cannot be run here", fixture.name);
        if fate.is_none() {
            eprintln!("skipped, for want of a machine or emulator: {}", fixture.name);
        }
        fate.is_none_or(|(fate, _)| {
            assert_eq!(fate, Fate::Loads, "{}: the fixture itself", fixture.name);
            true
        })
    });
    fixtures.retain(|fixture| super::loading::command(&fixture.name, directory.path()).is_some());
    fixtures
}

/// What becomes of `bytes` after `tool`.
fn fate(name: &str, bytes: &[u8], tool: Option<&Tool>) -> (Fate, Vec<String>, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    write(&file, bytes);
    if let Some(Err(said)) = tool.map(|tool| tool.apply(&file)) {
        return (Fate::Refused(said), Vec::new(), Vec::new());
    }
    let (fate, log) = load(name, &file).unwrap();
    (fate, log, std::fs::read(&file).unwrap())
}

#[test]
fn split_binaries_load() {
    let problems: Vec<String> = in_parallel(&runnable(), |fixture| {
        let after = rewrite_fat(&fixture.name, &fixture.bytes, &marker(&fixture.name));
        let (was, old_log, _) = fate(&fixture.name, &fixture.bytes, None);
        let (is, new_log, _) = fate(&fixture.name, &after, None);
        assert_eq!(was, Fate::Loads);
        (is != Fate::Loads || old_log != new_log).then(|| format!("{}: {is:?} {new_log:?}", fixture.name))
    })
    .into_iter()
    .flatten()
    .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Wherever a tool leaves the input loadable, it leaves the split binary loadable.
#[test]
fn no_tool_breaks_what_was_split() {
    let (tools, fixtures) = (tools(), runnable());
    let jobs: Vec<(&Fixture, &Tool)> =
        fixtures.iter().flat_map(|fixture| tools.iter().map(move |tool| (fixture, tool))).collect();
    let cells = in_parallel(&jobs, |&(fixture, tool)| {
        let after = rewrite_fat(&fixture.name, &fixture.bytes, &marker(&fixture.name));
        let (input, old_log, _) = fate(&fixture.name, &fixture.bytes, Some(tool));
        let (ours, new_log, _) = fate(&fixture.name, &after, Some(tool));
        let same_wrappers = old_log == new_log;
        (input, ours, same_wrappers)
    });
    let mut problems = Vec::new();
    let mut table = BTreeMap::new();
    for (&(fixture, tool), (input, ours, same_wrappers)) in jobs.iter().zip(&cells) {
        let both_load = *input == Fate::Loads && *ours == Fate::Loads;
        if *input == Fate::Loads && *ours != Fate::Loads || both_load && !same_wrappers {
            problems.push(format!("{} after {}: {ours:?}", fixture.name, tool.name));
        }
        table.insert((fixture.name.clone(), tool.name), (input.clone(), ours.clone()));
    }
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
    matrix::check(&fixtures, &tools, &table);
}

/// What a tool has made of a fat binary splits, is the same program, and loads; also after one more tool.
#[test]
fn what_tools_made_can_be_split() {
    let (tools, fixtures) = (tools(), runnable());
    let later: Vec<&Tool> = tools
        .iter()
        .filter(|tool| ["strip", "patchelf 0.17 rpath", "patchelf 0.19 needed"].contains(&tool.name))
        .collect();
    let jobs: Vec<(&Fixture, &Tool)> =
        fixtures.iter().flat_map(|fixture| tools.iter().map(move |tool| (fixture, tool))).collect();
    let problems = in_parallel(&jobs, |&(fixture, tool)| {
        let name = &fixture.name;
        let place = format!("{name} after {}", tool.name);
        let (input, old_log, bytes) = fate(name, &fixture.bytes, Some(tool));
        if input != Fate::Loads {
            return Vec::new();
        }
        let marker = marker(name);
        let after = match rewrite(&bytes, &marker) {
            Ok(Some(after)) => after,
            Ok(None) => return vec![format!("{place}: no fat binary any more")],
            Err(fault) => return vec![format!("{place}: {fault}")],
        };
        let named = if tool.name.ends_with("--strip-sections") { &fixture.bytes } else { &bytes };
        let mut problems: Vec<String> = elf_compare::compare_like(named, &bytes, &after, &marker)
            .into_iter()
            .map(|problem| format!("{place}: {problem}"))
            .collect();
        let (ours, new_log, _) = fate(name, &after, None);
        if ours != Fate::Loads || old_log != new_log {
            problems.push(format!("{place}, split: {ours:?}"));
        }
        for second in &later {
            let (input, ..) = fate(name, &bytes, Some(second));
            let (ours, ..) = fate(name, &after, Some(second));
            if input == Fate::Loads && ours != Fate::Loads {
                problems.push(format!("{place}, split, then {}: {ours:?}", second.name));
            }
        }
        problems
    });
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
}
