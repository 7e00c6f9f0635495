//! The version cache: what this node has committed and its stream has not passed yet (BuddyCache,
//! section 4.5; rule 21, decision 0035).
//!
//! An outcome names a stamp that may lie above valid-through: with a transaction over several domains it
//! comes over one of them, while the streams of the others are on their way. Until a stream has passed that
//! stamp, the copy of a page is the state before the commit. What the commit made of its objects stands
//! here, with the stamp, so that its session reads its own writes without waiting for the stream.
//!
//! 1. A commit writes x of page 7 in domain A and y in domain B; its outcome says stamp 12 in A.
//! 2. The node's valid-through in A is 9. Change 11, of somebody else, names r of page 7, and is on its way.
//! 3. The copy of page 7 stays as it is, exact at 9. x is here, as of 12; r is read from the copy.
//! 4. Whoever read both validates x from 12 on and r from 9 on: r has changed, and it is aborted.
//! 5. Valid-through becomes 12: change 11 made a hole at r, change 12 put x into the copy. x leaves.
//!
//! Nothing here is looked at when valid-through has reached its stamp: a change at or below the stamp of an
//! object that stands here does not concern the object, and one above it comes with a valid-through above it.

use crate::cache::read::PageMap;
use crate::commit::{Op, Write};
use crate::id::{Generation, PageId, Slot, Stamp};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What stands ahead of the stream at a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// Nothing: what the copy holds at valid-through counts.
    Nothing,
    /// This object.
    Object {
        /// As of which stamp: a transaction that reads it validates the read from there.
        stamp: Stamp,
        /// Which of the slot's objects.
        generation: Generation,
        /// Its record, encoded as in [`Op::Put`].
        value: Bytes,
    },
    /// No object: it was deleted.
    Emptied {
        /// As of which stamp.
        stamp: Stamp,
    },
    /// It has changed, and nobody here knows to what: who has to see it waits for the stream.
    Unknown {
        /// Until valid-through has reached it.
        stamp: Stamp,
    },
}

/// What stands ahead of the stream of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageVersions {
    /// The highest stamp of it.
    pub newest: Stamp,
    /// Of slots that are not listed nothing is known up to this stamp either; none: the copy is what they hold.
    pub others: Option<Stamp>,
    /// Ascending by slot.
    pub slots: Vec<(Slot, Ahead)>,
}

/// For each page of the bound, so many times it may be listed as written by a commit.
const LISTED_TIMES: usize = 4;

/// Bounds of a version cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionLimits {
    /// Most objects.
    pub objects_max: usize,
    /// Most bytes of them.
    pub bytes_max: usize,
    /// Most pages of which anything is known; and a quarter of what commits may list that wrote them.
    pub pages_max: usize,
}

impl Default for VersionLimits {
    fn default() -> Self {
        Self { objects_max: 1 << 16, bytes_max: 16 << 20, pages_max: 1 << 14 }
    }
}

#[derive(Clone, Debug)]
enum Value {
    Object(Generation, Bytes),
    Emptied,
    /// Added to, or written in part.
    Unknown,
}

impl Value {
    /// What an op on a slot makes of it.
    fn of(op: &Op) -> Option<(Slot, Self)> {
        Some(match op {
            Op::Put { slot, generation, value } => {
                (*slot, Self::Object(*generation, value.clone()))
            }
            Op::Delete { slot, .. } => (*slot, Self::Emptied),
            Op::Add { slot, .. } | Op::Max { slot, .. } => (*slot, Self::Unknown),
            Op::WriteRaw { .. } | Op::TruncateRaw { .. } => (Slot(0), Self::Unknown),
            Op::CreatePage(_) | Op::DeletePage | Op::RestorePage { .. } => return None,
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Object(_, value) => value.len(),
            Self::Emptied | Self::Unknown => 0,
        }
    }
}

#[derive(Debug)]
struct Known {
    slot: Slot,
    stamp: Stamp,
    value: Value,
}

/// What is known ahead of the stream of one page.
#[derive(Debug)]
struct PageAhead {
    /// Of a slot that is not listed nothing is known up to here.
    whole: Stamp,
    /// Ascending by slot, each with a stamp not below `whole`.
    slots: Vec<Known>,
    /// It is among the purged until valid-through has reached this.
    purged: Option<Stamp>,
}

impl PageAhead {
    fn newest(&self) -> Stamp {
        self.slots.iter().map(|known| known.stamp).fold(self.whole, Stamp::max)
    }
}

/// A domain's version cache. Not for several threads by itself.
#[derive(Debug)]
pub struct VersionCache {
    limits: VersionLimits,
    pages: PageMap<PageAhead>,
    /// The pages that each commit wrote, until valid-through has reached it, or they are purged; and how many.
    commits: BTreeMap<Stamp, VecDeque<PageId>>,
    listed: usize,
    /// Pages that no commit lists any more, until valid-through has reached what was forgotten of them.
    purged: BTreeSet<(Stamp, PageId)>,
    objects: usize,
    bytes: usize,
    /// Of a page that is not listed nothing is known up to here.
    all: Stamp,
}

impl VersionCache {
    /// An empty one.
    #[must_use]
    pub fn new(limits: VersionLimits) -> Self {
        Self {
            limits,
            pages: PageMap::default(),
            commits: BTreeMap::new(),
            listed: 0,
            purged: BTreeSet::new(),
            objects: 0,
            bytes: 0,
            all: Stamp::ZERO,
        }
    }

    /// Whether nothing stands ahead of valid-through: the usual case, to be asked first.
    #[must_use]
    pub fn is_passed(&self, through: Stamp) -> bool {
        self.pages.is_empty() && self.all <= through
    }

    /// Objects that stand ahead.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.objects
    }

    /// Takes what a commit of this node wrote, as its outcome names the stamp. Gives the pages of which it
    /// forgot what stood ahead, since a bound was reached: ascending (the paper purges a page so, and fetches it
    /// anew). Until valid-through has reached what was forgotten, their objects are [`Ahead::Unknown`].
    #[must_use]
    pub fn committed(&mut self, stamp: Stamp, writes: &[Write]) -> Vec<PageId> {
        if stamp <= self.all {
            // What is forgotten up to there may have been changed there: of what it wrote nothing is known.
            for page in writes.chunk_by(|one, next| one.page == next.page).map(|run| run[0].page) {
                if let Some(ahead) = self.pages.get_mut(&page) {
                    forget_slots(ahead, stamp, (&mut self.objects, &mut self.bytes));
                }
            }
            return Vec::new();
        }
        let mut pages = VecDeque::new();
        for run in writes.chunk_by(|one, next| one.page == next.page) {
            let page = run[0].page;
            pages.push_back(page);
            // What was forgotten may have been of this page, and later than this commit.
            let whole = self.all;
            let new = || PageAhead { whole, slots: Vec::new(), purged: None };
            let ahead = self.pages.entry(page).or_insert_with(new);
            for write in run {
                match Value::of(&write.op) {
                    Some((slot, value)) => {
                        let (objects, bytes) = ahead.put(slot, stamp, value);
                        self.objects = self.objects.wrapping_add_signed(objects);
                        self.bytes = self.bytes.wrapping_add_signed(bytes);
                    }
                    // Of a page that was made, what is put into it next is known; the rest is not.
                    None => {
                        forget_slots(ahead, stamp, (&mut self.objects, &mut self.bytes));
                    }
                }
            }
        }
        if !pages.is_empty() {
            self.listed += pages.len();
            self.commits.entry(stamp).or_default().append(&mut pages);
        }
        self.hold_bounds()
    }

    /// What stands ahead at a slot while valid-through is `through`.
    #[must_use]
    pub fn get(&self, page: PageId, slot: Slot, through: Stamp) -> Ahead {
        let unknown = |stamp: Stamp| {
            if stamp > through { Ahead::Unknown { stamp } } else { Ahead::Nothing }
        };
        let Some(ahead) = self.pages.get(&page) else {
            return unknown(self.all);
        };
        let Ok(place) = ahead.slots.binary_search_by_key(&slot, |known| known.slot) else {
            return unknown(ahead.whole.max(self.all));
        };
        let Known { stamp, ref value, .. } = ahead.slots[place];
        match value {
            _ if stamp <= through => unknown(ahead.whole.max(self.all)),
            Value::Object(generation, value) => {
                Ahead::Object { stamp, generation: *generation, value: value.clone() }
            }
            Value::Emptied => Ahead::Emptied { stamp },
            Value::Unknown => Ahead::Unknown { stamp },
        }
    }

    /// The highest stamp above `through` that concerns anything of the page; none: the copy is all there
    /// is. Such a copy is not given to neighbours (rule 12), and who wants all of the page waits.
    #[must_use]
    pub fn above(&self, page: PageId, through: Stamp) -> Option<Stamp> {
        let newest = self.pages.get(&page).map_or(Stamp::ZERO, PageAhead::newest);
        Some(newest.max(self.all)).filter(|stamp| *stamp > through)
    }

    /// All that stands ahead of a page while valid-through is `through`; none: nothing.
    #[must_use]
    pub fn of_page(&self, page: PageId, through: Stamp) -> Option<PageVersions> {
        let newest = self.above(page, through)?;
        let ahead = self.pages.get(&page);
        let whole = ahead.map_or(self.all, |ahead| ahead.whole.max(self.all));
        let slots = ahead.into_iter().flat_map(|ahead| &ahead.slots);
        let slots = slots
            .filter(|known| known.stamp > through)
            .map(|known| (known.slot, self.get(page, known.slot, through)));
        let (slots, others) = (slots.collect(), (whole > through).then_some(whole));
        Some(PageVersions { newest, others, slots })
    }

    /// A commit of this node is done as of a stamp, and what it wrote is not known any more: whoever looks ahead waits
    /// for the stream.
    pub fn committed_unknown(&mut self, stamp: Stamp) {
        self.all = self.all.max(stamp);
    }

    /// Valid-through has become `through`: what is in the copies now leaves.
    pub fn passed(&mut self, through: Stamp) {
        while let Some(first) = self.commits.first_entry()
            && *first.key() <= through
        {
            let pages = first.remove();
            self.listed -= pages.len();
            for page in pages {
                self.leave(page, through);
            }
        }
        while let Some(&(stamp, page)) = self.purged.first()
            && stamp <= through
        {
            self.purged.pop_first();
            if let Some(ahead) = self.pages.get_mut(&page) {
                ahead.purged = None;
            }
            self.leave(page, through);
        }
    }

    /// The line has ended: no stamp of before means anything any more.
    pub fn clear(&mut self) {
        *self = Self::new(self.limits);
    }

    /// Panics when an invariant is broken.
    pub fn check(&self) {
        let purged = self.purged.iter().map(|(_, page)| *page);
        let listed: BTreeSet<PageId> =
            self.commits.values().flatten().copied().chain(purged).collect();
        let of_commits: usize = self.commits.values().map(VecDeque::len).sum();
        assert_eq!(of_commits, self.listed, "pages are listed and not counted");
        assert!(self.listed <= LISTED_TIMES * self.limits.pages_max, "too many pages are listed");
        for (stamp, page) in &self.purged {
            let known = self.pages.get(page).and_then(|ahead| ahead.purged);
            assert_eq!(known, Some(*stamp), "a page is purged, and does not know it");
        }
        let (mut objects, mut bytes, mut pages) = (0, 0, 0);
        for ahead in listed.iter().filter_map(|page| self.pages.get(page)) {
            pages += 1;
            objects += ahead.slots.len();
            bytes += ahead.slots.iter().map(|known| known.value.bytes()).sum::<usize>();
            assert!(ahead.slots.is_sorted_by(|one, next| one.slot < next.slot), "out of order");
            assert!(ahead.slots.iter().all(|known| known.stamp >= ahead.whole), "below its page");
        }
        assert_eq!(pages, self.pages.len(), "a page that no commit takes out");
        assert_eq!((objects, bytes), (self.objects, self.bytes), "objects are miscounted");
        assert!(self.objects <= self.limits.objects_max, "too many objects");
        assert!(self.bytes <= self.limits.bytes_max, "too many bytes");
        assert!(self.pages.len() <= self.limits.pages_max, "too many pages");
    }

    fn leave(&mut self, page: PageId, through: Stamp) {
        let Some(ahead) = self.pages.get_mut(&page) else {
            return;
        };
        let (mut objects, mut bytes) = (0, 0);
        ahead.slots.retain(|known| {
            let stays = known.stamp > through;
            if !stays {
                objects += 1;
                bytes += known.value.bytes();
            }
            stays
        });
        self.objects -= objects;
        self.bytes -= bytes;
        if ahead.slots.is_empty() && ahead.whole <= through.max(self.all) {
            self.remove(page);
        }
    }

    fn remove(&mut self, page: PageId) -> Option<PageAhead> {
        let gone = self.pages.remove(&page)?;
        if let Some(stamp) = gone.purged {
            self.purged.remove(&(stamp, page));
        }
        self.objects -= gone.slots.len();
        self.bytes -= gone.slots.iter().map(|known| known.value.bytes()).sum::<usize>();
        Some(gone)
    }

    fn is_over(&self) -> bool {
        let VersionLimits { objects_max, bytes_max, pages_max } = self.limits;
        self.objects > objects_max
            || self.bytes > bytes_max
            || self.pages.len() > pages_max
            || self.listed > LISTED_TIMES * pages_max
    }

    /// The page that the oldest commit lists first.
    fn unlist(&mut self) -> Option<(Stamp, PageId)> {
        let mut first = self.commits.first_entry()?;
        let stamp = *first.key();
        let page = first.get_mut().pop_front().expect("a commit without pages is not listed");
        if first.get().is_empty() {
            first.remove();
        }
        self.listed -= 1;
        Some((stamp, page))
    }

    /// Forgets what the oldest commits made of their pages: who has to see it waits least. Each listing is looked at once.
    fn hold_bounds(&mut self) -> Vec<PageId> {
        let mut forgotten = Vec::new();
        while self.is_over() {
            if self.pages.len() > self.limits.pages_max
                && let Some(&(_, page)) = self.purged.first()
            {
                // One stamp stands for all of which nothing else is known.
                let gone = self.remove(page).expect("what is purged is known");
                self.all = self.all.max(gone.newest());
                continue;
            }
            let (stamp, page) = self.unlist().expect("what is known is listed");
            let Some(ahead) = self.pages.get_mut(&page) else {
                continue;
            };
            if ahead.slots.iter().any(|known| known.stamp <= stamp) {
                crate::probe::probe("version-cache-purges");
                forgotten.push(page);
                forget_slots(ahead, stamp, (&mut self.objects, &mut self.bytes));
            }
            if !ahead.slots.is_empty() {
                // Later commits list it.
                continue;
            }
            let newest = ahead.newest();
            if let Some(before) = ahead.purged.replace(newest) {
                self.purged.remove(&(before, page));
            }
            self.purged.insert((newest, page));
        }
        forgotten.sort_unstable();
        forgotten.dedup();
        forgotten
    }
}

impl PageAhead {
    /// Takes what a slot holds as of a stamp, unless something later is known. Gives by how much the
    /// objects and their bytes have grown.
    fn put(&mut self, slot: Slot, stamp: Stamp, value: Value) -> (isize, isize) {
        if stamp < self.whole {
            return (0, 0);
        }
        let grown = value.bytes() as isize;
        let known = Known { slot, stamp, value };
        // Writes of a page mostly come ascending.
        if self.slots.last().is_none_or(|last| last.slot < slot) {
            self.slots.push(known);
            return (1, grown);
        }
        match self.slots.binary_search_by_key(&slot, |known| known.slot) {
            Ok(place) if self.slots[place].stamp > stamp => (0, 0),
            Ok(place) => {
                let before = std::mem::replace(&mut self.slots[place], known);
                (0, grown - before.value.bytes() as isize)
            }
            Err(place) => {
                self.slots.insert(place, known);
                (1, grown)
            }
        }
    }
}

/// Nothing is known of a page up to a stamp any more.
fn forget_slots(ahead: &mut PageAhead, stamp: Stamp, (objects, bytes): (&mut usize, &mut usize)) {
    ahead.whole = ahead.whole.max(stamp);
    ahead.slots.retain(|known| {
        // One of the same commit that came before is of the page as it was.
        let stays = known.stamp > stamp;
        if !stays {
            *objects -= 1;
            *bytes -= known.value.bytes();
        }
        stays
    });
}

#[cfg(test)]
mod tests;
