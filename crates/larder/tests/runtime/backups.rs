//! Backups of a volume that is in use, over TLS sockets, and what is restored of them.

use crate::common::{Site, create, number, proxy, session};
use bytes::Bytes;
use larder::backup::format::{Header, Trailer, Writer};
use larder::backup::{BackupError, BackupOptions, RestoreOptions, back_up, restore, verify};
use larder::client::{Error, Node, Volume, VolumeOptions};
use larder::core::commit::PageKind;
use larder::core::id::{DomainId, HistoryId, ObjectId, PageId, PageNo, Slot, Stamp, VolumeId};
use larder::core::record::{InstallBatch, InstalledPage, StoredPage};
use larder::core::rights::{Right, RightsEdit};
use larder::fs::check::{CheckOptions, Problem, check};
use larder::fs::client::VolumeStore;
use larder::fs::{
    Content, Create, FileSystem, FsError, FsOptions, Kind, LockAsk, LockKind, PAGE_BYTES,
};
use larder_store::pages::{FjallConfig, FjallPages, Pages};
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const PAGES: u64 = 60;

/// A number in each of many pages.
async fn numbers(volume: &Volume) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    for _ in 0..PAGES {
        let of = volume.id();
        let id = session(volume)
            .transact(|tx| async move {
                let page = tx.create_page(of, PageKind::Slotted).await?;
                // A slot that is used for the second time: its generation must come again.
                let gone = tx.create_at(page, Slot(5), vec![1; 8]).await?;
                tx.delete(gone).await?;
                tx.create_at(page, Slot(5), vec![0; 8]).await
            })
            .await
            .expect("a new page");
        ids.push(id);
    }
    ids
}

/// Writes 1, 2, 3, … into all numbers of a group, each in one transaction, and notes what is done.
async fn write_groups(
    volume: Volume,
    ids: Vec<ObjectId>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) {
    let session = session(&volume);
    while !stop.load(Ordering::Relaxed) {
        let next = done.load(Ordering::Relaxed) + 1;
        let ids = &ids;
        let written = session.transact(|tx| async move {
            for id in ids {
                tx.update(*id, next.to_le_bytes().to_vec()).await?;
            }
            Ok::<_, Error>(())
        });
        written.await.expect("nobody else writes these");
        done.store(next, Ordering::Relaxed);
    }
}

async fn read(volume: &Volume, id: ObjectId) -> u64 {
    // The same page, slot and generation in the volume that was restored.
    let id = ObjectId { page: volume.page(id.page.page), ..id };
    let value = session(volume).read(|tx| async move { tx.get(id).await }).await;
    number(&value.expect("it is there"))
}

/// Two writers change every page all the time; the backup holds one moment: all numbers of a group are
/// equal, none is older than what was done before it began.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_busy_volume_is_of_one_moment() {
    let site = Site::new();
    let origin = site.origin().await;
    let relay = site.relay(&origin.address().to_string()).await;
    let line = proxy(&relay.address().to_string(), Duration::from_millis(5)).await;
    let one = site.node("one", &origin.address().to_string()).await;
    let two = site.node("two", &line.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let ids = numbers(&volume).await;
    let stop = Arc::new(AtomicBool::new(false));
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let half = ids.len() / 2;
    let writers: Vec<_> = [&ids[..half], &ids[half..]]
        .into_iter()
        .zip(&counts)
        .map(|(ids, done)| {
            let (ids, stop, done) = (ids.to_vec(), stop.clone(), done.clone());
            tokio::spawn(write_groups(volume.clone(), ids, stop, done))
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let there = two.volume("shared").await.expect("it was made");
    for _ in 0..5 {
        let before: Vec<u64> = counts.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        let (summary, file) = back_up(&there, Vec::new(), &BackupOptions::default(), &mut |_| {})
            .await
            .expect("copies");
        let after: Vec<u64> = counts.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        assert_eq!(verify(&file[..], &mut |_| {}).expect("it is whole"), summary);
        assert_eq!(summary.trailer.pages, PAGES + 1);
        let name = format!("again-{}", summary.trailer.stamp);
        let restored =
            restore(&one, Cursor::new(file), &name, &RestoreOptions::default(), &mut |_| {})
                .await
                .expect("it is made");
        assert_ne!(restored.volume, volume.id());
        let again = one.volume(&name).await.expect("it is there");
        for (group, (before, after)) in
            [&ids[..half], &ids[half..]].into_iter().zip(before.into_iter().zip(after))
        {
            let first = read(&again, group[0]).await;
            for id in group {
                assert_eq!(read(&again, *id).await, first, "one moment");
            }
            assert!((before..=after + 1).contains(&first), "{before} ≤ {first} ≤ {after} + 1");
        }
        // Numbers of the past are given to nobody.
        let fresh = again.allocate_pages(1).await.expect("a number");
        assert!(ids.iter().all(|id| id.page.page < fresh), "{fresh:?}");
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("no panic");
    }
}

async fn tree(volume: &Volume) -> FileSystem<VolumeStore> {
    let limit = Duration::from_secs(20);
    let store = VolumeStore::new(
        volume.clone(),
        larder::client::Freshness::Leased,
        limit,
        limit,
        Duration::ZERO,
    );
    FileSystem::open(store, FsOptions::default()).await.expect("a tree")
}

async fn files(node: &Node) -> Volume {
    let options = VolumeOptions { page_bytes: PAGE_BYTES, ..VolumeOptions::new("files") };
    let volume = node.create_volume(options).await.expect("a new volume");
    let limit = Duration::from_secs(20);
    let freshness = larder::client::Freshness::Leased;
    let store = VolumeStore::new(volume.clone(), freshness, limit, limit, Duration::ZERO);
    FileSystem::open_or_format(store, FsOptions::default(), [9; 16]).await.expect("a new tree");
    volume
}

fn plain(kind: Kind) -> Create {
    let target = Bytes::new();
    Create { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, target, device: 0 }
}

/// A tree with a file that was removed while open and a lock that is held: in the restored one neither
/// is left, nobody waits for the lock, and its check is clean.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_tree_is_clean_and_free_of_the_past() {
    let site = Site::new();
    let origin = site.origin().await;
    let one = site.node("one", &origin.address().to_string()).await;
    let volume = files(&one).await;
    let fs = tree(&volume).await;
    let folder = fs
        .create(fs.root(), b"folder", &plain(Kind::Directory))
        .await
        .expect("made")
        .attr
        .expect("new")
        .id;
    for i in 0..300 {
        let name = format!("file{i}");
        let made = fs.create(folder, name.as_bytes(), &plain(Kind::File)).await.expect("made");
        let (handle, _) = fs.open_file(made.attr.expect("new").id).await.expect("it opens");
        fs.write(&handle, 0, Bytes::from(vec![i as u8; 100 * i])).await.expect("room");
        fs.release(&handle).await.expect("it commits");
    }
    let held = fs
        .create(fs.root(), b"held", &plain(Kind::File))
        .await
        .expect("made")
        .attr
        .expect("new")
        .id;
    let lock = LockAsk { owner: 1, pid: 1, kind: LockKind::Write, start: 0, end: u64::MAX };
    fs.lock(held, &lock).await.expect("nobody has it");
    let open = fs
        .create(fs.root(), b"open", &plain(Kind::File))
        .await
        .expect("made")
        .attr
        .expect("new")
        .id;
    let (handle, _) = fs.open_file(open).await.expect("it opens");
    fs.unlink(fs.root(), b"open").await.expect("it is there");

    let (_, file) =
        back_up(&volume, Vec::new(), &BackupOptions::default(), &mut |_| {}).await.expect("copies");
    let restored =
        restore(&one, Cursor::new(file.clone()), "again", &RestoreOptions::default(), &mut |_| {})
            .await
            .expect("it is made");
    assert_eq!(restored.freed, 1, "the file that was removed while open");
    let again = tree(&one.volume("again").await.expect("it is there")).await;
    let report = check(&again, &CheckOptions::default(), &mut |_| {}).await.expect("it is read");
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.files, report.orphans), (301, 0));
    let held = again.lookup(again.root(), b"held").await.expect("reads").attr.expect("there").id;
    let theirs = LockAsk { owner: 2, ..lock };
    assert_eq!(again.lock(held, &theirs).await.expect("it is asked"), None, "nobody holds it");

    // It is whole, and another than the file since the orphan was freed: nothing goes on with it.
    let taken =
        restore(&one, Cursor::new(file), "again", &RestoreOptions::default(), &mut |_| {}).await;
    assert!(matches!(taken, Err(BackupError::Changed(_))), "{taken:?}");
    fs.release(&handle).await.expect("closes");
}

/// The story: a volume that only some might read was restored, and the new one had no rights: from its first page
/// on everybody with a certificate might read, write and delete it. Now it is the restorer's alone, until he says
/// otherwise, and what he says meanwhile stays when a restoration is gone on with.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_restored_is_the_restorers_until_he_says_otherwise() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = files(&one).await;
    let edit = |who: &str, right| RightsEdit { who: who.into(), right: Some(right) };
    let private = vec![edit("one", Right::Admin), edit("*", Right::None)];
    one.change_rights(volume.id(), private, false).await.expect("it is his");
    let (_, file) =
        back_up(&volume, Vec::new(), &BackupOptions::default(), &mut |_| {}).await.expect("copies");
    let options = RestoreOptions::default();
    let restored = restore(&one, Cursor::new(&file), "again", &options, &mut |_| {}).await;
    assert_eq!(restored.expect("it is made").admin, "one");
    let refused = two.volume("again").await.map(|volume| volume.id());
    assert!(matches!(refused, Err(Error::NoVolume(_) | Error::Denied(_))), "{refused:?}");
    let again = one.volume("again").await.expect("it is his");
    tree(&again).await;
    // Of one that was begun the rights are set as well, unless somebody set others.
    let options = VolumeOptions { page_bytes: PAGE_BYTES, ..VolumeOptions::new("begun") };
    one.create_volume(options).await.expect("made");
    let grants = vec![edit("two", Right::Read)];
    let options = RestoreOptions { grants, ..RestoreOptions::default() };
    restore(&one, Cursor::new(&file), "begun", &options, &mut |_| {}).await.expect("it goes on");
    let begun = two.volume("begun").await.expect("it may be read");
    assert_eq!(begun.right(), Right::Read);
}

/// A restoration was killed after its last page, page 1, was durable, and before it said so: run again,
/// it said that the volume was no unfinished restoration of the file. It is whole, as the file says.
#[tokio::test(flavor = "multi_thread")]
async fn a_restoration_that_ended_after_its_last_page_is_done() {
    let site = Site::new();
    let origin = site.origin().await;
    let one = site.node("one", &origin.address().to_string()).await;
    let volume = files(&one).await;
    let fs = tree(&volume).await;
    fs.create(fs.root(), b"folder", &plain(Kind::Directory)).await.expect("made");
    let options = BackupOptions::default();
    let (summary, file) =
        back_up(&volume, Vec::new(), &options, &mut |_| {}).await.expect("copies");
    let first = restore(&one, Cursor::new(&file), "again", &RestoreOptions::default(), &mut |_| {})
        .await
        .expect("it is made");
    // All that it did is there, and nobody was told.
    let second =
        restore(&one, Cursor::new(&file), "again", &RestoreOptions::default(), &mut |_| {})
            .await
            .expect("it is whole");
    assert_eq!((second.volume, second.kept), (first.volume, summary.trailer.pages));
    // Used since, it is a volume of its own, and so is one of a later file.
    let again = tree(&one.volume("again").await.expect("it is there")).await;
    again.create(again.root(), b"new", &plain(Kind::File)).await.expect("made");
    let used =
        restore(&one, Cursor::new(&file), "again", &RestoreOptions::default(), &mut |_| {}).await;
    let refused = matches!(used, Err(BackupError::Changed(_) | BackupError::Taken(_)));
    assert!(refused, "{used:?}");
}

/// Puts bytes that do not check in the place of a page's image, in the store of an origin that is
/// stopped; false: the page is not installed yet.
fn damage(site: &Site, page: PageId) -> bool {
    let domains = std::fs::read_dir(site.dir.join("data")).expect("a store");
    let mut folders = domains.map(|entry| entry.expect("readable").path().join("pages"));
    let folder = folders.find(|folder| folder.is_dir()).expect("a domain");
    let engine = FjallPages::open(folder, &FjallConfig::default()).expect("nobody has it");
    let Some(meta) = engine.meta().expect("readable") else { return false };
    let Some(stored) = engine.load(page).expect("readable") else { return false };
    let mut image = stored.image.expect("it is there").to_vec();
    *image.last_mut().expect("an image") ^= 1;
    let previous = stored.version;
    let stored = StoredPage { image: Some(image.into()), ..stored };
    let pages = vec![InstalledPage { page, previous, stored }];
    engine.install(&InstallBatch { pages, meta, ..InstallBatch::default() }).expect("room");
    true
}

/// One page was damaged at the origin, and no backup of its volume could be made any more, nor could it
/// be checked: all that was whole went with it. Now it is left out where that is asked for, and named;
/// what is restored lacks it, and its check says which file that is.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_is_left_out_and_named() {
    let site = Site::new();
    let mut origin = site.origin().await;
    let at = origin.address().to_string();
    let one = site.node("one", &at).await;
    let volume = files(&one).await;
    let fs = tree(&volume).await;
    for name in ["whole", "torn"] {
        let made = fs.create(fs.root(), name.as_bytes(), &plain(Kind::File)).await.expect("made");
        let (handle, _) = fs.open_file(made.attr.expect("new").id).await.expect("it opens");
        fs.write(&handle, 0, Bytes::from(vec![7; 1 << 20])).await.expect("room");
        fs.release(&handle).await.expect("it commits");
    }
    let torn = fs.lookup(fs.root(), b"torn").await.expect("reads").attr.expect("there");
    let Content::Pages(extents) = &torn.inode.content else { panic!("it is large") };
    let page = volume.page(extents.page(3).expect("it has pages"));
    drop(fs);
    one.shutdown().await;
    loop {
        origin.shutdown().await;
        drop(origin);
        let damaged = damage(&site, page);
        origin = site.origin_at(&at).await;
        if damaged {
            break;
        }
        // It installs after some seconds.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let two = site.node("two", &at).await;
    let volume = two.volume("files").await.expect("it is there");
    let options = BackupOptions::default();
    let ended = back_up(&volume, Vec::new(), &options, &mut |_| {}).await;
    assert!(
        matches!(&ended, Err(BackupError::Client(Error::Damaged { page: of, .. })) if *of == page),
        "{ended:?}"
    );
    let options = BackupOptions { leave_out_damaged: true, ..options };
    let (summary, file) =
        back_up(&volume, Vec::new(), &options, &mut |_| {}).await.expect("the rest");
    assert_eq!(summary.left_out, [page.page]);
    assert_eq!(verify(&file[..], &mut |_| {}).expect("it is whole"), summary);
    // The check goes on past it, and says whose it is.
    let report = check(&tree(&volume).await, &CheckOptions::default(), &mut |_| {}).await;
    let report = report.expect("it goes on");
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(problems.len() == 1 && problems[0].contains("/torn"), "{problems:?}");
    assert_eq!(report.files, 2);
    // In what is restored the page is gone: a repair knows what to do.
    let restored =
        restore(&two, Cursor::new(file), "again", &RestoreOptions::default(), &mut |_| {})
            .await
            .expect("it is made");
    assert_eq!(restored.summary.trailer.left_out, 1);
    let again = tree(&two.volume("again").await.expect("it is there")).await;
    let report = check(&again, &CheckOptions::default(), &mut |_| {}).await.expect("it is read");
    assert!(
        matches!(&report.problems[..], [found] if matches!(found.problem, Problem::MissingPage { .. })),
        "{:?}",
        report.problems
    );
}

/// Eight backups hold all the places for last rounds, and a ninth was told that its volume was written to
/// too fast, though nobody wrote at all. It waits for its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 12)]
async fn a_ninth_backup_waits_for_its_turn() {
    const PLACES: usize = 8;
    let site = Site::new();
    let origin = site.origin().await;
    let one = site.node("one", &origin.address().to_string()).await;
    let volume = files(&one).await;
    let fs = tree(&volume).await;
    let made = fs.create(fs.root(), b"large", &plain(Kind::File)).await.expect("made");
    let (handle, _) = fs.open_file(made.attr.expect("new").id).await.expect("it opens");
    fs.write(&handle, 0, Bytes::from(vec![7; 4 << 20])).await.expect("room");
    fs.release(&handle).await.expect("it commits");
    // Of several parts, all of them in the last round.
    let options = BackupOptions { rounds_max: 0, ..BackupOptions::default() };
    let begun = Arc::new(Barrier::new(PLACES + 1));
    let released = Arc::new(Barrier::new(PLACES + 1));
    let mut eight = Vec::new();
    for _ in 0..PLACES {
        let (volume, options, begun) = (volume.clone(), options.clone(), begun.clone());
        let mut held = Some(released.clone());
        eight.push(tokio::spawn(async move {
            let mut progress = |_| {
                if let Some(held) = held.take() {
                    begun.wait();
                    held.wait();
                }
            };
            back_up(&volume, Vec::new(), &options, &mut progress).await.map(drop)
        }));
    }
    let waiting = begun.clone();
    tokio::task::spawn_blocking(move || waiting.wait()).await.expect("no panic");
    let ninth = {
        let (volume, options) = (volume.clone(), BackupOptions { attempts_max: 1, ..options });
        tokio::spawn(async move { back_up(&volume, Vec::new(), &options, &mut |_| {}).await })
    };
    // Longer than it asked before it gave up.
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::task::spawn_blocking(move || released.wait()).await.expect("no panic");
    for backup in eight {
        backup.await.expect("no panic").expect("it has a place");
    }
    ninth.await.expect("no panic").expect("it had to wait only");
}

/// Interrupted, it leaves a volume that holds no tree, and the next call goes on with it; with another
/// file it does not.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_restoration_is_gone_on_with() {
    let site = Site::new();
    let origin = site.origin().await;
    let one = site.node("one", &origin.address().to_string()).await;
    let volume = files(&one).await;
    let fs = tree(&volume).await;
    let large = fs
        .create(fs.root(), b"large", &plain(Kind::File))
        .await
        .expect("made")
        .attr
        .expect("new")
        .id;
    let (handle, _) = fs.open_file(large).await.expect("it opens");
    for i in 0..24_u64 {
        fs.write(&handle, i << 20, Bytes::from(vec![i as u8; 1 << 20])).await.expect("room");
    }
    fs.release(&handle).await.expect("it commits");
    let options = BackupOptions::default();
    let (_, file) = back_up(&volume, Vec::new(), &options, &mut |_| {}).await.expect("copies");

    let (told, cut) = tokio::sync::oneshot::channel();
    let mut told = Some(told);
    let mut progress = |done: larder::backup::BackupProgress| {
        if done.bytes > 20 << 20
            && let Some(told) = told.take()
        {
            let _ = told.send(());
        }
    };
    let plain = RestoreOptions::default();
    tokio::select! {
        done = restore(&one, Cursor::new(&file), "again", &plain, &mut progress) => {
            panic!("it was to be interrupted: {done:?}")
        }
        _ = cut => {}
    }
    let half = one.volume("again").await.expect("it was made");
    assert!(half.info().pages > 1, "{:?}", half.info());
    let limit = Duration::from_secs(20);
    let freshness = larder::client::Freshness::Leased;
    let store = VolumeStore::new(half.clone(), freshness, limit, limit, Duration::ZERO);
    let opened = FileSystem::open(store, FsOptions::default()).await.map(|_| ());
    assert_eq!(opened, Err(FsError::Unformatted), "it cannot be taken for whole");

    fs.unlink(fs.root(), b"large").await.expect("it is there");
    let (_, other) = back_up(&volume, Vec::new(), &options, &mut |_| {}).await.expect("copies");
    let taken =
        restore(&one, Cursor::new(&other), "again", &RestoreOptions::default(), &mut |_| {}).await;
    assert!(matches!(taken, Err(BackupError::Taken(_))), "{taken:?}");

    let done = restore(&one, Cursor::new(&file), "again", &RestoreOptions::default(), &mut |_| {})
        .await
        .expect("it goes on");
    assert!(done.kept > 0, "some pages were there");
    let again = tree(&half).await;
    let report = check(&again, &CheckOptions::default(), &mut |_| {}).await.expect("it is read");
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.files, report.bytes), (1, 24 << 20));

    // A damaged file makes nothing.
    let mut torn = file;
    let middle = torn.len() / 2;
    torn[middle] ^= 1;
    let refused =
        restore(&one, Cursor::new(torn), "torn", &RestoreOptions::default(), &mut |_| {}).await;
    assert!(matches!(refused, Err(BackupError::Format(_))), "{refused:?}");
    assert!(matches!(one.volume("torn").await, Err(Error::NoVolume(_))));
}

/// A file said that page numbers up to 2^48 had been given away: a restoration made the volume, and asked
/// for them in sixteen million steps. It is refused before anything is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_absurd_page_numbers_makes_nothing() {
    let site = Site::new();
    let origin = site.origin().await;
    let one = site.node("one", &origin.address().to_string()).await;
    let header = Header {
        volume: VolumeId(7),
        domain: DomainId(1),
        name: "vast".into(),
        page_bytes: 4096,
        begun: 0,
    };
    let trailer = Trailer {
        history: HistoryId(1),
        stamp: Stamp(1),
        time: 0,
        next_page: PageNo(PageNo::LIMIT),
        pages: 0,
        deleted: 0,
        left_out: 0,
    };
    let writer = Writer::new(Vec::new(), &header).expect("memory");
    let (file, _) = writer.finish(&trailer).expect("memory");
    let refused =
        restore(&one, Cursor::new(file), "vast", &RestoreOptions::default(), &mut |_| {}).await;
    assert!(matches!(refused, Err(BackupError::TooManyNumbers { .. })), "{refused:?}");
    assert!(matches!(one.volume("vast").await, Err(Error::NoVolume(_))));
}

/// The origin is started anew in the middle: the copy goes on, and is of one line of histories.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_goes_on_over_a_restart_of_the_origin() {
    let site = Site::new();
    let origin = site.origin().await;
    let at = origin.address().to_string();
    let one = site.node("one", &at).await;
    let volume = create(&one, "shared").await;
    let ids = numbers(&volume).await;
    let (told, cut) = tokio::sync::oneshot::channel();
    let mut told = Some(told);
    let copying = volume.clone();
    let backup = tokio::spawn(async move {
        let mut progress = |_| {
            if let Some(told) = told.take() {
                let _ = told.send(());
                std::thread::sleep(Duration::from_millis(300));
            }
        };
        back_up(&copying, Vec::new(), &BackupOptions::default(), &mut progress).await
    });
    cut.await.expect("it begins");
    origin.shutdown().await;
    drop(origin);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let _origin = site.origin_at(&at).await;
    let (summary, file) = backup.await.expect("no panic").expect("it goes on");
    assert_eq!(summary.trailer.pages, PAGES + 1);
    let two = site.node("two", &at).await;
    restore(&two, Cursor::new(file), "again", &RestoreOptions::default(), &mut |_| {})
        .await
        .expect("it is made");
    let again = two.volume("again").await.expect("it is there");
    assert_eq!(read(&again, ids[7]).await, 0);
}
