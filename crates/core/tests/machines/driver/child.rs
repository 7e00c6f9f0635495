//! What a lying child says.

use super::choices::{Choices, DOMAIN, Hints, OTHER, PAGE_BYTES, volume_of};
use larder_core::commit::{Across, CommitRequest, Numbered, PartId};
use larder_core::id::{BootId, CommitId, DomainId, HistoryId, PageNo, RequestId, Stamp, VolumeId};
use larder_core::message::{
    CopyAsk, CopyCursor, CopyPart, Lane, Message, PageAsk, PinId, Role, Versions, VolumeChange,
    VolumeKey, VolumeSpec,
};
use larder_core::rights::{Right, RightsEdit};
use larder_core::time::Instant;

/// Who it says it is.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) name: String,
    pub(super) boot: BootId,
    pub(super) role: Role,
}

/// One of the few that collide.
pub(super) fn somebody(c: &mut Choices<'_>) -> (String, Who) {
    let (peer, name, role) = match c.below(6) {
        0 | 1 => ("alice", "alice/a", Role::Node),
        2 => ("alice", "alice/b", Role::Node),
        3 => ("bob", "bob/a", Role::Node),
        _ => ("relay", "relay", Role::Relay),
    };
    let boot = BootId(1 + c.below(4) as u128);
    (peer.into(), Who { name: name.into(), boot, role })
}

pub(super) fn hello(c: &mut Choices<'_>, who: &Who) -> Message {
    let name = if c.rarely(20) { c.name() } else { who.name.clone() };
    let newest = Versions::SPOKEN.newest;
    let max_version = match c.below(32) {
        0 => c.near(newest.into()) as u32,
        1..=3 => 1 + c.below(newest as usize) as u32,
        _ => newest,
    };
    Message::Hello { min_version: 1, max_version, name, boot: who.boot, role: who.role }
}

/// A part of a copy, from anywhere.
fn copy_ask(c: &mut Choices<'_>, hints: &Hints) -> CopyAsk {
    let part = [CopyPart::Recent, CopyPart::Index, CopyPart::Kept][c.below(3)];
    let page = c.page_set().first().copied().unwrap_or_default();
    let cursor = CopyCursor { until: c.stamp(hints.through), part, stamp: c.stamp(3), page };
    CopyAsk {
        volume: c.volume(),
        history: c.history(hints.history()),
        since: if c.rarely(2) { c.stamp(hints.through) } else { larder_core::id::Stamp::ZERO },
        cursor: c.rarely(2).then_some(cursor),
        pin: c.rarely(2).then(|| PinId(c.below(4) as u128)),
    }
}

fn request(c: &mut Choices<'_>, hints: &mut Hints) -> RequestId {
    hints.request += 1;
    RequestId(c.near(hints.request))
}

pub(super) fn resume(c: &mut Choices<'_>, hints: &mut Hints) -> Message {
    let request = request(c, hints);
    let fresh = c.rarely(3);
    let epochs = if fresh { Vec::new() } else { c.line(&hints.line.clone()) };
    let through = (!fresh).then(|| c.stamp(hints.through));
    Message::Resume { request, domain: c.domain(), epochs, through }
}

pub(super) fn register(c: &mut Choices<'_>, who: &Who) -> Message {
    let vouches = who.role == Role::Relay || c.rarely(10);
    let name = if vouches { c.name() } else { who.name.clone() };
    let life = if vouches { c.boot(who.boot) } else { who.boot };
    let boot = c.boot(who.boot);
    Message::Register { domain: c.domain(), boot, name, life, fresh: !c.rarely(4) }
}

fn numbers(c: &mut Choices<'_>, hints: &Hints) -> Vec<Numbered> {
    let count = c.below(3);
    let mut numbered = || Numbered {
        history: if c.rarely(2) { hints.history() } else { c.history(HistoryId(0)) },
        pages: (c.near(1) as u32).max(1),
    };
    (0..count).map(|_| numbered()).collect()
}

/// A part of a transaction over two domains, and what the other one is; now and then both are made up.
fn across(c: &mut Choices<'_>, hints: &mut Hints, who: &Who) -> (PartId, Box<Across>) {
    if let Some((part, across)) = hints.other.take().filter(|_| !c.rarely(6)) {
        return (part, across);
    }
    let mut part = |domain| PartId { domain, id: c.commit_id(who.boot, hints.sequence) };
    let mut parts = vec![part(DOMAIN), part(OTHER)];
    if c.rarely(8) {
        // Of another origin: the other part is said to that one.
        parts.push(PartId { domain: DomainId(99), id: c.commit_id(who.boot, 1) });
        if c.rarely(2) {
            parts.remove(c.below(2));
        }
    }
    let (first, decides) = (c.below(2), c.below(parts.len()));
    let across = Across::new(parts.clone(), parts[decides].domain).expect("ascending, and several");
    hints.other = Some((parts[1 - first], Box::new(across.clone())));
    (parts[first], Box::new(across))
}

fn commit(c: &mut Choices<'_>, hints: &mut Hints, who: &Who) -> Message {
    let (mut domain, mut id) = (c.domain(), c.commit_id(who.boot, hints.sequence));
    let mut several = None;
    if c.rarely(3) || hints.other.is_some() && c.rarely(2) {
        let (part, across) = across(c, hints, who);
        (domain, id, several) = (part.domain, part.id, Some(across));
        if c.rarely(24) {
            id = CommitId { sequence: c.near(id.sequence), ..id };
        }
    }
    hints.sequence += 1;
    let through = hints.through_of(domain);
    let volume = volume_of(domain);
    if several.is_some() && !c.rarely(3) {
        // One that may be done.
        let commit = CommitRequest {
            id,
            confirmed: 0,
            history: hints.history(),
            base: Stamp(through),
            numbers: Vec::new(),
            reads: Vec::new(),
            writes: vec![c.fitting(volume)],
            across: several,
        };
        return Message::Commit { domain, commit };
    }
    let commit = CommitRequest {
        id,
        confirmed: if c.rarely(4) { c.near(hints.sequence) } else { 0 },
        history: c.history(hints.history()),
        base: c.stamp(through),
        numbers: numbers(c, hints),
        reads: c.reads_in(volume_of(domain)),
        writes: c.writes_in(volume_of(domain)),
        across: several,
    };
    Message::Commit { domain, commit }
}

/// Anything a child may say, and now and then what it may not.
pub(super) fn says(c: &mut Choices<'_>, hints: &mut Hints, who: &Who, now: Instant) -> Message {
    match c.below(34) {
        31 => {
            let edits = c.rights();
            let edit =
                |(who, right): (&str, Right)| RightsEdit { who: who.into(), right: Some(right) };
            let (edits, force) = (edits.entries().map(edit).collect(), c.rarely(2));
            let change = VolumeChange::Rights { edits, force };
            Message::ChangeVolume { request: request(c, hints), volume: c.volume(), change }
        }
        32 if c.rarely(3) => Message::AskRights { request: request(c, hints), volume: c.volume() },
        32 => {
            let asked = says(c, hints, who, now);
            let nested = matches!(asked, Message::For { .. });
            let for_somebody = !nested && asked.is_for_somebody();
            match for_somebody {
                true => Message::For { name: c.name(), message: Box::new(asked) },
                false => asked,
            }
        }
        0 | 1 => resume(c, hints),
        2 | 3 => register(c, who),
        4 => Message::Left { name: c.name() },
        5..=9 => {
            let request = request(c, hints);
            let mut pages = c.pages();
            if let Some(page) = pages.first_mut().filter(|_| c.rarely(16)) {
                page.page = PageNo(0);
            }
            let have = |c: &mut Choices<'_>| c.rarely(3).then(|| c.stamp(2));
            let pages = pages.into_iter().map(|page| PageAsk { page, have: have(c) }).collect();
            Message::Fetch { request, domain: c.domain(), pages, prefetch: c.rarely(4) }
        }
        10 => Message::Evicted { domain: c.domain(), pages: c.page_set() },
        11 => Message::Holding { domain: c.domain(), pages: c.page_set(), done: !c.rarely(3) },
        12 => {
            let boot = c.boot(who.boot);
            let (domain, upto) = (c.domain(), c.near(hints.sequence));
            let mut open = Vec::new();
            if c.rarely(3) {
                open.extend(
                    (0..c.below(4)).map(|_| c.near(upto)).filter(|n| (1..=upto).contains(n)),
                );
                open.sort_unstable();
                open.dedup();
            }
            Message::Confirm { domain, boot, upto, open }
        }
        13 => {
            let (request, volume) = (request(c, hints), c.volume());
            Message::AllocateIds { request, volume, count: c.near(4) }
        }
        14 => {
            let by_id = c.rarely(2);
            let key = if by_id { VolumeKey::Id(c.volume()) } else { VolumeKey::Name("v".into()) };
            Message::OpenVolume { request: request(c, hints), key }
        }
        15 => Message::ListVolumes { request: request(c, hints), after: c.name() },
        16 => {
            let id = VolumeId(7 + c.below(4) as u128);
            let name = ["v", "w", "x", "", "a b"][c.below(5)].into();
            let page_bytes =
                if c.rarely(8) { c.near(PAGE_BYTES.into()) as u32 } else { PAGE_BYTES };
            let domain = c.rarely(2).then(|| c.domain());
            let spec = VolumeSpec { id, name, page_bytes, domain };
            Message::CreateVolume { request: request(c, hints), spec }
        }
        28 if c.rarely(8) => {
            Message::DeleteVolume { request: request(c, hints), volume: c.volume() }
        }
        33 => Message::CopyPages { request: request(c, hints), ask: copy_ask(c, hints) },
        29 => {
            let change = VolumeChange::Quota(c.rarely(2).then(|| c.near(4096)));
            Message::ChangeVolume { request: request(c, hints), volume: c.volume(), change }
        }
        17 => Message::Beat { domain: c.domain(), sent: Instant(c.near(now.0)) },
        18 => Message::Refresh { domain: c.domain(), sent: Instant(c.near(now.0)) },
        19 | 20 => {
            let lane = if c.rarely(2) { Lane::Bulk } else { Lane::Stream };
            Message::Credit { lane, bytes: c.near(1 << 16) as u32 }
        }
        21 if c.rarely(4) => Message::Goodbye { reason: c.reason() },
        21 if c.rarely(4) => hello(c, who),
        21 if c.rarely(4) => {
            let boot = c.boot(who.boot);
            Message::Registered { domain: c.domain(), boot }
        }
        22 => Message::KeepAlive,
        _ => commit(c, hints, who),
    }
}
