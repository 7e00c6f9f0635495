//! Who takes part in a group, and how fast it is noticed that somebody does not any more.

use crate::id::BootId;
use crate::machine::Faults;
use crate::time::Duration;

/// Whether a process may be its group's redirector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Candidacy {
    /// It is, whenever it is there: nobody else is meanwhile, but for another one that is pinned.
    Pinned,
    /// It may be elected. Of several that may the one with the lowest number is, and of those the one
    /// with the lowest life.
    May(u8),
    /// It never is.
    Never,
}

/// A process of a group, as the others know it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Participant {
    /// Its life. A process that starts again is another participant.
    pub life: BootId,
    /// Its name, as in its certificate: at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Where datagrams reach it, and its redirector if it is one: at most
    /// [`super::super::ADDRESS_BYTES_MAX`] bytes, of no meaning to the machines.
    pub address: String,
    /// Whether it may be the redirector.
    pub candidacy: Candidacy,
}

/// Longest name of a participant, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// What a participant is told at its start. With the defaults a redirector that is gone has been replaced in
/// less than 1.5 seconds on a LAN.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MembershipConfig {
    /// The group's name, at most [`NAME_BYTES_MAX`] bytes: what comes from another group is dropped.
    pub group: String,
    /// This process.
    pub own: Participant,
    /// Addresses at which others may be found. Every one of them from which nobody is known is asked in
    /// turn, for good: that is how parts of a group find each other again.
    pub seeds: Vec<String>,
    /// How often one of the others is asked whether it is there, each in turn. Default: 250 ms.
    pub probe_every: Duration,
    /// After so long without an answer others are asked to ask; less than `probe_every`. Default: 80 ms.
    pub probe_wait: Duration,
    /// Who is suspected, and does not object within this, is taken for gone. Default: 500 ms.
    pub suspect_max: Duration,
    /// Who is gone is remembered for so long. Default: 60 s.
    pub forget_after: Duration,
    /// How often a seed is asked, and one that is gone. Default: 500 ms.
    pub seek_every: Duration,
    /// A process that has just started looks for a redirector for so long before it is one. Default: 600 ms.
    pub settle: Duration,
    /// How long what concerns a redirector's own line takes.
    pub line: LineTimes,
    /// Seed of the machine's random numbers: who is asked first.
    pub seed: u64,
    /// Planted faults.
    pub faults: Faults,
}

/// How long what concerns a redirector's own line to its group's parent takes (decision 0042).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineTimes {
    /// A line that stood is cut when it has been away for so long: most are back by then. Default: 5 s.
    pub cut_after: Duration,
    /// One that never stood since its redirector is one is cut after this: longer than it may take to connect. A look
    /// may take twice as long.
    /// Default: 15 s.
    pub begun_after: Duration,
    /// How often a word of it is said, while there is anything to say. Default: 1 s.
    pub say_every: Duration,
    /// A redirector whose line is cut has so long to find that it stands again, once somebody else's is known to.
    /// Default: 4 s.
    pub grace: Duration,
    /// Pause between two looks at a line that is cut; it grows to 16 times as much. Default: 5 s.
    pub look_every: Duration,
    /// Who gave way does not look at his line for so long, and 16 times as long at most if that happens again.
    /// Default: 15 s.
    pub away: Duration,
}

impl Default for LineTimes {
    fn default() -> Self {
        Self {
            cut_after: Duration::from_secs(5),
            begun_after: Duration::from_secs(15),
            say_every: Duration::from_secs(1),
            grace: Duration::from_secs(4),
            look_every: Duration::from_secs(5),
            away: Duration::from_secs(15),
        }
    }
}

impl MembershipConfig {
    /// The usual times.
    #[must_use]
    pub fn new(group: &str, own: Participant) -> Self {
        Self {
            group: group.into(),
            seed: own.life.0 as u64,
            own,
            seeds: Vec::new(),
            probe_every: Duration::from_millis(250),
            probe_wait: Duration::from_millis(80),
            suspect_max: Duration::from_millis(500),
            forget_after: Duration::from_secs(60),
            seek_every: Duration::from_millis(500),
            settle: Duration::from_millis(600),
            line: LineTimes::default(),
            faults: Faults::NONE,
        }
    }
}
