//! Links to other origins, over which domains of transactions over several origins hear each other (decision 0038).
//!
//! Nothing waits for an answer on such a link, and nothing of an origin's own waits for another: what cannot be sent is
//! lost, and said again. Which domain is where is what the peers say, each with its line: one whose line lacks the history that
//! was said last, or left it before the last stamp that was told on what it said, is a copy that was restored from before, and is
//! not heard (P12), unless its origin serves on all the same (`accept_fork`). Never of one that is here. What is known is lost
//! with the process, but for the histories that what is prepared names: who decides that must have them.

use super::domain::Event;
use super::io::{OriginOutput, PeerInput};
use super::{Origin, OriginConfig};
use crate::across::{Between, ORIGINS_SINCE, OriginMessage};
use crate::id::{DomainId, HistoryId, LinkId, Stamp};
use crate::machine::{Fault, Faults, LinkOutput};
use crate::message::{
    CloseReason, DOMAINS_MAX, DomainInfo, EPOCHS_MAX, Epoch, Message, RequestError, Versions,
};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Within the time after which a silent link is given up so many times something is said.
const BEATS: u32 = 3;
/// And each second at least.
const BEAT_MAX: Duration = Duration::from_secs(1);
/// What was lost is said again as often at most because a peer says something of its domains.
const AGAIN_MIN: Duration = Duration::from_millis(100);

/// What is known of another origin, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Links to it on which both have said who they are.
    pub links: usize,
    /// The domains that were said to be there last, ascending.
    pub domains: Vec<DomainId>,
    /// Those that it has, and whose line lacks what was said last, or that are elsewhere: copies. They are not heard.
    pub forked: Vec<DomainId>,
}

#[derive(Debug)]
struct Peer {
    name: String,
    dialed: bool,
    greeted: bool,
    accepts_fork: bool,
    /// The domains that it has; none: it has not said.
    has: Option<BTreeMap<DomainId, Served>>,
    /// When what is lost was said again last because of it.
    again_at: Option<Instant>,
    opened: Instant,
    heard: Instant,
    said: Instant,
}

/// How a domain is had at a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    /// In this history, by what was said over this link.
    Now(HistoryId),
    NotNow,
    Forked,
}

/// Where a domain was last, and in which history: none, if it was not served since.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Home {
    /// None: something that is prepared here names it.
    name: Option<String>,
    known: Option<Known>,
    /// When its history was another one last.
    since: Instant,
}

/// A history of a domain elsewhere, and the last stamp of it that was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    history: HistoryId,
    through: Stamp,
}

impl Home {
    fn is(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }

    /// Whether it is what a link of this origin says that is served in a history.
    fn is_served(&self, name: &str, served: Option<&Served>) -> bool {
        let known = self.known.map(|known| known.history);
        self.is(name) && known.is_some_and(|known| served == Some(&Served::Now(known)))
    }

    /// Whether a line goes on from what is known. Of a full one that may have fallen off its front.
    fn is_on(&self, line: &[Epoch]) -> bool {
        let Some(Known { history, through }) = self.known else { return true };
        match line.iter().position(|epoch| epoch.history == history) {
            Some(at) => line.get(at + 1).is_none_or(|next| next.first > through),
            None => line.len() == EPOCHS_MAX && line[0].first > through,
        }
    }

    /// What is known once the domain goes on by this line.
    fn known_of(&self, line: &[Epoch]) -> Option<Known> {
        let Some(Epoch { history, first }) = line.last().copied() else { return self.known };
        let known = self.known.filter(|_| self.is_on(line));
        let through = known.map_or(Stamp::ZERO, |known| known.through).max(first.previous());
        Some(Known { history, through })
    }
}

/// The links to other origins.
#[derive(Debug)]
pub(super) struct Peers {
    names: BTreeSet<String>,
    links: BTreeMap<LinkId, Peer>,
    homes: BTreeMap<DomainId, Home>,
    /// The domains that are here, as all were told.
    told: Vec<DomainInfo>,
    versions: Versions,
    own: String,
    accepts_fork: bool,
    faults: Faults,
    hello_max: Duration,
    silence_max: Duration,
}

/// What a peer said that concerns the domains here.
enum Heard {
    /// What domains it has, and that has changed.
    Serves,
    /// What a domain of its own says to one of these.
    Says { from: DomainId, to: DomainId, between: Between },
}

fn violation<T>(what: &str) -> Result<T, CloseReason> {
    Err(CloseReason::Protocol(what.into()))
}

impl Peers {
    /// `named`: who decides what is prepared here, each in the history of its attempt.
    pub(super) fn new(config: &OriginConfig, named: &[(DomainId, HistoryId)]) -> Self {
        let home = |(domain, history): &(DomainId, HistoryId)| {
            let known = Known { history: *history, through: Stamp::ZERO };
            (*domain, Home { name: None, known: Some(known), since: Instant(0) })
        };
        let (accepts_fork, faults) = (config.accept_fork, config.faults);
        let (peers, config) = (&config.peers, &config.downlink);
        Self {
            names: peers.iter().cloned().collect(),
            links: BTreeMap::new(),
            homes: named.iter().map(home).collect(),
            accepts_fork,
            faults,
            told: Vec::new(),
            versions: config.versions,
            own: config.name.clone(),
            hello_max: config.hello_max,
            silence_max: config.silence_max,
        }
    }

    /// Whether another history than that of this link is served, elsewhere or by another process of its name, and this one
    /// still speaks: the link of a process that has ended is silent from when the next one has begun, and is given up before.
    fn lives_beside(&self, home: &Home, peer: &Peer) -> bool {
        !home.is(&peer.name) || peer.heard > home.since.after(self.silence_max)
    }

    pub(super) fn status(&self) -> Vec<PeerStatus> {
        let of = |name: &String| {
            let links = || self.links.values().filter(|peer| peer.greeted && peer.name == *name);
            let homes = self.homes.iter().filter(|(_, home)| home.is(name));
            let has = links().flat_map(|peer| peer.has.iter().flatten().map(move |it| (it, peer)));
            let is_copy = |((domain, served), peer): &((&DomainId, &Served), &Peer)| match served {
                Served::Forked => true,
                Served::Now(_) => {
                    let home = self.homes.get(domain);
                    home.is_some_and(|home| {
                        !home.is_served(name, Some(served)) && self.lives_beside(home, peer)
                    })
                }
                Served::NotNow => false,
            };
            let forked: BTreeSet<DomainId> = has.filter(is_copy).map(|((id, _), _)| *id).collect();
            PeerStatus {
                name: name.clone(),
                links: links().count(),
                domains: homes.map(|(domain, _)| *domain).collect(),
                forked: forked.into_iter().collect(),
            }
        };
        self.names.iter().map(of).collect()
    }

    fn opened(
        &mut self,
        now: Instant,
        link: LinkId,
        (name, dialed): (String, bool),
        out: &mut Vec<OriginOutput>,
    ) {
        if !self.names.contains(&name) {
            let reason = CloseReason::Forbidden(format!(
                "{name} is not a peer of this origin: list it in `origin.peers`"
            ));
            return out.push(OriginOutput::Link(LinkOutput::Close { link, reason }));
        }
        // The same line anew: of one that is gone without a word nobody may have heard yet.
        let same = |peer: &Peer| peer.name == name && peer.dialed == dialed;
        let before: Vec<LinkId> =
            self.links.iter().filter(|(_, peer)| same(peer)).map(|(link, _)| *link).collect();
        for link in before {
            let reason = CloseReason::OutOfService("a newer link takes its place".into());
            self.close(link, reason, out);
        }
        let peer = Peer {
            name,
            dialed,
            greeted: false,
            accepts_fork: false,
            has: None,
            again_at: None,
            opened: now,
            heard: now,
            said: now,
        };
        self.links.insert(link, peer);
        let (versions, name) = (self.versions, self.own.clone());
        let greets = OriginMessage::Greets { versions, name, accept_fork: self.accepts_fork };
        self.say(now, link, Message::Origin(greets), out);
        let serves = OriginMessage::Serves { domains: self.told.clone() };
        self.say(now, link, Message::Origin(serves), out);
    }

    fn close(&mut self, link: LinkId, reason: CloseReason, out: &mut Vec<OriginOutput>) {
        if self.links.remove(&link).is_some() {
            out.push(OriginOutput::Link(LinkOutput::Close { link, reason }));
        }
    }

    fn say(&mut self, now: Instant, link: LinkId, message: Message, out: &mut Vec<OriginOutput>) {
        if let Some(peer) = self.links.get_mut(&link) {
            peer.said = now;
            out.push(OriginOutput::Link(LinkOutput::Send { link, message }));
        }
    }

    fn received(
        &mut self,
        now: Instant,
        link: LinkId,
        message: Message,
        is_here: impl Fn(DomainId) -> bool,
    ) -> Result<Option<Heard>, CloseReason> {
        let Some(peer) = self.links.get_mut(&link) else { return Ok(None) };
        peer.heard = now;
        let message = match message {
            Message::Goodbye { reason } => return Err(reason),
            Message::KeepAlive => return Ok(None),
            Message::Origin(message) => message,
            _ => return violation("a message that no origin sends to another"),
        };
        match message {
            OriginMessage::Greets { .. } if peer.greeted => violation("a second greeting"),
            OriginMessage::Greets { versions, name, accept_fork } => {
                let since = Versions { oldest: ORIGINS_SINCE, ..self.versions };
                if since.common(versions).is_none() {
                    return Err(CloseReason::Version { parent: since, child: versions });
                }
                if name != peer.name {
                    return Err(CloseReason::Forbidden(format!(
                        "the certificate names {}, the origin calls itself {name}",
                        peer.name
                    )));
                }
                (peer.greeted, peer.accepts_fork) = (true, accept_fork);
                Ok(None)
            }
            _ if !peer.greeted => violation("a message before the greeting"),
            OriginMessage::Serves { domains } => {
                let (name, before) = (peer.name.clone(), peer.has.take());
                let accepts_fork = peer.accepts_fork;
                let has = self.moved(now, (&name, accepts_fork), domains, is_here);
                let peer = self.links.get_mut(&link).expect("looked up above");
                let same = before.as_ref() == Some(&has);
                peer.has = Some(has);
                if same || peer.again_at.is_some_and(|at| at.after(AGAIN_MIN) > now) {
                    return Ok(None);
                }
                peer.again_at = Some(now);
                Ok(Some(Heard::Serves))
            }
            OriginMessage::Says { from, to, through, between } => {
                let served = peer.has.as_ref().and_then(|has| has.get(&from)).copied();
                let Some(served) = served.filter(|_| is_here(to)) else {
                    return violation(
                        "a domain speaks that is not there, or to one that is not here",
                    );
                };
                // Not what a copy says that was restored from before, nor who had it before it was moved.
                let home = self.homes.get_mut(&from);
                let home = home.filter(|home| home.is_served(&peer.name, Some(&served)));
                let Some(home) = home else { return Ok(None) };
                if let Some(known) = &mut home.known {
                    known.through = known.through.max(through);
                }
                Ok(Some(Heard::Says { from, to, between }))
            }
        }
    }

    /// A peer has said which domains it has. What was said before is remembered, as far as there is room: they are
    /// somewhere, if out of service.
    fn moved(
        &mut self,
        now: Instant,
        (name, accepts_fork): (&str, bool),
        domains: Vec<DomainInfo>,
        is_here: impl Fn(DomainId) -> bool,
    ) -> BTreeMap<DomainId, Served> {
        let mut has = BTreeMap::new();
        for DomainInfo { domain, epochs } in domains {
            if is_here(domain) {
                // A copy of what is here.
                has.insert(domain, Served::Forked);
                continue;
            }
            let home = self.homes.get(&domain);
            let unknown = home.is_none_or(|home| home.name.is_none());
            // A loss is accepted by who had it, and by nobody who has an old copy of what is elsewhere now.
            let accepts = accepts_fork && (unknown || home.is_some_and(|home| home.is(name)));
            let served = match (epochs.last(), home) {
                (None, _) => Served::NotNow,
                (Some(_), Some(home))
                    if !home.is_on(&epochs) && !accepts && !self.faults.has(Fault::CopyHeard) =>
                {
                    crate::probe::probe("another-origins-domain-forked");
                    Served::Forked
                }
                (Some(last), _) => Served::Now(last.history),
            };
            if matches!(served, Served::Now(_)) || served == Served::NotNow && unknown {
                let nobody = Home { name: None, known: None, since: now };
                let before = home.unwrap_or(&nobody);
                let known = before.known_of(&epochs);
                let same = before.known.zip(known).is_some_and(|(a, b)| a.history == b.history);
                let since = if same { before.since } else { now };
                self.homes.insert(domain, Home { name: Some(name.to_owned()), known, since });
            }
            has.insert(domain, served);
        }
        // Of those that it had before as many are remembered as it may have.
        let left = |(domain, home): &(&DomainId, &Home)| home.is(name) && !has.contains_key(domain);
        let left = self.homes.iter().filter(left).map(|(domain, _)| *domain).skip(DOMAINS_MAX);
        for domain in left.collect::<Vec<_>>() {
            self.homes.remove(&domain);
        }
        has
    }

    /// The link over which a domain is reached: the newest of those to where it was served last.
    fn way_to(&self, domain: DomainId) -> Option<LinkId> {
        let home = self.homes.get(&domain)?;
        let serves = |peer: &Peer| {
            let served = peer.has.as_ref().and_then(|has| has.get(&domain));
            peer.greeted && home.is_served(&peer.name, served)
        };
        let ways = self.links.iter().filter(|(_, peer)| serves(peer));
        ways.max_by_key(|(link, peer)| (peer.opened, **link)).map(|(link, _)| *link)
    }

    /// Why a domain that is not of this origin is not reached; none: it is.
    pub(super) fn why_not(&self, domain: DomainId) -> Option<RequestError> {
        if self.way_to(domain).is_some() {
            return None;
        }
        let number = domain.0;
        let is_there = |name: &String| {
            self.links.values().any(|peer| peer.name == *name && peer.has.is_some())
        };
        let home = self.homes.get(&domain);
        let copies = self.links.values().filter(|peer| {
            let is_home = home.is_none_or(|home| home.name.is_none() || home.is(&peer.name));
            let served = peer.has.as_ref().and_then(|has| has.get(&domain));
            is_home && served == Some(&Served::Forked)
        });
        if let Some(copy) = copies.map(|peer| &peer.name).next() {
            let error = format!(
                "what the origin {copy} has of domain {number} was restored from before, and is not heard"
            );
            return Some(RequestError::Unavailable(error));
        }
        if let Some(name) = home.and_then(|home| home.name.as_ref()) {
            let why = match is_there(name) {
                true => "which does not serve it now",
                false => "which is not connected",
            };
            let error = format!("domain {number} is of the origin {name}, {why}");
            return Some(RequestError::Unavailable(error));
        }
        let away: Vec<&str> =
            self.names.iter().filter(|name| !is_there(name)).map(String::as_str).collect();
        Some(match away.is_empty() {
            true => RequestError::Invalid(format!(
                "domain {number} is not of this origin, nor of one that is listed in `origin.peers`"
            )),
            false => RequestError::Unavailable(format!(
                "domain {number} is not of this origin, and may be of {}, not connected",
                away.join(", ")
            )),
        })
    }

    /// Passes on what a domain here says to one elsewhere; lost where that is not reached.
    fn pass(
        &mut self,
        now: Instant,
        (from, to): (DomainId, DomainId),
        through: Stamp,
        between: Between,
        out: &mut Vec<OriginOutput>,
    ) {
        match self.way_to(to) {
            Some(link) => {
                let says = OriginMessage::Says { from, to, through, between };
                self.say(now, link, Message::Origin(says), out);
            }
            None => crate::probe::probe("said-to-a-domain-out-of-reach"),
        }
    }

    /// Tells all which domains are here, if something of that is other than they were told.
    fn tell(&mut self, now: Instant, domains: Vec<DomainInfo>, out: &mut Vec<OriginOutput>) {
        if domains == self.told || self.faults.has(Fault::PeersUntold) && !self.told.is_empty() {
            return;
        }
        self.told = domains;
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            let serves = OriginMessage::Serves { domains: self.told.clone() };
            self.say(now, link, Message::Origin(serves), out);
        }
    }

    /// Ends links on which nothing is heard, and says something on those that would be quiet.
    pub(super) fn timeouts(&mut self, now: Instant, out: &mut Vec<OriginOutput>) {
        let late: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, peer)| self.ends(peer) <= now)
            .map(|(link, _)| *link)
            .collect();
        for link in late {
            self.close(link, CloseReason::Silent, out);
        }
        let pause = (self.silence_max / BEATS).min(BEAT_MAX);
        let quiet = self.links.iter().filter(|(_, peer)| peer.said.after(pause) <= now);
        for link in quiet.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.say(now, link, Message::KeepAlive, out);
        }
    }

    fn ends(&self, peer: &Peer) -> Instant {
        let silent = peer.heard.after(self.silence_max);
        match peer.has {
            Some(_) => silent,
            None => silent.min(peer.opened.after(self.hello_max)),
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let pause = (self.silence_max / BEATS).min(BEAT_MAX);
        self.links.values().map(|peer| self.ends(peer).min(peer.said.after(pause))).min()
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        for peer in self.links.values() {
            assert!(self.names.contains(&peer.name), "a link to an origin that is not listed");
            assert!(peer.greeted || peer.has.is_none(), "domains of a nameless origin");
        }
        for name in &self.names {
            let of = self.homes.values().filter(|home| home.is(name)).count();
            assert!(of <= 2 * DOMAINS_MAX, "more domains are remembered than {name} may have");
        }
    }
}

impl Origin {
    /// The other origins, by name.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.peers.status()
    }

    /// Tells others which domains are here: before these say anything.
    pub(super) fn tell_peers(&mut self, now: Instant, out: &mut Vec<OriginOutput>) {
        if self.peers.names.is_empty() {
            return;
        }
        let infos = self.domains.values().map(|domain| match domain.is_open() {
            true => domain.info(),
            false => DomainInfo { domain: domain.id(), epochs: Vec::new() },
        });
        self.peers.tell(now, infos.collect(), out);
    }

    pub(super) fn peer(
        &mut self,
        now: Instant,
        input: PeerInput,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        let (link, message) = match input {
            PeerInput::Opened { link, peer, dialed } => {
                return self.peers.opened(now, link, (peer, dialed), out);
            }
            PeerInput::Closed { link, .. } => {
                self.peers.links.remove(&link);
                return;
            }
            PeerInput::Received { link, message } => (link, message),
        };
        let domains = &self.domains;
        match self.peers.received(now, link, message, |domain| domains.contains_key(&domain)) {
            Ok(None) => {}
            Ok(Some(Heard::Serves)) => {
                // What was said before, to a domain that was not reached, is lost.
                let ids: Vec<DomainId> = self.domains.keys().copied().collect();
                for id in ids {
                    self.with(now, id, events, out, |domain, cx| domain.say_again(cx));
                }
            }
            Ok(Some(Heard::Says { from, to, between })) => {
                if self.serves(to) {
                    self.with(now, to, events, out, |domain, cx| domain.between(cx, from, between));
                }
            }
            Err(reason) => self.peers.close(link, reason, out),
        }
    }

    /// Passes on what domains say to each other, in order; says whether there was anything. What is said to one
    /// that does not serve, or is not reached, is lost, and said again.
    pub(super) fn pass_between(
        &mut self,
        now: Instant,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) -> bool {
        let is_said = |event: &mut Event| matches!(event, Event::Between { .. });
        let said: Vec<Event> = events.extract_if(.., is_said).collect();
        let any = !said.is_empty();
        self.tell_peers(now, out);
        for event in said {
            let Event::Between { from, to, between } = event else { continue };
            if !self.domains.contains_key(&to) {
                let early = self.config.faults.has(Fault::PeerToldEarly);
                let domain = &self.domains[&from];
                let through = if early { domain.stamped() } else { domain.durable() };
                self.peers.pass(now, (from, to), through, between, out);
            } else if self.serves(to) {
                self.with(now, to, events, out, |domain, cx| domain.between(cx, from, between));
            }
        }
        any
    }
}
