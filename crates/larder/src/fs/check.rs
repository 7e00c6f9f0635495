//! `larder volume check`: walks a whole volume of files in one snapshot and says what does not hold,
//! where, and how it can be mended (`repair`).

use super::record::{
    Content, Entry, Extents, Inode, InodeId, Kind, TrieHeader, Xattrs, decode_entries,
};
use super::repair::{Mend, Named};
use super::trie::{HEADER_SLOT, child_of, is_name, slot_of};
use super::tx::{Mode, Tx, TxError};
use super::{FileSystem, FsError, TxStore};
use bytes::Bytes;
use larder_core::id::{Generation, PageNo, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// How often a check is begun anew when the volume changed too much for its snapshot.
const ATTEMPTS_MAX: u32 = 5;
/// Pages of content read in one request.
const PAGES_PER_FETCH: usize = 64;

/// How to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Read every page of every file's content, not only what leads to it.
    pub data: bool,
    /// Look through every page of the volume for names and inodes that nothing leads to: it is copied
    /// for that. Otherwise inodes are looked for in pages alone in which others are.
    pub every_page: bool,
    /// Problems listed; others are only counted.
    pub problems_max: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { data: true, every_page: false, problems_max: 1000 }
    }
}

/// One thing that does not hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// A name leads to an inode that is not there.
    #[error("{path}: its inode {id} is missing")]
    Missing {
        /// The name.
        path: String,
        /// Where it leads.
        id: InodeId,
    },
    /// A name says another kind than its inode.
    #[error("{path}: the name says {named:?}, the inode {found:?}")]
    WrongKind {
        /// The name.
        path: String,
        /// What the name says.
        named: Kind,
        /// What the inode says.
        found: Kind,
    },
    /// A name is not where its hash belongs: it cannot be found.
    #[error("{path}: kept in the wrong place")]
    Misplaced {
        /// The name.
        path: String,
    },
    /// A name is there twice.
    #[error("{path}: the name is there twice")]
    Twice {
        /// The name.
        path: String,
    },
    /// A directory has more than one name, or says another parent than where it was found.
    #[error("{path}: its parent is {found:?}, but it was found in {expected}")]
    WrongParent {
        /// The directory.
        path: String,
        /// Where it was found.
        expected: InodeId,
        /// What it says.
        found: Option<InodeId>,
    },
    /// The link count is wrong.
    #[error("{path}: {recorded} links recorded, {found} found")]
    WrongLinks {
        /// One name of it.
        path: String,
        /// In the inode.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// A directory's count of names is wrong.
    #[error("{path}: {recorded} names recorded, {found} found")]
    WrongSize {
        /// The directory.
        path: String,
        /// In the inode.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// A page is not there though it should be.
    #[error("{path}: page {} is missing", .page.0)]
    MissingPage {
        /// The file or directory.
        path: String,
        /// Which.
        page: PageNo,
    },
    /// Two files or directories use one page.
    #[error("{path}: page {} is also used by {other}", .page.0)]
    SharedPage {
        /// One of them.
        path: String,
        /// The other.
        other: String,
        /// Which.
        page: PageNo,
    },
    /// An inode that no name leads to and that is no known orphan.
    #[error("inode {id} has no name")]
    Unnamed {
        /// Which.
        id: InodeId,
    },
    /// A page with names to which no directory leads.
    #[error("page {} holds names, and no directory leads to it", .page.0)]
    Unreached {
        /// Which.
        page: PageNo,
    },
    /// Bytes that make no sense.
    #[error("{path}: {detail}")]
    Damaged {
        /// Where.
        path: String,
        /// What.
        detail: String,
    },
}

/// Where a problem is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The page.
    pub page: PageNo,
    /// The slot, if it is one.
    pub slot: Option<Slot>,
    /// Which of the slot's objects, if one is there.
    pub generation: Option<Generation>,
}

impl At {
    pub(super) fn of(id: InodeId) -> Self {
        Self { page: id.page, slot: Some(id.slot), generation: Some(id.generation) }
    }

    pub(super) fn page(page: PageNo) -> Self {
        Self { page, slot: None, generation: None }
    }

    fn slot(page: PageNo, slot: Slot) -> Self {
        Self { page, slot: Some(slot), generation: None }
    }
}

/// A problem, where it is, and what would mend it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What does not hold.
    pub problem: Problem,
    /// Where that was seen.
    pub at: At,
    pub(super) mend: Mend,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.problem.fmt(f)
    }
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Directories, the root included.
    pub directories: u64,
    /// Files, each counted once.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Pages of content read.
    pub pages: u64,
    /// Files without a name: open somewhere, or being freed, or left by a crash.
    pub orphans: u64,
    /// What does not hold, up to the limit.
    pub problems: Vec<Found>,
    /// How much does not hold.
    pub problems_total: u64,
    /// Names may be there that were not counted, listed or not.
    pub(super) hides_names: bool,
    /// Some of them are in what was found by looking through every page.
    pub(super) unreached: bool,
    /// What a page at the origin held that cannot be read, or another version wrote, is not known:
    /// what nothing leads to may be led to from there.
    pub(super) unknown: bool,
}

impl CheckReport {
    /// Whether all holds.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }
}

/// Checks a volume. `progress` is called with what is known so far, now and then.
pub async fn check<S: TxStore>(
    fs: &FileSystem<S>,
    options: &CheckOptions,
    progress: &mut (dyn FnMut(&CheckReport) + Send),
) -> Result<CheckReport, FsError> {
    let mut attempt = 0;
    loop {
        match run(fs, options, progress).await {
            Err(FsError::Store(TxError::Conflict(_))) if attempt < ATTEMPTS_MAX => attempt += 1,
            other => return other,
        }
    }
}

async fn run<S: TxStore>(
    fs: &FileSystem<S>,
    options: &CheckOptions,
    progress: &mut (dyn FnMut(&CheckReport) + Send),
) -> Result<CheckReport, FsError> {
    let listed = match options.every_page {
        true => Some(fs.store.slotted_pages().await?),
        false => None,
    };
    if listed.is_some() {
        // The snapshot is to be no older.
        fs.store.refresh().await?;
    }
    let tx = fs.store.begin(Mode::Snapshot).await?;
    let mut walk = Walk {
        fs,
        tx: &tx,
        options,
        report: CheckReport::default(),
        inodes: BTreeMap::new(),
        used: Vec::new(),
        tries: BTreeSet::new(),
        unread: BTreeSet::new(),
        waiting: Vec::new(),
    };
    walk.root(fs.root.root, "/", false);
    walk.root(fs.root.orphans, "(orphans)", true);
    while let Some(directory) = walk.waiting.pop() {
        walk.directory(directory).await?;
        progress(&walk.report);
    }
    walk.links();
    if let Some(listed) = listed {
        walk.unreached(&listed).await?;
    }
    walk.inode_pages().await?;
    walk.shared_pages();
    Ok(walk.report)
}

/// An inode that a name led to.
pub(super) struct Seen {
    path: String,
    links: u64,
    names: u64,
    /// Its time of change: with every name that is made or removed it gets another.
    change: i64,
    /// Where the first of its names is.
    named: Option<Named>,
}

/// A directory to walk.
struct Waiting {
    id: InodeId,
    parent: InodeId,
    path: String,
    orphans: bool,
}

pub(super) struct Walk<'a, S: TxStore> {
    pub(super) fs: &'a FileSystem<S>,
    pub(super) tx: &'a S::Tx,
    options: &'a CheckOptions,
    pub(super) report: CheckReport,
    pub(super) inodes: BTreeMap<InodeId, Seen>,
    /// Runs of page numbers: first, count, whose.
    used: Vec<(u64, u64, String, InodeId)>,
    /// Pages of names.
    pub(super) tries: BTreeSet<PageNo>,
    /// Pages of content that are damaged at the origin.
    pub(super) unread: BTreeSet<PageNo>,
    waiting: Vec<Waiting>,
}

impl<S: TxStore> Walk<'_, S> {
    fn root(&mut self, id: InodeId, path: &str, orphans: bool) {
        self.waiting.push(Waiting { id, parent: id, path: path.into(), orphans });
        let seen = Seen { path: path.into(), links: 0, names: 0, change: 0, named: None };
        self.inodes.insert(id, seen);
    }

    pub(super) fn problem(&mut self, at: At, mend: Mend, problem: Problem) {
        self.report.problems_total += 1;
        self.report.hides_names |= mend.hides_names();
        self.report.unreached |= matches!(mend, Mend::Adopt { .. });
        self.report.unknown |= matches!(mend, Mend::Nothing | Mend::Lost);
        if self.report.problems.len() < self.options.problems_max {
            self.report.problems.push(Found { problem, at, mend });
        }
    }

    /// What another version of larder wrote is not mended by this one, nor what is damaged at the
    /// origin.
    fn damaged(&mut self, at: At, mend: Mend, path: &str, error: &FsError) {
        let mend = match error {
            FsError::Format { .. } => Mend::Nothing,
            FsError::Store(_) => Mend::Lost,
            _ => mend,
        };
        self.problem(at, mend, Problem::Damaged { path: path.into(), detail: error.to_string() });
    }

    /// An inode, or none after noting why not. Errors of the store end the check.
    async fn inode(
        &mut self,
        id: InodeId,
        path: &str,
        named: Option<&Named>,
    ) -> Result<Option<Inode>, FsError> {
        let mend = |make: fn(Named) -> Mend| named.cloned().map_or(Mend::Nothing, make);
        match self.fs.inode(self.tx, id).await {
            Ok(inode) => return Ok(Some(inode)),
            Err(FsError::NotFound) => {
                let problem = Problem::Missing { path: path.into(), id };
                self.problem(At::of(id), mend(Mend::Unname), problem);
            }
            Err(
                error @ (FsError::Damaged(_)
                | FsError::Format { .. }
                | FsError::Store(TxError::Damaged(_))),
            ) => self.damaged(At::of(id), mend(Mend::RemoveUnreadable), path, &error),
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Brings pages at hand. Of one that is damaged its reader tells.
    async fn fetch(&self, pages: &[PageNo]) -> Result<(), FsError> {
        match self.tx.fetch(pages).await {
            Err(TxError::Damaged(_)) => Ok(()),
            other => Ok(other?),
        }
    }

    async fn directory(&mut self, directory: Waiting) -> Result<(), FsError> {
        let Some(inode) = self.inode(directory.id, &directory.path, None).await? else {
            return Ok(());
        };
        let Ok(root) = inode.trie() else {
            let problem = Problem::WrongKind {
                path: directory.path,
                named: Kind::Directory,
                found: inode.kind,
            };
            // Of its name, if it has one, is told there.
            self.problem(At::of(directory.id), Mend::Nothing, problem);
            return Ok(());
        };
        self.report.directories += u64::from(!directory.orphans);
        self.xattrs(directory.id, &inode, &directory.path).await?;
        let (mut names, mut subdirectories) = (BTreeMap::new(), 0);
        let mut pages = vec![(root, 0_u32, 0_u64, None)];
        while let Some((page, level, prefix, above)) = pages.pop() {
            self.used.push((page.0, 1, directory.path.clone(), directory.id));
            if !self.tries.insert(page) {
                // Told as a shared page; a circle would have no end.
                continue;
            }
            let Some(header) = self.trie_header(page, (level, above), &directory).await? else {
                continue;
            };
            if let Some(children) = header.children {
                self.fetch(&children).await?;
                for (i, child) in children.into_iter().enumerate() {
                    pages.push((child, level + 1, (prefix << 5) | i as u64, Some((page, i))));
                }
                continue;
            }
            subdirectories += self.bucket(page, level, prefix, &directory, &mut names).await?;
        }
        // Nobody counts the names of orphans.
        if !directory.orphans && inode.size != names.len() as u64 {
            let problem = Problem::WrongSize {
                path: directory.path.clone(),
                recorded: inode.size,
                found: names.len() as u64,
            };
            self.problem(At::of(directory.id), Mend::Count(directory.id), problem);
        }
        if inode.links != 2 + subdirectories {
            let problem = Problem::WrongLinks {
                path: directory.path,
                recorded: inode.links,
                found: 2 + subdirectories,
            };
            self.problem(At::of(directory.id), Mend::Count(directory.id), problem);
        }
        Ok(())
    }

    async fn trie_header(
        &mut self,
        page: PageNo,
        (level, above): (u32, Option<(PageNo, usize)>),
        directory: &Waiting,
    ) -> Result<Option<TrieHeader>, FsError> {
        let parent = directory.parent;
        let mend = Mend::Header { directory: directory.id, page, above, parent };
        let at = At::slot(page, HEADER_SLOT);
        let bytes = match self.tx.get(page, HEADER_SLOT).await {
            Ok(found) => found.map(|(_, bytes)| bytes),
            Err(error @ TxError::Damaged(_)) => {
                self.damaged(At::page(page), Mend::Lost, &directory.path, &error.into());
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let Some(bytes) = bytes else {
            let problem = Problem::MissingPage { path: directory.path.clone(), page };
            self.problem(at, mend, problem);
            return Ok(None);
        };
        match TrieHeader::decode(&bytes) {
            Ok(header) => {
                let expected = (level == 0).then_some(directory.parent);
                if header.parent != expected {
                    let found = header.parent;
                    let mend = Mend::Parent { page, found, expected };
                    let problem = Problem::WrongParent {
                        path: directory.path.clone(),
                        expected: directory.parent,
                        found: header.parent,
                    };
                    self.problem(at, mend, problem);
                }
                Ok(Some(header))
            }
            Err(error) => {
                self.damaged(at, mend, &directory.path, &error);
                Ok(None)
            }
        }
    }

    /// Checks the names of a bucket; gives the number of directories among them.
    async fn bucket(
        &mut self,
        page: PageNo,
        level: u32,
        prefix: u64,
        directory: &Waiting,
        names: &mut BTreeMap<Bytes, Named>,
    ) -> Result<u64, FsError> {
        let mut subdirectories = 0;
        for (slot, generation, bytes) in self.tx.get_all(page).await?.unwrap_or_default() {
            if !is_name(slot) {
                continue;
            }
            let at = At { page, slot: Some(slot), generation: Some(generation) };
            let entries = match decode_entries(&bytes) {
                Ok(entries) => entries,
                Err(error) => {
                    let mend = Mend::Names { directory: directory.id, page, slot };
                    self.damaged(at, mend, &directory.path, &error);
                    continue;
                }
            };
            for entry in entries {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let path = format!("{}/{name}", directory.path.trim_end_matches('/'));
                let hash = self.fs.hash(&entry.name);
                let way =
                    (0..level).fold(0, |way, level| (way << 5) | child_of(hash, level) as u64);
                subdirectories += u64::from(entry.kind == Kind::Directory);
                let named = Named { directory: directory.id, page, slot, entry };
                if slot != slot_of(hash) || way != prefix {
                    let problem = Problem::Misplaced { path: path.clone() };
                    self.problem(at, Mend::Place(named.clone()), problem);
                }
                if let Some(first) = names.get(&named.entry.name) {
                    let mend = Mend::Double { named: named.clone(), first: first.clone() };
                    self.problem(at, mend, Problem::Twice { path: path.clone() });
                } else {
                    names.insert(named.entry.name.clone(), named.clone());
                }
                self.name(path, named, directory).await?;
            }
        }
        Ok(subdirectories)
    }

    async fn name(
        &mut self,
        path: String,
        place: Named,
        directory: &Waiting,
    ) -> Result<(), FsError> {
        let Entry { id, kind, .. } = place.entry;
        let at = At::slot(place.page, place.slot);
        let named = u64::from(!directory.orphans);
        if let Some(seen) = self.inodes.get_mut(&id) {
            seen.names += named;
            let first = seen.named.clone();
            if kind == Kind::Directory {
                let twice = |first| Mend::Double { named: place, first };
                let mend = first.map_or(Mend::Nothing, twice);
                self.problem(at, mend, Problem::Twice { path });
            }
            return Ok(());
        }
        let Some(inode) = self.inode(id, &path, Some(&place)).await? else {
            return Ok(());
        };
        // Whatever it was, an orphan is entered as a file.
        if inode.kind != kind && !directory.orphans {
            let found = inode.kind;
            let problem = Problem::WrongKind { path: path.clone(), named: kind, found };
            self.problem(at, Mend::Kind(place.clone()), problem);
        }
        // A directory's links are those of its subdirectories: counted when it is walked.
        let links = if kind == Kind::Directory { 1 } else { inode.links };
        let first = Some(place);
        let seen =
            Seen { path: path.clone(), links, names: named, change: inode.ctime, named: first };
        self.inodes.insert(id, seen);
        if directory.orphans {
            self.report.orphans += 1;
        } else {
            match kind {
                Kind::File => self.report.files += 1,
                Kind::Symlink => self.report.symlinks += 1,
                Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                    self.report.special += 1;
                }
                Kind::Directory => self.waiting.push(Waiting {
                    id,
                    parent: directory.id,
                    path: path.clone(),
                    orphans: false,
                }),
            }
        }
        if kind != Kind::Directory {
            self.xattrs(id, &inode, &path).await?;
        }
        self.content(id, &inode, path).await
    }

    async fn xattrs(&mut self, id: InodeId, inode: &Inode, path: &str) -> Result<(), FsError> {
        let Xattrs::Pages(first) = inode.xattrs else { return Ok(()) };
        let read = async {
            let pages = self.fs.xattr_pages(self.tx, first).await?;
            self.fs.xattrs_of(self.tx, inode).await?;
            Ok(pages.len() as u64)
        };
        match read.await {
            Ok(count) => self.used.push((first.0, count, path.into(), id)),
            Err(
                error @ (FsError::Damaged(_)
                | FsError::Format { .. }
                | FsError::Store(TxError::Damaged(_))),
            ) => {
                // They are dropped also where the origin cannot read them: a file without them is whole.
                let problem = Problem::Damaged { path: path.into(), detail: error.to_string() };
                let mend = match error {
                    FsError::Format { .. } => Mend::Nothing,
                    _ => Mend::Xattrs(id),
                };
                self.problem(At::page(first), mend, problem);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn content(&mut self, id: InodeId, inode: &Inode, path: String) -> Result<(), FsError> {
        match &inode.content {
            Content::Empty | Content::Trie(_) | Content::Device(_) => {}
            Content::Inline => {
                if self.tx.get(id.page, id.data_slot()).await?.is_none() {
                    let error = FsError::Damaged("its bytes are missing".into());
                    let at = At::slot(id.page, id.data_slot());
                    self.damaged(at, Mend::Zeros(id), &path, &error);
                }
            }
            Content::Pages(extents) => {
                for (i, first) in extents.firsts.iter().enumerate() {
                    self.used.push((first.0, Extents::run_pages(i), path.clone(), id));
                }
                if self.options.data {
                    self.pages(id, extents, &path).await?;
                }
            }
        }
        if inode.kind == Kind::File {
            self.report.bytes += inode.size;
        }
        Ok(())
    }

    async fn pages(&mut self, id: InodeId, extents: &Extents, path: &str) -> Result<(), FsError> {
        let all: Vec<PageNo> = (0..extents.high).filter_map(|i| extents.page(i)).collect();
        for batch in all.chunks(PAGES_PER_FETCH) {
            self.fetch(batch).await?;
            for page in batch {
                match self.tx.get_raw(*page).await {
                    Ok(Some(_)) => self.report.pages += 1,
                    Ok(None) if extents.sparse => {}
                    Ok(None) => {
                        let problem = Problem::MissingPage { path: path.into(), page: *page };
                        self.problem(At::page(*page), Mend::Hole { id, page: *page }, problem);
                    }
                    Err(TxError::Damaged(detail)) => {
                        let problem = Problem::Damaged { path: path.into(), detail };
                        self.unread.insert(*page);
                        self.problem(At::page(*page), Mend::Content, problem);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn links(&mut self) {
        let inodes = self.inodes.iter().filter(|(_, seen)| seen.links != seen.names);
        let wrong: Vec<(InodeId, Mend, Problem)> = inodes
            .map(|(id, seen)| {
                let Seen { links, names, change, .. } = *seen;
                let path = seen.path.clone();
                let mend = Mend::Links { id: *id, links: names, change };
                (*id, mend, Problem::WrongLinks { path, recorded: links, found: names })
            })
            .collect();
        for (id, mend, problem) in wrong {
            self.problem(At::of(id), mend, problem);
        }
    }

    /// Looks through the inode pages for inodes that nothing leads to.
    async fn inode_pages(&mut self) -> Result<(), FsError> {
        let mut pages: BTreeSet<PageNo> = self.inodes.keys().map(|id| id.page).collect();
        for page in pages.difference(&self.tries) {
            let first = InodeId { page: *page, slot: HEADER_SLOT, generation: Generation(0) };
            self.used.push((page.0, 1, "(inodes)".into(), first));
        }
        pages.extend(&self.tries);
        for page in pages {
            let held = match self.tx.get_all(page).await {
                // Told of with what led there.
                Err(TxError::Damaged(_)) => continue,
                other => other?,
            };
            for (slot, generation, bytes) in held.unwrap_or_default() {
                let id = InodeId { page, slot, generation };
                let is_inode = slot.0 % 2 == 0 && slot != HEADER_SLOT && !is_name(slot);
                if is_inode && !self.inodes.contains_key(&id) {
                    let inode = Inode::decode(&bytes).ok();
                    let change = inode.map(|inode| (inode.kind, inode.ctime));
                    self.problem(At::of(id), Mend::Name { id, change }, Problem::Unnamed { id });
                }
            }
        }
        Ok(())
    }

    fn shared_pages(&mut self) {
        let mut used = std::mem::take(&mut self.used);
        used.sort();
        for two in used.windows(2) {
            if two[0].0 + two[0].1 > two[1].0 {
                let page = PageNo(two[1].0);
                // Whoever of the two is a file gets pages of its own.
                let mend = Mend::Copy { of: [two[1].3, two[0].3], page };
                let (path, other) = (two[0].2.clone(), two[1].2.clone());
                self.problem(At::page(page), mend, Problem::SharedPage { path, other, page });
            }
        }
    }
}
