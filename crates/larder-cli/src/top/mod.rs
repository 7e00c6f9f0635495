//! `larder top`: what processes are doing, side by side, once a second.

mod sample;
mod screen;
mod view;

use crate::args::Common;
use crate::exit::NoAnswer;
use crate::out;
use anyhow::{Result, ensure};
use clap::Args;
use larder::config::{ConfigError, Period};
use rustix::process::{Signal, getpid, kill_process};
use sample::{Figures, Seen};
use screen::Screen;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Endpoints shown at once.
const ENDPOINTS_MAX: usize = 32;
/// The shortest time between two looks: a process tells the same for a quarter of a second.
const EVERY_MIN: Duration = Duration::from_millis(250);

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// A process's HTTP endpoint; may be repeated, for several side by side
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4790")]
    http: Vec<String>,
    /// Time between two looks, at least 250ms
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    every: String,
    /// Look twice, so that there are rates, print that, and end
    #[arg(long)]
    once: bool,
}

impl TopArgs {
    fn every(&self) -> Result<Duration> {
        let invalid = |detail| ConfigError::Invalid { layer: "--every".into(), detail };
        let every: Period = self.every.parse().map_err(invalid)?;
        if every.0 < EVERY_MIN {
            return Err(invalid(format!("less than {EVERY_MIN:?}")).into());
        }
        Ok(every.0)
    }
}

/// Looks at the processes until it is told to end. On a terminal the screen is drawn anew each
/// time; elsewhere a table, or with `--json` an object, is printed, for as long as somebody reads.
pub(crate) async fn run(arguments: &TopArgs, common: &Common) -> Result<()> {
    let every = arguments.every()?;
    ensure!(arguments.http.len() <= ENDPOINTS_MAX, "at most {ENDPOINTS_MAX} endpoints at once");
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let on_screen = !common.json && !arguments.once && std::io::stdout().is_terminal();
    let screen = on_screen.then(Screen::open).transpose()?;

    let mut looks: Vec<Look> = arguments.http.iter().map(|at| Look::new(at)).collect();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds = 0_u32;
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            // Drawn as it was, for the new size.
            _ = resized.recv() => {}
            _ = suspended.recv() => suspend(screen.as_ref())?,
            _ = ticks.tick() => {
                // Ctrl-C must not wait for a process that does not answer.
                tokio::select! {
                    _ = interrupt.recv() => return Ok(()),
                    _ = terminate.recv() => return Ok(()),
                    () = look_all(&mut looks) => rounds = rounds.saturating_add(1),
                }
                if arguments.once && rounds < 2 {
                    continue;
                }
                // Once its reader is gone it would look on for nobody, for ever.
                if screen.is_none() && !print(&looks, common)? && !arguments.once {
                    return Ok(());
                }
            }
        }
        if let Some(screen) = &screen {
            screen.draw(&view::lines(&looks))?;
        }
        if arguments.once && rounds >= 2 {
            return answered(&mut looks);
        }
    }
}

/// Ctrl-Z: the terminal is the shell's until this process goes on.
fn suspend(screen: Option<&Screen>) -> Result<()> {
    screen.map(Screen::leave).transpose()?;
    kill_process(getpid(), Signal::STOP)?;
    screen.map(Screen::enter).transpose()?;
    Ok(())
}

/// A process, as it was at the last looks.
struct Look {
    address: String,
    /// What it counted at the last look, and when.
    before: Option<(Instant, Seen)>,
    /// What is to be shown; an error: it did not answer.
    figures: Result<Figures, std::io::Error>,
}

impl Look {
    fn new(address: &str) -> Self {
        let none = std::io::Error::other("not asked yet");
        Self { address: address.to_owned(), before: None, figures: Err(none) }
    }

    fn take(&mut self, seen: std::io::Result<Seen>) {
        let at = Instant::now();
        match seen {
            Err(error) => (self.before, self.figures) = (None, Err(error)),
            Ok(seen) => {
                let before = self.before.as_ref();
                let since = before.map(|(then, seen)| ((at - *then).as_secs_f64(), seen));
                self.figures = Ok(Figures::new(&seen, since));
                self.before = Some((at, seen));
            }
        }
    }
}

/// Asks all at once: one that does not answer holds up no other for longer than its limit.
async fn look_all(looks: &mut [Look]) {
    let mut asked = JoinSet::new();
    for (number, look) in looks.iter().enumerate() {
        let address = look.address.clone();
        asked.spawn(async move { (number, Seen::ask(&address).await) });
    }
    while let Some(answer) = asked.join_next().await {
        let (number, seen) = answer.expect("asking ends in a result");
        looks[number].take(seen);
    }
}

/// False: nobody reads any more.
fn print(looks: &[Look], common: &Common) -> Result<bool> {
    if common.json {
        return out::line_read(json(looks));
    }
    for line in view::lines(looks) {
        out::line(line)?;
    }
    out::line_read("")
}

/// One look at all processes.
fn json(looks: &[Look]) -> Value {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let process = |look: &Look| match &look.figures {
        Ok(figures) => {
            let mut value = figures.json();
            value["http"] = look.address.clone().into();
            value
        }
        Err(error) => json!({ "http": look.address, "error": error.to_string() }),
    };
    json!({
        "time_s": since.as_secs_f64(),
        "processes": looks.iter().map(process).collect::<Vec<_>>(),
    })
}

/// An error if none has answered.
fn answered(looks: &mut [Look]) -> Result<()> {
    if looks.iter().any(|look| look.figures.is_ok()) {
        return Ok(());
    }
    let look = &mut looks[0];
    let none = Err(std::io::Error::other("told already"));
    let error = std::mem::replace(&mut look.figures, none).err();
    let error = error.unwrap_or_else(|| std::io::Error::other("no answer"));
    Err(NoAnswer { address: look.address.clone(), error }.into())
}

#[cfg(test)]
mod tests;
