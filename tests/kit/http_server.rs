//! A server of one test, HTTP/1.1 by hand on loopback, in plain text or over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::certificates::{Authority, Issued};

/// The handle; dropping it ends the server and its connections.
pub struct HttpServer {
    address: SocketAddr,
    secure: bool,
    stop: CancellationToken,
}

/// What was asked: path and headers as they came, and the body.
#[derive(Clone, Debug)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

/// What is answered.
pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

impl HttpServer {
    /// On a free port; `answer` says what to each request, or `None` to hang up on it.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start<F, A>(tls: Option<TlsAcceptor>, answer: F) -> Result<Self>
    where
        F: Fn(Request) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Result<Option<Answer>>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = Self { address: listener.local_addr()?, secure: tls.is_some(), stop: CancellationToken::new() };
        let stop = server.stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                let (answer, tls, stop) = (answer.clone(), tls.clone(), stop.clone());
                tokio::spawn(async move {
                    let serving = async {
                        match tls {
                            Some(tls) => serve(tls.accept(stream).await?, answer).await,
                            None => serve(stream, answer).await,
                        }
                    };
                    // A client that leaves in the middle is no failure of the test.
                    let _ = stop.run_until_cancelled(serving).await;
                });
            }
        });
        Ok(server)
    }

    /// Its root.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", if self.secure { "https" } else { "http" }, self.address)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Shows this certificate; with `clients` nobody gets in without one of theirs.
///
/// # Errors
/// When a certificate cannot be used.
pub fn tls(issued: &Issued, clients: Option<&Authority>) -> Result<TlsAcceptor> {
    let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(clients.pem().as_bytes())?)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
}

/// One request after the other until the client leaves.
async fn serve<F, A>(stream: impl AsyncRead + AsyncWrite + Unpin, answer: F) -> Result<()>
where
    F: Fn(Request) -> A,
    A: Future<Output = Result<Option<Answer>>>,
{
    let mut stream = BufStream::new(stream);
    loop {
        let Some(Answer { status, content_type, body }) = answer(read(&mut stream).await?).await? else {
            return Ok(());
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} -\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.flush().await?;
    }
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Request> {
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
    Ok(Request { head, body })
}
