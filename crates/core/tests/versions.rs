//! Two ends whose protocol versions differ, over their real encoding and handshake.
//!
//! So that the promise "version N talks to N − 1" is held to before it is needed, an end of the next
//! version is made here: the same machines, told a wider range, and
//! around them what a next version may bring by the rules of `docs/formats/wire.md`: a field in every
//! message and a kind that may be ignored, which are sent to anybody, and a kind that is sent only on
//! a link of its version.

use bytes::{Bytes, BytesMut};
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput, CacheReply, Notice};
use larder_core::cache::{Cache, CacheConfig};
use larder_core::commit::{Op, Outcome, Write};
use larder_core::downlink::DownlinkConfig;
use larder_core::id::{
    BootId, DomainId, Generation, HistoryId, LinkId, PageId, PageNo, RequestId, Slot, VolumeId,
};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{
    CloseReason, Lane, LinkLimits, Message, PROTOCOL_VERSION, Role, Versions, VolumeSpec,
};
use larder_core::origin::io::{LoadKey, Loaded, OriginInput, OriginOutput};
use larder_core::origin::{Origin, OriginConfig, RecoveredDomain};
use larder_core::page::Record;
use larder_core::record::DomainMeta;
use larder_core::relay::io::{RelayInput, RelayOutput};
use larder_core::relay::{Relay, RelayConfig};
use larder_core::time::{Clock, Duration, Instant, WallTime};
use larder_core::wire::{self, WireError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const NOW: Instant = Instant(1_000_000_000);
const LINK: LinkId = LinkId(1);
const DOMAIN: DomainId = DomainId(1);
const HISTORY: HistoryId = HistoryId(9);
const VOLUME: VolumeId = VolumeId(7);

/// The next version, and its range by the rule.
const NEXT: u32 = PROTOCOL_VERSION + 1;
const TODAY: Versions = Versions::SPOKEN;
const NEWER: Versions = Versions { oldest: PROTOCOL_VERSION, newest: NEXT };
const ONLY_NEXT: Versions = Versions { oldest: NEXT, newest: NEXT };

/// A kind of the next version, one that may be ignored, and a field of all its messages.
const NEW_KIND: u32 = 900;
const NEW_IGNORABLE: u32 = 1500;
const NEW_FIELD: u32 = 500;

struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Instant {
        NOW
    }
}

fn varint(mut value: u64, out: &mut BytesMut) {
    while value > 0x7f {
        out.extend_from_slice(&[value as u8 | 0x80]);
        value >>= 7;
    }
    out.extend_from_slice(&[value as u8]);
}

fn enveloped(kind: u32, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    varint(u64::from(kind) << 3 | 2, &mut bytes);
    varint(body.len() as u64, &mut bytes);
    bytes.extend_from_slice(body);
    bytes.freeze()
}

fn read_varint(bytes: &[u8]) -> (u64, &[u8]) {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("it ends") + 1;
    let (number, rest) = bytes.split_at(length);
    let digits = number.iter().rev();
    (digits.fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)), rest)
}

fn kind_of(bytes: &[u8]) -> (u32, &[u8]) {
    let (key, rest) = read_varint(bytes);
    let (_, body) = read_varint(rest);
    ((key >> 3) as u32, body)
}

/// One end's encoding.
struct End {
    versions: Versions,
    /// What `Welcome` said.
    agreed: Option<u32>,
    /// How many messages of the next version's kind it got.
    new_kinds: usize,
    /// How many messages had a field that it does not know, or were of a kind that it ignored.
    strange: usize,
}

impl End {
    fn new(versions: Versions) -> Self {
        Self { versions, agreed: None, new_kinds: 0, strange: 0 }
    }

    fn is_newer(&self) -> bool {
        self.versions.newest == NEXT
    }

    fn send(&mut self, message: &Message) -> Vec<(Lane, Bytes)> {
        if let Message::Welcome { version, .. } = message {
            self.agreed = Some(*version);
        }
        let bytes = wire::encode(message);
        if !self.is_newer() {
            return vec![(message.lane(), bytes)];
        }
        let (kind, body) = kind_of(&bytes);
        let mut longer = BytesMut::from(body);
        varint(u64::from(NEW_FIELD) << 3, &mut longer);
        varint(77, &mut longer);
        let mut sent = vec![
            (message.lane(), enveloped(kind, &longer)),
            (Lane::Control, enveloped(NEW_IGNORABLE, b"may be ignored")),
        ];
        if self.agreed == Some(NEXT) {
            sent.push((Lane::Control, enveloped(NEW_KIND, b"of the next version only")));
        }
        sent
    }

    fn receive(&mut self, lane: Lane, bytes: Bytes) -> Result<Option<Message>, WireError> {
        if self.is_newer() && kind_of(&bytes).0 == NEW_KIND {
            self.new_kinds += 1;
            return Ok(None);
        }
        let message = wire::decode(lane, bytes.clone())?;
        if message.as_ref().is_none_or(|message| wire::encode(message) != bytes) {
            self.strange += 1;
        }
        if let Some(Message::Welcome { version, .. }) = &message {
            self.agreed = Some(*version);
        }
        Ok(message)
    }
}

#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// An origin and a node, and the line between them.
struct World {
    origin: Origin,
    cache: Cache,
    parent: End,
    child: End,
    line: VecDeque<(Way, Lane, Bytes)>,
    replies: BTreeMap<RequestId, CacheReply>,
    /// What the node's user is told.
    refused: Vec<CloseReason>,
    asked: u64,
}

impl World {
    fn new(parent: Versions, child: Versions) -> Self {
        let downlink = DownlinkConfig { versions: parent, ..OriginConfig::default().downlink };
        let config = OriginConfig { downlink, ..OriginConfig::default() };
        let domain = RecoveredDomain {
            meta: DomainMeta { domain: DOMAIN, ..DomainMeta::default() },
            apart: Vec::new(),
            records: Vec::new(),
            history: HISTORY,
        };
        let mut out = Vec::new();
        let origin = Origin::new(config, NOW, WallTime(0), vec![domain], &mut out);
        let config = CacheConfig::new("node", BootId(5), Arc::new(StillClock));
        let (cache, _) = Cache::new(CacheConfig { versions: child, ..config });
        let mut world = Self {
            origin: origin.expect("an empty domain"),
            cache,
            parent: End::new(parent),
            child: End::new(child),
            line: VecDeque::new(),
            replies: BTreeMap::new(),
            refused: Vec::new(),
            asked: 0,
        };
        world.origin_says(out);
        let (peer, role) = ("node".into(), Role::Node);
        world.tell_origin(OriginInput::Link(LinkInput::DownOpened {
            link: LINK,
            peer,
            role,
            in_group: true,
        }));
        let peer = "origin".into();
        world.tell_cache(CacheInput::Link(LinkInput::UpOpened {
            link: LINK,
            parent: 0,
            peer,
            in_group: true,
        }));
        world.run();
        world
    }

    fn tell_origin(&mut self, input: OriginInput) {
        let mut out = Vec::new();
        self.origin.handle(NOW, input, &mut out);
        self.origin_says(out);
    }

    fn tell_cache(&mut self, input: CacheInput) {
        let mut out = Vec::new();
        self.cache.handle(NOW, input, &mut out);
        for output in out {
            match output {
                CacheOutput::Link(LinkOutput::Send { message, .. }) => {
                    let sent = self.child.send(&message).into_iter();
                    self.line.extend(sent.map(|(lane, bytes)| (Way::Up, lane, bytes)));
                }
                CacheOutput::Link(LinkOutput::Close { .. }) | CacheOutput::Neighbour(_) => {}
                CacheOutput::Reply { id, result } => {
                    self.replies.insert(id, result.expect("nothing is in the way"));
                }
                CacheOutput::Notice(Notice::Refused { reason }) => self.refused.push(reason),
                CacheOutput::Notice(_) => {}
            }
        }
    }

    /// The store does all that it is asked, at once.
    fn origin_says(&mut self, out: Vec<OriginOutput>) {
        for output in out {
            match output {
                OriginOutput::Link(LinkOutput::Send { message, .. }) => self.send_down(&message),
                OriginOutput::Link(LinkOutput::Close { reason, .. }) => {
                    self.send_down(&Message::Goodbye { reason });
                }
                OriginOutput::Append { domain, write, .. } => {
                    self.tell_origin(OriginInput::Appended { domain, write, result: Ok(()) });
                }
                OriginOutput::Install { domain, write, .. } => {
                    self.tell_origin(OriginInput::Installed { domain, write, result: Ok(()) });
                }
                OriginOutput::Load { domain, load, key } => {
                    let loaded = match key {
                        LoadKey::Page(_) => Loaded::Page(None),
                        LoadKey::ChangedAfter { .. } => {
                            Loaded::Changed { entries: Vec::new(), more: false }
                        }
                        LoadKey::Removable { .. } => Loaded::Removable(Vec::new()),
                    };
                    self.tell_origin(OriginInput::Loaded { domain, load, result: Ok(loaded) });
                }
                _ => {}
            }
        }
    }

    fn send_down(&mut self, message: &Message) {
        let sent = self.parent.send(message).into_iter();
        self.line.extend(sent.map(|(lane, bytes)| (Way::Down, lane, bytes)));
    }

    fn run(&mut self) {
        while let Some((way, lane, encoded)) = self.line.pop_front() {
            let bytes = encoded.len() as u32;
            let end = match way {
                Way::Up => &mut self.parent,
                Way::Down => &mut self.child,
            };
            let received =
                end.receive(lane, encoded).expect("the other end knows what it may send");
            let Some(message) = received else { continue };
            let input = LinkInput::Received { link: LINK, message, bytes };
            match way {
                Way::Up => self.tell_origin(OriginInput::Link(input)),
                Way::Down => self.tell_cache(CacheInput::Link(input)),
            }
        }
    }

    fn ask(&mut self, op: CacheOp) -> CacheReply {
        self.asked += 1;
        let id = RequestId(self.asked);
        let deadline = NOW.after(Duration::from_secs(10));
        self.tell_cache(CacheInput::Request { id, op, deadline });
        self.run();
        self.replies.remove(&id).expect("it is answered")
    }

    /// A volume is made, a commit done, a page fetched.
    fn work(&mut self) {
        let spec =
            VolumeSpec { id: VOLUME, name: "v".into(), page_bytes: 4096, domain: Some(DOMAIN) };
        let CacheReply::Volume(info) = self.ask(CacheOp::CreateVolume(spec)) else {
            panic!("a volume was asked for");
        };
        let page = PageId { volume: VOLUME, page: PageNo(1) };
        let value = Record::Inline(Bytes::from_static(b"pear")).encode();
        let put = Op::Put { slot: Slot(0), generation: Generation(1), value };
        let commit = CacheOp::Commit {
            domain: DOMAIN,
            history: HISTORY,
            checked: info.version,
            reads: Vec::new(),
            writes: vec![Write { page, op: put }],
            named: Vec::new(),
        };
        let committed = self.ask(commit);
        assert_eq!(committed, CacheReply::Outcome(Outcome::Committed(info.version.next())));
        let fetch = CacheOp::Fetch { domain: DOMAIN, pages: vec![page], prefetch: false };
        let CacheReply::Fetched { pages, .. } = self.ask(fetch) else {
            panic!("a page was asked for");
        };
        let fetched = pages[0].page.as_ref().expect("it is there");
        assert!(fetched.get(Slot(0)).is_some(), "with what was written");
    }
}

/// Both ends were always of one version: nobody had seen that two of different ones agree, and that
/// the newer one keeps to what the older one knows.
#[test]
fn a_newer_end_and_an_older_one_speak_the_older_ones_version() {
    for (parent, child) in [(TODAY, NEWER), (NEWER, TODAY)] {
        let mut world = World::new(parent, child);
        world.work();
        let agreed = (world.parent.agreed, world.child.agreed);
        assert_eq!(agreed, (Some(PROTOCOL_VERSION), Some(PROTOCOL_VERSION)));
        assert_eq!((world.parent.new_kinds, world.child.new_kinds), (0, 0));
        let (older, newer) = match child == NEWER {
            true => (&world.parent, &world.child),
            false => (&world.child, &world.parent),
        };
        assert!(older.strange > 4, "it met fields and kinds that it does not know");
        assert_eq!(newer.strange, 0, "the older one sends nothing new");
        assert!(world.refused.is_empty());
    }
}

#[test]
fn two_newer_ends_speak_the_newer_version() {
    let mut world = World::new(NEWER, NEWER);
    world.work();
    assert_eq!((world.parent.agreed, world.child.agreed), (Some(NEXT), Some(NEXT)));
    assert!(world.parent.new_kinds > 4 && world.child.new_kinds > 4, "both use what is new");
}

/// Why the newer one must not: to the older one it is no message, and its link would end.
#[test]
fn what_is_new_ends_an_older_ends_link() {
    let mut older = End::new(TODAY);
    let error = older.receive(Lane::Control, enveloped(NEW_KIND, b"")).expect_err("it is unknown");
    assert_eq!(error, WireError::UnknownKind(NEW_KIND));
}

/// Ranges that do not meet are refused with both, so that whoever reads it knows which to update.
#[test]
fn ends_without_a_version_in_common_name_both_ranges() {
    for (parent, child) in [(TODAY, ONLY_NEXT), (ONLY_NEXT, TODAY)] {
        let world = World::new(parent, child);
        assert_eq!(world.refused, [CloseReason::Version { parent, child }]);
        assert_eq!((world.parent.agreed, world.child.agreed), (None, None));
    }
    let (parent, child) = (Versions { oldest: 1, newest: 3 }, Versions { oldest: 4, newest: 4 });
    let reason = CloseReason::Version { parent, child };
    let text = "no common protocol version: the parent speaks 1 to 3, the child 4; update the older \
                of the two";
    assert_eq!(reason.to_string(), text);
}

fn welcome(version: u32) -> LinkInput {
    let limits = LinkLimits {
        requests_max: 64,
        stream_window_bytes: 1 << 20,
        bulk_window_bytes: 1 << 20,
        lease: Duration::from_secs(3),
    };
    let (name, domains) = ("origin".into(), Vec::new());
    let message = Message::Welcome { version, name, time: WallTime(0), limits, domains };
    LinkInput::Received { link: LINK, message, bytes: 100 }
}

/// A relay took whatever version its parent named, and would have gone on in one that it does not
/// know.
#[test]
fn a_version_that_was_not_offered_is_refused() {
    let open =
        || LinkInput::UpOpened { link: LINK, parent: 0, peer: "origin".into(), in_group: true };
    let named = Versions { oldest: NEXT, newest: NEXT };
    let reason = CloseReason::Version { parent: named, child: TODAY };
    let closed = LinkOutput::Close { link: LINK, reason };

    let mut relay = Relay::new(RelayConfig::default());
    let mut out = Vec::new();
    relay.handle(NOW, RelayInput::Link(open()), &mut out);
    relay.handle(NOW, RelayInput::Link(welcome(NEXT)), &mut out);
    assert!(out.contains(&RelayOutput::Link(closed.clone())), "{out:?}");

    let (mut cache, _) = Cache::new(CacheConfig::new("node", BootId(5), Arc::new(StillClock)));
    let mut out = Vec::new();
    cache.handle(NOW, CacheInput::Link(open()), &mut out);
    cache.handle(NOW, CacheInput::Link(welcome(NEXT)), &mut out);
    assert!(out.contains(&CacheOutput::Link(closed)), "{out:?}");
}
