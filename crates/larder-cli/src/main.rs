//! The `larder` binary.
fn main() {}
