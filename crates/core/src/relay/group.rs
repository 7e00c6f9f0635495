//! A relay that is its group's redirector: it points those who miss a page to a neighbour that has it
//! (BuddyCache, section 3.1; decision 0031). Whatever else it does it does as any relay.
//!
//! A page on its way between neighbours counts as one on its way from above: no notice of it is passed up
//! (rule 7), and who asked for it was registered first (rule 10). What becomes of it is the asker's to
//! see: it says so, or leaves, or its time is up.

use super::Relay;
use super::io::RelayOutput;
use crate::commit::{Change, CommitRequest, Op, Target, Write};
use crate::downlink::Asked;
use crate::group::directory::Helper;
use crate::group::{GroupMessage, HOLES_SINCE, HelpEnd, Member, not_in_group};
use crate::id::{DomainId, LinkId, PageId, RequestId};
use crate::machine::Fault;
use crate::message::Message;
use crate::rights::Right;
use crate::time::Instant;
use std::collections::BTreeMap;

/// Pages of one look at a child's queue that come from neighbours: by fetch and helper.
pub(super) type Pointed = BTreeMap<(RequestId, Helper), Vec<PageId>>;

impl Relay {
    /// A member says something of itself, or of a transfer. No group's redirector takes no note of it.
    pub(super) fn member_says(
        &mut self,
        now: Instant,
        link: LinkId,
        message: GroupMessage,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(group) = &mut self.group else { return };
        match message {
            GroupMessage::Join { address } => {
                let Some(entry) = self.links.get(link).filter(|entry| entry.in_group) else {
                    return self.close_stranger(now, link, out);
                };
                let Some(child) = entry.child() else { return };
                let member = Member { life: child.boot, name: child.name.clone(), address };
                group.join(now, link, member);
                if let Some(entry) = self.links.get_mut(link) {
                    entry.member = true;
                }
            }
            GroupMessage::Reach { members } => group.reach(link, members),
            GroupMessage::Helped { request, domain: _, pages, end } => {
                self.transfers_ended(now, (link, request), pages, end, out);
            }
            GroupMessage::Complete { domain, pages } => {
                // With what it is not registered for it helps nobody; a domain that it does not follow is none.
                let Some(follower) = self.links.follower(link, domain) else { return };
                let held = pages.iter().filter(|page| follower.registration.contains(**page));
                held.for_each(|page| group.has(link, domain, *page));
            }
            GroupMessage::Acknowledged { domain, through } => {
                if let Some(follower) = self.links.follower(link, domain) {
                    follower.acknowledged = follower.acknowledged.max(through);
                }
            }
            // What others say is turned away where it comes in.
            _ => {}
        }
    }

    /// A commit as of what the whole group has acknowledged, for experiments ([`crate::group::GroupConfig::ack`]): a
    /// change that somebody has not, who may hold the page, counts as one that the committer has not seen either.
    pub(super) fn as_acknowledged(
        &mut self,
        link: LinkId,
        domain: DomainId,
        mut commit: CommitRequest,
    ) -> CommitRequest {
        if !self.config.group.as_ref().is_some_and(|group| group.ack) {
            return commit;
        }
        for other in self.links.following(domain).into_iter().filter(|other| *other != link) {
            if !self.links.get(other).is_some_and(|entry| entry.member) {
                continue;
            }
            let Some(follower) = self.links.follower(other, domain) else { continue };
            if commit.reads.iter().any(|read| follower.registration.contains(read.page)) {
                commit.base = commit.base.min(follower.acknowledged);
            }
        }
        commit
    }

    /// Whoever joins without a certificate of the group would be sent pages past the origin.
    fn close_stranger(&mut self, now: Instant, link: LinkId, out: &mut Vec<RelayOutput>) {
        let name = self.links.get(link).map_or_else(String::new, |entry| entry.peer.clone());
        self.close_child(now, link, not_in_group(&name), out);
    }

    fn transfers_ended(
        &mut self,
        now: Instant,
        (link, request): (LinkId, RequestId),
        pages: Vec<PageId>,
        end: HelpEnd,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(group) = &mut self.group else { return };
        let ended = pages.into_iter().filter_map(|page| {
            let domain = group.ended(now, (link, request, page), end)?;
            Some((domain, page))
        });
        let ended: Vec<(DomainId, PageId)> = ended.collect();
        match end {
            HelpEnd::Came => self.arrived(ended, out),
            HelpEnd::Lacked | HelpEnd::Late | HelpEnd::NotSent => self.not_arrived(now, ended),
        }
    }

    /// Pages came from neighbours: a notice that waited for one is passed up.
    fn arrived(&mut self, pages: Vec<(DomainId, PageId)>, out: &mut Vec<RelayOutput>) {
        let mut left: BTreeMap<DomainId, Vec<PageId>> = BTreeMap::new();
        for (domain, page) in pages {
            if let Some(entry) = self.domains.get_mut(&domain) {
                entry.fetch_ends(page);
                left.entry(domain).or_default().push(page);
            }
        }
        for (domain, pages) in left {
            self.evicted(domain, pages, out);
        }
    }

    /// Pages did not come. Nothing says that there are such pages, and a notice could be overtaken by a commit
    /// that makes them (P3): the parent is told by a list.
    fn not_arrived(&mut self, now: Instant, pages: Vec<(DomainId, PageId)>) {
        for (domain, page) in pages {
            let Some(entry) = self.domains.get_mut(&domain) else { continue };
            entry.fetch_ends(page);
            if !entry.fetching.contains_key(&page) && !self.is_held_below(domain, page) {
                crate::probe::probe("transfer-left-nobody");
                self.narrow_later(now, domain, true);
            }
        }
    }

    /// A child's link is gone, with what was on its way to it. Its registrations went too: a list to the
    /// parent is due.
    pub(super) fn member_gone(&mut self, now: Instant, link: LinkId) {
        let Some(group) = &mut self.group else { return };
        let Some(over) = group.leave(now, link) else { return };
        if self.config.faults.has(Fault::TransferOfGone) {
            return;
        }
        for (domain, page) in over {
            if let Some(entry) = self.domains.get_mut(&domain) {
                entry.fetch_ends(page);
            }
        }
        // Nothing is kept for who is gone.
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        domains.into_iter().for_each(|domain| self.release_updates(domain));
    }

    /// Tells all members of each other, if that is due.
    pub(super) fn tell_members(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        let Some(group) = &mut self.group else { return };
        for (link, members) in group.news(now) {
            self.links.send(link, Message::Group(GroupMessage::Members { members }), out);
        }
    }

    /// Transfers of which nothing was said for too long.
    pub(super) fn end_transfers(&mut self, now: Instant) {
        if let Some(group) = &mut self.group {
            let over = group.timeouts(now);
            self.not_arrived(now, over);
        }
    }

    /// Whether a page that a child asks for comes from a neighbour; else it is to be asked for above, and
    /// the child will be able to help with it.
    ///
    /// Of what it may not read nobody helps it: the one above says so.
    pub(super) fn comes_from_neighbour(
        &mut self,
        now: Instant,
        (link, domain): (LinkId, DomainId),
        asked: &Asked,
        pointed: &mut Pointed,
    ) -> bool {
        let Some(group) = &mut self.group else { return false };
        let key = (link, asked.request, asked.page);
        let (links, volume) = (&mut self.links, asked.page.volume);
        let judged = !self.config.faults.has(Fault::PointsToAll);
        if judged && links.right_of_link(link, volume) < Right::Read {
            return false;
        }
        // Who has one that may be current yet is told that it is, perhaps.
        let knows_holes = asked.have.is_none()
            && links.version(link).is_some_and(|version| version >= HOLES_SINCE);
        let may = |Helper { link: helper, holes }: Helper| {
            if holes && links.version(helper).is_none_or(|version| version < HOLES_SINCE) {
                return false;
            }
            let follower = links.follower(helper, domain);
            follower.is_some_and(|follower| follower.registration.contains(asked.page))
                && (!judged || links.right_of_link(helper, volume) >= Right::Read)
        };
        let helper = group.choose(now, key, domain, knows_holes, may);
        let Some((helper, entry)) = helper.zip(self.domains.get_mut(&domain)) else {
            group.has(link, domain, asked.page);
            return false;
        };
        crate::probe::probe("pointed-to-a-neighbour");
        group.point(now, key, domain, helper);
        if self.config.faults.has(Fault::PointedUnregistered)
            && let Some(follower) = links.follower(link, domain)
        {
            follower.registration.remove(asked.page);
        }
        entry.fetch_begins(asked.page);
        pointed.entry((asked.request, helper)).or_default().push(asked.page);
        true
    }

    /// Says to a child, and to those who are to help it, what comes from them. Neither may wait for an
    /// advance that carries nothing: the helper answers at this relay's position, and what it sends may be as
    /// new.
    pub(super) fn tell_pointed(
        &mut self,
        now: Instant,
        (link, domain): (LinkId, DomainId),
        pointed: Pointed,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(entry) = self.domains.get(&domain).filter(|_| !pointed.is_empty()) else {
            return;
        };
        let position = entry.through();
        for ((request, Helper { link: to, holes }), pages) in pointed {
            let group = self.group.as_ref();
            let lives = group.and_then(|group| Some((group.life(link)?, group.life(to)?)));
            let (asker, helper) = lives.expect("both are members, in this step");
            self.links.point(link, (request, domain), (&pages, helper, holes), out);
            let help = GroupMessage::Help { request, domain, pages, asker, position, holes };
            self.links.send(to, Message::Group(help), out);
            if let Some(follower) = self.links.follower(to, domain) {
                follower.told(position);
            }
            self.pump(now, domain, to, out);
        }
        if let Some(follower) = self.links.follower(link, domain) {
            follower.told(position);
        }
        self.pump(now, domain, link, out);
    }

    // ---- what they have ----

    /// What an advance tells: copies of these pages have holes now, but for those of who made the change, and
    /// of all who are told what it wrote.
    pub(super) fn directory_changed(&mut self, domain: DomainId, changes: &[Change]) {
        let (Some(group), Some(entry)) = (&mut self.group, self.domains.get_mut(&domain)) else {
            return;
        };
        for change in changes {
            let another = self.config.faults.has(Fault::UpdateOfAnother);
            if entry.updates.change(change, another) {
                change.pages.iter().for_each(|page| group.updated(domain, page.page));
                continue;
            }
            let by = self.links.link_of(domain, change.id.boot);
            for page in &change.pages {
                match page.touched.iter().any(|(target, _)| *target == Target::Page) {
                    true => group.stale(domain, page.page, by),
                    false => group.changed(domain, page.page, by),
                }
            }
        }
    }

    // ---- what they commit ----

    /// A commit is passed on: what it writes is kept for the other members.
    pub(super) fn keep_update(&mut self, domain: DomainId, commit: &CommitRequest) {
        let config = self.config.group.as_ref();
        let entry = self.domains.get_mut(&domain);
        let Some(((group, config), entry)) = self.group.as_ref().zip(config).zip(entry) else {
            return;
        };
        if group.has_neighbours() {
            let room = (config.update_bytes_max, config.updates_bytes_max);
            entry.updates.keep(commit.id, &commit.writes, room);
        }
    }

    /// Forgets the writes that all members were told.
    pub(super) fn release_updates(&mut self, domain: DomainId) {
        let Some(entry) = self.domains.get_mut(&domain).filter(|entry| entry.updates.has_told())
        else {
            return;
        };
        let least = self.links.least_told(domain);
        entry.updates.release(least.unwrap_or(entry.through()));
    }

    /// Nobody knows how these pages changed, those among them that stand for a volume for all of it.
    pub(super) fn directory_stale(&mut self, domain: DomainId, pages: &[PageId]) {
        let Some(group) = &mut self.group else { return };
        for page in pages {
            if page.is_volume() {
                group.volume_changed(domain, page.volume);
            } else {
                group.stale(domain, *page, None);
            }
        }
    }

    /// What a child has is not known any more; none: nor what all others have.
    pub(super) fn directory_forgets(&mut self, link: Option<LinkId>, domain: DomainId) {
        if let Some(group) = &mut self.group {
            group.forget(link, domain);
        }
    }

    /// A child made these pages: it has them complete.
    pub(super) fn directory_made(&mut self, link: LinkId, domain: DomainId, pages: &[PageId]) {
        if let Some(group) = &mut self.group {
            pages.iter().for_each(|page| group.has(link, domain, *page));
        }
    }

    /// A child gave pages up.
    pub(super) fn directory_evicted(&mut self, link: LinkId, domain: DomainId, pages: &[PageId]) {
        if let Some(group) = &mut self.group {
            pages.iter().for_each(|page| group.lacks(link, domain, *page));
        }
    }

    /// Pages that a commit makes, of which its node then has the only complete copies.
    pub(super) fn made_by(&self, writes: &[Write]) -> Vec<PageId> {
        let makes = |write: &&Write| matches!(write.op, Op::CreatePage(_));
        let group = self.group.as_ref();
        group.map_or_else(Vec::new, |_| {
            writes.iter().filter(makes).map(|write| write.page).collect()
        })
    }
}
