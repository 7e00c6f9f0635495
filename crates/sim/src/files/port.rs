//! What a process of files wants of its node's machine, and what it is answered: carried out and
//! brought by the world.

use super::journal::{Shared, Who};
use crate::agenda::MILLI;
use crate::clock::SimClock;
use larder::clock::simulated::Surroundings;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{CommitPart, ReadCache};
use larder_core::id::{DomainId, VolumeId};
use larder_core::message::RequestError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Nanoseconds since 1970 at which runs begin.
const WALL_NANOS: i64 = 1_700_000_000_000_000_000;

/// See [`Port::think`].
const HEALING_THINK: u64 = 400 * MILLI;

/// What the plan chose of how files are used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choices {
    /// Nothing is served that may be older than the lease.
    pub leased: bool,
    /// There is room, as far as is known: commits may be late.
    pub ample: bool,
    /// How long a transaction may take, before the world heals.
    pub time_limit: Duration,
    /// How long a state is asked for.
    pub refresh_limit: Duration,
}

/// A commit that is asked for.
#[derive(Clone, Debug)]
pub struct Commit {
    /// What.
    pub part: CommitPart,
    /// By whom.
    pub who: Who,
}

/// Something for the machine.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A request, and for how long it is waited for.
    Op(u64, CacheOp, Duration),
    /// A commit likewise.
    Commit(u64, Box<Commit>, Duration),
}

type Answered = Result<CacheReply, RequestError>;

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    wanted: VecDeque<Wanted>,
    answers: BTreeMap<u64, Answered>,
    waiting: BTreeMap<u64, Option<Waker>>,
    wall_error: i64,
    patient: bool,
}

/// See the module's documentation.
pub struct Port {
    /// The process.
    pub node: u16,
    /// Its life.
    pub life: u32,
    /// Its cache.
    pub read: Arc<ReadCache>,
    /// Its clock, as its cache's readers have it.
    pub clock: SimClock,
    /// Its time and chance.
    pub surroundings: Surroundings,
    /// The volume of files.
    pub volume: VolumeId,
    /// Its domain.
    pub domain: DomainId,
    /// Its bytes of a page.
    pub page_bytes: u32,
    /// See [`Choices`].
    pub choices: Choices,
    /// The run's.
    pub journal: Shared,
    inner: Mutex<Inner>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({}, {})", self.node, self.life)
    }
}

/// Forgets the question of who waits no longer.
struct Asker<'a> {
    port: &'a Port,
    token: u64,
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.port.with(|inner| {
            inner.waiting.remove(&self.token);
            inner.answers.remove(&self.token);
        });
    }
}

impl Port {
    /// Of a node that has just started.
    #[allow(clippy::too_many_arguments)]
    #[must_use]
    pub fn new(
        (node, life): (u16, u32),
        read: Arc<ReadCache>,
        clock: SimClock,
        surroundings: Surroundings,
        (volume, domain, page_bytes): (VolumeId, DomainId, u32),
        choices: Choices,
        journal: Shared,
    ) -> Self {
        Self {
            node,
            life,
            read,
            clock,
            surroundings,
            volume,
            domain,
            page_bytes,
            choices,
            journal,
            inner: Mutex::default(),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How far its wall clock is off, and whether it waits for long.
    pub fn set(&self, wall_error: i64, patient: bool) {
        self.with(|inner| (inner.wall_error, inner.patient) = (wall_error, patient));
    }

    /// Its wall clock.
    #[must_use]
    pub fn wall(&self) -> i64 {
        let nanos = i64::try_from(larder::clock::now().0).unwrap_or(i64::MAX);
        self.with(|inner| WALL_NANOS + nanos + inner.wall_error)
    }

    /// How long a transaction may take.
    #[must_use]
    pub fn time_limit(&self) -> Duration {
        let patient = self.with(|inner| inner.patient);
        if patient { Duration::from_secs(60) } else { self.choices.time_limit }
    }

    /// The longest pause of a client, in nanoseconds. While the world heals there is no end of operations
    /// in sight: they are fewer.
    #[must_use]
    pub fn think(&self, think: u64) -> u64 {
        let patient = self.with(|inner| inner.patient);
        if patient { think.max(HEALING_THINK) } else { think }
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&self, op: CacheOp, limit: Duration) -> Answered {
        let token = self.push(|token| Wanted::Op(token, op, limit));
        self.answer_to(token).await
    }

    /// Asks for a commit.
    pub async fn commit(&self, commit: Commit, limit: Duration) -> Answered {
        let token = self.push(|token| Wanted::Commit(token, Box::new(commit), limit));
        self.answer_to(token).await
    }

    /// Asks, and waits for nothing.
    pub fn tell(&self, op: CacheOp) {
        let token = self.push(|token| Wanted::Op(token, op, self.choices.time_limit));
        self.with(|inner| inner.waiting.remove(&token));
    }

    fn push(&self, wanted: impl FnOnce(u64) -> Wanted) -> u64 {
        self.with(|inner| {
            inner.next += 1;
            inner.wanted.push_back(wanted(inner.next));
            inner.waiting.insert(inner.next, None);
            inner.next
        })
    }

    async fn answer_to(&self, token: u64) -> Answered {
        let _asker = Asker { port: self, token };
        poll_fn(|cx| {
            self.with(|inner| match inner.answers.remove(&token) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    inner.waiting.insert(token, Some(cx.waker().clone()));
                    Poll::Pending
                }
            })
        })
        .await
    }

    /// What is wanted next.
    pub fn next_wanted(&self) -> Option<Wanted> {
        self.with(|inner| inner.wanted.pop_front())
    }

    /// Brings an answer.
    pub fn answer(&self, token: u64, answer: Answered) {
        let waker = self.with(|inner| {
            let waker = inner.waiting.get(&token)?.clone();
            inner.answers.insert(token, answer);
            waker
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
