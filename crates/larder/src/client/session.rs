//! Sessions: a user of a node with its own consistency and its own floor.

use super::error::SentPart;
use super::node::NodeShared;
use super::requests::NoAnswer;
use super::transaction::told_of;
use super::{Error, InDoubt, Result, Transaction};
use crate::clock::{now, random_u64};
use crate::planted::{RuntimeFault, planted};
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{self, AgeLimit, BeginError, Line, Mark};
use larder_core::id::{DomainId, Stamp};
use larder_core::message::RequestError;
use larder_core::rng::Rng;
use larder_core::time::Instant;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// First pause after a conflict; doubled with every further one.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Longest pause after a conflict.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long nobody waits for the parent after it was asked in vain.
const IN_VAIN_PAUSE: Duration = Duration::from_millis(500);
/// Pause while all places for transactions are taken.
const PLACE_PAUSE: Duration = Duration::from_millis(2);

/// What a session's transactions may claim (`docs/decisions/0002-order-domains.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consistency {
    /// Serializable, and in real time: every transaction is validated at the origin.
    Strict,
    /// Serializable. Read-only transactions of one domain commit locally, with no message.
    #[default]
    Serializable,
    /// Read-only, at the valid-through of their first read; never doomed by later changes.
    Snapshot,
}

/// How old the state may be that a transaction reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Freshness {
    /// Within the link lease: as old as the parent allows to call current.
    #[default]
    Leased,
    /// At most this old; the node asks the parent when it is older.
    AtMost(Duration),
    /// Whatever is cached; its age is to be had from [`Transaction::age`].
    Any,
}

/// How a session works.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// What its transactions may claim.
    pub consistency: Consistency,
    /// How old its state may be.
    pub freshness: Freshness,
    /// How long a transaction may take, all its attempts together.
    pub time_limit: Duration,
    /// How long one operation of a transaction waits for what it lacks, at most. For a transaction
    /// that may take hours, and is to notice all the same that its line is gone.
    pub operation_limit: Duration,
    /// How long a transaction waits for the parent to confirm a state that is older than
    /// `freshness` allows, before it fails with [`Error::Stale`].
    pub refresh_limit: Duration,
    /// How often `transact` runs a transaction at most.
    pub attempts_max: u32,
    /// Binds the session to a line of its domain ([`crate::client::Volume::line`]): on another one
    /// every transaction fails with [`Error::HistoryForked`], whatever the session had seen. For
    /// users that keep what they have read.
    pub line: Option<Line>,
    /// Transactions look ahead of the stream at what this node has committed: they begin before the stream has passed what
    /// the session has written, and see that, and all else as the cache has it. While one runs it may see two states; it
    /// ends when the stream has passed all that it saw, and is serializable like any other, or runs again. An error that its body
    /// returns is told when the stream is there, too, unless it may come from two states; where that cannot be
    /// waited for, why not is told in its place. For sessions that do much between one commit and the next over a line
    /// whose stream is behind. Of [`Consistency::Serializable`] sessions alone: others see one state at any time. Default: no.
    pub ahead: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            consistency: Consistency::default(),
            freshness: Freshness::default(),
            time_limit: Duration::from_secs(30),
            operation_limit: Duration::MAX,
            refresh_limit: Duration::from_secs(30),
            attempts_max: 64,
            line: None,
            ahead: false,
        }
    }
}

/// A user of a node. It never sees less than it has seen or written, over anything that happens
/// to the link. Cloning shares it; transactions of one session may run side by side.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionShared>,
}

pub(super) struct SessionShared {
    pub(super) node: Arc<NodeShared>,
    pub(super) domain: DomainId,
    options: SessionOptions,
    age_limit: AgeLimit,
    core: Mutex<cache::Session>,
    /// When the parent last did not confirm the state in time.
    in_vain: Mutex<Option<Instant>>,
}

impl SessionShared {
    pub(super) fn lock(&self) -> MutexGuard<'_, cache::Session> {
        // A floor is whole between any two of its changes.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the parent for its state now, so that what is cached is fresh again.
    pub(super) async fn refresh(&self, domain: DomainId, deadline: Instant) -> Result<()> {
        let limit = remaining(deadline)?;
        self.node.requests.ask(CacheOp::Refresh { domain }, limit).await?;
        Ok(())
    }

    /// Has the newest state of a domain where something of this session is done without a stamp that is known.
    async fn see(&self, domain: DomainId, mark: Mark, deadline: Instant) -> Result<()> {
        let op = CacheOp::Refresh { domain };
        let CacheReply::Through(stamp) = self.node.requests.ask(op, remaining(deadline)?).await?
        else {
            unreachable!("the state was asked for")
        };
        let history = self.node.cache.history(domain).unwrap_or_default();
        self.lock().refreshed(domain, mark, stamp, history);
        Ok(())
    }

    /// A transaction is done in domains of these lines: of which one has no stamp, the next begin asks.
    pub(super) fn is_done(&self, lines: &[SentPart], seen: &[cache::Seen]) {
        let untold = |part: &&SentPart| seen.iter().all(|it| it.domain != part.domain);
        for &SentPart { domain, line, checked, writes_in } in lines.iter().filter(untold) {
            match writes_in {
                Some(history) => self.lock().wrote_unseen(domain, line, history),
                // What was read there is seen: on another line the next begin says so.
                None => {
                    let _ = self.lock().saw(&[cache::Seen { domain, line, stamp: checked }]);
                }
            }
        }
    }

    /// Has a state confirmed that is older than the session allows. Soon after that was in vain it
    /// fails at once: a user with a thousand files to look at is not kept waiting for each.
    pub(super) async fn freshen(&self, domain: DomainId, deadline: Instant) -> Result<()> {
        let in_vain = || self.in_vain.lock().unwrap_or_else(PoisonError::into_inner);
        if in_vain().is_some_and(|at| now().since(at) < IN_VAIN_PAUSE) {
            return Err(self.stale());
        }
        if planted(RuntimeFault::RefreshHere) {
            return Ok(());
        }
        let full = now().after(self.options.refresh_limit);
        let result = self.refresh(domain, deadline.min(full)).await;
        // A transaction whose own time was over says nothing of the line.
        if result.is_ok() {
            *in_vain() = None;
        } else if now() >= full {
            *in_vain() = Some(now());
        }
        result
    }

    /// Whether the cached state is as fresh as the session wants it.
    pub(super) fn fresh(&self) -> bool {
        let age = self.node.cache.age(self.domain, now());
        match self.age_limit {
            AgeLimit::None => true,
            AgeLimit::Lease => self.node.cache.leased(self.domain, now()),
            AgeLimit::AtMost(limit) => age.is_some_and(|age| age <= limit),
        }
    }

    async fn make_fresh(&self, deadline: Instant) -> Result<()> {
        // The second look: beats may have confirmed it meanwhile.
        if !self.fresh() && self.freshen(self.domain, deadline).await.is_err() && !self.fresh() {
            return Err(self.stale());
        }
        Ok(())
    }

    /// How long one operation waits at most, of a transaction that ends then.
    pub(super) fn wait(&self, deadline: Instant) -> Result<Duration> {
        Ok(remaining(deadline)?.min(self.options.operation_limit))
    }

    /// How long an operation has its state confirmed, again and again, before it is stale.
    pub(super) fn refresh_limit(&self) -> Duration {
        self.options.refresh_limit
    }

    pub(super) fn stale(&self) -> Error {
        Error::Stale { age: self.node.cache.age(self.domain, now()) }
    }
}

/// The time left; an error when none is.
pub(super) fn remaining(deadline: Instant) -> Result<Duration> {
    let left = deadline.since(now());
    if left.is_zero() {
        return Err(Error::TimedOut(Duration::ZERO));
    }
    Ok(left)
}

impl Session {
    pub(super) fn new(node: Arc<NodeShared>, domain: DomainId, options: SessionOptions) -> Self {
        let age_limit = match options.freshness {
            Freshness::Leased => AgeLimit::Lease,
            Freshness::AtMost(age) => AgeLimit::AtMost(age),
            Freshness::Any => AgeLimit::None,
        };
        let mut core = cache::Session::new(cache::SessionOptions {
            consistency: match options.consistency {
                Consistency::Strict => cache::Consistency::Strict,
                Consistency::Serializable => cache::Consistency::Serializable,
                Consistency::Snapshot => cache::Consistency::Snapshot,
            },
            age_limit,
            ahead: options.ahead,
            ..cache::SessionOptions::default()
        });
        if let Some(line) = options.line {
            // A transaction looks at the lines of its session's floors at its first use of a domain.
            core.saw(&[cache::Seen { domain, line, stamp: Stamp::ZERO }]);
        }
        let core = Mutex::new(core);
        let in_vain = Mutex::default();
        Self { shared: Arc::new(SessionShared { node, domain, options, age_limit, core, in_vain }) }
    }

    /// Runs `body` as a transaction and commits it; again from the start, after a jittered pause,
    /// when it met a conflict, within the session's attempts and time. What `body` returns as an
    /// error aborts the transaction and is returned as it is, unless the transaction had met a
    /// conflict by then: an error found in a state that never was means nothing.
    ///
    /// ```no_run
    /// # async fn f(session: larder::client::Session, id: larder::core::id::ObjectId)
    /// #     -> larder::client::Result<()> {
    /// session.transact(|tx| async move {
    ///     let old = tx.get(id).await?;
    ///     tx.update(id, [old.as_ref(), b"!"].concat()).await
    /// }).await
    /// # }
    /// ```
    pub async fn transact<T, E, F, Body>(&self, body: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Body + Send,
        Body: Future<Output = Result<T, E>> + Send,
        T: Send,
        E: From<Error> + Send,
    {
        self.run(body, false).await
    }

    /// The same for a transaction that only reads: a write in it is `ReadOnly`.
    pub async fn read<T, E, F, Body>(&self, body: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Body + Send,
        Body: Future<Output = Result<T, E>> + Send,
        T: Send,
        E: From<Error> + Send,
    {
        self.run(body, true).await
    }

    async fn run<T, E, F, Body>(&self, mut body: F, read_only: bool) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Body + Send,
        Body: Future<Output = Result<T, E>> + Send,
        T: Send,
        E: From<Error> + Send,
    {
        let deadline = self.deadline();
        let mut pauses = None;
        for attempt in 1.. {
            let tx = self.begin_until(deadline, read_only).await?;
            let conflict = match body(tx.clone()).await {
                Ok(value) => match tx.commit().await {
                    Ok(_) => return Ok(value),
                    Err(error) => error,
                },
                Err(error) => match tx.doom_of().await {
                    Some(conflict) => conflict,
                    None => return Err(error),
                },
            };
            if !conflict.is_retryable() {
                return Err(conflict.into());
            }
            let out_of_time = now() >= deadline;
            if attempt >= self.shared.options.attempts_max || out_of_time {
                return Err(exhausted(conflict, attempt).into());
            }
            // The first repetition comes at once: mostly nobody else is in the way any more.
            if attempt > 1 {
                sleep(pause(pauses.get_or_insert_with(|| Rng::new(random_u64())), attempt)).await;
            }
        }
        unreachable!("the attempts are counted in 32 bits and end at their bound")
    }

    /// Begins a transaction, to be ended by [`Transaction::commit`] or [`Transaction::abort`];
    /// dropping it aborts it. Waits until the cache has reached the session's floor, unless that
    /// looks [ahead](SessionOptions::ahead), and is fresh enough.
    pub async fn begin(&self) -> Result<Transaction> {
        self.begin_until(self.deadline(), false).await
    }

    /// Has the cached state confirmed unless it is as fresh as a transaction of this session wants
    /// it: what [`Self::begin`] does first.
    pub(crate) async fn freshen(&self) -> Result<()> {
        self.shared.make_fresh(self.deadline()).await
    }

    /// Begins a transaction that only reads.
    pub async fn begin_read(&self) -> Result<Transaction> {
        self.begin_until(self.deadline(), true).await
    }

    /// Waits until the cache holds the state that the origin has now, or later: one round trip,
    /// through however many relays. Fails with [`Error::Stale`], or why nothing was heard, within
    /// [`SessionOptions::refresh_limit`]; and soon after that was in vain, at once.
    pub async fn refresh(&self) -> Result<()> {
        self.shared.freshen(self.shared.domain, self.deadline()).await
    }

    /// Asks what became of a commit that [`Error::OutcomeUnknown`] named, within the session's time
    /// limit: the stamp it has, from which on this session sees it, or the conflict or other error
    /// that says that nothing of it was done, nor will be. [`Error::OutcomeUnknown`] again when it
    /// still is not known. Any session of the node that made the commit may ask; the outcomes of the
    /// last 1,024 such commits of a domain are kept.
    ///
    /// ```no_run
    /// # use larder::client::{Error, Result, Session};
    /// # async fn f(session: Session, id: larder::core::id::ObjectId) -> Result<()> {
    /// let mut result = session.transact(|tx| async move { tx.add(id, 0, 1).await }).await;
    /// while let Err(Error::OutcomeUnknown(Some(doubt))) = &result && !doubt.lost {
    ///     result = session.outcome(doubt).await.map(|_stamp| ());
    /// }
    /// # result
    /// # }
    /// ```
    pub async fn outcome(&self, of: &InDoubt) -> Result<Stamp> {
        let InDoubt { domain, commit, ref lines, .. } = *of;
        let limit = self.shared.options.time_limit;
        let op = CacheOp::Outcome { domain, commit };
        match self.shared.node.requests.ask_raw(op, limit).await {
            // These say that it was not asked about, and nothing of the commit itself.
            Ok(Err(RequestError::Busy(_))) => {
                sleep(PAUSE_MAX.min(limit)).await;
                Err(Error::OutcomeUnknown(Some(of.clone())))
            }
            Err(NoAnswer::Full) => Err(Error::OutcomeUnknown(Some(of.clone()))),
            Err(NoAnswer::NotTaken) => {
                Err(Error::OutcomeUnknown(Some(InDoubt { lost: true, ..of.clone() })))
            }
            answer => match told_of(answer, domain, lines, limit) {
                Ok(Ok(seen)) => {
                    // As after a commit: if the domain has begun another line beside it, the next
                    // begin says so.
                    let _ = self.shared.lock().saw(&seen);
                    self.shared.is_done(lines, &seen);
                    // Where it was decided nobody may be able to tell any more: it is done all the same.
                    let own = seen.iter().find(|seen| seen.domain == domain).or(seen.first());
                    Ok(own.map_or(Stamp::ZERO, |seen| seen.stamp))
                }
                Ok(Err(abort)) => Err(abort.into()),
                Err(Error::OutcomeUnknown(None)) => Err(Error::OutcomeUnknown(Some(of.clone()))),
                Err(error) => Err(error),
            },
        }
    }

    /// The least stamp this session's next transaction will see of a domain.
    #[must_use]
    pub fn floor(&self, domain: DomainId) -> Stamp {
        self.shared.lock().floors.get(domain).unwrap_or(Stamp::ZERO)
    }

    /// Gives up a domain's floor, after [`Error::HistoryForked`]: its user accepts that what the
    /// session has seen may be gone.
    pub fn forget_floor(&self, domain: DomainId) {
        self.shared.lock().floors.forget(domain);
    }

    fn deadline(&self) -> Instant {
        now().after(self.shared.options.time_limit)
    }

    async fn begin_until(&self, deadline: Instant, read_only: bool) -> Result<Transaction> {
        let shared = &self.shared;
        shared.make_fresh(deadline).await?;
        let waits_until = shared.wait(deadline).map_or(deadline, |wait| now().after(wait));
        loop {
            let begun = shared.lock().begin(&shared.node.cache);
            match begun {
                Ok(core) => return Ok(Transaction::new(core, shared.clone(), deadline, read_only)),
                Err(BeginError::Wait(awaited)) => {
                    let op = CacheOp::WaitThrough(awaited);
                    shared.node.requests.ask(op, remaining(waits_until)?).await?;
                }
                Err(BeginError::Unseen { domain, mark }) => {
                    shared.see(domain, mark, waits_until).await?;
                }
                Err(BeginError::HistoryLost(domain)) => {
                    return Err(Error::lost(domain));
                }
                Err(BeginError::TooMany) => {
                    if remaining(waits_until).is_err() {
                        let what = "node.transactions_max transactions run".into();
                        return Err(Error::Unavailable(what));
                    }
                    sleep(PLACE_PAUSE).await;
                }
            }
        }
    }
}

fn exhausted(conflict: Error, attempts: u32) -> Error {
    match conflict {
        Error::Conflict { reason, .. } => Error::Conflict { attempts, reason },
        other => other,
    }
}

/// Half of it random, so that two writers in each other's way do not stay in step.
fn pause(rng: &mut Rng, attempt: u32) -> Duration {
    let full = PAUSE_MIN.saturating_mul(1 << attempt.min(10)).min(PAUSE_MAX);
    let nanos = u64::try_from(full.as_nanos()).expect("at most the longest pause");
    full / 2 + Duration::from_nanos(rng.below(nanos / 2))
}
