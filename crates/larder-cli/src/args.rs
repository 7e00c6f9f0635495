//! The command line: what can be asked, with its help.

use crate::bench::BenchCommand;
use crate::bundle::BundleArgs;
use crate::ca::CaCommand;
use crate::mount::Consistency;
use crate::top::TopArgs;
use clap::{Args, Parser, Subcommand};
use larder::config::{Period, Size};
use larder_core::rights::{EVERYBODY, Right, RightsEdit, is_pattern};
use std::path::PathBuf;

/// A coherent wide-area cache for shared, changing data.
#[derive(Parser, Debug)]
#[command(name = "larder", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, \
  5 unavailable or timed out, 6 damaged data.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Started by a mount that goes to the background
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// TOML file with settings (docs/settings.md); LARDER_ variables (e.g. LARDER_NODE_PARENT) and
    /// flags go over it
    #[arg(long, global = true, env = "LARDER_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What to log, e.g. `info` or `larder=debug,warn`
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Log one JSON object a line
    #[arg(long, global = true)]
    pub(crate) log_json: bool,
    /// Append the log to this file, made for its owner alone [default: standard error, or for a
    /// mount in the background /var/log/larder or ~/.local/state/larder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Print results as JSON (`ca`, `volume`, `status`, `group`, `top`, `bench` and `support-bundle`)
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Set any key of the settings, e.g. `--set link.silence_max=20s`; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// Who this process is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Identity {
    /// Folder with ca.pem, NAME.pem and NAME-key.pem
    #[arg(long, value_name = "DIR")]
    pub(crate) tls: Option<PathBuf>,
    /// This process's name, as its certificate proves it
    #[arg(long)]
    pub(crate) name: Option<String>,
}

/// The link to the parent.
#[derive(Args, Clone, Debug)]
pub(crate) struct Parent {
    #[command(flatten)]
    pub(crate) identity: Identity,
    /// Address of the origin or relay above; those of several origins, or relays of them, with commas between
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) parent: Option<String>,
    /// The name the parent's certificate must have [default: any that may serve]
    #[arg(long, value_name = "NAME")]
    pub(crate) parent_name: Option<String>,
}

/// A node's link to its parent.
#[derive(Args, Clone, Debug)]
pub(crate) struct Uplink {
    #[command(flatten)]
    pub(crate) parent: Parent,
    /// Which of the processes under its name this is: each needs an instance of its own [default:
    /// none for a mount or node, one of its own for a command]
    #[arg(long, value_name = "WORD")]
    pub(crate) instance: Option<String>,
    /// Longest wait for an answer, e.g. `30s`
    #[arg(long, value_name = "DURATION")]
    pub(crate) request_limit: Option<String>,
}

/// How a group finds its redirector itself.
#[derive(Args, Clone, Debug)]
pub(crate) struct Election {
    /// Where others of the group may be found, with commas between: the group then finds its redirector itself,
    /// and the parent is the redirector's
    #[arg(long, value_name = "HOST:PORT,...")]
    pub(crate) group_seeds: Option<String>,
    /// The same by multicast on the LAN, e.g. at `239.255.47.85:4785`
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) group_multicast: Option<String>,
    /// Whether this process may become the redirector: `elected` (if its certificate lets it serve), `pinned` or
    /// `member` [default: elected]
    #[arg(long, value_name = "ROLE")]
    pub(crate) group_role: Option<String>,
    /// Where others of the group reach this process [default: found out]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) group_address: Option<String>,
}

/// A member's place in a group of neighbours.
#[derive(Args, Clone, Debug)]
pub(crate) struct Membership {
    /// Share caches with the members of this group, whose redirector is the parent; the certificate must
    /// be of it
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    #[command(flatten)]
    pub(crate) election: Election,
    /// Where to listen for neighbours [default: any free port]
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) group_listen: Option<String>,
}

/// A process that serves for long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Serve {
    /// Address for /metrics, /healthz, /readyz and /status
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a certificate authority; issue, renew, revoke and list certificates
    #[command(subcommand)]
    Ca(CaCommand),
    /// Serve volumes: keep them durable, make commits
    Origin(OriginArgs),
    /// Serve children below one link to a parent, or one to each of several
    Relay(RelayArgs),
    /// Run a node by itself: a cache that is warm and watched
    Node(NodeArgs),
    /// Mount a volume's tree of files; goes to the background when it can be used
    Mount(MountArgs),
    /// End mounts, and wait until all that was written is committed
    Unmount(UnmountArgs),
    /// Make, list, fill, copy out and check volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Show a running process's state, from its HTTP endpoint
    Status(StatusArgs),
    /// Show the group of a running member or redirector, from its HTTP endpoint: who is in it, who is reached,
    /// what the directory and retained updates take, where pages came from
    Group(StatusArgs),
    /// Watch running processes side by side, from their HTTP endpoints: what they read, commit, send
    /// and wait for, every second, until Ctrl-C
    ///
    /// On a terminal the screen is drawn anew; elsewhere a table is printed each time, and with
    /// `--json` one object a line. Rates are those of the time between two looks.
    Top(TopArgs),
    /// Run published workloads on volumes of a running origin
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Collect what somebody who helps from afar wants to see into a tar.gz
    ///
    /// Version, settings, `LARDER_` variables, what processes tell of themselves, the ends of logs,
    /// Larder's mounts, room on disks, names and ends of certificates, facts of the machine. No keys,
    /// and no content of files; logs may name files and users. The archive is for its owner alone,
    /// and its parts are listed.
    SupportBundle(BundleArgs),
    /// Write the man pages of all commands into a folder
    Manual {
        /// The folder: made when it is not there
        folder: PathBuf,
    },
    /// Print the completions of a shell, to be sourced by it
    Completions {
        /// Which
        shell: clap_complete::Shell,
    },
    /// Say which version this is, and whether planted faults are compiled in: never in a release
    Version,
}

#[derive(Args, Debug)]
pub(crate) struct OriginArgs {
    /// Folder of the store
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Make the store: for the first start alone, and refused where one is. Without it a folder
    /// that holds no store is refused, since its disk may not be mounted
    #[arg(long)]
    pub(crate) create: bool,
    /// Address to serve at
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// How many order domains the store is to have: those that it lacks are made
    #[arg(long, value_name = "N")]
    pub(crate) domains: Option<u32>,
    /// Another origin, with whose domains there may be transactions over both; may be repeated. It is to list this
    /// one, too, and both need a certificate of `--role origin` that was issued since there are such links
    #[arg(long = "peer", value_name = "NAME=HOST:PORT")]
    pub(crate) peers: Vec<String>,
    /// Serve children that saw commits which this store lost: they drop what they saw after the
    /// fork; and be heard by other origins that saw them. For a store restored from a backup, once its loss is
    /// accepted
    #[arg(long)]
    pub(crate) accept_fork: bool,
    #[command(flatten)]
    pub(crate) identity: Identity,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Args, Debug)]
pub(crate) struct RelayArgs {
    /// Be the redirector of this group of neighbours: of those of its members who link here
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    #[command(flatten)]
    pub(crate) election: Election,
    /// Address to serve at
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) parent: Parent,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

/// The cache in memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct Memory {
    /// Memory for cached pages, e.g. `1GiB`
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// Volumes to keep attached; may be repeated
    #[arg(long = "volume", value_name = "NAME")]
    pub(crate) volumes: Vec<String>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) uplink: Uplink,
    #[command(flatten)]
    pub(crate) membership: Membership,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Args, Debug)]
pub(crate) struct UnmountArgs {
    /// Where they are mounted
    #[arg(required = true, value_name = "POINT")]
    pub(crate) points: Vec<PathBuf>,
    /// End it also when somebody is in it: what was written until now is committed, and who is
    /// there meets errors
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// End a mount whose process does not answer: what it had not committed is lost
    #[arg(short, long)]
    pub(crate) force: bool,
    /// How long to wait until all is committed; past it the command fails, and its process goes on
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) timeout: Period,
}

#[derive(Args, Debug)]
pub(crate) struct MountArgs {
    /// The volume
    pub(crate) volume: String,
    /// Where to mount it: a folder that is there
    pub(crate) point: PathBuf,
    /// Stay in the foreground, and log to standard error
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Options of the kernel, as for `mount`: ro, nosuid, noexec, noatime, allow_other, …
    #[arg(short, long, value_name = "OPTION", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Let every user of the machine in, as the files' modes allow [default for root]
    #[arg(long, conflicts_with = "private")]
    pub(crate) allow_other: bool,
    /// Let nobody in but who mounts [default for all but root]
    #[arg(long)]
    pub(crate) private: bool,
    /// Refuse every write
    #[arg(long)]
    pub(crate) read_only: bool,
    /// How new what is shown must be
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(crate) consistency: Consistency,
    /// Have files made and closed only when they are committed, though that takes a round trip or two
    /// each. Without it, a mount with `--consistency follow` commits them right after, in the order in
    /// which they were closed; the others always wait
    #[arg(long)]
    pub(crate) wait_commits: bool,
    /// Have the kernel ask at every open and close of a file, and not open files by itself, as it does
    /// with `--consistency follow` for root
    #[arg(long)]
    pub(crate) ask_opens: bool,
    /// When the link lease has lapsed, or the latest state cannot be had: `serve` what is cached,
    /// its age known, or `refuse` [default: `serve` with `--consistency follow`, else `refuse`]
    #[arg(long, value_name = "WHAT", value_parser = ["serve", "refuse"])]
    pub(crate) when_stale: Option<String>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) uplink: Uplink,
    #[command(flatten)]
    pub(crate) membership: Membership,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Subcommand, Debug)]
pub(crate) enum VolumeCommand {
    /// Make a volume with an empty tree of files
    Create {
        /// Its name: 1 to 128 letters, digits, `-`, `_`, `.`
        volume: String,
        /// Bytes of a page: a power of two from 4KiB to 1MiB
        #[arg(long, value_name = "SIZE", default_value = "32KiB", value_parser = page_bytes)]
        page_size: u32,
        /// Make no tree: a bare volume for programs that use the library
        #[arg(long)]
        bare: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// List the volumes that may be read
    List {
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Show one volume
    Info {
        /// Its name
        volume: String,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Copy a folder into a volume; run it again to go on after an interruption
    Import {
        /// The volume
        volume: String,
        /// The folder
        source: PathBuf,
        /// Make the volume if it is not there, and its tree if the volume is empty
        #[arg(long)]
        create: bool,
        /// Bytes of a page of a volume to be made
        #[arg(long, value_name = "SIZE", default_value = "32KiB", value_parser = page_bytes)]
        page_size: u32,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Copy a volume's tree into a folder; run it again to go on after an interruption
    ///
    /// Each directory is copied as of one moment; the whole is, if nobody changes it meanwhile.
    /// Until it is whole the folder holds a file `.larder-export`, which says that it is not, and is
    /// nobody's but the exporter's (mode 0700), as are all in it. Run again, it writes what changed in
    /// the volume since the first run began, and what is not there; after a restart of the machine, all.
    Export {
        /// The volume
        volume: String,
        /// The folder: made when it is not there, else it must be empty, or hold this volume's
        /// unfinished export
        target: PathBuf,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Copy a volume into one file, as it was at one moment, while it is in use
    ///
    /// Pages are copied, then those that changed meanwhile, again and again; the last of them are
    /// held by the origin as they were at one stamp. So the file holds the volume exactly as of that
    /// stamp, and everything that was committed before the command began. Nobody who writes is kept
    /// waiting. FILE is written under the name FILE.partial and renamed when it is whole. What fails
    /// on the way leaves FILE as it was. Any node may back up what it may read; do it near the origin.
    /// While the origin is busy with the backups of others, it waits for its turn.
    Backup {
        /// The volume
        volume: String,
        /// The file, or `-` for standard output; one that is there is replaced in the end
        file: PathBuf,
        /// Leave out pages that are damaged at the origin, where the first of them would end the backup.
        /// The file says which they are; the command ends with 6 if there is one, when all else is done
        #[arg(long)]
        leave_out_damaged: bool,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Make a volume from a file that `volume backup` wrote; run it again to go on after an
    /// interruption
    ///
    /// The volume is a new one, with an id of its own: caches and mounts of the old one have nothing
    /// to do with it. Locks are not restored, and files that were removed while open are freed. The
    /// file is looked through before anything is done. Until the last step the volume holds no tree
    /// that could be mounted. It has no quota; set it anew. It has none of the rights of the old one either:
    /// you administer it, and nobody else may do anything, unless `--grant` and `--default` say so here, or
    /// `larder volume rights` later. Pages that the backup had to leave out are
    /// not there: the command ends with 6 then, and `larder volume check --repair` mends what stood on
    /// them. In files with holes they read as zeros.
    Restore {
        /// The file
        file: PathBuf,
        /// The new volume's name
        volume: String,
        /// Give an identity a right to the new volume: `alice=write`, `render-*=read`. Through a relay,
        /// the relay needs `admin`
        #[arg(long, value_name = "ID=RIGHT", value_parser = grant)]
        grant: Vec<RightsEdit>,
        /// What everybody else may do with the new volume
        #[arg(long, value_name = "RIGHT", default_value_t = Right::None)]
        default: Right,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Look through a file that `volume backup` wrote: whether it is whole, and what it holds
    ///
    /// No origin is needed. Every part and every page is checked. Ends with 6 if the file is damaged, or
    /// not whole, or if pages had to be left out of it; those are listed by `--json`.
    Verify {
        /// The file, or `-` for standard input
        file: PathBuf,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show or set a volume's quota: the most bytes that it may take at the origin
    ///
    /// What a volume takes is the bytes of its pages as the origin keeps them: what files hold, their
    /// names and attributes. A write that would pass the quota fails with EDQUOT ("Disk quota
    /// exceeded"); what frees or shrinks is always taken. A quota below what the volume takes lets it
    /// shrink. `df` at a mount shows the quota.
    Quota {
        /// The volume
        volume: String,
        /// The quota, e.g. `10GiB`, or `none` [default: show it]
        #[arg(value_name = "BYTES", value_parser = quota)]
        bytes: Option<Quota>,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Delete a volume, for good
    ///
    /// When this ends with 0 the deletion is durable: the volume's name is free, and whoever uses it is
    /// refused from then on. Mounts of it answer ESTALE ("Stale file handle"), and what was written
    /// through them and not committed is lost. Its pages are removed in the background, and their space
    /// is given back when all of them are. Nothing brings a deleted volume back but a backup of the
    /// origin.
    Delete {
        /// The volume
        volume: String,
        /// Do not ask for the name to be typed; wanted where there is no terminal
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Show or change who may do what with a volume
    ///
    /// An identity is the name of a certificate, whatever its instance, or the beginning of names with
    /// a `*`: `render-*`. Rights are `none`, `read`, `write` (which reads as well) and `admin` (which
    /// changes quota and rights as well). For each certificate the entry that fits best holds: its
    /// name, else the longest beginning, else `*`, else the origin's `origin.default_rights`; whoever
    /// is in `origin.admins` may do everything. Through a relay nobody may do more than the relay
    /// itself: give it the right too. A change is durable and in force when the command ends, also for
    /// those who are connected. Needs the right `admin`
    Rights {
        /// The volume
        volume: String,
        #[command(flatten)]
        changes: RightsChanges,
        #[command(flatten)]
        uplink: Uplink,
    },
    /// Check a volume's tree (over a link), or the store of an origin that is not running (`--data`)
    ///
    /// Ends with 0 when all holds, or was repaired; with 6 when something is left that does not.
    Check {
        /// The volume
        #[arg(required_unless_present = "data")]
        volume: Option<String>,
        /// Check the store in this folder instead: log, pages and change index
        #[arg(long, value_name = "DIR", conflicts_with = "volume")]
        data: Option<PathBuf>,
        /// First free files that were removed while open, when no node has said for AGE that it
        /// holds them. Mounts do it by themselves after `node.orphan_age`; `0` frees all: for
        /// when no node is running
        #[arg(long, value_name = "AGE", conflicts_with = "data")]
        free_orphans: Option<String>,
        /// Mend what does not hold, while the volume is in use: counts and parents are set right, names
        /// that lead nowhere are removed, files and directories without a name come to `lost+found`,
        /// bytes that are missing are zeros. Where a directory cannot be read, what was in it is looked for
        /// through all of the volume, which is copied for that, and comes to `lost+found` as well. Each repair looks again first. What was done is told
        #[arg(long, conflicts_with = "data")]
        repair: bool,
        /// Show no progress. Otherwise a bar on a terminal, elsewhere a line every five seconds, with
        /// `--json` an object a line; all on standard error
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        uplink: Uplink,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RightsChanges {
    /// Give an identity a right, in the place of what it has: `alice=write`, `render-*=read`
    #[arg(long, value_name = "ID=RIGHT", value_parser = grant)]
    pub(crate) grant: Vec<RightsEdit>,
    /// Take every right from an identity, the default ones too: the same as `--grant ID=none`
    #[arg(long, value_name = "ID", value_parser = revoke)]
    pub(crate) revoke: Vec<RightsEdit>,
    /// Remove the entry of an identity: what holds for everybody holds for it
    #[arg(long, value_name = "ID", value_parser = forget)]
    pub(crate) forget: Vec<RightsEdit>,
    /// What holds for everybody else: the same as `--grant '*=RIGHT'`
    #[arg(long, value_name = "RIGHT", value_parser = everybody)]
    pub(crate) default: Option<RightsEdit>,
    /// Do it also when it takes your own right to change rights again
    #[arg(long)]
    pub(crate) force: bool,
}

fn edit(who: &str, right: Option<Right>) -> Result<RightsEdit, String> {
    if !is_pattern(who) {
        return Err("a certificate's name, or the beginning of names with `*`, is wanted".into());
    }
    Ok(RightsEdit { who: who.into(), right })
}

fn grant(text: &str) -> Result<RightsEdit, String> {
    let (who, right) = text.split_once('=').ok_or("ID=RIGHT is wanted, as in `alice=write`")?;
    edit(who, Some(right.parse()?))
}

fn revoke(text: &str) -> Result<RightsEdit, String> {
    edit(text, Some(Right::None))
}

fn forget(text: &str) -> Result<RightsEdit, String> {
    edit(text, None)
}

fn everybody(text: &str) -> Result<RightsEdit, String> {
    edit(EVERYBODY, Some(text.parse()?))
}

/// A quota in bytes; none: no bound but the store's room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quota(pub(crate) Option<u64>);

fn quota(text: &str) -> Result<Quota, String> {
    if text == "none" {
        return Ok(Quota(None));
    }
    let size: Size = text.parse().map_err(|why| format!("{why}; or `none`"))?;
    Ok(Quota(Some(size.0)))
}

/// A page size. Checked here, so that a mistake is one of usage, told before anything is asked.
pub(crate) fn page_bytes(text: &str) -> Result<u32, String> {
    let size: Size = text.parse()?;
    let allowed = (4 << 10..=1 << 20).contains(&size.0) && size.0.is_power_of_two();
    let bytes = u32::try_from(size.0).ok().filter(|_| allowed);
    bytes.ok_or_else(|| "a power of two from 4KiB to 1MiB is wanted".into())
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// The process's HTTP endpoint
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4790")]
    pub(crate) http: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// `volume import NAME` once clashed with `--name`, and only at run time: clap checks a
    /// command's definition when it is used.
    #[test]
    fn every_command_is_well_defined() {
        super::Cli::command().debug_assert();
    }
}
