//! `/metrics`, `/healthz`, `/readyz` and `/status`, for people and their tools.

use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// A scrape or a probe waits no longer than this.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// What a process told stands for so long: whoever asks meanwhile is told the same. Finding it out
/// takes the time of the task that serves links.
const TOLD_FOR: Duration = Duration::from_millis(250);

/// What strangers may take of the endpoint: it asks for no certificate.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at once. For one more the oldest that has not asked anything is ended; if all
    /// have, it waits.
    connections: usize,
    /// From the connection to the end of the request's head.
    head: Duration,
    /// From the connection to its end: a peer that does not read its answer is cut off then.
    connection: Duration,
    /// Of a request's head.
    head_bytes: usize,
}

const LIMITS: Limits = Limits {
    connections: 64,
    head: ANSWER_LIMIT,
    connection: Duration::from_secs(15),
    head_bytes: 16 << 10,
};

/// What a process tells about itself.
pub trait Probe: Send + Sync + 'static {
    /// Its figures; gauges are brought up to date first.
    fn metrics(&self) -> &Metrics;
    /// Whether it is working at all; if not, why: it should be restarted.
    fn healthy(&self) -> Result<(), String>;
    /// Whether it can serve now; if not, why: send users elsewhere, and wait.
    fn ready(&self) -> Result<(), String>;
    /// What an operator should see to though it serves, a line each: told with its readiness.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// All that an operator wants to see, as JSON.
    fn status(&self) -> Telling<'_>;
}

/// Something that is being found out.
pub type Telling<'a> = Pin<Box<dyn Future<Output = serde_json::Value> + Send + 'a>>;

/// A running endpoint; it ends when dropped.
pub struct HttpServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HttpServer {
    /// Serves `probe` on `listen`.
    pub async fn start(listen: &str, probe: Arc<dyn Probe>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .with_state(Arc::new(Asked { probe, stands: TOLD_FOR, told: Mutex::default() }));
        let task = tokio::spawn(serve(listener, router, LIMITS));
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Accepts until dropped, and its connections end with it. One request a connection: a scrape
/// costs a connection each, and nobody holds one for nothing.
async fn serve(listener: TcpListener, router: Router, limits: Limits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    let mut silent: VecDeque<Silent> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: they come back when connections end.
                tracing::warn!(%error, "a connection to the HTTP endpoint could not be accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        silent.retain(|connection| !connection.over());
        if room.available_permits() == 0
            && let Some(oldest) = silent.pop_front()
        {
            oldest.task.abort();
        }
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let asked = Arc::new(AtomicBool::new(false));
        let (said, answers) = (asked.clone(), TowerToHyperService::new(router.clone()));
        let service = service_fn(move |request| {
            said.store(true, Ordering::Relaxed);
            answers.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(limits.head_bytes)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        let task = connections.spawn(async move {
            match timeout(limits.connection, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a request came to nothing"),
                Err(_) => tracing::debug!("a connection to the HTTP endpoint took too long"),
            }
            drop(permit);
        });
        silent.push_back(Silent { task, asked });
    }
}

/// A connection that may not have asked anything yet.
struct Silent {
    task: AbortHandle,
    asked: Arc<AtomicBool>,
}

impl Silent {
    fn over(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.task.is_finished()
    }
}

/// What a process is asked through.
struct Asked {
    probe: Arc<dyn Probe>,
    /// How long what it told stands.
    stands: Duration,
    /// What it told last, and when. Held while it is asked: one at a time.
    told: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Asked {
    /// What the process tells of itself, as text; none: not while the asker waits.
    async fn told(&self) -> Option<Arc<str>> {
        let told = async {
            let mut told = self.told.lock().await;
            if let Some((_, text)) = told.as_ref().filter(|(at, _)| at.elapsed() < self.stands) {
                return text.clone();
            }
            let text: Arc<str> = format!("{:#}\n", self.probe.status().await).into();
            *told = Some((Instant::now(), text.clone()));
            text
        };
        timeout(ANSWER_LIMIT, told).await.ok()
    }
}

type Shared = State<Arc<Asked>>;

async fn metrics(State(asked): Shared) -> Response {
    // Being asked brings the gauges up to date; the counters are worth telling without.
    let _ = asked.told().await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], asked.probe.metrics().encode()).into_response()
}

async fn healthz(State(asked): Shared) -> Response {
    answer(asked.probe.healthy(), &[])
}

async fn readyz(State(asked): Shared) -> Response {
    answer(asked.probe.ready(), &asked.probe.notes())
}

async fn status(State(asked): Shared) -> Response {
    let Some(text) = asked.told().await else {
        let text = format!("no status within {ANSWER_LIMIT:?}: ask again, and see /healthz\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    ([(header::CONTENT_TYPE, "application/json")], text.to_string()).into_response()
}

fn answer(state: Result<(), String>, notes: &[String]) -> Response {
    let (code, mut text) = match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    };
    for note in notes {
        text.push_str(note);
        text.push('\n');
    }
    (code, text).into_response()
}

/// Asks a process's endpoint, for `larder status`: a whole client would be too much for one line.
pub async fn get_text(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let code = head.split_whitespace().nth(1).and_then(|c| c.parse().ok());
        let code = code.ok_or_else(|| std::io::Error::other("the answer is no HTTP"))?;
        Ok((code, body.to_owned()))
    };
    timeout(ANSWER_LIMIT, ask).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const PATIENCE: Duration = Duration::from_secs(20);

    const TIGHT: Limits = Limits {
        connections: 4,
        head: Duration::from_millis(200),
        connection: Duration::from_millis(600),
        head_bytes: LIMITS.head_bytes,
    };

    /// A server of an answer that is larger than what sockets hold.
    async fn server(limits: Limits) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/large", get(async || vec![7_u8; 64 << 20]));
        (address, tokio::spawn(serve(listener, router, limits)))
    }

    async fn send(address: SocketAddr, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("the kernel takes it");
        stream.write_all(request).await.expect("it fits");
        stream
    }

    /// Waits until the server has ended a connection.
    async fn ended(mut stream: TcpStream) {
        let mut rest = Vec::new();
        let end = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        // An end or a reset; whatever was answered before.
        let _ = end.expect("the server ends the connection");
    }

    /// A broken scraper opened connections and never finished a request. All 300 were still held
    /// after 45 s: some thousand more, and the process had no descriptors for links.
    #[tokio::test]
    async fn half_sent_requests_are_dropped_and_keep_nobody_out() {
        let (address, task) = server(TIGHT).await;
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(send(address, b"GET /healthz HTTP/1.1\r\nHost: a").await);
            held.push(send(address, b"").await);
        }
        // Behind twenty that hold the four places in turn.
        let honest = timeout(PATIENCE, async {
            loop {
                if let Ok(answer) = get_text(&address.to_string(), "/healthz").await {
                    return answer;
                }
            }
        });
        assert_eq!(honest.await.expect("answered"), (200, "ok\n".to_owned()));
        for stream in held {
            ended(stream).await;
        }
        task.abort();
    }

    /// Who asks for much and reads nothing held its connection, and the answer in memory, for ever;
    /// who asks again and again on one connection keeps others from its place.
    #[tokio::test]
    async fn an_answer_nobody_reads_is_given_up_and_a_connection_serves_one_request() {
        let (address, task) = server(TIGHT).await;
        let mut unread = Vec::new();
        for _ in 0..4 {
            unread.push(send(address, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await);
        }
        let again = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2);
        let mut twice = send(address, &again).await;
        let mut text = Vec::new();
        let read = timeout(PATIENCE, twice.read_to_end(&mut text)).await;
        let _ = read.expect("a place comes free");
        let text = String::from_utf8_lossy(&text);
        assert_eq!(text.matches("200 OK").count(), 1, "{text}");
        for stream in unread {
            ended(stream).await;
        }
        task.abort();
    }

    /// Connections that asked nothing held all places for as long as a head may take: with some
    /// hundred of them a probe was answered after 14 s, and whoever watched the process would have
    /// started it anew. Here they might hold them for an hour.
    #[tokio::test]
    async fn silent_connections_make_way() {
        let hour = Duration::from_secs(3600);
        let (address, task) = server(Limits { head: hour, connection: hour, ..TIGHT }).await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(send(address, b"GET /heal").await);
        }
        let answer = get_text(&address.to_string(), "/healthz").await;
        assert_eq!(answer.expect("answered"), (200, "ok\n".to_owned()));
        task.abort();
    }

    /// Counts how often it is asked.
    struct Counted(Metrics, AtomicUsize);

    impl Probe for Counted {
        fn metrics(&self) -> &Metrics {
            &self.0
        }
        fn healthy(&self) -> Result<(), String> {
            Ok(())
        }
        fn ready(&self) -> Result<(), String> {
            Ok(())
        }
        fn status(&self) -> Telling<'_> {
            Box::pin(async {
                tokio::task::yield_now().await;
                serde_json::json!(self.1.fetch_add(1, Ordering::Relaxed))
            })
        }
    }

    /// Each question, of anybody, made the task that serves links look through all of its children:
    /// with 10,000 of them 32 questions a second were all that it did.
    #[tokio::test]
    async fn questions_at_once_are_one() {
        let probe = Arc::new(Counted(Metrics::new(), AtomicUsize::new(0)));
        let stands = Duration::from_secs(3600);
        let asked = Arc::new(Asked { probe: probe.clone(), stands, told: Mutex::default() });
        let all = (0..100).map(|_| {
            let asked = asked.clone();
            tokio::spawn(async move { asked.told().await })
        });
        for answer in all.collect::<Vec<_>>() {
            assert_eq!(answer.await.expect("no panic").as_deref(), Some("0\n"));
        }
        // What is told stands for a while, not for ever.
        let asked = Asked { probe, stands: Duration::ZERO, told: Mutex::default() };
        for answer in ["1\n", "2\n"] {
            assert_eq!(asked.told().await.as_deref(), Some(answer));
        }
    }
}
