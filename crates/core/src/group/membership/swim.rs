//! What `foca` needs from us: who is who, its messages as bytes, random numbers, and what it asks for.

use super::config::{Candidacy, NAME_BYTES_MAX, Participant};
use crate::group::ADDRESS_BYTES_MAX;
use crate::id::BootId;
use crate::rng::Rng;
use crate::time::Duration;
use crate::wire::WireError;
use bytes::{Buf, BufMut};
use foca::{Header, Member, Message, Notification, State, Timer};
use std::collections::BTreeSet;

/// The number of who never is a redirector.
const NEVER: u16 = u16::MAX;

/// A participant, and how often it was taken for gone and came back in this life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) participant: Participant,
    pub(super) renewed: u32,
}

impl foca::Identity for Identity {
    type Addr = BootId;

    fn renew(&self) -> Option<Self> {
        let renewed = self.renewed.checked_add(1)?;
        Some(Self { participant: self.participant.clone(), renewed })
    }

    fn addr(&self) -> BootId {
        self.participant.life
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.renewed > adversary.renewed
    }
}

/// The machine's random numbers, for `foca`.
pub(super) struct Numbers(pub(super) Rng);

impl rand::RngCore for Numbers {
    fn next_u32(&mut self) -> u32 {
        (self.0.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.0.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}

/// What `foca` asks for in one step.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) sends: Vec<(Identity, Vec<u8>)>,
    pub(super) timers: Vec<(Timer<Identity>, Duration)>,
}

impl foca::Runtime<Identity> for Asked {
    // Who is there is looked at after each step.
    fn notify(&mut self, _: Notification<'_, Identity>) {}

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        self.sends.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Identity>, after: Duration) {
        self.timers.push((event, after));
    }
}

/// Writes and reads what `foca` says. The layout is in `docs/formats/wire.md`.
pub(super) struct Codec;

impl foca::Codec<Identity> for Codec {
    type Error = WireError;

    fn encode_header(
        &mut self,
        header: &Header<Identity>,
        buf: impl BufMut,
    ) -> Result<(), WireError> {
        let mut bytes = Vec::new();
        write_identity(&header.src, &mut bytes);
        bytes.put_u16(header.src_incarnation);
        write_identity(&header.dst, &mut bytes);
        write_message(&header.message, &mut bytes);
        put(&bytes, buf)
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Identity>, WireError> {
        Ok(Header {
            src: read_identity(&mut buf)?,
            src_incarnation: number(&mut buf, 2)? as u16,
            dst: read_identity(&mut buf)?,
            message: read_message(&mut buf)?,
        })
    }

    fn encode_member(
        &mut self,
        member: &Member<Identity>,
        buf: impl BufMut,
    ) -> Result<(), WireError> {
        let mut bytes = Vec::new();
        write_identity(member.id(), &mut bytes);
        bytes.put_u16(member.incarnation());
        bytes.put_u8(match member.state() {
            State::Alive => 1,
            State::Suspect => 2,
            State::Down => 3,
        });
        put(&bytes, buf)
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<Identity>, WireError> {
        let identity = read_identity(&mut buf)?;
        let incarnation = number(&mut buf, 2)? as u16;
        let state = match number(&mut buf, 1)? {
            1 => State::Alive,
            2 => State::Suspect,
            3 => State::Down,
            _ => return Err(WireError::Malformed("no state of a participant")),
        };
        Ok(Member::new(identity, incarnation, state))
    }
}

/// Who says a message of `foca`, if it can be read.
pub(super) fn said_by(mut bytes: &[u8]) -> Result<Identity, WireError> {
    use foca::Codec as _;
    Ok(Codec.decode_header(&mut bytes)?.src)
}

/// All that is named in a message of `foca`, if it can be read.
pub(super) fn named(mut bytes: &[u8]) -> Result<BTreeSet<BootId>, WireError> {
    use foca::Codec as _;
    let header = Codec.decode_header(&mut bytes)?;
    let mut lives = BTreeSet::from([header.src.participant.life]);
    if bytes.is_empty() {
        return Ok(lives);
    }
    for _ in 0..number(&mut bytes, 2)? {
        lives.insert(Codec.decode_member(&mut bytes)?.id().participant.life);
    }
    if !bytes.is_empty() {
        return Err(WireError::Malformed("more than a message of a participant"));
    }
    Ok(lives)
}

/// Any bytes as a message of `foca`: what is read of them is written the same, and all of it is named. For
/// fuzzing.
pub(super) fn check_swim(bytes: &[u8]) {
    use foca::Codec as _;
    let (mut left, mut again) = (bytes, Vec::new());
    let Ok(header) = Codec.decode_header(&mut left) else {
        assert!(named(bytes).is_err(), "a message without a header");
        return;
    };
    Codec.encode_header(&header, &mut again).expect("there is room");
    assert!(bytes.starts_with(&again));
    let mut lives = BTreeSet::from([header.src.participant.life]);
    if !left.is_empty()
        && let Ok(members) = number(&mut left, 2)
    {
        again.extend((members as u16).to_be_bytes());
        for _ in 0..members {
            let Ok(member) = Codec.decode_member(&mut left) else { break };
            lives.insert(member.id().participant.life);
            Codec.encode_member(&member, &mut again).expect("there is room");
        }
    }
    assert!(bytes.starts_with(&again));
    if let Ok(named) = named(bytes) {
        assert_eq!((named, &again[..]), (lives, bytes));
    }
}

/// `foca` fills what room there is, and takes an error for the end of it.
fn put(bytes: &[u8], mut buf: impl BufMut) -> Result<(), WireError> {
    if buf.remaining_mut() < bytes.len() {
        return Err(WireError::Limit { what: "bytes of a datagram", limit: buf.remaining_mut() });
    }
    buf.put_slice(bytes);
    Ok(())
}

pub(super) fn write_identity(identity: &Identity, out: &mut Vec<u8>) {
    let Participant { life, name, address, candidacy } = &identity.participant;
    out.put_u128(life.0);
    out.put_u32(identity.renewed);
    out.put_u16(match candidacy {
        Candidacy::Pinned => 0,
        Candidacy::May(number) => 1 + u16::from(*number),
        Candidacy::Never => NEVER,
    });
    for text in [name, address] {
        let bytes = u16::try_from(text.len()).expect("names and addresses are bounded");
        out.put_u16(bytes);
        out.put_slice(text.as_bytes());
    }
}

pub(super) fn read_identity(buf: &mut impl Buf) -> Result<Identity, WireError> {
    let life = BootId(u128::from(number(buf, 8)?) << 64 | u128::from(number(buf, 8)?));
    let renewed = number(buf, 4)? as u32;
    let candidacy = match number(buf, 2)? as u16 {
        0 => Candidacy::Pinned,
        NEVER => Candidacy::Never,
        number => u8::try_from(number - 1)
            .map(Candidacy::May)
            .map_err(|_| WireError::Malformed("no candidacy"))?,
    };
    let name = text(buf, "bytes of a name", NAME_BYTES_MAX)?;
    let address = text(buf, "bytes of an address", ADDRESS_BYTES_MAX)?;
    Ok(Identity { participant: Participant { life, name, address, candidacy }, renewed })
}

fn write_message(message: &Message<Identity>, out: &mut Vec<u8>) {
    let (kind, other, number) = match message {
        Message::Ping(number) => (1, None, Some(*number)),
        Message::Ack(number) => (2, None, Some(*number)),
        Message::PingReq { target, probe_number } => (3, Some(target), Some(*probe_number)),
        Message::IndirectPing { origin, probe_number } => (4, Some(origin), Some(*probe_number)),
        Message::IndirectAck { target, probe_number } => (5, Some(target), Some(*probe_number)),
        Message::ForwardedAck { origin, probe_number } => (6, Some(origin), Some(*probe_number)),
        Message::Announce => (7, None, None),
        Message::Feed => (8, None, None),
        Message::Gossip => (9, None, None),
        Message::Broadcast => (10, None, None),
        Message::TurnUndead => (11, None, None),
    };
    out.put_u8(kind);
    if let Some(other) = other {
        write_identity(other, out);
    }
    out.extend(number);
}

fn read_message(buf: &mut impl Buf) -> Result<Message<Identity>, WireError> {
    let kind = number(buf, 1)?;
    let other = if matches!(kind, 3..=6) { Some(read_identity(buf)?) } else { None };
    let probe_number = if matches!(kind, 1..=6) { number(buf, 1)? as u8 } else { 0 };
    Ok(match (kind, other) {
        (1, _) => Message::Ping(probe_number),
        (2, _) => Message::Ack(probe_number),
        (3, Some(target)) => Message::PingReq { target, probe_number },
        (4, Some(origin)) => Message::IndirectPing { origin, probe_number },
        (5, Some(target)) => Message::IndirectAck { target, probe_number },
        (6, Some(origin)) => Message::ForwardedAck { origin, probe_number },
        (7, _) => Message::Announce,
        (8, _) => Message::Feed,
        (9, _) => Message::Gossip,
        (10, _) => Message::Broadcast,
        (11, _) => Message::TurnUndead,
        _ => return Err(WireError::Malformed("no message of a participant")),
    })
}

/// A big-endian number of so many bytes, eight at most.
fn number(buf: &mut impl Buf, bytes: usize) -> Result<u64, WireError> {
    if buf.remaining() < bytes {
        return Err(WireError::Malformed("a datagram that ends too early"));
    }
    Ok(buf.get_uint(bytes))
}

fn text(buf: &mut impl Buf, what: &'static str, limit: usize) -> Result<String, WireError> {
    let bytes = number(buf, 2)? as usize;
    if bytes > limit {
        return Err(WireError::Limit { what, limit });
    }
    if buf.remaining() < bytes {
        return Err(WireError::Malformed("a datagram that ends too early"));
    }
    let bytes = buf.copy_to_bytes(bytes);
    String::from_utf8(bytes.into()).map_err(|_| WireError::Malformed("text that is not UTF-8"))
}
