//! What the runs say, as the paper's figures and tables.

use super::figure::{Bar, Content, Figure, Series, Whose};
use super::model::{self, improvement};
use super::paper::value;
use super::runs::{Mean, Outcomes, Run, Scale, System};

/// What a time consists of.
const PARTS: [&str; 3] = ["compute", "server fetch", "commit"];

/// What all runs of a scale came to.
pub(super) struct Report<'a> {
    pub(super) scale: &'a Scale,
    pub(super) outcomes: &'a Outcomes,
}

impl Report<'_> {
    /// What a reader of a run measured. It must have been made.
    pub(super) fn readers(&self, run: Run) -> Mean {
        self.outcomes.runs[&run].readers
    }

    /// As the paper derives a distance: from the run on the local network.
    pub(super) fn cold(&self, clients: usize, round_trip_ms: u32) -> Mean {
        self.readers(Run::cold(System::Base, clients)).at(round_trip_ms)
    }

    /// The same of readers with a writer.
    pub(super) fn hot(&self, round_trip_ms: u32) -> Mean {
        self.readers(Run::hot(System::Base)).at(round_trip_ms)
    }

    /// How many misses of a page would reach a redirector: what all miss, over what they miss together.
    pub(super) fn shared(&self, clients: usize) -> f64 {
        let together = self.readers(Run::alone(clients)).misses;
        self.readers(Run::cold(System::Base, clients)).misses * clients as f64 / together
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
            self.small_caches(),
            self.false_sharing(),
        ]
    }

    /// What a fetch and a commit take on the local network.
    fn table1(&self) -> Figure {
        let each = |name: &str, of: &dyn Fn(Mean) -> f64| {
            let clients = self.scale.clients.iter();
            let points = clients.map(|&k| (k as f64, 1e3 * of(self.cold(k, 0))));
            Series { name: name.into(), whose: Whose::Ours, points: points.collect() }
        };
        let mut series = vec![
            each("fetch, Base", &|mean| system_of(mean).fetch),
            each("commit, Base", &|mean| system_of(mean).commit),
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
            let far = |system| self.readers(Run::cold(system, clients).far(round_trip_ms));
            let bar = |name: &str, mean: Mean| bar(format!("{clients} clients: {name}"), mean);
            bars.push(bar("Base", self.cold(clients, round_trip_ms)));
            bars.push(bar("Base far", far(System::Base)));
            bars.push(bar("best alone", far(System::Best)));
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
        let far = |system| self.readers(Run::hot(system).far(round_trip_ms));
        let bars = vec![
            bar("Base".into(), self.hot(round_trip_ms)),
            bar("Base far".into(), far(System::Base)),
            bar("best alone".into(), far(System::Best)),
        ];
        let (number, hot) = (&id[3..], self.scale.hot());
        Figure {
            id,
            title: format!("Figure {number}: {hot} hot read-only transactions, {round_trip_ms} ms"),
            y: "s",
            content: Content::Bars { parts: PARTS.into(), bars },
        }
    }

    /// By how much the model has the group of the writer below Base.
    pub(super) fn writers_by_model(&self, mean: Mean) -> f64 {
        let base = system_of(mean).hot_base(mean.misses / mean.transactions);
        improvement(base, in_group(mean).hot_writers())
    }

    /// By how much it has a group of readers alone below Base.
    pub(super) fn readers_by_model(&self, mean: Mean) -> f64 {
        let misses = mean.misses / mean.transactions;
        let group = in_group(mean).hot_readers(misses, shared_by_readers(mean));
        improvement(system_of(mean).hot_base(misses), group)
    }

    /// By how much the model has a group below Base, of which so many misses of a page reach the redirector.
    pub(super) fn cold_by_model(&self, mean: Mean, shared: f64) -> f64 {
        let base = system_of(mean).cold_base(mean.misses, mean.transactions);
        improvement(base, in_group(mean).cold_group(mean.misses, shared, mean.transactions))
    }

    /// The curve of one value over the distances that are derived.
    fn curve(&self, name: String, of: impl Fn(u32) -> f64) -> Series {
        let points = self.scale.latencies_ms.iter().map(|&ms| (f64::from(ms), of(ms)));
        Series { name, whose: Whose::Model, points: points.collect() }
    }

    fn cold_benefit(&self) -> Figure {
        let mut series = Vec::new();
        for &clients in &self.scale.curves {
            let of = |shared: f64| move |ms| self.cold_by_model(self.cold(clients, ms), shared);
            let name = format!("{clients} clients");
            series.push(self.curve(format!("{name}, r measured"), of(self.shared(clients))));
            series.push(self.curve(format!("{name}, r = {clients}"), of(clients as f64)));
        }
        series.extend(Figure::stated("fig9", (1.0, 200.0)));
        series.extend(Figure::stated("fig7", (1.0, 200.0)).iter().flat_map(at_forty));
        Figure {
            id: "fig9",
            title: "Figure 9: benefit of a group for cold misses".into(),
            y: "% below Base",
            content: Content::Lines { x: "round trip, ms", series },
        }
    }

    fn hot_benefit(&self) -> Figure {
        let writers = |mean| self.writers_by_model(mean);
        let readers = |mean| self.readers_by_model(mean);
        let far = |name: &str, of: &dyn Fn(Mean) -> f64| {
            let mean = |ms: u32| self.readers(Run::hot(System::Base).far(ms));
            let points = self.scale.far_ms.iter().map(|&ms| (f64::from(ms), of(mean(ms))));
            Series { name: name.into(), whose: Whose::Model, points: points.collect() }
        };
        let mut series = vec![
            self.curve("writer group".into(), |ms| writers(self.hot(ms))),
            self.curve("reader group".into(), |ms| readers(self.hot(ms))),
            far("writer group far", &writers),
            far("reader group far", &readers),
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

    /// What the paper did not measure: caches too small for the module.
    fn small_caches(&self) -> Figure {
        let points = self.scale.caches_mib.iter().map(|&mib| {
            let mean = self.readers(Run::small(mib));
            (f64::from(mib), mean.misses / mean.transactions)
        });
        let series = vec![Series {
            name: "misses of a transaction".into(),
            whose: Whose::Ours,
            points: points.collect(),
        }];
        Figure {
            id: "small-caches",
            title: "Caches too small for the module: one client from cold, twice the transactions"
                .into(),
            y: "misses",
            content: Content::Lines { x: "cache, MiB", series },
        }
    }

    /// What the paper did not measure: writers of one page.
    fn false_sharing(&self) -> Figure {
        let series = [false, true].into_iter().flat_map(|others| {
            let name = if others { "reads another's" } else { "own objects alone" };
            let each = |what: &str, of: &dyn Fn(&crate::runtime::sharing::Measured) -> f64| {
                let points = self.scale.sharing.iter().map(|&clients| {
                    let measured = &self.outcomes.sharing[&(clients, others)];
                    (clients as f64, of(measured) / measured.transactions as f64)
                });
                let name = format!("{name}, {what}");
                Series { name, whose: Whose::Ours, points: points.collect() }
            };
            [
                each("misses", &|measured| measured.misses as f64),
                each("conflicts", &|measured| measured.conflicts as f64),
                each("round trips of 40 ms", &|measured| measured.took.as_secs_f64() / 0.0401),
            ]
        });
        Figure {
            id: "false-sharing",
            title: "False sharing: writers of objects on one page, 40 ms".into(),
            y: "a transaction",
            content: Content::Lines { x: "clients", series: series.collect() },
        }
    }
}

/// The improvements of figure 7, by clients, where figure 9 has them: at 40 ms.
fn at_forty(of: &Series) -> Vec<Series> {
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

/// The same in a group, by the paper's costs: of crossing the redirector (table 1), and of a fetch from a
/// neighbour, of which the middle is taken (table 2).
fn in_group(mean: Mean) -> model::System {
    let system = system_of(mean);
    let crossing = value("table1-fetch-group-3") - value("table1-fetch-base-3");
    let peer = value("table2-peer-fetch-least") + value("table2-peer-fetch-most");
    model::System { fetch: system.fetch + crossing / 1e3, redirect: peer / 2.0 / 1e3, ..system }
}

/// Readers of a hot run.
const READERS: f64 = 3.0;

/// How many misses of a page reach the redirector of the readers between two invalidations, if any does. With
/// uniform access, as the model has it, and a share q of what a reader comes to that is stale: a reader comes between
/// two changes with a chance of 1 - q, and any of three does with one of 3 (1 - q) / (3 - 2 q). So 3 - 2 q.
fn shared_by_readers(mean: Mean) -> f64 {
    READERS - (READERS - 1.0) * (mean.missed / mean.transactions)
}
