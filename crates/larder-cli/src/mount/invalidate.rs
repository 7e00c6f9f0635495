//! Taking back what the kernel was told.
//!
//! One thread takes the signals and notes them; a few others call the kernel, which may make them
//! wait: for an operation under way in the directory of the name, or for a read of the inode.
//! No lock is held meanwhile, and no thread that answers the kernel waits for them. Their queues
//! are bounded. What concerns all that the kernel was given is not in them, nor is it lost when
//! they are full: every caller goes through its share of it as soon as it can.

use super::fresh::take_back_name;
use super::known::{Concern, KnownName, Place, TakeBack};
use super::{Shared, Signal};
use fuser::{INodeNo, Notifier};
use larder::fs::record::Inode;
use larder::fs::{FileSystem, InodeId, TxStore};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle as Runtime;

/// Threads that call the kernel: one that must wait does not stop the others.
pub(super) const CALLERS: usize = 4;
/// Concerns waiting for each.
pub(super) const QUEUE_MAX: usize = 16384;
/// Inodes or names of a sweep looked up with the lock held once.
const SWEPT_AT_ONCE: usize = 256;

/// Going through all that the kernel was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sweep {
    /// What is not true any more is taken back.
    Compare = 1,
    /// Everything is, true or not: nobody may call it current.
    Drop = 2,
}

/// The sweep that a caller still has to make.
#[derive(Default)]
struct Wanted(AtomicU8);

impl Wanted {
    /// Wants one; the stronger of two is enough for both.
    fn add(&self, sweep: Sweep) {
        self.0.fetch_max(sweep as u8, Ordering::SeqCst);
    }

    fn take(&self) -> Option<Sweep> {
        match self.0.swap(0, Ordering::SeqCst) {
            0 => None,
            1 => Some(Sweep::Compare),
            _ => Some(Sweep::Drop),
        }
    }
}

/// What a caller is woken for.
enum Work {
    Concern(Concern),
    /// A sweep is wanted.
    Look,
}

/// A caller, as the thread of signals sees it.
struct Post {
    queue: SyncSender<Work>,
    wanted: Arc<Wanted>,
}

pub(super) struct Invalidator<S: TxStore> {
    shared: Arc<Shared<S>>,
    callers: Vec<Post>,
}

/// What a caller needs.
struct Caller<S: TxStore> {
    /// Which of them it is.
    number: u64,
    shared: Arc<Shared<S>>,
    notifier: Notifier,
    runtime: Runtime,
    wanted: Arc<Wanted>,
    /// The mount has ended.
    ended: Arc<AtomicBool>,
}

/// Whose work a concern is: what is of one inode, or of names in one directory, stays in order.
fn caller_of(concern: &Concern) -> u64 {
    let number = match concern {
        Concern::Inode { number, .. } => *number,
        Concern::Name(name) => name.parent,
    };
    number % CALLERS as u64
}

impl<S: TxStore> Invalidator<S> {
    /// Starts the threads; they end when `signals` gives none.
    pub(super) fn start(
        shared: Arc<Shared<S>>,
        notifier: Notifier,
        runtime: Runtime,
        mut signals: impl FnMut() -> Option<Signal> + Send + 'static,
    ) -> io::Result<()> {
        let ended = Arc::new(AtomicBool::new(false));
        let mut callers = Vec::new();
        for number in 0..CALLERS {
            let (queue, receiver) = sync_channel(QUEUE_MAX);
            let wanted = Arc::new(Wanted::default());
            callers.push(Post { queue, wanted: wanted.clone() });
            let caller = Caller {
                number: number as u64,
                shared: shared.clone(),
                notifier: notifier.clone(),
                runtime: runtime.clone(),
                wanted,
                ended: ended.clone(),
            };
            std::thread::Builder::new()
                .name(format!("larder-inval-{number}"))
                .spawn(move || caller.run(&receiver))?;
        }
        let invalidator = Self { shared, callers };
        std::thread::Builder::new().name("larder-signals".into()).spawn(move || {
            while let Some(signal) = signals() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                invalidator.take(&signal);
            }
        })?;
        Ok(())
    }

    fn take(&self, signal: &Signal) {
        let changes = match signal {
            Signal::Changed(changes) => changes,
            Signal::Everything => return self.sweep(Sweep::Compare),
            Signal::Lapsed => return self.sweep(Sweep::Drop),
        };
        self.shared.locks_may_have_changed(changes);
        let concerns = self.shared.known().change(changes);
        for concern in concerns {
            let post = &self.callers[caller_of(&concern) as usize];
            match post.queue.try_send(Work::Concern(concern)) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => post.wanted.add(Sweep::Compare),
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    fn sweep(&self, sweep: Sweep) {
        self.shared.known().change_all();
        for post in &self.callers {
            post.wanted.add(sweep);
            // Whoever has a full queue is awake, and looks after what it does now.
            let _full_or_ended = post.queue.try_send(Work::Look);
        }
    }
}

impl<S: TxStore> Caller<S> {
    fn run(&self, receiver: &Receiver<Work>) {
        let _runtime = self.runtime.enter();
        while let Ok(work) = receiver.recv() {
            let mut done = match &work {
                Work::Concern(concern) => self.take_back(concern),
                Work::Look => Ok(()),
            };
            if let (Ok(()), Some(sweep)) = (&done, self.wanted.take()) {
                done = self.sweep(sweep);
            }
            if let Err(error) = done {
                // The kernel answers so when the mount is gone.
                tracing::debug!(%error, "the kernel takes no more invalidations");
                self.ended.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Goes through this caller's share of all that the kernel was given. Inodes first: taking back
    /// a name may have to wait for an operation in its directory.
    fn sweep(&self, sweep: Sweep) -> io::Result<()> {
        let mut after = None;
        loop {
            let (last, some) = self.shared.known().inodes_after(after, SWEPT_AT_ONCE);
            if last.is_none() {
                break;
            }
            after = last;
            self.swept(sweep, some.into_iter())?;
        }
        after = None;
        loop {
            let (last, some) = self.shared.known().names_after(after, SWEPT_AT_ONCE);
            if last.is_none() {
                return Ok(());
            }
            after = last;
            self.swept(sweep, some.into_iter().map(Concern::Name))?;
        }
    }

    fn swept(&self, sweep: Sweep, concerns: impl Iterator<Item = Concern>) -> io::Result<()> {
        for concern in concerns.filter(|concern| caller_of(concern) == self.number) {
            match (sweep, &concern) {
                (Sweep::Drop, Concern::Inode { number, id, .. }) => {
                    if self.shared.known().drop_pages(*id).contains(number) {
                        self.notifier.inval_inode(INodeNo(*number), 0, 0)?;
                    }
                }
                // A directory's name ends with its time: taken back, it would unmount what is
                // mounted there, and those who work in it would lose their working directory.
                (Sweep::Drop, Concern::Name(name)) if !name.directory => self.forget_name(name)?,
                _ => self.take_back(&concern)?,
            }
        }
        Ok(())
    }

    fn take_back(&self, concern: &Concern) -> io::Result<()> {
        let fs = &self.shared.fs;
        match concern {
            Concern::Inode { number, id, told, noted } => {
                let now = at_hand(fs, *id);
                let offset = {
                    let mut known = self.shared.known();
                    let offset = match known.take_back_noted(*number, (*noted, told), now.as_ref())
                    {
                        TakeBack::Nothing => return Ok(()),
                        TakeBack::Attributes => -1,
                        TakeBack::All => 0,
                    };
                    known.begin_taking(*number);
                    offset
                };
                let taken = self.notifier.inval_inode(INodeNo(*number), offset, 0);
                self.shared.known().end_taking(*number);
                self.shared.taken_back.notify_waiters();
                taken
            }
            Concern::Name(name) => {
                let parent = self.shared.known().id(name.parent);
                let still = parent.and_then(|parent| name_at_hand(fs, parent, &name.name));
                // A name that moved to another page is known under the wrong one: the next change
                // of it would not be noticed.
                if still == Some((name.id, name.place)) {
                    return Ok(());
                }
                self.forget_name(name)
            }
        }
    }

    fn forget_name(&self, name: &KnownName) -> io::Result<()> {
        match self.notifier.inval_entry(INodeNo(name.parent), OsStr::from_bytes(&name.name)) {
            // A directory that is somebody's mount point, or not in use any more.
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }
}

/// Lets the kernel drop the bytes of a file of which some were lost: it keeps them as written, and
/// nothing changes at the origin that would tell it otherwise.
pub(super) fn drop_what_is_lost<S: TxStore>(
    shared: &Arc<Shared<S>>,
    notifier: Notifier,
    runtime: Runtime,
) {
    let weak = Arc::downgrade(shared);
    shared.fs.when_lost(move |id| {
        let (weak, notifier) = (weak.clone(), notifier.clone());
        // The kernel may make this wait for a read.
        runtime.spawn_blocking(move || {
            let Some(shared) = weak.upgrade() else { return };
            let numbers = shared.known().drop_pages(id);
            for number in numbers {
                // A file that never was: its name leads nowhere, or to another.
                let names = shared.known().names_of(number);
                for name in names {
                    shared.known().lose_name(&name);
                    take_back_name(&name, &notifier);
                }
                if let Err(error) = notifier.inval_inode(INodeNo(number), 0, 0) {
                    tracing::debug!(%error, "the kernel takes no more invalidations");
                }
            }
        });
    });
}

/// Lets the kernel know of files that were made here and turned out to be others, which somebody else
/// made under their names.
pub(super) fn follow_what_became<S: TxStore>(
    shared: &Arc<Shared<S>>,
    notifier: Notifier,
    runtime: Runtime,
) {
    let weak = Arc::downgrade(shared);
    shared.fs.when_another(move |id, other| {
        let Some(shared) = weak.upgrade() else { return };
        let mut known = shared.known();
        let names = known.names_of(known.number(id));
        let Some(number) = known.becomes(id, other) else { return };
        names.iter().for_each(|name| known.lose_name(name));
        let notifier = notifier.clone();
        // The kernel may make this wait for a read.
        runtime.spawn_blocking(move || {
            names.iter().for_each(|name| take_back_name(name, &notifier));
            if let Err(error) = notifier.inval_inode(INodeNo(number), 0, 0) {
                tracing::debug!(%error, "the kernel takes no more invalidations");
            }
        });
    });
}

/// The value of a future that is ready at once: what is cached is, and nothing else may make a
/// caller wait.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn at_hand<S: TxStore>(fs: &FileSystem<S>, id: InodeId) -> Option<Inode> {
    Some(ready(fs.getattr(id))?.ok()?.inode)
}

/// What a name leads to and where it is kept, if that is cached: the inner none is "not there".
fn name_at_hand<S: TxStore>(
    fs: &FileSystem<S>,
    parent: InodeId,
    name: &[u8],
) -> Option<(Option<InodeId>, Place)> {
    let found = ready(fs.lookup(parent, name))?.ok()?;
    Some((found.attr.map(|attr| attr.id), found.place))
}
