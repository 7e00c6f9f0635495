//! Making and removing names.
//!
//! A creation reads the empty slot of its name, fills it, and changes the directory's inode only
//! by `Add` and `Max`: two creations in one directory do not conflict. A removal of the directory
//! reads what is in all of its pages and deletes its inode, and so conflicts with every creation in
//! it.

use super::record::{
    CTIME_AT, Content, Entry, Inode, InodeId, Kind, LINKS_AT, MTIME_AT, NAME_BYTES_MAX, SIZE_AT,
    Xattrs, time_to_field,
};
use super::removals::{Removal, Taken};
use super::tx::Tx;
use super::{Attr, FileSystem, Found, FsError, FsFault, Handle, TxStore, transact, trie};
use bytes::Bytes;
use larder_core::id::{PageNo, Slot};

/// Longest path in a symbolic link.
const LINK_BYTES_MAX: usize = 4095;

/// Bytes that a new file is expected to keep beside its inode.
const EXPECTED_BYTES: usize = 1 << 10;

/// What to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Create {
    /// What it will be.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Those that the creator's mask takes from them, unless the directory has a default access
    /// control list.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory gives its own (set-group-id).
    pub gid: u32,
    /// Of a symbolic link: where it leads.
    pub target: Bytes,
    /// Of a device: its number.
    pub device: u64,
}

/// What was created, where its name is kept, and a handle of it if it is to be open.
type Created = (Attr, (PageNo, Slot), Option<Handle>);

/// What became of an inode that lost a name.
pub(super) enum Dropped {
    /// It has other names, or it is removed.
    Settled,
    /// It has no name and is kept: open on this node, or too large to be freed at once.
    Orphan(InodeId),
}

/// Whether a name may be given.
pub(super) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, 0 | b'/'))
    {
        return Err(FsError::Invalid("name"));
    }
    Ok(())
}

impl<S: TxStore> FileSystem<S> {
    /// Creates a file, directory, symbolic link or special file under a name that must be free.
    pub async fn create(
        &self,
        directory: InodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<Found, FsError> {
        check_name(name)?;
        self.come_true_as(directory, name).await?;
        let (found, _) = self.create_held(directory, name, create, false).await?;
        Ok(found)
    }

    /// Creates a file and opens it.
    pub async fn create_file(
        &self,
        directory: InodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Handle, Found), FsError> {
        check_name(name)?;
        self.come_true_as(directory, name).await?;
        let (found, handle) = self.create_held(directory, name, create, true).await?;
        Ok((handle.ok_or(FsError::Invalid("what was created cannot be open"))?, found))
    }

    /// Creates, and holds what was created open if so asked: from before the commit, so that a
    /// removal here cannot come between.
    pub(super) async fn create_held(
        &self,
        directory: InodeId,
        name: &[u8],
        create: &Create,
        hold: bool,
    ) -> Result<(Found, Option<Handle>), FsError> {
        if create.target.len() > LINK_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let root = self.trie_of(directory).await?;
        // Owner and mode of the directory are as of just before: they order nothing.
        let parent = self.getattr(directory).await?;
        let (xattrs, mode) = self.inherited(&parent, create).await?;
        let inode = self.new_inode(create, mode, &parent.inode);
        let xattrs = xattrs.encode();
        let mut place = None;
        let created: Result<Created, FsError> = transact!(self, tx => {
            let beside = self.place_beside_name(&tx, root, self.hash(name), EXPECTED_BYTES).await?;
            let at = match (beside, place) {
                (Some(beside), _) => beside,
                (None, Some((page, slot))) if self.inode_pages.is_current(page) => (page, slot),
                (None, _) => *place.insert(self.new_inode_place(directory).await?),
            };
            let mut inode = inode.clone();
            inode.xattrs = self.new_xattrs(&tx, xattrs.clone()).await?;
            if create.kind == Kind::Directory {
                // Another at every attempt: the origin may refuse one of a lost branch.
                inode.content = Content::Trie(self.numbers.take(&self.store, 1).await?);
            }
            let generation = tx.create(at.0, at.1, inode.encode()).await?;
            let id = InodeId { page: at.0, slot: at.1, generation };
            let entry = Entry { name: Bytes::copy_from_slice(name), id, kind: create.kind };
            let place = self.insert_entry(&tx, root, entry).await?;
            if let Content::Trie(trie) = inode.content {
                trie::create(&tx, trie, directory).await?;
            }
            if create.kind == Kind::Symlink {
                self.write_content(&tx, id, &mut inode, &[(0, create.target.clone())]).await?;
                self.put_inode(&tx, id, &inode).await?;
            }
            let subdirectories = i64::from(create.kind == Kind::Directory);
            self.touch_parent(&tx, directory, 1, subdirectories, inode.ctime).await?;
            let handle = if hold { Some(self.hold(id).await?) } else { None };
            Ok((Attr { id, inode }, place, handle))
        });
        let (attr, place, handle) = created?;
        if let Content::Trie(trie) = attr.inode.content {
            self.remember_trie(attr.id, trie);
        }
        Ok((Found { attr: Some(attr), place }, handle))
    }

    pub(super) fn new_inode(&self, create: &Create, mode: u16, parent: &Inode) -> Inode {
        let now = self.store.now();
        let inherits = parent.mode & 0o2000 != 0;
        let group_bit = if inherits && create.kind == Kind::Directory { 0o2000 } else { 0 };
        Inode {
            kind: create.kind,
            mode: (mode & 0o7777) | group_bit,
            uid: create.uid,
            gid: if inherits { parent.gid } else { create.gid },
            links: if create.kind == Kind::Directory { 2 } else { 1 },
            size: 0,
            mtime: now,
            ctime: now,
            atime: now,
            change: 0,
            content: match create.kind.is_device() {
                true => Content::Device(create.device),
                false => Content::Empty,
            },
            xattrs: Xattrs::None,
        }
    }

    /// Counts names and subdirectories of a directory and sets its times, without reading it.
    pub(super) async fn touch_parent(
        &self,
        tx: &S::Tx,
        directory: InodeId,
        names: i64,
        subdirectories: i64,
        now: i64,
    ) -> Result<(), FsError> {
        let InodeId { page, slot, generation } = directory;
        if names != 0 {
            tx.add(page, slot, generation, SIZE_AT, names).await?;
        }
        if subdirectories != 0 {
            tx.add(page, slot, generation, LINKS_AT, subdirectories).await?;
        }
        for at in [MTIME_AT, CTIME_AT] {
            tx.max(page, slot, generation, at, time_to_field(now)).await?;
        }
        Ok(())
    }

    /// Gives a file another name.
    pub async fn link(
        &self,
        id: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Found, FsError> {
        check_name(name)?;
        let id = self.come_true(id).await?;
        self.come_true_as(directory, name).await?;
        let root = self.trie_of(directory).await?;
        let now = self.store.now();
        let linked: Result<(Attr, (PageNo, Slot)), FsError> = transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            if inode.kind == Kind::Directory {
                return Err(FsError::IsDirectory);
            }
            if inode.links == 0 {
                return Err(FsError::NotFound);
            }
            let entry = Entry { name: Bytes::copy_from_slice(name), id, kind: inode.kind };
            let place = self.insert_entry(&tx, root, entry).await?;
            inode.links += u64::from(!self.options.faults.has(FsFault::LinkUncounted));
            inode.ctime = now;
            self.put_inode(&tx, id, &inode).await?;
            self.touch_parent(&tx, directory, 1, 0, now).await?;
            Ok((Attr { id, inode }, place))
        });
        let (attr, place) = linked?;
        Ok(Found { attr: Some(self.with_dirty(attr)), place })
    }

    /// Removes a name of a file or link; with its last name the file goes, or, while this node
    /// holds it open, when it is closed.
    pub async fn unlink(&self, directory: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.may_remove()?;
        if self.unmake(directory, name) {
            return Ok(());
        }
        self.come_true_as(directory, name).await?;
        let root = self.trie_of(directory).await?;
        let now = self.store.now();
        let mut removal = self.begin_removal();
        let dropped: Result<Dropped, FsError> = transact!(self, tx => {
            removal.takes_nothing();
            let entry = trie::remove(&tx, root, self.hash(name), name).await?;
            if entry.kind == Kind::Directory {
                return Err(FsError::IsDirectory);
            }
            self.touch_parent(&tx, directory, -1, 0, now).await?;
            self.drop_name(&tx, entry.id, now, &mut removal).await
        });
        self.settle(dropped, removal)
    }

    /// Takes one link from a file whose name has been removed in this transaction. What it takes
    /// from is kept in `removal` until the outcome is known.
    pub(super) async fn drop_name(
        &self,
        tx: &S::Tx,
        id: InodeId,
        now: i64,
        removal: &mut Removal<'_>,
    ) -> Result<Dropped, FsError> {
        let mut inode = self.inode(tx, id).await?;
        inode.links = inode.links.saturating_sub(1);
        inode.ctime = now;
        if inode.links > 0 {
            inode.links += u64::from(self.options.faults.has(FsFault::UnlinkKeepsLink));
            self.put_inode(tx, id, &inode).await?;
            return Ok(Dropped::Settled);
        }
        let mark = match inode.kind {
            Kind::File => self.open_files.mark_removal(id),
            // What else is opened is not content of the volume's.
            _ => self.open_files.mark_dropping(id),
        };
        if Self::is_small(&inode)
            && (mark.is_some() || self.options.faults.has(FsFault::FreeOpenFile))
        {
            self.remove_inode(tx, id, &mut inode).await?;
            removal.takes(Taken::of_removal(id, mark, None));
            return Ok(Dropped::Settled);
        }
        self.put_inode(tx, id, &inode).await?;
        self.add_orphan(tx, id).await?;
        removal.takes(Taken::of_removal(id, None, Some(now)));
        Ok(Dropped::Orphan(id))
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, directory: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.come_true_as(directory, name).await?;
        if let Some(Attr { id, .. }) = self.lookup(directory, name).await?.attr {
            self.come_true_in(id).await?;
        }
        let root = self.trie_of(directory).await?;
        let now = self.store.now();
        let removed: Result<InodeId, FsError> = transact!(self, tx => {
            let entry = trie::remove(&tx, root, self.hash(name), name).await?;
            if entry.kind != Kind::Directory {
                return Err(FsError::NotDirectory);
            }
            self.remove_directory(&tx, entry.id).await?;
            self.touch_parent(&tx, directory, -1, -1, now).await?;
            Ok(entry.id)
        });
        self.forget_directory(removed?);
        Ok(())
    }

    pub(super) async fn remove_directory(&self, tx: &S::Tx, id: InodeId) -> Result<(), FsError> {
        let mut inode = self.inode(tx, id).await?;
        match trie::delete_empty(tx, inode.trie()?).await {
            Err(FsError::NotEmpty) if self.options.faults.has(FsFault::RemoveFullDirectory) => {}
            deleted => deleted?,
        }
        self.remove_inode(tx, id, &mut inode).await
    }

    /// Makes an empty inode page in a transaction.
    #[cfg(feature = "runtime")]
    pub(super) async fn new_inode_page(&self, tx: &S::Tx) -> Result<PageNo, FsError> {
        let page = self.numbers.take(&self.store, 1).await?;
        tx.create_page(page, larder_core::commit::PageKind::Slotted).await?;
        Ok(page)
    }
}
