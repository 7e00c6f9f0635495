//! Who of a group is there, and who is its redirector now (BuddyCache, appendix; decision 0034).
//!
//! Each process of a group runs one of these machines beside its cache. It finds out by SWIM (`foca`) who is
//! there, and agrees with the others upon a redirector: whoever is followed, as long as it is there; then the
//! first of those who may. What it says is only ever a hint. Whom it takes for gone may be there, and two
//! processes may be redirectors at once: each is a parent like any other, and whoever is linked to either is
//! told the truth by it. A wrong suspicion costs time.
//!
//! | who follows whom | why |
//! |---|---|
//! | the redirector that is followed is there | it stays: one that starts later changes nothing |
//! | the links to it break | it is asked at once, and gone if more than half of the others get no answer for a while |
//! | it is gone | of those who are there and may, the first claims to be it |
//! | two parts of a group meet | the greater claim is followed, and the other redirector gives way |
//! | a part of at least half | its redirector raises the term when it knows all who are gone: who comes back follows it |
//! | one that is pinned is there | it claims at once |
//! | the redirector is told to end | it says so, and is replaced without being missed |
//! | its own line to the group's parent is cut | one whose line stands claims; who gave way comes after all others |

mod config;
mod datagram;
mod election;
mod line;
mod missed;
mod swim;
mod timers;

pub use config::{Candidacy, LineTimes, MembershipConfig, NAME_BYTES_MAX, Participant};
pub use datagram::DATAGRAM_BYTES_MAX;
#[doc(hidden)]
pub use datagram::check_datagram;
pub use election::Claim;

use crate::group::{ADDRESS_BYTES_MAX, MEMBERS_MAX};
use crate::id::BootId;
use crate::machine::{Fault, Machine};
use crate::rng::Rng;
use crate::time::{Duration, Instant, OnwardClock};
use crate::wire::WireError;
use bytes::Bytes;
use datagram::{Datagram, SWIM_BYTES_MAX, Say};
use election::Election;
use foca::{Foca, Member, NoCustomBroadcast, PeriodicParams, State};
use line::{LineSteps, Lines};
use missed::{Missed, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::{NonZeroU8, NonZeroUsize};
use swim::{Asked, Codec, Identity, Numbers};
use timers::Timers;

/// Participants that are known, those that are gone among them.
const KNOWN_MAX: usize = 2 * MEMBERS_MAX;

/// News of a participant goes along with so many datagrams.
const TOLD_TIMES: NonZeroU8 = NonZeroU8::new(10).expect("not zero");
/// So many others ask one that does not answer, and hear the news every now and then.
const ASKED_BY: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");
/// So many times as many hear at once that the redirector is gone: with more the news would be worn out.
const TOLD_AT_ONCE: usize = 3;
const ONE: NonZeroUsize = NonZeroUsize::new(1).expect("not zero");

/// What the machine is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipInput {
    /// A datagram came, from who belongs to the group.
    Received {
        /// From which address: it is answered there.
        from: String,
        /// What.
        datagram: Bytes,
    },
    /// Somebody may be found at this address: one more seed, which may be anybody's word. Of so many that are
    /// told as there may be participants the newest are kept.
    Seed(String),
    /// Whether the line to the group's parent stands of the relay that this process is if it is the redirector; none:
    /// it has no relay now.
    Line(Option<bool>),
    /// What a [`MembershipOutput::Look`] found: whether the group's parent would have a link to this process.
    Looked(bool),
    /// The link to the redirector broke, and neither side had said goodbye: its process may have ended.
    Broke,
    /// A link to the redirector stands: nobody has to ask whether it is there.
    Linked,
    /// The process is told to end: the others hear of it, and nothing more is asked for.
    Leave,
}

/// What the machine asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipOutput {
    /// Send this, once: it may be lost.
    Send {
        /// Where to.
        to: String,
        /// At most [`DATAGRAM_BYTES_MAX`] bytes.
        datagram: Bytes,
    },
    /// Who is the redirector from now on; none: nobody is known to be.
    Redirector(Option<Participant>),
    /// Find out whether the group's parent would have a link to this process, and say so
    /// ([`MembershipInput::Looked`]). The redirector itself is to try its line now, in the place of the next attempt.
    Look,
}

/// The membership machine: see the module.
pub struct Membership {
    config: MembershipConfig,
    swim: Foca<Identity, Codec, Numbers, NoCustomBroadcast>,
    timers: Timers,
    election: Election,
    lines: Lines,
    /// Whom the process was told of last.
    told: Option<BootId>,
    /// Addresses that it was told while it ran, the oldest first.
    found: VecDeque<String>,
    /// Who answered at which of all addresses: a name that leads to who is there need not be asked.
    answered: BTreeMap<String, BootId>,
    /// The redirector, whose link broke.
    missed: Option<Missed>,
    /// When a seed is asked next; none: not begun.
    seek_at: Option<Instant>,
    /// Which.
    seek: usize,
    left: bool,
    clock: OnwardClock,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Membership({:?}, {:?})", self.config.own, self.election)
    }
}

impl Membership {
    /// A process that knows nobody.
    #[must_use]
    pub fn new(config: MembershipConfig) -> Self {
        let own = &config.own;
        assert!(own.name.len() <= NAME_BYTES_MAX, "names are bounded");
        assert!(own.address.len() <= ADDRESS_BYTES_MAX, "addresses are bounded");
        assert!(config.group.len() <= NAME_BYTES_MAX, "names of groups are bounded");
        assert!(config.probe_wait < config.probe_every, "others ask before the next one is asked");
        let identity = Identity { participant: own.clone(), renewed: 0 };
        let rng = Numbers(Rng::new(config.seed));
        Self {
            swim: Foca::new(identity, swim_config(&config), rng, Codec),
            timers: Timers::default(),
            election: Election::new(own.clone(), config.faults),
            lines: Lines::new(own.clone(), config.line),
            told: None,
            found: VecDeque::new(),
            answered: BTreeMap::new(),
            missed: None,
            seek_at: None,
            seek: 0,
            left: false,
            clock: OnwardClock::default(),
            config,
        }
    }

    /// Who is there, this process among them, by their lives.
    #[must_use]
    pub fn participants(&self) -> BTreeMap<BootId, Participant> {
        let others = self.swim.iter_members().map(|member| member.id().participant.clone());
        let own = (!self.left).then(|| self.config.own.clone());
        others.chain(own).map(|participant| (participant.life, participant)).collect()
    }

    /// Whom this process follows.
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        self.election.followed()
    }

    /// Whether this process is the redirector.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.told == Some(self.config.own.life)
    }

    /// Whether somebody was the redirector while his line was cut, and has not been heard to reach the parent since.
    #[must_use]
    pub fn is_cut(&self, life: BootId) -> bool {
        self.lines.is_cut(life)
    }

    fn received(
        &mut self,
        now: Instant,
        from: String,
        bytes: Bytes,
        out: &mut Vec<MembershipOutput>,
    ) -> Result<(), WireError> {
        let Datagram { group, claim, say } = Datagram::decode(bytes)?;
        if group != self.config.group {
            crate::probe::probe("datagram-of-another-group");
            return Ok(());
        }
        match say {
            Say::Who => {
                let here = Say::Here(self.swim.identity().clone());
                self.send(from, here, out);
            }
            Say::Here(identity) => {
                let life = identity.participant.life;
                if self.seeds().any(|seed| *seed == from) {
                    self.answered.insert(from, life);
                }
                self.is_heard(now, life);
                if life != self.config.own.life && self.takes(now, [life], out) {
                    self.swim(now, out, |swim, asked| swim.announce(identity, asked));
                }
            }
            Say::Left(identity) => {
                // Who is not known cannot leave, and would take the room of who is.
                let life = identity.participant.life;
                if life != self.config.own.life && self.knows(life) {
                    self.are_gone(now, vec![identity], out);
                }
            }
            Say::Claimed => {}
            Say::Line(identity, word) => {
                let life = identity.participant.life;
                if self.knows(life) {
                    self.lines.heard(now, life, word);
                }
            }
            Say::Missed(identity, missed) => {
                let life = identity.participant.life;
                if missed == self.config.own.life {
                    let here = Say::Here(self.swim.identity().clone());
                    self.send(from, here, out);
                } else if self.knows(life)
                    && let Some(missed) = self.misses(missed)
                {
                    missed.is_missed_by(now, life);
                }
            }
            Say::Swim(bytes) => {
                let named = swim::named(&bytes)?;
                let said_by = swim::said_by(&bytes)?;
                self.is_heard(now, said_by.participant.life);
                if self.takes(now, named, out) {
                    let is_new = !self.knows(said_by.participant.life);
                    self.swim(now, out, |swim, asked| swim.handle_data(&bytes[..], asked));
                    if is_new {
                        self.follows_at_its_address(now, &said_by.participant, out);
                    }
                }
            }
        }
        if let Some(claim) = claim {
            self.election.heard(claim, &self.participants());
        }
        Ok(())
    }

    fn are_gone(&mut self, now: Instant, gone: Vec<Identity>, out: &mut Vec<MembershipOutput>) {
        let gone = gone.into_iter().map(|identity| Member::new(identity, 0, State::Down));
        self.swim(now, out, |swim, asked| swim.apply_many(gone, true, asked));
    }

    /// Somebody said something: nobody has to look for it.
    fn is_heard(&mut self, now: Instant, life: BootId) {
        if let Some(missed) = self.missed.as_mut().filter(|missed| missed.life() == life)
            && missed.is_heard(now, self.config.suspect_max)
        {
            crate::probe::probe("redirector-answers");
            self.missed = None;
        }
    }

    #[cfg(test)]
    fn looks_for_nobody(&self) -> bool {
        self.missed.as_ref().is_none_or(|missed| missed.due().is_none())
    }

    /// The link to the redirector broke, or another one misses it.
    fn misses(&mut self, life: BootId) -> Option<&mut Missed> {
        if self.told != Some(life) || life == self.config.own.life {
            return None;
        }
        match &mut self.missed {
            Some(missed) if missed.life() == life => {}
            missed => *missed = Some(Missed::new(life)),
        }
        self.missed.as_mut()
    }

    /// Makes the next step with a redirector that is looked for, if it is time.
    fn look_for(&mut self, now: Instant, out: &mut Vec<MembershipOutput>) {
        let followed = self.told;
        let Some(missed) = self.missed.as_mut().filter(|it| followed == Some(it.life())) else {
            self.missed = None;
            return;
        };
        let life = missed.life();
        let there = self.swim.iter_members().find(|member| member.id().participant.life == life);
        let Some(identity) = there.map(|member| member.id().clone()) else {
            self.missed = None;
            return;
        };
        let pause = self.config.probe_wait;
        let step = missed.step(now, pause);
        if step == Step::Over {
            crate::probe::probe("redirector-is-missed-by-few");
            self.missed = None;
            return;
        }
        if matches!(step, Step::Ask | Step::Say) {
            let asks = identity.clone();
            self.swim(now, out, |swim, asked| swim.announce(asks, asked));
        }
        if step == Step::Say {
            crate::probe::probe("redirector-is-missed");
            self.send_to_all(&Say::Missed(self.swim.identity().clone(), life), out);
        }
        let mut others = self.participants();
        others.remove(&life);
        // Where nobody could take its place it may as well be waited for: it comes back at once, perhaps, and whoever is
        // without a redirector has the parent's line.
        let awaited = others.values().any(|other| other.candidacy != Candidacy::Never);
        let others = others.into_keys().collect();
        if awaited && self.missed.as_ref().is_some_and(|it| it.is_gone(now, &others, pause)) {
            crate::probe::probe("missed-redirector-is-gone");
            self.missed = None;
            self.are_gone(now, vec![identity], out);
            // Those whose links have not broken hear of it now.
            for _ in 0..TOLD_AT_ONCE {
                self.swim(now, out, |swim, asked| swim.gossip(asked));
            }
        }
    }

    /// Somebody was heard for the first time. If it is there now, whoever else of its name is known at its address was the
    /// same process before it ended. Else the lives of one that ends as soon as it has started, and is started
    /// again, are looked at one by one, which takes as long as it has had many of them: all that while they count
    /// as there, and may be waited for (bug 183). A word of theirs that comes late does no more than what is lost: who
    /// is there says so.
    fn follows_at_its_address(
        &mut self,
        now: Instant,
        heard: &Participant,
        out: &mut Vec<MembershipOutput>,
    ) {
        let there = || self.swim.iter_members().map(Member::id);
        if !there().any(|one| one.participant.life == heard.life) {
            return;
        }
        let before = there().filter(|Identity { participant: it, .. }| {
            it.life != heard.life && it.address == heard.address && it.name == heard.name
        });
        let before: Vec<Identity> = before.cloned().collect();
        if !before.is_empty() {
            crate::probe::probe("a-life-follows-another");
            self.are_gone(now, before, out);
        }
    }

    /// Whether a process was ever there, as far as is remembered.
    fn knows(&self, life: BootId) -> bool {
        self.lives().any(|known| known == life)
    }

    /// Whether there is room for those among these who are not known: who is gone for longest makes it, since
    /// what names somebody unknown may be the answer of one that is there.
    fn takes(
        &mut self,
        now: Instant,
        lives: impl IntoIterator<Item = BootId>,
        out: &mut Vec<MembershipOutput>,
    ) -> bool {
        let named: BTreeSet<BootId> = lives.into_iter().collect();
        let known: BTreeSet<BootId> = self.lives().collect();
        let new = named.difference(&known).count();
        let over = (known.len() + new).saturating_sub(KNOWN_MAX);
        for timer in self.timers.take_gone(over, &named) {
            crate::probe::probe("gone-makes-room");
            self.swim(now, out, |swim, asked| swim.handle_timer(timer, asked));
        }
        let fits = self.lives().count() + new <= KNOWN_MAX;
        if !fits {
            crate::probe::probe("participants-full");
        }
        fits
    }

    /// Who is known, those that are gone among them.
    fn lives(&self) -> impl Iterator<Item = BootId> {
        self.swim.iter_membership_state().map(|member| member.id().participant.life)
    }

    /// Lets `foca` make a step, and does what it asks for. What it does not take is as if it had not come.
    fn swim<E>(
        &mut self,
        now: Instant,
        out: &mut Vec<MembershipOutput>,
        step: impl FnOnce(
            &mut Foca<Identity, Codec, Numbers, NoCustomBroadcast>,
            &mut Asked,
        ) -> Result<(), E>,
    ) {
        let mut asked = Asked::default();
        if step(&mut self.swim, &mut asked).is_err() {
            crate::probe::probe("swim-did-not-take-it");
        }
        for (timer, after) in asked.timers {
            self.timers.add(now.after(after), timer);
        }
        for (to, bytes) in asked.sends {
            self.send(to.participant.address, Say::Swim(bytes.into()), out);
        }
    }

    fn send(&self, to: String, say: Say, out: &mut Vec<MembershipOutput>) {
        let (group, claim) = (self.config.group.clone(), self.election.followed());
        let datagram = Datagram { group, claim, say }.encode();
        assert!(datagram.len() <= DATAGRAM_BYTES_MAX, "what it is made of is bounded");
        out.push(MembershipOutput::Send { to, datagram });
    }

    fn send_to_all(&self, say: &Say, out: &mut Vec<MembershipOutput>) {
        for member in self.swim.iter_members() {
            self.send(member.id().participant.address.clone(), say.clone(), out);
        }
    }

    /// Asks the next seed from which nobody is known.
    fn seek(&mut self, now: Instant, out: &mut Vec<MembershipOutput>) {
        self.seek_at = Some(now.after(self.config.seek_every));
        // Who came back from having been taken for gone asks nobody before it has heard from somebody; if all
        // are gone by then, they are there for it for ever (bug 151).
        self.swim(now, out, |swim, asked| swim.apply_many(std::iter::empty(), true, asked));
        let there = self.participants();
        let seeds: Vec<&String> = self.seeds().collect();
        for step in 1..=seeds.len() {
            let seek = (self.seek + step) % seeds.len();
            let answered = self.answered.get(seeds[seek]);
            let known = answered.is_some_and(|life| there.contains_key(life))
                || there.values().any(|one| one.address == *seeds[seek]);
            if !known {
                let seed = seeds[seek].clone();
                self.seek = seek;
                return self.send(seed, Say::Who, out);
            }
        }
    }

    /// Where others may be found.
    fn seeds(&self) -> impl Iterator<Item = &String> {
        self.config.seeds.iter().chain(&self.found)
    }

    /// A process that stood still does not take that for the silence of others: what came meanwhile is yet to
    /// be read.
    fn goes_on(&mut self, now: Instant) {
        let missed = self.missed.as_ref().and_then(Missed::due);
        let due = [self.timers.next(), self.election.raise_at(), self.lines.next_timeout(), missed];
        let due = due.into_iter().flatten().min();
        let late = due.map_or(Duration::ZERO, |at| now.since(at));
        if late <= self.config.probe_every {
            return;
        }
        crate::probe::probe("membership-stood-still");
        self.timers.put_off(late);
        self.election.put_off(late);
        self.lines.stood_still(now, late);
        if let Some(missed) = &mut self.missed {
            missed.stood_still(now, late, self.config.probe_wait);
        }
    }

    /// One more address is asked, at once if it is new.
    fn found(&mut self, address: String, out: &mut Vec<MembershipOutput>) {
        let known = self.config.seeds.iter().chain(&self.found).any(|seed| *seed == address);
        if known || address == self.config.own.address || address.len() > ADDRESS_BYTES_MAX {
            return;
        }
        if self.found.len() == MEMBERS_MAX {
            let gone = self.found.pop_front();
            self.answered.retain(|address, _| Some(address) != gone.as_ref());
        }
        self.send(address.clone(), Say::Who, out);
        self.found.push_back(address);
    }

    fn begin(&mut self, now: Instant, out: &mut Vec<MembershipOutput>) {
        self.election.begin(now.after(self.config.settle));
        self.seek_at = Some(now.after(self.config.seek_every));
        for seed in &self.config.seeds {
            if *seed != self.config.own.address {
                self.send(seed.clone(), Say::Who, out);
            }
        }
    }

    fn leave(&mut self, now: Instant, out: &mut Vec<MembershipOutput>) {
        self.left = true;
        let left = Say::Left(self.swim.identity().clone());
        self.election.leave();
        self.send_to_all(&left, out);
        self.swim(now, out, |swim, asked| swim.leave_cluster(asked));
        self.timers.clear();
        (self.seek_at, self.missed) = (None, None);
        self.told = None;
        out.push(MembershipOutput::Redirector(None));
    }

    /// Looks who is the redirector now. All hear of a new claim at once, from who makes it.
    fn settle(&mut self, now: Instant, out: &mut Vec<MembershipOutput>) {
        let there = self.participants();
        let (every, suspect_max) = (self.config.probe_every, self.config.suspect_max);
        // Each is asked in turn, one of them twice perhaps before the last one is.
        let last = |most: usize| suspect_max + every * (2 * most.min(MEMBERS_MAX) + 1) as u32;
        let patience = self.config.settle;
        if self.election.settle(now, (&there, &self.lines), last, patience) {
            self.send_to_all(&Say::Claimed, out);
        }
        let followed = self.election.followed().map(|claim| claim.leader);
        if followed != self.told {
            self.told = followed;
            let redirector = followed.and_then(|life| there.get(&life).cloned());
            out.push(MembershipOutput::Redirector(redirector));
        }
        let LineSteps { say, look } = self.lines.settle(now, followed, &there);
        if let Some(word) = say {
            self.send_to_all(&Say::Line(self.swim.identity().clone(), word), out);
        }
        if look {
            out.push(MembershipOutput::Look);
        }
    }
}

fn swim_config(config: &MembershipConfig) -> foca::Config {
    let periodic =
        |frequency: Duration, num_members| Some(PeriodicParams { frequency, num_members });
    foca::Config {
        probe_period: config.probe_every,
        probe_rtt: config.probe_wait,
        num_indirect_probes: ASKED_BY,
        max_transmissions: TOLD_TIMES,
        suspect_to_down_after: config.suspect_max,
        remove_down_after: config.forget_after,
        max_packet_size: NonZeroUsize::new(SWIM_BYTES_MAX).expect("not zero"),
        notify_down_members: !config.faults.has(Fault::GoneForGood),
        periodic_announce: periodic(config.seek_every * 4, ONE),
        periodic_announce_to_down_members: periodic(config.seek_every, ONE),
        periodic_gossip: periodic(config.probe_every, ASKED_BY),
    }
}

impl Machine for Membership {
    type Input = MembershipInput;
    type Output = MembershipOutput;

    fn handle(&mut self, now: Instant, input: MembershipInput, out: &mut Vec<MembershipOutput>) {
        let now = self.clock.at(now);
        if self.left {
            return;
        }
        self.goes_on(now);
        match input {
            MembershipInput::Received { from, datagram } => {
                if self.received(now, from, datagram, out).is_err() {
                    crate::probe::probe("datagram-unread");
                }
            }
            MembershipInput::Seed(address) => self.found(address, out),
            MembershipInput::Line(line) => self.lines.is(line),
            MembershipInput::Looked(stands) => self.lines.looked(now, stands),
            MembershipInput::Broke => {
                let silent_for = self.config.suspect_max;
                if let Some(missed) = self.told.and_then(|life| self.misses(life)) {
                    missed.broke(now, silent_for);
                }
            }
            MembershipInput::Linked => self.missed = None,
            MembershipInput::Leave => return self.leave(now, out),
        }
        self.look_for(now, out);
        self.settle(now, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<MembershipOutput>) {
        let now = self.clock.at(now);
        if self.left {
            return;
        }
        self.goes_on(now);
        match self.seek_at {
            None => self.begin(now, out),
            Some(at) if at <= now => self.seek(now, out),
            Some(_) => {}
        }
        for timer in self.timers.take_due(now) {
            self.swim(now, out, |swim, asked| swim.handle_timer(timer, asked));
        }
        self.look_for(now, out);
        self.settle(now, out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        if self.left {
            return None;
        }
        let Some(seek_at) = self.seek_at else { return Some(Instant(0)) };
        let election = self.election.next_timeout();
        let missed = self.missed.as_ref().and_then(Missed::due);
        [Some(seek_at), self.timers.next(), election, self.lines.next_timeout(), missed]
            .into_iter()
            .flatten()
            .min()
    }

    fn check(&self) {
        let known = self.swim.iter_membership_state().len();
        assert!(known <= KNOWN_MAX, "too many participants");
        assert!(self.found.len() <= MEMBERS_MAX, "too many addresses were told");
        self.timers.check();
        self.election.check();
    }
}

#[cfg(test)]
mod tests;
