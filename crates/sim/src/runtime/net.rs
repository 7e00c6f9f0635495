//! The network of a world: connections as pipes, with latency, small buffers, fragments of any size,
//! stalls and cuts. What is sent arrives as it was, or not at all: TLS sees to that in the real one.

use larder::simulated::{Incoming, Later, Stream};
use larder_core::message::Role;
use larder_core::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

/// Whoever dials a line that is gone hears nothing for this long.
const NO_ANSWER: Duration = Duration::from_secs(3600);

/// Bytes under way on a line that is well.
const HEALED_BYTES: usize = 1 << 20;

/// Addresses at which nodes listen for neighbours begin so.
pub(super) const NEIGHBOURS: &str = "10.0.1.";

/// What the line is called by which a process dials its neighbours.
pub(super) fn to_neighbours(name: &str) -> String {
    format!("{name}'s neighbours")
}

/// How a line is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// One way.
    pub(super) latency: Duration,
    /// Bytes under way in each direction.
    pub(super) bytes: usize,
    /// Most bytes that a read or a write moves.
    pub(super) fragment: u64,
    /// Of sixteen reads and writes, so many are put off.
    pub(super) dawdle: u64,
}

/// The network.
#[derive(Clone)]
pub(super) struct Net(Arc<Mutex<State>>);

/// What sending takes a machine: its processor is at it first, then its network card; each does one
/// thing after another. Nanoseconds for a byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    pub(super) processor: u64,
    pub(super) card: u64,
}

/// A machine, as far as its work takes time.
struct Machine {
    speed: Speed,
    processor_free: Instant,
    card_free: Instant,
}

impl Machine {
    fn new(speed: Speed) -> Self {
        let now = Instant::now();
        Self { speed, processor_free: now, card_free: now }
    }

    /// Its processor is at something for so long, from when it has time for it; when that is done.
    fn works(&mut self, long: Duration) -> Instant {
        self.processor_free = self.processor_free.max(Instant::now()) + long;
        self.processor_free
    }

    /// When the last of so many bytes has left it.
    fn sends(&mut self, bytes: usize) -> Instant {
        let take = |each: u64| Duration::from_nanos(each.saturating_mul(bytes as u64));
        let ready = self.works(take(self.speed.processor));
        self.card_free = self.card_free.max(ready) + take(self.speed.card);
        self.card_free
    }
}

struct State {
    rng: Rng,
    /// By the names of processes; one that is not here works in no time.
    machines: BTreeMap<String, Arc<Mutex<Machine>>>,
    doors: BTreeMap<String, Door>,
    lines: BTreeMap<String, Line>,
    /// Whose lines up are gone.
    gone: Vec<String>,
    connections: Vec<Connection>,
    /// When each process dialled last, and whom.
    dialled: BTreeMap<(String, String), Instant>,
    /// Names under which more than one process dials.
    shared: Vec<String>,
    healed: Arc<AtomicBool>,
    /// The shortest pause between two attempts of a process.
    pause_min: Duration,
}

struct Door {
    name: String,
    arrivals: mpsc::Sender<Incoming>,
}

struct Connection {
    /// Whose line up it uses, or to neighbours.
    from: String,
    /// To the parent, and from it.
    ways: [Weak<Mutex<Way>>; 2],
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// What is under way, and when it arrives.
    under_way: VecDeque<(Instant, VecDeque<u8>)>,
    bytes: usize,
    /// The writer will write no more.
    ended: bool,
    broken: bool,
    stalled: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a connection.
struct End {
    line: Line,
    /// Whose it is.
    machine: Arc<Mutex<Machine>>,
    /// No buffer is small any more.
    healed: Arc<AtomicBool>,
    reads: Arc<Mutex<Way>>,
    writes: Arc<Mutex<Way>>,
    timer: Pin<Box<Sleep>>,
    rng: Rng,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Way {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn breaks(&mut self) {
        self.broken = true;
        self.wake();
    }
}

impl Net {
    /// A network without anybody.
    #[must_use]
    pub(super) fn new(rng: Rng, pause_min: Duration) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng,
            machines: BTreeMap::new(),
            doors: BTreeMap::new(),
            lines: BTreeMap::new(),
            gone: Vec::new(),
            connections: Vec::new(),
            dialled: BTreeMap::new(),
            shared: Vec::new(),
            healed: Arc::default(),
            pause_min,
        })))
    }

    /// Sets the line up from a process.
    pub(super) fn set_line(&self, from: &str, line: Line) {
        lock(&self.0).lines.insert(from.into(), line);
    }

    /// Sets what a process's machine takes for its work.
    pub(super) fn set_speed(&self, name: &str, speed: Speed) {
        let machine = Arc::new(Mutex::new(Machine::new(speed)));
        lock(&self.0).machines.insert(name.into(), machine);
    }

    /// Waits while a process's processor is at something for so long, once it has time for it.
    pub(super) async fn works(&self, name: &str, long: Duration) {
        let machine = lock(&self.0).machine(name);
        let done = lock(&machine).works(long);
        tokio::time::sleep_until(done).await;
    }

    /// The line up from a process.
    #[must_use]
    pub(super) fn line(&self, from: &str) -> Line {
        lock(&self.0).lines[from]
    }

    /// From now on all lines have room, or as little as they were made with.
    pub(super) fn heal(&self, healed: bool) {
        let mut state = lock(&self.0);
        state.healed.store(healed, Ordering::Relaxed);
        state.gone.clear();
    }

    /// More than one process dials under a name.
    pub(super) fn shares(&self, name: &str) {
        lock(&self.0).shared.push(name.into());
    }

    /// Takes connections at an address, in the place of whoever did before.
    pub(super) fn listen(
        &self,
        name: &str,
        at: &str,
    ) -> io::Result<(mpsc::Receiver<Incoming>, SocketAddr)> {
        let address = at.parse().map_err(io::Error::other)?;
        let (arrivals, door) = mpsc::channel(64);
        let name = name.into();
        lock(&self.0).doors.insert(at.into(), Door { name, arrivals });
        Ok((door, address))
    }

    /// A process begins: its attempts are counted anew, and those of its neighbours to reach it.
    pub(super) fn begins(&self, name: &str) {
        let stays = |(from, to): &(String, String)| from != name && !to.starts_with(NEIGHBOURS);
        lock(&self.0).dialled.retain(|who, _| stays(who));
    }

    /// Opens a connection; also the name at the other end.
    pub(super) fn connect(
        &self,
        from: &str,
        role: Role,
        to: &str,
    ) -> Later<io::Result<(Stream, String)>> {
        let (net, from, to) = (self.clone(), from.to_owned(), to.to_owned());
        let whose = match to.starts_with(NEIGHBOURS) {
            true => to_neighbours(&from),
            false => from.clone(),
        };
        let (line, gone) = {
            let mut state = lock(&self.0);
            let now = Instant::now();
            let before = state.dialled.insert((from.clone(), to.clone()), now);
            let least = state.pause_min;
            let before = before.filter(|_| !state.shared.contains(&from));
            assert!(
                before.is_none_or(|before| now - before >= least),
                "P10: {from} dials again {:?} after its last attempt, and is to pause for {least:?}",
                now - before.unwrap_or(now)
            );
            (state.lines[&whose], state.gone.contains(&from))
        };
        Box::pin(async move {
            if gone {
                sleep(NO_ANSWER).await;
            }
            sleep(line.latency + Duration::from_millis(1)).await;
            net.open((&from, &whose), role, &to, line).await
        })
    }

    async fn open(
        &self,
        (from, whose): (&str, &str),
        role: Role,
        to: &str,
        line: Line,
    ) -> io::Result<(Stream, String)> {
        let (ours, incoming, arrivals, name) = {
            let mut state = lock(&self.0);
            let [mine, theirs] = [state.rng.next_u64(), state.rng.next_u64()].map(Rng::new);
            let Some(door) = state.doors.get(to) else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let (arrivals, name) = (door.arrivals.clone(), door.name.clone());
            let [up, down] = [(); 2].map(|()| Arc::new(Mutex::new(Way::default())));
            let ways = [&up, &down].map(Arc::downgrade);
            state.connections.retain(|connection| connection.stands());
            state.connections.push(Connection { from: whose.into(), ways });
            let (dialler, door) = (state.machine(from), state.machine(&name));
            let ours = (line, dialler);
            let ours = End::new(ours, &state.healed, (down.clone(), up.clone()), mine);
            let theirs = End::new((line, door), &state.healed, (up, down), theirs);
            let stream: Stream = Box::new(theirs);
            let address = SocketAddr::from(([10, 0, 9, 9], 9));
            (ours, Incoming { stream, address, peer: from.into(), role }, arrivals, name)
        };
        if arrivals.try_send(incoming).is_err() {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let stream: Stream = Box::new(ours);
        Ok((stream, name))
    }

    /// Breaks what stands of a process's line up.
    pub(super) fn cut(&self, from: &str) {
        for connection in lock(&self.0).connections.iter().filter(|one| one.from == from) {
            for way in connection.ways.iter().filter_map(Weak::upgrade) {
                lock(&way).breaks();
            }
        }
    }

    /// Stalls, or lets go on, what a process sends up (0) or is sent (1).
    pub(super) fn stall(&self, from: &str, way: usize, stalled: bool) {
        for connection in lock(&self.0).connections.iter().filter(|one| one.from == from) {
            if let Some(way) = connection.ways[way].upgrade() {
                let mut way = lock(&way);
                way.stalled = stalled;
                way.wake();
            }
        }
    }

    /// Takes a process's line away: what stands stalls both ways, and dialling is not answered.
    pub(super) fn part(&self, from: &str) {
        for way in [0, 1] {
            self.stall(from, way, true);
        }
        lock(&self.0).gone.push(from.into());
    }

    /// Gives it back.
    pub(super) fn join(&self, from: &str) {
        lock(&self.0).gone.retain(|gone| gone != from);
        for way in [0, 1] {
            self.stall(from, way, false);
        }
    }

    /// Connections of which somebody holds an end.
    #[must_use]
    pub(super) fn standing(&self) -> usize {
        lock(&self.0).connections.iter().filter(|connection| connection.stands()).count()
    }
}

impl State {
    fn machine(&mut self, name: &str) -> Arc<Mutex<Machine>> {
        let new = || Arc::new(Mutex::new(Machine::new(Speed::default())));
        self.machines.entry(name.into()).or_insert_with(new).clone()
    }
}

impl Connection {
    fn stands(&self) -> bool {
        self.ways.iter().any(|way| way.strong_count() > 0)
    }
}

impl End {
    fn new(
        (line, machine): (Line, Arc<Mutex<Machine>>),
        healed: &Arc<AtomicBool>,
        (reads, writes): (Arc<Mutex<Way>>, Arc<Mutex<Way>>),
        rng: Rng,
    ) -> Self {
        Self {
            line,
            machine,
            healed: healed.clone(),
            reads,
            writes,
            timer: Box::pin(sleep(Duration::ZERO)),
            rng,
        }
    }

    fn dawdles(&mut self, context: &Context<'_>) -> bool {
        let dawdles = self.rng.chance(self.line.dawdle, 16);
        if dawdles {
            context.waker().wake_by_ref();
        }
        dawdles
    }

    fn share(&mut self) -> usize {
        if self.healed.load(Ordering::Relaxed) {
            return HEALED_BYTES;
        }
        1 + self.rng.below(self.line.fragment) as usize
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.dawdles(context) {
            return Poll::Pending;
        }
        let most = self.share().min(buffer.remaining());
        let this = &mut *self;
        let mut way = lock(&this.reads);
        if way.broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        way.reader = Some(context.waker().clone());
        if way.stalled {
            return Poll::Pending;
        }
        let ended = way.ended;
        let Some((arrives, bytes)) = way.under_way.front_mut() else {
            return if ended { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        if *arrives > Instant::now() {
            let arrives = *arrives;
            drop(way);
            this.timer.as_mut().reset(arrives);
            if std::future::Future::poll(this.timer.as_mut(), context).is_ready() {
                context.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        let count = most.min(bytes.len());
        let taken: Vec<u8> = bytes.drain(..count).collect();
        if bytes.is_empty() {
            way.under_way.pop_front();
        }
        way.bytes -= count;
        if let Some(writer) = way.writer.take() {
            writer.wake();
        }
        buffer.put_slice(&taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.dawdles(context) {
            return Poll::Pending;
        }
        let most = self.share().min(bytes.len());
        let mut way = lock(&self.writes);
        if way.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let healed = self.healed.load(Ordering::Relaxed);
        let most_there = if healed { HEALED_BYTES } else { self.line.bytes };
        let room = most_there.saturating_sub(way.bytes);
        if room == 0 {
            way.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = most.min(room);
        let arrives = lock(&self.machine).sends(count) + self.line.latency;
        way.under_way.push_back((arrives, bytes[..count].iter().copied().collect()));
        way.bytes += count;
        if let Some(reader) = way.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut way = lock(&self.writes);
        way.ended = true;
        way.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    /// As a socket that is closed: with bytes unread it is reset, and the peer may lose what was
    /// sent to it.
    fn drop(&mut self) {
        let unread = {
            let mut reads = lock(&self.reads);
            let unread = !reads.under_way.is_empty();
            reads.breaks();
            unread
        };
        let mut writes = lock(&self.writes);
        writes.ended = true;
        writes.broken |= unread;
        writes.wake();
    }
}

#[cfg(test)]
mod tests {
    /// Bug 161 (a night's seed). A neighbour started again at its address, and its last life was still named
    /// beside the new one: both were dialled in one moment.
    #[test]
    fn a_neighbour_that_starts_again_is_dialled_once() {
        let played = crate::runtime::run_seed(20_273_357_972_089, None, false);
        assert!(played.is_ok(), "{:?}", played.err().map(|failure| failure.what));
    }
}
