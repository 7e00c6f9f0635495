//! An export that is gone on with, into a folder that holds what an earlier run left.

use super::*;
use crate::fs::export::{ExportOptions, export};
use std::fs as host;

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
        let options = ExportOptions { keep_same: true };
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
