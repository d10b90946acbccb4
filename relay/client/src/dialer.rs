//! How a consumer connects to its database: in plain text, or with the TLS that the application brings. The kind of
//! TLS is hidden here, so that settings and consumers need no type parameter for it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, NoTls, Socket};

type Dialing = Pin<Box<dyn Future<Output = Result<Client, Error>> + Send>>;

/// See the module.
#[derive(Clone)]
pub(crate) struct Dialer {
    plain: bool,
    dial: Arc<dyn Fn(Config) -> Dialing + Send + Sync>,
}

impl Dialer {
    pub(crate) fn plain() -> Self {
        Self { plain: true, ..Self::with(NoTls) }
    }

    pub(crate) fn with<T>(tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let dial = move |config: Config| -> Dialing {
            let tls = tls.clone();
            Box::pin(async move {
                let (client, connection) = config.connect(tls).await?;
                // It ends with the client; what broke it is seen in the statement that was running.
                tokio::spawn(async move { drop(connection.await) });
                Ok(client)
            })
        };
        Self { plain: false, dial: Arc::new(dial) }
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(crate) async fn dial(&self, config: &Config) -> Result<Client, Error> {
        (self.dial)(config.clone()).await
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.plain { "plain text" } else { "TLS" })
    }
}
