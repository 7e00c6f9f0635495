//! When files were read last, by this node: kept in memory, by the rule of `relatime`, and committed
//! only with another change of the inode (`docs/decisions/0007-attributes-and-holes.md`).

use super::lock;
use super::record::{Inode, InodeId, Kind};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Files of which it is remembered; beyond it all are forgotten.
const FILES_MAX: usize = if cfg!(test) { 64 } else { 1 << 16 };
/// A time of access that is older is moved by any read, in nanoseconds.
const DAY: i64 = 86_400 * 1_000_000_000;

#[derive(Default)]
pub(super) struct Accessed {
    /// The time of access, and the time of change of the inode that it is of: any change of the
    /// inode, which may have set the time of access, makes it void.
    times: Mutex<BTreeMap<InodeId, (i64, i64)>>,
}

impl Accessed {
    /// Somebody reads a file.
    pub(super) fn note(&self, id: InodeId, inode: &Inode, now: i64) {
        let moved =
            inode.atime <= inode.mtime.max(inode.ctime) || inode.atime < now.saturating_sub(DAY);
        if inode.kind != Kind::File || !moved {
            return;
        }
        let mut times = lock(&self.times);
        if times.len() >= FILES_MAX && !times.contains_key(&id) {
            times.clear();
        }
        times.insert(id, (now, inode.ctime));
    }

    /// A file is being removed. Should it stay, its time of access is what was committed.
    pub(super) fn forget(&self, id: InodeId) {
        lock(&self.times).remove(&id);
    }

    /// Files of which it is remembered.
    pub(super) fn len(&self) -> usize {
        lock(&self.times).len()
    }

    /// Sets the time of access as it is known here.
    pub(super) fn apply(&self, id: InodeId, inode: &mut Inode) {
        if inode.kind == Kind::File
            && let Some((atime, ctime)) = lock(&self.times).get(&id)
            && *ctime == inode.ctime
        {
            inode.atime = inode.atime.max(*atime);
        }
    }
}
