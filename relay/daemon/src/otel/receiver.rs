//! The OTLP receiver: HTTP/1.1 on a connection that is kept, over TLS where the endpoint is https.
//!
//! It goes through hyper and rustls, which the relay has anyway: a client of its own kind would bring HTTP/2 or a
//! second TLS library with it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use outbox_tls::{Identity, TlsError, Words};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::config::Otel;

/// For one request with its connection, as OpenTelemetry's default has it.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer says how many spans were rejected, and why.
const ANSWER_BYTES_MAX: usize = 65_536;

static WORDS: Words = Words {
    peer: "receiver",
    roots: "otel.ca_file",
    certificate: "otel.certificate_file",
    key: "otel.key_file",
    peers_roots: "the receiver's client_ca_file",
};

/// Where spans are sent, and the connection to it.
pub(super) struct Receiver {
    endpoint: Uri,
    headers: HeaderMap,
    ca_file: Option<PathBuf>,
    identity: Option<Identity>,
    open: Option<Connection>,
}

type Connection = SendRequest<Full<Bytes>>;

/// Why spans were not taken. Nothing of headers or spans is in it.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("the receiver cannot be reached: {0}")]
    Away(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the connection to the receiver broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the receiver did not answer within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("the receiver answered {0}")]
    Refused(StatusCode),
    #[error("the receiver's answer cannot be read")]
    Unreadable,
}

impl PostError {
    /// Whether the same spans may be taken later, as OTLP has it.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Refused(status) => [429, 502, 503, 504].contains(&status.as_u16()),
            Self::Unreadable => false,
            Self::Away(_) | Self::Tls(_) | Self::Broken(_) | Self::Silent => true,
        }
    }
}

impl Receiver {
    pub(super) fn new(otel: &Otel) -> Self {
        let (endpoint, mut headers) = (otel.endpoint.clone(), otel.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if let Some(host) = endpoint.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
            headers.insert(HOST, host);
        }
        Self { endpoint, headers, ca_file: otel.ca_file.clone(), identity: otel.identity.clone(), open: None }
    }

    /// Sends one request and says how many of its spans were rejected.
    pub(super) async fn post(&mut self, body: Bytes) -> Result<u64, PostError> {
        tokio::time::timeout(PATIENCE, self.try_post(body)).await.unwrap_or(Err(PostError::Silent))
    }

    async fn try_post(&mut self, body: Bytes) -> Result<u64, PostError> {
        // A connection that was kept may be closed by the receiver at any moment, which says nothing of it.
        if let Some(open) = self.open.take() {
            match self.exchange(open, body.clone()).await {
                Err(PostError::Broken(_)) => {}
                answered => return answered,
            }
        }
        let open = self.connect().await?;
        self.exchange(open, body).await
    }

    /// Keeps the connection if all went well.
    async fn exchange(&mut self, mut open: Connection, body: Bytes) -> Result<u64, PostError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::try_from(self.endpoint.path()).map_err(io::Error::other)?;
        *request.headers_mut() = self.headers.clone();
        open.ready().await?;
        let answer = open.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        if !status.is_success() {
            return Err(PostError::Refused(status));
        }
        let body = body.map_err(|_| PostError::Unreadable)?.to_bytes();
        // Spans that were taken are taken, also by a receiver that says so in another form.
        let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
        let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
        self.open = Some(open);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }

    async fn connect(&self) -> Result<Connection, PostError> {
        let is_https = self.endpoint.scheme_str() == Some("https");
        let host = self.endpoint.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = self.endpoint.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if !is_https {
            return open(stream).await;
        }
        let connector = TlsConnector::from(Arc::new(self.tls().await?));
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Host { host: host.to_owned() })?;
        let roots = outbox_tls::shown_roots(self.ca_file.as_deref(), &WORDS);
        let shaken = connector.connect(name, stream).await;
        open(shaken.map_err(|error| TlsError::of_handshake(&error, host, &roots, &WORDS))?).await
    }

    /// With the files as they are now.
    async fn tls(&self) -> Result<ClientConfig, PostError> {
        let (ca_file, identity) = (self.ca_file.clone(), self.identity.clone());
        let made = move || {
            let (builder, _) = outbox_tls::builder()?;
            let builder = builder.with_root_certificates(outbox_tls::roots(ca_file.as_deref(), &WORDS)?);
            outbox_tls::with_identity(builder, identity.as_ref(), &WORDS)
        };
        // Files may lie on a file system that hangs.
        Ok(tokio::task::spawn_blocking(made).await.map_err(io::Error::other)??)
    }
}

async fn open<S>(stream: S) -> Result<Connection, PostError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (open, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends with the handle; what goes wrong is told to whoever sends.
    tokio::spawn(connection);
    Ok(open)
}
