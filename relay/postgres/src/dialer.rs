//! Makes connections for the pool and reads what the server says unasked on each.
//!
//! One such word matters: a commit that waited for a synchronous standby may be cancelled, and then succeeds with
//! no more than a warning. `CancelledWaits` counts them, so that the fence can take its own commit as failed.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::{AsyncMessage, Client, Config, Error};

use crate::tls::Database;

/// Warnings so far that a commit did not wait for its standby. Any connection's count: a neighbour's warning may
/// fail the fence once too often, never too seldom.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelledWaits(Arc<AtomicU64>);

impl CancelledWaits {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn note(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

pub(crate) struct Dialer {
    pub(crate) database: Database,
    pub(crate) cancelled_waits: CancelledWaits,
}

impl Connect for Dialer {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        let (database, cancelled_waits) = (self.database.clone(), self.cancelled_waits.clone());
        Box::pin(async move {
            let (client, mut connection) = database.dial(config).await?;
            let task = tokio::spawn(async move {
                while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                    match message {
                        Ok(AsyncMessage::Notice(notice)) => {
                            // The text is translated by the server's locale, so any warning on our few statements
                            // is reason enough to wait for the standby again.
                            if notice.parsed_severity() == Some(Severity::Warning) {
                                cancelled_waits.note();
                            }
                            tracing::debug!(code = notice.code().code(), notice = notice.message(), "from PostgreSQL");
                        }
                        Ok(_) => {}
                        Err(error) => {
                            tracing::debug!(error = %crate::errors::describe(&error), "connection ended");
                            return;
                        }
                    }
                }
            });
            Ok((client, task))
        })
    }
}
