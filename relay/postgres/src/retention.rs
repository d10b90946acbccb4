//! Retention: one small batch of rows that were sent or discarded long enough ago.

use outbox_core::SourceError;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::connection::Connection;

/// Rows in one batch: short locks, little WAL at a time.
const BATCH_ROWS_MAX: i64 = 1_000;

/// Removes a batch of each kind; the number of rows removed.
pub(crate) async fn prune(
    connection: &Connection,
    config: &PostgresConfig,
    retention_s: u64,
) -> Result<usize, SourceError> {
    let retention_s = i64::try_from(retention_s).unwrap_or(i64::MAX / 2);
    let sent = connection
        .execute(include_str!("sql/prune_sent.sql"), &[(&retention_s, Type::INT8), (&BATCH_ROWS_MAX, Type::INT8)])
        .await?;
    let discarded = connection
        .execute(
            include_str!("sql/prune_discarded.sql"),
            &[(&config.source, Type::TEXT), (&retention_s, Type::INT8), (&BATCH_ROWS_MAX, Type::INT8)],
        )
        .await?;
    Ok(usize::try_from(sent + discarded).unwrap_or(usize::MAX))
}
