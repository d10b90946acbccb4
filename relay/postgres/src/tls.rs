//! TLS to PostgreSQL: what is asked for, and the one way in which anybody connects.
//!
//! Guaranteed: a database that is asked for with TLS is never spoken to without; files are read anew for each
//! connection, so that a certificate or a login which was replaced is used at the next one. Deliberately absent: a
//! fall-back to plain text, encrypted private keys, revocation lists.

mod connector;
mod material;
mod problem;
mod verifier;

use std::path::PathBuf;

use outbox_core::Fresh;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use connector::Connector;
pub use outbox_tls::Identity;
pub use problem::{TlsProblem, tls_problem};

/// Whom the client takes for the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Whoever answers: `sslmode=require` without roots. Keeps listeners out and nobody else.
    Anybody,
    /// Who has a certificate of these authorities, under any name: `verify-ca`.
    Authority(PathBuf),
    /// Who has one for the name that was dialled: `verify-full`. `None`: the system's authorities.
    AuthorityAndName(Option<PathBuf>),
}

impl Trust {
    /// The file of the authorities; `None`: nobody is asked for one, or the system's are meant.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Authority(path) | Self::AuthorityAndName(Some(path)) => Some(path),
            Self::AuthorityAndName(None) | Self::Anybody => None,
        }
    }
}

/// How TLS is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub trust: Trust,
    pub identity: Option<Identity>,
}

/// Where the database is and how it is spoken to. Its `Debug` shows no password.
#[derive(Clone, Debug)]
pub struct Database {
    config: Config,
    tls: Option<Tls>,
    login: Option<Fresh<Config>>,
}

type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

impl Database {
    /// Without `tls` the connection is plain text, whatever `config` says.
    #[must_use]
    pub fn new(mut config: Config, tls: Option<Tls>) -> Self {
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        Self { config, tls, login: None }
    }

    /// User and password are those that `login` has at each connect. Where it has none, the last known are used.
    #[must_use]
    pub fn with_login(self, login: Fresh<Config>) -> Self {
        Self { login: Some(login), ..self }
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `None`: plain text.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Connects once.
    ///
    /// # Errors
    /// The driver's; what is wrong with TLS is in its source, and `tls_problem` says it.
    pub async fn connect(&self) -> Result<(Client, Connection<Socket, Stream>), Error> {
        self.dial(self.config.clone()).await
    }

    /// As `connect`, with a configuration that was changed since.
    pub(crate) async fn dial(&self, mut config: Config) -> Result<(Client, Connection<Socket, Stream>), Error> {
        if let Some(login) = &self.login {
            match login.read_apart().await {
                Ok(login) => log_in_as(&mut config, &login),
                Err(error) => {
                    tracing::warn!(error, "the login of the database cannot be read anew; the last one is used")
                }
            }
        }
        // A handshake's state is large, and callers keep theirs for as long as they live.
        Box::pin(config.connect(Connector::load(self.tls()).await)).await
    }
}

fn log_in_as(config: &mut Config, login: &Config) {
    if let Some(user) = login.get_user() {
        config.user(user);
    }
    if let Some(password) = login.get_password() {
        config.password(password);
    }
}

/// Asks the server to stop a statement, over a connection as secure as the statement's own.
pub(crate) async fn cancel(token: &CancelToken, tls: Option<&Tls>) -> Result<(), Error> {
    token.cancel_query(Connector::load(tls).await).await
}
