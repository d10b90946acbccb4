//! Inserting rows as an application does, in plain SQL, with a journal.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio_postgres::{Client, GenericClient};

use crate::journal::{Content, Entry, Journal, Outcome, hash};

/// The body of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Text(String),
    Bytes(Vec<u8>),
    Tombstone,
}

impl Body {
    /// The bytes that must arrive; `None` for a tombstone.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            Self::Tombstone => None,
        }
    }
}

/// A row to insert. Columns that are not set are not named in the statement.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: String,
    pub topic: String,
    pub key: Option<String>,
    pub body: Body,
    pub content_type: Option<String>,
    pub headers: Option<Value>,
    /// Seconds from the insert until the row may go.
    pub delay_seconds: Option<f64>,
    /// The headers as the ledger shall compare them; see [`Content::headers`].
    pub expected_headers: BTreeMap<String, String>,
}

impl Row {
    /// A row with a short JSON body that names its id.
    #[must_use]
    pub fn new(id: &str, topic: &str) -> Self {
        Self {
            id: id.to_owned(),
            topic: topic.to_owned(),
            key: None,
            body: Body::Text(format!(r#"{{"id":"{id}"}}"#)),
            content_type: None,
            headers: None,
            delay_seconds: None,
            expected_headers: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    #[must_use]
    pub fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.body(Body::Text(text.to_owned()))
    }

    #[must_use]
    pub fn headers(mut self, headers: Value) -> Self {
        self.headers = Some(headers);
        self
    }

    #[must_use]
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.content_type = Some(content_type.to_owned());
        self
    }

    #[must_use]
    pub fn delayed(mut self, seconds: f64) -> Self {
        self.delay_seconds = Some(seconds);
        self
    }

    /// Inserts the row within whatever transaction `client` is in and returns its `seq`.
    ///
    /// # Errors
    /// What the database says.
    pub async fn insert(&self, client: &impl GenericClient) -> Result<i64> {
        let (text, bytes) = match &self.body {
            Body::Text(text) => (Some(text), None),
            Body::Bytes(bytes) => (None, Some(bytes)),
            Body::Tombstone => (None, None),
        };
        let mut columns = vec!["idempotency_key", "topic", "ordering_key", "payload", "payload_bytes"];
        let mut values = vec!["$1".to_owned(), "$2".to_owned(), "$3".to_owned(), "$4".to_owned(), "$5".to_owned()];
        let mut given: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
            vec![&self.id, &self.topic, &self.key, &text, &bytes];
        if let Some(content_type) = &self.content_type {
            columns.push("content_type");
            given.push(content_type);
            values.push(format!("${}", given.len()));
        }
        if let Some(headers) = &self.headers {
            columns.push("headers");
            given.push(headers);
            values.push(format!("${}", given.len()));
        }
        if let Some(delay) = &self.delay_seconds {
            columns.push("available_at");
            given.push(delay);
            values.push(format!("clock_timestamp() + make_interval(secs => ${})", given.len()));
        }
        let statement =
            format!("INSERT INTO outbox.message ({}) VALUES ({}) RETURNING seq", columns.join(", "), values.join(", "));
        let row = client.query_one(&statement, &given).await.with_context(|| format!("inserting {}", self.id))?;
        Ok(row.try_get(0)?)
    }

    /// The journal's line for this row.
    #[must_use]
    pub fn entry(&self, number: u64, outcome: Outcome) -> Entry {
        let content = Content {
            key: self.key.clone(),
            body_hash: self.body.bytes().map(hash),
            headers: self.expected_headers.clone(),
        };
        Entry { id: self.id.clone(), content, number, outcome }
    }
}

/// A session that inserts and writes down what it did.
pub struct Writer {
    client: Client,
    journal: Journal,
}

impl Writer {
    #[must_use]
    pub fn new(client: Client, journal: Journal) -> Self {
        Self { client, journal }
    }

    /// The session, for statements of the test's own.
    #[must_use]
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Inserts all rows in one transaction and commits. Only one writer may write a key at a
    /// time, else their numbers do not follow the order of commits.
    ///
    /// # Errors
    /// What the database says of an insert; a failed commit is journalled as unknown.
    pub async fn commit(&mut self, rows: &[Row]) -> Result<()> {
        let transaction = self.client.transaction().await?;
        for row in rows {
            row.insert(&transaction).await?;
        }
        let committed = transaction.commit().await;
        let outcome = if committed.is_ok() { Outcome::Committed } else { Outcome::Unknown };
        self.record(rows, outcome);
        committed.context("committing")
    }

    /// Inserts all rows in one transaction and rolls back.
    ///
    /// # Errors
    /// What the database says.
    pub async fn roll_back(&mut self, rows: &[Row]) -> Result<()> {
        let transaction = self.client.transaction().await?;
        for row in rows {
            row.insert(&transaction).await?;
        }
        transaction.rollback().await?;
        self.record(rows, Outcome::RolledBack);
        Ok(())
    }

    fn record(&self, rows: &[Row], outcome: Outcome) {
        for row in rows {
            let number = self.journal.next_number(row.key.as_deref());
            self.journal.record(row.entry(number, outcome));
        }
    }
}
