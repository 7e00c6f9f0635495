//! What an operation on names is to do to a tree: a model with no code of the file layer's.

use super::journal::{Ask, Place};
use super::tree::{DIRECTORY, Tree};
use larder::fs::{FsError, InodeId, RenameMode};

/// What a name is to lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A new inode of this kind.
    New(u8),
    /// This one.
    Old(InodeId),
}

/// What an operation does to names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    /// Names that are there after it.
    pub added: Vec<(Place, Target)>,
    /// Names that are gone, or lead elsewhere.
    pub removed: Vec<Place>,
}

/// Why it is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No such name, or directory.
    NotFound,
    /// The name is taken.
    Exists,
    /// No directory.
    NotDirectory,
    /// A directory.
    IsDirectory,
    /// Names in it.
    NotEmpty,
    /// Into itself.
    Invalid,
}

impl Refusal {
    /// The refusal that an error tells; none: it tells something else.
    #[must_use]
    pub fn of(error: &FsError) -> Option<Self> {
        Some(match error {
            FsError::NotFound => Self::NotFound,
            FsError::Exists => Self::Exists,
            FsError::NotDirectory => Self::NotDirectory,
            FsError::IsDirectory => Self::IsDirectory,
            FsError::NotEmpty => Self::NotEmpty,
            FsError::Invalid(_) => Self::Invalid,
            _ => return None,
        })
    }
}

/// Whether an operation is about names: [`effect`] says what it does.
#[must_use]
pub fn is_of_names(ask: &Ask) -> bool {
    matches!(
        ask,
        Ask::Create(..) | Ask::Link(..) | Ask::Unlink(_) | Ask::Rmdir(_) | Ask::Rename(..)
    )
}

fn find(tree: &Tree, (directory, name): &Place) -> Result<Option<(InodeId, u8)>, Refusal> {
    let directory = tree.inodes.get(directory).ok_or(Refusal::NotFound)?;
    if directory.kind != DIRECTORY {
        return Err(Refusal::NotDirectory);
    }
    Ok(directory.names.get(name).copied())
}

fn is_above(tree: &Tree, above: InodeId, directory: InodeId) -> bool {
    let below = |at: InodeId| {
        let names = tree.inodes.get(&at).into_iter().flat_map(|inode| inode.names.values());
        names.filter(|(_, kind)| *kind == DIRECTORY).map(|(id, _)| *id)
    };
    let mut waiting = vec![above];
    while let Some(at) = waiting.pop() {
        if at == directory {
            return true;
        }
        waiting.extend(below(at));
    }
    false
}

/// Whether a tree is a reason to refuse an operation so: what [`effect`] says, and one thing more. Of a
/// link to what is a directory by now, in a directory that is gone, either may be told: a node that
/// remembers where the second kept its names misses it only after it looked at the first.
#[must_use]
pub fn refuses(tree: &Tree, ask: &Ask, refusal: Refusal) -> bool {
    let is_directory = |id| tree.inodes.get(id).is_some_and(|inode| inode.kind == DIRECTORY);
    let both = matches!(ask, Ask::Link(id, at)
        if is_directory(id) && find(tree, at) == Err(Refusal::NotFound));
    effect(tree, ask) == Err(refusal) || both && refusal == Refusal::IsDirectory
}

/// What it does to a tree, or why it is refused.
pub fn effect(tree: &Tree, ask: &Ask) -> Result<Effect, Refusal> {
    match ask {
        Ask::Create(at, kind) => match find(tree, at)? {
            Some(_) => Err(Refusal::Exists),
            None => Ok(Effect { added: vec![(at.clone(), Target::New(*kind))], removed: vec![] }),
        },
        Ask::Link(id, at) => {
            // Where both are wrong, the directory is looked at first.
            let there = find(tree, at)?;
            let inode = tree.inodes.get(id).ok_or(Refusal::NotFound)?;
            if inode.kind == DIRECTORY {
                return Err(Refusal::IsDirectory);
            }
            if inode.links == 0 {
                return Err(Refusal::NotFound);
            }
            match there {
                Some(_) => Err(Refusal::Exists),
                None => Ok(Effect { added: vec![(at.clone(), Target::Old(*id))], removed: vec![] }),
            }
        }
        Ask::Unlink(at) => match find(tree, at)? {
            None => Err(Refusal::NotFound),
            Some((_, DIRECTORY)) => Err(Refusal::IsDirectory),
            Some(_) => Ok(Effect { added: vec![], removed: vec![at.clone()] }),
        },
        Ask::Rmdir(at) => match find(tree, at)? {
            None => Err(Refusal::NotFound),
            Some((id, DIRECTORY)) if !tree.inodes[&id].names.is_empty() => Err(Refusal::NotEmpty),
            Some((_, DIRECTORY)) => Ok(Effect { added: vec![], removed: vec![at.clone()] }),
            Some(_) => Err(Refusal::NotDirectory),
        },
        Ask::Rename(from, to, mode) => rename(tree, from, to, *mode),
        _ => Ok(Effect::default()),
    }
}

fn rename(tree: &Tree, from: &Place, to: &Place, mode: RenameMode) -> Result<Effect, Refusal> {
    // Both directories are looked at before either name: one that is none is told of, whether the old
    // name is there or not (bug 154).
    let (source, target) = (find(tree, from)?, find(tree, to)?);
    let (source, kind) = source.ok_or(Refusal::NotFound)?;
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Refusal::Exists),
        (RenameMode::Exchange, None) => return Err(Refusal::NotFound),
        (_, Some((id, _))) if id == source => return Ok(Effect::default()),
        _ => {}
    }
    if kind == DIRECTORY && is_above(tree, source, to.0) {
        return Err(Refusal::Invalid);
    }
    let moved = (to.clone(), Target::Old(source));
    if let (RenameMode::Exchange, Some((id, kind))) = (mode, target) {
        if kind == DIRECTORY && is_above(tree, id, from.0) {
            return Err(Refusal::Invalid);
        }
        let back = (from.clone(), Target::Old(id));
        return Ok(Effect { added: vec![moved, back], removed: vec![from.clone(), to.clone()] });
    }
    let mut removed = vec![from.clone()];
    if let Some((id, other)) = target {
        match (kind == DIRECTORY, other == DIRECTORY) {
            (true, false) => return Err(Refusal::NotDirectory),
            (false, true) => return Err(Refusal::IsDirectory),
            (true, true) if !tree.inodes[&id].names.is_empty() => return Err(Refusal::NotEmpty),
            _ => {}
        }
        removed.push(to.clone());
    }
    Ok(Effect { added: vec![moved], removed })
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Body, FILE, Inode, Names, SYMLINK};
    use super::*;
    use bytes::Bytes;
    use larder_core::id::{Generation, PageNo, Slot};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn id(slot: u16) -> InodeId {
        InodeId { page: PageNo(1), slot: Slot(slot), generation: Generation(1) }
    }

    fn place(directory: u16, name: &'static str) -> Place {
        (id(directory), Bytes::from_static(name.as_bytes()))
    }

    /// The root (2) with a file `f` (6), a link `l` (8) and a directory `d` (10).
    fn tree() -> Tree {
        let inode = |kind, names| Inode {
            kind,
            mode: 0o644,
            links: 1,
            size: 0,
            change: 0,
            ctime: 0,
            body: Body::Empty,
            xattrs: Bytes::new(),
            names,
        };
        let held = [("f", 6, FILE), ("l", 8, SYMLINK), ("d", 10, DIRECTORY)];
        let names: Names = held
            .iter()
            .map(|(name, slot, kind)| (Bytes::from(*name), (id(*slot), *kind)))
            .collect();
        let mut inodes: BTreeMap<_, _> = held
            .iter()
            .map(|(_, slot, kind)| (id(*slot), Arc::new(inode(*kind, Names::new()))))
            .collect();
        inodes.insert(id(2), Arc::new(inode(DIRECTORY, names)));
        inodes.insert(id(4), Arc::new(inode(DIRECTORY, Names::new())));
        Tree { inodes, root: id(2), orphans: id(4), page_bytes: 4_064 }
    }

    /// Bug 154. Of a rename of a name that is not there into what is no directory the model told the
    /// first, and the file layer, which looks at both directories before it looks for names, the
    /// second. Both are true. A wrong refusal is one as before.
    #[test]
    fn a_rename_into_no_directory_is_refused_as_that() {
        use Refusal::{Exists, IsDirectory, NotDirectory, NotEmpty, NotFound};
        let rename = |from, to| Ask::Rename(from, to, RenameMode::Exchange);
        let refusals = [NotFound, Exists, NotDirectory, IsDirectory, NotEmpty, Refusal::Invalid];
        let told = |ask| -> Vec<Refusal> {
            refusals.into_iter().filter(|refusal| refuses(&tree(), &ask, *refusal)).collect()
        };
        assert_eq!(told(rename(place(2, "none"), place(8, "f"))), [NotDirectory]);
        assert_eq!(told(rename(place(2, "f"), place(8, "f"))), [NotDirectory]);
        assert_eq!(told(rename(place(8, "f"), place(12, "f"))), [NotDirectory]);
        assert_eq!(told(rename(place(12, "f"), place(8, "f"))), [NotFound]);
        assert_eq!(told(rename(place(2, "none"), place(10, "f"))), [NotFound]);
        assert!(told(rename(place(2, "f"), place(2, "l"))).is_empty());
        // A link to what is a directory by now: in a directory that is gone either is told.
        assert_eq!(told(Ask::Link(id(10), place(12, "n"))), [NotFound, IsDirectory]);
        assert_eq!(told(Ask::Link(id(10), place(8, "n"))), [NotDirectory]);
        assert_eq!(told(Ask::Link(id(6), place(12, "n"))), [NotFound]);
        assert!(told(Ask::Link(id(6), place(2, "n"))).is_empty());
    }
}
