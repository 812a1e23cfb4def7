//! The fatwheel binary.
fn main() {}
