//! The two members of a site: what they took, and whether the second one went over the line for what the
//! first one had.

use crate::report::{counted, say};
use crate::work::Pass;
use anyhow::{Result, ensure};

/// What the members of a site took: the first one, and its neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    pub(crate) cold: [Pass; 2],
    pub(crate) warm: [Pass; 2],
    /// The first one still has all that it read.
    pub(crate) kept_all: bool,
}

impl Members {
    /// Fails if the second member fetched over the line what its neighbour had.
    ///
    /// What is judged are the pages, with their bytes, that came to the second member from its parent. That is
    /// the group's redirector, or the origin if there is none: a redirector keeps no pages, so that each of
    /// these crossed the line. The first member has listed and read everything by then, nothing is changed
    /// meanwhile, and all that it read is still in its memory: there is no page that it does not have, and none
    /// may come. Where its memory was too small for that, nobody can say what it had, and nothing is judged.
    ///
    /// Requests and bytes on the line are shown, and not judged. The line is kept alive over all of it; and that
    /// there is no such page (a hole) only the origin can say. Nor do pages count that the second member read
    /// while it was being mounted: it did not know its neighbour yet.
    pub(crate) fn judge(&self, site: &str) -> Result<()> {
        if !self.kept_all {
            say(format_args!(
                "at site {site} the first member has no room for everything (node.memory): \
                 whether its neighbour fetched what it had is not judged"
            ));
            return Ok(());
        }
        let [first, second] = self.cold.map(|pass| pass.cost);
        let crossed = second.origin_pages + self.warm[1].cost.origin_pages;
        ensure!(
            crossed == 0,
            "at site {site} the second member fetched {} over the line that its neighbour had",
            counted(crossed, "page")
        );
        ensure!(
            second.neighbour_pages > 0 || first.origin_pages == 0,
            "at site {site} the first member fetched {}, and its neighbour had none from it",
            counted(first.origin_pages, "page")
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Cost, Seen};

    /// Members of which the first fetched ten pages, and its neighbour so many from the origin and from it.
    fn members(origin_pages: u64, neighbour_pages: u64) -> Members {
        let pass = |origin_pages, neighbour_pages| {
            let cost = Cost { origin_pages, neighbour_pages, ..Cost::default() };
            Pass { list_s: 1.0, grep_s: 1.0, seen: Seen::default(), cost }
        };
        let cold = [pass(10, 0), pass(origin_pages, neighbour_pages)];
        Members { cold, warm: [pass(0, 0); 2], kept_all: true }
    }

    #[test]
    fn a_neighbour_that_crosses_the_line_is_found() {
        members(0, 10).judge("one").expect("all came from the neighbour");
        let crossed = members(3, 7).judge("one").expect_err("three crossed the line").to_string();
        assert!(crossed.contains("site one") && crossed.contains("3 pages"), "{crossed}");
        let mut again = members(0, 10);
        again.warm[1].cost.origin_pages = 1;
        again.judge("one").expect_err("one crossed the line later");
        members(0, 0).judge("one").expect_err("they share nothing");
    }

    /// A tree may be larger than a member's memory: what it let go of its neighbour fetches from above.
    #[test]
    fn what_the_first_member_let_go_of_is_not_judged() {
        let members = Members { kept_all: false, ..members(3, 7) };
        members.judge("one").expect("nobody knows what it had");
    }
}
