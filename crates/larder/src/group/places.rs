//! What a node does about who its group's redirector is (decision 0036): it links to it, or, if it is the
//! redirector itself, runs a relay beside its cache, to which it links as the others do.

use super::line::Uplink;
use super::seat::{Followed, Leaver, Seat};
use super::told_by_redirector;
use crate::config::{GroupSection, RelayConfig};
use crate::metrics::{Metrics, Side};
use crate::server::Relaying;
use crate::tls::Credentials;
use crate::transport::{Guests, LinkState, LinkWatch, Parent};
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// A relay that is the redirector no longer goes on for those who have not left it for so long.
const RETIRES_AFTER: Duration = Duration::from_secs(5);
/// A node that follows nobody any more does not take itself for alone before this, where somebody may be elected.
const NOBODY_AFTER: Duration = Duration::from_secs(1);
/// A redirector to which there is no link for so long is done without: it is there for others, and not for this
/// node, or its own line is cut.
const WITHOUT_AFTER: Duration = Duration::from_secs(3);
/// After so long it is tried again, and twice as long after each attempt that came to nothing.
const TRIED_AFTER: Duration = Duration::from_secs(15);
const TRIED_AFTER_MAX: Duration = Duration::from_secs(240);

/// The relay beside a node's cache.
struct Half {
    relaying: Relaying,
    metrics: Arc<Metrics>,
    /// It is not the redirector any more, and ends then.
    retires_at: Option<Instant>,
}

/// A node's place in its group.
pub(crate) struct Places {
    seat: Seat,
    section: GroupSection,
    half: Arc<Mutex<Option<Half>>>,
    /// Its sender is gone when what follows has ended, by itself or by a broken invariant.
    broken: watch::Receiver<bool>,
    leaving: AtomicBool,
    task: AbortHandle,
}

impl Drop for Places {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a node needs to be the redirector.
pub(crate) struct Stage {
    pub(crate) relay: RelayConfig,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) guests: Guests,
    /// Who is its parent.
    pub(crate) parents: watch::Sender<Option<Parent>>,
    /// Where the link to it is.
    pub(crate) link: LinkWatch,
    /// Where the line of the relay is told, while this process is the redirector.
    pub(crate) line: watch::Sender<Option<Uplink>>,
}

impl Places {
    pub(crate) fn new(seat: Seat, stage: Stage) -> Self {
        let half = Arc::new(Mutex::new(None));
        let section = stage.relay.group.clone();
        let (breaks, broken) = watch::channel(false);
        let follows = stage.follow((seat.followed(), seat.leaver()), half.clone(), breaks);
        let task = tokio::spawn(follows).abort_handle();
        Self { seat, section, half, broken, leaving: AtomicBool::new(false), task }
    }

    /// Waits until a broken invariant has ended the relay beside the cache, the process's part in its group, or what
    /// follows the one with the other.
    pub(crate) async fn broken(&self) {
        let _ = self.broken.clone().wait_for(|broken| *broken).await;
        if self.leaving.load(Ordering::Acquire) {
            std::future::pending().await
        }
    }

    /// Whether that has happened.
    pub(crate) fn is_broken(&self) -> bool {
        let ended = *self.broken.borrow() || self.broken.has_changed().is_err();
        ended && !self.leaving.load(Ordering::Acquire)
    }

    /// What is to be seen of it: of the election, and of the relay beside the cache if it is the redirector.
    pub(crate) async fn told(&self) -> (Value, Option<Value>) {
        let half = self.half.lock().await;
        let leads = half.as_ref().filter(|half| half.retires_at.is_none());
        let looks = leads.map(|half| {
            let Half { relaying, metrics, .. } = half;
            (relaying.looks_at_group(), relaying.trouble(), metrics.clone())
        });
        // What follows waits, and the relay may have to begin or end meanwhile.
        drop(half);
        let redirects = match looks {
            Some((status, trouble, metrics)) => status.await.map(|status| {
                metrics.group().redirector(&status);
                let mut told = told_by_redirector(&self.section, &status);
                told["trouble"] = trouble.into();
                told["figures"] = serde_json::json!(metrics.summary());
                told
            }),
            None => None,
        };
        (self.seat.told().await, redirects)
    }

    /// Leaves the group, and has others take over what this process is in it.
    pub(crate) async fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.seat.leave().await;
        self.task.abort();
        let half = self.half.lock().await.take();
        if let Some(half) = half {
            half.relaying.shutdown().await;
        }
    }
}

impl Stage {
    async fn follow(
        self,
        (mut followed, leaver): (watch::Receiver<Followed>, Leaver),
        half: Arc<Mutex<Option<Half>>>,
        breaks: watch::Sender<bool>,
    ) {
        let mut link = self.link.clone();
        let mut tries = Tries::new();
        let mut elected = true;
        loop {
            let now = followed.borrow_and_update().clone();
            if now == (Followed::Nobody { awaited: true })
                && let Ok(changed) = timeout(NOBODY_AFTER, followed.changed()).await
            {
                // Another one was elected in the place of the one that is gone.
                if changed.is_err() {
                    return;
                }
                elected = true;
                continue;
            }
            let up = matches!(*link.borrow_and_update(), LinkState::Up { .. });
            let above = &self.relay.relay.parent;
            let parent = {
                let before = self.parents.borrow();
                wanted(&now, above, before.as_ref().filter(|_| up), (&mut tries, Instant::now()))
            };
            let (retires_at, gone) = {
                let half = &mut *half.lock().await;
                self.act(&now, half);
                self.turn(parent, std::mem::take(&mut elected) && !up);
                let gone = half.as_ref().map(|half| half.relaying.gone());
                (half.as_ref().and_then(|half| half.retires_at), gone)
            };
            tokio::select! {
                changed = followed.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    elected = true;
                }
                // The cache's task is gone, and its dialler with it: nothing is left to follow for.
                changed = link.changed() => if changed.is_err() {
                    return;
                },
                () = until(tries.next()) => {}
                () = until(retires_at) => {
                    self.guests.keep_out(Side::Down);
                    if let Some(half) = half.lock().await.take() {
                        // Its goodbyes hold up nobody who elects.
                        tokio::spawn(async move { half.relaying.shutdown().await });
                    }
                }
                () = ended(gone) => {
                    // Whoever goes on in this process has a parent again, and the others elect somebody else.
                    self.guests.keep_out(Side::Down);
                    drop(half.lock().await.take());
                    self.turn(Some(Parent::configured(above)), false);
                    breaks.send_replace(true);
                    return leaver.leave().await;
                }
            }
        }
    }

    /// Who is the parent now. A redirector is dialled at once, if that is wanted, though it was the parent before: whoever
    /// started again at the same address is not to be waited for until the pause is over that follows the attempts before.
    fn turn(&self, parent: Option<Parent>, dial: bool) {
        let Some(parent) = parent else { return };
        self.parents.send_if_modified(|before| turned(before, parent, dial));
    }

    /// Begins the relay beside the cache, or has it end.
    fn act(&self, followed: &Followed, half: &mut Option<Half>) {
        match (matches!(followed, Followed::Own(_)), half) {
            (true, half @ None) => {
                let begun = half.insert(self.begin());
                self.line.send_replace(begun.relaying.uplink());
            }
            (true, Some(half)) => {
                if half.retires_at.take().is_some() {
                    self.line.send_replace(half.relaying.uplink());
                }
            }
            (false, Some(half)) => {
                half.retires_at.get_or_insert_with(|| {
                    self.line.send_replace(None);
                    Instant::now() + RETIRES_AFTER
                });
            }
            (false, None) => {}
        }
    }

    fn begin(&self) -> Half {
        let metrics = Arc::new(Metrics::new());
        let relaying = Relaying::start(&self.relay, &self.credentials, &metrics);
        self.guests.let_in(relaying.children(&self.credentials));
        Half { relaying, metrics, retires_at: None }
    }
}

/// Whether a dialler has to hear who is the parent now.
fn turned(before: &mut Option<Parent>, parent: Parent, dial: bool) -> bool {
    let found = parent.found;
    before.replace(parent.clone()) != Some(parent) || dial && found
}

/// Who is to be the parent; none: as before. `linked`: to whom there is a link.
fn wanted(
    followed: &Followed,
    above: &str,
    linked: Option<&Parent>,
    (tries, now): (&mut Tries, Instant),
) -> Option<Parent> {
    match followed {
        Followed::Unknown => None,
        // Whoever is alone has the redirector's parent.
        Followed::Nobody { .. } => {
            *tries = Tries::new();
            Some(Parent::configured(above))
        }
        Followed::Own(address) | Followed::Other(address) => {
            let found = Parent { address: address.clone(), found: true };
            tries.is_alone(linked.is_some_and(|linked| !linked.found), now);
            let is_linked = linked == Some(&found);
            let tried = tries.tries(&found, is_linked, now);
            Some(if tried { found } else { Parent::configured(above) })
        }
    }
}

/// Attempts to link to the redirector that is followed.
struct Tries {
    /// Which.
    of: Option<Parent>,
    /// Since when there is no link to anybody while it is done without.
    lost: Option<Instant>,
    /// There is a link to the configured parent.
    stands: bool,
    /// The last attempt gave up such a link.
    took: bool,
    /// It is tried; else it is done without.
    on: bool,
    /// Until then; none: there is a link.
    until: Option<Instant>,
    /// How long it is done without after an attempt that comes to nothing.
    pause: Duration,
}

impl Tries {
    fn new() -> Self {
        let pause = TRIED_AFTER;
        Self { of: None, lost: None, stands: false, took: false, on: false, until: None, pause }
    }

    /// When that changes by itself.
    fn next(&self) -> Option<Instant> {
        self.until
    }

    /// While it is done without there is a link to the configured parent, or not. When it comes back after it was away
    /// for longer than a redirector is waited for, it may be the line that had been down, the redirector's too, which
    /// is tried again at once; but not if the last attempt gave up such a link: then it was away for that, and on a
    /// line over which it takes long to stand it would be given up again and again.
    fn is_alone(&mut self, linked: bool, now: Instant) {
        if self.on {
            self.lost = None;
        } else if !linked {
            self.lost.get_or_insert(now);
        } else if let Some(since) = self.lost.take() {
            // What the attempt took is there again: the next absence is not its doing.
            let took = std::mem::take(&mut self.took);
            if now - since >= WITHOUT_AFTER && !took {
                (self.until, self.pause) = (Some(now), TRIED_AFTER);
            }
        }
        self.stands = linked;
    }

    /// Whether it is to be tried now. `linked`: there is a link to it.
    fn tries(&mut self, parent: &Parent, linked: bool, now: Instant) -> bool {
        if self.of.as_ref() != Some(parent) {
            let until = Some(now + WITHOUT_AFTER);
            let (of, pause, stands) = (Some(parent.clone()), TRIED_AFTER, self.stands);
            *self = Self { of, lost: None, stands, took: stands, on: true, until, pause };
        } else if linked {
            (self.until, self.pause) = (None, TRIED_AFTER);
        } else if self.on && self.until.is_none() {
            self.until = Some(now + WITHOUT_AFTER);
        } else if self.until.is_some_and(|until| until <= now) {
            self.on = !self.on;
            if self.on {
                self.took = self.stands;
                self.until = Some(now + WITHOUT_AFTER);
            } else {
                tracing::warn!(
                    redirector = %parent.address,
                    "there is no link to the group's redirector: done without it for {:?}",
                    self.pause
                );
                self.until = Some(now + self.pause);
                self.pause = (self.pause * 2).min(TRIED_AFTER_MAX);
            }
        }
        self.on
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn ended(gone: Option<impl Future<Output = ()>>) {
    match gone {
        Some(gone) => gone.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: &str) -> Parent {
        Parent { address: address.into(), found: true }
    }

    /// A redirector that was killed twice in a quarter of a second was back at its address, elected again, and reached a
    /// second later by those whose pauses had grown meanwhile.
    #[test]
    fn whoever_is_elected_again_is_dialled_at_once() {
        let (one, above) = (found("a:1"), Parent::configured("o:1"));
        let mut before = Some(one.clone());
        assert!(!turned(&mut before, one.clone(), false), "as before");
        assert!(turned(&mut before, one.clone(), true), "elected again");
        assert!(turned(&mut before, above.clone(), false), "another one");
        assert!(!turned(&mut before, above.clone(), true), "nobody was elected");
        assert_eq!(before, Some(above));
    }

    /// While nobody was followed, the end of the last attempt stayed in the past: a node looked at it again and again
    /// without a pause, and did without the redirector that came back.
    #[test]
    fn a_redirector_that_comes_back_is_tried_at_once() {
        let (mut tries, one, mut now) = (Tries::new(), found("a:1"), Instant::now());
        let followed = Followed::Other("a:1".into());
        assert_eq!(wanted(&followed, "o:1", Some(&one), (&mut tries, now)), Some(one.clone()));
        assert_eq!(
            wanted(&followed, "o:1", None, (&mut tries, now)),
            Some(one.clone()),
            "its link broke"
        );
        let nobody = Followed::Nobody { awaited: false };
        let above = Some(Parent::configured("o:1"));
        assert_eq!(wanted(&nobody, "o:1", None, (&mut tries, now)), above);
        now += 2 * WITHOUT_AFTER;
        assert_eq!(wanted(&nobody, "o:1", None, (&mut tries, now)), above);
        assert_eq!(tries.next(), None, "there is nothing to wait for");
        assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(one), "it is back");
    }

    /// The line to the origin was down while the redirector was replaced, for minutes: everybody did without the new one
    /// for minutes more when the line was back, each with a link of its own.
    #[test]
    fn a_redirector_is_tried_again_when_the_line_is_back() {
        let (mut tries, one, mut now) = (Tries::new(), found("a:1"), Instant::now());
        let (followed, above) = (Followed::Other("a:1".into()), Parent::configured("o:1"));
        // Several attempts come to nothing, since it has nothing to tell.
        for _ in 0..5 {
            assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(one.clone()));
            now += WITHOUT_AFTER;
            assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(above.clone()));
            assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(above.clone()));
            now = tries.next().expect("it is tried again");
        }
        assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(one.clone()));
        now += WITHOUT_AFTER;
        assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(above.clone()));
        assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(above.clone()));
        now += 2 * WITHOUT_AFTER;
        let back = wanted(&followed, "o:1", Some(&above), (&mut tries, now));
        assert_eq!(back, Some(one), "the line is back");
        // A link that comes at once when it is done without says nothing of the line.
        now += WITHOUT_AFTER;
        assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(above.clone()));
        now += Duration::from_millis(200);
        let alone = wanted(&followed, "o:1", Some(&above), (&mut tries, now));
        assert_eq!(alone, Some(above.clone()), "it is the redirector that is not reached");
        // Nor does one that takes seconds to stand: it would be given up as soon as it does, again and again.
        assert_eq!(wanted(&followed, "o:1", None, (&mut tries, now)), Some(above.clone()));
        now += WITHOUT_AFTER;
        let slow = wanted(&followed, "o:1", Some(&above), (&mut tries, now));
        assert_eq!(slow, Some(above), "its line is slow");
    }

    /// One that is never reached is tried less and less often, and another one at once.
    #[test]
    fn a_redirector_that_is_never_reached_is_tried_less_and_less() {
        let (mut tries, one, mut now) = (Tries::new(), found("a:1"), Instant::now());
        for pause in [15, 30, 60, 120, 240, 240].map(Duration::from_secs) {
            assert!(tries.tries(&one, false, now));
            now += WITHOUT_AFTER;
            assert!(!tries.tries(&one, false, now), "done without");
            now += pause - Duration::from_millis(1);
            assert!(!tries.tries(&one, false, now), "for {pause:?}");
            now += Duration::from_millis(1);
        }
        assert!(tries.tries(&one, false, now));
        assert!(tries.tries(&found("b:1"), false, now));
        assert_eq!(tries.pause, TRIED_AFTER);
    }
}
