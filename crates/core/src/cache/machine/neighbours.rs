//! Neighbours: the links to them, and pages that come from them (BuddyCache, section 3.1; decision 0031).
//!
//! The parent, a redirector, ends a request for a page by pointing to a neighbour. From then on this node
//! alone decides: the page comes, or the neighbour says that it lacks it, or is gone, or is late; then the
//! page is asked for anew. The parent is told in each case, before that. All the while the page is in
//! flight: no notice of it is sent (rule 7), and changes are kept for it (rule 5).

use super::link::violation;
use super::{Cache, CacheOutput, Out};
use crate::cache::io::NeighbourOutput;
use crate::group::{GROUPS_SINCE, GroupMessage, HelpEnd, MEMBERS_MAX, Member, MemberConfig};
use crate::id::{BootId, DomainId, LinkId, PageId, RequestId};
use crate::machine::{LinkInput, LinkOutput};
use crate::message::{CloseReason, Message, PageAnswer, PageBody, Versions, certificate_of};
use crate::page::Page;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// A page of a fetch.
pub(super) type Key = (RequestId, PageId);

/// The link to a neighbour.
struct Peer {
    /// The name that its certificate proved.
    certificate: String,
    /// Who it is, once it said so.
    life: Option<BootId>,
    /// When anything came last.
    heard: Instant,
}

/// The group as this member knows it.
pub(super) struct Neighbours {
    pub(super) config: MemberConfig,
    /// The others, as the parent told last.
    members: BTreeMap<BootId, Member>,
    links: BTreeMap<LinkId, Peer>,
    /// Those who are greeted.
    reached: BTreeMap<BootId, LinkId>,
    /// When they are dialled next.
    dials: BTreeMap<BootId, Instant>,
    /// The parent is to be told who is reached.
    reach_due: bool,
}

impl Neighbours {
    pub(super) fn new(config: MemberConfig) -> Self {
        Self {
            config,
            members: BTreeMap::new(),
            links: BTreeMap::new(),
            reached: BTreeMap::new(),
            dials: BTreeMap::new(),
            reach_due: false,
        }
    }

    /// The greeted link to a neighbour.
    pub(super) fn link_to(&self, life: BootId) -> Option<LinkId> {
        self.reached.get(&life).copied()
    }

    pub(super) fn check(&self) {
        assert!(self.links.len() <= 2 * MEMBERS_MAX, "too many links to neighbours");
        for (life, link) in &self.reached {
            let peer = self.links.get(link).expect("who is reached has a link");
            assert_eq!(peer.life, Some(*life), "a link is its neighbour's");
            assert!(self.members.contains_key(life), "who is reached is a member");
        }
    }
}

/// A page that is to come from a neighbour.
#[derive(Clone, Copy)]
struct Pointing {
    domain: DomainId,
    helper: BootId,
    deadline: Instant,
    /// When it began, or the helper said that it waits itself.
    since: Instant,
}

/// Pages of this link's fetches that are to come from neighbours.
#[derive(Default)]
pub(super) struct Transfers {
    pointed: BTreeMap<Key, Pointing>,
    deadlines: BTreeSet<(Instant, Key)>,
    /// Pages that came before the parent's word of it, and from whom.
    early: BTreeMap<Key, (BootId, PageAnswer)>,
}

impl Transfers {
    /// Pages that are to come.
    pub(super) fn len(&self) -> usize {
        self.pointed.len()
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

    /// Pages that are to come from a neighbour.
    fn of(&self, helper: BootId) -> Vec<Key> {
        let of = self.pointed.iter().filter(|(_, pointing)| pointing.helper == helper);
        of.map(|(key, _)| *key).collect()
    }

    fn take_due(&self, now: Instant) -> Vec<Key> {
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, key)| *key).collect()
    }

    /// A page of a fetch will not come early any more: the parent has answered, or it has come.
    pub(super) fn forget_early(&mut self, key: Key) {
        if !self.early.is_empty() {
            self.early.remove(&key);
        }
    }
}

impl Cache {
    // ---- links ----

    pub(super) fn handle_neighbour(&mut self, now: Instant, input: LinkInput, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        match input {
            LinkInput::UpOpened { link, peer } | LinkInput::DownOpened { link, peer, .. } => {
                if group.links.len() >= 2 * MEMBERS_MAX {
                    let reason = CloseReason::Limit("too many neighbours".into());
                    return send(out, LinkOutput::Close { link, reason });
                }
                group.links.insert(link, Peer { certificate: peer, life: None, heard: now });
                let (versions, name) = (self.config.versions, self.config.name.clone());
                let hello = GroupMessage::Peer { versions, name, life: self.config.boot };
                send(out, LinkOutput::Send { link, message: Message::Group(hello) });
            }
            LinkInput::Closed { link, .. } => self.neighbour_gone(link, out),
            LinkInput::Received { link, message, .. } => {
                let Some(peer) = group.links.get_mut(&link) else { return };
                peer.heard = now;
                let life = peer.life;
                if let Err(reason) = self.neighbour_says(now, (link, life), message, out) {
                    self.close_neighbour(link, reason, out);
                }
            }
        }
    }

    fn neighbour_says(
        &mut self,
        now: Instant,
        (link, life): (LinkId, Option<BootId>),
        message: Message,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        match (message, life) {
            (Message::Goodbye { reason }, _) => Err(reason),
            (Message::Group(GroupMessage::Peer { versions, name, life }), None) => {
                self.greeted(link, versions, (&name, life), out)
            }
            (Message::Pages { request, domain, pages }, Some(life)) => {
                self.neighbour_sends(life, (request, domain), pages, out);
                Ok(())
            }
            (Message::Group(GroupMessage::Lacks { request, domain, pages, waits }), Some(life)) => {
                self.neighbour_lacks(now, life, (request, domain, waits), pages, out);
                Ok(())
            }
            (Message::Pages { .. }, None) => {
                // Its greeting is on its way in another lane. Nobody was pointed to it yet.
                crate::probe::probe("neighbour-sends-before-its-greeting");
                Ok(())
            }
            _ => violation("a message that no neighbour sends now"),
        }
    }

    /// A neighbour says who it is. One that the parent has not told of yet comes again.
    fn greeted(
        &mut self,
        link: LinkId,
        versions: Versions,
        (name, life): (&str, BootId),
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let spoken = self.config.versions;
        let common = crate::wire::negotiate(spoken, versions)?;
        let group = self.neighbours.as_mut().expect("it has a link");
        let peer = group.links.get_mut(&link).expect("looked up by the caller");
        let is_member = group.members.get(&life).is_some_and(|member| member.name == name);
        if common < GROUPS_SINCE || !is_member || certificate_of(name) != peer.certificate {
            return Err(CloseReason::Forbidden(format!("{name} is no member of this group")));
        }
        peer.life = Some(life);
        let before = group.reached.insert(life, link);
        group.reach_due = true;
        if let Some(before) = before {
            crate::probe::probe("neighbour-linked-again");
            // The one that stands now is not touched.
            group.links.remove(&before);
            let reason = CloseReason::Silent;
            send(out, LinkOutput::Close { link: before, reason });
            self.helper_gone(life, out);
        }
        Ok(())
    }

    fn close_neighbour(&mut self, link: LinkId, reason: CloseReason, out: &mut Out) {
        send(out, LinkOutput::Close { link, reason });
        self.neighbour_gone(link, out);
    }

    fn neighbour_gone(&mut self, link: LinkId, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        let Some(life) = group.links.remove(&link).and_then(|peer| peer.life) else { return };
        if group.reached.get(&life) == Some(&link) {
            group.reached.remove(&life);
            group.reach_due = true;
            self.helper_gone(life, out);
        }
    }

    /// Nothing more comes from a neighbour, and nothing more is sent to it.
    fn helper_gone(&mut self, life: BootId, out: &mut Out) {
        self.helps.forget(life);
        let keys = self.link.as_ref().map_or_else(Vec::new, |link| link.transfers.of(life));
        self.transfers_over(keys, HelpEnd::Lacked, out);
    }

    /// The parent has welcomed the link: it is told where neighbours reach this node, and whom it reaches.
    pub(super) fn join_group(&mut self, out: &mut Out) {
        let speaks = self.link.as_ref().is_some_and(|link| link.version >= GROUPS_SINCE);
        let Some(group) = self.neighbours.as_mut().filter(|_| speaks) else { return };
        group.reach_due = true;
        let address = group.config.address.clone();
        self.send(Message::Group(GroupMessage::Join { address }), out);
    }

    /// What a group wants done after every input: nothing, mostly.
    pub(super) fn tend_group(&mut self, now: Instant, out: &mut Out) {
        if self.neighbours.is_some() {
            self.end_late_transfers(now, out);
            self.help_waiting(out);
            self.tend_neighbours(now, out);
        }
    }

    /// Tells the parent who is reached, if that has changed; links to those who are to be dialled, and
    /// gives up who did not say who he is.
    fn tend_neighbours(&mut self, now: Instant, out: &mut Out) {
        let group = self.neighbours.as_ref().expect("looked at by the caller");
        let limit = group.config.redial;
        let mute = |peer: &Peer| peer.life.is_none() && peer.heard.after(limit) <= now;
        let mute = group.links.iter().filter(|(_, peer)| mute(peer));
        let mute: Vec<LinkId> = mute.map(|(link, _)| *link).collect();
        for link in mute {
            self.close_neighbour(link, CloseReason::Silent, out);
        }
        let link = self.link.as_ref().filter(|link| link.limits.is_some());
        let speaks = link.is_some_and(|link| link.version >= GROUPS_SINCE);
        let Some(group) = self.neighbours.as_mut().filter(|_| speaks) else { return };
        if std::mem::take(&mut group.reach_due) {
            let members = group.reached.keys().copied().collect();
            self.send(Message::Group(GroupMessage::Reach { members }), out);
        }
        let own = self.config.boot;
        let group = self.neighbours.as_mut().expect("looked at above");
        for (life, member) in group.members.range(..own) {
            let due = group.dials.get(life).is_none_or(|at| *at <= now);
            if due && !group.reached.contains_key(life) {
                group.dials.insert(*life, now.after(group.config.redial));
                out.push(CacheOutput::Neighbour(NeighbourOutput::Dial(member.clone())));
            }
        }
    }

    /// Who belongs to the group now.
    pub(super) fn on_members(&mut self, members: Vec<Member>, out: &mut Out) {
        let own = self.config.boot;
        let Some(group) = &mut self.neighbours else { return };
        let others = members.into_iter().filter(|member| member.life != own);
        group.members = others.map(|member| (member.life, member)).collect();
        let members = &group.members;
        group.dials.retain(|life, _| members.contains_key(life));
        let gone = group.reached.iter().filter(|(life, _)| !members.contains_key(life));
        let gone: Vec<LinkId> = gone.map(|(_, link)| *link).collect();
        for link in gone {
            self.close_neighbour(link, CloseReason::Shutdown, out);
        }
    }

    // ---- pages that come ----

    /// Pages of a fetch come from a neighbour.
    pub(super) fn on_pointed(
        &mut self,
        now: Instant,
        (request, domain): (RequestId, DomainId),
        (pages, helper): (Vec<PageId>, BootId),
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let Some(group) = &self.neighbours else {
            return violation("somebody who is no member is pointed to a neighbour");
        };
        let reached = group.link_to(helper).is_some();
        let deadline = now.after(group.config.help_wait);
        let mut came = Vec::new();
        let mut lacked = Vec::new();
        for page in pages {
            if !self.page_answered(request, domain, page)? {
                continue;
            }
            let transfers = &mut self.link.as_mut().expect("it came on this link").transfers;
            let pointing = Pointing { domain, helper, deadline, since: now };
            transfers.insert((request, page), pointing);
            match transfers.early.remove(&(request, page)) {
                Some((from, answer)) if from == helper => came.push(answer),
                _ if !reached => lacked.push((request, page)),
                _ => {}
            }
        }
        if !came.is_empty() {
            crate::probe::probe("neighbour-was-early");
            self.transfers_came((request, domain), came, out);
        }
        // Its link was lost meanwhile.
        self.transfers_over(lacked, HelpEnd::Lacked, out);
        Ok(())
    }

    fn neighbour_sends(
        &mut self,
        life: BootId,
        (request, domain): (RequestId, DomainId),
        pages: Vec<PageAnswer>,
        out: &mut Out,
    ) {
        let Some(link) = &mut self.link else { return };
        let mut came = Vec::new();
        for answer in pages {
            let key = (request, answer.page);
            let pointed = link.transfers.pointed.get(&key);
            if pointed.is_some_and(|one| (one.helper, one.domain) == (life, domain))
                // One that comes twice in a message comes once.
                && came.iter().all(|other: &PageAnswer| other.page != answer.page)
            {
                came.push(answer);
                continue;
            }
            let asked = link.fetches.get(&request).filter(|fetch| fetch.domain == domain);
            if pointed.is_none() && asked.is_some_and(|fetch| fetch.pages.contains(&answer.page)) {
                // It overtook the parent's word, which names who sends it.
                link.transfers.early.insert(key, (life, answer));
            } else {
                // Given up long ago.
                crate::probe::probe("neighbour-was-late");
            }
        }
        self.transfers_came((request, domain), came, out);
    }

    /// Pages that neighbours sent. One that does not check is as if it had not come.
    fn transfers_came(
        &mut self,
        (request, domain): (RequestId, DomainId),
        answers: Vec<PageAnswer>,
        out: &mut Out,
    ) {
        let (came, bad): (Vec<PageAnswer>, Vec<PageAnswer>) =
            answers.into_iter().partition(|answer| self.is_sound(answer));
        if !bad.is_empty() {
            crate::probe::probe("neighbour-sent-damage");
            let keys = bad.into_iter().map(|answer| (request, answer.page)).collect();
            self.transfers_over(keys, HelpEnd::Lacked, out);
        }
        if came.is_empty() {
            return;
        }
        let transfers = &mut self.link.as_mut().expect("they were pointed on it").transfers;
        let pages: Vec<PageId> = came.iter().map(|answer| answer.page).collect();
        for page in &pages {
            transfers.remove((request, *page));
        }
        let end = HelpEnd::Came;
        self.send(Message::Group(GroupMessage::Helped { request, domain, pages, end }), out);
        for answer in came {
            self.page_came(domain, request, answer);
        }
        let through = self.domains.get(&domain).and_then(|entry| entry.position);
        if let Some(through) = through {
            self.install_waiting(domain, through, out);
        }
    }

    /// Whether a page from a neighbour is one (P9), of the size of its volume's.
    fn is_sound(&self, answer: &PageAnswer) -> bool {
        let PageBody::Data(image) = &answer.body else { return false };
        let volume = self.shared.volume(answer.page.volume);
        let max = volume.map_or(crate::page::PAGE_BYTES_MAX, |volume| volume.page_bytes);
        answer.version <= answer.as_of
            && image.len() <= max as usize
            && Page::decode(answer.page, image.clone()).is_ok()
    }

    fn neighbour_lacks(
        &mut self,
        now: Instant,
        life: BootId,
        (request, domain, waits): (RequestId, DomainId, bool),
        pages: Vec<PageId>,
        out: &mut Out,
    ) {
        let (Some(link), Some(group)) = (&mut self.link, &self.neighbours) else { return };
        let long = now.after(group.config.help_wait_long);
        let mut lacked = Vec::new();
        for page in pages {
            let key = (request, page);
            let pointed = link.transfers.pointed.get(&key).copied();
            let Some(one) = pointed.filter(|one| (one.helper, one.domain) == (life, domain)) else {
                continue;
            };
            if waits {
                crate::probe::probe("neighbour-waits-itself");
                link.transfers.insert(key, Pointing { deadline: long, since: now, ..one });
            } else {
                crate::probe::probe("neighbour-lacks-it");
                lacked.push(key);
            }
        }
        self.transfers_over(lacked, HelpEnd::Lacked, out);
    }

    /// Pages that are to come no longer: the parent is told, and they are asked for anew.
    fn transfers_over(&mut self, keys: Vec<Key>, end: HelpEnd, out: &mut Out) {
        let mut over: BTreeMap<(RequestId, DomainId), Vec<PageId>> = BTreeMap::new();
        for key in keys {
            let link = self.link.as_mut().expect("they were pointed on it");
            if let Some(Pointing { domain, .. }) = link.transfers.remove(key) {
                over.entry((key.0, domain)).or_default().push(key.1);
            }
        }
        for ((request, domain), pages) in over {
            let entry = self.domains.get_mut(&domain).expect("asked for");
            for page in &pages {
                entry.flights.ask_again(*page, request);
            }
            self.send(Message::Group(GroupMessage::Helped { request, domain, pages, end }), out);
        }
    }

    /// Transfers whose time is up. From a neighbour of which nothing at all came meanwhile the link is
    /// taken for dead.
    fn end_late_transfers(&mut self, now: Instant, out: &mut Out) {
        let Some(link) = &self.link else { return };
        let due = link.transfers.take_due(now);
        if due.is_empty() {
            return;
        }
        crate::probe::probe("neighbour-too-late");
        let helpers = due.iter().filter_map(|key| link.transfers.pointed.get(key));
        let helpers: Vec<(BootId, Instant)> = helpers.map(|one| (one.helper, one.since)).collect();
        self.transfers_over(due, HelpEnd::Late, out);
        for (life, since) in helpers {
            let Some(group) = &self.neighbours else { return };
            let Some(link) = group.link_to(life) else { continue };
            if group.links[&link].heard < since {
                self.close_neighbour(link, CloseReason::Silent, out);
            }
        }
    }
}

fn send(out: &mut Out, output: LinkOutput) {
    out.push(CacheOutput::Neighbour(NeighbourOutput::Link(output)));
}
