//! Links over TCP with mutual TLS: dialling, listening, one reader and one writer task a link.
//!
//! Between a link and its machine stand two bounded queues. Towards the machine a full queue makes
//! the reader wait, and so the socket, and so the peer. Towards the peer the machine never waits:
//! a peer that lets more than `link.queue` bytes lie is cut off (P7).

mod dial;
mod link;
mod listen;
mod outgoing;

pub(crate) use dial::{Dialer, LinkState, LinkWatch};
pub(crate) use link::{LinkEvent, LinkSetup};
pub(crate) use listen::Listener;
pub(crate) use outgoing::LinkSender;

use rustix::net::sockopt;
use std::time::Duration;
use tokio::net::TcpStream;

/// What every link's socket is set to: no delay for small messages, and the kernel finds out by
/// itself when the other machine is gone.
fn prepare(stream: &TcpStream, write_limit: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    let millis = u32::try_from(write_limit.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}
