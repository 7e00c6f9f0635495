//! The boots of nodes below: asked of the parent in their names, and asked again on every link up
//! (decision 0004). So the parent knows whose they are, that they are there, and that nobody else
//! has their names; and a child commits under its own only.

use super::Relay;
use super::io::RelayOutput;
use crate::confirmed::Confirmed;
use crate::downlink::{Ask, Register};
use crate::id::{BootId, CommitId, DomainId, LinkId};
use crate::machine::Fault;
use crate::message::{CloseReason, Message, NoBoot, OPEN_SINCE};
use crate::time::Instant;

/// A node's boot, as asked of the parent.
#[derive(Debug)]
pub(super) struct Carried {
    name: String,
    life: BootId,
    /// It never was registered.
    fresh: bool,
    /// It is, on the link that is up now.
    registered: bool,
    /// It never was anywhere else: all its commits came through here.
    only_here: bool,
    /// The highest number of a commit of it that came through here.
    sequence_max: u64,
}

impl Carried {
    pub(super) fn lose_parent(&mut self) {
        self.registered = false;
    }

    /// Whether the parent has it, on the link that is up.
    #[cfg(feature = "faults")]
    pub(super) fn registered(&self) -> bool {
        self.registered
    }

    fn message(&self, domain: DomainId, boot: BootId) -> Message {
        let (name, life, fresh) = (self.name.clone(), self.life, self.fresh);
        Message::Register { domain, boot, name, life, fresh }
    }
}

impl Relay {
    /// A child asks that a boot may commit.
    pub(super) fn register(
        &mut self,
        now: Instant,
        link: LinkId,
        register: Register,
        out: &mut Vec<RelayOutput>,
    ) {
        let (domain, boot) = (register.domain, register.boot);
        if !self.domains.get(&domain).is_some_and(|domain| domain.begun) {
            // Not served: asked again.
            return;
        }
        let claim = self.links.claim(now, link, &register, out);
        for gone in claim.closed {
            self.ask(now, gone, Ask::Gone(gone), out);
        }
        // Before anything is asked for the name anew.
        self.tell_left(out);
        if !claim.granted {
            return;
        }
        if let Some(before) = claim.replaced {
            self.boots.remove(&(domain, before));
        }
        let Register { name, life, fresh, .. } = register;
        let new =
            Carried { name, life, fresh, registered: false, only_here: fresh, sequence_max: 0 };
        let carried = self.boots.entry((domain, boot)).or_insert(new);
        carried.fresh &= fresh;
        carried.only_here &= fresh;
        let message = carried.message(domain, boot);
        if carried.registered {
            // Who asks again may be put off above, where its name has another boot since (bug 196): so does the relay.
            self.links.registered(domain, boot, out);
        }
        if self.parent_of(domain).is_some_and(|parent| self.uplinks[parent].is_welcomed()) {
            self.send_of(domain, message, out);
        }
    }

    /// Asks for every boot below that the parent has not said yes to: on a new link up, and again
    /// with every beat, since the parent may not serve the domain yet, or have no room now.
    pub(super) fn register_missing(
        &mut self,
        now: Instant,
        parent: usize,
        out: &mut Vec<RelayOutput>,
    ) {
        if let Some(up) = &mut self.uplinks[parent].up {
            up.register_at = now.after(self.config.beat_interval);
        }
        for ((domain, boot), carried) in &self.boots {
            if !carried.registered && self.parent_of(*domain) == Some(parent) {
                self.send_up(parent, carried.message(*domain, *boot), out);
            }
        }
    }

    /// A child's boot may commit.
    pub(super) fn registered(
        &mut self,
        domain: DomainId,
        boot: BootId,
        out: &mut Vec<RelayOutput>,
    ) {
        if let Some(carried) = self.boots.get_mut(&(domain, boot)) {
            carried.registered = true;
            carried.fresh = false;
            self.links.registered(domain, boot, out);
        }
    }

    /// A child's boot may not commit.
    pub(super) fn unregistered(
        &mut self,
        now: Instant,
        (domain, boot): (DomainId, BootId),
        why: NoBoot,
        out: &mut Vec<RelayOutput>,
    ) {
        if self.boots.remove(&(domain, boot)).is_none() {
            return;
        }
        let closing = CloseReason::Identity;
        if let Some(link) = self.links.unregistered((domain, boot), why, closing, out) {
            self.ask(now, link, Ask::Gone(link), out);
        }
    }

    /// Whether commits under a boot may be passed on.
    pub(super) fn is_registered(&self, domain: DomainId, boot: BootId) -> bool {
        self.boots.get(&(domain, boot)).is_some_and(|carried| carried.registered)
    }

    /// Passes on which outcomes a node below has received: to a parent that knows of none left open, those before the first.
    pub(super) fn confirm_up(
        &self,
        domain: DomainId,
        boot: BootId,
        confirmed: &Confirmed,
        out: &mut Vec<RelayOutput>,
    ) {
        let parent = self.parent_of(domain).and_then(|parent| self.uplinks[parent].welcomed());
        let message = if parent.is_some_and(|up| up.version < OPEN_SINCE) {
            Message::Confirm { domain, boot, upto: confirmed.through(), open: Vec::new() }
        } else {
            let (upto, open) = (confirmed.upto(), confirmed.open().collect());
            Message::Confirm { domain, boot, upto, open }
        };
        self.send_of(domain, message, out);
    }

    /// Whether a commit cannot have been sent before, by this way or another one; notes that it was.
    pub(super) fn is_new_from_below(&mut self, domain: DomainId, id: CommitId) -> bool {
        let Some(carried) = self.boots.get_mut(&(domain, id.boot)) else {
            return false;
        };
        let above = id.sequence > carried.sequence_max;
        carried.sequence_max = carried.sequence_max.max(id.sequence);
        above && carried.only_here
    }

    /// Tells the parents of nodes that are gone.
    pub(super) fn tell_left(&mut self, out: &mut Vec<RelayOutput>) {
        for gone in self.links.take_left() {
            for key in &gone.boots {
                self.boots.remove(key);
            }
            if self.config.faults.has(Fault::LeftUnsaid) {
                continue;
            }
            for parent in 0..self.uplinks.len() {
                if self.uplinks[parent].is_welcomed() {
                    self.send_up(parent, Message::Left { name: gone.name.clone() }, out);
                }
            }
        }
    }
}
