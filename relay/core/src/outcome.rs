//! What a sink may say about one publication. Sinks only classify; `decide` says what follows.

use crate::reason::Reason;

/// How far a failure of an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The exchange or topic.
    Destination,
    /// The exchange with this routing key.
    Address,
}

/// The classified answer to one publication. `detail` never holds payload or header values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker's positive confirm of this very row, and it was not returned.
    Confirmed,
    /// The row certainly never left this process: the link was away, the lease ran out, or the sink stops.
    /// It stays queued and goes again, no attempt used up.
    NotSent,
    /// It may or may not have arrived: a time-out, a lost link, a purged queue.
    Unknown { detail: String },
    /// The exchange, topic or binding is missing (`Unroutable`, `NoExchange`, `NoTopic`), or the address takes rows and
    /// confirms none (`Unknown`): then this one may have arrived.
    AddressAway { scope: Scope, reason: Reason, detail: String },
    /// The broker said not now (`Nack`, `QueueFull`): the key waits with backoff.
    Busy { reason: Reason, detail: String },
    /// This row can never go as it is (`Size`, `Name`, `Encoding`, `ReservedHeader`, `NoRoute`): park it at once.
    Impossible { reason: Reason, detail: String },
    /// This very row failed and may succeed later (`ChannelError` found by isolation, `Rejected`): one attempt.
    Failed { reason: Reason, detail: String },
}
