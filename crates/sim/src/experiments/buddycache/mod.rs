//! BuddyCache's experiments (Bjornsson and Shrira, OOPSLA 2002, section 6) on Larder, in virtual time. What was
//! chosen, and where we differ and why: `docs/experiments/buddycache.md`, decision 0033.

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
    fn figures(&self) -> Vec<Figure> {
        Report { scale: &self.scale, outcomes: &self.outcomes }.figures()
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
            "load,system,clients,round trip ms,who,transactions,compute s,fetch s,commit s,misses,\
             commits at origin,conflicts\n",
        );
        for (run, outcome) in &self.outcomes {
            let who = [("readers", outcome.readers), ("writer", outcome.writers)];
            for (who, mean) in who.into_iter().filter(|(_, mean)| mean.transactions > 0.0) {
                text += &format!(
                    "{:?},{:?},{},{},{who},{},{:.3},{:.3},{:.3},{:.1},{:.1},{:.1}\n",
                    run.load,
                    run.system,
                    run.clients,
                    run.round_trip_ms,
                    mean.transactions,
                    mean.compute,
                    mean.fetch,
                    mean.commit,
                    mean.misses,
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
        let runs = self.outcomes.iter().map(|(run, outcome)| {
            json!({
                "load": match run.load { Load::Cold => "cold", Load::Hot => "hot" },
                "system": format!("{:?}", run.system).to_lowercase(),
                "clients": run.clients,
                "round_trip_ms": run.round_trip_ms,
                "readers": told(&outcome.readers),
                "writers": told(&outcome.writers),
            })
        });
        json!({
            "paper": paper::paper().paper,
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
        "commits_at_origin": mean.commits_at_origin,
        "conflicts": mean.conflicts,
    })
}
