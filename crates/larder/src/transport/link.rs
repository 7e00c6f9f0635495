//! One link: a reader, a writer, and what they tell the machine.

use super::outgoing::{LinkSender, Outgoing, Work, outgoing};
use crate::limits::Limits;
use crate::metrics::{Direction, Metrics, Side};
use crate::planted::{RuntimeFault, planted};
use crate::tls::TlsError;
use bytes::{Bytes, BytesMut};
use larder_core::id::LinkId;
use larder_core::machine::LinkInput;
use larder_core::message::{CloseReason, Lane, Message, PageBody};
use larder_core::wire::{LaneReceiver, LaneSender, QueueLimits};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a goodbye may take.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// The same where the process goes on at another link, which waits for this one's end.
const ELSEWHERE_LIMIT: Duration = Duration::from_millis(50);

const LANES: [Lane; 3] = [Lane::Control, Lane::Stream, Lane::Bulk];

/// The lanes' own bounds are not used.
pub(super) const UNBOUNDED: QueueLimits =
    QueueLimits { control: usize::MAX, stream: usize::MAX, bulk: usize::MAX };

/// What a link tells the task that owns the machine.
pub(crate) enum LinkEvent {
    /// It stands: `input` is the machine's `UpOpened` or `DownOpened`.
    Opened {
        /// Whose it is.
        side: Side,
        /// Its number.
        link: LinkId,
        /// Where to send.
        sender: LinkSender,
        /// For the machine.
        input: LinkInput,
    },
    /// A message came, or the link is gone.
    Input {
        /// Whose the link is.
        side: Side,
        /// For the machine.
        input: LinkInput,
        /// Given back when the machine has handled it.
        permit: Option<OwnedSemaphorePermit>,
    },
}

/// What links of one process share.
#[derive(Clone)]
pub(crate) struct LinkSetup {
    /// Where links tell what happens.
    pub(crate) events: mpsc::Sender<LinkEvent>,
    /// The process's figures.
    pub(crate) metrics: Arc<Metrics>,
    /// Bytes of large messages that may wait for the machine.
    budget: Arc<Semaphore>,
    /// Bytes that may wait towards a peer.
    queue_bytes: usize,
    /// A write that makes no progress for this long ends the link.
    write_limit: Duration,
    limits: Limits,
}

/// How a link ended.
#[derive(Debug)]
pub(super) enum End {
    /// The other side said why.
    Goodbye(CloseReason),
    /// This side closed it.
    Closed(CloseReason),
    /// The socket ended.
    Broken(io::Error),
    /// The other side's certificate does no more.
    Distrusted(TlsError),
    /// This process links elsewhere.
    Elsewhere,
    /// The machine's task is gone.
    Stopped,
}

/// Why a link is to end that is well in itself.
#[derive(Debug)]
pub(super) enum Cut {
    /// The other side's certificate does no more.
    Distrusted(TlsError),
    /// This process links elsewhere: nobody waits for the other side to hear of it.
    Elsewhere,
}

impl LinkSetup {
    pub(crate) fn new(
        events: mpsc::Sender<LinkEvent>,
        metrics: Arc<Metrics>,
        queue_bytes: usize,
        write_limit: Duration,
    ) -> Self {
        let limits = Limits::here();
        let budget = Arc::new(Semaphore::new(limits.input_bytes as usize));
        Self { events, metrics, budget, queue_bytes, write_limit, limits }
    }

    /// Runs a link until it ends, or until `cuts` does. `input` tells the machine of it;
    /// `first` takes every message received before the machine does, and gives it what is left.
    pub(super) async fn run<S>(
        &self,
        stream: S,
        side: Side,
        link: LinkId,
        (input, address): (LinkInput, &str),
        first: impl FnMut(Message) -> Option<Message>,
        cuts: impl Future<Output = Cut>,
    ) -> End
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (sender, queue) = outgoing(side, self.queue_bytes, address);
        let own = sender.clone();
        let opened = LinkEvent::Opened { side, link, sender, input };
        if self.events.send(opened).await.is_err() {
            return End::Stopped;
        }
        self.metrics.link(side, true);
        let (mut read, write) = tokio::io::split(stream);
        let writer = Writer {
            side,
            write,
            queue,
            metrics: self.metrics.clone(),
            limit: self.write_limit,
            batch_bytes: self.limits.batch_bytes,
        };
        let mut writer = Owned(tokio::spawn(writer.run()));
        let end = tokio::select! {
            // In an order, so that the simulator can play it again; a reader that is never idle last.
            biased;
            end = &mut writer.0 => end.unwrap_or(End::Stopped),
            cut = cuts => match cut {
                Cut::Distrusted(error) => End::Distrusted(error),
                Cut::Elsewhere => End::Elsewhere,
            },
            end = self.read(&mut read, (side, link), first) => end,
        };
        let goodbye = match &end {
            End::Closed(reason) if !writer.0.is_finished() => Some(reason.clone()),
            End::Distrusted(error) => Some(CloseReason::Forbidden(error.to_string())),
            End::Elsewhere => Some(CloseReason::Shutdown),
            _ => None,
        };
        if let Some(reason) = goodbye {
            own.close(reason);
            let last_words = async {
                let _ = (&mut writer.0).await;
                discard(&mut read).await;
            };
            let limit = match &end {
                End::Elsewhere => ELSEWHERE_LIMIT,
                _ => 2 * GOODBYE_LIMIT,
            };
            let _ = timeout(limit, last_words).await;
        }
        drop(writer);
        // A peer that has our goodbye ends the socket before the writer says that it is through.
        let end = match (end, own.closing()) {
            (End::Broken(_), Some(reason)) => End::Closed(reason),
            (end, _) => end,
        };
        self.metrics.link(side, false);
        let reason = match &end {
            End::Goodbye(reason) => Some(reason.clone()),
            _ => None,
        };
        if planted(RuntimeFault::ClosedUntold) {
            return end;
        }
        let input = LinkInput::Closed { link, reason };
        let closed = LinkEvent::Input { side, input, permit: None };
        match self.events.send(closed).await {
            Ok(()) => end,
            Err(_) => End::Stopped,
        }
    }

    async fn read<S: AsyncRead>(
        &self,
        read: &mut ReadHalf<S>,
        (side, link): (Side, LinkId),
        mut first: impl FnMut(Message) -> Option<Message>,
    ) -> End {
        let mut lanes = LaneReceiver::new();
        let mut buffer = BytesMut::with_capacity(self.limits.batch_bytes);
        loop {
            buffer.reserve(self.limits.batch_bytes);
            match read.read_buf(&mut buffer).await {
                Ok(0) => return End::Broken(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.metrics.wire(Direction::Received, count as u64),
                Err(error) => return End::Broken(error),
            }
            loop {
                let (mut message, bytes) = match lanes.receive(&mut buffer) {
                    Ok(Some(received)) => received,
                    Ok(None) => break,
                    // What a peer sends is never trusted: it closes its own link and no other, and
                    // the peer is told why.
                    Err(error) => return End::Closed(error.into()),
                };
                self.metrics.message(Direction::Received, &message, u64::from(bytes));
                self.metrics.group().moved(side, Direction::Received, &message);
                own_pages(&mut message);
                let Some(message) = first(message) else { continue };
                if let Message::Goodbye { reason } = message {
                    return End::Goodbye(reason);
                }
                if !self.hand_over((side, link), message, bytes).await {
                    return End::Stopped;
                }
            }
            if buffer.len() == 1 && planted(RuntimeFault::BoundaryByte) {
                buffer.clear();
            }
        }
    }

    /// Gives a message to the machine, and waits while too much lies before it: so the socket
    /// waits, and the peer. False: the machine's task is gone.
    async fn hand_over(&self, (side, link): (Side, LinkId), message: Message, bytes: u32) -> bool {
        let permit = if bytes > self.limits.small_bytes {
            let share = bytes.min(self.limits.input_bytes);
            match self.budget.clone().acquire_many_owned(share).await {
                Ok(permit) => Some(permit),
                Err(_) => return false,
            }
        } else {
            None
        };
        let input = LinkInput::Received { link, message, bytes };
        self.events.send(LinkEvent::Input { side, input, permit }).await.is_ok()
    }
}

/// A task that ends with whoever started it.
struct Owned<T>(JoinHandle<T>);

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Writer<S> {
    side: Side,
    write: WriteHalf<S>,
    queue: Outgoing,
    metrics: Arc<Metrics>,
    limit: Duration,
    batch_bytes: usize,
}

impl<S: AsyncWrite> Writer<S> {
    async fn run(mut self) -> End {
        // The queue before the lanes bounds what waits, and closes the link when it is passed.
        let mut lanes = LaneSender::new(UNBOUNDED);
        let mut taken = Vec::new();
        // Written from its beginning every time: that much of it stays in the processor's caches.
        let mut buffer = Vec::with_capacity(2 * self.batch_bytes);
        loop {
            let work = if lanes.is_empty() {
                self.queue.wait(&mut taken).await
            } else {
                self.queue.poll(&mut taken).unwrap_or(Work::Send)
            };
            if let Work::Close(reason) = work {
                return self.goodbye(reason).await;
            }
            if planted(RuntimeFault::LanesReversed) {
                taken.reverse();
            }
            for message in taken.drain(..) {
                match lanes.push(&message) {
                    Ok(bytes) => {
                        self.metrics.message(Direction::Sent, &message, bytes as u64);
                        self.metrics.group().moved(self.side, Direction::Sent, &message);
                    }
                    Err(error) => {
                        return self.goodbye(CloseReason::Limit(error.to_string())).await;
                    }
                }
            }
            // Small batches: a control message that comes now overtakes all but this one.
            fill(&mut lanes, &mut buffer, self.batch_bytes);
            if let Err(error) = self.write_out(&mut buffer, lanes.is_empty()).await {
                return End::Broken(error);
            }
            self.queue.left(LANES.map(|lane| lanes.queued_bytes(lane)).iter().sum());
        }
    }

    async fn write_out(&mut self, buffer: &mut Vec<u8>, flush: bool) -> io::Result<()> {
        self.metrics.wire(Direction::Sent, buffer.len() as u64);
        let mut left = &buffer[..];
        while !left.is_empty() {
            let count = timeout(self.limit, self.write.write(left)).await??;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let more = !planted(RuntimeFault::ShortWrite);
            left = if more { &left[count..] } else { &[] };
        }
        buffer.clear();
        if flush {
            timeout(self.limit, self.write.flush()).await??;
        }
        Ok(())
    }

    async fn goodbye(mut self, reason: CloseReason) -> End {
        let mut lanes = LaneSender::new(UNBOUNDED);
        let message = Message::Goodbye { reason: reason.clone() };
        if let Ok(bytes) = lanes.push(&message) {
            self.metrics.message(Direction::Sent, &message, bytes as u64);
        }
        let mut buffer = Vec::new();
        fill(&mut lanes, &mut buffer, self.batch_bytes);
        let last_words = async {
            self.write_out(&mut buffer, true).await?;
            self.write.shutdown().await
        };
        // "If it can be done at once": a peer that does not take it learns from the closed socket.
        let _ = timeout(GOODBYE_LIMIT, last_words).await;
        End::Closed(reason)
    }
}

/// Takes what the peer still sends: a socket closed with bytes unread is reset, and the peer may
/// never see the goodbye.
async fn discard<S: AsyncRead>(read: &mut ReadHalf<S>) {
    let mut buffer = BytesMut::with_capacity(Limits::SHIPPED.batch_bytes);
    while let Ok(1..) = read.read_buf(&mut buffer).await {
        buffer.clear();
    }
}

/// Moves frames to `buffer` until it holds a batch.
pub(super) fn fill(lanes: &mut LaneSender, buffer: &mut Vec<u8>, batch_bytes: usize) {
    while buffer.len() < batch_bytes {
        let Some(fragment) = lanes.next_fragment() else {
            return;
        };
        buffer.extend_from_slice(&fragment.header);
        buffer.extend_from_slice(&fragment.payload);
    }
}

/// Gives every page memory of its own: one page kept must not keep the whole read buffer, or the
/// pages that came with it, beyond the cache's budget.
fn own_pages(message: &mut Message) {
    if let Message::Pages { pages, .. } = message {
        for answer in pages {
            if let PageBody::Data(bytes) | PageBody::Holed(bytes, _) = &mut answer.body {
                *bytes = Bytes::copy_from_slice(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::{DomainId, PageId, PageNo, RequestId, Stamp, VolumeId};
    use larder_core::message::{Lane, PageAnswer, Role};
    use larder_core::wire::FrameHeader;
    use std::future::pending;
    use tokio::net::{TcpSocket, TcpStream};

    const PATIENCE: Duration = Duration::from_secs(60);
    const PAGE_BYTES: usize = 64 << 10;

    /// A peer of another make sent a frame that is none. The link was closed without a word: its
    /// operator saw "the other side ended it", dialled on, and never learnt what was wrong.
    #[tokio::test]
    async fn a_peer_that_sends_no_message_is_told_so() {
        let (events, mut told) = mpsc::channel(8);
        let metrics = Arc::new(Metrics::new());
        let setup = LinkSetup::new(events, metrics, 1 << 20, Duration::from_secs(5));
        let (here, mut there) = tokio::io::duplex(4096);
        let opened = LinkInput::DownOpened {
            link: LinkId(1),
            peer: "peer".into(),
            role: Role::Node,
            in_group: false,
        };
        let run = async {
            setup.run(here, Side::Down, LinkId(1), (opened, "pipe"), Some, pending()).await
        };
        let peer = async move {
            let header = FrameHeader { length: 3, lane: Lane::Control, slot: 0, last: true };
            let mut bytes = header.encode().to_vec();
            bytes.extend_from_slice(b"???");
            // More than the pipe holds: the peer would wait for ever if nobody read on.
            bytes.resize(20_000, 0);
            there.write_all(&bytes).await.expect("the other end reads on");
            let mut received = BytesMut::new();
            while there.read_buf(&mut received).await.expect("a pipe does not break") > 0 {}
            LaneReceiver::new().receive(&mut received).expect("frames")
        };
        let (end, message) = tokio::join!(run, peer);
        let (message, _) = message.expect("a whole message came");
        let Message::Goodbye { reason: CloseReason::Malformed(why) } = message else {
            panic!("{message:?}");
        };
        assert!(why.contains("malformed"), "{why}");
        assert!(matches!(end, End::Closed(CloseReason::Malformed(_))));
        assert!(matches!(told.recv().await, Some(LinkEvent::Opened { .. })));
        let closed = told.recv().await.expect("the machine is told");
        assert!(matches!(
            closed,
            LinkEvent::Input { input: LinkInput::Closed { reason: None, .. }, .. }
        ));
    }

    /// A node was dropped without a goodbye, or an origin ended like a crash: their links' tasks were
    /// aborted, but not the writers that these had started. Each waited for ever for messages that
    /// nobody could queue any more, and held its half of the socket: the peer heard of no end until
    /// its `link.silence_max`, and the process kept a task and a descriptor for each such link.
    #[tokio::test]
    async fn a_link_whose_task_is_aborted_leaves_no_writer_and_no_socket() {
        let (events, mut told) = mpsc::channel(8);
        let setup =
            LinkSetup::new(events, Arc::new(Metrics::new()), 1 << 20, Duration::from_secs(5));
        let (here, mut there) = tokio::io::duplex(4096);
        let input = LinkInput::DownOpened {
            link: LinkId(1),
            peer: "a".into(),
            role: Role::Node,
            in_group: false,
        };
        let link = tokio::spawn(async move {
            setup.run(here, Side::Down, LinkId(1), (input, "pipe"), Some, pending()).await
        });
        let opened = told.recv().await;
        assert!(matches!(opened, Some(LinkEvent::Opened { .. })));
        // The writer runs before it is left alone.
        tokio::task::yield_now().await;
        link.abort();
        let mut bytes = Vec::new();
        let ended = timeout(PATIENCE, there.read_to_end(&mut bytes)).await;
        assert_eq!(ended.expect("the socket is closed").expect("without an error"), 0);
    }

    /// A link over a slow line had megabytes of pages to send. The kernel took them all, and a
    /// beat queued after them, though first among the lanes, came out behind the last page: on a
    /// line of 1 MB/s that is longer than the peer waits before it gives the link up.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_control_message_overtakes_the_pages_that_the_line_has_not_taken() {
        const ROUNDS: usize = 3;
        const PAGES: usize = 128;
        let (near, mut far) = narrow_line().await;
        super::super::prepare(&near, PATIENCE).expect("a TCP socket");
        let (events, mut told) = mpsc::channel(8);
        let metrics = Arc::new(Metrics::new());
        let setup = LinkSetup::new(events, metrics, 64 << 20, PATIENCE);
        let opened = LinkInput::DownOpened {
            link: LinkId(1),
            peer: "peer".into(),
            role: Role::Node,
            in_group: false,
        };
        let run = tokio::spawn(async move {
            setup.run(near, Side::Down, LinkId(1), (opened, "line"), Some, pending()).await
        });
        let Some(LinkEvent::Opened { sender, .. }) = told.recv().await else {
            panic!("the link stands");
        };
        let mut lanes = LaneReceiver::new();
        let mut buffer = BytesMut::new();
        for round in 0..ROUNDS {
            for page in 0..PAGES {
                let _ = sender.queue(page_message((round * PAGES + page + 1) as u64));
            }
            sender.wake();
            let before = stalled(&sender).await;
            let _ = sender
                .queue(Message::Beat { domain: DomainId(1), sent: larder_core::time::Instant(0) });
            sender.wake();
            // The peer reads at last: how much lies before the beat, and does the rest come?
            let (mut bytes, mut pages, mut before_beat) = (0, 0, None);
            while pages < PAGES || before_beat.is_none() {
                let read = timeout(PATIENCE, far.read_buf(&mut buffer)).await;
                bytes += read.expect("the writer is woken again").expect("it stands");
                while let Some((message, _)) = lanes.receive(&mut buffer).expect("frames") {
                    match message {
                        Message::Pages { .. } => pages += 1,
                        _ => before_beat = Some((bytes, pages)),
                    }
                }
            }
            let (bytes, overtaken) = before_beat.expect("the beat came");
            let waited = format!("round {round}: {bytes} bytes, {overtaken} pages before the beat");
            assert!(before > PAGES * PAGE_BYTES / 2, "most pages are left to send: {before}");
            assert!(bytes < PAGES * PAGE_BYTES / 8, "{waited}");
        }
        sender.close(CloseReason::Shutdown);
        while let Ok(1..) = far.read_buf(&mut buffer).await {}
        let end = run.await.expect("no panic");
        assert!(matches!(end, End::Broken(_) | End::Closed(_)), "{end:?}");
    }

    /// Two ends of a connection; the second takes in little that it has not read.
    async fn narrow_line() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(32 << 10).expect("before it connects");
        let address = listener.local_addr().expect("bound");
        let (far, near) = tokio::join!(socket.connect(address), listener.accept());
        (near.expect("accepts").0, far.expect("connects"))
    }

    /// Waits until the writer can write no more; the bytes that it has left.
    async fn stalled(sender: &LinkSender) -> usize {
        let mut last = usize::MAX;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            match sender.queued_bytes() {
                left if left == last => return left,
                left => last = left,
            }
        }
    }

    fn page_message(number: u64) -> Message {
        let answer = PageAnswer {
            page: PageId { volume: VolumeId(1), page: PageNo(number) },
            version: Stamp(1),
            as_of: Stamp(1),
            body: PageBody::Data(vec![7; PAGE_BYTES].into()),
        };
        Message::Pages { request: RequestId(number), domain: DomainId(1), pages: vec![answer] }
    }
}
