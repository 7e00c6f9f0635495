//! SQLite: its own speed test at one site, the database checked at the other, and both writing into one
//! at once.

use super::{Sites, at_both, outcome, run};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// How large a database the speed test makes: 100 is what it takes by itself. Its thousands of reads
/// outside a transaction take the round trips of their locks each (finding 73).
const SIZE: &str = "1";
/// Transactions of each site.
const ROUNDS: usize = 60;

fn sqlite(database: &Path, sql: &str) -> Result<String> {
    let mut command = Command::new("sqlite3");
    command.args(["-bail", "-cmd", ".timeout 120000"]).arg(database).arg(sql);
    Ok(run(&mut command)?.trim().to_owned())
}

fn sound(database: &Path) -> Result<()> {
    let found = sqlite(database, "PRAGMA integrity_check")?;
    ensure!(found == "ok", "{}: {found}", database.display());
    Ok(())
}

pub(super) fn run_all(sites: &Sites, speedtest: Option<&Path>) -> Result<Value> {
    let mut figures = json!({ "transactions": 2 * ROUNDS });
    if let Some(program) = speedtest {
        let [one, two] = sites.at("speed.db");
        let (code, text) =
            outcome(Command::new(program).args(["--size", SIZE, "--verify"]).arg(&one))?;
        ensure!(code == Some(0), "speedtest1 ended with {code:?}:\n{text}");
        let total = text.lines().find(|line| line.trim_start().starts_with("TOTAL"));
        figures["speedtest"] = json!(total.unwrap_or_default().trim());
        sound(&one)?;
        // A lock shows the second site all that was done under the last one.
        sound(&two)?;
    } else {
        figures["speedtest"] = json!("left out: no program was given");
    }
    let databases = sites.at("both.db");
    sqlite(&databases[0], "CREATE TABLE t (site INTEGER, n INTEGER, total INTEGER)")?;
    at_both(|site| {
        for n in 0..ROUNDS {
            let insert = format!("INSERT INTO t SELECT {site}, {n}, count(*) FROM t");
            sqlite(&databases[site], &format!("BEGIN IMMEDIATE; {insert}; COMMIT"))?;
        }
        Ok(())
    })?;
    for database in &databases {
        sound(database)?;
        let counts = sqlite(database, "SELECT count(*), count(DISTINCT total) FROM t")?;
        ensure!(counts == format!("{0}|{0}", 2 * ROUNDS), "{counts}");
    }
    Ok(figures)
}
