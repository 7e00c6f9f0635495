//! The origin machine: the server that makes commits durable.
//!
//! [`Origin`] is the front: links, volumes' names, routing. Each order domain behind it is a
//! `domain::Domain` with a log and a page engine of its own. Nothing is shown to anyone before it
//! is durable (rule 14), and children are welcomed only when every domain's new epoch is.

mod config;
mod domain;
pub mod io;
mod looks;
mod peers;
#[cfg(feature = "faults")]
mod rest;
mod volumes;

pub use config::{OriginConfig, RecoverError, RecoveredDomain};

use crate::downlink::{Ask, COPY_RESERVED, Downlinks, ParentStatus};
use crate::id::{DomainId, LinkId, RequestId, VolumeId};
use crate::machine::Machine;
use crate::message::{CloseReason, Message, RequestError};
use crate::rights::Right;
use crate::time::{Instant, WallTime};
use domain::{Asker, Context, Domain, Event};
use io::{OriginInput, OriginOutput};
use looks::{Looks, Wanted};
pub use peers::PeerStatus;
use peers::Peers;
use std::collections::{BTreeMap, VecDeque};
use volumes::Volumes;

/// The server that makes commits durable: the front of one or more order domains.
#[derive(Debug)]
pub struct Origin {
    config: OriginConfig,
    links: Downlinks,
    domains: BTreeMap<DomainId, Domain>,
    volumes: Volumes,
    looks: Looks,
    peers: Peers,
    /// Lists of volumes go on then.
    list_at: Option<Instant>,
    wall: (WallTime, Instant),
}

impl Origin {
    /// Starts from what the domains' stores recovered. The outputs contain each domain's first
    /// append; children are welcomed when those are durable. Errors: the stores' content does not
    /// hang together.
    pub fn new(
        config: OriginConfig,
        now: Instant,
        wall: WallTime,
        domains: Vec<RecoveredDomain>,
        out: &mut Vec<OriginOutput>,
    ) -> Result<Self, RecoverError> {
        let mut origin = Self {
            links: Downlinks::new(config.downlink.clone(), config.faults),
            domains: BTreeMap::new(),
            volumes: Volumes::default(),
            looks: Looks::default(),
            peers: Peers::new(&config, &[]),
            list_at: None,
            wall: (wall, now),
            config,
        };
        for recovered in domains {
            let mut domain = Domain::recover(&origin.config, now, wall, recovered)?;
            origin.volumes.recovered(&mut domain, out)?;
            let id = domain.id();
            origin.links.add_volumes(id, domain.volumes().map(|(volume, _)| volume));
            domain.deleted_volumes().for_each(|volume| origin.links.delete_volume(volume));
            for (volume, _) in domain.volumes() {
                let (name, rights) = domain.rights(volume, &origin.config.access);
                origin.links.set_rights((id, volume), name, rights, RequestId(0));
            }
            if origin.domains.insert(id, domain).is_some() {
                return Err(RecoverError::Twice(format!("{id:?}")));
            }
        }
        let named: Vec<_> = origin.domains.values().filter_map(Domain::named_by_prepared).collect();
        origin.peers = Peers::new(&origin.config, &named);
        origin.settle(now, Vec::new(), out);
        Ok(origin)
    }

    /// What it does, for operators.
    #[must_use]
    pub fn status(&self) -> ParentStatus {
        let domains = self.domains.values().map(|d| (d.id(), d.is_open(), d.durable()));
        let mut status = self.links.status(domains);
        for domain in &mut status.domains {
            let here = self.domains.get(&domain.domain).expect("it was just named");
            (domain.removing_volumes, domain.removing_pages) = here.left_to_remove();
            domain.memory = Some(here.memory());
            domain.in_doubt = here.in_doubt();
        }
        status
    }

    /// Lets a domain work, with everything it needs beside itself.
    fn with<R>(
        &mut self,
        now: Instant,
        domain: DomainId,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
        work: impl FnOnce(&mut Domain, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let domain = self.domains.get_mut(&domain)?;
        let mut cx = Context { now, config: &self.config, links: &mut self.links, out, events };
        Some(work(domain, &mut cx))
    }

    /// Ends a step: what waits goes on, what the domains tell is seen to.
    fn settle(&mut self, now: Instant, mut events: Vec<Event>, out: &mut Vec<OriginOutput>) {
        let ids: Vec<DomainId> = self.domains.keys().copied().collect();
        loop {
            for &id in &ids {
                self.with(now, id, &mut events, out, |domain, cx| domain.settle(cx));
            }
            if self.pass_between(now, &mut events, out) {
                continue;
            }
            let Some(link) = self.links.take_freed() else { break };
            self.ask(now, link, Ask::Serve, &mut events, out);
        }
        self.volumes.list_on(&mut self.links, &self.domains, self.config.list_looks_max, out);
        self.list_at = self.volumes.is_listing().then_some(now);
        // Nobody above has to be told; their boots are unclaimed already.
        drop(self.links.take_left());
        let (mut events, mut said) = (VecDeque::from(events), Vec::new());
        while let Some(event) = events.pop_front() {
            match event {
                Event::VolumeMade(id) => {
                    let info = self.domains.values().find_map(|domain| domain.volume(id));
                    let info = info.expect("it was made");
                    self.links.add_volumes(info.domain, [id]);
                    let (name, rights) = self.domains[&info.domain].rights(id, &self.config.access);
                    self.links.set_first_rights(info.domain, id, name, rights);
                    self.volumes.made(&mut self.links, info, out);
                }
                Event::VolumeDeleted(id, name) => {
                    self.links.delete_volume(id);
                    self.volumes.deleted(id, &name);
                }
                Event::VolumeNotMade(id, detail) => {
                    let error = RequestError::Unavailable(detail);
                    self.volumes.not_made(&mut self.links, id, &error, out);
                }
                Event::VolumeUnsure(id, detail) => {
                    self.volumes.unsure(&mut self.links, id, &detail, out);
                }
                Event::Looked(domain, id, found) => {
                    let mut more = Vec::new();
                    self.looked(now, (domain, id, found), &mut more, out);
                    events.extend(more);
                }
                said_late @ Event::Between { .. } => said.push(said_late),
                Event::Ready => {
                    self.call_again(out);
                    self.welcome_held(now, out);
                    // What was said to it before is lost.
                    for &id in &ids {
                        self.with(now, id, &mut said, out, |domain, cx| domain.say_again(cx));
                    }
                }
                Event::Gone(link) => self.gone(link),
                Event::Waits | Event::Failed => self.welcome_held(now, out),
            }
        }
        self.tell_peers(now, out);
        if !said.is_empty() {
            self.settle(now, said, out);
        }
    }

    /// A domain serves. Children that were welcomed while its store was full were not told of it,
    /// and what they asked of it has failed: they are made to ask again.
    fn call_again(&mut self, out: &mut Vec<OriginOutput>) {
        let welcomed = self.links.iter().filter(|(_, link)| link.child().is_some());
        let welcomed: Vec<LinkId> = welcomed.map(|(id, _)| id).collect();
        for link in welcomed {
            let reason = CloseReason::OutOfService("a domain has come into service".into());
            self.links.close(link, reason, out);
            self.gone(link);
        }
    }

    fn gone(&mut self, link: LinkId) {
        for domain in self.domains.values_mut() {
            domain.gone(link);
        }
        self.volumes.gone(link);
        self.looks.gone(link);
    }

    /// Welcomes those who said hello, once every domain serves (or will not before long).
    fn welcome_held(&mut self, now: Instant, out: &mut Vec<OriginOutput>) {
        if self.domains.values().any(Domain::is_starting) {
            return;
        }
        for link in self.links.held() {
            let open = self.domains.values().filter(|domain| domain.is_open());
            let infos: Vec<_> = open.map(Domain::info).collect();
            if infos.is_empty() {
                let reason = CloseReason::OutOfService("no domain is in service".into());
                self.links.close(link, reason, out);
                continue;
            }
            let (wall, at) = self.wall;
            let since = u64::try_from(now.since(at).as_nanos()).unwrap_or(u64::MAX);
            let wall = WallTime(wall.0.saturating_add(since));
            self.links.welcome(link, wall, infos, out);
        }
    }

    fn ask(
        &mut self,
        now: Instant,
        link: LinkId,
        ask: Ask,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        match ask {
            Ask::For(name, ask) => self.ask_for(now, (link, Some(&name)), *ask, events, out),
            Ask::Greeted => self.welcome_held(now, out),
            Ask::Gone(link) => self.gone(link),
            Ask::Resume { request, domain, epochs, through } => {
                if !self.serves(domain) {
                    self.links.fail(link, request, RequestError::NoDomain(domain), out);
                    return;
                }
                self.with(now, domain, events, out, |domain, cx| {
                    domain.resume(cx, link, request, (&epochs, through));
                });
            }
            Ask::Register(register) => {
                // Not served now: asked again.
                let id = register.domain;
                if !self.serves(id) {
                    return;
                }
                let claim = self.links.claim(now, link, &register, out);
                for gone in claim.closed {
                    self.ask(now, gone, Ask::Gone(gone), events, out);
                }
                if claim.granted {
                    let replaced = claim.replaced;
                    self.with(now, id, events, out, |domain, cx| {
                        domain.register(cx, register, replaced);
                    });
                }
            }
            Ask::Serve => {
                for (domain, pace) in self.links.turns(link) {
                    self.with(now, domain, events, out, |domain, cx| {
                        domain.serve_pages(cx, link, pace);
                    });
                }
            }
            Ask::Pump => {
                for domain in self.links.streams(link) {
                    self.with(now, domain, events, out, |domain, cx| domain.pump(cx, link));
                }
            }
            Ask::Beat(domain, sent) => {
                self.with(now, domain, events, out, |domain, cx| domain.beat(cx, link, sent));
            }
            // It may have to hear what it may not hold.
            // It helps its children by itself.
            Ask::Member(_) => {}
            Ask::Narrowed(domain, _) => {
                self.with(now, domain, events, out, |domain, cx| domain.pump(cx, link));
            }
            Ask::Refresh(..) | Ask::Evicted(..) => {}
            Ask::Confirm(domain, boot, confirmed) => {
                self.with(now, domain, events, out, |domain, cx| {
                    domain.confirm(boot, &confirmed, cx.now);
                });
            }
            Ask::Commit(domain, commit) => {
                let id = commit.id;
                if !self.serves(domain) {
                    self.links.turn_away(link, domain, id, RequestError::NoDomain(domain), out);
                    return;
                }
                let parts = commit.across.iter().flat_map(|across| across.parts());
                let domains = parts.map(|part| part.domain);
                let mut elsewhere = domains.filter(|domain| !self.domains.contains_key(domain));
                let elsewhere =
                    elsewhere.find_map(|of| self.peers.why_not(of).map(|why| (of, why)));
                self.with(now, domain, events, out, |domain, cx| {
                    domain.commit(cx, link, commit, elsewhere);
                });
            }
            ask @ (Ask::AllocateIds(..)
            | Ask::OpenVolume(..)
            | Ask::ListVolumes(..)
            | Ask::CreateVolume(..)
            | Ask::ChangeVolume(..)
            | Ask::DeleteVolume(..)
            | Ask::CopyPages(..)
            | Ask::Rights(..)) => self.ask_for(now, (link, None), ask, events, out),
        }
    }

    /// What may be asked by a child for itself, or by a relay for somebody below it.
    fn ask_for(
        &mut self,
        now: Instant,
        (link, of): (LinkId, Option<&str>),
        ask: Ask,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        match ask {
            Ask::AllocateIds(request, volume, count) => {
                let asked = (link, of, Right::Write);
                let Some(domain) = self.served(asked, request, volume, out) else { return };
                self.with(now, domain, events, out, |domain, cx| {
                    domain.allocate(cx, link, request, volume, count);
                });
            }
            Ask::ChangeVolume(request, volume, change) => {
                let asked = (link, of, Right::Admin);
                let Some(domain) = self.served(asked, request, volume, out) else { return };
                let asker = self.asker(link, of);
                self.with(now, domain, events, out, |domain, cx| {
                    domain.change_volume(cx, (link, request), &asker, volume, &change);
                });
            }
            Ask::DeleteVolume(request, volume) => {
                if self.is_forgotten_perhaps(volume) {
                    let wanted = Wanted::Deletion((link, request));
                    return self.look_for_deleted(now, volume, wanted, events, out);
                }
                let asked = (link, of, Right::Admin);
                let Some(domain) = self.served_once(asked, request, volume, out) else { return };
                let asker = self.asker(link, of);
                self.with(now, domain, events, out, |domain, cx| {
                    domain.delete_volume(cx, (link, request), &asker, volume);
                });
            }
            Ask::CopyPages(request, ask) => {
                let asked = (link, of, Right::Read);
                let Some(domain) = self.served(asked, request, ask.volume, out) else {
                    return self.links.unreserve(link, COPY_RESERVED);
                };
                self.with(now, domain, events, out, |domain, cx| {
                    domain.copy(cx, (link, request), of, ask);
                });
            }
            Ask::Rights(request, volume) => {
                let asked = (link, of, Right::Admin);
                let Some(domain) = self.served(asked, request, volume, out) else { return };
                let rights = self.domains[&domain].rights_said(volume).cloned();
                let rights = rights.expect("it is served");
                let access = self.config.access.clone();
                self.links.reply(link, Message::Rights { request, rights, access }, out);
            }
            Ask::OpenVolume(request, key) => {
                let asker = (link, request);
                self.volumes.open(&mut self.links, &self.domains, asker, of, &key, out);
            }
            Ask::ListVolumes(request, after) => {
                let asker = (link, request);
                self.volumes.list(&mut self.links, asker, (of, after), out);
            }
            Ask::CreateVolume(request, spec) => {
                if let Err(error) = self.may_create(link, of) {
                    return self.links.fail(link, request, error, out);
                }
                let domains = &self.domains;
                let volumes_max = self.config.volumes_max;
                let asker = ((link, request), of);
                let made =
                    self.volumes.create(&mut self.links, domains, asker, spec, volumes_max, out);
                if let Some((domain, spec)) = made {
                    self.create(now, (domain, spec), events, out);
                }
            }
            // Its stream is the relay's.
            other => self.ask(now, link, other, events, out),
        }
    }

    /// The domain of a volume that is there, or was deleted, if it serves; else the asker is told.
    fn served_once(
        &mut self,
        asked: (LinkId, Option<&str>, Right),
        request: RequestId,
        volume: VolumeId,
        out: &mut Vec<OriginOutput>,
    ) -> Option<DomainId> {
        let mut deleted = self.domains.values().filter(|domain| domain.was_deleted(volume));
        match deleted.next().map(Domain::id) {
            Some(domain) if self.serves(domain) => Some(domain),
            _ => self.served(asked, request, volume, out),
        }
    }

    fn asker(&self, link: LinkId, of: Option<&str>) -> Asker {
        let relay = self.links.relay_of(link).filter(|_| of.is_some());
        Asker { name: self.links.asker(link, of).to_owned(), relay: relay.map(str::to_owned) }
    }

    /// Whether volumes may be made over a link, by its own child or by somebody below.
    fn may_create(&self, link: LinkId, of: Option<&str>) -> Result<(), RequestError> {
        let who = [self.links.asker(link, of), self.links.asker(link, None)];
        match who.into_iter().find(|who| !self.config.access.may_create(who)) {
            None => Ok(()),
            Some(who) => Err(RequestError::Forbidden(format!(
                "{who} may not make volumes: the origin's setting `origin.admins` names who may"
            ))),
        }
    }

    /// The domain of a volume that is asked for, if it serves and so much may be done with it; else
    /// the asker is told.
    fn served(
        &mut self,
        (link, of, needs): (LinkId, Option<&str>, Right),
        request: RequestId,
        volume: VolumeId,
        out: &mut Vec<OriginOutput>,
    ) -> Option<DomainId> {
        let error = match self.volumes.domain(volume) {
            Some(domain) if self.serves(domain) => {
                match self.links.check_right(link, of, volume, needs) {
                    Ok(()) => return Some(domain),
                    Err(denied) => RequestError::Denied(denied),
                }
            }
            Some(domain) => RequestError::NoDomain(domain),
            None => self.no_volume(volume),
        };
        self.links.fail(link, request, error, out);
        None
    }

    /// What is wrong with a volume that is in no domain.
    fn no_volume(&self, volume: VolumeId) -> RequestError {
        volumes::no_volume(&self.domains, volume)
    }

    fn serves(&self, domain: DomainId) -> bool {
        self.domains.get(&domain).is_some_and(Domain::is_open)
    }
}

impl Machine for Origin {
    type Input = OriginInput;
    type Output = OriginOutput;

    fn handle(&mut self, now: Instant, input: OriginInput, out: &mut Vec<OriginOutput>) {
        let mut events = Vec::new();
        match input {
            OriginInput::Link(input) => {
                for (link, ask) in self.links.handle(now, input, out) {
                    self.ask(now, link, ask, &mut events, out);
                }
            }
            OriginInput::Peer(input) => self.peer(now, input, &mut events, out),
            OriginInput::WallClock(wall) => {
                self.wall = (wall, now);
                for domain in self.domains.values_mut() {
                    domain.set_wall(wall, now);
                }
            }
            OriginInput::Room { domain, bytes } => {
                if let Some(domain) = self.domains.get_mut(&domain) {
                    domain.set_room(bytes);
                }
            }
            OriginInput::Appended { domain, write, result } => {
                self.with(now, domain, &mut events, out, |domain, cx| {
                    domain.appended(cx, write, result);
                });
            }
            OriginInput::Loaded { domain, load, result } => {
                self.with(now, domain, &mut events, out, |domain, cx| {
                    domain.loaded(cx, load, result);
                });
            }
            OriginInput::Installed { domain, write, result } => {
                self.with(now, domain, &mut events, out, |domain, cx| {
                    domain.installed(cx, write, result);
                });
            }
        }
        self.settle(now, events, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<OriginOutput>) {
        let mut events = Vec::new();
        let (gone, quiet) = self.links.timeouts(now, out);
        for link in gone {
            self.ask(now, link, Ask::Gone(link), &mut events, out);
        }
        for link in quiet {
            self.ask(now, link, Ask::Pump, &mut events, out);
        }
        self.peers.timeouts(now, out);
        let ids: Vec<DomainId> = self.domains.keys().copied().collect();
        for id in ids {
            self.with(now, id, &mut events, out, |domain, cx| domain.enforce_limits(cx));
        }
        self.settle(now, events, out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let domains = self.domains.values().filter_map(Domain::next_timeout);
        let links = self.links.next_timeout().into_iter().chain(self.peers.next_timeout());
        domains.chain(links).chain(self.list_at).min()
    }

    fn check(&self) {
        self.links.check();
        self.peers.check();
        for domain in self.domains.values() {
            domain.check(&self.config, &self.links);
        }
    }
}
