//! Copies in memory: put, changed, evicted; the notices and page lists that follow.

use super::absences::Absences;
use super::holdings::{Holdings, Listing, Owed};
use super::{Cache, Domain, Out};
use crate::cache::policy::{Policy, Use, policy};
use crate::cache::{PageCopy, PolicyKind};
use crate::commit::{Aspect, Op, PageChange, PageKind, Target};
use crate::group::GroupMessage;
use crate::id::{DomainId, PageId, RequestId, Slot, Stamp};
use crate::machine::Fault;
use crate::message::{Message, PAGES_PER_MESSAGE_MAX};
use crate::page::Page;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Notices are sent at a tick, or when so many are owed.
const NOTICES_BATCH: usize = 64;

/// A queue of suspects shorter than this is not tidied.
const SUSPECTS_MIN: usize = 64;

/// What all domains share: the budget and who goes first.
pub(super) struct Memory {
    policy: Box<dyn Policy>,
    used: usize,
    max: usize,
    pub(super) absences: Absences,
    /// Pages that waiting requests have gathered, and which requests: they stay until the reply.
    pins: BTreeMap<PageId, BTreeSet<RequestId>>,
    /// Suspects, oldest first; some are suspects no more.
    suspects: VecDeque<(DomainId, PageId)>,
}

impl Memory {
    pub(super) fn new(kind: PolicyKind, max: usize) -> Self {
        Self {
            policy: policy(kind),
            used: 0,
            max,
            absences: Absences::default(),
            pins: BTreeMap::new(),
            suspects: VecDeque::new(),
        }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn pin(&mut self, page: PageId, user: RequestId) {
        self.pins.entry(page).or_default().insert(user);
    }

    /// Whether a waiting request has gathered the page.
    pub(super) fn is_pinned(&self, page: PageId) -> bool {
        self.pins.contains_key(&page)
    }

    /// Pages that waiting requests have gathered.
    #[cfg(feature = "faults")]
    pub(super) fn pinned(&self) -> usize {
        self.pins.len()
    }

    pub(super) fn unpin(&mut self, page: PageId, user: RequestId) {
        if let Some(users) = self.pins.get_mut(&page) {
            users.remove(&user);
            if users.is_empty() {
                self.pins.remove(&page);
            }
        }
    }
}

impl Cache {
    // ---- changes ----

    /// Others changed the page: holes, or it goes. Says whether there was a copy.
    pub(super) fn invalidate(
        &mut self,
        domain: DomainId,
        from: Stamp,
        change: &PageChange,
    ) -> bool {
        let Some(old) = self.shared.peek(change.page) else {
            self.told_in_vain(domain, change.page);
            return false;
        };
        let mut holes: BTreeSet<Slot> = old.holes.iter().copied().collect();
        let slotted = old.page.as_ref().is_some_and(|page| page.kind() == PageKind::Slotted);
        let mut whole = !slotted;
        for (target, _) in &change.touched {
            match target {
                Target::Page => whole = true,
                Target::Slot(slot) => {
                    holes.insert(*slot);
                }
            }
        }
        self.keep_for_snapshots(domain, &old, from);
        if whole || holes.len() > PageCopy::HOLES_MAX {
            self.drop_copy(domain, change.page);
            self.owe_notice(domain, change.page);
            return true;
        }
        self.put(
            domain,
            PageCopy {
                id: old.id,
                version: old.version,
                page: old.page.clone(),
                holes: holes.into_iter().collect(),
            },
        );
        true
    }

    /// The parent takes the page for held, and it is not: we found once that there was none, or a fetch
    /// of it has failed. Now that it is there, a notice can do no harm.
    fn told_in_vain(&mut self, domain: DomainId, page: PageId) {
        if !self.domains[&domain].holdings.keeps(page) {
            crate::probe::probe("told-in-vain");
            self.owe_notice(domain, page);
        }
    }

    /// The same, where nothing says that there is such a page: a notice could end the registration that
    /// comes with the commit which makes it (bug 98). A list says what is held, once the parent gathers
    /// what is made meanwhile.
    pub(super) fn named_in_vain(&mut self, domain: DomainId, page: PageId) {
        let entry = self.domains.get_mut(&domain).expect("attached");
        let there = self.shared.peek(page).is_some_and(|copy| copy.page.is_some());
        let Domain { holdings, flights, commits, .. } = entry;
        let owed = holdings.owed.get(&page).copied();
        let told = owed.is_some_and(|owed| !owed.silent);
        let to_come = flights.sent(page) || commits.named(page) || told;
        if !there && !to_come && !holdings.suspects.contains_key(&page) {
            crate::probe::probe("named-in-vain");
            // A list names what is owed silently, for as long as that is so.
            holdings.list_anew(owed.map_or(0, |owed| owed.epoch));
        }
    }

    /// A commit registers its node for the pages that it writes. For those that are not held here when it
    /// is over the parent would send every change for as long as the link stands.
    pub(super) fn give_back_written(&mut self) {
        let left = |(&domain, entry): (&DomainId, &mut Domain)| {
            let left = std::mem::take(&mut entry.commits.left);
            let vain = left.into_iter().filter(|page| !entry.holdings.keeps(*page));
            vain.map(|page| (domain, page)).collect::<Vec<_>>()
        };
        let vain: Vec<(DomainId, PageId)> = self.domains.iter_mut().flat_map(left).collect();
        for (domain, page) in vain {
            crate::probe::probe("written-and-not-held");
            if !self.config.faults.has(Fault::WrittenUntold) {
                self.owe_notice(domain, page);
            }
        }
        // Those that were to be made, and were not (bug 165).
        let vain = |(&domain, entry): (&DomainId, &mut Domain)| {
            let vain = std::mem::take(&mut entry.commits.vain);
            vain.into_iter().map(move |page| (domain, page))
        };
        let vain: Vec<(DomainId, PageId)> = self.domains.iter_mut().flat_map(vain).collect();
        for (domain, page) in vain {
            self.named_in_vain(domain, page);
        }
    }

    /// A commit of this node changed the page: its own writes are the update. `change` is what they
    /// touched at the origin.
    pub(super) fn update(
        &mut self,
        domain: DomainId,
        from: Stamp,
        change: &PageChange,
        stamp: Stamp,
        ops: &[Op],
    ) {
        let page = change.page;
        let old = self.shared.peek(page);
        if let Some(old) = &old {
            self.keep_for_snapshots(domain, old, from);
        }
        let page_bytes = self.shared.volume(page.volume).map(|volume| volume.page_bytes);
        let updated =
            page_bytes.and_then(|bytes| updated(old.as_deref(), change, stamp, ops, bytes));
        match updated {
            Some(copy) => {
                if old.is_none() {
                    // Made beside a list under way, which could not name it.
                    let holdings = &mut self.domains.get_mut(&domain).expect("attached").holdings;
                    holdings.listing.iter_mut().for_each(|listing| listing.add(page));
                }
                self.put(domain, copy);
            }
            None => {
                if old.is_some() {
                    self.drop_copy(domain, page);
                }
                self.owe_notice(domain, page);
            }
        }
    }

    /// Nobody knows how the page changed, if it did: it is no longer served, and asked for with
    /// its version when it is wanted.
    pub(super) fn suspect(&mut self, domain: DomainId, page: PageId) {
        let Some(old) = self.shared.peek(page) else {
            return;
        };
        let entry = self.domains.get(&domain).expect("attached");
        if let Some(until) = entry.position {
            self.keep_for_snapshots(domain, &old, until);
        }
        self.drop_copy(domain, page);
        if old.complete() && old.page.is_some() {
            self.memory.used += old.cost();
            self.memory.suspects.push_back((domain, page));
            self.tidy_suspects();
            let entry = self.domains.get_mut(&domain).expect("looked up above");
            if let Some(other) = entry.holdings.suspects.insert(page, old) {
                self.memory.used -= other.cost();
            }
        } else if old.page.is_some() {
            self.owe_notice(domain, page);
        }
    }

    /// Drops entries of suspects that are none any more, once they are more than half: only a full
    /// memory takes them out otherwise.
    fn tidy_suspects(&mut self) {
        let live: usize = self.domains.values().map(|d| d.holdings.suspects.len()).sum();
        if self.memory.suspects.len() > 2 * live + SUSPECTS_MIN {
            let mut seen = BTreeSet::new();
            let domains = &self.domains;
            let suspect = |&(domain, page): &(DomainId, PageId)| {
                let holdings = domains.get(&domain).map(|entry| &entry.holdings);
                holdings.is_some_and(|holdings| holdings.suspects.contains_key(&page))
                    && seen.insert(page)
            };
            self.memory.suspects.retain(suspect);
        }
    }

    /// Drops copies of versions above `from`; none: all of them. Nothing is asked with a version
    /// of a lost branch.
    pub(super) fn drop_above(&mut self, domain: DomainId, from: Option<Stamp>) {
        let holdings = &mut self.domains.get_mut(&domain).expect("attached").holdings;
        for (_, copy) in std::mem::take(&mut holdings.suspects) {
            self.memory.used -= copy.cost();
        }
        let pages: Vec<PageId> = holdings.resident.keys().copied().collect();
        for page in pages {
            let copy = self.shared.peek(page).expect("resident pages are in the maps");
            if from.is_none_or(|from| copy.version > from) {
                self.drop_copy(domain, page);
            }
        }
    }

    pub(super) fn keep_for_snapshots(&self, domain: DomainId, copy: &Arc<PageCopy>, until: Stamp) {
        self.domains[&domain].state.keep_for_snapshots(copy, until);
    }

    // ---- in and out ----

    /// A page that was asked for is exact at valid-through.
    pub(super) fn put_fetched(&mut self, domain: DomainId, copy: PageCopy) {
        self.drop_suspect_of(domain, copy.id);
        let entry = self.domains.get_mut(&domain).expect("asked for");
        entry.holdings.cancel_notice(copy.id);
        let until = entry.position;
        if let Some(old) = self.shared.peek(copy.id) {
            // Both are exact; the one that knows more stays.
            if old.holes.len() < copy.holes.len() {
                return;
            }
            if let Some(until) = until {
                self.keep_for_snapshots(domain, &old, until);
            }
        }
        self.put(domain, copy);
    }

    pub(super) fn put(&mut self, domain: DomainId, copy: PageCopy) {
        let (page, cost) = (copy.id, copy.cost());
        let holdings = &mut self.domains.get_mut(&domain).expect("attached").holdings;
        let before = holdings.resident.insert(page, cost);
        match before {
            Some(before) => self.memory.used -= before,
            None => self.memory.policy.insert(page, cost),
        }
        self.memory.absences.replaced((domain, page), before, Some(cost));
        self.memory.used += cost;
        self.shared.put(Arc::new(copy));
    }

    /// Takes a copy out. Requests that had gathered it want it anew.
    pub(super) fn drop_copy(&mut self, domain: DomainId, page: PageId) {
        self.shared.remove(page);
        self.memory.policy.remove(page);
        let holdings = &mut self.domains.get_mut(&domain).expect("attached").holdings;
        let before = holdings.resident.remove(&page);
        self.memory.used -= before.unwrap_or_default();
        self.memory.absences.replaced((domain, page), before, None);
        for user in self.memory.pins.remove(&page).unwrap_or_default() {
            crate::probe::probe("gathered-page-gone");
            self.departed(user, page);
            self.want(domain, page, user);
        }
    }

    /// Drops a suspect; says whether it was one.
    pub(super) fn drop_suspect_of(&mut self, domain: DomainId, page: PageId) -> bool {
        let entry = self.domains.get_mut(&domain).expect("attached");
        let suspect = entry.holdings.suspects.remove(&page);
        self.memory.used -= suspect.as_ref().map_or(0, |copy| copy.cost());
        suspect.is_some()
    }

    /// Evicts until the budget holds. Pinned pages stay, so that a request larger than the cache
    /// is answered all the same.
    pub(super) fn shrink(&mut self, out: &mut Out) {
        self.give_back_written();
        self.shed_absences();
        while self.memory.used > self.memory.max {
            if let Some((domain, page)) = self.memory.suspects.pop_front() {
                if self.drop_suspect_of(domain, page) {
                    self.owe_notice(domain, page);
                }
                continue;
            }
            let Memory { policy, pins, .. } = &mut self.memory;
            let shared = &self.shared;
            let victim = policy.evict(&mut |page| {
                if pins.contains_key(&page) {
                    Use::Pinned
                } else {
                    Use::Hits(shared.take_heat(page))
                }
            });
            let Some(page) = victim else { break };
            let volume = self.shared.volume(page.volume).expect("its pages were asked for");
            self.evict(volume.domain, page);
        }
        // Seldom any: this is done after every input.
        let full = |entry: &Domain| entry.holdings.owed.len() >= NOTICES_BATCH;
        let due = self.domains.iter().filter(|(_, entry)| full(entry));
        let due: Vec<DomainId> = due.map(|(&domain, _)| domain).collect();
        for domain in due {
            self.send_notices(domain, false, out);
        }
    }

    /// Drops a copy that is in the maps, for want of room.
    pub(super) fn evict(&mut self, domain: DomainId, page: PageId) {
        let copy = self.shared.peek(page).expect("the caller knows what is in the maps");
        self.drop_copy(domain, page);
        // The parent may go on thinking that we know of a page's absence: such a page is not
        // made yet, and a notice could overtake the commit that makes it (bulk lane), which
        // registers us for it. While a transaction runs that read the absence it must (rule 2): a
        // list that did not name the page would end that (bug 117).
        self.owe(domain, page, copy.page.is_none());
    }

    // ---- what the parent must hear ----

    /// The page is held no longer. Its notice waits while the page is being fetched, and the answer
    /// cancels it (rule 7). Of too many a page list takes the place. One that is under way cannot: what
    /// was fetched or made since it was announced, and has left since, the parent has gathered, and
    /// nobody would tell it; so there is one more.
    pub(super) fn owe_notice(&mut self, domain: DomainId, page: PageId) {
        self.owe(domain, page, false);
    }

    fn owe(&mut self, domain: DomainId, page: PageId, silent: bool) {
        let max = self.config.notices_max;
        let entry = self.domains.get_mut(&domain).expect("attached");
        let epoch = self.shared.running().close_epoch();
        entry.holdings.owe(page, Owed { epoch, silent });
        if entry.holdings.owed.len() > max {
            if entry.holdings.lists() {
                entry.holdings.list_anew(0);
            }
            entry.holdings.owed.clear();
            entry.holdings.held_up.clear();
            entry.holdings.listing = None;
            entry.holdings.announced = None;
            crate::probe::probe("notices-overflow");
            entry.holdings.relist = Some(epoch);
        }
    }

    /// Sends notices for pages that no running transaction can have read (rule 2), and that no commit
    /// under way may have made:
    ///
    /// 1. A fetch of page 5, which nobody has made, is given up. A transaction makes page 5; its commit
    ///    overtakes the fetch, whose answer says that there is such a page.
    /// 2. The answer comes before the stream: the page is not held, and its notice is sent.
    /// 3. The stream brings the commit, and the page is held. The next change of it is filtered out (P3).
    pub(super) fn send_notices(&mut self, domain: DomainId, all: bool, out: &mut Out) {
        let entry = self.domains.get_mut(&domain).expect("attached");
        let owed = entry.holdings.owed.len();
        if !entry.live() || owed == 0 || (!all && owed < NOTICES_BATCH) {
            return;
        }
        let unpinned = self.config.faults.has(Fault::UnpinnedNotice);
        let across = self.config.faults.has(Fault::JoinAcrossNotice);
        let oldest = if unpinned { u64::MAX } else { self.shared.running().oldest() };
        let Domain { holdings, flights, commits, .. } = entry;
        let mut written = None;
        let pages = holdings.take_free(oldest, |page| {
            // Were it forgotten when the fetch is sent, and the fetch lost with its link, a page that
            // a running transaction has read would be missing from the list that follows (rule 2).
            let fetched = flights.sent(page) && !across;
            fetched || written.get_or_insert_with(|| commits.pages()).contains(&page)
        });
        for pages in pages.chunks(PAGES_PER_MESSAGE_MAX) {
            let pages = pages.to_vec();
            self.send(domain, Message::Evicted { domain, pages }, out);
        }
    }

    /// Sends the next part of the page list, when one is wanted (rule 17). One that is sent anew on a
    /// link that stands is announced by an empty part, and made when the parent is known to gather:
    ///
    /// 1. The list is made and sent; it travels slowly, on the control lane.
    /// 2. A transaction makes page 5. Its commit, on the bulk lane, overtakes the list: it is logged,
    ///    and the node holds the page, as its parent knows.
    /// 3. The list comes to the parent, which narrows the registration to what it names. The next
    ///    change of page 5 is filtered out (P3).
    pub(super) fn send_holding(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let oldest = self.shared.running().oldest();
        let entry = self.domains.get_mut(&domain).expect("attached");
        if !entry.live() {
            return;
        }
        if entry.holdings.listing.is_none() {
            let Holdings { relist, announced, announces, .. } = &mut entry.holdings;
            if announced.is_some() || relist.is_none_or(|epoch| epoch >= oldest) {
                return;
            }
            *relist = None;
            let unannounced = self.config.faults.has(Fault::ListUnannounced);
            if std::mem::replace(announces, true) && !unannounced {
                crate::probe::probe("list-announced");
                *announced = Some(entry.beat_clock.not_before_sent(now));
                let message = Message::Holding { domain, pages: Vec::new(), done: false };
                self.send(domain, message, out);
                return;
            }
            entry.begin_listing();
        }
        let (pages, done) = entry.next_part();
        let complete = self.complete_of(&pages);
        self.send(domain, Message::Holding { domain, pages, done }, out);
        if let Some(pages) = complete {
            self.send(domain, Message::Group(GroupMessage::Complete { domain, pages }), out);
        }
    }

    /// Of pages of a list, for a redirector: those of which the copy here is complete.
    fn complete_of(&self, pages: &[PageId]) -> Option<Vec<PageId>> {
        self.neighbours.as_ref().filter(|_| self.is_in_group())?;
        let complete = |page: &PageId| {
            self.shared.peek(*page).is_some_and(|copy| copy.complete() && copy.page.is_some())
        };
        let complete: Vec<PageId> = pages.iter().copied().filter(complete).collect();
        (!complete.is_empty()).then_some(complete)
    }

    /// Checks a domain's bookkeeping; gives the bytes it holds.
    pub(super) fn check_domain(&self, id: DomainId, domain: &Domain) -> usize {
        let holdings = &domain.holdings;
        let mut used = 0;
        for (page, cost) in &holdings.resident {
            let copy = self.shared.peek(*page).expect("resident pages are in the maps");
            assert_eq!(copy.cost(), *cost, "costs are those of the copies");
            assert!(copy.holes.is_sorted(), "holes ascend");
            assert!(copy.holes.len() <= PageCopy::HOLES_MAX, "a copy has too many holes");
            let through = domain.position.expect("only a domain with a position holds pages");
            assert!(copy.version <= through, "page {page} is above valid-through (rule 4)");
            assert!(!holdings.suspects.contains_key(page), "a copy is no suspect of itself");
            used += cost;
        }
        used += holdings.suspects.values().map(|copy| copy.cost()).sum::<usize>();
        assert!(holdings.owed.len() <= self.config.notices_max, "owed notices are bounded");
        let owed = |page: &&PageId| holdings.owed.contains_key(*page);
        let held_up = holdings.held_up.iter().filter(owed).count();
        let waits = holdings.owed.values().filter(|owed| owed.epoch >= holdings.waits_from).count();
        assert!(held_up + waits >= holdings.owed.len(), "a notice is never looked at");
        if domain.position.is_some() && domain.live() {
            assert_eq!(domain.state.through(), domain.position, "readers see the position");
        }
        assert_eq!(domain.state.id(), id, "domains are filed under their ids");
        domain.flights.check();
        domain.companions.check(self.config.companions_max);
        domain.commits.check();
        used
    }
}

impl Domain {
    /// All that the parent must stay registered for: copies, pages that running transactions may
    /// have read, pages in flight, pages of commits under way.
    pub(super) fn begin_listing(&mut self) {
        let mut pages: BTreeSet<PageId> = self.holdings.resident.keys().copied().collect();
        pages.extend(self.holdings.owed.keys());
        pages.extend(self.flights.pages());
        // They may be made, and no longer under way, when the list comes to its end.
        pages.extend(self.commits.pages());
        self.holdings.listing = Some(Listing::new(pages));
    }

    fn next_part(&mut self) -> (Vec<PageId>, bool) {
        let commits = self.commits.pages();
        let listing = self.holdings.listing.as_mut().expect("begun by the caller");
        // Pages that commits under way will make held, however late they were asked for.
        commits.into_iter().for_each(|page| listing.add(page));
        let (part, done) = listing.next();
        let part = part.into_iter().filter(|&page| self.concerns(page)).collect();
        if done {
            self.holdings.listing = None;
            self.holdings.relist = self.holdings.relist.max(self.holdings.again.take());
        }
        (part, done)
    }

    /// Whether changes of the page still matter.
    pub(super) fn concerns(&self, page: PageId) -> bool {
        self.holdings.holds(page)
            || self.holdings.owed.contains_key(&page)
            || self.flights.sent(page)
            || self.commits.writes(page)
    }
}

/// A copy after a commit that touched `change` at the origin; none: it cannot be told.
pub(super) fn updated(
    old: Option<&PageCopy>,
    change: &PageChange,
    stamp: Stamp,
    ops: &[Op],
    page_bytes: u32,
) -> Option<PageCopy> {
    if old.is_none() && !matches!(ops.first(), Some(Op::CreatePage(_))) {
        return None;
    }
    let mut page = old.and_then(|copy| copy.page.clone());
    let mut holes: BTreeSet<Slot> = old.into_iter().flat_map(|copy| copy.holes.clone()).collect();
    let before = holes.clone();
    let mut touched = Vec::new();
    for op in ops {
        match (op, &mut page) {
            (Op::CreatePage(kind), page @ None) => {
                *page = Some(Page::empty(*kind));
                touched.push((Target::Page, Aspect::Existence));
            }
            (Op::DeletePage, page) => {
                *page = None;
                holes.clear();
                touched.push((Target::Page, Aspect::Existence));
            }
            (Op::CreatePage(_), Some(_)) | (_, None) => return None,
            (op, Some(page)) => {
                touched.extend(update_slot(page, op, &mut holes, page_bytes)?);
            }
        }
    }
    // The origin may have forgotten generations, or found a record of another kind, where this copy
    // did not: then the two are no longer the same page (bug 13). Of slots that were holes nothing
    // can be compared.
    let known = |named: &PageChange| -> Vec<(Target, Aspect)> {
        let slots = named.touched.iter().copied();
        let hole = |target| matches!(target, Target::Slot(slot) if before.contains(&slot));
        slots.filter(|&(target, _)| !hole(target)).collect()
    };
    if known(&PageChange::named(change.page, touched)) != known(change) {
        crate::probe::probe("update-not-told");
        return None;
    }
    let holes = holes.into_iter().collect();
    Some(PageCopy { id: change.page, version: stamp, page, holes })
}

/// One op on a copy that may have holes; says what it touched, if that can be told (of a slot that
/// is a hole it cannot). None: what the origin made of the page cannot be told.
fn update_slot(
    page: &mut Page,
    op: &Op,
    holes: &mut BTreeSet<Slot>,
    page_bytes: u32,
) -> Option<Option<(Target, Aspect)>> {
    let slot = match op {
        Op::Put { slot, .. }
        | Op::Delete { slot, .. }
        | Op::Add { slot, .. }
        | Op::Max { slot, .. } => *slot,
        Op::WriteRaw { .. }
        | Op::TruncateRaw { .. }
        | Op::CreatePage(_)
        | Op::DeletePage
        | Op::RestorePage { .. } => Slot(0),
    };
    let stale = holes.contains(&slot);
    match page.apply(op, page_bytes) {
        // Which generations a page with holes forgets the origin alone knows: those of the holes
        // count as well.
        Ok((Target::Page, _)) if !holes.is_empty() => None,
        Ok(_) if stale => {
            // A whole value fills a hole; anything else leaves it one.
            if matches!(op, Op::Put { .. }) {
                holes.remove(&slot);
            }
            Some(None)
        }
        Ok(touched) => Some(Some(touched)),
        Err(_) if stale => Some(None),
        Err(_) => None,
    }
}
