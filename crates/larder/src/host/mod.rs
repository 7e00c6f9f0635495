//! The task that owns a machine: feeds it what happens, wakes it at its timeouts, and carries out
//! what it asks for.

use crate::clock::now;
use crate::limits::Limits;
use crate::metrics::Side;
use crate::planted::{RuntimeFault, planted};
use crate::transport::{LinkEvent, LinkSender};
use larder_core::cache::Cache;
use larder_core::cache::io::{CacheInput, CacheOutput, NeighbourOutput};
use larder_core::id::LinkId;
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::CloseReason;
use larder_core::origin::Origin;
use larder_core::origin::io::{OriginInput, OriginOutput, PeerInput};
use larder_core::relay::Relay;
use larder_core::relay::io::{RelayInput, RelayOutput};
use larder_core::time::Instant;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// The runtime's timers do not count suspension; after one a machine is woken this late at most.
const WAKE_MAX: Duration = Duration::from_secs(1);
/// How long somebody waits who only wants to look.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How long what is queued may take to be written when a process ends, and how often that is looked at.
const WRITTEN_LIMIT: Duration = Duration::from_millis(100);
const WRITTEN_EVERY: Duration = Duration::from_millis(1);
/// How long goodbyes may take when a process ends.
const GOODBYE_LIMIT: Duration = Duration::from_millis(300);

/// A machine with links, as a host drives it.
pub(crate) trait Linked: Machine {
    /// Wraps what happens on links of a side. Their numbers are apart.
    fn link_input(side: Side, input: LinkInput) -> Self::Input;
    /// Tells what is asked of links from the rest.
    fn link_output(output: Self::Output) -> Result<LinkOutput, Self::Output>;
}

macro_rules! linked {
    ($machine:ty, $input:ident, $output:ident) => {
        impl Linked for $machine {
            fn link_input(_: Side, input: LinkInput) -> $input {
                $input::Link(input)
            }

            fn link_output(output: $output) -> Result<LinkOutput, $output> {
                match output {
                    $output::Link(output) => Ok(output),
                    other => Err(other),
                }
            }
        }
    };
}
linked!(Relay, RelayInput, RelayOutput);

impl Linked for Origin {
    fn link_input(side: Side, input: LinkInput) -> OriginInput {
        if side != Side::Peer {
            return OriginInput::Link(input);
        }
        OriginInput::Peer(match input {
            LinkInput::UpOpened { link, peer, .. } => {
                PeerInput::Opened { link, peer, dialed: true }
            }
            LinkInput::DownOpened { link, peer, .. } => {
                PeerInput::Opened { link, peer, dialed: false }
            }
            LinkInput::Closed { link, reason } => PeerInput::Closed { link, reason },
            LinkInput::Received { link, message, .. } => PeerInput::Received { link, message },
        })
    }

    fn link_output(output: OriginOutput) -> Result<LinkOutput, OriginOutput> {
        match output {
            OriginOutput::Link(output) => Ok(output),
            other => Err(other),
        }
    }
}

impl Linked for Cache {
    fn link_input(side: Side, input: LinkInput) -> CacheInput {
        match side {
            Side::Neighbour => CacheInput::Neighbour(input),
            Side::Up | Side::Down | Side::Peer => CacheInput::Link(input),
        }
    }

    fn link_output(output: CacheOutput) -> Result<LinkOutput, CacheOutput> {
        match output {
            CacheOutput::Link(output) | CacheOutput::Neighbour(NeighbourOutput::Link(output)) => {
                Ok(output)
            }
            other => Err(other),
        }
    }
}

/// What carries out the outputs that are not of links.
pub(crate) trait Outlet<M: Linked>: Send + 'static {
    /// Carries one out; must not wait. `links`: those that stand.
    fn carry_out(&mut self, output: M::Output, links: &BTreeMap<LinkId, LinkSender>);
}

/// Where a machine's inputs go, from whatever is not a link.
pub(crate) struct Inputs<M: Machine> {
    sender: mpsc::Sender<Event<M>>,
}

impl<M: Machine> Clone for Inputs<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

/// The machine's task is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;

/// Something that looks at a machine and its links between two inputs.
type Look<M> = Box<dyn FnOnce(&M, &BTreeMap<LinkId, LinkSender>) + Send>;

enum Event<M: Machine> {
    Input(M::Input),
    Look(Look<M>),
    Stop(oneshot::Sender<()>),
}

impl<M: Machine> Inputs<M> {
    /// Hands in an input; waits while too many lie there.
    pub(crate) async fn send(&self, input: M::Input) -> Result<(), Gone> {
        self.sender.send(Event::Input(input)).await.map_err(|_| Gone)
    }

    /// The same without waiting; when there is no room, or nobody, the input is dropped.
    pub(crate) fn try_send(&self, input: M::Input) -> bool {
        self.sender.try_send(Event::Input(input)).is_ok()
    }

    /// The same for a thread outside the runtime.
    pub(crate) fn send_blocking(&self, input: M::Input) -> Result<(), Gone> {
        self.sender.blocking_send(Event::Input(input)).map_err(|_| Gone)
    }

    /// Looks at the machine and its links; none: its task is gone, or took longer than the limit.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&M, &BTreeMap<LinkId, LinkSender>) -> T + Send + 'static,
    ) -> Option<T> {
        let (send, receive) = oneshot::channel();
        let look: Look<M> = Box::new(move |machine, links| {
            // Whoever wanted to look may have given up waiting: the machine has other work.
            if !send.is_closed() {
                let _ = send.send(look(machine, links));
            }
        });
        let seen = async {
            self.sender.send(Event::Look(look)).await.ok()?;
            receive.await.ok()
        };
        tokio::time::timeout(LOOK_LIMIT, seen).await.ok().flatten()
    }

    /// Waits until the machine's task is gone: it was stopped, or it panicked.
    pub(crate) async fn gone(&self) {
        self.sender.closed().await;
    }

    /// Whether the machine's task is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }

    /// Says goodbye on every link and ends the machine's task; returns when that is done.
    pub(crate) async fn stop(&self) {
        let (send, receive) = oneshot::channel();
        if self.sender.send(Event::Stop(send)).await.is_ok() {
            // Fails only when the task is gone: which is what was asked for.
            let _ = receive.await;
        }
    }
}

/// Owns a machine.
pub(crate) struct Host<M: Linked, O: Outlet<M>> {
    // Dropped first: the outlet waits for threads, which may wait for room in these queues.
    events: mpsc::Receiver<Event<M>>,
    link_events: mpsc::Receiver<LinkEvent>,
    machine: M,
    outlet: O,
    links: BTreeMap<LinkId, LinkSender>,
    outputs: Vec<M::Output>,
    /// Links whose writers sleep and have something to do.
    to_wake: Vec<LinkId>,
}

/// The queues to a machine that is about to be made.
pub(crate) struct Queues<M: Machine> {
    pub(crate) inputs: Inputs<M>,
    pub(crate) links: mpsc::Sender<LinkEvent>,
    events: mpsc::Receiver<Event<M>>,
    link_events: mpsc::Receiver<LinkEvent>,
}

impl<M: Machine> Queues<M> {
    pub(crate) fn new() -> Self {
        let (sender, events) = mpsc::channel(Limits::here().inputs);
        let (links, link_events) = mpsc::channel(Limits::here().inputs);
        Self { inputs: Inputs { sender }, links, events, link_events }
    }
}

impl<M, O> Host<M, O>
where
    M: Linked + Send + 'static,
    M::Input: Send,
    M::Output: Send,
    O: Outlet<M>,
{
    /// Takes over a machine. `outputs`: what it asked for when it was made.
    pub(crate) fn spawn(
        machine: M,
        outlet: O,
        queues: Queues<M>,
        outputs: Vec<M::Output>,
    ) -> tokio::task::JoinHandle<()> {
        let Queues { events, link_events, .. } = queues;
        let links = BTreeMap::new();
        let to_wake = Vec::new();
        let host = Self { machine, outlet, links, events, link_events, outputs, to_wake };
        tokio::spawn(host.run())
    }

    async fn run(mut self) {
        let batch = Limits::here().batch;
        let mut events = Vec::with_capacity(batch);
        let mut link_events = Vec::with_capacity(batch);
        // Armed anew only when it fired or a timeout before it came up: a timer costs a lock of
        // the runtime's wheel, and most inputs move no timeout forward.
        let mut alarm = std::pin::pin!(sleep(Duration::ZERO));
        let mut armed = now();
        loop {
            self.carry_out();
            let at = now();
            let latest = at.after(WAKE_MAX);
            let wake = self.machine.next_timeout().map_or(latest, |wake| wake.min(latest));
            let earlier = wake < armed && !planted(RuntimeFault::AlarmLate);
            if earlier || armed <= at {
                alarm.as_mut().reset(tokio::time::Instant::now() + wake.since(at));
                armed = wake;
            }
            // Both queues are looked at every time: neither users nor links starve the other, and no
            // chance decides between them, so that the simulator can play it again.
            let open = poll_fn(|context| {
                let of_links = self.link_events.poll_recv_many(context, &mut link_events, batch);
                let of_users = self.events.poll_recv_many(context, &mut events, batch);
                if matches!(of_links, Poll::Ready(0)) || matches!(of_users, Poll::Ready(0)) {
                    return Poll::Ready(false);
                }
                if of_links.is_pending() && of_users.is_pending() {
                    std::task::ready!(alarm.as_mut().poll(context));
                    armed = now();
                }
                Poll::Ready(true)
            });
            if !open.await {
                return;
            }
            let now = now();
            for event in link_events.drain(..) {
                self.link_event(now, event);
            }
            for event in events.drain(..) {
                match event {
                    Event::Input(input) => self.machine.handle(now, input, &mut self.outputs),
                    Event::Look(look) => look(&self.machine, &self.links),
                    Event::Stop(done) => {
                        self.carry_out();
                        self.end().await;
                        // Whoever asked may have given up waiting.
                        let _ = done.send(());
                        return;
                    }
                }
            }
            if self.machine.next_timeout().is_some_and(|wake| wake <= now) {
                self.machine.handle_timeout(now, &mut self.outputs);
            }
        }
    }

    fn link_event(&mut self, now: Instant, event: LinkEvent) {
        let (side, input, permit) = match event {
            LinkEvent::Opened { side, link, sender, input } => {
                self.links.insert(link, sender);
                (side, input, None)
            }
            LinkEvent::Input { side, input, permit } => (side, input, permit),
        };
        if let LinkInput::Closed { link, .. } = &input {
            self.links.remove(link);
        }
        if matches!(input, LinkInput::Closed { .. }) && planted(RuntimeFault::OutputsDropped) {
            self.outputs.clear();
        }
        self.machine.handle(now, M::link_input(side, input), &mut self.outputs);
        if planted(RuntimeFault::BudgetKept) {
            std::mem::forget(permit);
            return;
        }
        drop(permit);
    }

    fn carry_out(&mut self) {
        for output in self.outputs.drain(..) {
            match M::link_output(output) {
                // A link that is gone is told to the machine by `Closed`, which may be on its way.
                Ok(LinkOutput::Send { link, message }) => {
                    if let Some(sender) = self.links.get(&link)
                        && sender.queue(message)
                    {
                        self.to_wake.push(link);
                    }
                }
                Ok(LinkOutput::Close { link, reason }) => {
                    if let Some(sender) = self.links.get(&link) {
                        sender.close(reason);
                    }
                }
                Err(other) => self.outlet.carry_out(other, &self.links),
            }
        }
        // Only now: a writer woken by the first of several messages, on another core, would send
        // each in a write of its own.
        for link in self.to_wake.drain(..) {
            if let Some(sender) = self.links.get(&link) {
                sender.wake();
            }
        }
    }

    async fn end(mut self) {
        // What was said last is written before the goodbye, which takes the place of what waits: a node says that its
        // boot ends.
        let written = async {
            while self.links.values().any(|sender| sender.queued_bytes() > 0) {
                sleep(WRITTEN_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(WRITTEN_LIMIT, written).await;
        for sender in self.links.values() {
            sender.close(CloseReason::Shutdown);
        }
        let goodbyes = async {
            while !self.links.is_empty() {
                match self.link_events.recv().await {
                    Some(LinkEvent::Input { input: LinkInput::Closed { link, .. }, .. }) => {
                        self.links.remove(&link);
                    }
                    Some(LinkEvent::Opened { sender, .. }) => sender.close(CloseReason::Shutdown),
                    Some(LinkEvent::Input { .. }) => {}
                    None => return,
                }
            }
        };
        // A peer that takes no goodbye learns it from the closed socket.
        let _ = tokio::time::timeout(GOODBYE_LIMIT, goodbyes).await;
    }
}
