//! BuddyCache's experiments (Bjornsson and Shrira, OOPSLA 2002, section 6) on Larder, in virtual time. What was
//! chosen, and where we differ and why: `docs/experiments/buddycache.md`, decision 0033.

mod compare;
mod draw;
mod figure;
mod machines;
mod model;
mod paper;
mod report;
mod runs;

pub use runs::Scale;

use crate::runtime::Failure;
use figure::Figure;
use report::Report;
use runs::{Load, Mean, Outcomes};
use serde_json::{Value, json};
use std::path::Path;

/// All runs of a scale, with what they came to.
pub struct Results {
    scale: Scale,
    outcomes: Outcomes,
}

/// Runs all of a scale, so many runs at once; `progress` hears how many are done, of how many.
///
/// # Errors
/// Whatever went wrong in a world, where nothing should.
pub fn run(
    scale: Scale,
    jobs: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Results, Failure> {
    let outcomes = runs::run_all(&scale, jobs, progress)?;
    Ok(Results { scale, outcomes })
}

impl Results {
    fn report(&self) -> Report<'_> {
        Report { scale: &self.scale, outcomes: &self.outcomes }
    }

    fn figures(&self) -> Vec<Figure> {
        self.report().figures()
    }

    /// What people want to know first: what was to be reached, and what was.
    #[must_use]
    pub fn summary(&self) -> String {
        let targets = self.report().targets();
        let line = |one: &compare::Target| {
            format!("{}: {:.1} (wanted: {:.0})\n", one.what, one.reached, one.wanted)
        };
        targets.iter().map(line).collect()
    }

    /// Writes each figure as CSV and as SVG, and all runs as `runs.csv`.
    ///
    /// # Errors
    /// The folder cannot be written to, or drawing failed.
    pub fn write(&self, folder: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        std::fs::create_dir_all(folder)?;
        for figure in self.figures() {
            std::fs::write(folder.join(figure.id).with_extension("csv"), figure.csv())?;
            std::fs::write(folder.join(figure.id).with_extension("svg"), draw::svg(&figure)?)?;
        }
        std::fs::write(folder.join("runs.csv"), self.csv())?;
        Ok(())
    }

    /// Every run, a line for its readers and one for its writers.
    fn csv(&self) -> String {
        let mut text = String::from(
            "load,system,clients,round trip ms,work,cache MiB,who,transactions,compute s,fetch s,\
             commit s,misses,transactions that missed,commits at origin,conflicts\n",
        );
        for (run, outcome) in &self.outcomes.runs {
            let who = [("readers", outcome.readers), ("writer", outcome.writers)];
            for (who, mean) in who.into_iter().filter(|(_, mean)| mean.transactions > 0.0) {
                text += &format!(
                    "{:?},{:?},{},{},{},{},{who},{},{:.3},{:.3},{:.3},{:.1},{:.1},{:.1},{:.1}\n",
                    run.load,
                    run.system,
                    run.clients,
                    run.round_trip_ms,
                    run.work,
                    run.memory_mib,
                    mean.transactions,
                    mean.compute,
                    mean.fetch,
                    mean.commit,
                    mean.misses,
                    mean.missed,
                    mean.commits_at_origin,
                    mean.conflicts
                );
            }
        }
        text
    }

    /// Every figure's points, ours and the paper's; the machines' parameters, and every run.
    #[must_use]
    pub fn json(&self) -> Value {
        let figures = self.figures();
        let parameters = machines::parameters()
            .into_iter()
            .map(|one| json!({ "name": one.name, "ms": one.value_ms, "origin": one.origin }));
        let runs = self.outcomes.runs.iter().map(|(run, outcome)| {
            json!({
                "load": match run.load { Load::Cold => "cold", Load::Hot => "hot" },
                "system": format!("{:?}", run.system).to_lowercase(),
                "clients": run.clients,
                "round_trip_ms": run.round_trip_ms,
                "work": run.work,
                "cache_mib": run.memory_mib,
                "readers": told(&outcome.readers),
                "writers": told(&outcome.writers),
            })
        });
        json!({
            "paper": paper::paper().paper,
            "points": self.report().compared(),
            "targets": Value::from_iter(self.report().targets().iter().map(|one| {
                json!({ "what": one.what, "wanted": one.wanted, "reached": one.reached })
            })),
            "figures": Value::from_iter(figures.iter().map(Figure::json)),
            "parameters": Value::from_iter(parameters),
            "runs": Value::from_iter(runs),
        })
    }
}

fn told(mean: &Mean) -> Value {
    json!({
        "transactions": mean.transactions,
        "compute_s": mean.compute,
        "fetch_s": mean.fetch,
        "commit_s": mean.commit,
        "misses": mean.misses,
        "missed": mean.missed,
        "commits_at_origin": mean.commits_at_origin,
        "conflicts": mean.conflicts,
    })
}

#[cfg(test)]
mod tests {
    use super::compare::Ours;
    use super::paper::{Kind, paper};
    use super::runs::{Run, System};
    use super::*;

    fn quick() -> Results {
        run(Scale::quick(), 2, |_, _| ()).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// The whole experiment, of few clients and a tiny database: orderings, and not times.
    #[test]
    fn a_quick_run_has_the_orderings_of_the_paper() {
        let results = quick();
        let report = results.report();
        for id in ["table1-commits-in-sequence", "fig7-fetches-fall"] {
            let point = paper().points.iter().find(|point| point.id == id).expect("it is stated");
            let held = report.ours(point);
            assert!(matches!(held, Ours::Holds(true) | Ours::ModelHolds(true)), "{id}: {held:?}");
        }
        let base = report.readers(Run::cold(System::Base, 3).far(40));
        let best = report.readers(Run::cold(System::Best, 3).far(40));
        assert!(best.waited() < base.waited() / 10.0, "{best:?} {base:?}");
        // Demand fetches, and every commit at the origin; and none of them.
        assert_eq!((base.commits_at_origin, best.commits_at_origin), (base.transactions, 0.0));
        let [three, five] = [3, 5].map(|clients| report.shared(clients));
        assert!(1.0 < three && three < five, "{three} {five}");
        let hot = report.readers(Run::hot(System::Base).far(40));
        let model = (report.readers_by_model(hot), report.writers_by_model(hot));
        assert!(0.0 < model.0 && model.0 < model.1, "{model:?}");
        // Each run is what it is wherever it is made.
        let json = results.json();
        assert_eq!(json, quick().json());
        // Every point of the paper has a place beside ours, and every figure is drawn.
        assert_eq!(json["points"].as_array().map(Vec::len), Some(paper().points.len()));
        assert!(paper().points.iter().any(|point| point.kind == Kind::Ordering));
        for figure in results.figures() {
            let svg = draw::svg(&figure).expect("it can be drawn");
            assert!(svg.contains("<svg") && !figure.csv().is_empty(), "{}", figure.id);
            assert!(!svg.contains("NaN"), "{}", figure.id);
        }
    }
}
