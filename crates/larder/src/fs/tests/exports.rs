//! An export that is gone on with, into a folder that holds what an earlier run left.

use super::*;
use crate::fs::export::{ExportOptions, export};
use crate::fs::record::Entry;
use crate::fs::tx::{Mode, Tx, TxStore};
use std::fs as host;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

async fn link(fs: &Fs, name: &str, target: &std::path::Path) {
    let target = Bytes::copy_from_slice(target.as_os_str().as_encoded_bytes());
    let create = Create { target, ..kind(Kind::Symlink) };
    make(fs, fs.root(), name, &create).await;
}

/// Root exported a volume to which others may write, and the run was cut off. By the next one a link to
/// a folder of the machine had become a directory: the export went through the link, and wrote where
/// it led. And what had been a file and was a directory now ended it, as did the reverse.
#[tokio::test]
async fn an_export_that_goes_on_follows_no_link_and_replaces_what_changed_its_kind() {
    let (_, fs) = fresh().await;
    let place = std::env::temp_dir().join(format!("larder-export-{}", std::process::id()));
    let (target, outside) = (place.join("out"), place.join("outside"));
    host::create_dir_all(&outside).expect("it works");
    host::write(outside.join("victim"), "untouched").expect("it works");
    link(&fs, "d", &outside).await;
    link(&fs, "f", &outside.join("victim")).await;
    make(&fs, fs.root(), "was-file", &file()).await;
    let was = make(&fs, fs.root(), "was-directory", &directory()).await;
    let below = make(&fs, was, "below", &file()).await;
    write_file(&fs, below, 0, b"below").await;
    let again = || async {
        let options = ExportOptions { keep_before: Some(i64::MAX) };
        export(&fs, fs.root(), &target, options, &mut |_| {}).await
    };
    again().await.expect("it works");

    for name in ["d", "f", "was-file"] {
        fs.unlink(fs.root(), name.as_bytes()).await.expect("it works");
    }
    fs.unlink(was, b"below").await.expect("it works");
    fs.rmdir(fs.root(), b"was-directory").await.expect("it works");
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let through = make(&fs, d, "victim", &file()).await;
    write_file(&fs, through, 0, b"written over").await;
    for name in ["f", "was-directory"] {
        let id = make(&fs, fs.root(), name, &file()).await;
        write_file(&fs, id, 0, b"a file").await;
    }
    make(&fs, fs.root(), "was-file", &directory()).await;
    again().await.expect("it goes on");

    assert_eq!(host::read(outside.join("victim")).expect("it is there"), b"untouched");
    assert_eq!(host::read_dir(&outside).expect("it is there").count(), 1);
    for (name, is_directory) in
        [("d", true), ("f", false), ("was-file", true), ("was-directory", false)]
    {
        let about = host::symlink_metadata(target.join(name)).expect("it is there");
        assert_eq!((about.is_dir(), about.is_file()), (is_directory, !is_directory), "{name}");
    }
    assert_eq!(host::read(target.join("d/victim")).expect("it works"), b"written over");
    host::remove_dir_all(&place).expect("it works");
}

/// Directories got their owners while the export still wrote below them, or were left with them by a run
/// that was cut off: their owners could put links there. A file that was changed to another content of
/// the same size, its time set back, was kept; and the folder's own time was that of the mark's end.
#[tokio::test]
async fn an_export_is_the_exporters_alone_and_keeps_nothing_that_changed() {
    let (_, fs) = fresh().await;
    let place = std::env::temp_dir().join(format!("larder-export-own-{}", std::process::id()));
    let target = place.join("out");
    let open = Create { mode: 0o777, ..directory() };
    let d = make(&fs, fs.root(), "d", &open).await;
    let a = make(&fs, d, "a", &file()).await;
    let b = make(&fs, d, "b", &file()).await;
    for id in [a, b] {
        write_file(&fs, id, 0, b"before").await;
    }
    let mut modes = Vec::new();
    let mode = |path: &std::path::Path| {
        host::symlink_metadata(path).map(|about| about.permissions().mode() & 0o777).ok()
    };
    let mut look = |_: &_| modes.push((mode(&target), mode(&target.join("d"))));
    let first = ExportOptions::default();
    export(&fs, fs.root(), &target, first, &mut look).await.expect("it works");
    let last = modes.pop().expect("the end");
    assert!(
        modes.iter().all(|(top, below)| {
            *top == Some(0o700) && below.is_none_or(|below| below == 0o700)
        })
    );
    assert_eq!(last.1, Some(0o777), "in the end it is as it is in the volume");

    // Of the same size, with the time that it had.
    let began = fs.getattr(a).await.expect("it works").inode.ctime + 1;
    let attr = fs.getattr(b).await.expect("it works").inode;
    write_file(&fs, b, 0, b"after!").await;
    let times = SetAttr { mtime: Some(attr.mtime), ..SetAttr::default() };
    fs.setattr(b, times).await.expect("it works");
    let ctime = fs.getattr(b).await.expect("it works").inode.ctime;
    assert!(ctime >= began, "it changed since");
    // The mark of an export that was cut off goes before the folder gets its times.
    host::write(target.join(crate::fs::export::MARKER), "a mark").expect("it works");
    let again = ExportOptions { keep_before: Some(began) };
    let done = export(&fs, fs.root(), &target, again, &mut |_| {}).await.expect("it goes on");
    assert_eq!((done.files, done.skipped), (1, 1));
    assert_eq!(host::read(target.join("d/b")).expect("it is there"), b"after!");
    assert!(!target.join(crate::fs::export::MARKER).exists());
    let root = fs.getattr(fs.root()).await.expect("it works").inode;
    let about = host::metadata(&target).expect("it is there");
    assert_eq!(about.mtime() * 1_000_000_000 + about.mtime_nsec(), root.mtime);
    host::remove_dir_all(&place).expect("it works");
}

/// Somebody with the right to write put entries into a directory by the library whose names led out of it:
/// an export by root wrote, and gave to him, what they named.
#[tokio::test]
async fn an_export_writes_to_no_name_that_leads_elsewhere() {
    let place = std::env::temp_dir().join(format!("larder-names-{}", std::process::id()));
    let outside = place.join("outside");
    let absolute = outside.to_str().expect("it is plain").to_owned();
    for name in [absolute.as_str(), "../outside", ".", "..", "", "a/b"] {
        let (store, fs) = fresh().await;
        let id = make(&fs, fs.root(), "plain", &file()).await;
        let trie = fs.trie_of(fs.root()).await.expect("it is there");
        let tx = store.begin(Mode::Normal).await.expect("it works");
        let entry = Entry { name: Bytes::copy_from_slice(name.as_bytes()), id, kind: Kind::File };
        fs.insert_entry(&tx, trie, entry).await.expect("it works");
        tx.commit().await.expect("it works");
        for keep_before in [None, Some(i64::MAX)] {
            let options = ExportOptions { keep_before };
            let told = export(&fs, fs.root(), &place.join("out"), options, &mut |_| {}).await;
            assert!(matches!(told, Err(FsError::Damaged(_))), "{name:?}: {told:?}");
            assert!(!outside.exists(), "{name:?}");
        }
    }
    host::remove_dir_all(&place).expect("it works");
}

/// The story: entries that lead back to a directory above them, written by the library: each directory of the host
/// got two more below it, without an end.
#[tokio::test]
async fn an_export_of_directories_that_hold_one_another_ends() {
    let (store, fs) = fresh().await;
    let trie = fs.trie_of(fs.root()).await.expect("there");
    for name in ["a", "b"] {
        let tx = store.begin(Mode::Normal).await.expect("it works");
        let name = Bytes::copy_from_slice(name.as_bytes());
        let entry = Entry { name, id: fs.root(), kind: Kind::Directory };
        fs.insert_entry(&tx, trie, entry).await.expect("it works");
        tx.commit().await.expect("it works");
    }
    let place = std::env::temp_dir().join(format!("larder-circle-{}", std::process::id()));
    let ended = export(&fs, fs.root(), &place, ExportOptions::default(), &mut |_| {}).await;
    assert!(matches!(ended, Err(FsError::Damaged(_))), "{ended:?}");
    host::remove_dir_all(&place).expect("it is ours");
}
