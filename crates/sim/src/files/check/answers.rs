//! Each answer is of a state that was, with what its node wrote itself and has not committed over it.

use super::super::journal::{Answer, Ask, Entry, Journal, Place, Who, Written};
use super::super::model::{Effect, Refusal, effect, is_of_names, refuses};
use super::super::tree::{FILE, Tree};
use super::{Checker, Removed};
use larder::fs::{FsError, InodeId, TxError};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Checker {
    pub(super) fn answered(&mut self, entry: &Entry, journal: &Journal) {
        self.compared += 1;
        let Some(ended) = &entry.ended else { return };
        match ended {
            Ok(answer) => {
                if matches!(entry.ask, Ask::Resize(..)) || is_of_names(&entry.ask) {
                    self.cut.retain(|_, who| *who != entry.who);
                }
                let of_it = |removed: &&mut Removed| removed.by == entry.who;
                self.unnamed.values_mut().filter(of_it).for_each(|removed| removed.told = true);
                self.answered_well(entry, answer, journal);
            }
            Err(error) => self.refused(entry, error, journal),
        }
    }

    fn state(&self, entry: &Entry) -> Option<&Arc<Tree>> {
        self.states.get(&entry.seen?)?.as_ref()
    }

    fn answered_well(&self, entry: &Entry, answer: &Answer, journal: &Journal) {
        let what = (entry.who, &entry.ask, entry.seen);
        if is_of_names(&entry.ask) {
            let done = self.done.contains_key(&entry.who) || self.perhaps.contains(&entry.who);
            // A state that is not kept any more, by a node that was long cut off: a rename of a name to
            // itself, or to another of its file, does nothing in it.
            let is_kept = |seen| self.states.keys().next().is_some_and(|first| *first <= seen);
            let is_old = entry.seen.is_some_and(|seen| !is_kept(seen));
            let nothing = || match self.state(entry) {
                Some(tree) => effect(tree, &entry.ask) == Ok(Effect::default()),
                None => is_old && matches!(entry.ask, Ask::Rename(..)),
            };
            let unmade = || match &entry.ask {
                Ask::Unlink(at) => self.is_late(entry.who, at),
                _ => false,
            };
            assert!(
                done || nothing() || unmade(),
                "files: {what:?} was acknowledged, and no commit did it"
            );
            return;
        }
        if let Ask::Flush(id) = &entry.ask {
            return self.synced(entry, *id, journal);
        }
        let Some(tree) = self.state(entry) else {
            self.unseen(entry, answer);
            return;
        };
        match (&entry.ask, answer) {
            (Ask::Lookup(at), Answer::Found(found)) if !self.is_late(entry.who, at) => {
                let names = tree.inodes.get(&at.0).map(|inode| &inode.names);
                let truth = names.and_then(|names| names.get(&at.1)).map(|(id, _)| *id);
                assert!(*found == truth, "files: {what:?} found {found:?}, and it is {truth:?}");
            }
            (Ask::List(id), Answer::Names(listed)) => {
                let truth = tree.inodes.get(id).map(|inode| &inode.names);
                let truth: Option<BTreeSet<_>> = truth
                    .map(|names| names.iter().map(|(name, (id, _))| (name.clone(), *id)).collect());
                let found: BTreeSet<_> = listed.iter().cloned().collect();
                assert!(
                    found.len() == listed.len() && truth.as_ref() == Some(&found),
                    "files: {what:?} listed {listed:?}, and it is {truth:?}"
                );
            }
            (Ask::Look(id), Answer::Attr(links, size)) => {
                self.looked(entry, tree, *id, (*links, *size), journal)
            }
            (Ask::Read(id, from, to), Answer::Bytes(bytes)) => {
                self.read(entry, tree, *id, (*from, *to), bytes, journal);
            }
            (Ask::Resize(id, size), Answer::Done) => {
                let file = tree.inodes.get(&journal.file(*id));
                assert!(
                    file.is_some_and(|file| file.size == *size),
                    "files: {what:?} made it {:?} bytes long",
                    file.map(|file| file.size)
                );
            }
            (Ask::Punch(id, from, to), Answer::Done) => {
                self.punched(entry, tree, journal.file(*id), (*from, *to));
            }
            (Ask::Mode(id, mode), Answer::Done) => {
                let file = tree.inodes.get(&journal.file(*id));
                assert!(file.is_some_and(|file| file.mode == *mode), "files: {what:?} did not");
            }
            (Ask::Xattr(id, value), Answer::Done) => {
                let file = tree.inodes.get(&journal.file(*id));
                assert!(
                    file.is_some_and(|file| file.xattrs.is_empty() == value.is_none()),
                    "files: {what:?} did not"
                );
            }
            (Ask::LookXattr(id), Answer::Bytes(value)) => {
                let truth = tree.inodes.get(id).map(|inode| &inode.xattrs);
                let same = truth
                    .is_some_and(|list| list.len() == 11 + value.len() && list.ends_with(value));
                assert!(same, "files: {what:?} saw {value:?} of {truth:?}");
            }
            _ => {}
        }
    }

    /// What was there before a hole was made is not there after it.
    fn punched(&self, entry: &Entry, tree: &Tree, id: InodeId, (from, to): (u64, u64)) {
        let before = self.states.get(&entry.began).and_then(|tree| tree.as_ref()?.inodes.get(&id));
        let (Some(before), Some(after)) = (before, tree.inodes.get(&id)) else { return };
        for at in (from..to.min(after.size)).step_by(8) {
            let cell = after.cell(at, tree.page_bytes);
            assert!(
                cell == 0 || cell != before.cell(at, tree.page_bytes),
                "files: {:?} ({:?}) left {cell:#x} at byte {at}",
                entry.who,
                entry.ask
            );
        }
    }

    /// An answer of no transaction: of what is not committed yet.
    fn unseen(&self, entry: &Entry, answer: &Answer) {
        let what = (entry.who, &entry.ask, answer);
        let late = self.has_late(entry.who);
        match &entry.ask {
            Ask::Lookup(_) | Ask::List(_) if entry.seen.is_none() => {
                assert!(late, "files: {what:?} looked at no state");
            }
            _ => {}
        }
    }

    fn is_late(&self, who: Who, at: &Place) -> bool {
        self.late.contains_key(&(who.node, who.life, at.clone()))
    }

    /// What this node wrote to a file and may not have committed yet.
    fn waiting<'a>(
        &'a self,
        who: Who,
        id: InodeId,
        journal: &'a Journal,
    ) -> impl Iterator<Item = (u64, &'a Written)> + 'a {
        journal.written_by(who, id).filter(|(tag, _)| !self.committed.contains(tag))
    }

    fn looked(
        &self,
        entry: &Entry,
        tree: &Tree,
        id: InodeId,
        (links, size): (u64, u64),
        journal: &Journal,
    ) {
        let what = (entry.who, &entry.ask, entry.seen);
        let Some(truth) = tree.inodes.get(&id) else {
            panic!("files: {what:?} found an inode that is not there");
        };
        assert!(links == truth.links, "files: {what:?} saw {links} links of {}", truth.links);
        let own = journal.written_by(entry.who, id).next().is_some();
        assert!(
            size == truth.size || own && size > truth.size && truth.kind == FILE,
            "files: {what:?} saw {size} bytes of {}",
            truth.size
        );
    }

    fn read(
        &self,
        entry: &Entry,
        tree: &Tree,
        id: InodeId,
        (from, to): (u64, u64),
        bytes: &bytes::Bytes,
        journal: &Journal,
    ) {
        let what = (entry.who, &entry.ask, entry.seen);
        let id = journal.file(id);
        let Some(truth) = tree.inodes.get(&id) else {
            // It was to be made late.
            assert!(self.has_late(entry.who), "files: {what:?} read what is not there");
            return;
        };
        let own = |tag: u64| {
            let written = journal.written.get(&tag);
            written.is_some_and(|written| {
                (written.who.node, written.who.life) == (entry.who.node, entry.who.life)
                    && journal.file(written.file) == id
            })
        };
        let latest = self.latest(entry, id, (from, to), journal);
        let lost = journal.lost.contains(&(entry.who.node, entry.who.life)) || truth.links == 0;
        for (place, cell) in bytes.chunks_exact(8).enumerate() {
            let at = from + 8 * place as u64;
            let cell = u64::from_le_bytes(cell.try_into().expect("eight bytes"));
            let committed = truth.cell(at, tree.page_bytes);
            assert!(
                cell == committed || own(cell),
                "files: {what:?} read {cell:#x} at byte {at}, and it is {committed:#x}"
            );
            if let Some((_, tag)) = latest.get(place).copied().flatten()
                && !lost
            {
                assert!(
                    cell == tag || own(cell) && journal.is_later(cell, tag),
                    "files: {what:?} read {cell:#x} at byte {at}, where {tag:#x} waits"
                );
            }
        }
        let whole = truth.size.min(to).saturating_sub(from);
        assert!(
            bytes.len() as u64 >= whole && bytes.len() as u64 <= to - from,
            "files: {what:?} read {} bytes of {whole}",
            bytes.len()
        );
        let any_own = journal.written_by(entry.who, id).next().is_some();
        assert!(
            bytes.len() as u64 == whole || any_own,
            "files: {what:?} read {} bytes of {whole}",
            bytes.len()
        );
    }

    /// Of each cell of a range, the last write by this process that waits there and was acknowledged
    /// before the operation began: when, and its tag.
    fn latest(
        &self,
        entry: &Entry,
        id: InodeId,
        (from, to): (u64, u64),
        journal: &Journal,
    ) -> Vec<Option<(u64, u64)>> {
        let mut cells = vec![None; ((to - from) / 8) as usize];
        for (tag, written) in self.waiting(entry.who, id, journal) {
            let Some(kept) = written.kept.filter(|kept| *kept <= entry.order) else { continue };
            for at in (written.from.max(from)..written.to.min(to)).step_by(8) {
                let cell = &mut cells[((at - from) / 8) as usize];
                *cell = (*cell).max(Some((kept, tag)));
            }
        }
        cells
    }

    /// What was written here before an `fsync` is in the log after it.
    fn synced(&self, entry: &Entry, id: InodeId, journal: &Journal) {
        let file = self.now().and_then(|tree| tree.inodes.get(&journal.file(id)));
        // What waits in a file without a name goes with its last handle.
        if journal.lost.contains(&(entry.who.node, entry.who.life))
            || file.is_none_or(|file| file.links == 0)
        {
            return;
        }
        for (tag, written) in self.waiting(entry.who, id, journal) {
            let before = written.kept.is_some_and(|kept| kept <= entry.order);
            assert!(
                !before,
                "files: {:?} ({:?}) was acknowledged, and {written:?} ({tag:#x}) is in no commit",
                entry.who, entry.ask
            );
        }
    }

    fn refused(&self, entry: &Entry, error: &FsError, journal: &Journal) {
        let done = self.done.get(&entry.who);
        let what = (entry.who, &entry.ask, entry.seen);
        let surely = matches!(
            error,
            FsError::Store(
                TxError::Conflict(_)
                    | TxError::Quota(_)
                    | TxError::NoRight(_)
                    | TxError::NoSpace(_)
            )
        ) || Refusal::of(error).is_some();
        assert!(
            !surely || done.is_none(),
            "files: {what:?} was refused ({error}), and is done by {done:?}"
        );
        let Some(refusal) = Refusal::of(error) else { return };
        if let (Ask::Read(id, ..), Refusal::NotFound) = (&entry.ask, refusal) {
            return self.stale(entry, *id, journal);
        }
        if !is_of_names(&entry.ask) || self.has_late(entry.who) {
            return;
        }
        let within = self
            .states
            .range(..)
            .filter(|(stamp, _)| **stamp >= entry.began || self.at < entry.began);
        let mut states = within.filter_map(|(_, tree)| tree.as_ref());
        let explained = states.any(|tree| refuses(tree, &entry.ask, refusal));
        // The state it began in may be an older one than is durable.
        let older = entry.seen.is_some_and(|seen| seen < entry.began);
        assert!(
            explained || older,
            "files: {what:?} was refused ({error}), and no state since {} explains it",
            entry.began
        );
    }

    /// A file that is open here was freed: not by this node.
    fn stale(&self, entry: &Entry, id: InodeId, journal: &Journal) {
        let Some(tree) = self.state(entry) else { return };
        let lost = journal.lost.contains(&(entry.who.node, entry.who.life));
        assert!(
            lost || !tree.inodes.contains_key(&id) || self.has_late(entry.who),
            "files: {:?} ({:?}) did not find {id}, which is there",
            entry.who,
            entry.ask
        );
    }
}
