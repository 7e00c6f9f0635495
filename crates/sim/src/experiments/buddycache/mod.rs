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
use runs::{Mean, Outcomes, Run};
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
            "load,topology,best,clients,round trip ms,cache MiB,holes,who,transactions,compute s,\
             server fetch s,peer fetch s,commit s,misses,from neighbours,transactions that missed,\
             commits at origin,conflicts\n",
        );
        for (run, outcome) in &self.outcomes.runs {
            let who = [("readers", outcome.readers), ("writer", outcome.writers)];
            for (who, mean) in who.into_iter().filter(|(_, mean)| mean.transactions > 0.0) {
                let times = [mean.compute, mean.fetch, mean.peer, mean.commit];
                let counts = [
                    mean.misses,
                    mean.from_neighbours,
                    mean.missed,
                    mean.commits_at_origin,
                    mean.conflicts,
                ];
                let times = times.map(|time| format!("{time:.3}")).join(",");
                let counts = counts.map(|count| format!("{count:.1}")).join(",");
                let Run { load, topology, best, clients, round_trip_ms, memory_mib, holes } = run;
                text += &format!(
                    "{},{},{best},{clients},{round_trip_ms},{memory_mib},{holes},{who},{},{times},\
                     {counts}\n",
                    load.name(),
                    topology.name(),
                    mean.transactions
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
                "load": run.load.name(),
                "topology": run.topology.name(),
                "best": run.best,
                "clients": run.clients,
                "round_trip_ms": run.round_trip_ms,
                "cache_mib": run.memory_mib,
                "holes": run.holes,
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
        "server_fetch_s": mean.fetch,
        "peer_fetch_s": mean.peer,
        "commit_s": mean.commit,
        "misses": mean.misses,
        "from_neighbours": mean.from_neighbours,
        "missed": mean.missed,
        "commits_at_origin": mean.commits_at_origin,
        "conflicts": mean.conflicts,
    })
}

#[cfg(test)]
mod tests {
    use super::compare::Ours;
    use super::paper::paper;
    use super::runs::Topology;
    use super::*;

    fn quick() -> Results {
        run(Scale::quick(), 1, |_, _| ()).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// The whole experiment, of few clients and a tiny database: orderings, and not times.
    #[test]
    fn a_quick_run_has_the_orderings_of_the_paper_and_is_the_same_again() {
        let results = quick();
        assert_eq!(results.json(), quick().json());
        is_drawn(&results);
        let report = results.report();
        for id in
            ["table1-commits-in-sequence", "fig4-solo-commits", "fig7-commits-alike", "fig9-rises"]
        {
            let point = paper().points.iter().find(|point| point.id == id).expect("it is stated");
            assert_eq!(report.ours(point), Ours::Holds(true), "{id}");
        }
        let far = |topology| Run::cold(topology, 5).far(40);
        let [base, group] = [Topology::Alone, Topology::Group].map(|of| report.readers(far(of)));
        let best = report.readers(far(Topology::Group).best());
        assert!(group.total() < base.total(), "{group:?} {base:?}");
        assert!(best.waited() < group.waited() / 4.0, "{best:?} {group:?}");
        // Demand fetches, and every commit at the origin; and no commit there.
        let at_origin = [base, group, best].map(|mean| mean.commits_at_origin);
        assert_eq!(at_origin, [base.transactions, base.transactions, 0.0]);
        assert!(group.from_neighbours > 0.0 && base.from_neighbours == 0.0);
        let [readers, writers] = [Topology::ReaderGroup, Topology::WriterGroup]
            .map(|topology| report.hot_benefit(topology, 40));
        assert!(0.0 < readers && readers < writers, "{readers} {writers}");
    }

    /// Every point has a place, and every figure is drawn.
    fn is_drawn(results: &Results) {
        assert_eq!(results.json()["points"].as_array().map(Vec::len), Some(paper().points.len()));
        for figure in results.figures() {
            let svg = draw::svg(&figure).expect("it can be drawn");
            assert!(svg.contains("<svg") && !figure.csv().is_empty(), "{}", figure.id);
            assert!(!svg.contains("NaN"), "{}", figure.id);
        }
        assert_eq!(results.summary().lines().count(), 4);
    }
}
