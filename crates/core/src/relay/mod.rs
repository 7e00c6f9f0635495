//! The relay machine: one link up, many down, the same protocol on both sides.

mod config;
pub mod io;

pub use config::RelayConfig;

use crate::machine::Machine;
use crate::time::Instant;
use io::{RelayInput, RelayOutput};

/// A relay.
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
}

impl Relay {
    /// A relay without links; it holds nothing.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        Self { config }
    }
}

impl Machine for Relay {
    type Input = RelayInput;
    type Output = RelayOutput;

    fn handle(&mut self, _now: Instant, _input: RelayInput, _out: &mut Vec<RelayOutput>) {
        todo!("{:?}", self.config)
    }

    fn handle_timeout(&mut self, _now: Instant, _out: &mut Vec<RelayOutput>) {
        todo!()
    }

    fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    fn check(&self) {}
}
