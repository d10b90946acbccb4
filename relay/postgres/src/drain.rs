//! Whether what was committed and due at the start of a drain is done.

use outbox_core::{DrainGoal, SourceError, Timestamp};
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::connection::Connection;
use crate::errors::classify;
use crate::types::Timestamptz;

pub(crate) async fn goal(connection: &Connection) -> Result<DrainGoal, SourceError> {
    let sql = "SELECT pg_current_snapshot()::text AS snapshot, statement_timestamp() AS at";
    let rows = connection.query(sql, &[]).await?;
    let row = rows.first().ok_or_else(|| SourceError::Lost("no snapshot came back".to_owned()))?;
    let read = |row: &tokio_postgres::Row| -> Result<DrainGoal, tokio_postgres::Error> {
        let at: Timestamptz = row.try_get("at")?;
        Ok(DrainGoal { snapshot: row.try_get("snapshot")?, at: Timestamp(at.0) })
    };
    read(row).map_err(|error| classify(&error))
}

pub(crate) async fn drained(
    connection: &Connection,
    config: &PostgresConfig,
    goal: &DrainGoal,
    block_key: bool,
) -> Result<bool, SourceError> {
    let rows = connection
        .query(
            include_str!("sql/drained.sql"),
            &[
                (&config.source, Type::TEXT),
                (&goal.snapshot, Type::TEXT),
                (&goal.at.0, Type::INT8),
                (&block_key, Type::BOOL),
            ],
        )
        .await?;
    let row = rows.first().ok_or_else(|| SourceError::Lost("the drain's state came back empty".to_owned()))?;
    row.try_get("drained").map_err(|error| classify(&error))
}
