//! `larder bench oo7`.

use super::report::Report;
use crate::args::{Common, Membership, Memory, Uplink};
use crate::out;
use crate::progress::{Progress, Step};
use crate::settings::Flags;
use crate::volume::{show, verdict};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::HumanBytes;
use larder::client::{Consistency, Node, Session, SessionOptions, Volume, VolumeOptions};
use larder::config::{NodeConfig, Period};
use larder::metrics::{PeerFetch, Side, Summary};
use larder_oo7::{Database, Done, Mix, Parameters, Size, Workload, build, check};
use serde_json::{Map, Value, json};
use std::pin::pin;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

#[derive(Subcommand, Debug)]
pub(crate) enum Oo7Command {
    /// Make a volume with a database: the same one for the same options
    ///
    /// One that was interrupted leaves half a database, which is known as such: delete the volume
    /// (`larder volume delete`), and make it again.
    Build {
        /// The new volume's name
        volume: String,
        #[command(flatten)]
        what: Box<Shape>,
        /// Bytes of a page: a power of two from 4KiB to 1MiB
        #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = crate::args::page_bytes)]
        page_size: u32,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Run transactions as one user of a database, and tell how long they took
    ///
    /// Operations: t1, t2a to t2c, t3a to t3c, t6, q1 to q8, insert and delete, as published; path and
    /// path-change walk to one composite part, which is drawn, and look at it or swap the coordinates
    /// of its atomic parts; shared-path and shared-path-change do so in the module that users share.
    /// A transaction that meets a conflict is run again with the same draws, and counted as a
    /// conflict. Ctrl-C, SIGTERM and whatever fails end the run, and what was done until then is told.
    /// With `--group` the pages that neighbours have come from them; without it the configured group is left alone.
    Run {
        /// The volume
        volume: String,
        #[command(flatten)]
        work: Box<Work>,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        memory: Memory,
        #[command(flatten)]
        membership: Box<Membership>,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Look through all of a database, while nobody changes it: whether it is whole, and what it holds
    ///
    /// Ends with 6 if something does not hold; the first thing that cannot be read at all ends it.
    Check {
        /// The volume
        volume: String,
        #[command(flatten)]
        uplink: Uplink,
    },
}

/// What a database is made of.
#[derive(Args, Debug)]
pub(crate) struct Shape {
    /// How large a module is
    #[arg(long, value_enum, default_value_t = ModuleSize::Medium)]
    size: ModuleSize,
    /// Connections that begin at each atomic part: 3, 6 or 9 in what was published
    #[arg(long, value_name = "N", default_value_t = 3)]
    connections: u32,
    /// Users, with a module each
    #[arg(long, value_name = "N", default_value_t = 1)]
    users: u32,
    /// Composite parts for each user of one more module, which all share; 0: there is none
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_composites: u32,
    /// Levels of assemblies of the module that is shared [default: 6, of a tiny one 2]
    #[arg(long, value_name = "N")]
    shared_levels: Option<u32>,
    /// What is random in it comes from this number
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ModuleSize {
    /// A few hundred objects, to try things out
    Tiny,
    /// 10,000 atomic parts
    Small,
    /// 100,000 atomic parts: what BuddyCache was measured with
    Medium,
}

/// What one user does.
#[derive(Args, Debug)]
pub(crate) struct Work {
    /// What each operation is drawn from: names, with weights, as in
    /// `path=85,shared-path=10,path-change=3,shared-path-change=2`
    #[arg(long, value_name = "MIX", default_value = "t1")]
    mix: Mix,
    /// Operations of one transaction
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    operations: u32,
    /// Which module is this user's, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    module: usize,
    /// Transactions that are counted
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=TRANSACTIONS_MAX))]
    transactions: u64,
    /// Run for so long instead, e.g. `30s`, or until 10,000,000 transactions are done
    #[arg(long = "for", value_name = "TIME", conflicts_with = "transactions")]
    time: Option<Period>,
    /// Transactions before them that are not counted: their pages are in memory then
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=TRANSACTIONS_MAX))]
    warm: u64,
    /// Time between two transactions, e.g. `100ms`
    #[arg(long, value_name = "TIME", default_value = "0")]
    think: Period,
    /// What is drawn comes from this number: give each user another one
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Draw the same in each transaction, so that each comes to the same parts
    #[arg(long)]
    same: bool,
    /// What transactions promise
    #[arg(long, value_enum, default_value_t = Claim::Serializable)]
    consistency: Claim,
    /// How long one transaction may take, with all its attempts
    #[arg(long, value_name = "TIME", default_value = "10m")]
    limit: Period,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Claim {
    /// Serializable and in real time: each is validated at the origin
    Strict,
    /// Serializable; those that only read are committed here
    Serializable,
    /// Those that only read see one state, whatever changes meanwhile
    Snapshot,
}

/// The time of each is kept until the end.
const TRANSACTIONS_MAX: u64 = 10_000_000;

pub(crate) async fn run(command: &Oo7Command, common: &Common) -> Result<()> {
    match command {
        Oo7Command::Build { volume, what, page_size, quiet, uplink } => {
            let parameters = what.parameters();
            // A mistake of usage is told before anything is made.
            parameters.check()?;
            let node = connect(uplink, common).await?;
            let shown = Progress::counting("build", "composites", common.json, *quiet);
            make(&node, (volume, *page_size), &parameters, shown, common).await?;
            node.shutdown().await;
        }
        Oo7Command::Run { volume, work, quiet, memory, membership, uplink } => {
            let node = join(uplink, memory, membership, common).await?;
            let volume = node.volume(volume).await?;
            let shown = Progress::counting("run", "transactions", common.json, *quiet);
            let ended = work.run(&volume, shown, common).await;
            node.shutdown().await;
            ended?;
        }
        Oo7Command::Check { volume, uplink } => {
            let node = connect(uplink, common).await?;
            let volume = node.volume(volume).await?;
            let session = session(&volume, Consistency::Serializable, CHECK_LIMIT);
            let database = open(&volume, &session).await?;
            let (counts, wrong) = check(&database, &session).await?;
            let report = json!({
                "modules": counts.modules,
                "complex_assemblies": counts.complex_assemblies,
                "base_assemblies": counts.base_assemblies,
                "composites": counts.composites,
                "atoms": counts.atoms,
                "connections": counts.connections,
                "documents": counts.documents,
                "object_bytes": counts.object_bytes,
                "volume_bytes": volume.info().bytes,
                "pages": volume.info().pages,
                "problems": wrong.len(),
            });
            node.shutdown().await;
            verdict(&report, &wrong, common)?;
        }
    }
    Ok(())
}

/// How long one transaction of a check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(600);

/// How long a member waits until it has met a neighbour, and how often it looks.
const MEETING_LIMIT: Duration = Duration::from_secs(1);
const MEETING_LOOK: Duration = Duration::from_millis(10);

/// What a node of these commands is called beside others of its name.
const TASK: &str = "bench";

async fn connect(uplink: &Uplink, common: &Common) -> Result<Node> {
    let config = load(Flags::default().uplink(uplink), common)?;
    Ok(Node::connect(config.for_task(TASK)).await?)
}

/// The same with a cache of a size, and in a group if it is to be.
async fn join(
    uplink: &Uplink,
    memory: &Memory,
    membership: &Membership,
    common: &Common,
) -> Result<Node> {
    let flags = Flags::default().uplink(uplink).membership(membership);
    let config = load(flags.set("node.memory", memory.memory.as_ref()), common)?;
    let Some(_) = membership.group else {
        return Ok(Node::connect(config.for_task(TASK)).await?);
    };
    let node = Node::connect(config.for_member_task(TASK)).await?;
    // Else what is missed first comes from above, though a neighbour has it. Who is alone in his group has none.
    let begun = Instant::now();
    while node.metrics().links(Side::Neighbour) == 0 && begun.elapsed() < MEETING_LIMIT {
        sleep(MEETING_LOOK).await;
    }
    Ok(node)
}

fn load(flags: Flags, common: &Common) -> Result<NodeConfig> {
    let mut config = flags.load(common)?;
    if config.log.filter.is_empty() {
        config.log.filter = "warn".into();
    }
    larder::log::init(&config.log)?;
    Ok(config.node())
}

fn session(volume: &Volume, consistency: Consistency, time_limit: Duration) -> Session {
    // Time is all that bounds a transaction.
    let (refresh_limit, attempts_max) = (time_limit, u32::MAX);
    let options = SessionOptions::default();
    volume.session(SessionOptions {
        consistency,
        time_limit,
        refresh_limit,
        attempts_max,
        ..options
    })
}

async fn open(volume: &Volume, session: &Session) -> Result<Database> {
    let tx = session.begin_read().await?;
    Ok(Database::open(volume, &tx).await?)
}

impl Shape {
    fn parameters(&self) -> Parameters {
        let Self { size, connections, users, shared_composites, shared_levels, seed } = *self;
        let (of, levels) = match size {
            ModuleSize::Tiny => {
                let tiny = Parameters::tiny();
                (Parameters { connections_per_atomic: connections, ..tiny }, tiny.shared_levels)
            }
            ModuleSize::Small => (Parameters::new(Size::Small, connections), 6),
            ModuleSize::Medium => (Parameters::new(Size::Medium, connections), 6),
        };
        let shared_levels = shared_levels.unwrap_or(levels);
        Parameters {
            users,
            shared_composites_per_user: shared_composites,
            shared_levels,
            seed,
            ..of
        }
    }
}

async fn make(
    node: &Node,
    (name, page_bytes): (&str, u32),
    parameters: &Parameters,
    mut shown: Progress,
    common: &Common,
) -> Result<()> {
    let options = VolumeOptions { page_bytes, ..VolumeOptions::new(name) };
    let volume = node.create_volume(options).await?;
    let session = session(&volume, Consistency::Serializable, CHECK_LIMIT);
    let made = build(&volume, &session, parameters, |progress| {
        let (done, known) = (u64::from(progress.composites), u64::from(progress.of));
        shown.show(Step { done, known: Some(known), bytes: None });
    })
    .await;
    let elapsed = shown.finish();
    made.with_context(|| {
        format!("volume {name} holds no whole database: delete it, and make it again")
    })?;
    let info = node.volume_info(volume.id()).await?;
    let report = json!({
        "volume": name,
        "pages": info.pages,
        "page_bytes": page_bytes,
        "bytes": info.bytes,
        "seconds": elapsed.as_secs_f64(),
    });
    let bytes = HumanBytes(info.bytes);
    let text = format!("volume {name} made: {} pages, {bytes}", info.pages);
    show(&report, common, &text)
}

/// The transactions that are counted, and since when.
struct Counted {
    report: Report,
    before: Summary,
    /// Pages that had come from neighbours.
    helped: u64,
    start: Instant,
}

impl Work {
    async fn run(&self, volume: &Volume, mut shown: Progress, common: &Common) -> Result<()> {
        if self.limit.0.is_zero() {
            bail!(larder_oo7::Error::Invalid("--limit: no transaction takes no time".into()));
        }
        let session = session(volume, self.consistency.into(), self.limit.0);
        let database = open(volume, &session).await?;
        if self.module >= database.modules() {
            let (module, modules) = (self.module, database.modules());
            let error = format!("module {module}: there are {modules}, counted from 0");
            bail!(larder_oo7::Error::Invalid(error));
        }
        let metrics = volume.node().metrics();
        let mut counted = None;
        let ended = {
            let mut work = pin!(async {
                for number in 0..self.warm {
                    self.one(&database, &session, number).await?;
                }
                let (before, start) = (metrics.summary(), Instant::now());
                let helped = metrics.peer_fetches().pages;
                let report = Report::default();
                let counted = counted.insert(Counted { report, before, helped, start });
                for number in self.warm.. {
                    counted.report.add(&self.one(&database, &session, number).await?);
                    let done = counted.report.transactions() as u64;
                    let known = self.time.is_none().then_some(self.transactions);
                    shown.show(Step { done, known, bytes: None });
                    if self.is_over(done, start.elapsed()) {
                        break;
                    }
                    self.pause(start.elapsed()).await;
                }
                Ok(())
            });
            tokio::select! {
                ended = &mut work => ended,
                interrupted = interrupted() => Err(interrupted),
            }
        };
        shown.finish();
        let Some(Counted { mut report, before, helped, start }) = counted else {
            return ended.context("before the first transaction that counts");
        };
        let mut told = self.told(volume);
        let run = report.json(start.elapsed());
        told.extend(run.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        told.insert("ended".into(), ended.as_ref().err().map(|error| format!("{error:#}")).into());
        told.insert("cache".into(), since(&before, &metrics.summary()));
        told.insert("neighbours".into(), of_neighbours(helped, metrics.peer_fetches()));
        if common.json {
            out::line(Value::Object(told))?;
        } else {
            out::line(report.table())?;
            out::line(text(&told))?;
        }
        match ended {
            Err(error) if error.is::<Interrupted>() => {
                if !common.json {
                    out::fault("larder: interrupted: this is what was done until then");
                }
                Ok(())
            }
            ended => ended,
        }
    }

    /// What was asked for, so that a result tells what it is of.
    fn told(&self, volume: &Volume) -> Map<String, Value> {
        let Self { operations, module, warm, seed, same, .. } = *self;
        let consistency = self.consistency.to_possible_value();
        let told = json!({
            "volume": volume.info().name,
            "mix": self.mix.to_string(),
            "operations_each": operations,
            "module": module,
            "warm": warm,
            "seed": seed,
            "same": same,
            "think_ms": self.think.0.as_secs_f64() * 1e3,
            "consistency": consistency.map(|value| value.get_name().to_owned()),
        });
        told.as_object().cloned().unwrap_or_default()
    }

    async fn one(&self, database: &Database, session: &Session, number: u64) -> Result<Done> {
        let Self { operations, module, seed, .. } = *self;
        let workload = Workload { mix: self.mix.clone(), operations, module, seed };
        let number = if self.same { 0 } else { number };
        let epoch = Instant::now();
        Ok(workload.run(database, session, number, &|| epoch.elapsed()).await?)
    }

    fn is_over(&self, done: u64, elapsed: Duration) -> bool {
        match &self.time {
            Some(time) => elapsed >= time.0 || done >= TRANSACTIONS_MAX,
            None => done >= self.transactions,
        }
    }

    /// Thinks, no longer than the run is to take. A sleep of no time takes a millisecond; and without any
    /// pause transactions that find everything in memory would not let Ctrl-C be heard.
    async fn pause(&self, elapsed: Duration) {
        let left = self.time.as_ref().map_or(Duration::MAX, |time| time.0.saturating_sub(elapsed));
        match self.think.0.min(left) {
            Duration::ZERO => yield_now().await,
            think => sleep(think).await,
        }
    }
}

/// Somebody ends the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Error {
    let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Interrupted.into()
}

impl From<Claim> for Consistency {
    fn from(claim: Claim) -> Self {
        match claim {
            Claim::Strict => Self::Strict,
            Claim::Serializable => Self::Serializable,
            Claim::Snapshot => Self::Snapshot,
        }
    }
}

/// What was read and said since.
fn since(before: &Summary, after: &Summary) -> Value {
    let count = |of: &Summary, received: bool| {
        let messages = if received { &of.received } else { &of.sent };
        let counts = messages.values().map(|count| (count.messages, count.bytes));
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    };
    let between = |received| {
        let (then, now) = (count(before, received), count(after, received));
        json!({"messages": now.0 - then.0, "bytes": now.1 - then.1})
    };
    json!({
        "hits": after.hits - before.hits,
        "misses": after.misses - before.misses,
        "committed": after.committed - before.committed,
        "local": after.local - before.local,
        "sent": between(false),
        "received": between(true),
    })
}

/// What came from neighbours since; null of a node that never had a page from one.
fn of_neighbours(before: u64, after: PeerFetch) -> Value {
    if after.pages == 0 {
        return Value::Null;
    }
    let (pages, median, p99) = (after.pages - before, after.median_us, after.p99_us);
    json!({ "pages": pages, "median_us": median, "p99_us": p99 })
}

fn text(told: &Map<String, Value>) -> String {
    let [transactions, hits, misses] =
        [&told["transactions"], &told["cache"]["hits"], &told["cache"]["misses"]];
    let received = told["cache"]["received"]["bytes"].as_u64().unwrap_or_default();
    let (seconds, rate) = (&told["seconds"], &told["per_s"]);
    let [seconds, rate] = [seconds, rate].map(|value| value.as_f64().unwrap_or_default());
    let bytes = HumanBytes(received);
    let pages = told["neighbours"]["pages"].as_u64();
    let pages = pages.map(|pages| format!(", {pages} pages from neighbours")).unwrap_or_default();
    format!(
        "{transactions} transactions in {seconds:.1} s ({rate:.1}/s); {hits} reads from memory, {misses} that \
         waited for a page; {bytes} received{pages}"
    )
}
