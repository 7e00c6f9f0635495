//! The workload: clients on every node that run random transactions step by step, and remember
//! what they saw for the checkers.

mod acts;
mod begin;
mod copies;
mod ends;
mod latest;
mod own;
mod proof;
mod told;

use crate::agenda::MILLI;
use crate::check::cycles::{Effect, Moment, Tx};
use crate::check::history::Branch;
use crate::check::seen::Seen;
use crate::decisions::Next;
use crate::draws::About;
use crate::net::Proc;
use crate::plan::{PAGE_BYTES, Plan};
use crate::world::World;
use acts::Intention;
pub(crate) use begin::SHORT_AGE;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{CommitPart, Mark, Seen as Floor, Session, Transaction};
use larder_core::commit::IdRange;
use larder_core::id::{CommitId, DomainId, ObjectId, PageId, PageNo, Stamp, VolumeId};
use larder_core::message::{RequestError, VolumeSpec};
use larder_core::rng::Rng;
use own::{Own, Saved};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Old references kept for those who read by them.
const REFERENCES_MAX: usize = 32;

/// A volume of the run, and what its clients aim at.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// How it is made.
    pub spec: VolumeSpec,
    /// Its domain.
    pub domain: DomainId,
    /// Ids of volumes that had its name before, and were deleted, or lost in a restore.
    pub former: Vec<VolumeId>,
    /// Slotted pages, those that are gone included.
    pub slotted: Vec<PageId>,
    /// Raw pages, likewise.
    pub raw: Vec<PageId>,
    /// Objects that were there once.
    pub references: Vec<ObjectId>,
}

/// Draws the volumes of a run.
#[must_use]
pub fn plan_volumes(plan: &Plan, domains: &[DomainId], rng: &mut Rng) -> Vec<VolumePlan> {
    let mut volumes = Vec::new();
    for domain in domains {
        for number in 0..plan.volumes {
            let id = VolumeId(u128::from(domain.0 * 100 + u64::from(number) + 1));
            // Some ids are long, as drawn ones are.
            let id = if rng.chance(1, 8) { VolumeId(id.0 | 1 << 90) } else { id };
            volumes.push(VolumePlan {
                spec: VolumeSpec {
                    id,
                    name: format!("volume-{}-{number}", domain.0),
                    page_bytes: PAGE_BYTES,
                    domain: Some(*domain),
                },
                domain: *domain,
                former: Vec::new(),
                slotted: vec![PageId { volume: id, page: PageNo(1) }],
                raw: Vec::new(),
                references: Vec::new(),
            });
        }
    }
    volumes
}

impl VolumePlan {
    /// The origin was restored: what was lost may come again as something else.
    pub fn forget_lost(&mut self, branch: &Branch) {
        self.take_up_former(branch);
        let there = |page: &PageId| branch.kind(*page, branch.last()).is_some();
        self.slotted.retain(|page| page.page.0 == 1 || there(page));
        self.raw.retain(there);
        self.references.clear();
    }

    /// One that was deleted, or lost, may be there again, and have the name: the origin was restored,
    /// and perhaps somebody who had not heard of its end asked once more that it be made.
    fn take_up_former(&mut self, branch: &Branch) {
        let last = branch.last();
        let there = |volume: &VolumeId| {
            branch.kind(PageId { volume: *volume, page: PageNo(1) }, last).is_some()
        };
        if let Some(place) = self.former.iter().position(there) {
            let again = self.former.remove(place);
            self.begin_anew(again);
        }
    }

    /// Another volume has the name.
    fn begin_anew(&mut self, id: VolumeId) {
        self.former.push(std::mem::replace(&mut self.spec.id, id));
        self.slotted = vec![PageId { volume: id, page: PageNo(1) }];
        self.raw.clear();
        self.references.clear();
    }

    /// Whether it is of this id, or was.
    pub fn is(&self, volume: VolumeId) -> bool {
        self.spec.id == volume || self.former.contains(&volume)
    }

    fn remember(&mut self, object: ObjectId) {
        if self.references.len() == REFERENCES_MAX {
            self.references.remove(0);
        }
        self.references.push(object);
    }
}

/// A session of a node, and what the checkers make of it.
#[derive(Debug, Default)]
pub struct SharedSession {
    session: Session,
    /// What it saw or wrote, as the checkers count.
    floors: SeenFloors,
    /// Domains in which it did something without a stamp that it was told.
    unseen: BTreeSet<DomainId>,
}

/// The highest stamp that was seen, by domain and branch.
type SeenFloors = BTreeMap<DomainId, BTreeMap<usize, Stamp>>;

/// A client: one thread of a user of a node's cache. Its session may be shared with others.
#[derive(Debug)]
pub struct Client {
    /// Its node.
    pub node: Proc,
    /// Its session, by its place in the world.
    session: usize,
    /// The step that is valid: earlier ones in the agenda are void.
    step: u32,
    /// The request it waits for.
    waiting: Option<u64>,
    stage: Stage,
    /// Page numbers left over.
    ids: Vec<IdRange>,
    /// It misses a volume, and makes all of them before it goes on.
    opens_again: bool,
    /// Too much is under way at its node: it comes again a little later.
    put_off: bool,
    /// Transactions begun, and steps taken since the last one was.
    begun: u32,
    steps: u64,
    /// Transactions that it has committed since it had to prove that it can.
    proofs: u32,
}

/// What a client is about.
#[derive(Debug)]
enum Stage {
    /// Opens volumes, beginning with the one of this number.
    Setup(usize),
    /// Between transactions.
    Idle,
    /// Waits until its cache has reached its floor.
    Floor,
    /// Waits for the state that has what it wrote there, and knows no stamp of.
    Unseen(DomainId, Mark),
    /// Waits for the latest state.
    Latest(latest::Asked),
    /// Copies a volume.
    Copy(Box<copies::Copying>),
    /// In a transaction.
    Run(Box<Run>),
    /// Waits for the outcomes of a transaction's parts.
    Commit(Box<Ending>),
}

/// A transaction that runs.
struct Run {
    tx: Transaction,
    kind: Kind,
    /// Its tag, if it writes.
    tag: Option<u64>,
    /// Volumes it may touch.
    volumes: Vec<usize>,
    left: u64,
    /// Operations begun.
    done: u32,
    /// A page that it may make, since its client has the number.
    ahead: Option<PageId>,
    current: Option<Intention>,
    /// What comes after it.
    next: Option<Intention>,
    reads: BTreeMap<DomainId, Reads>,
    /// What it did to objects.
    effects: Vec<Effect>,
    /// When it began, and in which session.
    begun: (Moment, usize),
    /// What its session had seen at its begin.
    floors: SeenFloors,
    own: Own,
    /// Where it may go back to.
    saved: Option<Saved>,
    /// References to remember when it commits, and pages made and removed.
    made: Vec<ObjectId>,
    pages_made: Vec<(PageId, bool)>,
    /// What a strict transaction must not be ordered before, as long as there are no more branches.
    real_time: BTreeMap<DomainId, (usize, Stamp)>,
}

/// What was seen of a domain.
#[derive(Debug)]
struct Reads {
    /// The branch of history it was seen in.
    branch: usize,
    /// All of it was compared with the oracle at this stamp.
    checked: Stamp,
    seen: Vec<Seen>,
}

/// What kind of transaction it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    strict: bool,
    snapshot: bool,
    /// It looks ahead of the stream: what it reads is of one state at its end alone.
    ahead: bool,
    /// The oldest that what it is given may be, in nanoseconds.
    age_max: Option<u64>,
    reads_only: bool,
}

/// A transaction whose outcome is awaited.
#[derive(Debug)]
struct Ending {
    kind: Kind,
    tag: Option<u64>,
    reads: BTreeMap<DomainId, Reads>,
    made: Vec<ObjectId>,
    pages_made: Vec<(PageId, bool)>,
    real_time: BTreeMap<DomainId, (usize, Stamp)>,
    /// The part that was sent, and those still to be sent.
    sent: CommitPart,
    rest: Vec<CommitPart>,
    /// Of a transaction over several domains that writes: the parts beside the deciding one, which is `sent`.
    others: Vec<Other>,
    /// The reader whose parts are being validated, for the cycle test, and the restores until then.
    reader: Option<(Tx, u32)>,
    /// Restores of the origin before it was sent.
    branches: usize,
    /// The part was in doubt once, and its outcome was asked for.
    asked_again: bool,
    /// It is in doubt, and will be asked about when its user comes back to it.
    doubt: Option<CommitId>,
}

/// A part of a transaction that is decided elsewhere.
#[derive(Debug)]
struct Other {
    part: CommitPart,
    /// Its own, for the oracle.
    tag: u64,
    /// See [`Ending`].
    branches: usize,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({:?}, {:?})", self.kind, self.current)
    }
}

impl SharedSession {
    /// One of its transactions saw `floor`, of this branch.
    fn raise_floor(&mut self, floor: Floor, branch: usize) {
        let known = self.floors.entry(floor.domain).or_default().entry(branch).or_default();
        *known = (*known).max(floor.stamp);
    }
}

impl Client {
    /// A client of a node that has just started.
    #[must_use]
    pub fn new(node: Proc, session: usize) -> Self {
        Self {
            node,
            session,
            step: 0,
            waiting: None,
            stage: Stage::Setup(0),
            ids: Vec::new(),
            opens_again: false,
            put_off: false,
            begun: 0,
            steps: 0,
            proofs: 0,
        }
    }

    /// Its node died, and all it was about with it.
    pub fn die(&mut self) {
        let (step, begun, steps) = (self.step + 1, self.begun, self.steps);
        let proofs = self.proofs;
        *self = Self { step, begun, steps, proofs, ..Self::new(self.node, self.session) };
    }

    /// It has to prove that it can commit.
    pub fn begin_proofs(&mut self) {
        self.proofs = 0;
    }

    /// Transactions that it has committed since.
    #[must_use]
    pub fn proofs(&self) -> u32 {
        self.proofs
    }

    /// Whether it is about nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle) && self.waiting.is_none()
    }
}

impl World {
    /// Begins the life of a node's clients.
    pub(crate) fn start_clients(&mut self, node: Proc) {
        for number in 0..self.clients.len() {
            if self.clients[number].node == node && !self.plan.idle.contains(&(number as u16)) {
                self.client_goes_on(number, MILLI);
            }
        }
    }

    /// Clients that stopped go on.
    pub(crate) fn wake_clients(&mut self) {
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            let begins = !self.plan.idle.contains(&(number as u16));
            if begins && client.is_idle() && self.node_is_up(client.node) {
                self.client_goes_on(number, MILLI);
            }
        }
    }

    /// A node died: so did its clients.
    pub(crate) fn end_clients(&mut self, node: Proc) {
        for client in &mut self.clients {
            if client.node == node {
                client.die();
                self.sessions[client.session] = SharedSession::default();
                self.cycles.session_begins_anew(client.session);
            }
        }
    }

    /// The session of a client.
    fn session(&mut self, index: usize) -> &mut SharedSession {
        &mut self.sessions[self.clients[index].session]
    }

    /// Enters the client's next step, at most `span` from now.
    fn client_goes_on(&mut self, number: usize, span: u64) {
        let delay = self.rng.below(span + 1);
        let client = &mut self.clients[number];
        client.step += 1;
        let step = client.step;
        self.enter_client(number, delay, step);
    }

    fn client_thinks(&mut self, number: usize) {
        let mut span = self.plan.mix.think;
        if std::mem::take(&mut self.clients[number].put_off) {
            span = span.max(20 * MILLI);
        }
        let running = matches!(self.clients[number].stage, Stage::Run(_));
        if running && self.rng.below(100) < self.plan.mix.linger_percent {
            span = self.plan.limits.lease.as_nanos() as u64 * 2;
        }
        self.client_goes_on(number, span);
    }

    pub(crate) fn client_step(&mut self, number: u16, step: u32) {
        let index = number as usize;
        let client = &self.clients[index];
        let node = client.node;
        if client.step != step || client.waiting.is_some() || !self.node_is_up(node) {
            return;
        }
        if self.client_waits(node, number, step) {
            return;
        }
        self.trace.mix(0xc11e << 16 | u64::from(number));
        self.draw_for(index);
        self.set_clock(node);
        match std::mem::replace(&mut self.clients[index].stage, Stage::Idle) {
            Stage::Setup(volume) => self.client_opens(index, volume),
            Stage::Idle | Stage::Floor | Stage::Unseen(..) | Stage::Latest(_) => {
                self.client_begins(index);
            }
            Stage::Copy(copying) => self.client_copies_on(index, copying),
            Stage::Run(run) => self.client_acts(index, run),
            Stage::Commit(ending) => match ending.doubt {
                Some(commit) => self.client_asks_again(index, ending, commit),
                None => self.client_sends(index, ending),
            },
        }
    }

    /// What comes is drawn for the client's transaction.
    fn draw_for(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.steps += 1;
        let transaction = (index as u64) << 32 | u64::from(client.begun);
        self.rng = self.draws.of(About::Transaction(transaction), client.steps);
    }

    /// The client begins its next transaction now, or comes again when it may.
    fn may_begin(&mut self, index: usize) -> bool {
        match self.decisions.next(index as u16, self.clients[index].begun, self.now) {
            Next::Begin(number) => {
                (self.clients[index].begun, self.clients[index].steps) = (number, 0);
                self.draw_for(index);
                return true;
            }
            Next::Wait(until) => self.client_waits_until(index, until),
            Next::Rest => self.client_waits_until(index, self.wild_until.plus(1)),
        }
        false
    }

    fn client_waits_until(&mut self, index: usize, until: crate::agenda::Time) {
        let client = &mut self.clients[index];
        client.step += 1;
        let step = client.step;
        self.enter_client(index, until.0 - self.now.0, step);
    }

    fn client_opens(&mut self, index: usize, volume: usize) {
        match self.volumes.get(volume) {
            Some(plan) => {
                let op = CacheOp::CreateVolume(plan.spec.clone());
                self.clients[index].stage = Stage::Setup(volume);
                self.client_asks(index, op);
            }
            None => self.client_thinks(index),
        }
    }

    /// Sends a request to the node's machine and waits for the reply.
    fn client_asks(&mut self, index: usize, op: CacheOp) {
        let patience = self.patience();
        self.client_asks_for(index, op, patience);
    }

    /// The same, for at most so many nanoseconds.
    fn client_asks_for(&mut self, index: usize, op: CacheOp, patience: u64) {
        let node = self.clients[index].node;
        let id = self.next_request(node, index as u16);
        self.clients[index].waiting = Some(id.0);
        self.node_request(node, id, op, patience);
    }

    /// The node's machine replies to a client.
    pub(crate) fn client_reply(
        &mut self,
        number: u16,
        request: u64,
        result: Result<CacheReply, RequestError>,
    ) {
        let index = number as usize;
        if self.clients[index].waiting != Some(request) {
            return;
        }
        self.clients[index].waiting = None;
        if let Err(error) = &result {
            self.note_request_error(index, error);
        }
        if let Err(RequestError::Exists(name)) = &result {
            for plan in self.volumes.iter_mut().filter(|plan| plan.spec.name == *name) {
                plan.take_up_former(self.oracle.truth(plan.domain).current());
            }
        }
        // The origin began anew, on an empty disk: somebody has to make it again.
        if matches!(result, Err(RequestError::NoVolume(_))) {
            self.clients[index].opens_again = true;
        }
        if matches!(result, Ok(CacheReply::Deleted) | Err(RequestError::Deleted(_))) {
            self.volumes_deleted();
        }
        match std::mem::replace(&mut self.clients[index].stage, Stage::Idle) {
            Stage::Setup(volume) => {
                // What may not be read is not opened.
                let over = result.is_ok() || matches!(result, Err(RequestError::Denied(_)));
                let next = if over { volume + 1 } else { volume };
                self.clients[index].stage = Stage::Setup(next);
                self.client_goes_on(index, if result.is_ok() { MILLI } else { 300 * MILLI });
            }
            Stage::Run(run) => self.client_supplied(index, run, result),
            Stage::Commit(ending) => self.client_answered(index, ending, result),
            Stage::Latest(asked) => self.client_refreshed(index, asked, result),
            Stage::Copy(copying) => self.client_copied(index, copying, result),
            Stage::Unseen(domain, mark) => {
                if let Ok(CacheReply::Through(stamp)) = result {
                    let history = self.processes_read(index).history(domain).unwrap_or_default();
                    let session = self.session(index);
                    session.session.refreshed(domain, mark, stamp, history);
                    if session.session.floors.is_at_rest(domain) {
                        session.unseen.remove(&domain);
                    }
                }
                self.client_thinks(index);
            }
            Stage::Idle | Stage::Floor => self.client_thinks(index),
        }
    }

    /// Some volume was deleted: others take the places of those that are.
    pub(crate) fn volumes_deleted(&mut self) {
        for plan in &mut self.volumes {
            let branch = self.oracle.truth(plan.domain).current();
            let deleted = branch.deleted(plan.spec.id);
            if deleted.is_none_or(|stamp| stamp > branch.durable()) {
                continue;
            }
            let old = plan.spec.id;
            // One that a restore lost is not made again.
            let made = plan.former.iter().fold(old, |last, id| last.max(*id));
            plan.begin_anew(VolumeId(made.0 + (1 << 64)));
            for client in &mut self.clients {
                client.ids.retain(|range| range.volume != old);
            }
        }
    }

    /// What a transaction asked for has come, or failed.
    fn client_supplied(
        &mut self,
        index: usize,
        mut run: Box<Run>,
        result: Result<CacheReply, RequestError>,
    ) {
        let alive = match result {
            Ok(CacheReply::Fetched { through, pages }) => {
                matches!(run.tx.supply(through, &pages), larder_core::cache::Step::Ready(()))
            }
            Ok(CacheReply::Ids(range)) => {
                run.tx.supply_ids(range);
                true
            }
            Ok(CacheReply::Through(_)) => true,
            Ok(other) => panic!("{other:?} answers no transaction's need"),
            Err(error) => {
                self.client_proved(index, self.may_be_refused() && proof::is_refusal(&error));
                false
            }
        };
        if alive {
            self.clients[index].stage = Stage::Run(run);
            self.client_goes_on(index, 0);
        } else {
            self.client_gives_up(index, *run);
        }
    }

    /// Drops a transaction that cannot go on.
    fn client_gives_up(&mut self, index: usize, mut run: Run) {
        self.clients[index].ids.extend(run.tx.take_unused_ids());
        self.tally.aborted += 1;
        self.client_thinks(index);
    }
}
