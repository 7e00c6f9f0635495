//! A terminal's screen that is drawn anew again and again, and given back as it was.

use anyhow::Result;
use rustix::termios::tcgetwinsize;
use std::io::{Write, stdout};

/// To the other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal of standard output, until dropped.
pub(super) struct Screen;

impl Screen {
    /// Takes the other screen of the terminal, so that what was on it comes back.
    pub(super) fn open() -> Result<Self> {
        // Dropped when the first bytes do not get through, too.
        let screen = Self;
        screen.enter()?;
        Ok(screen)
    }

    /// Takes it again.
    pub(super) fn enter(&self) -> Result<()> {
        write(ENTER)
    }

    /// Gives it back for a while.
    pub(super) fn leave(&self) -> Result<()> {
        write(LEAVE)
    }

    /// Draws lines from the top, cut to the size that the terminal has now.
    pub(super) fn draw(&self, lines: &[String]) -> Result<()> {
        // One that does not tell is taken for a small one.
        let (columns, rows) = match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        };
        write(&frame(lines, columns.into(), rows.into()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = write(LEAVE);
    }
}

/// Lines for a terminal of that size, each overwriting what was there: nothing flickers.
pub(super) fn frame(lines: &[String], columns: usize, rows: usize) -> String {
    let mut text = String::from("\x1b[H");
    for (number, line) in lines.iter().take(rows).enumerate() {
        if number > 0 {
            text.push_str("\r\n");
        }
        text.extend(line.chars().take(columns));
        text.push_str("\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
