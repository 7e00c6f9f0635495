//! Open files: who holds which, and reading through what waits for its commit.
//!
//! A file that this node holds open keeps its content when its last name goes; so a removal and an
//! opening here must not pass each other. A removal marks the inode until its outcome is known
//! ([`DropMark`]); an opening waits for that, for a while.

use super::awake::{Awake, Moment};
use super::caller::Callers;
use super::closes::Promise;
use super::dirty::{Attempt, Dirty, Lost, Room};
use super::late::{Creation, LATE_MAX};
use super::record::{Inode, InodeId, Kind};
use super::tx::Tx;
use super::{Attr, FileSystem, FsError, ReadAhead, TxError, TxStore, lock, transact};
use crate::clock::timeout;
use bytes::{Bytes, BytesMut};
use larder_core::id::{Generation, PageNo, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// Files with a loss that nobody was told of; beyond it the one lost longest ago, whose file may be
/// gone by now, is left to the log.
const UNTOLD_MAX: usize = if cfg!(test) { 4 } else { 4096 };

/// How often attributes are looked at while commits end beside it.
const LOOKS_MAX: u32 = 32;

/// The files that this node holds open.
pub(super) struct OpenFiles {
    table: Mutex<Table>,
    /// A mark was taken away.
    unmarked: Notify,
    pub(super) room: Room,
    /// By which it counts how long a file is held by nobody.
    pub(super) awake: Awake,
    /// Who wants to hear of lost bytes.
    lost: OnceLock<Box<dyn Fn(InodeId) + Send + Sync>>,
    /// Says which files may be open here by nobody's handle.
    may_be_open: OnceLock<Box<dyn Fn(InodeId) -> bool + Send + Sync>>,
    /// Who wants to hear of files that turn out to be others.
    became: OnceLock<Box<dyn Fn(InodeId, InodeId) + Send + Sync>>,
    /// Counts lost bytes.
    count_lost: Box<dyn Fn(u64) + Send + Sync>,
    /// Creations that are not committed yet: looked at without the table's lock.
    creations: AtomicUsize,
    /// How often something stopped to wait, since it was committed or lost.
    settled: AtomicU64,
}

#[derive(Default)]
struct Table {
    files: BTreeMap<InodeId, Arc<OpenFile>>,
    /// Inodes that a removal under way may take, with the number of removals.
    dropping: BTreeMap<InodeId, u32>,
    /// Where the last round of commits stopped.
    stopped: Option<InodeId>,
    /// Files that nobody holds, and for which error bytes of them were lost: the next to open one
    /// is told. With numbers that ascend.
    untold: BTreeMap<InodeId, (u64, FsError)>,
    untold_next: u64,
    /// Names that are shown here and not committed yet, with their directories; when they were made.
    creations: BTreeMap<(InodeId, Bytes), (InodeId, i64)>,
    /// Files that lost their last name here, or were to, and that somebody may have open still
    /// without a handle: each counts as one.
    kept: BTreeSet<InodeId>,
}

impl Table {
    fn made_in(&self, directory: InodeId) -> impl Iterator<Item = &(InodeId, i64)> {
        let names = self.creations.range((directory, Bytes::new())..);
        names.take_while(move |((at, _), _)| *at == directory).map(|(_, made)| made)
    }

    fn file(&mut self, id: InodeId) -> &Arc<OpenFile> {
        self.files.entry(id).or_insert_with(|| Arc::new(OpenFile::new(id)))
    }

    fn keep_untold(&mut self, id: InodeId, error: FsError) {
        let full = self.untold.len() >= UNTOLD_MAX && !self.untold.contains_key(&id);
        let oldest = self.untold.iter().min_by_key(|(_, (number, _))| *number);
        if full && let Some((&oldest, _)) = oldest {
            self.untold.remove(&oldest);
        }
        self.untold.insert(id, (self.untold_next, error));
        self.untold_next += 1;
    }
}

/// Looks at attributes while commits end beside it. What was read before a commit and what waits after
/// it lack both what was committed: a file would be shorter than was written here.
pub(super) struct Looks<'a> {
    files: &'a OpenFiles,
    settled: u64,
    count: u32,
}

impl Looks<'_> {
    /// Whether what was seen since the last look, or since this was taken, stands; else it is to be
    /// looked at again.
    pub(super) fn stands(&mut self) -> bool {
        let before =
            std::mem::replace(&mut self.settled, self.files.settled.load(Ordering::SeqCst));
        self.count += 1;
        // What was looked at once is at hand: a commit ends beside so many looks as good as never.
        self.settled == before || self.count == LOOKS_MAX
    }
}

/// When a file that nobody holds is to be forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Forget {
    /// With whatever still waits. With an error nobody hears of it, and what waited is lost for it.
    Always(Option<FsError>),
    /// If nothing waits for its commit.
    IfCommitted,
    /// If there is nothing left to do for it at all.
    IfDone,
}

/// Says that a removal under way takes an inode that nobody here holds open.
#[must_use = "the inode may be opened again when this is dropped"]
pub(super) struct DropMark {
    files: Arc<OpenFiles>,
    id: InodeId,
}

impl Drop for DropMark {
    fn drop(&mut self) {
        let mut table = lock(&self.files.table);
        if let Some(count) = table.dropping.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                table.dropping.remove(&self.id);
            }
        }
        drop(table);
        self.files.unmarked.notify_waiters();
    }
}

impl OpenFiles {
    pub(super) fn new(
        dirty_bytes_max: usize,
        count_lost: impl Fn(u64) + Send + Sync + 'static,
    ) -> Self {
        Self {
            table: Mutex::default(),
            unmarked: Notify::new(),
            room: Room::new(dirty_bytes_max),
            awake: Awake::default(),
            lost: OnceLock::new(),
            may_be_open: OnceLock::new(),
            became: OnceLock::new(),
            count_lost: Box::new(count_lost),
            creations: AtomicUsize::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// Bytes written to a file were lost.
    pub(super) fn tell_lost(&self, id: InodeId, bytes: usize) {
        (self.count_lost)(bytes as u64);
        if let Some(tell) = self.lost.get() {
            tell(id);
        }
    }

    /// Before a file loses its last name: the same as [`Self::mark_dropping`], but one that may be
    /// open by nobody's handle counts as open from here on.
    pub(super) fn mark_removal(self: &Arc<Self>, id: InodeId) -> Option<DropMark> {
        if !self.may_be_open.get().is_some_and(|may_be| may_be(id)) {
            return self.mark_dropping(id);
        }
        let mut table = lock(&self.table);
        if table.kept.insert(id) {
            let mut state = lock(&table.file(id).state);
            state.handles += 1;
            state.unheld_since = None;
        }
        None
    }

    /// A file is open by nobody's handle any more: the file, if it was kept for that.
    fn keep_no_longer(&self, id: InodeId) -> Option<Arc<OpenFile>> {
        let mut table = lock(&self.table);
        if !table.kept.remove(&id) {
            return None;
        }
        let file = table.files.get(&id).cloned()?;
        let mut state = lock(&file.state);
        state.handles -= 1;
        state.unheld_since = (state.handles == 0).then(|| self.awake.look());
        drop(state);
        Some(file)
    }

    fn all_kept(&self) -> Vec<InodeId> {
        lock(&self.table).kept.iter().copied().collect()
    }

    /// Keeps an inode from being opened until the mark is dropped; none: it is open.
    pub(super) fn mark_dropping(self: &Arc<Self>, id: InodeId) -> Option<DropMark> {
        let mut table = lock(&self.table);
        if table.files.contains_key(&id) {
            return None;
        }
        *table.dropping.entry(id).or_default() += 1;
        Some(DropMark { files: self.clone(), id })
    }

    pub(super) fn is_open(&self, id: InodeId) -> bool {
        lock(&self.table).files.contains_key(&id)
    }

    pub(super) fn get(&self, id: InodeId) -> Option<Arc<OpenFile>> {
        lock(&self.table).files.get(&id).cloned()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.table).files.len()
    }

    pub(super) fn all(&self) -> Vec<Arc<OpenFile>> {
        lock(&self.table).files.values().cloned().collect()
    }

    /// All, beginning after the one where the last round stopped.
    pub(super) fn in_turn(&self) -> Vec<Arc<OpenFile>> {
        let mut table = lock(&self.table);
        let mut files: Vec<_> = table.files.values().cloned().collect();
        if let Some(stopped) = table.stopped.take() {
            let first = files.partition_point(|file| file.id <= stopped);
            files.rotate_left(first);
        }
        files
    }

    /// The next round begins after this one.
    pub(super) fn stopped_at(&self, id: InodeId) {
        lock(&self.table).stopped = Some(id);
    }

    /// A loss that nobody was told of.
    pub(super) fn untold(&self) -> Option<FsError> {
        lock(&self.table).untold.values().next().map(|(_, error)| error.clone())
    }

    /// Forgets a file that is to be made and that nobody holds open; false: a commit of it began, or
    /// somebody holds it.
    pub(super) fn unmake(&self, file: &OpenFile) -> bool {
        if self.may_be_open.get().is_some_and(|may_be| may_be(file.id)) {
            return false;
        }
        let mut table = lock(&self.table);
        let mut state = lock(&file.state);
        let begun = state.creation.as_ref().is_none_or(|creation| creation.begun);
        if begun || state.handles > 0 || state.attempt.is_some() {
            return false;
        }
        let creation = state.creation.take();
        self.forget_creation(&mut table, creation);
        self.room.exchange(state.dirty.cost(), 0);
        state.dirty.clear();
        state.forgotten = true;
        table.files.remove(&file.id);
        true
    }

    /// Files that have lost their last name.
    pub(super) fn orphans(&self) -> Vec<InodeId> {
        let table = lock(&self.table);
        let nameless = |file: &&Arc<OpenFile>| {
            let state = lock(&file.state);
            state.orphan || state.foreign
        };
        table.files.values().filter(nameless).map(|file| file.id).collect()
    }

    /// Says that the file has lost its last name, if it is open here: perhaps to somebody else, who is to free it.
    pub(super) fn mark_foreign(&self, id: InodeId) {
        let table = lock(&self.table);
        if let Some(file) = table.files.get(&id) {
            lock(&file.state).foreign = true;
        }
    }

    /// Says that the file has lost its last name; false: it is not open, nobody keeps it.
    pub(super) fn mark_orphan(&self, id: InodeId) -> bool {
        let table = lock(&self.table);
        let Some(file) = table.files.get(&id) else { return false };
        lock(&file.state).orphan = true;
        true
    }

    /// Registers a handle, unless a removal under way may take the inode.
    fn try_hold(self: &Arc<Self>, id: InodeId) -> Option<Handle> {
        let mut table = lock(&self.table);
        if table.dropping.contains_key(&id) {
            return None;
        }
        let untold = table.untold.remove(&id);
        let file = table.file(id);
        let mut state = lock(&file.state);
        state.handles += 1;
        state.unheld_since = None;
        if let Some((_, error)) = untold {
            state.lost.note(error);
        }
        let told = state.lost.begin();
        drop(state);
        let file = file.clone();
        Some(self.handle_of(file, told))
    }

    /// Registers a file that is made, and a handle of it; none: its name is being made already, or
    /// too many are.
    pub(super) fn hold_new(
        self: &Arc<Self>,
        id: InodeId,
        creation: Creation,
        by: &Callers,
    ) -> Option<Handle> {
        let mut table = lock(&self.table);
        let (key, made) = ((creation.directory, creation.name.clone()), creation.made);
        if table.creations.len() >= LATE_MAX
            || table.creations.contains_key(&key)
            || table.files.contains_key(&id)
        {
            return None;
        }
        let file = Arc::new(OpenFile::new(id));
        {
            let mut state = lock(&file.state);
            state.handles = 1;
            state.creation = Some(creation);
            state.writers.add(by);
        }
        table.creations.insert(key, (id, made));
        self.creations.fetch_add(1, Ordering::SeqCst);
        table.files.insert(id, file.clone());
        Some(self.handle_of(file, 0))
    }

    /// Whether no creation waits for its commit.
    pub(super) fn has_no_creations(&self) -> bool {
        self.creations.load(Ordering::SeqCst) == 0
    }

    /// The file that is being made under a name.
    pub(super) fn made_as(&self, directory: InodeId, name: &[u8]) -> Option<Arc<OpenFile>> {
        let table = lock(&self.table);
        let (id, _) = table.creations.get(&(directory, Bytes::copy_from_slice(name)))?;
        table.files.get(id).cloned()
    }

    /// The files that are being made in a directory.
    pub(super) fn made_in(&self, directory: InodeId) -> Vec<Arc<OpenFile>> {
        let table = lock(&self.table);
        let made = table.made_in(directory);
        made.filter_map(|(id, _)| table.files.get(id).cloned()).collect()
    }

    /// When the last of the files was made that are being made in a directory.
    fn last_made_in(&self, directory: InodeId) -> Option<i64> {
        lock(&self.table).made_in(directory).map(|(_, made)| *made).max()
    }

    /// Something stops to wait from here on: it was committed, or is lost.
    pub(super) fn settle(&self) {
        self.settled.fetch_add(1, Ordering::SeqCst);
    }

    /// To be taken before attributes are looked at.
    pub(super) fn look(&self) -> Looks<'_> {
        Looks { files: self, settled: self.settled.load(Ordering::SeqCst), count: 0 }
    }

    /// How many files are being made whose inodes are to be in a page.
    pub(super) fn made_on(&self, page: PageNo) -> usize {
        if self.has_no_creations() {
            return 0;
        }
        let table = lock(&self.table);
        let first = InodeId { page, slot: Slot(0), generation: Generation(0) };
        let there = table.files.range(first..).take_while(|(id, _)| id.page == page);
        there.filter(|(_, file)| lock(&file.state).creation.is_some()).count()
    }

    /// A file that was to be made is another from here on: its handles, and what waits.
    pub(super) fn become_another(&self, file: &OpenFile, other: &Handle) {
        self.settle();
        let mut table = lock(&self.table);
        let mut ours = lock(&file.state);
        let (into, mut theirs) = other.locked();
        let creation = ours.creation.take();
        self.forget_creation(&mut table, creation);
        theirs.handles += std::mem::take(&mut ours.handles);
        let before = ours.dirty.cost() + theirs.dirty.cost();
        theirs.dirty.take_over(&mut ours.dirty);
        self.room.exchange(before, theirs.dirty.cost());
        theirs.writers.add(&std::mem::take(&mut ours.writers));
        let promised = ours.promised.take().filter(|_| theirs.waits());
        theirs.promised = theirs.promised.take().or(promised);
        (ours.attempt, ours.troubled, ours.unheld_since) = (None, false, None);
        ours.forgotten = true;
        table.files.remove(&file.id);
        let first = file.became.set(into.clone()).is_ok();
        assert!(first, "it has no creation afterwards");
        drop((theirs, ours, table));
        if let Some(tell) = self.became.get() {
            tell(file.id, other.id());
        }
    }

    /// A creation waits no more: it was committed, or never will be.
    pub(super) fn end_creation(&self, file: &OpenFile) {
        self.settle();
        let mut table = lock(&self.table);
        let creation = lock(&file.state).creation.take();
        self.forget_creation(&mut table, creation);
    }

    fn forget_creation(&self, table: &mut Table, creation: Option<Creation>) {
        if let Some(Creation { directory, name, .. }) = creation {
            table.creations.remove(&(directory, name));
            self.creations.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn handle_of(self: &Arc<Self>, file: Arc<OpenFile>, told: u64) -> Handle {
        Handle {
            first: file,
            files: self.clone(),
            told: Mutex::new(told),
            ahead: Mutex::default(),
            given_back: AtomicBool::new(false),
        }
    }

    /// Registers a handle, after any removal under way; none: one takes longer than the limit. What settles a
    /// removal without an outcome is a commit, which may be refused for as long as anybody likes: for a right
    /// that was taken, a store that is full.
    async fn hold(self: &Arc<Self>, id: InodeId, limit: Duration) -> Option<Handle> {
        if let Some(handle) = self.try_hold(id) {
            return Some(handle);
        }
        let holding = async {
            loop {
                let unmarked = self.unmarked.notified();
                if let Some(handle) = self.try_hold(id) {
                    return handle;
                }
                unmarked.await;
            }
        };
        timeout(limit, holding).await.ok()
    }

    /// Forgets a file that nobody holds; says whether it did, and it is one without a name.
    pub(super) fn forget_unheld(&self, file: &OpenFile, when: Forget) -> bool {
        let mut table = lock(&self.table);
        let mut state = lock(&file.state);
        let ready = match &when {
            Forget::Always(_) => true,
            Forget::IfCommitted => !state.waits() || state.orphan,
            Forget::IfDone => !state.waits() && !state.orphan,
        };
        if state.handles > 0 || state.forgotten || !ready {
            return false;
        }
        state.forgotten = true;
        table.files.remove(&file.id);
        let creation = state.creation.take();
        let made = creation.is_some();
        self.forget_creation(&mut table, creation);
        let (left, cost) = (state.dirty.bytes(), state.dirty.cost());
        state.dirty.clear();
        state.promised = None;
        self.room.give_back(cost);
        let orphan = state.orphan;
        if let Forget::Always(Some(error)) = when
            && (left > 0 || made)
        {
            state.lost.note(error);
        }
        if let Some(error) = state.lost.untold()
            && !orphan
        {
            tracing::warn!(inode = %file.id, %error, "lost what was written, and nobody asked yet");
            table.keep_untold(file.id, error.clone());
        }
        drop((state, table));
        if (left > 0 || made) && !orphan {
            tracing::warn!(inode = %file.id, bytes = left, "closed before it could be committed");
            self.tell_lost(file.id, left);
        }
        orphan
    }
}

/// A file that somebody here holds open.
pub(super) struct OpenFile {
    pub(super) id: InodeId,
    pub(super) state: Mutex<OpenState>,
    /// Held while the file's writes are committed, so that they keep their order.
    pub(super) commit: tokio::sync::Mutex<()>,
    /// The file that it turned out to be: somebody else had made its name.
    pub(super) became: OnceLock<Arc<OpenFile>>,
}

#[derive(Default)]
pub(super) struct OpenState {
    pub(super) handles: u32,
    pub(super) dirty: Dirty,
    /// Who wrote what waits.
    pub(super) writers: Callers,
    pub(super) lost: Lost,
    pub(super) orphan: bool,
    /// It has no name either, and it is not known to be this node's to free: it is only said to be open here.
    pub(super) foreign: bool,
    /// Its last commit did not succeed, or is under way.
    pub(super) troubled: bool,
    /// A commit that got no answer, or is under way.
    pub(super) attempt: Option<Attempt>,
    /// Since when nobody holds it.
    pub(super) unheld_since: Option<Moment>,
    /// It is out of the table of open files: nothing more may be kept here.
    pub(super) forgotten: bool,
    /// It is shown here, and is to be made with its first bytes.
    pub(super) creation: Option<Creation>,
    /// It could not be made: nothing more may be kept here.
    pub(super) never_was: bool,
    /// Somebody who closed it was told that all is well while something waited.
    pub(super) promised: Option<Promise>,
}

impl OpenState {
    /// Whether anything waits for its commit.
    pub(super) fn waits(&self) -> bool {
        self.creation.is_some() || !self.dirty.is_empty()
    }
}

impl OpenFile {
    fn new(id: InodeId) -> Self {
        Self {
            id,
            state: Mutex::default(),
            commit: tokio::sync::Mutex::default(),
            became: OnceLock::new(),
        }
    }
}

/// An open file. Give it back with [`FileSystem::release`]; one that is dropped is given back too,
/// and what it wrote is committed soon.
pub struct Handle {
    /// As it was opened: see [`Handle::file`].
    first: Arc<OpenFile>,
    files: Arc<OpenFiles>,
    /// Up to which number it was told of losses.
    pub(super) told: Mutex<u64>,
    ahead: Mutex<ReadAhead>,
    given_back: AtomicBool,
}

impl Handle {
    /// Which file: another than at its opening, if that was made late under a name that somebody
    /// else had made.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.file().id
    }

    /// The file by now.
    pub(super) fn file(&self) -> &Arc<OpenFile> {
        let mut file = &self.first;
        while let Some(next) = file.became.get() {
            file = next;
        }
        file
    }

    /// The same, with its state, that stays the file's while it is held.
    pub(super) fn locked(&self) -> (&Arc<OpenFile>, MutexGuard<'_, OpenState>) {
        loop {
            let file = self.file();
            let state = lock(&file.state);
            if file.became.get().is_none() {
                return (file, state);
            }
        }
    }

    /// Bytes written and not yet committed.
    #[must_use]
    pub fn dirty_bytes(&self) -> usize {
        self.locked().1.dirty.bytes()
    }

    /// Gives it back, once.
    pub(super) fn give_back(&self) {
        if !self.given_back.swap(true, Ordering::Relaxed) {
            let (_, mut state) = self.locked();
            state.handles -= 1;
            state.unheld_since = (state.handles == 0).then(|| self.files.awake.look());
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.give_back();
        // What is left to do takes a transaction: `flush_aged` finds it.
        self.files.forget_unheld(self.file(), Forget::IfDone);
    }
}

/// Bytes read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// Fewer than asked for at the end of the file.
    pub bytes: Bytes,
    /// The count of updates of the content they are of ([`Inode::change`]); none: what this node
    /// wrote and did not commit yet is in them as well, so that they are of no update.
    pub change: Option<u32>,
}

impl<S: TxStore> FileSystem<S> {
    /// Has somebody told of every file of which written bytes are lost for good: what was read of
    /// it since they were written is not there. Only the first to ask is told.
    pub fn when_lost(&self, tell: impl Fn(InodeId) + Send + Sync + 'static) {
        if self.open_files.lost.set(Box::new(tell)).is_err() {
            tracing::warn!("somebody else is told already of what is lost");
        }
    }

    /// Has somebody asked, before a file loses its last name here, whether it may be open by nobody's
    /// handle: by a kernel that opens files without a message. One of which that is so keeps its
    /// content until [`Self::not_open`]. Only the first to offer is asked.
    pub fn when_removed(&self, may_be_open: impl Fn(InodeId) -> bool + Send + Sync + 'static) {
        if self.open_files.may_be_open.set(Box::new(may_be_open)).is_err() {
            tracing::warn!("somebody else is asked already what may be open");
        }
    }

    /// A file is not open by nobody's handle any more: one that has no name is freed soon.
    pub fn not_open(&self, id: InodeId) {
        if let Some(file) = self.open_files.keep_no_longer(id)
            && self.open_files.forget_unheld(&file, Forget::IfCommitted)
        {
            self.reap_later(id);
        }
    }

    /// The same for all files: nobody opens any more.
    pub fn none_is_open(&self) {
        self.open_files.all_kept().into_iter().for_each(|id| self.not_open(id));
    }

    /// Has somebody told of every file that was shown here before it was made, and turns out to be
    /// another, which somebody else made under its name: what is known of the first is to be the
    /// second's from then on.
    pub fn when_another(&self, tell: impl Fn(InodeId, InodeId) + Send + Sync + 'static) {
        if self.open_files.became.set(Box::new(tell)).is_err() {
            tracing::warn!("somebody else is told already of files that are others");
        }
    }

    /// Registers a handle, after any removal under way; [`TxError::TimedOut`] if one has no outcome for
    /// longer than [`super::FsOptions::write_limit`].
    pub(super) async fn hold(&self, id: InodeId) -> Result<Handle, FsError> {
        let held = self.open_files.hold(id, self.options.write_limit).await;
        held.ok_or_else(|| {
            tracing::warn!(inode = %id, "not opened: whether its removal was done is not known yet");
            TxError::TimedOut.into()
        })
    }

    /// Opens a file; [`FsError::IsDirectory`], or [`FsError::Invalid`], if it is anything else.
    pub async fn open_file(&self, id: InodeId) -> Result<(Handle, Attr), FsError> {
        let handle = self.hold(id).await?;
        let attr = self.getattr(id).await?;
        match attr.inode.kind {
            Kind::File => Ok((handle, attr)),
            Kind::Directory => Err(FsError::IsDirectory),
            // Also a symbolic link, whose content is its target: nobody may write that.
            _ => Err(FsError::Invalid("only a file can be opened")),
        }
    }

    /// Reads; fewer bytes at the end of the file.
    pub async fn read(
        &self,
        handle: &Handle,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, FsError> {
        Ok(self.read_counted(handle, offset, length).await?.bytes)
    }

    /// Reads, and says which update of the content it saw.
    pub async fn read_counted(
        &self,
        handle: &Handle,
        offset: u64,
        length: usize,
    ) -> Result<Read, FsError> {
        // The pieces are taken before the content is read: a commit between the two then shows
        // its bytes twice, never not at all.
        let (pieces, end, made) = {
            let (_, state) = handle.locked();
            let until = offset.saturating_add(length as u64);
            let made = state.creation.as_ref().map(|creation| creation.inode.clone());
            (state.dirty.within(offset, until), state.dirty.end(), made)
        };
        let (inode, content) = match made {
            // What it is to hold is all in the pieces.
            Some(inode) => (inode, Bytes::new()),
            None => self.read_committed(handle, offset, length).await?,
        };
        if pieces.is_empty() && end <= inode.size {
            return Ok(Read { bytes: content, change: Some(inode.change) });
        }
        let size = inode.size.max(end).saturating_sub(offset);
        let length = usize::try_from(size).unwrap_or(usize::MAX).min(length);
        let mut out = BytesMut::from(&content[..]);
        out.resize(length, 0);
        for (at, bytes) in pieces {
            let from = at.max(offset);
            let to = (at + bytes.len() as u64).min(offset + length as u64);
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(Read { bytes: out.freeze(), change: None })
    }

    async fn read_committed(
        &self,
        handle: &Handle,
        offset: u64,
        length: usize,
    ) -> Result<(Inode, Bytes), FsError> {
        let id = handle.id();
        let (inode, content) = transact!(self, tx => {
            let inode = self.inode(&tx, id).await?;
            let content = self.read_content(&tx, id, &inode, offset, length).await?;
            Ok((inode, content))
        })?;
        if offset == 0 {
            self.crawler.read(&inode);
        }
        self.accessed.note(id, &inode, self.store.now());
        let ahead =
            lock(&handle.ahead).note(offset, length as u64, self.options.read_ahead_bytes_max);
        self.prefetch_content(&inode, ahead);
        Ok((inode, content))
    }

    /// Bytes that were written to a file here and wait for their commit.
    #[must_use]
    pub fn waiting_of(&self, id: InodeId) -> u64 {
        let file = self.open_files.get(id);
        file.map_or(0, |file| lock(&file.state).dirty.bytes() as u64)
    }

    /// Adds what waits for its commit to attributes: a file's bytes, a directory's names.
    pub(super) fn with_dirty(&self, mut attr: Attr) -> Attr {
        if attr.inode.kind == Kind::Directory
            && !self.open_files.has_no_creations()
            && let Some(made) = self.open_files.last_made_in(attr.id)
        {
            attr.inode.mtime = attr.inode.mtime.max(made);
            attr.inode.ctime = attr.inode.ctime.max(made);
        }
        if let Some(file) = self.open_files.get(attr.id) {
            let state = lock(&file.state);
            if !state.dirty.is_empty() {
                attr.inode.size = attr.inode.size.max(state.dirty.end());
                attr.inode.mtime = attr.inode.mtime.max(state.dirty.modified);
                attr.inode.ctime = attr.inode.ctime.max(state.dirty.modified);
            }
        }
        attr
    }
}
