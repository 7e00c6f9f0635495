//! Removals of last names that got no answer: what is kept of each, and how it is settled what became of it.

use super::names::Dropped;
use super::open::DropMark;
use super::record::{Inode, InodeId};
use super::tx::Tx;
use super::write::is_without_answer;
use super::{FileSystem, FsError, TxError, TxStore, lock, transact};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;

/// Files waiting to be freed that are remembered; others are found in the list of orphans.
const TO_REAP_MAX: usize = 1 << 16;
/// Removals whose outcome is not known; with so many of them no further one is begun.
const UNSETTLED_MAX: usize = 4096;

/// What a removal takes from, kept until its outcome is known.
#[derive(Default)]
pub(super) struct Taken {
    /// The inode that loses its last name.
    id: Option<InodeId>,
    /// Nobody opens it meanwhile; none: it is open here, or stays as one without a name.
    _mark: Option<DropMark>,
    /// It may be another node's: whether it is to be freed is looked at anew.
    foreign: bool,
    /// The time of change with which the removal leaves it without a name. One that has another lost its last
    /// name to somebody else, or was changed since.
    left_at: Option<i64>,
    /// It was seen as the removal leaves it: it was done, whatever its time of change became since.
    seen: bool,
    /// So often its time of change was to be moved on, to settle what became of the removal.
    moved: i64,
}

impl Taken {
    /// Of the removal of an inode's last name.
    pub(super) fn of_removal(id: InodeId, mark: Option<DropMark>, left_at: Option<i64>) -> Self {
        Self { id: Some(id), _mark: mark, foreign: true, left_at, ..Self::default() }
    }

    /// Of the freeing of an inode that has no name.
    pub(super) fn of_freeing(id: InodeId, mark: Option<DropMark>, foreign: bool) -> Self {
        Self { id: Some(id), _mark: mark, foreign, ..Self::default() }
    }

    /// Whether an inode without a name, found with this time of change, is for this node to free.
    fn is_own(&self, ctime: i64) -> bool {
        let left = |at: i64| (0..=self.moved).contains(&ctime.saturating_sub(at));
        !self.foreign || self.seen || self.left_at.is_some_and(left)
    }
}

/// Removals whose outcome is not known, with numbers that ascend.
#[derive(Default)]
pub(super) struct Unsettled {
    all: BTreeMap<u64, Entry>,
    /// By the inode that each takes from.
    of: BTreeMap<InodeId, BTreeSet<u64>>,
    next: u64,
}

struct Entry {
    id: InodeId,
    taken: Taken,
    /// Its commit is asked for: nobody else settles it.
    under_way: bool,
}

impl Unsettled {
    pub(super) fn push(&mut self, taken: Taken) {
        self.enter(taken, false);
    }

    /// Gives its number; none: it takes from nothing.
    fn enter(&mut self, taken: Taken, under_way: bool) -> Option<u64> {
        let (id, number) = (taken.id?, self.next);
        self.next += 1;
        self.of.entry(id).or_default().insert(number);
        self.all.insert(number, Entry { id, taken, under_way });
        Some(number)
    }

    fn remove(&mut self, number: u64) -> Option<Taken> {
        let Entry { id, taken, .. } = self.all.remove(&number)?;
        if let Some(numbers) = self.of.get_mut(&id) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.of.remove(&id);
            }
        }
        Some(taken)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// An inode was seen that has no name, and its time of change.
    fn saw(&mut self, id: InodeId, ctime: i64) {
        for number in self.of.get(&id).into_iter().flatten() {
            let Some(Entry { taken, .. }) = self.all.get_mut(number) else { continue };
            taken.seen |= taken.left_at.is_some() && taken.is_own(ctime);
        }
    }

    /// What is to be settled next, of a range of numbers.
    fn next_of(&mut self, numbers: Range<u64>) -> Option<(u64, InodeId)> {
        let (number, entry) = self.all.range_mut(numbers).find(|(_, entry)| !entry.under_way)?;
        entry.taken.moved += 1;
        Some((*number, entry.id))
    }
}

/// A removal whose commit is to be asked for. It is among those whose outcome is not known as long as that is so: what it
/// leaves may be seen before its answer comes. Whoever lets go of it in the middle leaves it to be settled.
pub(super) struct Removal<'a> {
    unsettled: &'a Mutex<Unsettled>,
    number: Option<u64>,
}

impl Removal<'_> {
    /// It is tried once more, or has an outcome: what it was to take from is forgotten.
    pub(super) fn takes_nothing(&mut self) {
        let before = self.number.take().and_then(|number| lock(self.unsettled).remove(number));
        drop(before);
    }

    /// What it takes from, if it is done.
    pub(super) fn takes(&mut self, taken: Taken) {
        self.takes_nothing();
        self.number = lock(self.unsettled).enter(taken, true);
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        if let Some(entry) = lock(self.unsettled).all.get_mut(&number) {
            entry.under_way = false;
        }
    }
}

/// A freeing that somebody is about. Whoever lets go of it in the middle leaves it to those whose
/// outcome is not known.
pub(super) struct Held<'a> {
    unsettled: &'a Mutex<Unsettled>,
    taken: Option<Taken>,
}

impl<'a> Held<'a> {
    pub(super) fn new(unsettled: &'a Mutex<Unsettled>, taken: Taken) -> Self {
        Self { unsettled, taken: Some(taken) }
    }

    /// What became of it is known, or is for the caller to say.
    pub(super) fn done(mut self) -> Taken {
        self.taken.take().expect("it ends once")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            lock(self.unsettled).push(taken);
        }
    }
}

impl<S: TxStore> FileSystem<S> {
    /// Whether one more removal may come to be of unknown outcome.
    pub(super) fn may_remove(&self) -> Result<(), FsError> {
        if lock(&self.unsettled).len() < UNSETTLED_MAX {
            return Ok(());
        }
        let why = "too many removals whose outcome is not known: try again later";
        Err(TxError::Unavailable(why.into()).into())
    }

    /// A removal is to be done.
    pub(super) fn begin_removal(&self) -> Removal<'_> {
        Removal { unsettled: &self.unsettled, number: None }
    }

    /// An inode was read. One without a name may be seen as a removal leaves it of which it is not known what became: it
    /// is known from here on, before somebody's next write gives it another time of change (bug 211).
    pub(super) fn saw_inode(&self, id: InodeId, inode: &Inode) {
        if inode.links == 0 {
            lock(&self.unsettled).saw(id, inode.ctime);
        }
    }

    /// After the commit: a file without a name is freed at its last close, or soon. Where the
    /// outcome is not known the commit may yet be done: nobody opens the file before it is known.
    pub(super) fn settle(
        &self,
        dropped: Result<Dropped, FsError>,
        mut removal: Removal<'_>,
    ) -> Result<(), FsError> {
        if matches!(&dropped, Err(FsError::Store(TxError::OutcomeUnknown))) {
            drop(removal);
        } else {
            removal.takes_nothing();
        }
        if let Dropped::Orphan(id) = dropped? {
            self.reap_later(id);
        }
        Ok(())
    }

    /// Settles what became of removals that got no answer, by a change of the inode: after it, a
    /// removal that comes late conflicts with it and is not done.
    pub async fn settle_unknown(&self) -> Result<(), FsError> {
        let mut result = Ok(());
        let (mut number, end) = (0, lock(&self.unsettled).next);
        loop {
            let next = lock(&self.unsettled).next_of(number..end);
            let Some((at, id)) = next else { return result };
            number = at + 1;
            // It stays among the others meanwhile, and whoever sees what it left notes that.
            let settled = self.settle_inode(id).await;
            let taken = lock(&self.unsettled).remove(at);
            let Some(mut taken) = taken else { continue };
            match settled {
                // It was done, and the file is still open here, or large. Where it is another removal that was
                // done, of a node that has it open, the file is that node's to free (bug 160).
                Ok((0, ctime)) if taken.is_own(ctime) => self.reap_later(id),
                // Or somebody else changed it meanwhile: nobody frees what is said to be open.
                Ok((0, _)) => self.open_files.mark_foreign(id),
                // It was done, or it never will be; or whatever is asked for is refused from here on, and
                // whoever waits to open it is to hear that (bug 106). Not so where it is damaged: it may be read
                // the next time, and the removal come late.
                Ok(_)
                | Err(FsError::NotFound | FsError::Store(TxError::Forked | TxError::Deleted)) => {}
                Err(error) => {
                    let stop = is_without_answer(&error);
                    // What is refused has moved nothing on.
                    taken.moved -= i64::from(!stop);
                    lock(&self.unsettled).push(taken);
                    result = Err(error);
                    if stop {
                        return result;
                    }
                }
            }
        }
    }

    /// Changes an inode's time of change by the least, so that it can be told by it who took its last name;
    /// gives its number of links, and the time of change before.
    async fn settle_inode(&self, id: InodeId) -> Result<(u64, i64), FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            let ctime = inode.ctime;
            inode.ctime = ctime.saturating_add(1);
            self.put_inode(&tx, id, &inode).await?;
            Ok((inode.links, ctime))
        })
    }

    /// Frees a file without a name at its last close here, or soon.
    pub(super) fn reap_later(&self, id: InodeId) {
        if !self.open_files.mark_orphan(id) {
            let mut waiting = lock(&self.to_reap);
            if waiting.len() < TO_REAP_MAX {
                waiting.push_back(id);
            }
        }
    }
}
