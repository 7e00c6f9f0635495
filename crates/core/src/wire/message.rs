//! Messages: kind numbers, envelopes, and where each kind is turned into fields.

use super::packed::Packed;
use super::varint::{Counter, Reader, Sink};
use super::{KINDS_IGNORED, WireError, copy, down, group, message_bytes_max, origins, up};
use crate::commit::{Abort, COMMIT_BYTES_MAX, COMMIT_READS_MAX, COMMIT_WRITES_MAX, CommitRequest};
use crate::id::DomainId;
use crate::message::{Lane, Message};
use crate::page::PAGE_BYTES_MAX;
use bytes::Bytes;

/// Numbers of the kinds: for good.
pub(super) mod kind {
    pub(in crate::wire) const GOODBYE: u32 = 1;
    pub(in crate::wire) const HELLO: u32 = 2;
    pub(in crate::wire) const WELCOME: u32 = 3;
    pub(in crate::wire) const RESUME: u32 = 4;
    pub(in crate::wire) const FETCH: u32 = 5;
    pub(in crate::wire) const EVICTED: u32 = 6;
    pub(in crate::wire) const HOLDING: u32 = 7;
    pub(in crate::wire) const CONFIRM: u32 = 8;
    pub(in crate::wire) const ALLOCATE_IDS: u32 = 9;
    pub(in crate::wire) const OPEN_VOLUME: u32 = 10;
    pub(in crate::wire) const LIST_VOLUMES: u32 = 11;
    pub(in crate::wire) const CREATE_VOLUME: u32 = 12;
    pub(in crate::wire) const BEAT: u32 = 13;
    pub(in crate::wire) const CREDIT: u32 = 14;
    pub(in crate::wire) const REGISTERED: u32 = 15;
    pub(in crate::wire) const COMMITTED: u32 = 16;
    pub(in crate::wire) const COMMIT_DEFERRED: u32 = 17;
    pub(in crate::wire) const IDS: u32 = 18;
    pub(in crate::wire) const VOLUME: u32 = 19;
    pub(in crate::wire) const VOLUMES: u32 = 20;
    pub(in crate::wire) const FAILED: u32 = 21;
    pub(in crate::wire) const REGISTER: u32 = 22;
    pub(in crate::wire) const LEFT: u32 = 23;
    pub(in crate::wire) const UNREGISTERED: u32 = 24;
    pub(in crate::wire) const KEEP_ALIVE: u32 = 25;
    pub(in crate::wire) const CHANGE_VOLUME: u32 = 26;
    pub(in crate::wire) const DELETE_VOLUME: u32 = 27;
    pub(in crate::wire) const VOLUME_DELETED: u32 = 28;
    pub(in crate::wire) const ASK_RIGHTS: u32 = 36;
    pub(in crate::wire) const RIGHTS: u32 = 37;
    pub(in crate::wire) const FOR: u32 = 38;
    pub(in crate::wire) const COPY_PAGES: u32 = 30;
    pub(in crate::wire) const RESUMED: u32 = 40;
    pub(in crate::wire) const ADVANCE: u32 = 41;
    pub(in crate::wire) const HISTORY: u32 = 42;
    pub(in crate::wire) const VOLUME_RIGHTS: u32 = 50;
    pub(in crate::wire) const COMMIT: u32 = 60;
    pub(in crate::wire) const PAGES: u32 = 61;
    pub(in crate::wire) const COPIED: u32 = 62;
    pub(in crate::wire) const JOIN: u32 = 70;
    pub(in crate::wire) const REACH: u32 = 71;
    pub(in crate::wire) const HELPED: u32 = 72;
    pub(in crate::wire) const MEMBERS: u32 = 73;
    pub(in crate::wire) const POINTED: u32 = 74;
    pub(in crate::wire) const HELP: u32 = 75;
    pub(in crate::wire) const PEER: u32 = 76;
    pub(in crate::wire) const LACKS: u32 = 77;
    pub(in crate::wire) const UPDATE: u32 = 78;
    pub(in crate::wire) const COMPLETE: u32 = 79;
    pub(in crate::wire) const ACKNOWLEDGED: u32 = 80;
    pub(in crate::wire) const GREETS: u32 = 81;
    pub(in crate::wire) const SERVES: u32 = 82;
    pub(in crate::wire) const SAYS: u32 = 83;
    pub(in crate::wire) const REFRESH: u32 = 1000;
}

/// The lane of a kind, known from its number before anything of the message is decoded.
fn lane_of(kind: u32) -> Option<Lane> {
    match kind {
        kind::GOODBYE..=kind::VOLUME_DELETED | kind::COPY_PAGES => Some(Lane::Control),
        kind::ASK_RIGHTS..=kind::FOR | kind::JOIN..=kind::LACKS => Some(Lane::Control),
        kind::COMPLETE..=kind::SAYS => Some(Lane::Control),
        kind::RESUMED..=kind::HISTORY | kind::VOLUME_RIGHTS | kind::UPDATE => Some(Lane::Stream),
        kind::COMMIT..=kind::COPIED => Some(Lane::Bulk),
        kind if KINDS_IGNORED.contains(&kind) => Some(Lane::Control),
        _ => None,
    }
}

/// A message or record on its way to bytes.
pub(super) struct Body<'a> {
    kind: u32,
    head: Vec<u8>,
    /// For the fields 14 and 15.
    lists: [Option<Packed<'a>>; 2],
}

/// Lengths in bytes.
struct Sizes {
    lists: [usize; 2],
    body: usize,
}

impl<'a> Body<'a> {
    pub(super) fn plain(kind: u32, head: &impl prost::Message) -> Self {
        Self { kind, head: head.encode_to_vec(), lists: [None, None] }
    }

    /// With a list in field 15.
    pub(super) fn with(kind: u32, head: &impl prost::Message, list: Packed<'a>) -> Self {
        Self { lists: [None, Some(list)], ..Self::plain(kind, head) }
    }

    /// With lists in the fields 14 and 15.
    pub(super) fn with_two(
        kind: u32,
        head: &impl prost::Message,
        lists: (Packed<'a>, Packed<'a>),
    ) -> Self {
        Self { lists: [Some(lists.0), Some(lists.1)], ..Self::plain(kind, head) }
    }

    fn sizes(&self) -> Sizes {
        let lists = self.lists.each_ref().map(|list| {
            let mut counter = Counter::default();
            if let Some(list) = list {
                list.write(&mut counter);
            }
            counter.0
        });
        let mut body = Counter(self.head.len());
        for (field, bytes) in [14, 15].into_iter().zip(lists) {
            if bytes > 0 {
                write_key(field, bytes, &mut body);
                body.0 += bytes;
            }
        }
        Sizes { lists, body: body.0 }
    }

    /// The length of the bytes, without making them.
    fn len(&self, sizes: &Sizes) -> usize {
        let mut length = Counter(sizes.body);
        write_key(self.kind, sizes.body, &mut length);
        length.0
    }

    pub(super) fn encode(&self) -> Bytes {
        let sizes = self.sizes();
        let length = self.len(&sizes);
        let mut bytes = Vec::with_capacity(length);
        write_key(self.kind, sizes.body, &mut bytes);
        bytes.extend_from_slice(&self.head);
        for ((field, size), list) in [14, 15].into_iter().zip(sizes.lists).zip(&self.lists) {
            if let (Some(list), true) = (list, size > 0) {
                write_key(field, size, &mut bytes);
                list.write(&mut bytes);
            }
        }
        assert_eq!(bytes.len(), length, "credits count what is sent");
        bytes.into()
    }
}

/// Key and length of a field that holds bytes.
fn write_key(field: u32, bytes: usize, out: &mut impl Sink) {
    out.varint(u64::from(field) << 3 | 2);
    out.varint(bytes as u64);
}

/// Splits an envelope into kind and body. Exactly one field: what a later version adds, it adds
/// inside.
pub(super) fn open(bytes: Bytes) -> Result<(u32, Bytes), WireError> {
    let mut reader = Reader::new(bytes);
    let key = reader.varint()?;
    let kind = u32::try_from(key >> 3)
        .ok()
        .filter(|_| key & 7 == 2)
        .ok_or(WireError::Malformed("no envelope"))?;
    let length = reader.varint()?;
    let body = reader.take(length)?;
    if !reader.is_empty() {
        return Err(WireError::Malformed("bytes after the end"));
    }
    Ok((kind, body))
}

/// The bytes of a message.
#[must_use]
pub fn encode(message: &Message) -> Bytes {
    body_of(message).encode()
}

/// How many bytes [`encode`] makes: what a message costs in credits. Does not copy payload.
#[must_use]
pub fn encoded_len(message: &Message) -> usize {
    let body = body_of(message);
    body.len(&body.sizes())
}

/// Most bytes that one read of a commit takes.
const READ_BYTES_MAX: usize = 48;
/// Most bytes that one write of a commit takes beside its payload.
const WRITE_BYTES_MAX: usize = 64;

/// Most bytes that one entry of a commit's page numbers takes.
const NUMBERED_BYTES_MAX: usize = 21;

/// Whether the other side takes a commit of this kind: one that does not pass ends every link that
/// it is sent on. Several limits at once, each kept, may pass that of a message.
pub fn check_commit(domain: DomainId, commit: &CommitRequest) -> Result<(), Abort> {
    let payload = commit.writes.iter().map(|write| write.op.payload_bytes());
    let bytes: usize = payload.clone().sum();
    let limits = [
        (commit.reads.len(), COMMIT_READS_MAX, "reads"),
        (commit.writes.len(), COMMIT_WRITES_MAX, "writes"),
        (bytes, COMMIT_BYTES_MAX, "bytes"),
        (payload.max().unwrap_or_default(), PAGE_BYTES_MAX as usize, "object"),
    ];
    for (count, limit, name) in limits {
        if count > limit {
            return Err(Abort::TooLarge(name));
        }
    }
    let parts = commit.across.as_ref().map_or(0, |across| across.parts().len());
    let most = 256
        + super::parts::PART_BYTES_MAX * parts
        + NUMBERED_BYTES_MAX * commit.numbers.len()
        + READ_BYTES_MAX * commit.reads.len()
        + WRITE_BYTES_MAX * commit.writes.len()
        + bytes;
    let limit = message_bytes_max(Lane::Bulk);
    // Measured only when it may be too long: that takes a look at every read and write.
    let length = || {
        let body = up::commit_body(domain, commit);
        body.len(&body.sizes())
    };
    if most > limit && length() > limit { Err(Abort::TooLarge("message")) } else { Ok(()) }
}

/// The message in bytes that came in `lane`; none: a kind that may be ignored. Payload shares the
/// bytes' memory.
pub fn decode(lane: Lane, bytes: Bytes) -> Result<Option<Message>, WireError> {
    if bytes.len() > message_bytes_max(lane) {
        return Err(WireError::Limit {
            what: "bytes of a message",
            limit: message_bytes_max(lane),
        });
    }
    let (kind, body) = open(bytes)?;
    match lane_of(kind) {
        None => Err(WireError::UnknownKind(kind)),
        Some(own) if own != lane => Err(WireError::WrongLane { kind, lane }),
        Some(_) if KINDS_IGNORED.contains(&kind) && kind != kind::REFRESH => Ok(None),
        Some(_) => message_of(kind, body).map(Some),
    }
}

fn body_of(message: &Message) -> Body<'_> {
    match message {
        Message::Hello { .. }
        | Message::Resume { .. }
        | Message::Register { .. }
        | Message::Left { .. }
        | Message::Fetch { .. }
        | Message::Evicted { .. }
        | Message::Holding { .. }
        | Message::Confirm { .. }
        | Message::Beat { .. }
        | Message::Refresh { .. }
        | Message::Credit { .. }
        | Message::Commit { .. } => up::body(message),
        Message::AllocateIds { .. }
        | Message::OpenVolume { .. }
        | Message::ListVolumes { .. }
        | Message::CreateVolume { .. }
        | Message::ChangeVolume { .. }
        | Message::DeleteVolume { .. }
        | Message::AskRights { .. }
        | Message::For { .. } => up::volume_body(message),
        Message::CopyPages { .. } | Message::Copied { .. } => copy::body(message),
        Message::Group(message) => group::body(message),
        Message::Origin(message) => origins::body(message),
        Message::Goodbye { .. }
        | Message::KeepAlive
        | Message::Welcome { .. }
        | Message::Registered { .. }
        | Message::Unregistered { .. }
        | Message::Committed { .. }
        | Message::CommitDeferred { .. }
        | Message::Ids { .. }
        | Message::Volume { .. }
        | Message::VolumeDeleted { .. }
        | Message::Volumes { .. }
        | Message::Rights { .. }
        | Message::Failed { .. } => down::body(message),
        Message::Resumed { .. }
        | Message::Advance { .. }
        | Message::History { .. }
        | Message::VolumeRights { .. }
        | Message::Pages { .. } => down::flow_body(message),
    }
}

fn message_of(kind: u32, body: Bytes) -> Result<Message, WireError> {
    match kind {
        kind::HELLO
        | kind::RESUME
        | kind::REGISTER
        | kind::LEFT
        | kind::FETCH
        | kind::EVICTED
        | kind::HOLDING
        | kind::CONFIRM
        | kind::BEAT
        | kind::REFRESH
        | kind::CREDIT
        | kind::COMMIT => up::message(kind, body),
        kind::ALLOCATE_IDS..=kind::CREATE_VOLUME
        | kind::CHANGE_VOLUME
        | kind::DELETE_VOLUME
        | kind::ASK_RIGHTS
        | kind::FOR => up::volume_message(kind, body),
        kind::RESUMED..=kind::HISTORY | kind::VOLUME_RIGHTS | kind::PAGES => {
            down::flow_message(kind, body)
        }
        kind::COPY_PAGES | kind::COPIED => copy::message(kind, body),
        kind::JOIN..=kind::ACKNOWLEDGED => group::message(kind, body).map(Message::Group),
        kind::GREETS..=kind::SAYS => origins::message(kind, body).map(Message::Origin),
        _ => down::message(kind, body),
    }
}
