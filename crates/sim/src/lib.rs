//! The simulator: whole Larder worlds in virtual time, from one seed each.
//!
//! A run draws a [`plan::Plan`] from its seed: a tree of processes, small limits, a mix of
//! operations, a set of troubles. [`world::World`] plays it: the machines of `larder-core` and the
//! log of `larder-store` are the real ones; clocks, network and disks are made here. Every step
//! is checked ([`check`]), and every event goes into a hash that must be the same in two runs.

pub mod agenda;
pub mod check;
pub mod client;
pub mod clock;
pub mod decisions;
pub mod digest;
pub mod draws;
#[cfg(feature = "runtime")]
pub mod experiments;
#[cfg(feature = "files")]
pub mod files;
#[cfg(not(feature = "files"))]
#[path = "files_none.rs"]
pub mod files;
pub mod fleet;
pub mod net;
pub mod plan;
pub mod planted;
pub mod probes;
pub mod recording;
pub mod run;
#[cfg(feature = "runtime")]
pub mod runtime;
pub mod scenario;
pub mod shrink;
pub mod trace;
pub mod world;
