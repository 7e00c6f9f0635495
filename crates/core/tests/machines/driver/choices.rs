//! Bytes as a sequence of choices.

use bytes::Bytes;
use larder_core::commit::{
    Abort, Across, Aspect, Change, IdRange, Op, Outcome, PageChange, PageKind, PartId, Read,
    Target, Write,
};
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, PageId, PageNo, Slot, Stamp, VolumeId,
};
use larder_core::message::{CloseReason, Epoch, RequestError, Versions};
use larder_core::page::{Page, Record};
use larder_core::rights::{RIGHTS_MAX, Right, Rights};
use std::collections::{BTreeMap, BTreeSet};

/// The volume that is there.
pub(super) const VOLUME: VolumeId = VolumeId(7);
/// Bytes of its pages.
pub(super) const PAGE_BYTES: u32 = 4096;
/// The domain that holds it.
pub(super) const DOMAIN: DomainId = DomainId(1);
/// Another one, and its volume.
pub(super) const OTHER: DomainId = DomainId(2);
pub(super) const OTHER_VOLUME: VolumeId = VolumeId(8);

/// The volume of a domain.
pub(super) fn volume_of(domain: DomainId) -> VolumeId {
    if domain == OTHER { OTHER_VOLUME } else { VOLUME }
}

/// What a liar takes for true, so that its lies are near the truth.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    /// The domain's line of histories.
    pub(super) line: Vec<Epoch>,
    /// Where its stream is.
    pub(super) through: u64,
    /// The next request's number.
    pub(super) request: u64,
    /// The next commit's number.
    pub(super) sequence: u64,
    /// A part of a transaction of which another one was said.
    pub(super) other: Option<(PartId, Box<Across>)>,
    /// Where the other domain's stream is.
    pub(super) other_through: u64,
}

impl Hints {
    pub(super) fn new(through: u64) -> Self {
        let line = vec![Epoch { history: HistoryId(1), first: Stamp(1) }];
        Self { line, through, request: 1, sequence: 1, other: None, other_through: through }
    }

    pub(super) fn through_of(&self, domain: DomainId) -> u64 {
        if domain == OTHER { self.other_through } else { self.through }
    }

    pub(super) fn history(&self) -> HistoryId {
        self.line.last().map_or(HistoryId(1), |epoch| epoch.history)
    }
}

/// The input, read from its beginning; at its end every choice is the first one.
pub(crate) struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn over(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `bound`, which is at most 256.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// True in about one of `many` cases.
    pub(super) fn rarely(&mut self, many: usize) -> bool {
        self.below(many) == many - 1
    }

    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.below(of.len())].clone()) }
    }

    /// Near `truth`, or far from it.
    pub(super) fn near(&mut self, truth: u64) -> u64 {
        match self.below(16) {
            0..=8 => truth,
            9 | 10 => truth.saturating_add(1),
            11 => truth.saturating_sub(1),
            12 => self.below(8) as u64,
            13 => truth.saturating_add(self.below(200) as u64),
            14 => truth.saturating_sub(self.below(20) as u64),
            _ => [0, 1, u64::MAX, u64::MAX - 1, 1 << 48, 1 << 63][self.below(6)],
        }
    }

    pub(super) fn stamp(&mut self, truth: u64) -> Stamp {
        Stamp(self.near(truth))
    }

    pub(super) fn domain(&mut self) -> DomainId {
        match self.below(12) {
            0..=8 => DOMAIN,
            9 | 10 => OTHER,
            _ => DomainId(99),
        }
    }

    pub(super) fn volume(&mut self) -> VolumeId {
        match self.below(16) {
            0..=13 => VOLUME,
            14 => OTHER_VOLUME,
            _ => VolumeId(u128::MAX),
        }
    }

    pub(super) fn page(&mut self) -> PageId {
        let volume = self.volume();
        let number = match self.below(16) {
            0..=11 => 1 + self.below(6) as u64,
            12 | 13 => 10 + self.below(40) as u64,
            14 => u64::from(self.byte()).max(1),
            _ => PageNo::LIMIT - 1 - self.below(2) as u64,
        };
        PageId { volume, page: PageNo(number) }
    }

    pub(super) fn pages(&mut self) -> Vec<PageId> {
        let count = self.below(5);
        (0..count).map(|_| self.page()).collect()
    }

    /// Ascending, without repeats.
    pub(super) fn page_set(&mut self) -> Vec<PageId> {
        self.pages().into_iter().collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn boot(&mut self, own: BootId) -> BootId {
        match self.below(8) {
            0..=4 => own,
            _ => BootId(1 + self.below(6) as u128),
        }
    }

    pub(super) fn name(&mut self) -> String {
        let names = ["alice/a", "alice/b", "bob/a", "relay", "alice", "", "eve/x", "a b"];
        names[self.below(names.len())].into()
    }

    /// Who may do what.
    pub(super) fn rights(&mut self) -> Rights {
        let mut entries = Vec::new();
        for who in ["*", "alice", "a*", "relay", "bob"] {
            if self.rarely(2) {
                entries.push((who.to_owned(), Right::ALL[self.below(4)]));
            }
        }
        Rights::new(entries, RIGHTS_MAX).expect("few, and patterns")
    }

    pub(super) fn history(&mut self, truth: HistoryId) -> HistoryId {
        match self.below(8) {
            0..=5 => truth,
            _ => HistoryId(self.below(4) as u128),
        }
    }

    pub(super) fn line(&mut self, truth: &[Epoch]) -> Vec<Epoch> {
        let mut line = truth.to_vec();
        match self.below(12) {
            0..=7 => {}
            8 => line.clear(),
            9 => line.truncate(1),
            _ => {
                let first =
                    self.stamp(line.last().map_or(1, |epoch| epoch.first.0.saturating_add(1)));
                line.push(Epoch { history: HistoryId(1 + self.below(4) as u128), first });
            }
        }
        line
    }

    fn target(&mut self) -> Target {
        if self.rarely(6) { Target::Page } else { Target::Slot(self.slot()) }
    }

    fn slot(&mut self) -> Slot {
        if self.rarely(12) { Slot(u16::MAX) } else { Slot(self.below(4) as u16) }
    }

    fn touched(&mut self) -> (Target, Aspect) {
        let aspect = if self.rarely(3) { Aspect::Existence } else { Aspect::Value };
        (self.target(), aspect)
    }

    fn generation(&mut self) -> Generation {
        match self.below(8) {
            0..=4 => Generation(1),
            5 => Generation(2),
            6 => Generation(0),
            _ => Generation(u32::MAX),
        }
    }

    pub(super) fn reads(&mut self) -> Vec<Read> {
        let count = self.below(5);
        let mut read = || {
            let page = self.page();
            let (target, aspect) = self.touched();
            Read { page, target, aspect }
        };
        let reads: BTreeSet<Read> = (0..count).map(|_| read()).collect();
        reads.into_iter().collect()
    }

    /// Mostly of the pages of one volume.
    pub(super) fn reads_in(&mut self, volume: VolumeId) -> Vec<Read> {
        let mut reads = self.reads();
        if !self.rarely(12) {
            reads.iter_mut().for_each(|read| read.page.volume = volume);
        }
        reads.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Bytes of a record: mostly of a value.
    fn value(&mut self) -> Bytes {
        let length = match self.below(8) {
            0..=5 => self.below(40),
            6 => 1000,
            _ => 5000,
        };
        let value = Bytes::from(vec![self.byte(); length]);
        if self.rarely(8) { value } else { Record::Inline(value).encode() }
    }

    pub(super) fn op(&mut self) -> Op {
        let (slot, generation) = (self.slot(), self.generation());
        match self.below(12) {
            0 => Op::CreatePage(PageKind::Slotted),
            1 => Op::CreatePage(PageKind::Raw),
            2 => Op::DeletePage,
            3..=6 => Op::Put { slot, generation, value: self.value() },
            7 => Op::Delete { slot, generation },
            8 => Op::Add { slot, generation, offset: self.byte().into(), delta: -1 },
            9 => Op::Max { slot, generation, offset: u32::MAX, value: self.near(3) },
            10 if self.rarely(4) => Op::RestorePage { image: self.value() },
            10 => Op::WriteRaw { offset: self.near(0) as u32, bytes: self.value() },
            _ => Op::TruncateRaw { length: self.near(100) as u32 },
        }
    }

    pub(super) fn writes(&mut self) -> Vec<Write> {
        let count = self.below(4);
        (0..count).map(|_| Write { page: self.page(), op: self.op() }).collect()
    }

    /// One that every page of a volume takes as it was recovered.
    pub(super) fn fitting(&mut self, volume: VolumeId) -> Write {
        let page = PageId { volume, page: PageNo(1 + self.below(4) as u64) };
        let value = Record::Inline(Bytes::from(vec![self.byte(); 12])).encode();
        Write {
            page,
            op: Op::Put { slot: Slot(self.below(2) as u16), generation: Generation(1), value },
        }
    }

    /// Mostly of the pages of one volume.
    pub(super) fn writes_in(&mut self, volume: VolumeId) -> Vec<Write> {
        let mut writes = self.writes();
        if !self.rarely(12) {
            writes.iter_mut().for_each(|write| write.page.volume = volume);
        }
        writes
    }

    pub(super) fn commit_id(&mut self, own: BootId, next: u64) -> CommitId {
        CommitId { boot: self.boot(own), sequence: self.near(next) }
    }

    /// Changes in (from, through], or near.
    pub(super) fn changes(&mut self, from: u64, through: u64, own: BootId) -> Vec<Change> {
        let count = self.below(4);
        let mut changes = BTreeMap::new();
        for place in 0..count as u64 {
            let stamp = self.stamp(from.saturating_add(1 + place).min(through)).max(Stamp(1));
            let id = self.commit_id(own, 1);
            let mut pages = Vec::new();
            for page in self.page_set() {
                let many = 1 + self.below(3);
                let touched = (0..many).map(|_| self.touched()).collect();
                pages.push(PageChange::named(page, touched));
            }
            changes.insert(stamp, Change { stamp, id, pages });
        }
        changes.into_values().collect()
    }

    pub(super) fn outcome(&mut self, through: u64) -> Outcome {
        match self.below(6) {
            0..=2 => Outcome::Committed(self.stamp(through.saturating_add(1))),
            3 => Outcome::Unknown,
            4 => Outcome::Aborted(Abort::History),
            _ => Outcome::Aborted(Abort::StaleNumber(self.page())),
        }
    }

    pub(super) fn error(&mut self) -> RequestError {
        match self.below(8) {
            0 => RequestError::NoDomain(self.domain()),
            1 => RequestError::NoVolume("v".into()),
            2 => RequestError::Damaged { page: self.page(), detail: "rot".into() },
            3 => RequestError::Unavailable("gone".into()),
            4 => RequestError::Busy("much to do".into()),
            5 => RequestError::Full("no room".into()),
            6 => RequestError::TimedOut,
            _ => RequestError::Invalid("no".into()),
        }
    }

    pub(super) fn reason(&mut self) -> CloseReason {
        match self.below(5) {
            0 => CloseReason::Shutdown,
            1 => CloseReason::Identity("alice".into()),
            2 => {
                let (seen, fork) = (self.stamp(3), self.stamp(2));
                CloseReason::Forked { domain: self.domain(), seen, fork }
            }
            3 => CloseReason::Version {
                parent: Versions { oldest: 9, newest: 9 },
                child: Versions::SPOKEN,
            },
            _ => CloseReason::OutOfService("nothing is here".into()),
        }
    }

    pub(super) fn range(&mut self, volume: VolumeId, first: u64, count: u64) -> IdRange {
        // The decoder holds it below the limit.
        let first = self.near(first).clamp(1, PageNo::LIMIT - 1);
        let count = self.near(count).min(PageNo::LIMIT - first);
        IdRange { volume, first: PageNo(first), count }
    }

    /// The image of a page, or bytes that are none.
    pub(super) fn image(&mut self, page: PageId) -> Bytes {
        let kind = if self.rarely(6) { PageKind::Raw } else { PageKind::Slotted };
        let mut content = Page::empty(kind);
        for _ in 0..self.below(4) {
            // One that makes no sense for the page leaves it as it was.
            let _ = content.apply(&self.op(), PAGE_BYTES);
        }
        match self.below(12) {
            0..=9 => content.encode(page),
            10 => content.encode(self.page()),
            _ => Bytes::from_static(&[0; 64]),
        }
    }
}
