//! The durability fence: a row is published only after the WAL is flushed up to where it was read.
//!
//! Several lanes wait for one flush. A look at the flush position is tried first, since a busy server flushes by
//! itself; an idle one may never (after a WAL switch its flush position stays behind), so a small commit follows.

use outbox_core::{SourceError, mutant};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use crate::config::DurabilityFence;
use crate::connection::Connection;
use crate::dialer::CancelledWaits;
use crate::errors::classify;
use crate::types::Lsn;

/// Before the claim that waits for the fence is given back.
const COMMIT_TRIES: usize = 3;

pub(crate) struct Fence {
    connection: Connection,
    mode: DurabilityFence,
    /// How far the WAL is known to be flushed; whoever holds the lock asks for all who wait.
    flushed: Mutex<Lsn>,
    cancelled_waits: CancelledWaits,
}

impl Fence {
    /// `sync` without a standby to wait for would promise what it does not do, so it is refused.
    pub(crate) async fn new(
        connection: Connection,
        mode: DurabilityFence,
        cancelled_waits: CancelledWaits,
    ) -> Result<Self, SourceError> {
        if mode == DurabilityFence::Sync {
            let rows = connection.query("SELECT current_setting('synchronous_standby_names') AS names", &[]).await?;
            let names: Option<String> = rows.first().and_then(|row| row.try_get("names").ok());
            if names.is_none_or(|names| names.trim().is_empty()) {
                let text =
                    "durability_fence is sync, but synchronous_standby_names is empty: name standbys or use local";
                return Err(SourceError::Refused(text.to_owned()));
            }
        }
        Ok(Self { connection, mode, flushed: Mutex::new(Lsn(0)), cancelled_waits })
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
        for _ in 0..COMMIT_TRIES {
            let cancelled = self.cancelled_waits.count();
            match self.connection.query(include_str!("sql/fence.sql"), &[(&level, Type::TEXT)]).await {
                Ok(_) if self.mode == DurabilityFence::Sync && self.cancelled_waits.count() != cancelled => {}
                Ok(_) => return Ok(()),
                Err(SourceError::Again(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(SourceError::Again("the durability fence could not commit".to_owned()))
    }
}

struct Position {
    flushed: Lsn,
    inserted: Lsn,
}
