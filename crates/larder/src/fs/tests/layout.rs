//! Where things are kept: inodes beside the names of their directory.

use super::super::record::Content;
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
