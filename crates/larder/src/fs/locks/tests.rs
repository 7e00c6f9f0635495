//! Locks of two nodes on one store.

use super::*;
use crate::fs::memory::MemoryStore;
use crate::fs::{Create, FsOptions, Kind, PAGE_BYTES, Place as WritePlace, check, on_behalf_of};
use bytes::Bytes;
use std::sync::Arc;

type Fs = Arc<FileSystem<MemoryStore>>;

async fn node(store: &MemoryStore, lease: Duration) -> Fs {
    let options = FsOptions { lock_lease: lease, ..FsOptions::default() };
    Arc::new(FileSystem::open_or_format(store.clone(), options, [7; 16]).await.expect("it works"))
}

async fn file(fs: &Fs) -> InodeId {
    let (kind, target) = (Kind::File, Bytes::new());
    let create = Create { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, target, device: 0 };
    let found = fs.create(fs.root(), b"f", &create).await.expect("it works");
    found.attr.expect("just made").id
}

fn ask(owner: u64, kind: LockKind, start: u64, end: u64) -> LockAsk {
    LockAsk { owner, pid: owner as u32, kind, start, end }
}

const LONG: Duration = Duration::from_secs(3600);
const ALL: u64 = u64::MAX;

#[tokio::test]
async fn locks_hold_at_the_other_node() {
    use LockKind::{Read, Write};
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (node(&store, LONG).await, node(&store, LONG).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, Read, 0, ALL)).await, Ok(None));
    assert_eq!(two.lock(id, &ask(1, Read, 0, 99)).await, Ok(None), "shared");
    let other = two.lock(id, &ask(1, Write, 50, 60)).await.expect("it works").expect("in the way");
    assert_eq!((other.start, other.end, other.kind, other.pid), (0, ALL, Read, 1));
    let seen = two.lock_in_the_way(id, &ask(1, Write, 50, 60)).await.expect("it works");
    assert_eq!(seen, Some(other));
    assert_eq!(two.lock_in_the_way(id, &ask(1, Read, 50, 60)).await, Ok(None));
    // A part is released: the upgrade of just that part goes.
    one.unlock(id, 1, 40, 70).await.expect("it works");
    assert_eq!(two.lock(id, &ask(1, Write, 50, 60)).await, Ok(None));
    assert!(one.lock(id, &ask(2, Read, 55, 55)).await.expect("it works").is_some());
    assert_eq!(
        one.lock(id, &ask(2, Write, 61, 70)).await.expect("it works").map(|l| l.kind),
        Some(Read)
    );
    for fs in [&one, &two] {
        fs.unlock(id, 1, 0, ALL).await.expect("it works");
        assert!(!fs.holds_lock(id, 1));
    }
    assert_eq!(one.lock(id, &ask(2, Write, 0, ALL)).await, Ok(None));
    one.release_all_locks().await.expect("it works");
    assert_eq!(two.lock(id, &ask(1, Write, 0, ALL)).await, Ok(None), "its node left");
    let report = check::check(&one, &check::CheckOptions::default(), &mut |_| {}).await;
    assert!(report.expect("it works").is_clean());
}

/// What was written under a lock is committed before the release is seen.
#[tokio::test]
async fn a_release_comes_after_what_was_written() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (node(&store, LONG).await, node(&store, LONG).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, ALL)).await, Ok(None));
    let (handle, _) = one.open_file(id).await.expect("it works");
    one.write(&handle, 0, Bytes::from_static(b"under a lock")).await.expect("it works");
    one.unlock(id, 1, 0, ALL).await.expect("it works");
    assert_eq!(two.lock(id, &ask(1, LockKind::Read, 0, ALL)).await, Ok(None));
    let (other, _) = two.open_file(id).await.expect("it works");
    assert_eq!(two.read(&other, 0, 100).await.expect("it works"), &b"under a lock"[..]);
}

/// A node is cut off for longer than the lease. Another removes it and takes the lock. What the first
/// wrote under its lock, and writes when it is back, must never come to be over the other's.
#[tokio::test]
async fn a_node_that_is_gone_loses_its_locks_and_may_write_nothing_more() {
    let store = MemoryStore::new(PAGE_BYTES);
    let lease = Duration::from_millis(200);
    let (one, two) = (node(&store, lease).await, node(&store, lease).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, ALL)).await, Ok(None));
    let (handle, _) = one.open_file(id).await.expect("it works");
    one.write(&handle, 0, Bytes::from_static(b"late")).await.expect("it works");
    let taken = async {
        while two.lock(id, &ask(1, LockKind::Write, 0, ALL)).await.expect("it works").is_some() {
            two.tend_locks().await.expect("it works");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken).await.expect("it is gone");
    let (other, _) = two.open_file(id).await.expect("it works");
    two.write(&other, 0, Bytes::from_static(b"new!")).await.expect("it works");
    two.flush(&other).await.expect("it works");

    assert_eq!(one.flush(&handle).await, Err(FsError::LockLost));
    let late = Bytes::from_static(b"late");
    assert_eq!(one.write(&handle, 0, late.clone()).await, Err(FsError::LockLost));
    let through = one.write_through(&handle, WritePlace::At(0), late).await;
    assert_eq!(through, Err(FsError::LockLost));
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, 0)).await, Err(FsError::LockLost));
    assert_eq!(two.read(&other, 0, 100).await.expect("it works"), &b"new!"[..]);
    // Opened anew it is as any other.
    let _told = one.release(&handle).await;
    one.lock_file_closed(id);
    let (handle, _) = one.open_file(id).await.expect("it works");
    assert!(one.lock(id, &ask(1, LockKind::Write, 0, 0)).await.expect("it works").is_some());
    one.write(&handle, 4, Bytes::from_static(b"!")).await.expect("it works");
    one.flush(&handle).await.expect("it works");
}

/// A node that renews its lease keeps its locks, however long another waits.
#[tokio::test]
async fn a_node_that_lives_keeps_its_locks() {
    let store = MemoryStore::new(PAGE_BYTES);
    let lease = Duration::from_millis(200);
    let (one, two) = (node(&store, lease).await, node(&store, LONG).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, ALL)).await, Ok(None));
    for _ in 0..100 {
        one.tend_locks().await.expect("it works");
        assert!(two.lock(id, &ask(1, LockKind::Read, 0, 9)).await.expect("it works").is_some());
        two.tend_locks().await.expect("it works");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Many processes of two nodes take one lock in turns: never two at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_what_another_holds() {
    let store = MemoryStore::new(PAGE_BYTES);
    let nodes = [node(&store, LONG).await, node(&store, LONG).await];
    let id = file(&nodes[0]).await;
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = Vec::new();
    for owner in 0..6u64 {
        let (fs, inside) = (nodes[owner as usize % 2].clone(), inside.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                while fs
                    .lock(id, &ask(owner, LockKind::Write, 0, 9))
                    .await
                    .expect("it works")
                    .is_some()
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                fs.unlock(id, owner, 0, 9).await.expect("it works");
            }
        }));
    }
    for task in tasks {
        task.await.expect("it works");
    }
}

#[tokio::test]
async fn a_file_has_so_many_locks_and_no_more() {
    let store = MemoryStore::new(PAGE_BYTES);
    let fs = node(&store, LONG).await;
    let id = file(&fs).await;
    for at in 0..FILE_LOCKS_MAX as u64 {
        assert_eq!(fs.lock(id, &ask(1, LockKind::Read, 2 * at, 2 * at)).await, Ok(None));
    }
    assert_eq!(fs.lock(id, &ask(1, LockKind::Read, 5000, 5001)).await, Err(FsError::NoLocks));
    // One that needs no further place is taken.
    assert_eq!(fs.lock(id, &ask(1, LockKind::Read, 0, 5001)).await, Ok(None));
}

/// The line was cut while a process released all it held of a file; it was owed. The line came back,
/// the process was given a part of the file anew, and then what was owed was released, and that part
/// with it: another node was given it as well. SQLite does just that, with several parts.
#[tokio::test]
async fn a_release_that_is_owed_takes_nothing_that_was_given_since() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (node(&store, LONG).await, node(&store, LONG).await);
    let id = file(&one).await;
    for (start, end) in [(0, 9), (20, 29), (100, ALL)] {
        assert_eq!(one.lock(id, &ask(1, LockKind::Read, start, end)).await, Ok(None));
    }
    store.fail_next_commit(TxError::Unavailable("cut off".into()));
    one.unlock(id, 1, 0, ALL).await.expect_err("the line is cut");
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 22, 25)).await, Ok(None));
    one.release_owed_locks().await.expect("it works");
    assert!(two.lock(id, &ask(9, LockKind::Read, 25, 25)).await.expect("it works").is_some());
    for (start, end) in [(0, 21), (26, ALL)] {
        assert_eq!(two.lock(id, &ask(9, LockKind::Write, start, end)).await, Ok(None));
    }
    assert!(one.holds_lock(id, 1));
    one.unlock(id, 1, 0, ALL).await.expect("it works");
    assert_eq!(two.lock(id, &ask(9, LockKind::Write, 0, ALL)).await, Ok(None));
}

/// A process that reads under a lock asked to write, and what became of that was not known. Its whole
/// lock was released later, although it holds that for reading still.
#[tokio::test]
async fn an_upgrade_without_an_answer_leaves_what_was_held() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (node(&store, LONG).await, node(&store, LONG).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Read, 10, 19)).await, Ok(None));
    store.fail_next_commit(TxError::OutcomeUnknown);
    one.lock(id, &ask(1, LockKind::Write, 0, 14)).await.expect_err("there is no answer");
    one.release_owed_locks().await.expect("it works");
    assert_eq!(two.lock(id, &ask(9, LockKind::Write, 0, 9)).await, Ok(None));
    assert_eq!(two.lock(id, &ask(9, LockKind::Read, 10, 30)).await, Ok(None));
    assert!(two.lock(id, &ask(9, LockKind::Write, 12, 12)).await.expect("it works").is_some());
}

/// A machine died holding a lock that others try for now and then, without waiting. Each try entered
/// the node that made it into the table, and it left again before it could have seen that the other's
/// lease does not change: the lock was never released.
#[tokio::test]
async fn a_dead_nodes_lock_is_found_by_those_who_try_now_and_then() {
    let store = MemoryStore::new(PAGE_BYTES);
    let lease = Duration::from_millis(200);
    let (one, two) = (node(&store, lease).await, node(&store, lease).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, ALL)).await, Ok(None));
    let taken = async {
        while two.lock(id, &ask(1, LockKind::Write, 0, 9)).await.expect("it works").is_some() {
            // Longer than the lease.
            for _ in 0..6 {
                tokio::time::sleep(lease / 4).await;
                two.tend_locks().await.expect("it works");
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken).await.expect("it is released");
}

/// Lets `two` find that `one` is gone, and take its lock for `owner`.
async fn take_over(two: &Fs, id: InodeId, owner: u64) {
    let taken = async {
        let wanted = ask(owner, LockKind::Write, 0, ALL);
        while two.lock(id, &wanted).await.expect("it works").is_some() {
            two.tend_locks().await.expect("it works");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken).await.expect("it is gone");
}

async fn named(fs: &Fs, name: &[u8]) -> InodeId {
    let (kind, target) = (Kind::File, Bytes::new());
    let create = Create { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, target, device: 0 };
    let found = fs.create(fs.root(), name, &create).await.expect("it works");
    found.attr.expect("just made").id
}

/// A process held a database alone, with its journal written, and its machine slept longer than the
/// lease. Another rolled the journal back and began a transaction, with a journal of its own. The
/// first woke and removed the journal by name, which is how it commits; and what it had written of
/// it before came to lie in the other's. Nothing of the sort may be done any more, by it; whoever else
/// works at that node goes on.
#[tokio::test]
async fn who_lost_a_lock_changes_nothing_beside_the_locked_file_either() {
    let store = MemoryStore::new(PAGE_BYTES);
    let lease = Duration::from_millis(200);
    let (one, two) = (node(&store, lease).await, node(&store, lease).await);
    let (database, journal) = (named(&one, b"db").await, named(&one, b"db-journal").await);
    let plain = named(&one, b"plain").await;
    let open = |id| one.open_file(id);
    let (held, _) = open(database).await.expect("it works");
    let (beside, _) = open(journal).await.expect("it works");
    let (others, _) = open(plain).await.expect("it works");
    assert_eq!(one.lock(database, &ask(7, LockKind::Write, 0, ALL)).await, Ok(None));
    let write = |handle, by| {
        let fs = one.clone();
        on_behalf_of(by, async move { fs.write(handle, 0, Bytes::from_static(b"one")).await })
    };
    write(&beside, 7).await.expect("it works");
    write(&others, 8).await.expect("it works");

    take_over(&two, database, 3).await;
    let (anew, _) = two.open_file(journal).await.expect("it works");
    two.write(&anew, 0, Bytes::from_static(b"two")).await.expect("it works");
    two.flush(&anew).await.expect("it works");

    // It does not know yet; nor does whoever commits for it.
    one.flush_aged(Duration::ZERO).await;
    assert_eq!(two.read(&anew, 0, 9).await.expect("it works"), &b"two"[..]);
    let (root, name) = (one.root(), &b"db-journal"[..]);
    let removed = on_behalf_of(7, one.unlink(root, name)).await;
    assert_eq!(removed.map(|_| ()), Err(FsError::LockLost));
    assert!(two.lookup(root, name).await.expect("it works").attr.is_some());
    assert_eq!(one.flush(&beside).await, Err(FsError::LockLost), "it is told");
    // Another process of that node, and what it wrote.
    one.flush(&others).await.expect("it works");
    on_behalf_of(8, one.unlink(root, b"plain")).await.expect("it works");
    // What it would write now is refused when it is written, not with what others write there.
    assert_eq!(write(&others, 7).await, Err(FsError::LockLost));
    // Its other locks, and those of others, are held on: they are of an entry that stands.
    let (mine, theirs) = (named(&one, b"mine").await, named(&one, b"theirs").await);
    assert_eq!(one.lock(mine, &ask(7, LockKind::Write, 0, ALL)).await, Ok(None));
    assert_eq!(one.lock(theirs, &ask(8, LockKind::Write, 0, ALL)).await, Ok(None));
    on_behalf_of(7, one.unlock(mine, 7, 0, ALL)).await.expect("it works");
    assert!(one.holds_lock(theirs, 8) && !one.holds_lock(mine, 7));
    // With the database closed there the first may go on.
    let _told = one.release(&held).await;
    one.lock_file_closed(database);
    on_behalf_of(7, one.unlink(root, name)).await.expect("it works");
}

/// The kernel was told that a lock could not be had in time, and the lock was held nevertheless, until
/// the file was closed. It is given back at once, and what was held before it is held on.
#[tokio::test]
async fn a_lock_that_nobody_waits_for_any_more_is_given_back() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (node(&store, LONG).await, node(&store, LONG).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Read, 10, 19)).await, Ok(None));
    let upgrade = ask(1, LockKind::Write, 0, 14);
    assert_eq!(one.lock_if_wanted(id, &upgrade, || async { false }).await, Ok(None));
    assert_eq!(two.lock(id, &ask(9, LockKind::Write, 0, 9)).await, Ok(None));
    assert_eq!(two.lock(id, &ask(9, LockKind::Read, 10, 19)).await, Ok(None));
    assert!(two.lock(id, &ask(9, LockKind::Write, 19, 19)).await.expect("it works").is_some());
    // The line was cut when it was to be given back.
    let cut = || {
        store.fail_next_commit(TxError::Unavailable("cut off".into()));
        async { false }
    };
    assert_eq!(one.lock_if_wanted(id, &ask(1, LockKind::Write, 30, 39), cut).await, Ok(None));
    assert!(two.lock(id, &ask(9, LockKind::Read, 30, 30)).await.expect("it works").is_some());
    one.release_owed_locks().await.expect("it works");
    assert_eq!(two.lock(id, &ask(9, LockKind::Read, 30, 30)).await, Ok(None));
}

/// A release got no answer and was owed; the same process then asked for more in that range, without
/// an answer either. What was to be released was taken for what it keeps, and was held for good.
#[tokio::test]
async fn what_is_owed_is_not_kept() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (node(&store, LONG).await, node(&store, LONG).await);
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Read, 0, 99)).await, Ok(None));
    store.fail_next_commit(TxError::Unavailable("cut off".into()));
    one.unlock(id, 1, 0, 49).await.expect_err("the line is cut");
    store.fail_next_commit(TxError::OutcomeUnknown);
    one.lock(id, &ask(1, LockKind::Write, 0, 59)).await.expect_err("there is no answer");
    one.release_owed_locks().await.expect("it works");
    assert_eq!(two.lock(id, &ask(9, LockKind::Write, 0, 49)).await, Ok(None));
    assert!(two.lock(id, &ask(9, LockKind::Write, 50, 50)).await.expect("it works").is_some());
}

/// Locks of nodes that are gone were left in the table until somebody locked the same file. A build
/// locks files of its own names: in the end the table was full.
#[tokio::test]
async fn a_dead_nodes_locks_leave_the_table() {
    let store = MemoryStore::new(PAGE_BYTES);
    let lease = Duration::from_millis(200);
    let (one, two) = (node(&store, lease).await, node(&store, lease).await);
    let id = file(&one).await;
    for n in 0..40u32 {
        let other = named(&one, format!("lock-{n}").as_bytes()).await;
        assert_eq!(one.lock(other, &ask(1, LockKind::Write, 0, ALL)).await, Ok(None));
    }
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, ALL)).await, Ok(None));
    take_over(&two, id, 3).await;
    two.sweep_void_locks().await.expect("it works");
    let table = guard(&two.locks.state).table.expect("there are locks");
    let mut kept = 0;
    let tx = two.store.begin(crate::fs::Mode::Normal).await.expect("it works");
    for page in table.lock_pages() {
        kept += tx.slots(page).await.expect("it works").map_or(0, |slots| slots.len());
    }
    assert_eq!(kept, 1, "that which was taken over");
}

/// A hundred who wait for what one of their own machine holds kept its release behind a question of
/// each of them to the origin.
#[tokio::test]
async fn what_a_node_holds_itself_is_in_the_way_without_a_question() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = node(&store, LONG).await;
    let id = file(&one).await;
    assert_eq!(one.lock(id, &ask(1, LockKind::Write, 0, 9)).await, Ok(None));
    let asked = (store.commits(), store.refreshes());
    let other = one.lock(id, &ask(2, LockKind::Read, 5, 5)).await.expect("it works");
    assert_eq!(other.map(|lock| lock.holder.owner), Some(1));
    assert_eq!((store.commits(), store.refreshes()), asked);
}
