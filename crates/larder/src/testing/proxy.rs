//! A TCP proxy that delays, stalls and cuts: a slow, broken line between real processes.
//!
//! Every chunk is handed on `delay` after it came in, and chunks overlap on the way, so that the
//! bandwidth stays what it was. A stalled proxy accepts and holds everything, as a dead router
//! does: neither side sees an error. A cut proxy resets its connections and refuses new ones.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks on the way in one direction: 64 MiB, enough for 1 Gbit/s at half a second.
const CHUNKS_MAX: usize = 1024;

/// What the line does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// Hands on, after the delay.
    Whole,
    /// Holds what comes; nobody is told.
    Stalled,
    /// The same in the middle of what it is at: of the next chunk each way half is handed on.
    Torn,
    /// Holds what comes from the dialling side only (a one-way partition).
    StalledUp,
    /// Holds what comes from the target only.
    StalledDown,
    /// Resets connections and refuses new ones.
    Cut,
}

#[derive(Clone, Copy, Debug)]
struct State {
    line: Line,
    delay: Duration,
}

/// Which way a pump hands on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl State {
    fn passes(self, way: Way) -> bool {
        match self.line {
            Line::Whole => true,
            Line::Stalled | Line::Torn | Line::Cut => false,
            Line::StalledUp => way == Way::Down,
            Line::StalledDown => way == Way::Up,
        }
    }
}

/// Bytes and connections handed on since the start.
#[derive(Default, Debug)]
struct Counters {
    up_bytes: AtomicU64,
    down_bytes: AtomicU64,
    connections: AtomicU64,
}

/// What a proxy has handed on since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Bytes from the dialling side.
    pub up_bytes: u64,
    /// Bytes from the target.
    pub down_bytes: u64,
    /// Connections accepted.
    pub connections: u64,
}

/// A running proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Listens on `listen` and hands on to `target`, each way `delay` later.
    pub async fn start(listen: &str, target: &str, delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let (state, watcher) = watch::channel(State { line: Line::Whole, delay });
        let counters = Arc::new(Counters::default());
        let task = tokio::spawn(accept(listener, target.to_owned(), watcher, counters.clone()));
        Ok(Self { address, state, counters, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what the line does from now on.
    pub fn set_line(&self, line: Line) {
        self.state.send_modify(|state| state.line = line);
    }

    /// Resets all connections and refuses new ones.
    pub fn cut(&self) {
        self.set_line(Line::Cut);
    }

    /// Holds everything; nobody is told.
    pub fn stall(&self) {
        self.set_line(Line::Stalled);
    }

    /// Hands on again.
    pub fn heal(&self) {
        self.set_line(Line::Whole);
    }

    /// Sets the one-way delay of what comes in from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// What it has handed on.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            up_bytes: self.counters.up_bytes.load(Ordering::Relaxed),
            down_bytes: self.counters.down_bytes.load(Ordering::Relaxed),
            connections: self.counters.connections.load(Ordering::Relaxed),
        }
    }

    /// Serves a line-based control port until it fails: `cut`, `stall`, `heal`,
    /// `delay MILLISECONDS`, `traffic`; every line is answered by one.
    pub async fn serve_control(&self, listener: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let answer = self.control(&line);
                if write.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    }

    fn control(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("cut"), None) => self.cut(),
            (Some("stall"), None) => self.stall(),
            (Some("heal"), None) => self.heal(),
            (Some("traffic"), None) => {
                let t = self.traffic();
                return format!("{} {} {}\n", t.up_bytes, t.down_bytes, t.connections);
            }
            (Some("delay"), Some(ms)) => match ms.parse() {
                Ok(ms) => self.set_delay(Duration::from_millis(ms)),
                Err(_) => return "error: delay MILLISECONDS\n".into(),
            },
            _ => return "error: cut, stall, heal, delay MILLISECONDS or traffic\n".into(),
        }
        "ok\n".into()
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    state: watch::Receiver<State>,
    counters: Arc<Counters>,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: they come back when connections end.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if state.borrow().line == Line::Cut {
            reset(stream);
            continue;
        }
        counters.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(connection(stream, target.clone(), state.clone(), counters.clone()));
    }
}

/// Closes with a reset, as a cut line is noticed, not with an orderly end.
fn reset(stream: TcpStream) {
    // Fails only for a socket that is gone already.
    let _ = stream.set_zero_linger();
}

async fn connection(
    near: TcpStream,
    target: String,
    mut state: watch::Receiver<State>,
    counters: Arc<Counters>,
) {
    let Ok(far) = TcpStream::connect(&target).await else {
        return reset(near);
    };
    for stream in [&near, &far] {
        // Nodelay matters for the delay's exactness; without it the proxy still works. Zero
        // linger makes a dropped socket a reset, whichever task drops it.
        let _ = stream.set_nodelay(true);
        let _ = stream.set_zero_linger();
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let up = pump(near_read, far_write, Way::Up, state.clone(), &counters.up_bytes);
    let down = pump(far_read, near_write, Way::Down, state.clone(), &counters.down_bytes);
    tokio::select! {
        () = async { tokio::join!(up, down); } => {}
        // Dropping the pumps drops the sockets.
        _ = state.wait_for(|state| state.line == Line::Cut) => {}
    }
}

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// Hands one direction on until its source ends, then the end too.
async fn pump(
    mut read: OwnedReadHalf,
    mut write: OwnedWriteHalf,
    way: Way,
    state: watch::Receiver<State>,
    counter: &AtomicU64,
) {
    let (send, mut receive) = mpsc::channel::<Chunk>(CHUNKS_MAX);
    let delays = state.clone();
    let source = async move {
        loop {
            let mut bytes = vec![0; CHUNK_BYTES];
            match read.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(count) => bytes.truncate(count),
            }
            let due = Instant::now() + delays.borrow().delay;
            if send.send(Chunk { due, bytes }).await.is_err() {
                return;
            }
        }
    };
    let sink = async move {
        let mut state = state;
        while let Some(chunk) = receive.recv().await {
            tokio::time::sleep_until(chunk.due).await;
            let torn = state.borrow().line == Line::Torn;
            let (first, rest) = chunk.bytes.split_at(if torn { chunk.bytes.len() / 2 } else { 0 });
            // Nothing is said by nothing.
            if write.write_all(first).await.is_err() {
                return;
            }
            if state.wait_for(|state| state.passes(way)).await.is_err() {
                return;
            }
            if write.write_all(rest).await.is_err() {
                return;
            }
            counter.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        }
        // Fails only for a socket that is gone already.
        let _ = write.shutdown().await;
    };
    tokio::join!(source, sink);
}

#[cfg(test)]
mod tests;
