//! The side that follows, and the turns of a domain.

use crate::commit::{Aspect, CommitRequest, PageChange, PartId, Read, Target, Write, conflicts};
use crate::id::{Attempt, CommitId, PageId};
use std::collections::{BTreeMap, VecDeque};

/// Whose turn it may be in a domain (rule 19: one transaction over several domains at a time).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Turn {
    /// An attempt that this domain coordinates.
    Own(Attempt),
    /// A part that is prepared, or is to be, for an attempt of another.
    Part(Attempt, CommitId),
}

impl Turn {
    /// Which attempt's.
    #[must_use]
    pub fn attempt(self) -> Attempt {
        match self {
            Self::Own(attempt) | Self::Part(attempt, _) => attempt,
        }
    }
}

/// A part that is ready to be committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepared {
    /// At which attempt.
    pub attempt: Attempt,
    /// Who decides.
    pub coordinator: PartId,
    /// The part.
    pub id: CommitId,
    /// By how many bytes it will grow each volume, in the order of their first writes.
    pub grown: Vec<i64>,
    /// What it read, ascending.
    pub reads: Vec<Read>,
    /// What it will write, in order.
    pub writes: Vec<Write>,
    /// What that will change, ascending by page.
    pub changes: Vec<PageChange>,
}

/// What a participant makes of a decision to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Followed {
    /// It is prepared: to be committed now.
    Now,
    /// It is being committed: the coordinator hears of it when that is durable.
    UnderWay,
    /// It was committed before: the coordinator is told so again.
    Before,
}

/// How far what is prepared has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its record is on its way to the log.
    Logged,
    /// The record is durable: it follows whatever is decided.
    Ready,
    /// Its commit is on its way to the log.
    Follows,
}

/// The turns of a domain, and what is prepared in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Participant {
    turn: Option<Turn>,
    waiting: VecDeque<Turn>,
    /// Durable once it is `Ready`.
    prepared: Option<(Prepared, Stage)>,
    /// What of it was read, by page.
    reads: BTreeMap<PageId, Vec<(Target, Aspect)>>,
}

impl Participant {
    /// With what the log holds as prepared and not ended: it has the turn.
    #[must_use]
    pub fn recovered(prepared: Option<Prepared>) -> Self {
        let mut participant = Self::default();
        if let Some(prepared) = prepared {
            participant.turn = Some(Turn::Part(prepared.attempt, prepared.id));
            participant.keep(prepared, Stage::Ready);
        }
        participant
    }

    /// Asks for a turn, in order; says whether it has come. Asked again it stays where it is.
    pub fn ask(&mut self, turn: Turn) -> bool {
        if self.turn.is_none() {
            self.turn = Some(turn);
        }
        if self.turn != Some(turn) && !self.waiting.contains(&turn) {
            self.waiting.push_back(turn);
        }
        self.turn == Some(turn)
    }

    /// Whose turn it is.
    #[must_use]
    pub fn turn(&self) -> Option<Turn> {
        self.turn
    }

    /// Those who wait for theirs.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whose turn it is, and those who wait for theirs, in order.
    pub fn turns(&self) -> impl Iterator<Item = Turn> + '_ {
        self.turn.into_iter().chain(self.waiting.iter().copied())
    }

    /// Somebody wants no turn any more, or has had it. Gives whose it is now, if that has changed. What is
    /// prepared must have ended.
    pub fn leave(&mut self, turn: Turn) -> Option<Turn> {
        self.waiting.retain(|waiting| *waiting != turn);
        if self.turn != Some(turn) {
            return None;
        }
        assert!(self.prepared.is_none(), "what is prepared keeps its turn");
        self.turn = self.waiting.pop_front();
        self.turn
    }

    /// The record of what is prepared, whose turn it is, goes to the log.
    pub fn prepare(&mut self, prepared: Prepared) {
        let turn = Turn::Part(prepared.attempt, prepared.id);
        assert_eq!(self.turn, Some(turn), "nothing is prepared out of turn");
        assert!(self.prepared.is_none(), "one is prepared at a time");
        self.keep(prepared, Stage::Logged);
    }

    fn keep(&mut self, prepared: Prepared, stage: Stage) {
        for read in &prepared.reads {
            self.reads.entry(read.page).or_default().push((read.target, read.aspect));
        }
        self.prepared = Some((prepared, stage));
    }

    /// Its record is durable. True: the coordinator is to be told so.
    pub fn has_logged(&mut self, attempt: Attempt) -> bool {
        match &mut self.prepared {
            Some((prepared, stage @ Stage::Logged)) if prepared.attempt == attempt => {
                *stage = Stage::Ready;
                true
            }
            // Released meanwhile, or logged once more.
            _ => false,
        }
    }

    /// Whether this part is being committed, as was decided.
    #[must_use]
    pub fn follows(&self, id: CommitId) -> bool {
        let follows =
            |(prepared, stage): &(Prepared, Stage)| prepared.id == id && *stage == Stage::Follows;
        self.prepared.as_ref().is_some_and(follows)
    }

    /// Whether this part is prepared, at whatever attempt.
    #[must_use]
    pub fn has_prepared(&self, id: CommitId) -> bool {
        self.prepared().is_some_and(|prepared| prepared.id == id)
    }

    /// What is prepared at this attempt and waits for a decision: a `Prepare` that is repeated is answered by
    /// the vote again.
    #[must_use]
    pub fn is_ready(&self, attempt: Attempt) -> bool {
        let ready = |(prepared, stage): &(Prepared, Stage)| {
            prepared.attempt == attempt && *stage != Stage::Logged
        };
        self.prepared.as_ref().is_some_and(ready)
    }

    /// What it is in doubt of, and whom to ask.
    #[must_use]
    pub fn in_doubt(&self) -> Option<(Attempt, PartId)> {
        let (prepared, stage) = self.prepared.as_ref()?;
        (*stage == Stage::Ready).then_some((prepared.attempt, prepared.coordinator))
    }

    /// It was decided to commit.
    pub fn decided(&mut self, attempt: Attempt) -> Followed {
        match &mut self.prepared {
            Some((prepared, stage)) if prepared.attempt == attempt => match stage {
                Stage::Ready => {
                    *stage = Stage::Follows;
                    Followed::Now
                }
                // Before its record was durable nobody could count on it.
                Stage::Logged | Stage::Follows => Followed::UnderWay,
            },
            _ => Followed::Before,
        }
    }

    /// Its commit was taken back by a store without room: it is ready as before.
    pub fn is_put_off(&mut self) {
        if let Some((_, stage)) = &mut self.prepared {
            assert_eq!(*stage, Stage::Follows, "nothing else can be put off");
            *stage = Stage::Ready;
        }
    }

    /// What is prepared.
    #[must_use]
    pub fn prepared(&self) -> Option<&Prepared> {
        self.prepared.as_ref().map(|(prepared, _)| prepared)
    }

    /// Its commit is durable, or it is released, or its record was taken back: it bars nothing any more. None:
    /// nothing is prepared at this attempt, or it is being committed and `released` comes too late to mean it.
    pub fn end(&mut self, attempt: Attempt, released: bool) -> Option<Prepared> {
        let (prepared, stage) = self.prepared.as_ref()?;
        let follows = *stage == Stage::Follows;
        if prepared.attempt != attempt || follows == released {
            return None;
        }
        self.reads.clear();
        self.prepared.take().map(|(prepared, _)| prepared)
    }

    /// Whether a commit of this domain has to wait for what is prepared: it read what that writes, it writes
    /// what that read, or a page that it writes.
    ///
    /// 1. T has read x here and is prepared; L writes x, and is stamped before T: T has read what was before L,
    ///    and comes after it.
    /// 2. T is prepared to write y, and is decided; who has seen that elsewhere reads y here, as it was before.
    /// 3. T is prepared to put an object of 90 bytes into page 7, in which there is room for 100; L takes 50.
    #[must_use]
    pub fn bars(&self, commit: &CommitRequest) -> bool {
        let Some((prepared, _)) = &self.prepared else {
            return false;
        };
        let of_page = |page: PageId| {
            let place = prepared.changes.binary_search_by_key(&page, |change| change.page).ok()?;
            Some(&prepared.changes[place])
        };
        let read = |read: &Read| {
            let changes = of_page(read.page).map_or(&[][..], |change| &change.touched);
            changes.iter().any(|change| conflicts((read.target, read.aspect), *change))
        };
        let written = |write: &Write| {
            // Whether it creates what it puts is seen when it is applied: as far as that it may.
            let change = write.op.touches(true);
            let reads = self.reads.get(&write.page).map_or(&[][..], |reads| reads);
            of_page(write.page).is_some() || reads.iter().any(|read| conflicts(*read, change))
        };
        commit.reads.iter().any(read) || commit.writes.iter().any(written)
    }

    /// Panics when an invariant is broken.
    pub fn check(&self) {
        if let Some((prepared, _)) = &self.prepared {
            let turn = Turn::Part(prepared.attempt, prepared.id);
            assert_eq!(self.turn, Some(turn), "it is prepared out of turn");
        }
        assert!(self.turn.is_some() || self.waiting.is_empty(), "they wait for nobody");
        assert!(!self.waiting.iter().any(|turn| self.turn == Some(*turn)), "it waits for itself");
    }
}
