//! What the consumers of both brokers share: one message, one transaction, bounded attempts, and what may be
//! acknowledged after it.
//!
//! Guarantees: a message is acknowledged only after its transaction was committed, or after it was handed to the
//! dead-letter route; a failure of the database uses up no attempts.

use std::error::Error as StdError;
use std::time::Duration;

use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Socket, Transaction};

use crate::dialer::Dialer;
use crate::error::{BoxError, Error};
use crate::inbox::{Inbox, Message, Outcome, still_good};

/// The header of a dead letter that says why it is one: `no_id`, `other_body`, `refused` or `attempts`.
pub const REASON_HEADER: &str = "outbox-reason";

/// How long a dead letter may take until its broker has confirmed it.
pub(crate) const DEAD_LETTER_MAX: Duration = Duration::from_secs(60);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Of a database that says nothing: while connecting, and while it should take what was sent or show that it is there.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(20);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// The work of one message.
pub trait Handler: Sync {
    /// Does it with the transaction that claims it. A failure rolls both back and is tried again.
    fn handle(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Called after the commit and before the acknowledgement, for logs and counters. Not for work: after a crash it
    /// is called again, or was not called at all.
    fn committed(&self, _message: &Message, _outcome: Outcome<()>) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Called for each attempt that failed, with the reason: for logs and counters. The consumer itself logs nothing.
    /// What follows (another attempt, the dead-letter route, the end of the consumer) is not this function's to decide.
    fn failed(&self, _message: &Message, _error: &(dyn StdError + Send + Sync)) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// How a consumer works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the inbox is. It is spoken to in plain text, unless [`Settings::with_tls`] says how else.
    pub database: tokio_postgres::Config,
    /// Its name in the inbox; it never changes.
    pub consumer: String,
    /// So often is a message tried before it goes to the dead-letter route; at least once.
    pub attempts_max: u32,
    /// The pause after the first failure; it doubles with each further one, up to 30 s.
    pub retry_pause: Duration,
    dialer: Dialer,
}

impl Settings {
    /// Five attempts, a second after the first. Where the database's configuration has no time-outs, it gets some: 10 s
    /// to connect, 20 s for what was sent, keepalives after 10 s.
    #[must_use]
    pub fn new(mut database: tokio_postgres::Config, consumer: &str) -> Self {
        if database.get_connect_timeout().is_none() {
            database.connect_timeout(CONNECT_MAX);
        }
        if database.get_tcp_user_timeout().is_none() {
            database.tcp_user_timeout(SILENCE_MAX);
        }
        if database.get_keepalives_interval().is_none() {
            database.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_IDLE / 2).keepalives_retries(3);
        }
        let retry_pause = Duration::from_secs(1);
        Self { database, consumer: consumer.to_owned(), attempts_max: 5, retry_pause, dialer: Dialer::plain() }
    }

    /// Speaks TLS to the database with this connector, for example that of `tokio-postgres-rustls`, which decides whom
    /// it believes; each connection takes a clone of it. The database is then never spoken to in plain text.
    #[must_use]
    pub fn with_tls<T>(mut self, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.database.ssl_mode(SslMode::Require);
        self.dialer = Dialer::with(tls);
        self
    }
}

/// Why a consumer ended. Nothing is lost: what was not acknowledged comes again.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    #[error("the broker failed while {what}")]
    Broker { what: &'static str, source: BoxError },
    #[error("the broker did not take the dead letter of message {id:?}")]
    DeadLetter { id: String, source: Option<BoxError> },
    #[error(
        "the database refuses the inbox, and trying again does not help: {source}; see its login, the schema `inbox` and \
         the rights on it (schema/README.md)"
    )]
    Database { source: BoxError },
}

impl ConsumeError {
    pub(crate) fn broker<E: Into<BoxError>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Broker { what, source: source.into() }
    }
}

/// Why a message goes to the dead-letter route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetAside {
    NoId,
    OtherBody,
    Refused,
    Attempts,
}

impl SetAside {
    /// For a header of the dead letter.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoId => "no_id",
            Self::OtherBody => "other_body",
            Self::Refused => "refused",
            Self::Attempts => "attempts",
        }
    }
}

/// What the consumer may do with a message now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Acknowledge,
    SetAside(SetAside),
}

/// How one attempt failed.
struct Failure {
    kind: Kind,
    error: BoxError,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Nothing about the message is known to be wrong.
    Database,
    /// Neither is here, but only an operator can help.
    Operator,
    SetAside(SetAside),
    /// By the handler's own fault.
    Work,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::OtherBody(_) => Kind::SetAside(SetAside::OtherBody),
            Error::Refused(_) => Kind::SetAside(SetAside::Refused),
            Error::Database(error) if is_lasting(error) => Kind::Operator,
            Error::Again(_) | Error::Database(_) => Kind::Database,
            Error::OtherContent(_) => Kind::Work,
        };
        Self { kind, error: error.into() }
    }
}

/// A refused login, no such database or schema, no such function, no right to it.
fn is_lasting(error: &tokio_postgres::Error) -> bool {
    let code = error.code().map_or("", tokio_postgres::error::SqlState::code);
    ["28", "3D", "3F", "42"].iter().any(|class| code.starts_with(class))
}

/// Works on one message after the other, on a database connection of its own.
pub(crate) struct Worker<'a, H> {
    settings: &'a Settings,
    handler: &'a H,
    client: Option<Client>,
}

impl<'a, H: Handler> Worker<'a, H> {
    pub(crate) fn new(settings: &'a Settings, handler: &'a H) -> Self {
        Self { settings, handler, client: None }
    }

    /// Returns when the message may be acknowledged or must be set aside. Dropped before, it leaves nothing done.
    pub(crate) async fn work(&mut self, id: Option<String>, body: Vec<u8>) -> Result<Fate, ConsumeError> {
        let Some(id) = id else { return Ok(Fate::SetAside(SetAside::NoId)) };
        let message = Message { id, body };
        let (mut attempts, mut failures) = (0, 0);
        loop {
            match self.attempt(&message).await {
                Ok(outcome) => {
                    self.handler.committed(&message, outcome).await;
                    return Ok(Fate::Acknowledge);
                }
                Err(Failure { kind, error }) => {
                    self.handler.failed(&message, &*error).await;
                    match kind {
                        Kind::SetAside(why) => return Ok(Fate::SetAside(why)),
                        Kind::Operator => return Err(ConsumeError::Database { source: error }),
                        Kind::Database => {}
                        Kind::Work => attempts += 1,
                    }
                }
            }
            if attempts >= self.settings.attempts_max.max(1) {
                return Ok(Fate::SetAside(SetAside::Attempts));
            }
            tokio::time::sleep(pause(self.settings.retry_pause, failures)).await;
            failures += 1;
        }
    }

    /// claim → work → commit. A commit without an answer is tried again: if it happened, the claim says so.
    async fn attempt(&mut self, message: &Message) -> Result<Outcome<()>, Failure> {
        let client = connected(&mut self.client, self.settings).await?;
        let transaction = client.transaction().await.map_err(Error::from)?;
        let mut outcome = Outcome::Repeated;
        if Inbox::claim(&transaction, &self.settings.consumer, message).await? {
            outcome = Outcome::Done(());
            let worked = match self.handler.handle(&transaction, message).await {
                Ok(()) => still_good(&transaction).await.map_err(BoxError::from),
                Err(error) => Err(error),
            };
            if let Err(error) = worked {
                // The rollback goes out before anything else is sent on this connection.
                drop(transaction);
                let kind = if client.is_closed() || is_the_databases(&*error) { Kind::Database } else { Kind::Work };
                return Err(Failure { kind, error });
            }
        }
        match transaction.commit().await.map_err(Error::from) {
            Ok(()) => Ok(outcome),
            // A constraint that is checked at the end speaks of the work, not of the message.
            Err(error @ Error::Refused(_)) => Err(Failure { kind: Kind::Work, error: error.into() }),
            Err(other) => Err(other.into()),
        }
    }
}

/// A server that is away or short of something, a serialization failure, a deadlock: not the work's fault.
fn is_the_databases(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(current) = next {
        if let Some(error) = current.downcast_ref::<tokio_postgres::Error>() {
            let code = error.code().map_or("", tokio_postgres::error::SqlState::code);
            let transient = ["08", "53", "57P"].iter().any(|class| code.starts_with(class));
            return error.is_closed() || transient || matches!(code, "40001" | "40P01");
        }
        next = current.source();
    }
    false
}

/// The connection, made anew where it broke.
async fn connected<'c>(client: &'c mut Option<Client>, settings: &Settings) -> Result<&'c mut Client, Failure> {
    match client.take() {
        Some(open) if !open.is_closed() => Ok(client.insert(open)),
        _ if settings.database.get_ssl_mode() == SslMode::Require && settings.dialer.is_plain() => {
            // The driver would say so at each attempt.
            let error = "the database's configuration asks for TLS, and Settings::with_tls brought none".into();
            Err(Failure { kind: Kind::Operator, error })
        }
        _ => Ok(client.insert(settings.dialer.dial(&settings.database).await.map_err(Error::from)?)),
    }
}

fn pause(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let second = Duration::from_secs(1);
        assert_eq!([0, 1, 2].map(|failures| pause(second, failures).as_secs()), [1, 2, 4]);
        assert_eq!(pause(second, u32::MAX), PAUSE_MAX);
        assert_eq!(pause(Duration::MAX, 1), PAUSE_MAX);
    }
}
