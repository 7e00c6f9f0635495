//! Boots and the outcomes of their commits: executed exactly once (rule 15, decision 0004).

use crate::commit::Abort;
use crate::confirmed::Confirmed;
use crate::id::{BootId, CommitId, Stamp};
use crate::machine::{Fault, Faults};
use crate::message::{OPEN_MAX, certificate_of};
use crate::record::BootMeta;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Most outcomes of one boot that its node has not confirmed; further commits wait for it.
const OUTCOMES_MAX: usize = 65_536;

/// From so many outcomes on that the boots of a certificate have left open, further boots of it leave none open.
const OPEN_OF_CERTIFICATE_MAX: usize = 65_536;

/// A boot that has confirmed up to this has ended: no commit has a greater number.
pub(super) const ENDED: u64 = u64::MAX - 1;

/// A boot that is to be made durable.
#[derive(Clone, Debug)]
pub(super) struct Registering {
    /// Whose.
    pub(super) name: String,
    /// Its node has said meanwhile that it ends.
    pub(super) ended: bool,
}

/// A node's life as this domain knows it.
#[derive(Clone, Debug)]
struct Boot {
    /// Whose: no other name may use it.
    name: String,
    /// Confirmed and forgotten.
    confirmed: Confirmed,
    /// Committed, and not confirmed.
    committed: BTreeMap<u64, Stamp>,
    /// Refused for reasons that may pass, and not confirmed.
    aborted: BTreeMap<u64, Abort>,
    heard: Instant,
    /// When its node said that it ends: nothing is executed for it any more.
    ended: Option<Instant>,
}

impl Boot {
    /// Whether its node may still ask how a commit ended.
    fn owes(&self) -> bool {
        !self.committed.is_empty() || !self.aborted.is_empty()
    }
}

/// What is known of a commit id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Never executed: it may be.
    New,
    /// Durable as this stamp.
    Committed(Stamp),
    /// Refused, durably.
    Aborted(Abort),
    /// Its boot or its outcome is forgotten.
    Expired,
    /// Its boot has too many outcomes unconfirmed.
    Full,
    /// Its boot is being forgotten: what is known is not told, and that nothing is known neither, since the record that
    /// says so is not durable yet (rule 14).
    Leaving,
}

/// Forgets what is confirmed now: nothing above, and of the rest no more than is open stays.
fn forget<T>(outcomes: &mut BTreeMap<u64, T>, confirmed: &Confirmed) {
    let told = outcomes.range(..=confirmed.upto()).map(|(sequence, _)| *sequence);
    let told: Vec<u64> = told.filter(|sequence| confirmed.has(*sequence)).collect();
    for sequence in told {
        outcomes.remove(&sequence);
    }
}

/// What a certificate has in a domain.
#[derive(Clone, Debug, Default)]
struct Certificate {
    boots: BTreeSet<BootId>,
    /// Outcomes that they have left open, together.
    open: usize,
}

/// All boots of a domain.
#[derive(Clone, Debug, Default)]
pub(super) struct Boots {
    boots: BTreeMap<BootId, Boot>,
    certificates: BTreeMap<String, Certificate>,
    /// Those whose nodes have ended, in the order in which they said so; one that is said to be there when its time is
    /// over comes again last.
    ended: BTreeSet<(Instant, BootId)>,
    /// Those of them of which that is to be logged.
    unlogged: BTreeSet<BootId>,
    /// Those that are forgotten by a record on its way to the log: nothing is known of them any more, and metadata has them
    /// until the record is durable.
    leaving: BTreeSet<BootId>,
}

impl Boots {
    pub(super) fn recover(meta: &[BootMeta], now: Instant) -> Self {
        let mut boots = Self::default();
        for meta in meta {
            boots.register(meta.boot, &meta.name, now);
            let entry = boots.boots.get_mut(&meta.boot).expect("registered just now");
            entry.committed = meta.committed.iter().copied().collect();
            entry.aborted = meta.aborted.iter().cloned().collect();
            let confirmed = Confirmed::new(meta.confirmed, meta.open.iter().copied());
            boots.confirm(meta.boot, &confirmed, now);
        }
        boots
    }

    /// Whose a boot is; none: it is not known.
    pub(super) fn name(&self, boot: BootId) -> Option<&str> {
        self.owner(boot).filter(|_| !self.leaving.contains(&boot))
    }

    /// The same, and of one that is being forgotten too: it may stay.
    pub(super) fn owner(&self, boot: BootId) -> Option<&str> {
        self.boots.get(&boot).map(|boot| boot.name.as_str())
    }

    /// How many there are, without those that are being forgotten.
    pub(super) fn len(&self) -> usize {
        self.boots.len() - self.leaving.len()
    }

    /// How many boots the certificate of this name has, without those that are being forgotten.
    pub(super) fn of_certificate(&self, name: &str) -> usize {
        let Some(Certificate { boots, .. }) = self.certificates.get(certificate_of(name)) else {
            return 0;
        };
        boots.len() - self.leaving.iter().filter(|boot| boots.contains(boot)).count()
    }

    /// A boot may commit (its record is durable).
    pub(super) fn register(&mut self, boot: BootId, name: &str, now: Instant) {
        let entry = self.boots.entry(boot).or_insert_with(|| Boot {
            name: name.to_owned(),
            confirmed: Confirmed::default(),
            committed: BTreeMap::new(),
            aborted: BTreeMap::new(),
            heard: now,
            ended: None,
        });
        entry.heard = now;
        let certificate = certificate_of(&entry.name).to_owned();
        self.certificates.entry(certificate).or_default().boots.insert(boot);
    }

    /// The record that says so goes to the log: nothing of a boot is known any more.
    pub(super) fn leave(&mut self, boot: BootId) {
        self.leaving.insert(boot);
    }

    /// Whether it is on its way there.
    pub(super) fn is_leaving(&self, boot: BootId) -> bool {
        self.leaving.contains(&boot)
    }

    /// That record is not to be. One that ended is looked at again when as long has passed: at once, an append for it
    /// would follow each one that finds no room (bug 206).
    pub(super) fn stay(&mut self, boot: BootId, now: Instant) {
        self.leaving.remove(&boot);
        if let Some(at) = self.boots.get(&boot).and_then(|boot| boot.ended) {
            self.put_back((at, boot), now);
        }
    }

    /// One that ended counts as if it had done so now.
    fn put_back(&mut self, (at, id): (Instant, BootId), now: Instant) {
        self.ended.remove(&(at, id));
        self.ended.insert((now, id));
        self.boots.get_mut(&id).expect("those that ended are known").ended = Some(now);
    }

    pub(super) fn forget(&mut self, boot: BootId) {
        self.leaving.remove(&boot);
        let Some(gone) = self.boots.remove(&boot) else {
            return;
        };
        if let Some(at) = gone.ended {
            self.ended.remove(&(at, boot));
        }
        self.unlogged.remove(&boot);
        let certificate = certificate_of(&gone.name);
        if let Some(of) = self.certificates.get_mut(certificate) {
            of.boots.remove(&boot);
            of.open -= gone.confirmed.open_len();
            if of.boots.is_empty() {
                self.certificates.remove(certificate);
            }
        }
    }

    /// What is known of a commit; takes its word for what the node has received.
    pub(super) fn look_up(&mut self, id: CommitId, confirmed: u64, now: Instant) -> Known {
        self.confirm(id.boot, &Confirmed::new(confirmed, []), now);
        if self.leaving.contains(&id.boot) {
            return Known::Leaving;
        }
        let Some(boot) = self.boots.get(&id.boot) else {
            return Known::Expired;
        };
        if boot.confirmed.has(id.sequence) {
            crate::probe::probe("outcome-confirmed-before");
            return Known::Expired;
        }
        let (committed, aborted) = (&boot.committed, &boot.aborted);
        match (committed.get(&id.sequence), aborted.get(&id.sequence)) {
            (Some(stamp), _) => Known::Committed(*stamp),
            (None, Some(abort)) => Known::Aborted(abort.clone()),
            // The next one that can be confirmed is never refused, the one above all that are confirmed: all others wait
            // for that, also where older ones are open. Nor those that others do not wait for: they are few.
            (None, None)
                if committed.len() + aborted.len() >= OUTCOMES_MAX
                    && id.sequence > boot.confirmed.upto().saturating_add(1) =>
            {
                Known::Full
            }
            (None, None) => Known::New,
        }
    }

    /// The node has received these outcomes; with all up to the greatest number there is it says that it ends.
    pub(super) fn confirm(&mut self, id: BootId, confirmed: &Confirmed, now: Instant) {
        let Some(boot) = self.boots.get_mut(&id) else {
            return;
        };
        boot.heard = now;
        // u64::MAX stands for the boot itself in the log, so no sequence reaches it.
        let capped;
        let confirmed = if confirmed.upto() > ENDED {
            capped = Confirmed::new(ENDED, confirmed.open());
            &capped
        } else {
            confirmed
        };
        let open = boot.confirmed.open_len();
        if !boot.confirmed.add(confirmed) {
            return;
        }
        if let Some(of) = self.certificates.get_mut(certificate_of(&boot.name)) {
            of.open = of.open - open + boot.confirmed.open_len();
        }
        if boot.confirmed.through() == ENDED && boot.ended.is_none() {
            boot.ended = Some(now);
            self.ended.insert((now, id));
        }
        if boot.confirmed.through() == boot.confirmed.upto() {
            let rest = boot.confirmed.upto() + 1;
            boot.committed = boot.committed.split_off(&rest);
            boot.aborted = boot.aborted.split_off(&rest);
        } else {
            forget(&mut boot.committed, &boot.confirmed);
            forget(&mut boot.aborted, &boot.confirmed);
        }
    }

    /// The same, of which some are open, if its certificate has not too many of those: else what leaves no further one
    /// open.
    fn bounded(&self, id: BootId, confirmed: &Confirmed) -> Option<Confirmed> {
        confirmed.open().next()?;
        let boot = self.boots.get(&id)?;
        let of = self.certificates.get(certificate_of(&boot.name))?;
        let others = of.open - boot.confirmed.open_len();
        let upto = boot.confirmed.upto();
        (others >= OPEN_OF_CERTIFICATE_MAX).then(|| {
            let further = confirmed.open().find(|sequence| *sequence > upto);
            let cut = further.map_or(confirmed.upto(), |sequence| sequence - 1);
            Confirmed::new(cut, confirmed.open())
        })
    }

    /// A commit became durable.
    pub(super) fn committed(&mut self, id: CommitId, stamp: Stamp) {
        if let Some(boot) = self.boots.get_mut(&id.boot)
            && !boot.confirmed.has(id.sequence)
        {
            boot.committed.insert(id.sequence, stamp);
        }
    }

    /// A refusal became durable.
    pub(super) fn aborted(&mut self, id: CommitId, abort: &Abort) {
        if let Some(boot) = self.boots.get_mut(&id.boot)
            && !boot.confirmed.has(id.sequence)
        {
            boot.aborted.insert(id.sequence, abort.clone());
        }
    }

    /// The node says that it has received these outcomes. That it ends is to be logged: what else is confirmed comes with
    /// the next install.
    pub(super) fn told(&mut self, id: BootId, confirmed: &Confirmed, now: Instant) {
        let had_ended = self.ended.len();
        let bounded = self.bounded(id, confirmed);
        self.confirm(id, bounded.as_ref().unwrap_or(confirmed), now);
        if self.ended.len() > had_ended {
            self.unlogged.insert(id);
        }
    }

    /// A boot of which is to be logged that it ended.
    pub(super) fn unlogged_end(&mut self) -> Option<BootId> {
        self.unlogged.pop_first()
    }

    /// The first of those that ended so long ago that no copy of what they sent is under way any more; none if its node is
    /// there, which is looked at again when as long has passed.
    pub(super) fn over(
        &mut self,
        now: Instant,
        forget_after: Duration,
        connected: impl Fn(BootId) -> bool,
    ) -> Option<BootId> {
        let mut ended = self.ended.iter().filter(|(_, id)| !self.leaving.contains(id));
        let (at, id) = *ended.next().filter(|(at, _)| at.after(forget_after) <= now)?;
        if !connected(id) {
            return Some(id);
        }
        self.put_back((at, id), now);
        None
    }

    /// The boot longest not heard of, if that is long enough and its node is not there.
    pub(super) fn oldest(
        &self,
        now: Instant,
        forget_after: Duration,
        connected: impl Fn(BootId) -> bool,
    ) -> Option<BootId> {
        self.boots
            .iter()
            .filter(|(id, boot)| boot.heard.after(forget_after) <= now && !connected(**id))
            .filter(|(id, _)| !self.leaving.contains(id))
            .min_by_key(|(_, boot)| boot.heard)
            .map(|(id, _)| *id)
    }

    /// The boot of this name's certificate that is missed least: its node is not there, it has no
    /// outcome to be asked for, it was not heard of for longest.
    pub(super) fn spare(&self, name: &str, connected: impl Fn(BootId) -> bool) -> Option<BootId> {
        let of = self.certificates.get(certificate_of(name))?;
        let away = of.boots.iter().filter(|id| !connected(**id) && !self.leaving.contains(id));
        let known = away.filter_map(|id| Some((*id, self.boots.get(id)?)));
        known.min_by_key(|(_, boot)| (boot.owes(), boot.heard)).map(|(id, _)| id)
    }

    /// Outcomes kept for these boots.
    #[cfg(feature = "faults")]
    pub(super) fn outcomes(&self, of: impl Fn(BootId) -> bool) -> usize {
        let boots = self.boots.iter().filter(|(id, _)| of(**id));
        boots.map(|(_, boot)| boot.committed.len() + boot.aborted.len()).sum()
    }

    /// For the metadata, ascending.
    pub(super) fn meta(&self, faults: Faults) -> Vec<BootMeta> {
        let meta = self.boots.iter().map(|(id, boot)| BootMeta {
            boot: *id,
            name: boot.name.clone(),
            confirmed: boot.confirmed.upto(),
            open: boot.confirmed.open().filter(|_| !faults.has(Fault::OpenUnlisted)).collect(),
            committed: boot.committed.iter().map(|(s, stamp)| (*s, *stamp)).collect(),
            aborted: boot.aborted.iter().map(|(s, abort)| (*s, abort.clone())).collect(),
        });
        meta.skip(usize::from(faults.has(Fault::BootUnlisted))).collect()
    }

    /// Panics when an invariant is broken; `forgotten` is how many boots the records under way forget.
    pub(super) fn check(&self, durable: Stamp, forgotten: usize) {
        let listed: usize = self.certificates.values().map(|of| of.boots.len()).sum();
        assert_eq!(listed, self.boots.len(), "a boot is not listed by its certificate");
        for of in self.certificates.values() {
            let open = of.boots.iter().map(|boot| self.boots[boot].confirmed.open_len());
            assert_eq!(open.sum::<usize>(), of.open, "open outcomes of a certificate");
        }
        let ended = self.boots.iter().filter_map(|(id, boot)| Some((boot.ended?, *id)));
        assert_eq!(ended.collect::<BTreeSet<_>>(), self.ended, "boots that ended are listed");
        assert_eq!(self.leaving.len(), forgotten, "a boot is being forgotten by no record");
        for boot in &self.leaving {
            assert!(self.boots.contains_key(boot), "a boot is being forgotten that is not known");
        }
        for boot in &self.unlogged {
            let ended = self.boots.get(boot).is_some_and(|boot| boot.ended.is_some());
            assert!(ended, "the end of a boot is to be logged that is not known to have ended");
        }
        for boot in self.boots.values() {
            assert!(
                boot.committed.len() + boot.aborted.len() <= OUTCOMES_MAX + OPEN_MAX + 8192,
                "outcomes of a boot outgrew their bound"
            );
            for (sequence, stamp) in &boot.committed {
                assert!(!boot.confirmed.has(*sequence), "a confirmed outcome is kept");
                assert!(*stamp <= durable, "an outcome that is not durable");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId(7);
    const NOW: Instant = Instant(0);

    fn known(boots: &mut Boots, sequence: u64) -> Known {
        boots.look_up(CommitId { boot: BOOT, sequence }, 0, NOW)
    }

    /// The story of bug 229: the first commit is a part of a transaction whose other domain is out of service, and all of
    /// its node's that followed were kept, until there were so many that no more were taken on.
    #[test]
    fn an_outcome_that_is_left_open_keeps_no_others() {
        let mut boots = Boots::default();
        boots.register(BOOT, "node", NOW);
        let last = OUTCOMES_MAX as u64 + 1;
        (2..=last).for_each(|sequence| {
            boots.committed(CommitId { boot: BOOT, sequence }, Stamp(sequence));
        });
        assert_eq!(known(&mut boots, last + 1), Known::Full);
        assert_eq!(known(&mut boots, 1), Known::New, "it is never refused for want of room");
        boots.told(BOOT, &Confirmed::new(last, [1, 3]), NOW);
        boots.check(Stamp(last), 0);
        let of_today = |boots: &mut Boots| {
            assert_eq!(known(boots, 1), Known::New);
            assert_eq!(known(boots, 2), Known::Expired);
            assert_eq!(known(boots, 3), Known::Committed(Stamp(3)));
            assert_eq!(known(boots, last), Known::Expired);
            assert_eq!(known(boots, last + 1), Known::New);
        };
        of_today(&mut boots);
        let meta = boots.meta(Faults::NONE);
        of_today(&mut Boots::recover(&meta, NOW));
        boots.committed(CommitId { boot: BOOT, sequence: 1 }, Stamp(last + 1));
        boots.told(BOOT, &Confirmed::new(last, []), NOW);
        assert_eq!(known(&mut boots, 1), Known::Expired);
        assert_eq!(known(&mut boots, 3), Known::Expired);
    }

    /// Those that are open are few, whatever a node says.
    #[test]
    fn what_is_left_open_does_not_add_up() {
        let mut boots = Boots::default();
        boots.register(BOOT, "node", NOW);
        for round in 1..10 {
            let open = round * 10_000 + 1..=round * 10_000 + OPEN_MAX as u64;
            boots.told(BOOT, &Confirmed::new((round + 1) * 10_000, open), NOW);
            assert!(boots.boots[&BOOT].confirmed.open().count() <= OPEN_MAX);
        }
    }

    /// Of all boots of a certificate together too: beyond the bound what is confirmed before the first further one is taken
    /// alone.
    #[test]
    fn boots_of_one_certificate_leave_open_so_much_together() {
        let mut boots = Boots::default();
        let full = OPEN_OF_CERTIFICATE_MAX.div_ceil(OPEN_MAX) as u128;
        let last = OPEN_MAX as u64 + 2;
        for boot in (1..=full + 1).map(BootId) {
            boots.register(boot, &format!("node/{}", boot.0), NOW);
            boots.told(boot, &Confirmed::new(last, 2..last), NOW);
        }
        let left = |boots: &Boots, boot| boots.boots[&BootId(boot)].confirmed.open().count();
        assert_eq!((left(&boots, full), left(&boots, full + 1)), (OPEN_MAX, 0));
        assert_eq!(boots.boots[&BootId(full + 1)].confirmed, Confirmed::new(1, []));
        boots.register(BootId(100), "another", NOW);
        boots.told(BootId(100), &Confirmed::new(last, 2..last), NOW);
        assert_eq!(left(&boots, 100), OPEN_MAX);
    }

    /// The story of bug 231: a boot had two open when the others of its certificate came to the bound. The later one ended,
    /// and what its node said of that was cut to what is before the first: the outcome was kept, and all after it.
    #[test]
    fn over_the_bound_what_ends_is_taken() {
        let mut boots = Boots::default();
        boots.register(BootId(200), "node/200", NOW);
        boots.told(BootId(200), &Confirmed::new(100, [1, 100]), NOW);
        let full = OPEN_OF_CERTIFICATE_MAX.div_ceil(OPEN_MAX) as u128;
        let last = OPEN_MAX as u64 + 2;
        for boot in (1..=full).map(BootId) {
            boots.register(boot, &format!("node/{}", boot.0), NOW);
            boots.told(boot, &Confirmed::new(last, 2..last), NOW);
        }
        let confirmed = |boots: &Boots| boots.boots[&BootId(200)].confirmed.clone();
        boots.told(BootId(200), &Confirmed::new(150, [1, 120]), NOW);
        assert_eq!(confirmed(&boots), Confirmed::new(119, [1]), "and no more is left open");
        boots.told(BootId(200), &Confirmed::new(140, [1]), NOW);
        assert_eq!(
            confirmed(&boots),
            Confirmed::new(140, [1]),
            "one that stays open keeps no others"
        );
        boots.told(BootId(200), &Confirmed::new(150, [145]), NOW);
        assert_eq!(confirmed(&boots), Confirmed::new(144, []));
        boots.forget(BootId(1));
        boots.told(BootId(200), &Confirmed::new(150, [145]), NOW);
        assert_eq!(confirmed(&boots), Confirmed::new(150, [145]), "there is room again");
        boots.check(Stamp(0), 0);
    }

    /// Bug 233. Over the bound a word was taken up to before what it would have left open as a further one (bug 231). That
    /// one had no outcome yet, and an older one was open: when its outcomes filled its boot's room it was refused for want of
    /// room, as neither the oldest open one nor confirmed, and what had to make room waited for it for good.
    #[test]
    fn what_a_cut_word_stopped_at_is_never_refused() {
        let mut boots = Boots::default();
        boots.register(BootId(200), "node/200", NOW);
        boots.told(BootId(200), &Confirmed::new(5_000, [1]), NOW);
        let full = OPEN_OF_CERTIFICATE_MAX.div_ceil(OPEN_MAX) as u128;
        let last = OPEN_MAX as u64 + 2;
        for boot in (1..=full).map(BootId) {
            boots.register(boot, &format!("node/{}", boot.0), NOW);
            boots.told(boot, &Confirmed::new(last, 2..last), NOW);
        }
        let last = 5_120 + OUTCOMES_MAX as u64;
        for sequence in 5_121..=last {
            boots.committed(CommitId { boot: BootId(200), sequence }, Stamp(sequence));
        }
        boots.told(BootId(200), &Confirmed::new(last, [1, 5_120]), NOW);
        assert_eq!(boots.boots[&BootId(200)].confirmed, Confirmed::new(5_119, [1]));
        let mut look_up = |sequence| {
            let id = CommitId { boot: BootId(200), sequence };
            boots.look_up(id, 0, NOW)
        };
        assert!(matches!(look_up(5_120), Known::New), "all others wait for it");
        assert!(matches!(look_up(1), Known::New), "it is open");
        assert!(matches!(look_up(last + 1), Known::Full));
    }

    /// It has ended when all is confirmed, in whatever order that is said.
    #[test]
    fn a_boot_ends_with_the_last_that_is_open() {
        let mut boots = Boots::default();
        boots.register(BOOT, "node", NOW);
        boots.told(BOOT, &Confirmed::new(u64::MAX, [5]), NOW);
        assert_eq!(boots.unlogged_end(), None);
        boots.told(BOOT, &Confirmed::new(10, []), NOW);
        assert_eq!(boots.unlogged_end(), Some(BOOT));
    }
}
