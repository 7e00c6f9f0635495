//! Queries.

use crate::database::{Access, Database, unexpected};
use crate::draft::title;
use crate::index::{date_key, number_key};
use crate::operation::{Operation, Tally};
use crate::schema::{BaseAssembly, Thing};
use crate::{Error, Result};
use larder::client::Transaction;
use larder_core::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;

/// How many Q1 and Q4 look up.
const DRAWN: usize = 10;
/// Dates of atomic parts: from the first on, below the second.
const DATES: (u32, u32) = (1_000, 2_000);

pub(crate) async fn run(
    query: Operation,
    database: &Database,
    tx: &Transaction,
    module: usize,
    rng: &mut Rng,
) -> Result<Tally> {
    let of = Query { database, tx, access: database.access(tx) };
    match query {
        Operation::Q1 => of.by_id(rng).await,
        Operation::Q2 => of.newest(100).await,
        Operation::Q3 => of.newest(10).await,
        Operation::Q4 => of.by_title(rng).await,
        Operation::Q5 => of.younger(module, false).await,
        Operation::Q6 => of.younger(module, true).await,
        Operation::Q7 => of.all().await,
        Operation::Q8 => of.join().await,
        other => Err(Error::Invalid(format!("{other} is no query"))),
    }
}

struct Query<'a> {
    database: &'a Database,
    tx: &'a Transaction,
    access: Access<'a>,
}

impl Query<'_> {
    /// Composite parts there were when the database was made.
    fn composites(&self) -> u32 {
        self.database.parameters.modules().iter().map(|module| module.composites).sum()
    }

    async fn by_id(&self, rng: &mut Rng) -> Result<Tally> {
        let index = self.database.tree(self.tx, self.database.indexes.atomic_id);
        let atoms = self.composites() * self.database.parameters.atomic_per_composite;
        let mut tally = Tally::default();
        for _ in 0..DRAWN {
            let id = rng.below(u64::from(atoms)) as u32;
            // One of a composite part that was deleted is not there any more.
            if let Some(at) = index.find(&number_key(id)).await? {
                let atom = self.access.atomic(at).await?;
                tally.atoms += 1;
                tally.found += u64::from(atom.design.id == id);
            }
        }
        Ok(tally)
    }

    async fn newest(&self, part: u32) -> Result<Tally> {
        let index = self.database.tree(self.tx, self.database.indexes.atomic_date);
        let from = date_key(DATES.1 - (DATES.1 - DATES.0) / part, 0);
        let found = index.range(Bound::Included(&from), Bound::Unbounded).await?;
        let mut tally = Tally::default();
        for (_, at) in found {
            self.access.atomic(at).await?;
            (tally.atoms, tally.found) = (tally.atoms + 1, tally.found + 1);
        }
        Ok(tally)
    }

    async fn by_title(&self, rng: &mut Rng) -> Result<Tally> {
        let index = self.database.tree(self.tx, self.database.indexes.title);
        let mut tally = Tally::default();
        for _ in 0..DRAWN {
            let id = rng.below(u64::from(self.composites())) as u32;
            let Some(at) = index.find(title(id).as_bytes()).await? else { continue };
            let document = self.access.document(at).await?;
            let part = self.access.composite(document.part).await?;
            (tally.documents, tally.composites) = (tally.documents + 1, tally.composites + 1);
            for base in part.used_private.iter().chain(&part.used_shared) {
                self.access.base(*base).await?;
                (tally.assemblies, tally.found) = (tally.assemblies + 1, tally.found + 1);
            }
        }
        Ok(tally)
    }

    /// The greatest date of composite parts that a base assembly uses, of both kinds; none: it uses none.
    async fn greatest(&self, base: &BaseAssembly, tally: &mut Tally) -> Result<Option<u32>> {
        let mut greatest = None;
        for at in base.private.iter().chain(&base.shared) {
            tally.composites += 1;
            greatest = greatest.max(Some(self.access.composite(*at).await?.design.build_date));
        }
        Ok(greatest)
    }

    /// Assemblies of a module that use a composite part younger than they are; base assemblies alone,
    /// or those above them too.
    async fn younger(&self, module: usize, above: bool) -> Result<Tally> {
        let module = self.access.module(self.database.module(module)?).await?;
        let (mut tally, mut todo) = (Tally::default(), vec![(module.root, None)]);
        // In the order in which they were come to, each after the one above it: which that is, the date,
        // and the greatest of a part below.
        let mut complex: Vec<(Option<usize>, u32, Option<u32>)> = Vec::new();
        while let Some((at, parent)) = todo.pop() {
            tally.assemblies += 1;
            match self.access.get(at).await? {
                Thing::Complex(assembly) => {
                    let number = complex.len();
                    complex.push((parent, assembly.design.build_date, None));
                    todo.extend(assembly.below.iter().rev().map(|below| (*below, Some(number))));
                }
                Thing::Base(base) => {
                    let greatest = self.greatest(&base, &mut tally).await?;
                    tally.found += u64::from(greatest > Some(base.design.build_date));
                    if let Some(parent) = parent {
                        complex[parent].2 = complex[parent].2.max(greatest);
                    }
                }
                other => return Err(unexpected(at, "an assembly", &other)),
            }
        }
        while let Some((parent, date, greatest)) = complex.pop().filter(|_| above) {
            tally.found += u64::from(greatest > Some(date));
            if let Some(parent) = parent {
                complex[parent].2 = complex[parent].2.max(greatest);
            }
        }
        Ok(tally)
    }

    async fn all(&self) -> Result<Tally> {
        let index = self.database.tree(self.tx, self.database.indexes.atomic_id);
        let mut tally = Tally::default();
        for (_, at) in index.range(Bound::Unbounded, Bound::Unbounded).await? {
            self.access.atomic(at).await?;
            (tally.atoms, tally.found) = (tally.atoms + 1, tally.found + 1);
        }
        Ok(tally)
    }

    async fn join(&self) -> Result<Tally> {
        let indexes = self.database.indexes;
        let documents = self.database.tree(self.tx, indexes.document_id);
        let documents = documents.range(Bound::Unbounded, Bound::Unbounded).await?;
        let mut by_id = BTreeMap::new();
        for (_, at) in &documents {
            by_id.insert(self.access.document(*at).await?.id, *at);
        }
        let mut tally = Tally { documents: documents.len() as u64, ..Tally::default() };
        let atoms = self.database.tree(self.tx, indexes.atomic_id);
        for (_, at) in atoms.range(Bound::Unbounded, Bound::Unbounded).await? {
            let atom = self.access.atomic(at).await?;
            tally.atoms += 1;
            tally.found += u64::from(by_id.contains_key(&atom.document));
        }
        Ok(tally)
    }
}
