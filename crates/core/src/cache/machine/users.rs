//! What users ask: deadlines, fetches, volumes, page numbers, waits.

use super::commits::Asked;
use super::link::{Came, violation};
use super::{Cache, CacheOutput, CacheReply, Domain, Out, VolumeEntry};
use crate::cache::io::CacheOp;
use crate::cache::read::DomainState;
use crate::commit::{IdRange, PartId};
use crate::id::{
    CommitId, DomainId, HistoryId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId,
};
use crate::machine::Fault;
use crate::message::{
    CloseReason, CopyAnswer, CopyAsk, Message, RequestError, VolumeChange, VolumeInfo, VolumeKey,
    VolumeSpec,
};
use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::rights::{Access, Rights};
use crate::time::{Duration, Instant};
use std::collections::BTreeSet;
use std::sync::Arc;

/// So many fetches that failed are remembered, so that late answers to them are known.
const FAILED_MAX: usize = 64;

/// A stream that was refused is asked for again after so many times what the refusal took.
const REFUSED_PAUSE: u32 = 8;
/// But no later than that, unless the refusal itself took longer: the parent may be young.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Most pages of one request: a large object of 16 MiB in the smallest pages, and to spare.
const FETCH_PAGES_MAX: usize = 1 << 13;
/// Most volumes in one list.
const VOLUMES_MAX: usize = 1 << 17;

/// A queue of calls shorter than this is not tidied.
const CALLS_MIN: usize = 64;

/// A request of a user that waits.
pub(super) struct User {
    pub(super) deadline: Instant,
    kind: Kind,
}

enum Kind {
    Fetch {
        domain: DomainId,
        /// As asked.
        pages: Vec<PageId>,
        /// Not gathered yet.
        missing: BTreeSet<PageId>,
    },
    Commit {
        domain: DomainId,
        id: CommitId,
    },
    /// Of a transaction over several domains.
    Whole(PartId),
    /// Asked of the parent as it is.
    Call {
        call: Call,
        /// On which link.
        sent: Option<LinkId>,
        /// Parents that have answered, where several are asked.
        asked: BTreeSet<u32>,
        /// Volumes that those have listed.
        volumes: Vec<VolumeInfo>,
        /// Volumes that the one has listed that is being asked.
        listed: Vec<VolumeInfo>,
    },
    Opening {
        domain: DomainId,
    },
    Wait {
        domain: DomainId,
        stamp: Stamp,
    },
    Refresh {
        domain: DomainId,
        asked: Instant,
    },
}

#[derive(Clone)]
enum Call {
    Open(VolumeKey),
    List,
    Create(VolumeSpec),
    Change(VolumeId, VolumeChange),
    Delete(VolumeId),
    Rights(VolumeId),
    Ids(VolumeId, u64),
    Copy(CopyAsk),
}

impl User {
    fn lose_link(&mut self, link: LinkId) {
        if let Kind::Call { sent, listed, .. } = &mut self.kind
            && *sent == Some(link)
        {
            *sent = None;
            listed.clear();
        }
    }
}

impl Call {
    /// The volume that it is about, if it says so by its id.
    fn volume(&self) -> Option<VolumeId> {
        match self {
            Self::Open(VolumeKey::Id(volume))
            | Self::Change(volume, _)
            | Self::Delete(volume)
            | Self::Rights(volume)
            | Self::Ids(volume, _) => Some(*volume),
            Self::Copy(ask) => Some(ask.volume),
            Self::Open(VolumeKey::Name(_)) | Self::List | Self::Create(_) => None,
        }
    }

    /// The domain in which something is to be made.
    fn domain(&self) -> Option<DomainId> {
        match self {
            Self::Create(spec) => spec.domain,
            _ => None,
        }
    }
}

impl Cache {
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: RequestId,
        op: CacheOp,
        deadline: Instant,
        out: &mut Out,
    ) {
        if self.users.len() >= self.config.requests_max {
            let error = RequestError::Busy(format!("{} requests wait", self.users.len()));
            return answer(id, Err(error), out);
        }
        match op {
            CacheOp::OpenVolume(key) => self.call(id, deadline, Call::Open(key)),
            CacheOp::ListVolumes => self.call(id, deadline, Call::List),
            CacheOp::CreateVolume(spec) => self.call(id, deadline, Call::Create(spec)),
            CacheOp::ChangeVolume(volume, change) => {
                self.call(id, deadline, Call::Change(volume, change));
            }
            CacheOp::DeleteVolume(volume) => self.call(id, deadline, Call::Delete(volume)),
            CacheOp::AskRights(volume) => self.call(id, deadline, Call::Rights(volume)),
            CacheOp::AllocateIds { volume, count } => {
                self.call(id, deadline, Call::Ids(volume, count));
            }
            CacheOp::CopyPages(ask) => self.call(id, deadline, Call::Copy(*ask)),
            CacheOp::Fetch { domain, .. }
            | CacheOp::Commit { domain, .. }
            | CacheOp::WaitThrough { domain, .. }
            | CacheOp::Refresh { domain }
                if !self.domains.contains_key(&domain) =>
            {
                answer(id, Err(RequestError::NoDomain(domain)), out);
            }
            CacheOp::Fetch { domain, pages, prefetch } => {
                self.ask_pages(id, deadline, domain, pages, prefetch, out)
            }
            CacheOp::Commit { domain, history, checked, reads, writes, named } => {
                let asked = Asked { history, base: checked, reads, writes, named };
                match self.take_commit(domain, id, asked) {
                    Ok(commit) => self.wait(id, deadline, Kind::Commit { domain, id: commit }),
                    Err(refused) => answer(id, refused, out),
                }
            }
            CacheOp::CommitAcross(parts) => {
                let missing = parts.iter().find(|part| !self.domains.contains_key(&part.domain));
                if let Some(part) = missing {
                    return answer(id, Err(RequestError::NoDomain(part.domain)), out);
                }
                let asked = parts.into_iter().map(|part| (part.domain, Asked::of(part)));
                match self.take_across(id, asked.collect()) {
                    Ok(name) => self.wait(id, deadline, Kind::Whole(name)),
                    Err(refused) => answer(id, refused, out),
                }
            }
            CacheOp::Outcome { domain, commit }
                if self.wholes.knows(PartId { domain, id: commit }) =>
            {
                let name = PartId { domain, id: commit };
                match self.wholes.ask_about(name, id) {
                    Some(known) => answer(id, known, out),
                    None => self.wait(id, deadline, Kind::Whole(name)),
                }
            }
            CacheOp::Outcome { domain, commit } => {
                let lost = Some(Ok(CacheReply::InDoubt { commit, lost: true }));
                let entry = self.domains.get_mut(&domain);
                match entry.map_or(lost, |entry| entry.commits.ask_about(commit, id)) {
                    Some(known) => answer(id, known, out),
                    None => self.wait(id, deadline, Kind::Commit { domain, id: commit }),
                }
            }
            CacheOp::WaitThrough { domain, stamp } => {
                let entry = self.domains.get_mut(&domain).expect("looked at above");
                match entry.state.through() {
                    Some(through) if through >= stamp => {
                        answer(id, Ok(CacheReply::Through(through)), out);
                    }
                    _ => {
                        entry.waits.insert((stamp, id));
                        self.wait(id, deadline, Kind::Wait { domain, stamp });
                    }
                }
            }
            CacheOp::Refresh { domain } => {
                let entry = self.domains.get_mut(&domain).expect("looked at above");
                let asked = entry.beat_clock.after_sent(now);
                entry.refreshes.insert((asked, id));
                self.send_refresh(now, domain, out);
                self.wait(id, deadline, Kind::Refresh { domain, asked });
            }
        }
    }

    fn wait(&mut self, id: RequestId, deadline: Instant, kind: Kind) {
        let forgotten = self.config.faults.has(Fault::PatienceForgotten);
        let deadline =
            if forgotten { deadline.after(Duration::from_secs(3_600)) } else { deadline };
        let fresh = self.users.insert(id, User { deadline, kind }).is_none();
        assert!(fresh, "request ids are never used twice");
        self.deadlines.insert((deadline, id));
    }

    fn call(&mut self, id: RequestId, deadline: Instant, call: Call) {
        let (volumes, listed) = (Vec::new(), Vec::new());
        let kind = Kind::Call { call, sent: None, asked: BTreeSet::new(), volumes, listed };
        self.wait(id, deadline, kind);
        self.calls.push_back(id);
        // Without a link that takes them nothing else takes out those who wait no longer.
        let full: usize = self.links.values().map(|link| link.waiting.len()).sum();
        if self.calls.len() + self.parked.len() + full > 2 * self.users.len() + CALLS_MIN {
            let users = &self.users;
            self.calls.retain(|call| users.contains_key(call));
            self.parked.retain(|call| users.contains_key(call));
            for link in self.links.values_mut() {
                link.waiting.retain(|call| users.contains_key(call));
            }
        }
    }

    /// Answers a request and forgets it.
    pub(super) fn reply(
        &mut self,
        id: RequestId,
        result: Result<CacheReply, RequestError>,
        out: &mut Out,
    ) {
        if self.forget(id).is_some() {
            answer(id, result, out);
        }
    }

    /// The user is gone. A commit goes on all the same.
    pub(super) fn cancel(&mut self, id: RequestId) {
        let kind = self.forget(id);
        if let Some(Kind::Commit { domain, id: commit }) = kind
            && let Some(entry) = self.domains.get_mut(&domain)
        {
            entry.commits.forget_user(commit, id);
        } else if let Some(Kind::Whole(name)) = kind {
            self.wholes.forget_user(name, id);
        }
    }

    pub(super) fn expire(&mut self, id: RequestId, out: &mut Out) {
        let result = match self.forget(id) {
            Some(Kind::Commit { domain, id: commit }) => self.leave_commit(domain, commit, id),
            Some(Kind::Whole(name)) => self.leave_whole(name, id),
            kind => Err(self.why_late(kind)),
        };
        answer(id, result, out);
    }

    /// Why there is no answer in time.
    fn why_late(&self, kind: Option<Kind>) -> RequestError {
        let link = match kind {
            Some(Kind::Call { sent: Some(_), .. }) => return RequestError::TimedOut,
            Some(Kind::Call { call, asked, .. }) => self.link_for(&call, &asked),
            Some(
                Kind::Fetch { domain, .. }
                | Kind::Commit { domain, .. }
                | Kind::Opening { domain }
                | Kind::Wait { domain, .. }
                | Kind::Refresh { domain, .. },
            ) => self.source_of(domain),
            Some(Kind::Whole(_)) | None => None,
        };
        match link {
            Some(_) => RequestError::TimedOut,
            None if self.connected() => {
                let which = "no link to the parent that has it, or may have it (a name is asked \
                             for in the order of the parents, an id at all of them)";
                RequestError::Unavailable(which.into())
            }
            None => RequestError::Unavailable("no link to the parent".into()),
        }
    }

    /// Takes a request out of everything that would answer it.
    fn forget(&mut self, id: RequestId) -> Option<Kind> {
        let user = self.users.remove(&id)?;
        self.deadlines.remove(&(user.deadline, id));
        match &user.kind {
            Kind::Fetch { domain, pages, missing } => {
                let given_up = !missing.is_empty();
                let keeps = given_up && self.config.faults.has(Fault::GatheredKept);
                for &page in pages {
                    if missing.contains(&page) {
                        self.leave(*domain, page, id);
                    } else if !keeps {
                        self.memory.unpin(page, id);
                    }
                }
            }
            Kind::Opening { domain } => {
                self.domain_mut(*domain).openings.remove(&id);
            }
            Kind::Wait { domain, stamp } => {
                self.domain_mut(*domain).waits.remove(&(*stamp, id));
            }
            Kind::Refresh { domain, asked } => {
                self.domain_mut(*domain).refreshes.remove(&(*asked, id));
            }
            Kind::Commit { .. } | Kind::Whole(_) | Kind::Call { .. } => {}
        }
        Some(user.kind)
    }

    fn domain_mut(&mut self, domain: DomainId) -> &mut Domain {
        self.domains.get_mut(&domain).expect("users wait in attached domains only")
    }

    // ---- pages ----

    fn ask_pages(
        &mut self,
        id: RequestId,
        deadline: Instant,
        domain: DomainId,
        pages: Vec<PageId>,
        prefetch: bool,
        out: &mut Out,
    ) {
        let known = |page: &PageId| {
            let volume = self.shared.volume(page.volume);
            let number = page.page.0 > 0 && page.page.0 < PageNo::LIMIT;
            number && volume.is_some_and(|volume| volume.domain == domain)
        };
        if pages.len() > FETCH_PAGES_MAX || !pages.iter().all(known) {
            let what = "too many pages, or pages of no open volume of the domain";
            return answer(id, Err(RequestError::Invalid(what.into())), out);
        }
        if let Some(page) = pages.iter().find(|page| self.shared.is_deleted(page.volume)) {
            let error = RequestError::Deleted(page.volume.to_string());
            return answer(id, Err(error), out);
        }
        let whole = |page: &PageId| {
            let copy = self.shared.peek(*page);
            copy.is_some_and(|copy| copy.complete())
        };
        let missing: BTreeSet<PageId> = pages.iter().copied().filter(|p| !whole(p)).collect();
        if prefetch {
            for page in missing {
                self.prefetch(domain, page);
            }
            let through = self.domains[&domain].position.unwrap_or(Stamp::ZERO);
            let pages = Vec::new();
            return answer(id, Ok(CacheReply::Fetched { through, pages }), out);
        }
        for &page in &pages {
            if missing.contains(&page) {
                self.want(domain, page, id);
            } else {
                self.memory.pin(page, id);
            }
        }
        self.wait(id, deadline, Kind::Fetch { domain, pages, missing });
        self.complete(id, out);
    }

    /// A page that the user waits for is here.
    pub(super) fn arrived(&mut self, id: RequestId, page: PageId, out: &mut Out) {
        if let Some(User { kind: Kind::Fetch { missing, .. }, .. }) = self.users.get_mut(&id) {
            missing.remove(&page);
            self.memory.pin(page, id);
            self.complete(id, out);
        }
    }

    /// A page that the user had gathered is gone again.
    pub(super) fn departed(&mut self, id: RequestId, page: PageId) {
        if let Some(User { kind: Kind::Fetch { missing, .. }, .. }) = self.users.get_mut(&id) {
            missing.insert(page);
        }
    }

    fn complete(&mut self, id: RequestId, out: &mut Out) {
        let Some(User { kind: Kind::Fetch { domain, pages, missing }, .. }) = self.users.get(&id)
        else {
            return;
        };
        let Some(through) = self.domains[domain].position.filter(|_| missing.is_empty()) else {
            return;
        };
        let copy = |page: &PageId| self.shared.peek(*page).expect("pinned pages stay");
        let pages = pages.iter().map(copy).collect();
        self.reply(id, Ok(CacheReply::Fetched { through, pages }), out);
    }

    // ---- calls ----

    /// Sends the first call that waits and for which there is room; says whether one was sent.
    pub(super) fn send_call(&mut self, out: &mut Out) -> bool {
        while let Some(user) = self.next_call() {
            let Some(User { kind: Kind::Call { call, sent: None, asked, .. }, .. }) =
                self.users.get(&user)
            else {
                continue;
            };
            let Some(link) = self.link_for(call, asked) else {
                // Until one is, nobody looks at it.
                self.parked.push(user);
                continue;
            };
            let up = self.links.get_mut(&link).expect("it stands");
            if up.room() == 0 {
                // It is in no other's way.
                up.waiting.push_back(user);
                continue;
            }
            if self.send_call_of(user, link, out) {
                return true;
            }
        }
        false
    }

    /// The next call to be looked at: one that waited for room that is there now, or one that is new.
    fn next_call(&mut self) -> Option<RequestId> {
        let roomy = self.links.values_mut().filter(|link| link.room() > 0);
        let waited = roomy.into_iter().find_map(|link| link.waiting.pop_front());
        waited.or_else(|| self.calls.pop_front())
    }

    /// A parent is there, or has more than it was known to have.
    pub(super) fn unpark_calls(&mut self) {
        self.calls.extend(self.parked.drain(..));
        if self.config.parents > 1 {
            // It may be another parent that has what they ask for.
            for link in self.links.values_mut() {
                self.calls.extend(link.waiting.drain(..));
            }
        }
    }

    /// Where a call goes: to the parent of its domain. Where that is not known an id is asked for at one parent
    /// after the other, and a name in the order of the parents, so that it is the same volume whichever of them
    /// are connected.
    fn link_for(&self, call: &Call, asked: &BTreeSet<u32>) -> Option<LinkId> {
        if let Some(known) = call.volume().and_then(|volume| self.shared.volume(volume)) {
            return self.source_of(known.domain);
        }
        let named = call.domain();
        if let Some(source) = named.and_then(|domain| self.source_of(domain)) {
            return Some(source);
        }
        let mut parents = (0..self.config.parents).filter(|parent| !asked.contains(parent));
        let link = match call.volume().is_some() || named.is_some() {
            true => parents.find_map(|parent| self.link_to_parent(parent)),
            false => parents.next().and_then(|parent| self.link_to_parent(parent)),
        };
        link.map(|link| link.id)
    }

    fn send_call_of(&mut self, id: RequestId, link: LinkId, out: &mut Out) -> bool {
        let request = self.request_id();
        let Some(User { kind: Kind::Call { call, sent, listed, .. }, .. }) =
            self.users.get_mut(&id)
        else {
            return false;
        };
        *sent = Some(link);
        let message = match call.clone() {
            Call::Open(key) => Message::OpenVolume { request, key },
            Call::List => Message::ListVolumes {
                request,
                after: listed.last().map_or(String::new(), |volume| volume.name.clone()),
            },
            Call::Create(spec) => Message::CreateVolume { request, spec },
            Call::Change(volume, change) => Message::ChangeVolume { request, volume, change },
            Call::Delete(volume) => Message::DeleteVolume { request, volume },
            Call::Rights(volume) => Message::AskRights { request, volume },
            Call::Ids(volume, count) => Message::AllocateIds { request, volume, count },
            Call::Copy(ask) => Message::CopyPages { request, ask },
        };
        let up = self.links.get_mut(&link).expect("it has room");
        if message.since() > up.version {
            let error = RequestError::older_parent(up.version, message.since());
            self.reply(id, Err(error), out);
            return false;
        }
        up.calls.insert(request, id);
        up.outstanding += 1;
        self.send_on(link, message, out);
        true
    }

    /// After a lost link every call that was sent on it is asked anew.
    pub(super) fn requeue_calls(&mut self, link: LinkId) {
        for user in self.users.values_mut() {
            user.lose_link(link);
        }
        let unsent = |user: &User| matches!(user.kind, Kind::Call { sent: None, .. });
        let calls = self.users.iter().filter(|(_, user)| unsent(user));
        self.calls = calls.map(|(&id, _)| id).collect();
        self.parked.clear();
        for link in self.links.values_mut() {
            link.waiting.clear();
        }
    }

    /// A parent knows nothing of the volume that is asked for: whether another one is asked.
    fn asks_elsewhere(&mut self, id: RequestId, link: LinkId, error: &RequestError) -> bool {
        let parent = self.links[&link].parent;
        let Some(User { kind: Kind::Call { call, .. }, .. }) = self.users.get(&id) else {
            return false;
        };
        // Who offers a domain that is out of service there is the only one that has it, and that there is no such
        // volume is believed of its own parent alone.
        let offered = |domain| self.source_of(domain) == Some(link);
        let known = |volume| self.shared.volume(volume).is_some_and(|known| offered(known.domain));
        let searches = match error {
            RequestError::NoVolume(_) => !call.volume().is_some_and(known),
            RequestError::NoDomain(_) => call.domain().is_some_and(|domain| !offered(domain)),
            _ => false,
        };
        if !searches {
            return false;
        }
        let Some(User { kind: Kind::Call { sent, asked, .. }, .. }) = self.users.get_mut(&id)
        else {
            return false;
        };
        asked.insert(parent);
        let left = asked.len() < self.config.parents as usize;
        if left {
            crate::probe::probe("volume-sought-elsewhere");
            *sent = None;
            self.calls.push_back(id);
        }
        left
    }

    /// The user whose call is answered; none: it waits no longer.
    fn answered(&mut self, (link, request): Came) -> Result<RequestId, CloseReason> {
        let link = self.links.get_mut(&link).expect("it came on this link");
        let Some(user) = link.calls.remove(&request) else {
            return violation("an answer to no request");
        };
        link.outstanding -= 1;
        Ok(user)
    }

    pub(super) fn on_ids(
        &mut self,
        request: Came,
        history: HistoryId,
        range: IdRange,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let user = self.answered(request)?;
        let end = range.first.0.checked_add(range.count);
        if range.first.0 == 0 || end.is_none_or(|end| end > PageNo::LIMIT) {
            return violation("page numbers out of range");
        }
        match self.users.get(&user).map(|user| &user.kind) {
            Some(Kind::Call { call: Call::Ids(volume, count), .. })
                if *volume == range.volume && *count == range.count =>
            {
                self.numbers.given(&range, history);
                self.reply(user, Ok(CacheReply::Ids(range)), out);
                Ok(())
            }
            None => Ok(()),
            Some(_) => violation("page numbers that were not asked for"),
        }
    }

    pub(super) fn on_copied(
        &mut self,
        request: Came,
        copied: CopyAnswer,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let user = self.answered(request)?;
        match self.users.get(&user).map(|user| &user.kind) {
            Some(Kind::Call { call: Call::Copy(ask), .. })
                if copied.pages.iter().all(|page| page.page.volume == ask.volume) =>
            {
                self.reply(user, Ok(CacheReply::Copied(Box::new(copied))), out);
                Ok(())
            }
            None => Ok(()),
            Some(_) => violation("pages of a copy that was not asked for"),
        }
    }

    pub(super) fn on_volume(
        &mut self,
        (link, request): Came,
        info: VolumeInfo,
        now: Instant,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if !self.may_have(link, info.domain) {
            return violation("a volume of a domain that is had from another parent");
        }
        // The domain may have been made since the welcome.
        let up = self.links.get_mut(&link).expect("it came on this link");
        if up.offers.insert(info.domain) {
            self.unpark_calls();
            if self.config.parents > 1 {
                self.resume_offered(now, link, out);
            }
        }
        let came = (link, request);
        if let Some(volume) = self.doubt_answered(came) {
            if volume != info.id {
                return violation("a volume that was not asked for");
            }
            // Rights may have changed while there was no link (bug 57).
            let known = self.shared.volume(volume).map(|known| known.domain);
            if let Some(domain) = known.filter(|domain| self.domains.contains_key(domain)) {
                self.answered_right(request, domain, volume, info.right, out);
            }
            return Ok(());
        }
        let user = self.answered(came)?;
        let bytes = PAGE_BYTES_MIN..=PAGE_BYTES_MAX;
        if !bytes.contains(&info.page_bytes) || !info.page_bytes.is_power_of_two() {
            return violation("a volume with pages of no such size");
        }
        let entry = VolumeEntry { domain: info.domain, page_bytes: info.page_bytes };
        if self.shared.volume(info.id).is_some_and(|known| known != entry) {
            return violation("a volume that has become another");
        }
        match self.users.get_mut(&user).map(|user| &mut user.kind) {
            Some(Kind::Call {
                call: Call::Open(_) | Call::Create(_) | Call::Change(..), ..
            }) => {}
            None => return Ok(()),
            Some(_) => return violation("a volume that was not asked for"),
        }
        if self.config.parents > 1 && self.shared.volume(info.id).is_none() {
            // Calls on it that wait for another parent have their own now.
            self.unpark_calls();
        }
        self.shared.set_volume(info.id, entry);
        self.names.insert(info.id, info.name.clone());
        let domain = info.domain;
        if !self.domains.contains_key(&domain) {
            self.attach(domain);
            self.resume(now, domain, out);
        }
        self.answered_right(request, domain, info.id, info.right, out);
        let info = VolumeInfo { right: info.right.map(|_| self.shared.right(info.id)), ..info };
        if self.domains[&domain].live() {
            self.reply(user, Ok(CacheReply::Volume(info)), out);
        } else if let Some(waiting) = self.users.get_mut(&user) {
            waiting.kind = Kind::Opening { domain };
            self.domain_mut(domain).openings.insert(user, info);
        }
        Ok(())
    }

    pub(super) fn on_rights(
        &mut self,
        request: Came,
        (rights, access): (Rights, Access),
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let user = self.answered(request)?;
        match self.users.get(&user).map(|user| &user.kind) {
            Some(Kind::Call { call: Call::Rights(_), .. }) => {
                self.reply(user, Ok(CacheReply::Rights(rights, access)), out);
                Ok(())
            }
            None => Ok(()),
            Some(_) => violation("rights that were not asked for"),
        }
    }

    fn attach(&mut self, domain: DomainId) {
        let state = Arc::new(DomainState::new(
            domain,
            HistoryId::default(),
            self.config.recent_max,
            self.config.snapshot_bytes,
        ));
        self.shared.attach(Arc::clone(&state));
        let entry = Domain::new(state, self.config.boot);
        self.domains.insert(domain, entry);
    }

    /// The domain's stream has begun: its volumes are open.
    pub(super) fn open_users(&mut self, domain: DomainId, out: &mut Out) {
        let openings = std::mem::take(&mut self.domain_mut(domain).openings);
        for (user, info) in openings {
            self.reply(user, Ok(CacheReply::Volume(info)), out);
        }
    }

    pub(super) fn on_volume_deleted(
        &mut self,
        request: Came,
        volume: VolumeId,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let user = self.answered(request)?;
        match self.users.get(&user).map(|user| &user.kind) {
            Some(Kind::Call { call: Call::Delete(asked), .. }) if *asked == volume => {
                self.reply(user, Ok(CacheReply::Deleted), out);
                Ok(())
            }
            None => Ok(()),
            Some(_) => violation("a deletion that was not asked for"),
        }
    }

    pub(super) fn on_volumes(
        &mut self,
        request: Came,
        mut part: Vec<VolumeInfo>,
        more: bool,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let user = self.answered(request)?;
        let parent = self.links[&request.0].parent;
        let Some(User {
            kind: Kind::Call { call: Call::List, sent, asked, volumes, listed }, ..
        }) = self.users.get_mut(&user)
        else {
            return Ok(());
        };
        if more && part.is_empty() {
            return violation("a list that does not end");
        }
        listed.append(&mut part);
        if !more {
            asked.insert(parent);
            volumes.append(listed);
        }
        if volumes.len() + listed.len() > VOLUMES_MAX {
            let error = RequestError::Busy("the list of volumes is too long".into());
            self.reply(user, Err(error), out);
        } else if more || asked.len() < self.config.parents as usize {
            *sent = None;
            self.calls.push_back(user);
        } else {
            let mut volumes = std::mem::take(volumes);
            if asked.len() > 1 {
                volumes.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
                volumes.dedup_by_key(|volume| volume.id);
            }
            self.reply(user, Ok(CacheReply::Volumes(volumes)), out);
        }
        Ok(())
    }

    /// One page of a fetch cannot be had.
    pub(super) fn on_page_failed(
        &mut self,
        (link, request): Came,
        page: PageId,
        error: &RequestError,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let link = self.links.get_mut(&link).expect("it came on this link");
        if link.failed.get_mut(&request).is_some_and(|fetch| fetch.pages.remove(&page)) {
            return Ok(());
        }
        let Some(fetch) = link.fetches.get_mut(&request).filter(|f| f.pages.contains(&page)) else {
            return violation("the failure of a page that was not asked for");
        };
        fetch.pages.remove(&page);
        let (domain, over) = (fetch.domain, fetch.pages.is_empty());
        if over {
            link.fetches.remove(&request);
        }
        link.outstanding -= 1;
        self.fetch_failed(domain, page, request, error, out);
        if matches!(error, RequestError::Deleted(_)) {
            self.note_deleted(domain, page.volume, out);
        }
        Ok(())
    }

    pub(super) fn on_failed(
        &mut self,
        came: Came,
        error: RequestError,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let (id, request) = came;
        let link = self.links.get_mut(&id).expect("it came on this link");
        if let Some(fetch) = link.fetches.remove(&request) {
            link.outstanding -= fetch.pages.len();
            for &page in &fetch.pages {
                self.fetch_failed(fetch.domain, page, request, &error, out);
            }
            let failed = &mut self.links.get_mut(&id).expect("looked at above").failed;
            failed.insert(request, fetch);
            if failed.len() > FAILED_MAX {
                failed.pop_first();
            }
            return Ok(());
        }
        if let Some(volume) = self.doubt_answered(came) {
            match error {
                RequestError::Deleted(_) | RequestError::NoVolume(_) => {
                    if let Some(known) = self.shared.volume(volume) {
                        self.note_deleted(known.domain, volume, out);
                    }
                }
                RequestError::Denied(_) => self.still_denied(request, volume),
                // The line above was cut, perhaps: it is still not known. What is refused for another
                // reason is refused again.
                RequestError::Unavailable(_) | RequestError::Busy(_) | RequestError::TimedOut => {
                    let link = self.links.get_mut(&id).expect("it came on this link");
                    link.unanswered.insert(volume);
                }
                _ => {}
            }
            return Ok(());
        }
        if self.links[&id].calls.contains_key(&request) {
            let user = self.answered(came)?;
            if !self.asks_elsewhere(user, id, &error) {
                self.reply(user, Err(error), out);
            }
            return Ok(());
        }
        let link = self.links.get_mut(&id).expect("looked at above");
        if link.abandoned.remove(&request) {
            link.outstanding -= 1;
            return Ok(());
        }
        let resumed = super::domain::Stream::Asked(request);
        let asked = |entry: &Domain| entry.stream() == resumed && entry.up == Some(id);
        let domains = self.domains.iter().find(|(_, entry)| asked(entry));
        let Some(domain) = domains.map(|(&domain, _)| domain) else {
            return violation("the failure of no request");
        };
        let link = self.links.get_mut(&id).expect("it came on this link");
        let entry = self.domains.get_mut(&domain).expect("just found");
        // Another parent may have it.
        entry.refused.insert(link.parent);
        let parents = self.config.parents as usize;
        if parents > 1 && !link.offers.contains(&domain) {
            crate::probe::probe("domain-sought-elsewhere");
        }
        let over = entry.refused.len() >= parents || link.offers.contains(&domain);
        entry.set_stream(super::domain::Stream::Off);
        // Whatever finds no room goes before all else: domains that are out of service must not take all
        // the time that their refusals need.
        let took = link.heard.since(entry.beat_at);
        let pause = (took * REFUSED_PAUSE).min(took.max(REFUSED_PAUSE_MAX));
        entry.asks_again_at = link.heard.after(pause);
        link.outstanding -= 1;
        if !over {
            return Ok(());
        }
        for (user, _) in std::mem::take(&mut entry.openings) {
            self.reply(user, Err(error.clone()), out);
        }
        Ok(())
    }
}

fn answer(id: RequestId, result: Result<CacheReply, RequestError>, out: &mut Out) {
    out.push(CacheOutput::Reply { id, result });
}
