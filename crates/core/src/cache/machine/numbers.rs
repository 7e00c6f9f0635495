//! In which history the page numbers of this node were given: a commit that makes pages names it.
//!
//! 1. A node takes numbers 100 to 109 and begins to make pages of them. The origin dies.
//! 2. It is restored from a copy of before, under a new history, and gives 100 to 109 to another node.
//! 3. The first node had seen nothing else of what was lost, so its line goes on, and its commit would
//!    make page 100. Of which history the number is tells the two apart.
//!
//! A number that a transaction has read is another matter: whoever committed what it was read in was given
//! it on that line, which says nothing of the same number that this node may have been given on another.

use crate::commit::{IdRange, Numbered, Op, Write};
use crate::id::{HistoryId, PageId, PageNo, VolumeId};
use std::collections::{BTreeMap, VecDeque};

/// Ranges remembered, neighbours given one after another counting as one. Beyond it the oldest is
/// forgotten: what is left of it passes for read in what is committed.
const RANGES_MAX: usize = 16_384;

/// The ranges given to this node.
#[derive(Default)]
pub(super) struct Numbers {
    /// By volume and first number: one past the last, and the history.
    ranges: BTreeMap<(VolumeId, PageNo), (PageNo, HistoryId)>,
    /// As they were given; some are no more.
    order: VecDeque<(VolumeId, PageNo)>,
}

impl Numbers {
    /// The parent gave a range.
    pub(super) fn given(&mut self, range: &IdRange, history: HistoryId) {
        let (volume, first) = (range.volume, range.first);
        let end = PageNo(first.0.saturating_add(range.count));
        self.cut(volume, first, end);
        let before = self.ranges.range_mut(..(volume, first)).next_back();
        if let Some((key, (its_end, its_history))) = before
            && (key.0, *its_end, *its_history) == (volume, first, history)
        {
            *its_end = end;
            return;
        }
        self.insert((volume, first), (end, history));
    }

    /// What is given again was given before in a branch that is lost. The rest of those ranges stays
    /// what it was: forgotten, it would pass for read in what is committed.
    fn cut(&mut self, volume: VolumeId, first: PageNo, end: PageNo) {
        let before = self.ranges.range_mut(..(volume, first)).next_back();
        if let Some((key, (its_end, history))) = before
            && key.0 == volume
            && *its_end > first
        {
            let rest = (std::mem::replace(its_end, first), *history);
            self.keep_above(volume, end, rest);
        }
        let within = self.ranges.range((volume, first)..(volume, end));
        let within: Vec<_> = within.map(|(key, range)| (*key, *range)).collect();
        for (key, range) in within {
            self.ranges.remove(&key);
            // Else its place would stand for a range that begins there later, and end that early.
            self.order.retain(|other| *other != key);
            self.keep_above(volume, end, range);
        }
    }

    fn keep_above(&mut self, volume: VolumeId, end: PageNo, range: (PageNo, HistoryId)) {
        if range.0 > end {
            self.insert((volume, end), range);
        }
    }

    fn insert(&mut self, key: (VolumeId, PageNo), range: (PageNo, HistoryId)) {
        self.ranges.insert(key, range);
        self.order.push_back(key);
        while self.order.len() > RANGES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ranges.remove(&oldest);
        }
    }

    /// The histories of the numbers with which pages are made; `named`, ascending: those that were read
    /// in the transaction. Others that were not given to this process come from what is committed as
    /// well: a file's run, made by another node or before a restart.
    pub(super) fn of(&self, writes: &[Write], named: &[PageId]) -> Vec<Numbered> {
        let made = writes.iter().filter(|write| matches!(write.op, Op::CreatePage(_)));
        let histories = made.map(|write| {
            if named.binary_search(&write.page).is_ok() {
                return HistoryId::default();
            }
            let key = (write.page.volume, write.page.page);
            let range = self.ranges.range(..=key).next_back();
            let range = range.filter(|((volume, _), (end, _))| *volume == key.0 && *end > key.1);
            range.map_or_else(HistoryId::default, |(_, (_, history))| *history)
        });
        let mut numbers: Vec<Numbered> = Vec::new();
        for history in histories {
            match numbers.last_mut() {
                Some(last) if last.history == history => last.pages += 1,
                _ => numbers.push(Numbered { history, pages: 1 }),
            }
        }
        // Nothing to tell: most commits make no page.
        if numbers.iter().all(|told| told.history == HistoryId::default()) {
            numbers.clear();
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::PageKind;

    fn make(pages: &[u64]) -> Vec<Write> {
        let id = |page: &u64| PageId { volume: VolumeId(7), page: PageNo(*page) };
        let create = Op::CreatePage(PageKind::Slotted);
        pages.iter().map(|page| Write { page: id(page), op: create.clone() }).collect()
    }

    #[test]
    fn numbers_are_of_the_history_they_were_given_in_last() {
        let (old, new) = (HistoryId(1), HistoryId(2));
        let mut numbers = Numbers::default();
        let mut give = |first, count, history| {
            let range = IdRange { volume: VolumeId(7), first: PageNo(first), count };
            numbers.given(&range, history);
        };
        give(100, 10, old);
        give(110, 10, old);
        // The origin was restored, and gave some of them again.
        give(115, 10, new);
        assert_eq!(numbers.ranges.len(), 2, "neighbours are one");
        let told = |history, pages| Numbered { history, pages };
        assert_eq!(numbers.of(&make(&[100, 114]), &[]), [told(old, 2)]);
        assert_eq!(numbers.of(&make(&[115, 124]), &[]), [told(new, 2)]);
        let all = [told(old, 1), told(new, 1), told(HistoryId::default(), 2), told(old, 1)];
        assert_eq!(numbers.of(&make(&[114, 115, 125, 126, 100]), &[]), all, "two were never given");
        assert_eq!(numbers.of(&make(&[125]), &[]), []);
        assert_eq!(numbers.of(&[], &[]), []);
    }

    /// The bug (found by the simulator): a node was given 52 and 53, and then 54 and 55, which it
    /// remembered as one range. The origin was restored, and gave it 52 and 53 again: the whole of the
    /// older range was forgotten, the node's commit named no history for 55, and made a page with
    /// it that had been given to another node meanwhile (P12).
    #[test]
    fn what_is_left_of_a_range_of_a_lost_branch_stays_of_it() {
        let (old, new) = (HistoryId(1), HistoryId(2));
        let told = |history, pages| Numbered { history, pages };
        let given = |ranges: &[(u64, u64, HistoryId)]| {
            let mut numbers = Numbers::default();
            for &(first, count, history) in ranges {
                let range = IdRange { volume: VolumeId(7), first: PageNo(first), count };
                numbers.given(&range, history);
            }
            numbers
        };
        let numbers = given(&[(52, 2, old), (54, 2, old), (52, 2, new)]);
        assert_eq!(numbers.of(&make(&[52, 53, 54, 55]), &[]), [told(new, 2), told(old, 2)]);
        let numbers = given(&[(50, 10, old), (52, 2, new)]);
        assert_eq!(
            numbers.of(&make(&[51, 52, 53, 54, 59]), &[]),
            [told(old, 1), told(new, 2), told(old, 2)],
            "on both sides"
        );
        let numbers = given(&[(50, 2, old), (53, 4, old), (51, 3, new)]);
        assert_eq!(
            numbers.of(&make(&[50, 51, 53, 54, 56]), &[]),
            [told(old, 1), told(new, 2), told(old, 2)],
            "of two"
        );
        assert_eq!(numbers.of(&make(&[57]), &[]), []);
    }

    /// Bug 116 (found by the simulator). A node was given 100 to 109, and the origin began anew. On the new
    /// line it gave them to another node, which made a file of them and its first page. The first node read
    /// the file's record and made the second page: it said of 101 that it was of the lost branch, and was
    /// refused until its process ended. What was read in the transaction names no history; what was not still
    /// does.
    #[test]
    fn bug116_a_number_that_was_read_is_of_no_lost_branch() {
        let lost = HistoryId(1);
        let mut numbers = Numbers::default();
        numbers.given(&IdRange { volume: VolumeId(7), first: PageNo(100), count: 10 }, lost);
        let read = |pages: &[u64]| -> Vec<PageId> {
            pages.iter().map(|&page| PageId { volume: VolumeId(7), page: PageNo(page) }).collect()
        };
        let told = |history, pages| Numbered { history, pages };
        assert_eq!(numbers.of(&make(&[101]), &read(&[101])), []);
        let none = HistoryId::default();
        assert_eq!(
            numbers.of(&make(&[101, 100, 102]), &read(&[101, 102])),
            [told(none, 1), told(lost, 1), told(none, 1)],
            "what was kept of its own is of the lost branch as before"
        );
    }

    #[test]
    fn ranges_are_bounded() {
        let mut numbers = Numbers::default();
        for at in 0..RANGES_MAX as u64 + 10 {
            let range = IdRange { volume: VolumeId(7), first: PageNo(2 + 2 * at), count: 1 };
            numbers.given(&range, HistoryId(1));
        }
        assert!(numbers.ranges.len() <= RANGES_MAX);
        assert_eq!(numbers.of(&make(&[2]), &[]), []);
        let last = Numbered { history: HistoryId(1), pages: 1 };
        assert_eq!(numbers.of(&make(&[2 * RANGES_MAX as u64]), &[]), [last]);
    }
}
