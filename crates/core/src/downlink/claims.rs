//! Whose names and boots are: what a child says of itself, or a relay of those below it, is held
//! against what others have (decision 0004).

use super::names::Gone;
use super::{Downlinks, LinkSink};
use crate::id::{BootId, DomainId, LinkId};
use crate::machine::Fault;
use crate::message::{CloseReason, Message, NoBoot, Role, certificate_of};
use crate::time::Instant;

/// Asks that a boot may commit: `Message::Register`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Register {
    pub(crate) domain: DomainId,
    pub(crate) boot: BootId,
    pub(crate) name: String,
    pub(crate) life: BootId,
    pub(crate) fresh: bool,
}

/// What became of a claim.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// The boot is the name's.
    pub(crate) granted: bool,
    /// The boot that its process had in the domain before.
    pub(crate) replaced: Option<BootId>,
    /// Links that were closed: the asker's, or one that the process came over before.
    pub(crate) closed: Vec<LinkId>,
}

/// Why a name cannot be had.
pub(super) enum Refused {
    /// Another process has it.
    Taken,
    /// A limit.
    Full(String),
}

/// A child speaks for somebody else's boot.
pub(crate) fn anothers() -> CloseReason {
    CloseReason::Protocol("a message about another node's boot".into())
}

impl Downlinks {
    /// The process of this name is at `link` from now on. Another link of the same process gives
    /// way; another process keeps the name as long as it is heard from. Gives the links closed.
    pub(super) fn take_name(
        &mut self,
        now: Instant,
        (name, life): (&str, BootId),
        link: LinkId,
        out: &mut dyn LinkSink,
    ) -> Result<Vec<LinkId>, Refused> {
        let holder = self.names.holder(name);
        let mut closed = Vec::new();
        match holder {
            Some((other, first)) if other != life => {
                let heard = self.links.get(&first).map(|entry| entry.heard);
                if heard.is_some_and(|at| at.after(self.config.silence_max) > now) {
                    crate::probe::probe("twin-refused");
                    return Err(Refused::Taken);
                }
                crate::probe::probe("name-taken-over");
                self.check_link(first, link)?;
                let boots = match self.names.leave(name) {
                    Some(gone) => {
                        let boots = gone.boots.clone();
                        self.left.push(gone);
                        boots
                    }
                    None => Vec::new(),
                };
                closed.extend(self.cut_off(first, name, boots, out));
                self.names.arrive(name, life, link);
            }
            Some((_, first)) => {
                self.check_link(first, link)?;
                let moved = self.names.arrive(name, life, link);
                if first != link {
                    crate::probe::probe("process-moved");
                    closed.extend(self.cut_off(first, name, moved, out));
                }
            }
            None => {
                self.check_room(name, link)?;
                self.names.arrive(name, life, link);
            }
        }
        Ok(closed)
    }

    fn check_room(&self, name: &str, link: LinkId) -> Result<(), Refused> {
        let certificate = certificate_of(name);
        let most = self.config.processes_max;
        if self.names.of_certificate(certificate) >= most {
            return Err(Refused::Full(format!("{most} processes use the name {certificate}")));
        }
        self.check_link(LinkId::default(), link)
    }

    fn check_link(&self, before: LinkId, link: LinkId) -> Result<(), Refused> {
        let most = self.config.names_per_link_max;
        if before != link && self.names.brought(link) > most {
            return Err(Refused::Full(format!("{most} nodes came over one link")));
        }
        Ok(())
    }

    /// The process that came over this link is elsewhere now. Gives the link when it was its own.
    fn cut_off(
        &mut self,
        link: LinkId,
        name: &str,
        boots: Vec<(DomainId, BootId)>,
        out: &mut dyn LinkSink,
    ) -> Option<LinkId> {
        if self.is_own(link, name) {
            let reason = CloseReason::Identity(name.to_owned());
            return self.close(link, reason, out).then_some(link);
        }
        for (domain, boot) in boots {
            self.send(link, Message::Unregistered { domain, boot, why: NoBoot::Taken }, out);
        }
        None
    }

    /// Whether the name is that of the link's own child.
    pub(super) fn is_own(&self, link: LinkId, name: &str) -> bool {
        self.links.get(&link).and_then(|entry| entry.named()).is_some_and(|c| c.name == name)
    }

    /// Holds a registration against what others have. A node that asks for another's boot is cut
    /// off; a relay is told.
    pub(crate) fn claim(
        &mut self,
        now: Instant,
        link: LinkId,
        register: &Register,
        out: &mut dyn LinkSink,
    ) -> Claim {
        let Register { domain, boot, name, life, .. } = register;
        let mut claim = Claim::default();
        match self.take_name(now, (name, *life), link, out) {
            Ok(closed) => claim.closed = closed,
            // Not answered: asked again.
            Err(Refused::Full(_)) => return claim,
            Err(Refused::Taken) => {
                let reason = CloseReason::Identity(name.clone());
                claim.closed.extend(self.refuse(link, register, reason, out));
                return claim;
            }
        }
        match self.names.claim(name, *domain, *boot) {
            Ok(replaced) => {
                claim.granted = true;
                claim.replaced = replaced;
            }
            Err(_) => claim.closed.extend(self.refuse(link, register, anothers(), out)),
        }
        claim
    }

    /// The boot is another's. Gives the link when it was closed for it.
    fn refuse(
        &mut self,
        link: LinkId,
        register: &Register,
        reason: CloseReason,
        out: &mut dyn LinkSink,
    ) -> Option<LinkId> {
        let Register { domain, boot, .. } = register;
        let child = self.links.get(&link)?.child()?;
        if child.role == Role::Relay {
            let (domain, boot) = (*domain, *boot);
            self.send(link, Message::Unregistered { domain, boot, why: NoBoot::Taken }, out);
            return None;
        }
        self.close(link, reason, out).then_some(link)
    }

    /// The boot may commit over the link that its node has now.
    pub(crate) fn registered(&mut self, domain: DomainId, boot: BootId, out: &mut dyn LinkSink) {
        if let Some((_, link)) = self.names.owner(domain, boot) {
            self.tell_of_boot(link, Message::Registered { domain, boot }, out);
        }
    }

    /// Its process has come over this link, and may not be welcomed yet: it asks for its boots again
    /// once it is.
    fn tell_of_boot(&mut self, link: LinkId, message: Message, out: &mut dyn LinkSink) {
        if self.links.get(&link).is_some_and(|entry| entry.child().is_some()) {
            self.send(link, message, out);
        } else {
            crate::probe::probe("boot-told-before-welcome");
        }
    }

    /// The boot may not commit any more. Gives the link when it was closed: a node whose name or
    /// boot is another's cannot stay.
    pub(crate) fn unregistered(
        &mut self,
        (domain, boot): (DomainId, BootId),
        why: NoBoot,
        closing: impl FnOnce(String) -> CloseReason,
        out: &mut dyn LinkSink,
    ) -> Option<LinkId> {
        let name = self.names.owner(domain, boot).map(|(name, _)| name.to_owned())?;
        let link = self.names.unclaim(domain, boot)?;
        if why == NoBoot::Taken && self.is_own(link, &name) {
            return self.close(link, closing(name), out).then_some(link);
        }
        self.tell_of_boot(link, Message::Unregistered { domain, boot, why }, out);
        None
    }

    /// The link over which the process of a boot came.
    pub(crate) fn link_of(&self, domain: DomainId, boot: BootId) -> Option<LinkId> {
        self.names.owner(domain, boot).map(|(_, link)| link)
    }

    /// Whether a boot belongs to a process that is there.
    pub(crate) fn is_claimed(&self, domain: DomainId, boot: BootId) -> bool {
        self.names.is_claimed(domain, boot)
    }

    /// The processes that are gone since this was asked last.
    pub(crate) fn take_left(&mut self) -> Vec<Gone> {
        std::mem::take(&mut self.left)
    }

    /// Whether a child may speak for this boot; an error when the boot is somebody else's.
    pub(super) fn may_use(
        &self,
        link: LinkId,
        domain: DomainId,
        boot: BootId,
    ) -> Result<bool, CloseReason> {
        match self.names.owner(domain, boot) {
            Some((_, owner)) if owner == link || self.faults.has(Fault::AnothersBoot) => Ok(true),
            None => Ok(false),
            Some(_) => {
                let child = self.links.get(&link).and_then(|entry| entry.child());
                if child.is_some_and(|child| child.role == Role::Relay) {
                    // Its node may have moved: the relay is told, but has not heard yet.
                    return Ok(false);
                }
                Err(anothers())
            }
        }
    }
}
