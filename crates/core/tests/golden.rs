//! Golden files: the formats as they were released. Today's code must read every one, and write
//! those of its own version byte for byte. `LARDER_GOLDEN=write cargo test -p larder-core --test
//! golden` writes the current version's anew, and the fuzz targets' seeds with them; a difference in them is a change of format, to be
//! judged by `docs/formats/` and decision 0005.
//!
//! A folder a version: those of older versions stay as they were, and every one is read.
#![allow(clippy::disallowed_methods, reason = "these tests read files; the machines do not")]

mod golden {
    pub(crate) mod samples;
}

use bytes::Bytes;
use golden::samples;
use larder_core::message::Lane;
use larder_core::page::Page;
use larder_core::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Of the formats that this code writes.
const VERSION: &str = "v7";

/// What a version's folder holds.
const KINDS: [&str; 5] = ["frames", "message", "meta", "page", "record"];

/// The versions' folders are in it.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn directory() -> PathBuf {
    root().join(VERSION)
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

/// Compares with the golden file, or writes it; returns the file's bytes.
fn golden(kind: &str, name: &str, encoded: &Bytes) -> Bytes {
    let path = directory().join(kind).join(format!("{name}.hex"));
    if std::env::var_os("LARDER_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::create_dir_all(path.parent().expect("it is in a directory")).expect("writable");
        std::fs::write(&path, to_hex(encoded)).expect("writable");
    }
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let bytes = from_hex(&text);
    assert_eq!(bytes, encoded, "{kind} {name} is written otherwise than before");
    bytes
}

/// Writes an input for a fuzz target when golden files are written.
fn seed(target: &str, name: &str, parts: &[&[u8]]) {
    if std::env::var_os("LARDER_GOLDEN").is_some_and(|value| value == "write") {
        let directory =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        std::fs::create_dir_all(&directory).expect("writable");
        std::fs::write(directory.join(name), parts.concat()).expect("writable");
    }
}

/// Every file has its sample: none is left over from a kind that went.
fn check_names(kind: &str, names: BTreeSet<String>) {
    let files: BTreeSet<String> = std::fs::read_dir(directory().join(kind))
        .expect("the directory is there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .collect();
    let expected = names.into_iter().map(|name| format!("{name}.hex")).collect();
    assert_eq!(files, expected);
}

#[test]
fn messages_are_as_they_were() {
    let mut names = BTreeSet::new();
    for (name, message) in samples::messages() {
        let bytes = golden("message", name, &wire::encode(&message));
        seed("message", name, &[&[message.lane() as u8], &bytes]);
        let read = wire::decode(message.lane(), bytes).expect("valid").expect("known");
        assert_eq!(read, message, "{name}");
        names.insert(name.to_owned());
    }
    check_names("message", names);
}

#[test]
fn every_kind_of_message_has_a_sample() {
    let kinds: BTreeSet<_> =
        samples::messages().iter().map(|(_, message)| samples::kind(message)).collect();
    assert_eq!(kinds, (0..samples::KINDS).collect());
}

#[test]
fn records_are_as_they_were() {
    let mut names = BTreeSet::new();
    for (name, record) in samples::records() {
        let bytes = golden("record", name, &wire::encode_record(&record));
        seed("record", name, &[&bytes]);
        assert_eq!(wire::decode_record(bytes), Ok(record), "{name}");
        names.insert(name.to_owned());
    }
    check_names("record", names);
}

#[test]
fn metadata_is_as_it_was() {
    let meta = samples::meta();
    let bytes = golden("meta", "domain", &wire::encode_meta(&meta));
    seed("record", "meta", &[&bytes]);
    assert_eq!(wire::decode_meta(bytes), Ok(meta));
}

#[test]
fn changes_kept_apart_are_as_they_were() {
    let apart = samples::apart();
    let bytes = golden("meta", "apart", &wire::encode_apart(&apart));
    seed("apart", "apart", &[&bytes]);
    assert_eq!(wire::decode_apart(apart.page, bytes), Ok(apart));
}

#[test]
fn pages_are_as_they_were() {
    let mut names = BTreeSet::new();
    for (name, page) in samples::pages() {
        let id = samples::page_id();
        let bytes = golden("page", name, &page.encode(id));
        let length = u16::try_from(bytes.len()).expect("the samples are short");
        let ops = wire::encode_record(&samples::page_ops());
        seed("page", name, &[&length.to_le_bytes(), &bytes, &ops]);
        let read = Page::decode(id, bytes).expect("valid");
        assert_eq!(read, page, "{name}");
        names.insert(name.to_owned());
    }
    check_names("page", names);
}

#[test]
fn frames_are_as_they_were() {
    let mut sender = wire::LaneSender::new(wire::QueueLimits::default());
    let fetched = samples::long_pages();
    sender.push(&fetched).expect("room");
    for (name, message) in samples::messages() {
        if name == "beat" || name == "advance" {
            sender.push(&message).expect("room");
        }
    }
    let mut sent = bytes::BytesMut::new();
    while let Some(fragment) = sender.next_fragment() {
        sent.extend_from_slice(&fragment.header);
        sent.extend_from_slice(&fragment.payload);
    }
    let bytes = golden("frames", "three-lanes", &sent.freeze());
    seed("frames", "three-lanes", &[&[0], &bytes]);
    let mut input = bytes::BytesMut::from(&bytes[..]);
    let mut receiver = wire::LaneReceiver::new();
    let mut received = Vec::new();
    while let Some((message, _)) = receiver.receive(&mut input).expect("valid") {
        received.push(message);
    }
    assert_eq!(received.len(), 3);
    assert_eq!(received[2], fetched);
}

#[test]
fn every_version_is_read() {
    let read = read_versions(&root()).unwrap_or_else(|why| panic!("{why}"));
    assert!(read.contains_key(VERSION), "{read:?}");
    for (version, kinds) in &read {
        for kind in KINDS {
            assert!(kinds.get(kind).is_some_and(|files| *files > 0), "{version}/{kind}: {kinds:?}");
        }
    }
}

/// Only the folder of today's version was looked at: the first change of a format would have left
/// the older files behind, unread, and with them the promise that they can be read.
#[test]
fn a_version_that_cannot_be_read_is_noticed() {
    let name = format!("larder-golden-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let files = |version: &str, kind: &str| folder.join(version).join(kind);
    for entry in list(&directory().join("record")) {
        let path = directory().join("record").join(&entry);
        std::fs::create_dir_all(files("v8", "record")).expect("writable");
        std::fs::copy(path, files("v8", "record").join(&entry)).expect("writable");
    }
    assert!(read_versions(&folder).is_ok_and(|read| read["v8"]["record"] > 0));
    std::fs::create_dir_all(files("v9", "record")).expect("writable");
    std::fs::write(files("v9", "record").join("torn.hex"), "ff ff ff").expect("writable");
    let torn = read_versions(&folder).expect_err("it is no record");
    assert!(torn.contains("v9/record/torn.hex"), "{torn}");
    std::fs::rename(files("v9", "record"), files("v9", "rumour")).expect("writable");
    let unknown = read_versions(&folder).expect_err("nobody reads that kind");
    assert!(unknown.contains("v9/rumour"), "{unknown}");
    std::fs::remove_dir_all(&folder).expect("it is ours");
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

/// Reads every file of every version in `root`; how many of each kind there were.
fn read_versions(root: &Path) -> Result<BTreeMap<String, BTreeMap<String, usize>>, String> {
    let mut read = BTreeMap::<String, BTreeMap<String, usize>>::new();
    for version in list(root).into_iter().filter(|name| name.starts_with('v')) {
        for kind in list(&root.join(&version)) {
            let folder = root.join(&version).join(&kind);
            for name in list(&folder) {
                let text = std::fs::read_to_string(folder.join(&name)).expect("readable");
                read_one(&kind, &name, from_hex(&text))
                    .map_err(|why| format!("{version}/{kind}/{name}: {why}"))?;
                *read.entry(version.clone()).or_default().entry(kind.clone()).or_default() += 1;
            }
        }
    }
    Ok(read)
}

/// Reads a file as today's code reads what an older version left or sent.
fn read_one(kind: &str, name: &str, bytes: Bytes) -> Result<(), String> {
    let why = |error: &dyn std::fmt::Debug| format!("{error:?}");
    match (kind, name) {
        ("message", _) => [Lane::Control, Lane::Stream, Lane::Bulk]
            .into_iter()
            .any(|lane| matches!(wire::decode(lane, bytes.clone()), Ok(Some(_))))
            .then_some(())
            .ok_or_else(|| "a message of no lane".to_owned()),
        ("record", _) => wire::decode_record(bytes).map(drop).map_err(|e| why(&e)),
        ("meta", "apart.hex") => {
            wire::decode_apart(samples::apart().page, bytes).map(drop).map_err(|e| why(&e))
        }
        ("meta", _) => wire::decode_meta(bytes).map(drop).map_err(|e| why(&e)),
        ("page", _) => Page::decode(samples::page_id(), bytes).map(drop).map_err(|e| why(&e)),
        ("frames", _) => {
            let mut input = bytes::BytesMut::from(&bytes[..]);
            let mut receiver = wire::LaneReceiver::new();
            while receiver.receive(&mut input).map_err(|e| why(&e))?.is_some() {}
            input.is_empty().then_some(()).ok_or_else(|| format!("{} bytes left", input.len()))
        }
        _ => Err("no reader for it: add one".to_owned()),
    }
}
