//! What the quickstart says: progress on standard error, results on standard output.

use crate::ONE_WAY;
use crate::neighbours::Members;
use crate::sites::{Edit, SITES};
use crate::uncached::Uncached;
use crate::work::{Cost, Pass, Seen};
use anyhow::Result;
use serde_json::json;
use std::fmt::{Display, Write as _};
use std::io::Write;

/// Says how far it is. Nobody may be reading: then there is nobody to tell.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "quickstart: {text}");
}

/// Prints a result; to nobody, if nobody reads.
pub(crate) fn print(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// `4112` files as `4,112 files`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    let s = if number == 1 { "" } else { "s" };
    if what.is_empty() { text } else { format!("{text} {what}{s}") }
}

/// Bytes with a decimal prefix.
pub(crate) fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_000 => return counted(bytes, "byte"),
        1_000..1_000_000 => (1e3, "kB"),
        1_000_000..1_000_000_000 => (1e6, "MB"),
        _ => (1e9, "GB"),
    };
    format!("{:.1} {name}", bytes as f64 / unit)
}

/// All that was measured.
pub(crate) struct Figures {
    pub(crate) seen: Seen,
    pub(crate) import_s: f64,
    pub(crate) local: Pass,
    /// By site.
    pub(crate) members: [Members; 2],
    pub(crate) uncached: Uncached,
    pub(crate) edit: Edit,
}

impl Figures {
    /// Prints a table for people, or one line of JSON.
    pub(crate) fn print(&self, as_json: bool) {
        if as_json { print(self.json()) } else { print(self.table()) }
    }

    /// Fails if a member fetched over the line what its neighbour had.
    pub(crate) fn judge(&self) -> Result<()> {
        SITES.iter().zip(&self.members).try_for_each(|(site, members)| members.judge(site))
    }

    fn json(&self) -> serde_json::Value {
        let mut figures = json!({
            "directories": self.seen.directories,
            "files": self.seen.files,
            "bytes": self.seen.bytes,
            "line_round_trip_ms": ONE_WAY.as_millis() as u64 * 2,
            "import_s": self.import_s,
            "local_s": self.local.both_s(),
            "uncached_s": self.uncached.seconds,
            "uncached_operations": self.uncached.operations,
            "uncached_sampled": self.uncached.sampled,
            "edit_visible_ms": self.edit.visible_ms,
            "edit_synced_ms": self.edit.synced_ms,
        });
        for (site, members) in SITES.iter().zip(&self.members) {
            figures[format!("judged_{site}")] = members.kept_all.into();
            for (how, [first, second]) in [("cold", members.cold), ("warm", members.warm)] {
                let name = format!("{how}_{site}");
                for (name, pass) in [(format!("{name}_neighbour"), second), (name, first)] {
                    figures[format!("{name}_s")] = pass.both_s().into();
                    figures[format!("round_trips_{name}")] = pass.cost.requests.into();
                    figures[format!("line_bytes_{name}")] = pass.cost.line_bytes.into();
                    figures[format!("origin_pages_{name}")] = pass.cost.origin_pages.into();
                    figures[format!("neighbour_pages_{name}")] = pass.cost.neighbour_pages.into();
                }
            }
        }
        figures
    }

    fn table(&self) -> String {
        let Seen { directories, files, bytes, .. } = self.seen;
        let mut text = format!(
            "\n{}, {} in {}, imported in {:.1} s; each site {} ms there and back from the origin\n\n\
             {:>94}\n{:24}{:>9}{:>9}{:>9}{:>13}{:>13}{:>10}{:>11}\n",
            counted(files, "file"),
            size(bytes),
            counted(directories, "folder"),
            self.import_s,
            ONE_WAY.as_millis() * 2,
            "pages from",
            "seconds to",
            "list",
            "search",
            "both",
            "round trips",
            "on the line",
            "origin",
            "neighbour",
        );
        row(&mut text, "local disk", &self.local, false);
        for (site, members) in SITES.iter().zip(&self.members) {
            for (how, [first, second]) in [("cold", members.cold), ("warm", members.warm)] {
                row(&mut text, &format!("site {site}, {how}"), &first, true);
                row(&mut text, &format!("  its neighbour, {how}"), &second, true);
            }
        }
        let Uncached { seconds, operations, sampled } = self.uncached;
        let _ = writeln!(
            text,
            "{:42}{seconds:>9.2}{:>13}",
            "without a cache, over such a line",
            counted(operations, ""),
        );
        let _ = write!(
            text,
            "\nAn edit at one site is read at the other {:.0} ms after it began; the one who writes\n\
             knows after {:.0} ms that it is durable. Local disk and origin read from memory what the\n\
             kernel keeps of it: cold are the sites' caches alone. The neighbour at a site is cold too when it\n\
             begins: what the first one has fetched it gets from there. \"list\" looks at every name, \"search\"\n\
             reads every file. Round trips are requests for data that came to the origin; some overlap. The\n\
             line also carried what keeps it alive. Without a cache every folder, name and 128 KiB of a file\n\
             is a round trip: {} of {} were made, spread evenly, and the time of all reckoned from them.",
            self.edit.visible_ms,
            self.edit.synced_ms,
            counted(sampled, ""),
            counted(operations, ""),
        );
        text
    }
}

fn row(text: &mut String, name: &str, pass: &Pass, at_a_site: bool) {
    let (list, grep, both) = (pass.list_s, pass.grep_s, pass.both_s());
    let _ = write!(text, "{name:24}{list:>9.2}{grep:>9.2}{both:>9.2}");
    if at_a_site {
        let Cost { requests, line_bytes, origin_pages, neighbour_pages } = pass.cost;
        let _ = write!(
            text,
            "{:>13}{:>13}{:>10}{:>11}",
            counted(requests, ""),
            size(line_bytes),
            counted(origin_pages, ""),
            counted(neighbour_pages, ""),
        );
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_as_people_write_them() {
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(0, "file"), "0 files");
        assert_eq!(counted(999, ""), "999");
        assert_eq!(counted(4_112, "file"), "4,112 files");
        assert_eq!(counted(1_234_567, ""), "1,234,567");
        assert_eq!(size(12), "12 bytes");
        assert_eq!(size(1_500), "1.5 kB");
        assert_eq!(size(23_400_000), "23.4 MB");
    }
}
