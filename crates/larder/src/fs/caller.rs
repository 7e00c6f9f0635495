//! On whose behalf something is done: a process that lost its locks may change nothing more, while
//! the others of its node go on.

use std::future::Future;

/// Processes counted one by one; with more of them it may be any.
const PROCESSES_MAX: usize = 64;

tokio::task_local! {
    static CALLERS: Callers;
}

/// Processes of this host, by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Callers {
    processes: Vec<u32>,
    /// There are more than were counted.
    others: bool,
}

impl Callers {
    /// On whose behalf the running task works: nobody's, if it was not said.
    pub(super) fn current() -> Self {
        CALLERS.try_with(Clone::clone).unwrap_or_default()
    }

    /// Adds others.
    pub(super) fn add(&mut self, others: &Self) {
        self.others |= others.others;
        for process in &others.processes {
            if self.processes.contains(process) {
                continue;
            }
            if self.processes.len() == PROCESSES_MAX {
                self.others = true;
                return;
            }
            self.processes.push(*process);
        }
    }

    /// Whether one of these may be among them.
    pub(super) fn may_be(&self, any: impl Fn(u32) -> bool) -> bool {
        self.others || self.processes.iter().any(|process| any(*process))
    }

    /// Does something on their behalf.
    pub(super) fn doing<T>(self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        CALLERS.scope(self, work)
    }
}

/// Does something on behalf of a process of this host, by the number that its locks are asked for
/// with ([`LockAsk::pid`](super::LockAsk)). Once that process has lost a lock, what it would change
/// is refused with [`FsError::LockLost`](super::FsError) until the files it lost them on are closed.
pub fn on_behalf_of<T>(process: u32, work: impl Future<Output = T>) -> impl Future<Output = T> {
    Callers { processes: vec![process], others: false }.doing(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_wrote_together_are_counted_up_to_a_bound() {
        assert_eq!(Callers::current(), Callers::default());
        let mut callers = Callers::default();
        for process in 0..PROCESSES_MAX as u32 {
            callers.add(&on_behalf_of(process, async { Callers::current() }).await);
            callers.add(&callers.clone());
        }
        assert!(callers.may_be(|process| process == 3));
        assert!(!callers.may_be(|process| process == 99));
        callers.add(&on_behalf_of(99, async { Callers::current() }).await);
        assert!(callers.may_be(|process| process == 4711), "it may be any");
    }
}
