//! Commits taken on and not answered: who waits for each.
//!
//! A link that goes leaves nothing behind, with one exception: who may pass a commit on is looked at when it
//! is executed, and so one link of each relay is remembered until then, be it gone or not.

use super::{Context, Domain};
use crate::downlink::Downlinks;
use crate::hash::FixedMap;
use crate::id::{BootId, CommitId, LinkId};
use crate::origin::OriginConfig;
use std::collections::BTreeSet;

/// A link over which a commit came.
#[derive(Debug)]
pub(super) struct Passer {
    /// None: it is gone.
    link: Option<LinkId>,
    /// The certificate of the relay at its end, if it is one: what the relay may not do is refused
    /// also when the link is gone meanwhile.
    pub(super) relay: Option<String>,
}

impl Passer {
    pub(super) fn new(cx: &Context<'_>, link: LinkId) -> Self {
        Self { link: Some(link), relay: cx.links.relay_of(link).map(str::to_owned) }
    }
}

/// How far a commit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It waits for pages or for room.
    Waits,
    /// It, or its refusal, is in an append.
    Gathered,
    /// Its answer waits for an append that others are in.
    Withheld,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    passers: Vec<Passer>,
}

/// All commits of a domain that are taken on and not answered.
#[derive(Debug, Default)]
pub(super) struct Pending {
    commits: FixedMap<CommitId, Entry>,
    /// The links that wait, with what each waits for.
    links: BTreeSet<(LinkId, CommitId)>,
    /// Commits whose answers are withheld.
    withheld: usize,
}

impl Pending {
    pub(super) fn has(&self, id: CommitId) -> bool {
        self.commits.contains_key(&id)
    }

    #[cfg(feature = "faults")]
    pub(super) fn len(&self) -> usize {
        self.commits.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// Commits whose answers are withheld.
    pub(super) fn withheld(&self) -> usize {
        self.withheld
    }

    /// Takes a commit on, which is not there.
    pub(super) fn add(&mut self, id: CommitId, passer: Passer) {
        self.links.extend(passer.link.map(|link| (link, id)));
        let entry = Entry { stage: Stage::Waits, passers: vec![passer] };
        let before = self.commits.insert(id, entry);
        assert!(before.is_none(), "a commit is taken on once");
    }

    /// One that is there came over one more link; false: over one that waits for it.
    pub(super) fn join(&mut self, id: CommitId, passer: Passer) -> bool {
        let link = passer.link.expect("it just came over it");
        if !self.links.insert((link, id)) {
            return false;
        }
        let passers = &mut self.commits.get_mut(&id).expect("looked up by the caller").passers;
        let left = passers.iter_mut().find(|p| p.link.is_none() && p.relay == passer.relay);
        match left {
            Some(left) => left.link = Some(link),
            None => passers.push(passer),
        }
        true
    }

    /// Over what it came, of which some may be gone.
    pub(super) fn passers(&self, id: CommitId) -> &[Passer] {
        self.commits.get(&id).map_or(&[], |entry| &entry.passers)
    }

    /// Whether a link waits for it.
    pub(super) fn is_waited_for(&self, id: CommitId) -> bool {
        self.passers(id).iter().any(|passer| passer.link.is_some())
    }

    /// It, or its refusal, is in an append: nobody asks for rights any more.
    pub(super) fn gathered(&mut self, id: CommitId) {
        if let Some(entry) = self.commits.get_mut(&id) {
            entry.stage = Stage::Gathered;
            entry.passers.retain(|passer| passer.link.is_some());
        }
    }

    /// Its answer is withheld; false: nobody waits for it, and it is forgotten.
    pub(super) fn withhold(&mut self, id: CommitId) -> bool {
        let Some(entry) = self.commits.get_mut(&id) else {
            return false;
        };
        entry.passers.retain(|passer| passer.link.is_some());
        if entry.passers.is_empty() {
            self.commits.remove(&id);
            return false;
        }
        entry.stage = Stage::Withheld;
        self.withheld += 1;
        true
    }

    /// It is answered: the links that wait.
    pub(super) fn take(&mut self, id: CommitId) -> Vec<LinkId> {
        let Some(entry) = self.commits.remove(&id) else {
            return Vec::new();
        };
        self.withheld -= usize::from(entry.stage == Stage::Withheld);
        let links: Vec<LinkId> = entry.passers.iter().filter_map(|passer| passer.link).collect();
        for link in &links {
            self.links.remove(&(*link, id));
        }
        links
    }

    /// A link is gone; says whether answers are withheld in vain, whose commits are forgotten.
    fn gone(&mut self, link: LinkId) -> bool {
        let id = |boot, sequence| CommitId { boot: BootId(boot), sequence };
        let all = (link, id(u128::MIN, u64::MIN))..=(link, id(u128::MAX, u64::MAX));
        let theirs: Vec<_> = self.links.range(all).copied().collect();
        let mut in_vain = false;
        for of in theirs {
            self.links.remove(&of);
            let (_, id) = of;
            let entry = self.commits.get_mut(&id).expect("a link waits for it");
            let place = entry.passers.iter().position(|passer| passer.link == Some(link));
            let place = place.expect("it came over that link");
            let passer = &entry.passers[place];
            let told = |other: &Passer| other.link != passer.link && other.relay == passer.relay;
            if entry.stage == Stage::Waits && !entry.passers.iter().any(told) {
                entry.passers[place].link = None;
                continue;
            }
            entry.passers.remove(place);
            if entry.stage == Stage::Withheld && entry.passers.is_empty() {
                self.commits.remove(&id);
                self.withheld -= 1;
                in_vain = true;
            }
        }
        in_vain
    }
}

impl Domain {
    /// A link is gone: nobody is answered on it.
    pub(super) fn gone_from_pending(&mut self, link: LinkId) {
        self.line.loses_link();
        if !self.pending.gone(link) {
            return;
        }
        crate::probe::probe("answer-withheld-in-vain");
        let Self { pending, gathering, flying, .. } = self;
        let flying = flying.as_mut().map(|(_, batch)| batch);
        for batch in [Some(gathering), flying].into_iter().flatten() {
            batch.withheld.retain(|withheld| pending.has(withheld.id));
        }
    }

    /// Panics when an invariant of commits taken on and not answered is broken.
    pub(super) fn check_pending(&self, config: &OriginConfig, links: &Downlinks) {
        let stand = self.pending.links.iter().all(|(link, _)| links.get(*link).is_some());
        assert!(stand, "a commit's answer waits for a link that is gone (P7)");
        let batches = self.flying.iter().map(|(_, batch)| batch).chain([&self.gathering]);
        let withheld: usize = batches.map(|batch| batch.withheld.len()).sum();
        assert_eq!(withheld, self.pending.withheld, "withheld answers are miscounted");
        assert!(withheld <= config.waiting_commits_max, "too many answers are withheld (P7)");
        for waiting in
            self.waiting_commits().filter(|waiting| !self.parts.follows(waiting.request.id))
        {
            let passers = self.pending.passers(waiting.request.id);
            assert!(!passers.is_empty(), "a commit that waits came over some link");
            let gone = passers.iter().filter(|passer| passer.link.is_none());
            let relays: BTreeSet<_> = gone.clone().map(|passer| &passer.relay).collect();
            assert_eq!(relays.len(), gone.count(), "two links that are gone, of one relay (P7)");
        }
    }
}
