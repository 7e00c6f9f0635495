//! What tests, fuzzing, the scenario and the benches need: real processes under real faults, and
//! parts of a process by themselves.

pub mod certificates;
pub mod proxy;

/// Any bytes as what participants of a group send beside links: over a connection for datagrams, and by multicast.
/// What is taken of them is written the same. For fuzzing.
///
/// # Panics
/// It is not.
pub fn check_datagrams(bytes: &[u8]) {
    crate::transport::check_frames(bytes);
    crate::group::check_message(bytes);
}
