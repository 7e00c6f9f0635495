mod lines;
mod missed;
mod strays;

use super::line::LineWord;
use super::*;
use crate::machine::Faults;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MILLI: u64 = 1_000_000;
/// What a datagram takes.
const WAY: u64 = MILLI / 5;
/// What a look takes, and a relay until its line stands.
const LOOK: u64 = 60 * MILLI;

/// A group of machines, and a network between them.
struct Group {
    now: u64,
    machines: Vec<Option<Membership>>,
    /// Whom each was told to follow, by the number in its address.
    follows: Vec<Option<usize>>,
    flying: BTreeMap<(u64, u64), (usize, usize, Bytes)>,
    /// What a process is told beside datagrams, and when.
    told: BTreeMap<(u64, u64), (usize, MembershipInput)>,
    sent: u64,
    /// Whose line to the parent is cut.
    lines_cut: BTreeSet<usize>,
    /// How often each was asked to look.
    looks: Vec<u32>,
    /// Pairs that do not reach each other.
    cut: BTreeSet<(usize, usize)>,
    /// By which name one calls another, in the place of its address.
    called: BTreeMap<(usize, usize), String>,
    /// Who stands still.
    still: BTreeSet<usize>,
    /// All that was sent, for comparison.
    trace: Vec<(u64, usize, Bytes)>,
}

fn participant(number: usize, candidacy: Candidacy) -> Participant {
    let (life, name) = (BootId(100 + number as u128), format!("n{number}"));
    Participant { life, name, address: number.to_string(), candidacy }
}

fn config(own: Participant, seeds: &[usize]) -> MembershipConfig {
    let seeds = seeds.iter().map(ToString::to_string).collect();
    MembershipConfig { seeds, ..MembershipConfig::new("g", own) }
}

impl Group {
    /// So many that may all be elected and know the first one's address.
    fn of(count: usize) -> Self {
        Self::with(&vec![Candidacy::May(1); count])
    }

    fn with(candidacies: &[Candidacy]) -> Self {
        let machine = |(number, candidacy): (usize, &Candidacy)| {
            Some(Membership::new(config(participant(number, *candidacy), &[0])))
        };
        Self {
            now: 0,
            machines: candidacies.iter().enumerate().map(machine).collect(),
            follows: vec![None; candidacies.len()],
            flying: BTreeMap::new(),
            told: BTreeMap::new(),
            sent: 0,
            lines_cut: BTreeSet::new(),
            looks: vec![0; candidacies.len()],
            cut: BTreeSet::new(),
            called: BTreeMap::new(),
            still: BTreeSet::new(),
            trace: Vec::new(),
        }
    }

    /// Makes the step that is due next, and no later than `until`.
    fn step(&mut self, until: u64) -> bool {
        let timer = |(number, machine): (usize, &Option<Membership>)| {
            let at = machine.as_ref()?.next_timeout()?.0.max(self.now);
            (!self.still.contains(&number)).then_some((at, number))
        };
        let timer = self.machines.iter().enumerate().filter_map(timer).min();
        let flight = self.flying.keys().next().copied();
        let told = self.told.keys().next().copied();
        let next = [timer.map(|(at, _)| at), flight.map(|(at, _)| at), told.map(|(at, _)| at)];
        let next = next.into_iter().flatten().min();
        let Some(at) = next.filter(|at| *at <= until) else {
            self.now = until;
            return false;
        };
        self.now = at;
        let mut out = Vec::new();
        if let Some(key) = flight.filter(|(due, _)| *due == at) {
            let (from, to, datagram) = self.flying.remove(&key).expect("it flies");
            if self.still.contains(&to) {
                // It waits until that goes on.
                self.flying.insert((at + MILLI, key.1), (from, to, datagram));
                return true;
            }
            if self.cut.contains(&(from, to)) {
                return true;
            }
            let Some(Some(machine)) = self.machines.get_mut(to) else { return true };
            let from = self.called.get(&(to, from)).cloned().unwrap_or_else(|| from.to_string());
            machine.handle(Instant(at), MembershipInput::Received { from, datagram }, &mut out);
            self.carry_out(to, out);
        } else if let Some(key) = told.filter(|(due, _)| *due == at) {
            let (to, input) = self.told.remove(&key).expect("it is to be told");
            if let Some(Some(machine)) = self.machines.get_mut(to) {
                machine.handle(Instant(at), input, &mut out);
                self.carry_out(to, out);
            }
        } else if let Some((_, number)) = timer {
            let machine = self.machines[number].as_mut().expect("it has a timer");
            machine.handle_timeout(Instant(at), &mut out);
            machine.check();
            self.carry_out(number, out);
        }
        true
    }

    fn carry_out(&mut self, number: usize, out: Vec<MembershipOutput>) {
        for output in out {
            match output {
                MembershipOutput::Send { to, datagram } => {
                    self.trace.push((self.now, number, datagram.clone()));
                    self.sent += 1;
                    let name = to.strip_prefix("host");
                    let called = to.clone();
                    let to = name.unwrap_or(&to).parse().expect("a number");
                    if name.is_some() {
                        self.called.insert((number, to), called);
                    }
                    self.flying.insert((self.now + WAY, self.sent), (number, to, datagram));
                }
                MembershipOutput::Redirector(followed) => {
                    let followed = followed.map(|it| it.address.parse().expect("a number"));
                    if followed == Some(number) && self.follows[number] != followed {
                        self.dials(number, LOOK);
                    }
                    self.follows[number] = followed;
                }
                MembershipOutput::Look => self.look(number),
            }
        }
    }

    fn run(&mut self, millis: u64) {
        let until = self.now + millis * MILLI;
        while self.step(until) {}
    }

    /// Runs until all of these follow the same one of them; says which, and after how many milliseconds.
    fn agree(&mut self, members: &[usize]) -> (usize, u64) {
        let began = self.now;
        while self.now < began + 60_000 * MILLI {
            let followed: BTreeSet<_> = members.iter().map(|it| self.follows[*it]).collect();
            if let (Some(Some(one)), 1) = (followed.first(), followed.len())
                && members.contains(one)
            {
                return (*one, (self.now - began) / MILLI);
            }
            self.step(began + 60_000 * MILLI);
        }
        panic!("{members:?} do not agree: {:?}", self.follows);
    }

    fn kill(&mut self, number: usize) {
        (self.machines[number], self.follows[number]) = (None, None);
    }

    /// Nobody of one part reaches anybody of the other.
    fn part(&mut self, one: &[usize], other: &[usize]) {
        for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            self.cut.extend([(a, b), (b, a)]);
        }
    }
}

#[test]
fn all_find_each_other_by_one_address_and_follow_the_same_one() {
    for count in [1, 2, 3, 8] {
        let mut group = Group::of(count);
        let all: Vec<usize> = (0..count).collect();
        let (leader, _) = group.agree(&all);
        assert_eq!(leader, 0, "of {count} the first");
        group.run(10_000);
        assert_eq!(group.follows, vec![Some(0); count]);
        let known: Vec<usize> =
            group.machines.iter().flatten().map(|it| it.participants().len()).collect();
        assert_eq!(known, vec![count; count]);
        assert!(group.machines[0].as_ref().is_some_and(Membership::leads));
    }
}

/// A redirector that dies is replaced within the time that a group may take for it, with what it takes to
/// link to the new one left over. One that comes later changes nothing.
#[test]
fn a_dead_redirector_is_replaced() {
    for count in [2, 3, 5, 10] {
        let mut group = Group::of(count);
        let all: Vec<usize> = (0..count).collect();
        group.agree(&all);
        group.run(5_000);
        group.kill(0);
        let (leader, took) = group.agree(&all[1..]);
        assert_eq!(leader, 1);
        assert!(took <= 1_600, "{count} took {took} ms");
        let again = participant(200, Candidacy::May(0));
        let again = Participant { address: "0".into(), ..again };
        let machine = Membership::new(config(again, &[1]));
        group.machines[0] = Some(machine);
        group.run(5_000);
        assert_eq!(group.follows, vec![Some(1); count], "who follows somebody goes on");
    }
}

#[test]
fn a_part_works_by_itself_and_gives_way_when_they_meet() {
    let mut group = Group::of(5);
    group.agree(&[0, 1, 2, 3, 4]);
    group.run(3_000);
    // The greater part has lost the redirector.
    group.part(&[0, 1], &[2, 3, 4]);
    assert_eq!(group.agree(&[2, 3, 4]).0, 2);
    group.run(8_000);
    assert_eq!(group.follows[..2], [Some(0), Some(0)], "it does not know why it is alone");
    group.cut.clear();
    assert_eq!(group.agree(&[0, 1, 2, 3, 4]).0, 2);
    // The smaller one has.
    group.run(3_000);
    group.part(&[0], &[1, 2, 3, 4]);
    assert_eq!(group.agree(&[0]).0, 0);
    group.run(8_000);
    let before = group.follows[1..].to_vec();
    group.cut.clear();
    assert_eq!(group.agree(&[0, 1, 2, 3, 4]).0, 2);
    assert_eq!(group.follows[1..], before, "the others did not change theirs");
}

/// Two that do not reach each other, while all others reach both: nobody is taken for gone.
#[test]
fn who_is_reached_through_others_is_there() {
    let mut group = Group::of(4);
    group.agree(&[0, 1, 2, 3]);
    group.run(2_000);
    group.part(&[0], &[3]);
    group.run(20_000);
    assert_eq!(group.follows, [Some(0); 4]);
    assert_eq!(group.machines[3].as_ref().map(|it| it.participants().len()), Some(4));
}

#[test]
fn one_that_stood_still_finds_that_it_was_replaced() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(2_000);
    group.still.insert(0);
    assert_eq!(group.agree(&[1, 2]).0, 1);
    group.run(8_000);
    assert_eq!(group.follows[0], Some(0));
    group.still.clear();
    let (leader, took) = group.agree(&[0, 1, 2]);
    assert_eq!(leader, 1);
    assert!(took <= 2_000, "{took} ms");
}

/// The story (bug 151): a member was told that it had been taken for gone, and came back under another
/// identity. Before anything more was said all others were gone. It asked nobody whether they were there, and
/// followed a redirector that was dead, for ever.
#[test]
fn bug_151_who_comes_back_when_all_others_have_gone() {
    use foca::Codec as _;
    let mut group = Group::of(2);
    group.agree(&[0, 1]);
    group.run(2_000);
    let identity = |number: usize| {
        let machine = group.machines[number].as_ref().expect("it lives");
        machine.swim.identity().clone()
    };
    let (src, dst, message) = (identity(0), identity(1), foca::Message::TurnUndead);
    let mut bytes = Vec::new();
    let header = foca::Header { src, src_incarnation: 0, dst, message };
    Codec.encode_header(&header, &mut bytes).expect("there is room");
    let say = Say::Swim(bytes.into());
    let datagram = Datagram { group: "g".into(), claim: None, say }.encode();
    group.kill(0);
    group.flying.clear();
    let mut out = Vec::new();
    let machine = group.machines[1].as_mut().expect("it lives");
    let input = MembershipInput::Received { from: "0".into(), datagram };
    machine.handle(Instant(group.now), input, &mut out);
    assert_eq!(machine.swim.identity().renewed, 1);
    group.run(3_000);
    assert_eq!(group.follows[1], Some(1));
}

/// An upgrade: a redirector that is told to end is not missed first.
#[test]
fn who_leaves_says_so() {
    let mut group = Group::of(4);
    group.agree(&[0, 1, 2, 3]);
    group.run(2_000);
    let mut out = Vec::new();
    let machine = group.machines[0].as_mut().expect("it is there");
    machine.handle(Instant(group.now), MembershipInput::Leave, &mut out);
    assert_eq!(out.last(), Some(&MembershipOutput::Redirector(None)));
    assert_eq!(machine.next_timeout(), None);
    group.carry_out(0, out);
    let (leader, took) = group.agree(&[1, 2, 3]);
    assert_eq!(leader, 1);
    assert!(took <= 5, "{took} ms");
}

#[test]
fn roles_that_are_pinned_and_those_that_never_are() {
    let mut group = Group::with(&[Candidacy::Never, Candidacy::May(2), Candidacy::May(1)]);
    assert_eq!(group.agree(&[0, 1, 2]).0, 2, "the lower number goes first");
    group.kill(2);
    assert_eq!(group.agree(&[0, 1]).0, 1);
    group.kill(1);
    group.run(10_000);
    assert_eq!(group.follows[0], None, "who never is one follows nobody");

    let mut group = Group::with(&[Candidacy::May(0), Candidacy::May(0), Candidacy::Pinned]);
    let pinned = group.machines[2].take();
    assert_eq!(group.agree(&[0, 1]).0, 0);
    group.machines[2] = pinned;
    group.run(3_000);
    assert_eq!(group.agree(&[0, 1, 2]).0, 2, "one that is pinned does not wait");
    group.kill(2);
    assert_eq!(group.agree(&[0, 1]).0, 0);
}

#[test]
fn two_runs_of_a_group_are_alike() {
    let run = || {
        let mut group = Group::of(5);
        group.run(3_000);
        group.part(&[0, 4], &[1, 2, 3]);
        group.run(4_000);
        group.cut.clear();
        group.run(4_000);
        group.trace
    };
    assert!(run() == run());
}

#[test]
fn what_comes_from_another_group_is_dropped_and_participants_are_bounded() {
    let mut out = Vec::new();
    let mut machine = Membership::new(config(participant(0, Candidacy::May(1)), &[]));
    let mut come = |machine: &mut Membership, group: &str, life: u128| {
        let life = BootId(life);
        let name = life.0.to_string();
        let participant = Participant { life, name, ..participant(1, Candidacy::May(1)) };
        // As it would introduce itself.
        let mut stranger = Membership::new(config(participant, &[]));
        stranger.config.group = group.into();
        let mut said = Vec::new();
        let identity = machine.swim.identity().clone();
        stranger.swim(Instant(0), &mut said, |swim, asked| swim.announce(identity, asked));
        let Some(MembershipOutput::Send { datagram, .. }) = said.pop() else {
            panic!("it says so")
        };
        out.clear();
        let from = "1".into();
        machine.handle(Instant(0), MembershipInput::Received { from, datagram }, &mut out);
        machine.check();
    };
    come(&mut machine, "other", 7);
    assert_eq!(machine.participants().len(), 1);
    for life in 0..2 * KNOWN_MAX as u128 {
        come(&mut machine, "g", 1_000 + life);
    }
    assert_eq!(machine.participants().len(), KNOWN_MAX + 1);
}

/// Seeds were compared with addresses as texts: one that was written as a name was asked twice a second for good by
/// everybody, and each of its answers asked for the whole list of members.
#[test]
fn a_seed_that_is_written_as_a_name_is_asked_until_it_is_known() {
    let mut group = Group::of(3);
    for (number, machine) in group.machines.iter_mut().enumerate() {
        let mut named = config(participant(number, Candidacy::May(1)), &[]);
        named.seeds = vec!["host0".into()];
        *machine = Some(Membership::new(named));
    }
    group.agree(&[0, 1, 2]);
    group.run(5_000);
    let asks = |group: &Group| {
        let sent = group.trace.iter().map(|(_, _, sent)| Datagram::decode(sent.clone()));
        sent.filter(|it| matches!(it, Ok(Datagram { say: Say::Who, .. }))).count()
    };
    let before = asks(&group);
    group.run(20_000);
    assert_eq!(asks(&group), before, "all know who is behind the name");
    // The seed dies, and somebody else takes its name.
    group.kill(0);
    group.run(20_000);
    assert!(asks(&group) > before, "it is sought again");
    let again = Participant { life: BootId(7), ..participant(0, Candidacy::May(1)) };
    group.machines[0] = Some(Membership::new(config(again, &[])));
    group.agree(&[0, 1, 2]);
}

/// A redirector that was elected while more than 256 were there said that so many follow it, and nobody believes that
/// of anybody: it was followed by none.
#[test]
fn a_claim_says_no_more_than_is_believed() {
    let count = MEMBERS_MAX + 20;
    let mut machine = Membership::new(config(participant(0, Candidacy::May(1)), &[]));
    let there: BTreeMap<BootId, Participant> = (0..count)
        .map(|number| participant(number, Candidacy::May(1)))
        .map(|one| (one.life, one))
        .collect();
    machine.election.begin(Instant(0));
    for at in [1, 2] {
        let lines = Lines::new(participant(0, Candidacy::May(1)), LineTimes::default());
        let last = |_| Duration::from_secs(1);
        machine.election.settle(Instant(at), (&there, &lines), last, Duration::ZERO);
    }
    let claim = machine.claim().expect("it is the first of all");
    assert_eq!(claim.weight as usize, MEMBERS_MAX);
    let mut other = Election::new(participant(1, Candidacy::May(1)), Faults::NONE);
    other.heard(claim, &there);
    assert_eq!(other.followed(), Some(claim));
}

/// A redirector ended as soon as it had started, and was started again, many times: each of its lives was looked at in
/// turn, and the others, of whom none had more right to be the redirector, waited for minutes until the last of them was
/// known to be gone (bug 183).
#[test]
fn bug_183_lives_of_one_process_that_ends_again_and_again_are_not_waited_for() {
    let mut group =
        Group::with(&[Candidacy::Pinned, Candidacy::May(1), Candidacy::May(1), Candidacy::Never]);
    for life in 0..60 {
        let again = Participant { life: BootId(1_000 + life), ..participant(0, Candidacy::Pinned) };
        group.machines[0] = Some(Membership::new(config(again, &[1, 2, 3])));
        group.run(200);
        group.kill(0);
    }
    let others: Vec<usize> =
        group.machines[1..].iter().flatten().map(|it| it.participants().len()).collect();
    assert_eq!(others, [4, 4, 4], "of those at one address one is there");
    let (leader, took) = group.agree(&[1, 2, 3]);
    assert_eq!(leader, 1);
    assert!(took <= 1_600, "it took {took} ms of virtual time, as for one that dies once");
}

/// Whoever said that somebody left was believed, though nobody knew him: a list without bound, of processes that
/// never were.
#[test]
fn who_is_not_known_cannot_leave() {
    let mut group = Group::of(2);
    group.run(1_000);
    let (_, _, whole) = group.trace[group.trace.len() / 2].clone();
    let mut said = Datagram::decode(whole).expect("it was sent");
    let machine = group.machines[0].as_mut().expect("it lives");
    let known = machine.swim.iter_membership_state().count();
    let mut identity = machine.swim.identity().clone();
    for life in 0..2 * KNOWN_MAX as u128 {
        identity.participant.life = BootId(1_000 + life);
        said.say = Say::Left(identity.clone());
        let (from, datagram) = ("1".into(), said.encode());
        let mut out = Vec::new();
        machine.handle(Instant(1), MembershipInput::Received { from, datagram }, &mut out);
        machine.check();
    }
    assert_eq!(machine.swim.iter_membership_state().count(), known);
}

proptest! {
    /// Nothing that may come brings a machine down, or is read otherwise than it was written.
    #[test]
    fn any_bytes_are_taken(bytes: Vec<u8>, cuts in 0..400_usize, flips in prop::collection::vec((0..400_usize, 0..8_u8), 0..4)) {
        let _ = Datagram::decode(bytes.clone().into());
        let _ = swim::named(&bytes);
        let mut group = Group::of(3);
        group.run(1_000);
        let (_, from, whole) = group.trace[group.trace.len() / 2].clone();
        prop_assert_eq!(Datagram::decode(whole.clone()).expect("it was sent").encode(), &whole);
        let mut bad = whole.to_vec();
        bad.truncate(bad.len().saturating_sub(cuts % 8));
        for (at, bit) in flips {
            let at = at % bad.len().max(1);
            if let Some(byte) = bad.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        let machine = group.machines[(from + 1) % 3].as_mut().expect("it lives");
        for datagram in [whole, Bytes::from(bad), bytes.into()] {
            datagram::check_datagram(&datagram);
            let mut out = Vec::new();
            let from = from.to_string();
            machine.handle(Instant(group.now), MembershipInput::Received { from, datagram }, &mut out);
            machine.check();
        }
    }
}

/// As they are written: a difference is a change of format (`docs/formats/wire.md`, section 6).
#[test]
fn datagrams_are_written_as_ever() {
    let identity = |number, candidacy| Identity {
        participant: participant(number, candidacy),
        renewed: number as u32,
    };
    let (one, other) = (identity(1, Candidacy::May(0)), identity(2, Candidacy::Never));
    let claim = Claim { term: 3, weight: 300, leader: BootId(101) };
    let message = |message| {
        use foca::Codec as _;
        let (src, dst) = (one.clone(), other.clone());
        let header = foca::Header { src, src_incarnation: 1, dst, message };
        let mut bytes = Vec::new();
        Codec.encode_header(&header, &mut bytes).expect("there is room");
        bytes.extend(1_u16.to_be_bytes());
        let gone = Member::new(identity(3, Candidacy::Pinned), 2, State::Down);
        Codec.encode_member(&gone, &mut bytes).expect("there is room");
        Say::Swim(bytes.into())
    };
    let target = other.clone();
    let said = [
        (None, Say::Who),
        (Some(claim), Say::Here(one.clone())),
        (None, Say::Left(other.clone())),
        (Some(claim), Say::Claimed),
        (None, message(foca::Message::Ping(7))),
        (Some(claim), Say::Line(one.clone(), LineWord { number: 258, stands: true })),
        (None, Say::Line(other.clone(), LineWord { number: 1, stands: false })),
        (Some(claim), message(foca::Message::PingReq { target, probe_number: 255 })),
        (None, message(foca::Message::TurnUndead)),
        (Some(claim), Say::Missed(other.clone(), BootId(101))),
    ];
    let mut text = String::new();
    for (claim, say) in said {
        let datagram = Datagram { group: "g".into(), claim, say };
        let bytes = datagram.encode();
        assert_eq!(Datagram::decode(bytes.clone()).as_ref(), Ok(&datagram));
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("{}\n", bytes.join(" "));
    }
    insta::assert_snapshot!("datagrams", text);
}
