//! Structural changes: composite parts that are made with all that belongs to them, and deleted.

use crate::cluster::Plan;
use crate::database::{Access, Database, root_of_volume, unexpected};
use crate::draft::{Draft, title};
use crate::index::{Tree, date_key, number_key};
use crate::operation::Tally;
use crate::schema::{BaseAssembly, Reference, Root, Thing};
use crate::{Error, Result};
use larder::client::Transaction;
use larder_core::id::{PageId, PageNo};
use larder_core::rng::Rng;
use std::collections::BTreeSet;
use std::ops::Bound;

/// How many are made or deleted at once.
const MANY: u32 = 10;

/// Makes some, each used by a base assembly of a module that is drawn.
pub(crate) async fn insert(
    database: &Database,
    tx: &Transaction,
    module: usize,
    rng: &mut Rng,
) -> Result<Tally> {
    let access = database.access(tx);
    let (mut root, parameters) = (root(access).await?, &database.parameters);
    let (mut tally, mut trees) = (Tally::default(), Trees::new(database, tx));
    for _ in 0..MANY {
        let (user, mut base) = draw_base(database, access, module, rng, &mut tally).await?;
        let ids = (root.next_composite, root.next_atomic);
        let more = (ids.0.checked_add(1), ids.1.checked_add(parameters.atomic_per_composite));
        let (Some(next_composite), Some(next_atomic)) = more else {
            return Err(Error::Invalid("all ids of parts were given away".into()));
        };
        (root.next_composite, root.next_atomic) = (next_composite, next_atomic);
        let mut draft = Draft::draw(rng, parameters, ids, (1, 0));
        let mut plan = Plan::new(database.page_bytes);
        draft.place(&mut plan);
        let cluster = plan.make(tx, database.volume).await?;
        draft.composite.used_private = vec![user];
        for (place, thing) in draft.resolve(&cluster) {
            cluster.put(tx, place, &thing).await?;
        }
        base.private.push(draft.reference(&cluster));
        access.put(user, &Thing::Base(base)).await?;
        for (atom, number) in draft.atoms.iter().zip(0..) {
            let (at, of) = (draft.atom_reference(&cluster, number), atom.design);
            trees.atomic_id.insert(number_key(of.id), at).await?;
            trees.atomic_date.insert(date_key(of.build_date, of.id), at).await?;
            tally.atoms += 1;
        }
        let at = draft.document_reference(&cluster);
        trees.title.insert(title(ids.0).into(), at).await?;
        trees.document_id.insert(number_key(ids.0), at).await?;
        (tally.documents, tally.changed) = (tally.documents + 1, tally.changed + 1);
    }
    trees.flush().await?;
    put_root(access, root).await?;
    Ok(tally)
}

/// Deletes those made last, which were not made with the database: nothing, if there is none.
pub(crate) async fn delete(database: &Database, tx: &Transaction) -> Result<Tally> {
    let access = database.access(tx);
    let built: u32 = database.parameters.modules().iter().map(|module| module.composites).sum();
    let from = number_key(built);
    let mut trees = Trees::new(database, tx);
    let made = trees.document_id.range(Bound::Included(&from), Bound::Unbounded).await?;
    let mut tally = Tally::default();
    for (key, at) in made.iter().rev().take(MANY as usize) {
        let document = access.document(*at).await?;
        let composite = access.composite(document.part).await?;
        for user in &composite.used_private {
            let mut base = access.base(*user).await?;
            base.private.retain(|part| *part != document.part);
            access.put(*user, &Thing::Base(base)).await?;
            tally.assemblies += 1;
        }
        // Nothing else lies in its pages: they go, and with them what is in them.
        let mut pages = BTreeSet::from([document.part.page, at.page]);
        for part in &composite.parts {
            let atom = access.atomic(*part).await?;
            pages.insert(part.page);
            pages.extend(atom.to.iter().map(|connection| connection.page));
            tally.connections += atom.to.len() as u64;
            let of = atom.design;
            trees.atomic_id.remove(&number_key(of.id)).await?;
            trees.atomic_date.remove(&date_key(of.build_date, of.id)).await?;
            tally.atoms += 1;
        }
        trees.title.remove(document.title.as_bytes()).await?;
        trees.document_id.remove(key).await?;
        // These may have pages beside, for what is long.
        tx.delete(at.of(database.volume)).await?;
        tx.delete(document.part.of(database.volume)).await?;
        for page in pages {
            tx.delete_page(PageId { volume: database.volume, page: PageNo(page) }).await?;
        }
        (tally.documents, tally.changed) = (tally.documents + 1, tally.changed + 1);
    }
    trees.flush().await?;
    Ok(tally)
}

/// The indexes that a composite part is in.
struct Trees<'a> {
    atomic_id: Tree<'a>,
    atomic_date: Tree<'a>,
    title: Tree<'a>,
    document_id: Tree<'a>,
}

impl<'a> Trees<'a> {
    fn new(database: &Database, tx: &'a Transaction) -> Self {
        let indexes = database.indexes;
        Self {
            atomic_id: database.tree(tx, indexes.atomic_id),
            atomic_date: database.tree(tx, indexes.atomic_date),
            title: database.tree(tx, indexes.title),
            document_id: database.tree(tx, indexes.document_id),
        }
    }

    async fn flush(&mut self) -> Result<()> {
        for tree in
            [&mut self.atomic_id, &mut self.atomic_date, &mut self.title, &mut self.document_id]
        {
            tree.flush().await?;
        }
        Ok(())
    }
}

/// A base assembly of a module, at the end of a path that is drawn.
async fn draw_base(
    database: &Database,
    access: Access<'_>,
    module: usize,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(Reference, BaseAssembly)> {
    let mut at = access.module(database.module(module)?).await?.root;
    loop {
        tally.assemblies += 1;
        match access.get(at).await? {
            Thing::Complex(assembly) if !assembly.below.is_empty() => {
                at = assembly.below[rng.below(assembly.below.len() as u64) as usize];
            }
            Thing::Base(base) => return Ok((at, base)),
            other => return Err(unexpected(at, "an assembly", &other)),
        }
    }
}

async fn root(access: Access<'_>) -> Result<Root> {
    let at = root_of_volume();
    match access.get(at).await? {
        Thing::Root(root) => Ok(*root),
        other => Err(unexpected(at, "a database", &other)),
    }
}

async fn put_root(access: Access<'_>, root: Root) -> Result<()> {
    access.put(root_of_volume(), &Thing::Root(Box::new(root))).await
}
