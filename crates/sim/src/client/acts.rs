//! What a transaction does at each step, and what of it is remembered for the checkers.

use super::{Kind, Reads, Run, Stage};
use crate::agenda::MILLI;
use crate::check::cycles::Effect;
use crate::check::oracle::TAG_BITS;
use crate::check::seen::Seen;
use crate::plan::{Action, pick, weighted};
use crate::world::World;
use bytes::Bytes;
use larder_core::cache::io::CacheOp;
use larder_core::cache::{Step, TransactionError};
use larder_core::commit::{Op, PageKind};
use larder_core::id::{DomainId, Generation, ObjectId, PageId, PageNo, Slot, Stamp, VolumeId};
use larder_core::page::Record;
use larder_core::rng::Rng;

/// The first of the slots that clients have for themselves.
const OWN_SLOTS: u16 = 500;
/// Bytes of the smallest value.
const VALUE_MIN: u64 = 24;
/// Where in a value additions go.
const ADD_OFFSET: u32 = 0;
/// The longest that a user waits for a page that it may make itself.
const HASTE_NANOS: u64 = 100 * MILLI;
/// Where in a value maxima go.
const MAX_OFFSET: u32 = 8;

/// One operation with all its arguments, so that it can be repeated when its pages have come.
#[derive(Clone, Debug)]
pub(super) enum Intention {
    /// Sees whether a slot is filled and then does something to what it holds, or to its emptiness.
    At(PageId, Slot, What),
    ReadObject(ObjectId),
    Create(PageId, Slot, Bytes),
    ToObject(ObjectId, What),
    List(PageId),
    /// Reads all that a page holds.
    ReadAll(PageId),
    ReadRaw(PageId),
    MakePage(VolumeId, PageKind),
    RemovePage(PageId),
    Raw(PageId, Op),
    Prefetch(PageId),
}

/// What to do to an object.
#[derive(Clone, Debug)]
pub(super) enum What {
    Read,
    Put(Bytes),
    Delete,
    Add(i64),
    Max(u64),
}

/// How an operation went.
enum Did {
    Done,
    Then(Intention),
    Need(CacheOp),
    Doomed,
}

/// The value of a step, or why there is none yet.
fn ready<T>(step: Step<T>) -> Result<T, Did> {
    match step {
        Step::Ready(value) => Ok(value),
        Step::Need { domain, pages } => {
            Err(Did::Need(CacheOp::Fetch { domain, pages, prefetch: false }))
        }
        Step::NeedIds { volume, count } => Err(Did::Need(CacheOp::AllocateIds { volume, count })),
        Step::Wait(awaited) => Err(Did::Need(CacheOp::WaitThrough(awaited))),
        Step::Doomed(_) => Err(Did::Doomed),
        Step::Refused(error) => {
            assert!(
                !matches!(error, TransactionError::Damaged(_)),
                "P5: an object made of two states: {error}"
            );
            Err(Did::Done)
        }
    }
}

impl World {
    /// What a client asks for beside what it needs: numbers for later, and another page.
    fn ask_for_more(&mut self, op: &mut CacheOp) {
        match op {
            CacheOp::AllocateIds { count, .. } => *count += self.plan.mix.numbers_ahead,
            CacheOp::Fetch { pages, .. }
                if self.plan.aims.iter().any(|aim| aim == "evictions") && self.rng.chance(1, 2) =>
            {
                // What comes first is gathered until the other is there, or nobody waits any more.
                if let [PageId { volume, page }] = pages[..] {
                    pages.push(PageId { volume, page: PageNo(page.0 + 1) });
                }
            }
            _ => {}
        }
    }

    /// The client's transaction does its next operation, or ends.
    pub(super) fn client_acts(&mut self, index: usize, mut run: Box<Run>) {
        let first_try = run.current.is_none();
        let intention = match run.current.take() {
            Some(intention) => intention,
            None if run.left == 0 => {
                if let Some(awaited) = run.tx.waits() {
                    self.clients[index].stage = Stage::Run(run);
                    return self.client_asks(index, CacheOp::WaitThrough(awaited));
                }
                return self.client_ends(index, *run);
            }
            None => {
                let percent = self.plan.mix.savepoint_percent;
                if percent > 0 && self.rng.below(100) < percent {
                    self.trace.line(|| format!("client {index}: goes back, or sets a savepoint"));
                    run.go_back_or_save();
                }
                run.left -= 1;
                let first = usize::from(self.clients[index].node.0) == 1 + self.plan.relays.len();
                self.draw_intention(&run, first)
            }
        };
        if first_try && !self.decisions.acts(index as u16, run.done) {
            run.done += 1;
            self.clients[index].stage = Stage::Run(run);
            return self.client_thinks(index);
        }
        run.done += u32::from(first_try);
        self.trace.line(|| format!("client {index}: {intention:?}"));
        self.arm_clock(index, run.kind.age_max.is_some());
        let did = self.perform(index, &mut run, &intention).unwrap_or_else(|did| did);
        self.disarm_clock();
        match did {
            Did::Done => {
                run.current = run.next.take();
                self.clients[index].stage = Stage::Run(run);
                self.client_thinks(index);
            }
            Did::Then(next) => {
                run.current = Some(next);
                self.clients[index].stage = Stage::Run(run);
                self.client_thinks(index);
            }
            Did::Need(mut op) => {
                self.ask_for_more(&mut op);
                let ahead = matches!(intention, Intention::At(page, ..) if run.ahead == Some(page));
                run.current = Some(intention);
                self.clients[index].stage = Stage::Run(run);
                if ahead {
                    // Its user knows better than to wait.
                    let patience = 1 + self.rng.below(HASTE_NANOS);
                    self.client_asks_for(index, op, patience);
                } else {
                    self.client_asks(index, op);
                }
            }
            Did::Doomed => self.client_gives_up(index, *run),
        }
    }

    /// A transaction is to do just this, two things at most, in a volume each: something to an object of its client's
    /// own; nothing: make a page.
    pub(super) fn aim(&mut self, index: usize, run: &mut Run, only: &[(usize, Option<What>)]) {
        if only.is_empty() {
            return;
        }
        (run.volumes, run.left) = (only.iter().map(|(volume, _)| *volume).collect(), 0);
        let mut aims = only.iter().map(|(volume, what)| self.aimed(index, run.tag, *volume, what));
        (run.current, run.next) = (aims.next(), aims.next());
    }

    fn aimed(
        &mut self,
        index: usize,
        tag: Option<u64>,
        volume: usize,
        what: &Option<What>,
    ) -> Intention {
        let volume = &self.volumes[volume];
        let Some(what) = what else {
            return Intention::MakePage(volume.spec.id, PageKind::Slotted);
        };
        let page = volume.slotted[0];
        let what = match (what, tag) {
            (What::Put(_), Some(tag)) => What::Put(draw_value(&mut self.rng, tag, VALUE_MIN)),
            (what, _) => what.clone(),
        };
        Intention::At(page, Slot(OWN_SLOTS + index as u16), what)
    }

    fn draw_intention(&mut self, run: &Run, first: bool) -> Intention {
        let rng = &mut self.rng;
        let volume = &self.volumes[pick(rng, &run.volumes)];
        let action = draw_action(rng, &self.plan.mix.actions, run.kind);
        let action = if self.plan.mix.parted { part(action, first, run.kind) } else { action };
        let aimed = self.plan.mix.pages.min(volume.slotted.len() as u64);
        let newest = volume.slotted.len() as u64 - aimed;
        let page = volume.slotted[(newest + rng.below(aimed)) as usize];
        let slot = Slot(rng.below(self.plan.mix.slots) as u16);
        let tag = run.tag.unwrap_or_default();
        let raw = (!volume.raw.is_empty()).then(|| pick(rng, &volume.raw));
        let old = (!volume.references.is_empty()).then(|| pick(rng, &volume.references));
        let number = rng.below(1 << 30) << TAG_BITS | tag;
        let what = match action {
            Action::Put => What::Put(draw_value(rng, tag, self.plan.mix.value_bytes)),
            Action::Delete => What::Delete,
            Action::Add => What::Add(number as i64),
            Action::Max => What::Max(number),
            _ => What::Read,
        };
        let blind = rng.chance(1, 3);
        match (action, raw, old) {
            (Action::ReadOld, _, Some(object)) => Intention::ReadObject(object),
            (Action::List, ..) if slot.0 % 2 == 1 => Intention::ReadAll(page),
            (Action::List, ..) => Intention::List(page),
            (Action::ReadRaw, Some(raw), _) => Intention::ReadRaw(raw),
            (Action::WriteRaw, Some(raw), _) => Intention::Raw(raw, draw_raw_write(rng, tag)),
            (Action::TruncateRaw, Some(raw), _) => {
                let length = rng.below(200) as u32;
                Intention::Raw(raw, Op::TruncateRaw { length })
            }
            (Action::CreatePage, ..) => {
                let kind = pick(rng, &[PageKind::Slotted, PageKind::Raw]);
                Intention::MakePage(volume.spec.id, kind)
            }
            (Action::DeletePage, ..) if page.page.0 > 1 && rng.chance(1, 4) => {
                Intention::RemovePage(page)
            }
            (Action::Prefetch, ..) => Intention::Prefetch(page),
            (Action::ReadAhead, ..) => Intention::At(run.ahead.unwrap_or(page), slot, What::Read),
            (Action::Create, ..) => {
                let value = draw_value(rng, tag, self.plan.mix.value_bytes);
                Intention::Create(page, slot, value)
            }
            (Action::Put | Action::Delete | Action::Add | Action::Max, _, Some(object))
                if blind =>
            {
                Intention::ToObject(object, what)
            }
            _ => Intention::At(page, slot, what),
        }
    }

    fn perform(&mut self, index: usize, run: &mut Run, intention: &Intention) -> Result<Did, Did> {
        match intention {
            Intention::At(page, slot, what) => {
                let found = ready(run.tx.exists(*page, *slot))?;
                self.saw(index, run, Seen::Slot(*page, *slot, found));
                let object =
                    found.map(|generation| ObjectId { page: *page, slot: *slot, generation });
                Ok(match (object, what) {
                    (Some(object), What::Read) => Did::Then(Intention::ReadObject(object)),
                    (Some(object), what) => Did::Then(Intention::ToObject(object, what.clone())),
                    (None, What::Put(value)) => {
                        Did::Then(Intention::Create(*page, *slot, value.clone()))
                    }
                    (None, _) => Did::Done,
                })
            }
            Intention::ReadObject(object) => {
                let value = ready(run.tx.read_object(*object))?;
                self.saw(index, run, Seen::Object(*object, value));
                Ok(Did::Done)
            }
            Intention::Create(page, slot, value) => {
                let object = ready(run.tx.create_object(*page, Some(*slot), value.clone()))?;
                self.saw(index, run, Seen::Slot(*page, *slot, None));
                let effect = Effect::Put(object, value.clone());
                run.own.wrote(&effect);
                run.effects.push(effect);
                run.made.push(object);
                Ok(Did::Done)
            }
            Intention::ToObject(object, what) => self.change_object(index, run, *object, what),
            Intention::List(page) => {
                let slots = ready(run.tx.slots(*page))?;
                self.saw(index, run, Seen::Slots(*page, slots));
                Ok(Did::Done)
            }
            Intention::ReadAll(page) => {
                let all = ready(run.tx.read_all(*page))?;
                let slot = |(slot, generation, _): &(Slot, Generation, Bytes)| (*slot, *generation);
                let slots = all.as_ref().map(|all| all.iter().map(slot).collect());
                self.saw(index, run, Seen::Slots(*page, slots));
                for (slot, generation, record) in all.into_iter().flatten() {
                    // What is kept elsewhere is not seen here.
                    let record = Record::decode(record).expect("a page holds records");
                    if let Record::Inline(value) = record {
                        let object = ObjectId { page: *page, slot, generation };
                        self.saw(index, run, Seen::Object(object, Some(value)));
                    }
                }
                Ok(Did::Done)
            }
            Intention::ReadRaw(page) => {
                let bytes = ready(run.tx.read_raw(*page))?;
                self.saw(index, run, Seen::Raw(*page, bytes));
                Ok(Did::Done)
            }
            Intention::MakePage(volume, kind) => {
                let page = ready(run.tx.create_pages(*volume, *kind, 1))?;
                let page = PageId { volume: *volume, page };
                run.own.moved(page);
                run.pages_made.push((page, *kind == PageKind::Raw));
                Ok(Did::Done)
            }
            Intention::RemovePage(page) => {
                ready(run.tx.write(*page, Op::DeletePage))?;
                run.own.moved(*page);
                Ok(Did::Done)
            }
            Intention::Raw(page, op) => {
                ready(run.tx.write(*page, op.clone()))?;
                run.own.wrote_raw(*page);
                Ok(Did::Done)
            }
            Intention::Prefetch(page) => {
                let domain = self.domain_of(page.volume);
                self.prefetch(index, domain, *page);
                Ok(Did::Done)
            }
        }
    }

    fn change_object(
        &mut self,
        index: usize,
        run: &mut Run,
        object: ObjectId,
        what: &What,
    ) -> Result<Did, Did> {
        let step = match what {
            What::Read => return Ok(Did::Then(Intention::ReadObject(object))),
            What::Put(value) => run.tx.update_object(object, value.clone()),
            What::Delete => run.tx.delete_object(object),
            What::Add(delta) => run.tx.add_to_object(object, ADD_OFFSET, *delta),
            What::Max(value) => run.tx.max_in_object(object, MAX_OFFSET, *value),
        };
        ready(step)?;
        let there = Seen::Slot(object.page, object.slot, Some(object.generation));
        self.saw(index, run, there);
        let effect = match what {
            What::Put(value) => Effect::Put(object, value.clone()),
            What::Add(delta) => Effect::Add(object, ADD_OFFSET, *delta),
            What::Max(value) => Effect::Max(object, MAX_OFFSET, *value),
            What::Read | What::Delete => Effect::Remove(object),
        };
        run.own.wrote(&effect);
        run.effects.push(effect);
        Ok(Did::Done)
    }

    /// The branch of history that a state of `stamp` belongs to, if it is what the client's node
    /// shows now, or showed when the operation began in whose middle it went on: a transaction may
    /// go on past a fork above all that it has seen.
    pub(super) fn branch_at_node(
        &self,
        index: usize,
        domain: DomainId,
        stamp: Stamp,
    ) -> Option<usize> {
        let read = self.processes_read(index);
        let current = read.through(domain) == Some(stamp);
        let now = read.history(domain).filter(|_| current);
        let history = now.or_else(|| self.history_before(domain, stamp))?;
        Some(self.oracle.truth(domain).branch_number(history))
    }

    /// Remembers what was seen, and compares it and all that was seen before with the oracle, at
    /// the one stamp at which the transaction says that all of it holds (P5).
    fn saw(&mut self, index: usize, run: &mut Run, seen: Seen) {
        let page = seen.page();
        let domain = self.domain_of(page.volume);
        let stamp = run.tx.stamp(domain).expect("a domain that was read is attached");
        if run.own.hides(&seen, &format_args!("client {index}")) {
            return;
        }
        self.check_clock(index, run.kind.age_max, domain, stamp);
        let now = self.branch_at_node(index, domain, stamp);
        let truth = self.oracle.truth(domain);
        let history = self.processes_read(index).history(domain).expect("attached");
        let reads = run.reads.entry(domain).or_insert_with(|| Reads {
            branch: now.unwrap_or_else(|| truth.branch_number(history)),
            checked: stamp,
            seen: Vec::new(),
        });
        if !run.kind.snapshot {
            reads.branch = now.unwrap_or(reads.branch);
        }
        let branch = truth.branch_at(reads.branch);
        let who = format_args!("client {index}");
        if run.kind.ahead {
            // Each is of the state that it is said to be of; all are of one at the end.
            if let Seen::Slot(page, slot, _) = &seen {
                let at = run.tx.read_as_of(*page, *slot).unwrap_or(stamp).max(stamp);
                let current = reads.branch + 1 == truth.branch_count();
                if at == stamp || current && at <= branch.durable() {
                    seen.assert_at(branch, at, "P3 (looked ahead)", &who);
                }
            }
            reads.seen.push(seen);
            return;
        }
        seen.assert_at(branch, stamp, "P5", &who);
        if reads.checked != stamp {
            for seen in &reads.seen {
                seen.assert_at(branch, stamp, "P5 (an earlier read)", &who);
            }
            reads.checked = stamp;
        }
        reads.seen.push(seen);
    }
}

/// What a client does whose node is the first, or another, where only the first changes what is there.
fn part(action: Action, first: bool, kind: Kind) -> Action {
    match action {
        Action::ReadAhead if first && kind.reads_only => Action::Read,
        Action::CreatePage | Action::ReadAhead if first => Action::Put,
        Action::Put | Action::Create | Action::WriteRaw if !first => Action::Read,
        action => action,
    }
}

fn draw_action(rng: &mut Rng, actions: &[(Action, u64)], kind: Kind) -> Action {
    let reads = |action: Action| {
        matches!(
            action,
            Action::Read
                | Action::ReadOld
                | Action::List
                | Action::ReadRaw
                | Action::Prefetch
                | Action::ReadAhead
        )
    };
    let allowed = actions.iter().filter(|(action, _)| reads(*action) || !kind.reads_only);
    let allowed: Vec<(Action, u64)> = allowed.copied().collect();
    // A plan that was shrunk may have none that only read.
    if allowed.is_empty() { Action::Read } else { weighted(rng, &allowed) }
}

/// A value: two numbers, filling, and the tag at its end.
fn draw_value(rng: &mut Rng, tag: u64, bytes_max: u64) -> Bytes {
    let length = 24 + rng.below(bytes_max.saturating_sub(23)) as usize;
    let mut value = vec![tag as u8; length];
    value[..16].fill(0);
    value[length - 8..].copy_from_slice(&tag_word(rng, tag));
    Bytes::from(value)
}

fn draw_raw_write(rng: &mut Rng, tag: u64) -> Op {
    let mut bytes = vec![tag as u8; 8 + rng.below(100) as usize];
    let end = bytes.len() - 8;
    bytes[end..].copy_from_slice(&tag_word(rng, tag));
    Op::WriteRaw { offset: rng.below(300) as u32, bytes: Bytes::from(bytes) }
}

/// The tag with noise above it: no two writes of a transaction are alike.
fn tag_word(rng: &mut Rng, tag: u64) -> [u8; 8] {
    (rng.below(1 << 30) << TAG_BITS | tag).to_le_bytes()
}
