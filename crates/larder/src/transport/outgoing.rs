//! What waits to be sent on a link.

use crate::clock::now;
use crate::metrics::Side;
use crate::planted::{RuntimeFault, planted};
use larder_core::across::{Between, OriginMessage};
use larder_core::group::{GroupMessage, Lack, Member};
use larder_core::message::{CloseReason, CopyAnswer, Message, VolumeChange, VolumeKey, VolumeSpec};
use larder_core::rights::{Right, Rights};
use larder_core::time::Instant;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The machine's end of a link. Never waits: what the peer does not take in time ends the link.
#[derive(Clone)]
pub(crate) struct LinkSender {
    shared: Arc<Shared>,
}

/// The writer's end.
pub(super) struct Outgoing {
    shared: Arc<Shared>,
}

struct Shared {
    side: Side,
    /// Of the peer.
    address: String,
    opened: Instant,
    queue: Mutex<Queue>,
    wake: Notify,
    bytes_max: usize,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// Of the messages here, by [`weight`].
    waiting: usize,
    /// Of what the writer took and has not written.
    taken: usize,
    closing: Option<CloseReason>,
}

/// What the writer found to do.
pub(super) enum Work {
    /// These are to be sent.
    Send,
    /// Send `Goodbye` with this reason, if it can be done at once, and end.
    Close(CloseReason),
}

/// A queue towards a peer at `address` that takes `bytes_max` bytes, by estimate.
pub(super) fn outgoing(side: Side, bytes_max: usize, address: &str) -> (LinkSender, Outgoing) {
    let shared = Arc::new(Shared {
        side,
        address: address.to_owned(),
        opened: now(),
        queue: Mutex::default(),
        wake: Notify::new(),
        bytes_max,
    });
    (LinkSender { shared: shared.clone() }, Outgoing { shared })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A queue is whole between any two of its changes.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkSender {
    /// Queues a message. Past the bound the link is closed instead: a slow peer costs its parent
    /// this much memory and no more. True: the writer sleeps, and is to be woken ([`Self::wake`])
    /// when all that is to be sent now is queued, so that it goes out in one write.
    #[must_use]
    pub(crate) fn queue(&self, message: Message) -> bool {
        let mut queue = self.shared.lock();
        if queue.closing.is_some() {
            return false;
        }
        // Whoever queued the first of what lies there wakes the writer.
        let first = queue.messages.is_empty();
        let waiting = queue.waiting + queue.taken;
        let message = match self.shared.side {
            Side::Neighbour if waiting + weight(&message) > self.shared.bytes_max / 2 => {
                not_now(message)
            }
            // Nothing waits for it, and it is said again.
            Side::Peer
                if matches!(message, Message::Origin(OriginMessage::Says { .. }))
                    && waiting + weight(&message) > self.shared.bytes_max / 2 =>
            {
                return false;
            }
            _ => message,
        };
        queue.waiting += weight(&message);
        let bytes = queue.waiting + queue.taken;
        if bytes > self.shared.bytes_max && planted(RuntimeFault::QueueDrops) {
            return false;
        }
        if bytes > self.shared.bytes_max {
            queue.messages.clear();
            queue.waiting = 0;
            queue.closing = Some(CloseReason::Limit(format!("{bytes} bytes wait to be sent")));
            return true;
        }
        queue.messages.push_back(message);
        first
    }

    /// Wakes the writer.
    pub(crate) fn wake(&self) {
        self.shared.wake.notify_one();
    }

    /// Why the link is being ended from here, if it is.
    pub(super) fn closing(&self) -> Option<CloseReason> {
        self.shared.lock().closing.clone()
    }

    /// Where the peer is.
    pub(crate) fn address(&self) -> &str {
        &self.shared.address
    }

    /// When the link was opened.
    pub(crate) fn opened(&self) -> Instant {
        self.shared.opened
    }

    /// Bytes that wait for the peer to take them, by estimate.
    pub(crate) fn queued_bytes(&self) -> usize {
        let queue = self.shared.lock();
        queue.waiting + queue.taken
    }

    /// Says goodbye if that can be done at once, and ends the link. What is queued and not yet on
    /// its way is dropped.
    pub(crate) fn close(&self, reason: CloseReason) {
        let mut queue = self.shared.lock();
        queue.messages.clear();
        queue.waiting = 0;
        queue.closing.get_or_insert(reason);
        drop(queue);
        self.wake();
    }
}

impl Outgoing {
    /// Waits until there is something to do, and moves what is queued to `into`.
    pub(super) async fn wait(&self, into: &mut Vec<Message>) -> Work {
        loop {
            if let Some(work) = self.poll(into) {
                return work;
            }
            // A permit is kept when `notify_one` comes between the look and the wait.
            self.shared.wake.notified().await;
        }
    }

    /// The same without waiting; none: nothing to do.
    pub(super) fn poll(&self, into: &mut Vec<Message>) -> Option<Work> {
        let mut queue = self.shared.lock();
        if let Some(reason) = &queue.closing {
            return Some(Work::Close(reason.clone()));
        }
        if queue.messages.is_empty() {
            return None;
        }
        into.extend(queue.messages.drain(..));
        queue.taken += std::mem::take(&mut queue.waiting);
        Some(Work::Send)
    }

    /// So many bytes are left to be written of all that was taken. To be told after every write:
    /// a link that is never idle must not look like one whose peer takes nothing.
    pub(super) fn left(&self, bytes: usize) {
        self.shared.lock().taken = bytes;
    }
}

/// What a neighbour is told in the place of pages for which there is no room: it gets them from above, and
/// waits for nobody. All else is said as it is.
fn not_now(message: Message) -> Message {
    let Message::Pages { request, domain, pages } = message else { return message };
    let pages = pages.into_iter().map(|answer| answer.page).collect();
    Message::Group(GroupMessage::Lacks { request, domain, pages, why: Lack::NotNow })
}

fn rights_bytes(rights: &Rights) -> usize {
    rights.entries().map(|(who, _)| size_of::<(String, Right)>() + who.len()).sum()
}

/// About how many bytes a message keeps in memory: for the bound only. Whatever a peer can make
/// long counts.
fn weight(message: &Message) -> usize {
    const SMALL: usize = 128;
    fn list<T>(items: &[T]) -> usize {
        size_of_val(items)
    }
    SMALL
        + match message {
            Message::Pages { pages, .. }
            | Message::Copied { answer: CopyAnswer { pages, .. }, .. } => pages
                .iter()
                .map(|answer| {
                    let image = answer.body.image().map_or(0, |image| image.len());
                    SMALL + image + size_of_val(answer.body.holes())
                })
                .sum(),
            Message::Commit { commit, .. } => {
                let writes = commit.writes.iter().map(|w| SMALL + w.op.payload_bytes());
                writes.sum::<usize>() + list(&commit.reads) + list(&commit.numbers)
            }
            Message::Advance { changes, stale, .. } => {
                let pages = changes.iter().flat_map(|change| &change.pages);
                let touched: usize =
                    pages.map(|page| size_of_val(page) + list(&page.touched)).sum();
                touched + list(changes) + list(stale)
            }
            Message::Resumed { stale, epochs, .. } => list(stale) + list(epochs),
            Message::Resume { epochs, .. } | Message::History { epochs, .. } => list(epochs),
            Message::Evicted { pages, .. } | Message::Holding { pages, .. } => list(pages),
            Message::Fetch { pages, .. } => list(pages),
            Message::Failed { pages, error, .. } => list(pages) + error.to_string().len(),
            Message::CommitDeferred { error, .. } => error.to_string().len(),
            Message::Confirm { open, .. } => list(open),
            Message::Goodbye { reason } => reason.to_string().len(),
            Message::Welcome { name, domains, .. } => {
                let epochs: usize = domains.iter().map(|domain| list(&domain.epochs)).sum();
                name.len() + list(domains) + epochs
            }
            Message::Volumes { volumes, .. } => {
                let names: usize = volumes.iter().map(|info| info.name.len()).sum();
                list(volumes) + names
            }
            Message::Volume { info, .. } => info.name.len(),
            Message::Rights { rights, access, .. } => {
                rights_bytes(rights) + access.admins.iter().map(String::len).sum::<usize>()
            }
            Message::VolumeRights { rights, .. } => rights_bytes(rights.list()),
            Message::For { name, message } => name.len() + weight(message),
            Message::Group(message) => group_weight(message),
            Message::Origin(message) => origin_weight(message),
            Message::ChangeVolume { change: VolumeChange::Rights { edits, .. }, .. } => {
                list(edits) + edits.iter().map(|edit| edit.who.len()).sum::<usize>()
            }
            Message::Hello { name, .. }
            | Message::Register { name, .. }
            | Message::Left { name }
            | Message::ListVolumes { after: name, .. }
            | Message::CreateVolume { spec: VolumeSpec { name, .. }, .. }
            | Message::OpenVolume { key: VolumeKey::Name(name), .. } => name.len(),
            Message::KeepAlive
            | Message::AllocateIds { .. }
            | Message::ChangeVolume { .. }
            | Message::DeleteVolume { .. }
            | Message::VolumeDeleted { .. }
            | Message::AskRights { .. }
            | Message::CopyPages { .. }
            | Message::OpenVolume { key: VolumeKey::Id(_), .. }
            | Message::Beat { .. }
            | Message::Refresh { .. }
            | Message::Credit { .. }
            | Message::Registered { .. }
            | Message::Unregistered { .. }
            | Message::Committed { .. }
            | Message::Ids { .. } => 0,
        }
}

fn origin_weight(message: &OriginMessage) -> usize {
    match message {
        OriginMessage::Greets { name, .. } => name.len(),
        OriginMessage::Serves { domains } => {
            let lines = domains.iter().map(|info| size_of_val(info.epochs.as_slice()));
            size_of_val(domains.as_slice()) + lines.sum::<usize>()
        }
        OriginMessage::Says { between: Between::Arrived { name, .. }, .. } => name.len(),
        // What it says of a refusal is short.
        OriginMessage::Says { .. } => 256,
    }
}

fn group_weight(message: &GroupMessage) -> usize {
    let member = |one: &Member| size_of::<Member>() + one.name.len() + one.address.len();
    match message {
        GroupMessage::Join { address: text } | GroupMessage::Peer { name: text, .. } => text.len(),
        GroupMessage::Reach { members } => size_of_val(members.as_slice()),
        GroupMessage::Members { members } => members.iter().map(member).sum(),
        GroupMessage::Update { writes, .. } => {
            let payload = writes.iter().map(|write| write.op.payload_bytes());
            size_of_val(writes.as_slice()) + payload.sum::<usize>()
        }
        GroupMessage::Acknowledged { .. } => 0,
        GroupMessage::Helped { pages, .. }
        | GroupMessage::Complete { pages, .. }
        | GroupMessage::Pointed { pages, .. }
        | GroupMessage::Help { pages, .. }
        | GroupMessage::Lacks { pages, .. } => size_of_val(pages.as_slice()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use larder_core::id::{DomainId, PageId, RequestId, Stamp};
    use larder_core::message::{PageAnswer, PageBody, RequestError};

    fn pages(bytes: usize) -> Message {
        let body = PageBody::Data(Bytes::from(vec![0; bytes]));
        let answer =
            PageAnswer { page: PageId::default(), version: Stamp(1), as_of: Stamp(1), body };
        Message::Pages { request: RequestId(1), domain: DomainId(1), pages: vec![answer] }
    }

    #[test]
    fn a_peer_that_lets_too_much_lie_is_closed_and_its_queue_given_up() {
        let (sender, outgoing) = outgoing(Side::Down, 10_000, "here");
        let mut taken = Vec::new();
        let _ = sender.queue(pages(4000));
        assert!(matches!(outgoing.poll(&mut taken), Some(Work::Send)));
        // Taken but not written still counts: it lies in the writer's lanes.
        let _ = sender.queue(pages(4000));
        let _ = sender.queue(pages(4000));
        let work = outgoing.poll(&mut taken);
        assert!(matches!(work, Some(Work::Close(CloseReason::Limit(_)))));
        assert_eq!(taken.len(), 1);
    }

    /// What was written was only taken off the count when the writer's lanes had run empty. A
    /// parent that always had another page to send to a child, which took them all, cut the child
    /// off after `link.queue` bytes in all.
    #[test]
    fn a_link_that_is_never_idle_is_bounded_by_what_waits_not_by_what_it_ever_sent() {
        let (sender, outgoing) = outgoing(Side::Down, 10_000, "here");
        let mut taken = Vec::new();
        for _ in 0..100 {
            let _ = sender.queue(pages(4000));
            assert!(matches!(outgoing.poll(&mut taken), Some(Work::Send)));
            // Most of it is written, and the next message comes before the rest is.
            outgoing.left(1000);
        }
        let _ = sender.queue(pages(4000));
        assert!(matches!(outgoing.poll(&mut taken), Some(Work::Send)));
        // And a peer that stops taking is closed as before.
        let _ = sender.queue(pages(4000));
        let _ = sender.queue(pages(4000));
        assert!(matches!(outgoing.poll(&mut taken), Some(Work::Close(CloseReason::Limit(_)))));
    }

    /// A helper's machine never waits for a slow neighbour, and the neighbour need not wait for it: pages that
    /// find no room are said to be had elsewhere. Who takes not even that is closed.
    #[test]
    fn a_neighbour_that_takes_nothing_is_told_so_and_closed_in_the_end() {
        let (sender, outgoing) = outgoing(Side::Neighbour, 10_000, "here");
        let mut taken = Vec::new();
        let _ = sender.queue(pages(4000));
        let _ = sender.queue(pages(4000));
        assert!(matches!(outgoing.poll(&mut taken), Some(Work::Send)));
        assert!(matches!(taken[0], Message::Pages { .. }));
        let lacks = |message: &Message| match message {
            Message::Group(GroupMessage::Lacks { pages, why, .. }) => Some((pages.len(), *why)),
            _ => None,
        };
        assert_eq!(lacks(&taken[1]), Some((1, Lack::NotNow)));
        for _ in 0..100 {
            let _ = sender.queue(pages(4000));
        }
        let work = outgoing.poll(&mut taken);
        assert!(matches!(work, Some(Work::Close(CloseReason::Limit(_)))));
    }

    /// The machine answers a commit by its outcome and an advance. A writer woken by the first sent
    /// both in writes of their own, and the child read twice.
    #[test]
    fn only_the_first_of_what_lies_there_asks_for_the_writer() {
        let (sender, outgoing) = outgoing(Side::Down, 1 << 20, "here");
        assert!(sender.queue(pages(1)));
        assert!(!sender.queue(pages(2)));
        let mut taken = Vec::new();
        assert!(matches!(outgoing.poll(&mut taken), Some(Work::Send)));
        assert_eq!(taken.len(), 2);
        // What was taken is the writer's; the next needs it woken.
        assert!(sender.queue(pages(3)));
    }

    /// A child asked for 4,096 pages of a volume that is not there, again and again, and read
    /// nothing. Each refusal names its pages, 128 KiB of them, and counted as 128 bytes: the
    /// bound of 64 MiB let 64 GiB wait.
    #[test]
    fn a_list_of_pages_that_failed_counts_as_what_it_takes() {
        let (sender, outgoing) = outgoing(Side::Down, 1 << 20, "here");
        let refusal = || Message::Failed {
            request: RequestId(1),
            pages: vec![PageId::default(); 4096],
            error: RequestError::NoVolume("x".repeat(1000)),
        };
        for _ in 0..8 {
            let _ = sender.queue(refusal());
        }
        assert!(sender.queued_bytes() == 0 || sender.queued_bytes() > 7 * 4096 * 32);
        let mut taken = Vec::new();
        assert!(matches!(outgoing.poll(&mut taken), Some(Work::Close(CloseReason::Limit(_)))));
    }
}
