//! Named probes at rare branches, for the simulator: a branch that no run ever takes is one that no
//! checker has ever seen. Which there are is listed in `larder_sim::probes`; the nightly run fails when
//! one that is not marked rare was never reached.
//!
//! Like planted faults they exist only with the feature `faults`: elsewhere a call is nothing. They
//! change nothing that a machine does, and count by thread: a run is played by one.

#[cfg(feature = "faults")]
use std::cell::RefCell;
#[cfg(feature = "faults")]
use std::collections::BTreeMap;

#[cfg(feature = "faults")]
thread_local! {
    static REACHED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// The branch of this name is taken.
#[inline]
pub fn probe(name: &'static str) {
    #[cfg(feature = "faults")]
    REACHED.with_borrow_mut(|reached| *reached.entry(name).or_default() += 1);
    #[cfg(not(feature = "faults"))]
    let _ = name;
}

/// How often which branches were taken by this thread since this was asked last.
#[cfg(feature = "faults")]
#[must_use]
pub fn take() -> BTreeMap<&'static str, u64> {
    REACHED.take()
}
