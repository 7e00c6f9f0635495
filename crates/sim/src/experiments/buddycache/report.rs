//! What the runs say, as the paper's figures and tables.

use super::figure::{Bar, Content, Figure, Series, Whose};
use super::model;
use super::paper::value;
use super::runs::{HOT_CLIENTS, Load, Mean, Outcome, Outcomes, Run, Scale, System};

/// What a time consists of.
const PARTS: [&str; 3] = ["compute", "server fetch", "commit"];

/// What all runs of a scale came to.
pub(super) struct Report<'a> {
    pub(super) scale: &'a Scale,
    pub(super) outcomes: &'a Outcomes,
}

impl Report<'_> {
    /// A run that was made.
    fn outcome(&self, load: Load, system: System, clients: usize, round_trip_ms: u32) -> &Outcome {
        &self.outcomes[&Run { load, system, clients, round_trip_ms }]
    }

    /// A reader's share of a cold run.
    pub(super) fn cold(&self, system: System, clients: usize, round_trip_ms: u32) -> Mean {
        self.outcome(Load::Cold, system, clients, round_trip_ms).readers
    }

    /// A reader's share of a hot run.
    pub(super) fn hot(&self, system: System, round_trip_ms: u32) -> Mean {
        self.outcome(Load::Hot, system, HOT_CLIENTS, round_trip_ms).readers
    }

    /// What the paper would derive for a distance from the run on the local network.
    fn derived(&self, load: Load, system: System, clients: usize, round_trip_ms: u32) -> Mean {
        self.outcome(load, system, clients, 0).readers.at(round_trip_ms)
    }

    pub(super) fn figures(&self) -> Vec<Figure> {
        vec![
            self.table1(),
            self.breakdown("fig7", 40),
            self.breakdown("fig8", 80),
            self.cold_benefit(),
            self.hot_breakdown("fig10", 40),
            self.hot_breakdown("fig11", 80),
            self.hot_benefit(),
        ]
    }

    /// What a fetch and a commit take on the local network.
    fn table1(&self) -> Figure {
        let each = |name: &str, of: &dyn Fn(Mean) -> f64| {
            let clients = self.scale.clients.iter();
            let points = clients.map(|&k| (k as f64, 1e3 * of(self.cold(System::Base, k, 0))));
            Series { name: name.into(), whose: Whose::Ours, points: points.collect() }
        };
        let mut series = vec![
            each("fetch, Base", &|mean| mean.fetch / mean.misses),
            each("commit, Base", &|mean| mean.commit / mean.transactions),
        ];
        series.extend(Figure::stated("table1", (1.0, 10.0)));
        Figure {
            id: "table1",
            title: "Table 1: fetch and commit on the local network, cold read-only".into(),
            y: "ms",
            content: Content::Lines { x: "clients", series },
        }
    }

    fn breakdown(&self, id: &'static str, round_trip_ms: u32) -> Figure {
        let mut bars = Vec::new();
        for &clients in &self.scale.curves {
            let bar = |name: &str, mean: Mean| bar(format!("{clients}: {name}"), mean);
            bars.push(bar("Base", self.derived(Load::Cold, System::Base, clients, round_trip_ms)));
            bars.push(bar("Base, far", self.cold(System::Base, clients, round_trip_ms)));
            bars.push(bar("best alone", self.cold(System::Best, clients, round_trip_ms)));
        }
        let (number, cold) = (&id[3..], self.scale.cold());
        Figure {
            id,
            title: format!(
                "Figure {number}: {cold} cold read-only transactions, {round_trip_ms} ms"
            ),
            y: "s",
            content: Content::Bars { parts: PARTS.into(), bars },
        }
    }

    fn hot_breakdown(&self, id: &'static str, round_trip_ms: u32) -> Figure {
        let bars = vec![
            bar("Base".into(), self.derived(Load::Hot, System::Base, HOT_CLIENTS, round_trip_ms)),
            bar("Base, far".into(), self.hot(System::Base, round_trip_ms)),
            bar("best alone".into(), self.hot(System::Best, round_trip_ms)),
        ];
        let (number, hot) = (&id[3..], self.scale.hot());
        Figure {
            id,
            title: format!("Figure {number}: {hot} hot read-only transactions, {round_trip_ms} ms"),
            y: "s",
            content: Content::Bars { parts: PARTS.into(), bars },
        }
    }

    /// What the model makes of Base's own times for a group, by the paper's costs of crossing and of helping.
    fn predicted(&self, mean: Mean, shared: f64) -> f64 {
        let system = system_of(mean);
        let crossing = value("table1-fetch-group-3") - value("table1-fetch-base-3");
        let peer = [value("table2-peer-fetch-least"), value("table2-peer-fetch-most")];
        let group = model::System {
            fetch: system.fetch + crossing / 1e3,
            redirect: (peer[0] + peer[1]) / 2.0 / 1e3,
            ..system
        };
        let base = system.cold_base(mean.misses, mean.transactions);
        model::improvement(base, group.cold_group(mean.misses, shared, mean.transactions))
    }

    fn cold_benefit(&self) -> Figure {
        let mut series = Vec::new();
        for &clients in &self.scale.curves {
            let latencies = self.scale.latencies_ms.iter();
            let points = latencies.map(|&ms| {
                let mean = self.derived(Load::Cold, System::Base, clients, ms);
                (f64::from(ms), self.predicted(mean, clients as f64))
            });
            let name = format!("{clients} clients");
            series.push(Series { name, whose: Whose::Model, points: points.collect() });
        }
        series.extend(Figure::stated("fig9", (1.0, 200.0)));
        series.extend(Figure::stated("fig7", (1.0, 200.0)).into_iter().flat_map(at_forty));
        Figure {
            id: "fig9",
            title: "Figure 9: benefit of a group for cold misses".into(),
            y: "% below Base",
            content: Content::Lines { x: "round trip, ms", series },
        }
    }

    fn hot_benefit(&self) -> Figure {
        let writers = |mean: Mean| {
            let system = system_of(mean);
            let base = system.hot_base(mean.misses / mean.transactions);
            model::improvement(base, system.hot_writers())
        };
        let curve = |name: &str, of: &dyn Fn(u32) -> Mean| {
            let points = self.scale.latencies_ms.iter().map(|&ms| (f64::from(ms), writers(of(ms))));
            Series { name: name.into(), whose: Whose::Model, points: points.collect() }
        };
        let mut series = vec![
            curve("writer group", &|ms| self.derived(Load::Hot, System::Base, HOT_CLIENTS, ms)),
            curve("writer group far", &|ms| self.hot(System::Base, ms)),
        ];
        series.extend(Figure::stated("fig10", (1.0, 200.0)));
        series.extend(Figure::stated("fig12", (1.0, 200.0)));
        Figure {
            id: "fig12",
            title: "Figure 12: benefit of a group for invalidation misses".into(),
            y: "% below Base",
            content: Content::Lines { x: "round trip, ms", series },
        }
    }
}

/// The improvements of figure 7, by clients, where figure 9 has them: at 40 ms.
fn at_forty(of: Series) -> Vec<Series> {
    let one = |(clients, y): &(f64, f64)| Series {
        name: format!("{clients} clients"),
        whose: Whose::Paper,
        points: vec![(40.0, *y)],
    };
    of.points.iter().map(one).collect()
}

fn bar(name: String, mean: Mean) -> Bar {
    Bar { name, parts: vec![mean.compute, mean.fetch, mean.commit] }
}

/// What the model needs, as it was measured.
pub(super) fn system_of(mean: Mean) -> model::System {
    model::System {
        fetch: mean.fetch / mean.misses.max(1.0),
        redirect: 0.0,
        commit: mean.commit / mean.transactions,
        compute: mean.compute / mean.transactions,
    }
}
