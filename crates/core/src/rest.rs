//! What a machine has under way, in words, for the simulator: when all is mended and nobody asks for
//! anything any more, there must be nothing (decision 0026). Compiled with the planted faults only.
//!
//! Not asked about is what goes on for ever (beats, their echoes, credits under way), what is kept on
//! purpose and bounded by checks of its own (copies, rings, outcomes of nodes that may come back, pins of
//! copies, timers of links that are gone), and what is cleaned up when it is looked at next.

/// The first of these of which there are any, and how many.
pub(crate) fn first(counts: &[(&str, usize)]) -> Option<String> {
    let found = counts.iter().find(|(_, count)| *count > 0);
    found.map(|(what, count)| format!("{what}: {count}"))
}
