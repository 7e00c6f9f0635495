//! What this node may do with its volumes: told by its parent when it changes (decision 0016).

use super::link::violation;
use super::{Cache, CacheOutput, Notice, Out};
use crate::id::{DomainId, PageId, PageNo, VolumeId};
use crate::message::{CloseReason, RequestError, certificate_of};
use crate::rights::{Denied, Effective, Right};
use std::sync::Arc;

impl Cache {
    /// From here on the stream tells of the volume what goes with this right. Volumes that were not
    /// opened are nobody's concern here.
    pub(super) fn on_volume_rights(
        &mut self,
        domain: DomainId,
        volume: VolumeId,
        rights: &Effective,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if !self.domains.contains_key(&domain) {
            return violation("rights in a domain that was not asked for");
        }
        match self.shared.volume(volume) {
            None => return Ok(()),
            Some(known) if known.domain != domain => {
                return violation("rights of a volume of another domain");
            }
            Some(_) => {}
        }
        let right = rights.of(&self.config.name);
        let before = self.shared.right(volume);
        self.shared.set_right(volume, right);
        if right < Right::Read {
            self.lose_volume(domain, volume, out);
        } else if before < Right::Read {
            self.regain_volume(domain, volume);
        }
        out.push(CacheOutput::Notice(Notice::Rights { domain, volume, right }));
        Ok(())
    }

    /// The volume may be read again. What changed of it meanwhile was withheld: nothing that was read
    /// of it before this position is current.
    ///
    /// 1. An answer with page x, exact up to 10, is on its way when the right is taken at 10.
    /// 2. x changes at 11, and nobody tells. The answer comes, and the right is given back.
    /// 3. T reads that x as of 11, and writes it: what was committed at 11 is lost (P2).
    fn regain_volume(&mut self, domain: DomainId, volume: VolumeId) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        if let Some(position) = entry.position {
            let state = Arc::clone(&entry.state);
            let batch = state.batch();
            self.drop_volume(domain, volume, position, &batch);
        }
    }

    /// The volume may not be read any more. Its copies go, running transactions that touched it are
    /// doomed, and who waits for its pages is told. Its changes are withheld from here on:
    ///
    /// 1. T reads x of this volume. The right is taken, and x changes: nobody tells.
    /// 2. T reads z of another volume, which changed with x, and ends: it saw two states mixed (P5).
    fn lose_volume(&mut self, domain: DomainId, volume: VolumeId, out: &mut Out) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        if let Some(position) = entry.position {
            let state = Arc::clone(&entry.state);
            let batch = state.batch();
            self.drop_volume(domain, volume, position, &batch);
        }
        let name = self.names.get(&volume).cloned().unwrap_or_else(|| volume.to_string());
        let who = certificate_of(&self.config.name).to_owned();
        let denied = Denied { volume: name, who, has: Right::None, needs: Right::Read };
        let error = RequestError::Denied(Box::new(denied));
        let first = PageId { volume, page: PageNo(0) };
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        for user in entry.flights.take_waiters(first..PageId::of_volume(volume)) {
            self.reply(user, Err(error.clone()), out);
        }
    }
}
