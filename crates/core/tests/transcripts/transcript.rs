//! Transcripts: a machine's inputs and outputs as text that people review.
//!
//! A transcript begins with prose that tells the schedule. Then each step shows the inputs, a line
//! `----`, and the outputs. [`crate::notation::message`] writes messages; the machines' tests
//! write the inputs and outputs of their own. The text is compared by `insta`; regenerate with
//! `INSTA_UPDATE=always cargo test -p larder-core --test transcripts` and review the diff.

use larder_core::machine::Machine;
use larder_core::time::{Duration, Instant};
use std::fmt::Write as _;

/// A machine, its virtual clock, and what was written so far.
pub(crate) struct Transcript<M: Machine> {
    /// The machine.
    pub(crate) machine: M,
    /// The virtual time.
    pub(crate) now: Instant,
    show: fn(&M::Output) -> Option<String>,
    text: String,
}

impl<M: Machine> Transcript<M> {
    /// Begins with prose; `show` writes an output (none: it is left out).
    pub(crate) fn new(machine: M, prose: &str, show: fn(&M::Output) -> Option<String>) -> Self {
        let mut text = String::new();
        for line in prose.trim().lines() {
            let _ = writeln!(text, "# {}", line.trim());
        }
        Self { machine, now: Instant::default(), show, text }
    }

    /// A remark between steps.
    pub(crate) fn say(&mut self, remark: &str) {
        let _ = writeln!(self.text, "\n# {remark}");
    }

    /// Feeds inputs, each with its notation; writes and returns the outputs.
    pub(crate) fn step(&mut self, inputs: Vec<(String, M::Input)>) -> Vec<M::Output> {
        let mut out = Vec::new();
        self.text.push('\n');
        for (written, input) in inputs {
            let _ = writeln!(self.text, "{written}");
            self.machine.handle(self.now, input, &mut out);
            self.machine.check();
        }
        self.write_outputs(&out);
        out
    }

    /// Lets time pass; timeouts that come due are handled at their time.
    pub(crate) fn wait(&mut self, duration: Duration) -> Vec<M::Output> {
        let _ = writeln!(self.text, "\nwait {duration:?}");
        let until = self.now.after(duration);
        let mut out = Vec::new();
        while let Some(due) = self.machine.next_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.machine.handle_timeout(self.now, &mut out);
            self.machine.check();
        }
        self.now = until;
        self.write_outputs(&out);
        out
    }

    fn write_outputs(&mut self, out: &[M::Output]) {
        self.text.push_str("----\n");
        for line in out.iter().filter_map(|output| (self.show)(output)) {
            let _ = writeln!(self.text, "{line}");
        }
    }

    /// Compares the whole with the file of this name in `tests/transcripts/text`.
    pub(crate) fn end(self, name: &str) {
        let mut settings = insta::Settings::new();
        settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts/text"));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, self.text));
    }
}
