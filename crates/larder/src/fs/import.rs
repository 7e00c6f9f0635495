//! `larder volume import`: a host's folder into a volume, in few and large transactions.
//!
//! Directories first, level by level; then files and links, many to a transaction and several
//! transactions at a time; then other names of files that have several, and the directories'
//! times. What is there already with the same size and time is skipped, so that an import that
//! was cut off is run again.

use super::host::{HostFile, host, next_data, xattrs_of};
use super::names::check_name;
use super::record::{Content, Entry, INODE_BYTES, Inode, InodeId, Kind, XattrList, Xattrs};
use super::tx::Tx;
use super::{Create, FileSystem, FsError, SetAttr, TxStore, transact, trie};
use bytes::Bytes;
use larder_core::id::{PageNo, Slot};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Entries in one transaction.
const BATCH_ENTRIES_MAX: usize = 256;
/// Bytes in one transaction.
const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Transactions under way.
const PIPELINE: usize = 4;
/// Bytes an object costs in a page beside its own.
const OBJECT_OVERHEAD: usize = 32;

/// What has been done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImportProgress {
    /// Directories made or found.
    pub directories: u64,
    /// Files, links and special files written.
    pub files: u64,
    /// Those that were there already.
    pub skipped: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Those found on the host so far.
    pub found: u64,
}

/// A directory of the host.
struct HostDirectory {
    path: PathBuf,
    meta: Metadata,
    xattrs: XattrList,
    parent: usize,
    depth: usize,
    /// All that are no directories.
    files: Vec<(PathBuf, Metadata)>,
}

/// A file or link to write.
struct Item {
    directory: InodeId,
    path: PathBuf,
    meta: Metadata,
    /// Read with the content.
    xattrs: XattrList,
}

/// Imports the content of `source` into `target`. `progress` is called now and then.
pub async fn import<S: TxStore>(
    fs: &Arc<FileSystem<S>>,
    source: &Path,
    target: InodeId,
    progress: &mut (dyn FnMut(&ImportProgress) + Send),
) -> Result<ImportProgress, FsError> {
    let source = source.to_path_buf();
    let tree = blocking(move || walk(source)).await?;
    let mut done = ImportProgress::default();
    for directory in &tree {
        done.found += directory.files.len() as u64;
    }
    progress(&done);
    let ids = make_directories(fs, &tree, target, &mut done, progress).await?;
    let (items, others) = split_links(&tree, &ids);
    let made = write_files(fs, items, &mut done, progress).await?;
    link_others(fs, others, &made, &mut done).await?;
    set_directories(fs, &tree, &ids).await?;
    progress(&done);
    Ok(done)
}

async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, FsError> + Send + 'static,
) -> Result<T, FsError> {
    tokio::task::spawn_blocking(f).await.expect("walking and reading do not panic")
}

/// All directories below `source`, parents first; the first is `source` itself.
fn walk(source: PathBuf) -> Result<Vec<HostDirectory>, FsError> {
    let meta = std::fs::metadata(&source).map_err(host(&source))?;
    let xattrs = xattrs_of(HostFile::At(&source))?;
    let mut tree =
        vec![HostDirectory { path: source, meta, xattrs, parent: 0, depth: 0, files: Vec::new() }];
    let mut at = 0;
    while at < tree.len() {
        let (path, depth) = (tree[at].path.clone(), tree[at].depth);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(host(&path))? {
            entries.push(entry.map_err(host(&path))?.path());
        }
        entries.sort();
        for path in entries {
            let meta = std::fs::symlink_metadata(&path).map_err(host(&path))?;
            if meta.is_dir() {
                tree.push(HostDirectory {
                    xattrs: xattrs_of(HostFile::At(&path))?,
                    path,
                    meta,
                    parent: at,
                    depth: depth + 1,
                    files: Vec::new(),
                });
            } else {
                tree[at].files.push((path, meta));
            }
        }
        at += 1;
    }
    Ok(tree)
}

fn name_of(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

fn times(meta: &Metadata) -> (i64, i64) {
    let time =
        |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    (time(meta.mtime(), meta.mtime_nsec()), time(meta.atime(), meta.atime_nsec()))
}

fn new_inode(meta: &Metadata, kind: Kind, now: i64) -> Inode {
    let (mtime, atime) = times(meta);
    Inode {
        kind,
        mode: (meta.mode() & 0o7777) as u16,
        uid: meta.uid(),
        gid: meta.gid(),
        links: 1,
        size: 0,
        mtime,
        ctime: now,
        atime,
        change: 0,
        content: match kind.is_device() {
            true => Content::Device(meta.rdev()),
            false => Content::Empty,
        },
        xattrs: Xattrs::None,
    }
}

async fn make_directories<S: TxStore>(
    fs: &Arc<FileSystem<S>>,
    tree: &[HostDirectory],
    target: InodeId,
    done: &mut ImportProgress,
    progress: &mut (dyn FnMut(&ImportProgress) + Send),
) -> Result<Vec<InodeId>, FsError> {
    let mut ids = vec![target];
    // Breadth first: a batch ends where a level does, so that parents are there.
    while ids.len() < tree.len() {
        let from = ids.len();
        let level: Vec<&HostDirectory> = tree[from..]
            .iter()
            .take(BATCH_ENTRIES_MAX)
            .take_while(|directory| directory.depth == tree[from].depth)
            .collect();
        let mut wanted = Vec::with_capacity(level.len());
        for directory in level {
            check_name(name_of(&directory.path))?;
            let create = Create {
                kind: Kind::Directory,
                mode: (directory.meta.mode() & 0o7777) as u16,
                umask: 0,
                uid: directory.meta.uid(),
                gid: directory.meta.gid(),
                target: Bytes::new(),
                device: 0,
            };
            let parent = ids[directory.parent];
            wanted.push((parent, fs.trie_of(parent).await?, name_of(&directory.path), create));
        }
        let made: Result<Vec<InodeId>, FsError> =
            transact!(fs, tx => fs.directories_in(&tx, &wanted).await);
        ids.extend(made?);
        done.directories = ids.len() as u64;
        progress(done);
    }
    done.directories = ids.len() as u64;
    Ok(ids)
}

/// A directory to be made: parent, its trie, name, and what to make.
type WantedDirectory<'a> = (InodeId, PageNo, &'a [u8], Create);

/// Files to write, and names of files that another item writes: (device, inode) of the host.
type Split = (Vec<Item>, Vec<(Item, (u64, u64))>);

fn split_links(tree: &[HostDirectory], ids: &[InodeId]) -> Split {
    let mut seen = std::collections::BTreeSet::new();
    let (mut items, mut others) = (Vec::new(), Vec::new());
    for (directory, id) in tree.iter().zip(ids) {
        for (path, meta) in &directory.files {
            let (path, meta, xattrs) = (path.clone(), meta.clone(), XattrList::default());
            let item = Item { directory: *id, path, meta: meta.clone(), xattrs };
            let key = (meta.dev(), meta.ino());
            if meta.nlink() > 1 && !seen.insert(key) {
                others.push((item, key));
            } else {
                items.push(item);
            }
        }
    }
    (items, others)
}

/// What one transaction did: files written, skipped, bytes, and the files that have other names.
#[derive(Default)]
struct Batch {
    files: u64,
    skipped: u64,
    bytes: u64,
    linked: Vec<((u64, u64), InodeId)>,
}

async fn write_files<S: TxStore>(
    fs: &Arc<FileSystem<S>>,
    items: Vec<Item>,
    done: &mut ImportProgress,
    progress: &mut (dyn FnMut(&ImportProgress) + Send),
) -> Result<BTreeMap<(u64, u64), InodeId>, FsError> {
    let mut running = JoinSet::new();
    let mut made = BTreeMap::new();
    let mut items = items.into_iter().peekable();
    loop {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(item) = items.peek() {
            let size = item.meta.len().min(BATCH_BYTES_MAX);
            let full = batch.len() >= BATCH_ENTRIES_MAX || bytes + size > BATCH_BYTES_MAX;
            if full && !batch.is_empty() {
                break;
            }
            bytes += size;
            batch.extend(items.next());
        }
        let last = batch.is_empty();
        if !last {
            let fs = fs.clone();
            running.spawn(async move { fs.import_batch(batch).await });
        }
        while running.len() >= PIPELINE || (last && !running.is_empty()) {
            let result = running.join_next().await.expect("not empty");
            let batch = result.expect("a batch does not panic")?;
            done.files += batch.files;
            done.skipped += batch.skipped;
            done.bytes += batch.bytes;
            made.extend(batch.linked);
            progress(done);
        }
        if last {
            return Ok(made);
        }
    }
}

async fn link_others<S: TxStore>(
    fs: &Arc<FileSystem<S>>,
    others: Vec<(Item, (u64, u64))>,
    made: &BTreeMap<(u64, u64), InodeId>,
    done: &mut ImportProgress,
) -> Result<(), FsError> {
    for (item, key) in others {
        let Some(id) = made.get(&key) else {
            continue;
        };
        let name = name_of(&item.path);
        match fs.link(*id, item.directory, name).await {
            Ok(_) => done.files += 1,
            Err(FsError::Exists) => {
                let found = fs.lookup(item.directory, name).await?.attr;
                if found.is_none_or(|found| found.id != *id) {
                    fs.unlink(item.directory, name).await?;
                    fs.link(*id, item.directory, name).await?;
                }
                done.skipped += 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sets what making names in them has changed.
async fn set_directories<S: TxStore>(
    fs: &Arc<FileSystem<S>>,
    tree: &[HostDirectory],
    ids: &[InodeId],
) -> Result<(), FsError> {
    let now = fs.store.now();
    let all: Vec<(&HostDirectory, InodeId)> =
        tree.iter().zip(ids.iter().copied()).skip(1).collect();
    for batch in all.chunks(BATCH_ENTRIES_MAX) {
        let set: Result<(), FsError> = transact!(fs, tx => {
            for (directory, id) in batch {
                let mut inode = fs.inode(&tx, *id).await?;
                let (mtime, atime) = times(&directory.meta);
                let wanted = Inode {
                    mode: (directory.meta.mode() & 0o7777) as u16,
                    uid: directory.meta.uid(),
                    gid: directory.meta.gid(),
                    mtime,
                    atime,
                    ..inode.clone()
                };
                let mut wanted = wanted;
                fs.bring_xattrs(&tx, *id, &mut wanted, &directory.xattrs).await?;
                if wanted != inode {
                    inode = Inode { ctime: now, ..wanted };
                    fs.put_inode(&tx, *id, &inode).await?;
                }
            }
            Ok(())
        });
        set?;
    }
    Ok(())
}

/// The inode page that a batch fills, and what is left of it.
struct Filling {
    page: PageNo,
    slot: u16,
    room: usize,
}

impl<S: TxStore> FileSystem<S> {
    async fn directories_in(
        &self,
        tx: &S::Tx,
        wanted: &[WantedDirectory<'_>],
    ) -> Result<Vec<InodeId>, FsError> {
        let mut filling = None;
        let mut ids = Vec::with_capacity(wanted.len());
        let now = self.store.now();
        for (parent, trie, name, create) in wanted {
            let (found, _) = trie::find(tx, *trie, self.hash(name), name).await?;
            match found {
                Some(entry) if entry.kind == Kind::Directory => {
                    ids.push(entry.id);
                    continue;
                }
                Some(_) => return Err(FsError::NotDirectory),
                None => {}
            }
            let root = self.numbers.take(&self.store, 1).await?;
            let inode = Inode {
                kind: Kind::Directory,
                mode: create.mode,
                uid: create.uid,
                gid: create.gid,
                links: 2,
                size: 0,
                mtime: now,
                ctime: now,
                atime: now,
                change: 0,
                content: Content::Trie(root),
                xattrs: Xattrs::None,
            };
            let id = self.place(tx, &mut filling, (*trie, name), &inode, None).await?;
            trie::create(tx, root, *parent).await?;
            let entry = Entry { name: Bytes::copy_from_slice(name), id, kind: Kind::Directory };
            self.insert_entry(tx, *trie, entry).await?;
            self.touch_parent(tx, *parent, 1, 1, now).await?;
            ids.push(id);
        }
        Ok(ids)
    }

    /// Creates an inode, with the bytes of a small file: beside its name, or in a page that this
    /// transaction makes and fills.
    async fn place(
        &self,
        tx: &S::Tx,
        filling: &mut Option<Filling>,
        (trie, name): (PageNo, &[u8]),
        inode: &Inode,
        data: Option<Bytes>,
    ) -> Result<InodeId, FsError> {
        let mut length = data.as_ref().map_or(0, Bytes::len);
        length += inode.encode().len() - INODE_BYTES;
        let beside = self.place_beside_name(tx, trie, self.hash(name), length).await?;
        let Some((page, slot)) = beside else {
            return self.fill(tx, filling, inode, data).await;
        };
        let generation = tx.create(page, slot, inode.encode()).await?;
        let id = InodeId { page, slot, generation };
        if let Some(data) = data {
            tx.create(page, id.data_slot(), data).await?;
        }
        Ok(id)
    }

    async fn fill(
        &self,
        tx: &S::Tx,
        filling: &mut Option<Filling>,
        inode: &Inode,
        data: Option<Bytes>,
    ) -> Result<InodeId, FsError> {
        let record = inode.encode();
        let need = record.len()
            + OBJECT_OVERHEAD
            + data.as_ref().map_or(0, |data| data.len() + OBJECT_OVERHEAD);
        if filling.as_ref().is_none_or(|filling| filling.room < need) {
            let page = self.new_inode_page(tx).await?;
            *filling = Some(Filling {
                page,
                slot: 0,
                room: (self.store.page_bytes() as usize) - 2 * OBJECT_OVERHEAD,
            });
        }
        let filling = filling.as_mut().expect("just filled in");
        filling.slot += 2;
        filling.room = filling.room.saturating_sub(need);
        let slot = Slot(filling.slot);
        let generation = tx.create(filling.page, slot, record).await?;
        let id = InodeId { page: filling.page, slot, generation };
        if let Some(data) = data {
            tx.create(id.page, id.data_slot(), data).await?;
        }
        Ok(id)
    }

    async fn import_batch(&self, items: Vec<Item>) -> Result<Batch, FsError> {
        let (items, contents) = blocking(move || read_contents(items)).await?;
        let mut tries = Vec::with_capacity(items.len());
        for item in &items {
            check_name(name_of(&item.path))?;
            tries.push(self.trie_of(item.directory).await?);
        }
        let now = self.store.now();
        let done: Result<(Batch, Vec<(usize, InodeId)>), FsError> = transact!(self, tx => {
            let mut batch = Batch::default();
            let mut filling = None;
            let mut large = Vec::new();
            let mut counts: BTreeMap<InodeId, i64> = BTreeMap::new();
            for (i, item) in items.iter().enumerate() {
                let name = name_of(&item.path);
                let (found, _) = trie::find(&tx, tries[i], self.hash(name), name).await?;
                let id = match found {
                    Some(entry) if self.is_same(&tx, &entry, item).await? => {
                        self.bring_attributes(&tx, entry.id, item, now).await?;
                        batch.skipped += 1;
                        entry.id
                    }
                    Some(entry) => {
                        large.push((i, entry.id));
                        entry.id
                    }
                    None => {
                        let content = contents[i].clone();
                        let at = (tries[i], item);
                        let id = self.import_file(&tx, &mut filling, at, content, now).await?;
                        let kind = kind_of(&item.meta);
                        let entry = Entry { name: Bytes::copy_from_slice(name), id, kind };
                        self.insert_entry(&tx, tries[i], entry).await?;
                        *counts.entry(item.directory).or_default() += 1;
                        batch.files += 1;
                        batch.bytes += item.meta.len();
                        if contents[i].is_none() {
                            large.push((i, id));
                        }
                        id
                    }
                };
                if item.meta.nlink() > 1 {
                    batch.linked.push(((item.meta.dev(), item.meta.ino()), id));
                }
            }
            for (directory, names) in counts {
                self.touch_parent(&tx, directory, names, 0, now).await?;
            }
            Ok((batch, large))
        });
        let (mut batch, large) = done?;
        for (i, id) in large {
            batch.files += u64::from(contents[i].is_some());
            match &contents[i] {
                Some(target) if !items[i].meta.is_file() => {
                    self.replace_item(&items[i], target.clone()).await?;
                }
                _ => self.import_over(id, &items[i]).await?,
            }
        }
        Ok(batch)
    }

    async fn is_same(&self, tx: &S::Tx, entry: &Entry, item: &Item) -> Result<bool, FsError> {
        if entry.kind == Kind::Directory {
            return Err(FsError::IsDirectory);
        }
        let inode = self.inode(tx, entry.id).await?;
        if inode.kind != kind_of(&item.meta) {
            return Err(FsError::Exists);
        }
        let wanted = new_inode(&item.meta, inode.kind, inode.ctime).content;
        let same_content = inode.kind.is_special() && inode.content == wanted
            || !inode.kind.is_special() && inode.size == item.meta.len();
        Ok(same_content && inode.mtime == times(&item.meta).0)
    }

    async fn import_file(
        &self,
        tx: &S::Tx,
        filling: &mut Option<Filling>,
        (trie, item): (PageNo, &Item),
        content: Option<Bytes>,
        now: i64,
    ) -> Result<InodeId, FsError> {
        let at = (trie, name_of(&item.path));
        let mut inode = new_inode(&item.meta, kind_of(&item.meta), now);
        inode.xattrs = self.new_xattrs(tx, item.xattrs.encode()).await?;
        let content = content.unwrap_or_default();
        if content.len() as u64 <= self.inline_bytes_max() {
            inode.size = content.len() as u64;
            let data = (!content.is_empty()).then_some(content);
            if data.is_some() {
                inode.content = Content::Inline;
            }
            return self.place(tx, filling, at, &inode, data).await;
        }
        let id = self.place(tx, filling, at, &inode, None).await?;
        self.write_content(tx, id, &mut inode, &[(0, content)]).await?;
        self.put_inode(tx, id, &inode).await?;
        Ok(id)
    }

    /// Makes a link or special file in another's place: its content is not written over.
    async fn replace_item(&self, item: &Item, target: Bytes) -> Result<(), FsError> {
        let name = name_of(&item.path);
        self.unlink(item.directory, name).await?;
        let create = Create {
            kind: kind_of(&item.meta),
            mode: (item.meta.mode() & 0o7777) as u16,
            umask: 0,
            uid: item.meta.uid(),
            gid: item.meta.gid(),
            target,
            device: item.meta.rdev(),
        };
        let made = self.create(item.directory, name, &create).await?;
        let set = SetAttr { mtime: Some(times(&item.meta).0), ..SetAttr::default() };
        let id = made.attr.expect("just created").id;
        self.setattr(id, set).await?;
        let now = self.store.now();
        transact!(self, tx => self.bring_attributes(&tx, id, item, now).await)
    }

    /// Gives what is there already the owner, mode and extended attributes of the host's.
    async fn bring_attributes(
        &self,
        tx: &S::Tx,
        id: InodeId,
        item: &Item,
        now: i64,
    ) -> Result<(), FsError> {
        let inode = self.inode(tx, id).await?;
        let mut wanted = Inode {
            mode: (item.meta.mode() & 0o7777) as u16,
            uid: item.meta.uid(),
            gid: item.meta.gid(),
            ..inode.clone()
        };
        self.bring_xattrs(tx, id, &mut wanted, &item.xattrs).await?;
        if wanted != inode {
            self.put_inode(tx, id, &Inode { ctime: now, ..wanted }).await?;
        }
        Ok(())
    }

    async fn bring_xattrs(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        wanted: &XattrList,
    ) -> Result<(), FsError> {
        if self.xattrs_of(tx, inode).await? != *wanted {
            self.put_xattrs(tx, id, inode, wanted).await?;
        }
        Ok(())
    }

    /// Writes a file over what is there, in as many transactions as it takes. Its time is set
    /// last: an import that is cut off here will not skip it.
    async fn import_over(&self, id: InodeId, item: &Item) -> Result<(), FsError> {
        let (handle, _) = self.open_file(id).await?;
        let (mtime, atime) = times(&item.meta);
        let set = SetAttr { size: Some(0), mtime: Some(0), ..SetAttr::default() };
        self.setattr(id, set).await?;
        let mut offset = 0;
        loop {
            let path = item.path.clone();
            let (at, bytes) = blocking(move || read_part(&path, offset)).await?;
            offset = at + bytes.len() as u64;
            if bytes.is_empty() {
                break;
            }
            self.write(&handle, at, bytes).await?;
        }
        self.release(&handle).await?;
        // It may end in a hole.
        let size = Some(offset);
        let set = SetAttr { size, atime: Some(atime), mtime: Some(mtime), ..SetAttr::default() };
        self.setattr(id, set).await?;
        let now = self.store.now();
        transact!(self, tx => self.bring_attributes(&tx, id, item, now).await)
    }
}

fn kind_of(meta: &Metadata) -> Kind {
    let of = meta.file_type();
    match () {
        () if of.is_symlink() => Kind::Symlink,
        () if of.is_fifo() => Kind::Fifo,
        () if of.is_socket() => Kind::Socket,
        () if of.is_char_device() => Kind::CharDevice,
        () if of.is_block_device() => Kind::BlockDevice,
        () => Kind::File,
    }
}

/// Contents of items; none for those too large for a batch.
fn read_contents(mut items: Vec<Item>) -> Result<(Vec<Item>, Vec<Option<Bytes>>), FsError> {
    let mut contents = Vec::with_capacity(items.len());
    for item in &mut items {
        let content = if item.meta.is_file() {
            read_file(item)?
        } else {
            item.xattrs = xattrs_of(HostFile::At(&item.path))?;
            match item.meta.is_symlink() {
                true => {
                    let target = std::fs::read_link(&item.path).map_err(host(&item.path))?;
                    Some(Bytes::from(target.into_os_string().into_vec()))
                }
                // Reading a pipe would wait for a writer.
                false => Some(Bytes::new()),
            }
        };
        // A file that grew while we looked is written like a large one.
        contents.push(content.filter(|content| content.len() as u64 <= BATCH_BYTES_MAX));
    }
    Ok((items, contents))
}

/// A file's content, and its attributes with it; none if it is large or has holes.
fn read_file(item: &mut Item) -> Result<Option<Bytes>, FsError> {
    // What is something else by now is not followed, nor waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("flags of `open`");
    let file = File::options().read(true).custom_flags(flags).open(&item.path);
    let mut file = file.map_err(host(&item.path))?;
    item.xattrs = xattrs_of(HostFile::Open(&file, &item.path))?;
    if item.meta.len() > BATCH_BYTES_MAX || has_holes(&file, item)? {
        return Ok(None);
    }
    // With one byte more the end is seen by the read that comes to it.
    let mut bytes = vec![0; item.meta.len() as usize + 1];
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(host(&item.path)(error)),
        }
    }
    if length == bytes.len() {
        // It grew.
        file.read_to_end(&mut bytes).map_err(host(&item.path))?;
        length = bytes.len();
    }
    bytes.truncate(length);
    Ok(Some(bytes.into()))
}

/// Whether it has holes on the host. Fewer blocks than bytes may also come of compression.
fn has_holes(file: &File, item: &Item) -> Result<bool, FsError> {
    let meta = &item.meta;
    let taken = meta.blocks().saturating_mul(512).saturating_add(u64::from(super::PAGE_BYTES));
    if taken >= meta.len() {
        return Ok(false);
    }
    let data = next_data(file, 0).map_err(host(&item.path))?;
    // What looks for holes moves where reading goes on.
    (&*file).seek(SeekFrom::Start(0)).map_err(host(&item.path))?;
    Ok(data.is_none_or(|data| data.start > 0 || data.end < meta.len()))
}

/// The next bytes of a file and where they are; none at its end, where it may have a hole.
fn read_part(path: &Path, offset: u64) -> Result<(u64, Bytes), FsError> {
    let mut file = File::open(path).map_err(host(path))?;
    let Some(data) = next_data(&file, offset).map_err(host(path))? else {
        return Ok((file.metadata().map_err(host(path))?.len(), Bytes::new()));
    };
    file.seek(SeekFrom::Start(data.start)).map_err(host(path))?;
    let mut bytes = Vec::new();
    let most = (data.end - data.start).min(BATCH_BYTES_MAX);
    file.take(most).read_to_end(&mut bytes).map_err(host(path))?;
    Ok((data.start, bytes.into()))
}
