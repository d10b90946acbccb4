//! claim: one page of one lane in one snapshot; and the cheap questions around it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use outbox_core::{
    ClaimRequest, Claimed, Content, HeaderValue, Headers, Horizon, Origin, Page, PollRequest, Row as OutboxRow, RowId,
    SourceError, Timestamp, TxId,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::connection::Connection;
use crate::errors::classify;
use crate::types::{Lsn, RawBytes, Timestamptz, Xid8};

const CLAIM: &str = include_str!("sql/claim.sql");

/// The claim without the part that reads the waiting room.
static CLAIM_NOT_LOOKING: LazyLock<String> = LazyLock::new(|| {
    let parts =
        CLAIM.split_once("-- looking\n").and_then(|(before, rest)| Some((before, rest.split_once("-- looked\n")?.1)));
    parts.map_or_else(|| CLAIM.to_owned(), |(before, after)| format!("{before}{after}"))
});

/// For each lane, whether its last claim found that only fresh rows matter there, so that the short statement is worth
/// a try. A hint only: each statement looks for itself.
#[derive(Default)]
pub(crate) struct FreshOnly([AtomicBool; 16]);

impl FreshOnly {
    fn of(&self, lane: i16) -> &AtomicBool {
        &self.0[usize::from(lane.unsigned_abs()) % self.0.len()]
    }
}

/// One page, and the WAL position that must be flushed before any row of it is published.
pub(crate) async fn claim(
    connection: &Connection,
    config: &PostgresConfig,
    request: &ClaimRequest,
    fresh_only: &FreshOnly,
) -> Result<(Page, Lsn), SourceError> {
    let hint = fresh_only.of(request.lease.lane);
    if hint.load(Ordering::Relaxed) {
        let rows = query_fresh(connection, config, request).await?;
        let (page, facts) = page(&rows, request)?;
        if facts.fresh_only {
            return Ok((page, facts.wal));
        }
    }
    let rows = query(connection, config, request).await?;
    let (page, facts) = page(&rows, request)?;
    hint.store(facts.fresh_only, Ordering::Relaxed);
    Ok((page, facts.wal))
}

async fn query_fresh(
    connection: &Connection,
    config: &PostgresConfig,
    request: &ClaimRequest,
) -> Result<Vec<Row>, SourceError> {
    connection
        .query(
            include_str!("sql/claim_fresh.sql"),
            &[
                (&config.source, Type::TEXT),
                (&request.lease.lane, Type::INT2),
                (&request.low, Type::INT8),
                (&request.exclude, Type::INT8_ARRAY),
                (&rows_max(request), Type::INT8),
                (&bytes_max(request), Type::INT8),
                (&request.block_key, Type::BOOL),
                (&config.relay_id, Type::UUID),
            ],
        )
        .await
}

async fn query(
    connection: &Connection,
    config: &PostgresConfig,
    request: &ClaimRequest,
) -> Result<Vec<Row>, SourceError> {
    connection
        .query(
            if request.with_held { CLAIM } else { &CLAIM_NOT_LOOKING },
            &[
                (&config.source, Type::TEXT),
                (&request.lease.lane, Type::INT2),
                (&request.low, Type::INT8),
                (&request.exclude, Type::INT8_ARRAY),
                (&rows_max(request), Type::INT8),
                (&bytes_max(request), Type::INT8),
                (&request.with_held, Type::BOOL),
                (&request.open_gates, Type::TEXT_ARRAY),
                (&request.probe_gates, Type::TEXT_ARRAY),
                (&request.block_key, Type::BOOL),
                (&config.relay_id, Type::UUID),
            ],
        )
        .await
}

fn rows_max(request: &ClaimRequest) -> i64 {
    i64::try_from(request.rows_max).unwrap_or(i64::MAX)
}

fn bytes_max(request: &ClaimRequest) -> i64 {
    i64::try_from(request.bytes_max.max(1)).unwrap_or(i64::MAX)
}

/// What a claim's statement brought.
fn page(rows: &[Row], request: &ClaimRequest) -> Result<(Page, Facts), SourceError> {
    let first = rows.first().ok_or_else(|| SourceError::Lost("a claim came back without its snapshot".to_owned()))?;
    let facts = Facts::read(first).map_err(|error| classify(&error))?;
    if !facts.alive {
        return Err(gone());
    }
    let columns = Columns::find(first)?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(row) = columns.read(row).map_err(|error| classify(&error))? {
            claimed.push(row);
        }
    }
    let returned = i64::try_from(claimed.len()).unwrap_or(i64::MAX);
    let cut = facts.found >= rows_max(request) || returned < facts.found;
    let whole_to = match claimed.last() {
        Some(last) if cut => last.id.seq,
        None if cut => request.low,
        _ => i64::MAX,
    };
    let page = Page { rows: claimed, whole_to, snapshot_xmin: facts.snapshot_xmin.0, now: Timestamp(facts.now.0) };
    Ok((page, facts))
}

/// The mutant that reads new rows in one statement and rows that committed late in another.
pub(crate) async fn sweep_apart(
    connection: &Connection,
    config: &PostgresConfig,
    request: ClaimRequest,
    fresh_only: &FreshOnly,
) -> Result<Page, SourceError> {
    let cursor = request.exclude.last().copied().unwrap_or(request.low);
    let mut ahead = request.clone();
    ahead.low = request.low.max(cursor);
    let (mut page, _) = claim(connection, config, &ahead, fresh_only).await?;
    if page.rows.is_empty() {
        return Ok(claim(connection, config, &request, fresh_only).await?.0);
    }
    page.whole_to = page.whole_to.min(request.low);
    Ok(page)
}

/// The relay's row is gone although the connection lives: a pooler hid a crash or a failover.
fn gone() -> SourceError {
    SourceError::Lost("this relay's entry in outbox.relay is gone: the database crashed or failed over".to_owned())
}

struct Facts {
    snapshot_xmin: Xid8,
    wal: Lsn,
    now: Timestamptz,
    alive: bool,
    found: i64,
    /// Nothing in the waiting room and no delayed row could be taken or be in the way.
    fresh_only: bool,
}

impl Facts {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            snapshot_xmin: row.try_get("snapshot_xmin")?,
            wal: row.try_get("wal")?,
            now: row.try_get("now")?,
            alive: row.try_get("alive")?,
            found: row.try_get("found")?,
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
}

impl Columns {
    fn find(row: &Row) -> Result<Self, SourceError> {
        let find = |name: &str| {
            let found = row.columns().iter().position(|column| column.name() == name);
            found.ok_or_else(|| SourceError::Lost(format!("a claim came back without its column {name}")))
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
        })
    }

    /// `None` is the line that only carries the snapshot.
    fn read(&self, row: &Row) -> Result<Option<Claimed>, tokio_postgres::Error> {
        let Some(seq) = row.try_get::<_, Option<i64>>(self.seq)? else { return Ok(None) };
        let tx: Xid8 = row.try_get(self.tx)?;
        let id = RowId { seq, tx: TxId(tx.0) };
        let origin = match row.try_get(self.origin)? {
            "fresh" => Origin::Fresh,
            "delayed" => Origin::Delayed,
            "probe" => Origin::Held { probe: true },
            _ => Origin::Held { probe: false },
        };
        let ordering_key: Option<String> = row.try_get(self.ordering_key)?;
        let content = if row.try_get(self.blocked)? {
            Content::Blocked
        } else {
            match self.content(row, id, ordering_key.clone()) {
                Ok(row) => Content::Row(Arc::new(row)),
                Err(detail) => Content::Bad { detail },
            }
        };
        Ok(Some(Claimed { id, origin, ordering_key, content }))
    }

    /// A column that is not what the table promises makes a bad row, never a panic: the text names the column.
    fn content(&self, row: &Row, id: RowId, ordering_key: Option<String>) -> Result<OutboxRow, String> {
        let text = |column: usize| {
            row.try_get::<_, String>(column).map_err(|_| format!("column {} is NULL or no text", name(row, column)))
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
            idempotency_key: text(self.idempotency_key)?,
            topic: text(self.topic)?,
            ordering_key,
            payload: body(self.payload)?.or(body(self.payload_bytes)?),
            content_type: text(self.content_type)?,
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

/// One question for all idle lanes: which of them have something to claim.
pub(crate) async fn poll(
    connection: &Connection,
    config: &PostgresConfig,
    request: &PollRequest,
) -> Result<Vec<i16>, SourceError> {
    let lanes: Vec<i16> = request.positions.iter().map(|position| position.lane).collect();
    let lows: Vec<i64> = request.positions.iter().map(|position| position.low).collect();
    let rows = connection
        .query(
            include_str!("sql/poll.sql"),
            &[
                (&config.source, Type::TEXT),
                (&lanes, Type::INT2_ARRAY),
                (&lows, Type::INT8_ARRAY),
                (&request.exclude, Type::INT8_ARRAY),
                (&request.with_held, Type::BOOL),
                (&request.open_gates, Type::TEXT_ARRAY),
                (&request.block_key, Type::BOOL),
                (&config.relay_id, Type::UUID),
            ],
        )
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        if !row.try_get("alive").map_err(|error| classify(&error))? {
            return Err(gone());
        }
        found.push(row.try_get("lane").map_err(|error| classify(&error))?);
    }
    Ok(found)
}

/// The newest number given out, 0 while there is none.
pub(crate) async fn last_seq(connection: &Connection) -> Result<i64, SourceError> {
    let rows = connection
        .query("SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS last_seq FROM outbox.message_seq", &[])
        .await?;
    let row = rows.first().ok_or_else(|| SourceError::Lost("outbox.message_seq came back empty".to_owned()))?;
    row.try_get("last_seq").map_err(|error| classify(&error))
}

/// The number is read before the transaction id is taken: two statements, in this order.
pub(crate) async fn horizon(connection: &Connection) -> Result<Horizon, SourceError> {
    let last_seq = last_seq(connection).await?;
    let rows = connection.query("SELECT pg_current_xact_id() AS xid", &[]).await?;
    let row = rows.first().ok_or_else(|| SourceError::Lost("no transaction id came back".to_owned()))?;
    let xid: Xid8 = row.try_get("xid").map_err(|error| classify(&error))?;
    Ok(Horizon { last_seq, xid: xid.0 })
}
