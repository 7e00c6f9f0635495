//! The tests of the crate `pjdfstest` at a real mount: origin and mount are processes of their own.
//!
//! `pjdfstest PROGRAM [PATTERN…]`: PROGRAM is the installed test program (`./x pjdfstest` installs
//! and names it); with patterns only the tests run whose names hold one of them. All must pass but
//! those of `not-applicable.txt`, and as many must run as the version that is installed has.

use anyhow::{Context, Result, bail, ensure};
use larder_harness::site::Site;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tests in the version of the crate that `./x` installs: fewer mean that some were not run.
const TESTS: usize = 398;
/// How long each of two runs may take on two idle cores: less than half of what `./x` allows.
const LIMIT: Duration = Duration::from_secs(180);
/// Users that the tests become: every Debian has them.
const USERS: [&str; 2] = ["nobody", "daemon"];
/// Tests that do not apply, and why.
const NOT_APPLICABLE: &str = include_str!("not-applicable.txt");

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let program = words.next().context("usage: pjdfstest PROGRAM [PATTERN...]")?;
    let patterns: Vec<String> = words.collect();
    let binary = match std::env::var_os("LARDER_BINARY") {
        Some(named) => PathBuf::from(named),
        None => larder_harness::larder_binary()?,
    };
    let not_applicable = not_applicable(NOT_APPLICABLE)?;
    let site = Site::new(&binary, "pjdfstest")?;
    let report = run(&site, Path::new(&program), &patterns)?;
    report.judge(&not_applicable, patterns.is_empty())?;
    println!("{} passed, 0 failed, {} skipped", report.passed.len(), report.skipped.len());
    Ok(())
}

/// Runs the tests at a new mount of a new volume. Those that remount it are run by themselves, before
/// the others: `open::einval_invalid_combination` leaves a file open for writing, and what has one
/// cannot be made read-only.
fn run(site: &Site, program: &Path, patterns: &[String]) -> Result<Report> {
    // Users other than root come by here.
    let (own, other) = (site.path("."), site.path("other"));
    fs::set_permissions(&own, Permissions::from_mode(0o755))?;
    fs::create_dir_all(&other)?;
    fs::set_permissions(&other, Permissions::from_mode(0o777))?;
    let empty = site.path("empty");
    fs::create_dir_all(&empty)?;
    let origin = site.origin(&site.path("data"), 0, &[])?;
    let from = empty.display().to_string();
    site.volume(origin.port, &["import", "tests", &from, "--create"])?.success()?;
    let mount = site.mount("one", "tests", origin.port, &[])?;
    let remounting = ["erofs".to_owned()];
    let first = run_once(site, program, &configuration(&other, true)?, &remounting)?;
    let mut report = run_once(site, program, &configuration(&other, false)?, patterns)?;
    report.add_those_skipped(first);
    // Told here: what comes may fail.
    print!("{}", report.text);
    mount.stop()?;
    site.volume(origin.port, &["check", "tests"])?.success()?;
    origin.stop()?;
    Ok(report)
}

/// `mount -o remount` hands a mount of a kind `fuse.…` to the helper of the package `fuse3`, where that
/// is installed, which knows nothing of it: in its place, in a namespace of the tests' own, the kernel is
/// asked.
const WITHOUT_HELPER: &str = r#"
    for theirs in /sbin/mount.fuse /usr/sbin/mount.fuse; do
        if [ -e "$theirs" ]; then mount --bind "$0" "$theirs"; fi
    done
    exec "$@"
"#;
const HELPER: &str = "#!/bin/sh\nexec mount -i \"$@\"\n";

fn run_once(site: &Site, program: &Path, config: &str, patterns: &[String]) -> Result<Report> {
    let (path, out) = (site.path("pjdfstest.toml"), site.path("pjdfstest.out"));
    fs::write(&path, config)?;
    let helper = site.path("helper");
    fs::write(&helper, HELPER)?;
    fs::set_permissions(&helper, Permissions::from_mode(0o755))?;
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "sh", "-ec", WITHOUT_HELPER])
        .arg(&helper)
        .arg(program)
        .arg("-c")
        .arg(&path)
        .arg("-p")
        .arg(site.path("one"))
        .arg("--")
        .args(patterns)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let limit = LIMIT * slow()?;
    let end = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            bail!("not done within {limit:?}:\n{}", fs::read_to_string(&out)?);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&out)?;
    // It ends with a failure when a test failed, which the report tells better.
    ensure!(text.contains("Summary: "), "it ended before its end:\n{text}");
    Ok(Report::read(text))
}

/// How many times longer everything may take (`LARDER_SLOW`).
fn slow() -> Result<u32> {
    match std::env::var("LARDER_SLOW") {
        Ok(times) => times.parse().context("LARDER_SLOW is a whole number"),
        Err(_) => Ok(1),
    }
}

/// What the tests need to know: which features they may expect, and which users there are.
fn configuration(other: &Path, remounts: bool) -> Result<String> {
    let mut text = String::from("[features]\n");
    for feature in ["posix_fallocate", "rename_ctime", "utime_now", "utimensat"] {
        writeln!(text, "{feature} = {{}}")?;
    }
    writeln!(text, "secondary_fs = {:?}", other.display().to_string())?;
    // Times are in nanoseconds.
    writeln!(text, "[settings]\nnaptime = 0.01\nallow_remount = {remounts}")?;
    writeln!(text, "[dummy_auth]\nentries = [")?;
    for user in USERS {
        writeln!(text, "  [{user:?}, {:?}],", group_of(user)?)?;
    }
    text.push_str("]\n");
    Ok(text)
}

/// The name of a user's own group.
fn group_of(user: &str) -> Result<String> {
    let field = |line: &str, at: usize| line.split(':').nth(at).unwrap_or_default().to_owned();
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| field(line, 0) == user);
    let id = field(line.with_context(|| format!("this machine has no user {user}"))?, 3);
    let groups = fs::read_to_string("/etc/group")?;
    let line = groups.lines().find(|line| field(line, 2) == id);
    Ok(field(line.with_context(|| format!("the group of {user} has no name"))?, 0))
}

fn not_applicable(text: &str) -> Result<BTreeMap<String, String>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, why) = line.split_once(": ").context("name, a colon, why")?;
            ensure!(!why.trim().is_empty(), "{name}: why does it not apply?");
            Ok((name.to_owned(), why.to_owned()))
        })
        .collect()
}

/// What the test program said.
struct Report {
    text: String,
    passed: Vec<String>,
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl Report {
    fn read(text: String) -> Self {
        let (mut passed, mut failed, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for line in text.lines().filter(|line| !line.starts_with(char::is_whitespace)) {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [name, "ok"] => passed.push(name.to_owned()),
                [name, "FAILED"] => failed.push(name.to_owned()),
                [name, "skipped"] => skipped.push(name.to_owned()),
                _ => {}
            }
        }
        Self { text, passed, failed, skipped }
    }

    /// Takes from another run what came of the tests that this one skipped.
    fn add_those_skipped(&mut self, other: Self) {
        self.text.insert_str(0, &other.text);
        for (own, others) in [(&mut self.passed, other.passed), (&mut self.failed, other.failed)] {
            for name in others {
                if let Some(at) = self.skipped.iter().position(|skipped| *skipped == name) {
                    self.skipped.swap_remove(at);
                    own.push(name);
                }
            }
        }
    }

    /// Whether all passed that had to; `whole`: and all were run.
    fn judge(&self, not_applicable: &BTreeMap<String, String>, whole: bool) -> Result<()> {
        ensure!(self.failed.is_empty(), "failed: {}", self.failed.join(", "));
        ensure!(!self.passed.is_empty(), "not one test ran");
        let unknown: Vec<&String> =
            self.skipped.iter().filter(|name| !not_applicable.contains_key(*name)).collect();
        ensure!(unknown.is_empty(), "skipped, and not known not to apply: {unknown:?}");
        if whole {
            let run: Vec<&String> =
                not_applicable.keys().filter(|name| !self.skipped.contains(*name)).collect();
            ensure!(run.is_empty(), "said not to apply, and not skipped: {run:?}");
            let total = self.passed.len() + self.skipped.len();
            ensure!(total == TESTS, "{total} tests, where this version has {TESTS}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "chmod::a            ok\nopen::b     skipped\n\trequires features: x\n\
                        Summary: 0 failed, 1 skipped, 1 passed, 2 total\n";

    /// A run in which everything was skipped, or in which a test failed, must not pass for one
    /// that went well.
    #[test]
    fn what_was_not_run_has_not_passed() {
        let known = not_applicable("# why\nopen::b: of another system\n").expect("well-formed");
        let judge = |text: &str, known: &_| Report::read(text.into()).judge(known, false);
        judge(SAID, &known).expect("all is well");
        let why = judge(SAID, &BTreeMap::new()).expect_err("b was skipped").to_string();
        assert!(why.contains("open::b"), "{why}");
        let failed = SAID.replace(" ok", " FAILED");
        assert_eq!(judge(&failed, &known).expect_err("a failed").to_string(), "failed: chmod::a");
        assert!(judge("", &known).is_err() && judge("a skipped\n", &known).is_err());
        assert!(Report::read(SAID.into()).judge(&known, true).is_err(), "two of all");
        let mut both = Report::read(SAID.into());
        both.add_those_skipped(Report::read("chmod::a ok\nopen::b FAILED\n".into()));
        assert_eq!((both.passed.len(), both.skipped.len()), (1, 0));
        assert_eq!(both.failed, ["open::b"]);
        not_applicable("open::b:  ").expect_err("no reason");
    }
}
