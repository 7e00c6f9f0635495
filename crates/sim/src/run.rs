//! Runs of seeds: one, a range, twice for the hash; failures become reports.

use crate::agenda::SECOND;
use crate::decisions::Decision;
use crate::plan::{Budget, Plan};
use crate::probes::Counts;
use crate::recording::Recording;
use crate::world::{Tally, World};
use larder_core::machine::Faults;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread plays a run.
    static PLAYING: Cell<bool> = const { Cell::new(false) };
    /// What the last panic of this thread said, and where.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A run that kept all promises.
#[derive(Clone, Debug)]
pub struct Clean {
    /// How much might go wrong.
    pub budget: Budget,
    /// The hash of its events.
    pub hash: u64,
    /// How many there were.
    pub events: u64,
    /// What happened.
    pub tally: Tally,
    /// What the second opinion was asked about.
    #[cfg(feature = "second-opinion")]
    pub asked: crate::check::second::Asked,
    /// The last events, if they were asked for.
    pub tail: String,
    /// How often rare branches were taken.
    pub probes: Counts,
}

/// A run that broke one.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The hash of the events up to the failure.
    pub hash: u64,
    /// The promise broken, and how.
    pub what: String,
    /// The last events, if they were asked for.
    pub tail: String,
    /// The run, to be played again.
    pub recording: Box<Recording>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tail)?;
        writeln!(f, "seed {} ({}): {}", self.seed, self.recording.plan.told(), self.what)?;
        match self.again() {
            Some(again) => write!(f, "again: {again}"),
            None => write!(f, "again: by its recording alone, since no seed draws its plan"),
        }
    }
}

impl Failure {
    /// The command that plays it again; none: its plan is not its seed's.
    #[must_use]
    pub fn again(&self) -> Option<String> {
        let plan = &self.recording.plan;
        let text = |plan: &Plan| serde_json::to_string(plan).ok();
        let drawn = Plan::draw(self.seed, plan.faults);
        if text(plan) != text(&drawn) {
            return None;
        }
        let fault = crate::planted::name_of(plan.faults);
        let fault = fault.map(|name| format!(" --fault {name}")).unwrap_or_default();
        Some(format!("./x sim {}{fault}", self.seed))
    }
}

/// Plays a seed. With `readable` a failure carries its last events.
pub fn run_seed(seed: u64, faults: Faults, readable: bool) -> Result<Clean, Failure> {
    run_plan(Plan::draw(seed, faults), readable)
}

/// Plays a plan.
pub fn run_plan(plan: Plan, readable: bool) -> Result<Clean, Failure> {
    play(plan, |plan| World::new(plan, readable))
}

/// Plays what was recorded.
pub fn run_recorded(recording: &Recording, readable: bool) -> Result<Clean, Failure> {
    play(recording.plan.clone(), |_| World::replaying(recording, readable))
}

/// Plays a plan, and hands over each line of what happens.
pub fn run_plan_printing(plan: Plan, print: crate::trace::Print) -> Result<Clean, Failure> {
    play(plan, |plan| {
        let mut world = World::new(plan, false);
        world.trace.print_lines(print);
        world
    })
}

/// What a run says that was ended, since it went on for too long.
pub(crate) const OVERTIME: &str = "the time is over";

/// Plays what was recorded, until some time at the longest.
pub(crate) fn run_recorded_until(
    recording: &Recording,
    until: std::time::Instant,
) -> Result<Clean, Failure> {
    play(recording.plan.clone(), |_| {
        let mut world = World::replaying(recording, false);
        world.stop_at = Some(until);
        world
    })
}

/// Plays what was recorded, and hands over each line of what happens.
pub fn run_printing(recording: &Recording, print: crate::trace::Print) -> Result<Clean, Failure> {
    play(recording.plan.clone(), |_| {
        let mut world = World::replaying(recording, false);
        world.trace.print_lines(print);
        world
    })
}

/// Lines of a transcript at most: the last ones.
const TRANSCRIPT_LINES: usize = 400;
/// What happens all the time, and says little.
const IDLE: [&str; 6] =
    [" timer", ": Beat", ": KeepAlive", ": Credit", "TrimLog", "changes: [], stale: []"];

/// Within this long what clients of files begin after the troubles is mostly answered, in nanoseconds.
const ANSWERED_WITHIN: u64 = SECOND;

/// What happens in a recorded run, and how it fails, as text: without signs of life and credits, and
/// of a clean run only what comes before its troubles end, and before what clients of files begin later
/// is answered: a run may be kept for that.
#[must_use]
pub fn transcript(recording: &Recording) -> String {
    let result = run_recorded(recording, true);
    let (tail, end) = match &result {
        Ok(clean) => (&clean.tail, "no promise is broken"),
        Err(failure) => (&failure.tail, failure.what.as_str()),
    };
    let begun_later = recording.decisions.iter().filter_map(|decision| match decision {
        Decision::Files(turn) if turn.at > recording.wild_until() => Some(turn.at),
        _ => None,
    });
    let until = begun_later.max().map_or(recording.wild_until, |at| at.plus(ANSWERED_WITHIN).0);
    let is_told = |line: &&str| {
        let micros = line.trim_start().split(' ').next().and_then(|word| word.parse().ok());
        result.is_err() || micros.is_none_or(|micros: u64| micros <= until / 1_000)
    };
    let lines = tail.lines().filter(|line| !IDLE.iter().any(|idle| line.contains(idle)));
    let lines: Vec<&str> = lines.take_while(is_told).collect();
    let decisions = recording.decisions.iter().map(ToString::to_string);
    let first = lines.len().saturating_sub(TRANSCRIPT_LINES);
    let texts = decisions.chain([String::new()]).collect::<Vec<_>>();
    format!("{}\n{}\n\n{end}\n", texts.join("\n"), lines[first..].join("\n"))
}

fn play(plan: Plan, make: impl FnOnce(Plan) -> World) -> Result<Clean, Failure> {
    quiet_panics();
    let (seed, budget) = (plan.seed, plan.budget);
    let mut world = None;
    let as_made = plan.clone();
    // What was reached before is another run's.
    drop(larder_core::probe::take());
    PLAYING.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| world.insert(make(plan)).run()));
    PLAYING.set(false);
    let trace = world.as_ref().map(|world| &world.trace);
    match (result, &world) {
        (Ok(()), Some(world)) => {
            let trace = &world.trace;
            let (hash, events, tally) = (trace.hash(), trace.events(), world.tally);
            Ok(Clean {
                budget,
                hash,
                events,
                tally,
                tail: trace.to_string(),
                probes: larder_core::probe::take(),
                #[cfg(feature = "second-opinion")]
                asked: world.asked(),
            })
        }
        _ => {
            let what = LAST_PANIC.with_borrow(Clone::clone);
            let nothing = || Recording {
                fails: Some(what.clone()),
                wild_until: 0,
                calm: false,
                decisions: Vec::new(),
                plan: as_made,
            };
            let recording = world.as_ref().map(|world| world.recording(Some(what.clone())));
            Err(Failure {
                seed,
                hash: trace.map_or(0, crate::trace::Trace::hash),
                tail: trace.map_or(String::new(), ToString::to_string),
                recording: Box::new(recording.unwrap_or_else(nothing)),
                what,
            })
        }
    }
}

/// Panics of a run are its result: they are kept, and nothing is printed when they happen.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !PLAYING.get() {
                return before(info);
            }
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            LAST_PANIC.set(format!("{} [{place}]", text.unwrap_or("a panic without words")));
        }));
    });
}
