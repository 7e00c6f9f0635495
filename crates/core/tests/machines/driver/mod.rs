//! Well-formed messages that lie, put to the machines.
//!
//! Bytes are read as a sequence of choices: a link opens or closes, a message comes, the store
//! answers, time passes. What is said is near the truth, with small numbers that collide, so that
//! it gets deep. The machines must not panic, their invariants must hold (`Machine::check`), they
//! must not spin, and must say on each link only what the protocol allows there.
//!
//! The tests here drive it with drawn bytes, and `fuzz/fuzz_targets/machines.rs` with those that a
//! fuzzer finds.

mod cache;
mod child;
mod children;
mod choices;
mod neighbours;
mod origin;
mod parent;
mod peers;
mod relay;

pub(crate) use choices::Choices;
use larder_core::downlink::DownlinkConfig;
use larder_core::group::Sender;
use larder_core::machine::Machine;
use larder_core::message::{LinkLimits, Message};
use larder_core::time::{Duration, Instant};
use larder_core::wire::{decode, encode};

/// Most things that happen in one run.
const EVENTS_MAX: usize = 4000;
/// A machine that wants the same instant more often than this spins.
const ALARMS_MAX: usize = 1000;

/// Which machine is lied to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    Origin,
    Cache,
    Relay,
    /// A cache with neighbours.
    Member,
    /// A relay that points members to each other.
    Redirector,
}

/// How far lies came: so that they do not all end at the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reached {
    /// Parts of transactions over two domains that an origin prepared.
    pub(crate) prepared: u64,
    /// Of those transactions, the ones that it committed.
    pub(crate) decided: u64,
    /// Members that a redirector pointed to a neighbour, or had help.
    pub(crate) pointed: u64,
    /// Pages that a member gave to a neighbour.
    pub(crate) helped: u64,
}

/// One run.
pub(crate) fn run(victim: Victim, c: &mut Choices<'_>) -> Reached {
    match victim {
        Victim::Origin => origin::run(c),
        Victim::Cache => cache::run(c, false),
        Victim::Relay => relay::run(c, false),
        Victim::Member => cache::run(c, true),
        Victim::Redirector => relay::run(c, true),
    }
}

/// A lie as it arrives, and how long it is; none: no decoder lets it in.
fn carried(message: &Message) -> Option<(Message, u32)> {
    let encoded = encode(message);
    let bytes = u32::try_from(encoded.len()).ok()?;
    Some((decode(message.lane(), encoded).ok()??, bytes))
}

/// What a machine says must arrive as it was said.
fn assert_carried(message: &Message) {
    let arrived = decode(message.lane(), encode(message));
    assert_eq!(arrived.as_ref(), Ok(&Some(message.clone())), "a message that does not arrive");
}

/// Whether only a child says it.
fn is_upward(message: &Message) -> bool {
    matches!(
        message,
        Message::Hello { .. }
            | Message::Resume { .. }
            | Message::Register { .. }
            | Message::Left { .. }
            | Message::Fetch { .. }
            | Message::Evicted { .. }
            | Message::Holding { .. }
            | Message::Confirm { .. }
            | Message::AllocateIds { .. }
            | Message::OpenVolume { .. }
            | Message::ListVolumes { .. }
            | Message::CreateVolume { .. }
            | Message::ChangeVolume { .. }
            | Message::DeleteVolume { .. }
            | Message::AskRights { .. }
            | Message::For { .. }
            | Message::CopyPages { .. }
            | Message::Beat { .. }
            | Message::Refresh { .. }
            | Message::Credit { .. }
            | Message::Commit { .. }
    ) || matches!(message, Message::Group(group) if group.sender() == Sender::Member)
}

/// Limits that are met within a few messages.
fn narrow() -> DownlinkConfig {
    let limits = LinkLimits {
        requests_max: 24,
        stream_window_bytes: 4096,
        bulk_window_bytes: 16_384,
        lease: Duration::from_secs(3),
    };
    DownlinkConfig {
        limits,
        links_max: 6,
        processes_max: 3,
        names_per_link_max: 3,
        registered_pages_max: 8,
        advance_bytes: 256,
        ring_commits_max: 6,
        ..DownlinkConfig::default()
    }
}

/// How much time passes.
fn some_time(c: &mut Choices<'_>) -> Duration {
    let milliseconds = [0, 1, 5, 25, 250, 1000, 1000, 4000, 16_000][c.below(9)];
    Duration::from_millis(milliseconds)
}

/// Calls the machine whenever it wants, up to `until`; what it asks for goes to `done`.
fn pass<M: Machine>(
    machine: &mut M,
    now: &mut Instant,
    until: Instant,
    mut done: impl FnMut(Instant, Vec<M::Output>),
) {
    let mut alarms = 0;
    while let Some(at) = machine.next_timeout().filter(|at| *at <= until) {
        alarms = if at > *now { 0 } else { alarms + 1 };
        assert!(alarms < ALARMS_MAX, "the machine spins");
        *now = at.max(*now);
        let mut out = Vec::new();
        machine.handle_timeout(*now, &mut out);
        done(*now, out);
    }
    *now = until;
}
