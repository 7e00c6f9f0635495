//! A commit before it is executed: its outcome may be known, it may have to wait.

use super::boots::Known;
use super::{Context, Domain};
use crate::commit::{
    Abort, COMMIT_BYTES_MAX, COMMIT_READS_MAX, COMMIT_WRITES_MAX, CommitRequest, OBJECT_BYTES_MAX,
    Outcome, Write,
};
use crate::downlink::is_page;
use crate::id::{CommitId, LinkId, PageId, VolumeId};
use crate::machine::Fault;
use crate::message::RequestError;

/// A commit that waits for pages or for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: CommitRequest,
    /// Memory it takes, about.
    pub(super) bytes: usize,
    /// Pages pinned for it.
    pub(super) pinned: Vec<PageId>,
    /// Pages not yet loaded.
    pub(super) missing: usize,
}

impl Domain {
    /// Takes a commit from a link.
    pub(in crate::origin) fn commit(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        request: CommitRequest,
    ) {
        let id = request.id;
        if let Some(links) = self.pending.get_mut(&id) {
            // Repeated while it is under way: one answer for each link that asked.
            if links.contains(&link) {
                cx.links.forget_request(link);
            } else {
                links.push(link);
            }
            return;
        }
        let known = match self.boots.look_up(id, request.confirmed, cx.now) {
            Known::Committed(_) if cx.config.faults.has(Fault::ForgetOutcome) => Known::New,
            known => known,
        };
        match known {
            Known::New => {}
            Known::Committed(stamp) => {
                cx.links.outcome(link, self.id, id, Outcome::Committed(stamp), cx.out);
                return;
            }
            Known::Expired => {
                cx.links.outcome(link, self.id, id, Outcome::Unknown, cx.out);
                return;
            }
            Known::Full => {
                let error = RequestError::Busy("too many outcomes are not confirmed".into());
                cx.links.defer(link, self.id, id, error, cx.out);
                return;
            }
        }
        if let Err(abort) = self.check_request(cx, &request) {
            cx.links.outcome(link, self.id, id, Outcome::Aborted(abort), cx.out);
            return;
        }
        let bytes = request_bytes(&request);
        let waiting = self.ready.len() + self.loading_commits.len();
        let full = waiting >= cx.config.waiting_commits_max
            || self.waiting_bytes + bytes > cx.config.waiting_bytes_max;
        if full && waiting > 0 {
            let error = RequestError::Busy(format!("{waiting} commits wait"));
            cx.links.defer(link, self.id, id, error, cx.out);
            return;
        }
        self.pending.insert(id, vec![link]);
        self.waiting_bytes += bytes;
        let waiting = Waiting { request, bytes, pinned: Vec::new(), missing: 0 };
        self.prepare(cx, waiting);
    }

    /// Sees to it that the commit's pages are in memory, then lets it wait for its turn.
    pub(super) fn prepare(&mut self, cx: &mut Context<'_>, mut waiting: Waiting) {
        let mut missing = self.needed(&waiting.request);
        missing.retain(|page| !self.pages.is_loaded(*page));
        if missing.is_empty() {
            self.ready.push_back(waiting);
            return;
        }
        // All are pinned, those in memory too: the next look must find them there.
        for page in self.needed(&waiting.request) {
            if !waiting.pinned.contains(&page) {
                self.pages.pin(page);
                waiting.pinned.push(page);
            }
        }
        waiting.missing = missing.len();
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.loading_commits.insert(ticket, waiting);
        for page in missing {
            self.load(cx, page).commits.push(ticket);
        }
    }

    /// Pages that must be in memory to execute it, ascending: those written, and those read when
    /// the table of recent writes does not reach back to its base.
    fn needed(&self, request: &CommitRequest) -> Vec<PageId> {
        let mut pages: Vec<PageId> = request.writes.iter().map(|write| write.page).collect();
        if request.base < self.recent.horizon() {
            pages.extend(request.reads.iter().map(|read| read.page));
        }
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// A page that a commit waits for came, or cannot be had.
    pub(super) fn commit_loaded(
        &mut self,
        cx: &mut Context<'_>,
        ticket: u64,
        failed: Option<&RequestError>,
    ) {
        let Some(waiting) = self.loading_commits.get_mut(&ticket) else {
            return;
        };
        waiting.missing -= 1;
        if failed.is_none() && waiting.missing > 0 {
            return;
        }
        let waiting = self.loading_commits.remove(&ticket).expect("looked up above");
        if let Some(error) = failed {
            self.unpin(&waiting);
            self.waiting_bytes -= waiting.bytes;
            self.defer(cx, waiting.request.id, error);
        } else {
            self.ready.push_back(waiting);
        }
    }

    pub(super) fn unpin(&mut self, waiting: &Waiting) {
        for page in &waiting.pinned {
            self.pages.unpin(*page);
        }
    }

    /// Executes what waits, as far as the append being gathered has room and not too much is dirty.
    pub(super) fn execute_ready(&mut self, cx: &mut Context<'_>) {
        while self.has_room(cx)
            && let Some(waiting) = self.ready.pop_front()
        {
            // The horizon may have passed its base while it waited.
            let needed = self.needed(&waiting.request);
            if needed.iter().any(|page| !self.pages.is_loaded(*page)) {
                self.prepare(cx, waiting);
                continue;
            }
            self.unpin(&waiting);
            self.waiting_bytes -= waiting.bytes;
            self.execute(cx, waiting.request);
        }
    }

    fn has_room(&self, cx: &Context<'_>) -> bool {
        self.is_open()
            && self.gathering.items.len() < cx.config.append_records_max
            && self.gathering.bytes < cx.config.append_bytes_max
            && self.gathering.pages.len() < cx.config.commit_pages_max
            && self.pages.dirty_bytes() < cx.config.dirty_bytes_max
    }

    /// Answers a commit on every link that waits for it.
    pub(super) fn answer(&mut self, cx: &mut Context<'_>, id: CommitId, outcome: &Outcome) {
        for link in self.pending.remove(&id).unwrap_or_default() {
            cx.links.outcome(link, self.id, id, outcome.clone(), cx.out);
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
        for link in self.pending.remove(&id).unwrap_or_default() {
            cx.links.defer(link, self.id, id, error.clone(), cx.out);
        }
    }

    /// What can be judged without looking at pages.
    fn check_request(&self, cx: &Context<'_>, request: &CommitRequest) -> Result<(), Abort> {
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
        self.check_base(request)
    }

    fn check_page(&self, page: PageId) -> Result<(), Abort> {
        if !self.volumes.contains_key(&page.volume) {
            return Err(Abort::NoVolume(page.volume));
        }
        if !is_page(page) {
            return Err(Abort::BadPage(page));
        }
        Ok(())
    }

    /// The base must lie on this domain's line: in a history it has, before that history's end.
    fn check_base(&self, request: &CommitRequest) -> Result<(), Abort> {
        let place = self.epochs.iter().position(|epoch| epoch.history == request.history);
        let Some(place) = place else {
            return Err(Abort::History);
        };
        let ended = self.epochs.get(place + 1).is_some_and(|next| request.base >= next.first);
        if ended || request.base > self.durable {
            return Err(Abort::History);
        }
        Ok(())
    }
}

fn request_bytes(request: &CommitRequest) -> usize {
    let payload: usize = request.writes.iter().map(|write| write.op.payload_bytes()).sum();
    size_of::<CommitRequest>()
        + size_of_val(&request.reads[..])
        + size_of_val(&request.writes[..])
        + payload
}
