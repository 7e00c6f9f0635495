//! Node processes: the cache machine, and the checks after each of its steps.

use super::process::{Asked, lock};
use super::{Event, World, seconds};
use crate::agenda::SECOND;
use crate::check::copies::check_copy;
use crate::net::Proc;
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput, NeighbourOutput, Notice};
use larder_core::cache::{Cache, CacheConfig, ReadCache};
use larder_core::commit::Write;
use larder_core::group::GroupMessage;
use larder_core::group::membership::MembershipInput;
use larder_core::id::{BootId, CommitId, DomainId, PageId, RequestId, Stamp, VolumeId};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{CloseReason, EPOCHS_MAX, Message};
use larder_core::time::Instant;
use std::sync::{Arc, Mutex};

impl World {
    pub(super) fn start_node(&mut self, proc: Proc) {
        let boot = BootId(self.rng.next_u128());
        let seed = self.rng.next_u64();
        let limits = &self.plan.limits;
        let process = self.process(proc);
        let clock = process.node_ref().clock.clone();
        let mut config = CacheConfig::new(&process.name, boot, Arc::new(clock));
        config.seed = seed;
        config.memory_bytes = limits.memory_bytes;
        config.policy = limits.policy;
        config.recent_max = limits.recent_max;
        config.kept_max = limits.kept_max;
        config.notices_max = limits.notices_max;
        // Not fewer than what is asked for at once and then read one by one: else each is asked for again.
        let at_once = if self.plan.files.is_some() { 1 << 10 } else { 8 };
        config.absences_max = limits.notices_max.max(at_once);
        if limits.requests_max == 16 {
            config.sent_bytes_max = 512;
        }
        config.snapshot_bytes = limits.snapshot_bytes;
        if let Some(objects_max) = self.plan.mix.ahead_max {
            config.ahead.objects_max = objects_max;
            config.ahead.pages_max = 1 + objects_max;
            config.ahead.bytes_max = 64 * objects_max;
        }
        config.beat_every = limits.beat;
        config.silence_max = limits.silence;
        config.faults = self.plan.faults;
        config.group = self.plan.group.as_ref().map(|group| group.member(proc.0.to_string()));
        config.transactions_max = 4;
        config.parents = 1 + u32::from(self.has_second(proc));
        self.plan.bounds.of_node(&mut config);
        let (cache, read) = Cache::new(config);
        let node = self.process_mut(proc).node();
        node.machine = Some(Arc::new(Mutex::new(cache)));
        node.read = Some(read);
        node.boot = boot;
        node.through.clear();
        node.early.clear();
        node.waiting.clear();
        node.asked.clear();
        node.refused = false;
        node.reached.clear();
        self.trace.mix(0x40de << 16 | u64::from(proc.0));
        self.set_clock(proc);
        self.enter_connect(proc);
        self.enter_connect_second(proc);
        self.enter_timer(proc);
        self.start_clients(proc);
        self.files_start(proc);
    }

    /// Sets the clock that the node's readers ask.
    pub(crate) fn set_clock(&mut self, proc: Proc) {
        let process = self.process(proc);
        process.node_ref().clock.set(process.local(self.now));
    }

    /// Whether a node lives.
    pub(crate) fn node_is_up(&self, proc: Proc) -> bool {
        self.process(proc).is_up()
    }

    /// Whether a client's step must wait until its process goes on. It comes again after a second at most:
    ///
    /// 1. A node stands still for a minute, and its client's step is entered for the end of that.
    /// 2. All is mended, and the pause made shorter; the step stays where it was.
    /// 3. The time for proofs passes, and the client has begun nothing (finding 398).
    pub(crate) fn client_waits(&mut self, proc: Proc, client: u16, step: u32) -> bool {
        let until = self.process(proc).paused_until;
        if until > self.now {
            let again = until.min(self.now.plus(SECOND));
            self.agenda.enter(again, Event::Client(client, step));
        }
        until > self.now
    }

    /// Enters a client's step.
    pub(crate) fn enter_client(&mut self, number: usize, delay: u64, step: u32) {
        self.agenda.enter(self.now.plus(delay), Event::Client(number as u16, step));
    }

    /// The shared cache of a client's node, which lives.
    pub(crate) fn processes_read(&self, client: usize) -> Arc<ReadCache> {
        let node = self.process(self.clients[client].node).node_ref();
        Arc::clone(node.read.as_ref().expect("clients live while their node does"))
    }

    /// The domain of a volume of the run.
    pub(crate) fn domain_of(&self, volume: VolumeId) -> DomainId {
        let found = self.volumes.iter().find(|plan| plan.is(volume));
        found.expect("volumes are planned at the start").domain
    }

    /// A new request number of a node, for a client that waits.
    pub(crate) fn next_request(&mut self, proc: Proc, client: u16) -> RequestId {
        let node = self.process_mut(proc).node();
        node.requests += 1;
        node.waiting.insert(node.requests, client);
        RequestId(node.requests)
    }

    /// The same, for somebody else than a client.
    #[cfg(feature = "files")]
    pub(crate) fn new_request(&mut self, proc: Proc) -> RequestId {
        let node = self.process_mut(proc).node();
        node.requests += 1;
        RequestId(node.requests)
    }

    /// A user asks the machine of its node.
    pub(crate) fn node_request(&mut self, proc: Proc, id: RequestId, op: CacheOp, patience: u64) {
        let now = self.process(proc).local(self.now);
        let pages = if let CacheOp::Fetch { pages, .. } = &op { pages.len() } else { 1 };
        let written = |writes: &[Write]| writes.chunk_by(|one, next| one.page == next.page).count();
        let loads = match &op {
            CacheOp::Commit { writes, .. } => written(writes),
            CacheOp::CommitAcross(parts) => parts.iter().map(|part| written(&part.writes)).sum(),
            _ => pages,
        };
        let ahead = self.waiting_at_origins();
        let asked = Asked { at: self.now, patience, pages, loads, ahead };
        self.process_mut(proc).node().asked.insert(id.0, asked);
        let patience = std::time::Duration::from_nanos(patience);
        self.trace.line(|| format!("{proc:?} request {}: {op:?}", id.0));
        let deadline = now.after(patience);
        self.node_input(proc, CacheInput::Request { id, op, deadline });
    }

    /// Asks for a page that nobody waits for.
    pub(crate) fn prefetch(&mut self, client: usize, domain: DomainId, page: PageId) {
        let proc = self.clients[client].node;
        let node = self.process_mut(proc).node();
        node.requests += 1;
        let id = RequestId(node.requests);
        let pages = vec![page];
        let patience = self.patience();
        self.node_request(proc, id, CacheOp::Fetch { domain, pages, prefetch: true }, patience);
    }

    /// What happens on a link to a neighbour.
    pub(super) fn node_neighbour(&mut self, proc: Proc, input: LinkInput) {
        if let LinkInput::Received { message: Message::Pages { pages, .. }, .. } = &input {
            let arrived: Vec<PageId> = pages.iter().map(|answer| answer.page).collect();
            self.process_mut(proc).node().early.extend(arrived);
        }
        self.node_input(proc, CacheInput::Neighbour(input));
    }

    pub(super) fn node_link(&mut self, proc: Proc, input: LinkInput) {
        let mut arrived = Vec::new();
        if let LinkInput::Received { message: Message::Pages { pages, .. }, .. } = &input {
            arrived.extend(pages.iter().map(|answer| answer.page));
        }
        if let LinkInput::Received { message: Message::Ids { range, history, .. }, .. } = &input {
            self.oracle.numbers_came(proc, range, *history);
        }
        self.process_mut(proc).node().early.extend(arrived);
        if let LinkInput::Received { message: Message::Welcome { .. }, .. } = &input
            && self.is_member(proc)
        {
            self.seat_input(proc, MembershipInput::Linked);
        }
        if let Some(input) = self.reader_helps(proc, input) {
            self.node_input(proc, CacheInput::Link(input));
        }
    }

    /// The task that reads the link answers a neighbour's miss, as it does while the machine is busy, and leaves
    /// the rest to the machine. By turns, so that either way is taken.
    fn reader_helps(&mut self, proc: Proc, input: LinkInput) -> Option<LinkInput> {
        let LinkInput::Received { link, message: Message::Group(message), bytes } = input else {
            return Some(input);
        };
        let received =
            |message| LinkInput::Received { link, message: Message::Group(message), bytes };
        let GroupMessage::Help { request, domain, pages, asker, position, holes } = message else {
            return Some(received(message));
        };
        let node = self.process(proc).node_ref();
        let to = node.reached.get(&asker).copied().filter(|_| request.0.is_multiple_of(2));
        let Some((to, read)) = to.zip(node.read.as_ref()) else {
            let help = GroupMessage::Help { request, domain, pages, asker, position, holes };
            return Some(received(help));
        };
        let (answers, pages) = read.help_with(domain, pages, (position, holes));
        let is_left = !pages.is_empty();
        for message in larder_core::group::messages(request, domain, answers) {
            self.link_output(proc, LinkOutput::Send { link: to, message });
        }
        let help = GroupMessage::Help { request, domain, pages, asker, position, holes };
        is_left.then(|| received(help))
    }

    pub(super) fn node_input(&mut self, proc: Proc, input: CacheInput) {
        self.node_step(proc, |machine, now, out| machine.handle(now, input, out));
    }

    pub(super) fn node_timeout(&mut self, proc: Proc) {
        self.node_step(proc, Cache::handle_timeout);
    }

    fn node_step(
        &mut self,
        proc: Proc,
        step: impl FnOnce(&mut Cache, Instant, &mut Vec<CacheOutput>),
    ) {
        let now = self.process(proc).local(self.now);
        self.set_clock(proc);
        let mut out = Vec::new();
        let Some(machine) = &self.process(proc).node_ref().machine else {
            return;
        };
        let mut machine = lock(machine);
        step(&mut machine, now, &mut out);
        let withdrawn = machine.take_withdrawn();
        drop(machine);
        self.note_withdrawn(withdrawn);
        self.node_outputs(proc, out);
    }

    fn note_withdrawn(&mut self, withdrawn: Vec<(DomainId, CommitId)>) {
        for (domain, id) in withdrawn {
            self.answers.expired.withdrawn(domain, id);
            self.answers.withdrawn.said(domain, id);
        }
    }

    /// Carries out what the machine asked, after checking what it now shows its readers.
    pub(super) fn node_outputs(&mut self, proc: Proc, out: Vec<CacheOutput>) {
        self.check_shown(proc);
        for output in out {
            match output {
                CacheOutput::Link(output) => {
                    self.note_commit(proc, &output);
                    self.link_output(proc, output);
                }
                CacheOutput::Neighbour(NeighbourOutput::Link(output)) => {
                    self.link_output(proc, output);
                }
                CacheOutput::Neighbour(NeighbourOutput::Dial(member)) => self.dial(proc, &member),
                CacheOutput::Neighbour(NeighbourOutput::Came { .. }) => {}
                CacheOutput::Neighbour(NeighbourOutput::Reached(reached)) => {
                    self.process_mut(proc).node().reached = reached.into_iter().collect();
                }
                CacheOutput::Reply { id, result } => {
                    self.trace.mix(id.0 << 1 | u64::from(result.is_ok()));
                    self.trace.line(|| format!("{proc:?} replies to {}: {result:?}", id.0));
                    self.check_patience(proc, id.0);
                    self.check_answered(proc, id.0, &result);
                    self.process_mut(proc).node().asked.remove(&id.0);
                    let waiting = self.process_mut(proc).node().waiting.remove(&id.0);
                    match waiting {
                        Some(client) => self.client_reply(client, id.0, result),
                        None => {
                            if let Err(result) = self.files_reply(proc, id, result) {
                                self.probe_reply(proc, id, result.is_ok());
                            }
                        }
                    }
                }
                CacheOutput::Notice(notice) => self.node_notice(proc, notice),
            }
        }
        self.enter_timer(proc);
    }

    fn note_commit(&mut self, proc: Proc, output: &LinkOutput) {
        if let LinkOutput::Send { message: Message::Commit { domain, commit }, .. } = output {
            self.oracle.sent_by_node(proc, *domain, commit);
        }
        if let LinkOutput::Send { message: Message::Beat { .. }, .. } = output {
            self.process_mut(proc).attempts = 0;
        }
    }

    fn node_notice(&mut self, proc: Proc, notice: Notice) {
        self.trace.line(|| format!("{proc:?} {notice:?}"));
        if let Notice::Refused { reason } = notice {
            self.refused(proc, &reason);
        }
    }

    /// A child was refused for good: an operator looks at it after a while.
    pub(super) fn refused(&mut self, proc: Proc, reason: &CloseReason) {
        if let CloseReason::Forked { domain, .. } = reason {
            // A child of before so many starts is on no line that is known.
            let origin = self.origin_of_domain(*domain);
            if self.process(origin).incarnation < EPOCHS_MAX as u32 {
                self.needs_beyond("a child is refused for good");
            }
            self.tally.forks += 1;
            self.operator_mends_fork(proc, origin);
        }
        if let CloseReason::Identity(name) = reason {
            let own = seconds::first_name(name) == self.process(proc).name;
            assert!(own, "P12: {proc:?} is refused as {name}");
            self.tally.refused_twins += u64::from(self.plan.twins);
        }
    }

    /// P3 and P4 after a step of a node: only pages that changed in the domain, or that have just
    /// come, can look different.
    fn check_shown(&mut self, proc: Proc) {
        for number in 0..self.domains.len() {
            self.check_shown_domain(proc, self.domains[number]);
        }
    }

    fn check_shown_domain(&mut self, proc: Proc, domain: DomainId) {
        let node = self.processes[proc.0 as usize].node();
        let read = Arc::clone(node.read.as_ref().expect("it just made a step"));
        let (Some(history), Some(through)) = (read.history(domain), read.through(domain)) else {
            return;
        };
        let truth = self.oracle.truth(domain);
        let number = truth.branch_number(history);
        let branch = truth.branch_at(number);
        let last =
            if number + 1 == truth.branch_count() { branch.durable() } else { branch.last() };
        assert!(through <= last, "P1: {proc:?} is at {through} of {domain:?}; {last} is durable");
        let before = node.through.insert(domain, (history, through));
        let from = match before {
            Some((old, stamp)) if truth.branch_number(old) == number => {
                assert!(stamp <= through, "P4: {proc:?} falls from {stamp} to {through}");
                Some(stamp)
            }
            Some((old, stamp)) => {
                let fork = truth.common(truth.branch_number(old), number);
                // With more histories than are told, nothing in common is found: all copies go.
                // Nor in a copy from before the first commit.
                let nothing = truth.may_forget_line() || fork == Stamp::ZERO;
                let accepted =
                    stamp <= fork || self.accepts_fork(self.origin_of_domain(domain)) || nothing;
                assert!(accepted, "P12: {proc:?} at {stamp} passes the fork at {fork} unseen");
                None
            }
            None => None,
        };
        let pages: Vec<PageId> = match from {
            Some(stamp) => branch.changed(stamp, through).collect(),
            None => truth.pages(),
        };
        let node = self.processes[proc.0 as usize].node_ref();
        let volumes = &self.volumes;
        let of_domain = |page: &&PageId| {
            volumes.iter().any(|plan| plan.is(page.volume) && plan.domain == domain)
        };
        let early = node.early.iter().filter(of_domain);
        let mut settled = Vec::new();
        for page in pages.iter().chain(early) {
            let Some(copy) = read.peek(*page) else {
                continue;
            };
            self.tally.copies_checked += 1;
            check_copy(branch, &copy, through, &proc);
            settled.push(*page);
        }
        let node = self.processes[proc.0 as usize].node();
        for page in settled {
            node.early.remove(&page);
        }
        while node.early.len() > 16 {
            node.early.pop_first();
        }
    }

    /// Whether an origin, as it runs, accepts children of a lost branch.
    pub(super) fn accepts_fork(&self, origin: Proc) -> bool {
        match &self.process(origin).machinery {
            super::Machinery::Origin(host) => host.accept_fork,
            other => panic!("{other:?} is no origin"),
        }
    }

    /// P3 of everything a node shows.
    pub(super) fn check_node(&mut self, proc: Proc) {
        let node = self.process(proc).node_ref();
        let Some(read) = &node.read else {
            return;
        };
        let read = Arc::clone(read);
        for domain in read.domains() {
            let (Some(history), Some(through)) = (read.history(domain), read.through(domain))
            else {
                continue;
            };
            let truth = self.oracle.truth(domain);
            let branch = truth.branch_at(truth.branch_number(history));
            for page in truth.pages() {
                if let Some(copy) = read.peek(page) {
                    self.tally.copies_checked += 1;
                    check_copy(branch, &copy, through, &proc);
                }
            }
        }
    }

    /// A node's process ends, with its cache and its clients.
    pub(super) fn kill_node(&mut self, proc: Proc) {
        let node = self.process_mut(proc).node();
        if node.machine.take().is_none() {
            return;
        }
        node.read = None;
        node.waiting.clear();
        node.asked.clear();
        self.trace.mix(0xdead << 16 | u64::from(proc.0));
        self.trace.line(|| format!("{proc:?} dies"));
        self.end_seat(proc);
        self.end_clients(proc);
        self.files_end(proc);
        self.after_death(proc);
    }
}
