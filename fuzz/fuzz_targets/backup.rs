//! Any bytes as the file of a backup; and bytes whose checksums were made to fit, so that what is behind
//! them is reached. Of a file that is whole a restoration is what an origin takes.
#![no_main]

use bytes::Bytes;
use larder::backup::format::Trailer;
use larder::backup::{check_restoration, verify};
use libfuzzer_sys::fuzz_target;

/// Bytes before the first part, and of a part's head.
const START: usize = 16;
const HEAD: usize = 12;

/// Bytes of a page before its image, and of an image before its content.
const ENTRY: usize = 20;
const IMAGE: usize = 32;

/// Sets the checksum of every part that is there, and of every image in it.
fn seal(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if data.len() < START {
        return data;
    }
    let volume = data.get(START + HEAD..START + HEAD + 16).map(crc32c::crc32c).unwrap_or(0);
    let mut crc = crc32c::crc32c(&data[..START]);
    let mut at = START;
    while let Some(head) = data.get(at..at + HEAD) {
        let (kind, length) = (head[0], u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        let length = length as usize;
        let Some(payload) = data.get_mut(at + HEAD..(at + HEAD).saturating_add(length)) else {
            break;
        };
        if matches!(kind, 2 | 3) {
            seal_images(volume, payload);
        }
        let (head, payload) = (&data[at..at + HEAD], &data[at + HEAD..at + HEAD + length]);
        crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &head[..8]), payload);
        data[at + 8..at + HEAD].copy_from_slice(&crc.to_le_bytes());
        at += HEAD + length;
    }
    data
}

fn seal_images(volume: u32, mut pages: &mut [u8]) {
    while let Some((entry, rest)) = pages.split_at_mut_checked(ENTRY) {
        let length = u32::from_le_bytes([entry[16], entry[17], entry[18], entry[19]]);
        let length = if length == u32::MAX { 0 } else { length as usize };
        let Some((image, rest)) = rest.split_at_mut_checked(length) else { return };
        pages = rest;
        if image.len() >= IMAGE {
            let crc = crc32c::crc32c_append(volume, &entry[..8]);
            let crc = crc32c::crc32c_append(crc, &image[..IMAGE - 4]);
            let crc = crc32c::crc32c_append(crc, &image[IMAGE..]);
            image[IMAGE - 4..IMAGE].copy_from_slice(&crc.to_le_bytes());
        }
    }
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
        check_restoration(&sealed);
    }
});
