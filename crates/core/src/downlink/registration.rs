//! What a parent believes a child to hold: a hint to send less, bounded and forgettable.

use crate::id::{PageId, PageNo, VolumeId};
use std::collections::BTreeMap;

/// A set of pages: per volume a bit per page, in words of 64. A page costs between 1/4 byte
/// (neighbours) and about 30 bytes (alone).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageSet {
    volumes: BTreeMap<VolumeId, BTreeMap<u64, u64>>,
    len: usize,
}

impl PageSet {
    /// Adds a page; says whether it was not there.
    pub(crate) fn insert(&mut self, id: PageId) -> bool {
        let words = self.volumes.entry(id.volume).or_default();
        let word = words.entry(id.page.0 / 64).or_default();
        let bit = 1 << (id.page.0 % 64);
        let new = *word & bit == 0;
        *word |= bit;
        self.len += usize::from(new);
        new
    }

    /// Removes a page.
    pub(crate) fn remove(&mut self, id: PageId) {
        let Some(words) = self.volumes.get_mut(&id.volume) else {
            return;
        };
        let Some(word) = words.get_mut(&(id.page.0 / 64)) else {
            return;
        };
        let bit = 1 << (id.page.0 % 64);
        self.len -= usize::from(*word & bit != 0);
        *word &= !bit;
        if *word == 0 {
            words.remove(&(id.page.0 / 64));
            if words.is_empty() {
                self.volumes.remove(&id.volume);
            }
        }
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

    /// All pages, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.volumes.iter().flat_map(|(volume, words)| {
            words.iter().flat_map(move |(index, word)| {
                (0..64)
                    .filter(move |bit| word & (1 << bit) != 0)
                    .map(move |bit| PageId { volume: *volume, page: PageNo(index * 64 + bit) })
            })
        })
    }
}

/// The list of pages held that a child sends in parts.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Gathered {
    /// None is under way.
    Off,
    /// What was listed and fetched so far, less what was evicted; and whether a list has begun.
    Set(PageSet, bool),
    /// It passed the bound: its end will narrow nothing.
    Over,
}

/// A link's registration of one domain (decision 0003).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    exact: Option<PageSet>,
    gathered: Gathered,
    pages_max: usize,
}

impl Registration {
    /// For a child that holds nothing.
    pub(crate) fn nothing(pages_max: usize) -> Self {
        Self { exact: Some(PageSet::default()), gathered: Gathered::Off, pages_max }
    }

    /// For everything (rule 17). What is fetched from here on counts as listed.
    pub(crate) fn all(&mut self) {
        self.exact = None;
        self.gathered = match self.gathered {
            // A list begun before cannot name what this registration is for.
            Gathered::Set(_, true) | Gathered::Over => Gathered::Over,
            Gathered::Set(ref mut set, false) => Gathered::Set(std::mem::take(set), false),
            Gathered::Off => Gathered::Set(PageSet::default(), false),
        };
    }

    /// Whether changes to the page are to be sent.
    #[inline]
    pub(crate) fn contains(&self, page: PageId) -> bool {
        self.exact.as_ref().is_none_or(|set| set.contains(page))
    }

    /// The child asks for the page, or will hold it (rule 10). Past the bound the set is forgotten.
    /// Says whether the page is new to it.
    pub(crate) fn insert(&mut self, page: PageId) -> bool {
        if let Gathered::Set(set, _) = &mut self.gathered {
            set.insert(page);
            if set.len() > self.pages_max {
                self.gathered = Gathered::Over;
            }
        }
        let Some(set) = &mut self.exact else {
            return false;
        };
        let new = set.insert(page);
        if set.len() > self.pages_max {
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

    /// Takes a part of the list of all pages held; `done` narrows the registration to it.
    pub(crate) fn holding(&mut self, pages: &[PageId], done: bool) {
        if self.gathered == Gathered::Off {
            self.gathered = Gathered::Set(PageSet::default(), true);
        }
        if let Gathered::Set(set, begun) = &mut self.gathered {
            *begun = true;
            for page in pages {
                set.insert(*page);
            }
            if set.len() > self.pages_max {
                self.gathered = Gathered::Over;
            }
        }
        if done {
            self.exact = match std::mem::replace(&mut self.gathered, Gathered::Off) {
                Gathered::Set(set, _) => Some(set),
                Gathered::Off | Gathered::Over => None,
            };
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
            assert!(set.len() <= self.pages_max, "a registration outgrew its bound");
            assert_eq!(set.len(), set.iter().count(), "a page set lost count");
        }
    }
}
