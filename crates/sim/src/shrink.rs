//! Makes a run that fails smaller: fewer kinds of trouble, fewer nodes, clients and objects, then
//! fewer decisions, by delta debugging. What is left fails alike: the same promise, noticed at the
//! same place.

use crate::decisions::{Decision, FileTurn};
use crate::plan::{Bounds, Plan};
use crate::recording::Recording;
use crate::run::{OVERTIME, run_recorded_until};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How a run was made smaller.
#[derive(Debug)]
pub struct Shrunk {
    /// What is left.
    pub recording: Recording,
    /// Runs that were tried.
    pub tried: u64,
    /// Whether nothing more could be left out; else the time was over.
    pub done: bool,
}

struct Shrinker<'a> {
    best: Recording,
    /// What fails alike.
    like: String,
    until: Instant,
    tried: u64,
    /// What was done in the best run: what came to nothing is not in it.
    done: Recording,
    tell: &'a mut dyn FnMut(&Recording, u64),
}

/// Why a recording was not made smaller.
#[derive(Debug)]
pub enum NotShrunk {
    /// It breaks no promise.
    Clean,
    /// It is not known whether it does: the time was over before it had ended once.
    TimeOver,
}

impl std::fmt::Display for NotShrunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Clean => "it does not fail: there is nothing to shrink",
            Self::TimeOver => "the time was over before it had been played once",
        })
    }
}

impl std::error::Error for NotShrunk {}

/// Shrinks a recording for at most `limit`, however long its runs are. `tell` hears of each success.
pub fn shrink(
    recording: &Recording,
    limit: Duration,
    tell: &mut dyn FnMut(&Recording, u64),
) -> Result<Shrunk, NotShrunk> {
    let until = Instant::now() + limit;
    let failure = run_recorded_until(recording, until).err().ok_or(NotShrunk::Clean)?;
    if failure.what.starts_with(OVERTIME) {
        return Err(NotShrunk::TimeOver);
    }
    let like = likeness(&failure.what);
    let best = *failure.recording;
    let done = best.clone();
    let mut shrinker = Shrinker { best, like, until, tried: 1, done, tell };
    shrinker.attempt(|recording| recording.calm = true);
    loop {
        let before = shrinker.size();
        shrinker.trim();
        shrinker.drop_troubles();
        shrinker.drop_processes();
        shrinker.drop_clients();
        shrinker.drop_files();
        shrinker.drop_objects();
        shrinker.simplify();
        shrinker.trim();
        shrinker.drop_decisions();
        shrinker.drop_operations();
        let over = shrinker.is_over();
        if over || shrinker.size() == before {
            let Shrinker { best, tried, .. } = shrinker;
            return Ok(Shrunk { recording: best, tried, done: !over });
        }
    }
}

/// What two failures that are alike have in common: the words of their first line and the place, but for
/// numbers and for what is told in brackets and quotes, which is what somebody saw or did.
#[must_use]
pub fn likeness(what: &str) -> String {
    let (words, place) = what.rsplit_once('[').unwrap_or((what, ""));
    let mut like = String::new();
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for letter in words.lines().next().unwrap_or_default().chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ if depth > 0 || letter.is_ascii_digit() => {}
            _ => like.push(letter),
        }
    }
    let words: Vec<&str> = like.split_whitespace().collect();
    let place: String = place.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    format!("{} [{place}", words.join(" "))
}

impl Shrinker<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Smaller is less of this: decisions, operations, then what the plan has.
    fn size(&self) -> (usize, u32, usize, u64) {
        let operations = |decision: &Decision| match decision {
            Decision::Begin { operations, without, .. } => {
                operations.saturating_sub(without.len() as u32)
            }
            Decision::Strike { .. } => 0,
            Decision::Files(_) => 1,
        };
        let plan = &self.best.plan;
        let parts = plan.nodes.len() + plan.relays.len() - plan.absent.len();
        (
            self.best.decisions.len(),
            self.best.decisions.iter().map(operations).sum(),
            parts + plan.mix.actions.len() + plan.troubles.len(),
            plan.mix.pages + plan.mix.slots,
        )
    }

    /// Takes a smaller run for the best, if it fails alike.
    fn attempt(&mut self, change: impl FnOnce(&mut Recording)) -> bool {
        if self.is_over() {
            return false;
        }
        let mut smaller = self.best.clone();
        change(&mut smaller);
        self.tried += 1;
        match run_recorded_until(&smaller, self.until) {
            Err(failure) if likeness(&failure.what) == self.like => {
                // What was given, not what was done: of that it is known that it fails.
                self.best = Recording { fails: Some(failure.what), ..smaller };
                self.done = *failure.recording;
                (self.tell)(&self.best, self.tried);
                true
            }
            _ => false,
        }
    }

    /// Leaves out what came to nothing: without it a client may rest that would wait.
    fn trim(&mut self) {
        let done = self.done.clone();
        if done.decisions.len() < self.best.decisions.len()
            || done.wild_until < self.best.wild_until
        {
            self.attempt(|recording| *recording = done);
        }
    }

    fn drop_troubles(&mut self) {
        for (trouble, _) in self.best.plan.troubles.clone() {
            self.attempt(|recording| {
                recording.plan.troubles.retain(|(kind, _)| *kind != trouble);
                recording.decisions.retain(|decision| {
                    !matches!(decision, Decision::Strike { trouble: kind, .. } if *kind == trouble)
                });
            });
        }
    }

    fn drop_processes(&mut self) {
        let plan = &self.best.plan;
        let (relays, all) = (plan.relays.len() as u16, 1 + plan.relays.len() + plan.nodes.len());
        // Nodes first: a relay without children can go.
        for process in (1..all as u16).rev() {
            if self.best.plan.absent.contains(&process) {
                continue;
            }
            // Without their parent its children only wait, and that may look like the failure.
            let plan = &self.best.plan;
            let parents = plan.relays.iter().zip(1..).chain(plan.nodes.iter().zip(relays + 1..));
            let mut children =
                parents.filter(|(parent, _)| **parent == process).map(|(_, child)| child);
            if children.any(|child| !self.best.plan.absent.contains(&child)) {
                continue;
            }
            self.attempt(|recording| {
                recording.plan.absent.push(process);
                if process > relays {
                    let clients = clients_of(&recording.plan, process);
                    drop_clients_of(recording, &clients);
                    drop_turns(recording, |turn| turn.node == process);
                }
            });
        }
    }

    fn drop_clients(&mut self) {
        let plan = &self.best.plan;
        let clients = plan.nodes.len() as u16 * plan.clients;
        for client in 0..clients {
            if !self.best.plan.idle.contains(&client) {
                self.attempt(|recording| drop_clients_of(recording, &[client]));
            }
        }
    }

    /// All clients of files, then each, then each kind of what they do.
    fn drop_files(&mut self) {
        let turns: Vec<FileTurn> =
            self.best.decisions.iter().filter_map(turn_of).cloned().collect();
        if self.best.plan.files.is_some() {
            self.attempt(|recording| {
                recording.plan.files = None;
                drop_turns(recording, |_| true);
            });
        }
        let clients: BTreeSet<(u16, u16)> =
            turns.iter().map(|turn| (turn.node, turn.client)).collect();
        for client in clients {
            self.attempt(|recording| {
                drop_turns(recording, |turn| (turn.node, turn.client) == client);
            });
        }
        let kinds: BTreeSet<&String> = turns.iter().map(|turn| &turn.kind).collect();
        for kind in kinds {
            self.attempt(|recording| drop_turns(recording, |turn| turn.kind == *kind));
        }
    }

    fn drop_objects(&mut self) {
        for action in self.best.plan.mix.actions.clone() {
            self.attempt(|recording| {
                let actions = &mut recording.plan.mix.actions;
                if actions.len() > 1
                    && let Some(place) = actions.iter().position(|known| *known == action)
                {
                    actions.remove(place);
                }
            });
        }
        let sizes: [fn(&mut Plan) -> &mut u64; 4] = [
            |plan| &mut plan.mix.pages,
            |plan| &mut plan.mix.slots,
            |plan| &mut plan.mix.value_bytes,
            |plan| &mut plan.mix.length,
        ];
        for size in sizes {
            for smaller in [1, 2, 24] {
                if *size(&mut self.best.plan.clone()) > smaller {
                    self.attempt(|recording| *size(&mut recording.plan) = smaller);
                }
            }
        }
        if self.best.plan.volumes > 1 {
            self.attempt(|recording| recording.plan.volumes = 1);
        }
    }

    /// What makes a run harder to read.
    fn simplify(&mut self) {
        let simpler: [fn(&mut Plan); 6] = [
            |plan| plan.bounds = Bounds::default(),
            |plan| plan.drift_ppm = 0,
            |plan| plan.wall_error = 0,
            |plan| plan.lines.iter_mut().for_each(|line| line.jitter = 0),
            |plan| plan.lines.iter_mut().for_each(|line| line.bulk_spread = 0),
            |plan| plan.mix.linger_percent = 0,
        ];
        for simpler in simpler {
            self.attempt(|recording| simpler(&mut recording.plan));
        }
    }

    /// Delta debugging: ever smaller parts of the decisions are left out.
    fn drop_decisions(&mut self) {
        let mut parts = 2;
        while !self.is_over() {
            let count = self.best.decisions.len();
            if count == 0 {
                return;
            }
            let part = count.div_ceil(parts).max(1);
            let mut first = 0;
            let mut smaller = false;
            while first < self.best.decisions.len() {
                let end = (first + part).min(self.best.decisions.len());
                if self.attempt(|recording| drop(recording.decisions.drain(first..end))) {
                    smaller = true;
                } else {
                    first = end;
                }
            }
            if part == 1 && !smaller {
                return;
            }
            parts = if smaller { parts } else { 2 * parts };
        }
    }

    fn drop_operations(&mut self) {
        // The last ones first: what comes before depends on nothing that comes after.
        let mut place = self.best.decisions.len();
        while place > 0 {
            place -= 1;
            let Some(Decision::Begin { operations, without, .. }) = self.best.decisions.get(place)
            else {
                continue;
            };
            let left: BTreeSet<u32> = (0..*operations).filter(|n| !without.contains(n)).collect();
            for operation in left.into_iter().rev() {
                self.attempt(|recording| {
                    if let Some(Decision::Begin { without, .. }) =
                        recording.decisions.get_mut(place)
                    {
                        without.insert(operation);
                    }
                });
            }
        }
    }
}

fn clients_of(plan: &Plan, process: u16) -> Vec<u16> {
    let node = process - 1 - plan.relays.len() as u16;
    (node * plan.clients..(node + 1) * plan.clients).collect()
}

fn turn_of(decision: &Decision) -> Option<&FileTurn> {
    match decision {
        Decision::Files(turn) => Some(turn),
        _ => None,
    }
}

fn drop_turns(recording: &mut Recording, which: impl Fn(&FileTurn) -> bool) {
    recording.decisions.retain(|decision| !turn_of(decision).is_some_and(&which));
}

fn drop_clients_of(recording: &mut Recording, clients: &[u16]) {
    recording.plan.idle.extend(clients);
    recording.decisions.retain(
        |decision| !matches!(decision, Decision::Begin { client, .. } if clients.contains(client)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure whose first words are another's is another all the same, and one that tells of other
    /// numbers, or of something else that was seen, is the same.
    #[test]
    fn failures_are_alike_by_all_their_words() {
        let tree = |what: &str| {
            format!("files: at 3, after a commit of Some(\"a: 1)\"): {what} [crates/a.rs:1:2]")
        };
        assert_eq!(likeness(&tree("locks of 3")), likeness(&tree("locks of 17")));
        assert_ne!(likeness(&tree("locks of 3")), likeness(&tree("it is no directory")));
        let saw = |seen: &str, place: &str| format!("P5: client 3 saw {seen} here [{place}:65:9]");
        assert_eq!(likeness(&saw("Slot(1, [2])", "a.rs")), likeness(&saw("Slot(9, [])", "a.rs")));
        assert_ne!(likeness(&saw("Slot(1)", "a.rs")), likeness(&saw("Slot(1)", "b.rs")));
        let cycle = |of: &str| format!("P2: a cycle of 2 transactions in x:\n  {of} [a.rs:1:1]");
        assert_eq!(likeness(&cycle("T1 wrote")), likeness(&cycle("T2 saw")));
    }
}
