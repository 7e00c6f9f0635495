//! The limits of waits (P10): whoever waits for the store, or for a turn, is told when it takes too
//! long. What a commit waits for once it has a stamp, the sync of its append, has no limit here: it
//! may be done, and nobody can say that it is not. Its node stops waiting by a limit of its own.

use super::{Context, Domain, Event, LoadFor, Service};
use crate::id::{LinkId, PageId, RequestId};
use crate::message::{CloseReason, RequestError};
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Those who wait are looked at so often within their limit.
const LOOKS: u32 = 8;
/// Resumes noted before those answered are left out.
const ASKED_NOTED_MAX: usize = 4096;

impl Domain {
    /// Sees to it that somebody looks at those who wait.
    pub(super) fn watch_limits(&mut self, cx: &Context<'_>) {
        let idle = self.loading.is_empty()
            && self.ready.is_empty()
            && self.line.is_empty()
            && self.loads.is_empty()
            && self.index_queue.is_empty()
            && self.asked.is_empty()
            && self.copies.is_idle();
        if idle {
            self.limits_at = None;
        } else if self.limits_at.is_none() {
            self.limits_at = Some(cx.now.after(cx.config.wait_max / LOOKS));
        }
    }

    /// Tells those who have waited for too long.
    pub(in crate::origin) fn enforce_limits(&mut self, cx: &mut Context<'_>) {
        if self.awaited_until.is_some_and(|until| until <= cx.now) {
            self.awaited_until = None;
            if self.service == Service::Starting {
                cx.events.push(Event::Waits);
            }
        }
        if !self.is_failed() {
            self.copies.expire(cx);
        }
        self.limit_parts(cx);
        if self.is_failed() || self.limits_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.limits_at = None;
        self.limit_commits(cx);
        self.limit_fetches(cx);
        self.limit_walks(cx);
        self.limit_resumes(cx);
        self.limit_copies(cx);
        self.give_up_looks(cx, &not_read("what stands for it", cx));
        self.drop_unwanted_loads();
    }

    fn limit_commits(&mut self, cx: &mut Context<'_>) {
        let late = |since: Instant| since.after(cx.config.wait_max) <= cx.now;
        let loading = self.loading_commits.iter().filter(|(_, waiting)| late(waiting.since));
        let loading: Vec<u64> = loading.map(|(ticket, _)| *ticket).collect();
        let ready = std::mem::take(&mut self.ready).into_iter();
        // As long as one after the other has its turn, theirs will come: sent away they would come back as
        // the last, again and again (bug 148).
        let taken_at = self.taken_at;
        let (turns, rest): (VecDeque<_>, VecDeque<_>) =
            ready.partition(|waiting| late(waiting.since.max(taken_at)));
        self.ready = rest;
        let error = RequestError::Unavailable(not_read("a page that it needs", cx));
        for ticket in loading {
            let waiting = self.loading_commits.remove(&ticket).expect("just listed");
            self.give_up(cx, waiting, &error);
        }
        let line = self.line.take_late(cx.config, cx.now);
        let error = RequestError::Busy(format!(
            "the store took on no commit within {:?}",
            cx.config.wait_max
        ));
        for waiting in turns {
            self.give_up(cx, waiting, &error);
        }
        let error = "there was no room for too long for the pages that it needs";
        let error = RequestError::Busy(error.into());
        for waiting in line {
            self.give_up(cx, waiting, &error);
        }
    }

    fn limit_fetches(&mut self, cx: &mut Context<'_>) {
        let mut late: BTreeMap<(LinkId, RequestId), Vec<PageId>> = BTreeMap::new();
        for (page, loading) in &mut self.loading {
            loading.fetches.retain(|(link, asked, since)| {
                let waits = since.after(cx.config.wait_max) > cx.now;
                if !waits {
                    late.entry((*link, asked.request)).or_default().push(*page);
                }
                waits
            });
        }
        for ((link, _), pages) in &late {
            for page in pages {
                let fetches = &self.loading[page].fetches;
                if !fetches.iter().any(|(waiting, ..)| waiting == link) {
                    self.fetching.remove(&(*link, *page));
                }
            }
        }
        for ((link, request), pages) in late {
            let what = match pages[..] {
                [page] => format!("page {page}"),
                _ => format!("page {} and others", pages[0]),
            };
            let error = RequestError::Unavailable(not_read(&what, cx));
            cx.links.fail_pages(link, (request, pages), error, cx.out);
        }
    }

    /// A walk of the change index ends with its link, which will ask anew.
    fn limit_walks(&mut self, cx: &mut Context<'_>) {
        let started = self.loads.values().filter_map(|load| match load {
            LoadFor::Index(link, since) => Some((*link, *since)),
            LoadFor::Page(_) | LoadFor::Removal | LoadFor::Deleted(_) | LoadFor::Copy(_) => None,
        });
        let queued = self.index_queue.iter().map(|wanted| (wanted.link, wanted.since));
        let late = |(_, since): &(LinkId, Instant)| since.after(cx.config.wait_max) <= cx.now;
        let late: BTreeSet<LinkId> = started.chain(queued).filter(late).map(|w| w.0).collect();
        for link in late {
            let reason = CloseReason::OutOfService(not_read("the change index", cx));
            self.close(cx, link, reason);
        }
    }

    fn limit_resumes(&mut self, cx: &mut Context<'_>) {
        self.drop_answered(cx);
        while let Some(&(since, link, request)) = self.asked.front()
            && since.after(cx.config.wait_max) <= cx.now
        {
            self.asked.pop_front();
            let Some(follower) = cx.links.follower(link, self.id) else { continue };
            // A child that gave two the same number is told of those that still wait, and no more.
            let before = follower.asked.len();
            follower.asked.retain(|answer| answer.request != request);
            let late = before - follower.asked.len();
            let error = RequestError::Unavailable(format!(
                "the stream did not come to this resume within {:?}",
                cx.config.wait_max
            ));
            for _ in 0..late {
                cx.links.fail(link, request, error.clone(), cx.out);
            }
        }
    }

    /// Notes a resume that waits for its place in the stream.
    pub(super) fn note_asked(&mut self, cx: &mut Context<'_>, link: LinkId, request: RequestId) {
        self.asked.push_back((cx.now, link, request));
        if self.asked.len().is_power_of_two() && self.asked.len() >= ASKED_NOTED_MAX {
            self.drop_answered(cx);
        }
    }

    fn drop_answered(&mut self, cx: &mut Context<'_>) {
        let mut waiting: BTreeSet<(LinkId, RequestId)> = BTreeSet::new();
        let links: BTreeSet<LinkId> = self.asked.iter().map(|(_, link, _)| *link).collect();
        for link in links {
            if let Some(follower) = cx.links.follower(link, self.id) {
                waiting.extend(follower.asked.iter().map(|answer| (link, answer.request)));
            }
        }
        self.asked.retain(|(_, link, request)| waiting.contains(&(*link, *request)));
    }
}

pub(super) fn not_read(what: &str, cx: &Context<'_>) -> String {
    format!("{what} was not read from the store within {:?}", cx.config.wait_max)
}
