//! Transactions of one node that ask for the same: which of them a commit is.

use super::{Fate, Intent, Oracle};
use crate::net::Proc;
use larder_core::commit::{CommitRequest, Outcome};
use larder_core::id::{CommitId, DomainId};
use std::collections::BTreeSet;

impl Oracle {
    /// The transaction, or its part, that a commit is which is sent for the first time.
    pub(super) fn who_asked(
        &mut self,
        node: Proc,
        domain: DomainId,
        commit: &CommitRequest,
    ) -> u64 {
        // Parts that only read may be the same in many transactions: whose this one is says the one that decides,
        // which is sent first.
        let decides = commit.across.as_ref().map(|across| across.coordinator());
        let decides = decides.and_then(|of| self.ids.get(&(of.domain, of.id)).copied());
        let of_whole = |tag: u64| self.wholes.iter().find(|tags| tags[0] == tag).cloned();
        let whole = decides.and_then(of_whole);
        if let Some(other) =
            whole.as_ref().and_then(|whole| self.is_of_another(whole, commit, domain))
        {
            self.exchange(&whole.expect("looked at"), &other);
            return self.who_asked(node, domain, commit);
        }
        let within = |tag: &u64| whole.as_ref().is_none_or(|tags| tags.contains(tag));
        // A transaction that was never sent may be like one over other domains that is.
        let domains = |tag: &u64| {
            let whole = self.wholes.iter().find(|tags| tags.contains(tag))?;
            Some(whole.iter().map(|tag| self.intent(*tag).domain).collect())
        };
        let parts = commit.across.as_ref().map(|across| across.parts());
        let parts = parts.map(|parts| parts.iter().map(|part| part.domain).collect());
        let mine = |tag: &u64| {
            within(tag)
                && parts == domains(tag) as Option<BTreeSet<DomainId>>
                && self.intent(*tag).is_asked_by(commit)
        };
        let asked = self.asked.get(&(node, domain)).map_or(&[][..], |asked| asked);
        // One that was told how it ended was sent as another one like it: that was put off before it was sent.
        let is_open =
            |tag: &u64| mine(tag) && matches!(self.intent(*tag).fate, Fate::Open | Fate::Lost);
        let place = asked
            .iter()
            .position(is_open)
            .or_else(|| asked.iter().position(mine))
            .unwrap_or_else(|| panic!("{node:?} commits what no client asked for: {commit:?}"));
        self.asked.get_mut(&(node, domain)).expect("just seen").remove(place)
    }

    /// The part that decides was taken for that of one transaction, and this part is not of it: another one, of which
    /// nothing was sent (it may have been withdrawn since), asks for all that was sent, and for this.
    fn is_of_another(
        &self,
        whole: &[u64],
        commit: &CommitRequest,
        domain: DomainId,
    ) -> Option<Vec<u64>> {
        let here = |tags: &[u64]| {
            let part = tags.iter().find(|tag| self.intent(**tag).domain == domain);
            part.is_some_and(|tag| self.intent(*tag).is_asked_by(commit))
        };
        if here(whole) {
            return None;
        }
        let is_like = |(sent, other): (&u64, &u64)| {
            let (sent, other) = (self.intent(*sent), self.intent(*other));
            let same = sent.id.is_none() || other.asked_the_same(sent);
            let open = sent.fate == Fate::Open && other.fate == Fate::Open;
            open && other.id.is_none() && other.domain == sent.domain && same
        };
        let fits = |tags: &&Vec<u64>| {
            tags.len() == whole.len() && here(tags) && whole.iter().zip(*tags).all(is_like)
        };
        self.wholes.iter().find(fits).cloned()
    }

    /// What was sent was of another transaction over the same domains.
    fn exchange(&mut self, whole: &[u64], other: &[u64]) {
        for (sent, instead) in whole.iter().zip(other) {
            let intent = self.intent(*sent);
            let (node, domain, id) = (intent.node, intent.domain, intent.id);
            let Some(id) = id else { continue };
            self.settle_intent(*sent, domain, None, Fate::Open);
            self.settle_intent(*instead, domain, Some(id), Fate::Open);
            let asked = self.asked.entry((node, domain)).or_default();
            asked.retain(|tag| tag != instead);
            asked.push(*sent);
        }
    }

    /// Transactions of a node that asked for the very same (to delete one object, say) are told
    /// apart by how each of them is answered.
    pub(super) fn tell_apart(&mut self, tag: u64, outcome: &Outcome) {
        let mine = self.intent(tag);
        let fits = |fate: Fate| match outcome {
            Outcome::Committed(stamp) => fate == Fate::Logged(*stamp),
            Outcome::Aborted(_) => fate == Fate::Open,
            Outcome::Unknown => true,
        };
        if fits(mine.fate) || !matches!(mine.fate, Fate::Open | Fate::Logged(_)) {
            return;
        }
        let same = |other: &Intent| fits(other.fate) && other.asked_the_same(mine);
        let Some(other) = self.intents.iter().position(same) else {
            return;
        };
        let other_tag = other as u64 + 1;
        let domain = mine.domain;
        let (mine, theirs) = (&self.intents[tag as usize - 1], &self.intents[other]);
        let (ids, fates) = ((mine.id, theirs.id), (mine.fate, theirs.fate));
        self.settle_intent(tag, domain, ids.1, fates.1);
        self.settle_intent(other_tag, domain, ids.0, fates.0);
    }

    fn settle_intent(&mut self, tag: u64, domain: DomainId, id: Option<CommitId>, fate: Fate) {
        let intent = &mut self.intents[tag as usize - 1];
        (intent.id, intent.fate) = (id, fate);
        self.ids.extend(id.map(|id| ((domain, id), tag)));
        if let Fate::Logged(stamp) = fate {
            let branch = self.truth_mut(domain).branches.last_mut();
            branch.expect("a domain has a branch").set_tag(stamp, tag);
        }
    }
}

impl Intent {
    fn asked_the_same(&self, other: &Self) -> bool {
        (self.node, self.domain, self.history, self.base)
            == (other.node, other.domain, other.history, other.base)
            && self.writes == other.writes
            && self.reads == other.reads
    }

    fn is_asked_by(&self, commit: &CommitRequest) -> bool {
        (self.history, self.base) == (commit.history, commit.base)
            && self.writes == commit.writes
            && self.reads == commit.reads
    }
}
