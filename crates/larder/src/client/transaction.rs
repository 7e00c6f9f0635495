//! A transaction, as its user sees it.

use super::error::SentPart;
use super::ids;
use super::requests::NoAnswer;
use super::session::{SessionShared, remaining};
use super::{Error, InDoubt, Result};
use crate::clock::now;
use crate::metrics::Ending;
use crate::planted::{RuntimeFault, planted};
use bytes::Bytes;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{self, Awaited, CommitPart, Doom, Finish, Line, Step, TransactionError};
use larder_core::commit::{Abort, Op, Outcome, PageKind};
use larder_core::id::{DomainId, Generation, ObjectId, PageId, PageNo, Slot, Stamp, VolumeId};
use larder_core::message::RequestError;
use larder_core::page::Record;
use larder_core::time::Instant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many answers of the parent may be too old when they are looked at, of one operation: then the line
/// takes longer than its session allows a state to be old, and asking on would only load it. A task that
/// is held up, on a loaded machine, finds them too old as well: not so often in a row.
const LATE_MAX: u32 = 10;

/// An object read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its name.
    pub id: ObjectId,
    /// Its bytes.
    pub value: Bytes,
}

/// A point of a transaction to which its writes can be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint(cache::Savepoint);

/// How a transaction ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The commit's stamp; for a transaction without writes the stamp at which all it read held.
    pub stamp: Stamp,
    /// It only read, from several domains: serializable in each, not at one instant across them.
    pub per_domain: bool,
}

/// A unit of work: everything it reads is of one state (at its end, of a session that looks [ahead](super::SessionOptions::ahead)), everything it writes is done at once or
/// not at all. A handle: cloning it gives another handle to the same transaction, so that reads
/// may run side by side. Dropping the last handle aborts it.
///
/// A read of something cached is ready at the first poll; a miss fetches the page and waits at
/// most the session's time limit. Any call may return [`Error::Conflict`]: something read before
/// has changed, and the transaction can only be run again.
#[derive(Clone)]
pub struct Transaction {
    shared: Arc<Shared>,
}

struct Shared {
    session: Arc<SessionShared>,
    deadline: Instant,
    read_only: bool,
    state: Mutex<State>,
}

struct State {
    /// None: the transaction is over.
    core: Option<cache::Transaction>,
    hits: u64,
    misses: u64,
    doom: Option<Doom>,
    /// In which history the page numbers were asked for that the core holds.
    asked: BTreeMap<VolumeId, ids::Asked>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut core) = state.core.take() {
            give_back(&self.session, &mut core, &state.asked);
        }
    }
}

/// Page numbers that were not used go back to the node.
fn give_back(
    session: &SessionShared,
    core: &mut cache::Transaction,
    asked: &BTreeMap<VolumeId, ids::Asked>,
) {
    for range in core.take_unused_ids() {
        session.node.ids.put(range, asked.get(&range.volume).copied().flatten());
    }
}

/// What is left to do before an operation can be tried again.
enum Missing {
    Pages(DomainId, Vec<PageId>),
    Ids(VolumeId, u64),
    Fresh(DomainId),
    Through(Awaited),
}

/// What an operation has been through.
#[derive(Clone, Copy, Default)]
struct Tried {
    /// It was tried before: neither a hit nor another miss.
    before: bool,
    /// When the state was last asked for anew for it, and until when it is again: who is held up
    /// between the answer and the read for longer than the session's limit of age asks again.
    refreshed: Option<(Instant, Instant)>,
    /// How many answers were too old when they came.
    late: u32,
}

impl Tried {
    /// Whether a state of this age stays too old: there was time enough to confirm it, no answer is
    /// young enough when it comes, or what was read is no younger by that, since it is a snapshot that
    /// the domain has moved on from.
    fn in_vain(&self, age: Option<Duration>) -> bool {
        self.refreshed.is_some_and(|(begun, until)| {
            let now = now();
            let late = self.late >= LATE_MAX;
            late || until <= now || age.is_none_or(|age| age > now.since(begun))
        })
    }
}

impl Transaction {
    pub(super) fn new(
        core: cache::Transaction,
        session: Arc<SessionShared>,
        deadline: Instant,
        read_only: bool,
    ) -> Self {
        let core = Some(core);
        let asked = BTreeMap::new();
        let state = Mutex::new(State { core, hits: 0, misses: 0, doom: None, asked });
        Self { shared: Arc::new(Shared { session, deadline, read_only, state }) }
    }

    // ---- objects ----

    /// An object's bytes. [`Error::Gone`] when it was deleted or its slot holds a later object.
    pub async fn get(&self, id: ObjectId) -> Result<Bytes> {
        match self.hit(id) {
            Some(value) => Ok(value),
            None => self.read(|tx| tx.read_object(id)).await?.ok_or(Error::Gone(id)),
        }
    }

    /// An object's bytes; none: it was deleted, or its slot holds a later object.
    pub async fn find(&self, id: ObjectId) -> Result<Option<Bytes>> {
        match self.hit(id) {
            Some(value) => Ok(Some(value)),
            None => self.read(|tx| tx.read_object(id)).await,
        }
    }

    /// A hit, on the short road: nothing is matched or moved on the way.
    #[inline]
    fn hit(&self, id: ObjectId) -> Option<Bytes> {
        let mut state = self.lock();
        let value = state.core.as_mut()?.hit(id)?;
        state.hits += 1;
        Some(value)
    }

    /// What a slot holds, whatever its generation. Finding nothing is a read too: somebody's
    /// filling the slot conflicts with it.
    pub async fn read_slot(&self, page: PageId, slot: Slot) -> Result<Option<Object>> {
        let Some((generation, record)) = self.read(|tx| tx.read_slot(page, slot)).await? else {
            return Ok(None);
        };
        let id = ObjectId { page, slot, generation };
        let value = self.value(id, record).await?;
        Ok(Some(Object { id, value }))
    }

    /// Whether a slot is filled, and with which generation. Conflicts with creation and deletion
    /// only, not with updates.
    pub async fn exists(&self, page: PageId, slot: Slot) -> Result<Option<Generation>> {
        self.read(|tx| tx.exists(page, slot)).await
    }

    /// Which slots of a page are filled, ascending; none: there is no such page. Conflicts with
    /// creations and deletions in the page.
    pub async fn slots(&self, page: PageId) -> Result<Option<Vec<(Slot, Generation)>>> {
        self.read(|tx| tx.slots(page)).await
    }

    /// All objects of a page, ascending by slot; none: there is no such page. Conflicts with every
    /// change in the page.
    pub async fn read_all(&self, page: PageId) -> Result<Option<Vec<Object>>> {
        let Some(records) = self.read(|tx| tx.read_all(page)).await? else {
            return Ok(None);
        };
        let mut objects = Vec::with_capacity(records.len());
        for (slot, generation, record) in records {
            let id = ObjectId { page, slot, generation };
            let value = self.value(id, record).await?;
            objects.push(Object { id, value });
        }
        Ok(Some(objects))
    }

    /// The value of a record just read. One that lies elsewhere is fetched from there.
    async fn value(&self, id: ObjectId, record: Bytes) -> Result<Bytes> {
        match Record::decode(record) {
            Ok(Record::Inline(value)) => Ok(value),
            Ok(Record::Forward(_) | Record::Large { .. }) => self.get(id).await,
            Err(error) => Err(Error::Damaged { page: id.page, detail: error.to_string() }),
        }
    }

    /// Creates an object in an empty slot; [`Error::Invalid`] when the slot is filled.
    pub async fn create_at(
        &self,
        page: PageId,
        slot: Slot,
        value: impl Into<Bytes> + Send,
    ) -> Result<ObjectId> {
        let value = value.into();
        self.write_with(|tx| tx.create_object(page, Some(slot), value.clone())).await
    }

    /// Creates an object in a page, in its lowest empty slot. [`Error::PageFull`] when there is no
    /// room.
    pub async fn create(&self, page: PageId, value: impl Into<Bytes> + Send) -> Result<ObjectId> {
        let value = value.into();
        self.write_with(|tx| tx.create_object(page, None, value.clone())).await
    }

    /// Overwrites an object. One that outgrows its page is moved, and its id stays good. Blind:
    /// conflicts with the object's deletion and its moves only.
    pub async fn update(&self, id: ObjectId, value: impl Into<Bytes> + Send) -> Result<()> {
        let value = value.into();
        self.write_with(|tx| tx.update_object(id, value.clone())).await
    }

    /// Deletes an object, with whatever it kept in other pages.
    pub async fn delete(&self, id: ObjectId) -> Result<()> {
        self.write_with(|tx| tx.delete_object(id)).await
    }

    /// Adds to the little-endian 64-bit number at `offset` of the object, wrapping. Two additions
    /// do not conflict.
    pub async fn add(&self, id: ObjectId, offset: u32, delta: i64) -> Result<()> {
        self.write_with(|tx| tx.add_to_object(id, offset, delta)).await
    }

    /// Raises the unsigned little-endian 64-bit number at `offset` of the object to at least
    /// `value`. Does not conflict with others of its kind.
    pub async fn max(&self, id: ObjectId, offset: u32, value: u64) -> Result<()> {
        self.write_with(|tx| tx.max_in_object(id, offset, value)).await
    }

    // ---- pages ----

    /// A raw page's bytes; none: there is no such page. Bytes past its end are zeros.
    pub async fn read_raw(&self, page: PageId) -> Result<Option<Bytes>> {
        self.read(|tx| tx.read_raw(page)).await
    }

    /// Makes a page, with a number of its own.
    pub async fn create_page(&self, volume: VolumeId, kind: PageKind) -> Result<PageId> {
        self.create_pages(volume, kind, 1).await
    }

    /// Makes a run of pages with consecutive numbers; gives the first.
    pub async fn create_pages(
        &self,
        volume: VolumeId,
        kind: PageKind,
        count: u64,
    ) -> Result<PageId> {
        let page: PageNo = self.write_with(|tx| tx.create_pages(volume, kind, count)).await?;
        Ok(PageId { volume, page })
    }

    /// Makes a page with a number that this transaction has read in what somebody committed for that,
    /// and has not written itself.
    pub async fn create_named_page(&self, page: PageId, kind: PageKind) -> Result<()> {
        self.write_with(|tx| tx.create_named_page(page, kind)).await
    }

    /// Removes a page with all its objects.
    pub async fn delete_page(&self, page: PageId) -> Result<()> {
        self.write(page, Op::DeletePage).await
    }

    /// Writes into a raw page.
    pub async fn write_raw(
        &self,
        page: PageId,
        offset: u32,
        bytes: impl Into<Bytes> + Send,
    ) -> Result<()> {
        self.write(page, Op::WriteRaw { offset, bytes: bytes.into() }).await
    }

    /// Cuts or zero-extends a raw page.
    pub async fn truncate_raw(&self, page: PageId, length: u32) -> Result<()> {
        self.write(page, Op::TruncateRaw { length }).await
    }

    /// One op as it is, for callers that encode records themselves.
    pub async fn write(&self, page: PageId, op: Op) -> Result<()> {
        self.write_with(|tx| tx.write(page, op.clone())).await
    }

    /// Fetches the pages that the cache lacks in one request, so that reads of them hit. Reads
    /// nothing by itself.
    pub async fn fetch(&self, pages: &[PageId]) -> Result<()> {
        let mut missing = std::collections::BTreeMap::<DomainId, Vec<PageId>>::new();
        let cache = &self.shared.session.node.cache;
        for &page in pages {
            let held = cache.peek(page).is_some_and(|copy| copy.complete());
            if !held && let Some(volume) = cache.volume(page.volume) {
                missing.entry(volume.domain).or_default().push(page);
            }
        }
        for (domain, pages) in missing {
            self.supply(Missing::Pages(domain, pages)).await?;
        }
        Ok(())
    }

    /// Bytes of records that a page has room for; none: there is no such page, or it is raw. A
    /// hint: not recorded as a read.
    pub async fn free_bytes(&self, page: PageId) -> Result<Option<usize>> {
        let cache = &self.shared.session.node.cache;
        let Some(volume) = cache.volume(page.volume) else {
            return Err(Error::NoVolume(page.volume.to_string()));
        };
        let room = |page: &larder_core::page::Page| {
            (page.kind() == PageKind::Slotted).then(|| page.free_bytes(volume.page_bytes))
        };
        Ok(self.read(|tx| tx.hint(page, room)).await?.flatten())
    }

    // ---- the transaction itself ----

    /// A point to come back to.
    pub fn savepoint(&self) -> Result<Savepoint> {
        let state = self.lock();
        let core = state.core.as_ref().ok_or(Error::Finished)?;
        Ok(Savepoint(core.savepoint()))
    }

    /// Takes back every write since the savepoint; what was read stays read.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let mut state = self.lock();
        let core = state.core.as_mut().ok_or(Error::Finished)?;
        core.rollback_to(savepoint.0);
        Ok(())
    }

    /// The stamp whose state the transaction sees of the session's domain.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let session = &self.shared.session;
        let state = self.lock();
        let own = state.core.as_ref().and_then(|core| core.stamp(session.domain));
        own.or_else(|| session.node.cache.through(session.domain)).unwrap_or(Stamp::ZERO)
    }

    /// Whether it has used several domains: unless it writes, what it saw is of one state in each of them,
    /// not of one instant across them. [`Committed::per_domain`] says the same of one that has ended.
    #[must_use]
    pub fn per_domain(&self) -> bool {
        self.lock().core.as_ref().is_some_and(cache::Transaction::per_domain)
    }

    /// How old the state that it sees is at most; none: never confirmed.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let session = &self.shared.session;
        session.node.cache.age(session.domain, now())
    }

    /// Whether anything is to be written.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.lock().core.as_ref().is_some_and(|core| !core.writes().is_empty())
    }

    /// What it would write as it is now.
    #[cfg(feature = "simulated")]
    #[must_use]
    pub fn writes_now(&self) -> Vec<larder_core::commit::Write> {
        self.lock().core.as_ref().map_or(Vec::new(), |core| core.writes().to_vec())
    }

    /// Whether it can only end in a conflict, as far as it knows.
    #[must_use]
    pub fn is_doomed(&self) -> bool {
        self.doom().is_some()
    }

    fn doom(&self) -> Option<Error> {
        self.lock().doom.clone().map(doom_error)
    }

    /// The conflict for which an error that came up in it means nothing. Of one that looked ahead of the stream that is
    /// known when the stream has passed what it saw; until then nobody can tell, and why that is not so is what is wrong.
    pub(super) async fn doom_of(&self) -> Option<Error> {
        if let Err(error) = self.wait_ahead().await {
            return Some(error);
        }
        if let Some(core) = self.lock().core.as_mut()
            && core.looks_ahead()
            && let Step::Doomed(doom) = core.look_again()
        {
            return Some(doom_error(doom));
        }
        self.doom()
    }

    /// Waits until the stream has passed what it looked ahead to; says whether it had to.
    async fn wait_ahead(&self) -> Result<bool> {
        let mut waited = false;
        loop {
            let waits = self.lock().core.as_ref().and_then(cache::Transaction::waits);
            let Some(awaited) = waits else { return Ok(waited) };
            self.supply(Missing::Through(awaited)).await?;
            waited = true;
        }
    }

    /// The same before its end; and for a state as fresh as its session wants it, which one that was cut off meanwhile has
    /// with the next word of its parent.
    async fn wait_to_end(&self) -> Result<()> {
        let waited = self.wait_ahead().await?;
        let session = &self.shared.session;
        let used =
            || self.lock().core.as_ref().is_some_and(|core| core.stamp(session.domain).is_some());
        if waited && !session.fresh() && used() {
            self.supply(Missing::Fresh(session.domain)).await?;
        }
        Ok(())
    }

    /// Commits it. Durable at the origin when this returns; without writes it is checked here, or
    /// at the origin for a strict session. An error means that nothing of it was done, but for
    /// [`Error::OutcomeUnknown`].
    pub async fn commit(self) -> Result<Committed> {
        self.wait_to_end().await?;
        let (core, hits, misses) = {
            let mut state = self.lock();
            let mut core = state.core.take().ok_or(Error::Finished)?;
            give_back(&self.shared.session, &mut core, &state.asked);
            (core, state.hits, state.misses)
        };
        let (result, ending) = match core.finish() {
            Finish::Local { seen, per_domain } => {
                let stamp = self.stamp_of(&seen);
                match self.shared.session.lock().saw(&seen) {
                    None => (Ok(Committed { stamp, per_domain }), Ending::Local),
                    Some(domain) => (Err(Error::lost(domain)), Ending::Refused),
                }
            }
            Finish::Doomed(doom) => (Err(doom_error(doom)), Ending::Conflict),
            Finish::Refused(TransactionError::TooOld(_)) => {
                (Err(self.shared.session.stale()), Ending::Refused)
            }
            Finish::Refused(error) => (Err(error.into()), Ending::Refused),
            Finish::Send { parts, seen, per_domain } => {
                let result = self.send(parts, &seen).await;
                let ending = match &result {
                    Ok(_) => Ending::Committed,
                    Err(Error::OutcomeUnknown(_)) => Ending::Unknown,
                    Err(error) if error.is_retryable() => Ending::Conflict,
                    Err(_) => Ending::Refused,
                };
                (result.map(|stamp| Committed { stamp, per_domain }), ending)
            }
        };
        self.shared.session.node.metrics.transaction(ending, hits, misses);
        result
    }

    /// Ends it without doing anything, whatever other handles there are.
    pub fn abort(self) {
        let core = self.lock().core.take();
        drop(core);
    }

    // ---- inside ----

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside the core transaction dooms nobody else: its state is dropped with it.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stamp_of(&self, seen: &[cache::Seen]) -> Stamp {
        let domain = self.shared.session.domain;
        let own = seen.iter().find(|seen| seen.domain == domain).or(seen.first());
        own.map_or_else(|| self.stamp(), |seen| seen.stamp)
    }

    async fn read<T>(
        &self,
        mut operation: impl FnMut(&mut cache::Transaction) -> Step<T>,
    ) -> Result<T> {
        match self.step(&mut operation, Tried::default())? {
            Ok(value) => Ok(value),
            // Boxed: a hit, which is nearly every read, does not carry the room for a miss.
            Err(missing) => Box::pin(self.read_missing(operation, missing)).await,
        }
    }

    /// Supplies what a read lacks and tries it again, until it lacks nothing.
    #[cold]
    async fn read_missing<T>(
        &self,
        mut operation: impl FnMut(&mut cache::Transaction) -> Step<T>,
        mut missing: Missing,
    ) -> Result<T> {
        let mut tried = Tried::default();
        loop {
            tried.before = true;
            let asks = matches!(missing, Missing::Fresh(_));
            if asks {
                let begun = now();
                let until = tried.refreshed.map_or_else(
                    || begun.after(self.shared.session.refresh_limit()),
                    |(_, until)| until,
                );
                tried.refreshed = Some((begun, until));
            }
            self.supply(missing).await?;
            tried.late += u32::from(asks && !self.shared.session.fresh());
            missing = match self.step(&mut operation, tried)? {
                Ok(value) => return Ok(value),
                Err(missing) => missing,
            };
        }
    }

    async fn write_with<T>(
        &self,
        operation: impl FnMut(&mut cache::Transaction) -> Step<T>,
    ) -> Result<T> {
        if self.shared.read_only {
            return Err(Error::ReadOnly);
        }
        self.read(operation).await
    }

    /// One try of an operation, on this thread: its value, or what it lacks.
    #[inline]
    fn step<T>(
        &self,
        operation: &mut impl FnMut(&mut cache::Transaction) -> Step<T>,
        tried: Tried,
    ) -> Result<Result<T, Missing>> {
        let mut state = self.lock();
        let core = state.core.as_mut().ok_or(Error::Finished)?;
        match operation(core) {
            Step::Ready(value) => {
                state.hits += u64::from(!tried.before);
                Ok(Ok(value))
            }
            Step::Need { domain, pages } => {
                state.misses += u64::from(!tried.before);
                Ok(Err(Missing::Pages(domain, pages)))
            }
            Step::NeedIds { volume, count } => Ok(Err(Missing::Ids(volume, count))),
            Step::Wait(awaited) => Ok(Err(Missing::Through(awaited))),
            Step::Doomed(doom) => {
                state.doom = Some(doom.clone());
                Err(doom_error(doom))
            }
            Step::Refused(TransactionError::TooOld(age)) if tried.in_vain(age) => {
                Err(Error::Stale { age })
            }
            Step::Refused(TransactionError::TooOld(_)) => {
                Ok(Err(Missing::Fresh(self.shared.session.domain)))
            }
            Step::Refused(error) => Err(error.into()),
        }
    }

    #[cold]
    async fn supply(&self, missing: Missing) -> Result<()> {
        let session = &self.shared.session;
        let limit = session.wait(self.shared.deadline)?;
        match missing {
            Missing::Pages(domain, pages) => {
                let begun = now();
                let op = CacheOp::Fetch { domain, pages, prefetch: false };
                let reply = session.node.requests.ask(op, limit).await?;
                session.node.metrics.fetch(now().since(begun));
                let CacheReply::Fetched { through, pages } = reply else {
                    unreachable!("pages were asked for: {reply:?}");
                };
                let supplied = {
                    let mut state = self.lock();
                    let core = state.core.as_mut().ok_or(Error::Finished)?;
                    core.supply(through, &pages)
                };
                match supplied {
                    Step::Doomed(doom) => {
                        self.lock().doom = Some(doom.clone());
                        Err(doom_error(doom))
                    }
                    Step::Refused(error) => Err(error.into()),
                    Step::Ready(()) | Step::Need { .. } | Step::NeedIds { .. } | Step::Wait(_) => {
                        Ok(())
                    }
                }
            }
            Missing::Ids(volume, count) => {
                let (range, asked) = ids::allocate(&session.node, volume, count, limit).await?;
                let mut state = self.lock();
                // The oldest counts: of what is left nobody knows when it was asked for.
                state.asked.entry(volume).or_insert(asked);
                state.core.as_mut().ok_or(Error::Finished)?.supply_ids(range);
                Ok(())
            }
            Missing::Through(awaited) => {
                session.node.requests.ask(CacheOp::WaitThrough(awaited), limit).await?;
                Ok(())
            }
            Missing::Fresh(domain) => match session.freshen(domain, self.shared.deadline).await {
                Ok(()) => Ok(()),
                Err(Error::ShutDown) => Err(Error::ShutDown),
                // Beats may have confirmed it meanwhile.
                Err(_) if session.fresh() => Ok(()),
                Err(_) => Err(session.stale()),
            },
        }
    }

    async fn send(&self, parts: Vec<CommitPart>, seen: &[cache::Seen]) -> Result<Stamp> {
        let session = &self.shared.session;
        let mut seen = seen.to_vec();
        if parts.len() > 1 && cache::decides(&parts).is_some() {
            seen.extend(self.send_together(parts).await?);
        } else {
            for part in parts {
                seen.extend(self.send_together(vec![part]).await?);
            }
        }
        // It is committed all the same. If the domain has begun another line beside it, the session's
        // next begin says so.
        if !planted(RuntimeFault::FloorForgotten) {
            let _ = session.lock().saw(&seen);
        }
        Ok(self.stamp_of(&seen))
    }

    /// One part, or the parts of a transaction that is committed as a whole: what the session has seen then.
    async fn send_together(&self, parts: Vec<CommitPart>) -> Result<Vec<cache::Seen>> {
        let node = &self.shared.session.node;
        let begun = now();
        let lines: Vec<SentPart> = parts.iter().map(sent_part).collect();
        let name = cache::decides(&parts).unwrap_or(lines[0].domain);
        let mut rooms = Vec::with_capacity(parts.len());
        // Ascending by domain, like all others: nobody waits for one who waits for him.
        for part in &parts {
            let bytes = part.writes.iter().map(|write| 64 + write.op.payload_bytes()).sum();
            let room = node.commit_rooms.take(part.domain, bytes, parts.len() == 1);
            let limit = remaining(self.shared.deadline)?;
            let Ok(room) = tokio::time::timeout(limit, room).await else {
                return Err(Error::TimedOut(limit));
            };
            rooms.push(room);
        }
        let limit = remaining(self.shared.deadline)?;
        let op = cache::commit_ops(parts).pop().expect("one part, or all together");
        let answer = node.requests.ask_raw(op, limit).await;
        node.metrics.commit(now().since(begun));
        match told_of(answer, name, &lines, limit)? {
            Ok(seen) => {
                self.shared.session.is_done(&lines, &seen);
                Ok(seen)
            }
            Err(abort) => {
                if planted(RuntimeFault::RoomKept) {
                    std::mem::forget(rooms);
                } else {
                    // Others need not wait until the changes have come that this one did not know of.
                    drop(rooms);
                }
                Err(self.aborted(&lines, abort).await)
            }
        }
    }

    /// The origin knows of changes that have not come here yet: a repetition before they come
    /// would meet the same conflict.
    async fn aborted(&self, lines: &[SentPart], abort: Abort) -> Error {
        let error = Error::from(abort);
        for part in lines.iter().filter(|_| error.is_retryable()) {
            let refreshed = self.shared.session.refresh(part.domain, self.shared.deadline).await;
            if let Err(lost @ (Error::ShutDown | Error::Refused(_))) = refreshed {
                return lost;
            }
        }
        error
    }
}

/// What a node's answer says of a commit of this domain and line.
pub(super) fn outcome_of(
    answer: Result<Result<CacheReply, RequestError>, NoAnswer>,
    of: (DomainId, Line),
    limit: Duration,
) -> Result<Outcome> {
    let part = SentPart { domain: of.0, line: of.1, checked: Stamp::ZERO, writes_in: None };
    Ok(match told_of(answer, of.0, &[part], limit)? {
        Ok(seen) => Outcome::Committed(seen[0].stamp),
        Err(abort) => Outcome::Aborted(abort),
    })
}

fn sent_part(part: &CommitPart) -> SentPart {
    let writes_in = (!part.writes.is_empty()).then_some(part.history);
    SentPart { domain: part.domain, line: part.line, checked: part.checked, writes_in }
}

/// What a node's answer says of a transaction that this domain decides, with parts in domains of these lines: the
/// stamps that it has, or why it was refused.
pub(super) fn told_of(
    answer: Result<Result<CacheReply, RequestError>, NoAnswer>,
    domain: DomainId,
    lines: &[SentPart],
    limit: Duration,
) -> Result<Result<Vec<cache::Seen>, Abort>> {
    let stamped = |(domain, stamp): (DomainId, Stamp)| {
        let of = lines.iter().find(|part| part.domain == domain);
        of.map(|part| cache::Seen { domain, line: part.line, stamp })
    };
    match answer {
        Ok(Ok(CacheReply::Committed(stamps))) => {
            Ok(Ok(stamps.into_iter().filter_map(stamped).collect()))
        }
        Ok(Ok(CacheReply::Outcome(Outcome::Committed(stamp)))) => {
            Ok(Ok(stamped((domain, stamp)).into_iter().collect()))
        }
        Ok(Ok(CacheReply::Outcome(Outcome::Aborted(abort)))) => Ok(Err(abort)),
        Ok(Ok(CacheReply::Outcome(Outcome::Unknown))) => {
            unreachable!("the cache says of such commits that they are in doubt")
        }
        Ok(Ok(CacheReply::InDoubt { lost, .. })) if planted(RuntimeFault::DoubtAsAbort) => {
            let reason = format!("it was not done (lost: {lost})");
            Err(Error::Conflict { attempts: 1, reason })
        }
        Ok(Ok(CacheReply::InDoubt { commit, lost })) => {
            let lines = lines.to_vec();
            Err(Error::OutcomeUnknown(Some(InDoubt { domain, commit, lost, lines })))
        }
        Ok(Ok(other)) => unreachable!("an outcome was asked for: {other:?}"),
        // Said of a commit when its time is up.
        Ok(Err(RequestError::Unavailable(why))) => Err(Error::NotDone(why)),
        Ok(Err(error)) => Err(error.into()),
        Err(NoAnswer::NotTaken) => Err(Error::ShutDown),
        Err(NoAnswer::Full) => Err(Error::TimedOut(limit)),
        Err(NoAnswer::Ended | NoAnswer::Stuck) => Err(Error::OutcomeUnknown(None)),
    }
}

fn doom_error(doom: Doom) -> Error {
    match doom {
        Doom::HistoryLost(domain) => {
            let detail = "the state it read from was reset".into();
            Error::HistoryForked { domain, detail }
        }
        Doom::SnapshotTooOld(_) => Error::SnapshotTooOld,
        Doom::Conflict(_) | Doom::Overrun(_) | Doom::WriteFailed(_) => {
            Error::Conflict { attempts: 1, reason: doom.to_string() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug 103. Over a line that takes longer than a session allows its state to be old every answer comes
    /// too old, and each read asked anew all the same until `refresh_limit` was over.
    #[test]
    fn answers_that_are_late_again_and_again_are_enough() {
        let begun = now();
        let until = begun.after(larder_core::time::Duration::from_secs(600));
        let tried = |late| Tried { before: true, refreshed: Some((begun, until)), late };
        let young = Some(larder_core::time::Duration::ZERO);
        for late in 0..LATE_MAX {
            assert!(!tried(late).in_vain(young), "{late} may be the fault of a loaded machine");
        }
        assert!(tried(LATE_MAX).in_vain(young));
    }
}
