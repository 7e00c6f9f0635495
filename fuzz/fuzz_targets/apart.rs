//! Any bytes as what is in the page engine: what is kept apart from a page that could not be read, keys,
//! values with their headers, and marks of installs; and as its journal, and batches of one that was harmed.
#![no_main]

use bytes::Bytes;
use larder_core::id::{PageId, PageNo, VolumeId};
use larder_core::wire::{decode_apart, encode_apart};
use larder_store::pages::{check_decoders, check_journal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let page = PageId { volume: VolumeId(7), page: PageNo(9) };
    if let Ok(apart) = decode_apart(page, Bytes::copy_from_slice(data)) {
        assert_eq!(apart.page, page);
        assert_eq!(decode_apart(page, encode_apart(&apart)), Ok(apart));
    }
    check_decoders(data);
    check_journal(data);
});
