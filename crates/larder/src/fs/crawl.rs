//! Asking ahead of a walker: looks into the directories that [`Walk`] foretells, many at a time,
//! and asks for their files. Nobody waits for it, and what it brings is only in the cache.

use super::operations::PREFETCH_PAGES_MAX;
use super::record::{Content, Entry, Extents, Inode, Kind, Root, decode_entries};
use super::trie::{self, is_name};
use super::tx::{Mode, Tx, TxError, TxStore};
use super::walk::{File, Found, Walk};
use super::{FsError, lock};
use crate::clock::{instant, spawn};
use larder_core::id::PageNo;
use larder_core::page::HEADER_BYTES;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Directories looked into at once by one task, and such tasks.
const DIRECTORIES_AT_ONCE: usize = 64;
const TASKS_MAX: usize = 4;
/// How much of one directory is looked at; the rest is left to its reader.
struct Most {
    name_pages: usize,
    entries: usize,
    inode_pages: usize,
}

/// Of the one where the walker stands.
const HERE: Most = Most { name_pages: 256, entries: 1 << 14, inode_pages: 1 << 10 };
/// Of one that is only ahead: a first look asks for 16 of them, and may be the last.
const AHEAD: Most = Most { name_pages: 8, entries: 256, inode_pages: 16 };
/// So much of a file is asked for before it is read; from there its reader asks ahead itself.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// See the module's documentation. Cloning shares it.
pub(super) struct Crawler<S: TxStore> {
    store: S,
    root: Arc<Root>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    walk: Walk,
    tasks: usize,
}

impl<S: TxStore> Clone for Crawler<S> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), root: self.root.clone(), state: self.state.clone() }
    }
}

impl<S: TxStore> Crawler<S> {
    pub(super) fn new(store: S, root: Root) -> Self {
        Self { store, root: Arc::new(root), state: Arc::default() }
    }

    /// Somebody begins to list the directory with this first page.
    pub(super) fn look(&self, page: PageNo) {
        lock(&self.state).walk.look(page, instant());
        self.go_on();
    }

    /// Somebody reads a file from its beginning.
    pub(super) fn read(&self, inode: &Inode) {
        let first = match &inode.content {
            Content::Pages(extents) => extents.firsts.first().copied(),
            Content::Empty | Content::Inline | Content::Trie(_) | Content::Device(_) => None,
        };
        if lock(&self.state).walk.read(first) {
            self.go_on();
        }
    }

    /// A directory is gone.
    pub(super) fn forget(&self, page: PageNo) {
        lock(&self.state).walk.forget(page);
    }

    /// Directories remembered, and files of theirs that were not asked for yet.
    pub(super) fn known(&self) -> (usize, usize) {
        lock(&self.state).walk.known()
    }

    /// Asks for what the walk wants now.
    fn go_on(&self) {
        let (files, batches) = {
            let mut state = lock(&self.state);
            let mut batches = Vec::new();
            while state.tasks < TASKS_MAX {
                let batch = state.walk.next_directories(DIRECTORIES_AT_ONCE);
                if batch.is_empty() {
                    break;
                }
                state.tasks += 1;
                batches.push(batch);
            }
            (state.walk.next_files(), batches)
        };
        self.ask(&files);
        for batch in batches {
            let task = Task { crawler: self.clone(), ended: false };
            if spawn(task.run(batch.clone())).is_err() {
                self.failed(&batch);
            }
        }
    }

    fn failed(&self, batch: &[PageNo]) {
        let mut state = lock(&self.state);
        batch.iter().for_each(|page| state.walk.found(*page, None));
    }

    fn ask(&self, pages: &[PageNo]) {
        for pages in pages.chunks(PREFETCH_PAGES_MAX) {
            self.store.prefetch(pages);
        }
    }
}

/// One of the tasks; it counts for as long as it lives.
struct Task<S: TxStore> {
    crawler: Crawler<S>,
    ended: bool,
}

impl<S: TxStore> Drop for Task<S> {
    fn drop(&mut self) {
        if !self.ended {
            lock(&self.crawler.state).tasks -= 1;
        }
    }
}

impl<S: TxStore> Task<S> {
    async fn run(mut self, mut batch: Vec<PageNo>) {
        while !batch.is_empty() {
            if self.look_into_all(&batch).await.is_err() {
                // Nothing can be had at present: the rest is left to the next look.
                return self.crawler.failed(&batch);
            }
            self.crawler.go_on();
            batch = self.next();
        }
    }

    /// The next directories; none: the task ends.
    fn next(&mut self) -> Vec<PageNo> {
        let mut state = lock(&self.crawler.state);
        let batch = state.walk.next_directories(DIRECTORIES_AT_ONCE);
        if batch.is_empty() {
            state.tasks -= 1;
            self.ended = true;
        }
        batch
    }

    /// In two requests: the first pages of all, then what is not in them. An error: the store
    /// cannot serve now.
    async fn look_into_all(&self, batch: &[PageNo]) -> Result<(), TxError> {
        self.fetch(batch).await?;
        let (mut named, mut elsewhere) = (Vec::new(), BTreeSet::new());
        for page in batch {
            let here = lock(&self.crawler.state).walk.is_at(*page);
            match self.names(*page, if here { &HERE } else { &AHEAD }).await {
                Ok((entries, more)) => {
                    elsewhere.extend(entries.iter().map(|entry| entry.id.page));
                    named.push((*page, entries, more));
                }
                Err(_) => lock(&self.crawler.state).walk.found(*page, None),
            }
        }
        self.fetch(&elsewhere.into_iter().collect::<Vec<_>>()).await?;
        for (page, entries, more) in named {
            let found = self.look_into(entries).await.ok();
            let found = found.map(|found| Found { more, ..found });
            lock(&self.crawler.state).walk.found(page, found);
        }
        Ok(())
    }

    /// Brings pages at hand: asked for as what can wait, and then waited for.
    async fn fetch(&self, pages: &[PageNo]) -> Result<(), TxError> {
        let store = &self.crawler.store;
        for pages in pages.chunks(PREFETCH_PAGES_MAX) {
            store.prefetch(pages);
            store.begin(Mode::Normal).await?.fetch(pages).await?;
        }
        Ok(())
    }

    /// The first names in a directory, as listed, and whether there are more. A transaction of its
    /// own: a change in one directory must not undo the look into the others.
    async fn names(&self, root: PageNo, most: &Most) -> Result<(Vec<Entry>, bool), FsError> {
        let tx = self.crawler.store.begin(Mode::Normal).await?;
        let mut pages = vec![root];
        let mut entries = Vec::new();
        let (mut at, mut more) = (0, false);
        while at < pages.len() {
            if entries.len() >= most.entries {
                more = true;
                break;
            }
            let page = pages[at];
            at += 1;
            if let Some(children) = trie::header(&tx, page).await?.1.children {
                let room = most.name_pages.saturating_sub(pages.len()).min(children.len());
                more |= room < children.len();
                self.fetch(&children[..room]).await?;
                pages.extend(&children[..room]);
                continue;
            }
            for (slot, _, bytes) in tx.get_all(page).await?.unwrap_or_default() {
                if is_name(slot) {
                    entries.extend(decode_entries(&bytes)?);
                }
            }
        }
        entries
            .sort_by_cached_key(|entry| (self.crawler.root.hash(&entry.name), entry.name.clone()));
        more |= entries.len() > most.entries;
        entries.truncate(most.entries);
        let mut inode_pages = BTreeSet::new();
        let beyond = entries.iter().position(|entry| {
            inode_pages.insert(entry.id.page);
            inode_pages.len() > most.inode_pages
        });
        if let Some(beyond) = beyond {
            entries.truncate(beyond);
        }
        Ok((entries, more || beyond.is_some()))
    }

    async fn look_into(&self, entries: Vec<Entry>) -> Result<Found, FsError> {
        let page_size = u64::from(self.crawler.store.page_bytes()) - HEADER_BYTES as u64;
        let tx = self.crawler.store.begin(Mode::Normal).await?;
        let mut found = Found::default();
        for entry in entries {
            let id = entry.id;
            let Some((generation, bytes)) = tx.get(id.page, id.slot).await? else { continue };
            if generation != id.generation {
                continue;
            }
            match (entry.kind, Inode::decode(&bytes)?.content) {
                (Kind::Directory, Content::Trie(root)) => {
                    found.directories.push((entry.name, root));
                }
                (Kind::File, Content::Pages(extents)) => {
                    let high = extents.high.min(FILE_BYTES_MAX.div_ceil(page_size));
                    let extents = Extents { high, ..extents };
                    found.files.push(File { extents, bytes: high * page_size });
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryStore;
    use super::super::{Create, FileSystem, FsOptions, PAGE_BYTES};
    use super::*;

    /// Beside a directory that somebody listed were sixteen large ones: all their names and inodes
    /// were asked for, hundreds of megabytes over the line for one `ls`.
    #[tokio::test]
    async fn little_is_asked_for_of_a_directory_that_is_only_ahead() {
        let store = MemoryStore::new(PAGE_BYTES);
        let fs = FileSystem::open_or_format(store.clone(), FsOptions::default(), [7; 16]);
        let fs = fs.await.expect("it works");
        let target = bytes::Bytes::new();
        let create =
            Create { kind: Kind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, target, device: 0 };
        for i in 0..1000 {
            fs.create(fs.root(), format!("f{i}").as_bytes(), &create).await.expect("it works");
        }
        let page = fs.trie_of(fs.root()).await.expect("it works");
        let crawler = Crawler::new(store, fs.root.clone());
        let task = Task { crawler, ended: true };
        let (some, more) = task.names(page, &AHEAD).await.expect("it works");
        let inode_pages: BTreeSet<PageNo> = some.iter().map(|entry| entry.id.page).collect();
        assert!(more && !some.is_empty() && some.len() <= AHEAD.entries);
        assert!(inode_pages.len() <= AHEAD.inode_pages);
        let (all, more) = task.names(page, &HERE).await.expect("it works");
        assert_eq!((all.len(), more), (1000, false));
        assert_eq!(all[..some.len()], some[..], "the first as listed");
    }
}
