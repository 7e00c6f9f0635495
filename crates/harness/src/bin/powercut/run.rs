//! One store and what befalls it: processes that work on it, power cuts, kills and orderly ends, until
//! enough or until something is found.

use super::disk::{Disk, ROOT};
use super::model::Model;
use super::mount::{Kill, Tree, Unsynced};
use super::work::Change;
use super::worker::{Setup, WorkerFault};
use anyhow::{Context, Result, bail, ensure};
use fuser::BackgroundSession;
use larder_core::rng::Rng;
use rustix::process::Pid;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Where the store is below the mount.
const STORE: &str = "store";
const ENGINE: &[&str] = &[STORE, larder_store::driver::PAGES_NAME];
/// A process that says nothing for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Records in the log that are not installed, at most: beyond them only installs go on.
const BEHIND_MAX: u64 = 400;

/// What is wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Planted {
    pub(crate) unsynced: Unsynced,
    pub(crate) worker: WorkerFault,
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) stores: u64,
    pub(crate) cuts: u64,
    /// Those of them that came before a recovery had ended.
    pub(crate) in_recovery: u64,
    pub(crate) kills: u64,
    pub(crate) ends: u64,
    pub(crate) appends: u64,
    pub(crate) installs: u64,
    pub(crate) changes: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.stores += other.stores;
        self.cuts += other.cuts;
        self.in_recovery += other.in_recovery;
        self.kills += other.kills;
        self.ends += other.ends;
        self.appends += other.appends;
        self.installs += other.installs;
        self.changes += other.changes;
    }
}

/// A mount, used for one store after another.
pub(crate) struct Bench {
    tree: Tree,
    point: PathBuf,
    session: Option<BackgroundSession>,
    planted: Planted,
    /// As of the last cut, for whoever looks for a cause.
    kept: Option<Disk>,
}

impl Bench {
    /// Mounts a tree in a folder of its own.
    pub(crate) fn new(planted: Planted, number: usize, keep: bool) -> Result<Self> {
        let own = format!("larder-powercut-{}-{number}", std::process::id());
        let point = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&point)?;
        let tree = Tree::new(planted.unsynced, ENGINE);
        let session = tree.mount(&point).context("mounting needs root and /dev/fuse")?;
        let kept = keep.then(Disk::new);
        Ok(Self { tree, point, session: Some(session), planted, kept })
    }

    /// Runs one store through `cuts` power cuts. What is found wrong is said with the number of cuts
    /// until then.
    pub(crate) fn run(&mut self, seed: u64, cuts: u64, counts: &mut Counts) -> Result<()> {
        self.tree.disk(Disk::clear);
        let mut rng = Rng::new(seed);
        let setup = Setup {
            segment_bytes: (4 + rng.below(28)) << 12,
            memtable_bytes: (16 + rng.below(240)) << 10,
            threads: 1 + rng.below(2) as usize,
            fault: self.planted.worker,
        };
        let mut run = Run {
            bench: self,
            setup,
            rng,
            model: Model::default(),
            life: 0,
            killed: false,
            counts,
        };
        run.counts.stores += 1;
        let before = run.counts.cuts;
        while run.counts.cuts - before < cuts {
            run.live()?;
        }
        Ok(())
    }

    /// Writes what the store was before the process that found something to a folder, if that is kept.
    pub(crate) fn write_out(&self, to: &Path) -> Result<()> {
        match &self.kept {
            Some(disk) => Ok(disk.write_out(ROOT, to)?),
            None => Ok(()),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tree.power_off();
        if let Some(session) = self.session.take() {
            let _ends_with_the_process = session.umount_and_join();
        }
        let _left_behind = std::fs::remove_dir(&self.point);
    }
}

struct Run<'a> {
    bench: &'a mut Bench,
    setup: Setup,
    rng: Rng,
    model: Model,
    life: u64,
    /// The last process was killed, and the power was not cut.
    killed: bool,
    counts: &'a mut Counts,
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// With the power.
    Cut,
    /// Killed: what it wrote is there, synced or not.
    Kill,
    /// By itself, and then the power goes.
    Orderly,
}

impl Run<'_> {
    /// One process, from its start to its end.
    fn live(&mut self) -> Result<()> {
        self.life += 1;
        let end = match self.rng.below(20) {
            0..=4 => End::Kill,
            5 => End::Orderly,
            _ => End::Cut,
        };
        // Often while it recovers.
        let range = [60, 150, 500, 1200][self.rng.below(4) as usize];
        let change = 1 + self.rng.below(range);
        self.bench.tree.power_on();
        let place = self.bench.point.join(STORE);
        let mut worker = Worker::start(&place, &self.setup)?;
        if end != End::Orderly {
            let (in_sync, process) = (end == End::Kill, worker.pid());
            self.bench.tree.kill(Kill { change, in_sync, process });
        }
        let mut volumes = String::new();
        for volume in self.model.volumes() {
            write!(volumes, " {volume}")?;
        }
        worker.tell(&format!("open {}{volumes}\n", self.life));
        let recovered = self.recover(&mut worker)?;
        // What was not synced at the kill, and was shown by this recovery, must have been synced by it.
        if recovered && end == End::Cut && self.killed {
            self.bench.tree.power_off();
            worker.kill()?;
        } else if recovered {
            self.work(&mut worker, if end == End::Orderly { change } else { u64::MAX })?;
        }
        self.killed = end == End::Kill;
        let ended = worker.end()?;
        self.counts.changes += self.bench.tree.changes();
        if !self.bench.tree.is_off() {
            ensure!(
                end == End::Orderly && recovered && ended.success,
                "the process ended by itself ({}): {}",
                ended.status,
                ended.complaint
            );
            self.bench.tree.power_off();
        }
        match end {
            End::Kill => self.counts.kills += 1,
            End::Orderly => self.counts.ends += 1,
            End::Cut => {}
        }
        if end != End::Kill {
            self.counts.cuts += 1;
            self.counts.in_recovery += u64::from(!recovered);
            self.bench.tree.cut_power(&mut self.rng);
        }
        if let Some(kept) = &mut self.bench.kept {
            *kept = self.bench.tree.disk(|disk| disk.clone());
        }
        Ok(())
    }

    /// Hears what the store holds, and judges it; says whether the process lived to tell it all.
    fn recover(&mut self, worker: &mut Worker) -> Result<bool> {
        let mut told = Vec::new();
        while let Some(line) = worker.hear()? {
            match line.as_str() {
                "making" => self.model.is_being_made()?,
                "ready" => {
                    self.model.judge(&told)?;
                    return Ok(true);
                }
                _ => told.push(line),
            }
        }
        Ok(false)
    }

    /// Has it work until it is killed, or until it has made so many changes and ends.
    fn work(&mut self, worker: &mut Worker, changes: u64) -> Result<()> {
        let (mut appending, mut installing, mut giving) = (false, false, false);
        let mut quitting = false;
        loop {
            quitting |= self.bench.tree.changes() >= changes;
            if !quitting {
                if !appending && self.model.behind() < BEHIND_MAX {
                    worker.tell(&append(&self.model.draw(&mut self.rng, self.life)));
                    appending = true;
                }
                let idle = !appending && !giving;
                if !installing
                    && (idle || self.rng.chance(1, 3))
                    && let Some(batch) = self.model.draw_batch(&mut self.rng)
                {
                    worker.tell(&format!("install {}\n{}", batch.through, batch.to_lines()));
                    installing = true;
                }
                if !giving && self.rng.chance(1, 60) {
                    worker.tell("give-back\n");
                    giving = true;
                }
            } else if !appending && !installing && !giving {
                worker.tell("quit\n");
            }
            let Some(line) = worker.hear()? else {
                return Ok(());
            };
            let mut words = super::work::Words::new(&line);
            match words.word()? {
                "appended" => {
                    appending = false;
                    self.counts.appends += 1;
                    self.model.appended(words.number()?);
                }
                "installed" => {
                    installing = false;
                    self.counts.installs += 1;
                    let through = self.model.is_installed()?;
                    worker.tell(&format!("trim {through}\n"));
                }
                "gave-back" => giving = false,
                _ => bail!("the process said \"{line}\""),
            }
        }
    }
}

fn append(changes: &[Change]) -> String {
    let mut lines = format!("append {}\n", changes.len());
    for change in changes {
        lines.push_str(&change.to_line());
        lines.push('\n');
    }
    lines
}

/// The process that has the store open, as seen from here.
struct Worker {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
    complaint: Option<std::thread::JoinHandle<String>>,
}

struct Ended {
    success: bool,
    status: String,
    complaint: String,
}

impl Worker {
    fn start(place: &Path, setup: &Setup) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .arg(place)
            .args(setup.words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let out = child.stdout.take().context("it is piped")?;
        let mut errors = child.stderr.take().context("it is piped")?;
        let (say, from) = channel();
        std::thread::spawn(move || {
            let (mut out, mut line) = (BufReader::new(out), String::new());
            // A line that was cut off says nothing.
            while out.read_line(&mut line).is_ok() && line.ends_with('\n') {
                line.pop();
                if say.send(std::mem::take(&mut line)).is_err() {
                    break;
                }
            }
        });
        let complaint = std::thread::spawn(move || {
            let mut text = String::new();
            let _as_far_as_it_is_text = errors.read_to_string(&mut text);
            text.trim().to_owned()
        });
        Ok(Self { child, to, from, complaint: Some(complaint) })
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("it is ours")
    }

    /// Tells it something; it may be gone, which is heard.
    fn tell(&mut self, lines: &str) {
        if let Some(to) = &mut self.to {
            let _gone = to.write_all(lines.as_bytes());
        }
    }

    /// What it says next; none: it has ended.
    fn hear(&mut self) -> Result<Option<String>> {
        match self.from.recv_timeout(SILENCE_MAX) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the process has said nothing for {SILENCE_MAX:?}")
            }
        }
    }

    /// Waits until it has ended.
    fn end(mut self) -> Result<Ended> {
        self.to = None;
        let until = Instant::now() + SILENCE_MAX;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => bail!("the process does not end"),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        };
        let complaint = self.complaint.take().context("it is joined once")?;
        let complaint = complaint.join().map_err(|_panic| anyhow::anyhow!("a thread panicked"))?;
        Ok(Ended { success: status.success(), status: status.to_string(), complaint })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}
