//! Golden files of the log and of the identity: today's code reads them, and writes those of its
//! own format byte for byte. `LARDER_GOLDEN=write cargo test -p larder-store golden` writes them
//! anew; a difference is a change of format, to be judged by `docs/formats/disk.md`.

use bytes::Bytes;
use larder_core::id::DomainId;
use larder_core::record::Lsn;
use larder_core::rng::Rng;
use larder_store::disk::{Disk, DiskFile};
use larder_store::driver::{DomainStore, domain_of, read_list, write_list};
use larder_store::log::{FIRST, Log, LogConfig};
use larder_store::pages::ModelPages;
use larder_store::testing::FaultDisk;
use std::fmt::Write as _;
use std::path::PathBuf;

const DOMAIN: DomainId = DomainId(0x1122_3344_5566_7788);
const SEGMENT: &str = "log-0000000000000001.seg";
const HEADER_BYTES: usize = 4096;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name)
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

/// The golden file's text, written anew first if that was asked for.
fn golden(name: &str, written: &str) -> String {
    if std::env::var("LARDER_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::create_dir_all(path("")).expect("writable");
        std::fs::write(path(name), written).expect("writable");
    }
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 8192, reserve_bytes: 0, ..LogConfig::default() }
}

fn records() -> Vec<(Lsn, Bytes)> {
    let bodies: [&'static [u8]; 4] = [b"first", b"", b"twenty-four bytes of it.", b"last"];
    (1..).map(Lsn).zip(bodies.map(Bytes::from_static)).collect()
}

#[test]
fn a_segment_is_written_as_ever_and_read() {
    let disk = FaultDisk::default();
    let mut log = Log::create(disk.clone(), config(), DOMAIN, Rng::new(1)).expect("no fault");
    log.append(&records()[..3]).expect("no fault");
    log.append(&records()[3..]).expect("no fault");
    let bytes = disk.bytes(SEGMENT);
    let used = HEADER_BYTES + 5 * 8 + 4 * 8 + 7 * 8 + 5 * 8;
    assert!(bytes[64..HEADER_BYTES].iter().chain(&bytes[used..]).all(|byte| *byte == 0));
    let header = golden("segment-header.hex", &hex(&bytes[..64]));
    let frames = golden("segment-frames.hex", &hex(&bytes[HEADER_BYTES..used]));
    assert_eq!(hex(&bytes[..64]), header);
    assert_eq!(hex(&bytes[HEADER_BYTES..used]), frames);

    let old = FaultDisk::default();
    let file = old.create(SEGMENT).expect("no fault");
    file.preallocate(8192).expect("no fault");
    file.write_at(0, &bytes_of(&header)).expect("no fault");
    file.write_at(HEADER_BYTES as u64, &bytes_of(&frames)).expect("no fault");
    let (log, found) = Log::open(old, config(), DOMAIN, Rng::new(2), FIRST).expect("it is whole");
    assert_eq!(found, records());
    assert_eq!(log.next(), Lsn(5));
}

#[test]
fn an_identity_is_written_as_ever_and_read() {
    let disk = FaultDisk::default();
    let pages = ModelPages::default();
    DomainStore::create(disk.clone(), pages, config(), DOMAIN, Rng::new(1)).expect("no fault");
    let written = String::from_utf8(disk.bytes("domain")).expect("it is text");
    let text = golden("domain", &written);
    assert_eq!(written, text);
    let old = FaultDisk::default();
    let file = old.create("domain").expect("no fault");
    file.write_at(0, text.as_bytes()).expect("no fault");
    assert_eq!(domain_of(&old), Ok(Some(DOMAIN)));
}

#[test]
fn a_list_of_domains_is_written_as_ever_and_read() {
    let disk = FaultDisk::default();
    write_list(&disk, &[DOMAIN, DomainId(2)]).expect("no fault");
    let written = String::from_utf8(disk.bytes("domains")).expect("it is text");
    let text = golden("domains", &written);
    assert_eq!(written, text);
    let old = FaultDisk::default();
    let file = old.create("domains").expect("no fault");
    file.write_at(0, text.as_bytes()).expect("no fault");
    assert_eq!(read_list(&old), Ok(Some(vec![DOMAIN, DomainId(2)])));
}
