//! Any bytes as a message: the first byte is the lane, the rest what came in it.
#![no_main]

use bytes::Bytes;
use larder_core::message::Lane;
use larder_core::wire::{decode, encode, encoded_len};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((lane, data)) = data.split_first() else {
        return;
    };
    let lane = match lane % 3 {
        0 => Lane::Control,
        1 => Lane::Stream,
        _ => Lane::Bulk,
    };
    let Ok(Some(message)) = decode(lane, Bytes::copy_from_slice(data)) else {
        return;
    };
    // What was accepted can be sent on, and reads the same.
    let encoded = encode(&message);
    assert_eq!(encoded.len(), encoded_len(&message));
    assert_eq!(decode(lane, encoded), Ok(Some(message)));
});
