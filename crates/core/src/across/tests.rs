//! Three domains, each a coordinator and a participant: rules one by one, then schedules drawn at random.

use super::*;
use crate::commit::*;
use crate::id::*;
use crate::record::Decided;
use crate::rng::Rng;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

const DOMAINS: usize = 3;
/// In each.
const OBJECTS: u16 = 6;

fn domain(index: usize) -> DomainId {
    DomainId(index as u64 + 1)
}

fn id(sequence: u64) -> CommitId {
    CommitId { boot: BootId(7), sequence }
}

fn page() -> PageId {
    PageId { volume: VolumeId(1), page: PageNo(2) }
}

fn read(slot: u16) -> Read {
    Read { page: page(), target: Target::Slot(Slot(slot)), aspect: Aspect::Value }
}

fn write(slot: u16) -> Write {
    let (slot, generation, value) = (Slot(slot), Generation(1), Bytes::new());
    Write { page: page(), op: Op::Put { slot, generation, value } }
}

fn changes(writes: &[Write]) -> Vec<PageChange> {
    let touched = writes.iter().map(|write| write.op.touches(false)).collect::<Vec<_>>();
    let change = PageChange::named(page(), touched);
    Some(change).filter(|change| !change.touched.is_empty()).into_iter().collect()
}

fn commit(sequence: u64, reads: Vec<Read>, writes: Vec<Write>) -> CommitRequest {
    let (history, base, numbers) = (HistoryId(1), Stamp(0), Vec::new());
    CommitRequest {
        id: id(sequence),
        confirmed: 0,
        history,
        base,
        numbers,
        reads,
        writes,
        across: None,
    }
}

fn across(domains: &[usize], coordinator: usize, sequence: u64) -> Across {
    let part = |index: &usize| PartId { domain: domain(*index), id: id(sequence) };
    Across::new(domains.iter().map(part).collect(), domain(coordinator)).expect("ascending")
}

fn prepared(attempt: Attempt, reads: Vec<Read>, writes: Vec<Write>) -> Prepared {
    let coordinator = PartId { domain: domain(2), id: id(1) };
    let changes = changes(&writes);
    Prepared { attempt, coordinator, id: id(1), grown: Vec::new(), reads, writes, changes }
}

fn attempt(number: u64) -> Attempt {
    Attempt { history: HistoryId(1), number }
}

/// Through the domains in their order, the own one among them; the decision is told to the others only.
#[test]
fn an_attempt_goes_through_the_domains_in_order() {
    let mut coordinator = Coordinator::new(domain(1), HistoryId(1), Vec::new());
    let (attempt, next) = coordinator.begin(across(&[0, 1, 2], 1, 5));
    let prepare = |to: usize| {
        let coordinator = PartId { domain: domain(1), id: id(5) };
        Next::Vote(domain(to), Between::Prepare { attempt, coordinator, part: id(5) })
    };
    assert_eq!(next, prepare(0));
    assert_eq!(coordinator.is_ready(attempt, domain(2)), None, "out of order");
    assert_eq!(coordinator.is_ready(attempt, domain(0)), Some(Next::OwnTurn));
    assert_eq!(coordinator.is_ready(attempt, domain(0)), None, "repeated");
    assert_eq!(coordinator.asked(attempt, domain(0)), None, "nobody knows yet");
    assert_eq!(coordinator.has_turn(attempt), Some(prepare(2)));
    assert_eq!(coordinator.decision(attempt), None);
    assert_eq!(coordinator.is_ready(attempt, domain(2)), Some(Next::Decide));
    coordinator.check();
    let decision = coordinator.decision(attempt).expect("all are ready");
    assert_eq!(decision.participants.len(), 2);
    let told = coordinator.has_decided(attempt);
    let decide = Between::Decide { attempt };
    assert_eq!(told, [(domain(0), decide.clone()), (domain(2), decide.clone())]);
    coordinator.has_followed(attempt, domain(0));
    assert_eq!(coordinator.untold(), [(domain(2), decide)]);
    coordinator.has_followed(attempt, domain(2));
    assert_eq!(coordinator.meta(), []);
    coordinator.check();
}

/// Presumed abort: what a crash has made the coordinator forget is answered like what was given up, and what
/// its log holds is told until it is followed.
#[test]
fn a_coordinator_forgets_what_was_not_decided() {
    let mut coordinator = Coordinator::new(domain(0), HistoryId(1), Vec::new());
    let (first, _) = coordinator.begin(across(&[0, 1], 0, 5));
    assert_eq!(coordinator.has_turn(first).map(|next| next == Next::Decide), Some(false));
    assert!(coordinator.is_ready(first, domain(1)).is_some());
    let decided = coordinator.decision(first).expect("all are ready");
    for (kept, answer) in [
        (Vec::new(), Between::Release { attempt: first }),
        (vec![decided], Between::Decide { attempt: first }),
    ] {
        let mut again = Coordinator::new(domain(0), HistoryId(2), kept);
        assert_eq!(again.asked(first, domain(1)), Some(answer));
        let (second, _) = again.begin(across(&[0, 1], 0, 6));
        assert_ne!(first, second);
        assert_eq!(again.is_ready(first, domain(1)), None);
        again.check();
    }
    let released = coordinator.give_up(first);
    assert_eq!(released, [(domain(1), Between::Release { attempt: first })]);
    assert_eq!(coordinator.asked(first, domain(1)), Some(Between::Release { attempt: first }));
}

/// What is prepared bars what would come between its reads and its stamp, and nothing else.
#[test]
fn what_is_prepared_bars_commits() {
    let mut participant = Participant::default();
    let (name, reads) = (attempt(1), vec![read(1)]);
    assert!(participant.ask(Turn::Part(name, id(1))));
    assert!(!participant.bars(&commit(9, vec![read(2)], vec![write(1)])));
    participant.prepare(prepared(name, reads, vec![write(2)]));
    assert!(participant.bars(&commit(9, vec![read(2)], vec![])), "reads what it writes");
    assert!(participant.bars(&commit(9, vec![], vec![write(1)])), "writes what it read");
    assert!(participant.bars(&commit(9, vec![], vec![write(3)])), "writes a page that it writes");
    assert!(!participant.bars(&commit(9, vec![read(1), read(3)], vec![])));
    assert_eq!(participant.in_doubt(), None, "its vote is not given");
    assert!(participant.has_logged(name));
    assert!(participant.in_doubt().is_some());
    assert_eq!(participant.end(attempt(2), true), None, "another attempt");
    assert!(participant.end(name, true).is_some());
    assert!(!participant.bars(&commit(9, vec![read(2)], vec![write(1)])));
    // Of a part that only reads: pages may be written, not what it read.
    participant.prepare(prepared(name, vec![read(1)], Vec::new()));
    assert!(participant.bars(&commit(9, vec![], vec![write(1)])));
    assert!(!participant.bars(&commit(9, vec![], vec![write(2)])));
}

/// One at a time, in order; what is prepared keeps its turn, also over a restart.
#[test]
fn turns_come_in_order() {
    let mut participant = Participant::default();
    let [first, second, third] = [1, 2, 3].map(|number| Turn::Part(attempt(number), id(1)));
    assert!(participant.ask(first) && participant.ask(first));
    assert!(!participant.ask(second) && !participant.ask(third) && !participant.ask(second));
    assert_eq!(participant.waiting(), 2);
    assert_eq!(participant.leave(second), None);
    assert_eq!(participant.leave(first), Some(third));
    let kept = prepared(attempt(3), vec![read(1)], vec![write(2)]);
    participant.prepare(kept.clone());
    participant.check();
    let mut participant = Participant::recovered(Some(kept));
    assert!(!participant.ask(first), "it is the recovered one's");
    assert!(participant.bars(&commit(9, vec![], vec![write(1)])));
    assert_eq!(participant.decided(attempt(3)), Followed::Now);
    assert_eq!(participant.decided(attempt(3)), Followed::UnderWay);
    assert_eq!(participant.end(attempt(3), true), None, "too late");
    participant.is_put_off();
    assert_eq!(participant.decided(attempt(3)), Followed::Now);
    assert!(participant.end(attempt(3), false).is_some());
    assert_eq!(participant.leave(third), Some(first));
    assert_eq!(participant.decided(attempt(3)), Followed::Before);
    participant.check();
}

// ---- schedules at random ----

/// A log record of the world below.
#[derive(Clone)]
enum Entry {
    Prepared(Prepared),
    Released(Attempt),
    Commit { id: CommitId, writes: Vec<Write>, decided: Option<Decided> },
}

/// A domain: what its log holds, and what it has in memory.
struct Domain {
    log: Vec<Entry>,
    durable: usize,
    coordinator: Coordinator,
    participant: Participant,
    /// Parts that are here, and those under an attempt that they decide.
    parts: BTreeMap<CommitId, CommitRequest>,
    deciding: BTreeMap<CommitId, Attempt>,
}

/// A transaction: its parts by domain; over one domain it is a commit of that domain.
struct Whole {
    parts: BTreeMap<usize, CommitRequest>,
    coordinator: usize,
}

struct World {
    rng: Rng,
    domains: Vec<Domain>,
    wholes: Vec<Whole>,
    /// All that was ever said.
    said: Vec<(usize, usize, Between)>,
    histories: u128,
}

impl World {
    fn new(seed: u64) -> Self {
        let domains = (0..DOMAINS).map(|index| Domain {
            log: Vec::new(),
            durable: 0,
            coordinator: Coordinator::new(domain(index), HistoryId(index as u128), Vec::new()),
            participant: Participant::default(),
            parts: BTreeMap::new(),
            deciding: BTreeMap::new(),
        });
        let domains = domains.collect();
        let (wholes, said, histories) = (Vec::new(), Vec::new(), DOMAINS as u128);
        Self { rng: Rng::new(seed), domains, wholes, said, histories }
    }

    fn pick(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn step(&mut self) {
        let at = self.pick(DOMAINS);
        match self.pick(20) {
            0 => self.begin_transaction(),
            1..=4 => self.arrive(),
            5..=11 if !self.said.is_empty() => {
                // Mostly what was said lately.
                let reach = [200, 6, 6, 6][self.pick(4)];
                let back = 1 + self.pick(reach);
                let place = self.said.len().saturating_sub(back);
                self.deliver(place);
            }
            12..=15 => self.sync(at),
            16 => self.ask(at),
            17 => self.say_again(at),
            18 => match self.pick(8) {
                0 | 1 => self.crash(at),
                2 => {
                    let deciding = self.domains[at].deciding.values().next().copied();
                    deciding.into_iter().for_each(|attempt| self.give_up(at, attempt));
                }
                _ => {}
            },
            _ => self.local(at),
        }
        for domain in &self.domains {
            domain.coordinator.check();
            domain.participant.check();
        }
    }

    /// All that it reads holds in the states of now.
    fn begin_transaction(&mut self) {
        let sequence = self.wholes.len() as u64 + 1;
        let left_out = self.pick(DOMAINS + 1);
        let mut parts = BTreeMap::new();
        for at in (0..DOMAINS).filter(|at| *at != left_out) {
            let reads = (0..OBJECTS).filter(|_| self.rng.below(4) == 0).map(read).collect();
            let mut writes: Vec<Write> =
                (0..OBJECTS).filter(|_| self.rng.below(4) == 0).map(write).collect();
            if at == usize::from(left_out == 0) && writes.is_empty() {
                writes.push(write(0));
            }
            let base = Stamp(self.domains[at].stamps(self.domains[at].durable));
            parts.insert(at, CommitRequest { base, ..commit(sequence, reads, writes) });
        }
        let written = |(_, part): &(&usize, &CommitRequest)| !part.writes.is_empty();
        let coordinator = *parts.iter().find(written).expect("the first writes").0;
        let domains: Vec<usize> = parts.keys().copied().collect();
        let whole = across(&domains, coordinator, sequence);
        parts.values_mut().for_each(|part| part.across = Some(Box::new(whole.clone())));
        self.wholes.push(Whole { parts, coordinator });
    }

    /// A part comes, or comes again.
    fn arrive(&mut self) {
        let back = self.pick(4);
        let several = |whole: &&Whole| whole.parts.len() > 1;
        let Some(whole) = self.wholes.iter().rev().filter(several).nth(back) else {
            return;
        };
        let parts: Vec<usize> = whole.parts.keys().copied().collect();
        let at = parts[self.rng.below(parts.len() as u64) as usize];
        let (part, decides) = (whole.parts[&at].clone(), at == whole.coordinator);
        let domain = &mut self.domains[at];
        if domain.has(part.id) || domain.deciding.contains_key(&part.id) {
            return;
        }
        let (id, across) = (part.id, part.across.clone().expect("a part"));
        domain.parts.insert(id, part);
        if decides {
            let (attempt, next) = domain.coordinator.begin(*across);
            domain.deciding.insert(id, attempt);
            self.go_on(at, attempt, next);
        }
    }

    fn go_on(&mut self, at: usize, attempt: Attempt, next: Next) {
        match next {
            Next::Vote(to, message) => self.say(at, to, message),
            Next::OwnTurn => {
                let domain = &mut self.domains[at];
                if domain.participant.ask(Turn::Own(attempt))
                    && let Some(next) = domain.coordinator.has_turn(attempt)
                {
                    self.go_on(at, attempt, next);
                }
            }
            Next::Decide => self.decide(at, attempt),
        }
    }

    fn say(&mut self, from: usize, to: DomainId, message: Between) {
        self.said.push((from, to.0 as usize - 1, message));
    }

    fn decide(&mut self, at: usize, attempt: Attempt) {
        let domain = &mut self.domains[at];
        let (id, _) = domain.deciding.iter().find(|(_, a)| **a == attempt).expect("it is tried");
        let part = domain.parts[id].clone();
        if domain
            .log
            .iter()
            .any(|entry| matches!(entry, Entry::Commit { id, .. } if *id == part.id))
        {
            return;
        }
        if domain.participant.bars(&part) || !domain.holds(&part) {
            return self.give_up(at, attempt);
        }
        let decided = domain.coordinator.decision(attempt);
        domain.log.push(Entry::Commit { id: part.id, writes: part.writes, decided });
    }

    fn give_up(&mut self, at: usize, attempt: Attempt) {
        let domain = &mut self.domains[at];
        // Its decision may be on its way to the log.
        let gathered = domain.log[domain.durable..].iter().any(|entry| {
            matches!(entry, Entry::Commit { decided: Some(decided), .. } if decided.attempt == attempt)
        });
        if gathered {
            return;
        }
        domain.deciding.retain(|_, deciding| *deciding != attempt);
        for (to, message) in domain.coordinator.give_up(attempt) {
            self.say(at, to, message);
        }
        self.leave(at, Turn::Own(attempt));
    }

    fn leave(&mut self, at: usize, turn: Turn) {
        let domain = &mut self.domains[at];
        match domain.participant.leave(turn) {
            Some(Turn::Own(attempt)) => {
                if let Some(next) = domain.coordinator.has_turn(attempt) {
                    self.go_on(at, attempt, next);
                }
            }
            Some(Turn::Part(attempt, part)) => self.prepare(at, attempt, part),
            None => {}
        }
    }

    fn deliver(&mut self, place: usize) {
        let (from, at, message) = self.said[place].clone();
        let domain = &mut self.domains[at];
        match message {
            Between::Prepare { attempt, part, .. } => {
                if domain.participant.is_ready(attempt) {
                    let vote = Vote::Ready;
                    self.say(at, self::domain(from), Between::Vote { attempt, vote });
                } else if domain.parts.contains_key(&part)
                    && domain.participant.ask(Turn::Part(attempt, part))
                    && domain.participant.prepared().is_none()
                {
                    self.prepare(at, attempt, part);
                }
            }
            Between::Await { .. } | Between::Arrived { .. } | Between::Ended { .. } => {}
            Between::Vote { attempt, vote: Vote::Ready } => {
                if let Some(next) = domain.coordinator.is_ready(attempt, self::domain(from)) {
                    self.go_on(at, attempt, next);
                }
            }
            Between::Vote { attempt, .. } => self.give_up(at, attempt),
            Between::Decide { attempt } => match domain.participant.decided(attempt) {
                Followed::Now => {
                    let prepared = domain.participant.prepared().expect("it is").clone();
                    assert!(domain.holds_now(&prepared), "a read was not kept as it was");
                    let Prepared { id, writes, .. } = prepared;
                    domain.log.push(Entry::Commit { id, writes, decided: None });
                }
                Followed::UnderWay => {}
                Followed::Before => self.say(at, self::domain(from), Between::Followed { attempt }),
            },
            Between::Release { attempt } => {
                if let Some(prepared) = domain.participant.end(attempt, true) {
                    domain.log.push(Entry::Released(attempt));
                    self.leave(at, Turn::Part(attempt, prepared.id));
                } else if domain.participant.prepared().is_none_or(|p| p.attempt != attempt) {
                    let turns = domain.parts.keys().map(|id| Turn::Part(attempt, *id));
                    for turn in turns.collect::<Vec<_>>() {
                        self.leave(at, turn);
                    }
                }
            }
            Between::Ask { attempt } => {
                if let Some(answer) = domain.coordinator.asked(attempt, self::domain(from)) {
                    self.say(at, self::domain(from), answer);
                }
            }
            Between::Followed { attempt } => {
                domain.coordinator.has_followed(attempt, self::domain(from));
            }
        }
    }

    /// It is the part's turn.
    fn prepare(&mut self, at: usize, attempt: Attempt, id: CommitId) {
        let domain = &mut self.domains[at];
        let part = domain.parts.get(&id).cloned();
        let part = part.filter(|part| domain.holds(part) && !domain.has(part.id));
        let Some(CommitRequest { reads, writes, across: Some(across), .. }) = part else {
            self.leave(at, Turn::Part(attempt, id));
            return;
        };
        let (coordinator, changes) = (across.coordinator(), changes(&writes));
        let grown = Vec::new();
        let prepared = Prepared { attempt, coordinator, id, grown, reads, writes, changes };
        domain.log.push(Entry::Prepared(prepared.clone()));
        domain.participant.prepare(prepared);
    }

    /// What was appended is durable.
    fn sync(&mut self, at: usize) {
        let from = self.domains[at].durable;
        self.domains[at].durable = self.domains[at].log.len();
        let entries: Vec<Entry> = self.domains[at].log[from..].to_vec();
        for entry in entries {
            let domain = &mut self.domains[at];
            match entry {
                Entry::Prepared(Prepared { attempt, coordinator, .. }) => {
                    if domain.participant.has_logged(attempt) {
                        let vote = Vote::Ready;
                        self.say(at, coordinator.domain, Between::Vote { attempt, vote });
                    }
                }
                Entry::Released(_) => {}
                Entry::Commit { id, decided: Some(decided), .. } => {
                    domain.deciding.remove(&id);
                    for (to, message) in domain.coordinator.has_decided(decided.attempt) {
                        self.say(at, to, message);
                    }
                    self.leave(at, Turn::Own(decided.attempt));
                }
                Entry::Commit { id, decided: None, .. } => {
                    let prepared = domain.participant.prepared().filter(|p| p.id == id).cloned();
                    if let Some(Prepared { attempt, coordinator, .. }) = prepared {
                        domain.participant.end(attempt, false).expect("it was being committed");
                        self.say(at, coordinator.domain, Between::Followed { attempt });
                        self.leave(at, Turn::Part(attempt, id));
                    }
                }
            }
        }
    }

    fn ask(&mut self, at: usize) {
        if let Some((attempt, coordinator)) = self.domains[at].participant.in_doubt() {
            self.say(at, coordinator.domain, Between::Ask { attempt });
        }
    }

    fn say_again(&mut self, at: usize) {
        let domain = &self.domains[at];
        let waits = domain.deciding.values().filter_map(|a| domain.coordinator.waits_for(*a));
        let asked = waits.filter_map(|next| match next {
            Next::Vote(to, message) => Some((to, message)),
            Next::OwnTurn | Next::Decide => None,
        });
        let all: Vec<_> = asked.chain(domain.coordinator.untold()).collect();
        all.into_iter().for_each(|(to, message)| self.say(at, to, message));
    }

    /// A commit of the domain alone.
    fn local(&mut self, at: usize) {
        let sequence = self.wholes.len() as u64 + 1;
        let reads = vec![read(self.rng.below(OBJECTS.into()) as u16)];
        let writes = vec![write(self.rng.below(OBJECTS.into()) as u16)];
        let domain = &mut self.domains[at];
        let request = commit(sequence, reads, writes);
        if !domain.participant.bars(&request) && !domain.has(request.id) {
            // It reads what is there.
            let base = Stamp(domain.stamps(domain.log.len()));
            let request = CommitRequest { base, ..request };
            let (id, writes) = (request.id, request.writes.clone());
            domain.log.push(Entry::Commit { id, writes, decided: None });
            let (parts, coordinator) = (BTreeMap::from([(at, request)]), at);
            self.wholes.push(Whole { parts, coordinator });
        }
    }

    /// What was not durable is lost, and with it all that is in memory.
    fn crash(&mut self, at: usize) {
        self.histories += 1;
        let domain = &mut self.domains[at];
        domain.log.truncate(domain.durable);
        let (mut prepared, mut decided) = (None::<Prepared>, Vec::new());
        for entry in &domain.log {
            match entry {
                Entry::Prepared(of) => prepared = Some(of.clone()),
                Entry::Released(attempt) => {
                    prepared = prepared.filter(|prepared| prepared.attempt != *attempt);
                }
                Entry::Commit { id, decided: of, .. } => {
                    prepared = prepared.filter(|prepared| prepared.id != *id);
                    decided.extend(of.clone());
                }
            }
        }
        domain.coordinator = Coordinator::new(self::domain(at), HistoryId(self.histories), decided);
        domain.participant = Participant::recovered(prepared);
        (domain.parts, domain.deciding) = (BTreeMap::new(), BTreeMap::new());
    }

    /// Messages arrive, logs answer, and nobody dies any more.
    fn settle(&mut self) {
        for round in 0..200 {
            for at in 0..DOMAINS {
                self.ask(at);
                self.say_again(at);
                // What waits for parts that never come.
                let deciding = self.domains[at].deciding.values().copied().collect::<Vec<_>>();
                let late = deciding.into_iter().filter(|_| round == 100);
                late.for_each(|attempt| self.give_up(at, attempt));
            }
            for place in self.said.len().saturating_sub(60)..self.said.len() {
                self.deliver(place);
            }
            (0..DOMAINS).for_each(|at| self.sync(at));
        }
    }

    fn check(&self) {
        let committed = |at: usize, id: CommitId| self.domains[at].count(id);
        let mut edges: BTreeMap<CommitId, BTreeSet<CommitId>> = BTreeMap::new();
        for whole in &self.wholes {
            let decided = committed(whole.coordinator, whole.parts[&whole.coordinator].id);
            for (at, part) in &whole.parts {
                let done = committed(*at, part.id);
                assert!(done <= 1, "done twice");
                assert_eq!(
                    done, decided,
                    "{:?} in domain {at} is not as where it is decided",
                    part.id
                );
            }
            for (at, part) in whole.parts.iter().filter(|_| decided == 1) {
                self.domains[*at].relate(part, &mut edges);
            }
        }
        for domain in &self.domains {
            let stamped: Vec<CommitId> = domain.commits().map(|(_, id, _)| id).collect();
            for pair in stamped.windows(2) {
                edges.entry(pair[0]).or_default().insert(pair[1]);
            }
        }
        assert!(is_acyclic(&edges), "a circle");
    }
}

impl Domain {
    /// Writing commits of the log: stamp, id, writes.
    fn commits(&self) -> impl Iterator<Item = (u64, CommitId, &[Write])> {
        let commits = self.log.iter().filter_map(|entry| match entry {
            Entry::Commit { id, writes, .. } if !writes.is_empty() => Some((*id, &writes[..])),
            _ => None,
        });
        commits.enumerate().map(|(place, (id, writes))| (place as u64 + 1, id, writes))
    }

    /// Stamps given in the first records of the log.
    fn stamps(&self, records: usize) -> u64 {
        let writes =
            |entry: &&Entry| matches!(entry, Entry::Commit { writes, .. } if !writes.is_empty());
        self.log[..records].iter().filter(writes).count() as u64
    }

    fn has(&self, id: CommitId) -> bool {
        self.count(id) > 0
    }

    fn count(&self, id: CommitId) -> usize {
        self.log.iter().filter(|e| matches!(e, Entry::Commit { id: of, .. } if *of == id)).count()
    }

    /// Whether nothing that it read has changed since its base.
    fn holds(&self, part: &CommitRequest) -> bool {
        let later = self.commits().filter(|(stamp, ..)| Stamp(*stamp) > part.base);
        let mut changed = later.flat_map(|(_, _, writes)| writes);
        !changed.any(|write| part.reads.iter().any(|read| concerns(write, read)))
    }

    /// The same since it was prepared.
    fn holds_now(&self, prepared: &Prepared) -> bool {
        let is =
            |entry: &Entry| matches!(entry, Entry::Prepared(of) if of.attempt == prepared.attempt);
        let from = self.log.iter().rposition(is).expect("it was logged");
        let base = Stamp(self.stamps(from));
        let (reads, writes) = (prepared.reads.clone(), Vec::new());
        self.holds(&CommitRequest { base, ..commit(0, reads, writes) })
    }

    /// Who comes before whom by what a committed part has read.
    fn relate(&self, part: &CommitRequest, edges: &mut BTreeMap<CommitId, BTreeSet<CommitId>>) {
        for (stamp, id, writes) in self.commits() {
            let read = writes.iter().any(|w| part.reads.iter().any(|read| concerns(w, read)));
            if id == part.id || !read {
                continue;
            }
            let (first, second) = match Stamp(stamp) <= part.base {
                true => (id, part.id),
                false => (part.id, id),
            };
            edges.entry(first).or_default().insert(second);
        }
    }
}

fn concerns(write: &Write, read: &Read) -> bool {
    conflicts((read.target, read.aspect), write.op.touches(false))
}

fn is_acyclic(edges: &BTreeMap<CommitId, BTreeSet<CommitId>>) -> bool {
    let mut into: BTreeMap<CommitId, usize> = BTreeMap::new();
    for (from, to) in edges {
        into.entry(*from).or_default();
        to.iter().for_each(|to| *into.entry(*to).or_default() += 1);
    }
    let mut first: Vec<CommitId> =
        into.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
    let mut seen = 0;
    while let Some(id) = first.pop() {
        seen += 1;
        for next in edges.get(&id).into_iter().flatten() {
            let count = into.get_mut(next).expect("counted above");
            *count -= 1;
            if *count == 0 {
                first.push(*next);
            }
        }
    }
    seen == into.len()
}

/// All orders of steps, losses, repetitions and crashes that 2,000 seeds draw: in the end what was decided is
/// done in every domain, once, what was not is done in none, nobody is in doubt, and there is no circle.
#[test]
fn transactions_are_whole_whatever_happens() {
    let mut committed = 0;
    for seed in 0..2_000 {
        let mut world = World::new(seed);
        (0..400).for_each(|_| world.step());
        world.settle();
        for (at, domain) in world.domains.iter().enumerate() {
            assert_eq!(domain.participant.prepared(), None, "seed {seed}: domain {at} is in doubt");
            assert_eq!(domain.coordinator.meta(), [], "seed {seed}: a decision was not followed");
        }
        world.check();
        let across = world.wholes.iter().filter(|whole| whole.parts.len() > 1);
        committed += across
            .filter(|whole| {
                world.domains[whole.coordinator].has(whole.parts[&whole.coordinator].id)
            })
            .count();
    }
    assert!(committed > 1_500, "{committed} transactions over several domains are hardly any");
}
