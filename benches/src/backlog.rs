//! A fresh database with rows that wait for the relay.

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::SinkExt as _;
use outbox_tests::database::Database;
use tokio_postgres::Client;

use crate::load::Load;

/// Rows of one message of COPY.
const CHUNK_ROWS: u32 = 1_000;

pub struct Backlog {
    database: Database,
    client: Client,
}

impl Backlog {
    /// Vacuumed, analysed and checkpointed, so that none of it falls into the measured time.
    pub async fn preload(server_url: &str, load: &Load, topic: &str) -> Result<Self> {
        let database = Database::migrated_on(server_url).await?;
        let client = database.client().await?;
        let copy = "COPY outbox.message (idempotency_key, topic, payload, ordering_key) FROM STDIN";
        let sink = client.copy_in::<_, Bytes>(copy).await.context("COPY")?;
        let mut sink = std::pin::pin!(sink);
        for first in (0..load.rows).step_by(CHUNK_ROWS as usize) {
            let mut lines = Vec::new();
            for row in first..load.rows.min(first + CHUNK_ROWS) {
                lines.extend_from_slice(format!("{}\t{topic}\t", Load::id(row)).as_bytes());
                lines.extend_from_slice(load.body(row));
                lines.extend_from_slice(format!("\t{}\n", load.key(row)).as_bytes());
            }
            sink.send(lines.into()).await?;
        }
        sink.finish().await?;
        client.batch_execute("VACUUM ANALYZE outbox.message").await?;
        client.batch_execute("CHECKPOINT").await?;
        Ok(Self { database, client })
    }

    pub fn url(&self) -> &str {
        self.database.url()
    }

    /// The server process that serves us; its parent is the server's main process.
    pub async fn backend_pid(&self) -> Result<u32> {
        let pid: i32 = self.client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Ok(u32::try_from(pid)?)
    }

    /// The server's clock in seconds.
    pub async fn clock(&self) -> Result<f64> {
        let row = self.client.query_one("SELECT extract(epoch FROM clock_timestamp())::float8", &[]).await?;
        Ok(row.get(0))
    }

    /// As if they had been sent an hour ago.
    pub async fn send_all(&self) -> Result<()> {
        self.client.batch_execute("UPDATE outbox.message SET sent_at = now() - interval '1 hour'").await?;
        self.client.batch_execute("VACUUM ANALYZE outbox.message").await?;
        Ok(self.client.batch_execute("CHECKPOINT").await?)
    }

    /// When the last row was marked, by the server's clock, and how many rows are not.
    pub async fn marked(&self) -> Result<(f64, i64)> {
        let sql =
            "SELECT coalesce(extract(epoch FROM max(sent_at)), 0)::float8, count(*) FILTER (WHERE sent_at IS NULL)
                     FROM outbox.message";
        let row = self.client.query_one(sql, &[]).await?;
        Ok((row.get(0), row.get(1)))
    }
}
