//! Whether a mount stands, for those who ask from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const NOT_YET: u8 = 0;
const STANDS: u8 = 1;
const ENDED: u8 = 2;

/// Whether a mount stands. A clone tells the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Arc<AtomicU8>);

impl Standing {
    /// It stands, unless it has ended already.
    pub(super) fn begin(&self) {
        // An error says that it has: the kernel may end it at any moment.
        let _ended = self.0.compare_exchange(NOT_YET, STANDS, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// It is being ended, or the kernel has ended it.
    pub(super) fn end(&self) {
        self.0.store(ENDED, Ordering::Relaxed);
    }

    /// Whether it stands now; if not, why.
    pub(crate) fn now(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) {
            NOT_YET => Err("not mounted yet".into()),
            STANDS => Ok(()),
            _ => Err("the mount has ended".into()),
        }
    }
}
