//! What a tree remembers, and leaves in the volume, when all that was made is gone.

use super::*;
use std::time::Duration;

/// A node that commits what is closed, while the task lives.
async fn committing(options: FsOptions) -> (MemoryStore, Fs, tokio::task::JoinHandle<()>) {
    let store = MemoryStore::new(PAGE_BYTES);
    let fs = FileSystem::open_or_format(store.clone(), options, [7; 16]);
    let fs = Arc::new(fs.await.expect("it works"));
    // The first inode page is made by a commit.
    make(&fs, fs.root(), "first", &directory()).await;
    let task = commits(&fs).await;
    (store, fs, task)
}

/// Makes a file without waiting, writes and closes it.
async fn make_late(fs: &Fs, directory: InodeId, name: &str) -> InodeId {
    let made = fs.create_late(directory, name.as_bytes(), &file(), true).await;
    let (handle, found) = made.expect("it works").expect("it can be made late");
    fs.write(&handle, 0, Bytes::from_static(b"some")).await.expect("it works");
    fs.flush(&handle).await.expect("it works");
    fs.release(&handle).await.expect("it works");
    found.attr.expect("it was made").id
}

/// A directory with a file, and a file beside it: made, looked at and removed, so many times.
async fn come_and_go(fs: &Fs, rounds: usize) {
    for _ in 0..rounds {
        let d = make(fs, fs.root(), "d", &directory()).await;
        let f = make_late(fs, d, "f").await;
        assert_eq!(read_file(fs, f).await, b"some");
        assert_eq!(names(fs, d).await, ["f"]);
        fs.unlink(d, b"f").await.expect("it works");
        fs.rmdir(fs.root(), b"d").await.expect("it works");
        make_late(fs, fs.root(), "g").await;
        fs.unlink(fs.root(), b"g").await.expect("it works");
    }
    fs.reap_waiting().await.expect("it works");
}

/// A mount's memory rose and rose though its tree of files was small: for every directory in which a
/// file had been made, and for every 24 files, an empty page of inodes stayed in the volume, and in
/// the cache. While a page is filled nobody removes it, and afterwards nobody looked at it. Of files
/// and directories that were gone something was remembered as well.
#[tokio::test]
async fn what_came_and_went_is_neither_kept_nor_remembered() {
    let options = FsOptions { write_limit: Duration::ZERO, ..FsOptions::default() };
    let (store, fs, _task) = committing(options).await;
    let left = || (store.pages(), KeptPart::ALL.map(|part| fs.kept(part).entries));
    come_and_go(&fs, 200).await;
    let before = left();
    assert!(before.0 < 40, "{} pages for an empty tree", before.0);
    come_and_go(&fs, 200).await;
    let after = left();
    // Up to 16 pages are made ahead.
    assert!(after.0 <= before.0 + 16, "{} pages, and {} before", after.0, before.0);
    for ((part, before), after) in KeptPart::ALL.into_iter().zip(before.1).zip(after.1) {
        assert!(after <= before + 16, "{part:?}: {after} entries, and {before} before");
    }
    clean(&fs).await;
}

/// Who found a page being filled may be at it still when it is left: a removal of the last inode there,
/// which then leaves the page, or a creation that has a slot of it. It is not looked at before such an
/// operation has ended.
#[tokio::test]
async fn a_page_is_not_looked_at_as_soon_as_it_is_left() {
    let (store, fs, _task) = committing(FsOptions::default()).await;
    come_and_go(&fs, 50).await;
    assert!(store.pages() > 50, "{} pages", store.pages());
    clean(&fs).await;
}

/// At the end of a mount what it filled, and found empty, stayed, and 16 pages that it had made ahead.
#[tokio::test]
async fn at_the_end_no_empty_page_is_left() {
    let (store, fs, _task) = committing(FsOptions::default()).await;
    let d = make(&fs, fs.root(), "kept", &directory()).await;
    for name in 0..30 {
        make_late(&fs, d, &name.to_string()).await;
    }
    come_and_go(&fs, 50).await;
    let before = store.pages();
    fs.free_empty_pages().await.expect("it works");
    assert!(store.pages() < 10, "{} pages of {before} are left", store.pages());
    assert_eq!(names(&fs, d).await.len(), 30);
    clean(&fs).await;
    // Whoever goes on all the same gets pages of its own.
    make_late(&fs, d, "more").await;
    assert_eq!(names(&fs, d).await.len(), 31);
    clean(&fs).await;
}
