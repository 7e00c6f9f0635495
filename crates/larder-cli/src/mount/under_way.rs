//! How much is under way: what the end of a mount has to wait for.

use std::sync::Arc;
use tokio::sync::watch;

/// Counts what is under way.
#[derive(Clone, Default)]
pub(super) struct UnderWay {
    count: Arc<watch::Sender<usize>>,
}

/// One thing under way, until it is dropped.
pub(super) struct Counted(UnderWay);

impl UnderWay {
    /// Counts one more.
    pub(super) fn begin(&self) -> Counted {
        self.count.send_modify(|count| *count += 1);
        Counted(self.clone())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until there is none.
    pub(super) async fn none(&self) {
        let mut count = self.count.subscribe();
        // An error says that nobody counts any more.
        let _ended = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}
