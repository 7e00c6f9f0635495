//! Worlds with two origins (decision 0038). The second has the domains of even numbers; whoever is below has both for parents,
//! and the two dial each other, or one of them the other. An operator who sees that one of them is not heard, since its
//! stores were restored from before, accepts what was lost.

use crate::agenda::SECOND;
use crate::net::{End, Proc, link_of};
use crate::world::troubles::Mend;
use crate::world::{Machinery, World};
use larder_core::across::OriginMessage;
use larder_core::id::{DomainId, HistoryId, Stamp};
use larder_core::message::{DomainInfo, EPOCHS_MAX, Epoch, Message};
use larder_core::origin::io::{OriginInput, PeerInput};
use std::collections::{BTreeMap, BTreeSet};

/// The first origin of a world.
pub(in crate::world) const ORIGIN: Proc = Proc(0);

/// The number of a domain: its store's place.
pub(super) fn number_of(domain: DomainId) -> usize {
    (domain.0 - 1) as usize
}

/// Whether it is what a domain says to one of another origin.
pub(in crate::world) fn is_said(message: &Message) -> bool {
    matches!(message, Message::Origin(OriginMessage::Says { .. }))
}

/// What origins were told by each other, which their machines are held against: nothing is heard of what was restored from
/// before (P12), unless its operator has accepted that.
#[derive(Debug, Default)]
pub(in crate::world) struct Told {
    /// Of a domain, in this life of an origin: the history that it is in, and the last stamp that was told.
    known: BTreeMap<(Proc, u32, DomainId), (HistoryId, Stamp)>,
    /// The same as was said over a connection.
    said: BTreeMap<(u32, Proc, DomainId), HistoryId>,
    /// Connections over which a loss is accepted.
    accepting: BTreeSet<(u32, Proc)>,
}

impl World {
    /// The second origin, after all other processes.
    pub(in crate::world) fn second_origin(&self) -> Option<Proc> {
        let last = self.processes.len() as u16 - 1;
        self.plan.second_origin.then_some(Proc(last))
    }

    /// All origins.
    pub(in crate::world) fn origins(&self) -> impl Iterator<Item = Proc> + use<> {
        std::iter::once(ORIGIN).chain(self.second_origin())
    }

    /// Whether a process is one.
    pub(in crate::world) fn is_origin(&self, proc: Proc) -> bool {
        matches!(self.process(proc).machinery, Machinery::Origin(_))
    }

    /// The other one.
    pub(super) fn other_origin(&self, origin: Proc) -> Option<Proc> {
        let second = self.second_origin()?;
        Some(if origin == ORIGIN { second } else { ORIGIN })
    }

    /// The origin of the domain of this number.
    pub(in crate::world) fn origin_of(&self, number: usize) -> Proc {
        self.second_origin().filter(|_| !number.is_multiple_of(2)).unwrap_or(ORIGIN)
    }

    /// The origin of a domain.
    pub(in crate::world) fn origin_of_domain(&self, domain: DomainId) -> Proc {
        self.origin_of(number_of(domain))
    }

    /// The numbers of its domains.
    pub(super) fn numbers_of(&self, origin: Proc) -> Vec<usize> {
        (0..self.domains.len()).filter(|number| self.origin_of(*number) == origin).collect()
    }

    /// One of the origins.
    pub(in crate::world) fn any_origin(&mut self) -> Proc {
        match self.second_origin() {
            Some(second) if self.rng.chance(1, 2) => second,
            _ => ORIGIN,
        }
    }

    /// One of two, or both.
    pub(in crate::world) fn one_origin_or_all(&mut self) -> Vec<Proc> {
        match self.second_origin() {
            Some(_) if self.rng.chance(2, 3) => vec![self.any_origin()],
            _ => self.origins().collect(),
        }
    }

    /// Whether an origin dials the other: mostly both do.
    pub(in crate::world) fn dials(&self, origin: Proc) -> bool {
        let who = self.plan.seed % 4;
        self.plan.second_origin && who != if origin == ORIGIN { 1 } else { 2 }
    }

    /// Whether a connection is between two origins.
    pub(in crate::world) fn is_between_origins(&self, conn: u32) -> bool {
        self.is_origin(self.net.conn(conn).child)
    }

    pub(in crate::world) fn peer_input(&mut self, origin: Proc, input: PeerInput) {
        self.origin_input(origin, OriginInput::Peer(input));
    }

    /// A connection between origins stands.
    pub(in crate::world) fn peer_opened(&mut self, conn: u32, end: End) {
        let (origin, link) = (self.net.conn(conn).at(end), link_of(conn));
        let other = self.other_origin(origin).expect("the other end");
        let (peer, dialed) = (self.process(other).name.clone(), end == End::Child);
        self.peer_input(origin, PeerInput::Opened { link, peer, dialed });
    }

    /// An origin hears the other one.
    pub(in crate::world) fn peer_says(&mut self, conn: u32, origin: Proc, message: Message) {
        let key = (origin, self.process(origin).incarnation);
        let mut lines = Vec::new();
        match &message {
            Message::Origin(OriginMessage::Greets { accept_fork: true, .. }) => {
                self.told.accepting.insert((conn, origin));
            }
            Message::Origin(OriginMessage::Serves { domains }) => lines.clone_from(domains),
            Message::Origin(OriginMessage::Says { from, through, .. }) => {
                let said = self.told.said.get(&(conn, origin, *from));
                if let Some((history, known)) = self.told.known.get_mut(&(key.0, key.1, *from))
                    && said == Some(history)
                {
                    *known = (*known).max(*through);
                }
            }
            _ => {}
        }
        self.peer_input(origin, PeerInput::Received { link: link_of(conn), message });
        for DomainInfo { domain, epochs } in &lines {
            self.check_line((conn, origin), (key.0, key.1, *domain), epochs);
        }
    }

    fn check_line(&mut self, way: (u32, Proc), key: (Proc, u32, DomainId), line: &[Epoch]) {
        let (origin, _, domain) = key;
        let Some(last) = line.last() else { return };
        self.told.said.insert((way.0, way.1, domain), last.history);
        let accepts = self.told.accepting.contains(&way);
        let Some(machine) = &self.process_mut(origin).origin().machine else { return };
        let is_forked = machine.peers().iter().any(|peer| peer.forked.contains(&domain));
        let truth = self.oracle.truth(domain);
        let now = truth.branch_number(last.history);
        let known = self.told.known.get(&key).copied();
        let lost = known.is_some_and(|(history, through)| {
            let before = truth.branch_number(history);
            before != now && through > truth.common(before, now)
        });
        let first = last.first.previous();
        if accepts && (lost || is_forked) {
            self.told.known.insert(key, (last.history, first));
        } else if !is_forked {
            assert!(
                !lost || line.len() == EPOCHS_MAX,
                "P12: {origin:?} was told {known:?} of {domain:?}, and hears a copy from before that: {line:?}"
            );
            let through = known.map_or(first, |(_, through)| through.max(first));
            self.told.known.insert(key, (last.history, through));
        }
    }

    /// An operator looks at what an origin tells of the other.
    pub(super) fn look_at_peers(&mut self, origin: Proc) {
        let Some(other) = self.other_origin(origin) else { return };
        let Some(machine) = &self.process_mut(origin).origin().machine else { return };
        let unheard: Vec<DomainId> =
            machine.peers().into_iter().flat_map(|peer| peer.forked).collect();
        // The link of one that has died is there until this side hears of that.
        let lingers = |conn: &u32| {
            let end = if self.net.conn(*conn).child == origin { End::Child } else { End::Parent };
            self.net.is_broken(*conn) && self.net.conn(*conn).is_open(end)
        };
        let mut between = self.net.live().into_iter().filter(|conn| self.is_between_origins(*conn));
        if between.any(|conn| lingers(&conn)) {
            return;
        }
        for domain in &unheard {
            assert!(
                self.oracle.truth(*domain).branch_count() > 1,
                "P12: {domain:?} is not heard as if it were restored, and it was not"
            );
        }
        let is_unheard = !unheard.is_empty();
        if is_unheard && !self.accepts_fork(other) && self.rng.chance(1, 4) {
            let delay = self.rng.below(2 * SECOND);
            self.enter_mend(delay, Mend::Unheard(other));
        }
    }
}
