//! What a seed draws of files.

use super::port::Choices;
use crate::agenda::MILLI;
use crate::plan::{Plan, pick};
use crate::planted::by::By;
use crate::planted::{Planted, planted};
use larder::fs::{FsFault, FsFaults, FsOptions};
use larder_core::rng::Rng;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One operation of a file client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are named for what they do")]
pub enum Action {
    Create,
    CreateLate,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Resize,
    Mode,
    Xattr,
    Open,
    Write,
    Punch,
    Flush,
    Close,
    Lock,
    Lookup,
    Look,
    List,
    Read,
    LookXattr,
}

const ACTIONS: [Action; 22] = [
    Action::Create,
    Action::CreateLate,
    Action::Mkdir,
    Action::Symlink,
    Action::Link,
    Action::Unlink,
    Action::Rmdir,
    Action::Rename,
    Action::Resize,
    Action::Mode,
    Action::Xattr,
    Action::Open,
    Action::Write,
    Action::Punch,
    Action::Flush,
    Action::Close,
    Action::Lock,
    Action::Lookup,
    Action::Look,
    Action::List,
    Action::Read,
    Action::LookXattr,
];

/// See the module's documentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilesPlan {
    /// Of what the clients draw.
    pub seed: u64,
    /// Planted faults of the file layer.
    #[serde(default, with = "crate::recording::file_fault_names")]
    pub faults: FsFaults,
    /// Clients of each process.
    pub clients: u16,
    /// Processes that have any: the first nodes.
    pub nodes: u16,
    /// Weights of what they do.
    pub actions: Vec<(Action, u64)>,
    /// Longest pause between two operations of a client, in nanoseconds.
    pub think: u64,
    /// Pages from the beginning of a file to where they write at most.
    #[serde(default = "far")]
    pub far: u64,
    /// Names that they give.
    pub names: Vec<String>,
    /// The key of the hash of names.
    pub key: [u8; 16],
    /// Commits are late where they may be.
    pub late: bool,
    /// What was written is committed when it is so old.
    pub write_back_age: Duration,
    /// Bytes that may wait, of a file and of all.
    pub dirty_bytes: (usize, usize),
    /// See [`FsOptions`].
    pub orphan_age: Duration,
    /// See [`FsOptions`].
    pub dropped_age: Duration,
    /// See [`FsOptions`].
    pub lock_lease: Duration,
    /// See [`Choices`].
    pub choices: Choices,
    /// After how many commits the whole tree is judged, if not as always.
    #[serde(default)]
    pub whole_every: Option<u64>,
}

/// Commits that a lock's lease, or the age of an orphan, lasts at least.
const COMMITS_OF_AN_AGE: u64 = 20;

/// Pages beyond what one transaction frees.
fn far() -> u64 {
    300
}

impl FilesPlan {
    /// Draws it, for a store that takes so long. The names collide in their directories' pages now and then: some are alike but for
    /// their ends, and long enough to fill a page with few.
    #[must_use]
    pub fn draw(seed: u64, store_nanos: u64) -> Self {
        let rng = &mut Rng::new(seed ^ 0xf11e_5eed);
        // What is renewed by commits must be many times as long as a commit takes, as an operator sees to it:
        // else renewals are always under way, and who writes to the same objects loses to them each time.
        let commits = Duration::from_nanos(COMMITS_OF_AN_AGE * store_nanos);
        let age =
            |rng: &mut Rng, seconds: &[u64]| Duration::from_secs(pick(rng, seconds)).max(commits);
        let mut actions = Vec::new();
        let share = pick(rng, &[1, 3, 3, 4]);
        for action in ACTIONS {
            if rng.chance(share, 4) {
                actions.push((action, pick(rng, &[1, 3, 8, 40])));
            }
        }
        actions.extend([(Action::Create, 4), (Action::Open, 2), (Action::Write, 2)]);
        let length = pick(rng, &[0, 0, 60, 200]);
        let count = pick(rng, &[3, 6, 12, 40]);
        let names = (0..count).map(|number| {
            let mut name = format!("n{number}");
            name.extend(std::iter::repeat_n('x', length));
            name
        });
        let names = names.collect();
        let late = rng.chance(1, 2);
        Self {
            seed: rng.next_u64(),
            faults: FsFaults::NONE,
            clients: pick(rng, &[1, 2, 2, 3]),
            nodes: pick(rng, &[1, 2, 2, 3]),
            actions,
            think: pick(rng, &[MILLI, 20 * MILLI, 200 * MILLI]),
            names,
            far: far(),
            key: rng.next_u128().to_le_bytes(),
            late,
            write_back_age: Duration::from_millis(pick(rng, &[400, 2_000, 5_000])),
            dirty_bytes: pick(rng, &[(600, 1_000), (8_000, 12_000), (1 << 20, 4 << 20)]),
            orphan_age: age(rng, &[4, 30, 3_600]),
            dropped_age: Duration::from_secs(pick(rng, &[2, 300])),
            lock_lease: age(rng, &[2, 30]),
            choices: Choices {
                leased: rng.chance(1, 2),
                ample: late,
                time_limit: Duration::from_millis(pick(rng, &[300, 3_000, 30_000])),
                refresh_limit: Duration::from_millis(pick(rng, &[100, 1_000])),
            },
            whole_every: None,
        }
    }

    /// For the file layer.
    #[must_use]
    pub fn options(&self) -> FsOptions {
        FsOptions {
            dirty_bytes_max: self.dirty_bytes.0,
            dirty_total_max: self.dirty_bytes.1,
            write_limit: self.choices.time_limit,
            orphan_age: self.orphan_age,
            dropped_age: self.dropped_age,
            lock_lease: self.lock_lease,
            faults: self.faults,
            ..FsOptions::default()
        }
    }
}

/// A fifth of all seeds have clients of files: few, beside those of objects.
#[must_use]
pub fn draw(seed: u64, store_nanos: u64) -> Option<FilesPlan> {
    let rng = &mut Rng::new(seed ^ 0x00f1_1e50);
    rng.chance(1, 5).then(|| {
        let mut plan = FilesPlan::draw(seed, store_nanos);
        plan.clients = plan.clients.min(2);
        plan.nodes = plan.nodes.min(2);
        plan.think = plan.think.max(20 * MILLI);
        // Files of hundreds of pages would be in the way of all others for minutes.
        plan.far = pick(rng, &[2, 16, 40]);
        plan
    })
}

/// A plan whose world is about files: with a planted fault of theirs, or none.
pub fn aim(plan: &mut Plan, fault: Option<FsFault>) {
    let mut files = FilesPlan::draw(plan.seed, plan.store_nanos);
    files.faults = fault.map_or(FsFaults::NONE, FsFaults::only);
    if plan.limits.requests_max < 4 {
        // Who reads holes of hundreds of pages one by one, over a slow line, is in the way of all others for minutes.
        files.far = files.far.min(40);
    }
    plan.give_files(Some(files));
    plan.replays = true;
    // Clients of objects are in the way of nobody, and of the machines' other seeds.
    plan.clients = 1;
    plan.mix.think = plan.mix.think.max(100 * MILLI);
}

/// Planted faults of the file layer.
pub const FAULTS: &[Planted<FsFault>] = &[
    planted(FsFault::RenameKeepsName, "rename-keeps-name", TREE),
    planted(FsFault::RenameLeavesLink, "rename-leaves-link", TREE),
    planted(FsFault::UnlinkKeepsLink, "unlink-keeps-link", TREE),
    planted(FsFault::RemoveFullDirectory, "remove-full-directory", TREE),
    planted(FsFault::ForgetParent, "forget-parent", TREE),
    planted(FsFault::MoveIntoItself, "move-into-itself", TREE),
    planted(FsFault::LinkUncounted, "link-uncounted", TREE),
    planted(FsFault::FreeOpenFile, "free-open-file", &[By::Open]),
    planted(FsFault::FreeHeldOrphan, "free-held-orphan", &[By::Open]),
    planted(FsFault::LeavePages, "leave-pages", TREE),
    planted(FsFault::SplitLosesName, "split-loses-name", TREE),
    planted(FsFault::ListFirstBucket, "list-first-bucket", &[By::Answers]),
    planted(FsFault::CutLeavesBytes, "cut-leaves-bytes", BYTES),
    planted(FsFault::HoleKeepsBytes, "hole-keeps-bytes", BYTES),
    planted(FsFault::ResizeLosesXattrs, "resize-loses-xattrs", &[By::Step, By::Tree]),
    planted(FsFault::ForgetUncommitted, "forget-uncommitted", &[By::Sync]),
    planted(FsFault::CommitLastPiece, "commit-last-piece", BYTES),
    planted(FsFault::SyncLate, "sync-late", &[By::Sync]),
    planted(FsFault::LockBesideAnother, "lock-beside-another", &[By::Locks]),
];

/// Names and link counts are told by the tree, or by the step that made them so.
const TREE: &[By] = &[By::Tree, By::Step];
/// Bytes by the commit, or by who reads them.
const BYTES: &[By] = &[By::Bytes, By::Answers, By::Step];
