//! Time and chance of a simulator, for the thread on which it polls what it simulates: two runs that
//! set them alike do the same.

use larder_core::rng::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Work in the background.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What one simulated process has of time and chance.
#[derive(Clone, Debug)]
pub struct Surroundings {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    began: Instant,
    nanos: u64,
    rng: Rng,
    /// Who waits until when, by the time and the order of asking.
    timers: BTreeMap<(u64, u64), Waker>,
    asked: u64,
    spawned: Vec<Work>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared(at {} ns, {} timers)", self.nanos, self.timers.len())
    }
}

thread_local! {
    static HERE: RefCell<Option<Surroundings>> = const { RefCell::new(None) };
}

impl Surroundings {
    /// Of a process that begins at `nanos`, and draws from `seed`.
    #[must_use]
    pub fn new(nanos: u64, seed: u64) -> Self {
        let shared = Shared {
            began: Instant::now(),
            nanos,
            rng: Rng::new(seed),
            timers: BTreeMap::new(),
            asked: 0,
            spawned: Vec::new(),
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        act(&mut self.shared.lock().expect("no code that holds this lock can panic half-way"))
    }

    /// Sets the time, and wakes whoever waited for it.
    pub fn set(&self, nanos: u64) {
        let due = self.with(|shared| {
            shared.nanos = shared.nanos.max(nanos);
            let later = shared.timers.split_off(&(shared.nanos + 1, 0));
            std::mem::replace(&mut shared.timers, later)
        });
        due.into_values().for_each(Waker::wake);
    }

    /// When somebody waits for next.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.with(|shared| shared.timers.first_key_value().map(|((at, _), _)| *at))
    }

    /// Work for the background that came since.
    #[must_use]
    pub fn take_spawned(&self) -> Vec<Work> {
        self.with(|shared| std::mem::take(&mut shared.spawned))
    }

    /// Does something in these surroundings.
    pub fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        struct Back(Option<Surroundings>);
        impl Drop for Back {
            fn drop(&mut self) {
                HERE.set(self.0.take());
            }
        }
        let _back = Back(HERE.replace(Some(self.clone())));
        act()
    }
}

fn here<T>(act: impl FnOnce(&mut Shared) -> T) -> Option<T> {
    let here = HERE.with_borrow(Clone::clone)?;
    Some(here.with(act))
}

pub(super) fn nanos() -> Option<u64> {
    here(|shared| shared.nanos)
}

pub(super) fn instant() -> Option<Instant> {
    here(|shared| shared.began + Duration::from_nanos(shared.nanos))
}

pub(super) fn random() -> Option<u128> {
    here(|shared| shared.rng.next_u128())
}

pub(super) fn spawn(work: Work) {
    // Asked for where there are surroundings.
    let _always = here(|shared| shared.spawned.push(work));
}

/// A wait.
#[derive(Debug)]
pub struct Sleep {
    surroundings: Surroundings,
    at: u64,
    entered: Option<(u64, u64)>,
}

pub(super) fn sleep(time: Duration) -> Option<Sleep> {
    let surroundings = HERE.with_borrow(Clone::clone)?;
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let at = surroundings.with(|shared| shared.nanos.saturating_add(nanos));
    Some(Sleep { surroundings, at, entered: None })
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (at, before) = (self.at, self.entered);
        let entered = self.surroundings.with(|shared| {
            if let Some(before) = before {
                shared.timers.remove(&before);
            }
            (shared.nanos < at).then(|| {
                shared.asked += 1;
                shared.timers.insert((at, shared.asked), cx.waker().clone());
                (at, shared.asked)
            })
        });
        self.entered = entered;
        if entered.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(entered) = self.entered {
            self.surroundings.with(|shared| shared.timers.remove(&entered));
        }
    }
}

/// Work, as long as it takes no longer than the wait.
pub(super) async fn race<T>(work: impl Future<Output = T>, sleep: Sleep) -> Option<T> {
    let (mut work, mut sleep) = (pin!(work), pin!(sleep));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}
