//! Where a walker goes next. The story: a cold walk of 5,000 files in 1,000 directories behind a
//! line of 40 ms took 54 s, since every directory was asked for when it was reached.

use super::super::record::Extents;
use super::super::walk::{File, Found, Walk};
use larder_core::id::PageNo;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Puts a directory's directories in the order in which they are walked.
type Order = fn(&mut Vec<(bytes::Bytes, PageNo)>);

/// A tree of directories, and what has been asked for of it.
struct World {
    directories: BTreeMap<PageNo, Found>,
    walk: Walk,
    now: Instant,
    /// Directories looked into ahead, and looked at without that.
    known: BTreeMap<PageNo, bool>,
    missed: usize,
    files: BTreeSet<PageNo>,
    asked: usize,
    /// Files read that were not asked for.
    unread: usize,
}

/// The file in a directory.
fn file(directory: PageNo) -> Extents {
    Extents { firsts: vec![PageNo(directory.0 | 1 << 32)], high: 1, sparse: false, missing: 0 }
}

/// Numbers that look drawn.
fn drawn(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

impl World {
    /// `widths[0]` directories in the root, `widths[1]` in each of them, and so on; each has one
    /// file of 100,000 bytes.
    fn new(widths: &[u64]) -> Self {
        let mut directories = BTreeMap::new();
        let mut level = vec![PageNo(1)];
        let mut next = 2;
        for width in widths.iter().copied().chain([0]) {
            for page in std::mem::take(&mut level) {
                let children: Vec<PageNo> = (next..next + width).map(PageNo).collect();
                next += width;
                let name = |page: &PageNo| format!("{:08x}", drawn(page.0)).into();
                let named = children.iter().map(|page| (name(page), *page)).collect();
                let files = vec![File { extents: file(page), bytes: 100_000 }];
                directories.insert(page, Found { directories: named, files, more: false });
                level.extend(children);
            }
        }
        Self {
            directories,
            walk: Walk::default(),
            now: Instant::now(),
            known: BTreeMap::new(),
            missed: 0,
            files: BTreeSet::new(),
            asked: 0,
            unread: 0,
        }
    }

    /// Looks into all that is wanted now, as if it took no time.
    fn crawl(&mut self) {
        loop {
            let batch = self.walk.next_directories(64);
            for page in &batch {
                self.known.insert(*page, false);
                self.walk.found(*page, self.directories.get(page).cloned());
            }
            let files = self.walk.next_files();
            self.asked += files.len();
            self.files.extend(files);
            if batch.is_empty() {
                return;
            }
        }
    }

    fn look(&mut self, page: PageNo) {
        self.missed += usize::from(!self.known.contains_key(&page));
        self.known.insert(page, true);
        self.walk.look(page, self.now);
        self.crawl();
    }

    /// Depth first, each directory's in this order.
    fn walk(&mut self, order: Order, read: bool) {
        let mut waiting = vec![PageNo(1)];
        while let Some(page) = waiting.pop() {
            self.look(page);
            if read {
                self.unread += usize::from(!self.files.contains(&file(page).firsts[0]));
                self.walk.read(file(page).page(0));
                self.crawl();
            }
            let mut children = self.directories[&page].directories.clone();
            order(&mut children);
            waiting.extend(children.iter().rev().map(|(_, page)| *page));
        }
    }

    fn ahead(&self) -> usize {
        self.known.values().filter(|looked_at| !**looked_at).count()
    }
}

#[test]
fn a_walk_is_foreseen_in_every_order() {
    let orders: [Order; 4] =
        [|_| {}, |all| all.reverse(), |all| all.sort(), |all| all.sort_by(|a, b| b.cmp(a))];
    for widths in [&[700][..], &[12, 12, 12], &[2; 10], &[1; 100]] {
        for order in orders {
            let mut world = World::new(widths);
            world.walk(order, true);
            assert_eq!(world.known.len(), world.directories.len());
            assert!(world.missed <= 4, "{} missed of {widths:?}", world.missed);
            assert!(
                world.unread <= 6 + world.files.len() / 100,
                "{} not asked for of {widths:?}",
                world.unread
            );
            assert_eq!(world.files.len() + world.unread, world.directories.len());
            assert_eq!(world.asked, world.files.len(), "every file once");
        }
    }
}

/// With more directories than the window holds, the order matters: what comes next is in it.
#[test]
fn a_walk_through_a_large_tree_is_foreseen() {
    let orders: [Order; 2] = [|_| {}, |all| all.sort()];
    for order in orders {
        let mut world = World::new(&[300, 30]);
        world.walk(order, false);
        assert!(world.missed <= 4, "{} missed", world.missed);
        assert!(world.files.is_empty(), "nobody reads");
    }
}

/// Somebody looks at a directory here and there: what is below each is not what he wants.
#[test]
fn who_does_not_walk_costs_little() {
    let mut world = World::new(&[100, 100]);
    let below: Vec<PageNo> = world.directories.keys().copied().filter(|page| page.0 > 1).collect();
    for step in 0..50 {
        let before = world.ahead();
        let page = below[(step * 37) % 100];
        world.look(page);
        assert!(world.ahead() <= before + 17, "{} more", world.ahead() - before);
    }
    assert!(world.files.is_empty());
}

/// A directory looked at again later: what was in the cache may be gone, so it is asked for anew;
/// looked at again and again, it is not.
#[test]
fn a_second_walk_is_walked_anew() {
    let mut world = World::new(&[50]);
    world.walk(|_| {}, false);
    world.known.clear();
    world.look(PageNo(1));
    assert_eq!(world.ahead(), 0);
    world.now += Duration::from_secs(60);
    world.known.clear();
    world.walk(|_| {}, false);
    assert_eq!(world.missed, 3, "the root only: at first, again, and at the second walk");
}

/// What could not be looked into is not counted as ahead for ever.
#[test]
fn failures_leave_nothing_behind() {
    let mut world = World::new(&[40]);
    world.look(PageNo(1));
    for _ in 0..100 {
        world.directories.retain(|page, _| page.0 == 1);
        world.now += Duration::from_secs(60);
        world.look(PageNo(1));
        world.look(PageNo(5));
    }
    let mut whole = World::new(&[40]);
    std::mem::swap(&mut whole.walk, &mut world.walk);
    whole.now = world.now + Duration::from_secs(60);
    whole.walk(|_| {}, false);
    assert!(whole.missed <= 1, "{} missed", whole.missed);
}

/// A reader went back and forth between two directories, and one of the files had a second name
/// and grew meanwhile: the count of what is asked for must come out even, or nothing would be
/// asked for any more.
#[test]
fn what_is_asked_for_is_counted_right() {
    let mut world = World::new(&[40]);
    let second = File { extents: file(PageNo(2)), bytes: 250_000 };
    world.directories.entry(PageNo(3)).or_default().files.push(second);
    world.walk(|_| {}, true);
    for step in 0..200 {
        world.look(PageNo(2 + step % 2));
        world.walk.read(file(PageNo(2)).page(0));
        world.crawl();
    }
    world.now += Duration::from_secs(60);
    world.files.clear();
    world.unread = 0;
    world.walk(|_| {}, true);
    assert!(world.unread <= 6, "{} not asked for", world.unread);
    assert_eq!(world.files.len() + world.unread, 41);
}

/// Of a large directory only the first names are looked at while it is ahead. When the walker
/// reached it the rest stayed unknown, and all that is in it was waited for one by one.
#[test]
fn a_directory_known_in_part_is_looked_into_again_when_it_is_reached() {
    let mut world = World::new(&[1, 100]);
    let (root, large) = (PageNo(1), PageNo(2));
    world.walk.look(root, world.now);
    assert_eq!(world.walk.next_directories(64), [root]);
    world.walk.found(root, world.directories.get(&root).cloned());
    assert_eq!(world.walk.next_directories(64), [large]);
    assert!(!world.walk.is_at(large));
    let mut part = world.directories[&large].clone();
    part.directories.truncate(3);
    world.walk.found(large, Some(Found { more: true, ..part }));
    world.walk.look(large, world.now);
    assert!(world.walk.is_at(large));
    assert_eq!(world.walk.next_directories(64)[0], large);
    world.walk.found(large, world.directories.get(&large).cloned());
    world.crawl();
    assert!(world.known.len() > 10);
}
