//! Which pages a backup holds: counted while it is written, and counted again when it is read.

use super::format::{FormatError, Trailer};
use larder_core::id::PageNo;
use std::collections::BTreeMap;

/// Bits of a word, and words of a piece.
const WORD: u64 = 64;
const WORDS: usize = 64;

/// A set of page numbers: two bits of memory a page where they lie close together.
#[derive(Default)]
pub(super) struct PageSet {
    pieces: BTreeMap<u64, Box<[u64; WORDS]>>,
    count: u64,
}

impl PageSet {
    fn place(page: PageNo) -> (u64, usize, u64) {
        let word = page.0 / WORD;
        (word / WORDS as u64, (word % WORDS as u64) as usize, 1 << (page.0 % WORD))
    }

    pub(super) fn contains(&self, page: PageNo) -> bool {
        let (piece, word, bit) = Self::place(page);
        self.pieces.get(&piece).is_some_and(|words| words[word] & bit != 0)
    }

    /// Whether it was not in it.
    pub(super) fn insert(&mut self, page: PageNo) -> bool {
        let (piece, word, bit) = Self::place(page);
        let word = &mut self.pieces.entry(piece).or_insert_with(|| Box::new([0; WORDS]))[word];
        let new = *word & bit == 0;
        *word |= bit;
        self.count += u64::from(new);
        new
    }

    pub(super) fn remove(&mut self, page: PageNo) {
        let (piece, word, bit) = Self::place(page);
        if let Some(words) = self.pieces.get_mut(&piece)
            && words[word] & bit != 0
        {
            words[word] &= !bit;
            self.count -= 1;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Tally {
    base: PageSet,
    known: PageSet,
    present: PageSet,
}

impl Tally {
    /// Takes note of a page, there or deleted. One of the first copy is in it once.
    pub(super) fn add(&mut self, page: PageNo, base: bool, there: bool) -> Result<(), FormatError> {
        if base && !self.base.insert(page) {
            return Err(FormatError::Damaged(format!(
                "page {} is in the first copy twice",
                page.0
            )));
        }
        self.known.insert(page);
        if there {
            self.present.insert(page);
        } else {
            self.present.remove(page);
        }
        Ok(())
    }

    pub(super) fn pages(&self) -> u64 {
        self.present.count()
    }

    pub(super) fn deleted(&self) -> u64 {
        self.known.count() - self.present.count()
    }

    pub(super) fn check(&self, trailer: &Trailer) -> Result<(), FormatError> {
        if (self.pages(), self.deleted()) != (trailer.pages, trailer.deleted) {
            return Err(FormatError::Damaged(format!(
                "it holds {} pages and {} deleted ones, and should {} and {}",
                self.pages(),
                self.deleted(),
                trailer.pages,
                trailer.deleted
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_counts_what_is_in_it() {
        let mut set = PageSet::default();
        for page in [1, 63, 64, 4095, 4096, 1 << 47, 64] {
            set.insert(PageNo(page));
        }
        assert_eq!(set.count(), 6);
        set.remove(PageNo(64));
        set.remove(PageNo(65));
        assert_eq!(set.count(), 5);
        assert!(set.contains(PageNo(1 << 47)) && !set.contains(PageNo(64)));
    }
}
