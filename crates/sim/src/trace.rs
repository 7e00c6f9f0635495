//! The trace of a run: a hash over every event, and, when asked for, its last lines for people.

use crate::agenda::Time;
use std::collections::VecDeque;
use std::fmt;

/// Lines kept for the report of a failure.
const TAIL_LINES: usize = 20_000;

/// Hashes all events; keeps the last lines only when they will be read, since formatting costs
/// more than simulating.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    micros: u64,
    lines: Option<VecDeque<String>>,
    print: Option<Print>,
}

/// What takes each line at once.
pub type Print = fn(&str);

impl Trace {
    /// A trace that keeps its last lines if `readable`.
    #[must_use]
    pub fn new(readable: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            micros: 0,
            lines: readable.then(VecDeque::new),
            print: None,
        }
    }

    /// Hands every line over at once instead of keeping the last.
    pub fn print_lines(&mut self, print: Print) {
        (self.lines, self.print) = (Some(VecDeque::new()), Some(print));
    }

    /// Mixes a number in.
    #[inline]
    pub fn mix(&mut self, number: u64) {
        // One round of a multiply-rotate hash: order matters, every bit reaches the top.
        self.hash = (self.hash.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Counts an event, at this virtual time.
    #[inline]
    pub fn event(&mut self, time: Time) {
        self.events += 1;
        self.micros = time.0 / 1_000;
        self.mix(time.0);
    }

    /// Adds a line, if anybody reads them.
    #[inline]
    pub fn line(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let line = format!("{:>12} {}", self.micros, line());
            if let Some(print) = &mut self.print {
                return print(&line);
            }
            if lines.len() == TAIL_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }

    /// The hash of everything so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines.iter().flatten() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
