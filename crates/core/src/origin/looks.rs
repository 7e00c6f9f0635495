//! Requests of volumes that are not there, and were perhaps deleted so long ago that no domain's memory
//! has it: the page that stands for a volume is looked for in the page engines before a volume is made,
//! or its deletion is answered, under its id. Where no domain can have forgotten one nobody looks.

use super::domain::{Domain, Event};
use super::io::OriginOutput;
use super::{Origin, volumes};
use crate::downlink::Downlinks;
use crate::id::{DomainId, LinkId, RequestId, VolumeId};
use crate::message::{Message, RequestError, VolumeSpec};
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Volumes that are looked for at once because their deletion was asked for, and who may wait for one.
const DELETIONS_MAX: usize = 1024;
const ASKERS_MAX: usize = 64;

/// Who asked.
type Asker = (LinkId, RequestId);

/// What is wanted of a volume that is looked for.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Its deletion.
    Deletion(Asker),
    /// To make it, in this domain.
    Creation(DomainId),
}

/// A volume that is looked for.
#[derive(Debug, Default)]
struct Look {
    /// Domains that have not answered.
    left: BTreeSet<DomainId>,
    deleted: bool,
    /// Why somebody could not tell.
    error: Option<String>,
    deletions: Vec<Asker>,
    creation: Option<DomainId>,
}

/// Volumes that are looked for.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<VolumeId, Look>);

impl Looks {
    /// How many are looked for.
    #[cfg(feature = "faults")]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A link is gone.
    pub(super) fn gone(&mut self, link: LinkId) {
        for look in self.0.values_mut() {
            look.deletions.retain(|(asker, _)| *asker != link);
        }
    }

    /// Whether somebody more may wait for a deletion. Creations are bounded by the number of volumes.
    fn has_room(&self, volume: VolumeId) -> bool {
        match self.0.get(&volume) {
            Some(look) => look.deletions.len() < ASKERS_MAX,
            None => self.0.len() < DELETIONS_MAX,
        }
    }
}

impl Origin {
    /// Whether a volume is not there, and may have been deleted all the same.
    pub(super) fn is_forgotten_perhaps(&self, volume: VolumeId) -> bool {
        self.volumes.domain(volume).is_none()
            && self.volumes.being_made(volume).is_none()
            && !self.domains.values().any(|domain| domain.was_deleted(volume))
            && self.domains.values().any(Domain::may_have_forgotten)
    }

    /// Makes a volume that was admitted, if none of its id was deleted.
    pub(super) fn create(
        &mut self,
        now: Instant,
        (domain, spec): (DomainId, VolumeSpec),
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        if self.domains.values().any(Domain::may_have_forgotten) {
            let wanted = Wanted::Creation(domain);
            return self.look_for_deleted(now, spec.id, wanted, events, out);
        }
        self.with(now, domain, events, out, |domain, cx| domain.create_volume(cx, spec));
    }

    /// Has every domain look that may have forgotten it. One whose store has failed cannot: what it
    /// deleted long ago is not known then.
    pub(super) fn look_for_deleted(
        &mut self,
        now: Instant,
        volume: VolumeId,
        wanted: Wanted,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        if let Wanted::Deletion((link, request)) = wanted
            && !self.looks.has_room(volume)
        {
            let error = RequestError::Busy("many deleted volumes are looked for".into());
            return self.links.fail(link, request, error, out);
        }
        let asked = self.domains.values().filter(|domain| domain.may_have_forgotten());
        let asked: BTreeSet<DomainId> = asked.map(Domain::id).collect();
        let known = self.looks.0.contains_key(&volume);
        let look = self.looks.0.entry(volume).or_default();
        match wanted {
            Wanted::Deletion(asker) => look.deletions.push(asker),
            Wanted::Creation(domain) => look.creation = Some(domain),
        }
        if known {
            return;
        }
        look.left.clone_from(&asked);
        for domain in asked {
            self.with(now, domain, events, out, |domain, cx| domain.look_for_deleted(cx, volume));
        }
    }

    /// A domain has looked for a volume.
    pub(super) fn looked(
        &mut self,
        now: Instant,
        (domain, volume, found): (DomainId, VolumeId, Result<bool, String>),
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        let look = self.looks.0.get_mut(&volume).expect("kept until all have answered");
        assert!(look.left.remove(&domain), "a domain answers once");
        match found {
            Ok(deleted) => look.deleted |= deleted,
            Err(detail) => look.error = Some(detail),
        }
        if !look.left.is_empty() {
            return;
        }
        let look = self.looks.0.remove(&volume).expect("just seen");
        let error = look.error.map(|detail| {
            RequestError::Unavailable(format!("whether volume {volume} was deleted: {detail}"))
        });
        if let Some(domain) = look.creation {
            let name = self.volumes.being_made(volume).map(|spec| spec.name.clone());
            let deleted = name.filter(|_| look.deleted).map(RequestError::Deleted);
            self.go_on(now, (domain, volume), deleted.or_else(|| error.clone()), events, out);
        }
        for (link, request) in look.deletions {
            match &error {
                _ if look.deleted => deleted(&mut self.links, (link, request), volume, out),
                Some(error) => self.links.fail(link, request, error.clone(), out),
                None => {
                    let error = volumes::no_volume(&self.domains, volume);
                    self.links.fail(link, request, error, out);
                }
            }
        }
    }

    /// Makes a volume that was looked for, unless something is wrong with it.
    fn go_on(
        &mut self,
        now: Instant,
        (domain, volume): (DomainId, VolumeId),
        error: Option<RequestError>,
        events: &mut Vec<Event>,
        out: &mut Vec<OriginOutput>,
    ) {
        let serves = self.serves(domain);
        let error = error.or_else(|| (!serves).then_some(RequestError::NoDomain(domain)));
        if let Some(error) = error {
            return self.volumes.not_made(&mut self.links, volume, &error, out);
        }
        let Some(spec) = self.volumes.being_made(volume).cloned() else { return };
        self.with(now, domain, events, out, |domain, cx| domain.create_volume(cx, spec));
    }
}

fn deleted(
    links: &mut Downlinks,
    (link, request): Asker,
    volume: VolumeId,
    out: &mut Vec<OriginOutput>,
) {
    links.reply(link, Message::VolumeDeleted { request, volume }, out);
}
