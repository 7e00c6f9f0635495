//! The policies against models that search lists instead of keeping tickets.

use super::*;
use crate::id::{PageNo, VolumeId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn page(no: u64) -> PageId {
    PageId { volume: VolumeId(1), page: PageNo(no) }
}

#[derive(Clone, Debug)]
enum Act {
    Insert(u64),
    Remove(u64),
    Hit(u64),
    Pin(u64),
    Unpin(u64),
    Evict,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let no = 1..24u64;
    let act = prop_oneof![
        4 => no.clone().prop_map(Act::Insert),
        1 => no.clone().prop_map(Act::Remove),
        4 => no.clone().prop_map(Act::Hit),
        1 => no.clone().prop_map(Act::Pin),
        1 => no.prop_map(Act::Unpin),
        3 => Just(Act::Evict),
    ];
    proptest::collection::vec(act, 0..200)
}

/// Second-chance queue, as a plain list.
#[derive(Default)]
struct LruModel(Vec<PageId>);

impl LruModel {
    fn evict(&mut self, uses: &mut dyn FnMut(PageId) -> Use) -> Option<PageId> {
        for _ in 0..=2 * self.0.len() {
            if self.0.is_empty() {
                return None;
            }
            let page = self.0.remove(0);
            if uses(page) == Use::Hits(0) {
                return Some(page);
            }
            self.0.push(page);
        }
        None
    }
}

/// S3-FIFO with one cost for all, as plain lists.
#[derive(Default)]
struct S3Model {
    small: Vec<(PageId, u8)>,
    main: Vec<(PageId, u8)>,
    ghosts: Vec<PageId>,
}

impl S3Model {
    fn insert(&mut self, page: PageId) {
        if let Some(at) = self.ghosts.iter().position(|&ghost| ghost == page) {
            self.ghosts.remove(at);
            self.main.push((page, 0));
        } else {
            self.small.push((page, 0));
        }
    }

    fn remove(&mut self, page: PageId) {
        self.small.retain(|entry| entry.0 != page);
        self.main.retain(|entry| entry.0 != page);
    }

    fn evict(&mut self, uses: &mut dyn FnMut(PageId) -> Use) -> Option<PageId> {
        for _ in 0..=5 * (self.small.len() + self.main.len()) {
            let all = self.small.len() + self.main.len();
            let small = self.small.len() * 10 > all || self.main.is_empty();
            let queue = if small { &mut self.small } else { &mut self.main };
            if queue.is_empty() {
                return None;
            }
            let (page, credit) = queue.remove(0);
            match uses(page) {
                Use::Pinned => queue.push((page, credit)),
                Use::Hits(hits) if small && credit + hits > 1 => self.main.push((page, 0)),
                Use::Hits(hits) if !small && credit + hits > 0 => {
                    self.main.push((page, (credit + hits).min(3) - 1));
                }
                Use::Hits(_) => {
                    if small {
                        self.ghosts.push(page);
                        let max = (self.small.len() + self.main.len()).max(1);
                        while self.ghosts.len() > max {
                            self.ghosts.remove(0);
                        }
                    }
                    return Some(page);
                }
            }
        }
        None
    }
}

/// Runs the acts against a policy and a model, each with hits of its own.
fn compare<M: Default>(
    policy: &mut dyn Policy,
    acts: Vec<Act>,
    insert: fn(&mut M, PageId),
    remove: fn(&mut M, PageId),
    evict: fn(&mut M, &mut dyn FnMut(PageId) -> Use) -> Option<PageId>,
) {
    let mut model = M::default();
    let (mut held, mut pins) = (BTreeSet::new(), BTreeSet::new());
    let (mut hits, mut model_hits) = (BTreeMap::new(), BTreeMap::new());
    for act in acts {
        match act {
            Act::Insert(no) if held.insert(page(no)) => {
                policy.insert(page(no), 1);
                insert(&mut model, page(no));
            }
            Act::Remove(no) if held.remove(&page(no)) => {
                policy.remove(page(no));
                remove(&mut model, page(no));
            }
            Act::Hit(no) if held.contains(&page(no)) => {
                for hits in [&mut hits, &mut model_hits] {
                    let count: &mut u8 = hits.entry(page(no)).or_default();
                    *count = (*count + 1).min(3);
                }
            }
            Act::Pin(no) => {
                pins.insert(page(no));
            }
            Act::Unpin(no) => {
                pins.remove(&page(no));
            }
            Act::Evict => {
                let uses = |hits: &mut BTreeMap<PageId, u8>, page: PageId| {
                    if pins.contains(&page) {
                        Use::Pinned
                    } else {
                        Use::Hits(hits.remove(&page).unwrap_or(0))
                    }
                };
                let gone = policy.evict(&mut |page| uses(&mut hits, page));
                assert_eq!(gone, evict(&mut model, &mut |page| uses(&mut model_hits, page)));
                if let Some(gone) = gone {
                    assert!(held.remove(&gone), "only pages held are evicted");
                    assert!(!pins.contains(&gone), "pinned pages stay");
                }
            }
            Act::Insert(_) | Act::Remove(_) | Act::Hit(_) => {}
        }
        hits.retain(|page, _| held.contains(page));
        model_hits.retain(|page, _| held.contains(page));
        assert_eq!(policy.len(), held.len());
    }
}

proptest! {
    #[test]
    fn lru_is_its_model(acts in acts()) {
        compare::<LruModel>(
            &mut Lru::default(),
            acts,
            |model, page| model.0.push(page),
            |model, page| model.0.retain(|&other| other != page),
            LruModel::evict,
        );
    }

    #[test]
    fn s3_fifo_is_its_model(acts in acts()) {
        compare::<S3Model>(
            &mut S3Fifo::default(),
            acts,
            S3Model::insert,
            S3Model::remove,
            S3Model::evict,
        );
    }
}

/// A scan of pages used once leaves what is used again and again in place.
#[test]
fn s3_fifo_survives_a_scan() {
    let mut policy = S3Fifo::default();
    let mut hot: BTreeSet<PageId> = (0..8).map(page).collect();
    hot.iter().for_each(|&page| policy.insert(page, 1));
    for no in 100..1000 {
        policy.insert(page(no), 1);
        if policy.len() > 20 {
            let gone = policy.evict(&mut |page| Use::Hits(if hot.contains(&page) { 3 } else { 0 }));
            hot.remove(&gone.expect("something may go"));
        }
    }
    assert_eq!(hot.len(), 8);
}
