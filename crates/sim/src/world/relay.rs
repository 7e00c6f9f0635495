//! Relay processes.

use super::World;
use crate::net::Proc;
use crate::plan::{GroupPlan, Limits};
use larder_core::downlink::DownlinkConfig;
use larder_core::id::BootId;
use larder_core::machine::{LinkInput, Machine};
use larder_core::message::LinkLimits;
use larder_core::relay::io::{RelayInput, RelayNotice, RelayOutput};
use larder_core::relay::{Relay, RelayConfig};
use larder_core::time::Duration;

/// Of commits a relay passes up no more at once: one by one, if it is so.
pub(super) const ONE_BY_ONE: usize = 512;

/// Bytes of commits that a relay passes up at once.
pub(super) fn commit_bytes_max(limits: &Limits) -> usize {
    if limits.requests_max == 4 { ONE_BY_ONE } else { 64 << 20 }
}

impl World {
    /// What a parent grants its children.
    pub(super) fn downlink_config(&self, name: &str) -> DownlinkConfig {
        let limits = &self.plan.limits;
        let mut config = DownlinkConfig {
            name: name.into(),
            limits: LinkLimits {
                requests_max: limits.requests_max,
                stream_window_bytes: limits.stream_window_bytes,
                bulk_window_bytes: limits.bulk_window_bytes,
                lease: limits.lease,
            },
            silence_max: limits.silence,
            hello_max: Duration::from_secs(5),
            quiet_interval: limits.quiet_interval,
            registered_pages_max: limits.registered_pages_max,
            advance_bytes: limits.advance_bytes,
            ring_bytes_max: limits.ring_bytes_max,
            ring_commits_max: limits.ring_commits_max,
            ..DownlinkConfig::default()
        };
        self.plan.bounds.of_downlink(&mut config);
        config
    }

    pub(super) fn start_relay(&mut self, proc: Proc) {
        let limits = &self.plan.limits;
        let mut downlink = self.downlink_config(&self.process(proc).name);
        // One of its own, which no child may be told: the parent's may be shorter.
        downlink.limits.lease = DownlinkConfig::default().limits.lease;
        let mut config = RelayConfig {
            downlink,
            beat_interval: limits.beat,
            silence_max: limits.silence,
            request_max: Duration::from_secs(10),
            resume_pages_max: limits.resume_pages_max,
            narrow_delay: limits.beat,
            commit_bytes_max: commit_bytes_max(limits),
            group: self.plan.group.as_ref().map(GroupPlan::redirector),
            parents: 1 + u32::from(self.has_second(proc)),
            faults: self.plan.faults,
            ..RelayConfig::default()
        };
        self.plan.bounds.of_relay(&mut config);
        let boot = BootId(self.rng.next_u128());
        let relay = Relay::new(RelayConfig { boot, ..config });
        self.process_mut(proc).relay().machine = Some(relay);
        self.trace.mix(0x4e1a << 16 | u64::from(proc.0));
        self.enter_connect(proc);
        self.enter_connect_second(proc);
        self.enter_timer(proc);
    }

    pub(super) fn relay_wall(&mut self, proc: Proc) {
        let wall = self.wall_time(proc);
        self.relay_input(proc, RelayInput::WallClock(wall));
    }

    pub(super) fn relay_link(&mut self, proc: Proc, input: LinkInput) {
        self.relay_input(proc, RelayInput::Link(input));
    }

    fn relay_input(&mut self, proc: Proc, input: RelayInput) {
        let now = self.process(proc).local(self.now);
        let mut out = Vec::new();
        let Some(machine) = &mut self.process_mut(proc).relay().machine else {
            return;
        };
        machine.handle(now, input, &mut out);
        self.relay_outputs(proc, out);
    }

    pub(super) fn relay_timeout(&mut self, proc: Proc) {
        let now = self.process(proc).local(self.now);
        let mut out = Vec::new();
        let Some(machine) = &mut self.process_mut(proc).relay().machine else {
            return;
        };
        machine.handle_timeout(now, &mut out);
        self.relay_outputs(proc, out);
    }

    fn relay_outputs(&mut self, proc: Proc, out: Vec<RelayOutput>) {
        for output in out {
            match output {
                RelayOutput::Link(output) => self.link_output(proc, output),
                RelayOutput::Notice(notice) => {
                    self.trace.line(|| format!("{proc:?} {notice:?}"));
                    match notice {
                        RelayNotice::Ready => {
                            self.process_mut(proc).attempts = 0;
                            self.line_is(proc, Some(true));
                        }
                        RelayNotice::Lost => self.line_is(proc, Some(false)),
                        RelayNotice::Refused { reason } => self.refused(proc, &reason),
                    }
                }
            }
        }
        self.enter_timer(proc);
    }

    /// A relay's process ends, and whatever else runs on its machine.
    pub(super) fn kill_relay(&mut self, proc: Proc) {
        let machine = self.net.machine_of(proc);
        if machine != proc {
            return self.kill_node(machine);
        }
        let ran = self.process_mut(proc).relay().machine.take().is_some();
        if self.end_seat(proc) || ran {
            self.trace.mix(0xdead << 16 | u64::from(proc.0));
            self.trace.line(|| format!("{proc:?} dies"));
            self.after_death(proc);
        }
    }
}
