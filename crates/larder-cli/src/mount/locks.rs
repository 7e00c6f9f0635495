//! Locks that the kernel asks for: `fcntl` and, as locks of the whole file, `flock`
//! (`docs/decisions/0009-locks.md`).
//!
//! Somebody who waits for a lock tries again when a change of locks comes on the stream, and every
//! second beside that. The library that speaks to the kernel passes no interruption on, so it is
//! looked here whether a signal waits for whoever waits.

use super::adapter::{Answer, failed};
use super::holders::{File, Watch};
use super::known::TakeBack;
use super::silent::SILENT;
use super::{Open, Shared};
use fuser::{Errno, FileHandle, INodeNo};
use larder::core::commit::Target;
use larder::core::id::PageNo;
use larder::fs::{Holder, InodeId, Lock, LockAsk, LockKind, TxStore};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// `F_RDLCK`, `F_WRLCK` and `F_UNLCK` of `fcntl`.
pub(super) const READ: i32 = 0;
const WRITE: i32 = 1;
pub(super) const UNLOCK: i32 = 2;
/// The last byte that a file may have: a range up to it has no end.
const END: u64 = i64::MAX as u64;
/// Who waits looks for a signal so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// And tries again so often, whatever is heard.
const TRY_EVERY: Duration = Duration::from_secs(1);
/// Files whose waiters take turns apart from each other, as far as their numbers differ.
const TURNS: usize = 64;
/// Names beside a locked file that are looked at when the lock is taken.
const BESIDE_MAX: usize = 256;
/// Waiting at once at most; further ones are told that there are no locks left.
const WAITING_MAX: usize = 1024;

/// What the kernel asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) number: INodeNo,
    pub(super) handle: FileHandle,
    pub(super) owner: u64,
    pub(super) range: (u64, u64),
    pub(super) kind: i32,
    pub(super) pid: u32,
    /// The thread that asks; 0: it is not to be seen from here.
    pub(super) thread: u32,
    pub(super) waits: bool,
}

/// Whether somebody waits for an answer still: decided once, by who gives it or by who leaves.
#[derive(Default)]
pub(super) struct Awaited(AtomicU8);

const OPEN: u8 = 0;
const TAKEN: u8 = 1;
const LEFT: u8 = 2;

impl Awaited {
    /// The lock is there: whether it will be heard of.
    fn take(&self) -> bool {
        self.0.compare_exchange(OPEN, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Nobody waits any more; false: the lock is there, and the answer comes.
    pub(super) fn leave(&self) -> bool {
        self.0.compare_exchange(OPEN, LEFT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// How somebody who locks was noted.
enum Noted {
    /// By the handle through which he does.
    Handle,
    /// By what holds his locks.
    Watch(Arc<Watch>),
}

/// What was found to be in the way of those who wait for a lock of a file.
#[derive(Clone, Copy)]
struct Refusal {
    lock: Lock,
    /// How often locks had changed by then.
    changes: u64,
    at: Instant,
}

/// Those who wait for locks of files: one of a file asks at a time, and what it is told is told to
/// the others, so that a hundred of them do not put a hundred round trips before a release.
type Turns = [tokio::sync::Mutex<HashMap<InodeId, Refusal>>; TURNS];

/// Who locks through which handle, and who waits for whom.
pub(super) struct Lockers {
    handles: Mutex<HashMap<u64, Vec<(InodeId, u64)>>>,
    waiting: Mutex<HashMap<u64, Holder>>,
    changed: Notify,
    changes: AtomicU64,
    turns: Turns,
    places: Arc<Semaphore>,
}

impl Default for Lockers {
    fn default() -> Self {
        Self {
            handles: Mutex::default(),
            waiting: Mutex::default(),
            changed: Notify::new(),
            changes: AtomicU64::new(0),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            places: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }
}

fn guard<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("holders of this lock do not panic")
}

impl Lockers {
    /// Notes that `owner` waits for `holder`; false: that would be for ever, since `holder` waits,
    /// through others of this node, for `owner`.
    fn wait(&self, owner: u64, holder: Holder) -> bool {
        let mut waiting = guard(&self.waiting);
        waiting.insert(owner, holder);
        let mut at = holder.owner;
        for _ in 0..waiting.len() {
            if at == owner {
                waiting.remove(&owner);
                return false;
            }
            match waiting.get(&at) {
                Some(next) if next.node == holder.node => at = next.owner,
                _ => break,
            }
        }
        true
    }

    fn waits_no_longer(&self, owner: u64) {
        guard(&self.waiting).remove(&owner);
    }
}

/// Whether a thread has a signal to take that it neither blocks nor ignores, or is gone.
fn is_interrupted(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    match fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_signal(&status),
        Err(_) => true,
    }
}

fn has_signal(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

/// The process of a thread; the thread's own number where that cannot be told.
pub(super) fn process_of_thread(thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(thread)
}

impl<S: TxStore> Shared<S> {
    /// On whose behalf a thread asks: looked up only while it matters, when locks are held here or
    /// were lost.
    pub(super) fn process_of(&self, thread: u32) -> u32 {
        if self.fs.has_locks() { process_of_thread(thread) } else { thread }
    }

    /// Answers `F_SETLK`, `F_SETLKW` and `flock`. A lock that comes when nobody waits for it any
    /// more is given back.
    pub(super) async fn set_lock(&self, ask: Ask, awaited: &Awaited) -> Answer<()> {
        let id = self.id(ask.number)?;
        let kind = match ask.kind {
            READ => LockKind::Read,
            WRITE => LockKind::Write,
            UNLOCK => {
                let (start, end) = ask.range;
                let released = failed(self.fs.unlock(id, ask.owner, start, end).await);
                self.forget_locker(id, ask.owner);
                self.try_locks_again();
                return released;
            }
            _ => return Err(Errno::EINVAL),
        };
        // Others may be let in by it, to what was closed before.
        self.after_closes().await;
        // A file that was made here and not everywhere yet may turn out to be another's.
        let id = failed(self.fs.come_true(id).await)?;
        let wanted = ask.wanted(kind);
        let _place = match ask.waits {
            true => Some(self.lockers.places.try_acquire().map_err(|_| Errno::ENOLCK)?),
            false => None,
        };
        // Before it is held: a close that comes meanwhile releases what is noted.
        let noted = self.note_locker(&ask, id).await?;
        let taken = self.take_lock(&ask, (id, wanted), (awaited, &noted)).await;
        if taken.is_err() {
            self.forget_locker(id, ask.owner);
        }
        taken
    }

    async fn take_lock(
        &self,
        ask: &Ask,
        (id, wanted): (InodeId, LockAsk),
        (awaited, noted): (&Awaited, &Noted),
    ) -> Answer<()> {
        loop {
            let released = self.holders.released();
            let changed = self.lockers.changed.notified();
            let Some(other) = self.try_lock(ask, (id, &wanted), (awaited, noted)).await? else {
                return Ok(());
            };
            if self.fs.is_own_lock(&other) {
                self.release_gone().await;
                if self.holders.released() != released {
                    continue;
                }
            }
            if !ask.waits {
                return Err(Errno::EAGAIN);
            }
            if !self.lockers.wait(ask.owner, other.holder) {
                return Err(Errno::EDEADLK);
            }
            let waited = self.wait_for_change(changed, ask.thread).await;
            self.lockers.waits_no_longer(ask.owner);
            waited?;
        }
    }

    /// Tries once; gives what is in the way.
    async fn try_lock(
        &self,
        ask: &Ask,
        (id, wanted): (InodeId, &LockAsk),
        (awaited, noted): (&Awaited, &Noted),
    ) -> Answer<Option<Lock>> {
        let mut turn = None;
        if ask.waits {
            let place = (id.page.0 ^ u64::from(id.slot.0 >> 1)) % TURNS as u64;
            let mut next = std::pin::pin!(self.lockers.turns[place as usize].lock());
            while turn.is_none() {
                self.may_wait(ask.thread)?;
                turn = tokio::time::timeout(LOOK_EVERY, next.as_mut()).await.ok();
            }
        }
        let changes = self.lockers.changes.load(Ordering::SeqCst);
        let refused = turn.as_ref().and_then(|refusals| refusals.get(&id)).filter(|refusal| {
            refusal.changes == changes
                && refusal.at.elapsed() < TRY_EVERY
                && self.fs.is_in_the_way(&refusal.lock, wanted)
        });
        if let Some(refusal) = refused {
            return Ok(Some(refusal.lock));
        }
        let mut seen = Ok(());
        let given = {
            let seen = &mut seen;
            || async move {
                // Once more: another ask of this owner that ended in between took the note away.
                *seen = match self.see_latest(ask.number, id).await {
                    Ok(()) => self.note_again(ask, id, noted),
                    other => other,
                };
                seen.is_ok() && awaited.take()
            }
        };
        let other = failed(self.fs.lock_if_wanted(id, wanted, given).await)?;
        if let Err(error) = seen {
            // It was given back.
            self.try_locks_again();
            return Err(error);
        }
        if let Some(refusals) = &mut turn {
            match other {
                // This node's own are told without a question anyway.
                Some(lock) if !self.fs.is_own_lock(&lock) => {
                    refusals.insert(id, Refusal { lock, changes, at: Instant::now() });
                }
                _ => drop(refusals.remove(&id)),
            }
            refusals.retain(|_, refusal| refusal.at.elapsed() < TRY_EVERY);
        }
        Ok(other)
    }

    /// Who waits does so until a signal comes, or the mount ends.
    fn may_wait(&self, thread: u32) -> Answer<()> {
        self.may_change()?;
        if is_interrupted(thread) || self.options.standing.now().is_err() {
            return Err(Errno::EINTR);
        }
        Ok(())
    }

    async fn wait_for_change(&self, changed: impl Future<Output = ()>, thread: u32) -> Answer<()> {
        let again = Instant::now() + TRY_EVERY;
        let mut changed = std::pin::pin!(changed);
        while Instant::now() < again {
            self.may_wait(thread)?;
            if tokio::time::timeout(LOOK_EVERY, changed.as_mut()).await.is_ok() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Answers `F_GETLK`: what is in the way.
    pub(super) async fn lock_in_the_way(&self, ask: Ask) -> Answer<Option<(Lock, i32)>> {
        let kind = if ask.kind == WRITE { LockKind::Write } else { LockKind::Read };
        let wanted = ask.wanted(kind);
        let id = failed(self.fs.come_true(self.id(ask.number)?).await)?;
        let mut found = failed(self.fs.lock_in_the_way(id, &wanted).await)?;
        if found.is_some_and(|lock| self.fs.is_own_lock(&lock)) {
            self.release_gone().await;
            found = failed(self.fs.lock_in_the_way(id, &wanted).await)?;
        }
        let kind = |lock: &Lock| if lock.kind == LockKind::Write { WRITE } else { READ };
        Ok(found.map(|lock| (lock, kind(&lock))))
    }

    /// Notes who locks, so that his locks go when what holds them does.
    async fn note_locker(&self, ask: &Ask, id: InodeId) -> Answer<Noted> {
        if ask.handle != SILENT {
            self.note_handle(ask, id)?;
            return Ok(Noted::Handle);
        }
        let device = *self.device.get().ok_or(Errno::ENOLCK)?;
        let numbers = (ask.number.0, self.known().number(id));
        let file = self.file_to_lock(ask.number, id).await?;
        let watched = (File { device, numbers }, file);
        self.watch_holder((id, ask.owner), ask.thread, watched).await.map(Noted::Watch)
    }

    /// The same once more, when the note may have been taken away.
    fn note_again(&self, ask: &Ask, id: InodeId, noted: &Noted) -> Answer<()> {
        match noted {
            Noted::Handle => self.note_handle(ask, id),
            Noted::Watch(watch) => self.holders.keep((id, ask.owner), watch),
        }
    }

    /// Notes who locks through a handle, if that is there.
    fn note_handle(&self, ask: &Ask, id: InodeId) -> Answer<()> {
        let mut handles = guard(&self.lockers.handles);
        if !self.handles().contains_key(&ask.handle.0) {
            return Err(Errno::EBADF);
        }
        let lockers = handles.entry(ask.handle.0).or_default();
        if !lockers.contains(&(id, ask.owner)) {
            lockers.push((id, ask.owner));
        }
        Ok(())
    }

    /// An owner that holds nothing of a file any more is a locker of it no longer: the kernel may
    /// give its number to another.
    fn forget_locker(&self, id: InodeId, owner: u64) {
        let mut handles = guard(&self.lockers.handles);
        if self.fs.holds_lock(id, owner) {
            return;
        }
        self.holders.forget((id, owner));
        handles.retain(|_, lockers| {
            lockers.retain(|locker| *locker != (id, owner));
            !lockers.is_empty()
        });
    }

    /// The kernel drops what it keeps of a file that was just locked, if that is of another state,
    /// and what it believes of names beside it: a lock that is held shows all that was done under
    /// the last one, journals made and removed there included.
    async fn see_latest(&self, number: INodeNo, id: InodeId) -> Answer<()> {
        let now = failed(self.fs.getattr(id).await)?.inode;
        let offset = match self.known().take_back_now(number.0, &now) {
            TakeBack::Nothing => None,
            TakeBack::Attributes => Some(-1),
            TakeBack::All => Some(0),
        };
        let mut untrue = Vec::new();
        let beside = self.known().beside(number.0, BESIDE_MAX);
        for name in beside {
            if self.leads_now(&name).await? != name.id {
                untrue.push(name);
            }
        }
        if offset.is_none() && untrue.is_empty() {
            return Ok(());
        }
        let Some(notifier) = self.notifier.get().cloned() else { return Ok(()) };
        // The kernel may make this wait for a read, or for an operation in the directory.
        let told = tokio::task::spawn_blocking(move || {
            let inode = offset.map(|offset| notifier.inval_inode(number, offset, 0));
            let names = untrue.iter().map(|known| {
                notifier.inval_entry(INodeNo(known.parent), OsStr::from_bytes(&known.name))
            });
            inode.into_iter().chain(names).find(|told| {
                // The kernel keeps nothing of it.
                told.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::NotFound)
            })
        });
        match told.await {
            Ok(None) => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    /// A process closes a file: its `fcntl` locks on it go, through whatever handle they came.
    pub(super) async fn closed_by(&self, handle: FileHandle, owner: u64) -> Answer<()> {
        let Some(Open::File(file)) = self.handles().get(&handle.0).cloned() else { return Ok(()) };
        let id = file.id();
        for lockers in guard(&self.lockers.handles).values_mut() {
            lockers.retain(|locker| *locker != (id, owner));
        }
        let released = failed(self.fs.unlock(id, owner, 0, u64::MAX).await);
        self.try_locks_again();
        released
    }

    /// Whether a close has a lock to release.
    pub(super) fn is_locked_by(&self, handle: FileHandle, owner: u64) -> bool {
        match self.handles().get(&handle.0) {
            Some(Open::File(file)) => self.fs.holds_lock(file.id(), owner),
            _ => false,
        }
    }

    /// A handle is gone: what was locked through it and is held still goes.
    pub(super) async fn handle_gone(&self, handle: FileHandle) {
        let lockers = {
            let mut handles = guard(&self.lockers.handles);
            let mut lockers = handles.remove(&handle.0).unwrap_or_default();
            // The kernel lets a handle go later than its process closed it: what that locked through
            // another one since is not this one's.
            lockers.retain(|locker| !handles.values().any(|others| others.contains(locker)));
            lockers
        };
        if !lockers.is_empty() {
            self.after_closes().await;
        }
        for (id, owner) in lockers {
            if let Err(error) = self.fs.unlock(id, owner, 0, u64::MAX).await {
                tracing::debug!(inode = %id, %error, "a lock is released later");
            }
            self.try_locks_again();
        }
    }

    /// Changes came: those who wait for a lock try again if some may be of locks.
    pub(super) fn locks_may_have_changed(&self, changes: &[(PageNo, Target)]) {
        if self.fs.has_locks_in(changes.iter().map(|(page, _)| *page)) {
            self.try_locks_again();
        }
    }

    pub(super) fn try_locks_again(&self) {
        self.lockers.changes.fetch_add(1, Ordering::SeqCst);
        self.lockers.changed.notify_waiters();
    }
}

impl Ask {
    fn wanted(&self, kind: LockKind) -> LockAsk {
        let (start, end) = self.range;
        LockAsk { owner: self.owner, pid: self.pid, kind, start, end: end.min(END) }
    }
}

/// Renews the lease of this node's locks, and looks whether others do.
pub(super) async fn tend<S: TxStore>(shared: Arc<Shared<S>>) {
    let every = shared.fs.lock_renewal().max(Duration::from_millis(20));
    let (renewed, released) = (renew(&shared, every), release(&shared, every));
    tokio::join!(renewed, released, sweep(&shared, every), shared.tend_holders());
}

async fn renew<S: TxStore>(shared: &Shared<S>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if let Err(error) = shared.fs.tend_locks().await {
            tracing::debug!(%error, "the lease of locks could not be renewed");
        }
        // A node may have been found dead: those who wait for its locks look.
        shared.try_locks_again();
    }
}

/// Beside the renewal: it may take longer than the lease.
async fn sweep<S: TxStore>(shared: &Shared<S>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if let Err(error) = shared.fs.sweep_void_locks().await {
            tracing::debug!(%error, "locks of nodes that are gone are swept later");
        }
    }
}

async fn release<S: TxStore>(shared: &Shared<S>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if let Err(error) = shared.fs.release_owed_locks().await {
            tracing::debug!(%error, "locks that are to be released are so later");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::core::id::{Generation, Slot};
    use larder::fs::NodeRef;

    fn holder(node: u16, owner: u64) -> Holder {
        Holder { node: NodeRef { slot: Slot(node), generation: Generation(1) }, owner }
    }

    #[test]
    fn a_circle_of_waiters_of_one_node_is_found() {
        let lockers = Lockers::default();
        assert!(lockers.wait(1, holder(2, 2)));
        assert!(lockers.wait(2, holder(2, 3)));
        assert!(!lockers.wait(3, holder(2, 1)), "1 waits for 2, 2 for 3, and 3 for 1");
        // Another node's owner of the same number is somebody else.
        lockers.waits_no_longer(2);
        assert!(lockers.wait(3, holder(2, 1)));
        assert!(lockers.wait(2, holder(4, 9)));
    }

    #[test]
    fn a_signal_counts_that_is_neither_blocked_nor_ignored() {
        let status = |pending: &str, blocked: &str, ignored: &str| {
            format!(
                "Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            )
        };
        assert!(has_signal(&status("0000000000004000", "0", "0")));
        assert!(!has_signal(&status("0000000000004000", "4000", "0")));
        assert!(!has_signal(&status("0000000000004000", "0", "4000")));
        assert!(!has_signal(&status("0", "0", "0")));
        assert!(is_interrupted(u32::MAX), "no such thread");
        assert!(!is_interrupted(0) && !is_interrupted(std::process::id()));
    }
}
