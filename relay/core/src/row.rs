//! One row of the outbox as the relay sees it, before it is mapped to a broker's message.

use std::sync::Arc;

use bytes::Bytes;

use crate::headers::Headers;

/// The 64-bit id of the transaction that wrote a row (`xid8`). Together with `seq` it names a row for ever:
/// after a crash PostgreSQL may give a number out again, but never with the same transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxId(pub u64);

/// Microseconds since the Unix epoch, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

/// What a mark or a hold names: number and transaction, never the number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId {
    pub seq: i64,
    pub tx: TxId,
}

/// A committed row. Payload bytes are exactly those of the table.
#[derive(Clone, PartialEq)]
pub struct Row {
    pub id: RowId,
    /// The message id, 1 to 255 bytes unless the table was written around its checks.
    pub idempotency_key: String,
    pub topic: Arc<str>,
    /// Rows sharing it keep their order; `None` wants no order.
    pub ordering_key: Option<Arc<str>>,
    /// `None` is a tombstone; an empty payload is `Some` of zero bytes.
    pub payload: Option<Bytes>,
    pub content_type: Arc<str>,
    pub headers: Headers,
    pub created_at: Timestamp,
    /// Not before this instant; `None` is now.
    pub available_at: Option<Timestamp>,
    /// Attempts that were counted against the row so far (from the waiting room), 0 for a fresh row.
    pub attempts: u32,
    /// Since when the row is in the waiting room; `None` for a fresh row.
    pub held_since: Option<Timestamp>,
}

impl Row {
    /// The later of `created_at` and `available_at`: the message's timestamp and the start of its lag.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        self.available_at.map_or(self.created_at, |at| at.max(self.created_at))
    }

    /// Bytes that the row keeps in memory, near enough for a bound.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, Bytes::len) + self.headers.weight_bytes() + self.idempotency_key.len() + 256
    }
}

/// Payload and headers never reach a log, so `Debug` leaves them out.
impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row")
            .field("id", &self.id)
            .field("idempotency_key", &self.idempotency_key)
            .field("topic", &self.topic)
            .field("payload_bytes", &self.payload.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}
