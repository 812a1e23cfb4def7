//! PE fixtures under wine: the DLLs load and answer, the programs run; as they are, and after tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::loading::Fate;
use super::pe_compare::compare;
use super::rewrite::{fixture_root, fixtures, marker, rewrite, rewrite_fat};
use super::tools::{PE_TOOLS, Tool, find, find_or_skip, in_parallel, required, run, write};

struct Wine {
    program: PathBuf,
    /// Its C: drive and registry; made once, for that takes seconds.
    prefix: PathBuf,
}

impl Wine {
    fn start() -> Option<Self> {
        let program = find_or_skip("FATWHEEL_WINE")?;
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wine");
        fs::create_dir_all(&prefix).unwrap();
        let wine = Self { program, prefix };
        let booted = run(wine.command().args(["wineboot", "-i"]));
        assert!(booted.status.success(), "{}", String::from_utf8_lossy(&booted.stderr));
        Some(wine)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // No desktop, no offer of Mono and Gecko, no chatter.
        command.env("WINEPREFIX", &self.prefix).env("WINEARCH", "win64").env("WINEDEBUG", "-all");
        command.env("WINEDLLOVERRIDES", "mscoree,mshtml,winemenubuilder.exe=").env_remove("DISPLAY");
        command
    }

    /// Loads or runs what `bytes` become after `tool`; also returns these.
    fn fate(&self, name: &str, bytes: &[u8], tool: Option<&Tool>) -> (Fate, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        write(&file, bytes);
        if let Some(Err(said)) = tool.map(|tool| tool.apply(&file)) {
            return (Fate::Refused(said), Vec::new());
        }
        for companion in ["loader.exe", "amdhip64_7.dll"] {
            fs::copy(fixture_root().join("stub").join(companion), directory.path().join(companion)).unwrap();
        }
        let mut command = self.command();
        command.current_dir(directory.path());
        if name.ends_with(".dll") {
            command.args(["loader.exe", name])
        } else {
            command.arg(name)
        };
        let mut output = run(&mut command);
        for _ in 0..10 {
            // wine's own server is just ending: nothing was loaded yet.
            if !String::from_utf8_lossy(&output.stderr).contains("a wine server seems to be running") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_secs(1));
            output = run(&mut command);
        }
        let fate = match output.status.success() {
            true => Fate::Loads,
            false => {
                Fate::Breaks(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
            }
        };
        (fate, fs::read(&file).unwrap())
    }
}

#[test]
fn split_pe_files_load_under_wine() {
    let Some(wine) = Wine::start() else { return };
    let tools: Vec<Tool> = PE_TOOLS.into_iter().filter(|tool| find(tool.program).is_some()).collect();
    assert!(tools.len() == PE_TOOLS.len() || !required(), "tools for PE are missing");
    let steps: Vec<Option<&Tool>> = [None].into_iter().chain(tools.iter().map(Some)).collect();
    let mut fixtures = fixtures("pe");
    // wine runs the machine's own programs only.
    fixtures.retain(|fixture| fixture.name != "arm64.dll");
    let jobs: Vec<_> =
        fixtures.iter().flat_map(|fixture| steps.iter().map(move |step| (fixture, *step))).collect();
    let problems = in_parallel(&jobs, |&(fixture, step)| {
        let name = &fixture.name;
        let place = format!("{name} after {}", step.map_or("nothing", |tool| tool.name));
        let marker = marker(name);
        let (input, bytes) = wine.fate(name, &fixture.bytes, step);
        let mut problems = Vec::new();
        if step.is_none() && input != Fate::Loads {
            problems.push(format!("{place}: the fixture: {input:?}"));
        }
        if input != Fate::Loads {
            return problems;
        }
        // Split, then the tool; the tool, then split.
        let (ours, _) = wine.fate(name, &rewrite_fat(name, &fixture.bytes, &marker), step);
        if ours != Fate::Loads {
            problems.push(format!("split {place}: {ours:?}"));
        }
        if step.is_some() {
            match rewrite(&bytes, &marker) {
                Ok(Some(after)) => {
                    let found = compare(&bytes, &after, &marker);
                    problems.extend(found.into_iter().map(|problem| format!("{place}, split: {problem}")));
                    let (ours, _) = wine.fate(name, &after, None);
                    if ours != Fate::Loads {
                        problems.push(format!("{place}, split: {ours:?}"));
                    }
                }
                other => problems.push(format!("{place}: {other:?}")),
            }
        }
        problems
    });
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
