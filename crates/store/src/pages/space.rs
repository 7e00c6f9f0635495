//! Giving back the space of what was removed or replaced: a compaction that can be stopped.
//!
//! A compaction of a whole keyspace holds off the engine's own small ones, without which its newest
//! tables pile up until the engine lets nobody write any more; and it writes before it frees. So it is
//! looked at while it runs, by a filter that sees every entry it keeps: it is stopped when installs would
//! soon have to wait for it, when there is no room left for what it writes, and when the engine is to be
//! closed. What it has written by then is removed, and it can be tried again. The same filter moves images
//! (`moves`).

use super::PagesError;
use super::fjall::{FjallPages, Writer, has_room};
use super::moves::Moving;
use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use fjall::{AbstractTree, Keyspace, LsmError};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// It is looked at again after so many entries: of a mebibyte each, at most, less than an install
/// leaves free beside its own.
const LOOK_EVERY: u32 = 4;
/// Runs of newest tables in a keyspace at which it is stopped: with 20 the engine makes writers slower,
/// with 30 they wait.
pub(super) const NEW_TABLES_MAX: usize = 12;
/// Bytes of a key in a table that is written anew, about; a third of them, since as much as for an
/// install is reserved.
const COMPACTED_BYTES: u64 = 32;
/// Where the engine keeps a keyspace's files, below its folder.
const FOLDERS: [&str; 2] = ["tables", "blobs"];
/// At a start space is given back when so much, and this share of the store, is known to be free in it.
const OWED_BYTES_MIN: u64 = 64 << 20;
const OWED_SHARE: u64 = 16;

/// Why it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    Installs,
    Room,
    Closed,
}

/// What looks at a compaction. In the thread that compacts; the engine's own are not looked at.
struct Watch {
    engine: Look,
    keyspace: Keyspace,
    moving: Arc<Moving>,
    /// Files that were there before.
    before: BTreeSet<PathBuf>,
    stopped: Mutex<Option<(Reason, Vec<PathBuf>)>>,
}

/// What of an engine is looked at.
#[derive(Clone)]
pub(super) struct Look {
    pub(super) keyspaces: Vec<Keyspace>,
    pub(super) has_room: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(super) closed: Arc<AtomicBool>,
    pub(super) new_tables_max: usize,
}

thread_local! {
    static WATCH: RefCell<Option<Arc<Watch>>> = const { RefCell::new(None) };
}

/// Gives each compaction its filter: one that looks, and moves images.
#[derive(Debug)]
pub(super) struct Filters;

impl Factory for Filters {
    fn name(&self) -> &str {
        "larder-space"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let watch = WATCH.with(|watch| watch.borrow().clone());
        Box::new(Filter { watch, looked: 0 })
    }
}

struct Filter {
    watch: Option<Arc<Watch>>,
    /// Entries since the last look.
    looked: u32,
}

impl CompactionFilter for Filter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        let Some(watch) = &self.watch else { return Ok(Verdict::Keep) };
        self.looked += 1;
        if self.looked == LOOK_EVERY {
            self.looked = 0;
            if let Some(reason) = watch.engine.reason() {
                watch.stop(reason);
                return Err(LsmError::Io(std::io::Error::other("stopped")));
            }
        }
        Ok(watch.moving.moved(&item).map_or(Verdict::Keep, Verdict::ReplaceValue))
    }
}

impl Look {
    /// Why a compaction is to be stopped, if it is.
    fn reason(&self) -> Option<Reason> {
        let many = |keyspace: &Keyspace| keyspace.tree.l0_run_count() >= self.new_tables_max;
        if self.closed.load(Ordering::Relaxed) {
            Some(Reason::Closed)
        } else if self.keyspaces.iter().any(many) {
            Some(Reason::Installs)
        } else if !(self.has_room)() {
            Some(Reason::Room)
        } else {
            None
        }
    }

    /// Compacts a keyspace, until it is done or stopped.
    fn compact(
        &self,
        keyspace: &Keyspace,
        moving: Arc<Moving>,
    ) -> fjall::Result<Result<(), Reason>> {
        if let Some(reason) = self.reason() {
            return Ok(Err(reason));
        }
        let watch = Arc::new(Watch {
            engine: self.clone(),
            keyspace: keyspace.clone(),
            moving,
            before: files(keyspace.path()),
            stopped: Mutex::new(None),
        });
        WATCH.with(|cell| cell.replace(Some(watch.clone())));
        let result = keyspace.major_compact();
        WATCH.with(RefCell::take);
        let stopped = watch.stopped.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((reason, left)) = stopped else { return result.map(Ok) };
        for file in left {
            // One that stays is removed at the next start.
            let _ = std::fs::remove_file(file);
        }
        Ok(Err(reason))
    }
}

impl Watch {
    /// Notes why it is stopped, and what it leaves: files of its own, that nobody refers to. No other
    /// compaction of the keyspace runs, and no table is being written while the lock is held.
    fn stop(&self, reason: Reason) {
        let tree = &self.keyspace.tree;
        let flush = tree.get_flush_lock();
        let used = used_files(&self.keyspace);
        let left = files(self.keyspace.path()).into_iter();
        let left = left.filter(|file| !self.before.contains(file) && !used.contains(file));
        let left = left.collect();
        drop(flush);
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        *stopped = Some((reason, left));
    }
}

/// A keyspace's files that something refers to.
fn used_files(keyspace: &Keyspace) -> BTreeSet<PathBuf> {
    let (version, place) = (keyspace.tree.current_version(), keyspace.path());
    let tables = version.iter_tables().map(|table| (FOLDERS[0], table.id()));
    let blobs = version.blob_files.iter().map(|file| (FOLDERS[1], file.id()));
    let used = tables.chain(blobs);
    used.map(|(folder, id)| place.join(folder).join(id.to_string())).collect()
}

/// A keyspace's files.
fn files(place: &Path) -> BTreeSet<PathBuf> {
    let folders = FOLDERS.iter().filter_map(|folder| std::fs::read_dir(place.join(folder)).ok());
    folders.flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

impl FjallPages {
    /// Ends giving space back, now and from now on: before the engine is closed.
    pub fn stop_giving_back(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether an earlier process left much that can be given back, as far as the engine knows. Writes
    /// out what was read from the journal.
    ///
    /// # Errors
    /// Failures of the engine.
    pub fn owes_space(&self) -> Result<bool, PagesError> {
        let owed = self.owed()?;
        Ok(owed >= OWED_BYTES_MIN && owed >= self.pages.disk_space() / OWED_SHARE)
    }

    /// Bytes of images that were removed or replaced, about.
    fn owed(&self) -> Result<u64, PagesError> {
        let pages = &self.pages;
        pages.rotate_memtable_and_wait().map_err(|error| self.fault(&error))?;
        let entries = pages.approximate_len().max(1) as u64;
        // Of an entry that is removed, one is left that says so, until both meet.
        let removed = pages.tree.tombstone_count().saturating_mul(pages.disk_space() / entries);
        Ok(pages.fragmented_blob_bytes().saturating_add(removed))
    }

    /// See [`super::Pages::give_back`].
    pub(super) fn compact(&self) -> Result<(), PagesError> {
        let fault = |error: fjall::Error| self.fault(&error);
        // What was removed is only noted in memory and in the newest tables as yet.
        for keyspace in self.keyspaces() {
            keyspace.rotate_memtable_and_wait().map_err(fault)?;
        }
        for keyspace in [&self.index, &self.apart, &self.pages] {
            // The tables of keys are written anew, and images only where much of their file is gone:
            // for those it is looked at what is free as they are written.
            let keys = keyspace.approximate_len() as u64;
            let _reserved = self.reserve(Writer::Compaction, keys * COMPACTED_BYTES)?;
            let look = self.look();
            let compact = |moving| {
                let done = look.compact(keyspace, moving).map_err(fault)?;
                done.map_err(|reason| self.stopped(reason))
            };
            // Finds which images are gone.
            compact(Arc::default())?;
            if keyspace.fragmented_blob_bytes() == 0 {
                continue;
            }
            // Files of nothing else go with the next one, and those that it empties with one more.
            let free = (self.free)(&self.place).unwrap_or(u64::MAX);
            let moving = Arc::new(Moving::out_of_emptiest(keyspace, free).map_err(fault)?);
            compact(moving.clone())?;
            if moving.has_moved() {
                compact(Arc::default())?;
            }
        }
        Ok(())
    }

    fn look(&self) -> Look {
        let (place, free, device) = (self.place.clone(), self.free, self.device);
        Look {
            keyspaces: self.keyspaces().map(Keyspace::clone).to_vec(),
            has_room: Arc::new(move || has_room(&place, free, device)),
            closed: self.closed.clone(),
            new_tables_max: self.new_tables_max,
        }
    }

    fn stopped(&self, reason: Reason) -> PagesError {
        let place = self.place.display().to_string();
        match reason {
            Reason::Room => PagesError::Full { place },
            Reason::Installs => {
                PagesError::PutOff { place, why: "installs would have to wait for it".into() }
            }
            Reason::Closed => PagesError::PutOff { place, why: "the engine is closed".into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{FjallConfig, Pages};
    use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
    use larder_core::record::{InstallBatch, InstalledPage, StoredPage};
    use std::cell::Cell;

    const PAGES: u64 = 400;

    fn page(volume: u128, number: u64) -> PageId {
        PageId { volume: VolumeId(volume), page: PageNo(number) }
    }

    /// Two volumes, of which one is removed: the images lie side by side in the same files.
    fn removed(place: &Path) -> FjallPages {
        let pages = FjallPages::open(place, &FjallConfig::default()).expect("it is new");
        for number in 1..=PAGES {
            let install = |volume: u128| {
                let version = Stamp(2 * number + volume as u64);
                let image = Some(vec![number as u8; 4000].into());
                let stored = StoredPage { version, image };
                InstalledPage { page: page(volume, number), previous: Stamp::ZERO, stored }
            };
            let installed = vec![install(0), install(1)];
            let batch = InstallBatch { pages: installed, ..InstallBatch::default() };
            pages.install(&batch).expect("there is room");
        }
        pages.give_back().expect("nothing is in the way");
        let removed = pages.removable(VolumeId(0), PageNo(0), 9999).expect("no fault");
        assert_eq!(removed.len() as u64, PAGES);
        let batch = InstallBatch { removed, ..InstallBatch::default() };
        pages.install(&batch).expect("there is room");
        pages
    }

    fn check(pages: &FjallPages) {
        for number in 1..=PAGES {
            assert_eq!(pages.load(page(0, number)), Ok(None));
            let found = pages.load(page(1, number)).expect("no fault").expect("it is there");
            assert_eq!(found.image.as_deref(), Some(&vec![number as u8; 4000][..]));
        }
    }

    fn all_files(pages: &FjallPages) -> BTreeSet<PathBuf> {
        pages.keyspaces().iter().flat_map(|keyspace| files(keyspace.path())).collect()
    }

    /// The story: a compaction of a large store held off the engine's own small ones; with many
    /// installs meanwhile the engine let nobody write any more, what was changed piled up in the
    /// origin's memory, and commits were put off until the compaction ended. Now it is stopped when
    /// installs would soon have to wait, leaves nothing, and is done another time.
    #[test]
    fn a_compaction_that_is_in_the_way_of_installs_is_stopped() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut pages = removed(place.path());
        for keyspace in pages.keyspaces() {
            keyspace.rotate_memtable_and_wait().expect("no fault");
        }
        let before = all_files(&pages);
        pages.new_tables_max = 0;
        let stopped = pages.give_back().expect_err("it is stopped");
        assert!(matches!(stopped, PagesError::PutOff { .. }), "{stopped}");
        assert_eq!(all_files(&pages), before, "refused before it begins");
        pages.new_tables_max = NEW_TABLES_MAX;
        pages.give_back().expect("nothing is in the way");
        check(&pages);
    }

    /// The story: it reserved room for keys, and not for the images that it moved: a nearly full disk
    /// could be filled by it, and the next write of the engine's own ended the domain's service. Now
    /// what is free is looked at as it writes; stopped in its middle it leaves no file of its own.
    #[test]
    fn a_compaction_without_room_is_stopped_and_leaves_nothing() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut pages = removed(place.path());
        pages.give_back().expect("there is room");
        // Of this file system there is much at first, and nothing from some look on.
        thread_local! {
            static LOOKS: Cell<u32> = const { Cell::new(0) };
            static UNTIL: Cell<u32> = const { Cell::new(0) };
        }
        pages.device = u64::MAX - 1;
        pages.free = |_| {
            LOOKS.set(LOOKS.get() + 1);
            Ok(if LOOKS.get() > UNTIL.get() { 0 } else { u64::MAX / 2 })
        };
        let mut stopped = 0;
        for until in (1..PAGES as u32 / LOOK_EVERY).step_by(7) {
            LOOKS.set(0);
            UNTIL.set(until);
            let before = files(pages.pages.path());
            let done = pages.look().compact(&pages.pages, Arc::default()).expect("no fault");
            assert_eq!(done, Err(Reason::Room));
            let after = files(pages.pages.path());
            let new: Vec<&PathBuf> = after.difference(&before).collect();
            assert_eq!(new, Vec::<&PathBuf>::new(), "nothing of it is left");
            stopped += 1;
        }
        assert!(stopped > 10, "{stopped}");
        let refused = pages.give_back().expect_err("there is no room");
        assert!(matches!(refused, PagesError::Full { .. }), "{refused}");
        check(&pages);
        pages.free = crate::pages::free_bytes;
        pages.give_back().expect("there is room");
        check(&pages);
        drop(pages);
        check(&FjallPages::open(place.path(), &FjallConfig::default()).expect("it is whole"));
    }

    /// The end of an origin's process waited until a compaction was done.
    #[test]
    fn a_compaction_ends_with_the_engine() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let pages = removed(place.path());
        pages.stop_giving_back();
        let stopped = pages.give_back().expect_err("it is stopped");
        assert!(matches!(stopped, PagesError::PutOff { .. }), "{stopped}");
        check(&pages);
    }

    /// A process ended before the space of what it had removed was given back: the space came back
    /// with the next removal only. An engine knows what is owed; it is little here, so that nothing is
    /// begun at the start, and more than nothing.
    #[test]
    fn an_engine_knows_what_it_owes() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let pages = removed(place.path());
        drop(pages);
        let pages = FjallPages::open(place.path(), &FjallConfig::default()).expect("it is whole");
        assert_eq!(pages.owes_space(), Ok(false));
        let owed = pages.owed().expect("no fault");
        assert!(owed > PAGES * 4000 / 2, "{owed}");
    }
    /// The story: what a compaction had reserved and written by then was gone from what was free, and reserved as
    /// well: installs were refused as on a full disk for as long as it ran, and it was not stopped.
    #[test]
    fn what_a_compaction_has_written_is_in_no_installs_way() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut pages = FjallPages::open(place.path(), &FjallConfig::default()).expect("it is new");
        pages.device = u64::MAX - 2;
        pages.free = |_| Ok(6 << 30);
        let compaction = pages.reserve(Writer::Compaction, 1600 << 20).expect("there is room");
        // It has written some.
        pages.free = |_| Ok(4700 << 20);
        drop(pages.reserve(Writer::Install, 8 << 20).expect("there is room"));
        assert_eq!(pages.look().reason(), None);
        // Before an install finds no room it is stopped.
        pages.free = |_| Ok(33 << 20);
        let install = pages.reserve(Writer::Install, 8 << 20).expect("there is just room");
        assert_eq!(pages.look().reason(), Some(Reason::Room));
        drop((install, compaction));
    }
}
