//! `/metrics`, `/healthz`, `/readyz` and `/status`, for people and their tools.

use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A scrape or a probe waits no longer than this.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

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
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the HTTP endpoint ended");
            }
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

type Shared = State<Arc<dyn Probe>>;

async fn metrics(State(probe): Shared) -> Response {
    // The status call brings the gauges up to date.
    let _ = probe.status().await;
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
    (kind, format!("{:#}\n", probe.status().await)).into_response()
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
    tokio::time::timeout(ANSWER_LIMIT, ask).await?
}
