//! `larder volume check --repair`: mends what a check found, while the volume is in use.
//!
//! Each problem carries where it was seen and what would mend it. A repair is a transaction of its own
//! that looks again and changes only what is still as the check saw it; then the volume is checked
//! anew, since one repair may show what was behind it: an inode whose broken name was taken away has
//! none, and comes to `lost+found`. That goes on until nothing is left, or nothing can be done.

use super::check::{At, CheckOptions, CheckReport, Found, check};
use super::record::{
    Content, Entry, Inode, InodeId, Kind, TrieHeader, Xattrs, decode_entries, encode_entries,
};
use super::trie::{self, HEADER_SLOT};
use super::tx::{Tx, TxError, TxStore};
use super::{Create, FileSystem, FsError, Position, lock, transact};
use bytes::Bytes;
use larder_core::commit::PageKind;
use larder_core::id::{PageNo, Slot};
use std::collections::BTreeSet;

/// How often the volume is checked at most.
const PASSES_MAX: u32 = 64;
/// Largest file that gets pages of its own, in pages: one transaction writes them.
const COPIED_PAGES_MAX: u64 = 256;
/// Where inodes without a name get one.
const LOST_FOUND: &[u8] = b"lost+found";

/// A name, and where it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) directory: InodeId,
    pub(super) page: PageNo,
    pub(super) slot: Slot,
    pub(super) entry: Entry,
}

/// What would mend a problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Mend {
    /// Nothing that is known here.
    Nothing,
    /// Nothing: a page of names or inodes is damaged at the origin.
    Lost,
    /// Nothing: a page of a file's content is damaged at the origin. All names are known.
    Content,
    /// Make a directory in `lost+found` of a page of names, whose header says this parent.
    Adopt { page: PageNo, parent: Option<InodeId> },
    /// Take away a name that leads nowhere.
    Unname(Named),
    /// Take away a name that is there already, or that a directory has beside its first one.
    Double { named: Named, first: Named },
    /// Take away a name and its inode, which cannot be read.
    RemoveUnreadable(Named),
    /// Let the name say what its inode is.
    Kind(Named),
    /// Put a name where it can be found.
    Place(Named),
    /// Take away names that cannot be read.
    Names { directory: InodeId, page: PageNo, slot: Slot },
    /// Say which directory holds that of this page.
    Parent { page: PageNo, found: Option<InodeId>, expected: Option<InodeId> },
    /// Count a directory's names anew.
    Count(InodeId),
    /// Set a file's count of links, if no name of it was made or removed since.
    Links { id: InodeId, links: u64, change: i64 },
    /// Make a page of a directory anew, without names.
    Header { directory: InodeId, page: PageNo, above: Option<(PageNo, usize)>, parent: InodeId },
    /// Bytes that are missing beside the inode are zeros.
    Zeros(InodeId),
    /// A page that is missing is a hole.
    Hole { id: InodeId, page: PageNo },
    /// Attributes that cannot be read go.
    Xattrs(InodeId),
    /// A name in `lost+found`, if the inode is as it was: of this kind and time of change. None: it
    /// cannot be read.
    Name { id: InodeId, change: Option<(Kind, i64)> },
    /// Pages of its own for one of the two, which must be a file.
    Copy { of: [InodeId; 2], page: PageNo },
}

impl Mend {
    /// Whether names may be there that were not counted:
    ///
    /// 1. A directory's names are of a later version of the format. A file has one of them, and one
    ///    elsewhere: its links were counted as one.
    /// 2. The other name was removed, and the file freed, which somebody had by the first.
    pub(super) fn hides_names(&self) -> bool {
        match self {
            Self::Nothing | Self::Lost | Self::Adopt { .. } => true,
            mend => mend.gives_up_names(),
        }
    }

    /// Whether nobody finds what the directory led to once it is done: that has to be elsewhere by
    /// then.
    fn gives_up_names(&self) -> bool {
        match self {
            Self::Header { .. } => true,
            Self::RemoveUnreadable(named) => named.entry.kind == Kind::Directory,
            _ => false,
        }
    }

    /// Whether it stands on all names having been counted.
    fn counts_names(&self) -> bool {
        matches!(self, Self::Links { .. } | Self::Name { .. } | Self::Count(_))
    }
}

/// What became of a problem.
pub(super) enum Done {
    Mended(String),
    /// It is no longer as it was seen.
    Passed,
    Cannot(String),
}

fn mended(what: &str) -> Result<Done, FsError> {
    Ok(Done::Mended(what.into()))
}

fn cannot(why: &str) -> Result<Done, FsError> {
    Ok(Done::Cannot(why.into()))
}

/// A problem that was mended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repaired {
    /// What did not hold.
    pub problem: String,
    /// Where.
    pub at: At,
    /// What was done.
    pub done: String,
}

/// What a repair came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// What was mended, in order.
    pub repaired: Vec<Repaired>,
    /// Why what is left in the last check was not: in the order of its problems; empty: it was not
    /// come to.
    pub left: Vec<String>,
    /// The last check.
    pub check: CheckReport,
}

/// Checks a volume and mends what it can, until a check finds nothing that can be mended.
pub async fn repair<S: TxStore>(
    fs: &FileSystem<S>,
    options: &CheckOptions,
    progress: &mut (dyn FnMut(&CheckReport) + Send),
) -> Result<RepairReport, FsError> {
    let mut report = RepairReport::default();
    let mut options = options.clone();
    for _ in 0..PASSES_MAX {
        report.check = check(fs, &options, progress).await?;
        if report.check.hides_names && !options.every_page {
            // What the names led to may be found all the same.
            options.every_page = true;
            report.check = check(fs, &options, progress).await?;
        }
        report.left.clear();
        let before = report.repaired.len();
        let later = later(fs, &report.check.problems).await?;
        let CheckReport { hides_names, unreached, unknown, .. } = report.check;
        for (index, found) in report.check.problems.iter().enumerate() {
            let done = if later.contains(&index) {
                Done::Passed
            } else if hides_names && found.mend.counts_names() {
                Done::Cannot("names that cannot be read may lead to it: those come first".into())
            } else if unknown && found.mend.gives_up_names() {
                Done::Cannot(
                    "what is in the directory may be in what else cannot be read: restore it from a \
                     backup"
                        .into(),
                )
            } else if unreached && found.mend.gives_up_names() {
                // First what it led to.
                Done::Passed
            } else {
                fs.mend(found).await?
            };
            let why = match done {
                Done::Mended(done) => {
                    let problem = found.problem.to_string();
                    report.repaired.push(Repaired { problem, at: found.at, done });
                    String::new()
                }
                Done::Passed => String::new(),
                Done::Cannot(why) => why,
            };
            report.left.push(why);
        }
        if report.repaired.len() == before {
            break;
        }
    }
    Ok(report)
}

/// Inodes without a name that are to wait: they may have one in a directory that gets its own now.
async fn later<S: TxStore>(
    fs: &FileSystem<S>,
    problems: &[Found],
) -> Result<BTreeSet<usize>, FsError> {
    let mut inside: BTreeSet<InodeId> = BTreeSet::new();
    let mut directories = Vec::new();
    for (index, found) in problems.iter().enumerate() {
        if let Mend::Name { id, change: Some((Kind::Directory, _)) } = found.mend {
            directories.push((index, id));
            match fs.named_in(id).await {
                Ok(ids) => inside.extend(ids.into_iter().filter(|inner| *inner != id)),
                Err(FsError::NotFound | FsError::Damaged(_) | FsError::NotDirectory) => {}
                Err(error) => return Err(error),
            }
        }
    }
    if directories.is_empty() {
        return Ok(BTreeSet::new());
    }
    let unnamed = problems.iter().enumerate();
    let mut later: BTreeSet<usize> = unnamed
        .filter(|(_, found)| matches!(found.mend, Mend::Name { .. }))
        .map(|(i, _)| i)
        .collect();
    for (index, id) in &directories {
        if !inside.contains(id) {
            later.remove(index);
        }
    }
    // Directories that hold one another in a circle: one of them goes first.
    if directories.iter().all(|(index, _)| later.contains(index)) {
        later.remove(&directories[0].0);
    }
    Ok(later)
}

/// Whether an inode is there that cannot be read. One of another version is an error: it is not this
/// version's to remove.
async fn unreadable<S: TxStore>(tx: &S::Tx, id: InodeId) -> Result<bool, FsError> {
    let Some((generation, bytes)) = tx.get(id.page, id.slot).await? else { return Ok(false) };
    match Inode::decode(&bytes) {
        Err(FsError::Damaged(_)) => Ok(generation == id.generation),
        Err(error) => Err(error),
        Ok(_) => Ok(false),
    }
}

impl<S: TxStore> FileSystem<S> {
    async fn named_in(&self, directory: InodeId) -> Result<Vec<InodeId>, FsError> {
        let listed: Result<Vec<trie::Listed>, FsError> = transact!(self, tx => {
            let root = self.inode(&tx, directory).await?.trie()?;
            trie::list(self, &tx, root, &Position::default(), usize::MAX).await
        });
        Ok(listed?.into_iter().map(|(_, _, entry)| entry.id).collect())
    }

    /// Mends one problem, if it is still there.
    pub(super) async fn mend(&self, found: &Found) -> Result<Done, FsError> {
        let done = match &found.mend {
            Mend::Nothing => cannot("there is no repair for it here"),
            Mend::Lost | Mend::Content => cannot(
                "it is damaged at the origin: restore it from a backup; or back the volume up with \
                 --leave-out-damaged, restore that, and repair it",
            ),
            Mend::Adopt { page, parent } => self.adopt_names(*page, *parent).await,
            Mend::Unname(named) => self.take_away(named, None).await,
            Mend::Double { named, first } => self.take_away(named, Some(first)).await,
            Mend::RemoveUnreadable(named) => self.remove_unreadable(named).await,
            Mend::Kind(named) => self.mend_kind(named).await,
            Mend::Place(named) => self.place_again(named).await,
            Mend::Names { directory: _, page, slot } => self.remove_names(*page, *slot).await,
            Mend::Parent { page, found, expected } => {
                self.mend_parent(*page, *found, *expected).await
            }
            Mend::Count(directory) => self.count_names(*directory).await,
            Mend::Links { id, links, change } => self.mend_links(*id, *links, *change).await,
            Mend::Header { directory, page, above, parent } => {
                self.mend_header(*directory, *page, *above, *parent).await
            }
            Mend::Zeros(id) => self.mend_zeros(*id).await,
            Mend::Hole { id, page } => self.mend_hole(*id, *page).await,
            Mend::Xattrs(id) => self.drop_xattrs(*id).await,
            Mend::Name { id, change } => self.name_lost(*id, *change).await,
            Mend::Copy { of, page } => self.copy_shared(*of, *page).await,
        };
        match done {
            Err(FsError::NotFound) => Ok(Done::Passed),
            // What it stands on is broken as well: perhaps mended by the next pass.
            Err(
                error @ (FsError::Damaged(_)
                | FsError::Format { .. }
                | FsError::Exists
                | FsError::NotDirectory
                | FsError::NotEmpty
                | FsError::NoSpace
                | FsError::Store(
                    TxError::Damaged(_)
                    | TxError::Conflict(_)
                    | TxError::Gone(_)
                    | TxError::Full(_),
                )),
            ) => Ok(Done::Cannot(error.to_string())),
            other => other,
        }
    }

    /// Takes an entry out of its slot; false: it is not there any more.
    async fn take_entry(&self, tx: &S::Tx, named: &Named) -> Result<bool, FsError> {
        let Some((generation, bytes)) = tx.get(named.page, named.slot).await? else {
            return Ok(false);
        };
        let mut entries = decode_entries(&bytes)?;
        // The last of equal ones: the first may be the one that stays.
        let Some(at) = entries.iter().rposition(|entry| *entry == named.entry) else {
            return Ok(false);
        };
        entries.remove(at);
        if entries.is_empty() {
            tx.delete(named.page, named.slot, generation).await?;
        } else {
            tx.put(named.page, named.slot, generation, encode_entries(&entries)).await?;
        }
        Ok(true)
    }

    /// A name was taken from a directory, or given to it.
    async fn note_entry(&self, tx: &S::Tx, named: &Named, by: i64) -> Result<(), FsError> {
        if named.directory == self.root.orphans {
            // Nobody counts those.
            return Ok(());
        }
        let subdirectory = i64::from(named.entry.kind == Kind::Directory);
        let now = self.store.now();
        self.touch_parent(tx, named.directory, by, by * subdirectory, now).await
    }

    async fn take_away(&self, named: &Named, first: Option<&Named>) -> Result<Done, FsError> {
        transact!(self, tx => {
            match first {
                Some(first) => {
                    // Both are to be there, in one slot perhaps.
                    let held = tx.get(first.page, first.slot).await?;
                    let entries = held.map(|(_, bytes)| decode_entries(&bytes)).transpose()?;
                    let entries = entries.unwrap_or_default();
                    let same = (first.page, first.slot) == (named.page, named.slot)
                        && first.entry == named.entry;
                    let count = entries.iter().filter(|entry| **entry == first.entry).count();
                    if count < if same { 2 } else { 1 } {
                        return Ok(Done::Passed);
                    }
                }
                None => match self.inode(&tx, named.entry.id).await {
                    Err(FsError::NotFound) => {}
                    Ok(_) | Err(FsError::Damaged(_)) => return Ok(Done::Passed),
                    Err(error) => return Err(error),
                },
            }
            if !self.take_entry(&tx, named).await? {
                return Ok(Done::Passed);
            }
            self.note_entry(&tx, named, -1).await?;
            mended("the name was removed")
        })
    }

    async fn remove_unreadable(&self, named: &Named) -> Result<Done, FsError> {
        let id = named.entry.id;
        transact!(self, tx => {
            if !unreadable::<S>(&tx, id).await? {
                return Ok(Done::Passed);
            }
            if !self.take_entry(&tx, named).await? {
                return Ok(Done::Passed);
            }
            self.note_entry(&tx, named, -1).await?;
            tx.delete(id.page, id.slot, id.generation).await?;
            mended("the name and its inode, which cannot be read, were removed")
        })
    }

    async fn mend_kind(&self, named: &Named) -> Result<Done, FsError> {
        transact!(self, tx => {
            let kind = self.inode(&tx, named.entry.id).await?.kind;
            let Some((generation, bytes)) = tx.get(named.page, named.slot).await? else {
                return Ok(Done::Passed);
            };
            let mut entries = decode_entries(&bytes)?;
            let there = entries.iter_mut().find(|entry| **entry == named.entry);
            let Some(there) = there.filter(|there| there.kind != kind) else {
                return Ok(Done::Passed);
            };
            there.kind = kind;
            tx.put(named.page, named.slot, generation, encode_entries(&entries)).await?;
            let directory = |kind| i64::from(kind == Kind::Directory);
            let by = directory(kind) - directory(named.entry.kind);
            self.touch_parent(&tx, named.directory, 0, by, self.store.now()).await?;
            mended("the name says now what its inode is")
        })
    }

    async fn place_again(&self, named: &Named) -> Result<Done, FsError> {
        let root = self.trie_of(named.directory).await?;
        transact!(self, tx => {
            if !self.take_entry(&tx, named).await? {
                return Ok(Done::Passed);
            }
            let hash = self.hash(&named.entry.name);
            let (there, _) = trie::find(&tx, root, hash, &named.entry.name).await?;
            if there.is_some() {
                // What it led to gets a name in `lost+found` if it has no other.
                self.note_entry(&tx, named, -1).await?;
                return mended("the name was removed: it is where it belongs already");
            }
            self.insert_entry(&tx, root, named.entry.clone()).await?;
            mended("the name was moved to where it is looked for")
        })
    }

    async fn remove_names(&self, page: PageNo, slot: Slot) -> Result<Done, FsError> {
        transact!(self, tx => {
            let Some((generation, bytes)) = tx.get(page, slot).await? else {
                return Ok(Done::Passed);
            };
            match decode_entries(&bytes) {
                Err(FsError::Damaged(_)) => {}
                Ok(_) => return Ok(Done::Passed),
                Err(error) => return Err(error),
            }
            tx.delete(page, slot, generation).await?;
            mended("names that cannot be read were removed")
        })
    }

    async fn mend_parent(
        &self,
        page: PageNo,
        found: Option<InodeId>,
        expected: Option<InodeId>,
    ) -> Result<Done, FsError> {
        transact!(self, tx => {
            let (generation, mut header) = trie::header(&tx, page).await?;
            if header.parent != found {
                return Ok(Done::Passed);
            }
            header.parent = expected;
            tx.put(page, HEADER_SLOT, generation, header.encode()).await?;
            mended("it says now where it was found")
        })
    }

    async fn count_names(&self, directory: InodeId) -> Result<Done, FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, directory).await?;
            let root = inode.trie()?;
            let listed = trie::list(self, &tx, root, &Position::default(), usize::MAX).await?;
            let names: BTreeSet<&Bytes> = listed.iter().map(|(_, _, entry)| &entry.name).collect();
            let below = listed.iter().filter(|(_, _, entry)| entry.kind == Kind::Directory).count();
            let counted = (2 + below as u64, names.len() as u64);
            let sized = directory != self.root.orphans && inode.size != counted.1;
            if inode.links == counted.0 && !sized {
                return Ok(Done::Passed);
            }
            inode.links = counted.0;
            if sized {
                inode.size = counted.1;
            }
            self.put_inode(&tx, directory, &inode).await?;
            mended("its names were counted anew")
        })
    }

    async fn mend_links(&self, id: InodeId, links: u64, change: i64) -> Result<Done, FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            if inode.ctime != change || inode.links == links || inode.kind == Kind::Directory {
                return Ok(Done::Passed);
            }
            inode.links = links;
            inode.ctime = self.store.now().max(change.saturating_add(1));
            self.put_inode(&tx, id, &inode).await?;
            mended("its links were counted anew")
        })
    }

    async fn mend_header(
        &self,
        directory: InodeId,
        page: PageNo,
        above: Option<(PageNo, usize)>,
        parent: InodeId,
    ) -> Result<Done, FsError> {
        let header = TrieHeader { parent: above.is_none().then_some(parent), children: None };
        let done: Result<Done, FsError> = transact!(self, tx => {
            if tx.slots(page).await?.is_some() {
                match tx.get(page, HEADER_SLOT).await? {
                    Some((generation, bytes)) => match TrieHeader::decode(&bytes) {
                        Ok(_) => return Ok(Done::Passed),
                        Err(error @ FsError::Format { .. }) => return Err(error),
                        Err(_) => tx.put(page, HEADER_SLOT, generation, header.encode()).await?,
                    },
                    None => {
                        tx.create(page, HEADER_SLOT, header.encode()).await?;
                    }
                }
                return mended("its page was given a new header");
            }
            let made = self.numbers.take(&self.store, 1).await?;
            tx.create_page(made, PageKind::Slotted).await?;
            tx.create(made, HEADER_SLOT, header.encode()).await?;
            match above {
                Some((above, child)) => {
                    let (generation, mut header) = trie::header(&tx, above).await?;
                    let children = header.children.as_mut();
                    let Some(there) = children.and_then(|children| children.get_mut(child)) else {
                        return Ok(Done::Passed);
                    };
                    if *there != page {
                        return Ok(Done::Passed);
                    }
                    *there = made;
                    tx.put(above, HEADER_SLOT, generation, header.encode()).await?;
                }
                None => {
                    let mut inode = self.inode(&tx, directory).await?;
                    if inode.content != Content::Trie(page) {
                        return Ok(Done::Passed);
                    }
                    inode.content = Content::Trie(made);
                    self.put_inode(&tx, directory, &inode).await?;
                }
            }
            mended("its page was made anew, without names")
        });
        lock(&self.tries).remove(&directory);
        done
    }

    async fn mend_zeros(&self, id: InodeId) -> Result<Done, FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            let there = tx.get(id.page, id.data_slot()).await?.is_some();
            if inode.content != Content::Inline || there {
                return Ok(Done::Passed);
            }
            inode.content = Content::Empty;
            self.put_changed(&tx, id, inode).await?;
            mended("its bytes, which are missing, are zeros now")
        })
    }

    async fn mend_hole(&self, id: InodeId, page: PageNo) -> Result<Done, FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            let there = tx.get_raw(page).await?.is_some();
            let Content::Pages(extents) = &mut inode.content else { return Ok(Done::Passed) };
            let held = (0..extents.high).any(|index| extents.page(index) == Some(page));
            if extents.sparse || there || !held {
                return Ok(Done::Passed);
            }
            extents.sparse = true;
            self.put_changed(&tx, id, inode).await?;
            mended("pages that are missing are holes now: zeros")
        })
    }

    async fn drop_xattrs(&self, id: InodeId) -> Result<Done, FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            match self.xattrs_of(&tx, &inode).await {
                Ok(_) => return Ok(Done::Passed),
                Err(FsError::Damaged(_) | FsError::Store(TxError::Damaged(_))) => {}
                Err(error) => return Err(error),
            }
            inode.xattrs = Xattrs::None;
            self.put_changed(&tx, id, inode).await?;
            mended("its attributes, which cannot be read, were removed")
        })
    }

    /// Puts an inode of which the content, or what belongs to it, is another now.
    async fn put_changed(&self, tx: &S::Tx, id: InodeId, mut inode: Inode) -> Result<(), FsError> {
        inode.change = inode.change.wrapping_add(1);
        inode.ctime = self.store.now().max(inode.ctime.saturating_add(1));
        self.put_inode(tx, id, &inode).await
    }

    /// The directory for what has no name; made when it is not there.
    async fn lost_found(&self) -> Result<InodeId, FsError> {
        let root = self.root.root;
        if let Some(attr) = self.lookup(root, LOST_FOUND).await?.attr {
            let directory = attr.inode.kind == Kind::Directory;
            return if directory { Ok(attr.id) } else { Err(FsError::NotDirectory) };
        }
        self.make_directory(root, LOST_FOUND).await
    }

    /// Whole directories come back as they were, but for what they are called, and to whom they belong.
    async fn adopt_names(&self, page: PageNo, parent: Option<InodeId>) -> Result<Done, FsError> {
        let home = self.lost_found().await?;
        let name = format!("#{}", page.0);
        let there = self.lookup(home, name.as_bytes()).await?.attr;
        let id = match there.map(|attr| (attr.id, attr.inode)) {
            // Of a repair that was interrupted.
            Some((id, inode)) if inode.kind == Kind::Directory && inode.size == 0 => id,
            Some(_) => return cannot("lost+found holds another directory of that name"),
            None => self.make_directory(home, name.as_bytes()).await?,
        };
        let done: Result<Done, FsError> = transact!(self, tx => {
            let (_, header) = trie::header(&tx, page).await?;
            let mut inode = self.inode(&tx, id).await?;
            let empty = inode.trie()?;
            if header.parent != parent || empty == page {
                return Ok(Done::Passed);
            }
            trie::delete_empty(&tx, empty).await?;
            trie::set_parent(&tx, page, home).await?;
            inode.content = Content::Trie(page);
            self.put_changed(&tx, id, inode).await?;
            Ok(Done::Mended(format!("it is the directory lost+found/{name} now")))
        });
        lock(&self.tries).remove(&id);
        done
    }

    async fn make_directory(&self, parent: InodeId, name: &[u8]) -> Result<InodeId, FsError> {
        let (kind, target) = (Kind::Directory, Bytes::new());
        let create = Create { kind, mode: 0o700, umask: 0, uid: 0, gid: 0, target, device: 0 };
        let made = self.create(parent, name, &create).await?;
        made.attr.map(|attr| attr.id).ok_or(FsError::NotFound)
    }

    async fn name_lost(&self, id: InodeId, change: Option<(Kind, i64)>) -> Result<Done, FsError> {
        let Some((kind, ctime)) = change else {
            return transact!(self, tx => {
                if !unreadable::<S>(&tx, id).await? {
                    return Ok(Done::Passed);
                }
                tx.delete(id.page, id.slot, id.generation).await?;
                mended("the inode, which cannot be read, was removed")
            });
        };
        let directory = self.lost_found().await?;
        let root = self.trie_of(directory).await?;
        let name = format!("#{id}");
        let entry = Entry { name: Bytes::from(name.clone()), id, kind };
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            if inode.ctime != ctime || inode.kind != kind {
                return Ok(Done::Passed);
            }
            self.insert_entry(&tx, root, entry.clone()).await?;
            if kind == Kind::Directory {
                trie::set_parent(&tx, inode.trie()?, directory).await?;
            } else {
                inode.links = 1;
            }
            inode.ctime = self.store.now().max(ctime.saturating_add(1));
            self.put_inode(&tx, id, &inode).await?;
            let below = i64::from(kind == Kind::Directory);
            self.touch_parent(&tx, directory, 1, below, self.store.now()).await?;
            Ok(Done::Mended(format!("it is lost+found/{name} now")))
        })
    }

    async fn copy_shared(&self, of: [InodeId; 2], page: PageNo) -> Result<Done, FsError> {
        let uses = |inode: &Inode| match &inode.content {
            Content::Pages(extents) => {
                (0..extents.firsts.len()).any(|run| extents.run_holds(run, page))
            }
            Content::Trie(root) => *root == page,
            _ => false,
        };
        let done: Result<Done, FsError> = transact!(self, tx => {
            for (id, other) in [(of[0], of[1]), (of[1], of[0])] {
                let mut inode = match self.inode(&tx, id).await {
                    Ok(inode) => inode,
                    // The page of inodes, or a name that was removed.
                    Err(FsError::NotFound) => continue,
                    Err(error) => return Err(error),
                };
                if inode.kind != Kind::File || !uses(&inode) {
                    continue;
                }
                if let Ok(other) = self.inode(&tx, other).await
                    && other.kind == Kind::File
                    && !uses(&other)
                {
                    return Ok(Done::Passed);
                }
                let (size, most) = (inode.size, COPIED_PAGES_MAX * self.page_size());
                if size > most {
                    return cannot("it is too large to be given pages of its own at once: copy it");
                }
                let length = usize::try_from(size).unwrap_or(usize::MAX);
                let bytes = self.read_content(&tx, id, &inode, 0, length).await?;
                inode.content = Content::Empty;
                inode.size = 0;
                self.write_content(&tx, id, &mut inode, &[(0, bytes)]).await?;
                self.put_changed(&tx, id, inode).await?;
                return mended("the file was given pages of its own");
            }
            cannot("neither of the two is a file")
        });
        done
    }
}
