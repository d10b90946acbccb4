//! The rows of a claim, taken in as they come.

use std::sync::Arc;

use bytes::Bytes;
use outbox_core::{
    ClaimRequest, Claimed, Content, HeaderValue, Headers, Origin, Page, Row as OutboxRow, RowId, SourceError,
    Timestamp, TxId,
};
use tokio_postgres::Row;

use super::gone;
use crate::errors::classify;
use crate::types::{Lsn, RawBytes, Timestamptz, Xid8};

/// Takes in a claim's rows as they come.
#[derive(Default)]
pub(super) struct PageReader {
    /// Of the first row; each row carries them.
    facts: Option<(Facts, Columns)>,
    pub(super) rows: Vec<Claimed>,
    words: Words,
    /// By the whole claim: rows that it found, also those that its page has no room for.
    pub(super) found: i64,
    /// By the short claim: bytes of the rows so far.
    pub(super) bytes_to: i64,
}

impl PageReader {
    pub(super) fn row(&mut self, row: &Row) -> Result<(), SourceError> {
        let (_, columns) = match &mut self.facts {
            Some(facts) => facts,
            facts => {
                let read = Facts::read(row).map_err(|error| classify(&error))?;
                if !read.alive {
                    return Err(gone());
                }
                facts.insert((read, Columns::find(row)?))
            }
        };
        let claimed = columns.read(row, &mut self.words).map_err(|error| classify(&error))?;
        self.rows.extend(claimed);
        let count = |column: Option<usize>| column.map_or(Ok(None), |column| row.try_get::<_, Option<i64>>(column));
        let counts = count(columns.found).and_then(|found| Ok((found, count(columns.bytes_to)?)));
        let (found, bytes_to) = counts.map_err(|error| classify(&error))?;
        (self.found, self.bytes_to) = (found.unwrap_or(0), bytes_to.unwrap_or(0));
        Ok(())
    }

    /// `cut`: rows may be missing behind the last one.
    pub(super) fn end(self, request: &ClaimRequest, cut: bool) -> Result<(Page, Facts), SourceError> {
        let lost = || SourceError::Lost("a claim came back without its snapshot".to_owned());
        let (facts, _) = self.facts.ok_or_else(lost)?;
        let whole_to = match self.rows.last() {
            Some(last) if cut => last.id.seq,
            None if cut => request.low,
            _ => i64::MAX,
        };
        let page =
            Page { rows: self.rows, whole_to, snapshot_xmin: facts.snapshot_xmin.0, now: Timestamp(facts.now.0) };
        Ok((page, facts))
    }
}

/// The last topic and content type: most rows of a page share theirs.
#[derive(Default)]
struct Words {
    topic: Option<Arc<str>>,
    content_type: Option<Arc<str>>,
}

impl Words {
    fn shared(last: &mut Option<Arc<str>>, word: &str) -> Arc<str> {
        match last {
            Some(last) if **last == *word => last.clone(),
            _ => last.insert(Arc::from(word)).clone(),
        }
    }
}

/// What every row of a claim says of the whole.
pub(super) struct Facts {
    snapshot_xmin: Xid8,
    pub(super) wal: Lsn,
    now: Timestamptz,
    alive: bool,
    /// Nothing in the waiting room and no delayed row could be taken or be in the way.
    pub(super) fresh_only: bool,
}

impl Facts {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            snapshot_xmin: row.try_get("snapshot_xmin")?,
            wal: row.try_get("wal")?,
            now: row.try_get("now")?,
            alive: row.try_get("alive")?,
            fresh_only: row.try_get("fresh_only")?,
        })
    }
}

/// Where each column stands: looked up once a page, since a look by name compares names.
struct Columns {
    seq: usize,
    tx: usize,
    origin: usize,
    ordering_key: usize,
    blocked: usize,
    idempotency_key: usize,
    topic: usize,
    payload: usize,
    payload_bytes: usize,
    content_type: usize,
    headers: usize,
    created_at: usize,
    available_at: usize,
    attempts: usize,
    held_since: usize,
    found: Option<usize>,
    bytes_to: Option<usize>,
}

impl Columns {
    fn find(row: &Row) -> Result<Self, SourceError> {
        let look = |name: &str| row.columns().iter().position(|column| column.name() == name);
        let find = |name: &str| {
            look(name).ok_or_else(|| SourceError::Lost(format!("a claim came back without its column {name}")))
        };
        Ok(Self {
            seq: find("seq")?,
            tx: find("tx")?,
            origin: find("origin")?,
            ordering_key: find("ordering_key")?,
            blocked: find("blocked")?,
            idempotency_key: find("idempotency_key")?,
            topic: find("topic")?,
            payload: find("payload")?,
            payload_bytes: find("payload_bytes")?,
            content_type: find("content_type")?,
            headers: find("headers")?,
            created_at: find("created_at")?,
            available_at: find("available_at")?,
            attempts: find("attempts")?,
            held_since: find("held_since")?,
            found: look("found"),
            bytes_to: look("bytes_to"),
        })
    }

    /// `None` is the line that only carries the snapshot.
    fn read(&self, row: &Row, words: &mut Words) -> Result<Option<Claimed>, tokio_postgres::Error> {
        let Some(seq) = row.try_get::<_, Option<i64>>(self.seq)? else { return Ok(None) };
        let tx: Xid8 = row.try_get(self.tx)?;
        let id = RowId { seq, tx: TxId(tx.0) };
        let origin = match row.try_get(self.origin)? {
            "fresh" => Origin::Fresh,
            "delayed" => Origin::Delayed,
            "probe" => Origin::Held { probe: true },
            _ => Origin::Held { probe: false },
        };
        let ordering_key = row.try_get::<_, Option<&str>>(self.ordering_key)?.map(Arc::<str>::from);
        let content = if row.try_get(self.blocked)? {
            Content::Blocked
        } else {
            match self.content(row, id, ordering_key.clone(), words) {
                Ok(row) => Content::Row(Arc::new(row)),
                Err(detail) => Content::Bad { detail },
            }
        };
        Ok(Some(Claimed { id, origin, ordering_key, content }))
    }

    /// A column that is not what the table promises makes a bad row, never a panic: the text names the column.
    fn content(
        &self,
        row: &Row,
        id: RowId,
        ordering_key: Option<Arc<str>>,
        words: &mut Words,
    ) -> Result<OutboxRow, String> {
        let text = |column: usize| {
            row.try_get::<_, &str>(column).map_err(|_| format!("column {} is NULL or no text", name(row, column)))
        };
        let time = |column: usize| {
            let time = row.try_get::<_, Option<Timestamptz>>(column);
            let time = time.map_err(|_| format!("column {} is no time", name(row, column)))?;
            Ok::<_, String>(time.map(|time| Timestamp(time.0)))
        };
        let body = |column: usize| {
            let bytes = row.try_get::<_, Option<RawBytes<'_>>>(column);
            let bytes = bytes.map_err(|_| format!("column {} has no bytes", name(row, column)))?;
            Ok::<_, String>(bytes.map(|bytes| Bytes::copy_from_slice(bytes.0)))
        };
        let attempts = row.try_get::<_, Option<i32>>(self.attempts).map_err(|_| "attempts is no number".to_owned())?;
        Ok(OutboxRow {
            id,
            idempotency_key: text(self.idempotency_key)?.to_owned(),
            topic: Words::shared(&mut words.topic, text(self.topic)?),
            ordering_key,
            payload: body(self.payload)?.or(body(self.payload_bytes)?),
            content_type: Words::shared(&mut words.content_type, text(self.content_type)?),
            headers: headers(row.try_get(self.headers).map_err(|_| "column headers is no JSON".to_owned())?)?,
            created_at: time(self.created_at)?.ok_or("column created_at is NULL")?,
            available_at: time(self.available_at)?,
            attempts: attempts.map_or(0, |attempts| u32::try_from(attempts).unwrap_or(0)),
            held_since: time(self.held_since)?,
        })
    }
}

fn name(row: &Row, column: usize) -> &str {
    row.columns().get(column).map_or("", tokio_postgres::Column::name)
}

fn headers(json: Option<&str>) -> Result<Headers, String> {
    let Some(json) = json else { return Ok(Headers::default()) };
    match serde_json::from_str(json) {
        Ok(serde_json::Value::Object(map)) => {
            Ok(Headers(map.into_iter().map(|(name, value)| (name, header(value))).collect()))
        }
        Ok(_) => Err("column headers is no JSON object".to_owned()),
        Err(error) => Err(format!("column headers cannot be read: {error}")),
    }
}

fn header(value: serde_json::Value) -> HeaderValue {
    match value {
        serde_json::Value::Null => HeaderValue::Null,
        serde_json::Value::Bool(value) => HeaderValue::Bool(value),
        serde_json::Value::Number(number) => HeaderValue::Number(number.to_string()),
        serde_json::Value::String(text) => HeaderValue::Text(text),
        serde_json::Value::Array(items) => HeaderValue::List(items.into_iter().map(header).collect()),
        serde_json::Value::Object(map) => {
            HeaderValue::Table(map.into_iter().map(|(name, value)| (name, header(value))).collect())
        }
    }
}
