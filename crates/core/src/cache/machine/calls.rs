//! Calls: what users ask of their parents beside pages and commits. Each waits for a parent that can answer.

use super::link::{Came, violation};
use super::users::{Kind, User};
use super::{Cache, CacheReply, Out, VolumeEntry};
use crate::commit::IdRange;
use crate::id::{DomainId, HistoryId, LinkId, PageNo, RequestId, VolumeId};
use crate::message::{
    CloseReason, CopyAnswer, CopyAsk, Message, RequestError, VolumeChange, VolumeInfo, VolumeKey,
    VolumeSpec,
};
use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::rights::{Access, Rights};
use crate::time::Instant;
use std::collections::BTreeSet;

/// Most volumes in one list.
const VOLUMES_MAX: usize = 1 << 17;

/// A queue of calls shorter than this is not tidied.
const CALLS_MIN: usize = 64;

#[derive(Clone)]
pub(super) enum Call {
    Open(VolumeKey),
    List,
    Create(VolumeSpec),
    Change(VolumeId, VolumeChange),
    Delete(VolumeId),
    Rights(VolumeId),
    Ids(VolumeId, u64),
    Copy(CopyAsk),
}

impl Call {
    /// The volume that it is about, if it says so by its id.
    pub(super) fn volume(&self) -> Option<VolumeId> {
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
    pub(super) fn domain(&self) -> Option<DomainId> {
        match self {
            Self::Create(spec) => spec.domain,
            _ => None,
        }
    }
}

impl Cache {
    pub(super) fn call(&mut self, id: RequestId, deadline: Instant, call: Call) {
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
    pub(super) fn link_for(&self, call: &Call, asked: &BTreeSet<u32>) -> Option<LinkId> {
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
    pub(super) fn asks_elsewhere(
        &mut self,
        id: RequestId,
        link: LinkId,
        error: &RequestError,
    ) -> bool {
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
        let bytes = PAGE_BYTES_MIN..=PAGE_BYTES_MAX;
        if !bytes.contains(&info.page_bytes) || !info.page_bytes.is_power_of_two() {
            return violation("a volume with pages of no such size");
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
            if self.has_become_another(came, &info, out).is_some() {
                return Ok(());
            }
            // Rights may have changed while there was no link (bug 57).
            let known = self.shared.volume(volume).map(|known| known.domain);
            if let Some(domain) = known.filter(|domain| self.domains.contains_key(domain)) {
                self.note_there(volume, request);
                self.answered_right(request, domain, volume, info.right, out);
            }
            return Ok(());
        }
        let user = self.answered(came)?;
        match self.users.get_mut(&user).map(|user| &mut user.kind) {
            Some(Kind::Call {
                call: Call::Open(_) | Call::Create(_) | Call::Change(..), ..
            }) => {}
            None => return Ok(()),
            Some(_) => return violation("a volume that was not asked for"),
        }
        if let Some(error) = self.has_become_another(came, &info, out) {
            self.reply(user, Err(error), out);
            return Ok(());
        }
        self.note_there(info.id, request);
        if self.config.parents > 1 && self.shared.volume(info.id).is_none() {
            // Calls on it that wait for another parent have their own now.
            self.unpark_calls();
        }
        let entry = VolumeEntry { domain: info.domain, page_bytes: info.page_bytes };
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
}
