//! A redirector's own line (decision 0042).

use super::*;
use proptest::prelude::*;

/// How long a relay may wait before it dials again.
const PAUSE: u64 = 8_000 * MILLI;
/// From when a line is cut until another one is followed: cut, looked for, granted, and told.
const REPLACED_MAX: u64 = 10_000;

impl Group {
    fn tells(&mut self, number: usize, after: u64, input: MembershipInput) {
        self.sent += 1;
        self.told.insert((self.now + after, self.sent), (number, input));
    }

    /// A relay's line is as it is, so much later.
    pub(super) fn dials(&mut self, number: usize, after: u64) {
        let stands = !self.lines_cut.contains(&number);
        self.tells(number, after, MembershipInput::Line(Some(stands)));
    }

    pub(super) fn look(&mut self, number: usize) {
        self.looks[number] += 1;
        if self.follows[number] == Some(number) {
            return self.dials(number, LOOK);
        }
        let stands = !self.lines_cut.contains(&number);
        self.tells(number, LOOK, MembershipInput::Looked(stands));
    }

    fn cuts(&mut self, number: usize) {
        if self.lines_cut.insert(number) && self.follows[number] == Some(number) {
            self.dials(number, 0);
        }
    }

    /// A relay that is not asked to dials later.
    fn mends(&mut self, number: usize) {
        if self.lines_cut.remove(&number) && self.follows[number] == Some(number) {
            self.dials(number, PAUSE);
        }
    }

    /// Runs until these all follow another one than `before`; says whom, and after how many milliseconds.
    fn replaced(&mut self, members: &[usize], before: usize) -> (usize, u64) {
        let began = self.now;
        while self.now < began + 300_000 * MILLI {
            let followed: BTreeSet<_> = members.iter().map(|it| self.follows[*it]).collect();
            if let (Some(Some(one)), 1) = (followed.first(), followed.len())
                && *one != before
            {
                return (*one, (self.now - began) / MILLI);
            }
            self.step(began + 300_000 * MILLI);
        }
        panic!("{members:?} follow {:?} still", self.follows);
    }
}

/// The story (finding 428): the redirector's own line was cut, and those of others were whole. It stayed the redirector,
/// and nobody of its group heard anything new.
#[test]
fn a_redirector_whose_line_is_cut_is_replaced_by_one_whose_line_stands() {
    for count in [2, 3, 10, 64] {
        let mut group = Group::of(count);
        let all: Vec<usize> = (0..count).collect();
        group.agree(&all);
        group.run(3_000);
        group.cuts(0);
        // The first of the others is cut off as well, if there are more.
        let next = if count > 2 { 2 } else { 1 };
        if count > 2 {
            group.cuts(1);
        }
        let (leader, took) = group.replaced(&all, 0);
        assert_eq!(leader, next, "of {count}");
        assert!(took <= REPLACED_MAX, "{count}: it took {took} ms");
        // Who is cut off is as any other, but the last to be elected.
        group.run(20_000);
        assert_eq!(group.follows, vec![Some(next); count]);
        let looked: u32 = group.looks[1..].iter().sum();
        assert!(looked <= 12, "one after the other: {looked} looks of {count}");
    }
}

/// A line that comes back before it is taken for cut, or while another one waits for it, changes nothing.
#[test]
fn a_line_that_comes_back_in_time_changes_nothing() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.cuts(0);
    group.run(4_900);
    group.lines_cut.clear();
    group.dials(0, 0);
    group.run(20_000);
    assert_eq!((group.follows.clone(), group.looks.clone()), (vec![Some(0); 3], vec![0; 3]));
    // Now it is back when the others look already; the relay would dial only much later.
    group.cuts(0);
    group.run(6_500);
    assert!(group.looks[1] > 0);
    group.mends(0);
    group.run(60_000);
    assert_eq!(group.follows, vec![Some(0); 3]);
}

/// A first mend of finding 428 had the redirector give way whenever its line was cut: where the origin itself was away all
/// of the group were redirectors in turn, of whom none was of use.
#[test]
fn where_the_origin_is_away_nothing_changes() {
    let mut group = Group::of(5);
    let all = [0, 1, 2, 3, 4];
    group.agree(&all);
    group.run(3_000);
    for number in all {
        group.cuts(number);
    }
    for _ in 0..600 {
        group.run(1_000);
        assert_eq!(group.follows, vec![Some(0); 5]);
    }
    assert!(group.looks.iter().all(|looks| *looks <= 15), "{:?}", group.looks);
    // It is back. Another one finds that first, and the redirector is asked to dial.
    for number in all.into_iter().rev() {
        group.mends(number);
        group.run(1_700);
    }
    group.run(120_000);
    assert_eq!(group.follows, vec![Some(0); 5]);
}

/// Who gave way is the last of all, and of the last it is one all the same.
#[test]
fn who_gave_way_comes_after_all_others() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.cuts(0);
    assert_eq!(group.replaced(&[0, 1, 2], 0).0, 1);
    group.run(3_000);
    group.kill(1);
    let (leader, took) = group.agree(&[0, 2]);
    assert_eq!(leader, 2, "0 would be the first");
    assert!(took <= 1_600, "{took} ms");
    group.run(3_000);
    group.kill(2);
    let (leader, took) = group.agree(&[0]);
    assert_eq!(leader, 0);
    assert!(took <= 2_300, "{took} ms");
    // Once it has found that its line stands it is as any other.
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.cuts(0);
    assert_eq!(group.replaced(&[0, 1, 2], 0).0, 1);
    group.mends(0);
    group.run(25_000);
    assert_eq!(group.follows, vec![Some(1); 3], "who is followed stays");
    group.kill(1);
    assert_eq!(group.agree(&[0, 2]).0, 0);
}

/// Somebody who came later has not heard that the first of all gave way once, and waits for him; he waits for others
/// whose lines may stand. One of them has to.
#[test]
fn who_has_not_heard_of_a_cut_line_waits_for_nobody_for_ever() {
    let mut group = Group::of(3);
    let late = group.machines[2].take();
    group.agree(&[0, 1]);
    group.run(3_000);
    group.cuts(0);
    assert_eq!(group.replaced(&[0, 1], 0).0, 1);
    group.run(2_000);
    group.machines[2] = late;
    group.agree(&[0, 1, 2]);
    group.run(2_000);
    group.kill(1);
    let (_, took) = group.agree(&[0, 2]);
    assert!(took <= 2_300, "{took} ms");
}

/// One that is pinned takes the group back when its line stands again, and not before; one whose line comes and goes
/// takes it back more and more seldom.
#[test]
fn one_that_is_pinned_takes_the_group_back_when_its_line_stands() {
    let mut group = Group::with(&[Candidacy::Pinned, Candidacy::May(1), Candidacy::May(1)]);
    let all = [0, 1, 2];
    group.agree(&all);
    group.run(3_000);
    group.cuts(0);
    assert_eq!(group.replaced(&all, 0).0, 1);
    for _ in 0..120 {
        group.run(1_000);
        assert_eq!(group.follows, vec![Some(1); 3]);
    }
    group.mends(0);
    assert_eq!(group.replaced(&all, 1).0, 0);
    let mut away = Vec::new();
    for _ in 0..6 {
        group.run(2_000);
        group.cuts(0);
        assert_eq!(group.replaced(&all, 0).0, 1);
        group.mends(0);
        away.push(group.replaced(&all, 1).1 / 1_000);
    }
    assert!(away[0] >= 25 && away.is_sorted() && away[5] >= 200, "{away:?} s");
    // A line that was good for long is a good one.
    group.run(100_000);
    group.cuts(0);
    group.replaced(&all, 0);
    group.mends(0);
    assert!(group.replaced(&all, 1).1 <= 20_000);
}

/// It could connect when it looked, and gets no link: no faster than it may take to have one it gives way.
#[test]
fn a_line_that_never_stood_is_given_time() {
    let mut group = Group::of(3);
    group.lines_cut.insert(0);
    group.agree(&[0, 1, 2]);
    group.run(14_000);
    assert_eq!(group.follows, vec![Some(0); 3]);
    assert_eq!(group.replaced(&[0, 1, 2], 0).0, 1);
}

/// After the origin itself was away for minutes those who had looked all that time did not look for a minute more when
/// the redirector's line alone was cut soon after it was back.
#[test]
fn an_outage_of_all_does_not_hold_up_the_next_cut() {
    let mut group = Group::of(4);
    let all = [0, 1, 2, 3];
    group.agree(&all);
    group.run(3_000);
    for number in all {
        group.cuts(number);
    }
    group.run(400_000);
    for number in all {
        group.mends(number);
    }
    group.run(12_000);
    assert_eq!(group.follows, vec![Some(0); 4]);
    group.cuts(0);
    let (leader, took) = group.replaced(&all, 0);
    assert_eq!(leader, 1);
    assert!(took <= REPLACED_MAX, "it took {took} ms");
    // Nor is who gave way out of the question when that one is cut in turn.
    group.mends(0);
    group.run(3_000);
    for number in [1, 2, 3] {
        group.cuts(number);
    }
    let (leader, took) = group.replaced(&all, 1);
    assert_eq!(leader, 0);
    assert!(took <= REPLACED_MAX, "it took {took} ms");
}

/// A parent that welcomes and closes at once: each link of a moment took the cut back, and nobody ever took over.
#[test]
fn a_link_of_a_moment_is_none() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.cuts(0);
    let began = group.now;
    while group.follows[0] == Some(0) {
        group.tells(0, 0, MembershipInput::Line(Some(true)));
        group.tells(0, MILLI, MembershipInput::Line(Some(false)));
        group.run(2_500);
        assert!(group.now < began + 20_000 * MILLI, "it is followed still");
    }
}

/// A redirector on a loaded machine stood still for a moment every other second: each time its line had been cut for no
/// time at all, and it never said so. One that stands still for long has not tried its line meanwhile.
#[test]
fn a_standstill_is_no_time_of_a_cut_and_ends_none() {
    let mut group = Group::of(3);
    group.agree(&[0, 1, 2]);
    group.run(3_000);
    group.cuts(0);
    let mut seconds = 0;
    while group.follows[0] == Some(0) {
        group.still.insert(0);
        group.run(400);
        group.still.clear();
        group.run(1_600);
        seconds += 2;
        assert!(seconds <= 16, "it is followed still");
    }
    let mut group = Group::of(1);
    group.agree(&[0]);
    group.run(3_000);
    group.cuts(0);
    group.run(1_000);
    group.still.insert(0);
    group.run(20_000);
    group.still.clear();
    group.run(3_000);
    let is_cut = |group: &Group| {
        let machine = group.machines[0].as_ref().expect("it lives");
        machine.is_cut(participant(0, Candidacy::May(1)).life)
    };
    assert!(!is_cut(&group), "four seconds of those it could try");
    group.run(2_000);
    assert!(is_cut(&group));
}

/// What was said before something newer does not count, nor what nobody who is known said, nor an old word.
#[test]
fn words_that_come_late() {
    let times = LineTimes::default();
    let there: There = [0, 1]
        .into_iter()
        .map(|it| participant(it, Candidacy::May(1)))
        .map(|it| (it.life, it))
        .collect();
    let mut lines = Lines::new(participant(1, Candidacy::May(1)), times);
    let leader = BootId(100);
    let word = |number, stands| LineWord { number, stands };
    let at = |seconds: u64| Instant(seconds * 1_000 * MILLI);
    lines.heard(at(1), leader, word(2, true));
    lines.heard(at(1), leader, word(1, false));
    assert!(!lines.is_cut(leader));
    assert_eq!(lines.settle(at(1), Some(leader), &there), LineSteps::default());
    lines.heard(at(2), leader, word(3, false));
    assert!(lines.settle(at(2), Some(leader), &there).look);
    lines.looked(at(3), true);
    lines.heard(at(5), leader, word(4, false));
    assert!(!lines.takes_over(at(6), leader, &there), "too soon");
    assert!(lines.takes_over(at(7), leader, &there));
    assert!(!lines.takes_over(at(9), leader, &there), "it says so no more");
    lines.heard(at(9), BootId(9), word(1, false));
    lines.settle(at(9), Some(leader), &there);
    assert!(!lines.is_cut(BootId(9)), "who is not there is forgotten");
}

type There = BTreeMap<BootId, Participant>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    /// Lines that come and go, processes that die, pairs that do not reach each other: when all is whole again all
    /// follow one of them, and go on so.
    #[test]
    fn any_lines(
        pinned in 0..6_usize,
        steps in prop::collection::vec((0..7_u8, 0..5_usize, 0..5_usize, 100..9_000_u64), 1..25),
    ) {
        let mut candidacies = vec![Candidacy::May(1); 5];
        if let Some(one) = candidacies.get_mut(pinned) {
            *one = Candidacy::Pinned;
        }
        let mut group = Group::with(&candidacies);
        let mut lives = 1_000;
        for (what, one, other, millis) in steps {
            match what {
                0 | 1 => group.cuts(one),
                2 => group.mends(one),
                3 if one != 0 => {
                    lives += 1;
                    let life = BootId(lives);
                    let again = Participant { life, ..participant(one, candidacies[one]) };
                    group.kill(one);
                    group.machines[one] = Some(Membership::new(config(again, &[0])));
                }
                4 | 5 if one != other => group.part(&[one], &[other]),
                _ => group.cut.clear(),
            }
            group.run(millis);
        }
        group.cut.clear();
        for number in 0..5 {
            group.mends(number);
        }
        group.run(60_000);
        let (first, _) = group.agree(&[0, 1, 2, 3, 4]);
        if pinned >= 5 {
            group.run(300_000);
            prop_assert_eq!(&group.follows, &vec![Some(first); 5]);
        } else {
            // Once its line has been found again.
            group.run(600_000);
            prop_assert_eq!(&group.follows, &vec![Some(pinned); 5]);
        }
        group.machines.iter().flatten().for_each(Membership::check);
    }
}

/// A line that was cut came back for a moment; the redirector stood still, and the line was gone again when it went on.
/// What it had stood still was counted as if the line had stood: the cut was taken back, and nobody looked any more.
#[test]
fn a_link_of_a_moment_is_none_however_long_the_process_stood_still() {
    let own = participant(0, Candidacy::May(1));
    let there = BTreeMap::from([(own.life, own.clone())]);
    let at = |millis: u64| Instant(millis * MILLI);
    for stall in [0, 2_000] {
        let mut lines = Lines::new(own.clone(), LineTimes::default());
        let settle = |lines: &mut Lines, millis| {
            lines.settle(at(millis), Some(own.life), &there);
        };
        lines.is(Some(false));
        settle(&mut lines, 0);
        settle(&mut lines, 15_000);
        assert!(lines.is_cut(own.life));
        lines.is(Some(true));
        settle(&mut lines, 16_000);
        if stall > 0 {
            lines.stood_still(at(18_100), Duration::from_millis(stall));
        }
        settle(&mut lines, 18_100);
        assert_eq!(
            lines.is_cut(own.life),
            stall > 0,
            "it stood for 2.1 s, {stall} ms of them unseen"
        );
        lines.is(Some(false));
        settle(&mut lines, 18_200);
        assert_eq!(lines.is_cut(own.life), stall > 0);
    }
}
