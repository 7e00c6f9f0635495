//! What tests, fuzzing, the scenario and the benches need: real processes under real faults, and
//! parts of a process by themselves.

pub mod certificates;
pub mod proxy;
