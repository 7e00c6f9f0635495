//! What a transaction saw, and whether a state of the domain agrees.

use super::history::Branch;
use bytes::Bytes;
use larder_core::id::{Generation, ObjectId, PageId, Slot, Stamp};
use larder_core::page::Record;

/// One observation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The object's value; none: it is gone, or never was.
    Object(ObjectId, Option<Bytes>),
    /// Which object a slot holds, if any.
    Slot(PageId, Slot, Option<Generation>),
    /// All slots of a page; none: there is no such page.
    Slots(PageId, Option<Vec<(Slot, Generation)>>),
    /// A raw page's content; none: there is no such page.
    Raw(PageId, Option<Bytes>),
}

impl Seen {
    /// The page concerned.
    #[must_use]
    pub fn page(&self) -> PageId {
        match self {
            Self::Object(object, _) => object.page,
            Self::Slot(page, ..) | Self::Slots(page, _) | Self::Raw(page, _) => *page,
        }
    }

    /// What one would see of the same thing in `branch` at `stamp`.
    #[must_use]
    pub fn again(&self, branch: &Branch, stamp: Stamp) -> Self {
        match self {
            Self::Object(object, _) => Self::Object(*object, value(branch, *object, stamp)),
            Self::Slot(page, slot, _) => {
                let generation = branch.slot(*page, *slot, stamp).map(|held| held.0);
                Self::Slot(*page, *slot, generation)
            }
            Self::Slots(page, _) => {
                let slots = branch.kind(*page, stamp).map(|_| {
                    branch.slots(*page, stamp).map(|(slot, held)| (slot, held.0)).collect()
                });
                Self::Slots(*page, slots)
            }
            Self::Raw(page, _) => {
                let there = branch.kind(*page, stamp).is_some();
                Self::Raw(*page, branch.raw(*page, stamp).filter(|_| there).cloned())
            }
        }
    }

    /// Panics, naming `promise`, unless `branch` shows the same at `stamp`.
    pub fn assert_at(
        &self,
        branch: &Branch,
        stamp: Stamp,
        promise: &str,
        who: &dyn std::fmt::Debug,
    ) {
        if branch.is_silent() {
            return;
        }
        let truth = self.again(branch, stamp);
        assert!(
            *self == truth,
            "{promise}: {who:?} saw {self:?}, but at stamp {stamp} it is {truth:?} \
             (page last changed at {})",
            branch.version(self.page(), stamp)
        );
    }
}

/// An object's bytes, wherever they are kept.
pub(crate) fn value(branch: &Branch, object: ObjectId, stamp: Stamp) -> Option<Bytes> {
    let (generation, record) = branch.slot(object.page, object.slot, stamp)?;
    if *generation != object.generation {
        return None;
    }
    match record {
        Record::Inline(bytes) => Some(bytes.clone()),
        Record::Forward(other) => value(branch, *other, stamp),
        Record::Large { length, first, count } => {
            let mut bytes = Vec::new();
            for page in first.0..first.0 + u64::from(*count) {
                let page =
                    PageId { volume: object.page.volume, page: larder_core::id::PageNo(page) };
                bytes.extend_from_slice(branch.raw(page, stamp)?);
            }
            bytes.truncate(*length as usize);
            Some(Bytes::from(bytes))
        }
    }
}
