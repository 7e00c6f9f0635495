//! Transactions over several order domains: who decides, who follows, and what each of them keeps
//! (decision 0035; rules 15 and 19).
//!
//! A domain is both: the [`Coordinator`] of transactions whose part in it decides, and a [`Participant`] in those
//! of others. Neither knows of pages, stamps or stores: their domain does, and carries out what they answer. What
//! they keep is durable by the domain's log and metadata, or lost with its process: their docs say which.
//!
//! [`Between`] is what domains say to each other. Every message may be lost, repeated or late: each names the
//! attempt that it is about, and attempts are never named twice.

mod coordinator;
mod participant;
mod said;
#[cfg(test)]
mod tests;

pub use coordinator::{Coordinator, Next};
pub use participant::{Followed, Participant, Prepared, Turn};
pub use said::{ORIGINS_SINCE, OriginMessage};

use crate::commit::{Abort, PartId};
use crate::id::{Attempt, CommitId};
use crate::message::RequestError;

/// What the domains of a transaction say to each other about an attempt at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Between {
    /// Coordinator to participant: the transaction's deciding part is here. Answered by `Arrived`, as soon as
    /// the other part is there too.
    Await {
        /// Who decides.
        coordinator: CommitId,
        /// Which part.
        part: CommitId,
    },
    /// Participant to coordinator: this part is here, and not prepared. Answered by `Ended`, if the transaction
    /// has; it is tried once all parts have arrived.
    Arrived {
        /// Who decides.
        coordinator: CommitId,
        /// Which part.
        part: CommitId,
        /// Whose its process is, as the participant knows it: its number may be another one than in the domain that
        /// decides. Empty: it is not known any more.
        name: String,
    },
    /// Coordinator to participant: what became of the transaction of a part that is not prepared.
    Ended {
        /// Who decides.
        coordinator: CommitId,
        /// Which part.
        part: CommitId,
        /// What.
        ended: Ended,
    },
    /// Coordinator to participant: get ready to commit this part of yours. Answered by `Vote`.
    Prepare {
        /// At which attempt.
        attempt: Attempt,
        /// Who decides.
        coordinator: PartId,
        /// Which part.
        part: CommitId,
    },
    /// Participant to coordinator: whether it is ready, durably.
    Vote {
        /// At which attempt.
        attempt: Attempt,
        /// How.
        vote: Vote,
    },
    /// Coordinator to participant: commit it. Answered by `Followed`, once that is durable.
    Decide {
        /// Which attempt.
        attempt: Attempt,
    },
    /// Coordinator to participant: it will not be committed at this attempt.
    Release {
        /// Which attempt.
        attempt: Attempt,
    },
    /// Participant to coordinator: what becomes of it? Answered by `Decide`, by `Release`, or not at all while
    /// nobody knows.
    Ask {
        /// Which attempt.
        attempt: Attempt,
    },
    /// Participant to coordinator: it is committed, durably, or was before.
    Followed {
        /// Which attempt.
        attempt: Attempt,
    },
}

/// A participant's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// It is ready, and stays so until it hears what is decided.
    Ready,
    /// The transaction cannot be committed.
    Refused(Abort),
    /// The part is not here, or not any more: it is tried again when it has arrived.
    Absent,
    /// Not now: nothing is done, and it may be tried again.
    Later(RequestError),
}

/// How a transaction ended of which a part was not committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was refused, durably.
    Refused(Abort),
    /// It was put off: nothing is done, and it may be tried again.
    Later(RequestError),
    /// Nobody can tell any more (P11).
    Unknown,
}
