//! Open files: what is told of lost writes, how much may wait, and removals beside openings.

use super::super::memory::Stall;
use super::*;
use std::time::{Duration, Instant};

pub(super) async fn with(options: FsOptions) -> (MemoryStore, Fs) {
    let store = MemoryStore::new(PAGE_BYTES);
    let fs = FileSystem::open_or_format(store.clone(), options, [7; 16]).await.expect("it works");
    (store, Arc::new(fs))
}

pub(super) async fn written(
    fs: &Fs,
    handle: &Handle,
    offset: u64,
    length: usize,
) -> Result<(), FsError> {
    fs.write(handle, offset, vec![1; length].into()).await
}

/// Waits until a commit is stalled.
pub(super) async fn stalled(store: &MemoryStore) {
    while store.stalled() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn denied() -> FsError {
    TxError::Denied("no".into()).into()
}

/// One process lost bytes for good; another, that had the file open as well, synced and was told
/// that all was well: the first to ask had taken the error away.
#[tokio::test]
async fn every_handle_is_told_once_of_what_was_lost() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (one, _) = fs.open_file(id).await.expect("it works");
    let (two, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &one, 0, 10).await.expect("it works");
    store.fail_next_commit(TxError::Denied("no".into()));
    fs.flush_aged(Duration::ZERO).await;
    // Nobody was told yet: neither may an opener of now miss it.
    let (three, _) = fs.open_file(id).await.expect("it works");
    for handle in [&one, &two, &three] {
        assert_eq!(fs.flush(handle).await, Err(denied()));
        assert_eq!(fs.flush(handle).await, Ok(()));
    }
    let (four, _) = fs.open_file(id).await.expect("it works");
    assert_eq!(fs.flush(&four).await, Ok(()));
    // The next loss is another one.
    written(&fs, &four, 0, 10).await.expect("it works");
    store.fail_next_commit(TxError::Denied("no".into()));
    assert_eq!(fs.release(&four).await, Err(denied()));
    for handle in [&one, &two, &three] {
        assert_eq!(fs.release(handle).await, Err(denied()));
    }
}

/// The kernel tells nobody how giving a handle back ended. What was lost counted as told to whoever
/// had closed, and the next to sync was told that all was well.
#[tokio::test]
async fn what_nobody_heard_of_is_told_to_the_next() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (reader, _) = fs.open_file(id).await.expect("it works");
    let (writer, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &writer, 0, 10).await.expect("it works");
    store.fail_next_commit(TxError::Denied("no".into()));
    fs.flush_aged(Duration::ZERO).await;
    for handle in [&reader, &writer] {
        fs.release_unheard(handle).await.expect("nothing waits");
    }
    let (next, _) = fs.open_file(id).await.expect("it works");
    assert_eq!(fs.release(&next).await, Err(denied()));
    let (next, _) = fs.open_file(id).await.expect("it works");
    assert_eq!(fs.release(&next).await, Ok(()));
}

/// The node was cut off when the kernel gave the last handle back: its bytes could not be committed,
/// and were dropped. They were counted as lost, and nobody was told: the next to open the file, and to
/// sync it, heard that all was well. Of many such files those lost last are told of.
#[tokio::test]
async fn what_the_last_release_drops_is_told_to_the_next() {
    let (store, fs) = fresh().await;
    let mut files = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let id = make(&fs, fs.root(), name, &file()).await;
        let (handle, _) = fs.open_file(id).await.expect("it works");
        written(&fs, &handle, 0, 10).await.expect("it works");
        store.fail_next_commit(TxError::TimedOut);
        assert_eq!(fs.release_unheard(&handle).await, Err(TxError::TimedOut.into()));
        assert!(!fs.open_files.is_open(id));
        files.push(id);
    }
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 50));
    for (number, id) in files.into_iter().enumerate() {
        // The tests' table has room for four.
        let expected = if number == 0 { Ok(()) } else { Err(TxError::TimedOut.into()) };
        for expected in [expected, Ok(())] {
            let (next, _) = fs.open_file(id).await.expect("it works");
            assert_eq!(fs.flush(&next).await, expected, "file {number}");
            fs.release_unheard(&next).await.expect("nothing waits");
        }
    }
}

/// A commit of old bytes was refused for good while newer ones were being written: they were
/// thrown away with the old ones, though their own commit would have succeeded.
#[tokio::test]
async fn a_lost_batch_takes_nothing_newer_with_it() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &[0; 30]).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.write(&handle, 0, Bytes::from_static(b"oldoldold")).await.expect("it works");
    store.fail_next_commit(TxError::Denied("no".into()));
    store.stall(Stall::Before);
    let flusher = fs.clone();
    let flushing = tokio::spawn(async move { flusher.flush_aged(Duration::ZERO).await });
    stalled(&store).await;
    fs.write(&handle, 3, Bytes::from_static(b"new")).await.expect("it works");
    fs.write(&handle, 20, Bytes::from_static(b"more")).await.expect("it works");
    store.stall(Stall::Nowhere);
    flushing.await.expect("it works");
    assert_eq!(fs.release(&handle).await, Err(denied()));
    let mut expected = vec![0; 30];
    expected[3..6].copy_from_slice(b"new");
    expected[20..24].copy_from_slice(b"more");
    assert_eq!(read_file(&fs, id).await, expected);
}

/// A writer was refused since the origin could not be reached, and went elsewhere with its bytes;
/// minutes later they were committed over what others had written since.
#[tokio::test]
async fn what_was_refused_is_never_committed() {
    let (store, fs) = with(FsOptions { dirty_bytes_max: 10_000, ..FsOptions::default() }).await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &handle, 0, 9000).await.expect("it works");
    store.fail_next_commit(TxError::TimedOut);
    assert_eq!(written(&fs, &handle, 9000, 5000).await, Err(TxError::TimedOut.into()));
    assert_eq!(handle.dirty_bytes(), 9000);
    fs.release(&handle).await.expect("it works");
    assert_eq!(fs.getattr(id).await.expect("it works").inode.size, 9000);
}

/// Cut off for an hour, a node kept eight megabytes for each of thousands of files that were
/// written meanwhile, and was killed for want of memory.
#[tokio::test]
async fn what_waits_in_all_files_is_bounded() {
    let options = FsOptions {
        dirty_total_max: 100_000,
        write_limit: Duration::from_millis(200),
        ..FsOptions::default()
    };
    let (store, fs) = with(options).await;
    let mut handles = Vec::new();
    for i in 0..20 {
        let id = make(&fs, fs.root(), &format!("f{i}"), &file()).await;
        handles.push(fs.open_file(id).await.expect("it works").0);
    }
    // Nothing is answered any more.
    store.stall(Stall::Before);
    let (mut kept, mut refused) = (0, 0);
    for handle in &handles {
        let begun = Instant::now();
        match written(&fs, handle, 0, 10_000).await {
            Ok(()) => kept += 1,
            Err(error) => {
                assert_eq!(error, TxError::TimedOut.into());
                assert!(begun.elapsed() < Duration::from_secs(5), "within its limit");
                assert_eq!(handle.dirty_bytes(), 0);
                refused += 1;
            }
        }
    }
    assert_eq!((kept, refused), (9, 11));
    assert!(fs.waiting_bytes() <= 100_000);
    // Small pieces cost more than their bytes, and are counted so.
    store.stall(Stall::Nowhere);
    for handle in &handles {
        written(&fs, handle, 0, 10_000).await.expect("there is room again");
    }
    for handle in &handles {
        fs.release(handle).await.expect("it works");
    }
    assert_eq!(fs.waiting_bytes(), 0);
}

/// One byte left of an overwritten piece held all of the piece in memory.
#[tokio::test]
async fn pieces_cost_what_they_are_counted() {
    let (_, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    for i in 0..100_u64 {
        written(&fs, &handle, i * 2, 50_000).await.expect("it works");
    }
    let used = fs.waiting_bytes();
    assert_eq!(handle.dirty_bytes(), 50_198);
    assert!((50_198 + 100 * 64..50_198 + 101 * 200).contains(&used), "{used}");
    fs.release(&handle).await.expect("it works");
    assert_eq!(fs.waiting_bytes(), 0);
}

/// A file was opened here between the look whether anybody has it open and the commit of its
/// removal: its content went while it was being read.
#[tokio::test]
async fn a_removal_and_an_opening_do_not_pass_each_other() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &pattern(100_000, 3)).await;
    store.stall(Stall::Before);
    let remover = fs.clone();
    let removing = tokio::spawn(async move { remover.unlink(remover.root(), b"f").await });
    stalled(&store).await;
    let opener = fs.clone();
    let opening = tokio::spawn(async move {
        let (handle, attr) = opener.open_file(id).await?;
        Ok::<_, FsError>((handle, attr.inode.size))
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.stall(Stall::Nowhere);
    removing.await.expect("it works").expect("nothing else removes it");
    match opening.await.expect("it works") {
        Err(error) => assert_eq!(error, FsError::NotFound),
        Ok((handle, _)) => {
            let bytes = fs.read(&handle, 0, 200_000).await.expect("it is open");
            assert_eq!(bytes, pattern(100_000, 3));
        }
    }
    // A removal that came to nothing keeps nobody from opening.
    let id = make(&fs, fs.root(), "g", &file()).await;
    store.fail_next_commit(TxError::Denied("no".into()));
    assert_eq!(fs.unlink(fs.root(), b"g").await, Err(denied()));
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.unlink(fs.root(), b"g").await.expect("it works");
    assert_eq!(fs.read(&handle, 0, 10).await.expect("it is open"), Bytes::new());
    fs.release(&handle).await.expect("it works");
    clean(&fs).await;
}

/// The commit of a removal got no answer within its limit, and the file could be opened again; then
/// the commit was done after all, and the content went from under the handle.
#[tokio::test]
async fn a_removal_without_an_answer_and_an_opening_do_not_pass_each_other() {
    let (store, fs) = fresh().await;
    let unknown = Err(TxError::OutcomeUnknown.into());
    // Done late: whoever opens it waits, and finds nothing.
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &pattern(100_000, 3)).await;
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, unknown);
    let opener = fs.clone();
    let opening = tokio::spawn(async move { opener.open_file(id).await.map(|_| ()) });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!opening.is_finished(), "the removal may be done yet");
    assert_eq!(store.arrive(), 1);
    fs.settle_unknown().await.expect("it works");
    assert_eq!(opening.await.expect("it works"), Err(FsError::NotFound));
    // Not done: it is settled that it never will be.
    for replaced in [false, true] {
        let id = make(&fs, fs.root(), "g", &file()).await;
        write_file(&fs, id, 0, &pattern(100_000, 3)).await;
        if replaced {
            make(&fs, fs.root(), "h", &file()).await;
        }
        store.delay_next_commit();
        let result = match replaced {
            true => fs.rename((fs.root(), b"h"), (fs.root(), b"g"), RenameMode::Replace).await,
            false => fs.unlink(fs.root(), b"g").await,
        };
        assert_eq!(result, unknown);
        fs.settle_unknown().await.expect("it works");
        let (handle, _) = fs.open_file(id).await.expect("it is there");
        assert_eq!(store.arrive(), 0);
        let bytes = fs.read(&handle, 0, 200_000).await.expect("it is open");
        assert_eq!(bytes, pattern(100_000, 3));
        fs.unlink(fs.root(), b"g").await.expect("it works");
        fs.release(&handle).await.expect("it works");
    }
    clean(&fs).await;
}

/// The freeing of a file without a name got no answer, and the file could be opened again by its
/// number; then the freeing was done after all, and the content went from under the handle.
#[tokio::test]
async fn a_freeing_without_an_answer_and_an_opening_do_not_pass_each_other() {
    let (store, fs) = fresh().await;
    for (name, done) in [("f", true), ("g", false)] {
        let id = make(&fs, fs.root(), name, &file()).await;
        write_file(&fs, id, 0, &pattern(100_000, 3)).await;
        let (handle, _) = fs.open_file(id).await.expect("it works");
        fs.unlink(fs.root(), name.as_bytes()).await.expect("it works");
        store.delay_next_commit();
        assert_eq!(fs.release(&handle).await, Err(TxError::OutcomeUnknown.into()));
        let opener = fs.clone();
        let opening = tokio::spawn(async move { opener.open_file(id).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!opening.is_finished(), "the freeing may be done yet");
        assert_eq!(usize::from(done), if done { store.arrive() } else { 0 });
        fs.settle_unknown().await.expect("it works");
        let opened = opening.await.expect("it works");
        assert_eq!(store.arrive(), 0, "it is settled that it is not done");
        if done {
            assert_eq!(opened.map(|_| ()), Err(FsError::NotFound));
            continue;
        }
        let (handle, _) = opened.expect("it is there");
        assert_eq!(fs.read(&handle, 0, 200_000).await.expect("it is open"), pattern(100_000, 3));
        // Nothing is forgotten by it.
        fs.reap_waiting().await.expect("it works");
        fs.release(&handle).await.expect("it works");
        assert_eq!(fs.getattr(id).await.map(|_| ()), Err(FsError::NotFound));
    }
    assert!(fs.orphans().await.expect("it works").is_empty());
    clean(&fs).await;
}

/// The removal of a file that was open here got no answer, and had been done: nobody here knew
/// that the file had no name any more, and its last close did not free it.
#[tokio::test]
async fn a_file_removed_without_an_answer_is_freed_at_its_close() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &pattern(100_000, 3)).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, Err(TxError::OutcomeUnknown.into()));
    assert_eq!(store.arrive(), 1);
    fs.settle_unknown().await.expect("it works");
    fs.release(&handle).await.expect("it works");
    assert!(fs.orphans().await.expect("it works").is_empty());
    assert_eq!(fs.getattr(id).await, Err(FsError::NotFound));
    clean(&fs).await;
}

/// Bug 160 (seed 60000003962). A removal got no answer, and another node, which has the file open, removed
/// it. Whoever then settled the first removal found the file without a name, took that for its own doing, and
/// freed it under the other one's reader.
#[tokio::test]
async fn what_another_node_removed_is_that_nodes_to_free() {
    for bytes in [100, 12 << 20] {
        let (store, fs) = fresh().await;
        let other = open(&store).await;
        let id = make(&fs, fs.root(), "f", &file()).await;
        write_file(&fs, id, 0, &pattern(bytes, 3)).await;
        let (handle, _) = other.open_file(id).await.expect("it works");
        store.delay_next_commit();
        assert_eq!(fs.unlink(fs.root(), b"f").await, Err(TxError::OutcomeUnknown.into()));
        other.unlink(other.root(), b"f").await.expect("it works");
        fs.settle_unknown().await.expect("it works");
        assert_eq!(store.arrive(), 0, "it is settled that it is not done");
        fs.reap_waiting().await.expect("it works");
        assert_eq!(other.read(&handle, 0, 100).await.expect("it is open"), pattern(100, 3));
        other.release(&handle).await.expect("it works");
        other.reap_waiting().await.expect("it works");
        assert!(other.orphans().await.expect("it works").is_empty());
        clean(&fs).await;
    }
}

/// A removal got no answer, and was done; before that was settled, the file was written through a handle here. It
/// was taken for somebody else's, and nobody said any more that it is open; nor was it freed when it was closed, but a day
/// later (bug 211, seed 20992268554176).
#[tokio::test]
async fn a_file_written_before_its_removal_is_settled_is_said_to_be_open() {
    let store = MemoryStore::new(PAGE_BYTES);
    let options = || FsOptions { orphan_age: Duration::from_millis(80), ..FsOptions::default() };
    let of = || FileSystem::open_or_format(store.clone(), options(), [7; 16]);
    let (fs, other) = (Arc::new(of().await.expect("it works")), of().await.expect("it works"));
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, Err(TxError::OutcomeUnknown.into()));
    assert_eq!(store.arrive(), 1);
    fs.write(&handle, 0, Bytes::from_static(b"some")).await.expect("it is open");
    fs.flush(&handle).await.expect("it works");
    fs.settle_unknown().await.expect("it works");
    for _ in 0..10 {
        assert_eq!(other.tend_orphans().await.expect("it works"), 0, "it is open");
        tokio::time::sleep(Duration::from_millis(20)).await;
        fs.tend_orphans().await.expect("it works");
    }
    assert_eq!(fs.read(&handle, 0, 10).await.expect("it is open"), Bytes::from_static(b"some"));
    fs.release(&handle).await.expect("it works");
    assert!(fs.orphans().await.expect("it works").is_empty(), "it is freed at its last close");
    clean(&fs).await;
}

/// Bug 166. A file was closed by a process that nobody answers, so that what was written waits; then its name was
/// removed. At the end, when all that waits is committed, files without a name were passed over: this one was left for a
/// day, until somebody notices that nobody holds it open.
#[tokio::test]
async fn a_file_closed_before_its_removal_is_freed_at_the_end() {
    let (_store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.write(&handle, 0, Bytes::from_static(b"some")).await.expect("it is open");
    drop(handle);
    assert!(fs.has_waiting(), "nobody has committed it");
    fs.unlink(fs.root(), b"f").await.expect("it works");
    assert_eq!(fs.orphans().await.expect("it works").len(), 1, "what waits may be asked for");
    fs.flush_all().await.expect("it works");
    fs.reap_waiting().await.expect("it works");
    assert!(fs.orphans().await.expect("it works").is_empty());
}

/// What settles a removal may get no answer either: whose removal it was is known all the same.
#[tokio::test]
async fn a_large_file_removed_without_an_answer_is_freed_soon() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &pattern(12 << 20, 3)).await;
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, Err(TxError::OutcomeUnknown.into()));
    assert_eq!(store.arrive(), 1);
    for _ in 0..3 {
        store.delay_next_commit();
        assert_eq!(fs.settle_unknown().await, Err(TxError::OutcomeUnknown.into()));
        assert_eq!(store.arrive(), 1);
    }
    fs.settle_unknown().await.expect("it works");
    fs.reap_waiting().await.expect("it works");
    assert!(fs.orphans().await.expect("it works").is_empty());
    clean(&fs).await;
}

/// Removed and freed later, as large files are; opened again meanwhile by somebody who still knew
/// its number: the freeing took the content from under the reader.
#[tokio::test]
async fn what_is_opened_again_is_not_freed() {
    let (_, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &pattern(12 << 20, 3)).await;
    fs.unlink(fs.root(), b"f").await.expect("it works");
    let (handle, _) = fs.open_file(id).await.expect("it is only without a name");
    fs.reap_waiting().await.expect("it works");
    assert_eq!(fs.read(&handle, 0, 1000).await.expect("it is open"), pattern(1000, 3));
    fs.release(&handle).await.expect("it works");
    assert!(fs.orphans().await.expect("it works").is_empty());
}

/// An operation passed its limit after it had taken a handle, and was thrown away: the file
/// counted as open until the node ended, and was never freed when it was removed.
#[tokio::test]
async fn a_handle_that_is_dropped_is_given_back() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    store.stall(Stall::After);
    let kind = file();
    let creating = fs.create_file(fs.root(), b"g", &kind);
    assert!(tokio::time::timeout(Duration::from_millis(50), creating).await.is_err());
    store.stall(Stall::Nowhere);
    let found = fs.lookup(fs.root(), b"g").await.expect("it works").attr.expect("it was made");
    assert!(!fs.open_files.is_open(found.id));
    // What it wrote is committed, and a file without a name is freed.
    let (handle, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &handle, 0, 100).await.expect("it works");
    drop(handle);
    fs.flush_aged(Duration::from_secs(1000)).await;
    assert!(!fs.open_files.is_open(id));
    assert_eq!(read_file(&fs, id).await, vec![1; 100]);
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.unlink(fs.root(), b"f").await.expect("it works");
    drop(handle);
    fs.flush_aged(Duration::from_secs(1000)).await;
    fs.reap_waiting().await.expect("it works");
    assert_eq!(fs.getattr(id).await, Err(FsError::NotFound));
    clean(&fs).await;
}

/// The origin was restored from an old copy while a file was being written, and gave another node
/// the numbers of the file's pages again: the bytes went into that node's file.
#[tokio::test]
async fn what_was_written_on_a_lost_branch_is_lost_and_everybody_is_told() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (one, _) = fs.open_file(id).await.expect("it works");
    let (two, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &one, 0, 10).await.expect("it works");
    let commits = store.commits();
    store.fork();
    let forked = FsError::from(TxError::Forked);
    assert_eq!(written(&fs, &one, 10, 10).await, Err(forked.clone()));
    fs.flush_aged(Duration::ZERO).await;
    assert_eq!(fs.waiting_bytes(), 0);
    assert_eq!(fs.flush(&one).await, Err(forked.clone()));
    assert_eq!(fs.release(&two).await, Err(forked.clone()));
    assert_eq!(fs.read(&one, 0, 10).await, Err(forked.clone()));
    assert_eq!(fs.getattr(id).await.map(|_| ()), Err(forked));
    assert_eq!(store.commits(), commits);
}

/// Bug 106. A removal got no answer, and then the branch of its history was lost: whatever would have settled
/// it was refused, its mark stayed, and whoever opened the file waited for ever.
#[tokio::test]
async fn a_removal_without_an_answer_on_a_lost_branch_holds_nobody_up() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, Err(TxError::OutcomeUnknown.into()));
    let opener = fs.clone();
    let opening = tokio::spawn(async move { opener.open_file(id).await.map(|_| ()) });
    store.fork();
    fs.settle_unknown().await.expect("there is nothing left to settle");
    assert_eq!(opening.await.expect("it works"), Err(TxError::Forked.into()));
}

/// Bug 132. A removal got no answer, and the right to write was taken: nothing could settle it, and whoever opened
/// the file waited until the right was back, without a limit. The same with a page that is damaged, for good.
#[tokio::test]
async fn an_opening_behind_a_removal_that_cannot_be_settled_has_a_limit() {
    let options = FsOptions { write_limit: Duration::from_millis(200), ..FsOptions::default() };
    let (store, fs) = with(options).await;
    let unknown = Err(TxError::OutcomeUnknown.into());
    let opened = async |id| {
        let opening = tokio::time::timeout(Duration::from_secs(20), fs.open_file(id));
        opening.await.expect("it has a limit").map(|_| ())
    };
    let id = make(&fs, fs.root(), "f", &file()).await;
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, unknown);
    let denied = TxError::NoRight("you may only read it".into());
    store.refuse(id.page, Some(denied.clone()));
    assert_eq!(fs.settle_unknown().await, Err(denied.into()));
    assert_eq!(opened(id).await, Err(TxError::TimedOut.into()));
    // Not before its time: the removal may be done yet.
    store.refuse(id.page, None);
    assert_eq!(opened(id).await, Err(TxError::TimedOut.into()));
    fs.settle_unknown().await.expect("it works");
    assert_eq!(opened(id).await, Ok(()));
    assert_eq!(store.arrive(), 0);
    // Nor where it is damaged: it may be read the next time, and the removal come late.
    store.delay_next_commit();
    assert_eq!(fs.unlink(fs.root(), b"f").await, unknown);
    store.damage(id.page, true);
    let damaged = fs.settle_unknown().await;
    assert!(matches!(damaged, Err(FsError::Store(TxError::Damaged(_)))), "{damaged:?}");
    assert_eq!(opened(id).await, Err(TxError::TimedOut.into()));
}

/// Bug 153. The origin was restored from an older copy, and a symbolic link came to be where a file had been, under
/// its very inode. Whoever knew the file opened it still: the link was opened as a file, what he wrote showed as
/// its size, and the commit would have put it over the link's target.
#[tokio::test]
async fn a_link_in_the_place_of_a_file_is_not_opened() {
    let (_, fs) = fresh().await;
    let link = Create { target: "f".into(), ..kind(Kind::Symlink) };
    let link = make(&fs, fs.root(), "link", &link).await;
    let opened = fs.open_file(link).await.map(|_| ());
    assert!(matches!(opened, Err(FsError::Invalid(_))), "{opened:?}");
    assert_eq!(fs.readlink(link).await, Ok("f".into()));
    let directory = make(&fs, fs.root(), "d", &directory()).await;
    assert_eq!(fs.open_file(directory).await.map(|_| ()), Err(FsError::IsDirectory));
}
