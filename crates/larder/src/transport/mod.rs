//! Links over TCP with mutual TLS: dialling, listening, one reader and one writer task a link. To the
//! parent, from children, and between neighbours; and datagrams between the processes of a group.
//!
//! Between a link and its machine stand two bounded queues. Towards the machine a full queue makes
//! the reader wait, and so the socket, and so the peer. Towards the peer the machine never waits:
//! a peer that lets more than `link.queue` bytes lie is cut off (P7).

mod connect;
mod datagrams;
mod dial;
mod link;
mod listen;
mod look;
mod neighbours;
mod outgoing;

pub(crate) use datagrams::{Datagrams, check_frames};
pub(crate) use dial::{Dialer, LinkState, LinkWatch, Parent, ParentWatch};
pub(crate) use link::{LinkEvent, LinkSetup};
pub(crate) use listen::{Door, Guests, Links, Listener};
pub(crate) use look::Looker;
pub(crate) use neighbours::NeighbourDialer;
pub(crate) use outgoing::LinkSender;

use rustix::net::sockopt;
use socket2::SockRef;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes that the kernel takes from a link before it has sent what it took earlier. What it took
/// cannot be overtaken: with its own bound (megabytes), a beat would wait behind that many pages.
/// Half of it has to last until the writer has run again: a quarter millisecond at 1 Gbit/s.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// What every link's socket is set to: no delay for small messages, little in the kernel that
/// they cannot overtake, and the kernel finds out by itself when the other machine is gone.
fn prepare(stream: &TcpStream, write_limit: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    let millis = u32::try_from(write_limit.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}
