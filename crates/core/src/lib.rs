//! Larder's protocol as pure state machines.
//!
//! Nothing here knows a clock, a thread, a socket or a file: the simulator and the runtime drive
//! the same code. Read `docs/ARCHITECTURE.md` first.

// Whatever `clippy.toml` does not name: hash order is another in every process.
#![deny(clippy::iter_over_hash_type)]

pub mod across;
pub mod cache;
pub mod commit;
pub mod confirmed;
pub mod downlink;
pub mod group;
mod hash;
pub mod id;
pub mod machine;
pub mod message;
pub mod origin;
pub mod page;
pub mod probe;
pub mod record;
pub mod relay;
#[cfg(feature = "faults")]
mod rest;
pub mod rights;
pub mod rng;
pub mod share;
pub mod time;
mod turns;
pub mod wire;
