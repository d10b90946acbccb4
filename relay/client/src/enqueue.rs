//! The producer's half: one row of the outbox, in the transaction of the work it tells of.

use std::time::SystemTime;

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;

/// What to tell the world.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    key: &'a str,
    topic: &'a str,
    body: Body<'a>,
    ordering_key: Option<&'a str>,
    headers: Option<&'a str>,
    content_type: Option<&'a str>,
    available_at: Option<SystemTime>,
}

#[derive(Debug, Clone)]
enum Body<'a> {
    Text(Option<&'a str>),
    Bytes(&'a [u8]),
}

impl<'a> Event<'a> {
    fn new(key: &'a str, topic: &'a str, body: Body<'a>) -> Self {
        Self { key, topic, body, ordering_key: None, headers: None, content_type: None, available_at: None }
    }

    /// JSON or any text, sent as its exact bytes. `key` names the piece of work and comes from it.
    #[must_use]
    pub fn text(key: &'a str, topic: &'a str, payload: &'a str) -> Self {
        Self::new(key, topic, Body::Text(Some(payload)))
    }

    /// A payload that is not text.
    #[must_use]
    pub fn bytes(key: &'a str, topic: &'a str, payload: &'a [u8]) -> Self {
        Self::new(key, topic, Body::Bytes(payload))
    }

    /// No payload.
    #[must_use]
    pub fn tombstone(key: &'a str, topic: &'a str) -> Self {
        Self::new(key, topic, Body::Text(None))
    }

    /// Events that share this keep their order.
    #[must_use]
    pub fn ordered_by(mut self, ordering_key: &'a str) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// A JSON object, as text; the database checks it.
    #[must_use]
    pub fn headers(mut self, json: &'a str) -> Self {
        self.headers = Some(json);
        self
    }

    /// In place of `application/json` for text and `application/octet-stream` for bytes.
    #[must_use]
    pub fn content_type(mut self, content_type: &'a str) -> Self {
        self.content_type = Some(content_type);
        self
    }

    /// Not to be sent before.
    #[must_use]
    pub fn available_at(mut self, time: SystemTime) -> Self {
        self.available_at = Some(time);
        self
    }
}

/// Enqueues the event; it goes out if, and only if, the transaction commits. `None`: it was there before.
///
/// # Errors
/// [`Error::OtherContent`] when the key is there with other content, else as [`Error`] says.
pub async fn enqueue(transaction: &Transaction<'_>, event: &Event<'_>) -> Result<Option<i64>, Error> {
    let (text, bytes);
    let (payload, kind): (&(dyn ToSql + Sync), Type) = match event.body {
        Body::Text(content) => {
            text = content;
            (&text, Type::TEXT)
        }
        Body::Bytes(content) => {
            bytes = content;
            (&bytes, Type::BYTEA)
        }
    };
    // Typed, and so without a named statement, which a transaction pooler may not know.
    let row = transaction
        .query_typed_one(
            &format!(
                "SELECT outbox.enqueue(idempotency_key => $1, topic => $2, payload => $3::{kind}, ordering_key => $4, \
                 headers => $5::text::jsonb, content_type => $6, available_at => $7)"
            ),
            &[
                (&event.key, Type::TEXT),
                (&event.topic, Type::TEXT),
                (payload, kind.clone()),
                (&event.ordering_key, Type::TEXT),
                (&event.headers, Type::TEXT),
                (&event.content_type, Type::TEXT),
                (&event.available_at, Type::TIMESTAMPTZ),
            ],
        )
        .await?;
    Ok(row.try_get(0)?)
}
