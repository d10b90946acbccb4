//! The consumer's half: the work of one message once, in one transaction with its claim.

use sha2::{Digest, Sha256};
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::error::{BoxError, Error, ProcessError};

/// What came from a broker.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// RabbitMQ's `message_id`, Kafka's header `id`.
    pub id: String,
    /// The exact bytes.
    pub body: Vec<u8>,
}

/// Without the body, which is nobody's business in a log.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("id", &self.id).field("body_bytes", &self.body.len()).finish()
    }
}

/// How a message was dealt with. Either way: commit, then acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The work was done in this transaction.
    Done(T),
    /// It was done before.
    Repeated,
}

/// What a consumer has done, as the schema `inbox` knows it.
#[derive(Debug, Clone, Copy)]
pub struct Inbox;

impl Inbox {
    /// Claims the message and, if nobody did before, does the work. Another transaction that claims the same message
    /// at the same time is waited for. The caller commits, and acknowledges after that.
    ///
    /// # Errors
    /// [`ProcessError`]; the caller rolls back, and the claim is undone with the work.
    pub async fn process<T, E: Into<BoxError>>(
        transaction: &Transaction<'_>,
        consumer: &str,
        message: &Message,
        work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<Outcome<T>, ProcessError> {
        if Self::claim(transaction, consumer, message).await? {
            let done = work(transaction).await.map_err(|error| ProcessError::Work(error.into()))?;
            still_good(transaction).await.map_err(|error| ProcessError::Work(error.into()))?;
            Ok(Outcome::Done(done))
        } else {
            Ok(Outcome::Repeated)
        }
    }

    /// True exactly once per consumer and message, if the transaction commits.
    ///
    /// # Errors
    /// [`Error::OtherBody`] when the id came before with another body, else as [`Error`] says.
    pub async fn claim(transaction: &Transaction<'_>, consumer: &str, message: &Message) -> Result<bool, Error> {
        let hash = Sha256::digest(&message.body);
        let row = transaction
            .query_typed_one(
                "SELECT inbox.claim($1, $2, $3)",
                &[(&consumer, Type::TEXT), (&message.id, Type::TEXT), (&hash.as_slice(), Type::BYTEA)],
            )
            .await?;
        Ok(row.try_get(0)?)
    }
}

/// Work that swallowed an error of the database leaves an aborted transaction, and PostgreSQL answers its COMMIT by
/// rolling back, without an error. Acknowledged after that, the message would be lost.
pub(crate) async fn still_good(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    transaction.query_typed("SELECT", &[]).await.map(drop)
}
