//! Sessions and states, by what clients were told alone: every transaction says at which stamp all that
//! it read holds, and the writers before that stamp say what that was (P3, P5; snapshot sessions are
//! promised no more than this, in each domain); and in each domain no session is given a stamp below one
//! that it was given before, by a read or by a commit of its own (P4: it reads its writes, its reads go
//! on, its writes follow its reads).
//!
//! It is more than the cycle test asks, which takes any order that explains what was seen, and names the
//! transaction that was shown what it ought not to.

use super::{Checked, Moment, Tx};
use larder_core::id::{DomainId, Stamp};
use std::collections::BTreeMap;

impl Checked<'_> {
    /// Says of which read it does not hold.
    pub(super) fn check_states(&self) -> Result<(), String> {
        for look in &self.looks {
            let (domain, item, chain) = &self.chains[look.chain as usize];
            let tx = &self.txs[look.tx as usize];
            let part = &tx.parts[domain];
            let stamp = part.stamp.unwrap_or_default();
            // A writer's reads hold just before it.
            let at = if part.writes() { stamp.previous() } else { stamp };
            if !chain.same(look.seen, at) {
                return Err(format!(
                    "P5: {} says that it saw the state of {at} of {domain:?}, and saw {item} as {}",
                    self.name(look.tx),
                    chain.tell(look.seen, at)
                ));
            }
        }
        Ok(())
    }

    /// Says which session went back.
    pub(super) fn check_sessions(&self) -> Result<(), String> {
        let mut sessions: BTreeMap<(usize, DomainId), Vec<Turn<'_>>> = BTreeMap::new();
        for (number, tx) in (0..).zip(self.txs).filter(|(_, tx)| tx.is_done()) {
            for (domain, part) in &tx.parts {
                let stamp = part.stamp.unwrap_or_default();
                let turn = Turn { number, tx, stamp, writes: part.writes() };
                sessions.entry((tx.session, *domain)).or_default().push(turn);
            }
        }
        for ((_, domain), turns) in sessions {
            for (turn, floor) in turns.iter().zip(floors(&turns)) {
                let Some(before) = floor.map(|floor| &turns[floor]) else { continue };
                if turn.stamp < before.stamp || turn.writes && turn.stamp == before.stamp {
                    return Err(format!(
                        "P4: {} goes back in {domain:?}: its session was done with {} before",
                        self.name(turn.number),
                        self.name(before.number)
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A transaction of a session, in one domain.
struct Turn<'a> {
    number: u32,
    tx: &'a Tx,
    stamp: Stamp,
    writes: bool,
}

/// For each the one of the highest stamp that was done before it began.
fn floors(turns: &[Turn<'_>]) -> Vec<Option<usize>> {
    let mut moments: Vec<(Moment, bool, usize)> = Vec::new();
    for (place, turn) in turns.iter().enumerate() {
        moments.push((turn.tx.begun, false, place));
        moments.extend(turn.tx.ended.map(|ended| (ended, true, place)));
    }
    moments.sort_unstable();
    let mut floors = vec![None; turns.len()];
    let mut floor: Option<usize> = None;
    for (_, is_end, place) in moments {
        if !is_end {
            floors[place] = floor;
        } else if floor.is_none_or(|floor| turns[floor].stamp < turns[place].stamp) {
            floor = Some(place);
        }
    }
    floors
}
