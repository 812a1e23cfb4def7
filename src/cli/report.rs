//! The summary table and the error message.

use std::io::{self, Write};
use std::path::Path;

use crate::error::Error;
use crate::options::SplitReport;

/// Targets that a row of the table names before it only counts them.
const NAMED_TARGETS: usize = 4;

/// Prints what a split has done.
pub(super) fn summary(report: &SplitReport, verbose: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write_summary(&mut out, report, verbose)?;
    out.flush()
}

/// Prints an empty line between the summaries of two wheels.
pub(super) fn gap() {
    let _ = writeln!(io::stdout().lock());
}

/// Prints an error.
pub(super) fn failure(error: &Error) {
    let _ = writeln!(io::stderr().lock(), "error: {}", printable(&error.to_string()));
}

/// Prints the warnings, each with the name of `wheel` if there are several.
pub(super) fn warnings(report: &SplitReport, wheel: Option<&Path>) {
    let _ = write_warnings(&mut io::stderr().lock(), report, wheel);
}

/// Prints which of several wheels could not be split.
pub(super) fn unsplit(inputs: &[&Path], of: usize) {
    let names: Vec<String> = inputs.iter().map(|input| printable(&input.to_string_lossy())).collect();
    let list = names.join(", ");
    let _ = writeln!(io::stderr().lock(), "error: {} of {of} wheels were not split: {list}", inputs.len());
}

/// Prints where the time went, to standard error.
pub(super) fn timings(report: &SplitReport) {
    let _ = write_timings(&mut io::stderr().lock(), report);
}

fn write_timings(out: &mut impl Write, report: &SplitReport) -> io::Result<()> {
    writeln!(
        out,
        "{:<14} {:>9} {:>9} {:>10} {:>12} {:>8} {:>6}",
        "stage", "busy", "waiting", "bytes", "rate", "items", "queue"
    )?;
    for timing in &report.timings {
        let busy = timing.busy.as_secs_f64();
        let rate = if timing.bytes > 0 && busy > 0.0 {
            format!("{}/s", bytes((timing.bytes as f64 / busy) as u64))
        } else {
            String::new()
        };
        writeln!(
            out,
            "{:<14} {:>7.3} s {:>7.3} s {:>10} {:>12} {:>8} {:>6}",
            timing.stage,
            busy,
            timing.waiting.as_secs_f64(),
            bytes(timing.bytes),
            rate,
            timing.items,
            timing.deepest_queue
        )?;
    }
    Ok(())
}

fn write_warnings(out: &mut impl Write, report: &SplitReport, wheel: Option<&Path>) -> io::Result<()> {
    let wheel = wheel.map(|wheel| format!("{}: ", printable(&wheel.to_string_lossy()))).unwrap_or_default();
    report.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {wheel}{}", printable(warning)))
}

fn write_summary(out: &mut impl Write, report: &SplitReport, verbose: bool) -> io::Result<()> {
    let name = |path: &Path| printable(&path.file_name().unwrap_or_default().to_string_lossy());
    writeln!(out, "host    {}", name(&report.host.path))?;
    writeln!(out, "        {} -> {}", bytes(report.input_size), bytes(report.host.size))?;
    if report.already_split {
        return writeln!(out, "        nothing to do: the wheel has been split before");
    }
    if verbose {
        for binary in &report.split_binaries {
            writeln!(out, "        split {}", printable(binary))?;
        }
    }
    if let Some(variant) = &report.variant {
        writeln!(out, "variant {}", name(&variant.path))?;
        writeln!(out, "        {}", bytes(variant.size))?;
    }
    let rows: Vec<[String; 5]> = report
        .devices
        .iter()
        .map(|device| {
            let mut targets: Vec<&str> = device.targets.iter().map(String::as_str).collect();
            let more = targets.len().saturating_sub(NAMED_TARGETS);
            let rest = format!("+{more}");
            if more > 0 && !verbose {
                targets.truncate(NAMED_TARGETS);
                targets.push(&rest);
            }
            [
                printable(&device.name),
                targets.join(" "),
                device.code_objects.to_string(),
                device.files.to_string(),
                bytes(device.output.size),
            ]
        })
        .collect();
    let head = ["device wheel", "targets", "code objects", "files", "size"].map(str::to_owned);
    let mut widths = [0; 5];
    for row in std::iter::once(&head).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    writeln!(out)?;
    for [wheel, targets, objects, files, size] in std::iter::once(&head).chain(&rows) {
        let [a, b, c, d, e] = widths;
        writeln!(out, "{wheel:a$}  {targets:b$}  {objects:>c$}  {files:>d$}  {size:>e$}")?;
    }
    Ok(())
}

/// `123 B`, `1.5 MiB`: three significant digits, as people read sizes.
fn bytes(size: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = size as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Names come out of an archive that anybody may have made: control characters must not reach the terminal.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control() && c != '\n';
            let (plain, escape) = if escaped { (None, Some(c.escape_debug())) } else { (Some(c), None) };
            plain.into_iter().chain(escape.into_iter().flatten())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (157_286_400, "150 MiB"),
            (5 << 30, "5.00 GiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn terminal_escapes_are_shown_not_sent() {
        assert_eq!(printable("a\x1b[31mb\nc"), "a\\u{1b}[31mb\nc");
    }
}
