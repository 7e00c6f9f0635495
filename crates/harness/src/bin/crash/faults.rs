//! What is done to the processes in a round, drawn from the seed and the round's number alone.

use crate::world::{LEASE, LINES, PARTS, Part, SILENCE, World, line_of};
use anyhow::{Result, bail};
use larder::testing::proxy::Line;
use larder_core::rng::Rng;
use std::time::{Duration, Instant};

/// A kind of fault, by the name under which `--only` knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    KillOrigin,
    KillRelay,
    KillMount,
    KillWriter,
    /// Killed again while it recovers.
    KillTwice,
    Stop,
    Delay,
    Stall,
    StallUp,
    StallDown,
    Tear,
    Cut,
    Full,
}

/// Each with its name, and how often it comes.
const KINDS: [(Kind, &str, u64); 13] = [
    (Kind::KillOrigin, "kill-origin", 5),
    (Kind::KillRelay, "kill-relay", 3),
    (Kind::KillMount, "kill-mount", 5),
    (Kind::KillWriter, "kill-writer", 3),
    (Kind::KillTwice, "kill-twice", 2),
    (Kind::Stop, "stop", 3),
    (Kind::Delay, "delay", 1),
    (Kind::Stall, "stall", 1),
    (Kind::StallUp, "stall-up", 1),
    (Kind::StallDown, "stall-down", 1),
    (Kind::Tear, "tear", 2),
    (Kind::Cut, "cut", 2),
    (Kind::Full, "full", 2),
];

impl Kind {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        if let Some((kind, ..)) = KINDS.iter().find(|(_, known, _)| *known == name) {
            return Ok(*kind);
        }
        bail!("no fault {name}: the faults are {}", Self::names())
    }

    pub(crate) fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).expect("all are listed").1
    }

    pub(crate) fn names() -> String {
        KINDS.map(|(_, name, _)| name).join(" ")
    }
}

/// What happens to what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Kill(Part),
    KillTwice(Part),
    Stop(Part),
    Line(usize, Line),
    Delay(usize, Duration),
    /// The origin's disk, but for so many bytes.
    Full(u64),
}

/// With less room than this a domain may end its service, until its origin is started again.
const BRIM: u64 = 8 << 20;

/// One fault: from when on, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    what: What,
    at: Duration,
    lasts: Duration,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind.name())?;
        match self.what {
            What::Kill(part) | What::KillTwice(part) | What::Stop(part) => {
                write!(f, " {}", part.name())?;
            }
            What::Line(line, _) => write!(f, " of {}", line_of(line))?,
            What::Delay(line, delay) => {
                write!(f, " of {} {} ms", line_of(line), delay.as_millis())?
            }
            What::Full(free) => write!(f, " but {free} bytes")?,
        }
        write!(f, " at {} ms for {} ms", self.at.as_millis(), self.lasts.as_millis())
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn draw_kind(rng: &mut Rng, only: &[Kind]) -> Kind {
    let known = || KINDS.iter().filter(|(kind, ..)| only.is_empty() || only.contains(kind));
    let mut left = rng.below(known().map(|(.., weight)| weight).sum());
    for (kind, _, weight) in known() {
        match left.checked_sub(*weight) {
            Some(less) => left = less,
            None => return *kind,
        }
    }
    unreachable!("what is drawn is below the sum")
}

/// How long something lasts: mostly a moment, now and then longer than the lease, and than a silent
/// link is kept.
fn draw_length(rng: &mut Rng) -> Duration {
    match rng.below(10) {
        0..=5 => ms(30 + rng.below(300)),
        6..=8 => LEASE + ms(50 + rng.below(400)),
        _ => SILENCE + ms(100 + rng.below(400)),
    }
}

fn draw(rng: &mut Rng, only: &[Kind]) -> Fault {
    let kind = draw_kind(rng, only);
    let site = rng.below(2) as usize;
    let line = rng.below(LINES as u64) as usize;
    let at = ms(250 + rng.below(500));
    let part = PARTS[rng.below(PARTS.len() as u64) as usize];
    let (down, length) = (ms(rng.below(250)), draw_length(rng));
    let (what, lasts) = match kind {
        Kind::KillOrigin => (What::Kill(Part::Origin), down),
        Kind::KillRelay => (What::Kill(Part::Relay), down),
        Kind::KillMount => (What::Kill(Part::Mount(site)), down),
        Kind::KillWriter => (What::Kill(Part::Writer(site)), down),
        Kind::KillTwice => (What::KillTwice(part), ms(5 + rng.below(120))),
        Kind::Stop => (What::Stop(part), length),
        Kind::Delay => (What::Delay(line, ms(20 + rng.below(150))), length),
        Kind::Stall => (What::Line(line, Line::Stalled), length),
        Kind::StallUp => (What::Line(line, Line::StalledUp), length),
        Kind::StallDown => (What::Line(line, Line::StalledDown), length),
        Kind::Tear => (What::Line(line, Line::Torn), length),
        Kind::Cut => (What::Line(line, Line::Cut), length),
        // Less than the log keeps for itself: it must refuse. Now and then hardly a byte.
        Kind::Full if rng.chance(1, 4) => (What::Full(rng.below(BRIM)), ms(200 + rng.below(500))),
        Kind::Full => (What::Full((16 + rng.below(24)) << 20), ms(200 + rng.below(500))),
    };
    Fault { kind, what, at, lasts }
}

/// The faults of a round.
pub(crate) fn plan(rng: &mut Rng, only: &[Kind]) -> Vec<Fault> {
    let count = match rng.below(10) {
        0..=5 => 1,
        6..=8 => 2,
        _ => 3,
    };
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..count {
        let fault = draw(rng, only);
        if !faults.iter().any(|other| other.place() == fault.place()) {
            faults.push(fault);
        }
    }
    faults
}

impl Fault {
    /// What it takes hold of: nothing else may at the same time.
    fn place(&self) -> String {
        match self.what {
            What::Kill(part) | What::KillTwice(part) | What::Stop(part) => part.name(),
            What::Line(line, _) | What::Delay(line, _) => format!("line {line}"),
            What::Full(_) => "disk".into(),
        }
    }

    fn begin(&self, world: &mut World) -> Result<()> {
        match self.what {
            What::Kill(part) => world.process(part).kill(),
            What::KillTwice(part) => {
                world.process(part).kill();
                world.start(part)?;
            }
            What::Stop(part) => world.process(part).pause()?,
            What::Line(line, state) => world.lines[line].proxy.set_line(state),
            What::Delay(line, delay) => world.lines[line].proxy.set_delay(delay),
            What::Full(free) => world.fill(free)?,
        }
        Ok(())
    }

    /// A part that was killed is started, and not waited for: its line may be down still.
    fn end(&self, world: &mut World) -> Result<()> {
        match self.what {
            What::Kill(part) => world.start(part)?,
            What::KillTwice(part) => {
                world.process(part).kill();
                world.start(part)?;
            }
            What::Stop(part) => world.process(part).resume()?,
            // One that was torn is cut then: nobody gets the other half.
            What::Line(line, Line::Torn) => {
                world.lines[line].proxy.cut();
                // Connections are reset by tasks of their own.
                std::thread::sleep(ms(10));
                world.lines[line].proxy.heal();
            }
            What::Line(line, _) => world.lines[line].proxy.heal(),
            What::Delay(line, _) => world.lines[line].proxy.set_delay(crate::world::ONE_WAY),
            What::Full(_) => world.free()?,
        }
        Ok(())
    }
}

/// Lets all faults begin and end at their times, and waits until every process serves again.
pub(crate) fn inflict(world: &mut World, faults: &[Fault]) -> Result<()> {
    let mut moments: Vec<(Duration, bool, &Fault)> = Vec::new();
    for fault in faults {
        moments.push((fault.at, true, fault));
        moments.push((fault.at + fault.lasts, false, fault));
    }
    moments.sort_by_key(|(when, ..)| *when);
    let started = Instant::now();
    for (when, begins, fault) in moments {
        std::thread::sleep(when.saturating_sub(started.elapsed()));
        if begins {
            fault.begin(world)?;
        } else {
            fault.end(world)?;
        }
    }
    for part in PARTS {
        let brim = |fault: &Fault| matches!(fault.what, What::Full(free) if free < BRIM);
        if part == Part::Origin && faults.iter().any(brim) {
            world.restart_if_it_ended_service()?;
        }
        world.ready(part)?;
    }
    Ok(())
}
