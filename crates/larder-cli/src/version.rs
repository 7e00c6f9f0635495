//! `larder version`: what was built.

use crate::out;
use anyhow::Result;
use larder_core::machine::Faults;
use serde_json::json;

/// A release has no switch that breaks a rule. Cargo compiles one `larder-core` for all packages of
/// one call, so that `cargo build --release --workspace` would take the simulator's features along.
const COMPILED_IN: bool = Faults::COMPILED_IN || larder::planted::COMPILED_IN;

#[cfg(not(debug_assertions))]
const _: () = assert!(
    !COMPILED_IN,
    "the planted faults are compiled in: build larder-cli in a call without larder-sim"
);

/// Prints the version.
pub(crate) fn print(as_json: bool) -> Result<()> {
    let (version, faults) = (env!("CARGO_PKG_VERSION"), COMPILED_IN);
    if as_json {
        out::line(json!({ "version": version, "faults": faults }))
    } else if faults {
        out::line(format_args!(
            "larder {version}, with the simulator's faults compiled in: for tests alone"
        ))
    } else {
        out::line(format_args!("larder {version}"))
    }
}
