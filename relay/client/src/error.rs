//! What may go wrong between an application and the two schemas, by what the caller can do about it.

use std::error::Error as _;

use tokio_postgres::error::SqlState;

/// A failure of [`crate::enqueue`] or of a claim. The transaction is aborted; rolling it back is the caller's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The key is in the outbox with other content: two pieces of work share it.
    #[error("the idempotency key is in the outbox with other content: {}", said(.0))]
    OtherContent(#[source] tokio_postgres::Error),
    /// The id came before with another body: two messages share it. Set this one aside.
    #[error("the message id came before with another body: {}", said(.0))]
    OtherBody(#[source] tokio_postgres::Error),
    /// A key, topic, consumer, header or the like is not what the schema takes. Trying again does not help.
    #[error("refused: {}", said(.0))]
    Refused(#[source] tokio_postgres::Error),
    /// Another transaction was in the way: run the whole transaction again.
    #[error("run the whole transaction again: {}", said(.0))]
    Again(#[source] tokio_postgres::Error),
    /// Anything else, a lost connection among it: what happened is unknown, and the same work may be run again.
    #[error("the database failed: {}", said(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// The driver itself says only "db error", or "error performing TLS handshake".
fn said(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("{} (SQLSTATE {})", db.message(), db.code().code()),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code().map(SqlState::code) {
            Some("OX001") => Self::OtherContent(error),
            Some("OX002") => Self::OtherBody(error),
            Some("40001" | "40P01") => Self::Again(error),
            Some(code) if code.starts_with("22") || code.starts_with("23") => Self::Refused(error),
            _ => Self::Database(error),
        }
    }
}

/// What the work of a message may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of [`crate::Inbox::process`].
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The claim failed; the work was not begun.
    #[error(transparent)]
    Inbox(#[from] Error),
    /// The work failed. Its claim goes with the transaction when the caller rolls back.
    #[error("the work failed: {0}")]
    Work(#[source] BoxError),
}
