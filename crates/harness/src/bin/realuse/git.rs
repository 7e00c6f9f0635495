//! Repositories: cloned, worked in at both sites at once, pushed to one that both share, collected and
//! checked.

use super::{Sites, at_both, outcome, run};
use anyhow::{Context, Result, ensure};
use larder_harness::process::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Commits that each site pushes.
const COMMITS: usize = 8;
/// How often a push that came too late is tried again.
const TRIES: usize = 50;
const SEEN: Duration = Duration::from_secs(30);

fn git(at: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(at).args(["-c", "safe.directory=*"]).args(words);
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "A. Author"),
        ("GIT_AUTHOR_EMAIL", "author@localhost"),
        ("GIT_COMMITTER_NAME", "A. Author"),
        ("GIT_COMMITTER_EMAIL", "author@localhost"),
        ("GIT_TERMINAL_PROMPT", "0"),
    ] {
        command.env(name, value);
    }
    command
}

fn commits(at: &Path) -> Result<usize> {
    Ok(run(&mut git(at, &["rev-list", "--count", "HEAD"]))?.trim().parse()?)
}

fn sound(at: &Path) -> Result<()> {
    run(&mut git(at, &["fsck", "--full", "--strict"]))?;
    Ok(())
}

pub(super) fn run_all(sites: &Sites) -> Result<Value> {
    let [one, two] = sites.at("git");
    fs::create_dir(&one)?;
    // The project's own sources are a tree as people have. Those of where it is run, not of where it was built:
    // several checkouts may share what is built, and the one that built it may be gone.
    let sources = std::env::current_dir()?.join("crates");
    ensure!(sources.is_dir(), "{} is not there: run this where the sources are", sources.display());
    let first = one.join("first");
    run(Command::new("cp").arg("-r").arg(&sources).arg(&first))?;
    run(&mut git(&first, &["init", "-q", "-b", "main"]))?;
    run(&mut git(&first, &["add", "-A"]))?;
    run(&mut git(&first, &["commit", "-q", "-m", "All of it"]))?;
    for number in 0..4 {
        fs::write(first.join(format!("note-{number}")), format!("{number}\n"))?;
        run(&mut git(&first, &["add", "-A"]))?;
        run(&mut git(&first, &["commit", "-q", "-m", "A note"]))?;
    }
    run(&mut git(&one, &["clone", "-q", "--bare", "first", "shared.git"]))?;
    wait_until("the repository at the second site", SEEN, || {
        sound(&two.join("shared.git")).context("it is on its way")
    })?;
    at_both(|site| {
        let at = &[&one, &two][site];
        run(&mut git(at, &["clone", "-q", "shared.git", &format!("clone-{site}")]))?;
        work(&at.join(format!("clone-{site}")), site)
    })?;
    let shared = [one.join("shared.git"), two.join("shared.git")];
    // Collected at one site, read at the other.
    at_both(|site| match site {
        0 => run(&mut git(&shared[0], &["gc", "-q", "--prune=now"])),
        _ => run(&mut git(&two.join("clone-1"), &["log", "--stat"])),
    })?;
    let wanted = 5 + 2 * COMMITS;
    for at in &shared {
        wait_until("all commits", SEEN, || {
            let found = commits(at)?;
            ensure!(found == wanted, "{found} commits of {wanted}");
            sound(at)
        })?;
    }
    at_both(|site| {
        let at = &[&one, &two][site].join(format!("clone-{site}"));
        run(&mut git(at, &["pull", "-q", "--rebase"]))?;
        ensure!(commits(at)? == wanted, "a clone lacks commits");
        ensure!(run(&mut git(at, &["status", "--porcelain"]))?.is_empty(), "files differ");
        sound(at)
    })?;
    Ok(json!({ "commits": wanted }))
}

/// Commits and pushes, again and again.
fn work(at: &Path, site: usize) -> Result<()> {
    for number in 0..COMMITS {
        fs::write(at.join(format!("site-{site}-{number}")), format!("{site} {number}\n"))?;
        run(&mut git(at, &["add", "-A"]))?;
        run(&mut git(at, &["commit", "-q", "-m", "From one of two sites"]))?;
        let mut last = String::new();
        let pushed = (0..TRIES).try_fold(false, |pushed, _| -> Result<bool> {
            if pushed {
                return Ok(true);
            }
            run(&mut git(at, &["pull", "-q", "--rebase"]))?;
            let (code, text) = outcome(&mut git(at, &["push", "-q"]))?;
            last = text;
            Ok(code == Some(0))
        })?;
        ensure!(pushed, "never pushed: {last}");
    }
    Ok(())
}
