//! Transcripts of a link that follows two domains, and has little credit.

use super::*;
use larder_core::id::{PageNo, RequestId, VolumeId};
use larder_core::message::{Lane, Message, PageAsk, VolumeSpec};

/// Domains 1 and 2, with a volume of the same number each.
const DOMAINS: [u64; 2] = [1, 2];

/// An origin of two domains, in whose stores there is always room, and its child a.
struct TwoDomains(Transcript<Origin>);

impl TwoDomains {
    /// Each page that is sent takes all of the link's credit.
    fn new(prose: &str) -> Self {
        let mut config = OriginConfig::default();
        config.downlink.limits.bulk_window_bytes = 1;
        Self::with(prose, config)
    }

    fn with(prose: &str, config: OriginConfig) -> Self {
        let recovered = DOMAINS.map(|domain| RecoveredDomain {
            meta: DomainMeta { domain: DomainId(domain), ..DomainMeta::default() },
            apart: Vec::new(),
            records: Vec::new(),
            history: HistoryId(domain.into()),
        });
        let mut out = Vec::new();
        let (now, wall) = (Instant::default(), WallTime(0));
        let origin = Origin::new(config, now, wall, recovered.into(), &mut out);
        let mut run = Self(Transcript::new(origin.expect("it recovers"), prose, show));
        run.carry_out(out);
        run.quietly(opened(1, "a"));
        run.quietly(hello(1, "a", 10));
        for domain in DOMAINS {
            run.quietly(received(
                1,
                Message::Resume {
                    request: RequestId(domain),
                    domain: DomainId(domain),
                    epochs: Vec::new(),
                    through: None,
                },
            ));
            let (id, name) = (VolumeId(domain.into()), format!("v{domain}"));
            let spec = VolumeSpec { id, name, page_bytes: 4096, domain: Some(DomainId(domain)) };
            let request = RequestId(2 + domain);
            run.quietly(received(1, Message::CreateVolume { request, spec }));
        }
        run
    }

    fn quietly(&mut self, (_, input): (String, LinkInput)) {
        let mut out = Vec::new();
        let input = OriginInput::Link(input);
        larder_core::machine::Machine::handle(&mut self.0.machine, self.0.now, input, &mut out);
        self.carry_out(out);
    }

    /// The stores take everything.
    fn carry_out(&mut self, mut out: Vec<OriginOutput>) {
        while !out.is_empty() {
            let mut more = Vec::new();
            for output in out {
                let OriginOutput::Append { domain, write, .. } = output else { continue };
                let input = OriginInput::Appended { domain, write, result: Ok(()) };
                let machine = &mut self.0.machine;
                larder_core::machine::Machine::handle(machine, self.0.now, input, &mut more);
            }
            out = more;
        }
    }

    fn link(&mut self, inputs: Vec<(String, LinkInput)>) -> Vec<OriginOutput> {
        let inputs = inputs.into_iter().map(|(s, i)| (s, OriginInput::Link(i))).collect();
        self.0.step(inputs)
    }

    /// The child takes in what it was sent, and says so, until nothing more comes.
    fn take_in(&mut self, mut sent: Vec<OriginOutput>) {
        while let Some(credit) = credit(Lane::Bulk, &sent) {
            sent = self.link(vec![credit]);
        }
    }
}

/// What the child says when it has taken in what was sent on a lane; none: that was nothing.
fn credit(lane: Lane, sent: &[OriginOutput]) -> Option<(String, LinkInput)> {
    let messages = sent.iter().filter_map(|output| match output {
        OriginOutput::Link(LinkOutput::Send { message, .. }) => Some(message),
        _ => None,
    });
    let of_lane = messages.filter(|message| message.lane() == lane);
    let bytes: usize = of_lane.map(larder_core::wire::encoded_len).sum();
    let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0)?;
    Some(received(1, Message::Credit { lane, bytes }))
}

/// A fetch of the first page of a domain's volume.
fn root(request: u64, domain: u64, prefetch: bool) -> (String, LinkInput) {
    let page = PageId { volume: VolumeId(domain.into()), page: PageNo(1) };
    let pages = vec![PageAsk { page, have: None }];
    let (request, domain) = (RequestId(request), DomainId(domain));
    received(1, Message::Fetch { request, domain, pages, prefetch })
}

#[test]
fn bug_102_domains_take_turns() {
    let mut run = TwoDomains::new(
        "A link follows domains 1 and 2, and its credit is for one page at a time. Pages were served in \
         the order of their domains: as long as a went on reading ahead in domain 1, or asking for its \
         pages, nobody who waited for a page of domain 2 was answered. Now what is waited for comes \
         before what is read ahead, in whichever domain, and each credit begins with the domain after \
         the one that was served last.",
    );
    let ahead = (10..13).map(|request| root(request, 1, true)).chain([root(13, 2, false)]);
    let sent = run.link(ahead.collect());
    run.take_in(sent);
    let waited = (20..23).map(|request| root(request, 1, false));
    let sent = run.link(waited.chain([root(23, 2, false), root(24, 2, false)]).collect());
    run.take_in(sent);
    run.0.end("origin_bug_102_domains_take_turns");
}

/// A page that is read ahead, and that somebody has come to wait for, was never served while others asked for
/// pages of the same domain: its round of its own gave it no turn there.
#[test]
fn bug_120_what_is_read_ahead_has_its_turn() {
    let mut run = TwoDomains::new(
        "A link's credit is for one page at a time. Request 11 reads ahead, and others go on asking for pages \
         that they wait for. Nobody can say that somebody waits for the page of request 11 by now: after \
         seven others it has its turn.",
    );
    let sent = run.link(vec![root(10, 1, false), root(11, 1, true)]);
    run.link((12..22).map(|request| root(request, 1, false)).collect());
    run.take_in(sent);
    run.0.end("origin_bug_120_what_is_read_ahead");
}

/// The streams of a link were sent in the order of their domains: where the first took all of the window the
/// next one's waited, and with it its echoes, so that its lease lapsed.
#[test]
fn bug_121_streams_take_turns() {
    let mut config = OriginConfig::default();
    config.downlink.limits.stream_window_bytes = 1;
    let mut run = TwoDomains::with(
        "A link follows domains 1 and 2, and its credit is for one message of a stream at a time. In both there \
         is always a beat to be answered. Domain 1 was answered each time, domain 2 never: now each credit \
         begins with the domain after the one that took the last.",
        config,
    );
    // Those of domain 2 are sent a second later.
    let beat = |domain: u64, round: u64| {
        let sent = Instant(((domain - 1) * 1000 + round) * 1_000_000);
        received(1, Message::Beat { domain: DomainId(domain), sent })
    };
    // What the resumes and the volumes left.
    for bytes in [200, 200] {
        run.quietly(received(1, Message::Credit { lane: Lane::Stream, bytes }));
    }
    let mut sent = run.link(vec![beat(1, 1), beat(2, 1)]);
    for round in 2..6 {
        run.link(vec![beat(1, round), beat(2, round)]);
        let credit = credit(Lane::Stream, &sent).expect("one of them was answered");
        sent = run.link(vec![credit]);
    }
    run.0.end("origin_bug_121_streams_take_turns");
}
