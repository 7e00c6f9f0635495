//! Larder's runtime and client library: the machines of `larder_core`, driven by tokio over
//! TCP with mutual TLS, and the API by which programs read and change volumes.
//!
//! A program embeds a [`client::Node`]: a cache in its own process, linked to an origin or a
//! relay. `examples/counter.rs` is a whole program to copy.

#[cfg(feature = "runtime")]
pub mod backup;
#[cfg(feature = "runtime")]
pub mod client;
pub mod clock;
#[cfg(feature = "runtime")]
pub mod config;
pub mod fs;
#[cfg(feature = "runtime")]
mod group;
#[cfg(feature = "runtime")]
mod host;
#[cfg(feature = "runtime")]
pub mod http;
pub mod limits;
#[cfg(feature = "runtime")]
pub mod log;
#[cfg(feature = "runtime")]
pub mod metrics;
pub mod planted;
#[cfg(feature = "runtime")]
pub mod server;
#[cfg(feature = "simulated")]
pub mod simulated;
#[cfg(feature = "runtime")]
pub mod testing;
#[cfg(feature = "runtime")]
pub mod tls;
#[cfg(feature = "runtime")]
mod transport;

pub use larder_core as core;
