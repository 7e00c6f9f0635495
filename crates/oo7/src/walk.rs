//! Traversals: from a module's root down all assemblies, and through the graph of each composite part
//! of its own that a base assembly uses, depth first along connections from the first atomic part.
//! A graph is gone through anew at each visit.

use crate::Result;
use crate::database::{Access, Database, unexpected};
use crate::index::date_key;
use crate::operation::Tally;
use crate::schema::{AtomicPart, BaseAssembly, Reference, Thing};
use larder::client::Transaction;
use larder_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Which atomic parts of a composite part are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// The first (a).
    Root,
    /// Each (b).
    All,
    /// Each, four times (c).
    FourTimes,
}

impl Which {
    fn times(self, is_root: bool) -> u32 {
        match self {
            Self::Root => u32::from(is_root),
            Self::All => 1,
            Self::FourTimes => 4,
        }
    }
}

/// What is done at an atomic part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    /// It is looked at (T1).
    Look,
    /// Only the first of a graph is looked at (T6).
    LookAtRoot,
    /// Its coordinates change places (T2).
    Swap(Which),
    /// Its date goes to the next one and back, and so in its index (T3).
    Date(Which),
}

/// Composite parts of a base assembly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// Those of its own module.
    Private,
    /// Those of the module that is shared.
    Shared,
}

impl Parts {
    fn of(self, base: BaseAssembly) -> Vec<Reference> {
        match self {
            Self::Private => base.private,
            Self::Shared => base.shared,
        }
    }
}

/// A walk in a transaction.
pub(crate) struct Walk<'a> {
    database: &'a Database,
    access: Access<'a>,
    visit: Visit,
    /// Atomic parts that were changed, with the dates that they had.
    changed: BTreeMap<Reference, (AtomicPart, u32)>,
    tally: Tally,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(database: &'a Database, tx: &'a Transaction, visit: Visit) -> Self {
        let access = database.access(tx);
        Self { database, access, visit, changed: BTreeMap::new(), tally: Tally::default() }
    }

    /// All of a module.
    pub(crate) async fn module(&mut self, number: usize) -> Result<()> {
        let module = self.access.module(self.database.module(number)?).await?;
        let mut todo = vec![module.root];
        while let Some(at) = todo.pop() {
            self.tally.assemblies += 1;
            match self.access.get(at).await? {
                Thing::Complex(assembly) => todo.extend(assembly.below.iter().rev()),
                Thing::Base(base) => {
                    for part in Parts::Private.of(base) {
                        self.composite(part).await?;
                    }
                }
                other => return Err(unexpected(at, "an assembly", &other)),
            }
        }
        Ok(())
    }

    /// One composite part, at the end of a path from a module's root that is drawn.
    pub(crate) async fn path(&mut self, number: usize, parts: Parts, rng: &mut Rng) -> Result<()> {
        let module = self.access.module(self.database.module(number)?).await?;
        let mut at = module.root;
        loop {
            self.tally.assemblies += 1;
            let (of, is_part) = match self.access.get(at).await? {
                Thing::Complex(assembly) => (assembly.below, false),
                Thing::Base(base) => (parts.of(base), true),
                other => return Err(unexpected(at, "an assembly", &other)),
            };
            if of.is_empty() {
                // What it used was deleted.
                return Ok(());
            }
            at = of[rng.below(of.len() as u64) as usize];
            if is_part {
                return self.composite(at).await;
            }
        }
    }

    /// The graph of one composite part.
    pub(crate) async fn composite(&mut self, at: Reference) -> Result<()> {
        self.tally.composites += 1;
        let part = self.access.composite(at).await?;
        let Some(root) = part.parts.first().copied() else { return Ok(()) };
        if self.database.together {
            self.access.fetch(&part.parts).await?;
        }
        let mut todo = self.atom(root, true).await?;
        if self.visit == Visit::LookAtRoot {
            return Ok(());
        }
        let mut seen = BTreeSet::from([root]);
        while let Some(connection) = todo.pop() {
            self.tally.connections += 1;
            let to = self.access.connection(connection).await?.to;
            if seen.insert(to) {
                todo.extend(self.atom(to, false).await?);
            }
        }
        Ok(())
    }

    /// Looks at an atomic part and does what is to be done; gives the connections that begin there, the
    /// first one last.
    async fn atom(&mut self, at: Reference, is_root: bool) -> Result<Vec<Reference>> {
        let atom = match self.changed.get(&at) {
            Some((atom, _)) => atom.clone(),
            None => self.access.atomic(at).await?,
        };
        self.tally.atoms += 1;
        let connections = atom.to.iter().rev().copied().collect();
        self.change(at, atom, is_root);
        Ok(connections)
    }

    fn change(&mut self, at: Reference, mut atom: AtomicPart, is_root: bool) {
        let (Visit::Swap(which) | Visit::Date(which)) = self.visit else { return };
        let times = which.times(is_root);
        if times == 0 {
            return;
        }
        let before = self.changed.get(&at).map_or(atom.design.build_date, |(_, before)| *before);
        for _ in 0..times {
            match self.visit {
                Visit::Date(_) => {
                    // An even one goes up, an odd one down: twice is never.
                    atom.design.build_date ^= 1;
                }
                _ => (atom.x, atom.y) = (atom.y, atom.x),
            }
            self.tally.changed += 1;
        }
        self.changed.insert(at, (atom, before));
    }

    /// Writes what was changed: each part once, as a transaction sends it, and dates to their index.
    pub(crate) async fn finish(self) -> Result<Tally> {
        let mut dates = self.database.tree(self.access.tx, self.database.indexes.atomic_date);
        for (at, (atom, before)) in self.changed {
            let (date, id) = (atom.design.build_date, atom.design.id);
            if date != before {
                dates.remove(&date_key(before, id)).await?;
                dates.insert(date_key(date, id), at).await?;
            }
            self.access.put(at, &Thing::Atomic(atom)).await?;
        }
        dates.flush().await?;
        Ok(self.tally)
    }
}
