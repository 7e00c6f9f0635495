//! Objects that are made together and lie together: where each comes to lie is known before any is
//! written, so that they can name one another.

use crate::schema::{Reference, Thing};
use crate::{Error, Result};
use larder::client::Transaction;
use larder_core::commit::PageKind;
use larder_core::id::{PageId, PageNo, Slot, VolumeId};
use larder_core::page::{ENTRY_BYTES, HEADER_BYTES, RECORD_BYTES_MIN, record_bytes_max};

/// Where an object will lie, in pages that are made when all have a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    page: u32,
    slot: u16,
}

/// Pages that are filled one after another.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    page_bytes: u32,
    /// Pages begun.
    pages: u32,
    /// Of the last: bytes taken, and objects.
    taken: usize,
    slots: u16,
}

impl Plan {
    pub(crate) fn new(page_bytes: u32) -> Self {
        Self { page_bytes, pages: 0, taken: 0, slots: 0 }
    }

    /// The place of an object of so many bytes: after the one before, so that those used together
    /// come together.
    pub(crate) fn place(&mut self, bytes: usize) -> Place {
        // One that is too long for a page lies elsewhere, and its record says where.
        let inline = if bytes < record_bytes_max(self.page_bytes) { bytes + 1 } else { 0 };
        let needs = inline.max(RECORD_BYTES_MIN) + ENTRY_BYTES;
        if self.pages == 0 || self.taken + needs > self.page_bytes as usize {
            self.pages += 1;
            (self.taken, self.slots) = (HEADER_BYTES, 0);
        }
        self.taken += needs;
        self.slots += 1;
        Place { page: self.pages - 1, slot: self.slots - 1 }
    }

    /// Bytes of all its pages.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page_bytes)
    }

    /// Makes the pages.
    pub(crate) async fn make(&self, tx: &Transaction, volume: VolumeId) -> Result<Cluster> {
        let first = tx.create_pages(volume, PageKind::Slotted, u64::from(self.pages)).await?;
        Ok(Cluster { volume, first: first.page.0 })
    }
}

/// Pages that were made for a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    volume: VolumeId,
    first: u64,
}

impl Cluster {
    /// The name of what lies there: the first object of its slot.
    pub(crate) fn at(&self, place: Place) -> Reference {
        Reference { page: self.first + u64::from(place.page), slot: place.slot, generation: 1 }
    }

    /// Writes an object in its place.
    pub(crate) async fn put(&self, tx: &Transaction, place: Place, thing: &Thing) -> Result<()> {
        let reference = self.at(place);
        let page = PageId { volume: self.volume, page: PageNo(reference.page) };
        let made = tx.create_at(page, Slot(reference.slot), thing.encode()).await?;
        if Reference::from(made) != reference {
            return Err(Error::Damaged(format!("page {page} is not new")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_filled_and_not_more() {
        let mut plan = Plan::new(4096);
        // 12 of directory each, and at least 32 of record.
        let each = [1, 40, 100, 3_000];
        for (bytes, fit) in each.into_iter().zip([92, 76, 35, 1]) {
            let places: Vec<_> = (0..200).map(|_| plan.place(bytes)).collect();
            let page = places[199].page - 1;
            assert_eq!(places.iter().filter(|place| place.page == page).count(), fit, "{bytes}");
            plan = Plan::new(4096);
        }
        assert_eq!(plan.place(1 << 20), Place { page: 0, slot: 0 }, "only what says where it is");
        assert_eq!(plan.bytes(), 4096);
    }
}
