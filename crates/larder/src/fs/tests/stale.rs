//! What is known of an inode, and is not so any more. The place of an inode follows from its name, so
//! after the origin was restored from an older copy the name may be made anew as something else, with
//! the page, the slot and the generation of what is lost.

use super::*;

/// A name made on the branch that is lost, and something else made of it after the restoration: one
/// inode for whoever knew the first.
async fn made_anew(first: &Create, then: &Create) -> (Fs, InodeId) {
    let (_, lost) = fresh().await;
    let known = make(&lost, lost.root(), "x", first).await;
    let (_, fs) = fresh().await;
    assert_eq!(make(&fs, fs.root(), "x", then).await, known);
    make(&fs, fs.root(), "f", &file()).await;
    (fs, known)
}

/// By a node that commits what is closed.
async fn made_late(fs: &Fs, directory: InodeId) -> Result<(), FsError> {
    let task = commits(fs).await;
    let made = fs.create_late(directory, b"f", &file(), true).await;
    task.abort();
    made.map(|made| assert!(made.is_some(), "the node is well"))
}

async fn nothing_was_done(fs: &Fs) {
    assert_eq!(names(fs, fs.root()).await, ["f", "x"]);
    clean(fs).await;
}

/// Bug 154. A rename of a name that was not there, into what had been a directory on the lost branch,
/// was refused as "not a directory", which is true, and the simulator had been told that the missing
/// name comes first. The file layer looks at both directories before it looks for a name, as the way
/// to each is walked before it is asked. Whatever else is asked of what is no directory any more is
/// refused as that too, and does nothing.
#[tokio::test]
async fn what_is_no_directory_any_more_is_told_as_that() {
    let link = Create { target: "f".into(), ..kind(Kind::Symlink) };
    for now in [&link, &file(), &kind(Kind::Fifo)] {
        let (fs, known) = made_anew(&directory(), now).await;
        let (root, no) = (fs.root(), FsError::NotDirectory);
        let f = fs.lookup(root, b"f").await.expect("it works").attr.expect("it is there").id;
        for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
            for name in [&b"f"[..], b"none"] {
                assert_eq!(fs.rename((root, name), (known, b"f"), mode).await, Err(no.clone()));
                assert_eq!(fs.rename((known, name), (root, b"f"), mode).await, Err(no.clone()));
            }
        }
        assert_eq!(fs.lookup(known, b"f").await, Err(no.clone()));
        assert_eq!(fs.read_dir(known, &Position::default(), 1, true).await, Err(no.clone()));
        assert_eq!(fs.parent(known).await, Err(no.clone()));
        assert_eq!(fs.create(known, b"f", &directory()).await, Err(no.clone()));
        assert_eq!(fs.create_file(known, b"f", &file()).await.map(|_| ()), Err(no.clone()));
        assert_eq!(made_late(&fs, known).await, Err(no.clone()));
        assert_eq!(fs.link(f, known, b"f").await, Err(no.clone()));
        assert_eq!(fs.unlink(known, b"f").await, Err(no.clone()));
        assert_eq!(fs.rmdir(known, b"f").await, Err(no));
        nothing_was_done(&fs).await;
    }
}

/// The same of what was a file.
#[tokio::test]
async fn what_is_no_file_any_more_is_not_changed_as_one() {
    let link = Create { target: "f".into(), ..kind(Kind::Symlink) };
    for now in [&link, &directory(), &kind(Kind::Fifo)] {
        let (fs, known) = made_anew(&file(), now).await;
        let before = fs.getattr(known).await.expect("it is there");
        let refusal = |error: FsError| match now.kind {
            Kind::Directory => assert_eq!(error, FsError::IsDirectory),
            _ => assert!(matches!(error, FsError::Invalid(_)), "{error}"),
        };
        refusal(fs.open_file(known).await.map(|_| ()).expect_err("it is no file"));
        for size in [0, 1 << 20] {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            refusal(fs.setattr(known, set).await.expect_err("it is no file"));
        }
        if now.kind == Kind::Directory {
            let linked = fs.link(known, fs.root(), b"y").await;
            assert_eq!(linked, Err(FsError::IsDirectory));
        }
        assert_eq!(fs.getattr(known).await.expect("it is there"), before);
        nothing_was_done(&fs).await;
    }
}

/// A rename that walks up from where a name is to be looks at each directory on the way by itself. One
/// that was removed between two looks, after what was in it had been moved away, made the rename fail as
/// if a name were missing, though it could be done before that and after.
#[tokio::test]
async fn a_way_that_changes_under_a_rename_is_walked_again() {
    let (store, fs) = fresh().await;
    let root = fs.root();
    let p = make(&fs, root, "p", &directory()).await;
    let x = make(&fs, p, "x", &directory()).await;
    let s = make(&fs, root, "s", &directory()).await;
    // It has not met `p` yet, and has just read that `x` is in it.
    let other = open(&store).await;
    let tx = store.begin(Mode::Normal).await.expect("it works");
    let trie = other.trie_of(x).await.expect("it works");
    assert_eq!(trie::header(&tx, trie).await.expect("it works").1.parent, Some(p));
    fs.rename((p, b"x"), (root, b"x"), RenameMode::Replace).await.expect("it works");
    fs.rmdir(root, b"p").await.expect("it works");
    let above = other.is_above(&tx, s, p).await;
    assert!(matches!(above, Err(FsError::Store(TxError::Conflict(_)))), "{above:?}");
    other.rename((root, b"s"), (x, b"s"), RenameMode::Replace).await.expect("it works");
    clean(&fs).await;
}
