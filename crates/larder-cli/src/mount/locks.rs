//! Locks that the kernel asks for: `fcntl` and, as locks of the whole file, `flock`
//! (`docs/decisions/0009-locks.md`).
//!
//! Somebody who waits for a lock tries again when a change of locks comes on the stream, and every
//! second beside that. The library that speaks to the kernel passes no interruption on, so it is
//! looked here whether a signal waits for whoever waits.

use super::adapter::{Answer, failed};
use super::known::TakeBack;
use super::{Open, Shared};
use fuser::{Errno, FileHandle, INodeNo};
use larder::core::commit::Target;
use larder::core::id::PageNo;
use larder::fs::{Holder, InodeId, Lock, LockAsk, LockKind, TxStore};
use std::collections::HashMap;
use std::fs;
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

/// Who locks through which handle, and who waits for whom.
pub(super) struct Lockers {
    handles: Mutex<HashMap<u64, Vec<(InodeId, u64)>>>,
    waiting: Mutex<HashMap<u64, Holder>>,
    changed: Notify,
    places: Arc<Semaphore>,
}

impl Default for Lockers {
    fn default() -> Self {
        Self {
            handles: Mutex::default(),
            waiting: Mutex::default(),
            changed: Notify::new(),
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

impl<S: TxStore> Shared<S> {
    /// Answers `F_SETLK`, `F_SETLKW` and `flock`.
    pub(super) async fn set_lock(&self, ask: Ask) -> Answer<()> {
        let id = self.id(ask.number)?;
        let kind = match ask.kind {
            READ => LockKind::Read,
            WRITE => LockKind::Write,
            UNLOCK => {
                let (start, end) = ask.range;
                return failed(self.fs.unlock(id, ask.owner, start, end).await);
            }
            _ => return Err(Errno::EINVAL),
        };
        let wanted = ask.wanted(kind);
        let _place = match ask.waits {
            true => Some(self.lockers.places.try_acquire().map_err(|_| Errno::ENOLCK)?),
            false => None,
        };
        loop {
            let changed = self.lockers.changed.notified();
            let Some(other) = failed(self.fs.lock(id, &wanted).await)? else {
                self.note_locker(&ask, id);
                return self.see_latest(ask.number, id).await;
            };
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

    async fn wait_for_change(&self, changed: impl Future<Output = ()>, thread: u32) -> Answer<()> {
        let again = Instant::now() + TRY_EVERY;
        let mut changed = std::pin::pin!(changed);
        while Instant::now() < again {
            if is_interrupted(thread) || self.options.standing.now().is_err() {
                return Err(Errno::EINTR);
            }
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
        let found = failed(self.fs.lock_in_the_way(self.id(ask.number)?, &wanted).await)?;
        let kind = |lock: &Lock| if lock.kind == LockKind::Write { WRITE } else { READ };
        Ok(found.map(|lock| (lock, kind(&lock))))
    }

    fn note_locker(&self, ask: &Ask, id: InodeId) {
        let mut handles = guard(&self.lockers.handles);
        let lockers = handles.entry(ask.handle.0).or_default();
        if !lockers.contains(&(id, ask.owner)) {
            lockers.push((id, ask.owner));
        }
    }

    /// The kernel drops what it keeps of a file that was just locked, if that is of another state:
    /// a lock that is held shows all that was written under the last one.
    async fn see_latest(&self, number: INodeNo, id: InodeId) -> Answer<()> {
        let now = failed(self.fs.getattr(id).await)?.inode;
        let offset = match self.known().take_back_now(number.0, &now) {
            TakeBack::Nothing => return Ok(()),
            TakeBack::Attributes => -1,
            TakeBack::All => 0,
        };
        let Some(notifier) = self.notifier.get().cloned() else { return Ok(()) };
        // The kernel may make this wait for a read.
        let told = tokio::task::spawn_blocking(move || notifier.inval_inode(number, offset, 0));
        match told.await {
            Ok(Ok(())) => Ok(()),
            // The kernel keeps nothing of it.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
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
        failed(self.fs.unlock(id, owner, 0, u64::MAX).await)
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
        for (id, owner) in lockers {
            if let Err(error) = self.fs.unlock(id, owner, 0, u64::MAX).await {
                tracing::debug!(inode = %id, %error, "a lock is released later");
            }
        }
    }

    /// Changes came: those who wait for a lock try again if some may be of locks.
    pub(super) fn locks_may_have_changed(&self, changes: &[(PageNo, Target)]) {
        if self.fs.has_locks_in(changes.iter().map(|(page, _)| *page)) {
            self.lockers.changed.notify_waiters();
        }
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
    tokio::join!(renew(&shared, every), release(&shared, every));
}

async fn renew<S: TxStore>(shared: &Shared<S>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if let Err(error) = shared.fs.tend_locks().await {
            tracing::debug!(%error, "the lease of locks could not be renewed");
        }
        // A node may have been found dead: those who wait for its locks look.
        shared.lockers.changed.notify_waiters();
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
