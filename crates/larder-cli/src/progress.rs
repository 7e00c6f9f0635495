//! How far a long command has come: a bar on a terminal, elsewhere a line every few seconds, with
//! `--json` a JSON object a line. All of it on standard error; standard output is for the result.

use crate::out;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How far a command has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// Files and directories done, or pages.
    pub(crate) done: u64,
    /// How many are known of so far; none: nobody knows.
    pub(crate) known: Option<u64>,
    /// Bytes done, where they are counted.
    pub(crate) bytes: Option<u64>,
}

/// Shows it.
pub(crate) struct Progress {
    verb: &'static str,
    unit: &'static str,
    how: How,
    started: Instant,
}

enum How {
    Bar(ProgressBar),
    /// Lines, or objects; and when the next is due.
    Lines {
        json: bool,
        due: Instant,
    },
    Quiet,
}

impl Progress {
    /// For `import`, `export`, …
    pub(crate) fn new(verb: &'static str, json: bool, quiet: bool) -> Self {
        Self::counting(verb, "files", json, quiet)
    }

    /// For `backup`, `restore`, …
    pub(crate) fn of_pages(verb: &'static str, json: bool, quiet: bool) -> Self {
        Self::counting(verb, "pages", json, quiet)
    }

    /// For what counts something else.
    pub(crate) fn counting(
        verb: &'static str,
        unit: &'static str,
        json: bool,
        quiet: bool,
    ) -> Self {
        let started = Instant::now();
        let how = if quiet {
            How::Quiet
        } else if !json && std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(200));
            How::Bar(bar)
        } else {
            How::Lines { json, due: started + LINE_EVERY }
        };
        Self { verb, unit, how, started }
    }

    /// Takes note of how far it is.
    pub(crate) fn show(&mut self, step: Step) {
        let Self { verb, unit, how, started } = self;
        let elapsed = started.elapsed();
        match how {
            How::Quiet => {}
            How::Bar(bar) => {
                if let Some(known) = step.known
                    && bar.length().is_none()
                {
                    bar.set_length(known);
                    let style = "{spinner} {wide_bar} {msg}";
                    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
                }
                if let Some(known) = step.known {
                    bar.set_length(known);
                    bar.set_position(step.done);
                }
                bar.set_message(text(step, elapsed, unit));
            }
            How::Lines { json, due } => {
                let now = Instant::now();
                if now < *due {
                    return;
                }
                *due = now + LINE_EVERY;
                if *json {
                    out::fault(object(verb, step, elapsed, unit));
                } else {
                    out::fault(format_args!("{verb}: {}", text(step, elapsed, unit)));
                }
            }
        }
    }

    /// Clears the bar; how long it took.
    pub(crate) fn finish(&self) -> Duration {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

/// Seconds left, at the pace so far; none: nobody knows yet.
fn left_s(step: Step, elapsed: Duration) -> Option<f64> {
    let known = step.known?;
    (step.done > 0 && elapsed > Duration::from_secs(1))
        .then(|| elapsed.as_secs_f64() * known.saturating_sub(step.done) as f64 / step.done as f64)
}

fn rate(bytes: u64, elapsed: Duration) -> f64 {
    bytes as f64 / elapsed.as_secs_f64().max(1e-3)
}

fn text(step: Step, elapsed: Duration, unit: &str) -> String {
    let files = match step.known {
        Some(known) => format!("{} of {known} {unit}", step.done),
        None => format!("{} {unit}", step.done),
    };
    let bytes = step.bytes.map_or_else(String::new, |bytes| {
        format!(", {} ({}/s)", HumanBytes(bytes), HumanBytes(rate(bytes, elapsed) as u64))
    });
    let left = left_s(step, elapsed).map_or_else(String::new, |seconds| {
        format!(", {} left", HumanDuration(Duration::from_secs_f64(seconds.min(1e9))))
    });
    format!("{files}{bytes}{left}")
}

fn object(verb: &str, step: Step, elapsed: Duration, unit: &str) -> serde_json::Value {
    let mut object = json!({
        "progress": verb,
        "seconds": elapsed.as_secs_f64(),
        "left_s": left_s(step, elapsed),
    });
    if let Some(bytes) = step.bytes {
        object["bytes"] = bytes.into();
        object["bytes_per_s"] = rate(bytes, elapsed).into();
    }
    object[unit] = step.done.into();
    object[format!("{unit}_known")] = step.known.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn the_time_left_is_at_the_pace_so_far() {
        let step = Step { done: 25, known: Some(100), bytes: Some(10 << 20) };
        assert_eq!(left_s(step, TEN), Some(30.0));
        assert_eq!(
            text(step, TEN, "files"),
            "25 of 100 files, 10.00 MiB (1.00 MiB/s), 30 seconds left"
        );
        assert_eq!(object("import", step, TEN, "files")["left_s"], 30.0);
        // More was done than was known of: nothing is left of what is known.
        assert_eq!(left_s(Step { done: 101, ..step }, TEN), Some(0.0));
        assert_eq!(left_s(Step { done: 0, ..step }, TEN), None);
        assert_eq!(
            text(Step { known: None, ..step }, TEN, "files"),
            "25 files, 10.00 MiB (1.00 MiB/s)"
        );
        let uncounted = Step { bytes: None, ..step };
        assert_eq!(text(uncounted, TEN, "parts"), "25 of 100 parts, 30 seconds left");
        assert_eq!(object("build", uncounted, TEN, "parts")["bytes"], serde_json::Value::Null);
    }
}
