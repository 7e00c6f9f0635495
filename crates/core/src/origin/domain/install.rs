//! Background installation of changed pages, and giving log space back.

use super::apart::{Damage, Parted};
use super::load_queue::Claimant;
use super::{Context, Domain, Service, removal};
use crate::id::{PageId, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::{Epoch, RequestError};
use crate::origin::io::{OriginOutput, StoreFault, WriteId};
use crate::record::{Apart, DomainMeta, InstallBatch, Lsn};
use crate::time::Instant;
use std::collections::BTreeSet;

/// After so many installs that found room the next may be twice as large.
const ROOM_FOUND: u32 = 8;

/// Pages being installed, each with its first change.
type Taken = Vec<(PageId, (Lsn, Stamp))>;

/// An install.
#[derive(Debug)]
struct UnderWay {
    write: WriteId,
    pages: Taken,
    parted: Parted,
    removed: Option<removal::Batch>,
    /// What its metadata says.
    lsn: Lsn,
}

/// What a store without much room takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    /// Pages of a batch.
    pages: usize,
    /// Batches of that many that went through since.
    found: u32,
}

/// Where installation stands.
#[derive(Debug, Default)]
pub(super) struct Installing {
    under_way: Option<UnderWay>,
    /// When what is not installed is due.
    due_at: Option<Instant>,
    /// The store was full: not before this.
    not_before: Option<Instant>,
    /// The store was full: what it takes since.
    room: Option<Room>,
    /// It was full, and the operator was told.
    waits: bool,
    /// Pages that could not be loaded. They must not keep others from being installed.
    pub(super) damage: Damage,
    /// Pages that are being loaded to be installed.
    wanted: BTreeSet<PageId>,
    /// Nothing is looked for before this, or before those are there.
    wanted_until: Option<Instant>,
    /// The next batch takes changes to be kept apart first, and pages with what room they leave; the
    /// one after it the other way round, so that neither keeps the other out.
    apart_first: bool,
    /// The highest version in the change index.
    index_max: Stamp,
}

impl Installing {
    pub(super) fn recovered(installed: Lsn) -> Self {
        // What an earlier process installed last is not known.
        let index_max = if installed == Lsn(0) { Stamp::ZERO } else { Stamp(u64::MAX) };
        Self { index_max, ..Self::default() }
    }

    /// When it wants to run.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        let not_before = self.not_before.max(self.wanted_until).unwrap_or_default();
        let due = self.due_at.map(|due| due.max(not_before));
        due.into_iter().chain(self.damage.due()).min()
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// The volume was deleted: what could not be read of it is wanted no more.
    pub(super) fn forget_volume(&mut self, volume: VolumeId) {
        self.damage.forget_volume(volume);
        self.wanted.retain(|page| page.volume != volume);
        if self.wanted.is_empty() {
            self.wanted_until = None;
        }
    }

    /// Log space is wanted.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.due_at = Some(now);
    }

    /// A page is loaded for it.
    pub(super) fn want(&mut self, page: PageId) {
        self.wanted.insert(page);
    }

    /// A page was loaded, or could not be.
    fn looked_at(&mut self, page: PageId) {
        if self.wanted.remove(&page) && self.wanted.is_empty() {
            self.wanted_until = None;
        }
    }

    /// A batch of `size` pages went through. After a store was full batches grow slowly: were the
    /// next one as large as any, a disk with room for a page each would refuse ten for each page.
    fn found_room(&mut self, size: usize, most: usize) {
        let Some(room) = &mut self.room else {
            return;
        };
        if size < room.pages {
            // It says nothing of larger ones.
            return;
        }
        room.found += 1;
        if room.found == ROOM_FOUND {
            *room = Room { pages: room.pages.saturating_mul(2), found: 0 };
        }
        self.room = Some(*room).filter(|room| room.pages < most);
    }

    /// Whether changes are being kept apart.
    pub(super) fn parting(&self) -> bool {
        self.under_way.as_ref().is_some_and(|install| !install.parted.is_empty())
    }

    /// Whether a page is loaded for it.
    pub(super) fn wants(&self, page: PageId) -> bool {
        self.wanted.contains(&page)
    }

    /// Whether the change index may name a page after `stamp`.
    pub(super) fn index_may_have(&self, stamp: Stamp) -> bool {
        self.index_max > stamp
    }
}

impl Domain {
    /// Installs a batch if one is due.
    pub(super) fn install(&mut self, cx: &mut Context<'_>) {
        if !self.installs() || self.install.under_way.is_some() || self.pages.has_disowned() {
            return;
        }
        self.retry_unreadable(cx);
        let removes = self.removal.wants_install(cx.now);
        self.log_prepared_again(cx);
        let through = self.first_kept().map_or(self.durable_lsn, |(lsn, _)| Lsn(lsn.0 - 1));
        let idle = self.installed_lsn == through && self.pages.first_uninstalled().is_none();
        if idle && !removes {
            self.install.due_at = None;
            return;
        }
        if removes && (idle || !self.install_is_late(cx)) {
            return self.begin_install(cx, (Vec::new(), Vec::new(), Parted::new()));
        }
        let interval = cx.config.install_interval;
        if !self.install_is_late(cx) {
            return;
        }
        let most = self.install.room.map_or(usize::MAX, |room| room.pages);
        let most = most.min(cx.config.install_pages_max);
        self.install.apart_first = !self.install.apart_first;
        let first = if self.install.apart_first { most } else { 0 };
        let (mut apart, mut parted) = self.take_apart(cx, first);
        let pages = self.take_oldest(cx, most - apart.len());
        if !self.install.apart_first {
            (apart, parted) = self.take_apart(cx, most - pages.len());
        }
        if pages.is_empty() && apart.is_empty() && self.pages.first_uninstalled().is_some() {
            // All of them are being loaded, or cannot be.
            self.install.wanted_until = Some(cx.now.after(interval));
            return;
        }
        self.begin_install(cx, (pages, apart, parted));
    }

    /// Whether what is not installed is due.
    fn install_is_late(&mut self, cx: &Context<'_>) -> bool {
        let interval = cx.config.install_interval;
        let due = *self.install.due_at.get_or_insert(cx.now.after(interval));
        // With little memory before it is full: commits would wait for the interval each time (bug 138).
        let most = cx.config.install_bytes.min(cx.config.dirty_bytes_max / 2);
        let late = due <= cx.now || self.pages.dirty_bytes() >= most;
        let not_before = self.install.not_before.max(self.install.wanted_until);
        late && not_before.is_none_or(|at| at <= cx.now)
    }

    /// Installs these pages and changes, with what is to be removed.
    fn begin_install(
        &mut self,
        cx: &mut Context<'_>,
        (mut pages, apart, parted): (Vec<PageId>, Vec<Apart>, Parted),
    ) {
        let removed = self.removal.take();
        let removes_alone = removed.is_some() && pages.is_empty();
        // The page that stands for the volume, if it is not installed yet, goes with the batch: who looks through
        // the change index for what a child missed, and finds the volume's pages gone, must find that one
        // ahead (bug 164).
        let mark = removed.as_ref().map(removal::Batch::mark);
        if let Some(mark) = mark.filter(|mark| self.pages.since(*mark).is_some())
            && let Err(place) = pages.binary_search(&mark)
        {
            pages.insert(place, mark);
        }
        let since = |page: &PageId| (*page, self.pages.since(*page).expect("it is dirty"));
        let taken: Taken = pages.iter().map(since).collect();
        let installed = pages.iter().map(|page| self.pages.take_for_install(*page)).collect();
        let joined = pages.iter().copied().filter(|page| self.pages.is_apart(*page)).collect();
        for page in &pages {
            self.pages.begin_install(*page);
        }
        let gone = removed.as_ref().map_or_else(Vec::new, |batch| batch.pages.clone());
        let meta = self.meta();
        let batch = InstallBatch { pages: installed, apart, joined, removed: gone, meta };
        let write = self.write_id();
        let versions = batch.pages.iter().map(|page| page.stored.version);
        self.install.index_max = versions.max().unwrap_or_default().max(self.install.index_max);
        let lsn = batch.meta.installed_lsn;
        // A removal alone puts nothing off: many of them come one after another.
        if !removes_alone {
            self.install.due_at = None;
        }
        self.install.under_way = Some(UnderWay { write, pages: taken, parted, removed, lsn });
        cx.out.push(OriginOutput::Install { domain: self.id, write, batch });
    }

    /// Whether it installs. A store that is full at the start is given its space back; any other
    /// may wait.
    pub(super) fn installs(&self) -> bool {
        matches!(self.service, Service::Open | Service::Full)
    }

    /// The pages longest not installed that are in memory, ascending; the others are loaded, if
    /// they can be.
    fn take_oldest(&mut self, cx: &mut Context<'_>, most: usize) -> Vec<PageId> {
        let damage = &self.install.damage;
        let loaded = |page: &PageId| self.pages.is_loaded(*page);
        let oldest = self.pages.oldest().filter(|page| loaded(page) || !damage.has(*page));
        let oldest = oldest.take(most);
        let (mut loaded, absent): (Vec<_>, Vec<_>) = oldest.partition(loaded);
        for page in absent {
            self.load(cx, page, Claimant::Own);
            self.install.want(page);
        }
        loaded.sort_unstable();
        loaded
    }

    /// A page was loaded, or could not be.
    pub(super) fn loaded_to_install(
        &mut self,
        cx: &Context<'_>,
        page: PageId,
        failed: Option<&RequestError>,
    ) {
        self.note_loaded(cx, page, failed);
        self.install.looked_at(page);
    }

    /// The metadata with everything durable. Records up to `installed_lsn` are never read again;
    /// what later ones say is in it too, and is skipped by their stamps when they are replayed.
    fn meta(&self) -> DomainMeta {
        let first = self.first_kept();
        DomainMeta {
            domain: self.id,
            installed_lsn: first.map_or(self.durable_lsn, |(lsn, _)| Lsn(lsn.0 - 1)),
            installed: first.map_or(self.durable, |(_, stamp)| stamp.previous()),
            epochs: self.durable_epochs().to_vec(),
            volumes: self.volumes.values().map(|volume| volume.meta.clone()).collect(),
            deleted: self.removal.meta(),
            boots: self.boots.meta(self.faults),
            decided: match self.faults.has(Fault::DecisionsUnlisted) {
                true => Vec::new(),
                false => self.parts.decided(),
            },
        }
    }

    /// The first place in the log that it must keep, if it may not all be given back.
    fn first_kept(&self) -> Option<(Lsn, Stamp)> {
        self.pages.first_uninstalled().into_iter().chain(self.parts.held()).min()
    }

    fn durable_epochs(&self) -> &[Epoch] {
        let undurable = usize::from(!self.is_open());
        &self.epochs[..self.epochs.len() - undurable]
    }

    /// An install found room: enough for all that waits, or for as much as ever.
    fn tell_room(&mut self, cx: &mut Context<'_>) {
        let enough = self.install.room.is_none() || self.pages.first_uninstalled().is_none();
        if enough && std::mem::take(&mut self.install.waits) {
            cx.out.push(OriginOutput::InstallsGoOn { domain: self.id });
        }
    }

    /// An install ended.
    pub(in crate::origin) fn installed(
        &mut self,
        cx: &mut Context<'_>,
        write: WriteId,
        result: Result<(), StoreFault>,
    ) {
        if self.is_failed() {
            return;
        }
        let under_way = self.install.under_way.take().expect("one is under way");
        let UnderWay { write: expected, pages, mut parted, removed, lsn } = under_way;
        assert_eq!(expected, write, "installs are answered in order");
        let size = pages.len() + parted.len();
        self.install.damage.note();
        // A volume may have been deleted meanwhile.
        let there = |page: &PageId| page.is_volume() || self.volumes.contains_key(&page.volume);
        let (pages, gone): (Taken, Taken) = pages.into_iter().partition(|(page, _)| there(page));
        parted.retain(|(page, ..)| there(page));
        for (page, _) in &gone {
            crate::probe::probe("volume-deleted-during-install");
            self.pages.installed(*page);
        }
        self.pages.forget(&gone.into_iter().map(|(page, _)| page).collect::<Vec<_>>());
        match result {
            Ok(()) => {
                for (page, _) in pages {
                    self.pages.installed(page);
                }
                if let Some(batch) = removed {
                    self.removed(cx, &batch);
                }
                self.installed_lsn = lsn;
                self.install.found_room(size, cx.config.install_pages_max);
                self.tell_room(cx);
                cx.out.push(OriginOutput::TrimLog { domain: self.id, through: lsn });
                let volumes = &self.volumes;
                if self.removal.take_freed(|| volumes.values().map(|v| v.meta.bytes).sum()) {
                    cx.out.push(OriginOutput::GiveBack { domain: self.id });
                }
                if self.service == Service::Full {
                    // Space was given back: perhaps enough.
                    self.append_after = None;
                    self.install.hurry(cx.now);
                }
            }
            Err(fault @ StoreFault::Full(_)) => {
                if !std::mem::replace(&mut self.install.waits, true) {
                    cx.out.push(OriginOutput::InstallsWait { domain: self.id, fault });
                }
                crate::probe::probe("install-finds-no-room");
                self.install.room = Some(Room { pages: (size / 2).max(1), found: 0 });
                let newest = cx.config.faults.has(Fault::InstallFromNewest);
                for (page, first) in pages {
                    let since = self.pages.since_install(page).filter(|_| newest);
                    self.pages.install_failed(page, since.unwrap_or(first));
                }
                for (page, first, before) in parted {
                    self.pages.apart_failed(page, first, before);
                }
                if let Some(batch) = removed {
                    self.removal.failed(cx, batch);
                }
                self.install.not_before = Some(cx.now.after(cx.config.full_retry));
                self.install.hurry(cx.now);
            }
            Err(fault) => self.fail(cx, fault),
        }
    }
}
