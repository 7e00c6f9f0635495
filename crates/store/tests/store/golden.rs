//! Golden files of the log, the identity, the list of domains and the page engine: today's code
//! reads those of every version, and writes those of its own byte for byte (but for the engine's,
//! whose files are named and timed anew each time). `LARDER_GOLDEN=write cargo test -p larder-store
//! golden` writes the current version's anew; a difference is a change of format, to be judged by
//! `docs/formats/disk.md`.
//!
//! A folder a version: those of older versions stay as they were.

use bytes::Bytes;
use larder_core::commit::Op;
use larder_core::id::{DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::record::{Apart, InstallBatch, InstalledPage, Lsn, StoredPage};
use larder_core::rng::Rng;
use larder_store::disk::{Disk, DiskFile};
use larder_store::driver::{DomainStore, domain_of, read_list, write_list};
use larder_store::log::{FIRST, Log, LogConfig};
use larder_store::pages::{FjallConfig, FjallPages, ModelPages, Pages};
use larder_store::testing::FaultDisk;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Of the formats that this code writes.
const VERSION: &str = "v1";
/// What every version's folder holds.
const NAMES: [&str; 5] =
    ["domain", "domains", "engine.txt", "segment-frames.hex", "segment-header.hex"];

const DOMAIN: DomainId = DomainId(0x1122_3344_5566_7788);
const SEGMENT: &str = "log-0000000000000001.seg";
const HEADER_BYTES: usize = 4096;

/// The versions' folders are in it.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn path(name: &str) -> PathBuf {
    root().join(VERSION).join(name)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        for (index, byte) in line.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(text, "{space}{byte:02x}").expect("writing to a string");
        }
        text.push('\n');
    }
    text
}

fn bytes_of(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("golden files hold hexadecimal bytes"))
        .collect()
}

fn writes() -> bool {
    std::env::var("LARDER_GOLDEN").is_ok_and(|value| value == "write")
}

/// The golden file's text, written anew first if that was asked for.
fn golden(name: &str, written: &str) -> String {
    if writes() {
        std::fs::create_dir_all(path("")).expect("writable");
        std::fs::write(path(name), written).expect("writable");
    }
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Writes an input for the fuzz target `log` when golden files are written: its kind, the bytes.
fn seed(name: &str, kind: u8, bytes: &[u8]) {
    if writes() {
        let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/log");
        std::fs::create_dir_all(&seeds).expect("writable");
        std::fs::write(seeds.join(name), [&[kind], bytes].concat()).expect("writable");
    }
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 8192, reserve_bytes: 0, ..LogConfig::default() }
}

fn records() -> Vec<(Lsn, Bytes)> {
    let bodies: [&'static [u8]; 4] = [b"first", b"", b"twenty-four bytes of it.", b"last"];
    (1..).map(Lsn).zip(bodies.map(Bytes::from_static)).collect()
}

/// A disk with one file.
fn disk_with(name: &str, parts: &[(u64, &[u8])]) -> FaultDisk {
    let disk = FaultDisk::default();
    let file = disk.create(name).expect("no fault");
    if parts.len() > 1 {
        file.preallocate(8192).expect("no fault");
    }
    for (offset, bytes) in parts {
        file.write_at(*offset, bytes).expect("no fault");
    }
    disk
}

/// What a segment holds, as today's code reads it.
fn read_segment(header: &str, frames: &str) -> Result<Vec<(Lsn, Bytes)>, String> {
    let (header, frames) = (bytes_of(header), bytes_of(frames));
    let disk = disk_with(SEGMENT, &[(0, &header), (HEADER_BYTES as u64, &frames)]);
    let opened = Log::open(disk, config(), DOMAIN, Rng::new(2), FIRST);
    let (log, found) = opened.map_err(|error| error.to_string())?;
    match log.next() {
        next if next.0 == found.len() as u64 + 1 => Ok(found),
        next => Err(format!("{} records, and the next is {}", found.len(), next.0)),
    }
}

#[test]
fn a_segment_is_written_as_ever() {
    let disk = FaultDisk::default();
    let mut log = Log::create(disk.clone(), config(), DOMAIN, Rng::new(1)).expect("no fault");
    log.append(&records()[..3]).expect("no fault");
    log.append(&records()[3..]).expect("no fault");
    let bytes = disk.bytes(SEGMENT);
    let used = HEADER_BYTES + 5 * 8 + 4 * 8 + 7 * 8 + 5 * 8;
    assert!(bytes[64..HEADER_BYTES].iter().chain(&bytes[used..]).all(|byte| *byte == 0));
    seed("segment", 2, &bytes[..used]);
    // Three records in two writes, and a bit of the second one harmed.
    seed("harmed", 3, &[5, 1, 9, 2, 4, 6, 0, 0, 0, 60, 16, 1]);
    let header = golden("segment-header.hex", &hex(&bytes[..64]));
    let frames = golden("segment-frames.hex", &hex(&bytes[HEADER_BYTES..used]));
    assert_eq!(hex(&bytes[..64]), header);
    assert_eq!(hex(&bytes[HEADER_BYTES..used]), frames);
    assert_eq!(read_segment(&header, &frames), Ok(records()));
}

#[test]
fn an_identity_is_written_as_ever() {
    let disk = FaultDisk::default();
    let pages = ModelPages::default();
    DomainStore::create(disk.clone(), pages, config(), DOMAIN, Rng::new(1)).expect("no fault");
    let written = String::from_utf8(disk.bytes("domain")).expect("it is text");
    seed("domain", 0, written.as_bytes());
    assert_eq!(written, golden("domain", &written));
}

#[test]
fn a_list_of_domains_is_written_as_ever() {
    let disk = FaultDisk::default();
    write_list(&disk, &[DOMAIN, DomainId(2)]).expect("no fault");
    let written = String::from_utf8(disk.bytes("domains")).expect("it is text");
    seed("domains", 1, written.as_bytes());
    assert_eq!(written, golden("domains", &written));
}

fn page(number: u64) -> PageId {
    PageId { volume: VolumeId(1 << 100 | 7), page: PageNo(number) }
}

/// An image inside its key's table and one apart from it, a tombstone, changes kept apart, metadata.
fn install(pages: &FjallPages, round: u64) {
    let images = [(1, Some(vec![1; 200])), (2, Some(vec![2; 4096])), (3, None)];
    let mut batch = InstallBatch::default();
    for (number, image) in images {
        let version = Stamp(10 * round + number);
        let previous = Stamp(if round > 1 { version.0 - 10 } else { 0 });
        let stored = StoredPage { version, image: image.map(Bytes::from) };
        batch.pages.push(InstalledPage { page: page(number), previous, stored });
    }
    let changes = vec![(Stamp(10 * round + 4), Op::DeletePage)];
    batch.apart.push(Apart { page: page(4), changes });
    batch.meta.domain = DOMAIN;
    batch.meta.installed = Stamp(10 * round + 4);
    batch.meta.installed_lsn = Lsn(round);
    pages.install(&batch).expect("there is room");
}

fn engine_config() -> FjallConfig {
    FjallConfig { cache_bytes: 1 << 20, memtable_bytes: 1 << 20, ..FjallConfig::default() }
}

/// What an engine in a folder holds, as today's code reads it.
fn read_engine(place: &Path) -> Result<(), String> {
    let why = |error: &dyn std::fmt::Display| error.to_string();
    let pages = FjallPages::open(place, &engine_config()).map_err(|e| why(&e))?;
    let meta = pages.meta().map_err(|e| why(&e))?.ok_or("it has no metadata")?;
    let found = pages.pages_of(page(0).volume, PageNo(0), 10).map_err(|e| why(&e))?;
    let apart = pages.apart().map_err(|e| why(&e))?;
    let (index, _) =
        pages.changed_after((Stamp::ZERO, PageId::default()), 10).map_err(|e| why(&e))?;
    for number in 1..=3 {
        let stored = pages.load(page(number)).map_err(|e| why(&e))?.ok_or("a page is missing")?;
        if stored.image.is_some() != (number < 3) {
            return Err(format!("page {number} is another"));
        }
    }
    let counts = (found.len(), apart.iter().flatten().count(), index.len());
    match (meta.domain, counts) {
        (DOMAIN, (3, 1, 3)) => Ok(()),
        other => Err(format!("it holds {other:?}")),
    }
}

/// All files below a folder as text: a line of name and length, and the bytes that are not zero.
fn files_text(root: &Path) -> String {
    let mut text = String::new();
    let mut folders = vec![root.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("it is there") {
            let path = entry.expect("readable").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for path in files {
        let bytes = std::fs::read(&path).expect("readable");
        let name = path.strip_prefix(root).expect("it is below").display().to_string();
        writeln!(text, "= {name} {}", bytes.len()).expect("writing to a string");
        for (at, line) in bytes.chunks(16).enumerate() {
            if line.iter().any(|byte| *byte != 0) {
                write!(text, "{:06x} {}", 16 * at, hex(line)).expect("writing to a string");
            }
        }
    }
    text
}

/// The reverse of it.
fn make_files(root: &Path, text: &str) -> Result<(), String> {
    let mut file: Option<(PathBuf, Vec<u8>)> = None;
    let put = |file: Option<(PathBuf, Vec<u8>)>| {
        if let Some((path, bytes)) = file {
            std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("writable");
            std::fs::write(path, bytes).expect("writable");
        }
    };
    for line in text.lines() {
        let malformed = || format!("a line that says nothing: {line}");
        let (first, rest) = line.split_once(' ').ok_or_else(malformed)?;
        if first == "=" {
            let (name, length) = rest.rsplit_once(' ').ok_or_else(malformed)?;
            let length = length.parse().map_err(|_| malformed())?;
            put(file.replace((root.join(name), vec![0; length])));
            continue;
        }
        let at = usize::from_str_radix(first, 16).map_err(|_| malformed())?;
        let (_, bytes) = file.as_mut().ok_or_else(malformed)?;
        let line = bytes_of(rest);
        let place = bytes.get_mut(at..at + line.len()).ok_or_else(malformed)?;
        place.copy_from_slice(&line);
    }
    put(file);
    Ok(())
}

/// Two installs, of which one is in tables and one in the journal.
#[test]
fn an_engine_is_written_as_ever() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let made = place.path().join("made");
    {
        let pages = FjallPages::open(&made, &engine_config()).expect("it is new");
        install(&pages, 1);
    }
    {
        let pages = FjallPages::open(&made, &engine_config()).expect("nothing is missing");
        install(&pages, 2);
    }
    if writes() {
        golden("engine.txt", &files_text(&made));
    }
    assert_eq!(read_engine(&made), Ok(()));
}

/// Reads every version's folder in `root`; their names.
fn read_versions(root: &Path) -> Result<Vec<String>, String> {
    let mut versions = Vec::new();
    for entry in std::fs::read_dir(root).expect("it is there") {
        let folder = entry.expect("readable").path();
        let version = folder.file_name().expect("it has a name").to_string_lossy().into_owned();
        read_version(&folder).map_err(|why| format!("{version}: {why}"))?;
        versions.push(version);
    }
    versions.sort();
    Ok(versions)
}

fn read_version(folder: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).expect("it is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    if names != NAMES {
        return Err(format!("it holds {names:?}, and what is read is {NAMES:?}"));
    }
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("readable");
    let records = read_segment(&text("segment-header.hex"), &text("segment-frames.hex"));
    if records.map_err(|why| format!("segment: {why}"))?.is_empty() {
        return Err("segment: no record is read".into());
    }
    let identity = disk_with("domain", &[(0, text("domain").as_bytes())]);
    match domain_of(&identity) {
        Ok(Some(DOMAIN)) => {}
        other => return Err(format!("domain: {other:?}")),
    }
    let list = disk_with("domains", &[(0, text("domains").as_bytes())]);
    match read_list(&list) {
        Ok(Some(list)) if list.contains(&DOMAIN) => {}
        other => return Err(format!("domains: {other:?}")),
    }
    let place = tempfile::tempdir().expect("a directory for the test");
    make_files(place.path(), &text("engine.txt")).map_err(|why| format!("engine.txt: {why}"))?;
    read_engine(place.path()).map_err(|why| format!("engine.txt: {why}"))
}

#[test]
fn every_version_is_read() {
    let versions = read_versions(&root()).unwrap_or_else(|why| panic!("{why}"));
    assert!(versions.iter().any(|version| version == VERSION), "{versions:?}");
}

/// Only the folder of today's version was looked at: the first change of a format would have left
/// the older files behind, unread, and with them the promise that they can be read.
#[test]
fn a_version_that_cannot_be_read_is_noticed() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let make = |version: &str, harmed: Option<&str>| {
        let folder = place.path().join(version);
        std::fs::create_dir_all(&folder).expect("writable");
        for name in NAMES {
            let text = std::fs::read_to_string(path(name)).expect("readable");
            let text = if harmed == Some(name) { text.replace('7', "6") } else { text };
            std::fs::write(folder.join(name), text).expect("writable");
        }
        folder
    };
    make("v7", None);
    assert_eq!(read_versions(place.path()), Ok(vec!["v7".to_owned()]));
    for name in NAMES {
        let harmed = make("v8", Some(name));
        let why = read_versions(place.path()).expect_err("it cannot be read");
        assert!(why.starts_with("v8: "), "{name}: {why}");
        std::fs::remove_dir_all(harmed).expect("it is ours");
    }
    std::fs::write(make("v9", None).join("rumour"), "").expect("writable");
    let why = read_versions(place.path()).expect_err("nobody reads that");
    assert!(why.contains("rumour"), "{why}");
}
