//! What participants of a group say to each other: small datagrams, each on its own. They may be lost, come
//! twice or in any order; only who belongs to the group may be able to send them.

use super::line::LineWord;
use super::swim::{Identity, check_swim, read_identity, write_identity};
use super::{Claim, NAME_BYTES_MAX};
use crate::id::BootId;
use crate::wire::WireError;
use bytes::{Buf, BufMut, Bytes};
use prost::Message as _;

/// Longest datagram, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 4096;

/// Of them so many are for what `foca` says.
pub(super) const SWIM_BYTES_MAX: usize = 3 << 10;

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Say {
    /// Who is there, at this address?
    Who,
    /// The sender.
    Here(Identity),
    /// The sender, who leaves.
    Left(Identity),
    /// Only whom the sender follows.
    Claimed,
    /// A message of `foca`.
    Swim(Bytes),
    /// Whether the sender's own line to the group's parent stands.
    Line(Identity, LineWord),
    /// The sender gets no answer from the redirector, of this life, though it follows it.
    Missed(Identity, BootId),
}

/// A datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Datagram {
    pub(super) group: String,
    /// Whom the sender follows.
    pub(super) claim: Option<Claim>,
    pub(super) say: Say,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint32, tag = "3")]
    weight: u32,
    /// Empty: nobody is followed.
    #[prost(bytes = "bytes", tag = "4")]
    leader: Bytes,
    #[prost(uint32, tag = "5")]
    kind: u32,
    #[prost(bytes = "bytes", tag = "6")]
    body: Bytes,
}

impl Datagram {
    pub(super) fn encode(&self) -> Bytes {
        let (kind, body) = match &self.say {
            Say::Who => (1, Bytes::new()),
            Say::Here(identity) => (2, identity_bytes(identity)),
            Say::Left(identity) => (3, identity_bytes(identity)),
            Say::Claimed => (4, Bytes::new()),
            Say::Swim(bytes) => (5, bytes.clone()),
            Say::Line(identity, word) => (6, line_bytes(identity, *word)),
            Say::Missed(identity, missed) => (7, missed_bytes(identity, *missed)),
        };
        let claim = self.claim.unwrap_or_default();
        let leader = match self.claim {
            Some(claim) => Bytes::copy_from_slice(&claim.leader.0.to_be_bytes()),
            None => Bytes::new(),
        };
        let (group, term, weight) = (self.group.clone(), claim.term, claim.weight);
        Head { group, term, weight, leader, kind, body }.encode_to_vec().into()
    }

    /// Reads what came from anybody.
    pub(super) fn decode(bytes: Bytes) -> Result<Self, WireError> {
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return Err(WireError::Limit {
                what: "bytes of a datagram",
                limit: DATAGRAM_BYTES_MAX,
            });
        }
        let head =
            Head::decode(bytes).map_err(|_| WireError::Malformed("a datagram of a participant"))?;
        if head.group.len() > NAME_BYTES_MAX {
            return Err(WireError::Limit { what: "bytes of a name", limit: NAME_BYTES_MAX });
        }
        let say = match head.kind {
            1 => Say::Who,
            2 => Say::Here(identity_of(head.body)?),
            3 => Say::Left(identity_of(head.body)?),
            4 => Say::Claimed,
            5 => Say::Swim(head.body),
            6 => line_of(head.body)?,
            7 => missed_of(head.body)?,
            kind => return Err(WireError::UnknownKind(kind)),
        };
        let claim = match head.leader.len() {
            0 => None,
            16 => {
                let leader = BootId(head.leader.clone().get_u128());
                Some(Claim { term: head.term, weight: head.weight, leader })
            }
            _ => return Err(WireError::Malformed("a life that is none")),
        };
        Ok(Self { group: head.group, claim, say })
    }
}

/// Any bytes as a datagram, and as a message of `foca` in one. What is accepted is written and read again the
/// same. For fuzzing.
///
/// # Panics
/// It is not.
#[doc(hidden)]
pub fn check_datagram(bytes: &Bytes) {
    if let Ok(datagram) = Datagram::decode(bytes.clone()) {
        let again = datagram.encode();
        assert!(again.len() <= bytes.len(), "it is longer than what came");
        if let Say::Swim(bytes) = &datagram.say {
            check_swim(bytes);
        }
        assert_eq!(Datagram::decode(again), Ok(datagram));
    }
    check_swim(bytes);
}

fn identity_bytes(identity: &Identity) -> Bytes {
    let mut bytes = Vec::new();
    write_identity(identity, &mut bytes);
    bytes.into()
}

fn line_bytes(identity: &Identity, word: LineWord) -> Bytes {
    let mut bytes = Vec::new();
    bytes.put_u64(word.number);
    bytes.put_u8(u8::from(word.stands));
    write_identity(identity, &mut bytes);
    bytes.into()
}

fn line_of(mut body: Bytes) -> Result<Say, WireError> {
    let number = body.try_get_u64().map_err(|_| WireError::Malformed("a word of a line"))?;
    let stands = match body.try_get_u8() {
        Ok(0) => false,
        Ok(1) => true,
        _ => return Err(WireError::Malformed("whether a line stands")),
    };
    Ok(Say::Line(identity_of(body)?, LineWord { number, stands }))
}

fn missed_bytes(identity: &Identity, missed: BootId) -> Bytes {
    let mut bytes = Vec::new();
    bytes.put_u128(missed.0);
    write_identity(identity, &mut bytes);
    bytes.into()
}

fn missed_of(mut body: Bytes) -> Result<Say, WireError> {
    let missed = body.try_get_u128().map_err(|_| WireError::Malformed("who is missed"))?;
    Ok(Say::Missed(identity_of(body)?, BootId(missed)))
}

fn identity_of(mut body: Bytes) -> Result<Identity, WireError> {
    let identity = read_identity(&mut body)?;
    if body.is_empty() {
        return Ok(identity);
    }
    Err(WireError::Malformed("more than a participant"))
}
