//! Pages that come from neighbours (BuddyCache, section 3.1; decision 0031).
//!
//! The parent, a redirector, ends a request for a page by pointing to a neighbour. From then on this node
//! alone decides: the page comes, or the neighbour says that it lacks it, or is gone, or is late; then the
//! page is asked for anew. The parent is told in each case. All the while the page is in flight: no notice of
//! it is sent (rule 7), and changes are kept for it (rule 5).

use super::link::violation;
use super::{Cache, CacheOutput, Out};
use crate::cache::io::NeighbourOutput;
use crate::group::{GroupMessage, HelpEnd, Lack};
use crate::id::{BootId, DomainId, PageId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{CloseReason, Message, PageAnswer};
use crate::page::Page;
use crate::time::{Duration, Instant};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of pages that came before the parent's word of them; more are not kept.
const EARLY_BYTES_MAX: usize = 4 << 20;

/// A page of a fetch.
pub(super) type Key = (RequestId, PageId);

/// What of a fetch came to its end: by request and domain.
type Over = BTreeMap<(RequestId, DomainId), Vec<PageId>>;

/// A page that is to come from a neighbour.
#[derive(Clone, Copy)]
struct Pointing {
    domain: DomainId,
    helper: BootId,
    /// What comes may have holes.
    holes: bool,
    deadline: Instant,
    /// When the page was asked for.
    asked: Instant,
    /// When it began, or the helper said that it waits itself.
    since: Instant,
    /// The helper said so: it is given more time once.
    lengthened: bool,
    /// It is here, and waits for the stream (rule 4).
    came: bool,
}

/// Pages of this link's fetches that are to come from neighbours.
#[derive(Default)]
pub(super) struct Transfers {
    pointed: BTreeMap<Key, Pointing>,
    deadlines: BTreeSet<(Instant, Key)>,
    /// When neighbours sent last something that was to come from them.
    sent: BTreeMap<BootId, Instant>,
    /// Pages that came before the parent's word of it, and from whom.
    early: BTreeMap<Key, (BootId, PageAnswer)>,
    early_bytes: usize,
    /// Pages that came, of which the parent is to be told.
    over: Over,
}

impl Transfers {
    /// Pages that are to come.
    pub(super) fn len(&self) -> usize {
        self.pointed.len()
    }

    /// Pages that came before the parent's word of them.
    #[cfg(feature = "faults")]
    pub(super) fn early(&self) -> usize {
        self.early.len()
    }

    /// Whether a page of a fetch is to come from a neighbour.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.pointed.contains_key(&key)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn insert(&mut self, key: Key, pointing: Pointing) {
        self.remove(key);
        self.deadlines.insert((pointing.deadline, key));
        self.pointed.insert(key, pointing);
    }

    fn remove(&mut self, key: Key) -> Option<Pointing> {
        let pointing = self.pointed.remove(&key)?;
        self.deadlines.remove(&(pointing.deadline, key));
        Some(pointing)
    }

    /// One that a helper was to send and has not sent.
    fn awaited(&self, key: Key, of: (BootId, DomainId)) -> Option<Pointing> {
        let pointing = self.pointed.get(&key).copied();
        pointing.filter(|one| (one.helper, one.domain) == of && !one.came)
    }

    /// Pages that were to come from a neighbour that is gone, and have not.
    fn gone(&mut self, helper: BootId) -> Vec<Key> {
        self.sent.remove(&helper);
        let of = self.pointed.iter().filter(|(_, one)| one.helper == helper && !one.came);
        of.map(|(key, _)| *key).collect()
    }

    /// A neighbour sent something that it was to send.
    fn sends(&mut self, now: Instant, helper: BootId) {
        if self.pointed.is_empty() {
            self.sent.clear();
        } else {
            self.sent.insert(helper, now);
        }
    }

    /// Those whose time is up. One that sends is not late with what comes after, over a slow line a batch comes
    /// page by page: it is waited for as long again since it sent last, and for no more than `most` in all.
    fn take_due(&mut self, now: Instant, (wait, most): (Duration, Duration)) -> Vec<Key> {
        let mut late = Vec::new();
        while let Some((at, key)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            let one = self.pointed[&key];
            let sent = self.sent.get(&one.helper).filter(|_| !one.came);
            let put_off = sent.map(|sent| sent.after(wait).min(one.since.after(most)));
            if let Some(deadline) = put_off.filter(|until| *until > now) {
                crate::probe::probe("neighbour-sends-on");
                self.insert(key, Pointing { deadline, ..one });
            } else {
                self.deadlines.remove(&(at, key));
                late.push(key);
            }
        }
        late
    }

    /// A page of a fetch has its use, or has none any more.
    pub(super) fn installed(&mut self, key: Key) {
        if let Some(pointing) = self.remove(key) {
            self.over.entry((key.0, pointing.domain)).or_default().push(key.1);
        }
    }

    fn keep_early(&mut self, key: Key, from: BootId, answer: PageAnswer) {
        self.forget_early(key);
        if self.early_bytes + bytes_of(&answer) > EARLY_BYTES_MAX {
            crate::probe::probe("early-pages-full");
            return;
        }
        self.early_bytes += bytes_of(&answer);
        self.early.insert(key, (from, answer));
    }

    fn take_early(&mut self, key: Key) -> Option<(BootId, PageAnswer)> {
        let (from, answer) = self.early.remove(&key)?;
        self.early_bytes -= bytes_of(&answer);
        Some((from, answer))
    }

    /// A page of a fetch will not come early any more: the parent has answered, or it has come.
    pub(super) fn forget_early(&mut self, key: Key) {
        if !self.early.is_empty() {
            self.take_early(key);
        }
    }

    pub(super) fn check(&self) {
        let early: usize = self.early.values().map(|(_, answer)| bytes_of(answer)).sum();
        assert_eq!(early, self.early_bytes, "bytes of pages that came early are counted");
        assert_eq!(self.deadlines.len(), self.pointed.len(), "every transfer has its limit");
    }
}

fn bytes_of(answer: &PageAnswer) -> usize {
    answer.body.image().map_or(0, Bytes::len) + size_of_val(answer.body.holes())
}

impl Cache {
    /// Pages of a fetch come from a neighbour.
    pub(super) fn on_pointed(
        &mut self,
        now: Instant,
        (request, domain): (RequestId, DomainId),
        (pages, helper, holes): (Vec<PageId>, BootId, bool),
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let Some(group) = &self.neighbours else {
            return violation("somebody who is no member is pointed to a neighbour");
        };
        let reached = group.link_to(helper).is_some();
        let untimed = self.config.faults.has(Fault::TransferUntimed);
        let wait = if untimed { Duration::from_secs(1 << 30) } else { group.config.help_wait };
        let deadline = now.after(wait);
        if self.config.faults.has(Fault::PointedForgetsKept)
            && let Some(entry) = self.domains.get_mut(&domain)
        {
            entry.flights.forget_kept(Stamp(u64::MAX));
        }
        let Some(link) = self.link_of(domain) else {
            return violation("a neighbour for pages that were not asked for");
        };
        let asked = link.fetches.get(&request).map_or(now, |fetch| fetch.sent);
        let mut came = Vec::new();
        let mut lost = Vec::new();
        for page in pages {
            if !self.page_answered(request, domain, page)? {
                continue;
            }
            let transfers = &mut self.standing(domain).transfers;
            let (since, lengthened) = (now, false);
            let pointing =
                Pointing { domain, helper, holes, deadline, asked, since, lengthened, came: false };
            transfers.insert((request, page), pointing);
            match transfers.take_early((request, page)) {
                Some((from, answer)) if from == helper => came.push(answer),
                _ if !reached => lost.push((request, page)),
                _ => {}
            }
        }
        if !came.is_empty() {
            crate::probe::probe("neighbour-was-early");
            self.transfers_came(now, (request, domain), came, out);
        }
        // Its link was lost meanwhile.
        self.transfers_over(lost, HelpEnd::NotSent, out);
        // Who waits for one of them here waits for somebody else's.
        self.helps.look_again();
        Ok(())
    }

    /// Nothing more comes from a neighbour, and nothing more is sent to it.
    pub(super) fn helper_gone(&mut self, life: BootId, out: &mut Out) {
        self.helps.forget(life);
        let keys = self.redirector().map_or_else(Vec::new, |link| link.transfers.gone(life));
        self.transfers_over(keys, HelpEnd::NotSent, out);
    }

    pub(super) fn neighbour_sends(
        &mut self,
        now: Instant,
        life: BootId,
        (request, domain): (RequestId, DomainId),
        pages: Vec<PageAnswer>,
        out: &mut Out,
    ) {
        let mut came: Vec<PageAnswer> = Vec::new();
        for answer in pages {
            let Some(link) = self.link_of(domain) else { return };
            let key = (request, answer.page);
            if link.transfers.awaited(key, (life, domain)).is_some()
                // One that comes twice in a message comes once.
                && came.iter().all(|other| other.page != answer.page)
            {
                came.push(answer);
                continue;
            }
            if self.config.faults.has(Fault::LateHelpTaken)
                && let Some(newest) = self.unanswered(domain, answer.page)
            {
                self.page_came(domain, newest, answer);
                continue;
            }
            let asked = link.fetches.get(&request).filter(|fetch| fetch.domain == domain);
            let asked = asked.is_some_and(|fetch| fetch.pages.contains(&answer.page));
            if asked && self.is_sound(&answer) {
                // It overtook the parent's word, which names who sends it.
                let transfers = &mut self.standing(domain).transfers;
                transfers.keep_early(key, life, answer);
            } else {
                // Given up long ago.
                crate::probe::probe("neighbour-was-late");
            }
        }
        let sent = self.transfers_came(now, (request, domain), came, out);
        if let (true, Some(link)) = (sent, self.link_of_mut(domain)) {
            link.transfers.sends(now, life);
        }
    }

    /// Pages that neighbours sent. One that does not check is as if it had not come. One that the stream has
    /// not reached waits for it, and not for ever: what is far ahead of the stream is not to be believed. Says
    /// whether any is sound.
    fn transfers_came(
        &mut self,
        now: Instant,
        (request, domain): (RequestId, DomainId),
        answers: Vec<PageAnswer>,
        out: &mut Out,
    ) -> bool {
        let Some(link) = self.link_of(domain) else { return false };
        let pointed = &link.transfers.pointed;
        // Of holes that were not asked for nobody would know: who misses one would be sent to the same copy again.
        let holed = |answer: &PageAnswer| {
            let pointing = pointed.get(&(request, answer.page));
            answer.body.holes().is_empty() || pointing.is_some_and(|pointing| pointing.holes)
        };
        let asked: BTreeSet<PageId> = answers.iter().filter(|a| holed(a)).map(|a| a.page).collect();
        let (came, bad): (Vec<PageAnswer>, Vec<PageAnswer>) = answers
            .into_iter()
            .partition(|answer| asked.contains(&answer.page) && self.is_sound(answer));
        if !bad.is_empty() {
            crate::probe::probe("neighbour-sent-damage");
            let keys = bad.into_iter().map(|answer| (request, answer.page)).collect();
            self.transfers_over(keys, HelpEnd::Lacked, out);
        }
        if came.is_empty() {
            return false;
        }
        let config = &self.neighbours.as_ref().expect("they are neighbours'").config;
        let deadline = now.after(config.help_wait_long);
        let link = self.standing(domain);
        let first = link.transfers.pointed.get(&(request, came[0].page));
        if let Some(Pointing { asked, .. }) = first {
            let (pages, took) = (came.len(), now.since(*asked));
            out.push(CacheOutput::Neighbour(NeighbourOutput::Came { pages, took }));
        }
        for answer in came {
            let key = (request, answer.page);
            self.page_came(domain, request, answer);
            let waits = self.sent_by(domain, key.1) == Some(request);
            let transfers = &mut self.standing(domain).transfers;
            if waits && let Some(pointing) = transfers.pointed.get(&key).copied() {
                transfers.insert(key, Pointing { deadline, came: true, ..pointing });
            } else {
                transfers.installed(key);
            }
        }
        let through = self.domains.get(&domain).and_then(|entry| entry.position);
        if let Some(through) = through {
            self.install_waiting(domain, through, out);
        }
        true
    }

    /// The newest fetch of a page, if nothing has come of it.
    fn unanswered(&self, domain: DomainId, page: PageId) -> Option<RequestId> {
        self.domains.get(&domain)?.flights.unanswered(page)
    }

    /// The newest fetch of a page.
    fn sent_by(&self, domain: DomainId, page: PageId) -> Option<RequestId> {
        self.domains.get(&domain)?.flights.sent_by(page)
    }

    /// Tells the parent of pages that came.
    pub(super) fn say_came(&mut self, out: &mut Out) {
        let Some(link) = self.redirector().filter(|link| !link.transfers.over.is_empty()) else {
            return;
        };
        let end = HelpEnd::Came;
        for ((request, domain), pages) in std::mem::take(&mut link.transfers.over) {
            self.send_to_redirector(
                Message::Group(GroupMessage::Helped { request, domain, pages, end }),
                out,
            );
        }
    }

    /// Whether a page from a neighbour is one (P9), of the size of its volume's.
    fn is_sound(&self, answer: &PageAnswer) -> bool {
        let Some(image) = answer.body.image() else { return false };
        let volume = self.shared.volume(answer.page.volume);
        let max = volume.map_or(crate::page::PAGE_BYTES_MAX, |volume| volume.page_bytes);
        answer.version <= answer.as_of
            && image.len() <= max as usize
            && Page::decode(answer.page, image.clone()).is_ok()
    }

    pub(super) fn neighbour_lacks(
        &mut self,
        now: Instant,
        life: BootId,
        (request, domain, why): (RequestId, DomainId, Lack),
        pages: Vec<PageId>,
        out: &mut Out,
    ) {
        let up = self.redirector.and_then(|link| self.links.get_mut(&link));
        let (Some(link), Some(group)) = (up, &self.neighbours) else { return };
        let deadline = now.after(group.config.help_wait_long);
        let mut over = Vec::new();
        for page in pages {
            let key = (request, page);
            let Some(one) = link.transfers.awaited(key, (life, domain)) else { continue };
            if why != Lack::Waits {
                over.push(key);
            } else if !one.lengthened {
                crate::probe::probe("neighbour-waits-itself");
                let longer = Pointing { deadline, since: now, lengthened: true, ..one };
                link.transfers.insert(key, longer);
            }
        }
        let end = match why {
            Lack::Waits => return,
            Lack::NotNow => HelpEnd::NotSent,
            Lack::Lacks => {
                crate::probe::probe("neighbour-lacks-it");
                HelpEnd::Lacked
            }
        };
        self.transfers_over(over, end, out);
    }

    /// Pages that are to come no longer: the parent is told, and they are asked for anew.
    fn transfers_over(&mut self, keys: Vec<Key>, end: HelpEnd, out: &mut Out) {
        let mut over = Over::new();
        for key in keys {
            let link = self.redirector().expect("they were pointed on it");
            if let Some(Pointing { domain, .. }) = link.transfers.remove(key) {
                over.entry((key.0, domain)).or_default().push(key.1);
            }
        }
        for ((request, domain), pages) in over {
            let entry = self.domains.get_mut(&domain).expect("asked for");
            for page in &pages {
                entry.flights.ask_again(*page, request);
            }
            let helped = GroupMessage::Helped { request, domain, pages, end };
            self.send_to_redirector(Message::Group(helped), out);
        }
    }

    /// Transfers whose time is up. A neighbour of which nothing at all was heard, over several of them, is
    /// taken for dead.
    pub(super) fn end_late_transfers(&mut self, now: Instant, out: &mut Out) {
        let up = self.redirector.and_then(|link| self.links.get_mut(&link));
        let (Some(link), Some(group)) = (up, &self.neighbours) else { return };
        let due =
            link.transfers.take_due(now, (group.config.help_wait, group.config.help_wait_long));
        if due.is_empty() {
            return;
        }
        crate::probe::probe("neighbour-too-late");
        let helpers = due.iter().filter_map(|key| link.transfers.pointed.get(key));
        let helpers: Vec<(BootId, Instant)> = helpers.map(|one| (one.helper, one.since)).collect();
        self.transfers_over(due, HelpEnd::Late, out);
        for (life, since) in helpers {
            let dead = self.neighbours.as_mut().and_then(|group| group.late(now, life, since));
            if let Some(link) = dead {
                self.close_neighbour(link, CloseReason::Silent, out);
            }
        }
    }
}
