//! Any bytes as frames. Even first byte: the bytes as they are. Odd: they are made frames whose
//! headers check, each from two bytes (lane, slot, last; length) and what follows.
#![no_main]

use bytes::{Bytes, BytesMut};
use larder_core::message::{Lane, Message};
use larder_core::wire::{FrameHeader, LaneReceiver, WireError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let input = if mode % 2 == 0 { Bytes::copy_from_slice(data) } else { framed(data) };
    // All at once, and in pieces: the same messages.
    let piece = 256 - usize::from(*mode);
    assert_eq!(receive(&input, input.len().max(1)), receive(&input, piece));
});

fn framed(mut data: &[u8]) -> Bytes {
    let mut frames = BytesMut::new();
    while let Some(([flags, length], rest)) = data.split_first_chunk::<2>() {
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        if payload.is_empty() {
            continue;
        }
        let (lane, slot) = match flags & 3 {
            0 => (Lane::Control, 0),
            1 => (Lane::Stream, 0),
            _ => (Lane::Bulk, flags >> 2 & 7),
        };
        let header = FrameHeader { length: payload.len(), lane, slot, last: flags & 0x80 == 0 };
        frames.extend_from_slice(&header.encode());
        frames.extend_from_slice(payload);
    }
    frames.freeze()
}

/// The messages with their sizes, and the error that ended them.
fn receive(input: &[u8], piece: usize) -> (Vec<(Message, u32)>, Option<WireError>) {
    let mut receiver = LaneReceiver::new();
    let mut buffer = BytesMut::new();
    let mut messages = Vec::new();
    for piece in input.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match receiver.receive(&mut buffer) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
