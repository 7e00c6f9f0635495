//! The boots under which a node commits: registered, given up, ended (decision 0004).

use super::link::violation;
use super::{Cache, CacheReply, Out};
use crate::commit::Outcome;
use crate::confirmed::Confirmed;
use crate::id::{BootId, CommitId, DomainId};
use crate::message::{CloseReason, Message, NoBoot, RequestError};
use crate::time::Instant;

impl Cache {
    /// Asks that the boot may commit over this link.
    pub(super) fn register(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let (name, life) = (self.config.name.clone(), self.config.boot);
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        commits.asked_at = Some(now);
        let (boot, fresh) = (commits.boot, !commits.known);
        self.send(domain, Message::Register { domain, boot, name, life, fresh }, out);
    }

    pub(super) fn on_registered(
        &mut self,
        domain: DomainId,
        boot: BootId,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get_mut(&domain) else {
            return violation("a registration in a domain that was not asked for");
        };
        if entry.commits.boot == boot {
            entry.commits.known = true;
            entry.commits.registered = true;
            // What was confirmed before went nowhere, perhaps: a relay had no link, or the origin had
            // forgotten the boot.
            entry.commits.told = Confirmed::default();
        }
        Ok(())
    }

    pub(super) fn on_unregistered(
        &mut self,
        now: Instant,
        (domain, boot): (DomainId, BootId),
        why: NoBoot,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if !self.domains.contains_key(&domain) {
            return violation("a registration in a domain that was not asked for");
        }
        if why == NoBoot::Taken {
            return Err(CloseReason::Identity(self.config.name.clone()));
        }
        self.renew_boot(now, domain, boot, out);
        Ok(())
    }

    /// The domain has forgotten this boot: commits go on under a new one.
    pub(super) fn renew_boot(
        &mut self,
        now: Instant,
        domain: DomainId,
        expired: BootId,
        out: &mut Out,
    ) {
        let boot = BootId(self.rng.next_u128());
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        if commits.boot != expired {
            return;
        }
        commits.begin_anew(boot);
        crate::probe::probe("boot-renewed");
        commits.expired = true;
        self.register(now, domain, out);
    }

    /// Whether the domain is to be asked to register this node: not if the node ends, and commits nothing more there.
    pub(super) fn wants_boot(&self, domain: DomainId) -> bool {
        !self.ending || self.domains[&domain].commits.unresolved() > 0
    }

    /// The node ends: of every domain that owes it no outcome, the parent is told that its boot has ended
    /// (decision 0004). It may be on its way to be registered yet.
    pub(super) fn end_boots(&mut self, out: &mut Out) {
        self.ending = true;
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in domains {
            let anew = BootId(self.rng.next_u128());
            let entry = self.domains.get_mut(&domain).expect("just seen");
            if self.config.parents > 1 && !entry.is_had() {
                // It was asked for where it may not be: whoever has it forgets the boot by itself (bug 214).
                continue;
            }
            let commits = &mut entry.commits;
            if commits.asked_at.is_none() || commits.confirmed() + 1 < commits.next {
                continue;
            }
            let boot = commits.boot;
            commits.begin_anew(anew);
            crate::probe::probe("boot-ended");
            let (upto, open) = (u64::MAX, Vec::new());
            self.send(domain, Message::Confirm { domain, boot, upto, open }, out);
        }
    }

    /// Commits of a boot that the domain has forgotten have no outcome any more, but those that
    /// were never sent are not done. Those under way on this link are answered yet.
    pub(super) fn end_expired(&mut self, domain: DomainId, out: &mut Out) {
        let max = self.config.commits_max;
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        if !commits.expired {
            return;
        }
        let boot = commits.boot;
        let old: Vec<CommitId> =
            commits.unresolved.iter().copied().filter(|id| id.boot != boot).collect();
        let mut ended = Vec::new();
        for id in &old {
            let Some(pending) = commits.pending.get(id).filter(|pending| !pending.sent) else {
                continue;
            };
            let unsent = "the commit was not passed on, and is not done";
            let answer = if pending.in_doubt {
                Ok(CacheReply::InDoubt { commit: *id, lost: true })
            } else {
                #[cfg(feature = "faults")]
                commits.withdrawn.push(*id);
                Err(RequestError::Unavailable(unsent.into()))
            };
            ended.push((commits.end(*id, &answer), commits.whole(*id), answer));
            commits.resolve(*id, &Outcome::Unknown, max);
        }
        commits.expired = ended.len() < old.len();
        for (users, whole, answer) in ended {
            self.reply_all(users, &answer, out);
            if let Some(whole) = whole {
                self.part_ended(whole, domain, &answer, out);
            }
        }
    }
}
