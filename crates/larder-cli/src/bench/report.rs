//! What a run of transactions came to: how many of each kind, how often they met conflicts, and how long
//! they took.

use comfy_table::{CellAlignment, Table};
use larder_oo7::{Done, Operation, Tally};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Transactions by what they did: those of one kind of operation by its name, the others as one kind.
#[derive(Default)]
pub(super) struct Report {
    kinds: BTreeMap<String, Kind>,
    operations: BTreeMap<Operation, u64>,
    tally: Tally,
}

/// Transactions of one kind.
#[derive(Default)]
struct Kind {
    took: Vec<Duration>,
    commit: Duration,
    conflicts: u64,
}

/// How long transactions took.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Times {
    mean: Duration,
    median: Duration,
    /// Below which 95 and 99 of a hundred were.
    p95: Duration,
    p99: Duration,
    most: Duration,
}

impl Report {
    pub(super) fn add(&mut self, done: &Done) {
        let mut of = done.operations.iter();
        let first = of.next();
        let name = match first {
            Some(first) if of.all(|other| other == first) => first.to_string(),
            _ if done.operations.iter().copied().all(Operation::only_reads) => "reads".into(),
            _ => "mixed".into(),
        };
        let kind = self.kinds.entry(name).or_default();
        kind.took.push(done.took);
        kind.commit += done.commit;
        kind.conflicts += u64::from(done.attempts.saturating_sub(1));
        for operation in &done.operations {
            *self.operations.entry(*operation).or_default() += 1;
        }
        self.tally += done.tally;
    }

    pub(super) fn transactions(&self) -> usize {
        self.kinds.values().map(|kind| kind.took.len()).sum()
    }

    /// Transactions of each kind, with times in milliseconds, and what they looked at.
    pub(super) fn json(&mut self, elapsed: Duration) -> Value {
        let all = self.transactions();
        let mut kinds = serde_json::Map::new();
        for (name, kind) in &mut self.kinds {
            let count = kind.took.len();
            let times = times(&mut kind.took);
            let [mean, p50, p95, p99, max] =
                [times.mean, times.median, times.p95, times.p99, times.most].map(ms);
            let commit = ms(kind.commit / u32::try_from(count).unwrap_or(u32::MAX).max(1));
            kinds.insert(
                name.clone(),
                json!({
                    "transactions": count,
                    "conflicts": kind.conflicts,
                    "ms": {"mean": mean, "p50": p50, "p95": p95, "p99": p99, "max": max},
                    "commit_ms": commit,
                }),
            );
        }
        let Tally { assemblies, composites, atoms, connections, documents, changed, found } =
            self.tally;
        json!({
            "transactions": all,
            "seconds": elapsed.as_secs_f64(),
            "per_s": all as f64 / elapsed.as_secs_f64().max(1e-9),
            "conflicts": self.kinds.values().map(|kind| kind.conflicts).sum::<u64>(),
            "kinds": kinds,
            "operations": self
                .operations
                .iter()
                .map(|(operation, count)| (operation.to_string(), (*count).into()))
                .collect::<serde_json::Map<_, _>>(),
            "looked_at": {
                "assemblies": assemblies, "composites": composites, "atoms": atoms,
                "connections": connections, "documents": documents,
            },
            "changed": changed,
            "found": found,
        })
    }

    /// The same for people.
    pub(super) fn table(&mut self) -> Table {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header([
            "TRANSACTIONS",
            "COUNT",
            "CONFLICTS",
            "MEAN",
            "P50",
            "P95",
            "P99",
            "MAX",
            "COMMIT",
        ]);
        for (name, kind) in &mut self.kinds {
            let count = kind.took.len();
            let times = times(&mut kind.took);
            let commit = kind.commit / u32::try_from(count).unwrap_or(u32::MAX).max(1);
            let shown = [times.mean, times.median, times.p95, times.p99, times.most, commit];
            let shown = shown.map(|time| format!("{:.2} ms", ms(time)));
            table.add_row(
                [name.clone(), count.to_string(), kind.conflicts.to_string()]
                    .into_iter()
                    .chain(shown),
            );
        }
        table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        table
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Of one at least; they are put in order.
fn times(took: &mut [Duration]) -> Times {
    took.sort_unstable();
    let count = took.len();
    let at = |hundredths: usize| {
        let rank = (count * hundredths).div_ceil(100).max(1);
        took.get(rank - 1).copied().unwrap_or_default()
    };
    let sum: Duration = took.iter().sum();
    let mean = sum / u32::try_from(count).unwrap_or(u32::MAX).max(1);
    Times { mean, median: at(50), p95: at(95), p99: at(99), most: at(100) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(operations: &[Operation], attempts: u32, took: u64) -> Done {
        let (took, commit) = (Duration::from_millis(took), Duration::from_millis(1));
        let tally = Tally { atoms: 20, ..Tally::default() };
        Done {
            operations: operations.to_vec(),
            tally,
            attempts,
            took,
            worked: took - commit,
            commit,
        }
    }

    #[test]
    fn a_rank_is_that_of_the_transaction_that_has_it() {
        let of = |count: u64| {
            let mut took: Vec<_> = (1..=count).rev().map(Duration::from_millis).collect();
            let times = times(&mut took);
            [times.mean, times.median, times.p95, times.p99, times.most].map(ms)
        };
        assert_eq!(of(1), [1.0; 5]);
        assert_eq!(of(2), [1.5, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(of(100), [50.5, 50.0, 95.0, 99.0, 100.0]);
    }

    #[test]
    fn transactions_are_told_by_what_they_did() {
        let mut report = Report::default();
        report.add(&done(&[Operation::Path, Operation::Path], 1, 2));
        report.add(&done(&[Operation::Path], 3, 4));
        report.add(&done(&[Operation::Path, Operation::Q1], 1, 1));
        report.add(&done(&[Operation::Path, Operation::T2a], 2, 1));
        let told = report.json(Duration::from_secs(2));
        assert_eq!((told["transactions"].as_u64(), told["per_s"].as_f64()), (Some(4), Some(2.0)));
        let kinds = &told["kinds"];
        assert_eq!(kinds["path"]["transactions"], 2);
        assert_eq!(kinds["path"]["conflicts"], 2);
        assert_eq!(kinds["path"]["ms"]["mean"], 3.0);
        assert_eq!(kinds["path"]["commit_ms"], 1.0);
        assert_eq!(
            (&kinds["reads"]["transactions"], &kinds["mixed"]["conflicts"]),
            (&json!(1), &json!(1))
        );
        assert_eq!(told["looked_at"]["atoms"], 80);
        assert_eq!((&told["operations"]["path"], &told["conflicts"]), (&json!(5), &json!(3)));
        assert!(report.table().to_string().contains("3.00 ms"));
    }
}
