//! Which operations clients of files do: in a run that is free all, one after the other, and they are
//! noted; in one that is replayed those that were recorded, or are left of them.

use crate::agenda::Time;
use crate::decisions::{Decision, FileTurn};
use std::collections::{BTreeMap, VecDeque};

/// By node and client: numbers, and when.
type Given = BTreeMap<(u16, u16), VecDeque<(u32, Time)>>;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Turns {
    /// None: the run is free.
    given: Option<Given>,
    /// Noted since they were taken last.
    noted: Vec<FileTurn>,
    /// Nothing more is begun.
    rest: bool,
    /// The last operation of each client.
    numbers: BTreeMap<(u16, u16), u32>,
}

/// What a client does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The operation of this number, when it likes.
    Free(u32),
    /// The operation of this number, and not before.
    Given(u32, Time),
    /// Nothing for now.
    Rest,
}

impl Turns {
    /// What the client does next.
    pub fn next(&mut self, node: u16, client: u16) -> Turn {
        if self.rest {
            return Turn::Rest;
        }
        let number = self.numbers.entry((node, client)).or_default();
        let Some(given) = &mut self.given else {
            *number += 1;
            return Turn::Free(*number);
        };
        let Some((next, at)) = given.get_mut(&(node, client)).and_then(VecDeque::pop_front) else {
            return Turn::Rest;
        };
        *number = next;
        Turn::Given(next, at)
    }

    /// It is about to do so.
    pub fn note(&mut self, turn: FileTurn) {
        self.noted.push(turn);
    }

    /// What was noted since this was asked last.
    pub fn take_noted(&mut self) -> Vec<FileTurn> {
        std::mem::take(&mut self.noted)
    }

    /// Only these are done.
    pub fn give(&mut self, decisions: &[Decision]) {
        let mut given = Given::new();
        for decision in decisions {
            if let Decision::Files(FileTurn { node, client, number, at, .. }) = decision {
                given.entry((*node, *client)).or_default().push_back((*number, *at));
            }
        }
        self.given = Some(given);
    }

    /// Troubles are over: all go on as before, or rest. What clients of files do from here on is recorded too:
    /// what is wrong in the file layer may show itself only then, and a run that is shrunk would be left with
    /// nothing that does it.
    pub fn end(&mut self, rest: bool) {
        self.rest = rest;
    }
}
