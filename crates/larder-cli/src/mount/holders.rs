//! Who holds locks on files that were opened without a message
//! (`docs/decisions/0018-opens-without-a-message.md`).
//!
//! Of a lock that is released by its holder the kernel tells. What goes at a close has to be found
//! out: an `flock`, or an open file description's lock, with the last descriptor of that
//! description, wherever it was handed to; the `fcntl` locks of a process with the first descriptor
//! of the file that it closes. So when somebody asks for a lock it is looked which system call his
//! thread is in, by which descriptor. A description is watched by an `epoll` of its own, from which
//! the kernel takes it when it goes, without our keeping it alive; a process's descriptors are looked
//! at where the kernel lists them. It is looked before anybody here is refused because of such a
//! lock, and every [`LOOK_EVERY`] beside that.

use super::Shared;
use super::adapter::Answer;
use super::locks::process_of_thread;
use fuser::Errno;
use larder::fs::{Handle, InodeId, TxStore};
use rustix::event::epoll;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno as Errnum;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a lock may be held by nobody before others hear of it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Holders at most; further ones are told that there are no locks left.
const HOLDERS_MAX: usize = 4096;
/// Descriptors of one process that are watched for one file.
const DESCRIPTORS_MAX: usize = 64;
/// Threads of a process that are asked for a descriptor which the process does not have.
const TASKS_MAX: usize = 16;
/// A thread that asked is looked at so often until it waits, and so long after each other.
const CALL_TRIES: u32 = 100;
const CALL_AGAIN: Duration = Duration::from_millis(1);

/// Numbers of system calls: of this architecture, and of its 32-bit one.
#[cfg(target_arch = "x86_64")]
const FCNTL: [u64; 3] = [72, 55, 221];
#[cfg(target_arch = "x86_64")]
const FLOCK: [u64; 2] = [73, 143];
#[cfg(not(target_arch = "x86_64"))]
const FCNTL: [u64; 3] = [25, 55, 221];
#[cfg(not(target_arch = "x86_64"))]
const FLOCK: [u64; 2] = [32, 143];
/// Commands of `fcntl` for locks of open file descriptions.
const OFD_LOCKS: std::ops::RangeInclusive<u64> = 36..=38;

/// A lock's file and owner.
type Key = (InodeId, u64);

/// Those who hold locks, or ask for some.
#[derive(Default)]
pub(super) struct Holders {
    watches: Mutex<HashMap<Key, Arc<Watch>>>,
    /// There is somebody to watch.
    some: Notify,
    /// Held while locks of those that are gone are released: nobody of the same number may take one
    /// meanwhile.
    releasing: tokio::sync::Mutex<()>,
    /// How often locks of somebody who is gone were released.
    released: AtomicU64,
    /// It was said that somebody cannot be watched.
    said: AtomicBool,
}

/// Somebody who holds locks of a file, or asks for some.
pub(super) struct Watch {
    how: How,
    /// The file is open for as long.
    _file: Arc<Handle>,
}

enum How {
    /// An `epoll` that has the open file description, while that is there.
    Description(OwnedFd),
    /// A process, and its descriptors of the file; by the first one it asked, whose open file
    /// description is watched too: another may come to have that number.
    Process { process: u32, descriptors: Vec<RawFd>, file: File, asked_by: OwnedFd },
}

/// A file as the kernel shows it: device, and one of these numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct File {
    pub(super) device: (u32, u32),
    pub(super) numbers: (u64, u64),
}

impl File {
    /// Whether a descriptor of a process is of this file, and where that cannot be told; asks nobody
    /// who serves it.
    fn is_at(&self, process: u32, descriptor: RawFd) -> bool {
        let at = |path: String| statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
        let mut found = at(format!("/proc/{process}/fd/{descriptor}"));
        if found.is_err() {
            // Of a process whose first thread has ended the others know.
            let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
            let others = tasks.flatten().take(TASKS_MAX);
            let of = |task: fs::DirEntry| at(format!("{}/fd/{descriptor}", task.path().display()));
            found = others.map(of).find(Result::is_ok).unwrap_or(found);
        }
        match found {
            Ok(about) => {
                let device = (about.stx_dev_major, about.stx_dev_minor);
                let number = about.stx_ino;
                device == self.device && (number == self.numbers.0 || number == self.numbers.1)
            }
            Err(error) => !matches!(error, Errnum::NOENT | Errnum::SRCH),
        }
    }
}

impl How {
    fn is_gone(&self) -> bool {
        match self {
            Self::Description(epoll) => !has_item(epoll),
            Self::Process { process, descriptors, file, asked_by } => {
                let is_gone = |descriptor: &RawFd| !file.is_at(*process, *descriptor);
                !has_item(asked_by) || descriptors.iter().any(is_gone)
            }
        }
    }
}

/// Whether an `epoll` has anything to watch still; true where that cannot be told.
fn has_item(epoll: &OwnedFd) -> bool {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", epoll.as_raw_fd()));
    about.map_or(true, |about| about.lines().any(|line| line.starts_with("tfd:")))
}

/// How a thread asked for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    descriptor: RawFd,
    /// The lock is the process's, not the open file description's.
    process: bool,
}

/// The system call in which a thread waits, as the kernel writes it: number, then arguments.
fn call_of(line: &str) -> Option<Call> {
    let mut words = line.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (descriptor, command) = (argument()?, argument()?);
    // Of 64 bits, the lower 32 count.
    let descriptor = descriptor as u32 as RawFd;
    if FLOCK.contains(&number) {
        return Some(Call { descriptor, process: false });
    }
    FCNTL.contains(&number).then(|| Call { descriptor, process: !OFD_LOCKS.contains(&command) })
}

/// Watches the open file description that a process has under a number.
fn watch_description(process: u32, descriptor: RawFd) -> rustix::io::Result<OwnedFd> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.ok_or(rustix::io::Errno::SRCH)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let theirs = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &theirs, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
    // From here on it is theirs alone.
    drop(theirs);
    Ok(epoll)
}

/// The call in which a thread waits for us. It may still be on its way to waiting.
fn call_by(thread: u32) -> Option<Call> {
    for _ in 0..CALL_TRIES {
        let line = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if let Some(call) = call_of(&line) {
            return Some(call);
        }
        std::thread::sleep(CALL_AGAIN);
    }
    None
}

/// Finds out who asks. What else the process has of the file is found with the call's.
fn find(thread: u32, file: File) -> Option<How> {
    let call = call_by(thread)?;
    let process = process_of_thread(thread);
    if !file.is_at(process, call.descriptor) {
        return None;
    }
    let asked_by = watch_description(process, call.descriptor).ok()?;
    if !call.process {
        return Some(How::Description(asked_by));
    }
    let mut descriptors = vec![call.descriptor];
    for entry in fs::read_dir(format!("/proc/{thread}/fd")).ok()?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if descriptors.len() == DESCRIPTORS_MAX {
            break;
        }
        if number != call.descriptor && file.is_at(process, number) {
            descriptors.push(number);
        }
    }
    Some(How::Process { process, descriptors, file, asked_by })
}

impl Holders {
    fn watches(&self) -> MutexGuard<'_, HashMap<Key, Arc<Watch>>> {
        self.watches.lock().expect("holders of this lock do not panic")
    }

    /// Has somebody watched, whatever became of his watch.
    pub(super) fn keep(&self, key: Key, watch: &Arc<Watch>) -> Answer<()> {
        let mut watches = self.watches();
        if watches.len() >= HOLDERS_MAX && !watches.contains_key(&key) {
            return Err(Errno::ENOLCK);
        }
        watches.insert(key, watch.clone());
        self.some.notify_one();
        Ok(())
    }

    /// Nothing is held any more.
    pub(super) fn forget(&self, key: Key) {
        self.watches().remove(&key);
    }

    fn known(&self, key: Key) -> Option<Arc<Watch>> {
        self.watches().get(&key).cloned()
    }

    /// Those that hold nothing any more, by what is held.
    fn gone(&self) -> Vec<(Key, Arc<Watch>)> {
        let all: Vec<_> = self.watches().iter().map(|(key, watch)| (*key, watch.clone())).collect();
        all.into_iter().filter(|(_, watch)| watch.how.is_gone()).collect()
    }

    /// Takes a watch out, unless it is another by now.
    fn take_out(&self, key: Key, gone: &Arc<Watch>) {
        let mut watches = self.watches();
        if watches.get(&key).is_some_and(|watch| Arc::ptr_eq(watch, gone)) {
            watches.remove(&key);
        }
    }

    /// How often locks of somebody who is gone were released.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::SeqCst)
    }

    /// Watches nobody any more: the end.
    pub(super) fn clear(&self) {
        self.watches().clear();
    }
}

impl<S: TxStore> Shared<S> {
    /// Begins to watch who asks for a lock through a file that was opened without a message.
    pub(super) async fn watch_holder(
        &self,
        key: Key,
        thread: u32,
        (file, handle): (File, Arc<Handle>),
    ) -> Answer<Arc<Watch>> {
        let _one = self.holders.releasing.lock().await;
        // Its descriptors may be others by now than those of its last lock, and its number another's.
        let found = tokio::task::spawn_blocking(move || find(thread, file)).await;
        let Some(how) = found.ok().flatten() else {
            if !self.holders.said.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    thread,
                    "no locks for who cannot be looked at: a process of another namespace, or one \
                     that may not be traced; `--ask-opens` needs not look"
                );
            }
            return Err(Errno::ENOLCK);
        };
        if let Some(known) = self.holders.known(key)
            && known.how.is_gone()
        {
            self.release_locks_of(key, known).await;
        }
        let watch = Arc::new(Watch { how, _file: handle });
        self.holders.keep(key, &watch)?;
        Ok(watch)
    }

    /// Releases the locks of those that are gone. Given up half way, it leaves the others to the next.
    pub(super) async fn release_gone(&self) {
        if self.holders.watches().is_empty() {
            return;
        }
        let _one = self.holders.releasing.lock().await;
        for (key, watch) in self.holders.gone() {
            self.release_locks_of(key, watch).await;
        }
    }

    async fn release_locks_of(&self, key: Key, watch: Arc<Watch>) {
        let (id, owner) = key;
        // What was written under it and closed is committed first.
        self.after_closes().await;
        if let Err(error) = self.fs.unlock(id, owner, 0, u64::MAX).await {
            tracing::debug!(inode = %id, %error, "a lock is released later");
        }
        self.holders.take_out(key, &watch);
        drop(watch);
        self.fs.lock_file_closed(id);
        self.holders.released.fetch_add(1, Ordering::SeqCst);
        self.try_locks_again();
    }

    /// Looks now and then whether holders of locks are there still.
    pub(super) async fn tend_holders(&self) {
        let mut pause = LOOK_EVERY;
        loop {
            if self.holders.watches().is_empty() {
                self.holders.some.notified().await;
            }
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            self.release_gone().await;
            // With many of them it takes its time.
            pause = LOOK_EVERY.max(begun.elapsed() * 4).min(PAUSE_MAX);
        }
    }
}
