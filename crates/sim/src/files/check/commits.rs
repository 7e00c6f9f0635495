//! Each commit does what its operation asks for, and what was written or made late before it.

use super::super::journal::{Ask, Journal, Place, Who, Written};
use super::super::model::{Effect, Target, effect, is_of_names};
use super::super::tree::{Body, FILE, Inode, Names, Tree};
use super::{Checker, Removed, Step};
use larder::fs::InodeId;
use std::collections::{BTreeMap, BTreeSet};

impl Checker {
    /// Names change as the operation says, and by files that were made late.
    pub(super) fn names_of(&mut self, step: &Step<'_>) {
        let (mut removed, mut added) = (BTreeSet::new(), BTreeMap::new());
        let none = Names::new();
        for id in step.changed.iter().filter(|id| **id != step.after.orphans) {
            let of = |tree: &'_ Tree| tree.inodes.get(id).cloned();
            let (before, after) = (of(step.before), of(step.after));
            let before = before.as_ref().map_or(&none, |inode| &inode.names);
            let after = after.as_ref().map_or(&none, |inode| &inode.names);
            let gone = before.iter().filter(|(name, to)| after.get(*name) != Some(to));
            removed.extend(gone.map(|(name, _)| (*id, name.clone())));
            let come = after.iter().filter(|(name, to)| before.get(*name) != Some(to));
            added.extend(come.map(|(name, to)| ((*id, name.clone()), *to)));
        }
        if removed.is_empty() && added.is_empty() {
            return;
        }
        let who = step.who;
        let expected = step.ask.as_ref().filter(|ask| is_of_names(ask));
        let expected = expected.map(|ask| effect(step.before, ask));
        let fits = |effect: &Effect| {
            effect.removed.iter().cloned().collect::<BTreeSet<_>>() == removed
                && effect.added.iter().all(|(at, target)| match (added.get(at), target) {
                    (Some((id, _)), Target::Old(old)) => id == old,
                    (Some((id, kind)), Target::New(new)) => {
                        kind == new && !step.before.inodes.contains_key(id)
                    }
                    (None, _) => false,
                })
        };
        let by_the_way = |at: &Place| {
            let key = (who.node, who.life, at.clone());
            self.late.contains_key(&key)
        };
        if let Some(Ok(effect)) = &expected
            && *effect != Effect::default()
            && fits(effect)
        {
            effect.added.iter().for_each(|(at, _)| {
                added.remove(at);
            });
            let mut of = effect.added.iter();
            if of.any(|(at, target)| by_the_way(at) && *target == Target::New(FILE)) {
                // What this node was to make late under that name, or what it was asked for now.
                self.perhaps.insert(who);
            } else {
                let done = self.done.entry(who).or_default();
                done.push(step.stamp);
                assert!(done.len() == 1, "files: {who:?} ({:?}) is done twice: {done:?}", step.ask);
            }
        } else {
            assert!(
                removed.is_empty(),
                "files: commit {} of {who:?} ({:?}) removes {removed:?} and adds {added:?}; it was to \
                 do {expected:?}",
                step.stamp,
                step.ask
            );
        }
        for (at, (id, kind)) in &added {
            assert!(
                *kind == FILE && by_the_way(at) && !step.before.inodes.contains_key(id),
                "files: commit {} of {who:?} ({:?}) adds {at:?}; it was to do {expected:?}",
                step.stamp,
                step.ask
            );
        }
    }

    /// Inodes change as the operation says, and by bytes that were written.
    pub(super) fn inodes_of(&mut self, step: &Step<'_>, journal: &Journal) {
        let nothing = Inode {
            kind: 0,
            mode: 0,
            links: 0,
            size: 0,
            change: 0,
            ctime: 0,
            body: Body::Empty,
            xattrs: bytes::Bytes::new(),
            names: Names::new(),
        };
        for id in step.changed {
            let Some(inode) = step.before.inodes.get(id) else { continue };
            if !step.after.inodes.contains_key(id) && inode.kind == FILE {
                self.freed_elsewhere(step, *id, journal);
                let held = (step.who.node, step.who.life, *id);
                assert!(
                    !journal.held.contains_key(&held) || self.is_new_holder(held, journal),
                    "files: commit {} of {:?} ({:?}) frees {id}, which is open there",
                    step.stamp,
                    step.who,
                    step.ask
                );
            }
        }
        for id in step.changed {
            let Some(after) = step.after.inodes.get(id) else { continue };
            let before = step.before.inodes.get(id);
            if before == Some(after) {
                continue;
            }
            let is_new = before.is_none();
            let before = before.map_or(&nothing, |inode| &**inode);
            if before.links > 0 && after.links == 0 {
                self.unnamed.insert(*id, Removed { by: step.who, told: false });
            } else if let Some(removed) = self.unnamed.get(id).filter(|_| after.links == 0)
                && !removed.told
                && !Self::is_background(step.who)
            {
                // Whoever removed it, and does not know that, can no longer tell by its time of change that it
                // did (bug 160).
                self.cut.insert(*id, removed.by);
            }
            if is_new && after.links == 0 {
                self.cut.insert(*id, step.who);
            }
            if is_new || before.ctime != after.ctime {
                self.changed.insert(*id, journal.now);
            }
            self.attributes_of(step, *id, (before, after), (is_new, journal));
            if after.kind == FILE && (before.body != after.body || before.size != after.size) {
                self.content_of(step, *id, (before, after), journal);
            }
        }
    }

    /// A file without a name is kept for the process that took its last name, and has it open: others
    /// free it when that one was not heard of for long.
    fn freed_elsewhere(&self, step: &Step<'_>, id: InodeId, journal: &Journal) {
        let Some((node, life)) = self.unnamed.get(&id).map(Removed::process) else { return };
        let lost = journal.lost.contains(&(node, life));
        let by_itself = (node, life) == (step.who.node, step.who.life);
        if by_itself || lost || !journal.held.contains_key(&(node, life, id)) {
            return;
        }
        let unheard = journal.now - self.changed.get(&id).copied().unwrap_or(0);
        assert!(
            unheard >= self.orphan_age / 10 * 9,
            "files: {:?} frees {id}, which process {node} has open and changed {unheard} ns ago",
            step.who
        );
    }

    /// Somebody opens it just now, and does not have it yet.
    fn is_new_holder(&self, held: (u16, u32, InodeId), journal: &Journal) -> bool {
        journal.lost.contains(&(held.0, held.1))
    }

    fn attributes_of(
        &self,
        step: &Step<'_>,
        id: InodeId,
        (before, after): (&Inode, &Inode),
        (is_new, journal): (bool, &Journal),
    ) {
        let same = |of: &InodeId| journal.file(*of) == journal.file(id);
        let ask = step.ask.as_ref();
        let who = (step.stamp, step.who, ask);
        let mode_set = matches!(ask, Some(Ask::Mode(of, _)) if same(of));
        assert!(
            is_new || before.mode == after.mode || mode_set || self.has_late(step.who),
            "files: {who:?} changes the mode of {id} from {:o} to {:o}",
            before.mode,
            after.mode
        );
        let xattr_set = matches!(ask, Some(Ask::Xattr(of, _)) if same(of));
        let nameless = after.links == 0;
        assert!(
            is_new && after.xattrs.is_empty()
                || before.xattrs == after.xattrs
                || xattr_set
                || is_new && nameless,
            "files: {who:?} changes the attributes of {id}"
        );
        assert!(is_new || before.kind == after.kind, "files: {who:?} changes the kind of {id}");
    }

    pub(super) fn has_late(&self, who: Who) -> bool {
        self.late.keys().any(|(node, life, _)| (*node, *life) == (who.node, who.life))
    }

    fn content_of(
        &mut self,
        step: &Step<'_>,
        id: InodeId,
        (before, after): (&Inode, &Inode),
        journal: &Journal,
    ) {
        let page = step.after.page_bytes;
        let ask = step.ask.as_ref();
        let who = (step.stamp, step.who, ask);
        let late = self.has_late(step.who);
        let cuts = match ask {
            Some(Ask::Resize(of, _) | Ask::Punch(of, ..)) => journal.file(*of) == id,
            _ => false,
        } || late;
        // What is freed step by step, or was moved there to be freed.
        let freed = after.links == 0;
        for at in before.differing(after, page) {
            let (old, new) = (before.cell(at, page), after.cell(at, page));
            if freed && (new == 0 || before.kind == 0) {
                continue;
            }
            let past = self.past.entry((id, at)).or_default();
            if old != 0 {
                past.push(old);
            }
            if new == 0 {
                assert!(cuts, "files: {who:?} clears byte {at} of {id}, which was {old}");
                continue;
            }
            let Some(written) = journal.written.get(&new) else {
                panic!("files: {who:?} puts {new:#x} at byte {at} of {id}, which nobody wrote");
            };
            assert!(
                (written.who.node, written.who.life) == (step.who.node, step.who.life),
                "files: {who:?} puts at byte {at} of {id} what {written:?} wrote"
            );
            assert!(
                (written.from..written.to).contains(&at)
                    && journal.file(written.file) == journal.file(id),
                "files: {who:?} puts at byte {at} of {id} what was written elsewhere: {written:?}"
            );
            assert!(
                !past.contains(&new),
                "files: {who:?} puts at byte {at} of {id} what was there before, and was written \
                 over since: {written:?}; {past:?}"
            );
        }
        if after.size < before.size {
            assert!(
                cuts || freed,
                "files: {who:?} cuts {id} from {} to {}",
                before.size,
                after.size
            );
        }
        if after.size > before.size && !cuts && !freed {
            assert!(
                journal.written_to(id).any(|(_, written)| written.to == after.size),
                "files: {who:?} makes {id} reach to {}, where nobody wrote",
                after.size
            );
        }
        self.writes_of(step, id, after, journal);
    }

    /// What a node wrote into a file comes whole, and with all that it wrote there before.
    fn writes_of(&mut self, step: &Step<'_>, id: InodeId, after: &Inode, journal: &Journal) {
        let page = step.after.page_bytes;
        let life = (step.who.node, step.who.life);
        let waiting: Vec<u64> = journal
            .written_by(step.who, id)
            .filter(|(tag, written)| written.kept.is_some() && !self.committed.contains(tag))
            .map(|(tag, _)| tag)
            .collect();
        let own = |tag: u64| {
            journal.written.get(&tag).is_some_and(|written: &Written| {
                (written.who.node, written.who.life) == life
                    && journal.file(written.file) == journal.file(id)
            })
        };
        for tag in waiting {
            let written = &journal.written[&tag];
            let cells = (written.from..written.to).step_by(8);
            let (mut there, mut missing) = (0, 0);
            for at in cells {
                match after.cell(at, page) {
                    cell if cell == tag => there += 1,
                    cell if own(cell) && journal.is_later(cell, tag) => {}
                    _ => missing += 1,
                }
            }
            if missing == 0 {
                self.committed.insert(tag);
                continue;
            }
            assert!(
                there == 0
                    || after.links == 0
                    || self.was_cut(step)
                    || journal.lost.contains(&life),
                "files: {:?} ({:?}) commits {there} of {} cells of {written:?}, {missing} are \
                 missing",
                step.who,
                step.ask,
                (written.to - written.from) / 8
            );
        }
    }

    /// Somebody cuts it in this commit, or did since.
    fn was_cut(&self, step: &Step<'_>) -> bool {
        matches!(step.ask, Some(Ask::Resize(..) | Ask::Punch(..))) || self.has_late(step.who)
    }
}
