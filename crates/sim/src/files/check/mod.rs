//! What file clients asked for and were answered, against the trees that the log holds: every commit
//! is to do what somebody asked for and nothing else, every answer is to be of a state that was.

mod answers;
mod commits;

use super::FilesPlan;
use super::journal::{Ask, BACKGROUND, Journal, Place, Who};
use super::living::Living;
use super::tree::{DIRECTORY, Tree};
use super::whole;
use crate::check::history::{Branch, Logged};
use crate::check::oracle::Oracle;
use crate::client::VolumePlan;
use larder::fs::{FsError, InodeId};
use larder_core::id::{DomainId, PageNo, Stamp, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// States that are kept for answers to come at most; who looks further back is not looked at.
const STATES_MAX: usize = 4_096;
/// Commits of the tree after which all of it is judged, and compared with what was judged of each.
const WHOLE_EVERY: u64 = 64;

/// Whose operation took a file's last name, and whether it was told so.
#[derive(Debug)]
struct Removed {
    by: Who,
    told: bool,
}

impl Removed {
    fn process(&self) -> (u16, u32) {
        (self.by.node, self.by.life)
    }
}

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
    /// The tree at `at`.
    living: Living,
    /// After how many commits the whole tree is judged, and how many there were.
    whole_every: u64,
    steps: u64,
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
    unnamed: BTreeMap<InodeId, Removed>,
    /// When each inode last changed.
    changed: BTreeMap<InodeId, u64>,
    /// What was cut off large files by commits of which nobody heard, and files without a name that were
    /// changed since a removal of which nobody heard: they go in time.
    cut: BTreeMap<InodeId, Who>,
    /// Files without a name that were freed, and are there again because the origin was restored to
    /// before that: who freed them may have closed long ago, and only their age frees them again.
    brought_back: BTreeSet<InodeId>,
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
    /// Inodes that are not as before.
    changed: &'a BTreeSet<InodeId>,
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
            brought_back: BTreeSet::new(),
            branch: 0,
            at: Stamp::ZERO,
            pages: BTreeSet::new(),
            living: Living::new(volume.spec.id, u64::from(volume.spec.page_bytes)),
            whole_every: plan.whole_every.unwrap_or(WHOLE_EVERY),
            steps: 0,
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
        let left = self.now().map(|tree| tree.nameless()).unwrap_or_default();
        self.branch = number;
        self.at = branch.durable();
        self.pages = Living::volume_pages(branch, self.volume);
        let begun = self.living.begin(branch, self.at, self.pages.clone());
        self.judged(branch, begun);
        self.judge_whole(branch);
        self.states = BTreeMap::from([(self.at, self.living.tree().map(Arc::new))]);
        let again = self.now().map(|tree| tree.nameless()).unwrap_or_default();
        self.brought_back = again
            .into_iter()
            .filter(|id| self.brought_back.contains(id) || !left.contains(id))
            .collect();
        self.past.clear();
        self.done.clear();
        self.perhaps.clear();
        self.unnamed.clear();
    }

    fn judged(&self, branch: &Branch, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            let commit = branch.commit(self.at);
            let who = commit.and_then(|commit| self.of(commit.tag));
            panic!("files: at {}, after a commit of {who:?}: {what}", self.at);
        }
    }

    /// Judges the whole tree, and that what is known of it by its changes is the same.
    fn judge_whole(&self, branch: &Branch) {
        let whole = whole::judge(branch, self.at, self.volume, self.page_bytes, &self.pages);
        match whole {
            Ok(tree) => assert!(
                tree == self.living.tree(),
                "files: at {} the tree is not what its changes made of it: {tree:?}",
                self.at
            ),
            Err(what) => self.judged(branch, Err(what)),
        }
    }

    /// Judges what a commit changed, and the whole now and then; gives the inodes that may be others.
    fn judge(&mut self, branch: &Branch, commit: &Logged) -> BTreeSet<InodeId> {
        self.steps += 1;
        let verdict = self.living.go_on(branch, self.at, commit);
        if self.whole_every == 1 {
            let whole = whole::judge(branch, self.at, self.volume, self.page_bytes, &self.pages);
            assert!(
                whole.is_ok() == verdict.is_ok(),
                "files: two verdicts at {}: of the commit {verdict:?}, of the whole {:?}",
                self.at,
                whole.map(drop)
            );
        }
        let changed = match verdict {
            Ok(changed) => changed,
            Err(what) => {
                self.judged(branch, Err(what));
                BTreeSet::new()
            }
        };
        if self.steps.is_multiple_of(self.whole_every) {
            self.judge_whole(branch);
        }
        changed
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
        let (mut changed, mut after) = (BTreeSet::new(), before.clone());
        if !touched.is_empty() {
            self.pages.extend(touched);
            changed = self.judge(branch, commit);
            after = self.living.tree().map(Arc::new);
        }
        self.states.insert(stamp, after.clone());
        let (Some(before), Some(after)) = (before, after) else { return };
        if Arc::ptr_eq(&before, &after) {
            return;
        }
        let Some((who, ask)) = self.of(commit.tag) else {
            panic!("files: commit {stamp} of the tree is nobody's");
        };
        // A file that was made late may have turned out to be the one that another site gave its name.
        let ask = ask.cloned().map(|ask| match ask {
            Ask::Link(of, at) if !before.inodes.contains_key(&of) => {
                Ask::Link(journal.file(of), at)
            }
            other => other,
        });
        let step = Step { stamp, who, ask, before: &before, after: &after, changed: &changed };
        self.names_of(&step);
        self.inodes_of(&step, journal);
        self.compared += 1;
    }

    /// The tree as it is.
    #[must_use]
    pub fn now(&self) -> Option<&Arc<Tree>> {
        self.states.get(&self.at)?.as_ref()
    }

    /// Nothing is left of what nobody uses. Of processes that died something may be.
    pub fn at_rest(&self, oracle: &Oracle, anybody_died: bool) {
        let branch = oracle.truth(self.domain).current();
        if !branch.is_silent() && branch.deleted(self.volume).is_none() {
            self.judge_whole(branch);
        }
        let Some(tree) = self.now() else { return };
        let goes_in_time =
            |id: &InodeId| self.cut.contains_key(id) || self.brought_back.contains(id);
        let left: Vec<InodeId> =
            tree.nameless().into_iter().filter(|id| !goes_in_time(id)).collect();
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
