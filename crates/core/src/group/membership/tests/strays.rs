//! What comes late, what is not true, and who is gone.

use super::*;

/// Gives a datagram to one of them.
fn give(group: &mut Group, to: usize, claim: Option<Claim>, say: Say) {
    let datagram = Datagram { group: "g".into(), claim, say }.encode();
    let input = MembershipInput::Received { from: "9".into(), datagram };
    let mut out = Vec::new();
    let machine = group.machines[to].as_mut().expect("it lives");
    machine.handle(Instant(group.now), input, &mut out);
    machine.check();
    group.carry_out(to, out);
}

fn claim(term: u64, number: usize) -> Option<Claim> {
    Some(Claim { term, weight: 1, leader: participant(number, Candidacy::Never).life })
}

/// Somebody heard late of a claim that its maker had given up. He followed it, and others after him; who had made it
/// took what was said of its own claims for the past, and followed another. Nobody was the redirector, until
/// somebody left.
#[test]
fn a_claim_that_was_given_up_is_made_anew_when_somebody_follows_it() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(2_000);
    give(&mut group, 2, claim(9, 1), Say::Claimed);
    assert_eq!(group.follows[2], Some(1));
    group.run(2_000);
    assert_eq!(group.follows, [Some(1); 3]);
    let leader = group.machines[1].as_ref().expect("it lives");
    assert!(leader.leads());
    assert!(leader.claim().is_some_and(|claim| claim.term > 9), "all take it");
}

/// Any claim was believed of anybody who is there, and any term of anybody at all.
#[test]
fn who_may_not_be_the_redirector_is_not_followed() {
    let mut group = Group::with(&[Candidacy::May(1), Candidacy::May(1), Candidacy::Never]);
    group.agree(&[0, 1, 2]);
    group.run(10_000);
    let before = group.machines[0].as_ref().and_then(Membership::claim);
    for number in [2, 7] {
        for to in 0..3 {
            give(&mut group, to, claim(u64::MAX, number), Say::Claimed);
        }
    }
    group.run(2_000);
    assert_eq!(group.follows, [Some(0); 3]);
    assert_eq!(group.machines[0].as_ref().and_then(Membership::claim), before);
    group.kill(0);
    assert_eq!(group.agree(&[1, 2]).0, 1);
    let claim = group.machines[1].as_ref().and_then(Membership::claim);
    assert!(claim.is_some_and(|claim| claim.term < 10), "the next term is not the last one");
}

/// One claim of a term near the greatest number, of somebody who is there and may, could not be exceeded: who
/// claimed anew had the same term, and two processes took turns.
#[test]
fn a_claim_that_could_not_be_exceeded_is_not_believed() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(10_000);
    let before = group.machines[0].as_ref().and_then(Membership::claim);
    let life = participant(1, Candidacy::May(1)).life;
    for (term, weight) in [(u64::MAX, 1), (u64::MAX - 1, 3), ((1 << 48) + 1, 1), (9, 257)] {
        for to in 0..3 {
            give(&mut group, to, Some(Claim { term, weight, leader: life }), Say::Claimed);
        }
    }
    group.run(2_000);
    assert_eq!(group.follows, [Some(0); 3]);
    assert_eq!(group.machines[0].as_ref().and_then(Membership::claim), before);
}

/// With 512 known, most of them gone, everything that named another was dropped: the answers of those who were there,
/// too, who were taken for gone one after the other.
#[test]
fn who_is_gone_makes_room() {
    let mut group = Group::of(2);
    group.agree(&[0, 1]);
    let stranger = |number: usize, renewed| Identity {
        participant: participant(10 + number, Candidacy::Never),
        renewed,
    };
    for number in 0..3 * KNOWN_MAX {
        // It comes, and goes.
        let machine = group.machines[0].as_mut().expect("it lives");
        let mut introduced = Membership::new(config(stranger(number, 0).participant, &[]));
        let (own, mut said) = (machine.swim.identity().clone(), Vec::new());
        introduced.swim(Instant(0), &mut said, |swim, asked| swim.announce(own, asked));
        let Some(MembershipOutput::Send { datagram, .. }) = said.pop() else {
            panic!("it says so")
        };
        let input = MembershipInput::Received { from: "9".into(), datagram };
        let mut out = Vec::new();
        machine.handle(Instant(group.now), input, &mut out);
        assert_eq!(machine.participants().len(), 3, "there is room for {number}");
        // As somebody may say who lies: under ever new identities.
        for renewed in 0..3 {
            let left = Say::Left(stranger(number, renewed));
            give(&mut group, 0, None, left);
        }
    }
    group.run(5_000);
    assert_eq!(group.follows, [Some(0); 2]);
}

/// A process whose line was gone for a moment suspected another, and stood still. When it went on the time to object
/// was over, and it took that one for gone before it had read an objection, or asked for one.
#[test]
fn who_stood_still_does_not_take_that_for_the_silence_of_others() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(2_000);
    group.part(&[0, 1], &[2]);
    let suspects = |group: &Group| {
        let machine = group.machines[2].as_ref().expect("it lives");
        let mut state = machine.swim.iter_membership_state();
        state.any(|it| it.id().participant.life.0 == 100 && it.state() == State::Suspect)
    };
    let until = group.now + 3_000 * MILLI;
    while !suspects(&group) && group.step(until) {}
    assert!(suspects(&group));
    group.still.insert(2);
    group.cut.clear();
    group.run(2_000);
    group.still.clear();
    // Its times are over, and what came meanwhile is read after them.
    let mut out = Vec::new();
    let machine = group.machines[2].as_mut().expect("it lives");
    machine.handle_timeout(Instant(group.now), &mut out);
    group.carry_out(2, out);
    let until = group.now + 3_000 * MILLI;
    while group.step(until) {
        assert_eq!(group.follows[2], Some(0));
    }
}
