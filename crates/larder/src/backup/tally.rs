//! Which pages a backup holds: counted while it is written, and counted again when it is read.

use super::format::{FormatError, Held, Trailer};
use larder_core::id::PageNo;
use std::collections::BTreeMap;

/// Page numbers of a word.
const WORD: u64 = 64;
/// Pages left out that are listed.
const LISTED_MAX: usize = 1000;

/// What is known of 64 pages, a bit each. A hostile file has its numbers far apart: a word and its
/// place in the map take about 70 bytes then, for the 20 of the file.
#[derive(Clone, Copy, Default)]
struct Word {
    /// In the first copy.
    base: u64,
    known: u64,
    present: u64,
    left_out: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Tally {
    words: BTreeMap<u64, Word>,
    known: u64,
    present: u64,
    left_out: u64,
}

fn set(bits: &mut u64, count: &mut u64, bit: u64, to: bool) {
    match (*bits & bit != 0, to) {
        (false, true) => *count += 1,
        (true, false) => *count -= 1,
        _ => return,
    }
    *bits ^= bit;
}

impl Tally {
    /// Takes note of what is held of a page. One of the first copy is in it once.
    pub(super) fn add<T>(
        &mut self,
        page: PageNo,
        base: bool,
        held: &Held<T>,
    ) -> Result<(), FormatError> {
        let word = self.words.entry(page.0 / WORD).or_default();
        let bit = 1 << (page.0 % WORD);
        if base && word.base & bit != 0 {
            return Err(FormatError::Damaged(format!(
                "page {} is in the first copy twice",
                page.0
            )));
        }
        word.base |= if base { bit } else { 0 };
        set(&mut word.known, &mut self.known, bit, true);
        set(&mut word.present, &mut self.present, bit, held.image().is_some());
        set(&mut word.left_out, &mut self.left_out, bit, matches!(held, Held::LeftOut));
        Ok(())
    }

    /// Pages with an image.
    pub(super) fn pages(&self) -> u64 {
        self.present
    }

    pub(super) fn deleted(&self) -> u64 {
        self.known - self.present - self.left_out
    }

    pub(super) fn count_left_out(&self) -> u64 {
        self.left_out
    }

    /// The first pages that were left out.
    pub(super) fn left_out(&self) -> Vec<PageNo> {
        let words = self.words.iter().filter(|(_, word)| word.left_out != 0);
        let pages = words.flat_map(|(at, word)| {
            let set = (0..WORD).filter(|bit| word.left_out & (1 << bit) != 0);
            set.map(|bit| PageNo(*at * WORD + bit))
        });
        pages.take(LISTED_MAX).collect()
    }

    /// Whether the file holds what its trailer says, and no page that was never given a number.
    pub(super) fn check(&self, trailer: &Trailer) -> Result<(), FormatError> {
        let found = [self.pages(), self.deleted(), self.left_out];
        let told = [trailer.pages, trailer.deleted, trailer.left_out];
        if found != told {
            let text = |[pages, deleted, left_out]: [u64; 3]| {
                format!("{pages} pages, {deleted} deleted ones and {left_out} left out")
            };
            let (found, told) = (text(found), text(told));
            return Err(FormatError::Damaged(format!("it holds {found}, and should {told}")));
        }
        let last = self.words.last_key_value();
        let last = last.map_or(0, |(at, word)| *at * WORD + u64::from(word.known.ilog2()));
        if last >= trailer.next_page.0 {
            let next = trailer.next_page.0;
            return Err(FormatError::Damaged(format!(
                "it holds page {last}, and numbers from {next} on were never given away"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Held<()> = Held::Image(());

    #[test]
    fn the_last_word_on_a_page_counts() {
        let mut tally = Tally::default();
        for page in [1, 63, 64, 4095, 1 << 47] {
            tally.add(PageNo(page), true, &IMAGE).expect("once each");
        }
        assert!(tally.add(PageNo(64), true, &IMAGE).is_err(), "twice in the first copy");
        tally.add(PageNo(64), false, &Held::<()>::Deleted).expect("a later round");
        tally.add(PageNo(63), false, &Held::<()>::LeftOut).expect("a later round");
        tally.add(PageNo(65), false, &Held::<()>::LeftOut).expect("a later round");
        assert_eq!((tally.pages(), tally.deleted(), tally.count_left_out()), (3, 1, 2));
        assert_eq!(tally.left_out(), [PageNo(63), PageNo(65)]);
        tally.add(PageNo(65), false, &IMAGE).expect("a later round");
        assert_eq!((tally.pages(), tally.deleted(), tally.count_left_out()), (4, 1, 1));
    }

    /// Five million deleted pages with numbers far apart, 20 bytes of a file each, took three bitmaps
    /// of 512 bytes each: `verify` of 100 MB needed gigabytes. What is kept of one does not grow with
    /// how far it is from the next.
    #[test]
    fn numbers_far_apart_take_a_word_each() {
        let mut tally = Tally::default();
        for index in 1..=1000_u64 {
            tally.add(PageNo(index << 30), false, &Held::<()>::Deleted).expect("a later round");
        }
        let bytes = tally.words.len() * (size_of::<Word>() + size_of::<u64>());
        assert!(bytes <= 1000 * 40, "{bytes}");
    }
}
