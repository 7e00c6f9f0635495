//! Transcripts of links between origins (decision 0038): transactions over domains of several origins.

use super::*;
use crate::notation;
use larder_core::across::{Between, Ended, OriginMessage, Vote};
use larder_core::id::{Attempt, LinkId};
use larder_core::message::{CloseReason, DomainInfo, Epoch, Versions};
use larder_core::origin::io::PeerInput;
use larder_core::rng::Rng;
use std::collections::VecDeque;

/// The domain of the other origin in most of them.
const ELSEWHERE: u64 = 5;

fn config(peers: &[&str]) -> OriginConfig {
    OriginConfig {
        peers: peers.iter().map(|name| (*name).into()).collect(),
        ..OriginConfig::default()
    }
}

fn up(link: u64, peer: &str, dialed: bool) -> (String, OriginInput) {
    let how = if dialed { "dialed" } else { "dialed by it" };
    let link_id = LinkId(link);
    let input = PeerInput::Opened { link: link_id, peer: peer.into(), dialed };
    (format!("link {link} to the origin {peer} is up, {how}"), OriginInput::Peer(input))
}

fn down(link: u64) -> (String, OriginInput) {
    let input = PeerInput::Closed { link: LinkId(link), reason: None };
    (format!("link {link} is down"), OriginInput::Peer(input))
}

fn heard(link: u64, message: Message) -> (String, OriginInput) {
    let text = format!("link {link} > {}", notation::message(&message));
    (text, OriginInput::Peer(PeerInput::Received { link: LinkId(link), message }))
}

fn greets(link: u64, name: &str) -> (String, OriginInput) {
    let versions = Versions::SPOKEN;
    heard(
        link,
        Message::Origin(OriginMessage::Greets { versions, name: name.into(), accept_fork: false }),
    )
}

fn greets_accepting(link: u64, name: &str) -> (String, OriginInput) {
    let (versions, name) = (Versions::SPOKEN, name.into());
    heard(link, Message::Origin(OriginMessage::Greets { versions, name, accept_fork: true }))
}

/// It has these domains, each in its histories.
fn has(link: u64, domains: &[(u64, &[u128])]) -> (String, OriginInput) {
    let info = |(domain, line): &(u64, &[u128])| DomainInfo {
        domain: DomainId(*domain),
        epochs: line
            .iter()
            .zip(1..)
            .map(|(history, first)| Epoch { history: HistoryId(*history), first: Stamp(first) })
            .collect(),
    };
    let domains = domains.iter().map(info).collect();
    heard(link, Message::Origin(OriginMessage::Serves { domains }))
}

fn serves(link: u64, domains: &[u64]) -> (String, OriginInput) {
    has(link, &domains.iter().map(|domain| (*domain, &[55][..])).collect::<Vec<_>>())
}

fn says(link: u64, way: (u64, u64), between: Between) -> (String, OriginInput) {
    says_at(link, way, 0, between)
}

fn says_at(
    link: u64,
    (from, to): (u64, u64),
    through: u64,
    between: Between,
) -> (String, OriginInput) {
    let (from, to, through) = (DomainId(from), DomainId(to), Stamp(through));
    heard(link, Message::Origin(OriginMessage::Says { from, to, through, between }))
}

/// A part of process 10.
fn id(sequence: u64) -> CommitId {
    CommitId { boot: BootId(10), sequence }
}

fn attempt(history: u128, number: u64) -> Attempt {
    Attempt { history: HistoryId(history), number }
}

fn arrived(sequence: u64) -> Between {
    Between::Arrived { coordinator: id(sequence), part: id(sequence), name: "a".into() }
}

/// The part of domain 1 of a transaction over that and the one elsewhere.
fn here(decides: u64, sequence: u64) -> Vec<(String, LinkInput)> {
    let both = vec![(1, writes(10, sequence, "y")), (ELSEWHERE, writes(10, sequence, "z"))];
    let mut both = parts(1, decides, both);
    both.truncate(1);
    both
}

impl Several {
    fn peer(&mut self, inputs: Vec<(String, OriginInput)>) {
        let out = self.t.step(inputs);
        self.keep(&out);
    }

    /// The origin `two`, which has the domain 5, is connected.
    fn with_two(&mut self) {
        self.peer(vec![up(9, "two", true)]);
        self.peer(vec![greets(9, "two"), serves(9, &[ELSEWHERE])]);
    }

    /// A part is prepared for domain 5 of two, and its link is gone.
    fn prepares_for_two(&mut self) {
        self.with_two();
        self.link(here(ELSEWHERE, 2));
        let coordinator = larder_core::commit::PartId { domain: DomainId(ELSEWHERE), id: id(2) };
        let prepare = Between::Prepare { attempt: attempt(55, 1), coordinator, part: id(2) };
        self.peer(vec![says(9, (5, 1), prepare)]);
        self.settle();
        self.peer(vec![down(9)]);
    }
}

#[test]
fn a_transaction_that_is_decided_here() {
    let mut run = Several::new(
        "Domain 1 decides a transaction whose other part is in domain 5, of the origin two. What domains of one origin say to \
         each other goes over the link.",
        1,
        config(&["two"]),
    );
    run.with_two();
    run.link(here(1, 2));
    run.peer(vec![says(9, (5, 1), arrived(2))]);
    run.peer(vec![says(9, (5, 1), Between::Vote { attempt: attempt(11, 1), vote: Vote::Ready })]);
    run.settle();
    run.peer(vec![says(9, (5, 1), Between::Followed { attempt: attempt(11, 1) })]);
    run.settle();
    assert_eq!(run.committed(10, 2), [1]);
    run.t.end("origin_peers_decided_here");
}

#[test]
fn a_transaction_that_is_decided_there() {
    let mut run = Several::new(
        "Domain 5 of the origin two decides. Its decision is lost with the link: what is prepared here asks when the next one \
         is there, and is told.",
        1,
        config(&["two"]),
    );
    run.prepares_for_two();
    run.wait(2);
    run.peer(vec![up(10, "two", false)]);
    run.peer(vec![greets(10, "two"), serves(10, &[ELSEWHERE])]);
    run.peer(vec![says(10, (5, 1), Between::Decide { attempt: attempt(55, 1) })]);
    run.settle();
    assert_eq!(run.committed(10, 2), [1]);
    run.t.end("origin_peers_decided_there");
}

#[test]
fn a_transaction_that_is_refused_there() {
    let mut run = Several::new(
        "Domain 5 of the origin two decides, and refuses. The part here hears that.",
        1,
        config(&["two"]),
    );
    run.with_two();
    run.link(here(ELSEWHERE, 2));
    let ended = Ended::Refused(larder_core::commit::Abort::History);
    run.peer(vec![says(9, (5, 1), Between::Ended { coordinator: id(2), part: id(2), ended })]);
    run.settle();
    assert!(run.committed(10, 2).is_empty());
    run.t.end("origin_peers_refused_there");
}

#[test]
fn an_origin_that_is_away() {
    let mut run = Several::new(
        "A part whose other domain is not reached. While two was never there it may have it; once it was, it is known who has \
         domain 5, and nobody has domain 7.",
        1,
        config(&["two"]),
    );
    run.link(here(1, 2));
    run.with_two();
    run.peer(vec![down(9)]);
    run.link(here(1, 2));
    run.peer(vec![up(10, "two", true)]);
    run.peer(vec![greets(10, "two"), has(10, &[(ELSEWHERE, &[])])]);
    run.link(here(1, 2));
    let nobodys = vec![(1, writes(10, 3, "y")), (7, writes(10, 3, "z"))];
    run.link(parts(1, 1, nobodys).into_iter().take(1).collect());
    run.peer(vec![serves(10, &[ELSEWHERE])]);
    run.link(here(1, 2));
    run.t.end("origin_peers_away");
}

#[test]
fn who_is_no_peer() {
    let mut run = Several::new(
        "An origin that is not listed; one with another name than its certificate; one of an older version; one that speaks before \
         it has greeted, and one that greets twice; one that speaks for a domain that it has not said to serve, and one that \
         speaks to a domain that is not here; and one that says what origins do not say to each other.",
        1,
        config(&["two"]),
    );
    run.peer(vec![up(7, "three", false)]);
    let older = Versions { oldest: 1, newest: 5 };
    let older = Message::Origin(OriginMessage::Greets {
        versions: older,
        name: "two".into(),
        accept_fork: false,
    });
    for (link, said) in [
        (10, vec![greets(10, "three")]),
        (11, vec![heard(11, older)]),
        (12, vec![serves(12, &[ELSEWHERE])]),
        (13, vec![greets(13, "two"), greets(13, "two")]),
        (14, vec![greets(14, "two"), serves(14, &[ELSEWHERE]), says(14, (6, 1), arrived(2))]),
        (15, vec![greets(15, "two"), serves(15, &[ELSEWHERE]), says(15, (5, 3), arrived(2))]),
        (
            16,
            vec![
                greets(16, "two"),
                heard(16, Message::Refresh { domain: DomainId(1), sent: run.t.now }),
            ],
        ),
        (17, vec![heard(17, Message::Goodbye { reason: CloseReason::Shutdown })]),
    ] {
        run.peer(vec![up(link, "two", true)]);
        for one in said {
            run.peer(vec![one]);
        }
    }
    run.t.end("origin_peers_who_is_none");
}

#[test]
fn a_domain_that_has_moved() {
    let mut run = Several::new(
        "Domain 5 is where its line goes on: of the origin two, and then of three, to which its store was moved. What two says for it \
         is not heard any more, nor what it says when it begins anew on what it had, though its operator accepts a loss: of what is \
         elsewhere it has none. Nobody but this origin has domain 1.",
        1,
        config(&["two", "three"]),
    );
    run.with_two();
    run.peer(vec![up(10, "three", true)]);
    run.peer(vec![greets(10, "three"), has(10, &[(1, &[7]), (ELSEWHERE, &[55, 56])])]);
    run.link(here(1, 2));
    run.peer(vec![says(9, (5, 1), arrived(2))]);
    run.peer(vec![says(10, (5, 1), arrived(2))]);
    run.peer(vec![has(9, &[(ELSEWHERE, &[55, 57])])]);
    run.peer(vec![says(9, (5, 1), Between::Vote { attempt: attempt(11, 1), vote: Vote::Ready })]);
    let forked = run.t.machine.peers().into_iter().find(|peer| peer.name == "two");
    assert_eq!(forked.map(|peer| peer.forked), Some(vec![DomainId(ELSEWHERE)]));
    run.peer(vec![up(11, "two", true)]);
    run.peer(vec![greets_accepting(11, "two"), has(11, &[(ELSEWHERE, &[55, 57])])]);
    run.peer(vec![says(11, (5, 1), Between::Vote { attempt: attempt(11, 1), vote: Vote::Ready })]);
    let forked: Vec<_> = run.t.machine.peers().into_iter().map(|peer| peer.forked.len()).collect();
    assert_eq!(forked, [1, 1], "domain 5 at two, and domain 1 at three");
    run.t.end("origin_peers_moved");
}

/// A boot whose part was prepared was forgotten for another one of its name, while who decides was away: its node heard that
/// nobody can tell, and not that it may be done yet (P11, P4; found by reading).
#[test]
fn bug_216_a_process_with_a_part_that_is_prepared_is_not_forgotten() {
    let mut run = Several::new(
        "A part of process 10 is prepared, and its link is gone, as is the one to who decides. Another process of the name has to \
         wait, of which the domain remembers one; when it is decided the first may go.",
        1,
        OriginConfig { boots_per_name_max: 1, ..config(&["two"]) },
    );
    run.prepares_for_two();
    let closed = LinkInput::Closed { link: LinkId(1), reason: None };
    run.link(vec![("link 1 is down".into(), closed)]);
    run.link(run.greeting(7, "a", 11));
    run.settle();
    run.wait(5);
    run.settle();
    assert!(run.t.machine.status().domains[0].in_doubt.is_some());
    run.peer(vec![up(10, "two", false)]);
    run.peer(vec![greets(10, "two"), serves(10, &[ELSEWHERE])]);
    run.peer(vec![says(10, (5, 1), Between::Decide { attempt: attempt(55, 1) })]);
    run.settle();
    run.t.end("origin_peers_boot_kept");
}

#[test]
fn two_processes_of_one_origin() {
    let mut run = Several::new(
        "This origin dialed two. A copy of its disk runs as well, under its name, and dials this one: of the two the one is heard \
         that began last, and the other shown as a copy, also for what comes late.",
        1,
        config(&["two"]),
    );
    run.with_two();
    run.link(here(ELSEWHERE, 2));
    run.peer(vec![up(10, "two", false)]);
    run.peer(vec![greets(10, "two"), has(10, &[(ELSEWHERE, &[55, 57])])]);
    run.peer(vec![says_at(9, (5, 1), 12, arrived(2))]);
    assert!(run.committed(10, 2).is_empty());
    // It may be the end of what ended, and comes late.
    assert!(run.t.machine.peers()[0].forked.is_empty());
    for _ in 0..5 {
        run.wait(5);
        run.peer(vec![heard(9, Message::KeepAlive), heard(10, Message::KeepAlive)]);
    }
    assert_eq!(run.t.machine.peers()[0].forked, [DomainId(ELSEWHERE)]);
    run.peer(vec![says(10, (5, 1), arrived(2))]);
    // What the other said at 12 is of the branch that is lost: another start is no restore.
    run.peer(vec![down(9), down(10)]);
    run.peer(vec![up(11, "two", true)]);
    run.peer(vec![greets(11, "two"), has(11, &[(ELSEWHERE, &[55, 57, 58])])]);
    assert!(run.t.machine.peers()[0].forked.is_empty());
    run.t.end("origin_peers_two_processes");
}

#[test]
fn two_links_to_one_origin() {
    let mut run = Several::new(
        "Both origins dial. What is said goes over the newest link that stands; a new one of the same direction replaces the one \
         before. A silent one is given up.",
        1,
        config(&["two"]),
    );
    run.with_two();
    run.peer(vec![up(10, "two", false)]);
    run.peer(vec![greets(10, "two"), serves(10, &[ELSEWHERE])]);
    run.link(here(1, 2));
    run.peer(vec![down(10)]);
    run.wait(1);
    run.peer(vec![up(11, "two", true)]);
    run.peer(vec![greets(11, "two"), serves(11, &[ELSEWHERE])]);
    for _ in 0..4 {
        run.wait(5);
    }
    run.t.end("origin_peers_two_links");
}

/// Two origins with a domain each and a link between them that loses, cuts and delays; both die and start again.
struct Pair {
    sites: [Several; 2],
    /// What is on its way to each.
    wire: [VecDeque<Message>; 2],
    link: u64,
    is_up: bool,
    rng: Rng,
    /// Transactions, by the sequence of their parts.
    sent: u64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let site = |domain: u64, peer| {
            let config = OriginConfig { wait_max: Duration::from_secs(3), ..config(&[peer]) };
            Several::of("", domain..=domain, config)
        };
        let mut first = site(1, "two");
        first.config.downlink.name = "one".into();
        let mut second = site(2, "one");
        second.config.downlink.name = "two".into();
        let wire = [VecDeque::new(), VecDeque::new()];
        let mut pair = Self {
            sites: [first, second],
            wire,
            link: 100,
            is_up: false,
            rng: Rng::new(seed),
            sent: 1,
        };
        // The names are taken up at a start.
        pair.dies(0);
        pair.dies(1);
        pair
    }

    fn takes(&mut self, at: usize, inputs: Vec<OriginInput>) {
        for input in inputs {
            let site = &mut self.sites[at];
            let mut out = Vec::new();
            site.t.machine.handle(site.t.now, input, &mut out);
            site.t.machine.check();
            self.sees(at, out);
        }
    }

    fn sees(&mut self, at: usize, out: Vec<OriginOutput>) {
        self.sites[at].keep(&out);
        for output in out {
            match output {
                OriginOutput::Link(LinkOutput::Send { link, message }) if link.0 == self.link => {
                    self.wire[1 - at].push_back(message);
                }
                OriginOutput::Link(LinkOutput::Close { link, reason }) => {
                    assert_ne!(link.0, self.link, "neither lies: {reason}");
                }
                _ => {}
            }
        }
    }

    fn connects(&mut self) {
        self.cuts();
        self.link += 1;
        self.is_up = true;
        for (at, peer) in ["two", "one"].into_iter().enumerate() {
            let (_, input) = up(self.link, peer, at == 0);
            self.takes(at, vec![input]);
        }
    }

    fn cuts(&mut self) {
        if std::mem::take(&mut self.is_up) {
            self.wire = [VecDeque::new(), VecDeque::new()];
            let link = self.link;
            (0..2).for_each(|at| self.takes(at, vec![down(link).1]));
        }
    }

    fn dies(&mut self, at: usize) {
        self.cuts();
        let site = &mut self.sites[at];
        site.restart();
        site.carry_out_quietly();
        let greeting = site.greeting(1, "a", 10);
        self.takes(at, greeting.into_iter().map(|(_, input)| OriginInput::Link(input)).collect());
    }

    /// The parts of a transaction are sent, for the first time or again; `only`: of one site.
    fn sends(&mut self, number: u64, only: Option<usize>) {
        // Some read what others write, and are refused for that.
        let part = |domain: u64| {
            let slot = 1 + (number % 2) as u16;
            let commit = Commit::new(10, number, 2).put(1, slot, 1, "x");
            (domain, if (number + domain).is_multiple_of(3) { commit.read(1, 1) } else { commit })
        };
        let all = parts(1, 1 + number % 2, vec![part(1), part(2)]);
        for (at, (_, input)) in all.into_iter().enumerate() {
            if only.is_none_or(|only| only == at) {
                self.takes(at, vec![OriginInput::Link(input)]);
            }
        }
    }

    fn hears(&mut self, at: usize, loses: bool) {
        let Some(message) = self.wire[at].pop_front() else { return };
        let said = matches!(message, Message::Origin(OriginMessage::Says { .. }));
        if !(said && loses) {
            self.takes(at, vec![heard(self.link, message).1]);
        }
    }

    fn works(&mut self, at: usize) {
        if !self.sites[at].queue.is_empty() {
            let (_, input) = self.sites[at].answer(0, None);
            self.takes(at, vec![input]);
        }
    }

    fn waits(&mut self, millis: u64) {
        for at in 0..2 {
            let site = &mut self.sites[at];
            site.t.now = site.t.now.after(Duration::from_millis(millis));
            let mut out = Vec::new();
            site.t.machine.handle_timeout(site.t.now, &mut out);
            // The node is heard from.
            self.sees(at, out);
            self.takes(at, vec![OriginInput::Link(received(1, Message::KeepAlive).1)]);
        }
    }

    fn lives(&mut self) {
        let at = self.rng.below(2) as usize;
        match self.rng.below(40) {
            0..=11 => self.works(at),
            12..=25 => {
                let loses = self.rng.below(8) == 0;
                self.hears(at, loses);
            }
            26..=29 => self.waits(300),
            30..=32 if self.sent < 40 => {
                self.sent += 1;
                self.sends(self.sent, None);
            }
            33..=35 => {
                let number = 2 + self.rng.below(self.sent);
                if number <= self.sent {
                    self.sends(number, Some(at));
                }
            }
            36 => self.cuts(),
            37 if self.rng.below(4) == 0 => self.dies(at),
            _ if !self.is_up => self.connects(),
            _ => {}
        }
    }

    /// All is well from here on, and whoever has no outcome asks again.
    fn heals(&mut self) {
        self.connects();
        for _ in 0..60 {
            (2..=self.sent).for_each(|number| self.sends(number, None));
            for _ in 0..200 {
                (0..2).for_each(|at| self.works(at));
                (0..2).for_each(|at| self.hears(at, false));
            }
            self.waits(300);
        }
        for at in 0..2 {
            let (domain, boot) = (DomainId(at as u64 + 1), BootId(10));
            let (upto, open) = (self.sent, Vec::new());
            let confirm = Message::Confirm { domain, boot, upto, open };
            self.takes(at, vec![OriginInput::Link(received(1, confirm).1)]);
            while !self.sites[at].queue.is_empty() {
                self.works(at);
            }
        }
    }
}

/// Whatever is lost between two origins, and whenever one of them dies: a transaction over both is done in both or in none,
/// once, and nothing stays in doubt.
#[test]
fn two_origins_agree() {
    let mut done = 0;
    for seed in 0..60 {
        let mut pair = Pair::new(seed);
        (0..1_500).for_each(|_| pair.lives());
        pair.heals();
        for number in 2..=pair.sent {
            let times = [0, 1].map(|at: usize| {
                let site = &pair.sites[at];
                let store = &site.stores[&(at as u64 + 1)];
                let is = |record: &LogRecord| matches!(record, LogRecord::Commit { id: of, .. } if *of == id(number));
                let mut stamps = BTreeSet::new();
                for (lsn, record) in &store.log {
                    if is(record) {
                        stamps.insert(*lsn);
                    }
                }
                stamps.len()
            });
            assert!(
                times == [0, 0] || times == [1, 1],
                "seed {seed}: {number} is done {times:?} times"
            );
            done += times[0];
        }
        for site in &pair.sites {
            let status = site.t.machine.status();
            assert!(status.domains.iter().all(|domain| domain.in_doubt.is_none()), "seed {seed}");
            assert_eq!(site.t.machine.under_way(), None, "seed {seed}");
        }
    }
    assert!(done > 400, "{done} transactions over two origins were done");
}

#[test]
fn an_origin_that_was_restored() {
    let mut run = Several::new(
        "Domain 5 is prepared for here, and the origin two begins anew on a copy from before: its line lacks what was said, and \
         also what the attempt names, and nothing that it says is heard, though this origin was started again meanwhile. Then its \
         operator accepts the loss: it is heard, and releases what it knows nothing of. A copy of domain 1, which is here, is \
         not heard either.",
        1,
        config(&["two"]),
    );
    run.prepares_for_two();
    run.restart();
    run.settle();
    let anew = |link| has(link, &[(1, &[7]), (ELSEWHERE, &[54, 57])]);
    let release = |link| says(link, (5, 1), Between::Release { attempt: attempt(55, 1) });
    run.peer(vec![up(10, "two", true)]);
    run.peer(vec![greets(10, "two"), anew(10)]);
    run.peer(vec![release(10), says(10, (1, 1), arrived(2))]);
    let forked = run.t.machine.peers()[0].forked.clone();
    assert_eq!(forked, [DomainId(1), DomainId(ELSEWHERE)]);
    run.link(run.greeting(1, "a", 10));
    run.link(here(ELSEWHERE, 3));
    run.peer(vec![up(11, "two", true)]);
    run.peer(vec![greets_accepting(11, "two"), anew(11)]);
    run.peer(vec![release(11)]);
    run.settle();
    assert!(run.committed(10, 2).is_empty());
    assert!(run.t.machine.status().domains[0].in_doubt.is_none());
    run.t.end("origin_peers_restored");
}

#[test]
fn an_origin_that_was_restored_from_within_a_history() {
    let mut run = Several::new(
        "Domain 5 says something at its stamp 8 of history 55, and comes back with a line that left 55 at 6: what it said last was \
         lost, and it is not heard. One that left it at 9 is.",
        1,
        config(&["two"]),
    );
    run.with_two();
    run.link(here(ELSEWHERE, 2));
    run.peer(vec![says_at(9, (5, 1), 8, arrived(2))]);
    let line = |link, first| {
        let epoch = |(history, first)| Epoch { history: HistoryId(history), first: Stamp(first) };
        let epochs = [(55, 1), (57, first)].map(epoch).to_vec();
        let domains = vec![DomainInfo { domain: DomainId(ELSEWHERE), epochs }];
        heard(link, Message::Origin(OriginMessage::Serves { domains }))
    };
    for (link, first, forked) in [(10, 6, 1), (11, 9, 0)] {
        run.peer(vec![up(link, "two", true)]);
        run.peer(vec![greets(link, "two"), line(link, first)]);
        assert_eq!(run.t.machine.peers()[0].forked.len(), forked);
    }
    run.t.end("origin_peers_restored_within");
}
