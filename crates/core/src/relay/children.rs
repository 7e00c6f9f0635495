//! What comes from children.

use super::Relay;
use super::domain::by_clock;
use super::io::RelayOutput;
use super::pending::{Gathered, Pending, What};
use super::search::Search;
use crate::commit::{Abort, CommitRequest};
use crate::downlink::{Answer, Ask, COPY_RESERVED, Follower, Phase, Registration, Walk};
use crate::id::{DomainId, LinkId, PageId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{
    CloseReason, Epoch, Message, PAGES_PER_MESSAGE_MAX, PageAsk, RequestError, ResumeAnswer,
    VolumeKey,
};
use crate::rights::{Denied, Right};
use crate::time::Instant;
use std::collections::BTreeSet;

/// Bytes reserved for a page of a volume of which none was seen yet.
const PAGE_BYTES_GUESS: i64 = 64 << 10;

impl Relay {
    pub(super) fn ask(&mut self, now: Instant, link: LinkId, ask: Ask, out: &mut Vec<RelayOutput>) {
        match ask {
            Ask::For(name, ask) => self.ask_for(now, link, Some(name), *ask, out),
            Ask::Greeted => self.welcome_held(out),
            Ask::Gone(link) => self.child_gone(now, link),
            Ask::Member(message) => self.member_says(now, link, message, out),
            Ask::Register(register) => self.register(now, link, register, out),
            Ask::Serve => self.serve(now, link, out),
            Ask::Pump => {
                for domain in self.links.streams(link) {
                    self.pump(now, domain, link, out);
                }
            }
            Ask::Beat(domain, sent) => {
                let Some(entry) = self.domains.get(&domain) else {
                    return;
                };
                let (age, through) = (entry.age(now), entry.through());
                if let Some(follower) = self.links.follower(link, domain) {
                    match age {
                        Some(age) => follower.beat(by_clock(sent, age), through),
                        None => follower.early_beat = Some(sent),
                    }
                    self.pump(now, domain, link, out);
                }
            }
            Ask::Refresh(domain, sent) => {
                let Some(entry) = self.domains.get(&domain) else {
                    return;
                };
                let came = entry.beat_clock.after_sent(now);
                if let Some(follower) = self.links.follower(link, domain) {
                    follower.refresh(came, sent);
                    self.refresh_up(now, domain, out);
                }
            }
            Ask::Evicted(domain, pages) => {
                self.directory_evicted(link, domain, &pages);
                self.evicted(domain, pages, out);
            }
            Ask::Narrowed(domain, lost) => self.narrow_later(now, domain, lost),
            Ask::Confirm(domain, boot, confirmed) => {
                // What comes before the parent has the boot is lost: the node confirms anew when its
                // boot is registered, which is told through here.
                if self.is_registered(domain, boot) {
                    self.confirm_up(domain, boot, &confirmed, out);
                }
            }
            Ask::Commit(domain, commit) => self.commit(link, domain, commit, out),
            ask @ (Ask::Resume { .. }
            | Ask::AllocateIds(..)
            | Ask::OpenVolume(..)
            | Ask::ListVolumes(..)
            | Ask::CreateVolume(..)
            | Ask::ChangeVolume(..)
            | Ask::DeleteVolume(..)
            | Ask::CopyPages(..)
            | Ask::Rights(..)) => {
                let child = self.links.get(link).and_then(|entry| entry.child());
                let name = child.map(|child| child.name.clone());
                self.ask_for(now, link, name, ask, out);
            }
        }
    }

    /// Asks above for a child, or for whom a child asks that is a relay.
    fn ask_for(
        &mut self,
        now: Instant,
        link: LinkId,
        of: Option<String>,
        ask: Ask,
        out: &mut Vec<RelayOutput>,
    ) {
        if let Err((request, denied)) = self.check_relay(link, &ask) {
            if matches!(ask, Ask::CopyPages(..)) {
                self.links.unreserve(link, COPY_RESERVED);
            }
            return self.links.fail(link, request, RequestError::Denied(denied), out);
        }
        let (request, message) = match ask {
            Ask::Resume { request, domain, epochs, through } => {
                return self.resume(now, (link, of), (request, domain), (epochs, through), out);
            }
            Ask::AllocateIds(request, volume, count) => {
                (request, Message::AllocateIds { request, volume, count })
            }
            Ask::OpenVolume(request, key) => (request, Message::OpenVolume { request, key }),
            Ask::ListVolumes(request, after) => (request, Message::ListVolumes { request, after }),
            Ask::CreateVolume(request, spec) => (request, Message::CreateVolume { request, spec }),
            Ask::ChangeVolume(request, volume, change) => {
                (request, Message::ChangeVolume { request, volume, change })
            }
            Ask::DeleteVolume(request, volume) => {
                (request, Message::DeleteVolume { request, volume })
            }
            Ask::CopyPages(request, ask) => (request, Message::CopyPages { request, ask }),
            Ask::Rights(request, volume) => (request, Message::AskRights { request, volume }),
            other => return self.ask(now, link, other, out),
        };
        self.request(now, What::Other(message), Some((link, request)), of);
    }

    /// A relay below may ask no more for others than for itself. Its own right is known here, by what
    /// was told from above; the one who answers sees this relay and the asker alone.
    fn check_relay(&mut self, link: LinkId, ask: &Ask) -> Result<(), (RequestId, Box<Denied>)> {
        if self.links.relay_of(link).is_none() {
            return Ok(());
        }
        let (request, volume, needs) = match ask {
            Ask::AllocateIds(request, volume, _) => (request, volume, Right::Write),
            Ask::OpenVolume(request, VolumeKey::Id(volume)) => (request, volume, Right::Read),
            Ask::CopyPages(request, ask) => (request, &ask.volume, Right::Read),
            Ask::ChangeVolume(request, volume, _)
            | Ask::DeleteVolume(request, volume)
            | Ask::Rights(request, volume) => (request, volume, Right::Admin),
            _ => return Ok(()),
        };
        self.links.check_right(link, None, *volume, needs).map_err(|denied| (*request, denied))
    }

    /// The same for a commit.
    pub(super) fn check_relayed(
        &mut self,
        link: LinkId,
        commit: &CommitRequest,
    ) -> Result<(), Abort> {
        if self.links.relay_of(link).is_none() {
            return Ok(());
        }
        let written = commit.writes.iter().map(|write| (write.page.volume, Right::Write));
        let read = commit.reads.iter().map(|read| (read.page.volume, Right::Read));
        for (volume, needs) in written.chain(read) {
            self.links.check_right(link, None, volume, needs).map_err(Abort::Denied)?;
        }
        Ok(())
    }

    fn request(
        &mut self,
        now: Instant,
        what: What,
        asker: Option<(LinkId, RequestId)>,
        of: Option<String>,
    ) {
        let deadline = now.after(self.config.request_max);
        let search = Search::default();
        let parent = self.source_of(&what, &search);
        let (sent, ever_sent) = (false, false);
        self.enqueue(Pending { what, parent, search, asker, of, sent, ever_sent, deadline });
    }

    /// Welcomes those who said hello, once there is something to follow: with the domains that have
    /// begun, when nothing more is to be expected soon. One that stays out of service must not keep
    /// children from the others; when it begins, those who have to be told are (`tell_of_domain`).
    pub(super) fn welcome_held(&mut self, out: &mut Vec<RelayOutput>) {
        let begun = || self.domains.values().filter(|domain| domain.begun);
        let awaited = self.domains.values().any(|domain| domain.awaited_until.is_some());
        if awaited || begun().next().is_none() {
            return;
        }
        let wall = begun().map(|domain| domain.wall).max().unwrap_or_default();
        let infos: Vec<_> = begun().map(super::domain::RelayDomain::info).collect();
        for link in self.links.held() {
            self.links.welcome(link, wall, infos.clone(), out);
        }
    }

    /// A child's resume: answered here when it holds nothing, else the parent knows.
    fn resume(
        &mut self,
        now: Instant,
        (link, of): (LinkId, Option<String>),
        (request, domain): (RequestId, DomainId),
        (epochs, through): (Vec<Epoch>, Option<Stamp>),
        out: &mut Vec<RelayOutput>,
    ) {
        // What it holds is told by the list that follows.
        self.directory_forgets(Some(link), domain);
        let Some(entry) = self.domains.get_mut(&domain).filter(|entry| entry.begun) else {
            self.links.fail(link, request, RequestError::NoDomain(domain), out);
            return;
        };
        let at = entry.through();
        let registration = Registration::nothing(&self.config.downlink);
        let Some(child) = self.links.get_mut(link) else {
            return;
        };
        let first = !child.followers.contains_key(&domain);
        let follower =
            child.followers.entry(domain).or_insert_with(|| Follower::new(request, registration));
        match through {
            None => {
                let answer = Answer {
                    request,
                    answer: ResumeAnswer::From(if first { at } else { follower.cursor }),
                    filtered: false,
                    at: None,
                    beyond: false,
                    counted: true,
                    walk: Walk::Nothing,
                };
                if first {
                    follower.begin(answer, at);
                } else {
                    follower.asked.push_back(answer);
                }
            }
            Some(through) => {
                // In the step that takes the question the child counts as holding everything.
                if !self.config.faults.has(Fault::ResumeRegistersNothing) {
                    follower.register_all();
                }
                let gathered = Gathered::default();
                let what = What::Child { domain, epochs, through, fallen: false, gathered };
                self.ask_for_child(now, (link, request), domain, what, of);
            }
        }
        if first {
            self.links.owe_rights(link, domain);
        }
        self.pump(now, domain, link, out);
    }

    /// Asks the parent what changed of what a child holds. Of what is withheld from this relay the answer says nothing:
    /// of that the child hears first that it may not read it (bug 187).
    fn ask_for_child(
        &mut self,
        now: Instant,
        (link, request): (LinkId, RequestId),
        domain: DomainId,
        what: What,
        of: Option<String>,
    ) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        entry.resuming += 1;
        entry.gathering = true;
        self.links.owe_unread(link, domain);
        self.request(now, what, Some((link, request)), of);
    }

    /// A child's cursor fell off the ring: the parent is asked what changed since.
    pub(super) fn child_fell(&mut self, now: Instant, domain: DomainId, link: LinkId) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        let follower = self.links.follower(link, domain).expect("looked up by the caller");
        assert!(matches!(follower.phase, Phase::Fallen), "it fell just now");
        crate::probe::probe("relay-child-fell");
        let what = What::Child {
            domain,
            epochs: entry.epochs.clone(),
            through: follower.cursor,
            fallen: true,
            gathered: Gathered::default(),
        };
        let request = follower.request;
        let child = self.links.get(link).and_then(|entry| entry.child());
        let of = child.map(|child| child.name.clone());
        self.ask_for_child(now, (link, request), domain, what, of);
    }

    /// Asks the parent for what the child may be sent: its credit is reserved for the answer, so
    /// that no bytes ever wait here.
    pub(super) fn serve(&mut self, now: Instant, link: LinkId, out: &mut Vec<RelayOutput>) {
        for (domain, pace) in self.links.turns(link) {
            let mut batch: Vec<(PageAsk, i64)> = Vec::new();
            let mut of: Option<(RequestId, bool)> = None;
            let mut pointed = super::group::Pointed::new();
            loop {
                let next =
                    self.links.get_mut(link).and_then(|entry| entry.take_asked(domain, pace));
                let same = next.is_some_and(|next| of == Some((next.request, next.prefetch)));
                if !same
                    && let Some((request, prefetch)) = of
                    && !batch.is_empty()
                {
                    let pages = std::mem::take(&mut batch);
                    let what = What::Fetch { domain, pages, prefetch };
                    let of = self.links.fetched_for(link, request);
                    self.request(now, what, Some((link, request)), of);
                }
                let Some(asked) = next else {
                    break;
                };
                if self.comes_from_neighbour(now, (link, domain), &asked, &mut pointed) {
                    continue;
                }
                of = Some((asked.request, asked.prefetch));
                let volume = asked.page.volume;
                let bytes = self.page_bytes.get(&volume).copied().unwrap_or(PAGE_BYTES_GUESS);
                let entry = self.links.get_mut(link).expect("it was asked just now");
                entry.bulk_reserved += bytes;
                if let Some(entry) = self.domains.get_mut(&domain) {
                    entry.fetch_begins(asked.page);
                }
                batch.push((PageAsk { page: asked.page, have: asked.have }, bytes));
            }
            self.tell_pointed(now, (link, domain), pointed, out);
        }
        self.flush(now, out);
    }

    /// Asks for pages that waited for credit which was reserved, and came to nothing.
    pub(super) fn serve_freed(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        while let Some(link) = self.links.take_freed() {
            self.serve(now, link, out);
        }
    }

    /// Passes an eviction on when no child holds the page and nobody is being brought it (rule 7).
    pub(super) fn evicted(
        &mut self,
        domain: DomainId,
        mut pages: Vec<PageId>,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(entry) = self.domains.get(&domain).filter(|entry| entry.following) else {
            return;
        };
        let joins = self.config.faults.has(Fault::JoinAcrossNotice);
        let fetched = |page: PageId| !joins && entry.fetching.contains_key(&page);
        let before = pages.len();
        pages.retain(|page| !self.is_held_below(domain, *page) && !fetched(*page));
        if pages.len() < before && self.holds_unknown(domain) {
            self.gathered_in_vain(domain);
        }
        if !pages.is_empty() {
            self.send_of(domain, Message::Evicted { domain, pages }, out);
        }
    }

    /// Whether a child holds nobody knows what.
    fn holds_unknown(&self, domain: DomainId) -> bool {
        let mut followers = self.links.iter().filter_map(|(_, link)| link.followers.get(&domain));
        followers.any(|follower| follower.registration.pages().is_none())
    }

    /// A page that is held below no longer, and of which the parent is not told: a list is to be made.
    /// What was fetched or made while the parent gathers for that list is taken to be named by it, so
    /// one more is to follow.
    fn gathered_in_vain(&mut self, domain: DomainId) {
        if let Some(entry) = self.domains.get_mut(&domain) {
            entry.again |= entry.gathering;
        }
    }

    /// Whether a child is registered for a page.
    pub(super) fn is_held_below(&self, domain: DomainId, page: PageId) -> bool {
        let mut links = self.links.iter();
        let registered = |link: &crate::downlink::Link| {
            link.followers.get(&domain).is_some_and(|f| f.registration.contains(page))
        };
        links.any(|(_, link)| registered(link))
    }

    pub(super) fn narrow_later(&mut self, now: Instant, domain: DomainId, lost: bool) {
        if lost {
            self.gathered_in_vain(domain);
        }
        if let Some(entry) = self.domains.get_mut(&domain) {
            entry.narrow_at.get_or_insert(now.after(self.config.narrow_delay));
        }
    }

    /// Begins to narrow the relay's own registration, by an empty part: the list is made when the
    /// parent is known to gather what is fetched and made.
    ///
    /// 1. The list is made and sent; it travels slowly, on the control lane.
    /// 2. A child's commit makes page 5, and overtakes the list on the bulk lane: the child holds the
    ///    page, as this relay and its parent know.
    /// 3. The list comes to the parent, which narrows the registration to what it names. The next
    ///    change of page 5 comes neither here nor to the child (P3).
    pub(super) fn announce(&mut self, now: Instant, domain: DomainId, out: &mut Vec<RelayOutput>) {
        let delay = self.config.narrow_delay;
        let Some(entry) = self.domains.get_mut(&domain) else {
            return;
        };
        entry.narrow_at = None;
        if !entry.following {
            return;
        }
        if entry.resuming > 0 || entry.announced.is_some() {
            // What the returning child holds is not known yet; or one list at a time.
            entry.narrow_at = Some(now.after(delay));
            return;
        }
        if self.config.faults.has(Fault::NarrowUnannounced) {
            return self.narrow(now, domain, out);
        }
        entry.announced = Some(entry.beat_clock.not_before_sent(now));
        entry.gathering = true;
        self.send_of(domain, Message::Holding { domain, pages: Vec::new(), done: false }, out);
    }

    /// Narrows the relay's own registration to what its children hold and what is on the way.
    pub(super) fn narrow(&mut self, now: Instant, domain: DomainId, out: &mut Vec<RelayOutput>) {
        let delay = self.config.narrow_delay;
        let Some(entry) = self.domains.get_mut(&domain) else {
            return;
        };
        if entry.resuming > 0 {
            // What the returning child holds is not known yet.
            entry.narrow_at = Some(now.after(delay));
            return;
        }
        let faults = self.config.faults;
        let mut pages: BTreeSet<PageId> = entry.fetching.keys().copied().collect();
        for (_, link) in self.links.iter() {
            let Some(follower) = link.followers.get(&domain) else {
                continue;
            };
            // A child that holds an unknown lot will narrow itself, or leave: looked at again then.
            let Some(set) = follower.registration.pages() else {
                if faults.has(Fault::NarrowsUnknown) {
                    continue;
                }
                return;
            };
            pages.extend(set.iter());
        }
        crate::probe::probe("relay-narrows");
        let pages: Vec<PageId> = pages.into_iter().collect();
        for part in pages.chunks(PAGES_PER_MESSAGE_MAX) {
            let pages = part.to_vec();
            self.send_of(domain, Message::Holding { domain, pages, done: false }, out);
        }
        self.send_of(domain, Message::Holding { domain, pages: Vec::new(), done: true }, out);
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        entry.gathering = false;
        if std::mem::take(&mut entry.again) {
            entry.narrow_at.get_or_insert(now.after(delay));
        }
    }

    /// Closes a child's link and forgets it.
    pub(super) fn close_child(
        &mut self,
        now: Instant,
        link: LinkId,
        reason: CloseReason,
        out: &mut Vec<RelayOutput>,
    ) {
        if self.links.close(link, reason, out) {
            self.child_gone(now, link);
        }
    }

    /// A child's link is gone: nobody waits behind it.
    fn child_gone(&mut self, now: Instant, link: LinkId) {
        self.member_gone(now, link);
        let of_link = |pending: &Pending| pending.asker.is_some_and(|(asker, _)| asker == link);
        let requests: Vec<RequestId> =
            self.pending.iter().filter(|(_, p)| of_link(p)).map(|(id, _)| *id).collect();
        for request in requests {
            self.abandon(request);
        }
        // Else a child that comes back again and again leaves one behind each time (P7).
        let domains = &mut self.domains;
        for held in &mut self.held {
            held.links.retain(|other| *other != link);
            let before = held.bytes;
            held.parts.retain_mut(|part| {
                part.links.retain(|other| *other != link);
                let stays = !part.links.is_empty();
                held.bytes -= if stays { 0 } else { part.commit.memory_bytes() };
                stays
            });
            let entry = domains.get_mut(&held.domain).expect("followed once");
            entry.held -= before - held.bytes;
        }
        self.held.retain(|held| {
            let stays = !held.links.is_empty();
            if !stays {
                domains.get_mut(&held.domain).expect("followed once").held -= held.bytes;
            }
            stays
        });
        // They stay under way. Else each return would add a link to all that it had sent (bug 133).
        let passed = self.commits.values_mut();
        passed.for_each(|passed| passed.links.retain(|other| *other != link));
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in domains {
            self.narrow_later(now, domain, true);
        }
    }

    /// Nobody waits for a request any more. Sent, it counts until it is answered.
    fn abandon(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.pending.get_mut(&request)?;
        self.deadlines.remove(&(pending.deadline, request));
        if !pending.sent {
            let pending = self.pending.remove(&request)?;
            self.drop_pending(&pending);
            return Some(pending);
        }
        let asker = pending.asker.take();
        pending.search = Search::default();
        let reserved = match &mut pending.what {
            What::Fetch { pages, .. } => {
                pages.iter_mut().map(|(_, reserved)| std::mem::take(reserved)).sum()
            }
            What::Other(Message::CopyPages { .. }) => COPY_RESERVED,
            _ => 0,
        };
        self.unreserve(asker.map(|(link, _)| link), reserved);
        None
    }

    /// A request has waited for its limit.
    pub(super) fn give_up(&mut self, now: Instant, request: RequestId, out: &mut Vec<RelayOutput>) {
        let Some(pending) = self.pending.get(&request) else {
            return;
        };
        let Some((link, asked)) = pending.asker else {
            return;
        };
        crate::probe::probe("relay-gives-up-a-request");
        let error = RequestError::Unavailable("the parent does not answer".into());
        let (pages, closes): (Vec<PageId>, bool) = match &pending.what {
            What::Fetch { pages, .. } => (pages.iter().map(|(ask, _)| ask.page).collect(), false),
            What::Child { .. } => (Vec::new(), true),
            What::Own { .. } | What::Other(_) => (Vec::new(), false),
        };
        self.abandon(request);
        if closes {
            self.close_child(now, link, CloseReason::OutOfService(error.to_string()), out);
        } else if pages.is_empty() {
            self.links.fail(link, asked, error, out);
        } else {
            self.links.fail_pages(link, (asked, pages), error, out);
        }
    }
}
