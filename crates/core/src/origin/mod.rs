//! The origin machine.

mod config;
pub mod io;

pub use config::{OriginConfig, RecoverError, RecoveredDomain};

use crate::machine::Machine;
use crate::time::{Instant, WallTime};
use io::{OriginInput, OriginOutput};

/// The server that makes commits durable: the front of one or more order domains.
#[derive(Debug)]
pub struct Origin {
    config: OriginConfig,
}

impl Origin {
    /// Starts from what the domains' stores recovered. The outputs contain each domain's first
    /// append; children are welcomed when those are durable. Errors: the stores' content does not
    /// hang together.
    pub fn new(
        config: OriginConfig,
        _now: Instant,
        _wall: WallTime,
        _domains: Vec<RecoveredDomain>,
        _out: &mut Vec<OriginOutput>,
    ) -> Result<Self, RecoverError> {
        Ok(Self { config })
    }
}

impl Machine for Origin {
    type Input = OriginInput;
    type Output = OriginOutput;

    fn handle(&mut self, _now: Instant, _input: OriginInput, _out: &mut Vec<OriginOutput>) {
        todo!("{:?}", self.config)
    }

    fn handle_timeout(&mut self, _now: Instant, _out: &mut Vec<OriginOutput>) {
        todo!()
    }

    fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    fn check(&self) {}
}
