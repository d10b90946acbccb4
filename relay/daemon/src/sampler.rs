//! The sampler: looks at the state of the outbox every few seconds on a connection of its own, so that the gauges
//! say the truth while the send loop is stuck, and say that they are stale when the database is away.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::commands::status::{COUNTS_SQL, OLDEST_SQL};
use crate::config::Database;
use crate::database::{answered, connect, explain, reading};
use crate::exit::Outcome;
use crate::health::Readiness;
use crate::metrics::{Metrics, StateSample};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Between two looks while the last one failed.
const RETRY: Duration = Duration::from_secs(1);
/// A sample older than this no longer counts, in milliseconds.
pub const STALE_AFTER_MS: u64 = 30_000;
/// Counting stops here, so that a look at ten million rows costs no more than one at this many.
const COUNT_MAX: i64 = 100_000;

const HELD_SQL: &str = "
    SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'parked'),
           count(DISTINCT ordering_key) FILTER (WHERE state IN ('waiting', 'parked'))
      FROM (SELECT state, ordering_key FROM outbox.held WHERE source = 'outbox' LIMIT $1) AS h";

const SERVER_SQL: &str = "
    SELECT pg_total_relation_size('outbox.message'),
           coalesce((SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = 'outbox.message'::regclass), 0),
           coalesce((SELECT extract(epoch FROM clock_timestamp() - min(xact_start)) FROM pg_stat_activity
                      WHERE datname = current_database() AND pid <> pg_backend_pid()), 0)::float8";

/// Samples until stopped.
pub async fn run(database: Database, metrics: Arc<Metrics>, readiness: Arc<Readiness>, stop: CancellationToken) {
    loop {
        let failed = tokio::select! {
            () = stop.cancelled() => return,
            sampled = series(&database, &metrics, &readiness) => sampled,
        };
        if let Err(failure) = failed {
            debug!(error = %failure, "cannot sample the outbox");
        }
        metrics.state.stale();
        readiness.sampled(false);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Samples on one connection until it fails.
async fn series(database: &Database, metrics: &Metrics, readiness: &Readiness) -> Outcome<()> {
    let mut client = connect(database).await?;
    loop {
        let sample = run_once(&mut client).await?;
        metrics.state.sample(sample);
        readiness.sampled(true);
        tokio::time::sleep(INTERVAL).await;
    }
}

/// One look, in one snapshot.
async fn run_once(client: &mut tokio_postgres::Client) -> Outcome<StateSample> {
    let what = "cannot sample the outbox";
    let wrong = |error| explain(what, error);
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let transaction = reading(client).await?;
    let limited = [(&COUNT_MAX as _, Type::INT8)];
    let counts = answered(what, transaction.query_typed_one(COUNTS_SQL, &limited)).await?;
    let held = answered(what, transaction.query_typed_one(HELD_SQL, &limited)).await?;
    let oldest = answered(what, transaction.query_typed_one(OLDEST_SQL, &[])).await?;
    let server = answered(what, transaction.query_typed_one(SERVER_SQL, &[])).await?;
    let (due, all_held): (i64, i64) = (counts.try_get(0).map_err(wrong)?, counts.try_get(2).map_err(wrong)?);
    Ok(StateSample {
        pending_messages: number(due.saturating_sub(all_held)),
        oldest_pending_age_seconds: oldest.try_get::<_, f64>(0).map_err(wrong)?.max(0.0),
        held_waiting: number(held.try_get(0).map_err(wrong)?),
        held_parked: number(held.try_get(1).map_err(wrong)?),
        held_keys: number(held.try_get(2).map_err(wrong)?),
        table_bytes: number(server.try_get(0).map_err(wrong)?),
        dead_tuples: number(server.try_get(1).map_err(wrong)?),
        oldest_transaction_age_seconds: server.try_get::<_, f64>(2).map_err(wrong)?.max(0.0),
    })
}
