//! A commit before it is executed: its outcome may be known, it may have to wait.

use super::boots::Known;
use super::load_queue::Claimant;
use super::look::{Look, Looked};
use super::pending::Passer;
use super::{Context, Domain};
use crate::commit::{
    Abort, COMMIT_BYTES_MAX, COMMIT_READS_MAX, COMMIT_WRITES_MAX, CommitRequest, OBJECT_BYTES_MAX,
    Outcome, Read, Write,
};
use crate::downlink::is_page;
use crate::id::{CommitId, DomainId, HistoryId, LinkId, PageId, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::RequestError;
use crate::time::Instant;

/// A commit that waits for pages or for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: CommitRequest,
    /// Memory it takes, about.
    pub(super) bytes: usize,
    /// Since when it waits.
    pub(super) since: Instant,
    /// Pages pinned for it: those it writes, if any of them had to be loaded.
    pub(super) pinned: Vec<PageId>,
    pub(super) pinned_bytes: usize,
    /// Pages not yet loaded.
    pub(super) missing: usize,
    /// How far its old reads were looked at.
    pub(super) look: Option<Look>,
    /// How often rights had changed when its own were looked at.
    pub(super) rights_seen: u64,
    /// It has waited for what was prepared.
    pub(super) barred: bool,
    /// Bytes of the pages that it pins, of one that waits in line for room for them.
    pub(super) pins: usize,
    /// It had its place among those that wait before it had to wait for pages.
    pub(super) taken_on: bool,
}

impl Waiting {
    /// Nothing is done for it yet.
    pub(super) fn new(
        request: CommitRequest,
        bytes: usize,
        since: Instant,
        rights_seen: u64,
    ) -> Self {
        let (pinned, pinned_bytes, missing, look) = (Vec::new(), 0, 0, None);
        let (barred, pins, taken_on) = (false, 0, false);
        Self {
            request,
            bytes,
            since,
            pinned,
            pinned_bytes,
            missing,
            look,
            rights_seen,
            barred,
            pins,
            taken_on,
        }
    }
}

impl Domain {
    /// Takes a commit from a link.
    pub(in crate::origin) fn commit(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        request: CommitRequest,
        elsewhere: Option<(DomainId, RequestError)>,
    ) {
        let id = request.id;
        if let Err(error) = self.check_across(&request) {
            return cx.links.defer(link, self.id, id, error, cx.out);
        }
        if self.is_anothers_part(&request) {
            let error = RequestError::Invalid("its id is that of a part that is prepared".into());
            return cx.links.defer(link, self.id, id, error, cx.out);
        }
        if self.pending.has(id) {
            crate::probe::probe("commit-repeated-under-way");
            // Repeated while it is under way: one answer for each link that asked.
            if !self.pending.join(id, Passer::new(cx, link)) {
                cx.links.forget_request(link);
            }
            return;
        }
        let known = match self.boots.look_up(id, request.confirmed, cx.now) {
            Known::Committed(_) if cx.config.faults.has(Fault::ForgetOutcome) => Known::New,
            Known::Committed(_) if cx.config.faults.has(Fault::KnownIsExpired) => Known::Expired,
            known => known,
        };
        if known != Known::New {
            return self.tell_known(cx, link, id, known);
        }
        // Of one that is asked about again the outcome is known, whatever became of its other domains since.
        if let Some((domain, error)) = elsewhere {
            let error = self.cannot_reach(id, domain, error);
            return match self.parts.has_prepared(id) {
                true => cx.links.defer(link, self.id, id, error, cx.out),
                false => cx.links.turn_away(link, self.id, id, error, cx.out),
            };
        }
        let passers = [Passer::new(cx, link)];
        // What is wrong with a part that is decided elsewhere is told there, when it is its turn.
        let checked = match request.is_beside(self.id) {
            true => Ok(()),
            false => self
                .check_request(cx, &request)
                .and_then(|()| self.check_rights(cx, &passers, &request)),
        };
        let [passer] = passers;
        if let Err(abort) = checked {
            // Its place does not depend on how many commits are gathered: while others wait for each place
            // that becomes free, it would find none (bug 146).
            match self.takes_request(cx) {
                Ok(()) => {
                    self.pending.add(id, passer);
                    match request.across {
                        Some(across) => self.refuse_transaction(cx, *across, abort),
                        None => self.gather_abort(id, abort),
                    }
                }
                Err(full) => cx.links.turn_away(link, self.id, id, full, cx.out),
            }
            return;
        }
        let bytes = request.memory_bytes();
        if self.has_room_to_wait(cx, &request, bytes).is_err() {
            self.leave_line();
        }
        if let Err(waiting) = self.has_room_to_wait(cx, &request, bytes) {
            return self.put_off(cx, link, id, format!("{waiting} commits wait"));
        }
        self.pending.add(id, passer);
        self.waiting_bytes += bytes;
        let waiting = Waiting::new(request, bytes, cx.now, self.rights_changes);
        match waiting.request.across {
            Some(_) => self.take_part(cx, waiting),
            None => self.prepare(cx, waiting),
        }
    }

    /// Tells what is known of a commit that comes again, or that there is no room to know more.
    fn tell_known(&self, cx: &mut Context<'_>, link: LinkId, id: CommitId, known: Known) {
        let ended = match known {
            Known::New => return,
            Known::Committed(stamp) => {
                crate::probe::probe("outcome-told-again");
                (Outcome::Committed(stamp), self.history_at(stamp))
            }
            Known::Aborted(abort) => {
                crate::probe::probe("refusal-told-again");
                let history = self.refused_in(&abort);
                (Outcome::Aborted(abort), history)
            }
            Known::Expired => {
                crate::probe::probe("commit-expired");
                (Outcome::Unknown, HistoryId::default())
            }
            Known::Full => {
                return self.put_off(cx, link, id, "too many outcomes are not confirmed".into());
            }
            Known::Leaving => return cx.links.defer(link, self.id, id, leaving(), cx.out),
        };
        cx.links.outcome(link, self.id, id, ended, cx.out);
    }

    /// Puts off a commit for which there is no room. How a part ends that is prepared will be known here: its node must
    /// not take it for one that waits for the others in vain.
    fn put_off(&self, cx: &mut Context<'_>, link: LinkId, id: CommitId, why: String) {
        match self.parts.has_prepared(id) {
            true => cx.links.defer(link, self.id, id, RequestError::Unavailable(why), cx.out),
            false => cx.links.turn_away(link, self.id, id, RequestError::Busy(why), cx.out),
        }
    }

    /// Whether one more commit may wait, of so many bytes: one always may. Error: how many do.
    fn has_room_to_wait(
        &self,
        cx: &Context<'_>,
        request: &CommitRequest,
        bytes: usize,
    ) -> Result<(), usize> {
        let waiting = self.ready.len() + self.line.len() + self.loading_commits.len();
        let full = match request.across {
            // Parts wait for each other: where one domain has room for one alone, and another for one of
            // another transaction, both would wait until they are put off.
            Some(_) => self.parts.is_full(cx.config, request.id.boot, bytes),
            None => {
                let others = self.waiting_bytes.saturating_sub(self.parts.parked_bytes());
                waiting + self.parts.barred() >= cx.config.waiting_commits_max
                    || others + bytes > cx.config.waiting_bytes_max
            }
        };
        let waiting = waiting + self.parts.waiting().count();
        match full && waiting > 0 {
            true => Err(waiting),
            false => Ok(()),
        }
    }

    /// Sees to it that the commit's pages are in memory and its old reads were looked at, then lets
    /// it wait for its turn.
    pub(super) fn prepare(&mut self, cx: &mut Context<'_>, mut waiting: Waiting) {
        let mut missing = written(&waiting.request);
        missing.retain(|page| !self.pages.is_loaded(*page));
        if !missing.is_empty() {
            self.wait_for(cx, waiting, missing);
            return;
        }
        match self.look(&mut waiting) {
            // Others wait for what has its turn.
            Looked::Holds(_) if waiting.request.across.is_some() => self.ready.push_front(waiting),
            Looked::Holds(_) => {
                waiting.taken_on = true;
                self.ready.push_back(waiting);
            }
            Looked::Missing(missing) => self.wait_for(cx, waiting, missing),
            Looked::Changed(read, stamp) => self.refuse_read(cx, waiting, read, stamp),
        }
    }

    /// Keeps all in memory that a commit writes, what is there too: its next look must find it.
    pub(super) fn pin_for(&mut self, waiting: &mut Waiting) {
        if waiting.pinned.is_empty() {
            waiting.pinned = written(&waiting.request);
            waiting.pinned_bytes = self.bytes_of(&waiting.pinned);
            self.pinned_bytes += waiting.pinned_bytes;
            for page in &waiting.pinned {
                self.pages.pin(*page);
            }
        }
    }

    fn wait_for(&mut self, cx: &mut Context<'_>, mut waiting: Waiting, missing: Vec<PageId>) {
        if self.has_to_line_up(cx, &mut waiting) {
            return self.line_up(cx, waiting);
        }
        self.pin_for(&mut waiting);
        waiting.taken_on = true;
        crate::probe::probe("commit-waits-for-pages");
        waiting.missing = missing.len();
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let claimant = Claimant::Commit(waiting.request.id.boot, ticket);
        self.loading_commits.insert(ticket, waiting);
        for page in missing {
            self.load(cx, page, claimant).commits.push(ticket);
        }
    }

    /// Bytes of the pages that are pinned for a commit, if any of them has to be loaded.
    pub(super) fn bytes_pinned_for(&self, request: &CommitRequest) -> usize {
        self.bytes_of(&written(request))
    }

    /// Commits that were taken on, and are not executed.
    pub(super) fn waiting_commits(&self) -> impl Iterator<Item = &Waiting> {
        self.ready.iter().chain(self.line.iter()).chain(self.loading_commits.values())
    }

    /// The most that pages take.
    fn bytes_of(&self, pages: &[PageId]) -> usize {
        let bytes = |page: &PageId| {
            self.volumes.get(&page.volume).map_or(0, |volume| volume.meta.page_bytes as usize)
        };
        pages.iter().map(bytes).sum()
    }

    /// A page that a commit waits for came, or cannot be had.
    pub(super) fn commit_loaded(
        &mut self,
        cx: &mut Context<'_>,
        ticket: u64,
        page: PageId,
        failed: Option<&RequestError>,
    ) {
        let Some(mut waiting) = self.loading_commits.remove(&ticket) else {
            return;
        };
        waiting.missing -= 1;
        if let Some(error) = failed {
            self.give_up(cx, waiting, error);
        } else if let Some((read, stamp)) = self.look_at_loaded(&waiting, page) {
            self.refuse_read(cx, waiting, read, stamp);
        } else if waiting.missing > 0 {
            self.loading_commits.insert(ticket, waiting);
        } else {
            self.prepare(cx, waiting);
        }
    }

    /// It waits no longer.
    pub(super) fn leave(&mut self, waiting: &Waiting) {
        for page in &waiting.pinned {
            self.pages.unpin(*page);
        }
        self.pinned_bytes -= waiting.pinned_bytes;
        if waiting.pinned_bytes > 0 {
            self.line.room_is_made();
        }
        self.waiting_bytes -= waiting.bytes;
    }

    /// It cannot be taken on now; if one of its pages is damaged, never: put off again and again, it
    /// would keep every later outcome of its node from being confirmed, and so from being forgotten,
    /// until no more of them have room.
    pub(super) fn give_up(&mut self, cx: &mut Context<'_>, waiting: Waiting, error: &RequestError) {
        self.leave(&waiting);
        let id = waiting.request.id;
        if waiting.request.across.is_some() {
            return self.give_up_part(cx, waiting, error);
        }
        match error {
            RequestError::Damaged { page, .. }
                if self.is_open() && self.takes_request(cx).is_ok() =>
            {
                self.gather_abort(id, Abort::Lost(*page));
            }
            RequestError::Deleted(_) if self.is_open() => {
                match self.check_volumes(&waiting.request) {
                    Err(abort) => self.gather_abort(id, abort),
                    Ok(()) => self.defer(cx, id, error),
                }
            }
            _ => self.defer(cx, id, error),
        }
    }

    fn refuse_read(&mut self, cx: &mut Context<'_>, waiting: Waiting, read: Read, stamp: Stamp) {
        self.leave(&waiting);
        if waiting.request.across.is_some() {
            return self.refuse_part(cx, waiting, Abort::Conflict(read));
        }
        let outcome = Outcome::Aborted(Abort::Conflict(read));
        self.withhold(cx, waiting.request.id, outcome, stamp);
    }

    /// Executes what waits, as far as the append being gathered has room and not too much is dirty.
    pub(super) fn execute_ready(&mut self, cx: &mut Context<'_>) {
        // Whom something prepared has barred goes on before the next one is prepared: else it would be barred
        // again, for as long as anybody waits for a turn.
        loop {
            self.load_for_next(cx);
            self.execute_in_turn(cx);
            match self.turn_has_come() {
                true => {
                    // Before the next part takes what the last one gave back.
                    self.load_for_next(cx);
                    self.take_turns(cx);
                }
                false if self.has_room_for_next(cx) => {}
                false => return,
            }
        }
    }

    fn execute_in_turn(&mut self, cx: &mut Context<'_>) {
        while self.has_room(cx)
            && let Some(mut waiting) = self.ready.pop_front()
        {
            // Its turn has come; what it may have to load from here on has a limit of its own. One that was barred
            // has had it before.
            self.taken_at = cx.now;
            if !waiting.barred {
                waiting.since = cx.now;
            }
            let writes = &waiting.request.writes;
            if waiting.pinned.is_empty() && writes.iter().any(|w| !self.pages.is_loaded(w.page)) {
                self.prepare(cx, waiting);
                continue;
            }
            let id = waiting.request.id;
            // What was decided is not judged again.
            let follows = self.parts.follows(id);
            if !follows && self.boots.name(id.boot).is_none() {
                // It made room for another one of its name (bug 143): whose it was is not known any more,
                // and what becomes of it would not be either.
                crate::probe::probe("boot-forgotten-meanwhile");
                self.leave(&waiting);
                match (&waiting.request.across, self.boots.is_leaving(id.boot)) {
                    (Some(_), _) => self.forget_part(cx, &waiting),
                    (None, true) => self.defer(cx, id, &leaving()),
                    (None, false) => self.answer(cx, id, &Outcome::Unknown),
                }
                continue;
            }
            if !follows && waiting.rights_seen != self.rights_changes {
                crate::probe::probe("commit-rights-changed-meanwhile");
                let passers = self.pending.passers(id);
                if let Err(abort) = self.check_rights(cx, passers, &waiting.request) {
                    self.leave(&waiting);
                    match waiting.request.across {
                        Some(_) => self.refuse_part(cx, waiting, abort),
                        None => self.gather_abort(id, abort),
                    }
                    continue;
                }
                waiting.rights_seen = self.rights_changes;
            }
            if self.parts.bars(&waiting.request, cx.config.faults) {
                waiting.barred = true;
                self.parts.bar(waiting);
                continue;
            }
            // The horizon may have passed its base while it waited.
            match self.look(&mut waiting) {
                Looked::Holds(base) => {
                    self.leave(&waiting);
                    match waiting.request.across {
                        Some(_) => self.execute_part(cx, waiting, base),
                        None => self.execute(cx, waiting.request, base),
                    }
                }
                Looked::Missing(missing) => self.wait_for(cx, waiting, missing),
                Looked::Changed(read, stamp) => self.refuse_read(cx, waiting, read, stamp),
            }
        }
    }

    fn has_room(&self, cx: &Context<'_>) -> bool {
        self.is_open()
            && self.has_room_for_answers(cx)
            && self.gathering.items.len() < cx.config.append_records_max
            && self.gathering.bytes < cx.config.append_bytes_max
            && self.gathering.pages.len() < cx.config.commit_pages_max
            && self.pages.dirty_bytes() < cx.config.dirty_bytes_max
    }

    /// Whether one more answer may be withheld. A commit that only reads, or conflicts, adds nothing to an
    /// append, but its answer waits for it.
    pub(super) fn has_room_for_answers(&self, cx: &Context<'_>) -> bool {
        self.pending.withheld() < cx.config.waiting_commits_max
    }

    /// The history that a stamp is of. That of the oldest epoch known, for those before.
    fn history_at(&self, stamp: Stamp) -> HistoryId {
        let epoch = self.epochs.iter().rev().find(|epoch| epoch.first <= stamp);
        epoch.or(self.epochs.first()).map_or_else(HistoryId::default, |epoch| epoch.history)
    }

    /// The history in which something is refused for its own: a relay that has not heard of it yet does not know the line
    /// (bug 220).
    fn refused_in(&self, abort: &Abort) -> HistoryId {
        if *abort == Abort::History { self.history() } else { HistoryId::default() }
    }

    /// Answers a commit on every link that waits for it.
    pub(super) fn answer(&mut self, cx: &mut Context<'_>, id: CommitId, outcome: &Outcome) {
        let history = match outcome {
            Outcome::Committed(stamp) => self.history_at(*stamp),
            Outcome::Aborted(abort) => self.refused_in(abort),
            Outcome::Unknown => HistoryId::default(),
        };
        for link in self.pending.take(id) {
            cx.links.outcome(link, self.id, id, (outcome.clone(), history), cx.out);
            if let (Outcome::Committed(stamp), Some(follower)) =
                (outcome, cx.links.follower(link, self.id))
                && follower.cursor < *stamp
            {
                follower.told(*stamp);
                self.pump(cx, link);
            }
        }
    }

    /// Says on every link that waits that the commit could not be taken on.
    pub(super) fn defer(&mut self, cx: &mut Context<'_>, id: CommitId, error: &RequestError) {
        for link in self.pending.take(id) {
            cx.links.defer(link, self.id, id, error.clone(), cx.out);
        }
    }

    /// What can be judged without looking at pages.
    pub(super) fn check_request(
        &self,
        cx: &Context<'_>,
        request: &CommitRequest,
    ) -> Result<(), Abort> {
        // First: what else is wrong may be so since the domain was restored, after it was done here and elsewhere.
        self.check_base(request)?;
        if request.reads.len() > COMMIT_READS_MAX {
            return Err(Abort::TooLarge("reads"));
        }
        if request.writes.len() > COMMIT_WRITES_MAX {
            return Err(Abort::TooLarge("writes"));
        }
        let mut bytes = 0;
        let mut pages = 0;
        let mut last = PageId::default();
        for Write { page, op } in &request.writes {
            self.check_page(*page)?;
            if op.payload_bytes() > OBJECT_BYTES_MAX {
                return Err(Abort::TooLarge("object"));
            }
            bytes += op.payload_bytes();
            pages += usize::from(*page != last);
            last = *page;
        }
        if bytes > COMMIT_BYTES_MAX {
            return Err(Abort::TooLarge("bytes"));
        }
        if pages > cx.config.commit_pages_max {
            return Err(Abort::TooLarge("pages"));
        }
        let mut volume: Option<VolumeId> = None;
        for read in &request.reads {
            if volume != Some(read.page.volume) {
                self.check_page(read.page)?;
                volume = Some(read.page.volume);
            }
        }
        Ok(())
    }

    fn check_page(&self, page: PageId) -> Result<(), Abort> {
        self.check_volume(page.volume)?;
        if !is_page(page) {
            return Err(Abort::BadPage(page));
        }
        Ok(())
    }

    /// A deletion counts as soon as it is gathered: the refusal is logged after it.
    fn check_volume(&self, volume: VolumeId) -> Result<(), Abort> {
        match self.volumes.get(&volume) {
            Some(entry) if entry.deleting.is_none() => Ok(()),
            None if !self.removal.knows(volume) => Err(Abort::NoVolume(volume)),
            _ if self.faults.has(Fault::CommitToDeleted) => Ok(()),
            Some(_) | None => Err(Abort::Deleted(volume)),
        }
    }

    /// What it reads or writes may have been deleted while it waited.
    pub(super) fn check_volumes(&self, request: &CommitRequest) -> Result<(), Abort> {
        let reads = request.reads.iter().map(|read| read.page.volume);
        let mut last = None;
        reads.chain(request.writes.iter().map(|write| write.page.volume)).try_for_each(|volume| {
            let new = last.replace(volume) != Some(volume);
            if new { self.check_volume(volume) } else { Ok(()) }
        })
    }

    /// The base must lie on this domain's line: in a history it has, before that history's end.
    fn check_base(&self, request: &CommitRequest) -> Result<(), Abort> {
        let place = self.epochs.iter().position(|epoch| epoch.history == request.history);
        let Some(place) = place else {
            crate::probe::probe("commit-of-another-history");
            return Err(Abort::History);
        };
        let ended = self.epochs.get(place + 1).is_some_and(|next| request.base >= next.first);
        if ended || request.base > self.durable {
            crate::probe::probe("commit-past-its-history");
            return Err(Abort::History);
        }
        Ok(())
    }
}

/// What is said of a commit whose process is being forgotten: the next time its outcome is not known any more.
pub(super) fn leaving() -> RequestError {
    RequestError::Unavailable("its process is being forgotten".into())
}

/// Pages that it writes, ascending.
fn written(request: &CommitRequest) -> Vec<PageId> {
    let mut pages: Vec<PageId> = request.writes.iter().map(|write| write.page).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}
