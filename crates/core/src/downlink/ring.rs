//! The ring of recent commits: kept once per domain, whatever the number of links.

use crate::commit::{Change, PageChange};
use crate::id::{PageId, Stamp};
use std::collections::VecDeque;

/// What one stamp did, as far as known here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Recent {
    /// In detail.
    Change(Change),
    /// Only which pages changed up to this stamp (a relay, after its own resume), ascending.
    Stale(Stamp, Vec<PageId>),
}

impl Recent {
    pub(crate) fn stamp(&self) -> Stamp {
        match self {
            Self::Change(change) => change.stamp,
            Self::Stale(stamp, _) => *stamp,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Change(change) => change_bytes(change),
            Self::Stale(_, pages) => 64 + pages.len() * size_of::<PageId>(),
        }
    }
}

/// Memory that a change takes, about.
pub(crate) fn change_bytes(change: &Change) -> usize {
    96 + change.pages.iter().map(page_change_bytes).sum::<usize>()
}

/// Memory that a page's part of a change takes, about.
pub(crate) fn page_change_bytes(page: &PageChange) -> usize {
    size_of::<PageChange>() + page.touched.len() * 4
}

/// Recent commits in (`tail`, `head`], ascending.
#[derive(Debug)]
pub(crate) struct Ring {
    recent: VecDeque<Recent>,
    tail: Stamp,
    head: Stamp,
    bytes: usize,
    bytes_max: usize,
    commits_max: usize,
}

impl Ring {
    /// Empty: nothing at or before `head` is known.
    pub(crate) fn new(head: Stamp, bytes_max: usize, commits_max: usize) -> Self {
        Self { recent: VecDeque::new(), tail: head, head, bytes: 0, bytes_max, commits_max }
    }

    /// Everything up to this stamp has been forgotten.
    pub(crate) fn tail(&self) -> Stamp {
        self.tail
    }

    /// Everything up to this stamp is known.
    pub(crate) fn head(&self) -> Stamp {
        self.head
    }

    /// Memory that what is kept takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a commit, later than all before; forgets the oldest beyond the bounds.
    pub(crate) fn push(&mut self, recent: Recent) {
        let stamp = recent.stamp();
        // At a relay one advance may tell a stamp in detail and by name: both before any cursor
        // is moved there.
        assert!(stamp >= self.head && stamp > self.tail, "the ring takes stamps in order");
        self.head = stamp;
        self.bytes += recent.bytes();
        self.recent.push_back(recent);
        while self.bytes > self.bytes_max || self.recent.len() > self.commits_max {
            let Some(oldest) = self.recent.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
            self.tail = oldest.stamp();
            while self.recent.front().is_some_and(|next| next.stamp() == self.tail) {
                let same = self.recent.pop_front().expect("just seen");
                self.bytes -= same.bytes();
            }
        }
    }

    /// These pages may have changed up to the head without a word.
    pub(crate) fn name_again(&mut self, pages: Vec<PageId>) {
        if self.head > self.tail {
            self.push(Recent::Stale(self.head, pages));
        }
    }

    /// Everything up to `head` is known now, nothing more having happened.
    pub(crate) fn raise(&mut self, head: Stamp) {
        assert!(head >= self.head, "the ring's head does not fall");
        self.head = head;
    }

    /// Forgets everything: `head` is the new begin.
    pub(crate) fn reset(&mut self, head: Stamp) {
        self.recent.clear();
        self.bytes = 0;
        self.tail = head;
        self.head = head;
    }

    /// Those after `stamp`, ascending. `stamp` must not be before the tail.
    pub(crate) fn after(&self, stamp: Stamp) -> impl Iterator<Item = &Recent> + '_ {
        assert!(stamp >= self.tail, "a cursor off the ring does not read it");
        let first = self.recent.partition_point(|recent| recent.stamp() <= stamp);
        self.recent.range(first..)
    }

    /// Panics when its bounds or its order do not hold.
    pub(crate) fn check(&self) {
        assert!(self.tail <= self.head, "the ring ends before it begins");
        assert!(self.recent.len() <= self.commits_max, "the ring outgrew its count");
        assert!(self.bytes <= self.bytes_max, "the ring outgrew its bytes");
        let bytes: usize = self.recent.iter().map(Recent::bytes).sum();
        assert_eq!(bytes, self.bytes, "the ring lost count of its bytes");
        let ascending = self.recent.iter().zip(self.recent.iter().skip(1));
        assert!(
            ascending.into_iter().all(|(a, b)| a.stamp() <= b.stamp()),
            "the ring is out of order"
        );
        assert!(
            self.recent.iter().all(|r| self.tail < r.stamp() && r.stamp() <= self.head),
            "the ring holds what it forgot"
        );
    }
}
