//! OO7 in virtual time.

use super::options::Options;
use larder_oo7::{Parameters, Size};
use larder_sim::runtime::oo7::{Costs, Course, Groups, Measured, measure};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Measures a course; none: it is not asked for as it has to be.
pub(crate) fn run(words: &[&str]) -> Option<ExitCode> {
    let values = [
        "--size",
        "--readers",
        "--writers",
        "--rtt-ms",
        "--lan-rtt-ms",
        "--think-us",
        "--warm",
        "--transactions",
        "--memory-mib",
        "--seed",
    ];
    let options = Options::parse(words, &values, &["--json", "--local-reads", "--group"])?;
    let parameters = match options.value("--size").unwrap_or("medium") {
        "tiny" => Parameters::tiny(),
        "small" => Parameters::new(Size::Small, 3),
        "medium" => Parameters::new(Size::Medium, 3),
        _ => return None,
    };
    let memory: u64 = options.number("--memory-mib", 40)?;
    let lan = Duration::from_millis(options.number("--lan-rtt-ms", 0)?);
    let (readers, writers): (usize, usize) =
        (options.number("--readers", 1)?, options.number("--writers", 0)?);
    // Without clients nothing is measured, and without time between transactions it never ends.
    let clients = readers.checked_add(writers).filter(|clients| (1..=1000).contains(clients))?;
    let course = Course {
        parameters,
        page_bytes: 8 << 10,
        readers,
        writers,
        round_trip: Duration::from_millis(options.number("--rtt-ms", 40)?),
        groups: options.has("--group").then(|| Groups::one(clients, lan)),
        memory: memory.checked_mul(1 << 20)?,
        warm: options.number("--warm", 0)?,
        transactions: options.number("--transactions", 1000)?,
        think: Duration::from_micros(options.number("--think-us", 1000)?),
        costs: Costs::default(),
        strict: !options.has("--local-reads"),
        ahead: false,
        together: false,
        seed: options.number("--seed", 1)?,
    };
    if course.think.is_zero() {
        return None;
    }
    let measured = match measure(&course) {
        Ok(measured) => measured,
        Err(failure) => {
            eprintln!("{}", failure.what);
            return Some(ExitCode::FAILURE);
        }
    };
    if options.has("--json") {
        println!("{}", Value::from_iter(measured.iter().map(told)));
        return Some(ExitCode::SUCCESS);
    }
    println!("client   transactions   seconds   of it commits   misses   conflicts");
    for one in &measured {
        let who = if one.writes { "writer" } else { "reader" };
        let [took, commits] = [one.took, one.commits].map(|time| time.as_secs_f64());
        println!(
            "{who}   {:12}   {took:7.2}   {commits:13.2}   {:6}   {:9}",
            one.transactions, one.misses, one.conflicts
        );
    }
    Some(ExitCode::SUCCESS)
}

fn told(of: &Measured) -> Value {
    json!({
        "writes": of.writes,
        "transactions": of.transactions,
        "seconds": of.took.as_secs_f64(),
        "commit_s": of.commits.as_secs_f64(),
        "misses": of.misses,
        "conflicts": of.conflicts,
    })
}
