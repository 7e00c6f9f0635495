//! Short ways to write what happens to a parent (origin or relay) and what an origin's store does.

use bytes::Bytes;
use larder_core::commit::{Aspect, CommitRequest, Numbered, Op, Read, Target, Write};
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, LinkId, PageId, PageNo, RequestId, Slot,
    Stamp, VolumeId,
};
use larder_core::machine::LinkInput;
use larder_core::message::{Epoch, Message, PageAsk, Role, VolumeSpec};
use larder_core::page::Record;
use larder_core::time::Instant;

/// The one domain.
pub(crate) const DOMAIN: DomainId = DomainId(1);
/// The one volume.
pub(crate) const VOLUME: VolumeId = VolumeId(7);

/// Page `n` of the volume.
pub(crate) fn page(n: u64) -> PageId {
    PageId { volume: VOLUME, page: PageNo(n) }
}

/// A child's connection.
pub(crate) fn opened(link: u64, peer: &str) -> (String, LinkInput) {
    opened_as(link, peer, Role::Node)
}

/// A child's connection, and what its certificate lets it be.
pub(crate) fn opened_as(link: u64, peer: &str, role: Role) -> (String, LinkInput) {
    let input =
        LinkInput::DownOpened { link: LinkId(link), peer: peer.into(), role, in_group: true };
    let relay = if role == Role::Relay { ", a relay" } else { "" };
    (format!("link {link} opened by {peer}{relay}"), input)
}

/// A child's connection whose certificate is not of the parent's group.
pub(crate) fn stranger(link: u64, peer: &str) -> (String, LinkInput) {
    let (link_id, role, in_group) = (LinkId(link), Role::Node, false);
    let input = LinkInput::DownOpened { link: link_id, peer: peer.into(), role, in_group };
    (format!("link {link} opened by {peer}, of another group"), input)
}

/// The end of a connection.
pub(crate) fn closed(link: u64) -> (String, LinkInput) {
    (format!("link {link} closed"), LinkInput::Closed { link: LinkId(link), reason: None })
}

/// A message from a link.
pub(crate) fn received(link: u64, message: Message) -> (String, LinkInput) {
    let bytes = u32::try_from(larder_core::wire::encoded_len(&message)).expect("small");
    let written = format!("link {link} > {}", crate::notation::message(&message));
    (written, LinkInput::Received { link: LinkId(link), message, bytes })
}

/// The handshake of a node.
pub(crate) fn hello(link: u64, name: &str, boot: u128) -> (String, LinkInput) {
    hello_as(link, name, boot, Role::Node)
}

/// The handshake of a relay or node.
pub(crate) fn hello_as(link: u64, name: &str, boot: u128, role: Role) -> (String, LinkInput) {
    let boot = BootId(boot);
    received(link, Message::Hello { min_version: 1, max_version: 1, name: name.into(), boot, role })
}

/// The handshake of a relay or node of some version.
pub(crate) fn hello_of(
    link: u64,
    name: &str,
    boot: u128,
    (role, max_version): (Role, u32),
) -> (String, LinkInput) {
    let (boot, name) = (BootId(boot), name.into());
    received(link, Message::Hello { min_version: 1, max_version, name, boot, role })
}

/// A resume that holds nothing.
pub(crate) fn resume_new(link: u64, request: u64) -> (String, LinkInput) {
    resume_full(link, request, &[], None)
}

/// A resume from a valid-through on a line of (history, first stamp).
pub(crate) fn resume(
    link: u64,
    request: u64,
    line: &[(u128, u64)],
    through: u64,
) -> (String, LinkInput) {
    resume_full(link, request, line, Some(through))
}

fn resume_full(
    link: u64,
    request: u64,
    line: &[(u128, u64)],
    through: Option<u64>,
) -> (String, LinkInput) {
    let epoch = |&(history, first): &(u128, u64)| Epoch {
        history: HistoryId(history),
        first: Stamp(first),
    };
    let message = Message::Resume {
        request: RequestId(request),
        domain: DOMAIN,
        epochs: line.iter().map(epoch).collect(),
        through: through.map(Stamp),
    };
    received(link, message)
}

/// The registration of a new boot, which is the node's life as well.
pub(crate) fn register(link: u64, name: &str, boot: u128) -> (String, LinkInput) {
    register_as(link, name, boot, boot, true)
}

/// The registration of a boot of the process `life`; not `fresh`: it was registered before.
pub(crate) fn register_as(
    link: u64,
    name: &str,
    life: u128,
    boot: u128,
    fresh: bool,
) -> (String, LinkInput) {
    let (boot, life) = (BootId(boot), BootId(life));
    received(link, Message::Register { domain: DOMAIN, boot, name: name.into(), life, fresh })
}

/// A relay tells that a node is gone.
pub(crate) fn left(link: u64, name: &str) -> (String, LinkInput) {
    received(link, Message::Left { name: name.into() })
}

/// Outcomes of a boot were received.
pub(crate) fn confirm(link: u64, boot: u128, upto: u64) -> (String, LinkInput) {
    confirm_but_for(link, boot, upto, &[])
}

/// The same, but for some.
pub(crate) fn confirm_but_for(
    link: u64,
    boot: u128,
    upto: u64,
    open: &[u64],
) -> (String, LinkInput) {
    let (boot, open) = (BootId(boot), open.to_vec());
    received(link, Message::Confirm { domain: DOMAIN, boot, upto, open })
}

/// A fetch.
pub(crate) fn fetch(link: u64, request: u64, pages: &[u64]) -> (String, LinkInput) {
    let ask = |n: &u64| PageAsk { page: page(*n), have: None };
    let pages = pages.iter().map(ask).collect();
    let request = RequestId(request);
    received(link, Message::Fetch { request, domain: DOMAIN, pages, prefetch: false })
}

/// An eviction notice.
pub(crate) fn evicted(link: u64, pages: &[u64]) -> (String, LinkInput) {
    let pages = pages.iter().map(|n| page(*n)).collect();
    received(link, Message::Evicted { domain: DOMAIN, pages })
}

/// The whole list of pages held.
pub(crate) fn holding(link: u64, pages: &[u64]) -> (String, LinkInput) {
    let pages = pages.iter().map(|n| page(*n)).collect();
    received(link, Message::Holding { domain: DOMAIN, pages, done: true })
}

/// A beat.
pub(crate) fn beat(link: u64, sent: Instant) -> (String, LinkInput) {
    received(link, Message::Beat { domain: DOMAIN, sent })
}

/// The question for the origin's own state.
pub(crate) fn refresh(link: u64, sent: Instant) -> (String, LinkInput) {
    received(link, Message::Refresh { domain: DOMAIN, sent })
}

/// A request for a volume.
pub(crate) fn create_volume(link: u64, request: u64) -> (String, LinkInput) {
    let spec = VolumeSpec { id: VOLUME, name: "v".into(), page_bytes: 4096, domain: None };
    received(link, Message::CreateVolume { request: RequestId(request), spec })
}

/// A transaction to be committed, in history 1.
#[derive(Clone)]
pub(crate) struct Commit(pub(crate) CommitRequest);

impl Commit {
    /// The commit `boot#sequence` from `base`.
    pub(crate) fn new(boot: u128, sequence: u64, base: u64) -> Self {
        Self(CommitRequest {
            id: CommitId { boot: BootId(boot), sequence },
            confirmed: 0,
            history: HistoryId(1),
            base: Stamp(base),
            numbers: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            across: None,
        })
    }

    /// It read the value of a slot.
    pub(crate) fn read(mut self, n: u64, slot: u16) -> Self {
        let target = Target::Slot(Slot(slot));
        self.0.reads.push(Read { page: page(n), target, aspect: Aspect::Value });
        self
    }

    /// It writes a slot's object of a generation.
    pub(crate) fn put(self, n: u64, slot: u16, generation: u32, value: &str) -> Self {
        let value = Record::Inline(Bytes::copy_from_slice(value.as_bytes())).encode();
        let generation = Generation(generation);
        self.op(n, Op::Put { slot: Slot(slot), generation, value })
    }

    /// It removes a slot's object.
    pub(crate) fn delete(self, n: u64, slot: u16, generation: u32) -> Self {
        self.op(n, Op::Delete { slot: Slot(slot), generation: Generation(generation) })
    }

    /// It does something to a page.
    pub(crate) fn op(mut self, n: u64, op: Op) -> Self {
        self.0.writes.push(Write { page: page(n), op });
        self
    }

    /// Its base was seen in this history.
    pub(crate) fn in_history(mut self, history: u128) -> Self {
        self.0.history = HistoryId(history);
        self
    }

    /// The next page that it makes has a number that was given in this history.
    pub(crate) fn numbers_of(mut self, history: u128) -> Self {
        self.0.numbers.push(Numbered { history: HistoryId(history), pages: 1 });
        self
    }

    /// Outcomes up to this sequence have been received.
    pub(crate) fn confirmed(mut self, upto: u64) -> Self {
        self.0.confirmed = upto;
        self
    }

    /// Sent on a link.
    pub(crate) fn on(self, link: u64) -> (String, LinkInput) {
        received(link, Message::Commit { domain: DOMAIN, commit: self.0 })
    }
}
