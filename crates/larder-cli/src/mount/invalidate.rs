//! Taking back what the kernel was told.
//!
//! One thread takes the signals and notes them; a few others call the kernel, which may make them
//! wait: for an operation under way in the directory of the name, or for a read of the inode.
//! No lock is held meanwhile, and no thread that answers the kernel waits for them. Their queues
//! are bounded; when one is full, everything is taken back as soon as there is room.

use super::known::{Concern, Place, TakeBack};
use super::{Shared, Signal};
use fuser::{INodeNo, Notifier};
use larder::fs::record::Inode;
use larder::fs::{FileSystem, InodeId, TxStore};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle as Runtime;

/// Threads that call the kernel: one that must wait does not stop the others.
const CALLERS: usize = 4;
/// Concerns waiting for each.
const QUEUE_MAX: usize = 16384;

pub(super) struct Invalidator<S: TxStore> {
    shared: Arc<Shared<S>>,
    callers: Vec<SyncSender<Concern>>,
    overflow: bool,
}

/// What a caller needs.
struct Caller<S: TxStore> {
    shared: Arc<Shared<S>>,
    notifier: Notifier,
    runtime: Runtime,
    /// The mount has ended.
    ended: Arc<AtomicBool>,
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
            let (sender, receiver) = sync_channel(QUEUE_MAX);
            callers.push(sender);
            let caller = Caller {
                shared: shared.clone(),
                notifier: notifier.clone(),
                runtime: runtime.clone(),
                ended: ended.clone(),
            };
            std::thread::Builder::new()
                .name(format!("larder-inval-{number}"))
                .spawn(move || caller.run(&receiver))?;
        }
        let mut invalidator = Self { shared, callers, overflow: false };
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

    fn take(&mut self, signal: &Signal) {
        let concerns = {
            let mut known = self.shared.known();
            match signal {
                Signal::Changed(changes) if !self.overflow => known.change(changes),
                Signal::Changed(_) | Signal::Everything => known.change_all(),
            }
        };
        self.overflow = false;
        for concern in concerns {
            let shard = match &concern {
                Concern::Inode { number, .. } => *number,
                Concern::Name(name) => name.parent,
            };
            let caller = &self.callers[(shard % CALLERS as u64) as usize];
            match caller.try_send(concern) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => self.overflow = true,
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

impl<S: TxStore> Caller<S> {
    fn run(&self, receiver: &Receiver<Concern>) {
        let _runtime = self.runtime.enter();
        while let Ok(concern) = receiver.recv() {
            if let Err(error) = self.take_back(&concern) {
                // The kernel answers so when the mount is gone.
                tracing::debug!(%error, "the kernel takes no more invalidations");
                self.ended.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    fn take_back(&self, concern: &Concern) -> io::Result<()> {
        let fs = &self.shared.fs;
        match concern {
            Concern::Inode { number, id, told } => {
                let now = at_hand(fs, *id);
                let offset = match self.shared.known().take_back(*number, told, now.as_ref()) {
                    TakeBack::Nothing => return Ok(()),
                    TakeBack::Attributes => -1,
                    TakeBack::All => 0,
                };
                self.notifier.inval_inode(INodeNo(*number), offset, 0)
            }
            Concern::Name(name) => {
                let parent = self.shared.known().id(name.parent);
                let still = parent.and_then(|parent| name_at_hand(fs, parent, &name.name));
                // A name that moved to another page is known under the wrong one: the next change
                // of it would not be noticed.
                if still == Some((name.id, name.place)) {
                    return Ok(());
                }
                let result =
                    self.notifier.inval_entry(INodeNo(name.parent), OsStr::from_bytes(&name.name));
                match result {
                    // A directory that is somebody's mount point, or not in use any more.
                    Err(error) if error.kind() != io::ErrorKind::NotConnected => Ok(()),
                    other => other,
                }
            }
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
            let number = weak.upgrade().and_then(|shared| shared.known().drop_pages(id));
            if let Some(number) = number
                && let Err(error) = notifier.inval_inode(INodeNo(number), 0, 0)
            {
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
