//! Two domains, two transactions over both, some of one domain; all that the protocol keeps of them.
//!
//! What is durable and what a crash loses are kept apart. Messages are a set that only grows: each may be
//! delivered at any time, any number of times, in any order, or never. So a link that ends, a message that is
//! lost, one that is repeated and one that comes from before a crash need no step of their own. Bases are the
//! beginning: a transaction over both domains has read the first version of everything it reads.

/// Objects of a domain, a bit each.
pub(crate) type Objects = u8;
pub(crate) const DOMAINS: usize = 2;
/// Transactions over both domains.
pub(crate) const ACROSS: usize = 2;
/// Attempts at each.
const ATTEMPTS: usize = 2;
/// Transactions of one domain.
pub(crate) const LOCALS: usize = 2;
const OBJECTS: usize = 4;

/// What a transaction does in a domain.
#[derive(Clone, Copy, Default)]
pub(crate) struct Part {
    pub(crate) reads: Objects,
    pub(crate) writes: Objects,
}

/// What is played.
pub(crate) struct Plan {
    /// The coordinator's domain, and a part in each.
    pub(crate) across: [(usize, [Part; DOMAINS]); ACROSS],
    /// Of one domain each; it reads what is there when it is executed.
    pub(crate) locals: [Option<(usize, Part)>; LOCALS],
    /// How often each domain may crash.
    pub(crate) crashes: [u8; DOMAINS],
    /// The participant may refuse for a reason that may pass: a page is full.
    pub(crate) refuses: bool,
    /// What is taken out of the protocol.
    pub(crate) without: Option<Rule>,
}

/// A rule of decision 0035.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A commit waits whose writes a prepared transaction has read.
    PreparedReads,
    /// A commit waits whose reads a prepared transaction writes.
    PreparedWrites,
    /// A domain is in one transaction over several at a time.
    OneAtATime,
    /// What is prepared is logged.
    LoggedPrepare,
    /// Of an attempt that is not known to be committed the coordinator says that it is aborted.
    PresumedAbort,
    /// Of one that is under way it says nothing.
    UnderWay,
    /// An attempt has a name of its own.
    AttemptsNamed,
    /// A decision is kept until every participant has followed it.
    DecisionKept,
    /// A refusal is logged before it is told.
    RefusalLogged,
    /// What was done is not prepared again.
    DoneKnown,
    /// A participant that is in doubt asks.
    Asks,
}

/// What the coordinator's domain knows of a commit by its id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
enum Outcome {
    #[default]
    New,
    Committed,
    Aborted,
    /// Its node has confirmed it.
    Expired,
}

/// A coordinator's attempt: which, and how many domains it has gathered, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Attempt {
    number: u8,
    gathered: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct Domain {
    // ---- durable ----
    /// Writers in the order of their stamps: transactions over both domains, then those of one.
    order: [u8; ACROSS + LOCALS],
    stamps: u8,
    /// The last stamp of each object.
    last: [u8; OBJECTS],
    /// Transaction and attempt.
    prepared: [Option<(u8, u8)>; ACROSS],
    /// Transactions over both domains that were done here.
    done: u8,
    outcomes: [Outcome; ACROSS],
    /// The attempt that was decided to commit, until the other domain has followed.
    decided: [Option<u8>; ACROSS],
    // ---- volatile ----
    /// Parts that are here.
    here: u8,
    /// Coordinated transactions in whose turn the domain is.
    turn: u8,
    attempts: [Option<Attempt>; ACROSS],
    crashes: u8,
}

/// What a node was told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
enum Told {
    #[default]
    Nothing,
    Committed,
    Aborted,
}

/// A message between two domains about an attempt.
#[derive(Clone, Copy)]
enum Message {
    Prepare,
    Yes,
    No,
    Decide,
    Release,
    Ask,
    Followed,
}

const MESSAGES: [Message; 7] = [
    Message::Prepare,
    Message::Yes,
    Message::No,
    Message::Decide,
    Message::Release,
    Message::Ask,
    Message::Followed,
];

/// The whole state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct State {
    domains: [Domain; DOMAINS],
    /// A bit for each message that was sent.
    sent: u64,
    /// Attempts begun.
    begun: [u8; ACROSS],
    told: [Told; ACROSS],
    /// Transactions of one domain that were done.
    locals: u8,
    /// The truth: transactions that were committed at their coordinators.
    committed: u8,
}

/// What must not be.
pub(crate) type Broken = &'static str;

fn bit(index: usize) -> u8 {
    1 << index
}

fn place(message: Message, across: usize, attempt: u8) -> u32 {
    (message as u32 * ACROSS as u32 + across as u32) * ATTEMPTS as u32 + u32::from(attempt)
}

impl Plan {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn coordinator(&self, across: usize) -> usize {
        self.across[across].0
    }

    fn participant(&self, across: usize) -> usize {
        1 - self.coordinator(across)
    }

    fn part(&self, across: usize, domain: usize) -> Part {
        self.across[across].1[domain]
    }

    pub(crate) fn begin(&self) -> State {
        let mut state = State::default();
        for (domain, crashes) in state.domains.iter_mut().zip(self.crashes) {
            domain.crashes = crashes;
        }
        state
    }

    /// Every state that one step leads to.
    pub(crate) fn steps(&self, state: &State) -> Result<Vec<State>, Broken> {
        let mut next = Vec::new();
        for across in 0..ACROSS {
            self.node(state, across, &mut next);
            self.coordinate(state, across, &mut next)?;
            for attempt in 0..ATTEMPTS as u8 {
                for message in MESSAGES {
                    if state.sent & 1 << place(message, across, attempt) != 0 {
                        next.push(self.deliver(*state, message, across, attempt)?);
                    }
                }
                if self.refuses && state.sent & 1 << place(Message::Prepare, across, attempt) != 0 {
                    let mut after = *state;
                    after.send(Message::No, across, attempt);
                    next.push(after);
                }
            }
            self.ask(state, across, &mut next);
        }
        self.local(state, &mut next)?;
        self.crash(state, &mut next);
        next.retain(|after| after != state);
        next.iter().try_for_each(|after| self.check(after))?;
        Ok(next)
    }

    /// A part comes to its domain: sent for the first time, repeated, or a copy that was late. The node is told
    /// an outcome, and confirms it.
    fn node(&self, state: &State, across: usize, next: &mut Vec<State>) {
        if self.across[across].1.iter().all(|part| part.reads | part.writes == 0) {
            return;
        }
        for domain in 0..DOMAINS {
            let mut after = *state;
            after.domains[domain].here |= bit(across);
            next.push(after);
        }
        let at = self.coordinator(across);
        let told = match state.domains[at].outcomes[across] {
            Outcome::Committed => Told::Committed,
            Outcome::Aborted => Told::Aborted,
            Outcome::New | Outcome::Expired => return,
        };
        let mut after = *state;
        after.told[across] = told;
        next.push(after);
        after.domains[at].outcomes[across] = Outcome::Expired;
        next.push(after);
    }

    /// The coordinator begins an attempt, goes on with it, or gives it up.
    fn coordinate(
        &self,
        state: &State,
        across: usize,
        next: &mut Vec<State>,
    ) -> Result<(), Broken> {
        let at = self.coordinator(across);
        let domain = &state.domains[at];
        let Some(attempt) = domain.attempts[across] else {
            let fresh = domain.outcomes[across] == Outcome::New;
            if domain.here & bit(across) != 0
                && fresh
                && usize::from(state.begun[across]) < ATTEMPTS
            {
                let mut after = *state;
                let number = state.begun[across];
                after.begun[across] += 1;
                after.domains[at].attempts[across] = Some(Attempt { number, gathered: 0 });
                next.push(after);
            }
            return Ok(());
        };
        match usize::from(attempt.gathered) {
            DOMAINS => next.push(self.decide(*state, across, attempt)?),
            own if own == at => {
                let free = domain.turn == 0 && domain.prepared.iter().all(Option::is_none);
                if free || !self.has(Rule::OneAtATime) {
                    let mut after = *state;
                    after.domains[at].turn |= bit(across);
                    after.gathered(at, across);
                    next.push(after);
                }
            }
            _ => {
                let mut after = *state;
                after.send(Message::Prepare, across, attempt.number);
                next.push(after);
            }
        }
        let mut after = *state;
        after.give_up(at, across, attempt);
        next.push(after);
        Ok(())
    }

    /// All others are prepared: the coordinator's own part decides, in one record.
    fn decide(&self, mut state: State, across: usize, attempt: Attempt) -> Result<State, Broken> {
        let at = self.coordinator(across);
        let part = self.part(across, at);
        state.end(at, across);
        if !state.domains[at].holds(part.reads) {
            state.send(Message::Release, across, attempt.number);
            state.refuse(at, across, self.has(Rule::RefusalLogged));
            return Ok(state);
        }
        if state.told[across] == Told::Aborted {
            return Err("what was told to be aborted is committed");
        }
        if state.committed & bit(across) != 0 {
            return Err("committed twice");
        }
        let kept = self.has(Rule::DecisionKept);
        let domain = &mut state.domains[at];
        domain.write(across, part.writes);
        domain.done |= bit(across);
        domain.outcomes[across] = Outcome::Committed;
        domain.decided[across] = kept.then_some(attempt.number);
        state.committed |= bit(across);
        state.send(Message::Decide, across, attempt.number);
        Ok(state)
    }

    fn deliver(
        &self,
        mut state: State,
        message: Message,
        across: usize,
        number: u8,
    ) -> Result<State, Broken> {
        let (at, other) = (self.coordinator(across), self.participant(across));
        let part = self.part(across, other);
        let named = self.has(Rule::AttemptsNamed);
        let is = |there: u8| there == number || !named;
        let live = state.domains[at].attempts[across].filter(|attempt| is(attempt.number));
        let place = state.domains[other]
            .prepared
            .iter()
            .position(|p| p.is_some_and(|(t, n)| usize::from(t) == across && is(n)));
        match message {
            Message::Prepare => self.prepare(&mut state, across, number),
            Message::Yes => {
                if live.is_some_and(|attempt| usize::from(attempt.gathered) == other) {
                    state.gathered(at, across);
                }
            }
            Message::No => {
                if let Some(attempt) = live {
                    state.give_up(at, across, attempt);
                    state.refuse(at, across, self.has(Rule::RefusalLogged));
                }
            }
            Message::Decide => {
                if let Some(place) = place {
                    if state.committed & bit(across) == 0 {
                        return Err("done here, and not at the coordinator");
                    }
                    let domain = &mut state.domains[other];
                    if domain.done & bit(across) != 0 && part.writes != 0 {
                        return Err("done twice");
                    }
                    domain.prepared[place] = None;
                    domain.write(across, part.writes);
                    domain.done |= bit(across);
                }
                state.send(Message::Followed, across, number);
            }
            Message::Release => {
                if let Some(place) = place {
                    state.domains[other].prepared[place] = None;
                }
            }
            Message::Ask => {
                let decided = state.domains[at].decided[across].is_some_and(is);
                if decided || !self.has(Rule::PresumedAbort) {
                    state.send(Message::Decide, across, number);
                } else if live.is_none() || !self.has(Rule::UnderWay) {
                    state.send(Message::Release, across, number);
                }
            }
            Message::Followed => {
                if state.domains[at].decided[across].is_some_and(is) {
                    state.domains[at].decided[across] = None;
                }
            }
        }
        Ok(state)
    }

    /// The other domain holds the part against what has changed, and logs it.
    fn prepare(&self, state: &mut State, across: usize, number: u8) {
        let other = self.participant(across);
        let part = self.part(across, other);
        let (once, known) = (self.has(Rule::OneAtATime), self.has(Rule::DoneKnown));
        let domain = &mut state.domains[other];
        let busy = domain.turn != 0 || domain.prepared.iter().any(Option::is_some);
        let same = domain.prepared.iter().flatten().any(|(t, _)| usize::from(*t) == across);
        let done = known && domain.done & bit(across) != 0;
        if domain.here & bit(across) == 0 || (busy && once) || same || done {
            return;
        }
        if domain.holds(part.reads) {
            let free = domain.prepared.iter().position(Option::is_none);
            domain.prepared[free.expect("one for each")] = Some((across as u8, number));
            state.send(Message::Yes, across, number);
        } else {
            state.send(Message::No, across, number);
        }
    }

    /// A participant is in doubt for long.
    fn ask(&self, state: &State, across: usize, next: &mut Vec<State>) {
        for (prepared, number) in state.domains[self.participant(across)].prepared.iter().flatten()
        {
            if usize::from(*prepared) == across && self.has(Rule::Asks) {
                let mut after = *state;
                after.send(Message::Ask, across, *number);
                next.push(after);
            }
        }
    }

    /// A transaction of one domain, unless it has to wait for what is prepared there.
    fn local(&self, state: &State, next: &mut Vec<State>) -> Result<(), Broken> {
        for (index, (at, part)) in
            self.locals.iter().enumerate().filter_map(|(index, local)| Some((index, (*local)?)))
        {
            let domain = &state.domains[at];
            let mut prepared = domain
                .prepared
                .iter()
                .flatten()
                .map(|(across, _)| self.part(usize::from(*across), at));
            let waits = prepared.any(|prepared| {
                self.has(Rule::PreparedReads) && part.writes & prepared.reads != 0
                    || self.has(Rule::PreparedWrites) && part.reads & prepared.writes != 0
            });
            if !waits && state.locals & bit(index) == 0 {
                // Others may have seen at the coordinator's domain what this one does not see here.
                let seen = (0..ACROSS).filter(|across| state.committed & bit(*across) != 0);
                let mut unseen = seen.filter(|across| domain.done & bit(*across) == 0);
                if unseen.any(|across| self.part(across, at).writes & part.reads != 0) {
                    return Err("a strict reader goes back in time");
                }
                let mut after = *state;
                after.locals |= bit(index);
                after.domains[at].write(ACROSS + index, part.writes);
                next.push(after);
            }
        }
        Ok(())
    }

    fn crash(&self, state: &State, next: &mut Vec<State>) {
        for at in (0..DOMAINS).filter(|at| state.domains[*at].crashes > 0) {
            let mut after = *state;
            let domain = &mut after.domains[at];
            domain.crashes -= 1;
            (domain.here, domain.turn, domain.attempts) = (0, 0, [None; ACROSS]);
            if !self.has(Rule::LoggedPrepare) {
                domain.prepared = [None; ACROSS];
            }
            next.push(after);
        }
    }

    /// No circle among those that are committed: each domain's order of stamps, as local snapshots show it,
    /// and every reader before who wrote what it had read.
    fn check(&self, state: &State) -> Result<(), Broken> {
        let mut before = [0u8; ACROSS + LOCALS];
        for (at, domain) in state.domains.iter().enumerate() {
            let order = &domain.order[..usize::from(domain.stamps)];
            for (place, later) in order.iter().enumerate() {
                for earlier in &order[..place] {
                    before[usize::from(*earlier)] |= bit(usize::from(*later));
                }
                for across in (0..ACROSS).filter(|across| state.committed & bit(*across) != 0) {
                    let read = self.part(across, at).reads;
                    if across != usize::from(*later) && read & self.written(*later, at) != 0 {
                        before[across] |= bit(usize::from(*later));
                    }
                }
            }
        }
        for through in 0..before.len() {
            for from in 0..before.len() {
                if before[from] & bit(through) != 0 {
                    before[from] |= before[through];
                }
            }
        }
        let circle = (0..before.len()).any(|t| before[t] & bit(t) != 0);
        if circle { Err("a circle") } else { Ok(()) }
    }

    fn written(&self, writer: u8, at: usize) -> Objects {
        match usize::from(writer) {
            across if across < ACROSS => self.part(across, at).writes,
            local => self.locals[local - ACROSS].map_or(0, |(_, part)| part.writes),
        }
    }

    /// Nobody is in doubt, and what is committed is done everywhere.
    pub(crate) fn is_settled(&self, state: &State) -> bool {
        let doubt = state.domains.iter().any(|d| d.prepared.iter().any(Option::is_some));
        let done = state.domains.iter().all(|domain| state.committed & !domain.done == 0);
        !doubt && done
    }
}

impl State {
    fn send(&mut self, message: Message, across: usize, attempt: u8) {
        self.sent |= 1 << place(message, across, attempt);
    }

    /// The next domain is gathered.
    fn gathered(&mut self, at: usize, across: usize) {
        if let Some(attempt) = &mut self.domains[at].attempts[across] {
            attempt.gathered += 1;
        }
    }

    fn end(&mut self, at: usize, across: usize) {
        self.domains[at].attempts[across] = None;
        self.domains[at].turn &= !bit(across);
    }

    /// The attempt is given up. Whom it had prepared is told: a message that may be lost.
    fn give_up(&mut self, at: usize, across: usize, attempt: Attempt) {
        self.end(at, across);
        self.send(Message::Release, across, attempt.number);
    }

    fn refuse(&mut self, at: usize, across: usize, logged: bool) {
        if logged {
            self.domains[at].outcomes[across] = Outcome::Aborted;
        } else {
            self.told[across] = Told::Aborted;
        }
    }
}

impl Domain {
    /// Whether what was read in the beginning still holds.
    fn holds(&self, reads: Objects) -> bool {
        (0..OBJECTS).all(|object| reads & bit(object) == 0 || self.last[object] == 0)
    }

    fn write(&mut self, writer: usize, writes: Objects) {
        if writes == 0 {
            return;
        }
        self.order[usize::from(self.stamps)] = writer as u8;
        self.stamps += 1;
        for object in (0..OBJECTS).filter(|object| writes & bit(*object) != 0) {
            self.last[object] = self.stamps;
        }
    }
}
