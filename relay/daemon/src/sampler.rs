//! Samples the state of the outbox for the gauges, on a connection of its own and independent of the send loop.
//!
//! A sample that fails makes the gauges stale at once; the next one tries with a new connection. It also looks at the
//! schema's version each time it connects, which is what readiness goes by. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use outbox_schema::{Schema, check_version};
use tokio_postgres::{Client, Row};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::backlog::{self, decoded};
use crate::config::Database;
use crate::database::{answered, connect, reading};
use crate::exit::{Exit, Failure, Outcome};
use crate::health::Readiness;
use crate::metrics::{Metrics, StateSample};

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(5);

/// A sample that is older than this says nothing any more.
pub const STALE_AFTER_MS: u64 = 30_000;

/// Counting stops here: at 10 million rows a sample must stay cheap.
const COUNT_MAX: i64 = 100_000;

// Beyond the bound of counting the planner's own estimate is the better number. The age of other logins' transactions
// is hidden from a role without pg_read_all_stats; no value is then better than a wrong one.
const SIZES_SQL: &str = "
    SELECT pg_total_relation_size('outbox.message')::int8,
           coalesce(pg_stat_get_dead_tuples('outbox.message'::regclass), 0)::int8,
           (SELECT greatest(reltuples, 0)::int8 FROM pg_class WHERE oid = 'outbox.message_unsent'::regclass),
           (SELECT count(*) FROM (SELECT DISTINCT lane, ordering_key FROM (
                SELECT lane, ordering_key FROM outbox.held
                 WHERE source = 'outbox' AND state IN ('waiting', 'parked') AND ordering_key IS NOT NULL
                 LIMIT $1) AS h) AS keys),
           CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN coalesce((
                SELECT extract(epoch FROM clock_timestamp() - min(started)) FROM (
                    SELECT xact_start AS started FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
                    UNION ALL
                    SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) AS open
           ), 0)::float8 END";

/// What a sampler needs and reports to.
pub struct Sampler {
    pub database: Database,
    pub metrics: Arc<Metrics>,
    pub readiness: Arc<Readiness>,
    /// `on_park = "block_key"`.
    pub block_key: bool,
}

impl Sampler {
    /// Samples until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let mut timer = tokio::time::interval(INTERVAL);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut client = None;
        let mut failing = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = timer.tick() => {}
            }
            let sampled = tokio::select! {
                () = stop.cancelled() => return,
                sampled = self.run_once(client.take()) => sampled,
            };
            match sampled {
                Ok(connected) => {
                    client = Some(connected);
                    if std::mem::take(&mut failing) {
                        debug!("the state of the outbox is sampled again");
                    }
                }
                Err(failure) => {
                    self.metrics.state.stale();
                    self.readiness.sampled(false);
                    // Once an outage: the relay itself tells of it as well.
                    if !std::mem::replace(&mut failing, true) {
                        warn!(error = %failure, "cannot sample the state of the outbox");
                    }
                }
            }
        }
    }

    /// One sample; gives back the connection for the next one.
    async fn run_once(&self, client: Option<Client>) -> Outcome<Client> {
        let mut client = match client.filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let client = connect(&self.database).await?;
                let verdict = check_version(&client, Schema::Outbox).await;
                let verdict = verdict.map_err(|error| Failure::new(Exit::Configuration, error))?;
                self.readiness.schema(if verdict.is_usable() { Ok(()) } else { Err(verdict.to_string()) });
                client
            }
        };
        let sample = self.sample(&mut client).await?;
        self.metrics.state.sample(sample);
        self.readiness.sampled(true);
        Ok(client)
    }

    async fn sample(&self, client: &mut Client) -> Outcome<StateSample> {
        let transaction = reading(client).await?;
        let counts = backlog::counts(&transaction, COUNT_MAX).await?;
        let oldest_pending_age_seconds = backlog::oldest_seconds(&transaction, self.block_key).await?;
        let parameters = [(&COUNT_MAX as _, tokio_postgres::types::Type::INT8)];
        let rows = answered("cannot read sizes", transaction.query_typed(SIZES_SQL, &parameters)).await?;
        let sizes = decoded(&rows, Sizes::decode)?.into_iter().next().unwrap_or_default();
        answered("COMMIT", transaction.commit()).await?;
        let pending = if counts.due < COUNT_MAX { counts.pending() } else { counts.pending().max(sizes.unsent) };
        let whole = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(StateSample {
            pending_messages: whole(pending),
            oldest_pending_age_seconds,
            held_waiting: whole(counts.waiting),
            held_parked: whole(counts.parked),
            held_keys: whole(sizes.keys),
            table_bytes: whole(sizes.bytes),
            dead_tuples: whole(sizes.dead),
            oldest_transaction_age_seconds: sizes.oldest_transaction,
        })
    }
}

#[derive(Default)]
struct Sizes {
    bytes: i64,
    dead: i64,
    unsent: i64,
    keys: i64,
    oldest_transaction: Option<f64>,
}

impl Sizes {
    fn decode(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            bytes: row.try_get(0)?,
            dead: row.try_get(1)?,
            unsent: row.try_get(2)?,
            keys: row.try_get(3)?,
            oldest_transaction: row.try_get(4)?,
        })
    }
}
