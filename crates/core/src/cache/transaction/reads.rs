//! What a transaction has read.

use crate::cache::read::PageMap;
use crate::commit::{Aspect, Read, Target};
use crate::id::{PageId, Slot};

/// The reads of one page.
struct PageReads {
    page: PageId,
    /// The strongest aspect of the whole page read.
    whole: Option<Aspect>,
    /// Slot and aspect in one number each, ascending: the slot times two, plus one for its value.
    slots: Vec<u32>,
    /// Of the slots below 128, those whose value was read: reading one again is one test.
    values: u128,
}

/// The read set: each (page, slot) once, with the stronger aspect. Reading again costs no memory.
#[derive(Default)]
pub(super) struct ReadSet {
    index: PageMap<u32>,
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
        let reads = self.page(page);
        let bit = 1u128.checked_shl(u32::from(slot.0)).unwrap_or_default();
        if reads.values & bit != 0 {
            return;
        }
        if aspect == Aspect::Value {
            reads.values |= bit;
        }
        let code = u32::from(slot.0) << 1 | u32::from(aspect == Aspect::Value);
        // The value of a slot stands for its existence as well.
        let place = match reads.slots.last() {
            Some(&last) if last >> 1 >= code >> 1 => {
                reads.slots.partition_point(|&c| c >> 1 < code >> 1)
            }
            _ => reads.slots.len(),
        };
        match reads.slots.get_mut(place) {
            Some(there) if *there >> 1 == code >> 1 => *there = code.max(*there),
            _ => {
                reads.slots.insert(place, code);
                self.count += 1;
            }
        }
    }

    pub(super) fn add_page(&mut self, page: PageId, aspect: Aspect) {
        let reads = self.page(page);
        let added = reads.whole.is_none();
        reads.whole = reads.whole.max(Some(aspect));
        self.count += usize::from(added);
    }

    /// What of `page` a change concerns that was read, if anything.
    pub(super) fn conflict(&self, page: PageId, touched: &[(Target, Aspect)]) -> Option<Read> {
        let reads = &self.pages[*self.index.get(&page)? as usize];
        touched.iter().find_map(|&change| {
            let whole = reads.whole.map(|aspect| (Target::Page, aspect));
            let slots = match change.0 {
                Target::Page => reads.slots.as_slice(),
                Target::Slot(slot) => {
                    let place = reads.slots.partition_point(|&code| code >> 1 < u32::from(slot.0));
                    &reads.slots[place..reads.slots.len().min(place + 1)]
                }
            };
            whole
                .into_iter()
                .chain(slots.iter().map(|&code| decode(code)))
                .find(|&read| crate::commit::conflicts(read, change))
                .map(|(target, aspect)| Read { page, target, aspect })
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
            let slots = reads.slots.iter().map(|&code| decode(code));
            list.extend(whole.into_iter().chain(slots).map(|(target, aspect)| Read {
                page,
                target,
                aspect,
            }));
        }
        list
    }

    #[inline]
    fn page(&mut self, page: PageId) -> &mut PageReads {
        let last = self.last as usize;
        if self.pages.get(last).is_none_or(|reads| reads.page != page) {
            self.last = match self.index.get(&page) {
                Some(&place) => place,
                None => self.first_read(page),
            };
        }
        &mut self.pages[self.last as usize]
    }

    #[cold]
    fn first_read(&mut self, page: PageId) -> u32 {
        let place = u32::try_from(self.pages.len()).expect("reads are bounded far below 2^32");
        self.index.insert(page, place);
        self.pages.push(PageReads { page, whole: None, slots: Vec::new(), values: 0 });
        place
    }
}

fn decode(code: u32) -> (Target, Aspect) {
    let slot = Slot(u16::try_from(code >> 1).expect("made from a slot"));
    let aspect = if code & 1 == 1 { Aspect::Value } else { Aspect::Existence };
    (Target::Slot(slot), aspect)
}
