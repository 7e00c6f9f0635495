//! Pages in messages: asked for, answered, and copied for a backup.

use crate::id::{HistoryId, PageId, PageNo, Slot, Stamp, VolumeId};
use bytes::Bytes;

/// A page asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageAsk {
    /// Which.
    pub page: PageId,
    /// The version the child holds whole: when it is still the page's version, no bytes are sent.
    pub have: Option<Stamp>,
}

/// A state of a volume that its origin keeps for a copy: drawn by the asker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PinId(pub u128);

/// Asks for the next part of a volume's pages that changed after a stamp, with their images. The
/// parts of one round name the same `since` and `pin`, and each the cursor of the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyAsk {
    /// Which volume's.
    pub volume: VolumeId,
    /// The history in which `since` was the domain's position; of no account for zero.
    pub history: HistoryId,
    /// Pages that changed after this stamp; zero: all pages that are there, and those deleted.
    pub since: Stamp,
    /// Where to go on; none: a round begins.
    pub cursor: Option<CopyCursor>,
    /// All parts are to show one moment: that in which the first is asked for. The origin keeps what
    /// changes after it under this name until the last part is given.
    pub pin: Option<PinId>,
}

/// Where a round of a copy stands, in the origin's words: told with a part, and given back as it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CopyCursor {
    /// The round tells of changes up to this stamp.
    pub until: Stamp,
    /// What of the origin is gone through.
    pub part: CopyPart,
    /// Of the change index: the stamp of the last page looked at.
    pub stamp: Stamp,
    /// The last page looked at.
    pub page: PageId,
}

/// What an origin goes through for a copy, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CopyPart {
    /// Pages changed by commits that are not installed yet. Some may be told of again.
    Recent,
    /// The change index. No page of it is told of twice.
    Index,
    /// What is kept for the pin.
    Kept,
}

/// Part of a volume's pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyAnswer {
    /// The domain's running history.
    pub history: HistoryId,
    /// With a pin the stamp whose state all parts show. Without: with the last part all pages are
    /// told that changed up to this stamp and not after it; others may have been.
    pub through: Stamp,
    /// Page numbers from this on were never given away.
    pub next_page: PageNo,
    /// Pages, each exact up to its `as_of`; never [`PageBody::Valid`]. One with an empty image is there
    /// and damaged at the origin.
    pub pages: Vec<PageAnswer>,
    /// Which part they are of.
    pub part: CopyPart,
    /// Where to go on; none: this was the last part.
    pub cursor: Option<CopyCursor>,
}

/// Bytes of images in one `Copied`, about: one page more may be in it.
pub const COPY_BYTES: usize = 1 << 20;

/// A page answered. Exact for every stamp in [`version`, `as_of`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageAnswer {
    /// Which.
    pub page: PageId,
    /// The stamp that last changed it; `Stamp::ZERO` for a page that never was.
    pub version: Stamp,
    /// The stamp up to which it is known not to have changed.
    pub as_of: Stamp,
    /// Its content.
    pub body: PageBody,
}

/// A page's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageBody {
    /// The version the child said it holds.
    Valid,
    /// Its bytes, checksummed: see `page`.
    Data(Bytes),
    /// The same of a copy of which some slots are not known: what the bytes say of those may be of before. Between
    /// neighbours alone, where [`crate::group::GroupMessage::Help`] says that it does.
    Holed(Bytes, Vec<Slot>),
    /// There is no such page (never made, or deleted).
    Absent,
}

impl PageBody {
    /// The bytes that are in it.
    #[must_use]
    pub fn image(&self) -> Option<&Bytes> {
        match self {
            Self::Data(image) | Self::Holed(image, _) => Some(image),
            Self::Valid | Self::Absent => None,
        }
    }

    /// Slots that are not known, ascending.
    #[must_use]
    pub fn holes(&self) -> &[Slot] {
        match self {
            Self::Holed(_, holes) => holes,
            Self::Valid | Self::Data(_) | Self::Absent => &[],
        }
    }
}
