//! Stamps told by outcomes, ahead of the stream.

use crate::id::{HistoryId, Stamp};
use crate::message::Epoch;

/// Histories noted at most; the oldest note is forgotten. One is there at a time, two around a
/// restart of the origin.
const NOTES_MAX: usize = 8;

/// The highest stamp that outcomes told of each history and that the stream has not reached. A
/// restore from an older copy may lose it though it loses nothing that the stream told: sessions
/// count on it all the same (P4, P12).
#[derive(Debug, Default)]
pub(super) struct Told(Vec<(HistoryId, Stamp)>);

impl Told {
    pub(super) fn note(&mut self, history: HistoryId, stamp: Stamp) {
        match self.0.iter_mut().find(|note| note.0 == history) {
            Some(note) => note.1 = note.1.max(stamp),
            None => {
                if self.0.len() == NOTES_MAX {
                    self.0.remove(0);
                }
                self.0.push((history, stamp));
            }
        }
    }

    /// Whether something told is not on a line of histories: one of them ended before it, or the
    /// line reaches its stamp (`through`) without its history. A history not heard of says nothing
    /// before that: outcomes overtake the stream.
    pub(super) fn is_lost(&self, known: &[Epoch], line: &[Epoch], through: Stamp) -> bool {
        self.0.iter().any(|&(history, stamp)| {
            let place = line.iter().position(|epoch| epoch.history == history);
            match place {
                Some(place) => line.get(place + 1).is_some_and(|next| next.first <= stamp),
                // Older than all that are kept in the table.
                None if line.first().is_some_and(|first| stamp < first.first) => false,
                None => stamp <= through || known.iter().any(|epoch| epoch.history == history),
            }
        })
    }

    /// The stream is there: what it has reached is on its line.
    pub(super) fn reached(&mut self, through: Stamp) {
        self.0.retain(|note| note.1 > through);
    }

    /// Notes that the stream has not reached.
    #[cfg(feature = "faults")]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The line ended, and with it what was told.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
