//! A run as a file: its plan and what was decided, so that it is played again after the plans that
//! seeds draw have changed, and can be made smaller. JSON, to be read and edited by people too.

use crate::agenda::Time;
use crate::decisions::{Decision, FileTurn};
use crate::plan::{Plan, Trouble};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Everything that decides what happens in a run. A field that is not known is refused: without it the run
/// would be another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The promise that it broke, and where that was noticed; none: it is clean.
    pub fails: Option<String>,
    /// When its troubles ended, in nanoseconds of virtual time.
    pub wild_until: u64,
    /// Clients begin nothing more from then on: of a run that was shrunk, if it fails all the same.
    #[serde(default)]
    pub calm: bool,
    /// What its clients and its troubles did until then, in order.
    pub decisions: Vec<Decision>,
    /// All else.
    pub plan: Plan,
}

/// A recording that cannot be read.
#[derive(Debug)]
pub struct RecordingError(String);

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RecordingError {}

impl Recording {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, RecordingError> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| RecordingError(format!("{name}: {error}")))?;
        let recording: Self = serde_json::from_str(&text)
            .map_err(|error| RecordingError(format!("{name} is no recording of a run: {error}")))?;
        recording.plan.check().map_err(|what| RecordingError(format!("{name}: {what}")))?;
        Ok(recording)
    }

    /// Writes a file, and the folder that it is in.
    pub fn write(&self, path: &Path) -> Result<(), RecordingError> {
        let text =
            serde_json::to_string_pretty(self).expect("a plan has nothing that JSON has not");
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder
            .and_then(|()| std::fs::write(path, text + "\n"))
            .map_err(|error| RecordingError(format!("{}: {error}", path.display())))
    }

    /// When its troubles end.
    #[must_use]
    pub fn wild_until(&self) -> Time {
        Time(self.wild_until)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strike { trouble, number } => write!(f, "trouble {trouble:?} {number}"),
            Self::Begin { client, number, at, operations, without } => {
                write!(f, "client {client} begins {number} at {} of {operations}", at.0)?;
                if !without.is_empty() {
                    write!(f, " without")?;
                }
                without.iter().try_for_each(|operation| write!(f, " {operation}"))
            }
            Self::Files(FileTurn { node, client, number, at, kind }) => {
                write!(f, "files {node} {client} does {number} {kind} at {}", at.0)
            }
        }
    }
}

impl FromStr for Decision {
    type Err = RecordingError;

    fn from_str(text: &str) -> Result<Self, RecordingError> {
        let words: Vec<&str> = text.split(' ').collect();
        let parsed = match words.as_slice() {
            ["trouble", kind, number] => Trouble::of_name(kind)
                .zip(number.parse().ok())
                .map(|(trouble, number)| Self::Strike { trouble, number }),
            ["client", client, "begins", number, "at", at, "of", operations, rest @ ..] => {
                parse_begin([client, number, at, operations], rest)
            }
            ["files", node, client, "does", number, kind, "at", at] => {
                parse_files([node, client, number, at], kind).map(Self::Files)
            }
            _ => None,
        };
        parsed.ok_or_else(|| RecordingError(format!("{text:?} is no decision")))
    }
}

fn parse_begin(numbers: [&str; 4], rest: &[&str]) -> Option<Decision> {
    let without: Option<BTreeSet<u32>> = match rest {
        [] => Some(BTreeSet::new()),
        ["without", operations @ ..] => operations.iter().map(|word| word.parse().ok()).collect(),
        _ => None,
    };
    let [client, number, at, operations] = numbers;
    Some(Decision::Begin {
        client: client.parse().ok()?,
        number: number.parse().ok()?,
        at: Time(at.parse().ok()?),
        operations: operations.parse().ok()?,
        without: without?,
    })
}

fn parse_files([node, client, number, at]: [&str; 4], kind: &str) -> Option<FileTurn> {
    Some(FileTurn {
        node: node.parse().ok()?,
        client: client.parse().ok()?,
        number: number.parse().ok()?,
        at: Time(at.parse().ok()?),
        kind: kind.to_owned(),
    })
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Decision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Planted faults by their names, for the plan's serialization.
pub(crate) mod fault_names {
    use crate::planted::{name_of, of_name};
    use larder_core::machine::Faults;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(faults: &Faults, to: S) -> Result<S::Ok, S::Error> {
        name_of(*faults).into_iter().collect::<Vec<_>>().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Faults, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        match names.as_slice() {
            [] => Ok(Faults::NONE),
            [name] => match of_name(name) {
                Some(fault) => Ok(Faults::only(fault)),
                None => Err(D::Error::custom(format!("no planted fault is called {name:?}"))),
            },
            _ => Err(D::Error::custom("one planted fault at a time")),
        }
    }
}

/// The same of the file layer's.
#[cfg(feature = "files")]
pub(crate) mod file_fault_names {
    use crate::planted::FILE_FAULTS;
    use larder::fs::FsFaults;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(faults: &FsFaults, to: S) -> Result<S::Ok, S::Error> {
        let planted = FILE_FAULTS.iter().find(|known| faults.has(known.fault));
        planted.map(|planted| planted.name).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FsFaults, D::Error> {
        let Some(name) = Option::<String>::deserialize(from)? else { return Ok(FsFaults::NONE) };
        let known = crate::planted::file_fault_of_name(&name);
        let unknown = || D::Error::custom(format!("no planted fault of files is called {name:?}"));
        known.map(FsFaults::only).ok_or_else(unknown)
    }
}

/// Policies by their names, likewise.
pub(crate) mod policy_names {
    use larder_core::cache::PolicyKind;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(policy: &PolicyKind, to: S) -> Result<S::Ok, S::Error> {
        match policy {
            PolicyKind::S3Fifo => "S3-FIFO",
            PolicyKind::Lru => "LRU",
        }
        .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PolicyKind, D::Error> {
        match String::deserialize(from)?.as_str() {
            "S3-FIFO" => Ok(PolicyKind::S3Fifo),
            "LRU" => Ok(PolicyKind::Lru),
            other => Err(D::Error::custom(format!("{other:?} is no policy"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_read_as_they_are_written() {
        let begin = Decision::Begin {
            client: 3,
            number: 17,
            at: Time(1_300),
            operations: 8,
            without: [2, 5].into(),
        };
        let strike = Decision::Strike { trouble: Trouble::Break, number: 3 };
        let files = Decision::Files(FileTurn {
            node: 2,
            client: 1,
            number: 40,
            at: Time(7),
            kind: "Rename".into(),
        });
        let decisions = [begin, strike, files];
        for decision in decisions {
            assert_eq!(decision.to_string().parse::<Decision>().expect("it is one"), decision);
        }
    }

    #[test]
    fn what_is_no_decision_is_refused() {
        let wrong = [
            "",
            "trouble Break",
            "trouble Nobody 1",
            "trouble Break -1",
            "client 1 begins 2 at 3",
            "client 1 begins 2 at 3 of 4 without x",
            "client 70000 begins 2 at 3 of 4",
            "files 1 2 does 3 Write at",
            "files 1 2 does x Write at 4",
        ];
        for text in wrong {
            assert!(text.parse::<Decision>().is_err(), "{text:?}");
        }
    }
}
