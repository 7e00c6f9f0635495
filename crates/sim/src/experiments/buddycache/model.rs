//! The paper's analytical model (section 6.1.1), by its own names. Times are in seconds.

/// What the model needs of one system.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct System {
    /// A fetch from the server.
    pub(super) fetch: f64,
    /// A fetch from a neighbour.
    pub(super) redirect: f64,
    /// A commit.
    pub(super) commit: f64,
    /// What a client computes in a transaction.
    pub(super) compute: f64,
}

impl System {
    /// What transactions take beside their misses.
    fn transaction(&self) -> f64 {
        self.compute + self.commit
    }

    /// A miss of which one in `shared` goes to the server, and the others to a neighbour.
    fn miss(&self, shared: f64) -> f64 {
        self.fetch / shared + (1.0 - 1.0 / shared) * self.redirect
    }

    /// Equation 1: `pages` cold misses of a client of Base, and its transactions.
    pub(super) fn cold_base(&self, pages: f64, transactions: f64) -> f64 {
        pages * self.fetch + self.transaction() * transactions
    }

    /// Equation 2: the same in a group, where `shared` misses of a page reach the redirector. In the paper
    /// that is the number of clients, since each comes to all pages.
    pub(super) fn cold_group(&self, pages: f64, shared: f64, transactions: f64) -> f64 {
        pages * self.miss(shared) + self.transaction() * transactions
    }

    /// Equation 3: one transaction of Base with so many invalidation misses.
    pub(super) fn hot_base(&self, misses: f64) -> f64 {
        misses * self.fetch + self.transaction()
    }

    /// Equation 4: the same among readers, where `shared` misses of a page reach the redirector between
    /// two invalidations of it.
    pub(super) fn hot_readers(&self, misses: f64, shared: f64) -> f64 {
        misses * self.miss(shared) + self.transaction()
    }

    /// Equation 5: the same in the group of the writer, where there are no such misses.
    pub(super) fn hot_writers(&self) -> f64 {
        self.transaction()
    }
}

/// By how much of `base` something that takes `time` is below it, in per cent.
pub(super) fn improvement(base: f64, time: f64) -> f64 {
    100.0 * (1.0 - time / base)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: System = System { fetch: 0.041, redirect: 0.003, commit: 0.042, compute: 0.001 };

    /// A group of one is Base.
    #[test]
    fn whoever_is_alone_gains_nothing() {
        assert_eq!(LINE.cold_group(3_000.0, 1.0, 1_000.0), LINE.cold_base(3_000.0, 1_000.0));
        assert_eq!(LINE.hot_readers(2.0, 1.0), LINE.hot_base(2.0));
        assert_eq!(LINE.hot_base(0.0), LINE.hot_writers());
    }

    /// By hand: 3000 misses and 1000 transactions, and ten clients.
    #[test]
    fn the_equations_are_those_of_the_paper() {
        assert!((LINE.cold_base(3_000.0, 1_000.0) - 166.0).abs() < 1e-9);
        let group = 3_000.0 * (0.0041 + 0.9 * 0.003) + 43.0;
        assert!((LINE.cold_group(3_000.0, 10.0, 1_000.0) - group).abs() < 1e-9);
        assert!((improvement(166.0, 83.0) - 50.0).abs() < 1e-9);
    }
}
