//! What file clients asked for and were answered, for the checker.

use super::turns::Turns;
use larder::fs::{FsError, InodeId, RenameMode};
use larder_core::id::Stamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Who does something: a client and the number of its operation. Work in the background is of
/// client [`BACKGROUND`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Who {
    /// The process.
    pub node: u16,
    /// Its life.
    pub life: u32,
    /// The client of the process.
    pub client: u16,
    /// The operation.
    pub number: u32,
}

/// The client that is none.
pub const BACKGROUND: u16 = u16::MAX;

/// A name in a directory.
pub type Place = (InodeId, bytes::Bytes);

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// A file, directory or symbolic link (by its kind), under a name that must be free.
    Create(Place, u8),
    /// A file that is made late; whether another of the name is cut.
    CreateLate(Place, bool),
    /// Another name.
    Link(InodeId, Place),
    /// Removes a name of a file.
    Unlink(Place),
    /// Removes an empty directory.
    Rmdir(Place),
    /// Moves a name.
    Rename(Place, Place, RenameMode),
    /// Sets a file's size.
    Resize(InodeId, u64),
    /// Sets permission bits.
    Mode(InodeId, u16),
    /// Sets an extended attribute, or removes it.
    Xattr(InodeId, Option<u64>),
    /// Opens a file.
    Open(InodeId),
    /// Writes the tag into all cells of a range.
    Write(InodeId, u64, u64, u64),
    /// Makes a range a hole.
    Punch(InodeId, u64, u64),
    /// Commits what was written.
    Flush(InodeId),
    /// Closes a handle.
    Close(InodeId),
    /// Takes a lock, or releases it.
    Lock(InodeId, bool),
    /// Looks a name up.
    Lookup(Place),
    /// Attributes.
    Look(InodeId),
    /// All names.
    List(InodeId),
    /// Bytes.
    Read(InodeId, u64, u64),
    /// An extended attribute.
    LookXattr(InodeId),
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// What a name leads to.
    Found(Option<InodeId>),
    /// Links and size.
    Attr(u64, u64),
    /// Names.
    Names(Vec<(bytes::Bytes, InodeId)>),
    /// Bytes.
    Bytes(bytes::Bytes),
    /// A lock is in the way.
    InTheWay,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Whose.
    pub who: Who,
    /// What.
    pub ask: Ask,
    /// What was durable when it began.
    pub began: Stamp,
    /// Restores of the origin until then.
    pub branches: usize,
    /// The number in the journal when it began: of two, the lower began first.
    pub order: u64,
    /// The state that its last transaction saw, or made.
    pub seen: Option<Stamp>,
    /// How it ended, when.
    pub ended: Option<Result<Answer, FsError>>,
}

/// Something written.
#[derive(Clone, Debug)]
pub struct Written {
    /// By whom.
    pub who: Who,
    /// Into which file, as far as was known.
    pub file: InodeId,
    /// From where.
    pub from: u64,
    /// To where.
    pub to: u64,
    /// The write was acknowledged: when, by [`Journal::count`].
    pub kept: Option<u64>,
}

/// The journal of a run.
#[derive(Debug, Default)]
pub struct Journal {
    /// Operations under way, by who does them.
    pub open: BTreeMap<Who, Entry>,
    /// Those that ended and were not looked at yet.
    pub ended: VecDeque<Entry>,
    /// What was written, by tag. Tags ascend.
    pub written: BTreeMap<u64, Written>,
    /// The same by the file, as far as it is known which one that is.
    written_to: BTreeMap<InodeId, BTreeSet<u64>>,
    /// The last tag.
    pub tag: u64,
    /// Directories that were seen.
    pub directories: Vec<InodeId>,
    /// Files that were seen.
    pub files: Vec<InodeId>,
    /// Files that are held open: by node, life, file, and how often.
    pub held: BTreeMap<(u16, u32, InodeId), u32>,
    /// Lives that have lost what was written, or were cut off from what they had seen.
    pub lost: BTreeSet<(u16, u32)>,
    /// Files that turned out to be others.
    pub became: BTreeMap<InodeId, InodeId>,
    /// What is durable, as of now.
    pub durable: Stamp,
    /// Restores of the origin.
    pub branches: usize,
    /// Virtual time, in nanoseconds.
    pub now: u64,
    /// Clients are to begin nothing new.
    pub drains: bool,
    /// Operations begun and ended.
    pub count: u64,
    /// Which operations clients do.
    pub turns: Turns,
}

/// The journal, shared by all clients of a run.
pub type Shared = Arc<Mutex<Journal>>;

/// Opens the journal.
pub fn with<T>(journal: &Shared, act: impl FnOnce(&mut Journal) -> T) -> T {
    // After a panic, which ends the run, futures are dropped still.
    act(&mut journal.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Journal {
    /// An operation begins.
    pub fn begin(&mut self, who: Who, ask: Ask) {
        let order = self.count;
        self.count += 1;
        let (began, branches) = (self.durable, self.branches);
        let entry = Entry { who, ask, began, branches, order, seen: None, ended: None };
        self.open.insert(who, entry);
    }

    /// Its transaction saw this state, or made it.
    pub fn saw(&mut self, who: Who, stamp: Option<Stamp>) {
        if let Some(entry) = self.open.get_mut(&who) {
            entry.seen = stamp;
        }
    }

    /// It ended.
    pub fn end(&mut self, who: Who, answer: Result<Answer, FsError>) {
        if let Some(mut entry) = self.open.remove(&who) {
            entry.ended = Some(answer);
            self.ended.push_back(entry);
        }
    }

    /// Something is about to be written.
    pub fn writes(&mut self, tag: u64, who: Who, file: InodeId, (from, to): (u64, u64)) {
        self.written.insert(tag, Written { who, file, from, to, kept: None });
        self.written_to.entry(self.file(file)).or_default().insert(tag);
    }

    /// It waits for its commit from here on, at the latest.
    pub fn wrote(&mut self, tag: u64, file: InodeId) {
        self.count += 1;
        let (was, is) = match self.written.get_mut(&tag) {
            Some(written) => {
                written.kept = Some(self.count);
                (std::mem::replace(&mut written.file, file), file)
            }
            None => return,
        };
        let (was, is) = (self.file(was), self.file(is));
        if was != is {
            self.written_to.entry(was).or_default().remove(&tag);
            self.written_to.entry(is).or_default().insert(tag);
        }
    }

    /// A file turned out to be another.
    pub fn become_another(&mut self, (node, life): (u16, u32), from: InodeId, to: InodeId) {
        self.became.insert(from, to);
        let written = self.written_to.remove(&from).unwrap_or_default();
        self.written_to.entry(self.file(to)).or_default().extend(written);
        if let Some(count) = self.held.remove(&(node, life, from)) {
            *self.held.entry((node, life, to)).or_default() += count;
        }
    }

    /// All that was written into a file, with its tags.
    pub fn written_to(&self, id: InodeId) -> impl Iterator<Item = (u64, &Written)> + '_ {
        let tags = self.written_to.get(&self.file(id)).into_iter().flatten();
        tags.filter_map(|tag| Some((*tag, self.written.get(tag)?)))
    }

    /// The same by one process.
    pub fn written_by(&self, who: Who, id: InodeId) -> impl Iterator<Item = (u64, &Written)> + '_ {
        self.written_to(id)
            .filter(move |(_, it)| (it.who.node, it.who.life) == (who.node, who.life))
    }

    /// Whether a write came after another, both by one process.
    #[must_use]
    pub fn is_later(&self, one: u64, other: u64) -> bool {
        let kept = |tag| self.written.get(&tag).and_then(|written: &Written| written.kept);
        kept(one) > kept(other)
    }

    /// A process ended, and all that it did.
    pub fn died(&mut self, node: u16) {
        self.open.retain(|who, _| who.node != node);
        self.held.retain(|(of, ..), _| *of != node);
    }

    /// A file by what it turned out to be.
    #[must_use]
    pub fn file(&self, mut id: InodeId) -> InodeId {
        while let Some(other) = self.became.get(&id) {
            id = *other;
        }
        id
    }
}
