//! Transcripts of an origin whose stores are full, damaged, slow or gone.

use super::*;
use larder_core::commit::{Op, PageKind};
use larder_core::id::{RequestId, VolumeId};
use larder_core::message::{Message, VolumeSpec};

fn full() -> Option<StoreFault> {
    Some(StoreFault::Full("60 MiB are free".into()))
}

fn damaged() -> Option<StoreFault> {
    Some(StoreFault::Damaged("its checksum does not match".into()))
}

fn allocate(link: u64, request: u64) -> (String, LinkInput) {
    let request = RequestId(request);
    received(link, Message::AllocateIds { request, volume: VOLUME, count: 10 })
}

fn create(link: u64, request: u64, id: u128, name: &str) -> (String, LinkInput) {
    let spec = VolumeSpec { id: VolumeId(id), name: name.into(), page_bytes: 4096, domain: None };
    received(link, Message::CreateVolume { request: RequestId(request), spec })
}

impl Run {
    /// The origin is started again; its store has not answered anything yet.
    fn begin(&mut self, history: u128) {
        self.t.say("the origin is started again");
        self.t.machine = open(&self.config, self.t.now, &mut self.store, history);
    }

    /// Everything is installed; unwritten.
    pub(crate) fn settle_pages(&mut self) {
        let last = self.store.log.iter().filter_map(|(_, record)| match record {
            LogRecord::Commit { stamp, .. } => Some(*stamp),
            _ => None,
        });
        let last = last.max().expect("there are commits");
        while self.store.meta.installed < last {
            let waited = self.t.wait(Duration::from_secs(3));
            self.keep(&waited);
            self.carry_out_quietly();
        }
    }

    /// Pages 2 to `last` are made by a, one commit each, and installed.
    pub(super) fn pages(&mut self, last: u64) {
        for n in 2..=last {
            let create = Op::CreatePage(PageKind::Slotted);
            let commit = Commit::new(10, n, n).op(n, create).put(n, 1, 1, "n");
            self.quietly(vec![commit.on(1)]);
        }
        self.settle_pages();
    }
}

#[test]
fn a_full_disk_at_the_start() {
    let mut run = Run::new(
        "The log's disk is full when the origin is started: the epoch cannot be logged. The origin \
         once ended the domain's service there, and, not serving, never installed what would have \
         given the log's space back: every start ended alike. Now what was recovered is installed \
         and the log trimmed, and the epoch is asked for again; children are told to come back. \
         When not even that makes room, the append is tried again now and then, for an operator \
         may. The metadata names no history that is not in the log.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.begin(2);
    run.link(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.store(full());
    run.store(None);
    run.store(None);
    let epochs = run.store.meta.epochs.len();
    assert_eq!(epochs, 1, "the new history is not durable");
    run.store(full());
    run.wait(1);
    run.store(None);
    run.link(vec![opened(2, "a"), hello(2, "a", 10), resume(2, 1, &[(1, 1)], 2)]);
    run.t.end("origin_a_full_disk_at_the_start");
}

/// The origin's machine with two domains in history 1, each of which has asked for its epoch.
fn two_domains(prose: &str) -> Transcript<Origin> {
    let recovered = |domain| RecoveredDomain {
        meta: DomainMeta { domain: DomainId(domain), ..DomainMeta::default() },
        apart: Vec::new(),
        records: Vec::new(),
        history: HistoryId(u128::from(domain)),
    };
    let config = OriginConfig::default();
    let domains = vec![recovered(1), recovered(2)];
    let origin = Origin::new(config, Instant::default(), WallTime(0), domains, &mut Vec::new());
    Transcript::new(origin.expect("it recovers"), prose, show)
}

fn appended(domain: u64, write: u64, fault: Option<StoreFault>) -> (String, OriginInput) {
    let (domain, write) = (DomainId(domain), WriteId(write));
    let result = fault.map_or(Ok(()), Err);
    let ended = result.as_ref().map_or_else(ToString::to_string, |()| "done".into());
    (
        format!("d{} append w{}: {ended}", domain.0, write.0),
        OriginInput::Appended { domain, write, result },
    )
}

#[test]
fn a_full_disk_of_one_domain() {
    let mut t = two_domains(
        "Of two domains one finds its disk full at the start. The other one serves meanwhile. When \
         there is room the links are closed: a child that was welcomed without the domain, and \
         was refused it, would never ask for it again.",
    );
    let link = |(written, input)| (written, OriginInput::Link(input));
    t.step([opened(1, "a"), hello(1, "a", 10)].map(link).to_vec());
    t.step(vec![appended(1, 1, full())]);
    t.step(vec![appended(2, 1, None)]);
    t.step(vec![link(resume_new(1, 1))]);
    t.wait(Duration::from_secs(1));
    t.step(vec![appended(1, 2, None)]);
    let back = [opened(2, "a"), hello(2, "a", 10), resume_new(2, 1), register(2, "a", 10)];
    t.step(back.map(link).to_vec());
    t.end("origin_a_full_disk_of_one_domain");
}

#[test]
fn a_store_of_one_domain_that_does_not_answer() {
    let mut t = two_domains(
        "Of two domains one has a store that does not answer: a device that hangs. Every child was \
         held until its handshake took too long, again and again, and the other domain served \
         nobody. Now children are welcomed without it after half of that time. When it answers \
         after all, they are made to ask again.",
    );
    let link = |(written, input)| (written, OriginInput::Link(input));
    t.step(vec![appended(2, 1, None)]);
    t.step([opened(1, "a"), hello(1, "a", 10)].map(link).to_vec());
    t.wait(Duration::from_secs(5));
    t.step([opened(2, "b"), hello(2, "b", 20)].map(link).to_vec());
    t.step(vec![appended(1, 1, None)]);
    t.end("origin_a_store_of_one_domain_that_does_not_answer");
}

#[test]
fn damaged_pages_at_the_head() {
    let mut run = Run::new(
        "Pages 2 and 3 are changed, then page 4, and the origin is started again: their changes \
         wait for the stored images. Those of 2 and 3 are damaged. They were taken first for every \
         batch, which holds two pages, so that nothing was installed any more, and the log grew \
         until the disk was full. Now they are passed over, and page 4 is installed; the log keeps \
         what 2 and 3 need, for there is no room to keep it apart. An operator restores page 2: a's \
         fetch finds it whole, and it is installed as well.",
        OriginConfig { install_pages_max: 2, apart_bytes_max: 0, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.pages(4);
    for n in 2..=4 {
        let commit = Commit::new(10, n + 10, 5).put(n, 1, 1, "m");
        run.quietly(vec![commit.on(1)]);
    }
    run.restart(2);
    run.wait(2);
    run.store(damaged());
    run.store(damaged());
    run.store(None);
    run.settle();
    run.node(1, "a", 10);
    run.link(vec![fetch(1, 5, &[2])]);
    run.settle();
    run.wait(2);
    run.settle();
    run.t.end("origin_damaged_pages_at_the_head");
}

#[test]
fn changes_kept_apart() {
    let mut run = Run::new(
        "Page 2 is changed by commits 4 and 5 and the origin is started again; the stored image is \
         damaged. The log was kept from its first change on for as long as nobody restored the page: \
         it grew without bound, and every start replayed all of it. Now the changes are kept apart \
         in the page engine, and the log is trimmed. The operator is told which page it is. A \
         resume is still told of the page, and nobody is shown an old state. Started again, the \
         origin has them from there. Then the page is restored: it is tried again, its changes are \
         applied, and it is installed; nothing is kept apart any more. One more start finds the page \
         as it is to be.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.pages(2);
    for n in 1..=2 {
        let commit = Commit::new(10, n + 10, 3).put(2, n as u16, 1, "m");
        run.quietly(vec![commit.on(1)]);
    }
    let page = PageId { volume: VOLUME, page: larder_core::id::PageNo(2) };
    run.store.damaged.insert(page);
    run.restart(2);
    run.wait(2);
    run.settle();
    run.node(1, "a", 10);
    run.link(vec![fetch(1, 5, &[2])]);
    run.settle();
    run.link(vec![opened(2, "b"), hello(2, "b", 20), resume(2, 1, &[(1, 1)], 4)]);
    run.settle();
    run.restart(3);
    run.store.damaged.clear();
    run.wait(60);
    run.settle();
    run.wait(2);
    run.settle();
    run.restart(4);
    run.node(1, "a", 10);
    run.link(vec![fetch(1, 6, &[2])]);
    run.settle();
    run.t.end("origin_changes_kept_apart");
}

#[test]
fn changes_kept_apart_under_load() {
    let mut run = Run::new(
        "Page 2 has a recovered change and is damaged; an install takes two pages. Two others are \
         changed before every install. They filled each batch, so that the changes of page 2 were \
         never kept apart, and the log was not trimmed past them for as long as the load went on. Now \
         every other batch takes what is to be kept apart first: the log is trimmed.",
        OriginConfig { install_pages_max: 2, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.pages(4);
    run.quietly(vec![Commit::new(10, 12, 5).put(2, 1, 1, "m").on(1)]);
    run.store.damaged.insert(PageId { volume: VOLUME, page: larder_core::id::PageNo(2) });
    run.restart(2);
    run.node(1, "a", 10);
    for round in 0..4 {
        let change = |page| {
            let sequence = 20 + 2 * round + page;
            Commit::new(10, sequence, 5).in_history(2).put(page, 2, 1, "n").on(1)
        };
        run.quietly(vec![change(3), change(4)]);
        run.wait(3);
        run.settle();
    }
    run.t.end("origin_changes_kept_apart_under_load");
}

#[test]
fn a_page_from_an_older_backup() {
    let mut run = Run::new(
        "Page 2 was installed as of stamp 3, and a backup made. Commit 4 changes it, and is installed, \
         so that the log no longer has it; then commit 5. The image rots, the origin is started again, \
         and commit 5 is kept apart. An operator restores the page from the backup. Commit 5 was applied \
         to the image of stamp 3: the page was served, and installed as of 5, without what 4 had done, \
         and who held the real 5 was told that it is valid. Now the engine refuses an image of another \
         version than the change index names. Restored as it was last installed, at 4, it is served with \
         5 applied.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.pages(2);
    let page = PageId { volume: VOLUME, page: larder_core::id::PageNo(2) };
    let backup = run.store.pages[&page].clone();
    run.quietly(vec![Commit::new(10, 12, 3).put(2, 2, 1, "four").on(1)]);
    run.settle_pages();
    let newest = run.store.pages[&page].clone();
    run.quietly(vec![Commit::new(10, 13, 4).put(2, 3, 1, "five").on(1)]);
    run.store.damaged.insert(page);
    run.restart(2);
    run.wait(2);
    run.settle();
    run.node(1, "a", 10);
    run.t.say("the page is restored from the backup");
    run.store.damaged.clear();
    run.store.pages.insert(page, backup);
    run.link(vec![fetch(1, 5, &[2])]);
    run.settle();
    run.t.say("the page is restored as it was last installed");
    run.store.pages.insert(page, newest);
    run.link(vec![fetch(1, 6, &[2])]);
    run.settle();
    run.t.end("origin_a_page_from_an_older_backup");
}

#[test]
fn changes_kept_apart_that_rot() {
    let mut run = Run::new(
        "Pages 2 and 3 are changed by commits 5 and 6; page 2 cannot be read, and its change is kept \
         apart. Then that rots. The domain did not start any more, for one page. Now it starts, and \
         the operator is told; page 2 is not served, though its image can be read by now: nobody knows \
         what 5 made of it. Nothing is installed over it, a resume is told of it; page 3 is served, and \
         a later change of it is installed. A commit that writes page 2 is refused for good, and the \
         refusal kept like any outcome. It was put off again and again: its node waited with it until \
         its time was up, and confirmed no later outcome any more, so that after 65,536 of them all of \
         its commits were put off. It stays so at the next start.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.pages(3);
    for n in 2..=3 {
        run.quietly(vec![Commit::new(10, n + 10, 4).put(n, 2, 1, "m").on(1)]);
    }
    let page = PageId { volume: VOLUME, page: larder_core::id::PageNo(2) };
    run.store.damaged.insert(page);
    run.restart(2);
    run.wait(2);
    run.settle();
    run.t.say("what is kept apart rots; the image can be read again");
    run.store.damaged.clear();
    run.store.lost.insert(page);
    run.restart(3);
    run.wait(2);
    run.settle();
    run.node(1, "a", 10);
    run.link(vec![fetch(1, 5, &[2, 3])]);
    run.settle();
    run.link(vec![opened(2, "b"), hello(2, "b", 20), resume(2, 1, &[(1, 1)], 5)]);
    run.settle();
    run.link(vec![
        Commit::new(10, 20, 6).in_history(3).put(2, 3, 1, "w").on(1),
        Commit::new(10, 21, 6).in_history(3).put(3, 3, 1, "w").on(1),
    ]);
    run.settle();
    run.wait(3);
    run.settle();
    run.restart(4);
    run.node(1, "a", 10);
    run.link(vec![fetch(1, 6, &[2]), Commit::new(10, 20, 6).in_history(3).put(2, 3, 1, "w").on(1)]);
    run.settle();
    run.t.end("origin_changes_kept_apart_that_rot");
}

#[test]
fn changes_kept_apart_on_a_full_disk() {
    let mut run = Run::new(
        "There is no room to keep the changes of the damaged page 2 apart: the install is refused \
         and everything is as before. The page is restored while the next try is under way: it is \
         not lost between the two, and is installed after it.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.pages(2);
    run.quietly(vec![Commit::new(10, 12, 3).put(2, 1, 1, "m").on(1)]);
    run.restart(2);
    run.wait(2);
    run.store(damaged());
    run.store(full());
    run.link(vec![opened(1, "a"), hello(1, "a", 10), resume_new(1, 1)]);
    run.wait(1);
    run.link(vec![fetch(1, 5, &[2])]);
    run.store.queue.swap(0, 1);
    run.settle();
    run.wait(2);
    run.settle();
    run.t.end("origin_changes_kept_apart_on_a_full_disk");
}

#[test]
fn a_disk_with_little_room() {
    let mut run = Run::new(
        "The store has room for an install of one page, and not of two. After each that went through \
         the next was as large as any, and was refused, then half of it, and so on: ten refusals and \
         ten seconds for each page. Now batches grow slowly: of nine installs one is refused.",
        OriginConfig { install_pages_max: 4, ..OriginConfig::default() },
    );
    run.two_nodes();
    for n in 2..=30 {
        let create = Op::CreatePage(PageKind::Slotted);
        run.quietly(vec![Commit::new(10, n, n).op(n, create).on(1)]);
    }
    let (mut done, mut refused) = (0, 0);
    while done + refused < 20 {
        run.pass_without_store(3);
        while let Some(OriginOutput::Install { batch, .. }) = run.store.queue.first() {
            let fault = if batch.pages.len() > 1 { full() } else { None };
            *(if fault.is_some() { &mut refused } else { &mut done }) += 1;
            run.store_quietly(fault);
        }
    }
    assert!(refused <= 4, "{refused} installs of {} were refused", done + refused);
}

#[test]
fn a_page_that_cannot_be_read_for_a_while() {
    let mut run = Run::new(
        "The device fails one read. The page was taken for damaged, and was never installed by this \
         process. Now it is read again a second later.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.restart(2);
    run.wait(2);
    run.store(Some(StoreFault::Failed("input/output error".into())));
    run.wait(2);
    run.settle();
    run.t.end("origin_a_page_that_cannot_be_read_for_a_while");
}

#[test]
fn a_failed_domain_answers() {
    let mut run = Run::new(
        "Link 3 has said hello and follows no domain. It asks for page numbers and for a volume, \
         which are in the append under way, and sends a commit, and asks for another volume, which \
         are in the next one. The sync fails. It was told nothing, and its requests counted for \
         ever. Now each is told. The log may have the first volume: its name stays taken, lest the \
         next start find it twice. The other's is free. What comes later is told as well.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.quietly(vec![opened(3, "c"), hello(3, "c", 30), register(3, "c", 30)]);
    run.link(vec![allocate(3, 1)]);
    run.link(vec![create(3, 2, 8, "w")]);
    run.link(vec![Commit::new(30, 1, 2).put(1, 1, 1, "y").on(3), create(3, 3, 9, "x")]);
    run.store(None);
    run.link(vec![allocate(3, 4)]);
    run.store(Some(StoreFault::Failed("input/output error".into())));
    run.link(vec![allocate(3, 5), create(3, 6, 8, "w"), create(3, 7, 10, "w")]);
    run.link(vec![create(3, 8, 9, "x"), Commit::new(30, 2, 2).put(1, 1, 1, "z").on(3)]);
    run.t.end("origin_a_failed_domain_answers");
}

#[test]
fn an_old_base_is_judged_by_versions() {
    let mut run = Run::new(
        "The table of recent writes holds two stamps only, and there is next to no memory for pages. \
         Commits from base 2, which is older, read pages 2, 3 and 4, of later versions or not. They \
         once kept every page that they had read in memory until they were executed: a million of \
         them, and more with every commit. Now pages are loaded to be looked at, and let go. b's \
         first commit read what did not change after its base, 6, and passes. Of its second one \
         page 2 is looked at, then changed by a, while page 3 is loaded: a conflict, found in the \
         table. Its third one read page 4, which is too new.",
        OriginConfig { recent_writes_max: 2, page_cache_bytes: 0, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.pages(4);
    let put = |sequence, base, slot| Commit::new(10, sequence, base).put(1, slot, 1, "p").on(1);
    run.quietly(vec![put(20, 5, 2), put(21, 6, 3), put(22, 7, 4)]);
    run.settle_pages();
    run.link(vec![Commit::new(20, 1, 6).read(2, 1).read(3, 1).read(4, 1).put(1, 9, 1, "b").on(2)]);
    run.settle();
    run.settle_pages();
    run.link(vec![Commit::new(20, 2, 5).read(2, 1).read(3, 1).put(1, 10, 1, "b").on(2)]);
    run.store(None);
    run.link(vec![Commit::new(10, 23, 9).put(2, 1, 1, "a").on(1)]);
    run.settle();
    run.link(vec![Commit::new(20, 3, 4).read(4, 1).put(1, 11, 1, "b").on(2)]);
    run.settle();
    run.t.end("origin_an_old_base_is_judged_by_versions");
}

#[test]
fn every_wait_has_a_limit() {
    let mut config = OriginConfig {
        page_cache_bytes: 0,
        loads_max: 2,
        index_loads_max: 1,
        ..OriginConfig::default()
    };
    config.downlink.ring_commits_max = 1;
    config.downlink.limits.stream_window_bytes = 100;
    let mut run = Run::new(
        "P10. The page engine does not answer. a's commit and fetch and the resumes of c and d, \
         which wait for the change index, waited for ever, and b's second resume for a stream that \
         goes nowhere, since b returns no credits. Now, after 20 seconds, the commit is put off, \
         fetch and resume fail, and the links that wait for the index are closed. Of the loads not \
         begun those are forgotten for which nobody waits. When the engine answers after all, a \
         late answer serves whoever asks by then.",
        config,
    );
    run.two_nodes();
    run.pages(4);
    run.link(vec![fetch(1, 5, &[2, 3, 4])]);
    run.link(vec![Commit::new(10, 9, 5).put(4, 1, 1, "y").on(1)]);
    run.link(vec![resume(2, 9, &[(1, 1)], 2)]);
    run.link(vec![opened(3, "c"), hello(3, "c", 30), resume(3, 1, &[(1, 1)], 1)]);
    run.link(vec![opened(4, "d"), hello(4, "d", 40), resume(4, 1, &[(1, 1)], 1)]);
    run.wait(10);
    run.link([1, 2, 3, 4].map(|link| beat(link, Instant(1))).to_vec());
    run.wait(13);
    run.link(vec![fetch(1, 6, &[2])]);
    run.settle();
    run.t.end("origin_every_wait_has_a_limit");
}

#[test]
fn one_number_for_many_resumes() {
    let mut config = OriginConfig::default();
    config.downlink.limits.stream_window_bytes = 300;
    let mut run = Run::new(
        "b gives all its resumes the same number and returns no credits: the first ones are answered, \
         the last ones wait. After 20 seconds each resume noted was told that it had waited for too \
         long, the answered ones as well: more answers than requests, and the origin's process ended \
         for all of its children. Now those that wait are told.",
        config,
    );
    run.two_nodes();
    for _ in 0..8 {
        run.link(vec![resume(2, 7, &[(1, 1)], 2)]);
    }
    run.wait(10);
    run.link([1, 2].map(|link| beat(link, Instant(1))).to_vec());
    run.wait(13);
    run.link(vec![fetch(1, 6, &[1])]);
    run.t.end("origin_one_number_for_many_resumes");
}

#[test]
fn fetches_of_unknown_volumes_cost_nothing() {
    let mut run = Run::new(
        "A child fetches pages of volumes that are not there, and writes to one. Each was registered \
         before anybody looked: a table for each volume, as many as it cared to name. Now they fail \
         at once. Pages of volume 7 in the same fetch are answered. (That nothing is registered is \
         seen by a bound of 300 bytes, with room for one volume: change 3 to page 70, which b does not \
         hold, does not go to b.) They fail in one message: each had one of its own, so that one fetch \
         of 4,096 pages, 4 KiB long, made 4,096 answers, and a child that sent many of them held up the \
         origin for everybody.",
        {
            let mut config = OriginConfig::default();
            config.downlink.registered_bytes_max = 300;
            config
        },
    );
    run.two_nodes();
    let ask = |volume, page| larder_core::message::PageAsk {
        page: PageId { volume: VolumeId(volume), page: larder_core::id::PageNo(page) },
        have: None,
    };
    let pages = vec![ask(7, 1), ask(8, 1), ask(9, 1)];
    let fetch = |request, pages| Message::Fetch {
        request: RequestId(request),
        domain: DOMAIN,
        pages,
        prefetch: false,
    };
    run.link(vec![received(2, fetch(5, pages))]);
    run.link(vec![received(2, fetch(6, vec![ask(8, 2)]))]);
    let many = (1..=4096).map(|page| ask(8, page)).collect();
    let answers = run.quietly(vec![received(2, fetch(7, many))]);
    assert_eq!(answers.len(), 1, "one answer to one message");
    let create = Op::CreatePage(PageKind::Slotted);
    run.link(vec![Commit::new(10, 2, 2).op(70, create).on(1)]);
    run.settle();
    run.t.end("origin_fetches_of_unknown_volumes_cost_nothing");
}

#[test]
fn rule_15_a_refusal_that_may_pass() {
    let mut run = Run::new(
        "Rule 15. a's commit writes page 5, which is not there: it is refused, and a is told so when \
         that is logged. b makes page 5. A copy of the commit comes that had waited at a relay \
         without a line: it once succeeded, though a had been told that nothing of it would be \
         done. It is refused as before; also by an origin that was started again, from its log and \
         then from the metadata of an install. So is a commit from a base that is not durable yet. \
         Once a has confirmed both, the answer is 'unknown'.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let (copy, early) = (Commit::new(10, 2, 2).put(5, 1, 1, "y"), Commit::new(10, 3, 3));
    run.link(vec![copy.clone().on(1), early.clone().on(1)]);
    run.settle();
    let create = Op::CreatePage(PageKind::Slotted);
    run.link(vec![Commit::new(20, 1, 2).op(5, create).on(2)]);
    run.settle();
    run.link(vec![copy.clone().on(1), early.clone().on(1)]);
    run.restart(2);
    run.node(1, "a", 10);
    run.link(vec![copy.clone().on(1), early.on(1)]);
    run.settle_pages();
    run.restart(3);
    run.node(1, "a", 10);
    run.link(vec![copy.clone().on(1)]);
    run.link(vec![Commit::new(10, 4, 3).confirmed(3).put(5, 1, 1, "z").on(1)]);
    run.link(vec![copy.on(1)]);
    run.t.end("origin_rule_15_a_refusal_that_may_pass");
}

#[test]
fn rule_15_a_conflict_in_vain() {
    let mut run = Run::new(
        "Rule 15. a's commit to slot 6 is taken back, since the store is full. From then on slot 6 \
         counts as changed at the durable stamp, 3, and b's commit, which read it at base 2, is \
         refused in vain. That may pass, so it is logged as any refusal that may.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.quietly(vec![Commit::new(10, 2, 2).put(1, 5, 1, "y").on(1)]);
    run.link(vec![Commit::new(10, 3, 3).put(1, 6, 1, "y").on(1)]);
    run.store(full());
    run.settle();
    run.link(vec![Commit::new(20, 1, 2).read(1, 6).put(1, 7, 1, "b").on(2)]);
    run.settle();
    run.t.end("origin_rule_15_a_conflict_in_vain");
}
