//! Listing directories.

use super::adapter::{Answer, failed};
use super::attributes::{absent, file_type};
use super::{Open, Shared};
use fuser::{
    Errno, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyDirectory,
    ReplyDirectoryPlus,
};
use larder::fs::{DirEntry, Position, TxStore};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Names given per listing request; the kernel's buffer holds about as many.
const LIST: usize = 128;
/// Cookies of `.` and `..`; those of names come after.
const DOTS: u64 = 2;
/// A listing that the kernel keeps is shown again while its attributes may be believed for so long:
/// one after the other asked for alone, they would cost more than listing anew.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What the kernel asks for.
pub(super) struct Ask {
    pub(super) directory: INodeNo,
    pub(super) handle: FileHandle,
    /// Of the last name it got, or 0.
    pub(super) cookie: u64,
    /// Whether it wants the attributes as well.
    pub(super) attributes: bool,
}

/// Where a listing stands.
#[derive(Default)]
pub(super) struct At {
    /// The cookie of the name it gave last, and what comes after it.
    cookie: u64,
    position: Position,
    /// For [`super::known::Known`]: how often such a listing was dropped when this one began.
    drops: u64,
}

/// What was found.
pub(super) struct Listing {
    directory: u64,
    cookie: u64,
    dots: [(u64, &'static str); 2],
    entries: Vec<DirEntry>,
    /// Before it was read, for [`super::known::Known`].
    position: u64,
    /// The handle's.
    state: Arc<Mutex<At>>,
}

impl<S: TxStore> Shared<S> {
    /// How a directory is opened: whether the kernel may keep its listing for the next who opens
    /// it, and show the one it has.
    pub(super) fn directory_flags(&self, directory: INodeNo) -> FopenFlags {
        if !self.keeps_listings() {
            return FopenFlags::empty();
        }
        let mut flags = FopenFlags::FOPEN_CACHE_DIR;
        let kept = self.known().open_listing(directory.0, KEPT_FOR);
        flags.set(FopenFlags::FOPEN_KEEP_CACHE, kept);
        flags
    }

    /// A part of a listing is given to the kernel.
    fn tell_listing(&self, listing: &Listing) {
        if !self.keeps_listings() {
            return;
        }
        let ttl = self.time_to_live();
        let drops = {
            let mut at = listing.at();
            let part = (listing.cookie == 0, &mut at.drops);
            self.known().tell_listing(listing.position, listing.directory, ttl, part)
        };
        // Does not wait: whoever lists does so after this part is answered.
        if drops
            && let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(INodeNo(listing.directory), 0, 0)
        {
            tracing::debug!(%error, "a listing is not taken back");
        }
    }
}

/// A name's cookie, from 62 bits of its hash: the kernel wants it below 2^63, in order, and above
/// those of the dots. Names that share them follow one another, and the handle knows which of
/// them was given last.
fn cookie_of(hash: u64) -> u64 {
    (hash >> 2) + DOTS + 1
}

/// The last hash with this cookie.
fn hash_of(cookie: u64) -> u64 {
    ((cookie - DOTS - 1) << 2) | 3
}

/// Lists from a cookie on.
pub(super) async fn list<S: TxStore>(shared: Arc<Shared<S>>, ask: Ask) -> Answer<Listing> {
    let directory = shared.id(ask.directory)?;
    let Some(Open::Directory(state)) = shared.handles().get(&ask.handle.0).cloned() else {
        return Err(Errno::EBADF);
    };
    let after = {
        let state = state.lock().expect("holders of this lock do not panic");
        match ask.cookie {
            0..=DOTS => Position::default(),
            // In the middle of names with one cookie, the handle knows where.
            cookie if state.cookie == cookie => state.position.clone(),
            cookie => Position { hash: hash_of(cookie), name: None },
        }
    };
    let position = shared.known().position();
    // A listing that is kept ends with a change of the directory's inode: it is heard of here.
    failed(shared.fs.getattr(directory).await)?;
    let entries = failed(shared.fs.read_dir(directory, &after, LIST, ask.attributes).await)?;
    let parent = failed(shared.fs.parent(directory).await)?;
    let dots = [(ask.directory.0, "."), (shared.known().number(parent), "..")];
    Ok(Listing { directory: ask.directory.0, cookie: ask.cookie, dots, entries, position, state })
}

impl Listing {
    fn at(&self) -> MutexGuard<'_, At> {
        self.state.lock().expect("holders of this lock do not panic")
    }

    /// Notes the last name given.
    fn stands_at(&self, entry: &DirEntry) {
        let mut at = self.at();
        (at.cookie, at.position) = (cookie_of(entry.position.hash), entry.position.clone());
    }

    /// The dots not yet given: (cookie, number, name).
    fn dots(&self) -> impl Iterator<Item = (u64, u64, &'static str)> + '_ {
        let given = self.cookie;
        let all = (1..).zip(&self.dots).map(|(cookie, (number, name))| (cookie, *number, *name));
        all.filter(move |(cookie, ..)| *cookie > given)
    }

    /// Answers with names.
    pub(super) fn names<S: TxStore>(&self, shared: &Shared<S>, mut reply: ReplyDirectory) {
        shared.tell_listing(self);
        for (cookie, number, name) in self.dots() {
            if reply.add(INodeNo(number), cookie, FileType::Directory, name) {
                return reply.ok();
            }
        }
        for entry in &self.entries {
            let cookie = cookie_of(entry.position.hash);
            let number = INodeNo(entry.entry.id.number());
            let name = OsStr::from_bytes(&entry.entry.name);
            if reply.add(number, cookie, file_type(entry.entry.kind), name) {
                break;
            }
            self.stands_at(entry);
        }
        reply.ok();
    }

    /// Answers with names and attributes, which the kernel may believe.
    pub(super) fn tell<S: TxStore>(&self, shared: &Shared<S>, mut reply: ReplyDirectoryPlus) {
        shared.tell_listing(self);
        for (cookie, number, name) in self.dots() {
            let mut attr = absent();
            attr.ino = INodeNo(number);
            attr.kind = FileType::Directory;
            if reply.add(attr.ino, cookie, name, &Duration::ZERO, &attr, Generation(0)) {
                return reply.ok();
            }
        }
        let ttl = (shared.time_to_live(), shared.names_kept());
        for entry in &self.entries {
            let Some(attr) = &entry.attr else { continue };
            let name = (self.directory, &entry.entry.name[..]);
            let (attr_ttl, name_ttl) =
                shared.known().tell_name(self.position, name, entry.place, Some(attr), ttl);
            shared.check_pages(attr);
            let told = shared.fuse_attr(attr);
            let full = reply.add(
                told.ino,
                cookie_of(entry.position.hash),
                OsStr::from_bytes(&entry.entry.name),
                &attr_ttl.min(name_ttl),
                &told,
                Generation(u64::from(attr.id.generation.0)),
            );
            if full {
                // It was not told: the kernel does not refer to it.
                shared.known().forget(told.ino.0, 1);
                break;
            }
            self.stands_at(entry);
        }
        reply.ok();
    }
}
