//! Validating a commit whose base is older than the table of recent writes reaches: its reads are
//! judged by the versions of their pages, which may have to be loaded for it.
//!
//! The pages are looked at a few at a time and kept by nobody: a commit may have read a million of
//! them. What was looked at may change while others are loaded, so that the look is worth what it
//! says at its beginning only: from then on the table of recent writes is asked again.
//!
//! 1. T read pages 1 and 2 at base 5; the horizon is 8, the last durable stamp 9.
//! 2. Page 1 is in memory with version 3: it holds. Page 2 is loaded.
//! 3. Commit 10 writes page 1.
//! 4. Page 2 comes with version 4: it holds. T's reads held at 9, and T is validated from there:
//!    page 1 changed after 9, a conflict.

use super::Domain;
use super::commit::Waiting;
use crate::commit::Read;
use crate::id::{PageId, Stamp};

/// Most pages loaded at once for one commit's look.
const LOADED_MAX: usize = 64;

/// A look at the versions of the pages that a commit read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    /// The durable stamp when it began. Not the last one given: that may be taken back by a full
    /// store and given again.
    from: Stamp,
    /// Reads before this one were looked at.
    next: usize,
}

/// What a look came to.
pub(super) enum Looked {
    /// All reads held at this stamp, to which the table of recent writes reaches.
    Holds(Stamp),
    /// These pages are loaded first.
    Missing(Vec<PageId>),
    /// A page read has a later version.
    Changed(Read, Stamp),
}

impl Domain {
    /// Begins or goes on with the look at what a commit read; nothing to do if its base is not too
    /// old.
    pub(super) fn look(&self, waiting: &mut Waiting) -> Looked {
        let base = waiting.request.base;
        let horizon = self.recent.horizon();
        if base >= horizon {
            return Looked::Holds(base);
        }
        crate::probe::probe("base-below-horizon");
        let begun = waiting.look.filter(|look| look.from >= horizon);
        let mut look = begun.unwrap_or(Look { from: self.durable, next: 0 });
        let mut missing = Vec::new();
        let mut last = None;
        while let Some(read) = waiting.request.reads.get(look.next) {
            let page = read.page;
            if last.replace(page) != Some(page) {
                match self.pages.latest_version(page) {
                    Some(version) if version > base => return Looked::Changed(*read, version),
                    Some(_) => {}
                    None if missing.len() < LOADED_MAX => missing.push(page),
                    None => break,
                }
            }
            look.next += 1;
        }
        waiting.look = Some(look);
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            crate::probe::probe("look-goes-on");
            return Looked::Missing(missing);
        }
        // All in one step: nothing can have changed meanwhile.
        Looked::Holds(if begun.is_none() { self.stamped } else { look.from })
    }

    /// Looks at a page that was loaded for a commit's look: it may not be in memory for long.
    pub(super) fn look_at_loaded(&self, waiting: &Waiting, page: PageId) -> Option<(Read, Stamp)> {
        waiting.look?;
        let version = self.pages.latest_version(page)?;
        let changed = version > waiting.request.base;
        let mut reads = waiting.request.reads.iter().filter(|_| changed);
        reads.find(|read| read.page == page).map(|read| (*read, version))
    }
}
