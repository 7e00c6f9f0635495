//! P2 as a cycle test: from what every client saw and wrote, and from nothing else, the direct
//! serialization graph is built and searched for a cycle.
//!
//! The history knows a transaction's reads by what was *seen* (values carry their writer), its
//! writes by what was asked for, the order of writes by their stamps, and real time by the order in
//! which clients began and were told. None of the system's code is used, and none of the oracle's:
//! the oracle asks whether a state at a stamp is the right one; this asks whether any order of all
//! transactions explains what they saw.
//!
//! Edges: *ww* by stamp for each item; additions and maxima commute, and so do creations in one
//! page's list, so there is none among those; *wr* from everyone who made what was seen; *rw* to
//! everyone who changed it next; real time from whoever was done (a strict transaction, or an
//! acknowledged commit) to every strict one that began later; and within one domain the order of a
//! session, whose floors promise it. A transaction that only read, in several domains, is labelled
//! as per-domain (decision 0002): it takes part in each domain's graph and not in that of all.
//!
//! Where there is no cycle, `sessions` asks for more: what everybody saw is the state of the stamp that
//! he was told, and no session goes back.

#[cfg(test)]
mod brute;
mod graph;
mod items;
mod sessions;
#[cfg(test)]
mod tests;

pub use items::{Effect, Item, State};

use graph::{Edge, Graph, Kind, NO_ITEM};
use items::{Chain, Chains};
use larder_core::commit::Write;
use larder_core::id::{DomainId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Transactions remembered. When there are more, all that ended are checked and forgotten: who sees
/// what they wrote is not understood from then on, and left out.
const TRANSACTIONS_MAX: usize = 1 << 16;
/// Transactions before the first check; each further one waits for twice as many, so that all
/// checks together cost little more than the last.
const FIRST_CHECK: usize = 256;

/// A moment in the order of all beginnings and endings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(u64);

/// A transaction, as its user knows it.
#[derive(Clone, Debug)]
pub struct Tx {
    /// Whose, for people.
    pub who: String,
    /// Its tag, if it writes.
    pub tag: Option<u64>,
    /// Its session.
    pub session: usize,
    /// Whether real time binds it.
    pub strict: bool,
    /// When it began.
    pub begun: Moment,
    /// When its user was told that it is done; none: not yet, or never.
    pub ended: Option<Moment>,
    /// What it did in each domain.
    pub parts: BTreeMap<DomainId, Part>,
}

/// What a transaction did in a domain.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its commit's stamp if it wrote; else the stamp its reads are said to hold at. Of a writer none
    /// if it is not known to be done.
    pub stamp: Option<Stamp>,
    /// What it saw that was not its own.
    pub reads: Vec<(Item, State)>,
    /// What it did to objects, by reference.
    pub effects: Vec<Effect>,
    /// What it asked to be written.
    pub writes: Vec<Write>,
}

/// Who looks for what no order explains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Judges {
    /// The cycle test.
    #[default]
    Ours,
    /// It, and a checker that others wrote.
    #[cfg(feature = "second-opinion")]
    Both,
    /// That one alone.
    #[cfg(feature = "second-opinion")]
    Theirs,
}

/// Everything that clients did.
#[derive(Debug)]
pub struct History {
    judges: Judges,
    /// What the other checker was asked about.
    #[cfg(feature = "second-opinion")]
    asked: super::second::Asked,
    txs: Vec<Tx>,
    tags: BTreeMap<u64, usize>,
    /// Restores of any domain.
    restores: u32,
    /// Whose sessions began anew, by the number they have since.
    sessions: BTreeMap<usize, usize>,
    /// The last number of a session.
    last_session: usize,
    moment: u64,
    /// Ended transactions at which the next check is due.
    due: usize,
    /// Something was forgotten.
    forgetful: bool,
}

impl Default for History {
    fn default() -> Self {
        Self {
            judges: Judges::Ours,
            #[cfg(feature = "second-opinion")]
            asked: super::second::Asked::default(),
            txs: Vec::new(),
            tags: BTreeMap::new(),
            restores: 0,
            sessions: BTreeMap::new(),
            last_session: 1 << 32,
            moment: 0,
            due: FIRST_CHECK,
            forgetful: false,
        }
    }
}

impl Moment {
    /// Its place in the order.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl Tx {
    pub(super) fn writes(&self) -> bool {
        self.parts.values().any(Part::writes)
    }

    /// Whether it is in the history: it is known to be done.
    pub(super) fn is_done(&self) -> bool {
        self.parts.values().all(|part| part.stamp.is_some())
    }

    pub(super) fn is_per_domain(&self) -> bool {
        self.parts.len() > 1 && !self.writes()
    }
}

impl Part {
    pub(super) fn writes(&self) -> bool {
        !self.writes.is_empty() || !self.effects.is_empty()
    }
}

impl History {
    /// A history that these look at.
    #[must_use]
    pub fn judged_by(judges: Judges) -> Self {
        Self { judges, ..Self::default() }
    }

    /// What the other checker was asked about in all.
    #[cfg(feature = "second-opinion")]
    #[must_use]
    pub fn asked(&self) -> super::second::Asked {
        self.asked
    }

    /// The next moment.
    pub fn now(&mut self) -> Moment {
        self.moment += 1;
        Moment(self.moment)
    }

    /// The number of a session as it is now.
    #[must_use]
    pub fn session(&self, place: usize) -> usize {
        self.sessions.get(&place).copied().unwrap_or(place)
    }

    /// A session ended, and another has its place.
    pub fn session_begins_anew(&mut self, place: usize) {
        self.last_session += 1;
        self.sessions.insert(place, self.last_session);
    }

    /// Times that domains were restored.
    #[must_use]
    pub fn restores(&self) -> u32 {
        self.restores
    }

    /// Adds a transaction: one that is done, or one that writes and has asked for its commit.
    pub fn add(&mut self, tx: Tx) {
        if let Some(tag) = tx.tag {
            self.tags.insert(tag, self.txs.len());
        }
        self.txs.push(tx);
    }

    /// A writer's user is told that it is done, in each domain as this stamp. Of others it is to be learned: what was learned
    /// before may be of a branch that is lost.
    pub fn committed(&mut self, tag: u64, stamps: &[(DomainId, Stamp)]) {
        let now = self.now();
        let Some(tx) = self.tags.get(&tag).map(|place| &mut self.txs[*place]) else {
            return;
        };
        tx.ended = Some(now);
        for (domain, part) in tx.parts.iter_mut().filter(|(_, part)| part.writes()) {
            let told = stamps.iter().find(|(of, _)| of == domain);
            part.stamp = told.map(|(_, stamp)| *stamp);
        }
    }

    /// Learns of writers whose users were told nothing (their node died, or their patience ended)
    /// whether they were done after all; of one that a domain had forgotten, what became of its part there.
    pub fn learn(&mut self, stamp_of: impl Fn(u64, DomainId) -> Option<Stamp>) {
        for tx in &mut self.txs {
            let Some(tag) = tx.tag else {
                continue;
            };
            for (domain, part) in tx.parts.iter_mut().filter(|(_, part)| part.writes()) {
                if tx.ended.is_none() || part.stamp.is_none() {
                    part.stamp = stamp_of(tag, *domain);
                }
            }
        }
    }

    /// A domain was restored from a copy: some writers are lost with all who saw them, and others
    /// come under the same stamps. What is left of writers is what they wrote, or may yet: one that
    /// is lost is done again when its node asks again.
    pub fn restored(&mut self, domain: DomainId) {
        self.restores += 1;
        self.txs.retain_mut(|tx| {
            let Some(part) = tx.parts.get_mut(&domain) else {
                return true;
            };
            part.reads.clear();
            tx.strict = false;
            tx.ended = None;
            tx.tag.is_some()
        });
        self.number_tags();
    }

    fn number_tags(&mut self) {
        let tags = self.txs.iter().zip(0..).filter_map(|(tx, place)| Some((tx.tag?, place)));
        self.tags = tags.collect();
    }

    /// Whether so much has happened since the last check that another is worth its time.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.txs.len() >= self.due
    }

    /// Looks for a cycle; says what it is. Panics are the caller's.
    pub fn check(&mut self) -> Result<(), String> {
        self.due = (2 * self.txs.len()).clamp(FIRST_CHECK, TRANSACTIONS_MAX);
        self.judge()?;
        if self.txs.len() >= TRANSACTIONS_MAX {
            self.txs.retain(|tx| !tx.is_done());
            self.forgetful = true;
            self.number_tags();
        }
        Ok(())
    }
}

impl History {
    #[cfg(not(feature = "second-opinion"))]
    fn judge(&mut self) -> Result<(), String> {
        let Judges::Ours = self.judges;
        self.judge_ourselves()
    }

    /// The cycle test alone.
    #[cfg(test)]
    fn search(&self) -> Result<(), String> {
        Checked::new(&self.txs, self.forgetful)?.search()
    }

    fn judge_ourselves(&self) -> Result<(), String> {
        let checked = Checked::new(&self.txs, self.forgetful)?;
        checked.search()?;
        checked.check_sessions()?;
        checked.check_states()
    }

    #[cfg(feature = "second-opinion")]
    fn judge(&mut self) -> Result<(), String> {
        if self.judges != Judges::Theirs {
            self.judge_ourselves()?;
        }
        if self.judges != Judges::Ours && !self.forgetful {
            let asked = super::second::ask(&self.txs)?;
            self.asked.transactions += asked.transactions;
            self.asked.left_out += asked.left_out;
        }
        Ok(())
    }
}

/// A read whose version was found.
struct Look {
    tx: u32,
    chain: u32,
    /// Versions of the item that had been made.
    seen: usize,
}

/// A history in which every read is understood.
struct Checked<'a> {
    txs: &'a [Tx],
    chains: Vec<(DomainId, Item, Chain)>,
    looks: Vec<Look>,
}

impl<'a> Checked<'a> {
    fn new(txs: &'a [Tx], forgetful: bool) -> Result<Self, String> {
        let mut order: Vec<(DomainId, Stamp, u32)> = Vec::new();
        for (number, tx) in (0..).zip(txs) {
            let parts = tx.parts.iter().filter(|(_, part)| part.writes());
            order.extend(parts.filter_map(|(domain, part)| Some((*domain, part.stamp?, number))));
        }
        order.sort_unstable();
        for pair in order.windows(2) {
            if (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1) {
                let (one, other) = (&txs[pair[0].2 as usize], &txs[pair[1].2 as usize]);
                return Err(format!(
                    "P2: {} and {} both are commit {} of {:?}",
                    one.who, other.who, pair[0].1, pair[0].0
                ));
            }
        }
        let mut chains = Chains::new(forgetful);
        for (domain, stamp, number) in order {
            let part = &txs[number as usize].parts[&domain];
            chains.write(domain, stamp, number, part);
        }
        let mut checked = Self { txs, chains: chains.finish(), looks: Vec::new() };
        checked.look(forgetful)?;
        Ok(checked)
    }

    /// Finds the version that each read saw.
    fn look(&mut self, forgetful: bool) -> Result<(), String> {
        for (number, tx) in (0..).zip(self.txs).filter(|(_, tx)| tx.is_done()) {
            for part in tx.parts.values() {
                // A writer's reads hold just before it.
                let stamp = part.stamp.unwrap_or_default();
                let at = if part.writes() { stamp.previous() } else { stamp };
                for (item, state) in &part.reads {
                    let place = self.chains.binary_search_by(|(_, other, _)| other.cmp(item));
                    let seen = match place {
                        Ok(chain) => self.chains[chain].2.find(state, at),
                        Err(_) => (*state == item.first_state()).then_some(0),
                    };
                    match (place, seen) {
                        (Ok(chain), Some(seen)) => {
                            self.looks.push(Look { tx: number, chain: chain as u32, seen });
                        }
                        (Err(_), Some(_)) => {}
                        (_, None) if forgetful => {}
                        (_, None) => {
                            return Err(format!(
                                "P2: {} saw {item} as {state:?}, which nobody committed",
                                self.name(number)
                            ));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn search(&self) -> Result<(), String> {
        let domains: BTreeSet<DomainId> =
            self.txs.iter().flat_map(|tx| tx.parts.keys().copied()).collect();
        for domain in &domains {
            self.search_in(Some(*domain))?;
        }
        if domains.len() > 1 {
            self.search_in(None)?;
        }
        Ok(())
    }

    /// Looks for a cycle in one domain, or in all of them together.
    fn search_in(&self, domain: Option<DomainId>) -> Result<(), String> {
        let mut graph = Graph::new(self.txs.len());
        let within = |other: DomainId| domain.is_none_or(|domain| domain == other);
        let takes_part = |tx: &Tx| {
            tx.is_done()
                && match domain {
                    Some(domain) => tx.parts.contains_key(&domain),
                    None => !tx.is_per_domain(),
                }
        };
        let mut places = Vec::with_capacity(self.chains.len());
        for (number, (home, _, chain)) in (0..).zip(&self.chains) {
            let place = within(*home).then(|| chain.enter(&mut graph, number));
            places.push(place);
        }
        for look in &self.looks {
            let Some(place) = &places[look.chain as usize] else {
                continue;
            };
            if takes_part(&self.txs[look.tx as usize]) {
                let chain = &self.chains[look.chain as usize].2;
                chain.enter_read(&mut graph, look.chain, place, look.tx, look.seen);
            }
        }
        let txs = || (0u32..).zip(self.txs).filter(|(_, tx)| takes_part(tx));
        let real_time = txs().map(|(number, tx)| Lived {
            number,
            begun: tx.strict.then_some(tx.begun),
            ended: tx.ended.filter(|_| tx.strict || tx.writes()),
        });
        enter_order(&mut graph, Kind::RealTime, real_time);
        if domain.is_some() {
            let mut sessions: BTreeMap<usize, Vec<Lived>> = BTreeMap::new();
            for (number, tx) in txs() {
                let lived = Lived { number, begun: Some(tx.begun), ended: tx.ended };
                sessions.entry(tx.session).or_default().push(lived);
            }
            for session in sessions.into_values().filter(|session| session.len() > 1) {
                enter_order(&mut graph, Kind::Session, session.into_iter());
            }
        }
        match graph.cycle() {
            Some(cycle) => Err(self.explain(domain, &cycle)),
            None => Ok(()),
        }
    }

    fn explain(&self, domain: Option<DomainId>, cycle: &[Edge]) -> String {
        let place = match domain {
            Some(domain) => format!("in {domain:?}"),
            None => "over all domains".into(),
        };
        let mut text = format!("P2: a cycle of {} transactions {place}:", cycle.len());
        for edge in cycle {
            let (one, other) = (self.name(edge.from), self.name(edge.to));
            let item = match edge.item {
                NO_ITEM => String::new(),
                chain => self.chains[chain as usize].1.to_string(),
            };
            let line = match edge.kind {
                Kind::Overwrites => format!("{one} wrote {item} before {other} did"),
                Kind::Sees => format!("{other} saw {item} with what {one} wrote"),
                Kind::Misses => format!("{one} saw {item} as it was before {other} changed it"),
                Kind::RealTime => format!("{one} was done before {other} began, which is strict"),
                Kind::Session => format!("{one} was done before {other} of its session began"),
            };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {line};");
        }
        text
    }

    fn name(&self, number: u32) -> String {
        let tx = &self.txs[number as usize];
        let mut text = format!("T{number} ({}", tx.who);
        for (domain, part) in &tx.parts {
            let stamp = part.stamp.unwrap_or_default();
            let how = if part.writes() { "commit" } else { "reads at" };
            let _ = write!(text, ", {how} {stamp} of {domain:?}");
        }
        text.push(')');
        text
    }
}

/// When a transaction must come after others, and others after it.
struct Lived {
    number: u32,
    begun: Option<Moment>,
    ended: Option<Moment>,
}

/// Enters the order of time: whoever ended comes before all that began later.
fn enter_order(graph: &mut Graph, kind: Kind, lived: impl Iterator<Item = Lived>) {
    let mut moments: Vec<(Moment, bool, u32)> = Vec::new();
    for Lived { number, begun, ended } in lived {
        moments.extend(begun.map(|begun| (begun, false, number)));
        moments.extend(ended.map(|ended| (ended, true, number)));
    }
    moments.sort_unstable();
    let mut last = None;
    for (_, is_end, number) in moments {
        if is_end {
            let node = graph.add_node();
            graph.enter(number, node, kind, NO_ITEM);
            if let Some(last) = last {
                graph.enter(last, node, kind, NO_ITEM);
            }
            last = Some(node);
        } else if let Some(last) = last {
            graph.enter(last, number, kind, NO_ITEM);
        }
    }
}
