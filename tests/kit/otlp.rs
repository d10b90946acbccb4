//! A receiver of spans, OTLP over HTTP/1.1, that a test can make refuse or hang.
//!
//! Guarantees: what came is kept whole, as bytes and as decoded; it answers nothing while it hangs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub use opentelemetry_proto::tonic::trace::v1::Span;
pub use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
pub use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Issued};
use crate::http_server::{self, Answer, HttpServer};
use crate::wait;

/// What it does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Take,
    /// Takes all but so many of each request.
    Reject(i64),
    /// Answers with this status and keeps nothing.
    Refuse(u16),
    /// Reads requests and never answers.
    Hang,
}

/// One request that was taken.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path and headers, as they came.
    pub head: String,
    pub body: Vec<u8>,
    pub message: ExportTraceServiceRequest,
}

/// The handle; dropping it ends the receiver and its connections.
pub struct Receiver {
    server: HttpServer,
    shared: Arc<Shared>,
}

struct Shared {
    mode: Mutex<Mode>,
    requests: Mutex<Vec<Request>>,
    /// Requests of any kind, taken or not.
    seen: Mutex<usize>,
}

impl Receiver {
    /// On a free port, in plain text.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start() -> Result<Self> {
        Self::listen(None).await
    }

    /// On a free port, over TLS with this certificate; with `clients` nobody gets in without one of theirs.
    ///
    /// # Errors
    /// When no port can be bound, or a certificate cannot be used.
    pub async fn start_tls(issued: &Issued, clients: Option<&Authority>) -> Result<Self> {
        Self::listen(Some(http_server::tls(issued, clients)?)).await
    }

    async fn listen(tls: Option<TlsAcceptor>) -> Result<Self> {
        let (mode, requests, seen) = (Mutex::new(Mode::Take), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { mode, requests, seen });
        let asked = Arc::clone(&shared);
        let answer = move |request| {
            let asked = Arc::clone(&asked);
            async move { asked.answer(request).await.map(Some) }
        };
        Ok(Self { server: HttpServer::start(tls, answer).await?, shared })
    }

    /// The endpoint to hand to the relay.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.server.url()
    }

    /// From the next request on.
    pub fn set(&self, mode: Mode) {
        *lock(&self.shared.mode) = mode;
    }

    /// Requests that came, taken or not.
    #[must_use]
    pub fn seen(&self) -> usize {
        *lock(&self.shared.seen)
    }

    /// All requests that were taken.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// All spans that were taken, in the order in which they came.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let requests = self.requests();
        let resources = requests.iter().flat_map(|request| &request.message.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Waits until at least so many spans were taken.
    ///
    /// # Errors
    /// When they do not come in time.
    pub async fn wait_spans(&self, count: usize, within: Duration) -> Result<Vec<Span>> {
        let enough = || async { Ok(Some(self.spans()).filter(|spans| spans.len() >= count)) };
        wait::until(&format!("{count} spans"), within, enough).await
    }
}

impl Shared {
    async fn answer(&self, request: http_server::Request) -> Result<Answer> {
        *lock(&self.seen) += 1;
        let mode = *lock(&self.mode);
        let (status, rejected) = match mode {
            Mode::Take => (200, 0),
            Mode::Reject(spans) => (200, spans),
            Mode::Refuse(status) => (status, 0),
            Mode::Hang => std::future::pending().await,
        };
        if status == 200 {
            let message = ExportTraceServiceRequest::decode(request.body.as_slice())?;
            let http_server::Request { head, body } = request;
            lock(&self.requests).push(Request { head, body, message });
        }
        let partial = ExportTracePartialSuccess { rejected_spans: rejected, ..ExportTracePartialSuccess::default() };
        let answer = ExportTraceServiceResponse { partial_success: (rejected > 0).then_some(partial) };
        Ok(Answer { status, content_type: "application/x-protobuf", body: answer.encode_to_vec() })
    }
}

/// An attribute as text.
#[must_use]
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// An id as a `traceparent` writes it.
#[must_use]
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
