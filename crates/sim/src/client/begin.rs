//! How a client begins a transaction.

use super::acts::What;
use super::{Kind, Own, Run, SharedSession, Stage};
use crate::agenda::MILLI;
use crate::net::Proc;
use crate::plan::weighted;
use crate::world::World;
use larder_core::cache::io::CacheOp;
use larder_core::cache::{AgeLimit, BeginError, Consistency, SessionOptions};
use larder_core::id::PageId;
use larder_core::message::{VolumeChange, certificate_of};
use larder_core::rights::{Right, RightsEdit};
use larder_core::time::Duration;
use std::collections::BTreeMap;

/// An age limit shorter than any lease.
pub(crate) const SHORT_AGE: u64 = 200 * MILLI;

impl World {
    pub(super) fn client_begins(&mut self, index: usize) {
        if std::mem::take(&mut self.clients[index].opens_again) {
            return self.client_opens(index, 0);
        }
        if self.clients_drain() || !self.may_begin(index) {
            return;
        }
        if let Some(mine) = self.client_has_to_prove(index) {
            if mine {
                self.client_proves(index);
            }
            return;
        }
        if self.plan.mix.quota_percent > 0 && self.rng.below(100) < self.plan.mix.quota_percent {
            return self.client_sets_quota(index);
        }
        if self.plan.mix.rights_percent > 0 && self.rng.below(100) < self.plan.mix.rights_percent {
            return self.client_changes_rights(index);
        }
        if self.plan.mix.rights_of_all
            && self.rng.chance(1, 8)
            && let Some(number) = self.unopened(index)
        {
            return self.client_opens(index, number);
        }
        if self.plan.mix.delete_percent > 0 {
            if let Some(number) = self.unopened(index) {
                return self.client_opens(index, number);
            }
            if self.rng.below(100) < self.plan.mix.delete_percent {
                return self.client_deletes(index);
            }
        }
        if self.rng.below(100) < self.plan.mix.refresh_percent {
            return self.client_refreshes(index);
        }
        if self.rng.below(100) < self.plan.mix.copy_percent {
            return self.client_copies(index);
        }
        let kind = self.draw_kind();
        self.client_begins_as(index, kind, &[]);
    }

    /// Begins a transaction of a kind: a drawn one, or one that is to do just this.
    pub(super) fn client_begins_as(
        &mut self,
        index: usize,
        kind: Kind,
        only: &[(usize, Option<What>)],
    ) {
        let options = Self::options(kind);
        let read = self.processes_read(index);
        let session = &mut self.session(index).session;
        session.options = options;
        let begun = session.begin(&read);
        match begun {
            Ok(mut tx) => {
                let ids = std::mem::take(&mut self.clients[index].ids);
                let ahead = ids.first().map(|ids| PageId { volume: ids.volume, page: ids.first });
                for range in ids {
                    tx.supply_ids(range);
                }
                let mut run = Run { ahead, ..self.make_run(index, kind, tx) };
                self.aim(index, &mut run, only);
                self.clients[index].stage = Stage::Run(Box::new(run));
                self.client_goes_on(index, 0);
            }
            Err(BeginError::Wait(awaited)) => {
                self.clients[index].stage = Stage::Floor;
                self.client_asks(index, CacheOp::WaitThrough(awaited));
            }
            Err(BeginError::Unseen { domain, mark }) => {
                self.clients[index].stage = Stage::Unseen(domain, mark);
                self.client_asks(index, CacheOp::Refresh { domain });
            }
            Err(BeginError::HistoryLost(domain)) => {
                // Of what it did without a stamp nobody can tell whether it was before another history began.
                let unseen = self.session(index).unseen.contains(&domain);
                let accounted = unseen || self.oracle.truth(domain).may_lose_line();
                assert!(accounted, "P12: {domain:?} was never restored, and its line is lost");
                *self.session(index) = SharedSession::default();
                let place = self.clients[index].session;
                self.cycles.session_begins_anew(place);
                self.client_goes_on(index, 0);
            }
            Err(BeginError::TooMany) => self.client_goes_on(index, 10 * MILLI),
        }
    }

    /// A volume that took the place of a deleted one, and that the client's node has not opened yet.
    pub(super) fn unopened(&self, index: usize) -> Option<usize> {
        let read = self.processes_read(index);
        self.volumes.iter().position(|plan| read.volume(plan.spec.id).is_none())
    }

    /// An owner who wants it no more.
    fn client_deletes(&mut self, index: usize) {
        let number = self.rng.below(self.object_volumes() as u64) as usize;
        let id = self.volumes[number].spec.id;
        self.tally.deletions += 1;
        self.clients[index].stage = Stage::Floor;
        self.client_asks(index, CacheOp::DeleteVolume(id));
    }

    /// An administrator: none, next to nothing, or about what the volume takes.
    fn client_sets_quota(&mut self, index: usize) {
        let number = self.rng.below(self.volumes.len() as u64) as usize;
        let (id, domain) = (self.volumes[number].spec.id, self.volumes[number].domain);
        let taken = self.store_host(domain).ledger.bytes(id);
        let quota = match self.rng.below(4) {
            0 => None,
            1 => Some(self.rng.below(256)),
            _ => Some(taken + self.rng.below(2048)),
        };
        self.clients[index].stage = Stage::Floor;
        self.client_asks(index, CacheOp::ChangeVolume(id, VolumeChange::Quota(quota)));
    }

    /// An administrator: another node, or a relay, may do less, or more again. Unless rights of all
    /// change, nodes stay attached to each domain through its first volume, which all may read.
    fn client_changes_rights(&mut self, index: usize) {
        let number = self.rng.below(self.volumes.len() as u64) as usize;
        let (id, domain) = (self.volumes[number].spec.id, self.volumes[number].domain);
        let first = self.volumes.iter().position(|plan| plan.domain == domain) == Some(number);
        let mut names = self.node_names();
        if self.plan.mix.rights_of_all {
            names.extend(self.relay_names());
        }
        let who = names[self.rng.below(names.len() as u64) as usize].clone();
        let first = first && !self.plan.mix.rights_of_all;
        let right = match self.rng.below(4) {
            0 if !first => Right::None,
            0 | 1 => Right::Read,
            2 => Right::Write,
            _ => Right::Admin,
        };
        // The first node keeps all rights.
        let right = if who == names[0] { Right::Admin } else { right };
        let edits = vec![RightsEdit { who, right: Some(right) }];
        self.clients[index].stage = Stage::Floor;
        let change = VolumeChange::Rights { edits, force: true };
        self.client_asks(index, CacheOp::ChangeVolume(id, change));
    }

    fn relay_names(&self) -> impl Iterator<Item = String> {
        let nodes = self.plan.nodes.len() as u16;
        let beside = self.plan.group.as_ref().map_or(0, |group| group.standbys().len()) as u16;
        let relays = self.plan.relays.len() as u16;
        let all = (1..=relays).chain(relays + nodes + 1..=relays + nodes + beside);
        all.map(|relay| certificate_of(&self.process(Proc(relay)).name).to_owned())
    }

    /// The certificates of all nodes, ascending by process.
    fn node_names(&self) -> Vec<String> {
        let nodes = self.clients.iter().map(|client| client.node);
        let nodes: std::collections::BTreeSet<_> = nodes.collect();
        let name = |node| certificate_of(&self.process(node).name).to_owned();
        nodes.into_iter().map(name).collect()
    }

    fn draw_kind(&mut self) -> Kind {
        let weights = self.plan.mix.consistency;
        let kinds = [(0, weights[0]), (1, weights[1]), (2, weights[2])];
        let chosen = weighted(&mut self.rng, &kinds);
        let snapshot = chosen == 2;
        let reads_only = snapshot || self.rng.below(100) < self.plan.mix.read_only_percent;
        let lease = self.plan.limits.lease.as_nanos() as u64;
        let limited = self.plan.mix.ages_limited;
        let age_max = match self.rng.below(12) {
            _ if limited => Some(lease),
            0 => Some(SHORT_AGE),
            1 | 2 => Some(lease),
            _ => None,
        };
        let percent = self.plan.mix.ahead_percent;
        let ahead = percent > 0 && chosen == 1 && self.rng.below(100) < percent;
        Kind { strict: chosen == 0, snapshot, ahead, age_max, reads_only }
    }

    fn options(kind: Kind) -> SessionOptions {
        let consistency = if kind.strict {
            Consistency::Strict
        } else if kind.snapshot {
            Consistency::Snapshot
        } else {
            Consistency::Serializable
        };
        let age_limit = match kind.age_max {
            None => AgeLimit::None,
            Some(SHORT_AGE) => AgeLimit::AtMost(Duration::from_nanos(SHORT_AGE)),
            Some(_) => AgeLimit::Lease,
        };
        SessionOptions { consistency, age_limit, ahead: kind.ahead, ..SessionOptions::default() }
    }

    fn make_run(&mut self, index: usize, kind: Kind, tx: larder_core::cache::Transaction) -> Run {
        let spread = self.rng.below(100) < self.plan.mix.spread_percent;
        let first = self.rng.below(self.object_volumes() as u64) as usize;
        let domain = self.volumes[first].domain;
        let volumes = if spread {
            // Most writers stay where they are; of those that do not many are committed over several domains.
            let strays = kind.reads_only || self.domains.len() > 1 && self.rng.chance(1, 3);
            let same = |volume: &usize| strays || self.volumes[*volume].domain == domain;
            (0..self.object_volumes()).filter(same).collect()
        } else {
            vec![first]
        };
        let tag = (!kind.reads_only).then(|| {
            let node = self.clients[index].node;
            self.oracle.begin(format!("client {index} of {node:?}"), domain, node)
        });
        let mut real_time = BTreeMap::new();
        for domain in &self.domains {
            let truth = self.oracle.truth(*domain);
            real_time.insert(*domain, (truth.branch_count(), truth.real_time_floor()));
        }
        Run {
            tx,
            kind,
            tag,
            volumes,
            left: 1 + self.rng.below(self.plan.mix.length),
            done: 0,
            ahead: None,
            current: None,
            next: None,
            reads: BTreeMap::new(),
            effects: Vec::new(),
            begun: (self.cycles.now(), self.cycles.session(self.clients[index].session)),
            floors: self.session(index).floors.clone(),
            own: Own::default(),
            saved: None,
            made: Vec::new(),
            pages_made: Vec::new(),
            real_time,
        }
    }
}
