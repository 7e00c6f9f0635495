//! Moving names.

use super::names::{Dropped, check_name};
use super::record::{CTIME_AT, Entry, InodeId, Kind, time_to_field};
use super::removals::Removal;
use super::tx::Tx;
use super::{FileSystem, FsError, FsFault, TxStore, transact, trie};
use bytes::Bytes;
use larder_core::id::PageNo;

/// What a rename does with a name that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replaces it: a file by a file, an empty directory by a directory.
    #[default]
    Replace,
    /// Fails.
    NoReplace,
    /// Exchanges the two.
    Exchange,
}

/// One end of a rename.
struct End<'a> {
    directory: InodeId,
    trie: PageNo,
    hash: u64,
    name: &'a [u8],
}

impl<S: TxStore> FileSystem<S> {
    /// Moves a name, at once.
    pub async fn rename(
        &self,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        check_name(to.1)?;
        self.may_remove()?;
        for (directory, name) in [from, to] {
            self.come_true_as(directory, name).await?;
            // A directory may be replaced.
            if let Some(super::Attr { id, .. }) = self.lookup(directory, name).await?.attr {
                self.come_true_in(id).await?;
            }
        }
        let from = self.end(from).await?;
        let to = self.end(to).await?;
        let now = self.store.now();
        let mut removal = self.begin_removal();
        let renamed: Result<(Dropped, Option<InodeId>), FsError> = transact!(self, tx => {
            removal.takes_nothing();
            self.rename_in(&tx, (&from, &to), mode, now, &mut removal).await
        });
        let dropped = renamed.map(|(dropped, directory)| {
            if let Some(directory) = directory {
                self.forget_directory(directory);
            }
            dropped
        });
        self.settle(dropped, removal)
    }

    async fn end<'a>(&self, (directory, name): (InodeId, &'a [u8])) -> Result<End<'a>, FsError> {
        Ok(End { directory, trie: self.trie_of(directory).await?, hash: self.hash(name), name })
    }

    async fn rename_in(
        &self,
        tx: &S::Tx,
        (from, to): (&End<'_>, &End<'_>),
        mode: RenameMode,
        now: i64,
        removal: &mut Removal<'_>,
    ) -> Result<(Dropped, Option<InodeId>), FsError> {
        let nothing = (Dropped::Settled, None);
        let (source, _) = trie::find(tx, from.trie, from.hash, from.name).await?;
        let source = source.ok_or(FsError::NotFound)?;
        let (target, _) = trie::find(tx, to.trie, to.hash, to.name).await?;
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            // Two names of one file: both stay, as POSIX has it.
            (_, Some(target)) if target.id == source.id => return Ok(nothing),
            _ => {}
        }
        self.check_loop(tx, &source, from, to).await?;
        if let (RenameMode::Exchange, Some(target)) = (mode, &target) {
            self.check_loop(tx, target, to, from).await?;
            self.move_entry(tx, target, to, None, now).await?;
            self.move_entry(tx, &source, from, Some(to), now).await?;
            self.place_entry(tx, target, to, from, now).await?;
            return Ok(nothing);
        }
        let dropped = match target {
            Some(target) => self.replace(tx, &source, target, (to, now), removal).await?,
            None => nothing,
        };
        self.move_entry(tx, &source, from, Some(to), now).await?;
        Ok(dropped)
    }

    /// A directory must not come to be inside itself.
    async fn check_loop(
        &self,
        tx: &S::Tx,
        source: &Entry,
        from: &End<'_>,
        to: &End<'_>,
    ) -> Result<(), FsError> {
        if source.kind == Kind::Directory
            && from.directory != to.directory
            && !self.options.faults.has(FsFault::MoveIntoItself)
            && self.is_above(tx, source.id, to.directory).await?
        {
            return Err(FsError::Invalid("a directory cannot move into itself"));
        }
        Ok(())
    }

    /// Removes what the new name led to.
    async fn replace(
        &self,
        tx: &S::Tx,
        source: &Entry,
        target: Entry,
        (to, now): (&End<'_>, i64),
        removal: &mut Removal<'_>,
    ) -> Result<(Dropped, Option<InodeId>), FsError> {
        match (source.kind == Kind::Directory, target.kind == Kind::Directory) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            _ => {}
        }
        trie::remove(tx, to.trie, to.hash, to.name).await?;
        if target.kind == Kind::Directory {
            self.remove_directory(tx, target.id).await?;
            self.touch_parent(tx, to.directory, -1, -1, now).await?;
            return Ok((Dropped::Settled, Some(target.id)));
        }
        self.touch_parent(tx, to.directory, -1, 0, now).await?;
        if self.options.faults.has(FsFault::RenameLeavesLink) {
            return Ok((Dropped::Settled, None));
        }
        Ok((self.drop_name(tx, target.id, now, removal).await?, None))
    }

    /// Takes an entry from one end and puts it at the other, if one is given.
    async fn move_entry(
        &self,
        tx: &S::Tx,
        source: &Entry,
        from: &End<'_>,
        to: Option<&End<'_>>,
        now: i64,
    ) -> Result<(), FsError> {
        let moves = to.is_some_and(|to| to.directory != from.directory);
        if !(moves && self.options.faults.has(FsFault::RenameKeepsName)) {
            trie::remove(tx, from.trie, from.hash, from.name).await?;
        }
        let subdirectories = i64::from(source.kind == Kind::Directory);
        self.touch_parent(tx, from.directory, -1, -subdirectories, now).await?;
        match to {
            Some(to) => self.place_entry(tx, source, from, to, now).await,
            None => Ok(()),
        }
    }

    async fn place_entry(
        &self,
        tx: &S::Tx,
        source: &Entry,
        from: &End<'_>,
        to: &End<'_>,
        now: i64,
    ) -> Result<(), FsError> {
        let entry =
            Entry { name: Bytes::copy_from_slice(to.name), id: source.id, kind: source.kind };
        self.insert_entry(tx, to.trie, entry).await?;
        let subdirectories = i64::from(source.kind == Kind::Directory);
        self.touch_parent(tx, to.directory, 1, subdirectories, now).await?;
        let forgets = self.options.faults.has(FsFault::ForgetParent);
        if source.kind == Kind::Directory && from.directory != to.directory && !forgets {
            let moved = self.inode(tx, source.id).await?.trie()?;
            trie::set_parent(tx, moved, to.directory).await?;
        }
        let InodeId { page, slot, generation } = source.id;
        Ok(tx.max(page, slot, generation, CTIME_AT, time_to_field(now)).await?)
    }
}
