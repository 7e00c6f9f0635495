//! Who noticed that a promise was broken, by the words and the place of a failure: a planted fault is
//! caught only by what it breaks.

use std::collections::BTreeSet;
use std::fmt;

/// A promise, a rule, or another thing that some checker watches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum By {
    /// A promise of the design: `P3`.
    Promise(u8),
    /// A rule of the protocol.
    Rule(u8),
    /// Something does not come to its end once all has healed.
    Progress,
    /// Somebody did or read what he may not, or was refused what he may do.
    Rights,
    /// A commit passed its volume's quota.
    Quota,
    /// Something was done to a volume that was deleted.
    Deletions,
    /// An answer said no, and nothing in the log says why.
    Refusal,
    /// A state is older than a client was promised.
    Age,
    /// A transaction does not read what it wrote itself.
    Own,
    /// A machine says that another one speaks nonsense.
    Protocol,
    /// The log: what is in it was asked for by nobody, or asked for in other words.
    Asked,
    /// The log: its records do not follow from each other.
    Log,
    /// A machine's own assertions.
    Machines,
    /// The store's own assertions.
    Store,
    /// The file layer: link counts, names, and what nothing leads to.
    Tree,
    /// The file layer: two locks where one excludes the other.
    Locks,
    /// The file layer: files without a name that are open, or that nobody holds.
    Open,
    /// The file layer: what a commit did is not what its operation asks for.
    Step,
    /// The file layer: bytes.
    Bytes,
    /// The file layer: what was synced.
    Sync,
    /// The file layer: what an operation answered.
    Answers,
    /// The runtime: what its nodes and links hold at rest.
    Held,
    /// The runtime: links at rest.
    Links,
    /// The runtime: what watchers were told.
    Events,
    /// The runtime: an answer to another question.
    Crossed,
    /// Nothing that is known here.
    Other,
}

/// Words of checkers that begin with no name of a promise, or of several that begin alike; the first that
/// is found counts.
const WORDS: &[(&str, By)] = &[
    ("as no older than", By::Age),
    ("ends its service for no reason", By::Log),
    ("accuses the other end of", By::Protocol),
    ("commits what no client asked for", By::Asked),
    ("was never sent: ", By::Asked),
    (", asked was ", By::Asked),
    ("files: the tree cannot", By::Tree),
    (": locks of ", By::Locks),
    ("files: at ", By::Tree),
    ("which is open there", By::Open),
    (" has open and changed ", By::Open),
    ("are not freed", By::Open),
    (" is in no commit", By::Sync),
    (" clears byte ", By::Bytes),
    (" puts at byte ", By::Bytes),
    (", which nobody wrote", By::Bytes),
    (", where nobody wrote", By::Bytes),
    (") left ", By::Bytes),
    ("it was to ", By::Step),
    (" is done twice: ", By::Step),
    (" changes the ", By::Step),
    (") cuts ", By::Step),
    ("no commit did it", By::Step),
    ("progress: a process of files", By::Progress),
    ("progress: tasks of files", By::Progress),
    ("files: ", By::Answers),
    ("at rest", By::Held),
    ("links: ", By::Links),
    ("leak: ", By::Held),
    ("events: ", By::Events),
    ("unreachable code: an outcome was asked for", By::Crossed),
    ("unreachable code: pages were asked for", By::Crossed),
    ("unreachable code: a volume was asked for", By::Crossed),
    ("is no outcome", By::Crossed),
    ("is no range", By::Crossed),
    ("answers no ", By::Crossed),
    ("the list of volumes lacks one", By::Crossed),
];

/// Places of checkers, and of the system itself, likewise.
const PLACES: &[(&str, By)] = &[
    ("sim/src/check/history.rs", By::Log),
    ("crates/core/", By::Machines),
    ("crates/store/", By::Store),
];

impl By {
    /// Everything that a failure's words name.
    #[must_use]
    pub fn of(what: &str) -> BTreeSet<Self> {
        let (words, place) = what.rsplit_once('[').unwrap_or((what, ""));
        let head = words.split_once(": ").map_or("", |(head, _)| head);
        // "P5 (an earlier read)" is P5.
        let head = head.split_once(" (").map_or(head, |(head, _)| head);
        let mut named: BTreeSet<Self> = head.split(", ").filter_map(Self::named).collect();
        let said = WORDS.iter().find(|(said, _)| words.contains(said)).map(|(_, by)| *by);
        // The words of a promise may hold anything: what was seen, asked, or said by somebody else.
        if named.is_empty() || said == Some(Self::Held) {
            named.extend(said);
        }
        if named.is_empty() {
            let at = PLACES.iter().find(|(at, _)| place.contains(at)).map(|(_, by)| *by);
            named.insert(at.unwrap_or(Self::Other));
        }
        named
    }

    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "progress" => Self::Progress,
            "rights" => Self::Rights,
            "quota" => Self::Quota,
            "deletions" => Self::Deletions,
            "refusal" => Self::Refusal,
            "own writes" => Self::Own,
            _ => match word.strip_prefix("rule ") {
                Some(rule) => Self::Rule(rule.parse().ok()?),
                None => Self::Promise(word.strip_prefix('P')?.parse().ok()?),
            },
        })
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Promise(number) => return write!(f, "P{number}"),
            Self::Rule(number) => return write!(f, "rule {number}"),
            Self::Progress => "progress",
            Self::Rights => "rights",
            Self::Quota => "quota",
            Self::Deletions => "deletions",
            Self::Refusal => "refusals",
            Self::Age => "the age of a state",
            Self::Own => "a transaction's own writes",
            Self::Protocol => "a machine that is accused",
            Self::Asked => "the log: what nobody asked for",
            Self::Log => "the log's own order",
            Self::Machines => "the machines' own checks",
            Self::Store => "the store's own checks",
            Self::Tree => "the tree",
            Self::Locks => "locks",
            Self::Open => "files that are open",
            Self::Step => "the step of a commit",
            Self::Bytes => "bytes",
            Self::Sync => "fsync",
            Self::Answers => "answers",
            Self::Held => "what is held at rest",
            Self::Links => "links at rest",
            Self::Events => "events",
            Self::Crossed => "an answer to another question",
            Self::Other => "nothing that has a name",
        }
        .fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_by_its_words_and_its_place() {
        let cases: [(&str, &[By]); 10] = [
            (
                "P3: NodeId shows progress: 3 [crates/sim/src/check/copies.rs:1:2]",
                &[By::Promise(3)],
            ),
            ("P5 (an earlier read): client 3 saw [1, 2] [x.rs:1:1]", &[By::Promise(5)]),
            (
                "P1, P11: the client of 3 was told None [x.rs:1:1]",
                &[By::Promise(1), By::Promise(11)],
            ),
            ("rule 13: told of a conflict [x.rs:1:1]", &[By::Rule(13)]),
            ("progress: 240 s after healing the log is busy [x.rs:1:1]", &[By::Progress]),
            ("client 1 is given the state of 2 as no older than 3 ns [x.rs:1:1]", &[By::Age]),
            ("files: at 3, after a commit of None: inode 3 counts 2 links of 1 [x]", &[By::Tree]),
            ("attempt to subtract with overflow [crates/core/src/a.rs:1:1]", &[By::Machines]),
            ("Px: y [crates/larder/src/a.rs:1:1]", &[By::Other]),
            ("a panic without words [crates/sim/src/a.rs:1:1]", &[By::Other]),
        ];
        for (what, by) in cases {
            assert_eq!(By::of(what), by.iter().copied().collect(), "{what}");
        }
    }
}
