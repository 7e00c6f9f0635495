//! Commits of the nodes below: passed on, held back until all parts of a transaction can go, put off (rule 15).

use super::io::RelayOutput;
use super::{Alone, DeniedCommit, Held, HeldPart, Passed, Relay, WholeBytes};
use crate::commit::{
    Abort, Across, COMMIT_BYTES_MAX, CommitRequest, Outcome, PARTS_MAX, PartId, conflicts,
};
use crate::downlink::Recent;
use crate::id::{CommitId, DomainId, HistoryId, LinkId};
use crate::machine::Fault;
use crate::message::{ACROSS_SINCE, Message, RESTORES_SINCE, RequestError, Role};
use crate::rights::Right;
use crate::share::{Load, Room};

/// Of the bytes of commits that may be on their way, what a process may have of parts whose deciding one is not.
const ALONE_SHARE: usize = 64;

/// Most recent commits that are looked at for an early answer.
const EARLY_LOOKS_MAX: usize = 4096;

impl Relay {
    /// Passes a commit on, or answers it early (rule 13).
    pub(super) fn commit(
        &mut self,
        link: LinkId,
        domain: DomainId,
        commit: CommitRequest,
        out: &mut Vec<RelayOutput>,
    ) {
        let id = commit.id;
        if let Some(passed) = self.commits.get_mut(&(domain, id)) {
            if passed.links.contains(&link) {
                self.links.forget_request(link);
            } else if passed.denied.is_some() {
                let error = RequestError::Unavailable("its outcome is being asked for".into());
                self.links.defer(link, domain, id, error, out);
            } else {
                passed.links.push(link);
            }
            return;
        }
        if !self.is_registered(domain, id.boot) {
            let error = RequestError::Unavailable("its boot is being registered again".into());
            self.links.turn_away(link, domain, id, error, out);
            return;
        }
        let is_new = self.is_new_from_below(domain, id);
        let mut denied = None;
        let early = match self.check_relayed(link, &commit) {
            Ok(()) => self.early(link, domain, &commit),
            // Of a part the others would not hear, and wait for it.
            Err(Abort::Denied(why)) if !is_new || commit.across.is_some() => {
                let (history, base) = (commit.history, commit.base);
                denied = Some(DeniedCommit { why, history, base });
                None
            }
            Err(abort) => Some(abort),
        };
        if let Some(abort) = early {
            let ended = (Outcome::Aborted(abort), HistoryId::default());
            self.links.outcome(link, domain, id, ended, out);
            return;
        }
        let entry = self.domains.get(&domain).filter(|domain| domain.following);
        let up = entry.and_then(|entry| self.uplinks[entry.parent].welcomed());
        let Some((entry, up)) = entry.zip(up) else {
            let error = RequestError::Unavailable("the link to the parent is down".into());
            self.links.turn_away(link, domain, id, error, out);
            return;
        };
        let needs = if commit.across.is_some() { ACROSS_SINCE } else { RESTORES_SINCE };
        let newer = commit.across.is_some() || commit.restores();
        let older = (up.version < needs && newer).then_some(up.version);
        let parent = entry.parent;
        if let Some(version) = older {
            let error = RequestError::older_parent(version, needs);
            self.links.turn_away(link, domain, id, error, out);
            return;
        }
        // Of one that may not be done no more is sent than what asks for its outcome.
        let in_full = denied.is_none() || self.config.faults.has(Fault::DeniedInFull);
        let asks = (!in_full).then(|| settled(&commit));
        let bytes = asks.as_ref().unwrap_or(&commit).memory_bytes();
        let beside = commit.across.as_deref().map(Across::coordinator);
        let beside = beside.filter(|decides| decides.domain != domain);
        let has_room = match beside {
            Some(decides) => self.has_room_for_part(decides, PartId { domain, id }, bytes),
            None => {
                let wholes = commit.across.as_ref().map(|_| self.bytes_of_wholes());
                self.has_room(&wholes.unwrap_or_default(), (domain, &commit), bytes)
            }
        };
        if let Some(decides) = beside.filter(|_| !has_room)
            && self.hold_part(link, decides, domain, &commit)
        {
            return;
        }
        if !has_room {
            if beside.is_none() && self.hold(link, domain, &commit) {
                return;
            }
            let error = no_room(&commit);
            self.links.turn_away(link, domain, id, error, out);
            return;
        }
        let commit = self.as_acknowledged(link, domain, asks.unwrap_or(commit));
        let count = usize::from(beside.is_none());
        let up = self.uplinks[parent].up.as_mut().expect("looked at above");
        up.unanswered += count as u32;
        self.domains.get_mut(&domain).expect("looked at above").load += Load { count, bytes };
        let made = self.made_by(&commit.writes);
        if denied.is_none() {
            self.keep_update(domain, &commit);
        }
        let (across, asks) = (commit.across.clone(), commit.history == HistoryId::default());
        let alone = self.goes_alone(beside, PartId { domain, id }, bytes);
        let beside = beside.is_some();
        let passed = Passed { links: vec![link], bytes, denied, made, across, beside, alone, asks };
        self.commits.insert((domain, id), passed);
        self.send_up(parent, Message::Commit { domain, commit }, out);
    }

    /// Whether a commit that decides for itself may be passed on. One whose transaction has parts elsewhere
    /// takes more than its own bytes: it needs room among such transactions too, each with all its parts counted
    /// where it is decided, so that the line up has room for what follows it. And it waits for the parts of the one
    /// before it of the same process: each is at the origin until all its parts are.
    pub(super) fn has_room(
        &self,
        wholes: &WholeBytes,
        (domain, commit): (DomainId, &CommitRequest),
        bytes: usize,
    ) -> bool {
        let own = wholes.get(&domain).copied().unwrap_or_default();
        let most = self.config.commit_bytes_max;
        let parts_fit = commit.across.is_none()
            || Room::new(wholes.values().copied(), most).takes(own, bytes)
                && self.of_boot(domain, commit.id).all(|passed| self.has_its_parts(passed));
        let entry = &self.domains[&domain];
        parts_fit && self.room(entry.parent).takes(entry.load, bytes)
    }

    /// Bytes on their way up of transactions over several domains, by the domains that decide them. Parts alone are
    /// not among them: they have a bound of their own. Nor are parts at another parent of what is decided: they may
    /// hang there.
    pub(super) fn bytes_of_wholes(&self) -> WholeBytes {
        let mut wholes: WholeBytes = self.domains.keys().map(|domain| (*domain, 0)).collect();
        let going = self.commits.iter().filter(|(_, passed)| passed.alone == Alone::No);
        for ((domain, _), passed) in going {
            let Some(across) = &passed.across else { continue };
            let decides = across.coordinator();
            let same = self.parent_of(*domain) == self.parent_of(decides.domain);
            if same || self.commits.contains_key(&(decides.domain, decides.id)) {
                *wholes.entry(decides.domain).or_default() += passed.bytes;
            }
        }
        wholes
    }

    /// What is on its way of the same process in a domain.
    fn of_boot(&self, domain: DomainId, id: CommitId) -> impl Iterator<Item = &Passed> + '_ {
        let at = |sequence| (domain, CommitId { sequence, ..id });
        self.commits.range(at(0)..=at(u64::MAX)).map(|(_, passed)| passed)
    }

    /// Whether all parts of what decides are on their way too, as far as they come by this way, or it needs none: it is
    /// answered at once, whatever it asks about.
    fn has_its_parts(&self, passed: &Passed) -> bool {
        let across = passed.across.as_deref().filter(|_| !passed.beside && !passed.asks);
        let parts = across.into_iter().flat_map(Across::participants);
        let mut here = parts.filter(|part| self.domains.contains_key(&part.domain));
        here.all(|part| self.commits.contains_key(&(part.domain, part.id)))
    }

    /// Whether a part that is decided elsewhere may be passed on. Such parts are no requests of their own. When
    /// the deciding one is on its way they go too, since it would wait for them where it is, beyond the room of
    /// their domain as far as the line up is made for it. Without it a part may wait at the origin for what never
    /// comes: of those a process has a little on its way, and of longer ones each domain has one.
    fn has_room_for_part(&self, decides: PartId, part: PartId, bytes: usize) -> bool {
        let most = self.config.commit_bytes_max;
        let entry = &self.domains[&part.domain];
        let loads = self.of_parent(entry.parent).map(|entry| entry.load.bytes);
        let room = Room::new(loads.clone(), most);
        let takes = room.takes(entry.load.bytes, bytes);
        if self.follows(decides, part) {
            let line = most + most / 4 * 3 + COMMIT_BYTES_MAX;
            let fits = loads.sum::<usize>().saturating_add(bytes) <= line;
            return takes || fits;
        }
        let none_long = || {
            let mut of_domain = self.commits.iter().filter(|((of, _), _)| *of == part.domain);
            !of_domain.any(|(_, passed)| passed.alone == Alone::Long)
        };
        takes && (self.is_little(part, bytes) || none_long())
    }

    /// Whether a part goes up without the one that decides.
    fn goes_alone(&self, beside: Option<PartId>, part: PartId, bytes: usize) -> Alone {
        match beside.filter(|decides| !self.follows(*decides, part)) {
            None => Alone::No,
            Some(_) if self.is_little(part, bytes) => Alone::Little,
            Some(_) => Alone::Long,
        }
    }

    /// Whether a process has little on its way of parts alone, with this one.
    fn is_little(&self, part: PartId, bytes: usize) -> bool {
        let little = |passed: &&Passed| passed.alone == Alone::Little;
        let own: usize = self.of_boot(part.domain, part.id).filter(little).map(|p| p.bytes).sum();
        own.saturating_add(bytes) <= self.config.commit_bytes_max / ALONE_SHARE
    }

    /// Whether the part that decides is on its way, and lists this one.
    pub(super) fn follows(&self, decides: PartId, part: PartId) -> bool {
        let passed = self.commits.get(&(decides.domain, decides.id));
        let across = passed.and_then(|passed| passed.across.as_deref());
        across.is_some_and(|across| across.parts().contains(&part))
    }

    /// Keeps a part with the deciding one, if that is kept until there is room for it; false: it is not, or too
    /// many bytes are.
    fn hold_part(
        &mut self,
        link: LinkId,
        decides: PartId,
        domain: DomainId,
        commit: &CommitRequest,
    ) -> bool {
        let loads = self.domains.values().map(|entry| entry.held);
        let room = Room::new(loads, self.config.commit_bytes_max);
        let is_it =
            |held: &&mut Held| (held.domain, held.commit.id) == (decides.domain, decides.id);
        let held = self.held.iter_mut().find(is_it).filter(|held| held.links.contains(&link));
        let Some(held) = held else { return false };
        let same = |part: &&mut HeldPart| (part.domain, part.commit.id) == (domain, commit.id);
        if let Some(part) = held.parts.iter_mut().find(same) {
            if part.links.contains(&link) {
                self.links.forget_request(link);
            } else {
                part.links.push(link);
            }
            return true;
        }
        let bytes = commit.memory_bytes();
        let entry = self.domains.get_mut(&held.domain).expect("followed once");
        if !room.takes(entry.held, bytes) || held.parts.len() >= PARTS_MAX {
            return false;
        }
        crate::probe::probe("relay-holds-a-part");
        entry.held += bytes;
        held.bytes += bytes;
        held.parts.push(HeldPart { links: vec![link], domain, commit: commit.clone() });
        true
    }

    /// Keeps a commit until there is room for it; false: another one of the link is kept (of its boot, below
    /// another relay), or too many bytes are.
    fn hold(&mut self, link: LinkId, domain: DomainId, commit: &CommitRequest) -> bool {
        let same = |held: &&mut Held| (held.domain, held.commit.id) == (domain, commit.id);
        if let Some(held) = self.held.iter_mut().find(same) {
            if held.links.contains(&link) {
                self.links.forget_request(link);
            } else {
                held.links.push(link);
            }
            return true;
        }
        let child = self.links.get(link).and_then(|entry| entry.child());
        let is_node = child.is_none_or(|child| child.role == Role::Node);
        let boot = commit.id.boot;
        let max = self.config.commit_bytes_max;
        let room = Room::new(self.domains.values().map(|entry| entry.held), max);
        let own = self.domains[&domain].held;
        let of_domain = self.held.iter().filter(|held| held.domain == domain);
        let mut of_link = of_domain.filter(|held| held.links.first() == Some(&link)).peekable();
        // The first of each link has its turn beside those who have many (bug 133), whatever they wait
        // for in other domains (bug 136).
        let crowds = of_link.peek().is_some() && own >= max / 4;
        let another = of_link.any(|held| is_node || held.commit.id.boot == boot);
        if another || crowds || !room.takes(own, commit.memory_bytes()) {
            return false;
        }
        crate::probe::probe("relay-holds-a-commit");
        let (commit, bytes) = (commit.clone(), commit.memory_bytes());
        self.domains.get_mut(&domain).expect("looked at above").held += bytes;
        self.held.push_back(Held { links: vec![link], domain, commit, parts: Vec::new(), bytes });
        true
    }

    /// The conflict that the relay knows of already. Only for a commit that cannot have been sent
    /// before: a repeated one may have been committed, and its outcome is the origin's to tell.
    /// It is the node's own, its number is new on this link, and its base lies after the stamp at
    /// which the link's stream began: the transaction is younger than the link. Of a part of a transaction
    /// over several domains the others would not hear of it.
    fn early(&mut self, link: LinkId, domain: DomainId, commit: &CommitRequest) -> Option<Abort> {
        // The boot is this link's: the node's own, unless a relay speaks for others.
        let own = self.links.get(link)?.child()?.role == Role::Node;
        let follower = self.links.follower(link, domain)?;
        let new = commit.id.sequence > follower.sequence_max;
        follower.sequence_max = follower.sequence_max.max(commit.id.sequence);
        let mut base = commit.base;
        let fresh = new && base > follower.began && commit.across.is_none();
        if !own || !fresh && !self.config.faults.has(Fault::EarlyRepeated) {
            return None;
        }
        let entry = &self.domains[&domain];
        if self.config.faults.has(Fault::EarlyAnswerWrong) {
            base = entry.ring.tail();
        }
        let current = entry.epochs.last().is_some_and(|epoch| epoch.history == commit.history);
        if base < entry.ring.tail() || !current {
            return None;
        }
        for recent in entry.ring.after(base).take(EARLY_LOOKS_MAX) {
            // Pages known only by name may be named in vain.
            let Recent::Change(change) = recent else {
                continue;
            };
            for page in &change.pages {
                // Of a volume that it may not read it is told nothing.
                if self.links.right_of_link(link, page.page.volume) < Right::Read {
                    continue;
                }
                let first = commit.reads.partition_point(|read| read.page < page.page);
                let reads = commit.reads[first..].iter().take_while(|r| r.page == page.page);
                for read in reads {
                    let asked = (read.target, read.aspect);
                    if page.touched.iter().any(|touched| conflicts(asked, *touched)) {
                        crate::probe::probe("relay-answers-early");
                        return Some(Abort::Conflict(*read));
                    }
                }
            }
        }
        None
    }
}

/// What asks for the outcome of a commit that may have been done when it was sent before, and must not be
/// done now: the origin tells how it ended, or that it is of no history, and then it stays so (bug 99).
fn settled(commit: &CommitRequest) -> CommitRequest {
    CommitRequest {
        id: commit.id,
        confirmed: commit.confirmed,
        history: HistoryId::default(),
        base: commit.base,
        numbers: Vec::new(),
        reads: Vec::new(),
        writes: Vec::new(),
        across: commit.across.clone(),
    }
}

/// Says that a commit has to wait for others. Of a part the node would take it for the word of its domain, which may know
/// how it ended.
fn no_room(commit: &CommitRequest) -> RequestError {
    let why = "what the parent takes at once is reached".into();
    match commit.across {
        Some(_) => RequestError::Unavailable(why),
        None => RequestError::Busy(why),
    }
}
