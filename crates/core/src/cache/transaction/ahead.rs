//! Looking ahead of the stream: at what this node has committed and valid-through has not reached (BuddyCache, section 4.5;
//! rule 21, decision 0035).
//!
//! A transaction whose session has written what the stream has not passed begins all the same. Of an object that own commits
//! changed since it sees what they made of it, as of their stamp: changes up to there do not concern that read. All else it
//! sees as of valid-through. It ends when that has reached every stamp that it, or its session, has seen ahead: then all of
//! its reads are of one state, or it is doomed. From there on it is one like any other, and looks ahead no more.

use super::access::Held;
use super::{Awaited, Doom, Step, Stop, Transaction, TransactionError, Try};
use crate::cache::read::RecentChange;
use crate::cache::{Ahead, PageCopy, PageVersions};
use crate::commit::{Aspect, Op, Read, Target};
use crate::id::{PageId, Slot, Stamp};
use crate::machine::{Fault, Faults};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What stands ahead in a copy that was put together: each slot, and as of which stamp.
pub(super) type Stamps = Vec<(Slot, Stamp)>;

/// What a transaction has read ahead of the stream, and as of which stamp.
#[derive(Default)]
pub(super) struct LookedAhead(BTreeMap<(PageId, Slot), Stamp>);

impl LookedAhead {
    /// Whether what was read of a slot is as of a change of it, or of a later one. A look at the page as a whole is not.
    pub(super) fn has_seen(&self, change: &RecentChange, target: Target, faults: Faults) -> bool {
        let Target::Slot(slot) = target else { return false };
        let stamp = self.0.get(&(change.page, slot));
        stamp.is_some_and(|at| *at >= change.stamp || faults.has(Fault::AheadUnvalidated))
    }
}

impl Transaction {
    /// Whether it looks ahead of the stream.
    #[must_use]
    pub fn looks_ahead(&self) -> bool {
        self.options.looks_ahead()
    }

    /// What has to be reached before it can be finished, since it has looked ahead to there, or its session has: ask for
    /// [`crate::cache::io::CacheOp::WaitThrough`], and look again. None: nothing, or nothing of it will come.
    #[must_use]
    pub fn waits(&self) -> Option<Awaited> {
        let unwaited = self.cache.faults.has(Fault::AheadUnwaited);
        if !self.looks_ahead() || self.doomed.is_some() || unwaited {
            return None;
        }
        let waits = self.domains.iter().find(|attached| {
            let goes_on = attached.state.line() == attached.at.line;
            goes_on && attached.state.through().is_some_and(|through| through < attached.ends_at)
        });
        waits.map(|attached| attached.until(attached.ends_at))
    }

    /// Compares what it has read with all changes since: doomed, it has seen two states, and an error found in them means
    /// nothing. To be asked once it [waits](Self::waits) for nothing.
    pub fn look_again(&mut self) -> Step<()> {
        let compared = self.alive().and_then(|()| {
            let mut all = 0..self.domains.len();
            all.try_for_each(|domain| match self.domains[domain].snapshot {
                true => Ok(()),
                false => self.recheck(domain),
            })
        });
        compared.into()
    }

    /// As of which stamp a slot was read, if that lay ahead of the stream: for checkers.
    #[must_use]
    pub fn read_as_of(&self, page: PageId, slot: Slot) -> Option<Stamp> {
        self.ahead.0.get(&(page, slot)).copied()
    }

    /// Whether all that was read of a domain is of one state.
    pub(super) fn check_ended(&self, domain: usize) -> Try<()> {
        let unwaited = self.cache.faults.has(Fault::AheadUnwaited);
        match self.ends_at(domain).filter(|_| !unwaited) {
            Some(stamp) => Err(Stop::Wait(self.domains[domain].until(stamp))),
            None => Ok(()),
        }
    }

    /// Where the stream has to be before it can end, if that is not where it stands for this transaction.
    fn ends_at(&self, domain: usize) -> Option<Stamp> {
        let attached = &self.domains[domain];
        (self.looks_ahead() && attached.at.through < attached.ends_at).then_some(attached.ends_at)
    }

    /// How an operation went. What is refused for what was found, while that may be of two states, is looked at again when
    /// it is of one.
    pub(super) fn told<T>(&mut self, result: Try<T>) -> Step<T> {
        let found = |error: &TransactionError| {
            matches!(
                error,
                TransactionError::Gone(_)
                    | TransactionError::BadPage(_)
                    | TransactionError::PageFull(_)
                    | TransactionError::BadWrite(_)
                    | TransactionError::Damaged(_)
            )
        };
        if !matches!(&result, Err(Stop::Refused(error)) if found(error)) {
            return result.into();
        }
        for domain in 0..self.domains.len() {
            let Some(stamp) = self.ends_at(domain) else { continue };
            // The stream may be there by now: then it is done once more all the same, in that state.
            return match self.recheck(domain) {
                Ok(()) => Step::Wait(self.domains[domain].until(stamp)),
                Err(stop) => Err(stop).into(),
            };
        }
        result.into()
    }

    /// What a slot holds ahead of the stream, read as of there; none: what it holds in the copy counts.
    #[inline]
    pub(super) fn held_ahead(
        &mut self,
        page: PageId,
        slot: Slot,
        aspect: Aspect,
    ) -> Try<Option<Held>> {
        if !self.options.ahead {
            return Ok(None);
        }
        let domain = self.domain_of(page)?;
        if self.ends_at(domain).is_none() {
            return Ok(None);
        }
        self.look_ahead(domain, (page, slot), aspect)
    }

    fn look_ahead(
        &mut self,
        domain: usize,
        (page, slot): (PageId, Slot),
        aspect: Aspect,
    ) -> Try<Option<Held>> {
        self.note_confirmed(domain);
        self.recheck(domain)?;
        let Some(ends_at) = self.ends_at(domain) else { return Ok(None) };
        let Self { domains, .. } = self;
        let (state, through) = (&domains[domain].state, domains[domain].at.through);
        let ahead = state.ahead_at(page, slot, through);
        // After that: what may not be read any more is noted after it is said, and asked for, which is refused.
        if self.cache.is_unreadable(page.volume) {
            return Ok(None);
        }
        let (held, stamp) = match ahead {
            Ahead::Nothing => return Ok(None),
            // What is the session's own is seen from where it has to end.
            Ahead::Unknown { stamp } => {
                return Err(Stop::Wait(self.domains[domain].until(stamp.min(ends_at))));
            }
            Ahead::Object { stamp, generation, value } => (Some((generation, value)), stamp),
            Ahead::Emptied { stamp } => (None, stamp),
        };
        crate::probe::probe("looked-ahead");
        let aspect = if held.is_some() { aspect } else { Aspect::Existence };
        self.note_ahead((page, slot), aspect, stamp)?;
        self.reads.add_slot(page, slot, aspect);
        self.after_read(page)?;
        Ok(Some(held))
    }

    /// A page is looked at as a whole: what stands ahead of it is waited for.
    pub(super) fn check_whole_ahead(&mut self, domain: usize, page: PageId) -> Try<()> {
        if self.ends_at(domain).is_none() {
            return Ok(());
        }
        self.recheck(domain)?;
        let Some(ends_at) = self.ends_at(domain) else { return Ok(()) };
        let attached = &self.domains[domain];
        match attached.state.newest_ahead(page, attached.at.through) {
            Some(stamp) => Err(Stop::Wait(attached.until(stamp.min(ends_at)))),
            None => Ok(()),
        }
    }

    /// A copy of a page, for writes to a slot of it, with what stands ahead put on it; none: nothing does.
    pub(super) fn base_ahead(
        &mut self,
        page: PageId,
        slot: Option<Slot>,
    ) -> Try<Option<(Arc<PageCopy>, Stamps)>> {
        let domain = self.domain_of(page)?;
        if self.ends_at(domain).is_none() {
            return Ok(None);
        }
        let page_bytes = self.page_bytes(page.volume)?;
        loop {
            self.recheck(domain)?;
            let Some(ends_at) = self.ends_at(domain) else { return Ok(None) };
            let attached = &self.domains[domain];
            let held = self.cache.with(page, Arc::clone);
            let versions = attached.state.ahead_of(page, attached.at.through);
            if !attached.state.unmoved(attached.at.sequence) {
                continue;
            }
            let Some(versions) = versions else { return Ok(None) };
            let wait = || Err(Stop::Wait(attached.until(versions.newest.min(ends_at))));
            // Of a page as a whole nobody knows what others made of it by then.
            let (Some(slot), None) = (slot, versions.others) else { return wait() };
            let own = versions.slots.iter().find(|(own, _)| *own == slot).map(|(_, ahead)| ahead);
            if let Some(Ahead::Unknown { stamp }) = own {
                return Err(Stop::Wait(attached.until((*stamp).min(ends_at))));
            }
            // Those that were supplied are kept exact by `recheck`, which drops what a change names.
            let copies = [held.as_ref(), self.supplied.copies.get(&page)];
            let usable = |copy: &&Arc<PageCopy>| own.is_some() || !copy.is_hole(slot);
            let Some(copy) = copies.into_iter().flatten().find(usable) else {
                return Err(Stop::Need(attached.state.id(), vec![page]));
            };
            let Some((copy, stamps)) = put_together(copy, &versions, page_bytes) else {
                return wait();
            };
            let attached = &mut self.domains[domain];
            attached.ends_at = attached.ends_at.max(versions.newest);
            return Ok(Some((Arc::new(copy), stamps)));
        }
    }

    /// Notes that a slot is read as of a stamp ahead of the stream, before that is added to the reads.
    pub(super) fn note_ahead(
        &mut self,
        (page, slot): (PageId, Slot),
        aspect: Aspect,
        stamp: Stamp,
    ) -> Try<()> {
        let before = self.reads.has_slot(page, slot);
        let known = self.ahead.0.get(&(page, slot)).copied();
        if before && known != Some(stamp) && !self.cache.faults.has(Fault::AheadReadTwice) {
            // It was read as of another stamp: a change between the two is passed over, or was.
            crate::probe::probe("read-as-of-two-stamps");
            let target = Target::Slot(slot);
            return self.doom_with(Doom::Conflict(Read { page, target, aspect }));
        }
        self.ahead.0.insert((page, slot), stamp);
        let domain = self.domain_of(page)?;
        let attached = &mut self.domains[domain];
        attached.ends_at = attached.ends_at.max(stamp);
        Ok(())
    }

    /// A slot is read as of valid-through, from a base that was put under a page before: if it was read ahead of that as well, a
    /// change between the two would be passed over.
    pub(super) fn check_not_ahead(
        &mut self,
        (page, slot): (PageId, Slot),
        aspect: Aspect,
    ) -> Try<()> {
        let Some(&known) = self.ahead.0.get(&(page, slot)) else { return Ok(()) };
        let domain = self.domain_of(page)?;
        if known <= self.domains[domain].at.through {
            return Ok(());
        }
        crate::probe::probe("read-below-a-read-ahead");
        let target = Target::Slot(slot);
        self.doom_with(Doom::Conflict(Read { page, target, aspect }))
    }
}

/// A copy with what stands ahead of it, and as of which stamps; none: it is not known how the two go together. What has
/// changed and is not known to what is a hole in it.
fn put_together(
    copy: &PageCopy,
    versions: &PageVersions,
    page_bytes: u32,
) -> Option<(PageCopy, Stamps)> {
    let mut copy = copy.clone();
    let page = copy.page.as_mut()?;
    let (mut stamps, mut unknown) = (Vec::new(), Vec::new());
    for (slot, ahead) in &versions.slots {
        let there = page.get_ref(*slot).map(|(generation, _)| generation);
        let (op, stamp) = match ahead {
            Ahead::Object { stamp, generation, value } => {
                let (slot, generation, value) = (*slot, *generation, value.clone());
                (Some(Op::Put { slot, generation, value }), stamp)
            }
            Ahead::Emptied { stamp } => {
                (there.map(|generation| Op::Delete { slot: *slot, generation }), stamp)
            }
            Ahead::Unknown { .. } | Ahead::Nothing => {
                unknown.push(*slot);
                continue;
            }
        };
        if let Some(op) = op {
            page.apply(&op, page_bytes).ok()?;
        }
        stamps.push((*slot, *stamp));
    }
    copy.holes.retain(|hole| !stamps.iter().any(|(slot, _)| slot == hole));
    copy.holes.extend(unknown);
    copy.holes.sort_unstable();
    copy.holes.dedup();
    Some((copy, stamps))
}
