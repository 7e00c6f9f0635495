use super::*;

const METRICS: &str = "\
# HELP larder_reads Reads
larder_reads_total{what=\"hit\"} HITS
larder_reads_total{what=\"miss\"} 4
larder_wire_bytes_total{what=\"sent\"} 100
larder_kernel_requests_total{what=\"lookup\"} HITS
larder_kernel_requests_total{what=\"getattr\"} 5
larder_fetch_seconds_sum 0.HITS
larder_fetch_seconds_count HITS
larder_state_age_seconds{domain=\"01\"} 1.5
larder_cache_bytes 1048576
larder_cache_max_bytes MOST
# EOF
";

fn seen(hits: u32, status: &str) -> Seen {
    Seen::parse(status, &figures(hits, "4194304")).expect("a process's words")
}

fn figures(hits: u32, cache_max: &str) -> String {
    METRICS.replace("HITS", &hits.to_string()).replace("MOST", cache_max)
}

const NODE: &str = r#"{"role": "node", "node": {"name": "one", "parent": "here:1",
    "domains": [{"domain": "01", "age_ms": 1500, "leased": true}]}}"#;

#[test]
fn rates_are_what_was_counted_between_two_looks() {
    let (before, after) = (seen(10, NODE), seen(30, NODE));
    let first = Figures::new(&before, None);
    assert_eq!((first.hits_s, first.age_s), (None, Some(1.5)));
    assert_eq!(first.link.as_deref(), Some("up to here:1"));
    let figures = Figures::new(&after, Some((2.0, &before)));
    assert_eq!((figures.hits_s, figures.misses_s), (Some(10.0), Some(0.0)));
    assert_eq!(figures.asked_s, Some(10.0), "all kinds of requests together");
    let fetch_ms = figures.fetch_ms.expect("20 fetches");
    assert!((fetch_ms - 10.0).abs() < 1e-6, "{fetch_ms}");
    // A process that was started anew has counted less: no negative rates.
    assert_eq!(Figures::new(&before, Some((1.0, &after))).hits_s, None);
}

/// Nothing told how full a cache is: whether its memory is too small could only be guessed.
#[test]
fn what_the_cache_takes_is_shown() {
    let mut look = Look::new("a:1");
    look.take(Ok(seen(1, NODE)));
    let lines = view::lines(&[look]);
    assert!(lines.iter().any(|line| line.contains("1.00 MiB of 4.00 MiB")), "{lines:#?}");
    // An origin has none, and does not say that it is empty.
    let origin = Seen::parse(NODE, &figures(1, "0")).expect("a process's words");
    assert_eq!(Figures::new(&origin, None).cache_bytes, None);
}

#[test]
fn who_waits_for_whom_is_told() {
    let origin = r#"{"role": "origin", "name": "origin", "children": [
        {"name": "idle", "unanswered": 0, "queued_bytes": 0, "domains": [{"lag": 0}]},
        {"name": "slow", "unanswered": 2, "queued_bytes": 0, "domains": [{"lag": 7}]}],
        "domains": [{"domain": "0a", "fault": "the disk is full"}]}"#;
    let figures = Figures::new(&seen(1, origin), None);
    assert_eq!(
        figures.waits,
        [
            "slow: 2 requests not answered yet, 7 commits behind",
            "domain 0a does not serve: the disk is full"
        ]
    );
    assert_eq!((figures.link, figures.children), (None, Some(2.0)));
}

/// What a process, or whoever sits at its port, says of itself is shown on a terminal.
#[test]
fn nothing_that_is_told_commands_the_terminal() {
    let mut look = Look::new("a:1");
    let evil = NODE.replace("one", r"\u001b[2Jone");
    look.take(Ok(seen(1, &evil)));
    let mut gone = Look::new("b:2");
    gone.take(Err(std::io::Error::other("\x1b]0;x\x07")));
    let lines = view::lines(&[look, gone]);
    assert!(lines.iter().any(|line| line.contains("?[2Jone")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("b:2: no answer")), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:#?}");
}

#[test]
fn a_frame_fits_the_terminal() {
    let lines: Vec<String> = (0..5).map(|n| format!("line {n} äöü")).collect();
    let frame = screen::frame(&lines, 8, 3);
    assert_eq!(frame.matches("\r\n").count(), 2, "{frame:?}");
    assert!(frame.contains("line 2 ä\x1b[K") && !frame.contains("line 3"), "{frame:?}");
}

#[test]
fn strangers_are_told_from_processes() {
    assert!(Seen::parse("{}", METRICS).is_none());
    assert!(Seen::parse("hello", METRICS).is_none());
}
