//! The operations by their names, and what they found.

use crate::database::Database;
use crate::walk::{Parts, Visit, Walk, Which};
use crate::{Error, Result, queries, structure};
use larder::client::Transaction;
use larder_core::rng::Rng;
use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

/// What can be done with a database, by its published name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// All of a module is looked at.
    T1,
    /// The same, and the root part of each composite part swaps its coordinates.
    T2a,
    /// Each atomic part does.
    T2b,
    /// Each does four times.
    T2c,
    /// As T2a, with dates that are indexed.
    T3a,
    /// As T2b.
    T3b,
    /// As T2c.
    T3c,
    /// Only the root part of each composite part is looked at.
    T6,
    /// One composite part, at the end of a path that is drawn, is looked at: what a transaction of
    /// several users does.
    Path,
    /// The same, and each atomic part of it swaps its coordinates: T2b of one composite part.
    PathChange,
    /// As `Path`, to a part of the module that is shared.
    SharedPath,
    /// As `PathChange`, to such a part.
    SharedPathChange,
    /// Ten atomic parts by ids that are drawn.
    Q1,
    /// Atomic parts with dates in the newest hundredth.
    Q2,
    /// In the newest tenth.
    Q3,
    /// Ten documents by titles that are drawn, and the base assemblies that use their parts.
    Q4,
    /// Base assemblies that use a composite part younger than they are.
    Q5,
    /// Assemblies of both kinds that use, by what is below them, a composite part younger than they are.
    Q6,
    /// All atomic parts.
    Q7,
    /// Atomic parts with the documents of their ids.
    Q8,
    /// Ten composite parts are made, and used.
    Insert,
    /// Ten composite parts that were made so are deleted.
    Delete,
}

/// What an operation looked at and changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Assemblies that it came to.
    pub assemblies: u64,
    /// Visits of composite parts.
    pub composites: u64,
    /// Visits of atomic parts.
    pub atoms: u64,
    /// Connections that it went along.
    pub connections: u64,
    /// Documents.
    pub documents: u64,
    /// Changes of atomic parts, and composite parts that it made or deleted.
    pub changed: u64,
    /// What a query found.
    pub found: u64,
}

const NAMES: [(Operation, &str); 22] = [
    (Operation::T1, "t1"),
    (Operation::T2a, "t2a"),
    (Operation::T2b, "t2b"),
    (Operation::T2c, "t2c"),
    (Operation::T3a, "t3a"),
    (Operation::T3b, "t3b"),
    (Operation::T3c, "t3c"),
    (Operation::T6, "t6"),
    (Operation::Path, "path"),
    (Operation::PathChange, "path-change"),
    (Operation::SharedPath, "shared-path"),
    (Operation::SharedPathChange, "shared-path-change"),
    (Operation::Q1, "q1"),
    (Operation::Q2, "q2"),
    (Operation::Q3, "q3"),
    (Operation::Q4, "q4"),
    (Operation::Q5, "q5"),
    (Operation::Q6, "q6"),
    (Operation::Q7, "q7"),
    (Operation::Q8, "q8"),
    (Operation::Insert, "insert"),
    (Operation::Delete, "delete"),
];

impl Operation {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(|(operation, _)| operation)
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn only_reads(self) -> bool {
        use Operation as O;
        let walks = matches!(self, O::T2a | O::T2b | O::T2c | O::T3a | O::T3b | O::T3c);
        let paths = matches!(self, O::PathChange | O::SharedPathChange);
        !walks && !paths && !matches!(self, O::Insert | O::Delete)
    }

    /// Runs it in a transaction on one module, or on all where it is about all; what is drawn comes from the
    /// seed: with the same one it comes to the same parts.
    ///
    /// # Errors
    /// What the store says, and [`Error::Invalid`] for a module that is not there.
    pub async fn run(
        self,
        database: &Database,
        tx: &Transaction,
        module: usize,
        seed: u64,
    ) -> Result<Tally> {
        let rng = &mut Rng::new(seed);
        let visit = match self {
            Self::T1 | Self::Path | Self::SharedPath => Visit::Look,
            Self::T2a => Visit::Swap(Which::Root),
            Self::T2b | Self::PathChange | Self::SharedPathChange => Visit::Swap(Which::All),
            Self::T2c => Visit::Swap(Which::FourTimes),
            Self::T3a => Visit::Date(Which::Root),
            Self::T3b => Visit::Date(Which::All),
            Self::T3c => Visit::Date(Which::FourTimes),
            Self::T6 => Visit::LookAtRoot,
            Self::Insert => return structure::insert(database, tx, module, rng).await,
            Self::Delete => return structure::delete(database, tx).await,
            _ => return queries::run(self, database, tx, module, rng).await,
        };
        let mut walk = Walk::new(database, tx, visit);
        match self {
            Self::Path | Self::PathChange => walk.path(module, Parts::Private, rng).await?,
            Self::SharedPath | Self::SharedPathChange => {
                walk.path(module, Parts::Shared, rng).await?;
            }
            _ => walk.module(module).await?,
        }
        walk.finish().await
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.assemblies += other.assemblies;
        self.composites += other.composites;
        self.atoms += other.atoms;
        self.connections += other.connections;
        self.documents += other.documents;
        self.changed += other.changed;
        self.found += other.found;
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(operation, _)| operation == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl FromStr for Operation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        let found = NAMES.into_iter().find(|(_, name)| *name == lower);
        found.map(|(operation, _)| operation).ok_or_else(|| {
            let names = NAMES.map(|(_, name)| name).join(", ");
            Error::Invalid(format!("no operation {name}; there are {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        for operation in Operation::all() {
            assert_eq!(operation.to_string().parse::<Operation>().expect("its name"), operation);
        }
        assert_eq!("T2B".parse::<Operation>().expect("as it was published"), Operation::T2b);
        assert!("t9".parse::<Operation>().is_err());
    }
}
