mod any;
mod lanes;

use super::*;
use crate::commit::{CommitRequest, Write};
use crate::id::*;
use crate::message::{Message, PageAnswer, PageBody};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn read_back(message: &Message) -> Message {
    decode(message.lane(), encode(message))
        .expect("own messages are valid")
        .expect("own messages are known")
}

/// Every beginning of the bytes, and the bytes with one bit turned.
fn damaged(bytes: &Bytes, at: usize, bit: u8) -> impl Iterator<Item = Bytes> {
    let mut flipped = bytes.to_vec();
    let at = at % flipped.len();
    flipped[at] ^= 1 << bit;
    let whole = bytes.clone();
    (0..bytes.len().min(200)).map(move |end| whole.slice(..end)).chain([flipped.into()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn messages_come_back(message in any::message()) {
        let bytes = encode(&message);
        prop_assert_eq!(encoded_len(&message), bytes.len());
        prop_assert_eq!(read_back(&message), message);
    }

    #[test]
    fn records_come_back(record in any::record()) {
        prop_assert_eq!(decode_record(encode_record(&record)), Ok(record));
    }

    #[test]
    fn metadata_comes_back(meta in any::meta()) {
        prop_assert_eq!(decode_meta(encode_meta(&meta)), Ok(meta));
    }

    /// What is accepted is something that can be sent on.
    #[test]
    fn damaged_messages_do_no_harm(
        message in any::message(), at in any::<usize>(), bit in 0..8u8,
    ) {
        let lane = message.lane();
        for bytes in damaged(&encode(&message), at, bit) {
            if let Ok(Some(read)) = decode(lane, bytes) {
                prop_assert_eq!(read_back(&read), read);
            }
        }
    }

    #[test]
    fn damaged_records_do_no_harm(record in any::record(), at in any::<usize>(), bit in 0..8u8) {
        for bytes in damaged(&encode_record(&record), at, bit) {
            if let Ok(read) = decode_record(bytes) {
                prop_assert_eq!(decode_record(encode_record(&read)), Ok(read));
            }
        }
    }

    #[test]
    fn damaged_metadata_does_no_harm(meta in any::meta(), at in any::<usize>(), bit in 0..8u8) {
        for bytes in damaged(&encode_meta(&meta), at, bit) {
            if let Ok(read) = decode_meta(bytes) {
                prop_assert_eq!(decode_meta(encode_meta(&read)), Ok(read));
            }
        }
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        for lane in [Lane::Control, Lane::Stream, Lane::Bulk] {
            let _refused = decode(lane, bytes.clone());
        }
        let _refused = decode_record(bytes.clone());
        let _refused = decode_meta(bytes);
    }
}

fn page(number: u64) -> PageId {
    PageId { volume: VolumeId(1), page: PageNo(number) }
}

fn pages_message(pages: u64, bytes: usize) -> Message {
    let answer = |number| PageAnswer {
        page: page(number),
        version: Stamp(3),
        as_of: Stamp(5),
        body: PageBody::Data(vec![number as u8; bytes].into()),
    };
    Message::Pages {
        request: RequestId(1),
        domain: DomainId(2),
        pages: (1..=pages).map(answer).collect(),
    }
}

#[test]
fn page_bytes_are_not_copied_by_decoding() {
    let encoded = encode(&pages_message(1, 8192));
    let message = decode(Lane::Bulk, encoded.clone()).expect("valid").expect("known");
    let Message::Pages { pages, .. } = message else { panic!("another kind") };
    let PageBody::Data(data) = &pages[0].body else { panic!("no data") };
    let start = encoded.len() - 8192;
    assert_eq!(data.as_ptr(), encoded[start..].as_ptr());
}

#[test]
fn lists_of_neighbours_are_compact() {
    let pages = (1..=4096).map(page).collect();
    let message = Message::Evicted { domain: DomainId(1), pages };
    assert!(encoded_len(&message) < 4096 + 50);
}

/// A peer of the next version adds fields to a message and to a part of it.
#[test]
fn unknown_fields_are_skipped() {
    let message = Message::Registered { domain: DomainId(5), boot: BootId(6) };
    let (kind, mut body) = {
        let bytes = encode(&message);
        (bytes[0], bytes[2..].to_vec())
    };
    body.extend_from_slice(&[9 << 3 | 2, 3, b'n', b'e', b'w', 10 << 3, 1]);
    let mut bytes = vec![kind, body.len() as u8];
    bytes.extend_from_slice(&body);
    assert_eq!(decode(Lane::Control, bytes.into()), Ok(Some(message)));
}

#[test]
fn unknown_kinds_are_refused_unless_marked_as_ignorable() {
    let of_kind = |kind: u32| {
        let key = kind << 3 | 2;
        Bytes::from(vec![key as u8 | 0x80, (key >> 7) as u8, 0])
    };
    assert_eq!(decode(Lane::Control, of_kind(999)), Err(WireError::UnknownKind(999)));
    assert_eq!(decode(Lane::Control, of_kind(1500)), Ok(None));
    let error = decode(Lane::Stream, of_kind(1500)).expect_err("ignorable kinds are control");
    assert!(matches!(error, WireError::WrongLane { .. }));
}

#[test]
fn a_kind_in_another_lane_is_refused() {
    let error = decode(Lane::Stream, encode(&pages_message(1, 1))).expect_err("bulk");
    let reason = CloseReason::from(error);
    assert!(matches!(reason, CloseReason::Protocol(_)), "{reason}");
}

#[test]
fn versions_are_negotiated() {
    let range = |oldest, newest| Versions { oldest, newest };
    let refused = |parent, child| Err(CloseReason::Version { parent, child });
    let of = |parent, child| negotiate(parent, child);
    assert_eq!(of(range(1, 1), range(1, 1)), Ok(1));
    // The next version's peer talks to us as we are, and we to it.
    assert_eq!(of(range(1, 1), range(1, 2)), Ok(1));
    assert_eq!(of(range(1, 2), range(1, 1)), Ok(1));
    assert_eq!(of(range(1, 3), range(2, 5)), Ok(3));
    for (parent, child) in [
        (range(1, 1), range(2, 3)),
        (range(2, 3), range(1, 1)),
        // Nobody's.
        (range(1, 1), range(2, 1)),
        (range(1, 1), range(0, 0)),
    ] {
        assert_eq!(of(parent, child), refused(parent, child));
    }
}

/// 6 bytes would claim 2^40 pages, or a page of 2^40 bytes.
#[test]
fn claims_allocate_nothing() {
    let mut asks = vec![0; 16];
    asks.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x20]);
    let mut body = vec![15 << 3 | 2, asks.len() as u8];
    body.extend_from_slice(&asks);
    for (lane, kind) in [(Lane::Control, 5u8), (Lane::Control, 6)] {
        let mut bytes = vec![kind << 3 | 2, body.len() as u8];
        bytes.extend_from_slice(&body);
        assert!(matches!(decode(lane, bytes.into()), Err(WireError::Malformed(_))));
    }
}

#[test]
fn limits_are_kept() {
    let many = Message::Evicted { domain: DomainId(1), pages: (1..=4097).map(page).collect() };
    assert!(matches!(
        decode(Lane::Control, encode(&many)),
        Err(WireError::Limit { limit: 4096, .. })
    ));
    let write = Write { page: page(1), op: crate::commit::Op::DeletePage };
    let commit = CommitRequest {
        id: CommitId::default(),
        confirmed: 0,
        history: HistoryId(0),
        base: Stamp(0),
        numbers: Vec::new(),
        reads: Vec::new(),
        writes: vec![write; crate::commit::COMMIT_WRITES_MAX + 1],
        across: None,
    };
    let many = Message::Commit { domain: DomainId(1), commit };
    assert!(matches!(
        decode(Lane::Bulk, encode(&many)),
        Err(WireError::Limit { what: "writes", .. })
    ));
}

/// A relay that resumed far behind its parent tells its children all that is stale at one stamp,
/// and stamps are not parted: with the limit of a page list, such a link closed again and again.
#[test]
fn an_advance_carries_what_a_relay_missed() {
    let advance = |pages| Message::Advance {
        domain: DomainId(1),
        from: Stamp(1),
        through: Stamp(2),
        time: crate::time::WallTime(0),
        changes: Vec::new(),
        stale: (1..=pages).map(page).collect(),
        echo: None,
    };
    let message = advance(65_536);
    assert_eq!(read_back(&message), message);
    let refused = decode(Lane::Stream, encode(&advance((1 << 19) + 1)));
    assert!(matches!(refused, Err(WireError::Limit { .. })));
}

#[test]
fn long_explanations_are_cut_at_a_character() {
    let message = Message::Goodbye { reason: CloseReason::Protocol("é".repeat(600) + "x") };
    let Message::Goodbye { reason: CloseReason::Protocol(text) } = read_back(&message) else {
        panic!("another reason")
    };
    assert_eq!(text, "é".repeat(512));
}

#[test]
fn metadata_of_another_format_is_named() {
    let mut bytes = encode_meta(&crate::record::DomainMeta::default()).to_vec();
    assert_eq!(bytes[..2], [8, 5]);
    bytes[1] = 9;
    let error = decode_meta(bytes.into()).expect_err("format 9");
    assert_eq!(error.to_string(), "metadata format 9; this version reads 1 to 5");
}

/// A log record of before boots had names was read as one of a boot without a name: the node of that
/// boot was told that its boot was another's, and closed.
#[test]
fn a_boot_without_a_name_is_refused() {
    use crate::record::{BootMeta, DomainMeta, LogRecord};
    let boot = BootId(7);
    let record = LogRecord::Boot { boot, name: String::new() };
    assert_eq!(decode_record(encode_record(&record)), Err(WireError::Nameless));
    let boots = vec![BootMeta { boot, ..BootMeta::default() }];
    let meta = DomainMeta { boots, ..DomainMeta::default() };
    assert_eq!(decode_meta(encode_meta(&meta)), Err(WireError::Nameless));
    // The same fields without a name are right where a boot is forgotten.
    let record = LogRecord::Confirmed { boot, upto: u64::MAX };
    assert_eq!(decode_record(encode_record(&record)), Ok(record));
}

/// A parent advanced its stream to the last number there is, which the read cache writes for "no
/// valid-through": readers were told that the domain was not attached, the machine that it was.
#[test]
fn the_last_number_is_no_stamp() {
    let advance = |through| Message::Advance {
        domain: DomainId(1),
        from: Stamp(1),
        through: Stamp(through),
        time: crate::time::WallTime(0),
        changes: Vec::new(),
        stale: Vec::new(),
        echo: None,
    };
    let last = advance(Stamp::LIMIT - 1);
    assert_eq!(read_back(&last), last);
    let refused = decode(Lane::Stream, encode(&advance(Stamp::LIMIT)));
    assert_eq!(refused, Err(WireError::Malformed("no stamp")));
}
