//! take: rows of an application's table become rows of the outbox, in one transaction that also notes that they did.
//!
//! One relay at a time takes rows of one source: an advisory lock that ends with the transaction, so that it works
//! behind a transaction pooler. It is taken before the snapshot of the statement that reads, so that the reader sees
//! all that was taken before, and rows of a key get their numbers in the order in which they are taken.
//!
//! What is wrong with the application's table is `Refused` and ends no session.

mod compile;
mod inspect;
mod refused;
mod table;

use std::time::Duration;

use outbox_core::{Refusal, SourceError, Take, Taken, crash_point};
use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

pub use self::inspect::{IntakeFault, IntakeFaultKind, add_missing_mark, inspect};
pub use self::refused::retry_refused;
pub use self::table::{Body, IntakeTable, Mark, Name};
use crate::config::PostgresConfig;
use crate::connection::{Confined, Connection};
use compile::Statements;

/// A look or a batch may take longer than a claim, since the application's table may be large and without the index;
/// then the server ends it, and the session lives.
const STATEMENT_TIMEOUT_MS: u64 = 30_000;
/// The client's own bound, with time for the server's to speak first.
const DEADLINE: Duration = Duration::from_millis(STATEMENT_TIMEOUT_MS * 2 + 10_000);
/// Notes looked at in one batch of `tidy`.
const TIDY_ROWS_MAX: i64 = 1_000;

const TURN: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.source.' || $1, 0)) AS ours";
const ID_TYPE: &str = "SELECT format_type(a.atttypid, a.atttypmod) AS name FROM pg_catalog.pg_attribute AS a \
                        WHERE a.attrelid = to_regclass($1) AND a.attname = $2 AND NOT a.attisdropped";

/// The tables of one session and their connection, which they use in turn.
pub(crate) struct Intakes {
    connection: Mutex<Connection>,
    tables: Vec<(IntakeTable, Statements)>,
    begin_reading: String,
    /// How values become text must not depend on this login's or this server's settings: the same row must give the
    /// same bytes at each relay. And a batch must be as durable as a commit of the application.
    begin: String,
}

impl Intakes {
    pub(crate) fn new(connection: Connection, config: &PostgresConfig) -> Self {
        let tables = config.intakes.iter().map(|table| (table.clone(), Statements::new(table))).collect();
        let bounds = format!(
            "SET LOCAL lock_timeout = '{}'; SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}",
            config.lock_timeout()
        );
        let begin_reading = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; {bounds}");
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {bounds}; SET LOCAL synchronous_commit = on; \
             SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL IntervalStyle = 'iso_8601'; \
             SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'; SET LOCAL lc_monetary = 'C'"
        );
        Self { connection: Mutex::new(connection), tables, begin_reading, begin }
    }

    fn table(&self, index: usize) -> Result<&(IntakeTable, Statements), SourceError> {
        self.tables.get(index).ok_or_else(|| SourceError::Refused("there is no such source".to_owned()))
    }

    /// Looks where asked to, and takes one batch.
    pub(crate) async fn take(&self, index: usize, look_first: bool) -> Result<Take, SourceError> {
        let (table, statements) = self.table(index)?;
        let connection = self.connection.lock().await;
        if look_first {
            let look = look(&connection, table, statements);
            if !transaction(&connection, &self.begin_reading, look).await? {
                return Ok(Take::Nothing);
            }
        }
        let taken = transaction(&connection, &self.begin, batch(&connection, table, statements)).await?;
        if matches!(taken, Take::Took(_)) {
            crash_point("after_take");
        }
        Ok(taken)
    }

    /// Removes notes whose row is gone.
    pub(crate) async fn tidy(&self, index: usize, above: &str) -> Result<Option<String>, SourceError> {
        let (table, statements) = self.table(index)?;
        let connection = self.connection.lock().await;
        let client = connection.client();
        let tidy = async {
            let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                [(&table.quoted(), Type::TEXT), (&table.id.as_str(), Type::TEXT)];
            let found = client.query_typed(ID_TYPE, &parameters).await?;
            let Some(row) = found.first() else { return Ok(None) };
            let sql = statements.tidy(row.try_get("name")?);
            let parameters: [(&(dyn ToSql + Sync), Type); 3] =
                [(&table.name, Type::TEXT), (&above, Type::TEXT), (&TIDY_ROWS_MAX, Type::INT8)];
            let rows = client.query_typed(&sql, &parameters).await?;
            Ok(rows.first().map(|row| row.try_get("last")).transpose()?)
        };
        transaction(&connection, &self.begin, tidy).await
    }
}

/// A transaction of its own, with the bounds that `begin` sets: a table that somebody has locked is waited for only so
/// long. What was not committed is undone, so that the next one begins anew.
async fn transaction<T>(
    connection: &Connection,
    begin: &str,
    work: impl Future<Output = Result<T, Confined>>,
) -> Result<T, SourceError> {
    let client = connection.client();
    let all = async {
        client.batch_execute(begin).await?;
        let answer = work.await?;
        client.batch_execute("COMMIT").await?;
        Ok(answer)
    };
    let done = connection.confined(DEADLINE, all).await;
    if matches!(done, Err(SourceError::Again(_) | SourceError::Refused(_))) {
        let rollback = async { Ok(client.batch_execute("ROLLBACK").await?) };
        connection.confined(DEADLINE, rollback).await?;
    }
    done
}

/// Takes no transaction id, so that a look costs the database nothing but reading.
async fn look(connection: &Connection, table: &IntakeTable, statements: &Statements) -> Result<bool, Confined> {
    let rows = connection.client().query_typed(&statements.look, &[(&table.name, Type::TEXT)]).await?;
    Ok(rows.first().map_or(Ok(false), |row| row.try_get("found"))?)
}

async fn batch(connection: &Connection, table: &IntakeTable, statements: &Statements) -> Result<Take, Confined> {
    let client = connection.client();
    let turn = client.query_typed(TURN, &[(&table.name, Type::TEXT)]).await?;
    if !turn.first().map_or(Ok(false), |row| row.try_get("ours"))? {
        return Ok(Take::NotOurTurn);
    }
    let rows_max = i64::from(table.batch_rows);
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&table.name, Type::TEXT), (&rows_max, Type::INT8), (&table.content_type, Type::TEXT)];
    let rows = client.query_typed(&statements.take, &parameters).await?;
    let Some(row) = rows.first() else { return Err(Confined::Refused("the batch came back empty".to_owned())) };
    let batch = Batch::decode(row)?;
    if batch.settled != batch.noted {
        let (settled, noted, table) = (batch.settled, batch.noted, table.quoted());
        let text =
            format!("{settled} rows were to be marked in {table}, and {noted} were: a trigger or a rule is in the way");
        return Err(Confined::Refused(text));
    }
    crash_point("before_take_commit");
    Ok(Take::Took(batch.taken(rows_max)))
}

/// One batch's numbers.
struct Batch {
    picked: i64,
    taken: i64,
    settled: i64,
    noted: i64,
    lanes: Vec<i16>,
    reasons: Vec<String>,
    counts: Vec<i64>,
}

impl Batch {
    fn decode(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            picked: row.try_get("picked")?,
            taken: row.try_get("taken")?,
            settled: row.try_get("settled")?,
            noted: row.try_get("noted")?,
            lanes: row.try_get("lanes")?,
            reasons: row.try_get("reasons")?,
            counts: row.try_get("counts")?,
        })
    }

    fn taken(self, rows_max: i64) -> Taken {
        let count = |rows: i64| usize::try_from(rows).unwrap_or(0);
        let refused = self.reasons.iter().zip(&self.counts);
        Taken {
            rows: count(self.taken),
            refused: refused.filter_map(|(name, rows)| Some((Refusal::from_name(name)?, count(*rows)))).collect(),
            lanes: self.lanes,
            more: self.picked >= rows_max && self.settled > 0,
        }
    }
}
