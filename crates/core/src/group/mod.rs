//! Groups: neighbours share their caches (decision 0031).
//!
//! | file | what |
//! |---|---|
//! | `message` | what members, redirector and neighbours say to each other |
//! | `config` | bounds |
//! | `directory` | who has which page complete, and which transfers are under way |
//! | `status` | what is told to operators |
//! | `updates` | what neighbours commit, until the stream tells of it |
//! | `membership` | who is there, and who is the redirector now (decision 0034) |
//!
//! The redirector is a relay with a directory (`relay/group.rs`); a member is a node whose cache asks
//! neighbours and helps them (`cache/machine/neighbours.rs`, `helps.rs`).

mod config;
pub(crate) mod directory;
pub mod membership;
pub mod message;
mod status;
pub(crate) mod updates;

use crate::message::CloseReason;
pub use config::{GroupConfig, MemberConfig};
pub use message::{
    ADDRESS_BYTES_MAX, GROUPS_SINCE, GroupMessage, HOLES_SINCE, HelpEnd, Lack, MEMBERS_MAX, Member,
    Sender, messages,
};
pub use status::{GroupStatus, MemberStatus, MembershipStatus, NeighbourStatus};

/// Why somebody is no member whose certificate is not of the group.
pub(crate) fn not_in_group(name: &str) -> CloseReason {
    CloseReason::Forbidden(format!(
        "the certificate of {name} is not of this group: renew it with `larder ca renew {name} \
         --group GROUP`"
    ))
}
