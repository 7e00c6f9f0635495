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
    let target = find(tree, to);
    let (source, kind) = find(tree, from)?.ok_or(Refusal::NotFound)?;
    let target = target?;
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
