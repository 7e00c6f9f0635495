//! The cache machine of a node.

use super::io::{CacheInput, CacheOutput};
use super::{CacheConfig, ReadCache};
use crate::machine::Machine;
use crate::time::Instant;
use std::sync::Arc;

/// The cache machine: see the module.
pub struct Cache {
    config: CacheConfig,
    shared: Arc<ReadCache>,
}

impl Cache {
    /// A cache that holds nothing, and what its readers share.
    #[must_use]
    pub fn new(config: CacheConfig) -> (Self, Arc<ReadCache>) {
        let shared = Arc::new(ReadCache::new(
            config.transactions_max,
            Arc::clone(&config.clock),
            config.faults,
        ));
        let cache = Self { config, shared: Arc::clone(&shared) };
        (cache, shared)
    }
}

impl Machine for Cache {
    type Input = CacheInput;
    type Output = CacheOutput;

    fn handle(&mut self, _now: Instant, _input: CacheInput, _out: &mut Vec<CacheOutput>) {
        todo!()
    }

    fn handle_timeout(&mut self, _now: Instant, _out: &mut Vec<CacheOutput>) {
        todo!()
    }

    fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    fn check(&self) {
        todo!()
    }
}
