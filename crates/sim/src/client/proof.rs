//! What every client has to do once the world, or a core of it, has healed: to commit a strict reader,
//! and then a writer of an object that nobody else is after.

use super::Kind;
use super::acts::What;
use crate::world::World;
use bytes::Bytes;
use larder_core::commit::Abort;
use larder_core::message::RequestError;

impl World {
    /// The client's next proof; none: it has made them all, and stops.
    pub(super) fn client_proves(&mut self, index: usize) {
        let proofs = self.clients[index].proofs;
        if proofs >= crate::world::PROOFS {
            // Copies that come to nothing go on beside those who have not.
            if self.plan.limits.copies_max == 0 {
                self.client_copies(index);
            }
            return;
        }
        if self.may_be_refused()
            && self.rng.chance(1, 2)
            && let Some(number) = self.unopened(index)
        {
            return self.client_opens(index, number);
        }
        let reads = proofs == 0;
        let kind = Kind { strict: reads, snapshot: false, age_max: None, reads_only: reads };
        // The page of all clients may be full: then it makes one.
        let what = match reads {
            true => Some(What::Read),
            false => self.rng.chance(1, 2).then(|| What::Put(Bytes::new())),
        };
        let volume = self.rng.below(self.object_volumes() as u64) as usize;
        self.client_begins_as(index, kind, Some((volume, what)));
    }

    /// A transaction ended: well, or with an answer that stands for itself.
    pub(super) fn client_proved(&mut self, index: usize, well: bool) {
        if well && self.client_has_to_prove(index) == Some(true) {
            self.clients[index].proofs += 1;
        }
    }

    /// Whether a client may find a volume that it may not use, or that is gone.
    pub(super) fn may_be_refused(&self) -> bool {
        self.plan.mix.rights_percent > 0 || self.plan.mix.delete_percent > 0
    }
}

/// Whether an error says that there is nothing to read for this client.
pub(super) fn is_refusal(error: &RequestError) -> bool {
    matches!(error, RequestError::Denied(_) | RequestError::Deleted(_) | RequestError::NoVolume(_))
}

/// Whether trying again would not help: nothing but a conflict, or a line of history that is lost,
/// passes by itself.
pub(super) fn is_an_answer(abort: &Abort) -> bool {
    !matches!(abort, Abort::Conflict(_) | Abort::History)
}
