//! Any bytes as what is kept apart from a page that could not be read.
#![no_main]

use bytes::Bytes;
use larder_core::id::{PageId, PageNo, VolumeId};
use larder_core::wire::{decode_apart, encode_apart};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let page = PageId { volume: VolumeId(7), page: PageNo(9) };
    if let Ok(apart) = decode_apart(page, Bytes::copy_from_slice(data)) {
        assert_eq!(apart.page, page);
        assert_eq!(decode_apart(page, encode_apart(&apart)), Ok(apart));
    }
});
