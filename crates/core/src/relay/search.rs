//! Which parent is asked about a volume (decision 0037): that of its domain. Where nobody knows that, an id is asked for at
//! one parent after the other, and a name in the order of the parents, so that it is the same volume whichever of
//! them are connected. Lists are of all parents.

use super::Relay;
use super::io::RelayOutput;
use super::parent::violation;
use super::pending::{Pending, What};
use crate::downlink::COPY_RESERVED;
use crate::id::{RequestId, VolumeId};
use crate::message::{
    CloseReason, Message, RequestError, VOLUMES_PER_MESSAGE_MAX, VolumeInfo, VolumeKey,
};
use crate::time::Instant;
use std::collections::BTreeSet;

/// So many volumes it remembers where to ask for, at most.
const SOURCES_MAX: usize = 1 << 16;

/// What a question about volumes has come to at other parents.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Those that know nothing of it, or whose part of a list is here.
    asked: BTreeSet<usize>,
    /// What their lists have named.
    volumes: Vec<VolumeInfo>,
    /// The last names of lists that go on.
    ends: Vec<String>,
}

impl Search {
    /// One list of all, and whether it goes on: up to where each of them has told all, and no longer than a message
    /// may be.
    fn merged(self) -> (Vec<VolumeInfo>, bool) {
        let Self { mut volumes, ends, .. } = self;
        volumes.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
        volumes.dedup_by_key(|volume| volume.id);
        let mut more = !ends.is_empty();
        if let Some(end) = ends.into_iter().min() {
            volumes.retain(|volume| volume.name <= end);
        }
        if let Some(next) = volumes.get(VOLUMES_PER_MESSAGE_MAX) {
            // It goes on after a name: of one that two origins have it must not end between them. A message that is
            // full of one name is nobody's.
            let next = next.name.clone();
            volumes.truncate(VOLUMES_PER_MESSAGE_MAX);
            if volumes.first().is_some_and(|volume| volume.name < next) {
                volumes.retain(|volume| volume.name < next);
            }
            more = true;
        }
        (volumes, more)
    }
}

/// The volume that is asked about by its id.
fn volume_of(message: &Message) -> Option<VolumeId> {
    match message {
        Message::AllocateIds { volume, .. }
        | Message::ChangeVolume { volume, .. }
        | Message::DeleteVolume { volume, .. }
        | Message::AskRights { volume, .. }
        | Message::OpenVolume { key: VolumeKey::Id(volume), .. } => Some(*volume),
        Message::CopyPages { ask, .. } => Some(ask.volume),
        _ => None,
    }
}

impl Relay {
    /// The parent that is to be asked next.
    pub(super) fn source_of(&self, what: &What, search: &Search) -> usize {
        if self.uplinks.len() == 1 {
            return 0;
        }
        let message = match what {
            What::Fetch { domain, .. } | What::Own { domain, .. } | What::Child { domain, .. } => {
                return self.parent_of(*domain).unwrap_or_default();
            }
            What::Other(message) => message,
        };
        let volume = volume_of(message);
        let domain = match message {
            Message::CreateVolume { spec, .. } => spec.domain,
            _ => None,
        };
        let known = volume.and_then(|volume| self.sources.get(&volume).copied());
        let known = known.or_else(|| domain.and_then(|domain| self.parent_of(domain)));
        if let Some(known) = known.filter(|parent| !search.asked.contains(parent)) {
            return known;
        }
        let mut parents = (0..self.uplinks.len()).filter(|parent| !search.asked.contains(parent));
        let is_anywhere = volume.is_some() || domain.is_some();
        let there = |parent: &usize| is_anywhere && self.uplinks[*parent].is_welcomed();
        parents.clone().find(there).or_else(|| parents.next()).unwrap_or_default()
    }

    /// A question failed at a parent, or cannot be put to it (none): whether another one is to be asked. That there is
    /// no such volume is believed of its own parent alone.
    pub(super) fn seeks_elsewhere(
        &mut self,
        now: Instant,
        pending: &mut Pending,
        error: Option<&RequestError>,
    ) -> bool {
        let What::Other(message) = &pending.what else { return false };
        let is_own = |volume| self.sources.get(&volume) == Some(&pending.parent);
        let seeks = match (error, message) {
            (Some(RequestError::NoVolume(_)), message) => !volume_of(message).is_some_and(is_own),
            (None, message) => volume_of(message).is_some_and(|volume| !is_own(volume)),
            (Some(RequestError::NoDomain(_)), Message::CreateVolume { spec, .. }) => {
                spec.domain.is_some_and(|domain| self.parent_of(domain) != Some(pending.parent))
            }
            _ => false,
        };
        let reserved = matches!(message, Message::CopyPages { .. });
        pending.search.asked.insert(pending.parent);
        if !seeks || pending.search.asked.len() >= self.uplinks.len() {
            return false;
        }
        crate::probe::probe("relay-seeks-elsewhere");
        let asker = pending.asker.and_then(|(link, _)| self.links.get_mut(link));
        if let Some(asker) = asker.filter(|_| reserved) {
            // It was given back with the answer.
            asker.bulk_reserved += COPY_RESERVED;
        }
        self.ask_next(now, pending);
        true
    }

    /// It is asked anew, of who was not asked before.
    fn ask_next(&self, now: Instant, pending: &mut Pending) {
        pending.parent = self.source_of(&pending.what, &pending.search);
        (pending.sent, pending.ever_sent) = (false, false);
        pending.deadline = now.after(self.config.request_max);
    }

    /// A parent has answered what was asked about volumes.
    pub(super) fn volumes_told(
        &mut self,
        now: Instant,
        request: RequestId,
        message: Message,
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        if self.uplinks.len() == 1 {
            self.pass_down(now, request, message, out);
            return Ok(());
        }
        let Some(pending) = self.pending.get(&request) else { return Ok(()) };
        let parent = pending.parent;
        match message {
            Message::Volumes { volumes, more, .. } => {
                return self.volumes_listed(now, request, (volumes, more), out);
            }
            Message::Volume { ref info, .. } => {
                if self.parent_of(info.domain).is_some_and(|of| of != parent) {
                    return violation("a volume of a domain that is had from another parent");
                }
                if self.is_had_elsewhere(info.id, parent) {
                    // Whoever makes a volume chooses its id: that two have it is no parent's fault.
                    let error = RequestError::NoVolume(info.name.clone());
                    self.failed(now, request, error, out);
                    return Ok(());
                }
                self.had_from(info.id, parent);
            }
            _ => {}
        }
        self.pass_down(now, request, message, out);
        Ok(())
    }

    /// A parent has shown that it has a volume. What another one says later counts for less.
    pub(super) fn had_from(&mut self, volume: VolumeId, parent: usize) {
        if self.uplinks.len() == 1 {
            return;
        }
        if self.sources.len() >= SOURCES_MAX {
            self.sources.clear();
        }
        self.sources.entry(volume).or_insert(parent);
    }

    /// Whether another parent is known to have a volume.
    pub(super) fn is_had_elsewhere(&self, volume: VolumeId, parent: usize) -> bool {
        self.sources.get(&volume).is_some_and(|of| *of != parent)
    }

    /// A parent's part of a list of volumes: the next one is asked, or the child is answered.
    fn volumes_listed(
        &mut self,
        now: Instant,
        request: RequestId,
        (volumes, more): (Vec<VolumeInfo>, bool),
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        let after = match self.pending.get(&request).map(|pending| &pending.what) {
            Some(What::Other(Message::ListVolumes { after, .. })) => after,
            _ => return Ok(()),
        };
        // Before it counts as answered: on the next link it is asked anew.
        let rises = volumes.windows(2).all(|pair| pair[0].name <= pair[1].name);
        let begins = volumes.first().is_none_or(|first| first.name > *after);
        if more && volumes.is_empty() || !rises || !begins {
            return violation("a list that does not go on");
        }
        let Some(mut pending) = self.answered(request) else { return Ok(()) };
        let Some((link, asked)) = pending.asker else { return Ok(()) };
        let parent = pending.parent;
        let end = volumes.last().filter(|_| more).map(|last| last.name.clone());
        pending.search.asked.insert(parent);
        // Of what is had from another one this one says nothing.
        let own = volumes.into_iter().filter(|volume| {
            self.parent_of(volume.domain).is_none_or(|of| of == parent)
                && !self.is_had_elsewhere(volume.id, parent)
        });
        let own: Vec<VolumeInfo> = own.collect();
        // One that names nothing of its own goes on for nobody: an empty list must not.
        pending.search.ends.extend(end.filter(|_| !own.is_empty()));
        own.iter().for_each(|volume| self.had_from(volume.id, parent));
        pending.search.volumes.extend(own);
        if pending.search.asked.len() < self.uplinks.len() {
            self.ask_next(now, &mut pending);
            self.enqueue(pending);
            return Ok(());
        }
        let (volumes, more) = pending.search.merged();
        let answer = Message::Volumes { request: asked, volumes, more };
        self.links.pass_reply(link, (answer, request), out);
        Ok(())
    }
}
