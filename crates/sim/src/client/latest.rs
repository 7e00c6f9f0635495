//! A client that wants the latest state: once its node has answered `Refresh`, what it is shown has all
//! that anybody was told of before it asked.

use super::Stage;
use crate::plan::pick;
use crate::world::World;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::id::{DomainId, Stamp};
use larder_core::message::RequestError;

/// What a client asked for, and what had been acknowledged by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    domain: DomainId,
    acknowledged: Stamp,
    /// Restores of the domain before it asked.
    branches: usize,
}

impl World {
    pub(super) fn client_refreshes(&mut self, index: usize) {
        let domain = pick(&mut self.rng, &self.domains);
        let truth = self.oracle.truth(domain);
        let (acknowledged, branches) = (truth.real_time_floor(), truth.branch_count());
        self.clients[index].stage = Stage::Latest(Asked { domain, acknowledged, branches });
        self.client_asks(index, CacheOp::Refresh { domain });
    }

    /// The node has the latest state, or nobody answers.
    pub(super) fn client_refreshed(
        &mut self,
        index: usize,
        asked: Asked,
        result: Result<CacheReply, RequestError>,
    ) {
        let Asked { domain, acknowledged, branches } = asked;
        if let Ok(reply) = result {
            let CacheReply::Through(through) = reply else {
                panic!("{reply:?} answers no refresh");
            };
            let shown = self.processes_read(index).through(domain);
            let lost = self.oracle.truth(domain).branch_count() != branches;
            assert!(
                lost || through >= acknowledged && shown >= Some(acknowledged),
                "P2: client {index} asked for the latest state of {domain:?} and is at {through} \
                 ({shown:?}), though {acknowledged} was acknowledged before it asked"
            );
            self.tally.refreshed += 1;
        }
        self.client_thinks(index);
    }
}
