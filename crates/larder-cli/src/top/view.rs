//! Processes side by side: a column each, a row a figure.

use super::Look;
use super::sample::Figures;
use indicatif::HumanBytes;

/// The widest column of a process.
const COLUMN_MAX: usize = 36;

type Cell = fn(&Figures) -> String;

/// The rows, in their order.
const ROWS: [(&str, Cell); 24] = [
    ("process", |f| format!("{} {}", f.role, f.name)),
    ("link", |f| f.link.clone().unwrap_or_else(none)),
    ("children", |f| number(f.children)),
    ("age of its state", |f| f.age_s.map_or_else(none, |age| format!("{age:.1} s"))),
    ("cache", |f| part(f.cache_bytes, f.cache_bytes_max)),
    ("hits", |f| per_second(f.hits_s)),
    ("misses", |f| per_second(f.misses_s)),
    ("hit ratio", |f| ratio(f.hits_s, f.misses_s)),
    ("commits", |f| per_second(f.commits_s)),
    ("commits without a message", |f| per_second(f.local_s)),
    ("conflicts", |f| per_second(f.conflicts_s)),
    ("a fetch takes", |f| millis(f.fetch_ms)),
    ("a commit takes", |f| millis(f.commit_ms)),
    ("log records", |f| per_second(f.appends_s)),
    ("pages loaded", |f| per_second(f.loads_s)),
    ("requests of the kernel", |f| per_second(f.asked_s)),
    ("sent", |f| bytes_per_second(f.sent_bytes_s)),
    ("received", |f| bytes_per_second(f.received_bytes_s)),
    ("waits to be sent", |f| bytes(f.queued_bytes)),
    ("waits to be committed", |f| bytes(f.waiting_bytes)),
    ("log", |f| bytes(f.log_bytes)),
    ("pages in the store", |f| bytes(f.store_bytes)),
    ("lost", |f| bytes(f.lost_bytes)),
    ("certificate ends in", |f| days(f.certificate_s)),
];

fn none() -> String {
    "-".into()
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(none, |value| format!("{value:.0}"))
}

fn per_second(value: Option<f64>) -> String {
    value.map_or_else(none, |value| match value {
        small if small > 0.0 && small < 10.0 => format!("{small:.1}/s"),
        value => format!("{value:.0}/s"),
    })
}

fn ratio(hits: Option<f64>, misses: Option<f64>) -> String {
    match (hits, misses) {
        (Some(hits), Some(misses)) if hits + misses > 0.0 => {
            format!("{:.1} %", 100.0 * hits / (hits + misses))
        }
        _ => none(),
    }
}

fn millis(value: Option<f64>) -> String {
    value.map_or_else(none, |value| format!("{value:.2} ms"))
}

fn bytes(value: Option<f64>) -> String {
    value.map_or_else(none, |value| HumanBytes(value.max(0.0) as u64).to_string())
}

fn part(value: Option<f64>, of: Option<f64>) -> String {
    value.map_or_else(none, |_| format!("{} of {}", bytes(value), bytes(of)))
}

fn bytes_per_second(value: Option<f64>) -> String {
    value.map_or_else(none, |_| format!("{}/s", bytes(value)))
}

fn days(seconds: Option<f64>) -> String {
    seconds.map_or_else(none, |seconds| match seconds / 86_400.0 {
        over if over < 0.0 => "over".into(),
        days if days < 3.0 => format!("{:.1} h", days * 24.0),
        days => format!("{days:.0} days"),
    })
}

/// What is shown, a line each; whoever shows them cuts them to what there is room for. A row of
/// which no process tells anything is left out.
pub(super) fn lines(looks: &[Look]) -> Vec<String> {
    let cells = |cell: Cell| {
        let of = |look: &Look| look.figures.as_ref().map_or_else(|_| none(), cell);
        looks.iter().map(of).collect::<Vec<String>>()
    };
    let mut table = vec![(String::new(), looks.iter().map(|look| look.address.clone()).collect())];
    for (head, cell) in ROWS {
        let row = cells(cell);
        if row.iter().any(|text| text != "-") {
            table.push((head.to_owned(), row));
        }
    }
    let head_width = table.iter().map(|(head, _)| head.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..looks.len())
        .map(|i| table.iter().map(|(_, row): &(_, Vec<String>)| row[i].chars().count()).max())
        .map(|width| width.unwrap_or(0).min(COLUMN_MAX))
        .collect();
    let mut lines: Vec<String> = table
        .iter()
        .map(|(head, row)| {
            let mut line = format!("{head:head_width$}");
            for (text, width) in row.iter().zip(&widths) {
                let text: String = text.chars().take(*width).collect();
                line.push_str(&format!("  {text:>width$}"));
            }
            line
        })
        .collect();
    for look in looks {
        match &look.figures {
            Ok(figures) => {
                lines.extend(figures.waits.iter().map(|wait| format!("{} {wait}", figures.name)))
            }
            Err(error) => lines.push(format!("{}: no answer: {error}", look.address)),
        }
    }
    // What a process tells goes to a terminal: nothing in it may command that.
    lines.into_iter().map(|line| line.replace(char::is_control, "?")).collect()
}
