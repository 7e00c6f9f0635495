//! The cache machine of a node: the links to its parents, the streams of its domains, fetches,
//! commits, and what is held in memory.
//!
//! | file | what |
//! |---|---|
//! | `link` | handshake, limits, credits, the end of a link |
//! | `parents` | which parent has what (decision 0037) |
//! | `domain` | the state of one domain |
//! | `stream` | resume, advances, histories, ages |
//! | `flights` | pages asked for, and their install (rules 4 to 7) |
//! | `neighbours` | links to neighbours, and pages that come from them (decision 0031) |
//! | `helps` | pages that neighbours miss |
//! | `absences` | copies that say only that a page is absent: how many |
//! | `memory` | copies: put, changed, evicted; notices and page lists (rules 2, 17) |
//! | `commits` | commits, retained writes, confirmations (rules 12, 15) |
//! | `wholes` | transactions over several domains: their commits taken together (decision 0035) |
//! | `numbers` | in which history page numbers were given (rule 16) |
//! | `rights` | what this node may do with its volumes (decision 0016) |
//! | `users` | what users ask, deadlines, volumes and page numbers |
//! | `rest` | what is under way, for the simulator |
//! | `turns` | who sends next, where there is little room |

mod absences;
mod boots;
mod calls;
mod commits;
mod companions;
mod deleted;
mod demand;
mod domain;
mod flights;
mod helps;
mod holdings;
mod ledger;
mod link;
mod memory;
mod neighbours;
mod numbers;
mod parents;
#[cfg(feature = "faults")]
mod rest;
mod rights;
mod stream;
mod told;
mod transfers;
mod turns;
mod updates;
mod users;
mod wholes;

use super::io::{CacheInput, CacheOutput, CacheReply, Notice};
use super::read::VolumeEntry;
use super::{CacheConfig, ReadCache};
use crate::id::{DomainId, LinkId, RequestId, VolumeId};
use crate::machine::Machine;
use crate::message::CloseReason;
use crate::rng::Rng;
use crate::time::{Duration, Instant, OnwardClock};
pub use companions::CompanionCounts;
use domain::Domain;
use helps::Helps;
use link::Link;
use memory::Memory;
use neighbours::Neighbours;
use numbers::Numbers;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use turns::Turn;
use users::User;
use wholes::Wholes;

type Out = Vec<CacheOutput>;

/// Beats are at least this far apart.
const BEAT_MIN: Duration = Duration::from_millis(10);

/// The cache machine: see the module.
pub struct Cache {
    config: CacheConfig,
    shared: Arc<ReadCache>,
    rng: Rng,
    /// Those that stand, one at most to each parent.
    links: BTreeMap<LinkId, Link>,
    /// Which of them is to the redirector of this node's group.
    redirector: Option<LinkId>,
    domains: BTreeMap<DomainId, Domain>,
    users: BTreeMap<RequestId, User>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    /// Calls to be sent, in order; some wait no longer.
    calls: VecDeque<RequestId>,
    /// Those for which no parent is there.
    parked: Vec<RequestId>,
    /// Whose turn it was to send.
    sent_last: Option<Turn>,
    /// Open volumes that a resume named as a whole: whether they were deleted is to be asked.
    doubts: BTreeSet<VolumeId>,
    /// Those that pass for deleted, and of which no deletion was told: questions after these may be answered otherwise.
    missing: BTreeMap<VolumeId, RequestId>,
    memory: Memory,
    numbers: Numbers,
    wholes: Wholes,
    /// Of a member of a group.
    neighbours: Option<Neighbours>,
    helps: Helps,
    /// Names of the volumes that were opened.
    names: BTreeMap<VolumeId, String>,
    /// Link requests are numbered on over all links: an id never repeats (rule 6).
    next_request: u64,
    /// When the regular work is due: beats, notices, page lists, credits left over.
    tick_at: Option<Instant>,
    clock: OnwardClock,
    /// It was told that it ends.
    ending: bool,
}

impl Cache {
    /// A cache that holds nothing, and what its readers share.
    #[must_use]
    pub fn new(config: CacheConfig) -> (Self, Arc<ReadCache>) {
        let shared = Arc::new(ReadCache::new(
            config.transactions_max,
            Arc::clone(&config.clock),
            config.faults,
        ));
        let cache = Self {
            rng: Rng::new(config.seed),
            memory: Memory::new(config.policy, config.memory_bytes),
            neighbours: config.group.clone().map(Neighbours::new),
            helps: Helps::default(),
            config,
            shared: Arc::clone(&shared),
            links: BTreeMap::new(),
            redirector: None,
            domains: BTreeMap::new(),
            users: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            calls: VecDeque::new(),
            parked: Vec::new(),
            sent_last: None,
            doubts: BTreeSet::new(),
            missing: BTreeMap::new(),
            numbers: Numbers::default(),
            wholes: Wholes::default(),
            names: BTreeMap::new(),
            next_request: 1,
            tick_at: None,
            clock: OnwardClock::default(),
            ending: false,
        };
        (cache, shared)
    }

    /// Bytes of copies in memory, their overhead included.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory.used()
    }

    /// What came of asking ahead for pages that became stale together, of all domains.
    #[must_use]
    pub fn companion_counts(&self) -> CompanionCounts {
        let mut all = CompanionCounts::default();
        for counts in self.domains.values().map(|domain| domain.companions.counts()) {
            all.asked += counts.asked;
            all.read += counts.read;
        }
        all
    }

    /// Commits whose outcome is not known yet, and user requests that wait.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let commits = self.domains.values().map(|d| d.commits.unresolved()).sum();
        (commits, self.users.len())
    }

    fn request_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request - 1)
    }

    /// The time between two beats. A state that is older than the lease when the next echo comes
    /// could not be called current for all of the time between.
    fn beat_interval(&self, domain: DomainId) -> Duration {
        self.beats_within(self.link_of(domain).and_then(|link| Some(link.limits?.lease)))
    }

    fn beats_within(&self, lease: Option<Duration>) -> Duration {
        let lease = lease.unwrap_or(Duration::MAX);
        self.config.beat_every.min(lease / 3).max(BEAT_MIN)
    }

    /// The time between two rounds of regular work.
    fn tick_every(&self) -> Duration {
        let leases = self.links.values().filter_map(|link| Some(link.limits?.lease));
        (self.beats_within(leases.min()) / 4).max(Duration::from_millis(1))
    }

    /// Regular work is due no later than a round from now.
    fn tick_soon(&mut self, now: Instant) {
        let at = now.after(self.tick_every());
        self.tick_at = Some(self.tick_at.map_or(at, |due| due.min(at)));
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        self.tick_at = None;
        let silence = self.config.silence_max;
        let silent = self.links.values().filter(|link| now.since(link.heard) > silence);
        let silent: Vec<LinkId> = silent.map(|link| link.id).collect();
        for link in silent {
            self.close(link, CloseReason::Silent, out);
        }
        if self.links.is_empty() {
            return;
        }
        self.tick_at = Some(now.after(self.tick_every()));
        let welcomed = self.links.values().filter(|link| link.is_welcomed());
        let welcomed: Vec<LinkId> = welcomed.map(|link| link.id).collect();
        for id in &welcomed {
            let link = self.links.get_mut(id).expect("just seen");
            self.doubts.append(&mut link.unanswered);
            self.return_credit(*id, true, out);
            self.keep_alive(now, *id, out);
        }
        if welcomed.is_empty() {
            return;
        }
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in domains {
            self.tick_stream(now, domain, out);
            self.confirm(domain, out);
            self.send_notices(domain, true, out);
            self.send_holding(now, domain, out);
        }
    }
}

impl Machine for Cache {
    type Input = CacheInput;
    type Output = CacheOutput;

    fn handle(&mut self, now: Instant, input: CacheInput, out: &mut Vec<CacheOutput>) {
        let now = self.clock.at(now);
        match input {
            CacheInput::Link(input) => self.handle_link(now, input, out),
            CacheInput::Neighbour(input) => self.handle_neighbour(now, input, out),
            CacheInput::Reachable(address) => self.reachable(now, address, out),
            CacheInput::Request { id, op, deadline } => self.ask(now, id, op, deadline, out),
            CacheInput::Cancel { id } => self.cancel(id),
            CacheInput::End => self.end_boots(&mut *out),
        }
        self.tend_group(now, out);
        self.pump(now, out);
        self.shrink(out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<CacheOutput>) {
        let now = self.clock.at(now);
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.expire(id, out);
        }
        self.lapse(now, out);
        if self.tick_at.is_some_and(|at| at <= now) {
            self.tick(now, out);
        }
        self.resume_commits(now);
        self.tend_group(now, out);
        self.pump(now, out);
        self.shrink(out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|&(at, _)| at);
        let lapse = self.domains.values().filter_map(Domain::lapses_at).min();
        let paused = self.domains.values().filter_map(|d| d.commits.resumes_at()).min();
        let transfer = self.links.values().filter_map(|link| link.transfers.next_timeout()).min();
        let group = self.neighbours.as_ref().and_then(neighbours::Neighbours::next_timeout);
        let help = self.helps.next_timeout();
        let all = [deadline, self.tick_at, lapse, paused, transfer, group, help];
        all.into_iter().flatten().min()
    }

    fn check(&self) {
        let mut used = 0;
        for (id, domain) in &self.domains {
            used += self.check_domain(*id, domain);
        }
        assert_eq!(used, self.memory.used(), "the memory's count is that of its copies");
        let absences = self.domains.values().map(|domain| domain.holdings.absences());
        self.check_absences(absences.sum());
        for (at, id) in &self.deadlines {
            let user = self.users.get(id).expect("a deadline belongs to a waiting request");
            assert_eq!(user.deadline, *at, "each request has its one deadline");
        }
        assert_eq!(self.deadlines.len(), self.users.len(), "every wait has a limit");
        if let Some(group) = &self.neighbours {
            group.check();
            self.links.values().for_each(|link| link.transfers.check());
            assert!(
                self.helps.len() <= group.config.helps_max,
                "those who wait for help are bounded"
            );
        }
    }
}
