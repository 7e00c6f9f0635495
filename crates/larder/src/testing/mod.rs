//! What tests, the scenario and the benches need to put real processes under real faults.

pub mod proxy;
