//! A store in memory, for tests: real conflicts, doomed transactions and full pages, no durability.
//!
//! Its semantics are those of `larder_core::commit`: a commit is accepted if nothing it read was
//! changed after it last checked its reads, and a reader is doomed at its next step once something
//! it read has changed. Two stores cloned from one act as two nodes on one volume.

use super::tx::{Mode, SlottedPages, Taken, Tx, TxError, TxStore};
use bytes::Bytes;
use larder_core::commit::{Aspect, Op, PageKind, Target, conflicts};
use larder_core::id::{Generation, PageNo, Slot};
use larder_core::rights::Right;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

/// Bytes a slot costs beside its record, as in the page format.
const SLOT_BYTES: usize = 16;
/// Bytes of a page's header.
const HEADER_BYTES: usize = 32;

type Touched = (PageNo, Target, Aspect);

#[derive(Clone, Default)]
struct Image {
    raw: Option<Vec<u8>>,
    slots: BTreeMap<Slot, (Generation, Bytes)>,
    generations: BTreeMap<Slot, Generation>,
    used: usize,
}

#[derive(Default)]
struct Database {
    pages: BTreeMap<PageNo, Option<Arc<Image>>>,
    /// What the commit of stamp `index + 1` touched.
    log: Vec<Vec<Touched>>,
    next_page: u64,
    /// Pages that were made, or were to be, with numbers that had been read.
    named: BTreeSet<PageNo>,
    /// How often page numbers were given anew.
    history: u128,
    forked: bool,
    right: Right,
    /// The next commits fail with this.
    failures: Vec<TxError>,
    /// Commits that write to these pages fail with this.
    refused: BTreeMap<PageNo, TxError>,
    /// Reads of these pages fail.
    damaged: BTreeSet<PageNo>,
    /// So many commits from now on get no answer and come late.
    to_delay: usize,
    /// Bytes counted as lost.
    lost: u64,
    /// What is said to be free.
    free: Option<u64>,
    /// Nothing new can be had.
    cut: bool,
    /// How often the latest state was asked for.
    refreshes: usize,
    watchers: Vec<Sender<Touches>>,
}

/// What one commit touched.
pub type Touches = Vec<(PageNo, Target)>;

/// A volume in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    database: Arc<Mutex<Database>>,
    page_bytes: u32,
    stall: Arc<watch::Sender<Stall>>,
    late: Arc<Mutex<Vec<MemoryTx>>>,
}

/// Where commits wait, so that something else may happen meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stall {
    /// Nowhere.
    #[default]
    Nowhere,
    /// Before anything is done.
    Before,
    /// When all is done, and nobody knows.
    After,
    /// Those that wrote nothing and read bytes of a file, when they are done.
    Looked,
    /// Those that wrote nothing and read no bytes of a file, when they are done.
    Asked,
}

/// A transaction on a [`MemoryStore`].
pub struct MemoryTx {
    store: MemoryStore,
    state: Mutex<State>,
}

struct State {
    checked: usize,
    snapshot: Option<BTreeMap<PageNo, Option<Arc<Image>>>>,
    reads: Vec<Touched>,
    /// Bytes of a file were read.
    looked: bool,
    ops: Vec<(PageNo, Op)>,
    overlay: BTreeMap<PageNo, Option<Arc<Image>>>,
}

impl MemoryStore {
    /// An empty volume: page 1 is there, slotted.
    #[must_use]
    pub fn new(page_bytes: u32) -> Self {
        let right = Right::Admin;
        let mut database = Database { next_page: 2, right, ..Database::default() };
        database.pages.insert(PageNo(1), Some(Arc::new(Image::new(PageKind::Slotted))));
        let stall = Arc::new(watch::Sender::new(Stall::default()));
        let (database, late) = (Arc::new(Mutex::new(database)), Arc::default());
        Self { database, page_bytes, stall, late }
    }

    /// Pages that are there.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.lock().pages.values().flatten().count()
    }

    /// Whether it was made with a number that had been read.
    #[must_use]
    pub fn was_named(&self, page: PageNo) -> bool {
        self.lock().named.contains(&page)
    }

    /// Commits so far.
    #[must_use]
    pub fn commits(&self) -> usize {
        self.lock().log.len()
    }

    /// Bytes that were counted as lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Says how much is free.
    pub fn set_free(&self, free: Option<u64>) {
        self.lock().free = free;
    }

    /// Lets nobody have the latest state from now on, or again.
    pub fn cut(&self, cut: bool) {
        self.lock().cut = cut;
    }

    /// How often the latest state was asked for.
    #[must_use]
    pub fn refreshes(&self) -> usize {
        self.lock().refreshes
    }

    /// What commits touch from now on.
    #[must_use]
    pub fn watch(&self) -> Receiver<Touches> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.lock().watchers.push(sender);
        receiver
    }

    /// Lets the next commit fail.
    pub fn fail_next_commit(&self, error: TxError) {
        self.lock().failures.push(error);
    }

    /// Gives page numbers anew from `next` on, as an origin does that was restored from an old copy.
    pub fn give_again(&self, next: PageNo) {
        let mut database = self.lock();
        (database.history, database.next_page) = (database.history + 1, next.0);
    }

    /// Fails everything from now on, as when what was seen here is lost.
    pub fn fork(&self) {
        self.lock().forked = true;
    }

    /// What may be done with the volume from here on; the origin's refusals are those of
    /// [`MemoryStore::fail_next_commit`].
    pub fn set_right(&self, right: Right) {
        self.lock().right = right;
    }

    /// Lets commits that write to a page fail, until this is called with none.
    pub fn refuse(&self, page: PageNo, error: Option<TxError>) {
        let refused = &mut self.lock().refused;
        match error {
            Some(error) => refused.insert(page, error),
            None => refused.remove(&page),
        };
    }

    /// Lets a page be damaged from now on, or no longer.
    pub fn damage(&self, page: PageNo, damaged: bool) {
        let pages = &mut self.lock().damaged;
        if damaged {
            pages.insert(page)
        } else {
            pages.remove(&page)
        };
    }

    /// Lets the next commit that writes get no answer; it arrives when [`Self::arrive`] is called.
    pub fn delay_next_commit(&self) {
        self.lock().to_delay += 1;
    }

    /// Lets the commits arrive that were delayed; says how many of them were done.
    #[must_use]
    pub fn arrive(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock().expect("see MemoryStore::lock"));
        late.iter().filter(|tx| tx.commit_now().is_ok()).count()
    }

    /// The same, the last one first.
    #[must_use]
    pub fn arrive_last_first(&self) -> usize {
        self.late.lock().expect("see MemoryStore::lock").reverse();
        self.arrive()
    }

    /// Lets commits wait from now on, and lets go those that wait elsewhere.
    pub fn stall(&self, stall: Stall) {
        self.stall.send_replace(stall);
    }

    /// Commits that wait.
    #[must_use]
    pub fn stalled(&self) -> usize {
        self.stall.receiver_count()
    }

    async fn pass(&self, stall: Stall) {
        let at_once = *self.stall.borrow() != stall;
        if !at_once {
            let passed = self.stall.subscribe().wait_for(|now| *now != stall).await.is_ok();
            assert!(passed, "the store holds the sender");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Database> {
        self.database.lock().expect("no holder of this lock panics in a passing test")
    }
}

impl Image {
    fn new(kind: PageKind) -> Self {
        Self { raw: (kind == PageKind::Raw).then(Vec::new), ..Self::default() }
    }

    fn next_generation(&self, slot: Slot) -> Generation {
        Generation(self.generations.get(&slot).map_or(0, |g| g.0) + 1)
    }

    fn object(
        &mut self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
    ) -> Result<&mut Bytes, TxError> {
        match self.slots.get_mut(&slot) {
            Some((there, value)) if *there == generation => Ok(value),
            _ => Err(TxError::Gone(page)),
        }
    }

    fn number(
        &mut self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        f: impl FnOnce(u64) -> u64,
    ) -> Result<(), TxError> {
        let value = self.object(page, slot, generation)?;
        let mut bytes = value.to_vec();
        let at = offset as usize;
        let field = bytes.get_mut(at..at + 8).ok_or(TxError::Gone(page))?;
        let old = u64::from_le_bytes(field.try_into().expect("the range is 8 bytes"));
        field.copy_from_slice(&f(old).to_le_bytes());
        *value = bytes.into();
        Ok(())
    }

    fn put(
        &mut self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        value: &Bytes,
        page_bytes: usize,
    ) -> Result<Aspect, TxError> {
        let (freed, aspect) = match self.slots.get(&slot) {
            Some((there, old)) if *there == generation => (old.len() + SLOT_BYTES, Aspect::Value),
            None if self.next_generation(slot) == generation => (0, Aspect::Existence),
            _ => return Err(TxError::Gone(page)),
        };
        let used = self.used - freed + value.len() + SLOT_BYTES;
        if used + HEADER_BYTES > page_bytes {
            return Err(TxError::Full(page));
        }
        self.used = used;
        self.generations.insert(slot, generation);
        self.slots.insert(slot, (generation, value.clone()));
        Ok(aspect)
    }

    fn apply(
        &mut self,
        page: PageNo,
        op: &Op,
        page_bytes: usize,
    ) -> Result<(Target, Aspect), TxError> {
        match op {
            Op::CreatePage(_) | Op::DeletePage => unreachable!("applied to the table of pages"),
            Op::RestorePage { .. } => unreachable!("no transaction restores pages"),
            Op::Put { slot, generation, value } => {
                let aspect = self.put(page, *slot, *generation, value, page_bytes)?;
                return Ok((Target::Slot(*slot), aspect));
            }
            Op::Delete { slot, generation } => {
                let freed = self.object(page, *slot, *generation)?.len() + SLOT_BYTES;
                self.slots.remove(slot);
                self.used -= freed;
            }
            Op::Add { slot, generation, offset, delta } => {
                self.number(page, *slot, *generation, *offset, |n| n.wrapping_add_signed(*delta))?;
            }
            Op::Max { slot, generation, offset, value } => {
                self.number(page, *slot, *generation, *offset, |n| n.max(*value))?;
            }
            Op::WriteRaw { offset, bytes } => {
                let raw = self.raw.as_mut().ok_or(TxError::Gone(page))?;
                let (at, end) = (*offset as usize, *offset as usize + bytes.len());
                if end + HEADER_BYTES > page_bytes {
                    return Err(TxError::Full(page));
                }
                raw.resize(raw.len().max(end), 0);
                raw[at..end].copy_from_slice(bytes);
            }
            Op::TruncateRaw { length } => {
                let raw = self.raw.as_mut().ok_or(TxError::Gone(page))?;
                raw.resize(*length as usize, 0);
            }
        }
        Ok(op.touches(false))
    }
}

fn apply(
    pages: &mut BTreeMap<PageNo, Option<Arc<Image>>>,
    page: PageNo,
    op: &Op,
    page_bytes: usize,
) -> Result<(Target, Aspect), TxError> {
    match op {
        Op::CreatePage(kind) => {
            if pages.contains_key(&page) {
                return Err(TxError::Gone(page));
            }
            pages.insert(page, Some(Arc::new(Image::new(*kind))));
            Ok(op.touches(true))
        }
        Op::DeletePage => match pages.get_mut(&page) {
            Some(there @ Some(_)) => {
                *there = None;
                Ok(op.touches(false))
            }
            _ => Err(TxError::Gone(page)),
        },
        _ => match pages.get_mut(&page) {
            Some(Some(image)) => Arc::make_mut(image).apply(page, op, page_bytes),
            _ => Err(TxError::Gone(page)),
        },
    }
}

fn recheck(database: &Database, state: &mut State) -> Result<(), TxError> {
    if state.snapshot.is_some() {
        return Ok(());
    }
    for changes in &database.log[state.checked..] {
        for (page, target, aspect) in changes {
            let hit = state
                .reads
                .iter()
                .any(|read| read.0 == *page && conflicts((read.1, read.2), (*target, *aspect)));
            if hit {
                return Err(TxError::Conflict(format!("{target:?} of page {}", page.0)));
            }
        }
    }
    state.checked = database.log.len();
    Ok(())
}

impl MemoryTx {
    fn read<T>(
        &self,
        page: PageNo,
        read: Option<(Target, Aspect)>,
        f: impl FnOnce(Option<&Image>) -> T,
    ) -> Result<T, TxError> {
        let database = self.store.lock();
        let mut state = self.state.lock().expect("see MemoryStore::lock");
        recheck(&database, &mut state)?;
        if database.damaged.contains(&page) {
            return Err(TxError::Damaged(format!("page {}", page.0)));
        }
        if let Some((target, aspect)) = read {
            state.reads.push((page, target, aspect));
        }
        let image = match (state.overlay.get(&page), &state.snapshot) {
            (Some(own), _) => own.as_ref(),
            (None, Some(snapshot)) => snapshot.get(&page).and_then(Option::as_ref),
            (None, None) => database.pages.get(&page).and_then(Option::as_ref),
        };
        Ok(f(image.map(Arc::as_ref)))
    }

    fn write(&self, page: PageNo, op: Op) -> Result<(), TxError> {
        let database = self.store.lock();
        let mut state = self.state.lock().expect("see MemoryStore::lock");
        recheck(&database, &mut state)?;
        let (target, _) = op.touches(matches!(op, Op::CreatePage(_)));
        state.reads.push((page, target, Aspect::Existence));
        if !state.overlay.contains_key(&page)
            && let Some(image) = database.pages.get(&page)
        {
            state.overlay.insert(page, image.clone());
        }
        apply(&mut state.overlay, page, &op, self.store.page_bytes as usize)?;
        state.ops.push((page, op));
        Ok(())
    }
}

impl Tx for MemoryTx {
    async fn get(&self, page: PageNo, slot: Slot) -> Result<Option<(Generation, Bytes)>, TxError> {
        self.read(page, Some((Target::Slot(slot), Aspect::Value)), |image| {
            image.and_then(|image| image.slots.get(&slot).cloned())
        })
    }

    async fn get_all(
        &self,
        page: PageNo,
    ) -> Result<Option<Vec<(Slot, Generation, Bytes)>>, TxError> {
        self.read(page, Some((Target::Page, Aspect::Value)), |image| {
            let slots = &image?.slots;
            Some(slots.iter().map(|(s, (g, b))| (*s, *g, b.clone())).collect())
        })
    }

    async fn slots(&self, page: PageNo) -> Result<Option<Vec<(Slot, Generation)>>, TxError> {
        self.read(page, Some((Target::Page, Aspect::Existence)), |image| {
            Some(image?.slots.iter().map(|(slot, (generation, _))| (*slot, *generation)).collect())
        })
    }

    async fn get_raw(&self, page: PageNo) -> Result<Option<Bytes>, TxError> {
        self.state.lock().expect("see MemoryStore::lock").looked = true;
        self.read(page, Some((Target::Slot(Slot(0)), Aspect::Value)), |image| {
            image?.raw.as_ref().map(|raw| Bytes::copy_from_slice(raw))
        })
    }

    async fn room(&self, page: PageNo) -> Result<Option<usize>, TxError> {
        let all = (self.store.page_bytes as usize) - HEADER_BYTES;
        self.read(page, None, |image| Some((all - image?.used).saturating_sub(SLOT_BYTES)))
    }

    async fn fetch(&self, pages: &[PageNo]) -> Result<(), TxError> {
        let database = self.store.lock();
        match pages.iter().find(|page| database.damaged.contains(page)) {
            Some(page) => Err(TxError::Damaged(format!("page {}", page.0))),
            None => Ok(()),
        }
    }

    async fn create_page(&self, page: PageNo, kind: PageKind) -> Result<(), TxError> {
        self.write(page, Op::CreatePage(kind))
    }

    async fn create_named_page(&self, page: PageNo, kind: PageKind) -> Result<(), TxError> {
        self.write(page, Op::CreatePage(kind))?;
        self.store.lock().named.insert(page);
        Ok(())
    }

    async fn delete_page(&self, page: PageNo) -> Result<(), TxError> {
        self.write(page, Op::DeletePage)
    }

    async fn create(&self, page: PageNo, slot: Slot, value: Bytes) -> Result<Generation, TxError> {
        let generation = self.read(page, None, |image| match image {
            Some(image) if !image.slots.contains_key(&slot) => Ok(image.next_generation(slot)),
            Some(_) => Err(TxError::Conflict("the slot is filled".into())),
            None => Err(TxError::Gone(page)),
        })??;
        self.write(page, Op::Put { slot, generation, value })?;
        Ok(generation)
    }

    async fn put(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        value: Bytes,
    ) -> Result<(), TxError> {
        self.write(page, Op::Put { slot, generation, value })
    }

    async fn delete(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
    ) -> Result<(), TxError> {
        self.write(page, Op::Delete { slot, generation })
    }

    async fn add(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        delta: i64,
    ) -> Result<(), TxError> {
        self.write(page, Op::Add { slot, generation, offset, delta })
    }

    async fn max(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        value: u64,
    ) -> Result<(), TxError> {
        self.write(page, Op::Max { slot, generation, offset, value })
    }

    async fn write_raw(&self, page: PageNo, offset: u32, bytes: Bytes) -> Result<(), TxError> {
        self.write(page, Op::WriteRaw { offset, bytes })
    }

    async fn truncate_raw(&self, page: PageNo, length: u32) -> Result<(), TxError> {
        self.write(page, Op::TruncateRaw { length })
    }

    fn writes(&self) -> bool {
        !self.state.lock().expect("see MemoryStore::lock").ops.is_empty()
    }

    async fn commit(self) -> Result<(), TxError> {
        let looked = self.state.lock().expect("see MemoryStore::lock").looked;
        if !self.writes() {
            self.commit_now()?;
            self.store.pass(if looked { Stall::Looked } else { Stall::Asked }).await;
            return Ok(());
        }
        self.store.pass(Stall::Before).await;
        if self.is_delayed() {
            let late = self.store.late.clone();
            late.lock().expect("see MemoryStore::lock").push(self);
            return Err(TxError::OutcomeUnknown);
        }
        self.commit_now()?;
        self.store.pass(Stall::After).await;
        Ok(())
    }
}

impl MemoryTx {
    fn is_delayed(&self) -> bool {
        let left = &mut self.store.lock().to_delay;
        let delayed = *left > 0;
        *left -= usize::from(delayed);
        delayed
    }

    fn commit_now(&self) -> Result<(), TxError> {
        let mut database = self.store.lock();
        let mut state = self.state.lock().expect("see MemoryStore::lock");
        if database.forked {
            return Err(TxError::Forked);
        }
        recheck(&database, &mut state)?;
        if state.ops.is_empty() {
            return Ok(());
        }
        if let Some(error) = database.failures.pop() {
            return Err(error);
        }
        let refused = state.ops.iter().find_map(|(page, _)| database.refused.get(page));
        if let Some(error) = refused {
            return Err(error.clone());
        }
        // Applied to copies first: a write that does not fit undoes the whole commit.
        let mut pages = BTreeMap::new();
        let mut touched = Vec::new();
        for (page, op) in &state.ops {
            if !pages.contains_key(page)
                && let Some(image) = database.pages.get(page)
            {
                pages.insert(*page, image.clone());
            }
            let (target, aspect) = apply(&mut pages, *page, op, self.store.page_bytes as usize)?;
            touched.push((*page, target, aspect));
        }
        database.pages.extend(pages);
        let touches: Touches = touched.iter().map(|(page, target, _)| (*page, *target)).collect();
        database.watchers.retain(|watcher| watcher.send(touches.clone()).is_ok());
        database.log.push(touched);
        Ok(())
    }
}

impl TxStore for MemoryStore {
    type Tx = MemoryTx;

    fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    async fn begin(&self, mode: Mode) -> Result<MemoryTx, TxError> {
        self.standing()?;
        let database = self.lock();
        let state = State {
            checked: database.log.len(),
            snapshot: (mode == Mode::Snapshot).then(|| database.pages.clone()),
            reads: Vec::new(),
            looked: false,
            ops: Vec::new(),
            overlay: BTreeMap::new(),
        };
        drop(database);
        Ok(MemoryTx { store: self.clone(), state: Mutex::new(state) })
    }

    async fn refresh(&self) -> Result<(), TxError> {
        let mut database = self.lock();
        database.refreshes += 1;
        if database.cut {
            return Err(TxError::Unavailable("the line is cut".into()));
        }
        Ok(())
    }

    async fn allocate(&self, count: u64) -> Result<PageNo, TxError> {
        let mut database = self.lock();
        let first = database.next_page;
        database.next_page += count;
        Ok(PageNo(first))
    }

    fn history(&self) -> u128 {
        self.lock().history
    }

    fn standing(&self) -> Result<(), TxError> {
        let database = self.lock();
        if database.right < Right::Read {
            return Err(TxError::NoRight("it may not be read".into()));
        }
        if database.forked { Err(TxError::Forked) } else { Ok(()) }
    }

    fn right(&self) -> Right {
        self.lock().right
    }

    fn prefetch(&self, _pages: &[PageNo]) {}

    async fn pause(&self, attempt: u32) {
        tokio::time::sleep(Duration::from_micros(200 * u64::from(attempt.min(20)))).await;
    }

    fn now(&self) -> i64 {
        super::client::wall_time()
    }

    fn current_for(&self) -> Option<Duration> {
        None
    }

    async fn slotted_pages(&self) -> Result<SlottedPages, TxError> {
        let database = self.lock();
        let is_damaged = |page: &PageNo| database.damaged.contains(page);
        let there = database.pages.iter().filter_map(|(page, image)| Some((page, image.as_ref()?)));
        let slotted =
            there.clone().filter(|(page, image)| image.raw.is_none() && !is_damaged(page));
        Ok(SlottedPages {
            pages: slotted.map(|(page, _)| *page).collect(),
            damaged: there.map(|(page, _)| *page).filter(is_damaged).collect(),
        })
    }

    async fn taken(&self) -> Taken {
        let database = self.lock();
        let images = database.pages.values().flatten();
        let bytes = images.map(|image| image.used + image.raw.as_ref().map_or(0, Vec::len));
        Taken { bytes: bytes.sum::<usize>() as u64, free: None }
    }

    fn free_seen(&self) -> Option<u64> {
        self.lock().free
    }

    fn look_at_room(&self) {}

    fn count_lost(&self, bytes: u64) {
        self.lock().lost += bytes;
    }
}
