//! Finding others of a group on the LAN: each says now and then, by multicast, of which group it is and where it
//! listens. That is anybody's word: whoever is found is asked over a connection on which it has to prove itself.

use crate::config::GroupSection;
use larder_core::group::ADDRESS_BYTES_MAX;
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
/// Longest message: the group's name, which certificates bound to 63 bytes, and an address.
const BYTES_MAX: usize = MAGIC.len() + 1 + 63 + ADDRESS_BYTES_MAX;

/// Looks for others from now on, and gives the addresses at which they listen to `found`, again and again. None:
/// the group has no multicast address.
pub(super) fn start(
    section: &GroupSection,
    group: &str,
    own: &str,
    found: mpsc::Sender<String>,
) -> Option<AbortHandle> {
    let SocketAddr::V4(at) = section.multicast.parse().ok()? else { return None };
    let (group, own) = (group.to_owned(), own.to_owned());
    Some(tokio::spawn(look(at, group, own, found)).abort_handle())
}

async fn look(at: SocketAddrV4, group: String, own: String, found: mpsc::Sender<String>) {
    let mut told = false;
    loop {
        let Err(error) = look_once(at, &group, &own, &found).await;
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
    own: &str,
    found: &mpsc::Sender<String>,
) -> io::Result<std::convert::Infallible> {
    let socket = open(at)?;
    let said = encode(group, own);
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
                let (count, _) = received?;
                match decode(&bytes[..count]) {
                    Some((of, address)) if of == group && address != own => {
                        let _ = found.try_send(address.to_owned());
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

fn encode(group: &str, address: &str) -> Vec<u8> {
    let length = u8::try_from(group.len()).expect("certificates bound the names of groups");
    [MAGIC, &[length][..], group.as_bytes(), address.as_bytes()].concat()
}

/// The group and the address of a message; none: it is no such message.
fn decode(bytes: &[u8]) -> Option<(&str, &str)> {
    let (length, rest) = bytes.strip_prefix(MAGIC)?.split_first()?;
    let (group, address) = rest.split_at_checked(usize::from(*length))?;
    let (group, address) = (std::str::from_utf8(group).ok()?, std::str::from_utf8(address).ok()?);
    let sound = !address.is_empty()
        && address.len() <= ADDRESS_BYTES_MAX
        && address.bytes().all(|byte| byte.is_ascii_graphic());
    sound.then_some((group, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::rng::Rng;

    #[test]
    fn what_is_said_is_understood() {
        assert_eq!(decode(&encode("site1", "10.0.0.1:4785")), Some(("site1", "10.0.0.1:4785")));
        assert!(encode(&"g".repeat(63), &"a".repeat(ADDRESS_BYTES_MAX)).len() <= BYTES_MAX);
        for wrong in ["", "10.0.0.1:47 85", "\u{7f}"] {
            assert_eq!(decode(&encode("site1", wrong)), None, "{wrong:?}");
        }
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
            if let Some((_, address)) = decode(&bytes) {
                assert!((1..=ADDRESS_BYTES_MAX).contains(&address.len()));
            }
        }
    }
}
