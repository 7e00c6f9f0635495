//! The protocol of decision 0035, explored: every order of steps, messages and crashes in small worlds keeps
//! what is promised, and each rule taken out breaks it.

mod model;

use model::{Broken, DOMAINS, Part, Plan, Rule, State};
use std::collections::BTreeMap;

const NOTHING: Part = Part { reads: 0, writes: 0 };
const X: u8 = 1;
const Y: u8 = 2;
const Z: u8 = 4;

fn part(reads: u8, writes: u8) -> Part {
    Part { reads, writes }
}

/// Looks at every state that can be reached. Gives how many there are, or what is broken in one of them.
fn explore(plan: &Plan) -> Result<usize, Broken> {
    let begin = plan.begin();
    let mut known = BTreeMap::from([(begin, 0u32)]);
    let mut states = vec![begin];
    let mut before: Vec<Vec<u32>> = vec![Vec::new()];
    let mut place = 0;
    while let Some(state) = states.get(place).copied() {
        for after in plan.steps(&state)? {
            let next = *known.entry(after).or_insert_with(|| {
                states.push(after);
                before.push(Vec::new());
                states.len() as u32 - 1
            });
            before[next as usize].push(place as u32);
        }
        place += 1;
    }
    settles(plan, &states, &before)?;
    Ok(states.len())
}

/// From every state one can be reached in which nobody is in doubt: without a human.
fn settles(plan: &Plan, states: &[State], before: &[Vec<u32>]) -> Result<(), Broken> {
    let mut settles: Vec<bool> = states.iter().map(|state| plan.is_settled(state)).collect();
    let mut queue: Vec<usize> = (0..states.len()).filter(|place| settles[*place]).collect();
    while let Some(place) = queue.pop() {
        for earlier in &before[place] {
            let earlier = *earlier as usize;
            if !std::mem::replace(&mut settles[earlier], true) {
                queue.push(earlier);
            }
        }
    }
    let all = settles.iter().all(|settles| *settles);
    if all { Ok(()) } else { Err("in doubt for good") }
}

/// Write skew: one reads x in the first domain and writes y in the second, the other the reverse.
fn skew(crashes: [u8; DOMAINS]) -> Plan {
    Plan {
        across: [(1, [part(X, 0), part(0, Y)]), (0, [part(0, X), part(Y, 0)])],
        locals: [None, None],
        crashes,
        refuses: false,
        without: None,
    }
}

/// Two that have no object in common, both of which write in both domains, coordinated from either side.
fn disjoint(crashes: [u8; DOMAINS]) -> Plan {
    Plan {
        across: [(0, [part(0, X), part(0, X)]), (1, [part(0, Y), part(0, Y)])],
        locals: [None, None],
        crashes,
        refuses: false,
        without: None,
    }
}

/// One over both domains, and two of the participant's own: one writes what it has read, the other reads what
/// it writes. The participant may be out of room.
fn beside_locals(crashes: [u8; DOMAINS]) -> Plan {
    Plan {
        across: [(1, [part(X, Z), part(0, Y)]), (0, [NOTHING, NOTHING])],
        locals: [Some((0, part(0, X))), Some((0, part(Z, Y)))],
        crashes,
        refuses: true,
        without: None,
    }
}

/// The same where both sides of the first read what the local ones write.
fn read_and_written(crashes: [u8; DOMAINS]) -> Plan {
    Plan {
        across: [(0, [part(X, Y), part(X, Y)]), (1, [NOTHING, NOTHING])],
        locals: [Some((0, part(0, X))), Some((1, part(0, X)))],
        crashes,
        refuses: false,
        without: None,
    }
}

#[test]
fn the_protocol_keeps_what_it_promises() {
    let both = [1, 1];
    // Each of the domains coordinates one of two: a crash of the first is as good as one of the other.
    let plans = [skew([1, 0]), disjoint([1, 0]), beside_locals(both), read_and_written(both)];
    for (number, plan) in plans.iter().enumerate() {
        let states = explore(plan).unwrap_or_else(|broken| panic!("plan {number}: {broken}"));
        assert!(states > 1_000, "plan {number}: {states} states are hardly all");
        println!("plan {number}: {states} states");
    }
}

/// Every rule is needed: without it a plan breaks, and by what it is there for.
#[test]
fn each_rule_is_needed() {
    let (both, lost) = ([1, 1], "in doubt for good");
    let needed: [(Rule, Plan, Broken); 11] = [
        (Rule::PreparedReads, beside_locals(both), "a circle"),
        (Rule::PreparedWrites, beside_locals(both), "a strict reader goes back in time"),
        (Rule::OneAtATime, disjoint(both), "a circle"),
        (Rule::LoggedPrepare, read_and_written(both), lost),
        (Rule::PresumedAbort, read_and_written(both), "done here, and not at the coordinator"),
        (Rule::UnderWay, read_and_written(both), lost),
        (Rule::AttemptsNamed, read_and_written(both), lost),
        (Rule::DecisionKept, read_and_written(both), lost),
        (Rule::RefusalLogged, beside_locals(both), "what was told to be aborted is committed"),
        (Rule::DoneKnown, read_and_written(both), "done twice"),
        (Rule::Asks, read_and_written(both), lost),
    ];
    for (rule, plan, expected) in needed {
        let without = Plan { without: Some(rule), ..plan };
        assert_eq!(explore(&without), Err(expected), "without {rule:?}");
    }
}
