//! How much waits and since when, asked at a bounded cost by `status` and by the sampler of the state
//! gauges.
//!
//! Counting stops at a bound. The oldest age comes from the head of each lane's index and not from a scan; it skips
//! parked and discarded rows one by one, so a huge number of them at the head is what makes it slow.

use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::database::{answered, explain};
use crate::exit::Outcome;

/// Numbers of rows, each counted up to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Unsent and due, held or not.
    pub due: i64,
    /// Unsent and not due yet.
    pub delayed: i64,
    pub waiting: i64,
    pub parked: i64,
    pub discarded: i64,
}

impl Counts {
    /// Due rows that are neither sent nor held.
    pub fn pending(&self) -> i64 {
        (self.due - self.waiting - self.parked - self.discarded).max(0)
    }
}

// Held rows are unsent rows too, so what is pending is the difference. Each part uses its own partial index: the
// order by lane and number is one that only the index of unsent rows has, or the planner walks the sent ones as well.
const COUNTS_SQL: &str = "
    SELECT (SELECT count(*) FROM (
               (SELECT 1 FROM outbox.message WHERE lane >= 0 AND sent_at IS NULL AND available_at IS NULL
                 ORDER BY lane, seq LIMIT $1)
               UNION ALL
               (SELECT 1 FROM outbox.message WHERE sent_at IS NULL AND available_at <= clock_timestamp() LIMIT $1)
           ) AS due),
           (SELECT count(*) FROM (
               SELECT 1 FROM outbox.message WHERE sent_at IS NULL AND available_at > clock_timestamp() LIMIT $1
           ) AS later),
           (SELECT count(*) FROM (
               SELECT 1 FROM outbox.held WHERE source = 'outbox' AND state = 'waiting' LIMIT $1) AS h),
           (SELECT count(*) FROM (
               SELECT 1 FROM outbox.held WHERE source = 'outbox' AND state = 'parked' LIMIT $1) AS h),
           (SELECT count(*) FROM (
               SELECT 1 FROM outbox.held WHERE source = 'outbox' AND state = 'discarded' LIMIT $1) AS h)";

// The lowest seq of a lane is its oldest row near enough: number and created_at are taken in the same moment.
// $1 is on_park = "block_key": rows behind a parked one of their key are then not expected to go.
const OLDEST_SQL: &str = "
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(head.since)), 0)::float8
      FROM generate_series(0, 15) AS l(lane)
     CROSS JOIN LATERAL (
           (SELECT m.created_at AS since
              FROM outbox.message AS m
             WHERE (m.lane, m.seq) > (l.lane::smallint, 0) AND m.lane <= l.lane::smallint
               AND m.sent_at IS NULL AND m.available_at IS NULL
               AND NOT EXISTS (SELECT FROM outbox.held AS h
                                WHERE h.source = 'outbox' AND h.row_id = m.seq::text
                                  AND h.state IN ('parked', 'discarded'))
               AND NOT ($1 AND EXISTS (SELECT FROM outbox.held AS h
                                        WHERE h.source = 'outbox' AND h.lane = m.lane AND h.state = 'parked'
                                          AND h.ordering_key = m.ordering_key AND h.seq < m.seq))
             ORDER BY m.lane, m.seq LIMIT 1)
           UNION ALL
           (SELECT greatest(m.created_at, m.available_at)
              FROM outbox.message AS m
             WHERE m.lane = l.lane::smallint AND m.sent_at IS NULL AND m.available_at <= clock_timestamp()
               AND NOT EXISTS (SELECT FROM outbox.held AS h
                                WHERE h.source = 'outbox' AND h.row_id = m.seq::text
                                  AND h.state IN ('parked', 'discarded'))
               AND NOT ($1 AND EXISTS (SELECT FROM outbox.held AS h
                                        WHERE h.source = 'outbox' AND h.lane = m.lane AND h.state = 'parked'
                                          AND h.ordering_key = m.ordering_key AND h.seq < m.seq))
             ORDER BY m.available_at LIMIT 1)
     ) AS head";

/// Counts, each up to `max`.
pub async fn counts(transaction: &Transaction<'_>, max: i64) -> Outcome<Counts> {
    let what = "cannot count the outbox";
    let rows = answered(what, transaction.query_typed(COUNTS_SQL, &[(&max, Type::INT8)])).await?;
    let decode = |row: &Row| -> Result<Counts, tokio_postgres::Error> {
        Ok(Counts {
            due: row.try_get(0)?,
            delayed: row.try_get(1)?,
            waiting: row.try_get(2)?,
            parked: row.try_get(3)?,
            discarded: row.try_get(4)?,
        })
    };
    Ok(decoded(&rows, decode)?.into_iter().next().unwrap_or_default())
}

/// Lag: the age of the oldest due row that is neither sent, parked nor discarded; 0 where there is none.
pub async fn oldest_seconds(transaction: &Transaction<'_>, block_key: bool) -> Outcome<f64> {
    let what = "cannot find the oldest row";
    let rows = answered(what, transaction.query_typed(OLDEST_SQL, &[(&block_key, Type::BOOL)])).await?;
    let ages = decoded(&rows, |row| row.try_get::<_, f64>(0))?;
    Ok(ages.first().copied().unwrap_or_default().max(0.0))
}

/// All rows decoded, or what is wrong with the first that cannot be.
pub fn decoded<T>(rows: &[Row], decode: impl Fn(&Row) -> Result<T, tokio_postgres::Error>) -> Outcome<Vec<T>> {
    let all: Result<Vec<T>, _> = rows.iter().map(decode).collect();
    all.map_err(|error| explain("the outbox has an unexpected form", error))
}
