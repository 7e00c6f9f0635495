//! Runs of seeds: one, a range, twice for the hash; failures become reports.

use crate::plan::Plan;
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
#[derive(Clone, Copy, Debug)]
pub struct Clean {
    /// The hash of its events.
    pub hash: u64,
    /// How many there were.
    pub events: u64,
    /// What happened.
    pub tally: Tally,
    /// What the second opinion was asked about.
    #[cfg(feature = "second-opinion")]
    pub asked: crate::check::second::Asked,
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
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tail)?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(f, "again: cargo run --release -p larder-sim -- run {}", self.seed)
    }
}

/// Plays a seed. With `readable` a failure carries its last events.
pub fn run_seed(seed: u64, faults: Faults, readable: bool) -> Result<Clean, Failure> {
    run_plan(Plan::draw(seed, faults), readable)
}

/// Plays a plan.
pub fn run_plan(plan: Plan, readable: bool) -> Result<Clean, Failure> {
    quiet_panics();
    let seed = plan.seed;
    let mut world = None;
    PLAYING.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.insert(World::new(plan, readable)).run();
    }));
    PLAYING.set(false);
    let trace = world.as_ref().map(|world| &world.trace);
    let hash = trace.map_or(0, crate::trace::Trace::hash);
    match (result, &world) {
        (Ok(()), Some(world)) => Ok(Clean {
            hash,
            events: world.trace.events(),
            tally: world.tally,
            #[cfg(feature = "second-opinion")]
            asked: world.asked(),
        }),
        _ => Err(Failure {
            seed,
            hash,
            what: LAST_PANIC.with_borrow(Clone::clone),
            tail: trace.map_or(String::new(), ToString::to_string),
        }),
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
