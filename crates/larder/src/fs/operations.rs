//! Looking: names, attributes, listings; and setting attributes.

use super::content::Resized;
use super::record::{Content, Entry, Inode, InodeId, Kind, NAME_BYTES_MAX, Xattrs};
use super::tx::{Taken, Tx, TxError};
use super::xattr::{drop_privileges, follow_mode};
use super::{FileSystem, FsError, FsFault, Position, TxStore, transact, trie};
use bytes::Bytes;
use larder_core::id::{PageNo, Slot};

/// Pages asked for ahead in one request.
pub(super) const PREFETCH_PAGES_MAX: usize = 1024;
/// Steps between a directory and the root at most: deeper is a loop.
const DEPTH_MAX: usize = 4096;

/// An inode with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Which.
    pub id: InodeId,
    /// What is known of it; writes of this node that wait for their commit are included.
    pub inode: Inode,
}

/// What a name leads to, and where it is kept: a change there, or in slot 0 of that page, may
/// change the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// None: there is no such name.
    pub attr: Option<Attr>,
    /// The slot that was read.
    pub place: (PageNo, Slot),
}

/// A name in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name and what it leads to.
    pub entry: Entry,
    /// Where the listing goes on after it.
    pub position: Position,
    /// Its attributes, if asked for.
    pub attr: Option<Attr>,
    /// Where the name is kept; as in [`Found`].
    pub place: (PageNo, Slot),
}

/// Attributes to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Time of access.
    pub atime: Option<i64>,
    /// Time of modification.
    pub mtime: Option<i64>,
    /// Takes from a file what gives rights to others than its caller: set-user-id, set-group-id of
    /// what its group may execute, `security.capability`. Before a mode is set.
    pub drop_privileges: bool,
}

/// What a volume of files can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Longest name.
    pub name_bytes_max: u32,
    /// What it takes, and what it may take still.
    pub taken: Taken,
}

impl<S: TxStore> FileSystem<S> {
    /// What a name leads to. A name that is not there is an answer, not an error; a directory
    /// that is not there is an error.
    pub async fn lookup(&self, directory: InodeId, name: &[u8]) -> Result<Found, FsError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut looks = self.open_files.look();
        loop {
            let found = self.look_up(directory, name).await?;
            if looks.stands() {
                return Ok(found);
            }
        }
    }

    async fn look_up(&self, directory: InodeId, name: &[u8]) -> Result<Found, FsError> {
        if let Some(found) = self.found_late(directory, name) {
            return Ok(found);
        }
        let root = self.trie_of(directory).await?;
        let hash = self.hash(name);
        let found: Result<Found, FsError> = transact!(self, tx => {
            let (entry, place) = trie::find(&tx, root, hash, name).await?;
            let attr = match entry {
                Some(entry) => Some(self.attr(&tx, entry.id).await?),
                None => None,
            };
            Ok(Found { attr, place })
        });
        let mut found = found?;
        found.attr = found.attr.map(|attr| self.with_dirty(attr));
        Ok(found)
    }

    async fn attr(&self, tx: &S::Tx, id: InodeId) -> Result<Attr, FsError> {
        let inode = self.inode(tx, id).await?;
        Ok(Attr { id, inode })
    }

    /// An inode's attributes.
    pub async fn getattr(&self, id: InodeId) -> Result<Attr, FsError> {
        let mut looks = self.open_files.look();
        loop {
            let attr = match self.attr_late(id) {
                Some(attr) => attr,
                None => {
                    let attr: Result<Attr, FsError> =
                        transact!(self, tx => self.attr(&tx, id).await);
                    self.with_dirty(attr?)
                }
            };
            if looks.stands() {
                return Ok(attr);
            }
        }
    }

    /// Sets attributes; all at once, but for cutting a file by more than 256 pages.
    pub async fn setattr(&self, id: InodeId, set: SetAttr) -> Result<Attr, FsError> {
        let id = self.come_true(id).await?;
        // What was written before must not come to be after the cut, nor change the times again.
        if set.size.is_some() || set.mtime.is_some() {
            self.flush_id(id).await?;
            self.come_true_in(id).await?;
        }
        loop {
            let now = self.store.now();
            let step: Result<(Attr, Resized), FsError> = transact!(self, tx => {
                let mut inode = self.inode(&tx, id).await?;
                self.locks.check(id)?;
                let done = self.set_inode(&tx, id, &mut inode, &set, now).await?;
                self.put_inode(&tx, id, &inode).await?;
                Ok((Attr { id, inode }, done))
            });
            let (attr, Resized { done, left }) = step?;
            if let Some(left) = left {
                self.reap_later(left);
            }
            if done {
                return Ok(self.with_dirty(attr));
            }
        }
    }

    pub(super) async fn set_inode(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        set: &SetAttr,
        now: i64,
    ) -> Result<Resized, FsError> {
        let mut done = Resized { done: true, left: None };
        if let Some(size) = set.size {
            match inode.kind {
                Kind::File => {}
                Kind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid("only a file has a size to set")),
            }
            done = self.resize_content(tx, id, inode, size).await?;
            if self.options.faults.has(FsFault::ResizeLosesXattrs) {
                inode.xattrs = Xattrs::None;
            }
            inode.mtime = now;
        }
        if set.drop_privileges || set.mode.is_some() {
            let mut list = self.xattrs_of(tx, inode).await?;
            let before = list.clone();
            if set.drop_privileges {
                drop_privileges(inode, &mut list);
            }
            if let Some(mode) = set.mode {
                inode.mode = mode & 0o7777;
                follow_mode(inode, &mut list)?;
            }
            if list != before {
                self.put_xattrs(tx, id, inode, &list).await?;
            }
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = set.atime.unwrap_or(inode.atime);
        inode.mtime = set.mtime.unwrap_or(inode.mtime);
        inode.ctime = now;
        Ok(done)
    }

    /// Where a symbolic link leads.
    pub async fn readlink(&self, id: InodeId) -> Result<Bytes, FsError> {
        transact!(self, tx => {
            let inode = self.inode(&tx, id).await?;
            if inode.kind != Kind::Symlink {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            let length = usize::try_from(inode.size).unwrap_or(usize::MAX).min(4096);
            self.read_content(&tx, id, &inode, 0, length).await
        })
    }

    /// Names of a directory after a position, ascending by hash, at least `limit` of them unless
    /// it ends; with attributes if asked.
    pub async fn read_dir(
        &self,
        directory: InodeId,
        after: &Position,
        limit: usize,
        attributes: bool,
    ) -> Result<Vec<DirEntry>, FsError> {
        let root = self.trie_of(directory).await?;
        if *after == Position::default() {
            self.list_late(directory).await;
            self.crawler.look(root);
        }
        let mut looks = self.open_files.look();
        loop {
            let listed = self.list(root, after, limit, attributes).await?;
            if looks.stands() {
                return Ok(listed);
            }
        }
    }

    async fn list(
        &self,
        root: PageNo,
        after: &Position,
        limit: usize,
        attributes: bool,
    ) -> Result<Vec<DirEntry>, FsError> {
        let listed: Result<Vec<DirEntry>, FsError> = transact!(self, tx => {
            let entries = trie::list(self, &tx, root, after, limit).await?;
            if attributes {
                self.fetch_inode_pages(&tx, entries.iter().map(|(_, _, entry)| entry.id)).await?;
            }
            let mut listed = Vec::with_capacity(entries.len());
            for (place, hash, entry) in entries {
                let attr = if attributes { self.attr_if_there(&tx, entry.id).await? } else { None };
                let position = Position { hash, name: Some(entry.name.clone()) };
                listed.push(DirEntry { entry, position, attr, place });
            }
            Ok(listed)
        });
        let mut listed = listed?;
        for entry in &mut listed {
            entry.attr = entry.attr.take().map(|attr| self.with_dirty(attr));
            if let Some(Attr { id, inode: Inode { content: Content::Trie(root), .. } }) = entry.attr
            {
                self.remember_trie(id, root);
            }
        }
        Ok(listed)
    }

    /// None for a name that leads nowhere: damage, for `check` to tell, which must not keep the
    /// other names from being listed.
    async fn attr_if_there(&self, tx: &S::Tx, id: InodeId) -> Result<Option<Attr>, FsError> {
        match self.attr(tx, id).await {
            Err(FsError::NotFound) => Ok(None),
            attr => attr.map(Some),
        }
    }

    async fn fetch_inode_pages(
        &self,
        tx: &S::Tx,
        ids: impl Iterator<Item = InodeId>,
    ) -> Result<(), FsError> {
        let mut pages: Vec<PageNo> = ids.map(|id| id.page).collect();
        pages.sort_unstable();
        pages.dedup();
        for batch in pages.chunks(PREFETCH_PAGES_MAX) {
            tx.fetch(batch).await?;
        }
        Ok(())
    }

    /// The directory that holds a directory; the root holds itself.
    pub async fn parent(&self, directory: InodeId) -> Result<InodeId, FsError> {
        let root = self.trie_of(directory).await?;
        transact!(self, tx => parent_of(&tx, root).await)
    }

    /// Whether `above` is `directory` or lies on its way to the root. Reads the whole way, so
    /// that it conflicts with another's moving a part of it.
    pub(super) async fn is_above(
        &self,
        tx: &S::Tx,
        above: InodeId,
        directory: InodeId,
    ) -> Result<bool, FsError> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == self.root.root {
                return Ok(false);
            }
            let trie = match self.trie_of(at).await {
                // Looked at by itself, and later: what was in it was moved away, and it was removed.
                Err(FsError::NotFound) => {
                    let why = format!("directory {at} was removed");
                    return Err(TxError::Conflict(why).into());
                }
                trie => trie?,
            };
            at = parent_of(tx, trie).await?;
        }
        Err(FsError::Damaged(format!("directory {directory} is in a loop")))
    }

    /// What a volume of files can hold, and holds.
    pub async fn usage(&self) -> Usage {
        Usage {
            taken: self.store.taken().await,
            page_bytes: self.store.page_bytes(),
            name_bytes_max: u32::try_from(NAME_BYTES_MAX).expect("small"),
        }
    }
}

async fn parent_of<T: Tx>(tx: &T, trie: PageNo) -> Result<InodeId, FsError> {
    let (_, header) = trie::header(tx, trie).await?;
    header.parent.ok_or_else(|| FsError::Damaged(format!("directory page {}: no parent", trie.0)))
}
