//! What a restoration makes of a file, and what of it an earlier one made already. It asks nobody.

use super::format::{Entry, FormatError, Part, Parts};
use super::{Verified, look_through};
use crate::fs::{forget_lock_holders, lock_holders_page};
use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{PageId, PageNo, VolumeId};
use larder_core::page::Page;
use siphasher::sip::SipHasher13;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;
use std::io::Read;

/// Pages that are there as they are to be.
pub(super) type Kept = BTreeSet<PageNo>;

/// Pages that are there, each with what its image is known by; none: it was deleted.
pub(super) type Found = BTreeMap<PageNo, Option<u64>>;

/// The pages that a file holds, each once, but for page 1.
pub(super) struct Wanted<'a, R: Read> {
    parts: Parts<R>,
    verified: &'a Verified,
    /// The page of those who held locks.
    holders: Option<PageNo>,
}

impl<'a, R: Read> Wanted<'a, R> {
    /// Of a file that was looked through.
    pub(super) fn new(file: R, verified: &'a Verified) -> Result<Self, FormatError> {
        let holders = verified.root.as_ref().and_then(lock_holders_page);
        Ok(Self { parts: Parts::new(file)?, verified, holders })
    }

    /// Those of the next part; none: there are no more.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Entry>>, FormatError> {
        let at = self.parts.position();
        let Part::Pages { mut entries, .. } = self.parts.next()? else { return Ok(None) };
        // Of a page that is in the part several times the last one counts, as of one in several parts.
        let places = entries.iter().enumerate().map(|(place, entry)| (entry.page.page, place));
        let last: BTreeMap<PageNo, usize> = places.collect();
        let mut place = 0;
        entries.retain(|entry| {
            let number = entry.page.page;
            place += 1;
            number != PageNo(1) && last[&number] == place - 1 && self.verified.counts(number, at)
        });
        Ok(Some(entries))
    }

    /// A page as it is restored: the nodes that held locks are no more.
    fn image_of(&self, entry: &Entry) -> Option<Page> {
        let (_, page) = entry.held.image()?;
        let mut page = page.clone();
        if self.holders == Some(entry.page.page) {
            forget_lock_holders(&mut page);
        }
        Some(page)
    }

    /// What makes a page in a volume.
    pub(super) fn writes(&self, volume: VolumeId, entry: &Entry) -> Vec<Write> {
        let page = PageId { volume, page: entry.page.page };
        match self.image_of(entry) {
            Some(image) => vec![Write { page, op: Op::RestorePage { image: image.encode(page) } }],
            // Its number stays used.
            None => {
                [Op::CreatePage(PageKind::Raw), Op::DeletePage].map(|op| Write { page, op }).into()
            }
        }
    }
}

impl Verified {
    /// Whether the page in the part that begins there is the one that counts.
    fn counts(&self, page: PageNo, at: u64) -> bool {
        self.last.get(&page).is_none_or(|last| *last == at)
    }
}

/// Which of the pages that are there but for page 1 are of this file; none: something is of another one, or, if
/// `whole`, a page is missing.
pub(super) fn kept(
    file: impl Read,
    verified: &Verified,
    volume: VolumeId,
    (mut found, whole): (Found, bool),
) -> Result<Option<Kept>, FormatError> {
    let (mut kept, mut wanted) = (Kept::default(), Wanted::new(file, verified)?);
    while let Some(entries) = wanted.next()? {
        for entry in &entries {
            let number = entry.page.page;
            let Some(there) = found.remove(&number) else {
                if whole {
                    return Ok(None);
                }
                continue;
            };
            let page = PageId { volume, page: number };
            let image = wanted.image_of(entry).map(|image| fingerprint(&image.encode(page)));
            if there != image {
                return Ok(None);
            }
            kept.insert(number);
        }
    }
    Ok(found.is_empty().then_some(kept))
}

/// Equal pages of one volume have equal images.
pub(super) fn fingerprint(image: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(image);
    hasher.finish()
}

/// Restores a file to nowhere, if it is whole: what is asked of an origin it must take, and afterwards hold what
/// the file says; where it was interrupted it goes on. For fuzzing.
///
/// # Panics
/// It does not.
#[doc(hidden)]
pub fn check_restoration(file: &[u8]) {
    let Ok(verified) = look_through(file, &mut |_| {}) else { return };
    let (header, trailer) = (&verified.summary.header, &verified.summary.trailer);
    let volume = VolumeId(!header.volume.0);
    let takes = |page: PageId, image: &bytes::Bytes| {
        assert!(image.len() <= header.page_bytes as usize, "an image is longer than a page");
        assert!(Page::decode(page, image.clone()).is_ok(), "an image cannot be read");
    };
    let (mut found, mut first) = (Found::new(), Found::new());
    let mut wanted = Wanted::new(file, &verified).expect("it was looked through");
    while let Some(entries) = wanted.next().expect("it was looked through") {
        for entry in &entries {
            let writes = wanted.writes(volume, entry);
            let made = match &writes[..] {
                [Write { page, op: Op::RestorePage { image } }] => {
                    takes(*page, image);
                    Some(fingerprint(image))
                }
                [Write { op: Op::CreatePage(_), .. }, Write { op: Op::DeletePage, .. }] => None,
                other => panic!("{other:?}"),
            };
            let number = entry.page.page;
            assert!(writes.iter().all(|write| write.page == PageId { volume, page: number }));
            assert!(number > PageNo(1) && number < trailer.next_page, "{number:?}");
            assert_eq!(found.insert(number, made), None, "a page is made twice: {number:?}");
        }
        if first.is_empty() {
            first.clone_from(&found);
        }
    }
    let page = PageId { volume, page: PageNo(1) };
    if let Some(root) = &verified.root {
        takes(page, &root.encode(page));
    }
    let pages = found.values().flatten().count() as u64 + u64::from(verified.root.is_some());
    assert_eq!(pages, trailer.pages, "a page is lost");
    let gone = found.values().filter(|made| made.is_none()).count() as u64;
    // Page 1 may be among them, of which nothing is made then.
    assert!(
        [0, 1].contains(&(trailer.deleted + trailer.left_out - gone)),
        "a deleted page is lost"
    );

    let again = |found: &Found, whole| {
        kept(file, &verified, volume, (found.clone(), whole)).expect("it was looked through")
    };
    for (made, whole) in [(&first, false), (&found, false), (&found, true)] {
        let all: Kept = made.keys().copied().collect();
        assert_eq!(again(made, whole), Some(all), "it does not go on");
    }
    if let Some((number, made)) = found.pop_last() {
        assert_eq!(again(&found, true), None, "a page is missing, and it is taken for whole");
        found.insert(number, made.map_or(Some(0), |made| Some(!made)));
        assert_eq!(again(&found, false), None, "a page of another file is kept");
    }
}
