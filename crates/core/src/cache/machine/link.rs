//! The link to the parent: handshake, limits, credits, the end of a link.

use super::domain::Domain;
use super::transfers::Transfers;
use super::{Cache, CacheOutput, Notice, Out};
use crate::group::{GROUPS_SINCE, GroupMessage};
use crate::id::{DomainId, LinkId, PageId, RequestId, VolumeId};
use crate::machine::{LinkInput, LinkOutput};
use crate::message::{CloseReason, Lane, LinkLimits, Message, Role, Versions};
use crate::rights::Right;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// A fetch sent on this link and not answered for all pages.
pub(super) struct SentFetch {
    pub(super) domain: DomainId,
    pub(super) pages: BTreeSet<PageId>,
    /// When it was sent.
    pub(super) sent: Instant,
}

/// The link that stands now.
pub(super) struct Link {
    pub(super) id: LinkId,
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
    /// Questions of the cache itself: whether a volume is there.
    pub(super) doubts: BTreeMap<RequestId, VolumeId>,
    /// Volumes asked about in vain: they are asked about again at a tick.
    pub(super) unanswered: BTreeSet<VolumeId>,
    /// What the stream said last of volumes' rights, and the first request that was not sent then.
    pub(super) rights: BTreeMap<VolumeId, (RequestId, Right)>,
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
            LinkInput::UpOpened { link, in_group, .. } => self.opened(now, link, in_group, out),
            LinkInput::DownOpened { link, .. } => {
                let reason = CloseReason::Forbidden("a node has no children".into());
                out.push(CacheOutput::Link(LinkOutput::Close { link, reason }));
            }
            LinkInput::Closed { link, reason } => {
                if self.link.as_ref().is_some_and(|up| up.id == link) {
                    self.lose_link(reason, out);
                }
            }
            LinkInput::Received { link, message, bytes } => {
                let Some(up) = self.link.as_mut().filter(|up| up.id == link) else {
                    return;
                };
                up.heard = now;
                match message.lane() {
                    Lane::Control => {}
                    Lane::Stream => up.stream_bytes = up.stream_bytes.saturating_add(bytes),
                    Lane::Bulk => up.bulk_bytes = up.bulk_bytes.saturating_add(bytes),
                }
                match self.received(now, message, out) {
                    Ok(()) => self.return_credit(false, out),
                    Err(reason) => self.close(reason, out),
                }
            }
        }
    }

    fn opened(&mut self, now: Instant, id: LinkId, in_group: bool, out: &mut Out) {
        if self.link.is_some() {
            // The runtime connects anew when it knows the old connection dead before we do.
            self.close(CloseReason::Silent, out);
        }
        self.link = Some(Link {
            id,
            in_group,
            limits: None,
            version: self.config.versions.oldest,
            heard: now,
            keep_at: now,
            fetches: BTreeMap::new(),
            failed: BTreeMap::new(),
            transfers: Transfers::default(),
            calls: BTreeMap::new(),
            doubts: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            rights: BTreeMap::new(),
            outstanding: 0,
            stream_bytes: 0,
            bulk_bytes: 0,
        });
        self.tick_at = Some(now.after(self.tick_every()));
        let hello = Message::Hello {
            min_version: self.config.versions.oldest,
            max_version: self.config.versions.newest,
            name: self.config.name.clone(),
            boot: self.config.boot,
            role: Role::Node,
        };
        self.send(hello, out);
    }

    /// Ends the link for a reason of ours.
    pub(super) fn close(&mut self, reason: CloseReason, out: &mut Out) {
        let link = self.link.as_ref().expect("only called while a link stands").id;
        out.push(CacheOutput::Link(LinkOutput::Close { link, reason }));
        self.lose_link(None, out);
    }

    /// The link is gone: what was under way on it is asked anew on the next one.
    fn lose_link(&mut self, reason: Option<CloseReason>, out: &mut Out) {
        if let Some(link) = self.link.take() {
            self.doubts.extend(link.doubts.into_values());
            self.doubts.extend(link.unanswered);
        }
        // A right that is given while there is no link is told to nobody (bug 57).
        self.doubts.extend(self.shared.restricted_volumes());
        self.tick_at = None;
        for domain in self.domains.values_mut() {
            domain.lose_link();
        }
        self.requeue_calls();
        self.help_no_longer(out);
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
        message: Message,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let welcomed = self.link.as_ref().is_some_and(|link| link.limits.is_some());
        match message {
            Message::Goodbye { reason } => {
                let link = self.link.as_ref().expect("it came on this link").id;
                self.lose_link(Some(reason.clone()), out);
                out.push(CacheOutput::Link(LinkOutput::Close { link, reason }));
                Ok(())
            }
            Message::Welcome { version, limits, .. } if !welcomed => {
                self.welcomed(now, version, limits, out)
            }
            _ if !welcomed => violation("a message before Welcome"),
            // It has been noted that something came.
            Message::KeepAlive => Ok(()),
            Message::Registered { domain, boot } => self.on_registered(domain, boot),
            Message::Unregistered { domain, boot, why } => {
                self.on_unregistered(now, (domain, boot), why, out)
            }
            Message::Committed { domain, id, outcome, history } => {
                self.on_committed(domain, id, (outcome, history), now, out)
            }
            Message::CommitDeferred { domain, id, error } => {
                self.on_deferred(now, (domain, id), error, out)
            }
            Message::Ids { request, history, range } => self.on_ids(request, history, range, out),
            Message::Copied { request, answer } => self.on_copied(request, answer, out),
            Message::Volume { request, info } => self.on_volume(request, info, now, out),
            Message::VolumeDeleted { request, volume } => {
                self.on_volume_deleted(request, volume, out)
            }
            Message::Rights { request, rights, access } => {
                self.on_rights(request, (rights, access), out)
            }
            Message::VolumeRights { domain, volume, rights } => {
                self.on_volume_rights(domain, volume, &rights, out)
            }
            Message::Volumes { request, volumes, more } => {
                self.on_volumes(request, volumes, more, out)
            }
            Message::Failed { request, pages, error } if pages.is_empty() => {
                self.on_failed(request, error, out)
            }
            Message::Failed { request, pages, error } => {
                let mut pages = pages.into_iter();
                pages.try_for_each(|page| self.on_page_failed(request, page, &error, out))
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
            Message::Group(message) => self.redirector_says(now, message, out),
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
        message: GroupMessage,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if !self.link.as_ref().is_some_and(Link::redirects) {
            return violation("a redirector whose certificate is not of this node's group");
        }
        match message {
            GroupMessage::Members { members } => self.on_members(members, out),
            GroupMessage::Pointed { request, domain, pages, helper } => {
                return self.on_pointed(now, (request, domain), (pages, helper), out);
            }
            GroupMessage::Update { domain, id, stamp, writes } => {
                return self.on_update(domain, (id, stamp), writes);
            }
            GroupMessage::Help { request, domain, pages, asker, position } => {
                self.on_help(now, (asker, request), (domain, position), pages, out);
            }
            _ => return violation("a message that no redirector sends"),
        }
        Ok(())
    }

    /// Every domain resumes in the first flight: one round trip for all (rule 17).
    fn welcomed(
        &mut self,
        now: Instant,
        version: u32,
        limits: LinkLimits,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let child = self.config.versions;
        if !child.holds(version) {
            let parent = Versions { oldest: version, newest: version };
            return Err(CloseReason::Version { parent, child });
        }
        let link = self.link.as_mut().expect("it came on this link");
        (link.limits, link.version) = (Some(limits), version);
        self.lease = limits.lease;
        // Regular work may be due sooner than it was thought before the lease was known.
        self.tick_at = Some(now.after(self.tick_every()));
        self.join_group(out);
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in domains {
            self.resume(now, domain, out);
        }
        Ok(())
    }

    /// Beats keep a link alive; a node without a stream has none to send. One whose resume waits for its turn
    /// below a crowded relay is not gone (bug 147).
    pub(super) fn keep_alive(&mut self, now: Instant, out: &mut Out) {
        let every = self.config.beat_every;
        let Some(link) = self.link.as_mut().filter(|link| link.keep_at <= now) else { return };
        link.keep_at = now.after(every);
        if !self.domains.values().any(Domain::live) {
            self.send(Message::KeepAlive, out);
        }
    }

    /// Gives bytes back in parts of a quarter window; `all`: whatever is left, so that a message
    /// as long as the window is not held up by a remainder.
    pub(super) fn return_credit(&mut self, all: bool, out: &mut Out) {
        let Some(link) = &mut self.link else { return };
        let Some(limits) = link.limits else { return };
        let id = link.id;
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
