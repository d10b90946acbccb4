//! The durability fence: a row is published only after the WAL is flushed up to where it was read.
//!
//! Several lanes wait for one flush. A look at the flush position is tried first, since a busy server flushes by
//! itself; an idle one may never (after a WAL switch its flush position stays behind), so a small commit follows.

use outbox_core::{SourceError, mutant};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use crate::config::DurabilityFence;
use crate::connection::Connection;
use crate::errors::classify;
use crate::types::Lsn;

pub(crate) struct Fence {
    connection: Connection,
    mode: DurabilityFence,
    /// How far the WAL is known to be flushed; whoever holds the lock asks for all who wait.
    flushed: Mutex<Lsn>,
}

impl Fence {
    pub(crate) fn new(connection: Connection, mode: DurabilityFence) -> Self {
        Self { connection, mode, flushed: Mutex::new(Lsn(0)) }
    }

    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns once everything up to `wal` survives a crash.
    pub(crate) async fn durable(&self, wal: Lsn) -> Result<(), SourceError> {
        if self.mode == DurabilityFence::None || mutant("no_fence") {
            return Ok(());
        }
        let mut flushed = self.flushed.lock().await;
        if *flushed >= wal {
            return Ok(());
        }
        let position = self.position().await?;
        if self.mode == DurabilityFence::Local && position.flushed >= wal {
            *flushed = position.flushed;
            return Ok(());
        }
        self.commit().await?;
        // Everything inserted before our commit was flushed with it.
        *flushed = position.inserted.max(wal);
        Ok(())
    }

    async fn position(&self) -> Result<Position, SourceError> {
        let rows = self
            .connection
            .query("SELECT pg_current_wal_flush_lsn() AS flushed, pg_current_wal_insert_lsn() AS inserted", &[])
            .await?;
        let row = rows.first().ok_or_else(|| SourceError::Lost("no WAL position came back".to_owned()))?;
        let read = |row: &tokio_postgres::Row| -> Result<Position, tokio_postgres::Error> {
            Ok(Position { flushed: row.try_get("flushed")?, inserted: row.try_get("inserted")? })
        };
        read(row).map_err(|error| classify(&error))
    }

    async fn commit(&self) -> Result<(), SourceError> {
        let level = match self.mode {
            DurabilityFence::Sync => "on",
            DurabilityFence::Local | DurabilityFence::None => "local",
        };
        let mut tries = 0;
        loop {
            match self.connection.query(include_str!("sql/fence.sql"), &[(&level, Type::TEXT)]).await {
                Ok(_) => return Ok(()),
                Err(SourceError::Again(detail)) if tries >= 3 => return Err(SourceError::Again(detail)),
                Err(SourceError::Again(_)) => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

struct Position {
    flushed: Lsn,
    inserted: Lsn,
}
