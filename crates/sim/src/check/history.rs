//! What every page held at every stamp, rebuilt from the log records that the origin appends, with
//! none of the system's page code.

use bytes::Bytes;
use larder_core::commit::{Aspect, Op, PageKind, Target, Write};
use larder_core::id::{CommitId, Generation, PageId, Slot, Stamp, VolumeId};
use larder_core::page::Record;
use std::collections::BTreeMap;

/// One line of commits: a domain's history up to where it was last restored from a copy.
#[derive(Clone, Debug, Default)]
pub struct Branch {
    /// Commit number `n` is at `n - 1`.
    commits: Vec<Logged>,
    durable: Stamp,
    pages: BTreeMap<PageId, PageHistory>,
    ids: BTreeMap<CommitId, Stamp>,
    /// Volumes that were deleted, and when.
    deleted: BTreeMap<VolumeId, Stamp>,
    /// What clients saw is not compared with it: only to try what other checkers find.
    silent: bool,
}

/// A commit as the log has it.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Its id; none for the making of a volume.
    pub id: Option<CommitId>,
    /// The transaction, by its tag.
    pub tag: Option<u64>,
    /// What it changed, by page.
    pub touched: BTreeMap<PageId, Vec<(Target, Aspect)>>,
}

/// A value and the stamp that set it.
type Versions<T> = Vec<(Stamp, T)>;

/// An object, as a slot holds it.
pub type Held = (Generation, Record);

/// Everything a page ever held.
#[derive(Clone, Debug, Default)]
struct PageHistory {
    kind: Versions<Option<PageKind>>,
    slots: BTreeMap<u16, Versions<Option<Held>>>,
    raw: Versions<Bytes>,
    changed: Vec<Stamp>,
}

fn at<T>(versions: &[(Stamp, T)], stamp: Stamp) -> Option<&T> {
    let after = versions.partition_point(|(since, _)| *since <= stamp);
    after.checked_sub(1).map(|last| &versions[last].1)
}

fn set<T>(versions: &mut Versions<T>, stamp: Stamp, value: T) {
    match versions.last_mut() {
        Some((since, last)) if *since == stamp => *last = value,
        _ => versions.push((stamp, value)),
    }
}

fn cut<T>(versions: &mut Versions<T>, stamp: Stamp) {
    while versions.last().is_some_and(|(since, _)| *since > stamp) {
        versions.pop();
    }
}

impl Branch {
    /// A branch that what clients saw is not compared with.
    #[must_use]
    pub fn silent() -> Self {
        Self { silent: true, ..Self::default() }
    }

    /// See [`Branch::silent`].
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// The last commit logged, durable or not.
    #[must_use]
    pub fn last(&self) -> Stamp {
        Stamp(self.commits.len() as u64)
    }

    /// The last commit known to be on the disk.
    #[must_use]
    pub fn durable(&self) -> Stamp {
        self.durable
    }

    /// Everything logged so far is on the disk up to `stamp`.
    pub fn set_durable(&mut self, stamp: Stamp) {
        assert!(
            self.durable <= stamp && stamp <= self.last(),
            "durable stamp {stamp} is not between {} and {}",
            self.durable,
            self.last()
        );
        self.durable = stamp;
    }

    /// A commit by its stamp.
    #[must_use]
    pub fn commit(&self, stamp: Stamp) -> Option<&Logged> {
        let index = usize::try_from(stamp.0).ok()?.checked_sub(1)?;
        self.commits.get(index)
    }

    /// It was another transaction's commit after all.
    pub fn set_tag(&mut self, stamp: Stamp, tag: u64) {
        let index = usize::try_from(stamp.0).expect("stamps fit");
        self.commits[index - 1].tag = Some(tag);
    }

    /// The stamp of a commit id, if it is in the log.
    #[must_use]
    pub fn stamp_of(&self, id: CommitId) -> Option<Stamp> {
        self.ids.get(&id).copied()
    }

    /// Every page that ever was.
    pub fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.keys().copied()
    }

    /// The layout of a page at a stamp; none: it is not there.
    #[must_use]
    pub fn kind(&self, page: PageId, stamp: Stamp) -> Option<PageKind> {
        at(&self.pages.get(&page)?.kind, stamp).copied().flatten()
    }

    /// What a slot holds at a stamp.
    #[must_use]
    pub fn slot(&self, page: PageId, slot: Slot, stamp: Stamp) -> Option<&Held> {
        at(self.pages.get(&page)?.slots.get(&slot.0)?, stamp)?.as_ref()
    }

    /// All filled slots of a page at a stamp, ascending.
    pub fn slots(&self, page: PageId, stamp: Stamp) -> impl Iterator<Item = (Slot, &Held)> + '_ {
        self.pages.get(&page).into_iter().flat_map(|page| page.slots.iter()).filter_map(
            move |(slot, versions)| at(versions, stamp)?.as_ref().map(|held| (Slot(*slot), held)),
        )
    }

    /// A raw page's content at a stamp.
    #[must_use]
    pub fn raw(&self, page: PageId, stamp: Stamp) -> Option<&Bytes> {
        at(&self.pages.get(&page)?.raw, stamp)
    }

    /// The stamp that last changed a page, at a stamp; `ZERO` for a page that never was.
    #[must_use]
    pub fn version(&self, page: PageId, stamp: Stamp) -> Stamp {
        let Some(page) = self.pages.get(&page) else {
            return Stamp::ZERO;
        };
        let after = page.changed.partition_point(|since| *since <= stamp);
        after.checked_sub(1).map_or(Stamp::ZERO, |last| page.changed[last])
    }

    /// The stamps above `from` that changed a page, ascending.
    pub fn changes(&self, page: PageId, from: Stamp) -> impl Iterator<Item = Stamp> + '_ {
        let changed = self.pages.get(&page).map_or(&[][..], |page| &page.changed);
        changed[changed.partition_point(|since| *since <= from)..].iter().copied()
    }

    /// Slots of a page that were emptied at some time.
    #[must_use]
    pub fn emptied(&self, page: PageId) -> usize {
        let slots = self.pages.get(&page).into_iter().flat_map(|page| page.slots.values());
        slots.filter(|versions| versions.iter().any(|(_, held)| held.is_none())).count()
    }

    /// Whether a page was ever made.
    #[must_use]
    pub fn was_made(&self, page: PageId) -> bool {
        self.pages.get(&page).is_some_and(|page| !page.kind.is_empty())
    }

    /// Objects, pages and the like that commits above `from` changed, each as often as it was.
    #[must_use]
    pub fn touched_since(&self, from: Stamp) -> usize {
        let index = usize::try_from(from.0).expect("stamps fit").min(self.commits.len());
        let touched = self.commits[index..].iter().flat_map(|commit| commit.touched.values());
        touched.map(Vec::len).sum()
    }

    /// The pages changed in (`from`, `through`].
    pub fn changed(&self, from: Stamp, through: Stamp) -> impl Iterator<Item = PageId> + '_ {
        let index =
            |stamp: Stamp| usize::try_from(stamp.0).expect("stamps fit").min(self.commits.len());
        self.commits[index(from).min(index(through))..index(through)]
            .iter()
            .flat_map(|commit| commit.touched.keys().copied())
    }

    /// Adds the making of a volume.
    pub fn add_volume(&mut self, stamp: Stamp, root: PageId) {
        let page = self.pages.entry(root).or_default();
        assert!(page.kind.is_empty(), "volume made twice: {root}");
        page.kind.push((stamp, Some(PageKind::Slotted)));
        page.changed.push(stamp);
        let touched = BTreeMap::from([(root, vec![(Target::Page, Aspect::Existence)])]);
        self.push(stamp, Logged { id: None, tag: None, touched });
    }

    /// Adds the deletion of a volume: none of its pages is there any more.
    pub fn add_deletion(&mut self, stamp: Stamp, volume: VolumeId) {
        let of_volume = self.pages.iter_mut().filter(|(page, _)| page.volume == volume);
        let mut touched = BTreeMap::new();
        for (&page, history) in of_volume.filter(|(_, history)| history.kind_now().is_some()) {
            history.apply(stamp, &Write { page, op: Op::DeletePage });
            history.changed.push(stamp);
            touched.insert(page, vec![(Target::Page, Aspect::Existence)]);
        }
        assert!(!touched.is_empty(), "deletion {stamp} of {volume}, which is not there");
        self.deleted.insert(volume, stamp);
        self.push(stamp, Logged { id: None, tag: None, touched });
    }

    /// The stamp of a volume's deletion.
    #[must_use]
    pub fn deleted(&self, volume: VolumeId) -> Option<Stamp> {
        self.deleted.get(&volume).copied()
    }

    /// Adds a commit; panics when one of its writes could not have been allowed.
    pub fn add_commit(&mut self, stamp: Stamp, id: CommitId, tag: Option<u64>, writes: &[Write]) {
        let before = self.ids.insert(id, stamp);
        assert!(
            before.is_none(),
            "P11: exactly once: {id:?} is commit {before:?} and again {stamp}"
        );
        let mut touched: BTreeMap<PageId, Vec<(Target, Aspect)>> = BTreeMap::new();
        for write in writes {
            let deleted = self.deleted.get(&write.page.volume);
            assert!(
                deleted.is_none(),
                "deletions: commit {stamp} writes {}, whose volume was deleted at {deleted:?}",
                write.page
            );
            let page = self.pages.entry(write.page).or_default();
            let what = page.apply(stamp, write);
            if page.changed.last() != Some(&stamp) {
                page.changed.push(stamp);
            }
            let list = touched.entry(write.page).or_default();
            if !list.contains(&what) {
                list.push(what);
            }
        }
        self.push(stamp, Logged { id: Some(id), tag, touched });
    }

    fn push(&mut self, stamp: Stamp, commit: Logged) {
        assert_eq!(stamp, self.last().next(), "stamps go up by one");
        self.commits.push(commit);
    }

    /// Forgets what is above `stamp`: it was lost in a crash, or with an old copy. Gives the tags
    /// of the transactions forgotten.
    pub fn truncate(&mut self, stamp: Stamp) -> Vec<u64> {
        let mut tags = Vec::new();
        while self.last() > stamp {
            let commit = self.commits.pop().expect("last is above a stamp");
            tags.extend(commit.tag);
            if let Some(id) = commit.id {
                self.ids.remove(&id);
            }
            for page in commit.touched.keys() {
                let history = self.pages.get_mut(page).expect("a commit's pages are known");
                history.truncate(stamp);
            }
        }
        self.deleted.retain(|_, deletion| *deletion <= stamp);
        self.durable = self.durable.min(stamp);
        tags
    }
}

impl PageHistory {
    fn kind_now(&self) -> Option<PageKind> {
        self.kind.last().and_then(|(_, kind)| *kind)
    }

    fn held(&self, slot: Slot) -> Option<&Held> {
        self.slots.get(&slot.0)?.last()?.1.as_ref()
    }

    fn generation_used(&self, slot: Slot) -> Generation {
        let filled = self.slots.get(&slot.0).into_iter().flatten();
        filled.filter_map(|(_, held)| held.as_ref().map(|held| held.0)).max().unwrap_or_default()
    }

    fn apply(&mut self, stamp: Stamp, write: &Write) -> (Target, Aspect) {
        match &write.op {
            Op::CreatePage(kind) => {
                assert!(self.kind.is_empty(), "{stamp}: page {} is made again", write.page);
                self.kind.push((stamp, Some(*kind)));
                if *kind == PageKind::Raw {
                    self.raw.push((stamp, Bytes::new()));
                }
                (Target::Page, Aspect::Existence)
            }
            Op::DeletePage => {
                assert!(self.kind_now().is_some(), "{stamp}: deletes no page {}", write.page);
                set(&mut self.kind, stamp, None);
                for versions in self.slots.values_mut() {
                    if versions.last().is_some_and(|(_, held)| held.is_some()) {
                        set(versions, stamp, None);
                    }
                }
                (Target::Page, Aspect::Existence)
            }
            Op::WriteRaw { .. } | Op::TruncateRaw { .. } => self.apply_raw(stamp, write),
            _ => self.apply_slot(stamp, write),
        }
    }

    fn apply_raw(&mut self, stamp: Stamp, write: &Write) -> (Target, Aspect) {
        assert_eq!(self.kind_now(), Some(PageKind::Raw), "{stamp}: raw write to {}", write.page);
        let mut content = self.raw.last().expect("a raw page has content").1.to_vec();
        match &write.op {
            Op::WriteRaw { offset, bytes } => {
                let offset = *offset as usize;
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[offset..end].copy_from_slice(bytes);
            }
            Op::TruncateRaw { length } => content.resize(*length as usize, 0),
            other => unreachable!("{other:?} is not raw"),
        }
        set(&mut self.raw, stamp, Bytes::from(content));
        (Target::Slot(Slot(0)), Aspect::Value)
    }

    fn apply_slot(&mut self, stamp: Stamp, write: &Write) -> (Target, Aspect) {
        let page = write.page;
        assert_eq!(self.kind_now(), Some(PageKind::Slotted), "{stamp}: slot write to {page}");
        let (slot, generation) = match &write.op {
            Op::Put { slot, generation, .. }
            | Op::Delete { slot, generation }
            | Op::Add { slot, generation, .. }
            | Op::Max { slot, generation, .. } => (*slot, *generation),
            other => unreachable!("{other:?} names no slot"),
        };
        let held = self.held(slot).cloned();
        let before = held.as_ref().map(|(_, record)| std::mem::discriminant(record));
        let is_put = matches!(write.op, Op::Put { .. });
        let created = is_put && held.is_none();
        if created {
            let used = self.generation_used(slot);
            assert!(
                generation > used,
                "rule 18: {stamp}: {page} {slot:?} is filled with {generation:?} after {used:?}"
            );
        } else {
            let there = held.as_ref().map(|held| held.0);
            assert_eq!(there, Some(generation), "{stamp}: {page} {slot:?}: a reference to another");
        }
        let now = match &write.op {
            Op::Put { value, .. } => {
                Some(Record::decode(value.clone()).expect("the origin logs records that decode"))
            }
            Op::Delete { .. } => None,
            Op::Add { offset, delta, .. } => {
                let (_, record) = held.expect("compared above");
                Some(number(&record, *offset, |old| old.wrapping_add(*delta as u64)))
            }
            Op::Max { offset, value, .. } => {
                let (_, record) = held.expect("compared above");
                Some(number(&record, *offset, |old| old.max(*value)))
            }
            other => unreachable!("{other:?} names no slot"),
        };
        // An object that moved, or moved back, is read from elsewhere: whoever asked for it is concerned.
        let same_kind = now.as_ref().map(std::mem::discriminant) == before;
        let versions = self.slots.entry(slot.0).or_default();
        set(versions, stamp, now.map(|record| (generation, record)));
        let aspect = if same_kind { Aspect::Value } else { Aspect::Existence };
        (Target::Slot(slot), aspect)
    }

    fn truncate(&mut self, stamp: Stamp) {
        cut(&mut self.kind, stamp);
        cut(&mut self.raw, stamp);
        for versions in self.slots.values_mut() {
            cut(versions, stamp);
        }
        while self.changed.last().is_some_and(|since| *since > stamp) {
            self.changed.pop();
        }
    }
}

fn number(record: &Record, offset: u32, change: impl Fn(u64) -> u64) -> Record {
    let Record::Inline(bytes) = record else {
        panic!("a number in {record:?}");
    };
    let mut bytes = bytes.to_vec();
    let place = offset as usize..offset as usize + 8;
    let field: [u8; 8] = bytes[place.clone()].try_into().expect("eight bytes");
    bytes[place].copy_from_slice(&change(u64::from_le_bytes(field)).to_le_bytes());
    Record::Inline(Bytes::from(bytes))
}
