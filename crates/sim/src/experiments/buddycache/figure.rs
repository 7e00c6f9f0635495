//! Figures as data: what is drawn, written as CSV, and told as JSON.

use super::paper::{Kind, paper};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Whose a series is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// Measured.
    Ours,
    /// Derived by the model from what was measured.
    Model,
    /// Stated by the paper.
    Paper,
}

impl Whose {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "measured",
            Self::Model => "model",
            Self::Paper => "paper",
        }
    }
}

/// Points of one kind.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) whose: Whose,
    pub(super) points: Vec<(f64, f64)>,
}

/// Bars that stand on one another: a time and its parts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    /// In the order of the figure's parts.
    pub(super) parts: Vec<f64>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Content {
    Lines { x: &'static str, series: Vec<Series> },
    Bars { parts: Vec<&'static str>, bars: Vec<Bar> },
}

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Figure {
    /// As the paper's points name it; its files' name.
    pub(super) id: &'static str,
    pub(super) title: String,
    /// What its values are, with the unit.
    pub(super) y: &'static str,
    pub(super) content: Content,
}

impl Figure {
    /// The paper's points of a figure, as series: a bound over all of it at both ends of `across`.
    pub(super) fn stated(id: &str, across: (f64, f64)) -> Vec<Series> {
        let of_figure = paper().points.iter().filter(|point| point.figure.as_deref() == Some(id));
        let mut series: Vec<Series> = Vec::new();
        for point in of_figure {
            let (Some(y), Some(name)) = (point.y, &point.series) else { continue };
            let (name, points) = match (point.kind, point.x) {
                (Kind::Value, Some(x)) => (name.clone(), vec![(x, y)]),
                (Kind::Most, Some(x)) => (format!("{name}, most"), vec![(x, y)]),
                (Kind::Most, None) => (format!("{name}, most"), vec![(across.0, y), (across.1, y)]),
                (Kind::Least, None) => {
                    (format!("{name}, least"), vec![(across.0, y), (across.1, y)])
                }
                _ => continue,
            };
            match series.iter_mut().find(|one| one.name == name) {
                Some(one) => one.points.extend(points),
                None => series.push(Series { name, whose: Whose::Paper, points }),
            }
        }
        series
    }

    /// One line for each value, below a head.
    pub(super) fn csv(&self) -> String {
        let mut text = String::new();
        let mut line = |cells: [&str; 4]| {
            let quoted = cells.map(|cell| match cell.contains([',', '"']) {
                true => format!("\"{}\"", cell.replace('"', "\"\"")),
                false => cell.to_owned(),
            });
            writeln!(text, "{}", quoted.join(",")).expect("writing to a string cannot fail");
        };
        match &self.content {
            Content::Lines { x, series } => {
                line(["whose", "series", x, self.y]);
                for one in series {
                    for (x, y) in &one.points {
                        line([one.whose.name(), &one.name, &x.to_string(), &format!("{y:.3}")]);
                    }
                }
            }
            Content::Bars { parts, bars } => {
                line(["whose", "bar", "part", self.y]);
                for bar in bars {
                    for (part, value) in parts.iter().zip(&bar.parts) {
                        line(["measured", &bar.name, part, &format!("{value:.3}")]);
                    }
                }
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let content = match &self.content {
            Content::Lines { x, series } => {
                let series = series.iter().map(|one| {
                    json!({ "name": one.name, "whose": one.whose.name(), "points": one.points })
                });
                json!({ "x": x, "series": Value::from_iter(series) })
            }
            Content::Bars { parts, bars } => {
                let bars = bars.iter().map(|bar| json!({ "name": bar.name, "values": bar.parts }));
                json!({ "parts": parts, "bars": Value::from_iter(bars) })
            }
        };
        json!({ "figure": self.id, "title": self.title, "y": self.y, "content": content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_paper_states_of_a_figure_becomes_series() {
        let series = Figure::stated("fig12", (1.0, 200.0));
        let of: Vec<_> = series.iter().map(|one| (&*one.name, &*one.points)).collect();
        let ends = |y| [(1.0, y), (200.0, y)];
        let (least, most) = (ends(44.0), ends(64.0));
        assert_eq!(of, [("writer group, least", &least[..]), ("writer group, most", &most[..])]);
        let fig7 = Figure::stated("fig7", (1.0, 10.0));
        assert_eq!(fig7[0].points, [(3.0, 39.0), (5.0, 46.0), (10.0, 56.0)]);
    }

    #[test]
    fn a_figure_is_written_as_csv() {
        let series =
            vec![Series { name: "a, b".into(), whose: Whose::Ours, points: vec![(1.0, 2.5)] }];
        let content = Content::Lines { x: "ms", series };
        let figure = Figure { id: "f", title: "t".into(), y: "s", content };
        assert_eq!(figure.csv(), "whose,series,ms,s\nmeasured,\"a, b\",1,2.500\n");
    }
}
