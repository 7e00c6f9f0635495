//! Somebody who broke into a node speaks for another node's boot, which everybody knows from the
//! stream. Nothing of it may be done (decision 0004): a forged commit in the log is one that nobody
//! sent, and the oracle says so.

use super::seconds::first_name;
use super::troubles::Mend;
use super::{Machinery, World};
use crate::agenda::MILLI;
use crate::net::{End, Proc};
use crate::plan::pick;
use bytes::Bytes;
use larder_core::commit::{CommitRequest, Op, Write};
use larder_core::id::{BootId, CommitId, DomainId, Generation, PageId, PageNo, Slot};
use larder_core::message::{CloseReason, Message};
use larder_core::record::LogRecord;

/// Above every sequence that a node of a run reaches.
const SEQUENCE: u64 = 1 << 40;
/// A slot that no client aims at.
const SLOT: Slot = Slot(900);

/// What is still to be sent.
#[derive(Clone, Debug)]
pub(super) struct Forged {
    conn: u32,
    domain: DomainId,
    boot: BootId,
}

impl World {
    /// Notes under whose name a boot is logged.
    pub(super) fn note_boot(&mut self, domain: DomainId, record: &LogRecord) {
        if let LogRecord::Boot { boot, name } = record {
            self.boots.insert((domain, *boot), name.clone());
        }
    }

    /// A node asks for another's boot, or leaves that out.
    pub(super) fn forge(&mut self) {
        let live = self.net.live().into_iter().filter(|conn| {
            let conn = self.net.conn(*conn);
            matches!(self.process(conn.child).machinery, Machinery::Node(_))
                && !conn.neighbours
                && conn.is_open(End::Child)
                && conn.is_open(End::Parent)
        });
        let live: Vec<u32> = live.collect();
        if live.is_empty() {
            return;
        }
        let conn = pick(&mut self.rng, &live);
        let process = self.process(self.net.conn(conn).child);
        let (name, life) = (process.name.clone(), process.node_ref().boot);
        let others = self.boots.iter().filter(|(_, owner)| first_name(owner) != name);
        let others: Vec<(DomainId, BootId)> = others.map(|(key, _)| *key).collect();
        if others.is_empty() {
            return;
        }
        let (domain, boot) = pick(&mut self.rng, &others);
        self.forged.insert(conn);
        let thief = self.net.conn(conn).child;
        if self.rng.chance(1, 2) {
            // As a node asks that knows its boot to be registered.
            let register = Message::Register { domain, boot, name, life, fresh: false };
            self.send(thief, conn, register);
        }
        let delay = 1 + self.rng.below(500 * MILLI);
        let forged = Mend::Forged(Box::new(Forged { conn, domain, boot }));
        self.enter_mend(delay, forged);
    }

    /// Whether somebody spoke for another over this connection; or may have claimed, at a relay that
    /// has not heard the origin's word on it, the boot of the node that asks for it here; or is told of that
    /// boot over its next connection.
    pub(super) fn is_forged(&self, conn: u32, reason: &CloseReason) -> bool {
        let words = ["another node's boot", "a registration in a domain that was not asked for"];
        let boot = matches!(reason, CloseReason::Protocol(what)
            if words.iter().any(|words| what.contains(words)));
        self.forged.contains(&conn) || boot && !self.forged.is_empty()
    }

    /// It commits under that boot, if it is still there, and is taken away.
    pub(super) fn forge_commit(&mut self, forged: &Forged) {
        let Forged { conn, domain, boot } = *forged;
        let thief: Proc = self.net.conn(conn).child;
        if self.process(thief).uplink != Some(conn) || !self.net.conn(conn).is_open(End::Child) {
            return;
        }
        let read = self.process(thief).node_ref().read.as_ref();
        let seen = read.and_then(|read| Some((read.history(domain)?, read.through(domain)?)));
        let volume = self.volumes.iter().find(|plan| plan.domain == domain);
        if let (Some((history, base)), Some(volume)) = (seen, volume) {
            let page = PageId { volume: volume.spec.id, page: PageNo(1) };
            let value = Bytes::from_static(&[1, 0xbd]);
            let op = Op::Put { slot: SLOT, generation: Generation(1), value };
            let commit = CommitRequest {
                id: CommitId { boot, sequence: SEQUENCE },
                confirmed: 0,
                history,
                base,
                reads: Vec::new(),
                writes: vec![Write { page, op }],
                numbers: Vec::new(),
                across: None,
            };
            self.send(thief, conn, Message::Commit { domain, commit });
        }
        // What was sent still arrives, or part of it.
        self.kill_node(thief);
    }
}
