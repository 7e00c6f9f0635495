//! Runs the futures of a process, one after the other in the order in which they were woken.

use larder::clock::simulated::{Surroundings, Work};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// Polls of one step of a process at most: more are a circle.
const POLLS_MAX: u32 = 100_000;

/// Tasks that were woken, in order.
type Woken = Arc<Mutex<VecDeque<u64>>>;

fn lock(woken: &Woken) -> MutexGuard<'_, VecDeque<u64>> {
    woken.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Bell {
    task: u64,
    woken: Woken,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut woken = lock(&self.woken);
        if !woken.contains(&self.task) {
            woken.push_back(self.task);
        }
    }
}

/// The futures of a process.
pub struct Tasks {
    tasks: BTreeMap<u64, (Work, Waker)>,
    woken: Woken,
    next: u64,
    surroundings: Surroundings,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({:?})", self.tasks.keys())
    }
}

impl Tasks {
    /// None yet.
    #[must_use]
    pub fn new(surroundings: Surroundings) -> Self {
        Self { tasks: BTreeMap::new(), woken: Arc::default(), next: 0, surroundings }
    }

    /// Adds one.
    pub fn add(&mut self, work: Work) {
        let task = self.next;
        self.next += 1;
        let bell = Arc::new(Bell { task, woken: self.woken.clone() });
        let waker = Waker::from(bell);
        waker.wake_by_ref();
        self.tasks.insert(task, (work, waker));
    }

    /// Whether all have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether any can go on.
    #[must_use]
    pub fn can_go_on(&self) -> bool {
        !lock(&self.woken).is_empty()
    }

    /// Lets all go on that can.
    pub fn go_on(&mut self) {
        for _ in 0..POLLS_MAX {
            let woken = lock(&self.woken).pop_front();
            let Some(task) = woken else { return };
            let Some((work, waker)) = self.tasks.get_mut(&task) else { continue };
            let waker = waker.clone();
            let poll =
                self.surroundings.within(|| work.as_mut().poll(&mut Context::from_waker(&waker)));
            if poll.is_ready() {
                let ended = self.tasks.remove(&task);
                self.surroundings.within(|| drop(ended));
            }
            for work in self.surroundings.take_spawned() {
                self.add(work);
            }
        }
        panic!("progress: tasks of files wake each other for ever");
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        self.surroundings.within(|| drop(tasks));
    }
}
