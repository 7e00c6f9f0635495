//! Where tasks of a world wait for each other. They go on in the order in which they came: tokio's barrier
//! draws one.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// A gate that opens when all of so many have come; as often as they come.
pub(super) struct Gate {
    of: usize,
    came: AtomicUsize,
    open: Semaphore,
}

impl Gate {
    pub(super) fn new(of: usize) -> Self {
        Self { of, came: AtomicUsize::new(0), open: Semaphore::new(0) }
    }

    /// Waits until all have come.
    pub(super) async fn wait(&self) {
        let came = 1 + self.came.fetch_add(1, Ordering::Relaxed);
        if came.is_multiple_of(self.of) {
            self.open.add_permits(self.of);
        }
        self.open.acquire().await.expect("it is never closed").forget();
    }
}
