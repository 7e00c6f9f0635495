//! Makes a database: composite parts with their graphs, in clusters; assemblies; indexes. What is
//! random comes from the seed alone: two databases of the same parameters have the same content.

use crate::cluster::Plan;
use crate::database::{Database, root_of_volume};
use crate::draft::{Draft, date, kind, text, title};
use crate::index::{self, date_key, number_key};
use crate::parameters::{ModulePlan, Parameters};
use crate::schema::{
    BaseAssembly, ComplexAssembly, CompositePart, Design, Indexes, Manual, Module, Reference, Root,
    Thing,
};
use crate::{Error, Result};
use bytes::Bytes;
use larder::client::{Session, Transaction, Volume};
use larder_core::id::Slot;
use larder_core::rng::Rng;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of pages that one commit makes, about.
const COMMIT_BYTES: u64 = 1 << 20;
/// Updates in one commit.
const COMMIT_UPDATES: usize = 256;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Composite parts that were made.
    pub composites: u32,
    /// Of so many.
    pub of: u32,
}

/// What one base assembly uses, by the ids of composite parts.
struct Uses {
    private: Vec<u32>,
    shared: Vec<u32>,
}

/// A composite part that was made.
struct Made {
    at: Reference,
    part: CompositePart,
}

/// Fills an empty volume with a database. Half of one that an error left is known as such, and the
/// volume is to be deleted.
///
/// # Errors
/// [`Error::Invalid`] when parameters are out of their ranges, or the volume is not empty, and what
/// the store says.
pub async fn build(
    volume: &Volume,
    session: &Session,
    parameters: &Parameters,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Database> {
    parameters.check()?;
    begin(volume, session, parameters).await?;
    let mut rng = Rng::new(parameters.seed);
    let modules = parameters.modules();
    let composites: u32 = modules.iter().map(|module| module.composites).sum();
    let uses = draw_uses(&mut rng, parameters, &modules);
    let mut used = vec![(0, 0); composites as usize];
    for uses in uses.iter().flatten() {
        uses.private.iter().for_each(|id| used[*id as usize].0 += 1);
        uses.shared.iter().for_each(|id| used[*id as usize].1 += 1);
    }

    let builder = Builder { volume, session, parameters: *parameters };
    let mut entries = Entries::default();
    let mut made = Vec::new();
    while made.len() < composites as usize {
        let first = made.len() as u32;
        let drafts = builder.draw(&mut rng, first..composites, &used);
        made.extend(builder.composites(drafts, &mut entries).await?);
        progress(Progress { composites: made.len() as u32, of: composites });
    }
    let mut roots = Vec::new();
    for (module, uses) in modules.iter().zip(&uses) {
        roots.push(builder.module(&mut rng, module, uses, &mut made, &mut entries).await?);
    }
    builder.name_users(&made).await?;
    let indexes = builder.indexes(entries).await?;
    let root = Root {
        parameters: *parameters,
        complete: true,
        modules: roots,
        indexes,
        next_composite: composites,
        next_atomic: composites * parameters.atomic_per_composite,
    };
    let (id, bytes) = (root_of_volume().of(volume.id()), Thing::Root(Box::new(root)).encode());
    session
        .transact(|tx| {
            let bytes = bytes.clone();
            async move {
                tx.update(id, bytes).await?;
                Ok::<_, Error>(())
            }
        })
        .await?;
    let tx = session.begin_read().await?;
    Database::open(volume, &tx).await
}

/// Says that there will be one.
async fn begin(volume: &Volume, session: &Session, parameters: &Parameters) -> Result<()> {
    let root = Root {
        parameters: *parameters,
        complete: false,
        modules: Vec::new(),
        indexes: Indexes::default(),
        next_composite: 0,
        next_atomic: 0,
    };
    let bytes = Thing::Root(Box::new(root)).encode();
    let (page, name) = (volume.root(), volume.info().name.clone());
    session
        .transact(|tx| {
            let (bytes, name) = (bytes.clone(), name.clone());
            async move {
                if let Some(found) = tx.find(root_of_volume().of(page.volume)).await?
                    && let Ok(Thing::Root(root)) = Thing::decode(&found)
                {
                    let whole = if root.complete { "a whole one" } else { "half of one" };
                    return Err(Error::Invalid(format!(
                        "volume {name} has an OO7 database, {whole}: delete the volume first"
                    )));
                }
                if tx.slots(page).await?.is_none_or(|slots| !slots.is_empty()) {
                    return Err(Error::Invalid(format!("volume {name} is not empty")));
                }
                tx.create_at(page, Slot(0), bytes).await?;
                Ok(())
            }
        })
        .await
}

/// What each base assembly of each module uses.
fn draw_uses(rng: &mut Rng, parameters: &Parameters, modules: &[ModulePlan]) -> Vec<Vec<Uses>> {
    let all: u32 = modules.iter().map(|module| module.composites).sum();
    let shared = match modules.last() {
        Some(last) if parameters.shares() => last.first_composite..all,
        _ => 0..all,
    };
    let mut some = |of: std::ops::Range<u32>| -> Vec<u32> {
        let length = u64::from(of.end - of.start);
        let one = |_| of.start + rng.below(length) as u32;
        (0..parameters.composites_per_base).map(one).collect()
    };
    let of_module = |module: &ModulePlan| {
        let own = module.first_composite..module.first_composite + module.composites;
        let uses = |_| Uses { private: some(own.clone()), shared: some(shared.clone()) };
        (0..parameters.base_assemblies(module.levels)).map(uses).collect()
    };
    modules.iter().map(of_module).collect()
}

/// What indexes will hold.
#[derive(Clone, Default)]
struct Entries {
    atomic_id: Vec<(Bytes, Reference)>,
    atomic_date: Vec<(Bytes, Reference)>,
    title: Vec<(Bytes, Reference)>,
    document_id: Vec<(Bytes, Reference)>,
    module: Vec<(Bytes, Reference)>,
}

struct Builder<'a> {
    volume: &'a Volume,
    session: &'a Session,
    parameters: Parameters,
}

/// An assembly that has a place, and is written when all have one.
enum Assembly {
    Complex(ComplexAssembly),
    Base(BaseAssembly),
}

impl Builder<'_> {
    /// As many composite parts as one commit makes.
    fn draw(
        &self,
        rng: &mut Rng,
        ids: std::ops::Range<u32>,
        used: &[(usize, usize)],
    ) -> (Plan, Vec<Draft>) {
        let mut plan = Plan::new(self.volume.page_bytes());
        let (mut drafts, mut documents) = (Vec::new(), 0);
        for id in ids {
            if plan.bytes() + documents >= COMMIT_BYTES {
                break;
            }
            let first_atomic = id * self.parameters.atomic_per_composite;
            let mut draft =
                Draft::draw(rng, &self.parameters, (id, first_atomic), used[id as usize]);
            draft.place(&mut plan);
            drafts.push(draft);
            // One that is no longer than a page lies with the rest.
            if self.parameters.document_bytes >= self.volume.page_bytes() {
                documents += u64::from(self.parameters.document_bytes);
            }
        }
        (plan, drafts)
    }

    /// Makes them, in one commit.
    async fn composites(
        &self,
        (plan, drafts): (Plan, Vec<Draft>),
        entries: &mut Entries,
    ) -> Result<Vec<Made>> {
        let volume = self.volume.id();
        let shared = Arc::new(Mutex::new(drafts));
        let (plan, drafts) = (Arc::new(plan), Arc::clone(&shared));
        let cluster = self
            .session
            .transact(|tx| {
                let (plan, drafts) = (Arc::clone(&plan), Arc::clone(&drafts));
                async move {
                    let cluster = plan.make(&tx, volume).await?;
                    let things: Vec<_> = {
                        let mut drafts = drafts.lock().unwrap_or_else(PoisonError::into_inner);
                        drafts.iter_mut().flat_map(|draft| draft.resolve(&cluster)).collect()
                    };
                    for (place, thing) in things {
                        cluster.put(&tx, place, &thing).await?;
                    }
                    Ok::<_, Error>(cluster)
                }
            })
            .await?;
        let mut drafts = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let made = drafts.drain(..).map(|draft| {
            for (atom, number) in draft.atoms.iter().zip(0..) {
                let (at, of) = (draft.atom_reference(&cluster, number), atom.design);
                entries.atomic_id.push((number_key(of.id), at));
                entries.atomic_date.push((date_key(of.build_date, of.id), at));
            }
            let (at, id) = (draft.document_reference(&cluster), draft.document.id);
            entries.title.push((title(id).into(), at));
            entries.document_id.push((number_key(id), at));
            Made { at: draft.reference(&cluster), part: draft.composite }
        });
        Ok(made.collect())
    }

    /// Makes a module with its manual and its assemblies; composite parts learn who uses them.
    async fn module(
        &self,
        rng: &mut Rng,
        module: &ModulePlan,
        uses: &[Uses],
        made: &mut [Made],
        entries: &mut Entries,
    ) -> Result<Reference> {
        let number = module.number;
        let sentence = format!("How module {number} is put together, and how it is used. ");
        let manual = Manual {
            title: format!("Module {number:08}"),
            text: text(&sentence, self.parameters.manual_bytes),
        };
        let design = Design { id: number, kind: kind(rng), build_date: date(rng) };
        let draft = ModuleDraft::draw(rng, self, module, (design, manual), uses);
        let (draft, volume) = (Arc::new(draft), self.volume.id());
        let parts: Arc<Vec<Reference>> = Arc::new(made.iter().map(|made| made.at).collect());
        let (at, bases) = self
            .session
            .transact(|tx| {
                let (draft, parts) = (Arc::clone(&draft), Arc::clone(&parts));
                async move { draft.write(&tx, volume, &parts).await }
            })
            .await?;
        entries.module.push((number_key(number), at));
        for (base, uses) in bases.into_iter().zip(uses) {
            for composite in &uses.private {
                learn(&mut made[*composite as usize].part.used_private, base);
            }
            for composite in &uses.shared {
                learn(&mut made[*composite as usize].part.used_shared, base);
            }
        }
        Ok(at)
    }

    /// Writes composite parts again, with those that use them: they are no longer for it.
    async fn name_users(&self, made: &[Made]) -> Result<()> {
        let volume = self.volume.id();
        for some in made.chunks(COMMIT_UPDATES) {
            let writes = some
                .iter()
                .map(|made| (made.at.of(volume), Thing::Composite(made.part.clone()).encode()));
            let writes: Arc<Vec<_>> = Arc::new(writes.collect());
            self.session
                .transact(|tx| {
                    let writes = Arc::clone(&writes);
                    async move {
                        for (id, bytes) in writes.iter() {
                            tx.update(*id, bytes.clone()).await?;
                        }
                        Ok::<_, Error>(())
                    }
                })
                .await?;
        }
        Ok(())
    }

    async fn indexes(&self, entries: Entries) -> Result<Indexes> {
        let Entries { atomic_id, atomic_date, title, document_id, module } = entries;
        Ok(Indexes {
            atomic_id: self.index(atomic_id).await?,
            atomic_date: self.index(atomic_date).await?,
            title: self.index(title).await?,
            document_id: self.index(document_id).await?,
            module: self.index(module).await?,
        })
    }

    async fn index(&self, mut entries: Vec<(Bytes, Reference)>) -> Result<Reference> {
        entries.sort();
        index::load(self.session, (self.volume.id(), self.volume.page_bytes()), entries).await
    }
}

/// The first place in a list that is free still.
fn learn(users: &mut [Reference], base: Reference) {
    let free = users.iter_mut().find(|user| **user == Reference::default());
    *free.expect("as many were counted as there are") = base;
}

/// A module that is to be made.
struct ModuleDraft {
    module: Module,
    manual: Manual,
    /// Each before those below it: their place, whose is the one above, and what it is.
    assemblies: Vec<(crate::cluster::Place, Option<usize>, Assembly)>,
    /// Ids of composite parts that each base assembly uses.
    uses: Vec<(Vec<u32>, Vec<u32>)>,
    places: (crate::cluster::Place, crate::cluster::Place),
    plan: Plan,
}

impl ModuleDraft {
    fn draw(
        rng: &mut Rng,
        builder: &Builder<'_>,
        module: &ModulePlan,
        (design, manual): (Design, Manual),
        uses: &[Uses],
    ) -> Self {
        let p = builder.parameters;
        let module_object = Module { design, ..Module::default() };
        let mut plan = Plan::new(builder.volume.page_bytes());
        let bytes = |thing: Thing| thing.encode().len();
        let places = (
            plan.place(bytes(Thing::Module(module_object.clone()))),
            plan.place(bytes(Thing::Manual(manual.clone()))),
        );
        let first_id = module.first_assembly;
        let list = |count: u32| vec![Reference::default(); count as usize];
        let mut assemblies = Vec::new();
        // Depth first: what is on one path lies together.
        let mut todo = vec![(1, None)];
        while let Some((level, parent)) = todo.pop() {
            let number = assemblies.len();
            let id = first_id + number as u32;
            let design = Design { id, kind: kind(rng), build_date: date(rng) };
            let above = parent.map(|_| Reference::default());
            let (assembly, length) = if level == module.levels {
                let (private, shared) = (list(p.composites_per_base), list(p.composites_per_base));
                let module = Reference::default();
                let base = BaseAssembly { design, module, parent: above, private, shared };
                (Assembly::Base(base.clone()), bytes(Thing::Base(base)))
            } else {
                todo.extend((0..p.assemblies_per_assembly).map(|_| (level + 1, Some(number))));
                let (module, below) = (Reference::default(), list(p.assemblies_per_assembly));
                let complex = ComplexAssembly { design, module, parent: above, below };
                (Assembly::Complex(complex.clone()), bytes(Thing::Complex(complex)))
            };
            assemblies.push((plan.place(length), parent, assembly));
        }
        let uses = uses.iter().map(|uses| (uses.private.clone(), uses.shared.clone())).collect();
        Self { module: module_object, manual, assemblies, uses, places, plan }
    }

    /// Writes all of it; gives the module, and base assemblies in their order.
    async fn write(
        &self,
        tx: &Transaction,
        volume: larder_core::id::VolumeId,
        parts: &[Reference],
    ) -> Result<(Reference, Vec<Reference>)> {
        let cluster = self.plan.make(tx, volume).await?;
        let (module, manual) = (cluster.at(self.places.0), cluster.at(self.places.1));
        let mut below: Vec<Vec<Reference>> = vec![Vec::new(); self.assemblies.len()];
        for (place, parent, _) in &self.assemblies {
            if let Some(parent) = parent {
                below[*parent].push(cluster.at(*place));
            }
        }
        let root = cluster.at(self.assemblies[0].0);
        let of_module = Thing::Module(Module { manual, root, ..self.module.clone() });
        cluster.put(tx, self.places.0, &of_module).await?;
        cluster.put(tx, self.places.1, &Thing::Manual(self.manual.clone())).await?;
        let mut bases = Vec::new();
        for ((place, parent, assembly), below) in self.assemblies.iter().zip(below) {
            let parent = parent.map(|parent| cluster.at(self.assemblies[parent].0));
            let thing = match assembly {
                Assembly::Complex(assembly) => {
                    Thing::Complex(ComplexAssembly { module, parent, below, ..assembly.clone() })
                }
                Assembly::Base(assembly) => {
                    let (private, shared) = &self.uses[bases.len()];
                    bases.push(cluster.at(*place));
                    let of = |ids: &[u32]| ids.iter().map(|id| parts[*id as usize]).collect();
                    let (private, shared) = (of(private), of(shared));
                    let design = assembly.design;
                    Thing::Base(BaseAssembly { design, module, parent, private, shared })
                }
            };
            cluster.put(tx, *place, &thing).await?;
        }
        Ok((module, bases))
    }
}
