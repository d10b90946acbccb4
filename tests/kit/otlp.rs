//! A receiver of spans, OTLP over HTTP/1.1 by hand, that a test can make refuse or hang.
//!
//! Guarantees: what came is kept whole, as bytes and as decoded; it answers nothing while it hangs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub use opentelemetry_proto::tonic::trace::v1::Span;
pub use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
pub use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::certificates::{Authority, Issued};
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
    address: SocketAddr,
    secure: bool,
    shared: Arc<Shared>,
    stop: CancellationToken,
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
        let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(clients.pem().as_bytes())?)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key)?;
        Self::listen(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn listen(tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (mode, requests, seen) = (Mutex::new(Mode::Take), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { mode, requests, seen });
        let receiver = Self {
            address: listener.local_addr()?,
            secure: tls.is_some(),
            shared: Arc::clone(&shared),
            stop: CancellationToken::new(),
        };
        let stop = receiver.stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                let (shared, tls, stop) = (Arc::clone(&shared), tls.clone(), stop.clone());
                tokio::spawn(async move {
                    let serving = async {
                        match tls {
                            Some(tls) => serve(tls.accept(stream).await?, &shared).await,
                            None => serve(stream, &shared).await,
                        }
                    };
                    // A client that leaves in the middle is no failure of the test.
                    let _ = stop.run_until_cancelled(serving).await;
                });
            }
        });
        Ok(receiver)
    }

    /// The endpoint to hand to the relay.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://{}", if self.secure { "https" } else { "http" }, self.address)
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

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.cancel();
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

/// One request after the other until the client leaves.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) -> Result<()> {
    let mut stream = BufStream::new(stream);
    loop {
        let (head, body) = read(&mut stream).await?;
        *lock(&shared.seen) += 1;
        let mode = *lock(&shared.mode);
        let (status, rejected) = match mode {
            Mode::Take => (200, 0),
            Mode::Reject(spans) => (200, spans),
            Mode::Refuse(status) => (status, 0),
            Mode::Hang => std::future::pending().await,
        };
        if status == 200 {
            let message = ExportTraceServiceRequest::decode(body.as_slice())?;
            lock(&shared.requests).push(Request { head, body, message });
        }
        let partial = ExportTracePartialSuccess { rejected_spans: rejected, ..ExportTracePartialSuccess::default() };
        let answer = ExportTraceServiceResponse { partial_success: (rejected > 0).then_some(partial) }.encode_to_vec();
        let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\n\r\n", answer.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&answer).await?;
        stream.flush().await?;
    }
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
        if head.len() > 65_536 {
            bail!("a head without an end");
        }
    }
    let head = String::from_utf8(head)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.context("a request without a length")?];
    stream.read_exact(&mut body).await?;
    Ok((head, body))
}
