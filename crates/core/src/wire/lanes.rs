//! The lanes of one connection and one direction, without any input or output of their own.
//!
//! Control messages go before the stream, the stream before bulk. Control and stream are first in,
//! first out. Bulk messages take turns, a fragment each, so that a commit of some kilobytes does
//! not wait for one of 30 MiB on a slow line: **bulk messages may arrive in another order than
//! they were sent.** Of messages above 1 MiB one is under way at a time, and of smaller ones
//! seven, so that a receiver's memory for unfinished messages has a bound.

use super::frame::{BULK_SLOTS, FRAGMENT_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader};
use super::{WireError, decode, encode, message_bytes_max};
use crate::message::{Lane, Message};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;

/// A bulk message above this is large: it uses the large slot, alone.
const LARGE_BYTES: usize = 1 << 20;
/// Frames up to this long are copied out of what was read.
const OWN_BYTES: usize = 2 << 10;
/// The slot of large bulk messages; the others are for small ones.
const LARGE_SLOT: usize = BULK_SLOTS - 1;

/// Most bytes waiting to be sent, by lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Of control messages.
    pub control: usize,
    /// Of stream messages.
    pub stream: usize,
    /// Of bulk messages.
    pub bulk: usize,
}

impl Default for QueueLimits {
    /// Two of the longest messages of each lane.
    fn default() -> Self {
        Self {
            control: 2 * message_bytes_max(Lane::Control),
            stream: 2 * message_bytes_max(Lane::Stream),
            bulk: 2 * message_bytes_max(Lane::Bulk),
        }
    }
}

/// Why a message was not taken. Nothing of it will be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Overflow {
    /// No message of the lane may be this long.
    #[error("a message of {bytes} bytes is over the {lane:?} lane's limit of {limit}")]
    Message {
        /// Which lane.
        lane: Lane,
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// Too much waits in the lane.
    #[error("{queued} bytes wait in the {lane:?} lane; {bytes} more pass its limit of {limit}")]
    Queue {
        /// Which lane.
        lane: Lane,
        /// The message's length.
        bytes: usize,
        /// Bytes waiting before it.
        queued: usize,
        /// The most that may wait.
        limit: usize,
    },
}

/// A frame to be sent: header, then payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// The frame's header.
    pub header: [u8; FRAME_HEADER_BYTES],
    /// The frame's payload, a slice of the encoded message.
    pub payload: Bytes,
}

/// Takes messages, gives fragments.
#[derive(Debug)]
pub struct LaneSender {
    limits: QueueLimits,
    control: Queue,
    stream: Queue,
    bulk: Bulk,
}

/// First in, first out. The front may be partly sent.
#[derive(Default, Debug)]
struct Queue {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }

    /// The front's next fragment, and whether it is the last.
    fn cut(&mut self) -> Option<(Bytes, bool)> {
        let front = self.messages.front_mut()?;
        let payload = front.split_to(front.len().min(FRAGMENT_BYTES_MAX));
        self.bytes -= payload.len();
        let last = front.is_empty();
        if last {
            self.messages.pop_front();
        }
        Some((payload, last))
    }
}

/// Queues that take turns: each is one slot's. A message goes to the slot with the least waiting.
#[derive(Default, Debug)]
struct Bulk {
    slots: [Queue; BULK_SLOTS],
    /// Whose turn it is.
    turn: usize,
}

impl Bulk {
    fn push(&mut self, message: Bytes) {
        let slot = if message.len() > LARGE_BYTES {
            LARGE_SLOT
        } else {
            (0..LARGE_SLOT)
                .min_by_key(|slot| self.slots[*slot].bytes)
                .expect("there are slots for small messages")
        };
        self.slots[slot].push(message);
    }

    fn cut(&mut self) -> Option<(usize, Bytes, bool)> {
        for step in 0..BULK_SLOTS {
            let slot = (self.turn + step) % BULK_SLOTS;
            if let Some((payload, last)) = self.slots[slot].cut() {
                self.turn = slot + 1;
                return Some((slot, payload, last));
            }
        }
        None
    }

    fn bytes(&self) -> usize {
        self.slots.iter().map(|queue| queue.bytes).sum()
    }
}

impl LaneSender {
    /// Empty lanes.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self { limits, control: Queue::default(), stream: Queue::default(), bulk: Bulk::default() }
    }

    /// Takes a message; returns its encoded bytes, as [`super::encoded_len`] counts them.
    pub fn push(&mut self, message: &Message) -> Result<usize, Overflow> {
        let lane = message.lane();
        let encoded = encode(message);
        let (bytes, queued) = (encoded.len(), self.queued_bytes(lane));
        if bytes > message_bytes_max(lane) {
            return Err(Overflow::Message { lane, bytes, limit: message_bytes_max(lane) });
        }
        let limit = match lane {
            Lane::Control => self.limits.control,
            Lane::Stream => self.limits.stream,
            Lane::Bulk => self.limits.bulk,
        };
        if queued + bytes > limit {
            return Err(Overflow::Queue { lane, bytes, queued, limit });
        }
        match lane {
            Lane::Control => self.control.push(encoded),
            Lane::Stream => self.stream.push(encoded),
            Lane::Bulk => self.bulk.push(encoded),
        }
        Ok(bytes)
    }

    /// The next frame to send.
    pub fn next_fragment(&mut self) -> Option<Fragment> {
        let (lane, slot, payload, last) = if let Some((payload, last)) = self.control.cut() {
            (Lane::Control, 0, payload, last)
        } else if let Some((payload, last)) = self.stream.cut() {
            (Lane::Stream, 0, payload, last)
        } else {
            let (slot, payload, last) = self.bulk.cut()?;
            (Lane::Bulk, slot as u8, payload, last)
        };
        let header = FrameHeader { length: payload.len(), lane, slot, last };
        Some(Fragment { header: header.encode(), payload })
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.control.bytes == 0 && self.stream.bytes == 0 && self.bulk.bytes() == 0
    }

    /// Bytes of messages that wait in a lane, frame headers not counted.
    #[must_use]
    pub fn queued_bytes(&self, lane: Lane) -> usize {
        match lane {
            Lane::Control => self.control.bytes,
            Lane::Stream => self.stream.bytes,
            Lane::Bulk => self.bulk.bytes(),
        }
    }
}

/// Takes bytes, gives messages. What it keeps of unfinished messages is at most 1 MiB of control,
/// 8 MiB of stream and 47 MiB of bulk.
#[derive(Default, Debug)]
pub struct LaneReceiver {
    control: BytesMut,
    stream: BytesMut,
    bulk: [BytesMut; BULK_SLOTS],
    failed: Option<WireError>,
}

impl LaneReceiver {
    /// At the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes whole frames from the front of `input` until a message is complete, and returns it
    /// with its encoded bytes. None: more input is needed; what is left of `input` is the
    /// beginning of a frame. After an error the connection is of no use, and the error stays.
    ///
    /// A message of one frame of more than 2 KiB shares `input`'s memory. A shorter one has
    /// memory of its own: kept, it keeps no more than itself, and `input` is used again at once,
    /// while the processor's caches hold it.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Option<(Message, u32)>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.take_frames(input);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn take_frames(&mut self, input: &mut BytesMut) -> Result<Option<(Message, u32)>, WireError> {
        while let Some(header) = input.first_chunk::<FRAME_HEADER_BYTES>() {
            let header = FrameHeader::decode(*header)?;
            if input.len() < FRAME_HEADER_BYTES + header.length {
                break;
            }
            input.advance(FRAME_HEADER_BYTES);
            let payload = if header.length <= OWN_BYTES {
                let own = Bytes::copy_from_slice(&input[..header.length]);
                input.advance(header.length);
                own
            } else {
                input.split_to(header.length).freeze()
            };
            let Some(encoded) = self.take_frame(header, payload)? else {
                continue;
            };
            let bytes = u32::try_from(encoded.len()).expect("lanes limit messages to 40 MiB");
            if let Some(message) = decode(header.lane, encoded)? {
                return Ok(Some((message, bytes)));
            }
        }
        Ok(None)
    }

    /// Joins a frame to its message; returns the message's bytes when it is complete.
    fn take_frame(
        &mut self,
        header: FrameHeader,
        payload: Bytes,
    ) -> Result<Option<Bytes>, WireError> {
        let slot = usize::from(header.slot);
        let (begun, limit) = match header.lane {
            Lane::Control => (&mut self.control, message_bytes_max(Lane::Control)),
            Lane::Stream => (&mut self.stream, message_bytes_max(Lane::Stream)),
            Lane::Bulk if slot == LARGE_SLOT => {
                (&mut self.bulk[slot], message_bytes_max(Lane::Bulk))
            }
            Lane::Bulk => (&mut self.bulk[slot], LARGE_BYTES),
        };
        if begun.len() + payload.len() > limit {
            return Err(WireError::Limit { what: "bytes of a message", limit });
        }
        if begun.is_empty() && header.last {
            return Ok(Some(payload));
        }
        begun.extend_from_slice(&payload);
        Ok(header.last.then(|| std::mem::take(begun).freeze()))
    }
}
