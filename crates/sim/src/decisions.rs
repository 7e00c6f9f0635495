//! What a run decides while its troubles last: which troubles strike, which transactions clients
//! begin, and which of their operations they do. A run that is free decides all and is recorded; one
//! that is replayed does what was recorded, or the part of it that is left.

use crate::agenda::Time;
use crate::plan::Trouble;
use std::collections::{BTreeMap, BTreeSet};

/// One thing that a run did because it chose to, and might have left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// A trouble struck.
    Strike {
        /// Its kind.
        trouble: Trouble,
        /// Which of its kind, from 1.
        number: u32,
    },
    /// A client began a transaction, or did what administrators do.
    Begin {
        /// The client.
        client: u16,
        /// Which of its transactions, from 1.
        number: u32,
        /// When: it does not begin before, though others may take less time than they did.
        at: Time,
        /// How many operations it came to.
        operations: u32,
        /// Those that are left out.
        without: BTreeSet<u32>,
    },
    /// A client of files did an operation.
    Files(FileTurn),
}

/// An operation of a client of files: it draws all else by these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileTurn {
    /// Its process.
    pub node: u16,
    /// The client there.
    pub client: u16,
    /// Which of its operations, from 1.
    pub number: u32,
    /// When: it does not begin before.
    pub at: Time,
    /// Its kind, for who reads it or leaves a kind out.
    pub kind: String,
}

/// All decisions of a run.
#[derive(Debug)]
pub struct Decisions {
    /// None: the run is free.
    given: Option<Given>,
    recorded: Vec<Decision>,
    /// The last recorded transaction of each client, by its place in `recorded`.
    last: BTreeMap<u16, usize>,
    /// Troubles are over: clients do what they like, and nothing is recorded.
    over: bool,
}

#[derive(Debug, Default)]
struct Given {
    strikes: BTreeSet<(Trouble, u32)>,
    /// By client, first those that come first.
    turns: BTreeMap<u16, std::collections::VecDeque<Turn>>,
    /// Of the transactions begun: what they leave out.
    without: BTreeMap<u16, BTreeSet<u32>>,
}

#[derive(Debug)]
struct Turn {
    number: u32,
    at: Time,
    without: BTreeSet<u32>,
}

/// What a client does that is about to begin a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It begins the one of this number.
    Begin(u32),
    /// It waits until then, and asks again.
    Wait(Time),
    /// It begins none any more.
    Rest,
}

impl Decisions {
    /// Those of a run that decides by itself.
    #[must_use]
    pub fn free() -> Self {
        Self { given: None, recorded: Vec::new(), last: BTreeMap::new(), over: false }
    }

    /// Those of a run that does what is given and no more.
    #[must_use]
    pub fn given(decisions: &[Decision]) -> Self {
        let mut given = Given::default();
        for decision in decisions {
            match decision {
                Decision::Strike { trouble, number } => {
                    given.strikes.insert((*trouble, *number));
                }
                Decision::Begin { client, number, at, without, .. } => {
                    let turn = Turn { number: *number, at: *at, without: without.clone() };
                    given.turns.entry(*client).or_default().push_back(turn);
                }
                // They are handed to the clients of files (`files/turns.rs`).
                Decision::Files(_) => {}
            }
        }
        Self { given: Some(given), ..Self::free() }
    }

    /// Whether the trouble of this number of its kind strikes.
    pub fn strikes(&mut self, trouble: Trouble, number: u32) -> bool {
        let strikes = match &self.given {
            None => true,
            Some(given) => given.strikes.contains(&(trouble, number)),
        };
        if strikes {
            self.recorded.push(Decision::Strike { trouble, number });
        }
        strikes
    }

    /// What a client does next that began `begun` transactions so far.
    pub fn next(&mut self, client: u16, begun: u32, now: Time) -> Next {
        let mut left_out = BTreeSet::new();
        let number = match &mut self.given {
            None => begun + 1,
            Some(given) => {
                let turns = given.turns.entry(client).or_default();
                match turns.pop_front() {
                    None => return Next::Rest,
                    Some(turn) if turn.at > now => {
                        let at = turn.at;
                        turns.push_front(turn);
                        return Next::Wait(at);
                    }
                    Some(turn) => {
                        left_out = turn.without.clone();
                        given.without.insert(client, turn.without);
                        turn.number
                    }
                }
            }
        };
        if self.over {
            return Next::Begin(number);
        }
        self.last.insert(client, self.recorded.len());
        let (at, operations, without) = (now, 0, left_out);
        self.recorded.push(Decision::Begin { client, number, at, operations, without });
        Next::Begin(number)
    }

    /// Whether the client does the operation of this number, from 0, of the transaction that it is in.
    pub fn acts(&mut self, client: u16, operation: u32) -> bool {
        if let Some(place) = self.last.get(&client)
            && let Decision::Begin { operations, .. } = &mut self.recorded[*place]
        {
            *operations = (*operations).max(operation + 1);
        }
        let given = self.given.as_ref().and_then(|given| given.without.get(&client));
        given.is_none_or(|without| !without.contains(&operation))
    }

    /// Clients of files decided this.
    pub fn note_files(&mut self, turns: impl Iterator<Item = FileTurn>) {
        self.recorded.extend(turns.map(Decision::Files));
    }

    /// Nothing is recorded any more, and nothing left out: troubles are over.
    pub fn end(&mut self) {
        self.given = None;
        self.over = true;
        self.last.clear();
    }

    /// What was decided.
    #[must_use]
    pub fn recorded(&self) -> &[Decision] {
        &self.recorded
    }
}
