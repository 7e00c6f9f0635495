//! How redirectors are lost.

use super::troubles::Mend;
use super::{Machinery, World};
use crate::agenda::{MILLI, SECOND};
use crate::net::Proc;
use crate::plan::pick;
use larder_core::group::membership::MembershipInput;

impl World {
    /// A redirector, by the process that is elected, and its group.
    fn any_redirector(&mut self) -> Option<(Proc, u16)> {
        let leads = self
            .seats
            .iter()
            .filter(|(_, seat)| seat.relay.is_some_and(|relay| self.process(relay).is_relaying()));
        let leads: Vec<(Proc, u16)> = leads.map(|(proc, seat)| (*proc, seat.group)).collect();
        (!leads.is_empty()).then(|| pick(&mut self.rng, &leads))
    }

    fn members_of(&self, group: u16) -> Vec<Proc> {
        let seats = self.seats.iter().filter(|(_, seat)| seat.group == group);
        seats.map(|(proc, _)| *proc).collect()
    }

    pub(super) fn kill_redirector(&mut self) {
        let Some((proc, group)) = self.any_redirector() else { return };
        let is_relay = matches!(self.process(proc).machinery, Machinery::Relay(_));
        if !is_relay {
            let relay = self.seats[&proc].relay.expect("it leads");
            self.note_lost(group, relay);
            return self.kill_node(proc);
        }
        if self.relays_of(group).len() > 1 && self.rng.chance(1, 2) {
            self.process_mut(proc).retired = true;
        }
        self.note_lost(group, proc);
        self.kill_relay(proc);
    }

    pub(super) fn pause_redirector(&mut self) {
        let Some((proc, _)) = self.any_redirector() else { return };
        let replaced = self.plan.failover_nanos();
        let silence = self.plan.limits.silence.as_nanos() as u64;
        let span = pick(&mut self.rng, &[replaced / 4, replaced, replaced + 2 * silence]);
        let pause = 1 + self.rng.below(span);
        self.stand_still(proc, pause);
    }

    pub(super) fn part_redirector(&mut self) {
        let Some((proc, group)) = self.any_redirector() else { return };
        let mut others = self.members_of(group);
        others.retain(|other| *other != proc && self.rng.chance(1, 2));
        if self.rng.chance(1, 4) {
            others.push(Proc(0));
        }
        // Its own line alone, while those of others may stand.
        let relay = self.seats[&proc].relay.expect("it leads");
        if let Some((parent, _)) = self.process(relay).parent
            && self.rng.chance(1, 3)
        {
            others = vec![parent];
        }
        self.part_from(proc, &others);
    }

    pub(super) fn part_members(&mut self) {
        let Some((_, group)) = self.any_redirector() else { return };
        let members = self.members_of(group);
        let (one, other) = (pick(&mut self.rng, &members), pick(&mut self.rng, &members));
        self.part_from(one, &[other]);
    }

    /// Parts a process from others, one way or both, for a while.
    pub(super) fn part_from(&mut self, proc: Proc, others: &[Proc]) {
        let ways = self.rng.below(3);
        let span = self.draw_delay();
        for other in others.iter().copied().filter(|other| *other != proc) {
            if ways != 0 {
                self.net.block(proc, other);
                self.enter_mend(span, Mend::Unblock(proc, other));
            }
            if ways != 1 {
                self.net.block(other, proc);
                self.enter_mend(span, Mend::Unblock(other, proc));
            }
        }
    }

    /// It says that it leaves, and goes on for a while as the relay of those who have not left it.
    pub(super) fn hand_over(&mut self) {
        let Some((proc, _)) = self.any_redirector() else { return };
        self.seat_input(proc, MembershipInput::Leave);
        let longest = pick(&mut self.rng, &[MILLI, 500 * MILLI, 3 * SECOND]);
        let delay = 1 + self.rng.below(longest);
        let life = self.seats[&proc].lives;
        self.enter_mend(delay, Mend::Ends(proc, life));
    }

    /// A process that was told to end does.
    pub(super) fn ends(&mut self, proc: Proc, life: u32) {
        if self.seats[&proc].lives != life {
            return;
        }
        match self.process(proc).machinery {
            Machinery::Relay(_) => self.kill_relay(proc),
            _ => self.kill_node(proc),
        }
    }
}
