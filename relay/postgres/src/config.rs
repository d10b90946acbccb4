//! What the adapter must be told.

use uuid::Uuid;

use crate::intake::IntakeTable;
use crate::session::SESSION_CONNECTIONS;
use crate::tls::Database;

/// `durability_fence`: what makes sure that a row cannot be undone once it is published (design, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurabilityFence {
    /// Flushed to the primary's disk.
    Local,
    /// Confirmed by the synchronous standbys too.
    Sync,
    /// No fence: a crash of the database may leave a message of a row that never was.
    None,
}

/// Checked settings of the adapter.
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    /// Where the database is and how it is spoken to; its `Debug` hides the password.
    pub database: Database,
    /// Names the outbox in `outbox.lane` and `outbox.held`; ours is `outbox`.
    pub source: String,
    /// Made anew at each process start.
    pub relay_id: Uuid,
    pub version: String,
    pub host: Option<String>,
    pub lease_ttl_ms: u64,
    pub fence: DurabilityFence,
    /// Tables whose rows are taken over; the core knows them by their place in here.
    pub intakes: Vec<IntakeTable>,
    /// A statement without an answer for this long ends the session, in milliseconds. Renewals have half a lease.
    pub statement_timeout_ms: u64,
}

impl PostgresConfig {
    pub(crate) fn lease_ttl(&self) -> i64 {
        i64::try_from(self.lease_ttl_ms).unwrap_or(i64::MAX)
    }

    /// Connections of one session: claims, marks, holds, control, fence, and one for all tables that are taken over.
    #[must_use]
    pub fn connections(&self) -> usize {
        SESSION_CONNECTIONS + usize::from(!self.intakes.is_empty())
    }

    /// Marks and holds wait for locks less than a third of the lease.
    pub(crate) fn lock_timeout(&self) -> String {
        format!("{}ms", (self.lease_ttl_ms / 4).max(50))
    }
}
