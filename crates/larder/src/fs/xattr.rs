//! Extended attributes of inodes, access control lists among them.

use super::acl::{self, Acl};
use super::content::OBJECT_OVERHEAD;
use super::record::{
    Inode, InodeId, Kind, XATTR_HEAD_BYTES, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XattrList,
    Xattrs, decode_xattr_head, encode_xattr_head,
};
use super::trie::HEADER_SLOT;
use super::tx::Tx;
use super::{Attr, Create, FileSystem, FsError, SetAttr, TxStore, transact};
use bytes::{Bytes, BytesMut};
use larder_core::commit::PageKind;
use larder_core::id::PageNo;

/// Rights that a program's file gives to who runs it.
const CAPABILITY: &[u8] = b"security.capability";
/// Where names are taken from; others are refused.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o0010;

/// What setting an attribute does with one that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// Overwrites it, or makes it.
    #[default]
    Any,
    /// Fails: [`FsError::Exists`].
    Create,
    /// Overwrites it, or fails: [`FsError::NoXattr`].
    Replace,
}

pub(super) fn check_xattr_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > XATTR_NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    let known = NAMESPACES.iter().any(|space| name.len() > space.len() && name.starts_with(space));
    if known || name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    Err(FsError::Unsupported("attributes of this namespace"))
}

/// Takes from a file's inode what gives rights to others than its caller.
pub(super) fn drop_privileges(inode: &mut Inode, list: &mut XattrList) {
    if inode.kind == Kind::Directory {
        return;
    }
    inode.mode &= !SET_USER_ID;
    if inode.mode & GROUP_EXECUTES != 0 {
        inode.mode &= !SET_GROUP_ID;
    }
    list.0.remove(CAPABILITY);
}

impl<S: TxStore> FileSystem<S> {
    /// The value of an attribute; [`FsError::NoXattr`] if there is none.
    pub async fn xattr(&self, id: InodeId, name: &[u8]) -> Result<Bytes, FsError> {
        check_xattr_name(name)?;
        let list = self.xattrs(id).await?;
        list.0.get(name).cloned().ok_or(FsError::NoXattr)
    }

    /// All attributes.
    pub async fn xattrs(&self, id: InodeId) -> Result<XattrList, FsError> {
        if self.attr_late(id).is_some() {
            return Ok(XattrList::default());
        }
        transact!(self, tx => {
            let inode = self.inode(&tx, id).await?;
            self.xattrs_of(&tx, &inode).await
        })
    }

    /// Sets an attribute. An access control list sets the mode too, and clears set-group-id if so
    /// asked. [`FsError::NoSpace`]: past the limits of a value, or of all attributes of an inode.
    pub async fn set_xattr(
        &self,
        id: InodeId,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        clear_set_group_id: bool,
    ) -> Result<Attr, FsError> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FsError::NoSpace);
        }
        self.change_xattrs(id, |inode, list| {
            match (mode, list.0.contains_key(name)) {
                (XattrMode::Create, true) => return Err(FsError::Exists),
                (XattrMode::Replace, false) => return Err(FsError::NoXattr),
                _ => {}
            }
            let mut value = Some(Bytes::copy_from_slice(value));
            if name == acl::ACCESS || name == acl::DEFAULT {
                value = put_acl(inode, name, value.as_deref().unwrap_or_default())?;
            }
            if name == acl::ACCESS && clear_set_group_id {
                inode.mode &= !SET_GROUP_ID;
            }
            match value {
                Some(value) => list.0.insert(Bytes::copy_from_slice(name), value),
                None => list.0.remove(name),
            };
            if list.fits() { Ok(()) } else { Err(FsError::NoSpace) }
        })
        .await
    }

    /// Removes an attribute that must be there.
    pub async fn remove_xattr(&self, id: InodeId, name: &[u8]) -> Result<Attr, FsError> {
        check_xattr_name(name)?;
        self.change_xattrs(id, |_, list| match list.0.remove(name) {
            Some(_) => Ok(()),
            None => Err(FsError::NoXattr),
        })
        .await
    }

    async fn change_xattrs(
        &self,
        id: InodeId,
        change: impl Fn(&mut Inode, &mut XattrList) -> Result<(), FsError> + Send + Sync,
    ) -> Result<Attr, FsError> {
        let id = self.come_true(id).await?;
        let now = self.store.now();
        let changed: Result<Attr, FsError> = transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            let mut list = self.xattrs_of(&tx, &inode).await?;
            change(&mut inode, &mut list)?;
            inode.ctime = now;
            self.put_xattrs(&tx, id, &mut inode, &list).await?;
            self.put_inode(&tx, id, &inode).await?;
            Ok(Attr { id, inode })
        });
        Ok(self.with_dirty(changed?))
    }

    /// An inode's attributes. A value read of the pages they are in.
    pub(super) async fn xattrs_of(&self, tx: &S::Tx, inode: &Inode) -> Result<XattrList, FsError> {
        match &inode.xattrs {
            Xattrs::None => Ok(XattrList::default()),
            Xattrs::Here(list) => XattrList::decode(list),
            Xattrs::Pages(first) => {
                let pages = self.xattr_pages(tx, *first).await?;
                tx.fetch(&pages).await?;
                let mut all = BytesMut::new();
                for page in pages {
                    all.extend_from_slice(&raw(tx, page).await?);
                }
                let length = decode_xattr_head(&all)?;
                let all = all.freeze();
                if all.len() != XATTR_HEAD_BYTES + length {
                    return Err(FsError::Damaged("extended attributes: length".into()));
                }
                XattrList::decode(&all.slice(XATTR_HEAD_BYTES..))
            }
        }
    }

    /// The pages of a list that begins with this one.
    pub(super) async fn xattr_pages(
        &self,
        tx: &S::Tx,
        first: PageNo,
    ) -> Result<Vec<PageNo>, FsError> {
        let length = XATTR_HEAD_BYTES + decode_xattr_head(&raw(tx, first).await?)?;
        let count = (length as u64).div_ceil(self.page_size());
        Ok((0..count).map(|i| PageNo(first.0 + i)).collect())
    }

    /// Bytes of attributes that an inode's record holds at most.
    pub(super) fn xattr_bytes_here_max(&self) -> usize {
        self.store.page_bytes() as usize / 64
    }

    /// Gives an inode these attributes in the place of those it has, and updates the inode (which
    /// the caller puts).
    pub(super) async fn put_xattrs(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        list: &XattrList,
    ) -> Result<(), FsError> {
        let bytes = list.encode();
        let held = match &inode.xattrs {
            Xattrs::None => 0,
            Xattrs::Here(old) if *old == bytes => return Ok(()),
            Xattrs::Here(old) => old.len(),
            Xattrs::Pages(_) => {
                self.free_xattrs(tx, inode).await?;
                0
            }
        };
        if bytes.len() > held
            && bytes.len() <= self.xattr_bytes_here_max()
            && !self.has_room(tx, id.page, bytes.len() - held).await?
        {
            inode.xattrs = Xattrs::Pages(self.write_xattrs(tx, &bytes).await?);
            return Ok(());
        }
        inode.xattrs = self.new_xattrs(tx, bytes).await?;
        Ok(())
    }

    /// Attributes for an inode to be made where there is room for those in its record.
    pub(super) async fn new_xattrs(&self, tx: &S::Tx, bytes: Bytes) -> Result<Xattrs, FsError> {
        if bytes.is_empty() {
            return Ok(Xattrs::None);
        }
        if bytes.len() <= self.xattr_bytes_here_max() {
            return Ok(Xattrs::Here(bytes));
        }
        Ok(Xattrs::Pages(self.write_xattrs(tx, &bytes).await?))
    }

    async fn has_room(&self, tx: &S::Tx, page: PageNo, more: usize) -> Result<bool, FsError> {
        if self.is_full(page) {
            return Ok(false);
        }
        let for_names = match tx.get(page, HEADER_SLOT).await? {
            Some(_) => self.room_for_names(),
            None => 0,
        };
        let room = tx.room(page).await?.unwrap_or(0);
        Ok(room >= more + OBJECT_OVERHEAD as usize + for_names)
    }

    /// Writes a list into pages of its own; gives the first.
    async fn write_xattrs(&self, tx: &S::Tx, list: &Bytes) -> Result<PageNo, FsError> {
        let mut all = BytesMut::from(&encode_xattr_head(list.len())[..]);
        all.extend_from_slice(list);
        let (mut all, size) = (all.freeze(), self.page_size());
        let count = (all.len() as u64).div_ceil(size);
        let first = self.numbers.take(&self.store, count).await?;
        for page in (first.0..first.0 + count).map(PageNo) {
            let part = all.split_to(all.len().min(size as usize));
            tx.create_page(page, PageKind::Raw).await?;
            tx.write_raw(page, 0, part).await?;
        }
        Ok(first)
    }

    /// Frees the pages of an inode's attributes and updates the inode, which then has none.
    pub(super) async fn free_xattrs(&self, tx: &S::Tx, inode: &mut Inode) -> Result<(), FsError> {
        if let Xattrs::Pages(first) = std::mem::take(&mut inode.xattrs) {
            for page in self.xattr_pages(tx, first).await? {
                tx.delete_page(page).await?;
            }
        }
        Ok(())
    }

    /// Takes from a file what gives rights to others than its caller, if it has any.
    pub async fn drop_privileges(&self, id: InodeId) -> Result<(), FsError> {
        let inode = self.getattr(id).await?.inode;
        let mut dropped = inode.clone();
        let mut list = match inode.xattrs {
            Xattrs::None => XattrList::default(),
            _ => self.xattrs(id).await?,
        };
        let before = list.clone();
        drop_privileges(&mut dropped, &mut list);
        if dropped.mode != inode.mode || list != before {
            let set = SetAttr { drop_privileges: true, ..SetAttr::default() };
            self.setattr(id, set).await?;
        }
        Ok(())
    }

    /// The attributes that a new name gets from its directory, and its mode: by the directory's
    /// default access control list if there is one, else by the creator's mask.
    pub(super) async fn inherited(
        &self,
        parent: &Attr,
        create: &Create,
    ) -> Result<(XattrList, u16), FsError> {
        let mut list = XattrList::default();
        let (kind, mode) = (create.kind, create.mode);
        let masked = mode & !create.umask;
        if kind == Kind::Symlink || parent.inode.xattrs == Xattrs::None {
            return Ok((list, masked));
        }
        let value = self.xattrs(parent.id).await?.0.remove(acl::DEFAULT);
        let Some(default) = value.as_deref().map(Acl::decode).transpose()?.flatten() else {
            return Ok((list, masked));
        };
        let (access, mode) = default.inherit(mode);
        if !access.is_mode() {
            list.0.insert(Bytes::from_static(acl::ACCESS), access.encode());
        }
        if kind == Kind::Directory {
            list.0.insert(Bytes::from_static(acl::DEFAULT), default.encode());
        }
        Ok((list, mode))
    }
}

async fn raw<T: Tx>(tx: &T, page: PageNo) -> Result<Bytes, FsError> {
    let found = tx.get_raw(page).await?;
    found.ok_or_else(|| FsError::Damaged(format!("extended attributes: page {} is gone", page.0)))
}

/// Checks an access control list and lets the mode follow it; gives what is to be kept of it.
fn put_acl(inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<Option<Bytes>, FsError> {
    let acl = Acl::decode(value)?;
    if inode.kind == Kind::Symlink {
        return Err(FsError::Unsupported("access control lists of symbolic links"));
    }
    if name == acl::DEFAULT && inode.kind != Kind::Directory {
        return Err(FsError::Invalid("only a directory has a default access control list"));
    }
    let Some(acl) = acl else { return Ok(None) };
    if name == acl::DEFAULT {
        return Ok(Some(acl.encode()));
    }
    inode.mode = inode.mode & !0o777 | acl.mode();
    Ok((!acl.is_mode()).then(|| acl.encode()))
}

/// Lets the access control list follow a new mode.
pub(super) fn follow_mode(inode: &Inode, list: &mut XattrList) -> Result<(), FsError> {
    let Some(value) = list.0.get_mut(acl::ACCESS) else { return Ok(()) };
    if let Some(mut acl) = Acl::decode(value)? {
        acl.set_mode(inode.mode);
        *value = acl.encode();
    }
    Ok(())
}
