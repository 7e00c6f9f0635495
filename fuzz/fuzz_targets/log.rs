//! The files of a domain's folder. The first byte says which: any bytes as the identity, as the list
//! of domains, as the only segment of a log; or a log that was written well and harmed then, of which
//! nothing may be skipped and nothing be made up.
#![no_main]

use bytes::Bytes;
use larder_core::id::DomainId;
use larder_core::record::Lsn;
use larder_core::rng::Rng;
use larder_store::disk::{Disk, DiskFile};
use larder_store::driver::{domain_of, read_list, write_list};
use larder_store::log::{FIRST, Log, LogConfig};
use larder_store::testing::FaultDisk;
use libfuzzer_sys::fuzz_target;

const DOMAIN: DomainId = DomainId(1);
const SEGMENT: &str = "log-0000000000000001.seg";

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    match which % 4 {
        0 => drop(domain_of(&disk_with("domain", data))),
        1 => {
            if let Ok(Some(list)) = read_list(&disk_with("domains", data)) {
                let written = FaultDisk::default();
                write_list(&written, &list).expect("no fault");
                assert_eq!(read_list(&written), Ok(Some(list)));
            }
        }
        2 => drop(open(disk_with(SEGMENT, data))),
        _ => harmed(data),
    }
});

fn config() -> LogConfig {
    LogConfig { segment_bytes: 8192, reserve_bytes: 0, ..LogConfig::default() }
}

fn disk_with(name: &str, bytes: &[u8]) -> FaultDisk {
    let disk = FaultDisk::default();
    let file = disk.create(name).expect("no fault");
    file.write_at(0, bytes).expect("no fault");
    disk
}

/// Its records, if it is taken for whole; then it can be gone on with.
fn open(disk: FaultDisk) -> Option<Vec<(Lsn, Bytes)>> {
    let (mut log, found) = Log::open(disk, config(), DOMAIN, Rng::new(2), FIRST).ok()?;
    let next = log.next();
    assert!(found.iter().map(|(lsn, _)| lsn.0).eq((1..).take(found.len())), "a record is missing");
    log.append(&[(next, Bytes::from_static(b"goes on"))]).expect("no fault");
    Some(found)
}

/// Bytes of three: how long the next record is and whether its write ends with it; then, after a
/// zero, where the log is harmed and how.
fn harmed(mut data: &[u8]) {
    let disk = FaultDisk::default();
    let mut log = Log::create(disk.clone(), config(), DOMAIN, Rng::new(1)).expect("no fault");
    let (mut records, mut write) = (Vec::new(), Vec::new());
    while let Some(([length, ends], rest)) = data.split_first_chunk::<2>() {
        data = rest;
        if *length == 0 || records.len() + write.len() == 64 {
            break;
        }
        let lsn = Lsn((records.len() + write.len()) as u64 + 1);
        write.push((lsn, Bytes::from(vec![*ends; usize::from(*length)])));
        if ends % 2 == 0 {
            log.append(&write).expect("no fault");
            records.append(&mut write);
        }
    }
    drop(log);
    let segments = disk.list().expect("no fault");
    let mut done = false;
    while let Some(([which, low, high, bits], rest)) = data.split_first_chunk::<4>() {
        data = rest;
        let segment = &segments[usize::from(*which) % segments.len()];
        disk.alter(segment, |bytes| {
            let place = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= bits;
                done |= *bits != 0;
            }
        });
    }
    match open(disk) {
        Some(found) => {
            assert!(records.starts_with(&found), "a record was made up");
            assert!(done || found == records, "a record was lost, and nothing was harmed");
        }
        None => assert!(done, "a whole log is refused"),
    }
}
