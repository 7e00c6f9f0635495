//! What goes wrong, and how it is mended.

use super::origin::ORIGIN;
use super::{Event, Phase, World};
use crate::agenda::{MILLI, SECOND, Time};
use crate::client::SHORT_AGE;
use crate::draws::About;
use crate::net::{Proc, Way};
use crate::plan::{Budget, Trouble, pick};
use larder_core::cache::io::CacheInput;
use larder_core::machine::Fault;

/// The longest that a wall clock is set forward or back, in nanoseconds: about twenty years.
const WALL_STEP_MAX: i64 = 600_000_000 * SECOND as i64;

/// The longest that a clock stands still within the stated bias, in nanoseconds: with as long a pause between
/// two of them as the shortest age that clients ask for, and with the drift that plans draw, that is less
/// than a thousandth of any age.
const FREEZE_WITHIN_BIAS: u64 = 20_000;

/// The end of a trouble.
#[derive(Clone, Debug)]
pub(super) enum Mend {
    /// A direction is held up now, and for so long.
    Clog(u32, Way, u64),
    /// A clogged direction is free again.
    Unclog(u32, Way),
    /// One process reaches another again.
    Unblock(Proc, Proc),
    /// An operator starts the origin again, unless it died meanwhile.
    RestartOrigin {
        /// Which one.
        origin: Proc,
        /// The life that is to end.
        incarnation: u32,
        /// Whether the machine is reset as well.
        power: bool,
    },
    /// There is room again on the disk of the domain of this number.
    Room(usize),
    /// These origins are replaced by their backups.
    Restore(Vec<Proc>),
    /// An operator sees that a child was refused after a fork, by this origin.
    Fork(Proc, Proc),
    /// An operator sees that an origin is not heard by another since its stores were restored.
    Unheard(Proc),
    /// A wall clock goes on from where it stood.
    WallGoesOn(Proc),
    /// A process that was told to end in this life of it does.
    Ends(Proc, u32),
    /// Who speaks for another's boot goes on to commit under it, and is found out.
    Forged(Box<super::forge::Forged>),
}

impl World {
    /// Enters the first trouble of the kind of this number.
    pub(super) fn enter_first_trouble(&mut self, number: usize) {
        let (trouble, _) = self.plan.troubles[number];
        self.rng = self.draws.of(About::Trouble(trouble as u8), 0);
        self.enter_trouble(number, 0);
    }

    /// Enters the next one.
    fn enter_trouble(&mut self, number: usize, before: u32) {
        let (_, mean) = self.plan.troubles[number];
        let delay = 1 + self.rng.below(2 * mean);
        self.agenda.enter(self.now.plus(delay), Event::Trouble(number, before + 1));
    }

    /// The trouble of this number of a kind, which is the `which`th of the plan's.
    pub(super) fn trouble(&mut self, which: usize, number: u32) {
        if self.phase != Phase::Wild {
            return;
        }
        let (trouble, _) = self.plan.troubles[which];
        // First of all: when the next one comes depends on nothing that this one finds.
        self.enter_trouble(which, number);
        if !self.decisions.strikes(trouble, number) {
            return;
        }
        self.tally.troubles += 1;
        self.tally.struck[trouble as usize] += 1;
        self.trace.mix(0x7400 | trouble as u64);
        self.trace.line(|| format!("trouble: {trouble:?}"));
        self.strike(trouble);
    }

    /// Enters the end of a trouble.
    pub(super) fn enter_mend(&mut self, delay: u64, mend: Mend) {
        let drawn = self.rng.next_u64();
        self.agenda.enter(self.now.plus(delay), Event::Mend(mend, drawn));
    }

    fn strike(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Break => {
                if let Some(conn) = self.any_conn() {
                    self.break_conn(conn);
                }
            }
            Trouble::Clog => {
                if let Some(conn) = self.any_conn() {
                    let way = pick(&mut self.rng, &[Way::Up, Way::Down]);
                    self.net.clog(conn, way);
                    self.mend_later(Mend::Unclog(conn, way));
                }
            }
            Trouble::Partition => self.partition(),
            Trouble::CrashNode => self.crash_one(1 + self.plan.relays.len(), self.plan.nodes.len()),
            Trouble::CrashRelay => self.crash_one(1, self.plan.relays.len()),
            Trouble::KillOrigin => {
                let origin = self.any_origin();
                self.kill_origin(origin, false);
            }
            Trouble::CutPower => {
                let origin = self.any_origin();
                self.kill_origin(origin, true);
            }
            Trouble::Pause => self.pause(),
            Trouble::SyncFails => self.fail_syncs(),
            Trouble::DiskFull => {
                let number = self.rng.below(self.domains.len() as u64) as usize;
                self.set_full(number, true);
                self.mend_later(Mend::Room(number));
            }
            Trouble::Move => self.move_node(),
            Trouble::Restore => {
                self.back_up();
                let delay = self.draw_delay();
                let origins = self.one_origin_or_all();
                self.enter_mend(delay, Mend::Restore(origins));
            }
            Trouble::Rot | Trouble::LoseWrite | Trouble::MisdirectWrite => {
                let origin = self.damage(trouble);
                if self.rng.chance(3, 4) {
                    self.operator_restarts(origin);
                }
            }
            Trouble::SetWall => self.set_wall(),
            Trouble::SetClock => self.set_clock_of_any(),
            Trouble::Hang => self.hang(),
            Trouble::Forge => self.forge(),
            Trouble::Wipe => {
                let origins = self.one_origin_or_all();
                origins.iter().for_each(|origin| self.kill_origin(*origin, true));
                self.wipe(&origins);
            }
            Trouble::Swizzle => self.swizzle(),
            Trouble::Isolate => self.isolate(),
            Trouble::FreezeWall => self.freeze_wall(),
            Trouble::FreezeClock => self.freeze_clock(),
            Trouble::KillRedirector => self.kill_redirector(),
            Trouble::PartRedirector => self.part_redirector(),
            Trouble::PauseRedirector => self.pause_redirector(),
            Trouble::PartMembers => self.part_members(),
            Trouble::HandOver => self.hand_over(),
        }
    }

    fn any_process(&mut self) -> Proc {
        Proc(self.rng.below(self.processes.len() as u64) as u16)
    }

    /// Sets a wall clock: nothing that is promised depends on it.
    fn set_wall(&mut self) {
        let proc = self.any_process();
        let longest = pick(&mut self.rng, &[SECOND as i64, 7_200 * SECOND as i64, WALL_STEP_MAX]);
        let error = self.rng.below(2 * longest as u64) as i64 - longest;
        let as_own = self.plan.faults.has(Fault::WallClockAsOwn);
        let process = self.process_mut(proc);
        let step = i128::from(error) - i128::from(process.wall_error);
        (process.wall_error, process.wall_stands) = (error, None);
        // Rule 8: a planted fault takes the wall clock for one that never runs backwards.
        if as_own {
            process.rate.step(step);
        }
        self.enter_timer(proc);
    }

    /// Sets a clock that ought never to be set, forward by up to three leases or back by one.
    fn set_clock_of_any(&mut self) {
        let proc = self.any_process();
        let lease = self.plan.limits.lease.as_nanos() as u64;
        let step = if self.rng.chance(1, 2) {
            i128::from(self.rng.below(3 * lease))
        } else {
            let back = self.rng.below(lease);
            self.note_set_back(self.now, back);
            -i128::from(back)
        };
        self.process_mut(proc).rate.step(step);
        self.enter_timer(proc);
    }

    /// A process's own clock was set back, or stood still for so long, at or until a time.
    fn note_set_back(&mut self, time: Time, nanos: u64) {
        self.needs_beyond("clocks are outside of their bias");
        self.set_backs.push((time, nanos));
    }

    /// A wall clock stands still for a while: nothing that is promised depends on it.
    fn freeze_wall(&mut self) {
        let proc = self.any_process();
        let span = self.draw_delay();
        if self.process(proc).wall_stands.is_some() {
            return;
        }
        let (now, until) = (self.now, self.now.plus(span));
        let as_own = self.plan.faults.has(Fault::WallClockAsOwn);
        let process = self.process_mut(proc);
        process.wall_stands = Some(now);
        // Rule 8: a planted fault takes the wall clock for one that never stands still.
        if as_own {
            process.rate.freeze(now, until);
        }
        self.enter_mend(span, Mend::WallGoesOn(proc));
    }

    /// It goes on from what it showed.
    fn wall_goes_on(&mut self, proc: Proc) {
        let now = self.now;
        let process = self.process_mut(proc);
        if let Some(since) = process.wall_stands.take() {
            let behind = i64::try_from(now.0 - since.0).expect("runs last minutes");
            process.wall_error = process.wall_error.saturating_sub(behind);
        }
    }

    /// A clock of a process's own stands still: so shortly, and so seldom, that it is right within the
    /// stated bias over any age that somebody asks for; or, beyond what is recoverable, for leases.
    fn freeze_clock(&mut self) {
        let proc = self.any_process();
        let lease = self.plan.limits.lease.as_nanos() as u64;
        let beyond = self.plan.budget == Budget::Beyond && self.rng.chance(3, 4);
        let longest = if beyond {
            pick(&mut self.rng, &[50 * MILLI, lease, 3 * lease])
        } else {
            FREEZE_WITHIN_BIAS
        };
        let span = 1 + self.rng.below(longest);
        let until = self.now.plus(span);
        if beyond {
            self.note_set_back(until, span);
        } else if self.now < self.no_freeze_before {
            return;
        }
        self.no_freeze_before = until.plus(SHORT_AGE);
        let now = self.now;
        self.process_mut(proc).rate.freeze(now, until);
        self.enter_timer(proc);
    }

    pub(super) fn draw_delay(&mut self) -> u64 {
        let span = pick(&mut self.rng, &[10 * MILLI, 500 * MILLI, 5 * SECOND, 30 * SECOND]);
        1 + self.rng.below(span)
    }

    fn mend_later(&mut self, mend: Mend) {
        let delay = self.draw_delay();
        self.enter_mend(delay, mend);
    }

    /// A node takes another parent. The one that it leaves hears of it late, and takes it for there
    /// until then.
    fn move_node(&mut self) {
        let parents = 1 + self.plan.relays.len() as u64;
        let node = Proc((parents + self.rng.below(self.plan.nodes.len() as u64)) as u16);
        let to = Proc(self.rng.below(parents) as u16);
        let process = self.process_mut(node);
        if let Some((parent, _)) = &mut process.parent {
            *parent = to;
        }
        let uplink = process.uplink;
        if let Some(conn) = uplink {
            self.break_conn(conn);
        }
        if self.rng.chance(1, 3) {
            self.kill_node(node);
        }
    }

    /// One of the connections of one process, as child.
    fn any_conn(&mut self) -> Option<u32> {
        // An origin is a child where it dials another.
        let first = u64::from(!self.plan.second_origin);
        let child = Proc((first + self.rng.below(self.processes.len() as u64 - first)) as u16);
        let live = self.net.live().into_iter().filter(|conn| self.net.conn(*conn).child == child);
        let live: Vec<u32> = live.collect();
        (!live.is_empty()).then(|| pick(&mut self.rng, &live))
    }

    /// Holds up some connections, each from a time of its own and to a time of its own: what arrives in
    /// between is of now these, now those.
    fn swizzle(&mut self) {
        for conn in self.net.live() {
            if self.rng.chance(1, 2) {
                let way = pick(&mut self.rng, &[Way::Up, Way::Down]);
                let (delay, span) = (self.draw_delay(), self.draw_delay());
                self.enter_mend(delay, Mend::Clog(conn, way, span));
            }
        }
    }

    /// Parts a process from all others.
    fn isolate(&mut self) {
        let proc = self.any_process();
        let all: Vec<Proc> = (0..self.processes.len() as u16).map(Proc).collect();
        self.part_from(proc, &all);
    }

    fn partition(&mut self) {
        let child = Proc(1 + self.rng.below(self.processes.len() as u64 - 1) as u16);
        // The second origin has none: it is parted from the first.
        let mut parent = self.process(child).parent.map_or(ORIGIN, |(parent, _)| parent);
        if self.plan.second_origin && self.has_second(child) && self.rng.chance(1, 2) {
            parent = self.second_parent(child);
        }
        let pairs: &[(Proc, Proc)] = match self.rng.below(3) {
            0 => &[(child, parent)],
            1 => &[(parent, child)],
            _ => &[(child, parent), (parent, child)],
        };
        for (from, to) in pairs {
            self.net.block(*from, *to);
            self.mend_later(Mend::Unblock(*from, *to));
        }
    }

    fn crash_one(&mut self, first: usize, count: usize) {
        if count == 0 {
            return;
        }
        let proc = Proc((first as u64 + self.rng.below(count as u64)) as u16);
        match self.process(proc).machinery {
            super::Machinery::Relay(_) => self.kill_relay(proc),
            _ => {
                // No draw of its own: the same lives are killed as ever.
                let process = self.process(proc);
                let awake = process.paused_until <= self.now;
                if awake && (u32::from(proc.0) + process.incarnation).is_multiple_of(2) {
                    self.node_input(proc, CacheInput::End);
                }
                self.kill_node(proc);
            }
        }
    }

    fn pause(&mut self) {
        let proc = self.any_process();
        let lease = self.plan.limits.lease.as_nanos() as u64;
        let silence = self.plan.limits.silence.as_nanos() as u64;
        let span = pick(&mut self.rng, &[50 * MILLI, lease, 3 * lease, 3 * lease + 2 * silence]);
        let pause = 1 + self.rng.below(span);
        self.stand_still(proc, pause);
        // Rule 8: a planted fault uses a clock that stands still while its process does.
        if self.plan.faults.has(Fault::ClockStopsAsleep) {
            self.process_mut(proc).rate.step(-i128::from(pause));
        }
    }

    /// A process died: its connections go, and it starts again after a while.
    pub(super) fn after_death(&mut self, proc: Proc) {
        self.close_all(proc);
        let process = self.process_mut(proc);
        process.incarnation += 1;
        process.timer_at = None;
        process.attempts = 0;
        let incarnation = process.incarnation;
        let span = pick(&mut self.rng, &[MILLI, 100 * MILLI, 2 * SECOND, 10 * SECOND]);
        let reset = self.plan.machines_reset;
        let delay = 1 + self.rng.below(if reset { 100 * MILLI } else { span });
        if self.rng.chance(1, 3) || reset {
            self.restart_clock(proc, self.now.plus(delay));
        }
        self.agenda.enter(self.now.plus(delay), Event::Start(proc, incarnation));
    }

    /// The machine was off: its clock begins anew, below all that it showed before.
    fn restart_clock(&mut self, proc: Proc, at: Time) {
        self.process_mut(proc).rate.begin(at);
    }

    /// A child was refused since the origin's line forked: sooner or later somebody acts.
    pub(super) fn operator_mends_fork(&mut self, child: Proc, origin: Proc) {
        let delay = self.rng.below(4 * SECOND);
        self.enter_mend(delay, Mend::Fork(child, origin));
    }

    pub(super) fn mend(&mut self, mend: Mend) {
        self.trace.mix(0x3e4d);
        self.trace.line(|| format!("{mend:?}"));
        if self.mended.is_some() {
            // What mends may take a process down once more.
            self.note_mended();
        }
        match mend {
            Mend::Clog(conn, way, span) => {
                if self.phase == Phase::Wild {
                    self.net.clog(conn, way);
                    self.enter_mend(span, Mend::Unclog(conn, way));
                }
            }
            Mend::Unclog(conn, way) => {
                let deliveries = self.net.unclog(self.now, conn, way);
                self.enter_deliveries(deliveries);
            }
            // They stay apart for now.
            Mend::Unblock(from, to) if !self.is_in_core(from) || !self.is_in_core(to) => {}
            Mend::Unblock(from, to) => {
                let deliveries = self.net.unblock(self.now, from, to);
                self.enter_deliveries(deliveries);
            }
            Mend::RestartOrigin { origin, incarnation, power } => {
                if self.process(origin).incarnation == incarnation {
                    self.kill_origin(origin, power);
                }
            }
            Mend::Room(number) => self.set_full(number, false),
            Mend::Restore(origins) => {
                for origin in origins {
                    self.kill_origin(origin, true);
                    self.restore(origin);
                    // Once accepted, forks stay accepted: an answer to an old resume may be late.
                    if self.rng.chance(1, 3) {
                        self.accept_fork(origin);
                    }
                }
            }
            Mend::Fork(child, origin) => self.mend_fork(child, origin),
            Mend::Unheard(origin) => self.accept_loss(origin),
            Mend::WallGoesOn(proc) => self.wall_goes_on(proc),
            Mend::Ends(proc, life) => self.ends(proc, life),
            Mend::Forged(forged) => self.forge_commit(&forged),
        }
    }

    /// What happens now is allowed to none but runs whose budget is beyond what is recoverable.
    pub(super) fn needs_beyond(&self, what: &str) {
        assert!(
            self.plan.budget == Budget::Beyond,
            "recoverable: {what}, and nothing beyond the budget has happened"
        );
    }

    fn mend_fork(&mut self, child: Proc, origin: Proc) {
        if self.rng.chance(1, 2) {
            // The origin is right: the child starts afresh.
            match self.process(child).machinery {
                super::Machinery::Relay(_) => self.kill_relay(child),
                _ => self.kill_node(child),
            }
        } else {
            self.accept_loss(origin);
        }
    }

    /// What an origin's stores have lost is lost.
    fn accept_loss(&mut self, origin: Proc) {
        if !self.accepts_fork(origin) {
            self.accept_fork(origin);
            self.kill_origin(origin, false);
        }
    }

    /// Of two processes of a name one is taken away: somebody has read what the refused one printed.
    pub(super) fn retire_copy(&mut self) {
        if self.plan.twins {
            let copy = Proc((self.plan.relays.len() + self.plan.nodes.len()) as u16);
            self.process_mut(copy).retired = true;
            self.kill_node(copy);
        }
    }

    /// No clock stands still any more.
    pub(super) fn clocks_go_on(&mut self) {
        for number in 0..self.processes.len() {
            let proc = Proc(number as u16);
            self.wall_goes_on(proc);
            let now = self.now;
            self.process_mut(proc).rate.thaw(now);
            self.enter_timer(proc);
        }
    }

    /// No more troubles, and those that last are mended, but for a log that hangs.
    pub(super) fn heal(&mut self) {
        let live = self.net.live();
        for (from, to) in self.net.blocked() {
            let deliveries = self.net.unblock(self.now, from, to);
            self.enter_deliveries(deliveries);
        }
        for conn in live {
            for way in [Way::Up, Way::Down] {
                let deliveries = self.net.unclog(self.now, conn, way);
                self.enter_deliveries(deliveries);
            }
        }
        for number in 0..self.domains.len() {
            self.set_full(number, false);
        }
        for process in &mut self.processes {
            process.paused_until = process.paused_until.min(self.now.plus(SECOND));
        }
        self.clocks_go_on();
    }
}
