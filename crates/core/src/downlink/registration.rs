//! What a parent believes a child to hold: a hint to send less, bounded and forgettable.

use super::DownlinkConfig;
use crate::id::{PageId, PageNo, VolumeId};
use std::collections::BTreeMap;

/// Memory of a word of 64 pages, about: tables of words are at least half full.
const WORD_BYTES: usize = 32;
/// Memory of a volume's table with its first word beside that, about.
const VOLUME_BYTES: usize = 256;

/// A set of pages: per volume a bit per page, in words of 64. A page costs between half a byte
/// (neighbours), 32 bytes (alone in its word) and 288 bytes (alone in its volume).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageSet {
    volumes: BTreeMap<VolumeId, BTreeMap<u64, u64>>,
    len: usize,
    words: usize,
}

impl PageSet {
    /// Adds a page; says whether it was not there.
    pub(crate) fn insert(&mut self, id: PageId) -> bool {
        let words = self.volumes.entry(id.volume).or_default();
        let word = words.entry(id.page.0 / 64).or_insert_with(|| {
            self.words += 1;
            0
        });
        let bit = 1 << (id.page.0 % 64);
        let new = *word & bit == 0;
        *word |= bit;
        self.len += usize::from(new);
        new
    }

    /// Removes a page; whether it was there.
    pub(crate) fn remove(&mut self, id: PageId) -> bool {
        let Some(words) = self.volumes.get_mut(&id.volume) else {
            return false;
        };
        let Some(word) = words.get_mut(&(id.page.0 / 64)) else {
            return false;
        };
        let bit = 1 << (id.page.0 % 64);
        let had = *word & bit != 0;
        self.len -= usize::from(had);
        *word &= !bit;
        if *word == 0 {
            words.remove(&(id.page.0 / 64));
            self.words -= 1;
            if words.is_empty() {
                self.volumes.remove(&id.volume);
            }
        }
        had
    }

    /// Removes all pages of a volume.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) {
        let words = self.volumes.remove(&volume).unwrap_or_default();
        self.len -= words.values().map(|word| word.count_ones() as usize).sum::<usize>();
        self.words -= words.len();
    }

    /// Whether a page is in it.
    pub(crate) fn contains(&self, id: PageId) -> bool {
        self.volumes
            .get(&id.volume)
            .and_then(|words| words.get(&(id.page.0 / 64)))
            .is_some_and(|word| word & (1 << (id.page.0 % 64)) != 0)
    }

    /// Pages in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.volumes.len() * VOLUME_BYTES + self.words * WORD_BYTES
    }

    fn fits(&self, max: Max) -> bool {
        self.len <= max.pages && self.bytes() <= max.bytes
    }

    /// The pages after one, ascending.
    pub(crate) fn after(&self, after: PageId) -> impl Iterator<Item = PageId> + '_ {
        let volumes = self.volumes.range(after.volume..);
        let words = volumes.flat_map(move |(volume, words)| {
            let first = if *volume == after.volume { after.page.0 / 64 } else { 0 };
            words.range(first..).map(move |(index, word)| (*volume, *index, *word))
        });
        words.flat_map(pages_of).filter(move |page| *page > after)
    }

    /// All pages, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.volumes.iter().flat_map(|(volume, words)| {
            words.iter().flat_map(move |(index, word)| pages_of((*volume, *index, *word)))
        })
    }
}

/// The pages of one word, ascending.
fn pages_of((volume, index, word): (VolumeId, u64, u64)) -> impl Iterator<Item = PageId> {
    (0..64)
        .filter(move |bit| word & (1 << bit) != 0)
        .map(move |bit| PageId { volume, page: PageNo(index * 64 + bit) })
}

/// The list of pages held that a child sends in parts.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Gathered {
    /// None is under way.
    Off,
    /// What was listed and fetched so far, less what was evicted; and whether a list has begun: an
    /// empty part only announces one, which is made later.
    Set(PageSet, bool),
    /// It passed the bound: its end will narrow nothing.
    Over,
}

/// What a registration may name and take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Max {
    pages: usize,
    bytes: usize,
}

/// A link's registration of one domain (decision 0003).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    exact: Option<PageSet>,
    gathered: Gathered,
    max: Max,
}

impl Registration {
    /// For a child that holds nothing.
    pub(crate) fn nothing(config: &DownlinkConfig) -> Self {
        let max = Max { pages: config.registered_pages_max, bytes: config.registered_bytes_max };
        Self { exact: Some(PageSet::default()), gathered: Gathered::Off, max }
    }

    /// For everything (rule 17). What is fetched from here on counts as listed.
    pub(crate) fn all(&mut self) {
        self.exact = None;
        self.gathered = match self.gathered {
            // A list begun before cannot name what this registration is for.
            Gathered::Set(_, true) | Gathered::Over => {
                crate::probe::probe("resume-within-a-list");
                Gathered::Over
            }
            Gathered::Set(ref mut set, false) => Gathered::Set(std::mem::take(set), false),
            Gathered::Off => Gathered::Set(PageSet::default(), false),
        };
    }

    /// Whether changes to the page are to be sent: that a volume was deleted concerns every child.
    #[inline]
    pub(crate) fn contains(&self, page: PageId) -> bool {
        page.is_volume() || self.exact.as_ref().is_none_or(|set| set.contains(page))
    }

    /// The child asks for the page, or will hold it (rule 10). Past the bound the set is forgotten.
    /// Says whether the page is new to it.
    pub(crate) fn insert(&mut self, page: PageId) -> bool {
        if let Gathered::Set(set, _) = &mut self.gathered {
            set.insert(page);
            if !set.fits(self.max) {
                self.gathered = Gathered::Over;
            }
        }
        let Some(set) = &mut self.exact else {
            return false;
        };
        let new = set.insert(page);
        if !set.fits(self.max) {
            crate::probe::probe("registration-overflows");
            self.exact = None;
        }
        new
    }

    /// The child holds the page no longer.
    pub(crate) fn remove(&mut self, page: PageId) {
        if let Gathered::Set(set, _) = &mut self.gathered {
            set.remove(page);
        }
        if let Some(set) = &mut self.exact {
            set.remove(page);
        }
    }

    /// Takes a part of the list of all pages held; `done` narrows the registration to it. Says whether
    /// pages went with that, which nobody names: some that were named before, or whatever there was of an
    /// unknown lot (bug 150).
    pub(crate) fn holding(&mut self, pages: &[PageId], done: bool) -> bool {
        if self.gathered == Gathered::Off {
            self.gathered = Gathered::Set(PageSet::default(), false);
        }
        if let Gathered::Set(set, begun) = &mut self.gathered {
            *begun |= !pages.is_empty();
            for page in pages {
                set.insert(*page);
            }
            if !set.fits(self.max) {
                self.gathered = Gathered::Over;
            }
        }
        if !done {
            return false;
        }
        let narrowed = match std::mem::replace(&mut self.gathered, Gathered::Off) {
            Gathered::Set(set, _) => {
                crate::probe::probe("list-narrows");
                Some(set)
            }
            Gathered::Off | Gathered::Over => None,
        };
        let before = std::mem::replace(&mut self.exact, narrowed);
        match (&before, &self.exact) {
            (Some(before), Some(now)) => before.iter().any(|page| !now.contains(page)),
            (before, now) => before.is_none() && now.is_some(),
        }
    }

    /// The pages named, ascending; none: all.
    pub(crate) fn pages(&self) -> Option<&PageSet> {
        self.exact.as_ref()
    }

    /// Panics when its bound is passed.
    pub(crate) fn check(&self) {
        let gathered = match &self.gathered {
            Gathered::Set(set, _) => Some(set),
            Gathered::Off | Gathered::Over => None,
        };
        for set in [self.exact.as_ref(), gathered].into_iter().flatten() {
            assert!(set.fits(self.max), "a registration outgrew its bound");
            assert_eq!(set.len(), set.iter().count(), "a page set lost count");
            let words: usize = set.volumes.values().map(BTreeMap::len).sum();
            assert_eq!(set.words, words, "a page set lost count of its words");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay that had announced a list could not make it, for a child that held an unknown lot; its parent
    /// gathered what was fetched meanwhile. When the child said what it held the relay made its list, of
    /// nothing, and the parent counted it for what had been gathered, until the link ended (bug 150).
    #[test]
    fn bug_150_an_unknown_lot_may_have_held_anything() {
        let page = |page| PageId { volume: VolumeId(1), page: PageNo(page) };
        let config = DownlinkConfig { registered_pages_max: 16, ..DownlinkConfig::default() };
        let mut registration = Registration::nothing(&config);
        registration.all();
        assert!(registration.holding(&[page(1), page(2)], true), "nobody knows what went");
        assert!(!registration.holding(&[page(1), page(2)], true), "the same as before");
        assert!(registration.holding(&[page(1)], true), "page 2 went");
        registration.all();
        assert!(!registration.holding(&(0..64).map(|n| page(n * 64)).collect::<Vec<_>>(), true));
        assert!(registration.pages().is_none(), "too many to be named");
    }

    /// A relay had announced that it would narrow itself, for a child that had come back, when another
    /// came back: it was registered for everything anew, for that one. The list that it made when both
    /// had told what they hold was taken for one begun before, and narrowed nothing; and since it had
    /// no cause to make another, it was sent every change from then on.
    #[test]
    fn a_list_announced_before_and_made_after_a_resume_narrows() {
        let page = |page| PageId { volume: VolumeId(1), page: PageNo(page) };
        let resumed_after = |parts: &[&[PageId]]| {
            let mut registration = Registration::nothing(&DownlinkConfig::default());
            registration.all();
            for part in parts {
                registration.holding(part, false);
            }
            registration.insert(page(7));
            registration.all();
            registration.insert(page(8));
            registration.holding(&[page(1)], false);
            registration.holding(&[], true);
            registration.check();
            registration.pages().map(|pages| pages.iter().collect::<Vec<_>>())
        };
        let all = vec![page(1), page(7), page(8)];
        assert_eq!(resumed_after(&[]), Some(all.clone()));
        assert_eq!(resumed_after(&[&[]]), Some(all), "announced");
        assert_eq!(resumed_after(&[&[page(2)]]), None, "begun");
    }

    /// A child fetched one page of each of many volumes. Each cost a table of its own, ten times
    /// what a page was thought to cost, and only pages were counted: a link took hundreds of
    /// megabytes.
    #[test]
    fn a_registration_is_bounded_by_its_memory() {
        let config = DownlinkConfig { registered_bytes_max: 3000, ..DownlinkConfig::default() };
        let mut registration = Registration::nothing(&config);
        let page = |volume, page| PageId { volume: VolumeId(volume), page: PageNo(page) };
        for number in 1..=64 * 80 {
            registration.insert(page(1, number));
        }
        registration.check();
        assert_eq!(registration.pages().map(PageSet::len), Some(64 * 80), "neighbours are cheap");
        for volume in 2..=10 {
            registration.insert(page(volume, 1));
        }
        registration.check();
        assert!(registration.pages().is_none(), "forgotten, and so for everything");
        // The list that narrows it again is bounded alike.
        registration.holding(&[page(1, 1)], true);
        assert_eq!(registration.pages().map(PageSet::len), Some(1));
        let list: Vec<PageId> = (1..=20).map(|volume| page(volume, 1)).collect();
        registration.holding(&list, true);
        registration.check();
        assert!(registration.pages().is_none());
    }
}
