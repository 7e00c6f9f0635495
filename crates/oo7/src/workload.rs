//! What one user does: transactions of operations that are drawn by their weights.
//!
//! The multi-user form of OO7 draws operations by percentages (85 private reads, 10 shared ones, 3 private
//! changes, 2 shared ones, in one variant that was published, five operations to a transaction). BuddyCache's
//! readers walk to one composite part; its writers change it with a probability of one half (section 6.2).

use crate::{Database, Error, Operation, Result, Tally};
use larder::client::Session;
use larder_core::rng::Rng;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Operations with their weights: each is drawn as often as its weight is of their sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mix(Vec<(Operation, u32)>);

impl Mix {
    /// # Errors
    /// [`Error::Invalid`] when nothing has a weight, or weights do not fit in 32 bits.
    pub fn new(weights: Vec<(Operation, u32)>) -> Result<Self> {
        let sum: u64 = weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
        match u32::try_from(sum) {
            Ok(0) => Err(Error::Invalid("no operation has a weight".into())),
            Err(_) => Err(Error::Invalid(format!("weights of {sum} in all are too many"))),
            Ok(_) => Ok(Self(weights)),
        }
    }

    /// Of one operation.
    #[must_use]
    pub fn only(operation: Operation) -> Self {
        Self::even([operation])
    }

    /// Of some, one at least, all as often.
    #[must_use]
    pub fn even<const N: usize>(operations: [Operation; N]) -> Self {
        const { assert!(N > 0, "nothing cannot be drawn from") }
        Self(operations.map(|operation| (operation, 1)).into())
    }

    /// Whether none of them changes anything.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.0.iter().all(|(operation, weight)| *weight == 0 || operation.only_reads())
    }

    fn draw(&self, rng: &mut Rng) -> Operation {
        let sum = self.0.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = rng.below(sum);
        for (operation, weight) in &self.0 {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return *operation,
            }
        }
        unreachable!("what is drawn is below the sum")
    }
}

/// As it is read.
impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (operation, weight)) in self.0.iter().enumerate() {
            let mark = if place > 0 { "," } else { "" };
            write!(f, "{mark}{operation}={weight}")?;
        }
        Ok(())
    }
}

/// `path=85,shared-path=10,path-change=3`; a name alone weighs 1.
impl FromStr for Mix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let one = |part: &str| {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let weight = weight.trim().parse();
            let weight = weight.map_err(|_| {
                Error::Invalid(format!("{part}: NAME=WEIGHT is wanted, as in `path=85`"))
            })?;
            Ok((name.trim().parse()?, weight))
        };
        Self::new(text.split(',').map(one).collect::<Result<_>>()?)
    }
}

/// What one user does again and again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    /// What is drawn for each operation.
    pub mix: Mix,
    /// Operations of one transaction.
    pub operations: u32,
    /// The module that is this user's.
    pub module: usize,
    /// What is drawn comes from it: the same transactions for the same seed.
    pub seed: u64,
}

/// The time by which transactions are measured, and what they take beside what they wait for. A function
/// that gives the time is one in which they take nothing.
pub trait Pace: Send + Sync {
    /// The time since any moment.
    fn now(&self) -> Duration;

    /// A transaction has done what it does, which came to this: it takes what that takes.
    fn works(&self, _tally: &Tally) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// It is about to commit.
    fn commits(&self, _only_reads: bool) -> impl Future<Output = ()> + Send {
        async {}
    }
}

impl<Now: Fn() -> Duration + Send + Sync> Pace for Now {
    fn now(&self) -> Duration {
        self()
    }
}

/// A transaction that was committed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// What it did, in order.
    pub operations: Vec<Operation>,
    /// What that came to, in its last attempt.
    pub tally: Tally,
    /// Times that it was run: once, and again after each conflict.
    pub attempts: u32,
    /// From its beginning to its commit, with all attempts.
    pub took: Duration,
    /// Of that, what its last attempt worked.
    pub worked: Duration,
    /// Of that, what its last commit took.
    pub commit: Duration,
}

impl Workload {
    /// Runs the transaction of a number, again with the same draws as long as it meets conflicts and the
    /// session's attempts and time allow.
    ///
    /// # Errors
    /// What the operations and the store say.
    pub async fn run(
        &self,
        database: &Database,
        session: &Session,
        number: u64,
        pace: &impl Pace,
    ) -> Result<Done> {
        let rng = &mut Rng::new(self.seed ^ Rng::new(number).next_u64());
        let drawn: Vec<(Operation, u64)> =
            (0..self.operations).map(|_| (self.mix.draw(rng), rng.next_u64())).collect();
        let only_reads = drawn.iter().all(|(operation, _)| operation.only_reads());
        let (attempts, working) = (AtomicU32::new(0), AtomicU64::new(0));
        let committing = AtomicU64::new(0);
        let (of, module) = (&drawn, self.module);
        let (attempts_of, working_of, committing_of) = (&attempts, &working, &committing);
        let nanos = || u64::try_from(pace.now().as_nanos()).unwrap_or(u64::MAX);
        let nanos_of = &nanos;
        let start = pace.now();
        let body = |tx| async move {
            attempts_of.fetch_add(1, Ordering::Relaxed);
            let mut tally = Tally::default();
            for (operation, seed) in of {
                tally += operation.run(database, &tx, module, *seed).await?;
            }
            working_of.store(nanos_of(), Ordering::Relaxed);
            pace.works(&tally).await;
            committing_of.store(nanos_of(), Ordering::Relaxed);
            pace.commits(only_reads).await;
            Ok::<_, Error>(tally)
        };
        let tally =
            if only_reads { session.read(body).await? } else { session.transact(body).await? };
        let (working, committing) = (
            Duration::from_nanos(working.into_inner()),
            Duration::from_nanos(committing.into_inner()),
        );
        let end = pace.now();
        Ok(Done {
            operations: drawn.into_iter().map(|(operation, _)| operation).collect(),
            tally,
            attempts: attempts.into_inner(),
            took: end.saturating_sub(start),
            worked: committing.saturating_sub(working),
            commit: end.saturating_sub(committing),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published variant: as often as its weight says, within what chance allows.
    #[test]
    fn operations_are_drawn_by_their_weights() {
        let text = "path=85, shared-path=10, path-change=3, shared-path-change=2";
        let mix: Mix = text.parse().expect("four operations with weights");
        let rng = &mut Rng::new(7);
        let drawn: Vec<Operation> = (0..100_000).map(|_| mix.draw(rng)).collect();
        for (operation, expected) in [
            (Operation::Path, 85_000),
            (Operation::SharedPath, 10_000),
            (Operation::PathChange, 3_000),
            (Operation::SharedPathChange, 2_000),
        ] {
            let count = drawn.iter().filter(|drawn| **drawn == operation).count();
            assert!(count.abs_diff(expected) < 400, "{operation}: {count}");
        }
    }

    #[test]
    fn what_makes_no_mix_is_refused() {
        assert_eq!("T1".parse::<Mix>().expect("one operation"), Mix::only(Operation::T1));
        let mix: Mix = " q1 = 2 ,t6".parse().expect("two operations");
        assert_eq!(mix.to_string(), "q1=2,t6=1");
        for wrong in ["", "t1=", "t1=x", "t9=1", "t1=0", "t1=4294967295,t2a=1", "t1=-1"] {
            wrong.parse::<Mix>().expect_err(wrong);
        }
    }
}
