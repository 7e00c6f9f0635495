//! What origins say to each other over the links between them (decision 0038). It travels in the control lane.

use super::Between;
use crate::id::{DomainId, Stamp};
use crate::message::{DomainInfo, Versions};

/// The protocol version that brought links between origins.
pub const ORIGINS_SINCE: u32 = 6;

/// A message between origins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OriginMessage {
    /// The first words of both sides.
    Greets {
        /// What it speaks.
        versions: Versions,
        /// Its name, as in its certificate.
        name: String,
        /// It serves on though its store may have been restored from an older copy, which its operator has accepted.
        accept_fork: bool,
    },
    /// All domains that are here, ascending, at most [`crate::message::DOMAINS_MAX`], each with its line: none while it is not
    /// served. Said after the first words, and again when something of it has changed.
    Serves {
        /// Which.
        domains: Vec<DomainInfo>,
    },
    /// What a domain here says to one that the other side serves. Nothing waits for it: it is said again.
    Says {
        /// Who says it.
        from: DomainId,
        /// To whom.
        to: DomainId,
        /// The last stamp of who says it that is durable: a line that goes on from before it is another's (P12).
        through: Stamp,
        /// What.
        between: Between,
    },
}
