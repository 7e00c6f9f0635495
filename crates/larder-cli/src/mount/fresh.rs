//! How new what a mount shows is: `follow`, `close-to-open` or `strict`
//! (`docs/decisions/0008-consistency-at-a-mount.md`).
//!
//! The latest state is asked for before an operation that promises it, and only then is anything
//! read. What the kernel was told before may be older: at an open under close-to-open the way by
//! which the kernel came to the inode is walked once more, and its attributes are taken back.

use super::Shared;
use super::adapter::Answer;
use super::known::{KnownName, ROOT, TakeBack};
use fuser::{Errno, INodeNo, Notifier};
use larder::fs::{Attr, FsError, InodeId, TxStore};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Directories on the ways from the root at most: more are a loop.
const WAY_MAX: usize = 4096;
/// How long a name that the kernel was told is looked at once more at an open, though the kernel
/// itself may believe it for less: it is about to open what it leads to.
const OPENING: Duration = Duration::from_secs(10);

/// What a mount promises of what it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Consistency {
    /// The state within one delay of the stream, its age bounded by the link's lease
    #[default]
    Follow,
    /// The latest state at every open
    CloseToOpen,
    /// The latest state at every operation, and every write committed before it is acknowledged
    Strict,
}

/// Whether the latest state could be had lately: said once when that changes.
#[derive(Default)]
pub(super) struct Told(AtomicBool);

impl<S: TxStore> Shared<S> {
    fn consistency(&self) -> Consistency {
        self.options.consistency
    }

    pub(super) fn is_strict(&self) -> bool {
        self.consistency() == Consistency::Strict
    }

    /// Whether what is made and closed is committed later: nobody was promised to see it at once.
    pub(super) fn commits_late(&self) -> bool {
        let follows = self.consistency() == Consistency::Follow;
        follows && !self.options.wait_commits && !self.options.read_only
    }

    fn is_close_to_open(&self) -> bool {
        self.consistency() == Consistency::CloseToOpen
    }

    /// Before any operation.
    pub(super) async fn latest_for_operation(&self) -> Answer<()> {
        if self.is_strict() { self.latest().await } else { Ok(()) }
    }

    /// Has what is read from here on be the latest, or refuses, as the mount was told.
    async fn latest(&self) -> Answer<()> {
        let told = &self.told.0;
        match self.fs.store().refresh().await {
            Ok(()) => {
                if told.load(Ordering::Relaxed) && told.swap(false, Ordering::Relaxed) {
                    tracing::info!("the latest state can be had again");
                }
                Ok(())
            }
            Err(error) => {
                let first = !told.swap(true, Ordering::Relaxed);
                if self.options.refuse_stale {
                    if first {
                        tracing::warn!(%error, "the latest state cannot be had: operations that \
                            need it are refused (EHOSTDOWN) until it can");
                    }
                    return Err(Errno::EHOSTDOWN);
                }
                if first {
                    tracing::warn!(%error, "the latest state cannot be had: what is cached is \
                        served until it can");
                }
                Ok(())
            }
        }
    }

    /// Whether to look once more, at the latest state, for a name that was not found: that it is
    /// not there ends an open as what it leads to begins one.
    pub(super) async fn latest_for_absence(&self) -> Answer<bool> {
        if !self.is_close_to_open() {
            return Ok(false);
        }
        self.latest().await?;
        Ok(true)
    }

    /// Before a change of an inode is answered after which the kernel asks anew who may use it: takes
    /// back what it was told. Were that done when the change is heard of, it would come beside what
    /// the kernel asks then; the kernel would drop the answer, and decide by what it knew before.
    pub(super) async fn take_back_before(&self, number: INodeNo, now: &Attr) {
        let offset = match self.known().take_back_now(number.0, &now.inode) {
            TakeBack::Nothing => return,
            TakeBack::Attributes => -1,
            TakeBack::All => 0,
        };
        let Some(notifier) = self.notifier.get().cloned() else { return };
        // The kernel may make this wait for a read.
        let told = tokio::task::spawn_blocking(move || notifier.inval_inode(number, offset, 0));
        if let Ok(Err(error)) = told.await {
            tracing::debug!(%error, "attributes are not taken back");
        }
        // Somebody may have found before that something is to be taken back, and says so now.
        loop {
            let taken = self.taken_back.notified();
            if self.known().is_taken(number.0) {
                break;
            }
            taken.await;
        }
    }

    /// How long the kernel may believe in a name's absence.
    pub(super) fn absence_time_to_live(&self, ttl: Duration) -> Duration {
        if self.is_close_to_open() { Duration::ZERO } else { ttl }
    }

    /// How long names that are told are remembered at least.
    pub(super) fn names_kept(&self) -> Duration {
        if self.is_close_to_open() { OPENING } else { Duration::ZERO }
    }

    /// Whether the kernel may keep listings: where an open promises the latest state, it lists anew.
    pub(super) fn keeps_listings(&self) -> bool {
        self.consistency() == Consistency::Follow
    }

    /// Before an open. `ESTALE` lets the kernel walk the way to the file once more, with a lookup
    /// of every name.
    pub(super) async fn latest_for_open(&self, number: INodeNo) -> Answer<()> {
        if !self.is_close_to_open() {
            return Ok(());
        }
        self.latest().await?;
        self.same_way(number).await
    }

    /// Walks up the names by which the kernel may have come to an inode. Where one leads elsewhere
    /// now, those that lead there are walked as well, since the kernel is about to come there: the
    /// second `ESTALE` would be its user's.
    async fn same_way(&self, number: INodeNo) -> Answer<()> {
        let (mut ahead, mut seen) = (vec![number.0], BTreeSet::new());
        let (mut same, mut taken_back) = (true, Vec::new());
        while let Some(at) = ahead.pop() {
            if at == ROOT || !seen.insert(at) {
                continue;
            }
            if seen.len() > WAY_MAX {
                return Err(Errno::ELOOP);
            }
            // A name that was not told, or long ago, was looked up just now if it was used.
            let names = self.known().names_of(at);
            for name in names {
                let leads = self.leads_now(&name).await?;
                if leads == name.id {
                    ahead.push(name.parent);
                    continue;
                }
                same = false;
                self.known().lose_name(&name);
                if let Some(notifier) = self.notifier.get().cloned() {
                    let lost = name.clone();
                    let takes = move || take_back_name(&lost, &notifier);
                    taken_back.push(tokio::task::spawn_blocking(takes));
                }
                ahead.extend(leads.map(|id| self.known().number(id)));
            }
        }
        for taken in taken_back {
            // Who opens it next is not to come by a name that is known to be lost.
            let _or_not = taken.await;
        }
        if same { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// What a name leads to in the state that is read now.
    pub(super) async fn leads_now(&self, name: &KnownName) -> Answer<Option<InodeId>> {
        let Some(parent) = self.known().id(name.parent) else { return Ok(None) };
        match self.fs.lookup(parent, &name.name).await {
            Ok(found) => Ok(found.attr.map(|attr| attr.id)),
            Err(FsError::NotFound | FsError::NotDirectory) => Ok(None),
            Err(error) => super::adapter::failed(Err(error)),
        }
    }

    /// An inode is about to be open whose attributes the kernel may have been told before: it asks
    /// for them anew. Does not wait for anything.
    pub(super) fn forget_attributes(&self, number: INodeNo) {
        if self.is_close_to_open()
            && let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(number, -1, 0)
        {
            tracing::debug!(%error, "attributes are not taken back");
        }
    }
}

/// The kernel believes in a name that is not true any more. It may make this wait for an operation in
/// the same directory.
pub(super) fn take_back_name(name: &KnownName, notifier: &Notifier) {
    if let Err(error) = notifier.inval_entry(INodeNo(name.parent), OsStr::from_bytes(&name.name)) {
        tracing::debug!(%error, "a name is not taken back");
    }
}
