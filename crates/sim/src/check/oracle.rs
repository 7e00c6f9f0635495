//! The oracle: what every domain's log holds, what every transaction meant to do, and what came of
//! it. Told of each append, sync, restart, answer; panics when a promise is broken.

mod alike;

use super::history::Branch;
use super::seen::Seen;
use crate::agenda::Time;
use crate::net::Proc;
use larder_core::across::OriginMessage;
use larder_core::cache::CommitPart;
use larder_core::commit::{CommitRequest, IdRange, Op, Outcome, Read, Write};
use larder_core::id::{CommitId, DomainId, HistoryId, PageId, PageNo, Stamp, VolumeId};
use larder_core::message::{EPOCHS_MAX, Message};
use larder_core::record::LogRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Truth about all domains of the origin.
#[derive(Debug, Default)]
pub struct Oracle {
    domains: BTreeMap<DomainId, Truth>,
    intents: Vec<Intent>,
    /// Tags of the parts of transactions over several domains.
    wholes: Vec<Vec<u64>>,
    /// Their refusals that were logged, where they are decided.
    refused_wholes: BTreeSet<(DomainId, CommitId)>,
    /// Transactions that asked for a commit which was not sent yet, by node and domain.
    asked: BTreeMap<(Proc, DomainId), Vec<u64>>,
    ids: BTreeMap<(DomainId, CommitId), u64>,
    /// Page numbers that came to a node, and the branch in which they were given.
    numbers: BTreeMap<(Proc, PageId), usize>,
    /// A volume in which numbers that came to one node are used by others, who read of them.
    shared: Option<VolumeId>,
}

/// Truth about a domain.
#[derive(Debug)]
pub struct Truth {
    branches: Vec<Branch>,
    /// Where each branch left the one before.
    forks: Vec<Stamp>,
    /// When the origin knew which stamp to be durable, ascending; as far back as anybody asks.
    known: VecDeque<(Time, Stamp)>,
    histories: BTreeMap<HistoryId, usize>,
    /// What it had recovered when it began its history.
    begun: Stamp,
    /// The history that the last append began, until its end is known.
    beginning: Option<HistoryId>,
    /// The highest stamp that a strict transaction or a commit was answered with: what ends later
    /// must not be ordered before it.
    answered: Stamp,
    /// The store failed: nothing more may be logged or shown until the origin starts again.
    failed: bool,
    /// The origin was started from an old copy: the next epoch begins another branch.
    restored: bool,
    /// An append was taken back: until the origin starts again it may see conflicts with it.
    taken_back: bool,
    /// Commits whose refusal was logged meanwhile: it is told after a start as well (seed 19671562694059).
    refused: BTreeSet<CommitId>,
    /// One past the last page number given to anybody, by volume.
    ids_given: BTreeMap<VolumeId, u64>,
    /// The branch in which a page number was last given to anybody.
    numbers: BTreeMap<PageId, usize>,
    volumes: BTreeSet<VolumeId>,
}

/// What a writing transaction meant to do. Its tag (number + 1) is in one of its writes.
#[derive(Debug)]
pub struct Intent {
    /// Whose, for reports.
    pub who: String,
    /// Its node.
    pub node: Proc,
    /// The id under which it was sent.
    pub id: Option<CommitId>,
    /// In which domain.
    pub domain: DomainId,
    /// What it saw.
    pub seen: Vec<Seen>,
    /// The history in which it asked to be validated: the same stamp is another state in another.
    pub history: HistoryId,
    /// The stamp at which it asked to be validated, and the reads it named.
    pub base: Stamp,
    /// See `base`.
    pub reads: Vec<Read>,
    /// What it asked to be written, in order; empty until it asked.
    pub writes: Vec<Write>,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing known.
    Open,
    /// It is in the log.
    Logged(Stamp),
    /// Its user was told that it is done.
    Acknowledged(Stamp),
    /// Its user was told that nothing was done.
    Aborted,
    /// It was done, acknowledged perhaps, and lost with an old copy of the origin.
    Lost,
}

/// Values, additions and maxima carry the tag of their transaction in their lowest bits, so that
/// no two transactions of a run write the same.
pub const TAG_BITS: u32 = 24;
/// How many times of a domain are remembered for checks of age.
const KNOWN_MAX: usize = 4_096;

impl Oracle {
    /// Makes a domain known. Unless `replays`, what clients saw is not compared with its states.
    pub fn add_domain(&mut self, domain: DomainId, replays: bool) {
        let branch = if replays { Branch::default() } else { Branch::silent() };
        let truth = Truth {
            branches: vec![branch],
            forks: vec![Stamp::ZERO],
            known: VecDeque::new(),
            histories: BTreeMap::new(),
            begun: Stamp::ZERO,
            beginning: None,
            answered: Stamp::ZERO,
            failed: false,
            restored: false,
            taken_back: false,
            refused: BTreeSet::new(),
            ids_given: BTreeMap::new(),
            numbers: BTreeMap::new(),
            volumes: BTreeSet::new(),
        };
        self.domains.insert(domain, truth);
    }

    /// Nodes of this volume tell each other numbers of pages to be made, by what they commit.
    pub fn shares_numbers(&mut self, volume: VolumeId) {
        self.shared = Some(volume);
    }

    /// A domain's truth.
    #[must_use]
    pub fn truth(&self, domain: DomainId) -> &Truth {
        &self.domains[&domain]
    }

    fn truth_mut(&mut self, domain: DomainId) -> &mut Truth {
        self.domains.get_mut(&domain).expect("domains are added at the start")
    }

    /// All domains.
    pub fn domains(&self) -> impl Iterator<Item = DomainId> + '_ {
        self.domains.keys().copied()
    }

    /// Draws the tag of a new writing transaction.
    pub fn begin(&mut self, who: String, domain: DomainId, node: Proc) -> u64 {
        self.intents.push(Intent {
            who,
            domain,
            node,
            id: None,
            seen: Vec::new(),
            history: HistoryId(0),
            base: Stamp::ZERO,
            reads: Vec::new(),
            writes: Vec::new(),
            fate: Fate::Open,
        });
        let tag = self.intents.len() as u64;
        assert!(tag < 1 << TAG_BITS, "more transactions than tags");
        tag
    }

    /// A transaction is over several domains: gives the tags of its parts beside the deciding one, whose is its
    /// own.
    pub fn divides(&mut self, tag: u64, others: &[DomainId]) -> Vec<u64> {
        let (who, node) = {
            let intent = self.intent(tag);
            (intent.who.clone(), intent.node)
        };
        let tags: Vec<u64> =
            others.iter().map(|domain| self.begin(who.clone(), *domain, node)).collect();
        self.wholes.push([&[tag], &tags[..]].concat());
        tags
    }

    /// A transaction over several domains is done in all of them, or in none (P1, P2). Said at rest, when nothing
    /// is in doubt; of domains that were restored nothing is said.
    pub fn check_wholes(&self) {
        for tags in &self.wholes {
            let parts = || tags.iter().map(|tag| self.intent(*tag));
            if parts().any(|part| self.truth(part.domain).branches.len() > 1) {
                continue;
            }
            let done = |part: &Intent| matches!(part.fate, Fate::Logged(_) | Fate::Acknowledged(_));
            let count = parts().filter(|part| done(part)).count();
            assert!(
                count == 0 || count == tags.len(),
                "P2: a transaction over several domains is done in some of them: {:?}",
                parts().collect::<Vec<_>>()
            );
        }
    }

    /// The transaction is about to ask for its commit.
    pub fn asks(&mut self, tag: u64, seen: Vec<Seen>, part: &CommitPart) {
        let intent = &mut self.intents[tag as usize - 1];
        intent.seen = seen;
        intent.domain = part.domain;
        intent.history = part.history;
        intent.base = part.checked;
        intent.reads = part.reads.clone();
        intent.writes = part.writes.clone();
        self.asked.entry((intent.node, intent.domain)).or_default().push(tag);
    }

    /// A node's machine sends a commit: the first time its id becomes known.
    pub fn sent_by_node(&mut self, node: Proc, domain: DomainId, commit: &CommitRequest) {
        if commit.writes.is_empty() && commit.across.is_none() {
            return;
        }
        if let Some(tag) = self.ids.get(&(domain, commit.id)) {
            let intent = self.intent(*tag);
            // Of the part that decides it may be asked what became of it, and nothing may be done for that.
            let decides = commit.across.as_ref().is_some_and(|of| !of.is_beside(domain));
            let asks = decides && commit.history == HistoryId::default();
            assert!(
                intent.writes == commit.writes
                    || asks && commit.writes.is_empty() && commit.reads.is_empty(),
                "P11: {:?} is sent as another: {intent:?}",
                commit.id
            );
            return;
        }
        let tag = self.who_asked(node, domain, commit);
        self.intents[tag as usize - 1].id = Some(commit.id);
        self.ids.insert((domain, commit.id), tag);
    }

    /// What a transaction meant and what became of it.
    #[must_use]
    pub fn intent(&self, tag: u64) -> &Intent {
        &self.intents[tag as usize - 1]
    }

    /// Whether the refusal of a transaction over several domains was logged by the one that decides it.
    #[must_use]
    pub fn has_refused_whole(&self, tag: u64) -> bool {
        let intent = self.intent(tag);
        intent.id.is_some_and(|id| self.refused_wholes.contains(&(intent.domain, id)))
    }

    /// What became of a transaction in a domain: of one over several, of its part there.
    #[must_use]
    pub fn fate(&self, tag: u64, domain: DomainId) -> Fate {
        let whole = self.wholes.iter().find(|tags| tags[0] == tag);
        let parts = whole.map_or(&[][..], |tags| tags);
        let of = |tag: &&u64| self.intent(**tag).domain == domain;
        self.intent(parts.iter().find(of).copied().unwrap_or(tag)).fate
    }

    /// The origin appends a record.
    pub fn appended(&mut self, domain: DomainId, record: &LogRecord) {
        let truth = self.domains.get_mut(&domain).expect("domains are added at the start");
        assert!(!truth.failed, "P1: {domain:?} appends after its store failed");
        let branch = truth.branches.last_mut().expect("a domain has a branch");
        match record {
            LogRecord::Commit { stamp, id, writes, .. } => {
                let tag = self.ids.get(&(domain, *id)).copied();
                let tag = tag.unwrap_or_else(|| panic!("{id:?} was never sent: {writes:?}"));
                let part = self.wholes.iter().any(|tags| tags.contains(&tag));
                assert!(
                    !writes.is_empty() || part,
                    "commit {stamp} writes nothing and has a stamp"
                );
                let before = branch.last();
                branch.add_commit(*stamp, *id, Some(tag), writes);
                let intent = &mut self.intents[tag as usize - 1];
                intent.logged(branch, before, *stamp, *id, writes);
                let made = writes.iter().filter(|write| matches!(write.op, Op::CreatePage(_)));
                for page in made.map(|write| write.page) {
                    let (given, has) =
                        (truth.numbers.get(&page), self.numbers.get(&(intent.node, page)));
                    // Whoever got a number in a branch that is gone may have read of it in this one.
                    let read_of = self.shared == Some(page.volume);
                    assert!(
                        given == has || read_of,
                        "P12: {:?} makes {page} with a number that came to it in branch {has:?}; it \
                         was given in branch {given:?} since",
                        intent.node
                    );
                }
            }
            LogRecord::Aborted { id, .. } => {
                let tag = self.ids.get(&(domain, *id));
                if tag.is_some_and(|tag| self.wholes.iter().any(|tags| tags[0] == *tag)) {
                    self.refused_wholes.insert((domain, *id));
                }
                if truth.taken_back {
                    truth.refused.insert(*id);
                }
            }
            LogRecord::Volume { stamp, volume } => {
                let page = PageNo(1);
                truth.volumes.insert(volume.id);
                branch.add_volume(*stamp, PageId { volume: volume.id, page });
            }
            LogRecord::Deleted { stamp, volume } => branch.add_deletion(*stamp, *volume),
            LogRecord::Epoch { epoch } => {
                let recovered = epoch.first.previous();
                assert!(
                    branch.durable() <= recovered && recovered <= branch.last(),
                    "P1: {domain:?} recovered up to {recovered}; durable was {}, logged {}",
                    branch.durable(),
                    branch.last()
                );
                let lost = branch.truncate(recovered);
                branch.set_durable(recovered);
                truth.begun = recovered;
                let number = truth.branches.len() - 1;
                truth.beginning = Some(epoch.history);
                let known = truth.histories.insert(epoch.history, number);
                assert!(known.is_none(), "P12: history {:?} begins twice", epoch.history);
                let restored = std::mem::take(&mut truth.restored);
                if restored {
                    truth.forks[number] = recovered;
                }
                self.forget(&lost, restored);
            }
            LogRecord::Ids { .. }
            | LogRecord::Settings { .. }
            | LogRecord::Prepared { .. }
            | LogRecord::Released { .. }
            | LogRecord::Boot { .. }
            | LogRecord::Confirmed { .. } => {}
        }
    }

    fn forget(&mut self, tags: &[u64], restored: bool) {
        for tag in tags {
            let intent = &mut self.intents[*tag as usize - 1];
            intent.fate = match intent.fate {
                Fate::Logged(_) | Fate::Acknowledged(_) if restored => Fate::Lost,
                Fate::Logged(_) => Fate::Open,
                fate => panic!("P1: {fate:?} and lost: {intent:?}"),
            };
        }
    }

    /// Everything appended so far to the domain's log is synced.
    pub fn synced(&mut self, domain: DomainId) {
        let truth = self.truth_mut(domain);
        let branch = truth.branches.last_mut().expect("a domain has a branch");
        branch.set_durable(branch.last());
        truth.beginning = None;
    }

    /// The origin has been told that everything synced is.
    pub fn told(&mut self, domain: DomainId, now: Time) {
        let truth = self.truth_mut(domain);
        let durable = truth.current().durable();
        if truth.known.len() == KNOWN_MAX {
            truth.known.pop_front();
        }
        truth.known.push_back((now, durable));
    }

    /// An append failed in a way that ends the domain's service.
    pub fn store_failed(&mut self, domain: DomainId) {
        self.truth_mut(domain).failed = true;
    }

    /// An append was refused before anything of it was written: its commits never were.
    pub fn refused(&mut self, domain: DomainId) {
        let truth = self.truth_mut(domain);
        let branch = truth.branches.last_mut().expect("a domain has a branch");
        let lost = branch.truncate(branch.durable());
        truth.taken_back = true;
        // The epoch of a start that found the disk full is logged again, until it is taken.
        if let Some(history) = truth.beginning.take() {
            truth.histories.remove(&history);
        }
        self.forget(&lost, false);
    }

    /// The origin's process starts again.
    pub fn restarted(&mut self, domain: DomainId) {
        self.truth_mut(domain).taken_back = false;
        self.truth_mut(domain).failed = false;
    }

    /// The origin's store was replaced by a copy that holds everything durable up to `stamp`.
    pub fn restored(&mut self, domain: DomainId, stamp: Stamp) {
        let truth = self.truth_mut(domain);
        let mut branch = truth.current().clone();
        let stamp = stamp.min(branch.durable());
        let lost = branch.truncate(stamp);
        truth.branches.push(branch);
        truth.forks.push(stamp);
        truth.known.clear();
        truth.restored = true;
        truth.answered = truth.answered.min(stamp);
        truth.ids_given.clear();
        self.forget(&lost, true);
    }

    /// The origin sends a message: it may show only what is durable (rule 14).
    pub fn sent_by_origin(&mut self, message: &Message) {
        if let Message::Ids { range, .. } = message {
            self.ids_given(range);
            return;
        }
        let check = |domain: DomainId, shown: Stamp, what: &str| {
            let truth = self.truth(domain);
            let durable = truth.current().durable();
            assert!(
                shown <= durable,
                "P1: {domain:?} shows {what} {shown} while {durable} is durable"
            );
            assert!(!truth.failed, "P1: {domain:?} shows {what} {shown} after its store failed");
        };
        match message {
            Message::Advance { domain, through, .. } => check(*domain, *through, "an advance to"),
            Message::Resumed { domain, through, .. } => check(*domain, *through, "a resume to"),
            Message::Origin(OriginMessage::Says { from, through, .. }) => {
                check(*from, *through, "another origin");
            }
            Message::Committed { domain, id, outcome: Outcome::Committed(stamp), .. } => {
                check(*domain, *stamp, "a commit as");
                self.truth(*domain).acknowledged(*id, *stamp);
            }
            Message::Pages { domain, pages, .. } => {
                for page in pages {
                    check(*domain, page.version.max(page.as_of), "a page of");
                }
            }
            Message::Copied { answer, .. } => {
                for page in &answer.pages {
                    let of_volume = |truth: &&Truth| truth.volumes.contains(&page.page.volume);
                    let truth = self.domains.values().find(of_volume);
                    let durable = truth.expect("a volume that is logged").current().durable();
                    assert!(
                        page.version.max(page.as_of) <= durable,
                        "P1: a copy shows {page:?} while {durable} is durable"
                    );
                }
            }
            _ => {}
        }
    }

    fn ids_given(&mut self, range: &IdRange) {
        let home = |truth: &&mut Truth| truth.volumes.contains(&range.volume);
        let truth = self.domains.values_mut().find(home).expect("ids of a volume that is logged");
        let given = truth.ids_given.entry(range.volume).or_default();
        assert!(
            *given <= range.first.0,
            "rule 18: {range:?} is given while all below {given} were given before"
        );
        *given = range.first.0 + range.count;
        let branch = truth.branches.len() - 1;
        truth.numbers.extend(pages_of(range).map(|page| (page, branch)));
    }

    /// Page numbers have come to a node: they were given in this history.
    pub fn numbers_came(&mut self, node: Proc, range: &IdRange, history: HistoryId) {
        let home = |truth: &&Truth| truth.volumes.contains(&range.volume);
        let truth = self.domains.values().find(home).expect("ids of a volume that is logged");
        let branch = truth.branch_number(history);
        self.numbers.extend(pages_of(range).map(|page| ((node, page), branch)));
    }

    /// A transaction's user is told how it ended.
    pub fn answered(&mut self, tag: u64, outcome: &Outcome) {
        self.tell_apart(tag, outcome);
        let intent = &mut self.intents[tag as usize - 1];
        let truth = self.domains.get_mut(&intent.domain).expect("domains are added at the start");
        match outcome {
            Outcome::Committed(stamp) => match intent.fate {
                Fate::Logged(logged) => {
                    assert!(
                        logged == *stamp && logged <= truth.current().durable(),
                        "P1: acknowledged as {stamp}: {intent:?}"
                    );
                    intent.fate = Fate::Acknowledged(*stamp);
                    truth.answered = truth.answered.max(*stamp);
                }
                // The acknowledgement was under way when the origin was restored.
                Fate::Lost => {}
                _ => panic!("P1: acknowledged as {stamp} and not in the log: {intent:?}"),
            },
            Outcome::Aborted(abort) => {
                assert!(
                    matches!(intent.fate, Fate::Open | Fate::Lost),
                    "P11: told that it aborted ({abort}): {intent:?}"
                );
                if intent.fate == Fate::Open {
                    intent.fate = Fate::Aborted;
                }
            }
            Outcome::Unknown => {}
        }
    }

    /// A strict transaction that wrote nothing was validated as of `stamp`.
    pub fn answered_strict(&mut self, domain: DomainId, stamp: Stamp) {
        let truth = self.truth_mut(domain);
        truth.answered = truth.answered.max(stamp);
    }
}

/// The pages of a range of numbers.
fn pages_of(range: &IdRange) -> impl Iterator<Item = PageId> {
    let volume = range.volume;
    let numbers = range.first.0..range.first.0 + range.count;
    numbers.map(move |page| PageId { volume, page: PageNo(page) })
}

impl Truth {
    /// The branch that the origin is on.
    #[must_use]
    pub fn current(&self) -> &Branch {
        self.branches.last().expect("a domain has a branch")
    }

    /// From which base on the origin knows what changed by object: not beyond its start, nor beyond what a table of so
    /// many entries holds, of which so many writes may have some that are not durable yet.
    #[must_use]
    pub fn known_from(&self, base: Stamp, under_way: usize, recent_writes_max: usize) -> Stamp {
        // What was taken back counts as changed with what was durable then.
        let touched = self.current().touched_since(base) + under_way;
        let known = 2 * touched < recent_writes_max && !self.taken_back;
        if known { self.begun } else { Stamp(u64::MAX) }
    }

    /// The number of a history's branch. Panics when the domain never had that history.
    #[must_use]
    pub fn branch_number(&self, history: HistoryId) -> usize {
        let number = self.histories.get(&history);
        *number.unwrap_or_else(|| panic!("P12: the domain never had the history {history:?}"))
    }

    /// A branch by its number.
    #[must_use]
    pub fn branch_at(&self, number: usize) -> &Branch {
        &self.branches[number]
    }

    /// The last branch that has the commit, as `stamp`.
    #[must_use]
    pub fn branch_of(&self, id: CommitId, stamp: Stamp) -> Option<usize> {
        self.branches.iter().rposition(|branch| branch.stamp_of(id) == Some(stamp))
    }

    /// The last branch that has the commit, and its stamp there.
    #[must_use]
    pub fn last_of(&self, id: CommitId) -> Option<(usize, Stamp)> {
        let branches = self.branches.iter().enumerate().rev();
        branches.filter_map(|(number, branch)| Some((number, branch.stamp_of(id)?))).next()
    }

    /// The last stamp that two branches have in common.
    #[must_use]
    pub fn common(&self, one: usize, other: usize) -> Stamp {
        let between = one.min(other) + 1..=one.max(other);
        self.forks[between].iter().copied().min().unwrap_or(Stamp(u64::MAX))
    }

    /// How many branches there were.
    #[must_use]
    pub fn branch_count(&self) -> usize {
        self.branches.len()
    }

    /// Every page that ever was, in any branch.
    #[must_use]
    pub fn pages(&self) -> Vec<PageId> {
        let pages: BTreeSet<PageId> = self.branches.iter().flat_map(Branch::pages).collect();
        pages.into_iter().collect()
    }

    /// The stamp that the origin knew at `time` to be durable.
    #[must_use]
    pub fn known_at(&self, time: Time) -> Stamp {
        let after = self.known.partition_point(|(known, _)| *known <= time);
        after.checked_sub(1).map_or(Stamp::ZERO, |last| self.known[last].1)
    }

    /// When the origin first knew a stamp to be durable; none: that is not remembered.
    #[must_use]
    pub fn known_since(&self, stamp: Stamp) -> Option<Time> {
        let before = self.known.partition_point(|(_, durable)| *durable < stamp);
        self.known.get(before).filter(|_| before > 0).map(|(time, _)| *time)
    }

    /// What a strict transaction that begins now must not be ordered before.
    #[must_use]
    pub fn real_time_floor(&self) -> Stamp {
        self.answered
    }

    /// Whether the store failed and the origin did not start since.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether a child may find nothing in common: the origin was restored, or has had more
    /// histories since than it tells its children.
    #[must_use]
    pub fn may_lose_line(&self) -> bool {
        self.branches.len() > 1 || self.may_forget_line()
    }

    /// Whether there were more histories than the origin tells its children.
    #[must_use]
    pub fn may_forget_line(&self) -> bool {
        self.histories.len() > EPOCHS_MAX
    }

    /// Whether the origin took something back since it started.
    #[must_use]
    pub fn has_taken_back(&self) -> bool {
        self.taken_back
    }

    /// Whether a refusal of a commit was logged since something was taken back.
    #[must_use]
    pub fn has_refused(&self, id: CommitId) -> bool {
        self.refused.contains(&id)
    }

    fn acknowledged(&self, id: CommitId, stamp: Stamp) {
        // A validation without writes is answered with the stamp that it holds at.
        if let Some(logged) = self.current().stamp_of(id) {
            assert!(logged == stamp, "P11: {id:?} is commit {logged}, acknowledged as {stamp}");
        }
    }
}

impl Intent {
    fn logged(
        &mut self,
        branch: &Branch,
        before: Stamp,
        stamp: Stamp,
        id: CommitId,
        writes: &[Write],
    ) {
        assert!(
            matches!(self.fate, Fate::Open | Fate::Lost),
            "P11: executed as commit {stamp} ({id:?}), and before: {self:?}"
        );
        assert!(writes == self.writes, "commit {stamp} writes {writes:?}, asked was {self:?}");
        for seen in &self.seen {
            seen.assert_at(branch, before, "P2 (a writing transaction)", &self.who);
        }
        self.fate = Fate::Logged(stamp);
    }
}
