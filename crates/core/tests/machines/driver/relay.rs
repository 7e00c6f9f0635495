//! A relay between a lying parent, or two, and lying children.

use super::children::Children;
use super::choices::Choices;
use super::parent::Parent;
use super::{EVENTS_MAX, Reached, assert_carried, carried, is_upward, narrow, pass, some_time};
use larder_core::downlink::DownlinkConfig;
use larder_core::group::{GroupConfig, GroupMessage};
use larder_core::id::{BootId, DomainId, LinkId};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::Message;
use larder_core::relay::io::{RelayInput, RelayOutput};
use larder_core::relay::{Relay, RelayConfig};
use larder_core::time::{Duration, Instant};

/// A domain of the second parent's.
const ANOTHER: DomainId = DomainId(9);

/// Links up have numbers from here.
const UP: u64 = 1 << 32;

/// A parent, and the link to it.
struct Side {
    parent: Parent,
    up: Option<LinkId>,
}

struct Run {
    relay: Relay,
    now: Instant,
    children: Children,
    sides: Vec<Side>,
    ups: u64,
    reached: Reached,
}

fn config(points: bool, parents: u32) -> RelayConfig {
    let downlink = DownlinkConfig { name: "near".into(), ring_bytes_max: 300, ..narrow() };
    let boot = BootId(77);
    let bounds = GroupConfig {
        directory_bytes_max: 400,
        helping_max: 2,
        asking_max: 3,
        ..GroupConfig::default()
    };
    let group = points.then_some(bounds);
    RelayConfig {
        downlink,
        boot,
        parents,
        resume_pages_max: 4,
        refreshes_max: 2,
        group,
        ..RelayConfig::default()
    }
}

pub(super) fn run(c: &mut Choices<'_>, points: bool) -> Reached {
    let parents = 1 + u32::from(!points && c.rarely(2));
    let side = |number: u32| Side { parent: Parent::new(BootId(1 + u128::from(number))), up: None };
    let mut run = Run {
        relay: Relay::new(config(points, parents)),
        now: Instant(1_000_000_000_000),
        children: Children::new(5),
        sides: (0..parents).map(side).collect(),
        ups: 0,
        reached: Reached::default(),
    };
    run.children.joins = points;
    for side in 0..run.sides.len() {
        run.connect(c, side);
        for _ in 0..2 {
            let message = run.sides[side].parent.answers(c);
            run.parent_says(side, &message);
        }
    }
    for input in run.children.honest() {
        run.input(input);
    }
    for _ in 0..EVENTS_MAX {
        if c.over() {
            break;
        }
        if points && c.rarely(3) {
            let input = run.children.member_says(c);
            input.into_iter().for_each(|input| run.input(input));
        }
        match c.below(16) {
            0 => {
                let until = run.now.after(some_time(c));
                run.pass(until);
            }
            1 if c.rarely(10) => {
                let side = run.one(c);
                run.cut(c, side);
            }
            1..=4 => {
                let side = run.one(c);
                let message = run.sides[side].parent.answers(c);
                run.parent_says(side, &message);
            }
            5 | 6 => {
                let side = run.one(c);
                let message = run.sides[side].parent.says(c);
                run.parent_says(side, &message);
            }
            _ => {
                for input in run.children.act(c, run.now) {
                    if matches!(&input, LinkInput::Received { link, .. } if !run.children.holds(*link))
                    {
                        continue;
                    }
                    run.input(input);
                }
            }
        }
        for side in 0..run.sides.len() {
            if run.sides[side].up.is_none() && c.rarely(3) {
                run.connect(c, side);
            }
        }
        run.relay.check();
    }
    run.pass(run.now.after(Duration::from_secs(60)));
    run.relay.check();
    run.reached
}

impl Run {
    /// One of the parents, mostly the first.
    fn one(&self, c: &mut Choices<'_>) -> usize {
        usize::from(self.sides.len() > 1 && c.rarely(3))
    }

    /// The second has domains of its own, and speaks of the first's: it lies.
    fn connect(&mut self, c: &mut Choices<'_>, side: usize) {
        self.ups += 1;
        let link = LinkId(UP + self.ups);
        let Side { parent, up } = &mut self.sides[side];
        *up = Some(link);
        parent.opened();
        let in_group = !c.rarely(24);
        let mut welcome = parent.welcome(c);
        if let (Message::Welcome { domains, .. }, 1) = (&mut welcome, side)
            && !c.rarely(8)
        {
            domains.iter_mut().for_each(|info| info.domain = ANOTHER);
        }
        let parent = side as u32;
        self.input(LinkInput::UpOpened { link, parent, peer: "origin".into(), in_group });
        self.parent_says(side, &welcome);
    }

    fn cut(&mut self, c: &mut Choices<'_>, side: usize) {
        if let Some(link) = self.sides[side].up.take() {
            self.input(LinkInput::Closed { link, reason: c.rarely(2).then(|| c.reason()) });
        }
    }

    fn parent_says(&mut self, side: usize, message: &Message) {
        if let (Some(link), Some((message, bytes))) = (self.sides[side].up, carried(message)) {
            self.input(LinkInput::Received { link, message, bytes });
        }
    }

    fn input(&mut self, input: LinkInput) {
        let mut out = Vec::new();
        self.relay.handle(self.now, RelayInput::Link(input), &mut out);
        self.carry_out(out);
    }

    fn pass(&mut self, until: Instant) {
        while self.now < until {
            for input in self.children.honest_beats(self.now) {
                self.input(input);
            }
            let next = until.min(self.now.after(Duration::from_secs(4)));
            let mut all = Vec::new();
            pass(&mut self.relay, &mut self.now, next, |_, out| all.extend(out));
            self.carry_out(all);
        }
    }

    fn carry_out(&mut self, out: Vec<RelayOutput>) {
        for output in out {
            let RelayOutput::Link(output) = output else { continue };
            match &output {
                LinkOutput::Send { link, message } if link.0 >= UP => {
                    let side = self.sides.iter_mut().find(|side| side.up == Some(*link));
                    let side = side.expect("nothing is said to a link up that is closed");
                    assert_carried(message);
                    let either = matches!(message, Message::Goodbye { .. } | Message::KeepAlive);
                    assert!(either || is_upward(message), "a child says {message:?}");
                    side.parent.hears(message);
                }
                LinkOutput::Close { link, .. } if link.0 >= UP => {
                    let side = self.sides.iter_mut().find(|side| side.up == Some(*link));
                    side.expect("a link up that is open is closed").up = None;
                }
                LinkOutput::Send { message, .. } => {
                    let of_group = match message {
                        Message::Group(message) => Some(message),
                        _ => None,
                    };
                    let points = matches!(
                        of_group,
                        Some(GroupMessage::Pointed { .. } | GroupMessage::Help { .. })
                    );
                    self.reached.pointed += u64::from(points);
                    self.children.told(&output);
                }
                LinkOutput::Close { .. } => self.children.told(&output),
            }
        }
    }
}
