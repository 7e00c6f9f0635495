//! What a domain has under way; see `crate::rest`.

use super::Domain;
use crate::downlink::Downlinks;
use crate::rest::first;

impl Domain {
    pub(in crate::origin) fn under_way(&self, links: &Downlinks) -> Option<String> {
        let flying = self.flying.as_ref().map_or(0, |(_, batch)| batch.items.len().max(1));
        let deleting = self.volumes.values().filter(|volume| volume.deleting.is_some());
        let own = first(&[
            ("service not open", usize::from(!self.is_open())),
            ("commits without an answer", self.pending.len()),
            ("commits that wait for pages", self.loading_commits.len()),
            ("commits that wait for room", self.ready.len() + self.line.len()),
            ("bytes of commits that wait", self.waiting_bytes),
            ("bytes pinned for commits", self.pinned_bytes),
            ("records of an append", self.gathering.items.len() + flying),
            ("answers withheld", self.gathering.withheld.len()),
            ("boots to be registered", self.registering.len()),
            ("pages that are wanted", self.loading.len() + self.load_queue.len()),
            ("loads", self.loads.len() + self.page_loads + self.index_loads),
            ("walks of the change index", self.index_wanted.len() + self.index_queue.len()),
            ("copies", self.copies.parts()),
            ("pages pinned or tentative", self.pages.unsettled()),
            ("volumes being deleted", deleting.count()),
            ("links to be served", self.serve.len()),
            ("outcomes that a node here has confirmed", self.outcomes_of_those_here(links)),
        ]);
        own.or_else(|| first(&self.parts.under_way()))
    }

    /// Outcomes kept for boots of nodes that are there and have nothing under way.
    fn outcomes_of_those_here(&self, links: &Downlinks) -> usize {
        self.boots.outcomes(|boot| links.is_claimed(self.id, boot))
    }
}
