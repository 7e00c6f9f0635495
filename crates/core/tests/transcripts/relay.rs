//! Transcripts of the relay.

mod behind;
mod copies;
mod crowds;
mod failover;
mod group;
mod parents;
mod rest;
mod updates;

use crate::parent::*;
use crate::transcript::Transcript;
use larder_core::commit::{Aspect, Change, Outcome, PageChange, Target};
use larder_core::id::{
    BootId, CommitId, DomainId, HistoryId, LinkId, PageId, RequestId, Slot, Stamp,
};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{
    DomainInfo, Echo, Epoch, LinkLimits, Message, NoBoot, PageAnswer, PageBody, RequestError,
    ResumeAnswer, Role, VolumeInfo,
};
use larder_core::relay::io::{RelayInput, RelayOutput};
use larder_core::relay::{Relay, RelayConfig};
use larder_core::time::{Duration, Instant, WallTime};

pub(crate) fn show(output: &RelayOutput) -> Option<String> {
    Some(match output {
        RelayOutput::Link(LinkOutput::Send { link: LinkId(9), message }) => {
            format!("up < {}", crate::notation::message(message))
        }
        RelayOutput::Link(LinkOutput::Send { link, message }) => {
            format!("link {} < {}", link.0, crate::notation::message(message))
        }
        RelayOutput::Link(LinkOutput::Close { link, reason }) => {
            format!("link {} closed: {reason}", link.0)
        }
        RelayOutput::Notice(notice) => format!("notice {notice:?}"),
    })
}

/// A relay; its link up is number 9.
pub(crate) struct Run(pub(crate) Transcript<Relay>);

pub(crate) fn up(message: Message) -> (String, LinkInput) {
    let (_, input) = received(9, message.clone());
    (format!("up > {}", crate::notation::message(&message)), input)
}

pub(crate) fn line() -> Vec<Epoch> {
    vec![Epoch { history: HistoryId(1), first: Stamp(1) }]
}

pub(crate) fn resumed(request: u64, from: u64, through: u64, stale: &[u64]) -> (String, LinkInput) {
    resumed_in(DOMAIN, request, from, through, stale)
}

fn resumed_in(
    domain: DomainId,
    request: u64,
    from: u64,
    through: u64,
    stale: &[u64],
) -> (String, LinkInput) {
    up(Message::Resumed {
        request: RequestId(request),
        domain,
        epochs: line(),
        answer: ResumeAnswer::From(Stamp(from)),
        stale: stale.iter().map(|n| page(*n)).collect(),
        through: Stamp(through),
        time: WallTime(0),
        done: true,
    })
}

/// The parent cannot name what changed.
fn reset(request: u64, through: u64) -> (String, LinkInput) {
    up(Message::Resumed {
        request: RequestId(request),
        domain: DOMAIN,
        epochs: line(),
        answer: ResumeAnswer::Reset,
        stale: Vec::new(),
        through: Stamp(through),
        time: WallTime(0),
        done: true,
    })
}

/// An advance with one change of a page's slot 1 at `through`.
pub(crate) fn advance(from: u64, through: u64, n: u64) -> (String, LinkInput) {
    let touched = vec![(Target::Slot(Slot(1)), Aspect::Value)];
    let id = CommitId { boot: BootId(99), sequence: through };
    let change =
        Change { stamp: Stamp(through), id, pages: vec![PageChange { page: page(n), touched }] };
    up(Message::Advance {
        domain: DOMAIN,
        from: Stamp(from),
        through: Stamp(through),
        time: WallTime(0),
        changes: vec![change],
        stale: Vec::new(),
        echo: None,
    })
}

fn pages(request: u64, n: u64, version: u64, as_of: u64) -> (String, LinkInput) {
    let answer = PageAnswer {
        page: page(n),
        version: Stamp(version),
        as_of: Stamp(as_of),
        body: PageBody::Absent,
    };
    up(Message::Pages { request: RequestId(request), domain: DOMAIN, pages: vec![answer] })
}

/// The parent's link opens, and welcomes the relay with a list of its domains.
fn welcomed(domains: &[DomainId]) -> Vec<(String, LinkInput)> {
    welcomed_for(domains, Duration::from_secs(15))
}

fn welcomed_for(domains: &[DomainId], lease: Duration) -> Vec<(String, LinkInput)> {
    welcomed_by(1, domains, lease)
}

/// By a parent that speaks some version.
pub(crate) fn welcomed_by(
    version: u32,
    domains: &[DomainId],
    lease: Duration,
) -> Vec<(String, LinkInput)> {
    let opened =
        LinkInput::UpOpened { link: LinkId(9), parent: 0, peer: "origin".into(), in_group: true };
    vec![("up opened".into(), opened), up(welcome("origin", version, domains, lease))]
}

fn welcome(name: &str, version: u32, domains: &[DomainId], lease: Duration) -> Message {
    let limits = LinkLimits {
        requests_max: 8192,
        stream_window_bytes: 1 << 20,
        bulk_window_bytes: 4 << 20,
        lease,
    };
    Message::Welcome {
        version,
        name: name.into(),
        time: WallTime(0),
        limits,
        domains: domains.iter().map(|&domain| DomainInfo { domain, epochs: line() }).collect(),
    }
}

/// The same of a parent that speaks this version.
fn welcomed_in(told: u32) -> Vec<(String, LinkInput)> {
    let mut inputs = welcomed(&[DOMAIN]);
    if let (_, LinkInput::Received { message: Message::Welcome { version, .. }, .. }) =
        &mut inputs[1]
    {
        *version = told;
    }
    inputs
}

/// A part of the answer of an origin that was restored from a copy at 4 and went on to 6.
fn forked(request: u64, done: bool) -> (String, LinkInput) {
    let mut epochs = line();
    epochs.push(Epoch { history: HistoryId(2), first: Stamp(5) });
    up(Message::Resumed {
        request: RequestId(request),
        domain: DOMAIN,
        epochs,
        answer: ResumeAnswer::From(Stamp(4)),
        stale: vec![page(3)],
        through: Stamp(6),
        time: WallTime(0),
        done,
    })
}

/// The answer of an origin whose newest history begins at `first`, to who stands right below.
fn started_again(request: u64, first: u64) -> (String, LinkInput) {
    let mut epochs = line();
    epochs.extend((6..=first).map(|n| Epoch { history: HistoryId(n.into()), first: Stamp(n) }));
    up(Message::Resumed {
        request: RequestId(request),
        domain: DOMAIN,
        epochs,
        answer: ResumeAnswer::From(Stamp(5)),
        stale: Vec::new(),
        through: Stamp(first - 1),
        time: WallTime(0),
        done: true,
    })
}

impl Run {
    /// A relay that follows domain 1 at stamp 5; the first free request of its own is 2.
    pub(crate) fn new(prose: &str) -> Self {
        Self::with(prose, RelayConfig::default())
    }

    pub(crate) fn with(prose: &str, config: RelayConfig) -> Self {
        let mut run = Self(Transcript::new(Relay::new(config), prose, show));
        run.connect();
        run.quietly(vec![resumed(1, 5, 5, &[])]);
        run
    }

    fn connect(&mut self) {
        self.connect_to(&[DOMAIN]);
    }

    /// Connected anew to a parent that speaks this version.
    fn connect_in(&mut self, version: u32) {
        let closed = LinkInput::Closed { link: LinkId(9), reason: None };
        self.quietly(vec![("up closed".into(), closed)]);
        self.quietly(welcomed_in(version));
    }

    fn connect_to(&mut self, domains: &[DomainId]) {
        self.quietly(welcomed(domains));
    }

    pub(crate) fn quietly(&mut self, inputs: Vec<(String, LinkInput)>) {
        for (_, input) in inputs {
            let mut out = Vec::new();
            self.0.machine.handle(self.0.now, RelayInput::Link(input), &mut out);
        }
    }

    pub(crate) fn step(&mut self, inputs: Vec<(String, LinkInput)>) {
        self.0.step(inputs.into_iter().map(|(s, i)| (s, RelayInput::Link(i))).collect());
    }

    /// Nodes a (link 1, boot 10) and b (link 2, boot 20), registered and holding nothing.
    pub(crate) fn two_nodes(&mut self) {
        for (link, name, boot) in [(1, "a", 10), (2, "b", 20)] {
            self.quietly(vec![
                opened(link, name),
                hello(link, name, boot),
                resume_new(link, 1),
                register(link, name, boot),
                up(Message::Registered { domain: DOMAIN, boot: BootId(boot) }),
            ]);
        }
    }
}

#[test]
fn rule_7_no_notice_while_a_fetch_is_pending() {
    let mut run = Run::new(
        "Rule 7 at a relay. a fetches page 3, is answered, and evicts it while b's fetch of it is \
         on its way up: a notice now would follow b's fetch and unregister the relay for what b is \
         about to hold. None is sent. When b has evicted it too, and nothing is pending, it goes up.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![pages(2, 3, 2, 5)]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![evicted(1, &[3])]);
    run.step(vec![evicted(2, &[3])]);
    run.0.say("b gave the page up before it came: still no notice, its fetch is pending.");
    run.step(vec![pages(3, 3, 2, 5)]);
    run.step(vec![fetch(1, 6, &[3])]);
    run.step(vec![pages(4, 3, 2, 5)]);
    run.step(vec![evicted(1, &[3])]);
    run.0.end("relay_rule_7_no_notice_while_a_fetch_is_pending");
}

#[test]
fn bug_29_a_list_overtaken() {
    let mut run = Run::new(
        "The relay narrows its registration to what its children hold. Its list travels slowly. a's \
         commit, which makes page 20, overtakes it on the bulk lane and is logged; a holds the page. \
         Then the list comes to the parent, without page 20: its next change came neither to the \
         relay nor to a (P3). Now the list is announced by an empty part, and made when a later beat \
         is echoed: by then the parent gathers what is made.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![pages(2, 3, 2, 5)]);
    run.0.wait(Duration::from_secs(6));
    let create = larder_core::commit::Op::CreatePage(larder_core::commit::PageKind::Slotted);
    run.step(vec![Commit::new(10, 1, 5).op(20, create).on(1)]);
    run.0.wait(Duration::from_secs(2));
    let now = run.0.now;
    run.step(vec![echoed(now)]);
    run.0.end("relay_bug_29_a_list_overtaken");
}

#[test]
fn bug_28_a_failure_of_one_page() {
    let mut run = Run::new(
        "Of a's pages 3 and 4 the parent has only page 4. The failure of page 3 comes first, on the \
         control lane: a's fetch once failed as a whole, and page 4, when it came, was asked by nobody.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3, 4])]);
    let error = RequestError::NoVolume("7".into());
    run.step(vec![up(Message::Failed { request: RequestId(2), pages: vec![page(3)], error })]);
    run.step(vec![pages(2, 4, 2, 5)]);
    run.0.end("relay_bug_28_a_failure_of_one_page");
}

#[test]
fn rule_10_registered_before_it_is_asked() {
    let mut run = Run::new(
        "Rule 10 at a relay. a fetches page 3; before the page comes, change 6 names it. The relay \
         has registered a before it asked: the change goes down, and a applies it to the page \
         as-of 5 that comes after it.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![advance(5, 6, 3)]);
    run.step(vec![pages(2, 3, 2, 5)]);
    run.0.end("relay_rule_10_registered_before_it_is_asked");
}

#[test]
fn rule_13_early_answer() {
    let mut run = Run::new(
        "Rule 13. The relay has seen change 7 to page 3. A transaction of a with base 6 that read it \
         cannot commit: a hears it from the relay. One with base 7 goes up. And the relay says \
         nothing about a commit that may have been sent before: one whose number is not new on this \
         link, or whose base is not later than the stamp at which the link's stream began.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3]), advance(5, 6, 4), advance(6, 7, 3)]);
    run.step(vec![Commit::new(10, 1, 6).read(3, 1).put(3, 1, 1, "x").on(1)]);
    run.step(vec![Commit::new(10, 2, 7).read(3, 1).put(3, 1, 1, "x").on(1)]);
    run.step(vec![Commit::new(10, 1, 6).read(3, 1).put(3, 1, 1, "x").on(1)]);
    run.step(vec![Commit::new(10, 3, 5).read(3, 1).put(3, 1, 1, "x").on(1)]);
    let id = CommitId { boot: BootId(10), sequence: 2 };
    let outcome = Outcome::Committed(Stamp(8));
    let history = HistoryId(1);
    run.step(vec![up(Message::Committed { domain: DOMAIN, id, outcome, history })]);
    run.0.end("relay_rule_13_early_answer");
}

#[test]
fn rule_11_answers_wait_for_the_stream() {
    let mut run = Run::new(
        "Rules 11 and 17 at a relay. a returns with copies up to 4. The relay does not know what a \
         holds, so it asks; change 6 passes meanwhile. The answer comes in the stream, at the \
         relay's own position: a's cursor starts there, and a gets what changed since from the \
         stream, for whatever page. Pages that ran ahead (as-of 9) do not move it.",
    );
    run.step(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.step(vec![resume(1, 1, &[(1, 1)], 4)]);
    run.step(vec![advance(5, 6, 3)]);
    run.step(vec![resumed(2, 4, 6, &[8])]);
    run.step(vec![fetch(1, 5, &[3]), pages(3, 3, 8, 9)]);
    run.step(vec![advance(6, 7, 44)]);
    run.step(vec![holding(1, &[3])]);
    run.0.wait(Duration::from_secs(6));
    run.0.end("relay_rule_11_answers_wait_for_the_stream");
}

#[test]
fn the_link_up_is_lost() {
    let mut run = Run::new(
        "The link up goes away. Children stay; a commit is answered as deferred, at once also the \
         one in flight; a fetch in flight is asked again when the parent is back, and what changed \
         meanwhile goes down as stale pages, without any child's resume. A fetch that waits for \
         longer than its limit, counted from when it was first sent, fails.",
    );
    run.two_nodes();
    run.step(vec![
        fetch(1, 5, &[3]),
        fetch(2, 5, &[4]),
        Commit::new(10, 1, 5).put(3, 1, 1, "x").on(1),
    ]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(vec![Commit::new(20, 1, 5).put(4, 1, 1, "x").on(2)]);
    run.0.wait(Duration::from_secs(9));
    run.connect();
    run.step(vec![resumed(6, 5, 9, &[4])]);
    run.0.wait(Duration::from_secs(2));
    run.0.end("relay_the_link_up_is_lost");
}

#[test]
fn a_child_without_credits_delays_nobody() {
    let mut run = Run::new(
        "P7. a returns no credit. It is sent pages as far as its window goes; the rest of its fetch \
         is not even asked for, so that nothing waits at the relay, and b is served.",
    );
    run.two_nodes();
    let many: Vec<u64> = (100..200).collect();
    run.step(vec![fetch(1, 5, &many)]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.0.end("relay_a_child_without_credits_delays_nobody");
}

#[test]
fn ages_add_up() {
    let mut run = Run::new(
        "The relay's state was confirmed by its parent 3 s ago (and was 1 s old then). A child's \
         beat is echoed with an age of 4 s, not with none.",
    );
    run.two_nodes();
    let sent = run.0.now;
    run.quietly(vec![echo(5, sent, Duration::from_secs(1))]);
    run.0.wait(Duration::from_secs(3));
    let now = run.0.now;
    run.step(vec![beat(1, now)]);
    run.0.end("relay_ages_add_up");
}

#[test]
fn bug_09_a_domain_that_comes_up_later() {
    let mut run = Run::new(
        "Found by the simulator. One of an origin's two domains was out of service when this relay \
         was welcomed, and so the relay below it (link 2) was welcomed with a list of one. The origin \
         started again with both; this relay learnt of the second with its next link, but nobody told \
         the relay below, which followed what its Welcome had listed and refused domain 2 to its \
         children for ever. Its link is closed now when domain 2 begins here: it connects again and \
         is told. The node (link 1) asks for the domains of its volumes, and stays.",
    );
    run.quietly(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.quietly(vec![opened_as(2, "r", Role::Relay), hello_as(2, "r", 20, Role::Relay)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect_to(&[DOMAIN, DomainId(2)]);
    run.step(vec![resumed(2, 5, 5, &[])]);
    run.step(vec![resumed_in(DomainId(2), 3, 1, 1, &[])]);
    run.step(vec![opened_as(3, "r", Role::Relay), hello_as(3, "r", 20, Role::Relay)]);
    run.0.end("relay_bug_09_a_domain_that_comes_up_later");
}

/// Every relay told its children a lease of 15 s. Below one, with an origin whose lease was 3 s, a
/// node whose line was cut went on for 12 s to call current what was not. And the relay asked for
/// an echo every 2 s only, so that below it a lease of 1 s could not have been kept.
#[test]
fn children_of_a_relay_have_its_parents_lease() {
    let mut run = Run(Transcript::new(Relay::new(RelayConfig::default()), "", show));
    let told = |run: &mut Run, inputs: Vec<(String, LinkInput)>| {
        let inputs = inputs.into_iter().map(|(text, input)| (text, RelayInput::Link(input)));
        let (mut leases, mut closed) = (Vec::new(), Vec::new());
        for output in run.0.step(inputs.collect()) {
            match output {
                RelayOutput::Link(LinkOutput::Send {
                    message: Message::Welcome { limits, .. },
                    link,
                }) => leases.push((link.0, limits.lease.as_secs())),
                RelayOutput::Link(LinkOutput::Close { link, .. }) => closed.push(link.0),
                _ => {}
            }
        }
        (leases, closed)
    };
    let seconds = Duration::from_secs;
    let lost = || vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })];
    run.quietly(welcomed_for(&[DOMAIN], seconds(3)));
    run.quietly(vec![resumed(1, 5, 5, &[])]);
    let greeted = told(&mut run, vec![opened(1, "a"), hello(1, "a", 10)]);
    assert_eq!(greeted, (vec![(1, 3)], vec![]));
    // The origin's lease was made longer, then shorter: what a was told may not outlive it.
    run.quietly(lost());
    assert_eq!(told(&mut run, welcomed_for(&[DOMAIN], seconds(20))), (vec![], vec![]));
    run.quietly(lost());
    assert_eq!(told(&mut run, welcomed_for(&[DOMAIN], seconds(1))), (vec![], vec![1]));
    run.quietly(vec![resumed(3, 5, 5, &[])]);
    let greeted = told(&mut run, vec![opened(2, "a"), hello(2, "a", 10)]);
    assert_eq!(greeted, (vec![(2, 1)], vec![]));
    let out = run.0.wait(seconds(1));
    let is_beat = |output: &&RelayOutput| {
        let beat = |message: &Message| matches!(message, Message::Beat { .. });
        matches!(output, RelayOutput::Link(LinkOutput::Send { message, .. }) if beat(message))
    };
    assert_eq!(out.iter().filter(is_beat).count(), 4);
}

/// The parent echoes a beat that was sent at `sent`.
fn echo(at: u64, sent: Instant, age: Duration) -> (String, LinkInput) {
    echoes(at, Echo { sent, age, by_clock: age != Duration::ZERO })
}

fn echoes(at: u64, echo: Echo) -> (String, LinkInput) {
    up(Message::Advance {
        domain: DOMAIN,
        from: Stamp(at),
        through: Stamp(at),
        time: WallTime(0),
        changes: Vec::new(),
        stale: Vec::new(),
        echo: Some(echo),
    })
}

#[test]
fn bug135_a_clock_that_stands_still() {
    let mut run = Run::new(
        "The relay's clock stands still. A regular beat of its own is on its way up when a child's \
         refresh comes, and a second child's after that: all in one instant by that clock. Each has \
         a beat of its own all the same, or the echo of an earlier one, of before it came, would \
         answer it (P2). And a relay above says of its state that it has no age, by its own clock, \
         which stood still too: that answers no refresh. The children are told which of the two an \
         echo is.",
    );
    run.two_nodes();
    run.quietly(vec![echo(5, run.0.now, Duration::ZERO)]);
    let now = run.0.now;
    run.step(vec![beat(1, now), refresh(1, now)]);
    run.step(vec![beat(2, now), refresh(2, now)]);
    run.step(vec![advance(5, 6, 3)]);
    run.0.say("The echo of the beat of before both.");
    run.step(vec![echo(6, now, Duration::ZERO)]);
    let later = |nanos| now.after(Duration::from_nanos(nanos));
    run.0.say("By the clock of the relay above.");
    let by_clock = Echo { sent: later(2), age: Duration::ZERO, by_clock: true };
    run.step(vec![echoes(6, by_clock)]);
    run.0.say("One after the other is answered.");
    run.step(vec![echo(6, later(1), Duration::ZERO)]);
    run.step(vec![echo(6, later(2), Duration::ZERO)]);
    run.0.end("relay_bug135_a_clock_that_stands_still");
}

#[test]
fn a_refresh_is_passed_up() {
    let mut run = Run::new(
        "A child that wants the origin's own state sends a refresh and a beat. A relay that answered by \
         its own beats alone, 2 s apart, made every operation of a strict mount wait for seconds, or fail. \
         The refresh goes up at once, and the beat is echoed with its answer alone. b is of a version before 7, \
         and its beat comes first: it is echoed at once too, with the relay's age, which is of no use to b. \
         Its refresh comes a millisecond later, when a's is under way already: \
         it must not join it, for the origin may have handled a's before a commit that somebody was \
         told of before b asked. Each is answered, with no age, by the echo of a beat that was sent \
         up after it came. A beat of the relay's own that is echoed with an age answers none that \
         came after the instant it confirms.",
    );
    run.two_nodes();
    let ms = |run: &Run| run.0.now;
    run.quietly(vec![echo(5, run.0.now, Duration::ZERO)]);
    run.0.wait(Duration::from_millis(500));
    let first = ms(&run);
    run.step(vec![refresh(1, first), beat(1, first)]);
    run.0.wait(Duration::from_millis(1));
    let second = ms(&run);
    run.step(vec![beat(2, second), refresh(2, second)]);
    run.0.wait(Duration::from_millis(40));
    run.step(vec![advance(5, 6, 3)]);
    run.step(vec![echo(6, second, Duration::from_millis(900))]);
    run.step(vec![echo(6, first, Duration::ZERO)]);
    run.step(vec![echo(6, second, Duration::ZERO)]);
    run.0.say("The line up breaks while c's is under way: it is asked for again on the next.");
    run.0.wait(Duration::from_millis(10));
    let third = ms(&run);
    run.step(vec![refresh(1, third)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.0.wait(Duration::from_millis(10));
    run.step(welcomed(&[DOMAIN]));
    let fourth = ms(&run);
    run.step(vec![resumed(2, 6, 6, &[])]);
    run.step(vec![echo(6, fourth, Duration::ZERO)]);
    run.0.end("relay_a_refresh_is_passed_up");
}

#[test]
fn refreshes_are_bounded() {
    let mut run = Run::new("");
    run.two_nodes();
    let passed = |out: &[RelayOutput]| {
        let is = |output: &&RelayOutput| {
            matches!(
                output,
                RelayOutput::Link(LinkOutput::Send { link: LinkId(9), message })
                    if matches!(message, Message::Refresh { .. })
            )
        };
        out.iter().filter(is).count()
    };
    let mut sent = 0;
    let begin = run.0.now;
    for _ in 0..200 {
        run.0.wait(Duration::from_micros(10));
        let now = run.0.now;
        sent += passed(&run.0.step(vec![{
            let (text, input) = refresh(1, now);
            (text, RelayInput::Link(input))
        }]));
    }
    assert_eq!(sent, 64, "no more without an answer");
    // The first is answered: what came since the last goes up, in one.
    let first = begin.after(Duration::from_micros(10));
    let (text, input) = echo(5, first, Duration::ZERO);
    let out = run.0.step(vec![(text, RelayInput::Link(input))]);
    assert_eq!(passed(&out), 1);
}

#[test]
fn bug_03_a_node_with_a_new_boot() {
    let mut run = Run::new(
        "Found by the simulator. The origin was restored from a copy older than the registration of \
         node a; a was told that its boot was unknown, drew a new one for the domain (decision 0004) \
         and registered that. It was taken for another node's boot, and the link closed, every time. \
         Refused is what is another's: boot 10 was a's, and b is not a.",
    );
    run.quietly(vec![opened(1, "a"), hello(1, "a", 10), opened(2, "b"), hello(2, "b", 20)]);
    run.step(vec![register(1, "a", 10), register(2, "b", 20)]);
    let boot = BootId(10);
    let why = NoBoot::Unknown;
    run.step(vec![up(Message::Unregistered { domain: DOMAIN, boot, why })]);
    run.step(vec![register_as(1, "a", 10, 77, true)]);
    run.step(vec![up(Message::Registered { domain: DOMAIN, boot: BootId(77) })]);
    run.step(vec![register_as(2, "b", 20, 77, false)]);
    run.0.end("relay_bug_03_a_node_with_a_new_boot");
}

#[test]
fn boots_travel_in_their_names() {
    let mut run = Run::new(
        "Found by reading (P11). A relay passed on whatever a child confirmed or committed, under any \
         boot. A child speaks for its own boots only; b, which confirms for a's, is cut off. The relay \
         asks for its children's boots in their names, on every link up anew, and passes no commit on \
         before the parent has said yes: the parent takes commits under boots registered on the link \
         only. It says when a child has left, and a child whose name is another's is cut off.",
    );
    run.two_nodes();
    run.step(vec![Commit::new(10, 1, 5).put(3, 1, 1, "x").on(1), confirm(1, 10, 0)]);
    run.step(vec![confirm(2, 10, 1)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(welcomed(&[DOMAIN]));
    run.step(vec![resumed(2, 5, 5, &[])]);
    run.step(vec![Commit::new(10, 1, 5).put(3, 1, 1, "x").on(1)]);
    run.0.say("The parent had no room for it, or did not serve the domain yet: asked again.");
    run.0.wait(Duration::from_secs(2));
    run.step(vec![up(Message::Registered { domain: DOMAIN, boot: BootId(10) })]);
    run.step(vec![Commit::new(10, 1, 5).put(3, 1, 1, "x").on(1)]);
    let why = NoBoot::Taken;
    run.step(vec![up(Message::Unregistered { domain: DOMAIN, boot: BootId(10), why })]);
    run.0.end("relay_boots_travel_in_their_names");
}

#[test]
fn bug_144_told_of_a_boot_before_the_welcome() {
    let mut run = Run::new(
        "Found by the simulator (seed 408993878963). The line up came back, and the relay asked for \
         the boot of a anew. Meanwhile a had linked again (link 3) and said hello, which is held until \
         a domain that is new here is followed; its boot came along with its name. The parent's yes was passed on at \
         once, before any welcome: to a that was a violation, and it linked once more. It is told when \
         it asks, after its welcome.",
    );
    run.two_nodes();
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(welcomed(&[DOMAIN, DomainId(2)]));
    run.step(vec![opened(3, "a"), hello(3, "a", 10)]);
    run.step(vec![up(Message::Registered { domain: DOMAIN, boot: BootId(10) })]);
    let why = NoBoot::Unknown;
    run.step(vec![up(Message::Unregistered { domain: DOMAIN, boot: BootId(20), why })]);
    run.step(vec![resumed(2, 5, 5, &[]), resumed_in(DomainId(2), 3, 5, 5, &[])]);
    run.step(vec![register(3, "a", 10)]);
    run.0.end("relay_bug_144_told_of_a_boot_before_the_welcome");
}

#[test]
fn bug_06_a_fork_told_in_two_parts() {
    let mut run = Run::new(
        "Found by the simulator (rule 16). The origin was restored from a copy at 4 and accepts forks; \
         its answer to this relay, at 5, comes in two parts. With the first the relay took over the \
         new table of histories and told it to its children, which stood at 5 of the lost branch and \
         showed that as the new one; only with the last did it compare stamps and close their links.",
    );
    run.two_nodes();
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect();
    run.step(vec![forked(2, false)]);
    run.0.say("Whatever makes it look at a's stream: nothing of the new history goes down yet.");
    let now = run.0.now;
    run.step(vec![beat(1, now)]);
    run.step(vec![forked(2, true)]);
    run.0.end("relay_bug_06_a_fork_told_in_two_parts");
}

#[test]
fn bug_93_pages_of_a_lost_branch_that_were_passed_on() {
    let mut run = Run::new(
        "Found by the simulator (P3, rule 16). A page came ahead of the stream, as of 6, and was passed on \
         to a, which stood at 5 like this relay. Then the origin was restored from a copy at 5: nobody was \
         past the fork, the stream went on from 5, and its new 6 let a show the page of the lost branch as the \
         state of the new one. Now children that may have such pages lose their links, and the pages with \
         them. A start of the origin that loses nothing parts nobody.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![pages(2, 3, 6, 6)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect();
    run.step(vec![started_again(3, 6)]);
    run.step(vec![opened(11, "a"), hello(11, "a", 10), resume(11, 1, &[(1, 1)], 5)]);
    run.0.say("The next start loses nothing.");
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect();
    run.step(vec![started_again(5, 7)]);
    run.0.end("relay_bug_93_pages_of_a_lost_branch_that_were_passed_on");
}

#[test]
fn bug_11_a_reset_on_the_same_line() {
    let config = RelayConfig { resume_pages_max: 2, ..RelayConfig::default() };
    let mut run = Run::with(
        "Found by reading and by the simulator (seed 389). This relay comes back to a relay that may not \
         gather all pages changed since, and is answered `Reset`. That was told to its children as a \
         fork, for an operator to mend, though their line was the same; and a child whose cursor fell \
         off the ring was answered `Reset` in the middle of its stream, which names no pages: what \
         overtook a fetch under way was lost. Now all cursors are off the ring, and each child's copies \
         are asked about. What is said of pages that a does not hold is not kept for it; and when what \
         changed cannot be named, all that it holds is, in its stream. b has not listed what it holds: \
         it comes back, and its new link may begin with a reset.",
        config,
    );
    run.two_nodes();
    run.quietly(vec![fetch(1, 5, &[3, 4, 70]), fetch(2, 5, &[3])]);
    run.step(vec![resume(2, 2, &[(1, 1)], 5)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect();
    run.step(vec![reset(8, 9)]);
    run.0.say("Ten pages changed, one of them held by a.");
    run.step(vec![resumed(9, 5, 9, &[3, 11, 12, 13, 14, 15, 16, 17, 18, 19])]);
    run.step(vec![reset(10, 9)]);
    run.0.say("Again, and the parent cannot name them for a either.");
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect();
    run.step(vec![reset(12, 12)]);
    run.step(vec![reset(13, 12)]);
    run.step(vec![advance(12, 13, 4)]);
    run.0.end("relay_bug_11_a_reset_on_the_same_line");
}

#[test]
fn bug_07_a_domain_that_is_not_listed() {
    let mut run = Run::new(
        "Found by the simulator. One of an origin's two domains failed and came back; this relay, \
         which follows both, was welcomed in between by a list with the other alone, and resumed only \
         that. Its children stayed where they were in the domain not listed, on a link that was well. \
         It resumes every domain that it knows.",
    );
    run.quietly(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.connect_to(&[DOMAIN, DomainId(2)]);
    run.quietly(vec![resumed(2, 5, 5, &[]), resumed_in(DomainId(2), 3, 1, 1, &[])]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(welcomed(&[DOMAIN]));
    run.0.end("relay_bug_07_a_domain_that_is_not_listed");
}

#[test]
fn a_domain_that_stays_out_of_service() {
    let mut run = Run::with(
        "Found by reading. This relay was welcomed with two domains, and domain 2 did not begin: it \
         is out of service at the origin. New children's handshakes were held for it, until they were \
         closed as silent, though domain 1 was well. They wait as long as the answer is to be expected, \
         and are welcomed with what has begun. When domain 2 begins, relays below are made to ask.",
        RelayConfig::default(),
    );
    run.step(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(welcomed(&[DOMAIN, DomainId(2)]));
    run.step(vec![resumed(2, 5, 5, &[])]);
    run.step(vec![opened(2, "b"), hello(2, "b", 20)]);
    let error = RequestError::NoDomain(DomainId(2));
    run.step(vec![up(Message::Failed { request: RequestId(3), pages: Vec::new(), error })]);
    run.step(vec![opened_as(3, "r", Role::Relay), hello_as(3, "r", 30, Role::Relay)]);
    run.0.say("The parent is lost: whom this relay knows it can serve is served.");
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(vec![opened(4, "c"), hello(4, "c", 40)]);
    run.0.say("Next time the answer does not come at all.");
    run.step(welcomed(&[DOMAIN, DomainId(2)]));
    run.step(vec![resumed(4, 5, 5, &[])]);
    run.step(vec![opened(5, "d"), hello(5, "d", 50)]);
    run.0.wait(Duration::from_secs(6));
    run.step(vec![resumed_in(DomainId(2), 5, 1, 1, &[])]);
    run.0.end("relay_a_domain_that_stays_out_of_service");
}

#[test]
fn bug_23_a_confirmation_before_the_handshake() {
    let mut run = Run::new(
        "Found by the simulator. The relay's link up broke and came back; before the new one was \
         welcomed a node confirmed its outcomes. The relay passed that on at once, and the parent \
         closed the link, on which it had not even been greeted, for a violation. Outcomes that are \
         confirmed late harm nobody, and the node's next commit says it again.",
    );
    run.two_nodes();
    let confirm = |upto| {
        let (boot, open) = (BootId(10), Vec::new());
        let message = Message::Confirm { domain: DOMAIN, boot, upto, open };
        received(1, message)
    };
    run.step(vec![confirm(3)]);
    run.quietly(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    let opened =
        LinkInput::UpOpened { link: LinkId(9), parent: 0, peer: "origin".into(), in_group: true };
    run.step(vec![("up opened".into(), opened), confirm(4)]);
    run.0.end("relay_bug_23_a_confirmation_before_the_handshake");
}

/// The parent has had what was sent up to an instant.
fn echoed(sent: Instant) -> (String, LinkInput) {
    echo(5, sent, Duration::ZERO)
}

/// What is said of volume 7.
pub(crate) fn volume_info() -> VolumeInfo {
    VolumeInfo {
        id: VOLUME,
        domain: DOMAIN,
        name: "v".into(),
        page_bytes: 4096,
        root: larder_core::commit::PageKind::Slotted,
        version: Stamp(5),
        pages: 1,
        bytes: 0,
        quota: None,
        room: None,
        right: None,
    }
}

#[test]
fn bug_34_a_parent_that_lies() {
    let mut run = Run::new(
        "Found by lies drawn at random. A parent answered a fetch with a volume: the relay \
         gave the child one answer for two pages asked for, and when the pages came counted the \
         child's requests below zero, which ended the process with all its links. An answer must \
         fit what was asked under its number, and its domain; a link whose parent breaks this is \
         closed, and the children keep what they have.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3, 4])]);
    let info = volume_info();
    run.step(vec![up(Message::Volume { request: RequestId(2), info })]);
    run.0.end("relay_bug_34_a_parent_that_lies");
}

#[test]
fn a_deletion_passes_through() {
    let prose = "Deletions. b asks the relay to delete volume 7: it is asked above for b, and the answer \
         passed down. The change of the page that stands for the volume comes by the stream, and goes to \
         both children, whatever they are registered for. What b fetches of the volume then fails as \
         it did above; b speaks version 1 and is told what it knows.";
    let mut run = Run(Transcript::new(Relay::new(RelayConfig::default()), prose, show));
    run.quietly(welcomed_by(3, &[DOMAIN], Duration::from_secs(15)));
    run.quietly(vec![resumed(1, 5, 5, &[])]);
    run.two_nodes();
    let (request, volume) = (RequestId(5), VOLUME);
    run.step(vec![received(2, Message::DeleteVolume { request, volume })]);
    let change = Change {
        stamp: Stamp(6),
        id: CommitId::default(),
        pages: vec![PageChange::whole(PageId::of_volume(VOLUME))],
    };
    let told = Message::Advance {
        domain: DOMAIN,
        from: Stamp(5),
        through: Stamp(6),
        time: WallTime(0),
        changes: vec![change],
        stale: Vec::new(),
        echo: None,
    };
    run.step(vec![up(Message::VolumeDeleted { request: RequestId(2), volume }), up(told)]);
    run.step(vec![fetch(2, 6, &[3])]);
    let error = RequestError::Deleted("v".into());
    run.step(vec![up(Message::Failed { request: RequestId(3), pages: vec![page(3)], error })]);
    run.0.end("relay_a_deletion_passes_through");
}

/// Bug 196: what a node asks again over the link that it has was answered from memory, while above the relay the name had
/// another boot since.
#[test]
fn bug_196_registered_again() {
    let mut run = Run::new(
        "a is put off above, since its name has another boot there. It registers again over its link: so does the relay.",
    );
    run.two_nodes();
    run.step(vec![register_as(1, "a", 10, 10, false)]);
    run.0.end("relay_bug_196_registered_again");
}
