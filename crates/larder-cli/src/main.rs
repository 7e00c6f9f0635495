//! The `larder` binary.

mod mount;

fn main() {}
