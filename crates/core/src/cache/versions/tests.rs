//! The paper's reordering, its variants, and a model.

use super::*;
use crate::commit::PageKind;
use crate::id::{PageNo, VolumeId};
use crate::rng::Rng;

const FIRST: Generation = Generation(1);

fn page(number: u64) -> PageId {
    PageId { volume: VolumeId(1), page: PageNo(number) }
}

fn put(number: u64, slot: u16, value: &'static str) -> Write {
    let value = Bytes::from_static(value.as_bytes());
    Write { page: page(number), op: Op::Put { slot: Slot(slot), generation: FIRST, value } }
}

fn add(number: u64, slot: u16) -> Write {
    let op = Op::Add { slot: Slot(slot), generation: FIRST, offset: 0, delta: 1 };
    Write { page: page(number), op }
}

fn object(stamp: u64, value: &'static str) -> Ahead {
    let (stamp, value) = (Stamp(stamp), Bytes::from_static(value.as_bytes()));
    Ahead::Object { stamp, generation: FIRST, value }
}

fn cache() -> VersionCache {
    VersionCache::new(VersionLimits::default())
}

/// Figure 5 of the paper: the reply of the coordinator brings the stamp of page 7 before an earlier change
/// of the page does.
#[test]
fn an_outcome_overtakes_an_earlier_change() {
    let mut ahead = cache();
    assert!(ahead.is_passed(Stamp(9)));
    assert_eq!(ahead.committed(Stamp(12), &[put(7, 1, "x")]), []);
    assert!(!ahead.is_passed(Stamp(9)));
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(9)), object(12, "x"));
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(9)), Ahead::Nothing, "r: the copy's");
    assert_eq!(ahead.above(page(7), Stamp(9)), Some(Stamp(12)));
    assert_eq!(ahead.above(page(8), Stamp(9)), None);
    // Change 11 has come: r is a hole in the copy, x stays.
    ahead.passed(Stamp(11));
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(11)), object(12, "x"));
    ahead.check();
    // And 12: the copy has x. Also when that is asked before `passed` was called.
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(12)), Ahead::Nothing);
    ahead.passed(Stamp(12));
    assert!(ahead.is_passed(Stamp(12)));
    assert_eq!((ahead.objects(), ahead.above(page(7), Stamp(12))), (0, None));
    ahead.check();
}

/// Two outcomes in the wrong order: the later value stays.
#[test]
fn outcomes_overtake_each_other() {
    let mut ahead = cache();
    assert_eq!(ahead.committed(Stamp(14), &[put(7, 1, "later"), put(7, 3, "c")]), []);
    assert_eq!(ahead.committed(Stamp(12), &[put(7, 1, "earlier"), put(7, 2, "b")]), []);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(9)), object(14, "later"));
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(9)), object(12, "b"));
    ahead.passed(Stamp(12));
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(12)), Ahead::Nothing);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(12)), object(14, "later"));
    ahead.check();
    ahead.passed(Stamp(14));
    assert!(ahead.is_passed(Stamp(14)));
}

/// An outcome that is told twice, over two links, changes nothing.
#[test]
fn an_outcome_is_told_twice() {
    let mut ahead = cache();
    let writes = [put(7, 2, "b"), put(7, 1, "a")];
    assert_eq!(ahead.committed(Stamp(12), &writes), []);
    assert_eq!(ahead.committed(Stamp(12), &writes), []);
    assert_eq!(ahead.objects(), 2);
    ahead.check();
    ahead.passed(Stamp(12));
    assert_eq!(ahead.objects(), 0);
    ahead.check();
}

/// What others may have changed as well is known when the stream has passed: a number that was added to.
#[test]
fn what_was_added_to_is_not_known() {
    let mut ahead = cache();
    let writes = [put(7, 1, "a"), add(7, 1), add(7, 2), put(7, 2, "b")];
    assert_eq!(ahead.committed(Stamp(12), &writes), []);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(9)), Ahead::Unknown { stamp: Stamp(12) });
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(9)), object(12, "b"), "whatever it was");
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(12)), Ahead::Nothing);
}

/// A page that was made: what was put into it is known, which slots there are is not.
#[test]
fn a_page_is_made_and_deleted() {
    let mut ahead = cache();
    let make = Write { page: page(7), op: Op::CreatePage(PageKind::Slotted) };
    assert_eq!(ahead.committed(Stamp(12), &[make, put(7, 1, "a")]), []);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(9)), object(12, "a"));
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(9)), Ahead::Unknown { stamp: Stamp(12) });
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(12)), Ahead::Nothing);
    let delete = Write { page: page(7), op: Op::DeletePage };
    assert_eq!(ahead.committed(Stamp(13), &[delete]), []);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(12)), Ahead::Unknown { stamp: Stamp(13) });
    ahead.check();
    let emptied = Op::Delete { slot: Slot(4), generation: FIRST };
    assert_eq!(ahead.committed(Stamp(14), &[Write { page: page(8), op: emptied }]), []);
    assert_eq!(ahead.get(page(8), Slot(4), Stamp(9)), Ahead::Emptied { stamp: Stamp(14) });
}

/// At the limit the oldest page is purged: it is to be fetched anew, and until the stream has passed nobody
/// takes its copy for the state after the commit.
#[test]
fn a_page_is_purged_at_the_limit() {
    let limits = VersionLimits { objects_max: 3, bytes_max: 1 << 10, pages_max: 8 };
    let mut ahead = VersionCache::new(limits);
    assert_eq!(ahead.committed(Stamp(12), &[put(7, 1, "a"), put(7, 2, "b")]), []);
    assert_eq!(ahead.committed(Stamp(13), &[put(8, 1, "c"), put(7, 3, "d")]), [page(7)]);
    ahead.check();
    assert_eq!(ahead.objects(), 2);
    for slot in [1, 2, 4] {
        // Slot 4 too: only what is known tells slots apart.
        let looked = ahead.get(page(7), Slot(slot), Stamp(9));
        assert_eq!(looked, Ahead::Unknown { stamp: Stamp(12) }, "slot {slot}");
    }
    assert_eq!(ahead.get(page(7), Slot(3), Stamp(9)), object(13, "d"));
    assert_eq!(ahead.get(page(8), Slot(1), Stamp(9)), object(13, "c"));
    ahead.passed(Stamp(13));
    assert!(ahead.is_passed(Stamp(13)));
    ahead.check();
}

/// Beyond the bound of pages one stamp stands for all that was forgotten.
#[test]
fn pages_are_forgotten_at_the_limit() {
    let limits = VersionLimits { objects_max: 64, bytes_max: 1 << 10, pages_max: 2 };
    let mut ahead = VersionCache::new(limits);
    assert_eq!(ahead.committed(Stamp(12), &[put(6, 1, "a"), put(7, 1, "b")]), []);
    assert_eq!(ahead.committed(Stamp(13), &[put(8, 1, "c")]), [page(6)]);
    ahead.check();
    let unknown = Ahead::Unknown { stamp: Stamp(12) };
    for other in [6, 9] {
        assert_eq!(ahead.get(page(other), Slot(1), Stamp(9)), unknown);
    }
    assert_eq!(ahead.get(page(7), Slot(2), Stamp(9)), unknown);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(9)), object(12, "b"));
    assert_eq!(ahead.get(page(9), Slot(1), Stamp(12)), Ahead::Nothing);
    ahead.clear();
    assert_eq!(ahead.get(page(9), Slot(1), Stamp(9)), Ahead::Nothing);
}

/// Commits that write the same page again and again, ahead of a stream that stands still, are listed so often at most: each
/// listing beyond that is looked at once, and what was forgotten is waited for up to there.
#[test]
fn commits_of_one_page_are_listed_so_often_at_most() {
    let limits = VersionLimits { objects_max: 64, bytes_max: 1 << 10, pages_max: 2 };
    let mut ahead = VersionCache::new(limits);
    for stamp in 10..1_000 {
        let slot = (stamp % 5) as u16;
        let _ = ahead.committed(Stamp(stamp), &[put(7, slot, "a")]);
        assert_eq!(ahead.committed(Stamp(stamp), &[]), [], "what only reads is listed nowhere");
        ahead.check();
    }
    assert_eq!(ahead.get(page(7), Slot(4), Stamp(9)), object(999, "a"));
    assert_eq!(ahead.get(page(7), Slot(9), Stamp(9)), Ahead::Nothing, "nothing was forgotten");
    ahead.passed(Stamp(999));
    assert!(ahead.is_passed(Stamp(999)));
    ahead.check();
}

/// A page was forgotten with what commit 14 made of it: the outcome of commit 12, which comes later, does not
/// bring an older value back (found by the comparison below).
#[test]
fn an_outcome_comes_after_its_page_was_forgotten() {
    let limits = VersionLimits { objects_max: 64, bytes_max: 1 << 10, pages_max: 1 };
    let mut ahead = VersionCache::new(limits);
    assert_eq!(ahead.committed(Stamp(14), &[put(7, 1, "later")]), []);
    assert_eq!(ahead.committed(Stamp(15), &[put(8, 1, "c")]), [page(7)]);
    assert_eq!(ahead.committed(Stamp(12), &[put(7, 1, "earlier")]), []);
    let looked = ahead.get(page(7), Slot(1), Stamp(9));
    assert_eq!(looked, Ahead::Unknown { stamp: Stamp(14) });
    ahead.check();
}

/// Commit 14 made a page and filled it; the outcome of an earlier one that deleted it comes later, and takes
/// nothing of that away (found by the comparison below).
#[test]
fn an_outcome_comes_after_its_page_was_made_anew() {
    let of_page = |op| Write { page: page(7), op };
    let mut ahead = cache();
    let made = [of_page(Op::CreatePage(PageKind::Slotted)), put(7, 1, "a")];
    assert_eq!(ahead.committed(Stamp(14), &made), []);
    assert_eq!(ahead.committed(Stamp(12), &[of_page(Op::DeletePage)]), []);
    assert_eq!(ahead.get(page(7), Slot(1), Stamp(9)), object(14, "a"));
    ahead.check();
}

/// Against a list of all that was committed: an object that stands ahead is what the last commit made of it,
/// and nothing stands ahead only where no commit above valid-through wrote.
#[test]
fn a_version_cache_tells_what_the_last_commit_wrote() {
    let mut rng = Rng::new(5);
    for round in 0..400 {
        let small = round % 2 == 0;
        let limits = if small {
            VersionLimits { objects_max: 6, bytes_max: 24, pages_max: 3 }
        } else {
            VersionLimits::default()
        };
        let mut ahead = VersionCache::new(limits);
        let mut commits: BTreeMap<Stamp, Vec<Write>> = BTreeMap::new();
        let mut through = Stamp(0);
        for _ in 0..40 {
            if rng.below(4) == 0 {
                through = Stamp(through.0 + rng.below(4));
                ahead.passed(through);
            } else {
                let stamp = Stamp(through.0 + 1 + rng.below(6));
                // A stamp is of one commit, which may be told again.
                let writes = commits.entry(stamp).or_insert_with(|| some_writes(&mut rng));
                let purged = ahead.committed(stamp, writes);
                assert!(small || purged.is_empty());
            }
            ahead.check();
            for (number, slot) in (0..5).flat_map(|page| (0..4).map(move |slot| (page, slot))) {
                let looked = ahead.get(page(number), Slot(slot), through);
                let known = truth(&commits, through, (page(number), Slot(slot)));
                match (&looked, &known) {
                    (Ahead::Unknown { stamp }, _) if small => assert!(*stamp > through),
                    _ => assert_eq!(looked, known),
                }
            }
        }
    }
}

fn some_writes(rng: &mut Rng) -> Vec<Write> {
    let one = |rng: &mut Rng| {
        let (number, slot) = (rng.below(5), Slot(rng.below(4) as u16));
        let generation = FIRST;
        let value = Bytes::from(rng.next_u64().to_le_bytes().to_vec());
        let op = match rng.below(12) {
            0 => Op::CreatePage(PageKind::Slotted),
            1 => Op::DeletePage,
            2 | 3 => Op::Add { slot, generation, offset: 0, delta: 1 },
            4 | 5 => Op::Delete { slot, generation },
            _ => Op::Put { slot, generation, value },
        };
        Write { page: page(number), op }
    };
    (0..1 + rng.below(6)).map(|_| one(rng)).collect()
}

/// What stands ahead at a slot, from all commits.
fn truth(
    commits: &BTreeMap<Stamp, Vec<Write>>,
    through: Stamp,
    (page, slot): (PageId, Slot),
) -> Ahead {
    let mut known = Ahead::Nothing;
    let above = commits.iter().filter(|(stamp, _)| **stamp > through);
    for (&stamp, write) in above.flat_map(|(stamp, list)| list.iter().map(move |w| (stamp, w))) {
        if write.page != page {
            continue;
        }
        match (&write.op, Value::of(&write.op)) {
            (_, Some((written, value))) if written == slot => {
                known = match value {
                    Value::Object(generation, value) => Ahead::Object { stamp, generation, value },
                    Value::Emptied => Ahead::Emptied { stamp },
                    Value::Unknown => Ahead::Unknown { stamp },
                }
            }
            (_, Some(_)) => {}
            (_, None) => known = Ahead::Unknown { stamp },
        }
    }
    known
}
