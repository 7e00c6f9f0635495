//! What comes from children: handshake, limits, registration, credits.

use super::claims::{Refused, Register, anothers};
use super::link::Fetching;
use super::{Ask, Asked, Child, Downlinks, Greeting, Link, LinkSink, Timer};
use crate::commit::{CommitRequest, PARTS_MAX};
use crate::confirmed::Confirmed;
use crate::group::{GroupMessage, Sender};
use crate::id::{DomainId, LinkId, PageId, RequestId, VolumeId};
use crate::machine::{Fault, LinkInput};
use crate::message::{
    CloseReason, Lane, Message, PAGES_PER_MESSAGE_MAX, PageAsk, RequestError, Role, Versions,
    certificate_of, is_node_name,
};
use crate::rights::{Denied, Right};
use crate::time::Instant;
use std::collections::BTreeMap;

/// Volumes named in one failure.
const VOLUMES_NAMED_MAX: usize = 4;

impl Downlinks {
    /// Takes what happened on a link down; gives what the parent has to see to, in order.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        input: LinkInput,
        out: &mut dyn LinkSink,
    ) -> Vec<(LinkId, Ask)> {
        match input {
            LinkInput::DownOpened { link, peer, role, in_group } => {
                self.opened(now, link, (peer, role, in_group), out);
                Vec::new()
            }
            LinkInput::Closed { link, .. } => {
                let gone = self.remove(link);
                if gone { vec![(link, Ask::Gone(link))] } else { Vec::new() }
            }
            LinkInput::Received { link, message, .. } => {
                let Some(entry) = self.links.get_mut(&link) else {
                    return Vec::new();
                };
                entry.heard = now;
                match self.received(now, link, message, out) {
                    Ok(asks) => asks.into_iter().map(|ask| (link, ask)).collect(),
                    Err(reason) => {
                        let gone = self.close(link, reason, out);
                        if gone { vec![(link, Ask::Gone(link))] } else { Vec::new() }
                    }
                }
            }
            LinkInput::UpOpened { .. } => Vec::new(),
        }
    }

    fn opened(
        &mut self,
        now: Instant,
        link: LinkId,
        (peer, role, in_group): (String, Role, bool),
        out: &mut dyn LinkSink,
    ) {
        if self.links.len() >= self.config.links_max {
            let reason = CloseReason::Limit(format!("{} links are open", self.links.len()));
            out.link(crate::machine::LinkOutput::Close { link, reason });
            return;
        }
        let fresh = self.links.insert(link, Link::new((peer, role, in_group), now)).is_none();
        assert!(fresh, "a link number came twice");
        self.timers.insert((now.after(self.config.hello_max), link, Timer::Hello));
        self.timers.insert((now.after(self.config.silence_max), link, Timer::Silence));
    }

    fn received(
        &mut self,
        now: Instant,
        link: LinkId,
        message: Message,
        out: &mut dyn LinkSink,
    ) -> Result<Vec<Ask>, CloseReason> {
        if let Message::Goodbye { reason } = message {
            return Err(reason);
        }
        if let Message::Hello { min_version, max_version, name, boot, role } = message {
            let spoken = Versions { oldest: min_version, newest: max_version };
            let version = crate::wire::negotiate(self.config.versions, spoken)?;
            let child = Child { name, boot, role, version };
            return self.greeted(now, link, child, out);
        }
        let entry = self.links.get_mut(&link).expect("looked up by the caller");
        let Some(child) = entry.child() else {
            return Err(CloseReason::Protocol("a message before the handshake".into()));
        };
        let Message::For { name, message } = message else {
            return self.asked(link, None, message, out);
        };
        if child.role != Role::Relay {
            return Err(CloseReason::Protocol("a node asks for somebody else".into()));
        }
        if !is_node_name(&name) || !message.is_for_somebody() {
            return Err(CloseReason::Protocol("a relay asks nothing for nobody".into()));
        }
        let asks = self.asked(link, Some(&name), *message, out)?;
        let asks = asks.into_iter().map(|ask| match ask {
            Ask::Serve => ask,
            ask => Ask::For(name.clone(), Box::new(ask)),
        });
        Ok(asks.collect())
    }

    /// The identity rule (decision 0004): a second link of the same process replaces the first;
    /// another process of the name is refused while the first is heard from, over whatever relay.
    fn greeted(
        &mut self,
        now: Instant,
        link: LinkId,
        child: Child,
        out: &mut dyn LinkSink,
    ) -> Result<Vec<Ask>, CloseReason> {
        let entry = self.links.get_mut(&link).expect("looked up by the caller");
        if entry.greeting != Greeting::Awaited {
            return Err(CloseReason::Protocol("a second Hello".into()));
        }
        if certificate_of(&child.name) != entry.peer || !is_node_name(&child.name) {
            return Err(CloseReason::Forbidden(format!(
                "the certificate names {}, the node calls itself {}",
                entry.peer, child.name
            )));
        }
        if child.role == Role::Relay && entry.role != Role::Relay {
            return Err(CloseReason::Forbidden(format!(
                "the certificate of {} is a node's, not a relay's: issue it with `--role relay`",
                entry.peer
            )));
        }
        let closed = match self.take_name(now, (&child.name, child.boot), link, out) {
            Ok(closed) => closed,
            Err(Refused::Taken) => return Err(CloseReason::Identity(child.name)),
            Err(Refused::Full(limit)) => return Err(CloseReason::Limit(limit)),
        };
        let mut asks: Vec<Ask> = closed.into_iter().map(Ask::Gone).collect();
        let entry = self.links.get_mut(&link).expect("looked up above");
        entry.greeting = Greeting::Held(child);
        asks.push(Ask::Greeted);
        Ok(asks)
    }

    /// A node speaks for itself, a relay for those below it.
    fn register(&mut self, link: LinkId, register: Register) -> Result<Vec<Ask>, CloseReason> {
        let child = self.links.get(&link).and_then(|entry| entry.child());
        let child = child.expect("looked up by the caller");
        let own = child.name == register.name && child.boot == register.life;
        match child.role {
            Role::Node if !own => Err(anothers()),
            Role::Relay if !is_node_name(&register.name) => {
                Err(CloseReason::Protocol("a relay registers for no name".into()))
            }
            Role::Node | Role::Relay => Ok(vec![Ask::Register(register)]),
        }
    }

    fn left(&mut self, link: LinkId, name: &str) -> Result<Vec<Ask>, CloseReason> {
        let child = self.links.get(&link).and_then(|entry| entry.child());
        if child.is_none_or(|child| child.role != Role::Relay) {
            return Err(CloseReason::Protocol("a node has nobody below it".into()));
        }
        let here = self.names.holder(name).is_some_and(|(_, holder)| holder == link);
        if here && !self.is_own(link, name) {
            self.left.extend(self.names.leave(name));
        }
        Ok(Vec::new())
    }

    fn member_says(&self, link: LinkId, message: GroupMessage) -> Result<Vec<Ask>, CloseReason> {
        let child = self.links.get(&link).and_then(|entry| entry.child());
        let is_node = child.is_some_and(|child| child.role == Role::Node);
        if message.sender() != Sender::Member || !is_node {
            return Err(CloseReason::Protocol("a message that no member sends".into()));
        }
        Ok(vec![Ask::Member(message)])
    }

    fn asked(
        &mut self,
        link: LinkId,
        of: Option<&str>,
        message: Message,
        out: &mut dyn LinkSink,
    ) -> Result<Vec<Ask>, CloseReason> {
        let ask = match message {
            Message::Resume { request, domain, epochs, through } => {
                self.count(link, 1)?;
                Ask::Resume { request, domain, epochs, through }
            }
            Message::Register { domain, boot, name, life, fresh } => {
                return self.register(link, Register { domain, boot, name, life, fresh });
            }
            Message::Left { name } => return self.left(link, &name),
            Message::Group(message) => return self.member_says(link, message),
            Message::Fetch { request, domain, pages, prefetch } => {
                return self.fetch(link, of, (request, domain), (&pages, prefetch), out);
            }
            Message::Evicted { domain, pages } => {
                check_count(pages.len())?;
                let follower = self.known(link, domain)?;
                for page in &pages {
                    follower.registration.remove(*page);
                }
                Ask::Evicted(domain, pages)
            }
            Message::Holding { domain, pages, done } => {
                check_count(pages.len())?;
                // Those of volumes that are not there any more too: of them the stream may have to tell what
                // changed before (bug 162).
                self.note_unreadable(link, domain, &pages);
                let follower = self.known(link, domain)?;
                let lost = follower.registration.holding(&pages, done);
                follower.scanned = follower.cursor;
                return Ok(done.then_some(Ask::Narrowed(domain, lost)).into_iter().collect());
            }
            Message::Credit { lane, bytes } => return self.credit(link, lane, bytes),
            Message::Beat { domain, sent } => Ask::Beat(domain, sent),
            Message::Refresh { domain, sent } => Ask::Refresh(domain, sent),
            Message::KeepAlive => {
                self.send(link, Message::KeepAlive, out);
                return Ok(Vec::new());
            }
            Message::Confirm { domain, boot, upto, open } => {
                check_count(open.len())?;
                if !self.may_use(link, domain, boot)? {
                    return Ok(Vec::new());
                }
                Ask::Confirm(domain, boot, Confirmed::new(upto, open))
            }
            Message::AllocateIds { request, volume, count } => {
                self.count(link, 1)?;
                Ask::AllocateIds(request, volume, count)
            }
            message @ (Message::OpenVolume { .. }
            | Message::ListVolumes { .. }
            | Message::CreateVolume { .. }
            | Message::ChangeVolume { .. }
            | Message::DeleteVolume { .. }
            | Message::AskRights { .. }) => {
                self.count(link, 1)?;
                about_volumes(message)
            }
            Message::CopyPages { request, ask } => {
                self.count(link, 1)?;
                if !self.reserve_copy(link, request, out) {
                    return Ok(Vec::new());
                }
                Ask::CopyPages(request, ask)
            }
            Message::Commit { domain, commit } => {
                self.count_commit(link, domain, &commit)?;
                if !self.may_use(link, domain, commit.id.boot)? {
                    // It may be on its way to be registered again: nothing is done, nobody told
                    // how anything ended.
                    let error = RequestError::Unavailable("its boot is not registered here".into());
                    self.turn_away(link, domain, commit.id, error, out);
                    return Ok(Vec::new());
                }
                let Self { links, volumes, .. } = self;
                let link = links.get_mut(&link);
                if let Some(follower) = link.and_then(|link| link.followers.get_mut(&domain)) {
                    let pages = commit.writes.iter().map(|write| write.page);
                    for page in pages.filter(|page| volumes.may_have(domain, *page)) {
                        follower.register(page);
                    }
                }
                Ask::Commit(domain, commit)
            }
            _ => {
                return Err(CloseReason::Protocol("a message that only a parent sends".into()));
            }
        };
        Ok(vec![ask])
    }

    /// Counts a commit. Parts that are decided elsewhere are counted apart, as many as may belong to what is
    /// counted; one that comes again while it is under way is counted as what it is.
    fn count_commit(
        &mut self,
        link: LinkId,
        domain: DomainId,
        commit: &CommitRequest,
    ) -> Result<(), CloseReason> {
        let entry = self.links.get_mut(&link).expect("looked up by the caller");
        let part = (domain, commit.id);
        if !commit.is_beside(domain) || entry.beside.contains(&part) {
            return self.count(link, 1);
        }
        let most = PARTS_MAX.saturating_mul(self.config.limits.requests_max as usize);
        if entry.beside.len() >= most {
            return Err(CloseReason::Limit(format!("more than {most} parts without an answer")));
        }
        entry.beside.insert(part);
        Ok(())
    }

    /// Counts requests against the limit.
    fn count(&mut self, link: LinkId, requests: u32) -> Result<(), CloseReason> {
        let requests_max = self.config.limits.requests_max;
        let entry = self.links.get_mut(&link).expect("looked up by the caller");
        if entry.unanswered + requests > requests_max {
            return Err(CloseReason::Limit(format!(
                "more than {requests_max} requests without an answer"
            )));
        }
        entry.unanswered += requests;
        Ok(())
    }

    fn known(
        &mut self,
        link: LinkId,
        domain: DomainId,
    ) -> Result<&mut super::Follower, CloseReason> {
        self.follower(link, domain)
            .ok_or_else(|| CloseReason::Protocol("a domain that was not resumed".into()))
    }

    /// Registers the child for the pages first (rule 10), then queues them. Those of volumes that
    /// are not there cost no memory: they fail at once.
    fn fetch(
        &mut self,
        link: LinkId,
        of: Option<&str>,
        (request, domain): (RequestId, DomainId),
        (pages, prefetch): (&[PageAsk], bool),
        out: &mut dyn LinkSink,
    ) -> Result<Vec<Ask>, CloseReason> {
        check_count(pages.len())?;
        let count = u32::try_from(pages.len()).expect("checked above");
        self.count(link, count.max(1))?;
        let register = !self.faults.has(Fault::RegisterLate);
        let denied = self.unreadable(link, of, domain, pages);
        let entry = self.links.get_mut(&link).expect("looked up by the caller");
        let Some(follower) = entry.followers.get_mut(&domain) else {
            entry.unanswered -= count.max(1) - 1;
            self.fail(link, request, RequestError::NoDomain(domain), out);
            return Ok(Vec::new());
        };
        if count == 0 {
            let error = RequestError::Invalid("a fetch without pages".into());
            self.fail(link, request, error, out);
            return Ok(Vec::new());
        }
        if entry.fetches.contains_key(&request) {
            return Err(CloseReason::Protocol("a request id came twice".into()));
        }
        let volumes = &self.volumes;
        let (there, unknown): (Vec<&PageAsk>, Vec<&PageAsk>) =
            pages.iter().partition(|ask| volumes.may_have(domain, ask.page));
        let unknown: Vec<PageId> = unknown.into_iter().map(|ask| ask.page).collect();
        let there = there.into_iter().filter(|ask| !denied.contains_key(&ask.page.volume));
        let there: Vec<&PageAsk> = there.collect();
        if register {
            for ask in &there {
                follower.register(ask.page);
            }
        }
        let (of, rights_seen) = (of.map(str::to_owned), self.rights_changes);
        let fetching = Fetching { left: count, of, rights_seen };
        entry.fetches.insert(request, fetching);
        for ask in there {
            follower.queue(Asked { request, page: ask.page, have: ask.have, prefetch });
        }
        let (deleted, unknown): (Vec<PageId>, Vec<PageId>) =
            unknown.into_iter().partition(|page| self.volumes.deleted.contains(&page.volume));
        let error = RequestError::Deleted(volumes_of(&deleted));
        self.fail_pages(link, (request, deleted), error, out);
        let error = RequestError::NoVolume(volumes_of(&unknown));
        self.fail_pages(link, (request, unknown), error, out);
        for (volume, denied) in denied {
            let of_volume = pages.iter().map(|ask| ask.page).filter(|page| page.volume == volume);
            let error = RequestError::Denied(denied);
            self.fail_pages(link, (request, of_volume.collect()), error, out);
        }
        Ok(vec![Ask::Serve])
    }

    /// The volumes of these pages that may not be read over the link, at the origin. A relay does not
    /// judge what is asked, but that a relay below it asks no more for others than for itself.
    fn unreadable(
        &mut self,
        link: LinkId,
        of: Option<&str>,
        domain: DomainId,
        pages: &[PageAsk],
    ) -> BTreeMap<VolumeId, Box<Denied>> {
        let mut denied = BTreeMap::new();
        let at_origin = self.volumes.there.is_some();
        let judges = (at_origin || of.is_some()) && !self.restricted.is_empty();
        if !judges || self.faults.has(Fault::FetchUnchecked) {
            return denied;
        }
        let of = of.filter(|_| at_origin);
        for run in pages.chunk_by(|a, b| a.page.volume == b.page.volume) {
            let volume = run[0].page.volume;
            if (!at_origin || self.volumes.may_have(domain, run[0].page))
                && let Err(short) = self.check_right(link, of, volume, Right::Read)
            {
                denied.insert(volume, short);
            }
        }
        denied
    }

    /// A child that holds pages of volumes that it may not read hears so. They are registered all the
    /// same: given the right before it hears of its loss, it keeps them.
    fn note_unreadable(&mut self, link: LinkId, domain: DomainId, pages: &[PageId]) {
        if self.restricted.is_empty() {
            return;
        }
        for run in pages.chunk_by(|a, b| a.volume == b.volume) {
            if self.right_of_link(link, run[0].volume) < Right::Read {
                self.owe_unreadable(link, domain, run[0].volume);
            }
        }
    }

    fn credit(&mut self, link: LinkId, lane: Lane, bytes: u32) -> Result<Vec<Ask>, CloseReason> {
        let limits = self.config.limits;
        let entry = self.links.get_mut(&link).expect("looked up by the caller");
        let (credit, window, ask) = match lane {
            Lane::Stream => (&mut entry.stream_credit, limits.stream_window_bytes, Ask::Pump),
            Lane::Bulk => (&mut entry.bulk_credit, limits.bulk_window_bytes, Ask::Serve),
            Lane::Control => {
                return Err(CloseReason::Protocol("credit for the control lane".into()));
            }
        };
        // A child that returns more than it was sent gains nothing beyond its window.
        *credit = (*credit + i64::from(bytes)).min(i64::from(window));
        Ok(vec![ask])
    }
}

/// What is asked about volumes as wholes.
fn about_volumes(message: Message) -> Ask {
    match message {
        Message::OpenVolume { request, key } => Ask::OpenVolume(request, key),
        Message::ListVolumes { request, after } => Ask::ListVolumes(request, after),
        Message::CreateVolume { request, spec } => Ask::CreateVolume(request, spec),
        Message::ChangeVolume { request, volume, change } => {
            Ask::ChangeVolume(request, volume, change)
        }
        Message::DeleteVolume { request, volume } => Ask::DeleteVolume(request, volume),
        Message::AskRights { request, volume } => Ask::Rights(request, volume),
        other => unreachable!("the caller sorts kinds: {other:?}"),
    }
}

fn check_count(pages: usize) -> Result<(), CloseReason> {
    if pages > PAGES_PER_MESSAGE_MAX {
        return Err(CloseReason::Limit(format!(
            "{pages} pages in one message; at most {PAGES_PER_MESSAGE_MAX}"
        )));
    }
    Ok(())
}

/// The first few volumes of a list of pages.
fn volumes_of(pages: &[PageId]) -> String {
    let runs = pages.chunk_by(|a, b| a.volume == b.volume);
    let mut named: Vec<String> =
        runs.clone().take(VOLUMES_NAMED_MAX).map(|run| run[0].volume.to_string()).collect();
    if runs.count() > VOLUMES_NAMED_MAX {
        named.push("others".into());
    }
    named.join(", ")
}

/// A page that is no page: number 0, or the one that stands for the volume, or past that.
pub(crate) fn is_page(page: PageId) -> bool {
    page.page.0 != 0 && page.page < crate::id::PageNo::VOLUME
}
