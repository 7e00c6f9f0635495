//! The file layer over the store in memory.

mod attributes;
mod exports;
mod golden;
mod kept;
mod late;
mod layout;
mod open;
mod repairs;
mod space;
mod stale;
mod walk;
mod writeback;

use super::memory::MemoryStore;
use super::*;
use bytes::Bytes;
use std::sync::Arc;

type Fs = Arc<FileSystem<MemoryStore>>;

/// What is closed is committed from here on, while the task lives.
async fn commits(fs: &Fs) -> tokio::task::JoinHandle<()> {
    let committer = fs.clone();
    let task = tokio::spawn(async move { committer.commit_closed().await });
    while !fs.is_well() {
        tokio::task::yield_now().await;
    }
    task
}

async fn fresh() -> (MemoryStore, Fs) {
    let store = MemoryStore::new(PAGE_BYTES);
    let fs = open(&store).await;
    (store, fs)
}

/// Another node on the same volume.
async fn open(store: &MemoryStore) -> Fs {
    let fs = FileSystem::open_or_format(store.clone(), FsOptions::default(), [7; 16]);
    Arc::new(fs.await.expect("it works"))
}

fn file() -> Create {
    kind(Kind::File)
}

fn directory() -> Create {
    kind(Kind::Directory)
}

fn kind(kind: Kind) -> Create {
    Create { kind, mode: 0o644, umask: 0, uid: 1, gid: 2, target: Bytes::new(), device: 0 }
}

async fn make(fs: &Fs, parent: InodeId, name: &str, create: &Create) -> InodeId {
    let found = fs.create(parent, name.as_bytes(), create).await.expect("it works");
    found.attr.expect("it works").id
}

async fn write_file(fs: &Fs, id: InodeId, offset: u64, bytes: &[u8]) {
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.write(&handle, offset, Bytes::copy_from_slice(bytes)).await.expect("it works");
    fs.release(&handle).await.expect("it works");
}

async fn read_file(fs: &Fs, id: InodeId) -> Vec<u8> {
    let (handle, attr) = fs.open_file(id).await.expect("it works");
    let bytes = fs.read(&handle, 0, attr.inode.size as usize + 10).await.expect("it works");
    fs.release(&handle).await.expect("it works");
    bytes.to_vec()
}

async fn names(fs: &Fs, directory: InodeId) -> Vec<String> {
    let mut all = Vec::new();
    let mut position = Position::default();
    loop {
        let batch = fs.read_dir(directory, &position, 10, true).await.expect("it works");
        let Some(last) = batch.last() else { break };
        position = last.position.clone();
        all.extend(batch.iter().map(|e| String::from_utf8_lossy(&e.entry.name).into_owned()));
    }
    all.sort();
    all
}

async fn clean(fs: &Fs) {
    let report =
        check::check(fs, &check::CheckOptions::default(), &mut |_| {}).await.expect("it works");
    assert!(report.is_clean(), "{report:#?}");
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * 31 + seed * 7 + i / 251) % 256) as u8).collect()
}

#[tokio::test]
async fn creates_and_finds() {
    let (store, fs) = fresh().await;
    let a = make(&fs, fs.root(), "a", &directory()).await;
    let f = make(&fs, a, "f", &file()).await;
    let other = open(&store).await;
    assert_eq!(
        other.lookup(other.root(), b"a").await.expect("it works").attr.expect("it works").id,
        a
    );
    let found = other.lookup(a, b"f").await.expect("it works").attr.expect("it works");
    assert_eq!((found.id, found.inode.links), (f, 1));
    assert_eq!(other.lookup(a, b"g").await.expect("it works").attr, None);
    assert_eq!(fs.create(a, b"f", &file()).await, Err(FsError::Exists));
    let root = fs.getattr(fs.root()).await.expect("it works").inode;
    assert_eq!((root.links, root.size), (3, 1));
    clean(&fs).await;
}

#[tokio::test]
async fn many_names_split_the_trie() {
    let (store, fs) = fresh().await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let mut expected = Vec::new();
    for i in 0..3000 {
        let name = format!("file-with-a-rather-long-name-{i}");
        make(&fs, d, &name, &file()).await;
        expected.push(name);
    }
    expected.sort();
    let other = open(&store).await;
    assert_eq!(names(&other, d).await, expected);
    clean(&other).await;
    assert_eq!(fs.rmdir(fs.root(), b"d").await, Err(FsError::NotEmpty));
    for name in &expected {
        other.unlink(d, name.as_bytes()).await.expect("it works");
    }
    assert_eq!(fs.getattr(d).await.expect("it works").inode.size, 0);
    fs.rmdir(fs.root(), b"d").await.expect("it works");
    assert_eq!(other.lookup(d, b"x").await, Err(FsError::NotFound));
    clean(&fs).await;
    // What is left: the root page, two tries, and pages that are being filled.
    assert!(store.pages() < 25, "{} pages left", store.pages());
}

#[tokio::test]
async fn contents_of_all_sizes() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    for length in [0, 1, 4095, 4096, 4097, 32736, 32737, 600_000, 20 << 20] {
        let id = make(&fs, fs.root(), &format!("f{length}"), &file()).await;
        let bytes = pattern(length, length);
        write_file(&fs, id, 0, &bytes).await;
        assert_eq!(read_file(&other, id).await, bytes, "length {length}");
    }
    clean(&fs).await;
}

#[tokio::test]
async fn holes_read_as_zeros() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "sparse", &file()).await;
    write_file(&fs, id, 5_000_000, b"end").await;
    write_file(&fs, id, 100_000, b"middle").await;
    let mut expected = vec![0; 5_000_003];
    expected[5_000_000..].copy_from_slice(b"end");
    expected[100_000..100_006].copy_from_slice(b"middle");
    assert_eq!(read_file(&fs, id).await, expected);
    clean(&fs).await;
    let before = store.pages();
    fs.unlink(fs.root(), b"sparse").await.expect("it works");
    assert_eq!(store.pages(), before - 2);
    clean(&fs).await;
}

#[tokio::test]
async fn resizes() {
    let (_, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let bytes = pattern(12 << 20, 1);
    write_file(&fs, id, 0, &bytes).await;
    for size in [10_000_000_u64, 70_000, 40_000, 10, 0] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(fs.setattr(id, set).await.expect("it works").inode.size, size);
        assert_eq!(read_file(&fs, id).await, bytes[..size as usize], "size {size}");
        let more = SetAttr { size: Some(size + 50_000), ..SetAttr::default() };
        fs.setattr(id, more).await.expect("it works");
        let mut expected = bytes[..size as usize].to_vec();
        expected.resize(size as usize + 50_000, 0);
        assert_eq!(read_file(&fs, id).await, expected, "size {size} extended");
        fs.setattr(id, set).await.expect("it works");
    }
    fs.reap_waiting().await.expect("it works");
    clean(&fs).await;
}

#[tokio::test]
async fn random_writes_match_a_model() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let mut model: Vec<u8> = Vec::new();
    let (mut handle, _) = fs.open_file(id).await.expect("it works");
    let mut random = 12345_u64;
    let mut next = move |limit: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % limit
    };
    for step in 0..400 {
        let (offset, length) = (next(300_000) as usize, next(9000) as usize);
        match next(20) {
            0 => {
                let size = next(300_000);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(id, set).await.expect("it works");
                model.resize(size as usize, 0);
            }
            1 => fs.flush(&handle).await.expect("it works"),
            2 => {
                fs.release(&handle).await.expect("it works");
                assert_eq!(read_file(&other, id).await, model, "step {step}, other node");
                handle = fs.open_file(id).await.expect("it works").0;
            }
            _ if length > 0 => {
                let bytes = pattern(length, step);
                model.resize(model.len().max(offset + length), 0);
                model[offset..offset + length].copy_from_slice(&bytes);
                fs.write(&handle, offset as u64, bytes.into()).await.expect("it works");
            }
            _ => {}
        }
        let from = next(300_000).min(model.len() as u64);
        let read = fs.read(&handle, from, 50_000).await.expect("it works");
        let end = model.len().min(from as usize + 50_000);
        assert_eq!(read, model[from as usize..end], "step {step}");
    }
    fs.release(&handle).await.expect("it works");
    clean(&fs).await;
}

/// A node died with a file open whose name it had removed, and the file's pages were never freed:
/// only `check` told of them. Another node held such a file too, and lives: its file must stay,
/// however long it is open.
#[tokio::test]
async fn what_a_dead_node_held_open_is_freed_and_what_a_living_one_holds_is_not() {
    let (store, dead) = fresh().await;
    let options = || FsOptions { orphan_age: Duration::from_millis(80), ..FsOptions::default() };
    let open =
        || async { Arc::new(FileSystem::open(store.clone(), options()).await.expect("it works")) };
    let (living, other) = (open().await, open().await);
    let mut handles = Vec::new();
    for (fs, name) in [(&dead, b"d"), (&living, b"l")] {
        let id = make(fs, fs.root(), std::str::from_utf8(name).expect("ASCII"), &file()).await;
        write_file(fs, id, 0, &pattern(100_000, 3)).await;
        handles.push(fs.open_file(id).await.expect("it works").0);
        fs.unlink(fs.root(), name).await.expect("it works");
    }
    drop(dead);
    let mut freed = 0;
    for _ in 0..40 {
        tokio::time::sleep(options().orphan_touch()).await;
        freed += living.tend_orphans().await.expect("it works");
        freed += other.tend_orphans().await.expect("it works");
    }
    assert_eq!(freed, 1, "one of the two is nobody's");
    let held = living.read(&handles[1], 0, 200_000).await.expect("it works");
    assert_eq!(held, pattern(100_000, 3));
    assert_eq!(other.orphans().await.expect("it works").len(), 1);
    clean(&other).await;
    living.release(&handles[1]).await.expect("it works");
    assert_eq!(other.orphans().await.expect("it works").len(), 0);
}

/// A node was cut off for long and found an open file of another's without a sign of life. The link
/// came back while it freed the file; it met the other's last sign as a conflict, tried again, and
/// freed the file under its reader.
#[tokio::test]
async fn an_orphan_with_a_new_sign_of_life_is_not_freed() {
    let (store, living) = fresh().await;
    let other = open(&store).await;
    let id = make(&living, living.root(), "f", &file()).await;
    write_file(&living, id, 0, &pattern(100_000, 3)).await;
    let (handle, _) = living.open_file(id).await.expect("it works");
    living.unlink(living.root(), b"f").await.expect("it works");
    let seen = other.getattr(id).await.expect("it works").inode.ctime;
    living.tend_orphans().await.expect("it works");
    assert_eq!(other.reap_unchanged(id, Some(seen)).await, Ok(false));
    assert_eq!(living.read(&handle, 0, 200_000).await.expect("it works"), pattern(100_000, 3));
    let seen = other.getattr(id).await.expect("it works").inode.ctime;
    assert_eq!(other.reap_unchanged(id, Some(seen)).await, Ok(true));
    // Nothing that has a name is ever freed, whatever waits to be.
    let named = make(&living, living.root(), "g", &file()).await;
    write_file(&living, named, 0, &pattern(100_000, 3)).await;
    other.reap(named).await.expect("it works");
    assert_eq!(read_file(&living, named).await, pattern(100_000, 3));
    clean(&other).await;
}

#[tokio::test]
async fn removed_while_open_stays_until_closed() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 0, &pattern(100_000, 3)).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.unlink(fs.root(), b"f").await.expect("it works");
    assert_eq!(fs.read(&handle, 0, 200_000).await.expect("it works"), pattern(100_000, 3));
    assert_eq!(fs.orphans().await.expect("it works").len(), 1);
    clean(&fs).await;
    let before = store.pages();
    fs.release(&handle).await.expect("it works");
    assert_eq!(fs.orphans().await.expect("it works").len(), 0);
    assert_eq!(store.pages(), before - 4);
    clean(&fs).await;
}

#[tokio::test]
async fn renames() {
    let (_, fs) = fresh().await;
    let root = fs.root();
    let a = make(&fs, root, "a", &directory()).await;
    let b = make(&fs, root, "b", &directory()).await;
    let c = make(&fs, a, "c", &directory()).await;
    let f = make(&fs, a, "f", &file()).await;
    let g = make(&fs, b, "g", &file()).await;
    let replace = RenameMode::Replace;
    fs.rename((a, b"f"), (b, b"g"), replace).await.expect("it works");
    assert_eq!(fs.lookup(b, b"g").await.expect("it works").attr.expect("it works").id, f);
    assert_eq!(fs.getattr(g).await, Err(FsError::NotFound));
    assert!(matches!(fs.rename((root, b"a"), (c, b"x"), replace).await, Err(FsError::Invalid(_))));
    assert_eq!(fs.rename((root, b"a"), (root, b"b"), replace).await, Err(FsError::NotEmpty));
    assert_eq!(fs.rename((root, b"a"), (b, b"g"), replace).await, Err(FsError::NotDirectory));
    assert_eq!(fs.rename((b, b"g"), (root, b"a"), replace).await, Err(FsError::IsDirectory));
    fs.rename((root, b"a"), (b, b"a2"), replace).await.expect("it works");
    assert_eq!(fs.parent(a).await.expect("it works"), b);
    assert_eq!(fs.rename((b, b"a2"), (b, b"g"), RenameMode::NoReplace).await, Err(FsError::Exists));
    fs.rename((b, b"a2"), (b, b"g"), RenameMode::Exchange).await.expect("it works");
    assert_eq!(fs.lookup(b, b"g").await.expect("it works").attr.expect("it works").id, a);
    fs.rename((b, b"g"), (root, b"b2"), RenameMode::Exchange).await.expect_err("it is refused");
    let d = make(&fs, root, "d", &directory()).await;
    fs.rename((b, b"g"), (root, b"d"), replace).await.expect("it works");
    assert_eq!(fs.getattr(d).await, Err(FsError::NotFound));
    clean(&fs).await;
}

#[tokio::test]
async fn links_and_symlinks() {
    let (_, fs) = fresh().await;
    let root = fs.root();
    let f = make(&fs, root, "f", &file()).await;
    assert_eq!(
        fs.link(f, root, b"g").await.expect("it works").attr.expect("it works").inode.links,
        2
    );
    fs.rename((root, b"f"), (root, b"g"), RenameMode::Replace).await.expect("it works");
    assert_eq!(names(&fs, root).await, ["f", "g"]);
    fs.unlink(root, b"f").await.expect("it works");
    assert_eq!(fs.getattr(f).await.expect("it works").inode.links, 1);
    let link = Create { target: Bytes::from_static(b"../g"), ..kind(Kind::Symlink) };
    let l = make(&fs, root, "l", &link).await;
    assert_eq!(fs.readlink(l).await.expect("it works"), "../g");
    clean(&fs).await;
}

/// Pipes, sockets and devices have a name, attributes and, if devices, a number; nothing to read,
/// write or cut, which somebody who is not a kernel may ask for.
#[tokio::test]
async fn special_files_have_no_content() {
    let (store, fs) = fresh().await;
    let root = fs.root();
    let d = make(&fs, root, "d", &directory()).await;
    let kinds = [Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];
    for (number, wanted) in (1..).zip(kinds) {
        let name = format!("{wanted:?}");
        let create = Create { device: 0x801 * number, ..kind(wanted) };
        let id = make(&fs, root, &name, &create).await;
        let inode = fs.getattr(id).await.expect("it is there").inode;
        assert_eq!((inode.kind, inode.size, inode.links), (wanted, 0, 1));
        let device = Content::Device(0x801 * number);
        assert_eq!(inode.content == device, wanted.is_device(), "{inode:?}");
        assert!(matches!(fs.open_file(id).await, Err(FsError::Invalid(_))));
        let cut = SetAttr { size: Some(10), ..SetAttr::default() };
        assert!(matches!(fs.setattr(id, cut).await, Err(FsError::Invalid(_))));
        fs.link(id, d, name.as_bytes()).await.expect("it works");
        fs.rename((d, name.as_bytes()), (d, b"moved"), RenameMode::Replace)
            .await
            .expect("it takes the other's place");
    }
    assert_eq!(names(&fs, d).await, ["moved"]);
    // Another node sees the same.
    let other = open(&store).await;
    let moved = other.resolve(b"d/moved").await.expect("it is there").inode;
    assert_eq!((moved.kind, moved.links), (Kind::BlockDevice, 2));
    assert_eq!(moved.content, Content::Device(0x801 * 4));
    let report = check::check(&fs, &check::CheckOptions::default(), &mut |_| {}).await;
    assert_eq!(report.expect("it works").special, 4);
    fs.unlink(d, b"moved").await.expect("it works");
    for wanted in kinds {
        fs.unlink(root, format!("{wanted:?}").as_bytes()).await.expect("it works");
    }
    clean(&fs).await;
}

/// Creations in one directory commute: none of many at once from two nodes fails, and the
/// directory's counts hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creations_side_by_side() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..400 {
        let fs = if i % 2 == 0 { fs.clone() } else { other.clone() };
        tasks.spawn(async move {
            make(&fs, d, &format!("n{i}"), &file()).await;
        });
    }
    tasks.join_all().await;
    assert_eq!(fs.getattr(d).await.expect("it works").inode.size, 400);
    assert_eq!(names(&fs, d).await.len(), 400);
    clean(&fs).await;
}

/// A directory that is removed while a name is created in it: exactly one of the two happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_against_creation() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    for i in 0..100 {
        let name = format!("d{i}");
        let d = make(&fs, fs.root(), &name, &directory()).await;
        let creator = other.clone();
        let created = tokio::spawn(async move { creator.create(d, b"f", &file()).await });
        let removed = fs.rmdir(fs.root(), name.as_bytes()).await;
        match created.await.expect("it works") {
            Ok(_) => assert_eq!(removed, Err(FsError::NotEmpty)),
            Err(error) => assert_eq!((error, removed), (FsError::NotFound, Ok(()))),
        }
    }
    clean(&fs).await;
}

/// Two sites move two directories into each other: one of them must fail, or both would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_into_each_other() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    for i in 0..100 {
        let (a, b) = (format!("a{i}"), format!("b{i}"));
        let (ida, idb) = (
            make(&fs, fs.root(), &a, &directory()).await,
            make(&fs, fs.root(), &b, &directory()).await,
        );
        let (mover, root, name) = (other.clone(), fs.root(), b.clone());
        let first = tokio::spawn(async move {
            mover.rename((root, name.as_bytes()), (ida, b"x"), RenameMode::Replace).await
        });
        let second = fs.rename((root, a.as_bytes()), (idb, b"x"), RenameMode::Replace).await;
        assert!(first.await.expect("it works").is_ok() != second.is_ok());
    }
    clean(&fs).await;
}

#[tokio::test]
async fn failed_commits_are_reported_at_close() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.write(&handle, 0, Bytes::from_static(b"lost")).await.expect("it works");
    store.fail_next_commit(TxError::Denied("no".into()));
    assert_eq!(fs.flush(&handle).await, Err(TxError::Denied("no".into()).into()));
    assert_eq!(handle.dirty_bytes(), 0);
    fs.write(&handle, 0, Bytes::from_static(b"kept")).await.expect("it works");
    store.fail_next_commit(TxError::TimedOut);
    assert_eq!(fs.flush(&handle).await, Err(TxError::TimedOut.into()));
    fs.release(&handle).await.expect("it works");
    assert_eq!(read_file(&fs, id).await, b"kept");
}

/// Times set after a write stay as set, although the write is committed at close.
#[tokio::test]
async fn times_survive_the_flush() {
    let (_, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(id).await.expect("it works");
    fs.write(&handle, 0, Bytes::from_static(b"x")).await.expect("it works");
    let set = SetAttr { mtime: Some(-5), ..SetAttr::default() };
    fs.setattr(id, set).await.expect("it works");
    fs.release(&handle).await.expect("it works");
    let inode = fs.getattr(id).await.expect("it works").inode;
    assert_eq!((inode.mtime, inode.size), (-5, 1));
}

/// A pre-split deep trie: pages of 4 KiB fill soon.
#[tokio::test]
async fn small_pages() {
    let store = MemoryStore::new(4096);
    let fs = open(&store).await;
    for i in 0..500 {
        let id = make(&fs, fs.root(), &format!("name-{i}"), &file()).await;
        write_file(&fs, id, 0, &pattern(i * 3, i)).await;
    }
    for i in 0..500 {
        let found = fs.lookup(fs.root(), format!("name-{i}").as_bytes()).await.expect("it works");
        assert_eq!(read_file(&fs, found.attr.expect("it works").id).await, pattern(i * 3, i));
    }
    clean(&fs).await;
}

#[test]
fn reads_ahead_in_growing_steps() {
    let mut ahead = ReadAhead::default();
    let mut asked = Vec::new();
    for i in 0..12 {
        let range = ahead.note(i * 131_072, 131_072, 1 << 20);
        if !range.is_empty() {
            asked.push((range.start >> 17, range.end >> 17));
        }
    }
    assert_eq!(asked[0], (1, 2));
    assert!(asked.windows(2).all(|two| two[0].1 == two[1].0), "{asked:?}");
    assert_eq!(ahead.note(0, 10, 1 << 20), 0..0);
}
