//! What no name leads to: found by looking through every page of a volume. Where a directory's inode or
//! one of its pages is lost, all that it led to is still there.

use super::FsError;
use super::check::{At, Problem, Walk};
use super::record::{Content, Inode, InodeId, TrieHeader};
use super::repair::Mend;
use super::trie::{HEADER_SLOT, is_name};
use super::tx::{SlottedPages, Tx, TxError, TxStore};
use larder_core::id::{Generation, PageNo, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// Pages of names to which nothing led so far.
#[derive(Default)]
struct Loose {
    /// With whether they hold names themselves.
    headers: BTreeMap<PageNo, (TrieHeader, bool)>,
    /// First pages of directories without a name, wherever their inodes are: what is below is theirs.
    led_to: Vec<PageNo>,
}

impl<S: TxStore> Walk<'_, S> {
    /// Looks through pages to which no directory leads. Inodes in them are told of, and pages with
    /// names, each of them with all that it leads to.
    pub(super) async fn unreached(&mut self, listed: &SlottedPages) -> Result<(), FsError> {
        let unknown = listed.damaged.iter().any(|page| !self.unread.contains(page));
        self.report.unknown |= unknown;
        self.report.hides_names |= unknown;
        let passed = self.fs.pages_of_their_own(self.tx).await?;
        let mut loose = Loose::default();
        for page in &listed.pages {
            if !passed.contains(page) {
                self.loose_page(*page, &mut loose).await?;
            }
        }
        if self.report.unknown {
            // A page that cannot be read may lead to them.
            return Ok(());
        }
        let Loose { headers, led_to } = loose;
        let mut claimed = BTreeSet::new();
        claim(&headers, &mut claimed, led_to);
        // Whole directories first, then what is left of others.
        for whole in [true, false] {
            for (page, (header, names)) in &headers {
                let leads = whole && header.children.is_some();
                let wanted = header.parent.is_some() == whole && (*names || leads);
                if wanted && !claimed.contains(page) {
                    claim(&headers, &mut claimed, vec![*page]);
                    let mend = Mend::Adopt { page: *page, parent: header.parent };
                    let at = At::page(*page);
                    self.problem(at, mend, Problem::Unreached { page: *page });
                }
            }
        }
        Ok(())
    }

    async fn loose_page(&mut self, page: PageNo, loose: &mut Loose) -> Result<(), FsError> {
        let held = match self.tx.get_all(page).await {
            Ok(Some(held)) => held,
            // Deleted since, or told of already.
            Ok(None) | Err(TxError::Damaged(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let names = held.iter().any(|(slot, ..)| is_name(*slot));
        for (slot, generation, bytes) in held {
            if slot == HEADER_SLOT {
                if let Ok(header) = TrieHeader::decode(&bytes)
                    && !self.tries.contains(&page)
                {
                    loose.headers.insert(page, (header, names));
                }
            } else {
                self.loose_inode((page, slot, generation), &bytes, loose);
            }
        }
        Ok(())
    }

    fn loose_inode(
        &mut self,
        (page, slot, generation): (PageNo, Slot, Generation),
        bytes: &[u8],
        loose: &mut Loose,
    ) {
        let id = InodeId { page, slot, generation };
        if slot.0 % 2 != 0 || is_name(slot) || self.inodes.contains_key(&id) {
            return;
        }
        let Ok(inode) = Inode::decode(bytes) else { return };
        if let Content::Trie(root) = inode.content {
            loose.led_to.push(root);
        }
        // Pages with inodes that names lead to are looked through afterwards, and those with names.
        let first = InodeId { page, slot: Slot(0), generation: Generation(0) };
        let others = self.inodes.range(first..).next().is_some_and(|(seen, _)| seen.page == page);
        if !others && !self.tries.contains(&page) {
            let change = Some((inode.kind, inode.ctime));
            self.problem(At::of(id), Mend::Name { id, change }, Problem::Unnamed { id });
        }
    }
}

/// Takes note of all pages that these lead to.
fn claim(
    headers: &BTreeMap<PageNo, (TrieHeader, bool)>,
    claimed: &mut BTreeSet<PageNo>,
    mut waiting: Vec<PageNo>,
) {
    while let Some(page) = waiting.pop() {
        if claimed.insert(page)
            && let Some((header, _)) = headers.get(&page)
        {
            waiting.extend(header.children.iter().flatten());
        }
    }
}
