//! The world: processes, network, disks, troubles, and the loop that plays them.

mod failover;
mod forge;
mod hang;
mod healing;
mod interleave;
mod links;
mod node;
mod origin;
mod process;
mod reading;
mod relay;
mod rest;
mod seats;
mod seconds;
mod settle;
mod troubles;
mod works;

pub use process::{Machinery, Node, OriginHost, Process, RelayHost};

use crate::agenda::{Agenda, MILLI, SECOND, Time};
use crate::check::acks::Acks;
use crate::check::answers::Answers;
use crate::check::cycles::History;
use crate::check::oracle::Oracle;
use crate::check::passing::Passing;
use crate::check::reading::Readers;
use crate::client::{Client, SharedSession};
use crate::decisions::Decisions;
use crate::draws::{About, Draws};
use crate::net::{Delivery, End, Net, Proc, Way};
use crate::plan::{CLOCK_BIAS_PPM, Plan, TROUBLES};
use crate::recording::Recording;
use crate::run::OVERTIME;
use crate::trace::Trace;
use larder_core::id::{BootId, DomainId, HistoryId, PageId, Stamp};
use larder_core::message::CloseReason;
use larder_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Between two checks of the whole state, in events.
const WHOLE_CHECK_EVENTS: u64 = 1_000;
/// Between two readings of the wall clock that origin and relays are handed.
const WALL_NANOS: u64 = 500 * MILLI;

/// A running simulation.
#[derive(Debug)]
pub struct World {
    /// What the seed drew.
    pub plan: Plan,
    /// Every event so far.
    pub trace: Trace,
    pub(crate) now: Time,
    agenda: Agenda<Event>,
    /// Draws for the event that is being played.
    pub(crate) rng: Rng,
    pub(crate) draws: Draws,
    pub(crate) decisions: Decisions,
    /// When the troubles end at the latest.
    pub(crate) wild_until: Time,
    /// Clients begin nothing more from then on.
    calm: bool,
    /// When the run is ended, by the time of those who wait for it.
    pub(crate) stop_at: Option<std::time::Instant>,
    net: Net,
    processes: Vec<Process>,
    /// By domain: they outlive their origins.
    stores: Vec<origin::StoreHost>,
    pub(crate) clients: Vec<Client>,
    pub(crate) sessions: Vec<SharedSession>,
    pub(crate) oracle: Oracle,
    pub(crate) cycles: History,
    acks: Acks,
    pub(crate) readers: Readers,
    passing: Passing,
    pub(crate) answers: Answers,
    pub(crate) domains: Vec<DomainId>,
    pub(crate) volumes: Vec<crate::client::VolumePlan>,
    phase: Phase,
    armed: Option<interleave::Armed>,
    /// What the client's node showed when an operation began in whose middle it went on.
    shown_before: BTreeMap<DomainId, (HistoryId, Stamp)>,
    /// When a process's own clock was set back, and by how much.
    set_backs: Vec<(Time, u64)>,
    /// The last redirector that each group lost, where it has to work again soon.
    lost: BTreeMap<u16, works::Lost>,
    /// Before this time no clock stands still within the stated bias: one did.
    no_freeze_before: Time,
    /// Processes that stood still, and until when.
    stalls: Vec<(Proc, Time)>,
    /// Who is to work while the others are away.
    core: Option<BTreeSet<Proc>>,
    /// Those that stay dead meanwhile.
    held_down: BTreeSet<Proc>,
    /// The node's name under which each boot was ever logged, by domain.
    boots: BTreeMap<(DomainId, BootId), String>,
    /// Connections over which somebody spoke for another.
    forged: BTreeSet<u32>,
    /// Questions to domains beside one whose log hangs.
    probes: Vec<hang::Probe>,
    /// Pages that a child asked for and could not have: its parent may go on counting it for them.
    failed: BTreeSet<(Proc, PageId)>,
    /// All has been mended since then, as far as the core goes.
    mended: Option<Time>,
    /// Clients of the file layer.
    pub(crate) files: crate::files::Files,
    /// What two origins were told by each other.
    told: origin::Told,
    /// Who takes part in groups that find their redirectors themselves.
    seats: BTreeMap<Proc, seats::Seat>,
    /// Counts for the report.
    pub tally: Tally,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Troubles come.
    Wild,
    /// No more troubles; clients go on until the time given, so that progress is seen.
    Healing(Time),
    /// Each client has to commit, from then on.
    Proving(Time),
    /// Clients end what they have begun.
    Draining,
}

/// What happened in a run, for its report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Transactions that ended well.
    pub committed: u64,
    /// Transactions that were told to try again.
    pub aborted: u64,
    /// Transactions whose outcome their user does not know.
    pub unknown: u64,
    /// Copies compared with the oracle.
    pub copies_checked: u64,
    /// Troubles begun.
    pub troubles: u64,
    /// The same by their kinds, in the order of these.
    pub struck: [u64; TROUBLES.len()],
    /// Members that followed a redirector that was lost, and worked again in time.
    pub failovers: u64,
    /// Resumes that went past a fork.
    pub forks: u64,
    /// Starts that a damaged store refused.
    pub refused_stores: u64,
    /// Deletions of volumes that were asked for.
    pub deletions: u64,
    /// Transactions over several domains that were committed as a whole.
    pub wholes: u64,
    /// What domains of two origins said to each other.
    pub between_origins: u64,
    /// Questions for the latest state that were answered.
    pub refreshed: u64,
    /// Copies of volumes that were made.
    pub copied: u64,
    /// Runs in which a core had to work while the others were away.
    pub cores: u64,
    /// The longest that all clients together took to prove that they can commit, in nanoseconds.
    pub proof_nanos_max: u64,
    /// Links refused to the second process of a name.
    pub refused_twins: u64,
    /// Answers of domains beside one whose log hung.
    pub went_on: u64,
    /// Operations on trees of files that ended.
    pub file_operations: u64,
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
enum Event {
    /// A message reaches its end.
    Deliver(Delivery),
    /// An end learns that its connection is over.
    Close(u32, End, Option<CloseReason>),
    /// An end learns that its connection stands.
    Open(u32, End),
    /// A process without a link up tries to get one.
    Connect(Proc, u32),
    /// A node tries to get a link to its second parent.
    ConnectSecond(Proc, u32),
    /// A machine's time has come.
    Timer(Proc, u32),
    /// A store carries out the next thing it was asked.
    Store(u16, u32, origin::Queue),
    /// The store's answer reaches its origin.
    Stored(Proc, u32, Box<larder_core::origin::io::OriginInput>),
    /// A client goes on.
    Client(u16, u32),
    /// A process of files goes on.
    Files(Proc, u32),
    /// The time of a machine of membership has come.
    Seat(Proc, u32),
    /// A process of a group has looked whether its line stands.
    Look(Proc, u32),
    /// A datagram of one comes to another.
    Datagram(Proc, Proc, bytes::Bytes),
    /// A group is to work again that lost its redirector, for so many times.
    Works(u16, u32),
    /// Wall clocks are read.
    Wall,
    /// The next trouble of a kind.
    Trouble(usize, u32),
    /// A trouble ends.
    Mend(troubles::Mend, u64),
    /// A process starts again.
    Start(Proc, u32),
}

impl World {
    /// A world about to start, from its plan.
    #[must_use]
    pub fn new(plan: Plan, readable: bool) -> Self {
        if let Some(outside) = plan.outside_budget() {
            panic!("the budget is {}, without {outside}", plan.budget.name());
        }
        let mut rng = Rng::new(plan.seed);
        let mut oracle = Oracle::default();
        let domains: Vec<DomainId> =
            (0..plan.domains).map(|n| DomainId(u64::from(n) + 1)).collect();
        for domain in &domains {
            oracle.add_domain(*domain, plan.replays);
        }
        let mut volumes = crate::client::plan_volumes(&plan, &domains, &mut rng);
        if let Some(volume) = crate::files::volume_of(&plan, &domains) {
            oracle.shares_numbers(volume.spec.id);
            volumes.push(volume);
        }
        let files = crate::files::Files::new(&plan, &domains);
        let store = |domain: &DomainId| origin::StoreHost::new(*domain, &plan, &mut rng);
        let stores = domains.iter().map(store).collect();
        let processes = process::make(&plan, &mut rng);
        let (mut net, first) = (Net::default(), 1 + plan.relays.len() + plan.nodes.len());
        for (place, (node, _)) in seats::standbys(&plan).enumerate() {
            net.put_beside(Proc((first + place) as u16), node);
        }
        let first_node = 1 + plan.relays.len() as u16;
        let nodes = (0..plan.nodes.len() as u16).map(|node| Proc(first_node + node));
        let clients: Vec<Client> = nodes
            .flat_map(|node| (0..plan.clients).map(move |_| node))
            .zip(0..)
            .map(|(node, number)| {
                let first = number - number % plan.clients as usize;
                Client::new(node, if plan.shared_sessions { first } else { number })
            })
            .collect();
        let sessions = clients.iter().map(|_| SharedSession::default()).collect();
        let mut world = Self {
            trace: Trace::new(readable),
            now: Time(SECOND),
            agenda: Agenda::default(),
            net,
            processes,
            stores,
            clients,
            sessions,
            oracle,
            cycles: History::judged_by(plan.judges),
            acks: Acks::default(),
            readers: Readers::new(plan.mix.rights_percent > 0),
            passing: Passing::new(plan.mix.rights_percent > 0),
            answers: Answers::default(),
            domains,
            volumes,
            phase: Phase::Wild,
            armed: None,
            shown_before: BTreeMap::new(),
            set_backs: Vec::new(),
            lost: BTreeMap::new(),
            no_freeze_before: Time(0),
            stalls: Vec::new(),
            core: None,
            held_down: BTreeSet::new(),
            boots: BTreeMap::new(),
            forged: BTreeSet::new(),
            probes: Vec::new(),
            failed: BTreeSet::new(),
            mended: None,
            files,
            told: origin::Told::default(),
            seats: seats::seats(&plan),
            tally: Tally::default(),
            rng,
            draws: Draws::new(plan.seed),
            decisions: Decisions::free(),
            wild_until: Time(u64::MAX),
            calm: false,
            stop_at: None,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for number in 0..self.processes.len() as u16 {
            if self.plan.absent.contains(&number) {
                self.process_mut(Proc(number)).retired = true;
                continue;
            }
            if self.net.machine_of(Proc(number)) != Proc(number) {
                continue;
            }
            self.rng = self.draws.next(About::Start(number));
            self.start(Proc(number));
        }
        self.agenda.enter(self.now, Event::Wall);
        for trouble in 0..self.plan.troubles.len() {
            self.enter_first_trouble(trouble);
        }
    }

    /// The same, doing what was recorded, or what is left of that.
    #[must_use]
    pub fn replaying(recording: &Recording, readable: bool) -> Self {
        let mut world = Self::new(recording.plan.clone(), readable);
        world.decisions = Decisions::given(&recording.decisions);
        world.files.given(&recording.decisions);
        world.wild_until = recording.wild_until();
        world.calm = recording.calm;
        world
    }

    /// What happened so far, as it can be played again.
    #[must_use]
    pub fn recording(&self, fails: Option<String>) -> Recording {
        Recording {
            fails,
            wild_until: self.wild_until.min(self.now).0,
            calm: self.calm,
            decisions: self.decisions.recorded().to_vec(),
            plan: self.plan.clone(),
        }
    }

    /// Plays until the end: troubles, healing, rest. Panics when a promise is broken.
    pub fn run(&mut self) {
        while self.trace.events() < self.plan.events && self.now <= self.wild_until {
            self.step();
        }
        self.wild_until = self.wild_until.min(self.now);
        self.decisions.end();
        self.files.decide_alone(self.calm);
        self.settle();
    }

    /// Plays one event.
    fn step(&mut self) {
        let (time, event) = self.agenda.pop().expect("wall clocks are always read again");
        self.now = self.now.max(time);
        // Who is there is asked all the time: runs are as long as what else happens.
        let counts = !matches!(event, Event::Seat(..) | Event::Look(..) | Event::Datagram(..));
        if counts {
            self.trace.event(self.now);
        }
        if let Some(about) = self.about(&event) {
            self.rng = self.draws.next(about);
        }
        self.play(event);
        if counts && self.trace.events().is_multiple_of(WHOLE_CHECK_EVENTS) {
            let over = self.stop_at.is_some_and(|at| std::time::Instant::now() >= at);
            assert!(!over, "{OVERTIME}");
            self.check_whole();
        }
    }

    /// What an event is about; none: it draws by itself, or nothing.
    fn about(&self, event: &Event) -> Option<About> {
        let child = |conn: &u32| self.net.conn(*conn).child.0;
        Some(match event {
            Event::Deliver(Delivery { conn, way, .. }) => {
                About::Message(2 * u32::from(child(conn)) + u32::from(*way == Way::Up))
            }
            Event::Close(conn, ..) | Event::Open(conn, _) => About::Connection(child(conn)),
            Event::Connect(child, _) | Event::ConnectSecond(child, _) => About::Connection(child.0),
            Event::Timer(process, _) => About::Timer(process.0),
            // Beside its machine's.
            Event::Files(process, _) => About::Timer(0x8000 | process.0),
            Event::Seat(process, _) | Event::Look(process, _) => About::Timer(0x4000 | process.0),
            Event::Datagram(_, to, _) => About::Message(1 << 31 | u32::from(to.0)),
            Event::Store(domain, _, queue) => About::Store(3 * domain + *queue as u16),
            Event::Stored(..) => About::Answer,
            Event::Client(..) | Event::Works(..) => return None,
            Event::Wall => About::Wall,
            Event::Trouble(which, _) => About::Trouble(self.plan.troubles[*which].0 as u8),
            Event::Mend(_, drawn) => About::Mend(*drawn),
            Event::Start(process, _) => About::Start(process.0),
        })
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Deliver(delivery) => self.deliver(delivery),
            Event::Close(conn, end, reason) => self.close_at(conn, end, reason),
            Event::Open(conn, end) => self.open_at(conn, end),
            Event::Connect(child, incarnation) => self.connect(child, incarnation),
            Event::ConnectSecond(child, incarnation) => self.connect_second(child, incarnation),
            Event::Timer(proc, incarnation) => self.timer(proc, incarnation),
            Event::Store(domain, incarnation, queue) => self.store_step(domain, incarnation, queue),
            Event::Stored(origin, life, input) => self.stored(origin, life, *input),
            Event::Client(client, incarnation) => self.client_step(client, incarnation),
            Event::Files(proc, incarnation) => self.files_step(proc, incarnation),
            Event::Seat(proc, life) => self.seat_timer(proc, life),
            Event::Look(proc, life) => self.looked(proc, life),
            Event::Works(group, number) => self.check_works(group, number),
            Event::Datagram(from, to, datagram) => self.datagram_comes(from, to, datagram),
            Event::Wall => self.wall(),
            Event::Trouble(which, number) => self.trouble(which, number),
            Event::Mend(mend, _) => self.mend(mend),
            Event::Start(proc, incarnation) => {
                let process = self.process(proc);
                if process.incarnation != incarnation || process.retired {
                    return;
                }
                if self.held_down.contains(&proc) {
                    self.agenda.enter(self.now.plus(SECOND), Event::Start(proc, incarnation));
                } else {
                    self.start(proc);
                }
            }
        }
    }

    /// Volumes that the clients of objects use: all but that of files, which is the last.
    pub(crate) fn object_volumes(&self) -> usize {
        self.volumes.len() - usize::from(self.plan.files.is_some())
    }

    /// Virtual time.
    #[cfg(feature = "files")]
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Whether the troubles are over.
    #[cfg(feature = "files")]
    pub(crate) fn is_healing(&self) -> bool {
        self.phase != Phase::Wild
    }

    /// Enters a step of a process of files.
    #[cfg(feature = "files")]
    pub(crate) fn enter_files_event(&mut self, at: Time, proc: Proc, incarnation: u32) {
        self.agenda.enter(at, Event::Files(proc, incarnation));
    }

    /// Whether a process of files must wait until its machine goes on.
    #[cfg(feature = "files")]
    pub(crate) fn files_wait(&mut self, proc: Proc, incarnation: u32) -> bool {
        self.waits(proc, || Event::Files(proc, incarnation))
    }

    pub(crate) fn process(&self, proc: Proc) -> &Process {
        &self.processes[proc.0 as usize]
    }

    fn process_mut(&mut self, proc: Proc) -> &mut Process {
        &mut self.processes[proc.0 as usize]
    }

    /// Whether a process stands still now; if so `event` waits until it goes on.
    fn waits(&mut self, proc: Proc, event: impl FnOnce() -> Event) -> bool {
        let until = self.process(proc).paused_until;
        if until > self.now {
            self.agenda.enter(until, event());
            return true;
        }
        false
    }

    /// The node of a client.
    pub(crate) fn client_node(&self, client: usize) -> Proc {
        self.clients[client].node
    }

    /// Checks that a state of `stamp` is as young as a client with an age limit (nanoseconds) may
    /// expect: everything that the origin knew so long ago is in it.
    pub(crate) fn check_age(&self, client: usize, age_max: u64, domain: DomainId, stamp: Stamp) {
        let oldest = Time(self.now.0.saturating_sub(self.in_true_time(age_max)));
        let known = self.oracle.truth(domain).known_at(oldest);
        assert!(
            stamp >= known,
            "client {client} is given the state of {stamp} of {domain:?} as no older than \
             {age_max} ns; {known} was known longer ago"
        );
    }

    /// By how much clocks may be off: the stated bias, or what they are beyond that.
    fn bias_ppm(&self) -> u64 {
        let drift = self.plan.drift_ppm.unsigned_abs();
        if drift < CLOCK_BIAS_PPM { CLOCK_BIAS_PPM } else { 3 * drift }
    }

    /// How long a span of a process's clock may be in true time: longer by the stated bias, and, when
    /// clocks are outside of that, by as much as they are.
    fn in_true_time(&self, span: u64) -> u64 {
        let mut longest = span + span * self.bias_ppm() / 1_000_000 + 1;
        for (time, nanos) in self.set_backs.iter().rev() {
            // An age looks younger by as much for as long.
            if time.plus(longest + nanos) >= self.now {
                longest += nanos;
            }
        }
        longest
    }

    /// Starts a process that is down.
    fn start(&mut self, proc: Proc) {
        match self.process(proc).machinery {
            Machinery::Origin(_) => self.start_origin(proc),
            // One of a group runs when it is elected.
            Machinery::Relay(_) if self.seats.contains_key(&proc) => {}
            Machinery::Relay(_) => self.start_relay(proc),
            Machinery::Node(_) => self.start_node(proc),
        }
        self.start_seat(proc);
    }

    fn timer(&mut self, proc: Proc, incarnation: u32) {
        let process = self.process(proc);
        if process.incarnation != incarnation || process.timer_at.is_none_or(|at| at > self.now) {
            return;
        }
        if self.waits(proc, || Event::Timer(proc, incarnation)) {
            self.process_mut(proc).timer_at = Some(self.process(proc).paused_until);
            return;
        }
        self.process_mut(proc).timer_at = None;
        self.trace.mix(0x7100 | u64::from(proc.0));
        self.trace.line(|| format!("{proc:?} timer"));
        match self.process(proc).machinery {
            Machinery::Origin(_) => self.origin_timeout(proc),
            Machinery::Relay(_) => self.relay_timeout(proc),
            Machinery::Node(_) => self.node_timeout(proc),
        }
    }

    /// Enters a process's next timeout, if it comes before the one entered.
    fn enter_timer(&mut self, proc: Proc) {
        self.enter_seat_timer(proc);
        let process = &mut self.processes[proc.0 as usize];
        let Some(local) = process.next_timeout() else {
            return;
        };
        let at = process.rate.global(local).max(self.now);
        if process.timer_at.is_none_or(|entered| at < entered) {
            process.timer_at = Some(at);
            self.agenda.enter(at, Event::Timer(proc, process.incarnation));
        }
    }

    fn wall(&mut self) {
        for number in 0..self.processes.len() {
            let proc = Proc(number as u16);
            if self.process(proc).paused_until > self.now {
                continue;
            }
            match self.process(proc).machinery {
                Machinery::Origin(_) => self.origin_wall(proc),
                Machinery::Relay(_) => self.relay_wall(proc),
                Machinery::Node(_) => {}
            }
        }
        self.agenda.enter(self.now.plus(WALL_NANOS), Event::Wall);
    }
}
