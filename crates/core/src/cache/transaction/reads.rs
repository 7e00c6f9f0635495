//! What a transaction has read.

use crate::cache::read::PageHash;
use crate::commit::{Aspect, Read, Target};
use crate::id::{PageId, Slot};
use hashbrown::HashTable;

/// The reads of one page.
struct PageReads {
    page: PageId,
    /// The strongest aspect of the whole page read.
    whole: Option<Aspect>,
    /// Of the slots below 128, those whose value was read: reading one again is one test, and
    /// reading another allocates nothing.
    values: u128,
    /// Of the slots below 128, those of which only the existence was read.
    existences: u128,
    /// Of the others, slot and aspect in one number each, ascending: the slot times two, plus one
    /// for its value.
    others: Vec<u32>,
}

impl PageReads {
    fn new(page: PageId) -> Self {
        Self { page, whole: None, values: 0, existences: 0, others: Vec::new() }
    }

    /// True: the slot was not read before.
    #[inline]
    fn add_slot(&mut self, slot: Slot, aspect: Aspect) -> bool {
        let Some(bit) = bit_of(slot) else {
            return self.add_other(slot, aspect);
        };
        let added = (self.values | self.existences) & bit == 0;
        // The value of a slot stands for its existence as well.
        if aspect == Aspect::Value {
            self.values |= bit;
            self.existences &= !bit;
        } else if self.values & bit == 0 {
            self.existences |= bit;
        }
        added
    }

    fn add_other(&mut self, slot: Slot, aspect: Aspect) -> bool {
        let code = u32::from(slot.0) << 1 | u32::from(aspect == Aspect::Value);
        let place = self.others.partition_point(|&c| c >> 1 < code >> 1);
        match self.others.get_mut(place) {
            Some(there) if *there >> 1 == code >> 1 => {
                *there = code.max(*there);
                false
            }
            _ => {
                self.others.insert(place, code);
                true
            }
        }
    }

    /// What was read of a slot, if anything.
    fn of_slot(&self, slot: Slot) -> Option<Aspect> {
        if let Some(bit) = bit_of(slot) {
            let value = (self.values & bit != 0).then_some(Aspect::Value);
            return value.or((self.existences & bit != 0).then_some(Aspect::Existence));
        }
        let place = self.others.partition_point(|&code| code >> 1 < u32::from(slot.0));
        let (found, aspect) = decode(*self.others.get(place)?);
        (found == slot).then_some(aspect)
    }

    /// The reads of slots, ascending.
    fn slots(&self) -> impl Iterator<Item = (Slot, Aspect)> {
        let mut left = self.values | self.existences;
        let below_128 = std::iter::from_fn(move || {
            let slot = u16::try_from(left.trailing_zeros()).ok().filter(|_| left != 0)?;
            left &= left - 1;
            let value = self.values >> slot & 1 == 1;
            Some((Slot(slot), if value { Aspect::Value } else { Aspect::Existence }))
        });
        below_128.chain(self.others.iter().map(|&code| decode(code)))
    }
}

#[inline]
fn bit_of(slot: Slot) -> Option<u128> {
    1u128.checked_shl(u32::from(slot.0))
}

/// The read set: each (page, slot) once, with the stronger aspect. Reading again costs no memory.
#[derive(Default)]
pub(super) struct ReadSet {
    /// Places in `pages`, by the hash of the page there.
    index: HashTable<u32>,
    pages: Vec<PageReads>,
    /// The page read last: most reads follow one of the same page.
    last: u32,
    count: usize,
}

impl ReadSet {
    /// How many (page, target) pairs.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn add_slot(&mut self, page: PageId, slot: Slot, aspect: Aspect) {
        let added = self.page(page, PageHash::of(page)).add_slot(slot, aspect);
        self.count += usize::from(added);
    }

    /// The same for a slot's value, with the page's hash at hand.
    #[inline]
    pub(super) fn add_value(&mut self, page: PageId, hash: PageHash, slot: Slot) {
        let added = self.page(page, hash).add_slot(slot, Aspect::Value);
        self.count += usize::from(added);
    }

    pub(super) fn add_page(&mut self, page: PageId, aspect: Aspect) {
        let reads = self.page(page, PageHash::of(page));
        let added = reads.whole.is_none();
        reads.whole = reads.whole.max(Some(aspect));
        self.count += usize::from(added);
    }

    /// Whether anything of a slot was read.
    pub(super) fn has_slot(&self, page: PageId, slot: Slot) -> bool {
        let place = self.place(page, PageHash::of(page));
        place.is_some_and(|place| self.pages[place as usize].of_slot(slot).is_some())
    }

    /// What of `page` a change concerns that was read, if anything.
    /// Of what is `seen` the slot was read as of the change, or later; the page as a whole was not.
    pub(super) fn conflict(
        &self,
        page: PageId,
        touched: &[(Target, Aspect)],
        seen: impl Fn(Target) -> bool,
    ) -> Option<Read> {
        let place = self.place(page, PageHash::of(page))?;
        let reads = &self.pages[place as usize];
        let whole = reads.whole.map(|aspect| (Target::Page, aspect));
        touched.iter().find_map(|&change| {
            let against = |read: &(Target, Aspect)| crate::commit::conflicts(*read, change);
            let found = whole.filter(against).or_else(|| match change.0 {
                Target::Page => reads.slots().map(of_slot).find(against),
                Target::Slot(_) if seen(change.0) => None,
                Target::Slot(slot) => reads.of_slot(slot).map(|a| (change.0, a)).filter(against),
            });
            found.map(|(target, aspect)| Read { page, target, aspect })
        })
    }

    /// All reads that `select` takes, ascending, without repeats.
    pub(super) fn sorted(&self, mut select: impl FnMut(PageId) -> bool) -> Vec<Read> {
        let mut pages: Vec<&PageReads> = self.pages.iter().filter(|r| select(r.page)).collect();
        pages.sort_unstable_by_key(|reads| reads.page);
        let mut list = Vec::new();
        for reads in pages {
            let page = reads.page;
            let whole = reads.whole.map(|aspect| (Target::Page, aspect));
            let slots = reads.slots().map(of_slot);
            list.extend(whole.into_iter().chain(slots).map(|(target, aspect)| Read {
                page,
                target,
                aspect,
            }));
        }
        list
    }

    #[inline]
    fn place(&self, page: PageId, hash: PageHash) -> Option<u32> {
        self.index.find(hash.0, |&place| self.pages[place as usize].page == page).copied()
    }

    #[inline]
    fn page(&mut self, page: PageId, hash: PageHash) -> &mut PageReads {
        let last = self.last as usize;
        if self.pages.get(last).is_none_or(|reads| reads.page != page) {
            self.last = match self.place(page, hash) {
                Some(place) => place,
                None => self.first_read(page, hash),
            };
        }
        &mut self.pages[self.last as usize]
    }

    fn first_read(&mut self, page: PageId, hash: PageHash) -> u32 {
        let place = u32::try_from(self.pages.len()).expect("reads are bounded far below 2^32");
        self.pages.push(PageReads::new(page));
        let pages = &self.pages;
        self.index
            .insert_unique(hash.0, place, |&place| PageHash::of(pages[place as usize].page).0);
        place
    }
}

fn of_slot((slot, aspect): (Slot, Aspect)) -> (Target, Aspect) {
    (Target::Slot(slot), aspect)
}

fn decode(code: u32) -> (Slot, Aspect) {
    let slot = Slot(u16::try_from(code >> 1).expect("made from a slot"));
    (slot, if code & 1 == 1 { Aspect::Value } else { Aspect::Existence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(number) }
    }

    /// Every page read had a list of its slots: a first read of an object allocated nearly as often
    /// as it came to another page, which is no growth of the read set but a cost of each read. Now
    /// bits stand for the first slots; against a plain map they say the same.
    #[test]
    fn a_read_set_is_a_map_of_the_strongest_aspects() {
        let mut rng = Rng::new(11);
        for round in 0..200 {
            let mut set = ReadSet::default();
            let mut model: BTreeMap<(PageId, Target), Aspect> = BTreeMap::new();
            for _ in 0..1 + rng.below(120) {
                let page = page(rng.below(4));
                let aspect = [Aspect::Existence, Aspect::Value][rng.below(2) as usize];
                let slot = Slot(rng.below([6, 126, 140, 60_000][round % 4]) as u16 + 2);
                let target = if rng.below(20) == 0 { Target::Page } else { Target::Slot(slot) };
                match target {
                    Target::Page => set.add_page(page, aspect),
                    Target::Slot(slot) => set.add_slot(page, slot, aspect),
                }
                let strongest = model.entry((page, target)).or_insert(aspect);
                *strongest = aspect.max(*strongest);
            }
            let expected: Vec<Read> = model
                .iter()
                .map(|(&(page, target), &aspect)| Read { page, target, aspect })
                .collect();
            assert_eq!(set.sorted(|_| true), expected);
            assert_eq!(set.len(), expected.len());
            for _ in 0..50 {
                let page = page(rng.below(5));
                let aspect = [Aspect::Existence, Aspect::Value][rng.below(2) as usize];
                let slot = Slot(rng.below(200) as u16);
                let target = if rng.below(8) == 0 { Target::Page } else { Target::Slot(slot) };
                let conflicts = |read: &&Read| {
                    let here = (read.target, read.aspect);
                    read.page == page && crate::commit::conflicts(here, (target, aspect))
                };
                let found = set.conflict(page, &[(target, aspect)], |_| false);
                assert_eq!(found.is_some(), expected.iter().any(|read| conflicts(&read)));
                assert!(found.is_none_or(|read| conflicts(&&read)), "{found:?}");
            }
        }
    }
}
