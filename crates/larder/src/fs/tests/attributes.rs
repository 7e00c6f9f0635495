//! Extended attributes, access control lists, modes and times.

use super::*;
use crate::fs::record::{XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX, Xattrs};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

async fn set(fs: &Fs, id: InodeId, name: &[u8], value: &[u8]) -> Result<Attr, FsError> {
    fs.set_xattr(id, (name, value), XattrMode::Any, false).await
}

async fn inode(fs: &Fs, id: InodeId) -> Inode {
    fs.getattr(id).await.expect("it works").inode
}

/// Owner rwx, user 7 `user`, group r-x, mask `mask`, others nothing.
fn list(user: u8, mask: u8) -> Vec<u8> {
    let none = u32::MAX.to_le_bytes();
    let mut value = vec![2, 0, 0, 0];
    for (tag, permission, id) in
        [(1, 7, none), (2, user, [7, 0, 0, 0]), (4, 5, none), (16, mask, none), (32, 0, none)]
    {
        value.extend([tag, 0, permission, 0]);
        value.extend(id);
    }
    value
}

#[tokio::test]
async fn attributes_are_kept_in_the_record_or_in_pages() {
    let (store, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 0, b"beside").await;
    set(&fs, f, b"user.small", b"1").await.expect("it works");
    assert!(matches!(inode(&fs, f).await.xattrs, Xattrs::Here(_)));
    let large = pattern(XATTR_VALUE_BYTES_MAX, 3);
    set(&fs, f, b"user.large", &large).await.expect("it works");
    assert!(matches!(inode(&fs, f).await.xattrs, Xattrs::Pages(_)));
    let other = open(&store).await;
    assert_eq!(other.xattr(f, b"user.small").await.expect("it works"), &b"1"[..]);
    assert_eq!(other.xattr(f, b"user.large").await.expect("it works"), large);
    let names: Vec<_> = other.xattrs(f).await.expect("it works").0.into_keys().collect();
    assert_eq!(names, ["user.large", "user.small"]);
    // Writing bytes and setting times leave them as they are.
    write_file(&other, f, 3, b"more").await;
    let times = SetAttr { mtime: Some(5), ..SetAttr::default() };
    other.setattr(f, times).await.expect("it works");
    assert_eq!(fs.xattr(f, b"user.large").await.expect("it works"), large);
    clean(&fs).await;
    fs.remove_xattr(f, b"user.large").await.expect("it works");
    assert!(matches!(inode(&fs, f).await.xattrs, Xattrs::Here(_)));
    fs.remove_xattr(f, b"user.small").await.expect("it works");
    assert_eq!(inode(&fs, f).await.xattrs, Xattrs::None);
    clean(&fs).await;
    set(&fs, f, b"user.large", &large).await.expect("it works");
    let pages = store.pages();
    fs.unlink(fs.root(), b"f").await.expect("it works");
    assert!(store.pages() < pages - 1, "the pages of its attributes are freed");
    clean(&fs).await;
}

/// A page full of inodes and the bytes of small files has no room for more.
#[tokio::test]
async fn attributes_find_room_where_the_page_has_none() {
    let (_, fs) = fresh().await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let mut files = Vec::new();
    for i in 0..80 {
        let f = make(&fs, d, &format!("f{i}"), &file()).await;
        write_file(&fs, f, 0, &pattern(1500, i)).await;
        files.push(f);
    }
    for (i, f) in files.iter().enumerate() {
        set(&fs, *f, b"user.x", &pattern(400, i)).await.expect("it works");
    }
    for (i, f) in files.iter().enumerate() {
        assert_eq!(fs.xattr(*f, b"user.x").await.expect("it works"), pattern(400, i));
        assert_eq!(read_file(&fs, *f).await, pattern(1500, i));
    }
    clean(&fs).await;
}

#[tokio::test]
async fn setting_says_what_is_there_and_keeps_to_the_limits() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    let as_mode = async |mode| fs.set_xattr(f, (b"user.a", b"1"), mode, false).await.map(drop);
    assert_eq!(as_mode(XattrMode::Replace).await, Err(FsError::NoXattr));
    assert_eq!(as_mode(XattrMode::Create).await, Ok(()));
    assert_eq!(as_mode(XattrMode::Create).await, Err(FsError::Exists));
    assert_eq!(as_mode(XattrMode::Replace).await, Ok(()));
    assert_eq!(fs.xattr(f, b"user.b").await, Err(FsError::NoXattr));
    assert_eq!(fs.remove_xattr(f, b"user.b").await.map(drop), Err(FsError::NoXattr));
    let unknown = FsError::Unsupported("attributes of this namespace");
    for name in [&b"users.a"[..], b"user.", b"system.other", b"a"] {
        assert_eq!(set(&fs, f, name, b"").await.map(drop), Err(unknown.clone()));
    }
    let long = [b"user.".to_vec(), vec![b'x'; 251]].concat();
    assert_eq!(set(&fs, f, &long, b"").await.map(drop), Err(FsError::NameTooLong));
    set(&fs, f, &long[..255], b"").await.expect("it works");
    let value = vec![0; XATTR_VALUE_BYTES_MAX + 1];
    assert_eq!(set(&fs, f, b"user.v", &value).await.map(drop), Err(FsError::NoSpace));
    let mut full = 0;
    while set(&fs, f, format!("user.v{full}").as_bytes(), &value[1..]).await.is_ok() {
        full += 1;
    }
    assert_eq!(full, XATTR_LIST_BYTES_MAX / XATTR_VALUE_BYTES_MAX - 1);
    clean(&fs).await;
}

#[tokio::test]
async fn a_mode_and_its_access_list_say_the_same() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    let chmod = async |mode| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        fs.setattr(f, set).await.expect("it works");
    };
    set(&fs, f, ACCESS, &list(6, 4)).await.expect("it works");
    assert_eq!(inode(&fs, f).await.mode, 0o740);
    chmod(0o770).await;
    assert_eq!(fs.xattr(f, ACCESS).await.expect("it works"), list(6, 7));
    // One that says no more than a mode is none.
    let plain: Vec<u8> = [&list(0, 0)[..12], &list(0, 0)[20..28], &list(0, 0)[36..]].concat();
    set(&fs, f, ACCESS, &plain).await.expect("it works");
    assert_eq!(inode(&fs, f).await.mode, 0o750);
    assert_eq!(fs.xattr(f, ACCESS).await, Err(FsError::NoXattr));
    assert!(matches!(set(&fs, f, ACCESS, b"?").await, Err(FsError::Invalid(_))));
    assert!(matches!(set(&fs, f, DEFAULT, &list(6, 4)).await, Err(FsError::Invalid(_))));
    chmod(0o2755).await;
    let set_by_outsider = fs.set_xattr(f, (ACCESS, &list(6, 4)), XattrMode::Any, true).await;
    assert_eq!(set_by_outsider.expect("it works").inode.mode, 0o740);
}

#[tokio::test]
async fn new_names_inherit_what_their_directory_says() {
    let (store, fs) = fresh().await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let masked = Create { mode: 0o666, umask: 0o077, ..file() };
    let plain = make(&fs, d, "plain", &masked).await;
    assert_eq!(inode(&fs, plain).await.mode, 0o600);
    set(&fs, d, DEFAULT, &list(6, 7)).await.expect("it works");
    let other = open(&store).await;
    let f = make(&other, d, "f", &masked).await;
    // The list stands in the place of the mask.
    assert_eq!(inode(&fs, f).await.mode, 0o660);
    assert_eq!(fs.xattr(f, ACCESS).await.expect("it works")[6], 6);
    assert_eq!(fs.xattr(f, DEFAULT).await, Err(FsError::NoXattr));
    let below = make(&other, d, "below", &Create { mode: 0o755, ..directory() }).await;
    assert_eq!(inode(&fs, below).await.mode, 0o750);
    assert_eq!(fs.xattr(below, DEFAULT).await.expect("it works"), list(6, 7));
    let link = Create { target: "f".into(), mode: 0o777, ..kind(Kind::Symlink) };
    let link = make(&other, d, "link", &link).await;
    assert_eq!(inode(&fs, link).await.xattrs, Xattrs::None);
    clean(&fs).await;
}

#[tokio::test]
async fn privileges_go_when_they_must() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &Create { mode: 0o6755, ..file() }).await;
    set(&fs, f, b"security.capability", b"x").await.expect("it works");
    set(&fs, f, b"security.other", b"x").await.expect("it works");
    fs.drop_privileges(f).await.expect("it works");
    assert_eq!(inode(&fs, f).await.mode, 0o755);
    let names: Vec<_> = fs.xattrs(f).await.expect("it works").0.into_keys().collect();
    assert_eq!(names, ["security.other"]);
    // Nobody executes it as its group: set-group-id means something else there.
    let chmod = SetAttr { mode: Some(0o6745), ..SetAttr::default() };
    fs.setattr(f, chmod).await.expect("it works");
    let chown = SetAttr { uid: Some(5), drop_privileges: true, ..SetAttr::default() };
    fs.setattr(f, chown).await.expect("it works");
    assert_eq!(inode(&fs, f).await.mode, 0o2745);
    let before = inode(&fs, f).await;
    fs.drop_privileges(f).await.expect("it works");
    assert_eq!(inode(&fs, f).await, before, "nothing to drop, nothing changed");
}

/// A mail reader asks whether a file was read since it was written.
#[tokio::test]
async fn a_read_moves_the_time_of_access_once() {
    let (store, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 0, b"news").await;
    let written = inode(&fs, f).await;
    assert!(written.atime <= written.mtime);
    let commits = store.commits();
    read_file(&fs, f).await;
    let read = inode(&fs, f).await;
    assert!(read.atime >= written.mtime && read.atime > written.atime);
    assert_eq!((read.mtime, read.ctime), (written.mtime, written.ctime));
    read_file(&fs, f).await;
    assert_eq!(inode(&fs, f).await.atime, read.atime);
    assert_eq!(store.commits(), commits, "reading commits nothing");
    let other = open(&store).await;
    assert_eq!(inode(&other, f).await.atime, written.atime);
    // The next change takes it along.
    set(&fs, f, b"user.a", b"").await.expect("it works");
    assert_eq!(inode(&other, f).await.atime, read.atime);
    // What a user sets stands.
    let times = SetAttr { atime: Some(77), ..SetAttr::default() };
    fs.setattr(f, times).await.expect("it works");
    assert_eq!(inode(&fs, f).await.atime, 77);
}

#[tokio::test]
async fn a_name_too_long_is_said_to_be() {
    let (_, fs) = fresh().await;
    let long = [b'x'; 256];
    assert_eq!(fs.lookup(fs.root(), &long).await, Err(FsError::NameTooLong));
    make(&fs, fs.root(), &"x".repeat(255), &file()).await;
    assert!(fs.lookup(fs.root(), &long[..255]).await.expect("it works").attr.is_some());
}
