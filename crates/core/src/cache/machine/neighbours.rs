//! Links to neighbours: the other members of the group (BuddyCache, section 3.1; decision 0031).
//!
//! Of two members the one with the higher life dials. It may dial anew while a link that it has not heard of
//! stands, and the greetings of two links may cross: it alone says which of them stays.

use super::link::{Link, violation};
use super::{Cache, CacheOutput, Out};
use crate::cache::io::NeighbourOutput;
use crate::group::{
    GROUPS_SINCE, GroupMessage, MEMBERS_MAX, Member, MemberConfig, MembershipStatus,
    NeighbourStatus, not_in_group,
};
use crate::id::{BootId, DomainId, LinkId, Stamp};
use crate::machine::{LinkInput, LinkOutput};
use crate::message::{CloseReason, Message, Versions, certificate_of};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A neighbour is not dialled more often than this, whatever the configuration says.
const REDIAL_MIN: Duration = Duration::from_millis(10);

/// How often a pause doubles at most.
const BACKOFF_DOUBLES: u32 = 4;

/// When something may be done again that is done the less often, the longer it is wanted all the time.
struct Backoff {
    at: Instant,
    pause: Duration,
    /// The first pause, and the next one.
    first: Duration,
    least: Duration,
}

impl Backoff {
    /// It may be done now.
    fn new(now: Instant, first: Duration, least: Duration) -> Self {
        Self { at: now, pause: first, first, least }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.at <= now
    }

    /// It is done now. The pause is the first one again if it was not wanted for as long as the next one.
    fn done(&mut self, now: Instant) {
        if self.at.after(self.pause.max(self.least)) <= now {
            self.pause = self.first;
        }
        self.at = now.after(self.pause);
        let most = self.least.saturating_mul(1 << BACKOFF_DOUBLES);
        self.pause = self.pause.saturating_mul(2).clamp(self.least, most);
    }
}

/// The link to a neighbour.
struct Peer {
    /// The name that its certificate proved.
    certificate: String,
    /// Who it is, once it said so.
    life: Option<BootId>,
    /// When anything came last.
    heard: Instant,
    /// Since when it owes a page and says nothing.
    mute_since: Option<Instant>,
    /// When it said who it is.
    greeted: Instant,
}

/// The group as this member knows it.
pub(super) struct Neighbours {
    pub(super) config: MemberConfig,
    /// The others, as the parent told last, and who is kept beside them.
    members: BTreeMap<BootId, Member>,
    /// Of those, the ones that the parent before knew of, and this one has not named; until when.
    kept: BTreeSet<BootId>,
    kept_until: Option<Instant>,
    links: BTreeMap<LinkId, Peer>,
    /// Those who are greeted.
    reached: BTreeMap<BootId, LinkId>,
    /// When they are dialled next: a link may be lost as soon as it stands, again and again.
    dials: BTreeMap<BootId, Backoff>,
    /// Those whose links were lost, and who were not dialled since.
    lost: BTreeSet<BootId>,
    /// The parent is to be told who is reached, and when at the soonest.
    reach_due: bool,
    reach_at: Option<Backoff>,
    /// The parent has named members.
    named: bool,
    /// Whom the parent was told to be reached.
    said: Option<Vec<BootId>>,
    /// The process is to be told, with their links.
    reached_due: bool,
    /// Links or members are others than when they were looked at last.
    tend_due: bool,
    /// The time of the last input.
    now: Instant,
    /// When they are looked at in any case: somebody is to be dialled, or to be given up.
    tend_at: Option<Instant>,
}

impl Neighbours {
    pub(super) fn new(config: MemberConfig) -> Self {
        Self {
            config,
            members: BTreeMap::new(),
            kept: BTreeSet::new(),
            kept_until: None,
            links: BTreeMap::new(),
            reached: BTreeMap::new(),
            dials: BTreeMap::new(),
            lost: BTreeSet::new(),
            reach_due: false,
            reach_at: None,
            named: false,
            said: None,
            reached_due: false,
            tend_due: false,
            now: Instant(0),
            tend_at: None,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.tend_at
    }

    /// A transfer from a neighbour that began then is late. Gives its link if that is to be closed: in
    /// [`MemberConfig::help_wait_long`] nothing was heard on it.
    pub(super) fn late(&mut self, now: Instant, life: BootId, since: Instant) -> Option<LinkId> {
        let link = self.link_to(life)?;
        let peer = self.links.get_mut(&link)?;
        if peer.heard >= since {
            return None;
        }
        let mute_since = *peer.mute_since.get_or_insert(since);
        (mute_since.after(self.config.help_wait_long) <= now).then_some(link)
    }

    /// Whom the parent is told to be reached: those first whom it has named.
    fn said_reached(&self) -> Vec<BootId> {
        let of = |kept| {
            let lives = self.reached.keys().copied();
            lives.filter(move |life| self.kept.contains(life) == kept)
        };
        let mut lives: Vec<BootId> = of(false).chain(of(true)).take(MEMBERS_MAX).collect();
        lives.sort_unstable();
        lives
    }

    /// No link to a neighbour stands any more; the last one did for so long.
    fn lose(&mut self, life: BootId, stood: Duration) {
        self.reached.remove(&life);
        self.lost.insert(life);
        if self.dials.get(&life).is_some_and(|dial| stood >= dial.pause) {
            self.dials.remove(&life);
        }
    }

    /// When a neighbour that is not reached is dialled; who was dialled just before its link was lost is given the
    /// time to notice that, and the process too.
    fn dial(&mut self, life: BootId, now: Instant) -> &mut Backoff {
        let every = self.redial();
        let dial = self.dials.entry(life).or_insert(Backoff::new(now, every, every));
        if self.lost.remove(&life) {
            dial.at = dial.at.max(now.after(every));
        }
        dial
    }

    /// What the parent is told of them, if that is due now and other than before.
    fn reach_to_say(&mut self, now: Instant) -> Option<Vec<BootId>> {
        let least = self.redial() / (1 << BACKOFF_DOUBLES);
        let at = self.reach_at.get_or_insert(Backoff::new(now, Duration::ZERO, least));
        if !self.reach_due || !at.is_due(now) {
            return None;
        }
        self.reach_due = false;
        let members = self.said_reached();
        if self.said.as_ref() == Some(&members) {
            crate::probe::probe("neighbours-come-and-go");
            return None;
        }
        self.reach_at.as_mut().expect("looked at above").done(now);
        self.said = Some(members.clone());
        Some(members)
    }

    fn redial(&self) -> Duration {
        self.config.redial.max(REDIAL_MIN)
    }

    /// The greeted link to a neighbour.
    pub(super) fn link_to(&self, life: BootId) -> Option<LinkId> {
        self.reached.get(&life).copied()
    }

    pub(super) fn check(&self) {
        assert!(self.links.len() <= 2 * MEMBERS_MAX, "too many links to neighbours");
        assert!(self.members.len() <= 2 * MEMBERS_MAX, "too many neighbours");
        assert!(self.kept.is_empty() || self.kept_until.is_some(), "nobody is kept for ever");
        for (life, link) in &self.reached {
            let peer = self.links.get(link).expect("who is reached has a link");
            assert_eq!(peer.life, Some(*life), "a link is its neighbour's");
            assert!(self.members.contains_key(life), "who is reached is a member");
        }
    }
}

impl Cache {
    // ---- links ----

    pub(super) fn handle_neighbour(&mut self, now: Instant, input: LinkInput, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        (group.tend_due, group.now) = (true, now);
        match input {
            LinkInput::UpOpened { link, peer, in_group, .. }
            | LinkInput::DownOpened { link, peer, in_group, .. } => {
                if !in_group {
                    let reason = not_in_group(&peer);
                    return send(out, LinkOutput::Close { link, reason });
                }
                if group.links.len() >= 2 * MEMBERS_MAX {
                    let reason = CloseReason::Limit("too many neighbours".into());
                    return send(out, LinkOutput::Close { link, reason });
                }
                let peer = Peer {
                    certificate: peer,
                    life: None,
                    heard: now,
                    mute_since: None,
                    greeted: now,
                };
                group.links.insert(link, peer);
                let (versions, name) = (self.config.versions, self.config.name.clone());
                let hello = GroupMessage::Peer { versions, name, life: self.config.boot };
                send(out, LinkOutput::Send { link, message: Message::Group(hello) });
            }
            LinkInput::Closed { link, .. } => self.neighbour_gone(link, out),
            LinkInput::Received { link, message, .. } => {
                let Some(peer) = group.links.get_mut(&link) else { return };
                (peer.heard, peer.mute_since) = (now, None);
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
                self.neighbour_sends(now, life, (request, domain), pages, out);
                Ok(())
            }
            (Message::Group(GroupMessage::Lacks { request, domain, pages, why }), Some(life)) => {
                self.neighbour_lacks(now, life, (request, domain, why), pages, out);
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
        (peer.life, peer.greeted) = (Some(life), peer.heard);
        let before = group.reached.insert(life, link);
        (group.reach_due, group.reached_due, group.tend_due) = (true, true, true);
        let Some(before) = before else { return Ok(()) };
        crate::probe::probe("neighbour-linked-again");
        // Who dialled says which of two stays; the other end keeps the one before until it is closed.
        let dialled = self.config.boot > life;
        let of_life = |(other, peer): &(&LinkId, &Peer)| {
            peer.life == Some(life) && **other != link && (dialled || **other != before)
        };
        let left: Vec<LinkId> = group.links.iter().filter(of_life).map(|(id, _)| *id).collect();
        for other in left {
            self.close_neighbour(other, CloseReason::Silent, out);
        }
        Ok(())
    }

    pub(super) fn close_neighbour(&mut self, link: LinkId, reason: CloseReason, out: &mut Out) {
        send(out, LinkOutput::Close { link, reason });
        self.neighbour_gone(link, out);
    }

    fn neighbour_gone(&mut self, link: LinkId, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        group.tend_due = true;
        let Some(peer) = group.links.remove(&link) else { return };
        let Some(life) = peer.life else { return };
        if group.reached.get(&life) == Some(&link) {
            let other = group.links.iter().find(|(_, peer)| peer.life == Some(life));
            match other.map(|(other, _)| *other) {
                Some(other) => drop(group.reached.insert(life, other)),
                None => group.lose(life, group.now.since(peer.greeted)),
            }
            (group.reach_due, group.reached_due) = (true, true);
        }
        // What was on its way on it does not come any more.
        self.helper_gone(life, out);
    }

    /// What it knows of its group, for operators; none: it is no member.
    #[must_use]
    pub fn membership_status(&self) -> Option<MembershipStatus> {
        let group = self.neighbours.as_ref()?;
        let neighbour = |(life, member): (&BootId, &Member)| NeighbourStatus {
            member: member.clone(),
            link: group.link_to(*life),
        };
        Some(MembershipStatus {
            address: group.config.address.clone(),
            redirector: self.is_in_group(),
            neighbours: group.members.iter().map(neighbour).collect(),
            asking: self.links.values().map(|link| link.transfers.len()).sum(),
            helping: self.helps.len(),
        })
    }

    /// Whether a parent is the group's redirector.
    pub(super) fn is_in_group(&self) -> bool {
        self.redirector.is_some()
    }

    /// The parent has welcomed the link: it is told where neighbours reach this node, and whom it reaches. It
    /// may be another redirector, to which others come when they have noticed: those whom this node knows are
    /// kept until then (decision 0034).
    pub(super) fn join_group(&mut self, now: Instant, out: &mut Out) {
        // Of several that may be it the first parent.
        let redirects = self.links.values().filter(|link| link.redirects());
        self.redirector = redirects.min_by_key(|link| link.parent).map(|link| link.id);
        let redirects = self.is_in_group();
        let Some(group) = self.neighbours.as_mut().filter(|_| redirects) else { return };
        if group.config.address.is_empty() {
            return;
        }
        (group.reach_due, group.tend_due) = (true, true);
        (group.reach_at, group.said, group.named) = (None, None, false);
        group.kept_until = Some(now.after(group.config.regroup));
        group.kept = group.members.keys().copied().collect();
        let address = group.config.address.clone();
        self.send_to_redirector(Message::Group(GroupMessage::Join { address }), out);
    }

    /// Says how far the stream is, where an experiment wants it.
    pub(super) fn acknowledge(&mut self, domain: DomainId, through: Stamp, out: &mut Out) {
        if self.is_in_group() && self.neighbours.as_ref().is_some_and(|group| group.config.ack) {
            let acknowledged = GroupMessage::Acknowledged { domain, through };
            self.send_to_redirector(Message::Group(acknowledged), out);
        }
    }

    /// Neighbours reach this node here from now on.
    pub(super) fn reachable(&mut self, now: Instant, address: String, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        if group.config.address != address {
            group.config.address = address;
            self.join_group(now, out);
        }
    }

    /// What a group wants done after every input: nothing, mostly.
    pub(super) fn tend_group(&mut self, now: Instant, out: &mut Out) {
        if self.neighbours.is_none() {
            return;
        }
        if self.redirector.is_none() && self.links.values().any(Link::redirects) {
            self.join_group(now, out);
        }
        self.say_came(out);
        self.end_late_transfers(now, out);
        self.help_waiting(now, out);
        let group = self.neighbours.as_mut().expect("looked at above");
        group.now = now;
        if group.tend_due || group.tend_at.is_some_and(|at| at <= now) {
            self.tend_neighbours(now, out);
        }
    }

    /// Tells the parent who is reached, if that has changed; links to those who are to be dialled, and
    /// gives up who did not say who he is.
    fn tend_neighbours(&mut self, now: Instant, out: &mut Out) {
        let group = self.neighbours.as_mut().expect("looked at by the caller");
        (group.tend_due, group.tend_at) = (false, None);
        let every = group.redial();
        let mute = group.links.iter().filter(|(_, peer)| peer.life.is_none());
        let (mute, rest): (Vec<_>, Vec<_>) = mute
            .map(|(link, peer)| (peer.heard.after(every), *link))
            .partition(|(at, _)| *at <= now);
        let mut tend_at = rest.into_iter().map(|(at, _)| at).min();
        for (_, link) in mute {
            self.close_neighbour(link, CloseReason::Silent, out);
        }
        let group = self.neighbours.as_mut().expect("looked at by the caller");
        if let Some(until) = group.kept_until {
            if until <= now {
                self.keep_no_longer(out);
            } else {
                tend_at = Some(tend_at.map_or(until, |first| first.min(until)));
            }
        }
        let redirects = self.is_in_group();
        let own = self.config.boot;
        let group = self.neighbours.as_mut().expect("looked at by the caller");
        // What was closed just now was looked at.
        group.tend_due = false;
        if std::mem::take(&mut group.reached_due) {
            let reached = group.reached.iter().map(|(life, link)| (*life, *link)).collect();
            out.push(CacheOutput::Neighbour(NeighbourOutput::Reached(reached)));
        }
        if redirects {
            if let Some(members) = group.reach_to_say(now) {
                self.send_to_redirector(Message::Group(GroupMessage::Reach { members }), out);
            }
            let group = self.neighbours.as_mut().expect("looked at by the caller");
            if let Some(next) = group.reach_at.as_ref().filter(|_| group.reach_due) {
                tend_at = Some(tend_at.map_or(next.at, |first| first.min(next.at)));
            }
            let others = group.members.range(..own);
            let unreached = others.filter(|(life, _)| !group.reached.contains_key(life));
            let unreached: Vec<BootId> = unreached.map(|(life, _)| *life).collect();
            for life in unreached {
                let member = group.members[&life].clone();
                let dial = group.dial(life, now);
                if dial.is_due(now) {
                    dial.done(now);
                    out.push(CacheOutput::Neighbour(NeighbourOutput::Dial(member)));
                }
                tend_at = Some(tend_at.map_or(dial.at, |first: Instant| first.min(dial.at)));
            }
        }
        self.neighbours.as_mut().expect("looked at by the caller").tend_at = tend_at;
    }

    /// Who belongs to the group now.
    pub(super) fn on_members(&mut self, members: Vec<Member>, out: &mut Out) {
        let own = self.config.boot;
        let Some(group) = &mut self.neighbours else { return };
        group.tend_due = true;
        let others = members.into_iter().filter(|member| member.life != own);
        let told: BTreeMap<BootId, Member> = others.map(|member| (member.life, member)).collect();
        // Where somebody is now nobody was dialled; and who is told of any was let in, perhaps, since it said whom
        // it reaches.
        let moved = told.values().filter(|member| {
            let known = group.members.get(&member.life);
            known.is_some_and(|known| known.address != member.address)
        });
        let moved: Vec<BootId> = moved.map(|member| member.life).collect();
        group.dials.retain(|life, _| !moved.contains(life));
        if !told.is_empty() && !std::mem::replace(&mut group.named, true) && group.said.is_some() {
            group.reach_due |= !group.reached.is_empty();
            group.said = None;
        }
        group.kept.retain(|life| !told.contains_key(life) && group.reached.contains_key(life));
        // Several redirectors in a row may each name others.
        let over = group.kept.iter().nth(MEMBERS_MAX).copied();
        over.into_iter().for_each(|life| drop(group.kept.split_off(&life)));
        group.members.retain(|life, _| group.kept.contains(life));
        if !group.members.is_empty() {
            crate::probe::probe("neighbour-kept");
        }
        group.members.extend(told);
        self.part_from_others(out);
    }

    /// Whoever was kept and is no member here is none.
    fn keep_no_longer(&mut self, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        group.kept_until = None;
        let kept = std::mem::take(&mut group.kept);
        group.members.retain(|life, _| !kept.contains(life));
        self.part_from_others(out);
    }

    /// Ends all links to those who are no members.
    fn part_from_others(&mut self, out: &mut Out) {
        let Some(group) = &mut self.neighbours else { return };
        let members = &group.members;
        group.dials.retain(|life, _| members.contains_key(life));
        group.lost.retain(|life| members.contains_key(life));
        // All links to one: of two that cross the other would step in for the first.
        let is_gone = |peer: &Peer| peer.life.is_some_and(|life| !members.contains_key(&life));
        let gone = group.links.iter().filter(|(_, peer)| is_gone(peer));
        let gone: Vec<LinkId> = gone.map(|(link, _)| *link).collect();
        for link in gone {
            self.close_neighbour(link, CloseReason::Shutdown, out);
        }
    }
}

fn send(out: &mut Out, output: LinkOutput) {
    out.push(CacheOutput::Neighbour(NeighbourOutput::Link(output)));
}
