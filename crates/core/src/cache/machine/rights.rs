//! What this node may do with its volumes: told by its parent when it changes (decision 0016).

use super::link::violation;
use super::{Cache, CacheOutput, Notice, Out};
use crate::id::{DomainId, PageId, PageNo, RequestId, VolumeId};
use crate::message::{CloseReason, RequestError, certificate_of};
use crate::rights::{Denied, Effective, Right};
use std::sync::Arc;

/// Volumes that nobody opened whose rights a link remembers having been told, at most. Beyond it answers are
/// believed as they come.
const TOLD_MAX: usize = 4_096;

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
        let right = rights.of(&self.config.name);
        let next = RequestId(self.next_request);
        let link = self.domains[&domain].up.and_then(|up| self.links.get_mut(&up));
        let link = link.expect("it came on this link");
        let (told, is_open) = (&mut link.rights, self.shared.volume(volume).is_some());
        // Volumes that nobody opened are in it while their opening may be on its way, as long as there is room.
        if told.len() >= TOLD_MAX && !is_open && !told.contains_key(&volume) {
            told.retain(|volume, _| self.shared.volume(*volume).is_some());
            link.forgot_rights = true;
        }
        // Of one that was forgotten answers are believed: they may have given back what the stream took (bug 228).
        let forgotten = link.forgot_rights && !told.contains_key(&volume);
        if is_open || told.contains_key(&volume) || told.len() < TOLD_MAX {
            told.insert(volume, (next, right));
        }
        match self.shared.volume(volume) {
            None => return Ok(()),
            Some(known) if known.domain != domain => {
                return violation("rights of a volume of another domain");
            }
            Some(_) => {}
        }
        let known = self.shared.right(volume);
        self.change_right(domain, volume, right, out);
        if forgotten && known >= Right::Read && right >= Right::Read {
            self.regain_volume(domain, volume);
        }
        out.push(CacheOutput::Notice(Notice::Rights { domain, volume, right }));
        Ok(())
    }

    /// An answer says what may be done with a volume that is known. Answers and the stream come in
    /// lanes of their own:
    ///
    /// 1. The node asks for the volume, and the answer says that it may not read it.
    /// 2. It is given the right, and the stream says so. That comes first, and the answer after it.
    /// 3. Taken for the newest, the answer would have every page refused for ever, though the parent
    ///    sends them (bug 58).
    ///
    /// So what the stream said since the request was sent counts for more. If the answer was the newer
    /// one, the stream says the same later. And what the stream took it alone gives back, behind what its parent
    /// withheld meanwhile:
    ///
    /// 1. The stream stands at 10, and has taken the right. x changes at 14, of which the parent tells nobody.
    /// 2. The right is given back at 20: an answer says so, and x comes, exact up to 12.
    /// 3. That x is current for as long as the stream has not come to 20 (P2, bug 228).
    pub(super) fn answered_right(
        &mut self,
        request: RequestId,
        domain: DomainId,
        volume: VolumeId,
        right: Option<Right>,
        out: &mut Out,
    ) {
        let told = self.link_of(domain).and_then(|link| link.rights.get(&volume).copied());
        let right = match (told, right) {
            (Some((since, told)), _) if request < since => told,
            (Some((_, told)), Some(right)) if told < Right::Read && right >= Right::Read => {
                crate::probe::probe("right-answered-before-it-was-told");
                told
            }
            (_, Some(right)) => right,
            (_, None) => return self.shared.set_right_unknown(volume),
        };
        let Some(before) = self.shared.told_right(volume) else {
            return self.shared.set_right(volume, right);
        };
        if right != before {
            self.change_right(domain, volume, right, out);
            out.push(CacheOutput::Notice(Notice::Rights { domain, volume, right }));
        }
    }

    fn change_right(&mut self, domain: DomainId, volume: VolumeId, right: Right, out: &mut Out) {
        let before = self.shared.right(volume);
        self.shared.set_right(volume, right);
        if right < Right::Read {
            self.lose_volume(domain, volume, out);
        } else if before < Right::Read {
            self.regain_volume(domain, volume);
        }
    }

    /// The volume may be read again. What changed of it meanwhile was withheld: nothing that was read
    /// of it before this position is current.
    ///
    /// 1. An answer with page x, exact up to 10, is on its way when the right is taken at 10.
    /// 2. x changes at 11, and nobody tells. The answer comes, and the right is given back.
    /// 3. T reads that x as of 11, and writes it: what was committed at 11 is lost (P2).
    ///
    /// What is beyond this position the stream tells: where the parent had withheld some of it, it says so (bug 226).
    fn regain_volume(&mut self, domain: DomainId, volume: VolumeId) {
        self.drop_unseen(domain, volume);
        // Of what was made meanwhile, where we had found nothing, no change was told: no notice is owed for
        // it, and the parent counts this node for it (bug 208).
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        entry.holdings.list_without(volume);
    }

    /// Nothing that is known of a volume is current, or stays so.
    fn drop_unseen(&mut self, domain: DomainId, volume: VolumeId) {
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
        self.drop_unseen(domain, volume);
        crate::probe::probe("read-right-lost");
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
