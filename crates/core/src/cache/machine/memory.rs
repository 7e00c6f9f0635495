//! Copies in memory: put, changed, evicted; the notices and page lists that follow.

use super::absences::{Absences, is_absence};
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
use std::ops::Range;
use std::sync::Arc;

/// A copy with more holes than this is not worth its place.
const HOLES_MAX: usize = 1024;
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

/// A page list under way to the parent.
struct Listing {
    /// Of its beginning, ascending.
    pages: Vec<PageId>,
    next: usize,
    /// Held since, and not told yet.
    late: BTreeSet<PageId>,
    late_told: BTreeSet<PageId>,
}

impl Listing {
    fn new(pages: BTreeSet<PageId>) -> Self {
        let pages = pages.into_iter().collect();
        Self { pages, next: 0, late: BTreeSet::new(), late_told: BTreeSet::new() }
    }

    /// Names a page that the beginning did not know of, once.
    fn add(&mut self, page: PageId) {
        if self.pages.binary_search(&page).is_err() && !self.late_told.contains(&page) {
            self.late.insert(page);
        }
    }

    /// The next pages to be told, and whether they are the last.
    fn next(&mut self) -> (Vec<PageId>, bool) {
        let end = self.pages.len().min(self.next + PAGES_PER_MESSAGE_MAX);
        let mut part = self.pages[self.next..end].to_vec();
        self.next = end;
        while part.len() < PAGES_PER_MESSAGE_MAX
            && let Some(page) = self.late.pop_first()
        {
            self.late_told.insert(page);
            part.push(page);
        }
        (part, end == self.pages.len() && self.late.is_empty())
    }
}

/// A notice that is owed.
#[derive(Clone, Copy)]
struct Owed {
    /// Of the eviction.
    epoch: u64,
    /// Nothing is sent in the end: only lists must name the page for as long.
    silent: bool,
}

/// What a domain holds in memory, and what it owes the parent to know of that.
#[derive(Default)]
pub(super) struct Holdings {
    /// Copies in the shared maps, and what each costs.
    resident: BTreeMap<PageId, usize>,
    /// Complete copies that may be stale as a whole: asked for with their version.
    suspects: BTreeMap<PageId, Arc<PageCopy>>,
    /// Pages no longer held of which the parent must hear: not before all transactions of the time of
    /// their eviction have ended (rule 2). Lists name them until then.
    owed: BTreeMap<PageId, Owed>,
    /// No notice that waits for a transaction is of an epoch before this one. While that transaction
    /// runs they need not be looked at, however many there are.
    waits_from: u64,
    /// Notices that wait for something else: they are looked at every time.
    held_up: Vec<PageId>,
    listing: Option<Listing>,
    /// A list was begun by an empty part at this instant: it goes on when a later beat is echoed.
    announced: Option<Instant>,
    /// The parent gathers nothing for a list unless it is announced: one was sent since the resume,
    /// or the resume held nothing, or nothing that the parent knows of.
    announces: bool,
    /// A page list is wanted, once all transactions of this epoch have ended.
    relist: Option<u64>,
    /// One more after that, likewise: notices were forgotten while the parent gathers what is fetched
    /// and made.
    again: Option<u64>,
}

impl Holdings {
    /// Whether the page is in memory, whole or with holes.
    pub(super) fn holds(&self, page: PageId) -> bool {
        self.resident.contains_key(&page)
    }

    /// What its copy in memory costs.
    pub(super) fn cost_of(&self, page: PageId) -> Option<usize> {
        self.resident.get(&page).copied()
    }

    /// Copies of absent pages.
    pub(super) fn absences(&self) -> usize {
        self.resident.values().filter(|cost| is_absence(**cost)).count()
    }

    pub(super) fn suspect(&self, page: PageId) -> Option<Arc<PageCopy>> {
        self.suspects.get(&page).cloned()
    }

    /// Pages of a range: held, and suspects.
    pub(super) fn pages_in(&self, pages: Range<PageId>) -> (Vec<PageId>, Vec<PageId>) {
        let held = self.resident.range(pages.clone()).map(|(&page, _)| page).collect();
        (held, self.suspects.range(pages).map(|(&page, _)| page).collect())
    }

    /// Whether the page is in memory, or only suspected to be stale.
    pub(super) fn keeps(&self, page: PageId) -> bool {
        self.holds(page) || self.suspects.contains_key(&page)
    }

    /// Whether a page list is due, or under way.
    fn lists(&self) -> bool {
        self.relist.is_some() || self.announced.is_some() || self.listing.is_some()
    }

    /// See `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn under_way(&self) -> Option<String> {
        crate::rest::first(&[
            ("notices owed", self.owed.len()),
            ("page lists due", usize::from(self.lists())),
        ])
    }

    fn owe(&mut self, page: PageId, mut owed: Owed) {
        let epoch = owed.epoch;
        owed.silent &= self.owed.get(&page).is_none_or(|before| before.silent);
        self.owed.insert(page, owed);
        self.waits_from = self.waits_from.min(epoch);
    }

    /// Pages of notices that may have become free: some of them, or all where a transaction has ended
    /// for which one may have waited.
    fn looked_at(&mut self, oldest: u64) -> Vec<PageId> {
        if oldest <= self.waits_from {
            return std::mem::take(&mut self.held_up);
        }
        self.waits_from = u64::MAX;
        self.held_up.clear();
        self.owed.keys().copied().collect()
    }

    /// Takes out notices for pages that no transaction from `oldest` on can have read, and that nothing
    /// else holds up; gives those of which the parent must hear.
    fn take_free(&mut self, oldest: u64, mut held_up: impl FnMut(PageId) -> bool) -> Vec<PageId> {
        let mut pages = Vec::new();
        for page in self.looked_at(oldest) {
            let Some(&Owed { epoch, silent }) = self.owed.get(&page) else { continue };
            if epoch < oldest && !held_up(page) {
                self.owed.remove(&page);
                if !silent && !self.holds(page) {
                    pages.push(page);
                }
                continue;
            }
            crate::probe::probe("notice-waits");
            if epoch < oldest {
                self.held_up.push(page);
            } else {
                self.waits_from = self.waits_from.min(epoch);
            }
        }
        pages
    }

    pub(super) fn cancel_notice(&mut self, page: PageId) {
        self.owed.remove(&page);
    }

    /// A resume is sent. From one that holds something on the parent gathers what is fetched and
    /// made, and wants a list of all else.
    pub(super) fn resume(&mut self, holds: bool) {
        self.listing = None;
        self.announced = None;
        self.again = None;
        self.announces = !holds;
        if holds {
            self.relist = self.relist.max(Some(0));
        }
    }

    /// The parent could not tell what became of the copies: it takes this node for one that holds
    /// nothing, and gathers nothing (bug 141).
    pub(super) fn reset(&mut self) {
        self.announces = true;
    }

    /// What was sent up to a beat has been handled by the parent.
    pub(super) fn echoed(&mut self, sent: Instant) -> bool {
        self.announced.take_if(|announced| *announced < sent).is_some()
    }

    pub(super) fn lose_link(&mut self) {
        self.listing = None;
        self.announced = None;
    }
}

impl Cache {
    // ---- changes ----

    /// Others changed the page: holes, or it goes.
    pub(super) fn invalidate(&mut self, domain: DomainId, from: Stamp, change: &PageChange) {
        let Some(old) = self.shared.peek(change.page) else {
            return self.told_in_vain(domain, change.page);
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
        if whole || holes.len() > HOLES_MAX {
            self.drop_copy(domain, change.page);
            self.owe_notice(domain, change.page);
            return;
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
            let epoch = Some(owed.map_or(0, |owed| owed.epoch));
            let lists = holdings.lists();
            let due = if lists { &mut holdings.again } else { &mut holdings.relist };
            *due = (*due).max(epoch);
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
                entry.holdings.again = entry.holdings.again.max(Some(0));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(7), page: PageNo(number) }
    }

    /// While a transaction ran that may have read them, thousands of notices were looked at after every
    /// message, though none of them could have become free (bug 104). They are when it has ended.
    #[test]
    fn notices_that_wait_for_a_transaction_are_not_looked_at_while_it_runs() {
        let owed = |epoch| Owed { epoch, silent: false };
        let mut holdings = Holdings::default();
        // Page 1 is of before the transaction, and is being fetched.
        (1..1000).for_each(|number| holdings.owe(page(number), owed(4 + number)));
        let fetched = |one| one == page(1);
        assert_eq!(holdings.take_free(6, fetched), []);
        assert_eq!(holdings.looked_at(6), [page(1)], "the others cannot be free");
        holdings.held_up.push(page(1));
        // One more is evicted. Then the fetch is given up.
        holdings.owe(page(1000), owed(2000));
        assert_eq!(holdings.take_free(6, fetched), []);
        assert_eq!(holdings.looked_at(6), [page(1)]);
        holdings.held_up.push(page(1));
        assert_eq!(holdings.take_free(6, |_| false), [page(1)]);
        assert_eq!(holdings.looked_at(6), []);
        // The next transaction began at epoch 500; it ends, and none runs. Page 600 is held again.
        let freed: Vec<PageId> = (2..496).map(page).collect();
        assert_eq!(holdings.take_free(500, |_| false), freed);
        holdings.resident.insert(page(600), 1);
        assert_eq!(holdings.take_free(500, |_| false), []);
        let freed: Vec<PageId> = (496..=1000).filter(|n| *n != 600).map(page).collect();
        assert_eq!(holdings.take_free(u64::MAX, |_| false), freed);
        assert!(holdings.owed.is_empty());
        // With none running, the next one is free at once.
        holdings.owe(page(3), owed(3000));
        assert_eq!(holdings.take_free(u64::MAX, |_| false), [page(3)]);
    }
}
