//! Any bytes as datagrams of a group's membership, one after the other: each after its length. And all of them
//! as what comes over a connection that carries such datagrams, and by multicast.
#![no_main]

use bytes::Bytes;
use larder::testing::check_datagrams;
use larder_core::group::membership::{
    Candidacy, Membership, MembershipConfig, MembershipInput, Participant, check_datagram,
};
use larder_core::id::BootId;
use larder_core::machine::Machine;
use larder_core::time::Instant;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_datagrams(data);
    let own = Participant {
        life: BootId(1),
        name: "own".into(),
        address: "a:1".into(),
        candidacy: Candidacy::May(1),
    };
    let config = MembershipConfig { seeds: vec!["b:1".into()], ..MembershipConfig::new("g", own) };
    let mut machine = Membership::new(config);
    let (mut now, mut left, mut outputs) = (0, data, Vec::new());
    machine.handle_timeout(Instant(now), &mut outputs);
    while let Some((length, rest)) = left.split_first() {
        let (datagram, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        left = rest;
        let (from, datagram) = ("b:1".into(), Bytes::copy_from_slice(datagram));
        check_datagram(&datagram);
        let input = MembershipInput::Received { from, datagram };
        now += 50_000_000;
        machine.handle(Instant(now), input, &mut outputs);
        if machine.next_timeout().is_some_and(|wake| wake.0 <= now) {
            machine.handle_timeout(Instant(now), &mut outputs);
        }
        machine.check();
        outputs.clear();
    }
});
