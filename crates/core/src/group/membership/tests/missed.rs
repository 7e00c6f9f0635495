//! Redirectors whose links break.

use super::*;

impl Group {
    /// The links of these to the redirector break, as soon as it takes to hear of it.
    fn break_links(&mut self, of: &[usize]) {
        for number in of {
            self.sent += 1;
            let at = (self.now + MILLI, self.sent);
            self.told.insert(at, (*number, MembershipInput::Broke));
        }
    }
}

/// The story: a redirector's process was killed, and its kernel told everybody who was linked to it at once. Nobody made
/// use of that: it was missed when it was its turn to be asked, up to 1.6 s later, and with what it took to link to
/// the next one the group stood still for more than two seconds, one time in twenty.
#[test]
fn a_redirector_whose_links_broke_is_replaced_sooner() {
    for count in [2, 3, 5, 10, 40] {
        let mut group = Group::of(count);
        let all: Vec<usize> = (0..count).collect();
        group.agree(&all);
        group.run(5_000);
        group.kill(0);
        group.break_links(&all[1..]);
        let (leader, took) = group.agree(&all[1..]);
        assert_eq!(leader, 1);
        assert!((500..=510).contains(&took), "{count} took {took} ms");
        group.run(5_000);
        assert_eq!(group.follows[1..], vec![Some(1); count - 1]);
    }
}

/// More than half of the others have to miss it; else it is found out as ever.
#[test]
fn half_of_the_others_do_not_replace_it() {
    for (miss, soon) in [(&[3, 4][..], false), (&[2, 3, 4][..], true)] {
        let mut group = Group::of(5);
        group.agree(&[0, 1, 2, 3, 4]);
        group.run(5_000);
        group.kill(0);
        group.break_links(miss);
        let (leader, took) = group.agree(&[1, 2, 3, 4]);
        assert_eq!(leader, 1);
        assert_eq!(took <= 510, soon, "{miss:?}: {took} ms");
    }
}

/// A redirector that closes a link, or whose links a device between them forgets, is there.
#[test]
fn a_redirector_that_answers_goes_on() {
    let mut group = Group::of(5);
    group.agree(&[0, 1, 2, 3, 4]);
    group.run(3_000);
    let claim = |group: &Group| group.machines[0].as_ref().and_then(Membership::claim);
    let before = claim(&group);
    for _ in 0..20 {
        group.break_links(&[1, 2, 3, 4]);
        for _ in 0..200 {
            group.run(10);
            assert_eq!(group.follows, [Some(0); 5]);
        }
    }
    assert_eq!(claim(&group), before);
    assert!(group.machines.iter().flatten().all(|it| it.missed.is_none()));
}

/// The story: members who were parted from a live redirector said that they missed it, and whoever heard that asked it too,
/// answered or not, and said so in turn: for ever, and so many of them that it had no time to answer.
#[test]
fn those_who_alone_do_not_reach_it_have_nobody_replaced_nor_asked() {
    for (count, parted) in [(4, 1), (12, 3), (40, 15)] {
        let mut group = Group::of(count);
        let all: Vec<usize> = (0..count).collect();
        group.agree(&all);
        group.run(5_000);
        let sent = |group: &mut Group| {
            let before = group.trace.len();
            for _ in 0..40 {
                group.run(100);
                assert_eq!(group.follows, vec![Some(0); count]);
            }
            group.trace.len() - before
        };
        let usual = sent(&mut group);
        group.part(&[0], &all[count - parted..]);
        let without = sent(&mut group);
        group.break_links(&all[count - parted..]);
        let with = sent(&mut group);
        // Each asks a dozen times, and tells all half as often.
        let most = usual.max(without) + usual / 2 + parted * (13 + 7 * count);
        assert!(with <= most, "{count}: {with} datagrams, {without} without, {usual} before");
        assert!(group.machines.iter().flatten().all(|it| it.looks_for_nobody()));
    }
}

/// Who stood still while it waited for an answer has not waited for it. In a group of two it is all others.
#[test]
fn an_answer_is_awaited_for_as_long_as_it_is_looked_for() {
    let mut group = Group::of(2);
    group.agree(&[0, 1]);
    group.run(3_000);
    // Nothing of what is asked comes there at first.
    group.part(&[0], &[1]);
    group.break_links(&[1]);
    group.run(480);
    group.still.insert(1);
    group.cut.clear();
    group.run(2_000);
    group.still.remove(&1);
    for _ in 0..300 {
        group.run(10);
        assert_eq!(group.follows, [Some(0); 2]);
    }
}

/// A redirector that nobody there could replace is waited for, as it was: it may be back in a moment.
#[test]
fn the_only_one_that_may_is_not_given_up_sooner() {
    let mut group = Group::with(&[Candidacy::May(1), Candidacy::Never, Candidacy::Never]);
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.kill(0);
    group.break_links(&[1, 2]);
    group.run(700);
    assert_eq!(group.follows[1..], [Some(0); 2]);
    group.run(2_000);
    assert_eq!(group.follows[1..], [None; 2]);
}

/// What is said of one that is followed no more says nothing of the next one.
#[test]
fn nobody_is_missed_who_is_not_followed() {
    let mut group = Group::of(3);
    group.break_links(&[0, 1]);
    group.run(2);
    assert!(group.machines.iter().flatten().all(|it| it.missed.is_none()));
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.break_links(&[0]);
    group.run(2);
    assert!(group.machines[0].as_ref().is_some_and(|it| it.missed.is_none()));
    group.kill(0);
    group.break_links(&[1, 2]);
    group.run(2);
    assert!(group.machines[1].as_ref().is_some_and(|it| it.missed.is_some()));
    group.agree(&[1, 2]);
    assert!(group.machines.iter().flatten().all(|it| it.missed.is_none()));
}
