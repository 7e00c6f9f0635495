//! What the kernel is told of names and inodes, and for how long it may believe it.

use super::super::attributes::{absent, attributes};
use super::super::{Open, Shared};
use super::Answer;
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyEntry,
};
use larder::fs::{Attr, Found, Handle, TxStore};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A name being told, and the position before it was read.
pub(super) struct Told {
    position: u64,
    parent: u64,
    pub(super) name: Vec<u8>,
}

impl Told {
    pub(super) fn new<S: TxStore>(shared: &Shared<S>, parent: INodeNo, name: &OsStr) -> Self {
        Self {
            position: shared.known().position(),
            parent: parent.0,
            name: name.as_bytes().to_vec(),
        }
    }
}

impl<S: TxStore> Shared<S> {
    pub(in crate::mount) fn fuse_attr(&self, attr: &Attr) -> fuser::FileAttr {
        let number = self.known().number(attr.id);
        let mut bytes = self.fs.bytes_taken(&attr.inode);
        if bytes < attr.inode.size {
            // To some programs a file that takes nothing is a hole from end to end.
            bytes = attr.inode.size.min(bytes + self.fs.waiting_of(attr.id));
        }
        attributes(number, attr, bytes, self.fs.store().page_bytes())
    }

    /// Tells the kernel a name.
    pub(super) fn tell(&self, told: &Told, found: &Found, reply: ReplyEntry) {
        let ttl = self.time_to_live();
        let ttl = if found.attr.is_some() { ttl } else { self.absence_time_to_live(ttl) };
        let (attr_ttl, name_ttl) = self.known().tell_name(
            told.position,
            (told.parent, &told.name),
            found.place,
            found.attr.as_ref(),
            (ttl, self.names_kept()),
        );
        match &found.attr {
            Some(attr) => {
                self.check_pages(attr);
                let generation = Generation(u64::from(attr.id.generation.0));
                reply.entry_with_ttls(&attr_ttl, &name_ttl, &self.fuse_attr(attr), generation);
            }
            None if name_ttl.is_zero() => reply.error(Errno::ENOENT),
            None => reply.entry_with_ttls(&name_ttl, &name_ttl, &absent(), Generation(0)),
        }
    }

    pub(super) fn tell_attr(&self, position: u64, attr: &Attr, reply: ReplyAttr) {
        let ttl = self.time_to_live();
        let ttl = self.known().tell_attr(position, attr, ttl);
        self.check_pages(attr);
        reply.attr(&ttl, &self.fuse_attr(attr));
    }

    pub(super) fn tell_created(
        &self,
        told: &Told,
        (handle, writes): (Handle, bool),
        found: &Found,
        reply: ReplyCreate,
    ) {
        let attr = found.attr.as_ref().expect("just created");
        let ttl = (self.time_to_live(), self.names_kept());
        let name = (told.parent, &told.name[..]);
        let (attr_ttl, name_ttl) =
            self.known().tell_name(told.position, name, found.place, Some(attr), ttl);
        let handle = if self.silent.are_written() {
            let number = self.known().number(attr.id);
            self.made(number, handle, writes)
        } else {
            FileHandle(self.add_handle(Open::File(Arc::new(handle))))
        };
        let mut opened = FopenFlags::FOPEN_KEEP_CACHE;
        opened.set(FopenFlags::FOPEN_DIRECT_IO, self.is_strict());
        reply.created(
            &attr_ttl.min(name_ttl),
            &self.fuse_attr(attr),
            Generation(u64::from(attr.id.generation.0)),
            handle,
            opened,
        );
    }
}

pub(super) fn reply_entry<S: TxStore>(
    told: Told,
    reply: ReplyEntry,
) -> impl FnOnce(&Shared<S>, Answer<Found>) + Send {
    move |shared, result| match result {
        Ok(found) => shared.tell(&told, &found, reply),
        Err(error) => reply.error(error),
    }
}
