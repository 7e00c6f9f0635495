//! What every client has to do once the world, or a core of it, has healed: to commit a strict reader,
//! and then a writer of an object that nobody else is after.

use super::Kind;
use super::acts::What;
use crate::world::World;
use bytes::Bytes;
use larder_core::commit::Abort;
use larder_core::message::RequestError;

/// Transactions that each client has to commit: a strict reader, and a writer.
const PROOFS: u32 = 2;
/// So many clients commit one over two domains too: in a domain those come one after another.
const OVER_TWO: usize = 6;

impl World {
    /// The client's next proof; none: it has made them all, and stops.
    pub(super) fn client_proves(&mut self, index: usize) {
        let proofs = self.clients[index].proofs;
        if proofs >= self.proofs_of(index) {
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
        let kind =
            Kind { strict: reads, snapshot: false, ahead: false, age_max: None, reads_only: reads };
        // The page of all clients may be full: then it makes one.
        let mut what = |reads| match reads {
            true => Some(What::Read),
            false => self.rng.chance(1, 2).then(|| What::Put(Bytes::new())),
        };
        let one = what(reads);
        let other = if proofs == 2 { what(false) } else { None };
        let volume = self.rng.below(self.object_volumes() as u64) as usize;
        let mut aims = vec![(volume, one)];
        if proofs == 2 {
            aims.extend(self.of_other_domains(volume).first().map(|volume| (*volume, other)));
        }
        self.client_begins_as(index, kind, &aims);
    }

    /// Transactions that the client has to commit: a strict reader, a writer, and if it is one of the first
    /// clients a writer in two domains.
    pub(crate) fn proofs_of(&self, index: usize) -> u32 {
        let both = index < OVER_TWO && !self.of_other_domains(0).is_empty();
        PROOFS + u32::from(both)
    }

    /// Volumes of objects in other domains than that of this one.
    fn of_other_domains(&self, volume: usize) -> Vec<usize> {
        let domain = self.volumes[volume].domain;
        let of_other = |number: &usize| self.volumes[*number].domain != domain;
        (0..self.object_volumes()).filter(of_other).collect()
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
