//! Real mounts, over the store in memory: two nodes on one volume, each with a mount of its own.

mod breadth;
mod fresh;
mod kept;
mod lapse;
mod quota;
mod remembered;
mod silent;

use super::*;
use larder::client::{Freshness, Node, NodeConfig, VolumeOptions};
use larder::config::{LinkConfig, OriginConfig, OriginSection};
use larder::fs::check::{CheckOptions, check};
use larder::fs::client::VolumeStore;
use larder::fs::memory::{MemoryStore, Stall};
use larder::fs::record::{Content, Inode, Xattrs};
use larder::fs::{Attr, Create, FsOptions, InodeId, Kind, PAGE_BYTES, SetAttr};
use larder::server::OriginServer;
use larder::tls::{Role, init};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

struct Mount {
    path: PathBuf,
    fs: Arc<FileSystem<MemoryStore>>,
    mounted: Mounted<MemoryStore>,
    _point: Point,
}

/// A folder to mount at. When it goes, nothing is mounted there any more, whatever failed.
struct Point(PathBuf);

impl Point {
    fn new(name: &str) -> Self {
        fuse_at("/dev/fuse").unwrap_or_else(|why| panic!("{why}"));
        let path = std::env::temp_dir().join(format!("larder-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("it works");
        Self(path)
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let path = self.0.display().to_string();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(&path))
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _or_not = Command::new("umount").arg("-l").arg(&self.0).status();
        }
        let _or_not = fs::remove_dir(&self.0);
    }
}

/// Whether this machine lets us mount; if not, why, and what to do.
fn fuse_at(device: &str) -> Result<(), String> {
    match fs::File::options().read(true).write(true).open(device) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "{device}: {error}. These tests mount for real: run them as root, on Linux with FUSE \
             (`modprobe fuse`; in a container `--device /dev/fuse --cap-add SYS_ADMIN`)"
        )),
    }
}

/// A machine without FUSE ran none of these tests, and said that they had passed.
#[test]
fn without_fuse_the_tests_fail_and_say_what_to_do() {
    let why = fuse_at("/dev/larder-has-no-such-device").expect_err("it is not there");
    assert!(why.contains("modprobe fuse") && why.contains("as root"), "{why}");
}

async fn mount(store: &MemoryStore, name: &str) -> Mount {
    mount_with(store, name, MountOptions::default()).await
}

async fn mount_with(store: &MemoryStore, name: &str, options: MountOptions) -> Mount {
    let point = Point::new(name);
    let path = point.0.clone();
    let files = FileSystem::open_or_format(store.clone(), FsOptions::default(), [3; 16]);
    let files = Arc::new(files.await.expect("it works"));
    let changes = store.watch();
    let signals = move || changes.recv().ok().map(Signal::Changed);
    let mounted = Mounted::mount(files.clone(), &path, options, signals).expect("it works");
    Mount { path, fs: files, mounted, _point: point }
}

impl Mount {
    async fn end(self) {
        self.mounted.unmount().await.expect("it works");
        let report =
            check(&self.fs, &CheckOptions::default(), &mut |_| {}).await.expect("it works");
        assert!(report.is_clean(), "{report:#?}");
    }
}

/// Runs what blocks beside the runtime that serves the mount.
async fn host<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(f).await.expect("it works")
}

/// Invalidations follow a commit at their own pace; they must come.
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never came true: {what}");
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().expect("it works");
    assert!(status.success(), "{command}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behaves_like_a_file_system() {
    let store = MemoryStore::new(PAGE_BYTES);
    let mount = mount(&store, "posix").await;
    let path = mount.path.clone();
    host(move || {
        let p = path.display();
        run(&format!(
            "cd {p}; mkdir -p a/b/c; echo one > a/one; echo two >> a/one; ln -s one a/link;
             test \"$(cat a/link)\" = \"one
two\"; ln a/one a/b/hard; test $(stat -c %h a/one) = 2; mv a/one a/b/c/moved;
             test -e a/b/hard; test ! -e a/one; rm a/b/hard; test $(stat -c %h a/b/c/moved) = 1;
             chmod 600 a/b/c/moved; test $(stat -c %a a/b/c/moved) = 600;
             touch -d 2001-02-03T04:05:06Z a/b/c/moved; test $(stat -c %Y a/b/c/moved) = 981173106;
             if rmdir a/b 2>/dev/null; then false; fi; mkdir d; rmdir d; test ! -e d;
             dd if=/dev/urandom of=big bs=1M count=20 status=none; cp big big2; cmp big big2;
             truncate -s 5000000 big2; cmp -n 5000000 big big2; truncate -s 0 big2; rm big big2;
             seq 1 2000 | (cd a && xargs touch); test $(ls a | wc -l) = 2002;
             test $(find a -type f | wc -l) = 2001; rm -r a; test -z \"$(ls -A)\""
        ));
        // Pipes and sockets are the kernel's to serve, and devices.
        run(&format!(
            "cd {p}; mkfifo -m 640 pipe; test \"$(stat -c '%F %a' pipe)\" = 'fifo 640';
             echo through > pipe & test \"$(timeout 10 cat pipe)\" = through; wait; rm pipe;
             mknod disk b 259 70000; test \"$(stat -c '%F %Hr,%Lr' disk)\" = 'block special file 259,70000';
             mknod null c 1 3; mv null nil; ln nil null;
             test \"$(stat -c '%F %h %Hr,%Lr' null)\" = 'character special file 2 1,3'; rm null nil disk"
        ));
        let socket = path.join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("it works");
        std::os::unix::net::UnixStream::connect(&socket).expect("it answers");
        drop(listener);
        fs::remove_file(&socket).expect("it works");
        // Open although removed.
        let file = fs::File::options().read(true).write(true).create_new(true).open(path.join("x"));
        let file = file.expect("it works");
        file.write_all_at(b"still here", 0).expect("it works");
        fs::remove_file(path.join("x")).expect("it works");
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).expect("it works");
        assert_eq!(&bytes, b"still here");
    })
    .await;
    mount.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_a_tree_and_compares() {
    let store = MemoryStore::new(PAGE_BYTES);
    let mount = mount(&store, "tree").await;
    let path = mount.path.clone();
    host(move || {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let p = path.display();
        run(&format!("cp -a {source} {p}/tree; diff -r {source} {p}/tree; rm -r {p}/tree"));
    })
    .await;
    mount.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_mount_sees_what_the_other_changes() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "one").await;
    let two = mount(&store, "two").await;
    let (a, b) = (one.path.clone(), two.path.clone());
    host(move || {
        // A name looked up in vain, then made.
        assert!(!b.join("f").exists());
        fs::write(a.join("f"), "first").expect("it works");
        eventually("the name", || b.join("f").exists());
        eventually("the bytes", || fs::read(b.join("f")).expect("it works") == b"first");
        // Bytes that the other's kernel holds, with the file kept open.
        let open = fs::File::open(b.join("f")).expect("it works");
        fs::write(a.join("f"), "other").expect("it works");
        eventually("new bytes of the same length", || {
            let mut bytes = [0; 5];
            open.read_exact_at(&mut bytes, 0).is_ok() && &bytes == b"other"
        });
        fs::set_permissions(a.join("f"), fs::Permissions::from_mode(0o640)).expect("it works");
        eventually("the mode", || {
            fs::metadata(b.join("f")).expect("it works").permissions().mode() & 0o777 == 0o640
        });
        fs::rename(a.join("f"), a.join("g")).expect("it works");
        eventually("the rename", || !b.join("f").exists() && b.join("g").exists());
        let inode = fs::metadata(b.join("g")).expect("it works").ino();
        fs::write(a.join("h"), "replacement").expect("it works");
        fs::rename(a.join("h"), a.join("g")).expect("it works");
        eventually("the replacement", || {
            fs::metadata(b.join("g")).expect("it works").ino() != inode
        });
        for i in 0..700 {
            assert!(!b.join(format!("many-names-that-split-a-bucket-{i}")).exists());
        }
        for i in 0..700 {
            fs::write(a.join(format!("many-names-that-split-a-bucket-{i}")), "").expect("it works");
        }
        eventually("every one of many names", || {
            (0..700).all(|i| b.join(format!("many-names-that-split-a-bucket-{i}")).exists())
        });
        fs::remove_file(a.join("g")).expect("it works");
        eventually("the removal", || !b.join("g").exists());
    })
    .await;
    two.end().await;
    one.end().await;
}

/// An editor saved by renaming over a file, and somebody at another site who opened it just then was
/// told that there was no such file: the kernel believed the name still, and what it had led to was
/// gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_is_saved_by_renaming_is_always_there() {
    let store = MemoryStore::new(PAGE_BYTES);
    let asks = || MountOptions { silent_opens: false, ..MountOptions::default() };
    let one = mount_with(&store, "saves", asks()).await;
    // Nothing is taken back at the other: its kernel has not heard yet.
    let (two, silent) = lapse::signalled_with(&store, "reads", asks()).await;
    let (a, b) = (one.path.clone(), two.path.clone());
    host(move || {
        for round in 0..20 {
            let text = format!("text {round}");
            fs::write(a.join("f.new"), &text).expect("it works");
            fs::rename(a.join("f.new"), a.join("f")).expect("it works");
            assert_eq!(fs::read_to_string(b.join("f")).expect("it is always there"), text);
        }
    })
    .await;
    drop(silent);
    two.end().await;
    one.end().await;
}

/// Two sites appended to one log, and where both made it at once one was told that the file existed:
/// the kernel believed that it was not there, and only who asks for a free name may hear so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_was_just_made_elsewhere_is_opened() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "made-one").await;
    let (two, silent) = lapse::signalled(&store, "made-two").await;
    let (a, b) = (one.path.clone(), two.path.clone());
    host(move || {
        for name in ["f", "g"] {
            assert!(!b.join(name).exists());
            let mut file = fs::File::create(a.join(name)).expect("it works");
            file.write_all(b"theirs ").expect("it works");
            file.sync_all().expect("it works");
        }
        let options = || fs::File::options().append(true).create(true).clone();
        let mut log = options().open(b.join("f")).expect("it is opened");
        log.write_all(b"ours").expect("it works");
        drop(log);
        eventually("both", || fs::read(a.join("f")).expect("it works") == b"theirs ours");
        let error = options().create_new(true).open(b.join("g")).expect_err("it is there");
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    })
    .await;
    drop(silent);
    two.end().await;
    one.end().await;
}

/// A removal passed its limit when its commit was done and the answer was not: what comes after
/// the commit was thrown away with it, and a large file without a name was freed by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_its_limit_is_done_to_its_end() {
    let store = MemoryStore::new(PAGE_BYTES);
    let options = MountOptions {
        operation_limit: Duration::from_millis(500),
        write_back_age: Duration::from_millis(400),
        ..MountOptions::default()
    };
    let mount = mount_with(&store, "limit", options).await;
    let (path, stalled) = (mount.path.clone(), store.clone());
    host(move || {
        fs::write(path.join("large"), vec![1; 12 << 20]).expect("it works");
        fs::File::open(path.join("large")).expect("it works").sync_all().expect("it works");
        stalled.stall(Stall::After);
        let error = fs::remove_file(path.join("large")).expect_err("nothing is answered");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        // The same while a handle is on its way.
        let error = fs::File::create_new(path.join("made")).expect_err("nothing is answered");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        stalled.stall(Stall::Nowhere);
    })
    .await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if mount.fs.orphans().await.expect("it works").is_empty() {
            break;
        }
    }
    assert_eq!(mount.fs.orphans().await.expect("it works"), []);
    let path = mount.path.clone();
    host(move || fs::remove_file(path.join("made")).expect("it was made")).await;
    mount.end().await;
}

/// A file was closed while the origin could not be reached, and the mount ended: its bytes were in
/// the hands of a task that nobody counted, the process ended, and they were lost without a word.
/// So were those of a handle that an operation past its limit had dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_mount_waits_for_what_is_being_closed() {
    let store = MemoryStore::new(PAGE_BYTES);
    let options =
        MountOptions { operation_limit: Duration::from_secs(1), ..MountOptions::default() };
    let mount = mount_with(&store, "closing", options).await;
    let other = FileSystem::open(store.clone(), FsOptions::default()).await.expect("it works");
    let (path, stalled) = (mount.path.clone(), store.clone());
    host(move || {
        let file = fs::File::create(path.join("f")).expect("it works");
        file.write_all_at(b"closed late", 0).expect("it works");
        stalled.stall(Stall::Before);
        // Past the limit: nobody waits for the commit any more.
        drop(file);
    })
    .await;
    let waiting = mount.fs.waiting_bytes();
    assert!(waiting > 0, "it could not be committed");
    let unmounting = tokio::spawn(mount.mounted.unmount());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!unmounting.is_finished(), "what was written is not committed");
    store.stall(Stall::Nowhere);
    unmounting.await.expect("it works").expect("all is committed");
    let found = other.lookup(other.root(), b"f").await.expect("it works");
    assert_eq!(found.attr.expect("it is there").inode.size, 11);
}

/// A mount was busy when it was to end: the error was returned before anything was committed, and
/// the process ended with it. Bytes that a dropped handle had left were not looked for at all. And
/// the mount stayed, without a process: it is detached now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_mount_commits_what_waits_all_the_same() {
    let store = MemoryStore::new(PAGE_BYTES);
    let options =
        MountOptions { write_back_age: Duration::from_secs(600), ..MountOptions::default() };
    let mount = mount_with(&store, "busy", options).await;
    let other = FileSystem::open(store.clone(), FsOptions::default()).await.expect("it works");
    let (uid, gid, target) = (0, 0, bytes::Bytes::new());
    let create = Create { kind: Kind::File, mode: 0o644, umask: 0, uid, gid, target, device: 0 };
    let (dropped, _) =
        mount.fs.create_file(mount.fs.root(), b"dropped", &create).await.expect("it works");
    mount.fs.write(&dropped, 0, vec![1; 5].into()).await.expect("it works");
    drop(dropped);
    let path = mount.path.clone();
    let file = host(move || {
        let file = fs::File::create(path.join("open")).expect("it works");
        file.write_all_at(b"still open", 0).expect("it works");
        file
    })
    .await;
    mount.mounted.unmount().await.expect("it is detached");
    assert!(!mount._point.is_mounted(), "a busy mount is left behind");
    for (name, size) in [(&b"open"[..], 10), (b"dropped", 5)] {
        let found = other.lookup(other.root(), name).await.expect("it works");
        assert_eq!(found.attr.expect("it is there").inode.size, size, "{name:?}");
    }
    host(move || drop(file)).await;
}

/// A test failed with its mount busy, and the mount stayed on the machine for good.
#[test]
fn a_failing_test_leaves_no_mount_behind() {
    let point = Point::new("left");
    run(&format!("mount -t tmpfs none {}", point.0.display()));
    let busy = fs::File::create(point.0.join("open")).expect("it works");
    assert!(point.is_mounted());
    let path = point.0.clone();
    drop(point);
    assert!(!path.exists());
    drop(busy);
}

/// A mount was said to be ready when its node was linked, a moment before it stood, and after
/// somebody had unmounted it: programs were started on an empty folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stands_from_the_mount_to_its_end() {
    let store = MemoryStore::new(PAGE_BYTES);
    let standing = Standing::default();
    assert_eq!(standing.now(), Err("not mounted yet".into()));
    let options = MountOptions { standing: standing.clone(), ..MountOptions::default() };
    let mount = mount_with(&store, "standing", options).await;
    assert_eq!(standing.now(), Ok(()));
    let path = mount.path.clone();
    host(move || run(&format!("umount {}", path.display()))).await;
    let ended = standing.clone();
    host(move || eventually("the end to be seen", || ended.now().is_err())).await;
    mount.end().await;
    // While it commits what waits it serves nobody any more.
    let standing = Standing::default();
    let options = MountOptions { standing: standing.clone(), ..MountOptions::default() };
    let mount = mount_with(&store, "ending", options).await;
    let path = mount.path.clone();
    host(move || fs::write(path.join("f"), "1").expect("it works")).await;
    let (handle, _) = {
        let found = mount.fs.lookup(mount.fs.root(), b"f").await.expect("it works");
        mount.fs.open_file(found.attr.expect("it is there").id).await.expect("it works")
    };
    mount.fs.write(&handle, 0, bytes::Bytes::from_static(b"2")).await.expect("it works");
    store.stall(Stall::Before);
    let unmounting = tokio::spawn(mount.mounted.unmount());
    let ended = standing.clone();
    host(move || eventually("the end to be seen", || ended.now().is_err())).await;
    assert!(!unmounting.is_finished());
    store.stall(Stall::Nowhere);
    unmounting.await.expect("it works").expect("it works");
}

/// Somebody read a file while the origin could not be reached, and another had written to it here:
/// the reader's close waited for the writer's commit, and was told that it had failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_reads_commits_nothing_at_its_close() {
    let store = MemoryStore::new(PAGE_BYTES);
    let options = MountOptions {
        operation_limit: Duration::from_secs(5),
        write_back_age: Duration::from_secs(600),
        ..MountOptions::default()
    };
    let mount = mount_with(&store, "reader", options).await;
    let (path, stalled) = (mount.path.join("f"), store.clone());
    host(move || {
        let writer = fs::File::create(&path).expect("it works");
        writer.write_all_at(b"not committed", 0).expect("it works");
        stalled.stall(Stall::Before);
        let begun = std::time::Instant::now();
        assert_eq!(fs::read(&path).expect("it works"), b"not committed");
        assert!(begun.elapsed() < Duration::from_secs(3), "it waited for another's commit");
        stalled.stall(Stall::Nowhere);
        writer.sync_all().expect("it works");
    })
    .await;
    mount.end().await;
}

fn told(id: InodeId, change: u32) -> Attr {
    let content = Content::Empty;
    let (mode, uid, gid, links, size, atime) = (0o644, 0, 0, 1, 5, 0);
    // Size and times are kept as they were, as `cp -p` and build tools do.
    let (mtime, ctime) = (1, 2);
    let kind = Kind::File;
    let xattrs = Xattrs::None;
    let inode =
        Inode { kind, mode, uid, gid, links, size, mtime, ctime, atime, change, content, xattrs };
    Attr { id, inode }
}

/// A file's bytes changed, its size and time did not. A look at its attributes came between the
/// change and the taking back: the attributes were as told, so nothing was taken back, and the
/// kernel served the old bytes for as long as it had memory.
#[test]
fn bytes_are_taken_back_though_the_attributes_are_as_told() {
    use super::known::{Concern, TakeBack};
    use larder::core::id::{Generation, Slot};
    let id = |slot| InodeId { page: PageNo(9), slot: Slot(slot), generation: Generation(1) };
    let ttl = Duration::from_secs(60);
    let mut known = Known::new(id(2));
    let (file, old, new) = (id(4), told(id(4), 7), told(id(4), 8));
    let number = known.number(file);
    let place = (PageNo(3), Slot(77));
    known.tell_name(known.position(), (1, b"f"), place, Some(&old), (ttl, Duration::ZERO));
    assert!(known.open_pages(number, 7), "there is nothing to drop");
    read(&mut known, number, 7);
    assert!(known.open_pages(number, 7), "they are the same");
    let concerns = known.change(&[(PageNo(9), Target::Slot(Slot(4)))]);
    let [Concern::Inode { told: before, .. }] = &concerns[..] else { panic!("{concerns:?}") };
    // Before it is taken back, the new attributes are told.
    known.tell_attr(known.position(), &new, ttl);
    assert_eq!(before.as_ref(), Some(&old.inode));
    let concerns = known.change(&[(PageNo(9), Target::Slot(Slot(4)))]);
    let [Concern::Inode { told: now, .. }] = &concerns[..] else { panic!("{concerns:?}") };
    assert_eq!(known.take_back(number, now, Some(&new.inode)), TakeBack::All);
    assert_eq!(known.take_back(number, &None, Some(&new.inode)), TakeBack::Attributes);
    // New bytes, read after that, are good, also when the file is opened anew.
    read(&mut known, number, 8);
    assert!(known.open_pages(number, 8));
    // Bytes of two updates: dropped when it is opened, and good from then on.
    read(&mut known, number, 9);
    assert!(!known.open_pages(number, 9));
    read(&mut known, number, 9);
    assert!(known.open_pages(number, 9));
    // Bytes that the kernel wrote itself are of no update that another could have seen.
    known.take_pages(number);
    let told = Some(new.inode.clone());
    assert_eq!(known.take_back(number, &told, Some(&new.inode)), TakeBack::All);
}

fn read(known: &mut Known, number: u64, change: u32) {
    let reading = known.begin_read(number);
    known.tell_pages(&reading, Some(change));
}

fn file_of(slot: u16) -> InodeId {
    use larder::core::id::{Generation, Slot};
    InodeId { page: PageNo(9), slot: Slot(slot), generation: Generation(1) }
}

/// What the kernel is told of a file.
fn known_file() -> (Known, u64, Inode) {
    let (mut known, file) = (Known::new(file_of(2)), told(file_of(4), 8));
    let (ttl, place) = (Duration::from_secs(60), (PageNo(3), larder::core::id::Slot(77)));
    known.tell_name(known.position(), (1, b"f"), place, Some(&file), (ttl, Duration::ZERO));
    let number = known.number(file.id);
    (known, number, file.inode)
}

/// A read had seen the old bytes and was not answered when their change was taken back: the kernel
/// kept nothing yet, or the new bytes alone, so nothing was taken back. Then the answer came, and
/// whoever had the file open or mapped saw the old bytes for as long as he had.
#[test]
fn bytes_on_their_way_to_the_kernel_are_taken_back() {
    use super::known::TakeBack;
    let (mut known, number, now) = known_file();
    let told = Some(now.clone());
    // It kept nothing.
    let old = known.begin_read(number);
    assert_eq!(known.take_back(number, &told, Some(&now)), TakeBack::All);
    known.tell_pages(&old, Some(7));
    assert!(known.open_pages(number, 8), "the kernel waited for them, and dropped them");
    // It kept the new ones.
    let (old, new) = (known.begin_read(number), known.begin_read(number));
    known.tell_pages(&new, Some(8));
    assert_eq!(known.take_back(number, &told, Some(&now)), TakeBack::All);
    known.tell_pages(&old, Some(7));
    // No read is under way, also after one that failed.
    let failed = known.begin_read(number);
    known.end_read(&failed);
    read(&mut known, number, 8);
    assert_eq!(known.take_back(number, &told, Some(&now)), TakeBack::Nothing);
}

/// Bytes that this node had written and not committed were read and counted as those of the
/// content below: they stayed when another had written over them, or when their commit failed.
#[test]
fn bytes_not_committed_are_of_no_update() {
    use super::known::TakeBack;
    let (mut known, number, now) = known_file();
    let reading = known.begin_read(number);
    known.tell_pages(&reading, None);
    assert!(!known.open_pages(number, 8));
    let reading = known.begin_read(number);
    known.tell_pages(&reading, None);
    assert_eq!(known.take_back(number, &Some(now.clone()), Some(&now)), TakeBack::All);
    let reading = known.begin_read(number);
    known.tell_pages(&reading, None);
    assert_eq!(known.drop_pages(file_of(4)), [number]);
    assert!(known.open_pages(number, 8));
    assert!(known.drop_pages(file_of(6)).is_empty(), "the kernel knows nothing of it");
}

/// A file was given an access list, and who was let in by it was kept out all the same, now and then:
/// the change was heard of, and taken back, while the kernel asked for the new attributes; it dropped
/// the answer, and decided by what it had known before. What is taken back before the change is
/// answered is not taken back again.
#[test]
fn what_was_taken_back_at_once_is_not_taken_back_later() {
    use super::known::{Concern, TakeBack};
    let ttl = Duration::from_secs(60);
    let change = |known: &mut Known| {
        let concerns = known.change(&[(PageNo(9), Target::Slot(larder::core::id::Slot(4)))]);
        let [Concern::Inode { told, noted, .. }] = &concerns[..] else { panic!("{concerns:?}") };
        (*noted, told.clone())
    };
    let (mut known, number, old) = known_file();
    let new = told(file_of(4), 8);
    let now = Inode { mode: 0o740, ..new.inode.clone() };
    let asked = Attr { inode: now.clone(), ..new };
    let take = |known: &mut Known, (noted, told): &(u64, Option<Inode>)| {
        known.take_back_noted(number, (*noted, told), Some(&now))
    };
    // Heard of before it is answered, and looked after when the kernel has asked anew.
    let early = change(&mut known);
    assert_eq!(early.1, Some(old));
    assert_eq!(known.take_back_now(number, &now), TakeBack::Attributes);
    let late = change(&mut known);
    assert_eq!(known.tell_attr(known.position(), &asked, ttl), ttl);
    assert_eq!(take(&mut known, &early), TakeBack::Nothing);
    assert_eq!(take(&mut known, &late), TakeBack::Nothing);
    // What comes after it is.
    let another = change(&mut known);
    let now = Inode { mode: 0o700, ..now };
    let (noted, told) = &another;
    assert_eq!(known.take_back_noted(number, (*noted, told), Some(&now)), TakeBack::Attributes);
    // So are bytes that somebody reads meanwhile.
    assert_eq!(known.take_back_now(number, &now), TakeBack::Attributes);
    let later = change(&mut known);
    let _reading = known.begin_read(number);
    assert_eq!(known.take_back_noted(number, (later.0, &later.1), Some(&now)), TakeBack::All);
}

/// One change had more parts than are remembered. An answer read before it was given with all of
/// its life, since what was left of the change looked like all of it.
#[test]
fn an_answer_beside_a_very_large_change_is_not_believed() {
    let (mut known, _, inode) = known_file();
    let position = known.position();
    let mut parts = vec![(PageNo(9), Target::Slot(larder::core::id::Slot(4)))];
    parts.extend((0..5000).map(|page| (PageNo(100 + page), Target::Page)));
    known.change(&parts);
    let (attr, ttl) = (Attr { id: file_of(4), inode }, Duration::from_secs(60));
    assert_eq!(known.tell_attr(position, &attr, ttl), Duration::ZERO);
    assert_eq!(known.tell_attr(known.position(), &attr, ttl), ttl);
    let position = known.position();
    known.change_all();
    assert_eq!(known.tell_attr(position, &attr, ttl), Duration::ZERO);
}

/// The same through a real mount: a read is stopped when it has seen the old bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_under_way_leaves_no_old_bytes() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "under-way").await;
    let other = FileSystem::open(store.clone(), FsOptions::default()).await.expect("it works");
    let (uid, gid, target) = (0, 0, bytes::Bytes::new());
    let create = Create { kind: Kind::File, mode: 0o644, umask: 0, uid, gid, target, device: 0 };
    let (handle, found) = other.create_file(other.root(), b"f", &create).await.expect("it works");
    let id = found.attr.expect("it was made").id;
    let write = async |byte: u8| {
        other.write(&handle, 0, vec![byte; 100_000].into()).await.expect("it works");
        other.flush(&handle).await.expect("it works");
        // So that the kernel does not find out by the time.
        let set = SetAttr { mtime: Some(1), ..SetAttr::default() };
        other.setattr(id, set).await.expect("it works");
    };
    let look = |file: &fs::File| {
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).expect("it works");
        bytes[0]
    };
    write(b'a').await;
    store.stall(Stall::Looked);
    let path = one.path.join("f");
    let reading = tokio::task::spawn_blocking(move || {
        let file = fs::File::open(path).expect("it works");
        (look(&file), file)
    });
    while store.stalled() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    write(b'b').await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    store.stall(Stall::Nowhere);
    // It may see either: the kernel looks again where its page was taken away.
    let (_, file) = reading.await.expect("it works");
    host(move || eventually("the new bytes", || look(&file) == b'b')).await;
    other.release(&handle).await.expect("it works");
    one.end().await;
}

/// Written bytes were lost for good, and whoever asked was told; but the kernel kept them, and
/// showed them as the file's for as long as it was open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_bytes_are_not_shown() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "lost").await;
    let (path, lossy) = (one.path.join("f"), store.clone());
    host(move || {
        fs::write(&path, "committed").expect("it works");
        let file = fs::File::options().read(true).write(true).open(&path).expect("it works");
        file.sync_all().expect("it works");
        // The release of what was closed commits all that waits by then.
        std::thread::sleep(Duration::from_millis(100));
        file.write_all_at(b"lost", 0).expect("it works");
        // The kernel keeps the bytes, and believes size and time: it asks for neither again.
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..2 {
            assert_eq!(file.metadata().expect("it works").len(), 9);
            let mut bytes = [0; 9];
            file.read_exact_at(&mut bytes, 0).expect("it works");
            assert_eq!(&bytes, b"lostitted");
        }
        lossy.fail_next_commit(larder::fs::TxError::Denied("no".into()));
        file.sync_all().expect_err("it is refused for good");
        eventually("what is there", || {
            let mut bytes = [0; 9];
            file.read_exact_at(&mut bytes, 0).expect("it works");
            &bytes == b"committed"
        });
    })
    .await;
    one.end().await;
}

/// The same through two real mounts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn new_bytes_with_an_old_time_are_seen() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "old-time").await;
    let other = FileSystem::open(store.clone(), FsOptions::default()).await.expect("it works");
    let (uid, gid, target) = (0, 0, bytes::Bytes::new());
    let create = Create { kind: Kind::File, mode: 0o644, umask: 0, uid, gid, target, device: 0 };
    let (handle, found) = other.create_file(other.root(), b"f", &create).await.expect("it works");
    let id = found.attr.expect("it was made").id;
    for round in 0..20_u64 {
        let text = format!("{round:08}");
        other.write(&handle, 0, text.clone().into()).await.expect("it works");
        other.flush(&handle).await.expect("it works");
        let set = SetAttr { mtime: Some(1), ..SetAttr::default() };
        other.setattr(id, set).await.expect("it works");
        let path = one.path.join("f");
        host(move || {
            eventually("the new bytes", || {
                fs::metadata(&path).expect("it works").len() == 8
                    && fs::read_to_string(&path).expect("it works") == text
            });
        })
        .await;
    }
    other.release(&handle).await.expect("it works");
    one.end().await;
}

/// A mount over a real node, its signals the node's own.
async fn mount_node(node: &Node, name: &str) -> (Point, Mounted<VolumeStore>) {
    let limit = Duration::from_secs(20);
    let volume = node.volume("files").await.expect("it works");
    let store = VolumeStore::new(volume.clone(), Freshness::Leased, limit, limit, limit);
    let mut notices = node.notices();
    let files =
        FileSystem::open_or_format(store, FsOptions::default(), [5; 16]).await.expect("it works");
    let point = Point::new(name);
    let (domain, id) = (volume.domain(), volume.id());
    let signals = move || next_signal(&mut notices, domain, id);
    let mounted = Mounted::mount(Arc::new(files), &point.0, MountOptions::default(), signals);
    (point, mounted.expect("it works"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_sites_share_a_tree_over_tls() {
    let dir = std::env::temp_dir().join(format!("larder-sites-{}", std::process::id()));
    let tls = dir.join("tls");
    let authority = init(&tls, "test").expect("it works");
    authority.issue(&tls, "origin", Role::Origin, 1).expect("it works");
    for node in ["one", "two"] {
        authority.issue(&tls, node, Role::Node, 1).expect("it works");
    }
    let config = OriginConfig {
        name: "origin".into(),
        tls_dir: tls.clone(),
        origin: OriginSection {
            listen: "127.0.0.1:0".into(),
            data: dir.join("data"),
            create: true,
            ..OriginSection::default()
        },
        link: LinkConfig::default(),
    };
    let origin = OriginServer::start(config).await.expect("it works");
    let parent = origin.address().to_string();
    let one = Node::connect(NodeConfig::new("one", tls.clone(), &parent)).await.expect("it works");
    let two = Node::connect(NodeConfig::new("two", tls.clone(), &parent)).await.expect("it works");
    let options = VolumeOptions { page_bytes: PAGE_BYTES, ..VolumeOptions::new("files") };
    one.create_volume(options).await.expect("it works");
    let (a, here) = mount_node(&one, "here").await;
    let (b, there) = mount_node(&two, "there").await;
    let (p, q) = (a.0.clone(), b.0.clone());
    host(move || {
        assert!(!q.join("tree").exists());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        run(&format!("cp -a {source} {}/tree; diff -r {source} {0}/tree", p.display()));
        eventually("the tree", || q.join("tree").exists());
        run(&format!("diff -r {source} {}/tree", q.display()));
        fs::write(p.join("tree/main.rs"), "edited").expect("it works");
        eventually("the edit", || fs::read(q.join("tree/main.rs")).expect("it works") == b"edited");
        fs::rename(q.join("tree/main.rs"), q.join("moved")).expect("it works");
        eventually("the move", || {
            !p.join("tree/main.rs").exists() && fs::read(p.join("moved")).is_ok()
        });
        run(&format!("rm -r {}/*", q.display()));
        eventually("the removal", || fs::read_dir(&p).expect("it works").count() == 0);
    })
    .await;
    here.unmount().await.expect("it works");
    there.unmount().await.expect("it works");
    one.shutdown().await;
    two.shutdown().await;
    drop(origin);
    fs::remove_dir_all(dir).expect("it works");
}
