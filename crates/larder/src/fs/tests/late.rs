//! Files made and closed without waiting: what is seen of them here and elsewhere, what becomes of
//! them when somebody else was faster, when nobody answers, and in which order they come.

use super::super::memory::Stall;
use super::*;
use std::time::Duration;

/// A node that commits what is closed, while the task lives.
async fn committing() -> (MemoryStore, Fs, tokio::task::JoinHandle<()>) {
    let (store, fs) = fresh().await;
    // The first inode page is made by a commit.
    make(&fs, fs.root(), "first", &directory()).await;
    let task = commits(&fs).await;
    (store, fs, task)
}

async fn late(fs: &Fs, name: &str, cuts: bool) -> (Handle, InodeId) {
    let made = fs.create_late(fs.root(), name.as_bytes(), &file(), cuts).await;
    let (handle, found) = made.expect("it works").expect("it can be made late");
    (handle, found.attr.expect("it was made").id)
}

async fn put(fs: &Fs, handle: &Handle, bytes: &[u8]) {
    fs.write(handle, 0, Bytes::copy_from_slice(bytes)).await.expect("it works");
}

async fn id_of(fs: &Fs, name: &str) -> Option<InodeId> {
    let found = fs.lookup(fs.root(), name.as_bytes()).await.expect("it works");
    found.attr.map(|attr| attr.id)
}

async fn content(fs: &Fs, name: &str) -> Vec<u8> {
    read_file(fs, id_of(fs, name).await.expect("it is there")).await
}

#[tokio::test]
async fn a_file_is_shown_here_at_once_and_elsewhere_with_its_bytes() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let _pages = late(&fs, "before", false).await.0;
    let before = store.commits();
    let (handle, id) = late(&fs, "f", false).await;
    put(&fs, &handle, b"bytes").await;
    assert_eq!(store.commits(), before, "nothing waits for the store");
    assert_eq!(id_of(&fs, "f").await, Some(id));
    let attr = fs.getattr(id).await.expect("it works").inode;
    assert_eq!((attr.size, attr.links, attr.mode), (5, 1, 0o644));
    assert_eq!(read_file(&fs, id).await, b"bytes", "also by another handle");
    assert_eq!(id_of(&other, "f").await, Some(id), "a handle was closed: it is committed");
    let (handle, _) = late(&fs, "g", false).await;
    assert_eq!(id_of(&other, "g").await, None);
    put(&fs, &handle, b"more").await;
    let before = store.commits();
    fs.flush(&handle).await.expect("it works");
    assert_eq!(store.commits(), before + 1, "the name, the inode and the bytes together");
    assert_eq!(content(&other, "g").await, b"more");
    assert_eq!(names(&fs, fs.root()).await, ["before", "f", "first", "g"]);
    clean(&fs).await;
}

#[tokio::test]
async fn closed_files_are_committed_together_and_in_order() {
    let (store, fs, _task) = committing().await;
    let mut handles = Vec::new();
    for number in 0..8 {
        let (handle, _) = late(&fs, &format!("f{number}"), true).await;
        put(&fs, &handle, &[number]).await;
        handles.push(handle);
    }
    let before = store.commits();
    for handle in &handles {
        assert_eq!(fs.close_late(handle), Some(Ok(())));
    }
    fs.after_closes().await;
    // At most four in one, in tests.
    assert!(store.commits() <= before + 3, "{} commits", store.commits() - before);
    let other = open(&store).await;
    for number in 0..8 {
        assert_eq!(content(&other, &format!("f{number}")).await, [number]);
    }
    for handle in handles {
        fs.release(&handle).await.expect("it works");
    }
    assert_eq!(fs.waiting_bytes(), 0);
    clean(&fs).await;
}

/// A program wrote a file, closed it, and renamed another to say that it was ready. The close did
/// not wait, so that elsewhere the second was seen before the first.
#[tokio::test]
async fn what_is_done_after_a_close_comes_after_it() {
    let (store, fs, _task) = committing().await;
    make(&fs, fs.root(), "unready", &file()).await;
    let (handle, _) = late(&fs, "data", false).await;
    put(&fs, &handle, b"all of it").await;
    store.stall(Stall::Before);
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    let renaming = {
        let fs = fs.clone();
        tokio::spawn(async move {
            fs.after_closes().await;
            let root = fs.root();
            fs.rename((root, b"unready"), (root, b"ready"), RenameMode::Replace).await
        })
    };
    while store.stalled() == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!renaming.is_finished());
    assert_eq!(store.stalled(), 1, "the rename is not sent yet");
    store.stall(Stall::Nowhere);
    renaming.await.expect("it works").expect("it works");
    assert_eq!(content(&open(&store).await, "data").await, b"all of it");
    fs.release(&handle).await.expect("it works");
    clean(&fs).await;
}

/// Somebody asked for a file's attributes while what was written to it was being committed: he was
/// told of the file before the commit, and of nothing that waits. The kernel took the size for true
/// and cut off what had just been written.
#[tokio::test]
async fn a_file_is_never_shorter_than_was_written_here() {
    let (store, fs, _task) = committing().await;
    let (handle, id) = late(&fs, "f", false).await;
    put(&fs, &handle, b"old").await;
    fs.flush(&handle).await.expect("it works");
    put(&fs, &handle, b"longer").await;
    let look = |what: usize| {
        let fs = fs.clone();
        async move {
            match what {
                0 => fs.getattr(id).await.expect("it works").inode.size,
                1 => {
                    let found = fs.lookup(fs.root(), b"f").await.expect("it works");
                    found.attr.expect("it is there").inode.size
                }
                _ => {
                    let names = fs.read_dir(fs.root(), &Position::default(), 100, true).await;
                    let names = names.expect("it works");
                    let found = names.into_iter().find(|name| *name.entry.name == *b"f");
                    found.and_then(|name| name.attr).expect("it is there").inode.size
                }
            }
        }
    };
    for what in 0..3 {
        let before = look(what).await;
        fs.write(&handle, before, Bytes::from_static(b"more")).await.expect("it works");
        store.stall(Stall::Asked);
        let asked = tokio::spawn(look(what));
        while store.stalled() == 0 {
            tokio::task::yield_now().await;
        }
        fs.flush(&handle).await.expect("it works");
        assert_eq!(handle.dirty_bytes(), 0);
        store.stall(Stall::Nowhere);
        assert_eq!(asked.await.expect("it works"), before + 4, "{what}");
    }
    fs.release(&handle).await.expect("it works");
}

/// A program made a file, and found the directory's time as before; when nobody did anything, it
/// changed. Now it is that of the making all the time, unless others changed the directory since.
#[tokio::test]
async fn a_directory_changes_when_a_file_is_made_in_it() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let times = async |fs: &Fs| {
        let inode = fs.getattr(fs.root()).await.expect("it works").inode;
        (inode.mtime, inode.ctime)
    };
    let _page = late(&fs, "before", false).await.0;
    fs.come_true_in(fs.root()).await.expect("it works");
    let before = times(&fs).await;
    let (handle, _) = late(&fs, "f", false).await;
    let made = times(&fs).await;
    assert!(made.0 > before.0 && made.1 > before.1);
    assert_eq!(times(&other).await, before);
    fs.flush(&handle).await.expect("it works");
    assert_eq!((times(&fs).await, times(&other).await), (made, made));
    // Somebody who looked after another's change is to see that there is more.
    let (handle, _) = late(&fs, "g", false).await;
    make(&other, other.root(), "theirs", &directory()).await;
    let theirs = times(&other).await;
    fs.flush(&handle).await.expect("it works");
    assert!(times(&other).await.0 > theirs.0);
    // What is set stands, whatever is made before and committed after it.
    let (handle, _) = late(&fs, "h", false).await;
    let set = SetAttr { mtime: Some(1), ..SetAttr::default() };
    assert_eq!(fs.setattr(fs.root(), set).await.expect("it works").inode.mtime, 1);
    fs.flush(&handle).await.expect("it works");
    assert_eq!(times(&fs).await.0, 1);
}

#[tokio::test]
async fn what_gives_moves_or_lists_a_name_commits_it_first() {
    let (store, fs, _task) = committing().await;
    let root = fs.root();
    let other = open(&store).await;
    let (_a, id) = late(&fs, "a", false).await;
    fs.rename((root, b"a"), (root, b"b"), RenameMode::Replace).await.expect("it works");
    assert_eq!(id_of(&other, "b").await, Some(id));
    let (_c, id) = late(&fs, "c", false).await;
    fs.link(id, root, b"d").await.expect("it works");
    assert_eq!(fs.getattr(id).await.expect("it works").inode.links, 2);
    let (e, id) = late(&fs, "e", false).await;
    put(&fs, &e, b"kept").await;
    fs.unlink(root, b"e").await.expect("it works");
    assert_eq!(fs.read(&e, 0, 10).await.expect("open still"), Bytes::from_static(b"kept"));
    fs.release(&e).await.expect("it works");
    assert_eq!(fs.getattr(id).await.expect_err("it is gone"), FsError::NotFound);
    let folder = id_of(&fs, "first").await.expect("it is there");
    let made = fs.create_late(folder, b"x", &file(), false).await.expect("it works");
    let (x, _) = made.expect("it can be made late");
    assert_eq!(fs.rmdir(root, b"first").await, Err(FsError::NotEmpty));
    fs.release(&x).await.expect("it works");
    let (_g, id) = late(&fs, "g", false).await;
    let mode = XattrMode::Any;
    assert_eq!(fs.xattr(id, b"user.a").await, Err(FsError::NoXattr));
    assert_eq!(id_of(&other, "g").await, None, "to look at none is no reason");
    fs.set_xattr(id, (b"user.a", b"1"), mode, false).await.expect("it works");
    assert_eq!(id_of(&other, "g").await, Some(id));
    assert_eq!(fs.create(root, b"g", &directory()).await, Err(FsError::Exists));
    assert_eq!(names(&fs, root).await, ["b", "c", "d", "first", "g"]);
    clean(&fs).await;
}

#[tokio::test]
async fn attributes_are_set_before_the_commit() {
    let (store, fs, _task) = committing().await;
    let (handle, id) = late(&fs, "f", false).await;
    put(&fs, &handle, b"bytes").await;
    let before = store.commits();
    let set = SetAttr { mode: Some(0o600), uid: Some(7), mtime: Some(99), ..SetAttr::default() };
    let attr = fs.set_late(id, &set).expect("it works").expect("it is not committed");
    assert_eq!((attr.inode.mode, attr.inode.uid, attr.inode.mtime), (0o600, 7, 99));
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.set_late(id, &cut), Ok(None), "a cut is for a file that is there");
    assert_eq!(store.commits(), before);
    fs.release(&handle).await.expect("it works");
    let seen = open(&store).await.getattr(id).await.expect("it works").inode;
    assert_eq!((seen.mode, seen.uid, seen.mtime, seen.size), (0o600, 7, 99, 5));
    assert_eq!(fs.set_late(id, &set), Ok(None), "it is committed");
    clean(&fs).await;
}

/// Two sites made the same name at once. The later commit finds a file there: its bytes go into it,
/// as if it had opened that one, and nothing of either is an inode that nobody can find.
#[tokio::test]
async fn a_name_that_was_made_elsewhere_takes_the_bytes() {
    for (cuts, expected) in [(true, &b"ours"[..]), (false, b"ours are theirs")] {
        let (store, fs, _task) = committing().await;
        let other = open(&store).await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = told.clone();
        fs.when_another(move |id, other| lock(&tells).push((id, other)));
        let (handle, id) = late(&fs, "f", cuts).await;
        put(&fs, &handle, b"ours").await;
        let theirs = make(&other, other.root(), "f", &file()).await;
        write_file(&other, theirs, 0, b"they are theirs").await;
        fs.flush(&handle).await.expect("nothing is lost");
        assert_eq!(id_of(&fs, "f").await, Some(theirs));
        assert_eq!(content(&fs, "f").await, expected);
        assert_eq!(content(&other, "f").await, expected);
        // The number that was told leads nowhere, and who has it open goes on in the other.
        assert_eq!(fs.getattr(id).await.expect_err("it never was"), FsError::NotFound);
        assert_eq!(handle.id(), theirs);
        assert_eq!(*told.lock().expect("no panic"), [(id, theirs)]);
        put(&fs, &handle, b"OURS").await;
        assert_eq!(fs.read(&handle, 0, 4).await, Ok(Bytes::from_static(b"OURS")));
        fs.release(&handle).await.expect("nothing is lost");
        assert_eq!(&content(&other, "f").await[..4], b"OURS");
        assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
        clean(&fs).await;
    }
}

/// Two sites opened a lock file that neither had seen, and locked it: the second had locked a file
/// that nobody else could ever find.
#[tokio::test]
async fn what_is_locked_is_the_file_that_all_see() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, id) = late(&fs, "lock", false).await;
    let theirs = make(&other, other.root(), "lock", &file()).await;
    assert_eq!(fs.come_true(id).await, Ok(theirs));
    assert_eq!(handle.id(), theirs);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(theirs, set).await.expect("it works");
    fs.release(&handle).await.expect("it works");
    assert!(!fs.open_files.is_open(theirs) && !fs.open_files.is_open(id));
    clean(&fs).await;
}

/// Everything was closed, and then it turned out to be another.
#[tokio::test]
async fn what_was_closed_becomes_another() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, id) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    let theirs = make(&other, other.root(), "f", &file()).await;
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    fs.release_unheard(&handle).await.expect("it works");
    fs.after_closes().await;
    assert_eq!(content(&other, "f").await, b"ours");
    assert_eq!(id_of(&fs, "f").await, Some(theirs));
    assert!(!fs.open_files.is_open(theirs) && !fs.open_files.is_open(id));
    assert_eq!(fs.waiting_bytes(), 0);
    clean(&fs).await;
}

/// The same, and nobody answered when it was committed there: whoever commits what is closed waited
/// for its own turn, for good, and all that came after a close with it.
#[tokio::test]
async fn what_became_another_and_is_not_committed_holds_nobody_up() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", false).await;
    put(&fs, &handle, b"ours").await;
    let theirs = make(&other, other.root(), "f", &file()).await;
    store.refuse(theirs.page, Some(TxError::Unavailable("for a while".into())));
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    let releasing = {
        let fs = fs.clone();
        tokio::spawn(async move { fs.release_unheard(&handle).await })
    };
    fs.after_closes().await;
    let _unheard = releasing.await.expect("it ends");
    assert_eq!(fs.waiting_of(theirs), 4, "it was promised");
    store.refuse(theirs.page, None);
    fs.flush_aged(Duration::from_secs(60)).await;
    assert_eq!(content(&other, "f").await, b"ours");
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
    clean(&fs).await;
}

#[tokio::test]
async fn a_name_that_became_a_directory_loses_the_bytes_and_says_so() {
    let (store, fs, _task) = committing().await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    make(&open(&store).await, fs.root(), "f", &directory()).await;
    assert_eq!(fs.flush(&handle).await, Err(FsError::Exists));
    assert_eq!(fs.flush(&handle).await, Ok(()), "told once");
    fs.release(&handle).await.expect("it was told");
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 4));
    // Nothing was written: nothing is lost.
    let (handle, _) = late(&fs, "g", true).await;
    make(&open(&store).await, fs.root(), "g", &directory()).await;
    fs.release(&handle).await.expect("nothing is lost");
    clean(&fs).await;
}

#[tokio::test]
async fn a_directory_that_is_gone_loses_what_is_made_in_it() {
    let (store, fs, _task) = committing().await;
    let folder = id_of(&fs, "first").await.expect("it is there");
    let made = fs.create_late(folder, b"f", &file(), false).await.expect("it works");
    let (handle, _) = made.expect("it can be made late");
    let other = open(&store).await;
    other.rmdir(other.root(), b"first").await.expect("it is empty there");
    assert_eq!(fs.flush(&handle).await, Err(FsError::NotFound));
    fs.release(&handle).await.expect("it was told");
    clean(&fs).await;
}

/// Another node filled the page in which the inode was to be.
#[tokio::test]
async fn a_place_that_is_taken_away_is_another() {
    let (store, fs, _task) = committing().await;
    let (handle, id) = late(&fs, "f", false).await;
    put(&fs, &handle, b"bytes").await;
    let tx = store.begin(Mode::Normal).await.expect("it works");
    tx.create(id.page, Slot(0x7001), vec![0; 32_600].into()).await.expect("it works");
    tx.commit().await.expect("it works");
    fs.flush(&handle).await.expect("nothing is lost");
    let now = id_of(&fs, "f").await.expect("it is there");
    assert_ne!(now, id);
    assert_eq!(content(&open(&store).await, "f").await, b"bytes");
    fs.release(&handle).await.expect("nothing is lost");
    assert_eq!(store.lost(), 0);
}

/// A file's inode had to be put elsewhere, and its name had been made by then: it could neither be
/// made nor be that one, and whoever synced it was told to try again, for ever.
#[tokio::test]
async fn a_place_and_a_name_that_are_taken_away_are_anothers() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, id) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    let tx = store.begin(Mode::Normal).await.expect("it works");
    tx.create(id.page, Slot(0x7001), vec![0; 32_600].into()).await.expect("it works");
    tx.commit().await.expect("it works");
    let theirs = make(&other, other.root(), "f", &file()).await;
    let (handle_there, _) = other.open_file(theirs).await.expect("it works");
    put(&other, &handle_there, b"theirs").await;
    other.release(&handle_there).await.expect("it works");
    fs.flush(&handle).await.expect("it is theirs");
    assert_eq!(handle.id(), theirs);
    assert_eq!(content(&other, "f").await, b"ours");
    fs.release(&handle).await.expect("nothing is lost");
    assert_eq!(store.lost(), 0);
}

/// So many names were made before a late file's commit that its name came to be kept in another page
/// than was told: a removal of it elsewhere was not noticed.
#[tokio::test]
async fn a_name_that_came_to_be_elsewhere_is_told_again() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    fs.when_lost(move |id| tell.lock().expect("nobody panics").push(id));
    let (stays, _) = late(&fs, "stays", false).await;
    fs.flush(&stays).await.expect("it works");
    assert!(told.lock().expect("nobody panics").is_empty());
    let (moves, id) = late(&fs, "moves", false).await;
    let place = fs.lookup(fs.root(), b"moves").await.expect("it works").place;
    for number in 0..700 {
        make(&other, other.root(), &format!("name-{number}"), &directory()).await;
    }
    fs.flush(&moves).await.expect("it works");
    assert_ne!(fs.lookup(fs.root(), b"moves").await.expect("it works").place, place);
    assert_eq!(*told.lock().expect("nobody panics"), [id]);
    assert_eq!(store.lost(), 0);
}

/// The commit of a file that was made got no answer. Whatever became of it, the file is made once,
/// its bytes are not written over what others wrote since, and it does not come back once removed.
#[tokio::test]
async fn a_commit_without_an_answer_makes_a_file_once() {
    for case in ["comes before", "comes after", "comes and is written over", "comes and is removed"]
    {
        let (store, fs, _task) = committing().await;
        let other = open(&store).await;
        // Another inode of its page, which goes with the last one.
        drop(late(&fs, "beside", false).await);
        fs.flush_aged(Duration::ZERO).await;
        let (handle, id) = late(&fs, "f", false).await;
        put(&fs, &handle, b"bytes").await;
        store.delay_next_commit();
        let unknown = fs.flush(&handle).await;
        assert_eq!(unknown, Err(TxError::OutcomeUnknown.into()), "{case}");
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(fs.set_late(id, &set), Ok(None), "{case}: it may be made as it is");
        let comes = case != "comes after";
        if comes {
            assert_eq!(store.arrive(), 1, "{case}");
        }
        let mut expected = Some(&b"bytes"[..]);
        if case == "comes and is written over" {
            write_file(&other, id, 0, b"BYTES").await;
            expected = Some(b"BYTES");
        } else if case == "comes and is removed" {
            other.unlink(other.root(), b"f").await.expect("it is there");
            expected = None;
        }
        fs.flush(&handle).await.expect("it is settled");
        if !comes {
            assert_eq!(store.arrive(), 0, "{case}");
        }
        match expected {
            Some(expected) => {
                assert_eq!(id_of(&other, "f").await, Some(id), "{case}");
                assert_eq!(content(&other, "f").await, expected, "{case}");
            }
            None => assert_eq!(id_of(&fs, "f").await, None, "{case}"),
        }
        fs.release(&handle).await.expect("it works");
        assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0), "{case}");
        clean(&fs).await;
    }
}

/// The same, and its page is gone by then: with the file, which was removed, or before it was made.
#[tokio::test]
async fn what_nobody_can_tell_is_not_made_again() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", false).await;
    put(&fs, &handle, b"bytes").await;
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    assert_eq!(store.arrive(), 1);
    other.unlink(other.root(), b"f").await.expect("it is there");
    assert_eq!(fs.flush(&handle).await, Err(FsError::NotFound), "told as lost");
    assert_eq!(id_of(&fs, "f").await, None);
    fs.release(&handle).await.expect("it was told");
    // What is made next goes elsewhere.
    let made = fs.create_late(fs.root(), b"g", &file(), false).await.expect("it works");
    assert!(made.is_none());
    make(&fs, fs.root(), "g", &file()).await;
    clean(&fs).await;
}

/// A file was made here and at another site by another user, whose file nobody else may read: who made
/// it here was given a handle of that one.
#[tokio::test]
async fn somebody_elses_file_is_not_opened_by_its_name() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    let private = Create { uid: 77, mode: 0o600, ..file() };
    let theirs = make(&other, other.root(), "f", &private).await;
    write_file(&other, theirs, 0, b"secret").await;
    let denied = fs.flush(&handle).await;
    assert!(matches!(denied, Err(FsError::Store(TxError::Denied(_)))), "{denied:?}");
    assert!(fs.read(&handle, 0, 6).await.is_err());
    fs.release(&handle).await.expect("it was told");
    assert_eq!(content(&other, "f").await, b"secret");
    clean(&fs).await;
}

/// Of two files that were closed together one turned out to be the other, which another site had
/// given its name: their commit waited for itself.
#[tokio::test]
async fn a_closed_file_that_becomes_another_one_that_was_closed() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let there = make(&fs, fs.root(), "g", &file()).await;
    let (first, _) = late(&fs, "f", true).await;
    put(&fs, &first, b"first").await;
    let (second, _) = fs.open_file(there).await.expect("it works");
    put(&fs, &second, b"2").await;
    other.link(there, other.root(), b"f").await.expect("it is free there");
    for handle in [&first, &second] {
        assert_eq!(fs.close_late(handle), Some(Ok(())));
    }
    fs.after_closes().await;
    for handle in [&first, &second] {
        fs.release(handle).await.expect("nothing is lost");
    }
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
    let bytes = content(&other, "f").await;
    assert!(bytes == b"2irst" || bytes == b"first" || bytes == b"2", "{bytes:?}");
    clean(&fs).await;
}

/// The same with nothing written.
#[tokio::test]
async fn an_empty_file_that_becomes_another_holds_nobody_up() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", true).await;
    let theirs = make(&other, other.root(), "f", &file()).await;
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    fs.release_unheard(&handle).await.expect("it works");
    fs.after_closes().await;
    assert_eq!(id_of(&fs, "f").await, Some(theirs));
    clean(&fs).await;
}

/// The commit of a file that was made got no answer and was done; another site replaced it by a
/// rename. The bytes were put into the new file, over what that site had written.
#[tokio::test]
async fn what_was_made_and_replaced_is_not_written_again() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    drop(late(&fs, "beside", false).await);
    fs.flush_aged(Duration::ZERO).await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    assert_eq!(store.arrive(), 1);
    let new = make(&other, other.root(), "new", &file()).await;
    write_file(&other, new, 0, b"theirs").await;
    let root = other.root();
    other.rename((root, b"new"), (root, b"f"), RenameMode::Replace).await.expect("it works");
    fs.flush(&handle).await.expect("it was committed");
    assert_eq!(content(&other, "f").await, b"theirs");
    fs.release(&handle).await.expect("it works");
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
    clean(&fs).await;
}

/// The same, and more was written since: that is lost, and told.
#[tokio::test]
async fn what_is_written_to_a_file_that_is_gone_is_told() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    drop(late(&fs, "beside", false).await);
    fs.flush_aged(Duration::ZERO).await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    fs.write(&handle, 100, Bytes::from_static(b"more")).await.expect("there is room");
    assert_eq!(store.arrive(), 1);
    other.unlink(other.root(), b"f").await.expect("it is there");
    assert_eq!(fs.flush(&handle).await, Err(FsError::NotFound));
    fs.release(&handle).await.expect("it was told");
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 4));
    clean(&fs).await;
}

/// Two commits got no answer, of which the first was not done, and the second was.
#[tokio::test]
async fn two_commits_without_an_answer_are_told_apart() {
    let (store, fs, _task) = committing().await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"one").await;
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    fs.write(&handle, 3, Bytes::from_static(b" two")).await.expect("there is room");
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    // The later one comes first, and the other finds the name.
    assert_eq!(store.arrive_last_first(), 1);
    fs.flush(&handle).await.expect("it is settled");
    assert_eq!(content(&open(&store).await, "f").await, b"one two");
    fs.release(&handle).await.expect("it works");
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
    clean(&fs).await;
}

/// A program unlocked a file under whose lock it had written and closed another, which could not be
/// committed: the next to lock it found the old bytes.
#[tokio::test]
async fn a_lock_is_kept_while_what_was_closed_under_it_waits() {
    let (store, fs, _task) = committing().await;
    let locked = make(&fs, fs.root(), "lock", &file()).await;
    let ask = LockAsk { owner: 1, pid: 1, kind: LockKind::Write, start: 0, end: u64::MAX };
    assert_eq!(fs.lock(locked, &ask).await, Ok(None));
    let (handle, id) = late(&fs, "data", true).await;
    put(&fs, &handle, b"under the lock").await;
    store.refuse(id.page, Some(TxError::Quota("it is full".into())));
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    let _unheard = fs.release_unheard(&handle).await;
    assert!(fs.unlock(locked, 1, 0, u64::MAX).await.is_err());
    let other = open(&store).await;
    let theirs = LockAsk { owner: 2, pid: 2, ..ask };
    assert!(other.lock(locked, &theirs).await.expect("it works").is_some(), "it is held still");
    store.refuse(id.page, None);
    fs.flush_aged(Duration::from_secs(60)).await;
    fs.release_owed_locks().await.expect("it works");
    assert_eq!(other.lock(locked, &theirs).await, Ok(None));
    assert_eq!(content(&other, "data").await, b"under the lock");
}

/// A volume was full: what could not be committed could not be removed either.
#[tokio::test]
async fn what_was_never_committed_is_removed_without_a_commit() {
    let (store, fs, _task) = committing().await;
    let (handle, id) = late(&fs, "f", true).await;
    put(&fs, &handle, b"too much").await;
    store.refuse(id.page, Some(TxError::Quota("it is full".into())));
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    let _unheard = fs.release_unheard(&handle).await;
    let before = store.commits();
    fs.unlink(fs.root(), b"f").await.expect("it frees");
    assert_eq!((store.commits(), fs.waiting_bytes()), (before, 0));
    assert_eq!(id_of(&fs, "f").await, None);
    assert_eq!(store.lost(), 0, "it was not wanted any more");
    clean(&fs).await;
}

/// A new file was made by a copy of one that ends in zeros.
#[tokio::test]
async fn a_new_file_takes_a_copy_that_ends_in_a_hole() {
    let (_store, fs, _task) = committing().await;
    let from = make(&fs, fs.root(), "from", &file()).await;
    write_file(&fs, from, 0, &[0; 4096]).await;
    let (source, _) = fs.open_file(from).await.expect("it works");
    let (target, _) = late(&fs, "to", true).await;
    let until = std::time::Instant::now() + Duration::from_secs(30);
    let copied = fs.copy_range((&source, 0), (&target, 0), 4096, until.into()).await;
    assert_eq!(copied, Ok(4096));
    for handle in [source, target] {
        fs.release(&handle).await.expect("it works");
    }
    assert_eq!(content(&fs, "to").await, [0; 4096]);
    clean(&fs).await;
}

/// A whole round of closed files got no answer.
#[tokio::test]
async fn a_round_without_an_answer_is_settled_file_by_file() {
    for comes in [true, false] {
        let (store, fs, task) = committing().await;
        let mut handles = Vec::new();
        for name in ["a", "b"] {
            let (handle, _) = late(&fs, name, false).await;
            put(&fs, &handle, name.as_bytes()).await;
            handles.push(handle);
        }
        store.delay_next_commit();
        for handle in &handles {
            assert_eq!(fs.close_late(handle), Some(Ok(())));
        }
        fs.after_closes().await;
        assert!(!fs.is_well(), "closes wait from here on");
        assert_eq!(fs.close_late(&handles[0]), None);
        if comes {
            assert_eq!(store.arrive(), 1);
        }
        for handle in handles {
            fs.release_unheard(&handle).await.expect("it works");
        }
        if !comes {
            assert_eq!(store.arrive(), 0);
        }
        for name in ["a", "b"] {
            assert_eq!(content(&open(&store).await, name).await, name.as_bytes());
        }
        assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
        clean(&fs).await;
        task.abort();
    }
}

/// What a close promised is kept when the line fails right after it, though nobody has the file
/// open any more; and is lost, and told, when that lasts.
#[tokio::test]
async fn what_was_promised_is_tried_again_for_a_while() {
    let options = FsOptions { dropped_age: Duration::from_millis(300), ..FsOptions::default() };
    let (store, _) = fresh().await;
    let fs = FileSystem::open_or_format(store.clone(), options, [7; 16]).await.expect("it works");
    let fs = Arc::new(fs);
    make(&fs, fs.root(), "first", &directory()).await;
    let committer = fs.clone();
    let _task = tokio::spawn(async move { committer.commit_closed().await });
    for lasts in [false, true] {
        while !fs.is_well() {
            tokio::task::yield_now().await;
        }
        let (handle, id) = late(&fs, if lasts { "lost" } else { "kept" }, false).await;
        put(&fs, &handle, b"promised").await;
        for _ in 0..if lasts { 2 } else { 3 } {
            store.fail_next_commit(TxError::TimedOut);
        }
        assert_eq!(fs.close_late(&handle), Some(Ok(())));
        let _unheard = fs.release_unheard(&handle).await;
        assert_eq!(fs.waiting_of(id), 8);
        if lasts {
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        fs.flush_aged(Duration::from_secs(60)).await;
        fs.flush_aged(Duration::from_secs(60)).await;
        assert_eq!(fs.waiting_bytes(), 0);
        let expected = if lasts { None } else { Some(id) };
        assert_eq!(id_of(&open(&store).await, if lasts { "lost" } else { "kept" }).await, expected);
        assert_eq!(store.lost(), if lasts { 8 } else { 0 });
        // Something is committed: closes are promised again.
        let (handle, _) = fs.open_file(id_of(&fs, "kept").await.expect("there")).await.expect("it");
        put(&fs, &handle, b"promised").await;
        fs.flush(&handle).await.expect("it works");
        fs.release(&handle).await.expect("it works");
    }
    clean(&fs).await;
}

/// The story: a machine slept for hours, with files that had been closed and not committed yet. By the clock
/// nobody had held them for longer than they are tried again, and the first look after it gave them up, before
/// the link was even made anew. Now they are committed, and given up only where others wrote meanwhile.
#[tokio::test]
async fn what_was_closed_before_the_machine_slept_is_committed_after_it() {
    let (store, fs, _task) = committing().await;
    let beside = make(&fs, fs.root(), "beside", &file()).await;
    let (beside, _) = fs.open_file(beside).await.expect("it works");
    let mut ids = Vec::new();
    for name in ["f0", "f1", "made"] {
        let (handle, id) = if name == "made" {
            late(&fs, name, false).await
        } else {
            let id = make(&fs, fs.root(), name, &file()).await;
            (fs.open_file(id).await.expect("it works").0, id)
        };
        put(&fs, &handle, b"promised").await;
        for _ in 0..2 {
            store.fail_next_commit(TxError::TimedOut);
        }
        assert_eq!(fs.close_late(&handle), Some(Ok(())));
        let _unheard = fs.release_unheard(&handle).await;
        ids.push(id);
        // Closes are promised again.
        put(&fs, &beside, b"x").await;
        fs.flush(&beside).await.expect("it works");
    }
    assert_eq!(ids.iter().map(|id| fs.waiting_of(*id)).sum::<u64>(), 24);
    fs.open_files.awake.sleep(Duration::from_secs(8 * 3600));
    let other = open(&store).await;
    let (theirs, _) = other.open_file(ids[1]).await.expect("it works");
    put(&other, &theirs, b"theirs").await;
    other.flush(&theirs).await.expect("it works");
    for _ in 0..2 {
        fs.flush_aged(Duration::from_secs(60)).await;
    }
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 8), "of the one that others wrote to");
    assert_eq!(content(&other, "f0").await, b"promised");
    assert_eq!(content(&other, "f1").await, b"theirs");
    assert_eq!(content(&other, "made").await, b"promised");
    assert_eq!(id_of(&other, "made").await, Some(ids[2]));
    clean(&fs).await;
}

/// The story: what was closed under a lock could not be committed, and another file of the node was: that
/// took the note away that something waits, and the lock was let go. The next holder read the old bytes.
#[tokio::test]
async fn a_lock_is_owed_while_what_was_closed_under_it_waits() {
    let (store, fs, _task) = committing().await;
    let locked = make(&fs, fs.root(), "lock", &file()).await;
    let beside = make(&fs, fs.root(), "beside", &file()).await;
    let ask = LockAsk { owner: 1, pid: 1, kind: LockKind::Write, start: 0, end: u64::MAX };
    assert_eq!(fs.lock(locked, &ask).await, Ok(None));
    let (handle, id) = late(&fs, "data", true).await;
    put(&fs, &handle, b"under the lock").await;
    store.refuse(id.page, Some(TxError::Quota("it is full".into())));
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    let _unheard = fs.release_unheard(&handle).await;
    let (other, _) = fs.open_file(beside).await.expect("there");
    put(&fs, &other, b"x").await;
    assert_eq!(fs.flush(&other).await, Ok(()), "it is no other file's fault");
    let owed = fs.unlock(locked, 1, 0, u64::MAX).await;
    assert!(matches!(owed, Err(FsError::Store(TxError::Quota(_)))), "{owed:?}");
    store.refuse(id.page, None);
    fs.unlock(locked, 1, 0, u64::MAX).await.expect("what was closed under it is committed");
    assert_eq!(content(&open(&store).await, "data").await, b"under the lock");
    clean(&fs).await;
}

/// The story: a file was made late with `O_TRUNC` under a name that somebody else had made. That one was cut, and
/// the answer was lost; he wrote to it and synced; and the next attempt cut it again.
#[tokio::test]
async fn what_another_site_synced_after_a_late_cut_is_not_cut_again() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    let theirs = make(&other, other.root(), "f", &file()).await;
    let (they, _) = other.open_file(theirs).await.expect("there");
    put(&other, &they, b"first, and longer").await;
    other.flush(&they).await.expect("it works");
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    assert_eq!(store.arrive(), 1, "the cut");
    put(&other, &they, b"second, synced after the cut").await;
    other.flush(&they).await.expect("it works");
    fs.flush(&handle).await.expect("it works");
    assert_eq!(content(&other, "f").await, b"oursnd, synced after the cut");
    clean(&fs).await;
}

/// The same with a cut that was not done: it is made, and once.
#[tokio::test]
async fn a_late_cut_that_was_refused_is_made_by_the_next_attempt() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", true).await;
    put(&fs, &handle, b"ours").await;
    let theirs = make(&other, other.root(), "f", &file()).await;
    write_file(&other, theirs, 0, b"theirs, and longer").await;
    store.fail_next_commit(TxError::Unavailable("for a while".into()));
    fs.flush(&handle).await.expect_err("it was refused");
    fs.flush(&handle).await.expect("it works");
    assert_eq!(content(&other, "f").await, b"ours");
    clean(&fs).await;
}

/// The story: what a dropped handle wrote into a file that turned out to be another was lost at the first
/// refusal, also one that passes, where the same bytes in any other file are tried again for a while.
#[tokio::test]
async fn what_a_dropped_handle_wrote_into_another_is_tried_again() {
    let (store, fs, _task) = committing().await;
    let other = open(&store).await;
    let (handle, _) = late(&fs, "f", false).await;
    put(&fs, &handle, b"ours").await;
    let theirs = make(&other, other.root(), "f", &file()).await;
    store.refuse(theirs.page, Some(TxError::Unavailable("for a while".into())));
    drop(handle);
    fs.flush_aged(Duration::from_secs(60)).await;
    assert_eq!((fs.waiting_of(theirs), store.lost()), (4, 0));
    store.refuse(theirs.page, None);
    fs.flush_aged(Duration::from_secs(60)).await;
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
    assert_eq!(content(&other, "f").await, b"ours");
    clean(&fs).await;
}

#[tokio::test]
async fn nothing_is_promised_where_little_is_free_or_much_waits() {
    let (store, fs, task) = committing().await;
    store.set_free(Some(1 << 20));
    let made = fs.create_late(fs.root(), b"f", &file(), false).await.expect("it works");
    assert!(made.is_none(), "a megabyte is left");
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    put(&fs, &handle, b"bytes").await;
    assert_eq!(fs.close_late(&handle), None);
    store.set_free(Some(1 << 30));
    assert_eq!(fs.close_late(&handle), Some(Ok(())));
    fs.release(&handle).await.expect("it works");
    let mut handles = Vec::new();
    // Eight, in tests.
    while let Some((handle, _)) = {
        let name = format!("f{}", handles.len());
        fs.create_late(fs.root(), name.as_bytes(), &file(), false).await.expect("it works")
    } {
        handles.push(handle);
    }
    assert_eq!(handles.len(), 8);
    for handle in handles {
        fs.release(&handle).await.expect("it works");
    }
    task.abort();
    let _aborted = task.await;
    assert!(!fs.is_well(), "nobody would commit it");
    fs.after_closes().await;
    clean(&fs).await;
}

/// Small files' bytes took the room in which the inodes of those made after them were to be.
#[tokio::test]
async fn bytes_beside_inodes_leave_room_for_those_that_come() {
    let (store, fs, _task) = committing().await;
    for round in 0..8 {
        let mut handles = Vec::new();
        for number in 0..8 {
            let (handle, id) = late(&fs, &format!("f{round}-{number}"), false).await;
            put(&fs, &handle, &pattern(4000, number)).await;
            handles.push((handle, id));
        }
        for (handle, id) in handles {
            fs.release(&handle).await.expect("it works");
            assert!(fs.getattr(id).await.is_ok(), "its number stays");
        }
    }
    assert_eq!(content(&open(&store).await, "f7-3").await, pattern(4000, 3));
    clean(&fs).await;
}

#[tokio::test]
async fn nobody_makes_the_same_name_twice() {
    let (_store, fs, _task) = committing().await;
    let (_handle, id) = late(&fs, "f", false).await;
    let again = fs.create_late(fs.root(), b"f", &file(), false).await.expect("it works");
    assert!(again.is_none());
    assert_eq!(fs.create_file(fs.root(), b"f", &file()).await.err(), Some(FsError::Exists));
    assert_eq!(id_of(&fs, "f").await, Some(id));
    let there = fs.create_late(fs.root(), b"f", &file(), false).await;
    assert_eq!(there.err(), Some(FsError::Exists));
    clean(&fs).await;
}

/// A file was made late, and nobody heard of its commit. Before that came, another site removed the
/// directory, which was empty there. The search for the name then ended without a verdict, the first one
/// set stood for "its bytes were committed, and went with it", and `fsync` said that all was well.
#[tokio::test]
async fn bytes_that_are_nowhere_are_told_by_a_sync() {
    let (store, fs, _task) = committing().await;
    let folder = id_of(&fs, "first").await.expect("it is there");
    let made = fs.create_late(folder, b"f", &file(), false).await.expect("it works");
    let (handle, _) = made.expect("it can be made late");
    put(&fs, &handle, b"bytes").await;
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, Err(TxError::OutcomeUnknown.into()));
    let other = open(&store).await;
    other.rmdir(other.root(), b"first").await.expect("it is empty there");
    assert_eq!(store.arrive(), 0, "it comes after that, and is not done");
    let told = fs.flush(&handle).await;
    assert!(told.is_err(), "its bytes are nowhere, and a sync says {told:?}");
}
