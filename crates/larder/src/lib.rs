//! Larder's runtime and client library: the machines of `larder_core`, driven by tokio over
//! TCP with mutual TLS, and the API by which programs read and change volumes.
//!
//! A program embeds a [`client::Node`]: a cache in its own process, linked to an origin or a
//! relay. `examples/counter.rs` is a whole program to copy.

pub mod backup;
pub mod client;
pub mod clock;
pub mod config;
pub mod fs;
mod host;
pub mod http;
pub mod limits;
pub mod log;
pub mod metrics;
pub mod planted;
pub mod server;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod testing;
pub mod tls;
mod transport;

pub use larder_core as core;
