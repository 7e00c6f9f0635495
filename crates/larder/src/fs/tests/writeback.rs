//! Commits of what was written: their end beside steady writers, and files that cannot be
//! committed beside others that can.

use super::super::memory::Stall;
use super::open::{stalled, with, written};
use super::*;
use std::time::Duration;

fn unreadable() -> TxError {
    TxError::Unavailable("page 7 cannot be read".into())
}

fn unknown() -> Result<(), FsError> {
    Err(TxError::OutcomeUnknown.into())
}

/// A file in a directory of its own, so that its inode is in no other's page.
async fn apart(fs: &Fs, name: &str) -> InodeId {
    let directory = make(fs, fs.root(), name, &directory()).await;
    make(fs, directory, "f", &file()).await
}

/// A logger wrote a line every few milliseconds, and a commit took longer: whoever began to commit
/// its file never came to an end. `fsync` and close failed though all was durable, and the task
/// that commits what is old stayed with that file for good, so that no other was ever committed.
#[tokio::test]
async fn a_commit_has_an_end_beside_a_steady_writer() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "log", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    let handle = Arc::new(handle);
    written(&fs, &handle, 0, 10).await.expect("it works");
    store.stall(Stall::Before);
    let (flusher, flushed) = (fs.clone(), handle.clone());
    let flushing = tokio::spawn(async move { flusher.flush(&flushed).await });
    for line in 1..=20 {
        while store.stalled() == 0 && !flushing.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if flushing.is_finished() {
            break;
        }
        written(&fs, &handle, line * 10, 10).await.expect("there is room");
        // One step on: from before the commit to after it, or to the next.
        let next = if line % 2 == 1 { Stall::After } else { Stall::Before };
        store.stall(next);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(flushing.is_finished(), "it goes on as long as somebody writes");
    flushing.await.expect("it works").expect("what was there is durable");
    let seen = open(&store).await.getattr(id).await.expect("it works").inode.size;
    assert_eq!(seen, 10, "what came meanwhile waits for its own commit");
    store.stall(Stall::Nowhere);
    fs.release(&handle).await.expect("it works");
}

/// What was to be durable was written over while its commit was under way: it is durable as it
/// was, not left out because newer bytes lie there that nobody commits yet.
#[tokio::test]
async fn bytes_written_over_meanwhile_are_durable_as_they_were() {
    let (store, fs) = with(FsOptions::default()).await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    let handle = Arc::new(handle);
    // Two commits' worth.
    for part in 0..2 {
        written(&fs, &handle, part * (3 << 20), 3 << 20).await.expect("it works");
    }
    store.stall(Stall::Before);
    let (flusher, flushed) = (fs.clone(), handle.clone());
    let flushing = tokio::spawn(async move { flusher.flush(&flushed).await });
    stalled(&store).await;
    fs.write(&handle, 4 << 20, vec![2; 100].into()).await.expect("it works");
    store.stall(Stall::Nowhere);
    flushing.await.expect("it works").expect("it works");
    assert_eq!(read_file(&open(&store).await, id).await, vec![1; 6 << 20]);
    assert_eq!(handle.dirty_bytes(), 100);
    fs.release(&handle).await.expect("it works");
    let mut expected = vec![1; 6 << 20];
    expected[4 << 20..][..100].fill(2);
    assert_eq!(read_file(&fs, id).await, expected);
}

/// One page could not be read at the origin: the file in it could not be committed, and the round
/// that commits what is old ended there, so that files after it were never committed either. When
/// all the memory for what waits was used, every writer was given that file's error.
#[tokio::test]
async fn a_file_that_cannot_be_committed_does_not_stop_the_others() {
    let options = FsOptions {
        dirty_total_max: 30_000,
        write_limit: Duration::from_millis(500),
        ..FsOptions::default()
    };
    let (store, fs) = with(options).await;
    let mut files = Vec::new();
    for name in ["a", "b"] {
        let id = apart(&fs, name).await;
        files.push((id, fs.open_file(id).await.expect("it works").0));
    }
    files.sort_by_key(|(id, _)| *id);
    let [(bad, first), (_, second)] = &files[..] else { panic!("two files") };
    store.refuse(bad.page, Some(unreadable()));
    written(&fs, first, 0, 10_000).await.expect("it works");
    written(&fs, second, 0, 15_000).await.expect("there is room");
    written(&fs, second, 20_000, 5000).await.expect("room is made by another than the oldest");
    fs.flush(second).await.expect("it works");
    written(&fs, second, 0, 10_000).await.expect("it works");
    fs.flush_aged(Duration::ZERO).await;
    assert_eq!((first.dirty_bytes(), second.dirty_bytes()), (10_000, 0));
    // The memory is used, and the oldest file cannot give any.
    written(&fs, second, 0, 15_000).await.expect("there is room");
    written(&fs, second, 20_000, 9000).await.expect("room is made by what can be committed");
    assert_eq!(fs.flush(first).await, Err(unreadable().into()));
    assert_eq!(first.dirty_bytes(), 10_000, "it may be readable again");
    // One that gets no answer stops the round, which is not begun with it again and again.
    store.refuse(bad.page, Some(TxError::TimedOut));
    fs.flush_aged(Duration::ZERO).await;
    assert_eq!((first.dirty_bytes(), second.dirty_bytes()), (10_000, 9000));
    fs.flush_aged(Duration::ZERO).await;
    assert_eq!((first.dirty_bytes(), second.dirty_bytes()), (10_000, 0));
    store.refuse(bad.page, None);
    for (_, handle) in &files {
        fs.release(handle).await.expect("it works");
    }
    assert_eq!(fs.waiting_bytes(), 0);
}

/// Bytes read with others in them that wait for their commit were said to be of the update below:
/// kept as such, they stayed when another node had written over them, or when they were lost.
#[tokio::test]
async fn bytes_that_wait_are_of_no_update() {
    let (_, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &handle, 0, 100).await.expect("it works");
    fs.flush(&handle).await.expect("it works");
    let change = fs.getattr(id).await.expect("it works").inode.change;
    written(&fs, &handle, 50, 100).await.expect("it works");
    let read = async |offset, length| {
        fs.read_counted(&handle, offset, length).await.expect("it works").change
    };
    assert_eq!(read(0, 100).await, None);
    assert_eq!(read(0, 10).await, None, "the size is of no update either");
    fs.flush(&handle).await.expect("it works");
    assert_eq!(read(0, 100).await, Some(change + 1));
    fs.release(&handle).await.expect("it works");
}

/// The commit of written bytes got no answer within its limit, was done all the same, and another
/// node wrote over them; then the bytes were committed again, over the other's.
#[tokio::test]
async fn bytes_committed_without_an_answer_are_not_committed_again_over_others() {
    for given_up in [false, true] {
        let (store, fs) = fresh().await;
        let other = open(&store).await;
        let id = make(&fs, fs.root(), "f", &file()).await;
        let (handle, _) = fs.open_file(id).await.expect("it works");
        written(&fs, &handle, 0, 100).await.expect("it works");
        if given_up {
            // By who asked for the commit, when it was done and not answered.
            store.stall(Stall::After);
            let flushing = fs.flush(&handle);
            assert!(tokio::time::timeout(Duration::from_millis(50), flushing).await.is_err());
            store.stall(Stall::Nowhere);
        } else {
            store.delay_next_commit();
            assert_eq!(fs.flush(&handle).await, unknown());
            assert_eq!(store.arrive(), 1);
        }
        assert_eq!(handle.dirty_bytes(), 100, "nobody here knows");
        written(&fs, &handle, 200, 10).await.expect("it works");
        write_file(&other, id, 0, b"theirs").await;
        // Who wrote what cannot be told after two updates, so that the writer is told of a loss;
        // but what was written later is committed.
        assert_eq!(fs.flush(&handle).await, unknown());
        assert_eq!(fs.flush(&handle).await, Ok(()));
        let bytes = read_file(&other, id).await;
        assert_eq!((&bytes[..6], &bytes[200..]), (&b"theirs"[..], &[1; 10][..]));
        assert_eq!((fs.waiting_bytes(), store.lost()), (0, 100));
        fs.release(&handle).await.expect("it works");
        clean(&other).await;
    }
}

/// Nobody else wrote: then it can be told what became of a commit without an answer, and nothing is
/// lost and nothing is done twice.
#[tokio::test]
async fn what_became_of_a_commit_without_an_answer_is_found_out() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    let change = async || other.getattr(id).await.expect("it works").inode.change;
    // Done.
    written(&fs, &handle, 0, 100).await.expect("it works");
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, unknown());
    assert_eq!(store.arrive(), 1);
    let commits = store.commits();
    assert_eq!(fs.flush(&handle).await, Ok(()));
    assert_eq!((store.commits(), change().await), (commits, 1));
    // Not done, and it may come yet: once the bytes are committed by another it must not be done.
    written(&fs, &handle, 0, 50).await.expect("it works");
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, unknown());
    assert_eq!(fs.flush(&handle).await, Ok(()));
    write_file(&other, id, 0, b"theirs").await;
    assert_eq!((store.arrive(), change().await), (0, 3));
    assert_eq!(&read_file(&other, id).await[..6], b"theirs");
    // Not done, since another's write came before it.
    written(&fs, &handle, 0, 50).await.expect("it works");
    store.delay_next_commit();
    assert_eq!(fs.flush(&handle).await, unknown());
    write_file(&other, id, 60, b"beside").await;
    assert_eq!(store.arrive(), 0);
    assert_eq!(fs.flush(&handle).await, Ok(()));
    let bytes = read_file(&other, id).await;
    assert_eq!((&bytes[..50], &bytes[60..66]), (&[1; 50][..], &b"beside"[..]));
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 0));
    fs.release(&handle).await.expect("it works");
    clean(&other).await;
}

/// An operation passed its limit and dropped its handle with bytes in it, and the node was cut off.
/// The bytes waited for hours, and were then committed over what others had written since.
#[tokio::test]
async fn what_nobody_holds_is_not_committed_hours_later() {
    let options = FsOptions { dropped_age: Duration::from_millis(200), ..FsOptions::default() };
    let (store, fs) = with(options).await;
    let other = open(&store).await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &handle, 0, 100).await.expect("it works");
    drop(handle);
    store.fail_next_commit(TxError::TimedOut);
    fs.flush_aged(Duration::ZERO).await;
    assert!(fs.waiting_bytes() > 0, "it is tried again");
    tokio::time::sleep(Duration::from_millis(250)).await;
    write_file(&other, id, 0, b"theirs").await;
    fs.flush_aged(Duration::ZERO).await;
    assert_eq!(read_file(&other, id).await, b"theirs");
    assert_eq!((fs.waiting_bytes(), store.lost()), (0, 100));
    // Whoever opens it next is told, once.
    assert!(!fs.open_files.is_open(id));
    let (handle, _) = fs.open_file(id).await.expect("it works");
    let (second, _) = fs.open_file(id).await.expect("it works");
    for handle in [&handle, &second] {
        assert_eq!(fs.flush(handle).await, Err(TxError::TimedOut.into()));
        fs.release(handle).await.expect("it works");
    }
    write_file(&fs, id, 0, b"ours").await;
    // Opened again in time they stay.
    let (handle, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &handle, 0, 3).await.expect("it works");
    drop(handle);
    let (handle, _) = fs.open_file(id).await.expect("it works");
    tokio::time::sleep(Duration::from_millis(250)).await;
    fs.flush_aged(Duration::ZERO).await;
    fs.release(&handle).await.expect("it works");
    assert_eq!(&read_file(&other, id).await[..], b"\x01\x01\x01srs");
}

/// A handle was dropped with bytes that waited, and their commit met conflicts as often as it is
/// tried: the bytes were thrown away, though the next attempt would have succeeded.
#[tokio::test]
async fn what_a_dropped_handle_wrote_outlives_a_conflict() {
    let options = FsOptions { attempts_max: 1, ..FsOptions::default() };
    let (store, fs) = with(options).await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    written(&fs, &handle, 0, 100).await.expect("it works");
    drop(handle);
    store.fail_next_commit(TxError::Conflict("busy".into()));
    fs.flush_aged(Duration::ZERO).await;
    fs.flush_aged(Duration::ZERO).await;
    assert_eq!(read_file(&open(&store).await, id).await, vec![1; 100]);
    assert_eq!(fs.waiting_bytes(), 0);
}
