//! The origin's volumes: names are unique over all its domains.

use super::domain::Domain;
use super::io::OriginOutput;
use super::{BTreeMap, RecoverError};
use crate::downlink::Downlinks;
use crate::id::{DomainId, LinkId, RequestId, VolumeId};
use crate::message::{Message, RequestError, VolumeInfo, VolumeKey, VolumeSpec};
use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::rights::Right;

/// Most volumes in one answer.
const LIST_MAX: usize = 256;
/// Longest name of a volume.
const NAME_BYTES_MAX: usize = 128;

/// Who asked.
type Asker = (LinkId, RequestId);

/// A volume being made.
#[derive(Debug)]
struct Making {
    spec: VolumeSpec,
    askers: Vec<Asker>,
    /// Whether it was made shows at the next start only: why.
    unsure: Option<String>,
}

/// A volume as somebody sees it: with his own right.
fn seen(links: &mut Downlinks, link: LinkId, of: Option<&str>, info: VolumeInfo) -> VolumeInfo {
    let right = Some(links.right(link, of, info.id));
    VolumeInfo { right, ..info }
}

/// Names and ids of all volumes.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    names: BTreeMap<String, VolumeId>,
    domains: BTreeMap<VolumeId, DomainId>,
    making: BTreeMap<VolumeId, Making>,
}

/// What is wrong with a volume that is in no domain.
pub(super) fn no_volume(domains: &BTreeMap<DomainId, Domain>, id: VolumeId) -> RequestError {
    let deleted = domains.values().find(|domain| domain.was_deleted(id));
    deleted.map_or_else(|| RequestError::NoVolume(id.to_string()), |domain| domain.no_volume(id))
}

impl Volumes {
    /// Takes over a recovered domain's volumes.
    pub(super) fn recovered(&mut self, domain: &Domain) -> Result<(), RecoverError> {
        for (id, name) in domain.volumes() {
            let twice = self.names.insert(name.into(), id).is_some()
                || self.domains.insert(id, domain.id()).is_some();
            if twice {
                return Err(RecoverError::Twice(format!("volume {name}")));
            }
        }
        Ok(())
    }

    pub(super) fn domain(&self, id: VolumeId) -> Option<DomainId> {
        self.domains.get(&id).copied()
    }

    fn info(&self, domains: &BTreeMap<DomainId, Domain>, id: VolumeId) -> Option<VolumeInfo> {
        domains.get(self.domains.get(&id)?)?.volume(id)
    }

    pub(super) fn open(
        &self,
        links: &mut Downlinks,
        domains: &BTreeMap<DomainId, Domain>,
        (link, request): Asker,
        of: Option<&str>,
        key: &VolumeKey,
        out: &mut Vec<OriginOutput>,
    ) {
        let id = match key {
            VolumeKey::Name(name) => self.names.get(name).copied(),
            VolumeKey::Id(id) => Some(*id),
        };
        match id.and_then(|id| self.info(domains, id)) {
            Some(info) => match links.check_right(link, of, info.id, Right::Read) {
                Ok(()) => {
                    let info = seen(links, link, of, info);
                    links.reply(link, Message::Volume { request, info }, out);
                }
                Err(denied) => links.fail(link, request, RequestError::Denied(denied), out),
            },
            None => {
                let error = match key {
                    VolumeKey::Name(name) => RequestError::NoVolume(name.clone()),
                    VolumeKey::Id(id) => no_volume(domains, *id),
                };
                links.fail(link, request, error, out);
            }
        }
    }

    pub(super) fn list(
        &self,
        links: &mut Downlinks,
        domains: &BTreeMap<DomainId, Domain>,
        (link, request): Asker,
        of: Option<&str>,
        after: &str,
        out: &mut Vec<OriginOutput>,
    ) {
        use std::ops::Bound::{Excluded, Unbounded};
        // What the asker may not read is not there.
        let rest = self.names.range::<str, _>((Excluded(after), Unbounded)).map(|(_, id)| *id);
        let mut rest = rest.filter(|id| links.right(link, of, *id) >= Right::Read);
        let listed: Vec<VolumeId> = rest.by_ref().take(LIST_MAX).collect();
        let more = rest.next().is_some();
        let infos = listed.into_iter().filter_map(|id| self.info(domains, id));
        let volumes: Vec<VolumeInfo> = infos.map(|info| seen(links, link, of, info)).collect();
        let message = Message::Volumes { request, volumes, more };
        links.reply(link, message, out);
    }

    /// Begins to make a volume, or answers at once. Gives what its domain has to make.
    pub(super) fn create(
        &mut self,
        links: &mut Downlinks,
        domains: &BTreeMap<DomainId, Domain>,
        (asker, of): (Asker, Option<&str>),
        spec: VolumeSpec,
        volumes_max: usize,
        out: &mut Vec<OriginOutput>,
    ) -> Option<(DomainId, VolumeSpec)> {
        let (link, request) = asker;
        if let Some(info) = self.info(domains, spec.id) {
            // Asked again: one volume, whatever was lost on the way.
            if info.name == spec.name && info.page_bytes == spec.page_bytes {
                let info = seen(links, link, of, info);
                links.reply(link, Message::Volume { request, info }, out);
            } else {
                links.fail(link, request, RequestError::Exists(info.name), out);
            }
            return None;
        }
        if let Some(making) = self.making.get_mut(&spec.id) {
            if let Some(detail) = &making.unsure {
                let error = RequestError::Unavailable(detail.clone());
                links.fail(link, request, error, out);
            } else if making.spec == spec {
                making.askers.push(asker);
            } else {
                let error = RequestError::Exists(making.spec.name.clone());
                links.fail(link, request, error, out);
            }
            return None;
        }
        let domain = match self.admit(domains, &spec, volumes_max) {
            Ok(domain) => domain,
            Err(error) => {
                links.fail(link, request, error, out);
                return None;
            }
        };
        let making = Making { spec: spec.clone(), askers: vec![asker], unsure: None };
        self.names.insert(spec.name.clone(), spec.id);
        self.making.insert(spec.id, making);
        Some((domain, spec))
    }

    /// Whether a volume may be made, and in which domain.
    fn admit(
        &self,
        domains: &BTreeMap<DomainId, Domain>,
        spec: &VolumeSpec,
        volumes_max: usize,
    ) -> Result<DomainId, RequestError> {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if spec.name.is_empty()
            || spec.name.len() > NAME_BYTES_MAX
            || !spec.name.chars().all(letter)
        {
            return Err(RequestError::Invalid(format!(
                "a volume's name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.'"
            )));
        }
        let fits = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&spec.page_bytes);
        if !fits || !spec.page_bytes.is_power_of_two() {
            return Err(RequestError::Invalid(format!(
                "a page has a power of two from {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX} bytes"
            )));
        }
        if domains.values().any(|domain| domain.was_deleted(spec.id)) {
            // The request was repeated, and somebody has deleted what it made meanwhile.
            return Err(RequestError::Deleted(spec.name.clone()));
        }
        if self.names.contains_key(&spec.name) {
            return Err(RequestError::Exists(spec.name.clone()));
        }
        if self.domains.len() + self.making.len() >= volumes_max {
            return Err(RequestError::Busy(format!("{volumes_max} volumes are there")));
        }
        let open = domains.values().filter(|domain| domain.is_open());
        match spec.domain {
            Some(id) => {
                let mut open = open.map(Domain::id);
                open.find(|domain| *domain == id).ok_or(RequestError::NoDomain(id))
            }
            None => open
                .min_by_key(|domain| (domain.volume_count(), domain.id()))
                .map(Domain::id)
                .ok_or_else(|| RequestError::Unavailable("no domain is in service".into())),
        }
    }

    /// A volume is durable.
    pub(super) fn made(
        &mut self,
        links: &mut Downlinks,
        info: VolumeInfo,
        out: &mut Vec<OriginOutput>,
    ) {
        let making = self.making.remove(&info.id).expect("it was being made");
        self.domains.insert(info.id, info.domain);
        // Whoever may make a volume may do everything with each.
        let info = VolumeInfo { right: Some(Right::Admin), ..info };
        for (link, request) in making.askers {
            let info = info.clone();
            links.reply(link, Message::Volume { request, info }, out);
        }
    }

    /// A volume was deleted: its name is free.
    pub(super) fn deleted(&mut self, id: VolumeId, name: &str) {
        self.domains.remove(&id);
        if self.names.get(name) == Some(&id) {
            self.names.remove(name);
        }
    }

    /// A volume could not be made.
    pub(super) fn not_made(
        &mut self,
        links: &mut Downlinks,
        id: VolumeId,
        detail: &str,
        out: &mut Vec<OriginOutput>,
    ) {
        let Some(making) = self.making.remove(&id) else {
            return;
        };
        self.names.remove(&making.spec.name);
        for (link, request) in making.askers {
            let error = RequestError::Unavailable(detail.into());
            links.fail(link, request, error, out);
        }
    }

    /// The store failed while a volume was being made: the log may have it. Its name stays taken.
    pub(super) fn unsure(
        &mut self,
        links: &mut Downlinks,
        id: VolumeId,
        detail: &str,
        out: &mut Vec<OriginOutput>,
    ) {
        let Some(making) = self.making.get_mut(&id) else {
            return;
        };
        making.unsure = Some(detail.into());
        for (link, request) in std::mem::take(&mut making.askers) {
            let error = RequestError::Unavailable(detail.into());
            links.fail(link, request, error, out);
        }
    }

    /// A link is gone.
    pub(super) fn gone(&mut self, link: LinkId) {
        for making in self.making.values_mut() {
            making.askers.retain(|(asker, _)| *asker != link);
        }
    }
}
