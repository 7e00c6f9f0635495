//! The file layer over real nodes: what one site imports and changes, another reads.

use crate::common::{Site, eventually, proxy};
use bytes::Bytes;
use larder::client::{Freshness, Node, Volume, VolumeOptions};
use larder::config::Period;
use larder::fs::check::{CheckOptions, check};
use larder::fs::client::VolumeStore;
use larder::fs::export::{ExportOptions, export};
use larder::fs::import::{ImportProgress, import};
use larder::fs::{
    Create, FileSystem, FsError, FsOptions, InodeId, Kind, Mode, PAGE_BYTES, Position, RenameMode,
    Tx, TxError, TxStore,
};
use larder::server::OriginServer;
use larder_core::id::PageNo;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Tree = Arc<FileSystem<VolumeStore>>;

fn plain_file() -> Create {
    let (kind, target) = (Kind::File, Bytes::new());
    Create { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, target, device: 0 }
}

async fn make_volume(node: &Node) -> Volume {
    let options = VolumeOptions { page_bytes: PAGE_BYTES, ..VolumeOptions::new("files") };
    node.create_volume(options).await.expect("a new volume")
}

async fn tree(volume: &Volume) -> Tree {
    let limit = Duration::from_secs(20);
    let store = VolumeStore::new(volume.clone(), Freshness::Leased, limit, limit, limit);
    let tree = FileSystem::open_or_format(store, FsOptions::default(), [9; 16]);
    Arc::new(tree.await.expect("the volume answers"))
}

/// A folder with small, middling and large files, links, and odd modes and times.
fn make_folder(path: &Path) {
    for i in 0..40 {
        let folder = path.join(format!("d{}/e{i}", i % 5));
        std::fs::create_dir_all(&folder).expect("a new folder");
        for j in 0..10_usize {
            let bytes = vec![(i + j) as u8; j * j * 300];
            std::fs::write(folder.join(format!("f{j}")), bytes).expect("room");
        }
    }
    std::fs::write(path.join("large"), vec![7; 9 << 20]).expect("room");
    symlink("d1/e1/f3", path.join("link")).expect("a new link");
    mknod(&path.join("pipe"), &["p"]);
    mknod(&path.join("null"), &["c", "1", "3", "-m", "640"]);
    mknod(&path.join("d4/disk"), &["b", "259", "70000"]);
    drop(UnixListener::bind(path.join("d4/socket")).expect("a new socket"));
    std::fs::hard_link(path.join("large"), path.join("d1/hard")).expect("a new link");
    let mode = std::fs::Permissions::from_mode(0o4750);
    std::fs::set_permissions(path.join("d2/e2/f2"), mode).expect("own file");
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = std::fs::File::open(path.join("d3")).expect("a folder");
    file.set_times(std::fs::FileTimes::new().set_modified(time)).expect("own folder");
}

fn mknod(path: &Path, what: &[&str]) {
    let status = Command::new("mknod").arg(path).args(what).status();
    assert!(status.expect("coreutils are there").success(), "{}", path.display());
}

/// Files and folders with extended attributes, and how long those are.
const WITH_ATTRIBUTES: [(&str, usize); 4] =
    [("large", 40), ("d1/e1/f3", 2000), ("d2", 10), ("d3/e3/f5", 0)];
/// Files with holes, and their sizes.
const WITH_HOLES: [(&str, u64); 3] =
    [("holes", 20 << 20), ("d4/few-holes", 1 << 20), ("d4/hole", 3 << 20)];

/// Adds attributes and holes to a folder.
fn add_attributes_and_holes(path: &Path) {
    use std::os::unix::fs::FileExt;
    for (name, length) in WITH_ATTRIBUTES {
        let flags = rustix::fs::XattrFlags::CREATE;
        let value = vec![length as u8; length];
        rustix::fs::setxattr(path.join(name), "user.larder", &value, flags).expect("room");
    }
    for (name, size) in WITH_HOLES {
        let file = std::fs::File::create(path.join(name)).expect("room");
        file.set_len(size).expect("room");
        if name != "d4/hole" {
            file.write_all_at(b"in the middle", size / 2).expect("room");
        }
    }
}

fn assert_same_attributes_and_holes(path: &Path) {
    for (name, length) in WITH_ATTRIBUTES {
        let mut value = vec![0; 1 << 16];
        let read = rustix::fs::getxattr(path.join(name), "user.larder", &mut value[..]);
        assert_eq!(read, Ok(length), "{name}");
        assert_eq!(value[..length], vec![length as u8; length], "{name}");
    }
    for (name, size) in WITH_HOLES {
        let meta = std::fs::metadata(path.join(name)).expect("there");
        assert!(meta.len() == size && meta.blocks() * 512 < 200_000, "{name}: {meta:?}");
    }
}

/// `volume check` reads one state of a volume in use for as long as it takes, and ended with "the cached
/// state is 1.5 s old, which is more than the session allows" where that was longer than the
/// origin's lease: no asking anew makes a snapshot younger. It is fresh when it begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_read_for_longer_than_a_lease() {
    let site = Site::new();
    let mut config = site.origin_config("127.0.0.1:0");
    config.origin.lease = Period(Duration::from_millis(200));
    let origin = OriginServer::start(config).await.expect("the origin starts");
    let address = origin.address().to_string();
    let mut config = site.node_config("one", &address);
    config.node.beat = Period(Duration::from_millis(20));
    let node = Node::connect(config).await.expect("the node links");
    let volume = make_volume(&node).await;
    let tree = tree(&volume).await;
    let limit = Duration::from_secs(20);
    let store = VolumeStore::new(volume.clone(), Freshness::Leased, limit, limit, limit);
    let snapshot = store.begin(Mode::Snapshot).await.expect("it is leased");
    let before = snapshot.get_all(PageNo(1)).await.expect("the root's page");
    tree.create(tree.root(), b"later", &plain_file()).await.expect("a new file");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(snapshot.get_all(PageNo(1)).await, Ok(before), "older than the lease, and whole");
    check(&tree, &CheckOptions::default(), &mut |_| ()).await.expect("it is whole");
}

/// What `find` says of everything below a folder, but for times of access and change.
fn listing(path: &Path) -> Vec<String> {
    let output = Command::new("find")
        .arg(path)
        .args(["-mindepth", "1", "-type", "d", "-printf", "%P %m %T@\\n"])
        .args(["-o", "-mindepth", "1", "-printf", "%P %y %m %n %s %T@ %l\\n"])
        .output()
        .expect("find is there");
    let text = String::from_utf8(output.stdout).expect("plain names");
    let mut lines: Vec<String> = text.lines().map(Into::into).collect();
    lines.sort_unstable();
    lines
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (listing(one), listing(other));
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one, other);
    }
    assert_eq!(one.len(), other.len());
}

async fn clean(tree: &Tree) {
    let report = check(tree, &CheckOptions::default(), &mut |_| {}).await.expect("checks");
    assert!(report.is_clean(), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_tree_is_exported_unchanged_elsewhere() {
    let site = Site::new();
    let origin = site.origin().await;
    let relay = site.relay(&origin.address().to_string()).await;
    let one = site.node("one", &origin.address().to_string()).await;
    let two = site.node("two", &relay.address().to_string()).await;
    let source = site.dir.join("source");
    make_folder(&source);
    add_attributes_and_holes(&source);

    let near = tree(&make_volume(&one).await).await;
    let done = import(&near, &source, near.root(), &mut |_| {}).await.expect("imports");
    assert_eq!((done.files, done.directories, done.skipped), (410, 46, 0));
    // A second time there is nothing to do.
    let again = import(&near, &source, near.root(), &mut |_| {}).await.expect("imports");
    let expected = ImportProgress { files: 0, skipped: 410, bytes: 0, ..done };
    assert_eq!(again, expected);

    let volume = two.volume("files").await.expect("it was made");
    volume.refresh().await.expect("answers");
    let far = tree(&volume).await;
    for (name, _) in WITH_HOLES {
        let found = far.resolve(name.as_bytes()).await.expect("there");
        assert!(far.bytes_taken(&found.inode) < 200_000, "{name}: {found:?}");
    }
    let target = site.dir.join("target");
    let export_again = |keep_before| {
        let (far, target) = (far.clone(), target.clone());
        async move {
            let options = ExportOptions { keep_before };
            export(&far, far.root(), &target, options, &mut |_| {}).await.expect("exports")
        }
    };
    let out = export_again(None).await;
    assert_eq!((out.files, out.directories, out.skipped, out.found), (410, 46, 0, 456));
    assert_same(&target, &source);
    assert_same_attributes_and_holes(&target);

    // As an interruption leaves it: one file half, one not there. What is whole is not read again.
    let half = std::fs::OpenOptions::new().write(true).open(target.join("large")).expect("there");
    half.set_len(half.metadata().expect("there").len() / 2).expect("cuts");
    std::fs::remove_file(target.join("d1/e1/f3")).expect("there");
    let out = export_again(Some(i64::MAX)).await;
    assert_eq!(out.files + out.skipped, 410, "{out:?}");
    assert!(out.skipped > 300 && out.files >= 2, "{out:?}");
    assert_same(&target, &source);
    assert_same_attributes_and_holes(&target);
    for device in ["null", "d4/disk"] {
        let number = |root: &Path| std::fs::symlink_metadata(root.join(device)).map(|m| m.rdev());
        assert_eq!(number(&target).expect("made"), number(&source).expect("made"));
    }
    // Of special files it could say nothing but that they are.
    let special = ["-x", "pipe", "-x", "null", "-x", "disk", "-x", "socket"];
    let same = Command::new("diff").arg("-r").args(special).arg(&source).arg(&target).status();
    assert!(same.expect("diff is there").success());
    clean(&far).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sites_work_in_one_directory() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let near = tree(&make_volume(&one).await).await;
    let far = tree(&two.volume("files").await.expect("it was made")).await;
    let create = plain_file();
    let work = |tree: Tree, site: &'static str, create: Create| async move {
        for i in 0..60 {
            let name = format!("{site}{i}");
            let (handle, _) = tree
                .create_file(tree.root(), name.as_bytes(), &create)
                .await
                .expect("names differ");
            let bytes = Bytes::from(name.repeat(i * 40));
            tree.write(&handle, 0, bytes).await.expect("buffered");
            tree.release(&handle).await.expect("commits");
            if i % 3 == 0 {
                let (from, to) = (name.as_bytes(), format!("{name}-moved"));
                let root = tree.root();
                tree.rename((root, from), (root, to.as_bytes()), RenameMode::NoReplace)
                    .await
                    .expect("the name is free");
            }
        }
    };
    let first = tokio::spawn(work(near.clone(), "near", create.clone()));
    let second = tokio::spawn(work(far.clone(), "far", create));
    first.await.expect("no panic");
    second.await.expect("no panic");
    for tree in [&near, &far] {
        eventually("all names are seen", || async {
            tree.getattr(tree.root()).await.is_ok_and(|root| root.inode.size == 120)
        })
        .await;
        let found = tree.resolve(b"far57-moved").await.expect("renamed there");
        let bytes = tree.read_part(found.id, 0, 1 << 20).await.expect("reads");
        assert_eq!(bytes, "far57".repeat(57 * 40));
        clean(tree).await;
    }
}

/// Copies a store that nobody has open.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let done = Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(done.expect("cp is there").success());
}

/// An origin was restored from an old copy. A mount that had seen what was lost went on with its
/// page numbers, its inode pages and the bytes that waited in its open files: they went into files
/// that another node had made since, under numbers given for the second time.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_lost_branch_is_used_after_a_restore() {
    let site = Site::new();
    let (data, old) = (site.dir.join("data"), site.dir.join("old"));
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = make_volume(&one).await;
    let near = tree(&volume).await;
    let create = plain_file();
    let early = near.create(near.root(), b"early", &create).await.expect("creates");
    drop(early);
    origin.shutdown().await;
    copy(&data, &old);
    let origin = site.origin_at(&parent).await;
    // What is lost: a file of pages, and one in an inode page of this node's.
    let (big, _) = near.create_file(near.root(), b"big", &create).await.expect("creates");
    near.write(&big, 0, Bytes::from(vec![1; 100_000])).await.expect("buffered");
    near.flush(&big).await.expect("commits");
    let directory = Create { kind: Kind::Directory, ..create.clone() };
    near.create(near.root(), b"lost", &directory).await.expect("creates");
    near.write(&big, 0, Bytes::from(vec![2; 100_000])).await.expect("buffered");
    origin.shutdown().await;
    copy(&old, &data);
    let mut config = site.origin_config(&parent);
    config.origin.accept_fork = true;
    let origin = OriginServer::start(config).await.expect("the origin starts");
    // This one has seen nothing of it.
    let far = tree(&two.volume("files").await.expect("it was made")).await;
    let (mine, _) = far.create_file(far.root(), b"mine", &create).await.expect("creates");
    far.write(&mine, 0, Bytes::from(vec![3; 100_000])).await.expect("buffered");
    far.release(&mine).await.expect("commits");
    let forked = FsError::from(TxError::Forked);
    eventually("the restore is noticed", || async {
        near.getattr(near.root()).await.map(|_| ()) == Err(forked.clone())
    })
    .await;
    near.flush_aged(Duration::ZERO).await;
    assert_eq!(near.write(&big, 0, Bytes::from_static(b"x")).await, Err(forked.clone()));
    assert_eq!(near.create(near.root(), b"more", &create).await.map(|_| ()), Err(forked.clone()));
    assert_eq!(near.release(&big).await, Err(forked.clone()));
    // Mounted again, by the same node, all is as the new line has it.
    let again = tree(&volume).await;
    assert_eq!(again.resolve(b"big").await.map(|_| ()), Err(FsError::NotFound));
    let (more, _) = again.create_file(again.root(), b"more", &create).await.expect("creates");
    again.write(&more, 0, Bytes::from(vec![4; 100_000])).await.expect("buffered");
    again.release(&more).await.expect("commits");
    for (name, byte) in [(&b"mine"[..], 3), (b"more", 4)] {
        let found = again.resolve(name).await.expect("it is there");
        let bytes = again.read_part(found.id, 0, 1 << 20).await.expect("reads");
        assert_eq!(bytes, vec![byte; 100_000]);
    }
    clean(&again).await;
    drop(origin);
}

/// Lists everything below a directory and reads every file, as `grep -r` does: one thing after the
/// other, depth first. Counts directories and files.
async fn walk(tree: &Tree, from: InodeId) -> (u64, u64) {
    let (mut directories, mut files) = (0, 0);
    let mut waiting = vec![from];
    while let Some(directory) = waiting.pop() {
        directories += 1;
        let mut position = Position::default();
        loop {
            let listed = tree.read_dir(directory, &position, 128, true).await.expect("lists");
            let Some(last) = listed.last() else { break };
            position = last.position.clone();
            for entry in listed {
                let inode = entry.attr.expect("it is there").inode;
                if inode.kind == Kind::Directory {
                    waiting.push(entry.entry.id);
                    continue;
                }
                let (handle, _) = tree.open_file(entry.entry.id).await.expect("opens");
                let bytes = tree.read(&handle, 0, 1 << 20).await.expect("reads");
                assert_eq!(bytes.len() as u64, inode.size);
                tree.release(&handle).await.expect("closes");
                files += 1;
            }
        }
    }
    (directories, files)
}

/// Every directory was asked for when it was reached, in two round trips, and every file in one
/// more: a cold walk of 1,000 directories behind a line of 40 ms took 54 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_cold_walk_takes_few_round_trips() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let source = site.dir.join("source");
    for i in 0..300_u64 {
        let folder = source.join(format!("a{}/b{i}", i % 12));
        std::fs::create_dir_all(&folder).expect("a new folder");
        for (name, bytes) in [("small", 300), ("middling", 6000), ("large", 70_000)] {
            std::fs::write(folder.join(name), vec![1; bytes]).expect("room");
        }
    }
    let one = site.node("one", &parent).await;
    let near = tree(&make_volume(&one).await).await;
    import(&near, &source, near.root(), &mut |_| {}).await.expect("imports");

    let line = proxy(&parent, Duration::from_millis(20)).await;
    let two = site.node("two", &line.address().to_string()).await;
    let far = tree(&two.volume("files").await.expect("it was made")).await;
    let begun = Instant::now();
    assert_eq!(walk(&far, far.root()).await, (313, 900));
    let cold = begun.elapsed();
    let begun = Instant::now();
    assert_eq!(walk(&far, far.root()).await, (313, 900));
    println!("cold {cold:?}, warm {:?}", begun.elapsed());
    // One after the other, 1,226 round trips would take 49 s.
    assert!(cold < Duration::from_secs(8), "{cold:?}");
}

/// A page number in a file's run was refused to all but the process that had taken it: no file could
/// grow from another node, after a remount or after a restart of the origin. Its writers were told to
/// try again, and their bytes were lost at the last close.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_grows_from_another_node_and_after_restarts() {
    let site = Site::new();
    let mut origin = site.origin().await;
    let address = origin.address().to_string();
    let first = site.node("three", &address).await;
    make_volume(&first).await;
    let create = plain_file();
    let mut expected = Vec::new();
    // A run of sixteen pages, and of the next one some.
    for (byte, name) in [(1, "one"), (2, "two"), (3, "one")] {
        let chunk = Bytes::from(vec![byte; 3 * PAGE_BYTES as usize + 100]);
        let node = site.node(name, &address).await;
        let volume = node.volume("files").await.expect("it was made");
        volume.refresh().await.expect("answers");
        let tree = tree(&volume).await;
        let found = tree.lookup(tree.root(), b"grows").await.expect("answers");
        let handle = match found.attr {
            Some(attr) => tree.open_file(attr.id).await.expect("opens").0,
            None => tree.create_file(tree.root(), b"grows", &create).await.expect("creates").0,
        };
        // A process that stays over a restart of the origin, after which the history is another.
        for restart in [true, false] {
            let end = expected.len() as u64;
            tree.write(&handle, end, chunk.clone()).await.expect("it is taken");
            tree.flush(&handle).await.expect("it is durable");
            expected.extend_from_slice(&chunk);
            if restart {
                origin.kill().await;
                origin = site.origin_at(&address).await;
                volume.refresh().await.expect("answers again");
            }
        }
        let read = tree.read(&handle, 0, expected.len() + 1).await.expect("reads");
        assert!(read == expected, "after {byte}");
        tree.release(&handle).await.expect("nothing is left");
        node.shutdown().await;
    }
    clean(&tree(&first.volume("files").await.expect("it was made")).await).await;
}

/// The last run of a large file takes 2^24 page numbers, and an origin gave 2^20 in one answer: beyond
/// 34 GiB every write was lost at its commit.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_file_gets_its_page_numbers() {
    let site = Site::new();
    let origin = site.origin().await;
    let node = site.node("one", &origin.address().to_string()).await;
    let tree = tree(&make_volume(&node).await).await;
    let create = plain_file();
    let (handle, _) = tree.create_file(tree.root(), b"f", &create).await.expect("a new file");
    let end = tree.file_bytes_max();
    tree.write(&handle, end - 3, Bytes::from_static(b"end")).await.expect("within the limit");
    tree.flush(&handle).await.expect("its pages have numbers");
    assert_eq!(tree.read(&handle, end - 4, 10).await.expect("reads"), &b"\0end"[..]);
    tree.release(&handle).await.expect("nothing is left to do");
}
