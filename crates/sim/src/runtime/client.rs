//! Clients: each runs one call of the library after another, and holds it to what it promises.

use super::env::{Shared, lock};
use super::work::{Who, Work};
use larder::client::{
    Consistency, Error, Freshness, InDoubt, Node, Result, Session, SessionOptions, Transaction,
    Volume, VolumeOptions,
};
use larder_core::id::{ObjectId, PageNo, Stamp};
use larder_core::rng::Rng;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How much later than its limit a call may end: a host looks at its clock once a second.
const SLACK: Duration = Duration::from_secs(2);

/// Most questions at once.
const BURST_MAX: usize = 20;

/// A client.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    /// Different from all others, also after its node died.
    pub(super) number: u64,
    place: usize,
    node: Node,
    volume: Volume,
    session: Session,
    strict: bool,
    snapshot: bool,
    time_limit: Duration,
    request_limit: Duration,
    diary: ObjectId,
    sequence: u64,
    rng: Rng,
    stop: Arc<AtomicBool>,
}

/// What a result is, as a number for the trace.
pub(super) fn code<T>(result: &Result<T>) -> u64 {
    match result {
        Ok(_) => 0,
        Err(Error::Conflict { .. }) => 1,
        Err(Error::Stale { .. }) => 2,
        Err(Error::Unavailable(_) | Error::NotDone(_)) => 3,
        Err(Error::OutcomeUnknown(_)) => 4,
        Err(Error::Gone(_)) => 5,
        Err(Error::NoPage(_)) => 6,
        Err(Error::PageFull(_)) => 7,
        Err(Error::StoreFull(_)) => 8,
        Err(Error::QuotaPassed { .. }) => 9,
        Err(Error::TimedOut(_)) => 10,
        Err(Error::SnapshotTooOld) => 11,
        Err(Error::VolumeDeleted(_)) => 12,
        Err(Error::NoVolume(_)) => 13,
        Err(Error::ShutDown) => 14,
        Err(Error::Refused(_)) => 15,
        Err(_) => 16,
    }
}

impl Client {
    pub(super) fn new(
        shared: &Arc<Shared>,
        node: &Node,
        volume: &Volume,
        place: usize,
        request_limit: Duration,
        stop: &Arc<AtomicBool>,
    ) -> Self {
        let number = shared.next_client();
        let mut rng = shared.split();
        let (consistency, ahead) = [
            (Consistency::Strict, false),
            (Consistency::Serializable, false),
            (Consistency::Serializable, true),
            (Consistency::Snapshot, false),
        ][rng.below(4) as usize];
        let freshness = [
            Freshness::Leased,
            Freshness::Leased,
            Freshness::AtMost(Duration::from_millis(500)),
            Freshness::Any,
        ][rng.below(4) as usize];
        let time_limit = Duration::from_millis([300, 2_000, 6_000][rng.below(3) as usize]);
        let options = SessionOptions {
            consistency,
            freshness,
            time_limit,
            operation_limit: Duration::MAX,
            refresh_limit: Duration::from_millis([200, 2_000][rng.below(2) as usize]),
            attempts_max: 5,
            line: None,
            ahead,
        };
        let diary = {
            let aims = lock(&shared.aims);
            let diaries = &aims[place].diaries;
            diaries[number as usize % diaries.len()]
        };
        Self {
            shared: shared.clone(),
            number,
            place,
            node: node.clone(),
            volume: volume.clone(),
            session: volume.session(options),
            strict: consistency == Consistency::Strict,
            snapshot: consistency == Consistency::Snapshot,
            time_limit,
            request_limit,
            diary,
            sequence: 0,
            rng,
            stop: stop.clone(),
        }
    }

    /// Works until it is told to stop, or its node ends.
    pub(super) async fn run(mut self) {
        for _ in 0..self.shared.plan.acts {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let think = self.rng.below(self.shared.plan.think_ms + 1);
            sleep(Duration::from_millis(think)).await;
            let cancels = self.rng.chance(self.shared.plan.cancels, 16);
            let after = Duration::from_millis(self.rng.below(200));
            if !cancels {
                self.act().await;
            } else if timeout(after, self.act()).await.is_err() {
                lock(&self.shared.tally).dropped += 1;
                self.shared.saw(&[self.number, 99], || format!("client {}: dropped", self.number));
            }
        }
    }

    async fn act(&mut self) {
        match self.rng.below(32) {
            0 | 1 => self.refresh().await,
            2 => self.numbers().await,
            3 => self.prefetch(),
            4 => self.volumes().await,
            5 if self.rng.chance(1, 4) => self.own_volume().await,
            6 if self.rng.chance(1, 4) => self.burst().await,
            6..12 => self.transact().await,
            12 => self.side_by_side().await,
            _ => self.transaction().await,
        }
    }

    /// More questions at once than a short queue of a node takes, and nobody waits for an answer: those for
    /// which there was no room leave nothing behind.
    async fn burst(&mut self) {
        let count = self.shared.plan.limits.inputs + 2;
        let id = self.volume.id();
        let mut questions: Vec<_> =
            (0..count.min(BURST_MAX)).map(|_| Box::pin(self.node.volume_info(id))).collect();
        poll_fn(|context| {
            for question in &mut questions {
                let _ = question.as_mut().poll(context);
            }
            Poll::Ready(())
        })
        .await;
    }

    fn note<T>(&self, what: &'static str, result: &Result<T>, number: u64) {
        self.shared.saw(&[self.number, code(result), number], || {
            let error = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            format!("client {} at {}: {what} {number} {error}", self.number, self.node_name())
        });
    }

    fn node_name(&self) -> String {
        self.node.status().name
    }

    /// A call ends within its limit.
    async fn within<T>(&self, what: &str, limit: Duration, call: impl Future<Output = T>) -> T {
        let begun = self.shared.elapsed();
        let result = call.await;
        let took = self.shared.elapsed() - begun;
        assert!(
            took <= limit + SLACK,
            "P10: client {}: {what} took {took:?}, and its limit is {limit:?}",
            self.number
        );
        result
    }

    fn work(&mut self) -> Work {
        self.sequence += 1;
        let who = Who {
            shared: self.shared.clone(),
            name: format!("client {} of {}", self.number, self.node_name()),
            place: self.place,
            domain: self.volume.domain(),
            session: self.number as usize,
            strict: self.strict,
            read_only: self.snapshot,
            diary: self.diary,
        };
        Work::new(who, self.number << 32 | self.sequence)
    }

    async fn transaction(&mut self) {
        let work = self.work();
        let call = run_one(self.session.clone(), work);
        let (result, work) = self.within("a transaction", self.time_limit, call).await;
        self.ended(result, work).await;
    }

    /// Several at once, of one session.
    async fn side_by_side(&mut self) {
        let works = [self.work(), self.work(), self.work()];
        let [one, two, three] = works.map(|work| run_one(self.session.clone(), work));
        let all = async { tokio::join!(one, two, three) };
        let (one, two, three) = self.within("three transactions", self.time_limit, all).await;
        for (result, work) in [one, two, three] {
            self.ended(result, work).await;
        }
    }

    async fn ended(&mut self, result: Result<Stamp>, work: Work) {
        self.note("transaction", &result, result.as_ref().map_or(0, |stamp| stamp.0));
        if let Err(Error::OutcomeUnknown(Some(doubt))) = result {
            lock(&self.shared.tally).unknown += 1;
            self.ask(doubt, &work).await;
        }
    }

    /// Asks what became of a commit in doubt.
    async fn ask(&mut self, doubt: InDoubt, work: &Work) {
        for _ in 0..self.rng.below(4) {
            let call = self.session.outcome(&doubt);
            let result = self.within("an outcome", self.time_limit, call).await;
            self.note("outcome", &result, result.as_ref().map_or(0, |stamp| stamp.0));
            match result {
                Ok(stamp) => return done(work, stamp),
                Err(Error::OutcomeUnknown(_)) => {}
                Err(_) => return not_done(work),
            }
        }
    }

    /// By the library's own loop.
    async fn transact(&mut self) {
        let attempts: Arc<Mutex<Vec<Work>>> = Arc::default();
        let prototype = self.work();
        let (who, number) = (prototype.who.clone(), self.number << 32 | 1 << 31);
        let mut sequence = self.sequence << 8;
        let kept = attempts.clone();
        let body = move |tx: Transaction| {
            sequence += 1;
            let (who, kept, tag) = (who.clone(), kept.clone(), number | sequence);
            async move {
                let mut work = Work::new(who, tag);
                let result = work.run(&tx).await;
                let writes = tx.writes_now();
                work.writer = !writes.is_empty() && result.is_ok();
                if work.writer {
                    lock(&work.who.shared.history).add(work.tx(writes));
                }
                lock(&kept).push(work);
                result
            }
        };
        let call = self.session.transact(body);
        let result = self.within("transact", self.time_limit, call).await;
        self.note("transact", &result, 0);
        let mut attempts = std::mem::take(&mut *lock(&attempts));
        let last = match &result {
            Ok(()) | Err(Error::OutcomeUnknown(_)) => attempts.pop(),
            Err(_) => None,
        };
        for work in &attempts {
            not_done(work);
        }
        match (result, last) {
            (Ok(()), Some(work)) if work.writer => {
                let stamps = lock(&self.shared.ledger).stamps(work.who.domain, work.tag);
                assert!(stamps.len() == 1, "P1: {:x} is done, and in the log {stamps:?}", work.tag);
                done(&work, stamps[0]);
            }
            (Err(Error::OutcomeUnknown(Some(doubt))), Some(work)) => {
                lock(&self.shared.tally).unknown += 1;
                self.ask(doubt, &work).await;
            }
            _ => {}
        }
    }

    async fn refresh(&mut self) {
        let least = self.shared.told(self.volume.domain());
        let call = self.session.refresh();
        let result = self.within("a refresh", self.time_limit, call).await;
        let through = self.volume.valid_through();
        self.note("refresh", &result, through.0);
        assert!(
            result.is_err() || through >= least,
            "P2: client {}: after a refresh the state is of {through}, and {least} was told before it",
            self.number
        );
    }

    async fn numbers(&mut self) {
        let count = 1 + self.rng.below(12);
        let call = self.volume.allocate_pages(count);
        let result = self.within("numbers", self.request_limit, call).await;
        self.note("numbers", &result, result.as_ref().map_or(0, |first| first.0));
        if let Ok(first) = result {
            let mut given = lock(&self.shared.given);
            for number in first.0..first.0 + count {
                let fresh = given.insert((self.volume.id(), number));
                assert!(fresh, "rule 18: page number {number} is given twice");
            }
        }
    }

    fn prefetch(&mut self) {
        let pages: Vec<PageNo> = (0..4).map(|_| PageNo(1 + self.rng.below(12))).collect();
        self.volume.prefetch(&pages);
    }

    async fn volumes(&mut self) {
        let result = self.within("a list", self.request_limit, self.node.volumes()).await;
        self.note("volumes", &result, result.as_ref().map_or(0, |list| list.len() as u64));
        if let Ok(list) = result {
            let there = list.iter().any(|info| info.id == self.volume.id());
            assert!(there, "client {}: the list of volumes lacks one", self.number);
        }
    }

    /// A volume of its own, from its making to its deletion.
    async fn own_volume(&mut self) {
        self.sequence += 1;
        let name = format!("of-{}-{}", self.number, self.sequence);
        let call = self.node.create_volume(VolumeOptions::new(&name));
        let made = self.within("a creation", self.request_limit, call).await;
        self.note("create volume", &made, 0);
        let Ok(volume) = made else { return };
        let id = volume.id();
        let call = self.node.set_quota(id, Some(1 << 20));
        let set = self.within("a quota", self.request_limit, call).await;
        self.note("set quota", &set, 0);
        let found = self.within("a look", self.request_limit, self.node.volume(&name)).await;
        self.note("open volume", &found, 0);
        let lost = matches!(found, Err(Error::NoVolume(_) | Error::VolumeDeleted(_)));
        assert!(!lost, "P1: volume {name} was made, and is not there");
        if let (Ok(_), Ok(found)) = (&set, &found) {
            let quota = found.info().quota;
            assert!(quota == Some(1 << 20), "P1: the quota of {name} is {quota:?}");
        }
        let call = self.node.delete_volume(id);
        let deleted = self.within("a deletion", self.request_limit, call).await;
        self.note("delete volume", &deleted, 0);
        let call = self.node.volume_by_id(id);
        let found = self.within("a look", self.request_limit, call).await;
        self.note("open volume", &found, 0);
        assert!(deleted.is_err() || found.is_err(), "P1: volume {name} was deleted, and is there");
    }
}

/// What a transaction does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Some operations, at random.
    Some,
    /// So many objects are made.
    Found(u64),
    /// Everything is read.
    ReadAll,
    /// The diary is written.
    Write,
}

/// One transaction, step by step. Gives back what it did.
pub(super) async fn run_one(session: Session, work: Work) -> (Result<Stamp>, Work) {
    run_task(session, work, Task::Some).await
}

/// The same for a task.
pub(super) async fn run_task(
    session: Session,
    mut work: Work,
    task: Task,
) -> (Result<Stamp>, Work) {
    let begun = match work.who.read_only {
        true => session.begin_read().await,
        false => session.begin().await,
    };
    let tx = match begun {
        Ok(tx) => tx,
        Err(error) => return (Err(error), work),
    };
    let worked = match task {
        Task::Some => work.run(&tx).await,
        Task::Found(objects) => work.found(&tx, objects).await,
        Task::ReadAll => work.read_all(&tx).await,
        Task::Write => work.write_diary(&tx).await,
    };
    if let Err(error) = worked {
        lock(&work.who.shared.tally).aborted += 1;
        return (Err(error), work);
    }
    let writes = tx.writes_now();
    let mut known = work.tx(writes);
    let writer = known.tag.is_some();
    work.writer = writer;
    if writer {
        lock(&work.who.shared.history).add(known.clone());
    }
    let result = tx.commit().await;
    match &result {
        Ok(committed) if writer => done(&work, committed.stamp),
        Ok(committed) => {
            let shared = &work.who.shared;
            let mut history = lock(&shared.history);
            known.ended = Some(history.now());
            for part in known.parts.values_mut() {
                part.stamp = Some(committed.stamp);
            }
            history.add(known);
            lock(&shared.tally).committed += 1;
        }
        Err(Error::OutcomeUnknown(_)) => {}
        Err(_) => not_done(&work),
    }
    (result.map(|committed| committed.stamp), work)
}

/// Its client was told that it is done.
fn done(work: &Work, stamp: Stamp) {
    if !work.writer {
        // Only validated: what it read has no stamp in the log.
        return;
    }
    let (shared, domain) = (&work.who.shared, work.who.domain);
    lock(&shared.ledger).told(work.tag, domain, Some(stamp));
    let stamps = lock(&shared.ledger).stamps(domain, work.tag);
    assert!(stamps == [stamp], "P1: {:x} is done at {stamp}, and in the log {stamps:?}", work.tag);
    lock(&shared.history).committed(work.tag, &[(domain, stamp)]);
    shared.tell(domain, stamp);
    lock(&shared.tally).committed += 1;
    work.remember();
}

/// Its client was told that nothing of it was done.
fn not_done(work: &Work) {
    let shared = &work.who.shared;
    if work.writer {
        lock(&shared.ledger).told(work.tag, work.who.domain, None);
    }
    lock(&shared.tally).aborted += 1;
}
