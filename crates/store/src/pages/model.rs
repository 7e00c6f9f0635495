//! A page engine in memory that keeps the promise and nothing else: for the simulator and tests.

use super::{Changed, KeptApart, Pages, PagesError};
use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
use larder_core::machine::{Fault, Faults};
use larder_core::record::{Apart, DomainMeta, InstallBatch, StoredPage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// A model of a page engine. Until [`ModelPages::answered`] is called, a crash may forget the last
/// install: all of it or nothing. A clone is a copy of its own, as a backup would be.
#[derive(Debug, Default)]
pub struct ModelPages {
    state: Mutex<State>,
    faults: Faults,
}

#[derive(Clone, Debug, Default)]
struct State {
    pages: BTreeMap<PageId, StoredPage>,
    index: BTreeSet<(Stamp, PageId)>,
    apart: BTreeMap<PageId, Apart>,
    /// What is kept apart from these is damaged.
    rotten: BTreeSet<PageId>,
    meta: Option<DomainMeta>,
    /// How to undo the last install, while it has not been answered.
    undo: Option<Undo>,
    /// What the next install answers instead of being done.
    failure: Option<PagesError>,
    /// Installs find no room.
    full: bool,
}

#[derive(Clone, Debug)]
struct Undo {
    pages: Vec<(PageId, Option<StoredPage>)>,
    added: Vec<(Stamp, PageId)>,
    removed: Vec<(Stamp, PageId)>,
    apart: Vec<(PageId, Option<Apart>)>,
    meta: Option<DomainMeta>,
}

impl Clone for ModelPages {
    fn clone(&self) -> Self {
        Self { state: Mutex::new(self.state().clone()), faults: self.faults }
    }
}

impl ModelPages {
    /// An empty one.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self { state: Mutex::default(), faults }
    }

    /// The last install was answered to the origin: it can no longer be forgotten.
    pub fn answered(&self) {
        self.state().undo = None;
    }

    /// Whether there is an install that a crash may forget.
    #[must_use]
    pub fn unanswered(&self) -> bool {
        self.state().undo.is_some()
    }

    /// The process died: the last install, if it was not answered, is there or, with `forget`,
    /// is not.
    pub fn crash(&self, forget: bool) {
        let mut state = self.state();
        state.failure = None;
        let Some(undo) = state.undo.take() else {
            return;
        };
        if !forget {
            return;
        }
        for (page, before) in undo.pages {
            match before {
                Some(stored) => state.pages.insert(page, stored),
                None => state.pages.remove(&page),
            };
        }
        for entry in undo.added {
            state.index.remove(&entry);
        }
        state.index.extend(undo.removed);
        for (page, before) in undo.apart.into_iter().rev() {
            match before {
                Some(apart) => state.apart.insert(page, apart),
                None => state.apart.remove(&page),
            };
        }
        state.meta = undo.meta;
    }

    /// The next install fails with this, and nothing of it is done.
    pub fn fail_next(&self, error: PagesError) {
        self.state().failure = Some(error);
    }

    /// From now on installs find no room, or find some again.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Flips a bit of a page's image, as rot would; false when there is none.
    pub fn rot(&self, page: PageId, bit: usize) -> bool {
        let mut state = self.state();
        let Some(image) = state
            .pages
            .get_mut(&page)
            .and_then(|stored| stored.image.as_mut())
            .filter(|image| !image.is_empty())
        else {
            return false;
        };
        let mut bytes = image.to_vec();
        let at = bit / 8 % bytes.len();
        bytes[at] ^= 1 << (bit % 8);
        *image = bytes.into();
        true
    }

    /// Puts a page as it was in a copy, by itself, as an operator would who restores a page.
    pub fn restore_page(&self, page: PageId, copy: &Self) {
        let stored = copy.state().pages.get(&page).cloned();
        let mut state = self.state();
        match stored {
            Some(stored) => state.pages.insert(page, stored),
            None => state.pages.remove(&page),
        };
    }

    /// What is kept apart from a page rots.
    pub fn rot_apart(&self, page: PageId) {
        self.state().rotten.insert(page);
    }

    /// All pages, ascending.
    #[must_use]
    pub fn all(&self) -> Vec<(PageId, StoredPage)> {
        let state = self.state();
        let pages = state.pages.iter();
        pages.map(|(page, stored)| (*page, stored.clone())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code that may panic runs under this lock")
    }
}

impl Pages for ModelPages {
    fn load(&self, page: PageId) -> Result<Option<StoredPage>, PagesError> {
        let state = self.state();
        let found = state.pages.get(&page);
        if let Some(StoredPage { version, .. }) = found
            && !state.index.contains(&(*version, page))
            && !self.faults.has(Fault::SkipIndex)
        {
            let (place, version) = ("the model".into(), *version);
            return Err(PagesError::NotInstalled { place, page, version });
        }
        Ok(found.cloned())
    }

    fn install(&self, batch: &InstallBatch) -> Result<(), PagesError> {
        let mut state = self.state();
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        if state.full {
            return Err(PagesError::Full { place: "the model".into() });
        }
        let mut undo = Undo {
            pages: Vec::new(),
            added: Vec::new(),
            removed: Vec::new(),
            apart: Vec::new(),
            meta: state.meta.replace(batch.meta.clone()),
        };
        for installed in &batch.pages {
            let page = installed.page;
            let before = state.pages.insert(page, installed.stored.clone());
            undo.pages.push((page, before));
            let old = (installed.previous, page);
            if state.index.remove(&old) {
                undo.removed.push(old);
            }
            let new = (installed.stored.version, page);
            // Rule 20. Else a resume does not learn of this change once the ring has passed it.
            if !self.faults.has(Fault::SkipIndex) && state.index.insert(new) {
                undo.added.push(new);
            }
        }
        for (page, version) in &batch.removed {
            undo.apart.push((*page, state.apart.remove(page)));
            undo.pages.push((*page, state.pages.remove(page)));
            let entry = (*version, *page);
            if state.index.remove(&entry) {
                undo.removed.push(entry);
            }
        }
        for page in &batch.joined {
            undo.apart.push((*page, state.apart.remove(page)));
        }
        for apart in &batch.apart {
            let before = state.apart.insert(apart.page, apart.clone());
            undo.apart.push((apart.page, before));
        }
        state.undo = Some(undo);
        Ok(())
    }

    fn changed_after(&self, after: (Stamp, PageId), limit: usize) -> Result<Changed, PagesError> {
        let state = self.state();
        let mut above =
            state.index.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        let entries = above.by_ref().take(limit).copied().collect();
        Ok((entries, above.next().is_some()))
    }

    fn meta(&self) -> Result<Option<DomainMeta>, PagesError> {
        Ok(self.state().meta.clone())
    }

    fn apart(&self) -> Result<KeptApart, PagesError> {
        let state = self.state();
        let kept = state.apart.values().map(|apart| match state.rotten.contains(&apart.page) {
            true => {
                let what = format!("what is kept apart from page {}", apart.page);
                let (place, detail) = ("the model".into(), "it is rotten".into());
                Err((apart.page, PagesError::Damaged { place, what, detail }))
            }
            false => Ok(apart.clone()),
        });
        Ok(kept.collect())
    }

    fn removable(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<(PageId, Stamp)>, PagesError> {
        let from = PageId { volume, page: PageNo(after.0.saturating_add(1)) };
        let of_volume = from..PageId::of_volume(volume);
        let state = self.state();
        let pages = state.pages.range(of_volume.clone());
        let mut found: BTreeMap<PageId, Stamp> =
            state.apart.range(of_volume).map(|(page, _)| (*page, Stamp::ZERO)).collect();
        found.extend(pages.map(|(page, stored)| (*page, stored.version)));
        Ok(found.into_iter().take(limit).collect())
    }

    fn give_back(&self) -> Result<(), PagesError> {
        Ok(())
    }

    fn pages_of(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<PageId>, PagesError> {
        let from = PageId { volume, page: PageNo(after.0.saturating_add(1)) };
        let state = self.state();
        let pages = state.pages.range(from..PageId::of_volume(volume));
        Ok(pages.map(|(page, _)| *page).take(limit).collect())
    }
}
