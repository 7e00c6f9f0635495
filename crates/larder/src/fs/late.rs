//! Files that are shown here as soon as they are made, and committed with their first bytes
//! (`docs/decisions/0017-late-commits.md`).
//!
//! The name, the inode and the bytes of such a file are one transaction, which [`FileSystem::make_late`]
//! makes when the file is written back. Until then everything that asks for its inode is answered
//! from here, or has it committed first.

use super::caller::Callers;
use super::content::{OBJECT_OVERHEAD, Piece, Resized};
use super::dirty::{Attempt, Waiting};
use super::names::check_name;
use super::open::{Handle, OpenFile};
use super::record::{Entry, INODE_BYTES, Inode, InodeId, Kind, XattrList, Xattrs};
use super::trie;
use super::tx::{Mode, Tx, TxError};
use super::write::may_pass;
use super::xattr::drop_privileges;
use super::{Attr, Create, FileSystem, Found, FsError, SetAttr, TxStore, lock, transact};
use crate::clock::{instant, timeout};
use bytes::Bytes;
use larder_core::id::{PageNo, Slot};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most files that are shown and not committed yet: the next one waits for its commit.
pub(super) const LATE_MAX: usize = if cfg!(test) { 8 } else { 1024 };

/// How often it is looked anew at a name that comes and goes.
const ROUNDS_MAX: u32 = 8;

/// How long who lists a directory waits for files that were made late in it.
const LISTING_WAITS: Duration = Duration::from_secs(1);
/// Room of a page for an inode.
pub(super) const INODE_ROOM: usize = INODE_BYTES + OBJECT_OVERHEAD as usize;

/// A file that is to be made.
#[derive(Clone, Debug)]
pub(super) struct Creation {
    pub(super) directory: InodeId,
    /// Where the directory's names are.
    pub(super) trie: PageNo,
    pub(super) name: Bytes,
    /// As it will be, but for its bytes.
    pub(super) inode: Inode,
    /// Where its name will be kept.
    pub(super) place: (PageNo, Slot),
    /// If somebody else made a file of that name meanwhile, that one is cut first.
    pub(super) truncates: bool,
    /// Which one's cut may have been done, and the count of updates at which it was to be: at another one
    /// it was done, or others wrote since.
    pub(super) cut: Option<(InodeId, u32)>,
    /// When it was made: its directory shows so.
    pub(super) made: i64,
    /// What was set of it since.
    pub(super) set: SetAttr,
    /// A commit of it began, and may have been done: it is not changed any more.
    pub(super) begun: bool,
    pub(super) since: Instant,
}

/// How it stands with what is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Now {
    /// It can be made. Its name is kept elsewhere than was told.
    Free { moved: bool },
    /// It was made: by a commit of which nobody heard. Bytes were written to it then, or since.
    Made { updated: bool },
    /// An inode was there in its place, and is no more.
    Removed,
    /// Its name leads to something else.
    Taken(Entry),
    /// There is no room for its inode where it was to be.
    NoPlace,
}

impl<S: TxStore> FileSystem<S> {
    /// Makes a file and opens it, without a commit: it is shown here, and is committed with what is
    /// written to it. If the name leads to another file by then, the bytes go into that one, which
    /// is cut first if it `truncates`. None: that is not to be had, and it is to be made by
    /// [`Self::create_file`]. Not for a name that must be free everywhere.
    pub async fn create_late(
        &self,
        directory: InodeId,
        name: &[u8],
        create: &Create,
        truncates: bool,
    ) -> Result<Option<(Handle, Found)>, FsError> {
        check_name(name)?;
        if create.kind != Kind::File || !self.is_well() {
            return Ok(None);
        }
        self.locks.check_callers()?;
        let trie = self.trie_of(directory).await?;
        let parent = self.getattr(directory).await?;
        let (xattrs, mode) = self.inherited(&parent, create).await?;
        if xattrs != XattrList::default() {
            return Ok(None);
        }
        let inode = self.new_inode(create, mode, &parent.inode);
        let (page, slot) = self.new_inode_place(directory).await?;
        let look = async {
            let tx = self.store.begin(Mode::Normal).await?;
            let (entry, place) = trie::find(&tx, trie, self.hash(name), name).await?;
            let made = self.open_files.made_on(page) + 1;
            if tx.room(page).await?.unwrap_or(0) < made * INODE_ROOM {
                // Those that are being made take what is left.
                return Err(TxError::Full(page).into());
            }
            // Not committed: it tells the inode's generation.
            let generation = tx.create(page, slot, inode.encode()).await?;
            Ok::<_, FsError>((entry, place, generation))
        };
        let (entry, place, generation) = match look.await {
            Err(FsError::Store(TxError::Full(full) | TxError::Gone(full))) if full == page => {
                self.inode_pages.retire(page);
                return Ok(None);
            }
            Err(error) if error.is_retryable() => return Ok(None),
            found => found?,
        };
        if entry.is_some() {
            return Err(FsError::Exists);
        }
        let id = InodeId { page, slot, generation };
        let creation = Creation {
            directory,
            trie,
            name: Bytes::copy_from_slice(name),
            inode: inode.clone(),
            place,
            truncates,
            cut: None,
            made: inode.ctime,
            set: SetAttr::default(),
            begun: false,
            since: instant(),
        };
        let held = self.open_files.hold_new(id, creation, &Callers::current());
        Ok(held.map(|handle| (handle, Found { attr: Some(Attr { id, inode }), place })))
    }

    /// What a name leads to that was made late.
    pub(super) fn found_late(&self, directory: InodeId, name: &[u8]) -> Option<Found> {
        if self.open_files.has_no_creations() {
            return None;
        }
        let file = self.open_files.made_as(directory, name)?;
        let attr = attr_of(&file)?;
        let place = lock(&file.state).creation.as_ref()?.place;
        Some(Found { attr: Some(attr), place })
    }

    /// The attributes of a file that is not committed yet.
    pub(super) fn attr_late(&self, id: InodeId) -> Option<Attr> {
        if self.open_files.has_no_creations() {
            return None;
        }
        attr_of(&*self.open_files.get(id)?)
    }

    /// Sets attributes of a file that is not committed yet, so that it is made with them; none: it
    /// is, or is about to be, or its size is to be set.
    pub fn set_late(&self, id: InodeId, set: &SetAttr) -> Result<Option<Attr>, FsError> {
        if set.size.is_some() || self.open_files.has_no_creations() {
            return Ok(None);
        }
        self.locks.check_callers()?;
        let Some(file) = self.open_files.get(id) else { return Ok(None) };
        {
            let mut state = lock(&file.state);
            let has_bytes = !state.dirty.is_empty();
            let Some(creation) = state.creation.as_mut().filter(|creation| !creation.begun) else {
                return Ok(None);
            };
            let inode = &mut creation.inode;
            if set.drop_privileges {
                drop_privileges(inode, &mut XattrList::default());
            }
            if let Some(mode) = set.mode {
                inode.mode = mode & 0o7777;
            }
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            inode.atime = set.atime.unwrap_or(inode.atime);
            inode.mtime = set.mtime.unwrap_or(inode.mtime);
            inode.ctime = self.store.now();
            let all = &mut creation.set;
            all.mode = set.mode.or(all.mode);
            all.uid = set.uid.or(all.uid);
            all.gid = set.gid.or(all.gid);
            all.atime = set.atime.or(all.atime);
            all.mtime = set.mtime.or(all.mtime);
            if let Some(mtime) = set.mtime.filter(|_| has_bytes) {
                state.dirty.modified = mtime;
            }
            state.writers.add(&Callers::current());
        }
        Ok(attr_of(&file))
    }

    /// Commits a file that was made late, so that a transaction finds it; says which one it is
    /// then: another, if somebody else had made its name.
    pub async fn come_true(&self, id: InodeId) -> Result<InodeId, FsError> {
        if self.open_files.has_no_creations() {
            return Ok(id);
        }
        let Some(file) = self.open_files.get(id) else { return Ok(id) };
        self.make_now(Some(file.clone())).await?;
        Ok(file.became.get().map_or(id, |other| other.id))
    }

    /// The same by its name.
    pub(super) async fn come_true_as(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<(), FsError> {
        if self.open_files.has_no_creations() {
            return Ok(());
        }
        self.make_now(self.open_files.made_as(directory, name)).await
    }

    /// Commits all files that were made late in a directory; an error if that may still succeed.
    pub async fn come_true_in(&self, directory: InodeId) -> Result<(), FsError> {
        if self.open_files.has_no_creations() {
            return Ok(());
        }
        let files = self.open_files.made_in(directory);
        if !files.is_empty() {
            // Those that are left after it tell why.
            self.commit_in_turn(files).await;
        }
        let mut result = Ok(());
        for file in self.open_files.made_in(directory) {
            result = result.and(self.make_now(Some(file)).await);
        }
        result
    }

    /// The same for somebody who lists it: without those that cannot be committed soon.
    pub(super) async fn list_late(&self, directory: InodeId) {
        if !self.open_files.has_no_creations() && self.is_well() {
            let files = self.open_files.made_in(directory);
            let committing = self.commit_in_turn(files);
            let _or_not = timeout(LISTING_WAITS, committing).await;
        }
    }

    /// Forgets a file that was made late and that nobody holds open, since its name is removed;
    /// false: it is to be committed first.
    pub(super) fn unmake(&self, directory: InodeId, name: &[u8]) -> bool {
        if self.open_files.has_no_creations() {
            return false;
        }
        let file = self.open_files.made_as(directory, name);
        file.is_some_and(|file| self.open_files.unmake(&file))
    }

    async fn make_now(&self, file: Option<Arc<OpenFile>>) -> Result<(), FsError> {
        match file {
            Some(file) if lock(&file.state).creation.is_some() => self.write_back(&file).await,
            _ => Ok(()),
        }
    }

    /// Commits a file's creation with the first of its bytes, if that is still to be done. To be
    /// called with the file's order of commits held. An error says that it may still succeed.
    pub(super) async fn make_late(&self, file: &OpenFile) -> Result<(), FsError> {
        let Some((creation, waiting, older)) = begin(file) else { return Ok(()) };
        // After a commit of which nobody heard the file is made without bytes, which tells the two
        // apart if nobody hears of this one either.
        let first = waiting.batches.first().filter(|_| older.is_none());
        let batch = first.map_or(&[][..], |batch| &batch[..]);
        let note = |attempt: Option<Attempt>| {
            if older.is_none() {
                lock(&file.state).attempt = attempt;
            }
        };
        let empty = waiting.batches.is_empty();
        let writers = lock(&file.state).writers.clone();
        // Each attempt has to find out anew: with no verdict nothing is known of its bytes (bug 61).
        let mut now = Now::NoPlace;
        let result: Result<(), FsError> = writers
            .clone()
            .doing(async {
                transact!(self, tx => {
                    note(None);
                    now = Now::NoPlace;
                    now = self.make_in(&tx, file.id, &creation, (batch, waiting.modified)).await?;
                    match now {
                        Now::Free { .. } => {
                            let span = waiting.span(batch);
                            note(Some(Attempt { span, before: 0, modified: waiting.modified }));
                            Ok(())
                        }
                        Now::Made { .. } => Ok(()),
                        // Not to be committed.
                        _ => Err(FsError::NotFound),
                    }
                })
            })
            .await;
        if result != Err(TxError::OutcomeUnknown.into()) {
            note(None);
        }
        let result = match (result, now) {
            (Ok(()), Now::Free { moved }) => {
                self.made(file, &waiting, batch, moved);
                return Ok(());
            }
            (Ok(()), Now::Made { updated }) => {
                self.open_files.end_creation(file);
                if let Some(attempt) = older.filter(|_| updated) {
                    self.forget_dirty(file, &attempt.span, None);
                }
                lock(&file.state).attempt = None;
                return Ok(());
            }
            (Err(FsError::NotFound), Now::Removed) if let Some(attempt) = older => {
                // Its bytes were committed, and went with it; not what was written since.
                self.forget_dirty(file, &attempt.span, None);
                match lock(&file.state).dirty.is_empty() {
                    true => Ok(()),
                    false => Err(FsError::NotFound),
                }
            }
            // The page may have gone with the file, if it was made: nobody can tell.
            (Err(FsError::NotFound), Now::NoPlace) if older.is_some() => Err(FsError::NotFound),
            (Err(FsError::NotFound), Now::Taken(entry)) => {
                writers.doing(self.adopt(file, &creation, Some(entry), empty)).await
            }
            (Err(FsError::NotFound), Now::NoPlace | Now::Removed) => {
                writers.doing(self.adopt(file, &creation, None, empty)).await
            }
            (result, _) => result,
        };
        if file.became.get().is_some() {
            return result;
        }
        if let Err(error) = &result
            && may_pass(error)
        {
            let mut state = lock(&file.state);
            // One that may have been done stays as it is.
            let begun = state.attempt.is_some();
            if let Some(creation) = state.creation.as_mut() {
                creation.begun = begun;
            }
            return result;
        }
        {
            let mut state = lock(&file.state);
            (state.never_was, state.attempt) = (true, None);
        }
        self.open_files.end_creation(file);
        if let Err(error) = &result
            && waiting.batches.is_empty()
        {
            tracing::error!(inode = %file.id, %error, "a file that was made is lost");
            lock(&file.state).lost.note(error.clone());
        }
        self.forget_dirty(file, &waiting.whole(), result.err());
        // The kernel is to look it up anew.
        self.open_files.tell_lost(file.id, 0);
        Ok(())
    }

    /// Notes that a creation was committed with the first of what waited.
    pub(super) fn made(&self, file: &OpenFile, waiting: &Waiting, batch: &[Piece], moved: bool) {
        // In this order: what is read meanwhile shows the bytes twice, never not at all.
        self.open_files.end_creation(file);
        self.forget_dirty(file, &waiting.span(batch), None);
        if moved {
            // A change of the name is not found where it was told to be: it is to be looked up anew.
            self.open_files.tell_lost(file.id, 0);
        }
    }

    /// Makes a file in a transaction, if it can be made: [`Now::Free`]. Else that is not to be
    /// committed.
    async fn make_in(
        &self,
        tx: &S::Tx,
        id: InodeId,
        creation: &Creation,
        (batch, modified): (&[Piece], i64),
    ) -> Result<Now, FsError> {
        match tx.get(id.page, id.slot).await? {
            Some((generation, _)) if generation == id.generation => {
                let updated = self.inode(tx, id).await?.change > 0;
                return Ok(Now::Made { updated });
            }
            Some(_) => return Ok(Now::NoPlace),
            None => {}
        }
        if self.is_full(id.page) {
            return Ok(Now::NoPlace);
        }
        // First of all: it tells whether the inode was there before.
        let generation = match tx.create(id.page, id.slot, creation.inode.encode()).await {
            Err(TxError::Full(page) | TxError::Gone(page)) if page == id.page => {
                return Ok(Now::NoPlace);
            }
            generation => generation?,
        };
        if generation != id.generation {
            return Ok(Now::Removed);
        }
        let hash = self.hash(&creation.name);
        if let (Some(entry), _) = trie::find(tx, creation.trie, hash, &creation.name).await? {
            return Ok(Now::Taken(entry));
        }
        let entry = Entry { name: creation.name.clone(), id, kind: Kind::File };
        let place = self.insert_entry(tx, creation.trie, entry).await?;
        let time = self.time_of_making(creation).await;
        self.touch_parent(tx, creation.directory, 1, 0, time).await?;
        if !batch.is_empty() {
            self.write_batch(tx, id, batch, modified).await?;
        }
        Ok(Now::Free { moved: place != creation.place })
    }

    /// When a directory changed by what is made in it now: when that was made, as it was shown here
    /// all the time; but now, if others changed it since, for whoever looked at it then.
    async fn time_of_making(&self, creation: &Creation) -> i64 {
        // Not read by the transaction: those who make names there elsewhere change it.
        let read: Result<Inode, FsError> =
            transact!(self, tx => self.inode(&tx, creation.directory).await);
        match read {
            Ok(directory) if directory.mtime.max(directory.ctime) < creation.made => creation.made,
            _ => self.store.now(),
        }
    }

    /// The same for one of several files in a transaction: whether its name is kept elsewhere than was
    /// told; an error if it needs more than to be made.
    pub(super) async fn make_among(
        &self,
        tx: &S::Tx,
        id: InodeId,
        creation: &Creation,
        bytes: (&[Piece], i64),
    ) -> Result<bool, FsError> {
        match self.make_in(tx, id, creation, bytes).await? {
            Now::Free { moved } => Ok(moved),
            _ => Err(FsError::NotFound),
        }
    }

    /// Lets a file that cannot be made be the one that has its name, or else a new one, and commits
    /// what waits; both may come and go meanwhile. A future of its own kind, since that one is
    /// written back in turn.
    fn adopt<'a>(
        &'a self,
        file: &'a OpenFile,
        creation: &'a Creation,
        taken: Option<Entry>,
        empty: bool,
    ) -> Pin<Box<dyn Future<Output = Result<(), FsError>> + Send + 'a>> {
        Box::pin(async move {
            let mut taken = taken;
            let mut round = 0;
            let handle = loop {
                round += 1;
                match self.adopted(file, creation, taken, empty).await {
                    Ok(Some(handle)) => break handle,
                    Ok(None) => return Ok(()),
                    Err(FsError::NotFound | FsError::Store(TxError::Conflict(_)))
                        if round < ROUNDS_MAX =>
                    {
                        self.store.pause(round).await;
                    }
                    Err(FsError::NotFound) => {
                        return Err(TxError::Conflict("a name was removed".into()).into());
                    }
                    Err(error) => return Err(error),
                }
                taken = self.entry_of(creation).await?;
            };
            self.open_files.become_another(file, &handle);
            let name = String::from_utf8_lossy(&creation.name).into_owned();
            tracing::debug!(inode = %file.id, other = %handle.id(), name, "somebody else made that name");
            let result = self.write_back(handle.file()).await;
            // What waits there is tried again for a while, like all that nobody holds.
            handle.give_back();
            self.finish_dropped(handle.file()).await;
            result
        })
    }

    /// A handle of the file that has the name of one that cannot be made, or of a new one; none: it
    /// is something else, and nothing waits. [`FsError::NotFound`], or a conflict: it came, or went.
    async fn adopted(
        &self,
        file: &OpenFile,
        creation: &Creation,
        taken: Option<Entry>,
        empty: bool,
    ) -> Result<Option<Handle>, FsError> {
        let id = match taken {
            Some(entry) if entry.kind == Kind::File => {
                self.may_adopt(entry.id, creation).await?;
                entry.id
            }
            Some(_) if empty => return Ok(None),
            Some(_) => return Err(FsError::Exists),
            None => self.make_elsewhere(creation).await?,
        };
        if creation.truncates {
            self.cut_once(file, id).await?;
        }
        if creation.set != SetAttr::default() {
            self.setattr(id, creation.set).await?;
        }
        let handle = self.hold(id).await?;
        self.getattr(id).await?;
        Ok(Some(handle))
    }

    /// Cuts the file that another turned out to be, once: not again what others wrote after it, when a later
    /// step fails and all is tried anew.
    async fn cut_once(&self, file: &OpenFile, id: InodeId) -> Result<(), FsError> {
        // What was written here before must not come to be after the cut.
        self.flush_id(id).await?;
        self.come_true_in(id).await?;
        let note = |truncates, cut| {
            if let Some(creation) = lock(&file.state).creation.as_mut() {
                (creation.truncates, creation.cut) = (truncates, cut);
            }
        };
        loop {
            let Some(Creation { cut, truncates: true, .. }) = lock(&file.state).creation.clone()
            else {
                return Ok(());
            };
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            let now = self.store.now();
            let step: Result<(Resized, u32), FsError> = transact!(self, tx => {
                note(true, cut);
                let mut inode = self.inode(&tx, id).await?;
                let before = inode.change;
                if cut.is_some_and(|(of, change)| of == id && change != before) {
                    return Ok((Resized { done: true, left: None }, before));
                }
                let resized = self.set_inode(&tx, id, &mut inode, &set, now).await?;
                self.put_inode(&tx, id, &inode).await?;
                // From here on it may be done.
                note(true, Some((id, before)));
                Ok((resized, inode.change))
            });
            match step {
                Ok((Resized { done, left }, change)) => {
                    note(!done, Some((id, change)));
                    if let Some(left) = left {
                        self.reap_later(left);
                    }
                }
                Err(error) => {
                    if error != TxError::OutcomeUnknown.into() {
                        note(true, cut);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// What a file's name leads to by now.
    async fn entry_of(&self, creation: &Creation) -> Result<Option<Entry>, FsError> {
        let hash = self.hash(&creation.name);
        let found: Result<Option<Entry>, FsError> = transact!(self, tx => {
            Ok(trie::find(&tx, creation.trie, hash, &creation.name).await?.0)
        });
        found
    }

    /// Whether whoever made a file could have opened the one that has its name by now: only if it is
    /// his own. Nobody else looks at that any more.
    async fn may_adopt(&self, id: InodeId, creation: &Creation) -> Result<(), FsError> {
        let theirs = self.getattr(id).await?.inode;
        if theirs.uid == creation.inode.uid
            && theirs.mode & 0o600 == 0o600
            && theirs.xattrs == Xattrs::None
        {
            return Ok(());
        }
        let why = "somebody else made a file of that name meanwhile".into();
        Err(TxError::Denied(why).into())
    }

    /// Makes a file under its name with another inode.
    async fn make_elsewhere(&self, creation: &Creation) -> Result<InodeId, FsError> {
        let Inode { mode, uid, gid, .. } = creation.inode;
        let (kind, target) = (Kind::File, Bytes::new());
        let create = Create { kind, mode, umask: 0, uid, gid, target, device: 0 };
        match self.create_held(creation.directory, &creation.name, &create, false).await {
            Ok((found, _)) => {
                found.attr.map(|attr| attr.id).ok_or(FsError::Invalid("it was just created"))
            }
            // Looked at anew.
            Err(FsError::Exists) => Err(TxError::Conflict("a name was made".into()).into()),
            Err(error) => Err(error),
        }
    }
}

/// Begins to commit a creation: it is not changed from here on. None: there is none.
fn begin(file: &OpenFile) -> Option<(Creation, Waiting, Option<Attempt>)> {
    let mut state = lock(&file.state);
    state.creation.as_mut()?.begun = true;
    state.troubled = true;
    Some((state.creation.clone()?, state.dirty.waiting(), state.attempt))
}

fn attr_of(file: &OpenFile) -> Option<Attr> {
    let state = lock(&file.state);
    let mut inode = state.creation.as_ref()?.inode.clone();
    if !state.dirty.is_empty() {
        inode.size = state.dirty.end();
        inode.mtime = state.dirty.modified;
        inode.ctime = inode.ctime.max(state.dirty.modified);
    }
    Some(Attr { id: file.id, inode })
}
