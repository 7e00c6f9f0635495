//! The whole tree at a stamp, from its root: what must hold of any tree, judged at once. The judge of
//! what a single commit changed ([`super::living`]) must come to the same.

use super::tree::{
    Check, DIRECTORY, Decoded, Decoder, Inode, Leads, Tree, content_bytes, has_data,
};
use crate::check::history::Branch;
use larder::fs::InodeId;
use larder_core::id::{PageNo, Slot, Stamp, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

struct Whole<'a> {
    decoder: Decoder<'a>,
    inodes: BTreeMap<InodeId, Arc<Inode>>,
    /// How many names lead to each.
    named: BTreeMap<InodeId, u64>,
}

/// The tree at a stamp; none: the volume has none yet. An error: it breaks an invariant.
pub fn judge(
    branch: &Branch,
    stamp: Stamp,
    volume: VolumeId,
    page_bytes: u64,
    pages: &BTreeSet<PageNo>,
) -> Check<Option<Tree>> {
    let mut decoder = Decoder::new(branch, stamp, volume);
    let Some(roots) = decoder.roots()? else { return Ok(None) };
    let mut whole = Whole { decoder, inodes: BTreeMap::new(), named: BTreeMap::new() };
    for directory in [roots.root, roots.orphans] {
        whole.named.insert(directory, 1);
        whole.directory(directory, directory, directory == roots.orphans)?;
    }
    whole.counts(roots.root, roots.orphans)?;
    whole.decoder.locks()?;
    pages.iter().try_for_each(|page| whole.decoder.leaks(*page, &whole))?;
    let (root, orphans) = (roots.root, roots.orphans);
    Ok(Some(Tree { inodes: whole.inodes, root, orphans, page_bytes: content_bytes(page_bytes) }))
}

impl Whole<'_> {
    /// A directory, and all that is below it.
    fn directory(&mut self, id: InodeId, above: InodeId, hidden: bool) -> Check<()> {
        if self.inodes.contains_key(&id) {
            return Err(format!("directory {id} has two names, or is in a loop"));
        }
        let Decoded { inode, parent } = self.decoder.inode(id)?;
        let parent = parent.ok_or(format!("{id} is no directory"))?;
        if parent != above {
            return Err(format!(
                "directory {id}: its parent is another than the directory that holds it"
            ));
        }
        let names = inode.names.clone();
        if !hidden && inode.size != names.len() as u64 {
            return Err(format!("directory {id} counts {} names of {}", inode.size, names.len()));
        }
        self.inodes.insert(id, Arc::new(inode));
        for (name, (to, kind)) in names {
            *self.named.entry(to).or_default() += u64::from(!hidden);
            if kind == DIRECTORY {
                self.directory(to, id, false)?;
            } else if !self.inodes.contains_key(&to) {
                let inode = self.decoder.inode(to)?.inode;
                self.inodes.insert(to, Arc::new(inode));
            }
            let found = self.inodes[&to].kind;
            if found != kind && !hidden {
                return Err(format!("{name:?} in {id} is said to be {kind}, and is {found}"));
            }
        }
        Ok(())
    }

    /// Link counts.
    fn counts(&self, root: InodeId, orphans: InodeId) -> Check<()> {
        let mut nameless: BTreeMap<InodeId, u64> = BTreeMap::new();
        for (to, _) in self.inodes[&orphans].names.values() {
            *nameless.entry(*to).or_default() += 1;
        }
        for (id, inode) in self.inodes.iter().filter(|(id, _)| **id != orphans) {
            let named = self.named.get(id).copied().unwrap_or(0);
            let hidden = nameless.get(id).copied().unwrap_or(0);
            counted((*id, inode), (named, hidden), *id == root)?;
        }
        Ok(())
    }
}

/// Whether an inode counts the names that lead to it, and has one of the right kind: so many of
/// directories, and among the nameless.
pub(super) fn counted(
    (id, inode): (InodeId, &Inode),
    (named, hidden): (u64, u64),
    is_root: bool,
) -> Check<()> {
    let below = inode.names.values().filter(|(_, kind)| *kind == DIRECTORY).count() as u64;
    let links = if inode.kind == DIRECTORY { 2 + below } else { named };
    if inode.links != links {
        return Err(format!("inode {id} counts {} links of {links}", inode.links));
    }
    if inode.kind == DIRECTORY && named != 1 {
        return Err(format!("directory {id} has {named} names"));
    }
    if (hidden > 0) != (named == 0 && !is_root) || hidden > 1 {
        return Err(format!("inode {id} has {named} names, {hidden} among the nameless"));
    }
    Ok(())
}

impl Leads for Whole<'_> {
    fn to_page(&self, page: PageNo) -> bool {
        self.decoder.used.contains(&page)
    }

    fn to_inode(&self, id: InodeId) -> bool {
        self.inodes.contains_key(&id)
    }

    fn to_data(&self, page: PageNo, slot: Slot) -> bool {
        has_data(&self.inodes, page, slot)
    }

    fn to_moved(&self, page: PageNo, slot: Slot) -> bool {
        self.decoder.moved.contains(&(page, slot))
    }
}
