//! What is to happen when: a queue of events by virtual time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Virtual time since the beginning of the run, in nanoseconds. No process sees it: each has a
/// clock of its own (`clock`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

/// A microsecond.
pub const MICRO: u64 = 1_000;
/// A millisecond.
pub const MILLI: u64 = 1_000_000;
/// A second.
pub const SECOND: u64 = 1_000_000_000;

impl Time {
    /// This much later.
    #[must_use]
    pub fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// Events by (time, order of entry): two runs that enter the same events pop them alike.
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry<E> {
    time: Time,
    order: u64,
    event: E,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }
}

impl<E> Agenda<E> {
    /// Enters an event.
    pub fn enter(&mut self, time: Time, event: E) {
        self.heap.push(Entry { time, order: self.entered, event });
        self.entered += 1;
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|entry| (entry.time, entry.event))
    }

    /// How many events wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first; we want the earliest.
        (other.time, other.order).cmp(&(self.time, self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_order_of_entry() {
        let mut agenda = Agenda::default();
        agenda.enter(Time(2), 'c');
        agenda.enter(Time(1), 'a');
        agenda.enter(Time(1), 'b');
        let order: Vec<char> =
            std::iter::from_fn(|| agenda.pop().map(|(_, event)| event)).collect();
        assert_eq!(order, ['a', 'b', 'c']);
    }
}
