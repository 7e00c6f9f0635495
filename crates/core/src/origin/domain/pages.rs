//! Pages in memory: the cache of clean ones and the modified object buffer (decision 0002).

use crate::commit::Op;
use crate::hash::FixedMap;
use crate::id::{PageId, PageNo, Stamp, VolumeId};
use crate::page::Page;
use crate::record::{Apart, InstalledPage, LostApart, Lsn, StoredPage};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Memory of an entry beside its image: its place in a table that is half full after it grew, at the worst.
const ENTRY_BYTES: usize = 2 * (size_of::<(PageId, Entry)>() + 1 + size_of::<PageId>());

/// A page's state after some commit.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) version: Stamp,
    /// None: it is not there (never made, or deleted).
    pub(super) page: Option<Page>,
}

/// A page as far as it is known. Up to three images: what is durable, what the append under way
/// makes of it, and what the commits gathered for the next append make of it. An image is copied
/// once per append that changes it, never per commit.
#[derive(Debug)]
pub(super) struct Entry {
    /// The durable state; none: not in memory.
    durable: Option<Image>,
    pub(super) flying: Option<Image>,
    pub(super) gathering: Option<Image>,
    /// The durable version, also when the image is not in memory (recovered, not yet loaded).
    version: Stamp,
    /// The version the engine holds, once it was loaded or installed.
    stored: Stamp,
    /// Recovered ops, to be applied to the stored image where they are later than it.
    lazy: Vec<(Stamp, Op)>,
    /// The engine keeps changes of it apart: those of `lazy` up to a stamp, until it is loaded.
    apart: Option<KeptApart>,
    /// The first change that is not installed: the page is dirty.
    since: Option<(Lsn, Stamp)>,
    /// An install of this version is under way.
    installing: Option<Stamp>,
    /// The first change after that install was composed.
    since_install: Option<(Lsn, Stamp)>,
    /// Waiting commits that need it in memory.
    pins: u32,
    /// Read since the clock last passed.
    used: bool,
    /// In the clock.
    queued: bool,
}

/// What the engine keeps apart from a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeptApart {
    /// The last change among them.
    through: Stamp,
    bytes: usize,
}

/// What a page's memory counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Clean,
    Dirty,
    /// Not installed, and durable in the engine all the same.
    Apart,
}

impl Entry {
    fn new() -> Self {
        Self {
            durable: None,
            flying: None,
            gathering: None,
            version: Stamp::ZERO,
            stored: Stamp::ZERO,
            lazy: Vec::new(),
            apart: None,
            since: None,
            installing: None,
            since_install: None,
            pins: 0,
            used: false,
            queued: false,
        }
    }

    /// The state after all commits, tentative ones included.
    pub(super) fn latest(&self) -> Option<&Image> {
        self.gathering.as_ref().or(self.flying.as_ref()).or(self.durable.as_ref())
    }

    /// The image that the gathered commits change; says whether it was made just now.
    pub(super) fn gather(&mut self) -> (&mut Image, bool) {
        let new = self.gathering.is_none();
        if new {
            let latest = self.latest().expect("pages are loaded before they are changed");
            self.gathering = Some(latest.clone());
        }
        (self.gathering.as_mut().expect("made above"), new)
    }

    fn bytes(&self) -> usize {
        let image = self.durable.as_ref().and_then(|image| image.page.as_ref());
        ENTRY_BYTES + image.map_or(0, Page::size) + self.lazy.len() * size_of::<(Stamp, Op)>()
    }

    fn class(&self) -> Class {
        if self.since.is_some() || self.installing.is_some() {
            Class::Dirty
        } else if self.apart.is_some() {
            Class::Apart
        } else {
            Class::Clean
        }
    }

    fn evictable(&self) -> bool {
        self.class() == Class::Clean
            && self.flying.is_none()
            && self.gathering.is_none()
            && self.pins == 0
    }
}

/// All pages in memory, of one domain.
#[derive(Debug)]
pub(super) struct Pages {
    entries: FixedMap<PageId, Entry>,
    /// Clean pages, in the order the clock looks at them.
    clock: VecDeque<PageId>,
    /// Dirty pages by their first change that is not installed.
    oldest: BTreeSet<(Lsn, PageId)>,
    /// Dirty pages, those being installed and those with changes kept apart, with their durable
    /// versions.
    uninstalled: BTreeMap<PageId, Stamp>,
    clean_bytes: usize,
    dirty_bytes: usize,
    /// Of changes kept apart.
    apart_bytes: usize,
    clean_bytes_max: usize,
    /// Pages of which changes kept apart are damaged, and how.
    lost: BTreeMap<PageId, String>,
    /// Of deleted volumes: where forgetting their pages goes on.
    disowned: VecDeque<PageId>,
}

impl Pages {
    pub(super) fn new(clean_bytes_max: usize) -> Self {
        Self {
            entries: FixedMap::default(),
            clock: VecDeque::new(),
            oldest: BTreeSet::new(),
            uninstalled: BTreeMap::new(),
            clean_bytes: 0,
            dirty_bytes: 0,
            apart_bytes: 0,
            clean_bytes_max,
            lost: BTreeMap::new(),
            disowned: VecDeque::new(),
        }
    }

    pub(super) fn get(&self, page: PageId) -> Option<&Entry> {
        self.entries.get(&page)
    }

    /// To read it, or to change its tentative images; everything else goes through `change`.
    pub(super) fn get_mut(&mut self, page: PageId) -> Option<&mut Entry> {
        self.entries.get_mut(&page)
    }

    /// Whether the page's state is in memory.
    pub(super) fn is_loaded(&self, page: PageId) -> bool {
        self.entries.get(&page).is_some_and(|entry| entry.durable.is_some())
    }

    /// The version after all commits, tentative ones included, as far as it is known without
    /// loading the page.
    pub(super) fn latest_version(&self, page: PageId) -> Option<Stamp> {
        let entry = self.entries.get(&page)?;
        let recovered = (!entry.lazy.is_empty()).then_some(entry.version);
        entry.latest().map(|image| image.version).or(recovered)
    }

    /// Bytes of pages that are installed as they are.
    pub(super) fn clean_bytes(&self) -> usize {
        self.clean_bytes
    }

    /// Bytes of changed pages.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Bytes of changes that the engine keeps apart from pages.
    pub(super) fn apart_bytes(&self) -> usize {
        self.apart_bytes
    }

    /// Whether the page has changes that are not installed.
    pub(super) fn is_uninstalled(&self, page: PageId) -> bool {
        self.uninstalled.contains_key(&page)
    }

    /// The version of a page that is not installed.
    pub(super) fn uninstalled(&self, page: PageId) -> Option<Stamp> {
        self.uninstalled.get(&page).copied()
    }

    /// Pages not installed, after `page`, with their versions.
    pub(super) fn uninstalled_after(
        &self,
        page: PageId,
    ) -> impl Iterator<Item = (PageId, Stamp)> + '_ {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = self.uninstalled.range((Excluded(page), Unbounded));
        let known = after.filter(|(page, _)| page.is_volume() || !self.is_disowned(page.volume));
        known.map(|(page, version)| (*page, *version))
    }

    /// Changes an entry and keeps the counts right.
    fn change<R>(&mut self, page: PageId, change: impl FnOnce(&mut Entry) -> R) -> R {
        let entry = self.entries.entry(page).or_insert_with(|| {
            self.clean_bytes += ENTRY_BYTES;
            Entry::new()
        });
        let (bytes, class, since, apart) = (entry.bytes(), entry.class(), entry.since, entry.apart);
        let result = change(entry);
        let (bytes_after, class_after) = (entry.bytes(), entry.class());
        // What is kept apart is counted, and bounded, by itself.
        let mut totals = [self.clean_bytes, self.dirty_bytes, bytes];
        totals[class as usize] -= bytes;
        totals[class_after as usize] += bytes_after;
        [self.clean_bytes, self.dirty_bytes, _] = totals;
        self.apart_bytes -= apart.map_or(0, |apart| apart.bytes);
        self.apart_bytes += entry.apart.map_or(0, |apart| apart.bytes);
        if since != entry.since {
            if let Some((lsn, _)) = since {
                self.oldest.remove(&(lsn, page));
            }
            if let Some((lsn, _)) = entry.since {
                self.oldest.insert((lsn, page));
            }
        }
        if class_after != Class::Clean {
            self.uninstalled.insert(page, entry.version);
        } else if class != Class::Clean {
            self.uninstalled.remove(&page);
        }
        if class_after == Class::Clean && !entry.queued {
            entry.queued = true;
            self.clock.push_back(page);
        }
        result
    }

    /// A recovered op: the page is dirty and not in memory.
    pub(super) fn recover_op(&mut self, page: PageId, lsn: Lsn, stamp: Stamp, op: Op) {
        if self.lost.contains_key(&page) {
            // What it was made of is gone: the log need not keep it.
            return;
        }
        self.change(page, |entry| {
            if entry.apart.is_some_and(|apart| stamp <= apart.through) {
                // The log was kept for another page.
                return;
            }
            entry.version = stamp;
            entry.lazy.push((stamp, op));
            entry.since.get_or_insert((lsn, stamp));
        });
    }

    /// Recovered changes that the engine keeps apart from the page.
    pub(super) fn recover_apart(&mut self, apart: Apart) {
        let bytes = apart.bytes();
        self.change(apart.page, |entry| {
            let through = apart.changes.last().map_or(Stamp::ZERO, |last| last.0);
            entry.version = through;
            entry.lazy = apart.changes;
            entry.apart = Some(KeptApart { through, bytes });
        });
    }

    /// What the engine kept apart from a page is damaged: it is never in memory.
    pub(super) fn recover_lost(&mut self, lost: LostApart) {
        self.lost.insert(lost.page, lost.detail);
    }

    /// Whoever resumes from before `durable` is told of pages whose last version nobody knows.
    pub(super) fn date_lost(&mut self, durable: Stamp) {
        let pages: Vec<PageId> = self.lost.keys().copied().collect();
        for page in pages {
            self.change(page, |entry| {
                entry.version = durable;
                entry.apart = Some(KeptApart { through: durable, bytes: 0 });
            });
        }
    }

    /// Why a page cannot be had any more.
    pub(super) fn lost(&self, page: PageId) -> Option<&str> {
        self.lost.get(&page).map(String::as_str)
    }

    /// The changes of a page that cannot be read, to be kept apart from it.
    pub(super) fn changes(&self, page: PageId) -> Apart {
        Apart { page, changes: self.lazy(page).to_vec() }
    }

    /// An install that keeps the page's changes apart begins: the log need not keep them. Gives
    /// what was kept apart before.
    pub(super) fn begin_apart(&mut self, apart: &Apart) -> Option<KeptApart> {
        self.change(apart.page, |entry| {
            entry.since = None;
            let through = entry.version;
            entry.apart.replace(KeptApart { through, bytes: apart.bytes() })
        })
    }

    /// It failed: what was kept apart is as before, and the log keeps the others, from `first` on.
    pub(super) fn apart_failed(
        &mut self,
        page: PageId,
        first: (Lsn, Stamp),
        before: Option<KeptApart>,
    ) {
        self.change(page, |entry| {
            entry.apart = before;
            entry.since = Some(first);
        });
    }

    /// Bytes of what the engine keeps apart from the page.
    pub(super) fn apart_bytes_of(&self, page: PageId) -> usize {
        let apart = self.entries.get(&page).and_then(|entry| entry.apart);
        apart.map_or(0, |apart| apart.bytes)
    }

    /// Whether the engine keeps changes of the page apart.
    pub(super) fn is_apart(&self, page: PageId) -> bool {
        self.entries.get(&page).is_some_and(|entry| entry.apart.is_some())
    }

    /// Its durable version, as far as it is known; zero: never made, or not known.
    pub(super) fn version(&self, page: PageId) -> Stamp {
        self.entries.get(&page).map_or(Stamp::ZERO, |entry| entry.version)
    }

    /// Notes that a loaded page was read; gives its durable version.
    pub(super) fn touch(&mut self, page: PageId) -> Stamp {
        let entry = self.entries.get_mut(&page).expect("loaded");
        entry.used = true;
        entry.version
    }

    /// A loaded page's durable image, checksummed; none: it is not there.
    pub(super) fn seal(&mut self, page: PageId) -> Option<Bytes> {
        self.change(page, |entry| {
            let image = entry.durable.as_mut().expect("loaded");
            image.page.as_mut().map(|image| image.seal(page))
        })
    }

    /// A loaded page as an install takes it.
    pub(super) fn take_for_install(&mut self, page: PageId) -> InstalledPage {
        let image = self.seal(page);
        let entry = &self.entries[&page];
        InstalledPage {
            page,
            previous: entry.stored,
            stored: StoredPage { version: entry.version, image },
        }
    }

    /// Recovered ops that wait for the page's stored image.
    pub(super) fn lazy(&self, page: PageId) -> &[(Stamp, Op)] {
        self.entries.get(&page).map_or(&[], |entry| &entry.lazy)
    }

    /// The page was loaded (and its recovered ops applied to `image`). `next` are the record and the
    /// stamp after the durable ones: changes that were kept apart are installed as if they were made
    /// by the next commit, since the log no longer has them.
    pub(super) fn loaded(&mut self, page: PageId, stored: Stamp, image: Image, next: (Lsn, Stamp)) {
        self.change(page, |entry| {
            assert!(entry.durable.is_none(), "a page in memory is not loaded");
            entry.version = image.version;
            entry.stored = stored;
            entry.durable = Some(image);
            entry.lazy = Vec::new();
            if entry.apart.is_some() {
                entry.since.get_or_insert(next);
            }
        });
    }

    /// The append under way is durable: its image is the durable one. `first` is the log record
    /// and stamp that first changed the page in it.
    pub(super) fn promote(&mut self, page: PageId, first: (Lsn, Stamp)) {
        self.change(page, |entry| {
            let image = entry.flying.take().expect("a page changed by the append");
            assert!(image.version > entry.version, "versions rise");
            entry.version = image.version;
            entry.durable = Some(image);
            if entry.installing.is_some() {
                crate::probe::probe("changed-during-install");
                entry.since_install.get_or_insert(first);
            } else {
                entry.since.get_or_insert(first);
            }
        });
    }

    /// Gathered images become those of the append under way.
    pub(super) fn fly(&mut self, page: PageId) {
        let entry = self.entries.get_mut(&page).expect("a gathered page is in memory");
        assert!(entry.flying.is_none(), "one append is under way at a time");
        entry.flying = entry.gathering.take();
    }

    /// Tentative images are given up.
    pub(super) fn roll_back(&mut self, page: PageId) {
        if let Some(entry) = self.entries.get_mut(&page) {
            entry.flying = None;
            entry.gathering = None;
        }
    }

    /// Dirty pages, those longest not installed first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = PageId> + '_ {
        self.oldest.iter().map(|(_, page)| *page)
    }

    /// The first change that is not installed and not being installed.
    pub(super) fn first_uninstalled(&self) -> Option<(Lsn, Stamp)> {
        let (_, page) = self.oldest.first()?;
        self.entries.get(page)?.since
    }

    /// An install of the page's durable state begins.
    pub(super) fn begin_install(&mut self, page: PageId) {
        self.change(page, |entry| {
            entry.installing = Some(entry.version);
            entry.since_install = None;
            entry.since = None;
        });
    }

    /// It is durable in the engine.
    pub(super) fn installed(&mut self, page: PageId) {
        self.change(page, |entry| {
            entry.stored = entry.installing.take().expect("an install was under way");
            entry.apart = None;
            entry.since = entry.since_install.take();
        });
    }

    /// It failed; `first` is what it would have installed from.
    pub(super) fn install_failed(&mut self, page: PageId, first: (Lsn, Stamp)) {
        self.change(page, |entry| {
            entry.installing = None;
            crate::probe::probe("install-refused");
            entry.since_install = None;
            entry.since = Some(first);
        });
    }

    /// The first change that an install of this page would take with it.
    pub(super) fn since(&self, page: PageId) -> Option<(Lsn, Stamp)> {
        self.entries.get(&page)?.since
    }

    /// The first change since the install under way was composed.
    pub(super) fn since_install(&self, page: PageId) -> Option<(Lsn, Stamp)> {
        self.entries.get(&page)?.since_install
    }

    pub(super) fn pin(&mut self, page: PageId) {
        self.change(page, |entry| entry.pins += 1);
    }

    /// Pages that a commit waits for, or that one under way has changed.
    #[cfg(feature = "faults")]
    #[expect(clippy::disallowed_methods, reason = "they are counted, whatever their order")]
    pub(super) fn unsettled(&self) -> usize {
        let tentative = |entry: &Entry| entry.flying.is_some() || entry.gathering.is_some();
        self.entries.values().filter(|entry| entry.pins > 0 || tentative(entry)).count()
    }

    pub(super) fn unpin(&mut self, page: PageId) {
        self.change(page, |entry| {
            assert!(entry.pins > 0, "unpinned more often than pinned");
            entry.pins -= 1;
        });
    }

    /// A recovered deletion: the page that stands for the volume is a tombstone that is not installed.
    pub(super) fn recover_mark(&mut self, page: PageId, at: (Lsn, Stamp)) {
        self.change(page, |entry| {
            entry.version = at.1;
            entry.durable = Some(Image { version: at.1, page: None });
            entry.since.get_or_insert(at);
        });
    }

    /// The volume was deleted: none of its pages is installed any more. They are forgotten some at a
    /// time, by [`Pages::forget_disowned`]; until then nothing is installed.
    pub(super) fn disown(&mut self, volume: VolumeId) {
        self.lost.retain(|page, _| page.volume != volume);
        self.disowned.push_back(PageId { volume, page: PageNo(0) });
    }

    fn is_disowned(&self, volume: VolumeId) -> bool {
        self.disowned.iter().any(|page| page.volume == volume)
    }

    /// Whether there are pages of deleted volumes.
    pub(super) fn has_disowned(&self) -> bool {
        !self.disowned.is_empty()
    }

    /// Forgets at most `most` pages of deleted volumes, but those that an install under way has, or
    /// that a commit waits for. Their stand-in stays.
    pub(super) fn forget_disowned(&mut self, most: usize) {
        let mut left = most;
        while left > 0
            && let Some(from) = self.disowned.pop_front()
        {
            let of_volume = self.uninstalled.range(from..PageId::of_volume(from.volume));
            let pages: Vec<PageId> = of_volume.map(|(page, _)| *page).take(left).collect();
            left -= pages.len();
            if left == 0
                && let Some(last) = pages.last()
            {
                let next = PageId { page: PageNo(last.page.0 + 1), ..*last };
                self.disowned.push_front(next);
            }
            for page in &pages {
                self.change(*page, |entry| {
                    entry.since = None;
                    entry.since_install = None;
                    entry.lazy = Vec::new();
                    entry.apart = None;
                });
            }
            self.forget(&pages);
        }
    }

    /// Pages that are there no longer.
    pub(super) fn forget(&mut self, pages: &[PageId]) {
        let before = self.entries.len();
        for page in pages {
            if let Some(entry) = self.entries.get(page)
                && entry.evictable()
            {
                self.clean_bytes -= entry.bytes();
                self.entries.remove(page);
            }
        }
        if before != self.entries.len() {
            let entries = &self.entries;
            self.clock.retain(|page| entries.contains_key(page));
        }
    }

    /// Drops clean pages beyond the budget: a clock with one second chance.
    pub(super) fn trim(&mut self) {
        let mut looks = 2 * self.clock.len();
        while self.clean_bytes > self.clean_bytes_max && looks > 0 {
            looks -= 1;
            let Some(page) = self.clock.pop_front() else {
                return;
            };
            let Some(entry) = self.entries.get_mut(&page) else {
                continue;
            };
            entry.queued = false;
            if entry.class() != Class::Clean {
                // It comes back when it is installed.
                continue;
            }
            if entry.used || !entry.evictable() {
                entry.used = false;
                entry.queued = true;
                self.clock.push_back(page);
                continue;
            }
            crate::probe::probe("page-evicted-at-origin");
            self.clean_bytes -= entry.bytes();
            self.entries.remove(&page);
        }
    }

    pub(super) fn check(&self, durable: Stamp) {
        let mut dirty_bytes = 0;
        for (page, version) in &self.uninstalled {
            let entry = &self.entries[page];
            assert!(entry.class() != Class::Clean, "an installed page counts as not installed");
            assert_eq!(entry.version, *version, "an uninstalled page's version is behind");
            assert!(entry.version <= durable, "an image that is not durable counts as such");
            assert!(
                entry.durable.is_some() || !entry.lazy.is_empty() || self.lost.contains_key(page),
                "a dirty page lost its image"
            );
            if entry.class() == Class::Dirty {
                dirty_bytes += entry.bytes();
            }
        }
        assert_eq!(dirty_bytes, self.dirty_bytes, "dirty bytes are miscounted");
        let apart: usize = self.uninstalled.keys().map(|page| self.apart_bytes_of(*page)).sum();
        assert_eq!(apart, self.apart_bytes, "bytes kept apart are miscounted");
        for (lsn, page) in &self.oldest {
            assert_eq!(
                self.entries[page].since.map(|s| s.0),
                Some(*lsn),
                "a dirty page lost its place"
            );
        }
        for page in &self.clock {
            assert!(self.entries[page].queued, "the clock holds a page twice");
        }
    }
}
