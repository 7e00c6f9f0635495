//! Executing a commit: validate, apply to tentative images, stamp, gather.

use super::batch::{Batch, Item, Withheld};
use super::volumes::{Grown, Growth, image_bytes};
use super::{Context, Domain};
use crate::across::Turn;
use crate::commit::{Abort, Aspect, CommitRequest, Op, Outcome, PageChange, Read, Target, Write};
use crate::id::{CommitId, HistoryId, PageId, PageNo, Stamp};
use crate::machine::{Fault, Faults};
use crate::message::RequestError;
use crate::page::{OpError, Page};
use crate::record::{Decided, LogRecord, Lsn};
use bytes::Bytes;

/// Why a commit is refused, and the stamp that this reveals.
pub(super) struct Refused {
    pub(super) abort: Abort,
    pub(super) reveals: Stamp,
}

/// Of a part of a transaction over several domains: whose turn it is, and the decision that its record says.
pub(super) type OfSeveral = (Turn, Option<Box<Decided>>);

/// What a write did.
struct Applied {
    touched: (Target, Aspect),
    /// Of the page's image, before and after.
    bytes: (usize, usize),
}

impl Domain {
    /// Executes a commit whose pages are in memory, and whose reads held at `base`.
    pub(super) fn execute(&mut self, cx: &mut Context<'_>, request: CommitRequest, base: Stamp) {
        let id = request.id;
        if let Err(abort) = self.check_volumes(&request) {
            crate::probe::probe("deleted-while-commit-waited");
            self.gather_abort(id, abort);
            return;
        }
        if let Err(refused) = self.validate(&request, base) {
            let unrecorded = cx.config.faults.has(Fault::TakenBackUnrecorded);
            if self.recent.is_for_good(refused.reveals) || unrecorded {
                self.withhold(cx, id, Outcome::Aborted(refused.abort), refused.reveals);
            } else {
                crate::probe::probe("conflict-with-what-was-taken-back");
                self.gather_abort(id, refused.abort);
            }
            return;
        }
        if request.writes.is_empty() {
            // Valid at the latest stamp, which may not be durable yet.
            self.withhold(cx, id, Outcome::Committed(self.stamped), self.stamped);
            return;
        }
        if let Err(abort) = self.gather_commit(cx, request, None) {
            // Logged after all that it reveals.
            self.gather_abort(id, abort);
        }
    }

    /// Applies a commit that holds, stamps it and gathers its record. Errors: a write cannot be done, and nothing
    /// is.
    pub(super) fn gather_commit(
        &mut self,
        cx: &Context<'_>,
        request: CommitRequest,
        part: Option<OfSeveral>,
    ) -> Result<(), Abort> {
        let id = request.id;
        let stamp = self.stamped.next();
        let lsn = self.next_lsn;
        let (turn, decided) = part.unzip();
        // It was counted when it was prepared.
        let counted = matches!(turn, Some(Turn::Part(..)));
        let (changes, grown) =
            self.apply_all(&request, (lsn, stamp), (counted, cx.config.faults))?;
        self.stamped = stamp;
        self.next_lsn = Lsn(lsn.0 + 1);
        self.recent.record(stamp, &changes);
        self.gathering.bytes +=
            request.writes.iter().map(|write| 32 + write.op.payload_bytes()).sum::<usize>();
        for growth in &grown {
            let volume = self.volumes.get_mut(&growth.volume).expect("its writes were applied");
            volume.taken = volume.taken.saturating_add_signed(growth.bytes);
        }
        let record = LogRecord::Commit {
            stamp,
            id,
            time: self.wall_at(cx.now),
            grown: grown.iter().map(|growth| growth.bytes).collect(),
            writes: request.writes,
            decided: decided.flatten(),
        };
        let item = Item::Commit { stamp, id, changes, grown, turn };
        self.gathering.push(lsn, record, item);
        self.pending.gathered(id);
        Ok(())
    }

    /// Refuses a commit for a reason that may pass: what is not there may be made, what is full may
    /// become empty. The outcome is kept like that of a commit (rule 15):
    ///
    /// 1. A node's commit waits at relay 1, whose line is cut. The node moves to relay 2.
    /// 2. The commit is refused over relay 2, since page 5 is not there: the node is told so, and
    ///    its application does something else.
    /// 3. Page 5 is made. Relay 1 has its line back, and sends the commit: it would succeed.
    ///
    /// A conflict needs no record: what changed after the base has changed for good. But one that is
    /// named since a full store took a commit back does: it may not be found again.
    pub(super) fn gather_abort(&mut self, id: CommitId, abort: Abort) {
        let record = LogRecord::Aborted { id, abort: abort.clone() };
        self.gather(record, Item::Aborted { id, abort });
        self.pending.gathered(id);
    }

    /// Answers once everything that the answer reveals is durable (rule 14). While the log hangs a child that
    /// comes back again and again would add as many such answers each time as it may ask at once.
    pub(super) fn withhold(
        &mut self,
        cx: &mut Context<'_>,
        id: CommitId,
        outcome: Outcome,
        reveals: Stamp,
    ) {
        if reveals <= self.durable || cx.config.faults.has(Fault::RevealEarly) {
            self.answer(cx, id, &outcome);
            return;
        }
        if !self.has_room_for_answers(cx) {
            crate::probe::probe("too-many-answers-withheld");
            let error = RequestError::Busy("too many answers wait for the log".into());
            self.defer(cx, id, &error);
            return;
        }
        if !self.pending.withhold(id) {
            return;
        }
        let last_flying = self.flying.as_ref().map(|(_, batch)| batch.last_stamp(self.durable));
        crate::probe::probe("answer-withheld");
        let withheld = Withheld { id, outcome };
        match (&mut self.flying, last_flying) {
            (Some((_, flying)), Some(last)) if reveals <= last => flying.withheld.push(withheld),
            _ => self.gathering.withheld.push(withheld),
        }
    }

    /// Thor's validation: nothing read changed after the base, tentative commits included.
    pub(super) fn validate(&self, request: &CommitRequest, base: Stamp) -> Result<(), Refused> {
        assert!(base >= self.recent.horizon(), "older reads are looked at before");
        for read in &request.reads {
            let (target, aspect) = match self.faults.has(Fault::ConflictByPage) {
                true => (Target::Page, Aspect::Value),
                false => (read.target, read.aspect),
            };
            let conflict = self.recent.conflict(read.page, target, aspect, base);
            if let Some(reveals) = conflict {
                return Err(Refused { abort: Abort::Conflict(*read), reveals });
            }
        }
        Ok(())
    }

    /// Applies a commit's writes in their order, all or none; says what they touched.
    /// The quotas of what was counted before are not looked at.
    pub(super) fn apply_all(
        &mut self,
        request: &CommitRequest,
        at: (Lsn, Stamp),
        (counted, faults): (bool, Faults),
    ) -> Result<(Vec<PageChange>, Vec<Growth>), Abort> {
        let writes = &request.writes;
        let told = request.numbers.iter();
        let mut histories =
            told.flat_map(|told| std::iter::repeat_n(told.history, told.pages as usize));
        let mut touched = Vec::with_capacity(writes.len());
        let mut grown = Grown::default();
        for (index, write) in writes.iter().enumerate() {
            let makes = matches!(write.op, Op::CreatePage(_));
            let history = if makes { histories.next() } else { None };
            match self.apply(write, history.unwrap_or_default(), at, faults) {
                Ok(Applied { touched: (target, aspect), bytes }) => {
                    touched.push((write.page, target, aspect));
                    grown.add(write, bytes);
                }
                Err(abort) => {
                    self.undo(&writes[..=index], at.1);
                    return Err(abort);
                }
            }
        }
        if let Err(abort) = self.check_quotas(&grown, writes)
            && !faults.has(Fault::QuotaUncounted)
            && !counted
        {
            self.undo(writes, at.1);
            return Err(abort);
        }
        Ok((page_changes(touched), grown.0))
    }

    /// Applies one write to the gathered image of its page.
    fn apply(
        &mut self,
        write: &Write,
        number_of: HistoryId,
        at: (Lsn, Stamp),
        faults: Faults,
    ) -> Result<Applied, Abort> {
        let page = write.page;
        let volume = self.volumes.get(&page.volume).ok_or(Abort::NoVolume(page.volume))?;
        let page_bytes = volume.meta.page_bytes;
        if faults.has(Fault::RefusedInVain) && at.1.0.is_multiple_of(8) {
            return Err(Abort::PageFull(page));
        }
        let entry = self.pages.get_mut(page).expect("loaded before a commit is executed");
        // The planted fault of rule 16: as if the number had been read in what is committed.
        let lost = faults.has(Fault::LostNumbers);
        let number_of = if lost { HistoryId::default() } else { number_of };
        // A look before an image is made: an abort costs no copy.
        let latest = entry.latest().expect("loaded before a commit is executed");
        match (&write.op, &latest.page) {
            (Op::CreatePage(_), Some(_)) => return Err(Abort::BadPage(page)),
            // Deleted for good (rule 18).
            (Op::CreatePage(_), None) if latest.version != Stamp::ZERO => {
                return Err(Abort::BadPage(page));
            }
            (Op::CreatePage(_), None) if !volume.gave(page.page, number_of) => {
                return Err(Abort::StaleNumber(page));
            }
            (Op::RestorePage { image }, there) => {
                check_restore(volume, page, image, (latest.version, there.as_ref()))?;
            }
            (Op::CreatePage(_), None) | (_, Some(_)) => {}
            (_, None) => return Err(Abort::BadPage(page)),
        }
        let (image, new) = entry.gather();
        let before = image_bytes(image.page.as_ref());
        let result = apply_op(image, write, page_bytes, faults);
        if let Ok(_touched) = result {
            image.version = at.1;
        }
        let after = image_bytes(image.page.as_ref());
        if new {
            self.gathering.pages.push((page, at));
        }
        let touched = result.map_err(|error| {
            let page = image.page.as_ref();
            forgotten(write, page).unwrap_or_else(|| refusal(write, error))
        })?;
        Ok(Applied { touched, bytes: (before, after) })
    }

    /// Takes back what a refused commit did to gathered images: they are made anew from the
    /// images before them and the commits gathered so far.
    pub(super) fn undo(&mut self, writes: &[Write], stamp: Stamp) {
        let mut pages: Vec<PageId> = writes.iter().map(|write| write.page).collect();
        pages.sort_unstable();
        pages.dedup();
        let Self { pages: table, gathering, volumes, .. } = self;
        pages.retain(|page| {
            let gathered = table.get(*page).and_then(|entry| entry.gathering.as_ref());
            // An image that this commit did not get to change is as it was, unless it was made
            // for this commit.
            gathered
                .is_some_and(|image| image.version == stamp || made_for(gathering, *page, stamp))
        });
        for page in &pages {
            table.get_mut(*page).expect("just seen").gathering = None;
        }
        gathering.pages.retain(|(page, first)| first.1 != stamp || !pages.contains(page));
        if pages.is_empty() {
            return;
        }
        crate::probe::probe("refused-commit-undone");
        for (_, record) in &gathering.records {
            match record {
                LogRecord::Commit { stamp, writes, .. } => {
                    for write in writes.iter().filter(|w| pages.binary_search(&w.page).is_ok()) {
                        let page_bytes = volumes[&write.page.volume].meta.page_bytes;
                        let entry = table.get_mut(write.page).expect("just seen");
                        let (image, _) = entry.gather();
                        apply_op(image, write, page_bytes, Faults::NONE)
                            .expect("it applied the first time");
                        image.version = *stamp;
                    }
                }
                LogRecord::Volume { .. }
                | LogRecord::Boot { .. }
                | LogRecord::Confirmed { .. }
                | LogRecord::Aborted { .. }
                | LogRecord::Ids { .. }
                | LogRecord::Settings { .. }
                | LogRecord::Deleted { .. }
                | LogRecord::Prepared { .. }
                | LogRecord::Released { .. }
                | LogRecord::Epoch { .. } => {}
            }
        }
    }
}

/// Whether the page's gathered image was made for the commit of this stamp: those come last.
fn made_for(gathering: &Batch, page: PageId, stamp: Stamp) -> bool {
    let mut last = gathering.pages.iter().rev().take_while(|(_, first)| first.1 == stamp);
    last.any(|(made, _)| *made == page)
}

/// Whether a page may be made as an image says.
fn check_restore(
    volume: &super::volumes::Volume,
    page: PageId,
    image: &Bytes,
    (version, there): (Stamp, Option<&Page>),
) -> Result<(), Abort> {
    let untouched = match there {
        Some(there) => page.page == PageNo(1) && *there == Page::empty(there.kind()),
        None => version == Stamp::ZERO,
    };
    if !untouched {
        return Err(Abort::BadPage(page));
    }
    if page.page >= volume.meta.next_page {
        return Err(Abort::StaleNumber(page));
    }
    let fits = image.len() <= volume.meta.page_bytes as usize;
    match Page::decode(page, image.clone()) {
        Ok(_) if fits => Ok(()),
        _ => Err(Abort::BadWrite(page)),
    }
}

/// Applies an op to an image, page creation and deletion included.
pub(super) fn apply_op(
    image: &mut super::pages::Image,
    Write { page: id, op }: &Write,
    page_bytes: u32,
    faults: Faults,
) -> Result<(Target, Aspect), OpError> {
    match (op, &mut image.page) {
        (Op::CreatePage(kind), None) => {
            image.page = Some(Page::empty(*kind));
            Ok((Target::Page, Aspect::Existence))
        }
        (Op::RestorePage { image: bytes }, there) => {
            let page = Page::decode(*id, bytes.clone()).map_err(|_| OpError::Malformed)?;
            // Not to keep the whole message that it came in.
            *there = Some(page.unpinned());
            Ok((Target::Page, Aspect::Existence))
        }
        (Op::DeletePage, Some(_)) => {
            image.page = None;
            Ok((Target::Page, Aspect::Existence))
        }
        (Op::CreatePage(_), Some(_)) | (_, None) => Err(OpError::Kind),
        (op, Some(page)) => {
            if faults.has(Fault::IgnoreGeneration) {
                return page.apply(&with_current_generation(op, page), page_bytes);
            }
            let touched = page.apply(op, page_bytes);
            if faults.has(Fault::GenerationsAnew) {
                page.forget_floor();
            }
            touched
        }
    }
}

/// The planted fault of rule 18: the op as if it named whatever object is there.
fn with_current_generation(op: &Op, page: &Page) -> Op {
    let mut op = op.clone();
    if let Op::Put { slot, generation, .. }
    | Op::Delete { slot, generation }
    | Op::Add { slot, generation, .. }
    | Op::Max { slot, generation, .. } = &mut op
        && let Some((current, _)) = page.get_ref(*slot)
    {
        *generation = current;
    }
    op
}

/// A slot to be filled is empty as it was seen, and its next generation is another one. A transaction that empties
/// slots may have the page forget generations, and whether it does depends on slots that it has not read: they may
/// have changed meanwhile. It is tried again, as if it had read those (bug 171).
fn forgotten(write: &Write, page: Option<&Page>) -> Option<Abort> {
    let Op::Put { slot, generation, .. } = &write.op else { return None };
    let next = page?.next_generation(*slot)?;
    if next == *generation {
        return None;
    }
    crate::probe::probe("generation-forgotten-meanwhile");
    let (page, target) = (write.page, Target::Slot(*slot));
    Some(Abort::Conflict(Read { page, target, aspect: Aspect::Existence }))
}

fn refusal(write: &Write, error: OpError) -> Abort {
    let page = write.page;
    match (error, &write.op) {
        (OpError::Full, _) => Abort::PageFull(page),
        (OpError::Kind, _) => Abort::BadPage(page),
        (
            OpError::Gone,
            Op::Put { slot, generation, .. }
            | Op::Delete { slot, generation }
            | Op::Add { slot, generation, .. }
            | Op::Max { slot, generation, .. },
        ) => Abort::Gone { page, slot: *slot, generation: *generation },
        (OpError::Gone | OpError::Malformed, _) => Abort::BadWrite(page),
    }
}

/// What a commit touched, per page; a target whose existence changed is named once.
fn page_changes(mut touched: Vec<(PageId, Target, Aspect)>) -> Vec<PageChange> {
    touched.sort_unstable();
    let pages = touched.chunk_by(|a, b| a.0 == b.0);
    let named = |page: &[(PageId, Target, Aspect)]| {
        let touched = page.iter().map(|&(_, target, aspect)| (target, aspect));
        PageChange::named(page[0].0, touched.collect())
    };
    pages.map(named).collect()
}
