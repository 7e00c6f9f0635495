//! One client of a course: what it does, and what it measures.

use super::{Course, Measured, NAME, SLOW};
use crate::runtime::env::Shared;
use larder::client::{Node, Session, Volume};
use larder_oo7::{Database, Done, Pace, Tally, Workload};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Barrier, Mutex};
use tokio::time::sleep;

/// What clients of a course share.
pub(super) struct Meeting {
    barrier: Barrier,
    /// Clients that have transactions left to be measured: the others go on until there are none.
    busy: AtomicUsize,
    /// Whose commit the origin is at: it takes one after another.
    commits: Mutex<()>,
}

impl Meeting {
    pub(super) fn new(clients: usize) -> Self {
        Self {
            barrier: Barrier::new(clients),
            busy: AtomicUsize::new(clients),
            commits: Mutex::default(),
        }
    }
}

pub(super) struct Client {
    pub(super) number: usize,
    pub(super) course: Course,
    pub(super) workload: Workload,
    pub(super) node: Node,
    pub(super) shared: Arc<Shared>,
    pub(super) meeting: Arc<Meeting>,
}

impl Pace for Client {
    fn now(&self) -> Duration {
        self.shared.elapsed()
    }

    async fn works(&self, tally: &Tally) {
        let each = self.course.costs.visit * SLOW;
        let long = each.saturating_mul(u32::try_from(tally.atoms).unwrap_or(u32::MAX));
        if !long.is_zero() {
            self.shared.net.works(&self.node.status().name, long).await;
        }
    }

    /// What the origin takes for a commit is waited for before it is sent: together with its way there and
    /// back that is as long as if it were waited for there.
    async fn commits(&self, only_reads: bool) {
        let long = self.course.costs.commit * SLOW;
        if !long.is_zero() && (self.course.strict || !only_reads) {
            let _turn = self.meeting.commits.lock().await;
            sleep(long).await;
        }
    }
}

impl Client {
    pub(super) async fn run(self) -> Measured {
        self.node.linked(super::LIMIT).await.expect("nothing is in its way");
        let volume = self.node.volume(NAME).await.expect("it was made");
        let session = volume.session(self.course.session());
        let tx = session.begin_read().await.expect("nothing is in its way");
        let database = Database::open(&volume, &tx).await.expect("it was built");
        drop(tx);
        let database = if self.course.together { database.together() } else { database };
        let begun = self.shared.elapsed();
        if self.course.ahead {
            self.ask_ahead(&volume, &session, &database).await;
        }
        let asked = (self.shared.elapsed() - begun) / SLOW;
        for number in 0..self.course.warm {
            self.one(&database, &session, number).await;
        }
        self.meeting.barrier.wait().await;
        let mut measured = self.measure(&database, &session).await;
        // Whoever waits before it begins waits too.
        measured.took += asked;
        self.meeting.busy.fetch_sub(1, Ordering::Relaxed);
        for number in self.course.warm + self.course.transactions.. {
            if self.meeting.busy.load(Ordering::Relaxed) == 0 {
                break;
            }
            self.one(&database, &session, number).await;
        }
        self.node.shutdown().await;
        measured
    }

    /// Asks for all pages of the module, and waits for none of them but those that name others. Each client
    /// begins elsewhere, so that neighbours have what one asks for later.
    async fn ask_ahead(&self, volume: &Volume, session: &Session, database: &Database) {
        let tx = session.begin_read().await.expect("nothing is in its way");
        let pages = database.pages_of_module(&tx, self.workload.module).await;
        let mut pages = pages.expect("it was built");
        let clients = self.course.readers + self.course.writers;
        let begin = pages.len() * self.number / clients;
        pages.rotate_left(begin);
        volume.prefetch(&pages);
    }

    async fn measure(&self, database: &Database, session: &Session) -> Measured {
        let before = self.node.metrics().summary();
        let (pages, long) = self.neighbours();
        let mut measured = Measured {
            writes: !self.workload.mix.only_reads(),
            transactions: self.course.transactions,
            ..Measured::default()
        };
        let end = self.course.warm + self.course.transactions;
        for number in self.course.warm..end {
            let done = self.one(database, session, number).await;
            measured.took += done.took;
            measured.worked += done.worked;
            measured.commits += done.commit;
            measured.conflicts += u64::from(done.attempts - 1);
            measured.wrote += u64::from(done.tally.changed > 0);
            measured.missed += u64::from(done.took > done.worked + done.commit);
        }
        let after = self.node.metrics().summary();
        measured.misses = after.misses - before.misses;
        let later = self.neighbours();
        (measured.from_neighbours, measured.neighbours) = (later.0 - pages, later.1 - long);
        measured.at_origin = after.committed - before.committed;
        let times = [&mut measured.took, &mut measured.worked, &mut measured.commits];
        for time in times.into_iter().chain([&mut measured.neighbours]) {
            *time /= SLOW;
        }
        measured
    }

    /// Pages that came from neighbours so far, and what they took together, as anybody reads it.
    fn neighbours(&self) -> (u64, Duration) {
        let metrics = self.node.metrics();
        let text = metrics.encode();
        let sum = text.lines().find_map(|line| line.strip_prefix("larder_peer_fetch_seconds_sum "));
        let seconds: f64 = sum.and_then(|sum| sum.parse().ok()).unwrap_or_default();
        (metrics.peer_fetches().pages, Duration::from_secs_f64(seconds))
    }

    async fn one(&self, database: &Database, session: &Session, number: u64) -> Done {
        let done = self.workload.run(database, session, number, self).await;
        sleep(self.course.think * SLOW).await;
        done.unwrap_or_else(|error| panic!("transaction {number}: {error}"))
    }
}
