//! What a process of files does: it opens the tree, lets its clients work on it, tends it as a mount
//! does, and ends it well when all is over.

use super::journal::{self, Answer, Ask, Journal, Place, Who};
use super::plan::{Action, FilesPlan};
use super::port::Port;
use super::store::{POLLED, SimStore};
use super::turns::Turn;
use crate::agenda::Time;
use crate::decisions::FileTurn;
use crate::plan::{pick, weighted};
use bytes::{BufMut, Bytes, BytesMut};
use larder::clock::{instant, sleep, spawn};
use larder::fs::{
    Allocate, Create, FileSystem, FsError, Handle, InodeId, Kind, LockAsk, LockKind, Position,
    RenameMode, SetAttr, TxError, XattrMode,
};
use larder_core::cache::io::CacheOp;
use larder_core::message::{RequestError, VolumeSpec};
use larder_core::rng::Rng;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;

type Files = FileSystem<SimStore>;

/// Between two tries of something that fails.
const AGAIN: Duration = Duration::from_millis(300);
/// The same once it failed often.
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// What fails at the end is tried again for so long.
const END: Duration = Duration::from_secs(60);
/// Bytes of a page's content; and of what is beyond what one transaction frees.
const PAGE: u64 = 4_064;
/// Directories and files that are remembered.
const KNOWN_MAX: usize = 12;
/// Handles of a client.
const HANDLES_MAX: usize = 4;

/// What all tasks of a process share.
struct Process {
    port: Arc<Port>,
    plan: Arc<FilesPlan>,
    files: Arc<Files>,
    /// Clients that work still.
    working: AtomicUsize,
    ended: Notify,
    /// The tree is to be opened anew.
    over: AtomicBool,
    /// All clients are done.
    ends: AtomicBool,
    /// The background has not seen that yet.
    tends_on: AtomicBool,
}

/// Has work counted as somebody's.
fn as_who<T>(who: Who, work: impl Future<Output = T>) -> impl Future<Output = T> {
    let mut work = Box::pin(work);
    std::future::poll_fn(move |cx| {
        let before = POLLED.replace(who);
        let polled = work.as_mut().poll(cx);
        POLLED.set(before);
        polled
    })
}

/// Lives as long as its node.
pub(super) async fn process(port: Arc<Port>, plan: Arc<FilesPlan>, spec: VolumeSpec) {
    let drains = || journal::with(&port.journal, |journal| journal.drains);
    loop {
        // It may have been lost in a restore.
        let op = CacheOp::CreateVolume(spec.clone());
        match port.ask(op, port.time_limit()).await {
            Ok(_) => {}
            Err(RequestError::Deleted(_)) => return,
            Err(_) if drains() => return,
            Err(_) => {
                sleep(AGAIN).await;
                continue;
            }
        }
        let store = SimStore::new(port.clone());
        let opened = Files::open_or_format(store, plan.options(), plan.key);
        match opened.await {
            Ok(files) => work_on(port.clone(), plan.clone(), Arc::new(files)).await,
            Err(FsError::Store(TxError::Deleted)) => return,
            Err(FsError::Store(_)) => {}
            Err(error) => panic!("files: the tree cannot be opened: {error}"),
        }
        if drains() {
            return;
        }
        sleep(AGAIN).await;
    }
}

async fn work_on(port: Arc<Port>, plan: Arc<FilesPlan>, files: Arc<Files>) {
    let (journal, life) = (port.journal.clone(), (port.node, port.life));
    files.when_another(move |from, to| {
        journal::with(&journal, |journal| journal.become_another(life, from, to));
    });
    let working = AtomicUsize::new(usize::from(plan.clients));
    let (ended, over) = (Notify::new(), AtomicBool::new(false));
    let (ends, tends_on) = (AtomicBool::new(false), AtomicBool::new(true));
    let process = Arc::new(Process { port, plan, files, working, ended, over, ends, tends_on });
    for client in 0..process.plan.clients {
        start(client_of(process.clone(), client));
    }
    start(commits(process.clone()));
    start(tends(process.clone()));
    while process.working.load(Ordering::SeqCst) > 0 {
        process.ended.notified().await;
    }
    process.ends.store(true, Ordering::SeqCst);
    // What is being freed is waited for: whoever let go of it in the middle would leave it to a sweep.
    while !process.over.load(Ordering::SeqCst) && process.tends_on.load(Ordering::SeqCst) {
        sleep(AGAIN).await;
    }
    if !process.over.load(Ordering::SeqCst) {
        end(&process).await;
    }
    process.over.store(true, Ordering::SeqCst);
}

fn start(work: impl Future<Output = ()> + Send + 'static) {
    assert!(spawn(work).is_ok(), "there is a simulation around");
}

/// What a mount does in the background, until the tree is closed.
async fn until_over(process: &Process, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    let mut looks = pin!(async {
        while !process.over.load(Ordering::SeqCst) {
            sleep(AGAIN).await;
        }
    });
    std::future::poll_fn(|cx| {
        let over = looks.as_mut().poll(cx).is_ready() || work.as_mut().poll(cx).is_ready();
        if over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn commits(process: Arc<Process>) {
    if process.plan.late {
        until_over(&process, process.files.commit_closed()).await;
    }
}

async fn tends(process: Arc<Process>) {
    let age = process.plan.write_back_age;
    let (files, plan) = (&process.files, &process.plan);
    until_over(&process, async {
        let (mut locks, mut orphans) = (instant(), instant());
        loop {
            sleep((age / 4).max(Duration::from_millis(100))).await;
            // What fails is tried again; the operations of clients tell what matters.
            let _later = files.settle_unknown().await;
            files.flush_aged(age).await;
            let _later = files.reap_waiting().await;
            // From the end of one renewal to the next, as a mount counts: else one would always be under
            // way where the store is slow, and clients who write to the same would never have their turn.
            if instant().duration_since(locks) >= files.lock_renewal() {
                let _later = files.tend_locks().await;
                let _later = files.release_owed_locks().await;
                locks = instant();
            }
            if instant().duration_since(orphans) >= plan.options().orphan_touch() {
                let _later = files.tend_orphans().await;
                orphans = instant();
            }
            if process.ends.load(Ordering::SeqCst) {
                break;
            }
        }
    })
    .await;
    process.tends_on.store(false, Ordering::SeqCst);
}

/// Ends it as an unmount does, the line being whole. What is refused for want of a right is left.
async fn end(process: &Process) {
    let files = &process.files;
    let (begun, mut pause) = (instant(), AGAIN);
    while instant().duration_since(begun) < END {
        let settled = files.settle_unknown().await;
        let flushed = files.flush_all().await;
        let reaped = files.reap_waiting().await;
        let unlocked = files.release_all_locks().await;
        let emptied = files.free_empty_pages().await;
        let all = settled.and(reaped).and(unlocked).and(emptied);
        if all.is_ok() && !files.has_waiting() {
            break;
        }
        // What is lost is lost: it was told.
        let _told = flushed;
        // Whatever is refused looks at all its pages anew each time.
        sleep(pause).await;
        pause = (2 * pause).min(AGAIN_MAX);
    }
}

/// A client's open files.
struct Client {
    process: Arc<Process>,
    number: u16,
    handles: Vec<Handle>,
    /// What is being done.
    who: Who,
}

async fn client_of(process: Arc<Process>, number: u16) {
    let (node, life) = (process.port.node, process.port.life);
    let who = Who { node, life, client: number, number: 0 };
    let mut client = Client { process: process.clone(), number, handles: Vec::new(), who };
    while !process.over.load(Ordering::SeqCst) {
        let drains = journal::with(&process.port.journal, |journal| journal.drains);
        if drains {
            break;
        }
        client.next().await;
    }
    client.close_all().await;
    drop(client);
    process.working.fetch_sub(1, Ordering::SeqCst);
    process.ended.notify_waiters();
    process.ended.notify_one();
}

fn kind_of(kind: u8) -> Kind {
    match kind {
        super::tree::DIRECTORY => Kind::Directory,
        super::tree::SYMLINK => Kind::Symlink,
        _ => Kind::File,
    }
}

impl Client {
    fn files(&self) -> Arc<Files> {
        self.process.files.clone()
    }

    fn journal<T>(&self, act: impl FnOnce(&mut Journal) -> T) -> T {
        journal::with(&self.process.port.journal, act)
    }

    /// Draws the next operation from what it is about, and does it.
    async fn next(&mut self) {
        let plan = self.process.plan.clone();
        let (node, client) = (self.process.port.node, self.number);
        let (number, given) = match self.journal(|journal| journal.turns.next(node, client)) {
            Turn::Free(number) => (number, None),
            Turn::Given(number, at) => (number, Some(at)),
            Turn::Rest => return sleep(AGAIN).await,
        };
        self.who.number = number;
        let seed = plan.seed ^ (u64::from(node) << 48) ^ (u64::from(client) << 40);
        let mut rng = Rng::new(seed.wrapping_add(u64::from(number)));
        let think = 1 + rng.below(self.process.port.think(plan.think));
        let now = Time(larder::clock::now().0);
        let at = given.unwrap_or(now.plus(think)).max(now);
        let action = weighted(&mut rng, &plan.actions);
        let kind = format!("{action:?}");
        self.journal(|journal| {
            journal.turns.note(FileTurn { node, client, number, at, kind });
        });
        sleep(Duration::from_nanos(at.0 - now.0)).await;
        let ask = self.draw(action, &mut rng);
        let Some(ask) = ask else { return };
        let changes = !matches!(
            ask,
            Ask::Lookup(_) | Ask::Look(_) | Ask::List(_) | Ask::Read(..) | Ask::LookXattr(_)
        );
        if plan.late && changes && !matches!(ask, Ask::Write(..) | Ask::CreateLate(..)) {
            self.files().after_closes().await;
        }
        let place = rng.below(HANDLES_MAX as u64) as usize;
        self.journal(|journal| journal.begin(self.who, ask.clone()));
        let answer = self.perform(&ask, place, &mut rng).await;
        if matches!(answer, Err(FsError::Store(TxError::Forked | TxError::Deleted))) {
            self.process.over.store(true, Ordering::SeqCst);
        }
        if let Err(FsError::Damaged(what)) = &answer {
            panic!("files: {:?} finds damage: {what}", self.who);
        }
        self.journal(|journal| journal.end(self.who, answer));
    }

    async fn close_all(&mut self) {
        while let Some(handle) = self.handles.pop() {
            self.close(handle).await;
        }
    }

    async fn close(&mut self, handle: Handle) {
        let id = handle.id();
        let (node, life) = (self.process.port.node, self.process.port.life);
        self.journal(|journal| journal.let_go((node, life, id)));
        let files = self.files();
        if !self.process.plan.late || files.close_late(&handle).is_none() {
            let _told = files.flush(&handle).await;
        }
        let _told = files.release_unheard(&handle).await;
    }

    fn keep(&mut self, handle: Handle) {
        let held = (self.process.port.node, self.process.port.life, handle.id());
        self.journal(|journal| {
            *journal.held.entry(held).or_default() += 1;
            journal.know_file(held.2);
        });
        self.handles.push(handle);
    }

    fn name(&self, rng: &mut Rng) -> Bytes {
        let names = &self.process.plan.names;
        Bytes::from(names[rng.below(names.len() as u64) as usize].clone())
    }

    fn place(&self, rng: &mut Rng) -> Place {
        let root = self.files().root();
        let known = self.journal(|journal| journal.directories.clone());
        let directory = if known.is_empty() || rng.chance(1, 2) { root } else { pick(rng, &known) };
        (directory, self.name(rng))
    }

    fn draw(&mut self, action: Action, rng: &mut Rng) -> Option<Ask> {
        let file =
            self.journal(|journal| (!journal.files.is_empty()).then(|| pick(rng, &journal.files)));
        let held = (!self.handles.is_empty())
            .then(|| self.handles[rng.below(self.handles.len() as u64) as usize].id());
        let offset = match rng.below(8) {
            0..=3 => rng.below(64) * 8,
            4..=6 => rng.below(3 * PAGE / 8) * 8,
            _ => pick(rng, &[16, 40, 300]).min(self.process.plan.far) * PAGE + rng.below(100) * 8,
        };
        let most = pick(rng, &[4, 60, 700]);
        let length = 8 * (1 + rng.below(most));
        Some(match action {
            Action::Create => Ask::Create(self.place(rng), super::tree::FILE),
            Action::Mkdir => Ask::Create(self.place(rng), super::tree::DIRECTORY),
            Action::Symlink => Ask::Create(self.place(rng), super::tree::SYMLINK),
            Action::CreateLate => Ask::CreateLate(self.place(rng), rng.chance(1, 2)),
            Action::Link => Ask::Link(file?, self.place(rng)),
            Action::Unlink => Ask::Unlink(self.place(rng)),
            Action::Rmdir => Ask::Rmdir(self.place(rng)),
            Action::Rename => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = if rng.chance(1, 2) { modes[0] } else { pick(rng, &modes) };
                Ask::Rename(self.place(rng), self.place(rng), mode)
            }
            Action::Resize => {
                let size = if rng.chance(1, 3) { 0 } else { offset };
                Ask::Resize(file?, size)
            }
            Action::Mode => Ask::Mode(file?, 0o600 | rng.below(0o200) as u16),
            Action::Xattr => Ask::Xattr(file?, rng.chance(3, 4).then(|| rng.below(1 << 40))),
            Action::Open => Ask::Open(file?),
            Action::Write => {
                let tag = self.journal(Journal::new_tag);
                Ask::Write(held?, offset, offset + length, tag)
            }
            Action::Punch => Ask::Punch(held?, offset, offset + length),
            Action::Flush => Ask::Flush(held?),
            Action::Close => Ask::Close(held?),
            Action::Lock => Ask::Lock(held?, rng.chance(1, 2)),
            Action::Lookup => Ask::Lookup(self.place(rng)),
            Action::Look => Ask::Look(file?),
            Action::List => Ask::List(self.place(rng).0),
            Action::Read => Ask::Read(held?, offset, offset + length),
            Action::LookXattr => Ask::LookXattr(file?),
        })
    }

    async fn perform(&mut self, ask: &Ask, place: usize, rng: &mut Rng) -> Result<Answer, FsError> {
        let files = self.files();
        let who = self.who;
        match ask {
            Ask::Create(at, kind) => self.create(at, *kind).await,
            Ask::CreateLate(at, truncates) => self.create_late(at, *truncates).await,
            Ask::Open(id) => {
                if self.handles.len() >= HANDLES_MAX {
                    let handle = self.handles.remove(place.min(self.handles.len() - 1));
                    self.close(handle).await;
                }
                let (handle, _) = as_who(who, files.open_file(*id)).await?;
                self.keep(handle);
                Ok(Answer::Done)
            }
            Ask::Close(id) => {
                let Some(at) = self.handles.iter().position(|handle| handle.id() == *id) else {
                    return Ok(Answer::Done);
                };
                let handle = self.handles.remove(at);
                self.close(handle).await;
                Ok(Answer::Done)
            }
            Ask::Write(id, ..)
            | Ask::Punch(id, ..)
            | Ask::Flush(id)
            | Ask::Lock(id, _)
            | Ask::Read(id, ..) => {
                let Some(at) = self.handles.iter().position(|handle| handle.id() == *id) else {
                    return Ok(Answer::Done);
                };
                let handle = self.handles.swap_remove(at);
                let done = self.with_handle(ask, &handle, rng).await;
                self.handles.push(handle);
                done
            }
            _ => as_who(who, by_name(&files, ask)).await,
        }
    }

    async fn create(&mut self, (directory, name): &Place, kind: u8) -> Result<Answer, FsError> {
        let (files, who) = (self.files(), self.who);
        let target = if kind == super::tree::SYMLINK { name.clone() } else { Bytes::new() };
        let create = Create {
            kind: kind_of(kind),
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            target,
            device: 0,
        };
        let id = if kind == super::tree::FILE && self.handles.len() < HANDLES_MAX {
            let (handle, found) = as_who(who, files.create_file(*directory, name, &create)).await?;
            self.keep(handle);
            found.attr
        } else {
            as_who(who, files.create(*directory, name, &create)).await?.attr
        };
        let id = id.map(|attr| attr.id);
        if let Some(id) = id {
            self.journal(|journal| match kind {
                super::tree::DIRECTORY => journal.know_directory(id),
                super::tree::FILE => journal.know_file(id),
                _ => {}
            });
        }
        Ok(Answer::Found(id))
    }

    async fn create_late(
        &mut self,
        (directory, name): &Place,
        truncates: bool,
    ) -> Result<Answer, FsError> {
        let (files, who) = (self.files(), self.who);
        let create = Create {
            kind: Kind::File,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            target: Bytes::new(),
            device: 0,
        };
        if self.handles.len() >= HANDLES_MAX {
            let handle = self.handles.remove(0);
            self.close(handle).await;
        }
        let made = as_who(who, files.create_late(*directory, name, &create, truncates)).await?;
        let Some((handle, found)) = made else {
            // As a mount does then; the operation is another for the checker.
            return Ok(Answer::Found(None));
        };
        self.keep(handle);
        Ok(Answer::Found(found.attr.map(|attr| attr.id)))
    }

    async fn with_handle(
        &mut self,
        ask: &Ask,
        handle: &Handle,
        rng: &mut Rng,
    ) -> Result<Answer, FsError> {
        let (files, who) = (self.files(), self.who);
        match *ask {
            Ask::Write(id, from, to, tag) => {
                self.journal(|journal| journal.writes(tag, who, id, (from, to)));
                let mut bytes = BytesMut::with_capacity((to - from) as usize);
                for _ in 0..(to - from) / 8 {
                    bytes.put_u64_le(tag);
                }
                as_who(who, files.write(handle, from, bytes.freeze())).await?;
                self.journal(|journal| journal.wrote(tag, handle.id()));
            }
            Ask::Punch(_, from, to) => {
                let how = if rng.chance(1, 2) { Allocate::PunchHole } else { Allocate::ZeroRange };
                let until = instant() + self.process.port.time_limit();
                let until = tokio::time::Instant::from_std(until);
                as_who(who, files.allocate(handle, from..to, how, until)).await?;
            }
            Ask::Flush(_) => as_who(who, files.flush(handle)).await?,
            Ask::Lock(_, exclusive) => return self.lock(handle, exclusive, rng).await,
            Ask::Read(_, from, to) => {
                let read = as_who(who, files.read(handle, from, (to - from) as usize)).await?;
                return Ok(Answer::Bytes(read));
            }
            _ => unreachable!("it needs no handle"),
        }
        Ok(Answer::Done)
    }

    /// Takes a lock of the whole file, holds it for a while, and releases it.
    async fn lock(
        &mut self,
        handle: &Handle,
        exclusive: bool,
        rng: &mut Rng,
    ) -> Result<Answer, FsError> {
        let (files, who, id) = (self.files(), self.who, handle.id());
        let owner = u64::from(self.number) + 1;
        let kind = if exclusive { LockKind::Write } else { LockKind::Read };
        let ask = LockAsk { owner, pid: u32::from(self.number) + 1, kind, start: 0, end: u64::MAX };
        if as_who(who, files.lock(id, &ask)).await?.is_some() {
            return Ok(Answer::InTheWay);
        }
        sleep(Duration::from_nanos(1 + rng.below(self.process.plan.think))).await;
        as_who(who, files.unlock(id, owner, 0, u64::MAX)).await?;
        files.lock_file_closed(id);
        Ok(Answer::Done)
    }
}

async fn by_name(files: &Files, ask: &Ask) -> Result<Answer, FsError> {
    match ask {
        Ask::Link(id, (directory, name)) => {
            files.link(*id, *directory, name).await?;
        }
        Ask::Unlink((directory, name)) => files.unlink(*directory, name).await?,
        Ask::Rmdir((directory, name)) => files.rmdir(*directory, name).await?,
        Ask::Rename(from, to, mode) => {
            files.rename((from.0, &from.1), (to.0, &to.1), *mode).await?;
        }
        Ask::Resize(id, size) => {
            let set = SetAttr { size: Some(*size), ..SetAttr::default() };
            files.setattr(*id, set).await?;
        }
        Ask::Mode(id, mode) => {
            let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
            files.setattr(*id, set).await?;
        }
        Ask::Xattr(id, Some(value)) => {
            let value = value.to_le_bytes().repeat(1 + (value % 90) as usize);
            files.set_xattr(*id, (b"user.a", &value), XattrMode::Any, false).await?;
        }
        Ask::Xattr(id, None) => {
            files.remove_xattr(*id, b"user.a").await?;
        }
        Ask::Lookup((directory, name)) => {
            let found = files.lookup(*directory, name).await?;
            return Ok(Answer::Found(found.attr.map(|attr| attr.id)));
        }
        Ask::Look(id) => {
            let inode = files.getattr(*id).await?.inode;
            return Ok(Answer::Attr(inode.links, inode.size));
        }
        Ask::List(id) => {
            let names = files.read_dir(*id, &Position::default(), usize::MAX, false).await?;
            let names = names.into_iter().map(|listed| (listed.entry.name, listed.entry.id));
            return Ok(Answer::Names(names.collect()));
        }
        Ask::LookXattr(id) => {
            let value = files.xattr(*id, b"user.a").await?;
            return Ok(Answer::Bytes(value));
        }
        _ => unreachable!("it needs a handle: {ask:?}"),
    }
    Ok(Answer::Done)
}

impl Journal {
    fn new_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    fn know_directory(&mut self, id: InodeId) {
        if !self.directories.contains(&id) {
            self.directories.push(id);
        }
        if self.directories.len() > KNOWN_MAX / 2 {
            self.directories.remove(0);
        }
    }

    fn know_file(&mut self, id: InodeId) {
        if !self.files.contains(&id) {
            self.files.push(id);
        }
        if self.files.len() > KNOWN_MAX {
            self.files.remove(0);
        }
    }

    fn let_go(&mut self, held: (u16, u32, InodeId)) {
        if let Some(count) = self.held.get_mut(&held) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&held);
            }
        }
    }
}
