//! A device that takes a write and never answers: the domain whose log is on it stands still, and
//! nothing else may (P7, P10). When the troubles are over every node asks every other domain for
//! something that needs its log, its links and its stream; a domain that does not answer, because
//! another one hangs, is a broken promise.

use super::{Machinery, World};
use crate::agenda::SECOND;
use crate::net::Proc;
use crate::world::troubles::Mend;
use larder_core::cache::io::CacheOp;
use larder_core::id::{DomainId, RequestId, VolumeId};

/// The other domains answer all nodes within so much virtual time after the troubles.
const ANSWER_NANOS: u64 = 100 * SECOND;
/// A question is asked anew when it was answered with an error.
const STEPS: u32 = 3;

/// What a node asks a domain.
#[derive(Debug)]
pub(super) struct Probe {
    proc: Proc,
    domain: DomainId,
    volume: VolumeId,
    /// How many of its questions were answered.
    step: u32,
    /// The question under way, and the life of the node that asked.
    request: Option<(RequestId, u32)>,
}

impl World {
    /// A domain's log stops answering, if there is another domain.
    pub(super) fn hang(&mut self) {
        let number = self.rng.below(self.domains.len() as u64) as usize;
        let delay = self.rng.below(40 * SECOND);
        let proc = self.origin_of(number);
        let origin = self.process(proc);
        let (up, incarnation) = (origin.is_up(), origin.incarnation);
        if !up || self.hung().is_some() {
            return;
        }
        self.stores[number].hangs = true;
        // An operator sees it, sooner or later.
        let mend = Mend::RestartOrigin { origin: proc, incarnation, power: false };
        self.enter_mend(delay, mend);
    }

    /// The domain that hangs now.
    pub(super) fn hung(&mut self) -> Option<DomainId> {
        let stores = &self.stores;
        stores.iter().find(|store| store.hangs).map(|store| store.domain)
    }

    /// Plays until every other domain has answered every node, or the hang is over.
    pub(super) fn others_go_on(&mut self) {
        let until = self.now.plus(ANSWER_NANOS);
        let Some(hung) = self.hung() else {
            return;
        };
        self.enter_probes(hung);
        while self.hung() == Some(hung) && self.ask_probes() {
            assert!(
                self.now < until,
                "P10: {hung:?} hangs, and another domain has not answered: {:?}",
                self.probes
            );
            for _ in 0..64 {
                self.step();
            }
        }
        self.probes.clear();
        // The operator has noticed by now.
        if let Some(hung) = self.hung() {
            self.kill_origin(self.origin_of_domain(hung), false);
        }
    }

    fn enter_probes(&mut self, hung: DomainId) {
        let nodes = (0..self.processes.len() as u16).map(Proc).filter(|proc| {
            let process = self.process(*proc);
            matches!(process.machinery, Machinery::Node(_)) && !process.retired
        });
        let nodes: Vec<Proc> = nodes.collect();
        for proc in nodes {
            for domain in self.domains.clone() {
                let volume = self.volumes.iter().find(|plan| plan.domain == domain);
                let volume = volume.expect("every domain has a volume").spec.id;
                if domain != hung {
                    self.probes.push(Probe { proc, domain, volume, step: 0, request: None });
                }
            }
        }
    }

    /// Asks what is not asked yet. False: everything was answered.
    fn ask_probes(&mut self) -> bool {
        for number in 0..self.probes.len() {
            let Probe { proc, domain, volume, step, request } = self.probes[number];
            let process = self.process(proc);
            let asked = request.is_some_and(|(_, life)| life == process.incarnation);
            let failed = self.oracle.truth(domain).has_failed();
            if asked || failed || step == STEPS || !process.is_up() {
                continue;
            }
            let life = process.incarnation;
            let plan = self.volumes.iter().find(|plan| plan.spec.id == volume);
            let op = match step {
                0 => CacheOp::CreateVolume(plan.expect("it was planned").spec.clone()),
                1 => CacheOp::AllocateIds { volume, count: 1 },
                _ => CacheOp::Refresh { domain },
            };
            let node = self.process_mut(proc).node();
            node.requests += 1;
            let id = RequestId(node.requests);
            self.probes[number].request = Some((id, life));
            self.node_request(proc, id, op, self.patience());
        }
        let failed = |probe: &Probe| self.oracle.truth(probe.domain).has_failed();
        self.probes.iter().any(|probe| probe.step < STEPS && !failed(probe))
    }

    /// A node answers what nobody waits for.
    pub(super) fn probe_reply(&mut self, proc: Proc, id: RequestId, well: bool) {
        let asked = |probe: &&mut Probe| {
            probe.proc == proc && probe.request.is_some_and(|(request, _)| request == id)
        };
        if let Some(probe) = self.probes.iter_mut().find(asked) {
            probe.request = None;
            if well {
                probe.step += 1;
                self.tally.went_on += 1;
            }
        }
    }
}
