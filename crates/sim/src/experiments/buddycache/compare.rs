//! Each point of the paper beside ours, and each target beside what was reached.

use super::paper::{Kind, Point, paper};
use super::report::Report;
use super::runs::{FAR_MS, Run, Topology};
use super::{model::improvement, report::aborts, report::system_of};
use serde_json::{Value, json};

/// Ours, where a point has one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Ours {
    /// Measured.
    Is(f64),
    /// Whether an ordering holds.
    Holds(bool),
    /// There is none: it is a fact of the set-up, which went into ours, a cost that is measured between processes, or
    /// of clients that this scale has not.
    Nothing,
}

/// What is called similar: percentage points, and the share of one in the other.
const SIMILAR: f64 = 5.0;
const HALF: std::ops::RangeInclusive<f64> = 0.35..=0.65;

impl Report<'_> {
    /// Ours, of one of the paper's points.
    ///
    /// # Panics
    /// There is no such point.
    pub(super) fn ours(&self, point: &Point) -> Ours {
        let clients = point.x.map_or(0, |x| x as usize);
        let id = &*point.id;
        match id.split('-').next().unwrap_or_default() {
            "fig4" => Ours::Holds(self.solo_commit_spares_aborts()),
            "table1" => self.of_table1(id, clients),
            "table2" => self.of_table2(id),
            "fig7" | "fig8" | "fig9" | "up" => self.of_cold(id, clients),
            "fig10" | "fig11" | "fig12" => self.of_hot(id),
            "module" | "cache" | "page" | "card" | "disk" | "server" | "local" | "version" => {
                Ours::Nothing
            }
            _ => unknown(id),
        }
    }

    /// Nobody's commit is aborted for a slow peer, and by group acknowledgement more are than with a prompt one.
    fn solo_commit_spares_aborts(&self) -> bool {
        let at = |ms: u32, group_ack| aborts(&self.outcomes.slow[&(ms, group_ack)]);
        let slow = &self.scale.slow_ms;
        let (Some(prompt), Some(slowest)) = (slow.iter().min(), slow.iter().max()) else {
            return false;
        };
        let spared = slow.iter().all(|ms| at(*ms, false) == 0.0);
        spared && at(*slowest, true) > at(*prompt, true)
    }

    fn of_table1(&self, id: &str, clients: usize) -> Ours {
        let local = |topology, clients| system_of(self.cold(topology, clients, 0));
        let (base, group) = (|k| local(Topology::Alone, k), |k| local(Topology::Group, k));
        match id {
            "table1-fetch-base-3" | "table1-fetch-base-5" => Ours::Is(1e3 * base(clients).fetch),
            "table1-fetch-group-3" | "table1-fetch-group-5" => Ours::Is(1e3 * group(clients).fetch),
            "table1-commit-base-3" | "table1-commit-base-5" => Ours::Is(1e3 * base(clients).commit),
            "table1-commit-group-3" | "table1-commit-group-5" => {
                Ours::Is(1e3 * group(clients).commit)
            }
            "table1-commits-in-sequence" => Ours::Holds(base(5).commit > base(3).commit),
            "table1-fetch-grows-less" => {
                let [three, five] = [base(3), base(5)];
                Ours::Holds(five.fetch - three.fetch < five.commit - three.commit)
            }
            _ => unknown(id),
        }
    }

    fn of_table2(&self, id: &str) -> Ours {
        let each = self.scale.clients.iter().filter(|clients| **clients > 1);
        let each = each.map(|&k| 1e3 * system_of(self.cold(Topology::Group, k, 0)).redirect);
        match id {
            "table2-peer-fetch-least" => Ours::Is(each.fold(f64::MAX, f64::min)),
            "table2-peer-fetch-most" => Ours::Is(each.fold(0.0, f64::max)),
            // Parts of it: what ours takes for them is in the machines' parameters.
            "table2-alert-helper-least"
            | "table2-alert-helper-most"
            | "table2-copy-unswizzle"
            | "table2-cross-redirector" => Ours::Nothing,
            _ => unknown(id),
        }
    }

    fn of_cold(&self, id: &str, clients: usize) -> Ours {
        let most = self.scale.most();
        let curves = || self.scale.curves.iter().copied();
        let benefit = |ms| self.cold_benefit(most, ms);
        match id {
            "fig7-3" | "fig7-5" | "fig7-10" if curves().all(|k| k != clients) => Ours::Nothing,
            "fig7-3" | "fig7-5" | "fig7-10" => Ours::Is(self.cold_benefit(clients, 40)),
            "fig7-commits-alike" => {
                let commit = |topology| self.cold(topology, 3, 40).commit;
                let off = improvement(commit(Topology::Alone), commit(Topology::Group));
                Ours::Holds(off.abs() <= SIMILAR)
            }
            "fig7-fetches-fall" => {
                let fetch = |clients| self.cold(Topology::Group, clients, 40).fetch;
                Ours::Holds(curves().map(fetch).is_sorted_by(|more, less| more > less))
            }
            "fig8-similar" => {
                let off = |k| (self.cold_benefit(k, 80) - self.cold_benefit(k, 40)).abs();
                Ours::Holds(curves().map(off).fold(0.0, f64::max) <= SIMILAR)
            }
            "fig9-peak" => Ours::Is(benefit(60)),
            "fig9-rises" => Ours::Holds(benefit(60) > benefit(20)),
            "fig9-levels" => {
                Ours::Holds(benefit(100) - benefit(60) < (benefit(60) - benefit(20)) / 2.0)
            }
            "fig9-low" => Ours::Holds(curves().any(|k| self.cold_benefit(k, 1) < 0.0)),
            "fig9-model-higher" => {
                let above = |k| self.cold_model(k, 40) - self.cold_benefit(k, 40);
                Ours::Holds(curves().map(above).all(|above| (0.0..=SIMILAR).contains(&above)))
            }
            "up-to-half" => Ours::Holds([40, 80].into_iter().any(|ms| benefit(ms) >= 50.0)),
            _ => unknown(id),
        }
    }

    fn of_hot(&self, id: &str) -> Ours {
        let writers = |ms| self.hot_benefit(Topology::WriterGroup, ms);
        let readers = |ms| self.hot_benefit(Topology::ReaderGroup, ms);
        match id {
            "fig10-writer" => Ours::Is(writers(40)),
            "fig10-reader" => Ours::Is(readers(40)),
            "fig12-writer-least" => Ours::Is(self.over_distances(&writers, f64::min)),
            "fig12-writer-most" => Ours::Is(self.over_distances(&writers, f64::max)),
            "fig10-half" => Ours::Holds(HALF.contains(&(readers(40) / writers(40)))),
            "fig11-similar" => Ours::Holds(HALF.contains(&(readers(80) / writers(80)))),
            "fig12-model" => {
                let off = |topology, benefit: f64| (self.hot_model(topology, 40) - benefit).abs();
                let writers = off(Topology::WriterGroup, writers(40));
                Ours::Holds(writers <= off(Topology::ReaderGroup, readers(40)))
            }
            _ => unknown(id),
        }
    }

    fn over_distances(&self, of: &dyn Fn(u32) -> f64, best: fn(f64, f64) -> f64) -> f64 {
        let each = self.scale.latencies_ms.iter().map(|ms| of(*ms));
        each.reduce(best).expect("there are distances")
    }

    /// All of the paper's points, each with ours.
    pub(super) fn compared(&self) -> Value {
        let one = |point: &Point| {
            let ours = match self.ours(point) {
                Ours::Is(ours) => json!(ours),
                Ours::Holds(holds) => json!(holds),
                Ours::Nothing => Value::Null,
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
            })
        };
        Value::from_iter(paper().points.iter().map(one))
    }

    /// What is to be reached, and what was.
    pub(super) fn targets(&self) -> Vec<Target> {
        let (most, ms) = (self.scale.most(), FAR_MS);
        let cold = |topology| Run::cold(topology, most).far(ms);
        let hot = |topology| Run::hot(topology).far(ms);
        let base = self.readers(cold(Topology::Alone)).waited();
        let wait = self.readers(cold(Topology::Group).best()).waited();
        let below = |topology| {
            let [base, best] = [hot(Topology::Alone), hot(topology).best()];
            improvement(self.readers(base).total(), self.readers(best).total())
        };
        let local = self.readers(hot(Topology::WriterGroup).best());
        let one = |what: String, wanted, reached| Target { what, wanted, reached };
        vec![
            one(
                format!("{most} cold clients in a group, {ms} ms: network wait below Base, %"),
                95.0,
                improvement(base, wait),
            ),
            one(
                format!("writer group, {ms} ms: below Base, %"),
                75.0,
                below(Topology::WriterGroup),
            ),
            one(
                format!("reader group, {ms} ms: below Base, %"),
                60.0,
                below(Topology::ReaderGroup),
            ),
            one(
                "transactions that only read, committed without a message, %".into(),
                100.0,
                improvement(local.transactions, local.commits_at_origin),
            ),
        ]
    }
}

/// What is to be reached, and what was.
pub(super) struct Target {
    pub(super) what: String,
    pub(super) wanted: f64,
    pub(super) reached: f64,
}

fn unknown(id: &str) -> Ours {
    panic!("nobody knows what to compare with the paper's {id}")
}
