//! A shared page in virtual time: clients with objects of their own, all of them on one page, which each changes
//! again and again (false sharing), or which one of them does while another is slow to take it in.

use super::cast::Cast;
use super::env::{Shared, lock};
use super::gate::Gate;
use super::oo7::{Costs, Groups, LIMIT, SLOW, calm, one_way_ms, session};
use super::{Failure, run_world};
use larder::client::{Consistency, Error, Node, Session, Volume, VolumeOptions};
use larder_core::id::{Generation, ObjectId, Slot};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// The volume.
const NAME: &str = "page";
/// Bytes of an object, as they are common (section 3).
const OBJECT_BYTES: usize = 100;

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Course {
    /// Who shares the page.
    pub clients: usize,
    /// Objects of each.
    pub objects: usize,
    /// Each transaction reads an object of another client too, so that they share more than a page.
    pub reads_others: bool,
    /// From a client to the origin and back.
    pub round_trip: Duration,
    /// Who is in which group; none: all are alone.
    pub groups: Option<Groups>,
    /// Only the first works, the others have the page, and the last is slow.
    pub slow: Option<Slow>,
    /// Transactions of each client: all change one of its own objects.
    pub transactions: u64,
    /// What work takes.
    pub costs: Costs,
    /// What is drawn comes from it.
    pub seed: u64,
}

/// A member that is slow (section 3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slow {
    /// From it to its redirector and back, in steps of 20 microseconds: what it takes to acknowledge a change.
    pub round_trip: Duration,
    /// Commits wait for what every member has acknowledged (`group.ack`), in place of standing for themselves.
    pub group_ack: bool,
}

/// What all clients that work measured together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// Transactions.
    pub transactions: u64,
    /// What they took.
    pub took: Duration,
    /// Reads that waited for the page.
    pub misses: u64,
    /// Attempts that met a conflict.
    pub conflicts: u64,
}

/// Runs a course.
///
/// # Errors
/// Whatever went wrong in its world, where nothing should.
pub fn measure(course: &Course) -> Result<Measured, Failure> {
    let told: Arc<Mutex<Measured>> = Arc::default();
    let far = (course.round_trip, course.groups.as_ref());
    let mut plan = calm(course.clients, far, 1 << 20, &course.costs, course.seed);
    if let (Some(slow), Some(group)) = (course.slow, &mut plan.group) {
        group.section.ack = slow.group_ack;
        let node = plan.nodes.last_mut().expect("the founder is one");
        node.latency_ms = one_way_ms(slow.round_trip);
    }
    run_world(plan, false, |shared| play(shared, course.clone(), told.clone()))?;
    let measured = *lock(&told);
    Ok(measured)
}

async fn play(shared: Arc<Shared>, course: Course, told: Arc<Mutex<Measured>>) {
    let mut cast = Cast::new(&shared);
    cast.start_origin().await;
    for number in 0..shared.plan.relays.len() {
        cast.start_relay(number).await;
    }
    shared.net.heal(true);
    found(&cast, &course).await;
    let meeting = Arc::new(Gate::new(course.clients));
    let mut clients = JoinSet::new();
    for number in 0..course.clients {
        let node = Node::start(cast.node_config(1 + number, LIMIT)).expect("its certificate does");
        let (course, shared, meeting) = (course.clone(), shared.clone(), meeting.clone());
        let client = Client { number, course, node, shared, meeting };
        clients.spawn(client.run());
    }
    let mut all = Measured::default();
    for one in clients.join_all().await {
        all.transactions += one.transactions;
        all.took += one.took;
        all.misses += one.misses;
        all.conflicts += one.conflicts;
    }
    *lock(&told) = all;
    cast.relays.clear();
    cast.end_origin().await;
}

/// The page and its objects.
async fn found(cast: &Cast, course: &Course) {
    let node = Node::start(cast.node_config(0, LIMIT)).expect("its certificate does");
    node.linked(LIMIT).await.expect("nothing is in its way");
    let options = VolumeOptions { page_bytes: 8 << 10, ..VolumeOptions::new(NAME) };
    let volume = node.create_volume(options).await.expect("nothing is in its way");
    let all = course.clients * course.objects;
    let session = volume.session(session(Consistency::Serializable));
    let made = session.transact(|tx| {
        let page = volume.root();
        async move {
            for slot in 0..u16::try_from(all).expect("a page has few objects") {
                tx.create_at(page, Slot(slot), vec![0; OBJECT_BYTES]).await?;
            }
            Ok::<_, Error>(())
        }
    });
    made.await.expect("the page has room for them");
    node.shutdown().await;
}

struct Client {
    number: usize,
    course: Course,
    node: Node,
    shared: Arc<Shared>,
    meeting: Arc<Gate>,
}

impl Client {
    async fn run(self) -> Measured {
        self.node.linked(LIMIT).await.expect("nothing is in its way");
        let volume = self.node.volume(NAME).await.expect("it was made");
        let session = volume.session(session(Consistency::Strict));
        // Once for nothing: then the page is here.
        self.one(&volume, &session, 0).await;
        self.meeting.wait().await;
        let before = self.node.metrics().summary();
        let start = self.shared.elapsed();
        let works = self.course.slow.is_none() || self.number == 0;
        let transactions = if works { self.course.transactions } else { 0 };
        for number in 0..transactions {
            self.one(&volume, &session, number).await;
        }
        let took = (self.shared.elapsed() - start) / SLOW;
        let after = self.node.metrics().summary();
        // Nobody goes before all are done: what they cost each other is what is measured.
        self.meeting.wait().await;
        self.node.shutdown().await;
        match works {
            true => Measured {
                transactions,
                took,
                misses: after.misses - before.misses,
                conflicts: after.conflicts - before.conflicts,
            },
            false => Measured::default(),
        }
    }

    /// Changes one of its own objects, and may read one of another client's.
    async fn one(&self, volume: &Volume, session: &Session, number: u64) {
        let place = usize::try_from(number).unwrap_or_default() % self.course.objects;
        let object = |client: usize| ObjectId {
            page: volume.root(),
            slot: Slot(u16::try_from(client * self.course.objects + place).expect("few objects")),
            generation: Generation(1),
        };
        let (own, other) = (object(self.number), object((self.number + 1) % self.course.clients));
        let reads_others = self.course.reads_others;
        let done = session.transact(|tx| async move {
            let mut value = tx.get(own).await?.to_vec();
            value[0] = value[0].wrapping_add(1);
            if reads_others {
                value[1] = tx.get(other).await?[0];
            }
            tx.update(own, value).await?;
            Ok::<_, Error>(())
        });
        done.await.expect("nothing is in its way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(reads_others: bool) -> Measured {
        let course = Course {
            clients: 3,
            objects: 4,
            reads_others,
            round_trip: Duration::from_millis(40),
            groups: None,
            slow: None,
            transactions: 20,
            costs: Costs::default(),
            seed: 5,
        };
        measure(&course).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Objects conflict, and pages do not.
    #[test]
    fn who_shares_only_a_page_meets_nobody() {
        let measured = course(false);
        assert_eq!((measured.misses, measured.conflicts), (0, 0));
        assert_eq!(measured.took, 60 * Duration::from_millis(40));
        let others = course(true);
        assert!(others.misses > 0 && others.took > measured.took, "{others:?}");
    }

    /// The paper's figure 4. Who changes again what it changed last reads what is newest; a member that has
    /// not acknowledged that yet has it aborted, unless each commits for itself.
    #[test]
    fn a_slow_member_is_in_the_way_of_group_acknowledgement_alone() {
        let measured = |slow_ms, group_ack| {
            let course = Course {
                clients: 3,
                objects: 1,
                reads_others: false,
                round_trip: Duration::from_millis(40),
                groups: Some(Groups::one(3, Duration::from_micros(100))),
                slow: Some(Slow { round_trip: Duration::from_millis(slow_ms), group_ack }),
                transactions: 20,
                costs: Costs::default(),
                seed: 5,
            };
            measure(&course).unwrap_or_else(|failure| panic!("{failure}"))
        };
        let (prompt, slow) = (measured(0, false), measured(100, false));
        assert_eq!((slow.conflicts, slow.took), (0, prompt.took));
        // Who commits again at once is faster than those who acknowledge at once.
        let (prompt, slow) = (measured(0, true), measured(100, true));
        assert!(slow.conflicts > prompt.conflicts, "{prompt:?} {slow:?}");
        assert!(slow.conflicts >= slow.transactions, "{slow:?}");
    }
}
