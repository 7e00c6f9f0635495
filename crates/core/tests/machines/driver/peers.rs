//! A liar that is another origin.

use super::choices::{Choices, DOMAIN, OTHER};
use super::{assert_carried, carried};
use larder_core::across::{Between, Ended, OriginMessage, Vote};
use larder_core::commit::PartId;
use larder_core::id::{Attempt, BootId, CommitId, DomainId, HistoryId, LinkId, Stamp};
use larder_core::machine::LinkOutput;
use larder_core::message::{DomainInfo, Epoch, Message, Versions};
use larder_core::origin::io::PeerInput;

/// Its name.
pub(super) const NAME: &str = "two";
/// Its domain.
const ELSEWHERE: DomainId = DomainId(99);
/// Its links are numbered from here on.
const FIRST: u64 = 1 << 32;

/// A domain of one history.
fn info(domain: DomainId, history: u64) -> DomainInfo {
    let epoch = Epoch { history: HistoryId(history.into()), first: Stamp(1) };
    DomainInfo { domain, epochs: if history == 0 { Vec::new() } else { vec![epoch] } }
}

/// What it has of links.
#[derive(Default)]
pub(super) struct Liar {
    links: u64,
    open: Option<LinkId>,
    /// What it was asked to prepare, or was told of: it knows some numbers.
    heard: Vec<Between>,
}

impl Liar {
    /// Whether something is asked of one of its links.
    pub(super) fn is_on(output: &LinkOutput) -> bool {
        let (LinkOutput::Send { link, .. } | LinkOutput::Close { link, .. }) = output;
        link.0 >= FIRST
    }

    pub(super) fn is_open(&self, link: LinkId) -> bool {
        self.open == Some(link)
    }

    pub(super) fn act(&mut self, c: &mut Choices<'_>) -> Vec<PeerInput> {
        let Some(link) = self.open else {
            let link = LinkId(FIRST + self.links);
            self.links += 1;
            self.open = Some(link);
            let peer = if c.rarely(24) { "three" } else { NAME }.to_owned();
            let opened = PeerInput::Opened { link, peer, dialed: c.rarely(2) };
            if c.rarely(8) {
                return vec![opened];
            }
            let versions = Versions::SPOKEN;
            let greets = OriginMessage::Greets { versions, name: NAME.into(), accept_fork: false };
            let serves = OriginMessage::Serves { domains: vec![info(ELSEWHERE, 9)] };
            let first = [greets, serves].map(Message::Origin);
            let first = first.map(|message| PeerInput::Received { link, message });
            return std::iter::once(opened).chain(first).collect();
        };
        if c.rarely(48) {
            self.open = None;
            return vec![PeerInput::Closed { link, reason: None }];
        }
        let message = match c.below(24) {
            0 => Message::KeepAlive,
            1 if c.rarely(4) => Message::Goodbye { reason: c.reason() },
            2 if c.rarely(4) => {
                let versions = Versions { oldest: c.near(1) as u32, newest: c.near(6) as u32 };
                Message::Origin(OriginMessage::Greets {
                    versions,
                    name: NAME.into(),
                    accept_fork: false,
                })
            }
            3 => {
                let all = [DOMAIN, OTHER, DomainId(7), ELSEWHERE];
                let domains = all.into_iter().filter(|_| !c.rarely(3));
                let domains: Vec<DomainId> = domains.collect();
                let line = |domain| info(domain, if c.rarely(4) { c.near(9) } else { 9 });
                let domains = domains.into_iter().map(line).collect();
                Message::Origin(OriginMessage::Serves { domains })
            }
            _ => {
                let from = if c.rarely(32) { c.domain() } else { ELSEWHERE };
                let to = if c.rarely(32) { c.domain() } else { [DOMAIN, OTHER][c.below(2)] };
                let through = Stamp(c.near(9));
                Message::Origin(OriginMessage::Says { from, to, through, between: self.says(c) })
            }
        };
        let message = carried(&message).map(|(message, _)| message);
        message.map(|message| PeerInput::Received { link, message }).into_iter().collect()
    }

    pub(super) fn told(&mut self, output: &LinkOutput) {
        match output {
            LinkOutput::Close { link, .. } => self.open = self.open.filter(|open| open != link),
            LinkOutput::Send { link, message } => {
                assert_eq!(Some(*link), self.open, "said on a link that is closed");
                assert_carried(message);
                if let Message::Origin(OriginMessage::Says { between, .. }) = message {
                    self.heard.push(between.clone());
                    let more = self.heard.len().saturating_sub(8);
                    self.heard.drain(..more);
                }
            }
        }
    }

    /// Something that fits to what it was told, or nearly so.
    fn says(&mut self, c: &mut Choices<'_>) -> Between {
        let heard = if c.rarely(4) { None } else { c.pick(&self.heard) };
        let of = |c: &mut Choices<'_>, id: CommitId| match c.rarely(6) {
            true => CommitId { sequence: c.near(id.sequence), ..id },
            false => id,
        };
        match heard {
            Some(Between::Await { coordinator, part }) => {
                let name = if c.rarely(3) { c.name() } else { "alice".into() };
                Between::Arrived { coordinator, part: of(c, part), name }
            }
            Some(Between::Prepare { attempt, .. } | Between::Ask { attempt }) => {
                self.answer(c, attempt)
            }
            Some(Between::Vote { attempt, .. } | Between::Decide { attempt }) => {
                self.answer(c, attempt)
            }
            Some(Between::Arrived { coordinator, part, .. }) => match c.below(4) {
                0 => Between::Await { coordinator, part: of(c, part) },
                1 => Between::Ended { coordinator, part, ended: self.ended(c) },
                _ => {
                    let coordinator = PartId { domain: ELSEWHERE, id: of(c, coordinator) };
                    let attempt = self.attempt(c);
                    Between::Prepare { attempt, coordinator, part: of(c, part) }
                }
            },
            _ => {
                let id = |c: &mut Choices<'_>| CommitId {
                    boot: BootId(1 + c.below(4) as u128),
                    sequence: c.near(4),
                };
                let (coordinator, part) = (id(c), id(c));
                match c.below(4) {
                    0 => Between::Await { coordinator, part },
                    1 => Between::Ended { coordinator, part, ended: self.ended(c) },
                    2 => {
                        let domain = c.domain();
                        let coordinator = PartId { domain, id: coordinator };
                        Between::Prepare { attempt: self.attempt(c), coordinator, part }
                    }
                    _ => {
                        let attempt = self.attempt(c);
                        self.answer(c, attempt)
                    }
                }
            }
        }
    }

    fn attempt(&self, c: &mut Choices<'_>) -> Attempt {
        Attempt { history: HistoryId(c.below(4) as u128), number: c.near(1) }
    }

    fn ended(&self, c: &mut Choices<'_>) -> Ended {
        match c.below(3) {
            0 => Ended::Refused(larder_core::commit::Abort::History),
            1 => Ended::Later(c.error()),
            _ => Ended::Unknown,
        }
    }

    fn answer(&self, c: &mut Choices<'_>, attempt: Attempt) -> Between {
        let attempt = if c.rarely(8) { self.attempt(c) } else { attempt };
        match c.below(9) {
            0..=2 => Between::Vote { attempt, vote: Vote::Ready },
            3 => {
                let refused = Vote::Refused(larder_core::commit::Abort::History);
                let vote = [refused, Vote::Absent, Vote::Later(c.error())][c.below(3)].clone();
                Between::Vote { attempt, vote }
            }
            4 | 5 => Between::Decide { attempt },
            6 => Between::Release { attempt },
            7 => Between::Ask { attempt },
            _ => Between::Followed { attempt },
        }
    }
}
