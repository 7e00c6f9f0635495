//! Two origins, of which each has a domain, and transactions over both (decision 0038).

use crate::common::site;
use anyhow::{Context, Result, ensure};
use larder_harness::ledger::{self, Book};
use larder_harness::process::free_port;
use larder_harness::site::{READY, Server, Site, runtime};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SEED: u64 = 20_421;
/// Each origin is killed so often.
const KILLS: u64 = 5;
/// Transfers that writers have to make between two kills.
const TRANSFERS: usize = 12;

/// Two origins that list each other.
struct Two {
    site: Site,
    ports: [u16; 2],
}

const NAMES: [&str; 2] = ["east", "west"];

impl Two {
    fn new() -> Result<Self> {
        let site = site("two-origins")?;
        for name in NAMES {
            site.issue(name, "origin", 30)?;
        }
        Ok(Self { site, ports: [free_port()?, free_port()?] })
    }

    fn start(&self, which: usize) -> Result<Server> {
        let other = 1 - which;
        let peer = format!("{}=localhost:{}", NAMES[other], self.ports[other]);
        let data = self.site.path(&format!("data-{}", NAMES[which]));
        // Whoever died is not missed for long, so that a test of many deaths ends.
        let silence = ["--set", "link.silence_max=2s", "--set", "link.back_off_max=300ms"];
        let words = [&["--peer", &peer][..], &silence].concat();
        self.site.origin_as(NAMES[which], &data, self.ports[which], &words)
    }

    fn parents(&self) -> String {
        format!("localhost:{},localhost:{}", self.ports[0], self.ports[1])
    }
}

fn acknowledged(journals: &[PathBuf]) -> usize {
    let lines = |journal: &PathBuf| std::fs::read_to_string(journal).unwrap_or_default();
    journals
        .iter()
        .map(|journal| lines(journal).lines().filter(|line| !line.starts_with('?')).count())
        .sum()
}

/// Waits until this is so.
fn until(what: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + READY;
    while !so()? {
        ensure!(Instant::now() < end, "{what}: not within {READY:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Money goes between accounts of which half are at either origin, by transactions over both, while one origin after the
/// other dies in the middle of them. What was prepared is settled by the two without anybody's doing: every transfer is
/// there once, at both or at neither, and all that was acknowledged.
#[test]
fn origins_that_die_in_the_middle_of_transactions_over_both_settle_them() -> Result<()> {
    let two = Two::new()?;
    let mut origins = [two.start(0)?, two.start(1)?];
    let (tls, parents) = (two.site.path("tls"), two.parents());
    runtime().block_on(ledger::create(&tls, &parents, 2)).context("the ledger is made")?;
    let journals: Vec<PathBuf> =
        (0..ledger::WRITERS).map(|writer| two.site.path(&format!("journal-{writer}"))).collect();
    let writers: Vec<_> = (0..ledger::WRITERS)
        .map(|writer| {
            let (tls, parents, journal) = (tls.clone(), parents.clone(), journals[writer].clone());
            let name = ["one", "two"][writer];
            runtime().spawn(async move {
                ledger::write(&tls, name, &parents, "", (SEED, writer), &journal).await
            })
        })
        .collect();
    for round in 0..2 * KILLS {
        let (which, before) = (round as usize % 2, acknowledged(&journals));
        until("writers go on", || {
            ensure!(writers.iter().all(|writer| !writer.is_finished()), "a writer has ended");
            Ok(acknowledged(&journals) >= before + TRANSFERS)
        })?;
        // In the middle of whatever is under way.
        std::thread::sleep(Duration::from_millis(37 * (round + 1) % 90));
        origins[which].kill();
        std::thread::sleep(Duration::from_millis(150 * (round % 3)));
        origins[which] = two.start(which)?;
    }
    let before = acknowledged(&journals);
    until("writers go on at the end", || Ok(acknowledged(&journals) >= before + TRANSFERS))?;
    for writer in writers {
        writer.abort();
        // What it saw that must not be, it says at once.
        if let Ok(ended) = runtime().block_on(writer) {
            ended.context("a writer")?;
        }
    }
    let mut book = Book::new(SEED);
    let found = runtime().block_on(book.verify(&tls, &parents, &journals))?;
    ensure!(found.across > 0, "no transfer was over both: {found:?}");
    for origin in &origins {
        let status = origin.status()?;
        ensure!(status["peers"][0]["connected"] == true, "{}", status["peers"]);
    }
    until("nothing is in doubt", || {
        let told = |origin: &Server| larder_harness::process::http_get(origin.http, "/metrics");
        let all = [told(&origins[0])?, told(&origins[1])?].concat();
        let in_doubt = all.lines().filter(|line| line.starts_with("larder_in_doubt_seconds"));
        let waits = in_doubt.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(waits.sum::<f64>() == 0.0)
    })?;
    for origin in origins {
        origin.stop()?;
    }
    Ok(())
}
