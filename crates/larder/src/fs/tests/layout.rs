//! Where things are kept: inodes beside the names of their directory.

use super::super::memory::MemoryTx;
use super::super::record::{Content, Entry};
use super::super::trie;
use super::*;

async fn trie(fs: &Fs, directory: InodeId) -> PageNo {
    fs.getattr(directory).await.expect("it works").inode.trie().expect("a directory")
}

/// A first look at a directory took two round trips: one for the names, one for the inodes.
#[tokio::test]
async fn a_small_directory_is_one_page() {
    let (store, fs) = fresh().await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let page = trie(&fs, d).await;
    let before = store.pages();
    for i in 0..8 {
        let id = make(&fs, d, &format!("f{i}"), &file()).await;
        write_file(&fs, id, 0, &pattern(1000, i)).await;
        let inode = fs.getattr(id).await.expect("it works").inode;
        assert_eq!((id.page, inode.content), (page, Content::Inline));
    }
    assert_eq!(make(&fs, d, "e", &directory()).await.page, page);
    assert_eq!(store.pages(), before + 1, "the page of the directory in it");
    // What names need is left for them: further inodes and bytes go elsewhere.
    for i in 8..200 {
        let id = make(&fs, d, &format!("f{i}"), &file()).await;
        write_file(&fs, id, 0, &pattern(2000, i)).await;
    }
    for i in 0..200 {
        let name = format!("f{i}");
        let found = fs.lookup(d, name.as_bytes()).await.expect("it works");
        assert_eq!(found.place.0, page, "200 names need no second page");
        let id = found.attr.expect("it was made").id;
        assert_eq!(read_file(&fs, id).await, pattern(if i < 8 { 1000 } else { 2000 }, i));
    }
    clean(&fs).await;
}

/// Inodes stay where they are when their names go elsewhere: to the buckets below, to another
/// directory; and the page of a removed directory goes with the last of them.
#[tokio::test]
async fn inodes_outlive_the_directory_they_lie_in() {
    let (store, fs) = fresh().await;
    let pages = store.pages();
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let page = trie(&fs, d).await;
    let first = make(&fs, d, "first", &file()).await;
    write_file(&fs, first, 0, b"kept").await;
    for i in 0..900 {
        make(&fs, d, &format!("a-name-that-fills-the-bucket-{i}"), &file()).await;
    }
    let found = fs.lookup(d, b"first").await.expect("it works");
    assert_ne!(found.place.0, page, "the bucket was split");
    assert_eq!(found.attr.expect("it is there").id, first);
    clean(&fs).await;
    for i in 0..900 {
        fs.unlink(d, format!("a-name-that-fills-the-bucket-{i}").as_bytes())
            .await
            .expect("it works");
    }
    assert_eq!(fs.rmdir(fs.root(), b"d").await, Err(FsError::NotEmpty));
    let to = (fs.root(), &b"moved"[..]);
    fs.rename((d, b"first"), to, RenameMode::NoReplace).await.expect("it works");
    fs.rmdir(fs.root(), b"d").await.expect("it works");
    assert_eq!(fs.lookup(d, b"x").await, Err(FsError::NotFound));
    assert_eq!(fs.create(d, b"x", &file()).await, Err(FsError::NotFound));
    assert_eq!(read_file(&fs, first).await, b"kept");
    clean(&fs).await;
    fs.unlink(fs.root(), b"moved").await.expect("it works");
    assert_eq!(fs.getattr(first).await, Err(FsError::NotFound));
    // What is left is being filled.
    assert!(store.pages() < pages + 20, "{} more pages", store.pages() - pages);
    clean(&fs).await;
}

/// Two names whose inodes would have one place.
#[tokio::test]
async fn places_that_are_taken() {
    let store = MemoryStore::new(512 << 10);
    let fs = open(&store).await;
    let page = trie(&fs, fs.root()).await;
    let mut seen = std::collections::BTreeMap::new();
    for i in 0..600 {
        let id = make(&fs, fs.root(), &format!("n{i}"), &file()).await;
        assert_eq!(seen.insert((id.page, id.slot), i), None);
    }
    let elsewhere = seen.keys().filter(|(at, _)| *at != page).count();
    assert!((1..100).contains(&elsewhere), "{elsewhere} of 600 met");
    clean(&fs).await;
}

async fn chmod(fs: &Fs, id: InodeId, mode: u16) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    fs.setattr(id, set).await.expect("it works");
}

/// Files of a directory were updated all the time, some of them in its first page. The directory
/// became full, and whoever made the next name read all of that page to split it: every update
/// between that and its commit was a conflict, and beside forty a second over a long line no name
/// could be made any more.
#[tokio::test]
async fn a_directory_is_split_beside_updates_of_its_files() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let page = trie(&fs, d).await;
    let first = make(&fs, d, "first", &file()).await;
    assert_eq!(first.page, page);
    let (mut tx, mut made) = (split_by(&store, &fs, page, "0", first).await, 0);
    while tx.is_none() {
        make(&fs, d, &long(made), &file()).await;
        made += 1;
        tx = split_by(&store, &fs, page, &made.to_string(), first).await;
    }
    chmod(&other, first, 0o600).await;
    assert_eq!(tx.expect("it splits").commit().await, Ok(()));
    assert_eq!(names(&other, d).await.len(), made + 2);
    // But a name that goes meanwhile must not be taken along.
    let d = make(&fs, fs.root(), "e", &directory()).await;
    let page = trie(&fs, d).await;
    let mut late = None;
    for i in 0..=made {
        make(&fs, d, &long(i), &file()).await;
        late = split_by(&store, &fs, page, "again", first).await;
        if late.is_some() {
            break;
        }
    }
    other.unlink(d, long(0).as_bytes()).await.expect("it works");
    assert!(matches!(late.expect("it splits").commit().await, Err(TxError::Conflict(_))));
}

fn long(i: usize) -> String {
    format!("a-name-that-fills-the-bucket-{i}")
}

/// Adds a name without a commit, if that splits the directory's first page.
async fn split_by(
    store: &MemoryStore,
    fs: &Fs,
    page: PageNo,
    name: &str,
    id: InodeId,
) -> Option<MemoryTx> {
    let tx = store.begin(Mode::Normal).await.expect("it works");
    let name = format!("a-name-that-fills-the-bucket-as-well-{name}").into();
    let entry = Entry { name, id, kind: Kind::File };
    fs.insert_entry(&tx, page, entry).await.expect("it works");
    let split = trie::header(&tx, page).await.expect("it works").1.children.is_some();
    split.then_some(tx)
}

/// A removed directory whose files had been moved away: they are still in its first page, and
/// their updates kept its removal from ever being done.
#[tokio::test]
async fn a_directory_is_removed_beside_updates_of_files_moved_away() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let page = trie(&fs, d).await;
    let moved = make(&fs, d, "moved", &file()).await;
    write_file(&fs, moved, 0, b"old").await;
    let (from, to) = ((d, &b"moved"[..]), (fs.root(), &b"moved"[..]));
    fs.rename(from, to, RenameMode::NoReplace).await.expect("it works");
    let removing = async || {
        let tx = store.begin(Mode::Normal).await.expect("it works");
        fs.remove_directory(&tx, d).await.expect("it is empty");
        tx
    };
    // A name made meanwhile is a conflict.
    let tx = removing().await;
    make(&other, d, "made", &file()).await;
    assert!(matches!(tx.commit().await, Err(TxError::Conflict(_))));
    other.unlink(d, b"made").await.expect("it works");
    let tx = removing().await;
    chmod(&other, moved, 0o600).await;
    write_file(&other, moved, 0, b"new").await;
    assert_eq!(tx.commit().await, Ok(()));
    assert_eq!(read_file(&fs, moved).await, b"new");
    let tx = store.begin(Mode::Normal).await.expect("it works");
    assert_eq!(trie::header(&tx, page).await.map(|_| ()), Err(FsError::NotFound));
}
