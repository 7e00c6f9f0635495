//! The road of a hit: an object that is cached, known and current, read by a transaction that has
//! nothing else to look at. It is what nearly every read takes, so it is kept short; whatever is not
//! plain is left to [`Transaction::read_object`], which begins here and goes on the long way.

use super::{AgeLimit, Consistency, Transaction};
use crate::cache::read::PageHash;
use crate::id::ObjectId;
use crate::machine::Fault;
use bytes::Bytes;

impl Transaction {
    /// An object's value, when it takes nothing but a look: a recorded read of it, as
    /// [`Transaction::read_object`] would make. None says nothing, and nothing was read: the other
    /// tells what there is to do.
    #[must_use]
    #[inline]
    pub fn hit(&mut self, object: ObjectId) -> Option<Bytes> {
        let plain = self.doomed.is_none()
            && self.overlay.is_empty()
            && self.options.consistency != Consistency::Snapshot
            && self.reads.len() < self.options.limits.reads_max
            && !self.cache.faults.has(Fault::LeaseBeforeCopy);
        if !plain {
            return None;
        }
        let known = self.volumes.iter().find(|known| known.0 == object.page.volume)?;
        let attached = &self.domains[known.1];
        // A batch under way (an odd sequence) is never the one at which the reads were checked.
        if !attached.state.unmoved(attached.at.sequence) {
            return None;
        }
        if self.options.ahead && attached.at.through < attached.ends_at {
            return None;
        }
        let hash = PageHash::of(object.page);
        let value = self.cache.inline(hash, object)?;
        // After the copy (rule 8).
        let young = match self.options.age_limit {
            AgeLimit::None => true,
            AgeLimit::Lease => attached.state.within(self.cache.now(), None),
            AgeLimit::AtMost(limit) => {
                let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                attached.state.within(self.cache.now(), Some(limit))
            }
        };
        // Last: a confirmation that came with a later state says nothing of the one that was read.
        if !young || !attached.state.unmoved(attached.at.sequence) {
            return None;
        }
        self.reads.add_value(object.page, hash, object.slot);
        Some(value)
    }
}
