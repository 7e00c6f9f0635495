//! A volume as the file layer uses it, over the cache machine of a simulated node: what
//! `larder::fs::VolumeStore` is over the runtime's.

use super::journal::{self, Who};
use super::port::{Commit, Port};
use bytes::Bytes;
use larder::clock::{now, random_u64, sleep};
use larder::fs::{Mode, Object, SlottedPages, Taken, Tx, TxError, TxStore};
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{
    AgeLimit, BeginError, Consistency, Doom, Finish, Line, Seen, Session, SessionOptions, Step,
    Transaction, TransactionError,
};
use larder_core::commit::{Abort, Op, Outcome, PageKind};
use larder_core::id::{Generation, ObjectId, PageId, PageNo, Slot, Stamp};
use larder_core::message::RequestError;
use larder_core::page::{Page, Record};
use larder_core::rights::Right;
use larder_core::time::{Clock, Instant};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

thread_local! {
    /// Who is being polled.
    pub(super) static POLLED: Cell<Who> = Cell::new(Who::default());
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct SimStore {
    port: Arc<Port>,
    line: Line,
    normal: Arc<Mutex<Session>>,
    snapshots: Arc<Mutex<Session>>,
}

/// A transaction of it.
pub struct SimTx {
    store: SimStore,
    session: Arc<Mutex<Session>>,
    deadline: Instant,
    core: Mutex<Option<Transaction>>,
    who: Who,
}

/// What is to be had before an operation can be tried again.
enum Missing {
    Pages(Vec<PageId>),
    Ids(u64),
    Fresh,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn left(deadline: Instant) -> Result<Duration, TxError> {
    let left = deadline.since(now());
    if left.is_zero() { Err(TxError::TimedOut) } else { Ok(left) }
}

fn request_error(error: RequestError) -> TxError {
    match error {
        RequestError::Deleted(_) => TxError::Deleted,
        RequestError::Damaged { detail, .. } => TxError::Damaged(detail),
        RequestError::TimedOut => TxError::TimedOut,
        RequestError::Forbidden(what) => TxError::Denied(what),
        RequestError::Full(what) => TxError::NoSpace(what),
        RequestError::Denied(denied) => TxError::NoRight(denied.to_string()),
        other => TxError::Unavailable(other.to_string()),
    }
}

fn abort_error(abort: &Abort) -> TxError {
    match abort {
        Abort::Deleted(_) => TxError::Deleted,
        Abort::NoVolume(_) => TxError::Unavailable(abort.to_string()),
        Abort::TooLarge(what) => TxError::TooLarge((*what).into()),
        Abort::Lost(_) => TxError::Damaged(abort.to_string()),
        Abort::Quota { .. } => TxError::Quota(abort.to_string()),
        Abort::Denied(denied) => TxError::NoRight(denied.to_string()),
        _ => TxError::Conflict(abort.to_string()),
    }
}

fn refusal(error: TransactionError) -> TxError {
    match error {
        TransactionError::TooLarge(what) => TxError::TooLarge(what.into()),
        TransactionError::TooOld(_) => TxError::Stale(error.to_string()),
        TransactionError::Gone(object) => TxError::Gone(object.page.page),
        TransactionError::BadPage(page) => TxError::Gone(page.page),
        TransactionError::PageFull(page) => TxError::Full(page.page),
        TransactionError::Damaged(_) => panic!("P5: an object made of two states: {error}"),
        other => TxError::Unavailable(other.to_string()),
    }
}

fn doom_error(doom: &Doom) -> TxError {
    match doom {
        Doom::HistoryLost(_) => TxError::Forked,
        other => TxError::Conflict(other.to_string()),
    }
}

impl SimStore {
    fn note_lost(&self) {
        let life = (self.port.node, self.port.life);
        journal::with(&self.port.journal, |journal| journal.lost.insert(life));
    }

    /// Uses the volume of a port, which is open.
    #[must_use]
    pub fn new(port: Arc<Port>) -> Self {
        let line = port.read.line(port.domain);
        let session = |consistency| {
            let age_limit = if port.choices.leased { AgeLimit::Lease } else { AgeLimit::None };
            let options = SessionOptions { consistency, age_limit, ..SessionOptions::default() };
            let mut session = Session::new(options);
            session.saw(&[Seen { domain: port.domain, line, stamp: Stamp::ZERO }]);
            Arc::new(Mutex::new(session))
        };
        let (normal, snapshots) =
            (session(Consistency::Serializable), session(Consistency::Snapshot));
        Self { port, line, normal, snapshots }
    }

    fn fresh(&self) -> bool {
        !self.port.choices.leased || self.port.read.leased(self.port.domain, self.port.clock.now())
    }

    async fn freshen(&self, deadline: Instant) -> Result<(), TxError> {
        let limit = left(deadline)?.min(self.port.choices.refresh_limit);
        let op = CacheOp::Refresh { domain: self.port.domain };
        self.port.ask(op, limit).await.map_err(request_error)?;
        Ok(())
    }

    fn deadline(&self) -> Instant {
        now().after(self.port.time_limit())
    }

    fn stale() -> TxError {
        TxError::Stale("the state is older than the session allows".into())
    }
}

impl SimTx {
    fn id(&self, page: PageNo) -> PageId {
        PageId { volume: self.store.port.volume, page }
    }

    fn object(&self, page: PageNo, slot: Slot, generation: Generation) -> ObjectId {
        ObjectId { page: self.id(page), slot, generation }
    }

    fn step<T>(
        &self,
        operation: &mut (impl FnMut(&mut Transaction) -> Step<T> + Send),
        refreshed: bool,
    ) -> Result<Result<T, Missing>, TxError> {
        let mut core = guard(&self.core);
        let core = core.as_mut().expect("it is not over while it is used");
        match operation(core) {
            Step::Ready(value) => Ok(Ok(value)),
            Step::Need { pages, .. } => Ok(Err(Missing::Pages(pages))),
            Step::NeedIds { count, .. } => Ok(Err(Missing::Ids(count))),
            Step::Wait(_) => unreachable!("files do not look ahead"),
            Step::Doomed(doom) => Err(doom_error(&doom)),
            Step::Refused(TransactionError::TooOld(_)) if !refreshed => Ok(Err(Missing::Fresh)),
            Step::Refused(error) => Err(refusal(error)),
        }
    }

    async fn run<T: Send>(
        &self,
        mut operation: impl FnMut(&mut Transaction) -> Step<T> + Send,
    ) -> Result<T, TxError> {
        let mut refreshed = false;
        loop {
            let missing = match self.step(&mut operation, refreshed)? {
                Ok(value) => return Ok(value),
                Err(missing) => missing,
            };
            refreshed |= matches!(missing, Missing::Fresh);
            self.supply(missing).await?;
        }
    }

    async fn supply(&self, missing: Missing) -> Result<(), TxError> {
        let port = &self.store.port;
        let limit = left(self.deadline)?;
        match missing {
            Missing::Pages(pages) => {
                let op = CacheOp::Fetch { domain: port.domain, pages, prefetch: false };
                let reply = port.ask(op, limit).await.map_err(request_error)?;
                let CacheReply::Fetched { through, pages } = reply else {
                    panic!("{reply:?} answers no fetch")
                };
                let mut core = guard(&self.core);
                match core.as_mut().expect("see above").supply(through, &pages) {
                    Step::Doomed(doom) => Err(doom_error(&doom)),
                    Step::Refused(error) => Err(refusal(error)),
                    _ => Ok(()),
                }
            }
            Missing::Ids(count) => {
                let op = CacheOp::AllocateIds { volume: port.volume, count };
                let reply = port.ask(op, limit).await.map_err(request_error)?;
                let CacheReply::Ids(range) = reply else { panic!("{reply:?} is no range") };
                guard(&self.core).as_mut().expect("see above").supply_ids(range);
                Ok(())
            }
            Missing::Fresh => {
                // The repetition says how old the state is.
                let _or_not = self.store.freshen(self.deadline).await;
                Ok(())
            }
        }
    }

    async fn value(&self, id: ObjectId, record: Bytes) -> Result<Bytes, TxError> {
        match Record::decode(record) {
            Ok(Record::Inline(value)) => Ok(value),
            Ok(_) => {
                let value = self.run(|tx| tx.read_object(id)).await?;
                value.ok_or(TxError::Gone(id.page.page))
            }
            Err(error) => panic!("P9: {id:?} does not decode: {error}"),
        }
    }

    fn saw(&self, stamp: Option<Stamp>) {
        journal::with(&self.store.port.journal, |journal| journal.saw(self.who, stamp));
    }

    async fn send(&self, commit: Commit) -> Result<Stamp, TxError> {
        let port = &self.store.port;
        let (domain, line) = (commit.part.domain, commit.part.line);
        let limit = left(self.deadline)?;
        match port.commit(commit, limit).await {
            Ok(CacheReply::Outcome(Outcome::Committed(stamp))) => {
                guard(&self.session).saw(&[Seen { domain, line, stamp }]);
                Ok(stamp)
            }
            Ok(CacheReply::Outcome(Outcome::Aborted(abort))) => {
                let error = abort_error(&abort);
                if matches!(error, TxError::Conflict(_)) {
                    let op = CacheOp::Refresh { domain };
                    let _or_not = port.ask(op, left(self.deadline)?).await;
                }
                Err(error)
            }
            Ok(CacheReply::Outcome(Outcome::Unknown) | CacheReply::InDoubt { .. }) => {
                Err(TxError::OutcomeUnknown)
            }
            Ok(other) => panic!("{other:?} is no outcome"),
            // It is not done, and its time is over.
            Err(RequestError::Unavailable(_)) => Err(TxError::TimedOut),
            Err(error) => Err(request_error(error)),
        }
    }
}

impl Drop for SimTx {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(core) = core.take() {
            // It ended with an error, or nobody asked whether what it saw held.
            let domain = self.store.port.domain;
            let stamp = core.stamp(domain);
            drop(core);
            self.saw(stamp);
        }
    }
}

impl Tx for SimTx {
    async fn get(&self, page: PageNo, slot: Slot) -> Result<Option<(Generation, Bytes)>, TxError> {
        let id = self.id(page);
        let Some((generation, record)) = self.run(|tx| tx.read_slot(id, slot)).await? else {
            return Ok(None);
        };
        let value = self.value(self.object(page, slot, generation), record).await?;
        Ok(Some((generation, value)))
    }

    async fn get_all(&self, page: PageNo) -> Result<Option<Vec<Object>>, TxError> {
        let id = self.id(page);
        let Some(records) = self.run(|tx| tx.read_all(id)).await? else { return Ok(None) };
        let mut objects = Vec::with_capacity(records.len());
        for (slot, generation, record) in records {
            let value = self.value(self.object(page, slot, generation), record).await?;
            objects.push((slot, generation, value));
        }
        Ok(Some(objects))
    }

    async fn slots(&self, page: PageNo) -> Result<Option<Vec<(Slot, Generation)>>, TxError> {
        let id = self.id(page);
        self.run(|tx| tx.slots(id)).await
    }

    async fn get_raw(&self, page: PageNo) -> Result<Option<Bytes>, TxError> {
        let id = self.id(page);
        self.run(|tx| tx.read_raw(id)).await
    }

    async fn room(&self, page: PageNo) -> Result<Option<usize>, TxError> {
        let (id, bytes) = (self.id(page), self.store.port.page_bytes);
        let room = |page: &Page| (page.kind() == PageKind::Slotted).then(|| page.free_bytes(bytes));
        Ok(self.run(|tx| tx.hint(id, room)).await?.flatten())
    }

    async fn fetch(&self, pages: &[PageNo]) -> Result<(), TxError> {
        let held =
            |page: &PageId| self.store.port.read.peek(*page).is_some_and(|copy| copy.complete());
        let missing: Vec<PageId> =
            pages.iter().map(|page| self.id(*page)).filter(|page| !held(page)).collect();
        if missing.is_empty() { Ok(()) } else { self.supply(Missing::Pages(missing)).await }
    }

    async fn create_page(&self, page: PageNo, kind: PageKind) -> Result<(), TxError> {
        let id = self.id(page);
        self.run(|tx| tx.write(id, Op::CreatePage(kind))).await
    }

    async fn create_named_page(&self, page: PageNo, kind: PageKind) -> Result<(), TxError> {
        let id = self.id(page);
        self.run(|tx| tx.create_named_page(id, kind)).await
    }

    async fn delete_page(&self, page: PageNo) -> Result<(), TxError> {
        let id = self.id(page);
        self.run(|tx| tx.write(id, Op::DeletePage)).await
    }

    async fn create(&self, page: PageNo, slot: Slot, value: Bytes) -> Result<Generation, TxError> {
        let id = self.id(page);
        let made = self.run(|tx| tx.create_object(id, Some(slot), value.clone())).await?;
        Ok(made.generation)
    }

    async fn put(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        value: Bytes,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        self.run(|tx| tx.update_object(id, value.clone())).await
    }

    async fn delete(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        self.run(|tx| tx.delete_object(id)).await
    }

    async fn add(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        delta: i64,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        self.run(|tx| tx.add_to_object(id, offset, delta)).await
    }

    async fn max(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        value: u64,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        self.run(|tx| tx.max_in_object(id, offset, value)).await
    }

    async fn write_raw(&self, page: PageNo, offset: u32, bytes: Bytes) -> Result<(), TxError> {
        let id = self.id(page);
        self.run(|tx| tx.write(id, Op::WriteRaw { offset, bytes: bytes.clone() })).await
    }

    async fn truncate_raw(&self, page: PageNo, length: u32) -> Result<(), TxError> {
        let id = self.id(page);
        self.run(|tx| tx.write(id, Op::TruncateRaw { length })).await
    }

    fn writes(&self) -> bool {
        guard(&self.core).as_ref().is_some_and(|core| !core.writes().is_empty())
    }

    async fn commit(self) -> Result<(), TxError> {
        let core = guard(&self.core).take().expect("it is committed once");
        match core.finish() {
            Finish::Local { seen, .. } => {
                let domain = self.store.port.domain;
                let stamp = seen.iter().find(|seen| seen.domain == domain).map(|seen| seen.stamp);
                self.saw(stamp);
                match guard(&self.session).saw(&seen) {
                    None => Ok(()),
                    Some(_) => Err(TxError::Forked),
                }
            }
            Finish::Doomed(doom) => Err(doom_error(&doom)),
            Finish::Refused(TransactionError::TooOld(_)) => Err(SimStore::stale()),
            Finish::Refused(error) => Err(refusal(error)),
            Finish::Send { parts, .. } => {
                let mut last = None;
                for part in parts {
                    last = Some(self.send(Commit { part, who: self.who }).await?);
                }
                self.saw(last);
                Ok(())
            }
        }
    }
}

impl TxStore for SimStore {
    type Tx = SimTx;

    fn page_bytes(&self) -> u32 {
        self.port.page_bytes
    }

    async fn begin(&self, mode: Mode) -> Result<SimTx, TxError> {
        self.standing()?;
        let who = POLLED.get();
        let deadline = self.deadline();
        if !self.fresh() && self.freshen(deadline).await.is_err() {
            return Err(Self::stale());
        }
        let session = match mode {
            Mode::Normal => &self.normal,
            Mode::Snapshot => &self.snapshots,
        };
        loop {
            let begun = guard(session).begin(&self.port.read);
            match begun {
                Ok(core) => {
                    let (store, session) = (self.clone(), session.clone());
                    return Ok(SimTx {
                        store,
                        session,
                        deadline,
                        core: Mutex::new(Some(core)),
                        who,
                    });
                }
                Err(BeginError::Wait(awaited)) => {
                    let op = CacheOp::WaitThrough(awaited);
                    self.port.ask(op, left(deadline)?).await.map_err(request_error)?;
                }
                // Its sessions write in one domain, and are told the stamp of that.
                Err(BeginError::Unseen { domain, .. }) => unreachable!("{domain:?} is alone"),
                Err(BeginError::HistoryLost(_)) => {
                    self.note_lost();
                    return Err(TxError::Forked);
                }
                Err(BeginError::TooMany) => {
                    left(deadline)?;
                    sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }

    async fn refresh(&self) -> Result<(), TxError> {
        self.freshen(self.deadline()).await
    }

    async fn allocate(&self, count: u64) -> Result<PageNo, TxError> {
        let op = CacheOp::AllocateIds { volume: self.port.volume, count };
        match self.port.ask(op, self.port.time_limit()).await.map_err(request_error)? {
            CacheReply::Ids(range) if range.count >= count => Ok(range.first),
            CacheReply::Ids(_) => Err(TxError::Unavailable("too few numbers".into())),
            other => panic!("{other:?} is no range"),
        }
    }

    fn history(&self) -> u128 {
        self.port.read.history(self.port.domain).map_or(0, |history| history.0)
    }

    fn standing(&self) -> Result<(), TxError> {
        let read = &self.port.read;
        if read.is_deleted(self.port.volume) {
            Err(TxError::Deleted)
        } else if read.line(self.port.domain) != self.line {
            self.note_lost();
            Err(TxError::Forked)
        } else if self.right() < Right::Read {
            Err(TxError::NoRight("the volume may not be read".into()))
        } else {
            Ok(())
        }
    }

    fn right(&self) -> Right {
        self.port.read.right(self.port.volume)
    }

    fn prefetch(&self, pages: &[PageNo]) {
        let pages: Vec<PageId> =
            pages.iter().map(|page| PageId { volume: self.port.volume, page: *page }).collect();
        let op = CacheOp::Fetch { domain: self.port.domain, pages, prefetch: true };
        self.port.tell(op);
    }

    async fn pause(&self, attempt: u32) {
        let wait = (1 << attempt.min(7)) * (500 + random_u64() % 1009);
        sleep(Duration::from_micros(wait)).await;
    }

    fn now(&self) -> i64 {
        self.port.wall()
    }

    fn current_for(&self) -> Option<Duration> {
        let left = self.port.read.lease_left(self.port.domain, self.port.clock.now());
        Some(left.min(Duration::from_secs(60)))
    }

    async fn taken(&self) -> Taken {
        Taken::default()
    }

    fn free_seen(&self) -> Option<u64> {
        (!self.port.choices.ample).then_some(0)
    }

    fn look_at_room(&self) {}

    async fn slotted_pages(&self) -> Result<SlottedPages, TxError> {
        Err(TxError::Unavailable("nobody repairs here".into()))
    }

    fn count_lost(&self, _bytes: u64) {
        self.note_lost();
    }
}
