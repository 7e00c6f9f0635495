//! A composite part that is to be made, with its graph and its document: what is random in it, and
//! where it will lie.

use crate::cluster::{Cluster, Place, Plan};
use crate::parameters::{Layout, Parameters};
use crate::schema::{AtomicPart, CompositePart, Connection, Design, Document, Reference, Thing};
use larder_core::rng::Rng;

/// Coordinates are below this.
const COORDINATES: u64 = 100_000;
/// Kinds of design objects.
const KINDS: u64 = 10;

/// Dates of atomic parts, assemblies and modules.
pub(crate) fn date(rng: &mut Rng) -> u32 {
    1_000 + rng.below(1_000) as u32
}

pub(crate) fn kind(rng: &mut Rng) -> u8 {
    rng.below(KINDS) as u8
}

/// A composite part's title of its document.
pub(crate) fn title(composite: u32) -> String {
    format!("Composite Part {composite:08}")
}

/// A sentence again and again, to so many bytes.
pub(crate) fn text(sentence: &str, bytes: u32) -> String {
    sentence.bytes().cycle().take(bytes as usize).map(char::from).collect()
}

/// One to be made.
pub(crate) struct Draft {
    pub(crate) composite: CompositePart,
    pub(crate) document: Document,
    pub(crate) atoms: Vec<AtomicPart>,
    /// Those that begin at each atom: to which atom, and what they are.
    connections: Vec<Vec<(usize, Connection)>>,
    layout: Layout,
    places: Places,
}

#[derive(Default)]
struct Places {
    composite: Option<Place>,
    document: Option<Place>,
    atoms: Vec<Place>,
    connections: Vec<Vec<Place>>,
}

impl Draft {
    /// Draws one with these ids, that so many base assemblies will use, as their own and as a shared one.
    pub(crate) fn draw(
        rng: &mut Rng,
        parameters: &Parameters,
        (id, first_atomic): (u32, u32),
        (private, shared): (usize, usize),
    ) -> Self {
        let young = id.is_multiple_of(10);
        let build_date = if young { 2_000 } else { 0 } + rng.below(1_000) as u32;
        let atomic = parameters.atomic_per_composite as usize;
        let composite = CompositePart {
            design: Design { id, kind: kind(rng), build_date },
            parts: vec![Reference::default(); atomic],
            used_private: vec![Reference::default(); private],
            used_shared: vec![Reference::default(); shared],
            ..CompositePart::default()
        };
        let sentence = format!("What composite part {id} is, and what it is good for. ");
        let document = Document {
            id,
            title: title(id),
            text: text(&sentence, parameters.document_bytes),
            ..Document::default()
        };
        let mut atoms: Vec<AtomicPart> = (first_atomic..)
            .take(atomic)
            .map(|id| AtomicPart {
                design: Design { id, kind: kind(rng), build_date: date(rng) },
                x: rng.below(COORDINATES) as u32,
                y: rng.below(COORDINATES) as u32,
                document: document.id,
                ..AtomicPart::default()
            })
            .collect();
        let each = parameters.connections_per_atomic as usize;
        let connections: Vec<Vec<(usize, Connection)>> = (0..atomic)
            .map(|from| {
                // The first goes to the next, so that each is reached from the first.
                let next = std::iter::once((from + 1) % atomic);
                let others = (1..each).map(|_| rng.below(atomic as u64) as usize);
                let targets: Vec<usize> = next.chain(others).collect();
                let connect = |to: usize| {
                    let length = 1 + rng.below(1_000) as u32;
                    (to, Connection { kind: kind(rng), length, ..Connection::default() })
                };
                targets.into_iter().map(connect).collect()
            })
            .collect();
        for (from, of_atom) in connections.iter().enumerate() {
            for (to, _) in of_atom {
                atoms[from].to.push(Reference::default());
                atoms[*to].from.push(Reference::default());
            }
        }
        let layout = parameters.layout;
        Self { composite, document, atoms, connections, layout, places: Places::default() }
    }

    /// Gives all of it places: the composite part, atoms and connections as its layout has them, and the
    /// document.
    pub(crate) fn place(&mut self, plan: &mut Plan) {
        let bytes = |thing: Thing| thing.encode().len();
        self.places.composite = Some(plan.place(bytes(Thing::Composite(self.composite.clone()))));
        for number in 0..self.atoms.len() {
            let atom = Thing::Atomic(self.atoms[number].clone());
            self.places.atoms.push(plan.place(bytes(atom)));
            if self.layout == Layout::ByVisit {
                self.place_connections(number, plan);
            }
        }
        if self.layout == Layout::ByCreation {
            (0..self.atoms.len()).for_each(|number| self.place_connections(number, plan));
        }
        self.places.document = Some(plan.place(bytes(Thing::Document(self.document.clone()))));
    }

    /// Those that begin at an atom.
    fn place_connections(&mut self, atom: usize, plan: &mut Plan) {
        let places = self.connections[atom].iter();
        let places =
            places.map(|(_, one)| plan.place(Thing::Connection(one.clone()).encode().len()));
        self.places.connections.push(places.collect());
    }

    /// Where the composite part comes to lie.
    pub(crate) fn reference(&self, cluster: &Cluster) -> Reference {
        cluster.at(self.places.composite.expect("it was given a place"))
    }

    /// Where the document comes to lie.
    pub(crate) fn document_reference(&self, cluster: &Cluster) -> Reference {
        cluster.at(self.places.document.expect("it was given a place"))
    }

    /// Where an atom comes to lie.
    pub(crate) fn atom_reference(&self, cluster: &Cluster, atom: usize) -> Reference {
        cluster.at(self.places.atoms[atom])
    }

    /// Has them name one another, as they lie in a cluster; gives all of them with their places.
    pub(crate) fn resolve(&mut self, cluster: &Cluster) -> Vec<(Place, Thing)> {
        let composite = self.reference(cluster);
        let document = self.document_reference(cluster);
        self.composite.document = document;
        self.document.part = composite;
        for atom in &mut self.atoms {
            atom.part_of = composite;
            atom.to.clear();
            atom.from.clear();
        }
        let mut things = Vec::new();
        for from in 0..self.atoms.len() {
            self.composite.parts[from] = self.atom_reference(cluster, from);
            let places = &self.places.connections[from];
            for ((to, connection), place) in self.connections[from].iter_mut().zip(places) {
                connection.from = cluster.at(self.places.atoms[from]);
                connection.to = cluster.at(self.places.atoms[*to]);
                self.atoms[from].to.push(cluster.at(*place));
                self.atoms[*to].from.push(cluster.at(*place));
                things.push((*place, Thing::Connection(connection.clone())));
            }
        }
        let place = |place: Option<Place>| place.expect("it was given a place");
        things.push((place(self.places.composite), Thing::Composite(self.composite.clone())));
        things.push((place(self.places.document), Thing::Document(self.document.clone())));
        let atoms = self.places.atoms.iter().zip(&self.atoms);
        things.extend(atoms.map(|(place, atom)| (*place, Thing::Atomic(atom.clone()))));
        things.sort_by_key(|(place, _)| *place);
        things
    }
}
