//! How an operation runs: on the thread that reads requests as far as it needs not wait, under a
//! limit, and to its end where it changes something.

use super::super::Shared;
use super::super::attributes::errno;
use super::super::locks::{Ask, Awaited};
use fuser::{Errno, ReplyEmpty, Request};
use larder::fs::{FsError, TxError, TxStore, on_behalf_of};
use larder::metrics::Asked;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle as Runtime;

pub(in crate::mount) struct Adapter<S: TxStore> {
    pub(super) shared: Arc<Shared<S>>,
    runtime: Runtime,
}

/// A result for the kernel.
pub(in crate::mount) type Answer<T> = Result<T, Errno>;

impl<S: TxStore> Adapter<S> {
    pub(in crate::mount) fn new(shared: Arc<Shared<S>>, runtime: Runtime) -> Self {
        Self { shared, runtime }
    }

    pub(super) fn count(&self, asked: Asked) {
        self.shared.options.asked.count(asked);
    }

    /// Starts something: on this thread as far as it goes without waiting, which for what is cached
    /// is to its end, with no other thread to be woken; the rest of it in a task of its own.
    pub(super) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _runtime = self.runtime.enter();
        let mut work = Box::pin(work);
        let mut context = Context::from_waker(Waker::noop());
        // A panic would end this thread, and the mount with it.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context))) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => {
                self.runtime.spawn(work);
            }
            Err(_) => tracing::error!("a file operation ended by a panic"),
        }
    }

    /// Runs an operation that only looks, and answers within the limit whatever happens; past that
    /// the operation is given up where it stands.
    pub(super) fn run<T, Op, Fut>(
        &self,
        op: Op,
        answer: impl FnOnce(&Shared<S>, Answer<T>) + Send + 'static,
    ) where
        T: Send + 'static,
        Op: FnOnce(Arc<Shared<S>>) -> Fut,
        Fut: Future<Output = Answer<T>> + Send + 'static,
    {
        let shared = self.shared.clone();
        if let Err(error) = shared.may_read() {
            return answer(&shared, Err(error));
        }
        self.run_allowed(op, answer);
    }

    /// The same for one whose right is looked at elsewhere.
    fn run_allowed<T, Op, Fut>(
        &self,
        op: Op,
        answer: impl FnOnce(&Shared<S>, Answer<T>) + Send + 'static,
    ) where
        T: Send + 'static,
        Op: FnOnce(Arc<Shared<S>>) -> Fut,
        Fut: Future<Output = Answer<T>> + Send + 'static,
    {
        let shared = self.shared.clone();
        let operation = op(shared.clone());
        self.start(async move {
            let limit = shared.options.operation_limit;
            let latest = async {
                shared.latest_for_operation().await?;
                operation.await
            };
            let result = match tokio::time::timeout(limit, latest).await {
                Ok(result) => result,
                Err(_) => Err(Errno::ETIMEDOUT),
            };
            answer(&shared, result);
        });
    }

    /// The same for one that changes something, for whoever asks for it: past the limit nobody waits for it, but it is
    /// done to its end, since there are things to do after its commit. Such operations are
    /// bounded: with too many of them under way, further ones wait, and are not begun past their
    /// limit.
    pub(super) fn run_to_its_end<T, Op, Fut>(
        &self,
        by: &Request,
        op: Op,
        answer: impl FnOnce(&Shared<S>, Answer<T>) + Send + 'static,
    ) where
        T: Send + 'static,
        Op: FnOnce(Arc<Shared<S>>) -> Fut,
        Fut: Future<Output = Answer<T>> + Send + 'static,
    {
        self.run_late_or_to_its_end(by, |_| async { None }, op, answer);
    }

    /// The same, unless it can be done `late`: shown here at once, and committed later. What is not
    /// comes after what was closed here before, for whoever sees it.
    pub(super) fn run_late_or_to_its_end<T, Late, LateFut, Op, Fut>(
        &self,
        by: &Request,
        late: Late,
        op: Op,
        answer: impl FnOnce(&Shared<S>, Answer<T>) + Send + 'static,
    ) where
        T: Send + 'static,
        Late: FnOnce(Arc<Shared<S>>) -> LateFut,
        LateFut: Future<Output = Option<Answer<T>>> + Send + 'static,
        Op: FnOnce(Arc<Shared<S>>) -> Fut,
        Fut: Future<Output = Answer<T>> + Send + 'static,
    {
        if let Err(error) = self.shared.may_change() {
            return answer(&self.shared, Err(error));
        }
        self.commit_late_or_to_its_end(by, late, op, answer);
    }

    /// The same for what commits what was taken in, whatever may be changed now: its store says so.
    pub(super) fn commit_late_or_to_its_end<T, Late, LateFut, Op, Fut>(
        &self,
        by: &Request,
        late: Late,
        op: Op,
        answer: impl FnOnce(&Shared<S>, Answer<T>) + Send + 'static,
    ) where
        T: Send + 'static,
        Late: FnOnce(Arc<Shared<S>>) -> LateFut,
        LateFut: Future<Output = Option<Answer<T>>> + Send + 'static,
        Op: FnOnce(Arc<Shared<S>>) -> Fut,
        Fut: Future<Output = Answer<T>> + Send + 'static,
    {
        if let Err(error) = self.shared.takes_changes() {
            return answer(&self.shared, Err(error));
        }
        let begun = self.shared.operations.clone();
        let counted = self.shared.under_way.begin();
        let by = self.shared.process_of(by.pid());
        let late = on_behalf_of(by, late(self.shared.clone()));
        let operation = on_behalf_of(by, op(self.shared.clone()));
        self.run_allowed(
            |shared| async move {
                shared.takes_changes()?;
                if let Some(done) = late.await {
                    return done;
                }
                shared.after_closes().await;
                let permit = begun.acquire_owned().await.map_err(|_| Errno::ESHUTDOWN)?;
                let task = tokio::spawn(async move {
                    let _begun = (permit, counted);
                    operation.await
                });
                task.await.unwrap_or_else(|error| {
                    tracing::error!(%error, "a file operation ended by a panic");
                    Err(Errno::EIO)
                })
            },
            answer,
        );
    }

    /// Tries once to take a lock. Past the limit it is given back if it comes.
    pub(super) fn lock_at_once(&self, ask: Ask, reply: ReplyEmpty) {
        let (shared, counted) = (self.shared.clone(), self.shared.under_way.begin());
        let limit = self.shared.options.operation_limit;
        self.start(async move {
            let awaited = Arc::new(Awaited::default());
            let waits = awaited.clone();
            let mut task = tokio::spawn(async move {
                let _counted = counted;
                shared.may_change()?;
                shared.latest_for_operation().await?;
                shared.set_lock(ask, &waits).await
            });
            let result = match tokio::time::timeout(limit, &mut task).await {
                Ok(result) => result,
                Err(_) if awaited.leave() => Ok(Err(Errno::ETIMEDOUT)),
                Err(_) => task.await,
            };
            match result {
                Ok(Ok(())) => reply.ok(),
                Ok(Err(error)) => reply.error(error),
                Err(_) => reply.error(Errno::EIO),
            }
        });
    }

    /// Runs what is done to its end and needs no latest state, such as giving something back.
    pub(super) fn run_in_any_case(
        &self,
        work: impl Future<Output = Answer<()>> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        let (shared, counted) = (self.shared.clone(), self.shared.under_way.begin());
        let limit = shared.options.operation_limit;
        self.start(async move {
            let task = tokio::spawn(async move {
                let _counted = counted;
                // A lock that is released tells of what was written under it.
                shared.after_closes().await;
                work.await
            });
            match tokio::time::timeout(limit, task).await {
                Ok(Ok(Ok(()))) => reply.ok(),
                Ok(Ok(Err(error))) => reply.error(error),
                Ok(Err(_)) => reply.error(Errno::EIO),
                Err(_) => reply.error(Errno::ETIMEDOUT),
            }
        });
    }
}

pub(in crate::mount) fn failed<T>(result: Result<T, FsError>) -> Answer<T> {
    result.map_err(|error| {
        if matches!(
            error,
            FsError::Damaged(_) | FsError::Store(TxError::Damaged(_) | TxError::Unavailable(_))
        ) {
            tracing::warn!(%error, "a file operation failed");
        }
        errno(&error)
    })
}

/// The same for what the kernel means by a number. If that is gone, the name by which the kernel came
/// to it may lead to something else by now: told so, the kernel looks it up again.
pub(in crate::mount) fn failed_there<T>(result: Result<T, FsError>) -> Answer<T> {
    match result {
        Err(FsError::NotFound) => Err(Errno::ESTALE),
        other => failed(other),
    }
}

pub(super) fn reply_empty<S: TxStore>(
    reply: ReplyEmpty,
) -> impl FnOnce(&Shared<S>, Answer<()>) + Send {
    move |_, result| match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
