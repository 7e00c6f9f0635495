//! A database that is open, and its objects in a transaction.

use crate::index::Tree;
use crate::parameters::Parameters;
use crate::schema::{
    AtomicPart, BaseAssembly, CompositePart, Connection, Document, Indexes, Module, Node,
    Reference, Root, Thing,
};
use crate::{Error, Result};
use larder::client::{Transaction, Volume};
use larder_core::id::{PageId, PageNo, VolumeId};
use std::collections::BTreeSet;

/// Pages that are fetched together.
const FETCHED_TOGETHER: usize = 1024;

/// A database in a volume. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Database {
    pub(crate) volume: VolumeId,
    pub(crate) page_bytes: u32,
    pub(crate) parameters: Parameters,
    pub(crate) modules: Vec<Reference>,
    pub(crate) indexes: Indexes,
    /// See [`Self::together`].
    pub(crate) together: bool,
}

/// Where a database says what it is: in the page that is made with the volume.
pub(crate) fn root_of_volume() -> Reference {
    Reference { page: 1, slot: 0, generation: 1 }
}

impl Database {
    /// Opens the database of a volume, which must be complete.
    ///
    /// # Errors
    /// [`Error::NoDatabase`] when there is none, or half of one.
    pub async fn open(volume: &Volume, tx: &Transaction) -> Result<Self> {
        let name = &volume.info().name;
        let root = root_of_volume().of(volume.id());
        let Some(bytes) = tx.find(root).await? else {
            return Err(Error::NoDatabase(format!("volume {name} holds no OO7 database")));
        };
        let Ok(Thing::Root(root)) = Thing::decode(&bytes) else {
            return Err(Error::NoDatabase(format!("volume {name} holds something else than OO7")));
        };
        if !root.complete {
            return Err(Error::NoDatabase(format!(
                "the OO7 database of volume {name} is half made: delete the volume, and make it again"
            )));
        }
        let Root { parameters, modules, indexes, .. } = *root;
        let page_bytes = volume.page_bytes();
        let volume = volume.id();
        Ok(Self { volume, page_bytes, parameters, modules, indexes, together: false })
    }

    /// The same, of which walks have the pages of a composite part's atomic parts come together, when they
    /// come to it, where without that they wait for one page after another.
    #[must_use]
    pub fn together(self) -> Self {
        Self { together: true, ..self }
    }

    /// What it is made of.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// How many modules it has: those of users, then the one that they share.
    #[must_use]
    pub fn modules(&self) -> usize {
        self.modules.len()
    }

    /// Numbers of the pages that walks of a module come to, documents and manuals left out: what somebody who
    /// will work on it asks for ahead ([`Volume::prefetch`]). It reads assemblies and composite parts,
    /// those of one level together.
    ///
    /// # Errors
    /// What the store says, and [`Error::Invalid`] for a module that is not there.
    pub async fn pages_of_module(&self, tx: &Transaction, number: usize) -> Result<Vec<PageNo>> {
        let access = self.access(tx);
        let mut level = vec![access.module(self.module(number)?).await?.root];
        let (mut pages, mut composites) = (BTreeSet::new(), BTreeSet::new());
        while !level.is_empty() {
            access.fetch(&level).await?;
            let mut below = Vec::new();
            for at in level {
                pages.insert(at.page);
                match access.get(at).await? {
                    Thing::Complex(assembly) => below.extend(assembly.below),
                    Thing::Base(base) => composites.extend(base.private),
                    other => return Err(unexpected(at, "an assembly", &other)),
                }
            }
            level = below;
        }
        let composites: Vec<Reference> = composites.into_iter().collect();
        access.fetch(&composites).await?;
        for at in composites {
            // Its document lies behind all else that was made with it.
            pages.extend(at.page..=access.composite(at).await?.document.page);
        }
        Ok(pages.into_iter().map(PageNo).collect())
    }

    pub(crate) fn access<'a>(&self, tx: &'a Transaction) -> Access<'a> {
        Access { tx, volume: self.volume }
    }

    /// A module's name.
    pub(crate) fn module(&self, number: usize) -> Result<Reference> {
        let modules = self.modules.len();
        let module = self.modules.get(number).copied();
        module.ok_or_else(|| Error::Invalid(format!("module {number}: there are {modules}")))
    }

    pub(crate) fn tree<'a>(&self, tx: &'a Transaction, root: Reference) -> Tree<'a> {
        Tree::new(self.access(tx), root)
    }
}

/// Objects of a volume in a transaction.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) tx: &'a Transaction,
    pub(crate) volume: VolumeId,
}

/// Reads an object that must be of a kind.
macro_rules! of_kind {
    ($name:ident, $variant:ident, $kind:ty, $what:literal) => {
        pub(crate) async fn $name(&self, at: Reference) -> Result<$kind> {
            match self.get(at).await? {
                Thing::$variant(thing) => Ok(thing),
                other => Err(unexpected(at, $what, &other)),
            }
        }
    };
}

impl Access<'_> {
    pub(crate) async fn get(&self, at: Reference) -> Result<Thing> {
        Thing::decode(&self.tx.get(at.of(self.volume)).await?)
    }

    /// Has the pages of some objects come together.
    pub(crate) async fn fetch(&self, objects: &[Reference]) -> Result<()> {
        let pages: BTreeSet<PageId> = objects.iter().map(|at| at.of(self.volume).page).collect();
        let pages: Vec<PageId> = pages.into_iter().collect();
        for some in pages.chunks(FETCHED_TOGETHER) {
            self.tx.fetch(some).await?;
        }
        Ok(())
    }

    pub(crate) async fn put(&self, at: Reference, thing: &Thing) -> Result<()> {
        Ok(self.tx.update(at.of(self.volume), thing.encode()).await?)
    }

    of_kind!(atomic, Atomic, AtomicPart, "an atomic part");
    of_kind!(connection, Connection, Connection, "a connection");
    of_kind!(composite, Composite, CompositePart, "a composite part");
    of_kind!(document, Document, Document, "a document");
    of_kind!(base, Base, BaseAssembly, "a base assembly");
    of_kind!(module, Module, Module, "a module");
    of_kind!(node, Index, Node, "a node of an index");
}

/// An object is of another kind than what names it says.
pub(crate) fn unexpected(at: Reference, wanted: &str, found: &Thing) -> Error {
    let Reference { page, slot, .. } = at;
    Error::Damaged(format!("page {page} slot {slot} is {} and not {wanted}", found.name()))
}
