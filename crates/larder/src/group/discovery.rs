//! Finding others of a group on the LAN: each says now and then, by multicast, of which group it is and at which
//! port it listens. That is anybody's word: whoever is found is asked over a connection on which it has to prove itself.

use crate::config::GroupSection;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How often a process says where it is.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// Between two attempts to begin.
const BEGIN_EVERY: Duration = Duration::from_secs(5);
/// Of this format.
const MAGIC: &[u8; 8] = b"LRDgrp01";
/// Longest message: the group's name, which certificates bound to 63 bytes, and a port.
const BYTES_MAX: usize = MAGIC.len() + 2 + 63;

/// Looks for others from now on, and gives the addresses at which they listen to `found`, again and again. None:
/// the group has no multicast address.
pub(super) fn start(
    section: &GroupSection,
    group: &str,
    own: &str,
    found: mpsc::Sender<String>,
) -> Option<AbortHandle> {
    let SocketAddr::V4(at) = section.multicast.parse().ok()? else { return None };
    let port = own.rsplit_once(':')?.1.parse().ok()?;
    let (group, own) = (group.to_owned(), own.to_owned());
    Some(tokio::spawn(look(at, group, (own, port), found)).abort_handle())
}

async fn look(
    at: SocketAddrV4,
    group: String,
    (own, port): (String, u16),
    found: mpsc::Sender<String>,
) {
    let mut told = false;
    loop {
        let Err(error) = look_once(at, &group, (&own, port), &found).await;
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(%at, %error, "group.multicast: nobody is found by it");
        }
        sleep(BEGIN_EVERY).await;
    }
}

/// Says, and listens, until that fails.
async fn look_once(
    at: SocketAddrV4,
    group: &str,
    (own, port): (&str, u16),
    found: &mpsc::Sender<String>,
) -> io::Result<std::convert::Infallible> {
    let socket = open(at)?;
    let said = encode(group, port);
    let mut says = interval(SAY_EVERY);
    says.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut bytes = [0; BYTES_MAX + 1];
    loop {
        tokio::select! {
            _ = says.tick() => {
                // Where the line is down now it is up again later.
                let _ = socket.send_to(&said, at).await;
            }
            received = socket.recv_from(&mut bytes) => {
                let (count, from) = received?;
                // Nobody has others dialled than the machine that says so.
                match decode(&bytes[..count]) {
                    Some((of, port)) if of == group => {
                        let address = SocketAddr::new(from.ip(), port).to_string();
                        if address != own {
                            let _ = found.try_send(address);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Several processes of a machine listen at one port.
fn open(at: SocketAddrV4) -> io::Result<UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::V4(at).into())?;
    socket.join_multicast_v4(at.ip(), &Ipv4Addr::UNSPECIFIED)?;
    socket.set_multicast_loop_v4(true)?;
    // Not beyond the LAN.
    socket.set_multicast_ttl_v4(1)?;
    UdpSocket::from_std(socket.into())
}

fn encode(group: &str, port: u16) -> Vec<u8> {
    [MAGIC, &port.to_be_bytes()[..], group.as_bytes()].concat()
}

/// The group and the port of a message; none: it is no such message.
fn decode(bytes: &[u8]) -> Option<(&str, u16)> {
    let (port, group) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
    Some((std::str::from_utf8(group).ok()?, u16::from_be_bytes(*port)))
}

/// Any bytes as such a message: what is taken for one is written the same. For fuzzing.
pub(crate) fn check_message(bytes: &[u8]) {
    // As much of it as is received.
    let bytes = &bytes[..bytes.len().min(BYTES_MAX + 1)];
    if let Some((group, port)) = decode(bytes) {
        assert_eq!(encode(group, port), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::rng::Rng;

    #[test]
    fn what_is_said_is_understood() {
        assert_eq!(decode(&encode("site1", 4785)), Some(("site1", 4785)));
        assert!(encode(&"g".repeat(63), 1).len() <= BYTES_MAX);
    }

    /// Anybody on the LAN may send anything.
    #[test]
    fn any_bytes_are_taken() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..rng.below(40)).map(|_| rng.below(256) as u8).collect();
            if rng.chance(1, 2) {
                bytes = [&MAGIC[..], &bytes].concat();
            }
            if let Some((group, port)) = decode(&bytes) {
                assert_eq!(decode(&encode(group, port)), Some((group, port)));
            }
        }
    }
}
