//! What a process tells of itself, and what that says of the time between two looks.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};

/// What a process told at one look.
pub(super) struct Seen {
    status: Value,
    /// Sums over all labels that are not told apart here, by name and, where it is, `what` or
    /// `part` or `direction`.
    metrics: BTreeMap<String, f64>,
}

/// Labels by which figures are told apart.
const LABELS: [&str; 3] = ["what=\"", "part=\"", "direction=\""];

impl Seen {
    /// Asks a process's endpoint.
    pub(super) async fn ask(address: &str) -> std::io::Result<Self> {
        let get = |path: &'static str| async move {
            match larder::http::get_text(address, path).await? {
                (200, body) => Ok(body),
                (code, _) => Err(Error::other(format!("{path} answered {code}"))),
            }
        };
        let (status, metrics) = tokio::try_join!(get("/status"), get("/metrics"))?;
        Self::parse(&status, &metrics)
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "it is not a Larder process"))
    }

    pub(super) fn parse(status: &str, metrics: &str) -> Option<Self> {
        let status: Value = serde_json::from_str(status).ok()?;
        status.get("role")?;
        let mut sums = BTreeMap::new();
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let Some((key, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = key.split_once('{').unwrap_or((key, ""));
            let label = LABELS.iter().find_map(|label| {
                let (_, rest) = labels.split_once(label)?;
                rest.split_once('"').map(|(value, _)| value)
            });
            let name = match label {
                Some(label) => format!("{name}/{label}"),
                None => name.to_owned(),
            };
            *sums.entry(name).or_insert(0.0) += value;
        }
        Some(Self { status, metrics: sums })
    }

    fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(&format!("larder_{name}")).copied()
    }

    /// What a mount or node says is under `node`.
    fn own(&self, key: &str) -> &Value {
        match &self.status["node"][key] {
            Value::Null => &self.status[key],
            value => value,
        }
    }
}

/// What is shown of a process. Rates are a second's, over the time between two looks; none: it is
/// the first look, or the process does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) role: String,
    pub(super) name: String,
    /// The link to the parent; none: it has none.
    pub(super) link: Option<String>,
    /// Links from children.
    pub(super) children: Option<f64>,
    /// How old the oldest of its states may be, in seconds.
    pub(super) age_s: Option<f64>,
    pub(super) hits_s: Option<f64>,
    pub(super) misses_s: Option<f64>,
    pub(super) commits_s: Option<f64>,
    pub(super) local_s: Option<f64>,
    pub(super) conflicts_s: Option<f64>,
    /// Means over the time between the looks, in milliseconds.
    pub(super) fetch_ms: Option<f64>,
    pub(super) commit_ms: Option<f64>,
    /// Records appended to the log, and pages loaded from the store.
    pub(super) appends_s: Option<f64>,
    pub(super) loads_s: Option<f64>,
    /// What the kernel asked a mount for.
    pub(super) asked_s: Option<f64>,
    pub(super) sent_bytes_s: Option<f64>,
    pub(super) received_bytes_s: Option<f64>,
    /// Bytes that wait for peers to take them.
    pub(super) queued_bytes: Option<f64>,
    /// Bytes written to a mount that wait for their commit.
    pub(super) waiting_bytes: Option<f64>,
    /// Memory of a node's page copies, and what they may take.
    pub(super) cache_bytes: Option<f64>,
    pub(super) cache_bytes_max: Option<f64>,
    pub(super) log_bytes: Option<f64>,
    pub(super) store_bytes: Option<f64>,
    pub(super) lost_bytes: Option<f64>,
    /// Until its certificate ends.
    pub(super) certificate_s: Option<f64>,
    /// Whom this process waits for, and who lets others wait: a line each.
    pub(super) waits: Vec<String>,
}

impl Figures {
    /// `before`: seconds since the look before, and what was told then.
    pub(super) fn new(seen: &Seen, before: Option<(f64, &Seen)>) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let link = seen.own("parent").as_str().map(|parent| match seen.own("trouble").as_str() {
            Some(trouble) => format!("down: {trouble}"),
            None => format!("up to {parent}"),
        });
        let grown = |name: &str| {
            let (seconds, earlier) = before?;
            let now = seen.metric(name)?;
            // What appears between two looks began at zero; what shrinks was started anew.
            let grown = now - earlier.metric(name).unwrap_or(0.0);
            (grown >= 0.0).then_some((grown, seconds))
        };
        let rate = |name: &str| grown(name).map(|(grown, seconds)| grown / seconds.max(1e-3));
        let mean_ms = |name: &str| {
            let (sum, _) = grown(&format!("{name}_seconds_sum"))?;
            let (count, _) = grown(&format!("{name}_seconds_count"))?;
            (count > 0.0).then(|| sum / count * 1e3)
        };
        // Others than nodes have none.
        let cache_max = seen.metric("cache_max_bytes").filter(|most| *most > 0.0);
        Self {
            role: text(&seen.status["role"]),
            name: text(seen.own("name")),
            link,
            children: seen.status["children"].as_array().map(|children| children.len() as f64),
            age_s: seen.metric("state_age_seconds").and(oldest(seen.own("domains"))),
            hits_s: rate("reads_total/hit"),
            misses_s: rate("reads_total/miss"),
            commits_s: rate("transactions_total/committed"),
            local_s: rate("transactions_total/local"),
            conflicts_s: rate("transactions_total/conflict"),
            fetch_ms: mean_ms("fetch"),
            commit_ms: mean_ms("commit"),
            appends_s: rate("append_records_total"),
            loads_s: rate("loads_total"),
            asked_s: all_rates(seen, before, "larder_kernel_requests_total/"),
            sent_bytes_s: rate("wire_bytes_total/sent"),
            received_bytes_s: rate("wire_bytes_total/received"),
            queued_bytes: seen.metric("queued_bytes"),
            waiting_bytes: seen.status["waiting_bytes"].as_f64(),
            cache_bytes: cache_max.and(seen.metric("cache_bytes")),
            cache_bytes_max: cache_max,
            log_bytes: seen.metric("store_bytes/log"),
            store_bytes: seen.metric("store_bytes/pages"),
            lost_bytes: seen.metric("lost_bytes_total"),
            certificate_s: seen.metric("certificate_expires_seconds/own"),
            waits: waits(seen),
        }
    }

    /// One object, for programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "role": self.role,
            "name": self.name,
            "link": self.link,
            "children": self.children,
            "age_s": self.age_s,
            "hits_per_s": self.hits_s,
            "misses_per_s": self.misses_s,
            "commits_per_s": self.commits_s,
            "local_per_s": self.local_s,
            "conflicts_per_s": self.conflicts_s,
            "fetch_ms": self.fetch_ms,
            "commit_ms": self.commit_ms,
            "appends_per_s": self.appends_s,
            "loads_per_s": self.loads_s,
            "kernel_requests_per_s": self.asked_s,
            "sent_bytes_per_s": self.sent_bytes_s,
            "received_bytes_per_s": self.received_bytes_s,
            "queued_bytes": self.queued_bytes,
            "waiting_bytes": self.waiting_bytes,
            "cache_bytes": self.cache_bytes,
            "cache_bytes_max": self.cache_bytes_max,
            "log_bytes": self.log_bytes,
            "store_bytes": self.store_bytes,
            "lost_bytes": self.lost_bytes,
            "certificate_expires_s": self.certificate_s,
            "waits": self.waits,
        })
    }
}

/// The age of the oldest of a node's states.
fn oldest(domains: &Value) -> Option<f64> {
    let ages = domains.as_array()?.iter().filter_map(|domain| domain["age_ms"].as_f64());
    ages.reduce(f64::max).map(|ms| ms / 1e3)
}

/// The rate of all figures whose names begin so.
fn all_rates(seen: &Seen, before: Option<(f64, &Seen)>, prefix: &str) -> Option<f64> {
    let (seconds, earlier) = before?;
    let sum = |seen: &Seen| {
        let all = seen.metrics.iter().filter(|(name, _)| name.starts_with(prefix));
        all.map(|(_, value)| value).sum::<f64>()
    };
    let grown = sum(seen) - sum(earlier);
    let told = seen.metrics.keys().any(|name| name.starts_with(prefix));
    (told && grown >= 0.0).then_some(grown / seconds.max(1e-3))
}

fn waits(seen: &Seen) -> Vec<String> {
    let mut waits = Vec::new();
    for child in seen.status["children"].as_array().into_iter().flatten() {
        let lag = |domain: &Value| domain["lag"].as_u64();
        let lag = child["domains"].as_array().into_iter().flatten().filter_map(lag).max();
        let number = |key: &str| child[key].as_u64().unwrap_or(0);
        let mut parts = Vec::new();
        for (count, what) in [
            (number("unanswered"), "requests not answered yet"),
            (number("queued_bytes"), "bytes that it has not taken"),
            (lag.unwrap_or(0), "commits behind"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        if !parts.is_empty() {
            let name = child["name"].as_str().unwrap_or("a child");
            waits.push(format!("{name}: {}", parts.join(", ")));
        }
    }
    for domain in seen.own("domains").as_array().into_iter().flatten() {
        let name = domain["domain"].as_str().unwrap_or("-");
        if let Some(fault) = domain["fault"].as_str() {
            waits.push(format!("domain {name} does not serve: {fault}"));
        }
        if domain["leased"] == false {
            waits.push(format!("domain {name}: its state may be old, the lease has lapsed"));
        }
    }
    waits
}
