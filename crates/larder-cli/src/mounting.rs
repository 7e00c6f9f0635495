//! `larder mount`.

use crate::args::{Common, MountArgs};
use crate::kernel_options::KernelOptions;
use crate::limits;
use crate::mount::{Consistency, Keeps, MountOptions, Mounted, Standing, next_signal};
use crate::serve::{self, ENDED_BY_FAULT, Stopping};
use crate::settings::Flags;
use crate::standing_mounts::Registered;
use anyhow::{Context, Result, bail, ensure};
use larder::client::{Freshness, Node, Notices, Volume};
use larder::config::{Config, NodeSection};
use larder::core::rights::{Denied, Right};
use larder::fs::client::VolumeStore;
use larder::fs::{FileSystem, FsOptions, TxStore};
use larder::http::{Probe, Telling};
use larder::metrics::Metrics;
use rustix::io::Errno;
use rustix::process::geteuid;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// How long a look at the mount point may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody unmounted from outside.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What may be the matter when the kernel does not mount.
fn not_mounted(point: &Path) -> String {
    let who = if geteuid().is_root() {
        "is /dev/fuse there (modprobe fuse)?"
    } else {
        "is /dev/fuse there, yours to open, and fusermount3 installed (apt-get install fuse3)? For \
         --allow-other /etc/fuse.conf must say user_allow_other"
    };
    format!("mounting at {}: {who}", point.display())
}

/// What a mount tells about itself: the node's figures, and whether it stands.
struct MountProbe {
    node: Node,
    standing: Standing,
    tree: MountedTree,
    keeps: MountKeeps,
}

/// The tree that is mounted, once it is.
type MountedTree = Arc<OnceLock<Weak<FileSystem<VolumeStore>>>>;
/// What the mount keeps in memory, likewise.
type MountKeeps = Arc<OnceLock<Keeps<VolumeStore>>>;

impl MountProbe {
    /// Why every operation fails, if it does.
    fn fails(&self) -> Option<String> {
        let tree = self.tree.get().and_then(Weak::upgrade)?;
        tree.store().standing().err().map(|error| error.to_string())
    }
}

impl Probe for MountProbe {
    fn metrics(&self) -> &Metrics {
        self.node.metrics()
    }

    fn healthy(&self) -> Result<(), String> {
        self.node.healthy()
    }

    fn ready(&self) -> Result<(), String> {
        self.standing.now()?;
        self.fails().map_or(Ok(()), Err)?;
        self.node.ready()
    }

    fn notes(&self) -> Vec<String> {
        self.fails().into_iter().chain(self.node.notes()).collect()
    }

    fn status(&self) -> Telling<'_> {
        Box::pin(async {
            let mut status = Probe::status(&self.node).await;
            if let Some(keeps) = self.keeps.get() {
                keeps.tell(self.node.metrics());
            }
            status["mounted"] = self.standing.now().is_ok().into();
            status["fails"] = self.fails().into();
            let tree = self.tree.get().and_then(Weak::upgrade);
            status["waiting_bytes"] = tree.map(|tree| tree.waiting_bytes()).into();
            status
        })
    }
}

fn fs_options(node: &NodeSection) -> FsOptions {
    FsOptions {
        orphan_age: node.orphan_age.0,
        dropped_age: node.dropped_age.0,
        lock_lease: node.lock_lease.0,
        dirty_total_max: usize::try_from(node.dirty_bytes.0).unwrap_or(usize::MAX),
        write_limit: node.request_limit.0,
        ..FsOptions::default()
    }
}

/// The settings of a mount. Its paths hold wherever it goes.
pub(crate) fn config(arguments: &MountArgs, common: &Common) -> Result<Config> {
    KernelOptions::parse(&arguments.options)?;
    let mut config = Flags::default()
        .uplink(&arguments.uplink)
        .membership(&arguments.membership)
        .set("node.memory", arguments.memory.memory.as_ref())
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    config.tls_dir = std::path::absolute(&config.tls_dir)?;
    Ok(config)
}

/// A folder to mount on, and nothing of ours mounted there already.
async fn look_at(point: &Path) -> Result<()> {
    let (shown, looked) = (point.display().to_string(), point.to_path_buf());
    // A mount whose process stands still answers nobody.
    let look = tokio::task::spawn_blocking(move || std::fs::metadata(looked));
    let found = match tokio::time::timeout(LOOK_LIMIT, look).await {
        Ok(found) => found?,
        Err(_) => bail!("{shown} does not answer: what is mounted there? (umount -f -l {shown})"),
    };
    match found {
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            bail!("{shown} is a mount whose process is gone: umount -l {shown}")
        }
        Err(error) => Err(error).with_context(|| format!("{shown} cannot be looked at")),
        Ok(about) => {
            ensure!(about.is_dir(), "{shown} is not a folder");
            ensure!(!is_ours(point)?, "{shown} is a mount of Larder already: umount {shown}");
            Ok(())
        }
    }
}

/// Whether Larder is mounted there, by whichever process.
fn is_ours(point: &Path) -> Result<bool> {
    let mounts = std::fs::read("/proc/self/mounts")?;
    let point = escaped(point.canonicalize()?.as_os_str().as_bytes());
    Ok(mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(1);
        words.next() == Some(&point) && words.next() == Some(b"fuse.larder")
    }))
}

/// A path as the table of mounts has it.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{byte:03o}").bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

/// What is to be said of a volume that may only be read, so that its mount is read-only, as that of a
/// disk with write protection is. Refused, if one that can be written to was asked for by name.
fn only_reads(
    volume: &Volume,
    who: &str,
    read_only: bool,
    must_write: bool,
) -> Result<Option<String>> {
    if read_only || volume.right() >= Right::Write {
        return Ok(None);
    }
    let (volume, who) = (volume.info().name.clone(), who.to_owned());
    let denied = Denied { volume, who, has: Right::Read, needs: Right::Write };
    if must_write {
        bail!(larder::client::Error::Denied(Box::new(denied)));
    }
    Ok(Some(format!("mounted read-only: {denied}")))
}

/// Says what a mount may do, when that changes.
async fn tell_rights(mut notices: Notices, volume: Volume, read_only: bool) {
    let name = &volume.info().name;
    let mut known = volume.right();
    while notices.next().await.is_some() {
        let right = volume.right();
        if right == known {
            continue;
        }
        known = right;
        match right {
            Right::None => {
                tracing::error!(volume = %name, "the right to read was taken: all is refused (EACCES)");
            }
            Right::Read => {
                tracing::error!(volume = %name, "it may only be read: writes are refused (EROFS)");
            }
            Right::Write | Right::Admin if read_only => {
                tracing::warn!(volume = %name, "it may be written to: mount it again to do so");
            }
            Right::Write | Right::Admin => {
                tracing::warn!(volume = %name, "it may be written to again");
            }
        }
    }
}

/// Mounts, and serves until it is unmounted or asked to end; `usable` is called in between, with what
/// whoever mounts should know of it.
pub(crate) async fn run(
    arguments: &MountArgs,
    common: &Common,
    usable: impl FnOnce(Option<String>) -> Result<()>,
) -> Result<()> {
    let config = config(arguments, common)?;
    larder::log::init(&config.log)?;
    let point = &std::path::absolute(&arguments.point)?;
    look_at(point).await?;
    let asked = KernelOptions::parse(&arguments.options)?;
    limits::allow_descriptors();

    let mut stopping = Stopping::listen()?;
    let standing = Standing::default();
    let (told, keeps) = (MountedTree::default(), MountKeeps::default());
    let start = async {
        let node = Node::connect(config.node()).await?;
        let (standing, tree, keeps) = (standing.clone(), told.clone(), keeps.clone());
        let probe = MountProbe { node: node.clone(), standing, tree, keeps };
        let endpoint = serve::http(&config, Arc::new(probe)).await?;
        let volume = node.volume(&arguments.volume).await?;
        Ok((node, endpoint, volume))
    };
    let Some((node, _endpoint, volume)) = stopping.during(start).await? else {
        return Ok(());
    };
    let refuse_stale = match arguments.when_stale.as_deref() {
        Some(what) => what == "refuse",
        None => arguments.consistency != Consistency::Follow,
    };
    let freshness = if refuse_stale { Freshness::Leased } else { Freshness::Any };
    let read_only = arguments.read_only || asked.read_only == Some(true);
    let must_write = asked.read_only == Some(false);
    let only_reads = only_reads(&volume, &config.name, read_only, must_write)?;
    let read_only = read_only || only_reads.is_some();
    let mut options = MountOptions {
        // What a line of /etc/fstab says: `mount -a` knows by it what is mounted.
        name: arguments.volume.clone(),
        consistency: arguments.consistency,
        wait_commits: arguments.wait_commits,
        silent_opens: !arguments.ask_opens,
        refuse_stale,
        read_only,
        allow_other: asked.allow_other
            || arguments.allow_other
            || geteuid().is_root() && !arguments.private,
        flags: asked.flags,
        writers_max: config.node.writers_max as usize,
        standing,
        asked: node.metrics().asked(),
        ..MountOptions::default()
    };
    options.operation_limit = config.node.request_limit.0;
    let limit = options.operation_limit;
    let refuse_after = config.node.refuse_after.0;
    let store =
        VolumeStore::new(volume.clone(), freshness, limit, refuse_after, options.time_to_live_max);
    // Events from here on: nothing that changes after the first look-up is missed.
    let mut notices = node.notices();
    let tree = FileSystem::open(store, fs_options(&config.node))
        .await
        .with_context(|| format!("volume {}", arguments.volume))?;
    let (domain, id) = (volume.domain(), volume.id());
    let watcher = tokio::spawn(tell_rights(node.notices(), volume.clone(), read_only));
    let tree = Arc::new(tree);
    told.get_or_init(|| Arc::downgrade(&tree));
    let mounted =
        Mounted::mount(tree, point, options, move || next_signal(&mut notices, domain, id))
            .with_context(|| not_mounted(point))?;
    keeps.get_or_init(|| mounted.keeps());
    let registered = Registered::begin(point, &arguments.volume);
    tracing::info!(volume = %arguments.volume, point = %point.display(), "mounted");
    usable(only_reads)?;

    let mut broken = false;
    loop {
        tokio::select! {
            () = stopping.asked() => break,
            () = node.ended() => {
                broken = true;
                break;
            }
            () = tokio::time::sleep(LOOK_EVERY) => {
                if mounted.is_ended() {
                    break;
                }
            }
        }
    }
    let unmounted = mounted.unmount().await;
    watcher.abort();
    node.shutdown().await;
    let ended = unmounted.with_context(|| format!("unmounting {}", point.display()));
    if let (Some(mut registered), Err(error)) = (registered, &ended) {
        registered.lost(error);
    }
    ended?;
    anyhow::ensure!(!broken, ENDED_BY_FAULT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_asked_in_its_own_words() {
        assert_eq!(escaped(b"/x y\\z"), b"/x\\040y\\134z");
        assert_eq!(escaped("/größe".as_bytes()), "/größe".as_bytes());
        assert!(!is_ours(Path::new("/")).expect("it is there"));
    }
}
