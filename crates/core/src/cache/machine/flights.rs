//! Pages asked for: joining, sending, keeping changes meanwhile, installing.

use super::demand::Demand;
use super::link::{SentFetch, violation};
use super::{Cache, Out};
use crate::cache::PageCopy;
use crate::commit::{PageChange, Target};
use crate::id::{DomainId, PageId, RequestId, Slot, Stamp};
use crate::machine::Fault;
use crate::message::{
    CloseReason, Message, PAGES_PER_MESSAGE_MAX, PageAnswer, PageAsk, PageBody, RequestError,
};
use crate::page::Page;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A page that does not check is asked for again this often.
const DAMAGED_MAX: u32 = 2;

/// A page asked for, or queued to be.
#[derive(Default)]
pub(super) struct Flight {
    /// The fetch that asks for it on this link; none: queued.
    sent: Option<RequestId>,
    /// It was asked for on this link, if not by that fetch: the parent counts it as held.
    registered: bool,
    /// The parent has said on this link that there is such a page.
    seen: bool,
    /// Users who wait.
    waiters: BTreeSet<RequestId>,
    /// The copy whose version was sent along.
    have: Option<Arc<PageCopy>>,
    /// Changes since the fetch was sent (rule 5), ascending.
    kept: Vec<(Stamp, Vec<Target>)>,
    /// An answer of a version that valid-through has not reached (rule 4).
    answer: Option<PageAnswer>,
    damaged: u32,
}

/// A domain's pages in flight.
#[derive(Default)]
pub(super) struct Flights {
    flights: BTreeMap<PageId, Flight>,
    demand: Demand,
    prefetch: VecDeque<PageId>,
    /// Answers that wait, by the version they wait for.
    waiting: BTreeSet<(Stamp, PageId)>,
    /// Changes kept in all flights.
    kept: usize,
}

impl Flights {
    /// Whether an answer for the page is to come.
    pub(super) fn sent(&self, page: PageId) -> bool {
        self.flights.get(&page).is_some_and(|flight| flight.sent.is_some())
    }

    /// The fetch that asks for the page.
    pub(super) fn sent_by(&self, page: PageId) -> Option<RequestId> {
        self.flights.get(&page)?.sent
    }

    /// The same, if the page is not here yet.
    pub(super) fn unanswered(&self, page: PageId) -> Option<RequestId> {
        self.flights.get(&page).filter(|flight| flight.answer.is_none())?.sent
    }

    /// Pages asked for, ascending.
    pub(super) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.flights.iter().filter(|(_, flight)| flight.sent.is_some()).map(|(&page, _)| page)
    }

    /// Pages asked for or to be asked for, of a range.
    pub(super) fn pages_in(&self, pages: Range<PageId>) -> impl Iterator<Item = PageId> + '_ {
        self.flights.range(pages).map(|(&page, _)| page)
    }

    /// Those who wait for pages of a range.
    pub(super) fn take_waiters(&mut self, pages: Range<PageId>) -> BTreeSet<RequestId> {
        let flights = self.flights.range(pages);
        flights.flat_map(|(_, flight)| flight.waiters.iter().copied()).collect()
    }

    /// Nothing that was asked on the lost link is answered any more.
    pub(super) fn lose_link(&mut self) {
        self.flights.retain(|_, flight| !flight.waiters.is_empty());
        self.demand.clear();
        self.prefetch.clear();
        self.waiting.clear();
        self.kept = 0;
        for flight in self.flights.values_mut() {
            flight.sent = None;
            flight.registered = false;
            flight.seen = false;
            flight.have = None;
            flight.kept.clear();
            flight.answer = None;
        }
        for (page, flight) in &self.flights {
            flight.waiters.iter().for_each(|user| self.demand.push(*user, *page));
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        let waits = |flight: &Flight, user| flight.sent.is_none() && flight.waiters.contains(&user);
        let flights = &self.flights;
        self.demand.tidy(|user, page| flights.get(&page).is_some_and(|it| waits(it, user)));
    }

    fn remove(&mut self, page: PageId) -> Option<Flight> {
        let flight = self.flights.remove(&page)?;
        self.kept -= flight.kept.len();
        if let Some(answer) = &flight.answer {
            self.waiting.remove(&(answer.version, page));
        }
        Some(flight)
    }

    /// A planted fault: no answer to come is taken to be older than one that came.
    pub(super) fn forget_kept(&mut self, upto: Stamp) {
        for flight in self.flights.values_mut() {
            self.kept -= flight.kept.len();
            flight.kept.retain(|(stamp, _)| *stamp > upto);
            self.kept += flight.kept.len();
        }
    }

    /// Asks for the page anew, for the same users.
    fn again(&mut self, page: PageId, flight: Flight) {
        let Flight { waiters, damaged, registered, seen, .. } = flight;
        let flight = Flight { waiters, damaged, registered, seen, ..Flight::default() };
        self.flights.insert(page, flight);
        self.demand.push_again(page);
    }

    /// The page of a fetch is not to come after all, and nothing says that there is such a page. It is
    /// asked for anew, also where nobody waits any more: the parent takes it for held.
    pub(super) fn ask_again(&mut self, page: PageId, request: RequestId) {
        match self.flights.get(&page).map(|flight| flight.sent) {
            Some(sent) if sent == Some(request) => {
                let flight = self.remove(page).expect("looked up above");
                self.again(page, flight);
            }
            Some(_) => {}
            None => self.again(page, Flight { registered: true, ..Flight::default() }),
        }
    }

    /// See `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn under_way(&self) -> Option<String> {
        crate::rest::first(&[
            ("pages in flight", self.flights.len()),
            ("pages to be asked for", self.demand.len() + self.prefetch.len()),
            ("answers that wait", self.waiting.len()),
            ("changes kept for pages in flight", self.kept),
        ])
    }

    pub(super) fn check(&self) {
        self.demand.check();
        let kept: usize = self.flights.values().map(|flight| flight.kept.len()).sum();
        assert_eq!(kept, self.kept, "kept changes are counted");
        for (stamp, page) in &self.waiting {
            let answer = self.flights.get(page).and_then(|flight| flight.answer.as_ref());
            assert!(
                answer.is_some_and(|answer| answer.version == *stamp),
                "a waiting answer belongs to a flight"
            );
        }
    }
}

impl Cache {
    /// A user wants a page that is not here: joins its fetch, or queues one.
    pub(super) fn want(&mut self, domain: DomainId, page: PageId, user: RequestId) {
        let flights = &mut self.domains.get_mut(&domain).expect("attached").flights;
        let flight = flights.flights.entry(page).or_default();
        // No notice is ever sent while a fetch is under way, so that joining it is safe (rule 7).
        if flight.waiters.insert(user) && flight.sent.is_none() {
            flights.demand.push(user, page);
            flights.tidy();
        }
    }

    /// Nobody waits for the page, but somebody will. Says whether it is asked for now.
    pub(super) fn prefetch(&mut self, domain: DomainId, page: PageId) -> bool {
        let max = self.config.prefetch_max;
        let flights = &mut self.domains.get_mut(&domain).expect("attached").flights;
        let new = flights.prefetch.len() < max && !flights.flights.contains_key(&page);
        if new {
            flights.flights.insert(page, Flight::default());
            flights.prefetch.push_back(page);
        }
        new
    }

    /// A user waits no longer. A fetch that nobody waits for is given up: its answer, if it comes,
    /// names a fetch that is no more (rule 6). The parent is told that we do not hold the page, but not
    /// before the answer says that there is such a page:
    ///
    /// 1. A fetch of page 5, which nobody has made, is given up, and its notice is sent.
    /// 2. A transaction makes page 5. Its commit, on the bulk lane, overtakes the notice: it is
    ///    logged, and the node holds the page, as its parent knows.
    /// 3. The notice comes to the parent. The next change of page 5 is filtered out (P3).
    pub(super) fn leave(&mut self, domain: DomainId, page: PageId, user: RequestId) {
        let entry = self.domains.get_mut(&domain).expect("attached");
        let Some(flight) = entry.flights.flights.get_mut(&page) else {
            return;
        };
        flight.waiters.remove(&user);
        if !flight.waiters.is_empty() {
            return;
        }
        if flight.registered && flight.sent.is_none() && !flight.seen {
            // It was to come from a neighbour and did not: the parent takes it for held, and nothing says
            // that there is such a page. It is asked for, for nobody.
            return;
        }
        // Else the answer to come decides. One that waits for the stream has come (bug 149).
        let unanswered = self.config.faults.has(Fault::NoticeUnanswered);
        let to_come = flight.sent.is_some() && flight.answer.is_none();
        let owed = flight.registered && (!to_come && flight.seen || unanswered);
        let came = flight.sent.filter(|_| flight.answer.is_some());
        entry.flights.remove(page);
        entry.flights.tidy();
        if let (Some(request), Some(link)) = (came, self.link_of_mut(domain)) {
            link.transfers.installed((request, page));
        }
        self.helps.look_again();
        let entry = &self.domains[&domain];
        if owed && !entry.holdings.holds(page) {
            self.owe_notice(domain, page);
        }
    }

    /// Asks for what is queued, demand before prefetch, in one message and as far as there is room; says
    /// whether one was sent.
    pub(super) fn send_fetch(&mut self, now: Instant, domain: DomainId, out: &mut Out) -> bool {
        let max = self.link_of(domain).map_or(0, super::Link::room).min(PAGES_PER_MESSAGE_MAX);
        let entry = self.domains.get_mut(&domain).expect("attached");
        if !entry.live() || max == 0 {
            return false;
        }
        for prefetch in [false, true] {
            let asks = entry.take_queued(prefetch, max);
            if asks.is_empty() {
                continue;
            }
            let request = self.request_id();
            let entry = self.domains.get_mut(&domain).expect("attached");
            let mut pages = BTreeSet::new();
            for ask in &asks {
                let flight = entry.flights.flights.get_mut(&ask.page).expect("just taken");
                flight.sent = Some(request);
                flight.registered = true;
                pages.insert(ask.page);
            }
            let link = self.standing(domain);
            link.outstanding += asks.len();
            link.fetches.insert(request, SentFetch { domain, pages, sent: now });
            let fetch = Message::Fetch { request, domain, pages: asks, prefetch };
            self.send(domain, fetch, out);
            return true;
        }
        false
    }

    /// Keeps a change for a page in flight (rule 5). Past the bound its detail is forgotten.
    pub(super) fn keep_for_flight(&mut self, domain: DomainId, stamp: Stamp, change: &PageChange) {
        let max = self.config.kept_max;
        let flights = &mut self.domains.get_mut(&domain).expect("attached").flights;
        let Some(flight) = flights.flights.get_mut(&change.page) else {
            return;
        };
        if flight.sent.is_none() || self.config.faults.has(Fault::ForgetBuffered) {
            return;
        }
        let mut targets: Vec<Target> = change.touched.iter().map(|touched| touched.0).collect();
        if flights.kept >= max || targets.contains(&Target::Page) {
            // A whole-page change stands for all before it.
            crate::probe::probe("kept-changes-overflow");
            flights.kept -= flight.kept.len();
            flight.kept.clear();
            targets = vec![Target::Page];
        }
        flight.kept.push((stamp, targets));
        flights.kept += 1;
    }

    pub(super) fn on_pages(
        &mut self,
        request: RequestId,
        domain: DomainId,
        pages: Vec<PageAnswer>,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        for answer in pages {
            if !self.page_answered(request, domain, answer.page)? {
                continue;
            }
            if matches!(answer.body, PageBody::Holed(..)) {
                return violation("a page with holes");
            }
            if answer.version > answer.as_of {
                return violation("a page that is newer than its as-of");
            }
            self.page_came(domain, request, answer);
        }
        let through = self.domains.get(&domain).and_then(|entry| entry.position);
        if let Some(through) = through {
            self.install_waiting(domain, through, out);
        }
        Ok(())
    }

    /// The parent has answered a page of a fetch, in whatever way. False: the fetch had failed.
    pub(super) fn page_answered(
        &mut self,
        request: RequestId,
        domain: DomainId,
        page: PageId,
    ) -> Result<bool, CloseReason> {
        let Some(link) = self.link_of_mut(domain) else {
            return violation("a page of a domain that was not asked for");
        };
        let failed = link.failed.get_mut(&request);
        if failed.is_some_and(|fetch| fetch.pages.remove(&page)) {
            // Its users were told, or it was asked for anew.
            return Ok(false);
        }
        let pending = link
            .fetches
            .get_mut(&request)
            .filter(|fetch| fetch.domain == domain)
            .is_some_and(|fetch| fetch.pages.remove(&page));
        if !pending {
            return violation("a page that was not asked for");
        }
        link.outstanding -= 1;
        if link.fetches[&request].pages.is_empty() {
            link.fetches.remove(&request);
        }
        Ok(true)
    }

    /// A page that was asked for is here, from wherever.
    pub(super) fn page_came(&mut self, domain: DomainId, request: RequestId, answer: PageAnswer) {
        let link = self.standing(domain);
        link.transfers.forget_early((request, answer.page));
        let ignore = self.config.faults.has(Fault::IgnoreRequestId);
        let flights = &mut self.domains.get_mut(&domain).expect("asked for").flights;
        if self.config.faults.has(Fault::AnswersInOrder) {
            flights.forget_kept(answer.as_of);
        }
        let flight = flights.flights.get_mut(&answer.page);
        let seen = !matches!(answer.body, PageBody::Absent);
        let Some(flight) = flight else {
            // It was given up.
            crate::probe::probe("answer-after-give-up");
            let holds = self.domains[&domain].holdings.holds(answer.page);
            if seen && !holds {
                self.owe_notice(domain, answer.page);
            }
            return;
        };
        flight.registered = true;
        flight.seen |= seen;
        // An answer to a fetch that was given up says nothing about the one under way (rule 6).
        if flight.sent == Some(request) || ignore {
            let (version, page) = (answer.version, answer.page);
            if let Some(other) = flight.answer.replace(answer) {
                // One fetch has two answers where a fault is planted, and nowhere else.
                flights.waiting.remove(&(other.version, page));
            }
            flights.waiting.insert((version, page));
        }
    }

    /// Installs answers whose version valid-through has reached (rule 4).
    pub(super) fn install_waiting(&mut self, domain: DomainId, through: Stamp, out: &mut Out) {
        let ahead = self.config.faults.has(Fault::InstallAhead);
        loop {
            let entry = self.domains.get_mut(&domain).expect("attached");
            let Some(&(version, page)) = entry.flights.waiting.first() else {
                return;
            };
            if version > through && !ahead {
                crate::probe::probe("answer-ahead-of-stream");
                return;
            }
            let flight = entry.flights.remove(page).expect("its answer waits");
            self.helps.look_again();
            self.install(domain, page, flight, out);
        }
    }

    fn install(&mut self, domain: DomainId, page: PageId, flight: Flight, out: &mut Out) {
        if let (Some(request), Some(link)) = (flight.sent, self.link_of_mut(domain)) {
            link.transfers.installed((request, page));
        }
        if self.shared.is_unreadable(page.volume) {
            // Answered before the right was taken, and not told of what changed since: the parent
            // says that it is not to be had.
            let entry = self.domains.get_mut(&domain).expect("attached");
            return entry.flights.again(page, flight);
        }
        let answer = flight.answer.as_ref().expect("installed when answered");
        let image = match self.image(&flight, answer) {
            Ok(image) => image,
            Err(detail) => return self.damaged(domain, page, flight, detail, out),
        };
        let unsaid = self.config.faults.has(Fault::HolesFilled);
        let came = answer.body.holes().iter().filter(|_| !unsaid);
        let mut holes: BTreeSet<Slot> = came.copied().collect();
        for (_, targets) in flight.kept.iter().filter(|(stamp, _)| *stamp > answer.as_of) {
            for target in targets {
                match target {
                    Target::Slot(slot) => {
                        crate::probe::probe("change-overtook-page");
                        holes.insert(*slot);
                    }
                    Target::Page => {
                        crate::probe::probe("whole-change-overtook-page");
                        let entry = self.domains.get_mut(&domain).expect("attached");
                        return entry.flights.again(page, flight);
                    }
                }
            }
        }
        if holes.len() > PageCopy::HOLES_MAX {
            crate::probe::probe("too-many-holes-came");
            let entry = self.domains.get_mut(&domain).expect("attached");
            return entry.flights.again(page, flight);
        }
        let copy = PageCopy {
            id: page,
            version: answer.version,
            page: image,
            holes: holes.into_iter().collect(),
        };
        self.put_fetched(domain, copy);
        for user in flight.waiters {
            self.arrived(user, page, out);
        }
    }

    /// The page's bytes, checked before use (P9).
    fn image(&self, flight: &Flight, answer: &PageAnswer) -> Result<Option<Page>, String> {
        match &answer.body {
            PageBody::Absent => Ok(None),
            PageBody::Valid => match &flight.have {
                Some(have) if have.version == answer.version => {
                    crate::probe::probe("copy-still-valid");
                    Ok(have.page.clone())
                }
                _ => Err("the parent calls a version valid that was not named".into()),
            },
            PageBody::Data(bytes) | PageBody::Holed(bytes, _) => {
                let volume = self.shared.volume(answer.page.volume);
                let max = volume.map_or(crate::page::PAGE_BYTES_MAX, |volume| volume.page_bytes);
                if bytes.len() > max as usize {
                    return Err("longer than the volume's pages".into());
                }
                let page = Page::decode(answer.page, bytes.clone());
                page.map(|page| Some(page.unpinned())).map_err(|error| error.to_string())
            }
        }
    }

    fn damaged(
        &mut self,
        domain: DomainId,
        page: PageId,
        mut flight: Flight,
        detail: String,
        out: &mut Out,
    ) {
        flight.damaged += 1;
        if flight.damaged <= DAMAGED_MAX && !flight.waiters.is_empty() {
            self.drop_suspect_of(domain, page);
            let entry = self.domains.get_mut(&domain).expect("attached");
            return entry.flights.again(page, flight);
        }
        self.owe_notice(domain, page);
        for user in flight.waiters {
            let detail = detail.clone();
            self.reply(user, Err(RequestError::Damaged { page, detail }), out);
        }
    }

    /// A page of a fetch cannot be had.
    pub(super) fn fetch_failed(
        &mut self,
        domain: DomainId,
        page: PageId,
        request: RequestId,
        error: &RequestError,
        out: &mut Out,
    ) {
        if let Some(link) = self.link_of_mut(domain) {
            link.transfers.forget_early((request, page));
        }
        let entry = self.domains.get_mut(&domain).expect("asked for");
        if entry.flights.flights.get(&page).is_none_or(|flight| flight.sent != Some(request)) {
            return;
        }
        let flight = entry.flights.remove(page).expect("looked up above");
        self.helps.look_again();
        crate::probe::probe("fetch-fails");
        if flight.seen && !entry.holdings.holds(page) {
            self.owe_notice(domain, page);
        }
        for user in flight.waiters {
            self.reply(user, Err(error.clone()), out);
        }
    }
}

impl super::Domain {
    /// Up to `max` queued pages that are still wanted, with the version held of each.
    fn take_queued(&mut self, prefetch: bool, max: usize) -> Vec<PageAsk> {
        let mut asks = Vec::new();
        let mut seen = BTreeSet::new();
        while asks.len() < max {
            let Flights { flights, demand, prefetch: ahead, .. } = &mut self.flights;
            let unsent = |page| flights.get(&page).is_some_and(|flight| flight.sent.is_none());
            let next = match prefetch {
                true => ahead.pop_front(),
                false => demand.pop(|page| unsent(page) && !seen.contains(&page)),
            };
            let Some(page) = next else { break };
            let Some(flight) = self.flights.flights.get_mut(&page) else {
                continue;
            };
            if flight.sent.is_some() || !seen.insert(page) {
                continue;
            }
            flight.have = self.holdings.suspect(page);
            let have = flight.have.as_ref().map(|copy| copy.version);
            asks.push(PageAsk { page, have });
        }
        asks
    }
}
