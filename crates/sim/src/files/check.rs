//! What file clients asked for and were answered, against the trees that the log holds: every commit
//! is to do what somebody asked for and nothing else, every answer is to be of a state that was.

use super::FilesPlan;
use super::journal::{Answer, Ask, BACKGROUND, Entry, Journal, Place, Who};
use super::model::{Effect, Refusal, Target, effect, is_of_names};
use super::tree::{Body, DIRECTORY, FILE, Inode, Tree, decode};
use crate::check::history::Branch;
use crate::check::oracle::Oracle;
use crate::client::VolumePlan;
use larder::fs::{FsError, InodeId, TxError};
use larder_core::id::{DomainId, PageNo, Stamp, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// States that are kept for answers to come at most; who looks further back is not looked at.
const STATES_MAX: usize = 4_096;

/// See the module's documentation.
#[derive(Debug)]
pub struct Checker {
    volume: VolumeId,
    domain: DomainId,
    page_bytes: u64,
    /// The branch of history that is looked at, and how far.
    branch: usize,
    at: Stamp,
    pages: BTreeSet<PageNo>,
    states: BTreeMap<Stamp, Option<Arc<Tree>>>,
    /// Whose each commit is, by its tag.
    commits: BTreeMap<u64, Who>,
    /// Operations of names: the commits that changed any.
    done: BTreeMap<Who, Vec<Stamp>>,
    /// Those of which a commit did what they asked for, and perhaps for another's sake.
    perhaps: BTreeSet<Who>,
    /// What operations that may have commits asked for.
    asks: BTreeMap<Who, Ask>,
    /// Files that were made late and may come to be: by node, life, place.
    late: BTreeMap<(u16, u32, Place), bool>,
    /// What each cell of a file held before.
    past: BTreeMap<(InodeId, u64), Vec<u64>>,
    /// Writes that are committed.
    committed: BTreeSet<u64>,
    /// How long a file without a name stays that nobody says is open.
    orphan_age: u64,
    /// Who took the last name of a file that is kept.
    unnamed: BTreeMap<InodeId, (u16, u32)>,
    /// When each inode last changed.
    changed: BTreeMap<InodeId, u64>,
    /// What was cut off large files by commits of which nobody heard: it goes in time.
    cut: BTreeMap<InodeId, Who>,
    /// What was compared.
    pub compared: u64,
}

/// A commit that is looked at.
struct Step<'a> {
    stamp: Stamp,
    who: Who,
    ask: Option<Ask>,
    before: &'a Tree,
    after: &'a Tree,
}

type Names = BTreeMap<Place, (InodeId, u8)>;

fn names(tree: &Tree) -> Names {
    let directories = tree.inodes.iter().filter(|(id, _)| **id != tree.orphans);
    let of = |(id, inode): (&InodeId, &Inode)| {
        let id = *id;
        let names = inode.names.iter().map(move |(name, to)| ((id, name.clone()), *to));
        names.collect::<Vec<_>>()
    };
    directories.flat_map(of).collect()
}

impl Checker {
    /// Of a run that has just begun.
    #[must_use]
    pub fn new(volume: &VolumePlan, plan: &FilesPlan) -> Self {
        Self {
            volume: volume.spec.id,
            domain: volume.domain,
            page_bytes: u64::from(volume.spec.page_bytes),
            orphan_age: u64::try_from(plan.orphan_age.as_nanos()).unwrap_or(u64::MAX),
            unnamed: BTreeMap::new(),
            changed: BTreeMap::new(),
            cut: BTreeMap::new(),
            branch: 0,
            at: Stamp::ZERO,
            pages: BTreeSet::new(),
            states: BTreeMap::from([(Stamp::ZERO, None)]),
            commits: BTreeMap::new(),
            done: BTreeMap::new(),
            perhaps: BTreeSet::new(),
            asks: BTreeMap::new(),
            late: BTreeMap::new(),
            past: BTreeMap::new(),
            committed: BTreeSet::new(),
            compared: 0,
        }
    }

    /// A commit is asked for.
    pub fn asks(&mut self, tag: u64, who: Who, journal: &Journal) {
        self.commits.insert(tag, who);
        if let Some(entry) = journal.open.get(&who) {
            self.asks.insert(who, entry.ask.clone());
        }
    }

    /// Looks at all commits that have become durable, and all answers since. Panics where something
    /// is not as it was promised.
    pub fn look(&mut self, oracle: &Oracle, journal: &mut Journal, is_on: impl Fn(u16) -> bool) {
        let truth = oracle.truth(self.domain);
        let branch = truth.current();
        if branch.is_silent() || branch.deleted(self.volume).is_some() {
            journal.ended.clear();
            return;
        }
        self.note_late(journal);
        if truth.branch_count() - 1 != self.branch {
            self.begin_anew(truth.branch_count() - 1, branch);
            let held: Vec<(u16, u32)> = journal.held.keys().map(|held| (held.0, held.1)).collect();
            journal.lost.extend(held);
            journal.lost.extend(journal.written.values().map(|w| (w.who.node, w.who.life)));
        }
        while self.at < branch.durable() {
            self.step(branch, journal);
        }
        while let Some(entry) = journal.ended.pop_front() {
            if entry.branches == truth.branch_count() && is_on(entry.who.node) {
                self.answered(&entry, journal);
            }
            if !matches!(entry.ended, Some(Err(FsError::Store(_)))) {
                self.asks.remove(&entry.who);
                self.done.remove(&entry.who);
                self.perhaps.remove(&entry.who);
            }
        }
        let oldest = journal.open.values().map(|entry| entry.began).min().unwrap_or(self.at);
        let kept = oldest.min(Stamp(self.at.0.saturating_sub(64)));
        let all = self.states.len();
        self.states = self.states.split_off(&kept);
        while self.states.len() > STATES_MAX {
            self.states.pop_first();
        }
        self.compared += (all - self.states.len()) as u64;
    }

    /// The origin was restored: what was before is no more.
    fn begin_anew(&mut self, number: usize, branch: &Branch) {
        self.branch = number;
        self.at = branch.durable();
        let of_volume = branch.pages().filter(|page| page.volume == self.volume);
        self.pages = of_volume.map(|page| page.page).collect();
        let tree = self.decode(branch, self.at);
        self.states = BTreeMap::from([(self.at, tree)]);
        self.past.clear();
        self.done.clear();
        self.perhaps.clear();
        self.unnamed.clear();
    }

    fn decode(&self, branch: &Branch, stamp: Stamp) -> Option<Arc<Tree>> {
        match decode(branch, stamp, self.volume, self.page_bytes, &self.pages) {
            Ok(tree) => tree.map(Arc::new),
            Err(what) => panic!(
                "files: at {stamp}, after a commit of {:?}: {what}",
                branch.commit(stamp).and_then(|commit| self.of(commit.tag))
            ),
        }
    }

    /// Whose a commit is, and what they were doing.
    fn of(&self, tag: Option<u64>) -> Option<(Who, Option<&Ask>)> {
        let who = self.commits.get(&tag?)?;
        Some((*who, self.asks.get(who)))
    }

    /// Files that are made late may come to be with any commit of their node.
    fn note_late(&mut self, journal: &Journal) {
        for entry in journal.open.values().chain(&journal.ended) {
            if let Ask::CreateLate(place, truncates) = &entry.ask {
                self.late.insert((entry.who.node, entry.who.life, place.clone()), *truncates);
            }
        }
    }

    fn step(&mut self, branch: &Branch, journal: &Journal) {
        let stamp = self.at.next();
        let commit = branch.commit(stamp).expect("it is durable");
        let touched = commit.touched.keys().filter(|page| page.volume == self.volume);
        let touched: Vec<PageNo> = touched.map(|page| page.page).collect();
        let before = self.states.get(&self.at).cloned().flatten();
        self.at = stamp;
        let after = if touched.is_empty() {
            before.clone()
        } else {
            self.pages.extend(touched);
            self.decode(branch, stamp)
        };
        self.states.insert(stamp, after.clone());
        let (Some(before), Some(after)) = (before, after) else { return };
        if Arc::ptr_eq(&before, &after) {
            return;
        }
        let Some((who, ask)) = self.of(commit.tag) else {
            panic!("files: commit {stamp} of the tree is nobody's");
        };
        let ask = ask.cloned();
        let step = Step { stamp, who, ask, before: &before, after: &after };
        self.names_of(&step);
        self.inodes_of(&step, journal);
        self.compared += 1;
    }

    // ---- commits ----

    /// Names change as the operation says, and by files that were made late.
    fn names_of(&mut self, step: &Step<'_>) {
        let (before, after) = (names(step.before), names(step.after));
        let removed: BTreeSet<Place> = before
            .iter()
            .filter(|(at, to)| after.get(at) != Some(to))
            .map(|n| n.0.clone())
            .collect();
        let mut added: BTreeMap<Place, (InodeId, u8)> = after
            .iter()
            .filter(|(at, to)| before.get(at) != Some(to))
            .map(|(at, to)| (at.clone(), *to))
            .collect();
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
    fn inodes_of(&mut self, step: &Step<'_>, journal: &Journal) {
        let nothing = Inode {
            kind: 0,
            mode: 0,
            links: 0,
            size: 0,
            change: 0,
            ctime: 0,
            body: Body::Empty,
            xattrs: bytes::Bytes::new(),
            names: super::tree::Names::new(),
        };
        for (id, inode) in &step.before.inodes {
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
        for (id, after) in &step.after.inodes {
            let before = step.before.inodes.get(id);
            if before == Some(after) {
                continue;
            }
            let is_new = before.is_none();
            let before = before.unwrap_or(&nothing);
            if before.links > 0 && after.links == 0 {
                self.unnamed.insert(*id, (step.who.node, step.who.life));
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
        let Some(&(node, life)) = self.unnamed.get(&id) else { return };
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

    fn has_late(&self, who: Who) -> bool {
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
        let cells: BTreeSet<u64> =
            before.cells(page).into_iter().chain(after.cells(page)).collect();
        for &at in &cells {
            let (old, new) = (before.cell(at, page), after.cell(at, page));
            if old == new || freed && (new == 0 || before.kind == 0) {
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
            let ends = |w: &super::journal::Written| {
                w.to == after.size && journal.file(w.file) == journal.file(id)
            };
            assert!(
                journal.written.values().any(ends),
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
        let of_file = |written: &super::journal::Written| {
            (written.who.node, written.who.life) == life
                && journal.file(written.file) == journal.file(id)
        };
        let waits = |tag: &u64, written: &super::journal::Written| {
            written.kept.is_some() && of_file(written) && !self.committed.contains(tag)
        };
        let waiting: Vec<u64> = journal
            .written
            .iter()
            .filter(|(tag, written)| waits(tag, written))
            .map(|(tag, _)| *tag)
            .collect();
        let own = |tag: u64| journal.written.get(&tag).is_some_and(of_file);
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

    // ---- answers ----

    fn answered(&mut self, entry: &Entry, journal: &Journal) {
        self.compared += 1;
        let Some(ended) = &entry.ended else { return };
        match ended {
            Ok(answer) => {
                if matches!(entry.ask, Ask::Resize(..)) {
                    self.cut.retain(|_, who| *who != entry.who);
                }
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
            let nothing = || {
                let state = self.state(entry);
                state.is_some_and(|tree| effect(tree, &entry.ask) == Ok(Effect::default()))
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
    ) -> impl Iterator<Item = (u64, &'a super::journal::Written)> + 'a {
        let id = journal.file(id);
        let all = journal.written.iter().filter(move |(_, written)| {
            (written.who.node, written.who.life) == (who.node, who.life)
                && journal.file(written.file) == id
        });
        all.filter(|(tag, _)| !self.committed.contains(tag)).map(|(tag, written)| (*tag, written))
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
        let own = journal.written.values().any(|written| {
            (written.who.node, written.who.life) == (entry.who.node, entry.who.life)
                && journal.file(written.file) == id
        });
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
        let latest = |at: u64| {
            let waiting = self.waiting(entry.who, id, journal);
            let sure = waiting.filter(|(_, written)| {
                (written.from..written.to).contains(&at)
                    && written.kept.is_some_and(|kept| kept <= entry.order)
            });
            sure.max_by_key(|(_, written)| written.kept).map(|(tag, _)| tag)
        };
        let lost = journal.lost.contains(&(entry.who.node, entry.who.life)) || truth.links == 0;
        for (place, cell) in bytes.chunks_exact(8).enumerate() {
            let at = from + 8 * place as u64;
            let cell = u64::from_le_bytes(cell.try_into().expect("eight bytes"));
            let committed = truth.cell(at, tree.page_bytes);
            assert!(
                cell == committed || own(cell),
                "files: {what:?} read {cell:#x} at byte {at}, and it is {committed:#x}"
            );
            if let Some(tag) = latest(at)
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
        let any_own = journal.written.values().any(|written| {
            (written.who.node, written.who.life) == (entry.who.node, entry.who.life)
                && journal.file(written.file) == id
        });
        assert!(
            bytes.len() as u64 == whole || any_own,
            "files: {what:?} read {} bytes of {whole}",
            bytes.len()
        );
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
        let explained = states.any(|tree| effect(tree, &entry.ask) == Err(refusal));
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

    /// The tree as it is.
    #[must_use]
    pub fn now(&self) -> Option<&Arc<Tree>> {
        self.states.get(&self.at)?.as_ref()
    }

    /// Nothing is left of what nobody uses. Of processes that died something may be.
    pub fn at_rest(&self, anybody_died: bool) {
        let Some(tree) = self.now() else { return };
        let orphans = tree.inodes[&tree.orphans].names.values();
        let left: Vec<InodeId> =
            orphans.map(|(id, _)| *id).filter(|id| !self.cut.contains_key(id)).collect();
        assert!(
            anybody_died || left.is_empty(),
            "files: all is closed, and {left:?} are not freed"
        );
        let directories = tree.inodes.values().filter(|inode| inode.kind == DIRECTORY).count();
        assert!(directories >= 2, "files: the tree has its root");
    }

    /// Whether a commit was nobody's operation.
    #[must_use]
    pub fn is_background(who: Who) -> bool {
        who.client == BACKGROUND
    }
}
