//! What comes from a parent.

use super::domain::{RelayDomain, by_clock};
use super::io::{RelayNotice, RelayOutput};
use super::pending::{Pending, What, renumbered};
use super::resumes::{Part, raise};
use super::{DeniedCommit, Relay};
use crate::commit::{Abort, Change, Outcome};
use crate::downlink::{Verdict, judge};
use crate::id::{CommitId, DomainId, HistoryId, LinkId, PageId, RequestId, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::{
    CloseReason, DOMAINS_MAX, DomainInfo, Echo, Epoch, Lane, LinkLimits, Message, PageAnswer,
    PageBody, RequestError, Versions, is_on_line,
};
use crate::rights::{Effective, Right};
use crate::time::{Duration, Instant};
use std::collections::BTreeSet;

/// The shortest time between two beats, whatever lease the parent tells.
const BEAT_MIN: Duration = Duration::from_millis(10);

/// Most volumes of a domain of which a parent may tell rights: as many as an origin has.
const VOLUMES_TOLD_MAX: usize = 1 << 17;

/// A parent is not taken, and the operator told why.
fn not_taken(why: String, out: &mut Vec<RelayOutput>) -> CloseReason {
    let reason = CloseReason::Forbidden(why);
    out.push(RelayOutput::Notice(RelayNotice::Refused { reason: reason.clone() }));
    reason
}

/// What the parent did that the protocol does not allow.
pub(super) fn violation<T>(what: &str) -> Result<T, CloseReason> {
    Err(CloseReason::Protocol(what.into()))
}

impl Relay {
    pub(super) fn hear_parent(
        &mut self,
        now: Instant,
        parent: usize,
        message: Message,
        bytes: u32,
        out: &mut Vec<RelayOutput>,
    ) {
        let lane = message.lane();
        if let Some(up) = &mut self.uplinks[parent].up {
            up.heard = now;
        }
        match self.parent_says(now, parent, message, out) {
            Ok(()) => self.handled(parent, lane, bytes, out),
            Err(reason) => self.refuse_parent(now, parent, reason, out),
        }
    }

    /// Gives back credit. All is handled at once: a child without credits is not waited for (P7).
    fn handled(&mut self, parent: usize, lane: Lane, bytes: u32, out: &mut Vec<RelayOutput>) {
        let Some(up) = &mut self.uplinks[parent].up else {
            return;
        };
        let Some(limits) = up.limits else {
            return;
        };
        let (handled, window) = match lane {
            Lane::Control => return,
            Lane::Stream => (&mut up.stream_handled, limits.stream_window_bytes),
            Lane::Bulk => (&mut up.bulk_handled, limits.bulk_window_bytes),
        };
        *handled = handled.saturating_add(bytes);
        if *handled >= window / 8 {
            let bytes = std::mem::take(handled);
            self.send_up(parent, Message::Credit { lane, bytes }, out);
        }
    }

    fn parent_says(
        &mut self,
        now: Instant,
        parent: usize,
        message: Message,
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        if self.is_of_another(parent, &message) {
            return violation("a domain that is had from another parent");
        }
        match message {
            Message::Goodbye { reason } => {
                let link = self.uplinks[parent].up.as_ref().map(|up| up.link);
                self.lost(now, parent, Some(reason), out);
                if let Some(link) = link {
                    let reason = CloseReason::Shutdown;
                    out.push(RelayOutput::Link(crate::machine::LinkOutput::Close { link, reason }));
                }
            }
            // It has been noted that something came.
            Message::KeepAlive => {}
            Message::Welcome { version, limits, domains, .. } => {
                let child = self.config.downlink.versions;
                if !child.holds(version) {
                    let parent = Versions { oldest: version, newest: version };
                    return Err(CloseReason::Version { parent, child });
                }
                return self.welcomed(now, parent, (version, limits), domains, out);
            }
            Message::Registered { domain, boot } => {
                self.registered(domain, boot, out);
            }
            Message::Unregistered { domain, boot, why } => {
                self.unregistered(now, (domain, boot), why, out);
            }
            Message::Committed { domain, id, outcome, history } => {
                self.commit_ended(now, domain, id, Ok((outcome, history)), out);
            }
            Message::CommitDeferred { domain, id, error, passed } => {
                self.commit_ended(now, domain, id, Err((error, passed)), out);
            }
            Message::Ids { request, .. }
            | Message::Volume { request, .. }
            | Message::VolumeDeleted { request, .. }
            | Message::Volumes { request, .. }
            | Message::Rights { request, .. }
            | Message::Copied { request, .. } => {
                self.fits(parent, request, |what| what.is_answered_by(&message))?;
                return self.volumes_told(now, request, message, out);
            }
            Message::Failed { request, pages, error } if pages.is_empty() => {
                self.fits(parent, request, |_| true)?;
                self.failed(now, request, error, out);
            }
            Message::Failed { request, pages, error } => {
                self.fits(parent, request, |what| matches!(what, What::Fetch { .. }))?;
                self.pages_failed(now, (request, pages), error, out);
            }
            Message::Resumed { request, domain, epochs, answer, stale, through, time, done } => {
                let Some(entry) = self.domains.get_mut(&domain) else {
                    return violation("a domain that was not asked for");
                };
                let on_line = is_on_line(&entry.epochs, entry.through(), &epochs, through);
                entry.wall = time;
                if done {
                    // With the last part: told before, children that a fork leaves behind would take
                    // the new history for their own and keep the copies of the lost branch (rule 16).
                    self.line_told(now, domain, epochs, out);
                }
                let part = Part { domain, answer, stale, through, done, on_line };
                return self.resumed(now, request, part, out);
            }
            Message::Advance { domain, from, through, time, changes, stale, echo } => {
                let Some(entry) = self.domains.get_mut(&domain).filter(|d| d.following) else {
                    return violation("an advance before the stream began");
                };
                entry.wall = time;
                self.advanced(domain, (from, through), changes, stale, out)?;
                self.told(now, domain, echo, out);
            }
            Message::History { domain, epochs } => {
                if self.domains.contains_key(&domain) {
                    self.line_told(now, domain, epochs, out);
                    self.pump_all(now, domain, out);
                }
            }
            Message::VolumeRights { domain, volume, rights } => {
                self.rights_told(now, (domain, volume), rights, out)?;
            }
            Message::Pages { request, domain, pages } => {
                self.fits_pages(parent, (request, domain), &pages)?;
                self.pages(now, request, domain, pages, out);
            }
            _ => return violation("a message that only a child sends"),
        }
        Ok(())
    }

    /// Whether a parent speaks of a domain that is had from another one.
    fn is_of_another(&self, parent: usize, message: &Message) -> bool {
        let of = match message {
            Message::Registered { domain, .. } | Message::Unregistered { domain, .. } => {
                Some(*domain)
            }
            other => other.only_from_its_parent(),
        };
        of.and_then(|domain| self.parent_of(domain)).is_some_and(|of| of != parent)
    }

    /// An answer that is the asker's alone.
    pub(super) fn pass_down(
        &mut self,
        now: Instant,
        request: RequestId,
        message: Message,
        out: &mut Vec<RelayOutput>,
    ) {
        let asker = self.answered(request).and_then(|pending| pending.asker);
        let Some((link, asked)) = asker else { return };
        let volume = match &message {
            Message::Volume { info, .. } => Some(info.domain),
            _ => None,
        };
        self.links.pass_reply(link, (renumbered(message, asked), request), out);
        // What was heard of its rights here may be another state's.
        if let Some(domain) = volume {
            self.pump(now, domain, link, out);
        }
    }

    /// A domain that is followed goes on upon the line of these histories.
    fn line_told(
        &mut self,
        now: Instant,
        domain: DomainId,
        epochs: Vec<Epoch>,
        out: &mut Vec<RelayOutput>,
    ) {
        let entry = self.domains.get_mut(&domain).expect("the caller has looked");
        let lost = entry.loses_ahead(&epochs);
        entry.set_epochs(epochs);
        if lost {
            self.part_from_children(now, out);
        }
    }

    /// Pages that came ahead of the stream may be of a branch that is lost, and wait at the children, or on
    /// the way to them, for stamps that mean something else now (bug 93). Nothing tells the two apart, and
    /// with its link a child lets go of them.
    fn part_from_children(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        crate::probe::probe("relay-passed-what-is-lost");
        let children: Vec<LinkId> = self.links.welcomed().map(|(link, _)| link).collect();
        for link in children {
            let reason = CloseReason::OutOfService("pages of a lost branch were passed on".into());
            self.close_child(now, link, reason, out);
        }
    }

    /// Who may do what with a volume from here on.
    fn rights_told(
        &mut self,
        now: Instant,
        (domain, volume): (DomainId, VolumeId),
        rights: Effective,
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get_mut(&domain) else {
            return violation("rights in a domain that was not asked for");
        };
        let told = &mut entry.rights_told;
        if told.len() >= VOLUMES_TOLD_MAX && !told.contains(&volume) {
            return violation("rights of too many volumes");
        }
        let parent = entry.parent;
        let known = self.links.domain_of_restricted(volume).and_then(|of| self.parent_of(of));
        if known.is_some_and(|of| of != parent) || self.is_had_elsewhere(volume, parent) {
            // Not believed, and nobody's fault: whoever makes a volume chooses its id.
            return Ok(());
        }
        self.had_from(volume, parent);
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        // What everybody may do everything with is as if it had not been told.
        if rights.least() == Right::Admin {
            entry.rights_told.remove(&volume);
        } else {
            entry.rights_told.insert(volume);
        }
        let following = entry.following;
        let next = RequestId(self.last_request + 1);
        if self.links.is_regained(volume, &rights) {
            self.regains(domain, &[volume]);
        }
        self.links.set_rights((domain, volume), &volume.to_string(), rights, next);
        if following {
            // Before the stream one list comes after another: they are passed on when it begins.
            self.pump_all(now, domain, out);
        }
        Ok(())
    }

    /// This relay was not told of what changed of volumes that it might not read, and may now: its children, whose streams
    /// may be behind its own, are told that all of them has (bug 226), and nobody is pointed to neighbours for it.
    pub(super) fn regains(&mut self, domain: DomainId, volumes: &[VolumeId]) {
        let Some(entry) = self.domains.get_mut(&domain).filter(|_| !volumes.is_empty()) else {
            return;
        };
        crate::probe::probe("relay-regains");
        let pages: Vec<PageId> = volumes.iter().copied().map(PageId::of_volume).collect();
        self.links.look_again(domain, volumes);
        entry.ring.name_again(pages.clone());
        self.directory_stale(domain, &pages);
    }

    /// Follows every domain of a parent.
    fn welcomed(
        &mut self,
        now: Instant,
        parent: usize,
        (version, limits): (u32, LinkLimits),
        domains: Vec<DomainInfo>,
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        let another =
            |info: &DomainInfo| self.parent_of(info.domain).is_some_and(|of| of != parent);
        if domains.iter().any(another) {
            let why = "two of this relay's parents have the same domains: they lead to one origin, which takes a relay for \
                       one that moves between them";
            return Err(not_taken(why.into(), out));
        }
        let new = domains.iter().filter(|info| !self.domains.contains_key(&info.domain)).count();
        if self.domains.len() + new > DOMAINS_MAX {
            let why =
                format!("its parents have more than {DOMAINS_MAX} domains, which no child takes");
            return Err(not_taken(why, out));
        }
        let uplink = &mut self.uplinks[parent];
        let Some(up) = uplink.up.as_mut().filter(|up| up.limits.is_none()) else {
            return violation("a second Welcome");
        };
        (up.limits, up.version) = (Some(limits), version);
        // Of several it never rises again: else all children would be parted with each time that one falls.
        let before = uplink.lease.filter(|_| self.config.parents > 1);
        uplink.lease = Some(before.unwrap_or(limits.lease).min(limits.lease));
        self.inherit_lease(now, out);
        let others = std::mem::take(&mut self.uplinks[parent].waiting);
        for info in domains {
            let new = |info| RelayDomain::new(&self.config, parent, info);
            self.domains.entry(info.domain).or_insert_with(|| new(info));
        }
        // A domain that the parent does not list is out of service there, and will be told of on
        // this link when it is back: asked for all the same, as a node does.
        let known: Vec<DomainId> = self.of_parent(parent).map(|entry| entry.id).collect();
        for domain in known {
            let request = self.enqueue(Pending::own(parent, domain, now));
            let entry = self.domains.get_mut(&domain).expect("just listed");
            entry.resume = Some(request);
            // Half of what a child's handshake may take.
            let until = now.after(self.config.downlink.hello_max / 2);
            entry.awaited_until = (!entry.begun).then_some(until);
        }
        self.uplinks[parent].waiting.extend(others);
        self.register_missing(now, parent, out);
        Ok(())
    }

    /// Ages count from the origin's state, through however many relays, and so its lease holds for
    /// all below, the shortest where there are several. One that became shorter must not be outlived by what children
    /// were told of it.
    fn inherit_lease(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        let lease = self.uplinks.iter().filter_map(|uplink| uplink.lease).min();
        if !lease.is_some_and(|lease| self.links.set_lease(lease)) {
            return;
        }
        let children: Vec<LinkId> = self.links.welcomed().map(|(link, _)| link).collect();
        for link in children {
            let reason = CloseReason::OutOfService("the lease became shorter".into());
            self.close_child(now, link, reason, out);
        }
    }

    /// A request was answered: it counts no longer.
    pub(super) fn answered(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.pending.remove(&request)?;
        self.deadlines.remove(&(pending.deadline, request));
        if pending.sent {
            self.count_answers(pending.parent, pending.what.count());
        }
        self.drop_pending(&pending);
        Some(pending)
    }

    /// Whether an answer is one to what was asked under this number: taken for another's it would
    /// be counted twice. A request that is over may be answered still.
    pub(super) fn fits(
        &self,
        parent: usize,
        request: RequestId,
        fits: impl Fn(&What) -> bool,
    ) -> Result<(), CloseReason> {
        match self.pending.get(&request) {
            Some(pending) if pending.parent != parent => {
                violation("an answer to what another parent was asked")
            }
            Some(pending) if !pending.sent => violation("an answer to what was not asked yet"),
            Some(pending) if !fits(&pending.what) => violation("an answer to another question"),
            Some(_) | None => Ok(()),
        }
    }

    fn count_answers(&mut self, parent: usize, count: u32) {
        if let Some(up) = &mut self.uplinks[parent].up {
            up.unanswered = up.unanswered.saturating_sub(count);
        }
    }

    fn advanced(
        &mut self,
        domain: DomainId,
        span: (Stamp, Stamp),
        changes: Vec<Change>,
        stale: Vec<PageId>,
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        // Of a change that breaks the protocol it is forgotten in vain.
        self.directory_changed(domain, &changes);
        self.directory_stale(domain, &stale);
        let vain = self.named_in_vain(domain, &changes);
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        entry.named(&changes);
        raise(entry, span, changes, stale)?;
        entry.updates.reached(span.1);
        self.evicted(domain, vain, out);
        Ok(())
    }

    /// Pages of which the parent tells, and which nobody below holds nor is being brought. One was asked for
    /// that was not there yet, and who asked has gone: no notice was sent then, since a commit that makes
    /// the page could be overtaken. Now that it is there a notice can do no harm (bug 145).
    fn named_in_vain(&self, domain: DomainId, changes: &[Change]) -> Vec<PageId> {
        let fetching = &self.domains[&domain].fetching;
        let named = changes.iter().flat_map(|change| &change.pages).map(|change| change.page);
        let vain = named.filter(|page| {
            !page.is_volume() && !fetching.contains_key(page) && !self.is_held_below(domain, *page)
        });
        let vain: Vec<PageId> = vain.collect();
        if !vain.is_empty() {
            crate::probe::probe("relay-named-in-vain");
        }
        vain
    }

    /// What the stream brought is passed on.
    fn told(
        &mut self,
        now: Instant,
        domain: DomainId,
        echo: Option<Echo>,
        out: &mut Vec<RelayOutput>,
    ) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        if let Some(echo) = echo {
            let confirmed = entry.confirmed(echo);
            let announced = entry.announced.take_if(|announced| *announced < echo.sent);
            let (age, through) = (entry.age(now), entry.through());
            for link in self.links.following(domain) {
                let follower = self.links.follower(link, domain).expect("listed above");
                if let (Some(sent), Some(age)) = (follower.early_beat.take(), age) {
                    follower.beat(by_clock(sent, age), through);
                }
            }
            if announced.is_some() {
                self.narrow(now, domain, out);
            }
            if let Some(confirmed) = confirmed.filter(|_| !echo.by_clock) {
                self.answer_refreshes(now, domain, confirmed, out);
            }
        }
        self.pump_all(now, domain, out);
    }

    /// Whether pages are an answer to what was asked for, and such as parents send.
    fn fits_pages(
        &self,
        parent: usize,
        (request, domain): (RequestId, DomainId),
        pages: &[PageAnswer],
    ) -> Result<(), CloseReason> {
        let fits = |what: &What| matches!(what, What::Fetch { domain: of, .. } if *of == domain);
        self.fits(parent, request, fits)?;
        match pages.iter().any(|answer| matches!(answer.body, PageBody::Holed(..))) {
            true => violation("a page with holes"),
            false => Ok(()),
        }
    }

    /// Pages go to the child that asked: it has the credit for them.
    fn pages(
        &mut self,
        now: Instant,
        request: RequestId,
        domain: DomainId,
        answers: Vec<PageAnswer>,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(pending) = self.pending.get_mut(&request) else {
            return;
        };
        let (asker, parent) = (pending.asker, pending.parent);
        let What::Fetch { pages: asked, .. } = &mut pending.what else {
            return;
        };
        let mut known = Vec::new();
        let mut done = Vec::new();
        for answer in answers {
            // An answer for a page that was not asked is of no use to anybody.
            if let Some(place) = asked.iter().position(|(ask, _)| ask.page == answer.page) {
                done.push(asked.swap_remove(place));
                known.push(answer);
            }
        }
        let over = asked.is_empty();
        self.count_answers(parent, u32::try_from(done.len()).expect("at most a message's"));
        let mut named = BTreeSet::new();
        for (ask, reserved) in done {
            if let Some(entry) = self.domains.get_mut(&domain)
                && entry.fetch_ends(ask.page)
            {
                named.insert(ask.page);
            }
            self.unreserve(asker.map(|(link, _)| link), reserved);
        }
        if over {
            self.answered(request);
        }
        for answer in &known {
            if let Some(bytes) = answer.body.image() {
                self.had_from(answer.page.volume, parent);
                let bytes = i64::try_from(bytes.len()).expect("a page fits");
                let most = self.page_bytes.entry(answer.page.volume).or_default();
                *most = bytes.max(*most);
            }
            if let Some(entry) = self.domains.get_mut(&domain) {
                entry.ahead = entry.ahead.max(answer.as_of);
                entry.passed = entry.passed.max(answer.as_of);
            }
        }
        let absent = known.iter().filter(|answer| matches!(answer.body, PageBody::Absent));
        let absent: Vec<PageId> = absent.map(|answer| answer.page).collect();
        if let Some((link, asked)) = asker
            && !known.is_empty()
        {
            if self.config.faults.has(Fault::RegisterLate)
                && let Some(follower) = self.links.follower(link, domain)
            {
                known.iter().for_each(|answer| follower.register(answer.page));
            }
            // It may wait until its stream is there, as at the origin.
            let newest = known.iter().map(|answer| answer.version).max().unwrap_or_default();
            if let Some(follower) = self.links.follower(link, domain) {
                follower.told(newest);
            }
            self.directory_evicted(link, domain, &absent);
            self.links.answer_pages(link, asked, domain, known, out);
            self.pump(now, domain, link, out);
            self.serve(now, link, out);
        } else if asker.is_none() {
            // A notice that came meanwhile waited for this answer. Of a page that is not there it is not
            // sent: a commit that makes it could overtake it.
            let there = known.iter().filter(|answer| !matches!(answer.body, PageBody::Absent));
            self.evicted(domain, there.map(|answer| answer.page).collect(), out);
        }
        // But one that was made before the answer came is there, and who asked may have let go of it for that,
        // while it was on its way here (bug 159).
        let made: Vec<PageId> = absent.into_iter().filter(|page| named.contains(page)).collect();
        if !made.is_empty() {
            crate::probe::probe("absence-outdated");
            self.evicted(domain, made, out);
        }
    }

    /// Pages asked for cannot be had.
    fn pages_failed(
        &mut self,
        now: Instant,
        (request, mut pages): (RequestId, Vec<PageId>),
        error: RequestError,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(pending) = self.pending.get_mut(&request) else {
            return;
        };
        let (asker, parent) = (pending.asker, pending.parent);
        let What::Fetch { domain, pages: asked, .. } = &mut pending.what else {
            return;
        };
        let domain = *domain;
        let failed: BTreeSet<PageId> = pages.drain(..).collect();
        let mut reserved = 0;
        asked.retain(|(ask, bytes)| {
            let fails = failed.contains(&ask.page);
            if fails {
                pages.push(ask.page);
                reserved += *bytes;
            }
            !fails
        });
        if pages.is_empty() {
            return;
        }
        let over = asked.is_empty();
        self.count_answers(parent, u32::try_from(pages.len()).expect("a message names few"));
        let forgets = self.config.faults.has(Fault::FetchingKept);
        if let Some(entry) = self.domains.get_mut(&domain).filter(|_| !forgets) {
            for page in &pages {
                entry.fetch_ends(*page);
            }
        }
        self.unreserve(asker.map(|(link, _)| link), reserved);
        if over {
            self.answered(request);
        }
        if let Some((link, asked)) = asker {
            self.directory_evicted(link, domain, &pages);
            self.links.fail_pages(link, (asked, pages), error, out);
            self.serve(now, link, out);
        }
    }

    /// A request failed at the parent.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        request: RequestId,
        error: RequestError,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(mut pending) = self.answered(request) else {
            return;
        };
        if pending.asker.is_some() && self.seeks_elsewhere(now, &mut pending, Some(&error)) {
            self.enqueue(pending);
            return;
        }
        if let What::Own { domain, .. } = pending.what {
            self.own_failed(domain, out);
            return;
        }
        let Some((link, asked)) = pending.asker else {
            return;
        };
        match pending.what {
            What::Fetch { pages, .. } => {
                let pages = pages.iter().map(|(ask, _)| ask.page).collect();
                self.links.fail_pages(link, (asked, pages), error, out);
            }
            What::Child { domain, epochs, through, .. } => {
                let ours: &[Epoch] = &self.domains[&domain].epochs;
                let reason = match judge(ours, Stamp(u64::MAX), &epochs, through) {
                    Verdict::Forked(fork) => CloseReason::Forked { domain, seen: through, fork },
                    Verdict::From(_) | Verdict::Reset => {
                        CloseReason::OutOfService(error.to_string())
                    }
                };
                self.close_child(now, link, reason, out);
            }
            What::Other(_) => self.links.fail(link, asked, error, out),
            What::Own { .. } => {}
        }
    }

    /// The parent does not serve a domain now: children are welcomed without it.
    fn own_failed(&mut self, domain: DomainId, out: &mut Vec<RelayOutput>) {
        if let Some(entry) = self.domains.get_mut(&domain) {
            entry.awaited_until = None;
        }
        self.tell_ready(out);
        self.welcome_held(out);
    }

    pub(super) fn tell_ready(&mut self, out: &mut Vec<RelayOutput>) {
        if self.is_ready() && !self.told_ready {
            self.told_ready = true;
            out.push(RelayOutput::Notice(RelayNotice::Ready));
        }
    }

    fn commit_ended(
        &mut self,
        now: Instant,
        domain: DomainId,
        id: CommitId,
        ended: Result<(Outcome, HistoryId), (RequestError, bool)>,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(passed) = self.commits.remove(&(domain, id)) else {
            return;
        };
        if let Some(entry) = self.domains.get_mut(&domain) {
            entry.load -= passed.load();
            let outcome = ended.as_ref().ok().map(|(outcome, _)| outcome);
            entry.updates.outcome(id, outcome, entry.ring.head());
        }
        if let Some(parent) = self.parent_of(domain) {
            self.count_answers(parent, u32::from(!passed.beside));
        }
        let ended = match (passed.denied, ended) {
            // One of another line, which its domain does not have any more, would be refused for that in any case: of
            // what else it is a part another domain may know that it is done (P12).
            (Some(denied), Ok((Outcome::Aborted(Abort::History), history)))
                if self.is_on_line(domain, &denied, history) =>
            {
                Ok((Outcome::Aborted(Abort::Denied(denied.why)), history))
            }
            (_, ended) => ended,
        };
        for link in passed.links {
            match &ended {
                Ok((outcome, history)) => {
                    if matches!(outcome, Outcome::Committed(_)) {
                        self.directory_made(link, domain, &passed.made);
                    }
                    self.links.outcome(link, domain, id, (outcome.clone(), *history), out);
                    if let (Outcome::Committed(stamp), Some(follower)) =
                        (outcome, self.links.follower(link, domain))
                    {
                        follower.told(*stamp);
                        self.pump(now, domain, link, out);
                    }
                }
                Err(why) => self.links.put_off(link, (domain, id), why.clone(), out),
            }
        }
    }

    /// Whether a commit that may not be done is of the domain's line. Not if what is known here is not the history that
    /// it was refused in: answers overtake the word of a new line (bug 220).
    fn is_on_line(&self, domain: DomainId, denied: &DeniedCommit, answered: HistoryId) -> bool {
        let known = self.domains.get(&domain).and_then(|entry| entry.epochs.last());
        // An origin of before says none.
        let told = answered != HistoryId::default();
        if told && known.is_none_or(|known| known.history != answered) {
            return false;
        }
        let made = [Epoch { history: denied.history, first: Stamp::ZERO }];
        let line = self.domains.get(&domain).map_or(&[][..], |entry| &entry.epochs);
        crate::message::is_on_line(&made, denied.base, line, Stamp(u64::MAX))
    }

    /// Asks every followed domain for an echo, when that is due.
    pub(super) fn beat_up(&mut self, now: Instant, parent: usize, out: &mut Vec<RelayOutput>) {
        let leases = self.uplinks.iter().filter_map(|uplink| uplink.lease).min();
        let Some(up) = self.uplinks[parent].up.as_mut().filter(|up| up.beat_at <= now) else {
            return;
        };
        let Some(limits) = up.limits else {
            return;
        };
        // A state that is older than the lease when the next echo comes is of no use below, where the shortest holds.
        let lease = leases.unwrap_or(limits.lease);
        let interval = self.config.beat_interval.min(lease / 4).max(BEAT_MIN);
        up.beat_at = now.after(interval);
        let beats: Vec<Message> = self
            .domains
            .values_mut()
            .filter(|entry| entry.parent == parent)
            .map(|entry| Message::Beat { domain: entry.id, sent: entry.beat_clock.send(now) })
            .collect();
        if beats.is_empty() {
            self.send_up(parent, Message::KeepAlive, out);
        }
        for beat in beats {
            // Before its stream runs it only keeps the link alive.
            self.send_up(parent, beat, out);
        }
        if self.uplinks[parent].up.as_ref().is_some_and(|up| up.register_at <= now) {
            self.register_missing(now, parent, out);
        }
    }
}
