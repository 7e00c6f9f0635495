//! The mount: a volume's tree of files, given to the kernel over `/dev/fuse`.
//!
//! [`adapter`] answers the kernel's requests: what is cached at once, all else in a task of its own
//! with a deadline, so that none waits for another and none for ever; [`listing`] those that list,
//! [`locks`] those for locks; [`silent`] has the kernel open files without asking, and [`heard`] and
//! [`holders`] find out what it then does not tell.
//! [`fresh`] has the latest state before what promises it;
//! [`known`] remembers what the kernel was told;
//! [`invalidate`] takes it back when it changes, from threads that hold no lock: the kernel may
//! make such a thread wait for an operation under way in the same directory.
//!
//! What the kernel believes has a time to live that ends with the link lease, so that nothing is
//! believed longer than it may be called current, even by a kernel that nobody could tell. Bytes
//! have none, and the kernel's clock stands still while the machine sleeps: so when the lease
//! lapses, all is taken back that the kernel was given, as it would be if every byte had changed.

mod adapter;
mod attributes;
mod fresh;
mod heard;
mod holders;
mod invalidate;
mod known;
mod listing;
mod locks;
mod silent;
mod standing;
#[cfg(test)]
mod tests;
mod under_way;

pub(crate) use fresh::Consistency;
pub(crate) use standing::Standing;

use adapter::Adapter;
use fresh::Told;
use fuser::{BackgroundSession, Config, Errno, MountOption, Notifier, SessionACL};
use heard::Ear;
use invalidate::{Invalidator, drop_what_is_lost, follow_what_became};
use known::Known;
use larder::client::{Event, Notices};
use larder::core::commit::Target;
use larder::core::id::{DomainId, PageNo, VolumeId};
use larder::core::rights::Right;
use larder::fs::{FileSystem, FsError, Handle, KeptPart, TxError, TxStore};
use larder::metrics::{AskedCounts, Metrics};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx, syncfs};
use rustix::mount::UnmountFlags;
use silent::Silent;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;
use under_way::UnderWay;

/// How long it may take until a mount in which nobody is has ended.
const DETACH_AFTER: Duration = Duration::from_secs(10);
/// How long mapped bytes may take from the kernel's queue to this process, and how often it is looked.
const MAPPED_LIMIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();

/// Threads that take the kernel's requests.
const THREADS_MAX: usize = 16;

/// How the mount works.
#[derive(Clone, Debug)]
pub(crate) struct MountOptions {
    /// The name shown in the table of mounts.
    pub(crate) name: String,
    /// How long an operation may take before the kernel is answered `ETIMEDOUT`.
    pub(crate) operation_limit: Duration,
    /// How long the kernel may believe what it was told, at most; less when the lease ends sooner.
    pub(crate) time_to_live_max: Duration,
    /// How long written bytes wait for a commit at most, unless fsync or close come before.
    pub(crate) write_back_age: Duration,
    /// Users other than the one who mounts may use it.
    pub(crate) allow_other: bool,
    /// What it promises of what it shows.
    pub(crate) consistency: Consistency,
    /// Files are made and closed when they are committed, also where a mount follows.
    pub(crate) wait_commits: bool,
    /// Files are opened without a message, where that can be.
    pub(crate) silent_opens: bool,
    /// Operations that need the latest state are refused while it cannot be had.
    pub(crate) refuse_stale: bool,
    /// Nothing can be changed through it.
    pub(crate) read_only: bool,
    /// What the kernel is told beside.
    pub(crate) flags: Vec<MountOption>,
    /// Writes under way at once, and as many other operations that change something, some of them
    /// past their limits.
    pub(crate) writers_max: usize,
    /// Told when it stands, and when it has ended.
    pub(crate) standing: Standing,
    /// Counts what the kernel asks for.
    pub(crate) asked: AskedCounts,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            name: "larder".into(),
            operation_limit: Duration::from_secs(30),
            time_to_live_max: Duration::from_secs(60),
            write_back_age: Duration::from_secs(5),
            allow_other: true,
            consistency: Consistency::default(),
            wait_commits: false,
            silent_opens: true,
            refuse_stale: false,
            read_only: false,
            flags: Vec::new(),
            writers_max: 1024,
            standing: Standing::default(),
            asked: AskedCounts::default(),
        }
    }
}

/// Something the kernel's caches must follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// These parts of the volume's pages changed.
    Changed(Vec<(PageNo, Target)>),
    /// Anything may have changed: what is not as the kernel believes is taken back.
    Everything,
    /// Nothing may be called current any more: all is taken back, whatever it is like now.
    Lapsed,
}

/// Turns a node's events into signals for one volume. Blocks; none: the node has ended.
pub(crate) fn next_signal(
    notices: &mut Notices,
    domain: DomainId,
    volume: VolumeId,
) -> Option<Signal> {
    loop {
        if let Some(signal) = signal_of(&notices.next_blocking()?, domain, volume) {
            return Some(signal);
        }
    }
}

/// What an event means for one volume, if anything.
fn signal_of(event: &Event, domain: DomainId, volume: VolumeId) -> Option<Signal> {
    match event {
        Event::Changed { domain: at, pages } if *at == domain => {
            let all = larder_core::id::PageId::of_volume(volume);
            if pages.iter().any(|change| change.page == all) {
                return Some(Signal::Lapsed);
            }
            let changes: Vec<_> = pages
                .iter()
                .filter(|change| change.page.volume == volume)
                .flat_map(|change| {
                    let touched = change.touched.iter();
                    touched.map(|(target, _)| (change.page.page, *target))
                })
                .collect();
            (!changes.is_empty()).then_some(Signal::Changed(changes))
        }
        Event::Reset { domain: at } if *at == domain => Some(Signal::Everything),
        Event::LeaseLapsed { domain: at } if *at == domain => Some(Signal::Lapsed),
        // What the kernel keeps is not to be read any more.
        Event::Rights { volume: of, right, .. } if *of == volume && *right < Right::Read => {
            Some(Signal::Lapsed)
        }
        // What was missed may be a lapse.
        Event::Overflow => Some(Signal::Lapsed),
        Event::VolumeDeleted { volume: gone, .. } if *gone == volume => Some(Signal::Lapsed),
        Event::Changed { .. }
        | Event::VolumeDeleted { .. }
        | Event::Reset { .. }
        | Event::Rights { .. }
        | Event::LeaseLapsed { .. }
        | Event::LeaseRegained { .. }
        | Event::Refused { .. } => None,
    }
}

/// What the threads and tasks of a mount share.
struct Shared<S: TxStore> {
    fs: Arc<FileSystem<S>>,
    options: MountOptions,
    known: Mutex<Known>,
    handles: Mutex<HashMap<u64, Open>>,
    next_handle: AtomicU64,
    /// Places for operations that change something.
    operations: Arc<Semaphore>,
    /// The same for those that write bytes, so that many writers do not keep the others waiting.
    writers: Semaphore,
    /// Takes back what the kernel was told; set when it is mounted.
    notifier: OnceLock<Notifier>,
    /// The kernel was told that something is taken back.
    taken_back: Notify,
    told: Told,
    lockers: locks::Lockers,
    silent: silent::Silent,
    holders: holders::Holders,
    runtime: Runtime,
    /// The number of the mount's device, once it is mounted.
    device: OnceLock<(u32, u32)>,
    /// All that may leave something to be committed, answered or not.
    under_way: UnderWay,
    /// Whatever would change something is refused: the mount is at its end.
    refuses: AtomicBool,
    /// Bytes of a shared mapping were among it, which nobody else hears of.
    refused_mapped: AtomicBool,
}

/// Tells what a mount keeps in memory, while that is there.
pub(crate) struct Keeps<S: TxStore>(Weak<Shared<S>>);

impl<S: TxStore> Keeps<S> {
    /// Brings these figures up to date.
    pub(crate) fn tell(&self, metrics: &Metrics) {
        let Some(shared) = self.0.upgrade() else { return };
        let (inodes, names) = {
            let known = shared.known();
            (known.inodes_kept(), known.names_kept())
        };
        metrics.mount("inodes", inodes);
        metrics.mount("names", names);
        for part in KeptPart::ALL {
            metrics.mount(part.name(), shared.fs.kept(part));
        }
    }
}

/// What a file handle of the kernel stands for.
#[derive(Clone)]
enum Open {
    File(Arc<Handle>),
    /// Where a listing stands.
    Directory(Arc<Mutex<listing::At>>),
}

impl<S: TxStore> Shared<S> {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("holders of this lock do not panic")
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.handles.lock().expect("holders of this lock do not panic")
    }

    /// To be asked by whatever may leave something to be committed, once it is counted as under way.
    fn takes_changes(&self) -> Result<(), Errno> {
        if self.refuses.load(Ordering::SeqCst) { Err(Errno::ESHUTDOWN) } else { Ok(()) }
    }

    /// To be asked before anything is changed, though not before what was written is committed.
    fn may_change(&self) -> Result<(), Errno> {
        self.takes_changes()?;
        match self.fs.store().right() {
            Right::None => Err(Errno::EACCES),
            Right::Read => Err(Errno::EROFS),
            Right::Write | Right::Admin => Ok(()),
        }
    }

    /// To be asked before anything is shown.
    fn may_read(&self) -> Result<(), Errno> {
        if self.fs.store().right() < Right::Read { Err(Errno::EACCES) } else { Ok(()) }
    }

    fn add_handle(&self, open: Open) -> u64 {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(number, open);
        number
    }

    /// How long the kernel may believe what is read now.
    fn time_to_live(&self) -> Duration {
        if self.is_strict() {
            return Duration::ZERO;
        }
        let most = self.options.time_to_live_max;
        self.fs.store().current_for().map_or(most, |left| left.min(most))
    }
}

/// A mounted volume. Unmount it with [`Mounted::unmount`]; dropping it unmounts too, but does not
/// wait for what was written to be committed.
pub(crate) struct Mounted<S: TxStore> {
    shared: Arc<Shared<S>>,
    point: PathBuf,
    /// The kernel's id of the mount, and its device.
    id: Option<u64>,
    device: Option<(u32, u32)>,
    session: Option<BackgroundSession>,
    /// The last one tends locks.
    tickers: [JoinHandle<()>; 4],
}

impl<S: TxStore> Mounted<S> {
    /// Mounts. `signals` is asked for the next signal by a thread of the mount, until it gives
    /// none. Must be called within a tokio runtime.
    pub(crate) fn mount(
        fs: Arc<FileSystem<S>>,
        mountpoint: &Path,
        options: MountOptions,
        signals: impl FnMut() -> Option<Signal> + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = Runtime::current();
        let ear = Silent::may_hear(&options).then(Ear::new).flatten();
        let shared = Arc::new(Shared {
            known: Mutex::new(Known::new(fs.root())),
            fs,
            operations: Arc::new(Semaphore::new(options.writers_max)),
            writers: Semaphore::new(options.writers_max),
            options,
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            notifier: OnceLock::new(),
            taken_back: Notify::new(),
            told: Told::default(),
            lockers: locks::Lockers::default(),
            silent: Silent::new(ear.is_some())?,
            holders: holders::Holders::default(),
            runtime: runtime.clone(),
            device: OnceLock::new(),
            under_way: UnderWay::default(),
            refuses: AtomicBool::new(false),
            refused_mapped: AtomicBool::new(false),
        });
        let adapter = Adapter::new(shared.clone(), runtime.clone());
        let config = config(&shared.options);
        let session = fuser::spawn_mount(adapter, mountpoint, &config)?;
        shared.notifier.set(session.notifier()).expect("it is mounted once");
        let point = std::path::absolute(mountpoint)?;
        let (id, device) = (mount_id(&point), device(&point));
        if let Some(device) = device {
            let _once = shared.device.set(device);
        }
        shared.hear(ear, &point)?;
        drop_what_is_lost(&shared, session.notifier(), runtime.clone());
        follow_what_became(&shared, session.notifier(), runtime.clone());
        Invalidator::start(shared.clone(), session.notifier(), runtime.clone(), signals)?;
        let tickers = [
            runtime.spawn(tick(shared.clone())),
            runtime.spawn(tend_orphans(shared.clone())),
            runtime.spawn(commit_closed(shared.clone())),
            runtime.spawn(locks::tend(shared.clone())),
        ];
        // The kernel has begun to ask: the session shakes hands before it is given out.
        shared.options.standing.begin();
        Ok(Self { shared, point, id, device, session: Some(session), tickers })
    }

    /// By which it tells what it keeps in memory.
    pub(crate) fn keeps(&self) -> Keeps<S> {
        Keeps(Arc::downgrade(&self.shared))
    }

    /// Whether the kernel has ended the mount (somebody called `umount`).
    #[must_use]
    pub(crate) fn is_ended(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts, and commits whatever was written and waits, also when the mount is busy or its
    /// session failed; an error says so, or that some of it could not be committed.
    pub(crate) async fn unmount(mut self) -> io::Result<()> {
        self.tickers.iter().take(2).for_each(JoinHandle::abort);
        self.shared.options.standing.end();
        if let Some(heard) = &self.shared.silent.heard {
            // What it holds of files would keep the mount busy.
            heard.end();
            let limit = self.shared.options.operation_limit;
            let _or_not = tokio::time::timeout(limit, heard.all()).await;
        }
        let unmounted = self.end_session().await;
        // Those who are in a mount that is detached go on asking: what would be acknowledged after
        // the last commit is refused.
        self.shared.refuses.store(true, Ordering::SeqCst);
        // The kernel waits neither for a release nor for what passed its limit.
        let limit = self.shared.options.operation_limit;
        let _or_not = tokio::time::timeout(limit, self.shared.under_way.none()).await;
        // Together, what can be; the rest one by one.
        let _or_not = tokio::time::timeout(limit, self.shared.fs.after_closes()).await;
        self.tickers.iter().take(3).for_each(JoinHandle::abort);
        let committed = self.commit_all().await;
        // The last one until here: what was written under a lock is committed under it.
        self.tickers.iter().for_each(JoinHandle::abort);
        match (unmounted, committed) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(error), Ok(())) => Err(error),
            (Ok(()), Err(lost)) => Err(io::Error::other(format!("not all is committed: {lost}"))),
            (Err(error), Err(lost)) => {
                Err(io::Error::other(format!("{error}; and not all is committed: {lost}")))
            }
        }
    }

    /// Ends the session. A mount in which somebody stands, or has a file open, is detached: nobody
    /// comes to it any more, and who is there meets errors once this process has ended.
    async fn end_session(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let (send, ended) = oneshot::channel();
        // A thread of its own: the runtime would wait without limit for one of its own threads.
        let stands = self.stands();
        std::thread::Builder::new().name("unmount".into()).spawn(move || {
            let ended = if stands && !session.guard.is_finished() {
                session.umount_and_join()
            } else {
                join_unmounted(session)
            };
            // Nobody waits any more: the mount was detached by a helper, and somebody is in it.
            drop(send.send(ended));
        })?;
        match tokio::time::timeout(DETACH_AFTER, ended).await {
            Ok(Ok(Err(error))) if error.raw_os_error() == Some(EBUSY) && self.stands() => {
                tracing::warn!(point = %self.point.display(), "somebody is in it: detached");
                self.write_mapped().await;
                Ok(rustix::mount::unmount(&self.point, UnmountFlags::DETACH)?)
            }
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => Err(io::Error::other("the thread that unmounts ended")),
            Err(_) => {
                tracing::warn!(point = %self.point.display(), "somebody is in it still");
                Ok(())
            }
        }
    }

    /// Has the kernel write what was stored through shared mappings: a mount that is detached is
    /// written no more.
    async fn write_mapped(&self) {
        let (point, limit) = (self.point.clone(), self.shared.options.operation_limit);
        let written = tokio::task::spawn_blocking(move || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            syncfs(rustix::fs::open(point, flags, Mode::empty())?)
        });
        match tokio::time::timeout(limit, written).await {
            // It waits for no answer: what is under way then is waited for as all else is.
            Ok(Ok(Ok(()))) => self.waits_in_the_kernel().await,
            Ok(Ok(Err(error))) => tracing::warn!(%error, "mapped files could not be written"),
            _ => tracing::warn!("mapped files could not be written in time"),
        }
    }

    /// Waits a little while the kernel has requests for this mount that nobody took yet.
    async fn waits_in_the_kernel(&self) {
        let Some((_, connection)) = self.device else { return };
        let path = format!("/sys/fs/fuse/connections/{connection}/waiting");
        let end = tokio::time::Instant::now() + MAPPED_LIMIT;
        while tokio::time::Instant::now() < end {
            match std::fs::read_to_string(&path).map(|text| text.trim().parse::<u64>()) {
                Ok(Ok(waiting)) if waiting > 0 => tokio::time::sleep(LOOK_EVERY).await,
                // None, or it cannot be told here.
                _ => return,
            }
        }
    }

    /// Whether what is mounted at the point is this mount: the kernel unmounts by path, and somebody
    /// may have unmounted ours and mounted another file system there. True where it cannot be told.
    fn stands(&self) -> bool {
        self.id.is_none() || mount_id(&self.point) == self.id
    }

    /// Commits what waits in all files, and frees those without a name.
    async fn commit_all(&self) -> Result<(), FsError> {
        let fs = &self.shared.fs;
        if let Err(lost) = fs.flush_all().await {
            // What is under way still may write under them.
            if self.shared.under_way.count() == 0 {
                self.leave_locks().await;
            }
            return Err(lost);
        }
        if let Err(error) = fs.settle_unknown().await {
            tracing::warn!(%error, "what became of a removal is not known");
        }
        // Those that came meanwhile were refused, and are about to go.
        let limit = self.shared.options.operation_limit;
        let _or_not = tokio::time::timeout(limit, self.shared.under_way.none()).await;
        let operations = self.shared.under_way.count();
        if operations > 0 {
            tracing::warn!(operations, "still under way at the end of the mount");
            return Err(TxError::TimedOut.into());
        }
        let handles: Vec<Open> = self.shared.handles().drain().map(|(_, open)| open).collect();
        let mut lost = Ok(());
        for open in handles {
            let Open::File(handle) = open else { continue };
            lost = lost.and(fs.flush(&handle).await);
            if let Err(error) = fs.release(&handle).await {
                tracing::warn!(inode = %handle.id(), %error, "closed at the end of the mount");
            }
        }
        for file in self.shared.silent.take_written() {
            lost = lost.and(fs.flush(&file).await);
        }
        self.shared.holders.clear();
        fs.none_is_open();
        self.leave_locks().await;
        if let Err(error) = fs.reap_waiting().await {
            tracing::warn!(%error, "removed files are left for `volume check` to find");
        }
        if let Err(error) = fs.free_empty_pages().await {
            tracing::debug!(%error, "empty pages of inodes stay in the volume");
        }
        if self.shared.refused_mapped.load(Ordering::SeqCst) {
            tracing::error!("bytes of a shared mapping came too late to be written");
            lost = lost.and(Err(TxError::TimedOut.into()));
        }
        lost
    }
}

impl<S: TxStore> Mounted<S> {
    async fn leave_locks(&self) {
        if let Err(error) = self.shared.fs.release_all_locks().await {
            tracing::warn!(%error, "locks are left until their lease is over");
        }
    }
}

impl<S: TxStore> Drop for Mounted<S> {
    fn drop(&mut self) {
        self.tickers.iter().for_each(JoinHandle::abort);
        self.shared.options.standing.end();
        if let Some(heard) = &self.shared.silent.heard {
            heard.end();
        }
    }
}

/// The id of what is mounted at a folder, without asking the file system there; none: it cannot be
/// told.
fn mount_id(point: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let about = statx(CWD, point, flags, StatxFlags::MNT_ID).ok()?;
    StatxFlags::from_bits_retain(about.stx_mask)
        .contains(StatxFlags::MNT_ID)
        .then_some(about.stx_mnt_id)
}

/// The mount's device: its minor number is the one by which the kernel knows the connection; none:
/// it cannot be told.
fn device(point: &Path) -> Option<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let about = statx(CWD, point, flags, StatxFlags::empty()).ok()?;
    Some((about.stx_dev_major, about.stx_dev_minor))
}

/// Waits for the end of a session that the kernel has ended or will never end. Dropped, it would
/// unmount whatever is mounted at its point by now: somebody else's, perhaps.
fn join_unmounted(mut session: BackgroundSession) -> io::Result<()> {
    let guard = std::mem::replace(&mut session.guard, std::thread::spawn(|| Ok(())));
    std::mem::forget(session);
    guard.join().map_err(|_panic| io::Error::other("the thread that serves the mount panicked"))?
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.name.clone()),
        // The library's own option for it reaches the kernel through `fusermount3` alone: root's
        // mounts would be of kind `fuse`, and `umount` would not find its helper.
        MountOption::CUSTOM("subtype=larder".into()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.mount_options.extend(options.flags.iter().cloned());
    if options.allow_other {
        config.acl = SessionACL::All;
    }
    // They answer what is cached.
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    config.n_threads = Some(threads.clamp(2, THREADS_MAX));
    config
}

/// Says which files without a name are open here, and frees those that dead nodes left.
async fn tend_orphans<S: TxStore>(shared: Arc<Shared<S>>) {
    if shared.options.read_only {
        return;
    }
    let every = shared.fs.options().orphan_touch().max(Duration::from_millis(20));
    loop {
        tokio::time::sleep(every).await;
        match shared.fs.tend_orphans().await {
            Ok(0) => {}
            Ok(freed) => tracing::info!(freed, "freed files that were left open by dead nodes"),
            // Cut off, most likely: the next time will do.
            Err(error) => tracing::debug!(%error, "files without a name could not be looked at"),
        }
    }
}

/// Commits what was closed without a wait.
async fn commit_closed<S: TxStore>(shared: Arc<Shared<S>>) {
    if shared.commits_late() {
        shared.fs.commit_closed().await;
    }
}

/// Commits what has waited long, and frees what was removed.
async fn tick<S: TxStore>(shared: Arc<Shared<S>>) {
    let age = shared.options.write_back_age;
    let every = (age / 4).max(Duration::from_millis(100));
    // Beside each other: many removals are not to keep what was written waiting.
    tokio::join!(commit_aged(&shared, age, every), free_removed(&shared, every));
}

async fn commit_aged<S: TxStore>(shared: &Shared<S>, age: Duration, every: Duration) {
    let mut interval = tokio::time::interval(every);
    loop {
        interval.tick().await;
        // First: an opening waits for it.
        if let Err(error) = shared.fs.settle_unknown().await {
            tracing::debug!(%error, "what became of a removal is still not known");
        }
        shared.fs.flush_aged(age).await;
    }
}

async fn free_removed<S: TxStore>(shared: &Shared<S>, every: Duration) {
    let mut interval = tokio::time::interval(every);
    loop {
        interval.tick().await;
        match shared.fs.reap_waiting().await {
            Ok(()) => {}
            Err(FsError::Store(
                TxError::TimedOut
                | TxError::OutcomeUnknown
                | TxError::Stale(_)
                | TxError::NoRight(_),
            )) => {
                tracing::debug!("cut off, or not allowed: removed files are freed later");
            }
            Err(error) => {
                tracing::warn!(%error, "a removed file could not be freed; `volume check` finds it");
            }
        }
    }
}
