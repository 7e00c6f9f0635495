//! Clients of the file layer in the world: `larder::fs` itself over the machines, by seed.
//!
//! A process of files lives in a node. Its futures are polled when the world's events come to it, in
//! virtual time ([`tasks`]); what they want of the machine goes into the world as requests and comes
//! back as answers ([`port`], [`store`]). Each client draws its operations from its own number and
//! theirs, so that one can be left out and the others stay (`work`). The checker holds every commit
//! and every answer to the tree that the log has ([`check`], [`tree`], [`model`]).

pub mod check;
pub mod journal;
pub mod living;
pub mod model;
pub mod plan;
pub mod port;
pub mod store;
pub mod tasks;
pub mod tree;
pub mod turns;
pub mod whole;
mod work;

pub use plan::{FilesPlan, aim, draw};

use crate::agenda::Time;
use crate::client::VolumePlan;
use crate::decisions::Decision;
use crate::net::Proc;
use crate::plan::Plan;
use crate::world::World;
use check::Checker;
use journal::{BACKGROUND, Shared, Who};
use larder::clock::simulated::Surroundings;
use larder_core::cache::io::CacheReply;
use larder_core::commit::{Abort, Outcome};
use larder_core::id::{DomainId, HistoryId, PageNo, RequestId, VolumeId};
use larder_core::message::{RequestError, VolumeSpec};
use larder_core::rng::Rng;
use port::{Port, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tasks::Tasks;

/// Rounds of one step of a process at most: more are a circle.
const ROUNDS_MAX: u32 = 10_000;
/// The number of the volume of files in its domain.
const VOLUME: u128 = 77;

/// The processes of files of a run.
#[derive(Debug, Default)]
pub struct Files {
    plan: Option<Arc<FilesPlan>>,
    volume: Option<(VolumeSpec, DomainId)>,
    journal: Shared,
    processes: BTreeMap<u16, Process>,
    /// Requests under way: what they answer, and the tag of a commit.
    requests: BTreeMap<(u16, u64), (u64, Option<u64>)>,
    checker: Option<Checker>,
    /// The process that is being polled.
    polled: Option<u16>,
    deaths: u64,
}

#[derive(Debug)]
struct Process {
    port: Arc<Port>,
    /// None while they are polled.
    tasks: Option<Tasks>,
    surroundings: Surroundings,
    incarnation: u32,
    entered: Option<Time>,
}

/// The volume of files of a run, if it has one.
#[must_use]
pub fn volume_of(plan: &Plan, domains: &[DomainId]) -> Option<VolumePlan> {
    plan.files.as_ref()?;
    let (id, domain) = (VolumeId(VOLUME << 64), domains[0]);
    let spec = VolumeSpec {
        id,
        name: "files".into(),
        page_bytes: crate::plan::PAGE_BYTES,
        domain: Some(domain),
    };
    Some(VolumePlan {
        spec,
        domain,
        former: Vec::new(),
        slotted: vec![larder_core::id::PageId { volume: id, page: PageNo(1) }],
        raw: Vec::new(),
        references: Vec::new(),
    })
}

impl Files {
    /// Of a run that is about to begin.
    #[must_use]
    pub fn new(plan: &Plan, domains: &[DomainId]) -> Self {
        let Some(volume) = volume_of(plan, domains) else { return Self::default() };
        let checker = Checker::new(&volume, plan.files.as_ref().expect("it has a volume"));
        Self {
            plan: plan.files.clone().map(Arc::new),
            volume: Some((volume.spec, volume.domain)),
            checker: Some(checker),
            ..Self::default()
        }
    }

    /// Clients do what was recorded and no more.
    pub(crate) fn given(&mut self, decisions: &[Decision]) {
        journal::with(&self.journal, |journal| journal.turns.give(decisions));
    }

    /// The troubles are over: clients do what they like, or rest.
    pub(crate) fn decide_alone(&mut self, rest: bool) {
        journal::with(&self.journal, |journal| journal.turns.end(rest));
    }
}

impl World {
    /// A node has started: its process of files begins, if it has one.
    pub(crate) fn files_start(&mut self, proc: Proc) {
        let (Some(plan), Some((spec, domain))) =
            (self.files.plan.clone(), self.files.volume.clone())
        else {
            return;
        };
        let first = 1 + self.plan.relays.len() as u16;
        if proc.0 - first >= plan.nodes {
            return;
        }
        let process = self.process(proc);
        let node = process.node_ref();
        let read = Arc::clone(node.read.as_ref().expect("it has just started"));
        let (clock, incarnation) = (node.clock.clone(), process.incarnation);
        let chance = Rng::new(plan.seed ^ u64::from(incarnation) << 32 ^ u64::from(proc.0));
        let surroundings = Surroundings::new(self.now().0, { chance }.next_u64());
        let volume = (spec.id, domain, spec.page_bytes);
        let port = Arc::new(Port::new(
            (proc.0, incarnation),
            read,
            clock,
            surroundings.clone(),
            volume,
            plan.choices.clone(),
            self.files.journal.clone(),
        ));
        let mut tasks = Tasks::new(surroundings.clone());
        tasks.add(Box::pin(work::process(port.clone(), plan, spec)));
        let tasks = Some(tasks);
        let process = Process { port, tasks, surroundings, incarnation, entered: None };
        self.files.processes.insert(proc.0, process);
        self.enter_files(proc, self.now());
    }

    /// A node died, and its process of files with it.
    pub(crate) fn files_end(&mut self, proc: Proc) {
        if let Some(process) = self.files.processes.remove(&proc.0) {
            self.files.deaths += 1;
            drop(process);
        }
        self.files.requests.retain(|(node, _), _| *node != proc.0);
        journal::with(&self.files.journal, |journal| journal.died(proc.0));
    }

    fn enter_files(&mut self, proc: Proc, at: Time) {
        let Some(process) = self.files.processes.get_mut(&proc.0) else { return };
        if process.entered.is_none_or(|entered| at < entered) {
            process.entered = Some(at);
            let incarnation = process.incarnation;
            self.enter_files_event(at, proc, incarnation);
        }
    }

    /// A process of files goes on.
    pub(crate) fn files_step(&mut self, proc: Proc, incarnation: u32) {
        let now = self.now();
        let Some(process) = self.files.processes.get_mut(&proc.0) else { return };
        if process.incarnation != incarnation || process.entered.is_none_or(|at| at > now) {
            return;
        }
        if self.files_wait(proc, incarnation) {
            return;
        }
        self.trace.mix(0xf11e << 16 | u64::from(proc.0));
        self.set_clock(proc);
        let (wall, patient) = (self.process(proc).wall_error, self.is_healing());
        // One that is left out of a core goes on: its line is cut, and it could not end well.
        let drains = self.files_drain() && self.is_in_core(proc);
        let domain = self.files.volume.as_ref().expect("there is a process").1;
        let truth = self.oracle.truth(domain);
        let (durable, branches) = (truth.current().durable(), truth.branch_count());
        journal::with(&self.files.journal, |journal| {
            (journal.drains, journal.durable, journal.branches) = (drains, durable, branches);
        });
        let Some(process) = self.files.processes.get_mut(&proc.0) else { return };
        process.entered = None;
        let Some(mut tasks) = process.tasks.take() else { return };
        let (port, surroundings) = (process.port.clone(), process.surroundings.clone());
        port.set(wall, patient);
        surroundings.set(now.0);
        self.files.polled = Some(proc.0);
        let background = Who { node: proc.0, life: incarnation, client: BACKGROUND, number: 0 };
        let mut rounds = 0;
        loop {
            store::POLLED.set(background);
            tasks.go_on();
            let Some(wanted) = port.next_wanted() else {
                if tasks.can_go_on() { continue } else { break }
            };
            self.files_want(proc, background, wanted);
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "progress: a process of files asks for ever");
        }
        self.files.polled = None;
        let noted = journal::with(&self.files.journal, |journal| journal.turns.take_noted());
        self.decisions.note_files(noted.into_iter());
        if let Some(process) = self.files.processes.get_mut(&proc.0) {
            process.tasks = Some(tasks);
        }
        if let Some(next) = surroundings.next() {
            self.enter_files(proc, Time(next).max(now));
        }
        self.files_check();
    }

    fn files_want(&mut self, proc: Proc, background: Who, wanted: Wanted) {
        let (token, tag, op, limit) = match wanted {
            Wanted::Op(token, op, limit) => (token, None, op, limit),
            Wanted::Commit(token, commit, limit) => {
                let port::Commit { part, who } = *commit;
                let who = if who == Who::default() { background } else { who };
                let tag = (!part.writes.is_empty()).then(|| {
                    let tag = self.oracle.begin(format!("files of {who:?}"), part.domain, proc);
                    self.oracle.asks(tag, Vec::new(), &part);
                    tag
                });
                if let (Some(tag), Some(checker)) = (tag, &mut self.files.checker) {
                    journal::with(&self.files.journal, |journal| checker.asks(tag, who, journal));
                }
                self.trace.line(|| format!("files of {who:?}: commit {tag:?}"));
                (token, tag, part.into_op(), limit)
            }
        };
        let id = self.new_request(proc);
        self.files.requests.insert((proc.0, id.0), (token, tag));
        let patience = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.node_request(proc, id, op, patience);
    }

    /// A node answers; false: not a process of files.
    pub(crate) fn files_reply(
        &mut self,
        proc: Proc,
        id: RequestId,
        result: Result<CacheReply, RequestError>,
    ) -> Result<(), Result<CacheReply, RequestError>> {
        let Some((token, tag)) = self.files.requests.remove(&(proc.0, id.0)) else {
            return Err(result);
        };
        if let Err(RequestError::Damaged { .. }) = &result {
            panic!("P9: damage where none was done: {result:?}");
        }
        if let Some(tag) = tag {
            match &result {
                Ok(CacheReply::Outcome(outcome)) => self.oracle.answered(tag, outcome),
                Err(RequestError::Full(_)) => {
                    self.oracle.answered(tag, &Outcome::Aborted(Abort::History));
                }
                _ => {}
            }
        }
        if let Some(process) = self.files.processes.get(&proc.0) {
            process.port.answer(token, result);
            if self.files.polled != Some(proc.0) {
                self.enter_files(proc, self.now());
            }
        }
        Ok(())
    }

    /// Looks at what has become durable, and at what was answered.
    pub(crate) fn files_check(&mut self) {
        let Some(mut checker) = self.files.checker.take() else { return };
        let domain = self.files.volume.as_ref().expect("there is a checker").1;
        let truth = self.oracle.truth(domain);
        let on_line = |node: &u16| {
            let process = self.process(Proc(*node));
            let read = process.node_ref().read.as_ref();
            let history = read.and_then(|read| read.history(domain));
            let attached = history.filter(|history| *history != HistoryId(0));
            attached.is_some_and(|history| truth.branch_number(history) + 1 == truth.branch_count())
        };
        let nodes: BTreeSet<u16> = self.files.processes.keys().copied().filter(on_line).collect();
        let journal = self.files.journal.clone();
        journal::with(&journal, |journal| {
            for entry in &journal.ended {
                let well = u64::from(matches!(entry.ended, Some(Ok(_))));
                self.tally.file_operations += 1;
                self.trace.mix(entry.order << 1 | well);
                self.trace.mix(entry.seen.map_or(0, |stamp| stamp.0));
                self.trace.line(|| format!("{entry:?}"));
            }
        });
        let (journal, now) = (self.files.journal.clone(), self.now().0);
        journal::with(&journal, |journal| {
            journal.now = now;
            checker.look(&self.oracle, journal, |node| nodes.contains(&node));
        });
        self.files.checker = Some(checker);
    }

    /// A process of files that has not come to its end.
    pub(crate) fn files_unrest(&self) -> Option<String> {
        let busy = self.files.processes.iter().find(|(node, process)| {
            let idle = process.tasks.as_ref().is_some_and(Tasks::is_empty);
            !idle && self.is_in_core(Proc(**node))
        });
        let what = journal::with(&self.files.journal, |journal| format!("{:?}", journal.open));
        busy.map(|(node, _)| format!("files of process {node} are not done: {what}"))
    }

    /// At the end nothing of the tree is left that nobody uses.
    pub(crate) fn files_at_rest(&mut self) {
        self.files_check();
        let Some(checker) = &self.files.checker else { return };
        let lost = journal::with(&self.files.journal, |journal| !journal.lost.is_empty());
        let hindered = self.plan.mix.rights_percent > 0 || self.plan.mix.quota_percent > 0;
        checker.at_rest(&self.oracle, self.files.deaths > 0 || lost || hindered);
    }
}
