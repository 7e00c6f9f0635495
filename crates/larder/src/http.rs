//! `/metrics`, `/healthz`, `/readyz` and `/status`, for people and their tools.

use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// A scrape or a probe waits no longer than this.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// What strangers may take of the endpoint: it asks for no certificate.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at once; more wait in the kernel's queue.
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
            .with_state(probe);
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
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: they come back when connections end.
                tracing::warn!(%error, "a connection to the HTTP endpoint could not be accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(limits.head_bytes)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        connections.spawn(async move {
            match timeout(limits.connection, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a request came to nothing"),
                Err(_) => tracing::debug!("a connection to the HTTP endpoint took too long"),
            }
            drop(permit);
        });
    }
}

type Shared = State<Arc<dyn Probe>>;

/// What the probe tells, if it does so while the asker waits.
async fn told(probe: &dyn Probe) -> Result<serde_json::Value, Response> {
    timeout(ANSWER_LIMIT, probe.status()).await.map_err(|_| {
        let text = format!("no status within {ANSWER_LIMIT:?}: ask again, and see /healthz\n");
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    })
}

async fn metrics(State(probe): Shared) -> Response {
    // The status call brings the gauges up to date; the counters are worth telling without.
    let _ = told(&*probe).await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], probe.metrics().encode()).into_response()
}

async fn healthz(State(probe): Shared) -> Response {
    answer(probe.healthy(), &[])
}

async fn readyz(State(probe): Shared) -> Response {
    answer(probe.ready(), &probe.notes())
}

async fn status(State(probe): Shared) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    match told(&*probe).await {
        Ok(status) => (kind, format!("{status:#}\n")).into_response(),
        Err(refusal) => refusal,
    }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A server of an answer that is larger than what sockets hold, behind tight limits.
    async fn server() -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let limits = Limits {
            connections: 4,
            head: Duration::from_millis(200),
            connection: Duration::from_millis(600),
            head_bytes: LIMITS.head_bytes,
        };
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
        let (address, task) = server().await;
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
        let (address, task) = server().await;
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
}
