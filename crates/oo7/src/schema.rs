//! The objects of a database, and how they are laid out: a byte that tells the kind, then the fields
//! in their order, numbers little-endian, lists after their length.

use crate::parameters::{Layout, Parameters};
use crate::{Error, Result};
use bytes::Bytes;
use larder_core::id::{Generation, ObjectId, PageId, PageNo, Slot, VolumeId};

/// An object of the same volume: 14 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Reference {
    /// The page's number.
    pub page: u64,
    /// Its slot there.
    pub slot: u16,
    /// Which of the slot's objects.
    pub generation: u32,
}

/// Bytes of a reference.
pub(crate) const REFERENCE_BYTES: usize = 14;

impl Reference {
    /// Its full name.
    #[must_use]
    pub fn of(self, volume: VolumeId) -> ObjectId {
        ObjectId {
            page: PageId { volume, page: PageNo(self.page) },
            slot: Slot(self.slot),
            generation: Generation(self.generation),
        }
    }
}

impl From<ObjectId> for Reference {
    fn from(id: ObjectId) -> Self {
        Self { page: id.page.page.0, slot: id.slot.0, generation: id.generation.0 }
    }
}

/// What every design object has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Design {
    pub(crate) id: u32,
    /// One of ten.
    pub(crate) kind: u8,
    pub(crate) build_date: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AtomicPart {
    pub(crate) design: Design,
    pub(crate) x: u32,
    pub(crate) y: u32,
    /// The id of its composite part's document.
    pub(crate) document: u32,
    pub(crate) part_of: Reference,
    /// Connections that begin here.
    pub(crate) to: Vec<Reference>,
    /// Connections that end here.
    pub(crate) from: Vec<Reference>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Connection {
    pub(crate) kind: u8,
    pub(crate) length: u32,
    pub(crate) from: Reference,
    pub(crate) to: Reference,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CompositePart {
    pub(crate) design: Design,
    pub(crate) document: Reference,
    /// The first is the root of the graph.
    pub(crate) parts: Vec<Reference>,
    /// Base assemblies that use it as one of their own module.
    pub(crate) used_private: Vec<Reference>,
    /// Base assemblies that use it as a shared one.
    pub(crate) used_shared: Vec<Reference>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Document {
    pub(crate) id: u32,
    pub(crate) part: Reference,
    pub(crate) title: String,
    pub(crate) text: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ComplexAssembly {
    pub(crate) design: Design,
    pub(crate) module: Reference,
    /// None: the module's root.
    pub(crate) parent: Option<Reference>,
    pub(crate) below: Vec<Reference>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct BaseAssembly {
    pub(crate) design: Design,
    pub(crate) module: Reference,
    /// None: the module's root, of a module with one level.
    pub(crate) parent: Option<Reference>,
    /// Composite parts of its own module.
    pub(crate) private: Vec<Reference>,
    /// Composite parts of the module that is shared; where there is none, of all.
    pub(crate) shared: Vec<Reference>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Module {
    pub(crate) design: Design,
    pub(crate) manual: Reference,
    pub(crate) root: Reference,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Manual {
    pub(crate) title: String,
    pub(crate) text: String,
}

/// Where indexes begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Indexes {
    /// By an atomic part's id.
    pub(crate) atomic_id: Reference,
    /// By an atomic part's date, and its id.
    pub(crate) atomic_date: Reference,
    /// By a document's title.
    pub(crate) title: Reference,
    /// By a document's id.
    pub(crate) document_id: Reference,
    /// By a module's number.
    pub(crate) module: Reference,
}

/// The object in page 1, slot 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Root {
    pub(crate) parameters: Parameters,
    /// All of it is there.
    pub(crate) complete: bool,
    pub(crate) modules: Vec<Reference>,
    pub(crate) indexes: Indexes,
    /// The next composite part's id, which is its document's too.
    pub(crate) next_composite: u32,
    /// The next atomic part's id.
    pub(crate) next_atomic: u32,
}

/// An object of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Thing {
    Atomic(AtomicPart),
    Connection(Connection),
    Composite(CompositePart),
    Document(Document),
    Complex(ComplexAssembly),
    Base(BaseAssembly),
    Module(Module),
    Manual(Manual),
    Root(Box<Root>),
    Index(Node),
}

/// A node of an index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Node {
    /// Its entries name objects, and not nodes.
    pub(crate) leaf: bool,
    /// Ascending: in a leaf the keys, above one the least key of what is below.
    pub(crate) entries: Vec<(Bytes, Reference)>,
}

const MAGIC: u32 = u32::from_le_bytes(*b"OO72");

impl Thing {
    /// What it is called in messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Atomic(_) => "an atomic part",
            Self::Connection(_) => "a connection",
            Self::Composite(_) => "a composite part",
            Self::Document(_) => "a document",
            Self::Complex(_) => "a complex assembly",
            Self::Base(_) => "a base assembly",
            Self::Module(_) => "a module",
            Self::Manual(_) => "a manual",
            Self::Root(_) => "a database",
            Self::Index(_) => "a node of an index",
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Out(Vec::with_capacity(128));
        match self {
            Self::Atomic(part) => {
                out.byte(1).design(part.design).number(part.x).number(part.y);
                out.number(part.document).reference(part.part_of);
                out.list(&part.to).list(&part.from);
            }
            Self::Connection(connection) => {
                out.byte(2).byte(connection.kind).number(connection.length);
                out.reference(connection.from).reference(connection.to);
            }
            Self::Composite(part) => {
                out.byte(3).design(part.design).reference(part.document);
                out.list(&part.parts).list(&part.used_private).list(&part.used_shared);
            }
            Self::Document(document) => {
                out.byte(4).number(document.id).reference(document.part);
                out.text(&document.title).text(&document.text);
            }
            Self::Complex(assembly) => {
                out.byte(5).design(assembly.design).reference(assembly.module);
                out.option(assembly.parent).list(&assembly.below);
            }
            Self::Base(assembly) => {
                out.byte(6).design(assembly.design).reference(assembly.module);
                out.option(assembly.parent).list(&assembly.private).list(&assembly.shared);
            }
            Self::Module(module) => {
                out.byte(7).design(module.design).reference(module.manual).reference(module.root);
            }
            Self::Manual(manual) => {
                out.byte(8).text(&manual.title).text(&manual.text);
            }
            Self::Root(root) => root.encode(out.byte(9)),
            Self::Index(node) => {
                out.byte(10).byte(u8::from(node.leaf)).count(node.entries.len());
                for (key, reference) in &node.entries {
                    out.bytes(key).reference(*reference);
                }
            }
        }
        out.0.into()
    }

    /// # Errors
    /// [`Error::Damaged`] for anything that was not encoded.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Self> {
        let mut of = In { bytes, at: 0 };
        let thing = of.thing().filter(|_| of.at == bytes.len());
        thing.ok_or_else(|| Error::Damaged("an object is not one of its kinds".into()))
    }
}

impl Root {
    fn encode(&self, out: &mut Out) {
        let p = self.parameters;
        out.number(MAGIC).byte(u8::from(self.complete));
        out.0.extend(p.seed.to_le_bytes());
        out.byte(match p.layout {
            Layout::ByVisit => 0,
            Layout::ByCreation => 1,
        });
        for number in [
            p.atomic_per_composite,
            p.connections_per_atomic,
            p.document_bytes,
            p.manual_bytes,
            p.composites_per_module,
            p.assemblies_per_assembly,
            p.levels,
            p.composites_per_base,
            p.users,
            p.shared_composites_per_user,
            p.shared_levels,
            self.next_composite,
            self.next_atomic,
        ] {
            out.number(number);
        }
        let i = self.indexes;
        for root in [i.atomic_id, i.atomic_date, i.title, i.document_id, i.module] {
            out.reference(root);
        }
        out.list(&self.modules);
    }
}

/// What is written.
struct Out(Vec<u8>);

impl Out {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn number(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn count(&mut self, count: usize) -> &mut Self {
        self.number(u32::try_from(count).expect("objects are far below 4 GiB"))
    }

    fn reference(&mut self, reference: Reference) -> &mut Self {
        self.0.extend(reference.page.to_le_bytes());
        self.0.extend(reference.slot.to_le_bytes());
        self.0.extend(reference.generation.to_le_bytes());
        self
    }

    fn option(&mut self, reference: Option<Reference>) -> &mut Self {
        match reference {
            Some(reference) => self.byte(1).reference(reference),
            None => self.byte(0),
        }
    }

    fn list(&mut self, references: &[Reference]) -> &mut Self {
        self.count(references.len());
        for reference in references {
            self.reference(*reference);
        }
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).0.extend(bytes);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn design(&mut self, design: Design) -> &mut Self {
        self.number(design.id).byte(design.kind).number(design.build_date)
    }
}

/// What is read; none: it ends too early.
struct In<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl In<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = self.bytes.get(self.at..self.at + N)?.try_into().ok()?;
        self.at += N;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn reference(&mut self) -> Option<Reference> {
        Some(Reference {
            page: u64::from_le_bytes(self.take()?),
            slot: u16::from_le_bytes(self.take()?),
            generation: u32::from_le_bytes(self.take()?),
        })
    }

    fn option(&mut self) -> Option<Option<Reference>> {
        if self.flag()? { self.reference().map(Some) } else { Some(None) }
    }

    /// A length of things that take so many bytes each.
    fn count(&mut self, each: usize) -> Option<usize> {
        let count = self.number()? as usize;
        (count <= (self.bytes.len() - self.at) / each).then_some(count)
    }

    fn list(&mut self) -> Option<Vec<Reference>> {
        let count = self.count(REFERENCE_BYTES)?;
        (0..count).map(|_| self.reference()).collect()
    }

    fn slice(&mut self) -> Option<Bytes> {
        let count = self.count(1)?;
        self.at += count;
        Some(self.bytes.slice(self.at - count..self.at))
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.slice()?.to_vec()).ok()
    }

    fn design(&mut self) -> Option<Design> {
        Some(Design { id: self.number()?, kind: self.byte()?, build_date: self.number()? })
    }

    fn thing(&mut self) -> Option<Thing> {
        Some(match self.byte()? {
            1 => Thing::Atomic(AtomicPart {
                design: self.design()?,
                x: self.number()?,
                y: self.number()?,
                document: self.number()?,
                part_of: self.reference()?,
                to: self.list()?,
                from: self.list()?,
            }),
            2 => Thing::Connection(Connection {
                kind: self.byte()?,
                length: self.number()?,
                from: self.reference()?,
                to: self.reference()?,
            }),
            3 => Thing::Composite(CompositePart {
                design: self.design()?,
                document: self.reference()?,
                parts: self.list()?,
                used_private: self.list()?,
                used_shared: self.list()?,
            }),
            4 => Thing::Document(Document {
                id: self.number()?,
                part: self.reference()?,
                title: self.text()?,
                text: self.text()?,
            }),
            5 => Thing::Complex(ComplexAssembly {
                design: self.design()?,
                module: self.reference()?,
                parent: self.option()?,
                below: self.list()?,
            }),
            6 => Thing::Base(BaseAssembly {
                design: self.design()?,
                module: self.reference()?,
                parent: self.option()?,
                private: self.list()?,
                shared: self.list()?,
            }),
            7 => Thing::Module(Module {
                design: self.design()?,
                manual: self.reference()?,
                root: self.reference()?,
            }),
            8 => Thing::Manual(Manual { title: self.text()?, text: self.text()? }),
            9 => Thing::Root(Box::new(self.root()?)),
            10 => {
                let leaf = self.flag()?;
                let count = self.count(4 + REFERENCE_BYTES)?;
                let entry = |of: &mut Self| Some((of.slice()?, of.reference()?));
                let entries = (0..count).map(|_| entry(self)).collect::<Option<_>>()?;
                Thing::Index(Node { leaf, entries })
            }
            _ => return None,
        })
    }

    fn root(&mut self) -> Option<Root> {
        if self.number()? != MAGIC {
            return None;
        }
        let complete = self.flag()?;
        let seed = u64::from_le_bytes(self.take()?);
        let layout = if self.flag()? { Layout::ByCreation } else { Layout::ByVisit };
        let parameters = Parameters {
            atomic_per_composite: self.number()?,
            connections_per_atomic: self.number()?,
            document_bytes: self.number()?,
            manual_bytes: self.number()?,
            composites_per_module: self.number()?,
            assemblies_per_assembly: self.number()?,
            levels: self.number()?,
            composites_per_base: self.number()?,
            users: self.number()?,
            shared_composites_per_user: self.number()?,
            shared_levels: self.number()?,
            layout,
            seed,
        };
        let (next_composite, next_atomic) = (self.number()?, self.number()?);
        let indexes = Indexes {
            atomic_id: self.reference()?,
            atomic_date: self.reference()?,
            title: self.reference()?,
            document_id: self.reference()?,
            module: self.reference()?,
        };
        let modules = self.list()?;
        Some(Root { parameters, complete, modules, indexes, next_composite, next_atomic })
    }
}
