//! OO7, the workload of engineers who share designs (Carey, DeWitt and Naughton), on Larder's client
//! library: its databases, traversals, queries and structural changes, and what several users do at
//! once. BuddyCache was measured by it (section 6.2). Where published descriptions differ, what was
//! chosen and why is in `docs/decisions/0030-oo7.md`.
//!
//! A database is a volume: [`build()`] fills it, [`Database::open`] opens it, and operations run in
//! transactions of whoever calls them.

mod build;
mod check;
mod cluster;
mod database;
mod draft;
mod index;
mod operation;
mod parameters;
mod queries;
mod schema;
mod structure;
mod walk;
mod workload;

pub use build::{Progress, build};
pub use check::{Counts, check};
pub use database::Database;
pub use operation::{Operation, Tally};
pub use parameters::{Layout, ModulePlan, Parameters, Size};
pub use schema::Reference;
pub use workload::{Done, Mix, Pace, Workload};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store's error.
    #[error(transparent)]
    Store(#[from] larder::client::Error),
    /// The volume holds no database, or half of one.
    #[error("{0}")]
    NoDatabase(String),
    /// The database is not what it must be.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
