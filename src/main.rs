//! The `fatwheel` program. Everything is in the library.

fn main() -> fatwheel::cli::ExitCode {
    fatwheel::cli::main()
}
