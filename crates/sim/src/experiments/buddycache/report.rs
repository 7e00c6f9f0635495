//! What the runs say, as the paper's figures and tables.

use super::figure::{Bar, Content, Figure, Series, Whose};
use super::model::{System, improvement};
use super::runs::{FAR_MS, Mean, Outcomes, Run, Scale, Sharing, Topology};
use crate::runtime::sharing::Measured;

/// What a time consists of.
const PARTS: [&str; 4] = ["compute", "server fetch", "peer fetch", "commit"];

/// What all runs of a scale came to.
pub(super) struct Report<'a> {
    pub(super) scale: &'a Scale,
    pub(super) outcomes: &'a Outcomes,
}

/// Gives what is measured for a distance, in milliseconds.
type Of<'a> = &'a dyn Fn(u32) -> f64;

impl Report<'_> {
    /// What a reader of a run measured. It must have been made.
    pub(super) fn readers(&self, run: Run) -> Mean {
        self.outcomes.runs[&run].readers
    }

    /// As the paper derives a distance: from the run on the local network.
    pub(super) fn cold(&self, topology: Topology, clients: usize, round_trip_ms: u32) -> Mean {
        self.readers(Run::cold(topology, clients)).at(round_trip_ms)
    }

    /// The same of readers with a writer.
    pub(super) fn hot(&self, topology: Topology, round_trip_ms: u32) -> Mean {
        self.readers(Run::hot(topology)).at(round_trip_ms)
    }

    /// By how much a group of cold clients is below Base.
    pub(super) fn cold_benefit(&self, clients: usize, round_trip_ms: u32) -> f64 {
        let of = |topology| self.cold(topology, clients, round_trip_ms).total();
        improvement(of(Topology::Alone), of(Topology::Group))
    }

    /// What the model makes of that, with each client coming to all pages.
    pub(super) fn cold_model(&self, clients: usize, round_trip_ms: u32) -> f64 {
        let of = |topology| self.cold(topology, clients, round_trip_ms);
        let (base, group) = (of(Topology::Alone), of(Topology::Group));
        let (system, shared) = (system_of(group), clients as f64);
        let time = system.cold_group(group.misses, shared, group.transactions);
        improvement(system_of(base).cold_base(base.misses, base.transactions), time)
    }

    /// By how much hot readers of a group are below Base.
    pub(super) fn hot_benefit(&self, topology: Topology, round_trip_ms: u32) -> f64 {
        let of = |topology| self.hot(topology, round_trip_ms).total();
        improvement(of(Topology::Alone), of(topology))
    }

    /// What the model makes of that.
    pub(super) fn hot_model(&self, topology: Topology, round_trip_ms: u32) -> f64 {
        let of = |topology| self.hot(topology, round_trip_ms);
        let (base, group) = (of(Topology::Alone), of(topology));
        let (system, each) = (system_of(group), |mean: Mean| mean.misses / mean.transactions);
        let time = match topology {
            Topology::WriterGroup => system.hot_writers(),
            _ => system.hot_readers(each(group), shared_by_readers(group)),
        };
        improvement(system_of(base).hot_base(each(base)), time)
    }

    pub(super) fn figures(&self) -> Vec<Figure> {
        vec![
            self.table1(),
            self.table2(),
            self.cold_breakdown("fig7", 40),
            self.cold_breakdown("fig8", 80),
            self.cold_curves(),
            self.hot_breakdown("fig10", 40),
            self.hot_breakdown("fig11", 80),
            self.hot_curves(),
            self.best(),
            self.small_caches(),
            self.holes(),
            self.false_sharing(),
            self.slow_peer("fig4", "aborted attempts of a transaction", &aborts),
            self.slow_peer("fig4-times", "time of a transaction, ms", &|measured| {
                each(measured.took.as_secs_f64() * 1e3, measured)
            }),
        ]
    }

    /// One value of cold runs on the local network, by clients.
    fn by_clients(&self, name: &str, topology: Topology, of: impl Fn(Mean) -> f64) -> Series {
        let clients = self.scale.clients.iter().filter(|k| topology == Topology::Alone || **k > 1);
        let points = clients.map(|&k| (k as f64, 1e3 * of(self.cold(topology, k, 0))));
        Series { name: name.into(), whose: Whose::Ours, points: points.collect() }
    }

    /// What a fetch and a commit take on the local network.
    fn table1(&self) -> Figure {
        let fetch = |mean: Mean| system_of(mean).fetch;
        let commit = |mean: Mean| system_of(mean).commit;
        let mut series = vec![
            self.by_clients("fetch, Base", Topology::Alone, fetch),
            self.by_clients("fetch, group", Topology::Group, fetch),
            self.by_clients("commit, Base", Topology::Alone, commit),
            self.by_clients("commit, group", Topology::Group, commit),
        ];
        series.extend(Figure::stated("table1", (1.0, 10.0)));
        Figure {
            id: "table1",
            title: "Table 1: fetch and commit on the local network, cold read-only".into(),
            y: "ms",
            content: Content::Lines { x: "clients", series },
        }
    }

    /// What a fetch from a neighbour takes there.
    fn table2(&self) -> Figure {
        let redirect = |mean: Mean| system_of(mean).redirect;
        let mut series = vec![self.by_clients("peer fetch", Topology::Group, redirect)];
        let stated = Figure::stated("table2", (2.0, 10.0)).into_iter();
        series.extend(stated.filter(|one| one.name.starts_with("peer fetch")));
        Figure {
            id: "table2",
            title: "Table 2: fetch from a neighbour, cold read-only".into(),
            y: "ms",
            content: Content::Lines { x: "clients", series },
        }
    }

    fn cold_breakdown(&self, id: &'static str, round_trip_ms: u32) -> Figure {
        let mut bars = Vec::new();
        for &clients in &self.scale.curves {
            for (topology, name) in [(Topology::Alone, "Base"), (Topology::Group, "group")] {
                let derived = self.cold(topology, clients, round_trip_ms);
                bars.push(bar(format!("{name}: {clients} clients"), derived));
                if round_trip_ms == FAR_MS {
                    let far = self.readers(Run::cold(topology, clients).far(FAR_MS));
                    bars.push(bar(format!("{name} far: {clients} clients"), far));
                }
            }
        }
        let (number, cold) = (&id[3..], self.scale.cold());
        let title =
            format!("Figure {number}: {cold} cold read-only transactions, {round_trip_ms} ms");
        Figure { id, title, y: "s", content: Content::Bars { parts: PARTS.into(), bars } }
    }

    fn hot_breakdown(&self, id: &'static str, round_trip_ms: u32) -> Figure {
        let mut bars = Vec::new();
        for (topology, name) in HOT {
            bars.push(bar(name.into(), self.hot(topology, round_trip_ms)));
            if round_trip_ms == FAR_MS {
                let far = self.readers(Run::hot(topology).far(FAR_MS));
                bars.push(bar(format!("{name}: far"), far));
            }
        }
        let (number, hot) = (&id[3..], self.scale.hot());
        let title =
            format!("Figure {number}: {hot} hot read-only transactions, {round_trip_ms} ms");
        Figure { id, title, y: "s", content: Content::Bars { parts: PARTS.into(), bars } }
    }

    /// The curve of one value over the distances that are derived.
    fn curve(&self, name: String, whose: Whose, of: Of<'_>) -> Series {
        let points = self.scale.latencies_ms.iter().map(|&ms| (f64::from(ms), of(ms)));
        Series { name, whose, points: points.collect() }
    }

    fn cold_curves(&self) -> Figure {
        let mut series = Vec::new();
        for &clients in &self.scale.curves {
            let name = format!("{clients} clients");
            let (ours, model) = (Whose::Ours, Whose::Model);
            series.push(self.curve(name.clone(), ours, &|ms| self.cold_benefit(clients, ms)));
            series.push(self.curve(name, model, &|ms| self.cold_model(clients, ms)));
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

    fn hot_curves(&self) -> Figure {
        let mut series = Vec::new();
        for topology in [Topology::WriterGroup, Topology::ReaderGroup] {
            let name = || topology.name().to_owned();
            let (ours, model) = (Whose::Ours, Whose::Model);
            series.push(self.curve(name(), ours, &|ms| self.hot_benefit(topology, ms)));
            series.push(self.curve(name(), model, &|ms| self.hot_model(topology, ms)));
        }
        series.extend(Figure::stated("fig10", (1.0, 200.0)));
        series.extend(Figure::stated("fig12", (1.0, 200.0)));
        Figure {
            id: "fig12",
            title: "Figure 12: benefit of a group for invalidation misses".into(),
            y: "% below Base",
            content: Content::Lines { x: "round trip, ms", series },
        }
    }

    /// Larder's best beside Base, far away.
    fn best(&self) -> Figure {
        let most = self.scale.most();
        let cold = |topology| Run::cold(topology, most).far(FAR_MS);
        let hot = |topology| Run::hot(topology).far(FAR_MS);
        let mut bars = vec![bar(format!("Base: {most} cold"), self.readers(cold(Topology::Alone)))];
        for (topology, name) in [(Topology::Alone, "alone"), (Topology::Group, "group")] {
            bars.push(bar(format!("{name}: {most} cold"), self.readers(cold(topology).best())));
        }
        bars.push(bar("Base: hot".into(), self.readers(hot(Topology::Alone))));
        for (topology, name) in HOT {
            let name = if topology == Topology::Alone { "alone" } else { name };
            bars.push(bar(format!("{name}: hot"), self.readers(hot(topology).best())));
        }
        Figure {
            id: "best",
            title: format!("Larder's best beside Base, far away, {FAR_MS} ms"),
            y: "s",
            content: Content::Bars { parts: PARTS.into(), bars },
        }
    }

    /// What the paper did not measure: caches too small for the module.
    fn small_caches(&self) -> Figure {
        let mut series = Vec::new();
        for (topology, name) in [(Topology::Alone, "Base"), (Topology::Group, "group")] {
            let each = |what: &str, of: &dyn Fn(Mean) -> f64| {
                let small = self.scale.caches_mib.iter().map(|&mib| {
                    let mean = self.readers(Run::small(topology, mib)).at(FAR_MS);
                    (f64::from(mib), of(mean))
                });
                let name = format!("{name}, {what}");
                Series { name, whose: Whose::Ours, points: small.collect() }
            };
            series.push(each("all", &|mean| mean.total()));
            series.push(each("fetched from the server", &|mean| mean.fetch));
        }
        Figure {
            id: "small-caches",
            title: format!("Caches too small for the module: three cold clients, {FAR_MS} ms"),
            y: "s",
            content: Content::Lines { x: "cache of a client, MiB", series },
        }
    }

    /// What the paper did not measure: copies with holes between neighbours.
    fn holes(&self) -> Figure {
        let mut series = Vec::new();
        for (holes, name) in [(false, "complete alone"), (true, "with holes too")] {
            let each = |what: &str, of: &dyn Fn(Mean) -> f64| {
                let sizes = self.scale.caches_mib.iter().map(|&mib| {
                    let mean = self.readers(Run::holed(mib, holes)).at(FAR_MS);
                    (f64::from(mib), of(mean))
                });
                let name = format!("{name}, {what}");
                Series { name, whose: Whose::Ours, points: sizes.collect() }
            };
            series.push(each("all", &|mean| mean.total()));
            series.push(each("fetched from the server", &|mean| mean.fetch));
            series.push(each("fetched from neighbours", &|mean| mean.peer));
        }
        Figure {
            id: "holes",
            title: format!(
                "Copies with holes between neighbours: a group of readers, hot, {FAR_MS} ms"
            ),
            y: "s",
            content: Content::Lines { x: "cache of a client, MiB", series },
        }
    }

    /// The situation that the paper's figure 4 draws: what a slow member costs who changes again what it changed last.
    fn slow_peer(
        &self,
        id: &'static str,
        y: &'static str,
        of: &dyn Fn(&Measured) -> f64,
    ) -> Figure {
        let one = |(group_ack, name): (bool, &str)| {
            let points = self.scale.slow_ms.iter().map(|&slow_ms| {
                (f64::from(slow_ms), of(&self.outcomes.slow[&(slow_ms, group_ack)]))
            });
            Series { name: name.into(), whose: Whose::Ours, points: points.collect() }
        };
        let series = [(true, "group acknowledgement"), (false, "solo commit")].map(one);
        Figure {
            id,
            title: format!("Figure 4: validation with a slow peer, {FAR_MS} ms"),
            y,
            content: Content::Lines {
                x: "until the slow peer acknowledges, ms",
                series: series.into(),
            },
        }
    }

    /// What the paper did not measure: writers of one page.
    fn false_sharing(&self) -> Figure {
        let one = |how: Sharing, what: &str, of: &dyn Fn(&Measured) -> f64| {
            let points = self.scale.sharing.iter().map(|&clients| {
                let measured = &self.outcomes.sharing[&(clients, how)];
                (clients as f64, each(of(measured), measured))
            });
            let reads = if how.reads_others { "another's too" } else { "own alone" };
            let who = if how.group { "group" } else { "Base" };
            let name = format!("{reads} {who}, {what}");
            Series { name, whose: Whose::Ours, points: points.collect() }
        };
        let time = |measured: &Measured| measured.took.as_secs_f64() * 1e3 / f64::from(FAR_MS);
        let series = Sharing::ALL.map(|how| one(how, "round trips", &time));
        Figure {
            id: "false-sharing",
            title: format!("Writers of objects on one page, {FAR_MS} ms"),
            y: "time of a transaction, round trips",
            content: Content::Lines { x: "clients", series: series.into() },
        }
    }
}

/// Of one transaction.
fn each(of_all: f64, measured: &Measured) -> f64 {
    of_all / measured.transactions.max(1) as f64
}

/// Attempts of a transaction that met a conflict.
pub(super) fn aborts(measured: &Measured) -> f64 {
    each(measured.conflicts as f64, measured)
}

/// Hot runs.
const HOT: [(Topology, &str); 3] = [
    (Topology::Alone, "Base"),
    (Topology::ReaderGroup, "reader group"),
    (Topology::WriterGroup, "writer group"),
];

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
    Bar { name, parts: vec![mean.compute, mean.fetch, mean.peer, mean.commit] }
}

/// What the model needs, as it was measured.
pub(super) fn system_of(mean: Mean) -> System {
    System {
        fetch: mean.fetch / mean.fetched().max(1.0),
        redirect: mean.peer / mean.from_neighbours.max(1.0),
        commit: mean.commit / mean.transactions,
        compute: mean.compute / mean.transactions,
    }
}

/// How many misses of a page reach the redirector of the readers between two invalidations, if any does. With
/// uniform access, as the model has it, and a share q of what a reader comes to that is stale: a reader comes between
/// two changes with a chance of 1 - q, and any of three does with one of 3 (1 - q) / (3 - 2 q). So 3 - 2 q. The r that
/// is measured would make the model say what was measured.
fn shared_by_readers(mean: Mean) -> f64 {
    READERS - (READERS - 1.0) * (mean.missed / mean.transactions)
}

/// Readers of a hot run.
const READERS: f64 = 3.0;
