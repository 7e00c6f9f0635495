//! Volumes that were deleted: nothing of them is kept, and nobody waits for anything of them.

use super::domain::Stream;
use super::link::Came;
use super::{Cache, CacheOutput, Notice, Out, VolumeEntry};
use crate::cache::read::{Batch, RecentChange};
use crate::commit::PageChange;
use crate::id::{DomainId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::message::{Message, RequestError, VolumeInfo, VolumeKey};
use crate::rights::Right;

/// Volumes that passed for deleted after which is asked at a new history, beside those of which it must be known.
const DELETED_ASKED_MAX: usize = 256;

impl Cache {
    /// A change of the page that stands for a volume: all of the volume is dropped. Running
    /// transactions that touched it are doomed, and what is in flight of it is asked for anew, which
    /// ends with what the origin says of the volume. Superset-safe: a volume that is still there is
    /// fetched anew.
    pub(super) fn drop_volume(
        &mut self,
        domain: DomainId,
        volume: VolumeId,
        stamp: Stamp,
        batch: &Batch<'_>,
    ) {
        let whole = PageChange::whole(PageId::of_volume(volume));
        let touched = whole.touched.as_slice().into();
        batch.note(RecentChange { stamp, page: whole.page, touched });
        let entry = self.domains.get(&domain).expect("attached");
        let first = PageId { volume, page: PageNo(0) };
        let of_volume = first..whole.page;
        let flying: Vec<PageId> = entry.flights.pages_in(of_volume.clone()).collect();
        let (held, suspects) = entry.holdings.pages_in(of_volume);
        for page in flying {
            self.keep_for_flight(domain, stamp, &PageChange::whole(page));
        }
        for page in suspects {
            self.drop_suspect_of(domain, page);
            self.owe_notice(domain, page);
        }
        for page in held {
            self.drop_copy(domain, page);
            self.owe_notice(domain, page);
        }
    }

    /// The origin began anew, perhaps from a copy of before a deletion that was told of. Whether the volumes are there
    /// is asked now: while one passes for deleted nobody asks what may be done with it (bug 167), what was missing may
    /// be so on this history too, and one that was deleted before is told to nobody again (bug 227).
    pub(super) fn forget_deleted(&mut self, domain: DomainId) {
        let mut back = self.shared.forget_deleted(domain);
        back.sort_unstable();
        let restricted = |volume: &VolumeId| {
            self.shared.told_right(*volume).is_some_and(|right| right < Right::Admin)
        };
        let (must, may): (Vec<VolumeId>, Vec<VolumeId>) =
            back.iter().partition(|volume| self.missing.contains_key(volume) || restricted(volume));
        self.missing.retain(|volume, _| back.binary_search(volume).is_err());
        self.doubts.extend(must);
        // Of a process that saw thousands go, the others wait until somebody turns to them.
        self.doubts.extend(may.into_iter().take(DELETED_ASKED_MAX));
    }

    /// A resume named an open volume as a whole: it was deleted, or something is said of it. The parent
    /// is asked, though nobody here may use the volume for long.
    pub(super) fn doubt_volume(&mut self, volume: VolumeId) {
        if self.shared.volume(volume).is_some() && !self.shared.is_deleted(volume) {
            self.doubts.insert(volume);
        }
    }

    /// Asks for volumes of which it is not known whether they are there.
    pub(super) fn send_doubt(&mut self, out: &mut Out) -> bool {
        let due = self.doubts.iter().find_map(|&volume| {
            // Nobody else's word that there is no such volume counts.
            let up = self.source_of(self.shared.volume(volume)?.domain)?;
            (self.links[&up].room() > 0).then_some((volume, up))
        });
        let Some((volume, up)) = due else { return false };
        self.doubts.remove(&volume);
        let request = self.request_id();
        let link = self.links.get_mut(&up).expect("it has room");
        link.doubts.insert(request, volume);
        link.outstanding += 1;
        let key = VolumeKey::Id(volume);
        self.send_on(up, Message::OpenVolume { request, key }, out);
        true
    }

    /// A question after a volume was refused: it may not be read still. If it was asked before the parent
    /// knew of the stream, a right given since is told to nobody (bug 115): it is asked once more.
    pub(super) fn still_denied(&mut self, asked: RequestId, volume: VolumeId) {
        let Some(domain) = self.shared.volume(volume).map(|known| known.domain) else { return };
        let Some(entry) = self.domains.get_mut(&domain) else { return };
        match entry.stream() {
            Stream::Live(resume) | Stream::Again(resume) if asked > resume => {}
            Stream::Live(_) | Stream::Again(_) => {
                self.doubts.insert(volume);
            }
            _ => {
                entry.denied.insert(volume);
            }
        }
    }

    /// The volume that was asked for by this request of the cache itself.
    pub(super) fn doubt_answered(&mut self, (link, request): Came) -> Option<VolumeId> {
        let link = self.links.get_mut(&link)?;
        let volume = link.doubts.remove(&request)?;
        link.outstanding -= 1;
        Some(volume)
    }

    /// The parent knows of no such volume, and of no deletion: a restore lost it, or what was told of its end is forgotten.
    /// It passes for deleted until somebody is told that it is there, who asked later: who made it may make it again under
    /// its id, on the same history (bug 219).
    pub(super) fn note_missing(&mut self, volume: VolumeId, asked: RequestId, out: &mut Out) {
        let Some(known) = self.shared.volume(volume).filter(|_| !self.shared.is_deleted(volume))
        else {
            return;
        };
        self.note_deleted(known.domain, volume, out);
        self.missing.insert(volume, asked);
    }

    /// Whether the volume that is there is another one than was opened here under its id: what a restore lost was made
    /// again, with pages of another size or elsewhere (bug 221). What is open is the one that is no more, so it passes
    /// for missing; its own parent alone is believed that. Gives what is said to who asked.
    pub(super) fn has_become_another(
        &mut self,
        (link, asked): Came,
        info: &VolumeInfo,
        out: &mut Out,
    ) -> Option<RequestError> {
        let entry = VolumeEntry { domain: info.domain, page_bytes: info.page_bytes };
        let known = self.shared.volume(info.id).filter(|known| *known != entry)?;
        crate::probe::probe("volume-become-another");
        if self.source_of(known.domain) != Some(link) {
            return Some(RequestError::Exists(format!(
                "{} of domain {} has an id under which this process has one of domain {} open, of another parent: it",
                info.id, info.domain.0, known.domain.0
            )));
        }
        self.note_missing(info.id, asked, out);
        Some(RequestError::Deleted(format!(
            "{}, which this process has open with pages of {} bytes in domain {}, and in whose place there is one with {} \
             in domain {} now (start this process anew to open that),",
            info.id, known.page_bytes, known.domain.0, info.page_bytes, info.domain.0
        )))
    }

    /// A volume is there, says the answer to a question.
    pub(super) fn note_there(&mut self, volume: VolumeId, asked: RequestId) {
        if self.missing.get(&volume).is_some_and(|before| asked > *before) {
            crate::probe::probe("volume-made-again");
            self.missing.remove(&volume);
            self.shared.unset_deleted(volume);
            // What was told of rights is of before, perhaps (bug 167).
            self.doubts.insert(volume);
        }
    }

    /// The volume is known to be deleted: whoever asks for its pages is told so, with or without a
    /// link.
    pub(super) fn note_deleted(&mut self, domain: DomainId, volume: VolumeId, out: &mut Out) {
        self.missing.remove(&volume);
        let ours = self.shared.volume(volume).is_some_and(|known| known.domain == domain);
        if ours && self.shared.set_deleted(volume) {
            out.push(CacheOutput::Notice(Notice::VolumeDeleted { domain, volume }));
            // Those who wait for its pages; what is in flight is answered by the parent.
            let first = PageId { volume, page: PageNo(0) };
            let entry = self.domains.get_mut(&domain).expect("its volumes are open");
            let waiting = entry.flights.take_waiters(first..PageId::of_volume(volume));
            for user in waiting {
                self.reply(user, Err(RequestError::Deleted(volume.to_string())), out);
            }
        }
    }
}
