//! The cache machine of a node.

pub mod io;

use crate::id::{PageId, Stamp};
use crate::page::Page;

/// A cached page, or the knowledge that there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct PageCopy {
    /// Which.
    pub id: PageId,
    /// The stamp that last changed it.
    pub version: Stamp,
    /// Its image; none: the page is absent.
    pub page: Option<Page>,
    /// Slots known stale, ascending.
    pub holes: Vec<crate::id::Slot>,
}
