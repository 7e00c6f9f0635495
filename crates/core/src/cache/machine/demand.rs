//! Pages that users wait for and that are not asked for yet: users take turns, a page each.
//!
//! Asked for in the order in which they were wanted, the pages of a user who wants two hundred at once,
//! from a parent that takes one request at a time, kept everybody else waiting until the last of them.

use crate::id::{PageId, RequestId};
use std::collections::BTreeSet;

/// Which user waits for which page that is to be asked for.
#[derive(Default)]
pub(super) struct Demand {
    waits: BTreeSet<(RequestId, PageId)>,
    /// Whose turn was last.
    last: RequestId,
}

impl Demand {
    pub(super) fn add(&mut self, user: RequestId, page: PageId) {
        self.waits.insert((user, page));
    }

    pub(super) fn remove(&mut self, user: RequestId, page: PageId) {
        self.waits.remove(&(user, page));
    }

    /// The next user's lowest page. It stays until it is removed, for each who waits for it.
    pub(super) fn turn(&mut self) -> Option<PageId> {
        let next = (RequestId(self.last.0 + 1), PageId::default());
        let &(user, page) = self.waits.range(next..).next().or_else(|| self.waits.first())?;
        self.last = user;
        Some(page)
    }

    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }
}
