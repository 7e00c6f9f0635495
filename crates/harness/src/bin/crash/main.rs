//! Processes killed, stopped, cut off and out of room, at random, while transactions and file work go
//! on at two sites: whatever was acknowledged is there afterwards, once, and every volume is sound.

mod faults;
mod files;
mod keeps;
mod locks;
mod previous;
mod rounds;
mod samples;
mod soak;
mod work;
mod world;

use anyhow::{Context, Result, bail};
use faults::Kind;
use larder_harness::ledger;
use larder_harness::site::runtime;
use std::path::Path;
use std::time::Duration;

const USAGE: &str = "usage: crash [--rounds N] [--first N] [--minutes M] [--seed S] [--only FAULT]... [--json] [--keep]\n\n\
  --rounds N    as many rounds (default 20)\n\
  --first N     the number of the first round (default 0): each is drawn from the seed and its number\n\
  --minutes M   begin no round after so many minutes\n\
  --seed S      of everything that is drawn (default 1)\n\
  --only FAULT  these faults alone; may be repeated\n\
  --json        end with one JSON object on the last line\n\
  --keep        keep the folder with data and logs; after a failure it is kept anyway\n\n\
Faults:";

fn options(mut words: impl Iterator<Item = String>) -> Result<(rounds::Options, bool)> {
    let mut json = false;
    let mut options = rounds::Options {
        rounds: 20,
        first: 0,
        limit: None,
        seed: 1,
        only: Vec::new(),
        keep: std::env::var_os("LARDER_KEEP").is_some(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        let number =
            |text: String| text.parse::<u64>().with_context(|| format!("{text}: no number"));
        match word.as_str() {
            "--json" => json = true,
            "--keep" => options.keep = true,
            "--rounds" => options.rounds = number(value()?)?,
            "--first" => options.first = number(value()?)?,
            "--minutes" => options.limit = Some(Duration::from_secs(60 * number(value()?)?)),
            "--seed" => options.seed = number(value()?)?,
            "--only" => options.only.push(Kind::parse(&value()?)?),
            "-h" | "--help" => {
                println!("{USAGE} {}", Kind::names());
                std::process::exit(0);
            }
            _ => bail!("unknown option {word}\n{USAGE} {}", Kind::names()),
        }
    }
    Ok((options, json))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let given: Vec<&str> = words.iter().map(String::as_str).collect();
    match given[..] {
        ["worker", place, model, seed, book] => {
            return files::work(Path::new(place), Path::new(model), seed.parse()?, Path::new(book));
        }
        ["look", folder, into] => return files::look(Path::new(folder), Path::new(into)),
        ["ledger-writer", tls, name, parent, group, seed, writer, journal] => {
            let who = (seed.parse()?, writer.parse()?);
            let work = ledger::write(Path::new(tls), name, parent, group, who, Path::new(journal));
            return runtime().block_on(work);
        }
        ["lock-worker", file, notes] => return locks::work(Path::new(file), Path::new(notes)),
        ["soak", ..] => {
            let hours = given.get(1).copied().unwrap_or("1");
            let length = soak::parse_hours(hours).context("usage: crash soak [HOURS]")?;
            let keep = std::env::var_os("LARDER_KEEP").is_some();
            return soak::run(&larder_harness::larder_binary()?, length, 1, keep);
        }
        ["previous", old, ..] => {
            let save = match given[2..] {
                [] => None,
                ["--save", file] => Some(Path::new(file)),
                _ => bail!("usage: crash previous BINARY [--save FILE]"),
            };
            let keep = std::env::var_os("LARDER_KEEP").is_some();
            let binaries = (Path::new(old), &*larder_harness::larder_binary()?);
            println!("{}", previous::run(binaries, 1, keep, save)?);
            return Ok(());
        }
        _ => {}
    }
    let (options, json) = options(words.into_iter())?;
    let report = rounds::run(&larder_harness::larder_binary()?, &options)?;
    if json {
        println!("{report}");
    } else {
        println!("{report:#}");
    }
    Ok(())
}
