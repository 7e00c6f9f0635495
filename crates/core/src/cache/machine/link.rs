//! The link to the parent: handshake, limits, credits, the end of a link.

use super::transfers::Transfers;
use super::{Cache, CacheOutput, Notice, Out};
use crate::group::{GROUPS_SINCE, GroupMessage};
use crate::id::{DomainId, LinkId, PageId, RequestId, VolumeId};
use crate::machine::{Fault, LinkInput, LinkOutput};
use crate::message::{CloseReason, Lane, LinkLimits, Message, Role, Versions};
use crate::rights::Right;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A fetch sent on this link and not answered for all pages.
pub(super) struct SentFetch {
    pub(super) domain: DomainId,
    pub(super) pages: BTreeSet<PageId>,
    /// When it was sent.
    pub(super) sent: Instant,
}

/// Which request was answered, and on which link.
pub(super) type Came = (LinkId, RequestId);

/// A link that stands.
pub(super) struct Link {
    pub(super) id: LinkId,
    /// Which parent it is to.
    pub(super) parent: u32,
    /// The domains that this parent has.
    pub(super) offers: BTreeSet<DomainId>,
    /// The parent's certificate is of this node's group: it may be its redirector.
    in_group: bool,
    /// Set by `Welcome`.
    pub(super) limits: Option<LinkLimits>,
    /// The protocol version that `Welcome` said.
    pub(super) version: u32,
    /// When anything came last.
    pub(super) heard: Instant,
    /// When the parent is to be asked whether it is there, should there be no beats.
    pub(super) keep_at: Instant,
    /// Fetches without an answer for all of their pages.
    pub(super) fetches: BTreeMap<RequestId, SentFetch>,
    /// Fetches that failed, with pages that may have been answered: the failure overtakes them.
    pub(super) failed: BTreeMap<RequestId, SentFetch>,
    /// Pages of fetches that are to come from neighbours.
    pub(super) transfers: Transfers,
    /// Other requests, by their id here: the user who asked.
    pub(super) calls: BTreeMap<RequestId, RequestId>,
    /// Users whose calls wait until this parent takes more.
    pub(super) waiting: VecDeque<RequestId>,
    /// Resumes of domains that another parent was found to have before they were answered.
    pub(super) abandoned: BTreeSet<RequestId>,
    /// Questions of the cache itself: whether a volume is there.
    pub(super) doubts: BTreeMap<RequestId, VolumeId>,
    /// Volumes asked about in vain: they are asked about again at a tick.
    pub(super) unanswered: BTreeSet<VolumeId>,
    /// What the stream said last of volumes' rights, and the first request that was not sent then.
    pub(super) rights: BTreeMap<VolumeId, (RequestId, Right)>,
    /// Some that were told are not among them any more.
    pub(super) forgot_rights: bool,
    /// Requests, commits and pages asked for that are not answered: at most `requests_max`.
    pub(super) outstanding: usize,
    /// Bytes handled and not yet given back.
    stream_bytes: u32,
    bulk_bytes: u32,
}

impl Link {
    /// Whether the parent may be this member's redirector, and speaks of groups.
    pub(super) fn redirects(&self) -> bool {
        self.in_group && self.limits.is_some() && self.version >= GROUPS_SINCE
    }

    /// Whether the parent has welcomed it.
    pub(super) fn is_welcomed(&self) -> bool {
        self.limits.is_some()
    }

    /// How many more requests may be sent.
    pub(super) fn room(&self) -> usize {
        let max = self.limits.map_or(0, |limits| limits.requests_max as usize);
        max.saturating_sub(self.outstanding + self.transfers.len())
    }
}

/// A parent that breaks the protocol.
pub(super) fn violation<T>(what: &str) -> Result<T, CloseReason> {
    Err(CloseReason::Protocol(what.into()))
}

impl Cache {
    pub(super) fn handle_link(&mut self, now: Instant, input: LinkInput, out: &mut Out) {
        match input {
            LinkInput::UpOpened { link, parent, in_group, .. } => {
                self.opened(now, (link, parent), in_group, out);
            }
            LinkInput::DownOpened { link, .. } => {
                let reason = CloseReason::Forbidden("a node has no children".into());
                out.push(CacheOutput::Link(LinkOutput::Close { link, reason }));
            }
            LinkInput::Closed { link, reason } => {
                self.lose_link(link, reason, out);
            }
            LinkInput::Received { link, message, bytes } => {
                let Some(up) = self.links.get_mut(&link) else { return };
                up.heard = now;
                match message.lane() {
                    Lane::Control => {}
                    Lane::Stream => up.stream_bytes = up.stream_bytes.saturating_add(bytes),
                    Lane::Bulk => up.bulk_bytes = up.bulk_bytes.saturating_add(bytes),
                }
                match self.received(now, link, message, out) {
                    Ok(()) => self.return_credit(link, false, out),
                    Err(reason) => self.close(link, reason, out),
                }
            }
        }
    }

    fn opened(&mut self, now: Instant, (id, parent): (LinkId, u32), in_group: bool, out: &mut Out) {
        if let Some(before) = self.links.values().find(|link| link.parent == parent) {
            // The runtime connects anew when it knows the old connection dead before we do.
            self.close(before.id, CloseReason::Silent, out);
        }
        let link = Link {
            id,
            parent,
            offers: BTreeSet::new(),
            in_group,
            limits: None,
            version: self.config.versions.oldest,
            heard: now,
            keep_at: now,
            fetches: BTreeMap::new(),
            failed: BTreeMap::new(),
            transfers: Transfers::default(),
            calls: BTreeMap::new(),
            waiting: VecDeque::new(),
            abandoned: BTreeSet::new(),
            doubts: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            rights: BTreeMap::new(),
            forgot_rights: false,
            outstanding: 0,
            stream_bytes: 0,
            bulk_bytes: 0,
        };
        self.links.insert(id, link);
        self.tick_soon(now);
        let hello = Message::Hello {
            min_version: self.config.versions.oldest,
            max_version: self.config.versions.newest,
            name: self.config.name.clone(),
            boot: self.config.boot,
            role: Role::Node,
        };
        self.send_on(id, hello, out);
    }

    /// Ends a link for a reason of ours.
    pub(super) fn close(&mut self, link: LinkId, reason: CloseReason, out: &mut Out) {
        out.push(CacheOutput::Link(LinkOutput::Close { link, reason }));
        self.lose_link(link, None, out);
    }

    /// A link is gone: what was under way on it is asked anew on the next one. What is had from other parents
    /// goes on.
    fn lose_link(&mut self, id: LinkId, reason: Option<CloseReason>, out: &mut Out) {
        let Some(link) = self.links.remove(&id) else { return };
        self.doubts.extend(link.doubts.into_values());
        self.doubts.extend(link.unanswered);
        // A right that is given while there is no link is told to nobody (bug 57).
        let on_it = |volume: &VolumeId| {
            let domain = self.shared.volume(*volume).and_then(|v| self.domains.get(&v.domain));
            domain.is_none_or(|domain| domain.up == Some(id))
        };
        self.doubts.extend(self.shared.restricted_volumes().into_iter().filter(on_it));
        // What passes for missing may have been made again, which is told to who asks alone (bug 219).
        self.doubts.extend(self.missing.keys().copied().filter(on_it));
        if self.links.is_empty() {
            self.tick_at = None;
        }
        for domain in self.domains.values_mut().filter(|domain| domain.up == Some(id)) {
            domain.lose_link();
            if self.config.faults.has(Fault::RepeatedAnew) {
                domain.commits.number_anew();
            }
        }
        if self.domains.values().any(|domain| domain.live()) {
            crate::probe::probe("one-of-two-parents-lost");
        }
        self.requeue_calls(id);
        if self.redirector == Some(id) {
            self.redirector = None;
            self.help_no_longer(out);
        }
        let lasting = matches!(
            reason,
            Some(
                CloseReason::Version { .. }
                    | CloseReason::Identity(_)
                    | CloseReason::Forked { .. }
                    | CloseReason::Forbidden(_)
            )
        );
        if let Some(reason) = reason.filter(|_| lasting) {
            out.push(CacheOutput::Notice(Notice::Refused { reason }));
        }
    }

    fn received(
        &mut self,
        now: Instant,
        link: LinkId,
        message: Message,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let welcomed = self.links[&link].is_welcomed();
        if message.only_from_its_parent().is_some_and(|domain| self.is_elsewhere(link, domain)) {
            return violation("a domain that is had from another parent");
        }
        match message {
            Message::Goodbye { reason } => {
                self.lose_link(link, Some(reason.clone()), out);
                out.push(CacheOutput::Link(LinkOutput::Close { link, reason }));
                Ok(())
            }
            Message::Welcome { version, limits, domains, .. } if !welcomed => {
                let domains = domains.into_iter().map(|info| info.domain).collect();
                self.welcomed(now, link, (version, limits), domains, out)
            }
            _ if !welcomed => violation("a message before Welcome"),
            // It has been noted that something came.
            Message::KeepAlive => Ok(()),
            Message::Origin(_) => violation("a message of one origin to another"),
            // It was asked for where the domain was thought to be had before.
            Message::Registered { domain, .. } | Message::Unregistered { domain, .. }
                if self.is_elsewhere(link, domain) =>
            {
                Ok(())
            }
            Message::Registered { domain, boot } => self.on_registered(domain, boot),
            Message::Unregistered { domain, boot, why } => {
                self.on_unregistered(now, (domain, boot), why, out)
            }
            Message::Committed { domain, id, outcome, history } => {
                self.on_committed(domain, id, (outcome, history), now, out)
            }
            Message::CommitDeferred { domain, id, error, passed } => {
                self.on_deferred(now, (domain, id), (error, passed), out)
            }
            Message::Ids { request, history, range } => {
                self.on_ids((link, request), history, range, out)
            }
            Message::Copied { request, answer } => self.on_copied((link, request), answer, out),
            Message::Volume { request, info } => self.on_volume((link, request), info, now, out),
            Message::VolumeDeleted { request, volume } => {
                self.on_volume_deleted((link, request), volume, out)
            }
            Message::Rights { request, rights, access } => {
                self.on_rights((link, request), (rights, access), out)
            }
            Message::VolumeRights { domain, volume, rights } => {
                self.on_volume_rights(domain, volume, &rights, out)
            }
            Message::Volumes { request, volumes, more } => {
                self.on_volumes((link, request), volumes, more, out)
            }
            Message::Failed { request, pages, error } if pages.is_empty() => {
                self.on_failed((link, request), error, out)
            }
            Message::Failed { request, pages, error } => {
                let mut pages = pages.into_iter();
                pages.try_for_each(|page| self.on_page_failed((link, request), page, &error, out))
            }
            Message::Resumed { request, domain, epochs, answer, stale, through, time: _, done } => {
                let part = super::stream::Resumed { request, epochs, answer, stale, through, done };
                self.on_resumed(now, domain, part, out)
            }
            Message::Advance { domain, from, through, time: _, changes, stale, echo } => {
                let advance = super::stream::Advance { from, through, changes, stale, echo };
                self.on_advance(domain, advance, out)
            }
            Message::History { domain, epochs } => self.on_history(domain, epochs, out),
            Message::Pages { request, domain, pages } => self.on_pages(request, domain, pages, out),
            Message::Group(message) => self.redirector_says(now, link, message, out),
            Message::Welcome { .. } => violation("a second Welcome"),
            Message::Hello { .. }
            | Message::Resume { .. }
            | Message::Register { .. }
            | Message::Left { .. }
            | Message::Fetch { .. }
            | Message::Evicted { .. }
            | Message::Holding { .. }
            | Message::Confirm { .. }
            | Message::AllocateIds { .. }
            | Message::OpenVolume { .. }
            | Message::ListVolumes { .. }
            | Message::CreateVolume { .. }
            | Message::ChangeVolume { .. }
            | Message::DeleteVolume { .. }
            | Message::AskRights { .. }
            | Message::For { .. }
            | Message::CopyPages { .. }
            | Message::Beat { .. }
            | Message::Refresh { .. }
            | Message::Credit { .. }
            | Message::Commit { .. } => violation("a message that only a child sends"),
        }
    }

    fn redirector_says(
        &mut self,
        now: Instant,
        link: LinkId,
        message: GroupMessage,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if self.redirector != Some(link) {
            return violation("a redirector whose certificate is not of this node's group");
        }
        match message {
            GroupMessage::Members { members } => self.on_members(members, out),
            GroupMessage::Pointed { request, domain, pages, helper, holes } => {
                return self.on_pointed(now, (request, domain), (pages, helper, holes), out);
            }
            GroupMessage::Update { domain, id, stamp, writes } => {
                return self.on_update(domain, (id, stamp), writes);
            }
            GroupMessage::Help { request, domain, pages, asker, position, holes } => {
                let of = (domain, position, holes);
                self.on_help(now, (asker, request), of, pages, out);
            }
            _ => return violation("a message that no redirector sends"),
        }
        Ok(())
    }

    /// Every domain that is to be had there resumes in the first flight: one round trip for all (rule 17).
    fn welcomed(
        &mut self,
        now: Instant,
        id: LinkId,
        (version, limits): (u32, LinkLimits),
        offers: BTreeSet<DomainId>,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let child = self.config.versions;
        if !child.holds(version) {
            let parent = Versions { oldest: version, newest: version };
            return Err(CloseReason::Version { parent, child });
        }
        if self.is_had_elsewhere(id, &offers) {
            let why = "two of this node's parents have the same domains: they lead to one origin, which takes a node for \
                       one that moves between them";
            return Err(CloseReason::Forbidden(why.into()));
        }
        let link = self.links.get_mut(&id).expect("it came on this link");
        (link.limits, link.version, link.offers) = (Some(limits), version, offers);
        // Regular work may be due sooner than it was thought before the lease was known.
        self.tick_soon(now);
        self.unpark_calls();
        if self.redirector.is_none() {
            self.join_group(now, out);
        }
        self.resume_offered(now, id, out);
        Ok(())
    }

    /// Beats keep a link alive; a node without a stream has none to send. One whose resume waits for its turn
    /// below a crowded relay is not gone (bug 147).
    pub(super) fn keep_alive(&mut self, now: Instant, id: LinkId, out: &mut Out) {
        let every = self.config.beat_every;
        let Some(link) = self.links.get_mut(&id).filter(|link| link.keep_at <= now) else { return };
        link.keep_at = now.after(every);
        if !self.domains.values().any(|domain| domain.live() && domain.up == Some(id)) {
            self.send_on(id, Message::KeepAlive, out);
        }
    }

    /// Gives bytes back in parts of a quarter window; `all`: whatever is left, so that a message
    /// as long as the window is not held up by a remainder.
    pub(super) fn return_credit(&mut self, id: LinkId, all: bool, out: &mut Out) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(limits) = link.limits else { return };
        let lanes = [
            (Lane::Stream, &mut link.stream_bytes, limits.stream_window_bytes),
            (Lane::Bulk, &mut link.bulk_bytes, limits.bulk_window_bytes),
        ];
        for (lane, bytes, window) in lanes {
            if *bytes > 0 && (all || *bytes >= window / 4) {
                let bytes = std::mem::take(bytes);
                let message = Message::Credit { lane, bytes };
                out.push(CacheOutput::Link(LinkOutput::Send { link: id, message }));
            }
        }
    }
}
