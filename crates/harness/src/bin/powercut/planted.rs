//! Faults planted into the file system and into the process that has the store open: each must be found
//! within a few cuts, or the judge is blind.

use super::mount::Unsynced;
use super::run::{Bench, Counts, Planted};
use super::worker::WorkerFault;
use super::{CUTS_A_STORE, Options};
use anyhow::{Result, ensure};
use larder_core::machine::Faults;
use serde_json::json;

/// Cuts within which each must be found.
const CUTS_MAX: u64 = 400;

/// Name, what is left out, and where.
const FAULTS: [(&str, &str, Planted); 8] = [
    ("no-file-syncs", "no sync of a file does anything", of_disk(Unsynced::Files)),
    ("no-folder-syncs", "no sync of a folder does anything", of_disk(Unsynced::Folders)),
    ("engine-unsynced", "the page engine's files are not synced", of_disk(Unsynced::Engine)),
    ("log-unsynced", "the log's files are not synced", of_disk(Unsynced::Log)),
    ("append-unsynced", "the log answers before its sync", of_worker(WorkerFault::AppendUnsynced)),
    (
        "recovery-unsynced",
        "recovery serves what it read without writing and syncing it again",
        of_worker(WorkerFault::RecoveryUnsynced),
    ),
    (
        "install-answered-first",
        "an install is answered before it is begun",
        of_worker(WorkerFault::InstallAnsweredFirst),
    ),
    (
        "trim-first",
        "the log is trimmed before the install is durable",
        of_worker(WorkerFault::TrimFirst),
    ),
];

const fn of_disk(unsynced: Unsynced) -> Planted {
    Planted { unsynced, worker: WorkerFault::None }
}

const fn of_worker(worker: WorkerFault) -> Planted {
    Planted { unsynced: Unsynced::None, worker }
}

/// Plants one after the other. An error when one is not found.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut missed = Vec::new();
    for (name, what, planted) in FAULTS {
        if options.fault.as_deref().is_some_and(|fault| fault != name) {
            continue;
        }
        let in_the_log =
            matches!(planted.worker, WorkerFault::AppendUnsynced | WorkerFault::RecoveryUnsynced);
        // Switches of the log itself, which builds that are shipped do not have.
        if in_the_log && !Faults::COMPILED_IN {
            continue;
        }
        let (mut counts, mut found, mut seed) = (Counts::default(), None, options.seed);
        let mut bench = Bench::new(planted, 0, false)?;
        while found.is_none() && counts.cuts < CUTS_MAX {
            found = bench.run(seed, CUTS_A_STORE, &mut counts).err();
            seed += 1;
        }
        let by = found.as_ref().map(|error| format!("{error:#}"));
        let first = by.as_deref().and_then(|by| by.lines().next()).unwrap_or("nothing");
        if options.json {
            let caught = found.is_some();
            println!(
                "{}",
                json!({ "planted": name, "caught": caught, "cuts": counts.cuts, "by": first })
            );
        } else {
            println!("{name} ({what}): {} cuts: {first}", counts.cuts);
        }
        if found.is_none() {
            missed.push(name);
        }
    }
    ensure!(missed.is_empty(), "not found within {CUTS_MAX} cuts: {}", missed.join(", "));
    Ok(())
}
