//! Any bytes as the file of a backup; and bytes whose checksums were made to fit, so that what is behind
//! them is reached.
#![no_main]

use bytes::Bytes;
use larder::backup::format::Trailer;
use larder::backup::verify;
use libfuzzer_sys::fuzz_target;

/// Bytes before the first part, and of a part's head.
const START: usize = 16;
const HEAD: usize = 12;

/// Sets the checksum of every part that is there.
fn seal(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if data.len() < START {
        return data;
    }
    let mut crc = crc32c::crc32c(&data[..START]);
    let mut at = START;
    while let Some(head) = data.get(at..at + HEAD) {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let Some(payload) = data.get(at + HEAD..(at + HEAD).saturating_add(length)) else { break };
        crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &head[..8]), payload);
        data[at + 8..at + HEAD].copy_from_slice(&crc.to_le_bytes());
        at += HEAD + length;
    }
    data
}

fuzz_target!(|data: &[u8]| {
    let _ = verify(data, &mut |_| {});
    let sealed = Bytes::from(seal(data));
    if let Ok(summary) = verify(&sealed[..], &mut |_| {}) {
        assert_eq!(summary.bytes, sealed.len() as u64, "a whole file is read to its end");
        let Trailer { pages, deleted, left_out, next_page, .. } = summary.trailer;
        assert!(pages + deleted + left_out <= sealed.len() as u64);
        assert_eq!(summary.left_out.len() as u64, left_out.min(1000));
        assert!(summary.left_out.iter().all(|page| *page < next_page));
    }
});
