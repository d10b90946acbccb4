//! The HTTP endpoint: `/metrics`, `/livez` and `/readyz`.
//!
//! It has no authentication and changes nothing, and listens on the loopback address unless told otherwise.
//! Everything is bounded: connections, and the life of each, which carries one request. Deliberately absent: TLS and
//! anything that acts; put a proxy before it where that is needed.

mod listener;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::exit::{Exit, Failure, Outcome};
use crate::health::{Progress, Readiness};
use crate::metrics::Metrics;
use listener::Bounded;

/// How long a stop waits for answers that are under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EXPOSITION: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// What the endpoint shows.
#[derive(Clone)]
pub struct Sources {
    pub metrics: Arc<Metrics>,
    pub progress: Arc<Progress>,
    pub readiness: Arc<Readiness>,
}

/// A running endpoint.
#[derive(Debug)]
pub struct Admin {
    /// Where it listens, with the port that was picked.
    pub address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Admin {
    /// Binds, says so in the log, and serves in the background.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(listen: SocketAddr, sources: Sources) -> Outcome<Self> {
        let refused = |error: std::io::Error| {
            let advice = "choose another with --admin-listen; 127.0.0.1:0 picks a free port";
            Failure::text(Exit::Failed, format!("cannot listen on {listen} for metrics: {error}; {advice}"))
        };
        let listener = TcpListener::bind(listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        info!(addr = %address, "admin endpoint listening");
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            let serving = axum::serve(Bounded::new(listener), router(sources)).with_graceful_shutdown(stopped);
            if let Err(error) = serving.await {
                warn!(%error, "admin endpoint failed");
            }
        });
        Ok(Self { address, stop, task })
    }

    /// Accepts nothing more, and waits a little for answers under way.
    pub async fn stop(self) {
        debug!(addr = %self.address, "admin endpoint stops");
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(STOP_TIMEOUT, self.task).await.is_err() {
            abort.abort();
        }
    }
}

fn router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .fallback(async || answer(StatusCode::NOT_FOUND, TEXT, "try /metrics, /livez or /readyz\n".to_owned()))
        .with_state(sources)
}

async fn metrics(State(sources): State<Sources>) -> Response {
    match sources.metrics.text() {
        Ok(text) => answer(StatusCode::OK, EXPOSITION, text),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

async fn livez(State(sources): State<Sources>) -> Response {
    match sources.progress.alive() {
        Ok(()) => answer(StatusCode::OK, TEXT, "ok\n".to_owned()),
        Err(reason) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
    }
}

async fn readyz(State(sources): State<Sources>, headers: HeaderMap) -> Response {
    let reasons = sources.readiness.reasons();
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepts.contains("application/json") {
        let document = serde_json::json!({"ready": reasons.is_empty(), "reasons": reasons});
        return answer(status, JSON, format!("{document}\n"));
    }
    let text = if reasons.is_empty() { "ok\n".to_owned() } else { format!("{}\n", reasons.join("\n")) };
    answer(status, TEXT, text)
}

/// One connection, one request: a bound on the life of a connection then never cuts an answer short.
fn answer(status: StatusCode, content_type: HeaderValue, body: String) -> Response {
    (status, [(CONTENT_TYPE, content_type), (CONNECTION, HeaderValue::from_static("close"))], body).into_response()
}

#[cfg(test)]
mod tests;
