//! Inputs and outputs of the relay machine.

use crate::machine::{LinkInput, LinkOutput};
use crate::message::CloseReason;
use crate::time::WallTime;

/// What the relay is told.
#[derive(Clone, PartialEq, Debug)]
pub enum RelayInput {
    /// Of its links, up and down. After a link up was closed its driver connects again, with
    /// jittered back-off, and says `UpOpened` with a new number.
    Link(LinkInput),
    /// The relay's wall clock, handed in with a regular tick (at least once a second).
    WallClock(WallTime),
}

/// What the relay asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum RelayOutput {
    /// On a link.
    Link(LinkOutput),
    /// Tell the process.
    Notice(RelayNotice),
}

/// What the relay tells its process, unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayNotice {
    /// The parent's domains are followed, or one of several parents': children are welcomed from here on.
    Ready,
    /// The link up is gone, and no other parent's domains are followed: readiness fails, children keep what they
    /// have.
    Lost,
    /// The parent refused the link in a way that waiting does not mend (identity, version, forked
    /// history, rights): to be shown to the operator.
    Refused {
        /// Why.
        reason: CloseReason,
    },
}
