//! Locks on files hold at every site, and go with whoever held them.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Context, Result, bail, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{READY, Server, Site, within};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Far above what a lock takes that is to be had.
const LIMIT: Duration = Duration::from_secs(60);

fn mounts(site: &Site, port: u16, extra: &[&str]) -> Result<[Server; 2]> {
    Ok([site.mount("one", VOLUME, port, extra)?, site.mount("two", VOLUME, port, extra)?])
}

fn open(server: &Server, name: &str) -> Result<File> {
    let mut options = OpenOptions::new();
    Ok(options.read(true).write(true).create(true).truncate(false).open(server.at(name))?)
}

fn is_held(tried: std::result::Result<(), TryLockError>) -> Result<bool> {
    match tried {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).context("neither held nor free"),
    }
}

/// Two programs at two sites count in a file, each under a lock, and write without any sync: every
/// one of them must see what the last one wrote, although its kernel has read the file before.
#[test]
fn who_holds_a_lock_sees_what_the_last_one_wrote() -> Result<()> {
    const ROUNDS: u32 = 25;
    let site = site("locks")?;
    let origin = origin_with_tree(&site, &[])?;
    let servers = mounts(&site, origin.port, &[])?;
    fs::write(servers[0].at("count"), "0")?;
    let counters: Vec<_> = servers
        .iter()
        .map(|server| -> Result<_> {
            let mut file = open(server, "count")?;
            Ok(std::thread::spawn(move || -> Result<()> {
                for _ in 0..ROUNDS {
                    file.lock()?;
                    let mut text = String::new();
                    file.seek(SeekFrom::Start(0))?;
                    file.read_to_string(&mut text)?;
                    let count: u32 = text.trim().parse().with_context(|| format!("{text:?}"))?;
                    file.seek(SeekFrom::Start(0))?;
                    file.write_all((count + 1).to_string().as_bytes())?;
                    file.unlock()?;
                }
                Ok(())
            }))
        })
        .collect::<Result<_>>()?;
    for counter in counters {
        within(LIMIT, "a counter", move || counter.join().expect("no panic"))??;
    }
    for server in &servers {
        let file = open(server, "count")?;
        file.lock_shared()?;
        let count = fs::read_to_string(server.at("count"))?;
        ensure!(count == (2 * ROUNDS).to_string(), "counted {count}");
    }
    for server in servers {
        server.stop()?;
    }
    site.volume(origin.port, &["check", VOLUME])?.success()?;
    origin.stop()?;
    Ok(())
}

/// Shared locks are shared by two sites, an exclusive one is not, a close gives it up. Who waits for
/// one at another site gets it when it is released, and can be ended while it waits: with a kernel
/// that could not be told of a signal, not even SIGKILL ended it.
#[test]
fn locks_are_shared_waited_for_and_given_up() -> Result<()> {
    let site = site("locks-wait")?;
    let origin = origin_with_tree(&site, &[])?;
    let [one, two] = mounts(&site, origin.port, &[])?;
    let (here, there) = (open(&one, "lock")?, open(&two, "lock")?);
    here.lock_shared()?;
    there.lock_shared()?;
    ensure!(is_held(here.try_lock())?, "exclusive beside shared");
    there.unlock()?;
    ensure!(!is_held(here.try_lock())?, "nobody else holds it");
    ensure!(is_held(there.try_lock_shared())?, "shared beside exclusive");

    let mut waiter = Command::new("flock")
        .arg(two.at("lock"))
        .arg("true")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("flock of util-linux")?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(waiter.try_wait()?.is_none(), "it waits");
    waiter.kill()?;
    within(LIMIT, "the end of a waiter", move || waiter.wait())??;

    let waits = there.try_clone()?;
    let waiter = std::thread::spawn(move || waits.lock());
    std::thread::sleep(Duration::from_millis(300));
    ensure!(!waiter.is_finished(), "it waits");
    drop(here);
    within(LIMIT, "a lock that was released", move || waiter.join().expect("no panic"))??;
    ensure!(is_held(open(&one, "lock")?.try_lock())?, "it was taken");
    drop(there);
    for server in [one, two, origin] {
        server.stop()?;
    }
    Ok(())
}

/// A workstation that holds a lock loses power. Nobody releases it; when its lease is over another
/// has it.
#[test]
fn the_lock_of_a_dead_machine_is_released() -> Result<()> {
    let site = site("locks-dead")?;
    let origin = origin_with_tree(&site, &[])?;
    let [mut one, two] = mounts(&site, origin.port, &["--set", "node.lock_lease=2s"])?;
    let (here, there) = (open(&one, "lock")?, open(&two, "lock")?);
    here.lock()?;
    ensure!(is_held(there.try_lock())?, "it is held");
    one.kill();
    let file = there.try_clone()?;
    within(LIMIT, "the lock of a dead machine", move || file.lock())??;
    drop((here, there));
    two.stop()?;
    origin.stop()?;
    Ok(())
}

fn sqlite(server: &Server, sql: &str) -> Result<String> {
    let done = Command::new("sqlite3")
        .args(["-bail", "-cmd", ".timeout 60000"])
        .arg(server.at("data.db"))
        .arg(sql)
        .output()
        .context("sqlite3: `./x processes` installs it")?;
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "{sql}: {err}");
    Ok(out.trim().to_owned())
}

/// An unmodified SQLite writes into one database from two sites at once, in transactions that read
/// before they write. Nothing is lost, nothing is counted twice, the database is sound.
#[test]
fn sqlite_writes_from_two_sites_at_once() -> Result<()> {
    const ROUNDS: u32 = 12;
    let site = site("sqlite")?;
    let origin = origin_with_tree(&site, &[])?;
    let servers = mounts(&site, origin.port, &[])?;
    sqlite(&servers[0], "CREATE TABLE t (who TEXT, n INTEGER, total INTEGER)")?;
    std::thread::scope(|scope| -> Result<()> {
        let writers = ["one", "two"].into_iter().zip(&servers).map(|(who, server)| {
            scope.spawn(move || -> Result<()> {
                for n in 0..ROUNDS {
                    sqlite(
                        server,
                        &format!(
                            "BEGIN IMMEDIATE; \
                             INSERT INTO t SELECT '{who}', {n}, count(*) FROM t; COMMIT"
                        ),
                    )?;
                }
                Ok(())
            })
        });
        let writers: Vec<_> = writers.collect();
        for writer in writers {
            writer.join().expect("no panic")?;
        }
        Ok(())
    })?;
    for server in &servers {
        ensure!(sqlite(server, "PRAGMA integrity_check")? == "ok", "the database is damaged");
        let counts = sqlite(server, "SELECT count(*), count(DISTINCT total) FROM t")?;
        ensure!(counts == format!("{0}|{0}", 2 * ROUNDS), "{counts}");
        for who in ["one", "two"] {
            let own = sqlite(server, &format!("SELECT count(*) FROM t WHERE who = '{who}'"))?;
            ensure!(own == ROUNDS.to_string(), "{who}: {own}");
        }
    }
    wait_until("the mounts", READY, || {
        servers.iter().try_for_each(|server| server.status().map(|_| ()))
    })?;
    for server in servers {
        server.stop()?;
    }
    origin.stop()?;
    Ok(())
}

/// Lets a process stand still, or go on.
fn signal(server: &Server, what: Signal) -> Result<()> {
    let process = i32::try_from(server.process.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(process.context("a process")?, what)?)
}

/// A laptop slept with a database locked; another machine took the lock and began a transaction, with
/// a journal beside the database. The laptop woke, and its program removed that journal by name, as
/// the last step of what it had begun. It is refused now, with the rest of what it would write, until
/// it has closed the database; another program of that laptop is not.
#[test]
fn who_slept_and_lost_a_lock_changes_nothing_beside_the_file() -> Result<()> {
    let site = site("locks-sleep")?;
    let origin = origin_with_tree(&site, &[])?;
    let servers = mounts(&site, origin.port, &["--set", "node.lock_lease=2s"])?;
    let [one, two] = &servers;
    let (here, there) = (open(one, "db")?, open(two, "db")?);
    fs::write(one.at("other"), "")?;
    write_synced(&one.at("db-journal"), b"of the first")?;
    here.lock()?;
    signal(one, Signal::STOP)?;
    let file = there.try_clone()?;
    within(LIMIT, "the lock of a machine that sleeps", move || file.lock())??;
    ensure!(fs::read(two.at("db-journal"))? == b"of the first", "the lock shows what was there");
    write_synced(&two.at("db-journal"), b"of the second")?;
    signal(one, Signal::CONT)?;
    wait_until("the mount that slept", READY, || one.status().map(|_| ()))?;
    let Err(refused) = fs::remove_file(one.at("db-journal")) else { bail!("a lost lock") };
    ensure!(refused.raw_os_error() == Some(Errno::IO.raw_os_error()), "{refused}");
    let removed = Command::new("rm").arg(one.at("other")).status()?;
    ensure!(removed.success(), "another program holds no lock");
    ensure!(fs::read(two.at("db-journal"))? == b"of the second", "somebody wrote to it");
    drop(here);
    // The kernel tells of the close a little later.
    wait_until("the lost lock's end", READY, || Ok(fs::remove_file(one.at("db-journal"))?))?;
    drop(there);
    for server in servers {
        server.stop()?;
    }
    origin.stop()?;
    Ok(())
}
