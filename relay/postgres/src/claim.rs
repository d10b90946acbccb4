//! claim: one page of one lane in one snapshot; and the cheap questions around it.

mod rows;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::{ClaimRequest, Horizon, Page, PollRequest, SourceError};
use tokio_postgres::types::Type;

use self::rows::PageReader;
use crate::config::PostgresConfig;
use crate::connection::{Connection, Parameter};
use crate::errors::classify;
use crate::types::{Lsn, Xid8};

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
        let reader = query(connection, config, request, Form::Short).await?;
        let cut = reader.rows.len() >= request.rows_max || reader.bytes_to >= bytes_max(request);
        let (page, facts) = reader.end(request, cut)?;
        if facts.fresh_only {
            return Ok((page, facts.wal));
        }
    }
    let reader = query(connection, config, request, Form::Whole).await?;
    let found = reader.found;
    let cut = found >= rows_max(request) || found > i64::try_from(reader.rows.len()).unwrap_or(i64::MAX);
    let (page, facts) = reader.end(request, cut)?;
    hint.store(facts.fresh_only, Ordering::Relaxed);
    Ok((page, facts.wal))
}

/// Which statement asks for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `claim_fresh.sql`
    Short,
    /// `claim.sql`
    Whole,
}

async fn query(
    connection: &Connection,
    config: &PostgresConfig,
    request: &ClaimRequest,
    form: Form,
) -> Result<PageReader, SourceError> {
    let (rows_max, bytes_max) = (rows_max(request), bytes_max(request));
    // Only the whole statement looks below low.
    let first = if form == Form::Short { request.exclude.partition_point(|seq| *seq <= request.low) } else { 0 };
    let exclude = request.exclude.get(first..).unwrap_or_default();
    let mut parameters: Vec<Parameter<'_>> = vec![
        (&config.source, Type::TEXT),
        (&request.lease.lane, Type::INT2),
        (&request.low, Type::INT8),
        (&exclude, Type::INT8_ARRAY),
        (&rows_max, Type::INT8),
        (&bytes_max, Type::INT8),
    ];
    if form == Form::Whole {
        parameters.push((&request.with_held, Type::BOOL));
        parameters.push((&request.open_gates, Type::TEXT_ARRAY));
        parameters.push((&request.probe_gates, Type::TEXT_ARRAY));
    }
    parameters.push((&request.block_key, Type::BOOL));
    parameters.push((&config.relay_id, Type::UUID));
    let sql = match form {
        Form::Short => include_str!("sql/claim_fresh.sql"),
        Form::Whole if request.with_held => CLAIM,
        Form::Whole => &CLAIM_NOT_LOOKING,
    };
    let mut reader = PageReader::default();
    connection.for_each(sql, &parameters, |row| reader.row(row)).await?;
    Ok(reader)
}

fn rows_max(request: &ClaimRequest) -> i64 {
    i64::try_from(request.rows_max).unwrap_or(i64::MAX)
}

fn bytes_max(request: &ClaimRequest) -> i64 {
    i64::try_from(request.bytes_max.max(1)).unwrap_or(i64::MAX)
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
