//! The driver's view of TLS: what makes a handshake for each address that it tries.

use std::io;

use futures_util::future::BoxFuture;
use outbox_tls::TlsError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{Tls, material};

/// Made for one connection, with the files as they are now. A file that cannot be used is told when the driver asks
/// for a handshake, because its error is the only one that callers see.
pub(crate) struct Connector {
    /// `None`: plain text.
    made: Option<Result<MakeRustlsConnect, TlsError>>,
    /// For messages.
    roots: String,
}

impl Connector {
    pub(super) async fn load(tls: Option<&Tls>) -> Self {
        let Some(tls) = tls.cloned() else { return Self { made: None, roots: String::new() } };
        let roots = material::shown_roots(&tls.trust);
        // Files may lie on a file system that hangs.
        let made = tokio::task::spawn_blocking(move || material::client_config(&tls)).await;
        let made =
            made.unwrap_or_else(|_| Err(TlsError::Broken { detail: "reading its files was stopped".to_owned() }));
        Self { made: Some(made.map(MakeRustlsConnect::new)), roots }
    }
}

impl<S> MakeTlsConnect<S> for Connector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = <MakeRustlsConnect as MakeTlsConnect<S>>::Stream;
    type TlsConnect = Handshake<<MakeRustlsConnect as MakeTlsConnect<S>>::TlsConnect>;
    type Error = TlsError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, TlsError> {
        let inner = match &mut self.made {
            None => None,
            Some(Err(error)) => return Err(error.clone()),
            Some(Ok(made)) => match MakeTlsConnect::<S>::make_tls_connect(made, host) {
                Ok(inner) => Some(inner),
                Err(never) => match never {},
            },
        };
        Ok(Handshake { inner, host: host.to_owned(), roots: self.roots.clone() })
    }
}

/// One handshake, and words for its failure.
pub(crate) struct Handshake<C> {
    inner: Option<C>,
    host: String,
    roots: String,
}

impl<C, S> TlsConnect<S> for Handshake<C>
where
    C: TlsConnect<S, Error = io::Error>,
    C::Future: Send + 'static,
{
    type Stream = C::Stream;
    type Error = TlsError;
    type Future = BoxFuture<'static, Result<C::Stream, TlsError>>;

    fn connect(self, stream: S) -> Self::Future {
        let shaking = self.inner.map(|inner| inner.connect(stream));
        Box::pin(async move {
            // The driver asks for no handshake where plain text is meant.
            let Some(shaking) = shaking else {
                return Err(TlsError::Broken { detail: "nobody asked for it".to_owned() });
            };
            shaking.await.map_err(|error| TlsError::of_handshake(&error, &self.host, &self.roots, &material::WORDS))
        })
    }
}
