//! Rare branches that carry a named probe (`larder_core::probe`), and whether the nightly run must reach
//! them. What is never reached has never been seen by a checker: a plan that aims at it belongs into
//! `plan/aims.rs`, or the mark "rare" with the reason why no run should be made to.

use Reached::{Often, Rare};
use std::collections::BTreeMap;

/// Whether the nightly run must reach a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    /// It must, in its 20,000 seeds.
    Often,
    /// It need not: too many things have to come together.
    Rare,
}

/// All of them, ascending by name.
pub const PROBES: [(&str, Reached); 215] = [
    ("a-life-follows-another", Often),
    ("absence-outdated", Often),
    ("absence-shed", Often),
    ("advance-cut", Often),
    ("another-origins-domain-forked", Rare),
    ("answer-after-give-up", Often),
    ("answer-ahead-of-stream", Often),
    // Two relays in a row, and the line between the origin and them is slow beside its commits.
    ("answer-beyond-a-lost-part", Rare),
    ("answer-waits-for-its-place", Often),
    ("answer-withheld", Often),
    ("answer-withheld-in-vain", Often),
    ("append-taken-back", Often),
    ("base-below-horizon", Often),
    ("boot-ended", Often),
    ("boot-forgotten-meanwhile", Rare),
    ("boot-makes-room", Often),
    ("boot-registered-anew", Often),
    ("boot-renewed", Often),
    // A relay asks for a domain that is new to it, and in that round trip a node links again.
    ("boot-that-ended-forgotten", Often),
    ("boot-told-before-welcome", Rare),
    ("bulk-credit-exhausted", Often),
    ("change-before-its-outcome", Often),
    ("change-overtook-page", Often),
    ("changed-during-install", Often),
    // Nobody lies at the simulator.
    ("claim-beyond-belief", Rare),
    ("claim-of-the-smaller-part", Often),
    // Before a node hears that its boot is forgotten its commit would have to come by a relay that has not
    // heard it either: nodes renew their boots first.
    ("commit-expired", Rare),
    ("commit-in-doubt", Often),
    ("commit-left-in-line", Often),
    ("commit-of-another-history", Rare),
    ("commit-past-its-history", Often),
    ("commit-refused-by-a-full-store", Often),
    ("commit-repeated-under-way", Often),
    ("commit-rights-changed-meanwhile", Often),
    ("commit-waits-for-pages", Often),
    ("commit-waits-for-room-for-pages", Often),
    ("commit-waits-for-what-is-prepared", Often),
    ("commit-withdrawn", Often),
    ("commits-sent-full", Often),
    ("companion-asked-for", Often),
    ("conflict-with-what-was-taken-back", Often),
    ("copy-still-valid", Often),
    ("cut-redirector-gives-way", Often),
    ("cut-redirector-is-replaced", Often),
    ("damaged-log-refused", Often),
    // Groups of a run have seeds of their own.
    ("datagram-of-another-group", Rare),
    // Nobody harms datagrams here; a proptest does.
    ("datagram-unread", Rare),
    ("decision-taken-back", Often),
    ("decision-waits-for-pages", Rare),
    ("deleted-while-commit-waited", Often),
    ("deletion-meets-what-is-prepared", Rare),
    ("deletion-recovered-from-the-log", Often),
    ("directory-forgets", Often),
    ("directory-forgets-holes", Rare),
    ("domain-sought-elsewhere", Often),
    ("doomed-by-a-change", Often),
    ("doomed-by-a-new-line", Often),
    // It takes 4 MiB of pages that overtake a word.
    ("early-pages-full", Rare),
    ("echo-before-a-fall", Often),
    ("echo-of-before-the-clock", Often),
    ("fell-off-the-ring", Often),
    ("fetch-fails", Often),
    ("follower-of-a-claim-given-up", Rare),
    ("following-taken-back", Often),
    ("fork-accepted", Often),
    ("fork-refused", Often),
    // It takes 256 requests while the log hangs.
    ("gathered-full", Rare),
    ("gathered-page-gone", Often),
    ("generation-forgotten-meanwhile", Rare),
    ("generations-forgotten", Often),
    ("gone-again", Often),
    // More than 512 participants: a test of the machine has them.
    ("gone-makes-room", Rare),
    // It takes 256 members.
    ("group-full", Rare),
    // It takes a thread that changes a copy while another looks at it.
    ("help-looked-again", Rare),
    ("help-waited-in-vain", Often),
    ("help-waits-for-the-page", Often),
    ("help-waits-for-the-stream", Often),
    ("help-would-be-too-new", Often),
    ("helper-late", Often),
    ("helps-full", Often),
    ("index-page-continued", Often),
    ("install-finds-no-room", Often),
    ("install-refused", Often),
    ("kept-changes-overflow", Often),
    ("lease-lapses", Often),
    ("line-found-again", Often),
    ("line-lost", Often),
    ("list-announced", Often),
    ("list-narrows", Often),
    // It takes more loads at once than 256.
    ("load-dropped-unstarted", Rare),
    ("load-fails", Often),
    ("log-keeps-its-reserve", Often),
    ("look-goes-on", Often),
    ("looked-ahead", Often),
    ("membership-stood-still", Often),
    ("missed-redirector-is-gone", Often),
    // A silent link is closed by its timer at the very moment from which on its name may be taken; only a
    // runtime whose timers are late comes here.
    ("name-taken-over", Rare),
    ("named-in-vain", Often),
    ("neighbour-did-not-help", Often),
    ("neighbour-kept", Often),
    ("neighbour-lacks-it", Often),
    ("neighbour-linked-again", Often),
    ("neighbour-sends-before-its-greeting", Rare),
    ("neighbour-sends-on", Often),
    // Machines of ours send none.
    ("neighbour-sent-damage", Rare),
    ("neighbour-too-late", Often),
    ("neighbour-waits-itself", Often),
    ("neighbour-was-early", Often),
    ("neighbour-was-late", Often),
    ("neighbours-come-and-go", Often),
    ("notice-waits", Often),
    ("notices-overflow", Often),
    ("numbers-of-a-volume-being-deleted", Rare),
    ("one-of-two-parents-lost", Often),
    ("outcome-before-its-change", Often),
    ("outcome-confirmed-before", Rare),
    ("outcome-told-again", Often),
    ("outcomes-left-open", Often),
    ("page-evicted-at-origin", Often),
    ("pages-ahead-of-the-log", Rare),
    ("part-gone-before-its-turn", Rare),
    ("part-prepared", Often),
    ("part-refused", Often),
    ("part-waits-too-long", Rare),
    // It takes 512 lives of one group.
    ("participants-full", Rare),
    ("pointed-to-a-neighbour", Often),
    ("preparation-taken-back", Often),
    // No domain is taken out of an origin in a world: `parts_after_who_decided_was_taken_out`.
    ("prepared-and-out-of-reach", Rare),
    ("prepared-logged-again", Rare),
    ("prepared-part-released", Often),
    ("process-moved", Often),
    ("read-as-of-two-stamps", Rare),
    ("read-below-a-read-ahead", Rare),
    ("read-right-lost", Often),
    ("reader-overrun", Often),
    ("recovered-ops-applied", Often),
    ("redirector-answers", Often),
    ("redirector-gives-way", Often),
    ("redirector-is-cut", Often),
    ("redirector-is-gone", Often),
    ("redirector-is-missed", Often),
    ("redirector-is-missed-by-few", Often),
    ("refusal-told-again", Often),
    ("refused-after-it-was-sent", Rare),
    ("refused-commit-undone", Often),
    ("regained-within-an-answer", Rare),
    ("registered-walk-forgotten", Rare),
    ("registration-overflows", Often),
    ("relay-answers-early", Often),
    ("relay-below-reset", Rare),
    ("relay-child-fell", Often),
    ("relay-child-told-all", Often),
    ("relay-commits-full", Often),
    ("relay-cursors-all-off", Often),
    ("relay-gives-up-a-request", Often),
    ("relay-holds-a-commit", Often),
    ("relay-holds-a-part", Rare),
    ("relay-named-in-vain", Often),
    ("relay-narrows", Often),
    ("relay-passed-what-is-lost", Often),
    ("relay-regains", Rare),
    ("relay-seeks-elsewhere", Rare),
    ("removal-goes-on-in-batches", Rare),
    ("removal-not-listed", Rare),
    ("removal-refused", Rare),
    ("reset-on-the-same-line", Often),
    ("resume-abandoned", Often),
    ("resume-from-index", Often),
    ("resume-reset", Often),
    ("resume-within-a-list", Often),
    ("resume-within-the-ring", Often),
    ("right-answered-before-it-was-told", Rare),
    ("right-changed-before-the-stream", Often),
    ("said-to-a-domain-out-of-reach", Rare),
    ("segment-recycled", Often),
    ("segment-switched", Often),
    ("silent-child-closed", Often),
    ("snapshot-reads-a-retained-copy", Often),
    ("snapshot-too-old", Often),
    ("start-waits-for-room", Often),
    ("state-too-old", Often),
    ("stream-credit-exhausted", Often),
    ("stream-resumed-again", Often),
    ("swim-did-not-take-it", Rare),
    ("told-in-vain", Often),
    ("told-lost", Often),
    // It takes 4,096 answers while the log hangs.
    ("too-many-answers-withheld", Rare),
    // No page of a run has so many slots.
    ("too-many-holes-came", Rare),
    ("torn-tail-cut", Often),
    ("transaction-over-several-committed", Often),
    ("transaction-over-several-in-doubt", Often),
    ("transaction-over-several-put-off", Often),
    ("transaction-over-several-refused", Often),
    ("transaction-over-several-withdrawn", Often),
    ("transfer-left-nobody", Often),
    ("transfer-overtaken", Often),
    // Its asker says nothing for a minute, and its link stands.
    ("transfer-unsaid", Rare),
    ("twin-refused", Often),
    ("unseen-may-be-lost", Rare),
    ("update-applied", Often),
    ("update-makes-room", Often),
    // As with "update-not-told": the two can differ only in what a page has forgotten.
    ("update-not-applied", Rare),
    ("update-not-kept", Often),
    ("update-not-told", Rare),
    ("version-cache-purges", Rare),
    ("volume-become-another", Rare),
    ("volume-deleted-during-install", Often),
    ("volume-made-again", Rare),
    ("volume-sought-elsewhere", Often),
    ("waits-of-a-lost-line", Often),
    ("who-decides-is-asked", Often),
    ("whole-change-overtook-page", Often),
    ("withheld-is-looked-at-again", Rare),
    ("writes-no-longer-fit", Rare),
    ("written-and-not-held", Often),
];

/// How often each was reached.
pub type Counts = BTreeMap<&'static str, u64>;

/// Those that ought to have been reached and were not, ascending.
#[must_use]
pub fn missed(counts: &Counts) -> Vec<&'static str> {
    let unreached = PROBES.iter().filter(|(name, _)| !counts.contains_key(name));
    unreached.filter(|(_, reached)| *reached == Often).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The names of all probes under a folder.
    fn named_in(folder: &Path, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                named_in(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let calls = text.split("probe::probe(\"").skip(1);
                names.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }

    #[test]
    fn the_list_and_the_code_agree() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut names = Vec::new();
        named_in(&crates.join("core/src"), &mut names);
        named_in(&crates.join("store/src"), &mut names);
        names.sort_unstable();
        let listed: Vec<&str> = PROBES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, listed, "each probe is in the code once, and in the list");
    }

    #[test]
    fn what_is_not_rare_must_be_reached() {
        assert!(missed(&Counts::new()).len() > 30);
        let all = PROBES.iter().map(|(name, _)| (*name, 1)).collect();
        assert_eq!(missed(&all), Vec::<&str>::new());
    }
}
