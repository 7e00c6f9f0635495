//! The machines of the paper, as far as their work takes time: every figure that goes into the measurements
//! beside the protocol's own waits, each with where it comes from: what the paper states, what its table 1 leaves
//! when that is taken off, one that is fitted to that table, and one of another paper.

use super::paper::value;
use crate::runtime::oo7::Costs;
use std::time::Duration;

/// One of them.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) value_ms: f64,
    pub(super) origin: &'static str,
}

/// KiB of a page.
const PAGE_KIB: f64 = 8.0;

/// There and back on the local network, without what is sent.
pub(super) const LOCAL: Duration = Duration::from_micros(100);

/// A page on a network card.
fn card_page_ms() -> f64 {
    PAGE_KIB * 1024.0 * 8.0 / (value("card-mbit") * 1e6) * 1e3
}

/// A page at the server's processor: what table 1 has for a fetch without what is known of it.
fn server_page_ms() -> f64 {
    value("table1-fetch-base-3") - value("local-network-ms") - card_page_ms()
}

/// A page at the redirector: what table 1 has for crossing it, without the local network and the second card.
fn redirector_page_ms() -> f64 {
    let crossing = value("table1-fetch-group-3") - value("table1-fetch-base-3");
    crossing - value("local-network-ms") - card_page_ms()
}

/// A hot T1 of the medium database, 437,400 visits, took Thor's client 7.77 s at 133 MHz; here at 850.
const VISIT_US: f64 = 7.77e6 / 437_400.0 * 133.0 / 850.0;

/// A commit at the server, which takes one after another.
const COMMIT_MS: f64 = 1.5;

/// Half a turn of the disk.
fn log_write_ms() -> f64 {
    60e3 / value("disk-rpm") / 2.0
}

/// All of them.
pub(super) fn parameters() -> Vec<Parameter> {
    vec![
        Parameter {
            name: "local network, there and back",
            value_ms: LOCAL.as_secs_f64() * 1e3,
            origin: "section 6.3.1: fixed and less than 0.1 ms; its upper end is taken",
        },
        Parameter {
            name: "page of 8 KiB on a network card",
            value_ms: card_page_ms(),
            origin: "section 6.2: 100 Mb/s; each machine's card sends one thing after another",
        },
        Parameter {
            name: "page of 8 KiB at the server's and the client's processors",
            value_ms: server_page_ms(),
            origin: "table 1: a fetch of Base with three clients, 1.3 ms, without network and card; that 0.24 ms of it is \
                     copying and unswizzling is what table 2 says of a client",
        },
        Parameter {
            name: "page of 8 KiB at the redirector's processor",
            value_ms: redirector_page_ms(),
            origin: "table 1: a fetch in a group of three less one of Base, without network and card",
        },
        Parameter {
            name: "page of 8 KiB at a client that sends it to another",
            value_ms: value("table2-copy-unswizzle"),
            origin: "table 2: copy and unswizzle",
        },
        Parameter {
            name: "atomic part that a transaction comes to",
            value_ms: VISIT_US / 1e3,
            origin: "Castro and others, HAC (SOSP 1997), table 3: 7.77 s for a hot T1 of the medium database on Thor, at 133 MHz, \
                     taken as so many cycles at the 850 MHz of section 6.2",
        },
        Parameter {
            name: "commit at the server",
            value_ms: COMMIT_MS,
            origin: "fitted to table 1 alone, roughly: with three clients of Base 2.5 ms on the local network, and with five 5.5; it \
                     gives 2.9 and 4.5",
        },
        Parameter {
            name: "append to the server's log",
            value_ms: log_write_ms(),
            origin: "section 6.2: 7200 turns a minute, half of one; no seek, since a log is written in its order. A commit is acknowledged when \
                     it is durable",
        },
    ]
}

fn ms(value: f64) -> Duration {
    Duration::from_nanos((value * 1e6) as u64)
}

/// As a course takes them.
pub(super) fn costs() -> Costs {
    let kib = |page: f64| ms(page / PAGE_KIB);
    Costs {
        visit: ms(VISIT_US / 1e3),
        commit: ms(COMMIT_MS),
        log_write: ms(log_write_ms()),
        card_kib: kib(card_page_ms()),
        origin_kib: kib(server_page_ms()),
        redirector_kib: kib(redirector_page_ms()),
        client_kib: kib(value("table2-copy-unswizzle")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left is time, and of the size of what it stands for.
    #[test]
    fn every_parameter_has_an_origin() {
        for one in parameters() {
            assert!(one.value_ms > 0.0 && one.value_ms < 10.0, "{}", one.name);
            assert!(one.origin.contains("section") || one.origin.contains("table"), "{}", one.name);
        }
    }
}
