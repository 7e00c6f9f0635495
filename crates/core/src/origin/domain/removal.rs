//! Deleted volumes: the deletion, and removing what the page engine holds of them.
//!
//! A deletion is a log record with a stamp, like a commit: what was stamped before it is done, what
//! comes after it is refused. It changes the page that stands for the volume
//! ([`PageId::of_volume`]), so that every stream, and every resume from before it, tells of it for
//! good. When it is durable, nothing of the volume is installed any more; its pages leave memory, some
//! of them in a step, and are then removed from the engine, a batch at a time, each with an install of
//! its own or the next one.
//! The engine lists what is left, so that a removal goes on after a restart wherever it ended, and a
//! batch that is installed twice, or by an engine that has more of the volume than the metadata tells,
//! does no harm.

use super::batch::Item;
use super::pages::Image;
use super::volumes::{Asker, Deleting, Volume};
use super::{Context, Domain, Event, LoadFor};
use crate::commit::{Change, PageChange};
use crate::downlink::Recent;
use crate::id::{CommitId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::machine::{Fault, Faults};
use crate::message::{Message, RequestError};
use crate::origin::io::{LoadId, LoadKey, OriginOutput, StoreFault};
use crate::record::{DELETED_MAX, DeletedVolume, LogRecord};
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Bytes of pages that one batch removes, at most: the engine reads them to do so.
const BATCH_BYTES: usize = 8 << 20;
/// When commits have freed so many bytes of images, and this share of all that are kept, their space
/// is given back.
const GIVE_BACK_BYTES: u64 = 64 << 20;
const GIVE_BACK_SHARE: u64 = 16;
/// So many volumes are looked for at once.
const LOOKS: usize = 4;
/// A batch has at least so many pages, however large they are.
const BATCH_PAGES_MIN: usize = 8;

/// Pages to be removed with the next install.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Batch {
    pub(super) volume: VolumeId,
    pub(super) pages: Vec<(PageId, Stamp)>,
    /// There are no more of the volume.
    last: bool,
    /// What was left before it.
    left: u64,
}

impl Batch {
    /// The page that stands for the volume.
    pub(super) fn mark(&self) -> PageId {
        PageId::of_volume(self.volume)
    }
}

/// Where the removal stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Step {
    #[default]
    Idle,
    /// The engine lists pages of this volume above a number.
    Listing(VolumeId, usize),
    /// They go with the next install.
    Listed(Batch),
    /// Those of this volume are going.
    Removing(VolumeId),
}

/// Volumes that were deleted, and the removal of what they left.
#[derive(Debug, Default)]
pub(super) struct Removal {
    deleted: BTreeMap<VolumeId, DeletedVolume>,
    /// The last page looked at, of the volume that is being removed.
    after: (VolumeId, PageNo),
    step: Step,
    /// Bytes of images that commits have freed in volumes that are there, since space was given back.
    freed: u64,
    /// The engine could not list, or remove: not before this.
    not_before: Option<Instant>,
    /// Volumes whose pages the engine could not list when it was last asked.
    unlisted: BTreeSet<VolumeId>,
    /// The one of them that it was asked for last.
    refused: VolumeId,
    looks: Looks,
    /// Pages of deleted volumes are in memory: the next step forgets more of them.
    pub(super) forgets_on: Option<Instant>,
}

/// Volumes of which it is asked whether they were deleted, each with the time since when.
#[derive(Debug, Default)]
struct Looks {
    waiting: VecDeque<(VolumeId, Instant)>,
    under_way: BTreeMap<VolumeId, Instant>,
    /// Loads under way, those included for which nobody waits any more.
    loads: usize,
}

impl Removal {
    pub(super) fn recovered(deleted: &[DeletedVolume], faults: Faults) -> Self {
        let left = |volume: &DeletedVolume| volume.left.filter(|_| !forgets(faults));
        let known = |volume: &DeletedVolume| DeletedVolume { left: left(volume), ..volume.clone() };
        let deleted = deleted.iter().map(|volume| (volume.id, known(volume))).collect();
        Self { deleted, ..Self::default() }
    }

    /// Whether the volume is known to have been deleted.
    pub(super) fn knows(&self, volume: VolumeId) -> bool {
        self.deleted.contains_key(&volume)
    }

    /// A volume was deleted. Of those whose pages are removed the oldest are forgotten; not one whose
    /// last batch is under way, which may yet be refused.
    pub(super) fn add(&mut self, volume: DeletedVolume) {
        self.deleted.entry(volume.id).or_insert(volume);
        while self.removed().count() > DELETED_MAX {
            let oldest = self.removed().min_by_key(|volume| volume.stamp).map(|oldest| oldest.id);
            self.deleted.remove(&oldest.expect("there are many"));
        }
    }

    /// Those of which nothing is left.
    fn removed(&self) -> impl Iterator<Item = &DeletedVolume> + '_ {
        let under_way = match self.step {
            Step::Removing(volume) => Some(volume),
            _ => None,
        };
        let gone =
            move |volume: &&DeletedVolume| volume.left.is_none() && under_way != Some(volume.id);
        self.deleted.values().filter(gone)
    }

    /// Whether there may have been a deleted volume that is not known any more.
    fn may_have_forgotten(&self) -> bool {
        self.removed().count() >= DELETED_MAX
    }

    /// A commit grew a volume by so many bytes, or shrank it.
    pub(super) fn freed(&mut self, grown: i64) {
        self.freed += if grown < 0 { grown.unsigned_abs() } else { 0 };
    }

    /// Whether so much is free by now that it is worth its compaction, which looks at all keys of a
    /// store that keeps `bytes` of images.
    pub(super) fn take_freed(&mut self, bytes: impl FnOnce() -> u64) -> bool {
        let much = self.freed >= GIVE_BACK_BYTES && self.freed >= bytes() / GIVE_BACK_SHARE;
        if much {
            self.freed = 0;
        }
        much
    }

    /// For the metadata, ascending by id.
    pub(super) fn meta(&self) -> Vec<DeletedVolume> {
        self.deleted.values().cloned().collect()
    }

    /// Volumes of which pages are still to be removed, and how many, about.
    pub(super) fn left(&self) -> (u64, u64) {
        let left = self.deleted.values().filter_map(|volume| volume.left);
        left.fold((0, 0), |(volumes, pages), left| (volumes + 1, pages + left))
    }

    /// When it wants to go on.
    pub(super) fn due(&self) -> Option<Instant> {
        self.not_before.filter(|_| matches!(self.step, Step::Idle | Step::Listed(_)))
    }

    /// Whether a batch is to go with the next install.
    pub(super) fn wants_install(&self, now: Instant) -> bool {
        matches!(self.step, Step::Listed(_)) && self.not_before.is_none_or(|at| at <= now)
    }

    /// Takes the batch that goes with an install whose metadata is made next: it tells what will be
    /// left.
    pub(super) fn take(&mut self) -> Option<Batch> {
        let Step::Listed(Batch { volume, .. }) = self.step else { return None };
        let Step::Listed(batch) = std::mem::replace(&mut self.step, Step::Removing(volume)) else {
            unreachable!("just seen");
        };
        let entry = self.deleted.get_mut(&volume).expect("of it something is left");
        let left = batch.left.saturating_sub(batch.pages.len() as u64);
        if !batch.last {
            crate::probe::probe("removal-goes-on-in-batches");
        }
        entry.left = (!batch.last).then_some(left.max(1));
        Some(batch)
    }

    /// The engine listed what it holds. Says of which volume, if it could not before.
    pub(super) fn found(
        &mut self,
        cx: &Context<'_>,
        pages: Vec<(PageId, Stamp)>,
    ) -> Option<VolumeId> {
        let Step::Listing(volume, limit) = std::mem::take(&mut self.step) else {
            panic!("a list that was not asked for");
        };
        let last = pages.len() < limit;
        let left = self.deleted.get(&volume).and_then(|deleted| deleted.left).unwrap_or_default();
        self.not_before = Some(cx.now);
        self.step = Step::Listed(Batch { volume, pages, last, left });
        self.unlisted.remove(&volume).then_some(volume)
    }

    /// It could not: what is left of others goes first. Says of which volume, the first time.
    pub(super) fn not_found(&mut self, cx: &Context<'_>) -> Option<VolumeId> {
        let Step::Listing(volume, _) = std::mem::take(&mut self.step) else {
            panic!("a list that was not asked for");
        };
        crate::probe::probe("removal-not-listed");
        self.not_before = Some(cx.now.after(cx.config.full_retry));
        self.refused = volume;
        self.unlisted.insert(volume).then_some(volume)
    }

    /// A batch is removed.
    pub(super) fn done(&mut self, cx: &Context<'_>, batch: &Batch) {
        self.step = Step::Idle;
        self.not_before = Some(cx.now);
        if let Some((page, _)) = batch.pages.last() {
            self.after = (batch.volume, page.page);
        }
    }

    /// It was not.
    pub(super) fn failed(&mut self, cx: &Context<'_>, batch: Batch) {
        let entry = self.deleted.get_mut(&batch.volume).expect("kept while it was under way");
        crate::probe::probe("removal-refused");
        entry.left = Some(batch.left);
        self.step = Step::Listed(batch);
        self.not_before = Some(cx.now.after(cx.config.full_retry));
    }

    /// Panics when a volume is there and deleted.
    pub(super) fn check(&self, volumes: &BTreeMap<VolumeId, Volume>) {
        let there = self.deleted.keys().find(|volume| volumes.contains_key(volume));
        assert_eq!(there, None, "a deleted volume is there");
    }

    /// What is to be listed next, if anything is: what could not be listed comes last, in turn.
    fn next(&self) -> Option<(&DeletedVolume, PageNo)> {
        let left = |volume: &&DeletedVolume| volume.left.is_some();
        let listed = |volume: &&DeletedVolume| left(volume) && !self.unlisted.contains(&volume.id);
        let (under_way, after) = self.after;
        if let Some(same) = self.deleted.get(&under_way).filter(listed) {
            return Some((same, after));
        }
        let mut others = self.deleted.range((Excluded(self.refused), Unbounded));
        let other = self.deleted.values().find(listed);
        let other = other.or_else(|| others.find_map(|(_, volume)| Some(volume).filter(left)));
        let volume = other.or_else(|| self.deleted.values().find(left))?;
        let from = if volume.id == under_way { after } else { PageNo(0) };
        Some((volume, from))
    }
}

/// A planted fault: whatever an earlier process left of deleted volumes stays.
fn forgets(faults: Faults) -> bool {
    faults.has(Fault::ForgetRemoval)
}

impl Domain {
    /// What is wrong with a volume that is not there.
    pub(in crate::origin) fn no_volume(&self, volume: VolumeId) -> RequestError {
        match self.removal.deleted.get(&volume) {
            Some(deleted) => RequestError::Deleted(deleted.name.clone()),
            None => RequestError::NoVolume(volume.to_string()),
        }
    }

    /// Volumes that were deleted, as far as they are still known.
    pub(in crate::origin) fn deleted_volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.removal.deleted.keys().copied()
    }

    /// Whether a volume of this id was deleted, as far as it is still known.
    pub(in crate::origin) fn was_deleted(&self, volume: VolumeId) -> bool {
        self.removal.knows(volume)
    }

    /// Whether a volume may have been deleted of which nothing is known here: then the engine knows
    /// it, which keeps the page that stands for it.
    pub(in crate::origin) fn may_have_forgotten(&self) -> bool {
        !self.is_failed() && self.removal.may_have_forgotten()
    }

    /// Looks whether a volume that is not there was deleted; told as an event.
    pub(in crate::origin) fn look_for_deleted(&mut self, cx: &mut Context<'_>, volume: VolumeId) {
        if self.removal.knows(volume) || self.pages.version(PageId::of_volume(volume)) > Stamp::ZERO
        {
            return cx.events.push(Event::Looked(self.id, volume, Ok(true)));
        }
        self.removal.looks.waiting.push_back((volume, cx.now));
        self.look_on(cx);
    }

    fn look_on(&mut self, cx: &mut Context<'_>) {
        while self.removal.looks.loads < LOOKS
            && let Some((volume, since)) = self.removal.looks.waiting.pop_front()
        {
            self.removal.looks.under_way.insert(volume, since);
            self.removal.looks.loads += 1;
            let load = self.load_id();
            self.loads.insert(load, LoadFor::Deleted(volume));
            let key = LoadKey::Page(PageId::of_volume(volume));
            cx.out.push(OriginOutput::Load { domain: self.id, load, key });
        }
    }

    /// The engine has the page that stands for the volume, or has not.
    pub(super) fn looked(
        &mut self,
        cx: &mut Context<'_>,
        volume: VolumeId,
        found: Result<bool, StoreFault>,
    ) {
        self.removal.looks.loads -= 1;
        if self.removal.looks.under_way.remove(&volume).is_some() {
            let found = found.map_err(|fault| fault.to_string());
            cx.events.push(Event::Looked(self.id, volume, found));
        }
        self.look_on(cx);
    }

    /// Gives up looking where it takes too long, or, for a domain that fails, everywhere.
    pub(super) fn give_up_looks(&mut self, cx: &mut Context<'_>, detail: &str) {
        let (failed, most) = (self.is_failed(), cx.config.wait_max);
        let late = |since: Instant| failed || since.after(most) <= cx.now;
        let Looks { waiting, under_way, .. } = &mut self.removal.looks;
        let mut given_up = Vec::new();
        for (volume, since) in waiting.iter().copied().chain(under_way.clone()) {
            if late(since) {
                given_up.push(volume);
            }
        }
        waiting.retain(|(_, since)| !late(*since));
        under_way.retain(|_, since| !late(*since));
        for volume in given_up {
            cx.events.push(Event::Looked(self.id, volume, Err(detail.to_owned())));
        }
    }

    /// Volumes of which pages are still to be removed, and how many pages, about.
    pub(in crate::origin) fn left_to_remove(&self) -> (u64, u64) {
        self.removal.left()
    }

    /// Deletes a volume, once that is durable; one that was deleted before is answered the same.
    pub(in crate::origin) fn delete_volume(
        &mut self,
        cx: &mut Context<'_>,
        (link, request): (LinkId, RequestId),
        asker: &Asker,
        volume: VolumeId,
    ) {
        if self.removal.knows(volume) {
            return cx.links.reply(link, Message::VolumeDeleted { request, volume }, cx.out);
        }
        let Some(entry) = self.volumes.get_mut(&volume) else {
            let error = RequestError::NoVolume(volume.to_string());
            return cx.links.fail(link, request, error, cx.out);
        };
        if let Err(error) = asker.check_admin(entry) {
            return self.refuse_for_rights(cx, (link, request), volume, error);
        }
        if let Some(with) = self.parts.holds(volume) {
            crate::probe::probe("deletion-meets-what-is-prepared");
            let error = format!("a transaction that domain {} decides is in doubt; again", with.0);
            return cx.links.fail(link, request, RequestError::Busy(error), cx.out);
        }
        let first = entry.deleting.is_none();
        entry.deleting.get_or_insert_with(Deleting::default).askers.push((link, request));
        if !first {
            return;
        }
        let stamp = self.stamped.next();
        self.stamped = stamp;
        let lsn =
            self.gather(LogRecord::Deleted { stamp, volume }, Item::Deleted { stamp, volume });
        let mark = PageId::of_volume(volume);
        self.recent.record(stamp, &[PageChange::whole(mark)]);
        self.write_mark(mark, (lsn, stamp));
        self.append(cx);
    }

    /// The volume's page is gone in the engine too: a tombstone, with its entry of the change index.
    fn write_mark(&mut self, mark: PageId, at: (crate::record::Lsn, Stamp)) {
        if !self.pages.is_loaded(mark) {
            let next = self.after_durable();
            self.pages.loaded(mark, Stamp::ZERO, Image { version: Stamp::ZERO, page: None }, next);
        }
        let entry = self.pages.get_mut(mark).expect("loaded above");
        let (image, _) = entry.gather();
        *image = Image { version: at.1, page: None };
        self.gathering.pages.push((mark, at));
    }

    /// A deletion is durable.
    pub(super) fn deleted(&mut self, cx: &mut Context<'_>, stamp: Stamp, volume: VolumeId) {
        let mark = PageId::of_volume(volume);
        let pages = vec![PageChange::whole(mark)];
        self.ring.push(Recent::Change(Change { stamp, id: CommitId::default(), pages }));
        let gone = self.volumes.remove(&volume).expect("it was there when that was gathered");
        self.forget_volume(volume);
        let name = gone.meta.name.clone();
        self.removal.add(DeletedVolume {
            id: volume,
            name: name.clone(),
            page_bytes: gone.meta.page_bytes,
            stamp,
            left: Some(gone.meta.pages.max(1)),
        });
        self.removal.not_before.get_or_insert(cx.now);
        let Deleting { askers, refused } = gone.deleting.unwrap_or_default();
        for (link, request) in askers {
            cx.links.reply(link, Message::VolumeDeleted { request, volume }, cx.out);
        }
        for (link, request) in refused {
            cx.links.fail(link, request, RequestError::Deleted(name.clone()), cx.out);
        }
        cx.events.push(Event::VolumeDeleted(volume, name));
    }

    /// A deletion is not to be.
    pub(super) fn not_deleted(
        &mut self,
        cx: &mut Context<'_>,
        volume: VolumeId,
        error: &RequestError,
    ) {
        let entry = self.volumes.get_mut(&volume).expect("its deletion is not durable");
        let Deleting { askers, refused } = entry.deleting.take().unwrap_or_default();
        for (link, request) in askers.into_iter().chain(refused) {
            cx.links.fail(link, request, error.clone(), cx.out);
        }
    }

    /// Nothing of the volume is installed any more, and before long nothing of it is in memory.
    pub(super) fn forget_volume(&mut self, volume: VolumeId) {
        self.pages.disown(volume);
        self.install.forget_volume(volume);
    }

    /// Forgets pages of deleted volumes: some of them in a step, since commits wait behind it.
    pub(super) fn forget_disowned(&mut self, cx: &Context<'_>) {
        self.pages.forget_disowned(cx.config.forget_pages_max);
        self.removal.forgets_on = self.pages.has_disowned().then_some(cx.now);
    }

    /// Asks for what is to be removed next. Not while an install is under way: it may have been
    /// composed before the deletion, and put back what was removed.
    pub(super) fn look_for_removable(&mut self, cx: &mut Context<'_>) {
        let waits = self.removal.not_before.is_some_and(|at| at > cx.now);
        if self.removal.step != Step::Idle
            || waits
            || !self.installs()
            || self.install.is_under_way()
        {
            return;
        }
        let Some((volume, after)) = self.removal.next() else {
            self.removal.not_before = None;
            return;
        };
        let most = (BATCH_BYTES / volume.page_bytes as usize).max(BATCH_PAGES_MIN);
        let limit = most.min(cx.config.install_pages_max);
        let volume = volume.id;
        self.removal.step = Step::Listing(volume, limit);
        let load: LoadId = self.load_id();
        self.loads.insert(load, LoadFor::Removal);
        let key = LoadKey::Removable { volume, after, limit };
        cx.out.push(OriginOutput::Load { domain: self.id, load, key });
    }

    /// The engine listed what is to be removed, or could not, which the operator is told once.
    pub(super) fn removable_loaded(
        &mut self,
        cx: &mut Context<'_>,
        result: Result<Vec<(PageId, Stamp)>, StoreFault>,
    ) {
        let domain = self.id;
        match result {
            Ok(pages) => {
                if let Some(volume) = self.removal.found(cx, pages) {
                    cx.out.push(OriginOutput::RemovalGoesOn { domain, volume });
                }
            }
            Err(fault) => {
                if let Some(volume) = self.removal.not_found(cx) {
                    let name = self.removal.deleted[&volume].name.clone();
                    cx.out.push(OriginOutput::RemovalWaits { domain, volume, name, fault });
                }
            }
        }
    }

    /// A batch is removed: its pages leave memory too. Space is given back when all of the volume is.
    pub(super) fn removed(&mut self, cx: &mut Context<'_>, batch: &Batch) {
        self.pages.forget(&batch.pages.iter().map(|(page, _)| *page).collect::<Vec<_>>());
        self.removal.done(cx, batch);
        if batch.last {
            cx.out.push(OriginOutput::GiveBack { domain: self.id });
        }
    }

    /// Takes over a deletion from the log.
    pub(super) fn replay_deletion(
        &mut self,
        stamp: Stamp,
        volume: VolumeId,
        lsn: crate::record::Lsn,
    ) {
        crate::probe::probe("deletion-recovered-from-the-log");
        let gone = self.volumes.remove(&volume);
        self.forget_volume(volume);
        self.pages.forget_disowned(usize::MAX);
        let meta = gone.map(|gone| gone.meta);
        let left = meta.as_ref().map_or(1, |meta| meta.pages.max(1));
        self.removal.add(DeletedVolume {
            id: volume,
            name: meta.as_ref().map_or_else(|| volume.to_string(), |meta| meta.name.clone()),
            page_bytes: meta.map_or(crate::page::PAGE_BYTES_MAX, |meta| meta.page_bytes),
            stamp,
            left: Some(left).filter(|_| !forgets(self.faults)),
        });
        self.pages.recover_mark(PageId::of_volume(volume), (lsn, stamp));
    }
}
