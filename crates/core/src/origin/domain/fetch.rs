//! Answering fetches, from durable images only (rule 14).

use super::load_queue::Claimant;
use super::{Context, Domain};
use crate::downlink::{Asked, Pace};
use crate::id::LinkId;
use crate::machine::Fault;
use crate::message::{PageAnswer, PageBody, RequestError};

/// Bytes of pages in one message, about.
const PAGES_BYTES: usize = 256 << 10;

impl Domain {
    /// Answers what a link asked for, as far as its credits reach.
    pub(in crate::origin) fn serve_pages(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        pace: Pace,
    ) {
        let mut answers: Vec<PageAnswer> = Vec::new();
        let mut bytes = 0;
        let mut request = None;
        loop {
            let Some(entry) = cx.links.get_mut(link) else {
                return;
            };
            // What is collected but not sent counts against the credit as well.
            let covered = i64::try_from(bytes).expect("bounded by PAGES_BYTES");
            let covered = entry.bulk_credit > covered;
            let next = covered.then(|| entry.take_asked(self.id, pace)).flatten();
            let cut = next.is_none_or(|asked| Some(asked.request) != request);
            if (cut || bytes >= PAGES_BYTES)
                && let Some(request) = request
                && !answers.is_empty()
            {
                let pages = std::mem::take(&mut answers);
                cx.links.answer_pages(link, request, self.id, pages, cx.out);
                bytes = 0;
            }
            let Some(asked) = next else {
                break;
            };
            request = Some(asked.request);
            if let Some(answer) = self.page_answer(cx, link, asked) {
                bytes += answer.body.image().map_or(16, |image| image.len());
                answers.push(answer);
            }
        }
        self.pump(cx, link);
    }

    /// The answer for one page; none: it is loaded first, or fails.
    fn page_answer(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        asked: Asked,
    ) -> Option<PageAnswer> {
        let page = asked.page;
        if !self.volumes.contains_key(&page.volume) {
            let error = self.no_volume(page.volume);
            cx.links.fail_page(link, (asked.request, page), error, cx.out);
            return None;
        }
        if let Err(denied) = cx.links.may_answer(link, asked.request, page.volume) {
            let error = RequestError::Denied(denied);
            cx.links.fail_page(link, (asked.request, page), error, cx.out);
            return None;
        }
        if !self.pages.is_loaded(page) {
            let now = cx.now;
            self.load(cx, page, Claimant::Fetch(link, asked.request))
                .fetches
                .push((link, asked, now));
            self.fetching.insert((link, page));
            return None;
        }
        if cx.config.faults.has(Fault::RegisterLate)
            && let Some(follower) = cx.links.follower(link, self.id)
        {
            follower.register(page);
        }
        let version = self.pages.touch(page);
        if let Some(follower) = cx.links.follower(link, self.id) {
            follower.told(version);
        }
        let body = if asked.have == Some(version) {
            PageBody::Valid
        } else {
            self.pages.seal(page).map_or(PageBody::Absent, PageBody::Data)
        };
        Some(PageAnswer { page, version, as_of: self.durable, body })
    }
}
