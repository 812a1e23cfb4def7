//! Golden files: texts in `tests/golden` that outputs must equal. `FATWHEEL_UPDATE_GOLDEN=1 cargo test` writes them anew;
//! look at the difference before committing it.

use std::fs;
use std::path::Path;

/// Compares with `tests/golden/<name>`.
#[track_caller]
pub fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("FATWHEEL_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, actual).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{name}: {error}; FATWHEEL_UPDATE_GOLDEN=1 makes it"));
    if expected != actual {
        let line = expected.lines().zip(actual.lines()).take_while(|(a, b)| a == b).count();
        panic!(
            "tests/golden/{name} differs from line {} on (FATWHEEL_UPDATE_GOLDEN=1 accepts this):\n{actual}",
            line + 1
        );
    }
}
