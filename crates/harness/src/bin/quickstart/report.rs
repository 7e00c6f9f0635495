//! What the quickstart says: progress on standard error, results on standard output.

use crate::ONE_WAY;
use crate::sites::Edit;
use crate::uncached::Uncached;
use crate::work::{Pass, Seen};
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
    /// At site one, at site two.
    pub(crate) cold: Vec<Pass>,
    /// The same again.
    pub(crate) warm: Vec<Pass>,
    pub(crate) uncached: Uncached,
    pub(crate) edit: Edit,
}

impl Figures {
    /// Prints a table for people, or one line of JSON.
    pub(crate) fn print(&self, as_json: bool) {
        if as_json { print(self.json()) } else { print(self.table()) }
    }

    fn json(&self) -> serde_json::Value {
        let (cold, warm) = (&self.cold, &self.warm);
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
        let passes = [
            ("cold_one", cold[0]),
            ("cold_two", cold[1]),
            ("warm_one", warm[0]),
            ("warm_two", warm[1]),
        ];
        for (name, pass) in passes {
            figures[format!("{name}_s")] = pass.both_s().into();
            figures[format!("round_trips_{name}")] = pass.requests.into();
            figures[format!("line_bytes_{name}")] = pass.line_bytes.into();
        }
        figures
    }

    fn table(&self) -> String {
        let Seen { directories, files, bytes, .. } = self.seen;
        let mut text = format!(
            "\n{}, {} in {}, imported in {:.1} s; each site {} ms there and back from the origin\n\n\
             {:24}{:>9}{:>9}{:>9}{:>13}{:>13}\n",
            counted(files, "file"),
            size(bytes),
            counted(directories, "folder"),
            self.import_s,
            ONE_WAY.as_millis() * 2,
            "seconds to",
            "list",
            "search",
            "both",
            "round trips",
            "on the line",
        );
        row(&mut text, "local disk", &self.local, false);
        row(&mut text, "site one, cold", &self.cold[0], true);
        row(&mut text, "site two, cold", &self.cold[1], true);
        row(&mut text, "site one, warm", &self.warm[0], true);
        row(&mut text, "site two, warm", &self.warm[1], true);
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
             kernel keeps of it: cold are the sites' caches alone. \"list\" looks at every name, \"search\"\n\
             reads every file. Round trips are requests for data; some overlap. The line also carried what keeps\n\
             it alive. Without a cache every folder, name and 128 KiB of a file is a round trip:\n\
             {} of {} were made, spread evenly, and the time of all reckoned from them.",
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
        let _ = write!(text, "{:>13}{:>13}", counted(pass.requests, ""), size(pass.line_bytes));
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
