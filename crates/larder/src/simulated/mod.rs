//! What a world of the simulator puts in the place of clocks, random numbers, sockets and disks.
//!
//! A world is one thread: it plays one runtime with a paused clock, and every process of it. Threads
//! without a world run as in any other build.

mod identity;

pub(crate) use identity::identity;

use crate::limits::Limits;
use crate::planted::RuntimeFault;
use larder_core::message::Role;
use larder_core::record::{LogRecord, Lsn};
use larder_core::time::{Instant, WallTime};
use larder_core::{cache, id, origin, relay};
use larder_store::driver::{DomainStore, OpenError, Recovered};
use larder_store::pages::ModelPages;
use larder_store::testing::FaultDisk;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// One end of a connection.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// One end of a connection.
pub type Stream = Box<dyn Pipe>;
/// What comes later.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection that somebody opened.
pub struct Incoming {
    /// This end.
    pub stream: Stream,
    /// Where from.
    pub address: SocketAddr,
    /// Who.
    pub peer: String,
    /// What its certificate lets it be.
    pub role: Role,
}

/// A domain's store.
pub type SimStore = DomainStore<FaultDisk, std::sync::Arc<ModelPages>>;

/// What a job of a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// An append with its sync.
    Append,
    /// An install.
    Install,
    /// A load.
    Load,
}

/// A world.
pub trait World {
    /// The time now, of every process.
    fn now(&self) -> Instant;
    /// The wall clock.
    fn wall_time(&self) -> WallTime;
    /// Random bits.
    fn random(&self) -> u128;
    /// The bounds inside processes.
    fn limits(&self) -> Limits;
    /// What is planted.
    fn fault(&self) -> Option<RuntimeFault>;
    /// Opens a connection to an address in the name of a process; also the name at the other end.
    fn connect(&self, from: &str, role: Role, to: &str) -> Later<io::Result<(Stream, String)>>;
    /// The groups that a process's certificate is of.
    fn groups(&self, name: &str) -> Vec<String>;
    /// Takes connections at an address, for a process.
    fn listen(&self, name: &str, at: &str) -> io::Result<(mpsc::Receiver<Incoming>, SocketAddr)>;
    /// The stores of an origin, by its folder.
    fn open(&self, data: &Path) -> Result<Vec<(SimStore, Recovered)>, OpenError>;
    /// How long a job takes before it is done, and from then until that is told.
    fn delays(&self, domain: id::DomainId, job: Job) -> (Duration, Duration);
    /// Records are about to be appended.
    fn appends(&self, domain: id::DomainId, records: &[(Lsn, LogRecord)]);
    /// What is free where a store is.
    fn free_bytes(&self, data: &Path) -> u64;
    /// Changes how a machine is made.
    fn tune_origin(&self, config: &mut origin::OriginConfig);
    /// Changes how a machine is made.
    fn tune_relay(&self, config: &mut relay::RelayConfig);
    /// Changes how a machine is made.
    fn tune_cache(&self, config: &mut cache::CacheConfig);
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
    /// Apart, since it is asked on hot paths.
    static FAULT: Cell<Option<RuntimeFault>> = const { Cell::new(None) };
}

/// This thread's world, until dropped.
pub struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        FAULT.set(None);
        let world = WORLD.take();
        drop(world);
    }
}

/// Enters a world.
#[must_use]
pub fn enter(world: Rc<dyn World>) -> Entered {
    FAULT.set(world.fault());
    WORLD.set(Some(world));
    Entered(())
}

/// This thread's world.
pub(crate) fn world() -> Option<Rc<dyn World>> {
    WORLD.with_borrow(Clone::clone)
}

/// Does something as a thread without a world.
fn outside<T>(what: impl FnOnce() -> T) -> T {
    let world = WORLD.take();
    let result = what();
    WORLD.set(world);
    result
}

/// What a process's certificate proves.
pub(crate) fn proven(name: String, role: Role) -> crate::tls::Proven {
    let groups = world().map_or_else(Vec::new, |world| world.groups(&name));
    crate::tls::Proven { name, role, groups, is_origin: false }
}

pub(crate) fn limits() -> Option<Limits> {
    world().map(|world| world.limits())
}

pub(crate) fn fault() -> Option<RuntimeFault> {
    FAULT.get()
}

/// See [`World::delays`].
pub(crate) fn delays(domain: id::DomainId, job: Job) -> (Duration, Duration) {
    world().map_or_else(Default::default, |world| world.delays(domain, job))
}

/// See [`World::appends`].
pub(crate) fn appends(domain: id::DomainId, records: &[(Lsn, LogRecord)]) {
    if let Some(world) = world() {
        world.appends(domain, records);
    }
}
