//! Golden files: the records of a volume of files as they were released, in
//! `crates/larder/tests/golden`, a folder a version. Today's code must read every one, and write
//! those of its own version byte for byte. `LARDER_GOLDEN=write cargo test -p larder golden` writes the current
//! version's anew; a difference in them is a change of format, to be judged by
//! `docs/formats/files.md`.

use super::super::record::{
    Content, Entry, Extents, FAN_OUT, TrieHeader, XATTR_HEAD_BYTES, XattrList, Xattrs,
    decode_entries, decode_xattr_head, encode_entries, encode_xattr_head,
};
use super::super::trie::{child_of, inode_slot_of, slot_of};
use super::*;
use larder_core::id::Generation;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Of the formats that this code writes.
const VERSION: &str = "v2";

/// The versions' folders are in it.
fn versions() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn folder() -> PathBuf {
    versions().join(VERSION).join("files")
}

/// Sixteen bytes a line, so that a change shows in a diff.
fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", line.join(" ")).expect("writing to a string");
    }
    text
}

fn from_hex(text: &str) -> Bytes {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("golden files hold hexadecimal bytes"))
        .collect()
}

fn writes() -> bool {
    std::env::var_os("LARDER_GOLDEN").is_some_and(|value| value == "write")
}

/// Writes an input for the fuzz target `files` when golden files are written: its kind, the bytes.
fn seed(name: &str, kind: u8, bytes: &[u8]) {
    if writes() {
        let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/files");
        std::fs::create_dir_all(&seeds).expect("writable");
        std::fs::write(seeds.join(name), [&[kind], bytes].concat()).expect("writable");
    }
}

/// Compares with the golden file, or writes it.
fn golden(name: &str, text: &str) -> String {
    let path = folder().join(name);
    if writes() {
        std::fs::create_dir_all(folder()).expect("writable");
        std::fs::write(&path, text).expect("writable");
    }
    let was = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(was, text, "{name} is written otherwise than before");
    was
}

fn id(page: u64, slot: u16, generation: u32) -> InodeId {
    InodeId { page: PageNo(page), slot: Slot(slot), generation: Generation(generation) }
}

fn root() -> Root {
    let mut hash_key = [0; 16];
    hash_key.iter_mut().zip(0x10..).for_each(|(byte, value)| *byte = value);
    Root { hash_key, root: id(1, 2, 1), orphans: id(1, 4, 1) }
}

pub(super) fn inode(kind: Kind, content: Content) -> Inode {
    Inode {
        kind,
        mode: 0o6751,
        uid: 0x0102_0304,
        gid: 0x0506_0708,
        links: 3,
        size: 0x1122_3344_5566,
        mtime: 1_700_000_000_123_456_789,
        ctime: 1_700_000_001_000_000_000,
        atime: -5,
        change: 0xfffe,
        content,
        xattrs: Xattrs::None,
    }
}

fn xattrs() -> XattrList {
    let entry = |(name, value): (&'static str, &'static [u8])| {
        (Bytes::from_static(name.as_bytes()), Bytes::from_static(value))
    };
    let list = [("user.empty", &b""[..]), ("security.x", b"\0\xff"), ("user.mime", b"a/b")];
    XattrList(list.map(entry).into())
}

fn inodes() -> Vec<(&'static str, Inode)> {
    let firsts = |count: u64| (1..=count).map(|i| PageNo(0x1000 * i)).collect();
    let one = Extents { firsts: firsts(1), high: 9, sparse: false, missing: 0 };
    let all = Extents { firsts: firsts(6), high: Extents::capacity(6), sparse: true, missing: 0 };
    let counted = Extents { missing: 0x0102_0304, ..all.clone() };
    let with_xattrs = |content, xattrs| Inode { xattrs, ..inode(Kind::File, content) };
    let here = Xattrs::Here(xattrs().encode());
    vec![
        ("inode-xattrs", with_xattrs(Content::Pages(all.clone()), here)),
        ("inode-xattrs-pages", with_xattrs(Content::Inline, Xattrs::Pages(PageNo(0x0a0b_0c0d)))),
        ("inode-pages-counted", inode(Kind::File, Content::Pages(counted))),
        ("inode-empty", inode(Kind::File, Content::Empty)),
        ("inode-inline", inode(Kind::File, Content::Inline)),
        ("inode-pages", inode(Kind::File, Content::Pages(one))),
        ("inode-pages-sparse", inode(Kind::File, Content::Pages(all))),
        ("inode-directory", inode(Kind::Directory, Content::Trie(PageNo(77)))),
        ("inode-link", inode(Kind::Symlink, Content::Inline)),
    ]
}

fn entries() -> Vec<(&'static str, Vec<Entry>)> {
    let entry = |name: &[u8], kind| Entry {
        name: Bytes::copy_from_slice(name),
        id: id(0x0102_0304_0506, 0x7ffe, 0x0a0b_0c0d),
        kind,
    };
    vec![
        ("names-one", vec![entry(b"a", Kind::File)]),
        (
            "names-three",
            vec![
                entry("Käse".as_bytes(), Kind::Directory),
                entry(&[0xff; 255], Kind::Symlink),
                entry(b"b c", Kind::File),
            ],
        ),
    ]
}

fn headers() -> Vec<(&'static str, TrieHeader)> {
    let parent = Some(id(9, 0x1234, 2));
    let children = Some((0..FAN_OUT as u64).map(|i| PageNo(500 + i)).collect::<Vec<_>>());
    vec![
        ("directory-root", TrieHeader { parent, children: None }),
        ("directory-root-split", TrieHeader { parent, children: children.clone() }),
        ("directory-bucket", TrieHeader { parent: None, children: None }),
        ("directory-split", TrieHeader { parent: None, children }),
    ]
}

#[test]
fn records_are_as_they_were() {
    let mut names = BTreeSet::from(["places.txt".to_owned()]);
    let kinds = ["root", "inode", "names", "directory", "xattrs"];
    let mut read = |name: &str, bytes: Bytes| {
        let kind = kinds.iter().position(|kind| name.starts_with(kind)).expect("a kind of record");
        seed(name, kind as u8, &bytes);
        let name = format!("{name}.hex");
        let was = from_hex(&golden(&name, &to_hex(&bytes)));
        names.insert(name);
        was
    };
    assert_eq!(Root::decode(&read("root", root().encode())), Ok(root()));
    for (name, inode) in inodes() {
        assert_eq!(Inode::decode(&read(name, inode.encode())), Ok(inode), "{name}");
    }
    let bytes = xattrs().encode();
    let page = [encode_xattr_head(bytes.len()), bytes].concat().into();
    let page: Bytes = read("xattrs", page);
    assert_eq!(decode_xattr_head(&page), Ok(page.len() - XATTR_HEAD_BYTES));
    assert_eq!(XattrList::decode(&page.slice(XATTR_HEAD_BYTES..)), Ok(xattrs()));
    for (name, entries) in entries() {
        assert_eq!(decode_entries(&read(name, encode_entries(&entries))), Ok(entries), "{name}");
    }
    for (name, header) in headers() {
        assert_eq!(TrieHeader::decode(&read(name, header.encode())), Ok(header), "{name}");
    }
    let files: BTreeSet<String> = list(&folder()).into_iter().collect();
    assert_eq!(files, names, "every file has its sample");
}

/// What a folder holds, by name.
fn list(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Reads every file of every version in `root`; how many there were, by version.
fn read_versions(root: &Path) -> Result<Vec<(String, usize)>, String> {
    let mut read = Vec::new();
    for version in list(root) {
        let folder = root.join(&version).join("files");
        let names = list(&folder);
        for name in &names {
            let text = std::fs::read_to_string(folder.join(name)).expect("readable");
            read_one(name, &text).map_err(|why| format!("{version}/{name}: {why}"))?;
        }
        read.push((version, names.len()));
    }
    Ok(read)
}

/// Reads a file as today's code reads what an older version left.
fn read_one(name: &str, text: &str) -> Result<(), String> {
    // Where things are: compared with today's below. A layout that is not today's has another
    // format in its root record, which is then read by it.
    if name == "places.txt" {
        return Ok(());
    }
    let bytes = from_hex(text);
    let kind = name.split(['-', '.']).next();
    let read = match kind {
        Some("root") => Root::decode(&bytes).map(drop),
        Some("inode") => Inode::decode(&bytes).map(drop),
        Some("xattrs") => decode_xattr_head(&bytes)
            .and_then(|_| XattrList::decode(&bytes.slice(XATTR_HEAD_BYTES..)).map(drop)),
        Some("names") => decode_entries(&bytes).map(drop),
        Some("directory") => TrieHeader::decode(&bytes).map(drop),
        _ => return Err("no reader for it: add one".into()),
    };
    read.map_err(|error| error.to_string())
}

#[test]
fn every_version_is_read() {
    let read = read_versions(&versions()).unwrap_or_else(|why| panic!("{why}"));
    assert!(read.iter().all(|(_, files)| *files > 0), "{read:?}");
    assert!(read.iter().any(|(version, _)| version == VERSION), "{read:?}");
}

/// Only the folder of today's version was looked at: the first change of a format would have left
/// the older files behind, unread, and with them the promise that they can be read.
#[test]
fn a_version_that_cannot_be_read_is_noticed() {
    let place = std::env::temp_dir().join(format!("larder-files-{}", std::process::id()));
    let put = |version: &str, name: &str, text: &str| {
        let folder = place.join(version).join("files");
        std::fs::create_dir_all(&folder).expect("writable");
        std::fs::write(folder.join(name), text).expect("writable");
    };
    for name in list(&folder()) {
        let text = std::fs::read_to_string(folder().join(&name)).expect("readable");
        put("v7", &name, &text);
    }
    let whole = vec![("v7".to_owned(), list(&folder()).len())];
    assert_eq!(read_versions(&place), Ok(whole));
    for name in ["root.hex", "inode-link.hex", "names-one.hex", "directory-root.hex", "rumour.hex"]
    {
        put("v8", name, "ff ff");
        let why = read_versions(&place).expect_err("it cannot be read");
        assert!(why.starts_with(&format!("v8/{name}: ")), "{why}");
        std::fs::remove_dir_all(place.join("v8")).expect("it is ours");
    }
    std::fs::remove_dir_all(&place).expect("it is ours");
}

/// Names moved to other slots under the same version: in a tree of before no name was found, and a
/// full directory was removed as an empty one.
#[test]
fn a_tree_of_an_older_layout_is_refused_by_name() {
    let refused = |what| FsError::Format { what, found: 1, reads: 2 };
    let older = |bytes: Bytes| [&[1], &bytes[1..]].concat();
    assert_eq!(Root::decode(&older(root().encode())), Err(refused("root record")));
    for (name, header) in headers() {
        let header = TrieHeader::decode(&older(header.encode()));
        assert_eq!(header, Err(refused("directory page")), "{name}");
    }
    assert!(refused("root record").to_string().contains("export the volume with the version"));
}

/// Where names and inodes are is part of the format as well.
#[test]
fn places_are_as_they_were() {
    let mut text = String::from("name hash children slot inode\n");
    for name in ["a", "b", "Makefile", "Käse", "a name with spaces"] {
        let hash = root().hash(name.as_bytes());
        let children: Vec<String> = (0..9).map(|l| child_of(hash, l).to_string()).collect();
        let (slot, inode) = (slot_of(hash).0, inode_slot_of(hash).0);
        let children = children.join(".");
        writeln!(text, "{name:?} {hash:016x} {children} {slot:04x} {inode:04x}")
            .expect("writing to a string");
    }
    golden("places.txt", &text);
}
