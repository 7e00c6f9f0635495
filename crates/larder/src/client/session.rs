//! Sessions: a user of a node with its own consistency and its own floor.

use super::{Error, Result, Transaction};
use larder_core::id::{DomainId, Stamp};
use std::future::Future;
use std::time::Duration;

/// What a session's transactions may claim (`docs/decisions/0002-order-domains.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consistency {
    /// Serializable, and in real time: every transaction is validated at the origin.
    Strict,
    /// Serializable. Read-only transactions of one domain commit locally, with no message.
    #[default]
    Serializable,
    /// Read-only, at the valid-through of their begin; never doomed by later changes.
    Snapshot,
}

/// How old the state may be that a transaction is begun on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Freshness {
    /// Within the link lease: as old as the parent allows to call current.
    #[default]
    Leased,
    /// At most this old; the node asks the parent when it is older.
    AtMost(Duration),
    /// Whatever is cached; its age is to be had from `Transaction::age`.
    Any,
}

/// How a session works.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// What its transactions may claim.
    pub consistency: Consistency,
    /// How old its state may be.
    pub freshness: Freshness,
    /// How long a transaction may take, all its attempts together, before `TimedOut` or
    /// `Conflict`.
    pub time_limit: Duration,
    /// How often `transact` runs a transaction at most.
    pub attempts_max: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            consistency: Consistency::default(),
            freshness: Freshness::default(),
            time_limit: Duration::from_secs(30),
            attempts_max: 32,
        }
    }
}

/// A user of a node. It never sees less than it has seen or written, over anything that happens
/// to the link. Cloning shares it; transactions of one session may run side by side.
#[derive(Clone)]
pub struct Session {}

impl Session {
    /// Runs `body` as a transaction and commits it; again from the start, after a jittered pause,
    /// when it met a conflict, within the session's attempts and time. What `body` returns as an
    /// error aborts the transaction and is returned as it is, unless the transaction had met a
    /// conflict by then.
    ///
    /// ```no_run
    /// # async fn f(session: larder::client::Session, id: larder::core::id::ObjectId)
    /// #     -> larder::client::Result<()> {
    /// session.transact(|tx| async move {
    ///     let old = tx.get(id).await?;
    ///     tx.update(id, [old.as_ref(), b"!"].concat()).await
    /// }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn transact<T, E, F, Body>(&self, _body: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Body + Send,
        Body: Future<Output = Result<T, E>> + Send,
        T: Send,
        E: From<Error> + Send,
    {
        todo!()
    }

    /// The same for a transaction that only reads: a write in it is `ReadOnly`.
    pub async fn read<T, E, F, Body>(&self, _body: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Body + Send,
        Body: Future<Output = Result<T, E>> + Send,
        T: Send,
        E: From<Error> + Send,
    {
        todo!()
    }

    /// Begins a transaction, to be ended by [`Transaction::commit`] or [`Transaction::abort`];
    /// dropping it aborts it. Waits until the cache has reached the session's floor and is fresh
    /// enough.
    pub async fn begin(&self) -> Result<Transaction> {
        todo!()
    }

    /// Begins a transaction that only reads.
    pub async fn begin_read(&self) -> Result<Transaction> {
        todo!()
    }

    /// The least stamp this session's next transaction will see of a domain.
    #[must_use]
    pub fn floor(&self, _domain: DomainId) -> Stamp {
        todo!()
    }
}
