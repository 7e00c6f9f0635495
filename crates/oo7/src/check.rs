//! Looks at all of a database: whether it is whole, and how much there is of everything.

use crate::database::{Database, unexpected};
use crate::draft::title;
use crate::index::{Tree, date_key, number_key};
use crate::schema::{Reference, Thing};
use crate::{Error, Result};
use larder::client::{self, Session, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Modules.
    pub modules: u64,
    /// Complex assemblies of all modules.
    pub complex_assemblies: u64,
    /// Base assemblies of all modules.
    pub base_assemblies: u64,
    /// Composite parts.
    pub composites: u64,
    /// Atomic parts.
    pub atoms: u64,
    /// Connections.
    pub connections: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of all objects, those of indexes apart.
    pub object_bytes: u64,
}

/// What was found wrong, at most so many sentences.
const WRONG_MAX: usize = 100;

/// Composite parts that are looked at in one transaction.
const AT_ONCE: usize = 200;

/// Looks at everything that can be reached, in several transactions, while nobody changes anything: each connection is in the lists of both
/// its ends, each user of a composite part names it, and indexes hold what there is and nothing else.
/// Gives what there is, and what is wrong.
///
/// # Errors
/// What the store says, and [`crate::Error::Damaged`] for what cannot be read.
pub async fn check(database: &Database, session: &Session) -> Result<(Counts, Vec<String>)> {
    look(database, session).await.map_err(|error| match error {
        Error::Store(gone @ (client::Error::Gone(_) | client::Error::NoPage(_))) => {
            Error::Damaged(format!("what is named is not there: {gone}"))
        }
        other => other,
    })
}

async fn look(database: &Database, session: &Session) -> Result<(Counts, Vec<String>)> {
    let tx = session.begin_read().await?;
    let mut of = Check {
        database,
        tx,
        counts: Counts::default(),
        wrong: Vec::new(),
        users: BTreeMap::new(),
        ids: BTreeMap::new(),
        dates: BTreeMap::new(),
    };
    of.modules().await?;
    of.tx = session.begin_read().await?;
    let all = (Bound::Unbounded, Bound::Unbounded);
    let documents = of.tree(database.indexes.document_id).range(all.0, all.1).await?;
    let (mut titles, mut known) = (BTreeMap::new(), BTreeSet::new());
    for some in documents.chunks(AT_ONCE) {
        of.tx = session.begin_read().await?;
        for (key, at) in some {
            of.document((key, *at), (&mut titles, &mut known)).await?;
        }
    }
    let unknown = of.users.keys().filter(|part| !known.contains(*part)).count();
    of.holds(unknown == 0, || format!("{unknown} composite parts are used and not there"));
    let (ids, dates) = (std::mem::take(&mut of.ids), std::mem::take(&mut of.dates));
    for (index, expected, what) in [
        (database.indexes.title, titles, "titles"),
        (database.indexes.atomic_id, ids, "ids"),
        (database.indexes.atomic_date, dates, "dates"),
    ] {
        of.tx = session.begin_read().await?;
        let found = of.tree(index).range(all.0, all.1).await?;
        let found: Vec<_> = found.into_iter().map(|(key, at)| (key.to_vec(), at)).collect();
        let same = found == expected.into_iter().collect::<Vec<_>>();
        of.holds(same, || format!("the index of {what} holds something else than there is"));
    }
    Ok((of.counts, of.wrong))
}

/// What an index must hold.
type Entries = BTreeMap<Vec<u8>, Reference>;

struct Check<'a> {
    database: &'a Database,
    tx: Transaction,
    counts: Counts,
    wrong: Vec<String>,
    users: BTreeMap<Reference, Users>,
    ids: Entries,
    dates: Entries,
}

/// Who uses a composite part, as its own and as a shared one.
#[derive(Default)]
struct Users {
    private: Vec<Reference>,
    shared: Vec<Reference>,
}

impl Check<'_> {
    fn holds(&mut self, holds: bool, says: impl FnOnce() -> String) {
        if !holds && self.wrong.len() < WRONG_MAX {
            self.wrong.push(says());
        }
    }

    fn tree(&self, root: Reference) -> Tree<'_> {
        self.database.tree(&self.tx, root)
    }

    async fn get(&mut self, at: Reference) -> Result<Thing> {
        let thing = self.database.access(&self.tx).get(at).await?;
        self.counts.object_bytes += thing.encode().len() as u64;
        Ok(thing)
    }

    async fn modules(&mut self) -> Result<()> {
        let index = self.tree(self.database.indexes.module);
        let listed = index.range(Bound::Unbounded, Bound::Unbounded).await?;
        let listed: Vec<Reference> = listed.into_iter().map(|(_, at)| at).collect();
        let database = self.database;
        self.holds(listed == database.modules, || "the index of modules lists others".into());
        for at in &database.modules {
            let module = match self.get(*at).await? {
                Thing::Module(module) => module,
                other => return Err(unexpected(*at, "a module", &other)),
            };
            self.counts.modules += 1;
            match self.get(module.manual).await? {
                Thing::Manual(_) => {}
                other => return Err(unexpected(module.manual, "a manual", &other)),
            }
            let mut todo = vec![(module.root, None)];
            while let Some((assembly, above)) = todo.pop() {
                let (of, parent) = match self.get(assembly).await? {
                    Thing::Complex(complex) => {
                        self.counts.complex_assemblies += 1;
                        todo.extend(complex.below.iter().map(|below| (*below, Some(assembly))));
                        (complex.module, complex.parent)
                    }
                    Thing::Base(base) => {
                        self.counts.base_assemblies += 1;
                        for part in &base.private {
                            self.users.entry(*part).or_default().private.push(assembly);
                        }
                        for part in &base.shared {
                            self.users.entry(*part).or_default().shared.push(assembly);
                        }
                        (base.module, base.parent)
                    }
                    other => return Err(unexpected(assembly, "an assembly", &other)),
                };
                self.holds(parent == above && of == *at, || {
                    format!("assembly {assembly:?} is below another than it says")
                });
            }
        }
        Ok(())
    }

    /// A document and the composite part that it is of.
    async fn document(
        &mut self,
        (key, at): (&[u8], Reference),
        (titles, known): (&mut Entries, &mut BTreeSet<Reference>),
    ) -> Result<()> {
        let document = match self.get(at).await? {
            Thing::Document(document) => document,
            other => return Err(unexpected(at, "a document", &other)),
        };
        self.counts.documents += 1;
        let id = document.id;
        self.holds(*key == number_key(id)[..] && document.title == title(id), || {
            format!("document {id} is another than its index says")
        });
        titles.insert(document.title.into_bytes(), at);
        known.insert(document.part);
        self.composite(document.part, at).await
    }

    async fn composite(&mut self, at: Reference, document: Reference) -> Result<()> {
        let part = match self.get(at).await? {
            Thing::Composite(part) => part,
            other => return Err(unexpected(at, "a composite part", &other)),
        };
        self.counts.composites += 1;
        let id = part.design.id;
        let sorted = |list: &[Reference]| {
            let mut list = list.to_vec();
            list.sort();
            list
        };
        let none = Users::default();
        let of = self.users.get(&at).unwrap_or(&none);
        let private = sorted(&part.used_private) == sorted(&of.private);
        let shared = sorted(&part.used_shared) == sorted(&of.shared);
        self.holds(private && shared && part.document == document, || {
            format!("composite part {id} is used by others than it says")
        });
        let (mut begin, mut end) = (BTreeMap::new(), BTreeMap::new());
        let mut connections = Vec::new();
        for atom_at in &part.parts {
            let atom = match self.get(*atom_at).await? {
                Thing::Atomic(atom) => atom,
                other => return Err(unexpected(*atom_at, "an atomic part", &other)),
            };
            self.counts.atoms += 1;
            let of = atom.design;
            self.ids.insert(number_key(of.id).to_vec(), *atom_at);
            self.dates.insert(date_key(of.build_date, of.id).to_vec(), *atom_at);
            let each = self.database.parameters.connections_per_atomic as usize;
            self.holds(atom.part_of == at && atom.document == id && atom.to.len() == each, || {
                format!("atomic part {} is of another composite part", of.id)
            });
            begin.extend(atom.to.iter().map(|connection| (*connection, *atom_at)));
            end.extend(atom.from.iter().map(|connection| (*connection, *atom_at)));
            connections.extend(atom.to);
        }
        for connection_at in connections {
            let connection = match self.get(connection_at).await? {
                Thing::Connection(connection) => connection,
                other => return Err(unexpected(connection_at, "a connection", &other)),
            };
            self.counts.connections += 1;
            let begins = begin.get(&connection_at) == Some(&connection.from);
            let ends = end.get(&connection_at) == Some(&connection.to);
            self.holds(begins && ends, || {
                format!("a connection of composite part {id} is not in the lists of its ends")
            });
        }
        let (begin, end) = (begin.len(), end.len());
        self.holds(begin == end, || {
            format!("of composite part {id} {begin} connections begin, {end} end")
        });
        Ok(())
    }
}
