//! Nodes and relays with two parents (decision 0037). From the second they have the domains of even numbers, the others from
//! the first. Where a world has one origin it is both: over the second link a process is another one of its name there, and
//! so is whoever is below a relay; what it would be told of the rest is left out, as if the parent were another origin's.

use super::origin::ORIGIN;
use super::{Event, Machinery, World};
use crate::agenda::MILLI;
use crate::net::Proc;
use larder_core::id::{DomainId, VolumeId};
use larder_core::message::{Message, RequestError, VolumeKey};

/// The longest pause between two attempts to connect, in nanoseconds.
const PAUSE_MAX: u64 = 500 * MILLI;

/// What comes after a node's name in what it says to its second parent.
const SECOND_NAME: &str = "/second";
/// No domain has a number from here on.
const NO_DOMAIN: u64 = 1_000;
/// No volume has this bit in its id.
const NO_VOLUME: u128 = 1 << 120;

/// A process's name, whichever of its parents it was told to.
pub(super) fn first_name(name: &str) -> &str {
    name.strip_suffix(SECOND_NAME).unwrap_or(name)
}

/// What is of a domain goes to its own parent.
fn check_half(second: bool, message: &Message) {
    match message {
        Message::For { message, .. } => check_half(second, message),
        Message::Fetch { domain, .. }
        | Message::Commit { domain, .. }
        | Message::Confirm { domain, .. }
        | Message::Beat { domain, .. }
        | Message::Refresh { domain, .. }
        | Message::Evicted { domain, .. }
        | Message::Holding { domain, .. } => {
            let here = domain.0.is_multiple_of(2) == second;
            assert!(here, "what is of another parent's domain is said to this one: {message:?}");
        }
        _ => {}
    }
}

impl World {
    /// Whether a process has a second parent, or is an origin that dials another one.
    pub(super) fn has_second(&self, proc: Proc) -> bool {
        let process = self.process(proc);
        let below_origin = process.parent.is_some_and(|(of, _)| of == ORIGIN);
        match process.machinery {
            // Of two origins each has its own domains: whoever is below the first alone has both.
            Machinery::Node(_) => self.plan.seconds || self.plan.second_origin && below_origin,
            Machinery::Relay(_) => self.plan.relay_seconds && below_origin,
            Machinery::Origin(_) => self.dials(proc),
        }
    }

    /// The second parent of a process that has one.
    pub(super) fn second_parent(&self, proc: Proc) -> Proc {
        match proc == ORIGIN {
            true => self.second_origin().expect("it dials"),
            false => self.second_origin().filter(|second| *second != proc).unwrap_or(ORIGIN),
        }
    }

    /// Whether a connection is its child's to its second parent.
    pub(super) fn is_second(&self, conn: u32) -> bool {
        self.process(self.net.conn(conn).child).second == Some(conn)
    }

    pub(super) fn enter_connect_second(&mut self, child: Proc) {
        if self.has_second(child) {
            let pause = self.rng.below(PAUSE_MAX) + MILLI;
            let incarnation = self.process(child).incarnation;
            self.agenda.enter(self.now.plus(pause), Event::ConnectSecond(child, incarnation));
        }
    }

    pub(super) fn connect_second(&mut self, child: Proc, incarnation: u32) {
        let process = self.process(child);
        if process.incarnation != incarnation || !process.is_up() || process.second.is_some() {
            return;
        }
        if self.waits(child, || Event::ConnectSecond(child, incarnation)) {
            return;
        }
        let line = self.process(child).parent.map_or(self.plan.lines[0], |(_, line)| line);
        let origin = self.second_parent(child);
        if !self.net.reachable(child, origin) || !self.process(origin).is_up() {
            self.enter_connect_second(child);
            return;
        }
        let conn = self.net.connect(child, origin, line);
        self.process_mut(child).second = Some(conn);
        self.trace.line(|| format!("{child:?} connects to {origin:?} as well, as {conn}"));
        self.enter_opens(conn, line.latency);
    }

    /// What is said to one of two parents: to the second it is of nobody whom the first knows, and what is asked of
    /// the other's domains and volumes is of none that there is.
    pub(super) fn to_parent(&self, proc: Proc, conn: u32, message: Message) -> Message {
        if !self.has_second(proc) || self.net.conn(conn).child != proc {
            return message;
        }
        let second = self.is_second(conn);
        // A thief says what it likes.
        if !self.forged.contains(&conn) {
            check_half(second, &message);
        }
        match self.plan.second_origin {
            true => message,
            false => self.as_of_another(second, message),
        }
    }

    fn as_of_another(&self, second: bool, mut message: Message) -> Message {
        if let Message::For { name, message: asked } = message {
            let message = Box::new(self.as_of_another(second, *asked));
            let name = if second { name + SECOND_NAME } else { name };
            return Message::For { name, message };
        }
        if let Message::Hello { name, .. } | Message::Register { name, .. } | Message::Left { name } =
            &mut message
            && second
        {
            name.push_str(SECOND_NAME);
        }
        if let Message::OpenVolume { key: VolumeKey::Id(volume), .. }
        | Message::ChangeVolume { volume, .. }
        | Message::DeleteVolume { volume, .. }
        | Message::AskRights { volume, .. }
        | Message::AllocateIds { volume, .. } = &mut message
        {
            self.hide(second, volume);
        }
        if let Message::CopyPages { ask, .. } = &mut message {
            self.hide(second, &mut ask.volume);
        }
        if let Message::Resume { domain, .. } | Message::Register { domain, .. } = &mut message
            && domain.0.is_multiple_of(2) != second
        {
            domain.0 += NO_DOMAIN;
        }
        if let Message::CreateVolume { spec, .. } = &mut message
            && let Some(domain) = &mut spec.domain
            && domain.0.is_multiple_of(2) != second
        {
            domain.0 += NO_DOMAIN;
        }
        message
    }

    /// A volume of the other's is none that there is.
    fn hide(&self, second: bool, volume: &mut VolumeId) {
        let planned = self.volumes.iter().find(|plan| plan.is(*volume));
        if planned.is_some_and(|plan| plan.domain.0.is_multiple_of(2) != second) {
            volume.0 ^= NO_VOLUME;
        }
    }

    /// What a parent tells a child with another one, without what is the other's.
    pub(super) fn of_parent(&self, proc: Proc, conn: u32, message: Message) -> Message {
        let alone = self.plan.second_origin || !self.has_second(proc);
        if alone || self.net.conn(conn).child != proc {
            return message;
        }
        let even = self.is_second(conn);
        let is_here = |domain: DomainId| domain.0.is_multiple_of(2) == even;
        match message {
            Message::Welcome { version, name, time, limits, mut domains } => {
                domains.retain(|info| is_here(info.domain));
                Message::Welcome { version, name, time, limits, domains }
            }
            Message::Volume { request, info } if !is_here(info.domain) => {
                let error = RequestError::NoVolume(info.name);
                Message::Failed { request, pages: Vec::new(), error }
            }
            Message::Volumes { request, mut volumes, more } => {
                // A list that goes on says from where.
                let last = volumes.len().saturating_sub(usize::from(more));
                let kept = volumes.split_off(last);
                volumes.retain(|info| is_here(info.domain));
                volumes.extend(kept);
                Message::Volumes { request, volumes, more }
            }
            message => message,
        }
    }
}
