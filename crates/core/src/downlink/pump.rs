//! Sending a domain's stream down a link, as far as its credits reach.

use super::follower::{Answer, Follower, Phase, Walk};
use super::registration::Registration;
use super::rights::{self, Reader};
use super::ring::{Recent, change_bytes};
use super::{DownlinkConfig, Downlinks, LinkSink, Ring, Timer, link};
use crate::commit::{Change, Write};
use crate::group::GroupMessage;
use crate::group::updates::bytes_of;
use crate::id::{BootId, DomainId, LinkId, PageId, Stamp, VolumeId};
use crate::machine::{Fault, LinkOutput};
use crate::message::{Echo, Epoch, Message, PAGES_PER_MESSAGE_MAX, Role};
use crate::rights::{Effective, Right};
use crate::time::{Instant, WallTime};

/// Part of a walk over changed pages.
#[derive(Debug)]
pub(crate) enum Part {
    /// At most `PAGES_PER_MESSAGE_MAX` pages, and whether they were the last.
    Pages(Vec<PageId>, bool),
    /// To be had later: the walk's owner pumps the link again.
    Wait,
}

/// A domain as its links' streams need it.
pub(crate) trait Feed {
    /// Its name.
    fn domain(&self) -> DomainId;
    /// Its recent commits, up to what may be told (rule 14: what is durable).
    fn ring(&self) -> &Ring;
    /// Its histories, and a number that rises whenever they change.
    fn epochs(&self) -> (&[Epoch], u64);
    /// The origin's wall clock now, as far as known.
    fn wall(&self, now: Instant) -> WallTime;
    /// What a change's commit wrote, where members of a group are told of it (redirector).
    fn writes(&self, _change: &Change) -> Option<&[Write]> {
        None
    }
    /// Goes on with an answer's walk.
    fn walk(&mut self, link: LinkId, answer: &mut Answer) -> Part;
    /// The cursor fell off the ring: answers it (origin), or leaves it fallen (relay).
    fn fallen(&mut self, follower: &mut Follower);
}

/// What one look at a stream led to.
enum Step {
    /// Something was sent, or changed: look again.
    Again,
    /// A resume that counts as a request was answered: look again.
    Answered,
    /// Nothing to do until something happens.
    Idle,
    /// Nothing to do until the quiet interval is over.
    Quiet(Instant),
}

impl Downlinks {
    /// Sends what there is and may be sent. Says whether the cursor fell off the ring just now
    /// and the parent must ask upward.
    pub(crate) fn pump(
        &mut self,
        now: Instant,
        link: LinkId,
        feed: &mut dyn Feed,
        out: &mut dyn LinkSink,
    ) -> bool {
        let domain = feed.domain();
        let mut credit = None;
        loop {
            let Some(entry) = self.links.get_mut(&link) else {
                return false;
            };
            let knows = entry.knows_rights();
            let role = entry.named().map_or(Role::Node, |child| child.role);
            let member = entry.named().filter(|_| entry.member).map(|child| child.boot);
            let Some(follower) = entry.followers.get_mut(&domain) else {
                return false;
            };
            if entry.stream_credit <= 0 {
                crate::probe::probe("stream-credit-exhausted");
                if credit.is_some_and(|before| before > 0) {
                    entry.streamed_last = Some(domain);
                }
                return false;
            }
            credit = Some(entry.stream_credit);
            // Before anything of the stream: what is withheld from here on is not missed.
            if let Some(volume) = follower.owed.pop_first() {
                follower.told.insert(volume);
                follower.hopes.remove(&volume);
                let message = rights::told(&self.restricted, domain, volume, (&entry.peer, role));
                if follower.lost.remove(&volume) && !rights::is_lost(&message) {
                    // What changed of it meanwhile was not told, perhaps: a relay does not hear it.
                    let rights = Effective::same(Right::None);
                    let message = Message::VolumeRights { domain, volume, rights };
                    entry.stream_credit -= link::cost(&message);
                    out.link(LinkOutput::Send { link, message });
                }
                if !rights::is_lost(&message) {
                    follower.may_read_again(volume);
                }
                entry.stream_credit -= link::cost(&message);
                out.link(LinkOutput::Send { link, message });
                continue;
            }
            if matches!(follower.phase, Phase::Fallen) {
                return false;
            }
            let mut message = None;
            let mut reader =
                rights::reader(&self.restricted, &mut entry.resolved, &entry.peer, knows);
            let step = match follower.phase {
                Phase::Waiting | Phase::Fallen => Step::Idle,
                Phase::Answering(..) => {
                    answer_part(now, link, follower, feed, (&mut reader, &mut message))
                }
                Phase::Streaming => {
                    let to = (member, &mut reader, &mut message);
                    stream(&self.config, now, follower, feed, to)
                }
            };
            let fell = matches!(follower.phase, Phase::Fallen);
            let untold = reader.untold(follower);
            for volume in untold.into_iter().filter(|_| !self.faults.has(Fault::RevokedUntold)) {
                let message = rights::told(&self.restricted, domain, volume, (&entry.peer, role));
                entry.stream_credit -= link::cost(&message);
                out.link(LinkOutput::Send { link, message });
            }
            if let Some(message) = message {
                entry.stream_credit -= link::cost(&message);
                out.link(LinkOutput::Send { link, message });
            }
            match step {
                Step::Again if fell => return true,
                Step::Again => {}
                Step::Answered => entry.unanswered -= 1,
                Step::Idle => return false,
                Step::Quiet(at) => {
                    if !entry.quiet_armed {
                        entry.quiet_armed = true;
                        self.timers.insert((at, link, Timer::Quiet));
                    }
                    return false;
                }
            }
        }
    }
}

/// Sends the next part of a resume's answer.
fn answer_part(
    now: Instant,
    link: LinkId,
    follower: &mut Follower,
    feed: &mut dyn Feed,
    (reader, message): (&mut Reader<'_>, &mut Option<Message>),
) -> Step {
    let Phase::Answering(mut answer) = std::mem::replace(&mut follower.phase, Phase::Waiting)
    else {
        return Step::Idle;
    };
    let part = match &mut answer.walk {
        _ if !follower.regained.is_empty() => {
            let some = std::mem::take(&mut follower.regained).into_iter();
            let mut volumes: Vec<VolumeId> = some.collect();
            let rest = volumes.split_off(volumes.len().min(PAGES_PER_MESSAGE_MAX));
            follower.regained = rest.into_iter().collect();
            Part::Pages(volumes.into_iter().map(PageId::of_volume).collect(), false)
        }
        Walk::Registered(after) => {
            let Some(part) = registered_part(&follower.registration, after) else {
                crate::probe::probe("registered-walk-forgotten");
                // It was forgotten meanwhile: the parent is asked once more, for what changed since
                // what the child was told, not since where this answer would have led (bug 158).
                follower.fall_back(answer.from());
                return Step::Again;
            };
            part
        }
        _ => feed.walk(link, &mut answer),
    };
    let (mut stale, done) = match part {
        Part::Wait => {
            follower.phase = Phase::Answering(answer);
            return Step::Idle;
        }
        Part::Pages(stale, done) => (stale, done),
    };
    if answer.filtered {
        stale.retain(|page| follower.registration.contains(*page));
    }
    stale.retain(|page| reader.may_read(page.volume));
    if stale.is_empty() && !done {
        follower.phase = Phase::Answering(answer);
        return Step::Again;
    }
    let (epochs, version) = feed.epochs();
    follower.epochs_told = version;
    *message = Some(Message::Resumed {
        request: answer.request,
        domain: feed.domain(),
        epochs: epochs.to_vec(),
        answer: answer.answer.clone(),
        stale,
        through: follower.cursor,
        time: feed.wall(now),
        done,
    });
    if !done {
        follower.phase = Phase::Answering(answer);
        return Step::Again;
    }
    follower.phase = Phase::Streaming;
    if answer.counted { Step::Answered } else { Step::Again }
}

/// Part of all that a child is registered for; none: nobody knows what that is.
fn registered_part(registration: &Registration, after: &mut PageId) -> Option<Part> {
    let registered = registration.pages()?.after(*after);
    let pages: Vec<PageId> = registered.take(PAGES_PER_MESSAGE_MAX).collect();
    *after = pages.last().copied().unwrap_or(*after);
    let done = pages.len() < PAGES_PER_MESSAGE_MAX;
    Some(Part::Pages(pages, done))
}

/// Sends the stream's next message.
fn stream(
    config: &DownlinkConfig,
    now: Instant,
    follower: &mut Follower,
    feed: &mut dyn Feed,
    (member, reader, message): (Option<BootId>, &mut Reader<'_>, &mut Option<Message>),
) -> Step {
    let (epochs, version) = feed.epochs();
    if follower.epochs_told != version {
        follower.epochs_told = version;
        *message = Some(Message::History { domain: feed.domain(), epochs: epochs.to_vec() });
        return Step::Again;
    }
    if let Some(answer) = follower.take_answer() {
        follower.answer(answer, follower.cursor);
        return Step::Again;
    }
    if follower.cursor < feed.ring().tail() {
        // What was known when a beat came has all been told: a stream that falls again and again must
        // not keep that back, or the child's lease lapses for as long (bug 137).
        if let Some(echo) = follower.take_echo(follower.cursor) {
            crate::probe::probe("echo-before-a-fall");
            *message = Some(still(feed, now, follower.cursor, echo));
            return Step::Again;
        }
        follower.phase = Phase::Fallen;
        feed.fallen(follower);
        return Step::Again;
    }
    if let Some(member) = member {
        *message = update(config, follower, feed, (member, reader));
        if message.is_some() {
            return Step::Again;
        }
    }
    advance(config, now, follower, feed, (member, reader, message))
}

/// How far the stream may go now: a list that tells all up to a stamp must not be overtaken by it.
fn head_for(follower: &Follower, ring: &Ring) -> Stamp {
    let lists = follower.asked.iter().filter_map(|answer| answer.at);
    let head = lists.min().map_or(ring.head(), |at| at.min(ring.head()));
    // A planted fault may have put the cursor ahead of the ring.
    head.max(follower.cursor)
}

/// What the next change wrote that others than the member made, as far as it is registered for it. At most about an
/// advance's bytes go ahead of the advance.
fn update(
    config: &DownlinkConfig,
    follower: &mut Follower,
    feed: &dyn Feed,
    (member, reader): (BootId, &mut Reader<'_>),
) -> Option<Message> {
    let ring = feed.ring();
    let head = head_for(follower, ring);
    for recent in ring.after(follower.scanned.max(follower.updated)) {
        let full = follower.updates_bytes >= config.advance_bytes;
        if recent.stamp() > head || full {
            break;
        }
        follower.updated = recent.stamp();
        let Recent::Change(change) = recent else { continue };
        let writes = feed.writes(change).filter(|_| change.id.boot != member);
        let concerns = |write: &&Write| {
            follower.registration.contains(write.page) && reader.may_read(write.page.volume)
        };
        let writes: Vec<Write> =
            writes.unwrap_or_default().iter().filter(concerns).cloned().collect();
        if !writes.is_empty() {
            follower.updates_bytes += bytes_of(&writes);
            let (domain, &Change { stamp, id, .. }) = (feed.domain(), change);
            return Some(Message::Group(GroupMessage::Update { domain, id, stamp, writes }));
        }
    }
    None
}

/// Tells nothing but that a beat has been handled.
fn still(feed: &dyn Feed, now: Instant, at: Stamp, echo: Echo) -> Message {
    Message::Advance {
        domain: feed.domain(),
        from: at,
        through: at,
        time: feed.wall(now),
        changes: Vec::new(),
        stale: Vec::new(),
        echo: Some(echo),
    }
}

/// Raises the child's valid-through, if that is due.
fn advance(
    config: &DownlinkConfig,
    now: Instant,
    follower: &mut Follower,
    feed: &dyn Feed,
    (member, reader, message): (Option<BootId>, &mut Reader<'_>, &mut Option<Message>),
) -> Step {
    let ring = feed.ring();
    let head = head_for(follower, ring);
    if follower.cursor == head && !follower.owes_echo(head) {
        return Step::Idle;
    }
    let mut changes = Vec::new();
    let mut stale = Vec::new();
    let mut bytes = 0;
    let mut through = head;
    let mut last = follower.scanned;
    for recent in ring.after(follower.scanned) {
        if recent.stamp() > head {
            break;
        }
        // Cut between stamps only: half a stamp told must not raise valid-through to it. What a member is told
        // of later comes with its writes.
        let full = bytes >= config.advance_bytes;
        let later = member.is_some() && recent.stamp() > follower.updated;
        if (full || later) && recent.stamp() > last {
            crate::probe::probe("advance-cut");
            through = last;
            break;
        }
        last = recent.stamp();
        match recent {
            Recent::Change(change) => {
                if let Some(change) = filtered(change, &follower.registration, reader) {
                    bytes += change_bytes(&change);
                    changes.push(change);
                }
            }
            Recent::Stale(_, pages) => {
                let before = stale.len();
                let held = pages.iter().filter(|page| follower.registration.contains(**page));
                stale.extend(held.filter(|page| reader.may_read(page.volume)));
                bytes += (stale.len() - before) * size_of::<PageId>();
            }
        }
    }
    follower.scanned = through;
    follower.updates_bytes = 0;
    let carries = !changes.is_empty() || !stale.is_empty() || follower.owes_echo(through);
    let quiet_until = follower.sent_at.after(config.quiet_interval);
    if !carries && follower.hastened_to <= follower.cursor && quiet_until > now {
        return Step::Quiet(quiet_until);
    }
    *message = Some(Message::Advance {
        domain: feed.domain(),
        from: follower.cursor,
        through,
        time: feed.wall(now),
        changes,
        stale,
        echo: follower.take_echo(through),
    });
    follower.cursor = through;
    follower.sent_at = now;
    Step::Again
}

/// The part of a change that concerns the child.
fn filtered(
    change: &Change,
    registration: &Registration,
    reader: &mut Reader<'_>,
) -> Option<Change> {
    let registered = change.pages.iter().filter(|page| registration.contains(page.page));
    let mut pages = registered.filter(|page| reader.may_read(page.page.volume)).peekable();
    pages.peek()?;
    Some(Change { stamp: change.stamp, id: change.id, pages: pages.cloned().collect() })
}
