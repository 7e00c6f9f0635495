//! A parent's side of its links: what origin and relay share.

mod config;

pub use config::DownlinkConfig;
