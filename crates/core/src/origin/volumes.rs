//! The origin's volumes: names are unique over all its domains.

use super::domain::Domain;
use super::io::OriginOutput;
use super::{BTreeMap, RecoverError};
use crate::downlink::Downlinks;
use crate::id::{DomainId, LinkId, RequestId, VolumeId};
use crate::message::{Message, RequestError, VolumeInfo, VolumeKey, VolumeSpec};
use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::rights::Right;
use std::collections::{BTreeSet, VecDeque};

/// Most volumes in one answer.
const LIST_MAX: usize = 256;
/// Lists that are made at once.
const LISTINGS_MAX: usize = 1024;
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
    listings: VecDeque<Listing>,
}

/// A list of volumes that is being made.
#[derive(Debug)]
struct Listing {
    asker: Asker,
    /// For whom a relay asks.
    of: Option<String>,
    /// The last name looked at.
    after: String,
    found: Vec<VolumeId>,
}

/// A name that is not taken, for a volume whose own is: the same at every start.
fn other_name(name: &str, id: VolumeId, taken: impl Fn(&str) -> bool) -> String {
    let digits = format!("{:032x}", id.0);
    let with = |digits: &str| {
        let length = name.len().min(NAME_BYTES_MAX - 1 - digits.len());
        format!("{}.{digits}", &name[..length])
    };
    let short = with(&digits[..8]);
    if taken(&short) { with(&digits) } else { short }
}

/// What is wrong with a volume that is in no domain.
pub(super) fn no_volume(domains: &BTreeMap<DomainId, Domain>, id: VolumeId) -> RequestError {
    let deleted = domains.values().find(|domain| domain.was_deleted(id));
    deleted.map_or_else(|| RequestError::NoVolume(id.to_string()), |domain| domain.no_volume(id))
}

impl Volumes {
    /// Takes over a recovered domain's volumes. Where one of them has the name of another domain's,
    /// which was restored alone from a copy of before a deletion, or this one was, nobody can tell
    /// which is the younger: the first domain's keeps the name, and this one gets another.
    pub(super) fn recovered(
        &mut self,
        domain: &mut Domain,
        out: &mut Vec<OriginOutput>,
    ) -> Result<(), RecoverError> {
        let own: Vec<(VolumeId, String)> =
            domain.volumes().map(|(id, name)| (id, name.to_owned())).collect();
        let names: BTreeSet<&str> = own.iter().map(|(_, name)| name.as_str()).collect();
        for (id, from) in &own {
            if self.domains.insert(*id, domain.id()).is_some() {
                return Err(RecoverError::Twice(format!("volume {from}")));
            }
            let mut name = from.clone();
            if self.names.contains_key(&name) {
                let taken = |name: &str| self.names.contains_key(name) || names.contains(name);
                name = other_name(from, *id, taken);
                domain.rename(*id, &name);
                let (domain, volume, from) = (domain.id(), *id, from.clone());
                out.push(OriginOutput::VolumeRenamed { domain, volume, from, to: name.clone() });
            }
            self.names.insert(name, *id);
        }
        Ok(())
    }

    /// How many are being made, and will be or not.
    #[cfg(feature = "faults")]
    pub(super) fn making(&self) -> usize {
        self.making.values().filter(|making| making.unsure.is_none()).count()
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

    /// Will list volumes by name, some of them in a step: what the asker may not read has to be looked
    /// at too.
    pub(super) fn list(
        &mut self,
        links: &mut Downlinks,
        asker: Asker,
        (of, after): (Option<&str>, String),
        out: &mut Vec<OriginOutput>,
    ) {
        if self.listings.len() >= LISTINGS_MAX {
            let error = RequestError::Busy(format!("{LISTINGS_MAX} lists of volumes are made"));
            return links.fail(asker.0, asker.1, error, out);
        }
        let of = of.map(str::to_owned);
        self.listings.push_back(Listing { asker, of, after, found: Vec::new() });
    }

    /// Whether lists are not done.
    pub(super) fn is_listing(&self) -> bool {
        !self.listings.is_empty()
    }

    /// Goes on with lists: at most `most` volumes are looked at.
    pub(super) fn list_on(
        &mut self,
        links: &mut Downlinks,
        domains: &BTreeMap<DomainId, Domain>,
        most: usize,
        out: &mut Vec<OriginOutput>,
    ) {
        use std::ops::Bound::{Excluded, Unbounded};
        let mut left = most;
        while let Some(mut listing) = self.listings.pop_front() {
            let (link, request) = listing.asker;
            let of = listing.of.as_deref();
            let mut more = false;
            let mut last = None;
            let rest = self.names.range::<str, _>((Excluded(listing.after.as_str()), Unbounded));
            for (name, id) in rest.take(left) {
                left -= 1;
                last = Some(name);
                // What the asker may not read is not there.
                let readable = links.right(link, of, *id) >= Right::Read;
                more = readable && listing.found.len() == LIST_MAX;
                if more {
                    break;
                }
                listing.found.extend(readable.then_some(*id));
            }
            if left == 0 && !more {
                // The next look may find nothing.
                listing.after = last.map_or(listing.after, Clone::clone);
                return self.listings.push_front(listing);
            }
            let infos = listing.found.iter().filter_map(|id| self.info(domains, *id));
            let volumes: Vec<VolumeInfo> = infos.map(|info| seen(links, link, of, info)).collect();
            links.reply(link, Message::Volumes { request, volumes, more }, out);
        }
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

    /// What was asked for as a volume that is being made.
    pub(super) fn being_made(&self, id: VolumeId) -> Option<&VolumeSpec> {
        self.making.get(&id).map(|making| &making.spec)
    }

    /// A volume could not be made.
    pub(super) fn not_made(
        &mut self,
        links: &mut Downlinks,
        id: VolumeId,
        error: &RequestError,
        out: &mut Vec<OriginOutput>,
    ) {
        let Some(making) = self.making.remove(&id) else {
            return;
        };
        self.names.remove(&making.spec.name);
        for (link, request) in making.askers {
            links.fail(link, request, error.clone(), out);
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
        self.listings.retain(|listing| listing.asker.0 != link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{HistoryId, LinkId, PageNo, Stamp};
    use crate::origin::{Origin, OriginConfig, RecoveredDomain};
    use crate::record::{DomainMeta, Lsn, VolumeMeta, VolumeSettings};
    use crate::time::{Instant, WallTime};

    fn recovered(domain: u64, volumes: &[(u128, &str)]) -> RecoveredDomain {
        let volume = |(id, name): &(u128, &str)| VolumeMeta {
            id: VolumeId(*id),
            name: (*name).into(),
            page_bytes: 4096,
            next_page: PageNo(2),
            version: Stamp(1),
            pages: 1,
            bytes: 0,
            settings: VolumeSettings::default(),
            given: Vec::new(),
        };
        let meta = DomainMeta {
            domain: DomainId(domain),
            installed_lsn: Lsn(9),
            installed: Stamp(9),
            volumes: volumes.iter().map(volume).collect(),
            ..DomainMeta::default()
        };
        let history = HistoryId(domain.into());
        RecoveredDomain { meta, apart: Vec::new(), records: Vec::new(), history }
    }

    fn start(domains: Vec<RecoveredDomain>) -> (Result<Origin, RecoverError>, Vec<OriginOutput>) {
        let (config, mut out) = (OriginConfig::default(), Vec::new());
        let origin = Origin::new(config, Instant(0), WallTime(0), domains, &mut out);
        (origin, out)
    }

    /// The story: volume `work` of domain 2 was deleted, and its name given to a new volume, of
    /// domain 1. Then domain 2 alone was restored from a copy of before the deletion. Both domains
    /// held a volume `work`, and the origin did not start any more: neither could be reached.
    #[test]
    fn a_name_that_two_domains_hold_is_kept_by_one() {
        let (work, digits) = (0xabcd_u128, format!("{:032x}", 0xabcd_u128));
        let domains = || vec![recovered(1, &[(1, "work")]), recovered(2, &[(work, "work")])];
        let (origin, out) = start(domains());
        let mut origin = origin.expect("it starts");
        let to = format!("work.{}", &digits[..8]);
        let (domain, volume, from) = (DomainId(2), VolumeId(work), "work".to_owned());
        let renamed = OriginOutput::VolumeRenamed { domain, volume, from, to: to.clone() };
        assert!(out.contains(&renamed), "{out:?}");
        assert_eq!(origin.volumes.names["work"], VolumeId(1));
        assert_eq!(origin.volumes.names[&to], VolumeId(work));
        assert_eq!(origin.domains[&DomainId(2)].volume(VolumeId(work)).map(|v| v.name), Some(to));
        // Deleted under its new name, the other one is left.
        origin.volumes.deleted(VolumeId(work), &format!("work.{}", &digits[..8]));
        assert_eq!(origin.volumes.names.len(), 1);
        origin.volumes.gone(LinkId(1));
        // A name that is taken as well, in either domain, is not given.
        let short = format!("work.{}", &digits[..8]);
        let mut taken = domains();
        taken[1] = recovered(2, &[(work, "work"), (3, &short)]);
        let (origin, _) = start(taken);
        let names = origin.expect("it starts").volumes.names;
        assert_eq!(names[&short], VolumeId(3));
        assert_eq!(names[&format!("work.{digits}")], VolumeId(work));
        // The longest name has room for it.
        let long = "n".repeat(NAME_BYTES_MAX);
        let (origin, _) = start(vec![recovered(1, &[(1, &long)]), recovered(2, &[(2, &long)])]);
        let names = origin.expect("it starts").volumes.names;
        assert!(names.len() == 2 && names.keys().all(|name| name.len() <= NAME_BYTES_MAX));
        // One volume of one id in two domains is another matter.
        let (origin, _) = start(vec![recovered(1, &[(1, "a")]), recovered(2, &[(1, "b")])]);
        assert_eq!(origin.err(), Some(RecoverError::Twice("volume b".into())));
    }
}
