//! What the paper's text states: figures, and orderings where it gives no more. Its plots are not in its text,
//! so that nothing else is called the paper's here.

use serde::Deserialize;
use std::sync::LazyLock;

/// Everything that is stated.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paper {
    pub(super) paper: String,
    pub(super) points: Vec<Point>,
}

/// What a point says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// It is `y`.
    Value,
    /// The least is `y`.
    Least,
    /// The most is `y`.
    Most,
    /// What `says` says.
    Ordering,
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Point {
    pub(super) id: String,
    /// The figure or table that it belongs to; of none: a fact of the set-up.
    pub(super) figure: Option<String>,
    pub(super) series: Option<String>,
    pub(super) what: Option<String>,
    pub(super) kind: Kind,
    pub(super) x: Option<f64>,
    pub(super) y: Option<f64>,
    pub(super) unit: Option<String>,
    pub(super) says: Option<String>,
    /// The section or table that it is quoted from.
    pub(super) source: String,
}

static PAPER: LazyLock<Paper> = LazyLock::new(|| {
    serde_json::from_str(include_str!("paper.json")).expect("a test holds the file to its form")
});

pub(super) fn paper() -> &'static Paper {
    &PAPER
}

/// The figure of a point that has one.
///
/// # Panics
/// There is no such point: who asks names one of the file.
pub(super) fn value(id: &str) -> f64 {
    let point = paper().points.iter().find(|point| point.id == id);
    point.and_then(|point| point.y).unwrap_or_else(|| panic!("the paper's points lack {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A section by its number, or a table by its own.
    fn is_source(text: &str) -> bool {
        let Some((what, number)) = text.split_once(' ') else { return false };
        let parts: Vec<&str> = number.split('.').collect();
        let numbers =
            parts.iter().all(|part| part.parse().is_ok_and(|n: u32| (1..=10).contains(&n)));
        match what {
            "section" => numbers && parts.len() <= 3,
            "table" => matches!(number, "1" | "2"),
            _ => false,
        }
    }

    #[test]
    fn every_point_has_a_source() {
        for point in &paper().points {
            assert!(is_source(&point.source), "{}: {:?} is no source", point.id, point.source);
        }
        for none in ["", "section", "section x", "figure 7", "table 3", "table", "section 6.4.1.1"]
        {
            assert!(!is_source(none), "{none}");
        }
    }

    #[test]
    fn a_point_is_a_figure_or_an_ordering() {
        let ids: BTreeSet<&str> = paper().points.iter().map(|point| &*point.id).collect();
        assert_eq!(ids.len(), paper().points.len(), "ids are used once");
        for point in &paper().points {
            let ordering = point.kind == Kind::Ordering;
            let figures = [point.y.is_some(), point.unit.is_some()];
            assert_eq!(figures, [!ordering; 2], "{}", point.id);
            assert_eq!(point.says.is_some(), ordering, "{}", point.id);
            let named = point.series.is_some() || point.what.is_some() || ordering;
            assert!(named && (point.figure.is_some() || point.what.is_some()), "{}", point.id);
        }
        assert!(!paper().paper.is_empty());
    }
}
