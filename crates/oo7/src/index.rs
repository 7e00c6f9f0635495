//! Indexes: B+-trees of objects. Entries are ascending keys with what they name; the root keeps its
//! place, nodes that become empty go, and siblings do not know one another: ranges come down from the
//! root. Two who change entries of one node conflict, others do not.

use crate::cluster::Plan;
use crate::database::Access;
use crate::schema::{Node, Reference, Thing};
use crate::{Error, Result};
use bytes::Bytes;
use larder::client::{Session, Transaction};
use larder_core::commit::PageKind;
use larder_core::id::VolumeId;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Most entries of a node.
const FANOUT: usize = 64;
/// Levels that no tree comes to: what goes on longer has a circle.
const LEVELS_MAX: usize = 16;

/// Entries of a node that is filled at once: the next few find room.
const FILLED: usize = FANOUT * 3 / 4;
/// Nodes made in one commit.
const COMMIT_NODES: usize = 512;

/// Builds a tree of ascending entries, in as many commits as it takes; gives its root.
pub(crate) async fn load(
    session: &Session,
    (volume, page_bytes): (VolumeId, u32),
    entries: Vec<(Bytes, Reference)>,
) -> Result<Reference> {
    let (mut level, mut leaf) = (entries, true);
    loop {
        let nodes: Vec<Node> = if level.is_empty() {
            vec![Node { leaf, entries: Vec::new() }]
        } else {
            level.chunks(FILLED).map(|some| Node { leaf, entries: some.to_vec() }).collect()
        };
        let mut above = Vec::new();
        for some in nodes.chunks(COMMIT_NODES) {
            let some: Arc<[Node]> = some.into();
            let made = session.transact(|tx| {
                let some = Arc::clone(&some);
                async move { make_nodes(&tx, (volume, page_bytes), &some).await }
            });
            above.extend(made.await?);
        }
        if let [(_, root)] = above[..] {
            return Ok(root);
        }
        (level, leaf) = (above, false);
    }
}

/// Makes nodes side by side; gives their least keys and names.
async fn make_nodes(
    tx: &Transaction,
    (volume, page_bytes): (VolumeId, u32),
    nodes: &[Node],
) -> Result<Vec<(Bytes, Reference)>> {
    let mut plan = Plan::new(page_bytes);
    let things: Vec<Thing> = nodes.iter().cloned().map(Thing::Index).collect();
    let places: Vec<_> = things.iter().map(|node| plan.place(node.encode().len())).collect();
    let cluster = plan.make(tx, volume).await?;
    let mut made = Vec::new();
    for ((thing, place), node) in things.iter().zip(places).zip(nodes) {
        cluster.put(tx, place, thing).await?;
        let least = node.entries.first().map_or_else(Bytes::new, |(key, _)| key.clone());
        made.push((least, cluster.at(place)));
    }
    Ok(made)
}

/// A tree in a transaction. What changes is kept, and written once by [`Tree::flush`]: a transaction
/// that changes one node a thousand times sends it once.
pub(crate) struct Tree<'a> {
    access: Access<'a>,
    root: Reference,
    /// Nodes that were changed; none: gone.
    changed: BTreeMap<Reference, Option<Node>>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(access: Access<'a>, root: Reference) -> Self {
        Self { access, root, changed: BTreeMap::new() }
    }

    /// Writes what changed.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        for (at, node) in std::mem::take(&mut self.changed) {
            match node {
                Some(node) => self.access.put(at, &Thing::Index(node)).await?,
                None => self.access.tx.delete(at.of(self.access.volume)).await?,
            }
        }
        Ok(())
    }

    async fn node(&self, at: Reference) -> Result<Node> {
        match self.changed.get(&at) {
            Some(Some(node)) => Ok(node.clone()),
            Some(None) => Err(Error::Damaged("an index names a node that is gone".into())),
            None => self.access.node(at).await,
        }
    }

    fn put(&mut self, at: Reference, node: Node) {
        self.changed.insert(at, Some(node));
    }

    /// What a key names.
    pub(crate) async fn find(&self, key: &[u8]) -> Result<Option<Reference>> {
        let mut at = self.root;
        for _ in 0..LEVELS_MAX {
            let node = self.node(at).await?;
            if node.leaf {
                let found = node.entries.binary_search_by(|(other, _)| other[..].cmp(key));
                return Ok(found.ok().map(|place| node.entries[place].1));
            }
            let Some(place) = child(&node, key) else { return Ok(None) };
            at = node.entries[place].1;
        }
        Err(too_deep())
    }

    /// What keys in a range name, ascending.
    pub(crate) async fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<Vec<(Bytes, Reference)>> {
        let mut found = Vec::new();
        // Nodes that are to be looked at, the next one last.
        let mut todo = vec![(self.root, 0)];
        while let Some((at, depth)) = todo.pop() {
            if depth > LEVELS_MAX {
                return Err(too_deep());
            }
            let node = self.node(at).await?;
            if node.leaf {
                let within = |key: &[u8]| {
                    let above = match from {
                        Bound::Included(from) => key >= from,
                        Bound::Excluded(from) => key > from,
                        Bound::Unbounded => true,
                    };
                    above && is_before(key, to)
                };
                found.extend(node.entries.into_iter().filter(|(key, _)| within(key)));
                continue;
            }
            let first = match from {
                Bound::Included(from) | Bound::Excluded(from) => child(&node, from).unwrap_or(0),
                Bound::Unbounded => 0,
            };
            let last = node.entries.partition_point(|(key, _)| is_before(key, to));
            let below = node.entries.get(first..last.max(first + 1)).unwrap_or_default();
            todo.extend(below.iter().rev().map(|(_, reference)| (*reference, depth + 1)));
        }
        Ok(found)
    }

    /// Enters a key. An error if it is there.
    pub(crate) async fn insert(&mut self, key: Bytes, value: Reference) -> Result<()> {
        let (mut path, mut at) = (Vec::new(), self.root);
        let mut node = self.node(at).await?;
        while !node.leaf {
            if path.len() > LEVELS_MAX {
                return Err(too_deep());
            }
            let place = child(&node, &key).unwrap_or(0);
            let below = node.entries[place].1;
            if node.entries[place].0 > key {
                // It is the least of all now.
                node.entries[place].0 = key.clone();
                self.put(at, node);
            }
            path.push(at);
            at = below;
            node = self.node(at).await?;
        }
        match node.entries.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(_) => return Err(Error::Damaged("a key is in its index already".into())),
            Err(place) => node.entries.insert(place, (key, value)),
        }
        while node.entries.len() > FANOUT {
            let upper = Node { leaf: node.leaf, entries: node.entries.split_off(FANOUT / 2) };
            let least = upper.entries[0].0.clone();
            let Some(above) = path.pop() else {
                // The root keeps its place, and has two nodes below it now.
                let first = node.entries[0].0.clone();
                let (lower, upper) = (self.make(at, node).await?, self.make(at, upper).await?);
                let entries = vec![(first, lower), (least, upper)];
                self.put(at, Node { leaf: false, entries });
                return Ok(());
            };
            // The lower half first: it leaves room to the upper.
            self.access.put(at, &Thing::Index(node.clone())).await?;
            self.put(at, node);
            let upper = self.make(at, upper).await?;
            at = above;
            node = self.node(at).await?;
            let place = node.entries.partition_point(|(key, _)| *key <= least);
            node.entries.insert(place, (least, upper));
        }
        self.put(at, node);
        Ok(())
    }

    /// Takes a key out; what it named. An error if it is not there.
    pub(crate) async fn remove(&mut self, key: &[u8]) -> Result<Reference> {
        let missing = || Error::Damaged("a key is missing in its index".into());
        let (mut path, mut at) = (Vec::new(), self.root);
        let mut node = self.node(at).await?;
        while !node.leaf {
            if path.len() > LEVELS_MAX {
                return Err(too_deep());
            }
            let place = child(&node, key).ok_or_else(missing)?;
            path.push((at, place));
            at = node.entries[place].1;
            node = self.node(at).await?;
        }
        let place = node.entries.binary_search_by(|(other, _)| other[..].cmp(key));
        let (_, value) = node.entries.remove(place.map_err(|_| missing())?);
        while node.entries.is_empty() {
            let Some((above, place)) = path.pop() else {
                // The root, and nothing is below it any more.
                node.leaf = true;
                break;
            };
            self.changed.insert(at, None);
            at = above;
            node = self.node(at).await?;
            node.entries.remove(place);
        }
        self.put(at, node);
        Ok(value)
    }

    /// A new node, beside another if there is room.
    async fn make(&self, beside: Reference, node: Node) -> Result<Reference> {
        let Access { tx, volume } = self.access;
        let bytes = Thing::Index(node).encode();
        match tx.create(beside.of(volume).page, bytes.clone()).await {
            Ok(id) => Ok(id.into()),
            Err(larder::client::Error::PageFull(_)) => {
                let page = tx.create_page(volume, PageKind::Slotted).await?;
                Ok(tx.create(page, bytes).await?.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Below which entry a key belongs; none: it is less than all.
fn child(node: &Node, key: &[u8]) -> Option<usize> {
    node.entries.partition_point(|(least, _)| least[..] <= *key).checked_sub(1)
}

fn is_before(key: &[u8], to: Bound<&[u8]>) -> bool {
    match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    }
}

fn too_deep() -> Error {
    Error::Damaged("an index goes in a circle".into())
}

/// A number as a key: as bytes ascend, so do numbers.
pub(crate) fn number_key(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// A date, and the id of whose it is.
pub(crate) fn date_key(date: u32, id: u32) -> Bytes {
    Bytes::copy_from_slice(&[date.to_be_bytes(), id.to_be_bytes()].concat())
}
