use super::*;

fn small(request: u64) -> Message {
    Message::ListVolumes { request: RequestId(request), after: "a".into() }
}

fn advance(through: u64) -> Message {
    Message::Advance {
        domain: DomainId(1),
        from: Stamp(0),
        through: Stamp(through),
        time: crate::time::WallTime(0),
        changes: Vec::new(),
        stale: Vec::new(),
        echo: None,
    }
}

fn send_all(sender: &mut LaneSender) -> BytesMut {
    let mut sent = BytesMut::new();
    while let Some(fragment) = sender.next_fragment() {
        sent.extend_from_slice(&fragment.header);
        sent.extend_from_slice(&fragment.payload);
    }
    assert!(sender.is_empty());
    sent
}

fn receive_all(mut input: BytesMut) -> Vec<Message> {
    let mut receiver = LaneReceiver::new();
    let mut messages = Vec::new();
    while let Some((message, bytes)) = receiver.receive(&mut input).expect("valid frames") {
        assert_eq!(bytes as usize, encoded_len(&message));
        messages.push(message);
    }
    assert!(input.is_empty());
    messages
}

/// A message kept (a commit that waits to be installed, say) kept the whole read buffer with it,
/// 64 KiB for a hundred bytes, and every read took new memory.
#[test]
fn a_kept_short_message_does_not_keep_what_it_was_read_with() {
    let mut sender = LaneSender::new(QueueLimits::default());
    sender.push(&pages_message(1, 100)).expect("room");
    let sent = send_all(&mut sender);
    let mut input = BytesMut::with_capacity(64 << 10);
    input.extend_from_slice(&sent);
    let mut receiver = LaneReceiver::new();
    let kept = receiver.receive(&mut input).expect("a frame").expect("a message");
    assert!(input.try_reclaim(64 << 10), "somebody still holds the buffer");
    assert_eq!(kept.0, pages_message(1, 100));
}

/// A page of 1 MiB is under way; what is pushed then goes first.
#[test]
fn small_messages_overtake_pages() {
    let mut sender = LaneSender::new(QueueLimits::default());
    let big = pages_message(1, 1 << 20);
    let page = pages_message(1, 5000);
    sender.push(&big).expect("room");
    let first = sender.next_fragment().expect("a fragment");
    sender.push(&advance(1)).expect("room");
    sender.push(&page).expect("room");
    sender.push(&small(1)).expect("room");
    sender.push(&advance(2)).expect("room");
    let mut sent = BytesMut::from(&first.header[..]);
    sent.extend_from_slice(&first.payload);
    sent.extend_from_slice(&send_all(&mut sender));
    let order = receive_all(sent);
    assert_eq!(order, [small(1), advance(1), advance(2), page, big]);
}

#[test]
fn bulk_messages_take_turns() {
    let mut sender = LaneSender::new(QueueLimits::default());
    for request in 0..20 {
        let Message::Pages { domain, pages, .. } = pages_message(1, 40_000) else {
            unreachable!("made so")
        };
        let request = RequestId(request);
        sender.push(&Message::Pages { request, domain, pages }).expect("room");
    }
    let mut slots = Vec::new();
    for _ in 0..9 {
        let fragment = sender.next_fragment().expect("a fragment");
        slots.push(FrameHeader::decode(fragment.header).expect("valid").slot);
    }
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 0, 1]);
    let rest = send_all(&mut sender);
    assert!(rest.len() > 19 * 40_000 - 9 * FRAGMENT_BYTES_MAX);
}

#[test]
fn queues_are_bounded() {
    let mut sender = LaneSender::new(QueueLimits { control: 20, stream: 100, bulk: 10_000 });
    sender.push(&small(1)).expect("room");
    sender.push(&small(2)).expect("room");
    let error = sender.push(&small(3)).expect_err("no room");
    assert_eq!(error.to_string(), "14 bytes wait in the Control lane; 7 more pass its limit of 20");
    let error = sender.push(&pages_message(1, 9_990)).expect_err("no room");
    assert!(matches!(error, Overflow::Queue { lane: Lane::Bulk, queued: 0, .. }));
    let error = sender.push(&pages_message(41, 1 << 20)).expect_err("too long");
    assert!(matches!(error, Overflow::Message { lane: Lane::Bulk, .. }));
    assert_eq!(sender.queued_bytes(Lane::Bulk), 0);
    assert_eq!(receive_all(send_all(&mut sender)), [small(1), small(2)]);
}

#[test]
fn endless_messages_are_cut_off() {
    let frame = |lane, slot| FrameHeader { length: FRAGMENT_BYTES_MAX, lane, slot, last: false };
    for (frame, frames) in [
        (frame(Lane::Control, 0), 64),
        (frame(Lane::Bulk, 3), 64),
        (frame(Lane::Stream, 0), 512),
        (frame(Lane::Bulk, 7), 2560),
    ] {
        let mut receiver = LaneReceiver::new();
        let mut receive = || {
            let mut input = BytesMut::from(&frame.encode()[..]);
            input.extend_from_slice(&[0; FRAGMENT_BYTES_MAX]);
            receiver.receive(&mut input)
        };
        for _ in 0..frames {
            assert_eq!(receive(), Ok(None));
        }
        assert!(matches!(receive(), Err(WireError::Limit { .. })));
        assert!(matches!(receive(), Err(WireError::Limit { .. })), "the error stays");
    }
}

#[test]
fn damaged_headers_are_noticed() {
    let header = FrameHeader { length: 5, lane: Lane::Stream, slot: 0, last: true };
    assert_eq!(FrameHeader::decode(header.encode()), Ok(header));
    for at in 0..8 {
        for bit in 0..8 {
            let mut bytes = header.encode();
            bytes[at] ^= 1 << bit;
            assert!(FrameHeader::decode(bytes).is_err(), "byte {at} bit {bit}");
        }
    }
}

proptest! {
    /// However the bytes are cut, the messages are those sent, in order within control and
    /// stream; damage gives an error or other messages, never a panic.
    #[test]
    fn lanes_carry_messages(
        messages in prop::collection::vec(any::message(), 1..30),
        cuts in prop::collection::vec(1..3000usize, 1..20),
        flip in any::<prop::sample::Index>(),
    ) {
        let mut sender = LaneSender::new(QueueLimits::default());
        for message in &messages {
            prop_assert_eq!(sender.push(message), Ok(encoded_len(message)));
        }
        let sent = send_all(&mut sender);
        let mut input = BytesMut::new();
        let mut receiver = LaneReceiver::new();
        let mut received = Vec::new();
        let mut rest = &sent[..];
        for cut in cuts.iter().cycle() {
            let (piece, left) = rest.split_at((*cut).min(rest.len()));
            input.extend_from_slice(piece);
            while let Some((message, _)) = receiver.receive(&mut input).expect("valid") {
                received.push(message);
            }
            rest = left;
            if rest.is_empty() {
                break;
            }
        }
        for lane in [Lane::Control, Lane::Stream, Lane::Bulk] {
            let of_lane = |messages: &[Message]| {
                let mut messages: Vec<String> = messages
                    .iter()
                    .filter(|message| message.lane() == lane)
                    .map(|message| format!("{message:?}"))
                    .collect();
                if lane == Lane::Bulk {
                    messages.sort();
                }
                messages
            };
            prop_assert_eq!(of_lane(&received), of_lane(&messages));
        }
        let mut broken = sent.clone();
        let at = flip.index(broken.len());
        broken[at] ^= 1;
        let mut receiver = LaneReceiver::new();
        while let Ok(Some(_)) = receiver.receive(&mut broken) {}
    }
}
