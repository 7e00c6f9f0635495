//! The links down of a parent: liars, and one child that is honest.

use super::child::{self, Who};
use super::choices::{Choices, DOMAIN, Hints, OTHER};
use super::{assert_carried, carried, is_upward};
use larder_core::id::{BootId, LinkId, RequestId, Stamp};
use larder_core::machine::{LinkInput, LinkOutput};
use larder_core::message::{Lane, Message, Role, Versions};
use larder_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Most links of liars.
const LINKS_MAX: usize = 5;
/// The honest child's link.
pub(super) const HONEST: LinkId = LinkId(1);
/// The honest child's boot: nobody guesses it.
const HONEST_BOOT: BootId = BootId(0x5af3_9d11_0c77_42e8_9b60_1d2f_8e34_a7c5);

struct Child {
    who: Who,
    hints: Hints,
    /// Numbers of its requests.
    asked: BTreeSet<RequestId>,
}

/// Links and what was said on them.
pub(super) struct Children {
    links: BTreeMap<LinkId, Child>,
    next: u64,
    /// Bytes of lanes that the honest child took and did not give back.
    taken: [u32; 2],
    /// Where the honest child's stream is.
    honest_through: Option<Stamp>,
    through: u64,
    /// Liars join a group as they come.
    pub(super) joins: bool,
}

impl Children {
    /// `through`: where the domain is, for the lies.
    pub(super) fn new(through: u64) -> Self {
        let (links, taken) = (BTreeMap::new(), [0, 0]);
        Self { links, next: 2, taken, honest_through: None, through, joins: false }
    }

    fn add(&mut self, link: LinkId, peer: &str, who: Who, in_group: bool) -> LinkInput {
        let role = who.role;
        let child = Child { who, hints: Hints::new(self.through), asked: BTreeSet::new() };
        self.links.insert(link, child);
        LinkInput::DownOpened { link, peer: peer.into(), role, in_group }
    }

    /// The honest child comes.
    pub(super) fn honest(&mut self) -> Vec<LinkInput> {
        let who = Who { name: "eve/x".into(), boot: HONEST_BOOT, role: Role::Node };
        let (name, boot, role) = (who.name.clone(), who.boot, who.role);
        let mut inputs = vec![self.add(HONEST, "eve", who, true)];
        let max_version = Versions::SPOKEN.newest;
        let messages = [
            Message::Hello { min_version: 1, max_version, name: name.clone(), boot, role },
            Message::Resume {
                request: RequestId(1),
                domain: DOMAIN,
                epochs: Vec::new(),
                through: None,
            },
            Message::Register { domain: DOMAIN, boot, name, life: boot, fresh: true },
        ];
        inputs.extend(messages.into_iter().filter_map(|message| self.say(HONEST, &message)));
        inputs
    }

    /// The honest child is still there, and has taken in what it got.
    pub(super) fn honest_beats(&mut self, now: Instant) -> Vec<LinkInput> {
        if !self.links.contains_key(&HONEST) {
            return Vec::new();
        }
        let mut messages = vec![Message::Beat { domain: DOMAIN, sent: now }];
        for (lane, bytes) in [(Lane::Stream, self.taken[0]), (Lane::Bulk, self.taken[1])] {
            messages.push(Message::Credit { lane, bytes });
        }
        self.taken = [0, 0];
        messages.into_iter().filter_map(|message| self.say(HONEST, &message)).collect()
    }

    fn say(&mut self, link: LinkId, message: &Message) -> Option<LinkInput> {
        let (message, bytes) = carried(message)?;
        if let Some(child) = self.links.get_mut(&link) {
            child.asked.extend(request_of(&message));
        }
        Some(LinkInput::Received { link, message, bytes })
    }

    /// Something that a liar does.
    pub(super) fn act(&mut self, c: &mut Choices<'_>, now: Instant) -> Vec<LinkInput> {
        let liars: Vec<LinkId> =
            self.links.keys().copied().filter(|link| *link != HONEST).collect();
        let Some(link) = c.pick(&liars).filter(|_| liars.len() >= LINKS_MAX || !c.rarely(24))
        else {
            return self.open(c);
        };
        if c.rarely(60) {
            self.links.remove(&link);
            return vec![LinkInput::Closed { link, reason: c.rarely(2).then(|| c.reason()) }];
        }
        let Some(child) = self.links.get_mut(&link) else { return Vec::new() };
        let message = child::says(c, &mut child.hints, &child.who, now);
        self.say(link, &message).into_iter().collect()
    }

    /// Something that a liar says as a member of a group.
    pub(super) fn member_says(&mut self, c: &mut Choices<'_>) -> Option<LinkInput> {
        let liars: Vec<LinkId> =
            self.links.keys().copied().filter(|link| *link != HONEST).collect();
        let link = c.pick(&liars)?;
        let message = super::neighbours::member_says(c);
        self.say(link, &message)
    }

    /// A liar comes, says hello and where it was: else nothing it says gets far.
    fn open(&mut self, c: &mut Choices<'_>) -> Vec<LinkInput> {
        if self.links.len() > LINKS_MAX {
            return Vec::new();
        }
        let link = LinkId(self.next);
        self.next += 1;
        let (peer, who) = child::somebody(c);
        let in_group = !c.rarely(24);
        let mut inputs = vec![self.add(link, &peer, who.clone(), in_group)];
        let mut hints = Hints::new(self.through);
        let (name, boot) = (who.name.clone(), who.boot);
        let fresh = !c.rarely(8);
        let mut messages = vec![child::hello(c, &who), child::resume(c, &mut hints)];
        for domain in [DOMAIN, OTHER] {
            let (name, life) = (name.clone(), boot);
            messages.push(Message::Register { domain, boot, name, life, fresh });
        }
        if self.joins && !c.rarely(8) {
            messages.extend(super::neighbours::joins());
        }
        if let Some(child) = self.links.get_mut(&link) {
            child.hints = hints;
        }
        inputs.extend(messages.into_iter().filter_map(|message| self.say(link, &message)));
        inputs
    }

    /// What a parent tells a link down; the bytes of the stream and pages that the honest child
    /// gets are given back.
    pub(super) fn told(&mut self, output: &LinkOutput) {
        match output {
            LinkOutput::Close { link, .. } => {
                assert!(self.links.remove(link).is_some(), "a link is closed that is not open");
            }
            LinkOutput::Send { link, message } => {
                assert_carried(message);
                assert!(!is_upward(message), "a parent says what a child says: {message:?}");
                let Some(child) = self.links.get_mut(link) else {
                    panic!("said to a link that is closed: {message:?}");
                };
                if let Some(request) = request_of(message) {
                    assert!(child.asked.contains(&request), "nobody asked for {message:?}");
                }
                if *link == HONEST {
                    self.honest_hears(message);
                } else {
                    liar_hears(&mut child.hints, message);
                }
            }
        }
    }

    fn honest_hears(&mut self, message: &Message) {
        let bytes = u32::try_from(larder_core::wire::encoded_len(message)).unwrap_or(u32::MAX);
        match message.lane() {
            Lane::Control => {}
            Lane::Stream => self.taken[0] = self.taken[0].saturating_add(bytes),
            Lane::Bulk => self.taken[1] = self.taken[1].saturating_add(bytes),
        }
        match message {
            Message::Committed { id, .. } | Message::CommitDeferred { id, .. } => {
                panic!("the honest child sent no commit {id:?}");
            }
            Message::Registered { boot, .. } | Message::Unregistered { boot, .. } => {
                assert_eq!(*boot, HONEST_BOOT, "told of another's boot");
            }
            Message::Resumed { through, done: true, .. } => self.honest_through = Some(*through),
            Message::Advance { from, through, .. } => {
                assert_eq!(self.honest_through, Some(*from), "a stream with a gap");
                self.honest_through = Some(*through);
            }
            _ => {}
        }
    }

    /// Whether the honest child is there.
    pub(super) fn is_honest_there(&self) -> bool {
        self.links.contains_key(&HONEST)
    }

    /// Whether it is a link down.
    pub(super) fn holds(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }
}

fn liar_hears(hints: &mut Hints, message: &Message) {
    match message {
        Message::Resumed { domain: OTHER, through, .. } => hints.other_through = through.0,
        Message::Resumed { through, epochs, .. } => {
            hints.through = through.0;
            hints.line.clone_from(epochs);
        }
        Message::Advance { domain: OTHER, through, .. } => hints.other_through = through.0,
        Message::Advance { through, .. } => hints.through = through.0,
        Message::History { epochs, .. } => hints.line.clone_from(epochs),
        _ => {}
    }
}

/// The number of a request, or of what answers it.
fn request_of(message: &Message) -> Option<RequestId> {
    match message {
        Message::Resume { request, .. }
        | Message::Fetch { request, .. }
        | Message::AllocateIds { request, .. }
        | Message::OpenVolume { request, .. }
        | Message::ListVolumes { request, .. }
        | Message::CreateVolume { request, .. }
        | Message::ChangeVolume { request, .. }
        | Message::DeleteVolume { request, .. }
        | Message::VolumeDeleted { request, .. }
        | Message::AskRights { request, .. }
        | Message::Rights { request, .. }
        | Message::CopyPages { request, .. }
        | Message::Copied { request, .. }
        | Message::Ids { request, .. }
        | Message::Volume { request, .. }
        | Message::Volumes { request, .. }
        | Message::Failed { request, .. }
        | Message::Resumed { request, .. }
        | Message::Pages { request, .. } => Some(*request),
        Message::For { message, .. } => request_of(message),
        _ => None,
    }
}
