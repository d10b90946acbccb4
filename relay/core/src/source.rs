//! What a database adapter implements: one `Session` is one set of connections that live and die together.
//!
//! Positions in memory belong to the session that found them. When any connection of a session breaks, the
//! whole session is over and `lost` resolves; nothing replaces a connection unseen.

use std::future::Future;
use std::sync::Arc;

use crate::intake::Take;
use crate::reason::Reason;
use crate::row::{Row, RowId, Timestamp};

/// The right to work on a lane: a lane number and the epoch of its acquisition. The owner is the session's relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub lane: i16,
    pub epoch: i64,
}

/// Why the database did not do as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// The connection broke or a deadline passed: the outcome of a write is unknown and the session is over.
    #[error("the database connection is lost: {0}")]
    Lost(String),
    /// The statement certainly changed nothing and may be repeated (lock time-out, deadlock, serialization).
    #[error("the database asks to try again: {0}")]
    Again(String),
    /// The database refuses (privileges, schema, read-only): an operator is needed, trying goes on.
    #[error("the database refuses: {0}")]
    Refused(String),
}

/// A number and a transaction id taken after it was read: once a snapshot's `xmin` lies above `xid`, every
/// transaction that owns a number up to `last_seq` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    pub last_seq: i64,
    pub xid: u64,
}

/// Asks for one page of one lane.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub lease: Lease,
    /// Fresh rows are looked for above it.
    pub low: i64,
    /// Numbers that are in memory already, in order; below `low` too.
    pub exclude: Vec<i64>,
    pub rows_max: usize,
    pub bytes_max: usize,
    /// Whether the waiting room is looked at.
    pub with_held: bool,
    /// Gates whose rows must stay.
    pub open_gates: Vec<String>,
    /// Open gates of which this claim may take one row as a probe.
    pub probe_gates: Vec<String>,
    pub block_key: bool,
}

/// Where a claimed row came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The table's flow, above `low`.
    Fresh,
    /// Its `available_at` has come; outside `low`.
    Delayed,
    /// The waiting room.
    Held { probe: bool },
}

/// One row of a page.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub id: RowId,
    pub origin: Origin,
    pub ordering_key: Option<Arc<str>>,
    pub content: Content,
}

/// What came with a claimed row.
#[derive(Clone, Debug)]
pub enum Content {
    Row(Arc<Row>),
    /// An earlier row of its key waits: it belongs behind it in the waiting room.
    Blocked,
    /// The row is not what the table promises; the text names the column.
    Bad {
        detail: String,
    },
}

/// One page of one lane, read in one snapshot, and durable.
#[derive(Clone, Debug)]
pub struct Page {
    pub rows: Vec<Claimed>,
    /// The last number up to which the page is whole; `i64::MAX` when nothing was cut off.
    pub whole_to: i64,
    pub snapshot_xmin: u64,
    /// The database's clock at the read.
    pub now: Timestamp,
}

/// What becomes of a row in the waiting room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    Waiting,
    Parked,
}

/// One row on its way into the waiting room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldEntry {
    pub id: RowId,
    pub state: HoldState,
    pub reason: Reason,
    pub detail: String,
    pub attempts: u32,
    /// Milliseconds from now; `None` is due as soon as its gates are closed and it is the first of its key.
    pub delay_ms: Option<u64>,
    pub gates: Vec<String>,
}

/// Whether a fenced write took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    Done,
    /// The lane has another owner or epoch; nothing was changed.
    Stale,
}

/// Rows of one lane to mark as sent.
#[derive(Clone, Debug)]
pub struct MarkOrder {
    pub lease: Lease,
    pub rows: Vec<RowId>,
}

/// What a heartbeat found.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    /// Of the leases given, those that still hold and were extended.
    pub kept: Vec<Lease>,
    /// Relays whose heartbeat is alive, this one included.
    pub relays_alive: usize,
    /// Lanes that nobody owns or whose lease has run out.
    pub free: Vec<i16>,
    /// Place of this relay among those alive, by id.
    pub rank: usize,
}

/// A lane that was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    pub lease: Lease,
    /// Nobody else owned the lane since the epoch that was named.
    pub continuous: bool,
}

/// Where a lane stands, for the one question that is asked for all lanes.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub lane: i16,
    pub low: i64,
}

/// What was committed and due when a drain began.
#[derive(Clone, Debug)]
pub struct DrainGoal {
    pub snapshot: String,
    pub at: Timestamp,
}

/// How to look for work.
#[derive(Clone, Debug)]
pub struct PollRequest {
    pub positions: Vec<Position>,
    pub exclude: Vec<i64>,
    pub with_held: bool,
    pub open_gates: Vec<String>,
    pub block_key: bool,
}

/// A set of database connections. Every call has a deadline; one that passes ends the session.
pub trait Session: Send + Sync + 'static {
    /// Resolves with the reason when the session is over.
    fn lost(&self) -> impl Future<Output = String> + Send;
    /// Extends the leases and shows this relay alive. When the relay's row is gone although it was there before,
    /// the database crashed or failed over unseen: the session is `Lost`.
    fn heartbeat(&self, owned: &[Lease]) -> impl Future<Output = Result<Heartbeat, SourceError>> + Send;
    /// Takes those of the lanes that are free, or ours under the epoch named.
    fn acquire(&self, wanted: &[(i16, Option<i64>)])
    -> impl Future<Output = Result<Vec<Acquired>, SourceError>> + Send;
    fn release(&self, leases: &[Lease]) -> impl Future<Output = Result<(), SourceError>> + Send;
    /// Takes this relay off the list of those alive.
    fn leave(&self) -> impl Future<Output = Result<(), SourceError>> + Send;
    /// The newest number given out: a cheap look that takes no transaction id.
    fn last_seq(&self) -> impl Future<Output = Result<i64, SourceError>> + Send;
    fn horizon(&self) -> impl Future<Output = Result<Horizon, SourceError>> + Send;
    fn poll(&self, request: &PollRequest) -> impl Future<Output = Result<Vec<i16>, SourceError>> + Send;
    fn claim(&self, request: ClaimRequest) -> impl Future<Output = Result<Page, SourceError>> + Send;
    /// The leases that were stale; the rows of all others are marked, or gone.
    fn mark(&self, orders: &[MarkOrder]) -> impl Future<Output = Result<Vec<Lease>, SourceError>> + Send;
    fn hold(&self, lease: Lease, entries: &[HoldEntry]) -> impl Future<Output = Result<Fenced, SourceError>> + Send;
    /// Of rows kept from an earlier session, those that are still there, the same and unsent.
    fn recheck(&self, rows: &[(RowId, String)]) -> impl Future<Output = Result<Vec<RowId>, SourceError>> + Send;
    fn drain_goal(&self) -> impl Future<Output = Result<DrainGoal, SourceError>> + Send;
    /// Whether everything of the goal is sent, parked or discarded.
    fn drained(&self, goal: &DrainGoal, block_key: bool) -> impl Future<Output = Result<bool, SourceError>> + Send;
    /// Removes one small batch of rows sent (or discarded) longer ago than this; the number removed.
    fn prune(&self, retention_s: u64) -> impl Future<Output = Result<usize, SourceError>> + Send;
    /// Takes a batch of rows of an application's table over into the outbox: all of it or nothing. With `look_first`
    /// it first asks cheaply whether there is anything. `Refused` concerns this table alone.
    fn take(&self, intake: usize, look_first: bool) -> impl Future<Output = Result<Take, SourceError>> + Send;
    /// Removes notes of rows that the application has removed, a small batch of them above a note's row id. Where to
    /// go on; `None` after the last.
    fn tidy(&self, intake: usize, above: &str) -> impl Future<Output = Result<Option<String>, SourceError>> + Send;
}

/// Where sessions come from.
pub trait Source: Send + Sync + 'static {
    type Session: Session;
    fn connect(&self) -> impl Future<Output = Result<Arc<Self::Session>, SourceError>> + Send;
}
