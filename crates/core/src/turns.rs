//! Those who take turns.

use std::collections::BTreeMap;

/// Values by their owners, who take turns: who comes is last in the round, and so is who has had a turn.
#[derive(Debug)]
pub(crate) struct Turns<K, V> {
    owners: BTreeMap<K, (u64, V)>,
    round: BTreeMap<u64, K>,
    next_turn: u64,
}

impl<K, V> Default for Turns<K, V> {
    fn default() -> Self {
        Self { owners: BTreeMap::new(), round: BTreeMap::new(), next_turn: 0 }
    }
}

impl<K: Copy + Ord, V: Default> Turns<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// What is an owner's, who comes with it if there was nothing.
    pub(crate) fn entry(&mut self, owner: K) -> &mut V {
        let Self { owners, round, next_turn } = self;
        let (_, value) = owners.entry(owner).or_insert_with(|| {
            let turn = *next_turn;
            *next_turn += 1;
            round.insert(turn, owner);
            (turn, V::default())
        });
        value
    }

    pub(crate) fn get_mut(&mut self, owner: K) -> Option<&mut V> {
        self.owners.get_mut(&owner).map(|(_, value)| value)
    }

    /// Who is first by name.
    pub(crate) fn first(&self) -> Option<K> {
        self.owners.first_key_value().map(|(owner, _)| *owner)
    }

    /// Whose turn it is.
    pub(crate) fn next(&self) -> Option<K> {
        self.round.first_key_value().map(|(_, owner)| *owner)
    }

    /// An owner has had a turn, and is last.
    pub(crate) fn has_had(&mut self, owner: K) {
        let Some((turn, _)) = self.owners.get_mut(&owner) else { return };
        self.round.remove(turn);
        *turn = self.next_turn;
        self.next_turn += 1;
        self.round.insert(*turn, owner);
    }

    pub(crate) fn remove(&mut self, owner: K) -> Option<V> {
        let (turn, value) = self.owners.remove(&owner)?;
        self.round.remove(&turn);
        Some(value)
    }

    /// Keeps those of which that is said.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(K, &mut V) -> bool) {
        let Self { owners, round, .. } = self;
        owners.retain(|owner, (turn, value)| {
            let keeps = keep(*owner, value);
            if !keeps {
                round.remove(turn);
            }
            keeps
        });
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.owners.values().map(|(_, value)| value)
    }

    pub(crate) fn clear(&mut self) {
        self.owners.clear();
        self.round.clear();
    }

    /// Panics when an invariant is broken.
    pub(crate) fn check(&self) {
        let has_turn = |(owner, (turn, _)): (&K, &(u64, V))| {
            self.round.get(turn).is_some_and(|in_round| in_round == owner)
        };
        assert!(self.owners.iter().all(has_turn), "who waits has no turn");
        assert_eq!(self.owners.len(), self.round.len(), "each has one turn in a round");
    }
}
