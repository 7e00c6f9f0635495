//! The tree of files kept up to date: what a commit changed is decoded anew and judged with what it
//! touches, and nothing else is looked at. What each inode was decoded from, which pages are whose,
//! and which directories name an inode is kept for that. [`super::whole`] judges the same at once.

use super::tree::{
    ALL, Check, DIRECTORY, Decoder, Inode, Leads, Look, Roots, Tree, content_bytes, has_data,
};
use super::whole::counted;
use crate::check::history::{Branch, Logged};
use larder::fs::InodeId;
use larder_core::commit::Target;
use larder_core::id::{Generation, PageId, PageNo, Slot, Stamp, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Something that is decoded by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Inode(InodeId),
    Locks,
}

/// What a part was decoded from, and what it leads to.
#[derive(Debug, Default)]
struct Known {
    looked: BTreeSet<Look>,
    used: BTreeSet<PageNo>,
    moved: BTreeSet<(PageNo, Slot)>,
    /// Which directory its pages say is above it.
    parent: Option<InodeId>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Living {
    volume: VolumeId,
    page_bytes: u64,
    roots: Option<Roots>,
    inodes: BTreeMap<InodeId, Arc<Inode>>,
    known: BTreeMap<Part, Known>,
    /// Who looked at what.
    looks: BTreeSet<(PageNo, u32, Part)>,
    /// Whose a page is; true: and nobody else's.
    owners: BTreeMap<PageNo, BTreeMap<Part, bool>>,
    moved: BTreeMap<(PageNo, Slot), BTreeSet<Part>>,
    /// The directories that name an inode, as what, and how often.
    named: BTreeMap<InodeId, BTreeMap<(InodeId, u8), u64>>,
}

/// What is to be looked at after a commit.
#[derive(Default)]
struct Round {
    /// Inodes that were forgotten, to be decoded if something leads to them.
    forgotten: BTreeSet<InodeId>,
    /// Inodes whose record or names changed.
    changed: BTreeSet<InodeId>,
    /// Pages that changed, or became somebody's, or nobody's.
    pages: BTreeSet<PageNo>,
    locks: bool,
}

impl Living {
    /// No tree yet.
    #[must_use]
    pub fn new(volume: VolumeId, page_bytes: u64) -> Self {
        Self {
            volume,
            page_bytes,
            roots: None,
            inodes: BTreeMap::new(),
            known: BTreeMap::new(),
            looks: BTreeSet::new(),
            owners: BTreeMap::new(),
            moved: BTreeMap::new(),
            named: BTreeMap::new(),
        }
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> Option<Tree> {
        let Roots { root, orphans, .. } = self.roots?;
        let page_bytes = content_bytes(self.page_bytes);
        Some(Tree { inodes: self.inodes.clone(), root, orphans, page_bytes })
    }

    /// Goes on by a commit. An error: the tree breaks an invariant after it.
    /// Else gives the inodes that may have changed.
    pub fn go_on(
        &mut self,
        branch: &Branch,
        stamp: Stamp,
        commit: &Logged,
    ) -> Check<BTreeSet<InodeId>> {
        let touched: Vec<(PageNo, &Target)> = commit
            .touched
            .iter()
            .filter(|(page, _)| page.volume == self.volume)
            .flat_map(|(page, what)| what.iter().map(move |(target, _)| (page.page, target)))
            .collect();
        let roots = Decoder::new(branch, stamp, self.volume).roots()?;
        if roots != self.roots {
            let pages: BTreeSet<PageNo> = touched.iter().map(|(page, _)| *page).collect();
            let mut changed: BTreeSet<InodeId> = self.inodes.keys().copied().collect();
            self.begin(branch, stamp, pages)?;
            changed.extend(self.inodes.keys());
            return Ok(changed);
        }
        if roots.is_none() {
            return Ok(BTreeSet::new());
        }
        let mut round = Round::default();
        for (page, target) in touched {
            round.pages.insert(page);
            for part in self.looked_at(page, target) {
                match part {
                    Part::Inode(id) => {
                        self.forget(id, &mut round);
                        round.forgotten.insert(id);
                    }
                    Part::Locks => round.locks = true,
                }
            }
        }
        self.come_to(branch, stamp, &mut round)?;
        Ok(round.changed)
    }

    /// Begins anew with the tree of a stamp, of which these are all pages.
    pub fn begin(&mut self, branch: &Branch, stamp: Stamp, pages: BTreeSet<PageNo>) -> Check<()> {
        *self = Self::new(self.volume, self.page_bytes);
        self.roots = Decoder::new(branch, stamp, self.volume).roots()?;
        let Some(Roots { root, orphans, .. }) = self.roots else { return Ok(()) };
        let forgotten = BTreeSet::from([root, orphans]);
        let mut round = Round { forgotten, pages, locks: true, ..Round::default() };
        self.come_to(branch, stamp, &mut round)
    }

    /// Parts that looked at what was touched.
    fn looked_at(&self, page: PageNo, target: &Target) -> BTreeSet<Part> {
        let id = InodeId { page: PageNo(0), slot: Slot(0), generation: Generation(0) };
        let first = Part::Inode(id);
        let range = |from: u32, to: u32| {
            let all = self.looks.range((page, from, first)..=(page, to, Part::Locks));
            all.map(|(_, _, part)| *part)
        };
        match target {
            Target::Page => range(0, ALL).collect(),
            Target::Slot(slot) => {
                let slot = u32::from(slot.0);
                range(slot, slot).chain(range(ALL, ALL)).collect()
            }
        }
    }

    // ---- decoding ----

    fn come_to(&mut self, branch: &Branch, stamp: Stamp, round: &mut Round) -> Check<()> {
        let Some(roots) = self.roots else { return Ok(()) };
        if round.locks {
            self.forget_part(Part::Locks, round);
            let mut decoder = Decoder::new(branch, stamp, self.volume);
            decoder.locks()?;
            self.learn_part(Part::Locks, decoder, None, round);
        }
        let is_root = |id: &InodeId| *id == roots.root || *id == roots.orphans;
        let leads = |living: &Self, id: &InodeId| is_root(id) || living.named.contains_key(id);
        let mut waiting: Vec<InodeId> =
            round.forgotten.iter().filter(|id| leads(self, id)).copied().collect();
        while let Some(id) = waiting.pop() {
            if self.inodes.contains_key(&id) {
                continue;
            }
            let mut decoder = Decoder::new(branch, stamp, self.volume);
            decoder.key = roots.key;
            let decoded = decoder.inode(id)?;
            self.learn_part(Part::Inode(id), decoder, decoded.parent, round);
            round.changed.insert(id);
            for (to, kind) in decoded.inode.names.values() {
                *self.named.entry(*to).or_default().entry((id, *kind)).or_default() += 1;
                round.changed.insert(*to);
                if !self.inodes.contains_key(to) {
                    waiting.push(*to);
                }
            }
            self.inodes.insert(id, Arc::new(decoded.inode));
        }
        let mut unnamed: Vec<InodeId> = round.changed.iter().copied().collect();
        while let Some(id) = unnamed.pop() {
            if !leads(self, &id) && self.inodes.contains_key(&id) {
                unnamed.extend(self.forget(id, round));
            }
        }
        self.judge(branch, stamp, roots, round)
    }

    /// Forgets an inode, and the names in it; gives what those led to.
    fn forget(&mut self, id: InodeId, round: &mut Round) -> Vec<InodeId> {
        self.forget_part(Part::Inode(id), round);
        let Some(inode) = self.inodes.remove(&id) else { return Vec::new() };
        round.changed.insert(id);
        let led: Vec<(InodeId, u8)> = inode.names.values().copied().collect();
        for (to, kind) in &led {
            round.changed.insert(*to);
            let Some(by) = self.named.get_mut(to) else { continue };
            if let Some(count) = by.get_mut(&(id, *kind)) {
                *count -= 1;
                if *count == 0 {
                    by.remove(&(id, *kind));
                }
            }
            if by.is_empty() {
                self.named.remove(to);
            }
        }
        led.into_iter().map(|(to, _)| to).collect()
    }

    fn forget_part(&mut self, part: Part, round: &mut Round) {
        let Some(known) = self.known.remove(&part) else { return };
        for (page, what) in known.looked {
            self.looks.remove(&(page, what, part));
        }
        for page in known.used {
            round.pages.insert(page);
            if let Some(owners) = self.owners.get_mut(&page) {
                owners.remove(&part);
                if owners.is_empty() {
                    self.owners.remove(&page);
                }
            }
        }
        for place in known.moved {
            round.pages.insert(place.0);
            if let Some(of) = self.moved.get_mut(&place) {
                of.remove(&part);
                if of.is_empty() {
                    self.moved.remove(&place);
                }
            }
        }
    }

    fn learn_part(
        &mut self,
        part: Part,
        decoder: Decoder<'_>,
        parent: Option<InodeId>,
        round: &mut Round,
    ) {
        let Decoder { looked, used, alone, moved, .. } = decoder;
        self.looks.extend(looked.iter().map(|(page, what)| (*page, *what, part)));
        for page in &used {
            round.pages.insert(*page);
            self.owners.entry(*page).or_default().insert(part, alone.contains(page));
        }
        for place in &moved {
            self.moved.entry(*place).or_default().insert(part);
        }
        self.known.insert(part, Known { looked, used, moved, parent });
    }

    // ---- judging ----

    fn judge(&self, branch: &Branch, stamp: Stamp, roots: Roots, round: &Round) -> Check<()> {
        for id in &round.changed {
            if let Some(inode) = self.inodes.get(id) {
                self.judge_inode(*id, inode, roots)?;
            }
        }
        for page in &round.pages {
            if let Some(owners) = self.owners.get(page)
                && owners.len() > 1
                && owners.values().any(|alone| *alone)
            {
                return Err(format!("page {} is of {:?}", page.0, owners.keys()));
            }
        }
        let decoder = Decoder::new(branch, stamp, self.volume);
        round.pages.iter().try_for_each(|page| decoder.leaks(*page, self))
    }

    fn judge_inode(&self, id: InodeId, inode: &Inode, roots: Roots) -> Check<()> {
        let nobody = BTreeMap::new();
        let names = self.named.get(&id).unwrap_or(&nobody);
        let visible = names.iter().filter(|((by, _), _)| *by != roots.orphans);
        if let Some(((by, kind), _)) = visible.clone().find(|((_, kind), _)| *kind != inode.kind) {
            return Err(format!("{id} is said in {by} to be {kind}, and is {}", inode.kind));
        }
        let is_root = id == roots.root || id == roots.orphans;
        if inode.kind == DIRECTORY {
            let above = names.keys().next().map(|(by, _)| *by).filter(|_| !is_root);
            if self.known[&Part::Inode(id)].parent != Some(above.unwrap_or(id)) {
                return Err(format!(
                    "directory {id}: its parent is another than the directory that holds it"
                ));
            }
            if id != roots.orphans && inode.size != inode.names.len() as u64 {
                let names = inode.names.len();
                return Err(format!("directory {id} counts {} names of {names}", inode.size));
            }
            self.leads_up(id, roots)?;
        } else if is_root {
            return Err(format!("{id} is no directory"));
        }
        if id == roots.orphans {
            return Ok(());
        }
        let named = visible.map(|(_, count)| count).sum::<u64>() + u64::from(is_root);
        let hidden = names.iter().filter(|((by, _), _)| *by == roots.orphans);
        counted((id, inode), (named, hidden.map(|(_, count)| count).sum()), is_root)
    }

    /// Whether a directory is below the root, or the orphans: not in a loop of its own.
    fn leads_up(&self, id: InodeId, roots: Roots) -> Check<()> {
        let mut at = id;
        for _ in 0..=self.inodes.len() {
            if at == roots.root || at == roots.orphans {
                return Ok(());
            }
            let above = self.named.get(&at).and_then(|by| by.keys().next());
            let Some((above, _)) = above else {
                return Err(format!("nothing leads to directory {at}"));
            };
            at = *above;
        }
        Err(format!("directory {id} has two names, or is in a loop"))
    }

    /// All pages that a volume ever had.
    #[must_use]
    pub fn volume_pages(branch: &Branch, volume: VolumeId) -> BTreeSet<PageNo> {
        let of_volume = |page: &PageId| page.volume == volume;
        branch.pages().filter(of_volume).map(|page| page.page).collect()
    }
}

impl Leads for Living {
    fn to_page(&self, page: PageNo) -> bool {
        // The first page is the volume's own.
        page == PageNo(1) || self.owners.contains_key(&page)
    }

    fn to_inode(&self, id: InodeId) -> bool {
        self.inodes.contains_key(&id)
    }

    fn to_data(&self, page: PageNo, slot: Slot) -> bool {
        has_data(&self.inodes, page, slot)
    }

    fn to_moved(&self, page: PageNo, slot: Slot) -> bool {
        self.moved.contains_key(&(page, slot))
    }
}
