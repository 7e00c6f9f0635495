//! The latest state at an open, or at every operation, with a kernel that nobody tells of changes.

use super::*;
use std::sync::mpsc::{Sender, channel};

/// "Host is down".
const EHOSTDOWN: i32 = 112;

async fn silent(
    store: &MemoryStore,
    name: &str,
    consistency: Consistency,
) -> (Mount, Sender<Signal>) {
    let point = Point::new(name);
    let path = point.0.clone();
    let files = FileSystem::open_or_format(store.clone(), FsOptions::default(), [3; 16]);
    let files = Arc::new(files.await.expect("it works"));
    let (sender, receiver) = channel();
    let options = MountOptions { consistency, refuse_stale: true, ..MountOptions::default() };
    let mounted = Mounted::mount(files.clone(), &path, options, move || receiver.recv().ok());
    let mounted = mounted.expect("it works");
    (Mount { path, fs: files, mounted, _point: point }, sender)
}

/// Another node renamed a file, and one that the kernel had looked up: an open went to the inode that
/// the kernel remembered. And every open is one question, not one for each name on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_open_asks_once_and_goes_where_the_name_leads_now() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (mount, _silent) = silent(&store, "open-asks", Consistency::CloseToOpen).await;
    let other = FileSystem::open(store.clone(), FsOptions::default()).await.expect("it works");
    let (path, seen) = (mount.path.clone(), store.clone());
    host(move || {
        fs::create_dir(path.join("d")).expect("it works");
        fs::write(path.join("d/a"), "first").expect("it works");
        fs::write(path.join("d/b"), "second, and longer").expect("it works");
        fs::read(path.join("d/a")).expect("it works");
        let before = seen.refreshes();
        assert_eq!(fs::read(path.join("d/a")).expect("it works"), b"first");
        assert_eq!(seen.refreshes() - before, 1, "questions of an open");
        fs::metadata(path.join("d/a")).expect("it works");
        assert_eq!(seen.refreshes() - before, 1, "and of a look");
    })
    .await;
    let root = other.root();
    let directory = other.lookup(root, b"d").await.expect("it works").attr.expect("there").id;
    let rename =
        other.rename((directory, b"b"), (directory, b"a"), larder::fs::RenameMode::Replace);
    rename.await.expect("it works");
    let path = mount.path.clone();
    host(move || {
        assert_eq!(fs::read(path.join("d/a")).expect("it works"), b"second, and longer");
        let gone = fs::File::open(path.join("d/b")).expect_err("it moved");
        assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    })
    .await;
    // The directory on the way is another one.
    let to = other.rename((root, b"d"), (root, b"e"), larder::fs::RenameMode::NoReplace);
    to.await.expect("it works");
    let (path, cut) = (mount.path.clone(), store.clone());
    host(move || {
        fs::File::open(path.join("d/a")).expect_err("it moved with its directory");
        assert_eq!(fs::read(path.join("e/a")).expect("it works"), b"second, and longer");
        let file = fs::File::open(path.join("e/a")).expect("it works");
        cut.cut(true);
        let refused = fs::File::open(path.join("e/a")).expect_err("the latest cannot be had");
        assert_eq!(refused.raw_os_error(), Some(EHOSTDOWN));
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).expect("open files are served");
        cut.cut(false);
        fs::File::open(path.join("e/a")).expect("it works");
    })
    .await;
    mount.end().await;
}

/// Every write is committed when it is acknowledged, and one that is refused leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_strict_write_is_done_or_leaves_nothing() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (mount, _silent) = silent(&store, "strict", Consistency::Strict).await;
    let (path, seen) = (mount.path.clone(), store.clone());
    host(move || {
        let file = fs::File::create(path.join("f")).expect("it works");
        let before = seen.commits();
        file.write_all_at(b"kept", 0).expect("it works");
        assert_eq!(seen.commits() - before, 1, "committed without any sync");
        seen.cut(true);
        let refused = file.write_all_at(b"gone", 0).expect_err("the latest cannot be had");
        assert_eq!(refused.raw_os_error(), Some(EHOSTDOWN));
        let commits = seen.commits();
        drop(file);
        seen.cut(false);
        assert_eq!(fs::read(path.join("f")).expect("it works"), b"kept");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(seen.commits(), commits, "something was committed later");
    })
    .await;
    assert_eq!(mount.fs.waiting_bytes(), 0);
    mount.end().await;
}
