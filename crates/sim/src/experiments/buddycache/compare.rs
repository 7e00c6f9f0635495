//! Each point of the paper beside ours, and each target beside what was reached.

use super::paper::{Kind, Point, paper};
use super::report::Report;
use super::runs::{Run, System};
use super::{model::improvement, report::system_of};
use serde_json::{Value, json};

/// Ours, where a point has one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Ours {
    /// Measured.
    Measured(f64),
    /// What the model derives from what was measured.
    Model(f64),
    /// Whether an ordering holds: of what was measured.
    Holds(bool),
    /// The same of what the model derives.
    ModelHolds(bool),
    /// It takes a group that runs.
    NeedsGroup,
    /// A fact of the set-up, which went into ours, or a cost that is measured elsewhere.
    SetUp,
}

/// What ours may be off, in percentage points.
const WITHIN: f64 = 5.0;

impl Report<'_> {
    /// Ours, of one of the paper's points.
    ///
    /// # Panics
    /// There is no such point.
    pub(super) fn ours(&self, point: &Point) -> Ours {
        let clients = point.x.map_or(0, |x| x as usize);
        let local = |clients| system_of(self.cold(clients, 0));
        let cold = |clients, ms| self.cold_by_model(self.cold(clients, ms), self.shared(clients));
        let (writers, readers) =
            (|ms| self.writers_by_model(self.hot(ms)), |ms| self.readers_by_model(self.hot(ms)));
        let most = *self.scale.curves.last().expect("some clients are measured");
        match &*point.id {
            "table1-fetch-base-3" | "table1-fetch-base-5" => {
                Ours::Measured(1e3 * local(clients).fetch)
            }
            "table1-commit-base-3" | "table1-commit-base-5" => {
                Ours::Measured(1e3 * local(clients).commit)
            }
            "table1-commits-in-sequence" => Ours::Holds(local(5).commit > local(3).commit),
            "table1-fetch-grows-less" => {
                let [three, five] = [local(3), local(5)];
                Ours::Holds(five.fetch - three.fetch < five.commit - three.commit)
            }
            "fig7-3" | "fig7-5" | "fig7-10" => Ours::Model(cold(clients, 40)),
            "fig7-fetches-fall" => {
                let each = self.scale.curves.iter();
                let fetched = each.map(|&k| self.readers(Run::alone(k)).misses / k as f64);
                let fetched: Vec<f64> = fetched.collect();
                Ours::ModelHolds(fetched.is_sorted_by(|more, less| more > less))
            }
            "fig8-similar" => {
                let off = self.scale.curves.iter().map(|&k| (cold(k, 80) - cold(k, 40)).abs());
                Ours::ModelHolds(off.fold(0.0, f64::max) <= WITHIN)
            }
            "fig9-peak" => {
                let each = self.scale.latencies_ms.iter().filter(|ms| **ms <= 60);
                Ours::Model(each.map(|ms| cold(most, *ms)).fold(0.0, f64::max))
            }
            "fig9-rises" => Ours::ModelHolds(cold(most, 60) > cold(most, 20)),
            "fig9-levels" => {
                let rise = |from, to| cold(most, to) - cold(most, from);
                Ours::ModelHolds(rise(60, 100) < rise(20, 60) / 2.0)
            }
            "fig9-low" => Ours::ModelHolds(cold(self.scale.curves[0], 1) < 0.0),
            "up-to-half" => Ours::ModelHolds([40, 80].iter().any(|ms| cold(most, *ms) >= 50.0)),
            "fig10-writer" => Ours::Model(writers(40)),
            "fig10-reader" => Ours::Model(readers(40)),
            "fig12-writer-least" => Ours::Model(self.over_distances(&writers, f64::min)),
            "fig12-writer-most" => Ours::Model(self.over_distances(&writers, f64::max)),
            "fig10-half" => Ours::ModelHolds((0.35..=0.65).contains(&(readers(40) / writers(40)))),
            "fig11-similar" => {
                Ours::ModelHolds((0.35..=0.65).contains(&(readers(80) / writers(80))))
            }
            "table1-fetch-group-3"
            | "table1-fetch-group-5"
            | "table1-commit-group-3"
            | "table1-commit-group-5"
            | "fig7-commits-alike"
            | "fig9-model-higher"
            | "fig12-model" => Ours::NeedsGroup,
            id if id.starts_with("table2-") => Ours::NeedsGroup,
            "module-mb" | "cache-mb" | "page-kib" | "card-mbit" | "disk-rpm" | "disk-mb-s"
            | "server-cache-mb" | "local-network-ms" | "version-cache" => Ours::SetUp,
            id => panic!("nobody knows what to compare with the paper's {id}"),
        }
    }

    fn over_distances(&self, of: &dyn Fn(u32) -> f64, best: fn(f64, f64) -> f64) -> f64 {
        let each = self.scale.latencies_ms.iter().map(|ms| of(*ms));
        each.reduce(best).expect("there are distances")
    }

    /// All of the paper's points, each with ours.
    pub(super) fn compared(&self) -> Value {
        let one = |point: &Point| {
            let (how, ours) = match self.ours(point) {
                Ours::Measured(ours) => ("measured", json!(ours)),
                Ours::Model(ours) => ("model", json!(ours)),
                Ours::Holds(holds) => ("measured", json!(holds)),
                Ours::ModelHolds(holds) => ("model", json!(holds)),
                Ours::NeedsGroup => ("takes a group that runs", Value::Null),
                Ours::SetUp => ("set-up", Value::Null),
            };
            let kind = match point.kind {
                Kind::Value => "value",
                Kind::Least => "least",
                Kind::Most => "most",
                Kind::Ordering => "ordering",
            };
            json!({
                "id": point.id,
                "kind": kind,
                "says": point.says.as_ref().or(point.what.as_ref()).or(point.series.as_ref()),
                "paper": point.y,
                "unit": point.unit,
                "source": point.source,
                "ours": ours,
                "how": how,
            })
        };
        Value::from_iter(paper().points.iter().map(one))
    }

    /// What is to be reached, and what was, without a group.
    pub(super) fn targets(&self) -> Vec<Target> {
        let most = *self.scale.curves.last().expect("some clients are measured");
        let cold = |system| self.readers(Run::cold(system, most).far(40));
        let hot = |system| self.readers(Run::hot(system).far(40));
        let (cold_base, cold_best) = (cold(System::Base), cold(System::Best));
        let (hot_base, hot_best) = (hot(System::Base), hot(System::Best));
        vec![
            Target {
                what: format!("{most} cold clients, 40 ms: network wait below Base, %"),
                wanted: 95.0,
                reached: improvement(cold_base.waited(), cold_best.waited()),
            },
            Target {
                what: "hot readers, 40 ms: below Base, %".into(),
                wanted: 60.0,
                reached: improvement(hot_base.total(), hot_best.total()),
            },
            Target {
                what: "transactions that only read, committed without a message, %".into(),
                wanted: 100.0,
                reached: improvement(hot_best.transactions, hot_best.commits_at_origin),
            },
        ]
    }
}

/// What is to be reached, and what was.
pub(super) struct Target {
    pub(super) what: String,
    pub(super) wanted: f64,
    pub(super) reached: f64,
}
