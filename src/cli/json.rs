//! The result as JSON, for scripts. The format has a version; fields are added, never changed or removed, within one.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::ExitCode;
use crate::error::Error;
use crate::options::{Output, SplitReport};

/// Version of the format.
const VERSION: u32 = 1;

/// Prints one JSON object and a newline to standard output.
pub(super) fn print(input: &Path, report: &SplitReport, timings: bool) -> io::Result<()> {
    write(&value(input, report, timings))
}

/// The same for one of several wheels that could not be split, so that there is an object for each.
pub(super) fn failure(input: &Path, error: &Error) -> io::Result<()> {
    write(&json!({
        "format": VERSION,
        "input": input.to_string_lossy(),
        "error": error.to_string(),
        "exit_code": ExitCode::of(error) as u8,
    }))
}

fn write(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value:#}")?;
    out.flush()
}

fn value(input: &Path, report: &SplitReport, timings: bool) -> Value {
    let devices: Vec<Value> = report
        .devices
        .iter()
        .map(|device| {
            json!({
                "key": device.key,
                "name": device.name,
                "path": device.output.path.to_string_lossy(),
                "size": device.output.size,
                "targets": device.targets,
                "code_objects": device.code_objects,
                "files": device.files,
            })
        })
        .collect();
    let mut value = json!({
        "format": VERSION,
        "input": input.to_string_lossy(),
        "input_size": report.input_size,
        "already_split": report.already_split,
        "host": output(&report.host),
        "variant": report.variant.as_ref().map(output),
        "devices": devices,
        "split_binaries": report.split_binaries,
        "warnings": report.warnings,
    });
    if timings && let Some(object) = value.as_object_mut() {
        let stages: Vec<Value> = report
            .timings
            .iter()
            .map(|timing| {
                json!({
                    "stage": timing.stage,
                    "busy_seconds": timing.busy.as_secs_f64(),
                    "waiting_seconds": timing.waiting.as_secs_f64(),
                    "bytes": timing.bytes,
                    "items": timing.items,
                    "deepest_queue": timing.deepest_queue,
                })
            })
            .collect();
        object.insert("timings".to_owned(), Value::Array(stages));
    }
    value
}

fn output(output: &Output) -> Value {
    json!({ "path": output.path.to_string_lossy(), "size": output.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let report = SplitReport {
            host: Output { path: "dist/a.whl".into(), size: 1, sha256: None },
            input_size: 2,
            variant: None,
            devices: Vec::new(),
            split_binaries: vec!["a/b.so".to_owned()],
            warnings: Vec::new(),
            already_split: false,
            timings: Vec::new(),
            record: None,
        };
        let value = value(Path::new("in/a.whl"), &report, true);
        assert_eq!((&value["format"], &value["input"]), (&json!(1), &json!("in/a.whl")));
        assert_eq!(value["host"]["path"], "dist/a.whl");
        assert_eq!(value["split_binaries"][0], "a/b.so");
        assert_eq!(value["timings"], json!([]));
        assert!(value["variant"].is_null());
    }
}
