//! Any bytes as a log record and as a domain's metadata.
#![no_main]

use bytes::Bytes;
use larder_core::wire::{decode_meta, decode_record, encode_meta, encode_record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    if let Ok(record) = decode_record(data.clone()) {
        assert_eq!(decode_record(encode_record(&record)), Ok(record));
    }
    if let Ok(meta) = decode_meta(data) {
        assert_eq!(decode_meta(encode_meta(&meta)), Ok(meta));
    }
});
