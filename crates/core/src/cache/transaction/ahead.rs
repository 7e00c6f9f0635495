//! Looking ahead of the stream: at what this node has committed and valid-through has not reached (BuddyCache, section 4.5;
//! rule 21, decision 0035).
//!
//! A copy is exact at valid-through. On it is put what own commits made of its objects since; a read of one of those is of
//! the stamp of its commit, and changes up to there do not concern it. All other reads are of valid-through. The transaction
//! ends when that has reached every stamp that it looked ahead to: then all of its reads are of one state, or it is doomed.

use super::{Doom, Step, Stop, Transaction, Try};
use crate::cache::read::RecentChange;
use crate::cache::{Ahead, PageCopy, PageVersions};
use crate::commit::{Aspect, Op, Read, Target};
use crate::id::{DomainId, PageId, Slot, Stamp};
use crate::machine::{Fault, Faults};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What stands ahead in a copy that was put together: each slot, and as of which stamp.
pub(super) type Stamps = Vec<(Slot, Stamp)>;

/// What a transaction has read ahead of the stream.
#[derive(Default)]
pub(super) struct LookedAhead {
    reads: BTreeMap<(PageId, Slot), Stamp>,
    /// What stood ahead in the copy that was looked at last.
    served: Option<(PageId, Stamps)>,
}

impl LookedAhead {
    /// What a change touches of which a read may be older: not what was read as of its stamp, or a later one.
    pub(super) fn concerned<'a>(
        &self,
        change: &'a RecentChange,
        faults: Faults,
    ) -> Cow<'a, [(Target, Aspect)]> {
        let known = |target: &Target| match target {
            Target::Slot(slot) => self.reads.get(&(change.page, *slot)),
            Target::Page => None,
        };
        let unvalidated = faults.has(Fault::AheadUnvalidated);
        let passed = |(target, _): &(Target, Aspect)| {
            known(target).is_some_and(|stamp| unvalidated || *stamp >= change.stamp)
        };
        if self.reads.is_empty() || !change.touched.iter().any(passed) {
            return Cow::Borrowed(&change.touched);
        }
        Cow::Owned(change.touched.iter().filter(|touched| !passed(touched)).copied().collect())
    }
}

impl Transaction {
    /// What has to be reached before it can be finished, since it has looked ahead to there, or its session has: ask for
    /// [`crate::cache::io::CacheOp::WaitThrough`], and look again. None: nothing, or nothing of it will come.
    #[must_use]
    pub fn waits(&self) -> Option<(DomainId, Stamp)> {
        let unwaited = self.cache.faults.has(Fault::AheadUnwaited);
        if !self.looks_ahead() || self.doomed.is_some() || unwaited {
            return None;
        }
        let waits = self.domains.iter().find(|attached| {
            let goes_on = attached.state.line() == attached.at.line;
            goes_on && attached.state.through().is_some_and(|through| through < attached.ends_at)
        });
        waits.map(|attached| (attached.state.id(), attached.ends_at))
    }

    /// Whether it looks ahead of the stream.
    #[must_use]
    pub fn looks_ahead(&self) -> bool {
        self.options.looks_ahead()
    }

    /// Compares what it has read with all changes since: doomed, it has seen two states, and an error found in them means
    /// nothing. To be asked once it [waits](Self::waits) for nothing.
    pub fn look_again(&mut self) -> Step<()> {
        let all = 0..self.domains.len();
        let compared = self.alive().and_then(|()| {
            all.filter(|domain| !self.domains[*domain].snapshot)
                .collect::<Vec<_>>()
                .into_iter()
                .try_for_each(|domain| self.recheck(domain))
        });
        compared.into()
    }

    /// Whether all that was read of a domain is of one state.
    pub(super) fn check_ended(&self, domain: usize) -> Try<()> {
        let attached = &self.domains[domain];
        let looks = self.looks_ahead() && !self.cache.faults.has(Fault::AheadUnwaited);
        match looks && attached.at.through < attached.ends_at {
            true => Err(Stop::Wait(attached.state.id(), attached.ends_at)),
            false => Ok(()),
        }
    }

    /// Looks at a page as `look` does, with what stands ahead of it.
    pub(super) fn look_ahead<T>(
        &mut self,
        domain: usize,
        page: PageId,
        slot: Option<Slot>,
        mut find: impl FnMut(&Arc<PageCopy>) -> T,
    ) -> Try<T> {
        self.ahead.served = None;
        let page_bytes = self.page_bytes(page.volume)?;
        loop {
            self.note_confirmed(domain);
            let attached = &self.domains[domain];
            let sequence = attached.state.stable();
            if sequence != attached.at.sequence {
                self.recheck(domain)?;
                continue;
            }
            let held = self.cache.with(page, Arc::clone);
            let versions = attached.state.ahead_of(page, attached.at.through);
            if !attached.state.unmoved(sequence) {
                continue;
            }
            // Those that were supplied are kept exact by `recheck`, which drops what a change names.
            let copies = [held.as_ref(), self.supplied.copies.get(&page)];
            let mut copies = copies.into_iter().flatten();
            let id = attached.state.id();
            let Some(versions) = versions else {
                let copy = copies.find(|copy| super::access::usable(copy, slot));
                return copy.map(&mut find).ok_or(Stop::Need(id, vec![page]));
            };
            let wait = || Err(Stop::Wait(id, versions.newest));
            // Of a page as a whole nobody knows what others made of it by then.
            let (Some(slot), None) = (slot, versions.others) else { return wait() };
            let own = versions.slots.iter().find(|(own, _)| *own == slot).map(|(_, ahead)| ahead);
            if let Some(Ahead::Unknown { stamp }) = own {
                return Err(Stop::Wait(id, *stamp));
            }
            let usable = |copy: &&Arc<PageCopy>| own.is_some() || !copy.is_hole(slot);
            let Some(copy) = copies.find(usable) else {
                return Err(Stop::Need(id, vec![page]));
            };
            let Some((copy, stamps)) = put_together(copy, &versions, page_bytes) else {
                return wait();
            };
            crate::probe::probe("looked-ahead");
            self.ahead.served = Some((page, stamps));
            return Ok(find(&Arc::new(copy)));
        }
    }

    /// What stood ahead in the copy of a page that was looked at last.
    pub(super) fn served(&mut self, page: PageId) -> Stamps {
        let served = self.ahead.served.take();
        served.filter(|(of, _)| *of == page).map_or(Vec::new(), |(_, stamps)| stamps)
    }

    /// Notes that a slot is read, before that is added to the reads: as of which stamp, if that lies ahead.
    pub(super) fn note_ahead(&mut self, page: PageId, slot: Slot, aspect: Aspect) -> Try<()> {
        let of = |stamps: &Stamps| stamps.iter().find(|(of, _)| *of == slot).map(|of| of.1);
        let stamp = match self.overlay.get(page) {
            Some(written) => of(&written.ahead),
            None => {
                let served = self.ahead.served.as_ref().filter(|served| served.0 == page);
                served.and_then(|(_, stamps)| of(stamps))
            }
        };
        let Some(stamp) = stamp else { return Ok(()) };
        let before = self.reads.has_slot(page, slot);
        let known = self.ahead.reads.get(&(page, slot)).copied();
        if before && known != Some(stamp) && !self.cache.faults.has(Fault::AheadReadTwice) {
            // It was read as of another stamp: a change between the two is passed over, or was.
            crate::probe::probe("read-as-of-two-stamps");
            let target = Target::Slot(slot);
            return self.doom_with(Doom::Conflict(Read { page, target, aspect }));
        }
        self.ahead.reads.insert((page, slot), stamp);
        let domain = self.domain_of(page)?;
        let attached = &mut self.domains[domain];
        attached.ends_at = attached.ends_at.max(stamp);
        Ok(())
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
